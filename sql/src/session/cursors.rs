//! Cursors: the rows of a query, which a client fetches a few at a time.
//!
//! All rows are there from the start. A cursor ends with its transaction, unless it was declared
//! WITH HOLD and the transaction committed.

use std::sync::Arc;

use sqlparser::ast;

use super::{Response, Session, now};
use crate::engine::Engine;
use crate::error::{SqlError, code};
use crate::plan::OutputColumn;
use crate::syntax::cursors::Step;
use crate::syntax::{self, CursorStatement, quoted};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The most cursors of one session.
const CURSORS_MAX: usize = 1_000;

/// A cursor as `pg_cursors` shows it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub name: String,
    pub statement: String,
    pub is_hold: bool,
    pub is_scroll: bool,
    /// When it was declared.
    pub declared: i64,
}

/// A cursor that is open.
#[derive(Debug)]
pub(super) struct Cursor {
    name: String,
    /// The text of its query.
    query: Arc<str>,
    declared: i64,
    columns: Vec<OutputColumn>,
    rows: Vec<Vec<Datum>>,
    /// The row that it is on, from 1; 0 before the first, and one more than there are after the
    /// last.
    at: usize,
    is_scroll: Option<bool>,
    is_hold: bool,
    /// Whether the transaction that declared it has committed.
    is_held: bool,
    /// How many cursors were declared before it.
    number: u64,
}

impl Cursor {
    /// Goes a step, and returns the rows that were met.
    fn step(&mut self, step: Step) -> Result<Vec<Vec<Datum>>, SqlError> {
        let after = self.rows.len() + 1;
        let place = |at: i64| usize::try_from(at).unwrap_or(0).min(after);
        let here = self.at as i64;
        let single = |at: i64| (place(at), (1..after as i64).contains(&at));
        let (target, is_row) = match step {
            Step::Rows(0) | Step::Relative(0) => {
                let row = self.at.checked_sub(1).and_then(|at| self.rows.get(at));
                return Ok(row.cloned().into_iter().collect());
            }
            Step::Rows(count) if count > 0 => {
                let to = place(here.saturating_add(count));
                let met = self.rows[self.at.min(after - 1)..to.min(after - 1)].to_vec();
                self.at = to;
                return Ok(met);
            }
            Step::All { is_backward: false } => return self.step(Step::Rows(i64::MAX)),
            Step::Rows(count) => {
                self.check_backward()?;
                let to = place(here.saturating_add(count));
                let end = self.at.saturating_sub(1);
                let start = to.saturating_sub(1).min(end);
                let met = self.rows[start..end].iter().rev().cloned().collect();
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
        self.at = target;
        Ok(if is_row { vec![self.rows[target - 1].clone()] } else { Vec::new() })
    }

    fn check_backward(&self) -> Result<(), SqlError> {
        if self.is_scroll != Some(false) {
            return Ok(());
        }
        let message = "cursor can only scan forward";
        let hint = "Declare it with SCROLL option to enable backward scan.";
        Err(SqlError::new(code::NOT_PREREQUISITE, message).with_hint(hint))
    }
}

/// The rows of a cursor are read, whatever it is of.
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

impl<E: Engine> Session<E> {
    /// Runs a statement about a cursor.
    pub(super) async fn run_cursor(
        &mut self,
        statement: &CursorStatement,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        match statement {
            CursorStatement::Declare { name, is_scroll, is_hold, query } => {
                if !is_hold && self.transaction.is_none() {
                    let message = "DECLARE CURSOR can only be used in transaction blocks";
                    return Err(SqlError::new(code::NO_TRANSACTION, message));
                }
                if self.cursors.iter().any(|cursor| cursor.name == *name) {
                    let message = format!("cursor \"{name}\" already exists");
                    return Err(SqlError::new(code::DUPLICATE_CURSOR, message));
                }
                if self.cursors.len() >= CURSORS_MAX {
                    let message = format!("a session can have at most {CURSORS_MAX} cursors");
                    return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
                }
                refuse_writes(&query.ast)?;
                let is_alone = self.transaction.is_none();
                let found = Box::pin(self.run_data(query, param_types, params)).await?;
                let Response::Rows { columns, rows, .. } = found else {
                    return Err(SqlError::new(code::INTERNAL, "a query without rows"));
                };
                let number = self.cursors_declared;
                self.cursors_declared += 1;
                let (name, is_scroll) = (name.clone(), *is_scroll);
                let (at, is_hold, is_held) = (0, *is_hold, is_alone);
                let (query, declared) = (query.text.clone(), now());
                self.cursors.push(Cursor {
                    name,
                    query,
                    declared,
                    columns,
                    rows,
                    at,
                    is_scroll,
                    is_hold,
                    is_held,
                    number,
                });
                Ok(Response::Command { tag: statement.tag().to_owned() })
            }
            CursorStatement::Fetch { name, step, is_move } => {
                let cursor = self.cursors.iter_mut().find(|cursor| cursor.name == *name);
                let cursor = cursor.ok_or_else(|| no_cursor(name))?;
                let rows = cursor.step(*step)?;
                let tag = format!("{} {}", statement.tag(), rows.len());
                if *is_move {
                    return Ok(Response::Command { tag });
                }
                Ok(Response::Rows { columns: cursor.columns.clone(), rows, tag })
            }
            CursorStatement::Close(name) => {
                if let Some(name) = name
                    && !self.cursors.iter().any(|cursor| cursor.name == *name)
                {
                    return Err(no_cursor(name));
                }
                let is_meant = |cursor: &Cursor| name.as_ref().is_none_or(|it| *it == cursor.name);
                self.cursors.retain(|cursor| !is_meant(cursor));
                Ok(Response::Command { tag: statement.tag().to_owned() })
            }
        }
    }

    /// What expressions are shown of the cursors.
    pub(super) fn shown_cursors(&self) -> Vec<Shown> {
        let shown = |cursor: &Cursor| {
            let hold = if cursor.is_hold { " WITH HOLD" } else { "" };
            let (name, query) = (&cursor.name, &cursor.query);
            let statement = format!("DECLARE {} CURSOR{hold} FOR {query}", quoted(name));
            Shown {
                name: cursor.name.clone(),
                statement,
                is_hold: cursor.is_hold,
                is_scroll: cursor.is_scroll != Some(false),
                declared: cursor.declared,
            }
        };
        self.cursors.iter().map(shown).collect()
    }

    /// The columns that FETCH returns of a cursor.
    pub(super) fn cursor_columns(&self, name: &str) -> Result<Vec<OutputColumn>, SqlError> {
        let found = self.cursors.iter().find(|cursor| cursor.name == name);
        found.map(|cursor| cursor.columns.clone()).ok_or_else(|| no_cursor(name))
    }

    /// The transaction is over: what was declared WITH HOLD stays if it committed.
    pub(super) fn end_cursors(&mut self, has_committed: bool) {
        self.cursors.retain(|cursor| cursor.is_held || cursor.is_hold && has_committed);
        self.cursors.iter_mut().for_each(|cursor| cursor.is_held = true);
    }

    /// What was declared since a savepoint is gone.
    pub(super) fn forget_cursors(&mut self, declared: u64) {
        self.cursors.retain(|cursor| cursor.is_held || cursor.number < declared);
    }
}
