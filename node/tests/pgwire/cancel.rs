//! Requests to cancel, against an engine whose cluster does not answer.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::Arc;

use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_node::pgwire::serve;
use pangea_sql::engine::{Engine, Unavailable};
use pangea_sql::memory::MemoryEngine;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio_postgres::error::{Error, SqlState};
use tokio_postgres::{Client, NoTls};

use super::connect;

/// An engine that never answers while its cluster is cut off, and says when somebody waits.
#[derive(Clone)]
struct CutOff {
    engine: MemoryEngine,
    is_cut: watch::Receiver<bool>,
    waiting: Arc<watch::Sender<u64>>,
}

impl CutOff {
    async fn answer<T>(&self, answer: impl Future<Output = T>) -> T {
        if *self.is_cut.borrow() {
            self.waiting.send_modify(|count| *count += 1);
            pending::<()>().await;
        }
        answer.await
    }
}

impl Engine for CutOff {
    type Header = <MemoryEngine as Engine>::Header;

    fn store(&self) -> &Arc<Store<Self::Header>> {
        self.engine.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.engine.registry()
    }

    fn topology(&self) -> &Topology {
        self.engine.topology()
    }

    fn commit(
        &self,
        program: Program,
    ) -> impl Future<Output = Result<Outcome, Unavailable>> + Send {
        self.answer(self.engine.commit(program))
    }

    fn fresh(&self) -> impl Future<Output = Result<SnapshotVersion, Unavailable>> + Send {
        self.answer(self.engine.fresh())
    }

    fn status(&self) -> impl Future<Output = Result<Status, Unavailable>> + Send {
        self.answer(self.engine.status())
    }
}

struct Cluster {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
    waiting: watch::Receiver<u64>,
}

impl Cluster {
    /// Runs a statement that can't be answered, and cancels it once it waits.
    async fn cancelled(&mut self, client: &Client, statement: &str) -> Error {
        self.is_cut.send_replace(true);
        self.waiting.mark_unchanged();
        let cancel = async {
            self.waiting.changed().await.unwrap();
            client.cancel_token().cancel_query(NoTls).await.unwrap();
        };
        let (result, ()) = tokio::join!(client.batch_execute(statement), cancel);
        self.is_cut.send_replace(false);
        result.unwrap_err()
    }
}

fn with_cluster<F: Future<Output = ()>>(test: impl FnOnce(Cluster) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_cut, cut) = watch::channel(false);
        let (waits, waiting) = watch::channel(0);
        let engine = CutOff { engine: MemoryEngine::new(), is_cut: cut, waiting: Arc::new(waits) };
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, engine, async {
            let _ = stopped.await;
        }));
        test(Cluster { address, is_cut, waiting }).await;
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    });
}

#[test]
fn a_read_that_waits_for_the_cluster_is_cancelled_and_the_session_goes_on() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute("set reads = strict").await.unwrap();
        let error = cluster.cancelled(&client, "select 1").await;
        assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        // The request was for that statement, and not for the next one.
        assert_eq!(client.query("select 1", &[]).await.unwrap().len(), 1);
    });
}

#[test]
fn a_read_that_is_cancelled_in_a_transaction_fails_the_transaction() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute("set reads = strict; begin").await.unwrap();
        let error = cluster.cancelled(&client, "select 1").await;
        assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        let error = client.batch_execute("select 1").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
        client.batch_execute("rollback; select 1").await.unwrap();
    });
}

#[test]
fn a_write_whose_wait_is_cancelled_may_have_committed() {
    with_cluster(|mut cluster| async move {
        let client = connect(cluster.address).await;
        client.batch_execute("create table t (id int primary key)").await.unwrap();
        let error = cluster.cancelled(&client, "insert into t values (1)").await;
        assert_eq!(error.code(), Some(&SqlState::TRANSACTION_RESOLUTION_UNKNOWN));
        client.batch_execute("begin; insert into t values (2)").await.unwrap();
        let error = cluster.cancelled(&client, "commit").await;
        assert_eq!(error.code(), Some(&SqlState::TRANSACTION_RESOLUTION_UNKNOWN));
        client.batch_execute("insert into t values (3)").await.unwrap();
    });
}
