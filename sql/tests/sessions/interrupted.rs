//! Statements whose time is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use pangea_core::guarantee::Isolation;
use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_sql::Shared;
use pangea_sql::engine::{Engine, Interruption, Unavailable};
use pangea_sql::error::SqlError;
use pangea_sql::memory::MemoryEngine;
use pangea_sql::session::{Execution, Session};

use crate::ready;

/// A node that answers each commit when the time of its statement is just over.
struct Late {
    engine: MemoryEngine,
    is_over: AtomicBool,
}

#[async_trait]
impl Engine for Late {
    fn store(&self) -> &Arc<Store> {
        self.engine.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.engine.registry()
    }

    fn topology(&self) -> &Topology {
        self.engine.topology()
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        let outcome = self.engine.commit(program, isolation).await;
        self.is_over.store(true, Ordering::Relaxed);
        outcome
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.engine.fresh().await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.engine.status().await
    }

    fn begin_statement(&self, _: Option<std::time::Duration>) {
        self.is_over.store(false, Ordering::Relaxed);
    }

    fn interruption(&self) -> Option<Interruption> {
        self.is_over.load(Ordering::Relaxed).then_some(Interruption::TimedOut)
    }
}

/// Runs a statement by the extended protocol.
fn execute(session: &mut Session, sql: &str) -> Result<Execution, SqlError> {
    ready(session.parse("", sql, &[]))?;
    session.bind("", "", &[], &[], &[])?;
    let done = ready(session.execute("", 0, true));
    ready(session.sync())?;
    done
}

/// Story: a write committed when its time was just over. Its client was told that it was cancelled
/// (57014), which means that it has no effect.
#[test]
fn a_write_that_has_committed_is_not_cancelled() {
    let engine = Late { engine: MemoryEngine::new(), is_over: AtomicBool::new(false) };
    let (engine, shared) = (Arc::new(engine), Arc::new(Shared::default()));
    let session = &mut Session::new(engine, shared, &BTreeMap::new()).unwrap();
    execute(session, "create table t (id int primary key, n int)").unwrap();
    for (sql, says) in [
        ("insert into t values (1, 1)", "INSERT 0 1"),
        ("update t set n = n + 1 where id = 1 returning n", "UPDATE 1"),
        ("begin", "BEGIN"),
        ("update t set n = n + 1 where id = 1", "UPDATE 1"),
        ("commit", "COMMIT"),
    ] {
        match execute(session, sql) {
            Ok(Execution::Complete { tag, .. }) => assert_eq!(tag, says, "{sql}"),
            other => panic!("{sql}: {other:?}"),
        }
    }
}
