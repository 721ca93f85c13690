//! `numeric`: exact decimals with PostgreSQL's display scale.
//!
//! A value is `unscaled / 10^scale`. The scale affects the display (`1.50`) but not comparisons
//! (`1.50 = 1.5`). NaN and the infinities are not supported.
//!
//! Nearly all numbers have few digits. An unscaled value that fits in 64 bits is stored in place,
//! and is added, compared and rounded without an allocation. Others are integers of any length.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use num_bigint::{BigInt, Sign};
use num_traits::ToPrimitive;

use super::ColumnType;
use crate::error::{SqlError, code};

/// Maximum number of digits after the decimal point in a result, as in PostgreSQL.
const SCALE_MAX: u32 = 1_000;
/// Maximum number of digits before the decimal point.
const WHOLE_DIGITS_MAX: u64 = 131_072;
/// Minimum number of significant digits of a quotient.
const QUOTIENT_DIGITS_MIN: i64 = 16;
/// PostgreSQL computes in base 10,000: each digit is four decimal digits.
const GROUP_DIGITS: i64 = 4;

/// An exact decimal number.
#[derive(Clone, Debug)]
pub struct Numeric {
    unscaled: Unscaled,
    scale: u32,
}

/// The value times ten to the scale.
#[derive(Clone, Debug)]
enum Unscaled {
    Short(i64),
    /// Boxed because it is rare, and so that it does not enlarge the values of rows.
    Long(Box<BigInt>),
}

impl Numeric {
    /// Returns `unscaled / 10^scale`.
    pub fn new(unscaled: BigInt, scale: u32) -> Self {
        let unscaled = match unscaled.to_i64() {
            Some(short) => Unscaled::Short(short),
            None => Unscaled::Long(Box::new(unscaled)),
        };
        Self { unscaled, scale }
    }

    /// Returns the same for an integer that may fit in 64 bits.
    fn of(unscaled: i128, scale: u32) -> Self {
        match i64::try_from(unscaled) {
            Ok(short) => Self { unscaled: Unscaled::Short(short), scale },
            Err(_) => Self::new(unscaled.into(), scale),
        }
    }

    /// Returns the number of digits that are displayed after the decimal point.
    pub fn scale(&self) -> u32 {
        self.scale
    }

    /// The value times ten to the scale.
    pub fn unscaled(&self) -> Cow<'_, BigInt> {
        match &self.unscaled {
            Unscaled::Short(short) => Cow::Owned((*short).into()),
            Unscaled::Long(long) => Cow::Borrowed(long),
        }
    }

    /// Returns the unscaled value if it fits in 64 bits.
    fn short(&self) -> Option<i64> {
        match self.unscaled {
            Unscaled::Short(short) => Some(short),
            Unscaled::Long(_) => None,
        }
    }

    /// Returns the value times ten to a scale that is not smaller, if value and power fit in 64
    /// bits.
    fn short_at(&self, scale: u32) -> Option<i128> {
        // Both factors have at most 19 digits, so the product fits.
        let power = i128::from(10i64.checked_pow(scale - self.scale)?);
        Some(i128::from(self.short()?) * power)
    }

    /// Returns the approximate heap memory in bytes, without the value itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.unscaled {
            Unscaled::Short(_) => 0,
            Unscaled::Long(long) => size_of::<BigInt>() + (long.bits() / 8) as usize,
        }
    }

    /// Calls `then` with the unscaled value in two's complement, in the fewest bytes, lowest first.
    pub fn with_bytes<T>(&self, then: impl FnOnce(&[u8]) -> T) -> T {
        let Some(short) = self.short() else {
            return then(&self.unscaled().to_signed_bytes_le());
        };
        let bytes = short.to_le_bytes();
        // Number of bits, with one bit for the sign.
        let bits = i64::BITS - (short ^ (short >> 63)).leading_zeros() + 1;
        then(&bytes[..bits.div_ceil(8) as usize])
    }

    /// Returns the number with the bytes of [`Numeric::with_bytes`] and a scale.
    pub fn from_bytes(bytes: &[u8], scale: u32) -> Self {
        let mut short = [0; 8];
        match (short.get_mut(..bytes.len()), bytes.last()) {
            (Some(low), Some(last)) => {
                low.copy_from_slice(bytes);
                if last & 0x80 != 0 {
                    short[bytes.len()..].fill(0xff);
                }
                Self { unscaled: Unscaled::Short(i64::from_le_bytes(short)), scale }
            }
            _ => Self::new(BigInt::from_signed_bytes_le(bytes), scale),
        }
    }

    /// Returns whether it is 0.
    pub fn is_zero(&self) -> bool {
        self.signum() == 0
    }

    /// Returns the sign: -1, 0 or 1.
    pub fn signum(&self) -> i64 {
        match &self.unscaled {
            Unscaled::Short(short) => short.signum(),
            Unscaled::Long(long) => match long.sign() {
                Sign::Minus => -1,
                Sign::NoSign => 0,
                Sign::Plus => 1,
            },
        }
    }

    /// Returns the decimal digits without leading and trailing zeros, and the power of ten of the
    /// first digit. Returns `None` for 0.
    pub fn significant(&self) -> Option<(Vec<u8>, i64)> {
        if self.is_zero() {
            return None;
        }
        let mut digits = self.digits().into_bytes();
        let exponent = digits.len() as i64 - 1 - i64::from(self.scale);
        let kept = digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
        digits.truncate(kept);
        Some((digits, exponent))
    }

    /// Returns the decimal digits of the unscaled value.
    fn digits(&self) -> String {
        match &self.unscaled {
            Unscaled::Short(short) => short.unsigned_abs().to_string(),
            Unscaled::Long(long) => long.magnitude().to_str_radix(10),
        }
    }

    fn unscaled_at(&self, scale: u32) -> BigInt {
        assert!(scale >= self.scale, "only ever more digits");
        if scale == self.scale {
            return self.unscaled().into_owned();
        }
        &*self.unscaled() * power_of_ten(scale - self.scale)
    }

    /// Returns the sum.
    pub fn add(&self, other: &Self) -> Self {
        let scale = self.scale.max(other.scale);
        match (self.short_at(scale), other.short_at(scale)) {
            // Both are below 10^37, so the sum fits.
            (Some(a), Some(b)) => Self::of(a + b, scale),
            _ => Self::new(self.unscaled_at(scale) + other.unscaled_at(scale), scale),
        }
    }

    /// Returns the difference.
    pub fn subtract(&self, other: &Self) -> Self {
        self.add(&other.negate())
    }

    /// Returns the negated value.
    pub fn negate(&self) -> Self {
        match self.short() {
            Some(short) => Self::of(-i128::from(short), self.scale),
            None => Self::new(-&*self.unscaled(), self.scale),
        }
    }

    /// Returns the absolute value.
    pub fn abs(&self) -> Self {
        if self.signum() < 0 { self.negate() } else { self.clone() }
    }

    /// Returns the product.
    ///
    /// # Errors
    /// If it has too many digits.
    pub fn multiply(&self, other: &Self) -> Result<Self, SqlError> {
        let scale = self.scale + other.scale;
        let product = match (self.short(), other.short()) {
            (Some(a), Some(b)) => Self::of(i128::from(a) * i128::from(b), scale),
            _ => Self::new(&*self.unscaled() * &*other.unscaled(), scale),
        };
        if product.scale > SCALE_MAX { product.round(SCALE_MAX) } else { product }.bounded()
    }

    /// Returns the quotient, with PostgreSQL's choice of scale.
    ///
    /// # Errors
    /// If the divisor is 0, or the quotient has too many digits.
    pub fn divide(&self, other: &Self) -> Result<Self, SqlError> {
        if other.is_zero() {
            return Err(division_by_zero());
        }
        let scale = quotient_scale(self, other);
        // One digit more than needed determines the rounding. Further digits cannot change it.
        let dividend = &*self.unscaled() * power_of_ten(scale + 1 + other.scale - self.scale);
        Self::new(dividend / &*other.unscaled(), scale + 1).round(scale).bounded()
    }

    /// Returns the remainder of the truncated quotient. It has the sign of the dividend.
    ///
    /// # Errors
    /// If the divisor is 0.
    pub fn remainder(&self, other: &Self) -> Result<Self, SqlError> {
        if other.is_zero() {
            return Err(division_by_zero());
        }
        let scale = self.scale.max(other.scale);
        Ok(Self::new(self.unscaled_at(scale) % other.unscaled_at(scale), scale))
    }

    /// Returns the square root with PostgreSQL's number of digits; `None` for a negative number.
    pub fn square_root(&self) -> Option<Self> {
        if self.signum() < 0 {
            return None;
        }
        let exponent = self.significant().map_or(0, |(_, exponent)| exponent);
        // PostgreSQL counts in groups of four digits.
        let before_point = exponent.div_euclid(4) * 2 + 1;
        let scale = (16 - before_point).max(self.scale.into()).clamp(0, 1_000) as u32;
        Some(self.root_at(scale))
    }

    /// Returns the square root of a number that is not negative, rounded to `scale` digits.
    pub fn root_at(&self, scale: u32) -> Self {
        let guard = scale + 8;
        let root = self.round(2 * guard).unscaled().sqrt();
        Self::new(root, guard).round(scale)
    }

    /// Rounds half away from zero to `scale` digits, or pads with zeros.
    #[must_use]
    pub fn round(&self, scale: u32) -> Self {
        if scale == self.scale {
            return self.clone();
        }
        if scale > self.scale {
            return match self.short_at(scale) {
                Some(unscaled) => Self::of(unscaled, scale),
                None => Self::new(self.unscaled_at(scale), scale),
            };
        }
        let short_unit = 10u64.checked_pow(self.scale - scale);
        if let (Some(short), Some(unit)) = (self.short(), short_unit) {
            let (short, unit) = (i128::from(short), i128::from(unit));
            return Self::of((short + short.signum() * (unit / 2)) / unit, scale);
        }
        let unit = power_of_ten(self.scale - scale);
        let half = &unit / 2u32;
        let away = if self.signum() < 0 { -half } else { half };
        Self::new((&*self.unscaled() + away) / unit, scale)
    }

    /// Rounds to a power of ten. Negative `digits` round before the decimal point.
    #[must_use]
    pub fn round_at(&self, digits: i64) -> Self {
        let digits = digits.clamp(-(WHOLE_DIGITS_MAX as i64), i64::from(SCALE_MAX));
        if digits >= 0 {
            return self.round(digits as u32);
        }
        let unit = power_of_ten(digits.unsigned_abs() as u32);
        let scale = self.scale + digits.unsigned_abs() as u32;
        let shifted = Self { unscaled: self.unscaled.clone(), scale };
        Self::new(&*shifted.round(0).unscaled() * unit, 0)
    }

    /// Truncates to `digits` after the decimal point.
    #[must_use]
    pub fn truncate_at(&self, digits: i64) -> Self {
        let digits = digits.clamp(-(WHOLE_DIGITS_MAX as i64), i64::from(SCALE_MAX));
        let scale = digits.max(0) as u32;
        if i64::from(self.scale) <= digits {
            return Self::new(self.unscaled_at(scale), scale);
        }
        let unit = power_of_ten((i64::from(self.scale) - digits) as u32);
        let cut = &*self.unscaled() / unit;
        let zeros = power_of_ten(digits.min(0).unsigned_abs() as u32);
        Self::new(cut * zeros, scale)
    }

    /// Returns the largest whole number that is not greater.
    #[must_use]
    pub fn floor(&self) -> Self {
        let cut = self.truncate_at(0);
        let is_exact = cut.cmp(self) == Ordering::Equal;
        if is_exact || self.signum() >= 0 { cut } else { cut.add(&Self::from(-1)) }
    }

    /// Returns the smallest whole number that is not less.
    #[must_use]
    pub fn ceil(&self) -> Self {
        self.negate().floor().negate()
    }

    /// Returns the nearest whole number, if it fits in 64 bits.
    pub fn to_i64(&self) -> Option<i64> {
        self.round(0).short()
    }

    /// Returns the nearest double.
    pub fn to_f64(&self) -> f64 {
        self.to_string().parse().expect("a decimal number is a double")
    }

    /// Converts a double as PostgreSQL does: to `digits` significant digits, without trailing
    /// zeros.
    ///
    /// # Errors
    /// If the double is NaN or infinite.
    pub fn from_f64(value: f64, digits: usize) -> Result<Self, SqlError> {
        if !value.is_finite() {
            return Err(SqlError::unsupported("NaN or infinity in type numeric"));
        }
        let parsed: Self = format!("{value:.*e}", digits - 1).parse()?;
        let needed = parsed
            .significant()
            .map_or(0, |(digits, exponent)| (digits.len() as i64 - 1 - exponent).max(0));
        Ok(parsed.round(needed as u32))
    }

    /// Rounds to a column's scale.
    ///
    /// # Errors
    /// If it does not fit the column's precision.
    pub fn fit(&self, target: ColumnType) -> Result<Self, SqlError> {
        let Some((precision, scale)) = target.precision_and_scale() else {
            return Ok(self.clone());
        };
        let rounded = self.round(scale);
        let is_short = || Some(rounded.short()?.unsigned_abs() < 10u64.checked_pow(precision)?);
        let is_any = || rounded.unscaled().magnitude() < power_of_ten(precision).magnitude();
        if is_short().unwrap_or_else(is_any) {
            return Ok(rounded);
        }
        let whole = precision - scale;
        let bound = if whole == 0 { "1".to_owned() } else { format!("10^{whole}") };
        let detail = format!(
            "A field with precision {precision}, scale {scale} must round to an absolute value \
             less than {bound}."
        );
        Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "numeric field overflow").with_detail(detail))
    }

    fn bounded(self) -> Result<Self, SqlError> {
        let bits_max = WHOLE_DIGITS_MAX * 4 + u64::from(self.scale) * 4;
        match &self.unscaled {
            Unscaled::Long(long) if long.bits() > bits_max => Err(overflow()),
            _ => Ok(self),
        }
    }
}

/// Returns the error of `x / 0`.
pub fn division_by_zero() -> SqlError {
    SqlError::new(code::DIVISION_BY_ZERO, "division by zero")
}

/// Returns the error of a number that is too large, or has too many digits.
pub fn overflow() -> SqlError {
    SqlError::new(code::NUMERIC_OUT_OF_RANGE, "value overflows numeric format")
}

fn power_of_ten(exponent: u32) -> BigInt {
    match 10u64.checked_pow(exponent) {
        Some(power) => BigInt::from(power),
        None => BigInt::from(10u32).pow(exponent),
    }
}

/// Returns the weight of the first group of four digits, and that group.
fn first_group(value: &Numeric) -> (i64, u32) {
    let Some((digits, exponent)) = value.significant() else { return (0, 0) };
    let weight = exponent.div_euclid(GROUP_DIGITS);
    let in_group = exponent.rem_euclid(GROUP_DIGITS) as usize + 1;
    let digit = |at: usize| u32::from(digits.get(at).map_or(0, |digit| digit - b'0'));
    (weight, (0..in_group).fold(0, |group, at| group * 10 + digit(at)))
}

/// Returns the scale of a quotient: 16 significant digits, and no fewer digits than either operand
/// displays. This is the rule of PostgreSQL's `select_div_scale`.
fn quotient_scale(dividend: &Numeric, divisor: &Numeric) -> u32 {
    let (weight1, first1) = first_group(dividend);
    let (weight2, first2) = first_group(divisor);
    let weight = weight1 - weight2 - i64::from(first1 <= first2);
    let scale = QUOTIENT_DIGITS_MIN - weight * GROUP_DIGITS;
    let scale = scale.max(dividend.scale.into()).max(divisor.scale.into());
    scale.clamp(0, SCALE_MAX.into()) as u32
}

impl From<i64> for Numeric {
    fn from(value: i64) -> Self {
        Self { unscaled: Unscaled::Short(value), scale: 0 }
    }
}

impl FromStr for Numeric {
    type Err = SqlError;

    fn from_str(text: &str) -> Result<Self, SqlError> {
        let trimmed = text.trim();
        let invalid = || {
            let message = format!("invalid input syntax for type numeric: \"{text}\"");
            SqlError::new(code::INVALID_TEXT, message)
        };
        let unsigned = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
        if ["nan", "inf", "infinity"].contains(&unsigned.to_ascii_lowercase().as_str()) {
            return Err(SqlError::unsupported("NaN or infinity in type numeric"));
        }
        let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
            Some(at) => {
                let exponent = &unsigned[at + 1..];
                (&unsigned[..at], exponent.parse::<i32>().map_err(|_| invalid())?)
            }
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let scale = fraction.len() as i64 - i64::from(exponent);
        if scale.unsigned_abs() > WHOLE_DIGITS_MAX || digits.len() as u64 > 2 * WHOLE_DIGITS_MAX {
            return Err(overflow());
        }
        let mut unscaled = BigInt::from_str(&digits).map_err(|_| invalid())?;
        if scale < 0 {
            unscaled *= power_of_ten(scale.unsigned_abs() as u32);
        }
        if trimmed.starts_with('-') {
            unscaled = -unscaled;
        }
        Self::new(unscaled, scale.max(0) as u32).bounded()
    }
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits();
        let scale = self.scale as usize;
        let sign = if self.signum() < 0 { "-" } else { "" };
        if scale == 0 {
            return write!(f, "{sign}{digits}");
        }
        let digits = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        write!(f, "{sign}{whole}.{fraction}")
    }
}

impl PartialEq for Numeric {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Numeric {}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Numeric {
    fn cmp(&self, other: &Self) -> Ordering {
        let scale = self.scale.max(other.scale);
        match (self.short_at(scale), other.short_at(scale)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => self.unscaled_at(scale).cmp(&other.unscaled_at(scale)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn n(text: &str) -> Numeric {
        text.parse().unwrap()
    }

    #[test]
    fn text_keeps_its_scale_and_compares_without_it() {
        for text in ["0", "1.50", "-0.001", "123456789012345678901234567890.5"] {
            assert_eq!(n(text).to_string(), text);
        }
        assert_eq!(n("1.50"), n("1.5"));
        assert!(n("-2") < n("-1.999"));
        assert_eq!(n("1.5e3").to_string(), "1500");
        assert_eq!(n("15e-3").to_string(), "0.015");
        assert!("1.2.3".parse::<Numeric>().is_err() && "".parse::<Numeric>().is_err());
    }

    #[test]
    fn quotients_have_the_scale_that_postgresql_gives_them() {
        let cases = [
            ("1", "3", "0.33333333333333333333"),
            ("10", "3", "3.3333333333333333"),
            ("2", "3", "0.66666666666666666667"),
            ("1.0", "8", "0.12500000000000000000"),
            ("100000", "7", "14285.714285714286"),
        ];
        for (a, b, expected) in cases {
            assert_eq!(n(a).divide(&n(b)).unwrap().to_string(), expected, "{a} / {b}");
        }
        assert_eq!(n("1").divide(&n("0")).unwrap_err().code.as_str(), "22012");
    }

    /// Returns the same number, not stored in place.
    fn long(number: &Numeric) -> Numeric {
        Numeric { unscaled: Unscaled::Long(Box::new(number.unscaled().into_owned())), ..*number }
    }

    fn short_or_not() -> impl Strategy<Value = Numeric> {
        let edges = vec![0, 1, -1, 127, 128, -128, -129, i64::MAX, i64::MIN, i64::MIN + 1];
        let value = prop_oneof![any::<i64>(), -1000..1000i64, proptest::sample::select(edges)];
        (value, prop_oneof![0..4u32, 0..40u32])
            .prop_map(|(value, scale)| Numeric { unscaled: Unscaled::Short(value), scale })
    }

    proptest! {
        #[test]
        fn a_number_in_place_computes_as_one_of_any_length(
            a in short_or_not(), b in short_or_not(), digits in 0..40u32
        ) {
            let (la, lb) = (long(&a), long(&b));
            let same = |a: &Numeric, b: &Numeric| {
                assert_eq!((a.to_string(), a.scale), (b.to_string(), b.scale));
                assert_eq!(a.short(), a.unscaled().to_i64(), "in place exactly where it fits");
            };
            same(&a.add(&b), &la.add(&lb));
            same(&a.subtract(&b), &la.subtract(&lb));
            same(&a.multiply(&b).unwrap(), &la.multiply(&lb).unwrap());
            same(&a.round(digits), &la.round(digits));
            same(&a.negate(), &la.negate());
            same(&a.abs(), &la.abs());
            prop_assert_eq!(a.cmp(&b), la.cmp(&lb));
            let bytes = a.with_bytes(<[u8]>::to_vec);
            prop_assert_eq!(&bytes, &la.unscaled().to_signed_bytes_le());
            same(&Numeric::from_bytes(&bytes, a.scale), &a);
            let product = la.multiply(&lb).unwrap();
            same(&product.with_bytes(|it| Numeric::from_bytes(it, product.scale)), &product);
        }
    }

    #[test]
    fn rounding_is_half_away_from_zero() {
        let cases = [("2.5", 0, "3"), ("-2.5", 0, "-3"), ("2.449", 1, "2.4"), ("155", -1, "160")];
        for (value, digits, expected) in cases {
            assert_eq!(n(value).round_at(digits).to_string(), expected);
        }
        assert_eq!(n("-1.5").floor().to_string(), "-2");
        assert_eq!(n("-1.5").ceil().to_string(), "-1");
        assert_eq!(n("-1.59").truncate_at(1).to_string(), "-1.5");
    }

    #[test]
    fn a_column_bounds_its_digits() {
        let column = ColumnType::numeric(3, 2).unwrap();
        assert_eq!(n("1.005").fit(column).unwrap().to_string(), "1.01");
        let error = n("9.995").fit(column).unwrap_err();
        assert_eq!(error.code.as_str(), "22003");
        assert!(error.detail.unwrap().ends_with("less than 10^1."));
    }

    #[test]
    fn doubles_become_the_decimal_that_they_show() {
        assert_eq!(Numeric::from_f64(0.1, 15).unwrap().to_string(), "0.1");
        assert_eq!(Numeric::from_f64(-1234.5, 15).unwrap().to_string(), "-1234.5");
        assert_eq!(Numeric::from_f64(1e20, 15).unwrap().to_string(), "100000000000000000000");
    }
}
