//! Coverage marks: the phases, and the branches that are rarely taken. A swarm must hit each, or
//! say why it can't.

use pangea_core::protocol::Mark;

const fn mark(name: &'static str, when: &'static str) -> Mark {
    Mark { name, when }
}

/// Every mark that a replica makes, in the order of the phases.
pub(super) const ALL: &[Mark] = &[
    // §3.2, local execution.
    mark("minerva.executed", "transactions are executed on the last snapshot"),
    mark("minerva.read_local", "one reads what an uncommitted one has written"),
    mark("minerva.certified", "an interactive transaction is put in a batch"),
    mark("minerva.certified_in_order", "it saw what has changed, and goes to the ordered queue"),
    mark("minerva.snapshot_read", "a program that only reads is answered here"),
    mark("minerva.probed", "a program is probed for its footprint and not executed"),
    mark("minerva.batch_full", "a batch is sent as it is large enough"),
    mark("minerva.too_many_in_flight", "a client is refused: too much is in flight"),
    // §3.3, replication.
    mark("minerva.batch_sent", "a batch is sent to all peers"),
    mark("minerva.batch_again", "a batch comes that is here"),
    mark("minerva.batch_from_another", "a batch comes from somebody else than its source"),
    mark("minerva.own_batch_from_another", "a peer sends a batch of this replica's own log"),
    mark("minerva.batch_after_gap", "a batch comes before one that precedes it"),
    mark("minerva.batch_far_ahead", "a batch is too far ahead to be kept"),
    mark("minerva.batch_out_of_sequence", "a batch does not continue its log"),
    mark("minerva.malformed_batch", "a batch can't be read"),
    mark("minerva.malformed_ack", "an acknowledgement makes no sense"),
    mark("minerva.malformed_proof", "a proof of availability makes no sense"),
    mark("minerva.malformed_fetch", "a request for batches makes no sense"),
    mark("minerva.malformed_gone", "a word on batches that are gone makes no sense"),
    mark("minerva.malformed_progress", "a word on progress makes no sense"),
    mark("minerva.acknowledged", "batches are acknowledged"),
    mark("minerva.proof_sent", "a proof of availability is sent"),
    mark("minerva.proof_before_batch", "a proof comes before its batch"),
    mark("minerva.fetch", "a missing batch is asked for"),
    mark("minerva.fetch_of_collected", "a peer asks for a batch that is gone here"),
    // §3.4, the cut.
    mark("minerva.cut_proposed", "the coordinator proposes a cut"),
    mark("minerva.cut_decided", "a cut is decided"),
    mark("minerva.cut_waits_for_batch", "a cut names a batch that is not here yet"),
    mark("minerva.cut_waits_for_checkpoint", "a cut can't be applied before a checkpoint comes"),
    mark("minerva.too_many_undecided", "nothing is proposed, as agreement does not keep up"),
    mark("minerva.coordinator_changed", "a cut of another coordinator is applied"),
    mark("minerva.proposals_lost", "it leads again, and what it proposed before was not decided"),
    mark("minerva.remove_replica", "a replica was silent for too long"),
    mark("minerva.readmit_replica", "a replica that was removed is back"),
    mark("minerva.was_removed", "this replica was removed"),
    mark("minerva.agreement_too_early", "agreement speaks before this replica is ready"),
    mark("minerva.agreement_refused", "a message of agreement makes no sense here"),
    mark("agreement.out_of_place", "it continues a log that is no longer so"),
    mark("agreement.refused_malformed", "it can't be read"),
    mark("agreement.refused_name", "it is in another's name"),
    mark("agreement.refused_ballot", "it has a ballot that nobody has"),
    mark("agreement.refused_index", "it counts what there is not"),
    mark("agreement.refused_entry", "it holds a cut that nobody proposes"),
    mark("agreement.refused_unused", "it is of a part that is not used"),
    mark("minerva.cuts_forgotten", "agreement's old cuts are dropped"),
    mark("minerva.cuts_skipped", "the peers have dropped cuts that this replica lacks"),
    // §3.5 to §3.7, deterministic commit.
    mark("minerva.epoch_applied", "an epoch is applied"),
    mark("minerva.stale", "a transaction read what has changed"),
    mark("minerva.conflicting", "a transaction loses against others of the epoch"),
    mark("minerva.solver_unproven", "the exact solver ends with its budget"),
    mark("minerva.valid_across_epochs", "one is valid that read another of an earlier epoch"),
    mark("minerva.doomed", "one read the work of another that was executed again"),
    mark("minerva.cascade", "one that was given up for that is executed again"),
    mark("minerva.epoch_in_slices", "an ordered queue is run in parts"),
    mark("minerva.second_pass", "one in the ordered queue touches more than its footprint"),
    // §4, high contention.
    mark("minerva.high_contention_entered", "optimistic execution is given up"),
    mark("minerva.high_contention_left", "optimistic execution is tried again"),
    // Strict reads.
    mark("minerva.barrier_released", "a strict read goes on"),
    mark("minerva.barrier_again", "a strict read asks again, as its cut may be lost"),
    mark("minerva.barrier_after_its_cut", "the answer comes after its cut was applied"),
    mark("minerva.malformed_barrier", "the answer makes no sense"),
    mark("minerva.too_many_strict_reads", "a strict read is refused: too many wait"),
    // Recovery.
    mark("minerva.born", "a peer that was not known is known now"),
    mark("minerva.ready", "a replica takes part"),
    mark("minerva.malformed_greeting", "a greeting makes no sense"),
    mark("minerva.stranger", "a peer has another birth than is known here"),
    mark("minerva.in_flight_restored", "a restart finds own batches that are not applied"),
    mark("minerva.epoch_replayed", "an epoch is applied as the log says"),
    mark("minerva.outcome_unknown", "a client can't be told what became of its transaction"),
    mark("minerva.checkpoint", "a checkpoint is asked for"),
    mark("minerva.checkpoint_requested", "batches are gone: a peer is asked for a checkpoint"),
    mark("minerva.checkpoint_stalled", "no part of it came for long"),
    mark("minerva.checkpoint_too_old", "it is older than what is here"),
    mark("minerva.checkpoint_installed", "it is installed"),
    mark("minerva.malformed_chunk", "a part of it can't be read"),
    mark("minerva.malformed_checkpoint_ack", "an acknowledgement of it makes no sense"),
    mark("minerva.unexpected_chunk", "a part of it comes out of its place"),
];
