//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

pub(crate) const fn mark(name: &'static str, when: &'static str) -> Mark {
    Mark::new(name, when)
}

/// Why a swarm never hits marks of messages that make no sense.
pub(crate) const NONSENSE: &str =
    "no replica sends it; see protocols/tests/phases/nonsense.rs and the fuzz targets";
/// Why a swarm never hits marks of a replica that lost its log without being replaced.
const LOST_LOG: &str = "a node lost its log; see protocols/tests/phases";

/// The marks of the input log, and then a protocol's own. `unused` names marks of the input log
/// that the protocol never makes.
pub(crate) const fn with<const N: usize>(own: &[Mark], unused: &[&str]) -> [Mark; N] {
    assert!(N == ALL.len() + own.len(), "as many as both have");
    let mut all = [mark("", ""); N];
    let mut i = 0;
    while i < N {
        all[i] = if i < ALL.len() { ALL[i] } else { own[i - ALL.len()] };
        if is_among(all[i].name, unused) {
            all[i] = all[i].never("this protocol does not use the phase");
        }
        i += 1;
    }
    all
}

const fn is_among(name: &str, names: &[&str]) -> bool {
    let mut i = 0;
    while i < names.len() {
        if is_same(name.as_bytes(), names[i].as_bytes()) {
            return true;
        }
        i += 1;
    }
    false
}

/// Equality of slices is not `const` yet.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut i = 0;
    while i < one.len() {
        if one[i] != other[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// All marks of this module, in the order of the phases.
pub(crate) const ALL: &[Mark] = &[
    // Minerva §3.3, replication.
    mark("inputs.batch_sent", "a batch is sent to all peers"),
    mark("inputs.batch_again", "a batch comes that is here"),
    mark("inputs.batch_from_another", "a batch comes from somebody else than its source"),
    mark("inputs.own_batch_from_another", "a peer sends a batch of this replica's own log")
        .rare("a batch of an earlier life comes twice"),
    mark("inputs.batch_after_gap", "a batch comes before one that precedes it"),
    mark("inputs.batch_far_ahead", "a batch is too far ahead to be kept")
        .never("it takes 65,536 batches at once"),
    mark("inputs.batch_out_of_sequence", "a batch does not continue its log").never(LOST_LOG),
    mark("inputs.malformed_batch", "a batch can't be read").never(NONSENSE),
    mark("inputs.malformed_ack", "an acknowledgement makes no sense").never(NONSENSE),
    mark("inputs.malformed_proof", "a proof of availability makes no sense").never(NONSENSE),
    mark("inputs.malformed_fetch", "a request for batches makes no sense").never(NONSENSE),
    mark("inputs.malformed_gone", "a word on batches that are gone makes no sense").never(NONSENSE),
    mark("inputs.malformed_yield", "a word on who should lead makes no sense").never(NONSENSE),
    mark("inputs.malformed_progress", "a word on progress makes no sense").never(NONSENSE),
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
    mark("inputs.too_many_undecided", "nothing is proposed, as agreement does not keep up")
        .rare("agreement is slower than epochs for long"),
    mark("inputs.coordinator_changed", "a cut of another coordinator is applied"),
    mark("inputs.proposals_lost", "it leads again, and what it proposed before was not decided"),
    mark("inputs.remove_replica", "a replica was silent for too long"),
    mark("inputs.remove_straggler", "a replica is so far behind that too much is kept for it")
        .rare("a node is slow for long, and there is much that it has to run"),
    mark("inputs.readmit_replica", "a replica that was removed is back"),
    mark("inputs.was_removed", "this replica was removed"),
    mark("inputs.agreement_too_early", "agreement speaks before this replica is ready"),
    mark("inputs.agreement_refused", "a message of agreement makes no sense here")
        .rare("an answer is late by a change of leaders"),
    mark("agreement.out_of_place", "it continues a log that is no longer so")
        .rare("an answer is late by a change of leaders"),
    mark("agreement.refused_malformed", "it can't be read").never(NONSENSE),
    mark("agreement.refused_name", "it is in another's name").never(NONSENSE),
    mark("agreement.refused_ballot", "it has a ballot that nobody has").never(NONSENSE),
    mark("agreement.refused_index", "it counts what there is not").never(NONSENSE),
    mark("agreement.refused_entry", "it holds a cut that nobody proposes").never(NONSENSE),
    mark("agreement.refused_unused", "it is of a part that is not used").never(NONSENSE),
    mark("inputs.cuts_forgotten", "agreement's old cuts are dropped"),
    mark("inputs.cuts_skipped", "the peers have dropped cuts that this replica lacks"),
    mark("inputs.waits_for_others", "another log is far behind: no cut is proposed")
        .rare("a shard is cut off while the others go on for seconds"),
    mark("inputs.waits_for_node", "a node is behind for long, or far, and this one waits for it"),
    mark("inputs.too_far_behind", "this replica has more to run than it should hold")
        .rare("a node is slow for long, and there is much that it has to run"),
    mark("inputs.backlog_left", "it was removed, and goes on from a peer's checkpoint")
        .rare("so it is, and is out before it has a part of that run"),
    mark("inputs.epoch_applied", "an epoch is applied"),
    // Calvin §5, checkpoints.
    mark("inputs.waits_for_point", "a checkpoint is due, and waits for the next point"),
    mark("inputs.waits_for_turn", "a checkpoint is due, and waits for this replica's turn"),
    mark("inputs.turn_changed", "the coordinator gives the turn to somebody else, or to nobody"),
    mark("inputs.frozen", "a replica stands still for its checkpoint"),
    mark("inputs.turn_lost", "it goes on, as its turn is over before the checkpoint is written")
        .rare("a replica is lost to the others while it stands still"),
    mark("inputs.frozen_together", "another replica stands still too")
        .rare("a turn is over where one of two has not heard of it"),
    // Reads.
    mark("inputs.snapshot_read", "a program that only reads is answered here"),
    mark("inputs.barrier_released", "a strict read goes on"),
    mark("inputs.barrier_again", "a strict read asks again, as its cut may be lost"),
    mark("inputs.barrier_after_its_cut", "the answer comes after its cut was applied")
        .rare("two messages pass each other within an epoch"),
    mark("inputs.malformed_barrier", "the answer makes no sense").never(NONSENSE),
    mark("inputs.too_many_strict_reads", "a strict read is refused: too many wait")
        .never("it takes more clients than runs have"),
    // Recovery.
    mark("inputs.born", "a peer that was not known is known now"),
    mark("inputs.ready", "a replica takes part"),
    mark("inputs.malformed_greeting", "a greeting makes no sense").never(NONSENSE),
    mark("inputs.stranger", "a peer has another birth than is known here").never(LOST_LOG),
    mark("inputs.rejoin_asks", "a replica whose disk is gone asks what others know of it"),
    mark("inputs.rejoin_answered", "a peer is told what is known of it"),
    mark("inputs.rejoin_too_early", "a peer asks before this replica is ready")
        .rare("a node is replaced while a peer that it asks has just started"),
    mark("inputs.not_while_rejoining", "something else is said to a replica that asks"),
    mark("inputs.malformed_rejoin", "the question makes no sense").never(NONSENSE),
    mark("inputs.malformed_recollection", "an answer can't be read").never(NONSENSE),
    mark("inputs.recollection_late", "an answer is to an earlier question, or comes again"),
    mark("inputs.peer_forgot_too", "a peer answers that it has forgotten as well")
        .never("one disk is lost at a time; protocols/tests/phases"),
    mark("inputs.greeting_late", "a greeting is overtaken by the answer that came after it")
        .rare("an answer that is large overtakes a greeting of the same session"),
    mark("inputs.rejoin_knows", "all have answered, and enough of them remember"),
    mark("inputs.orphans_dropped", "batches behind a gap are given up with their source's life")
        .rare("a source loses its disk while a peer lacks one of its batches"),
    mark("inputs.own_batch_fetched", "a batch of its own earlier life comes back"),
    mark("inputs.rejoined", "it does"),
    mark("inputs.checkpoint", "a checkpoint is asked for"),
    mark("inputs.checkpoint_failed", "it was not written"),
    mark(
        "inputs.checkpoint_requested",
        "batches or cuts are gone: a peer is asked for a checkpoint",
    ),
    mark("inputs.checkpoint_resumed", "a peer that was away takes the rest of one")
        .rare("a connection is lost in the middle of a transfer"),
    mark("inputs.checkpoint_forgotten", "a peer asks for the rest of one that is not kept")
        .rare("a node crashes in the middle of a transfer"),
    mark("inputs.checkpoint_stalled", "another peer is asked, as nothing comes from the first")
        .rare("a node is lost in the middle of a transfer"),
    mark("inputs.checkpoint_outrun", "what is needed begins after it by now")
        .rare("cuts are forgotten in the middle of a transfer"),
    mark("inputs.checkpoint_called_off", "the batches came after all")
        .rare("the batches come in the middle of a transfer"),
    mark("inputs.checkpoint_too_old", "it is older than what is here")
        .rare("the batches come while the last part is on its way"),
    mark("inputs.checkpoint_installed", "it is installed"),
    mark("inputs.malformed_chunk", "a part of it can't be read").never(NONSENSE),
    mark("inputs.malformed_checkpoint_request", "a request for one makes no sense").never(NONSENSE),
    mark("inputs.malformed_checkpoint_gone", "a word on one that is gone makes no sense")
        .never(NONSENSE),
    mark("inputs.malformed_checkpoint_ack", "an acknowledgement of it makes no sense")
        .never(NONSENSE),
    mark("inputs.unexpected_chunk", "a part of it comes out of its place")
        .rare("two transfers of one replica overlap"),
];
