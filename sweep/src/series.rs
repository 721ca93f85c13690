//! Selects the results for a figure: lines of medians, and next to them the lines of the paper.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::measure;
use crate::options::{Engine, Value};
use crate::plan::{Ceiling, Figure, Kind};
use crate::plan_error::PlanError;
use crate::points::Point;
use crate::relative::Relative;
use crate::results::{Entry, Results, Spread};

/// The data of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The kind of figure.
    pub kind: Kind,
    /// The label of the x axis.
    pub x_label: String,
    /// The label of the y axis.
    pub y_label: String,
    /// Whether the x axis is logarithmic.
    pub is_log_x: bool,
    /// Whether the y axis is logarithmic.
    pub is_log_y: bool,
    /// The names along the x axis, if it has no numbers.
    pub names: Vec<String>,
    /// The lines, or the bars of one colour.
    pub lines: Vec<Line>,
    /// Events during a run.
    pub marks: Vec<Mark>,
    /// The longest time without a commit of each line that has one, in seconds.
    pub pauses_secs: BTreeMap<String, f64>,
}

/// The origin of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Runs on this machine.
    Measured,
    /// The simulator.
    Predicted,
    /// A paper.
    Paper,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name in the figure, including its origin.
    pub name: String,
    /// Its origin.
    pub origin: Origin,
    /// Its points, by x.
    pub dots: Vec<Dot>,
}

/// A point of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Dot {
    /// The x coordinate: a number, or the index of a name.
    pub x: f64,
    /// The y value.
    pub y: Spread,
    /// The values of the options of which it is the best: `clients 4000`.
    pub best: String,
}

/// An event with a duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The beginning, in seconds.
    pub from: f64,
    /// The end, in seconds.
    pub to: f64,
    /// The name of the event.
    pub what: String,
}

impl Figure {
    /// Returns whether a point is in the figure.
    pub fn is_of(&self, point: &Point) -> bool {
        self.only.iter().all(|(name, value)| point.coordinate(name).as_ref() == Some(value))
            && !self.is_reference(point)
            && self.x.as_ref().is_none_or(|x| point.coordinate(x).is_some())
    }

    /// Returns the name of the line that contains a point.
    fn line_of(&self, point: &Point) -> String {
        let parts = self.series.iter().filter_map(|name| {
            let value = point.coordinate(name)?;
            let key = name.rsplit('.').next().unwrap_or(name);
            Some(match value {
                Value::Text(text) => text,
                Value::Number(number) => format!("{key} {number}"),
                Value::Flag(is_on) => format!("{key} {}", if is_on { "on" } else { "off" }),
            })
        });
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// Rejects a figure without runs, or with several runs at one position.
///
/// # Errors
/// The option that would distinguish them.
pub fn check(figure: &Figure, points: &[Point]) -> Result<(), PlanError> {
    let wrong =
        |message: String| Err(PlanError::new(figure.line, format!("[[figure]]: {message}")));
    for point in points.iter().filter(|point| figure.is_of(point)) {
        figure.check_relative(point, points).or_else(wrong)?;
    }
    let mut places: BTreeMap<(Engine, String, String), &Point> = BTreeMap::new();
    for point in points.iter().filter(|point| figure.is_of(point)) {
        let x = figure.x.as_ref().and_then(|x| point.coordinate(x));
        let x = x.map(|value| value.to_string()).unwrap_or_default();
        let place = (point.engine, figure.line_of(point), x);
        let Some(other) = places.insert(place, point) else { continue };
        let differs = |name: &&String| point.labels.get(*name) != other.labels.get(*name);
        let mut apart = point.labels.keys().filter(differs);
        if let Some(name) = apart.find(|name| !figure.best_of.contains(name)) {
            return wrong(format!(
                "\"{point}\" and \"{other}\" have the same position: add {name} to series, only or \
                 best_of"
            ));
        }
    }
    match places.is_empty() {
        true => wrong("it has no run of this plan: check x and only".to_owned()),
        false => Ok(()),
    }
}

/// Returns the charts of a figure: one, or one for each run of a timeline.
pub fn charts(figure: &Figure, points: &[Point], results: &Results, build: &str) -> Vec<Chart> {
    let relative = Relative { figure, points, results, build };
    let points: Vec<&Point> = points.iter().filter(|point| figure.is_of(point)).collect();
    if figure.kind == Kind::Timeline {
        let of = |point: &&Point| timeline(figure, point, results.median(&point.key(build))?);
        return points.iter().filter_map(of).collect();
    }
    let x = figure.x.as_deref().expect("a figure over an option has one");
    let names = names(figure, x, &points);
    let mut lines = measured(x, &points, &relative, &names);
    lines.extend(ceilings(x, &points, &relative, &lines));
    let place = |x: f64| match names.is_empty() {
        true => Some(x),
        false => names.iter().position(|name| *name == x.to_string()).map(|at| at as f64),
    };
    for paper in &figure.paper {
        let dot = |(x, y): &(f64, f64)| {
            Some(Dot { x: place(*x)?, y: Spread::of([*y])?, best: String::new() })
        };
        let name = format!("{} (paper)", paper.label);
        let dots = paper.points.iter().filter_map(dot).collect();
        lines.push(Line { name, origin: Origin::Paper, dots });
    }
    let own = || relative.label(measure::label_of_all(&figure.y));
    vec![Chart {
        title: figure.title.clone(),
        kind: figure.kind,
        x_label: figure.x_label.clone().unwrap_or_else(|| measure::option_label(x).to_owned()),
        y_label: figure.y_label.clone().unwrap_or_else(own),
        is_log_x: figure.is_log_x && names.is_empty(),
        is_log_y: figure.is_log_y,
        names,
        lines,
        marks: Vec::new(),
        pauses_secs: BTreeMap::new(),
    }]
}

/// Returns the names along the x axis, in the order of the plan: for bars, and for values that are
/// not numbers.
fn names(figure: &Figure, x: &str, points: &[&Point]) -> Vec<String> {
    let mut values: Vec<Value> = Vec::new();
    for value in points.iter().filter_map(|point| point.coordinate(x)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    let are_numbers = values.iter().all(|value| value.number().is_some());
    if are_numbers && figure.kind == Kind::Line {
        return Vec::new();
    }
    values.iter().map(Value::to_string).collect()
}

/// Points of one line, each with its position.
struct Group<'a> {
    engine: Engine,
    name: String,
    members: Vec<(f64, &'a Point)>,
}

/// Returns the lines of models, at the positions of the other lines. If y is a slowdown, it is
/// relative to the reference of the first run.
fn ceilings(x: &str, points: &[&Point], relative: &Relative<'_>, lines: &[Line]) -> Vec<Line> {
    let Relative { figure, .. } = relative;
    let dots = lines.iter().flat_map(|line| &line.dots);
    let mut places: Vec<f64> = dots.map(|dot| dot.x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let first = points.iter().find(|point| point.coordinate(x).is_some());
    let reference = first.and_then(|point| relative.reference(point, &figure.y[0]));
    let line = |ceiling: &Ceiling| {
        let dot = |at: f64| {
            let most = ceiling.per_x * at;
            let y = reference.map_or(most, |reference| (reference / most).max(1.0));
            Some(Dot { x: at, y: Spread::of([y])?, best: String::new() })
        };
        let name = format!("{} (model)", ceiling.label);
        let dots = places.iter().filter_map(|at| dot(*at)).collect();
        Line { name, origin: Origin::Paper, dots }
    };
    figure.ceilings.iter().map(line).collect()
}

/// Returns the lines of measured and predicted runs.
fn measured(x: &str, points: &[&Point], relative: &Relative<'_>, names: &[String]) -> Vec<Line> {
    let Relative { figure, .. } = relative;
    // The lines are in the order of the plan.
    let mut lines: Vec<Group<'_>> = Vec::new();
    for point in points {
        let value = point.coordinate(x).expect("only points with the option are in the figure");
        let at = match names.is_empty() {
            true => value.number(),
            false => names.iter().position(|name| *name == value.to_string()).map(|at| at as f64),
        };
        let at = at.expect("names are those of all points");
        let (engine, name) = (point.engine, figure.line_of(point));
        match lines.iter_mut().find(|line| line.engine == engine && line.name == name) {
            Some(line) => line.members.push((at, point)),
            None => lines.push(Group { engine, name, members: vec![(at, point)] }),
        }
    }
    let mut found = Vec::new();
    for Group { engine, name, members } in &lines {
        for y in &figure.y {
            let mut dots = dots(y, members, relative);
            dots.sort_by(|a, b| a.x.total_cmp(&b.x));
            let part = (figure.y.len() > 1).then(|| measure::short(y));
            let parts = [Some(name.clone()).filter(|name| !name.is_empty()), part];
            let name = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
            found.push(line(*engine, name, dots));
        }
    }
    found
}

fn line(engine: Engine, name: String, dots: Vec<Dot>) -> Line {
    let (origin, word) = match engine {
        Engine::Real => (Origin::Measured, "measured"),
        Engine::Predicted => (Origin::Predicted, "predicted"),
    };
    let name = match (name.is_empty(), origin) {
        (true, _) => word.to_owned(),
        (false, Origin::Predicted) => format!("{name} (predicted)"),
        (false, _) => name,
    };
    Line { name, origin, dots }
}

/// Returns the points of a line. If several runs have the same position, the one with the highest
/// throughput is shown. If one was repeated because it was the best, the runs that were only made
/// to choose it are not considered; if all of its runs failed, the position is empty.
fn dots(y: &str, members: &[(f64, &Point)], relative: &Relative<'_>) -> Vec<Dot> {
    let Relative { figure, results, build, .. } = *relative;
    let mut best: Vec<(f64, f64, Dot)> = Vec::new();
    let is_repeated = |point: &Point| results.is_repeated(&point.key(build));
    for (x, point) in members {
        let at_place = members.iter().filter(|(other, _)| other == x).map(|(_, point)| *point);
        if !is_repeated(point) && at_place.clone().any(is_repeated) {
            continue;
        }
        let key = point.key(build);
        let Some(spread) = relative.value(point, y) else { continue };
        let rate = results.spread(&key, "throughput_per_sec").map_or(0.0, |rate| rate.median);
        let dot = Dot { x: *x, y: spread, best: best_words(figure, point, at_place) };
        match best.iter_mut().find(|(other, _, _)| other == x) {
            Some((_, most, held)) if rate > *most => (*most, *held) = (rate, dot),
            Some(_) => {}
            None => best.push((*x, rate, dot)),
        }
    }
    best.into_iter().map(|(_, _, dot)| dot).collect()
}

/// Returns the values of the options of which a point is the best, and whether they are at an end
/// of the tried range: the true optimum may then be outside of it.
fn best_words<'a>(
    figure: &Figure,
    point: &Point,
    tried: impl Iterator<Item = &'a Point> + Clone,
) -> String {
    let word = |name: &String| {
        let value = point.coordinate(name)?;
        let mut word = format!("{name} {value}");
        let number = value.number();
        let all = tried.clone().filter_map(|other| other.coordinate(name)?.number());
        let (least, most) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
            (low.min(number), high.max(number))
        });
        if let Some(number) = number.filter(|_| least < most) {
            match (number == least, number == most) {
                (true, _) => word.push_str(", the lowest tried"),
                (_, true) => word.push_str(", the highest tried"),
                _ => {}
            }
        }
        Some(word)
    };
    figure.best_of.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// Returns the commits over the time of one run.
fn timeline(figure: &Figure, point: &Point, entry: &Entry) -> Option<Chart> {
    let results = entry.results.as_ref()?;
    let timeline = &results["timeline"];
    let step_ms = timeline["step_ms"].as_f64()?;
    let count = steps_of_a_wave(step_ms, results["latency_ms"]["p50"].as_f64());
    let line = |counts: Vec<f64>| rates(&merged(&counts, count), step_ms * count as f64 / 1e3);
    let regions = timeline["regions"].as_object()?;
    let mut lines = vec![Line {
        name: "all regions".to_owned(),
        origin: Origin::Measured,
        dots: line(sums(regions.values())),
    }];
    for (name, counts) in regions {
        let dots = line(sums([counts]));
        lines.push(Line { name: name.clone(), origin: Origin::Measured, dots });
    }
    let mark = |fault: &Json| {
        Some(Mark {
            from: fault["from_secs"].as_f64()?,
            to: fault["to_secs"].as_f64()?,
            what: fault["what"].as_str()?.to_owned(),
        })
    };
    let marks = results["faults"].as_array().into_iter().flatten().filter_map(mark).collect();
    let pause = |(name, ms): (&String, &Json)| Some((name.clone(), ms.as_f64()? / 1e3));
    let pauses = results["stalls_ms"].as_object();
    let name = figure.line_of(point);
    Some(Chart {
        title: if name.is_empty() { figure.title.clone() } else { name },
        kind: Kind::Timeline,
        x_label: figure.x_label.clone().unwrap_or_else(|| "time, s".to_owned()),
        y_label: figure.y_label.clone().unwrap_or_else(|| "transactions a second".to_owned()),
        is_log_x: false,
        is_log_y: false,
        names: Vec::new(),
        lines,
        marks,
        pauses_secs: pauses.into_iter().flatten().filter_map(pause).collect(),
    })
}

fn sums<'a>(regions: impl IntoIterator<Item = &'a Json>) -> Vec<f64> {
    let mut sums: Vec<f64> = Vec::new();
    for counts in regions.into_iter().filter_map(Json::as_array) {
        sums.resize(sums.len().max(counts.len()), 0.0);
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count.as_f64().unwrap_or(0.0);
        }
    }
    sums
}

/// Returns the number of steps that are shown as one. Clients of a closed loop begin together, so
/// their commits come in waves, one in each latency, and shorter steps between two waves are empty.
fn steps_of_a_wave(step_ms: f64, latency_ms: Option<f64>) -> usize {
    (latency_ms.unwrap_or_default() / step_ms).ceil().max(1.0) as usize
}

/// Adds up each `count` steps. Leaves out the last ones, if they are fewer.
fn merged(counts: &[f64], count: usize) -> Vec<f64> {
    counts.chunks_exact(count).map(|steps| steps.iter().sum()).collect()
}

fn rates(counts: &[f64], step_secs: f64) -> Vec<Dot> {
    let dot = |(at, count): (usize, &f64)| {
        let y = Spread::of([count / step_secs])?;
        Some(Dot { x: (at as f64 + 0.5) * step_secs, y, best: String::new() })
    };
    counts.iter().enumerate().filter_map(dot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: the timeline of clients that wait for 180 ms fell to 0 between their waves.
    #[test]
    fn steps_shorter_than_a_wave_are_shown_as_one() {
        assert_eq!([Some(40.0), Some(180.0), None].map(|ms| steps_of_a_wave(100.0, ms)), [1, 2, 1]);
        let waves = [9.0, 0.0, 8.0, 9.0, 0.0, 8.0, 1.0];
        assert_eq!(merged(&waves, 2), [9.0, 17.0, 8.0]);
        assert_eq!(merged(&waves, 1), waves);
    }
}
