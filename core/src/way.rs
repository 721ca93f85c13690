//! A transaction's way from its source to its outcome, told to whoever wants to know where its time
//! goes.
//!
//! A protocol sees no clock that would tell: it says, at the moment itself, how far its own
//! transactions have got, and a driver that listens notes the time. It is said once for a batch or
//! an epoch and never for each transaction, by numbers: a node numbers what it takes in the order
//! in which it sends it. Nothing of it changes what a step does, and where nobody listens it costs
//! a branch.

use crate::ids::Ticket;

/// The end of a part of the way. In the order in which most transactions pass them; some are passed
/// together, and one that a protocol does not have is never said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It is in a closed batch, which goes to the log and, when it is there, to the peers.
    Batched,
    /// The batch is durable at its source, and on its way.
    Durable,
    /// Enough replicas have the batch, as far as its source knows.
    Replicated,
    /// Its place in the order is agreed on, and known here.
    Ordered,
    /// Everything before it is applied: its turn has come.
    Begun,
    /// What could be told of it without running it again is decided, and in the store.
    Validated,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 6] = [
        Self::Batched,
        Self::Durable,
        Self::Replicated,
        Self::Ordered,
        Self::Begun,
        Self::Validated,
    ];
}

/// Is told how far a node's own transactions have got, on the thread that takes the step.
pub trait Witness {
    /// What waits under this ticket is the node's transaction with this number. Where it is run at
    /// once it has been.
    fn named(&self, ticket: Ticket, sequence: u64);

    /// All of the node's transactions with numbers below this one have come to the end of a phase.
    fn reached(&self, phase: Phase, below: u64);
}
