//! What a job has of other shards (Calvin §3.2, phases 3 and 4), as it goes from shard to shard.

use crate::codec::{DecodeError, Reader, Writer};
use crate::exec::certify::Change;
use crate::ids::{TableId, TxnId};
use crate::key::Key;
use crate::txn::Write;

/// What one shard has for a transaction, for those shards that write in it. The same on every
/// replica of the shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The shard's rows within the footprint of a call. What is not among them is not there.
    Rows(Vec<Write>),
    /// Whether what a certified transaction read of the shard's rows is still current, and else
    /// what has changed.
    Certified(Option<Change>),
}

mod what {
    pub const ROWS: u8 = 0;
    pub const CURRENT: u8 = 1;
    pub const CHANGED: u8 = 2;
}

impl Part {
    /// Appends the part to `out`. [`Part::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Rows(rows) => {
                out.put_u8(what::ROWS);
                out.put_varint(rows.len() as u64);
                rows.iter().for_each(|row| row.encode(out));
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
