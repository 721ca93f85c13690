//! Isolation levels: the wish of a session, the level of its programs, and the answer of SHOW.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pangea_core::guarantee::Isolation::{ReadCommitted, RepeatableRead, Serializable, Snapshot};
use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_sql::Shared;
use pangea_sql::engine::{Engine, Unavailable};
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Response, Session, TransactionStatus};
use pangea_sql::types::datum::Datum;

use crate::ready;

/// A node that offers these levels, and records the level of each program.
struct Levels {
    engine: MemoryEngine,
    isolations: Isolations,
    asked: Mutex<Vec<Isolation>>,
}

#[async_trait]
impl Engine for Levels {
    fn store(&self) -> &Arc<Store> {
        self.engine.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.engine.registry()
    }

    fn topology(&self) -> &Topology {
        self.engine.topology()
    }

    fn isolations(&self) -> Isolations {
        self.isolations
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        self.asked.lock().unwrap().push(isolation);
        self.engine.commit(program, isolation).await
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.engine.fresh().await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.engine.status().await
    }
}

/// A session of a node, and its table.
struct Scene {
    engine: Arc<Levels>,
    session: Session,
}

impl Scene {
    fn new(default: Isolation, others: &[Isolation], parameters: &[(&str, &str)]) -> Self {
        let (engine, isolations) = (MemoryEngine::new(), Isolations::new(default, others));
        let engine = Arc::new(Levels { engine, isolations, asked: Mutex::default() });
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let parameters: BTreeMap<String, String> = parameters.iter().map(text).collect();
        let shared = Arc::new(Shared::default());
        let mut session = Session::new(engine.clone(), shared, &parameters).unwrap();
        run(&mut session, "create table t (id int)");
        Self { engine, session }
    }

    fn run(&mut self, sql: &str) -> String {
        run(&mut self.session, sql)
    }

    /// The level that SHOW tells, and that of a write.
    fn level(&mut self) -> (String, Isolation) {
        let shown = self.run("show transaction_isolation");
        self.engine.asked.lock().unwrap().clear();
        assert_eq!(self.run("insert into t values (1)"), "INSERT 0 1");
        let is_open = self.session.transaction_status() != TransactionStatus::Idle;
        if is_open {
            assert_eq!(self.run("commit"), "COMMIT");
        }
        let asked = std::mem::take(&mut *self.engine.asked.lock().unwrap());
        assert_eq!(asked.len(), 1, "one program");
        (shown, asked[0])
    }
}

/// Returns the only value of the last statement, its tag, or its error.
fn run(session: &mut Session, sql: &str) -> String {
    match ready(session.simple_query(sql)).pop() {
        Some(Response::Error(error)) => format!("{} {}", error.code.as_str(), error.message),
        Some(Response::Rows { rows, .. }) => match &rows[0][0] {
            Datum::Text(text) => text.clone(),
            other => format!("{other:?}"),
        },
        Some(Response::Command { tag }) => tag,
        other => panic!("{sql}: {other:?}"),
    }
}

fn of(name: &str, level: Isolation) -> (String, Isolation) {
    (name.to_owned(), level)
}

#[test]
fn a_protocol_that_loses_updates_gets_no_session() {
    let levels = Isolations::new(ReadCommitted, &[]).losing_updates();
    let engine = Arc::new(MemoryEngine::offering(levels));
    let session = Session::new(engine, Arc::new(Shared::default()), &BTreeMap::new());
    let error = session.err().expect("it is refused");
    assert_eq!(error.code.to_string(), "0A000");
    assert!(error.message.contains("lose updates"), "{}", error.message);
}

#[test]
fn a_transaction_runs_at_the_level_that_it_asks_for() {
    let mut scene = Scene::new(ReadCommitted, &Isolation::ALL, &[]);
    assert_eq!(scene.level(), of("read committed", ReadCommitted));
    for (name, level) in [
        ("serializable", Serializable),
        ("repeatable read", Snapshot),
        ("read committed", ReadCommitted),
    ] {
        scene.run(&format!("begin isolation level {name}"));
        assert_eq!(scene.level(), of(name, level));
        scene.run("start transaction read write");
        scene.run(&format!("set transaction isolation level {name}, read write"));
        assert_eq!(scene.level(), of(name, level));
        scene.run("begin");
        scene.run(&format!("set transaction_isolation = '{name}'"));
        assert_eq!(scene.level(), of(name, level));
    }
    scene.run("begin isolation level read uncommitted");
    assert_eq!(scene.level(), of("read committed", ReadCommitted));
    assert_eq!(scene.level(), of("read committed", ReadCommitted), "the next has the default");
}

#[test]
fn a_session_has_a_default_level() {
    let mut scene = Scene::new(ReadCommitted, &Isolation::ALL, &[]);
    scene.run("set session characteristics as transaction isolation level serializable");
    assert_eq!(scene.level(), of("serializable", Serializable));
    scene.run("begin isolation level read committed");
    assert_eq!(scene.level(), of("read committed", ReadCommitted));
    assert_eq!(scene.level(), of("serializable", Serializable));
    scene.run("begin");
    scene.run("set default_transaction_isolation = 'repeatable read'");
    assert_eq!(scene.level(), of("serializable", Serializable), "it is for later ones");
    assert_eq!(scene.level(), of("repeatable read", Snapshot));
    scene.run("reset default_transaction_isolation");
    assert_eq!(scene.level(), of("read committed", ReadCommitted));
    scene.run("set default_transaction_isolation = 'serializable'");
    scene.run("reset all");
    assert_eq!(scene.level(), of("read committed", ReadCommitted));
    let given = [("default_transaction_isolation", "serializable")];
    let mut scene = Scene::new(ReadCommitted, &Isolation::ALL, &given);
    assert_eq!(scene.level(), of("serializable", Serializable));
    scene.run("discard all");
    assert_eq!(scene.level(), of("serializable", Serializable));
}

#[test]
fn a_level_ends_with_its_transaction_and_goes_on_in_a_chain() {
    let mut scene = Scene::new(ReadCommitted, &Isolation::ALL, &[]);
    for end in ["commit", "rollback"] {
        scene.run("begin isolation level serializable");
        scene.run(end);
        assert_eq!(scene.level(), of("read committed", ReadCommitted), "{end}");
        scene.run("begin isolation level serializable, read only");
        scene.run(&format!("{end} and chain"));
        assert_eq!(scene.run("show transaction_isolation"), "serializable", "{end}");
        assert!(scene.run("insert into t values (1)").starts_with("25006"), "{end}");
        scene.run("rollback");
    }
    scene.run("begin isolation level serializable");
    scene.run("select 1 / 0");
    scene.run("commit");
    assert_eq!(scene.level(), of("read committed", ReadCommitted));
}

#[test]
fn a_level_is_chosen_before_the_first_query_and_in_no_subtransaction() {
    let mut scene = Scene::new(ReadCommitted, &Isolation::ALL, &[]);
    scene.run("begin");
    scene.run("select count(*) from t");
    assert_eq!(scene.run("set transaction isolation level read committed"), "SET", "no change");
    let late = scene.run("set transaction isolation level serializable");
    assert_eq!(late, "25001 SET TRANSACTION ISOLATION LEVEL must be called before any query");
    scene.run("rollback");
    scene.run("begin");
    scene.run("savepoint a");
    let within = scene.run("set transaction isolation level serializable");
    assert_eq!(
        within,
        "25001 SET TRANSACTION ISOLATION LEVEL must not be called in a subtransaction"
    );
    scene.run("rollback");
    assert_eq!(scene.run("set transaction isolation level serializable"), "SET");
    assert_eq!(scene.level(), of("read committed", ReadCommitted), "without a block, no effect");
}

#[test]
fn a_stronger_level_is_given_and_never_a_weaker_one() {
    let mut scene = Scene::new(Serializable, &[], &[]);
    for name in ["read uncommitted", "read committed", "repeatable read", "serializable"] {
        scene.run(&format!("begin isolation level {name}"));
        assert_eq!(scene.level(), of("serializable", Serializable), "{name}");
        scene.run(&format!("set default_transaction_isolation = '{name}'"));
        assert_eq!(scene.run("show default_transaction_isolation"), name);
        assert_eq!(scene.level(), of("serializable", Serializable), "{name}");
    }
    let given = [("transaction_isolation", "read committed")];
    let mut scene = Scene::new(Serializable, &[], &given);
    assert_eq!(scene.level(), of("serializable", Serializable), "no transaction was open");
    let mut scene = Scene::new(ReadCommitted, &[RepeatableRead, Snapshot], &[]);
    let refused = "0A000 isolation level serializable is not offered here";
    assert_eq!(scene.run("begin isolation level serializable"), refused);
    assert_eq!(scene.run("set default_transaction_isolation = serializable"), refused);
    assert_eq!(scene.level(), of("read committed", ReadCommitted));
    scene.run("begin");
    assert_eq!(scene.run("set transaction isolation level serializable"), refused);
    scene.run("rollback");
    assert!(scene.run("begin isolation level snapshot").starts_with("42601"));
    assert!(scene.run("set transaction_isolation = 'chaos'").starts_with("22023"));
}
