//! Lines over a number: medians with the spread of their repeats, each with its name at its end.

use std::ops::Range;

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::Scale;
use super::{Area, Drawn, INK, LABEL, Plot, broken, colour, plot, style, width};
use crate::series::{Chart, Dot, Line, Origin};

/// The height of a row of a name at the end of a line, and the gap between two names.
const ROW_HIGH: i32 = 30;
const NAME_GAP: i32 = 6;
/// Wider names are broken into several rows.
const NAME_WIDE_MAX: i32 = 360;

/// Draws lines.
pub(super) fn draw(chart: &Chart, area: &Area<'_>) -> Drawn {
    let dots = || chart.lines.iter().flat_map(|line| &line.dots);
    let xs = || dots().map(|dot| dot.x);
    let ys = || dots().flat_map(|dot| [dot.y.min, dot.y.median, dot.y.max]);
    let x = match (chart.names.len(), chart.is_log_x) {
        (0, true) => Scale::log(xs()),
        (0, false) => Scale::at(xs()),
        (count, _) => Scale::of_names(count),
    };
    let y = if chart.is_log_y { Scale::log(ys()) } else { Scale::from_zero(ys()) };
    let rows = chart.lines.iter().flat_map(|line| broken(&line.name, LABEL, NAME_WIDE_MAX));
    let right = rows.map(|row| width(&row, LABEL)).max().unwrap_or(0) + 50;
    let mut plot = plot(chart, area, (&x, &y), (right, 0))?;
    let mut ends = Vec::new();
    // A paper's lines are drawn first, so that they do not cover the measured ones.
    let mut order: Vec<usize> = (0..chart.lines.len()).collect();
    order.sort_by_key(|index| (chart.lines[*index].origin != Origin::Paper, *index));
    for index in order {
        let line = &chart.lines[index];
        one(line, index, colour(chart, index), &mut plot)?;
        if let Some(Dot { x: at, y: spread, .. }) = line.dots.last() {
            let place = plot.backend_coord(&(*at, spread.median));
            ends.push((place, index));
        }
    }
    name_ends(chart, area, &plot, ends)
}

fn one(line: &Line, index: usize, colour: RGBColor, plot: &mut Plot<'_>) -> Drawn {
    let path: Vec<(f64, f64)> = line.dots.iter().map(|dot| (dot.x, dot.y.median)).collect();
    let dashed = |size: i32, space: i32| {
        DashedPathElement::new(path.clone(), size, space, colour.stroke_width(4))
    };
    match line.origin {
        Origin::Measured => {
            plot.draw_series([PathElement::new(path.clone(), colour.stroke_width(5))])?;
        }
        Origin::Predicted => {
            plot.draw_series([dashed(18, 10)])?;
        }
        Origin::Paper => {
            plot.draw_series([dashed(7, 11)])?;
        }
    }
    for dot in &line.dots {
        if dot.y.count > 1 {
            let (low, high) = ((dot.x, dot.y.min), (dot.x, dot.y.max));
            let thin = colour.stroke_width(3);
            plot.draw_series([PathElement::new([low, high], thin)])?;
            let cap = |end| EmptyElement::at(end) + PathElement::new([(-9, 0), (9, 0)], thin);
            plot.draw_series([cap(low), cap(high)])?;
        }
        mark(plot, (dot.x, dot.y.median), line.origin, index, colour)?;
    }
    Ok(())
}

/// Marks a point. The shapes differ too, for prints without colours.
fn mark(
    plot: &mut Plot<'_>,
    at: (f64, f64),
    origin: Origin,
    index: usize,
    colour: RGBColor,
) -> Drawn {
    const SHAPES: [&[(i32, i32)]; 3] = [
        &[(-9, -9), (9, -9), (9, 9), (-9, 9)],
        &[(0, -12), (11, 9), (-11, 9)],
        &[(0, -12), (12, 0), (0, 12), (-12, 0)],
    ];
    match (origin, index % (SHAPES.len() + 1)) {
        (Origin::Paper, _) => {
            plot.draw_series([Circle::new(at, 10, colour.stroke_width(4))])?;
        }
        (_, 0) => {
            plot.draw_series([Circle::new(at, 10, colour.filled())])?;
        }
        (_, shape) => {
            let polygon = Polygon::new(SHAPES[shape - 1].to_vec(), colour.filled());
            plot.draw_series([EmptyElement::at(at) + polygon])?;
        }
    }
    Ok(())
}

/// Writes each name next to the end of its line, as close as the other names allow.
fn name_ends(
    chart: &Chart,
    area: &Area<'_>,
    plot: &Plot<'_>,
    mut ends: Vec<((i32, i32), usize)>,
) -> Drawn {
    ends.sort_by_key(|((_, y), index)| (*y, *index));
    let rows = |index: usize| broken(&chart.lines[index].name, LABEL, NAME_WIDE_MAX);
    let high = |index: usize| rows(index).len() as i32 * ROW_HIGH + NAME_GAP;
    let preferred_tops: Vec<(i32, i32)> =
        ends.iter().map(|((_, y), index)| (y - high(*index) / 2, high(*index))).collect();
    let top = plot.plotting_area().get_pixel_range().1.start - ROW_HIGH;
    let places = spread(&preferred_tops, top..area.get_pixel_range().1.end);
    let x = plot.plotting_area().get_pixel_range().0.end + 26;
    for (((end_x, end_y), index), top) in ends.into_iter().zip(places) {
        let colour = colour(chart, index);
        let middle = top + high(index) / 2;
        let link = [(end_x + 14, end_y), (x - 6, middle)];
        area.draw(&PathElement::new(link, colour.stroke_width(2)))?;
        for (row, text) in rows(index).iter().enumerate() {
            let y = top + NAME_GAP / 2 + row as i32 * ROW_HIGH + ROW_HIGH / 2;
            area.draw_text(text, &style(LABEL, INK, HPos::Left, VPos::Center), (x, y))?;
        }
    }
    Ok(())
}

/// Moves overlapping boxes with these tops and heights apart by the smallest distance, each group
/// around its middle and within `room`. If the room is too small, they exceed its bottom, but never
/// its top.
fn spread(preferred_tops: &[(i32, i32)], room: Range<i32>) -> Vec<i32> {
    /// Adjacent boxes.
    struct Group {
        /// The sum of the tops of the group that its boxes prefer.
        sum: i64,
        count: i64,
        high: i64,
    }
    let (top, bottom) = (i64::from(room.start), i64::from(room.end));
    let begin = |group: &Group| (group.sum / group.count).min(bottom - group.high).max(top);
    let mut groups: Vec<Group> = Vec::new();
    for (preferred_top, high) in preferred_tops {
        groups.push(Group { sum: i64::from(*preferred_top), count: 1, high: i64::from(*high) });
        while let [.., before, last] = &groups[..] {
            if begin(before) + before.high <= begin(last) {
                break;
            }
            let joined = Group {
                sum: before.sum + last.sum - last.count * before.high,
                count: before.count + last.count,
                high: before.high + last.high,
            };
            groups.truncate(groups.len() - 2);
            groups.push(joined);
        }
    }
    let (mut places, mut heights) = (Vec::new(), preferred_tops.iter().map(|(_, high)| *high));
    for group in &groups {
        let mut place = begin(group) as i32;
        for high in heights.by_ref().take(group.count as usize) {
            places.push(place);
            place += high;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_places_where_there_is_room_and_move_apart_where_not() {
        let places =
            |tops: &[i32]| spread(&tops.iter().map(|top| (*top, 32)).collect::<Vec<_>>(), 10..300);
        assert_eq!(places(&[50, 200]), [50, 200]);
        assert_eq!(places(&[100, 100]), [84, 116]);
        assert_eq!(places(&[100, 101, 102]), [69, 101, 133]);
        assert_eq!(places(&[2, 3]), [10, 42]);
        assert_eq!(places(&[280, 290]), [236, 268]);
        assert_eq!(places(&[200, 260, 299]), [200, 236, 268]);
        assert_eq!(spread(&[(100, 60), (100, 30)], 0..300), [70, 130]);
        assert_eq!(spread(&[(9, 60), (9, 60)], 10..50), [10, 70]);
    }
}
