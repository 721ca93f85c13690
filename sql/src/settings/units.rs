//! Times and amounts of memory as values of settings.

use std::fmt::Display;

use crate::error::{SqlError, code};

/// Returns the error of a value, as displayed, that is outside of the range of a parameter.
pub(crate) fn out_of_range<T: Display>(name: &str, given: &str, (least, most): (T, T)) -> SqlError {
    let message =
        format!("{given} is outside the valid range for parameter \"{name}\" ({least} .. {most})");
    SqlError::new(code::INVALID_PARAMETER, message)
}

/// Formats a number as PostgreSQL does in a setting: with at most six digits.
pub(crate) fn shown_real(number: f64) -> String {
    let scientific = format!("{number:.5e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return scientific.parse::<f64>().unwrap_or(number).to_string();
    }
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Units of time in milliseconds, the longest first.
const UNITS: [(&str, f64); 6] = [
    ("d", 86_400_000.0),
    ("h", 3_600_000.0),
    ("min", 60_000.0),
    ("s", 1_000.0),
    ("ms", 1.0),
    ("us", 0.001),
];

/// Parses a time and rounds it to whole milliseconds. Returns `None` if the text is not a time.
pub(crate) fn parse_ms(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let unit = if unit.is_empty() { "ms" } else { unit };
    let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.trim().parse().ok()?;
    Some((number * ms).round_ties_even())
}

/// Units of memory in bytes, the largest first.
const SIZES: &[(&str, u64)] =
    &[("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10), ("B", 1)];

/// The unit of a number that is written without one, as PostgreSQL names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Page,
    Kilobyte,
}

impl Block {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Page => "8kB",
            Self::Kilobyte => "kB",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Page => 8 << 10,
            Self::Kilobyte => 1 << 10,
        }
    }
}

/// Parses an amount of memory and returns it in bytes. A number without a unit counts pages.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    parse_blocks(text, Block::Page)
}

fn parse_blocks(text: &str, block: Block) -> Option<u64> {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let digits = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "" => block.bytes(),
        unit => SIZES.iter().find(|(name, _)| *name == unit)?.1,
    };
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    Some(bytes.round_ties_even() as u64)
}

/// Formats an amount of memory as PostgreSQL does: rounded to whole blocks, in the largest unit
/// that divides it.
pub(crate) fn checked_size(
    name: &str,
    text: &str,
    (block, range): (Block, (u64, u64)),
    invalid: &dyn Fn() -> SqlError,
) -> Result<String, SqlError> {
    let Some(bytes) = parse_blocks(text, block) else {
        let hint = "Valid units for this parameter are \"B\", \"kB\", \"MB\", \"GB\", and \"TB\".";
        return Err(invalid().with_hint(hint));
    };
    // Rounded to the nearest block, as in PostgreSQL.
    let blocks = (bytes as f64 / block.bytes() as f64).round_ties_even() as u64;
    if !(range.0..=range.1).contains(&blocks) {
        return Err(out_of_range(name, &format!("{blocks} {}", block.name()), range));
    }
    let bytes = blocks * block.bytes();
    match SIZES.iter().find(|(_, unit)| bytes.is_multiple_of(*unit)) {
        Some((unit, size)) if bytes > 0 => Ok(format!("{}{unit}", bytes / size)),
        _ => Ok("0".to_owned()),
    }
}

/// Parses an amount of memory and returns it in blocks.
pub(crate) fn blocks_of(text: &str, block: Block) -> Option<u64> {
    Some(parse_blocks(text, block)? / block.bytes())
}

/// Formats a time as PostgreSQL does: in the longest unit that divides it.
pub(crate) fn checked_time(
    name: &str,
    text: &str,
    invalid: &dyn Fn() -> SqlError,
) -> Result<String, SqlError> {
    let Some(ms) = parse_ms(text) else {
        let hint =
            "Valid units for this parameter are \"us\", \"ms\", \"s\", \"min\", \"h\", and \"d\".";
        return Err(invalid().with_hint(hint));
    };
    let most = f64::from(i32::MAX);
    if !(0.0..=most).contains(&ms) {
        return Err(out_of_range(name, &format!("{ms} ms"), (0.0, most)));
    }
    if ms == 0.0 {
        return Ok("0".to_owned());
    }
    let longest = UNITS.iter().find(|(_, unit)| ms % unit == 0.0);
    let (unit, length) = longest.expect("whole milliseconds");
    Ok(format!("{}{unit}", ms / length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_six_digits_and_an_exponent_where_it_is_large_or_small() {
        let cases = [
            (0.0, "0"),
            (4.0, "4"),
            (1.1, "1.1"),
            (0.0025, "0.0025"),
            (0.000_05, "5e-05"),
            (100_000.0, "100000"),
            (1e6, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (999_999.7, "1e+06"),
            (f64::MAX, "1.79769e+308"),
            (-1.0, "-1"),
        ];
        for (number, shown) in cases {
            assert_eq!(shown_real(number), shown);
        }
    }
}
