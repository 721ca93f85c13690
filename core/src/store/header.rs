//! The record header that is stored with each version of a record.

use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TxnId;

/// The writer of a version, and a flag whose meaning depends on the protocol. Eight bytes, in
/// memory and on disk.
///
/// The default is the header of rows that were loaded before the first transaction.
///
/// | protocol | a flagged version |
/// |---|---|
/// | Minerva | was written by a re-execution, in the order of its epoch |
/// | Calvin | does not exist: the flag is never set |
///
/// ```
/// use pangea_core::ids::{NodeId, TxnId};
/// use pangea_core::store::RecordHeader;
///
/// let writer = TxnId::new(NodeId(2), 7);
/// let header = RecordHeader::new(writer);
/// assert_eq!((header.writer(), header.is_flagged()), (writer, false));
/// assert!(header.flagged().is_flagged());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    bits: u64,
}

/// The top bit, which transaction ids leave free.
const FLAG: u64 = 1 << 63;

impl RecordHeader {
    /// The header of a version that `writer` wrote, without the flag.
    ///
    /// # Panics
    /// If the id uses the bit of the flag. Ids created by [`TxnId::new`] never do.
    pub fn new(writer: TxnId) -> Self {
        assert_eq!(writer.to_bits() & FLAG, 0, "transaction ids do not use the top bit");
        Self { bits: writer.to_bits() }
    }

    /// The same header with the flag.
    pub fn flagged(self) -> Self {
        Self { bits: self.bits | FLAG }
    }

    /// The transaction that wrote the version.
    pub fn writer(self) -> TxnId {
        TxnId::from_bits(self.bits & !FLAG)
    }

    /// Whether the flag is set.
    pub fn is_flagged(self) -> bool {
        self.bits & FLAG != 0
    }

    /// Appends the header to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.put_u64(self.bits);
    }

    /// Decodes a header that [`RecordHeader::encode`] wrote.
    ///
    /// # Errors
    /// If fewer than eight bytes are left.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { bits: from.u64("record header")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    #[test]
    fn a_header_keeps_its_writer_and_its_flag_through_the_codec() {
        let writer = TxnId::new(NodeId(3), 9);
        for header in [RecordHeader::new(writer), RecordHeader::new(writer).flagged()] {
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            assert_eq!(bytes.len(), size_of::<RecordHeader>());
            assert_eq!(RecordHeader::decode(&mut Reader::new(&bytes)), Ok(header));
            assert_eq!(header.writer(), writer);
        }
    }
}
