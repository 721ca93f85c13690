//! Mako §6.1: shards that share entries of clocks.

use pangea_core::partition::{Partitions, Rule};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::Outcome;
use pangea_protocols::mako::Mako;

use super::support::ClusterOf;
use super::support::words::Transcribed as _;
use super::upgrade::stop_in_order;

/// Two shards: keys from "m" on are in the second one. Each of three regions has a node of both.
pub(super) fn divided(clock_groups: u16) -> ClusterOf<Mako> {
    let partitions = Partitions::new(2, Rule::Ranges { starts: vec![b"m".to_vec()] });
    let topology = Topology::one_node_per_region("test", &["a", "b", "c"], Span::from_ms(1));
    let mut options = Mako::by_hand();
    options.clock_groups = clock_groups;
    let mut cluster = ClusterOf::not_started_in(topology.divided(partitions), options);
    cluster.start_all();
    cluster
}

/// Whether a script commits within a second.
pub(super) fn is_committed(cluster: &mut ClusterOf<Mako>, id: usize, script: &str) -> bool {
    let ticket = cluster.call(id, script);
    cluster.run_for(1_000);
    matches!(cluster.outcome(id, ticket), Some(Outcome::Committed { .. }))
}

/// Starts all nodes with other groups, and returns the reasons of those that do not go on.
fn start_with(cluster: &mut ClusterOf<Mako>, clock_groups: u16) -> Vec<String> {
    cluster.options.clock_groups = clock_groups;
    for id in 0..cluster.nodes.len() {
        cluster.nodes[id].stopped = None;
        cluster.start(id);
    }
    cluster.run_for(3_000);
    cluster.nodes.iter().filter_map(|node| node.stopped.clone()).collect()
}

fn crash_all(cluster: &mut ClusterOf<Mako>) {
    (0..cluster.nodes.len()).for_each(|id| cluster.crash(id));
}

/// Mako §6.1: the clocks in a log name groups of shards. With other groups they could name fewer
/// shards, and what a client was told could become void.
#[test]
fn a_log_with_clocks_is_not_read_with_other_groups() {
    for (before, after) in [(0, 1), (1, 0)] {
        let mut cluster = divided(before);
        assert!(is_committed(&mut cluster, 0, "put a 1; put x 1"));
        crash_all(&mut cluster);
        let refused = start_with(&mut cluster, after);
        let says = |why: &String| why.contains("mako.clock_groups") && why.contains("again");
        assert!(refused.len() >= 4 && refused.iter().all(says), "{refused:?}");
        crash_all(&mut cluster);
        assert_eq!(start_with(&mut cluster, before), Vec::<String>::new());
        assert!(is_committed(&mut cluster, 0, "put b 2; put y 2"));
        let values =
            [(0, "a"), (1, "x"), (0, "b"), (1, "y")].map(|(id, key)| cluster.value(id, key));
        assert_eq!(values, ["1", "1", "2", "2"]);
    }
}

/// After a stop of all nodes in order a log has no clock.
#[test]
fn groups_change_when_all_nodes_have_stopped_in_order() {
    let mut cluster = divided(0);
    assert!(is_committed(&mut cluster, 0, "put a 1; put x 1"));
    (0..6).for_each(|id| stop_in_order(&mut cluster, id));
    assert_eq!(start_with(&mut cluster, 1), Vec::<String>::new());
    assert!(is_committed(&mut cluster, 1, "put a 2; put x 2"));
    crash_all(&mut cluster);
    assert!(start_with(&mut cluster, 0).len() >= 4, "its clocks have one entry");
    crash_all(&mut cluster);
    assert_eq!(start_with(&mut cluster, 1), Vec::<String>::new());
    assert_eq!((cluster.value(0, "a"), cluster.value(1, "x")), ("2".into(), "2".into()));
}
