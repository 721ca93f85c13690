//! Queries of more than one table, over DataFusion.
//!
//! ```text
//!   syntax tree --plan--> Block: names, types and expressions are ours
//!                           | lower.rs, joins.rs, grouping.rs, windows.rs
//!                           v
//!                         LogicalPlan of DataFusion's, kept with the statement
//!                           | run.rs: optimised, made physical, and polled here
//!                           v
//!      leaf.rs <--asks-- physical plan --rows--> the statement
//!         | answers, from the context of the statement
//! ```
//!
//! DataFusion does what a query engine does: it orders joins, pushes conditions down, takes
//! subqueries apart, joins, sorts, groups. What SQL computes stays ours: expressions that
//! DataFusion would compute otherwise than PostgreSQL are functions over our own ([`function`]), so
//! are aggregates ([`aggregate`]). All that it reads comes through the context of the statement
//! ([`leaf`]), so that a transaction sees its own writes and records what it read.
//!
//! Nothing here starts a thread: a plan has one partition and is polled until it waits for rows,
//! which are then read and given to it.

mod aggregate;
mod answers;
mod any_order;
mod apply;
mod block;
mod chance;
mod chunk;
mod error;
mod expand;
pub(crate) mod explain;
mod filter;
mod function;
mod grouping;
mod joins;
mod leaf;
mod lower;
mod measured;
mod parts;
mod pool;
mod run;
mod serial;
mod turns;
mod values;
mod windows;

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;

use crate::expr::{Comparison, Expr};
use crate::types::SqlType;

pub(crate) use block::{Block, Distinct, From, GroupBy, sequence_scan, system_scan};
pub(crate) use joins::{JoinKind, SetOperation, combined, join, lateral};
pub(crate) use lower::{Numbers, lower};
pub(crate) use parts::{
    answered, expand, filtered, given, names_outer, recursive, renamed, with_columns, work_table,
};
pub(crate) use run::{Running, physical, run};
pub(crate) use windows::{Over, Window, WindowFunction};

/// A plan that can be run.
pub(crate) type Physical = Arc<dyn ExecutionPlan>;

/// A column of a relation of a query, unlike any other of its statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ColumnId {
    pub relation: u32,
    pub column: u32,
}

impl ColumnId {
    /// What DataFusion calls it. The name alone sets it apart: physical plans know no relations.
    pub(crate) fn name(self) -> Column {
        let Self { relation, column } = self;
        Column::new(Some(relation_name(relation)), format!("r{relation}c{column}"))
    }
}

/// The most relations of a statement, all steps of its plan among them.
pub(crate) const RELATIONS_MAX: u32 = 1_000;

/// What DataFusion calls a relation.
fn relation_name(relation: u32) -> String {
    format!("r{relation}")
}

/// A query that DataFusion runs: the columns of its plan are those of the result, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    pub plan: LogicalPlan,
    pub types: Vec<SqlType>,
}

/// A query in parentheses, as a part of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Subquery {
    pub kind: SubqueryKind,
    pub query: Arc<Query>,
    /// The columns of the query around it that it names, and what they are there.
    pub refs: Vec<(ColumnId, SqlType, Expr)>,
    /// What it comes to.
    pub base: SqlType,
    /// How DataFusion may take it apart.
    pub shape: Shape,
}

/// What of a query is asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SubqueryKind {
    /// The one value of its one row.
    Scalar,
    /// Whether it has a row.
    Exists,
    /// All values, as an array of this type.
    Array(SqlType),
    /// How values compare with those of one row, or all rows.
    Quantified { op: Comparison, is_all: bool, operands: Vec<(Expr, SqlType)> },
}

/// How simple a query is, so that it becomes a join.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// What it names of outside stands in its WHERE alone, and nothing is done with its rows but
    /// that columns are computed.
    Rows(Arc<Split>),
    /// So are the rows, of which one aggregate is computed; what is named of outside is compared
    /// for equality.
    Aggregate(Arc<Keyed>),
    /// Anything else.
    Other,
}

/// A query without the conditions that name what is outside of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Split {
    /// Its columns, and then those that the conditions name.
    pub query: Query,
    /// The conditions: over those columns, and columns of the query around.
    pub conditions: Vec<Expr>,
}

/// A query that computes one aggregate, for all that it may be asked for at once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Keyed {
    /// The aggregate, and then the keys that it is of.
    pub query: Query,
    /// What keys are compared with: over the columns of the query around.
    pub outer: Vec<(Expr, SqlType)>,
    /// Whether it counts: then it is nought where there is nothing.
    pub is_count: bool,
}

impl Subquery {
    /// The expressions of the query around it that it holds.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Expr> {
        let operands = match &self.kind {
            SubqueryKind::Quantified { operands, .. } => &operands[..],
            _ => &[],
        };
        let refs = self.refs.iter().map(|(_, _, expr)| expr);
        operands.iter().map(|(expr, _)| expr).chain(refs)
    }

    /// The same, to be changed.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        let operands = match &mut self.kind {
            SubqueryKind::Quantified { operands, .. } => &mut operands[..],
            _ => &mut [],
        };
        let refs = self.refs.iter_mut().map(|(_, _, expr)| expr);
        operands.iter_mut().map(|(expr, _)| expr).chain(refs)
    }
}
