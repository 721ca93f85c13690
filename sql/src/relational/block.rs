//! Bound queries: names and types are resolved, but the executor is not chosen yet.

use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};

use super::leaf::{Leaf, scan};
use crate::access::path::Paths;
use crate::catalog::{Sequence, sequence};
use crate::expr::query::{Aggregate, Called, Window};
use crate::expr::{Expr, Typed};
use crate::types::SqlType;
use crate::vocabulary::column::{ColumnId, SortKey};
use crate::vocabulary::system::SystemTable;

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

impl From {
    /// Returns the plan that reads the rows.
    pub(crate) fn plan(self) -> LogicalPlan {
        match self {
            Self::Nothing => {
                LogicalPlanBuilder::empty(true).build().expect("one row without columns")
            }
            Self::Table(paths, relation) => {
                // The key of the row follows the columns of a table.
                let columns = paths.table.columns.iter().map(|column| column.ty.base);
                let types: Vec<SqlType> = columns.chain([SqlType::Bytea]).collect();
                scan(Leaf::Table(paths), &types, relation)
            }
            Self::Values(rows, types, relation) => scan(Leaf::Rows(rows), &types, relation),
            Self::Plan(plan) => plan,
        }
    }
}

/// Returns the plan that reads a system table.
pub(crate) fn system_scan(table: &'static SystemTable, relation: u32) -> LogicalPlan {
    let types: Vec<SqlType> = table.all_columns().map(|(_, base)| base).collect();
    scan(Leaf::System(table), &types, relation)
}

/// Returns the plan that reads a sequence as a table.
pub(crate) fn sequence_scan(name: String, sequence: Sequence, relation: u32) -> LogicalPlan {
    scan(Leaf::Sequence(name, sequence), &sequence::COLUMNS.map(|(_, base)| base), relation)
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
