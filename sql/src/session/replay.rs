//! What an interactive transaction did, so that it can be done once more.

use pangea_core::txn::{Abort, Outcome};

use super::{Session, Transaction};
use crate::error::SqlError;
use crate::exec::Executed;
use crate::expr::Env;
use crate::plan::Planned;
use crate::replay::{REPLAY, Statement, Told, digest, encode};
use crate::statement::Arguments;

/// The most statements of a transaction that are kept, and of how many bytes.
const STATEMENTS_MAX: usize = 1_000;
const BYTES_MAX: usize = 256 << 10;
/// The most rows of a result that is to come out the same.
const ROWS_MAX: usize = 10_000;

/// The statements of a transaction.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    statements: Vec<Statement>,
    /// How many of them have rows that their client has not been told all.
    unfinished: usize,
    bytes: usize,
    /// Whether something is missing that can't be done again.
    is_broken: bool,
}

impl Done {
    /// Something was done that can't be done again: rows came from a client, or were taken back.
    pub(super) fn breaks(&mut self) {
        *self = Self { is_broken: true, ..Self::default() };
    }

    /// Whether what is done now may be kept.
    fn takes(&self, planned: &Planned) -> bool {
        // What DataFusion finds may come in another order elsewhere.
        !self.is_broken && !planned.plan.is_certified()
    }

    /// A query began whose rows are told some at a time, and where it is.
    fn begin(&mut self, args: Vec<u8>) -> Option<usize> {
        self.bytes += args.len();
        if self.statements.len() >= STATEMENTS_MAX || self.bytes > BYTES_MAX {
            self.breaks();
            return None;
        }
        self.unfinished += 1;
        self.statements.push(Statement { args, told: 0 });
        Some(self.statements.len() - 1)
    }

    /// Some rows of a query were told, or all that there are; what there is to go on with.
    pub(super) fn go_on(
        &mut self,
        (at, told): (usize, Told),
        is_done: bool,
    ) -> Option<(usize, Told)> {
        let count = told.count();
        if is_done || count > ROWS_MAX as u64 {
            self.finish(at, told, count);
            return None;
        }
        Some((at, told))
    }

    /// All rows of a query that began there were told.
    pub(super) fn finish(&mut self, at: usize, told: Told, count: u64) {
        if told.count() > ROWS_MAX as u64 {
            return self.breaks();
        }
        if let Some(statement) = self.statements.get_mut(at) {
            statement.told = told.digest(count);
            self.unfinished -= 1;
        }
    }

    /// A statement came to a result.
    fn note(&mut self, args: Vec<u8>, planned: &Planned, executed: &Executed) {
        self.bytes += args.len();
        if self.statements.len() >= STATEMENTS_MAX
            || self.bytes > BYTES_MAX
            || executed.rows.len() > ROWS_MAX
        {
            return self.breaks();
        }
        let told = digest(&planned.columns, executed);
        self.statements.push(Statement { args, told });
    }
}

impl Session {
    /// A statement as it would be done again; nothing where it can't be.
    pub(super) fn replayable(
        &self,
        transaction: &Transaction,
        text: Option<&str>,
        (planned, env): (&Planned, &Env),
    ) -> Option<Vec<u8>> {
        let text = text.filter(|_| self.settings.is_on("replay"))?;
        let is_kept = transaction.done.takes(planned);
        is_kept.then(|| Arguments::encode_parts(text, &planned.params, env, (false, None)))
    }

    /// Notes what a statement came to.
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

    /// Notes that a query began whose rows are told some at a time: where it is, if it can be done
    /// again.
    pub(super) fn note_begun(
        transaction: &mut Transaction,
        args: Option<Vec<u8>>,
        planned: &Planned,
    ) -> Option<(usize, Told)> {
        let Some(args) = args else {
            transaction.done.breaks();
            return None;
        };
        let at = transaction.done.begin(args)?;
        Some((at, Told::new(&planned.columns, &[])))
    }

    /// Does a transaction once more that could not commit as it was. What its client was told must
    /// be so then; else it fails with what it failed with before.
    pub(super) async fn replay(&mut self, done: Done, abort: Abort) -> Result<(), SqlError> {
        // A query of which a part was told can't be held to that part alone.
        if done.is_broken || done.unfinished > 0 || done.statements.is_empty() {
            return Err(self.explain(abort));
        }
        let program = self.program(REPLAY, encode(&done.statements))?;
        let outcome = self.engine.commit(program).await;
        let outcome = outcome.map_err(|error| self.unknown_outcome(error))?;
        self.shared.replays.count(matches!(outcome, Outcome::Committed { .. }));
        match outcome {
            Outcome::Committed { version, .. } => {
                self.written = self.written.max(version);
                Ok(())
            }
            Outcome::Aborted(_) => Err(self.explain(abort)),
        }
    }
}
