//! Points: the single runs of a plan.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::options::{Engine, Value, is_setting, scoped};
use crate::plan::{Bound, Plan, Step};
use crate::plan_error::{PlanError, unknown};

/// The maximum number of points: at ten seconds each, they take a day.
const POINTS_MAX: usize = 10_000;

/// One combination of options.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The engine that produces its numbers.
    pub engine: Engine,
    /// All options, by name.
    pub options: BTreeMap<String, Value>,
    /// Its label on each axis.
    pub labels: BTreeMap<String, Value>,
    /// A hash of the files that it reads, if any.
    pub inputs: u64,
    /// The line at which each option was set.
    lines: BTreeMap<String, usize>,
}

/// The identity of a run: all inputs that can change its results.
#[derive(Serialize)]
struct Identity<'a> {
    engine: Engine,
    options: &'a BTreeMap<String, Value>,
    inputs: u64,
    build: &'a str,
}

/// Returns a hash of these bytes.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

impl Point {
    /// Returns its coordinate: the label on an axis, or otherwise the value of an option.
    pub fn coordinate(&self, name: &str) -> Option<Value> {
        if name == "engine" {
            return Some(Value::Text(self.engine.name().to_owned()));
        }
        self.labels.get(name).or_else(|| self.options.get(name)).cloned()
    }

    /// Returns the options as command-line arguments.
    pub fn arguments(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (name, value) in &self.options {
            if is_setting(name) {
                all.extend(["--set".to_owned(), format!("{name}={value}")]);
                continue;
            }
            match value {
                Value::Flag(false) => {}
                Value::Flag(true) => all.push(format!("--{name}")),
                // A separate word that begins with a dash would be parsed as an option.
                value if value.to_string().starts_with('-') => {
                    all.push(format!("--{name}={value}"));
                }
                value => all.extend([format!("--{name}"), value.to_string()]),
            }
        }
        all
    }

    /// Returns a key that is equal for the same options of the same build, and only for these.
    pub fn key(&self, build: &str) -> String {
        let Self { engine, options, inputs, .. } = self;
        let identity = Identity { engine: *engine, options, inputs: *inputs, build };
        let text = serde_json::to_string(&identity).expect("options are words and numbers");
        format!("{:016x}", xxh3_64(text.as_bytes()))
    }

    /// Returns the line that a message is about: that of the option that it names, or of the
    /// workload.
    pub fn line_of(&self, message: &str) -> usize {
        let place = |name: &str| match name.split_once('.') {
            Some((_, key)) => message.find(key),
            None => message.find(&format!("--{name}")),
        };
        // The first option in the message: it may only mention the others.
        let named = self.lines.iter().filter_map(|(name, line)| Some((place(name)?, line)));
        let named = named.min_by_key(|(place, _)| *place);
        let line = named.map(|(_, line)| line).or_else(|| self.lines.get("workload"));
        line.copied().unwrap_or(1)
    }
}

impl fmt::Display for Point {
    /// Writes the labels that distinguish the point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut labels: Vec<String> = self
            .labels
            .iter()
            .filter(|(name, _)| *name != "engine")
            .map(|(name, value)| match name.as_str() {
                "case" | "series" => value.to_string(),
                name => format!("{name}={value}"),
            })
            .collect();
        if self.engine == Engine::Predicted {
            labels.push("predicted".to_owned());
        }
        f.write_str(&labels.join(", "))
    }
}

/// Returns all points of a plan, in order.
///
/// # Errors
/// If there are too many points, or none.
pub fn expand(plan: &Plan) -> Result<Vec<Point>, PlanError> {
    let count = plan.axes.iter().try_fold(1_usize, |all, axis| all.checked_mul(axis.steps.len()));
    let Some(count) = count.filter(|count| *count <= POINTS_MAX) else {
        let line = plan.axes.first().map_or(1, |axis| axis.line);
        let message = format!("more than {POINTS_MAX} combinations; remove some values");
        return Err(PlanError::new(line, message));
    };
    (0..count).map(|index| point(plan, steps_at(plan, index))).collect()
}

/// Returns the steps of the combination with this index; the last axis varies fastest.
fn steps_at(plan: &Plan, mut index: usize) -> Vec<(&str, &Step)> {
    let mut steps = Vec::with_capacity(plan.axes.len());
    for axis in plan.axes.iter().rev() {
        steps.push((axis.name.as_str(), &axis.steps[index % axis.steps.len()]));
        index /= axis.steps.len();
    }
    steps.reverse();
    steps
}

fn point(plan: &Plan, steps: Vec<(&str, &Step)>) -> Result<Point, PlanError> {
    let mut point = Point {
        engine: plan.engine,
        options: BTreeMap::new(),
        labels: BTreeMap::new(),
        inputs: 0,
        lines: BTreeMap::new(),
    };
    for (axis, step) in &steps {
        point.labels.insert((*axis).to_owned(), step.label.clone());
        point.labels.extend(step.finer.iter().cloned());
    }
    let bound = || plan.base.iter().chain(steps.iter().flat_map(|(_, step)| &step.bound));
    if let Some(Bound { value, line, .. }) = bound().rfind(|bound| bound.name == "engine") {
        let word = value.to_string();
        let names = Engine::ALL.map(Engine::name);
        let wrong = || PlanError::new(*line, unknown("engine", &word, names));
        point.engine = Engine::named(&word).ok_or_else(wrong)?;
    }
    for Bound { name, value, line } in bound().filter(|bound| bound.name != "engine") {
        let name = match scoped(name) {
            None => name,
            Some((engine, name)) if engine == point.engine => name,
            Some(_) => continue,
        };
        point.options.insert(name.to_owned(), value.clone());
        point.lines.insert(name.to_owned(), *line);
    }
    Ok(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "title = 'T'\n[base]\nworkload = 'ycsb-a'\nsecs = 8\n\
        [[case]]\nname = 'near'\nrtt = 0\nclients = 100\n\
        [[case]]\nname = 'far'\nrtt = 200\nclients = 900\nsecs = 9\n\
        [sweep]\nzipf = [0.3, 0.9]\nminerva.solver = ['exact', 'greedy']\n";

    fn points(text: &str) -> Vec<Point> {
        expand(&Plan::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn the_last_axis_varies_fastest_and_a_step_stands_above_the_base() {
        let points = points(PLAN);
        let shown: Vec<String> = points.iter().map(Point::to_string).collect();
        assert_eq!(points.len(), 8);
        assert_eq!(shown[0], "near, minerva.solver=exact, zipf=0.3");
        assert_eq!(shown[1], "near, minerva.solver=greedy, zipf=0.3");
        assert_eq!(shown[2], "near, minerva.solver=exact, zipf=0.9");
        let arguments = points[4].arguments().join(" ");
        let expected = "--clients 900 --set minerva.solver=exact --rtt 200 --secs 9 \
                        --workload ycsb-a --zipf 0.3";
        assert_eq!(arguments, expected);
        assert_eq!(points[4].coordinate("case"), Some(Value::Text("far".to_owned())));
        assert_eq!(points[4].coordinate("rtt"), Some(Value::Number(200.0)));
        assert_eq!(points[4].coordinate("rate"), None);
    }

    #[test]
    fn a_series_goes_through_the_values_of_its_own_lists() {
        let text = "title='T'\n[base]\nworkload='bank'\n\
                    [[series]]\nname='few'\nclients=[1, 2]\nzipf=[0.9]\n\
                    [[series]]\nname='many'\nclients=100\n[sweep]\nrtt = [0, 50]\n";
        let points = points(text);
        let shown: Vec<String> = points.iter().map(Point::to_string).collect();
        let expected = [
            "clients=1, rtt=0, few, zipf=0.9",
            "clients=1, rtt=50, few, zipf=0.9",
            "clients=2, rtt=0, few, zipf=0.9",
            "clients=2, rtt=50, few, zipf=0.9",
            "rtt=0, many",
            "rtt=50, many",
        ];
        assert_eq!(shown, expected);
        assert_eq!(points[4].coordinate("clients"), Some(Value::Number(100.0)));
        for (wrong, said) in [
            ("clients=[1, 1]", "line 4: clients has the value 1 twice"),
            ("clients=[]", "line 4: clients has no values"),
        ] {
            let text = format!("title='T'\n[[case]]\nname='a'\n{wrong}\n");
            let error = Plan::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn a_key_is_of_options_and_build_and_not_of_names() {
        let of = |text: &str| points(text)[0].key("b1");
        let key = of(PLAN);
        assert_eq!(key, of(&PLAN.replace("'near'", "'close'").replace("'T'", "'U'")));
        assert_ne!(key, of(&PLAN.replace("clients = 100", "clients = 101")));
        assert_ne!(key, points(PLAN)[0].key("b2"));
        let mut all: Vec<String> = points(PLAN).iter().map(|point| point.key("b1")).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 8);
    }

    #[test]
    fn an_option_of_one_engine_is_not_in_runs_of_the_other() {
        let text = "title='T'\n[base]\nworkload='bank'\npredicted.costs='c.toml'\n\
                    real.durability='os'\n[sweep]\nengine = ['real', 'predicted']\n";
        let lines: Vec<String> = points(text).iter().map(|it| it.arguments().join(" ")).collect();
        let expected = ["--durability os --workload bank", "--costs c.toml --workload bank"];
        assert_eq!(lines, expected);
        let error = expand(&Plan::parse(&text.replace("'real'", "'reel'")).unwrap()).unwrap_err();
        assert!(error.to_string().contains("did you mean \"real\""), "{error}");
    }

    #[test]
    fn flags_are_there_or_not() {
        let text = "title='T'\n[base]\nworkload='tpcc'\n[sweep]\ntiny = [true, false]\n";
        let lines: Vec<String> = points(text).iter().map(|it| it.arguments().join(" ")).collect();
        assert_eq!(lines, ["--tiny --workload tpcc", "--workload tpcc"]);
    }

    #[test]
    fn too_many_combinations_are_refused() {
        let values: Vec<String> = (0..101).map(|i| i.to_string()).collect();
        let list = values.join(",");
        let text = format!("title='T'\n[sweep]\nrtt = [{list}]\nzipf = [{list}]\n");
        let error = expand(&Plan::parse(&text).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("line 3: more than 10000"), "{error}");
    }

    #[test]
    fn the_line_of_a_message_is_that_of_the_option_that_it_names() {
        let point = &points(PLAN)[5];
        assert_eq!(point.line_of("--rtt 200: must be from 0"), 11);
        assert_eq!(point.line_of("--set: no such `solver`"), 16);
        assert_eq!(point.line_of("there is no such workload"), 3);
    }
}
