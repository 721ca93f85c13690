//! A context on one pinned snapshot and the transaction's own writes.
//!
//! Interactive statements and snapshot reads run here, on the session's node. What an interactive
//! transaction reads is recorded with its version, so that it can be certified at its place in the
//! order.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::sync::Arc;

use pangea_core::exec::TXN_BYTES_MAX;
use pangea_core::ids::{ShardId, SnapshotVersion, TableId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::partition::ShardSet;
use pangea_core::store::{Pin, Sweep, Version};
use pangea_core::txn::{
    Abort, Certified, Context, PointRead, RangeRead, ReadSet, Scan, Seen, SqlState, Stop, Visit,
    Write,
};
use pangea_core::value::Value;

use crate::elsewhere::{Beyond, Row, Snapshot};
use crate::error::code;
use crate::writes::{At, Written, in_range, is_before};

/// How many rows a scan takes out of the store at a time, so that it never holds the table's lock
/// while it computes.
const SCAN_ROWS: usize = 256;
/// How many rows are asked for of another node, at first and then.
const FAR_ROWS_FIRST: usize = 64;
const FAR_ROWS: usize = 4_096;
/// The most reads that an interactive transaction records: they all travel when it commits.
const READS_MAX: usize = 1_000_000;
/// The most bytes that an interactive transaction writes: what may be committed at most.
const WRITE_BYTES_MAX: usize = TXN_BYTES_MAX;

/// A snapshot, and what a transaction did on it.
#[derive(Debug)]
pub(crate) struct LocalContext {
    pin: Pin,
    /// What is not here.
    beyond: Option<Beyond>,
    is_recording: bool,
    /// Whether writes are refused.
    pub(super) is_read_only: bool,
    /// Whether a statement that writes was run, even if it found nothing to write.
    is_writer: bool,
    reads: ReadSet,
    points: BTreeSet<At>,
    reads_recorded: usize,
    /// Shared with the streams that were opened since the last write.
    writes: Arc<BTreeMap<At, Written>>,
    write_bytes: usize,
    /// What each write was laid over, the oldest first, from the first savepoint on.
    undo: Option<Vec<(At, Option<Written>)>>,
}

/// The writes of a transaction as they were at some time.
#[derive(Clone, Debug)]
pub(super) struct View {
    writes: Arc<BTreeMap<At, Written>>,
    /// What it takes once the transaction writes more, and has its own.
    pub bytes: usize,
}

/// How far the writes of a transaction are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    undo: usize,
    write_bytes: usize,
}

impl LocalContext {
    /// A context for reading alone, which records nothing.
    pub(crate) fn snapshot(at: impl Into<Snapshot>) -> Self {
        let Snapshot { pin, beyond } = at.into();
        Self {
            pin,
            beyond,
            is_recording: false,
            is_read_only: false,
            is_writer: false,
            reads: ReadSet::default(),
            points: BTreeSet::new(),
            reads_recorded: 0,
            writes: Arc::default(),
            write_bytes: 0,
            undo: None,
        }
    }

    /// A context for an interactive transaction.
    pub(crate) fn transaction(at: impl Into<Snapshot>) -> Self {
        Self { is_recording: true, ..Self::snapshot(at) }
    }

    /// The version that it reads.
    pub(super) fn at(&self) -> SnapshotVersion {
        self.pin.version()
    }

    /// Reads what is elsewhere too.
    pub(super) fn look_beyond(&mut self, beyond: Option<Beyond>) {
        self.beyond = beyond;
    }

    /// A statement that writes is run. What it reads must be so when the transaction commits.
    pub(crate) fn begin_write(&mut self) {
        self.is_writer = true;
    }

    /// What must be certified, unless the transaction only read: it saw one snapshot. An UPDATE
    /// that found no row is no read: the row may have come after the snapshot.
    pub(crate) fn into_certified(self) -> Option<Certified> {
        if self.writes.is_empty() && !self.is_writer {
            return None;
        }
        let write = |((table, key), value)| Write { table, key, value };
        let writes = Arc::unwrap_or_clone(self.writes);
        let (reads, line) = (self.reads, self.pin.line());
        Some(Certified { reads, writes: writes.into_iter().map(write).collect(), line })
    }

    fn record(&mut self, count: usize) -> Result<(), Stop> {
        self.reads_recorded += count;
        if self.reads_recorded <= READS_MAX {
            return Ok(());
        }
        let message = format!("the transaction read more than {READS_MAX} rows");
        Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
            .with_hint("Read less, or read in a transaction that is not interactive.")
            .into())
    }

    fn write(&mut self, table: TableId, key: Key, value: Option<Value>) -> Result<(), Stop> {
        if self.is_read_only {
            let message = "cannot write in a read-only transaction";
            return Err(Abort::new(code::READ_ONLY, message).into());
        }
        if !self.is_recording {
            // A procedure does what nobody could see in it: the session runs it as one that writes.
            return Err(Abort::new(code::NOT_REPEATABLE, "a snapshot read writes nothing").into());
        }
        self.write_bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
        if self.write_bytes > WRITE_BYTES_MAX {
            let mebibytes = WRITE_BYTES_MAX >> 20;
            let message = format!("the transaction wrote more than {mebibytes} MiB");
            return Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
                .with_hint("Load in several transactions.")
                .into());
        }
        match &mut self.undo {
            None => drop(Arc::make_mut(&mut self.writes).insert((table, key), value)),
            Some(undo) => {
                let at = (table, key);
                let before = Arc::make_mut(&mut self.writes).insert(at.clone(), value);
                undo.push((at, before));
            }
        }
        Ok(())
    }

    /// What the transaction wrote to a row, if it did.
    pub(super) fn own_write(&self, table: TableId, key: &[u8]) -> Option<&Option<Value>> {
        if self.writes.is_empty() {
            return None;
        }
        self.writes.get(&(table, Key::from(key)))
    }

    /// The writes as they are now.
    pub(super) fn view(&self) -> View {
        View { writes: self.writes.clone(), bytes: self.write_bytes }
    }

    /// Reads under the writes of a view. What is read counts as read by the transaction.
    pub(super) fn under<T>(&mut self, view: &mut View, read: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.writes, &mut view.writes);
        let done = read(self);
        std::mem::swap(&mut self.writes, &mut view.writes);
        done
    }

    /// How far the writes are now.
    pub(super) fn mark(&mut self) -> Mark {
        let undo = self.undo.get_or_insert_default().len();
        Mark { undo, write_bytes: self.write_bytes }
    }

    /// There is nothing to go back to any more.
    pub(super) fn forget_marks(&mut self) {
        self.undo = None;
    }

    /// Takes back what was written since. What was read since was seen, and stays read.
    pub(super) fn go_back(&mut self, mark: Mark) {
        let writes = Arc::make_mut(&mut self.writes);
        let undone = self.undo.iter_mut().flat_map(|undo| undo.drain(mark.undo..).rev());
        for (at, before) in undone {
            match before {
                Some(written) => writes.insert(at, written),
                None => writes.remove(&at),
            };
        }
        self.write_bytes = mark.write_bytes;
    }
}

impl Context for LocalContext {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        if let Some(own) = self.own_write(table, key) {
            return Ok(own.clone());
        }
        let found = self.find(table, key)?;
        self.check_kept()?;
        let at = (table, Key::from(key));
        if self.is_recording && !self.points.contains(&at) {
            // First: after a failure the transaction may go on, from a savepoint.
            self.record(1)?;
            self.points.insert(at);
            let seen = found.as_ref().map_or(Seen::Absent, |found| Seen::At(found.version));
            self.reads.points.push(PointRead { table, key: Key::from(key), seen });
        }
        Ok(found.map(|found| found.value))
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let own = in_range(&self.writes, scan);
        let beyond = self.beyond.as_ref();
        let far = beyond.map_or_else(ShardSet::default, |it| it.shards_of(scan.table, &scan.range));
        if own.is_empty() && !self.is_recording && far.is_empty() {
            let Scan { table, range, direction } = scan;
            let at = self.pin.version();
            self.pin.store().scan(*table, range, *direction, at, |key, version| {
                version.value.as_ref().map_or(ControlFlow::Continue(()), |value| visit(key, value))
            });
            return self.check_kept();
        }
        let mut rows = Gathered::new(&self.pin, scan, beyond.map(|beyond| (beyond, far)));
        let mut seen = Vec::new();
        let is_recording = self.is_recording;
        let mut last = None;
        merge(&mut rows, own, scan.direction, &mut |key, value, version| {
            if is_recording && let Some(version) = version {
                seen.push((key.clone(), Seen::At(version)));
            }
            let Some(value) = value else { return ControlFlow::Continue(()) };
            let flow = visit(key, value);
            if flow.is_break() {
                last = Some(key.clone());
            }
            flow
        });
        if let Some(failure) = rows.failure {
            return Err(failure);
        }
        self.check_kept()?;
        if is_recording {
            self.record(seen.len() + 1)?;
            if scan.direction == Direction::Reverse {
                seen.reverse();
            }
            let range = match &last {
                Some(last) => scan.range.seen_up_to(last, scan.direction),
                None => scan.range.clone(),
            };
            self.reads.ranges.push(RangeRead { table: scan.table, range, rows: seen });
        }
        Ok(())
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.write(table, key, Some(value))
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.write(table, key, None)
    }

    fn estimate(&self, table: TableId) -> Option<usize> {
        let spread = self.beyond.as_ref().map_or(1, |beyond| beyond.spread(table));
        Some(self.pin.store().len(table) * spread + self.writes.len())
    }
}

impl LocalContext {
    /// All of a table, where nobody asks what was read, nothing was written and all is here.
    pub(super) fn sweep(&self, table: TableId) -> Option<Sweep> {
        let is_here = self.beyond.as_ref().is_none_or(|beyond| beyond.spread(table) == 1);
        (is_here && !self.is_recording && self.writes.is_empty()).then(|| self.pin.sweep(table))
    }

    /// Whether the snapshot is still what it was, after a read of it: a failover may take it away.
    fn check_kept(&self) -> Result<(), Stop> {
        if !self.pin.is_lost() {
            return Ok(());
        }
        let message = "could not serialize access: the snapshot was lost at a failover";
        let abort = Abort::new(SqlState::SERIALIZATION_FAILURE, message);
        Err(abort.with_hint("The transaction might succeed if retried.").into())
    }

    /// A row of the snapshot, here or elsewhere.
    fn find(&self, table: TableId, key: &[u8]) -> Result<Option<Live>, Stop> {
        let far = self.beyond.as_ref().and_then(|it| Some((it, it.shard_of(table, key)?)));
        let Some((beyond, shard)) = far else {
            let found = self.pin.store().read(table, key, self.pin.version());
            return Ok(found.and_then(Live::of));
        };
        let (range, direction) = (KeyRange::point(key), Direction::Forward);
        let (rows, _) = beyond.rows(shard, &Scan { table, range, direction }, 1)?;
        Ok(rows.into_iter().next().map(|row| Live { version: row.version, value: row.value }))
    }
}

/// A row that is there.
#[derive(Debug)]
struct Live {
    version: SnapshotVersion,
    value: Value,
}

impl Live {
    fn of(found: Version) -> Option<Self> {
        let Version { version, value, .. } = found;
        value.map(|value| Self { version, value })
    }
}

/// The live rows of a range of a snapshot, a few at a time.
struct StoreRows<'a> {
    pin: &'a Pin,
    table: TableId,
    rest: KeyRange,
    direction: Direction,
    fetched: std::vec::IntoIter<(Key, Live)>,
    is_done: bool,
}

impl<'a> StoreRows<'a> {
    fn new(pin: &'a Pin, scan: &Scan) -> Self {
        Self {
            pin,
            table: scan.table,
            rest: scan.range.clone(),
            direction: scan.direction,
            fetched: Vec::new().into_iter(),
            is_done: false,
        }
    }

    fn fetch(&mut self) {
        let mut rows = Vec::new();
        let mut visited = 0;
        let mut last = None;
        let at = self.pin.version();
        self.pin.store().scan(self.table, &self.rest, self.direction, at, |key, version| {
            visited += 1;
            if let Some(value) = &version.value {
                let (version, value) = (version.version, value.clone());
                rows.push((key.clone(), Live { version, value }));
            }
            if visited < SCAN_ROWS {
                return ControlFlow::Continue(());
            }
            last = Some(key.clone());
            ControlFlow::Break(())
        });
        match last {
            None => self.is_done = true,
            Some(last) => go_past(&mut self.rest, &last, self.direction),
        }
        self.fetched = rows.into_iter();
    }
}

/// Leaves of a range what comes after a key.
fn go_past(rest: &mut KeyRange, last: &Key, direction: Direction) {
    match direction {
        Direction::Forward => rest.start = [last.as_bytes(), &[0]].concat(),
        Direction::Reverse => rest.end = Some(last.to_vec()),
    }
}

impl Iterator for StoreRows<'_> {
    type Item = (Key, Live);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.fetched.next() {
                return Some(row);
            }
            if self.is_done {
                return None;
            }
            self.fetch();
        }
    }
}

/// The live rows of a range on another shard, some at a time.
struct FarRows<'a> {
    beyond: &'a Beyond,
    shard: ShardId,
    rest: Scan,
    fetched: std::vec::IntoIter<Row>,
    at_a_time: usize,
    is_done: bool,
}

impl FarRows<'_> {
    fn next(&mut self) -> Result<Option<(Key, Live)>, Stop> {
        loop {
            if let Some(Row { key, version, value }) = self.fetched.next() {
                return Ok(Some((key, Live { version, value })));
            }
            if self.is_done {
                return Ok(None);
            }
            let (rows, is_all) = self.beyond.rows(self.shard, &self.rest, self.at_a_time)?;
            self.is_done = is_all;
            if let Some(last) = rows.last() {
                go_past(&mut self.rest.range, &last.key, self.rest.direction);
            }
            self.at_a_time = (2 * self.at_a_time).min(FAR_ROWS);
            self.fetched = rows.into_iter();
        }
    }
}

/// The live rows of a range on all shards, in order.
struct Gathered<'a> {
    here: Peekable<StoreRows<'a>>,
    /// Each with its next row.
    far: Vec<(FarRows<'a>, Option<(Key, Live)>)>,
    direction: Direction,
    /// Of which the next row was taken: another is asked for when somebody wants it.
    taken: Option<usize>,
    /// Why there are no more.
    failure: Option<Stop>,
}

impl<'a> Gathered<'a> {
    fn new(pin: &'a Pin, scan: &Scan, far: Option<(&'a Beyond, ShardSet)>) -> Self {
        let here = StoreRows::new(pin, scan).peekable();
        let mut gathered =
            Self { here, far: Vec::new(), direction: scan.direction, taken: None, failure: None };
        let Some((beyond, shards)) = far else { return gathered };
        for shard in shards.iter() {
            let (rest, fetched) = (scan.clone(), Vec::new().into_iter());
            let at_a_time = FAR_ROWS_FIRST;
            let rows = FarRows { beyond, shard, rest, fetched, at_a_time, is_done: false };
            gathered.far.push((rows, None));
        }
        (0..gathered.far.len()).for_each(|at| gathered.advance(at));
        gathered
    }

    fn advance(&mut self, at: usize) {
        let (rows, next) = &mut self.far[at];
        match rows.next() {
            Ok(found) => *next = found,
            Err(failure) => self.failure = Some(failure),
        }
    }
}

impl Iterator for Gathered<'_> {
    type Item = (Key, Live);

    fn next(&mut self) -> Option<Self::Item> {
        if self.far.is_empty() {
            return self.here.next();
        }
        if let Some(at) = self.taken.take() {
            self.advance(at);
        }
        if self.failure.is_some() {
            return None;
        }
        let heads = self
            .far
            .iter()
            .enumerate()
            .filter_map(|(at, (_, next))| next.as_ref().map(|(key, _)| (at, key)));
        let first = heads.reduce(|a, b| if is_before(b.1, a.1, self.direction) { b } else { a });
        let here = self.here.peek().map(|(key, _)| key);
        match (first, here) {
            (None, _) => self.here.next(),
            (Some((_, far)), Some(here)) if is_before(here, far, self.direction) => {
                self.here.next()
            }
            (Some((at, _)), _) => {
                self.taken = Some(at);
                self.far[at].1.take()
            }
        }
    }
}

type OnMerged<'a> =
    dyn FnMut(&Key, Option<&Value>, Option<SnapshotVersion>) -> ControlFlow<()> + 'a;

/// Visits rows of the store and own writes in order. An own write hides the row, which still counts
/// as read; a value is missing where it is deleted.
fn merge(
    rows: impl Iterator<Item = (Key, Live)>,
    own: Vec<(Key, Option<Value>)>,
    direction: Direction,
    on_row: &mut OnMerged<'_>,
) {
    let mut own = own.into_iter().peekable();
    for (key, live) in rows {
        while let Some((own_key, value)) = own.next_if(|(own, _)| is_before(own, &key, direction)) {
            if on_row(&own_key, value.as_ref(), None).is_break() {
                return;
            }
        }
        let hidden_by = own.next_if(|(own, _)| *own == key);
        let value = match &hidden_by {
            Some((_, own)) => own.as_ref(),
            None => Some(&live.value),
        };
        if on_row(&key, value, Some(live.version)).is_break() {
            return;
        }
    }
    for (own_key, value) in own {
        if on_row(&own_key, value.as_ref(), None).is_break() {
            return;
        }
    }
}
