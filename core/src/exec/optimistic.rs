//! Optimistic execution on a snapshot (Minerva §3.2, Algorithm 1).
//!
//! A program runs at once, on the latest snapshot with the uncommitted writes of local transactions
//! laid over it. Each read is recorded with the version that it saw: either a place in the serial
//! order or the local transaction that wrote it. No locks are taken. The protocol checks the reads
//! at the transaction's place in the order.
//!
//! ```text
//!   own writes      writes of the program itself: readable, not recorded
//!   overlay         Seen::Local(writer), Seen::LocalDeleted(writer)
//!   store at v      Seen::At(version), Seen::Absent
//! ```
//!
//! A range is recorded with all its rows, and only as far as the scan went. A row inserted or
//! deleted within it is therefore detected, and one after its end is not. A row that the program
//! itself wrote is recorded as it was before, because the check runs against the database without
//! the program's writes.
//!
//! [`run_group`] runs many programs with the result of serial execution, in parallel if they do not
//! conflict.

mod on_shard;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::adds::{AddedRow, OwnAdds};
use super::call::{call, gave_up, warm};
use super::certify::{self, Change, CurrentState, CurrentVersion, VisitState};
use super::merge::{self, Overlaid, precedes};
use super::overlay::Overlay;
use super::size::{adds_bytes, check_bytes, reads_bytes, writes_bytes};
use super::writes::{OwnWrites, Positions};
use crate::ids::{AdderId, SnapshotVersion, TableId, TxnId};
use crate::key::{Direction, HashedKey, Key, KeyRange};
use crate::mutate;
use crate::pool::{Pool, map};
use crate::store::Store;
use crate::txn::{
    Abort, Add, Adder, Certified, Context, Footprint, Guards, LockMode, PointLock, PointRead,
    Program, RangeRead, ReadSet, ReadVersion, Registry, Scan, Stop, Visit, Write, read_and_add,
};
use crate::value::Value;
pub use on_shard::first_change_of;

/// The result of an optimistic run of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The program's result, or the reason for its abort.
    pub result: Result<Vec<u8>, Abort>,
    /// The reads of the program. Recorded for an abort too, because an abort is correct only if its
    /// reads are current.
    pub reads: ReadSet,
    /// The reads that must hold at every isolation level, if they were asked for.
    pub guards: ReadSet,
    /// The writes of the program, each key once, in the order of its first write. Empty after an
    /// abort.
    pub writes: Vec<Write>,
    /// The additions to rows that it has not written, if they were asked for. Those of one row are
    /// in order. Empty after an abort.
    pub adds: Vec<Add>,
}

/// What a run records beside its reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The guards, for an isolation level at which not all reads are checked.
    pub guards: bool,
    /// Additions in place of reads and writes. A row that the program also reads counts as read,
    /// and one that it also writes counts as written.
    pub adds: bool,
}

impl Run {
    fn aborted(abort: Abort, reads: ReadSet) -> Self {
        let (guards, writes, adds) = (ReadSet::default(), Vec::new(), Vec::new());
        Self { result: Err(abort), reads, guards, writes, adds }
    }

    /// Whether it changes nothing.
    pub fn is_reader(&self) -> bool {
        self.writes.is_empty() && self.adds.is_empty()
    }

    /// The keys and ranges that it has accessed.
    pub fn footprint(&self) -> Footprint {
        let Footprint { mut points, ranges } = Footprint::of_run(&self.reads, &self.writes);
        points.extend(self.adds.iter().map(|add| {
            let (table, key, mode) = (add.table, add.key.clone(), LockMode::Exclusive);
            PointLock { table, key, mode }
        }));
        Footprint::new(points, ranges)
    }
}

/// Runs a program on the snapshot `at` with `overlay` laid over it. Changes neither.
///
/// A [`Program::Certified`] is not run but checked. It aborts with 40001 if one of its reads is
/// already stale on this node, and otherwise keeps the reads and writes that it was submitted with.
/// A read of a local transaction counts as current if that transaction's write is the newest. The
/// caller must therefore ensure that the transaction was not executed again with a different
/// effect.
///
/// A program whose reads and writes exceed the size limit of a transaction aborts with 54000 and
/// has no reads.
pub fn run(
    registry: &Registry,
    program: &Program,
    store: &Store,
    at: SnapshotVersion,
    overlay: &Overlay,
) -> Run {
    run_recording(registry, program, store, at, overlay, Recorded::default())
}

/// Like [`run`], and records more.
pub fn run_recording(
    registry: &Registry,
    program: &Program,
    store: &Store,
    at: SnapshotVersion,
    overlay: &Overlay,
    recorded: Recorded,
) -> Run {
    let base = Base { store, at, overlay };
    match program {
        Program::Call { procedure, args } => {
            warm(registry, *procedure, args, base.store, base.at);
            let mut observed = Observed::new(base, recorded);
            let result = match call(registry, *procedure, args, &mut observed) {
                Ok(result) => Ok(result),
                Err(Stop::Abort(abort)) => Err(abort),
                Err(Stop::Interrupted) => Err(gave_up()),
            };
            let (writes, adds) = match &result {
                Ok(_) => observed.take_changes(),
                Err(_) => Default::default(),
            };
            let guards = observed.guards.map(|guards| guards.reads).unwrap_or_default();
            let reads = observed.reads;
            let reads_bytes = reads_bytes(&reads) + reads_bytes(&guards);
            match check_bytes(reads_bytes + writes_bytes(&writes) + adds_bytes(&adds)) {
                Ok(()) => Run { result, reads, guards, writes, adds },
                Err(abort) => Run::aborted(abort, ReadSet::default()),
            }
        }
        Program::Certified(Certified { reads, writes, adds, .. }) => {
            assert!(adds.is_empty(), "additions are for protocols that merge them");
            let (reads, guards) = (reads.clone(), ReadSet::default());
            match certify::first_change(&reads, &base) {
                Some(change) => Run::aborted(change.into_abort(), reads),
                None => {
                    let (result, writes, adds) = (Ok(Vec::new()), writes.clone(), Vec::new());
                    Run { result, reads, guards, writes, adds }
                }
            }
        }
    }
}

/// The first of these reads that is not current in the snapshot `at`.
pub fn first_change(reads: &ReadSet, store: &Store, at: SnapshotVersion) -> Option<Change> {
    certify::first_change(reads, &Base { store, at, overlay: &Overlay::new() })
}

/// Runs a program only to find its footprint: a reconnaissance run (Calvin §3.2.1), also used as
/// the probe of Minerva's high-contention mode (§4). Unlike [`run`], it includes the writes of a
/// program that aborts.
pub fn probe(
    registry: &Registry,
    program: &Program,
    store: &Store,
    at: SnapshotVersion,
    overlay: &Overlay,
) -> Footprint {
    match program {
        Program::Call { procedure, args } => {
            warm(registry, *procedure, args, store, at);
            let mut observed = Observed::new(Base { store, at, overlay }, Recorded::default());
            // The result is ignored, because the program will run again at its place.
            let _result = call(registry, *procedure, args, &mut observed);
            Footprint::of_run(&observed.reads, &observed.writes.take())
        }
        Program::Certified(Certified { reads, writes, .. }) => Footprint::of_run(reads, writes),
    }
}

/// Runs programs with the result of serial execution. Each sees the snapshot with `overlay` and the
/// writes of the programs before it; all writes are added to `overlay`.
///
/// All programs first run in parallel. Then, in order, each program that missed a write of an
/// earlier one runs again.
///
/// # Panics
/// If a transaction is already in the overlay at a key that it writes.
pub fn run_group(
    pool: &dyn Pool,
    registry: &Registry,
    programs: &[(TxnId, &Program)],
    store: &Store,
    at: SnapshotVersion,
    overlay: &mut Overlay,
) -> Vec<Run> {
    if pool.workers() == 1 {
        let in_order = |&(txn, program): &(TxnId, &Program)| {
            let run = run(registry, program, store, at, overlay);
            overlay.insert(txn, &run.writes);
            run
        };
        return programs.iter().map(in_order).collect();
    }
    let below: &Overlay = overlay;
    let mut runs = map(pool, programs, |_, &(_, program)| run(registry, program, store, at, below));
    for (attempt, &(txn, program)) in runs.iter_mut().zip(programs) {
        if !is_current(&attempt.reads, overlay) {
            *attempt = run(registry, program, store, at, overlay);
        }
        overlay.insert(txn, &attempt.writes);
    }
    runs
}

/// Whether reads that were current in an earlier state of `overlay` still are. The overlay has only
/// grown since, so it suffices that the reads saw each of its rows within their range.
pub fn is_current(reads: &ReadSet, overlay: &Overlay) -> bool {
    let is_seen = |read: &PointRead| {
        let newest = overlay.newest(read.table, &read.key);
        newest.is_none_or(|(txn, value)| read.seen == ReadVersion::local(txn, value.is_some()))
    };
    let are_all_seen = |read: &RangeRead| {
        overlay.range(read.table, &read.range).all(|(key, txn, value)| {
            let row = read.rows.binary_search_by(|(seen_key, _)| seen_key.cmp(key));
            row.is_ok_and(|row| read.rows[row].1 == ReadVersion::local(txn, value.is_some()))
        })
    };
    reads.points.iter().all(is_seen) && reads.ranges.iter().all(are_all_seen)
}

/// A snapshot with an overlay laid over it.
#[derive(Clone, Copy)]
struct Base<'a> {
    store: &'a Store,
    at: SnapshotVersion,
    overlay: &'a Overlay,
}

impl Base<'_> {
    fn read(&self, table: TableId, key: &HashedKey) -> (ReadVersion, Option<Value>) {
        if let Some((txn, value)) = self.overlay.newest(table, key.key()) {
            return (ReadVersion::local(txn, value.is_some()), value.cloned());
        }
        match self.store.read_value(table, key, self.at) {
            Some((version, value)) => (ReadVersion::At(version), Some(value)),
            None => (ReadVersion::Absent, None),
        }
    }
}

impl CurrentState for Base<'_> {
    fn point(&self, table: TableId, key: &[u8]) -> CurrentVersion {
        if let Some((txn, value)) = self.overlay.newest(table, key) {
            let seen = ReadVersion::local(txn, value.is_some());
            return CurrentVersion { seen, writer: Some(txn), is_as_executed: true };
        }
        let found = self.store.head(table, key, self.at).filter(|found| found.value.is_some());
        found.map_or(CurrentVersion::ABSENT, |found| CurrentVersion::of(&found))
    }

    fn range(&self, table: TableId, range: &KeyRange, visit: &mut VisitState<'_>) {
        let scan = Scan { table, range: range.clone(), direction: Direction::Forward };
        let above = self.overlay.range(table, range).map(|(key, txn, value)| Layer {
            key,
            local: Some((txn, value)),
            own: None,
        });
        merge::scan(self.store, self.at, &scan, above, |key, version, layer| {
            if let Some((txn, value)) = layer.and_then(|layer| layer.local) {
                let seen = ReadVersion::local(txn, value.is_some());
                let standing = CurrentVersion { seen, writer: Some(txn), is_as_executed: true };
                visit(key, standing)
            } else if let Some(live) = version.filter(|version| version.value.is_some()) {
                visit(key, CurrentVersion::of(live))
            } else {
                ControlFlow::Continue(())
            }
        });
    }
}

/// The uncommitted rows above the store at one key.
struct Layer<'a> {
    key: &'a Key,
    local: Option<(TxnId, Option<&'a Value>)>,
    own: Option<&'a Write>,
}

impl Overlaid for Layer<'_> {
    fn key(&self) -> &Key {
        self.key
    }
}

/// The context of a run that records its reads.
struct Observed<'a> {
    base: Base<'a>,
    reads: ReadSet,
    read_positions: Positions,
    /// The positions of the ranges in `reads`.
    ranges_read: BTreeMap<(TableId, KeyRange), usize>,
    /// For a row of `adds` this has the result on the base.
    writes: OwnWrites,
    adds: Option<OwnAdds>,
    guards: Option<GuardSet>,
}

/// The guards of a run.
#[derive(Debug, Default)]
struct GuardSet {
    reads: ReadSet,
    positions: Positions,
    ranges: BTreeSet<(TableId, KeyRange)>,
}

impl GuardSet {
    /// Adds a read of a key. A version says more than existence.
    fn add(&mut self, table: TableId, key: HashedKey, seen: ReadVersion) {
        match self.positions.find(&self.reads.points, table, &key) {
            Some(at) if seen != ReadVersion::Present => self.reads.points[at].seen = seen,
            Some(_) => {}
            None => {
                self.positions.push(table, &key);
                self.reads.points.push(PointRead { table, key: key.into(), seen });
            }
        }
    }
}

impl<'a> Observed<'a> {
    fn new(base: Base<'a>, recorded: Recorded) -> Self {
        Self {
            base,
            reads: ReadSet::default(),
            read_positions: Positions::default(),
            ranges_read: BTreeMap::new(),
            writes: OwnWrites::default(),
            adds: recorded.adds.then(OwnAdds::default),
            guards: recorded.guards.then(GuardSet::default),
        }
    }

    /// The base does not change during a run, so repeated reads of a key need not be recorded.
    #[inline]
    fn record_point(&mut self, table: TableId, key: HashedKey, seen: ReadVersion) {
        if self.read_positions.find(&self.reads.points, table, &key).is_none() {
            self.read_positions.push(table, &key);
            self.reads.points.push(PointRead { table, key: key.into(), seen });
        }
    }

    #[inline]
    fn write(&mut self, table: TableId, key: Key, value: Option<Value>) -> Result<(), Stop> {
        // The program relies on the existence of a row to which it has added.
        if let Some(row) = self.adds.as_mut().and_then(|adds| adds.remove(table, &key)) {
            self.record_point(table, key.clone().into(), ReadVersion::At(row.seen()));
        }
        Ok(self.writes.set(table, key, value)?)
    }

    /// A row to which an addition can be recorded, with its version: one of the snapshot that no
    /// undecided transaction has written, after the program's own additions.
    fn row_to_add_to(&self, table: TableId, key: &Key) -> Option<(SnapshotVersion, Value)> {
        let adds = self.adds.as_ref()?;
        let hashed = HashedKey::from(key.clone());
        match self.writes.find(table, &hashed) {
            Some(own) => {
                let row = adds.row(table, key).filter(|row| row.has_room())?;
                Some((row.seen(), own.value.clone()?))
            }
            None => match self.base.read(table, &hashed) {
                (ReadVersion::At(seen), value) => Some((seen, value?)),
                _ => None,
            },
        }
    }

    fn take_changes(&mut self) -> (Vec<Write>, Vec<Add>) {
        let mut writes = self.writes.take();
        let adds = self.adds.as_mut().map(|adds| adds.take(&mut writes)).unwrap_or_default();
        (writes, adds)
    }

    /// The base does not change during a run, so a range that was read before has the same rows.
    fn record_range(&mut self, read: RangeRead) {
        if let Entry::Vacant(vacant) = self.ranges_read.entry((read.table, read.range.clone())) {
            vacant.insert(self.reads.ranges.len());
            self.reads.ranges.push(read);
        }
    }

    /// The version of a key beneath the writes of the run.
    fn seen(&self, table: TableId, key: &HashedKey) -> ReadVersion {
        match self.read_positions.find(&self.reads.points, table, key) {
            Some(at) => self.reads.points[at].seen,
            None => self.base.read(table, key).0,
        }
    }

    fn guard(&mut self, table: TableId, key: HashedKey, seen: ReadVersion) {
        if let Some(guards) = &mut self.guards {
            guards.add(table, key, seen);
        }
    }

    /// The rows of a range beneath the writes of the run.
    fn rows(&self, table: TableId, range: &KeyRange) -> Vec<(Key, ReadVersion)> {
        if let Some(&at) = self.ranges_read.get(&(table, range.clone())) {
            return self.reads.ranges[at].rows.clone();
        }
        let mut rows = Vec::new();
        self.base.range(table, range, &mut |key, standing| {
            rows.push((key.clone(), standing.seen));
            ControlFlow::Continue(())
        });
        rows
    }
}

impl Context for Observed<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        let key = HashedKey::from(key);
        if let Some(own) = self.writes.find(table, &key) {
            let value = own.value.clone();
            let added = self.adds.as_ref().and_then(|adds| adds.row(table, key.key()));
            if let Some(seen) = added.map(AddedRow::seen) {
                self.record_point(table, key, ReadVersion::At(seen));
            }
            return Ok(value);
        }
        let (seen, value) = self.base.read(table, &key);
        self.record_point(table, key, seen);
        Ok(value)
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        if scan.range.is_empty() {
            return Ok(());
        }
        let above = layers(self.base.overlay, &mut self.writes, scan);
        let mut rows = Vec::new();
        let mut stopped_at = None;
        merge::scan(self.base.store, self.base.at, scan, above, |key, version, layer| {
            let beneath = match layer.and_then(|layer| layer.local) {
                Some((txn, value)) => Some((ReadVersion::local(txn, value.is_some()), value)),
                None => version
                    .filter(|version| version.value.is_some())
                    .map(|version| (ReadVersion::At(version.version), version.value.as_ref())),
            };
            rows.extend(beneath.map(|(seen, _)| (key.clone(), seen)));
            let value = match layer.and_then(|layer| layer.own) {
                Some(own) => own.value.as_ref(),
                None => beneath.and_then(|(_, value)| value),
            };
            let flow = value.map_or(ControlFlow::Continue(()), |value| visit(key, value));
            if flow.is_break() {
                stopped_at = Some(key.clone());
            }
            flow
        });
        if scan.direction == Direction::Reverse {
            rows.reverse();
        }
        let range = match stopped_at {
            Some(last) => mutate!(
                ReverseEdgeLost: scan.range.seen_up_to(&last, scan.direction)
                    => reverse_edge_lost(scan, &last, &mut rows)
            ),
            None => scan.range.clone(),
        };
        self.record_range(RangeRead { table: scan.table, range, rows });
        Ok(())
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.write(table, key, Some(value))
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.write(table, key, None)
    }

    fn add(
        &mut self,
        table: TableId,
        key: Key,
        adder: &dyn Adder,
        amount: &[u8],
    ) -> Result<bool, Stop> {
        let Some((seen, row)) = self.row_to_add_to(table, &key) else {
            return read_and_add(self, (table, key), adder, amount);
        };
        let row = adder.add(&row, amount)?;
        self.writes.set(table, key.clone(), Some(row))?;
        if let Some(adds) = &mut self.adds {
            adds.push((table, key), seen, AdderId::of(adder.name()), amount);
        }
        Ok(true)
    }

    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        self.base.store.warm_at(self.base.at, rows.iter().map(|(table, key)| (*table, key)));
    }

    fn guards(&mut self) -> Option<&mut dyn Guards> {
        if self.guards.is_some() { Some(self) } else { None }
    }
}

impl Guards for Observed<'_> {
    fn row(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        let key = HashedKey::from(key);
        let seen = self.seen(table, &key);
        self.guard(table, key, seen);
        Ok(())
    }

    fn existence(&mut self, table: TableId, key: &[u8]) -> Result<(), Stop> {
        let key = HashedKey::from(key);
        let seen = match self.seen(table, &key) {
            ReadVersion::At(_) => ReadVersion::Present,
            seen => seen,
        };
        self.guard(table, key, seen);
        Ok(())
    }

    fn range(&mut self, table: TableId, range: &KeyRange) -> Result<(), Stop> {
        let rows = self.rows(table, range);
        let Some(guards) = &mut self.guards else { return Ok(()) };
        if guards.ranges.insert((table, range.clone())) {
            guards.reads.ranges.push(RangeRead { table, range: range.clone(), rows });
        }
        Ok(())
    }
}

/// The rows of the overlay and of the program within a scan, in its order, each key once. Rows of
/// the overlay are only looked at when they are taken: there may be many that a scan with a limit
/// does not reach.
fn layers<'a>(
    overlay: &'a Overlay,
    writes: &'a mut OwnWrites,
    scan: &'a Scan,
) -> impl Iterator<Item = Layer<'a>> {
    let direction = scan.direction;
    let range = overlay.range(scan.table, &scan.range);
    let local: Box<dyn Iterator<Item = (&Key, TxnId, Option<&Value>)>> = match direction {
        Direction::Forward => Box::new(range),
        Direction::Reverse => Box::new(range.rev()),
    };
    let mut local = local.peekable();
    let mut own = writes.within(scan.table, &scan.range, direction).peekable();
    let layer_of = |write: &'a Write| Layer { key: &write.key, local: None, own: Some(write) };
    std::iter::from_fn(move || {
        let Some((key, ..)) = local.peek() else { return own.next().map(layer_of) };
        if let Some(before) = own.next_if(|write| precedes(&write.key, key, direction)) {
            return Some(layer_of(before));
        }
        let (key, txn, value) = local.next()?;
        let own = own.next_if(|write| write.key == *key);
        Some(Layer { key, local: Some((txn, value)), own })
    })
}

fn reverse_edge_lost(scan: &Scan, last: &Key, rows: &mut Vec<(Key, ReadVersion)>) -> KeyRange {
    let range = scan.range.seen_up_to(last, scan.direction);
    if scan.direction == Direction::Forward {
        return range;
    }
    rows.retain(|(key, _)| key != last);
    KeyRange { start: [last.as_bytes(), &[0]].concat(), ..range }
}

#[cfg(test)]
mod tests;
