//! The syntax tree of a procedure body.

use std::sync::Arc;

use sqlparser::ast;

use super::fragment::Fragment;
use super::grammar;
use super::raise::Raise;
use crate::catalog::procedure::{Language, Parameter};
use crate::error::SqlError;
use crate::syntax::{self, Written};
use crate::types::ColumnType;

/// A parsed procedure.
#[derive(Debug)]
pub(crate) struct Body {
    /// The name of the procedure; `inline_code_block` for a DO block.
    pub name: String,
    pub language: Language,
    /// All variables, indexed by slot. The parameters come first.
    pub variables: Vec<Declared>,
    pub steps: Vec<Step>,
}

/// A variable.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub name: String,
    pub ty: DeclaredType,
    pub is_constant: bool,
    pub is_not_null: bool,
}

/// The type of a variable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeclaredType {
    Known(ColumnType),
    /// A type that is resolved at run time, as an enum.
    Named(Box<ast::DataType>),
    /// The type of a table's column (`%TYPE`).
    Column(Written, String),
    /// A row of a table (`%ROWTYPE`).
    Row(Written),
    /// A record, which has the columns of the row last assigned to it.
    Record,
    /// A hidden variable that takes the type of the value assigned to it; only the grammar declares
    /// it.
    Any,
}

/// A variable that a fragment can name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Visible {
    /// The label of its block, or the name of the procedure.
    pub label: Option<String>,
    pub name: String,
    pub slot: usize,
}

/// A statement.
#[derive(Debug)]
pub(crate) struct Step {
    /// The line in the body, from 1.
    pub line: u32,
    pub does: Does,
}

/// The target of an assignment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Variable(usize),
    /// A field of a record.
    Field(usize, String),
}

/// The INTO clause: the targets of a statement's first row.
#[derive(Debug)]
pub(crate) struct Into {
    pub targets: Vec<Target>,
    /// Whether it is an error unless the statement returns exactly one row.
    pub is_strict: bool,
}

/// The range of integers in a FOR loop.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub from: Fragment,
    pub to: Fragment,
    pub by: Option<Fragment>,
    pub is_reverse: bool,
}

/// The values that a loop iterates over.
#[derive(Debug)]
pub(crate) enum Over {
    /// Integers in ascending or descending order, with a step of one or `by`.
    Numbers(Box<Numbers>),
    /// The rows of a query.
    Rows(Query),
    /// The elements of an array.
    Elements(Fragment),
}

/// A statement: written in the body, or computed as text.
#[derive(Debug)]
pub(crate) enum Query {
    Written(Fragment),
    /// EXECUTE .. USING
    Computed {
        text: Fragment,
        using: Vec<Fragment>,
    },
}

/// An item of GET DIAGNOSTICS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Diagnostic {
    RowCount,
    // The items below describe the error that a handler caught.
    State,
    Message,
    Detail,
    Hint,
}

/// The errors that a handler catches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// OTHERS: all errors except cancellation, shutdown and failed assertions.
    Others,
    /// One SQLSTATE, or its whole class if it ends in `000`.
    Code(pangea_core::txn::SqlState),
}

/// EXCEPTION WHEN .. THEN ..
#[derive(Debug)]
pub(crate) struct Handler {
    pub conditions: Vec<Condition>,
    pub steps: Vec<Step>,
}

/// DECLARE .. BEGIN .. EXCEPTION .. END
#[derive(Debug)]
pub(crate) struct Block {
    pub label: Option<String>,
    /// The slots of its variables, with their initial values.
    pub declared: Vec<(usize, Option<Fragment>)>,
    pub steps: Vec<Step>,
    pub handlers: Vec<Handler>,
    /// The slots of `sqlstate` and `sqlerrm`, which handlers read.
    pub error: Option<(usize, usize)>,
}

/// The action of a statement.
#[derive(Debug)]
pub(crate) enum Does {
    Nothing,
    Block(Block),
    Assign(Target, Fragment),
    If {
        branches: Vec<(Fragment, Vec<Step>)>,
        otherwise: Vec<Step>,
    },
    Case {
        /// The hidden variable that stores the value compared, and its expression.
        subject: Option<(usize, Fragment)>,
        branches: Vec<(Fragment, Vec<Step>)>,
        otherwise: Option<Vec<Step>>,
    },
    /// LOOP, and WHILE with a condition.
    Loop {
        label: Option<String>,
        condition: Option<Fragment>,
        steps: Vec<Step>,
    },
    /// FOR and FOREACH.
    For {
        label: Option<String>,
        targets: Vec<Target>,
        over: Over,
        steps: Vec<Step>,
    },
    /// EXIT and CONTINUE.
    Leave {
        is_continue: bool,
        label: Option<String>,
        when: Option<Fragment>,
    },
    Return,
    Raise(Raise),
    Assert {
        condition: Fragment,
        message: Option<Fragment>,
    },
    /// An SQL statement, or PERFORM.
    Sql {
        query: Query,
        into: Option<Into>,
        is_perform: bool,
    },
    Diagnostics(Vec<(Target, Diagnostic)>),
}

impl Body {
    /// Parses a body.
    ///
    /// # Errors
    /// 42601 with the position in the text on a syntax error; 0A000 for unsupported features.
    pub(crate) fn parse(
        name: &str,
        language: Language,
        parameters: &[Parameter],
        text: &str,
    ) -> Result<Self, SqlError> {
        let declared = parameters.iter().map(|parameter| Declared {
            name: parameter.name.clone(),
            ty: DeclaredType::Known(parameter.ty),
            is_constant: false,
            is_not_null: false,
        });
        let mut variables: Vec<Declared> = declared.collect();
        let named = variables.iter().enumerate().filter(|(_, it)| !it.name.is_empty());
        let visible = named.map(|(slot, it)| {
            let (label, name) = (Some(name.to_owned()), it.name.clone());
            Visible { label, name, slot }
        });
        let visible: Vec<Visible> = visible.collect();
        let steps = match language {
            Language::Sql => statements(text, &visible)?,
            Language::PlPgSql => grammar::parse(text, visible, &mut variables)?,
        };
        Ok(Self { name: name.to_owned(), language, variables, steps })
    }
}

/// Parses the body of a procedure with LANGUAGE sql.
fn statements(text: &str, visible: &[Visible]) -> Result<Vec<Step>, SqlError> {
    let visible: Arc<[Visible]> = visible.into();
    let steps = syntax::parse(text)?.into_iter().map(|parsed| {
        let fragment = Fragment::statement(parsed, visible.clone())?;
        let query = Query::Written(fragment);
        Ok(Step { line: 0, does: Does::Sql { query, into: None, is_perform: true } })
    });
    steps.collect()
}

impl Does {
    /// Returns PostgreSQL's name of the statement in the CONTEXT of an error.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Nothing => "NULL",
            Self::Block(_) => "statement block",
            Self::Assign(..) => "assignment",
            Self::If { .. } => "IF",
            Self::Case { .. } => "CASE",
            Self::Loop { condition: None, .. } => "LOOP",
            Self::Loop { .. } => "WHILE",
            Self::For { over: Over::Numbers(_), .. } => "FOR with integer loop variable",
            Self::For { over: Over::Rows(Query::Written(_)), .. } => "FOR over SELECT rows",
            Self::For { over: Over::Rows(_), .. } => "FOR over EXECUTE statement",
            Self::For { .. } => "FOREACH over array",
            Self::Leave { is_continue: false, .. } => "EXIT",
            Self::Leave { .. } => "CONTINUE",
            Self::Return => "RETURN",
            Self::Raise(_) => "RAISE",
            Self::Assert { .. } => "ASSERT",
            Self::Sql { is_perform: true, .. } => "PERFORM",
            Self::Sql { query: Query::Computed { .. }, .. } => "EXECUTE",
            Self::Sql { .. } => "SQL statement",
            Self::Diagnostics(_) => "GET DIAGNOSTICS",
        }
    }
}
