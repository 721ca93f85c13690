//! Whether what clients saw, and what is left in the end, is what some serial order gives.
//!
//! Committed transactions run again, one after the other, in every order, until one of these gives
//! each statement its answer and the table its rows. They run in a transaction that is rolled back:
//! what a transaction sees of itself takes no part of what is tested here.

use tokio_postgres::Client;

use crate::START;
use crate::history::{Seen, Transaction, ask};

/// What the table holds.
pub const EVERYTHING: &str = "select * from t order by id";
/// More transactions have too many orders.
const TRANSACTIONS_MAX: usize = 5;

/// The order that explains a history, by the names of its transactions. Nothing where none does.
pub async fn serial_order(
    client: &Client,
    transactions: &[Transaction],
    left: &Seen,
) -> Option<Vec<String>> {
    let committed: Vec<&Transaction> = transactions.iter().filter(|it| it.is_committed).collect();
    assert!(committed.len() <= TRANSACTIONS_MAX, "too many orders");
    let mut found = None;
    for order in orders(committed.len()) {
        client.batch_execute(&format!("begin; {START}")).await.unwrap();
        let order: Vec<&Transaction> = order.iter().map(|&at| committed[at]).collect();
        let is_explained = explains(client, &order, left).await;
        client.batch_execute("rollback").await.unwrap();
        if is_explained {
            found = Some(order.iter().map(|it| it.name.clone()).collect());
            break;
        }
    }
    found
}

async fn explains(client: &Client, order: &[&Transaction], left: &Seen) -> bool {
    for (sql, seen) in order.iter().flat_map(|transaction| &transaction.statements) {
        // One that fails here, such as a second row of one key, is no explanation.
        if ask(client, sql).await.ok().as_ref() != Some(seen) {
            return false;
        }
    }
    ask(client, EVERYTHING).await.ok().as_ref() == Some(left)
}

/// Every order of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for next in 0..count {
        orders = orders
            .iter()
            .flat_map(|order| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, next);
                    order
                })
            })
            .collect();
    }
    orders
}

#[test]
fn every_order_is_tried_once() {
    let mut all = orders(4);
    assert_eq!(all.len(), 24);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 24);
    assert!(all.iter().all(|order| (0..4).all(|it| order.contains(&it))));
}
