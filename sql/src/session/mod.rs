//! A client's session: its settings, its transaction and its prepared statements.
//!
//! ```text
//!   outside of a transaction
//!     SELECT                    a snapshot of this node, at once (reads = strict: a fresh one)
//!     INSERT, UPDATE, CREATE .. a program, run at its place in the order: never a conflict
//!   BEGIN .. COMMIT             a snapshot and own writes here; certified at COMMIT, or 40001
//! ```
//!
//! Several statements in one simple query, or between two Syncs of the extended protocol, are one
//! implicit transaction, as in PostgreSQL.
//!
//! A statement comes in and its program goes out in `statement`; `transaction` begins and ends the
//! open transaction.

mod as_of;
pub mod authorization;
mod command;
mod control;
mod copy;
mod copy_in;
mod copy_out;
mod cursors;
mod data;
mod explain;
mod extended;
mod index;
mod insight;
mod interrupt;
pub(crate) mod local;
mod native;
mod prepared;
mod query;
mod replay;
mod savepoint;
mod sequences;
mod settings;
mod statement;
mod stream;
mod transaction;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pangea_core::guarantee::Isolation;
use pangea_core::ids::{SnapshotVersion, TxnId};

use crate::Shared;
use crate::catalog::role;
pub use crate::copy::Messages;
use crate::engine::{Engine, Unavailable};
use crate::error::{SqlError, code};
use crate::insight::Facts;
use crate::insight::activity::{Activity, Place, State};
use crate::insight::statements::Call;
use crate::losses::OwnCommits;
use crate::notice::Notice;
use crate::plan::Planned;
use crate::profile::Profile;
use crate::remote_rows::{RemoteSnapshot, Snapshot};
use crate::syntax::{self, Parsed};
use crate::types::datetime::from_unix_micros;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::vocabulary::column::OutputColumn;
use authorization::Authorization;
use command::{Command, Modes};
pub use copy::CopyStart;
use copy::UnderWay;
pub use copy_out::CopyOutput;
use cursors::Cursors;
pub use extended::{Described, Execution};
use extended::{Portal, Prepared};
use local::LocalContext;
use sequences::LastNumbers;
pub use settings::Reported;
use settings::Settings;
pub use stream::Batch;
use stream::Stream;
use transaction::Transaction;
pub use transaction::TransactionStatus;

/// A snapshot is taken again up to this number of times, if other shards have already removed rows
/// of it.
const SNAPSHOT_TRIES_MAX: usize = 10;

/// The response to one statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// The text contained no statement.
    Empty,
    /// Rows.
    Rows {
        /// The columns of the rows.
        columns: Vec<OutputColumn>,
        /// The values.
        rows: Vec<Vec<Datum>>,
        /// PostgreSQL's command tag, such as `SELECT 3`.
        tag: String,
    },
    /// Success without rows.
    Command {
        /// PostgreSQL's command tag, such as `INSERT 0 1`.
        tag: String,
    },
    /// Too many rows to return at once; they are fetched with [`Session::next_rows`]. This is the
    /// last response until all rows have been fetched.
    Stream {
        /// The columns of the rows.
        columns: Vec<OutputColumn>,
    },
    /// A COPY FROM started. This is the last response until the rows have been received; see
    /// [`Session::continue_query`].
    CopyIn(CopyStart),
    /// A COPY TO started. This is the last response until the rows have been fetched.
    CopyOut(CopyStart),
    /// The statement failed. This is always the last response of a query.
    Error(SqlError),
}

/// A client's session.
pub struct Session {
    engine: Arc<dyn Engine>,
    shared: Arc<Shared>,
    database: Arc<str>,
    settings: Settings,
    transaction: Option<Transaction>,
    statements: BTreeMap<String, Arc<Prepared>>,
    portals: BTreeMap<String, Portal>,
    cursors: Cursors,
    notices: Vec<Notice>,
    /// The newest snapshot version that contains a write of the session.
    written: SnapshotVersion,
    /// The commits of the session that can still be lost.
    commits: OwnCommits,
    /// The counter from which the seeds of statements are derived.
    entropy: u64,
    last_numbers: LastNumbers,
    /// The settings that the last statement requested: name, value, and whether the setting is
    /// local to the transaction.
    asked_settings: Vec<(String, String, bool)>,
    /// The remaining statements of a simple query, and whether it had several statements.
    script: VecDeque<Parsed>,
    is_block: bool,
    copy: UnderWay,
    /// The rows of the last response.
    stream: Option<Stream>,
    /// The number of rows that the next query reads first, if not the default.
    first_rows: Option<usize>,
    /// The measurements of the current statement, for EXPLAIN ANALYZE.
    profile: Option<Arc<Profile>>,
    /// The state of the node, if the current statement reads it.
    facts: Option<Arc<Facts>>,
    /// The entry that shows the session's activity to other sessions.
    place: Place,
    /// The statistics of the current statement.
    tally: Call,
}

/// Returns the current time in microseconds since 2000-01-01.
pub fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    from_unix_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
}

fn loses_updates() -> SqlError {
    let message = "the settings of this cluster lose updates, so SQL is not available";
    SqlError::new(code::FEATURE_NOT_SUPPORTED, message)
        .with_detail("Neither constraints nor indexes would hold.")
        .with_hint("Set geogauss.validation = \"merge\", or measure with pangea bench.")
}

impl Session {
    /// Opens a session with the parameters of the client's startup message, which include the user
    /// and the database.
    ///
    /// # Errors
    /// If a parameter has an invalid value, or the protocol loses updates.
    pub fn new(
        engine: Arc<dyn Engine>,
        shared: Arc<Shared>,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Self, SqlError> {
        if engine.isolations().lose_updates() {
            return Err(loses_updates());
        }
        let user = parameters.get("user").cloned().unwrap_or_else(|| "pangea".to_owned());
        let database = parameters.get("database").unwrap_or(&user).clone();
        let mut cx = LocalContext::snapshot(engine.store().pin());
        let role = role::find(&user, &mut cx)?;
        let mut settings = Settings::new(
            Authorization::new(&user, role.as_ref()),
            shared.reserved_prefixes.clone(),
            engine.isolations(),
        );
        for (name, value) in parameters {
            settings.connect(name, value)?;
        }
        settings.follow_default_isolation();
        let database: Arc<str> = database.into();
        let commits = OwnCommits::new(engine.losses());
        let place = shared.insight.activities.enter(Activity {
            process: 0,
            user: settings.authorization().user().clone(),
            database: database.clone(),
            values: settings.values().clone(),
            client: None,
            started: now(),
            transaction_started: None,
            query_started: None,
            state_changed: now(),
            state: State::Idle,
            query: Arc::from(""),
            signals: None,
        });
        Ok(Self {
            engine,
            shared,
            database,
            settings,
            transaction: None,
            statements: BTreeMap::new(),
            portals: BTreeMap::new(),
            cursors: Cursors::default(),
            notices: Vec::new(),
            written: SnapshotVersion::ZERO,
            commits,
            entropy: RandomState::new().build_hasher().finish(),
            last_numbers: LastNumbers::default(),
            asked_settings: Vec::new(),
            script: VecDeque::new(),
            is_block: false,
            copy: UnderWay::default(),
            stream: None,
            first_rows: None,
            profile: None,
            facts: None,
            place,
            tally: Call::default(),
        })
    }

    /// Returns the settings that are reported to clients when they connect and at each change.
    pub fn reported_settings(&self) -> Reported {
        self.settings.reported()
    }

    /// Returns the session's time zone, in which timestamps are displayed.
    pub fn zone(&self) -> &Zone {
        self.settings.zone()
    }

    /// Returns the notices since the last call that the client wants to receive. They include
    /// warnings about acknowledged commits of the session that the node has lost since.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
        if let Some(losses) = self.engine.losses() {
            notices.extend(self.commits.take(losses));
        }
        notices.retain(|notice| self.settings.wants(notice.severity));
        notices
    }

    /// Runs the statements of a text in sequence, until one fails or a COPY starts.
    pub async fn simple_query(&mut self, text: &str) -> Vec<Response> {
        self.show_active(Some(text));
        // A simple query ends everything that the extended protocol left open.
        self.portals.clear();
        self.copy.take();
        self.stream = None;
        self.script = match syntax::parse(text) {
            Ok(parsed) => parsed.into(),
            Err(error) => {
                let error = self.fail(error);
                self.show_idle();
                return vec![Response::Error(error)];
            }
        };
        if self.script.is_empty() {
            self.show_idle();
            return vec![Response::Empty];
        }
        self.is_block = self.script.len() > 1;
        self.continue_query().await
    }

    /// Continues a simple query after its COPY has ended, or after the rows of a stream were
    /// fetched.
    pub async fn continue_query(&mut self) -> Vec<Response> {
        let mut responses = Vec::with_capacity(self.script.len());
        while let Some(parsed) = self.script.pop_front() {
            match self.simple_statement(parsed, self.is_block).await {
                Ok(response) => {
                    let waits = matches!(
                        response,
                        Response::CopyIn(_) | Response::CopyOut(_) | Response::Stream { .. }
                    );
                    responses.push(response);
                    if waits {
                        return responses;
                    }
                }
                Err(error) => {
                    self.script.clear();
                    responses.push(Response::Error(self.fail(error)));
                }
            }
        }
        if let Err(error) = self.end_implicit().await {
            responses.push(Response::Error(error));
        }
        self.show_idle();
        responses
    }

    async fn simple_statement(
        &mut self,
        parsed: Parsed,
        is_block: bool,
    ) -> Result<Response, SqlError> {
        self.begin_statement();
        let command = Command::new(parsed)?;
        if is_block && self.transaction.is_none() && command.is_data() {
            self.begin(true, Modes::default());
        }
        self.run(&command, &[], &[]).await
    }

    /// Returns a snapshot with the writes of this node's clients. With strict reads it also
    /// contains all transactions acknowledged before.
    async fn snapshot(&self) -> Result<Snapshot, SqlError> {
        self.wait_for_snapshot().await?;
        let mut tries = 0;
        loop {
            let pin = self.engine.store().pin();
            let remote = self.remote_rows(pin.version()).await?;
            match remote.as_ref().and_then(RemoteSnapshot::reclaimed) {
                // Nodes of other shards publish and remove versions at other times than this one.
                Some(oldest) if tries < SNAPSHOT_TRIES_MAX => {
                    tries += 1;
                    let published = self.engine.published(oldest).await;
                    published.map_err(|gone| self.unavailable(gone))?;
                }
                _ => return Ok(Snapshot { pin, remote }),
            }
        }
    }

    /// Returns access to the rows on other shards at a version of this node.
    async fn remote_rows(&self, at: SnapshotVersion) -> Result<Option<RemoteSnapshot>, SqlError> {
        // Most clusters: without the allocation of the engine's future.
        if self.engine.topology().partitions.shards() == 1 {
            return Ok(None);
        }
        let unavailable = |Unavailable { reason }| SqlError::new(code::UNAVAILABLE, reason);
        self.engine.remote_rows(at).await.map_err(unavailable)
    }

    /// Notes that a transaction of the session was acknowledged.
    fn note_commit(&mut self, txn: TxnId, version: SnapshotVersion) {
        self.written = self.written.max(version);
        if self.is_behind() {
            self.shared.told.note(version);
        }
        if let Some(losses) = self.engine.losses() {
            self.commits.note(losses, txn, version);
        }
    }

    /// Whether a snapshot that is pinned after this call may lack something that the session has to
    /// see. The answer is not about one that was pinned before: what it lacks may be published
    /// meanwhile.
    fn must_wait(&self) -> bool {
        self.settings.is_strict() || self.lacks_told() || self.is_too_old()
    }

    /// The version that a snapshot needs to have the writes that clients of this node know of.
    fn told(&self) -> SnapshotVersion {
        self.written.max(self.shared.told.last())
    }

    /// Whether this node's newest snapshot lacks some of them.
    fn lacks_told(&self) -> bool {
        self.engine.store().published() < self.told()
    }

    /// Whether the newest snapshot may be older than the session accepts.
    fn is_too_old(&self) -> bool {
        let bound = self.settings.time("max_staleness");
        bound.is_some_and(|bound| !self.engine.is_fresh_within(bound))
    }

    /// Whether a write that finds no row fails at COMMIT if the row has been inserted since its
    /// snapshot. At weaker levels it counts as a read.
    fn is_search_checked(&self) -> bool {
        self.settings.isolation() == Isolation::Serializable
    }

    /// Whether this node's newest snapshot is missing some of the session's own writes.
    fn is_behind(&self) -> bool {
        self.engine.store().published() < self.written
    }

    /// Whether a plan can be used that was made on a snapshot without the session's own writes
    /// (`is_behind`): it reads no table, or reads at its place in the serial order.
    fn may_be_old(&self, planned: &Planned, is_behind: bool) -> bool {
        let is_ordered = planned.is_write() && self.is_search_checked() && !is_behind;
        planned.touches_no_table() || is_ordered
    }
}
