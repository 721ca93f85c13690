//! Coverage marks of streams.

use pangea_core::protocol::Mark;

use crate::marks::{LOST_LOG, NONSENSE, mark};

/// All marks of this component.
pub(crate) const ALL: &[Mark] = &[
    mark("streams.batch_sent", "a batch is sent to all peers"),
    mark("streams.batch_again", "a batch that is already on this replica arrives again"),
    mark("streams.batch_from_another", "a batch arrives from another node than its source"),
    mark("streams.own_batch_from_another", "a peer sends a batch of this replica's own log")
        .rare("a batch made before the disk was lost arrives twice"),
    mark("streams.batch_after_gap", "a batch arrives before an earlier one of its source"),
    mark("streams.too_much_ahead", "a batch is not buffered, because many bytes are behind a gap")
        .never("batches of a simulated run are small"),
    mark("streams.batch_far_ahead", "a batch is too far ahead to be buffered")
        .never("65,536 batches would have to be in flight"),
    mark("streams.batch_out_of_sequence", "a batch does not continue its log").never(LOST_LOG),
    mark("streams.malformed_batch", "a batch can't be decoded").never(NONSENSE),
    mark("streams.malformed_ack", "an acknowledgement is malformed").never(NONSENSE),
    mark("streams.malformed_proof", "a proof of availability is malformed").never(NONSENSE),
    mark("streams.malformed_fetch", "a request for batches is malformed").never(NONSENSE),
    mark("streams.malformed_gone", "a notice of discarded batches is malformed").never(NONSENSE),
    mark("streams.acknowledged", "batches are acknowledged"),
    mark("streams.proof_sent", "a proof of availability is sent"),
    mark("streams.proof_before_batch", "a proof of availability arrives before its batch"),
    mark("streams.fetch", "a missing batch is requested"),
    mark("streams.fetch_from_everyone", "a missing batch is requested from all peers")
        .rare("the source is lost, and no survivor has told another that it has the batch"),
    mark("streams.fetch_of_collected", "a peer requests a batch that this replica has discarded"),
    mark(
        "streams.orphans_dropped",
        "batches after a gap are dropped because their source lost its disk",
    )
    .rare("a source loses its disk while a peer has not received one of its batches"),
    mark("streams.own_batch_fetched", "a batch made before the disk was lost is fetched again"),
    mark("streams.batch_of_sealed", "a batch of a source that is removed is not stored")
        .rare("a removed node must send something before it knows"),
];
