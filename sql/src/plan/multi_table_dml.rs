//! Planning of writes whose rows are found by a query: UPDATE .. FROM, DELETE .. USING, and
//! conditions and values with subqueries.

use std::sync::Arc;

use sqlparser::ast;

use super::from::Side;
use super::query::select_of;
use super::write_target::WriteTarget;
use super::{Delete, Plan, Planner, Select, Update};
use crate::access::Access;
use crate::catalog::role::Privileges;
use crate::error::{Failure, SqlError};
use crate::expr::bind::ScopeColumn;
use crate::expr::{Expr, Typed};
use crate::relational::{Block, From, JoinKind};
use crate::types::SqlType;
use crate::vocabulary::column::{ColumnId, OutputColumn};

/// The rows that a statement writes. Their columns: those of the table, the key of the row, those
/// of a view over the table, those of the other relations, and then the new values.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub rows: Select,
    /// The number of columns before the new values.
    pub width: usize,
}

impl Planner<'_> {
    /// Plans the target table together with the relations that its rows are joined with.
    fn beside(
        &mut self,
        written: &WriteTarget,
        others: &[ast::TableWithJoins],
    ) -> Result<Side, Failure> {
        let (alias, relation) = (&written.alias, written.relation);
        let shown = self.number();
        let mut scope = written.scope(alias, relation, shown);
        let width = written.table().columns.len();
        let key = ScopeColumn {
            schema: scope.columns.first().and_then(|column| column.schema.clone()),
            table: alias.to_owned(),
            name: String::new(),
            ty: SqlType::Bytea.into(),
            is_hidden: true,
            is_merged: false,
            is_unlisted: false,
            is_key: false,
            id: ColumnId { relation, column: width as u32 },
        };
        scope.columns.insert(width, key);
        let own = Side { from: From::Table(written.paths.clone(), relation), scope };
        if others.is_empty() {
            return Ok(own);
        }
        let others = self.from(others)?;
        self.join(own, others, JoinKind::Inner, &ast::JoinConstraint::None)
    }

    /// Returns the rows for which a condition holds, with the new values of each.
    fn joined(
        &mut self,
        written: &WriteTarget,
        side: Side,
        selection: Option<&ast::Expr>,
        values: Vec<Typed>,
    ) -> Result<Joined, Failure> {
        let first = written.table().columns.len() + 1;
        let filter = self.where_clause(selection, &side.scope)?;
        let filter = written.filter(filter.map(|filter| written.settled(filter, first, 0)));
        let columns = side.scope.columns.iter();
        let columns: Vec<_> = columns.map(|column| (column.id, column.ty.base)).collect();
        let own = columns.iter().enumerate().map(|(at, (_, base))| {
            // Columns of a view are replaced by their expressions over the table.
            (written.settled(Expr::Column(at), first, 0), *base)
        });
        let output: Vec<Typed> = own.chain(values).collect();
        let width = columns.len();
        let block = Block { filter, ..Block::plain(side.from, columns, output) };
        Ok(Joined { rows: select_of(self.lowered(block)?), width })
    }

    pub(super) fn joined_update(
        &mut self,
        update: &ast::Update,
        written: &WriteTarget,
        needed: usize,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        let others = match &update.from {
            None => &[][..],
            Some(
                ast::UpdateTableFromKind::BeforeSet(from)
                | ast::UpdateTableFromKind::AfterSet(from),
            ) => &from[..],
        };
        let side = self.beside(written, others)?;
        let (paths, table) = (&written.paths, written.table().clone());
        let assignments = self.assignments(written, &update.assignments, &side.scope)?;
        let (returning, output) =
            self.returning(update.returning.as_deref(), written, &side.scope)?;
        let value = |(at, expr): &(usize, Expr)| {
            (written.settled(expr.clone(), table.columns.len() + 1, 0), table.columns[*at].ty.base)
        };
        let values = assignments.iter().map(value).collect();
        let joined = self.joined(written, side, update.selection.as_ref(), values)?;
        self.writes(written.needed(needed), Privileges::UPDATE, &[Expr::Column(0)]);
        let first = joined.width;
        let places = assignments.iter().enumerate();
        let assignments = places.map(|(at, (column, _))| (*column, Expr::Column(first + at)));
        let assignments = assignments.collect();
        let (access, filter) = (Access::new(paths, None), None);
        let targets = Arc::new(self.targets(paths, false)?);
        let (checks, joined, delta) = (self.view_checks(written)?, Some(joined), None);
        let plan =
            Update { targets, access, filter, assignments, checks, returning, joined, delta };
        Ok((Plan::Update(plan), output))
    }

    pub(super) fn joined_delete(
        &mut self,
        delete: &ast::Delete,
        written: &WriteTarget,
        needed: usize,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        let others = delete.using.as_deref().unwrap_or_default();
        let side = self.beside(written, others)?;
        let (returning, output) =
            self.returning(delete.returning.as_deref(), written, &side.scope)?;
        let joined = self.joined(written, side, delete.selection.as_ref(), Vec::new())?;
        self.writes(written.needed(needed), Privileges::DELETE, &[Expr::Column(0)]);
        let (access, filter) = (Access::new(&written.paths, None), None);
        let targets = Arc::new(self.targets(&written.paths, false)?);
        let joined = Some(joined);
        Ok((Plan::Delete(Delete { targets, access, filter, returning, joined }), output))
    }

    /// Plans a row of VALUES that contains subqueries as a query.
    pub(super) fn asked_row(&mut self, row: Vec<Typed>) -> Result<Select, SqlError> {
        let block = Block::plain(From::Nothing, Vec::new(), row);
        Ok(select_of(self.lowered(block)?))
    }
}
