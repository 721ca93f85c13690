//! Seeds of the swarm that have failed, each with what was wrong.

use pangea_protocols::minerva::Minerva;
use pangea_sim::{Extent, drawn, run_swarm};

/// What the swarm found. A seed means the same run only while what is drawn from it does.
const SEEDS: &[(u64, &str)] =
    &[(649, "what a restart owes was added to a checkpoint that is due whatever comes")];

#[test]
fn seeds_that_have_failed_do_not_fail_again() {
    for &(seed, what) in SEEDS {
        let extent = Extent { seeds: seed..seed + 1, time: None, threads: 1, is_twice: true };
        let summary = run_swarm::<Minerva>(extent, &drawn::<Minerva>, &mut |_, _| {}).unwrap();
        assert!(summary.failures.is_empty(), "{what}: {summary}");
    }
}
