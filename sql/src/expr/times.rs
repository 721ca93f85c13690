//! `extract` and `date_trunc`.

use num_bigint::BigInt;

use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datetime::{
    Civil, INFINITY, MICROS_PER_DAY, MINUS_INFINITY, UNIX_EPOCH_MICROS, date_to_timestamp, split,
};
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::types::numeric::Numeric;
use crate::types::zone::Zone;

/// The Julian day of 2000-01-01.
const JULIAN_DAY_ZERO: i64 = 2_451_545;

/// Returns the canonical name of a unit for all names that PostgreSQL accepts.
fn canonical(unit: &str) -> Option<&'static str> {
    Some(match unit {
        "us" | "usec" | "usecs" | "microsecond" | "microseconds" => "microseconds",
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => "milliseconds",
        "s" | "sec" | "secs" | "second" | "seconds" => "second",
        "m" | "min" | "mins" | "minute" | "minutes" => "minute",
        "h" | "hr" | "hrs" | "hour" | "hours" => "hour",
        "d" | "day" | "days" => "day",
        "w" | "week" | "weeks" => "week",
        "mon" | "mons" | "month" | "months" => "month",
        "qtr" | "quarter" => "quarter",
        "y" | "yr" | "yrs" | "year" | "years" => "year",
        "dec" | "decs" | "decade" | "decades" => "decade",
        "c" | "cent" | "century" | "centuries" => "century",
        "mil" | "mils" | "millennia" | "millennium" => "millennium",
        "epoch" => "epoch",
        "dow" => "dow",
        "isodow" => "isodow",
        "doy" => "doy",
        "isoyear" => "isoyear",
        "j" | "jd" | "julian" => "julian",
        "timezone" => "timezone",
        "timezone_h" | "timezone_hour" => "timezone_hour",
        "timezone_m" | "timezone_minute" => "timezone_minute",
        _ => return None,
    })
}

/// The error for a unit that does not exist, or that a type does not have.
fn unknown_unit(unit: &str, base: SqlType) -> SqlError {
    if canonical(unit).is_some() {
        let message = format!("unit \"{unit}\" not supported for type {base}");
        return SqlError::new(code::FEATURE_NOT_SUPPORTED, message);
    }
    let message = format!("unit \"{unit}\" not recognized for type {base}");
    SqlError::new(code::INVALID_PARAMETER, message)
}

fn scaled(unscaled: i64, scale: u32) -> Datum {
    Datum::Numeric(Numeric::new(BigInt::from(unscaled), scale))
}

/// Returns the local time of a date or timestamp.
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

/// Returns the ISO day of the week: Monday is 1, Sunday is 7.
pub(super) fn iso_day_of_week(days: i64) -> i64 {
    // 2000-01-01 was a Saturday.
    (days + 5).rem_euclid(7) + 1
}

/// Returns the first day of a year; the year is counted as in [`Civil`].
pub(super) fn year_start(year: i64) -> i64 {
    Civil { year, month: 1, day: 1 }.to_days()
}

/// Returns the ISO 8601 year and week of a day. A week belongs to the year of its Thursday.
pub(super) fn iso_week(days: i64) -> (i64, i64) {
    let thursday = days - iso_day_of_week(days) + 4;
    let year = Civil::from_days(thursday).year;
    (year, (thursday - year_start(year)) / 7 + 1)
}

/// Returns the displayed year. There is no year 0: 1 BC is -1.
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
    let unit = unit.to_ascii_lowercase();
    let known = canonical(&unit).unwrap_or("");
    let field = match value {
        Datum::Time(micros) => match known {
            "epoch" => Some(scaled(*micros, 6)),
            known => clock_field(known, *micros),
        },
        Datum::Interval(interval) => interval_field(known, *interval),
        _ => {
            let local = local_time(base, value, zone)?;
            if is_finite(local) {
                let (days, time) = split(local);
                match clock_field(known, time) {
                    Some(field) if base != SqlType::Date => Some(field),
                    Some(_) => None,
                    None => timestamp_field(known, base, value, days, time, zone),
                }
            } else {
                infinite_field(known)?
            }
        }
    };
    field.ok_or_else(|| unknown_unit(&unit, base))
}

/// Returns a field of a time of day.
fn clock_field(unit: &str, micros: i64) -> Option<Datum> {
    let in_minute = micros % 60_000_000;
    Some(match unit {
        "hour" => scaled(micros / 3_600_000_000, 0),
        "minute" => scaled(micros / 60_000_000 % 60, 0),
        "second" => scaled(in_minute, 6),
        "milliseconds" => scaled(in_minute, 3),
        "microseconds" => scaled(in_minute, 0),
        _ => return None,
    })
}

fn interval_field(unit: &str, interval: Interval) -> Option<Datum> {
    let Interval { months, days, micros } = interval;
    let year = i64::from(months / 12);
    Some(match unit {
        "day" => scaled(days.into(), 0),
        "month" => scaled((months % 12).into(), 0),
        "quarter" => scaled(i64::from(months % 12) / 3 + 1, 0),
        "year" => scaled(year, 0),
        "decade" => scaled(year / 10, 0),
        "century" => scaled(year / 100, 0),
        "millennium" => scaled(year / 1_000, 0),
        "epoch" => {
            // PostgreSQL counts 365.25 days for a year here, so this computes in quarters of a day.
            let quarters = 1_461 * i128::from(months / 12)
                + 120 * i128::from(months % 12)
                + 4 * i128::from(days);
            let all = quarters * i128::from(MICROS_PER_DAY / 4) + i128::from(micros);
            Datum::Numeric(Numeric::new(BigInt::from(all), 6))
        }
        unit => return clock_field(unit, micros),
    })
}

/// Returns a field of an infinite value. Cyclic fields are NULL; fields that grow are infinite,
/// which numeric does not support here.
fn infinite_field(unit: &str) -> Result<Option<Datum>, SqlError> {
    match unit {
        "" => Ok(None),
        "year" | "decade" | "century" | "millennium" | "julian" | "isoyear" | "epoch" => {
            Err(SqlError::unsupported("infinity in type numeric"))
        }
        _ => Ok(Some(Datum::Null)),
    }
}

fn timestamp_field(
    unit: &str,
    base: SqlType,
    value: &Datum,
    days: i64,
    time: i64,
    zone: &Zone,
) -> Option<Datum> {
    let civil = Civil::from_days(days);
    let whole = match unit {
        "year" => shown_year(civil.year),
        "month" => civil.month,
        "day" => civil.day,
        "quarter" => (civil.month - 1) / 3 + 1,
        "dow" => iso_day_of_week(days) % 7,
        "isodow" => iso_day_of_week(days),
        "doy" => days - year_start(civil.year) + 1,
        "week" => iso_week(days).1,
        "isoyear" => shown_year(iso_week(days).0),
        "decade" => civil.year.div_euclid(10),
        "century" if civil.year > 0 => (civil.year + 99) / 100,
        "century" => -((99 - (civil.year - 1)) / 100),
        "millennium" if civil.year > 0 => (civil.year + 999) / 1_000,
        "millennium" => -((999 - (civil.year - 1)) / 1_000),
        "julian" if base == SqlType::Date => days + JULIAN_DAY_ZERO,
        "julian" => {
            let day = Numeric::from(days + JULIAN_DAY_ZERO);
            let part = Numeric::from(time).divide(&Numeric::from(MICROS_PER_DAY)).ok()?;
            return Some(Datum::Numeric(day.add(&part)));
        }
        "epoch" => {
            let utc = match value {
                Datum::Timestamp(micros) => *micros,
                _ => days * MICROS_PER_DAY,
            };
            let scale = if base == SqlType::Date { 0 } else { 6 };
            let epoch = Numeric::new(BigInt::from(utc) + UNIX_EPOCH_MICROS, 6);
            return Some(Datum::Numeric(epoch.truncate_at(scale)));
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
        _ => return None,
    };
    Some(scaled(whole, 0))
}

/// `date_trunc(unit, value)`
pub(super) fn truncate(
    unit: &str,
    base: SqlType,
    value: &Datum,
    zone: &Zone,
) -> Result<Datum, SqlError> {
    let unit = unit.to_ascii_lowercase();
    let known = canonical(&unit).unwrap_or("");
    if let Datum::Interval(interval) = value {
        let cut = truncate_interval(known, *interval).map(Datum::Interval);
        return cut.ok_or_else(|| match known {
            "week" => {
                unknown_unit(&unit, base).with_detail("Months usually have fractional weeks.")
            }
            _ => unknown_unit(&unit, base),
        });
    }
    let local = local_time(base, value, zone)?;
    if !is_finite(local) {
        return Ok(Datum::Timestamp(local));
    }
    let (days, time) = split(local);
    let civil = Civil::from_days(days);
    let first = |year: i64, month: i64| Civil { year, month, day: 1 }.to_days() * MICROS_PER_DAY;
    let cut = |step: i64| days * MICROS_PER_DAY + time / step * step;
    // Centuries and millennia begin with year 1.
    let period = |years: i64| first((civil.year - 1).div_euclid(years) * years + 1, 1);
    let truncated = match known {
        "microseconds" => local,
        "milliseconds" => cut(1_000),
        "second" => cut(1_000_000),
        "minute" => cut(60_000_000),
        "hour" => cut(3_600_000_000),
        "day" => days * MICROS_PER_DAY,
        "week" => (days - iso_day_of_week(days) + 1) * MICROS_PER_DAY,
        "month" => first(civil.year, civil.month),
        "quarter" => first(civil.year, (civil.month - 1) / 3 * 3 + 1),
        "year" => first(civil.year, 1),
        "decade" => first(civil.year.div_euclid(10) * 10, 1),
        "century" => period(100),
        "millennium" => period(1_000),
        _ => return Err(unknown_unit(&unit, base)),
    };
    if base != SqlType::Timestamptz {
        return Ok(Datum::Timestamp(truncated));
    }
    // Below a day, the UTC offset is preserved, so that a repeated hour is not confused with its
    // other occurrence.
    let is_below_day =
        matches!(known, "microseconds" | "milliseconds" | "second" | "minute" | "hour");
    let Datum::Timestamp(utc) = value else { panic!("{value:?} is not a timestamp") };
    let utc = if is_below_day { utc - (local - truncated) } else { zone.to_utc(truncated) };
    Ok(Datum::Timestamp(utc))
}

fn truncate_interval(unit: &str, interval: Interval) -> Option<Interval> {
    let Interval { months, days, micros } = interval;
    let years =
        |count: i32| Interval { months: months / (12 * count) * 12 * count, ..Interval::default() };
    let cut = |step: i64| Interval { months, days, micros: micros / step * step };
    Some(match unit {
        "microseconds" => interval,
        "milliseconds" => cut(1_000),
        "second" => cut(1_000_000),
        "minute" => cut(60_000_000),
        "hour" => cut(3_600_000_000),
        "day" => Interval { months, days, micros: 0 },
        "month" => Interval { months, ..Interval::default() },
        "quarter" => Interval { months: months / 3 * 3, ..Interval::default() },
        "year" => years(1),
        "decade" => years(10),
        "century" => years(100),
        "millennium" => years(1_000),
        _ => return None,
    })
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
