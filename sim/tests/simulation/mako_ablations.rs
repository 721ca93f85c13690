//! Mako without some of its parts, as the figures of the paper compare it: without speculation, and
//! with epochs as the unit of commits.

use pangea_protocols::mako::{AckUnit, Mako, Options};
use pangea_sim::Settings;

use crate::mako_drawn::{faults, hasty, settings};
use crate::runs::clean;
use crate::{mako_divided, mako_drawn};

/// Mako §7.2: rows are locked until they are replicated, and transactions over shards wait for a
/// round trip twice.
#[test]
fn without_speculation_nothing_is_seen_before_it_is_replicated() {
    let options = Options { speculation: false, ..Options::default() };
    let mut marks = ["mako.held_rows", "mako.parked"].map(|it| (it, 0));
    for workload in ["list-append", "bank", "ranges", "register"] {
        for seed in 1_000..1_004 {
            let whole = settings(seed, workload);
            let divided = mako_divided::divided(seed, workload, 2 + seed as u16 % 2);
            for run in [whole.clone(), Settings { faults: faults(), ..whole }, divided] {
                let report = clean::<Mako>(&run, &options);
                marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
            }
        }
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// Mako §7.8: the variant with the failure recovery of epoch-based commit protocols.
#[test]
fn epochs_as_the_unit_of_commits_lose_nothing_acknowledged() {
    let mut void = [0, 0];
    for (unit, of_unit) in [AckUnit::Clock, AckUnit::Epoch].into_iter().zip(&mut void) {
        for seed in 1_000..1_010 {
            let (settings, options) = mako_divided::deposed(seed);
            let report = clean::<Mako>(&settings, &Options { ack_unit: unit, ..options });
            *of_unit += report.counts.mark("mako.void");
        }
    }
    assert!(void[1] > void[0], "no more entries are void with epochs: {void:?}");
}

/// A leader refused a transaction after 64 attempts, took it again when its node sent it a second
/// time, and executed it (1,007 of `deposed`).
#[test]
fn leaders_that_fail_without_speculation_lose_nothing() {
    for seed in 1_000..1_008 {
        let slow = |options| Options { speculation: false, ..options };
        let (whole, of_whole) = mako_drawn::several(seed, "list-append");
        clean::<Mako>(&whole, &slow(of_whole));
        let (divided, of_divided) = mako_divided::several(seed);
        clean::<Mako>(&divided, &slow(of_divided));
        let (settings, _) = mako_divided::deposed(seed);
        clean::<Mako>(&settings, &slow(hasty()));
    }
}
