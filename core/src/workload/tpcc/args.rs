//! The arguments of the five transactions, and their encoding.

use super::super::{bounded, ended};
use super::rows::{Date, Row, small};
use super::tables::{DISTRICTS, District, Warehouse};
use crate::codec::{DecodeError, Reader, Writer};

/// The maximum number of lines in an order (clause 2.4.1.3).
pub const LINES_MAX: usize = 15;
/// The maximum number of characters in a last name.
const LAST_NAME_MAX: usize = 16;
/// The maximum quantity of a line (clause 2.4.1.5).
const QUANTITY_MAX: u64 = 10;
/// The largest payment in cents (clause 2.5.1.3).
const AMOUNT_MAX: u64 = 500_000;
/// The highest carrier number; the lowest is 1 (clause 2.7.1.2).
const CARRIER_MAX: u64 = 10;

/// The arguments of a transaction.
pub trait Args<'a>: Sized {
    /// Appends the arguments to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the bytes that [`Args::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed, or a value is out of its bounds.
    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Decodes arguments, which must end the input.
    ///
    /// # Errors
    /// As [`Args::read`].
    fn decode(args: &'a [u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(args);
        let decoded = Self::read(from)?;
        ended(from, "arguments")?;
        Ok(decoded)
    }
}

impl Args<'_> for Warehouse {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.0.into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "warehouse";
        Ok(Self(bounded(from.varint(WHAT)?, 1, u32::MAX.into(), WHAT)? as u32))
    }
}

impl Args<'_> for District {
    fn encode(&self, out: &mut Vec<u8>) {
        self.warehouse.encode(out);
        out.put_u8(self.number);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let warehouse = Warehouse::read(from)?;
        let number = bounded(from.u8("district")?.into(), 1, DISTRICTS.into(), "district")?;
        Ok(Self { warehouse, number: number as u8 })
    }
}

/// One line of a New-Order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The item.
    pub item: u32,
    /// The warehouse that supplies it.
    pub supply: Warehouse,
    /// The ordered quantity.
    pub quantity: u8,
}

/// The arguments of New-Order (clause 2.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewOrderArgs {
    /// The customer's district.
    pub district: District,
    /// The customer.
    pub customer: u32,
    /// `O_ENTRY_D`.
    pub entry: Date,
    /// The number of used elements of `all_lines`.
    pub line_count: usize,
    /// The lines, in an array so that decoding needs no allocation.
    pub all_lines: [Line; LINES_MAX],
}

impl NewOrderArgs {
    /// The filler of unused elements of the array.
    pub const NO_LINE: Line = Line { item: 0, supply: Warehouse(0), quantity: 0 };

    /// The lines of the order.
    pub fn lines(&self) -> &[Line] {
        &self.all_lines[..self.line_count]
    }
}

impl Args<'_> for NewOrderArgs {
    fn encode(&self, out: &mut Vec<u8>) {
        self.district.encode(out);
        out.put_varint(self.customer.into());
        self.entry.encode(out);
        out.put_u8(self.line_count as u8);
        for line in self.lines() {
            out.put_varint(line.item.into());
            line.supply.encode(out);
            out.put_u8(line.quantity);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let district = District::read(from)?;
        let customer = small(from, "customer")?;
        let entry = Date::read(from)?;
        let line_count = bounded(from.u8("lines")?.into(), 1, LINES_MAX as u64, "lines")? as usize;
        let mut all_lines = [Self::NO_LINE; LINES_MAX];
        for line in &mut all_lines[..line_count] {
            line.item = small(from, "item")?;
            line.supply = Warehouse::read(from)?;
            let quantity = from.u8("quantity")?;
            line.quantity = bounded(quantity.into(), 1, QUANTITY_MAX, "quantity")? as u8;
        }
        Ok(Self { district, customer, entry, line_count, all_lines })
    }
}

/// The selection of a customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who<'a> {
    /// By number.
    Number(u32),
    /// By last name: the middle one of the customers with this name, ordered by first name.
    LastName(&'a [u8]),
}

impl<'a> Args<'a> for Who<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => {
                out.put_u8(0);
                out.put_varint((*number).into());
            }
            Self::LastName(name) => {
                out.put_u8(1);
                out.put_bytes(name);
            }
        }
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match from.u8("customer")? {
            0 => Ok(Self::Number(small(from, "customer")?)),
            1 => {
                let name = from.bytes("last name")?;
                let is_name = name.len() <= LAST_NAME_MAX && !name.contains(&0);
                if is_name { Ok(Self::LastName(name)) } else { Err(DecodeError::new("last name")) }
            }
            _ => Err(DecodeError::new("customer")),
        }
    }
}

/// The arguments of Payment (clause 2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaymentArgs<'a> {
    /// The district that receives the payment.
    pub district: District,
    /// The district of the customer.
    pub customer_district: District,
    /// The customer.
    pub who: Who<'a>,
    /// `H_AMOUNT`.
    pub amount: u32,
    /// `H_DATE`.
    pub date: Date,
}

impl<'a> Args<'a> for PaymentArgs<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.district.encode(out);
        self.customer_district.encode(out);
        self.who.encode(out);
        out.put_varint(self.amount.into());
        self.date.encode(out);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            district: District::read(from)?,
            customer_district: District::read(from)?,
            who: Who::read(from)?,
            amount: bounded(from.varint("amount")?, 1, AMOUNT_MAX, "amount")? as u32,
            date: Date::read(from)?,
        })
    }
}

/// The arguments of Order-Status (clause 2.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderStatusArgs<'a> {
    /// The customer's district.
    pub district: District,
    /// The customer.
    pub who: Who<'a>,
}

impl<'a> Args<'a> for OrderStatusArgs<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.district.encode(out);
        self.who.encode(out);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self { district: District::read(from)?, who: Who::read(from)? })
    }
}

/// The arguments of Delivery (clause 2.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryArgs {
    /// The delivering warehouse.
    pub warehouse: Warehouse,
    /// The carrier.
    pub carrier: u8,
    /// `OL_DELIVERY_D`.
    pub date: Date,
}

impl Args<'_> for DeliveryArgs {
    fn encode(&self, out: &mut Vec<u8>) {
        self.warehouse.encode(out);
        out.put_u8(self.carrier);
        self.date.encode(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let warehouse = Warehouse::read(from)?;
        let carrier = bounded(from.u8("carrier")?.into(), 1, CARRIER_MAX, "carrier")? as u8;
        Ok(Self { warehouse, carrier, date: Date::read(from)? })
    }
}

/// The arguments of Stock-Level (clause 2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockLevelArgs {
    /// The district whose last orders are checked.
    pub district: District,
    /// The quantity below which stock is low.
    pub threshold: u32,
}

impl Args<'_> for StockLevelArgs {
    fn encode(&self, out: &mut Vec<u8>) {
        self.district.encode(out);
        out.put_varint(self.threshold.into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { district: District::read(from)?, threshold: small(from, "threshold")? })
    }
}
