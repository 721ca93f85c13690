//! Tiga's fast path over several shards.

use std::sync::Arc;

use pangea_core::protocol::Message as _;
use pangea_core::time::Span;
use pangea_core::txn::Registry;
use pangea_core::workload::{self, Workload};
use pangea_protocols::tiga::{Approach, Message, Options, Path, Tiga};
use pangea_sim::predict::costs::kinds;
use pangea_sim::predict::{
    ArrivalModel, Cores, Costs, Line, Loaded, Prediction, Settings, predict,
};

use crate::runs::clean;
use crate::tiga_drawn::{away_divided, drawn_fast, replaced_divided, upgraded_divided};

/// Three shards whose leaders are in three regions, 25 ms from each other, with one client in each.
/// Each transaction increments a counter of each shard.
fn leaders_apart(path: Path) -> Prediction {
    let workload = Workload::named("tiga-micro", &workload::Settings::default()).unwrap();
    let one_way = |from, to| if from == to { Span::ZERO } else { Span::from_ms(25) };
    let settings = Settings {
        seed: 7,
        regions: (0..3).map(|region| format!("region-{region}")).collect(),
        partitions: workload.partitions(3),
        one_way: (0..3).map(|from| (0..3).map(|to| one_way(from, to)).collect()).collect(),
        bandwidth_bits: None,
        clients: 3,
        pace: ArrivalModel::Closed,
        loss: None,
        // The leaders move to their places first.
        warmup: Span::from_ms(15_000),
        duration: Span::from_ms(10_000),
        cores: Cores::Each(8),
        workload,
        registry: Arc::new(Registry::new(workload::procedures())),
    };
    let lines = kinds(Message::KINDS).map(|kind| (kind.to_owned(), Line::default()));
    let costs = Costs {
        fsync_us: vec![100.0, 300.0],
        wire_bytes_per_byte: 1.0,
        lines: lines.collect(),
        ..Costs::default()
    };
    let (leaders, approach) = ("rotated".to_owned(), Approach::Detective);
    let options = Options { path, leaders, approach, ..Options::default() };
    let loaded = Loaded::new(&settings.workload, &settings.registry).unwrap();
    predict::<Tiga>(&settings, &options, &costs, &loaded).unwrap()
}

/// §3.4, §3.8: without the fast path, the log of each leader has to be on the disks of a majority.
#[test]
fn a_commit_takes_one_round_trip_although_leaders_are_apart() {
    let (logs, replies) = (leaders_apart(Path::Simple), leaders_apart(Path::Super));
    let (logs, replies) = (logs.latency_ms, replies.latency_ms);
    println!("by logs {logs:?}, by replies {replies:?}");
    assert!(replies.p50 < 55.0, "{replies:?}");
    assert!(logs.p50 > 75.0, "{logs:?}");
}

#[test]
fn divided_transactions_keep_their_guarantee_on_the_fast_path_under_faults() {
    let marks = ["tiga.fast_commit_of_shards", "tiga.late_at_follower", "tiga.recovered"];
    let mut marks = marks.map(|mark| (mark, 0));
    for seed in 0..30 {
        let (settings, options) = drawn_fast(seed);
        let report = clean::<Tiga>(&settings, &options);
        marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
    }
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// Faults that are aimed at two shards, with leaders that do not agree first.
fn aimed(seed: u64) -> (pangea_sim::Settings, Options) {
    let (settings, options) = match seed % 3 {
        0 => away_divided(seed),
        1 => replaced_divided(seed),
        _ => upgraded_divided(seed),
    };
    let workload = ["list-add", "tiga-micro"][(seed % 2) as usize].to_owned();
    let leaders = ["auto", "rotated"][(seed / 2 % 2) as usize].to_owned();
    let approach = Approach::Detective;
    let options = Options { path: Path::Super, approach, leaders, ..options };
    (pangea_sim::Settings { workload, ..settings }, options)
}

#[test]
fn the_fast_path_over_shards_loses_nothing_with_checkpoints_lost_disks_and_stops() {
    let mut fast = 0;
    for seed in 0..18 {
        let (settings, options) = aimed(seed);
        let report = clean::<Tiga>(&settings, &options);
        fast += report.counts.mark("tiga.fast_commit_of_shards");
    }
    assert!(fast > 0);
}
