//! The rows of a workload as SQL tables, converted from Pangea's rows.
//!
//! A database is loaded with the rows that Pangea's own load procedures write when they run on the
//! model of `core`. Both therefore have the same rows, drawn from the same seed. After the same
//! calls, one after the other, they still have the same rows, which a test checks.
//!
//! The columns are those of the specification (clause 1.3), with these differences: money is in
//! cents, taxes and discounts are in ten-thousandths and dates in seconds, as integers, as in
//! Pangea. A payment has a number, because a table without a primary key is replicated badly.
//!
//! The text format is that of PostgreSQL's COPY, which MariaDB's LOAD DATA accepts too.

use std::io::Write;
use std::ops::ControlFlow;

use pangea_core::codec::DecodeError;
use pangea_core::ids::TableId;
use pangea_core::key::KeyRange;
use pangea_core::txn::Registry;
use pangea_core::value::Value;
use pangea_core::workload::model::Model;
use pangea_core::workload::tpcc::rows::{
    Account, Customer, DISTRICT_INFO_LEN, History, Item, Number, Order, OrderLine, Row, Site,
    Stock, StockInfo,
};
use pangea_core::workload::tpcc::tables::{
    CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_DATA, DISTRICT, DISTRICT_NEXT_ORDER, DISTRICT_YTD,
    HISTORY, ITEM, NEW_ORDER, ORDER, ORDER_LINE, STOCK, STOCK_INFO, WAREHOUSE, WAREHOUSE_YTD,
    last_number, split_row_key,
};
use pangea_core::workload::{Call, Rows, procedures, ycsb};

use crate::failure::Failure;

/// The text format of a column of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// `\\x` and hex digits: PostgreSQL's `bytea`.
    Prefixed,
    /// Only hex digits, for `UNHEX`.
    Plain,
}

/// The rows of one table.
#[derive(Debug)]
pub(crate) struct Rowset {
    pub table: &'static str,
    /// One line for each row.
    pub text: Vec<u8>,
}

/// A table: its name, the table that its rows are read from, and the conversion of a row to a line.
type Table = (&'static str, TableId, fn(&Model, &[u8], &[u8], &mut Lines) -> Read);

type Read = Result<(), DecodeError>;

/// All tables, in load order.
const TABLES: [Table; 10] = [
    ("ycsb", ycsb::ROWS, ycsb_row),
    ("item", ITEM, item),
    ("warehouse", WAREHOUSE, warehouse),
    ("district", DISTRICT, district),
    ("stock", STOCK, stock),
    ("customer", CUSTOMER, customer),
    ("history", HISTORY, history),
    ("orders", ORDER, order),
    ("new_order", NEW_ORDER, new_order),
    ("order_line", ORDER_LINE, order_line),
];

/// The rows that a call of a load procedure writes.
pub(crate) fn of_load(call: &Call, bytes: Bytes) -> Result<Vec<Rowset>, Failure> {
    of_model(&model_of_load(call)?, bytes)
}

/// Runs a call of a load procedure, and returns the rows that it writes.
pub(crate) fn model_of_load(call: &Call) -> Result<Model, Failure> {
    let (registry, mut model) = (Registry::new(procedures()), Model::default());
    let procedure = registry.id(call.procedure).and_then(|id| registry.procedure(id));
    let procedure = procedure.expect("loads call procedures of the workloads");
    let ran = model.run_unchecked(procedure, &call.args);
    ran.map_err(|stop| Failure::Failed(format!("{}: {stop:?}", call.procedure)))?;
    Ok(model)
}

/// All rows of a model.
pub(crate) fn of_model(model: &Model, bytes: Bytes) -> Result<Vec<Rowset>, Failure> {
    let mut all = Vec::new();
    for (table, id, line) in TABLES {
        let mut lines = Lines { text: Vec::new(), bytes };
        let mut read = Ok(());
        model.scan(id, &KeyRange::all(), &mut |key, record| {
            read = line(model, key, record, &mut lines);
            lines.end();
            if read.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        read.map_err(|error| Failure::failed(table, error))?;
        if !lines.text.is_empty() {
            all.push(Rowset { table, text: lines.text });
        }
    }
    Ok(all)
}

/// All rows of a model by table, one line each in the format of PostgreSQL's COPY: the expected
/// rows of a baseline after the same calls.
///
/// # Panics
/// When a row is malformed, which no procedure writes.
pub fn rows_of(model: &Model) -> Vec<(&'static str, Vec<String>)> {
    let all = of_model(model, Bytes::Prefixed).expect("rows written by procedures can be decoded");
    let lines = |text: Vec<u8>| {
        let text = String::from_utf8(text).expect("the columns are ASCII");
        text.lines().map(str::to_owned).collect()
    };
    all.into_iter().map(|Rowset { table, text }| (table, lines(text))).collect()
}

/// Lines of tab-separated columns.
struct Lines {
    text: Vec<u8>,
    bytes: Bytes,
}

impl Lines {
    fn number(&mut self, number: impl Into<i64>) -> &mut Self {
        write!(self.text, "{}\t", number.into()).expect("writing to a vector does not fail");
        self
    }

    /// Appends a sum, which is far below 2^63.
    fn sum(&mut self, number: u64) -> &mut Self {
        self.number(number as i64)
    }

    fn null(&mut self) -> &mut Self {
        self.text.extend_from_slice(b"\\N\t");
        self
    }

    fn string(&mut self, string: &[u8]) -> &mut Self {
        for byte in string {
            match byte {
                b'\\' => self.text.extend_from_slice(b"\\\\"),
                b'\t' => self.text.extend_from_slice(b"\\t"),
                b'\n' => self.text.extend_from_slice(b"\\n"),
                byte => self.text.push(*byte),
            }
        }
        self.text.push(b'\t');
        self
    }

    fn strings<'s>(&mut self, strings: impl IntoIterator<Item = &'s [u8]>) {
        for string in strings {
            self.string(string);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        if self.bytes == Bytes::Prefixed {
            self.text.extend_from_slice(b"\\\\x");
        }
        for byte in bytes {
            self.text.push(DIGITS[usize::from(byte >> 4)]);
            self.text.push(DIGITS[usize::from(byte & 15)]);
        }
        self.text.push(b'\t');
        self
    }

    /// Ends a line, replacing the separator after its last column.
    fn end(&mut self) {
        if let Some(last) = self.text.last_mut() {
            *last = b'\n';
        }
    }
}

/// The record of another table under the same key.
fn beside(model: &Model, table: TableId, key: &[u8]) -> Result<Value, DecodeError> {
    model.get(table, key).ok_or(DecodeError::new("row: a part is missing"))
}

fn number(model: &Model, table: TableId, key: &[u8]) -> Result<u64, DecodeError> {
    Ok(Number::decode(&beside(model, table, key)?)?.0)
}

/// Appends the district's columns of a key, and returns the number that follows.
fn district_row(key: &[u8], lines: &mut Lines) -> Result<u32, DecodeError> {
    let (district, number) = split_row_key(key)?;
    lines.number(district.warehouse.0).number(district.number);
    Ok(number)
}

fn warehouse_of(key: &[u8]) -> Result<u32, DecodeError> {
    Ok(u32::from_be_bytes(*key.first_chunk().ok_or(DecodeError::new("key"))?))
}

fn site(site: &Site<'_>, lines: &mut Lines) {
    lines.string(site.name);
    lines.strings(site.address.lines);
    lines.number(site.tax);
}

fn ycsb_row(_: &Model, key: &[u8], value: &[u8], lines: &mut Lines) -> Read {
    let digits = std::str::from_utf8(key).ok().and_then(|digits| digits.parse::<i64>().ok());
    lines.number(digits.ok_or(DecodeError::new("key"))?).bytes(value);
    Ok(())
}

fn item(_: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    let Item { price, name, data, image } = Item::decode(record)?;
    lines.number(last_number(key)?).number(image).string(name).number(price).string(data);
    Ok(())
}

fn warehouse(model: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    lines.number(warehouse_of(key)?);
    site(&Site::decode(record)?, lines);
    lines.sum(number(model, WAREHOUSE_YTD, key)?);
    Ok(())
}

fn district(model: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    let district = *key.get(4).ok_or(DecodeError::new("key"))?;
    lines.number(warehouse_of(key)?).number(district);
    site(&Site::decode(record)?, lines);
    lines.sum(number(model, DISTRICT_YTD, key)?);
    lines.sum(number(model, DISTRICT_NEXT_ORDER, key)?);
    Ok(())
}

fn stock(model: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    let Stock { quantity, ytd, orders, remote_orders } = Stock::decode(record)?;
    let record = beside(model, STOCK_INFO, key)?;
    let StockInfo { districts, data } = StockInfo::decode(&record)?;
    lines.number(warehouse_of(key)?).number(last_number(key)?).number(quantity);
    lines.strings(districts.chunks(DISTRICT_INFO_LEN));
    lines.number(ytd).number(orders).number(remote_orders).string(data);
    Ok(())
}

fn customer(model: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    let Customer { terms, first, middle, address, phone, since, credit_limit } =
        Customer::decode(record)?;
    let Account { balance, ytd_payment, payments, deliveries } =
        Account::decode(&beside(model, CUSTOMER_ACCOUNT, key)?)?;
    let number = district_row(key, lines)?;
    lines.number(number).string(first).string(middle).string(terms.last);
    lines.strings(address.lines);
    lines.string(phone).number(since.seconds);
    lines.string(if terms.is_bad_credit { b"BC" } else { b"GC" });
    lines.sum(credit_limit).number(terms.discount).number(balance).sum(ytd_payment);
    lines.number(payments).number(deliveries).string(&beside(model, CUSTOMER_DATA, key)?);
    Ok(())
}

fn history(_: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    let History { warehouse, district, amount, date, data } = History::decode(record)?;
    let customer = district_row(key, lines)?;
    lines.number(customer).number(last_number(key)?).number(warehouse).number(district);
    lines.number(date.seconds).sum(amount).string(data);
    Ok(())
}

fn order(_: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    let Order { customer, entry, carrier, lines: count, is_all_local } = Order::decode(record)?;
    let number = district_row(key, lines)?;
    lines.number(number).number(customer).number(entry.seconds);
    match carrier {
        Some(carrier) => lines.number(carrier),
        None => lines.null(),
    };
    lines.number(count).number(u8::from(is_all_local));
    Ok(())
}

fn new_order(_: &Model, key: &[u8], _: &[u8], lines: &mut Lines) -> Read {
    let number = district_row(key, lines)?;
    lines.number(number);
    Ok(())
}

fn order_line(_: &Model, key: &[u8], record: &[u8], lines: &mut Lines) -> Read {
    let OrderLine { delivery, amount, item, supply, quantity, info } = OrderLine::decode(record)?;
    let number = district_row(key, lines)?;
    let line = *key.last().ok_or(DecodeError::new("key"))?;
    lines.number(number).number(line).number(item).number(supply);
    match delivery {
        Some(date) => lines.number(date.seconds),
        None => lines.null(),
    };
    lines.number(quantity).sum(amount).string(info);
    Ok(())
}
