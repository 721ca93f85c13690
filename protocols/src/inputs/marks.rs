//! Coverage marks: the phases, and the branches that are rarely taken. A swarm must hit each, or
//! say why it can't.

use pangea_core::protocol::Mark;

pub(crate) const fn mark(name: &'static str, when: &'static str) -> Mark {
    Mark { name, when }
}

/// These, and then a protocol's own.
pub(crate) const fn with<const N: usize>(own: &[Mark]) -> [Mark; N] {
    assert!(N == ALL.len() + own.len(), "as many as both have");
    let mut all = [mark("", ""); N];
    let mut i = 0;
    while i < N {
        all[i] = if i < ALL.len() { ALL[i] } else { own[i - ALL.len()] };
        i += 1;
    }
    all
}

/// Every mark that is made here, in the order of the phases.
pub(crate) const ALL: &[Mark] = &[
    // Minerva §3.3, replication.
    mark("inputs.batch_sent", "a batch is sent to all peers"),
    mark("inputs.batch_again", "a batch comes that is here"),
    mark("inputs.batch_from_another", "a batch comes from somebody else than its source"),
    mark("inputs.own_batch_from_another", "a peer sends a batch of this replica's own log"),
    mark("inputs.batch_after_gap", "a batch comes before one that precedes it"),
    mark("inputs.batch_far_ahead", "a batch is too far ahead to be kept"),
    mark("inputs.batch_out_of_sequence", "a batch does not continue its log"),
    mark("inputs.malformed_batch", "a batch can't be read"),
    mark("inputs.malformed_ack", "an acknowledgement makes no sense"),
    mark("inputs.malformed_proof", "a proof of availability makes no sense"),
    mark("inputs.malformed_fetch", "a request for batches makes no sense"),
    mark("inputs.malformed_gone", "a word on batches that are gone makes no sense"),
    mark("inputs.malformed_yield", "a word on who should lead makes no sense"),
    mark("inputs.malformed_progress", "a word on progress makes no sense"),
    mark("inputs.acknowledged", "batches are acknowledged"),
    mark("inputs.proof_sent", "a proof of availability is sent"),
    mark("inputs.proof_before_batch", "a proof comes before its batch"),
    mark("inputs.fetch", "a missing batch is asked for"),
    mark("inputs.fetch_of_collected", "a peer asks for a batch that is gone here"),
    // Minerva §3.4, the cut.
    mark("inputs.cut_proposed", "the coordinator proposes a cut"),
    mark("inputs.cut_decided", "a cut is decided"),
    mark("inputs.cut_waits_for_batch", "a cut names a batch that is not here yet"),
    mark("inputs.cut_waits_for_checkpoint", "a cut can't be applied before a checkpoint comes"),
    mark("inputs.too_many_undecided", "nothing is proposed, as agreement does not keep up"),
    mark("inputs.coordinator_changed", "a cut of another coordinator is applied"),
    mark("inputs.proposals_lost", "it leads again, and what it proposed before was not decided"),
    mark("inputs.remove_replica", "a replica was silent for too long"),
    mark("inputs.remove_straggler", "a replica is so far behind that too much is kept for it"),
    mark("inputs.readmit_replica", "a replica that was removed is back"),
    mark("inputs.was_removed", "this replica was removed"),
    mark("inputs.agreement_too_early", "agreement speaks before this replica is ready"),
    mark("inputs.agreement_refused", "a message of agreement makes no sense here"),
    mark("agreement.out_of_place", "it continues a log that is no longer so"),
    mark("agreement.refused_malformed", "it can't be read"),
    mark("agreement.refused_name", "it is in another's name"),
    mark("agreement.refused_ballot", "it has a ballot that nobody has"),
    mark("agreement.refused_index", "it counts what there is not"),
    mark("agreement.refused_entry", "it holds a cut that nobody proposes"),
    mark("agreement.refused_unused", "it is of a part that is not used"),
    mark("inputs.cuts_forgotten", "agreement's old cuts are dropped"),
    mark("inputs.cuts_skipped", "the peers have dropped cuts that this replica lacks"),
    mark("inputs.waits_for_others", "another log is far behind: no cut is proposed"),
    mark("inputs.waits_for_node", "a node is behind for long, or far, and this one waits for it"),
    mark("inputs.too_far_behind", "this replica has more to run than it should hold"),
    mark("inputs.backlog_left", "it was removed, and goes on from a peer's checkpoint"),
    mark("inputs.epoch_applied", "an epoch is applied"),
    // Calvin §5, checkpoints.
    mark("inputs.waits_for_point", "a checkpoint is due, and waits for the next point"),
    mark("inputs.waits_for_turn", "a checkpoint is due, and waits for this replica's turn"),
    mark("inputs.turn_changed", "the coordinator gives the turn to somebody else, or to nobody"),
    mark("inputs.frozen", "a replica stands still for its checkpoint"),
    mark("inputs.turn_lost", "it goes on, as its turn is over before the checkpoint is written"),
    mark("inputs.frozen_together", "another replica stands still too"),
    // Reads.
    mark("inputs.snapshot_read", "a program that only reads is answered here"),
    mark("inputs.barrier_released", "a strict read goes on"),
    mark("inputs.barrier_again", "a strict read asks again, as its cut may be lost"),
    mark("inputs.barrier_after_its_cut", "the answer comes after its cut was applied"),
    mark("inputs.malformed_barrier", "the answer makes no sense"),
    mark("inputs.too_many_strict_reads", "a strict read is refused: too many wait"),
    // Recovery.
    mark("inputs.born", "a peer that was not known is known now"),
    mark("inputs.ready", "a replica takes part"),
    mark("inputs.malformed_greeting", "a greeting makes no sense"),
    mark("inputs.stranger", "a peer has another birth than is known here"),
    mark("inputs.rejoin_asks", "a replica whose disk is gone asks what others know of it"),
    mark("inputs.rejoin_answered", "a peer is told what is known of it"),
    mark("inputs.rejoin_too_early", "a peer asks before this replica is ready"),
    mark("inputs.not_while_rejoining", "something else is said to a replica that asks"),
    mark("inputs.malformed_rejoin", "the question makes no sense"),
    mark("inputs.malformed_recollection", "an answer can't be read"),
    mark("inputs.recollection_late", "an answer is to an earlier question, or comes again"),
    mark("inputs.peer_forgot_too", "a peer answers that it has forgotten as well"),
    mark("inputs.greeting_late", "a greeting is overtaken by the answer that came after it"),
    mark("inputs.rejoin_knows", "all have answered, and enough of them remember"),
    mark("inputs.orphans_dropped", "batches behind a gap are given up with their source's life"),
    mark("inputs.own_batch_fetched", "a batch of its own earlier life comes back"),
    mark("inputs.rejoined", "it does"),
    mark("inputs.checkpoint", "a checkpoint is asked for"),
    mark("inputs.checkpoint_failed", "it was not written"),
    mark(
        "inputs.checkpoint_requested",
        "batches or cuts are gone: a peer is asked for a checkpoint",
    ),
    mark("inputs.checkpoint_resumed", "a peer that was away takes the rest of one"),
    mark("inputs.checkpoint_forgotten", "a peer asks for the rest of one that is not kept"),
    mark("inputs.checkpoint_stalled", "another peer is asked, as nothing comes from the first"),
    mark("inputs.checkpoint_outrun", "what is needed begins after it by now"),
    mark("inputs.checkpoint_called_off", "the batches came after all"),
    mark("inputs.checkpoint_too_old", "it is older than what is here"),
    mark("inputs.checkpoint_installed", "it is installed"),
    mark("inputs.malformed_chunk", "a part of it can't be read"),
    mark("inputs.malformed_checkpoint_request", "a request for one makes no sense"),
    mark("inputs.malformed_checkpoint_gone", "a word on one that is gone makes no sense"),
    mark("inputs.malformed_checkpoint_ack", "an acknowledgement of it makes no sense"),
    mark("inputs.unexpected_chunk", "a part of it comes out of its place"),
];
