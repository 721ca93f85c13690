//! The ways in: how a client's call reaches a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pangea_core::hash::HashMap;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::txn::{Abort, Outcome, SqlState};
use pangea_node::client::{Client, ClientError};
use tokio::sync::Mutex;
use tokio_postgres::{NoTls, Statement};

use crate::failure::Failure;
use crate::script;

/// The SQLSTATE of a transaction of which nobody knows whether it has committed.
const UNKNOWN: &str = "08007";

/// A way to one node.
#[derive(Clone)]
pub enum Connection {
    /// Of ours: any number of calls at a time.
    Native(Client),
    /// Of PostgreSQL's protocol: one call after the other.
    Postgres(Arc<Session>),
    /// With another database: one call after the other.
    Peer(Arc<PeerSession>),
    /// Of a user's own workload: one call after the other.
    Script(Arc<script::Session>),
}

/// A session with another database.
pub struct PeerSession {
    session: Mutex<pangea_peers::Session>,
    is_lost: AtomicBool,
}

impl PeerSession {
    /// A session that was just opened.
    pub fn new(session: pangea_peers::Session) -> Self {
        Self { session: Mutex::new(session), is_lost: AtomicBool::new(false) }
    }

    async fn call(&self, procedure: &str, args: &[u8]) -> Result<Outcome, ClientError> {
        let mut session = self.session.lock().await;
        if !session.is_connected() {
            return Err(ClientError::NotSent("the session is lost".to_owned()));
        }
        let outcome = session.call(procedure, args).await;
        self.is_lost.store(!session.is_connected(), Ordering::Relaxed);
        outcome.map_err(|lost| ClientError::Ambiguous(lost.to_string()))
    }
}

/// A session of PostgreSQL's protocol, with a statement prepared for each procedure.
pub struct Session {
    client: tokio_postgres::Client,
    region: String,
    calls: HashMap<&'static str, Statement>,
}

impl Session {
    /// Connects to a node, and prepares `CALL pangea.PROCEDURE($1)` for each.
    ///
    /// # Errors
    /// When it can't be reached, or does not know one of them.
    pub async fn open(
        config: &tokio_postgres::Config,
        region: &str,
        procedures: &[&'static str],
    ) -> Result<Arc<Self>, Failure> {
        let cant = |error| Failure::failed(format!("PostgreSQL's protocol, in {region}"), error);
        let (client, connection) = config.connect(NoTls).await.map_err(cant)?;
        // It ends with its client, and its error is that of the calls.
        drop(tokio::spawn(connection));
        let mut calls = HashMap::default();
        for procedure in procedures {
            let text = format!("CALL pangea.{procedure}($1)");
            calls.insert(*procedure, client.prepare(&text).await.map_err(cant)?);
        }
        Ok(Arc::new(Self { client, region: region.to_owned(), calls }))
    }

    async fn call(&self, procedure: &str, args: &[u8]) -> Result<Outcome, ClientError> {
        let refused = || ClientError::Refused(format!("{procedure} was not prepared"));
        let statement = self.calls.get(procedure).ok_or_else(refused)?;
        let error = match self.client.query_one(statement, &[&args]).await {
            Ok(row) => {
                let (txn, version) = (TxnId::default(), SnapshotVersion(0));
                return Ok(Outcome::Committed { txn, version, result: row.get(0) });
            }
            Err(error) => error,
        };
        match error.as_db_error() {
            Some(known) if known.code().code() != UNKNOWN => {
                let code = known.code().code().as_bytes().try_into();
                let code = code.map_or(SqlState::INTERNAL_ERROR, SqlState);
                Ok(Outcome::Aborted(Abort::new(code, known.message())))
            }
            _ => Err(ClientError::Ambiguous(format!("{}: {error}", self.region))),
        }
    }
}

impl Connection {
    /// Makes a call and waits for its outcome.
    ///
    /// # Errors
    /// When there is none.
    pub async fn call(&self, procedure: &str, args: &Bytes) -> Result<Outcome, ClientError> {
        match self {
            Self::Native(client) => client.call(procedure, args).await,
            Self::Postgres(session) => session.call(procedure, args).await,
            Self::Peer(session) => session.call(procedure, args).await,
            Self::Script(session) => session.call(procedure, args).await,
        }
    }

    /// Whether it is there now.
    pub fn is_connected(&self) -> bool {
        match self {
            Self::Native(client) => client.is_connected(),
            Self::Postgres(session) => !session.client.is_closed(),
            Self::Peer(session) => !session.is_lost.load(Ordering::Relaxed),
            Self::Script(session) => session.is_connected(),
        }
    }

    /// Waits until it is back, for so long at most. A session that is lost stays lost, but for that
    /// of a user's own workload, which the next call opens again.
    pub async fn back(&self, at_most: Duration) {
        match self {
            Self::Native(client) => drop(tokio::time::timeout(at_most, client.connected()).await),
            Self::Postgres(_) | Self::Peer(_) | Self::Script(_) => {
                tokio::time::sleep(at_most).await;
            }
        }
    }
}
