//! Checks whether the clients' observations and the final state are equivalent to some serial
//! order.
//!
//! Committed transactions run again, one after the other, in every order, until in some order each
//! statement has the same result and the table has the same rows. The orders run in a transaction
//! that is rolled back; the visibility of a transaction's own writes is not tested here.

use tokio_postgres::Client;

use crate::START;
use crate::history::{Seen, Transaction, ask};

/// The query for the contents of the table.
pub const EVERYTHING: &str = "select * from t order by id";
/// The number of orders grows too fast above this number of transactions.
const TRANSACTIONS_MAX: usize = 5;

/// Returns the serial order that explains a history, by the names of its transactions. Returns
/// `None` if no order does.
pub async fn serial_order(
    client: &Client,
    transactions: &[Transaction],
    left: &Seen,
) -> Option<Vec<String>> {
    let committed: Vec<&Transaction> = transactions.iter().filter(|it| it.is_committed).collect();
    assert!(committed.len() <= TRANSACTIONS_MAX, "too many serial orders");
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
        // An order in which a statement fails, for example by a duplicate key, does not explain the
        // history.
        if ask(client, sql).await.ok().as_ref() != Some(seen) {
            return false;
        }
    }
    ask(client, EVERYTHING).await.ok().as_ref() == Some(left)
}

/// Returns all permutations of the numbers below `count`.
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
