//! Planning of INSERT, UPDATE and DELETE.

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::deltas::Delta;
use super::select::{empty_row, value_select};
use super::target::default_of;
use super::write_target::{Verb, ViewCheck, WriteTarget};
use super::{Asked, Joined, Plan, Planner, Returning, Select, Targets, refuse};
use crate::access::Access;
use crate::access::path::{Part, Path, Paths};
use crate::access::text::scope_as;
use crate::catalog::role::Privileges;
use crate::catalog::{Column, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Bound, Scope};
use crate::expr::cast::{self, Level};
use crate::syntax;
use crate::syntax::inserts::{Inferred, Overriding, inferred, is_default, overriding};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;

#[derive(Clone, Debug)]
pub(crate) struct Insert {
    pub targets: Arc<Targets>,
    pub source: Select,
    /// The columns of the table, over the columns of the source.
    pub columns: Vec<Expr>,
    pub on_conflict: OnConflict,
    pub checks: Vec<ViewCheck>,
    pub returning: Returning,
}

/// The action for a row that conflicts with another.
#[derive(Clone, Debug)]
pub(crate) enum OnConflict {
    /// The statement fails.
    Fail,
    /// The row is skipped if it conflicts on this path of the table, or, for `None`, on any path.
    Skip { path: Option<usize> },
    /// The existing row is updated. Expressions are over its columns, followed by those of the new
    /// row.
    Update {
        path: usize,
        assignments: Vec<(usize, Expr)>,
        filter: Option<Expr>,
        /// A query for the values and then the condition, if they contain subqueries.
        asked: Option<Asked>,
    },
}

impl OnConflict {
    /// Whether it runs subqueries.
    pub(crate) fn asks(&self) -> bool {
        matches!(self, Self::Update { asked: Some(_), .. })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub targets: Arc<Targets>,
    pub access: Access,
    pub filter: Option<Expr>,
    pub assignments: Vec<(usize, Expr)>,
    pub checks: Vec<ViewCheck>,
    pub returning: Returning,
    /// Present if several relations or subqueries determine the rows and their new values.
    pub joined: Option<Joined>,
    /// What it adds to a row, if it does nothing else.
    pub delta: Option<Delta>,
}

#[derive(Clone, Debug)]
pub(crate) struct Delete {
    pub targets: Arc<Targets>,
    pub access: Access,
    pub filter: Option<Expr>,
    pub returning: Returning,
    /// Present if several relations or subqueries determine the rows.
    pub joined: Option<Joined>,
}

type Statement = Result<(Plan, Vec<OutputColumn>), Failure>;

impl Planner<'_> {
    pub(super) fn insert(&mut self, insert: &ast::Insert) -> Statement {
        refuse(&[
            (insert.overwrite || insert.replace_into || insert.ignore, "this form of INSERT"),
            (insert.or.is_some() || !insert.assignments.is_empty(), "this form of INSERT"),
            (insert.partitioned.is_some() && overriding(insert).is_none(), "PARTITION"),
        ])?;
        let ast::TableObject::TableName(name) = &insert.table else {
            return Err(SqlError::unsupported("INSERT into something other than a table").into());
        };
        let needed = self.required.len();
        let alias = insert.table_alias.as_ref().map(|alias| syntax::name(&alias.alias));
        let written = self.written(name, alias, Verb::Insert)?;
        let table = written.table().clone();
        let targets = self.insert_targets(&written, insert)?;
        let (source, mut assigned) = self.insert_source(&table, &targets, insert)?;
        let targets = targets.0;
        let mut columns = Vec::with_capacity(table.columns.len());
        for at in 0..table.columns.len() {
            let position = targets.iter().position(|&target| target == at);
            columns.push(match position.and_then(|position| assigned.get_mut(position)) {
                Some(expr) => std::mem::replace(expr, Expr::Const(Datum::Null)),
                None => default_of(&table, at, &mut self.params)?,
            });
        }
        let shown = self.number();
        let scope = written.scope(&written.alias, written.relation, shown);
        let on_conflict = self.on_conflict(&written, &scope, insert)?;
        let only_adds = !matches!(on_conflict, OnConflict::Update { .. });
        let (returning, output) = self.returning(insert.returning.as_deref(), &written, &scope)?;
        self.inserts(written.needed(needed), insert, &returning.exprs);
        let targets = Arc::new(self.targets(&written.paths, only_adds)?);
        let checks = self.view_checks(&written)?;
        let plan = Insert { targets, source, columns, on_conflict, checks, returning };
        Ok((Plan::Insert(plan), output))
    }

    /// Returns the positions of the columns that an INSERT names, or of all columns.
    fn insert_targets(
        &mut self,
        written: &WriteTarget,
        insert: &ast::Insert,
    ) -> Result<InsertTargets, Failure> {
        if insert.columns.is_empty() {
            return Ok(written.all_targets());
        }
        let mut targets = Vec::with_capacity(insert.columns.len());
        let mut names: Vec<String> = Vec::with_capacity(insert.columns.len());
        for object in &insert.columns {
            let location = syntax::location(object);
            let name = syntax::name_parts(object)?.pop().unwrap_or_default();
            if names.contains(&name) {
                return Err(self.error_at(specified_twice(&name), location));
            }
            let at = self.target(written, &name, location)?;
            if targets.contains(&at) {
                return Err(assigned_twice(&written.table().columns[at].name).into());
            }
            names.push(name);
            targets.push(at);
        }
        Ok((targets, None))
    }

    /// Returns the rows to insert, and the expression for each target column.
    fn insert_source(
        &mut self,
        table: &Arc<Table>,
        targets: &InsertTargets,
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
            let target = &table.columns[targets.0[at]];
            if self.passes_over(target, insert, Location::empty())? {
                assigned.push(default_of(table, targets.0[at], &mut self.params)?);
                continue;
            }
            let mut binder = self.binder(&scope, Aggregates::Forbidden("INSERT"), &[])?;
            let is_literal = is_literal(query, at);
            assigned.push(match cast::level(column.ty.base, target.ty.base) {
                // An untyped literal is read as the column's type.
                Some(Level::Explicit) if is_literal => {
                    binder.cast(bound, target.ty, Level::Explicit)?.expr
                }
                _ => binder.assign(bound, &target.name, target.ty)?,
            });
        }
        Ok((select, assigned))
    }

    fn insert_values(
        &mut self,
        table: &Arc<Table>,
        targets: &InsertTargets,
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
            for (expr, &target) in row.content.iter().zip(&targets.0) {
                if is_default(expr) {
                    exprs.push(default_of(table, target, &mut self.params)?);
                    continue;
                }
                let column = &table.columns[target];
                if self.passes_over(column, insert, syntax::expr_location(expr))? {
                    exprs.push(default_of(table, target, &mut self.params)?);
                    continue;
                }
                let mut binder = self.binder(&scope, Aggregates::Forbidden("VALUES"), &[expr])?;
                let bound = binder.bind(expr)?;
                exprs.push(binder.assign(bound, &column.name, column.ty)?);
            }
            rows.push(exprs);
        }
        let types: Vec<SqlType> =
            targets.0.iter().take(width).map(|&at| table.columns[at].ty.base).collect();
        if rows.iter().flatten().any(Expr::holds_subquery) {
            let [row] = <[Vec<Expr>; 1]>::try_from(rows)
                .map_err(|_| SqlError::unsupported("subqueries in VALUES of several rows"))?;
            let assigned = (0..width).map(Expr::Column).collect();
            return Ok((self.asked_row(row.into_iter().zip(types).collect())?, assigned));
        }
        let assigned = (0..width).map(Expr::Column).collect();
        Ok((value_select(rows, types), assigned))
    }

    fn check_width(
        &self,
        width: usize,
        (targets, stopped): &InsertTargets,
        insert: &ast::Insert,
        location: Location,
    ) -> Result<(), Failure> {
        if let Some(error) = stopped.as_ref().filter(|_| width > targets.len()) {
            return Err(error.clone().into());
        }
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

    /// Whether the value given for a column is ignored (OVERRIDING USER VALUE). Fails if the column
    /// accepts no value.
    fn passes_over(
        &self,
        column: &Column,
        insert: &ast::Insert,
        location: Location,
    ) -> Result<bool, Failure> {
        let overriding = overriding(insert);
        match (&column.identity, overriding) {
            (Some(_), Some(Overriding::User)) => Ok(true),
            (Some(_), Some(Overriding::System)) => Ok(false),
            _ => self.refuse_generated(column, location).map(|()| false),
        }
    }

    /// Fails if the column does not accept a value from a statement.
    fn refuse_generated(&self, column: &Column, location: Location) -> Result<(), Failure> {
        let name = &column.name;
        let message = format!("cannot insert a non-DEFAULT value into column \"{name}\"");
        let error = SqlError::new(code::GENERATED_ALWAYS, message);
        let error = if column.generated.is_some() {
            error.with_detail(format!("Column \"{name}\" is a generated column."))
        } else if column.identity.as_ref().is_some_and(|identity| identity.is_always) {
            let detail =
                format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS.");
            let hint = "Use OVERRIDING SYSTEM VALUE to override.";
            error.with_detail(detail).with_hint(hint)
        } else {
            return Ok(());
        };
        Err(self.error_at(error, location))
    }

    fn on_conflict(
        &mut self,
        written: &WriteTarget,
        scope: &Scope,
        insert: &ast::Insert,
    ) -> Result<OnConflict, Failure> {
        let conflict = match &insert.on {
            None => return Ok(OnConflict::Fail),
            Some(ast::OnInsert::OnConflict(conflict)) => conflict,
            Some(_) => return Err(SqlError::unsupported("ON DUPLICATE KEY").into()),
        };
        let path = match &conflict.conflict_target {
            None => None,
            Some(target) => Some(self.arbiter(written, target)?),
        };
        let update = match &conflict.action {
            ast::OnConflictAction::DoNothing => return Ok(OnConflict::Skip { path }),
            ast::OnConflictAction::DoUpdate(update) => update,
        };
        let Some(path) = path else {
            let message = "ON CONFLICT DO UPDATE requires inference specification or constraint \
                           name";
            return Err(SqlError::new(code::SYNTAX, message)
                .with_hint("For example, ON CONFLICT (column_name).")
                .into());
        };
        let (relation, shown) = (self.number(), self.number());
        let both = scope.clone().and(written.scope("excluded", relation, shown));
        let own = written.table().columns.len();
        // The scope has two rows of the table, each followed by the columns of the view.
        let settled = |expr: Expr| {
            let expr = written.settled(expr, own, 0);
            written.settled(expr, 2 * own + written.width(), own)
        };
        let assignments = self.assignments(written, &update.assignments, &both)?.into_iter();
        let assignments = assignments.map(|(at, expr)| (at, settled(expr))).collect::<Vec<_>>();
        let filter = self.where_clause(update.selection.as_ref(), &both)?.map(settled);
        let value = |(at, expr): &(usize, Expr)| {
            let base = written.table().columns[*at].ty.base;
            (expr.clone(), base)
        };
        let values = assignments.iter().map(value);
        let values = values.chain(filter.iter().map(|it| (it.clone(), SqlType::Bool)));
        let rows = written.table_scope().and(scope_as(written.table(), "excluded", relation));
        let asked = self.returning_of(values.collect(), &rows)?.asked;
        Ok(OnConflict::Update { path, assignments, filter, asked })
    }

    /// Returns the arbiter of a conflict target, as a position among the table's paths.
    fn arbiter(
        &mut self,
        written: &WriteTarget,
        target: &ast::ConflictTarget,
    ) -> Result<usize, Failure> {
        let (paths, table) = (&written.paths, written.table());
        let columns = match target {
            ast::ConflictTarget::Columns(columns) => columns,
            ast::ConflictTarget::OnConstraint(name) => {
                if let Some(inferred) = inferred(name) {
                    return self.inferred(written, &inferred?);
                }
                let name = syntax::name_parts(name)?.pop().unwrap_or_default();
                let is_it = |path: &Arc<Path>| path.is_unique() && path.name == name;
                return paths.all.iter().position(is_it).ok_or_else(|| {
                    let message = format!(
                        "constraint \"{name}\" for table \"{}\" does not exist",
                        table.name
                    );
                    SqlError::new(code::UNDEFINED_OBJECT, message).into()
                });
            }
        };
        let mut named = Vec::with_capacity(columns.len());
        for ident in columns {
            named.push(self.conflict_column(written, ident)?);
        }
        arbiter_of(paths, &named, None)
    }

    /// Returns the arbiter of a conflict target with expressions or with a WHERE clause.
    fn inferred(&mut self, written: &WriteTarget, inferred: &Inferred) -> Result<usize, Failure> {
        let own = written.table().columns.len();
        let shown = self.number();
        let scope = written.scope(&written.alias, written.relation, shown);
        let mut named = Vec::with_capacity(inferred.exprs.len());
        for expr in &inferred.exprs {
            if let ast::Expr::Identifier(ident) = expr {
                named.push(self.conflict_column(written, ident)?);
                continue;
            }
            let forbidden = Aggregates::Forbidden("index expressions");
            let mut binder = self.binder(&scope, forbidden, &[])?;
            let bound = binder.bind(expr)?;
            named.push(written.settled(bound.expr, own, 0));
        }
        let condition = match &inferred.condition {
            None => None,
            Some(condition) => {
                let forbidden = Aggregates::Forbidden("index predicates");
                let mut binder = self.binder(&scope, forbidden, &[])?;
                let bound = binder.condition(condition, "WHERE")?;
                Some(written.settled(bound, own, 0))
            }
        };
        arbiter_of(&written.paths, &named, condition.as_ref())
    }

    /// Binds the assignments of SET.
    pub(super) fn assignments(
        &mut self,
        written: &WriteTarget,
        assignments: &[ast::Assignment],
        scope: &Scope,
    ) -> Result<Vec<(usize, Expr)>, Failure> {
        let table = &**written.table();
        let mut done: Vec<(usize, Expr)> = Vec::with_capacity(assignments.len());
        let assignments = self.one_by_one(assignments, scope)?;
        for assignment in &assignments {
            let ast::AssignmentTarget::ColumnName(object) = &assignment.target else {
                unreachable!("rows are taken apart")
            };
            let location = syntax::location(object);
            let name = syntax::name_parts(object)?.pop().unwrap_or_default();
            let at = self.target(written, &name, location)?;
            if done.iter().any(|(other, _)| *other == at) {
                let error = assigned_twice(&table.columns[at].name);
                return Err(match written.view {
                    Some(_) => error.into(),
                    None => self.error_at(error, location),
                });
            }
            let expr = if is_default(&assignment.value) {
                default_of(table, at, &mut self.params)?
            } else {
                let column = &table.columns[at];
                let is_identity = column.identity.as_ref().is_some_and(|it| it.is_always);
                if column.generated.is_some() || is_identity {
                    let message = format!("column \"{name}\" can only be updated to DEFAULT");
                    let detail = match is_identity {
                        true => format!(
                            "Column \"{name}\" is an identity column defined as GENERATED ALWAYS."
                        ),
                        false => format!("Column \"{name}\" is a generated column."),
                    };
                    let error = SqlError::new(code::GENERATED_ALWAYS, message);
                    return Err(self.error_at(error.with_detail(detail), location));
                }
                let mut binder =
                    self.binder(scope, Aggregates::Forbidden("UPDATE"), &[&assignment.value])?;
                let bound = binder.bind(&assignment.value)?;
                binder.assign(bound, &name, table.columns[at].ty)?
            };
            done.push((at, expr));
        }
        Ok(done)
    }

    pub(super) fn update(&mut self, update: &ast::Update) -> Statement {
        refuse(&[
            (update.or.is_some() || !update.order_by.is_empty(), "this form of UPDATE"),
            (update.limit.is_some(), "UPDATE LIMIT"),
            (!update.table.joins.is_empty(), "JOIN"),
        ])?;
        let needed = self.required.len();
        let written = self.relation(&update.table.relation, Verb::Update)?;
        if update.from.is_some() || self.has_queries || written.asks() {
            return self.joined_update(update, &written, needed);
        }
        let own = written.table().columns.len();
        let shown = self.number();
        let scope = written.scope(&written.alias, written.relation, shown);
        let settled = |expr: Expr| written.settled(expr, own, 0);
        let assignments = self.assignments(&written, &update.assignments, &scope)?.into_iter();
        let assignments = assignments.map(|(at, expr)| (at, settled(expr))).collect::<Vec<_>>();
        let filter = self.where_clause(update.selection.as_ref(), &scope)?.map(settled);
        let (returning, output) = self.returning(update.returning.as_deref(), &written, &scope)?;
        let read = assignments.iter().map(|(_, expr)| expr).chain(&filter).chain(&returning.exprs);
        self.writes(written.needed(needed), Privileges::UPDATE, read);
        let filter = written.filter(filter);
        let access = Access::new(&written.paths, filter.as_ref());
        let targets = Arc::new(self.targets(&written.paths, false)?);
        let (checks, joined, delta) = (self.view_checks(&written)?, None, None);
        let plan =
            Update { targets, access, filter, assignments, checks, returning, joined, delta };
        Ok((Plan::Update(Update { delta: Delta::of(&plan), ..plan }), output))
    }

    pub(super) fn delete(&mut self, delete: &ast::Delete) -> Statement {
        refuse(&[
            (!delete.tables.is_empty() || !delete.order_by.is_empty(), "this form of DELETE"),
            (delete.limit.is_some(), "DELETE LIMIT"),
        ])?;
        let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) =
            &delete.from;
        let [from] = &from[..] else {
            return Err(SqlError::unsupported("DELETE from more than one table").into());
        };
        refuse(&[(!from.joins.is_empty(), "JOIN")])?;
        let needed = self.required.len();
        let written = self.relation(&from.relation, Verb::Delete)?;
        if delete.using.is_some() || self.has_queries || written.asks() {
            return self.joined_delete(delete, &written, needed);
        }
        let own = written.table().columns.len();
        let shown = self.number();
        let scope = written.scope(&written.alias, written.relation, shown);
        let filter = self.where_clause(delete.selection.as_ref(), &scope)?;
        let filter = filter.map(|filter| written.settled(filter, own, 0));
        let (returning, output) = self.returning(delete.returning.as_deref(), &written, &scope)?;
        let read = filter.iter().chain(&returning.exprs);
        self.writes(written.needed(needed), Privileges::DELETE, read);
        let filter = written.filter(filter);
        let access = Access::new(&written.paths, filter.as_ref());
        let targets = Arc::new(self.targets(&written.paths, false)?);
        Ok((Plan::Delete(Delete { targets, access, filter, returning, joined: None }), output))
    }

    /// Resolves the target relation of a write.
    fn relation(
        &mut self,
        relation: &ast::TableFactor,
        verb: Verb,
    ) -> Result<WriteTarget, Failure> {
        let ast::TableFactor::Table { name, alias, args: None, .. } = relation else {
            return Err(SqlError::unsupported("writing something other than a table").into());
        };
        let columns = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
        refuse(&[(columns, "an alias with column names")])?;
        let alias = alias.as_ref().map(|alias| syntax::name(&alias.name));
        self.written(name, alias, verb)
    }

    pub(super) fn where_clause(
        &mut self,
        selection: Option<&ast::Expr>,
        scope: &Scope,
    ) -> Result<Option<Expr>, Failure> {
        let Some(condition) = selection else { return Ok(None) };
        let mut binder = self.binder(scope, Aggregates::Forbidden("WHERE"), &[condition])?;
        Ok(Some(binder.condition(condition, "WHERE")?))
    }
}

/// Returns the unique key over exactly these expressions. A partial index qualifies if each
/// conjunct of its predicate is a conjunct of the condition.
fn arbiter_of(paths: &Paths, named: &[Expr], condition: Option<&Expr>) -> Result<usize, Failure> {
    let given = condition.map(Expr::conjuncts).unwrap_or_default();
    let is_it = |path: &Arc<Path>| {
        let has = |expr: &Expr| path.parts.iter().any(|part| part.expr == *expr);
        let predicate = path.index.as_ref().and_then(|index| index.predicate.as_ref());
        let parts = predicate.map(Expr::conjuncts).unwrap_or_default();
        let is_whole = parts.iter().all(|part| given.contains(part));
        let is_of = |part: &Part| named.contains(&part.expr);
        path.is_unique() && is_whole && named.iter().all(has) && path.parts.iter().all(is_of)
    };
    paths.all.iter().position(is_it).ok_or_else(|| {
        let message = "there is no unique or exclusion constraint matching the ON CONFLICT \
                       specification";
        SqlError::new(code::INVALID_COLUMN_REFERENCE, message).into()
    })
}

/// The positions of the columns that an INSERT names, or of all columns. The error is for the
/// column after them, if that column of a view cannot be written.
type InsertTargets = (Vec<usize>, Option<SqlError>);

pub(super) fn assigned_twice(name: &str) -> SqlError {
    let message = format!("multiple assignments to same column \"{name}\"");
    SqlError::new(code::SYNTAX, message)
}

/// The error for a column that is named twice.
pub(super) fn specified_twice(name: &str) -> SqlError {
    let message = format!("column \"{name}\" specified more than once");
    SqlError::new(code::DUPLICATE_COLUMN, message)
}

/// Whether a column of a query is an untyped literal.
fn is_literal(query: &ast::Query, at: usize) -> bool {
    let ast::SetExpr::Select(select) = &*query.body else { return false };
    let exprs = select.projection.iter().map(|item| match item {
        ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. } => {
            Some(expr)
        }
        _ => None,
    });
    // Positions after a `*` are not known.
    let found = exprs.take_while(Option::is_some).flatten().nth(at);
    found.is_some_and(|expr| match expr {
        ast::Expr::Value(value) => matches!(
            value.value,
            ast::Value::SingleQuotedString(_)
                | ast::Value::EscapedStringLiteral(_)
                | ast::Value::Null
        ),
        _ => false,
    })
}
