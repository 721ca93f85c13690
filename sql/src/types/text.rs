//! Text formats: of literals, and of values that are sent to clients.

use std::fmt::Write;
use std::sync::Arc;

use super::array::Array;
use super::datetime::{
    format_date, format_timestamp, format_timestamptz, parse_date, parse_timestamp,
    parse_timestamptz,
};
use super::datum::Datum;
use super::interval::Interval;
use super::json;
use super::label::Label;
use super::time::{format_time, parse_time};
use super::zone::Zone;
use super::{ColumnType, Element, NO_MODIFIER, SqlType};
use crate::error::{SqlError, code};

/// Maximum length of a `name` in bytes.
const NAME_MAX: usize = 63;

fn invalid(base: SqlType, text: &str) -> SqlError {
    let message = format!("invalid input syntax for type {base}: \"{text}\"");
    SqlError::new(code::INVALID_TEXT, message)
}

/// Parses a value of a type from text.
///
/// # Errors
/// If the text is malformed.
pub fn parse(base: SqlType, text: &str, zone: &Zone) -> Result<Datum, SqlError> {
    match base {
        SqlType::Bool => parse_bool(text).map(Datum::Bool).ok_or_else(|| invalid(base, text)),
        SqlType::Int2 | SqlType::Int4 | SqlType::Int8 => parse_integer(base, text).map(Datum::Int),
        SqlType::Float4 | SqlType::Float8 => parse_float(base, text).map(Datum::Float),
        SqlType::Numeric => text.parse().map(Datum::Numeric),
        SqlType::Text | SqlType::Varchar | SqlType::Bpchar | SqlType::Unknown => {
            Ok(Datum::Text(text.to_owned()))
        }
        SqlType::Bytea => parse_bytea(text).map(Datum::Bytea),
        SqlType::Date => parse_date(text).map(Datum::Date),
        SqlType::Timestamp => parse_timestamp(text).map(Datum::Timestamp),
        SqlType::Timestamptz => parse_timestamptz(text, zone).map(Datum::Timestamp),
        SqlType::Time => parse_time(text).map(Datum::Time),
        SqlType::Interval => Interval::parse(text).map(Datum::Interval),
        SqlType::Uuid => parse_uuid(text).map(Datum::Uuid).ok_or_else(|| invalid(base, text)),
        SqlType::Json => json::check(text).map(|()| Datum::Text(text.to_owned())),
        SqlType::Jsonb => json::parse(text).map(|json| Datum::Jsonb(Arc::new(json))),
        SqlType::Name | SqlType::InternalChar => Ok(Datum::Text(shortened(base, text.to_owned()))),
        SqlType::Oid | SqlType::Reg(_) => parse_oid(base, text).map(Datum::Int),
        SqlType::Int2Vector | SqlType::OidVector => {
            let element = base.element().expect("a vector is of something");
            let items = text.split_ascii_whitespace().map(|word| parse(element, word, zone));
            Ok(Datum::array(items.collect::<Result<_, _>>()?))
        }
        // The plan looks up the label.
        SqlType::Enum(_) => Ok(Datum::Enum(Arc::new(Label::of_text(text)))),
        SqlType::Array(element) => {
            Array::parse(element, text, zone).map(|array| Datum::Array(Arc::new(array)))
        }
    }
}

/// Truncates a text silently to a name or a `"char"`.
pub fn shortened(base: SqlType, mut text: String) -> String {
    let most = match base {
        SqlType::Name => NAME_MAX,
        SqlType::InternalChar => text.chars().next().map_or(0, char::len_utf8),
        _ => return text,
    };
    text.truncate(text.floor_char_boundary(most));
    text
}

/// Parses an OID. `-` is no object, except for type `oid`.
fn parse_oid(base: SqlType, text: &str) -> Result<i64, SqlError> {
    let trimmed = text.trim();
    if base != SqlType::Oid && trimmed == "-" {
        return Ok(0);
    }
    let digits = trimmed.strip_prefix('-').unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(match base {
            SqlType::Oid => invalid(base, text),
            base => SqlError::unsupported(format!("a name as a {base} here")),
        });
    }
    let number = trimmed.parse::<i64>().ok();
    // A negative number wraps around, as in C.
    let number = number.filter(|&n| n >= i32::MIN.into() && n <= u32::MAX.into());
    number.map(|number| i64::from(number as u32)).ok_or_else(|| {
        let message = format!("value \"{text}\" is out of range for type {base}");
        SqlError::new(code::NUMERIC_OUT_OF_RANGE, message)
    })
}

fn parse_bool(text: &str) -> Option<bool> {
    let word = text.trim().to_ascii_lowercase();
    let begins = |full: &str, min: usize| word.len() >= min && full.starts_with(&word);
    match word.as_str() {
        "1" => Some(true),
        "0" => Some(false),
        _ if begins("true", 1) || begins("yes", 1) || begins("on", 2) => Some(true),
        _ if begins("false", 1) || begins("no", 1) || begins("off", 2) => Some(false),
        _ => None,
    }
}

/// Returns the error of an integer that does not fit its type.
pub fn integer_out_of_range(base: SqlType) -> SqlError {
    SqlError::new(code::NUMERIC_OUT_OF_RANGE, format!("{base} out of range"))
}

/// Returns whether an integer fits a type.
pub fn fits(base: SqlType, value: i64) -> bool {
    match base {
        SqlType::Int2 => i16::try_from(value).is_ok(),
        SqlType::Int4 => i32::try_from(value).is_ok(),
        _ => true,
    }
}

fn parse_integer(base: SqlType, text: &str) -> Result<i64, SqlError> {
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid(base, text));
    }
    trimmed.parse::<i64>().ok().filter(|&value| fits(base, value)).ok_or_else(|| {
        let message = format!("value \"{text}\" is out of range for type {base}");
        SqlError::new(code::NUMERIC_OUT_OF_RANGE, message)
    })
}

fn parse_float(base: SqlType, text: &str) -> Result<f64, SqlError> {
    let trimmed = text.trim();
    let unsigned = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed).to_ascii_lowercase();
    let is_word = ["nan", "inf", "infinity"].contains(&unsigned.as_str());
    let is_number = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !is_word && !is_number {
        return Err(invalid(base, text));
    }
    let value = trimmed.parse::<f64>().map_err(|_| invalid(base, text))?;
    let value = if base == SqlType::Float4 { f64::from(value as f32) } else { value };
    let has_digits =
        unsigned.split('e').next().is_some_and(|m| m.contains(|c| ('1'..='9').contains(&c)));
    if !is_word && (value.is_infinite() || (value == 0.0 && has_digits)) {
        let message = format!("\"{text}\" is out of range for type {base}");
        return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message));
    }
    Ok(value)
}

fn parse_bytea(text: &str) -> Result<Vec<u8>, SqlError> {
    if let Some(hex) = text.strip_prefix("\\x") {
        return decode_hex(hex);
    }
    parse_escaped(text)
}

/// Parses bytes in the escape format, in which a backslash precedes a backslash or three octal
/// digits.
///
/// # Errors
/// If a backslash precedes anything else.
pub fn parse_escaped(text: &str) -> Result<Vec<u8>, SqlError> {
    let malformed = || SqlError::new(code::INVALID_TEXT, "invalid input syntax for type bytea");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'\\' {
            bytes.push(byte);
            rest = after;
        } else if after.first() == Some(&b'\\') {
            bytes.push(b'\\');
            rest = &after[1..];
        } else {
            let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
            let value = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
            bytes.push(value.ok_or_else(malformed)?);
            rest = &after[3..];
        }
    }
    Ok(bytes)
}

/// Decodes hexadecimal digits. Blanks are ignored.
///
/// # Errors
/// If another character occurs, or the number of digits is odd.
pub fn decode_hex(hex: &str) -> Result<Vec<u8>, SqlError> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let value = |c: char| {
        c.to_digit(16).ok_or_else(|| {
            let message = format!("invalid hexadecimal digit: \"{c}\"");
            SqlError::new(code::INVALID_PARAMETER, message)
        })
    };
    if !digits.len().is_multiple_of(2) {
        let message = "invalid hexadecimal data: odd number of digits";
        return Err(SqlError::new(code::INVALID_PARAMETER, message));
    }
    digits.chunks(2).map(|pair| Ok((value(pair[0])? << 4 | value(pair[1])?) as u8)).collect()
}

/// Encodes bytes as lower-case hexadecimal digits.
pub fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bare = text.trim();
    let bare = bare.strip_prefix('{').map_or(Some(bare), |rest| rest.strip_suffix('}'))?;
    let digits: String = bare.chars().filter(|&c| c != '-').collect();
    let is_grouped =
        bare.split('-').all(|group| group.len().is_multiple_of(4) && !group.is_empty());
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = (is_grouped && is_hex).then(|| u128::from_str_radix(&digits, 16).ok())?;
    bytes.map(u128::to_be_bytes)
}

/// Formats a value for clients. NULL has no text.
///
/// # Panics
/// If the value is not of the type. The binder prevents this.
pub fn format(base: SqlType, datum: &Datum, zone: &Zone) -> String {
    match datum {
        Datum::Null => String::new(),
        Datum::Bool(value) => if *value { "t" } else { "f" }.to_owned(),
        Datum::Int(0) if matches!(base, SqlType::Reg(_)) => "-".to_owned(),
        Datum::Int(value) => value.to_string(),
        Datum::Float(value) if base == SqlType::Float4 => format_float(f64::from(*value as f32), 6),
        Datum::Float(value) => format_float(*value, 15),
        Datum::Numeric(value) => value.to_string(),
        Datum::Text(value) => value.clone(),
        Datum::Bytea(value) => format!("\\x{}", encode_hex(value)),
        Datum::Date(value) => format_date(*value),
        Datum::Timestamp(value) if base == SqlType::Timestamp => format_timestamp(*value),
        Datum::Timestamp(value) => format_timestamptz(*value, zone),
        Datum::Time(value) => format_time(*value),
        Datum::Interval(value) => value.to_string(),
        Datum::Uuid(value) => format_uuid(value),
        Datum::Jsonb(json) => json.to_string(),
        Datum::Enum(label) => label.shown().to_owned(),
        Datum::Array(array) => {
            let element = base.element().expect("an array's type is one");
            if base.is_vector() {
                let items = array.items().iter().map(|item| format(element, item, zone));
                return items.collect::<Vec<_>>().join(" ");
            }
            array.format(Element::of(element).expect("the type has an array type"), zone)
        }
    }
}

fn format_uuid(value: &[u8; 16]) -> String {
    let hex = encode_hex(value);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Formats with the fewest digits that parse to the same float. Uses an exponent from 10^`digits`
/// up and from 10^-5 down, as PostgreSQL does.
fn format_float(value: f64, digits: i32) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // `digits` is 6 only for `real`. Its shortest form is that of the narrower type.
    let scientific = if digits == 6 { format!("{:e}", value as f32) } else { format!("{value:e}") };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..digits).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    if digits == 6 { (value as f32).to_string() } else { value.to_string() }
}

/// Fits a value of a type to a column of that type: to its length, scale or precision. If
/// `is_explicit`, strings are truncated where an assignment fails.
///
/// # Errors
/// If it does not fit.
pub fn fit(target: ColumnType, datum: Datum, is_explicit: bool) -> Result<Datum, SqlError> {
    match datum {
        Datum::Array(array) if target.modifier != NO_MODIFIER => {
            let element = target.element().expect("an array fits an array");
            let items = array.items().iter().cloned();
            let items = items.map(|item| fit(element, item, is_explicit));
            let fitted = Array::new(array.dims().to_vec(), items.collect::<Result<_, _>>()?)?;
            Ok(Datum::Array(Arc::new(fitted)))
        }
        Datum::Text(text) if target.length().is_some() => {
            fit_text(target, text, is_explicit).map(Datum::Text)
        }
        Datum::Numeric(number) if target.modifier >= 0 => number.fit(target).map(Datum::Numeric),
        Datum::Timestamp(micros) if target.modifier >= 0 => {
            Ok(Datum::Timestamp(super::datetime::round_to_digits(micros, target.modifier)))
        }
        Datum::Time(micros) if target.modifier >= 0 => {
            Ok(Datum::Time(super::datetime::round_to_digits(micros, target.modifier)))
        }
        Datum::Interval(interval) => match target.fraction_digits() {
            Some(digits) => Ok(Datum::Interval(interval.round_to_digits(digits))),
            None => Ok(Datum::Interval(interval)),
        },
        other => Ok(other),
    }
}

fn fit_text(target: ColumnType, mut text: String, is_explicit: bool) -> Result<String, SqlError> {
    let Some(length) = target.length() else { return Ok(text) };
    if let Some((end, _)) = text.char_indices().nth(length) {
        // SQL allows trailing blanks to be truncated silently.
        if !is_explicit && !text[end..].bytes().all(|byte| byte == b' ') {
            let message = format!("value too long for type {target}");
            return Err(SqlError::new(code::STRING_TOO_LONG, message));
        }
        text.truncate(end);
    }
    if target.base == SqlType::Bpchar {
        let missing = length - text.chars().count();
        text.extend(std::iter::repeat_n(' ', missing));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(base: SqlType, text: &str) -> String {
        let zone = Zone::default();
        format(base, &parse(base, text, &zone).unwrap(), &zone)
    }

    #[test]
    fn values_are_shown_as_postgresql_shows_them() {
        let cases = [
            (SqlType::Bool, " TR ", "t"),
            (SqlType::Int4, " -7 ", "-7"),
            (SqlType::Float8, "1e15", "1e+15"),
            (SqlType::Float8, "123456789.125", "123456789.125"),
            (SqlType::Float8, "0.00001", "1e-05"),
            (SqlType::Float8, "-0", "-0"),
            (SqlType::Float8, "nan", "NaN"),
            (SqlType::Float4, "0.1", "0.1"),
            (SqlType::Float4, "1234567", "1.234567e+06"),
            (SqlType::Bytea, "\\xDEad", "\\xdead"),
            (SqlType::Bytea, "a\\\\b\\001", "\\x615c6201"),
            (
                SqlType::Uuid,
                "{A0EEBC99-9c0b-4ef8-bb6d6bb9bd380a11}",
                "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            ),
        ];
        for (base, text, expected) in cases {
            assert_eq!(shown(base, text), expected, "{base} {text}");
        }
    }

    #[test]
    fn bad_text_has_postgresqls_codes() {
        let cases = [
            (SqlType::Bool, "maybe", "22P02"),
            (SqlType::Bool, "o", "22P02"),
            (SqlType::Int4, "12x", "22P02"),
            (SqlType::Int4, "2147483648", "22003"),
            (SqlType::Int2, "-32769", "22003"),
            (SqlType::Int8, "9223372036854775808", "22003"),
            (SqlType::Float8, "1e400", "22003"),
            (SqlType::Float8, "1e-400", "22003"),
            (SqlType::Float8, "", "22P02"),
            (SqlType::Uuid, "a0ee", "22P02"),
            (SqlType::Bytea, "\\xf", "22023"),
        ];
        for (base, text, code) in cases {
            let error = parse(base, text, &Zone::default()).unwrap_err();
            assert_eq!(error.code.as_str(), code, "{base} {text}");
        }
    }

    #[test]
    fn strings_fit_their_columns_or_fail() {
        let varchar = ColumnType::with_length(SqlType::Varchar, 2).unwrap();
        let char3 = ColumnType::with_length(SqlType::Bpchar, 3).unwrap();
        let text = |text: &str| Datum::Text(text.to_owned());
        assert_eq!(fit(varchar, text("ab  "), false), Ok(text("ab")));
        assert_eq!(fit(varchar, text("abc"), false).unwrap_err().code.as_str(), "22001");
        assert_eq!(fit(varchar, text("abc"), true), Ok(text("ab")));
        assert_eq!(fit(char3, text("é"), false), Ok(text("é  ")));
    }
}
