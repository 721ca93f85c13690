//! Planning of writes whose rows are found by a query of several relations: UPDATE .. FROM,
//! DELETE .. USING, and conditions and values that hold queries.

use std::sync::Arc;

use sqlparser::ast;

use super::access::Access;
use super::from::Side;
use super::path::Paths;
use super::query::select_of;
use super::{Delete, OutputColumn, Plan, Planner, Select, Update, scope_as};
use crate::catalog::role::Privileges;
use crate::error::{Failure, SqlError};
use crate::expr::bind::ScopeColumn;
use crate::expr::{Expr, Typed};
use crate::relational::{Block, ColumnId, From, JoinKind};
use crate::types::SqlType;

/// The rows that a statement writes: the columns of its table, the key of the row, the columns of
/// the other relations, and then the values of the columns that it sets.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub rows: Select,
    /// How many columns come before the values.
    pub width: usize,
}

impl Planner<'_> {
    /// A table that is written and the relations that its rows are found with.
    fn beside(
        &mut self,
        paths: &Paths,
        alias: &str,
        others: &[ast::TableWithJoins],
    ) -> Result<Side, Failure> {
        let relation = self.number();
        self.labels.push((relation, alias.to_owned()));
        let mut scope = scope_as(&paths.table, alias, relation);
        if alias == paths.table.name.name() {
            scope.is_of(paths.table.name.schema());
        }
        let width = scope.columns.len();
        scope.columns.push(ScopeColumn {
            schema: None,
            table: alias.to_owned(),
            name: String::new(),
            ty: SqlType::Bytea.into(),
            is_hidden: true,
            is_merged: false,
            is_unlisted: false,
            is_key: false,
            id: ColumnId { relation, column: width as u32 },
        });
        let own = Side { from: From::Table(paths.clone(), relation), scope };
        if others.is_empty() {
            return Ok(own);
        }
        let others = self.from(others)?;
        self.join(own, others, JoinKind::Inner, &ast::JoinConstraint::None)
    }

    /// The rows for which a condition holds, and the values that belong to each.
    fn joined(
        &mut self,
        side: Side,
        selection: Option<&ast::Expr>,
        values: Vec<Typed>,
    ) -> Result<Joined, Failure> {
        let filter = self.where_clause(selection, &side.scope)?;
        let columns = side.scope.columns.iter();
        let columns: Vec<_> = columns.map(|column| (column.id, column.ty.base)).collect();
        let own = columns.iter().enumerate().map(|(at, (_, base))| (Expr::Column(at), *base));
        let output: Vec<Typed> = own.chain(values).collect();
        let width = columns.len();
        let block = Block { filter, ..Block::plain(side.from, columns, output) };
        Ok(Joined { rows: select_of(self.lowered(block)?), width })
    }

    pub(super) fn joined_update(
        &mut self,
        update: &ast::Update,
        paths: &Paths,
        alias: &str,
        needed: usize,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        let others = match &update.from {
            None => &[][..],
            Some(
                ast::UpdateTableFromKind::BeforeSet(from)
                | ast::UpdateTableFromKind::AfterSet(from),
            ) => &from[..],
        };
        let side = self.beside(paths, alias, others)?;
        let table = paths.table.clone();
        let assignments = self.assignments(&table, &update.assignments, &side.scope)?;
        let (returning, output) = self.returning(update.returning.as_deref(), &side.scope)?;
        let value = |(at, expr): &(usize, Expr)| (expr.clone(), table.columns[*at].ty.base);
        let values = assignments.iter().map(value).collect();
        let joined = self.joined(side, update.selection.as_ref(), values)?;
        self.writes(needed, Privileges::UPDATE, &[Expr::Column(0)]);
        let first = joined.width;
        let places = assignments.iter().enumerate();
        let assignments = places.map(|(at, (column, _))| (*column, Expr::Column(first + at)));
        let assignments = assignments.collect();
        let (access, filter) = (Access::new(paths, None), None);
        let targets = Arc::new(self.targets(paths, false)?);
        let joined = Some(joined);
        let plan = Update { targets, access, filter, assignments, returning, joined };
        Ok((Plan::Update(plan), output))
    }

    pub(super) fn joined_delete(
        &mut self,
        delete: &ast::Delete,
        paths: &Paths,
        alias: &str,
        needed: usize,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        let others = delete.using.as_deref().unwrap_or_default();
        let side = self.beside(paths, alias, others)?;
        let (returning, output) = self.returning(delete.returning.as_deref(), &side.scope)?;
        let joined = self.joined(side, delete.selection.as_ref(), Vec::new())?;
        self.writes(needed, Privileges::DELETE, &[Expr::Column(0)]);
        let (access, filter) = (Access::new(paths, None), None);
        let targets = Arc::new(self.targets(paths, false)?);
        let joined = Some(joined);
        Ok((Plan::Delete(Delete { targets, access, filter, returning, joined }), output))
    }

    /// One row of VALUES that holds queries, as a query of its own.
    pub(super) fn asked_row(&mut self, row: Vec<Typed>) -> Result<Select, SqlError> {
        let block = Block::plain(From::Nothing, Vec::new(), row);
        Ok(select_of(self.lowered(block)?))
    }
}
