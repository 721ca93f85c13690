//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::marks::{NONSENSE, all_of, mark};
use crate::{agreement, checkpoints, digests, presence, streams, transfer};

/// All marks of a replica.
pub(super) const ALL: &[Mark] =
    &all_of::<COUNT>(&[STREAMS, PRESENCE, TRANSFER, AGREEMENT, DIGESTS, CHECKPOINTS, OWN], UNUSED);

const STREAMS: &[Mark] = streams::marks::ALL;
const PRESENCE: &[Mark] = presence::marks::ALL;
const TRANSFER: &[Mark] = transfer::marks::ALL;
const AGREEMENT: &[Mark] = agreement::marks::ALL;
const DIGESTS: &[Mark] = digests::MARKS;
const CHECKPOINTS: &[Mark] = checkpoints::MARKS;

/// The number of marks.
const COUNT: usize = STREAMS.len()
    + PRESENCE.len()
    + TRANSFER.len()
    + AGREEMENT.len()
    + DIGESTS.len()
    + CHECKPOINTS.len()
    + OWN.len();

/// GeoGauss acknowledges batches to all replicas, so nobody needs a proof.
const UNUSED: &[&str] = &["streams.proof_sent", "streams.proof_before_batch"];

/// All marks of GeoGauss itself, in the order of the phases.
const OWN: &[Mark] = &[
    // §4.1.1, execution.
    mark("geogauss.read_only", "a transaction without writes is answered at once"),
    mark("geogauss.certified", "an interactive transaction is added to an epoch"),
    mark("geogauss.in_order", "a program is added to an epoch that every replica runs"),
    mark("geogauss.chained", "a program has read the writes of an undecided transaction"),
    mark("geogauss.doomed", "a transaction depends on one that has lost"),
    mark("geogauss.not_chained", "a program is run again without the writes of undecided ones"),
    mark("geogauss.adds", "a transaction adds to rows that it does not read"),
    mark("geogauss.hot", "a program is run by every replica because others have lost at its rows"),
    mark("geogauss.queue_in_slices", "a step runs only a part of the queue"),
    mark("geogauss.batch_full", "a batch is sent because it is large enough"),
    mark("geogauss.waits_for_earlier_epochs", "a program waits for the epochs before its own"),
    mark("geogauss.lost_at_origin", "an interactive transaction loses before it is sent")
        .never("only the paper's validation does that; see sim/tests/simulation/geogauss_runs.rs"),
    mark("geogauss.too_many_in_flight", "a client is refused: too many transactions in flight")
        .never("a run has too few clients"),
    // §3, §4.1, epochs.
    mark("geogauss.epoch_ended_by_time", "an epoch ends because its time is over"),
    mark("geogauss.empty_epoch_ended", "an epoch without transactions ends, not long after others"),
    mark("geogauss.follows_a_peer", "an epoch ends because a peer has ended it or is ahead"),
    mark("geogauss.eof_sent", "the end of an epoch is sent without a batch"),
    mark("geogauss.eof_again", "an end of an epoch arrives that is known"),
    mark("geogauss.end_relayed", "a peer tells what a replica has ended that was not heard itself"),
    mark("geogauss.relays", "a peer does not hear a replica, whose batches are handed on to it"),
    mark("geogauss.malformed_eof", "the end of an epoch is refused: it makes no sense")
        .never(NONSENSE),
    mark("geogauss.batch_after_end", "a batch is refused: its source had ended its epoch")
        .never(NONSENSE),
    mark("geogauss.end_before_batch", "an end is refused: a later batch is in one of its epochs")
        .never(NONSENSE),
    mark("geogauss.end_waits_for_view", "an epoch ends later, because a view is about to begin")
        .rare("a view must take longer than epochs are reserved ahead"),
    // §5.2, membership.
    mark("geogauss.change_proposed", "the leader proposes a seal or a view"),
    mark("geogauss.sealed", "a replica learns of a seal"),
    mark("geogauss.view_entered", "a replica enters a view"),
    mark("geogauss.removed_for_lag", "the leader removes a member for which an epoch waits")
        .rare("a member must be alive and end no epoch for half a second"),
    mark("geogauss.was_removed", "a replica learns that it was removed"),
    mark("geogauss.joined", "a replica that was removed joins again"),
    mark("geogauss.refused_while_removed", "a client of a replica that was removed is refused"),
    mark("geogauss.late_itself", "a replica was busy for so long that it is late"),
    mark("geogauss.malformed_report", "a report makes no sense").never(NONSENSE),
    mark("geogauss.malformed_request", "a question about membership makes no sense")
        .never(NONSENSE),
    mark("geogauss.malformed_progress", "a progress report makes no sense").never(NONSENSE),
    mark(
        "geogauss.agreement_too_early",
        "a message of agreement arrives before a replica is ready",
    ),
    // Restart.
    mark("geogauss.reserved", "epochs are reserved"),
    mark("geogauss.caught_up", "a started replica has the batches that its peers knew"),
    mark("geogauss.epoch_replayed", "a merged epoch is applied from the log"),
    mark("geogauss.half_epoch_ended", "a restart ends an epoch that had not ended"),
    mark("geogauss.rejoined", "a replaced replica has its data again"),
    mark("geogauss.checkpoint_too_old", "a received checkpoint is older than the state here")
        .rare("the batches arrive while the last chunk is in flight"),
    mark("geogauss.checkpoint_installed", "a received checkpoint is installed"),
    mark("geogauss.malformed_checkpoint", "the deletions of a checkpoint make no sense")
        .never(NONSENSE),
    mark("geogauss.outcome_unknown", "a received checkpoint has skipped transactions of clients")
        .rare("a replica must be removed, and its last epochs must count"),
    mark("geogauss.epoch_skipped", "the operator has listed an epoch to be skipped")
        .never("no epoch fails; see protocols/tests/phases/failing.rs"),
    mark("geogauss.epoch_refused", "an epoch was created under other rules")
        .rare("nodes change their programs while epochs are not merged everywhere"),
    mark("geogauss.epoch_of_two_programs", "an epoch has batches of two programs: no effect")
        .rare("nodes change their programs after a kill"),
    mark("geogauss.refused_client", "a request is refused: other procedures are needed, or a stop")
        .rare("nodes change their programs"),
    mark("geogauss.waits_for_node", "the next epoch waits for a node that is late"),
    mark("geogauss.too_far_behind", "a client is refused: too much waits for a node")
        .rare("a majority must be unreachable for seconds"),
    mark("geogauss.stop_over", "a node that is to stop may end").rare("a node is stopped in order"),
    // §4.1.2, §4.1.3, merge.
    mark("geogauss.epoch_merged", "an epoch is merged and published"),
    mark("geogauss.epochs_in_steps", "a step ends before all ready epochs are merged"),
    mark("geogauss.lost", "a transaction loses to another one"),
    mark("geogauss.add_failed", "a transaction aborts: a row can't hold what it adds"),
    mark("geogauss.too_old", "a transaction loses because its snapshot is before the horizon"),
    mark("geogauss.tried_again", "a program that has lost is run again"),
    // §5.2, caches.
    mark("geogauss.batch_kept", "a cache persists a batch").rare("only some clusters have caches"),
    mark("geogauss.kept_after_gap", "a cache lacks the batch before one that arrives")
        .never("a home sends its batches in order"),
    mark("geogauss.fetched_from_cache", "a cache sends batches")
        .rare("only some clusters have caches"),
    mark("geogauss.batch_of_cache", "a batch arrives from a cache")
        .rare("only some clusters have caches"),
    mark("geogauss.caches_asked", "the caches of a removed replica are asked")
        .rare("only some clusters have caches"),
    mark("geogauss.cache_sealed", "a cache confirms no more batches of a view")
        .rare("only some clusters have caches"),
    mark("geogauss.caches_late", "a seal does not wait for caches any longer")
        .rare("only some clusters have caches"),
    mark("geogauss.cache_of_another", "a message is not one that a cache can send or take")
        .rare("a replica must lose its disk while its cache sends something"),
    // §5.2, early epochs.
    mark("geogauss.merged_early", "an epoch is merged before it is confirmed"),
    mark("geogauss.retreated", "early epochs with batches that do not count are rolled back"),
    mark("geogauss.acknowledged_lost", "a transaction is lost whose commit was acknowledged"),
    mark("geogauss.read_lost", "an interactive transaction has read a state that was lost")
        .rare("it must begin before a replica rolls back and end after that"),
    mark("geogauss.has_read_lost", "a batch may depend on an epoch that was rolled back")
        .rare("two replicas must be lost within a moment"),
    // Strict reads.
    mark("geogauss.strict_read", "a strict read waits for the epochs that have ended"),
    mark("geogauss.strict_read_asks_again", "a strict read asks again who is a member"),
];
