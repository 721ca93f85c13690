//! COPY in a session. It starts like any statement, and continues with the rows that the client
//! sends or fetches.
//!
//! ```text
//!   COPY FROM   copy_data, copy_data, .. --> copy_done, or copy_fail
//!   COPY TO     copy_next, copy_next, .. until it is complete
//! ```
//!
//! Any error ends a COPY. Data that the client sends after the error is ignored.

use std::sync::{Mutex, PoisonError};

use super::copy_in::CopyIn;
use super::copy_out::CopyOut;
use super::data::read_only_violation;
use super::local::LocalContext;
use super::{Response, Session};
use crate::copy::Format;
use crate::error::{Failure, SqlError, code};
use crate::plan::Plan;
use crate::syntax::Parsed;

/// The response to a COPY that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStart {
    /// Whether rows are in the binary format.
    pub is_binary: bool,
    /// The number of columns.
    pub columns: usize,
}

/// A COPY in progress.
pub(super) enum Copy {
    In(Box<CopyIn>),
    Out(Box<CopyOut>),
}

/// The COPY in progress of a session. The mutex is never locked. It only allows the session to be
/// shared between threads, although parts of a COPY cannot be.
pub(super) struct UnderWay(Mutex<Option<Copy>>);

impl Default for UnderWay {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl UnderWay {
    pub(super) fn take(&mut self) -> Option<Copy> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn put(&mut self, copy: Copy) {
        *self.0.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(copy);
    }
}

impl Session {
    /// Starts a COPY.
    pub(super) async fn begin_copy(&mut self, parsed: &Parsed) -> Result<Response, SqlError> {
        let planned = if self.transaction.is_some() {
            self.open_snapshot().await?;
            let path = self.path_setting();
            let open = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
            let cx: &mut LocalContext = open.expect("the snapshot is open");
            let parse = || Ok::<_, Failure>(parsed.clone());
            let planned = self.shared.plans.plan(&parsed.text, &[], &path, parse, cx)?;
            self.check_open_privileges(&planned)?;
            planned
        } else {
            let (planned, mut cx) = self.plan(parsed, &[]).await?;
            self.check_privileges(&planned, &mut cx)?;
            planned
        };
        let is_read_only = match &self.transaction {
            Some(transaction) => transaction.is_read_only,
            None => self.settings.is_on("default_transaction_read_only"),
        };
        if planned.is_write() && is_read_only {
            return Err(read_only_violation(&planned));
        }
        let options = parsed.copy.as_ref().expect("a COPY has options");
        let is_binary = options.format == Format::Binary;
        let columns = match &planned.plan {
            Plan::CopyFrom(copy) => copy.source.len(),
            Plan::CopyTo(copy) => copy.columns.len(),
            _ => return Err(SqlError::new(code::INTERNAL, "a COPY was planned as another")),
        };
        let start = CopyStart { is_binary, columns };
        if matches!(planned.plan, Plan::CopyTo(_)) {
            let copy = self.open_copy_out(planned).await?;
            self.copy.put(Copy::Out(Box::new(copy)));
            return Ok(Response::CopyOut(start));
        }
        let copy = CopyIn::new(parsed.clone(), planned, self.transaction.is_some());
        self.copy.put(Copy::In(Box::new(copy)));
        Ok(Response::CopyIn(start))
    }

    /// Fails the transaction and the rest of the query after a COPY has failed.
    pub(super) fn fail_copy(&mut self, error: SqlError) -> SqlError {
        self.script.clear();
        self.fail(error)
    }
}

/// The error for a client that continues a COPY that was not started.
pub(super) fn no_copy() -> SqlError {
    SqlError::new(code::PROTOCOL_VIOLATION, "no COPY is in progress")
}
