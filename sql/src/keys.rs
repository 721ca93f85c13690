//! Columns as bytes that sort like the columns.
//!
//! | type | bytes |
//! |---|---|
//! | boolean | one |
//! | integers, date, timestamps | big-endian, sign bit flipped |
//! | floats | IEEE bits; all flipped below 0, the sign bit alone above; -0 as 0, one NaN |
//! | numeric | sign, exponent of the first digit, digits, an end; all flipped below 0 |
//! | strings, bytea | the bytes, `00` as `00 ff`, then `00 00`; `char(n)` without blanks |
//! | uuid | its sixteen |

use pangea_core::key::Key;

use crate::types::SqlType;
use crate::types::datum::Datum;

/// What comes before a value in keys that may hold NULL.
const PRESENT: u8 = 0;
/// NULL sorts after all values, as in PostgreSQL.
const ABSENT: u8 = 1;

/// The key of a row: its key columns, none of which is NULL.
///
/// # Panics
/// When one is NULL.
pub(crate) fn encode<'a>(columns: impl IntoIterator<Item = (SqlType, &'a Datum)>) -> Key {
    let mut bytes = Vec::with_capacity(16);
    columns.into_iter().for_each(|(base, datum)| append(base, datum, &mut bytes));
    Key::from(&bytes[..])
}

/// Values as bytes that are equal where SQL calls the values not distinct, NULLs too.
pub(crate) fn encode_nullable<'a>(
    columns: impl IntoIterator<Item = (SqlType, &'a Datum)>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    for (base, datum) in columns {
        if datum.is_null() {
            bytes.push(ABSENT);
        } else {
            bytes.push(PRESENT);
            append(base, datum, &mut bytes);
        }
    }
    bytes
}

/// Appends a value that is not NULL.
///
/// # Panics
/// When it is NULL.
pub(crate) fn append(base: SqlType, datum: &Datum, out: &mut Vec<u8>) {
    match datum {
        Datum::Null => panic!("a key column is never NULL"),
        Datum::Bool(value) => out.push(u8::from(*value)),
        Datum::Int(value) => append_integer(base, *value, out),
        Datum::Float(value) => out.extend(float_bits(*value).to_be_bytes()),
        Datum::Numeric(value) => append_numeric(value, out),
        Datum::Text(text) if base == SqlType::Bpchar => {
            append_bytes(text.trim_end_matches(' ').as_bytes(), out);
        }
        Datum::Text(text) => append_bytes(text.as_bytes(), out),
        Datum::Bytea(bytes) => append_bytes(bytes, out),
        Datum::Date(days) => out.extend((*days as u32 ^ 1 << 31).to_be_bytes()),
        Datum::Timestamp(micros) => append_integer(SqlType::Int8, *micros, out),
        Datum::Uuid(bytes) => out.extend(bytes),
    }
}

fn append_integer(base: SqlType, value: i64, out: &mut Vec<u8>) {
    match base {
        SqlType::Int2 => out.extend((value as u16 ^ 1 << 15).to_be_bytes()),
        SqlType::Int4 => out.extend((value as u32 ^ 1 << 31).to_be_bytes()),
        _ => out.extend((value as u64 ^ 1 << 63).to_be_bytes()),
    }
}

fn float_bits(value: f64) -> u64 {
    let canonical = if value.is_nan() {
        f64::NAN.abs()
    } else if value == 0.0 {
        0.0
    } else {
        value
    };
    let bits = canonical.to_bits();
    if bits >> 63 == 1 { !bits } else { bits ^ 1 << 63 }
}

const NEGATIVE: u8 = 0;
const ZERO: u8 = 1;
const POSITIVE: u8 = 2;

fn append_numeric(value: &crate::types::numeric::Numeric, out: &mut Vec<u8>) {
    let Some((digits, exponent)) = value.significant() else { return out.push(ZERO) };
    let is_negative = value.signum() < 0;
    out.push(if is_negative { NEGATIVE } else { POSITIVE });
    let start = out.len();
    out.extend((exponent as u32 ^ 1 << 31).to_be_bytes());
    // Digits are ASCII, so that the end sorts before each of them.
    out.extend(digits);
    out.push(0);
    if is_negative {
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

fn append_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out.extend([0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::text::parse;
    use crate::types::zone::Zone;

    #[test]
    fn keys_sort_like_their_columns() {
        let ascending: [(SqlType, &[&str]); 9] = [
            (SqlType::Bool, &["f", "t"]),
            (SqlType::Int2, &["-32768", "-1", "0", "32767"]),
            (SqlType::Int4, &["-2147483648", "-1", "0", "7", "2147483647"]),
            (SqlType::Float8, &["-Infinity", "-1.5", "0", "1e-300", "2", "Infinity", "NaN"]),
            (
                SqlType::Numeric,
                &["-1000", "-12", "-1.2", "-1.1", "0", "0.001", "1.2", "1.21", "10"],
            ),
            (SqlType::Text, &["", "a", "a\u{1}", "ab", "b"]),
            (SqlType::Bytea, &["\\x", "\\x00", "\\x0000", "\\x0001", "\\x01"]),
            (SqlType::Date, &["-infinity", "1999-12-31", "2000-01-01", "infinity"]),
            (SqlType::Timestamp, &["1999-12-31 23:59:59", "2000-01-01", "2000-01-01 00:00:00.1"]),
        ];
        let zone = Zone::default();
        for (base, values) in ascending {
            let key = |text: &&str| encode([(base, &parse(base, text, &zone).unwrap())]);
            let keys: Vec<Key> = values.iter().map(key).collect();
            assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{base}: {keys:?}");
        }
    }

    #[test]
    fn equal_values_have_equal_keys() {
        let zone = Zone::default();
        let equal = [
            (SqlType::Numeric, "1.50", "1.5"),
            (SqlType::Numeric, "-100", "-1e2"),
            (SqlType::Bpchar, "a  ", "a"),
            (SqlType::Float8, "0", "-0"),
        ];
        for (base, a, b) in equal {
            let key = |text| encode([(base, &parse(base, text, &zone).unwrap())]);
            assert_eq!(key(a), key(b), "{base} {a} {b}");
        }
    }

    #[test]
    fn nulls_are_not_distinct_and_sort_last() {
        let key = |datum: &Datum| encode_nullable([(SqlType::Text, datum)]);
        assert_eq!(key(&Datum::Null), key(&Datum::Null));
        assert!(key(&Datum::Text("\u{ff}".to_owned())) < key(&Datum::Null));
    }
}
