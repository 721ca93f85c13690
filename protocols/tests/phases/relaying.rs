//! Members that cannot hear each other, but a third one.

use pangea_protocols::geogauss::{GeoGauss, Options};

use super::support::{ClusterOf, Fate};

/// Each region commits within 100 ms, and nobody is removed.
fn go_on(cluster: &mut ClusterOf<GeoGauss>, rounds: u64) {
    for round in 0..rounds {
        let tickets = [0, 1, 2].map(|id| (id, cluster.call(id, "add x 1")));
        cluster.run_for(100);
        for (id, ticket) in tickets {
            assert!(cluster.outcome(id, ticket).is_some(), "node {id} waits in round {round}");
        }
    }
    let members = [0, 1, 2].map(|id| cluster.members(id));
    assert_eq!(members, [3, 3, 3]);
}

/// The third one reaches both. It hands on what they send, so that an epoch ends for both as well.
#[test]
fn two_members_of_geogauss_that_cannot_reach_each_other_go_on() {
    for first in 0..3 {
        let mut cluster = ClusterOf::<GeoGauss>::new(3, Options::default());
        let (one, other) = (first, (first + 1) % 3);
        cluster.disconnect(one, other);
        go_on(&mut cluster, 30);
        assert!(cluster.mark(one, "geogauss.end_relayed") > 0);
        assert!(cluster.mark((first + 2) % 3, "geogauss.relays") > 0);
        cluster.run_for(200);
        assert_eq!(cluster.everywhere("x"), "90");
        cluster.reconnect(one, other);
        go_on(&mut cluster, 10);
    }
}

/// Story: messages between two regions vanished without an end of the connection, which was noticed
/// when batches were missing for seconds. Commits of both took half a second from then on.
#[test]
fn a_link_that_loses_all_messages_stops_nobody_for_long() {
    for first in 0..3 {
        let mut cluster = ClusterOf::<GeoGauss>::new(3, Options::default());
        go_on(&mut cluster, 3);
        let (one, other) = (first, (first + 1) % 3);
        cluster.on_words(move |from, to, _| match [from, to] {
            ends if ends == [one, other] || ends == [other, one] => Fate::Lose,
            _ => Fate::Deliver,
        });
        let tickets = [0, 1, 2].map(|id| (id, cluster.call(id, "add x 1")));
        cluster.run_for(800);
        for (id, ticket) in tickets {
            assert!(cluster.outcome(id, ticket).is_some(), "node {id} waits");
        }
        go_on(&mut cluster, 30);
        cluster.heal();
        cluster.reconnect(one, other);
        go_on(&mut cluster, 10);
        cluster.run_for(200);
        assert_eq!(cluster.everywhere("x"), "132");
    }
}
