//! Payment (clause 2.5): a customer pays, and the amount is added to the sums of the warehouse and
//! the district.
//!
//! 15 % of payments are for a customer of another warehouse, and 60 % select the customer by last
//! name. `W_YTD` is the hottest row of the benchmark. It has its own table so that New-Orders,
//! which read the tax of the same warehouse, do not depend on it. Payments do not read the sums,
//! they only add to them.

use std::io::Write;
use std::sync::Arc;

use super::super::malformed;
use super::args::{Args, PaymentArgs, Who};
use super::rows::{Account, History, Number, Row, Site, Terms};
use super::session::{Session, Touches, row};
use super::tables::{
    CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_BY_NAME, CUSTOMER_DATA, DISTRICT, DISTRICT_YTD, HISTORY,
    WAREHOUSE, WAREHOUSE_YTD,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::txn::{Abort, Adder, Context, Footprint, Procedure, SqlState, Stop};
use crate::value::Value;

/// The maximum number of characters in `C_DATA`.
const DATA_LEN_MAX: usize = 500;
/// The number of characters of `C_DATA` that the terminal shows.
const DATA_LEN_SHOWN: usize = 200;
/// The approximate length of the result.
const RESULT_LEN_GUESS: usize = 768;

/// Books a payment.
///
/// Takes [`PaymentArgs`]. Returns the data that the terminal shows (clause 2.5.3.3): the records of
/// the warehouse, the district and the customer, each prefixed by its length, and the customer's
/// number and account. For a customer with bad credit, the start of `C_DATA` follows. Aborts with
/// P0002 if no customer has the name.
#[derive(Clone, Copy, Debug)]
pub struct Payment;

impl Procedure for Payment {
    fn name(&self) -> &str {
        "tpcc_payment"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let args = PaymentArgs::decode(args).map_err(malformed)?;
        run(&args, &mut Session::new(cx))
    }

    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        vec![Arc::new(Sum)]
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn hint(&self, args: &[u8], name: &mut dyn FnMut(TableId, &[u8])) {
        let Ok(args) = PaymentArgs::decode(args) else { return };
        name(WAREHOUSE_YTD, &args.district.warehouse.key());
        name(DISTRICT_YTD, &args.district.key());
        if let Who::Number(customer) = args.who {
            let key = args.customer_district.row_key(customer);
            [CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_DATA].iter().for_each(|&table| name(table, &key));
        }
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = PaymentArgs::decode(args) else { return Some(Footprint::default()) };
        let mut touches = Touches::with_capacity(7, 5);
        touches.reads(WAREHOUSE, &args.district.warehouse.key());
        touches.reads(DISTRICT, &args.district.key());
        touches.writes(WAREHOUSE_YTD, &args.district.warehouse.key());
        touches.writes(DISTRICT_YTD, &args.district.key());
        let district = args.customer_district;
        match args.who {
            Who::Number(customer) => {
                let key = district.row_key(customer);
                touches.reads(CUSTOMER, &key);
                touches.writes(CUSTOMER_ACCOUNT, &key);
                touches.writes(CUSTOMER_DATA, &key);
                touches.inserts_range(HISTORY, KeyRange::prefix(&key));
            }
            // Only the index identifies the customer, who can be anyone in the district. The
            // payments of a district conflict anyway, on its sum.
            Who::LastName(last) => {
                let namesakes = KeyRange::prefix(&district.name_prefix(last));
                touches.reads_range(CUSTOMER_BY_NAME, namesakes);
                touches.reads_range(CUSTOMER, district.range());
                for table in [CUSTOMER_ACCOUNT, CUSTOMER_DATA] {
                    touches.writes_range(table, district.range());
                }
                touches.inserts_range(HISTORY, district.range());
            }
        }
        Some(touches.footprint())
    }
}

fn run(args: &PaymentArgs<'_>, session: &mut Session<'_>) -> Result<Vec<u8>, Stop> {
    let PaymentArgs { district, customer_district, .. } = *args;
    let amount = u64::from(args.amount);
    let warehouse_record = session.record(WAREHOUSE, &district.warehouse.key())?;
    let district_record = session.record(DISTRICT, &district.key())?;
    add(session, WAREHOUSE_YTD, &district.warehouse.key(), amount)?;
    add(session, DISTRICT_YTD, &district.key(), amount)?;

    let customer = session.customer(customer_district, args.who)?;
    let key = customer_district.row_key(customer);
    if let Who::LastName(_) = args.who {
        let tables = [CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_DATA];
        session.fetch(&tables.map(|table| (table, Key::from(&key[..]))));
    }
    let customer_record = session.record(CUSTOMER, &key)?;
    let terms: Terms<'_> = row(&customer_record)?;
    let mut account: Account = session.row(CUSTOMER_ACCOUNT, &key)?;
    account.balance = account.balance.wrapping_sub(amount as i64);
    account.ytd_payment = account.ytd_payment.wrapping_add(amount);
    account.payments = account.payments.wrapping_add(1);
    session.put(CUSTOMER_ACCOUNT, &key, &account)?;

    let (_, warehouse_name) =
        Site::tax_and_name(&mut Reader::new(&warehouse_record)).map_err(malformed)?;
    let (_, district_name) =
        Site::tax_and_name(&mut Reader::new(&district_record)).map_err(malformed)?;
    let history = History {
        warehouse: district.warehouse.0,
        district: district.number,
        amount,
        date: args.date,
        data: &[warehouse_name, b"    ", district_name].concat(),
    };
    // HISTORY has no key in the specification (clause 1.3.1). The customer's number of payments
    // gives each payment a unique key, whoever sends it and however often.
    let history_key = customer_district.row_of_row_key(customer, account.payments);
    session.put(HISTORY, &history_key, &history)?;

    let mut result = Vec::with_capacity(RESULT_LEN_GUESS);
    result.put_bytes(&warehouse_record);
    result.put_bytes(&district_record);
    result.put_varint(customer.into());
    result.put_bytes(&customer_record);
    account.encode(&mut result);
    if terms.is_bad_credit {
        let data = note(args, customer, &session.record(CUSTOMER_DATA, &key)?);
        session.put_record(CUSTOMER_DATA, Key::from(&key[..]), &data)?;
        result.extend_from_slice(&data[..data.len().min(DATA_LEN_SHOWN)]);
    }
    Ok(result)
}

/// `C_DATA` of a customer with bad credit after a payment (clause 2.5.2.2).
fn note(args: &PaymentArgs<'_>, customer: u32, before: &[u8]) -> Vec<u8> {
    let PaymentArgs { district, customer_district, amount, .. } = args;
    let mut data = Vec::with_capacity(DATA_LEN_MAX + 64);
    write!(
        data,
        "{customer} {} {} {} {} {}.{:02} ",
        customer_district.number,
        customer_district.warehouse.0,
        district.number,
        district.warehouse.0,
        amount / 100,
        amount % 100,
    )
    .expect("writing to a vector does not fail");
    data.extend_from_slice(before);
    data.truncate(DATA_LEN_MAX);
    data
}

/// The maximum number of bytes of a sum.
const NUMBER_BYTES: usize = 10;

/// Adds to a sum of money: the amount is a row like the sum.
struct Sum;

impl Adder for Sum {
    fn name(&self) -> &str {
        "tpcc_sum"
    }

    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort> {
        let number = |bytes: &[u8]| {
            let malformed =
                |error: DecodeError| Abort::new(SqlState::INTERNAL_ERROR, error.to_string());
            Number::decode(bytes).map_err(malformed)
        };
        let (Number(before), Number(more)) = (number(row)?, number(amount)?);
        let mut sum = Vec::with_capacity(NUMBER_BYTES);
        Number(before.wrapping_add(more)).encode(&mut sum);
        Ok(Value::copy_from(&sum))
    }
}

/// Adds to a sum of money.
fn add(session: &mut Session<'_>, table: TableId, key: &[u8], amount: u64) -> Result<(), Stop> {
    let mut row = Vec::with_capacity(NUMBER_BYTES);
    Number(amount).encode(&mut row);
    session.add(table, key, &Sum, &row)
}
