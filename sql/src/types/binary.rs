//! Binary formats of the wire protocol, big-endian.

use std::sync::Arc;

use num_bigint::{BigInt, BigUint, Sign};
use num_traits::ToPrimitive;
use pangea_core::codec::{DecodeError, Reader};

use super::SqlType;
use super::array::{Array, check_dimensions};
use super::datum::Datum;
use super::interval::Interval;
use super::label::Label;
use super::numeric::Numeric;
use super::time::checked_time;
use super::{json, text};
use crate::error::{SqlError, code};

/// The base of the digits of a binary `numeric`.
const NUMERIC_BASE: u32 = 10_000;
/// Number of decimal digits in one digit of that base.
const NUMERIC_GROUP: u32 = 4;
/// The byte before the text of a binary `jsonb`.
const JSONB_VERSION: u8 = 1;
const NUMERIC_POSITIVE: u16 = 0;
const NUMERIC_NEGATIVE: u16 = 0x4000;
/// Maximum number of groups in a binary `numeric`: 131,072 decimal digits before the point and
/// 16,383 after it.
const NUMERIC_GROUPS_MAX: usize = (131_072 + 16_384) / 4;

/// Appends a value that is not NULL.
///
/// # Panics
/// If the value is NULL or not of the type.
pub fn encode(base: SqlType, datum: &Datum, out: &mut Vec<u8>) {
    match datum {
        Datum::Null => panic!("NULL has no binary format"),
        Datum::Bool(value) => out.push(u8::from(*value)),
        Datum::Int(value) => match base {
            SqlType::Int2 => out.extend((*value as i16).to_be_bytes()),
            SqlType::Int4 | SqlType::Oid | SqlType::Reg(_) => {
                out.extend((*value as i32).to_be_bytes());
            }
            _ => out.extend(value.to_be_bytes()),
        },
        Datum::Float(value) if base == SqlType::Float4 => out.extend((*value as f32).to_be_bytes()),
        Datum::Float(value) => out.extend(value.to_be_bytes()),
        Datum::Numeric(value) => encode_numeric(value, out),
        Datum::Text(value) => out.extend(value.as_bytes()),
        Datum::Bytea(value) => out.extend(value),
        Datum::Date(value) => out.extend(value.to_be_bytes()),
        Datum::Timestamp(value) | Datum::Time(value) => out.extend(value.to_be_bytes()),
        Datum::Interval(value) => {
            out.extend(value.micros.to_be_bytes());
            out.extend(value.days.to_be_bytes());
            out.extend(value.months.to_be_bytes());
        }
        Datum::Uuid(value) => out.extend(value),
        Datum::Jsonb(json) => {
            out.push(JSONB_VERSION);
            out.extend(json.to_string().into_bytes());
        }
        Datum::Enum(label) => out.extend(label.shown().as_bytes()),
        Datum::Array(array) => {
            let element = base.element().expect("an array's type is one");
            encode_array(element, array, i32::from(!base.is_vector()), out);
        }
    }
}

/// Appends the number of dimensions, whether there are NULLs, and the type; then the length and
/// lower bound of each dimension; then each element with its length.
fn encode_array(base: SqlType, array: &Array, first: i32, out: &mut Vec<u8>) {
    out.extend((array.dims().len() as i32).to_be_bytes());
    out.extend(i32::from(array.items().iter().any(Datum::is_null)).to_be_bytes());
    out.extend(base.oid().to_be_bytes());
    for dim in array.dims() {
        out.extend((*dim as i32).to_be_bytes());
        out.extend(first.to_be_bytes());
    }
    for item in array.items() {
        if item.is_null() {
            out.extend((-1i32).to_be_bytes());
            continue;
        }
        let start = out.len();
        out.extend([0; 4]);
        encode(base, item, out);
        let length = (out.len() - start - 4) as i32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

fn decode_array(base: SqlType, first: i32, from: &mut Reader<'_>) -> Result<Array, SqlError> {
    let malformed = || SqlError::new(code::INVALID_BINARY, "insufficient data left in message");
    let next =
        |from: &mut Reader<'_>| array::<4>(from).map(i32::from_be_bytes).map_err(|_| malformed());
    let dimensions = usize::try_from(next(from)?).map_err(|_| malformed())?;
    check_dimensions(dimensions)?;
    let (_, oid) = (next(from)?, next(from)? as u32);
    if oid != base.oid() {
        let message =
            format!("binary data has array element type {oid} instead of expected {}", base.oid());
        return Err(SqlError::new(code::TYPE_MISMATCH, message));
    }
    let mut dims = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        dims.push(usize::try_from(next(from)?).map_err(|_| malformed())?);
        if next(from)? != first {
            let feature = format!("an array with a lower bound other than {first}");
            return Err(SqlError::unsupported(feature));
        }
    }
    let count = dims.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
    let count = count.filter(|_| dimensions > 0).unwrap_or(0);
    let mut items = Vec::new();
    for _ in 0..count {
        let length = next(from)?;
        items.push(if length == -1 {
            Datum::Null
        } else {
            let length = usize::try_from(length).map_err(|_| malformed())?;
            decode(base, from.take(length, "value").map_err(|_| malformed())?)?
        });
    }
    Array::new(dims, items)
}

/// Decodes a value of a type.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode(base: SqlType, bytes: &[u8]) -> Result<Datum, SqlError> {
    let mut from = Reader::new(bytes);
    let malformed = |_: DecodeError| {
        SqlError::new(code::INVALID_BINARY, format!("incorrect binary data format for type {base}"))
    };
    let datum = match base {
        SqlType::Bool => Datum::Bool(array::<1>(&mut from).map_err(malformed)?[0] != 0),
        SqlType::Int2 => integer(i16::from_be_bytes(array(&mut from).map_err(malformed)?)),
        SqlType::Int4 => integer(i32::from_be_bytes(array(&mut from).map_err(malformed)?)),
        SqlType::Int8 => integer(i64::from_be_bytes(array(&mut from).map_err(malformed)?)),
        SqlType::Float4 => {
            Datum::Float(f32::from_be_bytes(array(&mut from).map_err(malformed)?).into())
        }
        SqlType::Float8 => Datum::Float(f64::from_be_bytes(array(&mut from).map_err(malformed)?)),
        SqlType::Numeric => Datum::Numeric(decode_numeric(&mut from)?),
        SqlType::Oid | SqlType::Reg(_) => {
            integer(u32::from_be_bytes(array(&mut from).map_err(malformed)?))
        }
        SqlType::Name | SqlType::InternalChar => {
            return decode_text(bytes).map(|text| Datum::Text(text::shortened(base, text)));
        }
        SqlType::Text | SqlType::Varchar | SqlType::Bpchar | SqlType::Unknown => {
            return decode_text(bytes).map(Datum::Text);
        }
        SqlType::Json => {
            let text = decode_text(bytes)?;
            return json::check(&text).map(|()| Datum::Text(text));
        }
        SqlType::Jsonb => match bytes.split_first() {
            Some((&JSONB_VERSION, text)) => {
                return Ok(Datum::Jsonb(Arc::new(json::parse(&decode_text(text)?)?)));
            }
            version => {
                let number = version.map_or(0, |(number, _)| *number);
                let message = format!("unsupported jsonb version number {number}");
                return Err(SqlError::new(code::INTERNAL, message));
            }
        },
        SqlType::Enum(_) => {
            let text = decode_text(bytes)?;
            return Ok(Datum::Enum(Arc::new(Label::of_text(&text))));
        }
        SqlType::Bytea => return Ok(Datum::Bytea(bytes.to_vec())),
        SqlType::Date => Datum::Date(i32::from_be_bytes(array(&mut from).map_err(malformed)?)),
        SqlType::Timestamp | SqlType::Timestamptz => {
            Datum::Timestamp(i64::from_be_bytes(array(&mut from).map_err(malformed)?))
        }
        SqlType::Time => {
            Datum::Time(checked_time(i64::from_be_bytes(array(&mut from).map_err(malformed)?))?)
        }
        SqlType::Interval => Datum::Interval(Interval {
            micros: i64::from_be_bytes(array(&mut from).map_err(malformed)?),
            days: i32::from_be_bytes(array(&mut from).map_err(malformed)?),
            months: i32::from_be_bytes(array(&mut from).map_err(malformed)?),
        }),
        SqlType::Uuid => Datum::Uuid(array(&mut from).map_err(malformed)?),
        SqlType::Array(_) | SqlType::Int2Vector | SqlType::OidVector => {
            let element = base.element().expect("an array's type is one");
            let first = i32::from(!base.is_vector());
            Datum::Array(Arc::new(decode_array(element, first, &mut from)?))
        }
    };
    if from.is_empty() { Ok(datum) } else { Err(malformed(DecodeError::new("length"))) }
}

/// Decodes text from a client.
///
/// # Errors
/// If it is not UTF-8, or contains a zero byte.
pub fn decode_text(bytes: &[u8]) -> Result<String, SqlError> {
    check_text(bytes).map(str::to_owned)
}

/// Decodes text from a client without a copy.
///
/// # Errors
/// If it is not UTF-8, or contains a zero byte.
pub fn check_text(bytes: &[u8]) -> Result<&str, SqlError> {
    let invalid = "invalid byte sequence for encoding \"UTF8\"";
    let text = std::str::from_utf8(bytes)
        .map_err(|error| SqlError::not_utf8(&bytes[error.valid_up_to()..]))?;
    if text.contains('\0') {
        return Err(SqlError::new(code::INVALID_BYTES, format!("{invalid}: 0x00")));
    }
    Ok(text)
}

fn integer(value: impl Into<i64>) -> Datum {
    Datum::Int(value.into())
}

fn array<const N: usize>(from: &mut Reader<'_>) -> Result<[u8; N], DecodeError> {
    let mut bytes = [0; N];
    bytes.copy_from_slice(from.take(N, "value")?);
    Ok(bytes)
}

/// Appends the digits in base 10,000 from the highest down. The weight is that of the first one.
fn encode_numeric(value: &Numeric, out: &mut Vec<u8>) {
    let padding = (NUMERIC_GROUP - value.scale() % NUMERIC_GROUP) % NUMERIC_GROUP;
    let aligned = value.unscaled().magnitude() * BigUint::from(10u32).pow(padding);
    let mut groups = aligned_groups(aligned);
    let fraction_groups = (value.scale() + padding) / NUMERIC_GROUP;
    let weight = groups.len() as i64 - 1 - i64::from(fraction_groups);
    let kept = groups.iter().rposition(|&group| group != 0).map_or(0, |last| last + 1);
    groups.truncate(kept);
    let weight = if groups.is_empty() { 0 } else { weight };
    let sign = if value.signum() < 0 { NUMERIC_NEGATIVE } else { NUMERIC_POSITIVE };
    out.extend((groups.len() as u16).to_be_bytes());
    out.extend((weight as i16).to_be_bytes());
    out.extend(sign.to_be_bytes());
    out.extend((value.scale() as u16).to_be_bytes());
    groups.iter().for_each(|group| out.extend(group.to_be_bytes()));
}

fn aligned_groups(mut rest: BigUint) -> Vec<u16> {
    let mut groups = Vec::new();
    while rest != BigUint::ZERO {
        let group = &rest % NUMERIC_BASE;
        groups.push(group.to_u16().expect("a group is below 10,000"));
        rest /= NUMERIC_BASE;
    }
    groups.reverse();
    groups
}

fn decode_numeric(from: &mut Reader<'_>) -> Result<Numeric, SqlError> {
    let malformed = || SqlError::new(code::INVALID_BINARY, "invalid binary numeric value");
    let mut next = || array::<2>(from).map(u16::from_be_bytes).map_err(|_| malformed());
    let (count, weight, sign, scale) = (next()?, next()? as i16, next()?, next()?);
    if sign != NUMERIC_POSITIVE && sign != NUMERIC_NEGATIVE {
        return Err(SqlError::unsupported("NaN or infinity in type numeric"));
    }
    if usize::from(count) > NUMERIC_GROUPS_MAX || scale > 0x3fff {
        return Err(malformed());
    }
    let mut unscaled = BigUint::ZERO;
    for _ in 0..count {
        let group = next()?;
        if u32::from(group) >= NUMERIC_BASE {
            return Err(malformed());
        }
        unscaled = unscaled * NUMERIC_BASE + BigUint::from(group);
    }
    // The last group has the weight 10,000^(weight - count + 1).
    let exponent = (i64::from(weight) - i64::from(count) + 1) * i64::from(NUMERIC_GROUP);
    let ten = BigUint::from(10u32);
    let sign = if sign == NUMERIC_NEGATIVE { Sign::Minus } else { Sign::Plus };
    let exact = if exponent >= 0 {
        Numeric::new(BigInt::from_biguint(sign, unscaled * ten.pow(exponent as u32)), 0)
    } else {
        Numeric::new(BigInt::from_biguint(sign, unscaled), exponent.unsigned_abs() as u32)
    };
    Ok(exact.truncate_at(scale.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::text;
    use crate::types::zone::Zone;

    #[test]
    fn values_survive_their_binary_format() {
        let cases = [
            (SqlType::Bool, "t"),
            (SqlType::Int2, "-32768"),
            (SqlType::Int4, "2147483647"),
            (SqlType::Int8, "-9223372036854775808"),
            (SqlType::Float4, "0.1"),
            (SqlType::Float8, "-1.5e+300"),
            (SqlType::Numeric, "0"),
            (SqlType::Numeric, "0.00"),
            (SqlType::Numeric, "-12345678.901"),
            (SqlType::Numeric, "0.00012300"),
            (SqlType::Numeric, "120000000000000000000000000"),
            (SqlType::Text, "é"),
            (SqlType::Bytea, "\\x00ff"),
            (SqlType::Date, "1999-12-31"),
            (SqlType::Timestamp, "2026-11-21 03:04:05.123456"),
            (SqlType::Timestamptz, "2026-11-21 03:04:05+00"),
            (SqlType::Time, "24:00:00"),
            (SqlType::Interval, "-1 years +2 days -00:00:00.5"),
            (SqlType::Json, "{\"a\" :1}"),
            (SqlType::Jsonb, "{\"a\": [1.50, null]}"),
            (SqlType::Uuid, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ];
        let zone = Zone::default();
        let arrays = [
            (SqlType::Int4, "{1,NULL,-3}"),
            (SqlType::Int2, "{{1,2},{3,4}}"),
            (SqlType::Text, "{\"a b\",é,\"\"}"),
            (SqlType::Numeric, "{}"),
            (SqlType::Timestamptz, "{\"2026-11-21 03:04:05+00\"}"),
        ];
        let arrays = arrays.map(|(base, text)| (base.array().unwrap(), text));
        for (base, shown) in cases.into_iter().chain(arrays) {
            let mut bytes = Vec::new();
            encode(base, &text::parse(base, shown, &zone).unwrap(), &mut bytes);
            assert_eq!(text::format(base, &decode(base, &bytes).unwrap(), &zone), shown, "{base}");
            if !base.is_string() && base != SqlType::Bytea {
                assert!(decode(base, &bytes[1..]).is_err(), "{base} cut short");
            }
        }
    }

    #[test]
    fn a_numeric_has_the_groups_that_postgresql_sends() {
        let mut bytes = Vec::new();
        encode(SqlType::Numeric, &Datum::Numeric("12345.678".parse().unwrap()), &mut bytes);
        assert_eq!(bytes, [0, 3, 0, 1, 0, 0, 0, 3, 0, 1, 0x09, 0x29, 0x1a, 0x7c]);
    }
}
