//! Tests of the contents and the legibility of pictures.

use super::*;
use crate::results::Spread;
use crate::series::{Dot, Line, Mark};

fn line(name: &str, origin: Origin, values: &[(f64, &[f64])]) -> Line {
    let dot = |(x, ys): &(f64, &[f64])| Dot {
        x: *x,
        y: Spread::of(ys.iter().copied()).unwrap(),
        best: String::new(),
    };
    Line { name: name.to_owned(), origin, dots: values.iter().map(dot).collect() }
}

fn chart(kind: Kind, names: &[&str], lines: Vec<Line>) -> Chart {
    Chart {
        title: "Throughput & distance".to_owned(),
        kind,
        x_label: "round trip, ms".to_owned(),
        y_label: "transactions a second".to_owned(),
        is_log_x: false,
        is_log_y: false,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        lines,
        marks: Vec::new(),
        pauses_secs: Default::default(),
    }
}

fn texts(svg: &str) -> Vec<String> {
    let document = resvg::usvg::roxmltree::Document::parse(svg).unwrap();
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect()
}

#[test]
fn lines_have_axes_from_zero_names_at_their_ends_and_a_text_for_who_does_not_see() {
    let svg = svg(&chart(
        Kind::Line,
        &[],
        vec![
            line("exact", Origin::Measured, &[(0.0, &[900.0, 1_000.0]), (50.0, &[800.0])]),
            line("greedy (predicted)", Origin::Predicted, &[(0.0, &[700.0]), (50.0, &[600.0])]),
            line("Minerva (paper)", Origin::Paper, &[(0.0, &[1_300.0])]),
        ],
    ));
    let texts = texts(&svg);
    for text in ["0", "50", "1,000", "exact", "greedy (predicted)", "Minerva (paper)"] {
        assert!(texts.iter().any(|it| it == text), "{text} in {texts:?}");
    }
    assert!(svg.contains("<svg role=\"img\""));
    assert!(svg.contains("<title>Throughput &amp; distance</title>"), "{}", &svg[..300]);
    assert!(svg.contains("A table follows.</desc>"));
    assert!(svg.contains("#0072B2") && svg.contains("#D55E00"), "each line has its colour");
}

#[test]
fn each_of_many_parts_has_a_colour_of_its_own_that_the_report_knows() {
    let part = |at: usize| line(&format!("part {at}"), Origin::Measured, &[(0.0, &[1.0])]);
    let chart = chart(Kind::Stacked, &["all"], (0..PALETTE.len()).map(part).collect());
    let colours: Vec<_> = (0..PALETTE.len()).map(|at| colour(&chart, at)).collect();
    let style = include_str!("../report/style.css");
    for (at, RGBColor(red, green, blue)) in colours.iter().enumerate() {
        assert_eq!(colours.iter().position(|it| it == &colours[at]), Some(at));
        let known = format!("svg [fill=\"#{red:02X}{green:02X}{blue:02X}\"]");
        assert!(style.contains(&known), "{known}");
    }
}

#[test]
fn bars_stand_over_names() {
    let lines = vec![
        line("exact", Origin::Measured, &[(0.0, &[5.0]), (1.0, &[9.0])]),
        line("greedy", Origin::Measured, &[(0.0, &[4.0]), (1.0, &[8.0, 9.0])]),
    ];
    for kind in [Kind::Bar, Kind::Stacked] {
        let texts = texts(&svg(&chart(kind, &["near", "far away"], lines.clone())));
        for text in ["near", "far away", "exact", "greedy", "0"] {
            assert!(texts.iter().any(|it| it == text), "{kind:?}: {text} in {texts:?}");
        }
        // The height of a stack is the sum of its segments.
        let most = if kind == Kind::Stacked { "15" } else { "10" };
        assert!(texts.iter().any(|it| it == most), "{kind:?}: {texts:?}");
    }
}

#[test]
fn a_timeline_shows_what_was_done() {
    let lines = vec![line("all regions", Origin::Measured, &[(0.1, &[5.0]), (0.3, &[0.0])])];
    let mut chart = chart(Kind::Timeline, &[], lines);
    let mark = |from| Mark { from, to: from + 0.2, what: "kill region-1".to_owned() };
    chart.marks = vec![mark(0.2), mark(0.6)];
    chart.lines.push(line("region-2", Origin::Measured, &[]));
    let svg = svg(&chart);
    let named = |name: &str| texts(&svg).iter().filter(|text| *text == name).count();
    assert_eq!(named("kill region-1"), 1, "a repeated event has its name once");
    assert_eq!((named("all regions"), named("region-2")), (1, 0), "there is nothing of region-2");
    assert!(svg.contains("#F3E3D8"));
}

#[test]
fn nothing_is_drawn_of_nothing() {
    for kind in [Kind::Line, Kind::Bar, Kind::Stacked, Kind::Timeline] {
        assert!(svg(&chart(kind, &[], Vec::new())).starts_with("<svg"), "{kind:?}");
    }
}

#[test]
fn a_png_has_letters_without_fonts_of_the_system() {
    let dark = |name: &str| {
        let lines = vec![line(name, Origin::Measured, &[(0.0, &[5.0]), (1.0, &[9.0])])];
        let chart = chart(Kind::Line, &[], lines);
        let bytes = png(&chart, &svg(&chart));
        assert_eq!(&bytes[1..4], b"PNG");
        let pixels = resvg::tiny_skia::Pixmap::decode_png(&bytes).unwrap();
        let (width, height) = SIZE;
        assert_eq!((pixels.width(), pixels.height()), (width, height + raster::TITLE));
        let above = pixels.pixels().iter().take((width * raster::TITLE) as usize);
        assert!(above.filter(|pixel| pixel.green() < 100).count() > 300, "the title is there");
        pixels.pixels().iter().filter(|pixel| pixel.green() < 100).count()
    };
    // Cropped to the same width, so that only the letters differ.
    assert!(dark("MMMMMMMMMM") > dark("..........") + 200);
}
