//! The nodes that this one waits for: operators and clients are told their names.
//!
//! | missing | from |
//! |---|---|
//! | `the log` | a leader that this node does not hear, or that has not got its transactions |
//! | `reports` | replicas that have not told a new leader their logs |
//! | `transactions` | the coordinators of transactions in the log that are not here |
//! | `acknowledgements` | replicas that do not have the log on their disks, if they are too few |
//! | `commits` | the sources in other shards, which are not committed as far |
//! | `rows` | the same, if cells can't run without their rows |
//! | `promises` | leaders of other shards that have not promised that nothing more comes |

use std::collections::BTreeSet;

use pangea_core::ids::{NodeId, TxnId};
use pangea_core::protocol::{Cx, WaitsFor};
use pangea_core::time::{Span, Timestamp};

use super::Tiga;
use super::commit::Commit;
use super::log::Position;
use super::state::State;

/// A node is late if this one has waited for so long, plus two of the longest round trips.
const PATIENCE: Span = Span::from_ms(500);

/// What this node waits for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The published position and the end of the log, and since when they are the same although
    /// something is to be done.
    log: (Position, Position, Option<Timestamp>),
    /// The oldest transaction in flight, and since when it has been that.
    pub oldest: Option<(TxnId, Timestamp)>,
    /// Since when strict reads or look-ups have waited without a pause.
    reads: Option<Timestamp>,
    /// The late nodes.
    pub late: Vec<WaitsFor>,
}

impl State {
    /// The last position that a replica of this shard has in its log, as far as this one knows.
    fn last_known(&self) -> Position {
        let told = self.replica.group.nodes().iter().map(|node| self.told_by(*node).last.1);
        told.max().unwrap_or_default()
    }

    /// The nodes from which something is missing, and what.
    fn awaited(&self, now: Timestamp) -> Vec<(NodeId, &'static str)> {
        let Commit { committed, executed, .. } = self.commit;
        let leaders = self.views.view.leaders.iter().copied().filter(|it| *it != self.node);
        let group = || self.replica.voting_peers().map(|peer| self.replica.node(peer));
        let unheard = leaders.clone().filter(|leader| !self.is_heard(*leader, now));
        let unheard: Vec<_> = unheard.map(|leader| (leader, "the log")).collect();
        if !unheard.is_empty() {
            return unheard;
        }
        if !self.is_normal() && self.is_leader() {
            let has = |node: NodeId| {
                let member = self.replica.group.member(node);
                member.is_some_and(|member| self.views.reports.contains_key(&member))
            };
            let is_chosen = !self.views.chosen.is_empty();
            let lacking = group().filter(|node| !is_chosen && !has(*node));
            return lacking.map(|node| (node, "reports")).collect();
        }
        if !self.is_normal() {
            return self.leader().map(|leader| (leader, "the log")).into_iter().collect();
        }
        let coordinators: BTreeSet<NodeId> =
            self.missing().iter().map(|txn| txn.node()).filter(|it| *it != self.node).collect();
        if !coordinators.is_empty() {
            return coordinators.into_iter().map(|node| (node, "transactions")).collect();
        }
        if committed < self.log.last() {
            let lacks = |node: &NodeId| {
                let member = self.replica.group.member(*node);
                let synced = member.map(|it| self.commit.synced_of(it, self.log.view));
                synced.is_some_and(|synced| synced <= committed)
            };
            return group().filter(lacks).map(|node| (node, "acknowledgements")).collect();
        }
        if executed < committed
            && let Some(shards) = &self.shards
        {
            return shards.awaited(&self.log, self.log.version_at(Position(executed.0 + 1)));
        }
        let what = if self.is_leader() { "promises" } else { "the log" };
        leaders.map(|leader| (leader, what)).collect()
    }

    /// Whether something is to be done for which this node may have to wait: its own transactions
    /// and reads, or cells that it or its peers have.
    pub(super) fn has_open_work(&self) -> bool {
        let is_behind = self.commit.published < self.last_known();
        let has_own = !self.coordinator.in_flight.is_empty() || !self.fresh.is_idle();
        let looks_up = self.shards.as_ref().is_some_and(|shards| shards.lookups.len() > 0);
        is_behind || has_own || looks_up
    }
}

impl Tiga {
    /// Finds the nodes for which this one has waited for long.
    pub(super) fn note_waits(&mut self, cx: &mut Cx<'_, Self>) {
        let (state, now) = (&self.state, cx.now.at);
        let patience = Span::from_us(PATIENCE.us + 2 * state.cluster.round_trip_max().us);
        let (published, last) = (state.commit.published, state.log.last());
        let Waits { log, oldest, reads, .. } = &state.waits;
        let is_open = state.has_open_work();
        let since = log.2.filter(|_| (log.0, log.1) == (published, last)).unwrap_or(now);
        let log = (published, last, is_open.then_some(since));
        let first = state.coordinator.in_flight.keys().next().copied();
        let oldest = first.map(|first| match oldest {
            Some((txn, since)) if *txn == first => (first, *since),
            _ => (first, now),
        });
        let looks_up = state.shards.as_ref().is_some_and(|shards| shards.lookups.len() > 0);
        let is_reading = !state.fresh.is_idle() || looks_up;
        let reads = is_reading.then(|| reads.unwrap_or(now));
        let is_over = |since: Timestamp| now.since(since) >= patience;
        let since = oldest.map(|(_, since)| since).into_iter().chain(reads).chain(log.2);
        let is_late = is_open && since.into_iter().any(is_over);
        let cells = state.last_known().0.saturating_sub(published.0).max(1);
        let of =
            |(node, what): (NodeId, &str)| WaitsFor { node, what: what.to_owned(), epochs: cells };
        let late: Vec<WaitsFor> = match is_late {
            true => state.awaited(now).into_iter().map(of).collect(),
            false => Vec::new(),
        };
        if !late.is_empty() && state.waits.late.is_empty() {
            cx.mark("tiga.waits_for_node");
        }
        self.state.waits = Waits { log, oldest, reads, late };
    }
}
