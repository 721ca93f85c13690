//! Faults that wait for a mark, and clients that begin nothing for a while.

use pangea_core::time::{Span, Timestamp};
use pangea_protocols::minerva::{Minerva, Options};
use pangea_sim::faults::{Fault, Rule};
use pangea_sim::{Report, Settings, run};

use crate::runs::clean;

fn settings(rules: Vec<Rule>) -> Settings {
    let duration = Span::from_ms(5_000);
    Settings { seed: 3, rules: Some(rules), duration, ..Settings::default() }
}

fn options() -> Options {
    Options { checkpoint_bytes: 10_000, ..Options::default() }
}

fn after_mark(mark: &str, times: u64) -> Rule {
    let fault =
        Fault::CrashAfterMark { node: None, mark: mark.to_owned(), times, after_effects: 3 };
    Rule { at_ms: 0, lasts_ms: 200, fault }
}

fn crashes(report: &Report) -> (u64, Option<u64>) {
    (report.counts.crashes, report.counts.faults.get("crash-after-mark").copied())
}

#[test]
fn a_node_crashes_when_it_has_counted_a_mark_often_enough() {
    let once = clean::<Minerva>(&settings(vec![after_mark("checkpoints.begun", 1)]), &options());
    assert_eq!(crashes(&once), (1, Some(1)), "{once}");
    let marks =
        clean::<Minerva>(&settings(Vec::new()), &options()).counts.mark("checkpoints.begun");
    assert!(marks > 0);
    let rules = vec![after_mark("checkpoints.begun", marks + 1)];
    let never = clean::<Minerva>(&settings(rules), &options());
    assert_eq!(crashes(&never), (0, None), "it waits to the end: {never}");
    let wrong = run::<Minerva>(&settings(vec![after_mark("calvin.served", 1)]), &options());
    let why = wrong.unwrap_err();
    assert!(why.contains("\"calvin.served\", which is not a mark of minerva"), "{why}");
}

#[test]
fn clients_begin_nothing_while_they_are_quiet() {
    let rule = Rule { at_ms: 1_000, lasts_ms: 2_000, fault: Fault::Quiet {} };
    let report = clean::<Minerva>(&settings(vec![rule]), &options());
    let mut begun: Vec<Timestamp> =
        report.history.operations.iter().map(|operation| operation.invoked).collect();
    begun.sort_unstable();
    let longest = begun.windows(2).map(|pair| pair[1].since(pair[0])).max();
    // The last one before begins at any time, and each client looks again after a moment.
    let range = Span::from_ms(2_000)..=Span::from_ms(2_500);
    assert!(longest.is_some_and(|pause| range.contains(&pause)), "{longest:?}");
}
