//! Axes: their ends and ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// The approximate number of ticks of an axis.
const TICKS: f64 = 6.0;
/// A logarithmic axis with fewer decades than this also has ticks between the powers of ten.
const FEW_DECADES: f64 = 2.0;

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    is_log: bool,
    /// The ends in coordinates: numbers, or their logarithms.
    from: f64,
    to: f64,
    /// The values of the ticks.
    pub ticks: Vec<f64>,
}

impl Scale {
    /// Creates an axis from zero to the maximum of all values.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most / TICKS);
        let count = (most / step - 0.001).ceil() as usize;
        let ticks: Vec<f64> = (0..=count).map(|tick| tick as f64 * step).collect();
        Self { is_log: false, from: 0.0, to: count as f64 * step, ticks }
    }

    /// Creates an axis with a tick at each of these values, and a small margin on both sides.
    pub(super) fn at(values: impl Iterator<Item = f64>) -> Self {
        let mut ticks: Vec<f64> = values.collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let (from, to) = (ticks.first().copied(), ticks.last().copied());
        let (from, to) = (from.unwrap_or(0.0), to.unwrap_or(1.0));
        let wide = if to > from { to - from } else { 1.0 };
        // A label too close to the previous one would cover it.
        let mut kept: Vec<f64> = Vec::new();
        for tick in ticks {
            if kept.last().is_none_or(|last| tick - last > wide / 24.0) {
                kept.push(tick);
            }
        }
        Self { is_log: false, from: from - wide * 0.03, to: to + wide * 0.03, ticks: kept }
    }

    /// Creates an axis for a number of names, each in the middle of its slot.
    pub(super) fn of_names(count: usize) -> Self {
        let count = count.max(1);
        let ticks = (0..count).map(|at| at as f64).collect();
        Self { is_log: false, from: -0.5, to: count as f64 - 0.5, ticks }
    }

    /// Creates a logarithmic axis, from the power of ten below all values to the one above. It has
    /// no coordinates for zero and negative values.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Self {
        let all: Vec<f64> = values.filter(|value| *value > 0.0).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        if all.is_empty() {
            return Self { is_log: true, from: 0.0, to: 1.0, ticks: vec![1.0, 10.0] };
        }
        let from = least.log10().floor();
        let to = most.log10().ceil().max(from + 1.0);
        let parts: &[f64] = if to - from <= FEW_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decade = |power: i32| parts.iter().map(move |part| part * 10_f64.powi(power));
        let ticks = (from as i32..=to as i32).flat_map(decade);
        let ticks = ticks.filter(|tick| tick.log10() <= to).collect();
        Self { is_log: true, from, to, ticks }
    }

    /// Returns the value at the start of the axis; for amounts, that is zero.
    pub(super) fn floor(&self) -> f64 {
        self.value(self.from)
    }

    /// Returns the value at the end of the axis.
    pub(super) fn ceiling(&self) -> f64 {
        self.value(self.to)
    }

    fn place(&self, value: f64) -> f64 {
        match self.is_log {
            true if value > 0.0 => value.log10(),
            true => self.from,
            false => value,
        }
    }

    fn value(&self, place: f64) -> f64 {
        if self.is_log { 10_f64.powf(place) } else { place }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let part = (self.place(*value) - self.from) / (self.to - self.from);
        low + (f64::from(high - low) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.floor()..self.ceiling()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        number(*value)
    }
}

/// Returns the next of 1, 2, 5, 10, ... times a power of ten.
fn step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let part = [1.0, 2.0, 5.0].into_iter().find(|part| part * power >= least * 0.999);
    part.unwrap_or(10.0) * power
}

/// Formats a number for humans: 12,000 and 0.25.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size < 1e-9 {
        return "0".to_owned();
    }
    let digits = match size {
        size if size >= 100.0 || (value - value.round()).abs() < 1e-6 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_have_no_idle_zeros() {
        let cases = [
            (0.0, "0"),
            (12_000.0, "12,000"),
            (1_234_567.0, "1,234,567"),
            (0.25, "0.25"),
            (0.3, "0.3"),
            (-1_500.0, "-1,500"),
            (17.25, "17.2"),
            (200.4, "200"),
            (0.004, "0.004"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn an_axis_of_amounts_begins_at_zero_and_holds_all() {
        let scale = Scale::from_zero([9_300.0, 14_100.0].into_iter());
        assert_eq!((scale.from, scale.to), (0.0, 15_000.0));
        assert_eq!(scale.ticks.len(), 4);
        assert!(Scale::from_zero(std::iter::empty()).to >= 1.0);
    }

    #[test]
    fn a_logarithmic_axis_has_places_for_what_is_above_zero() {
        let scale = Scale::log([3.0, 250.0].into_iter());
        assert_eq!((scale.from, scale.to), (0.0, 3.0));
        assert_eq!(scale.ticks, [1.0, 10.0, 100.0, 1_000.0]);
        assert_eq!((scale.place(100.0), scale.value(2.0)), (2.0, 100.0));
        assert_eq!(scale.place(0.0), 0.0);
    }

    #[test]
    fn numbers_at_values_that_are_close_do_not_cover_each_other() {
        let scale = Scale::at([0.0, 1.0, 50.0, 100.0, 200.0].into_iter());
        assert_eq!(scale.ticks, [0.0, 50.0, 100.0, 200.0]);
    }
}
