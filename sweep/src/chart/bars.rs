//! Bars, either grouped or stacked.

use plotters::prelude::*;

use super::axis::Scale;
use super::{Area, Drawn, Plot, colour, legend, plot};
use crate::plan::Kind;
use crate::series::{Chart, Dot, Origin};

/// The fraction of a name's slot that its bars fill.
const WIDE: f64 = 0.76;
/// The opacity of a predicted bar.
const PALE: f64 = 0.45;

/// Draws bars.
pub(super) fn draw(chart: &Chart, area: &Area<'_>) -> Drawn {
    let top = legend(chart, area)?;
    let x = Scale::of_names(chart.names.len());
    let stacked = chart.kind == Kind::Stacked;
    let height = |at| stack(chart, at).map(|(_, to, _)| to).fold(0.0, f64::max);
    let heights: Vec<f64> = match stacked {
        true => (0..chart.names.len()).map(height).collect(),
        false => chart.lines.iter().flat_map(|line| &line.dots).map(|dot| dot.y.max).collect(),
    };
    let y = match chart.is_log_y && !stacked {
        true => Scale::log(heights.into_iter()),
        false => Scale::from_zero(heights.into_iter()),
    };
    let mut plot = plot(chart, area, (&x, &y), (0, top))?;
    for at in 0..chart.names.len() {
        match stacked {
            true => pile(chart, at, &mut plot)?,
            false => beside(chart, at, &y, &mut plot)?,
        }
    }
    Ok(())
}

/// Returns the fill of a bar: solid if measured, pale if predicted, hollow if stated by a paper.
pub(super) fn fill(origin: Origin, colour: RGBColor) -> ShapeStyle {
    match origin {
        Origin::Measured => colour.filled(),
        Origin::Predicted => colour.mix(PALE).filled(),
        Origin::Paper => colour.stroke_width(4),
    }
}

/// Returns the segments of a stack: from, to, and the index of the line.
fn stack(chart: &Chart, at: usize) -> impl Iterator<Item = (f64, f64, usize)> + '_ {
    let mut from = 0.0;
    dots(chart, at).map(move |(index, dot)| {
        let low = from;
        from += dot.y.median;
        (low, from, index)
    })
}

fn dots(chart: &Chart, at: usize) -> impl Iterator<Item = (usize, &Dot)> {
    chart.lines.iter().enumerate().filter_map(move |(index, line)| {
        line.dots.iter().find(|dot| dot.x == at as f64).map(|dot| (index, dot))
    })
}

fn pile(chart: &Chart, at: usize, plot: &mut Plot<'_>) -> Drawn {
    let (left, right) = (at as f64 - WIDE / 2.0, at as f64 + WIDE / 2.0);
    for (low, high, index) in stack(chart, at) {
        let fill = fill(chart.lines[index].origin, colour(chart, index));
        plot.draw_series([Rectangle::new([(left, low), (right, high)], fill)])?;
    }
    Ok(())
}

fn beside(chart: &Chart, at: usize, y: &Scale, plot: &mut Plot<'_>) -> Drawn {
    let wide = WIDE / chart.lines.len() as f64;
    let floor = y.floor();
    for (index, dot) in dots(chart, at) {
        let left = at as f64 - WIDE / 2.0 + index as f64 * wide;
        let (from, to) = (left + wide * 0.06, left + wide * 0.94);
        let colour = colour(chart, index);
        let fill = fill(chart.lines[index].origin, colour);
        let corners = [(from, floor), (to, dot.y.median)];
        plot.draw_series([Rectangle::new(corners, fill)])?;
        if dot.y.count > 1 {
            let middle = f64::midpoint(from, to);
            let (low, high) = ((middle, dot.y.min), (middle, dot.y.max));
            let thin = super::INK.stroke_width(3);
            plot.draw_series([PathElement::new([low, high], thin)])?;
        }
    }
    Ok(())
}
