//! Positions in a source's log.

use pangea_core::codec::{DecodeError, Reader, Writer};
use serde::{Deserialize, Serialize};

/// The number of a batch in its source's log (Minerva §3.2). The first is 1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Bid(pub u64);

impl Bid {
    /// The number after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The log heads of all replicas, indexed by node. A head stands for every batch up to it.
pub type Heads = Vec<Bid>;

/// Appends log heads to `out`.
pub(crate) fn encode_heads(heads: &[Bid], out: &mut Vec<u8>) {
    out.put_varint(heads.len() as u64);
    heads.iter().for_each(|head| out.put_varint(head.0));
}

/// Decodes log heads that [`encode_heads`] wrote.
pub(crate) fn decode_heads(from: &mut Reader<'_>) -> Result<Heads, DecodeError> {
    (0..from.count("log heads")?).map(|_| from.varint("log heads").map(Bid)).collect()
}

/// The element-wise maximum of two vectors of heads.
pub(crate) fn max_heads(a: &[Bid], b: &[Bid]) -> Heads {
    a.iter().zip(b).map(|(a, b)| *a.max(b)).collect()
}
