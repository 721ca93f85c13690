//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::inputs::marks;
use crate::marks::mark;

/// All marks of a replica.
pub(super) const ALL: &[Mark] = &marks::with::<{ marks::COUNT + OWN.len() }>(OWN, UNUSED);

/// Minerva has one input log, independent of other logs, and takes checkpoints when they are due.
/// A replica that is removed from the configuration still counts.
const UNUSED: &[&str] = &[
    "streams.batch_of_sealed",
    "inputs.waits_for_others",
    "inputs.waits_for_point",
    "inputs.waits_for_turn",
    "inputs.turn_changed",
    "inputs.frozen",
    "inputs.turn_lost",
    "inputs.frozen_together",
];

/// All marks of Minerva itself, in the order of the phases.
const OWN: &[Mark] = &[
    // §3.2, local execution.
    mark("minerva.executed", "a transaction is executed on the last snapshot"),
    mark("minerva.read_local", "a transaction reads an uncommitted write"),
    mark("minerva.certified", "an interactive transaction is put into a batch"),
    mark(
        "minerva.certified_in_order",
        "a certified transaction has stale reads and goes to the ordered queue",
    ),
    mark("minerva.probed", "a program is only probed for its footprint"),
    mark("minerva.batch_full", "a batch is sent because it is large enough"),
    mark(
        "minerva.too_many_in_flight",
        "a client is refused because too many transactions are in flight",
    ),
    mark("minerva.refused_behind", "a client is refused because this replica has too much to run")
        .rare("a replica must fall too far behind, and get a request then"),
    // §3.5 to §3.7, deterministic commit.
    mark("minerva.stale", "a transaction is stale"),
    mark("minerva.conflicting", "a transaction is conflicting"),
    mark(
        "minerva.crowded",
        "a chain is in no set, because a key has too many conflicts for the graph",
    ),
    mark("minerva.solver_unproven", "the exact solver exhausts its budget")
        .rare("a graph that no reduction solves must meet a budget of one node"),
    mark(
        "minerva.valid_across_epochs",
        "a transaction that read writes of an earlier epoch's transaction is valid",
    ),
    mark("minerva.doomed", "a transaction read the writes of one that was re-executed"),
    mark("minerva.cascade", "a transaction that became invalid for that reason is re-executed"),
    mark("minerva.epoch_in_slices", "an ordered queue is run in slices"),
    mark("minerva.cuts_in_steps", "the cuts that are ready are applied in several steps"),
    mark("minerva.second_pass", "a transaction of the ordered queue leaves its footprint"),
    // §4, high contention.
    mark("minerva.high_contention_entered", "the replica enters high-contention mode"),
    mark("minerva.high_contention_left", "the replica leaves high-contention mode"),
    // Recovery.
    mark(
        "minerva.refused_while_rejoining",
        "a client is refused until a replaced node has fetched everything",
    ),
    mark("minerva.in_flight_restored", "a restart finds local batches that were not applied"),
    mark("minerva.epoch_replayed", "an epoch is replayed from the log"),
    mark("minerva.outcome_unknown", "the outcome of a transaction is unknown for its client"),
];
