//! Newtypes for numeric ids and counters.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A node: a server process with a copy of the data. Its position in the cluster's list of
    /// nodes.
    NodeId(u16), "n"
);
id!(
    /// A region. Its position in the cluster's list of regions.
    RegionId(u16), "r"
);
id!(
    /// A shard: one of the disjoint parts of the partitioned tables. Fully replicated protocols
    /// have one, shard 0.
    ShardId(u16), "s"
);
id!(
    /// A table or index in the store.
    TableId(u32), "t"
);
id!(
    /// The number of a complete, final state in a protocol's serial order: every write up to it is
    /// in the store, and none will be added. Version 0 is the empty database.
    SnapshotVersion(u64), "v"
);
id!(
    /// A driver's id for a submission that waits for its outcome. Unique within one run of one
    /// node.
    Ticket(u64), "k"
);
id!(
    /// The number of a record in a node's log. Records are numbered from 1 without gaps.
    LogPosition(u64), "l"
);
id!(
    /// A registered procedure: a hash of its name, so that the number means the same procedure in
    /// every version of a program. It is in logs and messages.
    ProcedureId(u32), "p"
);
id!(
    /// A registered adder: a hash of its name, like the number of a procedure. It is in logs and
    /// messages.
    AdderId(u32), "a"
);

impl NodeId {
    /// The position as an index into vectors with one element per node.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl SnapshotVersion {
    /// The version of the empty database.
    pub const ZERO: Self = Self(0);

    /// The version that follows this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The id of a transaction: the node that accepted it, and a number that grows on that node.
///
/// Ordered by node, then by number. Packed into 64 bits: 15 bits of node and 48 bits of number. The
/// top bit is free for a protocol's own flag.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TxnId(u64);

impl TxnId {
    const SEQUENCE_BITS: u32 = 48;

    /// The id of the `sequence`-th transaction of `node`.
    ///
    /// # Panics
    /// If `sequence` does not fit into 48 bits, or `node` does not fit into 15.
    pub fn new(node: NodeId, sequence: u64) -> Self {
        assert!(
            sequence < 1 << Self::SEQUENCE_BITS,
            "the transaction numbers of the node are exhausted"
        );
        assert!(node.0 < 1 << 15, "node ids must be below 32768");
        Self((u64::from(node.0) << Self::SEQUENCE_BITS) | sequence)
    }

    /// The node that accepted the transaction.
    pub fn node(self) -> NodeId {
        NodeId((self.0 >> Self::SEQUENCE_BITS) as u16)
    }

    /// The transaction's number on its node.
    pub fn sequence(self) -> u64 {
        self.0 & ((1 << Self::SEQUENCE_BITS) - 1)
    }

    /// The 64 bits, for codecs.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`TxnId::to_bits`].
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node().0, self.sequence())
    }
}

impl fmt::Debug for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_txn_id_keeps_its_node_and_sequence_and_orders_by_them() {
        let id = TxnId::new(NodeId(3), 77);
        assert_eq!((id.node(), id.sequence()), (NodeId(3), 77));
        assert!(TxnId::new(NodeId(2), u32::MAX.into()) < TxnId::new(NodeId(3), 0));
        assert_eq!(id.to_string(), "3.77");
        assert_eq!(TxnId::from_bits(id.to_bits()), id);
    }
}
