//! Planning of INSERT, UPDATE and DELETE.

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::access::Access;
use super::select::{empty_row, value_select};
use super::{Delete, Insert, OutputColumn, Plan, Planner, Select, Update, refuse, scope_of};
use crate::catalog::Table;
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Bound, Scope};
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;

type Statement = Result<(Plan, Vec<OutputColumn>), Failure>;

impl Planner<'_> {
    pub(super) fn insert(&mut self, insert: &ast::Insert) -> Statement {
        refuse(&[
            (insert.overwrite || insert.replace_into || insert.ignore, "this form of INSERT"),
            (insert.or.is_some() || !insert.assignments.is_empty(), "this form of INSERT"),
            (insert.partitioned.is_some(), "PARTITION"),
        ])?;
        let ast::TableObject::TableName(name) = &insert.table else {
            return Err(SqlError::unsupported("INSERT into something other than a table").into());
        };
        let table = self.table(name)?;
        let targets = self.insert_targets(&table, insert)?;
        let (source, mut assigned) = self.insert_source(&table, &targets, insert)?;
        let mut columns = Vec::with_capacity(table.columns.len());
        for at in 0..table.columns.len() {
            let position = targets.iter().position(|&target| target == at);
            columns.push(match position.and_then(|position| assigned.get_mut(position)) {
                Some(expr) => std::mem::replace(expr, Expr::Const(Datum::Null)),
                None => self.default_of(&table, at)?,
            });
        }
        let skips_duplicates = self.on_conflict(&table, insert)?;
        let alias = insert.table_alias.as_ref().map(|alias| syntax::name(&alias.alias));
        let scope = scope_of(&table, alias.as_deref().unwrap_or(&table.name));
        let (returning, output) = self.returning(insert.returning.as_deref(), &scope)?;
        let plan = Insert { table, source, columns, skips_duplicates, returning };
        Ok((Plan::Insert(plan), output))
    }

    /// The positions of the columns that an INSERT names, or of all.
    fn insert_targets(
        &mut self,
        table: &Table,
        insert: &ast::Insert,
    ) -> Result<Vec<usize>, Failure> {
        let mut targets = Vec::with_capacity(insert.columns.len());
        for object in &insert.columns {
            let location = syntax::location(object);
            let name = syntax::name_parts(object)?.pop().unwrap_or_default();
            let at = self.target(table, &name, location)?;
            if targets.contains(&at) {
                return Err(self.error_at(specified_twice(&name), location));
            }
            targets.push(at);
        }
        if insert.columns.is_empty() {
            targets.extend(0..table.columns.len());
        }
        Ok(targets)
    }

    fn target(&self, table: &Table, name: &str, location: Location) -> Result<usize, Failure> {
        table.columns.iter().position(|column| column.name == name).ok_or_else(|| {
            let message =
                format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
            self.error_at(SqlError::new(code::UNDEFINED_COLUMN, message), location)
        })
    }

    /// The rows that come in, and what becomes of them for each target.
    fn insert_source(
        &mut self,
        table: &Arc<Table>,
        targets: &[usize],
        insert: &ast::Insert,
    ) -> Result<(Select, Vec<Expr>), Failure> {
        let Some(query) = &insert.source else {
            return Ok((empty_row(), Vec::new()));
        };
        let is_plain = query.order_by.is_none()
            && query.limit_clause.is_none()
            && query.fetch.is_none()
            && query.with.is_none();
        if let (ast::SetExpr::Values(values), true) = (&*query.body, is_plain) {
            return self.insert_values(table, targets, insert, values);
        }
        let (select, columns) = self.query(query)?;
        self.check_width(columns.len(), targets, insert, Location::empty())?;
        let scope = Scope::default();
        let mut assigned = Vec::with_capacity(columns.len());
        for (at, column) in columns.iter().enumerate() {
            let bound =
                Bound { expr: Expr::Column(at), ty: column.ty, location: Location::empty() };
            let target = &table.columns[targets[at]];
            let mut binder = self.binder(&scope, Aggregates::Forbidden("INSERT"));
            assigned.push(binder.assign(bound, &target.name, target.ty)?);
        }
        Ok((select, assigned))
    }

    fn insert_values(
        &mut self,
        table: &Arc<Table>,
        targets: &[usize],
        insert: &ast::Insert,
        values: &ast::Values,
    ) -> Result<(Select, Vec<Expr>), Failure> {
        let width = values.rows.first().map_or(0, |row| row.content.len());
        let scope = Scope::default();
        let mut rows = Vec::with_capacity(values.rows.len());
        for row in &values.rows {
            if row.content.len() != width {
                let message = "VALUES lists must all be the same length";
                return Err(SqlError::new(code::SYNTAX, message).into());
            }
            let start = row.content.first().map_or(Location::empty(), syntax::expr_location);
            self.check_width(width, targets, insert, start)?;
            let mut exprs = Vec::with_capacity(width);
            for (expr, &target) in row.content.iter().zip(targets) {
                if is_default(expr) {
                    exprs.push(self.default_of(table, target)?);
                    continue;
                }
                let column = &table.columns[target];
                let mut binder = self.binder(&scope, Aggregates::Forbidden("VALUES"));
                let bound = binder.bind(expr)?;
                exprs.push(binder.assign(bound, &column.name, column.ty)?);
            }
            rows.push(exprs);
        }
        let types = targets.iter().take(width).map(|&at| table.columns[at].ty.base).collect();
        let assigned = (0..width).map(Expr::Column).collect();
        Ok((value_select(rows, types), assigned))
    }

    fn check_width(
        &self,
        width: usize,
        targets: &[usize],
        insert: &ast::Insert,
        location: Location,
    ) -> Result<(), Failure> {
        if width > targets.len() {
            let message = "INSERT has more expressions than target columns";
            return Err(self.error_at(SqlError::new(code::SYNTAX, message), location));
        }
        if width < targets.len() && !insert.columns.is_empty() {
            let message = "INSERT has more target columns than expressions";
            let location = syntax::location(&insert.columns[width]);
            return Err(self.error_at(SqlError::new(code::SYNTAX, message), location));
        }
        Ok(())
    }

    /// What a column gets when a statement gives it nothing.
    fn default_of(&mut self, table: &Table, at: usize) -> Result<Expr, Failure> {
        let column = &table.columns[at];
        let Some(default) = &column.default else { return Ok(Expr::Const(Datum::Null)) };
        Ok(super::ddl::bind_default(default, column)?)
    }

    fn on_conflict(&mut self, table: &Table, insert: &ast::Insert) -> Result<bool, Failure> {
        let conflict = match &insert.on {
            None => return Ok(false),
            Some(ast::OnInsert::OnConflict(conflict)) => conflict,
            Some(_) => return Err(SqlError::unsupported("ON DUPLICATE KEY").into()),
        };
        if !matches!(conflict.action, ast::OnConflictAction::DoNothing) {
            return Err(SqlError::unsupported("ON CONFLICT DO UPDATE").into());
        }
        match &conflict.conflict_target {
            None => {}
            Some(ast::ConflictTarget::Columns(columns)) => {
                let mut named = columns
                    .iter()
                    .map(|ident| self.target(table, &syntax::name(ident), ident.span.start))
                    .collect::<Result<Vec<_>, _>>()?;
                let mut key = table.primary_key.clone();
                named.sort_unstable();
                key.sort_unstable();
                if named != key || key.is_empty() {
                    let message = "there is no unique or exclusion constraint matching the \
                                   ON CONFLICT specification";
                    return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message).into());
                }
            }
            Some(ast::ConflictTarget::OnConstraint(_)) => {
                return Err(SqlError::unsupported("ON CONFLICT ON CONSTRAINT").into());
            }
        }
        Ok(true)
    }

    pub(super) fn update(&mut self, update: &ast::Update) -> Statement {
        refuse(&[
            (update.from.is_some(), "UPDATE FROM"),
            (update.or.is_some() || !update.order_by.is_empty(), "this form of UPDATE"),
            (update.limit.is_some(), "UPDATE LIMIT"),
            (!update.table.joins.is_empty(), "JOIN"),
        ])?;
        let (table, alias) = self.relation(&update.table.relation)?;
        let scope = scope_of(&table, &alias);
        let mut assignments: Vec<(usize, Expr)> = Vec::with_capacity(update.assignments.len());
        for assignment in &update.assignments {
            let ast::AssignmentTarget::ColumnName(object) = &assignment.target else {
                return Err(SqlError::unsupported("an assignment to a row").into());
            };
            let location = syntax::location(object);
            let name = syntax::name_parts(object)?.pop().unwrap_or_default();
            let at = self.target(&table, &name, location)?;
            if assignments.iter().any(|(other, _)| *other == at) {
                let message = format!("multiple assignments to same column \"{name}\"");
                return Err(self.error_at(SqlError::new(code::SYNTAX, message), location));
            }
            let expr = if is_default(&assignment.value) {
                self.default_of(&table, at)?
            } else {
                let mut binder = self.binder(&scope, Aggregates::Forbidden("UPDATE"));
                let bound = binder.bind(&assignment.value)?;
                binder.assign(bound, &name, table.columns[at].ty)?
            };
            assignments.push((at, expr));
        }
        let filter = self.where_clause(update.selection.as_ref(), &scope)?;
        let (returning, output) = self.returning(update.returning.as_deref(), &scope)?;
        let access = Access::new(table, filter.as_ref());
        Ok((Plan::Update(Update { access, filter, assignments, returning }), output))
    }

    pub(super) fn delete(&mut self, delete: &ast::Delete) -> Statement {
        refuse(&[
            (delete.using.is_some(), "DELETE USING"),
            (!delete.tables.is_empty() || !delete.order_by.is_empty(), "this form of DELETE"),
            (delete.limit.is_some(), "DELETE LIMIT"),
        ])?;
        let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) =
            &delete.from;
        let [from] = &from[..] else {
            return Err(SqlError::unsupported("DELETE from more than one table").into());
        };
        refuse(&[(!from.joins.is_empty(), "JOIN")])?;
        let (table, alias) = self.relation(&from.relation)?;
        let scope = scope_of(&table, &alias);
        let filter = self.where_clause(delete.selection.as_ref(), &scope)?;
        let (returning, output) = self.returning(delete.returning.as_deref(), &scope)?;
        let access = Access::new(table, filter.as_ref());
        Ok((Plan::Delete(Delete { access, filter, returning }), output))
    }

    fn where_clause(
        &mut self,
        selection: Option<&ast::Expr>,
        scope: &Scope,
    ) -> Result<Option<Expr>, Failure> {
        let Some(condition) = selection else { return Ok(None) };
        let mut binder = self.binder(scope, Aggregates::Forbidden("WHERE"));
        Ok(Some(binder.condition(condition, "WHERE")?))
    }
}

/// The error of a column that is named twice.
pub(super) fn specified_twice(name: &str) -> SqlError {
    let message = format!("column \"{name}\" specified more than once");
    SqlError::new(code::DUPLICATE_COLUMN, message)
}

/// `DEFAULT` in the place of a value.
fn is_default(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Identifier(ident)
        if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

/// The types of a table's key columns.
pub(crate) fn key_types(table: &Table) -> impl Iterator<Item = (usize, SqlType)> + '_ {
    table.primary_key.iter().map(|&at| (at, table.columns[at].ty.base))
}
