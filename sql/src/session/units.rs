//! Times and amounts of memory, as settings are given them.

use std::fmt::Display;

use crate::error::{SqlError, code};

/// The error of a value, as it is shown, that is more than a parameter may have, or less than 0.
pub(super) fn out_of_range(name: &str, given: &str, most: impl Display) -> SqlError {
    let message =
        format!("{given} is outside the valid range for parameter \"{name}\" (0 .. {most})");
    SqlError::new(code::INVALID_PARAMETER, message)
}

/// Units of time and their milliseconds, the longest first.
const UNITS: [(&str, f64); 6] = [
    ("d", 86_400_000.0),
    ("h", 3_600_000.0),
    ("min", 60_000.0),
    ("s", 1_000.0),
    ("ms", 1.0),
    ("us", 0.001),
];

/// A time in whole milliseconds; nothing when it is not one.
pub(super) fn parse_ms(text: &str) -> Option<f64> {
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

/// What a number without a unit counts.
const BLOCK_BYTES: u64 = 8 << 10;

/// The most blocks.
const BLOCKS_MAX: u64 = 715_827_882;

/// An amount of memory in bytes.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let digits = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "" => BLOCK_BYTES,
        unit => SIZES.iter().find(|(name, _)| *name == unit)?.1,
    };
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    Some(bytes.round_ties_even() as u64)
}

/// An amount of memory as PostgreSQL shows it: whole blocks, in the largest unit that has no rest.
pub(super) fn checked_size(
    name: &str,
    text: &str,
    invalid: &dyn Fn() -> SqlError,
) -> Result<String, SqlError> {
    let Some(bytes) = parse_bytes(text) else {
        let hint = "Valid units for this parameter are \"B\", \"kB\", \"MB\", \"GB\", and \"TB\".";
        return Err(invalid().with_hint(hint));
    };
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    if blocks > BLOCKS_MAX {
        return Err(out_of_range(name, &format!("{blocks} 8kB"), BLOCKS_MAX));
    }
    let bytes = blocks * BLOCK_BYTES;
    match SIZES.iter().find(|(_, unit)| bytes.is_multiple_of(*unit)) {
        Some((unit, size)) if bytes > 0 => Ok(format!("{}{unit}", bytes / size)),
        _ => Ok("0".to_owned()),
    }
}

/// A time as PostgreSQL shows it: in the longest unit that has no rest.
pub(super) fn checked_time(
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
        return Err(out_of_range(name, &format!("{ms} ms"), most));
    }
    if ms == 0.0 {
        return Ok("0".to_owned());
    }
    let longest = UNITS.iter().find(|(_, unit)| ms % unit == 0.0);
    let (unit, length) = longest.expect("whole milliseconds");
    Ok(format!("{}{unit}", ms / length))
}
