//! Columns as keys: each SQL type in the order-preserving encoding of [`pangea_core::key::encode`].
//!
//! | type | as |
//! |---|---|
//! | integers | their own width |
//! | real, double precision | double precision, in which expressions compute and compare |
//! | date, timestamps | days, microseconds |
//! | time | microseconds |
//! | interval | total length, with months of 30 days: days and remaining microseconds |
//! | `char(n)` | text without trailing blanks |
//! | arrays | for each element a marker and the value, NULLs last; an end marker; the dimensions |
//! | enums | the position of the label |
//! | jsonb | a marker of its kind, the value; for arrays and objects count and contents |
//! | others | themselves |
//!
//! A row's key is ascending and contains no NULLs and therefore no markers. The keys of groups and
//! distinct values have a marker before each column, NULLs last. The keys of indexes have markers
//! too, in the order that the index defines.

use std::sync::Arc;

use pangea_core::codec::DecodeError;
use pangea_core::key::Key;
use pangea_core::key::encode::{Decimal, KeyDecoder, KeyEncoder, Nulls, Order};

use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::array::Array;
use crate::types::datetime::MICROS_PER_DAY;
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::types::json::Json;
use crate::types::label::{Label, Place};
use crate::types::numeric::{self, Numeric};

/// The sort order of primary key columns.
const ORDER: Order = Order::Ascending;
/// The position of NULLs, as in PostgreSQL for ascending columns.
const NULLS: Nulls = Nulls::Last;

/// Returns the key of a row from its key columns, none of which is NULL.
///
/// # Errors
/// If a numeric has more digits than PostgreSQL supports.
///
/// # Panics
/// If a column is NULL.
pub(crate) fn encode<'a>(
    columns: impl IntoIterator<Item = (SqlType, &'a Datum)>,
) -> Result<Key, SqlError> {
    let mut key = KeyEncoder::new();
    columns.into_iter().try_for_each(|(base, datum)| append(base, ORDER, datum, &mut key))?;
    Ok(key.finish())
}

/// Decodes the values of a row's key, in key order. A truncated key gives the values before the
/// cut.
pub(crate) fn decode(columns: impl IntoIterator<Item = SqlType>, key: &[u8]) -> Vec<Datum> {
    let mut from = KeyDecoder::new(key);
    columns.into_iter().map_while(|base| take(base, &mut from).ok()).collect()
}

/// Decodes the encoding of [`append`].
fn take(base: SqlType, from: &mut KeyDecoder<'_>) -> Result<Datum, DecodeError> {
    Ok(match base {
        SqlType::Bool => Datum::Bool(from.bool(ORDER)?),
        SqlType::Int2 => Datum::Int(from.i16(ORDER)?.into()),
        SqlType::Int4 => Datum::Int(from.i32(ORDER)?.into()),
        SqlType::Int8 | SqlType::Oid | SqlType::Reg(_) => Datum::Int(from.i64(ORDER)?),
        SqlType::Float4 | SqlType::Float8 => Datum::Float(from.f64(ORDER)?),
        SqlType::Numeric => {
            let number = from.numeric(ORDER)?.to_string();
            Datum::Numeric(number.parse().map_err(|_| DecodeError::new("numeric in key"))?)
        }
        SqlType::Json | SqlType::Unknown => Datum::Text(from.text(ORDER)?),
        base if base.is_string() => Datum::Text(from.text(ORDER)?),
        SqlType::Bytea => Datum::Bytea(from.bytea(ORDER)?),
        SqlType::Date => Datum::Date(from.date(ORDER)?),
        SqlType::Timestamp | SqlType::Timestamptz => Datum::Timestamp(from.timestamp(ORDER)?),
        SqlType::Time => Datum::Time(from.time(ORDER)?),
        SqlType::Interval => {
            let (days, micros) = (from.i64(ORDER)?, from.i64(ORDER)?);
            let length = Interval::of_length(
                i128::from(days) * i128::from(MICROS_PER_DAY) + i128::from(micros),
            );
            Datum::Interval(length.ok_or_else(|| DecodeError::new("interval in key"))?)
        }
        SqlType::Uuid => Datum::Uuid(from.uuid(ORDER)?),
        SqlType::Jsonb => Datum::Jsonb(Arc::new(take_json(from)?)),
        SqlType::Enum(_) => {
            let place = Place::new(&from.bytea(ORDER)?);
            Datum::Enum(Arc::new(Label::of_place(place)))
        }
        base => {
            let element = base.element().ok_or_else(|| DecodeError::new("type in key"))?;
            Datum::Array(Arc::new(take_array(element, from)?))
        }
    })
}

fn take_array(base: SqlType, from: &mut KeyDecoder<'_>) -> Result<Array, DecodeError> {
    let malformed = || DecodeError::new("array in key");
    let mut items = Vec::new();
    while from.bool(ORDER)? {
        items.push(if from.is_null(NULLS)? { Datum::Null } else { take(base, from)? });
    }
    let mut dims = Vec::new();
    for _ in 0..from.i16(ORDER)? {
        dims.push(usize::try_from(from.i32(ORDER)?).map_err(|_| malformed())?);
    }
    let count = dims.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
    if !items.is_empty() && count != Some(items.len()) {
        return Err(malformed());
    }
    Array::new(dims, items).map_err(|_| malformed())
}

/// Appends an array, which PostgreSQL orders first by its elements.
fn append_array(base: SqlType, array: &Array, key: &mut KeyEncoder) -> Result<(), SqlError> {
    for item in array.items() {
        key.put_bool(true, ORDER);
        key.put_marker(item.is_null(), NULLS);
        if !item.is_null() {
            append(base, ORDER, item, key)?;
        }
    }
    key.put_bool(false, ORDER);
    key.put_i16(array.dims().len() as i16, ORDER);
    array.dims().iter().for_each(|dim| key.put_i32(*dim as i32, ORDER));
    Ok(())
}

/// An empty array at the top level sorts before all other values.
const EMPTY_ARRAY: i16 = -1;

/// Appends JSON in PostgreSQL's order: by kind, then by length, then by contents.
fn append_json(json: &Json, key: &mut KeyEncoder) -> Result<(), SqlError> {
    match json {
        Json::Array(items) if items.is_empty() => {
            key.put_i16(EMPTY_ARRAY, ORDER);
            Ok(())
        }
        json => append_inner_json(json, key),
    }
}

fn append_inner_json(json: &Json, key: &mut KeyEncoder) -> Result<(), SqlError> {
    key.put_i16(json.rank().into(), ORDER);
    match json {
        Json::Null => {}
        Json::String(text) => key.put_text(text, ORDER),
        Json::Number(number) => key.put_numeric(&decimal(number)?, ORDER),
        Json::Bool(value) => key.put_bool(*value, ORDER),
        Json::Array(items) => {
            key.put_i64(items.len() as i64, ORDER);
            items.iter().try_for_each(|item| append_inner_json(item, key))?;
        }
        Json::Object(members) => {
            key.put_i64(members.len() as i64, ORDER);
            for (name, value) in members {
                key.put_text(name, ORDER);
                append_inner_json(value, key)?;
            }
        }
    }
    Ok(())
}

fn take_json(from: &mut KeyDecoder<'_>) -> Result<Json, DecodeError> {
    let rank = from.i16(ORDER)?;
    Ok(match rank {
        EMPTY_ARRAY => Json::Array(Vec::new()),
        0 => Json::Null,
        1 => Json::String(from.text(ORDER)?),
        2 => match take(SqlType::Numeric, from)? {
            Datum::Numeric(number) => Json::Number(number),
            _ => return Err(DecodeError::new("number in jsonb in key")),
        },
        3 => Json::Bool(from.bool(ORDER)?),
        4 => {
            let count = from.i64(ORDER)?;
            Json::Array((0..count).map(|_| take_json(from)).collect::<Result<_, _>>()?)
        }
        5 => {
            let count = from.i64(ORDER)?;
            let member = |_| Ok((from.text(ORDER)?, take_json(from)?));
            Json::Object((0..count).map(member).collect::<Result<_, DecodeError>>()?)
        }
        _ => return Err(DecodeError::new("jsonb in key")),
    })
}

/// Encodes values such that keys are equal if SQL calls the values not distinct, including NULLs.
///
/// # Errors
/// If a numeric has more digits than PostgreSQL supports.
pub(crate) fn encode_nullable<'a>(
    columns: impl IntoIterator<Item = (SqlType, &'a Datum)>,
) -> Result<Key, SqlError> {
    let mut key = KeyEncoder::new();
    let mut columns = columns.into_iter();
    columns.try_for_each(|(base, datum)| append_group(base, datum, &mut key))?;
    Ok(key.finish())
}

/// Appends one of the values of [`encode_nullable`].
///
/// # Errors
/// If a numeric has more digits than PostgreSQL supports.
pub(crate) fn append_group(
    base: SqlType,
    datum: &Datum,
    key: &mut KeyEncoder,
) -> Result<(), SqlError> {
    append_nullable(base, (ORDER, NULLS), datum, key)
}

/// Appends a value that may be NULL, after a NULL marker.
///
/// # Errors
/// If a numeric has more digits than PostgreSQL supports.
pub(crate) fn append_nullable(
    base: SqlType,
    (order, nulls): (Order, Nulls),
    datum: &Datum,
    key: &mut KeyEncoder,
) -> Result<(), SqlError> {
    key.put_marker(datum.is_null(), nulls);
    if datum.is_null() { Ok(()) } else { append(base, order, datum, key) }
}

/// Appends a value that is not NULL.
///
/// # Errors
/// If a numeric has more digits than PostgreSQL supports.
///
/// # Panics
/// If the value is NULL.
pub(crate) fn append(
    base: SqlType,
    order: Order,
    datum: &Datum,
    key: &mut KeyEncoder,
) -> Result<(), SqlError> {
    match datum {
        Datum::Null => panic!("a key column is never NULL"),
        Datum::Bool(value) => key.put_bool(*value, order),
        Datum::Int(value) => append_integer(base, order, *value, key),
        Datum::Float(value) => key.put_f64(*value, order),
        Datum::Numeric(value) => key.put_numeric(&decimal(value)?, order),
        Datum::Text(text) if base == SqlType::Bpchar => {
            key.put_text(text.trim_end_matches(' '), order);
        }
        Datum::Text(_) if base == SqlType::Json => {
            let message = "could not identify an equality operator for type json";
            return Err(SqlError::new(code::UNDEFINED_FUNCTION, message));
        }
        Datum::Jsonb(json) => append_json(json, key)?,
        Datum::Enum(label) => key.put_bytea(label.known_place().as_bytes(), order),
        Datum::Text(text) => key.put_text(text, order),
        Datum::Bytea(bytes) => key.put_bytea(bytes, order),
        Datum::Date(days) => key.put_date(*days, order),
        Datum::Timestamp(micros) => key.put_timestamp(*micros, order),
        Datum::Time(micros) => key.put_time(*micros, order),
        Datum::Interval(value) => {
            let (days, micros) = value.whole_days();
            key.put_i64(days, order);
            key.put_i64(micros, order);
        }
        Datum::Uuid(bytes) => key.put_uuid(*bytes, order),
        Datum::Array(array) => {
            let element = base.element().expect("an array's type is one");
            append_array(element, array, key)?;
        }
    }
    Ok(())
}

/// Appends an integer in the width of its column. It fits, because values out of range are rejected
/// long before they become keys.
fn append_integer(base: SqlType, order: Order, value: i64, key: &mut KeyEncoder) {
    match base {
        SqlType::Int2 => key.put_i16(value as i16, order),
        SqlType::Int4 => key.put_i32(value as i32, order),
        _ => key.put_i64(value, order),
    }
}

fn decimal(value: &Numeric) -> Result<Decimal, SqlError> {
    let Some((mut digits, exponent)) = value.significant() else { return Ok(Decimal::ZERO) };
    digits.iter_mut().for_each(|digit| *digit -= b'0');
    // `exponent` is the power of ten of the first digit; the scale is that of the last digit.
    let scale = digits.len() as i64 - 1 - exponent;
    let scale = i32::try_from(scale).map_err(|_| numeric::overflow())?;
    Decimal::from_digits(value.signum() < 0, &digits, scale).map_err(|_| numeric::overflow())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::text::parse;
    use crate::types::zone::Zone;

    #[test]
    fn keys_sort_like_their_columns() {
        let ascending: [(SqlType, &[&str]); 13] = [
            (
                SqlType::Jsonb,
                &[
                    "[]",
                    "null",
                    "\"\"",
                    "\"a\"",
                    "-1",
                    "2",
                    "10",
                    "false",
                    "true",
                    "[null]",
                    "[6]",
                    "[6, null]",
                    "[6, 6]",
                    "[[], 1]",
                    "{}",
                    "{\"b\": 1}",
                    "{\"a\": 1, \"b\": 0}",
                ],
            ),
            (
                SqlType::Text.array().unwrap(),
                &["{}", "{a}", "{a,b}", "{{a},{b}}", "{a,NULL}", "{ab}", "{NULL}"],
            ),
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
            (SqlType::Time, &["00:00", "00:00:00.000001", "23:59", "24:00"]),
            (
                SqlType::Interval,
                &["-178000000 years", "-1 day -1us", "-1 day", "0", "29 days 25:00", "1 mon 2:00"],
            ),
        ];
        let zone = Zone::default();
        for (base, values) in ascending {
            let key = |text: &&str| encode([(base, &parse(base, text, &zone).unwrap())]).unwrap();
            let keys: Vec<Key> = values.iter().map(key).collect();
            for (text, key) in values.iter().zip(&keys) {
                let [datum] = &decode([base], key)[..] else { panic!("{base} {text}") };
                let again = encode([(base, datum)]).unwrap();
                assert_eq!(again, *key, "{base} {text}");
                assert_eq!(decode([base], &key[..key.len() - 1]), [], "{base} {text} cut off");
            }
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
            (SqlType::Jsonb, "{\"b\":[1.0],\"a\":1}", "{\"a\":1e0,\"b\":[1.00]}"),
            (SqlType::Interval, "1 mon -1 day", "28 days 24:00"),
            (SqlType::Float8, "0", "-0"),
        ];
        for (base, a, b) in equal {
            let key = |text| encode([(base, &parse(base, text, &zone).unwrap())]).unwrap();
            assert_eq!(key(a), key(b), "{base} {a} {b}");
        }
    }

    #[test]
    fn nulls_are_not_distinct_and_sort_last() {
        let key = |datum: &Datum| encode_nullable([(SqlType::Text, datum)]).unwrap();
        assert_eq!(key(&Datum::Null), key(&Datum::Null));
        assert!(key(&Datum::Text("\u{ff}".to_owned())) < key(&Datum::Null));
    }

    #[test]
    fn a_numeric_with_too_many_digits_is_no_key() {
        let zone = Zone::default();
        for (text, is_key) in [("1e-16383", true), ("1e-16384", false), ("-1e-16384", false)] {
            let datum = parse(SqlType::Numeric, text, &zone).unwrap();
            let key = encode([(SqlType::Numeric, &datum)]);
            let code = key.map_err(|error| error.code.as_str().to_owned()).err();
            assert_eq!(code.as_deref(), (!is_key).then_some("22003"), "{text}");
        }
    }
}
