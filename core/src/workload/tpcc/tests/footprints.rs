//! Conflicts between transactions according to their footprints: the purpose of the column
//! partitioning.

use crate::key::KeyRange;
use crate::txn::{Footprint, Procedure};
use crate::workload::tpcc::args::{Args, DeliveryArgs, Line, NewOrderArgs, PaymentArgs, Who};
use crate::workload::tpcc::delivery::Delivery;
use crate::workload::tpcc::new_order::NewOrder;
use crate::workload::tpcc::payment::Payment;
use crate::workload::tpcc::rows::Date;
use crate::workload::tpcc::tables::{District, Warehouse};

const DATE: Date = Date { seconds: 0 };

fn footprint<'a>(procedure: &dyn Procedure, args: &impl Args<'a>) -> Footprint {
    let mut bytes = Vec::new();
    args.encode(&mut bytes);
    procedure.footprint(&bytes).expect("TPC-C declares its footprints")
}

/// Whether one of the two must wait for the other.
fn conflict(a: &Footprint, b: &Footprint) -> bool {
    let all = |of: &Footprint| {
        let points = of.points.iter().map(|p| (p.table, KeyRange::point(&p.key), p.mode));
        let ranges = of.ranges.iter().map(|r| (r.table, r.range.clone(), r.mode));
        points.chain(ranges).collect::<Vec<_>>()
    };
    let b = all(b);
    all(a).iter().any(|(table, range, mode)| {
        b.iter().any(|(other_table, other_range, other_mode)| {
            table == other_table && mode.conflicts(*other_mode) && range.overlaps(other_range)
        })
    })
}

fn new_order(warehouse: u32, number: u8, item: u32, supply: u32) -> Footprint {
    let mut all_lines = [NewOrderArgs::NO_LINE; 15];
    all_lines[0] = Line { item, supply: Warehouse(supply), quantity: 1 };
    let district = District { warehouse: Warehouse(warehouse), number };
    let args = NewOrderArgs { district, customer: 1, entry: DATE, line_count: 1, all_lines };
    footprint(&NewOrder, &args)
}

fn payment(to: (u32, u8), by: (u32, u8), who: Who<'_>) -> Footprint {
    let district = |(w, number)| District { warehouse: Warehouse(w), number };
    let (district, customer_district) = (district(to), district(by));
    let args = PaymentArgs { district, customer_district, who, amount: 1, date: DATE };
    footprint(&Payment, &args)
}

#[test]
fn new_orders_and_payments_never_wait_for_each_other() {
    for who in [Who::Number(1), Who::LastName(b"BARBARBAR")] {
        assert!(!conflict(&new_order(1, 1, 5, 1), &payment((1, 1), (1, 1), who)));
    }
}

#[test]
fn new_orders_wait_for_those_of_their_district_and_for_their_stock() {
    let order = new_order(1, 1, 5, 1);
    assert!(conflict(&order, &new_order(1, 1, 6, 1)), "one district");
    assert!(conflict(&order, &new_order(1, 2, 5, 1)), "one stock");
    assert!(conflict(&order, &new_order(2, 1, 5, 1)), "one stock, supplied to another warehouse");
    assert!(!conflict(&order, &new_order(1, 2, 6, 1)), "districts and stock of their own");
    assert!(!conflict(&order, &new_order(2, 1, 5, 2)), "warehouses of their own");
}

#[test]
fn payments_wait_for_those_to_their_warehouse_and_by_their_customer() {
    let number = Who::Number(1);
    let paid = payment((1, 1), (1, 1), number);
    assert!(conflict(&paid, &payment((1, 2), (1, 2), number)), "one warehouse");
    assert!(conflict(&paid, &payment((2, 1), (1, 1), number)), "one customer");
    assert!(!conflict(&paid, &payment((2, 1), (1, 1), Who::Number(2))), "another customer");
    let by_name = Who::LastName(b"BARBARBAR");
    assert!(conflict(&paid, &payment((2, 1), (1, 1), by_name)), "it may be the same customer");
    assert!(!conflict(&paid, &payment((2, 1), (1, 2), by_name)), "another district");
}

#[test]
fn a_delivery_waits_for_the_new_orders_and_payments_of_its_warehouse_alone() {
    let delivery = |warehouse| {
        let args = DeliveryArgs { warehouse: Warehouse(warehouse), carrier: 1, date: DATE };
        footprint(&Delivery, &args)
    };
    assert!(conflict(&delivery(1), &new_order(1, 10, 5, 1)));
    assert!(conflict(&delivery(1), &payment((2, 1), (1, 10), Who::Number(1))));
    assert!(conflict(&delivery(1), &delivery(1)));
    assert!(!conflict(&delivery(1), &new_order(2, 10, 5, 1)));
    assert!(!conflict(&delivery(1), &payment((1, 1), (2, 1), Who::Number(1))));
    assert!(!conflict(&delivery(1), &delivery(2)));
}
