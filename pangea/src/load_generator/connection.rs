//! Connections: how a client's call reaches a node, or a server of another database.
//!
//! A native connection carries any number of concurrent calls and reconnects automatically. All
//! others are sessions of a single client. If a session is lost, for example because its server is
//! killed, its client opens it again, as applications do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pangea_core::hash::HashMap;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::txn::{Abort, Outcome, SqlState};
use pangea_node::client::{Client, ClientError};
use pangea_node::running::Requests;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::{NoTls, Statement};

use super::in_process;
use crate::failure::Failure;
use crate::script::{self, Script};

/// The SQLSTATE of a transaction whose outcome is unknown.
const UNKNOWN: &str = "08007";
/// The delay before a client reopens a lost session: its server may be down for long, and many
/// clients that retry constantly would take CPU time from the others.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);
/// The time limit for opening a session, which takes several WAN round trips.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);
/// The additional time limit for each statement that is prepared.
const PREPARE_DEADLINE: Duration = Duration::from_millis(500);
/// The number of a region's sessions that are opened concurrently: over a WAN, opening them one by
/// one would take minutes, and opening all at once would overload the servers.
const OPENING_MAX: usize = 64;

/// A connection to one node.
#[derive(Clone)]
pub enum Connection {
    /// A native connection: any number of concurrent calls.
    Native(Client),
    /// A session of one client: one call at a time.
    Session(Arc<Session>),
    /// Direct calls to a node of this process: any number of concurrent calls.
    InProcess(Arc<dyn Requests>),
}

/// The parameters for opening a session.
#[derive(Clone)]
pub enum AccessPoint {
    /// PostgreSQL's protocol, to a Pangea node.
    Postgres {
        /// The address of the node.
        config: Box<tokio_postgres::Config>,
        /// The node's region.
        region: String,
        /// The procedures that will be called.
        procedures: Vec<&'static str>,
    },
    /// Another database.
    Baseline(pangea_baselines::Access),
    /// PostgreSQL's protocol, for a user's own workload.
    Script {
        /// The workload.
        script: Arc<Script>,
        /// The address of the server.
        config: Box<tokio_postgres::Config>,
        /// The client that the session belongs to.
        identity: script::ClientIdentity,
        /// The counter of the session's retries.
        retries: Arc<script::Retries>,
    },
}

/// A session of one client, which can be lost and reopened.
pub struct Session {
    access_point: AccessPoint,
    open: StdMutex<Option<Open>>,
    /// Held while the session is opened, so that only one of its callers opens it.
    opening: Mutex<()>,
}

/// An open session.
#[derive(Clone)]
enum Open {
    Postgres(Arc<Prepared>),
    Baseline(Arc<BaselineSession>),
    Script(Arc<script::Session>),
}

/// A session of PostgreSQL's protocol, with a prepared statement for each procedure.
struct Prepared {
    client: tokio_postgres::Client,
    region: String,
    calls: HashMap<&'static str, Statement>,
}

/// A session with another database.
struct BaselineSession {
    session: Mutex<pangea_baselines::Session>,
    is_lost: AtomicBool,
}

impl BaselineSession {
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

impl Prepared {
    /// Connects to a node and prepares `CALL pangea.PROCEDURE($1)` for each procedure.
    async fn open(
        config: &tokio_postgres::Config,
        region: &str,
        procedures: &[&'static str],
    ) -> Result<Self, Failure> {
        let cant =
            |error| Failure::failed(format!("can't open a PostgreSQL session in {region}"), error);
        let (client, connection) = config.connect(NoTls).await.map_err(cant)?;
        // The task ends with its client, and its error is reported by the calls.
        drop(tokio::spawn(connection));
        let mut calls = HashMap::default();
        for procedure in procedures {
            let text = format!("CALL pangea.{procedure}($1)");
            calls.insert(*procedure, client.prepare(&text).await.map_err(cant)?);
        }
        Ok(Self { client, region: region.to_owned(), calls })
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

impl AccessPoint {
    async fn open(&self) -> Result<Open, Failure> {
        Ok(match self {
            Self::Postgres { config, region, procedures } => {
                Open::Postgres(Arc::new(Prepared::open(config, region, procedures).await?))
            }
            Self::Baseline(access) => {
                let (session, is_lost) = (Mutex::new(access.open().await?), AtomicBool::new(false));
                Open::Baseline(Arc::new(BaselineSession { session, is_lost }))
            }
            Self::Script { script, config, identity, retries } => {
                let session = script::Session::open(script, config, identity, retries).await?;
                Open::Script(Arc::new(session))
            }
        })
    }

    /// Returns the time limit for reopening a lost session.
    fn deadline(&self) -> Duration {
        match self {
            Self::Postgres { .. } | Self::Baseline(_) => OPEN_DEADLINE,
            Self::Script { script, .. } => OPEN_DEADLINE + PREPARE_DEADLINE * script.statements(),
        }
    }
}

impl Open {
    fn is_lost(&self) -> bool {
        match self {
            Self::Postgres(session) => session.client.is_closed(),
            Self::Baseline(session) => session.is_lost.load(Ordering::Relaxed),
            Self::Script(session) => session.is_lost(),
        }
    }
}

impl Session {
    /// Opens a session. Its socket belongs to the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the server cannot be reached or does not know a procedure.
    pub async fn open(access_point: AccessPoint) -> Result<Arc<Self>, Failure> {
        let open = StdMutex::new(Some(access_point.open().await?));
        Ok(Arc::new(Self { access_point, open, opening: Mutex::new(()) }))
    }

    /// Returns the open session, unless it is lost.
    fn current(&self) -> Option<Open> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().filter(|open| !open.is_lost())
    }

    async fn call(&self, procedure: &str, args: &[u8]) -> Result<Outcome, ClientError> {
        match self.current() {
            Some(Open::Postgres(session)) => session.call(procedure, args).await,
            Some(Open::Baseline(session)) => session.call(procedure, args).await,
            Some(Open::Script(session)) => session.call(procedure, args).await,
            None => Err(ClientError::NotSent("the session is lost".to_owned())),
        }
    }

    /// Reopens the session if it is lost. The next call shows whether that succeeded.
    async fn reopen(&self) {
        let _one = self.opening.lock().await;
        if self.current().is_some() {
            return;
        }
        if let Ok(Ok(open)) =
            tokio::time::timeout(self.access_point.deadline(), self.access_point.open()).await
        {
            *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
        }
    }
}

impl Connection {
    /// Makes a call and waits for its outcome.
    ///
    /// # Errors
    /// If the outcome is not known.
    pub async fn call(&self, procedure: &str, args: &Bytes) -> Result<Outcome, ClientError> {
        match self {
            Self::Native(client) => client.call(procedure, args).await,
            Self::Session(session) => session.call(procedure, args).await,
            Self::InProcess(node) => in_process::call(&**node, procedure, args).await,
        }
    }

    /// Returns whether the connection is currently usable.
    pub fn is_connected(&self) -> bool {
        match self {
            Self::Native(client) => client.is_connected(),
            Self::Session(session) => session.current().is_some(),
            Self::InProcess(node) => node.is_running(),
        }
    }

    /// Waits at most this time until the connection is usable again. A lost session is reopened.
    pub async fn back(&self, at_most: Duration) {
        match self {
            Self::Native(client) => drop(tokio::time::timeout(at_most, client.connected()).await),
            Self::InProcess(_) => tokio::time::sleep(at_most).await,
            Self::Session(session) => {
                tokio::time::sleep(REOPEN_PAUSE).await;
                session.reopen().await;
            }
        }
    }
}

/// Opens a session for each client. Clients are assigned to their home regions round robin, and
/// each region has at least one session. Each session is opened on its region's runtime.
///
/// # Errors
/// If a session cannot be opened.
pub async fn sessions(
    access_points: Vec<AccessPoint>,
    runtimes: &[Handle],
    clients: u32,
    homes: Option<&[usize]>,
) -> Result<Vec<Vec<Connection>>, Failure> {
    let regions = access_points.len();
    let homes = homes.map_or_else(|| (0..regions).collect(), <[usize]>::to_vec);
    assert_eq!(regions, runtimes.len(), "a runtime for each region");
    let mut opening = JoinSet::new();
    for (region, access_point) in access_points.into_iter().enumerate() {
        let count = match homes.iter().position(|home| *home == region) {
            Some(place) => (clients as usize + homes.len() - 1 - place) / homes.len(),
            None => 0,
        };
        let opened = async move { (region, of_region(access_point, count.max(1)).await) };
        opening.spawn_on(opened, &runtimes[region]);
    }
    let mut all = vec![Vec::new(); regions];
    while let Some(opened) = opening.join_next().await {
        let (region, connections) = opened.expect("opening sessions does not panic");
        all[region] = connections?;
    }
    Ok(all)
}

async fn of_region(access_point: AccessPoint, count: usize) -> Result<Vec<Connection>, Failure> {
    let mut opening = JoinSet::new();
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        if opening.len() >= OPENING_MAX {
            all.extend(next(&mut opening).await?);
        }
        opening.spawn(Session::open(access_point.clone()));
    }
    while let Some(connection) = next(&mut opening).await? {
        all.push(connection);
    }
    Ok(all)
}

async fn next(
    opening: &mut JoinSet<Result<Arc<Session>, Failure>>,
) -> Result<Option<Connection>, Failure> {
    let opened = opening.join_next().await;
    let opened = opened.map(|it| it.expect("opening a session does not panic")).transpose()?;
    Ok(opened.map(Connection::Session))
}
