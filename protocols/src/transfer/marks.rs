//! Coverage marks of transfers.

use pangea_core::protocol::Mark;

use crate::marks::{NONSENSE, mark};

/// All marks of this component.
pub(crate) const ALL: &[Mark] = &[
    mark(
        "transfer.checkpoint_requested",
        "a checkpoint is requested from a peer: batches or cuts are no longer retained",
    ),
    mark("transfer.checkpoint_resumed", "a peer continues an interrupted transfer")
        .rare("a connection is lost during a transfer"),
    mark(
        "transfer.checkpoint_forgotten",
        "a peer continues a transfer of a checkpoint that is no longer retained",
    )
    .rare("a node crashes during a transfer"),
    mark(
        "transfer.checkpoint_stalled",
        "a checkpoint is requested from another peer because the first is silent",
    )
    .rare("a node is lost during a transfer"),
    mark(
        "transfer.checkpoint_outrun",
        "the cuts needed after a checkpoint were truncated during its transfer",
    )
    .rare("cuts are truncated during a transfer"),
    mark(
        "transfer.checkpoint_called_off",
        "a transfer is cancelled because the missing batches arrived",
    )
    .rare("the batches arrive during a transfer"),
    mark("transfer.malformed_chunk", "a chunk of a checkpoint can't be decoded").never(NONSENSE),
    mark("transfer.malformed_checkpoint_request", "a request for a checkpoint is malformed")
        .never(NONSENSE),
    mark("transfer.malformed_checkpoint_gone", "a notice of a discarded checkpoint is malformed")
        .never(NONSENSE),
    mark("transfer.malformed_checkpoint_ack", "an acknowledgement of a chunk is malformed")
        .never(NONSENSE),
    mark("transfer.unexpected_chunk", "a chunk of a checkpoint arrives out of order")
        .rare("two transfers to one replica overlap"),
];
