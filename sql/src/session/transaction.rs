//! A session's open transaction, and its end.

use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::txn::{Abort, Outcome, Program, SqlState};

use super::authorization::Authorization;
use super::command::Modes;
use super::explain::DryRun;
use super::interrupt::Interruptible;
use super::local::LocalContext;
use super::replay::Done;
use super::savepoint::Savepoint;
use super::settings::Settings;
use super::{Session, now};
use crate::conflict;
use crate::error::SqlError;
use crate::exec;
use crate::notice::Notice;
use crate::remote_rows::Snapshot;
use crate::vocabulary::deferred::Deferred;

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
pub(super) struct Transaction {
    /// `None` before the first statement that reads or writes.
    pub cx: Option<LocalContext>,
    /// Whether it was not started by the client.
    pub is_implicit: bool,
    pub is_read_only: bool,
    pub has_failed: bool,
    /// The start time in microseconds since 2000-01-01.
    pub started: i64,
    /// The settings that a rollback restores.
    pub settings_before: Settings,
    /// The old values of the settings that SET LOCAL changed; COMMIT restores them.
    pub local_settings: Vec<(String, String)>,
    /// The old authorization if SET LOCAL ROLE changed it.
    pub local_authorization: Option<Authorization>,
    /// The savepoints, oldest first.
    pub savepoints: Vec<Savepoint>,
    /// The foreign keys to be checked at COMMIT.
    pub deferred: Vec<Deferred>,
    /// The record of its statements, for a replay.
    pub done: Done,
}

impl Transaction {
    fn new(is_implicit: bool, is_read_only: bool, settings: &Settings) -> Self {
        Self {
            cx: None,
            is_implicit,
            is_read_only,
            has_failed: false,
            started: now(),
            settings_before: settings.clone(),
            local_settings: Vec::new(),
            local_authorization: None,
            savepoints: Vec::new(),
            deferred: Vec::new(),
            done: Done::default(),
        }
    }

    /// Marks it as failed: it can only be rolled back, as a whole or to a savepoint.
    fn fail(&mut self) {
        self.has_failed = true;
        if self.savepoints.is_empty() {
            // Its snapshot is no longer needed, and prevents the reclamation of old versions.
            self.cx = None;
        }
    }

    /// Opens its first snapshot.
    fn open(&mut self, snapshot: Snapshot, level: Isolation, offered: Isolations) {
        // A transaction that cannot become a writer need not record its reads, because it sees one
        // snapshot. READ WRITE is refused from here on.
        self.cx = Some(match self.is_read_only {
            true => LocalContext::reader(snapshot, level),
            false => LocalContext::transaction(snapshot, level).merging_adds(offered),
        });
    }

    /// Returns the context of its statements.
    ///
    /// # Panics
    /// If its snapshot is not open.
    pub(super) fn context(&mut self) -> &mut LocalContext {
        self.cx.as_mut().expect("the snapshot is open")
    }
}

impl Session {
    /// Returns the transaction status.
    pub fn transaction_status(&self) -> TransactionStatus {
        match &self.transaction {
            None => TransactionStatus::Idle,
            Some(transaction) if transaction.has_failed => TransactionStatus::Failed,
            Some(_) => TransactionStatus::Active,
        }
    }

    /// Returns the open transaction.
    ///
    /// # Panics
    /// If none is open.
    pub(super) fn open_transaction(&mut self) -> &mut Transaction {
        self.transaction.as_mut().expect("a transaction is open")
    }

    /// Opens a transaction.
    ///
    /// # Panics
    /// If one is open, or the isolation level was not granted.
    pub(super) fn begin(&mut self, is_implicit: bool, modes: Modes) {
        assert!(self.transaction.is_none(), "one transaction at a time");
        let default = self.settings.is_on("default_transaction_read_only");
        let is_read_only = modes.is_read_only.unwrap_or(default);
        self.transaction = Some(Transaction::new(is_implicit, is_read_only, &self.settings));
        if let Some(wanted) = modes.isolation {
            let level = self.settings.granted(Some(wanted)).expect("the caller has checked it");
            self.settings.set_isolation(level);
        }
    }

    /// The modes of the open transaction, for one that follows it in a chain.
    pub(super) fn modes(&self) -> Modes {
        match &self.transaction {
            Some(open) => Modes {
                is_read_only: Some(open.is_read_only),
                isolation: Some(self.settings.isolation()),
            },
            None => Modes::default(),
        }
    }

    /// Opens the snapshot of the transaction at its first statement, and at read committed at each
    /// statement, as in PostgreSQL.
    pub(super) async fn open_snapshot(&mut self) -> Result<(), SqlError> {
        let open = self.transaction.as_ref().and_then(|transaction| transaction.cx.as_ref());
        if open.is_some_and(|cx| !cx.moves()) {
            return Ok(());
        }
        let snapshot = self.snapshot().await?;
        let (level, offered) = (self.settings.isolation(), self.engine.isolations());
        if let Some(transaction) = &mut self.transaction {
            match &mut transaction.cx {
                Some(cx) => cx.move_to(snapshot),
                None => transaction.open(snapshot, level, offered),
            }
        }
        Ok(())
    }

    /// Marks an open transaction as failed for a statement that the session did not receive, and
    /// returns the error.
    pub fn refuse(&mut self, error: SqlError) -> SqlError {
        self.fail(error)
    }

    /// Marks an open transaction as failed, and returns the error.
    pub(super) fn fail(&mut self, error: SqlError) -> SqlError {
        if let Some(transaction) = &mut self.transaction {
            transaction.fail();
        }
        error
    }

    /// Ends the transaction, and returns the command tag: COMMIT or ROLLBACK.
    pub(super) async fn commit(&mut self) -> Result<&'static str, SqlError> {
        let ended = self.commit_transaction().await;
        self.settings.follow_default_isolation();
        self.end_cursors(ended.as_ref().is_ok_and(|tag| *tag == "COMMIT"));
        ended
    }

    async fn commit_transaction(&mut self) -> Result<&'static str, SqlError> {
        let has_deferred = |open: &Transaction| !open.has_failed && !open.deferred.is_empty();
        if self.transaction.as_ref().is_some_and(has_deferred)
            && let Err(error) = self.open_snapshot().await
        {
            self.rollback();
            return Err(error);
        }
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
            Outcome::Committed { txn, version, .. } => {
                self.note_commit(txn, version);
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

    /// Checks the deferred foreign keys of a transaction that is about to commit.
    fn check_deferred(&mut self, transaction: &mut Transaction) -> Result<(), SqlError> {
        let deferred = std::mem::take(&mut transaction.deferred);
        let Some(cx) = transaction.cx.as_mut().filter(|_| !deferred.is_empty()) else {
            return Ok(());
        };
        let env = self.env(Vec::new(), transaction.started, Vec::new());
        exec::check_deferred(&deferred, &env, &mut Interruptible::new(cx, &self.engine))?;
        Ok(())
    }

    pub(super) fn rollback(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.settings = transaction.settings_before;
        }
        self.asked_settings.clear();
        self.end_cursors(false);
    }

    /// Commits an implicit transaction, or rolls it back if it failed.
    pub(super) async fn end_implicit(&mut self) -> Result<(), SqlError> {
        if self.transaction.as_ref().is_some_and(|open| open.is_implicit) {
            self.commit().await?;
        }
        Ok(())
    }

    /// Converts the abort of a certified transaction to an error that describes rows as clients
    /// know them.
    pub(super) fn explain(&self, abort: Abort) -> SqlError {
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
}
