//! The choice of the leaders of a view: one replica of each shard, all in one region if possible,
//! so that they agree quickly (§3.8).

use std::cmp::Reverse;

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::topology::Topology;

use super::log::{Position, ViewNumber};

/// How well a replica would lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fitness {
    /// Whether it is not a leader that has failed in the present view.
    pub is_sound: bool,
    /// The view of its log, and the position of its last cell.
    pub last: (ViewNumber, Position),
}

/// Chooses the leaders, in the order of their shards. `fitness` is `None` for a replica that can't
/// lead. Returns `None` if a shard has no other.
///
/// The leader of the first shard comes first: it is in a region with sound replicas of many shards.
/// The others are in its region if they can be. Present leaders stay, if nothing else matters.
pub(super) fn place(
    topology: &Topology,
    present: &[NodeId],
    fitness: impl Fn(NodeId) -> Option<Fitness>,
) -> Option<Vec<NodeId>> {
    let region = |node: NodeId| topology.nodes[node.index()].region;
    let shard = |node: NodeId| topology.nodes[node.index()].shard;
    let is_sound = |node: &NodeId| fitness(*node).is_some_and(|fit| fit.is_sound);
    let beside = |node: NodeId| {
        let others = topology.node_ids().filter(|it| region(*it) == region(node) && is_sound(it));
        others.count()
    };
    let mut leaders: Vec<NodeId> = Vec::new();
    for of in (0..topology.partitions.shards()).map(ShardId) {
        let first = leaders.first().copied();
        let rank = |node: NodeId| {
            let Fitness { is_sound, last } = fitness(node)?;
            let company = match first {
                Some(first) => usize::from(region(first) == region(node)),
                None => beside(node),
            };
            Some((is_sound, company, present.contains(&node), last, Reverse(node)))
        };
        let fit = topology.node_ids().filter(|node| shard(*node) == of);
        let best = fit.filter_map(|node| Some((rank(node)?, node))).max()?;
        leaders.push(best.1);
    }
    Some(leaders)
}

#[cfg(test)]
mod tests {
    use pangea_core::partition::{Partitions, Rule};
    use pangea_core::time::Span;

    use super::*;

    /// Nodes 0, 2, 4 have shard 0, and 1, 3, 5 have shard 1.
    fn two_shards() -> Topology {
        let whole = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        whole.divided(Partitions::new(2, Rule::Everywhere))
    }

    fn sound(position: u64) -> Option<Fitness> {
        Some(Fitness { is_sound: true, last: (ViewNumber(1), Position(position)) })
    }

    #[test]
    fn leaders_are_together_where_all_shards_have_a_sound_replica() {
        let topology = two_shards();
        let place = |present: &[NodeId], fitness: &dyn Fn(NodeId) -> Option<Fitness>| {
            place(&topology, present, fitness).map(|all| all.iter().map(|it| it.0).collect())
        };
        let is = |leaders: &[u16]| Some(leaders.to_vec());
        assert_eq!(place(&[], &|_| sound(0)), is(&[0, 1]));
        let present = [NodeId(2), NodeId(3)];
        assert_eq!(place(&present, &|_| sound(0)), is(&[2, 3]), "they stay");
        let without = |lost: u16| move |node: NodeId| sound(0).filter(|_| node.0 != lost);
        assert_eq!(place(&present, &without(3)), is(&[0, 1]), "both move");
        let one_each = |node: NodeId| sound(0).filter(|_| [0, 3].contains(&node.0));
        assert_eq!(place(&present, &one_each), is(&[0, 3]), "apart is better than nothing");
        let of_one = |node: NodeId| sound(0).filter(|_| node.0.is_multiple_of(2));
        assert_eq!(place(&present, &of_one), None, "a shard without a replica");
    }

    #[test]
    fn of_equal_replicas_the_one_with_the_longest_log_leads_and_a_failed_leader_is_the_last_resort()
    {
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
        let place =
            |fitness: &dyn Fn(NodeId) -> Option<Fitness>| place(&topology, &[NodeId(0)], fitness);
        let failed = Some(Fitness { is_sound: false, last: (ViewNumber(1), Position(9)) });
        let of = |node: NodeId| if node.0 == 0 { failed } else { sound(node.0.into()) };
        assert_eq!(place(&of), Some(vec![NodeId(2)]));
        assert_eq!(place(&|node| of(node).filter(|_| node.0 == 0)), Some(vec![NodeId(0)]));
    }
}
