//! Functions that construct, justify and compare times and intervals.

use num_traits::ToPrimitive;

use super::functions::{Function, integer};
use super::signatures::{Signature, of};
use super::temporal::is_finite;
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::SqlType::{Float8, Int4, Interval as I, Time, Timestamp, Timestamptz};
use crate::types::datetime::{
    Civil, Clock, MICROS_PER_DAY, MICROS_PER_SECOND, days_in_month, split,
};
use crate::types::datum::Datum;
use crate::types::interval::{Interval, out_of_range};
use crate::types::zone::Zone;

/// A function over times and intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeFunction {
    Age(SqlType),
    /// The age relative to today's midnight.
    AgeToday(SqlType),
    Justify,
    JustifyDays,
    JustifyHours,
    MakeInterval,
    MakeTime,
    LocalTime,
    /// AT TIME ZONE with a fixed offset from UTC.
    AtOffset {
        to_utc: bool,
    },
}

use TimeFunction as T;

const fn time(
    name: &'static str,
    args: &'static [SqlType],
    result: SqlType,
    function: TimeFunction,
) -> Signature {
    of(name, args, result, Function::Time(function))
}

/// The arguments of `make_interval`; trailing ones may be omitted.
const MAKE_INTERVAL: &[SqlType] = &[Int4, Int4, Int4, Int4, Int4, Int4, Float8];
/// The names of its arguments.
pub(super) const MAKE_INTERVAL_NAMES: [&str; 7] =
    ["years", "months", "weeks", "days", "hours", "mins", "secs"];

pub(super) const SIGNATURES: &[Signature] = &[
    time("age", &[Timestamptz, Timestamptz], I, T::Age(Timestamptz)),
    time("age", &[Timestamp, Timestamp], I, T::Age(Timestamp)),
    time("age", &[Timestamptz], I, T::AgeToday(Timestamptz)),
    time("age", &[Timestamp], I, T::AgeToday(Timestamp)),
    time("justify_interval", &[I], I, T::Justify),
    time("justify_days", &[I], I, T::JustifyDays),
    time("justify_hours", &[I], I, T::JustifyHours),
    time("make_interval", MAKE_INTERVAL, I, T::MakeInterval),
    time("make_interval", MAKE_INTERVAL.split_at(6).0, I, T::MakeInterval),
    time("make_interval", MAKE_INTERVAL.split_at(5).0, I, T::MakeInterval),
    time("make_interval", MAKE_INTERVAL.split_at(4).0, I, T::MakeInterval),
    time("make_interval", MAKE_INTERVAL.split_at(3).0, I, T::MakeInterval),
    time("make_interval", MAKE_INTERVAL.split_at(2).0, I, T::MakeInterval),
    time("make_interval", MAKE_INTERVAL.split_at(1).0, I, T::MakeInterval),
    time("make_interval", &[], I, T::MakeInterval),
    time("make_time", &[Int4, Int4, Float8], Time, T::MakeTime),
    time("localtime", &[], Time, T::LocalTime),
    time("timezone", &[I, Timestamp], Timestamptz, T::AtOffset { to_utc: true }),
    time("timezone", &[I, Timestamptz], Timestamp, T::AtOffset { to_utc: false }),
];

/// Evaluates a function whose arguments are not NULL. `now` is the transaction's time.
pub(super) fn call(
    function: TimeFunction,
    args: &[Datum],
    zone: &Zone,
    now: i64,
) -> Result<Datum, SqlError> {
    let interval = |at: usize| match &args[at] {
        Datum::Interval(interval) => *interval,
        other => panic!("{other:?} is not an interval"),
    };
    match function {
        T::Age(base) => age(local(base, &args[0], zone), local(base, &args[1], zone)),
        T::AgeToday(base) => {
            let midnight = split(zone.to_local(now)).0 * MICROS_PER_DAY;
            age(midnight, local(base, &args[0], zone))
        }
        T::Justify => interval(0).justify(),
        T::JustifyDays => interval(0).justify_days(),
        T::JustifyHours => interval(0).justify_hours(),
        T::MakeInterval => make_interval(args),
        T::MakeTime => return make_time(&args[0], &args[1], &args[2]),
        T::LocalTime => return Ok(Datum::Time(split(zone.to_local(now)).1)),
        T::AtOffset { to_utc } => return at_offset(interval(0), &args[1], to_utc),
    }
    .map(Datum::Interval)
}

fn local(base: SqlType, value: &Datum, zone: &Zone) -> i64 {
    match value {
        Datum::Timestamp(utc) if base == Timestamptz && is_finite(*utc) => zone.to_local(*utc),
        Datum::Timestamp(micros) => *micros,
        other => panic!("{other:?} is not a timestamp"),
    }
}

/// Returns the years, months, days and smaller units from one local time to another: PostgreSQL's
/// `timestamp_age`.
fn age(later: i64, earlier: i64) -> Result<Interval, SqlError> {
    if !is_finite(later) || !is_finite(earlier) {
        return Err(SqlError::new(code::DATETIME_OVERFLOW, "timestamp out of range"));
    }
    let sign = if later < earlier { -1 } else { 1 };
    let fields = |local: i64| {
        let (days, micros) = split(local);
        (Civil::from_days(days), Clock::from_micros(micros))
    };
    let ((to, to_clock), (from, from_clock)) = (fields(later), fields(earlier));
    let mut micros = sign * (to_clock.to_micros() - from_clock.to_micros());
    let mut days = sign * (to.day - from.day);
    let mut months = sign * (to.year * 12 + to.month - from.year * 12 - from.month);
    if micros < 0 {
        micros += MICROS_PER_DAY;
        days -= 1;
    }
    // Days are borrowed from the month of the earlier of the two times.
    let first = if sign < 0 { to } else { from };
    while days < 0 {
        days += days_in_month(first.year, first.month);
        months -= 1;
    }
    let months = i32::try_from(sign * months).map_err(|_| out_of_range())?;
    Ok(Interval { months, days: (sign * days) as i32, micros: sign * micros })
}

fn make_interval(args: &[Datum]) -> Result<Interval, SqlError> {
    let count = |at: usize| args.get(at).map_or(0, integer);
    let seconds = match args.get(6) {
        Some(Datum::Float(seconds)) => *seconds,
        _ => 0.0,
    };
    let narrow = |value: i64| i32::try_from(value).map_err(|_| out_of_range());
    let micros = (seconds * 1e6).round_ties_even();
    let micros = (micros.is_finite()).then(|| micros.to_i64()).flatten();
    let whole = (count(4) * 3_600 + count(5) * 60).checked_mul(MICROS_PER_SECOND);
    let all = whole.and_then(|whole| whole.checked_add(micros?));
    Ok(Interval {
        months: narrow(count(0) * 12 + count(1))?,
        days: narrow(count(2) * 7 + count(3))?,
        micros: all.ok_or_else(out_of_range)?,
    })
}

fn make_time(hour: &Datum, minute: &Datum, second: &Datum) -> Result<Datum, SqlError> {
    let Datum::Float(second) = second else { panic!("{second:?} is not a float") };
    let (hour, minute) = (integer(hour), integer(minute));
    time_of_day(hour, minute, *second).map(Datum::Time).ok_or_else(|| {
        let message = format!("time field value out of range: {hour}:{minute:02}:{second:02}");
        SqlError::new(code::DATETIME_OVERFLOW, message)
    })
}

/// Returns the microseconds since midnight; `None` if a field is out of range.
pub(super) fn time_of_day(hour: i64, minute: i64, second: f64) -> Option<i64> {
    let is_in_range = (0..=24).contains(&hour) && (0..60).contains(&minute);
    if !is_in_range || !(0.0..=60.0).contains(&second) {
        return None;
    }
    let micros = (second * 1e6).round_ties_even() as i64;
    let all = (hour * 60 + minute) * 60 * MICROS_PER_SECOND + micros;
    (all <= MICROS_PER_DAY).then_some(all)
}

fn at_offset(offset: Interval, value: &Datum, to_utc: bool) -> Result<Datum, SqlError> {
    if offset.months != 0 || offset.days != 0 {
        let message = format!("interval time zone \"{offset}\" must not include months or days");
        return Err(SqlError::new(code::INVALID_PARAMETER, message));
    }
    let Datum::Timestamp(micros) = value else { panic!("{value:?} is not a timestamp") };
    if !is_finite(*micros) {
        return Ok(value.clone());
    }
    // Offsets of PostgreSQL's time zones are whole seconds.
    let east = offset.micros / MICROS_PER_SECOND * MICROS_PER_SECOND;
    let moved = if to_utc { micros.checked_sub(east) } else { micros.checked_add(east) };
    crate::types::datetime::checked_timestamp(moved).map(Datum::Timestamp)
}
