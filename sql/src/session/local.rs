//! The context of a pinned snapshot with the transaction's own writes.
//!
//! Interactive statements and snapshot reads use it on the session's node. The reads of an
//! interactive transaction are recorded with their versions, so that they can be certified at its
//! place in the order: those that its isolation level checks (`levels`).

mod levels;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::sync::Arc;

use pangea_core::exec::{AddedRow, OwnAdds, TXN_BYTES_MAX};
use pangea_core::guarantee::Isolation;
use pangea_core::ids::{AdderId, ShardId, SnapshotVersion, TableId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::partition::ShardSet;
use pangea_core::store::{Pin, UnorderedScan, Version};
use pangea_core::txn::{
    Abort, Adder, Context, Guards, RangeRead, ReadSet, ReadVersion, Scan, SqlState, Stop, Visit,
    read_and_add,
};
use pangea_core::value::Value;

use crate::error::code;
use crate::remote_rows::{RemoteSnapshot, Row, Snapshot};
use crate::writes::{At, Written, in_range, is_before};

/// The number of rows that a scan takes out of the store at a time, so that it never holds the
/// table's lock while it computes.
const SCAN_ROWS: usize = 256;
/// The number of rows requested from another node: in the first request, and in later ones.
const REMOTE_ROWS_FIRST: usize = 64;
const REMOTE_ROWS: usize = 4_096;
/// The maximum number of reads that an interactive transaction records. All of them are sent when
/// it commits.
const READS_MAX: usize = 1_000_000;
/// The maximum bytes that an interactive transaction writes: the limit of a commit.
const WRITE_BYTES_MAX: usize = TXN_BYTES_MAX;

/// A snapshot, with the reads and writes of a transaction on it.
#[derive(Debug)]
pub(crate) struct LocalContext {
    pin: Pin,
    /// Access to rows on other shards.
    remote: Option<RemoteSnapshot>,
    /// The isolation level of its transaction.
    level: Isolation,
    /// Whether it is the context of a transaction that may write.
    can_write: bool,
    is_recording: bool,
    /// Whether writes are refused.
    pub(super) is_read_only: bool,
    /// Whether a write statement ran, even if it found no rows to write.
    is_writer: bool,
    reads: ReadSet,
    points: BTreeSet<At>,
    reads_recorded: usize,
    /// What must be unchanged at COMMIT below the serializable level.
    held: Option<Box<levels::Held>>,
    /// Shared with the streams opened since the last write.
    writes: Arc<BTreeMap<At, Written>>,
    write_bytes: usize,
    /// Rows that it has only added to. Their writes are the results on the snapshots of then.
    adds: OwnAdds,
    merges_adds: bool,
    /// What the changes since the first savepoint replaced, oldest first.
    undo: Option<Vec<Replaced>>,
}

/// The write and the additions that a change of a row replaced.
type Replaced = (At, Option<Written>, Option<AddedRow>);

/// The writes of a transaction at some time.
#[derive(Clone, Debug)]
pub(super) struct View {
    writes: Arc<BTreeMap<At, Written>>,
    /// The snapshot, if later statements read others.
    snapshot: Option<Snapshot>,
    /// The bytes that it takes once the transaction writes more and copies its writes.
    pub bytes: usize,
}

/// A position in the writes of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    undo: usize,
    write_bytes: usize,
}

impl LocalContext {
    /// Makes a context that only reads, and records no reads.
    pub(crate) fn snapshot(at: impl Into<Snapshot>) -> Self {
        let Snapshot { pin, remote } = at.into();
        Self {
            pin,
            remote,
            level: Isolation::Serializable,
            can_write: false,
            is_recording: false,
            is_read_only: false,
            is_writer: false,
            reads: ReadSet::default(),
            points: BTreeSet::new(),
            reads_recorded: 0,
            held: None,
            writes: Arc::default(),
            write_bytes: 0,
            adds: OwnAdds::default(),
            merges_adds: false,
            undo: None,
        }
    }

    /// Returns the snapshot version that it reads.
    pub(super) fn at(&self) -> SnapshotVersion {
        self.pin.version()
    }

    /// Adds access to rows on other shards.
    pub(super) fn set_remote(&mut self, remote: Option<RemoteSnapshot>) {
        self.remote = remote;
    }

    fn record(&mut self, count: usize) -> Result<(), Stop> {
        self.reads_recorded += count;
        if self.reads_recorded <= READS_MAX {
            return Ok(());
        }
        let message = format!("the transaction read more than {READS_MAX} rows");
        Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
            .with_hint("Read fewer rows, or read them outside of a transaction block.")
            .into())
    }

    fn write(&mut self, table: TableId, key: Key, value: Option<Value>) -> Result<(), Stop> {
        self.replace(table, key.clone(), value)?;
        if let Some(row) = self.adds.remove(table, &key) {
            self.record_point(table, key, ReadVersion::At(row.seen()))?;
        }
        Ok(())
    }

    fn replace(&mut self, table: TableId, key: Key, value: Option<Value>) -> Result<(), Stop> {
        if self.is_read_only {
            let message = "cannot write in a read-only transaction";
            return Err(Abort::new(code::READ_ONLY, message).into());
        }
        if !self.can_write {
            // The procedure writes although its analysis predicted no write. The session runs it
            // again as a write.
            return Err(Abort::new(code::NOT_REPEATABLE, "a snapshot read cannot write").into());
        }
        self.write_bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
        if self.write_bytes > WRITE_BYTES_MAX {
            let mebibytes = WRITE_BYTES_MAX >> 20;
            let message = format!("the transaction wrote more than {mebibytes} MiB");
            return Err(Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
                .with_hint("Split the work into several transactions.")
                .into());
        }
        match &mut self.undo {
            None => drop(Arc::make_mut(&mut self.writes).insert((table, key), value)),
            Some(undo) => {
                let added = self.adds.row(table, &key).cloned();
                let at = (table, key);
                let before = Arc::make_mut(&mut self.writes).insert(at.clone(), value);
                undo.push((at, before, added));
            }
        }
        Ok(())
    }

    /// Returns the transaction's own write to a row, if there is one.
    pub(super) fn own_write(&self, table: TableId, key: &[u8]) -> Option<&Option<Value>> {
        if self.writes.is_empty() {
            return None;
        }
        self.writes.get(&(table, Key::from(key)))
    }

    /// Returns the current position in the writes.
    pub(super) fn mark(&mut self) -> Mark {
        let undo = self.undo.get_or_insert_default().len();
        Mark { undo, write_bytes: self.write_bytes }
    }

    /// Drops the undo information, after the last savepoint.
    pub(super) fn forget_marks(&mut self) {
        self.undo = None;
    }

    /// Undoes the writes since a mark. The reads since then remain recorded, because the client saw
    /// them.
    pub(super) fn go_back(&mut self, mark: Mark) {
        let writes = Arc::make_mut(&mut self.writes);
        let undone = self.undo.iter_mut().flat_map(|undo| undo.drain(mark.undo..).rev());
        for (at, before, added) in undone {
            self.adds.restore(at.clone(), added);
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
            let own = own.clone();
            self.read_added(table, &Key::from(key))?;
            return Ok(own);
        }
        let found = self.find(table, key)?;
        self.check_kept()?;
        if self.is_recording {
            let seen = found.as_ref().map(|found| ReadVersion::At(found.version));
            self.record_point(table, Key::from(key), seen.unwrap_or(ReadVersion::Absent))?;
        }
        Ok(found.map(|found| found.value))
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let own = in_range(&self.writes, scan);
        let remote = self.remote.as_ref();
        let remote_shards =
            remote.map_or_else(ShardSet::default, |it| it.shards_of(scan.table, &scan.range));
        if own.is_empty() && !self.is_recording && remote_shards.is_empty() {
            let Scan { table, range, direction } = scan;
            let at = self.pin.version();
            self.pin.store().scan(*table, range, *direction, at, |key, version| {
                version.value.as_ref().map_or(ControlFlow::Continue(()), |value| visit(key, value))
            });
            return self.check_kept();
        }
        let mut rows =
            MergedRows::new(&self.pin, scan, remote.map(|remote| (remote, remote_shards)));
        let mut seen = Vec::new();
        let is_recording = self.is_recording;
        let mut last = None;
        merge(&mut rows, own, scan.direction, &mut |key, value, version| {
            if is_recording && let Some(version) = version {
                seen.push((key.clone(), ReadVersion::At(version)));
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
            seen.iter().try_for_each(|(key, _)| self.read_added(scan.table, key))?;
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

    fn add(
        &mut self,
        table: TableId,
        key: Key,
        adder: &dyn Adder,
        amount: &[u8],
    ) -> Result<bool, Stop> {
        let Some((seen, row)) = self.row_to_add_to(table, &key)? else {
            return read_and_add(self, (table, key), adder, amount);
        };
        let row = adder.add(&row, amount)?;
        // If the row is deleted, later statements must not read newer snapshots.
        if let Some(guards) = self.guards() {
            guards.existence(table, &key)?;
        }
        self.replace(table, key.clone(), Some(row))?;
        self.adds.push((table, key), seen, AdderId::of(adder.name()), amount);
        Ok(true)
    }

    fn estimate(&self, table: TableId) -> Option<usize> {
        let spread = self.remote.as_ref().map_or(1, |remote| remote.spread(table));
        Some(self.pin.store().len(table) * spread + self.writes.len())
    }

    fn guards(&mut self) -> Option<&mut dyn Guards> {
        let checks_all = self.level == Isolation::Serializable;
        if self.can_write && !checks_all { Some(self) } else { None }
    }
}

impl LocalContext {
    /// Returns a sweep over a whole table, if no reads are recorded, nothing was written, and all
    /// of its rows are on this node.
    pub(super) fn unordered_scan(&self, table: TableId) -> Option<UnorderedScan> {
        let is_here = self.remote.as_ref().is_none_or(|remote| remote.spread(table) == 1);
        (is_here && !self.is_recording && self.writes.is_empty())
            .then(|| self.pin.unordered_scan(table))
    }

    /// Checks after a read that the snapshot is still valid: a failover may discard it.
    fn check_kept(&self) -> Result<(), Stop> {
        if !self.pin.is_lost() {
            return Ok(());
        }
        let message = "could not serialize access: the snapshot was lost at a failover";
        let abort = Abort::new(SqlState::SERIALIZATION_FAILURE, message);
        Err(abort.with_hint("The transaction might succeed if retried.").into())
    }

    /// Returns a row of the snapshot, from this node or another shard.
    fn find(&self, table: TableId, key: &[u8]) -> Result<Option<Live>, Stop> {
        let owner = self.remote.as_ref().and_then(|it| Some((it, it.shard_of(table, key)?)));
        let Some((remote, shard)) = owner else {
            let found = self.pin.store().read(table, key, self.pin.version());
            return Ok(found.and_then(Live::of));
        };
        let (range, direction) = (KeyRange::point(key), Direction::Forward);
        let (rows, _) = remote.rows(shard, &Scan { table, range, direction }, 1)?;
        Ok(rows.into_iter().next().map(|row| Live { version: row.version, value: row.value }))
    }
}

/// A live row.
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

/// The live rows in a range of a snapshot, read in batches.
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

/// Reduces a range to the keys after `last`.
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

/// The live rows in a range on another shard, fetched in batches.
struct RemoteRowStream<'a> {
    remote: &'a RemoteSnapshot,
    shard: ShardId,
    rest: Scan,
    fetched: std::vec::IntoIter<Row>,
    at_a_time: usize,
    is_done: bool,
}

impl RemoteRowStream<'_> {
    fn next(&mut self) -> Result<Option<(Key, Live)>, Stop> {
        loop {
            if let Some(Row { key, version, value }) = self.fetched.next() {
                return Ok(Some((key, Live { version, value })));
            }
            if self.is_done {
                return Ok(None);
            }
            let (rows, is_all) = self.remote.rows(self.shard, &self.rest, self.at_a_time)?;
            self.is_done = is_all;
            if let Some(last) = rows.last() {
                go_past(&mut self.rest.range, &last.key, self.rest.direction);
            }
            self.at_a_time = (2 * self.at_a_time).min(REMOTE_ROWS);
            self.fetched = rows.into_iter();
        }
    }
}

/// The live rows in a range on all shards, in order.
struct MergedRows<'a> {
    here: Peekable<StoreRows<'a>>,
    /// The rows of each shard, with its next row.
    remote_shards: Vec<(RemoteRowStream<'a>, Option<(Key, Live)>)>,
    direction: Direction,
    /// The shard whose next row was returned. Its following row is fetched only when it is needed.
    taken: Option<usize>,
    /// The error that ended the rows.
    failure: Option<Stop>,
}

impl<'a> MergedRows<'a> {
    fn new(
        pin: &'a Pin,
        scan: &Scan,
        remote_shards: Option<(&'a RemoteSnapshot, ShardSet)>,
    ) -> Self {
        let here = StoreRows::new(pin, scan).peekable();
        let mut merged = Self {
            here,
            remote_shards: Vec::new(),
            direction: scan.direction,
            taken: None,
            failure: None,
        };
        let Some((remote, shards)) = remote_shards else { return merged };
        for shard in shards.iter() {
            let (rest, fetched) = (scan.clone(), Vec::new().into_iter());
            let at_a_time = REMOTE_ROWS_FIRST;
            let rows = RemoteRowStream { remote, shard, rest, fetched, at_a_time, is_done: false };
            merged.remote_shards.push((rows, None));
        }
        (0..merged.remote_shards.len()).for_each(|at| merged.advance(at));
        merged
    }

    fn advance(&mut self, at: usize) {
        let (rows, next) = &mut self.remote_shards[at];
        match rows.next() {
            Ok(found) => *next = found,
            Err(failure) => self.failure = Some(failure),
        }
    }
}

impl Iterator for MergedRows<'_> {
    type Item = (Key, Live);

    fn next(&mut self) -> Option<Self::Item> {
        if self.remote_shards.is_empty() {
            return self.here.next();
        }
        if let Some(at) = self.taken.take() {
            self.advance(at);
        }
        if self.failure.is_some() {
            return None;
        }
        let heads = self
            .remote_shards
            .iter()
            .enumerate()
            .filter_map(|(at, (_, next))| next.as_ref().map(|(key, _)| (at, key)));
        let first = heads.reduce(|a, b| if is_before(b.1, a.1, self.direction) { b } else { a });
        let here = self.here.peek().map(|(key, _)| key);
        match (first, here) {
            (None, _) => self.here.next(),
            (Some((_, remote)), Some(here)) if is_before(here, remote, self.direction) => {
                self.here.next()
            }
            (Some((at, _)), _) => {
                self.taken = Some(at);
                self.remote_shards[at].1.take()
            }
        }
    }
}

type OnMerged<'a> =
    dyn FnMut(&Key, Option<&Value>, Option<SnapshotVersion>) -> ControlFlow<()> + 'a;

/// Visits rows of the store and the transaction's own writes in order. An own write hides the row,
/// which still counts as read. The value of a deleted row is `None`.
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
