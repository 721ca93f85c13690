//! Planning of RETURNING, and of queries that are asked for rows while they are written.

use sqlparser::ast;

use super::query::select_of;
use super::written::Written;
use super::{OutputColumn, Planner, Select, SortKey};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{Collected, Scope};
use crate::expr::{Expr, Typed};
use crate::relational::{self, Block, ColumnId, From};
use crate::types::SqlType;

/// What a statement tells of each row that it has written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returning {
    /// Over the row, and what it was found with. None where nothing is told.
    pub exprs: Vec<Expr>,
    /// What computes them where they hold queries. Behind the columns of the rows that it is given
    /// is the number of each.
    pub asked: Option<Asked>,
}

/// A query over rows that it is given while the statement runs.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The relation that the rows are.
    pub relation: u32,
    pub rows: Box<Select>,
}

impl Returning {
    /// Whether it asks queries.
    pub(crate) fn asks(&self) -> bool {
        self.asked.is_some()
    }
}

impl Planner<'_> {
    /// The expressions of a RETURNING clause and the columns that they are.
    pub(super) fn returning(
        &mut self,
        items: Option<&[ast::SelectItem]>,
        written: &Written,
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
        // Behind the columns of the table are those of a view, or the key of the row and then they.
        let own = written.table().columns.len();
        let is_found = scope.columns.len() > own + written.width();
        let told = output.bounds.into_iter().map(|bound| {
            let base = bound.base();
            (written.settled(bound.expr, own + usize::from(is_found), 0), base)
        });
        let told: Vec<Typed> = told.collect();
        let told = match is_found {
            true => self.told(told, scope)?,
            false => self.told(told, &written.table_scope())?,
        };
        Ok((told, columns))
    }

    /// What is told of rows of a scope.
    pub(super) fn told(&mut self, told: Vec<Typed>, scope: &Scope) -> Result<Returning, SqlError> {
        let exprs: Vec<Expr> = told.iter().map(|(expr, _)| expr.clone()).collect();
        let asks = exprs.iter().any(Expr::holds_subquery);
        let asked = asks.then(|| self.asked(told, scope)).transpose()?;
        Ok(Returning { exprs, asked })
    }

    /// A query that computes expressions over rows of a scope, in the order of their numbers, which
    /// are behind their columns.
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
        let from = From::Plan(relational::given(&types, relation).plan);
        let width = values.len();
        values.push((Expr::Column(number), SqlType::Int8));
        let sort = vec![SortKey { column: width, is_descending: false, is_nulls_first: false }];
        let block = Block { width, sort, ..Block::plain(from, columns, values) };
        let rows = Box::new(select_of(self.lowered(block)?));
        Ok(Asked { relation, rows })
    }
}
