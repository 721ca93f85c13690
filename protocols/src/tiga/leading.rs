//! The leader of a shard: accepts transactions and puts them into the log, cell by cell (§3.2,
//! §3.3, Algorithm 1).
//!
//! The order is that of [`super::order`], with watermarks. When the clock has passed the end of a
//! cell, all of its transactions are appended to the log and run, and the leader accepts nothing
//! more up to there. Followers run them when they are committed.

use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;
use pangea_core::txn::{Footprint, Registry};

use super::cells::{Cell, cell_of, end_of, last_of, over_at};
use super::log::{Log, Position, Suffix};
use super::order::{Arrival, Effects, Leader, Order};
use super::stamp::Stamp;
use super::state::State;
use super::transactions::Stamped;
use super::{Tiga, Timer};

/// A leader that was busy lately adds a cell after this time without transactions, for the hashes
/// of the fast path. In microseconds.
const CLOSE_US: u64 = 100_000;

/// A leader without transactions for this long is not busy any more. In microseconds.
const BUSY_US: u64 = 10_000_000;

/// The only shard.
const SHARD: ShardId = ShardId(0);

/// The state of a leader.
pub(super) struct Leading {
    leader: Leader,
    /// The position up to which each follower was sent the log in its present connection; `None` if
    /// it has to tell first what it has.
    pub sent: Vec<Option<Position>>,
    /// The record of the log with which the view began. Cells are not sent before that.
    pub record: LogPosition,
    /// The last cell of that log. Nobody waits for replies for it.
    pub start: Position,
    /// When it last added a cell, by its clock in microseconds.
    closed_at: u64,
}

impl Leading {
    /// A leader that continues a log. It has issued no stamp above `raised`.
    pub(super) fn new(
        me: NodeId,
        node_count: usize,
        (log, record): (&Log, LogPosition),
        raised: Stamp,
    ) -> Self {
        let ceiling = last_of(log.last_version());
        let mut leader = Leader::new(SHARD, 1, me, Order::Watermarks, ceiling);
        leader.skip_issued(raised);
        Self { leader, sent: vec![None; node_count], record, start: log.last(), closed_at: 0 }
    }

    fn arrive(&mut self, txn: TxnId, stamp: Stamp, footprint: Arc<Footprint>) {
        let arrival = Arrival { txn, stamp, shards: ShardSet::one(SHARD), footprint };
        self.leader.on_arrival(arrival, &mut Effects::default());
    }

    /// Gives a transaction its place among those that wait for the end of their cells. A stamp
    /// after `most_us` is replaced by the present, which is `now`.
    fn accept(&mut self, registry: &Registry, stamped: &Stamped, now: u64, most_us: u64) {
        let is_far = stamped.stamp.us() > most_us;
        let stamp = if is_far { self.leader.issue(now) } else { stamped.stamp };
        let footprint = Arc::new(stamped.footprint(registry));
        self.arrive(stamped.request.txn, stamp, footprint);
    }

    /// Whether a transaction waits for the end of its cell.
    pub(super) fn has_pending(&self, txn: TxnId) -> bool {
        self.leader.queue().version(txn).is_some()
    }

    /// Whether no transaction waits for the end of its cell.
    pub(super) fn is_idle(&self) -> bool {
        self.next_cell().is_none()
    }

    /// The cell of the next transaction.
    fn next_cell(&self) -> Option<SnapshotVersion> {
        let (version, _) = self.leader.queue().pending().next()?;
        Some(cell_of(version.into()))
    }

    /// Takes the transactions of the cells up to one that is over, and accepts nothing more for
    /// them.
    fn take_cells(&mut self, over: SnapshotVersion) -> Vec<Cell> {
        let mut effects = Effects::default();
        self.leader.on_clock(end_of(over) - 1, &mut effects);
        self.leader.promise(&mut effects);
        let mut released: Vec<(TxnId, Stamp)> = effects.released;
        released.iter().for_each(|(txn, _)| self.leader.forget(*txn));
        released.sort_unstable_by_key(|(_, stamp)| *stamp);
        let is_same = |a: &(TxnId, Stamp), b: &(TxnId, Stamp)| cell_of(a.1) == cell_of(b.1);
        let cells = released.chunk_by(is_same);
        cells.map(|txns| Cell { version: cell_of(txns[0].1), txns: txns.to_vec() }).collect()
    }

    /// Whether no cell was added for a while.
    fn is_close_due(&self, now: u64) -> bool {
        now.saturating_sub(self.closed_at) >= CLOSE_US
    }

    pub(super) fn invariants(&self, log: &Log) {
        self.leader.invariants();
        let (promised, last) = (self.leader.promised(), last_of(log.last_version()));
        assert!(promised >= last, "a leader accepts nothing for cells of its log");
    }
}

impl State {
    /// Whether cells without transactions are needed.
    fn is_busy(&self, now: u64) -> bool {
        let is_busy = match self.sealed_at {
            Some(_) => !self.is_closed(),
            None => now.saturating_sub(self.raised_at) < BUSY_US,
        };
        self.has_fast_path() && is_busy
    }

    /// Orders a transaction, if this replica leads and the transaction has no place yet.
    pub(super) fn order(&mut self, cx: &mut Cx<'_, Tiga>, stamped: &Stamped) {
        if self.leading.is_none() || self.is_logged(stamped.request.txn) {
            return;
        }
        if self.is_sealed() {
            return cx.mark("tiga.sealed");
        }
        if !self.may_order(stamped) {
            return cx.mark("tiga.other_program");
        }
        let now = self.clock_us(cx);
        self.raise_ceiling(cx, now);
        let most_us = now + Span::from_ms(self.options.future_max_ms).us;
        if let Some(leading) = &mut self.leading {
            leading.accept(&self.registry, stamped, now, most_us);
            self.raised = leading.leader.last_issued();
            self.raised_at = now;
        }
    }
}

impl Tiga {
    /// §3.3: appends the cells that are over to the log, and runs them.
    pub(super) fn release(&mut self, cx: &mut Cx<'_, Self>) {
        let now = self.state.clock_us(cx);
        // No cell is over before a record allows its stamps. When the record is durable, this is
        // called again.
        let over = over_at(now.min(self.state.ceiling.durable.us));
        self.state.note_seal(now);
        let is_busy = self.state.leading.is_some() && self.state.is_busy(now);
        if is_busy {
            self.state.raise_ceiling(cx, now);
        }
        let Some(leading) = &mut self.state.leading else { return };
        let mut cells = Vec::new();
        if leading.next_cell().is_some_and(|next| next <= over) {
            cells = leading.take_cells(over);
        } else if is_busy && leading.is_close_due(now) && over > self.state.log.last_version() {
            // Followers know only from the log that nothing more comes before.
            leading.take_cells(over);
            cells = vec![Cell { version: over, txns: Vec::new() }];
        }
        if !cells.is_empty() {
            leading.closed_at = now;
            let (view, after) = (self.state.log.view, self.state.log.last());
            self.append(cx, Suffix { view, after, cells });
        }
        self.run_ahead(cx);
        let next = self.state.leading.as_ref().and_then(Leading::next_cell);
        if let Some(wait) = next.and_then(|next| end_of(next).checked_sub(now)) {
            cx.set_timer(Timer::Release, Span::from_us(wait));
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
