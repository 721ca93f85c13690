//! Order-Status (clause 2.6): shows the last order of a customer. Read-only.

use super::super::malformed;
use super::args::{Args, OrderStatusArgs, Who};
use super::session::{Session, Touches};
use super::tables::{
    CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_BY_NAME, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE,
};
use crate::codec::Writer;
use crate::key::{Direction, Key, KeyRange};
use crate::txn::{Context, Footprint, Procedure, Stop};

/// Shows a customer's last order.
///
/// Takes [`OrderStatusArgs`]. Returns the data that the terminal shows (clause 2.6.3.3): the
/// customer's number and the records of the customer, the account, the order and its lines. Each
/// record is prefixed by its length. The order's number (0 if there is no order) precedes its
/// record. Aborts with P0002 if no customer has the name.
#[derive(Clone, Copy, Debug)]
pub struct OrderStatus;

impl Procedure for OrderStatus {
    fn name(&self) -> &str {
        "tpcc_order_status"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let OrderStatusArgs { district, who } = OrderStatusArgs::decode(args).map_err(malformed)?;
        let session = &mut Session::new(cx);
        let customer = session.customer(district, who)?;
        let key = district.row_key(customer);
        session.fetch(&[CUSTOMER, CUSTOMER_ACCOUNT].map(|table| (table, Key::from(&key[..]))));
        let mut result = Vec::new();
        result.put_varint(customer.into());
        result.put_bytes(&session.record(CUSTOMER, &key)?);
        result.put_bytes(&session.record(CUSTOMER_ACCOUNT, &key)?);
        let orders = KeyRange::prefix(&key);
        let last = session.first_number(ORDER_BY_CUSTOMER, orders, Direction::Reverse)?;
        result.put_varint(last.unwrap_or(0).into());
        if let Some(order) = last {
            let key = district.row_key(order);
            result.put_bytes(&session.record(ORDER, &key)?);
            session.scan(ORDER_LINE, KeyRange::prefix(&key), |_, line| {
                result.put_bytes(line);
                Ok(())
            })?;
        }
        Ok(result)
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = OrderStatusArgs::decode(args) else { return Some(Footprint::default()) };
        let district = args.district;
        let mut touches = Touches::with_capacity(2, 6);
        match args.who {
            Who::Number(customer) => {
                let key = district.row_key(customer);
                touches.reads(CUSTOMER, &key);
                touches.reads(CUSTOMER_ACCOUNT, &key);
                touches.reads_range(ORDER_BY_CUSTOMER, KeyRange::prefix(&key));
            }
            Who::LastName(last) => {
                let namesakes = KeyRange::prefix(&district.name_prefix(last));
                touches.reads_range(CUSTOMER_BY_NAME, namesakes);
                for table in [CUSTOMER, CUSTOMER_ACCOUNT, ORDER_BY_CUSTOMER] {
                    touches.reads_range(table, district.range());
                }
            }
        }
        touches.reads_range(ORDER, district.range());
        touches.reads_range(ORDER_LINE, district.range());
        Some(touches.footprint())
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        true
    }
}
