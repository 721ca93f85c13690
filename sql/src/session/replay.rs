//! The record of an interactive transaction's statements, from which it can be replayed.

use pangea_core::txn::{Abort, Outcome};

use super::{Session, Transaction};
use crate::error::{SqlError, code};
use crate::exec::Executed;
use crate::expr::Env;
use crate::plan::Planned;
use crate::replay::{REPLAY, Statement, StreamedResult, digest, encode};
use crate::statement::Arguments;

/// The maximum number of statements recorded for a transaction, and their maximum bytes.
const STATEMENTS_MAX: usize = 1_000;
const BYTES_MAX: usize = 256 << 10;
/// The maximum number of rows in a result that a replay must reproduce.
const ROWS_MAX: usize = 10_000;

/// The statements of a transaction.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    statements: Vec<Statement>,
    /// The number of statements whose rows have not all been returned to the client.
    unfinished: usize,
    bytes: usize,
    /// Whether a step cannot be replayed, so that the record is incomplete.
    is_broken: bool,
}

impl Done {
    /// Marks the transaction as not replayable: a client sent rows, or changes were rolled back.
    pub(super) fn breaks(&mut self) {
        *self = Self { is_broken: true, ..Self::default() };
    }

    /// Whether the next statement can be recorded.
    fn takes(&self, planned: &Planned) -> bool {
        // DataFusion may return rows in another order on another node.
        !self.is_broken && !planned.plan.is_certified()
    }

    /// Records the start of a query whose rows are returned in batches. Returns its position.
    fn begin(&mut self, args: Vec<u8>) -> Option<usize> {
        self.bytes += args.len();
        if self.statements.len() >= STATEMENTS_MAX || self.bytes > BYTES_MAX {
            self.breaks();
            return None;
        }
        self.unfinished += 1;
        self.statements.push(Statement { args, digest: 0 });
        Some(self.statements.len() - 1)
    }

    /// Adds rows that were returned for a query. Returns the state to continue with, or `None` at
    /// the end.
    pub(super) fn go_on(
        &mut self,
        (at, streamed): (usize, StreamedResult),
        is_done: bool,
    ) -> Option<(usize, StreamedResult)> {
        let count = streamed.count();
        if is_done || count > ROWS_MAX as u64 {
            self.finish(at, streamed, count);
            return None;
        }
        Some((at, streamed))
    }

    /// Records that all rows of the query at this position were returned.
    pub(super) fn finish(&mut self, at: usize, streamed: StreamedResult, count: u64) {
        if streamed.count() > ROWS_MAX as u64 {
            return self.breaks();
        }
        if let Some(statement) = self.statements.get_mut(at) {
            statement.digest = streamed.digest(count);
            self.unfinished -= 1;
        }
    }

    /// Records the result of a statement.
    fn note(&mut self, args: Vec<u8>, planned: &Planned, executed: &Executed) {
        self.bytes += args.len();
        if self.statements.len() >= STATEMENTS_MAX
            || self.bytes > BYTES_MAX
            || executed.rows.len() > ROWS_MAX
        {
            return self.breaks();
        }
        let digest = digest(&planned.columns, executed);
        self.statements.push(Statement { args, digest });
    }
}

impl Session {
    /// Returns a statement in the form in which it is replayed; `None` if it cannot be replayed.
    pub(super) fn replayable(
        &self,
        text: Option<&str>,
        (planned, env): (&Planned, &Env),
    ) -> Option<Vec<u8>> {
        let text = text.filter(|_| self.settings.is_on("replay"))?;
        let is_kept = self.transaction.as_ref().is_some_and(|open| open.done.takes(planned));
        is_kept.then(|| Arguments::encode_parts(text, &planned.params, env, (false, None)))
    }

    /// Records the result of a statement.
    pub(super) fn note_done(
        transaction: &mut Transaction,
        args: Option<Vec<u8>>,
        planned: &Planned,
        executed: &Executed,
    ) {
        match args {
            Some(args) => transaction.done.note(args, planned, executed),
            None => transaction.done.breaks(),
        }
    }

    /// Records the start of a query whose rows are returned in batches. Returns its position if the
    /// query can be replayed.
    pub(super) fn note_begun(
        transaction: &mut Transaction,
        args: Option<Vec<u8>>,
        planned: &Planned,
    ) -> Option<(usize, StreamedResult)> {
        let Some(args) = args else {
            transaction.done.breaks();
            return None;
        };
        let at = transaction.done.begin(args)?;
        Some((at, StreamedResult::new(&planned.columns, &[])))
    }

    /// Replays a transaction that could not commit. If a statement returns another result than its
    /// client received, the replay fails with the original error.
    pub(super) async fn replay(&mut self, done: Done, abort: Abort) -> Result<(), SqlError> {
        // A query that returned only some of its rows cannot be compared.
        if done.is_broken || done.unfinished > 0 || done.statements.is_empty() {
            return Err(self.explain(abort));
        }
        let program = self.program(REPLAY, encode(&done.statements))?;
        let outcome = self.commit_aside(program).await?;
        self.shared.replays.count(matches!(outcome, Outcome::Committed { .. }));
        match outcome {
            Outcome::Committed { txn, version, .. } => {
                self.note_commit(txn, version);
                Ok(())
            }
            // It may have committed, so it must not be tried again.
            Outcome::Aborted(unknown) if unknown.code == code::OUTCOME_UNKNOWN => {
                Err(unknown.into())
            }
            Outcome::Aborted(_) => Err(self.explain(abort)),
        }
    }
}
