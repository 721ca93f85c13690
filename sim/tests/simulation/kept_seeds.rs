//! Seeds of the swarm that have failed, each with the bug.

use pangea_core::protocol::Protocol;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::geogauss::GeoGauss;
use pangea_protocols::minerva::Minerva;
use pangea_sim::{Extent, Settings, drawn, run_swarm};

/// Findings of the swarm. A seed reproduces a run only while the draws from it stay the same.
const OF_MINERVA: &[(u64, &str)] = &[
    (
        531,
        "after a restart, runs of this life did not see those of the former life on the same \
         epoch, and both were valid",
    ),
    (1820, "an upgrade counted as undisturbed, although nodes were not connected yet (simulator)"),
];

const OF_CALVIN: &[(u64, &str)] = &[
    (
        19,
        "a master that was started with another program discarded what it had acknowledged, \
         because agreement had forgotten decisions that only its own log has",
    ),
    (
        49,
        "after a kill and an upgrade, masters of several shards had fixed an epoch under two \
         programs, and none could run it",
    ),
    (
        65,
        "after a kill and an upgrade, several shards had decided an epoch under two programs, and \
         none could run it",
    ),
];

/// With the levels of their transactions.
const OF_GEOGAUSS: &[(u64, &str, &str)] = &[
    (
        390,
        "mixed",
        "two groups of transactions that were tried again in turn each read the writes of the \
         other one before it had lost, and lost for ever",
    ),
    (
        579,
        "snapshot-isolation",
        "numbers without batches in a view that a replaced node did not know yet counted as \
         batches that it had lost",
    ),
    (
        50_659,
        "read-committed",
        "nodes stopped in order, one after the other, and the first one told its operator to go \
         back to the former program, while it got a checkpoint of a peer",
    ),
];

fn do_not_fail<P: Protocol>(findings: &[(u64, &str)]) {
    for (seed, what) in findings {
        does_not_fail::<P>(*seed, &Settings::default(), what);
    }
}

fn does_not_fail<P: Protocol>(seed: u64, given: &Settings, what: &str) {
    let extent = Extent { seeds: seed..seed + 1, time: None, threads: 1, is_twice: true };
    let beside = |seed| {
        let (settings, options) = drawn::<P>(seed);
        (given.beside_drawn(settings), options)
    };
    let summary = run_swarm::<P>(extent, &beside, &mut |_, _| {}).unwrap();
    assert!(summary.failures.is_empty(), "{what}: {summary}");
}

#[test]
fn seeds_that_have_failed_do_not_fail_again() {
    do_not_fail::<Minerva>(OF_MINERVA);
    do_not_fail::<Calvin>(OF_CALVIN);
    for (seed, levels, what) in OF_GEOGAUSS {
        let levels = levels.parse().expect("these are levels");
        let given = Settings { given_levels: Some(levels), ..Settings::default() };
        does_not_fail::<GeoGauss>(*seed, &given, what);
    }
}
