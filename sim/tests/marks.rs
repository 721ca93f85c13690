//! Every mark of Minerva is hit by a swarm, or listed here with the reason why not.

use std::collections::BTreeSet;
use std::thread::available_parallelism;

use pangea_core::protocol::Protocol;
use pangea_protocols::minerva::Minerva;
use pangea_sim::{Extent, drawn, run_swarm};

/// Enough to hit every mark that is not listed, and for a minute or so.
const SEEDS: u64 = 100;

const NONSENSE: &str =
    "no replica says so; protocols/tests/phases/nonsense.rs and the fuzz targets";
const LOST_LOG: &str = "a node forgot what it said; protocols/tests/phases";

/// Marks that honest replicas don't make in runs of seconds.
const NEVER: &[(&str, &str)] = &[
    ("minerva.malformed_batch", NONSENSE),
    ("minerva.malformed_ack", NONSENSE),
    ("minerva.malformed_proof", NONSENSE),
    ("minerva.malformed_fetch", NONSENSE),
    ("minerva.malformed_gone", NONSENSE),
    ("minerva.malformed_progress", NONSENSE),
    ("minerva.malformed_barrier", NONSENSE),
    ("minerva.malformed_greeting", NONSENSE),
    ("minerva.malformed_rejoin", NONSENSE),
    ("minerva.malformed_recollection", NONSENSE),
    ("minerva.malformed_chunk", NONSENSE),
    ("minerva.malformed_checkpoint_ack", NONSENSE),
    ("minerva.malformed_checkpoint_request", NONSENSE),
    ("minerva.malformed_checkpoint_gone", NONSENSE),
    ("agreement.refused_malformed", NONSENSE),
    ("agreement.refused_name", NONSENSE),
    ("agreement.refused_ballot", NONSENSE),
    ("agreement.refused_index", NONSENSE),
    ("agreement.refused_entry", NONSENSE),
    ("agreement.refused_unused", NONSENSE),
    ("minerva.peer_forgot_too", "one disk is lost at a time; protocols/tests/phases"),
    ("minerva.batch_out_of_sequence", LOST_LOG),
    ("minerva.stranger", LOST_LOG),
    ("minerva.batch_far_ahead", "it takes 65,536 batches at once"),
    ("minerva.too_many_strict_reads", "it takes more clients than runs have"),
];

/// Marks that so few seeds may miss; larger swarms hit them.
const RARE: &[(&str, &str)] = &[
    ("minerva.agreement_refused", "an answer is late by a change of leaders"),
    ("agreement.out_of_place", "an answer is late by a change of leaders"),
    ("minerva.own_batch_from_another", "a batch of an earlier life comes twice"),
    ("minerva.orphans_dropped", "a source loses its disk while a peer lacks one of its batches"),
    ("minerva.greeting_late", "an answer that is large overtakes a greeting of the same session"),
    ("minerva.rejoin_too_early", "a node is replaced while a peer that it asks has just started"),
    ("minerva.too_many_undecided", "agreement is slower than epochs for long"),
    ("minerva.solver_unproven", "a graph that no reduction solves, where one node is the budget"),
    ("minerva.barrier_after_its_cut", "two messages pass each other within an epoch"),
    ("minerva.checkpoint_resumed", "a connection is lost in the middle of a transfer"),
    ("minerva.checkpoint_forgotten", "a node crashes in the middle of a transfer"),
    ("minerva.checkpoint_stalled", "a node is lost in the middle of a transfer"),
    ("minerva.checkpoint_outrun", "cuts are forgotten in the middle of a transfer"),
    ("minerva.checkpoint_called_off", "the batches come in the middle of a transfer"),
    ("minerva.checkpoint_too_old", "the batches come while the last part is on its way"),
    ("minerva.unexpected_chunk", "two transfers of one replica overlap"),
];

#[test]
fn every_mark_is_hit_by_a_swarm_or_has_a_reason_not_to_be() {
    let known: BTreeSet<&str> = Minerva::MARKS.iter().map(|mark| mark.name).collect();
    assert_eq!(known.len(), Minerva::MARKS.len(), "names differ");
    let listed: BTreeSet<&str> = NEVER.iter().chain(RARE).map(|(name, _)| *name).collect();
    let unknown: Vec<_> = listed.difference(&known).collect();
    assert!(unknown.is_empty(), "there are no such marks: {unknown:?}");

    let threads = available_parallelism().map_or(1, usize::from);
    let extent = Extent { seeds: 0..SEEDS, time: None, threads, is_twice: false };
    let summary = run_swarm::<Minerva>(extent, &drawn::<Minerva>, &mut |_, _| {}).unwrap();
    println!("{summary}");
    assert!(summary.failures.is_empty(), "{summary}");
    let unhit: BTreeSet<&str> = summary.never_hit().map(|mark| mark.name).collect();
    let missed: Vec<_> = unhit.difference(&listed).collect();
    assert!(missed.is_empty(), "never hit, and without a reason: {missed:?}");
    let wrong: Vec<_> = NEVER.iter().filter(|(name, _)| !unhit.contains(name)).collect();
    assert!(wrong.is_empty(), "hit, against their reasons: {wrong:?}");
}
