//! The extended protocol: prepared statements and portals.

use std::sync::Arc;

use super::command::{Command, Modes};
use super::stream::Stream;
use super::{CopyStart, Response, Session, TransactionStatus};
use crate::error::{SqlError, code};
use crate::exec::BATCH_ROWS;
use crate::result_memory::ResultReservation;
use crate::syntax::{self, CursorStatement};
use crate::types::datum::Datum;
use crate::types::{SqlType, binary, text, unsupported_name};
use crate::vocabulary::column::OutputColumn;

/// The maximum number of prepared statements in a session, and of portals.
const PREPARED_MAX: usize = 10_000;

/// A prepared statement.
#[derive(Debug)]
pub(super) struct Prepared {
    /// `None` for an empty text.
    pub(super) command: Option<Command>,
    pub(super) params: Vec<SqlType>,
    pub(super) columns: Vec<OutputColumn>,
}

/// A portal: a statement with its parameters, and its rows once it runs.
pub(super) struct Portal {
    prepared: Arc<Prepared>,
    params: Vec<Datum>,
    formats: Vec<bool>,
    running: Option<Running>,
}

struct Running {
    stream: Stream,
    /// The number of rows that the current Execute requested (`None` for all), and the number
    /// returned.
    asked: Option<u64>,
    given: u64,
}

impl Portal {
    /// Whether it reads within the open transaction.
    pub(super) fn is_of_transaction(&mut self) -> bool {
        self.running.as_mut().is_some_and(|running| running.stream.is_of_transaction())
    }
}

/// The description of a statement or a portal.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// The types of the parameters.
    pub params: Vec<SqlType>,
    /// The columns of the rows; empty if it returns no rows.
    pub columns: Vec<OutputColumn>,
    /// The format of each column: whether it is binary.
    pub formats: Vec<bool>,
}

/// The result of one execution of a portal.
#[derive(Clone, Debug, PartialEq)]
pub enum Execution {
    /// The text contained no statement.
    Empty,
    /// Complete, after these rows.
    Complete {
        /// The rows.
        rows: Vec<Vec<Datum>>,
        /// PostgreSQL's command tag.
        tag: String,
    },
    /// A COPY FROM started: the client must send rows.
    CopyIn(CopyStart),
    /// A COPY TO started: the client must fetch rows.
    CopyOut(CopyStart),
    /// Some of the requested rows; [`Session::execute_next`] returns more.
    Partial {
        /// The rows.
        rows: Vec<Vec<Datum>>,
    },
    /// The requested number of rows; there may be more.
    Suspended {
        /// The rows.
        rows: Vec<Vec<Datum>>,
    },
}

impl Session {
    /// Prepares a statement. Types of 0 are inferred from the context of the parameters.
    ///
    /// # Errors
    /// If the text is not exactly one statement, or its names or types are wrong.
    pub async fn parse(
        &mut self,
        name: &str,
        source: &str,
        type_oids: &[u32],
    ) -> Result<(), SqlError> {
        self.begin_statement();
        let result = self.prepare(name, source, type_oids).await;
        result.map_err(|error| self.fail_block(error))
    }

    pub(super) async fn prepare(
        &mut self,
        name: &str,
        source: &str,
        type_oids: &[u32],
    ) -> Result<(), SqlError> {
        if !name.is_empty() && self.statements.contains_key(name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_STATEMENT, message));
        }
        check_count(self.statements.len(), "prepared statements")?;
        let mut parsed = syntax::parse(source)?;
        if parsed.len() > 1 {
            let message = "cannot insert multiple commands into a prepared statement";
            return Err(SqlError::new(code::SYNTAX, message));
        }
        let types = type_oids.iter().map(|&oid| param_type(oid)).collect::<Result<Vec<_>, _>>()?;
        let Some(parsed) = parsed.pop() else {
            let empty = Prepared { command: None, params: Vec::new(), columns: Vec::new() };
            self.statements.insert(name.to_owned(), Arc::new(empty));
            return Ok(());
        };
        let command = Command::new(parsed)?;
        self.refuse_when_failed(&command)?;
        let (params, columns) = self.describe_command(&command, &types).await?;
        let prepared = Prepared { command: Some(command), params, columns };
        self.statements.insert(name.to_owned(), Arc::new(prepared));
        Ok(())
    }

    pub(super) async fn describe_command(
        &mut self,
        command: &Command,
        types: &[Option<SqlType>],
    ) -> Result<(Vec<SqlType>, Vec<OutputColumn>), SqlError> {
        let text_column = |name: &str| OutputColumn::new(name, SqlType::Text);
        match command {
            Command::Data(parsed) => {
                if let Some(call) = self.native_call(parsed)? {
                    return self.describe_native(&call, types).await;
                }
                let planned = if let Some(as_of) = &parsed.as_of {
                    Arc::new(self.plan_as_of((parsed, as_of), types)?.0)
                } else if self.transaction.is_some() {
                    self.plan_in_transaction(parsed, types).await?
                } else {
                    self.plan(parsed, types).await?.0
                };
                Ok((planned.params.clone(), planned.columns.clone()))
            }
            Command::Explain(explain) => {
                let statement = Command::Data(explain.statement.clone());
                let described = Box::pin(self.describe_command(&statement, types));
                let column = super::explain::column(explain.options.format);
                Ok((described.await?.0, vec![column]))
            }
            Command::Cursor(cursor) => match &**cursor {
                CursorStatement::Declare { query, .. } => {
                    let query = Command::Data((**query).clone());
                    let described = Box::pin(self.describe_command(&query, types));
                    Ok((described.await?.0, Vec::new()))
                }
                CursorStatement::Fetch { name, is_move: false, .. } => {
                    Ok((Vec::new(), self.cursors.columns(name)?))
                }
                _ => Ok((Vec::new(), Vec::new())),
            },
            Command::Execute { name, .. } => Ok((Vec::new(), self.prepared(name)?.columns.clone())),
            Command::Show(name) => {
                let name = super::Settings::shown_name(name);
                Ok((Vec::new(), vec![text_column(name)]))
            }
            Command::ShowAll => {
                let names = ["name", "setting", "description"];
                Ok((Vec::new(), names.map(text_column).to_vec()))
            }
            _ => Ok((Vec::new(), Vec::new())),
        }
    }

    /// Binds parameters to a prepared statement. Formats are 0 for text and 1 for binary. The list
    /// of formats is empty for all text, or has one for all values, or one for each.
    ///
    /// # Errors
    /// If the statement does not exist, or a value is not of its type.
    pub fn bind(
        &mut self,
        portal: &str,
        statement: &str,
        values: &[Option<&[u8]>],
        value_formats: &[i16],
        result_formats: &[i16],
    ) -> Result<(), SqlError> {
        let bound = self.bind_values(statement, values, value_formats, result_formats);
        let bound = bound.and_then(|bound| {
            if !portal.is_empty() && self.portals.contains_key(portal) {
                let message = format!("cursor \"{portal}\" already exists");
                return Err(SqlError::new(code::DUPLICATE_CURSOR, message));
            }
            check_count(self.portals.len(), "portals")?;
            Ok(bound)
        });
        match bound {
            Ok(bound) => {
                self.portals.insert(portal.to_owned(), bound);
                Ok(())
            }
            Err(error) => Err(self.fail_block(error)),
        }
    }

    fn bind_values(
        &self,
        statement: &str,
        values: &[Option<&[u8]>],
        value_formats: &[i16],
        result_formats: &[i16],
    ) -> Result<Portal, SqlError> {
        let prepared = self.prepared(statement)?.clone();
        if let Some(command) = &prepared.command {
            self.refuse_when_failed(command)?;
        }
        if values.len() != prepared.params.len() {
            let message = format!(
                "bind message supplies {} parameters, but prepared statement \"{statement}\" \
                 requires {}",
                values.len(),
                prepared.params.len()
            );
            return Err(SqlError::new(code::PROTOCOL_VIOLATION, message));
        }
        let (params, columns) = (values.len(), prepared.columns.len());
        let expected = || format!("parameter formats but {params} parameters");
        let value_formats = spread_formats(value_formats, params, expected)?;
        let expected = || format!("result formats but query has {columns} columns");
        let formats = spread_formats(result_formats, columns, expected)?;
        let typed = prepared.params.iter().zip(values).zip(value_formats);
        let params = typed.map(|((&base, value), is_binary)| match value {
            None => Ok(Datum::Null),
            Some(bytes) if is_binary => binary::decode(base, bytes),
            Some(bytes) => text::parse(base, &binary::decode_text(bytes)?, self.zone()),
        });
        let params = params.collect::<Result<_, _>>()?;
        Ok(Portal { prepared, params, formats, running: None })
    }

    pub(super) fn prepared(&self, name: &str) -> Result<&Arc<Prepared>, SqlError> {
        self.statements.get(name).ok_or_else(|| {
            let message = format!("prepared statement \"{name}\" does not exist");
            SqlError::new(code::NO_STATEMENT, message)
        })
    }

    /// Describes a prepared statement.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn describe_statement(&mut self, name: &str) -> Result<Described, SqlError> {
        let found = self.prepared(name).cloned();
        let prepared = found.map_err(|error| self.fail_block(error))?;
        let columns = prepared.columns.clone();
        let formats = vec![false; columns.len()];
        Ok(Described { params: prepared.params.clone(), columns, formats })
    }

    /// Describes a portal.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn describe_portal(&mut self, name: &str) -> Result<Described, SqlError> {
        let Some(portal) = self.portals.get(name) else {
            // A declared cursor is a portal, too.
            let columns = self.cursors.columns(name);
            let columns = columns.map_err(|_| self.fail_block(no_portal(name)))?;
            let formats = vec![false; columns.len()];
            return Ok(Described { params: Vec::new(), columns, formats });
        };
        let columns = portal.prepared.columns.clone();
        Ok(Described { params: Vec::new(), columns, formats: portal.formats.clone() })
    }

    /// Runs a portal, or continues a suspended one. `row_max` 0 means all rows. `is_alone`: no
    /// other message comes before the next Sync, so a write outside of a transaction block needs no
    /// implicit transaction.
    ///
    /// # Errors
    /// If the portal does not exist, or the statement fails.
    pub async fn execute(
        &mut self,
        name: &str,
        row_max: usize,
        is_alone: bool,
    ) -> Result<Execution, SqlError> {
        let result = self.execute_portal(name, row_max, is_alone).await;
        self.end_execution(result)
    }

    /// Continues a portal that returned part of the requested rows.
    ///
    /// # Errors
    /// If the portal does not exist, or the statement fails.
    pub fn execute_next(&mut self, name: &str) -> Result<Execution, SqlError> {
        let portal = self.portals.remove(name).ok_or_else(|| no_portal(name));
        let result = portal.and_then(|portal| self.go_on(name, portal));
        self.end_execution(result)
    }

    fn end_execution(
        &mut self,
        result: Result<Execution, SqlError>,
    ) -> Result<Execution, SqlError> {
        if !matches!(result, Ok(Execution::Partial { .. })) {
            self.show_idle();
        }
        result.map_err(|error| self.fail_block(error))
    }

    async fn execute_portal(
        &mut self,
        name: &str,
        row_max: usize,
        is_alone: bool,
    ) -> Result<Execution, SqlError> {
        let mut portal = self.portals.remove(name).ok_or_else(|| no_portal(name))?;
        let Some(command) = &portal.prepared.command else {
            self.portals.insert(name.to_owned(), portal);
            return Ok(Execution::Empty);
        };
        self.begin_statement();
        self.show_active(command.text());
        if portal.running.is_none() {
            let is_data = command.is_data();
            if self.transaction_status() == TransactionStatus::Idle && is_data && !is_alone {
                self.begin(true, Modes::default());
            }
            self.first_rows = (row_max > 0).then_some(row_max);
            let response = self.run(command, &portal.prepared.params, &portal.params).await;
            self.first_rows = None;
            let whole = |tag| Stream::whole(Vec::new(), ResultReservation::default(), tag);
            let stream = match response? {
                response @ (Response::Rows { .. } | Response::Stream { .. }) => {
                    let (columns, stream) = self.take_stream(response)?;
                    check_columns(&columns, &portal.prepared.columns)?;
                    stream
                }
                Response::Command { tag } => whole(tag),
                Response::Empty => whole(String::new()),
                // The portal ends with its COPY and cannot run again.
                Response::CopyIn(start) => return Ok(Execution::CopyIn(start)),
                Response::CopyOut(start) => return Ok(Execution::CopyOut(start)),
                Response::Error(error) => return Err(error),
            };
            portal.running = Some(Running { stream, asked: None, given: 0 });
        } else {
            self.refuse_when_failed(command)?;
        }
        let Some(running) = &mut portal.running else { unreachable!("it was started") };
        (running.asked, running.given) = ((row_max > 0).then_some(row_max as u64), 0);
        self.go_on(name, portal)
    }

    /// Returns the next rows that an Execute requested.
    fn go_on(&mut self, name: &str, mut portal: Portal) -> Result<Execution, SqlError> {
        let Some(running) = &mut portal.running else { return Err(no_portal(name)) };
        let left = running.asked.map_or(u64::MAX, |asked| asked - running.given);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(BATCH_ROWS);
        let rows = self.pull(&mut running.stream, most)?;
        running.given += rows.len() as u64;
        // A portal that returned the requested number of rows is not known to be at its end.
        let execution = if running.asked == Some(running.given) {
            Execution::Suspended { rows }
        } else if running.stream.is_done() {
            Execution::Complete { rows, tag: running.stream.tag(running.given) }
        } else {
            Execution::Partial { rows }
        };
        let is_transaction = matches!(
            portal.prepared.command,
            Some(Command::Commit { .. } | Command::Rollback { .. })
        );
        if !is_transaction {
            self.portals.insert(name.to_owned(), portal);
        }
        Ok(execution)
    }

    /// Deletes a prepared statement if it exists.
    pub fn close_statement(&mut self, name: &str) {
        self.statements.remove(name);
    }

    /// Deletes a portal if it exists.
    pub fn close_portal(&mut self, name: &str) {
        self.portals.remove(name);
    }

    /// Commits the implicit transaction, and clears the state left by an error.
    ///
    /// # Errors
    /// If the implicit transaction cannot commit.
    pub async fn sync(&mut self) -> Result<(), SqlError> {
        self.begin_statement();
        self.end_implicit().await?;
        if self.transaction.is_none() {
            self.portals.clear();
        }
        Ok(())
    }

    pub(super) fn deallocate(&mut self, name: Option<&str>) -> Result<(), SqlError> {
        match name {
            None => self.statements.clear(),
            Some(name) => {
                self.prepared(name)?;
                self.statements.remove(name);
            }
        }
        Ok(())
    }

    fn fail_block(&mut self, error: SqlError) -> SqlError {
        self.fail(error)
    }
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new(code::NO_PORTAL, format!("portal \"{name}\" does not exist"))
}

fn check_count(count: usize, what: &str) -> Result<(), SqlError> {
    if count < PREPARED_MAX {
        return Ok(());
    }
    let message = format!("a session can have at most {PREPARED_MAX} {what}");
    Err(SqlError::new(code::LIMIT_EXCEEDED, message))
}

/// Returns the type that a client specified for a parameter; `None` if it is to be inferred.
fn param_type(oid: u32) -> Result<Option<SqlType>, SqlError> {
    match SqlType::from_oid(oid) {
        Some(SqlType::Unknown) => Ok(None),
        Some(base) => Ok(Some(base)),
        None if oid == 0 => Ok(None),
        None => Err(SqlError::unsupported(unsupported_name(oid))),
    }
}

/// Expands the protocol's short forms to one format for each value. `expected` is the end of the
/// message for a wrong number of formats.
fn spread_formats(
    formats: &[i16],
    count: usize,
    expected: impl Fn() -> String,
) -> Result<Vec<bool>, SqlError> {
    let is_binary = |&format: &i16| match format {
        0 => Ok(false),
        1 => Ok(true),
        _ => {
            let message = format!("unsupported format code: {format}");
            Err(SqlError::new(code::INVALID_PARAMETER, message))
        }
    };
    match formats {
        [] => Ok(vec![false; count]),
        [all] => Ok(vec![is_binary(all)?; count]),
        each if each.len() == count => each.iter().map(is_binary).collect(),
        each => {
            let message = format!("bind message has {} {}", each.len(), expected());
            Err(SqlError::new(code::PROTOCOL_VIOLATION, message))
        }
    }
}

/// Checks that the columns still have the types that were described to the client.
pub(super) fn check_columns(
    now: &[OutputColumn],
    described: &[OutputColumn],
) -> Result<(), SqlError> {
    let types = |columns: &[OutputColumn]| columns.iter().map(|c| c.ty).collect::<Vec<_>>();
    if types(now) == types(described) {
        return Ok(());
    }
    let message = "cached plan must not change result type";
    Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message))
}
