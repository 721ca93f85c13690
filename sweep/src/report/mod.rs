//! The report: one self-contained page, and its figures as separate files.
//!
//! ```text
//!   report.html      the whole report; works offline, in print, and in light and dark mode
//!   figures/*.svg    each picture
//!   figures/*.png    the same, for documents that do not support SVG
//!   runs/NNN.json    the results of each run (written by the runs)
//! ```

mod runs;
mod tables;

use std::path::{Path, PathBuf};
use std::{fs, io};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::bench::Facts;
use crate::chart;
use crate::check::Checked;
use crate::options::Engine;
use crate::plan::{Figure, Plan};
use crate::results::{Entry, Results};
use crate::series::{self, Chart};
use crate::tune;

const STYLE: &str = include_str!("style.css");

/// The contents of the page.
pub(crate) struct Material<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its points.
    pub checked: &'a Checked,
    /// The results of the points.
    pub results: &'a Results,
    /// The machine and the program.
    pub facts: &'a Facts,
}

/// A figure with its pictures.
struct Drawn<'a> {
    figure: &'a Figure,
    /// The name of each picture's files, without the extension, and its contents.
    charts: Vec<(String, Chart, String)>,
}

/// Writes the page and the pictures, and returns the path of the page.
///
/// # Errors
/// If the files cannot be written.
pub fn write(
    plan: &Plan,
    checked: &Checked,
    results: &Results,
    facts: &Facts,
    out: &Path,
) -> io::Result<PathBuf> {
    let material = Material { plan, checked, results, facts };
    let drawn = material.draw();
    let figures = out.join("figures");
    fs::create_dir_all(&figures)?;
    for (name, chart, svg) in drawn.iter().flat_map(|drawn| &drawn.charts) {
        fs::write(figures.join(format!("{name}.svg")), svg)?;
        fs::write(figures.join(format!("{name}.png")), chart::png(chart, svg))?;
    }
    let path = out.join("report.html");
    fs::write(&path, material.page(&drawn).into_string())?;
    Ok(path)
}

impl<'a> Material<'a> {
    fn draw(&self) -> Vec<Drawn<'a>> {
        let Self { plan, checked, results, facts } = self;
        let draw = |(at, figure): (usize, &'a Figure)| {
            let charts = series::charts(figure, &checked.points, results, &facts.build);
            let is_one = charts.len() == 1;
            let name = |part: usize| match is_one {
                true => format!("{:02}-{}", at + 1, slug(&figure.title)),
                false => format!("{:02}-{}-{}", at + 1, slug(&figure.title), part + 1),
            };
            let charts = charts.into_iter().enumerate();
            let charts = charts.map(|(part, chart)| {
                let svg = chart::svg(&chart);
                (name(part), chart, svg)
            });
            Drawn { figure, charts: charts.collect() }
        };
        plan.figures.iter().enumerate().map(draw).collect()
    }

    fn page(&self, drawn: &[Drawn<'_>]) -> Markup {
        let Self { plan, .. } = self;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content="pangea bench sweep";
                    title { (plan.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    header {
                        h1 { (plan.title) }
                        @if !plan.note.is_empty() {
                            div.note { @for part in paragraphs(&plan.note) { p { (part) } } }
                        }
                        (self.facts())
                    }
                    nav aria-label="Figures" {
                        ol {
                            @for (at, figure) in plan.figures.iter().enumerate() {
                                li { a href=(format!("#figure-{}", at + 1)) { (figure.title) } }
                            }
                            li { a href="#summary" { "All runs in a table" } }
                            li { a href="#runs" { "Each run" } }
                        }
                    }
                    main {
                        (self.failures())
                        @for (at, drawn) in drawn.iter().enumerate() { (section(at + 1, drawn)) }
                        h2 #summary { "All runs in a table" }
                        (tables::summary(self))
                        h2 #runs { "Each run" }
                        (runs::all(self))
                    }
                }
            }
        }
    }

    fn facts(&self) -> Markup {
        let Facts { machine, version, commit, command, .. } = self.facts;
        let ended = self.ended();
        let made: Vec<Engine> = Engine::ALL
            .into_iter()
            .filter(|engine| self.checked.points.iter().any(|point| point.engine == *engine))
            .collect();
        html! {
            dl.facts {
                dt { "Numbers are" }
                dd { @for engine in made { (badge(engine)) " " } }
                dt { "Machine" } dd { (machine) }
                dt { "Pangea" } dd { (version) ", commit " (commit) }
                dt { "Runs" } dd { (self.counted()) }
                @if let Some((first, last)) = ended {
                    dt { "Ended" } dd { (first) @if first != last { " to " (last) } }
                }
                dt { "Command" } dd { code { (command) } }
            }
        }
    }

    /// Returns the times at which the first and the last run ended.
    fn ended(&self) -> Option<(String, String)> {
        let keys = self.checked.points.iter().map(|point| point.key(&self.facts.build));
        let all = keys.flat_map(|key| {
            let entries = self.results.repeats(&key);
            entries.into_iter().map(|entry| entry.ended.clone()).collect::<Vec<_>>()
        });
        let all: Vec<String> = all.collect();
        Some((all.iter().min()?.clone(), all.iter().max()?.clone()))
    }

    /// Returns the number of completed runs and the total, as text.
    fn counted(&self) -> String {
        let mut keys: Vec<String> =
            self.checked.points.iter().map(|point| point.key(&self.facts.build)).collect();
        keys.sort();
        keys.dedup();
        let Self { plan, checked, results, facts } = self;
        let of = tune::runs(plan, &checked.points, Some(results), &facts.build);
        let entries = keys.iter().flat_map(|key| self.results.repeats(key));
        let (mut done, mut failed) = (0, 0);
        let limit = |entry: &Entry| plan.repeats + u32::from(results.is_tuned(&entry.key));
        for entry in entries.filter(|entry| entry.repeat < limit(entry)) {
            if entry.failure.is_none() { done += 1 } else { failed += 1 }
        }
        let left = of.saturating_sub(done + failed);
        let mut words = match &plan.tune[..] {
            [] => format!("{done} of {of}, {} of each point", plan.repeats),
            tuned => {
                let tuned = tuned.join(" and ");
                let each = "one of each point, then";
                format!("{done} of {of}: {each} {} of the best {tuned}", plan.repeats)
            }
        };
        if failed > 0 {
            words.push_str(&format!("; {failed} failed"));
        }
        if left > 0 {
            words.push_str(&format!("; {left} not run: --resume runs them"));
        }
        words
    }

    fn failures(&self) -> Markup {
        let mut failed = Vec::new();
        for point in &self.checked.points {
            for entry in self.results.repeats(&point.key(&self.facts.build)) {
                if let Some(why) = &entry.failure {
                    failed.push((point, entry, why));
                }
            }
        }
        html! {
            @if !failed.is_empty() {
                section aria-label="Failed runs" {
                    h2 { "Failed runs" }
                    p { "A run whose check fails has no throughput and is in no figure." }
                    ul {
                        @for (point, entry, why) in failed {
                            li {
                                span.badge.failed { "failed" } " "
                                (point) ", " (self.results.name(entry)) ": " (why)
                            }
                        }
                    }
                }
            }
        }
    }
}

fn section(number: usize, drawn: &Drawn<'_>) -> Markup {
    let Figure { title, note, ceilings, paper, .. } = drawn.figure;
    html! {
        section {
            h2 id=(format!("figure-{number}")) { (title) }
            @for paragraph in paragraphs(note) { p { (paragraph) } }
            @if drawn.charts.is_empty() { p.muted { "No run of this figure has results." } }
            @for (name, chart, svg) in &drawn.charts {
                figure {
                    @if chart.title != *title { h3 { (chart.title) } }
                    (PreEscaped(svg))
                    figcaption {
                        (tables::caption(chart))
                        " " a href=(format!("figures/{name}.png")) { "PNG" }
                        " " a href=(format!("figures/{name}.svg")) { "SVG" }
                    }
                }
                (tables::of_chart(chart))
            }
            @for ceiling in ceilings {
                p.muted { span.badge.paper { "model" } " " (ceiling.label) ": " (ceiling.source) }
            }
            @for paper in paper {
                p.muted { span.badge.paper { "paper" } " " (paper.label) ": " (paper.source) }
            }
        }
    }
}

/// Returns the badge for the origin of a number.
pub(crate) fn badge(engine: Engine) -> Markup {
    match engine {
        Engine::Real => html! { span.badge.measured { "measured" } },
        Engine::Predicted => html! { span.badge.predicted { "predicted, not measured" } },
    }
}

fn paragraphs(text: &str) -> impl Iterator<Item = String> {
    text.split("\n\n")
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| !part.is_empty())
}

/// Returns a title as the name of a file.
fn slug(title: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut slug: String = title.chars().map(letter).collect();
    while slug.contains("--") {
        slug = slug.replace("--", "-");
    }
    slug.trim_matches('-').chars().take(60).collect()
}

#[cfg(test)]
mod tests;
