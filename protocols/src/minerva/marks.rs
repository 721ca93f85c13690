//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::inputs::marks::{self, mark};

/// All marks of a replica.
pub(super) const ALL: &[Mark] = &marks::with::<{ marks::ALL.len() + OWN.len() }>(OWN, UNUSED);

/// Minerva has one input log, which keeps pace with no other, and takes checkpoints as they are due.
const UNUSED: &[&str] = &[
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
    mark("minerva.executed", "transactions are executed on the last snapshot"),
    mark("minerva.read_local", "one reads what an uncommitted one has written"),
    mark("minerva.certified", "an interactive transaction is put in a batch"),
    mark("minerva.certified_in_order", "it saw what has changed, and goes to the ordered queue"),
    mark("minerva.probed", "a program is probed for its footprint and not executed"),
    mark("minerva.batch_full", "a batch is sent as it is large enough"),
    mark("minerva.too_many_in_flight", "a client is refused: too much is in flight"),
    mark("minerva.refused_behind", "a client is refused: this replica has too much to run").rare("so it is, and a client wants something"),
    // §3.5 to §3.7, deterministic commit.
    mark("minerva.stale", "a transaction read what has changed"),
    mark("minerva.conflicting", "a transaction loses against others of the epoch"),
    mark("minerva.solver_unproven", "the exact solver ends with its budget").rare("a graph that no reduction solves, where one node is the budget"),
    mark("minerva.valid_across_epochs", "one is valid that read another of an earlier epoch"),
    mark("minerva.doomed", "one read the work of another that was executed again"),
    mark("minerva.cascade", "one that was given up for that is executed again"),
    mark("minerva.epoch_in_slices", "an ordered queue is run in parts"),
    mark("minerva.second_pass", "one in the ordered queue touches more than its footprint"),
    // §4, high contention.
    mark("minerva.high_contention_entered", "optimistic execution is given up"),
    mark("minerva.high_contention_left", "optimistic execution is tried again"),
    // Recovery.
    mark("minerva.refused_while_rejoining", "a client is refused until it holds all again"),
    mark("minerva.in_flight_restored", "a restart finds own batches that are not applied"),
    mark("minerva.epoch_replayed", "an epoch is applied as the log says"),
    mark("minerva.outcome_unknown", "a client can't be told what became of its transaction"),
];
