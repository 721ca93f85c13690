//! The checks before any run starts: names, values, memory and time.

use crate::bench::{Bench, Facts, Needs};
use crate::options::{Choice, Engine, Value, is_setting, scoped};
use crate::plan::Plan;
use crate::plan_error::{PlanError, unknown};
use crate::points::{Point, expand};
use crate::series;
use crate::tune;

/// Options that a sweep sets itself, and their replacements.
const TAKEN: [(&str, &str); 5] = [
    ("json", "each run writes runs/NNN.json"),
    ("repeats", "set repeats = 3 at the top of the plan: each repeat has its own cluster"),
    ("data-dir", "it is an option of the sweep"),
    ("keep", "runs leave nothing behind"),
    ("predict", "set engine = \"predicted\""),
];

/// A plan that has passed the checks.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Its points, in order.
    pub points: Vec<Point>,
    /// The estimated resources of each point.
    pub needs: Vec<Needs>,
}

impl Checked {
    /// Checks everything.
    ///
    /// # Errors
    /// The first problem, with its line.
    pub fn new(plan: &Plan, bench: &dyn Bench, facts: &Facts) -> Result<Self, PlanError> {
        let choices = bench.choices();
        let mut points = expand(plan)?;
        let bound = plan.axes.iter().flat_map(|axis| &axis.steps).flat_map(|step| &step.bound);
        for bound in plan.base.iter().chain(bound) {
            check_name(&bound.name, &choices).map_err(|what| PlanError::new(bound.line, what))?;
        }
        let mut needs = Vec::with_capacity(points.len());
        for point in &mut points {
            let wrong = |what: String| PlanError::new(point.line_of(&what), what);
            check_options(point, &choices).map_err(wrong)?;
            let need = bench.check(point).map_err(wrong)?;
            if need.memory_mb > facts.memory_mb {
                let (needed, free) = (need.memory_mb, facts.memory_mb);
                return Err(wrong(format!(
                    "the run \"{point}\" needs about {needed:.0} MB of memory, but only {free:.0} \
                     MB are free: use fewer regions or less data"
                )));
            }
            point.inputs = need.inputs;
            needs.push(need);
        }
        plan.figures.iter().try_for_each(|figure| series::check(figure, &points))?;
        Ok(Self { points, needs })
    }

    /// Returns the estimated duration of the whole plan, in seconds.
    pub fn secs(&self, plan: &Plan) -> f64 {
        let need = |point: &Point| {
            let at = self.points.iter().position(|it| std::ptr::eq(it, point));
            self.needs[at.expect("it is one of them")].secs
        };
        let once: f64 = self.needs.iter().map(|need| need.secs).sum();
        // One point of each group is repeated; without tuning, a group is a single point.
        let again = |group: &Vec<&Point>| {
            let mean = group.iter().map(|point| need(point)).sum::<f64>() / group.len() as f64;
            mean * f64::from(tune::again(plan, group))
        };
        once + tune::groups(plan, &self.points).iter().map(again).sum::<f64>()
    }
}

fn check_name(name: &str, choices: &[Choice]) -> Result<(), String> {
    if let Some((_, instead)) = TAKEN.iter().find(|(taken, _)| *taken == name) {
        return Err(format!("{name} can't be set by a plan: {instead}"));
    }
    let name = scoped(name).map_or(name, |(_, name)| name);
    let is_known = choices.iter().any(|choice| choice.name == name);
    if is_known || is_setting(name) || name == "engine" {
        return Ok(());
    }
    let open = choices.iter().filter(|it| TAKEN.iter().all(|(taken, _)| it.name != *taken));
    Err(unknown("option", name, open.map(|choice| choice.name.as_str())))
}

/// Checks that the engine of a point accepts its options, and that they have values if they need
/// them.
fn check_options(point: &Point, choices: &[Choice]) -> Result<(), String> {
    if !point.options.contains_key("workload") {
        return Err("no workload is set; add workload = \"ycsb-a\" to [base]".to_owned());
    }
    for (name, value) in point.options.iter().filter(|(name, _)| !is_setting(name)) {
        let engine = point.engine;
        let Some(choice) = choices.iter().find(|it| it.engine == engine && it.name == *name) else {
            let other = Engine::ALL.into_iter().find(|it| *it != engine).expect("there are two");
            return Err(format!(
                "--{name} is an option of {}, but the run \"{point}\" is {}: set {}.{name} instead",
                other.command(),
                engine.name(),
                other.name()
            ));
        };
        match (choice.is_flag, value) {
            (true, Value::Flag(_)) | (false, Value::Number(_) | Value::Text(_)) => {}
            (true, _) => return Err(format!("--{name} must be true or false, not {value}")),
            (false, _) => return Err(format!("--{name} needs a value, not {value}")),
        }
    }
    Ok(())
}
