//! Arithmetic with PostgreSQL's overflow errors.

use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datetime::{DATE_INFINITY, DATE_MINUS_INFINITY, checked_date};
use crate::types::datum::Datum;
use crate::types::numeric::division_by_zero;
use crate::types::text::{fits, integer_out_of_range};

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    BitAnd,
    BitOr,
    BitXor,
}

/// Applies an operator to two values of one type.
pub(crate) fn apply(
    op: Arithmetic,
    base: SqlType,
    left: Datum,
    right: Datum,
) -> Result<Datum, SqlError> {
    match (left, right) {
        (Datum::Int(a), Datum::Int(b)) => integers(op, base, a, b).map(Datum::Int),
        (Datum::Float(a), Datum::Float(b)) => floats(op, base, a, b).map(Datum::Float),
        (Datum::Numeric(a), Datum::Numeric(b)) => {
            let result = match op {
                Arithmetic::Add => Ok(a.add(&b)),
                Arithmetic::Subtract => Ok(a.subtract(&b)),
                Arithmetic::Multiply => a.multiply(&b),
                Arithmetic::Divide => a.divide(&b),
                Arithmetic::Remainder => a.remainder(&b),
                Arithmetic::BitAnd | Arithmetic::BitOr | Arithmetic::BitXor => {
                    unreachable!("bits are of integers alone")
                }
            };
            result.map(Datum::Numeric)
        }
        (Datum::Interval(a), Datum::Interval(b)) if op == Arithmetic::Add => {
            a.plus(b).map(Datum::Interval)
        }
        (a, b) => panic!("{op:?} of {a:?} and {b:?}"),
    }
}

fn integers(op: Arithmetic, base: SqlType, a: i64, b: i64) -> Result<i64, SqlError> {
    let result = match op {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::Divide | Arithmetic::Remainder if b == 0 => return Err(division_by_zero()),
        Arithmetic::Divide => a.checked_div(b),
        // Dividing the smallest integer by -1 leaves the remainder 0, without overflow.
        Arithmetic::Remainder => Some(a.wrapping_rem(b)),
        Arithmetic::BitAnd => Some(a & b),
        Arithmetic::BitOr => Some(a | b),
        Arithmetic::BitXor => Some(a ^ b),
    };
    result.filter(|&value| fits(base, value)).ok_or_else(|| integer_out_of_range(base))
}

fn floats(op: Arithmetic, base: SqlType, a: f64, b: f64) -> Result<f64, SqlError> {
    let exact = match op {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide if b == 0.0 && !a.is_nan() => return Err(division_by_zero()),
        Arithmetic::Divide => a / b,
        _ => unreachable!("no such operator for {base}"),
    };
    let underflows = match op {
        Arithmetic::Multiply => a != 0.0 && b != 0.0,
        Arithmetic::Divide => a != 0.0 && b.is_finite(),
        _ => false,
    };
    let is_finite = a.is_finite() && b.is_finite();
    checked_float(base, exact, is_finite, underflows)
}

/// Rounds a result to its float type. Fails if finite operands overflow to infinity, or if the
/// result underflows to 0 and `underflows` is set.
pub(crate) fn checked_float(
    base: SqlType,
    exact: f64,
    is_finite: bool,
    underflows: bool,
) -> Result<f64, SqlError> {
    let value = if base == SqlType::Float4 { f64::from(exact as f32) } else { exact };
    if value.is_infinite() && is_finite {
        let message = "value out of range: overflow";
        return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message));
    }
    if value == 0.0 && underflows {
        let message = "value out of range: underflow";
        return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message));
    }
    Ok(value)
}

/// `-x`
pub(crate) fn negate(base: SqlType, operand: Datum) -> Result<Datum, SqlError> {
    match operand {
        Datum::Int(value) => {
            let negated = value.checked_neg().filter(|&value| fits(base, value));
            negated.map(Datum::Int).ok_or_else(|| integer_out_of_range(base))
        }
        Datum::Float(value) => Ok(Datum::Float(-value)),
        Datum::Numeric(value) => Ok(Datum::Numeric(value.negate())),
        Datum::Interval(value) => value.negate().map(Datum::Interval),
        other => panic!("- of {other:?}"),
    }
}

/// Adds days to a date, or subtracts them.
pub(crate) fn shift_date(date: Datum, days: Datum, is_backwards: bool) -> Result<Datum, SqlError> {
    let (Datum::Date(date), Datum::Int(days)) = (&date, &days) else {
        panic!("{date:?} and {days:?} days")
    };
    if [DATE_INFINITY, DATE_MINUS_INFINITY].contains(date) {
        return Ok(Datum::Date(*date));
    }
    let days = if is_backwards { -days } else { *days };
    checked_date(i64::from(*date) + days).map(Datum::Date)
}

/// Returns the number of days from one date to another.
pub(crate) fn days_between(later: Datum, earlier: Datum) -> Result<Datum, SqlError> {
    let (Datum::Date(later), Datum::Date(earlier)) = (&later, &earlier) else {
        panic!("the days between {later:?} and {earlier:?}")
    };
    if [later, earlier].into_iter().any(|d| [DATE_INFINITY, DATE_MINUS_INFINITY].contains(d)) {
        return Err(SqlError::new(code::DATETIME_OVERFLOW, "cannot subtract infinite dates"));
    }
    Ok(Datum::Int(i64::from(*later) - i64::from(*earlier)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_overflow_at_the_width_of_their_type() {
        let op = |op, base, a, b| apply(op, base, Datum::Int(a), Datum::Int(b));
        assert_eq!(op(Arithmetic::Add, SqlType::Int4, 1, 2), Ok(Datum::Int(3)));
        let error = op(Arithmetic::Add, SqlType::Int4, i32::MAX.into(), 1).unwrap_err();
        assert_eq!((error.code.as_str(), &*error.message), ("22003", "integer out of range"));
        assert!(op(Arithmetic::Multiply, SqlType::Int8, i64::MAX, 2).is_err());
        assert!(op(Arithmetic::Divide, SqlType::Int8, i64::MIN, -1).is_err());
        assert_eq!(op(Arithmetic::Remainder, SqlType::Int8, i64::MIN, -1), Ok(Datum::Int(0)));
        assert_eq!(op(Arithmetic::Divide, SqlType::Int4, -7, 2), Ok(Datum::Int(-3)));
        let error = op(Arithmetic::Remainder, SqlType::Int4, 1, 0).unwrap_err();
        assert_eq!(error.code.as_str(), "22012");
        assert!(negate(SqlType::Int2, Datum::Int(i16::MIN.into())).is_err());
    }

    #[test]
    fn floats_overflow_and_underflow_where_postgresql_says_so() {
        let op = |op, a, b| apply(op, SqlType::Float8, Datum::Float(a), Datum::Float(b));
        assert!(op(Arithmetic::Multiply, 1e300, 1e300).is_err());
        assert!(op(Arithmetic::Multiply, 1e-300, 1e-300).is_err());
        assert!(op(Arithmetic::Divide, 1.0, 0.0).is_err());
        let infinite = op(Arithmetic::Add, f64::INFINITY, 1.0);
        assert_eq!(infinite, Ok(Datum::Float(f64::INFINITY)));
    }
}
