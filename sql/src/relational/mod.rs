//! Queries of more than one table, executed by DataFusion.
//!
//! ```text
//!   syntax tree --plan--> Block: names, types and expressions are ours
//!                           | logical_plan.rs, joins.rs, grouping.rs, windows.rs
//!                           v
//!                         LogicalPlan of DataFusion's, cached with the statement
//!                           | run.rs: optimized, made physical, and polled here
//!                           v
//!      leaf.rs <--asks-- physical plan --rows--> the statement
//!         | answers, from the context of the statement
//! ```
//!
//! DataFusion does the work of a query engine: it orders joins, pushes conditions down,
//! decorrelates subqueries, joins, sorts and groups. SQL semantics stay ours: expressions that
//! DataFusion would compute differently from PostgreSQL are functions over our own ([`function`]),
//! and so are aggregates ([`aggregate`]). All reads go through the context of the statement
//! ([`leaf`]), so that a transaction sees its own writes and records its reads.
//!
//! This module starts no threads. A plan has one partition and is polled until it waits for rows,
//! which are then read and passed to it.

mod aggregate;
mod apply;
mod block;
mod chunk;
mod cooperative_yield;
mod error;
pub(crate) mod explain;
mod filter;
mod function;
mod grouping;
mod instrumented;
mod joins;
mod leaf;
mod logical_plan;
mod parts;
mod pool;
mod project_set;
mod run;
mod sequential_partitions;
mod subquery_output;
mod unordered_scan;
mod values;
mod volatile;
mod windows;

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;

use crate::expr::{Comparison, Expr};
use crate::types::SqlType;

pub(crate) use block::{Block, Distinct, From, GroupBy, sequence_scan, system_scan};
pub(crate) use joins::{JoinKind, SetOperation, combined, join, lateral};
pub(crate) use logical_plan::{Numbers, lower};
pub(crate) use parts::{
    answered, expand, filtered, given, names_outer, recursive, renamed, with_columns, work_table,
};
pub(crate) use run::{Running, physical, run};
pub(crate) use windows::{Over, Window, WindowFunction};

/// An executable plan.
pub(crate) type Physical = Arc<dyn ExecutionPlan>;

/// A column of a relation, unique within its statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ColumnId {
    pub relation: u32,
    pub column: u32,
}

impl ColumnId {
    /// Returns its name in DataFusion. The name is unique without the qualifier, because physical
    /// plans have no qualifiers.
    pub(crate) fn name(self) -> Column {
        let Self { relation, column } = self;
        Column::new(Some(relation_name(relation)), format!("r{relation}c{column}"))
    }
}

/// The maximum number of relations in a statement, including the intermediate relations of its
/// plan.
pub(crate) const RELATIONS_MAX: u32 = 1_000;

/// Returns DataFusion's name of a relation.
fn relation_name(relation: u32) -> String {
    format!("r{relation}")
}

/// A query that DataFusion runs. The columns of its plan are those of the result, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    pub plan: LogicalPlan,
    pub types: Vec<SqlType>,
}

/// A subquery within an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Subquery {
    pub kind: SubqueryKind,
    pub query: Arc<Query>,
    /// The outer columns that it refers to, and their values in the outer query.
    pub refs: Vec<(ColumnId, SqlType, Expr)>,
    /// The type of its value.
    pub base: SqlType,
    /// The way in which it can be decorrelated.
    pub shape: Shape,
}

/// The kind of a subquery.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SubqueryKind {
    /// The value of its single row.
    Scalar,
    /// Whether it returns a row.
    Exists,
    /// All of its values, as an array of this type.
    Array(SqlType),
    /// ANY or ALL: the comparison of operands with one row, or with all rows.
    Quantified { op: Comparison, is_all: bool, operands: Vec<(Expr, SqlType)> },
}

/// The structure of a query, which determines whether it can become a join.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// References to the outer query occur only in WHERE. The query only computes columns of its
    /// rows.
    Rows(Arc<Split>),
    /// As `Rows`, but it computes one aggregate of the rows, and compares the outer references only
    /// for equality.
    Aggregate(Arc<Keyed>),
    /// Any other query.
    Other,
}

/// A query without the conditions that refer to the outer query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Split {
    /// Its columns, followed by those that the conditions refer to.
    pub query: Query,
    /// Conditions over those columns and columns of the outer query.
    pub conditions: Vec<Expr>,
}

/// A query that computes an aggregate for all outer rows at once, grouped by keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Keyed {
    /// The aggregate, followed by the keys.
    pub query: Query,
    /// The expressions over outer columns that the keys are compared with.
    pub outer: Vec<(Expr, SqlType)>,
    /// Whether it is a count, which is 0 for a missing key.
    pub is_count: bool,
}

impl Subquery {
    /// Returns the outer query's expressions that it contains.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Expr> {
        let operands = match &self.kind {
            SubqueryKind::Quantified { operands, .. } => &operands[..],
            _ => &[],
        };
        let refs = self.refs.iter().map(|(_, _, expr)| expr);
        operands.iter().map(|(expr, _)| expr).chain(refs)
    }

    /// Returns the same expressions, mutably.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        let operands = match &mut self.kind {
            SubqueryKind::Quantified { operands, .. } => &mut operands[..],
            _ => &mut [],
        };
        let refs = self.refs.iter_mut().map(|(_, _, expr)| expr);
        operands.iter_mut().map(|(expr, _)| expr).chain(refs)
    }
}
