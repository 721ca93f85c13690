//! `to_char` of timestamps and intervals.

use crate::error::SqlError;
use crate::types::SqlType;
use crate::types::datetime::{Civil, Clock, split};
use crate::types::datum::Datum;
use crate::types::zone::{Zone, format_offset};

use super::times::{iso_day_of_week, iso_week, year_start};

/// The fields that patterns are filled in from.
struct Fields {
    /// The year; 1 BC is 0.
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    /// The day number; `None` for intervals.
    days: Option<i64>,
    /// Name and offset of the time zone, if the value has one.
    zone: Option<(String, i32)>,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const ROMANS: [&str; 12] =
    ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// The patterns; a longer pattern precedes its prefixes.
const PATTERNS: [&str; 48] = [
    "SSSSS", "SSSS", "Y,YYY", "YYYY", "YYY", "YY", "Y", "IYYY", "IYY", "IY", "IW", "IDDD", "ID",
    "I", "HH24", "HH12", "HH", "MI", "MM", "MS", "MONTH", "MON", "US", "FF1", "FF2", "FF3", "FF4",
    "FF5", "FF6", "SS", "DAY", "DY", "DDD", "DD", "D", "WW", "W", "Q", "CC", "J", "RM", "AM", "PM",
    "A.M.", "P.M.", "BC", "AD", "OF",
];

/// Formats a finite timestamp or an interval.
pub(super) fn format(
    pattern: &str,
    base: SqlType,
    value: &Datum,
    zone: &Zone,
) -> Result<String, SqlError> {
    let fields = match value {
        Datum::Timestamp(micros) => of_timestamp(*micros, base, zone),
        Datum::Interval(interval) => {
            let micros = interval.micros;
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            Fields {
                year: (interval.months / 12).into(),
                month: (interval.months % 12).into(),
                day: interval.days.into(),
                hour: seconds / 3_600,
                minute: seconds / 60 % 60,
                second: seconds % 60,
                micros: rest,
                days: None,
                zone: None,
            }
        }
        other => panic!("to_char of {other:?}"),
    };
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            rest = quoted(&rest[1..], &mut out);
        } else if c == '\\' && rest[1..].starts_with('"') {
            out.push('"');
            rest = &rest[2..];
        } else {
            rest = part(rest, &fields, &mut out)?;
        }
    }
    Ok(out)
}

fn of_timestamp(micros: i64, base: SqlType, zone: &Zone) -> Fields {
    let is_zoned = base == SqlType::Timestamptz;
    let local = if is_zoned { zone.to_local(micros) } else { micros };
    let (days, time) = split(local);
    let (civil, clock) = (Civil::from_days(days), Clock::from_micros(time));
    Fields {
        year: civil.year,
        month: civil.month,
        day: civil.day,
        hour: clock.hour,
        minute: clock.minute,
        second: clock.second,
        micros: clock.micros,
        days: Some(days),
        zone: is_zoned.then(|| (zone.abbreviation_at(micros), zone.offset_at(micros))),
    }
}

/// Copies quoted text, and returns the rest after the closing quote.
fn quoted<'a>(text: &'a str, out: &mut String) -> &'a str {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    chars.as_str()
}

/// Fills in the pattern at the start of the text, or copies the first character.
fn part<'a>(text: &'a str, fields: &Fields, out: &mut String) -> Result<&'a str, SqlError> {
    let starts = |text: &str, wanted: &str| {
        text.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
    };
    let (mut body, mut is_plain) = (text, true);
    while starts(body, "FM") || starts(body, "FX") || starts(body, "TM") {
        is_plain &= !starts(body, "FM");
        body = &body[2..];
    }
    let zone = ["TZH", "TZM", "TZ"].into_iter().find(|wanted| starts(body, wanted));
    let found = zone.or_else(|| PATTERNS.into_iter().find(|wanted| starts(body, wanted)));
    let Some(found) = found else {
        let Some(first) = body.chars().next() else { return Ok(body) };
        out.push(first);
        return Ok(&body[first.len_utf8()..]);
    };
    let (written, rest) = body.split_at(found.len());
    let start = out.len();
    match number(found, fields) {
        Some((value, width)) => {
            let sign = if value < 0 { "-" } else { "" };
            let width = if is_plain { width } else { 0 };
            out.push_str(&format!("{sign}{:0width$}", value.abs()));
        }
        None => out.push_str(&word(found, written, fields, is_plain)?),
    }
    if found == "RM" || !starts(rest, "TH") || number(found, fields).is_none() {
        return Ok(rest);
    }
    let ending = ordinal(&out[start..]);
    let is_upper = rest.starts_with('T');
    out.push_str(&if is_upper { ending.to_uppercase() } else { ending.to_owned() });
    Ok(&rest[2..])
}

fn ordinal(digits: &str) -> &'static str {
    let teens = digits.len() >= 2 && digits.as_bytes()[digits.len() - 2] == b'1';
    match digits.as_bytes().last() {
        _ if teens => "th",
        Some(b'1') => "st",
        Some(b'2') => "nd",
        Some(b'3') => "rd",
        _ => "th",
    }
}

/// Returns the number that a pattern stands for, and its width.
fn number(pattern: &str, fields: &Fields) -> Option<(i64, usize)> {
    let is_interval = fields.days.is_none();
    let year = match fields.year {
        year if year <= 0 && !is_interval => 1 - year,
        year => year,
    };
    let half = match fields.hour % 12 {
        0 => 12,
        hour => hour,
    };
    let in_day = (fields.hour * 60 + fields.minute) * 60 + fields.second;
    let days = fields.days;
    let day_of_year = days.map(|days| days - year_start(fields.year) + 1);
    let week = |days: i64| iso_week(days).1;
    Some(match pattern {
        "YYYY" => (year, 4),
        "YYY" => (year % 1_000, 3),
        "YY" => (year % 100, 2),
        "Y" => (year % 10, 1),
        "HH24" => (fields.hour, 2),
        "HH12" | "HH" => (half, 2),
        "MI" => (fields.minute, 2),
        "SS" => (fields.second, 2),
        "MM" => (fields.month, 2),
        "DD" => (fields.day, 2),
        "MS" => (fields.micros / 1_000, 3),
        "US" | "FF6" => (fields.micros, 6),
        "FF1" => (fields.micros / 100_000, 1),
        "FF2" => (fields.micros / 10_000, 2),
        "FF3" => (fields.micros / 1_000, 3),
        "FF4" => (fields.micros / 100, 4),
        "FF5" => (fields.micros / 10, 5),
        "SSSS" | "SSSSS" => (in_day, 0),
        "Q" if fields.month != 0 => ((fields.month - 1) / 3 + 1, 0),
        "W" => ((fields.day - 1) / 7 + 1, 0),
        "CC" => ((year + 99) / 100 * if fields.year <= 0 && !is_interval { -1 } else { 1 }, 2),
        "DDD" => (day_of_year?, 3),
        "WW" => ((day_of_year? - 1) / 7 + 1, 2),
        "D" => (iso_day_of_week(days?) % 7 + 1, 0),
        "ID" => (iso_day_of_week(days?), 0),
        "IDDD" => ((week(days?) - 1) * 7 + iso_day_of_week(days?), 3),
        "IW" => (week(days?), 2),
        "IYYY" => (iso_week(days?).0, 4),
        "IYY" => (iso_week(days?).0 % 1_000, 3),
        "IY" => (iso_week(days?).0 % 100, 2),
        "I" => (iso_week(days?).0 % 10, 1),
        "J" => (days? + 2_451_545, 0),
        _ => return None,
    })
}

/// Returns the word that a pattern stands for, in the case in which the pattern was written.
fn word(
    pattern: &str,
    written: &str,
    fields: &Fields,
    is_padded: bool,
) -> Result<String, SqlError> {
    let no_field =
        || SqlError::unsupported(format!("to_char with {pattern} for a value of this type"));
    let is_lower = written.starts_with(|c: char| c.is_ascii_lowercase());
    let is_upper = written.get(1..2).is_some_and(|c| c.chars().all(|c| c.is_ascii_uppercase()));
    let cased = |word: &str| match (is_lower, is_upper) {
        (true, _) => word.to_lowercase(),
        (_, true) => word.to_uppercase(),
        _ => word.to_owned(),
    };
    let padded = |word: String| if is_padded { format!("{word:<9}") } else { word };
    let month = || {
        let at = usize::try_from(fields.month - 1).map_err(|_| no_field())?;
        MONTHS.get(at).copied().ok_or_else(no_field)
    };
    let day = || fields.days.map(|days| DAYS[(iso_day_of_week(days) % 7) as usize]);
    let half = if fields.hour.rem_euclid(24) >= 12 { "PM" } else { "AM" };
    let era = if fields.year <= 0 { "BC" } else { "AD" };
    let (name, offset) = match &fields.zone {
        Some((name, offset)) => (name.as_str(), Some(*offset)),
        None => ("", None),
    };
    let lower_all = |word: &str| if is_lower { word.to_lowercase() } else { word.to_owned() };
    Ok(match pattern {
        "MONTH" => padded(cased(month()?)),
        "MON" => cased(&month()?[..3]),
        "DAY" => padded(cased(day().ok_or_else(no_field)?)),
        "DY" => cased(&day().ok_or_else(no_field)?[..3]),
        "RM" => {
            let at = usize::try_from(fields.month - 1).map_err(|_| no_field())?;
            let roman = lower_all(ROMANS.get(at).ok_or_else(no_field)?);
            if is_padded { format!("{roman:<4}") } else { roman }
        }
        "AM" | "PM" => lower_all(half),
        "A.M." | "P.M." => lower_all(if half == "AM" { "A.M." } else { "P.M." }),
        "BC" | "AD" => lower_all(era),
        "TZ" => lower_all(name),
        "OF" => offset.map(format_offset).unwrap_or_default(),
        "TZH" => offset.map(|o| format_offset(o)[..3].to_owned()).unwrap_or_default(),
        "TZM" => offset.map(|o| format!("{:02}", o.abs() / 60 % 60)).unwrap_or_default(),
        "Y,YYY" => {
            let year = if fields.year <= 0 { 1 - fields.year } else { fields.year };
            format!("{},{:03}", year / 1_000, year % 1_000)
        }
        _ => return Err(no_field()),
    })
}
