//! Tests: the conditions hold, each is violated by matching damage, and the mix is correct.

mod footprints;
mod profiles;
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::rows::{Account, Customer, History, Item, Number, Order, OrderLine, Row, StockInfo};
use super::tables::*;
use super::*;
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::value::Value;
use crate::workload::Workload;
use crate::workload::model::Model;
use crate::workload::tests::{Bench, small};

fn district(warehouse: u32, number: u8) -> District {
    District { warehouse: Warehouse(warehouse), number }
}

fn record(model: &Model, table: TableId, key: &[u8]) -> Value {
    model.get(table, key).unwrap_or_else(|| panic!("table {table} has no {key:?}"))
}

fn read<R: for<'r> Row<'r>>(model: &Model, table: TableId, key: &[u8]) -> R {
    R::decode(&record(model, table, key)).expect("the row is well formed")
}

fn write<'r>(model: &mut Model, table: TableId, key: &[u8], row: &impl Row<'r>) {
    let mut record = Vec::new();
    row.encode(&mut record);
    model.put(table, Key::from(key), Some(Value::from(record)));
}

/// The keys of a table within a range.
fn keys(model: &Model, table: TableId, range: &KeyRange) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    model.scan(table, range, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    keys
}

#[test]
fn all_conditions_hold_after_the_load_and_after_2000_transactions_of_the_standard_mix() {
    let mut bench = Bench::new("tpcc", &small());
    let before = bench.check();
    assert_eq!(before.facts["orders"], 3 * 10 * 30);
    let ended = bench.run_many(2_000);
    let after = bench.check();
    assert!(after.facts["orders delivered"] > 300, "{after}");
    assert!(after.facts["orders"] > before.facts["orders"] + 700, "{after}");
    for label in ["new-order", "payment", "order-status", "delivery", "stock-level"] {
        assert!(ended[label].0 > 40, "{ended:?}");
    }
    let rolled_back = ended["new-order"].1;
    assert!((1..25).contains(&rolled_back), "{rolled_back} of about 900 New-Orders rolled back");
    assert!(ended.iter().all(|(label, (_, aborted))| *label == "new-order" || *aborted == 0));
}

type Damage = fn(&mut Model);

/// Damages, and the conditions that each violates.
const DAMAGES: [(&str, Damage, &[u32]); 13] = [
    ("the warehouse's sum is off by a cent", |model| add(model, WAREHOUSE_YTD, 1), &[1, 8]),
    ("a number is skipped", |model| add(model, DISTRICT_NEXT_ORDER, 1), &[2]),
    ("a new order in the middle is lost", lose_new_order, &[3, 5, 11]),
    ("an order has a line too many", add_line, &[4, 6]),
    ("a new order has a carrier", |model| change_order(model, 25, Some(3)), &[5, 7]),
    ("a line is of another order", move_line, &[6]),
    ("a delivered line has no date", |model| change_line(model, 1, None), &[7]),
    ("a payment is to another warehouse", |model| move_payment(model, 2, 1), &[8, 9]),
    ("a payment is to another district", |model| move_payment(model, 1, 2), &[9]),
    ("a payment is by another customer", move_payer, &[10]),
    ("a delivery is counted twice", |model| change_account(model, 0, 1), &[11]),
    ("a payment is counted twice", |model| change_account(model, 1, 0), &[12]),
    ("a new line has a date", |model| change_line(model, 30, Some(Date::default())), &[7, 10, 12]),
];

fn add(model: &mut Model, table: TableId, more: u64) {
    let key = if table == WAREHOUSE_YTD { &district(1, 1).key()[..4] } else { &[0, 0, 0, 1, 1] };
    let Number(before) = read(model, table, key);
    write(model, table, key, &Number(before + more));
}

fn lose_new_order(model: &mut Model) {
    model.put(NEW_ORDER, Key::from(&district(1, 1).row_key(25)[..]), None);
}

fn add_line(model: &mut Model) {
    let line = record(model, ORDER_LINE, &district(1, 1).line_key(30, 1));
    model.put(ORDER_LINE, Key::from(&district(1, 1).line_key(30, 99)[..]), Some(line));
}

fn move_line(model: &mut Model) {
    let from = district(1, 1).line_key(30, 1);
    let line = record(model, ORDER_LINE, &from);
    model.put(ORDER_LINE, Key::from(&from[..]), None);
    model.put(ORDER_LINE, Key::from(&district(1, 1).line_key(29, 99)[..]), Some(line));
}

fn change_order(model: &mut Model, number: u32, carrier: Option<u8>) {
    let key = district(1, 1).row_key(number);
    let order: Order = read(model, ORDER, &key);
    write(model, ORDER, &key, &Order { carrier, ..order });
}

fn change_line(model: &mut Model, order: u32, delivery: Option<Date>) {
    let key = district(1, 1).line_key(order, 1);
    let line = record(model, ORDER_LINE, &key);
    let line = OrderLine::decode(&line).expect("the row is well formed");
    write(model, ORDER_LINE, &key, &OrderLine { delivery, ..line });
}

fn move_payment(model: &mut Model, warehouse: u32, district_number: u8) {
    let key = district(1, 1).row_of_row_key(1, 1);
    let history = record(model, HISTORY, &key);
    let history = History::decode(&history).expect("the row is well formed");
    write(model, HISTORY, &key, &History { warehouse, district: district_number, ..history });
}

fn move_payer(model: &mut Model) {
    let from = district(1, 1).row_of_row_key(1, 1);
    let history = record(model, HISTORY, &from);
    model.put(HISTORY, Key::from(&from[..]), None);
    model.put(HISTORY, Key::from(&district(1, 1).row_of_row_key(2, 99)[..]), Some(history));
}

fn change_account(model: &mut Model, payment: u64, deliveries: u32) {
    let key = district(1, 1).row_key(1);
    let mut account: Account = read(model, CUSTOMER_ACCOUNT, &key);
    account.ytd_payment += payment;
    account.deliveries += deliveries;
    write(model, CUSTOMER_ACCOUNT, &key, &account);
}

#[test]
fn each_condition_is_broken_by_what_breaks_it_and_by_nothing_else() {
    let loaded = Bench::new("tpcc", &small());
    let Workload::Tpcc(tpcc) = &loaded.workload else { panic!("the workload is TPC-C") };
    let mut caught = BTreeSet::new();
    for (what, damage, conditions) in DAMAGES {
        let mut model = loaded.model.clone();
        damage(&mut model);
        let found = check::violations(tpcc.warehouses, &tpcc.scale, &model, &mut Report::default());
        for violation in &found {
            let text = violation.to_string();
            assert!(text.contains("warehouse ") && violation.left.1 != violation.right.1, "{text}");
        }
        let numbers: BTreeSet<u32> = found
            .iter()
            .filter_map(|violation| violation.rule.strip_prefix("TPC-C condition ")?.parse().ok())
            .collect();
        assert_eq!(numbers, BTreeSet::from_iter(conditions.iter().copied()), "{what}: {found:?}");
        caught.extend(numbers);
        assert_eq!(tpcc.check(&model), Err(found[0].clone()));
    }
    assert_eq!(caught, (1..=12).collect(), "each condition was violated");
}

#[test]
fn a_violation_names_the_condition_the_place_and_both_numbers() {
    let mut bench = Bench::new("tpcc", &small());
    let key = district(2, 7).key();
    write(&mut bench.model, DISTRICT_NEXT_ORDER, &key, &Number(41));
    let violation = bench.workload.check(&bench.model).expect_err("a number is skipped");
    let text = "TPC-C condition 2 violated, warehouse 2, district 7: \
                D_NEXT_O_ID - 1 is 40, max(O_ID) is 30";
    assert_eq!(violation.to_string(), text);
}

#[test]
fn lost_rows_lost_index_entries_and_unreadable_rows_are_violations() {
    let loaded = Bench::new("tpcc", &small());
    let first_of = |table| {
        let keys = keys(&loaded.model, table, &KeyRange::all());
        keys.into_iter().next().expect("the table has rows")
    };
    for table in (WAREHOUSE.0..=STOCK_INFO.0).map(TableId) {
        let mut model = loaded.model.clone();
        model.put(table, Key::from(&first_of(table)[..]), None);
        assert!(loaded.workload.check(&model).is_err(), "a row of table {table} was lost");
    }
    let mut model = loaded.model.clone();
    let entry =
        district(1, 1).row_of_row_key(read::<Order>(&model, ORDER, &first_of(ORDER)).customer, 1);
    model.put(ORDER_BY_CUSTOMER, Key::from(&entry[..]), None);
    let wrong = district(1, 1).row_of_row_key(99, 1);
    model.put(ORDER_BY_CUSTOMER, Key::from(&wrong[..]), Some(Value::copy_from(&[])));
    let violation = loaded.workload.check(&model).expect_err("an entry of another customer");
    assert_eq!(violation.left, ("rows that refer to no row", 1));
    for table in [WAREHOUSE_YTD, DISTRICT_YTD, CUSTOMER_ACCOUNT, ORDER, ORDER_LINE, HISTORY] {
        let mut model = loaded.model.clone();
        let unreadable = Some(Value::copy_from(&[0xff]));
        model.put(table, Key::from(&first_of(table)[..]), unreadable);
        let violation = loaded.workload.check(&model).expect_err("an unreadable row");
        assert!(violation.rule.starts_with("TPC-C rows"), "{violation}");
    }
}

#[test]
fn the_load_follows_clause_4_3() {
    let scale = Scale { items: 5_000, ..Scale::FULL };
    let bench = Bench::new("tpcc", &Settings { warehouses: 1, scale, ..small() });
    let model = &bench.model;
    bench.check();
    let one = district(1, 1);
    let sizes = [(CUSTOMER, 30_000), (HISTORY, 30_000), (ORDER, 30_000), (NEW_ORDER, 9_000)];
    for (table, rows) in sizes {
        assert_eq!(model.len(table), rows, "table {table}");
    }
    let new_orders = keys(model, NEW_ORDER, &one.range());
    let last_900: Vec<_> = (2_101..=3_000).map(|order| one.row_key(order).to_vec()).collect();
    assert_eq!(new_orders, last_900);

    let (mut ordered, mut lines) = (BTreeSet::new(), 0);
    for number in 1..=3_000 {
        let order: Order = read(model, ORDER, &one.row_key(number));
        assert_eq!(order.carrier.is_some(), number <= 2_100);
        ordered.insert(order.customer);
        lines += u32::from(order.lines);
    }
    assert_eq!(ordered, (1..=3_000).collect(), "each customer ordered once");
    let first: Vec<u32> =
        (1..=5).map(|n| read::<Order>(model, ORDER, &one.row_key(n)).customer).collect();
    assert_ne!(first, [1, 2, 3, 4, 5], "in a random order");
    assert!((9.8..10.2).contains(&(f64::from(lines) / 3_000.0)), "{lines} lines");

    let (mut bad_credit, mut names) = (0, BTreeMap::<Vec<u8>, u32>::new());
    for number in 1..=3_000 {
        let record = record(model, CUSTOMER, &one.row_key(number));
        let customer = Customer::decode(&record).expect("the row is well formed");
        bad_credit += u32::from(customer.terms.is_bad_credit);
        *names.entry(customer.terms.last.to_vec()).or_default() += 1;
        if number <= 1_000 {
            assert_eq!(customer.terms.last, draw::last_name(u64::from(number) - 1).as_bytes());
        }
    }
    assert!((230..370).contains(&bad_credit), "{bad_credit} of 3,000 have bad credit");
    assert_eq!(names.len(), 1_000);
    assert!(names.values().any(|count| *count > 8), "the remaining names are not uniform");
    let original = |table| {
        let all = keys(model, table, &KeyRange::all());
        let is_original = |key: &&Vec<u8>| {
            let record = record(model, table, key);
            match table {
                ITEM => rows::is_original(Item::decode(&record).expect("well formed").data),
                _ => rows::is_original(StockInfo::decode(&record).expect("well formed").data),
            }
        };
        all.iter().filter(is_original).count()
    };
    assert!((400..600).contains(&original(ITEM)), "{} of 5,000 items", original(ITEM));
    assert!((400..600).contains(&original(STOCK_INFO)), "{} stocks", original(STOCK_INFO));
}

#[test]
fn long_orders_are_orders_and_all_conditions_hold_with_them() {
    let settings = Settings { long: 10, long_times: 20, ..small() };
    let mut bench = Bench::new("tpcc-nopay", &settings);
    assert!(bench.workload.procedures().contains(&"tpcc_long"));
    let before = bench.check().facts["orders"];
    let ended = bench.run_many(1_000);
    let (long, aborted) = ended["long-order"];
    assert!((60..140).contains(&long) && aborted == 0, "{ended:?}");
    let orders = i64::from(20 * long + ended["new-order"].0);
    assert_eq!(bench.check().facts["orders"] - before, orders);
    assert!(Tpcc::new(Mix::Standard, &Settings { long_times: 101, ..small() }).is_err());
    let malformed = bench.procedure("tpcc_long").footprint(&[7]);
    assert_eq!(malformed, Some(crate::txn::Footprint::default()));
}
