//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::marks::{NONSENSE, all_of, mark};
use crate::{agreement, checkpoints, digests, presence, transfer};

/// All marks of a replica.
pub(super) const ALL: &[Mark] = &all_of::<COUNT>(&ALL_LISTS, &[]);

const ALL_LISTS: [&[Mark]; 6] = [
    presence::marks::ALL,
    agreement::marks::ALL,
    transfer::marks::ALL,
    checkpoints::MARKS,
    digests::MARKS,
    OWN,
];

/// The number of marks.
const COUNT: usize = {
    let (mut count, mut list) = (0, 0);
    while list < ALL_LISTS.len() {
        count += ALL_LISTS[list].len();
        list += 1;
    }
    count
};

/// Slots move in `sim/tests/simulation/mako_moves.rs`.
const NO_MOVES: &str = "swarms move no slots";

/// All marks of Mako itself, in the order of the phases.
const OWN: &[Mark] = &[
    // §4.1, forwarding.
    mark("mako.forwarded_again", "transactions in flight are sent to a new leader"),
    mark("mako.forwarded_to_another", "a replica that does not lead the epoch gets a request"),
    mark("mako.refused_by_another", "a leader that was replaced refuses a transaction")
        .rare("few transactions are refused"),
    mark("mako.known_transaction", "a leader gets a transaction that it has taken already"),
    mark("mako.too_much_unsettled", "a leader refuses a transaction: too much is not replicated")
        .never("drawn limits are above what the workloads load"),
    mark("mako.unknown_program", "a leader does not have the program of a transaction")
        .never("simulated programs have all procedures of the ones before"),
    mark("mako.malformed_transactions", "transactions are refused: they make no sense")
        .never(NONSENSE),
    // §4.3, streams, and §4.4, replay.
    mark("mako.log_of_another_epoch", "entries arrive from the leader of another epoch"),
    mark("mako.ack_of_another_epoch", "an acknowledgement arrives for another epoch"),
    mark("mako.log_with_gap", "entries arrive before those before them")
        .rare("a follower has installed a checkpoint while the leader sent entries"),
    mark("mako.malformed_log", "entries are refused: they make no sense").never(NONSENSE),
    mark("mako.applied_in_steps", "a replica has more to apply than a step should")
        .rare("a simulated run has few writes"),
    // §5.2, epochs.
    mark("mako.agreement_too_early", "a message of agreement arrives before a replica is ready")
        .rare("a peer is ready before"),
    mark("mako.epoch", "a replica follows another epoch"),
    mark("mako.epoch_proposed", "the manager proposes an epoch"),
    mark("mako.held_rows", "rows are unlocked that were not replicated")
        .never("swarms have speculation"),
    mark("mako.own_first", "writes of other shards depend on a row that has changed meanwhile")
        .rare("few programs write a value there that they have read here"),
    mark("mako.rows_kept", "a shard keeps rows locked that have changed, for the next attempt"),
    mark("mako.waits_for_row", "a transaction over shards waits for a locked row"),
    mark("mako.learner_leads", "a replica without a vote leads").never("swarms have no learners"),
    mark("mako.outdone", "the manager lets a replica lead that hears more nodes than the leader"),
    mark("mako.end_proposed", "the manager proposes the end of the log of the epochs before"),
    mark("mako.two_leaders", "a node knows other leaders of an epoch").never(NONSENSE),
    mark("mako.regrouped", "a replica refuses to read its clocks with other groups of shards")
        .never("runs keep their settings"),
    mark("mako.malformed_epoch", "a decision is refused: it makes no sense").never(NONSENSE),
    mark("mako.malformed_progress", "a report is refused: it makes no sense").never(NONSENSE),
    // §5.2, closing and rollback.
    mark("mako.report_for_another", "a report arrives for another epoch"),
    mark("mako.tail_fetched", "a new leader takes the log of another replica"),
    mark("mako.tail_forgotten", "a new leader asks for entries that are forgotten")
        .rare("it has been away for long, and there is no other one"),
    mark("mako.log_adopted", "a replica takes the log of an epoch"),
    mark("mako.leads", "a leader begins to execute transactions"),
    mark("mako.rolled_back", "a leader that was replaced takes back what it has executed"),
    // Several shards.
    mark("mako.coordinated", "a leader coordinates a transaction over several shards"),
    mark("mako.certified", "a transaction over several shards is certified"),
    mark("mako.attempt_failed", "a transaction over several shards meets a conflict"),
    mark("mako.attempt_late", "an attempt is given up, because a shard does not answer"),
    mark("mako.parked", "a local transaction waits for a locked row"),
    mark("mako.dependent", "a local transaction has read a row that depends on other shards"),
    mark("mako.void", "entries that depend on lost ones are void"),
    mark("mako.installed_again", "a transaction is installed again, or after it was forgotten")
        .rare("a message was lost"),
    mark("mako.stays", "a leader goes on in another epoch"),
    mark("mako.doubtful", "a local transaction waits, because a row that it reads may be void")
        .rare("local transactions seldom read rows that another shard may lose"),
    mark("mako.attempt_in_doubt", "an attempt is postponed until an epoch has begun"),
    mark("mako.asked_early", "a leader is asked how transactions ended, and does not know yet")
        .rare("few transactions are open when a leader fails"),
    mark("mako.installed_late", "a transaction is installed when its epoch has ended")
        .rare("few transactions are open when an epoch ends"),
    mark("mako.dropped_late", "a transaction that was not certified is dropped at an epoch's end")
        .rare("few transactions are open when an epoch ends"),
    mark("mako.move_asked", "a client asks that slots are moved").never(NO_MOVES),
    mark("mako.move_refused", "the manager refuses to move slots").never(NO_MOVES),
    mark("mako.migration_begins", "the manager proposes a migration").never(NO_MOVES),
    mark("mako.migration_ends", "the manager proposes the end of a migration").never(NO_MOVES),
    mark("mako.barred", "a transaction waits for a slot that moves").never(NO_MOVES),
    mark("mako.leftovers", "a shard deletes rows of a migration that has begun anew")
        .never(NO_MOVES),
    mark("mako.piece_sent", "a leader sends rows of slots that move").never(NO_MOVES),
    mark("mako.piece", "a leader logs rows of slots that move").never(NO_MOVES),
    mark("mako.moved", "the rows of slots are replicated on their new shard").never(NO_MOVES),
    mark("mako.swept", "a shard deletes rows of slots that have moved away").never(NO_MOVES),
    mark("mako.copy_of_another_epoch", "rows are asked for, or arrive, that are not of this epoch")
        .never(NO_MOVES),
    mark("mako.malformed_rows", "rows or moves of slots are refused: they make no sense")
        .never(NONSENSE),
    mark("mako.items_of_another_epoch", "items arrive that are not of this epoch"),
    mark("mako.malformed_items", "items are refused: they make no sense").never(NONSENSE),
    mark("mako.not_of_this_shard", "a node of another shard sends what only replicas may")
        .never(NONSENSE),
    // §8, reads.
    mark("mako.strict_read", "a strict read arrives"),
    mark("mako.strict_read_asks_again", "a strict read asks again, after it has waited for long")
        .rare("the leader is suspected first"),
    mark("mako.strict_read_of_epoch", "a strict read is answered by a leader that was replaced"),
    mark("mako.snapshot_read", "a transaction that only reads is answered at once"),
    // Restart, checkpoints and stops.
    mark("mako.record_after_gap", "a restart finds entries after a checkpoint that was lost")
        .rare("a node crashes after it has installed a checkpoint, and before it has its own"),
    mark("mako.checkpoint_installed", "a replica installs the checkpoint of a peer"),
    mark("mako.checkpoint_of_no_use", "a checkpoint of a peer arrives too late")
        .rare("the replica has caught up meanwhile"),
    mark("mako.malformed_checkpoint", "a checkpoint of a peer makes no sense").never(NONSENSE),
    mark("mako.rejoined", "a replica that lost its disk counts again"),
    mark("mako.waits_for_node", "a node waits for another one for long"),
    mark("mako.stop_over", "a replica has stopped in order"),
];
