//! The values of variables, and their conversion to and from a server's types.

use std::error::Error;
use std::fmt;

use bytes::BytesMut;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};

/// Microseconds from 1970 to 2000, the epoch of PostgreSQL's timestamps.
const EPOCH_2000_US: i64 = 946_684_800_000_000;

/// The value of a variable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Double(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
        }
    }
}

impl Value {
    /// Parses a word of a command line: as a number if possible.
    pub fn of_word(word: &str) -> Self {
        match (word.parse(), word.parse::<f64>()) {
            (Ok(int), _) => Self::Int(int),
            (_, Ok(double)) if double.is_finite() => Self::Double(double),
            _ => Self::Text(word.to_owned()),
        }
    }

    /// Returns the value as an integer.
    ///
    /// # Errors
    /// If it is not an integer.
    pub fn int(&self) -> Result<i64, String> {
        match self {
            Self::Int(value) => Ok(*value),
            // Above this limit, an f64 does not represent integers exactly.
            Self::Double(value) if value.fract() == 0.0 && value.abs() < 9e15 => Ok(*value as i64),
            other => Err(format!("expected an integer, found {}", other.described())),
        }
    }

    /// Returns the value as a number.
    ///
    /// # Errors
    /// If it is not a number.
    pub fn double(&self) -> Result<f64, String> {
        match self {
            Self::Int(value) => Ok(*value as f64),
            Self::Double(value) => Ok(*value),
            other => Err(format!("expected a number, found {}", other.described())),
        }
    }

    /// Returns the value as a literal of SQL, to be inserted into a statement's text.
    pub fn literal(&self) -> String {
        match self {
            // Parentheses prevent two adjacent minus signs, which would begin a comment.
            Self::Int(value) if *value < 0 => format!("({value})"),
            Self::Double(value) if value.is_sign_negative() => format!("({value})"),
            Self::Text(text) => format!("'{}'", text.replace('\'', "''")),
            other => other.to_string(),
        }
    }

    fn described(&self) -> String {
        match self {
            Self::Text(text) => format!("the string '{text}'"),
            other => other.to_string(),
        }
    }
}

/// A value as a parameter. It is sent as text, which every type accepts.
#[derive(Debug)]
pub(super) struct Bound<'a>(pub &'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if *self.0 == Value::Null {
            return Ok(IsNull::Yes);
        }
        out.extend_from_slice(self.0.to_string().as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// Returns whether a column of this type can be converted to a value.
pub(super) fn can_be_value(of: &Type) -> bool {
    <Received as FromSql<'_>>::accepts(of)
}

/// A value from a row.
#[derive(Debug)]
pub(super) struct Received(pub Value);

impl<'a> FromSql<'a> for Received {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let of_us = |us: i64| -> Result<Value, Box<dyn Error + Sync + Send>> {
            Ok(Value::Text(timestamp(us.saturating_add(EPOCH_2000_US))?))
        };
        Ok(Self(match *of {
            Type::BOOL => Value::Bool(bool::from_sql(of, raw)?),
            Type::INT2 => Value::Int(i16::from_sql(of, raw)?.into()),
            Type::INT4 => Value::Int(i32::from_sql(of, raw)?.into()),
            Type::INT8 => Value::Int(i64::from_sql(of, raw)?),
            Type::FLOAT4 => Value::Double(f32::from_sql(of, raw)?.into()),
            Type::FLOAT8 => Value::Double(f64::from_sql(of, raw)?),
            Type::NUMERIC => Value::Text(numeric(raw).ok_or("truncated numeric")?),
            Type::TIMESTAMP | Type::TIMESTAMPTZ => of_us(i64::from_be_bytes(
                raw.try_into().map_err(|_| "expected a time of 8 bytes")?,
            ))?,
            Type::UUID => {
                Value::Text(uuid(raw.try_into().map_err(|_| "expected a uuid of 16 bytes")?))
            }
            _ => Value::Text(String::from_sql(of, raw)?),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Value::Null))
    }

    fn accepts(of: &Type) -> bool {
        let is_other = matches!(
            *of,
            Type::BOOL
                | Type::INT2
                | Type::INT4
                | Type::INT8
                | Type::FLOAT4
                | Type::FLOAT8
                | Type::NUMERIC
                | Type::TIMESTAMP
                | Type::TIMESTAMPTZ
                | Type::UUID
        );
        is_other || <String as FromSql<'_>>::accepts(of)
    }
}

/// Returns a time in a format that every server accepts.
pub(super) fn timestamp(us: i64) -> Result<String, String> {
    let at = jiff::Timestamp::from_microsecond(us).map_err(|error| error.to_string())?;
    Ok(at.strftime("%Y-%m-%d %H:%M:%S%.6f+00").to_string())
}

/// Formats sixteen bytes as a UUID.
pub(super) fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Decodes a numeric in PostgreSQL's binary format: digits in base 10,000.
fn numeric(raw: &[u8]) -> Option<String> {
    let word = |at: usize| Some(u16::from_be_bytes(raw.get(2 * at..2 * at + 2)?.try_into().ok()?));
    let (count, weight) = (usize::from(word(0)?), i32::from(word(1)? as i16));
    let (sign, scale) = (word(2)?, usize::from(word(3)?));
    match sign {
        0xC000 => return Some("NaN".to_owned()),
        0xD000 => return Some("Infinity".to_owned()),
        0xF000 => return Some("-Infinity".to_owned()),
        _ => {}
    }
    let digit = |place: i32| match usize::try_from(weight - place) {
        Ok(at) if at < count => word(4 + at),
        _ => Some(0),
    };
    let mut text = if sign == 0x4000 { "-".to_owned() } else { String::new() };
    let mut whole = String::new();
    for place in (0..=weight.max(0)).rev() {
        whole.push_str(&format!("{:04}", digit(place)?));
    }
    let whole = whole.trim_start_matches('0');
    text.push_str(if whole.is_empty() { "0" } else { whole });
    if scale > 0 {
        let mut fraction = String::new();
        for place in 1..=scale.div_ceil(4) as i32 {
            fraction.push_str(&format!("{:04}", digit(-place)?));
        }
        text.push('.');
        text.push_str(&fraction[..scale]);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerics_are_read_as_they_are_written() {
        let raw = |words: &[u16]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        // The number of digits, weight, sign, scale, and the digits.
        for (words, text) in [
            (&[0, 0, 0, 0][..], "0"),
            (&[1, 0, 0, 2, 12], "12.00"),
            (&[2, 0, 0x4000, 2, 12, 3_400], "-12.34"),
            (&[2, 1, 0, 0, 3, 5], "30005"),
            (&[1, 0xFFFF, 0, 4, 7], "0.0007"),
            (&[1, 1, 0, 1, 1], "10000.0"),
            (&[0, 0, 0xC000, 0], "NaN"),
        ] {
            assert_eq!(numeric(&raw(words)).as_deref(), Some(text));
        }
        assert_eq!(numeric(&[0, 1]), None);
    }

    #[test]
    fn words_are_numbers_where_they_can_be() {
        assert_eq!(Value::of_word("12"), Value::Int(12));
        assert_eq!(Value::of_word("0.5"), Value::Double(0.5));
        assert_eq!(Value::of_word("12 pm"), Value::Text("12 pm".to_owned()));
        assert_eq!(Value::of_word("nan"), Value::Text("nan".to_owned()));
    }

    #[test]
    fn literals_are_what_sql_reads_back() {
        for (value, literal) in [
            (Value::Int(-3), "(-3)"),
            (Value::Double(0.5), "0.5"),
            (Value::Text("it's".to_owned()), "'it''s'"),
            (Value::Null, "NULL"),
        ] {
            assert_eq!(value.literal(), literal);
        }
    }

    #[test]
    fn moments_and_uuids_have_their_usual_form() {
        assert_eq!(timestamp(EPOCH_2000_US + 1).unwrap(), "2000-01-01 00:00:00.000001+00");
        let bytes = std::array::from_fn(|at| at as u8);
        assert_eq!(uuid(bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
