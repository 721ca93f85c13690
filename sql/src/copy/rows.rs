//! Encoded rows in transit to a table: part of a program's arguments.

use std::ops::Range;

use pangea_core::codec::{DecodeError, Reader, Writer};

use crate::error::SqlError;
use crate::rows;
use crate::types::datum::Datum;
use crate::types::{ColumnType, SqlType};

/// Encloses the number of a row that is prepended to the message of its error.
const MARK: char = '\u{1}';

/// Rows with columns of given types.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rows {
    pub types: Vec<ColumnType>,
    pub count: u64,
    bytes: Vec<u8>,
}

impl Rows {
    /// Creates an empty set of rows.
    pub(crate) fn new(types: Vec<ColumnType>) -> Self {
        Self { types, ..Self::default() }
    }

    pub(crate) fn push(&mut self, row: &[Datum]) {
        rows::encode(row, &mut self.bytes);
        self.count += 1;
    }

    /// Returns the `count` rows in a range of the bytes.
    pub(crate) fn part(&self, bytes: Range<usize>, count: u64) -> Self {
        Self { types: self.types.clone(), count, bytes: self.bytes[bytes].to_vec() }
    }

    /// Encoded size, in bytes.
    pub(crate) fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Decodes the rows, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Vec<Datum>, DecodeError>> + '_ {
        let mut from = Reader::new(&self.bytes);
        let types = || self.types.iter().map(|column| column.base);
        (0..self.count).map(move |_| rows::decode_whole(types(), &mut from))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.types.len() as u64);
        for column in &self.types {
            out.put_u32(column.base.oid());
            out.put_u32(column.modifier as u32);
        }
        out.put_varint(self.count);
        out.put_bytes(&self.bytes);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let types = (0..from.count("columns")?)
            .map(|_| {
                let base = SqlType::from_oid(from.u32("type")?).ok_or(DecodeError::new("type"))?;
                Ok(ColumnType { base, modifier: from.u32("type modifier")? as i32 })
            })
            .collect::<Result<Vec<_>, DecodeError>>()?;
        let count = from.varint("rows")?;
        let bytes = from.bytes("rows")?.to_vec();
        Ok(Self { types, count, bytes })
    }
}

/// Adds the number of a row within its batch to its error. The number becomes part of the message,
/// because replicas answer only with text.
pub(crate) fn at_row(mut error: SqlError, number: u64) -> SqlError {
    error.message = format!("{MARK}{number}{MARK}{}", error.message);
    error
}

/// Removes the number of the row from its error again.
pub(crate) fn row_of(error: &mut SqlError) -> Option<u64> {
    let (number, message) = error.message.strip_prefix(MARK)?.split_once(MARK)?;
    let (number, message) = (number.parse().ok()?, message.to_owned());
    error.message = message;
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::code;

    #[test]
    fn rows_survive_their_encoding_and_an_error_finds_its_row() {
        let mut rows = Rows::new(vec![SqlType::Int4.into(), SqlType::Text.into()]);
        let row = vec![Datum::Int(7), Datum::Null];
        rows.push(&row);
        let first = rows.clone();
        rows.push(&row);
        assert_eq!(rows.part(0..rows.byte_len() / 2, 1), first);
        let mut bytes = Vec::new();
        rows.encode(&mut bytes);
        let read = Rows::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(read, rows);
        assert_eq!(read.iter().collect::<Result<Vec<_>, _>>(), Ok(vec![row.clone(), row]));
        for len in 0..bytes.len() {
            assert!(Rows::decode(&mut Reader::new(&bytes[..len])).is_err(), "cut at {len}");
        }
        let error = SqlError::new(code::UNIQUE, "x");
        let mut marked = at_row(error.clone(), 12);
        assert_eq!(row_of(&mut marked), Some(12));
        assert_eq!((row_of(&mut marked), marked), (None, error));
    }
}
