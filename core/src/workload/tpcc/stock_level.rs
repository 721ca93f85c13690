//! Stock-Level (clause 2.8): counts the items of a district's last 20 orders whose stock is low.
//! Read-only.

use super::super::malformed;
use super::args::{Args, StockLevelArgs};
use super::rows::{Number, OrderLine, Stock};
use super::session::{Session, Touches, row};
use super::tables::{DISTRICT_NEXT_ORDER, ORDER_LINE, STOCK};
use crate::codec::Writer;
use crate::key::{Key, KeyRange};
use crate::txn::{Context, Footprint, Procedure, Stop};

/// The number of a district's last orders that are checked.
const ORDERS_LOOKED_AT: u64 = 20;
/// The approximate number of lines in these orders.
const LINES_GUESS: usize = 256;

/// Counts the items whose stock is low.
///
/// Takes [`StockLevelArgs`]. Returns the count.
#[derive(Clone, Copy, Debug)]
pub struct StockLevel;

impl Procedure for StockLevel {
    fn name(&self) -> &str {
        "tpcc_stock_level"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let StockLevelArgs { district, threshold } =
            StockLevelArgs::decode(args).map_err(malformed)?;
        let session = &mut Session::new(cx);
        let Number(next) = session.row(DISTRICT_NEXT_ORDER, &district.key())?;
        let key_of = |order: u64| district.row_key(u32::try_from(order).unwrap_or(u32::MAX));
        let first = key_of(next.saturating_sub(ORDERS_LOOKED_AT)).to_vec();
        let range = KeyRange { start: first, end: Some(key_of(next).to_vec()) };
        let mut items = Vec::with_capacity(LINES_GUESS);
        session.scan(ORDER_LINE, range, |_, record| {
            items.push(row::<OrderLine<'_>>(record)?.item);
            Ok(())
        })?;
        items.sort_unstable();
        items.dedup();
        let stock_key = |item| Key::from(&district.warehouse.stock_key(item)[..]);
        let rows: Vec<_> = items.into_iter().map(|item| (STOCK, stock_key(item))).collect();
        session.fetch(&rows);
        let mut low = 0;
        for (table, key) in rows {
            let stock: Stock = session.row(table, &key)?;
            low += u64::from(stock.quantity < threshold);
        }
        let mut result = Vec::new();
        result.put_varint(low);
        Ok(result)
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = StockLevelArgs::decode(args) else { return Some(Footprint::default()) };
        let mut touches = Touches::with_capacity(1, 2);
        touches.reads(DISTRICT_NEXT_ORDER, &args.district.key());
        touches.reads_range(ORDER_LINE, args.district.range());
        touches.reads_range(STOCK, args.district.warehouse.range());
        Some(touches.footprint())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        true
    }
}
