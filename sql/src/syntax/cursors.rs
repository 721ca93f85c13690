//! DECLARE, FETCH, MOVE and CLOSE, in PostgreSQL's grammar.

use sqlparser::ast;
use sqlparser::tokenizer::{Location, Token, TokenWithSpan};

use super::words::Words;
use super::{Parsed, is_write, name};
use crate::error::SqlError;

/// A statement about a cursor.
#[derive(Clone, Debug)]
pub(crate) enum CursorStatement {
    Declare {
        name: String,
        /// SCROLL or NO SCROLL. `None` if neither is specified.
        is_scroll: Option<bool>,
        /// Whether the cursor outlives its transaction (WITH HOLD).
        is_hold: bool,
        query: Box<Parsed>,
    },
    Fetch {
        name: String,
        step: Step,
        /// Whether rows are only skipped (MOVE).
        is_move: bool,
    },
    /// Closes the named cursor, or all cursors if `None`.
    Close(Option<String>),
}

/// The rows that a FETCH or MOVE covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This number of the next rows. If negative, of the preceding rows.
    Rows(i64),
    /// All rows that are left, or all preceding rows.
    All { is_backward: bool },
    /// The row at a position, counted from the end if negative.
    Absolute(i64),
    /// The row at a distance from the current one.
    Relative(i64),
}

/// A statement whose query has yet to be parsed.
pub(super) enum Begun {
    Declare { name: String, is_scroll: Option<bool>, is_hold: bool },
    Whole(CursorStatement),
}

impl Begun {
    /// Returns the statement with its query. Returns `None` if a DECLARE has no query.
    pub(super) fn with(self, query: Option<Parsed>) -> Option<CursorStatement> {
        match (self, query) {
            (Self::Whole(statement), _) => Some(statement),
            (Self::Declare { name, is_scroll, is_hold }, Some(query)) if asks(&query) => {
                Some(CursorStatement::Declare { name, is_scroll, is_hold, query: Box::new(query) })
            }
            (Self::Declare { .. }, _) => None,
        }
    }
}

/// Returns whether a statement is a query.
fn asks(parsed: &Parsed) -> bool {
    matches!(&*parsed.ast, ast::Statement::Query(query) if !is_write(query))
}

impl CursorStatement {
    /// Returns PostgreSQL's command tag, without a count.
    pub(crate) fn tag(&self) -> &'static str {
        match self {
            Self::Declare { .. } => "DECLARE CURSOR",
            Self::Fetch { is_move: false, .. } => "FETCH",
            Self::Fetch { is_move: true, .. } => "MOVE",
            Self::Close(None) => "CLOSE CURSOR ALL",
            Self::Close(Some(_)) => "CLOSE CURSOR",
        }
    }
}

/// Parses a statement about a cursor from tokens without blanks. Returns `None` for any other
/// statement. For a DECLARE it also returns the location where the query begins.
///
/// # Errors
/// 42601 if the statement is malformed.
pub(super) fn parse(
    source: &str,
    start: usize,
    tokens: &[&TokenWithSpan],
) -> Result<Option<(Begun, Option<Location>)>, SqlError> {
    let mut words = Words { source, start, tokens, at: 0 };
    let statement = if words.take("DECLARE") {
        let declare = words.declare()?;
        return Ok(Some((declare, Some(words.place()))));
    } else if words.take("FETCH") {
        words.fetch(false)?
    } else if words.take("MOVE") {
        words.fetch(true)?
    } else if words.take("CLOSE") {
        let is_all = words.take("ALL");
        CursorStatement::Close(if is_all { None } else { Some(name(&words.ident()?)) })
    } else {
        return Ok(None);
    };
    match tokens.get(words.at) {
        None => Ok(Some((Begun::Whole(statement), None))),
        Some(_) => Err(words.unexpected()),
    }
}

impl Words<'_> {
    fn declare(&mut self) -> Result<Begun, SqlError> {
        let name = name(&self.ident()?);
        let mut is_scroll = None;
        loop {
            if self.take("NO SCROLL") {
                is_scroll = Some(false);
            } else if self.take("SCROLL") {
                is_scroll = Some(true);
            } else if self.take("BINARY") {
                return Err(SqlError::unsupported("DECLARE BINARY"));
            } else if self.take_one(&["INSENSITIVE", "ASENSITIVE"]).is_none() {
                break;
            }
        }
        self.expect("CURSOR")?;
        let is_hold = self.take("WITH HOLD");
        if !is_hold {
            self.take("WITHOUT HOLD");
        }
        self.expect("FOR")?;
        if self.token().is_none() {
            return Err(self.unexpected());
        }
        Ok(Begun::Declare { name, is_scroll, is_hold })
    }

    fn fetch(&mut self, is_move: bool) -> Result<CursorStatement, SqlError> {
        let step = self.step()?;
        let _ = self.take_one(&["FROM", "IN"]);
        let name = name(&self.ident()?);
        Ok(CursorStatement::Fetch { name, step, is_move })
    }

    fn step(&mut self) -> Result<Step, SqlError> {
        if self.take("NEXT") {
            return Ok(Step::Rows(1));
        } else if self.take("PRIOR") {
            return Ok(Step::Rows(-1));
        } else if self.take("FIRST") {
            return Ok(Step::Absolute(1));
        } else if self.take("LAST") {
            return Ok(Step::Absolute(-1));
        } else if self.take("ALL") {
            return Ok(Step::All { is_backward: false });
        } else if self.take("ABSOLUTE") {
            return Ok(Step::Absolute(self.count()?.ok_or_else(|| self.unexpected())?));
        } else if self.take("RELATIVE") {
            return Ok(Step::Relative(self.count()?.ok_or_else(|| self.unexpected())?));
        }
        let is_backward = match self.take_one(&["FORWARD", "BACKWARD"]) {
            Some(word) => word == "BACKWARD",
            None => return Ok(Step::Rows(self.count()?.unwrap_or(1))),
        };
        if self.take("ALL") {
            return Ok(Step::All { is_backward });
        }
        let count = self.count()?.unwrap_or(1);
        Ok(Step::Rows(if is_backward { count.saturating_neg() } else { count }))
    }

    /// Parses a whole number with an optional sign. Returns `None` if neither comes next.
    fn count(&mut self) -> Result<Option<i64>, SqlError> {
        let before = self.at;
        let is_negative = self.take_token(&Token::Minus);
        if !is_negative {
            self.take_token(&Token::Plus);
        }
        let Some(Token::Number(digits, _)) = self.token() else {
            return if self.at == before { Ok(None) } else { Err(self.unexpected()) };
        };
        let number = digits.parse::<i32>().map_err(|_| self.unexpected())?;
        self.at += 1;
        Ok(Some(i64::from(if is_negative { -number } else { number })))
    }
}
