//! The events that end a statement early: cancellation by the client, `statement_timeout`, and
//! shutdown.
//!
//! The engine reports them. A statement checks for them while it waits for a fresh snapshot or for
//! the outcome of a submitted program. It also checks after every few rows that it reads on this
//! node. A submitted program cannot be recalled. The client is informed that it may have committed,
//! with 08007 instead of 57014 or 57P01.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::pool::Pool;
use pangea_core::store::UnorderedScan;
use pangea_core::txn::{Adder, Context, Guards, Parts, Scan, SqlState, Stop, Taken, Visit};
use pangea_core::value::Value;

use super::local::LocalContext;
use super::{Session, TransactionStatus};
use crate::engine::{Engine, Interruption};
use crate::error::{SqlError, code};

/// The number of rows read between two checks for an interruption.
const ROWS_PER_LOOK: usize = 256;

impl Session {
    /// Fails if the statement must end. Used while it does not wait.
    pub(super) fn check_interruption(&self) -> Result<(), SqlError> {
        check_interruption(&*self.engine)
    }

    /// Returns how long the client may leave its open transaction idle, if that is limited.
    pub fn idle_max(&self) -> Option<Duration> {
        let is_idle = self.transaction_status() == TransactionStatus::Idle;
        let limit = self.settings.time("idle_in_transaction_session_timeout");
        limit.filter(|_| !is_idle)
    }
}

/// Fails if the statement must end.
pub(super) fn check_interruption(engine: &dyn Engine) -> Result<(), SqlError> {
    let why = engine.interruption();
    why.map_or(Ok(()), |why| Err(SqlError::new(code_of(why), message(why))))
}

/// Returns PostgreSQL's message.
pub(super) fn message(why: Interruption) -> &'static str {
    match why {
        Interruption::Cancelled => "canceling statement due to user request",
        Interruption::TimedOut => "canceling statement due to statement timeout",
        Interruption::Stopping => "terminating connection due to administrator command",
    }
}

/// Returns the SQLSTATE of a statement that has not submitted a program.
pub(super) fn code_of(why: Interruption) -> SqlState {
    match why {
        Interruption::Cancelled | Interruption::TimedOut => code::QUERY_CANCELED,
        Interruption::Stopping => code::ADMIN_SHUTDOWN,
    }
}

/// A context that aborts its run if the statement must end.
pub(super) struct Interruptible<'a> {
    cx: &'a mut LocalContext,
    engine: &'a Arc<dyn Engine>,
    reads: usize,
}

impl<'a> Interruptible<'a> {
    pub(super) fn new(cx: &'a mut LocalContext, engine: &'a Arc<dyn Engine>) -> Self {
        Self { cx, engine, reads: 0 }
    }
}

/// Counts a read, and checks for an interruption after every [`ROWS_PER_LOOK`] reads.
fn on_read(reads: &mut usize, engine: &dyn Engine) -> Result<(), Stop> {
    *reads += 1;
    if reads.is_multiple_of(ROWS_PER_LOOK) { look(engine) } else { Ok(()) }
}

fn look(engine: &dyn Engine) -> Result<(), Stop> {
    match engine.interruption() {
        None => Ok(()),
        Some(why) => Err(Stop::Abort(SqlError::new(code_of(why), message(why)).into())),
    }
}

impl Context for Interruptible<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        on_read(&mut self.reads, &**self.engine)?;
        self.cx.get(table, key)
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        let mut result = Ok(());
        self.cx.scan(scan, &mut |key, value| {
            result = on_read(&mut self.reads, &**self.engine);
            if result.is_err() { ControlFlow::Break(()) } else { visit(key, value) }
        })?;
        result
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.cx.put(table, key, value)
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.cx.delete(table, key)
    }

    fn add(
        &mut self,
        table: TableId,
        key: Key,
        adder: &dyn Adder,
        amount: &[u8],
    ) -> Result<bool, Stop> {
        on_read(&mut self.reads, &**self.engine)?;
        self.cx.add(table, key, adder, amount)
    }

    fn estimate(&self, table: TableId) -> Option<usize> {
        self.cx.estimate(table)
    }

    fn parts(&self, table: TableId) -> Option<Arc<dyn Parts>> {
        let sweep = self.cx.unordered_scan(table)?;
        Some(Arc::new(Swept { sweep, engine: self.engine.clone() }))
    }

    fn guards(&mut self) -> Option<&mut dyn Guards> {
        self.cx.guards()
    }

    fn look(&mut self) -> Result<(), Stop> {
        look(&**self.engine)
    }
}

/// The partitions of a table, for a parallel scan.
struct Swept {
    sweep: UnorderedScan,
    engine: Arc<dyn Engine>,
}

impl Parts for Swept {
    fn count(&self) -> usize {
        UnorderedScan::PARTS
    }

    fn bytes(&self) -> usize {
        self.sweep.bytes()
    }

    fn rows(&self, part: usize) -> usize {
        self.sweep.count(part)
    }

    fn take(&self, part: usize, taken: &mut Taken) {
        self.sweep.take(part, taken);
    }

    fn pool(&self) -> &dyn Pool {
        self.engine.pool()
    }

    fn look(&self) -> Result<(), Stop> {
        look(&*self.engine)
    }
}
