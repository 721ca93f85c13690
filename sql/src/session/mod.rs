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

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pangea_core::ids::SnapshotVersion;
use pangea_core::txn::{Abort, Outcome, Program, SqlState};

use crate::catalog::role;
pub use crate::copy::Messages;
use crate::engine::{Engine, Unavailable};
use crate::error::{SqlError, code};
use crate::insight::Facts;
use crate::insight::activity::{Activity, Place, State};
use crate::insight::statements::Call;
use crate::notice::Notice;
use crate::plan::Planned;
use crate::profile::Profile;
use crate::remote_rows::{RemoteSnapshot, Snapshot};
use crate::syntax::{self, Parsed};
use crate::types::datetime::from_unix_micros;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::deferred::Deferred;
use crate::{Shared, conflict};
use authorization::Authorization;
use command::Command;
pub use copy::CopyStart;
use copy::UnderWay;
pub use copy_out::CopyOutput;
use cursors::Cursor;
use explain::DryRun;
pub use extended::{Described, Execution};
use extended::{Portal, Prepared};
use local::LocalContext;
use replay::Done;
use savepoint::Savepoint;
pub use settings::Reported;
use settings::Settings;
pub use stream::Batch;
use stream::Stream;

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

/// The transaction status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// Outside of a transaction.
    Idle,
    /// In a transaction.
    Active,
    /// In a failed transaction: only statements that end it are accepted.
    Failed,
}

/// An open transaction.
struct Transaction {
    /// `None` before the first statement that reads or writes.
    cx: Option<LocalContext>,
    /// Whether it was not started by the client.
    is_implicit: bool,
    is_read_only: bool,
    has_failed: bool,
    /// The start time in microseconds since 2000-01-01.
    started: i64,
    /// The settings that a rollback restores.
    settings_before: Settings,
    /// The old values of the settings that SET LOCAL changed; COMMIT restores them.
    local_settings: Vec<(String, String)>,
    /// The old authorization if SET LOCAL ROLE changed it.
    local_authorization: Option<Authorization>,
    /// The savepoints, oldest first.
    savepoints: Vec<Savepoint>,
    /// The foreign keys to be checked at COMMIT.
    deferred: Vec<Deferred>,
    /// The record of its statements, for a replay.
    done: Done,
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
    cursors: Vec<Cursor>,
    /// The number of cursors that it has declared.
    cursors_declared: u64,
    notices: Vec<Notice>,
    /// The newest snapshot version that contains a write of the session.
    written: SnapshotVersion,
    /// The counter from which the seeds of statements are derived.
    entropy: u64,
    /// The number that it drew last from each sequence.
    current_numbers: BTreeMap<u32, i64>,
    /// The number that it drew last from any sequence.
    last_number: Option<i64>,
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

impl Session {
    /// Opens a session with the parameters of the client's startup message, which include the user
    /// and the database.
    ///
    /// # Errors
    /// If a parameter has an invalid value.
    pub fn new(
        engine: Arc<dyn Engine>,
        shared: Arc<Shared>,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Self, SqlError> {
        let user = parameters.get("user").cloned().unwrap_or_else(|| "pangea".to_owned());
        let database = parameters.get("database").unwrap_or(&user).clone();
        let mut cx = LocalContext::snapshot(engine.store().pin());
        let role = role::find(&user, &mut cx)?;
        let mut settings = Settings::new(
            Authorization::new(&user, role.as_ref()),
            shared.reserved_prefixes.clone(),
        );
        for (name, value) in parameters {
            settings.connect(name, value)?;
        }
        let database: Arc<str> = database.into();
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
            cursors: Vec::new(),
            cursors_declared: 0,
            notices: Vec::new(),
            written: SnapshotVersion::ZERO,
            entropy: RandomState::new().build_hasher().finish(),
            current_numbers: BTreeMap::new(),
            last_number: None,
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

    /// Returns the transaction status.
    pub fn transaction_status(&self) -> TransactionStatus {
        match &self.transaction {
            None => TransactionStatus::Idle,
            Some(transaction) if transaction.has_failed => TransactionStatus::Failed,
            Some(_) => TransactionStatus::Active,
        }
    }

    /// Returns the settings that are reported to clients when they connect and at each change.
    pub fn reported_settings(&self) -> Reported {
        self.settings.reported()
    }

    /// Returns the session's time zone, in which timestamps are displayed.
    pub fn zone(&self) -> &Zone {
        self.settings.zone()
    }

    /// Returns the notices since the last call that the client wants to receive.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
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
            self.begin(true, None);
        }
        self.run(&command, &[], &[]).await
    }

    /// Marks an open transaction as failed for a statement that the session did not receive, and
    /// returns the error.
    pub fn refuse(&mut self, error: SqlError) -> SqlError {
        self.fail(error)
    }

    /// Marks an open transaction as failed, and returns the error.
    fn fail(&mut self, error: SqlError) -> SqlError {
        if let Some(transaction) = &mut self.transaction {
            transaction.has_failed = true;
            if transaction.savepoints.is_empty() {
                // Its snapshot is no longer needed, and prevents the reclamation of old versions.
                transaction.cx = None;
            }
        }
        error
    }

    fn begin(&mut self, is_implicit: bool, is_read_only: Option<bool>) {
        assert!(self.transaction.is_none(), "one transaction at a time");
        let default = self.settings.is_on("default_transaction_read_only");
        self.transaction = Some(Transaction {
            cx: None,
            is_implicit,
            is_read_only: is_read_only.unwrap_or(default),
            has_failed: false,
            started: now(),
            settings_before: self.settings.clone(),
            local_settings: Vec::new(),
            local_authorization: None,
            savepoints: Vec::new(),
            deferred: Vec::new(),
            done: Done::default(),
        });
    }

    /// Ends the transaction, and returns the command tag: COMMIT or ROLLBACK.
    async fn commit(&mut self) -> Result<&'static str, SqlError> {
        let ended = self.commit_transaction().await;
        self.end_cursors(ended.as_ref().is_ok_and(|tag| *tag == "COMMIT"));
        ended
    }

    async fn commit_transaction(&mut self) -> Result<&'static str, SqlError> {
        let Some(mut transaction) = self.transaction.take() else {
            self.notices.push(Notice::no_transaction());
            return Ok("COMMIT");
        };
        if transaction.has_failed {
            self.settings = transaction.settings_before;
            return Ok("ROLLBACK");
        }
        for (name, old) in transaction.local_settings.iter().rev() {
            self.settings.set(name, old)?;
        }
        if let Some(before) = transaction.local_authorization.take() {
            self.settings.set_authorization(before);
        }
        if let Err(error) = self.check_deferred(&mut transaction) {
            self.settings = transaction.settings_before;
            return Err(error);
        }
        let certified = transaction.cx.and_then(LocalContext::into_certified);
        let Some(certified) = certified else { return Ok("COMMIT") };
        match self.commit_program(Program::Certified(certified), DryRun::default()).await? {
            Outcome::Committed { version, .. } => {
                self.written = self.written.max(version);
                Ok("COMMIT")
            }
            Outcome::Aborted(abort) => {
                let replayed = match abort.code == SqlState::SERIALIZATION_FAILURE {
                    true => self.replay(transaction.done, abort).await,
                    false => Err(self.explain(abort)),
                };
                if replayed.is_err() {
                    self.settings = transaction.settings_before;
                }
                replayed.map(|()| "COMMIT")
            }
        }
    }

    fn rollback(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.settings = transaction.settings_before;
        }
        self.asked_settings.clear();
        self.end_cursors(false);
    }

    /// Commits an implicit transaction, or rolls it back if it failed.
    async fn end_implicit(&mut self) -> Result<(), SqlError> {
        if self.transaction.as_ref().is_some_and(|open| open.is_implicit) {
            self.commit().await?;
        }
        Ok(())
    }

    /// Converts the abort of a certified transaction to an error that describes rows as clients
    /// know them.
    fn explain(&self, abort: Abort) -> SqlError {
        let is_conflict = abort.code == SqlState::SERIALIZATION_FAILURE;
        let mut error = SqlError::from(abort);
        if is_conflict {
            error.message = "could not serialize access due to concurrent update".to_owned();
            error
                .hint
                .get_or_insert_with(|| "The transaction might succeed if retried.".to_owned());
            let mut cx = LocalContext::snapshot(self.engine.store().pin());
            let (topology, zone) = (self.engine.topology(), self.settings.zone());
            error.detail = error.detail.map(|it| conflict::describe(it, &mut cx, topology, zone));
        }
        error
    }

    /// Returns a snapshot that contains the session's own writes. With strict reads it also
    /// contains all transactions acknowledged before.
    async fn snapshot(&self) -> Result<Snapshot, SqlError> {
        if self.must_be_fresh() {
            self.wait_fresh().await?;
        }
        let pin = self.engine.store().pin();
        let remote = self.remote_rows(pin.version()).await?;
        Ok(Snapshot { pin, remote })
    }

    /// Returns access to the rows on other shards at a version of this node.
    async fn remote_rows(&self, at: SnapshotVersion) -> Result<Option<RemoteSnapshot>, SqlError> {
        let unavailable = |Unavailable { reason }| SqlError::new(code::UNAVAILABLE, reason);
        self.engine.remote_rows(at).await.map_err(unavailable)
    }

    fn must_be_fresh(&self) -> bool {
        self.settings.is_strict() || self.is_behind()
    }

    /// Whether this node's newest snapshot is missing some of the session's own writes.
    fn is_behind(&self) -> bool {
        self.engine.store().published() < self.written
    }

    /// Whether a plan made on an old snapshot can be used: it reads no table, or reads at its place
    /// in the serial order.
    fn may_be_old(&self, planned: &Planned) -> bool {
        let is_ordered = planned.is_write() && !self.is_behind();
        planned.touches_no_table() || is_ordered || !self.must_be_fresh()
    }
}
