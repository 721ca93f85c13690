//! Exhaustive search of the ends of epochs (§5.2): three shards, transactions over them, leaders
//! that fail at any moment, and shards whose leaders stay (`shards/passage.rs`).
//!
//! ```text
//!   T0   writes on shards 0 and 1, coordinated on 0
//!   T1   reads T0's row on shard 1, writes on 2, coordinated on 1
//!   T2   local on shard 1: reads T0's row
//! ```
//!
//! A shard is its leader, with a log of which a part is replicated: a next leader finds that part,
//! and perhaps more. Every order of these steps is visited: locks and draws, decisions,
//! installations, replication, closings, failures, the news of an epoch at each shard, fates, ends
//! of logs, the cut at each shard, and answers to clients. At each end all transactions are
//! executed, on all their shards or on none; none that a client was told of is lost, and none has
//! read what is void. Each [`Mistake`] is found.

mod world;

use std::hash::{DefaultHasher, Hash, Hasher};

use pangea_core::hash::HashSet;

use crate::exhaustive::IS_LARGE;
use world::{Case, Mistake, World};

/// Visits all worlds of a case, and counts them. Stops at the first violation.
fn search(case: Case) -> (usize, Option<String>) {
    let digest = |world: &World| {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish()
    };
    let first = World::first(case);
    let mut seen: HashSet<u64> = HashSet::default();
    seen.insert(digest(&first));
    let mut left = vec![first];
    while let Some(world) = left.pop() {
        let next = world.next();
        let is_end = next.iter().all(|next| next.failures < world.failures);
        if let Some(violation) = world.violation(is_end) {
            return (seen.len(), Some(format!("{violation}: {world:#?}")));
        }
        left.extend(next.into_iter().filter(|world| seen.insert(digest(world))));
    }
    (seen.len(), None)
}

const fn case(second: usize, frail: usize, slots: u16) -> Case {
    Case { second, frail, failures: 1, slots, mistake: None }
}

/// The first ones take seconds, and the others minutes.
const CASES: [Case; 7] = [
    case(2, 0, 3),
    case(2, 1, 3),
    case(2, 0, 2),
    case(1, 2, 3),
    case(1, 0, 3),
    case(1, 1, 3),
    case(1, 2, 2),
];
const QUICK: usize = 3;

#[test]
fn transactions_end_on_all_shards_alike_if_a_leader_fails_at_any_moment() {
    for case in CASES.into_iter().take(if IS_LARGE { CASES.len() } else { QUICK }) {
        let (count, found) = search(case);
        println!("{case:?}: {count} worlds");
        assert_eq!(found, None, "{case:?}");
        assert!(count > 100_000, "{case:?}: {count} worlds");
    }
}

/// Each mistake is found with the failure of one of the leaders. Some need a transaction that
/// writes on the shard of another one.
#[test]
fn every_mistake_in_the_end_of_an_epoch_is_found() {
    for (mistake, case) in [
        (Mistake::DoubtfulRead, case(2, 0, 3)),
        (Mistake::OldReadsNew, case(1, 2, 3)),
        (Mistake::ClosedTooHigh, case(2, 0, 3)),
        (Mistake::HangingDropped, case(2, 0, 3)),
        (Mistake::NothingVoid, case(2, 0, 3)),
        (Mistake::OwnLogSuffices, case(2, 0, 3)),
        (Mistake::ClosedWhileHanging, case(1, 0, 3)),
        (Mistake::EarlyWatermark, case(2, 0, 3)),
    ] {
        let (count, found) = search(Case { mistake: Some(mistake), ..case });
        let found = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: after {count} worlds: {}", found.lines().next().unwrap_or_default());
    }
}

/// Mako §6.1: a group is as far as its last shard.
#[cfg(feature = "planted")]
#[test]
fn a_planted_bug_of_groups_of_shards_is_found() {
    use pangea_core::planted::{Bug, Planted};

    let planted = Planted::new(Some(Bug::MakoGroupOfFirstMember));
    let found = [case(2, 0, 2), case(2, 1, 2), case(1, 1, 2)].map(search);
    drop(planted);
    let found = found.into_iter().find_map(|(count, found)| Some((count, found?)));
    let (count, found) = found.expect("it is found");
    println!("{} after {count} worlds", found.lines().next().unwrap_or_default());
}
