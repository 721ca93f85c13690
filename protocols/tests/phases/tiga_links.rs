//! Tiga: lost links, and a cluster without load.

use std::collections::BTreeMap;

use pangea_core::ids::NodeId;
use pangea_core::partition::{Partitions, Rule};
use pangea_core::protocol::Protocol as _;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::Outcome;
use pangea_protocols::tiga::{Message, Tiga};

use super::support::words::Transcribed as _;
use super::support::{ClusterOf, Fate};

/// The nodes that a node waits for, and with what they are late.
fn waits_for(cluster: &ClusterOf<Tiga>, id: usize) -> Vec<(NodeId, String)> {
    let status = cluster.nodes[id].brain.as_ref().expect("the node runs").status();
    status.waits_for.into_iter().map(|it| (it.node, it.what)).collect()
}

/// Story: `pangea.replication` showed no durable version with Tiga.
#[test]
fn a_node_knows_which_cells_its_peers_have_on_disk() {
    let mut cluster = ClusterOf::<Tiga>::new(3, Tiga::by_hand());
    let leader = cluster.leader();
    let (late, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let durable = |cluster: &ClusterOf<Tiga>, of: usize| {
        let status = cluster.nodes[leader].brain.as_ref().expect("the node runs").status();
        let counter = |name: &str| status.counters.get(&format!("peer_{name}_{of}")).copied();
        (status.version.0, counter("durable"))
    };
    cluster.call_declared(leader, "put x 1");
    cluster.run_for(1_000);
    let (first, of_late) = durable(&cluster, late);
    assert!(first > 0 && of_late == Some(first), "{of_late:?}");
    cluster.set_syncs(late, false);
    cluster.call_declared(leader, "put x 2");
    cluster.run_for(1_000);
    let (second, of_other) = durable(&cluster, other);
    assert!(second > first && of_other == Some(second), "{of_other:?}");
    assert_eq!(durable(&cluster, late).1, Some(first), "it has the second cell in memory alone");
    assert_eq!(durable(&cluster, leader).1, None, "it is no peer of itself");
}

#[test]
fn a_node_without_a_link_to_its_leader_goes_on() {
    let mut cluster = ClusterOf::<Tiga>::new(3, Tiga::by_hand());
    let leader = cluster.leader();
    let cut = (leader + 1) % 3;
    cluster.rule = Box::new(move |from, to, _| {
        let ends = [from.index(), to.index()];
        if ends.contains(&leader) && ends.contains(&cut) { Fate::Lose } else { Fate::Deliver }
    });
    // Idle nodes report rarely.
    cluster.run_for(3_000);
    let own = cluster.call_declared(cut, "put x 1");
    let others = cluster.call_declared(leader, "put y 1");
    cluster.run_for(200);
    assert!(matches!(cluster.outcome(cut, own), Some(Outcome::Committed { .. })));
    assert!(matches!(cluster.outcome(leader, others), Some(Outcome::Committed { .. })));
    assert_eq!((cluster.everywhere("x"), cluster.everywhere("y")), ("1".into(), "1".into()));
    assert_eq!(cluster.leader(), leader, "it is heard by enough others");
    assert_eq!(waits_for(&cluster, cut), []);
}

#[test]
fn a_node_that_does_not_hear_its_leader_notices_that_as_early_as_under_load_when_it_submits() {
    let mut cluster = ClusterOf::<Tiga>::new(3, Tiga::by_hand());
    cluster.run_for(3_000);
    let leader = cluster.leader();
    let deaf = (leader + 1) % 3;
    cluster.rule = Box::new(move |from, to, _| {
        let is_cut = (from.index(), to.index()) == (leader, deaf);
        if is_cut { Fate::Lose } else { Fate::Deliver }
    });
    let own = cluster.call_declared(deaf, "put x 1");
    cluster.run_for(1_000);
    assert!(matches!(cluster.outcome(deaf, own), Some(Outcome::Committed { .. })));
}

#[test]
fn a_node_names_the_leader_that_it_does_not_hear_and_replicas_that_do_not_have_the_log() {
    let mut cluster = ClusterOf::<Tiga>::new(3, Tiga::by_hand());
    let leader = cluster.leader();
    let (cut, relay) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.rule = Box::new(move |from, to, message| {
        let ends = [from.index(), to.index()];
        let is_handed_on = from.index() == relay
            && matches!(message, Message::Submit { .. } | Message::LogSync { .. });
        let is_cut = ends.contains(&leader) && ends.contains(&cut);
        if is_cut || is_handed_on { Fate::Lose } else { Fate::Deliver }
    });
    // Idle nodes report rarely.
    cluster.run_for(3_000);
    let own = cluster.call_declared(cut, "put x 1");
    cluster.run_for(300);
    assert_eq!(waits_for(&cluster, cut), [], "it has not waited for long");
    cluster.run_for(700);
    let node = |id: usize| NodeId(id as u16);
    assert_eq!(waits_for(&cluster, cut), [(node(leader), "the log".to_owned())]);
    assert_eq!(waits_for(&cluster, leader), []);
    cluster.heal();
    cluster.run_for(1_500);
    assert!(matches!(cluster.outcome(cut, own), Some(Outcome::Committed { .. })));
    assert_eq!(waits_for(&cluster, cut), []);
    [cut, relay].into_iter().for_each(|id| cluster.set_syncs(id, false));
    cluster.call_declared(leader, "put x 2");
    cluster.run_for(1_000);
    let mut both = [cut, relay].map(|id| (node(id), "acknowledgements".to_owned()));
    both.sort();
    assert_eq!(waits_for(&cluster, leader), both);
}

/// Nine nodes without clients once sent each other 1,440 progress reports a second.
#[test]
fn an_idle_cluster_sends_few_messages() {
    const SECONDS: u64 = 10;
    let whole = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(25));
    let topology = whole.divided(Partitions::new(3, Rule::Everywhere));
    let mut cluster = ClusterOf::<Tiga>::not_started_in(topology, Tiga::by_hand());
    cluster.start_all();
    cluster.run_for(5_000);
    cluster.sent.clear();
    cluster.run_for(1_000 * SECONDS);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, _, message) in &cluster.sent {
        let kind = match message {
            Message::Progress { .. } => "progress",
            Message::Agreement { .. } => "agreement",
            _ => "other",
        };
        *counts.entry(kind).or_default() += 1;
    }
    let count = cluster.sent.len() as u64 / SECONDS;
    assert!(count <= 308, "{count} a second, {counts:?}");
}
