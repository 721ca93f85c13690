//! `[[figure]]`: the figures of the results.

use super::read::Table;
use crate::measure;
use crate::options::Value;
use crate::plan_error::{PlanError, unknown};

/// The kind of figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines over a number.
    Line,
    /// Bars; those with the same x are next to each other.
    Bar,
    /// Stacked bars of several measures.
    Stacked,
    /// Commits over the time of a run, by region.
    Timeline,
}

impl Kind {
    const NAMES: [&'static str; 4] = ["line", "bar", "stacked", "timeline"];

    fn named(name: &str) -> Option<Self> {
        match name {
            "line" => Some(Self::Line),
            "bar" => Some(Self::Bar),
            "stacked" => Some(Self::Stacked),
            "timeline" => Some(Self::Timeline),
            _ => None,
        }
    }
}

/// Values stated by a paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Paper {
    /// The name of the values.
    pub label: String,
    /// The reference to the paper.
    pub source: String,
    /// The numbers: x and y.
    pub points: Vec<(f64, f64)>,
}

/// A model's line: an upper bound for all systems of some kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// The name of the line.
    pub label: String,
    /// The reference of the model.
    pub source: String,
    /// The upper bound of the measure, for each unit of x.
    pub per_x: f64,
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The line in the plan.
    pub line: usize,
    /// The title.
    pub title: String,
    /// Notes for the reader.
    pub note: String,
    /// The kind of figure.
    pub kind: Kind,
    /// The option along the x axis. A timeline has none.
    pub x: Option<String>,
    /// The measures: paths into a run's results.
    pub y: Vec<String>,
    /// The options that distinguish the lines.
    pub series: Vec<String>,
    /// Options of which only the best value is shown: the one with the highest throughput.
    pub best_of: Vec<String>,
    /// The selected runs: those with these values.
    pub only: Vec<(String, Value)>,
    /// Whether the x axis is logarithmic.
    pub is_log_x: bool,
    /// Whether the y axis is logarithmic.
    pub is_log_y: bool,
    /// The label of the x axis, if not the option's own.
    pub x_label: Option<String>,
    /// The label of the y axis, if not the measure's own.
    pub y_label: Option<String>,
    /// The option by whose number all values are divided.
    pub per: Option<String>,
    /// Values of options that select a reference run: y is the ratio of the reference to a run.
    pub slowdown_from: Vec<(String, Value)>,
    /// The lines of models.
    pub ceilings: Vec<Ceiling>,
    /// The lines of a paper.
    pub paper: Vec<Paper>,
}

const KEYS: [&str; 15] = [
    "title",
    "note",
    "kind",
    "x",
    "y",
    "series",
    "best_of",
    "only",
    "log",
    "x_label",
    "y_label",
    "per",
    "slowdown_from",
    "ceiling",
    "paper",
];

impl Figure {
    pub(super) fn read(table: &Table<'_>) -> Result<Self, PlanError> {
        table.allow(&KEYS)?;
        let texts = |key: &str| table.find(key).map_or(Ok(Vec::new()), |item| item.texts());
        let label = |key: &str| table.find(key).map(|item| item.text()).transpose();
        let values = |key: &str| {
            let options = table.find(key).map(|item| item.table(key)?.options(&[])).transpose()?;
            let options = options.into_iter().flatten();
            Ok(options.map(|bound| (bound.name, bound.value)).collect())
        };
        let kind = table.find("kind");
        let kind = kind.map_or(Ok(Kind::Line), |item| item.one_of(Kind::named, &Kind::NAMES))?;
        let log = texts("log")?;
        if let Some(axis) = log.iter().find(|axis| !["x", "y"].contains(&axis.as_str())) {
            return Err(PlanError::new(table.line(), unknown("axis", axis, ["x", "y"])));
        }
        let figure = Self {
            line: table.line(),
            title: table.text("title")?,
            note: label("note")?.unwrap_or_default(),
            kind,
            x: label("x")?,
            y: texts("y")?,
            series: texts("series")?,
            best_of: texts("best_of")?,
            only: values("only")?,
            is_log_x: log.iter().any(|axis| axis == "x"),
            is_log_y: log.iter().any(|axis| axis == "y"),
            x_label: label("x_label")?,
            y_label: label("y_label")?,
            per: label("per")?,
            slowdown_from: values("slowdown_from")?,
            ceilings: all_of(table, "ceiling", ceiling)?,
            paper: all_of(table, "paper", paper)?,
        };
        figure.check()?;
        Ok(figure)
    }

    fn check(&self) -> Result<(), PlanError> {
        let wrong =
            |message: String| Err(PlanError::new(self.line, format!("[[figure]]: {message}")));
        if self.kind == Kind::Timeline {
            let is_bare = self.per.is_none() && self.slowdown_from.is_empty();
            let is_bare = is_bare && self.paper.is_empty() && self.ceilings.is_empty();
            return match self.x.is_none() && self.y.is_empty() && is_bare {
                true => Ok(()),
                false => wrong("a timeline has neither x nor y: it shows commits over time".into()),
            };
        }
        if self.x.is_none() {
            return wrong("it has no x, the option along its axis".into());
        }
        if self.y.is_empty() {
            return wrong("it has no y, as in y = \"throughput_per_sec\"".into());
        }
        for path in &self.y {
            if let Err(message) = measure::check(path) {
                return wrong(message);
            }
        }
        Ok(())
    }
}

/// Reads all tables of a list.
fn all_of<T>(
    table: &Table<'_>,
    key: &str,
    read: fn(&Table<'_>) -> Result<T, PlanError>,
) -> Result<Vec<T>, PlanError> {
    let tables = table.find(key).map(|item| item.tables()).transpose()?.unwrap_or_default();
    tables.iter().map(read).collect()
}

fn ceiling(table: &Table<'_>) -> Result<Ceiling, PlanError> {
    table.allow(&["label", "source", "per_x"])?;
    let missing = || PlanError::new(table.line(), "ceiling has no per_x, as in per_x = 125");
    let per_x = table.find("per_x").ok_or_else(missing)?.number()?;
    Ok(Ceiling { label: table.text("label")?, source: table.text("source")?, per_x })
}

fn paper(table: &Table<'_>) -> Result<Paper, PlanError> {
    table.allow(&["label", "source", "points"])?;
    let missing = || PlanError::new(table.line(), "paper has no points, as in [[0, 10000]]");
    let points = table.find("points").ok_or_else(missing)?.each()?;
    Ok(Paper {
        label: table.text("label")?,
        source: table.text("source")?,
        points: points.iter().map(|pair| pair.pair()).collect::<Result<_, _>>()?,
    })
}
