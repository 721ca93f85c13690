//! New-Order (clause 2.4): a customer orders 5 to 15 items, 1 % of them from another warehouse.
//!
//! This is the main transaction of the benchmark, and the one that it counts. Each line reads the
//! item and both halves of its stock, and writes the half that changes. The order gets its number
//! from the district. One order in a hundred names an item that does not exist and is rolled back
//! after all other work (clause 2.4.2.3).

use super::super::malformed;
use super::args::{Args, LINES_MAX, Line, NewOrderArgs};
use super::rows::{
    Item, Number, Order, OrderLine, Row, Site, Stock, StockInfo, Terms, is_original,
};
use super::session::{Session, Touches, row};
use super::tables::{
    CUSTOMER, DISTRICT, DISTRICT_NEXT_ORDER, ITEM, NEW_ORDER, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE,
    STOCK, STOCK_INFO, WAREHOUSE,
};
use crate::codec::{Reader, Writer};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::txn::{Abort, Context, Footprint, Procedure, SqlState, Stop};

/// Stock that falls below this quantity is refilled (clause 2.4.2.2).
const QUANTITY_LEFT_MIN: u32 = 10;
/// The quantity of a refill.
const QUANTITY_REFILL: u32 = 91;
/// The approximate length of the result.
const RESULT_LEN_GUESS: usize = 512;
/// Tax and discount are in ten-thousandths.
const ONE: u64 = 10_000;

/// Enters an order.
///
/// Takes [`NewOrderArgs`]. Returns the data that the terminal shows (clause 2.4.3.3): the order's
/// number, its total, both taxes, and the customer's discount, credit and last name. Each line
/// follows with its amount, the item's price and name, the remaining quantity, and B or G. Aborts
/// with P0001 if an item does not exist.
#[derive(Clone, Copy, Debug)]
pub struct NewOrder;

impl Procedure for NewOrder {
    fn name(&self) -> &str {
        "tpcc_new_order"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let args = NewOrderArgs::decode(args).map_err(malformed)?;
        run(&args, &mut Session::new(cx))
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn hint(&self, args: &[u8], name: &mut dyn FnMut(TableId, &[u8])) {
        let Ok(args) = NewOrderArgs::decode(args) else { return };
        name(DISTRICT_NEXT_ORDER, &args.district.key());
        name(CUSTOMER, &args.district.row_key(args.customer));
        for line in args.lines() {
            let stock_key = line.supply.stock_key(line.item);
            name(ITEM, &line.item.to_be_bytes());
            name(STOCK, &stock_key);
            name(STOCK_INFO, &stock_key);
        }
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = NewOrderArgs::decode(args) else { return Some(Footprint::default()) };
        let district = args.district;
        let mut touches = Touches::with_capacity(4 + 2 * args.line_count, 5);
        touches.reads(WAREHOUSE, &district.warehouse.key());
        touches.reads(DISTRICT, &district.key());
        touches.writes(DISTRICT_NEXT_ORDER, &district.key());
        touches.reads(CUSTOMER, &district.row_key(args.customer));
        // In order, table by table, so that the footprint need not be sorted.
        let mut stock = args.all_lines.map(|line| line.supply.stock_key(line.item));
        let stock = &mut stock[..args.line_count];
        stock.sort_unstable();
        stock.iter().for_each(|key| touches.writes(STOCK, key));
        stock.iter().for_each(|key| touches.reads(STOCK_INFO, key));
        // Items are never written, so a lock on the whole table costs less than one for each line.
        touches.reads_range(ITEM, KeyRange::all());
        // The order's number is known only from a read, so its rows can be anywhere in the
        // district.
        for table in [ORDER, NEW_ORDER, ORDER_LINE] {
            touches.inserts_range(table, district.range());
        }
        let of_customer = KeyRange::prefix(&district.row_key(args.customer));
        touches.inserts_range(ORDER_BY_CUSTOMER, of_customer);
        Some(touches.footprint())
    }
}

/// Enters an order.
pub(super) fn run(args: &NewOrderArgs, session: &mut Session<'_>) -> Result<Vec<u8>, Stop> {
    let NewOrderArgs { district, customer, entry, .. } = *args;
    let tax = |record: &[u8]| Site::tax_and_name(&mut Reader::new(record)).map(|(tax, _)| tax);
    let warehouse_tax =
        tax(&session.record(WAREHOUSE, &district.warehouse.key())?).map_err(malformed)?;
    let district_tax = tax(&session.record(DISTRICT, &district.key())?).map_err(malformed)?;
    let customer_record = session.record(CUSTOMER, &district.row_key(customer))?;
    let terms: Terms<'_> = row(&customer_record)?;
    let Number(number) = session.row(DISTRICT_NEXT_ORDER, &district.key())?;
    session.put(DISTRICT_NEXT_ORDER, &district.key(), &Number(number + 1))?;
    let order = u32::try_from(number).map_err(|_| too_many_orders())?;

    fetch_order(args, order, session);
    let is_all_local = args.lines().iter().all(|line| line.supply == district.warehouse);
    let lines = args.line_count as u8;
    let row = Order { customer, entry, carrier: None, lines, is_all_local };
    session.put(ORDER, &district.row_key(order), &row)?;
    session.put_record(NEW_ORDER, Key::from(&district.row_key(order)[..]), &[])?;
    let by_customer = district.row_of_row_key(customer, order);
    session.put_record(ORDER_BY_CUSTOMER, Key::from(&by_customer[..]), &[])?;

    let mut shown = Vec::with_capacity(RESULT_LEN_GUESS);
    let mut sum = 0;
    for (line, number) in args.lines().iter().zip(1..) {
        sum += run_line(args, line, (order, number), session, &mut shown)?;
    }
    let mut result = Vec::with_capacity(RESULT_LEN_GUESS);
    result.put_varint(order.into());
    result.put_varint(total(sum, terms.discount, warehouse_tax + district_tax));
    result.put_varint(warehouse_tax.into());
    result.put_varint(district_tax.into());
    terms.encode(&mut result);
    result.extend_from_slice(&shown);
    Ok(result)
}

/// Names the rows of the order for a prefetch.
fn fetch_order(args: &NewOrderArgs, order: u32, session: &mut Session<'_>) {
    let NewOrderArgs { district, customer, .. } = *args;
    let key = Key::from(&district.row_key(order)[..]);
    let by_customer = Key::from(&district.row_of_row_key(customer, order)[..]);
    let line = |number: u8| Key::from(&district.line_key(order, number)[..]);
    let rows: [(TableId, Key); 3 + LINES_MAX] = std::array::from_fn(|at| match at {
        0 => (ORDER, key.clone()),
        1 => (NEW_ORDER, key.clone()),
        2 => (ORDER_BY_CUSTOMER, by_customer.clone()),
        _ => (ORDER_LINE, line((at - 2) as u8)),
    });
    session.fetch_to_write(&rows[..3 + args.line_count]);
}

/// Runs one line of the order, numbered from 1. Returns its amount.
fn run_line(
    args: &NewOrderArgs,
    line: &Line,
    (order, number): (u32, u8),
    session: &mut Session<'_>,
    shown: &mut Vec<u8>,
) -> Result<u64, Stop> {
    let Some(item_record) = session.find(ITEM, &line.item.to_be_bytes())? else {
        return Err(Abort::new(SqlState::RAISE_EXCEPTION, "Item number is not valid").into());
    };
    let item: Item<'_> = row(&item_record)?;
    let stock_key = line.supply.stock_key(line.item);
    let mut stock: Stock = session.row(STOCK, &stock_key)?;
    let quantity = u32::from(line.quantity);
    stock.quantity = match stock.quantity.checked_sub(quantity) {
        Some(left) if left >= QUANTITY_LEFT_MIN => left,
        _ => stock.quantity + QUANTITY_REFILL - quantity,
    };
    stock.ytd = stock.ytd.wrapping_add(quantity);
    stock.orders = stock.orders.wrapping_add(1);
    let is_remote = line.supply != args.district.warehouse;
    stock.remote_orders = stock.remote_orders.wrapping_add(u32::from(is_remote));
    session.put(STOCK, &stock_key, &stock)?;

    let info_record = session.record(STOCK_INFO, &stock_key)?;
    let info: StockInfo<'_> = row(&info_record)?;
    let amount = u64::from(line.quantity) * u64::from(item.price);
    let order_line = OrderLine {
        delivery: None,
        amount,
        item: line.item,
        supply: line.supply.0,
        quantity: line.quantity,
        info: info.of_district(args.district.number),
    };
    session.put(ORDER_LINE, &args.district.line_key(order, number), &order_line)?;

    let is_brand = is_original(item.data) && is_original(info.data);
    shown.put_varint(amount);
    shown.put_varint(item.price.into());
    shown.put_bytes(item.name);
    shown.put_varint(stock.quantity.into());
    shown.put_u8(if is_brand { b'B' } else { b'G' });
    Ok(amount)
}

/// The sum of the lines minus the discount plus the taxes, in cents. Half a cent is rounded up.
fn total(sum: u64, discount: u32, tax: u32) -> u64 {
    let discounted = sum * ONE.saturating_sub(discount.into());
    (discounted * (ONE + u64::from(tax)) + ONE * ONE / 2) / (ONE * ONE)
}

fn too_many_orders() -> Stop {
    Abort::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the order numbers of the district are exhausted")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_takes_the_discount_and_adds_the_taxes() {
        // 100.00 minus 10 % is 90.00; plus 5 % and 3 % tax it is 97.20.
        assert_eq!(total(10_000, 1_000, 800), 9_720);
        assert_eq!(total(1, 0, 4_999), 1);
        assert_eq!(total(1, 0, 5_000), 2);
        assert_eq!(total(0, 0, 0), 0);
    }
}
