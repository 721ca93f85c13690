//! Conversions between types.

use super::arrays;
use crate::error::{SqlError, code};
use crate::types::datetime::{MICROS_PER_DAY, date_to_timestamp, split, timestamp_to_date};
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::types::json::Json;
use crate::types::numeric::Numeric;
use crate::types::text::{fit, fits, format, integer_out_of_range, parse, shortened};
use crate::types::zone::Zone;
use crate::types::{ColumnType, Reg, SqlType};

/// The contexts in which a cast applies. Each level includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Anywhere.
    Implicit,
    /// In assignments to columns.
    Assignment,
    /// Only on request.
    Explicit,
}

/// Returns the rank of a numeric type in the order of promotion.
fn number_rank(base: SqlType) -> Option<usize> {
    use SqlType::{Float4, Float8, Int2, Int4, Int8, Numeric};
    [Int2, Int4, Int8, Numeric, Float4, Float8].iter().position(|&number| number == base)
}

/// Returns the level from which on a type is cast to another, as in PostgreSQL's `pg_cast`. `None`
/// if there is no cast.
pub(crate) fn level(from: SqlType, to: SqlType) -> Option<Level> {
    use SqlType::{Bool, Date, Int4, Interval, Json, Jsonb, Time, Timestamp, Timestamptz, Unknown};
    if from == to || from == Unknown {
        return Some(Level::Implicit);
    }
    if let (Some(from), Some(to)) = (number_rank(from), number_rank(to)) {
        return Some(if from < to { Level::Implicit } else { Level::Assignment });
    }
    if let (Some(from), Some(to)) = (from.element(), to.element()) {
        return level(from, to);
    }
    match (from, to) {
        (a, SqlType::InternalChar) if a.is_string() => Some(Level::Assignment),
        (a, b) if a.is_string() && b.is_string() => Some(Level::Implicit),
        (a, b) if (a.is_integer() || a.is_oid()) && b.is_oid() => Some(Level::Implicit),
        (a, Int4 | SqlType::Int8) if a.is_oid() => Some(Level::Assignment),
        (a, SqlType::Reg(Reg::Class)) if a.is_string() => Some(Level::Implicit),
        (Bool, Int4) | (Int4, Bool) => Some(Level::Explicit),
        (Date, Timestamp | Timestamptz) | (Timestamp, Timestamptz) => Some(Level::Implicit),
        (Timestamp | Timestamptz, Date) | (Timestamptz, Timestamp) => Some(Level::Assignment),
        (Json, Jsonb) | (Jsonb, Json) => Some(Level::Assignment),
        (Jsonb, base) if base == Bool || base.is_number() => Some(Level::Explicit),
        (Time, Interval) => Some(Level::Implicit),
        (Timestamp | Timestamptz | Interval, Time) => Some(Level::Assignment),
        (_, b) if b.is_string() => Some(Level::Assignment),
        (a, _) if a.is_string() => Some(Level::Explicit),
        _ => None,
    }
}

/// Returns the common type of two operands.
pub(crate) fn common(a: SqlType, b: SqlType) -> Option<SqlType> {
    use SqlType::{Date, Float4, Float8, Text, Time, Timestamp, Timestamptz, Unknown};
    if a == b || b == Unknown {
        return Some(a);
    }
    if a == Unknown {
        return Some(b);
    }
    if let (Some(rank_a), Some(rank_b)) = (number_rank(a), number_rank(b)) {
        // No operator takes real and another type: both become double precision.
        return Some(if a == Float4 || b == Float4 {
            Float8
        } else if rank_a > rank_b {
            a
        } else {
            b
        });
    }
    match (a, b) {
        _ if a.is_string() && b.is_string() => Some(Text),
        _ if a.is_oid() && (b.is_oid() || b.is_integer()) => Some(SqlType::Oid),
        _ if a.is_integer() && b.is_oid() => Some(SqlType::Oid),
        (Timestamptz, Date | Timestamp) | (Date | Timestamp, Timestamptz) => Some(Timestamptz),
        (Timestamp, Date) | (Date, Timestamp) => Some(Timestamp),
        (Time, SqlType::Interval) | (SqlType::Interval, Time) => Some(SqlType::Interval),
        _ => None,
    }
}

/// Casts a value that is not NULL.
pub(crate) fn apply(
    datum: Datum,
    from: SqlType,
    to: ColumnType,
    is_explicit: bool,
    zone: &Zone,
) -> Result<Datum, SqlError> {
    if let (Datum::Array(array), Some(from), Some(to)) = (&datum, from.element(), to.element()) {
        return arrays::map(array, |item| apply(item, from, to, is_explicit, zone));
    }
    fit(to, convert(datum, from, to.base, zone)?, is_explicit)
}

fn convert(datum: Datum, from: SqlType, to: SqlType, zone: &Zone) -> Result<Datum, SqlError> {
    if from == to {
        return Ok(datum);
    }
    match datum {
        // Trailing blanks of char(n) are padding.
        Datum::Text(text) if to.is_string() && from == SqlType::Bpchar => {
            Ok(Datum::Text(text.trim_end_matches(' ').to_owned()))
        }
        Datum::Text(text) if to.is_string() => Ok(Datum::Text(shortened(to, text))),
        Datum::Text(text) => parse(to, &text, zone),
        Datum::Bool(value) if to.is_string() => {
            Ok(Datum::Text(if value { "true" } else { "false" }.to_owned()))
        }
        other if to.is_string() => Ok(Datum::Text(format(from, &other, zone))),
        Datum::Bool(value) => Ok(Datum::Int(value.into())),
        Datum::Int(value) if to.is_oid() => convert_to_oid(value, from),
        Datum::Int(value) if from.is_oid() && to == SqlType::Int4 => {
            Ok(Datum::Int((value as u32 as i32).into()))
        }
        Datum::Int(value) if to == SqlType::Bool => Ok(Datum::Bool(value != 0)),
        number @ (Datum::Int(_) | Datum::Float(_) | Datum::Numeric(_)) => {
            convert_number(number, from, to)
        }
        Datum::Date(days) => {
            let local = date_to_timestamp(days)?;
            let is_utc = to == SqlType::Timestamptz && is_finite(local);
            Ok(Datum::Timestamp(if is_utc { zone.to_utc(local) } else { local }))
        }
        Datum::Timestamp(micros) => {
            let local = match (from, to) {
                _ if !is_finite(micros) => micros,
                (SqlType::Timestamptz, _) => zone.to_local(micros),
                (_, SqlType::Timestamptz) => zone.to_utc(micros),
                _ => micros,
            };
            if to == SqlType::Time {
                let time = if is_finite(local) { Datum::Time(split(local).1) } else { Datum::Null };
                return Ok(time);
            }
            let is_date = to == SqlType::Date;
            Ok(if is_date {
                Datum::Date(timestamp_to_date(local))
            } else {
                Datum::Timestamp(local)
            })
        }
        Datum::Jsonb(json) => match (&*json, to) {
            (_, SqlType::Json) => Ok(Datum::Text(json.to_string())),
            (Json::Bool(value), SqlType::Bool) => Ok(Datum::Bool(*value)),
            (Json::Number(value), to) if to.is_number() => {
                convert_number(Datum::Numeric(value.clone()), SqlType::Numeric, to)
            }
            (json, to) => {
                let kind = match json.kind() {
                    "number" => "numeric",
                    kind => kind,
                };
                let message = format!("cannot cast jsonb {kind} to type {to}");
                Err(SqlError::new(code::INVALID_PARAMETER, message))
            }
        },
        Datum::Time(micros) => Ok(Datum::Interval(Interval::from_micros(micros))),
        Datum::Interval(interval) => Ok(Datum::Time(interval.micros.rem_euclid(MICROS_PER_DAY))),
        other => panic!("no cast of {other:?} from {from} to {to}"),
    }
}

fn convert_to_oid(value: i64, from: SqlType) -> Result<Datum, SqlError> {
    let is_oid = from == SqlType::Int4 || u32::try_from(value).is_ok();
    let out_of_range = || SqlError::new(code::NUMERIC_OUT_OF_RANGE, "OID out of range");
    is_oid.then(|| Datum::Int((value as u32).into())).ok_or_else(out_of_range)
}

fn is_finite(micros: i64) -> bool {
    micros != i64::MAX && micros != i64::MIN
}

fn convert_number(datum: Datum, from: SqlType, to: SqlType) -> Result<Datum, SqlError> {
    if to.is_integer() {
        let whole = match datum {
            Datum::Int(value) => Some(value),
            // Floats round half to even; numerics round half away from zero.
            Datum::Float(value) => whole_float(value.round_ties_even()),
            Datum::Numeric(value) => value.to_i64(),
            other => panic!("{other:?} is not a number"),
        };
        let whole = whole.filter(|&value| fits(to, value));
        return whole.map(Datum::Int).ok_or_else(|| integer_out_of_range(to));
    }
    if to == SqlType::Numeric {
        let digits = if from == SqlType::Float4 { 6 } else { 15 };
        return Ok(Datum::Numeric(match datum {
            Datum::Int(value) => Numeric::from(value),
            Datum::Float(value) => Numeric::from_f64(value, digits)?,
            Datum::Numeric(value) => value,
            other => panic!("{other:?} is not a number"),
        }));
    }
    let exact = match datum {
        Datum::Int(value) => value as f64,
        Datum::Float(value) => value,
        Datum::Numeric(value) => value.to_f64(),
        other => panic!("{other:?} is not a number"),
    };
    let value = if to == SqlType::Float4 { f64::from(exact as f32) } else { exact };
    let is_lost = value.is_infinite() && exact.is_finite() || value == 0.0 && exact != 0.0;
    if is_lost || (value.is_infinite() && from == SqlType::Numeric) {
        let message = "value out of range: overflow";
        return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message));
    }
    Ok(Datum::Float(value))
}

fn whole_float(value: f64) -> Option<i64> {
    // 2^63 is the smallest float that does not fit.
    let limit = 9_223_372_036_854_775_808.0;
    (value >= -limit && value < limit).then_some(value as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(datum: Datum, from: SqlType, to: SqlType) -> Result<Datum, SqlError> {
        apply(datum, from, to.into(), true, &Zone::default())
    }

    #[test]
    fn halves_round_to_even_from_floats_and_away_from_numerics() {
        let float = |value| cast(Datum::Float(value), SqlType::Float8, SqlType::Int4);
        assert_eq!(float(2.5), Ok(Datum::Int(2)));
        assert_eq!(float(3.5), Ok(Datum::Int(4)));
        assert!(float(3e9).is_err() && float(f64::NAN).is_err());
        let half = Datum::Numeric("2.5".parse().unwrap());
        assert_eq!(cast(half, SqlType::Numeric, SqlType::Int4), Ok(Datum::Int(3)));
    }

    #[test]
    fn types_meet_where_postgresql_has_an_operator() {
        assert_eq!(common(SqlType::Int2, SqlType::Int8), Some(SqlType::Int8));
        assert_eq!(common(SqlType::Numeric, SqlType::Int8), Some(SqlType::Numeric));
        assert_eq!(common(SqlType::Float4, SqlType::Int4), Some(SqlType::Float8));
        assert_eq!(common(SqlType::Varchar, SqlType::Bpchar), Some(SqlType::Text));
        assert_eq!(common(SqlType::Int4, SqlType::Text), None);
        assert_eq!(level(SqlType::Text, SqlType::Int4), Some(Level::Explicit));
        assert_eq!(level(SqlType::Int8, SqlType::Int4), Some(Level::Assignment));
        assert_eq!(level(SqlType::Bool, SqlType::Date), None);
    }
}
