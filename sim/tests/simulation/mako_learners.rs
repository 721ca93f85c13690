//! Mako with learners: replicas without a vote, beside the leaders, that take over (Mako §6.3).

use pangea_core::time::Span;
use pangea_protocols::mako::{Mako, Options};
use pangea_sim::faults::{Fault, Rule, Target};
use pangea_sim::trace::Lines;
use pangea_sim::{Settings, run};

use crate::mako_drawn::{away, drawn, replaced, settings, several, upgraded};
use crate::runs::clean;
use crate::{mako_divided, mako_drawn};

/// Kinds of runs over one shard and over several, each with learners.
fn with_learners(seed: u64) -> (Settings, Options) {
    let (settings, options) = match seed % 10 {
        0 | 1 => drawn(seed),
        2 => mako_drawn::deposed(seed, "list-append"),
        3 => several(seed, "bank"),
        4 => away(seed, "list-append"),
        5 => replaced(seed, "list-append"),
        6 => upgraded(seed),
        7 => mako_divided::drawn(seed),
        8 => mako_divided::deposed(seed),
        _ => mako_divided::several(seed),
    };
    (Settings { learners: true, ..settings }, options)
}

/// Replica 0 leads first, and is killed for so long that another one has to.
fn headless(seed: u64, shards: u16) -> (Settings, Options) {
    let crash = Fault::Crash { node: Target::Node(0), after_effects: seed % 20 };
    let rules = Some(vec![Rule { at_ms: 900, lasts_ms: 3_500, fault: crash }]);
    let settings = match shards {
        1 => settings(seed, "list-append"),
        _ => mako_divided::divided(seed, "list-append", shards),
    };
    let duration = Span::from_ms(5_000);
    let one_way_max = Span::from_ms(40);
    let settings = Settings { rules, duration, learners: true, one_way_max, ..settings };
    (settings, Options::default())
}

/// Mako §6.3: the learner beside the leader takes over, and not a follower elsewhere.
#[test]
fn a_learner_takes_over_from_its_leader() {
    for shards in [1, 2] {
        for seed in 1_000..1_006 {
            let (settings, options) = headless(seed, shards);
            let report = clean::<Mako>(&settings, &options);
            let led = report.counts.mark("mako.learner_leads");
            assert!(led > 0, "seed {seed} with {shards} shards: a follower has taken over");
        }
    }
}

/// `PANGEA_MAKO_LEARNERS` has the first seed and the number of seeds, as in `1000+500`. Of a single
/// one the trace is printed.
#[test]
fn drawn_runs_of_mako_with_learners_are_clean() {
    let given = std::env::var("PANGEA_MAKO_LEARNERS").unwrap_or("0+40".to_owned());
    let (first, count) = given.split_once('+').expect("a seed and a number");
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let (mut failed, mut led) = (Vec::new(), 0);
    for seed in first..first + count {
        let (settings, options) = with_learners(seed);
        let lines = if count == 1 { Lines::Print } else { Lines::Off };
        let report = run::<Mako>(&Settings { lines, ..settings }, &options).unwrap();
        led += report.counts.mark("mako.learner_leads");
        if report.violation.is_some() {
            eprintln!("seed {seed}: {options:?}: {report}");
            failed.push(seed);
        }
    }
    println!("learners have led {led} times");
    assert!(failed.is_empty(), "{failed:?}");
    assert!(count < 40 || led > 0, "no learner has led");
}
