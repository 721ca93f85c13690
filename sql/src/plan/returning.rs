//! Planning of RETURNING, and of subqueries that run while rows are written.

use sqlparser::ast;

use super::query::select_of;
use super::write_target::WriteTarget;
use super::{Planner, Select};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{Collected, Scope};
use crate::expr::{Expr, Typed};
use crate::relational::{self, Block, From};
use crate::types::SqlType;
use crate::vocabulary::column::{ColumnId, OutputColumn, SortKey};

/// The expressions returned for each written row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returning {
    /// Over the row and the columns that it was found with; empty if no rows are returned.
    pub exprs: Vec<Expr>,
    /// A query that computes them, if they contain subqueries. Its input rows have their number as
    /// an additional last column.
    pub asked: Option<Asked>,
}

/// A query over rows that are passed to it while the statement runs.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The relation number of the rows.
    pub relation: u32,
    pub rows: Box<Select>,
}

impl Returning {
    /// Whether it runs subqueries.
    pub(crate) fn asks(&self) -> bool {
        self.asked.is_some()
    }
}

impl Planner<'_> {
    /// Plans a RETURNING clause, and returns its columns.
    pub(super) fn returning(
        &mut self,
        items: Option<&[ast::SelectItem]>,
        written: &WriteTarget,
        scope: &Scope,
    ) -> Result<(Returning, Vec<OutputColumn>), Failure> {
        let mut collected = Collected::default();
        let output = self.projection(items.unwrap_or_default(), scope, &mut collected)?;
        if !collected.aggregates.is_empty() {
            let message = "aggregate functions are not allowed in RETURNING";
            return Err(SqlError::new(code::GROUPING, message).into());
        }
        if !collected.windows.is_empty() {
            let message = "window functions are not allowed in RETURNING";
            return Err(SqlError::new(code::WINDOWING, message).into());
        }
        if !collected.functions.is_empty() {
            let message = "set-returning functions are not allowed in RETURNING";
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).into());
        }
        let columns = self.columns_of(&output, scope);
        // The table's columns are followed by those of a view, or by the row's key and then the
        // view's columns.
        let own = written.table().columns.len();
        let is_found = scope.columns.len() > own + written.width();
        let values = output.bounds.into_iter().map(|bound| {
            let base = bound.base();
            (written.settled(bound.expr, own + usize::from(is_found), 0), base)
        });
        let values: Vec<Typed> = values.collect();
        let values = match is_found {
            true => self.returning_of(values, scope)?,
            false => self.returning_of(values, &written.table_scope())?,
        };
        Ok((values, columns))
    }

    /// Returns the plan of RETURNING for bound expressions over a scope.
    pub(super) fn returning_of(
        &mut self,
        values: Vec<Typed>,
        scope: &Scope,
    ) -> Result<Returning, SqlError> {
        let exprs: Vec<Expr> = values.iter().map(|(expr, _)| expr.clone()).collect();
        let asks = exprs.iter().any(Expr::holds_subquery);
        let asked = asks.then(|| self.asked(values, scope)).transpose()?;
        Ok(Returning { exprs, asked })
    }

    /// Returns a query that computes expressions over rows of a scope, sorted by the row number,
    /// which is the column after the scope's columns.
    pub(super) fn asked(
        &mut self,
        mut values: Vec<Typed>,
        scope: &Scope,
    ) -> Result<Asked, SqlError> {
        let relation = self.number();
        let types = scope.columns.iter().map(|column| column.ty.base);
        let types: Vec<SqlType> = types.chain([SqlType::Int8]).collect();
        let number = types.len() - 1;
        let id = |column: usize| ColumnId { relation, column: column as u32 };
        let columns = types.iter().enumerate().map(|(at, base)| (id(at), *base)).collect();
        let from = From::Plan(relational::given(&types, relation)?.plan);
        let width = values.len();
        values.push((Expr::Column(number), SqlType::Int8));
        let sort = vec![SortKey { column: width, is_descending: false, is_nulls_first: false }];
        let block = Block { width, sort, ..Block::plain(from, columns, values) };
        let rows = Box::new(select_of(self.lowered(block)?));
        Ok(Asked { relation, rows })
    }
}
