//! The warning about an acknowledged commit that is lost, on the connection of its client.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use pangea_core::guarantee::Isolation;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_sql::engine::{Engine, Unavailable};
use pangea_sql::losses::Losses;
use pangea_sql::memory::MemoryEngine;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client};

use super::server::{Server, connection, one_thread};

/// A node that loses commits when it is told to.
#[derive(Clone)]
struct Unreliable {
    engine: MemoryEngine,
    losses: Arc<Losses>,
    last: Arc<Mutex<TxnId>>,
}

impl Unreliable {
    fn lose_last(&self, is_certain: bool) {
        self.losses.report(*self.last.lock().unwrap(), is_certain);
    }
}

#[async_trait::async_trait]
impl Engine for Unreliable {
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
        let outcome = self.engine.commit(program, isolation).await?;
        if let Outcome::Committed { txn, version, .. } = &outcome {
            self.losses.publish_early(*version);
            *self.last.lock().unwrap() = *txn;
        }
        Ok(outcome)
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.engine.fresh().await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.engine.status().await
    }

    fn losses(&self) -> Option<&Losses> {
        Some(&self.losses)
    }
}

/// A client, and the notices that it gets.
async fn connect(address: SocketAddr) -> (Client, UnboundedReceiver<DbError>) {
    let (client, mut connection) = connection(address).await;
    let (sender, notices) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let Ok(AsyncMessage::Notice(notice)) = message {
                sender.send(notice).unwrap();
            }
        }
    });
    (client, notices)
}

#[test]
fn a_client_is_warned_of_its_own_commit_that_is_lost_and_no_other_client_is() {
    let engine =
        Unreliable { engine: MemoryEngine::new(), losses: Arc::default(), last: Arc::default() };
    one_thread().block_on(async {
        let server = Server::start(engine.clone()).await;
        let (one, mut of_one) = connect(server.address).await;
        let (other, mut of_other) = connect(server.address).await;
        one.batch_execute("create table t (id int primary key)").await.unwrap();
        other.batch_execute("insert into t values (1)").await.unwrap();
        one.batch_execute("insert into t values (2)").await.unwrap();
        engine.lose_last(true);
        other.batch_execute("select 1").await.unwrap();
        assert!(of_other.try_recv().is_err(), "its commit is there");
        assert!(of_one.try_recv().is_err(), "it has run no statement since");
        one.query("select 1", &[]).await.unwrap();
        let warning = of_one.try_recv().unwrap();
        assert_eq!((warning.severity(), warning.code().code()), ("WARNING", "01000"));
        let message = "1 commit of this session is lost, although acknowledged";
        assert_eq!(warning.message(), message);
        assert!(warning.detail().unwrap().contains("in snapshot version "));
        one.batch_execute("begin; insert into t values (3); commit").await.unwrap();
        assert!(of_one.try_recv().is_err(), "it is told once");
        engine.lose_last(false);
        one.batch_execute("select 1").await.unwrap();
        assert!(of_one.try_recv().unwrap().message().contains("1 commit of this session may be"));
        drop((one, other));
        server.stop().await;
    });
}
