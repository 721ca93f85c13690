//! Every order of events that the leaders of a few shards can see, with a few transactions. The
//! replicas of one shard are in `replication.rs`, and those of several in `divided.rs`.
//!
//! Each [`Case`] is searched without a bug, and must be clean. With each planted bug, a violation
//! must be found.

mod cases;
mod divided;
mod replication;
mod search;
mod world;

use crate::exhaustive::IS_LARGE;
use cases::Case;
use search::search;

/// Searches all orders of a case and asserts that no check fails.
#[track_caller]
fn is_clean(case: &Case) {
    let outcome = search(case);
    println!("{}: {outcome}", case.name);
    assert!(outcome.found.is_none() && outcome.is_complete, "{}: {outcome}", case.name);
}

#[test]
fn heads_is_live_and_strictly_serializable_in_every_order() {
    for case in cases::of_heads() {
        is_clean(&case);
    }
}

#[test]
fn watermarks_are_live_and_strictly_serializable_in_every_order() {
    for case in cases::of_watermarks() {
        is_clean(&case);
    }
}

#[test]
fn bounded_clocks_are_live_and_strictly_serializable_in_every_order() {
    for case in cases::of_bounded() {
        is_clean(&case);
    }
}

/// §3.8, as this protocol has it: a transaction counts if all logs have it at one stamp.
#[test]
fn the_detective_approach_is_live_and_strictly_serializable_in_every_order() {
    for case in cases::of_detective() {
        is_clean(&case);
    }
}

/// A clock beyond its bound costs real-time order, and nothing else.
#[test]
fn a_wrong_bound_of_clocks_violates_real_time_only() {
    let strict = cases::wrong_bound();
    let outcome = search(&strict);
    println!("{}: {outcome}", strict.name);
    let found = outcome.found.as_ref().map(|found| found.what.as_str());
    assert!(found.is_some_and(|what| what.starts_with("not strict")), "{outcome}");
    is_clean(&Case { is_strict: false, ..strict });
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_found_with_the_fewest_choices() {
    use pangea_core::planted::Planted;

    for (bug, case) in cases::with_bugs() {
        let planted = Planted::new(Some(bug));
        let outcome = search(&case);
        drop(planted);
        println!("{bug}: {}: {outcome}", case.name);
        assert!(outcome.found.is_some(), "{bug}: {outcome}");
    }
}
