//! Tests: a transaction that was lost or applied twice is detected, and unknown outcomes are
//! tolerated.

use super::*;
use crate::workload::tests::{Bench, small};
use crate::workload::ycsb::{Op, operations};
use crate::workload::{Settings, Violation, Workload};

/// The fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Once,
    /// It was acknowledged but has no effect.
    Lost,
    Twice,
    /// It was applied but not acknowledged.
    Untold,
    /// It has no effect and was not acknowledged.
    LostUntold,
}

/// A workload whose clients call one after the other, with their knowledge.
struct Run {
    bench: Bench,
    ledger: Ledger,
    clock: u64,
}

impl Run {
    fn new(name: &str, settings: &Settings) -> Self {
        Self { bench: Bench::new(name, settings), ledger: Ledger::default(), clock: 1 }
    }

    /// Makes a call, if it commits.
    fn call(&mut self, call: &Call, done: Done) {
        let before = self.bench.model.clone();
        let Ok(result) = self.bench.run(call) else { return };
        match done {
            Done::Lost | Done::LostUntold => self.bench.model = before,
            Done::Twice => drop(self.bench.run(call).expect("the repetition commits")),
            Done::Once | Done::Untold => {}
        }
        let fate = match done {
            Done::Untold | Done::LostUntold => CallOutcome::Unknown,
            Done::Once | Done::Lost | Done::Twice => CallOutcome::Committed { at: self.clock + 1 },
        };
        let written = self.bench.workload.watch().written(call);
        self.ledger.add(call.label, &written, self.clock, fate);
        if fate != CallOutcome::Unknown {
            self.ledger.add_result(call.label, &result);
        }
        self.clock += 2;
    }

    fn many(&mut self, count: usize) {
        for _ in 0..count {
            let call = self.bench.next();
            self.call(&call, Done::Once);
        }
    }

    /// The next call of a label that commits.
    fn next(&mut self, label: &str) -> Call {
        loop {
            let call = self.bench.next();
            let mut model = self.bench.model.clone();
            let procedure = self.bench.procedure(call.procedure);
            if call.label == label && model.run(procedure, &call.args).is_ok() {
                return call;
            }
        }
    }

    fn check(&self) -> Result<(), Violation> {
        let report = self.bench.check();
        self.bench.workload.check_commits(&report, &self.bench.model, &self.ledger.commits())
    }
}

/// Workloads, labels of transactions that leave a trace, and the part of the message that names a
/// lost one.
const TRACES: [(&str, &str, &str); 14] = [
    ("tpcc", "new-order", "orders of the load and of New-Orders committed"),
    ("tpcc", "payment", "rows of the load and of Payments committed"),
    ("tpcc", "delivery", "orders that Deliveries have named"),
    ("tpcc-nopay", "new-order", "orders of the load and of New-Orders committed"),
    ("tpcc-nopay", "payment", "rows of the load and of Payments committed"),
    ("tpcc-nopay", "long-order", "orders of the load and of New-Orders committed"),
    ("ycsb-a", "write", "mark of its newest acknowledged write"),
    ("ycsb-d", "write", "rows loaded and inserted"),
    ("ycsb-e", "write", "rows loaded and inserted"),
    ("ycsb-f", "write", "read-modify-writes committed"),
    ("calvin-micro", "one-shard", "increments committed"),
    ("mako-micro", "increment", "increments committed"),
    ("tiga-micro", "increment", "increments committed"),
    ("smallbank", "save", "loaded, plus deposits, minus payments"),
];

fn settings(label: &str) -> Settings {
    let long = if label == "long-order" { 10 } else { 0 };
    Settings { long, long_times: 5, ..small() }
}

#[test]
fn a_lost_transaction_is_found_and_named() {
    for (name, label, named) in TRACES {
        let mut run = Run::new(name, &settings(label));
        run.many(60);
        run.check().unwrap_or_else(|violation| panic!("{name}: {violation}"));
        let lost = run.next(label);
        run.call(&lost, Done::Lost);
        let violation = run.check().expect_err(name);
        assert_eq!(violation.right.0, named, "{name}: {violation}");
        assert!(
            violation.to_string().starts_with("acknowledged commits violated, "),
            "{violation}"
        );
    }
}

#[test]
fn a_transaction_that_is_done_twice_is_found_where_it_leaves_two_traces() {
    // YCSB's blind writes and inserts have the same result if they are applied twice.
    let adds = |name: &str| !["ycsb-a", "ycsb-d", "ycsb-e"].contains(&name);
    for (name, label, named) in TRACES.into_iter().filter(|(name, ..)| adds(name)) {
        let mut run = Run::new(name, &settings(label));
        run.many(60);
        let twice = run.next(label);
        run.call(&twice, Done::Twice);
        let violation = run.check().expect_err(name);
        assert_eq!(violation.right.0, named, "{name}: {violation}");
    }
}

#[test]
fn what_nobody_knows_of_may_be_there_or_not_and_no_more_than_that() {
    for (name, label, named) in TRACES {
        for done in [Done::Untold, Done::LostUntold] {
            let mut run = Run::new(name, &settings(label));
            run.many(60);
            let untold = run.next(label);
            run.call(&untold, done);
            run.check().unwrap_or_else(|violation| panic!("{name}, {done:?}: {violation}"));
        }
        // A call with unknown outcome does not excuse an acknowledged one that is lost.
        let mut run = Run::new(name, &settings(label));
        run.many(60);
        let (untold, lost) = (run.next(label), run.next(label));
        run.call(&untold, Done::LostUntold);
        run.call(&lost, Done::Lost);
        let violation = run.check().expect_err(name);
        assert_eq!(violation.right.0, named, "{name}: {violation}");
    }
    let mut run = Run::new("tpcc", &small());
    let (untold, twice) = (run.next("payment"), run.next("payment"));
    run.call(&untold, Done::Untold);
    run.call(&twice, Done::Twice);
    let violation = run.check().expect_err("one more than possible");
    assert!(violation.rule.ends_with("at most,"), "{violation}");
    assert_eq!(violation.left.1, violation.right.1 + 1);
}

#[test]
fn money_that_may_have_been_taken_out_lowers_what_accounts_must_hold() {
    let commits = Commits {
        committed: [("deposit".to_owned(), 3)].into(),
        unknown: [("deposit".to_owned(), 1), ("withdraw".to_owned(), 2)].into(),
        ..Commits::default()
    };
    let adds = |label: &str| if label == "deposit" { 10 } else { -7 };
    assert_eq!(commits.sum(adds), 30 - 14..=30 + 10);
    assert_eq!(commits.bounds("deposit"), 3..=4);
    assert_eq!(commits.bounds("balance"), 0..=0);
}

#[test]
fn deliveries_that_found_nothing_are_not_missed_and_others_are() {
    let mut run = Run::new("tpcc", &Settings { warehouses: 1, ..small() });
    // Nine orders per district are undelivered at first.
    for _ in 0..12 {
        let delivery = run.next("delivery");
        run.call(&delivery, Done::Once);
        run.check().unwrap_or_else(|violation| panic!("{violation}"));
    }
    assert_eq!(run.ledger.commits().delivered, 90);
    // A lost Delivery is still detected if it found an order.
    for _ in 0..9 {
        let order = run.next("new-order");
        run.call(&order, Done::Once);
    }
    let lost = run.next("delivery");
    run.call(&lost, Done::Lost);
    assert_eq!(run.check().expect_err("the reply named orders").left.0, "orders delivered");
}

#[test]
fn a_row_may_hold_any_of_the_writes_that_were_under_way_together() {
    let row = |mark| Written { rows: 1, watched: vec![(7, mark)] };
    let marks = |ledger: &Ledger| ledger.commits().newest[0].marks.clone();
    let mut ledger = Ledger::default();
    ledger.add("write", &row(11), 5, CallOutcome::Unknown);
    assert_eq!(marks(&ledger), [0, 11], "the row may have its loaded value");
    ledger.add("write", &row(12), 10, CallOutcome::Committed { at: 20 });
    ledger.add("write", &row(13), 15, CallOutcome::Committed { at: 17 });
    assert_eq!(marks(&ledger), [11, 12, 13], "the order of concurrent writes is unknown");
    ledger.add("write", &row(14), 18, CallOutcome::Committed { at: 30 });
    assert_eq!(marks(&ledger), [11, 12, 14], "the second write had ended before this one began");
    ledger.add("write", &row(15), 31, CallOutcome::Committed { at: 32 });
    assert_eq!(marks(&ledger), [11, 15]);
    // A late acknowledgement does not make a write newer.
    ledger.add("write", &row(16), 1, CallOutcome::Committed { at: 33 });
    assert_eq!(marks(&ledger), [11, 15, 16]);
}

#[test]
fn the_last_of_a_transactions_writes_of_a_row_is_the_one_that_stays() {
    let mut run = Run::new("ycsb-a", &Settings { rows: 2, ..small() });
    let mut repeated = 0;
    for _ in 0..50 {
        let call = run.next("write");
        let ops = operations(&call.args).expect("well formed");
        let writes = ops.iter().filter(|op| matches!(op, Op::Write { .. })).count();
        let written = run.bench.workload.watch().written(&call);
        assert_eq!(written.rows, writes as u64);
        repeated += writes - written.watched.len();
        run.call(&call, Done::Once);
        run.check().unwrap_or_else(|violation| panic!("{violation}"));
    }
    assert!(repeated > 0);
}

#[test]
fn large_tables_are_watched_in_part() {
    for rows in [1, 4_096, 4_097, 2_000_000] {
        let workload = Workload::named("ycsb-b", &Settings { rows, ..small() }).expect("valid");
        let Watch { counts, step } = workload.watch();
        assert!(counts && rows.div_ceil(step) <= 4_096, "{rows} rows, every {step}th");
    }
    let reads = Workload::named("ycsb-c", &small()).expect("valid");
    assert_eq!(reads.watch(), Watch::default());
}
