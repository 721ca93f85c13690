//! PNG of an SVG, the same on every machine: with a font that comes along, and not the system's.

use std::sync::Arc;

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// The picture on white.
///
/// # Panics
/// When the text is no SVG of this crate.
pub fn png(svg: &str) -> Vec<u8> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    let family = fonts.faces().next().map(|face| face.families[0].0.clone());
    let family = family.expect("the font that comes along is one");
    fonts.set_sans_serif_family(&family);
    let options = Options { font_family: family, fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(svg, &options).expect("a drawing of this crate");
    let size = tree.size().to_int_size();
    let mut pixels = Pixmap::new(size.width(), size.height()).expect("a size above zero");
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::default(), &mut pixels.as_mut());
    pixels.encode_png().expect("a picture in memory has its format")
}
