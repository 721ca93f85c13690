//! Commands: statements classified by the part of the session that runs them.

use std::sync::Arc;

use pangea_core::guarantee::Isolation;
use sqlparser::ast;

use super::authorization::{self, SetUser};
use super::prepared;
use super::savepoint::Step;
use crate::error::{SqlError, code};
use crate::plan;
use crate::syntax::as_of::AsOf;
use crate::syntax::explain::Explain;
use crate::syntax::{self, CursorStatement, Parsed, command_of};

/// A statement, classified by the component that runs it.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// A statement that the database runs.
    Data(Parsed),
    /// EXPLAIN.
    Explain(Arc<Explain>),
    /// COPY: the database runs it, and exchanges rows with the client.
    Copy(Parsed),
    Begin {
        /// `START TRANSACTION` or `BEGIN`.
        tag: &'static str,
        modes: Modes,
        as_of: Option<Arc<AsOf>>,
    },
    Commit {
        is_chained: bool,
    },
    Rollback {
        is_chained: bool,
    },
    /// Sets, releases or rolls back to a savepoint.
    Savepoint(Step, String),
    SetTransaction {
        modes: Modes,
        /// Whether it applies to later transactions.
        is_session: bool,
        as_of: Option<Arc<AsOf>>,
    },
    /// Sets a value, or the default for `None`.
    Set {
        name: String,
        value: Option<String>,
        is_local: bool,
    },
    ResetAll,
    /// SET ROLE and SET SESSION AUTHORIZATION.
    SetUser(SetUser),
    Show(String),
    ShowAll,
    Discard,
    /// A statement that has nothing to act on here. Drivers send it before they reuse a connection.
    Nothing {
        tag: &'static str,
    },
    /// DECLARE, FETCH, MOVE, CLOSE.
    Cursor(Arc<CursorStatement>),
    /// A prepared statement by name; `None` for all.
    Deallocate(Option<String>),
    /// Stores a statement under a name. Types of 0 are inferred from the context of the parameters.
    Prepare {
        name: String,
        types: Arc<[ast::DataType]>,
        text: Arc<str>,
    },
    /// Runs a prepared statement.
    Execute {
        name: String,
        args: Arc<[ast::Expr]>,
    },
}

impl Command {
    /// Classifies a parsed statement.
    pub(crate) fn new(parsed: Parsed) -> Result<Self, SqlError> {
        use ast::Statement as S;
        if let Some(role) = parsed.role.clone() {
            return authorization::command(parsed, &role);
        }
        if let Some(explain) = parsed.explain.clone() {
            return Ok(Self::Explain(explain));
        }
        if let Some(cursor) = parsed.cursor.clone() {
            return Ok(Self::Cursor(cursor));
        }
        if parsed.procedure.is_some() {
            return Ok(Self::Data(parsed));
        }
        Ok(match &*parsed.ast {
            statement if plan::plans(statement) => Self::Data(parsed),
            S::Copy { .. } => Self::Copy(parsed),
            S::StartTransaction { modes, begin, .. } => Self::Begin {
                tag: if *begin { "BEGIN" } else { "START TRANSACTION" },
                modes: Modes::of(modes)?,
                as_of: parsed.as_of.clone(),
            },
            S::Commit { chain, .. } => Self::Commit { is_chained: *chain },
            S::Savepoint { name } => Self::Savepoint(Step::Set, syntax::name(name)),
            S::ReleaseSavepoint { name } => Self::Savepoint(Step::Release, syntax::name(name)),
            S::Rollback { savepoint: Some(name), .. } => {
                Self::Savepoint(Step::GoBack, syntax::name(name))
            }
            S::Rollback { chain, .. } => Self::Rollback { is_chained: *chain },
            S::Set(set) => match Self::set(set)? {
                Self::SetTransaction { modes, is_session, .. } => {
                    let as_of = parsed.as_of.clone();
                    Self::SetTransaction { modes, is_session, as_of }
                }
                other => other,
            },
            S::Reset(reset) => Self::reset(&reset.reset),
            S::ShowVariable { variable } => Self::show(variable),
            S::Discard { .. } => Self::Discard,
            S::Vacuum(_) => Self::Nothing { tag: "VACUUM" },
            S::Analyze(_) => Self::Nothing { tag: "ANALYZE" },
            S::UNLISTEN { .. } => Self::Nothing { tag: "UNLISTEN" },
            S::Deallocate { name, .. } => {
                let name = syntax::name(name);
                Self::Deallocate((name != "all").then_some(name))
            }
            S::Prepare { .. } | S::Execute { .. } => prepared::command(&parsed)?,
            other => return Err(SqlError::unsupported(command_of(other))),
        })
    }

    fn reset(reset: &ast::Reset) -> Self {
        match reset {
            ast::Reset::ALL => Self::ResetAll,
            ast::Reset::ConfigurationParameter(name) => {
                Self::Set { name: name.to_string(), value: None, is_local: false }
            }
        }
    }

    fn set(set: &ast::Set) -> Result<Self, SqlError> {
        match set {
            ast::Set::SingleAssignment { scope, variable, values, .. } => {
                let is_local = matches!(scope, Some(ast::ContextModifier::Local));
                let name = variable.to_string().to_lowercase();
                let value = setting_value(values, name == "search_path")?;
                Ok(Self::Set { name, value, is_local })
            }
            ast::Set::SetTimeZone { local, value } => {
                let value = setting_value(std::slice::from_ref(value), false)?;
                Ok(Self::Set { name: "timezone".to_owned(), value, is_local: *local })
            }
            ast::Set::SetNames { charset_name, .. } => Ok(Self::Set {
                name: "client_encoding".to_owned(),
                value: Some(charset_name.value.clone()),
                is_local: false,
            }),
            ast::Set::SetTransaction { modes, snapshot: None, session } => {
                let (modes, is_session) = (Modes::of(modes)?, *session);
                Ok(Self::SetTransaction { modes, is_session, as_of: None })
            }
            other => {
                let text = other.to_string();
                let feature: Vec<&str> = text.split_whitespace().take(3).collect();
                Err(SqlError::unsupported(feature.join(" ")))
            }
        }
    }

    fn show(variable: &[ast::Ident]) -> Self {
        let words: Vec<String> = variable.iter().map(|ident| ident.value.to_lowercase()).collect();
        match words.join(" ").as_str() {
            "all" => Self::ShowAll,
            "time zone" => Self::Show("timezone".to_owned()),
            "transaction isolation level" => Self::Show("transaction_isolation".to_owned()),
            name => Self::Show(name.replace(' ', ".")),
        }
    }

    /// Returns the key of its statement statistics; `None` if it has none.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Data(parsed) => Some(&parsed.text),
            Self::Cursor(cursor) => match &**cursor {
                CursorStatement::Declare { query, .. } => Some(&query.text),
                _ => None,
            },
            Self::Commit { .. } => Some("COMMIT"),
            _ => None,
        }
    }

    /// Whether it reads or writes the database.
    pub(crate) fn is_data(&self) -> bool {
        let is_declared =
            |cursor: &CursorStatement| matches!(cursor, CursorStatement::Declare { .. });
        match self {
            // A read of the past has its own snapshot.
            Self::Data(parsed) => parsed.as_of.is_none(),
            Self::Copy(_) | Self::Explain(_) | Self::Execute { .. } => true,
            Self::Cursor(cursor) => is_declared(cursor),
            _ => false,
        }
    }

    /// Whether it is accepted in a failed transaction.
    pub(crate) fn ends_failure(&self) -> bool {
        let is_back = matches!(self, Self::Savepoint(Step::GoBack, _));
        is_back || matches!(self, Self::Commit { .. } | Self::Rollback { .. })
    }
}

/// The modes that a statement gives a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes {
    pub is_read_only: Option<bool>,
    pub isolation: Option<Isolation>,
}

impl Modes {
    /// The last of several modes of one kind counts.
    fn of(modes: &[ast::TransactionMode]) -> Result<Self, SqlError> {
        use ast::{TransactionAccessMode as Access, TransactionIsolationLevel as Level};
        let mut all = Self::default();
        for mode in modes {
            match mode {
                ast::TransactionMode::AccessMode(access) => {
                    all.is_read_only = Some(matches!(access, Access::ReadOnly));
                }
                ast::TransactionMode::IsolationLevel(level) => {
                    all.isolation = Some(match level {
                        Level::ReadUncommitted | Level::ReadCommitted => Isolation::ReadCommitted,
                        Level::RepeatableRead => Isolation::Snapshot,
                        Level::Serializable => Isolation::Serializable,
                        Level::Snapshot => {
                            let message = "syntax error at or near \"SNAPSHOT\"";
                            return Err(SqlError::new(code::SYNTAX, message));
                        }
                    });
                }
            }
        }
        Ok(all)
    }
}

/// Returns the text of a setting's value, whose parts may be names; `None` for `DEFAULT`.
fn setting_value(values: &[ast::Expr], are_names: bool) -> Result<Option<String>, SqlError> {
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        texts.push(match value {
            ast::Expr::Identifier(ident) => {
                let is_keyword = ident.quote_style.is_none();
                if is_keyword && ident.value.eq_ignore_ascii_case("default") {
                    return Ok(None);
                }
                if are_names { syntax::name(ident) } else { ident.value.clone() }
            }
            ast::Expr::Value(value) => match &value.value {
                ast::Value::SingleQuotedString(text) | ast::Value::Number(text, _) => text.clone(),
                other => other.to_string(),
            },
            ast::Expr::UnaryOp { .. } => value.to_string(),
            other => {
                let message = format!("invalid value in SET: {other}");
                return Err(SqlError::new(code::SYNTAX, message));
            }
        });
    }
    if are_names {
        texts.iter_mut().for_each(|text| *text = syntax::quoted_ident(text));
    }
    Ok(Some(texts.join(", ")))
}
