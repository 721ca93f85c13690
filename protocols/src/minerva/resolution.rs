//! What an epoch decided, as the log keeps it, so that a restart does not decide or execute again
//! (§4, "Fault Tolerance").
//!
//! ```text
//!   +-------+-------+-------+--------------+---------+-----------------------+--
//!   | epoch | cut   | count | valid bits   | ordered | entry, writes         | ..
//!   | u64   |       | var   | count / 8    | var     | var, u8, [write set]  |
//!   +-------+-------+-------+--------------+---------+-----------------------+--
//! ```
//!
//! The write sets of valid transactions are in the batches; those of transactions that ran in the
//! ordered queue are here where `rerun_on_restart` is off. Otherwise, and always for a bulk
//! transaction, whose arguments say them in far fewer bytes, it is marked to be run once more, at
//! the same place.

use std::borrow::Cow;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;
use pangea_core::planted::{Bug, is_planted};
use pangea_core::txn::Write;

use super::batch::{decode_writes, encode_writes};
use super::state::Cut;

/// What an epoch decided. Borrows the write sets while it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resolution<'a> {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// The cut that it applied.
    pub cut: Cut,
    /// For each transaction in the order of source, batch and place: whether it committed as it was
    /// executed.
    pub is_valid: Vec<bool>,
    /// What the ordered queue did, in its order; transactions that wrote nothing are left out.
    pub ordered: Vec<Ordered<'a>>,
}

/// What one transaction of the ordered queue did.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ordered<'a> {
    /// Its position among the epoch's transactions.
    pub entry: usize,
    /// What it wrote, or nothing for one that is to be run again.
    pub writes: Option<Cow<'a, [Write]>>,
}

impl Resolution<'_> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.epoch.0);
        let cut = postcard::to_stdvec(&self.cut).expect("a cut in memory can be encoded");
        out.put_bytes(&cut);
        out.put_varint(self.is_valid.len() as u64);
        for eight in self.is_valid.chunks(8) {
            let bits = eight.iter().enumerate().map(|(i, &bit)| u8::from(bit) << i);
            out.put_u8(bits.fold(0, |byte, bit| byte | bit));
        }
        out.put_varint(self.ordered.len() as u64);
        for ordered in &self.ordered {
            out.put_varint(ordered.entry as u64);
            out.put_u8(u8::from(ordered.writes.is_some()));
            ordered.writes.iter().for_each(|writes| encode_writes(writes, out));
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "epoch record";
        let from = &mut Reader::new(bytes);
        let epoch = SnapshotVersion(from.u64(WHAT)?);
        let cut = from.bytes(WHAT)?;
        let cut = postcard::from_bytes(cut).map_err(|_| DecodeError::new(WHAT))?;
        let count = usize::try_from(from.varint(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let bits = from.take(count.div_ceil(8), WHAT)?;
        let bit = |i: usize| if is_planted(Bug::ValidBitsReversed) { 7 - i % 8 } else { i % 8 };
        let is_valid = (0..count).map(|i| bits[i / 8] >> bit(i) & 1 == 1).collect();
        let ordered = (0..from.count(WHAT)?)
            .map(|_| {
                let entry = from.varint(WHAT)? as usize;
                let is_given = from.u8(WHAT)? == 1;
                let writes = is_given.then(|| decode_writes(from).map(Cow::Owned)).transpose()?;
                if entry < count {
                    Ok(Ordered { entry, writes })
                } else {
                    Err(DecodeError::new(WHAT))
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { epoch, cut, is_valid, ordered })
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Bid;
    use super::*;
    use pangea_core::ids::TableId;
    use pangea_core::key::Key;

    #[test]
    fn a_resolution_survives_its_encoding_and_a_cut_one_is_refused() {
        let write = Write { table: TableId(1), key: Key::from(&b"k"[..]), value: None };
        for count in [0, 1, 7, 8, 9, 30] {
            let ordered = [None, Some(Cow::Owned(vec![write.clone()]))].into_iter();
            let resolution = Resolution {
                epoch: SnapshotVersion(5),
                cut: Cut { heads: vec![Bid(1), Bid(300)], ..Cut::default() },
                is_valid: (0..count).map(|i| i % 3 == 0).collect(),
                ordered: ordered.take(count).map(|writes| Ordered { entry: 0, writes }).collect(),
            };
            let mut bytes = Vec::new();
            resolution.encode(&mut bytes);
            assert_eq!(Resolution::decode(&bytes), Ok(resolution));
            assert!(Resolution::decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}
