//! Additions to integers of stored rows: `UPDATE t SET v = v + 1 WHERE id = 7`.
//!
//! Such a statement does not depend on the row, so a protocol may run it where it commits
//! ([`pangea_core::txn::Adder`]). The amount has all that is needed for that:
//!
//! ```text
//!   count | type of each column up to the last that changes, an OID | count | steps
//!   step: column | type of the column | type of the sum | is minus u8 | amount
//! ```
//!
//! Numbers are varints. NULL stays NULL, and a sum that does not fit is an error, as in PostgreSQL.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::txn::{Abort, Adder};
use pangea_core::value::Value;

use crate::error::SqlError;
use crate::rows;
use crate::types::SqlType;
use crate::types::text::{fits, integer_out_of_range};

/// The change of one column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    pub column: usize,
    /// The type of the column.
    pub base: SqlType,
    /// The type in which the sum is computed.
    pub sum: SqlType,
    pub is_minus: bool,
    pub amount: i64,
}

/// Encodes the steps for [`AddIntegers`]. The types are those of the columns up to the last one.
pub(crate) fn encode(types: &[SqlType], steps: &[Step]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_varint(types.len() as u64);
    types.iter().for_each(|base| out.put_varint(base.oid().into()));
    out.put_varint(steps.len() as u64);
    for Step { column, base, sum, is_minus, amount } in steps {
        out.put_varint(*column as u64);
        out.put_varint(base.oid().into());
        out.put_varint(sum.oid().into());
        out.put_u8(u8::from(*is_minus));
        out.put_u64(*amount as u64);
    }
    out
}

fn decode(amount: &[u8]) -> Result<(Vec<SqlType>, Vec<Step>), DecodeError> {
    const WHAT: &str = "amount";
    let from = &mut Reader::new(amount);
    let base = |from: &mut Reader<'_>| {
        let oid = u32::try_from(from.varint(WHAT)?).ok();
        oid.and_then(SqlType::from_oid).ok_or(DecodeError::new(WHAT))
    };
    let types = (0..from.count(WHAT)?).map(|_| base(from)).collect::<Result<Vec<_>, _>>()?;
    let step = |from: &mut Reader<'_>| {
        Ok(Step {
            column: from.varint(WHAT)? as usize,
            base: base(from)?,
            sum: base(from)?,
            is_minus: from.u8(WHAT)? == 1,
            amount: from.u64(WHAT)? as i64,
        })
    };
    let steps = (0..from.count(WHAT)?).map(|_| step(from)).collect::<Result<_, DecodeError>>()?;
    Ok((types, steps))
}

/// Adds to integers of a stored row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddIntegers;

impl Adder for AddIntegers {
    fn name(&self) -> &str {
        "sql.add_integers"
    }

    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort> {
        let (types, steps) = decode(amount).map_err(SqlError::from)?;
        let row = rows::change_integers(&types, row, |column, value| {
            match steps.iter().find(|step| step.column == column) {
                Some(step) => step.apply(value).map(Some),
                None => Ok(None),
            }
        });
        Ok(Value::from(row?))
    }
}

impl Step {
    fn apply(&self, value: i64) -> Result<i64, SqlError> {
        let sum = match self.is_minus {
            true => value.checked_sub(self.amount),
            false => value.checked_add(self.amount),
        };
        let sum = sum.filter(|sum| fits(self.sum, *sum));
        match sum.ok_or_else(|| integer_out_of_range(self.sum))? {
            sum if fits(self.base, sum) => Ok(sum),
            _ => Err(integer_out_of_range(self.base)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::datum::Datum;

    const TYPES: [SqlType; 4] = [SqlType::Text, SqlType::Int2, SqlType::Int8, SqlType::Int4];

    fn row(small: Datum, large: i64) -> Value {
        let row = [Datum::Text("é".to_owned()), small, Datum::Int(large), Datum::Int(-7)];
        let mut bytes = Vec::new();
        rows::encode_stored(&row, &mut bytes);
        Value::from(bytes)
    }

    fn step(column: usize, is_minus: bool, amount: i64) -> Step {
        Step { column, base: TYPES[column], sum: SqlType::Int8, is_minus, amount }
    }

    #[test]
    fn the_named_columns_change_and_null_stays_null() {
        let amount = encode(&TYPES[..3], &[step(1, true, 5), step(2, false, 1 << 40)]);
        let add = |row: &Value| AddIntegers.add(row, &amount);
        assert_eq!(add(&row(Datum::Int(3), 9)), Ok(row(Datum::Int(-2), (1 << 40) + 9)));
        assert_eq!(add(&row(Datum::Null, -1)), Ok(row(Datum::Null, (1 << 40) - 1)));
        let mut older = Vec::new();
        rows::encode_stored(&[Datum::Text("a".to_owned())], &mut older);
        let older = Value::from(older);
        assert_eq!(add(&older), Ok(older.clone()), "it has only the first column");
    }

    #[test]
    fn a_sum_that_does_not_fit_is_an_error() {
        let error = |sum, amount| {
            let step = Step { sum, ..step(1, false, amount) };
            let abort = AddIntegers.add(&row(Datum::Int(1), 0), &encode(&TYPES[..2], &[step]));
            let abort = abort.unwrap_err();
            (abort.code.as_str().to_owned(), abort.message)
        };
        let out_of = |what: &str| ("22003".to_owned(), format!("{what} out of range"));
        assert_eq!(error(SqlType::Int4, 32_767), out_of("smallint"));
        assert_eq!(error(SqlType::Int4, i32::MAX.into()), out_of("integer"));
        assert_eq!(error(SqlType::Int8, i64::MAX), out_of("bigint"));
    }

    #[test]
    fn a_malformed_amount_or_row_is_an_error() {
        let amount = encode(&TYPES, &[step(1, false, 5)]);
        for len in 0..amount.len() {
            assert!(AddIntegers.add(&row(Datum::Int(1), 0), &amount[..len]).is_err(), "{len}");
        }
        let whole = row(Datum::Int(1), 0);
        for len in 0..whole.len() {
            let row = Value::copy_from(&whole[..len]);
            assert!(AddIntegers.add(&row, &amount).is_err(), "{len}");
        }
    }
}
