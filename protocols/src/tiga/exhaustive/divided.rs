//! Walks of the replicas of several shards with the fast path (§3.4, §3.8), through failures of
//! leaders, restarts and several views, in a drawn order of events.
//!
//! Each answer to a client, and each snapshot of a reader, must be in the logs of all later views,
//! and nothing that began after an answer may be before it. Replicas accept, reply, promise and
//! recover by the code under test. Their messages are written here: any of them may be late, come
//! in any order, or be lost with a leader.

mod replicas;
mod world;

use super::IS_LARGE;
use world::{Case, Seen, walk};

/// The first walk that finds something, and what is known of those before.
fn walks(case: Case, seeds: u64) -> (Seen, Option<String>) {
    let mut seen = Seen::default();
    for seed in 0..seeds {
        if let Err(what) = walk(case, seed, &mut seen) {
            return (seen, Some(format!("seed {seed}: {what}")));
        }
    }
    (seen, None)
}

const CASES: [Case; 3] = [
    Case { replicas: 3, shards: 2, txns: 3 },
    Case { replicas: 3, shards: 4, txns: 2 },
    Case { replicas: 5, shards: 3, txns: 3 },
];

#[test]
fn nothing_that_is_answered_over_several_shards_is_lost_or_overtaken() {
    for case in CASES {
        let (seen, found) = walks(case, if IS_LARGE { 1_000_000 } else { 20_000 });
        println!("{case:?}: {seen:?}");
        assert_eq!(found, None, "{case:?}");
        let least = seen.fast.min(seen.by_logs).min(seen.recovered).min(seen.void);
        assert!(least > 0, "{case:?}: {seen:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_of_the_fast_path_over_shards_is_found() {
    use pangea_core::planted::{Bug, Planted};

    let [few, many, large] = CASES;
    let bugs = [
        (Bug::FastOnOneShard, few),
        (Bug::FastWithoutOthers, large),
        (Bug::ClosedByLeader, many),
        (Bug::PassedAccepted, few),
        (Bug::PassedForgotten, many),
        (Bug::ClosedWithoutCell, few),
    ];
    for (bug, case) in bugs {
        let planted = Planted::new(Some(bug));
        let (seen, found) = walks(case, 300_000);
        drop(planted);
        println!("{bug}: {found:?} after {seen:?}");
        assert!(found.is_some(), "{bug}");
    }
}
