//! Seeds of the swarm that have failed, each with the bug.

use pangea_protocols::minerva::Minerva;
use pangea_sim::{Extent, drawn, run_swarm};

/// Findings of the swarm. A seed reproduces a run only while the draws from it stay the same.
const SEEDS: &[(u64, &str)] =
    &[(649, "work owed by a restart was added to a checkpoint that was due anyway")];

#[test]
fn seeds_that_have_failed_do_not_fail_again() {
    for &(seed, what) in SEEDS {
        let extent = Extent { seeds: seed..seed + 1, time: None, threads: 1, is_twice: true };
        let summary = run_swarm::<Minerva>(extent, &drawn::<Minerva>, &mut |_, _| {}).unwrap();
        assert!(summary.failures.is_empty(), "{what}: {summary}");
    }
}
