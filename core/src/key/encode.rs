//! Order-preserving encoding of typed columns.
//!
//! [`KeyEncoder`] appends columns, [`KeyDecoder`] reads them back. Comparing two encodings of the
//! same columns byte by byte compares the columns one after the other, as PostgreSQL compares them
//! (text by collation "C"). Two rules ensure this:
//!
//! 1. *No encoding of a column is a prefix of another one of the same type*, so a difference in one
//!    column is never hidden by the bytes of the next column.
//! 2. *Equal values have equal encodings*, and a decoder rejects every other encoding. A key
//!    therefore names one row, and a decoded key encodes to itself.
//!
//! ```text
//!   bool            00 | 01
//!   i16, i32, i64   big-endian, sign bit flipped            (date, time, timestamp too)
//!   f32, f64        big-endian bits; sign bit flipped when positive, all bits when negative;
//!                   -0 is 0, every NaN is one NaN, after infinity
//!   numeric         class, exponent, two digits a byte, 00  (see [`Decimal`])
//!   text, bytea     the bytes, 00 as 01 01 and 01 as 01 02, then 00
//!   uuid            its 16 bytes
//!   descending      all bits of the above flipped
//!   nullable        a marker byte before the column, which descending does not flip:
//!                   NULLs first: NULL is 00, a value 01 and its bytes;
//!                   NULLs last: a value is 00 and its bytes, NULL 01
//! ```
//!
//! A column that cannot be NULL has no marker. The encoding does not describe itself, so the caller
//! must know the types of the columns and whether they are nullable.
//!
//! ```
//! use pangea_core::key::encode::{KeyDecoder, KeyEncoder, Nulls, Order};
//!
//! let mut encoder = KeyEncoder::new();
//! encoder.put_i32(7, Order::Ascending);
//! encoder.put_marker(false, Nulls::Last);
//! encoder.put_text("Ada", Order::Descending);
//! let key = encoder.finish();
//!
//! let mut decoder = KeyDecoder::new(&key);
//! assert_eq!(decoder.i32(Order::Ascending)?, 7);
//! assert!(!decoder.is_null(Nulls::Last)?);
//! assert_eq!(decoder.text(Order::Descending)?, "Ada");
//! decoder.finish()?;
//! # Ok::<(), pangea_core::codec::DecodeError>(())
//! ```

mod decimal;
#[cfg(test)]
mod tests;

pub use decimal::{Decimal, DecimalError};

use super::Key;
use crate::codec::{DecodeError, Reader};

/// The sort order of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Small values first.
    Ascending,
    /// Large values first.
    Descending,
}

/// The position of a nullable column's NULLs in the sort order, regardless of its [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Nulls {
    /// Before all values: PostgreSQL's default for descending columns.
    First,
    /// After all values: PostgreSQL's default for ascending columns.
    Last,
}

/// Ends text and bytea.
const TERMINATOR: u8 = 0;
/// Precedes the code of a byte that equals [`TERMINATOR`] or `ESCAPE`.
const ESCAPE: u8 = 1;
/// `ESCAPE` followed by this byte encodes the byte 0.
const ESCAPED_TERMINATOR: u8 = 1;
/// `ESCAPE` followed by this byte encodes the byte 1.
const ESCAPED_ESCAPE: u8 = 2;

impl Order {
    /// The mask that is XORed with every byte of a column.
    fn mask(self) -> u8 {
        match self {
            Self::Ascending => 0,
            Self::Descending => u8::MAX,
        }
    }
}

impl Nulls {
    /// The marker of a NULL; a value has the other one of 0 and 1.
    fn null_marker(self) -> u8 {
        match self {
            Self::First => 0,
            Self::Last => 1,
        }
    }
}

/// Builds a key from columns.
#[derive(Clone, Debug, Default)]
pub struct KeyEncoder {
    bytes: Vec<u8>,
}

impl KeyEncoder {
    /// Creates a key without columns.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues a key whose first columns are `prefix`.
    pub fn after(prefix: &[u8]) -> Self {
        Self { bytes: prefix.to_vec() }
    }

    /// The encoded columns so far: a prefix of every key that begins with them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The key.
    pub fn finish(self) -> Key {
        Key::from(&self.bytes[..])
    }

    /// Removes all columns and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends the marker of a nullable column. A NULL consists only of the marker; the caller
    /// appends a value after its marker.
    pub fn put_marker(&mut self, is_null: bool, nulls: Nulls) {
        self.bytes.push(nulls.null_marker() ^ u8::from(!is_null));
    }

    /// Appends a boolean: false before true.
    pub fn put_bool(&mut self, value: bool, order: Order) {
        self.put_fixed([u8::from(value)], order);
    }

    /// Appends a smallint.
    pub fn put_i16(&mut self, value: i16, order: Order) {
        self.put_fixed((value ^ i16::MIN).to_be_bytes(), order);
    }

    /// Appends an integer, or a date as days.
    pub fn put_i32(&mut self, value: i32, order: Order) {
        self.put_fixed((value ^ i32::MIN).to_be_bytes(), order);
    }

    /// Appends a bigint, or a time or timestamp in microseconds.
    pub fn put_i64(&mut self, value: i64, order: Order) {
        self.put_fixed((value ^ i64::MIN).to_be_bytes(), order);
    }

    /// Appends a real, in PostgreSQL's order: -0 equals 0, NaN equals NaN and is the largest.
    pub fn put_f32(&mut self, value: f32, order: Order) {
        let bits = canonical_f32(value).to_bits();
        let flip = if bits >> 31 == 1 { u32::MAX } else { 1 << 31 };
        self.put_fixed((bits ^ flip).to_be_bytes(), order);
    }

    /// Appends a double precision, in PostgreSQL's order: -0 equals 0, NaN equals NaN and is the
    /// largest.
    pub fn put_f64(&mut self, value: f64, order: Order) {
        let bits = canonical_f64(value).to_bits();
        let flip = if bits >> 63 == 1 { u64::MAX } else { 1 << 63 };
        self.put_fixed((bits ^ flip).to_be_bytes(), order);
    }

    /// Appends a numeric: numbers that differ only in scale are equal, and NaN is the largest.
    pub fn put_numeric(&mut self, value: &Decimal, order: Order) {
        let start = self.bytes.len();
        value.encode(&mut self.bytes);
        self.flip_from(start, order);
    }

    /// Appends text, compared by its UTF-8 bytes: collation "C".
    pub fn put_text(&mut self, value: &str, order: Order) {
        self.put_bytea(value.as_bytes(), order);
    }

    /// Appends a byte string.
    pub fn put_bytea(&mut self, value: &[u8], order: Order) {
        let start = self.bytes.len();
        self.bytes.reserve(value.len() + 1);
        for &byte in value {
            match byte {
                TERMINATOR => self.bytes.extend([ESCAPE, ESCAPED_TERMINATOR]),
                ESCAPE => self.bytes.extend([ESCAPE, ESCAPED_ESCAPE]),
                _ => self.bytes.push(byte),
            }
        }
        self.bytes.push(TERMINATOR);
        self.flip_from(start, order);
    }

    /// Appends a date, in days since an epoch that the caller chooses.
    pub fn put_date(&mut self, days: i32, order: Order) {
        self.put_i32(days, order);
    }

    /// Appends a time of day, in microseconds.
    pub fn put_time(&mut self, us: i64, order: Order) {
        self.put_i64(us, order);
    }

    /// Appends a timestamp, with or without time zone, in microseconds since an epoch that the
    /// caller chooses.
    pub fn put_timestamp(&mut self, us: i64, order: Order) {
        self.put_i64(us, order);
    }

    /// Appends a uuid.
    pub fn put_uuid(&mut self, value: [u8; 16], order: Order) {
        self.put_fixed(value, order);
    }

    fn put_fixed<const N: usize>(&mut self, bytes: [u8; N], order: Order) {
        let mask = order.mask();
        self.bytes.extend_from_slice(&bytes.map(|byte| byte ^ mask));
    }

    fn flip_from(&mut self, start: usize, order: Order) {
        if order == Order::Descending {
            self.bytes[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
}

/// Decodes the columns of a key. Rejects bytes that no encoder writes.
#[derive(Clone, Debug)]
pub struct KeyDecoder<'a> {
    from: Reader<'a>,
}

impl<'a> KeyDecoder<'a> {
    /// Creates a decoder that starts at the first column of `key`.
    pub fn new(key: &'a [u8]) -> Self {
        Self { from: Reader::new(key) }
    }

    /// The bytes of the columns that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.from.rest()
    }

    /// Checks that all columns were read.
    ///
    /// # Errors
    /// If there are bytes after the last column.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.from.is_empty() { Ok(()) } else { Err(DecodeError::new("end of key")) }
    }

    /// Reads the marker of a nullable column. Returns whether the column is NULL.
    ///
    /// # Errors
    /// If the byte is not a marker.
    pub fn is_null(&mut self, nulls: Nulls) -> Result<bool, DecodeError> {
        match self.from.u8("null marker in key")? {
            marker @ 0..=1 => Ok(marker == nulls.null_marker()),
            _ => Err(DecodeError::new("null marker in key")),
        }
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// If the byte is neither 0 nor 1.
    pub fn bool(&mut self, order: Order) -> Result<bool, DecodeError> {
        match self.fixed("boolean in key", order)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(DecodeError::new("boolean in key")),
        }
    }

    /// Reads a smallint.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn i16(&mut self, order: Order) -> Result<i16, DecodeError> {
        Ok(i16::from_be_bytes(self.fixed("smallint in key", order)?) ^ i16::MIN)
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn i32(&mut self, order: Order) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(self.fixed("integer in key", order)?) ^ i32::MIN)
    }

    /// Reads a bigint.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn i64(&mut self, order: Order) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.fixed("bigint in key", order)?) ^ i64::MIN)
    }

    /// Reads a real.
    ///
    /// # Errors
    /// If bytes are missing, or encode -0 or a NaN that the encoder does not write.
    pub fn f32(&mut self, order: Order) -> Result<f32, DecodeError> {
        let bits = u32::from_be_bytes(self.fixed("real in key", order)?);
        let flip = if bits >> 31 == 0 { u32::MAX } else { 1 << 31 };
        let value = f32::from_bits(bits ^ flip);
        let is_canonical = canonical_f32(value).to_bits() == value.to_bits();
        is_canonical.then_some(value).ok_or(DecodeError::new("real in key"))
    }

    /// Reads a double precision.
    ///
    /// # Errors
    /// If bytes are missing, or encode -0 or a NaN that the encoder does not write.
    pub fn f64(&mut self, order: Order) -> Result<f64, DecodeError> {
        let bits = u64::from_be_bytes(self.fixed("double precision in key", order)?);
        let flip = if bits >> 63 == 0 { u64::MAX } else { 1 << 63 };
        let value = f64::from_bits(bits ^ flip);
        let is_canonical = canonical_f64(value).to_bits() == value.to_bits();
        is_canonical.then_some(value).ok_or(DecodeError::new("double precision in key"))
    }

    /// Reads a numeric.
    ///
    /// # Errors
    /// If the encoder does not write these bytes for any number.
    pub fn numeric(&mut self, order: Order) -> Result<Decimal, DecodeError> {
        Decimal::decode(&mut self.from, order.mask())
    }

    /// Reads text.
    ///
    /// # Errors
    /// If the text has no terminator, or is not UTF-8.
    pub fn text(&mut self, order: Order) -> Result<String, DecodeError> {
        String::from_utf8(self.bytea(order)?).map_err(|_| DecodeError::new("text in key"))
    }

    /// Reads a byte string.
    ///
    /// # Errors
    /// If the string has no terminator, or contains an escape that the encoder does not write.
    pub fn bytea(&mut self, order: Order) -> Result<Vec<u8>, DecodeError> {
        const WHAT: &str = "byte string in key";
        let mask = order.mask();
        let mut value = Vec::new();
        loop {
            match self.from.u8(WHAT)? ^ mask {
                TERMINATOR => return Ok(value),
                ESCAPE => match self.from.u8(WHAT)? ^ mask {
                    ESCAPED_TERMINATOR => value.push(TERMINATOR),
                    ESCAPED_ESCAPE => value.push(ESCAPE),
                    _ => return Err(DecodeError::new(WHAT)),
                },
                byte => value.push(byte),
            }
        }
    }

    /// Reads a date.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn date(&mut self, order: Order) -> Result<i32, DecodeError> {
        self.i32(order)
    }

    /// Reads a time of day.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn time(&mut self, order: Order) -> Result<i64, DecodeError> {
        self.i64(order)
    }

    /// Reads a timestamp.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn timestamp(&mut self, order: Order) -> Result<i64, DecodeError> {
        self.i64(order)
    }

    /// Reads a uuid.
    ///
    /// # Errors
    /// If bytes are missing.
    pub fn uuid(&mut self, order: Order) -> Result<[u8; 16], DecodeError> {
        self.fixed("uuid in key", order)
    }

    fn fixed<const N: usize>(
        &mut self,
        what: &'static str,
        order: Order,
    ) -> Result<[u8; N], DecodeError> {
        let mask = order.mask();
        let bytes = self.from.take(N, what)?.first_chunk::<N>().ok_or(DecodeError::new(what))?;
        Ok(bytes.map(|byte| byte ^ mask))
    }
}

fn canonical_f32(value: f32) -> f32 {
    // Adding positive zero turns -0 into 0 and changes no other value. The language does not
    // specify the sign of f32::NAN, so its bits are written out.
    if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value + 0.0 }
}

fn canonical_f64(value: f64) -> f64 {
    if value.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { value + 0.0 }
}
