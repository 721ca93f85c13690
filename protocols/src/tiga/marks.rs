//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::marks::{NONSENSE, all_of, mark};
use crate::{agreement, checkpoints, digests, presence, transfer};

/// All marks of a replica.
pub(super) const ALL: &[Mark] = &all_of::<COUNT>(&ALL_LISTS, &[]);

const ALL_LISTS: [&[Mark]; 6] =
    [PRESENCE, AGREEMENT, TRANSFER, checkpoints::MARKS, digests::MARKS, OWN];

const PRESENCE: &[Mark] = presence::marks::ALL;
const AGREEMENT: &[Mark] = agreement::marks::ALL;
const TRANSFER: &[Mark] = transfer::marks::ALL;

/// The number of marks.
const COUNT: usize = {
    let (mut count, mut list) = (0, 0);
    while list < ALL_LISTS.len() {
        count += ALL_LISTS[list].len();
        list += 1;
    }
    count
};

/// All marks of Tiga itself, in the order of the phases.
const OWN: &[Mark] = &[
    // §3.1, coordinators.
    mark("tiga.read_only", "a transaction that only reads is answered at once"),
    mark("tiga.submitted_again", "transactions in flight are sent again"),
    mark("tiga.too_many_in_flight", "a client is refused: too many transactions in flight")
        .never("a run has too few clients"),
    mark("tiga.stamp_replaced", "a stamp is too far in the future, and its leader replaces it"),
    mark("tiga.clock_doubted", "a clock has jumped, or its node was suspended"),
    mark("tiga.clock_corrected", "a shard counts by the clocks of most nodes, not by its own")
        .rare("most clocks are right"),
    mark("tiga.leads_too_far_ahead", "a leader gives up: it has promised too far ahead")
        .rare("most clocks are right"),
    mark("tiga.promise_too_far", "a leader follows a promise that is too far ahead only in part")
        .rare("most clocks are right"),
    mark("tiga.transactions_again", "transactions arrive that are known"),
    mark("tiga.malformed_transactions", "transactions are refused: they make no sense")
        .never(NONSENSE),
    // §3.4, the fast path.
    mark("tiga.fast_reply", "a follower replies for a transaction that is ready"),
    mark("tiga.fast_commit", "a transaction commits by equal replies"),
    mark("tiga.fast_commit_of_shards", "a transaction of several shards commits by replies")
        .rare("few drawn clusters have leaders that do not agree, and programs that are divided"),
    mark("tiga.late_at_follower", "a follower gets a transaction of several shards too late")
        .rare("few drawn clusters have leaders that do not agree, and programs that are divided"),
    mark("tiga.recovered", "a view begins with transactions that were in no log"),
    mark("tiga.malformed_fast_replies", "fast replies are refused: they make no sense")
        .never(NONSENSE),
    mark("tiga.read_waits", "a read waits for what clients were told of on the fast path"),
    // §3.7, the log.
    mark("tiga.log_of_another_view", "cells arrive from a leader of another view"),
    mark("tiga.log_too_early", "cells arrive before those before them")
        .rare("a connection ends while a view begins"),
    mark("tiga.log_again", "cells arrive that are known"),
    mark("tiga.waits_for_node", "a node is late, and its name is told"),
    mark("tiga.leaders_unlinked", "other leaders are chosen, because links between nodes are lost")
        .rare("mostly leaders hear each other and enough others"),
    mark("tiga.handed_on", "transactions are handed on to a leader that does not hear their node"),
    mark("tiga.log_handed_on", "the log is handed on to a replica that does not hear the leader"),
    mark("tiga.fetch", "transactions that are in the log alone are asked for"),
    mark("tiga.malformed_log", "cells are refused: they make no sense").never(NONSENSE),
    mark("tiga.malformed_synced", "a position is refused: it makes no sense").never(NONSENSE),
    mark("tiga.malformed_progress", "progress is refused: it makes no sense").never(NONSENSE),
    mark("tiga.malformed_reply", "a reply is refused: it makes no sense").never(NONSENSE),
    mark("tiga.run_in_steps", "a step runs only some of the cells"),
    // §3.5, other leaders.
    mark("tiga.notices_of_another_view", "notices come from a leader of another view"),
    mark("tiga.notices_repeated", "a leader asks again for the word of another one"),
    mark("tiga.unknown_fetched", "a leader fetches a transaction of which it has only heard"),
    mark("tiga.malformed_notices", "notices are refused: they make no sense").never(NONSENSE),
    // Several shards.
    mark("tiga.subscribed", "a node subscribes to a replica of another shard"),
    mark("tiga.served", "rows are sent to another shard"),
    mark("tiga.outcome_sent", "a coordinator whose shard does not run a transaction is told"),
    mark("tiga.looked_up", "a reconnaissance finds the footprint of a program"),
    mark("tiga.left_footprint", "a transaction has left its footprint, and is ordered again"),
    mark("tiga.left_too_often", "a transaction has left its footprint too often")
        .rare("few programs move their rows so fast"),
    mark("tiga.late_too_often", "a transaction is late on one of its shards again and again")
        .rare("each try has more headroom"),
    mark("tiga.revoked", "a transaction has different stamps in the logs of its shards"),
    mark("tiga.looked_too_far", "a program accesses too much for a reconnaissance")
        .never("no workload has so large transactions"),
    mark("tiga.footprint_too_large", "a footprint is too large for a message")
        .never("no workload has so large transactions"),
    mark("tiga.rows_later", "a new subscriber is sent the rest of its rows in a later step")
        .never("no run retains a megabyte of rows"),
    mark("tiga.resubscribed", "the source of a subscription has taken a checkpoint"),
    mark("tiga.rows_truncated", "a node of another shard needs rows that are retained no more"),
    mark("tiga.rows_evicted", "a node has no room for rows that arrive too early")
        .rare("a node is far behind, and may keep little"),
    mark("tiga.rows_missed", "a source does not retain the rows that this node needs"),
    mark("tiga.found_late", "rows arrive for a reconnaissance that is over"),
    mark("tiga.malformed_items", "rows are refused: they make no sense").never(NONSENSE),
    // §4, views.
    mark("tiga.agreement_too_early", "a message of agreement arrives before this replica is ready"),
    mark("tiga.view_proposed", "the view manager proposes a view"),
    mark("tiga.leaders_moved", "the view manager moves leaders to a better place"),
    mark("tiga.view_begun", "a view is decided"),
    mark("tiga.view_change_too_late", "a log arrives for a view that has begun, or is over"),
    mark("tiga.prepare", "a replica lacks transactions of the log that its leader proposes"),
    mark("tiga.start_proposed", "the view manager proposes the logs with which a view begins"),
    mark("tiga.start_too_far", "a replica lacks what comes before the log of a view"),
    mark("tiga.start_view_too_late", "the log of a view arrives again"),
    mark("tiga.view_started", "a replica sends the log of a view to one that lacks more"),
    mark("tiga.malformed_view", "a view is refused: it makes no sense").never(NONSENSE),
    mark("tiga.message_of_another_shard", "a message comes from a replica of the wrong shard")
        .never(NONSENSE),
    mark("tiga.view_entered", "a replica takes the log of a view"),
    mark("tiga.leads", "a replica begins to lead"),
    mark("tiga.deposed", "a replica leads no more"),
    mark("tiga.retreated", "what a leader has run ahead is taken back"),
    // Checkpoints.
    mark("tiga.checkpoint_of_no_use", "a peer's checkpoint arrives that is not needed any more")
        .rare("what is missing arrives during a transfer"),
    mark("tiga.checkpoint_installed", "a peer's checkpoint is installed"),
    mark("tiga.outcome_unknown", "a transaction is in a peer's checkpoint, and was not run here"),
    mark("tiga.record_after_gap", "a restart skips cells after a checkpoint that a crash took")
        .rare("a crash has to follow a peer's checkpoint; runs that are aimed at it hit it"),
    mark("tiga.malformed_checkpoint", "a peer's checkpoint makes no sense").never(NONSENSE),
    mark("tiga.sealed", "a leader ignores a transaction: too few replicas are there to commit it"),
    mark("tiga.other_program", "a leader ignores a transaction of another program"),
    mark("tiga.cell_refused", "a committed cell needs another program"),
    mark("tiga.rejoined", "a replica that lost its disk counts again"),
    // Reads and stops.
    mark("tiga.strict_read", "a strict read arrives"),
    mark("tiga.strict_read_asks_again", "a strict read asks the others again"),
    mark("tiga.stop_over", "a node that was asked to stop may end"),
];
