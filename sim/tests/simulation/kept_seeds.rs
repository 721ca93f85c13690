//! Seeds of the swarm that have failed, each with the bug.

use pangea_protocols::calvin::Calvin;
use pangea_sim::{Extent, drawn, run_swarm};

/// Findings of the swarm. A seed reproduces a run only while the draws from it stay the same.
const OF_CALVIN: &[(u64, &str)] = &[(
    19,
    "a master that was started with another program discarded what it had acknowledged, because \
     agreement had forgotten decisions that only its own log has",
)];

#[test]
fn seeds_that_have_failed_do_not_fail_again() {
    for &(seed, what) in OF_CALVIN {
        let extent = Extent { seeds: seed..seed + 1, time: None, threads: 1, is_twice: true };
        let summary = run_swarm::<Calvin>(extent, &drawn::<Calvin>, &mut |_, _| {}).unwrap();
        assert!(summary.failures.is_empty(), "{what}: {summary}");
    }
}
