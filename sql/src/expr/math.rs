//! Mathematical functions.
//!
//! The integer and decimal functions are exact. IEEE 754 does not define `exp`, `sin` and similar
//! functions of doubles to the last bit. These come from the crate `libm`: the standard library
//! calls the platform's functions, and replicas on different machines would write different bits.

use num_bigint::BigInt;

use super::arithmetic::checked_float;
use super::functions::{Function, integer};
use super::signatures::{Signature, of};
use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::SqlType::{Float8, Int2, Int4, Int8, Numeric as N};
use crate::types::datum::Datum;
use crate::types::numeric::{Numeric, division_by_zero, overflow};
use crate::types::text::{fits, integer_out_of_range};

/// A mathematical function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MathFunction {
    Power,
    CubeRoot,
    Exp,
    Ln,
    Log,
    Sin,
    Cos,
    Tan,
    Cot,
    Asin,
    Acos,
    Atan,
    Atan2,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Degrees,
    Radians,
    Pi,
    Div,
    Gcd(SqlType),
    Lcm(SqlType),
    Factorial,
    Scale,
    MinScale,
    TrimScale,
    WidthBucket,
    /// `sqrt` of numeric
    Root,
    ShiftLeft(SqlType),
    ShiftRight(SqlType),
}

use MathFunction as M;

const fn math(
    name: &'static str,
    args: &'static [SqlType],
    result: SqlType,
    function: MathFunction,
) -> Signature {
    of(name, args, result, Function::Math(function))
}

const ONE: &[SqlType] = &[Float8];

pub(super) const SIGNATURES: &[Signature] = &[
    math("power", &[Float8, Float8], Float8, M::Power),
    math("pow", &[Float8, Float8], Float8, M::Power),
    math("cbrt", ONE, Float8, M::CubeRoot),
    math("exp", ONE, Float8, M::Exp),
    math("ln", ONE, Float8, M::Ln),
    math("log", ONE, Float8, M::Log),
    math("log10", ONE, Float8, M::Log),
    math("sin", ONE, Float8, M::Sin),
    math("cos", ONE, Float8, M::Cos),
    math("tan", ONE, Float8, M::Tan),
    math("cot", ONE, Float8, M::Cot),
    math("asin", ONE, Float8, M::Asin),
    math("acos", ONE, Float8, M::Acos),
    math("atan", ONE, Float8, M::Atan),
    math("atan2", &[Float8, Float8], Float8, M::Atan2),
    math("sinh", ONE, Float8, M::Sinh),
    math("cosh", ONE, Float8, M::Cosh),
    math("tanh", ONE, Float8, M::Tanh),
    math("asinh", ONE, Float8, M::Asinh),
    math("acosh", ONE, Float8, M::Acosh),
    math("atanh", ONE, Float8, M::Atanh),
    math("degrees", ONE, Float8, M::Degrees),
    math("radians", ONE, Float8, M::Radians),
    math("pi", &[], Float8, M::Pi),
    math("div", &[N, N], N, M::Div),
    math("gcd", &[Int4, Int4], Int4, M::Gcd(Int4)),
    math("gcd", &[Int8, Int8], Int8, M::Gcd(Int8)),
    math("lcm", &[Int4, Int4], Int4, M::Lcm(Int4)),
    math("lcm", &[Int8, Int8], Int8, M::Lcm(Int8)),
    math("factorial", &[Int8], N, M::Factorial),
    math("scale", &[N], Int4, M::Scale),
    math("min_scale", &[N], Int4, M::MinScale),
    math("trim_scale", &[N], N, M::TrimScale),
    math("sqrt", &[N], N, M::Root),
    math("int2shl", &[Int2, Int4], Int2, M::ShiftLeft(Int2)),
    math("int4shl", &[Int4, Int4], Int4, M::ShiftLeft(Int4)),
    math("int8shl", &[Int8, Int4], Int8, M::ShiftLeft(Int8)),
    math("int2shr", &[Int2, Int4], Int2, M::ShiftRight(Int2)),
    math("int4shr", &[Int4, Int4], Int4, M::ShiftRight(Int4)),
    math("int8shr", &[Int8, Int4], Int8, M::ShiftRight(Int8)),
    math("width_bucket", &[Float8, Float8, Float8, Int4], Int4, M::WidthBucket),
];

/// Functions without a form for numeric, which must not silently fall back to the form for doubles.
pub(super) const WITHOUT_NUMERIC: [&str; 6] = ["power", "pow", "exp", "ln", "log", "log10"];

/// The largest argument of `factorial` whose result fits into PostgreSQL's numeric.
const FACTORIAL_MAX: i64 = 32_177;

/// Evaluates the function.
pub(super) fn call(function: MathFunction, args: &[Datum]) -> Result<Datum, SqlError> {
    let whole = |at: usize| integer(&args[at]);
    let number = |at: usize| match &args[at] {
        Datum::Numeric(number) => number,
        other => panic!("{other:?} is not a numeric"),
    };
    Ok(match function {
        M::Gcd(base) => in_range(base, gcd(whole(0), whole(1)))?,
        M::Lcm(base) => {
            let divisor = gcd(whole(0), whole(1)).max(1);
            in_range(base, (i128::from(whole(0)) / divisor * i128::from(whole(1))).abs())?
        }
        M::Div => {
            let (a, b) = (number(0), number(1));
            if b.is_zero() {
                return Err(division_by_zero());
            }
            let scale = a.scale().max(b.scale());
            let quotient = &*a.round(scale).unscaled() / &*b.round(scale).unscaled();
            Datum::Numeric(Numeric::new(quotient, 0))
        }
        M::Factorial => Datum::Numeric(factorial(whole(0))?),
        M::Scale => Datum::Int(number(0).scale().into()),
        M::MinScale => Datum::Int(min_scale(number(0))),
        M::TrimScale => Datum::Numeric(number(0).truncate_at(min_scale(number(0)))),
        M::WidthBucket => Datum::Int(width_bucket(args)?),
        M::Root => match number(0).square_root() {
            Some(root) => Datum::Numeric(root),
            None => {
                let message = "cannot take square root of a negative number";
                return Err(domain(message, code::POWER_ARGUMENT));
            }
        },
        // The shift count is taken modulo the width of the machine integer, as on the hardware that
        // PostgreSQL runs on.
        M::ShiftLeft(Int2) => {
            Datum::Int(((whole(0) as i32).wrapping_shl(whole(1) as u32) as i16).into())
        }
        M::ShiftLeft(Int4) => Datum::Int((whole(0) as i32).wrapping_shl(whole(1) as u32).into()),
        M::ShiftLeft(_) => Datum::Int(whole(0).wrapping_shl(whole(1) as u32)),
        M::ShiftRight(Int2 | Int4) => {
            Datum::Int((whole(0) as i32).wrapping_shr(whole(1) as u32).into())
        }
        M::ShiftRight(_) => Datum::Int(whole(0).wrapping_shr(whole(1) as u32)),
        _ => {
            let float = |at: usize| match args.get(at) {
                Some(Datum::Float(value)) => *value,
                _ => 0.0,
            };
            Datum::Float(of_floats(function, float(0), float(1))?)
        }
    })
}

fn gcd(a: i64, b: i64) -> i128 {
    let (mut a, mut b) = (i128::from(a).abs(), i128::from(b).abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn in_range(base: SqlType, value: i128) -> Result<Datum, SqlError> {
    let fitting = i64::try_from(value).ok().filter(|value| fits(base, *value));
    fitting.map(Datum::Int).ok_or_else(|| integer_out_of_range(base))
}

fn min_scale(number: &Numeric) -> i64 {
    let last = |(digits, first): (Vec<u8>, i64)| digits.len() as i64 - 1 - first;
    number.significant().map_or(0, last).max(0)
}

fn factorial(of: i64) -> Result<Numeric, SqlError> {
    if of < 0 {
        let message = "factorial of a negative number is undefined";
        return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message));
    }
    if of > FACTORIAL_MAX {
        return Err(overflow());
    }
    Ok(Numeric::new((2..=of).fold(BigInt::from(1), |product, n| product * n), 0))
}

fn width_bucket(args: &[Datum]) -> Result<i64, SqlError> {
    let wrong = |message: &str| Err(SqlError::new(code::WIDTH_BUCKET, message));
    let [Datum::Float(value), Datum::Float(low), Datum::Float(high), Datum::Int(count)] = args
    else {
        panic!("width_bucket of {args:?}")
    };
    if *count <= 0 {
        return wrong("count must be greater than zero");
    }
    if value.is_nan() || low.is_nan() || high.is_nan() {
        return wrong("operand, lower bound, and upper bound cannot be NaN");
    }
    if !low.is_finite() || !high.is_finite() {
        return wrong("lower and upper bounds must be finite");
    }
    if low == high {
        return wrong("lower bound cannot equal upper bound");
    }
    let (is_below, is_above) = match low < high {
        true => (value < low, value >= high),
        false => (value > low, value <= high),
    };
    Ok(match (is_below, is_above) {
        (true, _) => 0,
        (_, true) => count + 1,
        _ => {
            let share = (value - low) / (high - low);
            ((*count as f64 * share) as i64 + 1).min(*count)
        }
    })
}

fn domain(message: &str, code: pangea_core::txn::SqlState) -> SqlError {
    SqlError::new(code, message)
}

fn of_floats(function: MathFunction, x: f64, y: f64) -> Result<f64, SqlError> {
    let out_of_range = || domain("input is out of range", code::NUMERIC_OUT_OF_RANGE);
    let is_finite = x.is_finite();
    let value = match function {
        M::Power => return power(x, y),
        M::Ln | M::Log if x == 0.0 => {
            return Err(domain("cannot take logarithm of zero", code::LOG_ARGUMENT));
        }
        M::Ln | M::Log if x < 0.0 => {
            return Err(domain("cannot take logarithm of a negative number", code::LOG_ARGUMENT));
        }
        M::Sin | M::Cos | M::Tan | M::Cot if x.is_infinite() => return Err(out_of_range()),
        M::Asin | M::Acos if !x.is_nan() && x.abs() > 1.0 => return Err(out_of_range()),
        M::CubeRoot => libm::cbrt(x),
        M::Exp => return checked_float(Float8, libm::exp(x), is_finite, is_finite),
        M::Ln => libm::log(x),
        M::Log => libm::log10(x),
        M::Sin => libm::sin(x),
        M::Cos => libm::cos(x),
        M::Tan => libm::tan(x),
        M::Cot => 1.0 / libm::tan(x),
        M::Asin => libm::asin(x),
        M::Acos => libm::acos(x),
        M::Atan => libm::atan(x),
        M::Atan2 => libm::atan2(x, y),
        M::Sinh => libm::sinh(x),
        M::Cosh => libm::cosh(x),
        M::Tanh => libm::tanh(x),
        M::Asinh => libm::asinh(x),
        M::Acosh if x < 1.0 => return Err(out_of_range()),
        M::Acosh => libm::acosh(x),
        M::Atanh if x.abs() > 1.0 => return Err(out_of_range()),
        M::Atanh => libm::atanh(x),
        M::Degrees => return checked_float(Float8, x / RADIANS_PER_DEGREE, is_finite, false),
        M::Radians => x * RADIANS_PER_DEGREE,
        M::Pi => std::f64::consts::PI,
        other => panic!("{other:?} is not of floats"),
    };
    Ok(value)
}

/// The constant with PostgreSQL's digits.
const RADIANS_PER_DEGREE: f64 = 0.017_453_292_519_943_295;

fn power(x: f64, y: f64) -> Result<f64, SqlError> {
    if x == 0.0 && y < 0.0 {
        let message = "zero raised to a negative power is undefined";
        return Err(domain(message, code::POWER_ARGUMENT));
    }
    if x < 0.0 && x.is_finite() && y.is_finite() && y.fract() != 0.0 {
        let message = "a negative number raised to a non-integer power yields a complex result";
        return Err(domain(message, code::POWER_ARGUMENT));
    }
    let is_finite = x.is_finite() && y.is_finite();
    checked_float(Float8, libm::pow(x, y), is_finite, is_finite && x != 0.0)
}
