//! The records of the tables. Numbers are varints: money is in cents, tax and discount in
//! ten-thousandths.
//!
//! The columns that the frequent programs need come first in a record; these programs decode no
//! further.

use super::super::bounded;
use crate::codec::{DecodeError, Reader, Writer};
use crate::time::Timestamp;

/// A date and time, in seconds since the driver's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// Seconds.
    pub seconds: u32,
}

/// The content of a record, decoded without copying its strings.
pub trait Row<'a>: Sized {
    /// Appends the record to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the bytes that [`Row::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Decodes a whole record.
    ///
    /// # Errors
    /// If the bytes are malformed.
    fn decode(record: &'a [u8]) -> Result<Self, DecodeError> {
        Self::read(&mut Reader::new(record))
    }
}

impl Date {
    /// The date of a clock reading.
    pub fn of(now: Timestamp) -> Self {
        Self { seconds: u32::try_from(now.us / 1_000_000).unwrap_or(u32::MAX) }
    }
}

impl Row<'_> for Date {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.seconds.into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { seconds: small(from, "date")? })
    }
}

/// Decodes a number that fits into 32 bits.
pub fn small(from: &mut Reader<'_>, what: &'static str) -> Result<u32, DecodeError> {
    Ok(bounded(from.varint(what)?, 0, u32::MAX.into(), what)? as u32)
}

/// Appends a signed number; small absolute values take few bytes.
pub fn put_signed(value: i64, out: &mut Vec<u8>) {
    out.put_varint(((value << 1) ^ (value >> 63)) as u64);
}

/// Decodes the bytes that [`put_signed`] wrote.
pub fn signed(from: &mut Reader<'_>, what: &'static str) -> Result<i64, DecodeError> {
    let bits = from.varint(what)?;
    Ok((bits >> 1) as i64 ^ -((bits & 1) as i64))
}

/// A single number: `W_YTD`, `D_YTD`, `D_NEXT_O_ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(pub u64);

impl Row<'_> for Number {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(from.varint("number")?))
    }
}

/// An address: five strings, not decoded further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// Two streets, city, state, zip code.
    pub lines: [&'a [u8]; 5],
}

impl<'a> Row<'a> for Address<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.lines.iter().for_each(|line| out.put_bytes(line));
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut lines: [&[u8]; 5] = [&[]; 5];
        for line in &mut lines {
            *line = from.bytes("address")?;
        }
        Ok(Self { lines })
    }
}

/// The static columns of a warehouse or a district.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site<'a> {
    /// `W_TAX`, `D_TAX`.
    pub tax: u32,
    /// `W_NAME`, `D_NAME`.
    pub name: &'a [u8],
    /// The address.
    pub address: Address<'a>,
}

impl<'a> Row<'a> for Site<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.tax.into());
        out.put_bytes(self.name);
        self.address.encode(out);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (tax, name) = Self::tax_and_name(from)?;
        Ok(Self { tax, name, address: Address::read(from)? })
    }
}

impl<'a> Site<'a> {
    /// Decodes only the columns before the address.
    pub fn tax_and_name(from: &mut Reader<'a>) -> Result<(u32, &'a [u8]), DecodeError> {
        Ok((small(from, "tax")?, from.bytes("name")?))
    }
}

/// The columns of a customer that New-Order needs, at the start of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms<'a> {
    /// `C_DISCOUNT`.
    pub discount: u32,
    /// Whether `C_CREDIT` is BC rather than GC.
    pub is_bad_credit: bool,
    /// `C_LAST`.
    pub last: &'a [u8],
}

impl<'a> Row<'a> for Terms<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.discount.into());
        out.put_u8(u8::from(self.is_bad_credit));
        out.put_bytes(self.last);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let discount = small(from, "discount")?;
        let is_bad_credit = bounded(from.u8("credit")?.into(), 0, 1, "credit")? == 1;
        Ok(Self { discount, is_bad_credit, last: from.bytes("last name")? })
    }
}

/// The static columns of a customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Customer<'a> {
    /// Discount, credit and last name.
    pub terms: Terms<'a>,
    /// `C_FIRST`.
    pub first: &'a [u8],
    /// `C_MIDDLE`.
    pub middle: &'a [u8],
    /// The address.
    pub address: Address<'a>,
    /// `C_PHONE`.
    pub phone: &'a [u8],
    /// `C_SINCE`.
    pub since: Date,
    /// `C_CREDIT_LIM`.
    pub credit_limit: u64,
}

impl<'a> Row<'a> for Customer<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.terms.encode(out);
        out.put_bytes(self.first);
        out.put_bytes(self.middle);
        self.address.encode(out);
        out.put_bytes(self.phone);
        self.since.encode(out);
        out.put_varint(self.credit_limit);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            terms: Terms::read(from)?,
            first: from.bytes("first name")?,
            middle: from.bytes("middle name")?,
            address: Address::read(from)?,
            phone: from.bytes("phone")?,
            since: Date::read(from)?,
            credit_limit: from.varint("credit limit")?,
        })
    }
}

/// The columns of a customer that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// `C_BALANCE`.
    pub balance: i64,
    /// `C_YTD_PAYMENT`.
    pub ytd_payment: u64,
    /// `C_PAYMENT_CNT`.
    pub payments: u32,
    /// `C_DELIVERY_CNT`.
    pub deliveries: u32,
}

impl Row<'_> for Account {
    fn encode(&self, out: &mut Vec<u8>) {
        put_signed(self.balance, out);
        out.put_varint(self.ytd_payment);
        out.put_varint(self.payments.into());
        out.put_varint(self.deliveries.into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            balance: signed(from, "balance")?,
            ytd_payment: from.varint("payments")?,
            payments: small(from, "count of payments")?,
            deliveries: small(from, "count of deliveries")?,
        })
    }
}

/// A payment. The key identifies the paying customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History<'a> {
    /// `H_W_ID`: the warehouse that received the payment.
    pub warehouse: u32,
    /// `H_D_ID`: the district that received the payment.
    pub district: u8,
    /// `H_AMOUNT`.
    pub amount: u64,
    /// `H_DATE`.
    pub date: Date,
    /// `H_DATA`: the names of both, or random text from the load. The rest of the record.
    pub data: &'a [u8],
}

impl<'a> Row<'a> for History<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.warehouse.into());
        out.put_u8(self.district);
        out.put_varint(self.amount);
        self.date.encode(out);
        out.extend_from_slice(self.data);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            warehouse: small(from, "warehouse")?,
            district: from.u8("district")?,
            amount: from.varint("amount")?,
            date: Date::read(from)?,
            data: from.rest(),
        })
    }
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// `O_C_ID`.
    pub customer: u32,
    /// `O_ENTRY_D`.
    pub entry: Date,
    /// `O_CARRIER_ID`, once the order is delivered.
    pub carrier: Option<u8>,
    /// `O_OL_CNT`.
    pub lines: u8,
    /// `O_ALL_LOCAL`.
    pub is_all_local: bool,
}

impl Row<'_> for Order {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.customer.into());
        self.entry.encode(out);
        // Carriers are numbered from 1.
        out.put_u8(self.carrier.unwrap_or(0));
        out.put_u8(self.lines << 1 | u8::from(self.is_all_local));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let customer = small(from, "customer")?;
        let entry = Date::read(from)?;
        let carrier = Some(from.u8("carrier")?).filter(|carrier| *carrier > 0);
        let lines = from.u8("lines")?;
        Ok(Self { customer, entry, carrier, lines: lines >> 1, is_all_local: lines & 1 == 1 })
    }
}

/// One line of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderLine<'a> {
    /// `OL_DELIVERY_D`, once the order is delivered.
    pub delivery: Option<Date>,
    /// `OL_AMOUNT`.
    pub amount: u64,
    /// `OL_I_ID`.
    pub item: u32,
    /// `OL_SUPPLY_W_ID`.
    pub supply: u32,
    /// `OL_QUANTITY`.
    pub quantity: u8,
    /// `OL_DIST_INFO`: the rest of the record.
    pub info: &'a [u8],
}

impl<'a> Row<'a> for OrderLine<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.delivery.map_or(0, |date| u64::from(date.seconds) + 1));
        out.put_varint(self.amount);
        out.put_varint(self.item.into());
        out.put_varint(self.supply.into());
        out.put_u8(self.quantity);
        out.extend_from_slice(self.info);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let delivery = bounded(from.varint("delivery")?, 0, 1 << 32, "delivery")?;
        Ok(Self {
            delivery: delivery.checked_sub(1).map(|seconds| Date { seconds: seconds as u32 }),
            amount: from.varint("amount")?,
            item: small(from, "item")?,
            supply: small(from, "warehouse")?,
            quantity: from.u8("quantity")?,
            info: from.rest(),
        })
    }
}

/// An item that is sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// `I_PRICE`.
    pub price: u32,
    /// `I_NAME`.
    pub name: &'a [u8],
    /// `I_DATA`.
    pub data: &'a [u8],
    /// `I_IM_ID`.
    pub image: u32,
}

impl<'a> Row<'a> for Item<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.price.into());
        out.put_bytes(self.name);
        out.put_bytes(self.data);
        out.put_varint(self.image.into());
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            price: small(from, "price")?,
            name: from.bytes("name")?,
            data: from.bytes("data")?,
            image: small(from, "image")?,
        })
    }
}

/// The columns of an item in a warehouse that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    /// `S_QUANTITY`.
    pub quantity: u32,
    /// `S_YTD`.
    pub ytd: u32,
    /// `S_ORDER_CNT`.
    pub orders: u32,
    /// `S_REMOTE_CNT`.
    pub remote_orders: u32,
}

// Fixed width, and short enough to be stored inline in the row, because it is read and written more
// often than all other records.
impl Row<'_> for Stock {
    fn encode(&self, out: &mut Vec<u8>) {
        // At most slightly above the refill, about a hundred.
        out.put_u16(u16::try_from(self.quantity).unwrap_or(u16::MAX));
        for number in [self.ytd, self.orders, self.remote_orders] {
            out.put_u32(number);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            quantity: from.u16("quantity")?.into(),
            ytd: from.u32("quantity of the year")?,
            orders: from.u32("count of orders")?,
            remote_orders: from.u32("count of remote orders")?,
        })
    }
}

/// The static columns of an item in a warehouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockInfo<'a> {
    /// `S_DIST_01` to `S_DIST_10`.
    pub districts: &'a [u8],
    /// `S_DATA`: the rest of the record.
    pub data: &'a [u8],
}

/// Characters in each of `S_DIST_01` to `S_DIST_10`.
pub const DISTRICT_INFO_LEN: usize = 24;

impl<'a> Row<'a> for StockInfo<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.districts);
        out.extend_from_slice(self.data);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = DISTRICT_INFO_LEN * usize::from(super::tables::DISTRICTS);
        Ok(Self { districts: from.take(len, "district info")?, data: from.rest() })
    }
}

impl<'a> StockInfo<'a> {
    /// `S_DIST_xx` of a district, from 1 to 10.
    pub fn of_district(&self, number: u8) -> &'a [u8] {
        let start = (usize::from(number) - 1) * DISTRICT_INFO_LEN;
        &self.districts[start..start + DISTRICT_INFO_LEN]
    }
}

/// Whether a line is a brand item, according to `I_DATA` and `S_DATA` (clause 2.4.2.2).
pub fn is_original(data: &[u8]) -> bool {
    const ORIGINAL: &[u8; 8] = b"ORIGINAL";
    // A bit for each of its letters.
    const LETTERS: u32 = {
        let (mut letters, mut at) = (0, 0);
        while at < ORIGINAL.len() {
            letters |= 1 << (ORIGINAL[at] - b'A');
            at += 1;
        }
        letters
    };
    let is_letter = |byte: u8| {
        let place = u32::from(byte.wrapping_sub(b'A'));
        place < u32::BITS && LETTERS >> place & 1 == 1
    };
    // Any occurrence covers one of every eight positions.
    (ORIGINAL.len() - 1..data.len()).step_by(ORIGINAL.len()).any(|last| {
        let first = last + 1 - ORIGINAL.len();
        is_letter(data[last]) && (first..=last).any(|start| data[start..].starts_with(ORIGINAL))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brand_is_found_wherever_it_is() {
        for before in 0..30 {
            for after in 0..10 {
                let data = [&vec![b'L'; before][..], b"ORIGINAL", &vec![b'O'; after]].concat();
                assert!(is_original(&data));
                assert!(!is_original(&data[..before + 7]));
                assert!(!is_original(&data[before + 1..]));
            }
        }
        assert!(!is_original(b"") && !is_original(b"ORIGIN ORIGINA LRIGINAL"));
    }
}
