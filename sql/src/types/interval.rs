//! `interval`: months, days and microseconds. PostgreSQL stores them separately because a month has
//! no fixed number of days and a day no fixed number of hours. Only comparisons count a month as 30
//! days and a day as 24 hours.
//!
//! Fractions carry downwards: of a month into days, of a day into microseconds. The floating-point
//! arithmetic uses only the basic operations of IEEE 754, which are identical to the last bit on
//! every machine.

mod parse;

use std::fmt;

use super::datetime::{MICROS_PER_DAY, MICROS_PER_SECOND};
use super::numeric::division_by_zero;
use crate::error::{SqlError, code};

/// Months in a year.
pub const MONTHS_PER_YEAR: i32 = 12;
/// Days in a month, when a month is converted to days.
pub const DAYS_PER_MONTH: i32 = 30;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// A span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Months, including those of years.
    pub months: i32,
    /// Days, including those of weeks.
    pub days: i32,
    /// Microseconds.
    pub micros: i64,
}

/// Returns the error of an interval with a field that is too large.
pub fn out_of_range() -> SqlError {
    SqlError::new(code::DATETIME_OVERFLOW, "interval out of range")
}

impl Interval {
    /// Returns an interval of microseconds.
    pub fn from_micros(micros: i64) -> Self {
        Self { months: 0, days: 0, micros }
    }

    /// Parses an interval in PostgreSQL's format, the verbose format, the SQL standard's, or ISO
    /// 8601's.
    ///
    /// # Errors
    /// If it is malformed, or a field is too large.
    pub fn parse(text: &str) -> Result<Self, SqlError> {
        parse::parse(text, "second")
    }

    /// Parses an interval whose last number without a unit counts `unit`s. Truncates the fields
    /// below the unit. An example is `INTERVAL '1' DAY`.
    ///
    /// # Errors
    /// If it is malformed, or a field is too large.
    pub fn parse_in(text: &str, unit: &str) -> Result<Self, SqlError> {
        Ok(parse::parse(text, unit)?.truncate_to(unit))
    }

    fn truncate_to(self, unit: &str) -> Self {
        let Self { months, days, micros } = self;
        let step = match unit {
            "year" => {
                return Self { months: months / 12 * 12, ..Self::default() };
            }
            "month" => return Self { months, ..Self::default() },
            "day" => return Self { months, days, micros: 0 },
            "hour" => 3_600 * MICROS_PER_SECOND,
            "minute" => 60 * MICROS_PER_SECOND,
            _ => 1,
        };
        Self { months, days, micros: micros / step * step }
    }

    /// Returns the length in microseconds, with months of 30 days and days of 24 hours. Comparisons
    /// use it.
    pub fn micros_in_all(self) -> i128 {
        let days = i128::from(self.months) * i128::from(DAYS_PER_MONTH) + i128::from(self.days);
        days * i128::from(MICROS_PER_DAY) + i128::from(self.micros)
    }

    /// Returns the length in whole days and the remaining microseconds.
    pub fn whole_days(self) -> (i64, i64) {
        let (all, day) = (self.micros_in_all(), i128::from(MICROS_PER_DAY));
        (all.div_euclid(day) as i64, all.rem_euclid(day) as i64)
    }

    /// Returns an interval of this length. It has only days and microseconds if the days are in
    /// range.
    pub fn of_length(micros: i128) -> Option<Self> {
        let day = i128::from(MICROS_PER_DAY);
        let (days, rest) = (micros / day, (micros % day) as i64);
        if let Ok(days) = i32::try_from(days) {
            return Some(Self { months: 0, days, micros: rest });
        }
        let month = i128::from(DAYS_PER_MONTH);
        let months = i32::try_from(days / month).ok()?;
        Some(Self { months, days: (days % month) as i32, micros: rest })
    }

    /// Returns the sum, field by field.
    ///
    /// # Errors
    /// If a field is too large.
    pub fn plus(self, other: Self) -> Result<Self, SqlError> {
        let months = self.months.checked_add(other.months).ok_or_else(out_of_range)?;
        let days = self.days.checked_add(other.days).ok_or_else(out_of_range)?;
        let micros = self.micros.checked_add(other.micros).ok_or_else(out_of_range)?;
        Ok(Self { months, days, micros })
    }

    /// Returns the negated interval.
    ///
    /// # Errors
    /// If a field is the minimum of its type.
    pub fn negate(self) -> Result<Self, SqlError> {
        let months = self.months.checked_neg().ok_or_else(out_of_range)?;
        let days = self.days.checked_neg().ok_or_else(out_of_range)?;
        let micros = self.micros.checked_neg().ok_or_else(out_of_range)?;
        Ok(Self { months, days, micros })
    }

    /// Multiplies by a number.
    ///
    /// # Errors
    /// If a field is too large, or the factor is NaN.
    pub fn multiply(self, factor: f64) -> Result<Self, SqlError> {
        self.scale(|part| part * factor)
    }

    /// Divides by a number.
    ///
    /// # Errors
    /// If a field is too large, or the divisor is 0 or NaN.
    pub fn divide(self, divisor: f64) -> Result<Self, SqlError> {
        if divisor == 0.0 {
            return Err(division_by_zero());
        }
        self.scale(|part| part / divisor)
    }

    /// Implements PostgreSQL's `interval_mul` and `interval_div`.
    fn scale(self, by: impl Fn(f64) -> f64) -> Result<Self, SqlError> {
        let (exact_months, exact_days) = (by(self.months.into()), by(self.days.into()));
        let months = whole_i32(exact_months)?;
        let mut days = whole_i32(exact_days)?;
        let month_rest = rounded((exact_months - f64::from(months)) * f64::from(DAYS_PER_MONTH));
        let mut seconds = rounded(
            (exact_days - f64::from(days) + month_rest - month_rest.trunc()) * SECONDS_PER_DAY,
        );
        if seconds.abs() >= SECONDS_PER_DAY {
            let carried = (seconds / SECONDS_PER_DAY).trunc();
            days = days.checked_add(carried as i32).ok_or_else(out_of_range)?;
            seconds -= carried * SECONDS_PER_DAY;
        }
        days = days.checked_add(month_rest as i32).ok_or_else(out_of_range)?;
        let micros =
            (by(self.micros as f64) + seconds * MICROS_PER_SECOND as f64).round_ties_even();
        // 2^63 is the first value that does not fit.
        let limit = 9_223_372_036_854_775_808.0;
        if !(micros >= -limit && micros < limit) {
            return Err(out_of_range());
        }
        Ok(Self { months, days, micros: micros as i64 })
    }

    /// Moves whole days from the hours to the days: `justify_hours`.
    ///
    /// # Errors
    /// If there are too many days.
    pub fn justify_hours(self) -> Result<Self, SqlError> {
        let whole = i32::try_from(self.micros / MICROS_PER_DAY).map_err(|_| out_of_range())?;
        let mut days = self.days.checked_add(whole).ok_or_else(out_of_range)?;
        let mut micros = self.micros % MICROS_PER_DAY;
        if days > 0 && micros < 0 {
            (days, micros) = (days - 1, micros + MICROS_PER_DAY);
        } else if days < 0 && micros > 0 {
            (days, micros) = (days + 1, micros - MICROS_PER_DAY);
        }
        Ok(Self { days, micros, ..self })
    }

    /// Moves whole months from the days to the months: `justify_days`.
    ///
    /// # Errors
    /// If there are too many months.
    pub fn justify_days(self) -> Result<Self, SqlError> {
        let mut months =
            self.months.checked_add(self.days / DAYS_PER_MONTH).ok_or_else(out_of_range)?;
        let mut days = self.days % DAYS_PER_MONTH;
        if months > 0 && days < 0 {
            (months, days) = (months - 1, days + DAYS_PER_MONTH);
        } else if months < 0 && days > 0 {
            (months, days) = (months + 1, days - DAYS_PER_MONTH);
        }
        Ok(Self { months, days, ..self })
    }

    /// Combines `justify_days` and `justify_hours`, and gives all fields the same sign:
    /// `justify_interval`.
    ///
    /// # Errors
    /// If a field is too large.
    pub fn justify(self) -> Result<Self, SqlError> {
        let Self { mut months, mut days, micros } = self;
        // Reduces the days first, because adding the hours could make them overflow.
        if (days > 0 && micros > 0) || (days < 0 && micros < 0) {
            months = months.checked_add(days / DAYS_PER_MONTH).ok_or_else(out_of_range)?;
            days %= DAYS_PER_MONTH;
        }
        let whole = i32::try_from(micros / MICROS_PER_DAY).map_err(|_| out_of_range())?;
        let mut micros = micros % MICROS_PER_DAY;
        days = days.checked_add(whole).ok_or_else(out_of_range)?;
        months = months.checked_add(days / DAYS_PER_MONTH).ok_or_else(out_of_range)?;
        days %= DAYS_PER_MONTH;
        if months > 0 && (days < 0 || (days == 0 && micros < 0)) {
            (months, days) = (months - 1, days + DAYS_PER_MONTH);
        } else if months < 0 && (days > 0 || (days == 0 && micros > 0)) {
            (months, days) = (months + 1, days - DAYS_PER_MONTH);
        }
        if days > 0 && micros < 0 {
            (days, micros) = (days - 1, micros + MICROS_PER_DAY);
        } else if days < 0 && micros > 0 {
            (days, micros) = (days + 1, micros - MICROS_PER_DAY);
        }
        Ok(Self { months, days, micros })
    }

    /// Rounds to `digits` of a second, half away from zero.
    #[must_use]
    pub fn round_to_digits(self, digits: i32) -> Self {
        let unit = 10i64.pow((6 - digits.clamp(0, 6)) as u32);
        let away = if self.micros < 0 { -(unit / 2) } else { unit / 2 };
        Self { micros: self.micros.saturating_add(away) / unit * unit, ..self }
    }
}

/// Rounds to 6 decimal places, because a product or quotient may be inexact.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round_ties_even() / 1e6
}

fn whole_i32(value: f64) -> Result<i32, SqlError> {
    let is_in_range = value >= f64::from(i32::MIN) && value <= f64::from(i32::MAX);
    is_in_range.then_some(value as i32).ok_or_else(out_of_range)
}

impl fmt::Display for Interval {
    /// Formats in the style `postgres`: `1 year 2 mons -3 days +04:05:06.7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.months / MONTHS_PER_YEAR, "year"),
            (self.months % MONTHS_PER_YEAR, "mon"),
            (self.days, "day"),
        ];
        let (mut is_first, mut is_after_negative) = (true, false);
        for (value, unit) in parts.into_iter().filter(|(value, _)| *value != 0) {
            let blank = if is_first { "" } else { " " };
            let sign = if is_after_negative && value > 0 { "+" } else { "" };
            let plural = if value == 1 { "" } else { "s" };
            write!(f, "{blank}{sign}{value} {unit}{plural}")?;
            (is_first, is_after_negative) = (false, value < 0);
        }
        if !is_first && self.micros == 0 {
            return Ok(());
        }
        let blank = if is_first { "" } else { " " };
        let sign = match self.micros < 0 {
            true => "-",
            false if is_after_negative => "+",
            false => "",
        };
        let micros = self.micros.unsigned_abs();
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
        write!(f, "{blank}{sign}{hours:02}:{minutes:02}:{:02}", seconds % 60)?;
        if fraction != 0 {
            let digits = format!(".{fraction:06}");
            write!(f, "{}", digits.trim_end_matches('0'))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i(text: &str) -> Interval {
        Interval::parse(text).unwrap()
    }

    #[test]
    fn fractions_go_down_to_days_and_microseconds() {
        assert_eq!(i("1 mon").multiply(1.5).unwrap().to_string(), "1 mon 15 days");
        assert_eq!(i("1 day").divide(7.0).unwrap().to_string(), "03:25:42.857143");
        assert_eq!(i("1 year").divide(7.0).unwrap().to_string(), "1 mon 21 days 10:17:08.5344");
        assert_eq!(i("1 day").divide(0.0).unwrap_err().code.as_str(), "22012");
        assert_eq!(i("1 day").multiply(f64::NAN).unwrap_err().code.as_str(), "22008");
    }

    #[test]
    fn lengths_compare_and_come_back() {
        assert_eq!(i("1 mon").micros_in_all(), i("30 days").micros_in_all());
        for text in ["-178000000 years", "1 day -1 us", "178000000 years 1 day 01:00"] {
            let length = i(text).micros_in_all();
            assert_eq!(Interval::of_length(length).unwrap().micros_in_all(), length, "{text}");
        }
    }
}
