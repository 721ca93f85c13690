//! The nodes that this one waits for: operators and clients are told their names.
//!
//! | missing | from |
//! |---|---|
//! | `the log` | a leader that this node does not hear, or that has not closed the log yet |
//! | `acknowledgements` | replicas that do not have the log on their disks, if they are too few |

use pangea_core::ids::NodeId;
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
    fn awaited(&self) -> Vec<(NodeId, &'static str)> {
        let Some(leader) = self.leader() else { return Vec::new() };
        if leader != self.replica.me {
            return vec![(leader, "the log")];
        }
        let lacks = |node: &NodeId| match self.role {
            Role::Leading(_) => {
                let acked = self.commit.acked[node.index()];
                acked.is_none_or(|acked| acked <= self.commit.committed)
            }
            Role::Following | Role::Closing(_) => self.commit.acked[node.index()].is_none(),
        };
        let late = self.replica.voting_peers().filter(lacks);
        late.map(|node| (node, "acknowledgements")).collect()
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
