//! Delivery (clause 2.7): delivers the oldest undelivered order of each district.
//!
//! All ten districts are in one transaction, as clause 2.7.2 allows. The specification allows
//! deferred execution from a queue. Here a Delivery is a transaction like the others, and its
//! result is the record that clause 2.7.2.2 requires in a file.

use super::super::malformed;
use super::args::{Args, DeliveryArgs};
use super::rows::{Account, Order, OrderLine};
use super::session::{Session, Touches, row};
use super::tables::{CUSTOMER_ACCOUNT, DISTRICTS, District, NEW_ORDER, ORDER, ORDER_LINE};
use crate::codec::{Reader, Writer};
use crate::key::{Direction, Key, KeyRange};
use crate::txn::{Context, Footprint, Procedure, Stop};

/// The label of its calls.
pub(super) const DELIVERY: &str = "delivery";

/// The number of orders delivered by a Delivery with this result.
pub(super) fn delivered(result: &[u8]) -> u64 {
    let mut reader = Reader::new(result);
    let numbers = std::iter::from_fn(|| reader.varint("order").ok());
    numbers.filter(|&number| number != 0).count() as u64
}

/// Delivers an order in each district of a warehouse.
///
/// Takes [`DeliveryArgs`]. Returns the number of the order delivered in each district, 0 if no
/// order was undelivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivery;

impl Procedure for Delivery {
    fn name(&self) -> &str {
        "tpcc_delivery"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let args = DeliveryArgs::decode(args).map_err(malformed)?;
        let session = &mut Session::new(cx);
        let mut result = Vec::new();
        let mut found = Vec::with_capacity(usize::from(DISTRICTS));
        for district in args.warehouse.districts() {
            let oldest = session.first_number(NEW_ORDER, district.range(), Direction::Forward)?;
            result.put_varint(oldest.unwrap_or(0).into());
            found.extend(oldest.map(|number| (district, number)));
        }
        // Step by step for all districts, so that the reads of each step can be prefetched
        // together.
        let key = |&(district, number): &(District, u32)| Key::from(&district.row_key(number)[..]);
        let rows: Vec<_> = found.iter().map(|order| (ORDER, key(order))).collect();
        session.fetch(&rows);
        let mut orders = Vec::with_capacity(found.len());
        for (district, number) in found {
            let order: Order = session.row(ORDER, &district.row_key(number))?;
            orders.push((district, number, order));
        }
        let customer = |&(district, _, order): &(District, u32, Order)| (district, order.customer);
        let accounts = orders.iter().map(|order| (CUSTOMER_ACCOUNT, key(&customer(order))));
        let rows: Vec<_> = accounts.collect();
        session.fetch(&rows);
        for (district, number, order) in orders {
            deliver(&args, district, (number, order), session)?;
        }
        Ok(result)
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = DeliveryArgs::decode(args) else { return Some(Footprint::default()) };
        let mut touches = Touches::with_capacity(0, 4);
        // The undelivered orders and their customers are known only from reads.
        for table in [NEW_ORDER, ORDER, ORDER_LINE, CUSTOMER_ACCOUNT] {
            touches.writes_range(table, args.warehouse.range());
        }
        Some(touches.footprint())
    }
}

fn deliver(
    args: &DeliveryArgs,
    district: District,
    (number, order): (u32, Order),
    session: &mut Session<'_>,
) -> Result<(), Stop> {
    let key = district.row_key(number);
    session.delete(NEW_ORDER, &key)?;
    session.put(ORDER, &key, &Order { carrier: Some(args.carrier), ..order })?;

    let mut records = Vec::with_capacity(usize::from(order.lines));
    session.scan(ORDER_LINE, KeyRange::prefix(&key), |key, record| {
        records.push((Key::from(key), record.clone()));
        Ok(())
    })?;
    let mut sum = 0_i64;
    for (key, record) in records {
        let line: OrderLine<'_> = row(&record)?;
        sum = sum.wrapping_add(line.amount as i64);
        session.put(ORDER_LINE, &key, &OrderLine { delivery: Some(args.date), ..line })?;
    }

    let key = district.row_key(order.customer);
    let mut account: Account = session.row(CUSTOMER_ACCOUNT, &key)?;
    account.balance = account.balance.wrapping_add(sum);
    account.deliveries = account.deliveries.wrapping_add(1);
    session.put(CUSTOMER_ACCOUNT, &key, &account)
}
