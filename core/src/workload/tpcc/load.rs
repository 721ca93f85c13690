//! The initial database (clause 4.3.3), in pieces that can be loaded in any order.
//!
//! Each piece draws its rows from the seed and its own position. Two pieces therefore agree on
//! shared data (the permutation of a district's customers) without reading each other's rows.

use super::super::rng::WorkloadRng;
use super::super::{bounded, ended, malformed};
use super::Scale;
use super::args::Args;
use super::draw::{self, LAST_NAMES, Skew};
use super::rows::{
    Account, Address, Customer, DISTRICT_INFO_LEN, Date, History, Item, Number, Order, OrderLine,
    Row, Site, Stock, StockInfo, Terms, small,
};
use super::session::{Session, Touches};
use super::tables::{
    CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_BY_NAME, CUSTOMER_DATA, DISTRICT, DISTRICT_NEXT_ORDER,
    DISTRICT_YTD, DISTRICTS, District, HISTORY, ITEM, NEW_ORDER, ORDER, ORDER_BY_CUSTOMER,
    ORDER_LINE, STOCK, STOCK_INFO, WAREHOUSE, WAREHOUSE_YTD, Warehouse,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::key::{Key, KeyRange};
use crate::txn::{Context, Footprint, Procedure, Stop};

/// The first payment of each customer, in cents.
const FIRST_PAYMENT: u64 = 1_000;
/// The maximum number of rows of a piece, so that no call runs for too long.
const PIECE_MAX: u32 = 10_000;

/// A piece of the initial database. Intervals include both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Items.
    Items(u32, u32),
    /// A warehouse and its districts.
    Sites(Warehouse),
    /// Stock of items of a warehouse.
    Stock(Warehouse, u32, u32),
    /// Customers of a district, with their first payments.
    Customers(District, u32, u32),
    /// Orders of a district, with their lines.
    Orders(District, u32, u32),
}

impl Piece {
    const ITEMS: u8 = 0;
    const SITES: u8 = 1;
    const STOCK: u8 = 2;
    const CUSTOMERS: u8 = 3;
    const ORDERS: u8 = 4;

    /// All pieces of a database.
    pub fn all(warehouses: u32, scale: &Scale) -> Vec<Self> {
        let Scale { items, customers, orders } = *scale;
        // Pieces of about 8,000 rows: a customer comes with four more rows, an order with about
        // eleven.
        let mut pieces: Vec<Self> = steps(items, 8_000, Self::Items).collect();
        for warehouse in (1..=warehouses).map(Warehouse) {
            pieces.push(Self::Sites(warehouse));
            pieces.extend(steps(items, 4_000, |a, b| Self::Stock(warehouse, a, b)));
            for district in warehouse.districts() {
                pieces.extend(steps(customers, 1_500, |a, b| Self::Customers(district, a, b)));
                pieces.extend(steps(orders, 750, |a, b| Self::Orders(district, a, b)));
            }
        }
        pieces
    }
}

/// Divides `1 ..= count` into intervals of `step` numbers.
fn steps<T>(count: u32, step: u32, piece: impl Fn(u32, u32) -> T) -> impl Iterator<Item = T> {
    (1..=count).step_by(step as usize).map(move |a| piece(a, count.min(a + step - 1)))
}

impl Args<'_> for Piece {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |kind, district: Option<District>, first: u32, last: u32| {
            out.put_u8(kind);
            if let Some(District { warehouse, number }) = district {
                warehouse.encode(out);
                out.put_u8(number);
            }
            out.put_varint(first.into());
            out.put_varint(last.into());
        };
        let anywhere = |warehouse| Some(District { warehouse, number: 1 });
        match *self {
            Self::Items(first, last) => put(Self::ITEMS, None, first, last),
            Self::Sites(warehouse) => put(Self::SITES, anywhere(warehouse), 1, 1),
            Self::Stock(warehouse, a, b) => put(Self::STOCK, anywhere(warehouse), a, b),
            Self::Customers(district, a, b) => put(Self::CUSTOMERS, Some(district), a, b),
            Self::Orders(district, a, b) => put(Self::ORDERS, Some(district), a, b),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let interval = |from: &mut Reader<'_>| {
            let first = bounded(from.varint("piece")?, 1, u32::MAX.into(), "piece")?;
            let last_max = u64::from(u32::MAX).min(first + u64::from(PIECE_MAX));
            let last = bounded(from.varint("piece")?, first, last_max, "piece")?;
            Ok((first as u32, last as u32))
        };
        let kind = from.u8("piece")?;
        if kind == Self::ITEMS {
            return interval(from).map(|(first, last)| Self::Items(first, last));
        }
        let district = District::read(from)?;
        let (first, last) = interval(from)?;
        match kind {
            Self::SITES => Ok(Self::Sites(district.warehouse)),
            Self::STOCK => Ok(Self::Stock(district.warehouse, first, last)),
            Self::CUSTOMERS => Ok(Self::Customers(district, first, last)),
            Self::ORDERS => Ok(Self::Orders(district, first, last)),
            _ => Err(DecodeError::new("piece")),
        }
    }
}

/// The arguments of [`Load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadArgs {
    /// The seed from which rows are drawn.
    pub seed: u64,
    /// The number of rows of each kind.
    pub scale: Scale,
    /// The date of all events before the start.
    pub date: Date,
    /// The piece to load.
    pub piece: Piece,
}

impl Args<'_> for LoadArgs {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.seed);
        for count in [self.scale.items, self.scale.customers, self.scale.orders] {
            out.put_varint(count.into());
        }
        self.date.encode(out);
        self.piece.encode(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let seed = from.u64("seed")?;
        let mut count = || small(from, "scale");
        let scale = Scale { items: count()?, customers: count()?, orders: count()? };
        let decoded = Self { seed, scale, date: Date::read(from)?, piece: Piece::read(from)? };
        match scale.check().is_ok() {
            true => Ok(decoded),
            false => Err(DecodeError::new("scale")),
        }
    }
}

/// Loads a piece of the database.
///
/// Takes [`LoadArgs`]. Returns an empty result.
#[derive(Clone, Copy, Debug)]
pub struct Load;

impl Procedure for Load {
    fn name(&self) -> &str {
        "tpcc_load"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let from = &mut Reader::new(args);
        let args = LoadArgs::read(from).map_err(malformed)?;
        ended(from, "load arguments").map_err(malformed)?;
        let session = &mut Session::new(cx);
        match args.piece {
            Piece::Items(first, last) => items(&args, first..=last, session),
            Piece::Sites(warehouse) => sites(&args, warehouse, session),
            Piece::Stock(warehouse, a, b) => stock(&args, warehouse, a..=b, session),
            Piece::Customers(district, a, b) => customers(&args, district, a..=b, session),
            Piece::Orders(district, a, b) => orders(&args, district, a..=b, session),
        }?;
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = LoadArgs::decode(args) else { return Some(Footprint::default()) };
        let mut touches = Touches::default();
        let mut writes = |tables: &[_], range: KeyRange| {
            tables.iter().for_each(|table| touches.inserts_range(*table, range.clone()));
        };
        match args.piece {
            Piece::Items(..) => writes(&[ITEM], KeyRange::all()),
            Piece::Sites(warehouse) => writes(
                &[WAREHOUSE, WAREHOUSE_YTD, DISTRICT, DISTRICT_YTD, DISTRICT_NEXT_ORDER],
                warehouse.range(),
            ),
            Piece::Stock(warehouse, ..) => writes(&[STOCK, STOCK_INFO], warehouse.range()),
            Piece::Customers(district, ..) => writes(
                &[CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_DATA, CUSTOMER_BY_NAME, HISTORY],
                district.range(),
            ),
            Piece::Orders(district, ..) => {
                let tables = [ORDER, ORDER_BY_CUSTOMER, NEW_ORDER, ORDER_LINE];
                writes(&tables, district.range());
            }
        }
        Some(touches.footprint())
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }
}

/// The uses of random numbers: each has its own sequence.
mod part {
    pub const ITEM: u64 = 1;
    pub const SITE: u64 = 2;
    pub const STOCK: u64 = 3;
    pub const CUSTOMER: u64 = 4;
    pub const PERMUTATION: u64 = 5;
    pub const ORDER: u64 = 6;
}

type Interval = std::ops::RangeInclusive<u32>;

fn items(args: &LoadArgs, numbers: Interval, session: &mut Session<'_>) -> Result<(), Stop> {
    for number in numbers {
        let dice = &mut WorkloadRng::of(args.seed, &[part::ITEM, number.into()]);
        let item = Item {
            price: dice.between(100, 10_000) as u32,
            name: &draw::text(dice, 14, 24),
            data: &draw::data(dice),
            image: dice.between(1, 10_000) as u32,
        };
        session.put(ITEM, &number.to_be_bytes(), &item)?;
    }
    Ok(())
}

fn sites(args: &LoadArgs, warehouse: Warehouse, session: &mut Session<'_>) -> Result<(), Stop> {
    let ytd_of_district = FIRST_PAYMENT * u64::from(args.scale.customers);
    let number = u64::from(warehouse.0);
    let dice = &mut WorkloadRng::of(args.seed, &[part::SITE, number]);
    put_site(WAREHOUSE, &warehouse.key(), dice, session)?;
    let ytd = Number(ytd_of_district * u64::from(DISTRICTS));
    session.put(WAREHOUSE_YTD, &warehouse.key(), &ytd)?;
    for district in warehouse.districts() {
        let dice = &mut WorkloadRng::of(args.seed, &[part::SITE, number, district.number.into()]);
        put_site(DISTRICT, &district.key(), dice, session)?;
        session.put(DISTRICT_YTD, &district.key(), &Number(ytd_of_district))?;
        let next = Number(u64::from(args.scale.orders) + 1);
        session.put(DISTRICT_NEXT_ORDER, &district.key(), &next)?;
    }
    Ok(())
}

fn put_site(
    table: crate::ids::TableId,
    key: &[u8],
    dice: &mut WorkloadRng,
    session: &mut Session<'_>,
) -> Result<(), Stop> {
    let address = address(dice);
    let name = draw::text(dice, 6, 10);
    let tax = dice.between(0, 2_000) as u32;
    session.put(table, key, &Site { tax, name: &name, address: borrowed(&address) })
}

/// Two streets, city, state and zip code (clause 4.3.2.7).
fn address(dice: &mut WorkloadRng) -> [Vec<u8>; 5] {
    let mut zip = draw::digits(dice, 4);
    zip.extend_from_slice(b"11111");
    let mut line = |min, max| draw::text(dice, min, max);
    [line(10, 20), line(10, 20), line(10, 20), line(2, 2), zip]
}

fn borrowed(address: &[Vec<u8>; 5]) -> Address<'_> {
    Address { lines: address.each_ref().map(|line| &line[..]) }
}

fn stock(
    args: &LoadArgs,
    warehouse: Warehouse,
    items: Interval,
    session: &mut Session<'_>,
) -> Result<(), Stop> {
    for item in items {
        let dice = &mut WorkloadRng::of(args.seed, &[part::STOCK, warehouse.0.into(), item.into()]);
        let key = warehouse.stock_key(item);
        let quantity = dice.between(10, 100) as u32;
        session.put(STOCK, &key, &Stock { quantity, ytd: 0, orders: 0, remote_orders: 0 })?;
        let len = (DISTRICT_INFO_LEN * usize::from(DISTRICTS)) as u64;
        let districts = draw::text(dice, len, len);
        let data = draw::data(dice);
        session.put(STOCK_INFO, &key, &StockInfo { districts: &districts, data: &data })?;
    }
    Ok(())
}

fn customers(
    args: &LoadArgs,
    district: District,
    numbers: Interval,
    session: &mut Session<'_>,
) -> Result<(), Stop> {
    let skew = Skew::new(args.seed);
    let place = [district.warehouse.0.into(), u64::from(district.number)];
    for number in numbers {
        let dice =
            &mut WorkloadRng::of(args.seed, &[part::CUSTOMER, place[0], place[1], number.into()]);
        // The first thousand customers have different names, so that every name exists.
        let name = match u64::from(number) - 1 {
            name @ 0..LAST_NAMES => name,
            LAST_NAMES.. => skew.last_name_load(dice),
        };
        let last = draw::last_name(name);
        let first = draw::text(dice, 8, 16);
        let address = address(dice);
        let terms = Terms {
            discount: dice.between(0, 5_000) as u32,
            is_bad_credit: dice.percent(10),
            last: last.as_bytes(),
        };
        let customer = Customer {
            terms,
            first: &first,
            middle: b"OE",
            address: borrowed(&address),
            phone: &draw::digits(dice, 16),
            since: args.date,
            credit_limit: 5_000_000,
        };
        let key = district.row_key(number);
        session.put(CUSTOMER, &key, &customer)?;
        let by_name = district.name_key(last.as_bytes(), &first, number);
        session.put_record(CUSTOMER_BY_NAME, by_name, &[])?;
        let data = draw::text(dice, 300, 500);
        session.put_record(CUSTOMER_DATA, Key::from(&key[..]), &data)?;
        put_first_payment(args, district, number, dice, session)?;
    }
    Ok(())
}

fn put_first_payment(
    args: &LoadArgs,
    district: District,
    customer: u32,
    dice: &mut WorkloadRng,
    session: &mut Session<'_>,
) -> Result<(), Stop> {
    let account = Account {
        balance: -(FIRST_PAYMENT as i64),
        ytd_payment: FIRST_PAYMENT,
        payments: 1,
        deliveries: 0,
    };
    session.put(CUSTOMER_ACCOUNT, &district.row_key(customer), &account)?;
    let history = History {
        warehouse: district.warehouse.0,
        district: district.number,
        amount: FIRST_PAYMENT,
        date: args.date,
        data: &draw::text(dice, 12, 24),
    };
    let key = district.row_of_row_key(customer, account.payments);
    session.put(HISTORY, &key, &history)
}

fn orders(
    args: &LoadArgs,
    district: District,
    numbers: Interval,
    session: &mut Session<'_>,
) -> Result<(), Stop> {
    let place = [district.warehouse.0.into(), u64::from(district.number)];
    let dice = &mut WorkloadRng::of(args.seed, &[part::PERMUTATION, place[0], place[1]]);
    let customers = draw::permutation(dice, args.scale.customers);
    for number in numbers {
        // A piece with more orders than the scale loads only those that exist.
        let Some(&customer) = customers.get(number as usize - 1) else { break };
        let dice =
            &mut WorkloadRng::of(args.seed, &[part::ORDER, place[0], place[1], number.into()]);
        let is_delivered = number <= args.scale.orders_delivered();
        let carrier = is_delivered.then(|| dice.between(1, 10) as u8);
        let lines = dice.between(5, 15) as u8;
        let order = Order { customer, entry: args.date, carrier, lines, is_all_local: true };
        let key = district.row_key(number);
        session.put(ORDER, &key, &order)?;
        let by_customer = district.row_of_row_key(customer, number);
        session.put_record(ORDER_BY_CUSTOMER, Key::from(&by_customer[..]), &[])?;
        if !is_delivered {
            session.put_record(NEW_ORDER, Key::from(&key[..]), &[])?;
        }
        for line in 1..=lines {
            let info_len = DISTRICT_INFO_LEN as u64;
            let order_line = OrderLine {
                delivery: is_delivered.then_some(args.date),
                amount: if is_delivered { 0 } else { dice.between(1, 999_999) },
                item: dice.between(1, args.scale.items.into()) as u32,
                supply: district.warehouse.0,
                quantity: 5,
                info: &draw::text(dice, info_len, info_len),
            };
            session.put(ORDER_LINE, &district.line_key(number, line), &order_line)?;
        }
    }
    Ok(())
}
