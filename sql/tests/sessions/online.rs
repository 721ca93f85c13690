//! An index of a table with many rows is filled in several steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::ready;

/// Returns the rows of the last statement, or its error.
fn run(session: &mut Session, sql: &str) -> Result<String, String> {
    match ready(session.simple_query(sql)).pop() {
        Some(Response::Error(error)) => {
            let detail = error.detail.unwrap_or_default();
            Err(format!("{} {} {detail}", error.code.as_str(), error.message))
        }
        Some(Response::Rows { rows, .. }) => Ok(format!("{rows:?}")),
        other => Ok(format!("{other:?}")),
    }
}

#[test]
fn an_index_is_filled_in_steps_and_goes_where_it_can_not_be() {
    let engine = MemoryEngine::new();
    let mut session =
        Session::new(Arc::new(engine.clone()), Arc::new(Shared::default()), &BTreeMap::new())
            .unwrap();
    run(&mut session, "create table t (id int primary key, a int, b text)").unwrap();
    let rows = "insert into t select n, n % 7000, 'b' || n from generate_series(1, 9000) n";
    run(&mut session, rows).unwrap();
    let mut programs = |sql: &str| {
        let before = engine.program_count();
        let done = run(&mut session, sql);
        (engine.program_count() - before, done)
    };
    // The statement, five ranges of at most 2,000 rows, and the last step.
    let (count, done) = programs("create index t_a on t (a)");
    done.unwrap();
    assert_eq!(count, 1 + 5 + 1);
    let is_valid = "select indisvalid from pg_index where indexrelid = 't_a'::regclass";
    assert_eq!(programs(is_valid).1, Ok("[[Bool(true)]]".to_owned()));
    let plan = programs("explain select id from t where a = 5").1.unwrap();
    assert!(plan.contains("t_a"), "{plan}");
    assert_eq!(programs("select id from t where a = 5").1.unwrap(), "[[Int(5)], [Int(7005)]]");
    // Two rows have the same key: the index is dropped, and its name can be reused.
    let refused = programs("create unique index t_u on t (a)").1.unwrap_err();
    assert!(refused.starts_with("23505 could not create unique index \"t_u\""), "{refused}");
    let gone = programs("select 't_u'::regclass").1.unwrap_err();
    assert!(gone.starts_with("42P01"), "{gone}");
    programs("create unique index t_u on t (b)").1.unwrap();
    let twice = programs("insert into t values (0, 0, 'b5')").1.unwrap_err();
    assert!(twice.starts_with("23505"), "{twice}");
    // An index on an expression, over a subset of the rows.
    let (count, done) = programs("create index t_e on t (lower(b) desc) where a < 10");
    done.unwrap();
    assert_eq!(count, 7);
    let found = "select count(*) from t where lower(b) >= 'b' and a < 10";
    assert_eq!(programs(found).1.unwrap(), "[[Int(19)]]");
    // In a transaction block it is created within the transaction.
    programs("begin; create index t_t on t (id, a); commit").1.unwrap();
    let within = programs("begin; create index concurrently t_c on t (a); commit").1.unwrap_err();
    assert!(within.starts_with("25001"), "{within}");
}
