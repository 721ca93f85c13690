//! Updates that only add to a row: two sessions whose transactions overlap.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::guarantee::Isolation::{self, ReadCommitted, Serializable, Snapshot};
use pangea_core::guarantee::Isolations;
use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::ready;

const SETUP: &[&str] = &[
    "create table t (id int primary key, n int, small smallint, large bigint, m int check (m > 0))",
    "create table u (a text, b int, n bigint, i int, primary key (a, b))",
    "create index on u (i)",
    "insert into t values (1, 10, 32766, 10, 10), (2, null, 1, 1, 1)",
    "insert into u values ('x', 1, 10, 10)",
];

/// The last row, the tag, or the SQLSTATE and the message of an error.
fn run(session: &mut Session, sql: &str) -> String {
    match ready(session.simple_query(sql)).pop() {
        Some(Response::Error(error)) => format!("{} {}", error.code.as_str(), error.message),
        Some(Response::Rows { rows, .. }) => rows.last().map_or(String::new(), |row| {
            row.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(" ")
        }),
        Some(Response::Command { tag }) => tag,
        other => panic!("{sql}: {other:?}"),
    }
}

/// Two sessions of a node. Transactions of `a` are not replayed.
struct Scene {
    a: Session,
    b: Session,
}

impl Scene {
    fn of(levels: Isolations) -> Self {
        let (engine, shared) =
            (Arc::new(MemoryEngine::offering(levels)), Arc::new(Shared::default()));
        let session = || Session::new(engine.clone(), shared.clone(), &BTreeMap::new()).unwrap();
        let mut scene = Self { a: session(), b: session() };
        SETUP.iter().for_each(|sql| drop(run(&mut scene.b, sql)));
        assert_eq!(run(&mut scene.a, "set replay = off"), "SET");
        scene
    }

    fn new(level: Isolation) -> Self {
        Self::of(Isolations::new(level, &[Serializable]).merging_adds())
    }

    /// Runs statements of `a` in a transaction, and one of `b` before it commits.
    fn race(&mut self, of_a: &[&str], of_b: &str) -> String {
        assert_eq!(run(&mut self.a, "begin"), "BEGIN");
        for sql in of_a {
            let done = run(&mut self.a, sql);
            assert!(!done.starts_with("42") && !done.starts_with("0A"), "{sql}: {done}");
        }
        let done = run(&mut self.b, of_b);
        assert!(!done.contains(' ') || done.starts_with("UPDATE") || done.starts_with("DELETE"));
        run(&mut self.a, "commit")
    }

    fn row(&mut self, id: i32) -> String {
        run(&mut self.b, &format!("select n, small, large, m from t where id = {id}"))
    }
}

fn is_conflict(end: &str) -> bool {
    end.starts_with("40001")
}

const ADD: &str = "update t set n = n + 1 where id = 1";
const ADD_TEN: &str = "update t set n = n + 10, large = 10 + large where id = 1";

#[test]
fn additions_to_a_row_do_not_conflict() {
    for level in [ReadCommitted, Serializable] {
        let mut scene = Scene::new(level);
        assert_eq!(scene.race(&[ADD, ADD, ADD_TEN], ADD_TEN), "COMMIT", "{level}");
        assert_eq!(scene.row(1), "Int(32) Int(32766) Int(30) Int(10)");
    }
    let mut snapshot = Scene::new(Snapshot);
    assert!(is_conflict(&snapshot.race(&[ADD], ADD)), "the first committer wins");
    let mut plain = Scene::of(Isolations::new(ReadCommitted, &[Serializable]));
    assert!(is_conflict(&plain.race(&[ADD], ADD)), "the protocol does not merge additions");
}

#[test]
fn a_row_that_is_read_after_an_addition_must_be_unchanged() {
    let select = "select n from t where id = 1";
    let double = "update t set n = n * 2 where id = 1";
    let put = "update t set n = 5 where id = 1";
    let reads: [&[&str]; 4] =
        [&[ADD, double], &[ADD, put], &[ADD, "update t set m = m + n where id = 1"], &[put, ADD]];
    for reads in reads {
        let mut scene = Scene::new(ReadCommitted);
        assert!(is_conflict(&scene.race(reads, ADD)), "{reads:?}");
        assert_eq!(scene.race(reads, "update t set n = n + 1 where id = 2"), "COMMIT");
    }
    for level in [ReadCommitted, Serializable] {
        let mut scene = Scene::new(level);
        run(&mut scene.a, "begin");
        run(&mut scene.a, ADD);
        assert_eq!(run(&mut scene.a, select), "Int(11)", "{level}: its own addition");
        run(&mut scene.b, ADD);
        assert_eq!(run(&mut scene.a, select), "Int(11)", "{level}");
        let end = run(&mut scene.a, "commit");
        assert_eq!(is_conflict(&end), level == Serializable, "{level}: {end}");
    }
}

#[test]
fn the_row_must_exist() {
    for level in [ReadCommitted, Serializable] {
        let mut scene = Scene::new(level);
        assert_eq!(run(&mut scene.b, ADD), "UPDATE 1");
        assert_eq!(run(&mut scene.b, "update t set n = n + 1 where id = 7"), "UPDATE 0");
        assert_eq!(run(&mut scene.b, "update t set n = n + 1 where id = null"), "UPDATE 0");
        assert!(is_conflict(&scene.race(&[ADD], "delete from t where id = 1")), "{level}");
        assert_eq!(run(&mut scene.a, ADD), "UPDATE 0");
    }
}

#[test]
fn an_addition_is_undone_with_its_savepoint() {
    let mut scene = Scene::new(ReadCommitted);
    let of_a = [ADD, "savepoint s", ADD_TEN, "rollback to s", ADD];
    assert_eq!(scene.race(&of_a, ADD_TEN), "COMMIT");
    assert_eq!(scene.row(1), "Int(22) Int(32766) Int(20) Int(10)");
    let of_a = ["savepoint s", ADD, "rollback to s"];
    assert_eq!(scene.race(&of_a, ADD), "COMMIT");
    assert_eq!(scene.row(1), "Int(23) Int(32766) Int(20) Int(10)");
    // A client that has seen the row still depends on it where all reads count.
    let of_a = ["savepoint s", ADD, "update t set n = n * 2 where id = 1", "rollback to s", ADD];
    assert_eq!(scene.race(&of_a, ADD), "COMMIT");
    assert_eq!(scene.row(1), "Int(25) Int(32766) Int(20) Int(10)");
    assert!(is_conflict(&Scene::new(Serializable).race(&of_a, ADD)));
}

#[test]
fn a_sum_that_does_not_fit_is_an_error_where_it_runs_or_where_it_commits() {
    let add = "update t set small = small + 1 where id = 1";
    let mut scene = Scene::new(ReadCommitted);
    assert_eq!(scene.race(&[add], add), "22003 smallint out of range");
    assert_eq!(run(&mut scene.b, add), "22003 smallint out of range");
    let too_much = "update t set n = n + 2147483647 where id = 1";
    assert_eq!(run(&mut scene.b, too_much), "22003 integer out of range");
    let too_little = "update t set large = large - (-9223372036854775807) where id = 1";
    assert_eq!(run(&mut scene.b, too_little), "22003 bigint out of range");
    assert_eq!(scene.row(1), "Int(10) Int(32767) Int(10) Int(10)");
    assert_eq!(run(&mut scene.b, "update t set n = n - 3 where id = 2"), "UPDATE 1");
    assert_eq!(scene.row(2), "Null Int(1) Int(1) Int(1)", "NULL stays NULL");
}

/// Whether two runs of a statement that overlap both commit.
fn merges(sql: &str) -> bool {
    let end = Scene::new(ReadCommitted).race(&[sql], sql);
    assert!(end == "COMMIT" || is_conflict(&end), "{sql}: {end}");
    end == "COMMIT"
}

#[test]
fn only_a_statement_that_depends_on_nothing_else_is_an_addition() {
    for sql in [
        "update t set n = 1 + n, large = large - 2 where id = 1",
        "update t as x set small = small - 1 where 1 = x.id",
        "update t set large = large + 3::smallint where id = 1::bigint",
        "update u set n = n + 1 where b = 1 and a = 'x'",
    ] {
        assert!(merges(sql), "{sql}");
    }
    for sql in [
        "update t set n = n + 1",
        "update t set n = n + 1 where id in (1, 2)",
        "update t set n = n + 1 where id = 1 and n > 0",
        "update t set n = n + 1 where id = 1 returning id",
        "update t set n = n + id where id = 1",
        "update t set n = 1 - n where id = 1",
        "update t set n = n + 1, m = 3 where id = 1",
        "update t set n = large + 1 where id = 1",
        "update t set m = m + 1 where id = 1",
        "update t set n = n + null where id = 1",
        "update u set n = n + 1 where a = 'x'",
        "update u set i = i + 1 where a = 'x' and b = 1",
    ] {
        assert!(!merges(sql), "{sql}");
    }
}
