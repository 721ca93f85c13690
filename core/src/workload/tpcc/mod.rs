//! TPC-C: wholesale order entry, as in its specification, revision 5.11.
//!
//! Each warehouse has ten districts of 3,000 customers and stock of 100,000 items. The modules:
//! - the five transactions: New-Order ([`new_order`]), Payment ([`payment`]), Order-Status
//!   ([`order_status`]), Delivery ([`delivery`]) and Stock-Level ([`stock_level`]);
//! - the initial database ([`load`]);
//! - the twelve conditions that hold between any two transactions ([`check`]).
//!
//! ```text
//!   warehouse 1 --- 10 district 1 --- 3,000 customer 1 --- 1+ history
//!       |                                   |
//!    100,000                             1+ order 1 --- 5-15 order line
//!       |                                   |
//!     stock * --- 1 item 100,000         0-1 new-order
//! ```
//!
//! **Partitioned by column**, as clause 1.4.5 allows. Columns that never change are not copied,
//! sent and versioned with those that always do. A New-Order, which reads the taxes, does not
//! depend on a Payment, which adds to the sums:
//!
//! | table | static columns | changed by Payment | changed by New-Order | by Delivery |
//! |---|---|---|---|---|
//! | WAREHOUSE | `WAREHOUSE` | `WAREHOUSE_YTD` | | |
//! | DISTRICT | `DISTRICT` | `DISTRICT_YTD` | `DISTRICT_NEXT_ORDER` | |
//! | CUSTOMER | `CUSTOMER` | `CUSTOMER_ACCOUNT`, `CUSTOMER_DATA` | | `CUSTOMER_ACCOUNT` |
//! | STOCK | `STOCK_INFO` | | `STOCK` | |
//!
//! Every other table is one table of the store, and every row one record. This includes order
//! lines, because clause 1.4.2 requires the number of logical operations that the profiles name.
//! Rows are compact ([`rows`]), and keys have a fixed width ([`tables`]). There are two secondary
//! indexes: customers by last name, and orders by customer.
//!
//! **Footprints** depend only on the arguments. An order's number is read from its district, so its
//! rows are declared as ranges over the district. A customer selected by last name can be any
//! customer of the district. Both are no wider than the existing conflicts of these transactions:
//! on the next order number, and on the sum of the district.
//!
//! With [`Settings::long`], that percentage of the transactions is long ([`long`]), which is an
//! extension of the specification.
//!
//! Differences from the specification:
//! - There are no keying and think times: drivers are closed loops, or open ones with a rate.
//! - There are no terminals: results contain the data that a terminal would show.
//! - The queue of Deliveries is not simulated: a Delivery runs like any other transaction.
//! - The scale can be reduced ([`Scale`]); names and cardinalities then shrink in proportion.
//! - Condition 11 is extended: see [`check`].

pub mod args;
pub mod check;
pub mod delivery;
pub mod draw;
pub mod load;
pub mod long;
pub mod new_order;
pub mod order_status;
pub mod payment;
pub mod rows;
pub mod session;
pub mod stock_level;
pub mod tables;
mod terminal;

use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::commits::Commits;
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Settings, setting};
use crate::partition::{self, Partitions};
use crate::time::Timestamp;
use crate::txn::Procedure;
use args::Args;
use rows::Date;
pub use terminal::Terminal;

/// The mix of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// 45 % New-Order, 43 % Payment, 4 % each of the others (clause 5.2.3).
    Standard,
    /// 50 % New-Order, 50 % Payment, as in the evaluation of Minerva (§6).
    NewOrderPayment,
    /// Only New-Order, as in the evaluation of Calvin (§6.1). Remote warehouses are on another
    /// shard than the home warehouse.
    NewOrder,
}

impl Mix {
    const ALL: [Self; 3] = [Self::Standard, Self::NewOrderPayment, Self::NewOrder];

    const fn name(self) -> &'static str {
        match self {
            Self::Standard => "tpcc",
            Self::NewOrderPayment => "tpcc-nopay",
            Self::NewOrder => "tpcc-neworder",
        }
    }
}

/// The number of rows of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Scale {
    /// Number of items.
    pub items: u32,
    /// Customers of each district.
    pub customers: u32,
    /// Orders of each district in the initial database. At most the number of customers, because
    /// each customer has at most one.
    pub orders: u32,
}

impl Scale {
    /// The scale of the specification (clause 1.2.1).
    pub const FULL: Self = Self::of_items(100_000);
    /// Little more than one row of each kind, for simulation: about 8,000 rows in a warehouse.
    pub const TINY: Self = Self { items: 100, customers: 30, orders: 30 };

    /// A scale with this number of items, and customers and orders in proportion.
    pub const fn of_items(items: u32) -> Self {
        let customers = (items as u64 * 3 / 100) as u32;
        Self { items, customers, orders: customers }
    }

    /// The number of a district's first orders that are delivered: 2,100 of 3,000 (clause 4.3.3.1).
    pub fn orders_delivered(&self) -> u32 {
        self.orders - self.orders / 10 * 3
    }

    fn check(&self) -> Result<(), InvalidSettings> {
        setting("items", self.items.into(), 1, 1_000_000)?;
        setting("customers", self.customers.into(), 1, 100_000)?;
        setting("orders", self.orders.into(), 10, self.customers.into())
    }
}

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Tpcc {
    mix: Mix,
    seed: u64,
    warehouses: u32,
    scale: Scale,
    own_region: bool,
    shards: u32,
    /// The percentage of long transactions, and the number of orders in each.
    long: (u32, u32),
}

/// The number of orders that a call with this label and result has delivered.
pub(super) fn delivered(label: &str, result: &[u8]) -> u64 {
    if label == delivery::DELIVERY { delivery::delivered(result) } else { 0 }
}

/// The maximum number of warehouses.
const WAREHOUSES_MAX: u64 = 100_000;

impl Tpcc {
    /// Creates a mix over the number of warehouses in the settings.
    ///
    /// # Errors
    /// If a setting is out of its bounds.
    pub fn new(mix: Mix, settings: &Settings) -> Result<Self, InvalidSettings> {
        let Settings { seed, warehouses, scale, own_region, shards, .. } = *settings;
        let Settings { long, long_times, .. } = *settings;
        setting("warehouses", warehouses.into(), 1, WAREHOUSES_MAX)?;
        scale.check()?;
        setting("long", long.into(), 0, 100)?;
        setting("long_times", long_times.into(), 1, long::ORDERS_MAX)?;
        setting("shards", shards.into(), 1, u64::from(u16::MAX))?;
        let long = (long, long_times);
        Ok(Self { mix, seed, warehouses, scale, own_region, shards, long })
    }

    /// The transactions of one client.
    pub fn terminal(&self, client: Client) -> Terminal {
        Terminal::new(self, client)
    }
}

impl Definition for Tpcc {
    const NAMES: &'static [&'static str] =
        &[Mix::Standard.name(), Mix::NewOrderPayment.name(), Mix::NewOrder.name()];

    type Generator = Terminal;

    fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(super::mix(&Mix::ALL, Mix::name, name), settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![
            Arc::new(new_order::NewOrder),
            Arc::new(payment::Payment),
            Arc::new(order_status::OrderStatus),
            Arc::new(delivery::Delivery),
            Arc::new(stock_level::StockLevel),
            Arc::new(long::LongOrder),
            Arc::new(load::Load),
        ]
    }

    fn generator(&self, client: Client) -> Terminal {
        self.terminal(client)
    }
}

impl Facts for Tpcc {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn load_calls(&self) -> Vec<Call> {
        let call = |piece| {
            let (seed, scale, date) = (self.seed, self.scale, Date::default());
            let mut args = Vec::new();
            load::LoadArgs { seed, scale, date, piece }.encode(&mut args);
            let args = Bytes::from(args);
            Call { procedure: "tpcc_load", args, label: "load", is_read_only: false }
        };
        load::Piece::all(self.warehouses, &self.scale).into_iter().map(call).collect()
    }

    /// By warehouse, distributed like the clients' home warehouses.
    fn partitions(&self, shards: u16) -> Partitions {
        Partitions::new(shards, partition::Rule::Number { bytes: 4, first: 1 })
            .with(tables::ITEM, partition::Rule::Everywhere)
    }

    fn procedures(&self) -> Vec<&'static str> {
        let mut names = vec!["tpcc_new_order"];
        if self.mix != Mix::NewOrder {
            names.push("tpcc_payment");
        }
        if self.mix == Mix::Standard {
            names.extend(["tpcc_order_status", "tpcc_delivery", "tpcc_stock_level"]);
        }
        if self.long.0 > 0 {
            names.push("tpcc_long");
        }
        names
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let mut report = Report::default();
        match check::violations(self.warehouses, &self.scale, rows, &mut report).into_iter().next()
        {
            Some(violation) => Err(violation),
            None => Ok(report),
        }
    }

    fn check_commits(
        &self,
        rule: &Rule<'_>,
        fact: &dyn Fn(&str) -> i64,
        _: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        check::check_commits(self, rule, fact, commits)
    }
}

impl Generate for Terminal {
    fn next_call(&mut self, dice: &mut WorkloadRng, now: Timestamp) -> Call {
        self.next(dice, now)
    }
}

#[cfg(test)]
mod tests;
