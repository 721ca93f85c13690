//! Mako: lost links between nodes that others hear.

use pangea_core::txn::Outcome;
use pangea_protocols::mako::Mako;

use super::support::words::Transcribed as _;
use super::support::{ClusterOf, Fate};

/// Loses all messages between two nodes, or those in one direction.
fn cut(cluster: &mut ClusterOf<Mako>, (one, other): (usize, usize), is_both: bool) {
    cluster.rule = Box::new(move |from, to, _| {
        let ends = (from.index(), to.index());
        match ends == (one, other) || is_both && ends == (other, one) {
            true => Fate::Lose,
            false => Fate::Deliver,
        }
    });
}

/// Both hear the third node, so that leads, and the clients of all nodes are answered.
#[test]
fn a_leader_that_some_node_does_not_hear_makes_way_for_one_that_all_hear() {
    for (is_both, away) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let mut cluster = ClusterOf::<Mako>::new(3, Mako::by_hand());
        let leader = cluster.leader();
        let (deaf, third) = ((leader + away) % 3, (leader + 3 - away) % 3);
        cut(&mut cluster, (leader, deaf), is_both);
        let own = cluster.call(deaf, "put x 1");
        let others = cluster.call(leader, "put y 1");
        cluster.run_for(6_000);
        assert!(matches!(cluster.outcome(deaf, own), Some(Outcome::Committed { .. })));
        assert!(matches!(cluster.outcome(leader, others), Some(Outcome::Committed { .. })));
        assert_eq!((cluster.everywhere("x"), cluster.everywhere("y")), ("1".into(), "1".into()));
        assert_eq!(cluster.leader(), third);
        let epoch = cluster.counter(third, "epoch");
        cluster.run_for(20_000);
        assert_eq!(cluster.counter(third, "epoch"), epoch, "nobody is better placed");
    }
}

/// A node that has died has no links, so the leader stays.
#[test]
fn a_follower_that_dies_changes_no_leader() {
    let mut cluster = ClusterOf::<Mako>::new(3, Mako::by_hand());
    let (leader, epoch) = (cluster.leader(), cluster.counter(0, "epoch"));
    cluster.crash((leader + 1) % 3);
    cluster.run_for(20_000);
    assert_eq!((cluster.leader(), cluster.counter(leader, "epoch")), (leader, epoch));
}
