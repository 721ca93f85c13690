//! Arbitrary-precision numbers as keys.
//!
//! A [`Decimal`] is a number in a normal form that does not depend on its scale. It has no zeros
//! before or after its digits, and the point is before the first digit: 0.012300 is `123 E -1`. Its
//! encoding begins with a class byte, which sorts the signs and the special values. A number other
//! than zero continues with the exponent, the digits two to a byte, and a terminator:
//!
//! ```text
//!   -Infinity  negative ...  zero  positive ...  Infinity  NaN
//!      01          02         03       04           05      06
//!
//!   exponent   -100 ..= 100   one byte, 128 + exponent
//!              beyond         ff and four bytes, or, below, 00 and four bytes
//!   digits     a byte 1 ..= 100 for each pair 00 ..= 99, a last lone digit as if a zero followed
//!   end        00
//!   negative   all bits after the class flipped
//! ```

use std::fmt;
use std::str::FromStr;

use crate::codec::{DecodeError, Reader};

const WHAT: &str = "numeric in key";

const CLASS_NEGATIVE_INFINITY: u8 = 1;
const CLASS_NEGATIVE: u8 = 2;
const CLASS_ZERO: u8 = 3;
const CLASS_POSITIVE: u8 = 4;
const CLASS_INFINITY: u8 = 5;
const CLASS_NAN: u8 = 6;

/// Exponents up to this absolute value take one byte.
const SHORT_EXPONENT_MAX: i32 = 100;
const SHORT_EXPONENT_BIAS: i32 = 128;
const LONG_NEGATIVE: u8 = 0;
const LONG_POSITIVE: u8 = u8::MAX;
const DIGITS_END: u8 = 0;

/// A numeric value in normal form: equal numbers are equal, whatever their scale.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decimal(Repr);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repr {
    NegativeInfinity,
    Zero,
    /// The value 0.d1 d2 d3 ... times 10 to the power of the exponent. The first and last digits
    /// are not zero.
    Finite {
        is_negative: bool,
        digits: Vec<u8>,
        exponent: i32,
    },
    Infinity,
    NaN,
}

/// An error for a number that is malformed or exceeds the limits of a PostgreSQL numeric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecimalError;

impl fmt::Display for DecimalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a number with at most 131072 digits before and 16383 after the point")
    }
}

impl std::error::Error for DecimalError {}

impl Decimal {
    /// Not a number. Equal to itself, and the largest value.
    pub const NAN: Self = Self(Repr::NaN);
    /// Greater than every number.
    pub const INFINITY: Self = Self(Repr::Infinity);
    /// Less than every number.
    pub const NEGATIVE_INFINITY: Self = Self(Repr::NegativeInfinity);
    /// Zero, of any sign and scale.
    pub const ZERO: Self = Self(Repr::Zero);

    /// PostgreSQL's limit of digits before the point.
    const INTEGER_DIGITS_MAX: usize = 131_072;
    /// PostgreSQL's limit of digits after the point.
    const FRACTION_DIGITS_MAX: usize = 16_383;

    /// Creates a number from its decimal digits (0 to 9 each, most significant first), with the
    /// point before the last `scale` of them. A negative scale means zeros after the digits.
    ///
    /// # Errors
    /// If an element is not a digit, or the number exceeds PostgreSQL's limits.
    pub fn from_digits(is_negative: bool, digits: &[u8], scale: i32) -> Result<Self, DecimalError> {
        if digits.iter().any(|&digit| digit > 9) {
            return Err(DecimalError);
        }
        let Some(first) = digits.iter().position(|&digit| digit != 0) else {
            return Ok(Self::ZERO);
        };
        let last = digits.iter().rposition(|&digit| digit != 0).unwrap_or(first);
        let exponent = (digits.len() - first) as i64 - i64::from(scale);
        let significant = &digits[first..=last];
        let exponent = Self::checked_exponent(exponent, significant.len()).ok_or(DecimalError)?;
        Ok(Self(Repr::Finite { is_negative, digits: significant.to_vec(), exponent }))
    }

    /// The exponent, if a number with this many digits is within PostgreSQL's limits.
    fn checked_exponent(exponent: i64, digits: usize) -> Option<i32> {
        let is_small_enough = exponent <= Self::INTEGER_DIGITS_MAX as i64;
        let is_fine_enough = digits as i64 - exponent <= Self::FRACTION_DIGITS_MAX as i64;
        (is_small_enough && is_fine_enough).then_some(exponent as i32)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (is_negative, digits, exponent) = match &self.0 {
            Repr::NegativeInfinity => return out.push(CLASS_NEGATIVE_INFINITY),
            Repr::Zero => return out.push(CLASS_ZERO),
            Repr::Infinity => return out.push(CLASS_INFINITY),
            Repr::NaN => return out.push(CLASS_NAN),
            Repr::Finite { is_negative, digits, exponent } => (*is_negative, digits, *exponent),
        };
        out.push(if is_negative { CLASS_NEGATIVE } else { CLASS_POSITIVE });
        let start = out.len();
        if exponent.abs() <= SHORT_EXPONENT_MAX {
            out.push((exponent + SHORT_EXPONENT_BIAS) as u8);
        } else {
            out.push(if exponent > 0 { LONG_POSITIVE } else { LONG_NEGATIVE });
            out.extend_from_slice(&(exponent ^ i32::MIN).to_be_bytes());
        }
        for pair in digits.chunks(2) {
            out.push(pair[0] * 10 + pair.get(1).copied().unwrap_or(0) + 1);
        }
        out.push(DIGITS_END);
        if is_negative {
            out[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }

    /// Decodes the bytes that [`Decimal::encode`] wrote, each XORed with `mask`.
    pub(super) fn decode(from: &mut Reader<'_>, mask: u8) -> Result<Self, DecodeError> {
        let is_negative = match from.u8(WHAT)? ^ mask {
            CLASS_NEGATIVE_INFINITY => return Ok(Self::NEGATIVE_INFINITY),
            CLASS_ZERO => return Ok(Self::ZERO),
            CLASS_INFINITY => return Ok(Self::INFINITY),
            CLASS_NAN => return Ok(Self::NAN),
            CLASS_NEGATIVE => true,
            CLASS_POSITIVE => false,
            _ => return Err(DecodeError::new(WHAT)),
        };
        let mask = if is_negative { !mask } else { mask };
        let exponent = decode_exponent(from, mask)?;
        let mut digits = Vec::new();
        loop {
            match from.u8(WHAT)? ^ mask {
                DIGITS_END => break,
                pair @ 1..=100 => digits.extend([(pair - 1) / 10, (pair - 1) % 10]),
                _ => return Err(DecodeError::new(WHAT)),
            }
        }
        if digits.last() == Some(&0) {
            digits.pop();
        }
        // Rejects other encodings of the same number.
        let is_normal = digits.first().is_some_and(|&d| d != 0) && digits.last() != Some(&0);
        let exponent = Self::checked_exponent(i64::from(exponent), digits.len());
        let exponent = exponent.filter(|_| is_normal).ok_or(DecodeError::new(WHAT))?;
        Ok(Self(Repr::Finite { is_negative, digits, exponent }))
    }
}

fn decode_exponent(from: &mut Reader<'_>, mask: u8) -> Result<i32, DecodeError> {
    let short = from.u8(WHAT)? ^ mask;
    if short != LONG_NEGATIVE && short != LONG_POSITIVE {
        let exponent = i32::from(short) - SHORT_EXPONENT_BIAS;
        let is_short = exponent.abs() <= SHORT_EXPONENT_MAX;
        return is_short.then_some(exponent).ok_or(DecodeError::new(WHAT));
    }
    let bytes = from.take(4, WHAT)?.first_chunk::<4>().ok_or(DecodeError::new(WHAT))?;
    let exponent = i32::from_be_bytes(bytes.map(|byte| byte ^ mask)) ^ i32::MIN;
    let is_long = match short {
        LONG_POSITIVE => exponent > SHORT_EXPONENT_MAX,
        _ => exponent < -SHORT_EXPONENT_MAX,
    };
    is_long.then_some(exponent).ok_or(DecodeError::new(WHAT))
}

impl FromStr for Decimal {
    type Err = DecimalError;

    /// Parses an optional sign and digits with an optional point, or `NaN`, `Infinity` or
    /// `-Infinity` in PostgreSQL's spelling. Exponents and spaces are not accepted.
    fn from_str(text: &str) -> Result<Self, DecimalError> {
        match text {
            "NaN" => return Ok(Self::NAN),
            "Infinity" => return Ok(Self::INFINITY),
            "-Infinity" => return Ok(Self::NEGATIVE_INFINITY),
            _ => {}
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (integer, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let ascii = integer.bytes().chain(fraction.bytes());
        let digits: Vec<u8> = ascii.map(|byte| byte.wrapping_sub(b'0')).collect();
        if digits.is_empty() {
            return Err(DecimalError);
        }
        let scale = i32::try_from(fraction.len()).map_err(|_| DecimalError)?;
        Self::from_digits(text.starts_with('-'), &digits, scale)
    }
}

impl fmt::Display for Decimal {
    /// Writes the number with the minimum number of digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_negative, digits, exponent) = match &self.0 {
            Repr::NegativeInfinity => return f.write_str("-Infinity"),
            Repr::Zero => return f.write_str("0"),
            Repr::Infinity => return f.write_str("Infinity"),
            Repr::NaN => return f.write_str("NaN"),
            Repr::Finite { is_negative, digits, exponent } => (*is_negative, digits, *exponent),
        };
        let digit_at = |place: i64| {
            let index = i64::from(exponent) - 1 - place;
            let digit = usize::try_from(index).ok().and_then(|index| digits.get(index));
            char::from(b'0' + digit.copied().unwrap_or(0))
        };
        let mut text = String::from(if is_negative { "-" } else { "" });
        text.extend((0..=i64::from(exponent - 1).max(0)).rev().map(digit_at));
        let fraction_len = digits.len() as i64 - i64::from(exponent);
        if fraction_len > 0 {
            text.push('.');
            text.extend((1..=fraction_len).map(|place| digit_at(-place)));
        }
        f.write_str(&text)
    }
}
