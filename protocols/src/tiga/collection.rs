//! Collection: cells and programs that a replica forgets, and those kept for peers (§4).
//!
//! ```text
//!   positions   1 .. 70 | 71 ..  90 | 91 .. 120 |
//!               forgotten  a peer    |  not published here, or in
//!                          has 70    |  no durable checkpoint
//! ```
//!
//! A cell is forgotten when it is published here, a durable checkpoint of this replica contains
//! it, and no peer needs it that is only a little behind. For a peer that is further behind than
//! `behind_bytes` nothing is kept: it takes a checkpoint (`checkpoint.rs`). The last cells are also
//! kept for the hashes of the next view. Decisions are forgotten when all voting replicas of all
//! shards have the logs with which the view begins. One without a vote that was away gets the log
//! of the view from its leader, behind a checkpoint if it needs one (`view_change.rs`).

use std::collections::{BTreeSet, VecDeque};

use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::protocol::Cx;
use pangea_core::txn::CodeDigest;

use super::Tiga;
use super::cells::{Cell, last_of};
use super::fast_path::entries_of;
use super::log::{Log, Position, Suffix, ViewNumber};
use super::state::State;
use super::transactions::Transactions;
use super::views::PeerState;
use crate::streams::Bid;

/// The size that a cell counts besides its transactions.
const CELL_BYTES: u64 = 32;

/// The state of a replica's log and transactions, as it tells its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The position before the first cell that it can send.
    pub first: Position,
    /// The last position that readers see there.
    pub published: Position,
    /// The number below which its own transactions are over.
    pub done_below: u64,
    /// If it lost its disk, and does not count before it has the log of a later view: this view.
    pub replaced_after: Option<ViewNumber>,
    /// The code of its procedures.
    pub code: CodeDigest,
    /// The number of decisions about views that survive its restart.
    pub decisions: u64,
    /// The view of its log, if it has the beginning of that view on its disk; else 0.
    pub durable_view: ViewNumber,
    /// Whether none of its transactions is in flight, and it is stopping.
    pub is_settled: bool,
    /// Whether it leads, orders nothing more because too few stay, and all of its transactions are
    /// in the log.
    pub is_quiet: bool,
    /// Whether it leads and adds nothing more to the log, because too few stay.
    pub is_sealed: bool,
    /// Since when it orders nothing more, as the leader; or what its leader has told of that. 0 if
    /// it does.
    pub seal: u64,
    /// The last cell for which it has transactions in time that are not in its log.
    pub accepted: SnapshotVersion,
    /// Whether it is stopping and waits for nobody.
    pub is_over: bool,
}

/// The sizes of the cells of the log.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// The position before the first size.
    base: Position,
    /// For each published cell after it, the sum of all sizes up to it.
    sums: VecDeque<u64>,
    /// The sum at the base.
    before: u64,
}

impl Sizes {
    /// The log was moved to a position without the cells before it.
    pub(super) fn restart_at(&mut self, base: Position) {
        *self = Self { base, ..Self::default() };
    }

    fn last(&self) -> Position {
        Position(self.base.0 + self.sums.len() as u64)
    }

    fn total(&self) -> u64 {
        self.sums.back().copied().unwrap_or(self.before)
    }

    /// Counts the cells up to a position.
    fn count(&mut self, log: &Log, transactions: &Transactions, upto: Position) {
        while self.last() < upto {
            let cell = log.cell(Position(self.last().0 + 1));
            let size: u64 = cell.txns.iter().map(|(txn, _)| transactions.size_of(*txn)).sum();
            self.sums.push_back(self.total() + size + CELL_BYTES);
        }
    }

    /// The size of the counted cells after a position; `None` if some of them are forgotten.
    fn after(&self, position: Position) -> Option<u64> {
        let index = position.0.checked_sub(self.base.0)?;
        let upto = match index.checked_sub(1) {
            None => self.before,
            Some(index) => self.sums.get(index as usize).copied().unwrap_or(self.total()),
        };
        Some(self.total() - upto)
    }

    fn forget(&mut self, upto: Position) {
        while self.base < upto {
            self.before = self.sums.pop_front().expect("published cells are counted");
            self.base.0 += 1;
        }
    }
}

impl State {
    /// The state of this replica's log for its peers.
    pub(super) fn kept(&self) -> Kept {
        Kept {
            first: self.log.base(),
            published: self.commit.published,
            done_below: self.coordinator.done_below(),
            replaced_after: self.replaced.map(|it| it.after),
            code: self.code,
            decisions: self.durable_decisions(),
            durable_view: self.durable_view(),
            is_settled: self.stop.as_ref().is_some_and(|stop| stop.is_settled),
            is_quiet: self.is_quiet(),
            is_sealed: self.has_ended(),
            seal: self.seal(),
            accepted: self.last_accepted(),
            is_over: self.stop.as_ref().is_some_and(|stop| stop.is_over),
        }
    }

    /// Whether a transaction is in a cell, or was.
    pub(super) fn is_logged(&self, txn: TxnId) -> bool {
        self.log.contains(txn) || self.done.contains(txn)
    }

    /// Whether a transaction that others report as accepted in time is in the log of a new view,
    /// which begins with this suffix.
    pub(super) fn is_in(&self, suffix: &Suffix, txn: TxnId) -> bool {
        let is_before = self.log.place_of(txn).is_some_and(|place| place <= suffix.after);
        let mut txns = suffix.cells.iter().flat_map(|cell| &cell.txns);
        is_before || self.done.is_committed(txn) || txns.any(|(other, _)| *other == txn)
    }

    /// The position up to which the log may be forgotten.
    fn needed_by_none(&self) -> Position {
        let mut upto = self.commit.published.min(self.saved);
        let most = self.options.behind_bytes;
        for peer in self.replica.peers() {
            let has = self.views.told_by(&self.replica, peer).committed;
            if self.sizes.after(has).is_some_and(|bytes| bytes <= most) {
                upto = upto.min(has);
            }
        }
        if let Some(retained) = self.transfer.least_retained(0) {
            upto = upto.min(Position(retained.0));
        }
        upto
    }

    /// The last position up to `upto` that no hash of the next view needs.
    fn before_hashes(&self, mut upto: Position) -> Position {
        if !self.has_hashes() {
            return upto;
        }
        let since = last_of(self.log.last_version()).before(self.options.kept());
        while upto > self.log.base() && last_of(self.log.version_at(upto)) > since {
            upto.0 -= 1;
        }
        upto
    }

    /// Forgets cells with the transactions in them, and decisions that all replicas have taken.
    pub(super) fn collect(&mut self) {
        let own = self.durable_decisions();
        let told = |peer| self.views.told_by(&self.replica, peer).kept.decisions;
        let taken = self.replica.voting_peers().map(told).fold(own, u64::min);
        // Nodes of other shards may need the last ones. A replica without a vote needs none: its
        // shard has the log.
        let has_begun = |node: NodeId| {
            let has = self.views.told[node.index()].kept.durable_view >= self.views.started;
            self.does_decide(node) || !self.cluster.votes(node) || has
        };
        let have_begun = self.cluster.node_ids().all(has_begun);
        if self.presence.is_ready && self.does_decide(self.node) && have_begun {
            self.views.driver.agreement_mut().trim(taken);
        }
        self.done.raise(self.node, self.coordinator.done_below());
        if let Some(shards) = &mut self.shards {
            shards.collect(&self.done, self.options.behind_bytes);
        }
        let State { sizes, log, transactions, commit, .. } = self;
        sizes.count(log, transactions, commit.published);
        let upto = self.before_hashes(self.needed_by_none());
        if upto > self.log.base() {
            let cells = self.log.forget(upto);
            self.sizes.forget(upto);
            let State { done, transactions, log, .. } = self;
            cells.iter().for_each(|cell| done.note(cell, |txn| transactions.stamp_of(txn)));
            done.close(log.version_at(upto));
            self.drop_bodies(&cells);
            self.foreign = self.foreign.split_off(&upto);
        }
    }

    /// Drops the transactions of cells that are gone, unless they are in another cell or in none.
    pub(super) fn drop_bodies(&mut self, cells: &[Cell]) {
        for (txn, _) in cells.iter().flat_map(|cell| &cell.txns) {
            if self.done.contains(*txn) && !self.log.contains(*txn) {
                self.transactions.remove(*txn);
            }
        }
    }

    /// Drops transactions that are over, and in no cell: they never arrived at a leader.
    pub(super) fn drop_orphans(&mut self) {
        let State { transactions, log, done, fast, incoming, leading, views, .. } = self;
        // Those of logs with which a view begins, or may begin, have to stay.
        let starts = views.logs.first().filter(|_| log.view < views.started);
        let starts = starts.map(|log| Suffix::decode(log).expect("the logs were checked"));
        let starts = starts.iter().flat_map(|log| entries_of(&log.cells)).map(|entry| entry.txn);
        let preparing = views.preparing.iter().flat_map(|it| it.txns());
        let arriving = incoming.txns().chain(starts).chain(preparing);
        let arriving: BTreeSet<TxnId> = arriving.chain(views.prepared.iter().copied()).collect();
        let is_pending = |txn| leading.as_ref().is_some_and(|leading| leading.has_pending(txn));
        transactions.retain(|txn| {
            !done.contains(txn)
                || log.contains(txn)
                || fast.has_unsynced(txn)
                || arriving.contains(&txn)
                || is_pending(txn)
        });
    }
}

impl Tiga {
    /// A node tells of its log and its transactions.
    pub(super) fn on_kept(&mut self, cx: &Cx<'_, Self>, from: NodeId, told: PeerState) {
        let State { done, transfer, log, replica, .. } = &mut self.state;
        done.raise(from, told.kept.done_below);
        let Some(from) = replica.group.member(from) else { return };
        transfer.release_applied(from, &[Bid(told.committed.0)]);
        let is_here = (log.base()..=log.last()).contains(&told.kept.published);
        if is_here {
            transfer.stop_obsolete(from, log.version_at(told.kept.published));
        }
        transfer.note_heard(from, cx.now.at);
    }

    /// Drops transfers to peers that do not return, and the cells kept for them.
    pub(super) fn stop_abandoned(&mut self, cx: &Cx<'_, Self>) {
        let State { transfer, replica, sizes, options, views, log, .. } = &mut self.state;
        // The size of a transfer is multiplied: the peer has to catch up with load.
        let most = options.behind_bytes.saturating_mul(4);
        let is_too_much = |after: &[Bid]| {
            let bytes = after.first().map(|after| sizes.after(Position(after.0)));
            bytes.flatten().is_none_or(|bytes| bytes > most)
        };
        let nodes = replica.topology.node_ids();
        let has_caught_up = |node| views.told_by(replica, node).committed >= log.base();
        let is_member: Vec<bool> = nodes.map(has_caught_up).collect();
        transfer.stop_abandoned(replica, cx.now.at, &is_member, is_too_much);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_sums_from_a_base_on() {
        let mut log = Log::default();
        let cells =
            (1..=6).map(|version| Cell { version: SnapshotVersion(version), txns: Vec::new() });
        let suffix = Suffix { cells: cells.collect(), ..Suffix::default() };
        log.replace(suffix, pangea_core::ids::LogPosition(1));
        let (mut sizes, none) = (Sizes::default(), Transactions::default());
        sizes.count(&log, &none, Position(4));
        let after = |sizes: &Sizes, position| sizes.after(Position(position));
        assert_eq!(after(&sizes, 1), Some(3 * CELL_BYTES));
        assert_eq!(after(&sizes, 4), Some(0));
        assert_eq!(after(&sizes, 9), Some(0));
        sizes.forget(Position(2));
        assert_eq!((after(&sizes, 1), after(&sizes, 2)), (None, Some(2 * CELL_BYTES)));
        sizes.count(&log, &none, Position(6));
        assert_eq!(after(&sizes, 3), Some(3 * CELL_BYTES));
        sizes.restart_at(Position(9));
        assert_eq!((after(&sizes, 8), after(&sizes, 9)), (None, Some(0)));
    }
}
