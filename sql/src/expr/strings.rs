//! String functions. Lengths and positions count characters, from 1.

use super::functions::{Function, integer, text};
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The longest string that a function returns: PostgreSQL's limit for a value.
const STRING_BYTES_MAX: usize = 1 << 30;

/// The end that `trim` cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimSide {
    Both,
    Left,
    Right,
}

fn too_long() -> SqlError {
    SqlError::new(code::LIMIT_EXCEEDED, "requested length too large")
}

/// `a || b`
pub(super) fn concat(left: Datum, right: Datum) -> Result<Datum, SqlError> {
    match (left, right) {
        (Datum::Text(a), Datum::Text(b)) if a.len() + b.len() <= STRING_BYTES_MAX => {
            Ok(Datum::Text(a + &b))
        }
        (Datum::Bytea(mut a), Datum::Bytea(b)) if a.len() + b.len() <= STRING_BYTES_MAX => {
            a.extend(b);
            Ok(Datum::Bytea(a))
        }
        (Datum::Text(_), Datum::Text(_)) | (Datum::Bytea(_), Datum::Bytea(_)) => Err(too_long()),
        (a, b) => panic!("{a:?} || {b:?}"),
    }
}

/// Evaluates a string function whose arguments are not NULL.
pub(super) fn call(function: Function, args: &[Datum]) -> Result<Datum, SqlError> {
    let string = |at: usize| text(&args[at]);
    let number = |at: usize| integer(&args[at]);
    let owned = |text: String| Ok(Datum::Text(text));
    let count = |count: usize| Ok(Datum::Int(count as i64));
    match function {
        Function::Lower => owned(string(0).to_lowercase()),
        Function::Upper => owned(string(0).to_uppercase()),
        Function::Length | Function::OctetLength => match &args[0] {
            Datum::Bytea(bytes) => count(bytes.len()),
            _ if function == Function::Length => count(string(0).chars().count()),
            _ => count(string(0).len()),
        },
        Function::Substring => {
            substring(string(0), number(1), args.get(2).map(integer)).map(Datum::Text)
        }
        Function::Trim(side) => {
            let blanks = args.get(1).map_or(" ", text);
            let is_blank = |c: char| blanks.contains(c);
            owned(match side {
                TrimSide::Both => string(0).trim_matches(is_blank).to_owned(),
                TrimSide::Left => string(0).trim_start_matches(is_blank).to_owned(),
                TrimSide::Right => string(0).trim_end_matches(is_blank).to_owned(),
            })
        }
        Function::Replace if string(1).is_empty() => owned(string(0).to_owned()),
        Function::Replace => {
            let found = string(0).matches(string(1)).count();
            bounded(found.saturating_mul(string(2).len()) + string(0).len())?;
            owned(string(0).replace(string(1), string(2)))
        }
        Function::Position => {
            let at = string(0).find(string(1));
            count(at.map_or(0, |at| string(0)[..at].chars().count() + 1))
        }
        Function::Left => owned(string(0).chars().take(end_of(string(0), number(1))).collect()),
        Function::Right => {
            let kept = end_of(string(0), number(1));
            owned(string(0).chars().skip(string(0).chars().count() - kept).collect())
        }
        Function::Pad { is_left } => {
            pad(string(0), number(1), args.get(2).map_or(" ", text), is_left).map(Datum::Text)
        }
        Function::Repeat => {
            let times = usize::try_from(number(1)).unwrap_or(0);
            bounded(string(0).len().saturating_mul(times))?;
            owned(string(0).repeat(times))
        }
        Function::Reverse => owned(string(0).chars().rev().collect()),
        Function::SplitPart => split_part(string(0), string(1), number(2)).map(Datum::Text),
        Function::StartsWith => Ok(Datum::Bool(string(0).starts_with(string(1)))),
        Function::Concat => owned(present(args).map(text).collect()),
        Function::ConcatWithSeparator if args[0].is_null() => Ok(Datum::Null),
        Function::ConcatWithSeparator => {
            owned(present(&args[1..]).map(text).collect::<Vec<_>>().join(string(0)))
        }
        Function::Like { is_negated, is_case_blind } => {
            let escape = args.get(2).map_or("\\", text);
            like(string(0), string(1), escape, is_case_blind)
                .map(|is| Datum::Bool(is != is_negated))
        }
        _ => code_points(function, args),
    }
}

pub(super) fn bounded(bytes: usize) -> Result<(), SqlError> {
    if bytes > STRING_BYTES_MAX { Err(too_long()) } else { Ok(()) }
}

fn present(args: &[Datum]) -> impl Iterator<Item = &Datum> {
    args.iter().filter(|arg| !arg.is_null())
}

fn code_points(function: Function, args: &[Datum]) -> Result<Datum, SqlError> {
    match (function, &args[0]) {
        (Function::ToHex(SqlType::Int4), Datum::Int(value)) => {
            Ok(Datum::Text(format!("{:x}", *value as i32)))
        }
        (Function::ToHex(_), Datum::Int(value)) => Ok(Datum::Text(format!("{value:x}"))),
        (Function::Ascii, Datum::Text(text)) => {
            Ok(Datum::Int(text.chars().next().map_or(0, |c| u32::from(c).into())))
        }
        (Function::Chr, Datum::Int(value)) => {
            let point = u32::try_from(*value).ok().filter(|&point| point != 0);
            let found = point.and_then(char::from_u32).map(|c| Datum::Text(c.to_string()));
            found.ok_or_else(|| {
                let message = format!("requested character not valid for encoding: {value}");
                SqlError::new(code::LIMIT_EXCEEDED, message)
            })
        }
        (function, value) => panic!("{function:?} of {value:?}"),
    }
}

/// Returns the number of characters that `left` and `right` keep; a negative count drops that many.
fn end_of(text: &str, count: i64) -> usize {
    let length = text.chars().count() as i64;
    let kept = if count < 0 { length.saturating_add(count) } else { count };
    kept.clamp(0, length) as usize
}

/// Returns the window `[start, start + length)` of positions from 1; the part before position 1 is
/// cut off.
fn substring(text: &str, start: i64, length: Option<i64>) -> Result<String, SqlError> {
    if length.is_some_and(|length| length < 0) {
        return Err(SqlError::new(code::SUBSTRING_LENGTH, "negative substring length not allowed"));
    }
    let end = length.map_or(i64::MAX, |length| start.saturating_add(length));
    let skipped = start.max(1) - 1;
    let taken = (end - 1 - skipped).max(0);
    Ok(text.chars().skip(skipped as usize).take(taken as usize).collect())
}

fn pad(string: &str, length: i64, fill: &str, is_left: bool) -> Result<String, SqlError> {
    let length = usize::try_from(length).unwrap_or(0);
    bounded(length.saturating_mul(4))?;
    let missing = length.saturating_sub(string.chars().count());
    let kept = string.chars().take(length);
    let filled = fill.chars().cycle().take(if fill.is_empty() { 0 } else { missing });
    Ok(if is_left { filled.chain(kept).collect() } else { kept.chain(filled).collect() })
}

fn split_part(string: &str, separator: &str, field: i64) -> Result<String, SqlError> {
    let parts: Vec<&str> =
        if separator.is_empty() { vec![string] } else { string.split(separator).collect() };
    let at = match field {
        0 => {
            let message = "field position must not be zero";
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        }
        1.. => usize::try_from(field - 1).ok(),
        _ => usize::try_from(field.unsigned_abs())
            .ok()
            .and_then(|back| parts.len().checked_sub(back)),
    };
    Ok(at.and_then(|at| parts.get(at)).copied().unwrap_or("").to_owned())
}

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Exactly(char),
    AnyOne,
    AnyRun,
}

/// Returns the first element of a pattern and the rest; `None` at the end of the pattern.
fn next_of(pattern: &str, escape: Option<char>) -> Result<Option<(Pattern, &str)>, SqlError> {
    let mut chars = pattern.chars();
    let Some(first) = chars.next() else { return Ok(None) };
    let first = match first {
        c if Some(c) == escape => Pattern::Exactly(chars.next().ok_or_else(|| {
            let message = "LIKE pattern must not end with escape character";
            SqlError::new(code::ESCAPE_SEQUENCE, message)
        })?),
        '%' => Pattern::AnyRun,
        '_' => Pattern::AnyOne,
        c => Pattern::Exactly(c),
    };
    Ok(Some((first, chars.as_str())))
}

pub(super) fn like(
    text: &str,
    pattern: &str,
    escape: &str,
    is_case_blind: bool,
) -> Result<bool, SqlError> {
    let mut escapes = escape.chars();
    let (escape, rest) = (escapes.next(), escapes.next());
    if rest.is_some() {
        return Err(SqlError::new(code::ESCAPE_CHARACTER, "invalid escape string")
            .with_hint("Escape string must be empty or one character."));
    }
    // The whole pattern is checked first, so that errors do not depend on how much of the text
    // matches.
    let mut rest = pattern;
    while let Some((_, behind)) = next_of(rest, escape)? {
        rest = behind;
    }
    match is_case_blind {
        true => matches(&text.to_lowercase(), &pattern.to_lowercase(), escape),
        false => matches(text, pattern, escape),
    }
}

/// Matches greedily and backtracks only to the last `%`: at most length times length steps.
fn matches(text: &str, pattern: &str, escape: Option<char>) -> Result<bool, SqlError> {
    let behind_one = |text: &str| text.chars().next().map_or(0, char::len_utf8);
    let (mut text, mut pattern) = (text, pattern);
    let mut last_run: Option<(&str, &str)> = None;
    while !text.is_empty() {
        match next_of(pattern, escape)? {
            Some((Pattern::AnyRun, behind)) => {
                last_run = Some((behind, text));
                pattern = behind;
            }
            Some((Pattern::AnyOne, behind)) => {
                (text, pattern) = (&text[behind_one(text)..], behind);
            }
            Some((Pattern::Exactly(c), behind)) if text.starts_with(c) => {
                (text, pattern) = (&text[c.len_utf8()..], behind);
            }
            _ => match &mut last_run {
                Some((behind, from)) => {
                    *from = &from[behind_one(from)..];
                    (text, pattern) = (*from, *behind);
                }
                None => return Ok(false),
            },
        }
    }
    while let Some((Pattern::AnyRun, behind)) = next_of(pattern, escape)? {
        pattern = behind;
    }
    Ok(pattern.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_matches_as_in_sql() {
        let cases = [
            ("abc", "a%", true),
            ("abc", "_b_", true),
            ("abc", "b%", false),
            ("", "%", true),
            ("a%c", "a\\%c", true),
            ("abc", "a\\%c", false),
            ("aXbXc", "a%b%c", true),
            ("mississippi", "m%iss%ip%", true),
            ("mississippi", "m%iss%ipx%", false),
        ];
        for (text, pattern, expected) in cases {
            assert_eq!(like(text, pattern, "\\", false), Ok(expected), "{text} LIKE {pattern}");
        }
        assert_eq!(like("ÀB", "àb", "\\", true), Ok(true));
        assert!(like("a", "a\\", "\\", false).is_err());
    }

    #[test]
    fn windows_of_strings_count_from_one() {
        assert_eq!(substring("héllo", 2, Some(3)).unwrap(), "éll");
        assert_eq!(substring("hello", -1, Some(4)).unwrap(), "he");
        assert_eq!(substring("hello", 10, None).unwrap(), "");
        assert!(substring("hello", 1, Some(-1)).is_err());
        assert_eq!(split_part("a,b,c", ",", -1).unwrap(), "c");
        assert_eq!(split_part("a,b,c", ",", 4).unwrap(), "");
        assert_eq!(pad("abc", 5, "xy", true).unwrap(), "xyabc");
        assert_eq!(pad("abc", 2, " ", false).unwrap(), "ab");
    }
}
