//! The client's side: one connection with any number of concurrent calls.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pangea_core::hash::HashMap;
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::key::{Direction, KeyRange};
use pangea_core::protocol::Status;
use pangea_core::txn::Outcome;
use pangea_core::workload;
use tokio::sync::{Notify, oneshot, watch};

use super::connection;
use super::wire::{Answer, Pinned, Query, Row, SubmitBuffer};
use crate::driver::LatencySample;
use crate::transport::{CLIENT_FRAME_MAX, ClientWelcome, LinkReport, LinkSettings};

/// The maximum number of requests of one client in flight.
pub const REQUESTS_MAX: usize = 65_536;
/// Upper bound for the bytes of a call in a frame in addition to its arguments, including its
/// procedure's name.
const CALL_OVERHEAD: usize = 1 << 10;
/// The maximum length of a procedure's name.
const NAME_LEN_MAX: usize = 512;

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The connection failed, or the node did not accept this client.
    Connect {
        /// The node's address.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The node rejected the request as invalid. It had no effect, and a retry will fail too.
    Refused(String),
    /// The request was not sent: there is no connection now, or too many requests are pending.
    NotSent(String),
    /// The connection was lost, or the node does not know the outcome. A submitted transaction may
    /// have committed, or may still commit.
    Ambiguous(String),
}

impl ClientError {
    /// Whether the transaction may have committed.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous(_))
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { address, reason } => write!(f, "can't connect to {address}: {reason}"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::NotSent(reason) => write!(f, "not sent: {reason}"),
            Self::Ambiguous(reason) => write!(f, "outcome unknown: {reason}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// A connection to one node, shared by any number of tasks. Cheap to clone.
///
/// Calls of all clones share the connection, and each returns when its own answer has arrived. When
/// the connection is lost, all calls in flight fail with [`ClientError::Ambiguous`]. Calls made
/// without a connection fail with [`ClientError::NotSent`]. The client reconnects automatically.
///
/// ```no_run
/// # async fn example() -> Result<(), pangea_node::client::ClientError> {
/// use pangea_node::client::Client;
/// let client = Client::connect("127.0.0.1:7000".parse().unwrap(), "demo").await?;
/// let outcome = client.call("transfer", b"alice bob 10").await?;
/// # let _ = outcome;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Ends the connection when the last clone of a client is dropped.
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.lock().is_dropped = true;
        self.shared.outgoing.notify_one();
    }
}

impl Client {
    /// Connects to a node of the cluster named `cluster`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub async fn connect(address: SocketAddr, cluster: &str) -> Result<Self, ClientError> {
        let connected = connection::open(address, cluster).await;
        let connected = connected.map_err(|reason| ClientError::Connect { address, reason })?;
        let shared = Arc::new(Shared {
            address,
            cluster: cluster.to_owned(),
            welcome: connected.welcome.clone(),
            state: Mutex::default(),
            outgoing: Notify::new(),
            is_connected: watch::channel(false).0,
        });
        shared.on_connected();
        tokio::spawn(connection::run(shared.clone(), connected));
        Ok(Self { owner: Arc::new(Owner { shared }) })
    }

    /// The node at the other end.
    pub fn node(&self) -> NodeId {
        self.owner.shared.welcome.node
    }

    /// The name of the node's region.
    pub fn region(&self) -> &str {
        &self.owner.shared.welcome.region
    }

    /// The name of the commit protocol that the cluster runs.
    pub fn protocol(&self) -> &str {
        &self.owner.shared.welcome.protocol
    }

    /// Whether the client is connected now.
    pub fn is_connected(&self) -> bool {
        *self.owner.shared.is_connected.borrow()
    }

    /// Waits until the client is connected.
    pub async fn connected(&self) {
        let mut is_connected = self.owner.shared.is_connected.subscribe();
        // The sender lives as long as this client does.
        let _ = is_connected.wait_for(|&is_connected| is_connected).await;
    }

    /// Runs a procedure as one transaction.
    ///
    /// # Errors
    /// When the outcome is unknown, or the call was not executed; see [`ClientError`]. An aborted
    /// transaction is an outcome, not an error.
    pub async fn call(&self, procedure: &str, args: &[u8]) -> Result<Outcome, ClientError> {
        if procedure.len() > NAME_LEN_MAX || args.len() + CALL_OVERHEAD > CLIENT_FRAME_MAX {
            return Err(ClientError::NotSent(format!(
                "a call of {procedure:.40} with {} bytes exceeds the limit",
                args.len()
            )));
        }
        let encode = |state: &mut State, request| {
            if state.submit.len() + args.len() + CALL_OVERHEAD > CLIENT_FRAME_MAX {
                state.seal();
            }
            state.submit.push(request, procedure, args);
        };
        match self.owner.shared.request(encode).await? {
            Answer::Outcome(outcome) => Ok(outcome),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a query to the node.
    ///
    /// # Errors
    /// When there is no answer; see [`ClientError`].
    pub async fn query(&self, query: &Query) -> Result<Answer, ClientError> {
        let encode = |state: &mut State, request| {
            state.queries.push(super::wire::encode_query(request, query));
        };
        match self.owner.shared.request(encode).await? {
            answer @ (Answer::Refused(_) | Answer::Unavailable(_)) => Err(unexpected(answer)),
            answer => Ok(answer),
        }
    }

    /// The status of the node's protocol.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn status(&self) -> Result<Status, ClientError> {
        match self.query(&Query::Status).await? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    /// A digest of the node's store at `version`, or at its newest version, and the version used.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn digest(
        &self,
        version: Option<SnapshotVersion>,
    ) -> Result<(SnapshotVersion, u64), ClientError> {
        match self.query(&Query::Digest { version }).await? {
            Answer::Digest { version, digest } => Ok((version, digest)),
            other => Err(unexpected(other)),
        }
    }

    /// A version that contains every transaction acknowledged anywhere before this call.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn fresh(&self) -> Result<SnapshotVersion, ClientError> {
        match self.query(&Query::Fresh).await? {
            Answer::Fresh(version) => Ok(version),
            other => Err(unexpected(other)),
        }
    }

    /// At most `rows_max` rows from one end of a table's range, and whether they are all of its
    /// rows.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn table(
        &self,
        table: TableId,
        version: Option<SnapshotVersion>,
        range: KeyRange,
        direction: Direction,
        rows_max: u32,
    ) -> Result<(Vec<Row>, bool), ClientError> {
        let KeyRange { start, end } = range;
        let query = Query::Table { table, version, start, end, direction, rows_max };
        match self.query(&query).await? {
            Answer::Rows { rows, is_end } => Ok((rows, is_end)),
            other => Err(unexpected(other)),
        }
    }

    /// Pins a version for as long as this client is connected. Returns the number to pass to
    /// [`Client::unpin`], or why the node cannot pin the version.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn pin(&self, version: SnapshotVersion) -> Result<Pinned, ClientError> {
        match self.query(&Query::Pin { version }).await? {
            Answer::Pinned(pin) => Ok(pin),
            other => Err(unexpected(other)),
        }
    }

    /// Unpins a version.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn unpin(&self, pin: u64) -> Result<(), ClientError> {
        self.change(&Query::Unpin { pin }).await
    }

    /// Checks the invariants of a workload's rows at the node's newest version, against the
    /// clients' counts of commits if given. Returns the counts, or the violated invariant.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn check(
        &self,
        workload: &str,
        settings: &workload::Settings,
        commits: Option<workload::Commits>,
    ) -> Result<Result<String, String>, ClientError> {
        let (workload, settings) = (workload.to_owned(), settings.clone());
        match self.query(&Query::Check { workload, settings, commits }).await? {
            Answer::Checked { verdict, .. } => Ok(verdict),
            other => Err(unexpected(other)),
        }
    }

    /// The node's links to its peers.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn links(&self) -> Result<Vec<LinkReport>, ClientError> {
        match self.query(&Query::Links).await? {
            Answer::Links(links) => Ok(links),
            other => Err(unexpected(other)),
        }
    }

    /// Latency breakdowns of a sample of the node's transactions that ended since any client last
    /// requested them.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn latency_samples(&self) -> Result<Vec<LatencySample>, ClientError> {
        match self.query(&Query::LatencySamples).await? {
            Answer::LatencySamples(samples) => Ok(samples),
            other => Err(unexpected(other)),
        }
    }

    /// Delays all frames from this node to `peer`. A partition needs a cut at both ends.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn cut(&self, peer: NodeId) -> Result<(), ClientError> {
        self.change(&Query::Cut { from: self.node(), to: peer }).await
    }

    /// Releases all frames that this node delays.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn heal(&self) -> Result<(), ClientError> {
        self.change(&Query::Heal).await
    }

    /// Changes the emulated link from this node to `peer`.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub async fn set_link(&self, to: NodeId, settings: LinkSettings) -> Result<(), ClientError> {
        self.change(&Query::SetLink { to, settings }).await
    }

    async fn change(&self, query: &Query) -> Result<(), ClientError> {
        match self.query(query).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} at {})", self.node(), self.owner.shared.address)
    }
}

/// The error for an answer that does not match the query.
fn unexpected(answer: Answer) -> ClientError {
    match answer {
        Answer::Refused(reason) => ClientError::Refused(reason),
        Answer::Unavailable(reason) => ClientError::Ambiguous(reason),
        other => ClientError::Ambiguous(format!("the answer does not match the query: {other:?}")),
    }
}

/// The state shared by a client's clones and its connection's task.
pub(super) struct Shared {
    pub address: SocketAddr,
    pub cluster: String,
    pub welcome: ClientWelcome,
    state: Mutex<State>,
    /// Notified when requests are pending, or the last clone was dropped.
    pub outgoing: Notify,
    is_connected: watch::Sender<bool>,
}

/// Pending requests, and the calls that wait for an answer.
#[derive(Default)]
pub(super) struct State {
    is_connected: bool,
    is_dropped: bool,
    next_request: u64,
    waiting: HashMap<u64, oneshot::Sender<Result<Answer, ClientError>>>,
    submit: SubmitBuffer,
    /// Bodies of complete frames of calls.
    full: Vec<Vec<u8>>,
    queries: Vec<Vec<u8>>,
}

/// The frames to write next.
#[derive(Default)]
pub(super) struct Outgoing {
    pub submits: Vec<Vec<u8>>,
    pub queries: Vec<Vec<u8>>,
    pub is_dropped: bool,
}

impl State {
    fn seal(&mut self) {
        if !self.submit.is_empty() {
            self.full.push(std::mem::take(&mut self.submit).into_body());
        }
    }

    fn is_silent(&self) -> bool {
        self.submit.is_empty() && self.full.is_empty() && self.queries.is_empty()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its answer.
    async fn request(&self, encode: impl FnOnce(&mut State, u64)) -> Result<Answer, ClientError> {
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.lock();
            if !state.is_connected {
                return Err(ClientError::NotSent("not connected to the node".to_owned()));
            }
            if state.waiting.len() >= REQUESTS_MAX {
                let reason = format!("the limit of {REQUESTS_MAX} pending requests is reached");
                return Err(ClientError::NotSent(reason));
            }
            // The first request wakes the writer, which takes all pending requests when it runs.
            if state.is_silent() {
                self.outgoing.notify_one();
            }
            let request = state.next_request;
            state.next_request += 1;
            state.waiting.insert(request, sender);
            encode(&mut state, request);
        }
        let lost = |_| Err(ClientError::Ambiguous("the runtime has stopped".to_owned()));
        answer.await.unwrap_or_else(lost)
    }

    /// Takes the pending requests.
    pub(super) fn take_outgoing(&self) -> Outgoing {
        let mut state = self.lock();
        state.seal();
        Outgoing {
            submits: std::mem::take(&mut state.full),
            queries: std::mem::take(&mut state.queries),
            is_dropped: state.is_dropped,
        }
    }

    /// Delivers answers to their requests.
    pub(super) fn on_answers(&self, answers: Vec<(u64, Answer)>) -> Result<(), String> {
        let waiting: Vec<_> = {
            let mut state = self.lock();
            answers.iter().map(|(request, _)| state.waiting.remove(request)).collect()
        };
        for (waiting, (request, answer)) in waiting.into_iter().zip(answers) {
            let waiting = waiting.ok_or_else(|| {
                format!("the node sent an answer to an unknown request, {request}")
            })?;
            // The requester may have stopped waiting.
            let _ = waiting.send(Ok(answer));
        }
        Ok(())
    }

    /// The connection was made: requests are accepted.
    pub(super) fn on_connected(&self) {
        self.lock().is_connected = true;
        self.is_connected.send_replace(true);
    }

    /// The connection was lost: all waiting requests fail.
    pub(super) fn on_lost(&self, reason: &str) {
        let waiting = {
            let mut state = self.lock();
            state.is_connected = false;
            state.submit = SubmitBuffer::default();
            state.full.clear();
            state.queries.clear();
            std::mem::take(&mut state.waiting)
        };
        for (_, waiting) in waiting {
            let reason = format!("connection to {} lost: {reason}", self.address);
            // The requester may have stopped waiting.
            let _ = waiting.send(Err(ClientError::Ambiguous(reason)));
        }
        self.is_connected.send_replace(false);
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.lock().is_dropped
    }
}
