//! The ways in: how a client's call reaches a node, or a server of another database.
//!
//! A connection of ours carries any number of calls, and comes back by itself. Any other is a
//! session that one client has for itself. One that is lost, as when its server is killed, is
//! opened again by its client, as applications do it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pangea_core::hash::HashMap;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::txn::{Abort, Outcome, SqlState};
use pangea_node::client::{Client, ClientError};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::{NoTls, Statement};

use super::within::{self, Within};
use crate::failure::Failure;
use crate::script::{self, Script};

/// The SQLSTATE of a transaction of which nobody knows whether it has committed.
const UNKNOWN: &str = "08007";
/// How long a client waits before it opens a session that is lost: its server may be down for long,
/// and many clients that ask all the time would take the processor from those that work.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);
/// How long opening a session may take, with a round trip of the wide area for each of its steps.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);
/// How much more it may take for each statement that is prepared.
const PREPARE_DEADLINE: Duration = Duration::from_millis(500);
/// Sessions of a region that are opened at a time: over a wide area one after the other would take
/// minutes, and all at once more than servers like.
const OPENING_MAX: usize = 64;

/// A way to one node.
#[derive(Clone)]
pub enum Connection {
    /// Of ours: any number of calls at a time.
    Native(Client),
    /// A session of one client: one call after the other.
    Session(Arc<Session>),
    /// To a node of this process, without a connection: any number of calls at a time.
    Within(Arc<dyn Within>),
}

/// What a session is opened by.
#[derive(Clone)]
pub enum Door {
    /// PostgreSQL's protocol, to a node of ours.
    Postgres {
        /// Where the node is.
        config: Box<tokio_postgres::Config>,
        /// The node's region.
        region: String,
        /// What is called there.
        procedures: Vec<&'static str>,
    },
    /// Another database.
    Peer(pangea_peers::Access),
    /// PostgreSQL's protocol, for a user's own workload.
    Script {
        /// The workload.
        script: Arc<Script>,
        /// Where the server is.
        config: Box<tokio_postgres::Config>,
        /// Whose session it is.
        seat: script::Seat,
        /// Where it counts what it does again.
        retries: Arc<script::Retries>,
    },
}

/// A session of one client, which can be lost and opened again.
pub struct Session {
    door: Door,
    open: StdMutex<Option<Open>>,
    /// Held while it is opened: one of its callers does that.
    opening: Mutex<()>,
}

/// A session that was opened.
#[derive(Clone)]
enum Open {
    Postgres(Arc<Prepared>),
    Peer(Arc<PeerSession>),
    Script(Arc<script::Session>),
}

/// A session of PostgreSQL's protocol, with a statement prepared for each procedure.
struct Prepared {
    client: tokio_postgres::Client,
    region: String,
    calls: HashMap<&'static str, Statement>,
}

/// A session with another database.
struct PeerSession {
    session: Mutex<pangea_peers::Session>,
    is_lost: AtomicBool,
}

impl PeerSession {
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
    /// Connects to a node, and prepares `CALL pangea.PROCEDURE($1)` for each.
    async fn open(
        config: &tokio_postgres::Config,
        region: &str,
        procedures: &[&'static str],
    ) -> Result<Self, Failure> {
        let cant = |error| Failure::failed(format!("PostgreSQL's protocol, in {region}"), error);
        let (client, connection) = config.connect(NoTls).await.map_err(cant)?;
        // It ends with its client, and its error is that of the calls.
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

impl Door {
    async fn open(&self) -> Result<Open, Failure> {
        Ok(match self {
            Self::Postgres { config, region, procedures } => {
                Open::Postgres(Arc::new(Prepared::open(config, region, procedures).await?))
            }
            Self::Peer(access) => {
                let (session, is_lost) = (Mutex::new(access.open().await?), AtomicBool::new(false));
                Open::Peer(Arc::new(PeerSession { session, is_lost }))
            }
            Self::Script { script, config, seat, retries } => {
                let session = script::Session::open(script, config, seat, retries).await?;
                Open::Script(Arc::new(session))
            }
        })
    }

    /// How long that may take when a session was lost.
    fn deadline(&self) -> Duration {
        match self {
            Self::Postgres { .. } | Self::Peer(_) => OPEN_DEADLINE,
            Self::Script { script, .. } => OPEN_DEADLINE + PREPARE_DEADLINE * script.statements(),
        }
    }
}

impl Open {
    fn is_lost(&self) -> bool {
        match self {
            Self::Postgres(session) => session.client.is_closed(),
            Self::Peer(session) => session.is_lost.load(Ordering::Relaxed),
            Self::Script(session) => session.is_lost(),
        }
    }
}

impl Session {
    /// Opens a session. It is the calling thread's: its socket is of that network namespace.
    ///
    /// # Errors
    /// When the server can't be reached, or does not know what is to be called.
    pub async fn open(door: Door) -> Result<Arc<Self>, Failure> {
        let open = StdMutex::new(Some(door.open().await?));
        Ok(Arc::new(Self { door, open, opening: Mutex::new(()) }))
    }

    /// The session that is open, unless it is lost.
    fn current(&self) -> Option<Open> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().filter(|open| !open.is_lost())
    }

    async fn call(&self, procedure: &str, args: &[u8]) -> Result<Outcome, ClientError> {
        match self.current() {
            Some(Open::Postgres(session)) => session.call(procedure, args).await,
            Some(Open::Peer(session)) => session.call(procedure, args).await,
            Some(Open::Script(session)) => session.call(procedure, args).await,
            None => Err(ClientError::NotSent("the session is lost".to_owned())),
        }
    }

    /// Opens it again where it is lost. Whether that went well is seen by the next call.
    async fn reopen(&self) {
        let _one = self.opening.lock().await;
        if self.current().is_some() {
            return;
        }
        if let Ok(Ok(open)) = tokio::time::timeout(self.door.deadline(), self.door.open()).await {
            *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
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
            Self::Session(session) => session.call(procedure, args).await,
            Self::Within(node) => within::call(&**node, procedure, args).await,
        }
    }

    /// Whether it is there now.
    pub fn is_connected(&self) -> bool {
        match self {
            Self::Native(client) => client.is_connected(),
            Self::Session(session) => session.current().is_some(),
            Self::Within(node) => node.is_running(),
        }
    }

    /// Waits until it is back, for so long at most; a session is opened again.
    pub async fn back(&self, at_most: Duration) {
        match self {
            Self::Native(client) => drop(tokio::time::timeout(at_most, client.connected()).await),
            Self::Within(_) => tokio::time::sleep(at_most).await,
            Self::Session(session) => {
                tokio::time::sleep(REOPEN_PAUSE).await;
                session.reopen().await;
            }
        }
    }
}

/// Opens a session for each of so many clients, which are dealt over the regions in turn; each
/// region has one at least. Each is opened by its region's runtime.
///
/// # Errors
/// When one can't be opened.
pub async fn sessions(
    doors: Vec<Door>,
    runtimes: &[Handle],
    clients: u32,
) -> Result<Vec<Vec<Connection>>, Failure> {
    let regions = doors.len();
    assert_eq!(regions, runtimes.len(), "a runtime for each region");
    let mut opening = JoinSet::new();
    for (region, door) in doors.into_iter().enumerate() {
        let count = (clients as usize + regions - 1 - region) / regions;
        let opened = async move { (region, of_region(door, count.max(1)).await) };
        opening.spawn_on(opened, &runtimes[region]);
    }
    let mut all = vec![Vec::new(); regions];
    while let Some(opened) = opening.join_next().await {
        let (region, connections) = opened.expect("opening sessions does not panic");
        all[region] = connections?;
    }
    Ok(all)
}

async fn of_region(door: Door, count: usize) -> Result<Vec<Connection>, Failure> {
    let mut opening = JoinSet::new();
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        if opening.len() >= OPENING_MAX {
            all.extend(next(&mut opening).await?);
        }
        opening.spawn(Session::open(door.clone()));
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
