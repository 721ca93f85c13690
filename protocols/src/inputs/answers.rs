//! What a client is told whose transaction was not taken, or was lost sight of.

use pangea_core::txn::{Abort, SqlState};

/// More transactions of this replica than this are not taken before some are applied: the cluster
/// is not keeping up, or this replica is cut off.
pub(crate) const IN_FLIGHT_MAX: usize = 400_000;

/// There are as many already.
pub(crate) fn too_many_in_flight() -> Abort {
    let message = format!("more than {IN_FLIGHT_MAX} transactions wait to be committed");
    Abort::new(SqlState::INSUFFICIENT_RESOURCES, message)
        .with_detail("The cluster is not keeping up, or this node can't reach a majority.")
        .with_hint("Try again later.")
}

/// A peer's checkpoint holds what became of it, and does not say.
pub(crate) fn outcome_unknown() -> Abort {
    Abort::new(
        SqlState::OUTCOME_UNKNOWN,
        "the outcome of the transaction is not known on this node",
    )
    .with_detail("The node was cut off, and took the state of a peer when it came back.")
    .with_hint("Look at the data before you try again.")
}

/// This replica's disk was lost, and it does not hold yet what it held.
pub(crate) fn not_rejoined() -> Abort {
    let message = "this node is being replaced and takes no requests yet";
    Abort::new(SqlState::CANNOT_CONNECT_NOW, message)
        .with_detail("It fetches what it held from the other nodes.")
        .with_hint("Use another node, or try again later.")
}
