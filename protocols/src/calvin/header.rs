//! What Calvin keeps with each version of a record: who wrote it. Its locks need nothing more; an
//! interactive transaction that failed is told who came before it.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::TxnId;
use pangea_core::store::Header as RecordHeader;

/// The writer of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header(pub TxnId);

impl RecordHeader for Header {
    fn writer(&self) -> TxnId {
        self.0
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.0.to_bits());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(TxnId::from_bits(from.u64("record header")?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::NodeId;

    #[test]
    fn a_header_survives_its_encoding() {
        let header = Header(TxnId::new(NodeId(3), 9));
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        assert_eq!(Header::decode(&mut Reader::new(&bytes)), Ok(header));
    }
}
