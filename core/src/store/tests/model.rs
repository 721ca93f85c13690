//! Random operations on the store and on a model that searches all of its rows.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::hash::hash_bytes;
use crate::store::table::Row;
use crate::txn::Taken;

/// All versions of all keys, newest first.
#[derive(Default)]
struct Model {
    rows: BTreeMap<(TableId, Key), Vec<Version>>,
}

impl Model {
    fn apply(&mut self, table: TableId, key: Key, version: Version) {
        let versions = self.rows.entry((table, key)).or_default();
        if versions.first().is_some_and(|newest| newest.version == version.version) {
            versions[0] = version;
        } else {
            versions.insert(0, version);
        }
    }

    fn reclaim(&mut self, floor: SnapshotVersion) -> usize {
        let versions = |rows: &BTreeMap<_, Vec<_>>| rows.values().map(Vec::len).sum::<usize>();
        let before = versions(&self.rows);
        self.rows.retain(|_, versions| {
            if let Some(needed) = versions.iter().position(|v| v.version <= floor) {
                versions.truncate(needed + 1);
            }
            let is_gone =
                versions.len() == 1 && versions[0].value.is_none() && versions[0].version <= floor;
            !is_gone
        });
        before - versions(&self.rows)
    }

    fn retreat_to(&mut self, upto: SnapshotVersion) {
        self.rows.values_mut().for_each(|versions| versions.retain(|v| v.version <= upto));
        self.rows.retain(|_, versions| !versions.is_empty());
    }

    /// Every so many of the versions after this one.
    fn some_after(
        &self,
        upto: SnapshotVersion,
        every: usize,
    ) -> Vec<(TableId, Key, SnapshotVersion)> {
        let all = self.rows.iter().flat_map(|((table, key), versions)| {
            let newer = versions.iter().filter(|version| version.version > upto);
            newer.map(|version| (*table, key.clone(), version.version))
        });
        all.step_by(every).collect()
    }

    fn expunge(&mut self, (table, key, version): (TableId, Key, SnapshotVersion)) {
        let versions = self.rows.get_mut(&(table, key.clone())).expect("the row exists");
        versions.retain(|found| found.version != version);
        if versions.is_empty() {
            self.rows.remove(&(table, key));
        }
    }

    /// The rows that a scan visits.
    fn scan(&self, table: TableId, range: &KeyRange, at: SnapshotVersion) -> Vec<(Key, Version)> {
        let rows = self.rows.iter().filter(|((t, key), _)| *t == table && range.contains(key));
        let visible = |versions: &Vec<Version>| {
            versions.iter().find(|version| version.version <= at).cloned()
        };
        rows.filter_map(|((_, key), v)| visible(v).map(|version| (key.clone(), version))).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Writes at the next version: table, key, and the value's length or a deletion.
    Write(Vec<(u32, u8, Option<usize>)>),
    /// The same as one batch, with this many workers.
    Batch(usize, Vec<(u32, u8, Option<usize>)>),
    Publish,
    Pin(usize),
    Unpin(usize),
    /// Reclaims up to a version, this many keys at a time.
    Reclaim(u64, usize),
    /// Rolls back by this many versions.
    Retreat(u64),
    /// The next writes have a later version than the last ones, which is not published.
    Ahead,
    /// Removes every so many of the versions that are not published.
    Expunge(usize),
    /// Chooses values to evict.
    Choose,
    /// Evicts values that were chosen earlier.
    EvictChosen(usize),
    /// Chooses and evicts until no value is left.
    Evict,
    /// Fetches the values of this many keys from one on.
    Fetch(u32, u8, u8),
    /// Scans a range, up to this many rows.
    Scan {
        table: u32,
        from: u8,
        to: Option<u8>,
        is_reverse: bool,
        back: u64,
        rows: usize,
    },
}

fn writes(most: usize) -> impl Strategy<Value = Vec<(u32, u8, Option<usize>)>> {
    prop::collection::vec((0..3_u32, 0..60_u8, prop::option::weighted(0.7, 0..40_usize)), 1..most)
}

fn step() -> impl Strategy<Value = Step> {
    let scan =
        (0..4_u32, 0..60_u8, prop::option::of(0..60_u8), any::<bool>(), 0..4_u64, 0..40_usize)
            .prop_map(|(table, from, to, is_reverse, back, rows)| Step::Scan {
                table,
                from,
                to,
                is_reverse,
                back,
                rows,
            });
    prop_oneof![
        4 => writes(12).prop_map(Step::Write),
        4 => (1..5_usize, writes(60)).prop_map(|(workers, writes)| Step::Batch(workers, writes)),
        6 => Just(Step::Publish),
        2 => (0..5_usize).prop_map(Step::Pin),
        2 => (0..5_usize).prop_map(Step::Unpin),
        2 => (0..40_u64, 1..20_usize).prop_map(|(floor, most)| Step::Reclaim(floor, most)),
        4 => scan,
        1 => (0..4_u64).prop_map(Step::Retreat),
        4 => Just(Step::Ahead),
        2 => (1..6_usize).prop_map(Step::Expunge),
        3 => Just(Step::Choose),
        3 => (0..5_usize).prop_map(Step::EvictChosen),
        1 => Just(Step::Evict),
        1 => (0..3_u32, 0..60_u8, 1..20_u8).prop_map(|(table, at, n)| Step::Fetch(table, at, n)),
    ]
}

/// Short and long keys, so that both kinds of [`Key`] are covered.
fn key_of(number: u8) -> Key {
    let long = [number; 40];
    key(if number.is_multiple_of(3) { &long } else { &long[..2] })
}

struct Run {
    store: Arc<Store>,
    model: Model,
    cold: ColdMemory,
    chosen: Vec<Chosen>,
    pins: Vec<Pin>,
    /// The number of writes, so that each has a different header.
    written: usize,
    reclaimed: SnapshotVersion,
    /// The version of the next writes.
    head: SnapshotVersion,
}

impl Run {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Write(writes) => {
                for (table, key, version) in self.writes(writes) {
                    self.model.apply(table, key.clone(), version.clone());
                    self.store.apply(table, key, version);
                }
            }
            Step::Batch(workers, writes) => {
                let writes = self.writes(writes);
                for (table, key, version) in writes.clone() {
                    self.model.apply(table, key, version);
                }
                self.store.apply_batch(&Threads(*workers), self.head, writes);
            }
            Step::Publish => {
                self.store.publish(self.store.published().next());
                self.head = self.head.max(self.store.published().next());
            }
            Step::Ahead => self.head = self.head.next(),
            Step::Expunge(every) => {
                let some = self.model.some_after(self.store.published(), *every);
                let versions = some.iter().map(|(table, key, at)| (*table, key, *at));
                assert_eq!(self.store.expunge(versions), some.len());
                some.into_iter().for_each(|it| self.model.expunge(it));
            }
            Step::Pin(back) => self.pin(*back),
            Step::Unpin(index) if self.pins.is_empty() => assert!(*index < 5),
            Step::Unpin(index) => drop(self.pins.swap_remove(index % self.pins.len())),
            Step::Reclaim(floor, most) => self.reclaim(SnapshotVersion(*floor), *most),
            Step::Retreat(back) => self.retreat(*back),
            Step::Choose => self.chosen.push(self.store.choose_cold()),
            Step::EvictChosen(index) if self.chosen.is_empty() => assert!(*index < 5),
            Step::EvictChosen(index) => {
                let chosen = self.chosen.swap_remove(index % self.chosen.len());
                self.store.evict_chosen(chosen);
            }
            Step::Evict => {
                self.store.evict();
            }
            Step::Fetch(table, first, count) => {
                let keys: Vec<_> =
                    (*first..first + count).map(|i| (TableId(*table), key_of(i))).collect();
                self.store.fetch_ahead(&keys);
                assert!(keys.iter().all(|(table, key)| !self.store.is_cold(*table, key)));
            }
            Step::Scan { table, from, to, is_reverse, back, rows } => {
                let end = to.map(|to| key_of(to).to_vec());
                let range = KeyRange { start: key_of(*from).to_vec(), end };
                let direction = if *is_reverse { Direction::Reverse } else { Direction::Forward };
                // From an old version, if it still exists, to one that is not published yet.
                let at = self.head.0.saturating_sub(*back);
                let at = SnapshotVersion(at).max(self.reclaimed);
                self.check_scan(TableId(*table), &range, direction, at, *rows);
            }
        }
    }

    fn writes(&mut self, writes: &[(u32, u8, Option<usize>)]) -> Vec<(TableId, Key, Version)> {
        let next = self.head;
        let first = self.written;
        self.written += writes.len();
        let numbered = writes.iter().zip(first..);
        let write = |(&(table, key, len), number): (&(u32, u8, Option<usize>), usize)| {
            let value = len.map(|len| Value::from(vec![number as u8; len]));
            let header = header(number as u64);
            (TableId(table), key_of(key), Version { version: next, header, value })
        };
        numbered.map(write).collect()
    }

    fn pin(&mut self, back: usize) {
        let at = SnapshotVersion(self.store.published().0.saturating_sub(back as u64));
        match self.store.pin_at(at) {
            Ok(pin) => self.pins.push(pin),
            Err(error) => assert_eq!(error, PinError::Reclaimed { oldest: self.reclaimed }),
        }
        assert!(at < self.reclaimed || self.pins.iter().any(|pin| pin.version() == at));
    }

    fn reclaim(&mut self, floor: SnapshotVersion, most: usize) {
        let oldest = self.pins.iter().map(Pin::version).min();
        let allowed = floor.min(oldest.unwrap_or(self.store.published()));
        self.reclaimed = self.reclaimed.max(allowed);
        // Each write leaves at most one key to visit.
        let steps = self.written / most + 1;
        let reclaimed: usize = (0..=steps).map(|_| self.store.reclaim_at_most(floor, most)).sum();
        assert_eq!(reclaimed, self.model.reclaim(allowed), "reclaimed at {allowed}");
    }

    fn retreat(&mut self, back: u64) {
        let upto = SnapshotVersion(self.store.published().0.saturating_sub(back));
        let upto = upto.max(self.reclaimed);
        self.store.retreat_to(upto);
        self.model.retreat_to(upto);
        assert!(self.pins.iter().all(|pin| pin.is_lost() == (pin.version() > upto)));
        self.pins.retain(|pin| pin.version() <= upto);
    }

    /// Asserts that the store's count and map of cold rows are correct.
    fn check_counts(&self) {
        let is_cold = |(table, key): &&(TableId, Key)| self.store.is_cold(*table, key);
        let cold: Vec<_> = self.model.rows.keys().filter(is_cold).collect();
        assert_eq!(self.store.cold_counts().cold, cold.len() as u64);
        let map = self.store.cold_map();
        assert!(cold.iter().all(|(table, key)| map.has(*table, key)));
        assert!(!cold.is_empty() || map.changes_since(&ColdMap::default()).is_empty());
    }

    fn check_scan(
        &self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        at: SnapshotVersion,
        rows: usize,
    ) {
        let mut expected = self.model.scan(table, range, at);
        if direction == Direction::Reverse {
            expected.reverse();
        }
        expected.truncate(rows.max(1));
        let mut found = Vec::new();
        self.store.scan(table, range, direction, at, |key, version| {
            found.push((key.clone(), version.clone()));
            if found.len() < rows { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!(found, expected, "{table} {range:?} {direction:?} at {at}");
    }

    /// Checks an unordered scan of the live rows of a table at a published version.
    fn check_sweep(&self, table: TableId, at: SnapshotVersion) {
        let Ok(pin) = self.store.pin_at(at) else {
            return assert!(at > self.store.published());
        };
        let sweep = pin.unordered_scan(table);
        drop(pin);
        let mut found = Vec::new();
        for part in 0..UnorderedScan::PARTS {
            let mut taken = Taken::default();
            sweep.take(part, &mut taken);
            assert_eq!(sweep.count(part), taken.len());
            found.extend(taken.iter().map(|(key, value)| (Key::from(key), Value::from(value))));
        }
        found.sort_unstable();
        let rows = self.model.scan(table, &KeyRange::all(), at).into_iter();
        let live: Vec<_> = rows.filter_map(|(key, v)| Some((key, v.value?))).collect();
        assert_eq!(found, live, "{table} at {at}");
    }

    /// Checks all keys and scans at all versions that readers may use, and at the next one.
    fn check(&self) {
        for at in self.reclaimed.0..=self.head.0 {
            let at = SnapshotVersion(at);
            for table in (0..4).map(TableId) {
                for direction in [Direction::Forward, Direction::Reverse] {
                    self.check_scan(table, &KeyRange::all(), direction, at, usize::MAX);
                }
                self.check_sweep(table, at);
                let rows: BTreeMap<_, _> =
                    self.model.scan(table, &KeyRange::all(), at).into_iter().collect();
                for key in (0..60).map(key_of) {
                    let expected = rows.get(&key).cloned();
                    assert_eq!(self.store.read(table, &key, at), expected, "{key:?} at {at}");
                }
            }
        }
        for table in (0..4).map(TableId) {
            let keys = self.model.rows.keys().filter(|(t, _)| *t == table).count();
            assert_eq!(self.store.len(table), keys, "{table}");
        }
    }

    /// Asserts that, once everything is reclaimed, the store equals one filled with the live rows.
    fn check_at_rest(&mut self) {
        self.pins.clear();
        self.store.publish(self.head);
        self.head = self.head.next();
        self.reclaim(self.store.published(), 7);
        let fresh = Store::new();
        for ((table, key), versions) in &self.model.rows {
            assert!(versions.len() == 1 && versions[0].value.is_some());
            fresh.apply(*table, key.clone(), versions[0].clone());
        }
        let at = self.store.published();
        assert_eq!(self.store.digest(at), fresh.digest(at));
        // The check reads all rows, so they are in memory afterwards.
        let kept = self.store.cold_counts().cold;
        self.check();
        assert_eq!(self.store.cold_counts().cold, 0, "of {kept}");
        assert_eq!(self.store.memory_bytes(), fresh.memory_bytes());
        self.check_copies();
    }

    /// Asserts that the cold store contains exactly the copies recorded in the rows.
    fn check_copies(&mut self) {
        self.chosen.drain(..).for_each(|chosen| {
            self.store.evict_chosen(chosen);
        });
        self.store.evict();
        self.store.evict_chosen(Chosen::default());
        let has_copy = |(table, key): &&(TableId, Key)| {
            let head = self.store.head(*table, key, SnapshotVersion(u64::MAX)).unwrap();
            let has_copy =
                |row: &Row| row.chain.newest().value.as_ref().is_some_and(Value::has_copy);
            let table = self.store.tables.table(*table).unwrap();
            let has_copy = table.with_row(hash_bytes(key), key, has_copy).unwrap();
            assert!(has_copy || !head.value.unwrap().is_cold());
            has_copy
        };
        assert_eq!(self.model.rows.keys().filter(has_copy).count(), self.cold.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_store_does_what_the_model_does(
        steps in prop::collection::vec(step(), 1..40),
        bytes_max in prop::option::of(0..20_000_usize),
    ) {
        let cold = ColdMemory::default();
        let store = Arc::new(match bytes_max {
            Some(bytes_max) => Store::with_cold(Box::new(cold.clone()), bytes_max),
            None => Store::new(),
        });
        let (model, reclaimed) = (Model::default(), SnapshotVersion::ZERO);
        let (pins, chosen) = (Vec::new(), Vec::new());
        let head = SnapshotVersion(1);
        let mut run = Run { store, model, cold, chosen, pins, written: 0, reclaimed, head };
        for step in &steps {
            run.step(step);
            run.check_counts();
        }
        run.check();
        run.check_at_rest();
        run.check();
    }
}
