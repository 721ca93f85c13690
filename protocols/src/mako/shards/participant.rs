//! Certification on one shard (§4.2): locks, draws, validation and installation.
//!
//! ```text
//!   prepare    all rows locked or none, reads of them current    draws a number
//!   validate   reads current and not locked by others            counter at least the version
//!   install    writes visible to later transactions              counter at least the version
//!   forget     unlocked
//! ```
//!
//! While a drawn number is pending, the shard does not close its log above it, so no watermark
//! passes a transaction that is not installed here. A local transaction that touches a locked row
//! waits until it is unlocked: it would have a later version than the one that holds the lock, and
//! must see its write.

use pangea_core::exec::Change;
use pangea_core::exec::reconnaissance::LookupKeys;
use pangea_core::exec::spread::{FoundRows, is_stale, touched};
use pangea_core::ids::{ShardId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::store::{RecordHeader, Version};
use pangea_core::time::Timestamp;
use pangea_core::txn::{ReadSet, Write};

use super::super::Mako;
use super::super::across::Kind;
use super::super::clocks::Clock;
use super::super::locks::{Holder, LockTable, rows_within};
use super::super::log::{Executed, RunResult};
use super::super::state::{Role, State};
use super::Coordination;
use super::items::{Attempt, Item};

/// A transaction that has drawn a number here.
#[derive(Debug)]
pub(crate) struct Pending {
    pub attempt: u64,
    /// The shard whose leader coordinates it.
    pub coordinator: ShardId,
    pub draw: SnapshotVersion,
    pub writes: Vec<Write>,
    /// Its reads that are locked against writes.
    pub shared: Shared,
    pub since: Timestamp,
}

/// The reads of a transaction that are locked against writes of others.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Rows that the transaction does not write.
    rows: Vec<(TableId, Key)>,
    ranges: Vec<(TableId, KeyRange)>,
}

impl Shared {
    pub(super) fn of(reads: &ReadSet, writes: &[Write]) -> Self {
        let is_written = |key: &(TableId, Key)| {
            writes.iter().any(|write| (write.table, &write.key) == (key.0, &key.1))
        };
        let rows = reads.points.iter().map(|read| (read.table, read.key.clone()));
        let ranges = reads.ranges.iter().map(|read| (read.table, read.range.clone()));
        let ranges = mutate!(MakoRangesUnshared: ranges.take(usize::MAX) => ranges.take(0));
        Self { rows: rows.filter(|row| !is_written(row)).collect(), ranges: ranges.collect() }
    }
}

impl Pending {
    /// The rows that it has locked.
    fn rows(&self) -> impl Iterator<Item = (TableId, &Key)> + Clone {
        self.writes.iter().map(|write| (write.table, &write.key)).chain(rows_of(&self.shared.rows))
    }

    /// Unlocks them.
    fn unlock(&self, locks: &mut LockTable, txn: TxnId) {
        locks.unlock(txn, self.writes.iter().map(|write| (write.table, &write.key)));
        locks.unshare(txn, rows_of(&self.shared.rows), &self.shared.ranges);
    }
}

fn rows_of(rows: &[(TableId, Key)]) -> impl Iterator<Item = (TableId, &Key)> + Clone {
    rows.iter().map(|(table, key)| (*table, key))
}

impl Coordination {
    /// Whether a transaction can lock its rows: the writes, and its other reads against writes.
    ///
    /// # Errors
    /// A row that another transaction has locked.
    pub(super) fn can_lock(
        &self,
        txn: TxnId,
        writes: &[Write],
        shared: &Shared,
    ) -> Result<(), Change> {
        // Local transactions that want to write such a row would never get it.
        let wanted = shared.rows.iter().filter(|row| self.parked.contains_key(*row));
        let within = shared.ranges.iter().flat_map(|(table, range)| {
            rows_within(&self.parked, (*table, range)).map(|(row, _)| row)
        });
        for (table, key) in wanted.chain(within) {
            if let Some(winner) = self.locks.reader(*table, key, Some(txn)) {
                return Err(Change { table: *table, key: key.clone(), winner: Some(winner) });
            }
        }
        self.locks.can_lock(txn, writes.iter().map(|write| (write.table, &write.key)))?;
        self.locks.can_share(txn, rows_of(&shared.rows), &shared.ranges)?;
        Ok(())
    }

    /// Locks the rows of a transaction, or none.
    fn lock(&mut self, txn: TxnId, writes: &[Write], shared: &Shared) -> Result<(), Change> {
        self.can_lock(txn, writes, shared)?;
        self.locks.lock(txn, writes.iter().map(|write| (write.table, &write.key)))?;
        self.locks.share(txn, rows_of(&shared.rows), &shared.ranges)?;
        Ok(())
    }
}

/// Why a transaction can't be certified.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// A row is locked by another transaction, or has changed.
    Changed(Change),
    /// A row has changed. For a coordinator of another shard all rows stay locked.
    Stale(Change),
    /// A row that it has read may be void.
    Doubtful,
}

impl From<Change> for Refusal {
    fn from(change: Change) -> Self {
        Self::Changed(change)
    }
}

impl From<Refusal> for Item {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Changed(change) => Self::Refused(change),
            Refusal::Stale(change) => Self::Stale(change),
            Refusal::Doubtful => Self::Doubtful,
        }
    }
}

impl From<Holder> for Change {
    fn from(Holder { table, key, txn }: Holder) -> Self {
        Self { table, key, winner: Some(txn) }
    }
}

impl State {
    /// The first of these reads of rows of this shard that another transaction has locked.
    fn locked_by_another(&self, txn: TxnId, reads: &ReadSet) -> Option<Change> {
        let Role::Leading(leading) = &self.role else { return None };
        let locks = &leading.over.locks;
        if locks.is_empty() {
            return None;
        }
        mutate!(MakoLockedPassesValidate: () => return None);
        let of_point = reads.points.iter().find_map(|read| {
            let holder = locks.holder(read.table, &read.key).filter(|holder| *holder != txn)?;
            Some(Change { table: read.table, key: read.key.clone(), winner: Some(holder) })
        });
        let of_range = |read: &pangea_core::txn::RangeRead| {
            locks.holder_within(read.table, &read.range, Some(txn)).map(Change::from)
        };
        of_point.or_else(|| reads.ranges.iter().find_map(of_range))
    }

    /// The versions on which a transaction depends that has made these reads here, and the greatest
    /// version of them.
    ///
    /// # Errors
    /// If one of them is doubtful.
    fn clock_of(
        &self,
        cx: &Cx<'_, Mako>,
        reads: &ReadSet,
    ) -> Result<(Clock, SnapshotVersion), Refusal> {
        let (mut clock, mut newest) = (Clock::default(), SnapshotVersion::ZERO);
        let (Role::Leading(leading), Some(shards)) = (&self.role, &self.shards) else {
            return Ok((clock, newest));
        };
        let (doubtful, mut is_doubtful) = (self.doubtful_before(), false);
        let (own, watermark) = (shards.clocks.slot_of(shards.own), shards.own_watermark());
        let place = (&*shards.partitions, shards.own);
        touched(reads, cx.store, place, &mut |version| {
            newest = newest.max(version);
            if version > watermark {
                clock.raise(own, version);
            }
            if let Some(of_version) = leading.over.clocks.get(&version) {
                clock.merge(of_version);
                is_doubtful |= version < doubtful;
            }
        });
        if is_doubtful { Err(Refusal::Doubtful) } else { Ok((clock, newest)) }
    }
}

impl Mako {
    /// A coordinator asks for rows. Those that a transaction has locked may change, which the
    /// validation finds.
    pub(super) fn on_read(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        keys: &LookupKeys,
    ) {
        let shards = self.shards();
        let rows = FoundRows::look(keys, cx.store, (&shards.partitions, shards.own));
        let Some(over) = self.coordination() else { return };
        let counter = over.counter;
        self.post(from, attempt, Item::Found { rows, counter });
    }

    pub(super) fn on_prepare(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        (reads, writes): (ReadSet, Vec<Write>),
    ) {
        match self.prepare(cx, from, attempt, &reads, writes) {
            Ok((draw, clock)) => {
                self.post_replicated((from, attempt), Item::Prepared { draw, clock }, true);
            }
            Err(refusal) => self.post(from, attempt, refusal.into()),
        }
    }

    /// Locks the rows of a transaction, if its reads are current, and draws a number. Rows and
    /// ranges that it has read are locked against writes.
    ///
    /// If a read is not current, the rows stay locked for a coordinator of another shard. It reads
    /// them again and finds them unchanged then, however many transactions write them.
    ///
    /// # Errors
    /// A row that is locked, has changed, or may be void.
    pub(super) fn prepare(
        &mut self,
        cx: &mut Cx<'_, Self>,
        coordinator: ShardId,
        attempt: Attempt,
        reads: &ReadSet,
        writes: Vec<Write>,
    ) -> Result<(SnapshotVersion, Clock), Refusal> {
        let Attempt { txn, number } = attempt;
        // An earlier attempt may have been given up while the nodes were not connected.
        self.forget_before(txn, number);
        let shared = Shared::of(reads, &writes);
        let Some(over) = self.coordination() else {
            unreachable!("only a leader certifies transactions")
        };
        if let Err(change) = over.lock(txn, &writes, &shared) {
            self.shards().counts.locks_refused += 1;
            return Err(change.into());
        }
        let (attempt, since) = (number, cx.now.at);
        let draw = SnapshotVersion::ZERO;
        let mut pending = Pending { attempt, coordinator, draw, writes, shared, since };
        let shards = self.shards();
        let stale = is_stale(reads, cx.store, (&shards.partitions, shards.own));
        self.shards().counts.reads_stale += u64::from(stale.is_some());
        let clock = match stale {
            Some(change) => Err(Refusal::Stale(change)),
            None => self.state.clock_of(cx, reads),
        };
        let is_of_other = coordinator != self.state.own_shard();
        let over = self.coordination().expect("it leads");
        match clock {
            Err(refusal) if !(is_of_other && matches!(refusal, Refusal::Stale(_))) => {
                pending.unlock(&mut over.locks, txn);
                Err(refusal)
            }
            clock => {
                over.counter = over.counter.next();
                pending.draw = over.counter;
                over.pending.insert(txn, pending);
                clock.map(|(clock, _)| (over.counter, clock))
            }
        }
    }

    pub(super) fn on_validate(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        (version, reads): (SnapshotVersion, &ReadSet),
    ) {
        let answer = match self.validate(cx, attempt.txn, version, reads) {
            Ok(clock) => Item::Valid(clock),
            Err(refusal) => refusal.into(),
        };
        self.post(from, attempt, answer);
    }

    /// Checks reads of rows of this shard, and counts on from the version of their transaction:
    /// whoever overwrites them has a later one.
    ///
    /// # Errors
    /// A row that is locked, has changed, or may be void.
    pub(super) fn validate(
        &mut self,
        cx: &mut Cx<'_, Self>,
        txn: TxnId,
        version: SnapshotVersion,
        reads: &ReadSet,
    ) -> Result<Clock, Refusal> {
        let locked = self.state.locked_by_another(txn, reads);
        let shards = self.shards();
        let place = (&*shards.partitions, shards.own);
        if let Some(change) = locked.or_else(|| is_stale(reads, cx.store, place)) {
            self.shards().counts.reads_stale += 1;
            return Err(change.into());
        }
        let (clock, newest) = self.state.clock_of(cx, reads)?;
        if newest >= version {
            // A row was inserted and deleted again.
            let row = reads.points.first().map(|read| (read.table, read.key.clone()));
            let row = row.or_else(|| {
                let read = reads.ranges.first()?;
                Some((read.table, (&read.range.start[..]).into()))
            });
            let (table, key) = row.expect("a version was read");
            return Err(Change { table, key, winner: None }.into());
        }
        let over = self.coordination().expect("only a leader certifies transactions");
        over.counter = over.counter.max(version);
        over.raised = over.raised.max(version);
        Ok(clock)
    }

    /// Makes the writes of a certified transaction visible to later ones. `own` is its outcome, if
    /// it was coordinated here.
    pub(super) fn install(
        &mut self,
        cx: &mut Cx<'_, Self>,
        Attempt { txn, number }: Attempt,
        (version, clock): (SnapshotVersion, Clock),
        own: Option<(RunResult, ShardSet)>,
    ) {
        let Some(over) = self.coordination() else { return };
        let is_it = over.pending.get(&txn).is_some_and(|pending| pending.attempt == number);
        if !is_it {
            // It was installed already: the coordinator has repeated that.
            return cx.mark("mako.installed_again");
        }
        let pending = over.pending.remove(&txn).expect("it was found just now");
        pending.unlock(&mut over.locks, txn);
        mutate!(MakoInstallDoesNotRaise: over.counter = over.counter.max(version) => ());
        let header = RecordHeader::new(txn);
        for Write { table, key, value } in &pending.writes {
            let row = Version { version, header, value: value.clone() };
            cx.store.apply(*table, key.clone(), row);
        }
        self.wake_all(&pending);
        let Pending { writes, .. } = pending;
        let kind = if own.is_some() { Kind::Own } else { Kind::Piece };
        let (outcome, written) = own.unwrap_or_else(|| (Ok(Vec::new()), ShardSet::default()));
        let txns = vec![Executed { txn, outcome }];
        let writes = writes.into_iter().map(|write| (0, write)).collect();
        self.log_entry((Some(version), clock, kind, written), txns, writes);
    }

    /// Ends an attempt without effect.
    pub(super) fn forget(&mut self, Attempt { txn, number }: Attempt) {
        self.forget_before(txn, number + 1);
    }

    /// Drops what hangs, and asks nobody.
    pub(super) fn drop_hanging(&mut self) {
        let own = self.shards().own;
        let Some(over) = self.coordination() else { return };
        let pending = over.pending.iter().filter(|(_, it)| it.coordinator != own);
        let all = pending.map(|(txn, it)| Attempt { txn: *txn, number: it.attempt });
        for attempt in all.collect::<Vec<_>>() {
            self.forget(attempt);
        }
    }

    fn forget_before(&mut self, txn: TxnId, number: u64) {
        let Some(over) = self.coordination() else { return };
        if over.pending.get(&txn).is_none_or(|pending| pending.attempt >= number) {
            return;
        }
        let pending = over.pending.remove(&txn).expect("it was found just now");
        pending.unlock(&mut over.locks, txn);
        self.wake_all(&pending);
    }

    /// Runs those that have waited for a transaction.
    fn wake_all(&mut self, pending: &Pending) {
        let Some(over) = self.coordination() else { return };
        let mut of_ranges: Vec<(TableId, Key)> = Vec::new();
        for (table, range) in &pending.shared.ranges {
            let range = (*table, range);
            of_ranges.extend(rows_within(&over.parked, range).map(|(row, _)| row.clone()));
            of_ranges.extend(rows_within(&over.waiters, range).map(|(row, _)| row.clone()));
        }
        self.wake(pending.rows().chain(rows_of(&of_ranges)));
    }

    /// Runs the local transactions again that have waited for one of these rows, before others. If
    /// transactions over shards wait for it, too, the next one follows (`queues.rs`).
    pub(super) fn wake<'a>(&mut self, rows: impl Iterator<Item = (TableId, &'a Key)>) {
        let Role::Leading(leading) = &mut self.state.role else { return };
        for (table, key) in rows {
            let parked = leading.over.parked.remove(&(table, key.clone())).unwrap_or_default();
            mutate!(MakoParkedForgotten: () => continue);
            for request in parked.into_iter().rev() {
                leading.queue_bytes += request.size_hint() as u64;
                leading.queue.push_front(request);
            }
            let row = (table, key.clone());
            if leading.over.waiters.contains_key(&row) {
                leading.over.unlocked.push(row);
            }
        }
    }
}
