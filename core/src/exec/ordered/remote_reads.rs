//! Remote reads (Calvin §3.2, phases 3 and 4): the inputs of a job from other shards, and their
//! encoding.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::codec::{DecodeError, Reader, Writer};
use crate::exec::certify::Change;
use crate::exec::size::{PART_BYTES_MAX, RESULT_BYTES_MAX, bytes_of};
use crate::ids::{TableId, TxnId};
use crate::key::Key;
use crate::txn::Write;
use crate::value::Value;

/// The remote reads that one participant sends to the active participants of a transaction. The
/// same on every replica of the shard.
#[derive(Clone, Debug, PartialEq)]
pub enum RemoteReads {
    /// The shard's rows within the footprint of a call. A row that is missing does not exist.
    Rows(Vec<Write>),
    /// The rows exceed the size limit: they have at least this number of bytes. The transaction
    /// aborts on every shard that would run it.
    TooLarge(u64),
    /// The first read of a certified transaction on the shard that is no longer current; `None` if
    /// all are current.
    Certified(Option<Change>),
}

mod what {
    pub const ROWS: u8 = 0;
    pub const CURRENT: u8 = 1;
    pub const CHANGED: u8 = 2;
    pub const TOO_LARGE: u8 = 3;
}

/// Size limits in bytes of a transaction on several shards. The same on all shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum size of one shard's rows for other shards.
    pub part: usize,
    /// Maximum size of the transaction's result.
    pub result: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { part: PART_BYTES_MAX, result: RESULT_BYTES_MAX }
    }
}

/// Collects rows for other shards. The counted size is the same on every replica.
pub(super) struct ReadsBuilder {
    rows: BTreeMap<(TableId, Key), Value>,
    bytes: usize,
    most: usize,
}

impl ReadsBuilder {
    /// Creates an empty collection of at most `most` bytes.
    pub fn up_to(most: usize) -> Self {
        Self { rows: BTreeMap::new(), bytes: 0, most }
    }

    /// Adds a row. Breaks when the rows exceed the limit; no more need be added then.
    pub fn add(&mut self, table: TableId, key: &Key, value: Value) -> ControlFlow<()> {
        let bytes = bytes_of(1, key.len() + value.len());
        if self.rows.insert((table, key.clone()), value).is_none() {
            self.bytes += bytes;
        }
        if self.is_too_large() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether the rows exceed the limit.
    pub fn is_too_large(&self) -> bool {
        self.bytes > self.most
    }

    /// The message to other shards.
    pub fn part(self) -> RemoteReads {
        if self.is_too_large() {
            return RemoteReads::TooLarge(self.bytes as u64);
        }
        let row = |((table, key), value)| Write { table, key, value: Some(value) };
        RemoteReads::Rows(self.rows.into_iter().map(row).collect())
    }
}

impl RemoteReads {
    /// Whether these are the rows of a call, and not the result of certification.
    pub(super) fn is_of_call(&self) -> bool {
        match self {
            Self::Rows(_) | Self::TooLarge(_) => true,
            Self::Certified(_) => false,
        }
    }

    /// Appends the encoding to `out`. [`RemoteReads::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Rows(rows) => {
                out.put_u8(what::ROWS);
                out.put_varint(rows.len() as u64);
                rows.iter().for_each(|row| row.encode(out));
            }
            Self::TooLarge(bytes) => {
                out.put_u8(what::TOO_LARGE);
                out.put_varint(*bytes);
            }
            Self::Certified(None) => out.put_u8(what::CURRENT),
            Self::Certified(Some(Change { table, key, winner })) => {
                out.put_u8(what::CHANGED);
                out.put_varint(u64::from(table.0));
                out.put_bytes(key);
                out.put_u64(winner.map_or(0, TxnId::to_bits));
            }
        }
    }

    /// Decodes the bytes that [`RemoteReads::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "part";
        match from.u8(WHAT)? {
            what::ROWS => {
                let rows = (0..from.count(WHAT)?).map(|_| Write::decode(from));
                Ok(Self::Rows(rows.collect::<Result<_, _>>()?))
            }
            what::TOO_LARGE => Ok(Self::TooLarge(from.varint(WHAT)?)),
            what::CURRENT => Ok(Self::Certified(None)),
            what::CHANGED => {
                let table = u32::try_from(from.varint(WHAT)?);
                let table = TableId(table.map_err(|_| DecodeError::new(WHAT))?);
                let key = Key::from(from.bytes(WHAT)?);
                let winner = Some(from.u64(WHAT)?).filter(|&bits| bits != 0);
                let winner = winner.map(TxnId::from_bits);
                Ok(Self::Certified(Some(Change { table, key, winner })))
            }
            _ => Err(DecodeError::new(WHAT)),
        }
    }
}
