//! `time`: microseconds since midnight, up to and including those of a whole day.

use super::datetime::{Clock, MICROS_PER_DAY, parse_civil, parse_clock, parse_zone};
use crate::error::{SqlError, code};

/// Checks a time of day in microseconds, and returns it.
///
/// # Errors
/// If it is negative or longer than a day.
pub fn checked_time(micros: i64) -> Result<i64, SqlError> {
    if (0..=MICROS_PER_DAY).contains(&micros) {
        return Ok(micros);
    }
    Err(SqlError::new(code::DATETIME_OVERFLOW, "time out of range"))
}

/// Parses a time: `12:30`, `12:30:01.5`, `123001`, `1:30 PM` or `allballs`. A date before it and a
/// zone after it are ignored.
///
/// # Errors
/// If it is malformed.
pub fn parse_time(text: &str) -> Result<i64, SqlError> {
    let invalid = || {
        let message = format!("invalid input syntax for type time: \"{text}\"");
        SqlError::new(code::DATETIME_FORMAT, message)
    };
    let overflow = || {
        let message = format!("date/time field value out of range: \"{text}\"");
        SqlError::new(code::DATETIME_OVERFLOW, message)
    };
    let lower = text.trim().to_ascii_lowercase();
    if lower == "allballs" {
        return Ok(0);
    }
    if lower == "now" {
        return Err(SqlError::unsupported("the time \"now\""));
    }
    let after_date = lower.split_once([' ', 't']).filter(|(date, _)| parse_civil(date).is_some());
    let is_dated = after_date.is_some();
    let rest = after_date.map_or(lower.as_str(), |(_, rest)| rest.trim_start());
    let rest = rest.strip_prefix('t').unwrap_or(rest);
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.'));
    let (clock, after) = rest.split_at(end.unwrap_or(rest.len()));
    let micros = match clock.contains(':') {
        true => parse_clock(clock).ok_or_else(invalid)?.ok_or_else(overflow)?,
        false => parse_digits(clock).ok_or_else(invalid)?.ok_or_else(overflow)?,
    };
    let after = after.trim();
    let (half, zone) = match after.get(..2) {
        Some(half @ ("am" | "pm")) => (Some(half), after[2..].trim()),
        _ => (None, after),
    };
    // The offset of a named zone is unknown without a date.
    let is_named = zone.starts_with(|c: char| c.is_ascii_alphabetic());
    if parse_zone(zone).is_none() || (is_named && !is_dated && zone.contains('/')) {
        return Err(invalid());
    }
    match half {
        None => Ok(micros),
        Some(half) => in_half(micros, half).ok_or_else(overflow),
    }
}

/// Parses `040506`, `0405` or `040506.25`. The inner option is `None` if a field is out of range.
fn parse_digits(text: &str) -> Option<Option<i64>> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !(whole.len() == 4 || whole.len() == 6) || !whole.is_ascii() {
        return None;
    }
    let pairs: Vec<&str> = (0..whole.len()).step_by(2).map(|at| &whole[at..at + 2]).collect();
    let clock = pairs.join(":");
    parse_clock(&if fraction.is_empty() { clock } else { format!("{clock}.{fraction}") })
}

fn in_half(micros: i64, half: &str) -> Option<i64> {
    let hour = Clock::from_micros(micros).hour;
    let noon = MICROS_PER_DAY / 2;
    match (half, hour) {
        (_, 13..) => None,
        ("am", 12) => Some(micros - noon),
        ("pm", ..=11) => Some(micros + noon),
        _ => Some(micros),
    }
}

/// Formats a time as PostgreSQL does.
pub fn format_time(micros: i64) -> String {
    let clock = Clock::from_micros(micros);
    let mut text = format!("{:02}:{:02}:{:02}", clock.hour, clock.minute, clock.second);
    if clock.micros != 0 {
        let fraction = format!(".{:06}", clock.micros);
        text.push_str(fraction.trim_end_matches('0'));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_their_many_forms() {
        let cases = [
            ("04:05", "04:05:00"),
            ("040506.25", "04:05:06.25"),
            ("0405", "04:05:00"),
            ("04:05 PM", "16:05:00"),
            ("12:00 am", "00:00:00"),
            ("04:05:06-08", "04:05:06"),
            ("2003-04-12 04:05:06", "04:05:06"),
            ("23:59:60", "24:00:00"),
            ("allballs", "00:00:00"),
        ];
        for (text, shown) in cases {
            assert_eq!(format_time(parse_time(text).unwrap()), shown, "{text}");
        }
        for (text, code) in [("25:00", "22008"), ("x", "22007"), ("13:00 pm", "22008")] {
            assert_eq!(parse_time(text).unwrap_err().code.as_str(), code, "{text}");
        }
    }
}
