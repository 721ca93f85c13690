//! Predictions are deterministic and proportional to costs.

use std::sync::Arc;

use pangea_core::partition::Partitions;
use pangea_core::protocol::Message as _;
use pangea_core::time::Span;
use pangea_core::txn::Registry;
use pangea_core::workload::{self, Workload};
use pangea_protocols::calvin::{self, Calvin};
use pangea_protocols::minerva::{Message, Minerva, Options};
use pangea_sim::predict::costs::kinds;
use pangea_sim::predict::{
    ArrivalModel, Cores, Costs, Line, Loaded, Loss, Prediction, Region, Settings, predict,
};

/// Returns the same costs for every kind: a fixed cost, and a cost per transaction.
fn costs(fixed_us: f64, per_txn_us: f64) -> Costs {
    let line = |kind: &str| {
        let is_per_txn = matches!(kind, "work_execute" | "work_order" | "work_apply");
        let per_unit_ns = if is_per_txn { per_txn_us * 1e3 } else { 0.0 };
        Line { fixed_ns: fixed_us * 1e3, per_unit_ns, ..Line::default() }
    };
    Costs {
        fsync_us: vec![100.0, 300.0],
        wire_bytes_per_byte: 1.0,
        lines: kinds(Message::KINDS).map(|kind| (kind.to_owned(), line(kind))).collect(),
        ..Costs::default()
    }
}

fn settings(replicas: usize, clients: usize, cores: Cores) -> Settings {
    let sizes = workload::Settings { accounts: 2_000, ..workload::Settings::default() };
    let one_way = |from, to| if from == to { Span::ZERO } else { Span::from_ms(5) };
    Settings {
        seed: 7,
        regions: (0..replicas).map(|region| format!("region-{region}")).collect(),
        partitions: Partitions::default(),
        one_way: (0..replicas).map(|a| (0..replicas).map(|b| one_way(a, b)).collect()).collect(),
        bandwidth_bits: None,
        clients,
        pace: ArrivalModel::Closed,
        loss: None,
        warmup: Span::from_ms(2_000),
        duration: Span::from_ms(2_000),
        cores,
        workload: Workload::named("bank", &sizes).unwrap(),
        registry: Arc::new(Registry::new(workload::procedures())),
    }
}

fn run(settings: &Settings, costs: &Costs) -> Prediction {
    let loaded = Loaded::new(&settings.workload, &settings.registry);
    predict::<Minerva>(settings, &Options::default(), costs, &loaded.unwrap()).unwrap()
}

#[test]
fn a_prediction_is_the_same_each_time_and_another_for_another_seed() {
    let (settings, costs) = (settings(3, 60, Cores::Shared(2)), costs(20.0, 50.0));
    let first = run(&settings, &costs);
    assert!(first.throughput_per_sec > 100.0, "{first:?}");
    assert_eq!(run(&settings, &costs), first);
    let other = Settings { seed: 8, ..settings };
    assert_ne!(run(&other, &costs), first);
}

#[test]
fn at_light_load_a_commit_takes_what_the_protocol_waits_for() {
    // Two one-way delays until a batch is known to be available, one to two for the cut, and the
    // timers of a batch and an epoch; no server is busy.
    let prediction = run(&settings(3, 3, Cores::Each(8)), &costs(0.1, 0.1));
    let p50 = prediction.latency_ms.p50;
    assert!((20.0..50.0).contains(&p50), "{prediction:?}");
    assert_eq!(prediction.bottleneck, "round trips");
    assert!(prediction.servers.iter().all(|server| server.utilisation < 0.2), "{prediction:?}");
}

/// If the timers of all nodes fired at the same microsecond, the nodes agreed only after they had
/// repeated their messages. At these round trips a commit took three or six of them.
#[test]
fn nodes_do_not_tick_in_step() {
    for round_trip_ms in [180, 200] {
        let mut settings = settings(3, 3, Cores::Each(8));
        let one_way = Span::from_ms(round_trip_ms / 2);
        for (from, row) in settings.one_way.iter_mut().enumerate() {
            for (to, delay) in row.iter_mut().enumerate() {
                *delay = if from == to { Span::ZERO } else { one_way };
            }
        }
        settings.duration = Span::from_ms(5_000);
        let p50 = run(&settings, &costs(0.1, 0.1)).latency_ms.p50;
        let least = 2.0 * round_trip_ms as f64;
        assert!((least..least + 40.0).contains(&p50), "{p50} at {round_trip_ms} ms");
    }
}

#[test]
fn twice_the_costs_are_half_the_throughput_where_processors_limit_it() {
    let settings = settings(3, 300, Cores::Shared(1));
    let once = run(&settings, &costs(5.0, 300.0));
    let twice = run(&settings, &costs(5.0, 300.0).times(2.0));
    let ratio = twice.throughput_per_sec / once.throughput_per_sec;
    assert!((0.35..0.65).contains(&ratio), "{ratio}: {once:?} {twice:?}");
    assert!(once.servers.iter().any(|server| server.utilisation > 0.9), "{once:?}");
}

#[test]
fn more_cores_are_not_slower_and_a_narrow_link_is() {
    let costs = costs(30.0, 200.0);
    let rate = |cores| run(&settings(3, 300, cores), &costs).throughput_per_sec;
    let (one, two, eight) = (rate(Cores::Each(1)), rate(Cores::Each(2)), rate(Cores::Each(8)));
    assert!(two >= one * 0.95 && eight >= two * 0.95, "{one} {two} {eight}");
    let wide = settings(3, 300, Cores::Each(8));
    let narrow = Settings { bandwidth_bits: Some(100_000), ..wide };
    assert!(run(&narrow, &costs).throughput_per_sec < eight / 2.0);
}

#[test]
fn every_number_of_replicas_works() {
    for replicas in [4, 5, 15] {
        let prediction = run(&settings(replicas, 45, Cores::Each(4)), &costs(5.0, 10.0));
        assert_eq!(prediction.regions.len(), replicas);
        let all: f64 = prediction.regions.iter().map(|region| region.throughput_per_sec).sum();
        assert!(all > 100.0 && (all - prediction.throughput_per_sec).abs() < 1e-6);
    }
}

#[test]
fn an_open_loop_makes_the_calls_that_are_asked_for_while_it_can() {
    let closed = settings(3, 6, Cores::Each(1));
    let rate = |per_sec: f64, costs: &Costs| {
        run(&Settings { pace: ArrivalModel::Open { per_sec }, ..closed.clone() }, costs)
    };
    let light = rate(900.0, &costs(0.1, 0.1));
    assert!((820.0..980.0).contains(&light.throughput_per_sec), "{light:?}");
    assert!((20.0..60.0).contains(&light.latency_ms.p50), "{light:?}");
    // Two milliseconds per transaction allow fewer than 500 per second on every replica.
    let heavy = rate(900.0, &costs(0.1, 2_000.0));
    assert!(heavy.throughput_per_sec < 600.0, "{heavy:?}");
    assert!(heavy.latency_ms.p50 > 5.0 * light.latency_ms.p50, "waiting takes time: {heavy:?}");
}

#[test]
fn a_lost_region_stops_its_own_clients_alone_and_nothing_acknowledged_is_gone() {
    let whole = Settings { duration: Span::from_ms(6_000), ..settings(3, 30, Cores::Each(8)) };
    let costs = costs(5.0, 20.0);
    let undisturbed = run(&whole, &costs);
    assert!(undisturbed.survived.is_none());
    for region in [None, Some(0), Some(2)] {
        let loss = Some(Loss { region, at: Span::from_ms(1_000) });
        let lossy = run(&Settings { loss, ..whole.clone() }, &costs);
        let survived = lossy.survived.as_ref().unwrap();
        assert_eq!((&survived.wrong, survived.lost_txns), (&None, 0), "{lossy:?}");
        assert!(region.is_none_or(|it| survived.region == format!("region-{it}")));
        assert!(region.is_some() || survived.was_coordinator, "{survived:?}");
        for at in 0..3 {
            let Region { name, pause_ms, .. } = &lossy.regions[at];
            match *name == survived.region {
                true => assert!(*pause_ms > 4_500.0, "{name}: {pause_ms}"),
                // They elect a new coordinator if necessary, and continue.
                false => assert!(*pause_ms < 3_000.0, "{name}: {pause_ms}"),
            }
        }
        assert_ne!(lossy.coordinator.as_ref(), Some(&survived.region));
    }
}

/// Costs of Calvin at low utilisation.
fn of_calvin() -> Costs {
    let costs = costs(5.0, 20.0);
    let line = |kind: &'static str| (kind.to_owned(), costs.lines["turn"]);
    Costs { lines: kinds(calvin::Message::KINDS).map(line).collect(), ..costs }
}

/// Transactions that only a master had are lost with it, and no others.
#[test]
fn what_is_lost_with_a_master_is_counted_and_the_others_are_equal() {
    let whole = Settings { duration: Span::from_ms(6_000), ..settings(3, 30, Cores::Each(8)) };
    let loaded = Loaded::new(&whole.workload, &whole.registry);
    let (costs, loaded) = (of_calvin(), loaded.unwrap());
    let survived = |replication, region| {
        let loss = Some(Loss { region: Some(region), at: Span::from_ms(1_000) });
        let options = calvin::Options { replication, ..calvin::Options::default() };
        let settings = Settings { loss, ..whole.clone() };
        let prediction = predict::<Calvin>(&settings, &options, &costs, &loaded).unwrap();
        let survived = prediction.survived.expect("a region was lost");
        assert_eq!(survived.wrong, None, "{replication:?} {region}");
        survived.lost_txns
    };
    let of_master = survived(calvin::Replication::Asynchronous, 0);
    assert!((1..200).contains(&of_master), "a few round trips: {of_master}");
    assert_eq!(survived(calvin::Replication::Asynchronous, 2), 0);
    assert_eq!(survived(calvin::Replication::Synchronous, 0), 0);
}

/// Predicts Calvin's microbenchmark with `regions` regions of `shards` nodes; `remote` of 100
/// transactions access two of them.
fn divided(regions: usize, shards: u16, remote: u32) -> Prediction {
    let sizes = workload::Settings {
        shards: shards.into(),
        rows: 2_000,
        hot: 1_000,
        remote,
        ..workload::Settings::default()
    };
    let workload = Workload::named("calvin-micro", &sizes).unwrap();
    let partitions = workload.partitions(shards);
    let clients = 600 * regions * usize::from(shards);
    let settings = settings(regions, clients, Cores::Each(1));
    let settings = Settings { partitions, workload, ..settings };
    let kinds = kinds(calvin::Message::KINDS);
    let line = costs(5.0, 300.0).lines["work_order"];
    let other = costs(5.0, 0.0).lines["turn"];
    let line =
        |kind: &'static str| (kind.to_owned(), if kind == "work_order" { line } else { other });
    let costs = Costs { lines: kinds.map(line).collect(), ..costs(5.0, 0.0) };
    let loaded = Loaded::new(&settings.workload, &settings.registry);
    let options = calvin::Options::default();
    predict::<Calvin>(&settings, &options, &costs, &loaded.unwrap()).unwrap()
}

#[test]
fn nodes_that_share_the_tables_share_the_work() {
    let [one, four] = [1, 4].map(|shards| divided(1, shards, 0).throughput_per_sec);
    assert!((3.0..4.5).contains(&(four / one)), "{one} {four}");
    let distributed = divided(1, 4, 100);
    assert!(distributed.throughput_per_sec < four * 0.8, "{distributed:?}");
    assert_eq!((distributed.replicas, distributed.partitions), (1, 4));
    assert!(distributed.wan_bytes_per_txn < 1.0, "only one region: {distributed:?}");
    let regions = divided(3, 2, 10);
    assert_eq!(regions.regions.len(), 3);
    assert!(regions.wan_bytes_per_txn > 30.0, "{regions:?}");
    assert!(regions.servers[0].region.contains('.'), "a node's place: {regions:?}");
}

/// Returns the error of a file after a change.
fn refused(change: impl Fn(String) -> String) -> String {
    let text = change(costs(1.5, 2.5).to_toml());
    Costs::parse(&text, Message::KINDS).expect_err(&text)
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let written = costs(1.5, 2.5);
    assert_eq!(Costs::parse(&written.to_toml(), Message::KINDS), Ok(written));
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    let replace = |from: &'static str, to: &'static str| {
        move |text: String| {
            assert!(text.contains(from), "{text}");
            text.replacen(from, to, 1)
        }
    };
    for (error, words) in [
        (refused(replace("version = 2", "version = 3")), &["expected 2", "found 3"][..]),
        (refused(replace("version = 2", "")), &["version", "none"]),
        (refused(replace("fixed_us = 1.5", "fixed_us = 1.5\nspeed = 9")), &["line ", "speed"]),
        (refused(replace("fixed_us = 1.5", "fixed_us = nan")), &["line ", "not negative"]),
        (refused(replace("fixed_us = 1.5", "fixed_us = -3.0")), &["line ", "-3"]),
        (refused(replace("fixed_us = 1.5", "fixed_us = inf")), &["fixed_us = inf"]),
        (refused(replace("fixed_us = 1.5", "fixed_us = 0.0")), &["the cost is zero"]),
        (refused(replace("[lines.message_ack]", "[lines.message_x]")), &["message_ack", "missing"]),
        (refused(replace("[lines.submit]", "[lines.sbumit]")), &["line ", "unknown kind"]),
        (refused(replace("per_txn_us", "per_kb_us")), &["per_kb_us", "per_txn_us"]),
        (refused(replace("fsync_us = [100.0, 300.0]", "fsync_us = [9.0, 3.0]")), &["fsync_us"]),
        (refused(replace("per_byte = 1.0", "per_byte = 0.0")), &["wire_bytes_per_byte"]),
        (refused(|_| "version = ".to_owned()), &["line 1"]),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
}
