//! Planning of statements that write in several steps: WITH that contains writes.
//!
//! ```text
//!   WITH a AS (DELETE .. RETURNING ..), b AS (INSERT .. SELECT .. FROM a) SELECT .. FROM a
//!        step 0                         step 1, which reads step 0        last, which reads step 0
//! ```
//!
//! All steps read the state before the statement, and the RETURNING rows of the steps that they
//! name. As in PostgreSQL, the steps that the last one reads run first, and the steps that no other
//! reads run after it.

use std::collections::BTreeSet;

use sqlparser::ast;

use super::{Plan, Planner};
use crate::error::{Failure, SqlError};
use crate::syntax;
use crate::vocabulary::column::OutputColumn;

/// A statement that writes in several steps.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// The writes of WITH, in their order.
    pub writes: Vec<Step>,
    /// The main statement.
    pub last: Plan,
    /// The steps that the main statement reads.
    pub reads: BTreeSet<usize>,
}

/// A write in WITH.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub plan: Plan,
    /// Its name in WITH.
    pub name: String,
    /// The relation number of its rows in queries.
    pub relation: u32,
    /// The earlier steps that it reads.
    pub reads: BTreeSet<usize>,
}

impl Steps {
    /// Returns all plans: those of WITH, then the main statement's.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.writes.iter().map(|step| &step.plan).chain([&self.last])
    }
}

impl Planner<'_> {
    /// Plans a statement that is a query or begins with WITH.
    pub(super) fn with_steps(
        &mut self,
        query: &ast::Query,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        self.writes.may_write = query.with.is_some();
        let (last, columns) = if syntax::is_write(query) {
            self.write(query)?
        } else {
            let (select, columns) = self.query(query)?;
            self.locks(query, &select)?;
            (Plan::Select(select), columns)
        };
        let writes = std::mem::take(&mut self.writes.steps);
        if writes.is_empty() {
            return Ok((last, columns));
        }
        let reads = std::mem::take(&mut self.writes.reads);
        Ok((Plan::Steps(Box::new(Steps { writes, last, reads })), columns))
    }

    /// Plans a write with its WITH.
    pub(super) fn write(
        &mut self,
        query: &ast::Query,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        use ast::Statement as S;
        let known = self.named.len();
        if let Some(with) = &query.with {
            self.with(with)?;
        }
        let planned = match &*query.body {
            ast::SetExpr::Insert(S::Insert(insert)) => self.insert(insert),
            ast::SetExpr::Update(S::Update(update)) => self.update(update),
            ast::SetExpr::Delete(S::Delete(delete)) => self.delete(delete),
            _ => Err(SqlError::unsupported("this form of a data-modifying statement").into()),
        };
        self.named.truncate(known);
        planned
    }
}
