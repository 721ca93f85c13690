//! Planning of statements that write in several steps: WITH over writes.
//!
//! ```text
//!   WITH a AS (DELETE .. RETURNING ..), b AS (INSERT .. SELECT .. FROM a) SELECT .. FROM a
//!        step 0                         step 1, which reads step 0        last, which reads step 0
//! ```
//!
//! All steps read what was there before the statement, and what steps that they name have told. As
//! in PostgreSQL, those that the last one reads are done first, and those that nobody reads behind
//! it.

use std::collections::BTreeSet;

use sqlparser::ast;

use super::{OutputColumn, Plan, Planner};
use crate::error::{Failure, SqlError};
use crate::syntax;

/// A statement that writes in several steps.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// The writes of WITH, in their order.
    pub writes: Vec<Step>,
    /// What the statement says itself.
    pub last: Plan,
    /// The steps that it reads.
    pub reads: BTreeSet<usize>,
}

/// A write of WITH.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub plan: Plan,
    /// What WITH calls it.
    pub name: String,
    /// The relation that its rows are for queries.
    pub relation: u32,
    /// The steps before it that it reads.
    pub reads: BTreeSet<usize>,
}

impl Steps {
    /// All plans: those of WITH, and the statement's own.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.writes.iter().map(|step| &step.plan).chain([&self.last])
    }
}

impl Planner<'_> {
    /// A statement that is a query, or begins with WITH.
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

    /// A write with the WITH before it.
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
            _ => Err(SqlError::unsupported("such a write").into()),
        };
        self.named.truncate(known);
        planned
    }
}
