//! A sweep from its plan to its page, with generated numbers.

use std::cell::RefCell;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::bench::{Bench, Facts, Needs, Stop};
use crate::check::Checked;
use crate::options::{Choice, Engine, Value};
use crate::plan::{Figure, Plan};
use crate::points::Point;
use crate::results::Results;
use crate::run::{Finished, Settings, SweepError, outline, run};
use crate::series::{Line, charts};

const PLAN: &str = "title = 'Distance & <skew>'\nnote = '''Made up.\n\nTwice.'''\nrepeats = 3\n\
    [base]\nworkload = 'ycsb-a'\n[sweep]\nzipf = [0.3, 0.9]\nrtt = [0, 50, 100]\n\
    [[figure]]\ntitle = 'Throughput'\nx = 'rtt'\ny = 'throughput_per_sec'\nseries = 'zipf'\n\
    paper = [{label = 'Minerva', source = '§5.3, above 10,000', points = [[0, 10000]]}]\n\
    [[figure]]\ntitle = 'Shares'\nkind = 'stacked'\nx = 'rtt'\n\
    y = ['shares.valid', 'shares.ordered']\nonly = {zipf = 0.9}\n\
    [[figure]]\ntitle = 'Time'\nkind = 'timeline'\nseries = 'rtt'\nonly = {zipf = 0.3}\n";

/// Runs that take no time. The throughput identifies the run.
#[derive(Default)]
struct Fake {
    runs: RefCell<Vec<String>>,
    /// The number of the run that is interrupted.
    interrupted_at: Option<usize>,
    /// The round trip whose runs fail.
    failing: Option<f64>,
    /// The number of runs after which all others fail.
    failing_after: Option<usize>,
}

fn option(point: &Point, name: &str) -> f64 {
    point.options.get(name).and_then(Value::number).unwrap_or(0.0)
}

impl Bench for Fake {
    fn choices(&self) -> Vec<Choice> {
        let choice =
            |engine, name: &str, is_flag| Choice { name: name.to_owned(), is_flag, engine };
        let mut all: Vec<Choice> = ["workload", "rtt", "zipf", "clients", "regions", "json"]
            .map(|name| choice(Engine::Real, name, false))
            .into();
        all.push(choice(Engine::Real, "tiny", true));
        all.extend(
            ["workload", "rtt", "zipf", "costs"].map(|it| choice(Engine::Predicted, it, false)),
        );
        all
    }

    fn check(&self, point: &Point) -> Result<Needs, String> {
        match option(point, "rtt") {
            rtt if rtt < 0.0 => Err(format!("--rtt {rtt}: must be from 0 to 4000")),
            _ => Ok(Needs { memory_mb: 100.0 * option(point, "regions"), secs: 30.0, inputs: 0 }),
        }
    }

    fn run(&mut self, point: &Point, json: &Path) -> Result<(), Stop> {
        let mut runs = self.runs.borrow_mut();
        if self.interrupted_at == Some(runs.len()) {
            return Err(Stop::Interrupted);
        }
        runs.push(point.to_string());
        let is_late = self.failing_after.is_some_and(|count| runs.len() > count);
        if is_late || self.failing == Some(option(point, "rtt")) {
            return Err(Stop::Failed("check failed: replicas <differ>".to_owned()));
        }
        let rate = 1_000.0 * option(point, "zipf") + runs.len() as f64;
        std::fs::write(json, results(rate).to_string()).unwrap();
        Ok(())
    }

    fn command(&self, point: &Point) -> String {
        format!("pangea bench {}", point.arguments().join(" "))
    }
}

fn results(rate: f64) -> Json {
    let part = json!({"throughput_per_sec": rate / 3.0, "latency_ms": {"p50": 12.0, "p99": 40.0}});
    json!({
        "throughput_per_sec": rate,
        "latency_ms": {"p50": 12.0, "p99": 40.0},
        "shares": {"valid": 0.75, "ordered": 0.25},
        "regions": {"region-1": part},
        "transactions": {"write": part},
        "aborts": {"40001": 3},
        "timeline": {"step_ms": 100.0, "regions": {"region-1": [5, 0, 0, 7]}},
        "stalls_ms": {"region-1": 234.0},
        "faults": [{"what": "kill region-1", "from_secs": 0.1, "to_secs": 0.3}],
        "cpu_us_per_txn": {"region-1": 55.0},
        "memory_mb": {"region-1": 120.0},
        "wan_bytes_per_txn": 9_000.0,
        "check": {"digest": "abcd", "version": 9, "workload": "10 rows"},
    })
}

fn facts() -> Facts {
    Facts {
        machine: "a machine, 2 cores".to_owned(),
        memory_mb: 1_000.0,
        version: "0.1.0".to_owned(),
        commit: "abc1234".to_owned(),
        build: "b1".to_owned(),
        command: "pangea bench sweep plan.toml".to_owned(),
    }
}

fn sweep(text: &str, fake: &mut Fake, out: &Path, resume: bool) -> Result<Finished, SweepError> {
    let plan = Plan::parse(text).unwrap();
    let checked = Checked::new(&plan, fake, &facts()).unwrap();
    run(&plan, &checked, fake, &facts(), &Settings { out: out.to_owned(), resume })
}

fn refused(text: &str) -> String {
    let plan = Plan::parse(text).unwrap();
    Checked::new(&plan, &Fake::default(), &facts()).unwrap_err().to_string()
}

/// Checks the page as XML, after closing HTML's void elements.
fn assert_well_formed(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
    let mut text = String::new();
    for part in body.split_inclusive('>') {
        let is_void = part.contains("<meta ");
        text.push_str(if is_void { part.strip_suffix('>').unwrap() } else { part });
        text.push_str(if is_void { "/>" } else { "" });
    }
    let parsed = resvg::usvg::roxmltree::Document::parse(&text);
    let document = parsed.unwrap_or_else(|error| panic!("{error}"));
    for node in document.descendants() {
        for name in ["src", "href"] {
            let link = node.attribute(name).unwrap_or("#");
            assert!(link.starts_with('#') || link.starts_with("figures/"), "{link} is elsewhere");
        }
    }
    assert!(!text.contains("@import") && !text.contains("url("), "nothing is loaded");
}

#[test]
fn rounds_go_over_all_points_and_the_report_has_medians() {
    let directory = tempfile::tempdir().unwrap();
    let mut fake = Fake::default();
    let finished = sweep(PLAN, &mut fake, directory.path(), false).unwrap();
    assert_eq!((finished.done, finished.failed, finished.left), (18, 0, 0));
    let runs = fake.runs.into_inner();
    assert_eq!(runs.len(), 18);
    assert_eq!(runs[..6], runs[6..12], "each round is all of it, in the same order");
    assert_eq!(runs[1], "rtt=50, zipf=0.3");
    let page = std::fs::read_to_string(&finished.report).unwrap();
    assert_well_formed(&page);
    // The first point is runs 1, 7 and 13: its median is that of the second round.
    for words in [
        "<title>Distance &amp; &lt;skew&gt;</title>",
        "<td>307 <span class=\"spread\">(301–313)</span></td>",
        "Minerva (paper)",
        "§5.3, above 10,000",
        "18 of 18, 3 of each point",
        "<p>Twice.</p></div>",
        "75 %",
        "replicas are identical",
        "<h3>rtt 100</h3>",
        "kill region-1\n</text>",
        "<td>30</td><td>0.23</td>",
        "<svg role=\"img\"",
        "commit abc1234",
    ] {
        assert!(page.contains(words), "{words}");
    }
    for name in ["figures/01-throughput.svg", "figures/01-throughput.png", "runs/018.json"] {
        assert!(directory.path().join(name).exists(), "{name}");
    }
    assert!(!directory.path().join("runs/running.part").exists());
}

const TUNED: &str = "title = 'T'\nrepeats = 3\ntune = ['zipf']\n[base]\nworkload = 'ycsb-a'\n\
    [sweep]\nzipf = [0.3, 0.9, 0.6]\nrtt = [0, 50]\n\
    [[figure]]\ntitle = 'F'\nx = 'rtt'\ny = 'throughput_per_sec'\nbest_of = 'zipf'\n";

#[test]
fn where_all_repeats_of_the_best_fail_its_place_in_the_figure_is_empty() {
    let directory = tempfile::tempdir().unwrap();
    let mut fake = Fake { failing_after: Some(6), ..Fake::default() };
    let finished = sweep(TUNED, &mut fake, directory.path(), false).unwrap();
    assert_eq!((finished.done, finished.failed), (6, 6));
    let figure = directory.path().join("figures/01-f.svg");
    let figure = std::fs::read_to_string(figure).unwrap_or_default();
    assert!(!figure.contains("<circle"), "no run of the best counts: {figure}");
}

#[test]
fn the_best_of_what_is_tuned_is_run_again_and_the_rest_is_not() {
    let plan = TUNED;
    let directory = tempfile::tempdir().unwrap();
    let mut fake = Fake::default();
    let finished = sweep(plan, &mut fake, directory.path(), false).unwrap();
    assert_eq!((finished.done, finished.failed, finished.left), (12, 0, 0));
    let runs = fake.runs.borrow().clone();
    let best = ["rtt=0, zipf=0.9", "rtt=50, zipf=0.9"];
    assert_eq!(runs[6..], [best, best, best].concat());
    let page = std::fs::read_to_string(&finished.report).unwrap();
    // Runs 7, 9 and 11, but not the third, by which the point was chosen.
    for words in [
        "12 of 12: one of each point, then 3 of the best zipf",
        "909 <span class=\"spread\">(907–911)</span>",
        "rtt=0, zipf=0.9, tuning run: ",
        "zipf 0.9, the highest tried",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(
        outline_of(plan, &fake).starts_with("T: 12 runs (one of each, then 3 of the best zipf)")
    );
    let again = sweep(plan, &mut fake, directory.path(), true).unwrap();
    assert_eq!((again.done, fake.runs.borrow().len()), (12, 12), "nothing is left to run");
}

fn outline_of(plan: &str, fake: &Fake) -> String {
    let plan = Plan::parse(plan).unwrap();
    let checked = Checked::new(&plan, fake, &facts()).unwrap();
    outline(&plan, &checked, fake, &facts())
}

#[test]
fn an_interrupted_sweep_has_a_report_and_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let mut fake = Fake { interrupted_at: Some(4), ..Fake::default() };
    let finished = sweep(PLAN, &mut fake, directory.path(), false).unwrap();
    assert_eq!((finished.done, finished.left), (4, 14));
    let page = std::fs::read_to_string(&finished.report).unwrap();
    assert_well_formed(&page);
    assert!(page.contains("4 of 18, 3 of each point; 14 not run"), "{page}");
    let mut fake = Fake::default();
    let error = sweep(PLAN, &mut fake, directory.path(), false).unwrap_err();
    assert!(error.to_string().contains("already has results: continue with --resume"), "{error}");
    assert!(fake.runs.borrow().is_empty());
    let finished = sweep(PLAN, &mut fake, directory.path(), true).unwrap();
    assert_eq!((finished.done, finished.left), (18, 0));
    assert_eq!(fake.runs.borrow().len(), 14);
    // After a plan has grown, only the new points are run; a new label for the same options does
    // not make a point new.
    let grown =
        PLAN.replace("zipf = [0.3, 0.9]", "zipf = [0.3, 0.9, 1.2]").replace("Made up", "Or");
    sweep(&grown, &mut fake, directory.path(), true).unwrap();
    assert_eq!(fake.runs.borrow().len(), 14 + 9);
}

#[test]
fn a_plan_that_was_edited_overwrites_no_result_of_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    let mut fake = Fake::default();
    sweep(PLAN, &mut fake, directory.path(), false).unwrap();
    let texts = || {
        let files = std::fs::read_dir(directory.path().join("runs")).unwrap();
        let text = |file: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(file.unwrap().path()).unwrap()
        };
        files.map(text).collect::<std::collections::BTreeSet<_>>()
    };
    let before = texts();
    // The new points come first, so that the others have later positions than before.
    let edited = PLAN.replace("zipf = [0.3, 0.9]", "zipf = [1.2, 0.3, 0.9]");
    sweep(&edited, &mut fake, directory.path(), true).unwrap();
    assert_eq!((before.len(), fake.runs.borrow().len()), (18, 27));
    assert!(texts().len() == 27 && texts().is_superset(&before));
    sweep(&edited, &mut fake, directory.path(), true).unwrap();
    assert_eq!(fake.runs.borrow().len(), 27, "all are found again");
}

#[test]
fn a_run_that_fails_its_check_has_no_throughput_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let mut fake = Fake { failing: Some(50.0), ..Fake::default() };
    let finished = sweep(PLAN, &mut fake, directory.path(), false).unwrap();
    assert_eq!((finished.done, finished.failed), (12, 6));
    let page = std::fs::read_to_string(&finished.report).unwrap();
    assert_well_formed(&page);
    assert!(page.contains("Failed runs"));
    assert!(page.contains("rtt=50, zipf=0.3, run 1: check failed: replicas &lt;differ&gt;"));
    assert!(page.contains("6 failed"));
    // A failure is a result: resuming does not hide it.
    let mut again = Fake::default();
    sweep(PLAN, &mut again, directory.path(), true).unwrap();
    assert!(again.runs.into_inner().is_empty());
}

const RELATIVE: &str = "title = 'T'\n[base]\nworkload = 'ycsb-a'\n\
    [[case]]\nname = 'near'\nrtt = 1\n[[case]]\nname = 'far'\nrtt = 2\n\
    [[series]]\nname = 'alone'\nzipf = 0.9\nclients = 1\n\
    [[series]]\nname = 'all'\nzipf = 0.3\nclients = [1, 2]\n\
    [[figure]]\ntitle = 'Slower'\nx = 'clients'\ny = 'throughput_per_sec'\nseries = 'case'\n\
    per = 'rtt'\nslowdown_from = {series = 'alone'}\n\
    ceiling = [{label = 'Locks', source = 'ten at a time', per_x = 100}]\n\
    [[figure]]\ntitle = 'Of each'\nx = 'clients'\ny = 'throughput_per_sec'\nseries = 'case'\n\
    per = 'rtt'\nonly = {series = 'all'}\n";

/// The throughputs are 901, 302 and 303 near, and 904, 305 and 306 far.
#[test]
fn values_are_for_each_of_something_or_times_less_than_another_runs() {
    let directory = tempfile::tempdir().unwrap();
    let mut fake = Fake::default();
    let finished = sweep(RELATIVE, &mut fake, directory.path(), false).unwrap();
    let page = std::fs::read_to_string(finished.report).unwrap();
    assert!(page.contains("Locks: ten at a time") && page.contains("slowdown factor"), "{page}");
    let plan = Plan::parse(RELATIVE).unwrap();
    let points = Checked::new(&plan, &fake, &facts()).unwrap().points;
    let results = Results::open(&directory.path().join("runs")).unwrap();
    let lines = |figure: &Figure| {
        let charts = charts(figure, &points, &results, "b1");
        let values = |line: &Line| {
            let dots = line.dots.iter().map(|dot| (dot.y.median * 1e3).round() / 1e3);
            (line.name.clone(), dots.collect::<Vec<_>>())
        };
        charts[0].lines.iter().map(values).collect::<Vec<_>>()
    };
    let named = |name: &str, values: [f64; 2]| (name.to_owned(), values.to_vec());
    // The reference of the others is in no line of the figure.
    assert_eq!(
        lines(&plan.figures[0]),
        [
            named("near", [2.983, 2.974]),
            named("far", [2.964, 2.954]),
            named("Locks (model)", [9.01, 4.505]),
        ]
    );
    let of_each = [named("near", [302.0, 303.0]), named("far", [152.5, 153.0])];
    assert_eq!(lines(&plan.figures[1]), of_each);
    for (from, to, said) in [
        ("{series = 'alone'}", "{series = 'x'}", "there is no run to compare \"near, alone\""),
        ("{series = 'alone'}", "{workload = 'ycsb-a'}", "it has no run of this plan"),
        ("per = 'rtt'\nslow", "per = 'case'\nslow", "has no number case to divide by"),
    ] {
        let error = refused(&RELATIVE.replace(from, to));
        assert!(error.contains(said), "{to}: {error}");
    }
    let slip = RELATIVE.replace("{series = 'alone'}", "{zip = 0.3}");
    let error = Plan::parse(&slip).unwrap_err().to_string();
    assert!(error.contains("did you mean \"zipf\""), "{error}");
}

#[test]
fn nothing_starts_before_all_of_a_plan_is_right() {
    for (from, to, said) in [
        (
            "workload = 'ycsb-a'",
            "wrkload = 'ycsb-a'",
            "line 7: there is no option \"wrkload\"; did",
        ),
        ("rtt = [0, 50, 100]", "rtt = [0, -1]", "line 10: --rtt -1: must be from 0"),
        (
            "workload = 'ycsb-a'",
            "workload = 'ycsb-a'\nregions = 11",
            "needs about 1100 MB of memory",
        ),
        (
            "workload = 'ycsb-a'",
            "workload = 'ycsb-a'\ntiny = 3",
            "line 8: --tiny must be true or false",
        ),
        ("workload = 'ycsb-a'", "workload = 'ycsb-a'\njson = 'x'", "line 8: json can't be set by"),
        ("workload = 'ycsb-a'", "", "no workload is set"),
        (
            "workload = 'ycsb-a'",
            "workload = 'a'\ncosts = 'x'",
            "--costs is an option of pangea sim --predict",
        ),
        ("series = 'zipf'", "", "have the same position: add zipf to series, only or best_of"),
        ("only = {zipf = 0.9}", "only = {zipf = 0.8}", "it has no run of this plan"),
    ] {
        let text = PLAN.replace(from, to);
        assert_ne!(text, PLAN);
        let error = refused(&text);
        assert!(error.contains(said), "{to}: {error}");
    }
    let regions = refused(&PLAN.replace("workload = 'ycsb-a'", "workload = 'y'\nregions = 11"));
    assert!(regions.contains("1000 MB are free"), "{regions}");
}

#[test]
fn an_outline_lists_runs_and_time() {
    let plan = Plan::parse(PLAN).unwrap();
    let fake = Fake::default();
    let checked = Checked::new(&plan, &fake, &facts()).unwrap();
    let outline = outline(&plan, &checked, &fake, &facts());
    let first = "Distance & <skew>: 18 runs (3 of each), about 9 minutes, 0 MB at most";
    assert_eq!(outline.lines().next(), Some(first));
    assert_eq!(outline.lines().count(), 7);
    assert!(outline.contains("  pangea bench --rtt 100 --workload ycsb-a --zipf 0.9"), "{outline}");
}
