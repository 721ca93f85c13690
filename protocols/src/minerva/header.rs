//! What Minerva keeps with each version of a record.
//!
//! The paper tags an item with the epoch of its last update (`eid`) and, before it is committed,
//! with its writer (`tid`). The store's snapshot version is the epoch; the header is the writer,
//! and whether it committed as it was executed or was executed again.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::TxnId;
use pangea_core::store::Header as RecordHeader;

/// The writer of a version, and in which way it committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    bits: u64,
}

/// Transaction ids leave the top bit free.
const REEXECUTED: u64 = 1 << 63;

impl Header {
    /// The header of a write that was made at the transaction's source and found valid.
    pub fn as_executed(txn: TxnId) -> Self {
        assert_eq!(txn.to_bits() & REEXECUTED, 0, "transaction ids leave the top bit free");
        Self { bits: txn.to_bits() }
    }

    /// The header of a write that was made by running the transaction in its epoch's order.
    pub fn reexecuted(txn: TxnId) -> Self {
        Self { bits: Self::as_executed(txn).bits | REEXECUTED }
    }

    /// Whether `txn` made the write, and made it at its source.
    pub fn is_as_executed_by(self, txn: TxnId) -> bool {
        self == Self::as_executed(txn)
    }
}

impl RecordHeader for Header {
    fn writer(&self) -> TxnId {
        TxnId::from_bits(self.bits & !REEXECUTED)
    }

    fn is_as_executed(&self) -> bool {
        self.bits & REEXECUTED == 0
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.bits);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { bits: from.u64("record header")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::NodeId;

    #[test]
    fn a_header_tells_the_writer_and_how_it_committed() {
        let txn = TxnId::new(NodeId(3), 9);
        for (header, is_as_executed) in
            [(Header::as_executed(txn), true), (Header::reexecuted(txn), false)]
        {
            assert_eq!((header.writer(), header.is_as_executed_by(txn)), (txn, is_as_executed));
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            assert_eq!(Header::decode(&mut Reader::new(&bytes)), Ok(header));
        }
    }
}
