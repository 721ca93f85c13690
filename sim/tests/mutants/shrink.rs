//! A failing run is shrunk as far as possible, fails in the same way, and can be repeated from the
//! scenario file written for it.

use std::num::NonZeroUsize;

use pangea_core::planted::Bug;
use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::minerva::{Minerva, Options};
use pangea_sim::scenario::Scenario;
use pangea_sim::{Report, Settings, Shrunk, run, shrink};

/// Enough for a run of this size, and few enough for a test.
const RUNS_MAX: u64 = 500;

/// The maximum number of seeds until one fails.
const SEEDS_MAX: u64 = 100;

fn options() -> Options {
    let slice_txns = NonZeroUsize::new(4).unwrap();
    Options { checkpoint_bytes: 10_000, chunk_bytes: 500, slice_txns, ..Options::default() }
}

/// The first run that fails because of a bug: one that needs its faults for that, or one that does
/// not.
fn first_failure(bug: Bug, needs_faults: bool) -> Report {
    let failure = (0..SEEDS_MAX).find_map(|seed| {
        let duration = Span::from_ms(3_500);
        let settings = Settings { seed, duration, planted: Some(bug), ..Settings::default() };
        let report = run::<Minerva>(&settings, &options()).unwrap();
        let calm = Settings { rules: Some(Vec::new()), ..settings };
        let found = |report: &Report| report.violation.as_ref().map(|it| (it.checker, it.anomaly));
        let is_same = || found(&run::<Minerva>(&calm, &options()).unwrap()) == found(&report);
        let is_failure = report.violation.is_some() && report.rules.len() > 3;
        (is_failure && is_same() != needs_faults).then_some(report)
    });
    failure.unwrap_or_else(|| panic!("{bug} had no effect in {SEEDS_MAX} seeds"))
}

fn name(report: &Report) -> (&'static str, &'static str) {
    let violation = report.violation.as_ref().expect("the run failed");
    (violation.checker, violation.anomaly)
}

/// Shrinks the first failure of a bug, and repeats the smallest run from its file.
fn smallest(bug: Bug, needs_faults: bool) -> (Report, Shrunk) {
    let first = first_failure(bug, needs_faults);
    let mut reported = 0;
    let watch = &mut |runs: u64, _: &Settings| reported = runs;
    let shrunk = shrink::<Minerva>(first.clone(), &options(), RUNS_MAX, watch);
    assert!(shrunk.runs > 0 && shrunk.runs <= RUNS_MAX);
    assert_eq!(reported, shrunk.runs);
    assert_eq!(name(&shrunk.report), name(&first), "the reduced run fails in the same way");

    let table = toml::Table::try_from(options()).unwrap();
    let text = Scenario::text(&shrunk.report.settings, Minerva::NAME, &table);
    let scenario = Scenario::read(&text, &[Minerva::NAME]).unwrap();
    let Settings { seed, planted, .. } = shrunk.report.settings;
    let settings = Settings { seed, planted, ..Settings::default() };
    let settings = scenario.apply(settings).unwrap();
    let of_file: Options = scenario.protocols[Minerva::NAME].clone().try_into().unwrap();
    let again = run::<Minerva>(&settings, &of_file).unwrap();
    assert_eq!(again.digest, shrunk.report.digest, "{text}");
    assert_eq!(name(&again), name(&first));
    (first, shrunk)
}

#[test]
fn what_needs_no_fault_is_left_without_any() {
    let (first, Shrunk { report, .. }) = smallest(Bug::PointsNotValidated, false);
    assert_eq!(report.rules, []);
    assert!(report.settings.nodes < first.settings.nodes);
    assert!(report.settings.duration.us * 4 < first.settings.duration.us);
    assert!(report.events < first.events, "{} of {}", report.events, first.events);
}

#[test]
fn what_needs_a_fault_keeps_the_one_that_it_needs() {
    let (first, Shrunk { report, .. }) = smallest(Bug::EpochNotLogged, true);
    assert!(!report.rules.is_empty());
    assert!(report.rules.len() * 3 <= first.rules.len(), "{:?}", report.rules);
    assert!(report.events < first.events, "{} of {}", report.events, first.events);
}
