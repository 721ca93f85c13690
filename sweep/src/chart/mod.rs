//! Drawing: converts a chart's numbers to SVG, and SVG to PNG.
//!
//! The picture is drawn at twice the size at which it is shown, because the drawing library counts
//! in whole pixels. Colours are few and defined here. The report's style sheet matches them by
//! value and replaces them with darker and lighter ones, so that one SVG fits both kinds of
//! screens.

mod axis;
mod bars;
mod lines;
mod raster;
mod timeline;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::plan::Kind;
use crate::series::{Chart, Origin};
use axis::Scale;
pub(crate) use axis::number;
pub use raster::png;

/// The size of the drawing, in its own pixels: twice the visible size.
const SIZE: (u32, u32) = (1520, 800);
/// Text.
const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// Secondary text, and values stated by a paper.
const MUTED: RGBColor = RGBColor(0x59, 0x63, 0x6e);
/// Grid lines behind the data.
const GRID: RGBColor = RGBColor(0xdd, 0xe1, 0xe6);
/// The shading of the time of a fault.
const SHADE: RGBColor = RGBColor(0xf3, 0xe3, 0xd8);
/// Colours that can be distinguished with colour blindness, after Okabe and Ito, and then lighter
/// and darker ones: as many as a waterfall has parts, and some more.
const PALETTE: [RGBColor; 14] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xb8, 0x86, 0x0b),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x6a, 0x3d, 0x9a),
    RGBColor(0x7b, 0xcd, 0xb5),
    RGBColor(0x7c, 0x2f, 0x55),
    RGBColor(0xe6, 0xc6, 0x5c),
    RGBColor(0x00, 0x4c, 0x73),
    RGBColor(0xc3, 0xb1, 0xe1),
    RGBColor(0x8a, 0x3d, 0x00),
    RGBColor(0x70, 0x80, 0x90),
];
/// Font sizes of labels at axes and lines, and of numbers.
const LABEL: i32 = 27;
const NUMBER: i32 = 25;
/// The mean width of a letter, as a fraction of the font size.
const LETTER: f64 = 0.53;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Scale, Scale>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Returns the chart as an SVG document.
pub fn svg(chart: &Chart) -> String {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let drawn = match chart.kind {
            Kind::Line => lines::draw(chart, &area),
            Kind::Bar | Kind::Stacked => bars::draw(chart, &area),
            Kind::Timeline => timeline::draw(chart, &area),
        };
        drawn.and_then(|()| area.present()).expect("drawing into a string does not fail");
    }
    accessible(&text, chart)
}

/// Returns the description of the chart for screen readers.
pub fn description(chart: &Chart) -> String {
    let lines: Vec<&str> = chart.lines.iter().map(|line| line.name.as_str()).collect();
    let Chart { title, x_label, y_label, .. } = chart;
    format!("{title}: {y_label} over {x_label}; {}. A table follows.", lines.join("; "))
}

/// Adds a title and a description to the document, which the drawing library does not write.
fn accessible(text: &str, chart: &Chart) -> String {
    let start = text.find("<svg").expect("a drawing is an SVG element");
    let open = start + text[start..].find('>').expect("elements are closed") + 1;
    let (tag, rest) = (&text[start..open], &text[open..]);
    let tag = tag.replacen("<svg", "<svg role=\"img\"", 1);
    let (title, text) = (escape(&chart.title), escape(&description(chart)));
    format!("{tag}<title>{title}</title><desc>{text}</desc>{rest}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the colour of a line, by its index among the lines that are not a paper's.
fn colour(chart: &Chart, index: usize) -> RGBColor {
    match (chart.lines[index].origin, chart.kind) {
        (Origin::Paper, _) => return MUTED,
        // The sum of the other lines.
        (_, Kind::Timeline) if index == 0 => return INK,
        _ => {}
    }
    let before = chart.lines[..index].iter().filter(|line| line.origin != Origin::Paper).count();
    PALETTE[before % PALETTE.len()]
}

/// Returns the approximate width of a text: fonts differ, and none is loaded.
fn width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * LETTER) as i32
}

fn style(size: i32, colour: RGBColor, h: HPos, v: VPos) -> TextStyle<'static> {
    let font = ("sans-serif", size).into_font();
    TextStyle { font, color: colour.to_backend_color(), pos: Pos::new(h, v) }
}

/// Returns the coordinate system with its axes, grid and labels, and this margin on its right and
/// above it.
fn plot<'a>(
    chart: &Chart,
    area: &Area<'a>,
    (x, y): (&Scale, &Scale),
    (right, top): (i32, i32),
) -> Result<Plot<'a>, DrawingAreaErrorKind<std::io::Error>> {
    let widest = y.ticks.iter().map(|tick| width(&axis::number(*tick), NUMBER)).max();
    let left = widest.unwrap_or(0) + 70;
    let mut plot = ChartBuilder::on(area)
        .margin_right(right.max(30))
        .margin_top(top.max(24))
        .margin_left(6)
        .margin_bottom(8)
        .x_label_area_size(if chart.names.is_empty() { 78 } else { 102 })
        .y_label_area_size(left)
        .build_cartesian_2d(x.clone(), y.clone())?;
    plot.configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.stroke_width(2))
        .axis_style(MUTED.stroke_width(2))
        .x_desc(&chart.x_label)
        .y_desc(&chart.y_label)
        .axis_desc_style(style(LABEL, INK, HPos::Center, VPos::Center))
        .label_style(("sans-serif", NUMBER).into_font().color(&MUTED))
        .x_label_formatter(&|value| match chart.names.is_empty() {
            true => axis::number(*value),
            // Names are written below the axis, in several lines if they are long.
            false => String::new(),
        })
        .draw()?;
    write_names(chart, area, &plot, y)?;
    Ok(plot)
}

/// Writes the names below the axis, broken if they are wider than their slot.
fn write_names(chart: &Chart, area: &Area<'_>, plot: &Plot<'_>, y: &Scale) -> Drawn {
    let place = |x: f64| plot.backend_coord(&(x, y.floor()));
    let room = place(1.0).0 - place(0.0).0 - 8;
    for (at, name) in chart.names.iter().enumerate() {
        let (x, y) = place(at as f64);
        let style = style(NUMBER, MUTED, HPos::Center, VPos::Top);
        for (row, line) in broken(name, NUMBER, room).iter().take(2).enumerate() {
            area.draw_text(line, &style, (x, y + 10 + row as i32 * (NUMBER + 3)))?;
        }
    }
    Ok(())
}

/// Breaks a text at spaces into lines that fit.
fn broken(text: &str, size: i32, room: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Draws a row of names above the plot, each with its colour. Returns its height.
fn legend(chart: &Chart, area: &Area<'_>) -> Result<i32, DrawingAreaErrorKind<std::io::Error>> {
    const HIGH: i32 = 42;
    const SWATCH: i32 = 22;
    let (mut x, mut y) = (30, 10);
    let shown = chart.lines.iter().enumerate().filter(|(_, line)| !line.dots.is_empty());
    for (index, line) in shown {
        let wide = SWATCH + 12 + width(&line.name, LABEL) + 36;
        if x > 30 && x + wide > SIZE.0 as i32 {
            (x, y) = (30, y + HIGH);
        }
        let swatch = [(x, y + 4), (x + SWATCH, y + 4 + SWATCH)];
        let fill = bars::fill(line.origin, colour(chart, index));
        area.draw(&Rectangle::new(swatch, fill))?;
        let style = style(LABEL, INK, HPos::Left, VPos::Center);
        area.draw_text(&line.name, &style, (x + SWATCH + 12, y + 4 + SWATCH / 2))?;
        x += wide;
    }
    Ok(y + HIGH + 18)
}

#[cfg(test)]
mod tests;
