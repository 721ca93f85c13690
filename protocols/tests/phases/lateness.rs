//! Programs that keep a replica busy, and settings that change between two runs.

use pangea_core::txn::{Outcome, SqlState};
use pangea_protocols::geogauss::{GeoGauss, Options};

use super::support::{ClusterOf, Fate};

/// Story: a program that ran for longer than a silent member is waited for was run again by its
/// node alone, which was removed once more, and so on for ever.
#[test]
fn a_program_that_has_made_its_replica_late_is_run_by_all() {
    let mut cluster = ClusterOf::<GeoGauss>::new(3, Options::default());
    let busy = (cluster.leader() + 1) % 3;
    let ticket = cluster.call(busy, "put x 1");
    // Its step took two seconds. The others did not hear of the program in that time.
    let timers = std::mem::take(&mut cluster.nodes[busy].timers);
    cluster.on_words(move |from, to, _| match from == busy || to == busy {
        true => Fate::HoldBack,
        false => Fate::Deliver,
    });
    cluster.run_for(2_000);
    assert_eq!(cluster.members(cluster.leader()), 2);
    cluster.nodes[busy].timers.extend(timers);
    cluster.run_for(1);
    cluster.heal();
    cluster.run_for(3_000);
    assert_eq!(cluster.mark(busy, "geogauss.in_order"), 1);
    assert!(matches!(cluster.outcome(busy, ticket), Some(Outcome::Committed { .. })));
    assert_eq!(cluster.everywhere("x"), "1");
}

/// Story: all nodes were killed and started with another length of epochs. They refused the first
/// epoch of the earlier run, but had already created batches of their own, which they refused when
/// they had got the earlier settings back.
#[test]
fn nodes_with_other_settings_create_no_batches_before_those_of_the_earlier_run_are_merged() {
    let mut cluster = ClusterOf::<GeoGauss>::new(3, Options::default());
    cluster.on_words(|_, _, words| match words.starts_with("Ack") {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    let call_all =
        |cluster: &mut ClusterOf<GeoGauss>| [0, 1, 2].map(|id| (id, cluster.call(id, "put x 1")));
    call_all(&mut cluster);
    cluster.run_for(50);
    assert_eq!(cluster.value(0, "x"), "");
    let restart = |cluster: &mut ClusterOf<GeoGauss>, epoch_ms| {
        (0..3).for_each(|id| cluster.crash(id));
        cluster.options = Options { epoch_ms, ..Options::default() };
        cluster.heal();
        let tickets: Vec<_> = (0..3)
            .map(|id| {
                cluster.start(id);
                (id, cluster.call(id, "put y 1"))
            })
            .collect();
        cluster.run_for(1_000);
        tickets
    };
    for (id, ticket) in restart(&mut cluster, 20) {
        match cluster.outcome(id, ticket) {
            Some(Outcome::Aborted(abort)) => assert_eq!(abort.code, SqlState::CANNOT_CONNECT_NOW),
            other => panic!("node {id}: {other:?}"),
        }
    }
    assert_eq!(cluster.value(0, "x"), "");
    for (id, ticket) in restart(&mut cluster, 10) {
        let outcome = cluster.outcome(id, ticket);
        assert!(matches!(outcome, Some(Outcome::Committed { .. })), "node {id}: {outcome:?}");
    }
    assert_eq!((cluster.everywhere("x"), cluster.everywhere("y")), ("1".into(), "1".into()));
}
