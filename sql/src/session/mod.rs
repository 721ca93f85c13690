//! One client's session: its settings, its transaction, its prepared statements.
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
pub(crate) mod cursors;
mod data;
mod explain;
mod extended;
mod index;
mod insight;
mod interrupt;
pub(crate) mod local;
mod native;
mod planning;
mod prepared;
mod query;
mod replay;
mod savepoint;
mod sequences;
pub(crate) mod settings;
mod stream;
pub(crate) mod units;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pangea_core::ids::SnapshotVersion;
use pangea_core::txn::{Abort, Outcome, Program, SqlState};

use crate::Shared;
use crate::catalog::role;
use crate::conflict;
pub use crate::copy::Messages;
use crate::elsewhere::{Beyond, Snapshot};
use crate::engine::{Engine, Unavailable};
use crate::error::{SqlError, code};
use crate::explain::Profile;
use crate::insight::Facts;
use crate::insight::activity::{Activity, Place, State};
use crate::insight::statements::Call;
use crate::notice::Notice;
use crate::plan::target::Deferred;
use crate::plan::{OutputColumn, Planned};
use crate::syntax::{self, Parsed};
use crate::types::SqlType;
use crate::types::datetime::from_unix_micros;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use authorization::Authorization;
use command::Command;
pub use copy::CopyStart;
use copy::UnderWay;
pub use copy_out::CopyOutput;
use cursors::Cursor;
use explain::Rehearsed;
pub use extended::{Described, Execution};
use extended::{Portal, Prepared};
use local::LocalContext;
use replay::Done;
use savepoint::Savepoint;
pub use settings::Reported;
use settings::Settings;
pub use stream::Batch;
use stream::Stream;

/// What a client is told of one statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// The text held no statement.
    Empty,
    /// Rows.
    Rows {
        /// Their columns.
        columns: Vec<OutputColumn>,
        /// The values.
        rows: Vec<Vec<Datum>>,
        /// PostgreSQL's tag, such as `SELECT 3`.
        tag: String,
    },
    /// Done.
    Command {
        /// PostgreSQL's tag, such as `INSERT 0 1`.
        tag: String,
    },
    /// Rows, too many to be told at once: they are to be taken with [`Session::next_rows`]. The
    /// last response until they were.
    Stream {
        /// Their columns.
        columns: Vec<OutputColumn>,
    },
    /// Rows are awaited. The last response until they have come; see [`Session::continue_query`].
    CopyIn(CopyStart),
    /// Rows are to be taken. The last response until they were.
    CopyOut(CopyStart),
    /// The statement failed. Always the last of a query's responses.
    Error(SqlError),
}

/// Where a session is with its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// Outside of one.
    Idle,
    /// Inside.
    Active,
    /// Inside of one that failed: only its end is taken.
    Failed,
}

/// A transaction that is under way.
struct Transaction {
    /// Nothing before the first statement that reads or writes.
    cx: Option<LocalContext>,
    /// Whether the client did not ask for it.
    is_implicit: bool,
    is_read_only: bool,
    has_failed: bool,
    /// Microseconds since 2000-01-01.
    started: i64,
    /// What a rollback goes back to.
    settings_before: Settings,
    /// What COMMIT takes back: the old values of what SET LOCAL changed.
    local_settings: Vec<(String, String)>,
    /// And what SET LOCAL ROLE changed.
    local_authorization: Option<Authorization>,
    /// The oldest first.
    savepoints: Vec<Savepoint>,
    /// Foreign keys that it is held to when it commits.
    deferred: Vec<Deferred>,
    /// What was done, to do it again where that is needed.
    done: Done,
}

/// One client's session.
pub struct Session {
    engine: Arc<dyn Engine>,
    shared: Arc<Shared>,
    database: Arc<str>,
    settings: Settings,
    transaction: Option<Transaction>,
    statements: BTreeMap<String, Arc<Prepared>>,
    portals: BTreeMap<String, Portal>,
    cursors: Vec<Cursor>,
    /// How many cursors it has declared.
    cursors_declared: u64,
    notices: Vec<Notice>,
    /// The newest version that the session's own writes are in.
    written: SnapshotVersion,
    /// Drawn from at each statement.
    entropy: u64,
    /// What it took last of each sequence.
    current_numbers: BTreeMap<u32, i64>,
    /// What it took last of any sequence.
    last_number: Option<i64>,
    /// What the last statement has asked to set: names, values, and whether until the transaction
    /// ends.
    asked_settings: Vec<(String, String, bool)>,
    /// What is left of a simple query, and whether it had several statements.
    script: VecDeque<Parsed>,
    is_block: bool,
    copy: UnderWay,
    /// The rows of the last response.
    stream: Option<Stream>,
    /// How many rows the next query finds at first, where it is not as many as are given at once.
    first_rows: Option<usize>,
    /// What the statement that runs takes, where somebody asks.
    profile: Option<Arc<Profile>>,
    /// What the node knows of itself, where the statement that runs asks for it.
    facts: Option<Arc<Facts>>,
    /// Where others see what the session does.
    place: Place,
    /// What the statement that runs has met so far.
    tally: Call,
}

/// The time: microseconds since 2000-01-01.
pub fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    from_unix_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
}

impl Session {
    /// A session of a user in a database, with the other parameters that the client connected with.
    ///
    /// # Errors
    /// When a parameter has a value that is not possible.
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

    /// Where the session is with its transaction.
    pub fn transaction_status(&self) -> TransactionStatus {
        match &self.transaction {
            None => TransactionStatus::Idle,
            Some(transaction) if transaction.has_failed => TransactionStatus::Failed,
            Some(_) => TransactionStatus::Active,
        }
    }

    /// The settings that clients are told of when they connect and at each change.
    pub fn reported_settings(&self) -> Reported {
        self.settings.reported()
    }

    /// The session's time zone, which timestamps are shown in.
    pub fn zone(&self) -> &Zone {
        self.settings.zone()
    }

    /// What clients are told beside their results, since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.retain(|notice| self.settings.wants(notice.severity));
        notices
    }

    /// Runs the statements of a text, one after the other, until one fails, or a COPY begins.
    pub async fn simple_query(&mut self, text: &str) -> Vec<Response> {
        self.show_active(Some(text));
        // A simple query ends what the extended protocol left open.
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

    /// Goes on with a simple query after a COPY of it is over, or the rows of a stream.
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

    /// Fails as a statement does that the session was never asked, and passes the error on.
    pub fn refuse(&mut self, error: SqlError) -> SqlError {
        self.fail(error)
    }

    /// Marks an open transaction as failed, and passes the error on.
    fn fail(&mut self, error: SqlError) -> SqlError {
        if let Some(transaction) = &mut self.transaction {
            transaction.has_failed = true;
            if transaction.savepoints.is_empty() {
                // Its snapshot is of no more use, and holds up the reclamation of old versions.
                transaction.cx = None;
            }
        }
        error
    }

    async fn run_command(
        &mut self,
        command: &Command,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        self.refuse_when_failed(command)?;
        let done = |tag: &str| Ok(Response::Command { tag: tag.to_owned() });
        match command {
            Command::Data(parsed) => match self.native_call(parsed)? {
                Some(call) => self.run_native(call, param_types, params).await,
                None => self.run_data(parsed, param_types, params).await,
            },
            Command::Explain(explain) => self.run_explain(explain, param_types, params).await,
            Command::Copy(parsed) => self.begin_copy(parsed).await,
            Command::Begin { tag, is_read_only, as_of } => {
                match &mut self.transaction {
                    Some(open) if open.is_implicit => {
                        open.is_implicit = false;
                        open.is_read_only = is_read_only.unwrap_or(open.is_read_only);
                    }
                    Some(_) => {
                        let message = "there is already a transaction in progress";
                        self.notices.push(Notice::warning(code::ACTIVE_TRANSACTION, message));
                    }
                    None => self.begin(false, *is_read_only),
                }
                if let Some(as_of) = as_of
                    && let Err(error) = self.begin_as_of(as_of).await
                {
                    self.rollback();
                    return Err(error);
                }
                done(tag)
            }
            Command::Commit { is_chained } => {
                let tag = self.commit().await?;
                if *is_chained {
                    self.begin(false, None);
                }
                done(tag)
            }
            Command::Rollback { is_chained } => {
                if self.transaction.is_none() {
                    self.notices.push(Notice::no_transaction());
                }
                self.rollback();
                if *is_chained {
                    self.begin(false, None);
                }
                done("ROLLBACK")
            }
            Command::Cursor(cursor) => self.run_cursor(cursor, param_types, params).await,
            Command::SetUser(set) => self.set_user(set).await,
            Command::Prepare { name, types, text } => {
                let types = self.prepared_types(types).await?;
                self.prepare(name, text, &types).await?;
                done("PREPARE")
            }
            Command::Execute { name, args } => self.run_prepared(name, args).await,
            Command::Savepoint(step, name) => self.run_savepoint(*step, name).await,
            other => self.run_setting(other).await,
        }
    }

    fn refuse_when_failed(&self, command: &Command) -> Result<(), SqlError> {
        if self.transaction_status() != TransactionStatus::Failed || command.ends_failure() {
            return Ok(());
        }
        let message =
            "current transaction is aborted, commands ignored until end of transaction block";
        Err(SqlError::new(code::FAILED_TRANSACTION, message))
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

    /// Ends the transaction, and returns what became of it.
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
        let outcome =
            self.commit_program(Program::Certified(certified), Rehearsed::default()).await;
        match outcome.map_err(|error| self.unknown_outcome(error))? {
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

    /// Commits a transaction that the client did not ask for, or rolls it back when it failed.
    async fn end_implicit(&mut self) -> Result<(), SqlError> {
        if self.transaction.as_ref().is_some_and(|open| open.is_implicit) {
            self.commit().await?;
        }
        Ok(())
    }

    /// The abort of a certified transaction, with rows as clients know them.
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

    /// A snapshot that holds the session's own writes, and with strict reads everything that was
    /// acknowledged before.
    async fn snapshot(&self) -> Result<Snapshot, SqlError> {
        if self.must_be_fresh() {
            self.wait_fresh().await?;
        }
        let pin = self.engine.store().pin();
        let beyond = self.beyond(pin.version()).await?;
        Ok(Snapshot { pin, beyond })
    }

    /// What of a version that is kept here is elsewhere.
    async fn beyond(&self, at: SnapshotVersion) -> Result<Option<Beyond>, SqlError> {
        let unavailable = |Unavailable { reason }| SqlError::new(code::UNAVAILABLE, reason);
        self.engine.beyond(at).await.map_err(unavailable)
    }

    fn must_be_fresh(&self) -> bool {
        self.settings.is_strict() || self.is_behind()
    }

    /// Whether the snapshot lacks some of the session's own writes.
    fn is_behind(&self) -> bool {
        self.engine.store().published() < self.written
    }

    /// Whether a plan that was made on an old snapshot will do: it touches no table, or what it
    /// reads it reads at its place in the order.
    fn may_be_old(&self, planned: &Planned) -> bool {
        let is_ordered = planned.is_write() && !self.is_behind();
        planned.touches_no_table() || is_ordered || !self.must_be_fresh()
    }
}
