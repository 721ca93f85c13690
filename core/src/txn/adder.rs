//! Additions to rows that are computed where a transaction commits.
//!
//! ```text
//!   cx.add(row, adder, 5)   --run-->   Add { row, adder, 5 }   --commit-->   adder.add(row, 5)
//! ```
//!
//! A transaction that adds to a row does not depend on its value, only on its existence. So a
//! protocol that computes the new value at the transaction's place in the order can let any number
//! of transactions add to one row at once. For other protocols an addition is a read and a write.

use bytes::Bytes;

use super::{Abort, Context, Stop};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::{AdderId, TableId};
use crate::key::Key;
use crate::value::Value;

/// A named deterministic function that adds an amount to a row, for example to a number in it.
///
/// Replicas run it on every row that a transaction adds to. Like a procedure it must not use a
/// clock, random numbers or anything else that differs between machines. A procedure names the
/// adders that it uses: [`super::Procedure::adders`].
pub trait Adder: Send + Sync {
    /// The name, of which the number is a hash. The same in every version of the program.
    fn name(&self) -> &str;

    /// The version of the adder: a program must raise it when a result differs from before.
    fn version(&self) -> u32 {
        0
    }

    /// The row after `amount` was added, which has the adder's own encoding.
    ///
    /// # Errors
    /// If the row can't hold the result. The transaction then aborts.
    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort>;
}

/// An addition to one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// The table.
    pub table: TableId,
    /// The key of the row.
    pub key: Key,
    /// The function that adds.
    pub adder: AdderId,
    /// The amount, in the adder's encoding.
    pub amount: Bytes,
}

impl Add {
    /// The approximate encoded size in bytes.
    pub fn bytes(&self) -> usize {
        const ADD_BYTES: usize = 16;
        ADD_BYTES + self.key.len() + self.amount.len()
    }

    /// Appends the addition to `out`. [`Add::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.table.0.into());
        out.put_bytes(&self.key);
        out.put_u32(self.adder.0);
        out.put_bytes(&self.amount);
    }

    /// Decodes the bytes that [`Add::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            table: super::sets::decode_table(from)?,
            key: Key::from(from.bytes("key")?),
            adder: AdderId(from.u32("adder")?),
            amount: Bytes::copy_from_slice(from.bytes("amount")?),
        })
    }
}

/// Adds to a row by a read and a write: [`Context::add`] where no additions are recorded.
///
/// # Errors
/// Those of the read, of the write and of the adder.
pub fn read_and_add<C: Context + ?Sized>(
    cx: &mut C,
    (table, key): (TableId, Key),
    adder: &dyn Adder,
    amount: &[u8],
) -> Result<bool, Stop> {
    let Some(row) = cx.get(table, &key)? else { return Ok(false) };
    let row = adder.add(&row, amount)?;
    cx.put(table, key, row)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addition_survives_its_encoding_and_a_cut_one_is_refused() {
        let (key, amount) = (Key::from(&b"k"[..]), Bytes::from_static(b"five"));
        let add = Add { table: TableId(300), key, adder: AdderId::of("adder"), amount };
        let mut bytes = Vec::new();
        add.encode(&mut bytes);
        assert!(bytes.len() <= add.bytes());
        assert_eq!(Add::decode(&mut Reader::new(&bytes)), Ok(add));
        for len in 0..bytes.len() {
            assert!(Add::decode(&mut Reader::new(&bytes[..len])).is_err(), "truncated to {len}");
        }
    }
}
