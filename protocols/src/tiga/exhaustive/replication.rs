//! Every failure of a shard with a few transactions: whatever a client, a coordinator or a reader
//! may know is in the log of the next leader.
//!
//! A situation is the state of each replica, and the f + 1 that a new leader asks: the former
//! leader may be among them, with the part of its log that was durable. All situations of a
//! [`Case`] that runs can reach are visited; those of larger cases are drawn.

mod cases;
mod check;
mod run;
mod search;
mod views;

use super::IS_LARGE;
use cases::Case;
use search::{Summary, sample, search};
use views::walks;

/// Asserts that a search has checked situations and found nothing.
#[track_caller]
fn is_clean(case: &Case, summary: &Summary) {
    let Case { name, replicas, .. } = case;
    println!("{name}, {replicas} replicas: {summary}");
    assert!(summary.found.is_none() && summary.checked > 0, "{name}, {replicas}: {summary}");
}

#[test]
fn nothing_that_is_committed_is_lost_or_changed_by_a_view_change() {
    for case in cases::all() {
        is_clean(&case, &search(&case));
    }
}

#[test]
fn drawn_situations_of_five_and_seven_replicas_lose_nothing() {
    for (case, draws) in cases::sampled() {
        is_clean(&case, &sample(&case, draws, 11));
    }
}

#[test]
fn walks_over_several_views_lose_nothing() {
    let seeds = if IS_LARGE { 1_000_000 } else { 6_000 };
    for case in cases::walked() {
        let seen = walks(&case, 0..seeds).unwrap_or_else(|found| {
            panic!("{}, {} replicas: {found}", case.name, case.replicas);
        });
        println!("{}, {} replicas: {seen:?}", case.name, case.replicas);
        let least = seen.committed.min(seen.committed_in_former).min(seen.recovered);
        assert!(least > 0 && seen.view_changes > 0, "{seen:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_of_replication_loses_something() {
    use pangea_core::planted::Planted;

    for (bug, case) in cases::with_bugs() {
        let planted = Planted::new(Some(bug));
        let summary = search(&case);
        drop(planted);
        println!("{bug}: {}: {summary}", case.name);
        assert!(summary.found.is_some(), "{bug}: {summary}");
    }
}
