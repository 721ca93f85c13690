//! The leader of a shard: accepts transactions and puts them into the log, cell by cell (§3.2,
//! §3.3, Algorithm 1).
//!
//! The order is that of [`super::order`], with watermarks. When the clock has passed the end of a
//! cell, and all other leaders have promised to accept nothing more up to there, its transactions
//! are appended to the log, and the leader accepts nothing more up to there either. They run when
//! they are committed, or at once if there is a fast path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::cells::{Cell, cell_of, end_of, last_of, over_at};
use super::log::{Log, Position, Suffix};
use super::order::{Arrival, Effects, Leader, Notice};
use super::shards::cell_of_word;
use super::stamp::Stamp;
use super::state::State;
use super::strides::Strides;
use super::transactions::Stamped;
use super::{Tiga, Timer};

/// A leader that was busy lately adds a cell after this time without transactions, for the hashes
/// of the fast path. In microseconds.
const CLOSE_US: u64 = 100_000;

/// A leader without transactions for this long is not busy any more. In microseconds.
const BUSY_US: u64 = 10_000_000;

/// The state of a leader.
pub(super) struct Leading {
    pub leader: Leader,
    /// The shard.
    shard: ShardId,
    is_divided: bool,
    strides: Strides,
    /// How much of the log each follower was sent in its present connection: up to a position, and
    /// that nothing more comes up to a version. `None` if it has to tell its position first.
    pub sent: Vec<Option<(Position, SnapshotVersion)>>,
    /// The record of the log with which the view began. Cells are not sent before that.
    pub record: LogPosition,
    /// The last cell of that log. Nobody waits for replies for it.
    pub start: Position,
    /// When it last added a cell, by its clock in microseconds.
    closed_at: u64,
    /// The transactions that are released and whose cells are not complete.
    released: BTreeMap<Stamp, TxnId>,
    /// All transactions up to this version are in the log.
    closed: SnapshotVersion,
    /// With several shards: the part of it that followers are told.
    pub announced: SnapshotVersion,
    /// With several shards: cells that a leader waits for. A promise is due when one is over.
    pub promises_due: BTreeSet<SnapshotVersion>,
    /// The same: they are announced to the followers when they are closed.
    pub announcements_due: BTreeSet<SnapshotVersion>,
    /// The last cell of a promise that was told to the others.
    pub promised: SnapshotVersion,
    /// The cells that the others were asked to promise, as far as they may still be of use.
    pub asked: BTreeSet<SnapshotVersion>,
    /// The notices of this step for the other leaders.
    pub notices: BTreeMap<ShardId, Vec<Notice>>,
    /// The last cell of a transaction that has arrived.
    newest: SnapshotVersion,
    /// With the detective approach: the last cell to which a transaction was raised, of which the
    /// other leaders have not heard.
    pub raised_cell: SnapshotVersion,
    /// Whether this leader adds nothing more to the log, as it has told.
    pub has_ended: bool,
}

impl Leading {
    /// A leader that continues the log of a replica, which is in the record at `record`.
    /// The clock of the shard reads `now`.
    pub(super) fn new(state: &State, record: LogPosition, now: u64) -> Self {
        let State { log, node, shard, cluster, .. } = state;
        let (closed, shards) = (log.last_version(), cluster.partitions.shards());
        let order = state.options.rule(cluster, state.views.view.is_detective);
        let mut leader = Leader::new(*shard, shards, *node, order, last_of(closed));
        // Whatever this node has raised in an earlier view is in the log, or void. It may have been
        // far ahead of its clock then.
        if state.raised.us() <= now + state.clocks_differ_at_most().us {
            leader.skip_issued(state.raised);
        }
        Self {
            leader,
            shard: *shard,
            is_divided: shards > 1,
            strides: Strides::new(shards > 1, state.way_to_followers(*node)),
            sent: vec![None; state.replica.topology.node_count()],
            record,
            start: log.last(),
            closed_at: 0,
            released: BTreeMap::new(),
            closed,
            announced: SnapshotVersion::ZERO,
            promises_due: BTreeSet::new(),
            announcements_due: BTreeSet::new(),
            promised: closed,
            asked: BTreeSet::from([closed]),
            notices: BTreeMap::new(),
            newest: closed,
            raised_cell: SnapshotVersion::ZERO,
            has_ended: false,
        }
    }

    /// Takes the effects of a step of the order.
    pub(super) fn take(&mut self, effects: Effects) {
        assert!(effects.revoked.is_empty(), "with watermarks a ready transaction is released");
        self.released.extend(effects.released.into_iter().map(|(txn, stamp)| (stamp, txn)));
        for (shard, notice) in effects.told {
            self.notices.entry(shard).or_default().push(notice);
        }
    }

    /// Gives a transaction its place among those that wait for the end of their cells. A stamp
    /// that is too far in the future is replaced by the present, which is `now`.
    fn accept(&mut self, stamped: &Stamped, now: u64, is_far: bool) {
        self.strides.note_arrival(now);
        let stamp = if is_far { self.leader.issue(now) } else { stamped.stamp };
        let shards = match stamped.request.shards {
            none if none.is_empty() => ShardSet::one(self.shard),
            shards => shards,
        };
        let txn = stamped.request.txn;
        let mut effects = Effects::default();
        let arrival = Arrival { txn, stamp, shards, footprint: Arc::default() };
        self.leader.on_arrival(arrival, &mut effects);
        self.take(effects);
        let wanted = stamp;
        let stamp = self.leader.stamp_of(txn).unwrap_or_default();
        if wanted < stamp || is_far {
            self.raised_cell = self.raised_cell.max(cell_of(stamp));
        }
        self.newest = self.newest.max(cell_of(stamp));
    }

    /// The cells for which the others have to promise that nothing more comes: the first one that
    /// waits, and the last one, so that leaders that are far from each other answer early.
    pub(super) fn cells_waiting(&self) -> impl Iterator<Item = SnapshotVersion> {
        let first = self.next_due();
        let newest = self.last_of_stride(self.newest);
        let newest = Some(newest).filter(|newest| first.is_some_and(|first| first < *newest));
        first.into_iter().chain(newest)
    }

    /// The cell after which the first cell with a transaction is added to the log. Under load that
    /// is a few cells later, because each addition costs messages between all nodes.
    pub(super) fn next_due(&self) -> Option<SnapshotVersion> {
        self.next_cell().map(|cell| self.last_of_stride(cell))
    }

    /// Whether the others were asked for a cell, or for one that is added together with it.
    pub(super) fn is_asked_with(&self, cell: SnapshotVersion) -> bool {
        self.asked.range(cell..=self.last_of_stride(cell)).next().is_some()
    }

    /// The last one of the cells that are added to the log together with a cell.
    fn last_of_stride(&self, cell: SnapshotVersion) -> SnapshotVersion {
        SnapshotVersion(cell.0.next_multiple_of(self.strides.cells(self.leader.pending_count())))
    }

    /// All transactions up to this version are in the log, and nothing more comes up to it.
    pub(super) fn closed(&self) -> SnapshotVersion {
        self.closed
    }

    /// The stamp of a transaction that is released and not in the log yet, because its cell is not
    /// complete.
    pub(super) fn released_at(&self, txn: TxnId) -> Option<Stamp> {
        self.released.iter().find(|(_, released)| **released == txn).map(|(stamp, _)| *stamp)
    }

    /// Whether a transaction waits for the end of its cell.
    pub(super) fn has_pending(&self, txn: TxnId) -> bool {
        self.leader.stamp_of(txn).is_some() || self.released_at(txn).is_some()
    }

    /// Whether no transaction waits for the end of its cell.
    pub(super) fn is_idle(&self) -> bool {
        self.next_cell().is_none()
    }

    /// The first cell with a transaction that is not in the log.
    pub(super) fn next_cell(&self) -> Option<SnapshotVersion> {
        let pending = self.leader.queue().pending().next();
        let pending = pending.map(|(version, _)| cell_of(version.into()));
        let released = self.released.keys().next().map(|stamp| cell_of(*stamp));
        pending.into_iter().chain(released).min()
    }

    /// The last cell that is over, of which nothing more will be heard, and before which nothing is
    /// pending.
    fn complete(&self, over: SnapshotVersion) -> SnapshotVersion {
        let passed = self.leader.passed().map(|stamp| {
            let cell = if stamp == Stamp::ZERO { SnapshotVersion::ZERO } else { cell_of(stamp) };
            // All but the last one of a promise that ends within a cell.
            if last_of(cell) == stamp { cell } else { SnapshotVersion(cell.0.saturating_sub(1)) }
        });
        let pending = self.leader.queue().pending().next();
        let before = pending.map(|(version, _)| SnapshotVersion(cell_of(version.into()).0 - 1));
        [Some(over), passed, before].into_iter().flatten().min().unwrap_or(over)
    }

    /// Promises to accept nothing more up to a cell that is over, if another leader waits for one
    /// of them.
    pub(super) fn promise(&mut self, over: SnapshotVersion) {
        let mut effects = Effects::default();
        // No cell is over before the first record that allows stamps is durable.
        if let Some(us) = end_of(over).checked_sub(1) {
            self.leader.on_clock(us, &mut effects);
        }
        if self.promises_due.first().is_some_and(|due| *due <= over) {
            self.leader.promise(&mut effects);
            self.promises_due = self.promises_due.split_off(&over.next());
            self.promised = over;
        }
        self.take(effects);
    }

    /// Takes the transactions of the cells that are complete, and accepts nothing more for them.
    fn take_cells(&mut self, over: SnapshotVersion) -> Vec<Cell> {
        self.promise(over);
        let complete = self.complete(over).max(self.closed);
        if self.announcements_due.first().is_some_and(|due| *due <= complete) {
            self.announced = complete;
            self.announcements_due = self.announcements_due.split_off(&complete.next());
        }
        if complete == self.closed {
            return Vec::new();
        }
        self.leader.close(last_of(complete));
        self.closed = complete;
        let mut taken = std::mem::take(&mut self.released);
        self.released = taken.extract_if(.., |stamp, _| cell_of(*stamp) > complete).collect();
        taken.values().for_each(|txn| self.leader.forget(*txn));
        let taken: Vec<(TxnId, Stamp)> =
            taken.into_iter().map(|(stamp, txn)| (txn, stamp)).collect();
        let is_same = |a: &(TxnId, Stamp), b: &(TxnId, Stamp)| cell_of(a.1) == cell_of(b.1);
        let cells = taken.chunk_by(is_same);
        cells.map(|txns| Cell { version: cell_of(txns[0].1), txns: txns.to_vec() }).collect()
    }

    /// Whether no cell was added for a while.
    fn is_close_due(&self, now: u64) -> bool {
        now.saturating_sub(self.closed_at) >= CLOSE_US
    }

    /// Whether there may be cells to take.
    fn is_due(&self, over: SnapshotVersion) -> bool {
        let is_asked = |due: &BTreeSet<SnapshotVersion>| due.first().is_some_and(|it| *it <= over);
        self.next_due().is_some_and(|next| next <= over)
            || is_asked(&self.promises_due)
            || is_asked(&self.announcements_due)
    }

    /// The cells at whose end something is due.
    fn cells_due(&self) -> impl Iterator<Item = SnapshotVersion> {
        let due = [self.promises_due.first(), self.announcements_due.first()];
        self.next_due().into_iter().chain(due.into_iter().flatten().copied())
    }

    pub(super) fn invariants(&self, log: &Log) {
        self.leader.invariants();
        let (promised, last) = (self.leader.promised(), last_of(log.last_version()));
        assert!(promised >= last, "a leader accepts nothing for cells of its log");
        let closed = last_of(self.closed);
        assert!(self.released.keys().all(|stamp| *stamp > closed), "no closed cell has more");
    }
}

impl State {
    /// Whether cells without transactions are needed.
    fn is_busy(&self, now: u64) -> bool {
        let is_busy = match self.sealed_at {
            Some(_) => !self.is_closed(),
            None => self.has_hashes() && now.saturating_sub(self.raised_at) < BUSY_US,
        };
        self.is_fast_view() && is_busy
    }

    /// Orders a transaction, if this replica leads and the transaction has no place yet.
    pub(super) fn order(&mut self, cx: &mut Cx<'_, Tiga>, stamped: &Stamped) {
        let (txn, of_here) = (stamped.request.txn, stamped.concerns(self.shard));
        // A transaction that another leader has pending is not over.
        let is_told = self.leading.as_ref().is_some_and(|it| it.leader.has_heard_of(txn));
        let is_logged = if is_told { self.log.contains(txn) } else { self.is_logged(txn) };
        if self.leading.is_none() || is_logged || !of_here {
            return;
        }
        // The leader that has told of it waits for this one.
        if !is_told && self.is_sealed() {
            return cx.mark("tiga.sealed");
        }
        if !self.may_order(stamped) {
            return cx.mark("tiga.other_program");
        }
        let now = self.clock_us(cx);
        self.raise_ceiling(cx, now);
        let mut most_us = now + Span::from_ms(self.options.future_max_ms).us;
        if self.views.view.is_detective {
            // The clock of another leader may be ahead. A stamp that is replaced is void.
            most_us += self.clocks_differ_at_most().us;
        }
        self.note_bounds(now);
        let is_far = stamped.stamp.us() > most_us;
        if is_far {
            cx.mark("tiga.stamp_replaced");
            self.counters.stamps_replaced += 1;
        }
        if let Some(leading) = &mut self.leading {
            self.counters.late_arrivals += u64::from(stamped.stamp <= leading.leader.promised());
            leading.accept(stamped, now, is_far);
            self.raised = leading.leader.last_issued();
            self.raised_at = now;
        }
    }

    /// The round trip from a leader of this shard to the nearest followers that make up f + 1.
    fn way_to_followers(&self, leader: NodeId) -> Span {
        let group = &self.groups[usize::from(self.shard.0)];
        let way = |from, to| self.cluster.one_way_between(from, to).us;
        let round_trip = |other: &NodeId| Span::from_us(way(leader, *other) + way(*other, leader));
        let mut all: Vec<Span> = group.iter().map(round_trip).collect();
        all.sort_unstable();
        all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }

    /// Whether there are several shards.
    pub(super) fn is_divided(&self) -> bool {
        self.cluster.partitions.shards() > 1
    }
}

impl Tiga {
    /// §3.3: appends the cells that are complete to the log, and runs them.
    pub(super) fn release(&mut self, cx: &mut Cx<'_, Self>) {
        let now = self.state.clock_us(cx);
        // No cell is over before a record allows its stamps. When the record is durable, this is
        // called again.
        let over = over_at(now.min(self.state.ceiling.durable.us));
        if self.state.note_seal(now) {
            self.send_progress(cx);
        }
        let is_busy = self.state.leading.is_some() && self.state.is_busy(now);
        if is_busy {
            self.state.raise_ceiling(cx, now);
        }
        self.state.note_bounds(now);
        let is_fast = self.state.is_fast_view();
        let Some(leading) = &mut self.state.leading else { return };
        let (mut cells, mut end) = (Vec::new(), SnapshotVersion::ZERO);
        if leading.is_due(over) {
            cells = leading.take_cells(over);
            if is_fast && leading.is_divided {
                // What followers have accepted up to there is not recovered.
                end = cell_of_word(leading.announced);
            }
        } else if is_busy && leading.is_close_due(now) && over > self.state.log.last_version() {
            // Followers know only from the log that nothing more comes before.
            cells = leading.take_cells(over);
            end = leading.closed;
        }
        if end > cells.last().map_or(self.state.log.last_version(), |cell| cell.version) {
            cells.push(Cell { version: end, txns: Vec::new() });
        }
        if !cells.is_empty() {
            leading.closed_at = now;
            let (view, after) = (self.state.log.view, self.state.log.last());
            self.append(cx, Suffix { view, after, cells: cells.clone() });
            self.state.reply_closed(cx, &cells);
        }
        self.ask_for_promises(cx);
        self.run_ahead(cx);
        let Some(leading) = &self.state.leading else { return };
        let is_waiting = leading.cells_due().next().is_some();
        let lag = self.state.lag_of_bounds();
        let ends = leading.cells_due().map(end_of).flat_map(|end| [end, end + lag]);
        let next = ends.filter(|end| *end > now).min();
        if is_waiting {
            // A record may have to be durable first.
            self.state.raise_ceiling(cx, now);
        }
        if let Some(next) = next {
            cx.set_timer(Timer::Release, Span::from_us(next - now));
        }
    }

    /// A leader that is replaced leads no more, and takes back what it has run ahead.
    pub(super) fn stop_leading(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.leading.take().is_some() {
            cx.mark("tiga.deposed");
            cx.clear_timer(Timer::Release);
            self.retreat(cx);
        }
    }
}
