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

/// Regions that are 25 ms from each other, with one client in each. Each transaction increments
/// three counters, one on each shard if there are three.
fn predicted(
    (regions, shards): (usize, u16),
    (warmup_s, secs): (u64, u64),
    options: &Options,
) -> Prediction {
    let sizes = workload::Settings { rows: 1_000, ..workload::Settings::default() };
    let workload = Workload::named("tiga-micro", &sizes).unwrap();
    let one_way = |from, to| if from == to { Span::ZERO } else { Span::from_ms(25) };
    let settings = Settings {
        seed: 7,
        regions: (0..regions).map(|region| format!("region-{region}")).collect(),
        partitions: workload.partitions(shards),
        one_way: (0..regions)
            .map(|from| (0..regions).map(|to| one_way(from, to)).collect())
            .collect(),
        bandwidth_bits: None,
        clients: regions,
        pace: ArrivalModel::Closed,
        loss: None,
        warmup: Span::from_ms(1_000 * warmup_s),
        duration: Span::from_ms(1_000 * secs),
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
    let loaded = Loaded::new(&settings.workload, &settings.registry).unwrap();
    predict::<Tiga>(&settings, options, &costs, &loaded).unwrap()
}

/// The median latency in ms of three shards whose leaders are in three regions.
fn leaders_apart(path: Path) -> f64 {
    let (leaders, approach) = ("rotated".to_owned(), Approach::Detective);
    let options = Options { path, leaders, approach, move_ms: 100, ..Options::default() };
    // The leaders move to their places first.
    predicted((3, 3), (3, 2), &options).latency_ms.p50
}

/// Tiga §3.4, §3.8: without the fast path, the log of each leader has to be on the disks of a
/// majority.
#[test]
fn a_commit_takes_one_round_trip_although_leaders_are_apart() {
    let [logs, replies, auto] = [Path::Simple, Path::Super, Path::Auto].map(leaders_apart);
    println!("by logs {logs} ms, by replies {replies} ms, by the default {auto} ms");
    assert!(replies < 55.0 && auto < 55.0, "{replies}, {auto}");
    assert!(logs > 75.0, "{logs}");
}

/// Tiga §6: with three replicas the logs are quicker, and with five that are equally far apart a
/// super quorum.
#[test]
fn the_quicker_path_is_chosen() {
    for (regions, is_fast) in [(3, false), (5, true)] {
        let of = |path| {
            let options = Options { path, leaders: "region-0".to_owned(), ..Options::default() };
            predicted((regions, 1), (1, 2), &options).latency_ms.p50
        };
        let [logs, replies, auto] = [Path::Simple, Path::Super, Path::Auto].map(of);
        println!("{regions} regions: {logs} ms by logs, {replies} by replies, {auto} chosen");
        assert_eq!(replies < logs, is_fast);
        assert!(auto < logs.min(replies) + 1.0, "{auto}");
    }
}

/// Seed 50385 has a story: a replica that had lost its disk waited for a transaction of the log of
/// a view, in a cell that it had published and forgotten meanwhile. Nobody had it any more.
#[test]
fn divided_transactions_keep_their_guarantee_on_the_fast_path_under_faults() {
    let marks = ["tiga.fast_commit_of_shards", "tiga.late_at_follower", "tiga.recovered"];
    let mut marks = marks.map(|mark| (mark, 0));
    for seed in (0..30).chain([50_385]) {
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
