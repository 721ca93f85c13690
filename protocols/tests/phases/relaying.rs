//! Members that cannot reach each other, but a third one.

use pangea_protocols::geogauss::{GeoGauss, Options};

use super::support::ClusterOf;

/// The leader reaches both, so it removes nobody. Each tells what it has heard from the others, so
/// that an epoch ends for the two as well.
#[test]
fn two_members_of_geogauss_that_cannot_reach_each_other_go_on() {
    let mut cluster = ClusterOf::<GeoGauss>::new(3, Options::default());
    cluster.run_for(1_000);
    let leader = cluster.leader();
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.disconnect(one, other);
    for round in 1..10 {
        let tickets = [one, leader].map(|id| (id, cluster.call(id, "add x 1")));
        cluster.run_for(500);
        for (id, ticket) in tickets {
            assert!(cluster.outcome(id, ticket).is_some(), "node {id} waits in round {round}");
        }
    }
    assert_eq!(cluster.members(leader), 3);
    assert!(cluster.mark(one, "geogauss.end_relayed") > 0);
    assert_eq!(cluster.everywhere("x"), "18");
}
