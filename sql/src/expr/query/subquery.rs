//! Subqueries within expressions.

use std::sync::Arc;

use crate::data_fusion::LogicalPlan;
use crate::expr::{Comparison, Expr};
use crate::types::SqlType;
use crate::vocabulary::column::ColumnId;

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
