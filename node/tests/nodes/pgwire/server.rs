//! The server of these tests, in front of an in-memory engine whose cluster can be cut off.

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pangea_core::guarantee::Isolation;
use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_node::pgwire::serve;
use pangea_sql::engine::{Engine, Unavailable};
use pangea_sql::memory::MemoryEngine;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_postgres::error::Error;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Connection, NoTls, Socket};

/// Far longer than any test takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// After this, a read of the table `r` waits for the cluster.
pub const STRICT: &str = "create table r (id int primary key); set reads = strict";

/// A running server, which must be stopped explicitly.
pub struct Server {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub async fn start(engine: impl Engine) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(serve(listener, Arc::new(engine), async {
            let _ = stopped.await;
        }));
        Self { address, stop, task }
    }

    /// Stops the server, and waits for it.
    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

/// A single-threaded runtime, for tests that depend on order.
pub fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn in_time(test: impl Future<Output = ()>) {
    tokio::time::timeout(DEADLINE, test).await.expect("no wait is endless");
}

/// Runs a test against a server, and checks that the server stops on request.
pub fn with_server<F: Future<Output = ()>>(test: impl FnOnce(SocketAddr, MemoryEngine) -> F) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = MemoryEngine::new();
        let server = Server::start(engine.clone()).await;
        in_time(test(server.address, engine)).await;
        server.stop().await;
    });
}

/// A client, and its connection, which the caller must drive.
pub async fn connection(address: SocketAddr) -> (Client, Connection<Socket, NoTlsStream>) {
    let config = format!("host={} port={} user=me dbname=db", address.ip(), address.port());
    tokio_postgres::connect(&config, NoTls).await.unwrap()
}

pub async fn connect(address: SocketAddr) -> Client {
    let (client, connection) = connection(address).await;
    tokio::spawn(connection);
    client
}

/// An engine that does not answer while its cluster is cut off, and counts the waiting requests.
#[derive(Clone)]
struct CutOff {
    engine: MemoryEngine,
    is_cut: watch::Receiver<bool>,
    waiting: Arc<watch::Sender<usize>>,
}

/// A guard that counts one waiting request.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl CutOff {
    async fn answer<T>(&self, answer: impl Future<Output = T>) -> T {
        if *self.is_cut.borrow() {
            self.waiting.send_modify(|count| *count += 1);
            let _waiting = Waiting(&self.waiting);
            pending::<()>().await;
        }
        answer.await
    }
}

#[async_trait::async_trait]
impl Engine for CutOff {
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
        self.answer(self.engine.commit(program, isolation)).await
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.answer(self.engine.fresh()).await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.answer(self.engine.status()).await
    }

    fn cut_off(&self) -> Option<String> {
        self.is_cut.borrow().then(|| "no node is reachable".to_owned())
    }
}

/// A server whose cluster can be cut off.
pub struct Cluster {
    pub address: SocketAddr,
    is_cut: watch::Sender<bool>,
    /// The number of statements that wait for the cluster.
    pub waiting: watch::Receiver<usize>,
}

impl Cluster {
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    pub fn heal(&self) {
        self.is_cut.send_replace(false);
    }

    /// Runs a statement that can't be answered, and cancels it once it waits.
    pub async fn cancelled(&mut self, client: &Client, statement: &str) -> Error {
        self.cut();
        let cancel = async {
            self.waiting.wait_for(|&count| count == 1).await.unwrap();
            client.cancel_token().cancel_query(NoTls).await.unwrap();
        };
        let (result, ()) = tokio::join!(client.batch_execute(statement), cancel);
        self.heal();
        result.unwrap_err()
    }

    /// Runs a statement that can't be answered, until it times out.
    pub async fn given_up(&self, client: &Client, statement: &str) -> Error {
        self.cut();
        let error = client.batch_execute(statement).await.unwrap_err();
        self.heal();
        error
    }
}

/// Starts a cluster and its server.
pub async fn start_cluster() -> (Cluster, Server) {
    let (is_cut, cut) = watch::channel(false);
    let (waits, waiting) = watch::channel(0);
    let engine = CutOff { engine: MemoryEngine::new(), is_cut: cut, waiting: Arc::new(waits) };
    let server = Server::start(engine).await;
    (Cluster { address: server.address, is_cut, waiting }, server)
}

pub fn with_cluster<F: Future<Output = ()>>(test: impl FnOnce(Cluster) -> F) {
    one_thread().block_on(async {
        let (cluster, server) = start_cluster().await;
        in_time(test(cluster)).await;
        server.stop().await;
    });
}
