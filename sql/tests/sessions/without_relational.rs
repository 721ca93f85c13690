//! A build without the feature `relational`: only queries that need DataFusion fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::ready;

/// Returns the SQLSTATE, message and hint of a statement's error; otherwise its last tag and the
/// number of rows.
fn answer(session: &mut Session, sql: &str) -> Result<(String, usize), [String; 3]> {
    match ready(session.simple_query(sql)).pop().expect("a statement has a response") {
        Response::Error(error) => {
            Err([error.code.to_string(), error.message, error.hint.unwrap_or_default()])
        }
        Response::Command { tag } => Ok((tag, 0)),
        Response::Rows { rows, tag, .. } => Ok((tag, rows.len())),
        other => panic!("{sql}: {other:?}"),
    }
}

#[test]
fn a_query_that_needs_datafusion_fails_when_it_is_planned_and_names_the_feature() {
    let (engine, plans) = (MemoryEngine::new(), Arc::new(Shared::default()));
    let mut session = Session::new(Arc::new(engine), plans, &BTreeMap::new()).unwrap();
    answer(&mut session, "create table t (a int primary key, b int)").unwrap();
    let queries = [
        "select * from t join t as u using (a)",
        "select * from t, t as u",
        "select * from t where a in (select b from t)",
        "select (select 1)",
        "select a from t union select b from t",
        "with u as (select * from t) select * from u",
        "with recursive u (a) as (values (1) union all select a + 1 from u) select * from u",
        "select row_number() over (order by a) from t",
        "select distinct on (a) a from t",
        "select a, b, count(*) from t group by cube (a, b)",
        "select * from generate_series(1, 3)",
        "select unnest(array[1, 2])",
        "select * from pg_class",
        "create view v as select * from t",
        "update t set b = u.b from t as u where t.a = u.a",
        "delete from t using t as u",
        "with u as (insert into t values (1, 2) returning a) select * from u",
        "explain select * from t, t as u",
    ];
    for sql in queries {
        let [code, message, hint] = answer(&mut session, sql).expect_err(sql);
        assert_eq!(code, "0A000", "{sql}: {message}");
        assert!(message.ends_with("was built without the feature \"relational\""), "{message}");
        assert!(hint.contains("cargo build"), "{hint}");
    }
}

#[test]
fn statements_over_one_table_work() {
    let (engine, plans) = (MemoryEngine::new(), Arc::new(Shared::default()));
    let mut session = Session::new(Arc::new(engine), plans, &BTreeMap::new()).unwrap();
    let statements = [
        ("create table t (a int primary key, b int check (b > 0) unique)", "CREATE TABLE", 0),
        ("create table u (a int references t)", "CREATE TABLE", 0),
        ("insert into t values (1, 10), (2, 20), (3, 20 + 10)", "INSERT 0 3", 0),
        ("insert into u select a from t where b > 10", "INSERT 0 2", 0),
        ("select * from t where a = 2", "SELECT 1", 1),
        ("select distinct b from t order by b desc limit 2", "SELECT 2", 2),
        ("select b / 20, count(*), sum(a) from t group by 1 having count(*) > 0", "SELECT 2", 2),
        ("update t set b = b + 1 where a > 1 returning b", "UPDATE 2", 2),
        ("delete from u", "DELETE 2", 0),
        ("begin; insert into t values (4, 40); select * from t; rollback", "ROLLBACK", 0),
        ("explain analyze select * from t where a = 1", "EXPLAIN", 0),
        ("show server_version", "SHOW", 1),
    ];
    for (sql, tag, rows) in statements {
        let (found, count) = answer(&mut session, sql).unwrap_or_else(|it| panic!("{sql}: {it:?}"));
        assert_eq!(found, tag, "{sql}");
        assert!(sql.starts_with("explain") || count == rows, "{sql}: {count} rows");
    }
}
