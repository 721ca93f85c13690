//! Tests of the mix of transactions and inputs, and of the assignment of terminals.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::Timestamp;
use crate::workload::rng::WorkloadRng;
use crate::workload::tests::{Bench, small};
use crate::workload::tpcc::args::{self, Args, NewOrderArgs, OrderStatusArgs, PaymentArgs, Who};
use crate::workload::tpcc::tables::{District, Warehouse};
use crate::workload::tpcc::{Mix, Scale, Tpcc};
use crate::workload::{Client, Settings};

/// A part as a percentage of the whole.
fn percent(part: u32, whole: u32) -> f64 {
    100.0 * f64::from(part) / f64::from(whole)
}

#[test]
fn the_mix_and_its_inputs_have_the_shares_of_the_specification() {
    let settings = Settings { scale: Scale::FULL, warehouses: 5, ..small() };
    let tpcc = Tpcc::new(Mix::Standard, &settings).expect("valid settings");
    let mut terminal = tpcc.terminal(Client::new(4, 10, 3));
    let home = terminal.home().warehouse;
    let mut dice = WorkloadRng::new(3);
    let mut labels = BTreeMap::<&str, u32>::new();
    let (mut lines, mut remote_lines, mut rolled_back) = (0, 0, 0);
    let (mut remote_payments, mut by_name, mut named) = (0, 0, 0);
    for _ in 0..40_000 {
        let call = terminal.next(&mut dice, Timestamp::default());
        *labels.entry(call.label).or_default() += 1;
        match call.label {
            "new-order" => {
                let args = NewOrderArgs::decode(&call.args).expect("well formed");
                assert_eq!(args.district.warehouse, home);
                assert!((5..=15).contains(&args.line_count));
                lines += args.line_count as u32;
                let is_remote = |line: &&args::Line| line.supply != home;
                remote_lines += args.lines().iter().filter(is_remote).count() as u32;
                rolled_back += u32::from(args.lines().iter().any(|line| line.item > 100_000));
            }
            "payment" => {
                let args = PaymentArgs::decode(&call.args).expect("well formed");
                let is_remote = args.customer_district.warehouse != home;
                assert!(is_remote || args.district.warehouse == home);
                remote_payments += u32::from(is_remote);
                by_name += u32::from(matches!(args.who, Who::LastName(_)));
                named += 1;
            }
            "order-status" => {
                let args = OrderStatusArgs::decode(&call.args).expect("well formed");
                by_name += u32::from(matches!(args.who, Who::LastName(_)));
                named += 1;
            }
            _ => (),
        }
    }
    let share = |label| percent(labels[label], 40_000);
    let about = |found: f64, expected: f64, tolerance: f64| {
        assert!((found - expected).abs() < tolerance, "{found} %, not {expected} %");
    };
    about(share("new-order"), 45.0, 1.5);
    about(share("payment"), 43.0, 1.5);
    for label in ["order-status", "delivery", "stock-level"] {
        about(share(label), 4.0, 0.5);
    }
    about(percent(remote_lines, lines), 1.0, 0.2);
    about(percent(rolled_back, labels["new-order"]), 1.0, 0.35);
    about(percent(remote_payments, labels["payment"]), 15.0, 1.2);
    about(percent(by_name, named), 60.0, 1.5);
    about(f64::from(lines) / f64::from(labels["new-order"]), 10.0, 0.15);
}

#[test]
fn the_other_mix_is_half_new_orders_and_half_payments() {
    let mut bench = Bench::new("tpcc-nopay", &small());
    let ended = bench.run_many(2_000);
    assert_eq!(ended.keys().copied().collect::<Vec<_>>(), ["new-order", "payment"]);
    assert!((880..1_120).contains(&ended["payment"].0), "{ended:?}");
    bench.check();
}

#[test]
fn terminals_live_in_the_warehouses_of_their_region() {
    let settings = Settings { warehouses: 8, ..small() };
    let tpcc = Tpcc::new(Mix::Standard, &settings).expect("valid settings");
    let mut homes = BTreeMap::<District, u32>::new();
    for index in 0..240 {
        let client = Client::new(index, 240, 3);
        let home = tpcc.terminal(client).home();
        assert_eq!((home.warehouse.0 - 1) % 3, client.region());
        *homes.entry(home).or_default() += 1;
    }
    assert_eq!(homes.len(), 80, "every district has a terminal");
    let few = Tpcc::new(Mix::Standard, &Settings { warehouses: 1, ..small() });
    let few = few.expect("valid settings");
    for index in 0..9 {
        let home = few.terminal(Client::new(index, 9, 3)).home();
        assert_eq!(home.warehouse, Warehouse(1), "if a region has no warehouse");
    }
}

#[test]
fn remote_warehouses_are_of_another_shard_where_new_orders_are_alone() {
    let settings = Settings { warehouses: 8, shards: 4, ..small() };
    let tpcc = Tpcc::new(Mix::NewOrder, &settings).expect("valid settings");
    let mut dice = WorkloadRng::new(5);
    let (mut orders, mut spanning) = (0, 0);
    for index in 0..16 {
        let mut terminal = tpcc.terminal(Client::new(index, 16, 1));
        let shard = |w: Warehouse| (w.0 - 1) % 4;
        let home = terminal.home().warehouse;
        for _ in 0..400 {
            let call = terminal.next(&mut dice, Timestamp::default());
            assert_eq!(call.label, "new-order");
            let args = NewOrderArgs::decode(&call.args).expect("well formed");
            let mut remote = args.lines().iter().map(|line| line.supply).filter(|w| *w != home);
            assert!(remote.clone().all(|w| shard(w) != shard(home)), "{remote:?} of {home:?}");
            orders += 1;
            spanning += u32::from(remote.next().is_some());
        }
    }
    let percent = f64::from(spanning) / f64::from(orders) * 100.0;
    assert!((8.0..11.0).contains(&percent), "a tenth spans two shards: {percent} %");
    // With one shard, or with two of one warehouse each, there is one other warehouse.
    for (warehouses, shards) in [(2, 1), (2, 2), (1, 4), (5, 4)] {
        let few = Settings { warehouses, shards, ..settings };
        let few = Tpcc::new(Mix::NewOrder, &few).expect("valid settings");
        let mut terminal = few.terminal(Client::new(0, 1, 1));
        for _ in 0..400 {
            let call = terminal.next(&mut dice, Timestamp::default());
            let args = NewOrderArgs::decode(&call.args).expect("well formed");
            assert!(args.lines().iter().all(|line| (1..=warehouses).contains(&line.supply.0)));
        }
    }
}

#[test]
fn regions_never_meet_where_remote_warehouses_are_of_the_own_region() {
    let settings = Settings { warehouses: 8, own_region: true, ..small() };
    let tpcc = Tpcc::new(Mix::NewOrderPayment, &settings).expect("valid settings");
    let mut dice = WorkloadRng::new(5);
    for index in 0..24 {
        let client = Client::new(index, 24, 3);
        let mut terminal = tpcc.terminal(client);
        let mut reached = BTreeSet::new();
        for _ in 0..400 {
            let call = terminal.next(&mut dice, Timestamp::default());
            if call.label == "payment" {
                let args = PaymentArgs::decode(&call.args).expect("well formed");
                reached.insert(args.customer_district.warehouse.0);
            } else {
                let args = NewOrderArgs::decode(&call.args).expect("well formed");
                reached.extend(args.lines().iter().map(|line| line.supply.0));
            }
        }
        let of_region: BTreeSet<u32> = (1..=8).filter(|w| (w - 1) % 3 == client.region()).collect();
        assert_eq!(reached, of_region, "client {index}");
    }
    let alone = Settings { warehouses: 3, ..settings };
    let alone = Tpcc::new(Mix::NewOrderPayment, &alone).expect("valid settings");
    let mut terminal = alone.terminal(Client::new(1, 3, 3));
    for _ in 0..200 {
        let call = terminal.next(&mut dice, Timestamp::default());
        if call.label == "payment" {
            let args = PaymentArgs::decode(&call.args).expect("well formed");
            assert_eq!(
                args.customer_district.warehouse,
                Warehouse(2),
                "the only one of the region"
            );
        }
    }
}
