//! Registers and rows on Minerva under faults: right histories pass, and changed ones are rejected.

use std::collections::BTreeSet;

use pangea_core::time::Span;
use pangea_core::workload::registers::Mix;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::minerva::{Minerva, Options};
use pangea_sim::check::model::Model;
use pangea_sim::check::recorded::{Verdict, check};
use pangea_sim::record::{Name, Op, Outcome, Recorded, Seen};
use pangea_sim::rng::SimRng;
use pangea_sim::{RealTime, Report, Settings, run};

const SEEDS: u64 = 6;
/// The number of changed histories per run.
const CHANGED: u64 = 40;

fn clean(seed: u64, mix: Mix) -> Report {
    let (workload, duration) = (mix.name().to_owned(), Span::from_ms(5_000));
    let settings = Settings { seed, workload, duration, ..Settings::default() };
    let options = Options { checkpoint_bytes: 100_000, ..Options::default() };
    let report = run::<Minerva>(&settings, &options).unwrap();
    assert!(report.violation.is_none(), "{report}");
    assert_eq!(report.counts.undecided, 0, "{report}");
    report
}

/// Changes a committed transaction's read of a key to another value, or to no value.
fn change(recorded: &mut Recorded, dice: &mut SimRng) {
    let writes = recorded.txns.iter().flat_map(|txn| &txn.ops).filter_map(|op| match op {
        Op::Write { key, value } => Some((*key, *value)),
        _ => None,
    });
    let writes: Vec<(Name, Name)> = writes.collect();
    let is_told = |outcome| outcome == Outcome::Committed;
    let txns = recorded.txns.iter_mut().filter(|txn| is_told(txn.outcome) && !txn.is_final);
    let mut reads: Vec<&mut Op> = txns
        .flat_map(|txn| &mut txn.ops)
        .filter(|op| matches!(op, Op::Read { .. } | Op::Scan { .. }))
        .collect();
    let chosen = dice.index(reads.len());
    match &mut *reads[chosen] {
        Op::Read { key, seen } => {
            let others = writes.iter().filter(|(other, _)| other == key);
            let others = others.map(|(_, value)| Seen::Value(*value));
            let others: Vec<Seen> =
                others.chain([Seen::Nothing]).filter(|other| other != seen).collect();
            if !others.is_empty() {
                *seen = others[dice.index(others.len())].clone();
            }
        }
        Op::Scan { rows, .. } if !rows.is_empty() => drop(rows.remove(dice.index(rows.len()))),
        _ => {}
    }
}

#[test]
fn registers_and_rows_are_serializable_under_faults_and_what_is_changed_is_found() {
    for (mix, expected) in [
        (Mix::Register, "lost update"),
        (Mix::LongFork, "G-nonadjacent"),
        (Mix::WriteSkew, "G-single"),
        (Mix::Cycle, "G1c"),
        (Mix::Ranges, "G2-item"),
        (Mix::Chain, "lost update"),
    ] {
        let (mut ambiguous, mut broken, mut found) = (0, 0, BTreeSet::new());
        for seed in 0..SEEDS {
            let report = clean(1_000 + seed, mix);
            ambiguous += report.counts.ambiguous;
            let recorded = report.recorded.expect("registers can be recorded");
            let model = Model::StrictSerializable;
            assert_eq!(check(&recorded, model, "again"), Verdict::Holds, "{mix:?}");
            for number in 0..CHANGED {
                let mut changed = recorded.clone();
                let dice = &mut SimRng::fork(seed, "change", number);
                (0..=number % 2).for_each(|_| change(&mut changed, dice));
                if let Verdict::Broken(violation) = check(&changed, Model::Serializable, "") {
                    broken += 1;
                    found.insert(violation.anomaly);
                }
            }
        }
        println!("{mix:?} {ambiguous} ambiguous, {broken} broken: {found:?}");
        assert!(ambiguous > 0, "{mix:?}: no client was left without an answer");
        assert!(broken > SEEDS * CHANGED / 4, "{mix:?}: only {broken} were found");
        assert!(found.contains(expected), "{mix:?} should show as {expected:?}, found {found:?}");
    }
}

/// With few rows and many deletes, reads determine little of the order.
#[test]
fn the_order_that_the_database_tells_decides_what_reads_leave_open() {
    let is_decided_by_it = |seed| {
        let settings = Settings {
            seed,
            workload: Mix::Ranges.name().to_owned(),
            lists: 2,
            clients_per_node: 6,
            ..Settings::default()
        };
        let report = run::<Minerva>(&settings, &Options::default()).unwrap();
        assert!(report.violation.is_none(), "{report}");
        let mut recorded = report.recorded.expect("ranges can be recorded");
        recorded.txns.iter_mut().for_each(|txn| txn.at = None);
        let without = check(&recorded, Model::StrictSerializable, "ranges");
        report.counts.undecided == 0 && without == Verdict::Open
    };
    assert!((0..20).any(is_decided_by_it));
}

/// Each transaction of a chain is ordered by two of three shards.
#[test]
fn chains_over_shards_respect_real_time() {
    for seed in 0..4 {
        let workload = Mix::Chain.name().to_owned();
        let (shards, real_time) = (3, RealTime::Ordered);
        let settings = Settings { seed, workload, shards, real_time, ..Settings::default() };
        let report = run::<Calvin>(&settings, &Default::default()).unwrap();
        assert!(report.violation.is_none(), "{report}");
        assert!(report.counts.committed > 0 && report.counts.undecided == 0, "{report}");
    }
}
