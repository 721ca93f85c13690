//! A long transaction, which is an extension of TPC-C: many New-Orders of one terminal in one
//! transaction.
//!
//! Each is a complete New-Order (clause 2.4) with its own order number, so that every consistency
//! condition holds as after separate transactions. None of them is rolled back: if one in a hundred
//! orders were, two in five transactions of fifty orders would be.

use super::super::{bounded, ended, malformed};
use super::args::{Args, NewOrderArgs};
use super::new_order::{self, NewOrder};
use super::session::Session;
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::txn::{Context, Footprint, Procedure, Stop};

/// The maximum number of orders in a transaction.
pub const ORDERS_MAX: u64 = 100;

/// Enters many orders.
///
/// Takes their number and [`NewOrderArgs`] for each. Returns the results of [`NewOrder`] for each
/// order, prefixed by their lengths.
#[derive(Clone, Copy, Debug)]
pub struct LongOrder;

/// Encodes the arguments.
pub(super) fn encode(orders: &[NewOrderArgs]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_varint(orders.len() as u64);
    orders.iter().for_each(|order| order.encode(&mut out));
    out
}

fn decode(args: &[u8]) -> Result<Vec<NewOrderArgs>, DecodeError> {
    let from = &mut Reader::new(args);
    let count = bounded(from.varint("orders")?, 1, ORDERS_MAX, "orders")?;
    let orders = (0..count).map(|_| NewOrderArgs::read(from)).collect::<Result<_, _>>()?;
    ended(from, "orders")?;
    Ok(orders)
}

/// The arguments of each order. Empty for malformed arguments, for which [`LongOrder::run`] aborts.
fn each(args: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let encoded = |order: NewOrderArgs| {
        let mut out = Vec::new();
        order.encode(&mut out);
        out
    };
    decode(args).unwrap_or_default().into_iter().map(encoded)
}

impl Procedure for LongOrder {
    fn name(&self) -> &str {
        "tpcc_long"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let orders = decode(args).map_err(malformed)?;
        let (mut session, mut results) = (Session::new(cx), Vec::new());
        for order in &orders {
            results.put_bytes(&new_order::run(order, &mut session)?);
        }
        Ok(results)
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn hint(&self, args: &[u8], name: &mut dyn FnMut(TableId, &[u8])) {
        each(args).for_each(|order| NewOrder.hint(&order, name));
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let (mut points, mut ranges) = (Vec::new(), Vec::new());
        for order in each(args) {
            let footprint = NewOrder.footprint(&order)?;
            points.extend(footprint.points);
            ranges.extend(footprint.ranges);
        }
        Some(Footprint::new(points, ranges))
    }
}
