//! Planning of INSERT, UPDATE and DELETE.

use std::sync::Arc;

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::access::Access;
use super::path::{Part, Path, Paths};
use super::select::{empty_row, value_select};
use super::target::default_of;
use super::{Joined, OutputColumn, Plan, Planner, Select, Targets, refuse, scope_of};
use crate::catalog::role::Privileges;
use crate::catalog::{Column, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Bound, Scope};
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;

#[derive(Clone, Debug)]
pub(crate) struct Insert {
    pub targets: Arc<Targets>,
    pub source: Select,
    /// The columns of the table, over the columns of the source.
    pub columns: Vec<Expr>,
    pub on_conflict: OnConflict,
    pub returning: Vec<Expr>,
}

/// What becomes of a row that another is in the way of.
#[derive(Clone, Debug)]
pub(crate) enum OnConflict {
    /// The statement fails.
    Fail,
    /// It is left out: where the other has its key on one of the table's paths, or on any.
    Skip { path: Option<usize> },
    /// The other is changed. Expressions are over its columns, and then those of the new row.
    Update { path: usize, assignments: Vec<(usize, Expr)>, filter: Option<Expr> },
}

#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub targets: Arc<Targets>,
    pub access: Access,
    pub filter: Option<Expr>,
    pub assignments: Vec<(usize, Expr)>,
    pub returning: Vec<Expr>,
    /// Where several relations or queries decide which rows it changes, and into what.
    pub joined: Option<Joined>,
}

#[derive(Clone, Debug)]
pub(crate) struct Delete {
    pub targets: Arc<Targets>,
    pub access: Access,
    pub filter: Option<Expr>,
    pub returning: Vec<Expr>,
    /// Where several relations or queries decide which rows go.
    pub joined: Option<Joined>,
}

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
        let needed = self.required.len();
        let paths = Paths::new(self.table(name)?)?;
        let table = paths.table.clone();
        let targets = self.insert_targets(&table, insert)?;
        let (source, mut assigned) = self.insert_source(&table, &targets, insert)?;
        let mut columns = Vec::with_capacity(table.columns.len());
        for at in 0..table.columns.len() {
            let position = targets.iter().position(|&target| target == at);
            columns.push(match position.and_then(|position| assigned.get_mut(position)) {
                Some(expr) => std::mem::replace(expr, Expr::Const(Datum::Null)),
                None => default_of(&table, at, &mut self.params)?,
            });
        }
        let alias = insert.table_alias.as_ref().map(|alias| syntax::name(&alias.alias));
        let scope = scope_of(&table, alias.as_deref().unwrap_or(table.name.name()));
        let on_conflict = self.on_conflict(&paths, &scope, insert)?;
        let only_adds = !matches!(on_conflict, OnConflict::Update { .. });
        let (returning, output) = self.returning(insert.returning.as_deref(), &scope)?;
        self.inserts(needed, insert, &returning);
        let targets = Arc::new(self.targets(&paths, only_adds)?);
        let plan = Insert { targets, source, columns, on_conflict, returning };
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
            targets.extend(table.live_columns().map(|(at, _)| at));
        }
        Ok(targets)
    }

    fn target(&self, table: &Table, name: &str, location: Location) -> Result<usize, Failure> {
        table.position(name).ok_or_else(|| {
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
            self.refuse_generated(target, Location::empty())?;
            let mut binder = self.binder(&scope, Aggregates::Forbidden("INSERT"), &[])?;
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
                    exprs.push(default_of(table, target, &mut self.params)?);
                    continue;
                }
                let column = &table.columns[target];
                self.refuse_generated(column, syntax::expr_location(expr))?;
                let mut binder = self.binder(&scope, Aggregates::Forbidden("VALUES"), &[expr])?;
                let bound = binder.bind(expr)?;
                exprs.push(binder.assign(bound, &column.name, column.ty)?);
            }
            rows.push(exprs);
        }
        let types: Vec<SqlType> =
            targets.iter().take(width).map(|&at| table.columns[at].ty.base).collect();
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

    /// The column takes a value that a statement gives it.
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
        paths: &Paths,
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
            Some(target) => Some(self.arbiter(paths, target)?),
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
        let mut both = scope.clone();
        let excluded = scope_of(&paths.table, "excluded");
        both.columns.extend(excluded.columns);
        let assignments = self.assignments(&paths.table, &update.assignments, &both)?;
        let filter = self.where_clause(update.selection.as_ref(), &both)?;
        let mut exprs = assignments.iter().map(|(_, expr)| expr).chain(&filter);
        let asks = exprs.any(Expr::holds_subquery);
        refuse(&[(asks, "a subquery in ON CONFLICT DO UPDATE")])?;
        Ok(OnConflict::Update { path, assignments, filter })
    }

    /// The key that a conflict is about, among a table's paths.
    fn arbiter(&mut self, paths: &Paths, target: &ast::ConflictTarget) -> Result<usize, Failure> {
        let table = &paths.table;
        let columns = match target {
            ast::ConflictTarget::Columns(columns) => columns,
            ast::ConflictTarget::OnConstraint(name) => {
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
            named.push(Expr::Column(self.target(table, &syntax::name(ident), ident.span.start)?));
        }
        let is_it = |path: &Arc<Path>| {
            let has = |expr: &Expr| path.parts.iter().any(|part| part.expr == *expr);
            let is_whole = path.index.as_ref().is_none_or(|index| index.predicate.is_none());
            let is_of = |part: &Part| named.contains(&part.expr);
            path.is_unique() && is_whole && named.iter().all(has) && path.parts.iter().all(is_of)
        };
        paths.all.iter().position(is_it).ok_or_else(|| {
            let message = "there is no unique or exclusion constraint matching the ON CONFLICT \
                           specification";
            SqlError::new(code::INVALID_COLUMN_REFERENCE, message).into()
        })
    }

    /// What columns of a table become.
    pub(super) fn assignments(
        &mut self,
        table: &Table,
        assignments: &[ast::Assignment],
        scope: &Scope,
    ) -> Result<Vec<(usize, Expr)>, Failure> {
        let mut done: Vec<(usize, Expr)> = Vec::with_capacity(assignments.len());
        let assignments = one_by_one(assignments)?;
        for assignment in &assignments {
            let ast::AssignmentTarget::ColumnName(object) = &assignment.target else {
                unreachable!("rows are taken apart")
            };
            let location = syntax::location(object);
            let name = syntax::name_parts(object)?.pop().unwrap_or_default();
            let at = self.target(table, &name, location)?;
            if done.iter().any(|(other, _)| *other == at) {
                let message = format!("multiple assignments to same column \"{name}\"");
                return Err(self.error_at(SqlError::new(code::SYNTAX, message), location));
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
        let (paths, alias) = self.relation(&update.table.relation)?;
        if update.from.is_some() || self.has_queries {
            return self.joined_update(update, &paths, &alias, needed);
        }
        let scope = scope_of(&paths.table, &alias);
        let assignments = self.assignments(&paths.table, &update.assignments, &scope)?;
        let filter = self.where_clause(update.selection.as_ref(), &scope)?;
        let (returning, output) = self.returning(update.returning.as_deref(), &scope)?;
        let read = assignments.iter().map(|(_, expr)| expr).chain(&filter).chain(&returning);
        self.writes(needed, Privileges::UPDATE, read);
        let access = Access::new(&paths, filter.as_ref());
        let targets = Arc::new(self.targets(&paths, false)?);
        Ok((
            Plan::Update(Update { targets, access, filter, assignments, returning, joined: None }),
            output,
        ))
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
        let (paths, alias) = self.relation(&from.relation)?;
        if delete.using.is_some() || self.has_queries {
            return self.joined_delete(delete, &paths, &alias, needed);
        }
        let scope = scope_of(&paths.table, &alias);
        let filter = self.where_clause(delete.selection.as_ref(), &scope)?;
        let (returning, output) = self.returning(delete.returning.as_deref(), &scope)?;
        self.writes(needed, Privileges::DELETE, filter.iter().chain(&returning));
        let access = Access::new(&paths, filter.as_ref());
        let targets = Arc::new(self.targets(&paths, false)?);
        Ok((Plan::Delete(Delete { targets, access, filter, returning, joined: None }), output))
    }

    /// A table that is written, and the name that its columns go by.
    fn relation(&mut self, relation: &ast::TableFactor) -> Result<(Paths, String), Failure> {
        let ast::TableFactor::Table { name, alias, args: None, .. } = relation else {
            return Err(SqlError::unsupported("writing something other than a table").into());
        };
        let columns = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
        refuse(&[(columns, "an alias with column names")])?;
        let table = self.table(name)?;
        let alias = alias.as_ref().map(|alias| syntax::name(&alias.name));
        let alias = alias.unwrap_or_else(|| table.name.name().to_owned());
        Ok((Paths::new(table)?, alias))
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

/// Assignments of columns: `(a, b) = (1, 2)` is two of them.
fn one_by_one(assignments: &[ast::Assignment]) -> Result<Vec<ast::Assignment>, SqlError> {
    let mut all = Vec::with_capacity(assignments.len());
    for assignment in assignments {
        let ast::AssignmentTarget::Tuple(names) = &assignment.target else {
            all.push(assignment.clone());
            continue;
        };
        let ast::Expr::Tuple(values) = &assignment.value else {
            return Err(SqlError::unsupported("an assignment to a row"));
        };
        if names.len() != values.len() {
            let message = "number of columns does not match number of values";
            return Err(SqlError::new(code::SYNTAX, message));
        }
        all.extend(names.iter().zip(values).map(|(name, value)| ast::Assignment {
            target: ast::AssignmentTarget::ColumnName(name.clone()),
            value: value.clone(),
        }));
    }
    Ok(all)
}
