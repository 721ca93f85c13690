//! A statement's way through a session: in by `run`, out by `commit_program`.
//!
//! ```text
//!   begin_statement                  the time of statement_timeout starts
//!   run                              the statistics of the statement are recorded (`insight`)
//!    `-- run_command                 one match over all commands
//!         |-- run_data, run_explain, ..   it is planned; then it runs on this node, or becomes
//!         |     `-- wait_fresh            a program; a snapshot that may be too old is renewed
//!         `-- commit_program              the node orders the program and answers
//! ```
//!
//! Every program leaves the session here. [`Session::commit_program`] is for the programs of
//! statements and transactions; conflicts and latencies are recorded. [`Session::commit_aside`] is
//! for what the session submits besides: values of sequences, steps of an index, a replay.

use std::sync::Arc;

use pangea_core::txn::{Outcome, Program};

use super::command::Command;
use super::explain::{DryRun, Measured};
use super::interrupt::{code_of, message};
use super::{Response, Session, TransactionStatus};
use crate::engine::{Engine, Trace, Unavailable};
use crate::error::{SqlError, code};
use crate::notice::Notice;
use crate::types::SqlType;
use crate::types::datum::Datum;

impl Session {
    /// Starts the time of `statement_timeout`.
    pub(super) fn begin_statement(&self) {
        self.engine.begin_statement(self.settings.time("statement_timeout"));
    }

    /// Runs a statement, and records its statistics.
    pub(super) async fn run(
        &mut self,
        command: &Command,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        let Some(text) = command.text() else {
            return self.run_command(command, param_types, params).await;
        };
        let started = self.begin_call();
        let done = self.run_command(command, param_types, params).await;
        self.end_call(text, started, &done);
        done
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
            Command::Begin { tag, modes, as_of } => {
                if let Some(wanted) = modes.isolation {
                    self.settings.granted(Some(wanted))?;
                }
                match &mut self.transaction {
                    Some(open) if open.is_implicit => {
                        open.is_implicit = false;
                        self.set_modes(*modes)?;
                    }
                    Some(_) => {
                        let message = "there is already a transaction in progress";
                        self.notices.push(Notice::warning(code::ACTIVE_TRANSACTION, message));
                    }
                    None => self.begin(false, *modes),
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
                let modes = self.modes();
                let tag = self.commit().await?;
                if *is_chained {
                    self.begin(false, modes);
                }
                done(tag)
            }
            Command::Rollback { is_chained } => {
                if self.transaction.is_none() {
                    self.notices.push(Notice::no_transaction());
                }
                let modes = self.modes();
                self.rollback();
                if *is_chained {
                    self.begin(false, modes);
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

    /// Fails in a failed transaction, unless the command ends it.
    pub(super) fn refuse_when_failed(&self, command: &Command) -> Result<(), SqlError> {
        if self.transaction_status() != TransactionStatus::Failed || command.ends_failure() {
            return Ok(());
        }
        let message =
            "current transaction is aborted, commands ignored until end of transaction block";
        Err(SqlError::new(code::FAILED_TRANSACTION, message))
    }

    /// Waits until the newest snapshot of this node is one that the session accepts. If it lacks
    /// nothing but writes of this node's clients, these are on their way to this node, and no other
    /// one has to be asked.
    pub(super) async fn wait_for_snapshot(&self) -> Result<(), SqlError> {
        if self.settings.is_strict() || self.is_too_old() {
            self.wait_fresh().await
        } else if self.lacks_told() {
            self.engine.published(self.told()).await.map_err(|gone| self.unavailable(gone))
        } else {
            Ok(())
        }
    }

    /// Waits until all previously acknowledged transactions are published on this node.
    pub(super) async fn wait_fresh(&self) -> Result<(), SqlError> {
        self.engine.fresh().await.map(drop).map_err(|gone| self.unavailable(gone))
    }

    pub(super) fn unavailable(&self, Unavailable { reason }: Unavailable) -> SqlError {
        match self.engine.interruption() {
            Some(why) => SqlError::new(code_of(why), message(why)),
            None => SqlError::new(code::UNAVAILABLE, reason),
        }
    }

    /// Submits the program of a statement or of a transaction and waits for its outcome. Records
    /// conflicts, and the latency breakdown if EXPLAIN ANALYZE requests it.
    ///
    /// # Errors
    /// 08007 if the outcome is unknown.
    pub(super) async fn commit_program(
        &mut self,
        program: Program,
        dry_run: DryRun,
    ) -> Result<Outcome, SqlError> {
        let profile = self.profile.as_ref();
        let measured = profile.map(|profile| Measured::begin(profile, &program, dry_run));
        let trace = Arc::new(match &measured {
            Some(_) => Trace::timed(),
            None => Trace::default(),
        });
        let isolation = self.settings.isolation();
        let outcome = self.engine.commit_traced(program, isolation, &trace).await;
        let outcome = outcome.map_err(|error| self.unknown_outcome(error))?;
        self.note_outcome(&outcome, &trace);
        if let Some(measured) = measured {
            measured.end(&outcome, &trace);
        }
        Ok(outcome)
    }

    /// Submits a program that is not a statement's own and waits for its outcome. It counts in no
    /// statistics.
    ///
    /// # Errors
    /// 08007 if the outcome is unknown.
    pub(super) async fn commit_aside(&self, program: Program) -> Result<Outcome, SqlError> {
        let outcome = submit(&*self.engine, program).await;
        outcome.map_err(|error| self.unknown_outcome(error))
    }

    /// Returns the error for a submitted program whose outcome is unknown.
    pub(super) fn unknown_outcome(&self, error: Unavailable) -> SqlError {
        let unknown = match self.engine.interruption() {
            Some(why) => SqlError::new(code::OUTCOME_UNKNOWN, message(why)).with_detail(
                "The transaction was already submitted. It may have committed, or may still \
                 commit.",
            ),
            None => SqlError::new(
                code::OUTCOME_UNKNOWN,
                format!("the outcome of the transaction is unknown: {}", error.reason),
            ),
        };
        unknown.with_hint("Check whether its changes are visible before you retry.")
    }
}

/// Submits a program at the strongest isolation level: the part of [`Session::commit_aside`] that
/// needs no session, for a COPY that receives rows meanwhile, and for a node that starts.
pub(super) async fn submit(engine: &dyn Engine, program: Program) -> Result<Outcome, Unavailable> {
    engine.commit(program, engine.isolations().strongest()).await
}
