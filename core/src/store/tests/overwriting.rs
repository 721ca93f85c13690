//! Random operations on a store whose writers overwrite, together with everything that may need
//! overwritten versions: pins, a checkpoint, rollbacks, and values that are not in memory. The
//! model keeps all versions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::hash::hash_bytes;
use crate::store::table::Row;

const KEYS: u8 = 12;

/// All values of each key, oldest first.
type Model = BTreeMap<u8, Vec<(SnapshotVersion, Option<Value>)>>;

#[derive(Clone, Debug)]
enum Step {
    /// Writes the next version: keys, and the lengths of their values, or deletions.
    Write(Vec<(u8, Option<usize>)>),
    /// Advances the version to before which the store never rolls back.
    Decide(u64),
    /// Rolls back by this many versions, as far as allowed.
    GoBack(u64),
    Pin(u64),
    Unpin(usize),
    /// Begins or ends a checkpoint.
    Checkpoint,
    Reclaim(usize),
    Choose,
    EvictChosen(usize),
    Evict,
    Fetch(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..KEYS, prop::option::weighted(0.8, 20..60_usize));
    prop_oneof![
        10 => prop::collection::vec(write, 1..6).prop_map(Step::Write),
        6 => (0..5_u64).prop_map(Step::Decide),
        1 => (0..6_u64).prop_map(Step::GoBack),
        2 => (0..4_u64).prop_map(Step::Pin),
        2 => (0..5_usize).prop_map(Step::Unpin),
        2 => Just(Step::Checkpoint),
        1 => (1..20_usize).prop_map(Step::Reclaim),
        1 => Just(Step::Choose),
        1 => (0..5_usize).prop_map(Step::EvictChosen),
        2 => Just(Step::Evict),
        1 => (0..KEYS, 1..4_u8).prop_map(|(key, count)| Step::Fetch(key, count)),
    ]
}

fn key_of(number: u8) -> Key {
    Key::from(&[number][..])
}

struct Run {
    store: Arc<Store>,
    cold: ColdMemory,
    model: Model,
    /// The store does not roll back to before this version.
    final_upto: SnapshotVersion,
    pins: Vec<Pin>,
    checkpoint: Option<Pin>,
    chosen: Vec<Chosen>,
    written: u64,
    has_gone_back: bool,
}

impl Run {
    fn step(&mut self, step: &Step) {
        let published = self.store.published();
        match step {
            Step::Write(writes) => self.write(writes),
            Step::Decide(more) => {
                self.final_upto = SnapshotVersion(self.final_upto.0 + more).min(published);
            }
            Step::GoBack(count) => {
                let upto = SnapshotVersion(published.0.saturating_sub(*count));
                self.go_back(upto.max(self.final_upto));
            }
            Step::Pin(back) => {
                let at = SnapshotVersion(published.0.saturating_sub(*back));
                self.pins.extend(self.store.pin_at(at));
            }
            Step::Unpin(at) if self.pins.is_empty() => assert!(*at < 5),
            Step::Unpin(at) => drop(self.pins.swap_remove(at % self.pins.len())),
            Step::Checkpoint => match self.checkpoint.take() {
                Some(pin) => pin.end(),
                None => {
                    let pin = self.store.pin_checkpoint(self.final_upto);
                    self.checkpoint = Some(pin.expect("a final version is published and retained"));
                }
            },
            Step::Reclaim(most) => {
                self.store.reclaim_at_most(self.final_upto, *most);
            }
            Step::Choose => self.chosen.push(self.store.choose_cold()),
            Step::EvictChosen(at) if self.chosen.is_empty() => assert!(*at < 5),
            Step::EvictChosen(at) => {
                let chosen = self.chosen.swap_remove(at % self.chosen.len());
                self.store.evict_chosen(chosen);
            }
            Step::Evict => {
                self.store.evict();
            }
            Step::Fetch(first, count) => {
                let keys: Vec<_> = (*first..first + count).map(|i| (TABLE, key_of(i))).collect();
                self.store.fetch_ahead(&keys);
            }
        }
    }

    fn write(&mut self, writes: &[(u8, Option<usize>)]) {
        let writes: BTreeMap<u8, Option<usize>> = writes.iter().copied().collect();
        self.store.overwrite(self.final_upto);
        let next = self.store.published().next();
        let mut batch = Vec::new();
        for (key, len) in writes {
            self.written += 1;
            let value = len.map(|len| Value::from(vec![self.written as u8; len]));
            self.model.entry(key).or_default().push((next, value.clone()));
            let header = header(self.written);
            batch.push((TABLE, key_of(key), Version { version: next, header, value }));
        }
        // While the version is half written, readers still see the same rows.
        let half = batch.split_off(batch.len() / 2);
        self.store.apply_batch(&Sequential, next, batch);
        self.check();
        self.store.apply_batch(&Sequential, next, half);
        self.store.publish(next);
    }

    fn go_back(&mut self, upto: SnapshotVersion) {
        self.store.retreat_to(upto);
        self.has_gone_back = true;
        // From now on, other values may have these versions.
        self.chosen.clear();
        self.model.values_mut().for_each(|all| all.retain(|(version, _)| *version <= upto));
        self.pins.retain(|pin| {
            assert_eq!(pin.is_lost(), pin.version() > upto);
            !pin.is_lost()
        });
    }

    fn seen(&self, key: u8, at: SnapshotVersion) -> Option<Value> {
        let all = self.model.get(&key)?;
        all.iter().rev().find(|(version, _)| *version <= at)?.1.clone()
    }

    /// Checks the view of each pin, and of readers at final and later versions.
    fn check(&self) {
        let pinned = self.pins.iter().chain(&self.checkpoint).map(Pin::version);
        let open = (self.final_upto.0..=self.store.published().0).map(SnapshotVersion);
        for at in pinned.chain(open) {
            for key in 0..KEYS {
                let found = self.store.read(TABLE, &key_of(key), at);
                let found = found.and_then(|version| version.value);
                assert_eq!(found, self.seen(key, at), "{key} at {at}");
            }
        }
    }

    /// Without readers, only the newest versions are left, in memory or not.
    fn check_at_rest(&mut self) {
        self.pins.clear();
        if let Some(pin) = self.checkpoint.take() {
            pin.end();
        }
        let published = self.store.published();
        self.final_upto = published;
        self.store.overwrite(published);
        self.store.discard_overwritten();
        self.store.reclaim(published);
        self.check();
        let fresh = Store::new();
        for key in 0..KEYS {
            if let Some(value) = self.seen(key, published) {
                fresh.apply(TABLE, key_of(key), version(published.0, Some(&value)));
            }
        }
        let lens = (self.store.len(TABLE), fresh.len(TABLE));
        assert_eq!(lens.0, lens.1, "keys");
        assert_eq!(self.store.memory_bytes(), fresh.memory_bytes());
        self.chosen.drain(..).for_each(|chosen| {
            self.store.evict_chosen(chosen);
        });
        self.store.evict_chosen(Chosen::default());
        let Some(table) = self.store.tables.table(TABLE) else { return };
        let has_copy = |row: &Row| row.chain.newest().value.as_ref().is_some_and(Value::has_copy);
        let has_copy = |key: &u8| {
            let key = key_of(*key);
            table.with_row(hash_bytes(&key), &key, has_copy).unwrap_or(false)
        };
        let copies = (0..KEYS).filter(has_copy).count();
        // Copies of versions that were rolled back stay until their keys are evicted again.
        assert!(copies == self.cold.len() || self.has_gone_back && copies < self.cold.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn what_is_needed_is_not_overwritten(
        steps in prop::collection::vec(step(), 1..60),
        bytes_max in prop::option::of(0..3_000_usize),
    ) {
        let cold = ColdMemory::default();
        let store = Arc::new(match bytes_max {
            Some(bytes_max) => Store::with_cold(Box::new(cold.clone()), bytes_max),
            None => Store::new(),
        });
        let (model, final_upto) = (Model::default(), SnapshotVersion::ZERO);
        let (pins, checkpoint, chosen) = (Vec::new(), None, Vec::new());
        let (written, has_gone_back) = (0, false);
        let mut run = Run {
            store, cold, model, final_upto, pins, checkpoint, chosen, written, has_gone_back,
        };
        for step in &steps {
            run.step(step);
            run.check();
        }
        run.check_at_rest();
    }
}

/// An overwritten value may have been evicted before.
#[test]
fn the_copy_of_a_value_that_is_overwritten_goes_and_the_new_one_can_be_put_away() {
    let cold = ColdMemory::default();
    let store = Arc::new(Store::with_cold(Box::new(cold.clone()), 0));
    let (two, key) = (SnapshotVersion(2), key(b"k"));
    store.publish(SnapshotVersion(1));
    let write = |at: u64| {
        store.overwrite(store.published());
        store.apply(TABLE, key.clone(), version(at, Some(&[at as u8; 100])));
        store.publish(SnapshotVersion(at));
    };
    write(2);
    store.evict();
    assert!(store.is_cold(TABLE, &key) && cold.len() == 1);
    let checkpoint = store.pin_checkpoint(two).unwrap();
    (3..=6).for_each(write);
    // The placeholder that the checkpoint reads is older than other versions.
    let seen = |at| store.read(TABLE, &key, at).unwrap().value.unwrap();
    assert_eq!((seen(two)[0], seen(SnapshotVersion(6))[0]), (2, 6));
    store.reclaim(store.published());
    store.evict();
    assert!(!store.is_cold(TABLE, &key), "the only copy of a key is that of the checkpoint");
    store.overwrite(store.published());
    checkpoint.end();
    store.evict();
    assert!(
        store.is_cold(TABLE, &key) && cold.len() == 1,
        "its copy was removed, and the new one was written"
    );
    assert_eq!(seen(SnapshotVersion(6))[0], 6);
}

/// A point is the version that a checkpoint copies, perhaps in several threads.
#[test]
fn a_point_lasts_as_long_as_the_last_copy_of_its_pin() {
    let store = store_at(5);
    store.overwrite(SnapshotVersion(5));
    let pin = store.pin_checkpoint(SnapshotVersion(5)).expect("the version is published");
    let copy = pin.clone();
    drop(pin);
    assert_eq!(store.overwriting.point(), Some(SnapshotVersion(5)));
    drop(copy);
    assert_eq!(store.overwriting.point(), None);
}

/// A store that is filled again begins with versions that a floor of before would give up.
#[test]
fn a_store_that_was_cleared_keeps_all_versions_until_it_overwrites_again() {
    let store = store_at(5);
    store.overwrite(SnapshotVersion(5));
    let pin = store.pin_checkpoint(SnapshotVersion(5)).expect("the version is published");
    store.clear();
    assert!(!store.overwrites() && store.overwriting.point().is_none());
    drop(pin);
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    store.publish(SnapshotVersion(1));
    store.apply(TABLE, key(b"k"), version(2, Some(b"two")));
    let found = store.read(TABLE, &key(b"k"), SnapshotVersion(1));
    assert_eq!(found, Some(version(1, Some(b"one"))));
}

/// A version of which there is a copy is overwritten together with others.
#[test]
fn the_copies_of_values_that_a_batch_overwrites_are_removed() {
    let cold = ColdMemory::default();
    let store = Arc::new(Store::with_cold(Box::new(cold.clone()), 0));
    let keys = [key(b"a"), key(b"b")];
    store.publish(SnapshotVersion(1));
    let write = |at: u64| {
        store.overwrite(store.published());
        let value = [at as u8; 100];
        let put = |key: &Key| (TABLE, key.clone(), version(at, Some(&value)));
        store.apply_batch(&Sequential, SnapshotVersion(at), keys.iter().map(put).collect());
        store.publish(SnapshotVersion(at));
    };
    write(2);
    store.evict();
    assert_eq!(cold.len(), 2);
    write(3);
    store.evict_chosen(Chosen::default());
    assert_eq!(cold.len(), 2, "readers may need the versions before the last");
    write(4);
    store.evict_chosen(Chosen::default());
    assert_eq!(cold.len(), 0);
}
