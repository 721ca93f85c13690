//! The nodes that this one waits for: operators and clients are told their names.
//!
//! | missing | from |
//! |---|---|
//! | `the log` | a leader that this node does not hear, or that has not closed the log yet |
//! | `acknowledgements` | replicas that do not have the log on their disks, if they are too few |
//! | `outcomes` | the leader of another shard, which coordinates a transaction of this node |
//! | `answers` | leaders of other shards, for transactions that this leader coordinates |
//! | `watermarks` | leaders of shards whose logs are not replicated as far as this one's |

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::protocol::{Cx, WaitsFor};
use pangea_core::time::{Span, Timestamp};

use super::Mako;
use super::state::{Role, State};
use super::versions::count_of;

/// A node is late if this one has waited for so long, plus two of the longest round trips.
const PATIENCE: Span = Span::from_ms(500);

/// The late nodes, and since when the first transaction has waited.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The number of the first transaction in flight, and since when it is that.
    first: Option<(u64, Timestamp)>,
    /// The late nodes.
    pub late: Vec<WaitsFor>,
}

impl State {
    /// The nodes that something is missing from, and what it is.
    fn awaited(&self) -> Vec<(NodeId, &'static str)> {
        let home = self.origin.in_flight.values().next().map(|first| first.home);
        match (&self.shards, home) {
            (Some(shards), Some(home)) if home != shards.own => {
                shards.leader_of(home).map(|leader| (leader, "outcomes")).into_iter().collect()
            }
            _ => self.awaited_here(),
        }
    }

    /// The same, for a transaction that the leader of this shard executes or coordinates.
    fn awaited_here(&self) -> Vec<(NodeId, &'static str)> {
        let Some(leader) = self.leader() else { return Vec::new() };
        if leader != self.replica.me {
            return vec![(self.replica.node(leader), "the log")];
        }
        if matches!(self.role, Role::Leading(_)) && self.commit.committed == self.log.last() {
            return self.awaited_of_others();
        }
        let lacks = |node: &NodeId| match self.role {
            Role::Leading(_) => {
                let acked = self.commit.acked[node.index()];
                acked.is_none_or(|acked| acked <= self.commit.committed)
            }
            Role::Following | Role::Closing(_) => self.commit.acked[node.index()].is_none(),
        };
        let late = self.replica.voting_peers().filter(lacks);
        late.map(|node| (self.replica.node(node), "acknowledgements")).collect()
    }

    /// The leaders of other shards that a leader waits for whose own log is replicated.
    fn awaited_of_others(&self) -> Vec<(NodeId, &'static str)> {
        let (Role::Leading(leading), Some(shards)) = (&self.role, &self.shards) else {
            return Vec::new();
        };
        let leader = |shard: ShardId| shards.leader_of(shard);
        let asked = leading.over.awaited().into_iter().filter_map(leader);
        let asked: Vec<_> = asked.map(|node| (node, "answers")).collect();
        if !asked.is_empty() {
            return asked;
        }
        let behind = shards.behind().into_iter().filter_map(leader);
        behind.map(|node| (node, "watermarks")).collect()
    }
}

impl Mako {
    /// Finds the nodes for which this one has waited for long.
    pub(super) fn note_waits(&mut self, cx: &mut Cx<'_, Self>) {
        let State { waits, origin, commit, log, replica, .. } = &self.state;
        let patience = PATIENCE.us + 2 * replica.topology.round_trip_max().us;
        let first = origin.in_flight.keys().next().map(|txn| txn.sequence());
        let first = first.map(|first| match waits.first {
            Some((before, since)) if before == first => (first, since),
            _ => (first, cx.now.at),
        });
        let is_late = first.is_some_and(|(_, since)| cx.now.at.since(since).us >= patience);
        let epochs = count_of(log.last()).saturating_sub(count_of(commit.committed)).max(1);
        let of = |(node, what): (NodeId, &str)| WaitsFor { node, what: what.to_owned(), epochs };
        let late: Vec<WaitsFor> = match is_late {
            true => self.state.awaited().into_iter().map(of).collect(),
            false => Vec::new(),
        };
        if !late.is_empty() && self.state.waits.late.is_empty() {
            cx.mark("mako.waits_for_node");
        }
        self.state.waits = Waits { first, late };
    }
}
