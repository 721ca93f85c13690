//! `extract` and `date_trunc`.

use num_bigint::BigInt;

use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datetime::{
    Civil, Clock, INFINITY, MICROS_PER_DAY, MINUS_INFINITY, UNIX_EPOCH_MICROS, date_to_timestamp,
    split,
};
use crate::types::datum::Datum;
use crate::types::numeric::Numeric;
use crate::types::zone::Zone;

/// The Julian day of 2000-01-01.
const JULIAN_DAY_ZERO: i64 = 2_451_545;

fn unknown_unit(unit: &str, base: SqlType) -> SqlError {
    let message = format!("unit \"{unit}\" not recognized for type {base}");
    SqlError::new(code::INVALID_PARAMETER, message)
}

/// The local time of a date or timestamp.
fn local_time(base: SqlType, value: &Datum, zone: &Zone) -> Result<i64, SqlError> {
    match value {
        Datum::Date(days) => date_to_timestamp(*days),
        Datum::Timestamp(micros) if base == SqlType::Timestamptz && is_finite(*micros) => {
            Ok(zone.to_local(*micros))
        }
        Datum::Timestamp(micros) => Ok(*micros),
        other => panic!("{other:?} is not a time"),
    }
}

fn is_finite(micros: i64) -> bool {
    micros != INFINITY && micros != MINUS_INFINITY
}

/// Monday is 1, Sunday is 7.
fn iso_day_of_week(days: i64) -> i64 {
    // 2000-01-01 was a Saturday.
    (days + 5).rem_euclid(7) + 1
}

/// The first day of the year, the year counted as [`Civil`] does.
fn year_start(year: i64) -> i64 {
    Civil { year, month: 1, day: 1 }.to_days()
}

/// The year and week to which ISO 8601 counts a day: weeks belong to the year of their Thursday.
fn iso_week(days: i64) -> (i64, i64) {
    let thursday = days - iso_day_of_week(days) + 4;
    let year = Civil::from_days(thursday).year;
    (year, (thursday - year_start(year)) / 7 + 1)
}

/// There is no year 0: 1 BC is -1.
fn shown_year(year: i64) -> i64 {
    if year <= 0 { year - 1 } else { year }
}

/// `extract(unit from value)`
pub(super) fn extract(
    unit: &str,
    base: SqlType,
    value: &Datum,
    zone: &Zone,
) -> Result<Datum, SqlError> {
    let local = local_time(base, value, zone)?;
    if !is_finite(local) {
        return Err(SqlError::unsupported("extract from an infinite time"));
    }
    let (days, time) = split(local);
    let (civil, clock) = (Civil::from_days(days), Clock::from_micros(time));
    let seconds = clock.second * 1_000_000 + clock.micros;
    let scaled =
        |unscaled: i64, scale| Ok(Datum::Numeric(Numeric::new(BigInt::from(unscaled), scale)));
    let is_time = matches!(
        unit,
        "hour"
            | "minute"
            | "second"
            | "milliseconds"
            | "millisecond"
            | "microseconds"
            | "microsecond"
    );
    if is_time && base == SqlType::Date {
        let message = format!("unit \"{unit}\" not supported for type date");
        return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
    }
    let whole = match unit {
        "year" | "years" => shown_year(civil.year),
        "month" | "months" => civil.month,
        "day" | "days" => civil.day,
        "hour" | "hours" => clock.hour,
        "minute" | "minutes" => clock.minute,
        "second" | "seconds" => return scaled(seconds, 6),
        "millisecond" | "milliseconds" => return scaled(seconds, 3),
        "microsecond" | "microseconds" => seconds,
        "quarter" => (civil.month - 1) / 3 + 1,
        "dow" => iso_day_of_week(days) % 7,
        "isodow" => iso_day_of_week(days),
        "doy" => days - year_start(civil.year) + 1,
        "week" => iso_week(days).1,
        "isoyear" => shown_year(iso_week(days).0),
        "decade" => civil.year.div_euclid(10),
        "century" if civil.year > 0 => (civil.year + 99) / 100,
        "century" => -((99 - (civil.year - 1)) / 100),
        "julian" if base == SqlType::Date => days + JULIAN_DAY_ZERO,
        "epoch" => {
            let utc = match value {
                Datum::Timestamp(micros) => *micros,
                _ => local,
            };
            let scale = if base == SqlType::Date { 0 } else { 6 };
            let epoch = Numeric::new(BigInt::from(utc) + UNIX_EPOCH_MICROS, 6);
            return Ok(Datum::Numeric(epoch.truncate_at(scale)));
        }
        "timezone" | "timezone_hour" | "timezone_minute" if base == SqlType::Timestamptz => {
            let Datum::Timestamp(utc) = value else { panic!("{value:?} is not a timestamp") };
            let offset = i64::from(zone.offset_at(*utc));
            match unit {
                "timezone" => offset,
                "timezone_hour" => offset / 3_600,
                _ => offset / 60 % 60,
            }
        }
        _ => return Err(unknown_unit(unit, base)),
    };
    scaled(whole, 0)
}

/// `date_trunc(unit, value)`
pub(super) fn truncate(
    unit: &str,
    base: SqlType,
    value: &Datum,
    zone: &Zone,
) -> Result<Datum, SqlError> {
    let local = local_time(base, value, zone)?;
    if !is_finite(local) {
        return Ok(Datum::Timestamp(local));
    }
    let (days, time) = split(local);
    let civil = Civil::from_days(days);
    let first = |year: i64, month: i64| Civil { year, month, day: 1 }.to_days() * MICROS_PER_DAY;
    let cut = |step: i64| days * MICROS_PER_DAY + time / step * step;
    let unit = unit.to_ascii_lowercase();
    let truncated = match unit.as_str() {
        "microseconds" | "microsecond" => local,
        "milliseconds" | "millisecond" => cut(1_000),
        "second" => cut(1_000_000),
        "minute" => cut(60_000_000),
        "hour" => cut(3_600_000_000),
        "day" => days * MICROS_PER_DAY,
        "week" => (days - iso_day_of_week(days) + 1) * MICROS_PER_DAY,
        "month" => first(civil.year, civil.month),
        "quarter" => first(civil.year, (civil.month - 1) / 3 * 3 + 1),
        "year" => first(civil.year, 1),
        "decade" => first(civil.year.div_euclid(10) * 10, 1),
        _ => return Err(unknown_unit(&unit, base)),
    };
    let is_zoned = base == SqlType::Timestamptz;
    Ok(Datum::Timestamp(if is_zoned { zone.to_utc(truncated) } else { truncated }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::datetime::{format_timestamp, parse_timestamp};

    #[test]
    fn fields_of_a_timestamp_are_postgresqls() {
        let cases = [
            ("year", "2026-11-21 03:04:05.5", "2026"),
            ("second", "2026-11-21 03:04:05.5", "5.500000"),
            ("dow", "2026-11-22", "0"),
            ("isodow", "2026-11-22", "7"),
            ("doy", "2024-12-31", "366"),
            ("week", "2027-01-01", "53"),
            ("isoyear", "2027-01-01", "2026"),
            ("epoch", "1970-01-02", "86400.000000"),
            ("century", "2000-12-31", "20"),
            ("quarter", "2026-11-21", "4"),
        ];
        for (unit, text, expected) in cases {
            let value = Datum::Timestamp(parse_timestamp(text).unwrap());
            let field = extract(unit, SqlType::Timestamp, &value, &Zone::default()).unwrap();
            let Datum::Numeric(field) = field else { panic!("{field:?}") };
            assert_eq!(field.to_string(), expected, "{unit} of {text}");
        }
    }

    #[test]
    fn truncation_goes_down_to_the_unit() {
        let value = Datum::Timestamp(parse_timestamp("2026-11-21 03:04:05.678").unwrap());
        let cases = [
            ("hour", "2026-11-21 03:00:00"),
            ("week", "2026-11-16 00:00:00"),
            ("quarter", "2026-10-01 00:00:00"),
            ("milliseconds", "2026-11-21 03:04:05.678"),
        ];
        for (unit, expected) in cases {
            let cut = truncate(unit, SqlType::Timestamp, &value, &Zone::default()).unwrap();
            let Datum::Timestamp(cut) = cut else { panic!("{cut:?}") };
            assert_eq!(format_timestamp(cut), expected, "{unit}");
        }
    }
}
