//! The operations of clients and their results.

use pangea_core::guarantee::Isolation;
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::time::Timestamp;
use pangea_core::txn::Abort;
use pangea_core::workload::Call;

/// Identifies an operation by its index in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub usize);

/// The path on which a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// Sent as a program and ordered.
    Ordered,
    /// Run by the client on a snapshot, then sent as a certified transaction: its reads and writes.
    Certified,
    /// Read on a snapshot that contains everything acknowledged before.
    Strict,
    /// Read on the newest snapshot of its node.
    Snapshot,
}

/// The end of an operation, as far as its client knows.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// It has not ended.
    Open,
    /// It was ordered and committed.
    Committed {
        /// The transaction's id.
        txn: TxnId,
        /// The first version that contains its writes.
        version: SnapshotVersion,
        /// The program's result.
        result: Vec<u8>,
    },
    /// It read a snapshot.
    Read {
        /// The snapshot version.
        version: SnapshotVersion,
        /// The program's result.
        result: Vec<u8>,
    },
    /// It had no effect and returned this error.
    Aborted(Abort),
    /// It never reached a node, or it had submitted no writes when its node stopped.
    Refused,
    /// Its node stopped before it answered: the operation may or may not have committed.
    Ambiguous,
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The client's index.
    pub client: usize,
    /// The node that receives the operation.
    pub node: NodeId,
    /// The path on which it runs.
    pub how: CallKind,
    /// The isolation level that it is granted.
    pub level: Isolation,
    /// The procedure call.
    pub call: Call,
    /// The time at which the client invoked it.
    pub invoked: Timestamp,
    /// The time at which the client received the result, if it did.
    pub ended: Option<Timestamp>,
    /// The result as the client knows it.
    pub end: End,
}

impl Operation {
    /// The program's result, if the operation certainly took place.
    pub fn result(&self) -> Option<&[u8]> {
        match &self.end {
            End::Committed { result, .. } | End::Read { result, .. } => Some(result),
            End::Open | End::Aborted(_) | End::Refused | End::Ambiguous => None,
        }
    }

    /// Whether the operation may have taken place.
    pub fn may_have_happened(&self) -> bool {
        match self.end {
            End::Committed { .. } | End::Read { .. } | End::Ambiguous | End::Open => true,
            End::Aborted(_) | End::Refused => false,
        }
    }
}

/// All operations, in the order of their invocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The operations.
    pub operations: Vec<Operation>,
}

impl History {
    /// Adds an operation that has just been invoked.
    pub fn invoke(&mut self, operation: Operation) -> OpId {
        assert!(
            operation.end == End::Open && operation.ended.is_none(),
            "the operation has just begun"
        );
        self.operations.push(operation);
        OpId(self.operations.len() - 1)
    }

    /// Records the end of an operation.
    pub fn end(&mut self, id: OpId, at: Timestamp, end: End) {
        let operation = &mut self.operations[id.0];
        assert!(operation.end == End::Open, "an operation ends once");
        operation.ended = (end != End::Ambiguous).then_some(at);
        operation.end = end;
    }
}

impl std::ops::Index<OpId> for History {
    type Output = Operation;
    fn index(&self, id: OpId) -> &Operation {
        &self.operations[id.0]
    }
}
