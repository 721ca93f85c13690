//! Interval literals: PostgreSQL's `DecodeInterval` and `DecodeISO8601Interval`.
//!
//! The words of a literal are read from the last to the first, so that a unit is known before its
//! number.

use super::{Interval, MONTHS_PER_YEAR, out_of_range};
use crate::error::{SqlError, code};
use crate::types::datetime::{MICROS_PER_DAY, MICROS_PER_SECOND};

/// Number of letters that distinguish units.
const UNIT_LETTERS: usize = 10;
/// Maximum number of words in a literal, as in PostgreSQL.
const WORDS_MAX: usize = 25;

/// The error in a literal.
enum Wrong {
    Format,
    /// A field is out of range.
    Field,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
    Decade,
    Century,
    Millennium,
}

/// Parses an interval whose last number without a unit counts `unit`s.
pub(super) fn parse(text: &str, unit: &str) -> Result<Interval, SqlError> {
    let last = Unit::named(unit).unwrap_or(Unit::Second);
    let decoded = match words(text).and_then(|words| decode(&words, last)) {
        Err(Wrong::Format) => iso_8601(text.trim()),
        decoded => decoded,
    };
    let sums = decoded.map_err(|wrong| match wrong {
        Wrong::Format => {
            let message = format!("invalid input syntax for type interval: \"{text}\"");
            SqlError::new(code::DATETIME_FORMAT, message)
        }
        Wrong::Field => {
            let message = format!("interval field value out of range: \"{text}\"");
            SqlError::new(code::INTERVAL_FIELD, message)
        }
    })?;
    let months = sums
        .years
        .checked_mul(MONTHS_PER_YEAR.into())
        .and_then(|all| i32::try_from(all.checked_add(sums.months)?).ok());
    Ok(Interval { months: months.ok_or_else(out_of_range)?, days: sums.days, micros: sums.micros })
}

impl Unit {
    fn named(word: &str) -> Option<Self> {
        Some(match word.get(..UNIT_LETTERS).unwrap_or(word) {
            "us" | "usec" | "usecs" | "usecond" | "useconds" | "microsecon" => Self::Microsecond,
            "ms" | "msec" | "msecs" | "msecond" | "mseconds" | "millisecon" => Self::Millisecond,
            "s" | "sec" | "secs" | "second" | "seconds" => Self::Second,
            "m" | "min" | "mins" | "minute" | "minutes" => Self::Minute,
            "h" | "hr" | "hrs" | "hour" | "hours" => Self::Hour,
            "d" | "day" | "days" => Self::Day,
            "w" | "week" | "weeks" => Self::Week,
            "mon" | "mons" | "month" | "months" => Self::Month,
            "y" | "yr" | "yrs" | "year" | "years" => Self::Year,
            "dec" | "decs" | "decade" | "decades" => Self::Decade,
            "c" | "cent" | "century" | "centuries" => Self::Century,
            "mil" | "mils" | "millennia" | "millennium" => Self::Millennium,
            _ => return None,
        })
    }
}

/// The sums of the fields.
#[derive(Default)]
struct Sums {
    years: i64,
    months: i64,
    days: i32,
    micros: i64,
}

impl Sums {
    fn add_days(&mut self, count: i64, scale: i64) -> Option<()> {
        let days = i32::try_from(count.checked_mul(scale)?).ok()?;
        self.days = self.days.checked_add(days)?;
        Some(())
    }

    fn add_micros(&mut self, count: i64, scale: i64) -> Option<()> {
        self.micros = self.micros.checked_add(count.checked_mul(scale)?)?;
        Some(())
    }

    fn add_years(&mut self, count: i64, scale: i64) -> Option<()> {
        let years = i32::try_from(count.checked_mul(scale)?).ok()?;
        self.years = self.years.checked_add(years.into())?;
        Some(())
    }

    fn add_fraction_of_micros(&mut self, fraction: f64, scale: i64) -> Option<()> {
        let exact = fraction * scale as f64;
        let whole = exact as i64;
        let rest = exact - whole as f64;
        let carry = i64::from(rest > 0.5) - i64::from(rest < -0.5);
        self.add_micros(whole.checked_add(carry)?, 1)
    }

    fn add_fraction_of_days(&mut self, fraction: f64, scale: i64) -> Option<()> {
        let exact = fraction * scale as f64;
        self.add_days(exact as i64, 1)?;
        self.add_fraction_of_micros(exact - exact.trunc(), MICROS_PER_DAY)
    }

    fn add_fraction_of_years(&mut self, fraction: f64, scale: i64) -> Option<()> {
        let months = (fraction * scale as f64 * f64::from(MONTHS_PER_YEAR)).round_ties_even();
        self.months = self.months.checked_add(months as i64)?;
        Some(())
    }

    /// Adds a number of units.
    fn add(&mut self, unit: Unit, count: i64, fraction: f64) -> Option<()> {
        let micros = match unit {
            Unit::Microsecond => 1,
            Unit::Millisecond => 1_000,
            Unit::Second => MICROS_PER_SECOND,
            Unit::Minute => 60 * MICROS_PER_SECOND,
            Unit::Hour => 3_600 * MICROS_PER_SECOND,
            Unit::Day => {
                self.add_days(count, 1)?;
                return self.add_fraction_of_micros(fraction, MICROS_PER_DAY);
            }
            Unit::Week => {
                self.add_days(count, 7)?;
                return self.add_fraction_of_days(fraction, 7);
            }
            Unit::Month => {
                self.months = self.months.checked_add(i32::try_from(count).ok()?.into())?;
                return self.add_fraction_of_days(fraction, 30);
            }
            Unit::Year | Unit::Decade | Unit::Century | Unit::Millennium => {
                let years = match unit {
                    Unit::Year => 1,
                    Unit::Decade => 10,
                    Unit::Century => 100,
                    _ => 1_000,
                };
                self.add_years(count, years)?;
                return self.add_fraction_of_years(fraction, years);
            }
        };
        self.add_micros(count, micros)?;
        self.add_fraction_of_micros(fraction, micros)
    }

    fn negate(&mut self) -> Option<()> {
        self.years = self.years.checked_neg()?;
        self.months = self.months.checked_neg()?;
        self.days = self.days.checked_neg()?;
        self.micros = self.micros.checked_neg()?;
        Some(())
    }
}

#[derive(Debug, PartialEq)]
enum Word {
    /// `12:30:01.5`, with an optional sign.
    Clock(String),
    /// `12`, `1.5`, `.5`, `-7`, `1-2`.
    Number(String),
    /// In lower case.
    Letters(String),
}

fn words(text: &str) -> Result<Vec<Word>, Wrong> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_alphabetic() {
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            words.push(Word::Letters(rest[..end].to_ascii_lowercase()));
            rest = &rest[end..];
        } else if first.is_ascii_digit() || ['.', '+', '-'].contains(&first) {
            let sign = if first == '+' || first == '-' { &rest[..1] } else { "" };
            let number = rest[sign.len()..].trim_start();
            let is_part = |c: char| c.is_ascii_digit() || [':', '.', '-'].contains(&c);
            let end = number.find(|c: char| !is_part(c)).unwrap_or(number.len());
            let (number, after) = number.split_at(end);
            if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
                return Err(Wrong::Format);
            }
            let signed = format!("{sign}{number}");
            let is_clock = number.contains(':');
            words.push(if is_clock { Word::Clock(signed) } else { Word::Number(signed) });
            rest = after;
        } else if first.is_ascii_punctuation() {
            rest = &rest[1..];
        } else {
            return Err(Wrong::Format);
        }
        rest = rest.trim_start();
        if words.len() > WORDS_MAX {
            return Err(Wrong::Format);
        }
    }
    Ok(words)
}

fn decode(words: &[Word], last: Unit) -> Result<Sums, Wrong> {
    let mut sums = Sums::default();
    let mut unit: Option<Unit> = None;
    let mut seen: Vec<Unit> = Vec::new();
    let mut is_ago = false;
    for word in words.iter().rev() {
        let given = match word {
            Word::Clock(clock) => {
                let micros = clock_micros(clock)?;
                sums.add_micros(micros, 1).ok_or(Wrong::Field)?;
                // A number before a time counts days.
                unit = Some(Unit::Day);
                vec![Unit::Hour, Unit::Minute, Unit::Second]
            }
            Word::Number(number) => {
                let counted = unit.unwrap_or(last);
                let (counted, count, fraction) = numbers(number, counted)?;
                sums.add(counted, count, fraction).ok_or(Wrong::Field)?;
                unit = Some(if counted == Unit::Hour { Unit::Day } else { counted });
                match counted {
                    Unit::Second if fraction != 0.0 => {
                        vec![Unit::Second, Unit::Millisecond, Unit::Microsecond]
                    }
                    other => vec![other],
                }
            }
            Word::Letters(word) if word == "ago" => {
                is_ago = true;
                vec![]
            }
            Word::Letters(word) => {
                unit = Some(Unit::named(word).ok_or(Wrong::Format)?);
                vec![]
            }
        };
        if given.iter().any(|unit| seen.contains(unit)) {
            return Err(Wrong::Format);
        }
        seen.extend(given);
    }
    if seen.is_empty() {
        return Err(Wrong::Format);
    }
    if is_ago {
        sums.negate().ok_or(Wrong::Field)?;
    }
    Ok(sums)
}

/// Parses a number of a unit, or `years-months`.
fn numbers(text: &str, unit: Unit) -> Result<(Unit, i64, f64), Wrong> {
    let is_negative = text.starts_with('-');
    let digits = text.trim_start_matches(['+', '-']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let whole = if whole.is_empty() { "0" } else { whole };
    let signed = |value: i64| if is_negative { -value } else { value };
    let count = signed(whole.parse::<i64>().map_err(|_| Wrong::Field)?);
    if let Some(months) = rest.strip_prefix('-') {
        let is_number = !months.is_empty() && months.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return Err(Wrong::Format);
        }
        let months =
            months.parse::<i64>().ok().filter(|months| *months < 12).ok_or(Wrong::Field)?;
        let all = count.checked_mul(12).and_then(|all| all.checked_add(signed(months)));
        return Ok((Unit::Month, all.ok_or(Wrong::Field)?, 0.0));
    }
    let fraction = fraction_of(rest)?;
    Ok((unit, count, if is_negative { -fraction } else { fraction }))
}

/// Parses `.5`, or an empty text as 0.
fn fraction_of(text: &str) -> Result<f64, Wrong> {
    let Some(digits) = text.strip_prefix('.') else {
        return if text.is_empty() { Ok(0.0) } else { Err(Wrong::Format) };
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Wrong::Format);
    }
    format!("0.{digits}0").parse().map_err(|_| Wrong::Format)
}

/// Parses `12:30` or `12:30:01.5`. Two parts with a fraction are minutes and seconds.
fn clock_micros(text: &str) -> Result<i64, Wrong> {
    let is_negative = text.starts_with('-');
    let digits = text.trim_start_matches(['+', '-']);
    let (clock, fraction) = match digits.find('.') {
        Some(at) => (&digits[..at], fraction_of(&digits[at..])?),
        None => (digits, 0.0),
    };
    let has_fraction = clock.len() < digits.len();
    let parts: Vec<&str> = clock.split(':').collect();
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !parts.iter().all(is_number) || parts[0].is_empty() || parts.len() > 3 {
        return Err(Wrong::Format);
    }
    let number = |part: &str| match part {
        "" => Ok(0),
        digits => digits.parse::<i64>().map_err(|_| Wrong::Field),
    };
    let (hours, minutes, seconds) = match parts[..] {
        [minutes, seconds] if has_fraction => (0, number(minutes)?, number(seconds)?),
        [hours, minutes] => (number(hours)?, number(minutes)?, 0),
        [hours, minutes, seconds] => (number(hours)?, number(minutes)?, number(seconds)?),
        _ => return Err(Wrong::Format),
    };
    if minutes > 59 || seconds > 60 {
        return Err(Wrong::Field);
    }
    let micros = (fraction * 1e6).round_ties_even() as i64;
    let total = hours
        .checked_mul(3_600 * MICROS_PER_SECOND)
        .and_then(|all| all.checked_add((minutes * 60 + seconds) * MICROS_PER_SECOND + micros))
        .ok_or(Wrong::Field)?;
    Ok(if is_negative { -total } else { total })
}

/// Parses `P1Y2M3DT4H5M6S`, or the alternative form `P0001-02-03T04:05:06`.
fn iso_8601(text: &str) -> Result<Sums, Wrong> {
    let body = text.strip_prefix('P').ok_or(Wrong::Format)?;
    let (date, time) = match body.split_once('T') {
        Some((date, time)) => (date, Some(time)),
        None => (body, None),
    };
    if body.is_empty() || !body.is_ascii() {
        return Err(Wrong::Format);
    }
    let mut sums = Sums::default();
    let is_alternative = |part: &str, mark: char| part.get(1..).is_some_and(|p| p.contains(mark));
    let ends_in_digit = date.ends_with(|c: char| c.is_ascii_digit());
    if is_alternative(date, '-') && ends_in_digit {
        let parts = date.splitn(3, '-').zip([Unit::Year, Unit::Month, Unit::Day]);
        for (part, unit) in parts {
            let (_, count, fraction) = numbers(part, unit)?;
            sums.add(unit, count, fraction).ok_or(Wrong::Field)?;
        }
    } else {
        let units = [('Y', Unit::Year), ('M', Unit::Month), ('W', Unit::Week), ('D', Unit::Day)];
        designated(date, &units, &mut sums)?;
    }
    match time {
        Some(time) if time.contains(':') => {
            sums.add_micros(clock_micros(time)?, 1).ok_or(Wrong::Field)?;
        }
        Some(time) => {
            let units = [('H', Unit::Hour), ('M', Unit::Minute), ('S', Unit::Second)];
            designated(time, &units, &mut sums)?;
        }
        None => {}
    }
    Ok(sums)
}

/// Parses numbers, each followed by the letter of its unit.
fn designated(text: &str, units: &[(char, Unit)], sums: &mut Sums) -> Result<(), Wrong> {
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_ascii_uppercase()).ok_or(Wrong::Format)?;
        let (number, after) = rest.split_at(end);
        let letter = after.chars().next().ok_or(Wrong::Format)?;
        let found = units.iter().find(|(known, _)| *known == letter);
        let (_, unit) = found.ok_or(Wrong::Format)?;
        if number.is_empty() || number.contains([' ', ':']) {
            return Err(Wrong::Format);
        }
        let (_, count, fraction) = numbers(number, *unit)?;
        sums.add(*unit, count, fraction).ok_or(Wrong::Field)?;
        rest = &after[1..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_mean_what_they_mean_to_postgresql() {
        let cases = [
            ("1 year 2 months 3 days 04:05:06.789", "1 year 2 mons 3 days 04:05:06.789"),
            ("1-2", "1 year 2 mons"),
            ("-1-2 +3 -4:05:06", "-1 years -2 mons +3 days -04:05:06"),
            ("@ 1 day 2 hours ago", "-1 days -02:00:00"),
            ("1.5 mons 1.5 weeks", "1 mon 25 days 12:00:00"),
            ("1.5 years", "1 year 6 mons"),
            ("P1Y2M3DT4H5M6.5S", "1 year 2 mons 3 days 04:05:06.5"),
            ("P0001-02-03T04:05:06", "1 year 2 mons 3 days 04:05:06"),
            ("PT-1H", "-01:00:00"),
            ("1d2h", "1 day 02:00:00"),
            ("10", "00:00:10"),
            ("4:05.5", "00:04:05.5"),
        ];
        for (text, shown) in cases {
            assert_eq!(parse(text, "second").unwrap().to_string(), shown, "{text}");
        }
        let wrong = [
            ("", "22007"),
            ("1 fortnight", "22007"),
            ("1 day 2 days", "22007"),
            ("12:70", "22015"),
            ("99999999999 days", "22015"),
            ("200000000 years", "22008"),
            ("P", "22007"),
            ("P1", "22007"),
        ];
        for (text, code) in wrong {
            let error = parse(text, "second").unwrap_err();
            assert_eq!(error.code.as_str(), code, "{text}: {error}");
        }
    }
}
