//! Every mark of a protocol is hit by a swarm, or listed here with the reason why not.

use std::collections::BTreeSet;
use std::thread::available_parallelism;

use pangea_core::protocol::Protocol;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::minerva::Minerva;
use pangea_sim::{Extent, drawn, run_swarm};

/// Enough to hit every mark that is not listed, and for a minute or so.
const SEEDS: u64 = 100;

const NONSENSE: &str =
    "no replica says so; protocols/tests/phases/nonsense.rs and the fuzz targets";
const LOST_LOG: &str = "a node forgot what it said; protocols/tests/phases";

const LARGE: &str = "it takes megabytes; protocols/src/calvin/tests/large.rs";

const IN_TURN: &str = "checkpoints are taken as they are due";

/// Marks that honest replicas don't make in runs of seconds.
const NEVER: &[(&str, &str)] = &[
    ("inputs.malformed_batch", NONSENSE),
    ("inputs.malformed_ack", NONSENSE),
    ("inputs.malformed_proof", NONSENSE),
    ("inputs.malformed_fetch", NONSENSE),
    ("inputs.malformed_gone", NONSENSE),
    ("inputs.malformed_yield", NONSENSE),
    ("calvin.malformed_forward", NONSENSE),
    ("inputs.malformed_progress", NONSENSE),
    ("inputs.malformed_barrier", NONSENSE),
    ("inputs.malformed_greeting", NONSENSE),
    ("inputs.malformed_rejoin", NONSENSE),
    ("inputs.malformed_recollection", NONSENSE),
    ("inputs.malformed_chunk", NONSENSE),
    ("inputs.malformed_checkpoint_ack", NONSENSE),
    ("inputs.malformed_checkpoint_request", NONSENSE),
    ("inputs.malformed_checkpoint_gone", NONSENSE),
    ("agreement.refused_malformed", NONSENSE),
    ("agreement.refused_name", NONSENSE),
    ("agreement.refused_ballot", NONSENSE),
    ("agreement.refused_index", NONSENSE),
    ("agreement.refused_entry", NONSENSE),
    ("agreement.refused_unused", NONSENSE),
    ("calvin.malformed_handed_on", NONSENSE),
    ("calvin.slice_of_another", NONSENSE),
    ("calvin.not_divided", NONSENSE),
    ("calvin.not_of_the_group", NONSENSE),
    ("calvin.not_to_its_own_shard", NONSENSE),
    ("calvin.looked_too_far", LARGE),
    ("calvin.footprint_too_large", LARGE),
    ("calvin.part_too_large", LARGE),
    ("inputs.peer_forgot_too", "one disk is lost at a time; protocols/tests/phases"),
    ("inputs.batch_out_of_sequence", LOST_LOG),
    ("inputs.stranger", LOST_LOG),
    ("inputs.batch_far_ahead", "it takes 65,536 batches at once"),
    ("calvin.too_much_to_fetch", "it takes 8,192 fetches at once"),
    ("inputs.too_many_strict_reads", "it takes more clients than runs have"),
];

/// Minerva has one log, which waits for no other.
const UNUSED_BY_MINERVA: &[(&str, &str)] = &[
    ("inputs.waits_for_others", "a log whose epochs keep up with those of others"),
    ("inputs.waits_for_point", IN_TURN),
    ("inputs.waits_for_turn", IN_TURN),
    ("inputs.turn_changed", IN_TURN),
    ("inputs.frozen", IN_TURN),
    ("inputs.turn_lost", IN_TURN),
    ("inputs.frozen_together", IN_TURN),
];

/// Calvin's replicas acknowledge batches to everyone: there is nothing to prove.
const UNUSED_BY_CALVIN: &[(&str, &str)] = &[
    ("inputs.proof_sent", "a source that alone is told who has its batches"),
    ("inputs.proof_before_batch", "a proof overtakes its batch"),
];

/// Marks that so few seeds may miss; larger swarms hit them.
const RARE: &[(&str, &str)] = &[
    ("inputs.agreement_refused", "an answer is late by a change of leaders"),
    ("agreement.out_of_place", "an answer is late by a change of leaders"),
    ("inputs.own_batch_from_another", "a batch of an earlier life comes twice"),
    ("inputs.orphans_dropped", "a source loses its disk while a peer lacks one of its batches"),
    ("inputs.greeting_late", "an answer that is large overtakes a greeting of the same session"),
    ("inputs.rejoin_too_early", "a node is replaced while a peer that it asks has just started"),
    ("inputs.waits_for_others", "a shard is cut off while the others go on for seconds"),
    ("calvin.refused_for_node", "there are requests in most epochs of seconds, and a node is away"),
    ("calvin.too_many_in_flight", "a few of the smallest batches come before a node is ready"),
    ("calvin.slice_after_unsubscribed", "a slice is under way from who does not keep others"),
    ("calvin.slice_after_gap", "two replicas in turn do not keep what is asked for"),
    ("calvin.decided_after_gap", "a source does not notice that a connection was lost"),
    ("calvin.result_of_another", "a result of a void epoch comes after the one that counts"),
    (
        "calvin.items_of_another_line",
        "a master is deposed while a neighbour still runs the epoch that rows are of",
    ),
    ("calvin.items_too_far_ahead", "rows are under way from who does not keep their slices"),
    ("calvin.slice_in_pieces", "an epoch has several of the smallest batches for one shard"),
    ("calvin.checkpoint_before_given", "one is asked for that has what is half run"),
    ("calvin.yield_in_vain", "the better master is lost just when another gives way to it"),
    ("calvin.leads_again", "a master is down for less than an election takes"),
    ("calvin.put_back", "a master is deposed while it collects"),
    ("calvin.read_given_up", "a session commits what it read just before a failover"),
    (
        "calvin.held_for_one_that_is_gone",
        "a connection is lost while a request waits for that node",
    ),
    ("calvin.left_too_often", "rows change faster than they can be looked up"),
    ("inputs.remove_straggler", "a node is slow for long, and there is much that it has to run"),
    ("inputs.too_far_behind", "a node is slow for long, and there is much that it has to run"),
    ("inputs.backlog_left", "so it is, and is out before it has a part of that run"),
    ("minerva.refused_behind", "so it is, and a client wants something"),
    ("inputs.too_many_undecided", "agreement is slower than epochs for long"),
    ("minerva.solver_unproven", "a graph that no reduction solves, where one node is the budget"),
    ("inputs.frozen_together", "a turn is over where one of two has not heard of it"),
    ("inputs.turn_lost", "a replica is lost to the others while it stands still"),
    ("calvin.outcomes_asked_again", "who tells one that stands still is lost meanwhile"),
    ("calvin.source_frozen", "one of several shards stands still"),
    ("inputs.barrier_after_its_cut", "two messages pass each other within an epoch"),
    ("inputs.checkpoint_resumed", "a connection is lost in the middle of a transfer"),
    ("inputs.checkpoint_forgotten", "a node crashes in the middle of a transfer"),
    ("inputs.checkpoint_stalled", "a node is lost in the middle of a transfer"),
    ("inputs.checkpoint_outrun", "cuts are forgotten in the middle of a transfer"),
    ("inputs.checkpoint_called_off", "the batches come in the middle of a transfer"),
    ("inputs.checkpoint_too_old", "the batches come while the last part is on its way"),
    ("inputs.unexpected_chunk", "two transfers of one replica overlap"),
];

/// The marks of either list that a protocol has.
fn of(list: &'static [(&str, &str)], known: &BTreeSet<&str>) -> BTreeSet<&'static str> {
    list.iter().map(|(name, _)| *name).filter(|name| known.contains(name)).collect()
}

fn marks_of<P: Protocol>() -> BTreeSet<&'static str> {
    let known: BTreeSet<&str> = P::MARKS.iter().map(|mark| mark.name).collect();
    assert_eq!(known.len(), P::MARKS.len(), "names differ");
    known
}

fn hits_every_mark_but_those_with_a_reason<P: Protocol>(unused: &'static [(&str, &str)]) {
    let known = marks_of::<P>();
    let never = &of(NEVER, &known) | &of(unused, &known);
    let rare = of(RARE, &known);
    let threads = available_parallelism().map_or(1, usize::from);
    let extent = Extent { seeds: 0..SEEDS, time: None, threads, is_twice: false };
    let summary = run_swarm::<P>(extent, &drawn::<P>, &mut |_, _| {}).unwrap();
    println!("{summary}");
    assert!(summary.failures.is_empty(), "{summary}");
    let unhit: BTreeSet<&str> = summary.never_hit().map(|mark| mark.name).collect();
    let missed: Vec<_> = unhit.difference(&(&never | &rare)).copied().collect();
    assert!(missed.is_empty(), "never hit, and without a reason: {missed:?}");
    let wrong: Vec<_> = never.difference(&unhit).collect();
    assert!(wrong.is_empty(), "hit, against their reasons: {wrong:?}");
}

#[test]
fn the_lists_name_marks_that_there_are() {
    let known = &marks_of::<Minerva>() | &marks_of::<Calvin>();
    let listed = NEVER.iter().chain(RARE).map(|(name, _)| *name);
    let unknown: Vec<_> = listed.filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "there are no such marks: {unknown:?}");
}

#[test]
fn every_mark_of_minerva_is_hit_by_a_swarm_or_has_a_reason_not_to_be() {
    hits_every_mark_but_those_with_a_reason::<Minerva>(UNUSED_BY_MINERVA);
}

#[test]
fn every_mark_of_calvin_is_hit_by_a_swarm_or_has_a_reason_not_to_be() {
    hits_every_mark_but_those_with_a_reason::<Calvin>(UNUSED_BY_CALVIN);
}
