//! An interactive transaction whose reads are stale at COMMIT is replayed. It commits if its client
//! cannot tell the difference.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pangea_core::guarantee::Isolation;
use pangea_core::ids::{ProcedureId, SnapshotVersion};
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Abort, Outcome, Program, Registry, SqlState};
use pangea_sql::Shared;
use pangea_sql::engine::{Engine, Unavailable};
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session};

use crate::ready;

/// Returns the rows of the last statement, or the SQLSTATE of its error.
fn run(session: &mut Session, sql: &str) -> String {
    match ready(session.simple_query(sql)).pop() {
        Some(Response::Error(error)) => error.code.as_str().to_owned(),
        Some(Response::Rows { rows, .. }) => format!("{rows:?}"),
        Some(Response::Command { tag }) => tag,
        Some(Response::Stream { .. }) => {
            let (rows, tag) = session.all_rows().unwrap();
            assert_eq!(ready(session.continue_query()), []);
            assert!(tag.ends_with(&format!(" {}", rows.len())), "{tag}");
            format!("{} rows", rows.len())
        }
        other => format!("{other:?}"),
    }
}

/// Two sessions of a node, and a table with two rows.
struct Scene {
    shared: Arc<Shared>,
    a: Session,
    b: Session,
}

impl Scene {
    fn new() -> Self {
        Self::on(Arc::new(MemoryEngine::new()))
    }

    fn on(engine: Arc<dyn Engine>) -> Self {
        let shared = Arc::new(Shared::default());
        let session = || Session::new(engine.clone(), shared.clone(), &BTreeMap::new()).unwrap();
        let (mut a, b) = (session(), session());
        run(&mut a, "create table t (id int primary key, n int not null)");
        run(&mut a, "create table u (id serial primary key, t int, x text)");
        run(&mut a, "insert into t values (1, 10), (2, 20)");
        let double = "update t set n = n * 2 where id = 1";
        run(&mut a, &format!("create procedure doubled() language sql as '{double}'"));
        Self { shared, a, b }
    }

    /// Returns the result of COMMIT of a transaction that ran `one` while another session ran
    /// `meanwhile`.
    fn commit(&mut self, one: &str, meanwhile: &str) -> String {
        assert_eq!(run(&mut self.a, "begin"), "BEGIN");
        for statement in one.split(';') {
            let done = run(&mut self.a, statement);
            assert_ne!(done.len(), 5, "{statement}: {done}");
        }
        assert_ne!(run(&mut self.b, meanwhile).len(), 5, "{meanwhile}");
        run(&mut self.a, "commit")
    }
}

/// A node that loses the outcomes of replays, because it has skipped epochs with the checkpoint of
/// a peer.
struct Forgetful(MemoryEngine);

#[async_trait]
impl Engine for Forgetful {
    fn store(&self) -> &Arc<Store> {
        self.0.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.0.registry()
    }

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        let replay = ProcedureId::of("sql.replay");
        let is_replay = matches!(program, Program::Call { procedure, .. } if procedure == replay);
        let outcome = self.0.commit(program, isolation).await?;
        let unknown = || Abort::new(SqlState::OUTCOME_UNKNOWN, "the outcome is unknown");
        Ok(if is_replay { Outcome::Aborted(unknown()) } else { outcome })
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.0.fresh().await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.0.status().await
    }
}

/// Story: the client was told of a conflict, and tried again what had committed.
#[test]
fn a_replay_whose_outcome_is_unknown_is_no_conflict() {
    let mut scene = Scene::on(Arc::new(Forgetful(MemoryEngine::new())));
    let add = "update t set n = n + 1 where id = 1";
    assert_eq!(scene.commit(add, "update t set n = 200 where id = 1"), "08007");
    assert_eq!(run(&mut scene.b, "select n from t where id = 1"), "[[Int(201)]]");
}

/// A node on which every transaction loses whose rows were found before, and counts them.
struct Contended(MemoryEngine, AtomicUsize);

#[async_trait]
impl Engine for Contended {
    fn store(&self) -> &Arc<Store> {
        self.0.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.0.registry()
    }

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        let statement = ProcedureId::of("sql.statement");
        if matches!(program, Program::Call { procedure, .. } if procedure == statement) {
            return self.0.commit(program, isolation).await;
        }
        let is_certified = matches!(program, Program::Certified(_));
        self.1.fetch_add(usize::from(is_certified), Ordering::Relaxed);
        Ok(Outcome::Aborted(Abort::new(SqlState::SERIALIZATION_FAILURE, "changed")))
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.0.fresh().await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.0.status().await
    }
}

#[test]
fn a_statement_that_always_loses_says_how_often_it_was_tried() {
    let engine = Arc::new(Contended(MemoryEngine::new(), AtomicUsize::new(0)));
    let mut scene = Scene::on(engine.clone());
    run(&mut scene.a, "insert into u values (1, 1, 'a')");
    let update = "update t set n = n + 1 from u where u.t = t.id";
    let Some(Response::Error(error)) = ready(scene.a.simple_query(update)).pop() else {
        panic!("every try loses");
    };
    let tries = engine.1.load(Ordering::Relaxed);
    assert_eq!((error.code, tries), (SqlState::SERIALIZATION_FAILURE, 21));
    let hint = error.hint.unwrap();
    assert!(hint.contains("was tried 21 times") && hint.contains("as a program"), "{hint}");
    // A block is its client's to try again.
    let block = format!("begin; {update}; commit");
    let Some(Response::Error(error)) = ready(scene.a.simple_query(&block)).pop() else {
        panic!("every try loses");
    };
    assert_eq!(engine.1.load(Ordering::Relaxed), tries + 1);
    assert!(!error.hint.unwrap().contains("tried 21"));
}

#[test]
fn names_are_looked_for_where_they_were_at_first() {
    let mut scene = Scene::new();
    run(&mut scene.a, "create schema app");
    run(&mut scene.a, "create table app.t (id int primary key, n int not null)");
    run(&mut scene.a, "insert into app.t values (1, 100)");
    assert_eq!(run(&mut scene.a, "set search_path to app"), "SET");
    let add = "update t set n = n + 1 where id = 1";
    assert_eq!(scene.commit(add, "update app.t set n = 200 where id = 1"), "COMMIT");
    assert_eq!(run(&mut scene.b, "select n from app.t"), "[[Int(201)]]");
    // Names in the body of a procedure are resolved in the same schemas too.
    let doubled = "call public.doubled()";
    assert_eq!(scene.commit(doubled, "update app.t set n = 300 where id = 1"), "COMMIT");
    assert_eq!(run(&mut scene.b, "select n from app.t"), "[[Int(600)]]");
    assert_eq!(run(&mut scene.b, "select n from t where id = 1"), "[[Int(10)]]");
    assert_eq!(scene.shared.replays().counts(), (2, 2));
}

#[test]
fn what_nobody_can_tell_from_what_it_was_commits() {
    let mut scene = Scene::new();
    let add = "update t set n = n + 1 where id = 1";
    assert_eq!(scene.commit(add, add), "COMMIT");
    assert_eq!(run(&mut scene.b, "select n from t where id = 1"), "[[Int(12)]]");
    assert_eq!(scene.shared.replays().counts(), (1, 1));
    // The client has read a row, which is unchanged.
    let one = "select n from t where id = 2; update t set n = n + 1 where id = 1";
    assert_eq!(scene.commit(one, add), "COMMIT");
    // Sequence values, times and random values are the same in the replay.
    let one =
        "insert into u (t, x) select n, random()::text from t where id = 1; update t set n = 0
               where id = 1; insert into u (t, x) values (1, now()::text) returning id";
    assert_eq!(scene.commit(one, "update t set n = 14 where id = 1; select 1"), "COMMIT");
    assert_eq!(
        run(&mut scene.b, "select id, t from u order by id"),
        "[[Int(1), Int(14)], [Int(2), Int(1)]]"
    );
    // Savepoints that are released, and a procedure.
    let one = "savepoint s; update t set n = n + 5 where id = 1; release s;
               call doubled()";
    assert_eq!(scene.commit(one, add), "COMMIT");
    assert_eq!(run(&mut scene.b, "select n from t where id = 1"), "[[Int(12)]]");
    assert_eq!(scene.shared.replays().counts(), (4, 4));
    // Without a conflict there is no replay.
    assert_eq!(scene.commit(add, "select 1"), "COMMIT");
    assert_eq!(scene.shared.replays().counts(), (4, 4));
}

#[test]
fn a_result_that_is_told_in_parts_is_held_to_once_all_of_it_was_told() {
    let mut scene = Scene::new();
    let many = "insert into t select g, 0 from generate_series(10, 3009) g";
    assert_eq!(run(&mut scene.b, many), "INSERT 0 3000");
    let read = "select n from t where id >= 10; update t set n = n + 1 where id = 1";
    assert_eq!(run(&mut scene.b, "select n from t where id >= 10"), "3000 rows");
    assert_eq!(scene.commit(read, "update t set n = n + 1 where id = 1"), "COMMIT");
    assert_eq!(scene.shared.replays().counts(), (1, 1));
    let last = "update t set n = n + 1 where id = 1; update t set n = 1 where id = 3009";
    assert_eq!(scene.commit(read, last), "40001");
    assert_eq!(scene.shared.replays().counts(), (2, 1));
    // If the client received a part of a cursor's rows, there is no replay. If it received all,
    // there is.
    let cursor = |fetch: &str| {
        format!(
            "declare c cursor for select n from t where id >= 10; {fetch}; \
             update t set n = n + 1 where id = 1"
        )
    };
    let one = "update t set n = n + 1 where id = 1";
    assert_eq!(scene.commit(&cursor("fetch 5 from c"), one), "40001");
    assert_eq!(scene.shared.replays().counts(), (2, 1));
    assert_eq!(scene.commit(&cursor("move 5 from c; fetch all from c"), one), "COMMIT");
    assert_eq!(scene.shared.replays().counts(), (3, 2));
}

#[test]
fn what_came_to_something_else_fails_as_it_would_have() {
    let mut scene = Scene::new();
    let set = "update t set n = n + 1 where id = 1";
    let refused = [
        // The client has received another value, or another number of rows.
        "select n from t where id = 1; update t set n = 0 where id = 2",
        "update t set n = n + 1 where id = 1 returning n",
        "update t set n = 0 where n = 10",
        // The client has received rows before it rolled them back.
        "savepoint s; select n from t where id = 1; rollback to s; update t set n = 0 where id = 1",
        // DataFusion may find rows in another order on another replica.
        "select a.n from t a join t b using (id) where id = 2; update t set n = 0 where id = 1",
    ];
    for one in refused {
        assert_eq!(run(&mut scene.b, "update t set n = 10 where id = 1"), "UPDATE 1");
        assert_eq!(scene.commit(one, set), "40001", "{one}");
    }
    let (tried, committed) = scene.shared.replays().counts();
    assert_eq!((tried, committed), (3, 0));
    // Another transaction has inserted the key in the meantime.
    let one = "insert into t values (3, 0)";
    assert_eq!(scene.commit(one, "insert into t values (3, 1)"), "40001");
    assert_eq!(run(&mut scene.b, "select n from t where id = 3"), "[[Int(1)]]");
    // The setting `replay` turns it off.
    run(&mut scene.a, "set replay = off");
    assert_eq!(scene.commit(set, set), "40001");
    assert_eq!(scene.shared.replays().counts(), (4, 0));
}

#[test]
fn a_foreign_key_that_waits_for_commit_is_held_to_what_is_there_then() {
    let mut scene = Scene::new();
    run(&mut scene.a, "create table c (t int references t deferrable initially deferred)");
    let one = "insert into c values (9); update t set n = n + 1 where id = 1;
               insert into t values (9, 9)";
    let set = "update t set n = n + 1 where id = 1";
    assert_eq!(scene.commit(one, set), "COMMIT");
    assert_eq!(run(&mut scene.b, "select count(*) from c"), "[[Int(1)]]");
    let one = "insert into c values (2); update t set n = n + 1 where id = 1";
    assert_eq!(scene.commit(one, "delete from t where id = 2"), "40001");
}

/// Each of these transactions once committed as if no other transaction had intervened.
#[test]
fn what_is_told_or_written_beside_results_is_not_forgotten() {
    let mut scene = Scene::new();
    run(&mut scene.a, "create table hot (id int primary key, v int)");
    run(&mut scene.a, "insert into hot values (1, 0)");
    run(
        &mut scene.a,
        "create procedure tell() language plpgsql as $$ declare b int; begin
         select v into b from hot where id = 1; raise notice '%', b; end $$",
    );
    let set = "update hot set v = v + 1 where id = 1";
    let refused = [
        // Values of a sequence that the transaction has created or set.
        "create table own (id serial primary key, x int); insert into own (x) values (1)",
        "select setval('u_id_seq', 100); insert into u (t) values (1)",
        // A message to the client.
        "call tell()",
        "drop table if exists own",
    ];
    for (at, one) in refused.into_iter().enumerate() {
        let meanwhile = match at {
            3 => "create table own (id int); update hot set v = v + 1 where id = 1",
            _ => set,
        };
        assert_eq!(scene.commit(&format!("{one};{set}"), meanwhile), "40001", "{one}");
    }
    assert_eq!(run(&mut scene.b, "select count(*) from own"), "[[Int(0)]]");
}
