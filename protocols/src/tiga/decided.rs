//! The values that agreement decides about views (§4).

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::NodeId;
use pangea_core::topology::Topology;
use serde::{Deserialize, Serialize};

use super::log::{Suffix, ViewNumber};
use crate::messages::NUMBER_MAX;
use crate::streams::number;

/// A decision of agreement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decided {
    /// A view.
    View {
        /// Its number.
        number: u64,
        /// The leaders of the shards.
        leaders: Vec<NodeId>,
        /// Whether they release transactions before they agree (§3.8).
        is_detective: bool,
    },
    /// The logs with which a view begins. They count if no later view was decided before them.
    Start {
        /// The number of the view.
        number: u64,
        /// The view of the logs that they continue.
        base: u64,
        /// The ends of the logs, encoded, in the order of the shards.
        logs: Vec<Vec<u8>>,
    },
}

/// The view that a replica follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub number: ViewNumber,
    /// The leaders of the shards, by their nodes.
    pub leaders: Vec<NodeId>,
    /// Whether they release transactions before they agree (§3.8).
    pub is_detective: bool,
}

impl View {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.number.0);
        out.put_varint(self.leaders.len() as u64);
        self.leaders.iter().for_each(|leader| out.put_u16(leader.0));
        out.put_u8(u8::from(self.is_detective));
    }

    /// Decodes the bytes that [`View::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = ViewNumber(number(from, "view")?);
        let leaders = (0..from.count("view")?).map(|_| Ok(NodeId(from.u16("view")?)));
        let leaders = leaders.collect::<Result<_, DecodeError>>()?;
        Ok(Self { number, leaders, is_detective: from.u8("view")? == 1 })
    }

    /// Whether the nodes of a cluster can have this view: each shard has a leader.
    pub(super) fn is_sound(&self, cluster: &Topology) -> bool {
        let is_of = |(shard, node): (usize, &NodeId)| {
            let place = cluster.nodes.get(node.index());
            place.is_some_and(|place| usize::from(place.shard.0) == shard) && cluster.votes(*node)
        };
        let shards = usize::from(cluster.partitions.shards());
        let is_number = (1..=NUMBER_MAX).contains(&self.number.0);
        is_number && self.leaders.len() == shards && self.leaders.iter().enumerate().all(is_of)
    }
}

impl Decided {
    /// Whether the replicas of some cluster can have decided this.
    pub(super) fn is_plausible(&self) -> bool {
        match self {
            Self::View { number, .. } => (1..=NUMBER_MAX).contains(number),
            Self::Start { logs, .. } => logs.iter().all(|log| Suffix::decode(log).is_ok()),
        }
    }

    /// Whether the replicas of a cluster can have decided this.
    pub(super) fn is_sound(&self, cluster: &Topology) -> bool {
        match self {
            Self::View { number, leaders, is_detective } => {
                let (number, leaders) = (ViewNumber(*number), leaders.clone());
                View { number, leaders, is_detective: *is_detective }.is_sound(cluster)
            }
            Self::Start { number, base, logs } => {
                let is_log = |log: &Vec<u8>| {
                    Suffix::decode(log).is_ok_and(|suffix| suffix.view.0 == *number)
                };
                let shards = usize::from(cluster.partitions.shards());
                base < number && logs.len() == shards && logs.iter().all(is_log)
            }
        }
    }
}
