//! Table numbers, and keys: sequences of fixed-width big-endian numbers.
//!
//! All keys except those of the index by last name fit into a [`Key`] without an allocation.

use crate::codec::DecodeError;
use crate::ids::TableId;
use crate::key::{Key, KeyRange};

/// W: name, address, tax.
pub const WAREHOUSE: TableId = TableId(40);
/// W: `W_YTD`.
pub const WAREHOUSE_YTD: TableId = TableId(41);
/// W, D: name, address, tax.
pub const DISTRICT: TableId = TableId(42);
/// W, D: `D_YTD`.
pub const DISTRICT_YTD: TableId = TableId(43);
/// W, D: `D_NEXT_O_ID`.
pub const DISTRICT_NEXT_ORDER: TableId = TableId(44);
/// W, D, C: names, address, credit, discount.
pub const CUSTOMER: TableId = TableId(45);
/// W, D, C: balance, payments, deliveries.
pub const CUSTOMER_ACCOUNT: TableId = TableId(46);
/// W, D, C: `C_DATA`.
pub const CUSTOMER_DATA: TableId = TableId(47);
/// W, D, last name, first name, C: empty.
pub const CUSTOMER_BY_NAME: TableId = TableId(48);
/// W, D, C of the customer, number of the customer's payment: a payment.
pub const HISTORY: TableId = TableId(49);
/// W, D, O: an order.
pub const ORDER: TableId = TableId(50);
/// W, D, C, O: empty.
pub const ORDER_BY_CUSTOMER: TableId = TableId(51);
/// W, D, O: empty. The undelivered orders.
pub const NEW_ORDER: TableId = TableId(52);
/// W, D, O, number of the line: an order line.
pub const ORDER_LINE: TableId = TableId(53);
/// I: price, name, data.
pub const ITEM: TableId = TableId(54);
/// W, I: quantity and counts.
pub const STOCK: TableId = TableId(55);
/// W, I: `S_DIST_01` to `S_DIST_10`, `S_DATA`.
pub const STOCK_INFO: TableId = TableId(56);

/// Districts of a warehouse.
pub const DISTRICTS: u8 = 10;

/// A warehouse, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warehouse(pub u32);

/// A district of a warehouse, from 1 to [`DISTRICTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct District {
    /// The warehouse.
    pub warehouse: Warehouse,
    /// The number in the warehouse.
    pub number: u8,
}

impl Warehouse {
    /// The key of the warehouse, which is also the prefix of all keys in it.
    pub fn key(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// The warehouse's districts.
    pub fn districts(self) -> impl Iterator<Item = District> {
        (1..=DISTRICTS).map(move |number| District { warehouse: self, number })
    }

    /// The key of an item in the warehouse.
    pub fn stock_key(self, item: u32) -> [u8; 8] {
        let ([a, b, c, d], [e, f, g, h]) = (self.key(), item.to_be_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// The range of all keys in the warehouse.
    pub fn range(self) -> KeyRange {
        KeyRange::prefix(&self.key())
    }
}

impl District {
    /// The key of the district, which is also the prefix of all keys in it.
    pub fn key(self) -> [u8; 5] {
        let [a, b, c, d] = self.warehouse.key();
        [a, b, c, d, self.number]
    }

    /// The range of all keys in the district.
    pub fn range(self) -> KeyRange {
        KeyRange::prefix(&self.key())
    }

    /// The key of a numbered row in the district: a customer, an order.
    pub fn row_key(self, number: u32) -> [u8; 9] {
        let mut key = [0; 9];
        key[..5].copy_from_slice(&self.key());
        key[5..].copy_from_slice(&number.to_be_bytes());
        key
    }

    /// The key of a numbered row that belongs to another: an order of a customer.
    pub fn row_of_row_key(self, outer: u32, inner: u32) -> [u8; 13] {
        let mut key = [0; 13];
        key[..9].copy_from_slice(&self.row_key(outer));
        key[9..].copy_from_slice(&inner.to_be_bytes());
        key
    }

    /// The key of a line of an order.
    pub fn line_key(self, order: u32, line: u8) -> [u8; 10] {
        let mut key = [line; 10];
        key[..9].copy_from_slice(&self.row_key(order));
        key
    }

    /// The key of a customer in the index by name. Names contain no zero byte. A name that is a
    /// prefix of another therefore sorts before it, and customers with the same last name are
    /// ordered by first name.
    pub fn name_key(self, last: &[u8], first: &[u8], customer: u32) -> Key {
        let mut key = self.name_prefix(last);
        key.extend_from_slice(first);
        key.push(0);
        key.extend_from_slice(&customer.to_be_bytes());
        Key::from(&key[..])
    }

    /// The prefix of the keys of all customers with this last name.
    pub fn name_prefix(self, last: &[u8]) -> Vec<u8> {
        let mut prefix = Vec::with_capacity(48);
        prefix.extend_from_slice(&self.key());
        prefix.extend_from_slice(last);
        prefix.push(0);
        prefix
    }
}

/// The last number of a key.
pub fn last_number(key: &[u8]) -> Result<u32, DecodeError> {
    let bytes = key.last_chunk().ok_or(DecodeError::new("key"))?;
    Ok(u32::from_be_bytes(*bytes))
}

/// Decodes the district and number of a key that begins with one of [`District::row_key`].
pub fn split_row_key(key: &[u8]) -> Result<(District, u32), DecodeError> {
    let ([a, b, c, d, number], rest) = key.split_first_chunk().ok_or(DecodeError::new("key"))?;
    let row = rest.first_chunk().ok_or(DecodeError::new("key"))?;
    let warehouse = Warehouse(u32::from_be_bytes([*a, *b, *c, *d]));
    Ok((District { warehouse, number: *number }, u32::from_be_bytes(*row)))
}
