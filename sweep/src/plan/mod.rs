//! Plans: the runs and the figures, as described by a TOML file.
//!
//! ```text
//!   [base]    options of every run
//!   [[case]]  options that go together, under a name    \
//!   [[series]] a second axis of this kind                >  axes: a point for each combination
//!   [sweep]   an option and the values that it takes    /
//!   [[fault]] a fault of nodes during a measured run
//!   [[figure]] a figure of the report
//! ```
//!
//! Later axes vary faster: cases are the slowest, then series, then those of `[sweep]` in the order
//! of the file. Options of an axis override those of `[base]`. Two axes never set the same option.

mod fault;
mod figure;
mod read;

pub use figure::{Ceiling, Figure, Kind, Paper};
pub use read::Bound;

use crate::options::{Engine, Value};
use crate::plan_error::{PlanError, unknown};
use read::{Choices, Item, Table};

/// The maximum number of repeats: more provide no information.
const REPEATS_MAX: u32 = 100;
/// The keys at the top of a plan.
const KEYS: [&str; 11] = [
    "title", "note", "engine", "repeats", "tune", "base", "sweep", "case", "series", "fault",
    "figure",
];

/// A plan as described by its file. The meaning of its options is unknown to this crate.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The title.
    pub title: String,
    /// Notes for the reader of the report.
    pub note: String,
    /// The engine, unless an option overrides it.
    pub engine: Engine,
    /// The number of runs of each point.
    pub repeats: u32,
    /// Options of which every value is run once, and only the best one is run `repeats` times.
    pub tune: Vec<String>,
    /// Options of every run.
    pub base: Vec<Bound>,
    /// The axes, slowest first.
    pub axes: Vec<Axis>,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// An axis of variation.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name: `case`, `series`, or that of an option.
    pub name: String,
    /// The line in the plan.
    pub line: usize,
    /// The values of the axis.
    pub steps: Vec<Step>,
}

/// One of the values of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The name of the value in figures.
    pub label: Value,
    /// The options that it sets.
    pub bound: Vec<Bound>,
    /// Those of its options that have several values in the plan: other steps with the same label
    /// have the other values.
    pub finer: Vec<(String, Value)>,
}

impl Plan {
    /// Parses a plan.
    ///
    /// # Errors
    /// If the plan is invalid; the error has the line of the problem.
    ///
    /// ```
    /// let text = "title = 'T'\n[base]\nworkload = 'bank'\n[sweep]\nrtt = [0, 50]\n";
    /// let plan = pangea_sweep::Plan::parse(text)?;
    /// assert_eq!(plan.axes[0].steps.len(), 2);
    /// let error = pangea_sweep::Plan::parse("title = 'T'\nrepeat = 3\n").unwrap_err();
    /// assert!(error.to_string().starts_with("line 2: there is no key in a plan \"repeat\""));
    /// # Ok::<(), pangea_sweep::PlanError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let parsed = read::parse(text)?;
        let top = Table::new(text, "a plan", 1, parsed.get_ref());
        top.allow(&KEYS)?;
        let tables = |key: &str| top.find(key).map_or(Ok(Vec::new()), |item| item.tables());
        let mut base = match top.find("base") {
            Some(item) => item.table("[base]")?.options(&[])?,
            None => Vec::new(),
        };
        if base.iter().any(|bound| bound.name == "fault") && top.find("fault").is_some() {
            let line = top.find("fault").map_or(1, |item| item.line);
            return Err(PlanError::new(line, "there are already faults in [base]"));
        }
        base.extend(fault::read(&tables("fault")?)?);
        let mut axes = Vec::new();
        for name in ["case", "series"] {
            let all = tables(name)?;
            if !all.is_empty() {
                axes.push(named(name, &all)?);
            }
        }
        if let Some(item) = top.find("sweep") {
            swept(item, &mut axes)?;
        }
        let plan = Self {
            title: top.text("title")?,
            note: top.find("note").map_or(Ok(String::new()), |item| item.text())?,
            engine: match top.find("engine") {
                None => Engine::Real,
                Some(item) => item.one_of(Engine::named, &Engine::ALL.map(Engine::name))?,
            },
            repeats: top.find("repeats").map_or(Ok(1), |item| item.count(1, REPEATS_MAX))?,
            tune: top.find("tune").map_or(Ok(Vec::new()), |item| item.texts())?,
            base,
            axes,
            figures: tables("figure")?.iter().map(Figure::read).collect::<Result<_, _>>()?,
        };
        plan.check_axes()?;
        let coordinates = plan.coordinates();
        if let Some(name) = plan.tune.iter().find(|name| !coordinates.contains(&name.as_str())) {
            let line = top.find("tune").map_or(1, |item| item.line);
            return Err(PlanError::new(line, unknown("option in this plan", name, coordinates)));
        }
        plan.figures.iter().try_for_each(|figure| plan.check_figure(figure))?;
        Ok(plan)
    }

    /// Returns all names that a figure can use: those of axes and of options.
    pub fn coordinates(&self) -> Vec<&str> {
        let axes = self.axes.iter().map(|axis| axis.name.as_str());
        let steps = self.axes.iter().flat_map(|axis| &axis.steps).flat_map(|step| &step.bound);
        let options = self.base.iter().chain(steps).map(|bound| bound.name.as_str());
        let mut all: Vec<&str> = axes.chain(options).chain(["engine"]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn check_axes(&self) -> Result<(), PlanError> {
        for (at, axis) in self.axes.iter().enumerate() {
            for bound in axis.steps.iter().flat_map(|step| &step.bound) {
                let sets = |other: &&Axis| {
                    let mut all = other.steps.iter().flat_map(|step| &step.bound);
                    all.any(|it| it.name == bound.name)
                };
                if let Some(other) = self.axes[..at].iter().find(sets) {
                    let (name, one, two) = (&bound.name, &other.name, &axis.name);
                    let message = format!("{name} is already set by {one}, and here by {two}");
                    return Err(PlanError::new(bound.line, message));
                }
            }
        }
        Ok(())
    }

    fn check_figure(&self, figure: &Figure) -> Result<(), PlanError> {
        let coordinates = self.coordinates();
        let used = figure.x.iter().chain(&figure.series).chain(&figure.best_of);
        let values = figure.only.iter().chain(&figure.slowdown_from);
        let used = used.chain(values.map(|(name, _)| name)).chain(&figure.per);
        for name in used {
            if !coordinates.contains(&name.as_str()) {
                let message = unknown("option in this plan", name, coordinates);
                return Err(PlanError::new(figure.line, format!("[[figure]]: {message}")));
            }
        }
        Ok(())
    }
}

/// Returns an axis of named tables.
fn named(name: &str, tables: &[Table<'_>]) -> Result<Axis, PlanError> {
    let mut steps: Vec<Step> = Vec::new();
    for table in tables {
        let label = Value::Text(table.text("name")?);
        if steps.iter().any(|step| step.label == label) {
            let message = format!("there are two [[{name}]] with the name {label}");
            return Err(PlanError::new(table.line(), message));
        }
        steps.extend(steps_of(&label, table)?);
    }
    Ok(Axis { name: name.to_owned(), line: tables[0].line(), steps })
}

/// Returns the steps of one name: one, or one for each combination if options have several values.
fn steps_of(label: &Value, table: &Table<'_>) -> Result<Vec<Step>, PlanError> {
    let mut steps = vec![Step { label: label.clone(), bound: Vec::new(), finer: Vec::new() }];
    for Choices { values, is_list } in table.choices(&["name"])? {
        let with = |step: &Step, bound: &Bound| {
            let mut step = step.clone();
            if is_list {
                step.finer.push((bound.name.clone(), bound.value.clone()));
            }
            step.bound.push(bound.clone());
            step
        };
        let all = steps.iter().flat_map(|step| values.iter().map(|bound| with(step, bound)));
        steps = all.collect();
    }
    Ok(steps)
}

/// Returns the axes of `[sweep]`.
fn swept(item: Item<'_>, axes: &mut Vec<Axis>) -> Result<(), PlanError> {
    for item in item.table("[sweep]")?.items() {
        item.leaves("", &mut |name, item| {
            let step = |bound: Bound| {
                let label = bound.value.clone();
                Step { label, bound: vec![bound], finer: Vec::new() }
            };
            let steps = item.values(&name)?.into_iter().map(step).collect();
            axes.push(Axis { name, line: item.line, steps });
            Ok(())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
