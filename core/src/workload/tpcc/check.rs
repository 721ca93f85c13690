//! The twelve consistency conditions of clause 3.3.2, and the completeness of all tables.
//!
//! A warehouse is summarized in `Facts` (counts and sums by district, order and customer) with one
//! scan of each table. A condition is then a comparison of facts. Each column is read from the
//! table to which the partitioning assigned it.
//!
//! **Condition 11** of the specification, `count(ORDER) - count(NEW-ORDER) = 2100` in a district,
//! holds only for the initial database, because every Delivery removes a row from NEW-ORDER. The
//! condition also names CUSTOMER, which makes a general form possible: the number of delivered
//! orders is in `C_DELIVERY_CNT`. The condition checked here is `count(ORDER) - count(NEW-ORDER) =
//! delivered by the load + sum(C_DELIVERY_CNT)`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use super::super::check::{Report, Rows, Rule, Violation};
use super::super::commits::{Commits, plus};
use super::delivery::DELIVERY;
use super::rows::{Account, History, Number, Order, OrderLine, Row};
use super::tables::{
    CUSTOMER, CUSTOMER_ACCOUNT, CUSTOMER_BY_NAME, CUSTOMER_DATA, DISTRICT, DISTRICT_NEXT_ORDER,
    DISTRICT_YTD, DISTRICTS, District, HISTORY, ITEM, NEW_ORDER, ORDER, ORDER_BY_CUSTOMER,
    ORDER_LINE, STOCK, STOCK_INFO, WAREHOUSE, WAREHOUSE_YTD, Warehouse, last_number, split_row_key,
};
use super::{Scale, Tpcc};
use crate::codec::DecodeError;
use crate::ids::TableId;
use crate::key::KeyRange;

/// The facts about one warehouse that the conditions compare.
struct Facts {
    warehouse: Warehouse,
    ytd: i64,
    /// In the order of their numbers.
    districts: Vec<DistrictFacts>,
    /// In the order of their keys.
    orders: Vec<OrderFacts>,
    customers: Vec<CustomerFacts>,
    /// The number of rows that refer to a row that does not exist.
    strays: i64,
    /// The number of entries in the index by customer.
    indexed_orders: i64,
}

#[derive(Clone, Copy, Default)]
struct DistrictFacts {
    ytd: i64,
    next_order: i64,
    /// Sum of the payments to the district.
    paid: i64,
    orders: i64,
    order_max: i64,
    new_orders: i64,
    new_order_min: i64,
    new_order_max: i64,
    /// Sum of `O_OL_CNT`.
    lines_announced: i64,
    lines: i64,
    /// Sum of `C_DELIVERY_CNT`.
    deliveries: i64,
    /// The number of HISTORY rows of the district's customers.
    payments: i64,
}

struct OrderFacts {
    key: (u8, u32),
    order: Order,
    is_new: bool,
    lines: i64,
    lines_delivered: i64,
}

struct CustomerFacts {
    key: (u8, u32),
    account: Account,
    /// Sum of the customer's payments.
    paid: i64,
    /// Sum of the lines delivered to the customer.
    delivered: i64,
}

/// Decodes a key that [`District::row_key`] created, within its warehouse.
fn row_key(key: &[u8]) -> Result<(u8, u32), DecodeError> {
    let (district, number) = split_row_key(key)?;
    let is_district = (1..=DISTRICTS).contains(&district.number);
    if is_district { Ok((district.number, number)) } else { Err(DecodeError::new("district")) }
}

/// Visits the rows of a range until one cannot be decoded.
fn scan(
    rows: &dyn Rows,
    table: TableId,
    range: &KeyRange,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), DecodeError>,
) -> Result<(), Violation> {
    let mut visited = Ok(());
    rows.scan(table, range, &mut |key, record| {
        visited = visit(key, record);
        if visited.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let place = format!("table {table}");
    Rule { rule: "TPC-C rows", place: &place }.readable(visited)
}

/// The payments to each district of each warehouse.
type Payments = BTreeMap<District, i64>;

fn payments(rows: &dyn Rows) -> Result<Payments, Violation> {
    let mut payments = Payments::new();
    scan(rows, HISTORY, &KeyRange::all(), |_, record| {
        let History { warehouse, district, amount, .. } = History::decode(record)?;
        let to = District { warehouse: Warehouse(warehouse), number: district };
        *payments.entry(to).or_default() += amount as i64;
        Ok(())
    })?;
    Ok(payments)
}

impl Facts {
    fn gather(
        warehouse: Warehouse,
        payments: &Payments,
        rows: &dyn Rows,
    ) -> Result<Self, Violation> {
        let number = |table, key: &[u8]| -> Result<i64, Violation> {
            let record = rows.get(table, key);
            let read = record
                .ok_or(DecodeError::new("row: missing"))
                .and_then(|record| Number::decode(&record));
            let place = format!("table {table}, {}", Place::of(warehouse));
            let rule = Rule { rule: "TPC-C rows", place: &place };
            Ok(rule.readable(read)?.0 as i64)
        };
        let mut facts = Self {
            warehouse,
            ytd: number(WAREHOUSE_YTD, &warehouse.key())?,
            districts: Vec::new(),
            orders: Vec::new(),
            customers: Vec::new(),
            strays: 0,
            indexed_orders: 0,
        };
        for district in warehouse.districts() {
            facts.districts.push(DistrictFacts {
                ytd: number(DISTRICT_YTD, &district.key())?,
                next_order: number(DISTRICT_NEXT_ORDER, &district.key())?,
                paid: payments.get(&district).copied().unwrap_or(0),
                ..DistrictFacts::default()
            });
        }
        facts.gather_customers(rows)?;
        facts.gather_orders(rows)?;
        facts.gather_new_orders(rows)?;
        facts.gather_lines(rows)?;
        Ok(facts)
    }

    fn gather_customers(&mut self, rows: &dyn Rows) -> Result<(), Violation> {
        let range = self.warehouse.range();
        scan(rows, CUSTOMER_ACCOUNT, &range, |key, record| {
            let (key, account) = (row_key(key)?, Account::decode(record)?);
            self.district(key.0).deliveries += i64::from(account.deliveries);
            self.customers.push(CustomerFacts { key, account, paid: 0, delivered: 0 });
            Ok(())
        })?;
        scan(rows, HISTORY, &range, |key, record| {
            let (key, history) = (row_key(key)?, History::decode(record)?);
            self.district(key.0).payments += 1;
            match self.customer(key) {
                Some(customer) => customer.paid += history.amount as i64,
                None => self.strays += 1,
            }
            Ok(())
        })
    }

    fn gather_orders(&mut self, rows: &dyn Rows) -> Result<(), Violation> {
        let range = self.warehouse.range();
        scan(rows, ORDER, &range, |key, record| {
            let (key, order) = (row_key(key)?, Order::decode(record)?);
            let is_stray = self.customer((key.0, order.customer)).is_none();
            self.strays += i64::from(is_stray);
            let district = self.district(key.0);
            district.orders += 1;
            district.order_max = district.order_max.max(key.1.into());
            district.lines_announced += i64::from(order.lines);
            let (lines, lines_delivered) = (0, 0);
            self.orders.push(OrderFacts { key, order, is_new: false, lines, lines_delivered });
            Ok(())
        })?;
        scan(rows, ORDER_BY_CUSTOMER, &range, |key, _| {
            let ((district, customer), order) = (row_key(key)?, last_number(key)?);
            let found = self.order((district, order)).map(|found| found.order.customer);
            self.strays += i64::from(found != Some(customer));
            self.indexed_orders += 1;
            Ok(())
        })
    }

    fn gather_new_orders(&mut self, rows: &dyn Rows) -> Result<(), Violation> {
        scan(rows, NEW_ORDER, &self.warehouse.range(), |key, _| {
            let key = row_key(key)?;
            let number = i64::from(key.1);
            let district = self.district(key.0);
            if district.new_orders == 0 {
                district.new_order_min = number;
            }
            district.new_orders += 1;
            district.new_order_max = number;
            match self.order(key) {
                Some(order) => order.is_new = true,
                None => self.strays += 1,
            }
            Ok(())
        })
    }

    fn gather_lines(&mut self, rows: &dyn Rows) -> Result<(), Violation> {
        scan(rows, ORDER_LINE, &self.warehouse.range(), |key, record| {
            let (key, line) = (row_key(key)?, OrderLine::decode(record)?);
            self.district(key.0).lines += 1;
            let Some(order) = self.order(key) else {
                self.strays += 1;
                return Ok(());
            };
            order.lines += 1;
            if line.delivery.is_some() {
                order.lines_delivered += 1;
                let customer = (key.0, order.order.customer);
                if let Some(customer) = self.customer(customer) {
                    customer.delivered += line.amount as i64;
                }
            }
            Ok(())
        })
    }

    fn district(&mut self, number: u8) -> &mut DistrictFacts {
        &mut self.districts[usize::from(number) - 1]
    }

    fn order(&mut self, key: (u8, u32)) -> Option<&mut OrderFacts> {
        let found = self.orders.binary_search_by_key(&key, |order| order.key);
        found.ok().map(|position| &mut self.orders[position])
    }

    fn customer(&mut self, key: (u8, u32)) -> Option<&mut CustomerFacts> {
        let found = self.customers.binary_search_by_key(&key, |customer| customer.key);
        found.ok().map(|position| &mut self.customers[position])
    }

    /// Checks a rule for each district.
    fn each_district(
        &self,
        rule: &str,
        demand: impl Fn(&Rule<'_>, &DistrictFacts) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        (1..).zip(&self.districts).try_for_each(|(number, facts)| {
            let place = Place { district: Some(number), ..Place::of(self.warehouse) };
            demand(&Rule { rule, place: &place }, facts)
        })
    }

    /// Checks a rule for each order.
    fn each_order(
        &self,
        rule: &str,
        demand: impl Fn(&Rule<'_>, &OrderFacts) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        self.orders.iter().try_for_each(|facts| {
            let (district, number) = facts.key;
            let row = Some(("order", number));
            let place = Place { district: Some(district), row, ..Place::of(self.warehouse) };
            demand(&Rule { rule, place: &place }, facts)
        })
    }

    /// Checks a rule for each customer.
    fn each_customer(
        &self,
        rule: &str,
        demand: impl Fn(&Rule<'_>, &CustomerFacts) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        self.customers.iter().try_for_each(|facts| {
            let (district, number) = facts.key;
            let row = Some(("customer", number));
            let place = Place { district: Some(district), row, ..Place::of(self.warehouse) };
            demand(&Rule { rule, place: &place }, facts)
        })
    }
}

/// A location, for messages.
#[derive(Clone, Copy)]
struct Place {
    warehouse: Warehouse,
    district: Option<u8>,
    row: Option<(&'static str, u32)>,
}

impl Place {
    fn of(warehouse: Warehouse) -> Self {
        Self { warehouse, district: None, row: None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warehouse {}", self.warehouse.0)?;
        self.district.iter().try_for_each(|district| write!(f, ", district {district}"))?;
        self.row.iter().try_for_each(|(name, number)| write!(f, ", {name} {number}"))
    }
}

type Condition = fn(&Facts, &Scale) -> Result<(), Violation>;

/// The conditions of clause 3.3.2, in the order of its sub-clauses.
const CONDITIONS: [Condition; 12] = [
    |facts, _| {
        let sum = facts.districts.iter().map(|district| district.ytd).sum();
        let rule = Rule { rule: "TPC-C condition 1", place: &Place::of(facts.warehouse) };
        rule.equal(("W_YTD", facts.ytd), ("sum(D_YTD)", sum))
    },
    |facts, _| {
        facts.each_district("TPC-C condition 2", |rule, district| {
            let last = ("D_NEXT_O_ID - 1", district.next_order - 1);
            rule.equal(last, ("max(O_ID)", district.order_max))?;
            match district.new_orders {
                0 => Ok(()),
                _ => rule.equal(last, ("max(NO_O_ID)", district.new_order_max)),
            }
        })
    },
    |facts, _| {
        facts.each_district("TPC-C condition 3", |rule, district| {
            let width = match district.new_orders {
                0 => 0,
                _ => district.new_order_max - district.new_order_min + 1,
            };
            let rows = ("count(NEW-ORDER)", district.new_orders);
            rule.equal(("max(NO_O_ID) - min(NO_O_ID) + 1", width), rows)
        })
    },
    |facts, _| {
        facts.each_district("TPC-C condition 4", |rule, district| {
            let announced = ("sum(O_OL_CNT)", district.lines_announced);
            rule.equal(announced, ("count(ORDER-LINE)", district.lines))
        })
    },
    |facts, _| {
        facts.each_order("TPC-C condition 5", |rule, order| {
            let without_carrier = i64::from(order.order.carrier.is_none());
            let is_new = ("rows in NEW-ORDER", i64::from(order.is_new));
            rule.equal(("orders with O_CARRIER_ID null", without_carrier), is_new)
        })
    },
    |facts, _| {
        facts.each_order("TPC-C condition 6", |rule, order| {
            let announced = ("O_OL_CNT", i64::from(order.order.lines));
            rule.equal(announced, ("count(ORDER-LINE)", order.lines))
        })
    },
    |facts, _| {
        facts.each_order("TPC-C condition 7", |rule, order| {
            let expected = if order.order.carrier.is_some() { order.lines } else { 0 };
            let delivered = ("lines with OL_DELIVERY_D", order.lines_delivered);
            rule.equal(delivered, ("lines of an order with O_CARRIER_ID", expected))
        })
    },
    |facts, _| {
        let paid = facts.districts.iter().map(|district| district.paid).sum();
        let rule = Rule { rule: "TPC-C condition 8", place: &Place::of(facts.warehouse) };
        rule.equal(("W_YTD", facts.ytd), ("sum(H_AMOUNT)", paid))
    },
    |facts, _| {
        facts.each_district("TPC-C condition 9", |rule, district| {
            rule.equal(("D_YTD", district.ytd), ("sum(H_AMOUNT)", district.paid))
        })
    },
    |facts, _| {
        facts.each_customer("TPC-C condition 10", |rule, customer| {
            let due = customer.delivered - customer.paid;
            let balance = ("C_BALANCE", customer.account.balance);
            rule.equal(balance, ("sum(OL_AMOUNT) - sum(H_AMOUNT)", due))
        })
    },
    |facts, scale| {
        facts.each_district("TPC-C condition 11", |rule, district| {
            let delivered = i64::from(scale.orders_delivered()) + district.deliveries;
            let not_new = district.orders - district.new_orders;
            let right = ("delivered by the load + sum(C_DELIVERY_CNT)", delivered);
            rule.equal(("count(ORDER) - count(NEW-ORDER)", not_new), right)
        })
    },
    |facts, _| {
        facts.each_customer("TPC-C condition 12", |rule, customer| {
            let Account { balance, ytd_payment, .. } = customer.account;
            let both = ("C_BALANCE + C_YTD_PAYMENT", balance + ytd_payment as i64);
            rule.equal(both, ("sum(OL_AMOUNT)", customer.delivered))
        })
    },
];

/// The first violation of each condition in each warehouse. Adds counts to `report`.
pub(super) fn violations(
    warehouses: u32,
    scale: &Scale,
    rows: &dyn Rows,
    report: &mut Report,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut keep = |result: Result<(), Violation>| violations.extend(result.err());
    let payments = payments(rows).unwrap_or_else(|violation| {
        keep(Err(violation));
        Payments::new()
    });
    for warehouse in (1..=warehouses).map(Warehouse) {
        let facts = match Facts::gather(warehouse, &payments, rows) {
            Ok(facts) => facts,
            Err(violation) => {
                keep(Err(violation));
                continue;
            }
        };
        CONDITIONS.iter().for_each(|condition| keep(condition(&facts, scale)));
        keep(cardinalities(&facts, scale, rows));
        let sum = |of: fn(&DistrictFacts) -> i64| facts.districts.iter().map(of).sum::<i64>();
        report.count("warehouses", 1);
        report.count("customers", facts.customers.len() as i64);
        report.count(ORDERS, sum(|district| district.orders));
        report.count("order lines", sum(|district| district.lines));
        report.count(DELIVERED, sum(|district| district.deliveries));
        report.count(PAYMENTS, sum(|district| district.payments));
    }
    violations
}

/// The names of the numbers of ORDER and HISTORY rows in a report.
const ORDERS: &str = "orders";
const PAYMENTS: &str = "payments";
/// The name of the number of delivered orders in a report.
const DELIVERED: &str = "orders delivered";

/// Checks the traces of committed transactions: an order for each New-Order, a HISTORY row for each
/// Payment, and the orders that Deliveries reported as delivered.
pub(super) fn check_commits(
    tpcc: &Tpcc,
    rule: &Rule<'_>,
    fact: &dyn Fn(&str) -> i64,
    commits: &Commits,
) -> Result<(), Violation> {
    let Tpcc { warehouses, scale, long: (_, orders_each), .. } = *tpcc;
    let districts = i64::from(warehouses) * i64::from(DISTRICTS);
    let orders = commits.sum(|label| match label {
        "new-order" => 1,
        "long-order" => orders_each.into(),
        _ => 0,
    });
    let orders = plus(orders, districts * i64::from(scale.orders));
    let found = ("orders", fact(ORDERS));
    rule.within(found, "orders of the load and of New-Orders committed", orders)?;
    let payments = plus(commits.bounds("payment"), districts * i64::from(scale.customers));
    let found = ("rows of HISTORY", fact(PAYMENTS));
    rule.within(found, "rows of the load and of Payments committed", payments)?;
    let reported = commits.delivered as i64;
    let untold = commits.unknown.get(DELIVERY).map_or(0, |count| *count as i64);
    let most = reported + untold * i64::from(DISTRICTS);
    rule.within((DELIVERED, fact(DELIVERED)), "orders that Deliveries have named", reported..=most)
}

/// Checks that tables without inserts and deletes are complete (clause 1.2.1), that both indexes
/// match their tables, and that all references are valid.
fn cardinalities(facts: &Facts, scale: &Scale, rows: &dyn Rows) -> Result<(), Violation> {
    let rule = Rule { rule: "TPC-C cardinality", place: &Place::of(facts.warehouse) };
    let of_warehouse = facts.warehouse.range();
    let districts = i64::from(DISTRICTS);
    let customers = i64::from(scale.customers) * districts;
    let items = i64::from(scale.items);
    let tables = [
        (WAREHOUSE, "WAREHOUSE", 1),
        (DISTRICT, "DISTRICT", districts),
        (CUSTOMER, "CUSTOMER", customers),
        (CUSTOMER_ACCOUNT, "CUSTOMER (accounts)", customers),
        (CUSTOMER_DATA, "CUSTOMER (C_DATA)", customers),
        (CUSTOMER_BY_NAME, "CUSTOMER (by name)", customers),
        (STOCK, "STOCK", items),
        (STOCK_INFO, "STOCK (S_DIST, S_DATA)", items),
    ];
    for (table, name, expected) in tables {
        rule.equal((name, count(rows, table, &of_warehouse)), ("rows loaded", expected))?;
    }
    let found = count(rows, ITEM, &KeyRange::all());
    rule.equal(("ITEM", found), ("rows loaded", items))?;
    let orders = ("count(ORDER)", facts.orders.len() as i64);
    rule.equal(("orders in the index by customer", facts.indexed_orders), orders)?;
    rule.equal(("rows that refer to no row", facts.strays), ("allowed", 0))
}

fn count(rows: &dyn Rows, table: TableId, range: &KeyRange) -> i64 {
    let mut count = 0;
    rows.scan(table, range, &mut |_, _| {
        count += 1;
        ControlFlow::Continue(())
    });
    count
}
