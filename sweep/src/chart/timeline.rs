//! Commits over the time of a run, with the events during it.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Scale;
use super::{Area, Drawn, INK, NUMBER, SHADE, SIZE, colour, legend, plot, style};
use crate::series::Chart;

/// The number of rows for labels; labels that would overlap are placed in different rows.
const LABEL_ROWS: usize = 3;
/// The gap next to a label, in pixels.
const GAP: i32 = 8;

/// Draws a timeline.
pub(super) fn draw(chart: &Chart, area: &Area<'_>) -> Drawn {
    let top = legend(chart, area)?;
    let dots = || chart.lines.iter().flat_map(|line| &line.dots);
    let end = dots().map(|dot| dot.x).fold(1.0, f64::max).ceil();
    let every = (end / 12.0).ceil();
    let ticks = (0..=(end / every) as usize).map(|tick| tick as f64 * every);
    let (x, y) = (Scale::at(ticks), Scale::from_zero(dots().map(|dot| dot.y.max)));
    let mut plot = plot(chart, area, (&x, &y), (0, top))?;
    let (low, high) = (y.floor(), y.ceiling());
    for mark in &chart.marks {
        let corners = [(mark.from, low), (mark.to, high)];
        plot.draw_series([Rectangle::new(corners, SHADE.filled())])?;
    }
    for (index, line) in chart.lines.iter().enumerate() {
        let path: Vec<(f64, f64)> = line.dots.iter().map(|dot| (dot.x, dot.y.median)).collect();
        let thick = if index == 0 { 5 } else { 3 };
        let stroke = colour(chart, index).stroke_width(thick);
        plot.draw_series([PathElement::new(path, stroke)])?;
    }
    // The end of the last label in each row. An event whose label does not fit is only shaded.
    let mut ends = [i32::MIN; LABEL_ROWS];
    for (at, mark) in chart.marks.iter().enumerate() {
        if chart.marks[..at].iter().any(|before| before.what == mark.what) {
            // The label is next to the first of them.
            continue;
        }
        let (x, y) = plot.backend_coord(&(mark.from, high));
        let style = style(NUMBER, INK, HPos::Left, VPos::Top);
        let (wide, tall) = area.estimate_text_size(&mark.what, &style)?;
        let from = (x + GAP).min(SIZE.0 as i32 - wide as i32 - GAP);
        let Some(row) = ends.iter().position(|end| *end < from) else { continue };
        ends[row] = from + GAP + wide as i32;
        area.draw_text(&mark.what, &style, (from, y + 6 + row as i32 * (tall as i32 + 4)))?;
    }
    Ok(())
}
