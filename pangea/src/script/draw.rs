//! The functions of `\set`, and their random number generator.

use pangea_core::workload::rng::WorkloadRng;
use pangea_core::workload::zipf::Zipf;

use super::value::{self, Value};

/// The largest number of characters of a random text.
const TEXT_LEN_MAX: i64 = 1 << 20;
/// The characters of random texts.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// The same minimum as in pgbench: a smaller parameter would cut off most of the bell curve.
const GAUSSIAN_PARAMETER_MIN: f64 = 2.0;
/// The limits of the generator of Zipf's law.
const ZIPF_EXPONENT_MAX: f64 = 10.0;
const ZIPF_RANKS_MAX: i128 = 1 << 40;

/// Functions by name, with the minimum and maximum number of arguments.
pub(super) const FUNCTIONS: [(&str, Function, usize, usize); 16] = [
    ("random", Function::Random, 2, 2),
    ("random_zipfian", Function::Zipfian, 3, 3),
    ("random_gaussian", Function::Gaussian, 3, 3),
    ("random_exponential", Function::Exponential, 3, 3),
    ("random_string", Function::String, 1, 2),
    ("random_timestamp", Function::Timestamp, 2, 2),
    ("random_uuid", Function::Uuid, 0, 0),
    ("choice", Function::Choice, 1, 1_000),
    ("sequence", Function::Sequence, 0, 1),
    ("now", Function::Now, 0, 0),
    ("abs", Function::Abs, 1, 1),
    ("int", Function::Int, 1, 1),
    ("double", Function::Double, 1, 1),
    ("least", Function::Least, 1, 1_000),
    ("greatest", Function::Greatest, 1, 1_000),
    ("mod", Function::Mod, 2, 2),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Random,
    Zipfian,
    Gaussian,
    Exponential,
    String,
    Timestamp,
    Uuid,
    Choice,
    Sequence,
    Now,
    Abs,
    Int,
    Double,
    Least,
    Greatest,
    Mod,
}

/// The context in which expressions are evaluated.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    /// The values of all variables, by slot.
    pub values: Vec<Value>,
    dice: WorkloadRng,
    /// The number of the client's transactions so far, including this one.
    sequence: i64,
    /// The time of the call, in microseconds since 1970.
    now_us: i64,
}

impl Draw {
    pub fn new(values: Vec<Value>, seed: u64, sequence: i64, now_us: i64) -> Self {
        Self { values, dice: WorkloadRng::new(seed), sequence, now_us }
    }
}

impl Function {
    pub fn named(name: &str) -> Option<Self> {
        FUNCTIONS.iter().find(|function| function.0 == name).map(|function| function.1)
    }

    fn entry(self) -> (&'static str, usize, usize) {
        let entry = FUNCTIONS.iter().find(|function| function.1 == self);
        let &(name, _, least, most) = entry.expect("every function is in the table");
        (name, least, most)
    }

    pub fn check_count(self, count: usize) -> Result<(), String> {
        let (name, least, most) = self.entry();
        if (least..=most).contains(&count) {
            return Ok(());
        }
        let wanted = match (least, most) {
            (least, most) if least == most => least.to_string(),
            (least, 1_000) => format!("{least} or more"),
            (least, most) => format!("{least} to {most}"),
        };
        Err(format!("{name} takes {wanted} arguments, found {count}"))
    }

    /// Calls the function.
    ///
    /// # Errors
    /// The problem with the arguments, after the function's name.
    pub fn call(self, arguments: &[Value], draw: &mut Draw) -> Result<Value, String> {
        self.apply(arguments, draw).map_err(|error| format!("{}: {error}", self.entry().0))
    }

    fn apply(self, arguments: &[Value], draw: &mut Draw) -> Result<Value, String> {
        let double = |at: usize| arguments[at].double();
        match self {
            Self::Random | Self::Zipfian | Self::Gaussian | Self::Exponential => {
                let (first, last) = (arguments[0].int()?, arguments[1].int()?);
                if first > last {
                    return Err(format!("the range {first} to {last} is empty"));
                }
                let parameter = arguments.get(2).map_or(Ok(0.0), Value::double)?;
                let offset = self.offset(first, last, parameter, &mut draw.dice)?;
                Ok(Value::Int(first.wrapping_add_unsigned(offset)))
            }
            Self::String => random_string(arguments, &mut draw.dice),
            Self::Timestamp => {
                let us = |at: usize| moment(&arguments[at]);
                let (first, last) = (us(0)?, us(1)?);
                if first > last {
                    return Err(format!("the range {} to {} is empty", arguments[0], arguments[1]));
                }
                let offset = draw.dice.between(0, first.abs_diff(last));
                value::timestamp(first.wrapping_add_unsigned(offset)).map(Value::Text)
            }
            Self::Uuid => {
                let mut bytes = Vec::with_capacity(16);
                draw.dice.bytes(16, &mut bytes);
                let mut bytes: [u8; 16] = bytes.try_into().expect("there are sixteen bytes");
                // Version 4, of the usual variant.
                bytes[6] = (bytes[6] & 0x0f) | 0x40;
                bytes[8] = (bytes[8] & 0x3f) | 0x80;
                Ok(Value::Text(value::uuid(bytes)))
            }
            Self::Choice => {
                let at = draw.dice.below(arguments.len() as u64);
                Ok(arguments[at as usize].clone())
            }
            Self::Sequence => {
                let first = arguments.first().map_or(Ok(1), Value::int)?;
                Ok(Value::Int(first.saturating_add(draw.sequence - 1)))
            }
            Self::Now => value::timestamp(draw.now_us).map(Value::Text),
            Self::Abs => match &arguments[0] {
                Value::Double(value) => Ok(Value::Double(value.abs())),
                other => Ok(Value::Int(other.int()?.saturating_abs())),
            },
            Self::Int => match &arguments[0] {
                // A conversion that would change the number is an error below.
                Value::Double(value) => Value::Double(value.trunc()).int().map(Value::Int),
                Value::Text(text) => Value::of_word(text).int().map(Value::Int),
                other => other.int().map(Value::Int),
            },
            Self::Double => match &arguments[0] {
                Value::Text(text) => Value::of_word(text).double().map(Value::Double),
                other => other.double().map(Value::Double),
            },
            Self::Least | Self::Greatest => self.extreme(arguments),
            Self::Mod => {
                let (of, by) = (arguments[0].int()?, arguments[1].int()?);
                of.checked_rem(by).map(Value::Int).ok_or_else(|| "division by zero".to_owned())
            }
        }
        .and_then(|value| match value {
            Value::Double(value) if !value.is_finite() => {
                Err(format!("{} is not a finite number", double(0).unwrap_or(value)))
            }
            value => Ok(value),
        })
    }

    /// Draws the offset of a number from `first`, such that the number is at most `last`.
    fn offset(
        self,
        first: i64,
        last: i64,
        parameter: f64,
        dice: &mut WorkloadRng,
    ) -> Result<u64, String> {
        let most = first.abs_diff(last);
        let count = i128::from(most) + 1;
        let below = |of: &str, least: f64| {
            Err(format!("the {of} is {parameter}, but must be {least} or more"))
        };
        let unit = match self {
            Self::Zipfian if !(0.0..=ZIPF_EXPONENT_MAX).contains(&parameter) => {
                let most = ZIPF_EXPONENT_MAX;
                return Err(format!("the exponent is {parameter}, but must be from 0 to {most}"));
            }
            Self::Zipfian if count > ZIPF_RANKS_MAX => {
                return Err(format!("{count} numbers exceed the limit of {ZIPF_RANKS_MAX}"));
            }
            Self::Zipfian => return Ok(Zipf::new(count as u64, parameter).draw(dice)),
            Self::Gaussian if parameter < GAUSSIAN_PARAMETER_MIN => {
                return below("parameter", GAUSSIAN_PARAMETER_MIN);
            }
            Self::Gaussian => gaussian(parameter, dice),
            Self::Exponential if parameter <= 0.0 => return below("parameter", 1e-9),
            Self::Exponential => {
                let cut = (-parameter).exp();
                -(cut + (1.0 - cut) * (1.0 - dice.unit())).ln() / parameter
            }
            _ if count > i128::from(u64::MAX) => return Ok(dice.bits()),
            _ => return Ok(dice.below(count as u64)),
        };
        // Rounding may yield the upper end, which is excluded.
        Ok(((unit * count as f64) as u64).min(most))
    }

    fn extreme(self, arguments: &[Value]) -> Result<Value, String> {
        let mut found = &arguments[0];
        for other in &arguments[1..] {
            let is_less = other.double()? < found.double()?;
            if is_less == (self == Self::Least) && other != found {
                found = other;
            }
        }
        found.double()?;
        Ok(found.clone())
    }
}

/// Draws from a normal distribution, truncated at `parameter` standard deviations and scaled to
/// `0.0 .. 1.0`.
fn gaussian(parameter: f64, dice: &mut WorkloadRng) -> f64 {
    loop {
        // Box-Muller transform: the logarithm needs a positive number.
        let (radius, angle) = (1.0 - dice.unit(), dice.unit());
        let deviations = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).sin();
        if (-parameter..parameter).contains(&deviations) {
            return (deviations + parameter) / (2.0 * parameter);
        }
    }
}

fn random_string(arguments: &[Value], dice: &mut WorkloadRng) -> Result<Value, String> {
    let least = arguments[0].int()?;
    let most = arguments.get(1).map_or(Ok(least), Value::int)?;
    if !(0..=TEXT_LEN_MAX).contains(&least) || !(least..=TEXT_LEN_MAX).contains(&most) {
        return Err(format!("a length of {least} to {most}; must be from 0 to {TEXT_LEN_MAX}"));
    }
    let len = dice.between(least as u64, most as u64);
    let letter = |_| char::from(LETTERS[dice.below(LETTERS.len() as u64) as usize]);
    Ok(Value::Text((0..len).map(letter).collect()))
}

/// Returns a time in microseconds since 1970, from a date or a date with a time, in UTC.
fn moment(value: &Value) -> Result<i64, String> {
    let wrong = || format!("expected a time such as '2026-01-31 12:00:00', found {value}");
    let Value::Text(text) = value else { return Err(wrong()) };
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(at.as_microsecond());
    }
    let at = text.parse::<jiff::civil::DateTime>().map_err(|_| wrong())?;
    let at = at.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| wrong())?;
    Ok(at.timestamp().as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::super::expression::Expression;
    use super::*;

    fn drawn(text: &str, count: u64) -> Vec<Value> {
        let expression = Expression::parse(text, &mut |_| Ok(0)).unwrap();
        let draw = |seed| expression.evaluate(&mut Draw::new(Vec::new(), seed, 1, 0)).unwrap();
        (0..count).map(draw).collect()
    }

    fn share_of(all: &[Value], is_it: impl Fn(i64) -> bool) -> f64 {
        let hits = all.iter().filter(|value| is_it(value.int().unwrap())).count();
        hits as f64 / all.len() as f64
    }

    #[test]
    fn distributions_have_their_shapes() {
        let near = |found: f64, expected: f64| (found - expected).abs() < 0.03;
        let uniform = drawn("random(1, 10)", 5_000);
        assert!(near(share_of(&uniform, |it| it <= 5), 0.5));
        assert!(uniform.iter().all(|it| (1..=10).contains(&it.int().unwrap())));
        // With three numbers and exponent 1, the first has a probability of 6/11.
        assert!(near(share_of(&drawn("random_zipfian(5, 7, 1)", 5_000), |it| it == 5), 6.0 / 11.0));
        // pgbench's manual: with 4.0, 67 % are in the middle half.
        let bell = drawn("random_gaussian(1, 100, 2.0)", 5_000);
        assert!(near(share_of(&bell, |it| (26..=75).contains(&it)), 0.72), "{bell:?}");
        // A fraction of 1 - e^-1 of an exponential distribution with 10 is in the first tenth.
        let falling = drawn("random_exponential(1, 100, 10)", 5_000);
        assert!(near(share_of(&falling, |it| it <= 10), 0.632));
        let all = drawn("random(-9223372036854775807 - 1, 9223372036854775807)", 100);
        assert!(share_of(&all, |it| it < 0) > 0.2);
    }

    #[test]
    fn texts_times_and_choices_are_within_what_is_asked_for() {
        for text in drawn("random_string(3, 5)", 200) {
            let Value::Text(text) = text else { panic!("{text:?}") };
            assert!((3..=5).contains(&text.len()));
        }
        for at in drawn("random_timestamp('2026-01-31', '2026-02-01 00:00:00')", 200) {
            assert!(
                at.to_string().starts_with("2026-01-31 ") || at.to_string().contains("02-01 00")
            );
        }
        let choices = drawn("choice('a', 2)", 100);
        assert!(choices.contains(&Value::Int(2)) && choices.contains(&Value::Text("a".to_owned())));
        assert_eq!(drawn("sequence(10)", 1), [Value::Int(10)]);
        assert_eq!(drawn("int('12')", 1), [Value::Int(12)]);
        assert_eq!(drawn("least(3, 1.5, 2)", 1), [Value::Double(1.5)]);
        assert!(drawn("random_uuid()", 1)[0].to_string()[14..].starts_with('4'));
    }

    #[test]
    fn arguments_out_of_bounds_are_refused() {
        for (text, said) in [
            ("random_zipfian(1, 9, -1)", "the exponent is -1"),
            ("random_gaussian(1, 9, 1)", "must be 2 or more"),
            ("random_string(-1)", "a length of -1"),
            ("random_timestamp('soon', 'later')", "expected a time"),
            ("mod(1, 0)", "mod: division by zero"),
            ("least('a', 1)", "expected a number"),
        ] {
            let expression = Expression::parse(text, &mut |_| Ok(0)).unwrap();
            let error = expression.evaluate(&mut Draw::new(Vec::new(), 1, 1, 0)).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
