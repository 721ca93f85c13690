//! Newtypes for everything that is counted or named by a number.

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
    /// A process that holds a copy of the data: its position in the cluster's list of nodes.
    NodeId(u16), "n"
);
id!(
    /// A region: its position in the cluster's list of regions.
    RegionId(u16), "r"
);
id!(
    /// A partition of the tables. Fully replicated protocols have one, shard 0.
    ShardId(u16), "s"
);
id!(
    /// A table or index in the store.
    TableId(u32), "t"
);
id!(
    /// A point in a protocol's serial order that is complete and final: every write up to it is in
    /// the store and none will be added. Version 0 is the empty database.
    SnapshotVersion(u64), "v"
);
id!(
    /// A driver's name for a submission that waits for its outcome. Unique within one run of one
    /// node.
    Ticket(u64), "k"
);
id!(
    /// The number of a record in a node's log. Records are numbered from 1 without gaps.
    LogPosition(u64), "l"
);
id!(
    /// A registered procedure: its position in the registry's order of names.
    ProcedureId(u16), "p"
);

impl NodeId {
    /// The position as an index into per-node vectors.
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

/// A transaction's name: the node that took it and a number that grows there.
///
/// Ordered by node, then by number. Packed in 64 bits: 15 of node, 49 of number, the top one free
/// for a protocol's own mark.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TxnId(u64);

impl TxnId {
    const SEQUENCE_BITS: u32 = 48;

    /// Names the `sequence`-th transaction of `node`.
    ///
    /// # Panics
    /// When `sequence` does not fit 48 bits or `node` does not fit 15.
    pub fn new(node: NodeId, sequence: u64) -> Self {
        assert!(sequence < 1 << Self::SEQUENCE_BITS, "transaction numbers ran out");
        assert!(node.0 < 1 << 15, "node ids are below 32768");
        Self((u64::from(node.0) << Self::SEQUENCE_BITS) | sequence)
    }

    /// The node that took the transaction.
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
