//! Cursors: the rows of a query, which a client fetches in batches.
//!
//! Rows are read on demand, on the snapshot and with the transaction's own writes at the time of
//! DECLARE. A cursor declared with SCROLL retains the rows that it has passed; any other cursor
//! retains about one batch. If the latter moves back further, it runs its query again from the
//! start. If the query would not return the same rows again, the cursor can only move forward. A
//! cursor ends with its transaction, unless it was declared WITH HOLD: then all rows are read at
//! once.

use std::sync::Arc;

use sqlparser::ast;

use super::stream::Stream;
use super::{Response, Session, now};
use crate::error::{SqlError, code};
use crate::exec::{self, BATCH_BYTES, BATCH_ROWS};
use crate::result_memory::{ResultReservation, size_of_rows};
use crate::syntax::cursors::Step;
use crate::syntax::{self, CursorStatement, quoted};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::cursor::ShownCursor;

/// The maximum number of cursors in a session.
const CURSORS_MAX: usize = 1_000;

/// An open cursor.
struct Cursor {
    name: String,
    /// The text of its query.
    query: Arc<str>,
    declared: i64,
    columns: Vec<OutputColumn>,
    /// The retained rows. The first `forgotten` rows have been discarded.
    rows: Vec<Vec<Datum>>,
    forgotten: usize,
    reservation: ResultReservation,
    /// The source of further rows.
    stream: Stream,
    /// The current row, from 1. It is 0 before the first row, and the number of rows plus 1 after
    /// the last.
    at: usize,
    is_scroll: Option<bool>,
    is_hold: bool,
    /// Whether the transaction that declared it has committed.
    is_held: bool,
    /// The number of cursors declared before it.
    number: u64,
}

impl Cursor {
    /// Returns the number of rows read so far.
    fn known(&self) -> usize {
        self.forgotten + self.rows.len()
    }

    /// Returns the last row that a step needs, from 1; it must be read before the step.
    fn wanted(&self, step: Step) -> usize {
        let place = |at: i64| usize::try_from(at).unwrap_or(0);
        match step {
            Step::Rows(count) | Step::Relative(count) => {
                place((self.at as i64).saturating_add(count))
            }
            Step::Absolute(at) if at >= 0 => place(at),
            Step::All { is_backward: true } => 0,
            Step::Absolute(_) | Step::All { is_backward: false } => usize::MAX,
        }
    }

    /// Whether a step needs a discarded row.
    fn has_forgotten(&self, step: Step) -> bool {
        let first = match step {
            Step::Rows(0) => self.at as i64,
            Step::Rows(count) | Step::Relative(count) if count < 0 => self.at as i64 + count,
            Step::Rows(_) | Step::Relative(_) | Step::All { is_backward: false } => return false,
            Step::Absolute(at) if at < 0 => self.known() as i64 + 1 + at,
            Step::Absolute(at) => at,
            Step::All { is_backward: true } => 1,
        };
        first.max(1) <= self.forgotten as i64
    }

    /// Returns the rows `from` to before `to`, both from 1.
    fn between(&self, from: usize, to: usize) -> Result<&[Vec<Datum>], SqlError> {
        let place = |at: usize| (at - 1).checked_sub(self.forgotten);
        match (place(from), place(to)) {
            _ if from >= to => Ok(&[]),
            (Some(from), Some(to)) => Ok(&self.rows[from..to]),
            _ => Err(only_forward()),
        }
    }

    /// Moves the cursor among the rows already read, and returns the rows fetched.
    fn step(&mut self, step: Step) -> Result<Vec<Vec<Datum>>, SqlError> {
        let after = self.known() + 1;
        let place = |at: i64| usize::try_from(at).unwrap_or(0).min(after);
        let here = self.at as i64;
        let single = |at: i64| (place(at), (1..after as i64).contains(&at));
        let (target, is_row) = match step {
            Step::Rows(0) | Step::Relative(0) => {
                let is_row = (1..after).contains(&self.at);
                let end = if is_row { self.at + 1 } else { self.at };
                return Ok(self.between(self.at.max(1), end)?.to_vec());
            }
            Step::Rows(count) if count > 0 => {
                let to = place(here.saturating_add(count));
                let met = self.between(self.at + 1, (to + 1).min(after))?.to_vec();
                self.at = to;
                return Ok(met);
            }
            Step::All { is_backward: false } => return self.step(Step::Rows(i64::MAX)),
            Step::Rows(count) => {
                self.check_backward()?;
                let to = place(here.saturating_add(count));
                let met = self.between(to.max(1), self.at.max(1))?;
                let met = met.iter().rev().cloned().collect();
                self.at = to;
                return Ok(met);
            }
            Step::All { is_backward: true } => return self.step(Step::Rows(i64::MIN + 1)),
            Step::Absolute(at) if at < 0 => single(after as i64 + at),
            Step::Absolute(at) => single(at),
            Step::Relative(count) => single(here.saturating_add(count)),
        };
        if target < self.at || matches!(step, Step::Absolute(at) if at < 0) {
            self.check_backward()?;
        }
        let met = if is_row { self.between(target, target + 1)?.to_vec() } else { Vec::new() };
        self.at = target;
        Ok(met)
    }

    fn check_backward(&self) -> Result<(), SqlError> {
        if self.is_scroll != Some(false) { Ok(()) } else { Err(only_forward()) }
    }

    /// Discards the rows that it has passed if they are many, unless the client may move back.
    fn forget(&mut self) {
        let passed = (self.at.saturating_sub(1)).saturating_sub(self.forgotten);
        let passed = passed.min(self.rows.len());
        if self.is_scroll == Some(true) || self.is_hold || passed == 0 {
            return;
        }
        if self.rows.len() <= BATCH_ROWS && size_of_rows(&self.rows) <= BATCH_BYTES {
            return;
        }
        self.reservation.give_back(size_of_rows(&self.rows[..passed]));
        self.rows.drain(..passed);
        self.forgotten += passed;
    }
}

fn only_forward() -> SqlError {
    let message = "cursor can only scan forward";
    let hint = "Declare it with SCROLL option to enable backward scan.";
    SqlError::new(code::NOT_PREREQUISITE, message).with_hint(hint)
}

/// Rejects data-modifying statements in WITH.
fn refuse_writes(statement: &ast::Statement) -> Result<(), SqlError> {
    if matches!(statement, ast::Statement::Query(query) if syntax::names_write(query)) {
        let message = "DECLARE CURSOR must not contain data-modifying statements in WITH";
        return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
    }
    Ok(())
}

fn no_cursor(name: &str) -> SqlError {
    SqlError::new(code::NO_PORTAL, format!("cursor \"{name}\" does not exist"))
}

/// The open cursors of a session, in the order of their declaration.
#[derive(Default)]
pub(super) struct Cursors {
    open: Vec<Cursor>,
    /// The number of cursors that the session has declared.
    pub declared: u64,
}

impl Cursors {
    fn position(&self, name: &str) -> Option<usize> {
        self.open.iter().position(|cursor| cursor.name == name)
    }

    /// Returns the cursors for display.
    pub(super) fn shown(&self) -> Vec<ShownCursor> {
        let shown = |cursor: &Cursor| {
            let hold = if cursor.is_hold { " WITH HOLD" } else { "" };
            let (name, query) = (&cursor.name, &cursor.query);
            let statement = format!("DECLARE {} CURSOR{hold} FOR {query}", quoted(name));
            ShownCursor {
                name: cursor.name.clone(),
                statement,
                is_hold: cursor.is_hold,
                is_scroll: cursor.is_scroll != Some(false),
                declared: cursor.declared,
            }
        };
        self.open.iter().map(shown).collect()
    }

    /// Returns the columns that FETCH returns from a cursor.
    pub(super) fn columns(&self, name: &str) -> Result<Vec<OutputColumn>, SqlError> {
        let found = self.open.iter().find(|cursor| cursor.name == name);
        found.map(|cursor| cursor.columns.clone()).ok_or_else(|| no_cursor(name))
    }

    /// Closes all cursors.
    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    /// Closes the cursors of a finished transaction, except those WITH HOLD if it committed.
    fn end(&mut self, has_committed: bool) {
        self.open.retain(|cursor| cursor.is_held || cursor.is_hold && has_committed);
        self.open.iter_mut().for_each(|cursor| cursor.is_held = true);
    }

    /// Closes the cursors declared since a savepoint.
    pub(super) fn forget(&mut self, declared: u64) {
        self.open.retain(|cursor| cursor.is_held || cursor.number < declared);
    }
}

impl Session {
    /// Runs a statement about a cursor.
    pub(super) async fn run_cursor(
        &mut self,
        statement: &CursorStatement,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        match statement {
            CursorStatement::Declare { name, is_hold, .. } => {
                if !is_hold && self.transaction.is_none() {
                    let message = "DECLARE CURSOR can only be used in transaction blocks";
                    return Err(SqlError::new(code::NO_TRANSACTION, message));
                }
                if self.cursors.position(name).is_some() {
                    let message = format!("cursor \"{name}\" already exists");
                    return Err(SqlError::new(code::DUPLICATE_CURSOR, message));
                }
                if self.cursors.open.len() >= CURSORS_MAX {
                    let message = format!("a session can have at most {CURSORS_MAX} cursors");
                    return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
                }
                self.declare(statement, param_types, params).await?;
                Ok(Response::Command { tag: statement.tag().to_owned() })
            }
            CursorStatement::Fetch { name, step, is_move } => {
                let at = self.cursors.position(name);
                let at = at.ok_or_else(|| no_cursor(name))?;
                let mut cursor = self.cursors.open.remove(at);
                let rows = self.step(&mut cursor, *step);
                let columns = cursor.columns.clone();
                self.cursors.open.insert(at, cursor);
                let rows = rows?;
                let tag = format!("{} {}", statement.tag(), rows.len());
                if *is_move {
                    return Ok(Response::Command { tag });
                }
                let mut reservation = ResultReservation::of(Some(&self.shared.results));
                reservation.take_anyway(size_of_rows(&rows));
                Ok(self.respond_rows(columns, Stream::whole(rows, reservation, tag)))
            }
            CursorStatement::Close(name) => {
                if let Some(name) = name
                    && self.cursors.position(name).is_none()
                {
                    return Err(no_cursor(name));
                }
                let is_meant = |cursor: &Cursor| name.as_ref().is_none_or(|it| *it == cursor.name);
                self.cursors.open.retain(|cursor| !is_meant(cursor));
                Ok(Response::Command { tag: statement.tag().to_owned() })
            }
        }
    }

    async fn declare(
        &mut self,
        statement: &CursorStatement,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<(), SqlError> {
        let CursorStatement::Declare { name, is_scroll, is_hold, query } = statement else {
            unreachable!("the caller has looked")
        };
        refuse_writes(&query.ast)?;
        let is_alone = self.transaction.is_none();
        self.first_rows = Some(0);
        let found = Box::pin(self.run_data(query, param_types, params)).await;
        self.first_rows = None;
        let (columns, stream) = self.take_stream(found?)?;
        let number = self.cursors.declared;
        self.cursors.declared += 1;
        let mut cursor = Cursor {
            name: name.clone(),
            query: query.text.clone(),
            declared: now(),
            columns,
            rows: Vec::new(),
            forgotten: 0,
            reservation: ResultReservation::of_many(&self.shared.results),
            stream,
            at: 0,
            is_scroll: *is_scroll,
            is_hold: *is_hold,
            is_held: is_alone,
            number,
        };
        if *is_hold {
            // It outlives its snapshot, so all rows are read now.
            self.know(&mut cursor, usize::MAX)?;
        }
        self.cursors.open.push(cursor);
        Ok(())
    }

    /// Reads rows of a cursor until `wanted` rows are known, or there are no more.
    fn know(&mut self, cursor: &mut Cursor, wanted: usize) -> Result<(), SqlError> {
        let mut bytes = size_of_rows(&cursor.rows);
        while cursor.known() < wanted && !cursor.stream.is_done() {
            let most = wanted - cursor.known();
            let rows = self.pull(&mut cursor.stream, most)?;
            let size = size_of_rows(&rows);
            bytes += size;
            exec::check_size(cursor.rows.len() + rows.len(), bytes)?;
            cursor.reservation.take(size)?;
            cursor.rows.extend(rows);
        }
        Ok(())
    }

    /// Moves a cursor.
    fn step(&mut self, cursor: &mut Cursor, step: Step) -> Result<Vec<Vec<Datum>>, SqlError> {
        let wanted = cursor.wanted(step);
        self.know(cursor, wanted)?;
        if cursor.has_forgotten(step)
            && cursor.is_scroll != Some(false)
            && let Some(stream) = self.begin_again(&mut cursor.stream)?
        {
            // A client that moved back once will probably do so again.
            (cursor.stream, cursor.is_scroll) = (stream, Some(true));
            (cursor.rows, cursor.forgotten) = (Vec::new(), 0);
            cursor.reservation.keep(0);
            let known = if wanted == usize::MAX { wanted } else { cursor.at };
            self.know(cursor, known)?;
        }
        let met = cursor.step(step);
        cursor.forget();
        met
    }

    /// Closes the cursors of a finished transaction, except those WITH HOLD if it committed.
    pub(super) fn end_cursors(&mut self, has_committed: bool) {
        self.cursors.end(has_committed);
        // Portals that read within the transaction end with it, too.
        self.portals.retain(|_, portal| !portal.is_of_transaction());
    }
}
