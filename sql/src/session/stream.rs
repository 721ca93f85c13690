//! Results as streams: rows are found as they are asked for.
//!
//! ```text
//!   a query --begin--> Stream <--pull-- a simple query: next_rows, until they are over
//!                                       Execute: so many as it asks for
//!                                       FETCH of a cursor
//!                                       COPY TO
//! ```
//!
//! A stream outside of a transaction has its own snapshot. One of a transaction reads as its own
//! writes were when it began; what it reads is recorded when it reads it, so that a transaction is
//! held to what its client was told and to no more. What a plan makes whole is a stream whose rows
//! are there already, and counts against what the results of the node may take.

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
use crate::held::{Held, size_of_row, size_of_rows};
use crate::plan::{OutputColumn, Planned};
use crate::replay::Told;
use crate::types::datum::Datum;

/// Rows of one result.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The next of them.
    pub rows: Vec<Vec<Datum>>,
    /// PostgreSQL's tag, where these are the last.
    pub tag: Option<String>,
}

/// What a query reads.
pub(super) enum On {
    /// A snapshot of its own.
    Snapshot(LocalContext),
    /// That of the transaction that is open, with these of its writes.
    Transaction(View),
}

impl On {
    /// What it keeps of the writes of a transaction that writes more.
    fn bytes(&self) -> usize {
        match self {
            Self::Snapshot(_) => 0,
            Self::Transaction(view) => view.bytes,
        }
    }
}

/// A query whose rows are not all found.
struct Open {
    planned: Arc<Planned>,
    on: On,
    env: Env,
    fetching: Fetching,
    /// Which statement of the transaction it is, and what its client was told of it.
    told: Option<(usize, Told)>,
}

/// The rows of a result that its client has not been given.
pub(super) struct Stream {
    /// Those that are there.
    ahead: VecDeque<Vec<Datum>>,
    held: Held,
    /// Where more come from. Never locked: some of it can't be looked at by two threads, and this
    /// says that none does.
    open: Option<Mutex<Box<Open>>>,
    /// How many were given.
    given: u64,
    /// The tag of what is no query.
    tag: Option<String>,
    /// What it took last of sequences.
    pub drawn: Vec<(u32, i64)>,
    noting: Option<Noting>,
    again: Option<Mutex<Box<Again>>>,
}

/// What a query of a transaction begins with, so that it can begin once more.
struct Again {
    planned: Arc<Planned>,
    view: View,
    env: Env,
}

impl Stream {
    /// One of rows that are all there.
    pub(super) fn whole(rows: Vec<Vec<Datum>>, held: Held, tag: String) -> Self {
        let (ahead, tag) = (rows.into(), Some(tag));
        let drawn = Vec::new();
        Self { ahead, held, open: None, given: 0, tag, drawn, noting: None, again: None }
    }

    /// Whether there are no more.
    pub(super) fn is_done(&self) -> bool {
        self.ahead.is_empty() && self.open.is_none()
    }

    /// Whether it reads what the transaction that is open reads.
    pub(super) fn is_of_transaction(&mut self) -> bool {
        self.open_mut().is_some_and(|open| matches!(open.on, On::Transaction(_)))
    }

    /// PostgreSQL's tag after so many rows.
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
        self.held.give_back(bytes);
        rows
    }

    /// What the node knows of its statement is to have its rows.
    pub(super) fn note(&mut self, noting: Noting) {
        self.noting = Some(noting);
    }
}

/// Where the rows of a statement are noted, and the time that finding them takes, once it is over.
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
    /// Begins to run a query, and finds its first rows: so many, where somebody asked for that.
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
            held: Held::of(Some(&self.shared.results)),
            open: None,
            given: 0,
            tag: None,
            drawn: env.current(),
            noting: None,
            again: None,
        };
        match found {
            Found::Whole(rows, held) => (stream.ahead, stream.held) = (rows.into(), held),
            Found::Some(fetching) => {
                if let On::Transaction(view) = &on
                    && first == Some(0)
                    && fetching.is_repeatable()
                {
                    let (view, planned) = (view.clone(), planned.clone());
                    let again = Again { planned, view, env: env.clone() };
                    stream.again = Some(Mutex::new(Box::new(again)));
                }
                let open = Open { planned, on, env, fetching, told: None };
                stream.open = Some(Mutex::new(Box::new(open)));
            }
        }
        if first.is_none_or(|first| first > 0) {
            let wanted = first.unwrap_or(BATCH_ROWS).min(BATCH_ROWS);
            self.fill_ahead(&mut stream, wanted)?;
        }
        Ok(stream)
    }

    /// Begins once more what comes to the same rows; nothing where it might not.
    pub(super) fn begin_again(&mut self, stream: &mut Stream) -> Result<Option<Stream>, SqlError> {
        let Some(again) = &mut stream.again else { return Ok(None) };
        let Again { planned, view, env } =
            &mut **again.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (planned, on, env) = (planned.clone(), On::Transaction(view.clone()), env.clone());
        self.first_rows = Some(0);
        Ok(Some(self.begin_stream(&planned, on, env)?))
    }

    /// What its client was told of a stream of the transaction is noted from here on.
    pub(super) fn note_stream(&mut self, stream: &mut Stream, (at, mut told): (usize, Told)) {
        told.rows(stream.ahead.make_contiguous());
        if let Some(open) = stream.open_mut() {
            open.told = Some((at, told));
        } else if let Some(transaction) = &mut self.transaction {
            let count = told.count();
            transaction.done.finish(at, told, count);
        }
    }

    /// Finds rows until so many are there, or as much as is given at once.
    fn fill_ahead(&mut self, stream: &mut Stream, wanted: usize) -> Result<(), SqlError> {
        let mut bytes = 0;
        while stream.open.is_some() && stream.ahead.len() < wanted && bytes < BATCH_BYTES {
            let rows = self.find(stream, wanted - stream.ahead.len())?;
            let size = size_of_rows(&rows);
            stream.held.take(size)?;
            bytes += size;
            stream.ahead.extend(rows);
        }
        Ok(())
    }

    /// Finds some more rows. There may be none in between.
    fn find(&mut self, stream: &mut Stream, most: usize) -> Result<Vec<Vec<Datum>>, SqlError> {
        self.check_interruption()?;
        let started = Instant::now();
        let Some(open) = stream.open_mut() else { return Ok(Vec::new()) };
        let Open { planned, on, env, fetching, told } = open;
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
        if let Some((at, mut so_far)) = told.take() {
            so_far.rows(&rows);
            let done = self.transaction.as_mut().map(|open| &mut open.done);
            let kept = (at, so_far);
            *told = done.and_then(|done| done.go_on(kept, fetching.is_done()));
        }
        let is_done = fetching.is_done();
        self.note_env(env);
        if is_done {
            stream.held.keep(size_of_rows(&stream.ahead));
            stream.open = None;
        }
        if let Some(noting) = &mut stream.noting {
            noting.took += started.elapsed();
        }
        self.apply_settings()?;
        Ok(rows)
    }

    /// The next rows of a stream, no more than so many: none at its end.
    pub(super) fn pull(
        &mut self,
        stream: &mut Stream,
        most: usize,
    ) -> Result<Vec<Vec<Datum>>, SqlError> {
        self.check_interruption()?;
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

    /// A response of rows: the rows themselves where they are few.
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
        stream.held.take_anyway(bytes);
        self.stream = Some(stream);
        Response::Stream { columns }
    }

    /// The rows of a response, as they are given.
    pub(super) fn take_stream(
        &mut self,
        response: Response,
    ) -> Result<(Vec<OutputColumn>, Stream), SqlError> {
        match (response, self.stream.take()) {
            (Response::Rows { columns, rows, tag }, _) => {
                let mut held = Held::of(Some(&self.shared.results));
                held.take_anyway(size_of_rows(&rows));
                Ok((columns, Stream::whole(rows, held, tag)))
            }
            (Response::Stream { columns }, Some(stream)) => Ok((columns, stream)),
            _ => Err(SqlError::new(code::INTERNAL, "a query without rows")),
        }
    }

    /// Where what is known of a statement is noted.
    pub(super) fn noting(&self, text: &str) -> Noting {
        let (shared, session) = (self.shared.clone(), self.place.number());
        let user = self.settings.authorization().user().clone();
        Noting { shared, session, user, text: text.into(), rows: 0, took: Duration::ZERO }
    }

    /// The next rows of [`Response::Stream`].
    ///
    /// # Errors
    /// When there is none under way, or the query fails.
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

    /// Ends a stream whose rows its client can't be told, and passes the error on.
    pub fn end_rows(&mut self, error: SqlError) -> SqlError {
        self.stream = None;
        self.fail_copy(error)
    }

    /// All rows of [`Response::Stream`] and the tag, for whoever wants them whole.
    ///
    /// # Errors
    /// When there is none under way, or the query fails.
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

/// The error of who goes on with a query whose transaction is over.
fn over() -> SqlError {
    SqlError::new(code::NO_TRANSACTION, "the transaction of the query has ended")
}
