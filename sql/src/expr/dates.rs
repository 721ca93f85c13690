//! Functions that construct and inspect dates and timestamps.

use super::functions::{Function, integer, text, zone_named};
use super::signatures::{Signature, of};
use super::temporal::is_finite;
use super::time_functions::time_of_day;
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::SqlType::{Bool, Date, Float8, Int4, Interval, Text, Timestamp, Timestamptz};
use crate::types::datetime::{
    Civil, DATE_INFINITY, DATE_MINUS_INFINITY, INFINITY, MICROS_PER_DAY, MINUS_INFINITY,
    UNIX_EPOCH_MICROS, checked_date, checked_timestamp, days_in_month,
};
use crate::types::datum::Datum;
use crate::types::zone::Zone;

/// A function over dates and timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DateFunction {
    MakeDate,
    MakeTimestamp,
    MakeTimestamptz,
    FromEpoch,
    Bin,
    IsFinite,
    TimeOfDay,
    Format(SqlType),
}

use DateFunction as D;

const fn date(
    name: &'static str,
    args: &'static [SqlType],
    result: SqlType,
    function: DateFunction,
) -> Signature {
    of(name, args, result, Function::Date(function))
}

const FIELDS: &[SqlType] = &[Int4, Int4, Int4, Int4, Int4, Float8];

pub(super) const SIGNATURES: &[Signature] = &[
    date("make_date", &[Int4, Int4, Int4], Date, D::MakeDate),
    date("make_timestamp", FIELDS, Timestamp, D::MakeTimestamp),
    date("make_timestamptz", FIELDS, Timestamptz, D::MakeTimestamptz),
    date(
        "make_timestamptz",
        &[Int4, Int4, Int4, Int4, Int4, Float8, Text],
        Timestamptz,
        D::MakeTimestamptz,
    ),
    date("to_timestamp", &[Float8], Timestamptz, D::FromEpoch),
    date("date_bin", &[Interval, Timestamptz, Timestamptz], Timestamptz, D::Bin),
    date("date_bin", &[Interval, Timestamp, Timestamp], Timestamp, D::Bin),
    date("isfinite", &[Timestamptz], Bool, D::IsFinite),
    date("isfinite", &[Timestamp], Bool, D::IsFinite),
    date("isfinite", &[Date], Bool, D::IsFinite),
    date("isfinite", &[Interval], Bool, D::IsFinite),
    date("timeofday", &[], Text, D::TimeOfDay),
    date("to_char", &[Timestamptz, Text], Text, D::Format(Timestamptz)),
    date("to_char", &[Timestamp, Text], Text, D::Format(Timestamp)),
    date("to_char", &[Interval, Text], Text, D::Format(Interval)),
];

/// Calls the function. `now` is the statement's time.
pub(super) fn call(
    function: DateFunction,
    args: &[Datum],
    zone: &Zone,
    now: i64,
) -> Result<Datum, SqlError> {
    match function {
        D::MakeDate => civil(args).and_then(checked_date).map(Datum::Date),
        D::MakeTimestamp => make_timestamp(args).map(Datum::Timestamp),
        D::MakeTimestamptz => {
            let local = make_timestamp(args)?;
            let named = args.get(6).map(|name| zone_named(text(name))).transpose()?;
            let utc = named.as_ref().unwrap_or(zone).to_utc(local);
            checked_timestamp(Some(utc)).map(Datum::Timestamp)
        }
        D::FromEpoch => from_epoch(&args[0]).map(Datum::Timestamp),
        D::Bin => bin(args).map(Datum::Timestamp),
        D::IsFinite => Ok(Datum::Bool(match &args[0] {
            Datum::Date(days) => ![DATE_INFINITY, DATE_MINUS_INFINITY].contains(days),
            Datum::Timestamp(micros) => is_finite(*micros),
            _ => true,
        })),
        D::TimeOfDay => {
            let shown = super::to_char::format(
                "Dy Mon DD HH24:MI:SS.US YYYY TZ",
                Timestamptz,
                &Datum::Timestamp(now),
                zone,
            );
            shown.map(Datum::Text)
        }
        D::Format(_) if text(&args[1]).is_empty() => Ok(Datum::Null),
        D::Format(_) if matches!(args[0], Datum::Timestamp(micros) if !is_finite(micros)) => {
            Ok(Datum::Null)
        }
        D::Format(base) => {
            super::to_char::format(text(&args[1]), base, &args[0], zone).map(Datum::Text)
        }
    }
}

/// Returns the day number of a date; a negative year is BC.
fn civil(args: &[Datum]) -> Result<i64, SqlError> {
    let (year, month, day) = (integer(&args[0]), integer(&args[1]), integer(&args[2]));
    let counted = if year < 0 { year + 1 } else { year };
    let is_day = (1..=12).contains(&month) && (1..=days_in_month(counted, month)).contains(&day);
    if year == 0 || !is_day {
        let message = format!("date field value out of range: {year}-{month:02}-{day:02}");
        return Err(SqlError::new(code::DATETIME_OVERFLOW, message));
    }
    Ok(Civil { year: counted, month, day }.to_days())
}

fn make_timestamp(args: &[Datum]) -> Result<i64, SqlError> {
    let days = civil(args)?;
    let Datum::Float(second) = args[5] else { panic!("{:?} is not a float", args[5]) };
    let (hour, minute) = (integer(&args[3]), integer(&args[4]));
    let micros = time_of_day(hour, minute, second).ok_or_else(|| {
        let message = format!("time field value out of range: {hour}:{minute:02}:{second:02}");
        SqlError::new(code::DATETIME_OVERFLOW, message)
    })?;
    let midnight = days.checked_mul(MICROS_PER_DAY);
    checked_timestamp(midnight.and_then(|midnight| midnight.checked_add(micros)))
}

fn from_epoch(seconds: &Datum) -> Result<i64, SqlError> {
    let Datum::Float(seconds) = seconds else { panic!("{seconds:?} is not a float") };
    if seconds.is_nan() {
        let message = "timestamp cannot be NaN";
        return Err(SqlError::new(code::DATETIME_OVERFLOW, message));
    }
    if seconds.is_infinite() {
        return Ok(if *seconds > 0.0 { INFINITY } else { MINUS_INFINITY });
    }
    let overflow = || {
        let message = format!("timestamp out of range: \"{seconds}\"");
        SqlError::new(code::DATETIME_OVERFLOW, message)
    };
    // Bounds timestamps: larger doubles cannot be converted to a count of microseconds.
    if seconds.abs() > 1e14 {
        return Err(overflow());
    }
    let shifted = seconds - (UNIX_EPOCH_MICROS / 1_000_000) as f64;
    let micros = (shifted * 1e6).round_ties_even();
    let in_range = micros.abs() < 9.2e18;
    checked_timestamp(in_range.then_some(micros as i64)).map_err(|_| overflow())
}

/// `date_bin`: returns the start of the interval that contains a timestamp, counted from an origin.
fn bin(args: &[Datum]) -> Result<i64, SqlError> {
    let [Datum::Interval(stride), Datum::Timestamp(value), Datum::Timestamp(origin)] = args else {
        panic!("date_bin of {args:?}")
    };
    if !is_finite(*value) {
        return Ok(*value);
    }
    let overflow = |message: &str| SqlError::new(code::DATETIME_OVERFLOW, message);
    if !is_finite(*origin) {
        return Err(overflow("origin out of range"));
    }
    if stride.months != 0 {
        let message = "timestamps cannot be binned into intervals containing months or years";
        return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
    }
    let step =
        i64::try_from(stride.micros_in_all()).map_err(|_| overflow("interval out of range"))?;
    if step <= 0 {
        return Err(overflow("stride must be greater than zero"));
    }
    let since = value.checked_sub(*origin).ok_or_else(|| overflow("interval out of range"))?;
    let start = since.div_euclid(step).checked_mul(step);
    checked_timestamp(start.and_then(|start| origin.checked_add(start)))
}
