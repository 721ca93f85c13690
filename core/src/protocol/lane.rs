//! The two connections to each peer.

/// One of the two connections to a peer. Messages on one lane arrive in the order in which they
/// were sent, or not at all. Messages on different lanes are not ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Small and urgent messages: acknowledgements, votes, heads.
    Control,
    /// Large messages: batches, checkpoints.
    Bulk,
}
