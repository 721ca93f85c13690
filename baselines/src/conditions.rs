//! Consistency conditions of the rows, in SQL that PostgreSQL and MariaDB both support.
//!
//! These are the conditions of TPC-C 3.3.2 that New-Order and Payment can violate, each as a query
//! for the number of violations. Further conditions compare the rows with the transactions that
//! clients saw commit: each order is one New-Order, and each history row one Payment.

use std::ops::RangeInclusive;

use pangea_core::workload::tpcc::tables::DISTRICTS;
use pangea_core::workload::{Commits, Settings, Workload};

use crate::failure::Failure;

/// A query and the range of its result.
pub(crate) struct Condition {
    /// Description of the condition.
    pub name: String,
    /// A query that returns one number.
    pub query: String,
    /// The allowed range of the number.
    pub expected: RangeInclusive<i64>,
}

/// Names and queries that must return 0.
const TPCC: [(&str, &str); 9] = [
    (
        "warehouses that violate TPC-C condition 1 (W_YTD is the sum of D_YTD)",
        "SELECT count(*) FROM warehouse JOIN (SELECT d_w_id, sum(d_ytd) AS paid FROM district \
         GROUP BY d_w_id) AS d ON d_w_id = w_id WHERE w_ytd <> paid",
    ),
    (
        "districts that violate TPC-C condition 2 (the last order is D_NEXT_O_ID - 1)",
        "SELECT count(*) FROM district \
         LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS last_o FROM orders \
         GROUP BY o_w_id, o_d_id) AS o ON o_w_id = d_w_id AND o_d_id = d_id \
         LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS last_no FROM new_order \
         GROUP BY no_w_id, no_d_id) AS n ON no_w_id = d_w_id AND no_d_id = d_id \
         WHERE coalesce(last_o, 0) <> d_next_o_id - 1 OR coalesce(last_no, 0) <> d_next_o_id - 1",
    ),
    (
        "districts that violate TPC-C condition 3 (new orders have no gap)",
        "SELECT count(*) FROM (SELECT no_w_id FROM new_order GROUP BY no_w_id, no_d_id \
         HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)) AS gaps",
    ),
    (
        "districts that violate TPC-C condition 4 (the sum of O_OL_CNT is the number of lines)",
        "SELECT count(*) FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS announced FROM orders \
         GROUP BY o_w_id, o_d_id) AS o LEFT JOIN (SELECT ol_w_id, ol_d_id, count(*) AS there \
         FROM order_line GROUP BY ol_w_id, ol_d_id) AS l ON ol_w_id = o_w_id AND ol_d_id = o_d_id \
         WHERE coalesce(there, 0) <> announced",
    ),
    (
        "orders that violate TPC-C condition 5 (exactly new orders have no carrier)",
        "SELECT count(*) FROM orders LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id \
         AND no_o_id = o_id WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)",
    ),
    (
        "orders that violate TPC-C condition 6 (O_OL_CNT is the number of lines)",
        "SELECT count(*) FROM orders LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, \
         count(*) AS there FROM order_line GROUP BY ol_w_id, ol_d_id, ol_o_id) AS l \
         ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id \
         WHERE coalesce(there, 0) <> o_ol_cnt",
    ),
    (
        "warehouses that violate TPC-C condition 8 (W_YTD is the sum of payments)",
        "SELECT count(*) FROM warehouse JOIN (SELECT h_w_id, sum(h_amount) AS paid FROM history \
         GROUP BY h_w_id) AS h ON h_w_id = w_id WHERE w_ytd <> paid",
    ),
    (
        "districts that violate TPC-C condition 9 (D_YTD is the sum of payments)",
        "SELECT count(*) FROM district JOIN (SELECT h_w_id, h_d_id, sum(h_amount) AS paid \
         FROM history GROUP BY h_w_id, h_d_id) AS h ON h_w_id = d_w_id AND h_d_id = d_id \
         WHERE d_ytd <> paid",
    ),
    (
        // The amounts of orders delivered by the load are 0, and no order is delivered after it.
        "customers that violate TPC-C condition 10 (C_BALANCE is the sum of payments)",
        "SELECT count(*) FROM customer LEFT JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, \
         sum(h_amount) AS paid FROM history GROUP BY h_c_w_id, h_c_d_id, h_c_id) AS h \
         ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id \
         WHERE c_balance <> -coalesce(paid, 0) OR c_ytd_payment <> coalesce(paid, 0)",
    ),
];

/// The tables of a workload.
pub(crate) fn tables(workload: &Workload) -> &'static [&'static str] {
    match workload {
        Workload::Ycsb(_) => &["ycsb"],
        _ => &[
            "item",
            "warehouse",
            "district",
            "stock",
            "customer",
            "history",
            "orders",
            "new_order",
            "order_line",
        ],
    }
}

/// The conditions after the load and these commits. Any number of the calls with unknown outcomes
/// may have committed.
pub(crate) fn all(workload: &Workload, settings: &Settings, commits: &Commits) -> Vec<Condition> {
    let condition = |name: &str, query: &str, expected: u64| Condition {
        name: name.to_owned(),
        query: query.to_owned(),
        expected: expected as i64..=expected as i64,
    };
    if let Workload::Ycsb(_) = workload {
        let len = settings.value_len;
        let query = format!("SELECT count(*) FROM ycsb WHERE length(value) <> {len}");
        return vec![
            condition("rows of YCSB", "SELECT count(*) FROM ycsb", settings.rows),
            condition("rows of YCSB of another length", &query, 0),
        ];
    }
    let (warehouses, scale) = (u64::from(settings.warehouses), settings.scale);
    let districts = warehouses * u64::from(DISTRICTS);
    let mut all = vec![
        condition("warehouses", "SELECT count(*) FROM warehouse", warehouses),
        condition("districts", "SELECT count(*) FROM district", districts),
        condition(
            "customers",
            "SELECT count(*) FROM customer",
            districts * u64::from(scale.customers),
        ),
        condition(
            "items in stock",
            "SELECT count(*) FROM stock",
            warehouses * u64::from(scale.items),
        ),
    ];
    all.extend(TPCC.map(|(name, query)| condition(name, query, 0)));
    let left_behind = |name: &str, query: &str, loaded: u64, label: &str| {
        let (least, most) = commits.bounds(label).into_inner();
        let loaded = loaded as i64;
        let expected = loaded + least..=loaded + most;
        Condition { name: name.to_owned(), query: query.to_owned(), expected }
    };
    all.push(left_behind(
        "orders, loaded and of committed New-Orders",
        "SELECT count(*) FROM orders",
        districts * u64::from(scale.orders),
        "new-order",
    ));
    all.push(left_behind(
        "payments, loaded and of committed Payments",
        "SELECT count(*) FROM history",
        districts * u64::from(scale.customers),
        "payment",
    ));
    all
}

impl Condition {
    /// Fails if the answer is outside the allowed range.
    pub fn judge(&self, answer: i64) -> Result<(), Failure> {
        judge_within(&self.name, answer, &self.expected)
    }
}

/// Fails if a number is outside its allowed range.
pub(crate) fn judge_within(
    name: &str,
    found: i64,
    expected: &RangeInclusive<i64>,
) -> Result<(), Failure> {
    if expected.contains(&found) {
        return Ok(());
    }
    let (least, most) = (expected.start(), expected.end());
    Err(Failure::Failed(match least == most {
        true => format!("{name}: {found}, expected {least}"),
        false => format!("{name}: {found}, expected from {least} to {most}"),
    }))
}

/// Fails if two places do not have the same rows.
pub(crate) fn judge_equal<D: PartialEq + std::fmt::Debug>(
    table: &str,
    digests: &[(String, D)],
) -> Result<(), Failure> {
    let Some((first, digest)) = digests.first() else { return Ok(()) };
    match digests.iter().find(|(_, other)| other != digest) {
        None => Ok(()),
        Some((place, other)) => Err(Failure::Failed(format!(
            "{table} differs: {digest:?} in {first}, {other:?} in {place}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(name: &str, commits: &Commits) -> Condition {
        let settings = Settings { warehouses: 2, ..Settings::default() };
        let workload = Workload::named("tpcc-nopay", &settings).expect("a workload");
        let mut all = all(&workload, &settings, commits).into_iter();
        all.find(|it| it.name.starts_with(name)).expect("the condition exists")
    }

    #[test]
    fn rows_are_held_to_what_committed_and_to_no_more_than_may_have() {
        let known = Commits {
            committed: [("new-order".to_owned(), 10), ("payment".to_owned(), 7)].into(),
            ..Commits::default()
        };
        let orders = condition("orders, loaded", &known);
        assert!(orders.judge(60_010).is_ok());
        for wrong in [60_009, 60_011] {
            let error = orders.judge(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong}, expected 60010")), "{error}");
        }
        let unknown = [("new-order".to_owned(), 2)].into();
        let some_unknown = Commits { unknown, ..known };
        let orders = condition("orders, loaded", &some_unknown);
        assert!((60_010..=60_012).all(|found| orders.judge(found).is_ok()));
        for wrong in [60_009, 60_013] {
            let error = orders.judge(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong}, expected from 60010 to 60012")), "{error}");
        }
        let payments = condition("payments, loaded", &some_unknown);
        assert!(payments.judge(60_007).is_ok(), "the outcomes of all payments are known");
        assert!(payments.judge(60_006).is_err() && payments.judge(60_008).is_err());
    }
}
