//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::marks::{NONSENSE, all_of, mark};
use crate::{agreement, checkpoints, digests, presence, streams, transfer};

/// The number of marks of the input log and of its components.
pub(crate) const COUNT: usize = streams::marks::ALL.len()
    + presence::marks::ALL.len()
    + transfer::marks::ALL.len()
    + agreement::marks::ALL.len()
    + digests::MARKS.len()
    + checkpoints::MARKS.len()
    + ALL.len();

/// The marks of the input log and its components, and then a protocol's own. `unused` names marks
/// that the protocol never makes.
pub(crate) const fn with<const N: usize>(own: &[Mark], unused: &[&str]) -> [Mark; N] {
    let (streams, presence) = (streams::marks::ALL, presence::marks::ALL);
    let (transfer, agreement) = (transfer::marks::ALL, agreement::marks::ALL);
    let (digests, checkpoints) = (digests::MARKS, checkpoints::MARKS);
    all_of(&[streams, presence, transfer, agreement, digests, checkpoints, ALL, own], unused)
}

/// The marks of the input log itself, in the order of the phases.
const ALL: &[Mark] = &[
    // Minerva §3.3, replication.
    mark("inputs.malformed_transfer", "a transfer of leadership is malformed").never(NONSENSE),
    mark("inputs.malformed_progress", "a progress report is malformed").never(NONSENSE),
    mark("inputs.epoch_skipped", "the operator has listed an epoch to be skipped")
        .never("no epoch fails; see protocols/tests/phases/failing.rs"),
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
    mark("inputs.rejoined", "a replaced replica has rejoined"),
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
    mark("inputs.checkpoint_too_old", "a received checkpoint is older than this replica's state")
        .rare("the batches arrive while the last chunk is in flight"),
    mark("inputs.checkpoint_installed", "a received checkpoint is installed"),
];
