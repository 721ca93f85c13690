//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

pub(crate) const fn mark(name: &'static str, when: &'static str) -> Mark {
    Mark::new(name, when)
}

/// Why a swarm never hits marks of messages that make no sense.
pub(crate) const NONSENSE: &str =
    "no replica sends it; see protocols/tests/phases/nonsense.rs and the fuzz targets";
/// Why a swarm never hits marks of replicas that differ.
const DIFFERS: &str = "replicas never differ; see protocols/tests/phases/digests.rs";
/// Why a swarm never hits marks of a replica that lost its log without being replaced.
const LOST_LOG: &str = "a node lost its log without being replaced; see protocols/tests/phases";

/// The marks of the input log, and then a protocol's own. `unused` names marks of the input log
/// that the protocol never makes.
pub(crate) const fn with<const N: usize>(own: &[Mark], unused: &[&str]) -> [Mark; N] {
    assert!(N == ALL.len() + own.len(), "the length is that of both lists together");
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
    mark("inputs.batch_again", "a batch that is already on this replica arrives again"),
    mark("inputs.batch_from_another", "a batch arrives from another node than its source"),
    mark("inputs.own_batch_from_another", "a peer sends a batch of this replica's own log")
        .rare("a batch made before the disk was lost arrives twice"),
    mark("inputs.batch_after_gap", "a batch arrives before an earlier one of its source"),
    mark("inputs.too_much_ahead", "a batch is not buffered, because many bytes are behind a gap")
        .never("batches of a simulated run are small"),
    mark("inputs.batch_far_ahead", "a batch is too far ahead to be buffered")
        .never("65,536 batches would have to be in flight"),
    mark("inputs.batch_out_of_sequence", "a batch does not continue its log").never(LOST_LOG),
    mark("inputs.malformed_batch", "a batch can't be decoded").never(NONSENSE),
    mark("inputs.malformed_ack", "an acknowledgement is malformed").never(NONSENSE),
    mark("inputs.malformed_proof", "a proof of availability is malformed").never(NONSENSE),
    mark("inputs.malformed_fetch", "a request for batches is malformed").never(NONSENSE),
    mark("inputs.malformed_gone", "a notice of discarded batches is malformed").never(NONSENSE),
    mark("inputs.malformed_transfer", "a transfer of leadership is malformed").never(NONSENSE),
    mark("inputs.malformed_progress", "a progress report is malformed").never(NONSENSE),
    mark("inputs.acknowledged", "batches are acknowledged"),
    mark("inputs.proof_sent", "a proof of availability is sent"),
    mark("inputs.proof_before_batch", "a proof of availability arrives before its batch"),
    mark("inputs.fetch", "a missing batch is requested"),
    mark("inputs.fetch_from_everyone", "a missing batch is requested from all peers")
        .rare("the source is lost, and no survivor has told another that it has the batch"),
    mark("inputs.fetch_of_collected", "a peer requests a batch that this replica has discarded"),
    mark("inputs.epoch_skipped", "the operator has listed an epoch to be skipped")
        .never("no epoch fails; see protocols/tests/phases/failing.rs"),
    // Digests.
    mark("inputs.rows_digested", "the rows of some segments are digested"),
    mark("inputs.peer_differs", "a digest of a peer differs from this replica's").never(DIFFERS),
    mark("inputs.stops_differing", "a majority agrees on another digest than this replica's")
        .never(DIFFERS),
    mark("inputs.malformed_digests", "a list of digests makes no sense").never(NONSENSE),
    // Minerva §3.4, the cut.
    mark("inputs.cut_proposed", "the coordinator proposes a cut"),
    mark("inputs.cut_decided", "a cut is decided"),
    mark("inputs.cut_waits_for_batch", "a cut names a batch that has not arrived yet"),
    mark("inputs.cut_waits_for_checkpoint", "a cut can't be applied before a checkpoint arrives"),
    mark("inputs.too_many_undecided", "no cut is proposed because agreement does not keep up")
        .rare("agreement is slower than the epochs for a long time"),
    mark("inputs.coordinator_changed", "a cut by another coordinator is applied"),
    mark(
        "inputs.proposals_lost",
        "the replica leads again, and its earlier proposals were not decided",
    ),
    mark("inputs.remove_replica", "a silent replica is removed from the configuration"),
    mark(
        "inputs.remove_straggler",
        "a straggler is removed because too many batches are retained for it",
    )
    .rare("a node is slow for a long time, and has much to run"),
    mark("inputs.readmit_replica", "a removed replica is readmitted"),
    mark("inputs.was_removed", "this replica was removed"),
    mark(
        "inputs.agreement_too_early",
        "a message of agreement arrives before this replica is ready",
    ),
    mark("inputs.agreement_refused", "a message of agreement is invalid on this replica")
        .rare("an answer arrives after a change of leaders"),
    mark("agreement.out_of_place", "a message of agreement continues a log that was replaced")
        .rare("an answer arrives after a change of leaders"),
    mark("agreement.refused_malformed", "a message of agreement can't be decoded").never(NONSENSE),
    mark("agreement.refused_name", "a message of agreement names another sender").never(NONSENSE),
    mark("agreement.refused_ballot", "a message of agreement has a ballot that does not exist")
        .never(NONSENSE),
    mark("agreement.refused_index", "a message of agreement has an index that does not exist")
        .never(NONSENSE),
    mark(
        "agreement.refused_entry",
        "a message of agreement contains a cut that no replica proposes",
    )
    .never(NONSENSE),
    mark("agreement.refused_unused", "a message of agreement is of a kind that is not used")
        .never(NONSENSE),
    mark("inputs.cuts_forgotten", "old cuts are truncated in agreement's log"),
    mark("inputs.cuts_skipped", "the peers have truncated cuts that this replica has not received"),
    mark("inputs.waits_for_others", "no cut is proposed because another log is far behind")
        .rare("a shard is unreachable for seconds while the others continue"),
    mark(
        "inputs.waits_for_node",
        "this node waits for one that is far behind, or has been for a long time",
    ),
    mark("inputs.too_far_behind", "this replica has more to run than it may buffer")
        .rare("a node is slow for a long time, and has much to run"),
    mark(
        "inputs.backlog_left",
        "a removed replica skips its backlog and continues from a peer's checkpoint",
    )
    .rare(
        "a replica must fall too far behind, and be removed before it has run a part of its \
         backlog",
    ),
    mark("inputs.epoch_applied", "an epoch is applied"),
    mark("inputs.epoch_refused", "an epoch was proposed by a program with other procedures")
        .rare("nodes change their programs while epochs are not applied everywhere"),
    mark("inputs.refused_client", "a request is refused: other procedures are needed, or a stop")
        .rare("nodes change their programs while epochs are not applied everywhere"),
    // Calvin §5, checkpoints.
    mark("inputs.waits_for_point", "a checkpoint is due, and waits for the next point"),
    mark("inputs.waits_for_turn", "a checkpoint is due, and waits for the checkpoint turn"),
    mark(
        "inputs.turn_changed",
        "the coordinator gives the checkpoint turn to another replica, or to none",
    ),
    mark("inputs.frozen", "a replica is frozen for its checkpoint"),
    mark("inputs.turn_lost", "a frozen replica continues because it lost the checkpoint turn")
        .rare("a frozen replica is unreachable for the others"),
    mark("inputs.frozen_together", "two replicas are frozen at once")
        .rare("a checkpoint turn ends before one of the two has received that"),
    // Reads.
    mark("inputs.snapshot_read", "this replica answers a read-only program"),
    mark("inputs.barrier_released", "a strict read continues"),
    mark("inputs.barrier_again", "a strict read requests another cut because its own may be lost"),
    mark(
        "inputs.barrier_after_its_cut",
        "the reply to a strict read arrives after its cut was applied",
    )
    .rare("two messages pass each other within an epoch"),
    mark("inputs.malformed_barrier", "the reply to a strict read is malformed").never(NONSENSE),
    mark("inputs.too_many_strict_reads", "a strict read is refused because too many wait")
        .never("more clients are needed than simulated runs have"),
    // Recovery.
    mark("inputs.born", "a peer's log identity is recorded for the first time"),
    mark("inputs.ready", "a replica starts to take part"),
    mark("inputs.malformed_greeting", "a greeting is malformed").never(NONSENSE),
    mark("inputs.stranger", "a peer has another log identity than the recorded one")
        .never(LOST_LOG),
    mark("inputs.stranger_ignored", "a peer with another log identity sends something else")
        .never(LOST_LOG),
    mark("inputs.before_greeting", "a message waits for the greeting of its sender")
        .rare("a message on the other lane overtakes it"),
    mark("inputs.too_much_before_greeting", "messages of a peer that has not greeted are dropped")
        .never(NONSENSE),
    mark("inputs.rejoin_asks", "a replica that lost its disk queries its peers"),
    mark("inputs.rejoin_answered", "a rejoining peer gets an answer"),
    mark("inputs.rejoin_too_early", "a peer's rejoin query arrives before this replica is ready")
        .rare("a node is replaced just after a peer that it queries has started"),
    mark(
        "inputs.not_while_rejoining",
        "a message other than an answer reaches a rejoining replica",
    ),
    mark("inputs.malformed_rejoin", "a rejoin query is malformed").never(NONSENSE),
    mark("inputs.malformed_recollection", "an answer to a rejoin query can't be decoded")
        .never(NONSENSE),
    mark(
        "inputs.recollection_late",
        "an answer to a rejoin query is a repetition, or is to an earlier query",
    ),
    mark("inputs.peer_forgot_too", "a peer answers that it has lost its disk, too")
        .never("simulated runs lose one disk at a time; see protocols/tests/phases"),
    mark("inputs.greeting_late", "a greeting arrives after the rejoin answer that was sent later")
        .rare("a large answer overtakes a greeting of the same session"),
    mark("inputs.rejoin_knows", "all peers have answered, and enough of them have their disks"),
    mark(
        "inputs.orphans_dropped",
        "batches after a gap are dropped because their source lost its disk",
    )
    .rare("a source loses its disk while a peer has not received one of its batches"),
    mark("inputs.own_batch_fetched", "a batch made before the disk was lost is fetched again"),
    mark("inputs.rejoined", "a replaced replica has rejoined"),
    mark("inputs.checkpoint", "a checkpoint is requested from the driver"),
    mark("inputs.stop_checkpoint", "a checkpoint is requested because the node is to stop")
        .rare("a node is stopped in order"),
    mark("inputs.sealed", "no cut is proposed, because replicas stop and too few stay")
        .rare("most nodes are stopped in order"),
    mark("inputs.leadership_left", "a coordinator that can't go on leaves its place to another")
        .rare("the coordinator is stopped in order and enough stay, or it needs a checkpoint"),
    mark("inputs.leads_instead", "the leader left its place to this replica")
        .rare("a preferred master takes over, or a coordinator is stopped in order"),
    mark("inputs.stop_released", "the coordinator can do without a replica that stops")
        .rare("a node is stopped in order"),
    mark(
        "inputs.other_program_first",
        "no cut is proposed, because one of another program in the log comes first",
    )
    .rare("nodes change their programs while a cut is not decided"),
    mark("inputs.malformed_release", "the release of a stopping replica is malformed")
        .never(NONSENSE),
    mark("inputs.stop_over", "a node that is to stop may end").rare("a node is stopped in order"),
    mark("inputs.checkpoint_failed", "a checkpoint was not written"),
    mark(
        "inputs.checkpoint_requested",
        "a checkpoint is requested from a peer: batches or cuts are no longer retained",
    ),
    mark("inputs.checkpoint_resumed", "a peer continues an interrupted transfer")
        .rare("a connection is lost during a transfer"),
    mark(
        "inputs.checkpoint_forgotten",
        "a peer continues a transfer of a checkpoint that is no longer retained",
    )
    .rare("a node crashes during a transfer"),
    mark(
        "inputs.checkpoint_stalled",
        "a checkpoint is requested from another peer because the first is silent",
    )
    .rare("a node is lost during a transfer"),
    mark(
        "inputs.checkpoint_outrun",
        "the cuts needed after a checkpoint were truncated during its transfer",
    )
    .rare("cuts are truncated during a transfer"),
    mark(
        "inputs.checkpoint_called_off",
        "a transfer is cancelled because the missing batches arrived",
    )
    .rare("the batches arrive during a transfer"),
    mark("inputs.checkpoint_too_old", "a received checkpoint is older than this replica's state")
        .rare("the batches arrive while the last chunk is in flight"),
    mark("inputs.checkpoint_installed", "a received checkpoint is installed"),
    mark("inputs.malformed_chunk", "a chunk of a checkpoint can't be decoded").never(NONSENSE),
    mark("inputs.malformed_checkpoint_request", "a request for a checkpoint is malformed")
        .never(NONSENSE),
    mark("inputs.malformed_checkpoint_gone", "a notice of a discarded checkpoint is malformed")
        .never(NONSENSE),
    mark("inputs.malformed_checkpoint_ack", "an acknowledgement of a chunk is malformed")
        .never(NONSENSE),
    mark("inputs.unexpected_chunk", "a chunk of a checkpoint arrives out of order")
        .rare("two transfers to one replica overlap"),
];
