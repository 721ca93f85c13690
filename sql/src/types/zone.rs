//! Time zones: UTC, fixed offsets, and the names of the IANA database.
//!
//! The database is compiled in, so that every replica computes the same offsets.

use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use super::datetime::{MICROS_PER_SECOND, UNIX_EPOCH_MICROS};
use crate::error::{SqlError, code};

/// A session's time zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    name: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    /// Seconds east of UTC.
    Fixed(i32),
    Named(TimeZone),
}

impl Default for Zone {
    fn default() -> Self {
        Self { name: "UTC".to_owned(), rule: Rule::Fixed(0) }
    }
}

/// Maximum offset from UTC that PostgreSQL accepts, in seconds.
const OFFSET_SECONDS_MAX: i32 = 15 * 3_600 + 59 * 60 + 59;

impl Zone {
    /// Returns the zone called `name`: `UTC`, a number of hours east, or a name such as
    /// `Europe/Berlin`.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn named(name: &str) -> Result<Self, SqlError> {
        if ["utc", "gmt", "z", "zulu", "default", "local"]
            .contains(&name.to_ascii_lowercase().as_str())
        {
            return Ok(Self::default());
        }
        if let Ok(hours) = name.parse::<i32>()
            && hours.abs() * 3_600 <= OFFSET_SECONDS_MAX
        {
            return Ok(Self { name: name.to_owned(), rule: Rule::Fixed(hours * 3_600) });
        }
        if let Some(zone) = Self::posix(name) {
            return Ok(zone);
        }
        static DATABASE: OnceLock<TimeZoneDatabase> = OnceLock::new();
        let database = DATABASE.get_or_init(TimeZoneDatabase::bundled);
        let zone = database.get(name).map_err(|_| {
            let message = format!("invalid value for parameter \"TimeZone\": \"{name}\"");
            SqlError::new(code::INVALID_PARAMETER, message)
        })?;
        let canonical = zone.iana_name().unwrap_or(name).to_owned();
        Ok(Self { name: canonical, rule: Rule::Named(zone) })
    }

    /// Parses a zone that is an offset in the form of POSIX: hours west of UTC, with optional
    /// minutes and seconds, such as `+05:30`.
    pub fn posix(name: &str) -> Option<Self> {
        let (is_east, digits) = match name.as_bytes().first()? {
            b'-' => (true, &name[1..]),
            b'+' => (false, &name[1..]),
            _ => (false, name),
        };
        let mut seconds = 0;
        let mut unit = 3_600;
        for (at, part) in digits.split(':').enumerate() {
            let is_number =
                matches!(part.len(), 1..=2) && part.bytes().all(|it| it.is_ascii_digit());
            if at > 2 || !is_number {
                return None;
            }
            seconds += part.parse::<i32>().ok()? * unit;
            unit /= 60;
        }
        let seconds = if is_east { seconds } else { -seconds };
        (seconds.abs() <= OFFSET_SECONDS_MAX)
            .then(|| Self { name: name.to_owned(), rule: Rule::Fixed(seconds) })
    }

    /// Returns the name that `SHOW TimeZone` displays.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the seconds east of UTC at an instant, given in microseconds since 2000-01-01 UTC.
    pub fn offset_at(&self, micros: i64) -> i32 {
        match &self.rule {
            Rule::Fixed(seconds) => *seconds,
            Rule::Named(zone) => {
                let unix = micros.saturating_add(UNIX_EPOCH_MICROS);
                let (low, high) =
                    (Timestamp::MIN.as_microsecond(), Timestamp::MAX.as_microsecond());
                let instant = Timestamp::from_microsecond(unix.clamp(low, high));
                instant.map_or(0, |instant| zone.to_offset(instant).seconds())
            }
        }
    }

    /// Returns the abbreviation of the zone at an instant: `CET`, `+03`.
    pub fn abbreviation_at(&self, micros: i64) -> String {
        let Rule::Named(zone) = &self.rule else { return self.name.clone() };
        let unix = micros.saturating_add(UNIX_EPOCH_MICROS);
        let (low, high) = (Timestamp::MIN.as_microsecond(), Timestamp::MAX.as_microsecond());
        let instant = Timestamp::from_microsecond(unix.clamp(low, high));
        instant.map_or_else(
            |_| self.name.clone(),
            |instant| zone.to_offset_info(instant).abbreviation().to_owned(),
        )
    }

    /// Returns the seconds east of UTC at a local time, given in microseconds since 2000-01-01. For
    /// a local time that occurs twice or never, standard time applies, as in PostgreSQL.
    pub fn offset_of_local(&self, micros: i64) -> i32 {
        let zone = match &self.rule {
            Rule::Fixed(seconds) => return *seconds,
            Rule::Named(zone) => zone,
        };
        let unix = micros.saturating_add(UNIX_EPOCH_MICROS);
        let civil = Timestamp::from_microsecond(unix)
            .map(|instant| TimeZone::UTC.to_datetime(instant))
            .unwrap_or(if unix < 0 { DateTime::MIN } else { DateTime::MAX });
        match zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.seconds(),
            AmbiguousOffset::Gap { before, .. } => before.seconds(),
            AmbiguousOffset::Fold { after, .. } => after.seconds(),
        }
    }

    /// Converts a local time to an instant.
    pub fn to_utc(&self, local: i64) -> i64 {
        local - i64::from(self.offset_of_local(local)) * MICROS_PER_SECOND
    }

    /// Converts an instant to a local time.
    pub fn to_local(&self, utc: i64) -> i64 {
        utc + i64::from(self.offset_at(utc)) * MICROS_PER_SECOND
    }
}

/// Formats an offset as PostgreSQL does: `+02`, `-05:30` or `+00:00:30`.
pub fn format_offset(seconds: i32) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let (hours, minutes, rest) =
        (seconds.abs() / 3_600, seconds.abs() / 60 % 60, seconds.abs() % 60);
    match (minutes, rest) {
        (0, 0) => format!("{sign}{hours:02}"),
        (_, 0) => format!("{sign}{hours:02}:{minutes:02}"),
        _ => format!("{sign}{hours:02}:{minutes:02}:{rest:02}"),
    }
}

/// Parses an offset such as `+02`, `-0530`, `+05:30` or `+00:00:30` to seconds.
pub fn parse_offset(text: &str) -> Option<i32> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+')?),
    };
    let parts: Vec<&str> = match digits.len() {
        4 if digits.is_ascii() && !digits.contains(':') => vec![&digits[..2], &digits[2..]],
        _ => digits.split(':').collect(),
    };
    let is_number = |part: &&str| (1..=2).contains(&part.len());
    if parts.len() > 3 || !parts.iter().all(is_number) {
        return None;
    }
    let mut seconds = 0;
    for (part, unit) in parts.iter().zip([3_600, 60, 1]) {
        seconds += part.parse::<u8>().ok().map(i32::from)? * unit;
    }
    (seconds <= OFFSET_SECONDS_MAX).then_some(sign * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_they_are_shown() {
        for (text, seconds) in [("+02", 7_200), ("-05:30", -19_800), ("+00:00:30", 30)] {
            assert_eq!(parse_offset(text), Some(seconds));
            assert_eq!(format_offset(seconds), text);
        }
        assert_eq!(parse_offset("+0530"), Some(19_800));
        assert_eq!(parse_offset("02"), None);
        assert_eq!(parse_offset("+99"), None);
    }

    #[test]
    fn a_named_zone_knows_summer_time_and_prefers_standard_time() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let at = |text: &str| super::super::datetime::parse_timestamp(text).unwrap();
        assert_eq!(berlin.offset_at(at("2026-07-01 12:00:00")), 7_200);
        assert_eq!(berlin.offset_at(at("2026-01-01 12:00:00")), 3_600);
        assert_eq!(berlin.offset_of_local(at("2026-10-25 02:30:00")), 3_600);
        assert_eq!(berlin.offset_of_local(at("2026-03-29 02:30:00")), 3_600);
        assert!(Zone::named("Nowhere/Land").is_err());
    }
}
