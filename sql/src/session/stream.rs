//! Results as streams: rows are found when the client requests them.
//!
//! ```text
//!   a query --begin--> Stream <--pull-- a simple query: next_rows, until no rows are left
//!                                       Execute: as many rows as it requests
//!                                       FETCH of a cursor
//!                                       COPY TO
//! ```
//!
//! A stream outside of a transaction has its own snapshot. A stream of a transaction sees the
//! transaction's writes as they were when the stream began. Its reads are recorded when they
//! happen, so that the transaction is certified for the rows that its client received and for no
//! others. A plan that materializes its result is a stream whose rows are all found. Those rows
//! count against the memory limit for results on the node.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::copy::no_copy;
use super::interrupt::Interruptible;
use super::local::{LocalContext, View};
use super::{Response, Session};
use crate::Shared;
use crate::error::{SqlError, code};
use crate::exec::{self, BATCH_BYTES, BATCH_ROWS, Fetching, Found};
use crate::expr::Env;
use crate::plan::Planned;
use crate::replay::StreamedResult;
use crate::result_memory::{ResultReservation, size_of_row, size_of_rows};
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;

/// Rows of one result.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The next rows of the result.
    pub rows: Vec<Vec<Datum>>,
    /// PostgreSQL's command tag, if these are the last rows.
    pub tag: Option<String>,
}

/// The state that a query reads.
pub(super) enum On {
    /// A snapshot of its own.
    Snapshot(LocalContext),
    /// The snapshot of the open transaction, with the transaction's writes in this view.
    Transaction(View),
}

impl On {
    /// Returns the bytes of writes that the query retains after its transaction writes more.
    fn bytes(&self) -> usize {
        match self {
            Self::Snapshot(_) => 0,
            Self::Transaction(view) => view.bytes,
        }
    }
}

/// A query that has not found all of its rows.
struct Open {
    planned: Arc<Planned>,
    on: On,
    env: Env,
    fetching: Fetching,
    /// Position of the statement in the transaction, and the digest of the results sent to its
    /// client.
    streamed: Option<(usize, StreamedResult)>,
}

/// The rows of a result that its client has not received.
pub(super) struct Stream {
    /// Rows that are found.
    ahead: VecDeque<Vec<Datum>>,
    reservation: ResultReservation,
    /// The source of further rows. The mutex is never locked. It makes the stream `Sync`, although
    /// parts of the query are not.
    open: Option<Mutex<Box<Open>>>,
    /// Number of rows passed to the client.
    given: u64,
    /// The command tag. The tag of a SELECT is computed from the number of rows instead.
    tag: Option<String>,
    /// The last value drawn from each sequence that the statement used, by sequence id.
    pub drawn: Vec<(u32, i64)>,
    noting: Option<Noting>,
    again: Option<Mutex<Box<Again>>>,
}

/// The inputs of a query of a transaction, from which it can be restarted.
struct Again {
    planned: Arc<Planned>,
    view: View,
    env: Env,
}

impl Stream {
    /// Returns a stream of rows that are all found.
    pub(super) fn whole(
        rows: Vec<Vec<Datum>>,
        reservation: ResultReservation,
        tag: String,
    ) -> Self {
        let (ahead, tag) = (rows.into(), Some(tag));
        let drawn = Vec::new();
        Self { ahead, reservation, open: None, given: 0, tag, drawn, noting: None, again: None }
    }

    /// Returns whether no rows are left.
    pub(super) fn is_done(&self) -> bool {
        self.ahead.is_empty() && self.open.is_none()
    }

    /// Returns whether the rows are those of a query. All others are of a statement that may have
    /// committed: its client has to be told.
    fn is_of_query(&self) -> bool {
        self.tag.is_none()
    }

    /// Returns whether the stream reads the snapshot of the open transaction.
    pub(super) fn is_of_transaction(&mut self) -> bool {
        self.open_mut().is_some_and(|open| matches!(open.on, On::Transaction(_)))
    }

    /// Returns PostgreSQL's command tag after this number of rows.
    pub(super) fn tag(&self, rows: u64) -> String {
        match &self.tag {
            Some(tag) if !tag.starts_with("SELECT") => tag.clone(),
            _ => format!("SELECT {rows}"),
        }
    }

    fn open_mut(&mut self) -> Option<&mut Open> {
        let open = self.open.as_mut()?;
        Some(open.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    fn take_ahead(&mut self, most: usize) -> Vec<Vec<Datum>> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while rows.len() < most
            && bytes < BATCH_BYTES
            && let Some(row) = self.ahead.pop_front()
        {
            bytes += size_of_row(&row);
            rows.push(row);
        }
        self.reservation.give_back(bytes);
        rows
    }

    /// Counts the rows of this stream in the node's statistics of its statement.
    pub(super) fn note(&mut self, noting: Noting) {
        self.noting = Some(noting);
    }
}

/// Counts the rows of a statement and the time to find them. Adds both to the node's statistics
/// when it is dropped.
pub(super) struct Noting {
    shared: Arc<Shared>,
    session: u64,
    user: Arc<str>,
    text: Arc<str>,
    rows: u64,
    took: Duration,
}

impl Drop for Noting {
    fn drop(&mut self) {
        let Self { session, user, text, rows, took, .. } = self;
        self.shared.insight.statements.go_on(*session, user, text, *rows, *took);
    }
}

impl Session {
    /// Starts a query and finds its first rows: `first_rows` of them if that is set.
    pub(super) fn begin_stream(
        &mut self,
        planned: &Arc<Planned>,
        mut on: On,
        env: Env,
    ) -> Result<Stream, SqlError> {
        let first = self.first_rows.take();
        let transaction = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
        let found = match &mut on {
            On::Snapshot(cx) => {
                exec::open(planned, &env, &mut Interruptible::new(cx, &self.engine))
            }
            On::Transaction(view) => {
                let engine = &self.engine;
                let cx = transaction.expect("it has its snapshot");
                cx.under(view, |cx| exec::open(planned, &env, &mut Interruptible::new(cx, engine)))
            }
        };
        let found = found?;
        self.note_env(&env);
        self.apply_settings()?;
        let planned = planned.clone();
        let mut stream = Stream {
            ahead: VecDeque::new(),
            reservation: ResultReservation::of(Some(&self.shared.results)),
            open: None,
            given: 0,
            tag: None,
            drawn: env.current(),
            noting: None,
            again: None,
        };
        match found {
            Found::Whole(rows, reservation) => {
                (stream.ahead, stream.reservation) = (rows.into(), reservation)
            }
            Found::Some(fetching) => {
                if let On::Transaction(view) = &on
                    && first == Some(0)
                    && fetching.is_repeatable()
                {
                    let (view, planned) = (view.clone(), planned.clone());
                    let again = Again { planned, view, env: env.clone() };
                    stream.again = Some(Mutex::new(Box::new(again)));
                }
                let open = Open { planned, on, env, fetching, streamed: None };
                stream.open = Some(Mutex::new(Box::new(open)));
            }
        }
        if first.is_none_or(|first| first > 0) {
            let wanted = first.unwrap_or(BATCH_ROWS).min(BATCH_ROWS);
            self.fill_ahead(&mut stream, wanted)?;
        }
        Ok(stream)
    }

    /// Restarts a query that returns the same rows when repeated. Returns `None` if it might not.
    pub(super) fn begin_again(&mut self, stream: &mut Stream) -> Result<Option<Stream>, SqlError> {
        let Some(again) = &mut stream.again else { return Ok(None) };
        let Again { planned, view, env } =
            &mut **again.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (planned, on, env) = (planned.clone(), On::Transaction(view.clone()), env.clone());
        self.first_rows = Some(0);
        Ok(Some(self.begin_stream(&planned, on, env)?))
    }

    /// Records the results that the client receives from a stream of the transaction, from here on.
    pub(super) fn note_stream(
        &mut self,
        stream: &mut Stream,
        (at, mut streamed): (usize, StreamedResult),
    ) {
        streamed.rows(stream.ahead.make_contiguous());
        if let Some(open) = stream.open_mut() {
            open.streamed = Some((at, streamed));
        } else if let Some(transaction) = &mut self.transaction {
            let count = streamed.count();
            transaction.done.finish(at, streamed, count);
        }
    }

    /// Finds rows until the stream has `wanted` of them, or as much as one batch may hold.
    fn fill_ahead(&mut self, stream: &mut Stream, wanted: usize) -> Result<(), SqlError> {
        let mut bytes = 0;
        while stream.open.is_some() && stream.ahead.len() < wanted && bytes < BATCH_BYTES {
            let rows = self.find(stream, wanted - stream.ahead.len())?;
            let size = size_of_rows(&rows);
            stream.reservation.take(size)?;
            bytes += size;
            stream.ahead.extend(rows);
        }
        Ok(())
    }

    /// Finds some more rows. May return none although the query has not ended.
    fn find(&mut self, stream: &mut Stream, most: usize) -> Result<Vec<Vec<Datum>>, SqlError> {
        self.check_interruption()?;
        let started = Instant::now();
        let Some(open) = stream.open_mut() else { return Ok(Vec::new()) };
        let Open { planned, on, env, fetching, streamed } = open;
        let (select, engine) = (exec::select_of(planned), &self.engine);
        let transaction = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
        let found = match on {
            On::Snapshot(cx) => {
                fetching.fetch(select, most, env, &mut Interruptible::new(cx, engine))
            }
            On::Transaction(view) => transaction.ok_or_else(over)?.under(view, |cx| {
                fetching.fetch(select, most, env, &mut Interruptible::new(cx, engine))
            }),
        };
        let mut rows = found.map_err(|failure| exec::unmarked(planned, failure))?;
        exec::show_names(planned, env, &mut rows)?;
        if let Some((at, mut so_far)) = streamed.take() {
            so_far.rows(&rows);
            let done = self.transaction.as_mut().map(|open| &mut open.done);
            let kept = (at, so_far);
            *streamed = done.and_then(|done| done.go_on(kept, fetching.is_done()));
        }
        let is_done = fetching.is_done();
        self.note_env(env);
        if is_done {
            stream.reservation.keep(size_of_rows(&stream.ahead));
            stream.open = None;
        }
        if let Some(noting) = &mut stream.noting {
            noting.took += started.elapsed();
        }
        self.apply_settings()?;
        Ok(rows)
    }

    /// Returns the next rows of a stream, at most `most`. Returns no rows only at its end.
    pub(super) fn pull(
        &mut self,
        stream: &mut Stream,
        most: usize,
    ) -> Result<Vec<Vec<Datum>>, SqlError> {
        if stream.is_of_query() {
            self.check_interruption()?;
        }
        let mut rows = stream.take_ahead(most);
        while rows.is_empty() && stream.open.is_some() {
            rows = self.find(stream, most)?;
        }
        stream.given += rows.len() as u64;
        if let Some(noting) = &mut stream.noting {
            noting.rows += rows.len() as u64;
        }
        Ok(rows)
    }

    /// Returns the response for a stream. A small result is returned as rows.
    pub(super) fn respond_rows(
        &mut self,
        columns: Vec<OutputColumn>,
        mut stream: Stream,
    ) -> Response {
        let is_small = stream.ahead.len() <= BATCH_ROWS;
        if stream.open.is_none() && is_small && size_of_rows(&stream.ahead) <= BATCH_BYTES {
            let tag = stream.tag(stream.ahead.len() as u64);
            return Response::Rows { columns, rows: stream.ahead.drain(..).collect(), tag };
        }
        let bytes = stream.open_mut().map_or(0, |open| open.on.bytes());
        stream.reservation.take_anyway(bytes);
        self.stream = Some(stream);
        Response::Stream { columns }
    }

    /// Returns the rows of a response as a stream.
    pub(super) fn take_stream(
        &mut self,
        response: Response,
    ) -> Result<(Vec<OutputColumn>, Stream), SqlError> {
        match (response, self.stream.take()) {
            (Response::Rows { columns, rows, tag }, _) => {
                let mut reservation = ResultReservation::of(Some(&self.shared.results));
                reservation.take_anyway(size_of_rows(&rows));
                Ok((columns, Stream::whole(rows, reservation, tag)))
            }
            (Response::Stream { columns }, Some(stream)) => Ok((columns, stream)),
            _ => Err(SqlError::new(code::INTERNAL, "a query without rows")),
        }
    }

    /// Returns the counter of rows and time for a statement's statistics.
    pub(super) fn noting(&self, text: &str) -> Noting {
        let (shared, session) = (self.shared.clone(), self.place.number());
        let user = self.settings.authorization().user().clone();
        Noting { shared, session, user, text: text.into(), rows: 0, took: Duration::ZERO }
    }

    /// Returns the next rows of [`Response::Stream`].
    ///
    /// # Errors
    /// If no stream is in progress, or the query fails.
    pub fn next_rows(&mut self) -> Result<Batch, SqlError> {
        let Some(mut stream) = self.stream.take() else { return Err(no_copy()) };
        match self.pull(&mut stream, BATCH_ROWS) {
            Ok(rows) if stream.is_done() => {
                let tag = stream.tag(stream.given);
                Ok(Batch { rows, tag: Some(tag) })
            }
            Ok(rows) => {
                self.stream = Some(stream);
                Ok(Batch { rows, tag: None })
            }
            Err(error) => Err(self.fail_copy(error)),
        }
    }

    /// Ends a stream whose rows could not be sent to the client, and returns the error.
    pub fn end_rows(&mut self, error: SqlError) -> SqlError {
        self.stream = None;
        self.fail_copy(error)
    }

    /// Returns all rows of [`Response::Stream`] and its command tag.
    ///
    /// # Errors
    /// If no stream is in progress, or the query fails.
    pub fn all_rows(&mut self) -> Result<(Vec<Vec<Datum>>, String), SqlError> {
        let mut all = Vec::new();
        loop {
            let Batch { rows, tag } = self.next_rows()?;
            all.extend(rows);
            if let Some(tag) = tag {
                return Ok((all, tag));
            }
        }
    }
}

/// The error of continuing a query after its transaction has ended.
fn over() -> SqlError {
    SqlError::new(code::NO_TRANSACTION, "the transaction of the query has ended")
}
