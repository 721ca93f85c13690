//! With strict reads, a statement waits for a fresh snapshot if that can change its result. Also
//! tests the warnings of settings outside of a transaction block.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pangea_core::guarantee::Isolation;
use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_core::workload::{Settings, Workload, procedures};
use pangea_sql::Shared;
use pangea_sql::engine::{Engine, Unavailable};
use pangea_sql::memory::MemoryEngine;
use pangea_sql::native::Native;
use pangea_sql::notice::Severity;
use pangea_sql::session::{Response, Session};

use crate::ready;

/// Returns how often a successful statement waits for a fresh snapshot.
fn waits(engine: &MemoryEngine, session: &mut Session, sql: &str) -> u64 {
    let before = engine.fresh_count();
    let responses = ready(session.simple_query(sql));
    assert!(!matches!(responses.last(), Some(Response::Error(_))), "{responses:?}");
    engine.fresh_count() - before
}

#[test]
fn a_strict_read_of_a_table_waits_for_a_fresh_snapshot_and_nothing_else_does() {
    let engine = MemoryEngine::new();
    let plans = Arc::new(Shared::default());
    let mut session = Session::new(Arc::new(engine.clone()), plans, &BTreeMap::new()).unwrap();
    let mut waits = |sql: &str| waits(&engine, &mut session, sql);
    assert_eq!(waits("create table t (a int primary key)"), 0);
    assert_eq!(waits("select * from t"), 0);
    assert_eq!(waits("set reads = strict"), 0);
    assert_eq!(waits("select * from t"), 1);
    assert_eq!(waits("select count(*) from t where a = 1"), 1);
    // The result is the same at any time.
    assert_eq!(waits("select 1, now(), version()"), 0);
    // These statements read at their place in the order.
    assert_eq!(waits("insert into t values (1) returning a"), 0);
    assert_eq!(waits("update t set a = a + 1"), 0);
    // A transaction reads one snapshot.
    assert_eq!(waits("begin; select * from t; select * from t; commit"), 1);
    assert_eq!(waits("show tables"), 1);
}

/// Story: without a majority nobody could ask the node what it waits for, after `SET reads =
/// strict`.
#[cfg(feature = "relational")]
#[test]
fn strict_reads_of_tables_about_the_node_wait_for_nobody() {
    let engine = MemoryEngine::new();
    let plans = Arc::new(Shared::default());
    let mut session = Session::new(Arc::new(engine.clone()), plans, &BTreeMap::new()).unwrap();
    let mut waits = |sql: &str| waits(&engine, &mut session, sql);
    assert_eq!(waits("create table t (a int primary key)"), 0);
    assert_eq!(waits("set reads = strict"), 0);
    for table in ["cluster", "regions", "replication", "counters", "sessions", "statements"] {
        assert_eq!(waits(&format!("select * from pangea.{table}")), 0, "{table}");
    }
    assert_eq!(waits("select count(*) from pg_stat_activity"), 0);
    assert_eq!(waits("select c.name from pangea.cluster c, pangea.counters where value > 1"), 0);
    // These have rows of the catalog or of a table, too.
    assert_eq!(waits("select * from pangea.partitions"), 1);
    assert_eq!(waits("select c.name from pangea.cluster c, pg_class"), 1);
    assert_eq!(waits("select c.name from pangea.cluster c, t"), 1);
}

/// A node that is told of a commit before it has published it: by another one, or by replies.
struct Asked {
    memory: MemoryEngine,
    /// The versions that sessions have waited for.
    awaited: Mutex<Vec<SnapshotVersion>>,
}

#[async_trait::async_trait]
impl Engine for Asked {
    fn store(&self) -> &Arc<Store> {
        self.memory.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.memory.registry()
    }

    fn topology(&self) -> &Topology {
        self.memory.topology()
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        Ok(match self.memory.commit(program, isolation).await? {
            Outcome::Committed { txn, version, result } => {
                Outcome::Committed { txn, version: version.next(), result }
            }
            aborted => aborted,
        })
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.memory.fresh().await
    }

    async fn published(&self, version: SnapshotVersion) -> Result<(), Unavailable> {
        self.store().publish(version);
        self.awaited.lock().unwrap().push(version);
        Ok(())
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.memory.status().await
    }
}

/// Story: the first SELECT after an INSERT took a round trip to a majority.
#[test]
fn a_read_of_own_writes_waits_for_this_node_alone() {
    let engine = Arc::new(Asked { memory: MemoryEngine::new(), awaited: Mutex::default() });
    let plans = Arc::new(Shared::default());
    let mut session = Session::new(engine.clone(), plans, &BTreeMap::new()).unwrap();
    let mut waits = |sql: &str| {
        let fresh = waits(&engine.memory, &mut session, sql);
        (std::mem::take(&mut *engine.awaited.lock().unwrap()).len(), fresh)
    };
    assert_eq!(waits("create table t (a int primary key)"), (0, 0));
    assert_eq!(waits("insert into t values (1)"), (1, 0), "its plan needs the table");
    assert_eq!(waits("select * from t"), (1, 0));
    assert_eq!(waits("select * from t"), (0, 0), "it is published now");
    assert_eq!(waits("insert into t values (2)"), (0, 0));
    assert_eq!(waits("begin; select * from t; commit"), (1, 0));
    assert_eq!(waits("set reads = strict"), (0, 0));
    assert_eq!(waits("select * from t"), (0, 1), "all others' writes are needed, too");
}

/// A node that publishes a commit while a session begins its next statement.
struct Late {
    /// The store that sessions read.
    memory: MemoryEngine,
    /// Another copy, with all commits.
    ahead: MemoryEngine,
    /// The commits that the store lacks, and how often a session asks for the store before they
    /// are published.
    missing: Mutex<(Vec<(Program, Isolation)>, usize)>,
}

impl Late {
    fn publish(&self) {
        let missing = std::mem::take(&mut self.missing.lock().unwrap().0);
        for (program, isolation) in missing {
            ready(self.memory.commit(program, isolation)).unwrap();
        }
    }
}

#[async_trait::async_trait]
impl Engine for Late {
    fn store(&self) -> &Arc<Store> {
        let is_due = {
            let left = &mut self.missing.lock().unwrap().1;
            let is_due = *left == 0;
            *left = left.saturating_sub(1);
            is_due
        };
        if is_due {
            self.publish();
        }
        self.memory.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.memory.registry()
    }

    fn topology(&self) -> &Topology {
        self.memory.topology()
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        self.missing.lock().unwrap().0.push((program.clone(), isolation));
        self.ahead.commit(program, isolation).await
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.publish();
        self.memory.fresh().await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.memory.status().await
    }
}

/// Story: a SELECT missed the row that its session had just inserted. Its snapshot was pinned
/// before the row was published, and the version was compared after that.
#[test]
fn a_read_of_own_writes_that_are_published_meanwhile_finds_them() {
    for asked in 0..12 {
        let engine = Arc::new(Late {
            memory: MemoryEngine::new(),
            ahead: MemoryEngine::new(),
            missing: Mutex::default(),
        });
        let shared = Arc::new(Shared::default());
        let mut session = Session::new(engine.clone(), shared, &BTreeMap::new()).unwrap();
        ready(session.simple_query("create table t (a int primary key)"));
        engine.publish();
        engine.missing.lock().unwrap().1 = usize::MAX;
        ready(session.simple_query("insert into t values (1)"));
        engine.missing.lock().unwrap().1 = asked;
        let found = ready(session.simple_query("select a from t"));
        let [Response::Rows { rows, .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(rows.len(), 1, "published when the store was asked for {asked} times");
    }
}

/// The engine of this test does not know how old its snapshot is.
#[test]
fn a_bounded_read_waits_unless_the_snapshot_is_known_to_be_young_enough() {
    let engine = MemoryEngine::new();
    let plans = Arc::new(Shared::default());
    let mut session = Session::new(Arc::new(engine.clone()), plans, &BTreeMap::new()).unwrap();
    let mut waits = |sql: &str| waits(&engine, &mut session, sql);
    assert_eq!(waits("create table t (a int primary key)"), 0);
    assert_eq!(waits("set max_staleness = '200ms'"), 0);
    assert_eq!(waits("select * from t"), 1);
    assert_eq!(waits("insert into t values (1)"), 0, "it reads at its place in the order");
    assert_eq!(waits("reset max_staleness"), 0);
    assert_eq!(waits("select * from t"), 0);
}

#[test]
fn a_strict_call_of_a_program_that_only_reads_waits_too() {
    let programs: Vec<Arc<Native>> = procedures().into_iter().map(Native::program).collect();
    let engine = MemoryEngine::with_procedures(procedures());
    let shared = Arc::new(Shared::default().with_procedures(&programs));
    let mut session = Session::new(Arc::new(engine.clone()), shared, &BTreeMap::new()).unwrap();
    let mut waits = |sql: &str| waits(&engine, &mut session, sql);
    let bank = Workload::named("bank", &Settings::default()).unwrap();
    let load = bank.load_calls().swap_remove(0);
    let hex: String = load.args.iter().map(|byte| format!("{byte:02x}")).collect();
    let load = format!("call pangea.{}('\\x{hex}')", load.procedure);
    assert_eq!(waits(&load), 0);
    assert_eq!(waits("call pangea.bank_audit('')"), 0);
    assert_eq!(waits("set reads = strict"), 0);
    assert_eq!(waits("call pangea.bank_audit('')"), 1, "it would run on a snapshot");
    assert_eq!(waits(&load), 0, "it runs at its place in the order");
}

#[test]
fn what_is_set_for_a_transaction_is_a_warning_where_none_is_open() {
    let (engine, plans) = (MemoryEngine::new(), Arc::new(Shared::default()));
    let mut session = Session::new(Arc::new(engine), plans, &BTreeMap::new()).unwrap();
    let mut warnings = |sql: &str| {
        let responses = ready(session.simple_query(sql));
        assert!(!matches!(responses.last(), Some(Response::Error(_))), "{responses:?}");
        let notices = session
            .take_notices()
            .into_iter()
            .filter(|notice| notice.severity == Severity::Warning);
        notices.map(|notice| notice.code.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(warnings("set transaction isolation level serializable"), ["25P01"]);
    assert_eq!(warnings("set transaction read only"), ["25P01"]);
    assert!(warnings("begin").is_empty());
    assert!(warnings("set transaction isolation level serializable").is_empty());
    assert!(warnings("commit").is_empty());
    let lasting = "set session characteristics as transaction isolation level serializable";
    assert!(warnings(lasting).is_empty());
}
