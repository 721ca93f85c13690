//! Converts an SVG to a PNG that is identical on every machine: it uses a bundled font instead of
//! the system's.

use std::sync::Arc;

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use super::{INK, LABEL, SIZE, escape};
use crate::series::Chart;

/// The height of the title above the drawing.
pub(super) const TITLE: u32 = 64;

/// Returns the picture of a chart on white, below its title. A page that shows the SVG has the
/// title next to it, but a picture is used without a page.
///
/// # Panics
/// If `svg` is not the chart's drawing.
pub fn png(chart: &Chart, svg: &str) -> Vec<u8> {
    let svg = titled(&chart.title, svg);
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    let family = fonts.faces().next().map(|face| face.families[0].0.clone());
    let family = family.expect("the bundled font is valid");
    fonts.set_sans_serif_family(&family);
    let options = Options { font_family: family, fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(&svg, &options).expect("the drawing is valid SVG");
    let size = tree.size().to_int_size();
    let mut pixels = Pixmap::new(size.width(), size.height()).expect("the size is not zero");
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::default(), &mut pixels.as_mut());
    pixels.encode_png().expect("the picture can be encoded")
}

/// Returns the drawing below a line with its title.
fn titled(title: &str, drawing: &str) -> String {
    let (width, height) = (SIZE.0, SIZE.1 + TITLE);
    let drawing = drawing.replacen("<svg", &format!("<svg y=\"{TITLE}\""), 1);
    let plotters::style::RGBColor(r, g, b) = INK;
    format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\"><text x=\"30\" y=\"{}\" font-size=\"{}\" \
         fill=\"#{r:02x}{g:02x}{b:02x}\">{}</text>{drawing}</svg>",
        TITLE - 16,
        LABEL + 8,
        escape(title)
    )
}
