//! Queries whose names and types are known, before it is decided who runs them.

use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};

use super::ColumnId;
use super::leaf::{Leaf, scan};
use super::windows::Window;
use crate::catalog::Sequence;
use crate::catalog::sequence;
use crate::exec::aggregate::Aggregate;
use crate::exec::series::Called;
use crate::expr::{Expr, Typed};
use crate::plan::SortKey;
use crate::plan::path::Paths;
use crate::system::SystemTable;
use crate::types::SqlType;

/// A query whose names and types are known, before it is decided who runs it.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub from: From,
    /// The columns that its expressions name.
    pub columns: Vec<(ColumnId, SqlType)>,
    pub filter: Option<Expr>,
    pub group: Option<GroupBy>,
    /// What is computed over windows: columns behind those of the source or the groups.
    pub windows: Vec<Window>,
    /// Functions that come to several rows for each: their columns are behind those of windows.
    pub functions: Vec<Called>,
    /// What is computed of each row: the columns of the result, then what it is sorted by.
    pub output: Vec<Typed>,
    /// How many of them are columns of the result.
    pub width: usize,
    /// Which of those have no type of their own: string literals and NULL.
    pub untyped: Vec<usize>,
    pub sort: Vec<SortKey>,
    pub distinct: Distinct,
    pub limit: Option<Expr>,
    pub offset: Option<Expr>,
}

impl Block {
    /// All rows of a relation, of which something is computed.
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

/// Where a query's rows come from.
#[derive(Clone, Debug)]
pub(crate) enum From {
    Nothing,
    /// A table, as a relation of this number.
    Table(Paths, u32),
    /// These rows, of values of these types, as a relation of this number.
    Values(Vec<Vec<Expr>>, Vec<SqlType>, u32),
    Plan(LogicalPlan),
}

impl From {
    /// The plan that reads it.
    pub(crate) fn plan(self) -> LogicalPlan {
        match self {
            Self::Nothing => {
                LogicalPlanBuilder::empty(true).build().expect("one row without columns")
            }
            Self::Table(paths, relation) => {
                // Behind the columns of a table is the key of the row.
                let columns = paths.table.columns.iter().map(|column| column.ty.base);
                let types: Vec<SqlType> = columns.chain([SqlType::Bytea]).collect();
                scan(Leaf::Table(paths), &types, relation)
            }
            Self::Values(rows, types, relation) => scan(Leaf::Rows(rows), &types, relation),
            Self::Plan(plan) => plan,
        }
    }
}

/// The plan that reads a table of the catalog.
pub(crate) fn system_scan(table: &'static SystemTable, relation: u32) -> LogicalPlan {
    let types: Vec<SqlType> = table.all_columns().map(|(_, base)| base).collect();
    scan(Leaf::System(table), &types, relation)
}

/// The plan that reads a sequence like a table.
pub(crate) fn sequence_scan(name: String, sequence: Sequence, relation: u32) -> LogicalPlan {
    scan(Leaf::Sequence(name, sequence), &sequence::COLUMNS.map(|(_, base)| base), relation)
}

/// Rows become groups, whose columns are the keys and then the aggregates.
#[derive(Clone, Debug)]
pub(crate) struct GroupBy {
    pub keys: Vec<Typed>,
    /// By which keys: each set makes groups of all rows. Nothing is by all of them.
    pub sets: Option<Vec<Vec<usize>>>,
    pub aggregates: Vec<Aggregate>,
    pub having: Option<Expr>,
}

/// Which rows are left out as they are like others.
#[derive(Clone, Debug)]
pub(crate) enum Distinct {
    No,
    Yes,
    /// `DISTINCT ON`: of those that are equal here the first one stays.
    On(Vec<usize>),
}
