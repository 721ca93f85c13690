//! Bound queries: names and types are resolved, but the executor is not chosen yet.
//!
//! This file does not need DataFusion.

use crate::access::path::Paths;
use crate::data_fusion::LogicalPlan;
use crate::expr::query::{Aggregate, Called, Window};
use crate::expr::{Expr, Typed};
use crate::types::SqlType;
use crate::vocabulary::column::{ColumnId, SortKey};

/// The counter of relation numbers.
pub(crate) type Numbers = u32;

/// The maximum number of relations in a statement, including the intermediate relations of its
/// plan.
pub(crate) const RELATIONS_MAX: u32 = 1_000;

/// A bound query: names and types are resolved, but the executor is not chosen yet.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub from: From,
    /// The columns that its expressions refer to by position.
    pub columns: Vec<(ColumnId, SqlType)>,
    pub filter: Option<Expr>,
    pub group: Option<GroupBy>,
    /// The window functions. Their columns follow those of the source or the groups.
    pub windows: Vec<Window>,
    /// Set-returning functions in the target list. Their columns follow those of the windows.
    pub functions: Vec<Called>,
    /// The expressions computed for each row: the columns of the result, then the sort columns.
    pub output: Vec<Typed>,
    /// The number of columns in the result.
    pub width: usize,
    /// The result columns without a type: string literals and NULL.
    pub untyped: Vec<usize>,
    pub sort: Vec<SortKey>,
    pub distinct: Distinct,
    pub limit: Option<Expr>,
    pub offset: Option<Expr>,
}

impl Block {
    /// Makes a query that computes expressions for all rows of a relation.
    pub(crate) fn plain(from: From, columns: Vec<(ColumnId, SqlType)>, output: Vec<Typed>) -> Self {
        Self {
            from,
            columns,
            filter: None,
            group: None,
            windows: Vec::new(),
            functions: Vec::new(),
            width: output.len(),
            output,
            untyped: Vec::new(),
            sort: Vec::new(),
            distinct: Distinct::No,
            limit: None,
            offset: None,
        }
    }
}

/// The FROM clause of a query.
#[derive(Clone, Debug)]
pub(crate) enum From {
    Nothing,
    /// A table, and its relation number.
    Table(Paths, u32),
    /// Rows of expressions, the types of the columns, and the relation number.
    Values(Vec<Vec<Expr>>, Vec<SqlType>, u32),
    Plan(LogicalPlan),
}

/// The GROUP BY of a query. The columns of its result are the keys, followed by the aggregates.
#[derive(Clone, Debug)]
pub(crate) struct GroupBy {
    pub keys: Vec<Typed>,
    /// The grouping sets: each set groups all rows by some of the keys. `None` groups by all keys.
    pub sets: Option<Vec<Vec<usize>>>,
    pub aggregates: Vec<Aggregate>,
    pub having: Option<Expr>,
}

/// The DISTINCT clause of a query.
#[derive(Clone, Debug)]
pub(crate) enum Distinct {
    No,
    Yes,
    /// `DISTINCT ON`: retains the first of the rows that are equal in these columns.
    On(Vec<usize>),
}

/// The type of a join: it determines which rows without a match are retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
}

/// A set operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetOperation {
    Union,
    Intersect,
    Except,
}
