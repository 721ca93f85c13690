//! What each isolation level gives: two sessions whose statements interleave, and threads whose
//! statements run side by side.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::guarantee::Isolation::{self, ReadCommitted, Serializable, Snapshot};
use pangea_core::guarantee::Isolations;
use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::race;
use crate::ready;

/// The levels that SQL can name. Its REPEATABLE READ is the snapshot level.
const LEVELS: [Isolation; 3] = [ReadCommitted, Snapshot, Serializable];

/// Returns the rows of the last statement, its tag, or the SQLSTATE of its error.
fn run(session: &mut Session, sql: &str) -> String {
    match ready(session.simple_query(sql)).pop() {
        Some(Response::Error(error)) => error.code.as_str().to_owned(),
        Some(Response::Rows { rows, .. }) => {
            let row = |row: Vec<_>| row.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>();
            rows.into_iter().map(|it| row(it).join(" ")).collect::<Vec<_>>().join(", ")
        }
        Some(Response::Command { tag }) => tag,
        other => format!("{other:?}"),
    }
}

/// Whether a result is a SQLSTATE.
fn is_error(done: &str) -> bool {
    done.len() == 5 && done.as_bytes()[0].is_ascii_digit()
}

/// Two sessions of a node. The transactions of `a` are not replayed unless a test asks for it.
struct Scene {
    a: Session,
    b: Session,
}

impl Scene {
    /// Runs the statements of `setup` at a level, which all transactions have.
    fn new(level: Isolation, setup: &[&str]) -> Self {
        // A protocol that offers this level and the strongest, for schema changes and replays.
        let engine = MemoryEngine::offering(Isolations::new(level, &[Serializable]));
        let (engine, shared) = (Arc::new(engine), Arc::new(Shared::default()));
        let session = || Session::new(engine.clone(), shared.clone(), &BTreeMap::new()).unwrap();
        let mut scene = Self { a: session(), b: session() };
        for statement in setup {
            let done = run(&mut scene.b, statement);
            assert!(!is_error(&done), "{statement}: {done}");
        }
        assert_eq!(run(&mut scene.a, "set replay = off"), "SET");
        scene
    }

    fn a(&mut self, sql: &str) -> String {
        run(&mut self.a, sql)
    }

    fn b(&mut self, sql: &str) -> String {
        run(&mut self.b, sql)
    }

    /// Begins a transaction of `a`, runs `before`, lets `b` run `meanwhile`, and goes on with
    /// `after`. Returns the end of the transaction: COMMIT or a SQLSTATE.
    fn race(&mut self, before: &[&str], meanwhile: &[&str], after: &[&str]) -> String {
        assert_eq!(self.a("begin"), "BEGIN");
        for sql in before {
            let done = self.a(sql);
            assert!(!is_error(&done), "{sql}: {done}");
        }
        for sql in meanwhile {
            let done = self.b(sql);
            assert!(!is_error(&done), "{sql}: {done}");
        }
        for sql in after {
            let done = self.a(sql);
            if is_error(&done) {
                self.a("rollback");
                return done;
            }
        }
        self.a("commit")
    }
}

const CONFLICT: &str = "40001";
const COMMIT: &str = "COMMIT";

const NUMBERS: &[&str] = &[
    "create table t (id int primary key, n int not null)",
    "insert into t values (1, 10), (2, 20)",
];

#[test]
fn a_statement_reads_a_snapshot_of_its_own_only_at_read_committed() {
    for level in LEVELS {
        let mut scene = Scene::new(level, NUMBERS);
        let read = "select n from t where id = 1";
        scene.a("begin");
        assert_eq!(scene.a(read), "Int(10)");
        scene.b("update t set n = 11 where id = 1");
        let seen = if level == ReadCommitted { "Int(11)" } else { "Int(10)" };
        assert_eq!(scene.a(read), seen, "{level}");
        scene.a("insert into t values (3, 30)");
        scene.b("insert into t values (4, 40)");
        let rows = if level == ReadCommitted { "Int(4)" } else { "Int(3)" };
        assert_eq!(scene.a("select count(*) from t"), rows, "{level}: with its own row");
        scene.a("rollback");
        scene.a("begin read only");
        assert_eq!(scene.a(read), "Int(11)");
        scene.b("update t set n = 12 where id = 1");
        let seen = if level == ReadCommitted { "Int(12)" } else { "Int(11)" };
        assert_eq!(scene.a(read), seen, "{level}: a transaction that can only read");
        assert_eq!(scene.a("commit"), COMMIT);
    }
}

#[test]
fn no_update_of_one_statement_is_lost_at_any_level() {
    let add = "update t set n = n + 1 where id = 1";
    for level in LEVELS {
        let mut scene = Scene::new(level, NUMBERS);
        assert_eq!(scene.race(&[add], &[add], &[]), CONFLICT, "{level}");
        assert_eq!(scene.b("select n from t where id = 1"), "Int(11)");
        scene.a("set replay = on");
        assert_eq!(scene.race(&[add], &[add], &[]), COMMIT, "{level}: the replay adds to both");
        assert_eq!(scene.b("select n from t where id = 1"), "Int(13)");
        // A row that the transaction has only read.
        scene.a("set replay = off");
        let end = scene.race(&["select n from t"], &[add], &[add]);
        assert_eq!(end, if level == ReadCommitted { COMMIT } else { CONFLICT }, "{level}");
        let sum = if level == ReadCommitted { "Int(15)" } else { "Int(14)" };
        assert_eq!(scene.b("select n from t where id = 1"), sum, "{level}");
    }
}

#[test]
fn an_update_across_statements_is_lost_at_read_committed_alone() {
    for level in LEVELS {
        let mut scene = Scene::new(level, NUMBERS);
        let read = "select n from t where id = 1";
        let end = scene.race(
            &[read],
            &["update t set n = 15 where id = 1"],
            &["update t set n = 11 where id = 1"],
        );
        assert_eq!(end, if level == ReadCommitted { COMMIT } else { CONFLICT }, "{level}");
        let left = if level == ReadCommitted { "Int(11)" } else { "Int(15)" };
        assert_eq!(scene.b(read), left, "{level}");
    }
}

/// Two transactions read both rows, and each writes one of them.
fn skew(scene: &mut Scene, read: &str) -> String {
    scene.race(
        &[read],
        &["begin", read, "update t set n = 0 where id = 2", "commit"],
        &["update t set n = 0 where id = 1"],
    )
}

#[test]
fn write_skew_is_possible_below_serializable_and_not_with_for_update() {
    for level in [ReadCommitted, Snapshot] {
        let mut scene = Scene::new(level, NUMBERS);
        assert_eq!(skew(&mut scene, "select sum(n) from t"), COMMIT, "{level}");
        let mut scene = Scene::new(level, NUMBERS);
        assert_eq!(skew(&mut scene, "select n from t for update"), CONFLICT, "{level}");
        assert_eq!(scene.b("select sum(n) from t"), "Int(10)");
    }
    let mut scene = Scene::new(Serializable, NUMBERS);
    assert_eq!(skew(&mut scene, "select n from t"), CONFLICT);
    // A row that appears.
    for level in LEVELS {
        let mut scene = Scene::new(level, NUMBERS);
        let insert = "insert into t select max(id) + 1, count(*) from t";
        let end = scene.race(
            &["select count(*) from t"],
            &["insert into t values (8, 0)"],
            &["insert into t values (9, 2)"],
        );
        assert_eq!(end, if level == Serializable { CONFLICT } else { COMMIT }, "{level}");
        assert_eq!(scene.a(insert), "INSERT 0 1");
    }
}

#[test]
fn locked_rows_and_tables_are_unchanged_at_the_commit() {
    let change = "update t set n = 15 where id = 1";
    let write = "update t set n = 11 where id = 1";
    for level in [ReadCommitted, Snapshot] {
        for lock in ["for update", "for share", "for no key update", "for key share"] {
            let mut scene = Scene::new(level, NUMBERS);
            let lock = format!("select n from t where id = 1 {lock}");
            assert_eq!(scene.race(&[&lock], &[change], &[write]), CONFLICT, "{level} {lock}");
            // Of another row.
            let other = "update t set n = 0 where id = 2";
            assert_eq!(scene.race(&[&lock], &[other], &[write]), COMMIT, "{level} {lock}");
        }
        let insert = ["insert into t values (7, 7)"];
        let (locks, own) = (["lock table t"], ["update t set n = 11 where id = 2"]);
        let mut scene = Scene::new(level, NUMBERS);
        assert_eq!(scene.race(&locks, &insert, &own), CONFLICT, "{level}");
        assert_eq!(scene.race(&locks, &["select n from t"], &own), COMMIT, "{level}");
        let locks = ["lock table t in row exclusive mode"];
        let insert = ["insert into t values (8, 8)"];
        assert_eq!(scene.race(&locks, &insert, &own), COMMIT, "{level}: not against writers");
        // In a subquery, and in a cursor.
        let locks = ["declare c cursor for select id from t where id = 1 for update"];
        assert_eq!(scene.race(&locks, &[change], &["insert into t values (9, 9)"]), CONFLICT);
        let locks = ["select * from (select n from t where id = 1 for update) s"];
        assert_eq!(scene.race(&locks, &["update t set n = 3"], &own), CONFLICT);
    }
}

/// Story: a later statement saw rows that had changed together with one that the transaction had
/// written, beside its own version of that one.
#[test]
fn a_transaction_whose_rows_have_changed_stays_on_its_snapshot() {
    let mut scene = Scene::new(ReadCommitted, NUMBERS);
    let read = "select id, n from t order by id";
    scene.a("begin");
    scene.a("update t set n = n + 1 where id = 1");
    scene.b("update t set n = 0");
    assert_eq!(scene.a(read), "Int(1) Int(11), Int(2) Int(20)");
    assert_eq!(scene.a("commit"), CONFLICT);
    scene.a("begin");
    scene.a("select n from t where id = 1 for update");
    scene.b("update t set n = 7");
    assert_eq!(scene.a(read), "Int(1) Int(0), Int(2) Int(0)", "a locked row is as it was");
    assert_eq!(scene.a("commit"), COMMIT, "it has written nothing");
}

#[test]
fn a_cursor_keeps_its_snapshot() {
    let mut scene = Scene::new(ReadCommitted, NUMBERS);
    scene.b("insert into t select n, n from generate_series(3, 2000) n");
    scene.a("begin");
    scene.a("declare c cursor for select n from t order by id");
    scene.a("update t set n = 12 where id = 2");
    scene.b("update t set n = 11 where id = 1");
    assert_eq!(scene.a("select n from t where id < 3 order by id"), "Int(11), Int(12)");
    assert_eq!(scene.a("fetch 2 from c"), "Int(10), Int(20)");
    scene.b("update t set n = 0 where id > 10");
    assert_eq!(scene.a("move 1990 from c"), "MOVE 1990");
    assert_eq!(scene.a("fetch 1 from c"), "Int(1993)");
    assert_eq!(scene.a("commit"), COMMIT);
}

const FAMILY: &[&str] = &[
    "create table parent (id int primary key, code int unique, name text)",
    "create table child (id int primary key, parent int references parent)",
    "create table ward (id int primary key, code int references parent (code) on delete cascade)",
    "create table late (id int primary key, parent int references parent deferrable initially \
     deferred)",
    "create index on child (parent)",
    "insert into parent values (1, 100, 'a'), (2, 200, 'b')",
];

#[test]
fn a_foreign_key_holds_at_every_level() {
    for level in LEVELS {
        let orphans = "select count(*) from child c where not exists \
                       (select from parent p where p.id = c.parent)";
        for (child, parent) in [
            ("insert into child values (1, 1)", "delete from parent where id = 1"),
            ("insert into child values (1, 1)", "update parent set id = 7 where id = 1"),
            ("insert into late values (1, 1)", "delete from parent where id = 1"),
            ("insert into ward values (1, 100)", "delete from parent where id = 1"),
            ("insert into ward values (1, 100)", "update parent set code = 7 where id = 1"),
        ] {
            let mut scene = Scene::new(level, FAMILY);
            // At read committed the key is checked on the newest snapshot.
            let is_seen = level == ReadCommitted && child.contains("late");
            let end = if is_seen { "23503" } else { CONFLICT };
            assert_eq!(scene.race(&[child], &[parent], &[]), end, "{level}: {child}");
            let mut scene = Scene::new(level, FAMILY);
            assert_eq!(scene.race(&[parent], &[child], &[]), CONFLICT, "{level}: {parent}");
            // The replay is told of the row, or removes it.
            let mut scene = Scene::new(level, FAMILY);
            scene.a("set replay = on");
            let is_cascade = child.contains("ward") && parent.contains("delete");
            let end = if is_cascade { COMMIT } else { CONFLICT };
            assert_eq!(scene.race(&[parent], &[child], &[]), end, "{level}: {parent}");
            assert_eq!(scene.b(orphans), "Int(0)");
            assert_eq!(scene.b("select count(*) from ward where code <> 100"), "Int(0)");
        }
    }
}

#[test]
fn a_change_of_a_parent_that_no_child_needs_is_no_conflict() {
    let rename = "update parent set name = 'x' where id = 1";
    let children = ["insert into child values (1, 1)", "insert into ward values (1, 100)"];
    for level in [ReadCommitted, Snapshot] {
        for child in children {
            let mut scene = Scene::new(level, FAMILY);
            assert_eq!(scene.race(&[child], &[rename], &[]), COMMIT, "{level}: {child}");
        }
    }
    // At COMMIT a deferred key sees a parent of another transaction.
    let mut scene = Scene::new(ReadCommitted, FAMILY);
    let late = "insert into late values (1, 9)";
    assert_eq!(scene.race(&[late], &["insert into parent values (9)"], &[]), COMMIT);
    assert_eq!(scene.race(&["insert into late values (2, 8)"], &[], &[]), "23503");
}

#[test]
fn a_unique_key_holds_at_every_level() {
    for level in LEVELS {
        for other in ["(3, 300)", "(4, 300)", "(3, 400)"] {
            let setup = ["create table t (id int primary key, code int unique)"];
            let mut scene = Scene::new(level, &setup);
            let insert = format!("insert into t values {other}");
            let own = "insert into t values (3, 300)";
            assert_eq!(scene.race(&[own], &[&insert], &[]), CONFLICT, "{level}: {other}");
            let moves = "update t set code = 500";
            assert_eq!(scene.race(&[moves], &["insert into t values (9, 500)"], &[]), CONFLICT);
            assert_eq!(scene.b("select count(*) from t"), "Int(2)");
            // A row that is deleted and inserted again.
            let again = ["delete from t where id = 9", "insert into t values (9, 500)"];
            assert_eq!(scene.race(&again, &["delete from t where id = 9"], &[]), CONFLICT);
            assert_eq!(scene.b("insert into t values (10, 500)"), "INSERT 0 1", "{level}");
        }
    }
}

#[test]
fn on_conflict_relies_on_the_row_in_the_way() {
    for level in LEVELS {
        let mut scene = Scene::new(level, NUMBERS);
        let skip =
            ["insert into t values (1, 0) on conflict do nothing", "insert into t values (5, 5)"];
        assert_eq!(scene.race(&skip, &["delete from t where id = 1"], &[]), CONFLICT, "{level}");
        let add = ["insert into t values (2, 1) on conflict (id) do update set n = t.n + 1"];
        assert_eq!(scene.race(&add, &["update t set n = 30 where id = 2"], &[]), CONFLICT);
        assert_eq!(scene.race(&add, &["delete from t where id = 2"], &[]), CONFLICT);
        assert_eq!(scene.race(&add, &["insert into t values (2, 2)"], &[]), CONFLICT);
    }
}

#[test]
fn a_schema_change_conflicts_with_all_that_used_the_schema() {
    let entry = "select count(*) from t where n = 30";
    for level in LEVELS {
        for change in [
            "create index t_n on t (n)",
            "alter table t add column more int default 5",
            "alter table t add constraint c check (n < 1000)",
            "drop table t",
            "alter table t rename to u",
        ] {
            let insert = "insert into t values (3, 30)";
            let mut scene = Scene::new(level, NUMBERS);
            assert_eq!(scene.race(&[insert], &[change], &[]), CONFLICT, "{level}: {change}");
            let mut scene = Scene::new(level, NUMBERS);
            // Not all changes depend on the rows.
            let has_read = ["index", "constraint", "drop"].iter().any(|it| change.contains(it));
            let end = if has_read { CONFLICT } else { COMMIT };
            assert_eq!(scene.race(&[change], &[insert], &[]), end, "{level}: {change}");
            let mut scene = Scene::new(level, NUMBERS);
            scene.a("set replay = on");
            let is_gone = change.starts_with("drop") || change.contains("rename");
            let end = if is_gone { CONFLICT } else { COMMIT };
            assert_eq!(scene.race(&[insert], &[change], &[]), end, "{level}: {change}");
            if !is_gone {
                assert_eq!(scene.b(entry), "Int(1)", "{level}: {change}");
            }
        }
    }
}

#[test]
fn a_revoke_conflicts_with_what_it_forbids() {
    let setup = [NUMBERS, &["create role app login", "grant all on t to app"]].concat();
    for level in LEVELS {
        let mut scene = Scene::new(level, &setup);
        assert_eq!(scene.a("set role app"), "SET");
        let update = "update t set n = 0";
        let revoke = "revoke update on t from app";
        assert_eq!(scene.race(&[update], &[revoke], &[]), CONFLICT, "{level}");
        assert_eq!(scene.a(update), "42501", "{level}");
    }
}

/// Statements of several threads run on snapshots at the same time, and what they check decides.
#[test]
fn constraints_hold_whatever_runs_side_by_side() {
    let mut lost = 0;
    for level in LEVELS {
        let engine = MemoryEngine::offering(Isolations::new(level, &[Serializable]));
        let shared = Arc::new(Shared::default());
        let session = || {
            let engine = Arc::new(engine.clone());
            Session::new(engine, shared.clone(), &BTreeMap::new()).unwrap()
        };
        let mut first = session();
        for sql in race::SETUP {
            assert!(!is_error(&run(&mut first, sql)), "{sql}");
        }
        let added: i64 = std::thread::scope(|scope| {
            let worker = |seed| {
                let mut session = session();
                scope.spawn(move || race::work(seed, 250, &mut |sql| run(&mut session, sql)))
            };
            let workers: Vec<_> = (1..=3).map(worker).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        let total = run(&mut first, "select n from total");
        assert_eq!(total, format!("Int({added})"), "{level}: lost updates");
        race::check(&mut |sql| run(&mut first, sql));
        lost += engine.lost_count();
    }
    assert!(lost > 0, "no two statements met");
}
