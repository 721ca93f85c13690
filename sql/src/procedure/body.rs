//! What a procedure does, as a tree.

use std::sync::Arc;

use sqlparser::ast;

use super::fragment::Fragment;
use super::grammar;
use super::raise::Raise;
use crate::catalog::procedure::{Language, Parameter};
use crate::error::SqlError;
use crate::syntax::{self, Written};
use crate::types::ColumnType;

/// What a procedure does.
#[derive(Debug)]
pub(crate) struct Body {
    /// Its name; `inline_code_block` for what has none.
    pub name: String,
    pub language: Language,
    /// All variables, by their slots. The parameters come first.
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
    /// One that is found when it runs, among the enums.
    Named(Box<ast::DataType>),
    /// That of a column of a table.
    Column(Written, String),
    /// A row of a table.
    Row(Written),
    /// Whatever row it is given.
    Record,
    /// Whatever value it is given: one that the grammar has made.
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
    /// Its line in the body, from 1.
    pub line: u32,
    pub does: Does,
}

/// What a value is assigned to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Variable(usize),
    /// A field of a record.
    Field(usize, String),
}

/// Where the first row of a statement goes.
#[derive(Debug)]
pub(crate) struct Into {
    pub targets: Vec<Target>,
    /// Whether there must be one row and no other.
    pub is_strict: bool,
}

/// Whole numbers, from one to another.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub from: Fragment,
    pub to: Fragment,
    pub by: Option<Fragment>,
    pub is_reverse: bool,
}

/// What a loop goes over.
#[derive(Debug)]
pub(crate) enum Over {
    /// Whole numbers, up or down, by steps of one or of so many.
    Numbers(Box<Numbers>),
    /// The rows of a query.
    Rows(Query),
    /// The elements of an array.
    Elements(Fragment),
}

/// A statement that is written there, or computed.
#[derive(Debug)]
pub(crate) enum Query {
    Written(Fragment),
    /// EXECUTE .. USING
    Computed {
        text: Fragment,
        using: Vec<Fragment>,
    },
}

/// What GET DIAGNOSTICS tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Diagnostic {
    RowCount,
    // Of the error that a handler has.
    State,
    Message,
    Detail,
    Hint,
}

/// Which errors a handler takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// All but those that end a statement from outside, and those of ASSERT.
    Others,
    /// One code, or a class of them where it ends in `000`.
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
    /// Its variables, with what they begin as.
    pub declared: Vec<(usize, Option<Fragment>)>,
    pub steps: Vec<Step>,
    pub handlers: Vec<Handler>,
    /// Where handlers find the SQLSTATE and the message.
    pub error: Option<(usize, usize)>,
}

/// What a statement does.
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
        /// What is compared, and the variable that keeps it.
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
    /// A statement of SQL, and PERFORM.
    Sql {
        query: Query,
        into: Option<Into>,
        is_perform: bool,
    },
    Diagnostics(Vec<(Target, Diagnostic)>),
}

impl Body {
    /// Reads a body.
    ///
    /// # Errors
    /// 42601 where it goes wrong, with the place in the text; 0A000 for what is missing.
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

/// The statements of a body of SQL alone.
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
    /// What PostgreSQL calls it where it says where an error came up.
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
