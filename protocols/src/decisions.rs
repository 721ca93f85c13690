//! The decisions on an epoch's transactions, as they are logged: a restart need not compute or
//! execute them again (Minerva §4, "Fault Tolerance").
//!
//! ```text
//!   +-------+--------------+---------+-----------------------+--
//!   | count | valid bits   | ordered | entry, has writes u8, | ..
//!   | var   | count / 8    | var     | [len u32, write set]  |
//!   +-------+--------------+---------+-----------------------+--
//! ```
//!
//! The write sets of transactions that committed as they were executed are in the batches. Those of
//! transactions that ran in the epoch's order are here, encoded relative to the arguments in the
//! batches (`write_set_codec.rs`), or are marked to be executed again.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::mutate;
use pangea_core::protocol::ListedFate;
use pangea_core::txn::Write;

use crate::write_set_codec;

/// The decisions on an epoch's transactions. Borrows the write sets while it is encoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decisions<'a> {
    /// For each transaction, ordered by source, batch and position, whether it committed as
    /// executed.
    pub is_valid: Vec<bool>,
    /// The results of those that ran in order, in the order of their effects, without transactions
    /// that wrote nothing.
    pub ordered: Vec<Ordered<'a>>,
}

/// The result of one transaction of the ordered queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ordered<'a> {
    /// Its position among the epoch's transactions.
    pub entry: usize,
    /// Its writes; `None` if it is to be re-executed.
    pub writes: Option<WriteSetRef<'a>>,
}

/// A write set encoded relative to the arguments of its call; a certified transaction has no
/// arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WriteSetRef<'a> {
    /// As it was applied.
    Here {
        /// The writes.
        writes: &'a [Write],
        /// The call's arguments.
        args: &'a [u8],
    },
    /// As encoded in the log.
    Logged(Vec<u8>),
}

impl WriteSetRef<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        let len_at = out.len();
        out.put_u32(0);
        match self {
            Self::Here { writes, args } => write_set_codec::encode(writes, args, out),
            Self::Logged(bytes) => out.extend_from_slice(bytes),
        }
        let len = (out.len() - len_at - size_of::<u32>()) as u32;
        out[len_at..len_at + size_of::<u32>()].copy_from_slice(&len.to_le_bytes());
    }

    /// The writes of a call with these arguments.
    ///
    /// # Errors
    /// Returns an error if they are not the arguments with which it was logged.
    pub(crate) fn read(&self, args: &[u8]) -> Result<Vec<Write>, DecodeError> {
        match self {
            Self::Here { writes, .. } => Ok(writes.to_vec()),
            Self::Logged(bytes) => write_set_codec::decode(&mut Reader::new(bytes), args),
        }
    }
}

impl Decisions<'_> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.is_valid.len() as u64);
        for eight in self.is_valid.chunks(8) {
            let bits = eight.iter().enumerate().map(|(i, &bit)| u8::from(bit) << i);
            out.put_u8(bits.fold(0, |byte, bit| byte | bit));
        }
        out.put_varint(self.ordered.len() as u64);
        for ordered in &self.ordered {
            out.put_varint(ordered.entry as u64);
            out.put_u8(u8::from(ordered.writes.is_some()));
            ordered.writes.iter().for_each(|writes| writes.encode(out));
        }
    }

    /// What became of the epoch, if the operator has listed it to be skipped: one that was skipped
    /// has no effects.
    pub(crate) fn fate_if_listed(&self) -> ListedFate {
        match self.ordered.is_empty() && !self.is_valid.contains(&true) {
            true => ListedFate::Skipped { txns: self.is_valid.len() as u64 },
            false => ListedFate::Applied,
        }
    }

    /// Decodes the bytes that [`Decisions::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "epoch record";
        let count = usize::try_from(from.varint(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let bits = from.take(count.div_ceil(8), WHAT)?;
        let bit = |i: usize| mutate!(ValidBitsReversed: i % 8 => 7 - i % 8);
        let is_valid = (0..count).map(|i| bits[i / 8] >> bit(i) & 1 == 1).collect();
        let ordered = (0..from.count(WHAT)?)
            .map(|_| {
                let entry = from.varint(WHAT)? as usize;
                let has_writes = from.u8(WHAT)? == 1;
                let mut logged = || -> Result<WriteSetRef<'_>, DecodeError> {
                    let len = from.u32(WHAT)? as usize;
                    Ok(WriteSetRef::Logged(from.take(len, WHAT)?.to_vec()))
                };
                let writes = has_writes.then(&mut logged).transpose()?;
                if entry < count {
                    Ok(Ordered { entry, writes })
                } else {
                    Err(DecodeError::new(WHAT))
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { is_valid, ordered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::TableId;
    use pangea_core::key::Key;
    use pangea_core::value::Value;

    #[test]
    fn decisions_survive_their_encoding_and_cut_ones_are_refused() {
        let args = [7; 100];
        let value = Some(Value::copy_from(&args[10..90]));
        let writes = [Write { table: TableId(1), key: Key::from(&b"k"[..]), value }];
        for count in [0, 1, 7, 8, 9, 30] {
            let here = WriteSetRef::Here { writes: &writes, args: &args };
            let ordered = [None, Some(here)].into_iter();
            let decisions = Decisions {
                is_valid: (0..count).map(|i| i % 3 == 0).collect(),
                ordered: ordered.take(count).map(|writes| Ordered { entry: 0, writes }).collect(),
            };
            let mut bytes = Vec::new();
            decisions.encode(&mut bytes);
            assert!(bytes.len() < 40, "the value is taken from the arguments");
            let read = Decisions::decode(&mut Reader::new(&bytes)).unwrap();
            let mut again = Vec::new();
            read.encode(&mut again);
            assert_eq!(again, bytes);
            for (of_log, here) in read.ordered.iter().zip(&decisions.ordered) {
                let read = of_log.writes.as_ref().map(|logged| logged.read(&args).unwrap());
                assert_eq!(read.as_deref(), here.writes.as_ref().map(|_| &writes[..]));
            }
            assert_eq!(read.is_valid, decisions.is_valid);
            let cut = &bytes[..bytes.len() - 1];
            assert!(Decisions::decode(&mut Reader::new(cut)).is_err());
        }
    }
}
