//! The lifecycle of a transaction from its source to its outcome, for latency breakdowns.
//!
//! A protocol cannot measure its own phases, because it does not read a clock. Instead it reports,
//! at the moment itself, that its local transactions have passed a milestone, and a driver that
//! observes it notes the time. One report covers a whole batch or epoch: a node numbers its
//! transactions in the order in which it sends them, so a report consists of a number. Reports
//! never change the effects of a step; without an observer a report costs one branch.

use crate::ids::Ticket;

/// The end of one stage of a transaction's lifecycle. The order is that in which most transactions
/// pass them. Some stages end together, and a protocol never reports a stage that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Milestone {
    /// The transaction is in a closed batch, which is sent to the log and, once durable, to the
    /// peers.
    Batched,
    /// The batch is durable at its source and is being sent to the peers.
    Durable,
    /// Enough replicas have the batch, as far as its source knows.
    Replicated,
    /// The transaction's place in the order is agreed on, and this node knows it.
    Ordered,
    /// All earlier transactions have been applied, so this one can begin.
    Begun,
    /// The transaction was decided as far as possible without running it again, and the result is
    /// in the store.
    Validated,
}

impl Milestone {
    /// All milestones.
    pub const ALL: [Self; 6] = [
        Self::Batched,
        Self::Durable,
        Self::Replicated,
        Self::Ordered,
        Self::Begun,
        Self::Validated,
    ];
}

/// Observes the progress of a node's local transactions, on the thread that runs the step.
pub trait LatencyObserver {
    /// The request with this ticket is the node's transaction with this number. If the protocol
    /// runs programs at once, this one has been run.
    fn named(&self, ticket: Ticket, sequence: u64);

    /// All of the node's transactions with numbers below this one have passed a milestone.
    fn reached(&self, milestone: Milestone, below: u64);
}
