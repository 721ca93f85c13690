//! Tests of the rules: what is drawn, and how they are written.

use pangea_core::protocol::Mark;
use pangea_core::time::Span;

use super::*;
use crate::rng::SimRng;

const MARKS: [Mark; 3] = [
    Mark::new("toy.usual", "always"),
    Mark::new("toy.rare", "seldom").rare("it needs luck"),
    Mark::new("toy.never", "never").never("nobody is wrong"),
];

/// Marks that no honest node counts are not waited for, and rare ones are preferred.
#[test]
fn what_is_drawn_waits_for_marks_that_happen() {
    let all = [FaultKind::CrashAfterMark];
    let drawn = |seed| draw(&mut Dice::of(seed), &all, 20, 3, Span::from_ms(8_000), &MARKS);
    let rules: Vec<Rule> = (0..50).flat_map(drawn).collect();
    let count = |name: &str| {
        let is_it = |rule: &&Rule| match &rule.fault {
            Fault::CrashAfterMark { mark, .. } => mark == name,
            other => panic!("{other:?}"),
        };
        rules.iter().filter(is_it).count()
    };
    assert_eq!(count("toy.never"), 0);
    assert!(count("toy.rare") > count("toy.usual") && count("toy.usual") > 0, "{rules:?}");
}

/// A seed is worth keeping only if it draws the same faults as before.
#[test]
fn the_newest_kinds_leave_the_others_of_a_seed_as_they_were() {
    let newest = [FaultKind::CrashAfterMark, FaultKind::Quiet];
    let is_new = |kind: &FaultKind| newest.contains(kind);
    let old: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|kind| !is_new(kind)).collect();
    let mut with_new = 0;
    for seed in 0..50 {
        let drawn = |kinds: &[FaultKind]| {
            draw(&mut Dice::of(seed), kinds, 12, 3, Span::from_ms(8_000), &MARKS)
        };
        let (all, before) = (drawn(&FaultKind::ALL), drawn(&old));
        let mut left = all.iter();
        let is_kept = |rule: &Rule| left.any(|other| other == rule);
        assert!(before.iter().all(is_kept), "{before:?}, {all:?}");
        with_new += usize::from(all.iter().any(|rule| is_new(&rule.fault.kind(3))));
    }
    assert!((10..=45).contains(&with_new), "{with_new}");
}

/// The seeds of protocols that ask for no faults of time draw none, and the others are the same.
#[test]
fn faults_of_time_are_for_protocols_that_ask_for_them() {
    const OF_TIME: [FaultKind; 3] =
        [FaultKind::ClockRate, FaultKind::ClockFreeze, FaultKind::LateMessages];
    let is_of_time = |rule: &&Rule| OF_TIME.contains(&rule.fault.kind(3));
    let drawn = |seed, needs_clocks| {
        let kinds = kinds_for(&FaultKind::ALL, needs_clocks);
        draw(&mut Dice::of(seed), &kinds, 12, 3, Span::from_ms(8_000), &MARKS)
    };
    let mut with_them = 0;
    for seed in 0..50 {
        let (without, with) = (drawn(seed, false), drawn(seed, true));
        assert!(!without.iter().any(|rule| is_of_time(&rule)), "{without:?}");
        let others: Vec<&Rule> = with.iter().filter(|rule| !is_of_time(rule)).collect();
        assert_eq!(others, without.iter().collect::<Vec<_>>());
        with_them += u64::from(others.len() < with.len());
    }
    assert!((20..50).contains(&with_them), "{with_them}");
    assert_eq!(kinds_for(&OF_TIME, false), OF_TIME, "nothing else is allowed");
    assert_eq!(kinds_for(&[OF_TIME[0], FaultKind::Crash], false), [FaultKind::Crash]);
    assert_eq!(kinds_for(&[], false), []);
}

#[test]
fn every_kind_is_found_by_its_name() {
    for kind in FaultKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    assert!("earthquake".parse::<FaultKind>().unwrap_err().contains("full-stop"));
}

#[test]
fn what_is_drawn_is_of_its_kind_and_within_bounds_and_ends_in_time() {
    let duration = Span::from_ms(8_000);
    for nodes in [1, 2, 3, 5] {
        for kind in FaultKind::ALL {
            let fork = |name| SimRng::fork(1, name, nodes as u64);
            let dice = &mut Dice {
                usual: fork(kind.name()),
                later: fork("later"),
                newest: fork("newest"),
                upgrades: fork("upgrades"),
                caches: fork("caches"),
                of_time: fork("of time"),
            };
            let rules = draw(dice, &[kind], 500, nodes, duration, &MARKS);
            assert!(rules.iter().all(|rule| rule.at_ms + rule.lasts_ms <= 8_000));
            for rule in &rules {
                assert_eq!(rule.fault.check(nodes), Ok(()), "{rule:?}");
                // In a cluster of two, a pair of nodes is the whole cluster.
                if kind != FaultKind::Partial || nodes > 2 {
                    assert_eq!(rule.fault.kind(nodes), kind, "{rule:?}");
                }
            }
        }
    }
}

#[test]
fn a_rule_is_read_and_written_and_what_is_wrong_with_it_is_said() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Rules {
        rules: Vec<Rule>,
    }
    let dice = &mut Dice::of(2);
    let rules = draw(dice, &FaultKind::ALL, 1_000, 5, Span::from_ms(10_000), &MARKS);
    let text = toml::to_string(&Rules { rules: rules.clone() }).unwrap();
    assert_eq!(toml::from_str::<Rules>(&text).unwrap().rules, rules);

    let read = |fault: &str| {
        let text = format!("[[rules]]\nat_ms = 1\nlasts_ms = 2\nfault.{fault}");
        let rules = toml::from_str::<Rules>(&text).map_err(|error| error.to_string())?;
        rules.rules[0].fault.check(3)
    };
    assert_eq!(read("crash = { node = \"coordinator\" }"), Ok(()));
    assert_eq!(read("full-stop = {}"), Ok(()));
    assert_eq!(read("crash-after-mark = { mark = \"a.b\" }"), Ok(()));
    for (fault, wrong) in [
        ("crash = { node = 7 }", "nodes are 0 to 2"),
        ("crash = { node = 1, who = 1 }", "available keys: node, after_effects"),
        ("explode = { node = 1 }", "explode"),
        ("cut = { from = [0], to = [] }", "in both `from` and `to`"),
        ("cut = { from = [0, 1], to = [1] }", "no link to itself"),
        ("slow-link = { between = [0, 1], times = 31 }", "from 1 to 30"),
        ("lying-clock = { node = 1, by_ms = -9000 }", "from 1 to 3000"),
        ("clock-rate = { node = 1, ppm = -50001 }", "from 1 to 50000"),
        ("late-messages = { from = 1, to = 1 }", "no link to itself"),
        ("crash-after-mark = { node = 1 }", "missing field `mark`"),
        ("crash-after-mark = { mark = \"a.b\", times = 0 }", "from 1 to 1000"),
    ] {
        let error = read(fault).unwrap_err();
        assert!(error.contains(wrong), "{fault}: {error}");
    }
}
