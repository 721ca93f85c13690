//! A terminal: the mix of clause 5.2.3 with the inputs of clause 2.

use bytes::Bytes;

use super::super::rng::WorkloadRng;
use super::super::{Call, Client};
use super::args::{
    Args, DeliveryArgs, LINES_MAX, Line, NewOrderArgs, OrderStatusArgs, PaymentArgs,
    StockLevelArgs, Who,
};
use super::delivery::DELIVERY;
use super::draw::{self, Skew};
use super::rows::Date;
use super::tables::{DISTRICTS, District, Warehouse};
use super::{Mix, Scale, Tpcc, long};
use crate::time::Timestamp;

/// The percentage of orders that name an item that does not exist (clause 2.4.1.4).
const ROLLBACK_PERCENT: u64 = 1;
/// The percentage of order lines supplied by another warehouse (clause 2.4.1.5).
const REMOTE_LINE_PERCENT: u64 = 1;
/// The percentage of payments for a customer of another warehouse (clause 2.5.1.2).
const REMOTE_PAYMENT_PERCENT: u64 = 15;
/// The percentage of customers selected by last name (clauses 2.5.1.2 and 2.6.1.2).
const BY_NAME_PERCENT: u64 = 60;

/// Generates one client's transactions. A terminal has a home warehouse, and a district of it for
/// Stock-Level.
#[derive(Clone, Debug)]
pub struct Terminal {
    mix: Mix,
    scale: Scale,
    skew: Skew,
    home: District,
    reach: Reach,
    /// Warehouse `w` is on shard `(w - 1) % shards`. 1 if shards do not matter.
    shards: u32,
    long: (u32, u32),
}

/// The warehouses from which remote ones are drawn: `first`, and every `step`th after it.
#[derive(Clone, Copy, Debug)]
struct Reach {
    first: u32,
    step: u32,
    count: u32,
}

impl Terminal {
    /// Creates a terminal. Warehouse `w` is in region `(w - 1) % regions`. The terminals of a
    /// region are assigned to its warehouses round robin, and then to their districts. In a region
    /// without warehouses they are assigned to all warehouses.
    pub(super) fn new(tpcc: &Tpcc, client: Client) -> Self {
        let Tpcc { mix, seed, warehouses, scale, own_region, shards, long } = *tpcc;
        let (first, step, turn) = match client.region() < warehouses {
            true => (client.region(), client.regions, client.index_in_region()),
            false => (0, 1, client.index),
        };
        let of_region = (warehouses - first).div_ceil(step);
        let warehouse = Warehouse(first + turn % of_region * step + 1);
        let number = (turn / of_region % u32::from(DISTRICTS)) as u8 + 1;
        let home = District { warehouse, number };
        let reach = match own_region {
            true => Reach { first: first + 1, step, count: of_region },
            false => Reach { first: 1, step: 1, count: warehouses },
        };
        let shards = if mix == Mix::NewOrder { shards } else { 1 };
        Self { mix, scale, skew: Skew::new(seed), home, reach, shards, long }
    }

    /// The home warehouse, with the district that Stock-Level checks.
    pub fn home(&self) -> District {
        self.home
    }

    pub(super) fn next(&mut self, dice: &mut WorkloadRng, now: Timestamp) -> Call {
        let date = Date::of(now);
        let (long, orders) = self.long;
        if long > 0 && dice.percent(long.into()) {
            return self.long_order(orders, dice, date);
        }
        let card = match self.mix {
            Mix::Standard => dice.below(100),
            Mix::NewOrderPayment => dice.below(2) * 45,
            Mix::NewOrder => 0,
        };
        match card {
            0..45 => call("tpcc_new_order", "new-order", &self.new_order(dice, date)),
            45..88 => self.payment(dice, date),
            88..92 => self.order_status(dice),
            92..96 => call("tpcc_delivery", DELIVERY, &self.delivery(dice, date)),
            96.. => read_only(call("tpcc_stock_level", "stock-level", &self.stock_level(dice))),
        }
    }

    fn district(&self, dice: &mut WorkloadRng) -> District {
        let number = dice.between(1, DISTRICTS.into()) as u8;
        District { warehouse: self.home.warehouse, number }
    }

    /// Draws a warehouse within reach other than the home warehouse, if there is one. Prefers one
    /// on another shard.
    fn remote(&self, dice: &mut WorkloadRng) -> Warehouse {
        let home = self.home.warehouse;
        let Reach { first, step, count } = self.reach;
        if count == 1 {
            return home;
        }
        let further = dice.between(1, u64::from(count) - 1) as u32;
        let at = |further| first + ((home.0 - first) / step + further) % count * step;
        let is_apart =
            |w: &u32| self.shards == 1 || (w - 1) % self.shards != (home.0 - 1) % self.shards;
        let all = (0..count).map(|more| at(further + more)).filter(|w| *w != home.0);
        Warehouse(all.clone().find(is_apart).unwrap_or_else(|| at(further)))
    }

    fn new_order(&self, dice: &mut WorkloadRng, entry: Date) -> NewOrderArgs {
        let district = self.district(dice);
        let customer = self.skew.customer(&self.scale, dice);
        let line_count = dice.between(5, LINES_MAX as u64) as usize;
        let mut all_lines = [NewOrderArgs::NO_LINE; LINES_MAX];
        for line in &mut all_lines[..line_count] {
            let is_remote = dice.percent(REMOTE_LINE_PERCENT);
            *line = Line {
                item: self.skew.item(&self.scale, dice),
                supply: if is_remote { self.remote(dice) } else { district.warehouse },
                quantity: dice.between(1, 10) as u8,
            };
        }
        if dice.percent(ROLLBACK_PERCENT) {
            all_lines[line_count - 1].item = self.scale.items + 1;
        }
        NewOrderArgs { district, customer, entry, line_count, all_lines }
    }

    /// Many orders in one transaction, none of which is rolled back.
    fn long_order(&self, orders: u32, dice: &mut WorkloadRng, entry: Date) -> Call {
        let order = |_| {
            let mut order = self.new_order(dice, entry);
            let items = self.scale.items;
            let lines = &mut order.all_lines[..order.line_count];
            lines.iter_mut().for_each(|line| line.item = line.item.min(items));
            order
        };
        let orders: Vec<NewOrderArgs> = (0..orders).map(order).collect();
        let args = Bytes::from(long::encode(&orders));
        Call { procedure: "tpcc_long", args, label: "long-order", is_read_only: false }
    }

    fn payment(&self, dice: &mut WorkloadRng, date: Date) -> Call {
        let district = self.district(dice);
        let customer_district = match dice.percent(REMOTE_PAYMENT_PERCENT) {
            true => District { warehouse: self.remote(dice), ..self.district(dice) },
            false => district,
        };
        let name = self.name(dice);
        let args = PaymentArgs {
            district,
            customer_district,
            who: self.who(name.as_deref(), dice),
            amount: dice.between(100, 500_000) as u32,
            date,
        };
        call("tpcc_payment", "payment", &args)
    }

    fn order_status(&self, dice: &mut WorkloadRng) -> Call {
        let district = self.district(dice);
        let name = self.name(dice);
        let args = OrderStatusArgs { district, who: self.who(name.as_deref(), dice) };
        read_only(call("tpcc_order_status", "order-status", &args))
    }

    fn delivery(&self, dice: &mut WorkloadRng, date: Date) -> DeliveryArgs {
        let carrier = dice.between(1, 10) as u8;
        DeliveryArgs { warehouse: self.home.warehouse, carrier, date }
    }

    fn stock_level(&self, dice: &mut WorkloadRng) -> StockLevelArgs {
        StockLevelArgs { district: self.home, threshold: dice.between(10, 20) as u32 }
    }

    /// The last name of the customer, if it is selected by name.
    fn name(&self, dice: &mut WorkloadRng) -> Option<String> {
        let is_by_name = dice.percent(BY_NAME_PERCENT);
        is_by_name.then(|| draw::last_name(self.skew.last_name(&self.scale, dice)))
    }

    fn who<'a>(&self, name: Option<&'a str>, dice: &mut WorkloadRng) -> Who<'a> {
        match name {
            Some(name) => Who::LastName(name.as_bytes()),
            None => Who::Number(self.skew.customer(&self.scale, dice)),
        }
    }
}

fn call<'a>(procedure: &'static str, label: &'static str, args: &impl Args<'a>) -> Call {
    let mut bytes = Vec::with_capacity(128);
    args.encode(&mut bytes);
    Call { procedure, args: Bytes::from(bytes), label, is_read_only: false }
}

fn read_only(call: Call) -> Call {
    Call { is_read_only: true, ..call }
}
