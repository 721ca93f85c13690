//! What clients did, and what they were told.

use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::time::Timestamp;
use pangea_core::txn::Abort;
use pangea_core::workload::Call;

/// Names an operation: its place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub usize);

/// How a client wants its call to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Ordered, as a program.
    Ordered,
    /// Run by the client on a snapshot, then ordered as what it read and wrote.
    Certified,
    /// On a snapshot that holds everything acknowledged before.
    Strict,
    /// On the newest snapshot of its node.
    Snapshot,
}

/// How an operation ended, as far as its client knows.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// It has not.
    Open,
    /// It was ordered and committed.
    Committed {
        /// The transaction's name.
        txn: TxnId,
        /// The first version that holds its writes.
        version: SnapshotVersion,
        /// What the program returned.
        result: Vec<u8>,
    },
    /// It read a snapshot.
    Read {
        /// Which.
        version: SnapshotVersion,
        /// What the program returned.
        result: Vec<u8>,
    },
    /// It changed nothing, and was told why.
    Aborted(Abort),
    /// It never reached a node, or had nothing to change when its node stopped.
    Refused,
    /// Its node stopped before it answered: it may have committed or not.
    Ambiguous,
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Whose.
    pub client: usize,
    /// At which node.
    pub node: NodeId,
    /// How it runs.
    pub how: How,
    /// What it calls.
    pub call: Call,
    /// When the client asked.
    pub invoked: Timestamp,
    /// When the client was told, if it was.
    pub ended: Option<Timestamp>,
    /// What the client was told.
    pub end: End,
}

impl Operation {
    /// What the program returned, where it took place for certain.
    pub fn result(&self) -> Option<&[u8]> {
        match &self.end {
            End::Committed { result, .. } | End::Read { result, .. } => Some(result),
            End::Open | End::Aborted(_) | End::Refused | End::Ambiguous => None,
        }
    }

    /// Whether it may have taken place.
    pub fn may_have_happened(&self) -> bool {
        match self.end {
            End::Committed { .. } | End::Read { .. } | End::Ambiguous | End::Open => true,
            End::Aborted(_) | End::Refused => false,
        }
    }
}

/// Every operation, in the order in which they were invoked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The operations.
    pub operations: Vec<Operation>,
}

impl History {
    /// Adds an operation that was just invoked.
    pub fn invoke(&mut self, operation: Operation) -> OpId {
        assert!(operation.end == End::Open && operation.ended.is_none(), "it has just begun");
        self.operations.push(operation);
        OpId(self.operations.len() - 1)
    }

    /// The operation's end.
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
