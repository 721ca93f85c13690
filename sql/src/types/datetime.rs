//! Dates and timestamps: PostgreSQL's numbers of days and microseconds, and the ISO style.
//!
//! Day 0 is 2000-01-01, and microseconds count from its start. The calendar is Gregorian, extended
//! without limit in both directions. There is no year 0: 1 BC precedes 1 AD.

use super::zone::{Zone, format_offset, parse_offset};
use crate::error::{SqlError, code};

/// Microseconds in a second.
pub const MICROS_PER_SECOND: i64 = 1_000_000;
/// Microseconds in a day.
pub const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;
/// Days from 1970-01-01 to 2000-01-01.
pub const UNIX_EPOCH_DAYS: i64 = 10_957;
/// Microseconds from 1970-01-01 to 2000-01-01.
pub const UNIX_EPOCH_MICROS: i64 = UNIX_EPOCH_DAYS * MICROS_PER_DAY;

/// The date that is later than all others.
pub const DATE_INFINITY: i32 = i32::MAX;
/// The date that is earlier than all others.
pub const DATE_MINUS_INFINITY: i32 = i32::MIN;
/// The timestamp that is later than all others.
pub const INFINITY: i64 = i64::MAX;
/// The timestamp that is earlier than all others.
pub const MINUS_INFINITY: i64 = i64::MIN;

/// 4714-11-24 BC, the first day of dates and timestamps.
const DAY_MIN: i64 = -2_451_545;
/// 5874898-01-01, the first day after the range of dates.
const DATE_END: i64 = 2_145_031_949;
/// 294277-01-01, the first day after the range of timestamps.
const TIMESTAMP_DAY_END: i64 = 106_751_983;

/// A day of the calendar. In `year`, 1 BC is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// The year; 1 BC is 0.
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
}

/// A time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// 0 to 23.
    pub hour: i64,
    /// 0 to 59.
    pub minute: i64,
    /// 0 to 59.
    pub second: i64,
    /// 0 to 999,999.
    pub micros: i64,
}

/// Days from March 1 of year 0 to 2000-01-01.
const ERA_OFFSET: i64 = 730_425;
const DAYS_PER_ERA: i64 = 146_097;

impl Civil {
    /// Returns the number of days since 2000-01-01.
    pub fn to_days(self) -> i64 {
        // Years begin in March here, so that the leap day is the last day of the year.
        let year = self.year - i64::from(self.month <= 2);
        let month = (self.month + 9) % 12;
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * month + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        era * DAYS_PER_ERA + day_of_era - ERA_OFFSET
    }

    /// Returns the day with this number.
    pub fn from_days(days: i64) -> Self {
        let shifted = days + ERA_OFFSET;
        let era = shifted.div_euclid(DAYS_PER_ERA);
        let day_of_era = shifted.rem_euclid(DAYS_PER_ERA);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Self { year, month, day }
    }

    fn is_valid(self) -> bool {
        (1..=12).contains(&self.month)
            && (1..=days_in_month(self.year, self.month)).contains(&self.day)
    }
}

/// Returns the number of days in a month.
pub fn days_in_month(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl Clock {
    /// Returns the microseconds since midnight.
    pub fn to_micros(self) -> i64 {
        ((self.hour * 60 + self.minute) * 60 + self.second) * MICROS_PER_SECOND + self.micros
    }

    /// Returns the time of day at this number of microseconds after midnight.
    pub fn from_micros(micros: i64) -> Self {
        let seconds = micros / MICROS_PER_SECOND;
        Self {
            hour: seconds / 3_600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            micros: micros % MICROS_PER_SECOND,
        }
    }
}

/// Splits a timestamp into the day and the microseconds since midnight.
pub fn split(timestamp: i64) -> (i64, i64) {
    (timestamp.div_euclid(MICROS_PER_DAY), timestamp.rem_euclid(MICROS_PER_DAY))
}

/// Converts Unix time in microseconds to a timestamp.
pub fn from_unix_micros(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX) - UNIX_EPOCH_MICROS
}

/// Converts a number of days to a date.
///
/// # Errors
/// If it is out of range.
pub fn checked_date(days: i64) -> Result<i32, SqlError> {
    let in_range = (DAY_MIN..DATE_END).contains(&days);
    in_range
        .then_some(days as i32)
        .ok_or_else(|| SqlError::new(code::DATETIME_OVERFLOW, "date out of range"))
}

/// Converts microseconds to a timestamp.
///
/// # Errors
/// If they are out of range.
pub fn checked_timestamp(micros: Option<i64>) -> Result<i64, SqlError> {
    let is_in_range = |micros: &i64| (DAY_MIN..TIMESTAMP_DAY_END).contains(&split(*micros).0);
    micros
        .filter(is_in_range)
        .ok_or_else(|| SqlError::new(code::DATETIME_OVERFLOW, "timestamp out of range"))
}

/// Returns midnight of a date.
///
/// # Errors
/// If it is later than any timestamp.
pub fn date_to_timestamp(date: i32) -> Result<i64, SqlError> {
    match date {
        DATE_INFINITY => Ok(INFINITY),
        DATE_MINUS_INFINITY => Ok(MINUS_INFINITY),
        days => checked_timestamp(i64::from(days).checked_mul(MICROS_PER_DAY)),
    }
}

/// Returns the day of a timestamp.
pub fn timestamp_to_date(timestamp: i64) -> i32 {
    match timestamp {
        INFINITY => DATE_INFINITY,
        MINUS_INFINITY => DATE_MINUS_INFINITY,
        micros => split(micros).0 as i32,
    }
}

/// Rounds to `digits` of a second.
pub fn round_to_digits(timestamp: i64, digits: i32) -> i64 {
    if timestamp == INFINITY || timestamp == MINUS_INFINITY || digits >= 6 {
        return timestamp;
    }
    let unit = 10i64.pow((6 - digits.max(0)) as u32);
    (timestamp + unit / 2).div_euclid(unit) * unit
}

/// A parsed date or timestamp literal.
struct Parsed {
    civil: Civil,
    micros: i64,
    offset: Option<Offset>,
}

pub(super) enum Offset {
    Seconds(i32),
    Zone(Zone),
}

fn invalid(kind: &str, text: &str) -> SqlError {
    let message = format!("invalid input syntax for type {kind}: \"{text}\"");
    SqlError::new(code::DATETIME_FORMAT, message)
}

fn field_overflow(text: &str) -> SqlError {
    let message = format!("date/time field value out of range: \"{text}\"");
    SqlError::new(code::DATETIME_OVERFLOW, message)
}

/// Parses `2026-11-21`, `20261121` or `11/21/2026`.
pub(super) fn parse_civil(text: &str) -> Option<Civil> {
    let number = |part: &str| {
        let is_digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        (is_digits && part.len() <= 7).then(|| part.parse::<i64>().ok()).flatten()
    };
    if text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let (year, month, day) = (number(&text[..4])?, number(&text[4..6])?, number(&text[6..])?);
        return Some(Civil { year, month, day });
    }
    let is_us = text.contains('/');
    let parts: Vec<&str> = text.split(if is_us { '/' } else { '-' }).collect();
    let [first, second, third] = parts[..] else { return None };
    let (year, month, day) = if is_us { (third, first, second) } else { (first, second, third) };
    if year.len() < 3 {
        return None;
    }
    Some(Civil { year: number(year)?, month: number(month)?, day: number(day)? })
}

/// Parses `12:30`, `12:30:01` or `12:30:01.5` to microseconds. The inner option is `None` if a
/// field is out of range.
pub(super) fn parse_clock(text: &str) -> Option<Option<i64>> {
    let (text, fraction) = text.split_once('.').unwrap_or((text, ""));
    let parts: Vec<&str> = text.split(':').collect();
    if !(2..=3).contains(&parts.len()) || (parts.len() == 2 && !fraction.is_empty()) {
        return None;
    }
    let is_number = |part: &&str| {
        (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !parts.iter().all(is_number) || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let field = |at: usize| parts.get(at).map_or(0, |part| part.parse::<i64>().unwrap_or(0));
    let (hour, minute, second) = (field(0), field(1), field(2));
    let padded = format!("{fraction:0<7}");
    let tenths = padded[..7].parse::<i64>().ok()?;
    let total = Clock { hour, minute, second, micros: (tenths + 5) / 10 }.to_micros();
    let in_range = minute < 60 && second <= 60 && total <= MICROS_PER_DAY;
    Some(in_range.then_some(total))
}

/// Splits the text after the date into the time and the zone.
fn split_zone(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.'));
    end.map_or((text, ""), |at| (&text[..at], text[at..].trim()))
}

pub(super) fn parse_zone(text: &str) -> Option<Option<Offset>> {
    if text.is_empty() {
        return Some(None);
    }
    if let Some(seconds) = parse_offset(text) {
        return Some(Some(Offset::Seconds(seconds)));
    }
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        .then(|| Zone::named(text).ok().map(|zone| Some(Offset::Zone(zone))))
        .flatten()
}

fn parse(kind: &str, text: &str) -> Result<Parsed, SqlError> {
    let trimmed = text.trim();
    let lower = trimmed.to_ascii_lowercase();
    if ["now", "today", "tomorrow", "yesterday"].contains(&lower.as_str()) {
        return Err(SqlError::unsupported(format!("the {kind} \"{lower}\"")));
    }
    let (body, is_bc) = match lower.strip_suffix(" bc") {
        Some(rest) => (&trimmed[..rest.len()], true),
        None => (trimmed.get(..trimmed.len()).unwrap_or(trimmed), false),
    };
    let at = body.find([' ', 'T', 't']).unwrap_or(body.len());
    let (date, rest) = (&body[..at], body[at..].trim_start_matches([' ', 'T', 't']));
    let mut civil = parse_civil(date).ok_or_else(|| invalid(kind, text))?;
    let (clock, zone) = split_zone(rest);
    let micros = if clock.is_empty() {
        0
    } else {
        let micros = parse_clock(clock).ok_or_else(|| invalid(kind, text))?;
        micros.ok_or_else(|| field_overflow(text))?
    };
    let offset = parse_zone(zone).ok_or_else(|| invalid(kind, text))?;
    if civil.year == 0 || !civil.is_valid() {
        return Err(field_overflow(text));
    }
    if is_bc {
        civil.year = 1 - civil.year;
    }
    Ok(Parsed { civil, micros, offset })
}

fn special(text: &str) -> Option<i64> {
    match text.trim().to_ascii_lowercase().as_str() {
        "infinity" | "+infinity" => Some(INFINITY),
        "-infinity" => Some(MINUS_INFINITY),
        "epoch" => Some(-UNIX_EPOCH_MICROS),
        _ => None,
    }
}

/// Parses a date.
///
/// # Errors
/// If it is malformed or out of range.
pub fn parse_date(text: &str) -> Result<i32, SqlError> {
    if let Some(timestamp) = special(text) {
        return Ok(timestamp_to_date(timestamp));
    }
    let parsed = parse("date", text)?;
    checked_date(parsed.civil.to_days()).map_err(|_| {
        SqlError::new(code::DATETIME_OVERFLOW, format!("date out of range: \"{text}\""))
    })
}

fn out_of_range(text: &str) -> SqlError {
    SqlError::new(code::DATETIME_OVERFLOW, format!("timestamp out of range: \"{text}\""))
}

/// Parses a timestamp without time zone. A zone in the text is ignored.
///
/// # Errors
/// If it is malformed or out of range.
pub fn parse_timestamp(text: &str) -> Result<i64, SqlError> {
    if let Some(timestamp) = special(text) {
        return Ok(timestamp);
    }
    let parsed = parse("timestamp", text)?;
    let days = parsed.civil.to_days();
    let micros = days.checked_mul(MICROS_PER_DAY).map(|micros| micros + parsed.micros);
    checked_timestamp(micros).map_err(|_| out_of_range(text))
}

/// Parses a timestamp with time zone. A text without a zone is in `zone`.
///
/// # Errors
/// If it is malformed or out of range.
pub fn parse_timestamptz(text: &str, zone: &Zone) -> Result<i64, SqlError> {
    if let Some(timestamp) = special(text) {
        return Ok(timestamp);
    }
    let parsed = parse("timestamp with time zone", text)?;
    let days = parsed.civil.to_days();
    let local = days.checked_mul(MICROS_PER_DAY).map(|micros| micros + parsed.micros);
    let local = checked_timestamp(local).map_err(|_| out_of_range(text))?;
    let utc = match parsed.offset {
        Some(Offset::Seconds(seconds)) => local - i64::from(seconds) * MICROS_PER_SECOND,
        Some(Offset::Zone(zone)) => zone.to_utc(local),
        None => zone.to_utc(local),
    };
    checked_timestamp(Some(utc)).map_err(|_| out_of_range(text))
}

fn civil_text(civil: Civil) -> (String, &'static str) {
    let is_bc = civil.year <= 0;
    let year = if is_bc { 1 - civil.year } else { civil.year };
    let text = format!("{year:04}-{:02}-{:02}", civil.month, civil.day);
    (text, if is_bc { " BC" } else { "" })
}

/// Formats a date in the ISO style.
pub fn format_date(date: i32) -> String {
    match date {
        DATE_INFINITY => "infinity".to_owned(),
        DATE_MINUS_INFINITY => "-infinity".to_owned(),
        days => {
            let (text, era) = civil_text(Civil::from_days(days.into()));
            text + era
        }
    }
}

fn format_with_suffix(timestamp: i64, suffix: &str) -> String {
    let (days, micros) = split(timestamp);
    let (date, era) = civil_text(Civil::from_days(days));
    let clock = Clock::from_micros(micros);
    let mut text = format!("{date} {:02}:{:02}:{:02}", clock.hour, clock.minute, clock.second);
    if clock.micros != 0 {
        let fraction = format!(".{:06}", clock.micros);
        text.push_str(fraction.trim_end_matches('0'));
    }
    text + suffix + era
}

/// Formats a timestamp without time zone in the ISO style.
pub fn format_timestamp(timestamp: i64) -> String {
    match timestamp {
        INFINITY => "infinity".to_owned(),
        MINUS_INFINITY => "-infinity".to_owned(),
        micros => format_with_suffix(micros, ""),
    }
}

/// Formats a timestamp with time zone in the ISO style, in local time of `zone`.
pub fn format_timestamptz(timestamp: i64, zone: &Zone) -> String {
    match timestamp {
        INFINITY | MINUS_INFINITY => format_timestamp(timestamp),
        utc => format_with_suffix(zone.to_local(utc), &format_offset(zone.offset_at(utc))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_inverse_over_the_whole_range() {
        assert_eq!(Civil { year: 2000, month: 1, day: 1 }.to_days(), 0);
        assert_eq!(Civil { year: 1970, month: 1, day: 1 }.to_days(), -UNIX_EPOCH_DAYS);
        assert_eq!(Civil { year: -4713, month: 11, day: 24 }.to_days(), DAY_MIN);
        assert_eq!(Civil { year: 5_874_898, month: 1, day: 1 }.to_days(), DATE_END);
        assert_eq!(Civil { year: 294_277, month: 1, day: 1 }.to_days(), TIMESTAMP_DAY_END);
        for days in (DAY_MIN..DATE_END).step_by(9_973_331).chain(-1_000..1_000) {
            assert_eq!(Civil::from_days(days).to_days(), days);
        }
    }

    #[test]
    fn dates_and_timestamps_are_read_as_they_are_shown() {
        for text in ["2026-11-21", "0001-01-01 BC", "infinity", "1999-12-31"] {
            assert_eq!(format_date(parse_date(text).unwrap()), text);
        }
        for text in ["2026-11-21 03:04:05", "2026-11-21 03:04:05.12", "0044-03-15 12:00:00 BC"] {
            assert_eq!(format_timestamp(parse_timestamp(text).unwrap()), text);
        }
        let utc = Zone::default();
        let read = |text| format_timestamptz(parse_timestamptz(text, &utc).unwrap(), &utc);
        assert_eq!(read("2026-11-21T03:04:05+02"), "2026-11-21 01:04:05+00");
        assert_eq!(read("2026-11-21 03:04:05 Europe/Berlin"), "2026-11-21 02:04:05+00");
        assert_eq!(read("11/21/2026 03:04Z"), "2026-11-21 03:04:00+00");
    }

    #[test]
    fn bad_dates_have_postgresqls_codes() {
        for (text, code) in [
            ("yesterdayish", "22007"),
            ("2026-02-30", "22008"),
            ("2026-13-01", "22008"),
            ("9999999-01-01", "22008"),
            ("2026-01-01 25:00:00", "22008"),
            ("2026-01-01 nowhere", "22007"),
        ] {
            let error = parse_timestamp(text).unwrap_err();
            assert_eq!(error.code.as_str(), code, "{text}: {error}");
        }
    }
}
