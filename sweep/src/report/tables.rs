//! Tables: the values of each figure, and one line for every run.

use maud::{Markup, html};

use super::{Material, badge};
use crate::chart::number;
use crate::plan::Kind;
use crate::results::Spread;
use crate::series::{Chart, Dot, Line, Origin};

/// The columns of the table of all runs.
const COLUMNS: [(&str, &str); 8] = [
    ("throughput_per_sec", "txn/s"),
    ("latency_ms.p50", "p50 ms"),
    ("latency_ms.p99", "p99 ms"),
    ("shares.re-executed", "re-executed"),
    ("cpu_us_per_txn", "CPU µs"),
    ("wan_bytes_per_txn", "WAN bytes"),
    ("link_bytes_per_txn", "bytes between regions"),
    ("memory_mb", "memory MB"),
];

/// Returns the legend of a picture's symbols.
pub(super) fn caption(chart: &Chart) -> String {
    let has = |origin| chart.lines.iter().any(|line| line.origin == origin);
    let has_spread = chart.lines.iter().flat_map(|line| &line.dots).any(|dot| dot.y.count > 1);
    let mut parts = Vec::new();
    if chart.kind == Kind::Timeline {
        parts.push(
            "Commits in each step of the timeline, as a rate. A step is no shorter than the p50.",
        );
        if !chart.marks.is_empty() {
            parts.push("Shaded: the event that the text at the top names.");
        }
    }
    if has_spread && chart.kind != Kind::Stacked {
        parts.push("Medians; bars span the minimum to the maximum of the repeats.");
    }
    if has(Origin::Predicted) {
        parts.push("Dashed or pale: predicted, not measured.");
    }
    if has(Origin::Paper) {
        parts.push("Grey and hollow: values that the paper states, for its own machines.");
    }
    parts.join(" ")
}

/// Renders the values of a picture.
pub(super) fn of_chart(chart: &Chart) -> Markup {
    if chart.kind == Kind::Timeline {
        return stalls(chart);
    }
    let mut places: Vec<f64> = Vec::new();
    for dot in chart.lines.iter().flat_map(|line| &line.dots) {
        if !places.contains(&dot.x) {
            places.push(dot.x);
        }
    }
    places.sort_by(f64::total_cmp);
    let name = |x: f64| chart.names.get(x as usize).cloned().unwrap_or_else(|| number(x));
    let dot = |x: f64, line: usize| chart.lines[line].dots.iter().find(|dot| dot.x == x);
    html! {
        div.scroll tabindex="0" role="region" aria-label=(format!("Values of {}", chart.title)) {
            table {
                caption { (chart.y_label) }
                thead {
                    tr {
                        th scope="col" { (chart.x_label) }
                        @for line in &chart.lines { th scope="col" { (line.name) } }
                    }
                }
                tbody {
                    @for x in places {
                        tr {
                            th scope="row" { (name(x)) }
                            @for line in 0..chart.lines.len() { td { (cell(dot(x, line))) } }
                        }
                    }
                }
            }
        }
    }
}

fn cell(dot: Option<&Dot>) -> Markup {
    let Some(Dot { y, best, .. }) = dot else { return html! { "–" } };
    html! {
        (spread(y))
        @if !best.is_empty() { " " span.spread { (best) } }
    }
}

fn spread(spread: &Spread) -> Markup {
    let Spread { median, min, max, count } = *spread;
    html! {
        (number(median))
        @if count > 1 { " " span.spread { "(" (number(min)) "–" (number(max)) ")" } }
    }
}

/// Renders the values of a timeline: commits and pauses.
fn stalls(chart: &Chart) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(format!("Pauses of {}", chart.title)) {
            table {
                thead {
                    tr {
                        th scope="col" { "region" }
                        th scope="col" { "transactions a second, mean" }
                        th scope="col" { "longest time without a commit, s" }
                    }
                }
                tbody {
                    @for line in &chart.lines {
                        tr {
                            th scope="row" { (line.name) }
                            td { (number(mean(&line.dots))) }
                            td { (pause(chart, line)) }
                        }
                    }
                }
            }
        }
    }
}

fn mean(dots: &[Dot]) -> f64 {
    dots.iter().map(|dot| dot.y.median).sum::<f64>() / dots.len().max(1) as f64
}

fn pause(chart: &Chart, line: &Line) -> String {
    chart.pauses_secs.get(&line.name).map_or_else(|| "–".to_owned(), |secs| number(*secs))
}

/// Renders one line for every point.
pub(super) fn summary(material: &Material<'_>) -> Markup {
    let Material { plan, checked, results, facts } = material;
    let mut axes: Vec<&str> = plan.axes.iter().map(|axis| axis.name.as_str()).collect();
    let steps = plan.axes.iter().flat_map(|axis| &axis.steps);
    for (name, _) in steps.flat_map(|step| &step.finer) {
        if !axes.contains(&name.as_str()) {
            axes.push(name);
        }
    }
    html! {
        div.scroll tabindex="0" role="region" aria-label="All runs" {
            table {
                caption { "Medians of repeats, with the minimum and maximum throughput." }
                thead {
                    tr {
                        @for axis in &axes { th scope="col" { (axis) } }
                        th scope="col" { "" }
                        @for (_, label) in COLUMNS { th scope="col" { (label) } }
                    }
                }
                tbody {
                    @for point in &checked.points {
                        @let key = point.key(&facts.build);
                        tr {
                            @for axis in &axes {
                                td.text {
                                    @if let Some(value) = point.coordinate(axis) { (value) }
                                    @else { "–" }
                                }
                            }
                            td.text { (badge(point.engine)) }
                            @for (path, _) in COLUMNS {
                                td { (summary_cell(path, results.spread(&key, path))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn summary_cell(path: &str, found: Option<Spread>) -> Markup {
    match found {
        None => html! { "–" },
        // The traffic between the servers of another database is not measured.
        Some(found) if path == "wan_bytes_per_txn" && found.max == 0.0 => html! { "–" },
        Some(found) if path == "throughput_per_sec" => spread(&found),
        Some(found) if path.starts_with("shares.") => {
            html! { (number(found.median * 100.0)) " %" }
        }
        Some(found) => html! { (number(found.median)) },
    }
}
