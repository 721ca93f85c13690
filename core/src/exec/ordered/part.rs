//! What a job has of other shards (Calvin §3.2, phases 3 and 4), as it goes from shard to shard.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::codec::{DecodeError, Reader, Writer};
use crate::exec::certify::Change;
use crate::exec::size::{PART_BYTES_MAX, RESULT_BYTES_MAX, bytes_of};
use crate::ids::{TableId, TxnId};
use crate::key::Key;
use crate::txn::Write;
use crate::value::Value;

/// What one shard has for a transaction, for those shards that write in it. The same on every
/// replica of the shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The shard's rows within the footprint of a call. What is not among them is not there.
    Rows(Vec<Write>),
    /// They are more than can be sent: so many bytes, and perhaps more. The transaction aborts on
    /// every shard that would run it.
    TooLarge(u64),
    /// Whether what a certified transaction read of the shard's rows is still current, and else
    /// what has changed.
    Certified(Option<Change>),
}

mod what {
    pub const ROWS: u8 = 0;
    pub const CURRENT: u8 = 1;
    pub const CHANGED: u8 = 2;
    pub const TOO_LARGE: u8 = 3;
}

/// What of a transaction over several shards may be so many bytes, on all of them alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// One shard's rows for others.
    pub part: usize,
    /// Its result.
    pub result: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { part: PART_BYTES_MAX, result: RESULT_BYTES_MAX }
    }
}

/// Rows for other shards, as they are found. How much is counted is the same on every replica.
pub(super) struct Gathered {
    rows: BTreeMap<(TableId, Key), Value>,
    bytes: usize,
    most: usize,
}

impl Gathered {
    /// None yet, and so many bytes at most.
    pub fn up_to(most: usize) -> Self {
        Self { rows: BTreeMap::new(), bytes: 0, most }
    }

    /// Adds a row. Breaks where they are too many, and need not be gathered any more.
    pub fn add(&mut self, table: TableId, key: &Key, value: Value) -> ControlFlow<()> {
        let bytes = bytes_of(1, key.len() + value.len());
        if self.rows.insert((table, key.clone()), value).is_none() {
            self.bytes += bytes;
        }
        if self.is_too_large() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether they are too many.
    pub fn is_too_large(&self) -> bool {
        self.bytes > self.most
    }

    /// What is sent of them.
    pub fn part(self) -> Part {
        if self.is_too_large() {
            return Part::TooLarge(self.bytes as u64);
        }
        let row = |((table, key), value)| Write { table, key, value: Some(value) };
        Part::Rows(self.rows.into_iter().map(row).collect())
    }
}

impl Part {
    /// Whether it is of a call, and not of a certified transaction.
    pub(super) fn is_of_call(&self) -> bool {
        match self {
            Self::Rows(_) | Self::TooLarge(_) => true,
            Self::Certified(_) => false,
        }
    }

    /// Appends the part to `out`. [`Part::decode`] is the inverse.
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

    /// Reads what [`Part::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are malformed.
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
