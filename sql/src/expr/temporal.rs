//! Operators over dates, times, timestamps and intervals.
//!
//! Dates are converted to timestamps and times to intervals, unless PostgreSQL has a separate
//! operator with another result. An interval's months and days follow the calendar of the session's
//! time zone; its microseconds are elapsed time.

use super::arithmetic::Arithmetic;
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datetime::{
    Civil, INFINITY, MICROS_PER_DAY, MINUS_INFINITY, checked_timestamp, days_in_month, split,
};
use crate::types::datum::Datum;
use crate::types::interval::{Interval, out_of_range};
use crate::types::zone::Zone;

/// An operator with at least one operand that is a time or an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Temporal {
    /// Adds an interval to a value of the type.
    Later(SqlType),
    /// Subtracts an interval from a value of the type.
    Earlier(SqlType),
    /// The interval from the right value to the left one.
    Between,
    Multiply,
    Divide,
}

/// The meaning of an operator for two types.
pub(super) struct Meaning {
    pub op: Temporal,
    pub left: SqlType,
    pub right: SqlType,
    pub result: SqlType,
    /// Whether the operands are exchanged.
    pub is_swapped: bool,
}

/// Returns the meaning of an operator for two types; `None` if it has no meaning here.
pub(super) fn meaning(op: Arithmetic, left: SqlType, right: SqlType) -> Option<Meaning> {
    use SqlType::{Date, Float8, Interval, Time, Timestamp, Timestamptz, Unknown};
    let is_swapped = matches!(
        (op, left, right),
        (Arithmetic::Add, Interval | Time, Date | Timestamp | Timestamptz)
            | (Arithmetic::Add, Interval, Time)
            | (Arithmetic::Add, Unknown, Timestamp | Timestamptz | Time)
            | (Arithmetic::Multiply, _, Interval)
    );
    let (a, b) = if is_swapped { (right, left) } else { (left, right) };
    let of = |op, left, right, result| Some(Meaning { op, left, right, result, is_swapped });
    let is_factor = |base: SqlType| base.is_number() || base == Unknown;
    // A date has no time of day to which an interval could be added.
    let stamp = if a == Date { Timestamp } else { a };
    match (op, a, b) {
        (Arithmetic::Multiply, Interval, factor) if is_factor(factor) => {
            of(Temporal::Multiply, Interval, Float8, Interval)
        }
        (Arithmetic::Divide, Interval, factor) if is_factor(factor) => {
            of(Temporal::Divide, Interval, Float8, Interval)
        }
        (Arithmetic::Add, Interval, Interval | Unknown)
        | (Arithmetic::Add, Unknown, Interval)
        | (Arithmetic::Add, Timestamp | Timestamptz | Time, Interval | Unknown)
        | (Arithmetic::Add, Timestamp | Timestamptz | Date, Time)
        | (Arithmetic::Add, Date, Interval) => {
            let stamp = if a == Unknown { Interval } else { stamp };
            of(Temporal::Later(stamp), stamp, Interval, stamp)
        }
        (Arithmetic::Subtract, Interval, Interval | Time | Unknown)
        | (Arithmetic::Subtract, Unknown, Interval)
        | (Arithmetic::Subtract, Timestamp | Timestamptz | Date, Interval | Time)
        | (Arithmetic::Subtract, Time, Interval) => {
            let stamp = if a == Unknown { Interval } else { stamp };
            of(Temporal::Earlier(stamp), stamp, Interval, stamp)
        }
        (Arithmetic::Subtract, Time, Time | Unknown) | (Arithmetic::Subtract, Unknown, Time) => {
            of(Temporal::Between, Time, Time, Interval)
        }
        (
            Arithmetic::Subtract,
            Date | Timestamp | Timestamptz | Unknown,
            Date | Timestamp | Timestamptz | Unknown,
        ) => {
            let common = super::cast::common(a, b)?;
            of(Temporal::Between, common, common, Interval)
        }
        _ => None,
    }
}

/// Whether PostgreSQL has several operators for two types and prefers none of them.
pub(super) fn is_ambiguous(op: Arithmetic, left: SqlType, right: SqlType) -> bool {
    use SqlType::{Date, Time, Unknown};
    op == Arithmetic::Add
        && matches!((left, right), (Date, Unknown) | (Unknown, Date) | (Time, Time))
}

/// Applies an operator to values that are not NULL.
pub(crate) fn apply(
    op: Temporal,
    left: Datum,
    right: Datum,
    zone: &Zone,
) -> Result<Datum, SqlError> {
    match (op, left, right) {
        (Temporal::Later(base), left, Datum::Interval(by)) => shift(base, left, by, zone),
        (Temporal::Earlier(base), left, Datum::Interval(by)) => match left {
            Datum::Time(micros) => {
                Ok(Datum::Time((micros - by.micros % MICROS_PER_DAY).rem_euclid(MICROS_PER_DAY)))
            }
            left => shift(base, left, by.negate()?, zone),
        },
        (Temporal::Between, Datum::Time(later), Datum::Time(earlier)) => {
            Ok(Datum::Interval(Interval::from_micros(later - earlier)))
        }
        (Temporal::Between, Datum::Timestamp(later), Datum::Timestamp(earlier)) => {
            if !is_finite(later) || !is_finite(earlier) {
                let message = "cannot subtract infinite timestamps";
                return Err(SqlError::new(code::DATETIME_OVERFLOW, message));
            }
            let micros = later.checked_sub(earlier).ok_or_else(out_of_range)?;
            Interval::from_micros(micros).justify_hours().map(Datum::Interval)
        }
        (Temporal::Multiply, Datum::Interval(interval), Datum::Float(factor)) => {
            interval.multiply(factor).map(Datum::Interval)
        }
        (Temporal::Divide, Datum::Interval(interval), Datum::Float(divisor)) => {
            interval.divide(divisor).map(Datum::Interval)
        }
        (op, left, right) => panic!("{op:?} of {left:?} and {right:?}"),
    }
}

pub(super) fn is_finite(micros: i64) -> bool {
    micros != INFINITY && micros != MINUS_INFINITY
}

fn shift(base: SqlType, value: Datum, by: Interval, zone: &Zone) -> Result<Datum, SqlError> {
    match value {
        Datum::Interval(interval) => interval.plus(by).map(Datum::Interval),
        Datum::Time(micros) => {
            let sum = micros + by.micros % MICROS_PER_DAY;
            Ok(Datum::Time(sum.rem_euclid(MICROS_PER_DAY)))
        }
        Datum::Timestamp(micros) if !is_finite(micros) => Ok(Datum::Timestamp(micros)),
        Datum::Timestamp(micros) if base == SqlType::Timestamptz => {
            shift_zoned(micros, by, zone).map(Datum::Timestamp)
        }
        Datum::Timestamp(micros) => {
            let moved = shift_months(micros, by.months)?;
            let moved = shift_days(moved, by.days)?;
            checked_timestamp(moved.checked_add(by.micros)).map(Datum::Timestamp)
        }
        other => panic!("{other:?} plus an interval"),
    }
}

/// Adds an interval to a timestamp with time zone.
pub(super) fn shift_zoned(utc: i64, by: Interval, zone: &Zone) -> Result<i64, SqlError> {
    let mut utc = utc;
    if by.months != 0 {
        utc = checked_timestamp(Some(zone.to_utc(shift_months(zone.to_local(utc), by.months)?)))?;
    }
    if by.days != 0 {
        utc = checked_timestamp(Some(zone.to_utc(shift_days(zone.to_local(utc), by.days)?)))?;
    }
    checked_timestamp(utc.checked_add(by.micros))
}

/// Returns the same day of another month, or the last day of that month.
fn shift_months(local: i64, months: i32) -> Result<i64, SqlError> {
    if months == 0 {
        return Ok(local);
    }
    let (days, micros) = split(local);
    let civil = Civil::from_days(days);
    let month = civil.year * 12 + civil.month - 1 + i64::from(months);
    let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
    let day = civil.day.min(days_in_month(year, month));
    let midnight = Civil { year, month, day }.to_days().checked_mul(MICROS_PER_DAY);
    checked_timestamp(midnight.and_then(|midnight| midnight.checked_add(micros)))
}

fn shift_days(local: i64, days: i32) -> Result<i64, SqlError> {
    let moved = i64::from(days).checked_mul(MICROS_PER_DAY);
    checked_timestamp(moved.and_then(|moved| local.checked_add(moved)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::datetime::{format_timestamp, format_timestamptz, parse_timestamp};

    #[test]
    fn months_end_where_the_shorter_month_does() {
        let cases = [
            ("2024-01-31", "1 month", "2024-02-29 00:00:00"),
            ("2023-03-31", "-1 month", "2023-02-28 00:00:00"),
            ("2023-03-31", "1 year -1 month 1 day", "2024-03-01 00:00:00"),
        ];
        for (text, by, expected) in cases {
            let start = Datum::Timestamp(parse_timestamp(text).unwrap());
            let by = Interval::parse(by).unwrap();
            let moved = shift(SqlType::Timestamp, start, by, &Zone::default()).unwrap();
            let Datum::Timestamp(moved) = moved else { panic!("{moved:?}") };
            assert_eq!(format_timestamp(moved), expected, "{text}");
        }
    }

    #[test]
    fn a_day_is_not_24_hours_where_clocks_change() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let start = berlin.to_utc(parse_timestamp("2026-03-28 12:00").unwrap());
        for (by, expected) in
            [("1 day", "2026-03-29 12:00:00+02"), ("24 hours", "2026-03-29 13:00:00+02")]
        {
            let moved = shift_zoned(start, Interval::parse(by).unwrap(), &berlin).unwrap();
            assert_eq!(format_timestamptz(moved, &berlin), expected, "{by}");
        }
    }
}
