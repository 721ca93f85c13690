//! The reads of an interactive transaction are certified, even after ROLLBACK TO SAVEPOINT.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::ready;

/// Returns the last response, or an error.
fn run(session: &mut Session, sql: &str) -> Result<String, String> {
    match ready(session.simple_query(sql)).pop() {
        Some(Response::Error(error)) => Err(format!("{} {}", error.code.as_str(), error.message)),
        Some(other) => Ok(format!("{other:?}")),
        None => Ok(String::new()),
    }
}

/// A read above the limit failed, but was marked as recorded. After ROLLBACK TO SAVEPOINT the same
/// read succeeded without being certified, and an update of another transaction was lost.
#[test]
fn a_read_that_failed_at_the_limit_is_not_taken_for_recorded() {
    let engine = MemoryEngine::new();
    let session = || {
        let plans = Arc::new(Shared::default());
        Session::new(Arc::new(engine.clone()), plans, &BTreeMap::new()).unwrap()
    };
    let (mut a, mut b) = (session(), session());
    let rows: Vec<String> = (0..1_000).map(|n| format!("({n})")).collect();
    run(&mut a, "create table many (id int primary key)").unwrap();
    run(&mut a, &format!("insert into many values {}", rows.join(", "))).unwrap();
    run(&mut a, "create table t (id int primary key, n int); insert into t values (1, 10)")
        .unwrap();
    // Reads the schema before the limit is reached.
    run(&mut a, "begin; select n from t where id = 2; savepoint s").unwrap();
    while run(&mut a, "select count(*) from many").is_ok() {}
    run(&mut a, "rollback to s").unwrap();
    let read = "select n from t where id = 1";
    let refused = run(&mut a, read).unwrap_err();
    assert!(refused.starts_with("54000"), "{refused}");
    run(&mut b, "update t set n = n + 5 where id = 1").unwrap();
    run(&mut a, "rollback to s").unwrap();
    // The read is either refused again or certified.
    if run(&mut a, read).is_ok() {
        let written = run(&mut a, "update t set n = n + 1 where id = 1");
        if written.is_ok() {
            let committed = run(&mut a, "commit");
            let found = run(&mut b, read).unwrap();
            assert!(committed.is_err(), "committed; now {found}");
        }
    }
    run(&mut a, "rollback").unwrap();
    assert!(run(&mut b, read).unwrap().contains("15"));
}
