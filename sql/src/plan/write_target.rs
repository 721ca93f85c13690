//! The target of a write: a table, or a view whose rows are those of one table.
//!
//! ```text
//!   UPDATE v SET n = 1 WHERE up = 'A' RETURNING up     v: SELECT n, upper(s) AS up FROM t WHERE ..
//!     scope:      t.n, t.s (hidden) | v.n, v.up
//!     bound:      v.up = 'A'
//!     settled:    upper(t.s) = 'A', and the condition of v
//! ```
//!
//! A view can be written if each of its rows is one row of its table: PostgreSQL's automatically
//! updatable views. Expressions over its columns are rewritten over the columns of the table.

use std::ops::Range;
use std::sync::Arc;

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::from::rename;
use super::views::Within;
use super::{Planner, as_table, refuse};
use crate::access::path::Paths;
use crate::access::text::scope_as;
use crate::authorization::Required;
use crate::catalog::role::{Object, Privileges};
use crate::catalog::{CheckOption, QualifiedName, Relation, Table, View, stored};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Collected, Scope, ScopeColumn};
use crate::syntax;
use crate::types::ColumnType;
use crate::vocabulary::column::ColumnId;

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Insert,
    Update,
    Delete,
}

/// The target of a write.
#[derive(Clone, Debug)]
pub(super) struct WriteTarget {
    pub paths: Paths,
    /// The name that qualifies its columns.
    pub alias: String,
    /// The schema that may also qualify its columns.
    schema: Option<String>,
    /// The relation number of the table in queries.
    pub relation: u32,
    /// The view over the table, if the target is a view.
    pub view: Option<Shown>,
    /// The number of relations that it resolves to: views and the table.
    depth: usize,
    verb: Verb,
}

/// The rows and columns of a table that a view shows.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    name: String,
    columns: Vec<ShownColumn>,
    /// The condition of the rows that it shows.
    pub filter: Option<Expr>,
    pub checks: Vec<ViewCheck>,
}

/// A column of a view, over the columns of the table.
#[derive(Clone, Debug)]
struct ShownColumn {
    name: String,
    ty: ColumnType,
    expr: Expr,
    /// The table column that it shows. Otherwise the view and its column that computes the value.
    source: Result<usize, (String, String)>,
}

/// Columns, each with whether it is a column of the underlying relation, and the condition.
type Showing = (Vec<(ShownColumn, bool)>, Option<Expr>);

/// The single relation of a query, with its name and alias.
pub(super) type One<'a> = (&'a ast::Select, &'a ast::ObjectName, Option<&'a ast::TableAlias>);

/// A condition for rows written through a view with a CHECK OPTION.
#[derive(Clone, Debug)]
pub(crate) struct ViewCheck {
    pub view: String,
    pub condition: Expr,
}

impl WriteTarget {
    pub(super) fn table(&self) -> &Arc<Table> {
        &self.paths.table
    }

    /// Returns the columns of the table, without those of a view.
    pub(super) fn table_scope(&self) -> Scope {
        scope_as(self.table(), &self.alias, self.relation)
    }

    /// Returns the columns that expressions of the statement may refer to: those of the table,
    /// followed by those of a view, which hide them.
    pub(super) fn scope(&self, alias: &str, relation: u32, shown: u32) -> Scope {
        let scope = scope_as(self.table(), alias, relation);
        let mut scope = match &self.view {
            Some(view) => Scope { columns: hidden(scope) }.and(view.scope(alias, shown)),
            None => scope,
        };
        if let Some(schema) = self.schema.as_ref().filter(|_| alias == self.alias) {
            scope.is_of(schema);
        }
        scope
    }

    /// Returns the number of columns of the view; 0 for a table.
    pub(super) fn width(&self) -> usize {
        self.view.as_ref().map_or(0, |view| view.columns.len())
    }

    /// Rewrites view columns, which begin at `from`, over the table's columns, which begin at
    /// `onto`.
    pub(super) fn settled(&self, expr: Expr, from: usize, onto: usize) -> Expr {
        match &self.view {
            Some(view) => view.settled(expr, from, onto),
            None => expr,
        }
    }

    /// Whether the view contains subqueries.
    pub(super) fn asks(&self) -> bool {
        let Some(view) = &self.view else { return false };
        let columns = view.columns.iter().map(|column| &column.expr);
        columns.chain(&view.filter).any(Expr::holds_subquery)
    }

    /// Returns the conjunction of the view's condition and another one.
    pub(super) fn filter(&self, filter: Option<Expr>) -> Option<Expr> {
        let view = self.view.as_ref().and_then(|view| view.filter.clone());
        [view, filter].into_iter().flatten().reduce(Expr::and)
    }

    /// Returns the conditions for written rows.
    pub(super) fn checks(&self) -> Vec<ViewCheck> {
        self.view.as_ref().map(|view| view.checks.clone()).unwrap_or_default()
    }

    /// Returns the position of the table column that is written.
    pub(super) fn target(&self, name: &str) -> Result<usize, SqlError> {
        let (found, of) = match &self.view {
            None => (self.table().position(name).map(Ok), self.table().name.name()),
            Some(view) => {
                let found = view.columns.iter().find(|column| column.name == name);
                (found.map(|column| column.source.clone()), &view.name[..])
            }
        };
        let found = found.ok_or_else(|| {
            let message = format!("column \"{name}\" of relation \"{of}\" does not exist");
            SqlError::new(code::UNDEFINED_COLUMN, message)
        })?;
        found.map_err(|(view, column)| self.verb.refused(&view, &column))
    }

    /// Returns the expression of a column in a conflict target.
    pub(super) fn column(&self, name: &str) -> Option<Expr> {
        match &self.view {
            None => self.table().position(name).map(Expr::Column),
            Some(view) => {
                let found = view.columns.iter().find(|column| column.name == name);
                found.map(|column| column.expr.clone())
            }
        }
    }

    /// Returns the positions of all columns, up to one that cannot be written, and the error for
    /// that one.
    pub(super) fn all_targets(&self) -> (Vec<usize>, Option<SqlError>) {
        let Some(view) = &self.view else {
            return (self.table().live_columns().map(|(at, _)| at).collect(), None);
        };
        let mut all = Vec::with_capacity(view.columns.len());
        for column in &view.columns {
            match &column.source {
                Ok(at) if all.contains(at) => {
                    let name = &self.table().columns[*at].name;
                    return (all, Some(super::dml::assigned_twice(name)));
                }
                Ok(at) => all.push(*at),
                Err((view, column)) => return (all, Some(self.verb.refused(view, column))),
            }
        }
        (all, None)
    }

    /// Returns the positions of its requirements among the statement's, which begin at `at`.
    pub(super) fn needed(&self, at: usize) -> Range<usize> {
        at..at + self.depth
    }
}

impl Shown {
    fn scope(&self, alias: &str, relation: u32) -> Scope {
        let column = |(at, column): (usize, &ShownColumn)| ScopeColumn {
            schema: None,
            table: alias.to_owned(),
            name: column.name.clone(),
            ty: column.ty,
            is_hidden: false,
            is_merged: false,
            is_unlisted: false,
            is_key: false,
            id: ColumnId { relation, column: at as u32 },
        };
        Scope { columns: self.columns.iter().enumerate().map(column).collect() }
    }

    fn settled(&self, expr: Expr, from: usize, onto: usize) -> Expr {
        let columns = from..from + self.columns.len();
        let settled = expr.rewrite::<()>(&mut |part| match part {
            Expr::Column(at) if columns.contains(at) => {
                let own = self.columns[at - from].expr.clone();
                own.rewrite(&mut |part| match part {
                    Expr::Column(at) => Ok(Some(Expr::Column(at + onto))),
                    _ => Ok(None),
                })
                .map(Some)
            }
            _ => Ok(None),
        });
        settled.expect("nothing fails")
    }
}

impl Verb {
    fn refused(self, view: &str, column: &str) -> SqlError {
        let verb = match self {
            Self::Insert => "insert into",
            Self::Update => "update",
            Self::Delete => "delete from",
        };
        let message = format!("cannot {verb} column \"{column}\" of view \"{view}\"");
        SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_detail(
            "View columns that are not columns of their base relation are not updatable.",
        )
    }

    /// The error for a view whose rows are not those of a table.
    fn refused_view(self, view: &str, why: &str) -> SqlError {
        let (verb, doing, event) = match self {
            Self::Insert => ("insert into", "inserting into", "INSERT"),
            Self::Update => ("update", "updating", "UPDATE"),
            Self::Delete => ("delete from", "deleting from", "DELETE"),
        };
        let hint = format!(
            "To enable {doing} the view, provide an INSTEAD OF {event} trigger or an \
             unconditional ON {event} DO INSTEAD rule."
        );
        SqlError::new(code::NOT_PREREQUISITE, format!("cannot {verb} view \"{view}\""))
            .with_detail(why)
            .with_hint(hint)
    }
}

fn hidden(scope: Scope) -> Vec<ScopeColumn> {
    let hide = |column: ScopeColumn| ScopeColumn { is_hidden: true, ..column };
    scope.columns.into_iter().map(hide).collect()
}

impl Planner<'_> {
    /// Resolves the target of a write.
    pub(super) fn written(
        &mut self,
        object: &ast::ObjectName,
        alias: Option<String>,
        verb: Verb,
    ) -> Result<WriteTarget, Failure> {
        let location = syntax::location(object);
        let named = syntax::table_name(object).map_err(|error| self.error_at(error, location))?;
        let relation = self.number();
        let found = self.known(&named).and_then(|(name, found)| {
            let written = self.written_as((&name, found), verb, (None, false), relation)?;
            Ok((name, written))
        });
        let (name, found) = found.map_err(|failure| match failure {
            Failure::Sql(error) if error.code == code::UNDEFINED_TABLE => {
                error.at(&self.source, location).into()
            }
            other => other,
        })?;
        let schema = alias.is_none().then(|| name.schema().to_owned());
        let alias = alias.unwrap_or_else(|| name.name().to_owned());
        self.labels.push((relation, alias.clone()));
        if found.view.is_none() {
            let table = found.table();
            self.is_kept(relation, stored(table.id.0), table.columns.len());
        }
        Ok(WriteTarget { alias, schema, ..found })
    }

    /// Resolves a relation to write, with the view that it is reached through and whether its
    /// condition is checked.
    fn written_as(
        &mut self,
        (name, found): (&QualifiedName, Relation),
        verb: Verb,
        (through, is_checked): (Option<&QualifiedName>, bool),
        relation: u32,
    ) -> Result<WriteTarget, Failure> {
        let through = through.cloned();
        if let Relation::View(view) = found {
            let required = Required::select(Object::View(name.clone()));
            self.required.push(Required { through, ..required });
            return self.written_view(&Arc::new(view), verb, is_checked, relation);
        }
        let table = as_table(name, found)?;
        let required = Required::on_table(&table.name, Privileges::SELECT);
        self.required.push(Required { through, ..required });
        let alias = table.name.name().to_owned();
        let schema = Some(table.name.schema().to_owned());
        let paths = Paths::new(table)?;
        Ok(WriteTarget { paths, alias, schema, relation, view: None, depth: 1, verb })
    }

    fn written_view(
        &mut self,
        view: &Arc<View>,
        verb: Verb,
        is_checked: bool,
        relation: u32,
    ) -> Result<WriteTarget, Failure> {
        let parsed = super::views::parsed(&view.query)?;
        let refused = |why: &str| verb.refused_view(view.name.name(), why);
        let (select, base, alias) = over_one(&parsed).map_err(refused)?;
        let base = syntax::table_name(base).map_err(|_| refused(NO_SINGLE))?.kept();
        let Some(base_found) = self.relation_named(&base)? else {
            return Err(SqlError::undefined_table(&base).into());
        };
        let is_cascaded = is_checked || view.check == Some(CheckOption::Cascaded);
        let through = (Some(&view.name), is_cascaded);
        let found = self.written_as((&base, base_found), verb, through, relation)?;
        let required = self.required.len();
        let shown = self.within_view(&view.query, Within::View(view.clone()), |planner| {
            planner.shown(view, select, (&found, &base, alias))
        });
        let (shown, _) = shown?;
        for required in &mut self.required[required..] {
            required.through.get_or_insert_with(|| view.name.clone());
        }
        let (columns, own) = shown.map_err(refused)?;
        if verb != Verb::Delete && !columns.iter().any(|(_, is_column)| *is_column) {
            return Err(refused(NO_COLUMNS).into());
        }
        let columns: Vec<ShownColumn> = columns.into_iter().map(|(column, _)| column).collect();
        let mut checks = found.checks();
        if is_checked || view.check.is_some() {
            let condition = own.clone().map(|condition| {
                let view = view.name.to_string();
                ViewCheck { view, condition }
            });
            checks.extend(condition);
        }
        let filter = found.filter(own);
        let paths = with_defaults(&found.paths, view, &columns);
        let (alias, schema) = (view.name.name().to_owned(), view.name.schema().to_owned());
        let shown = Shown { name: alias.clone(), columns, filter, checks };
        let (schema, depth) = (Some(schema), found.depth + 1);
        Ok(WriteTarget { paths, alias, schema, view: Some(shown), depth, ..found })
    }

    /// Returns the columns of a view over one relation, each with whether it is a column of that
    /// relation, and the view's condition; or the reason why it cannot be written.
    fn shown(
        &mut self,
        view: &View,
        select: &ast::Select,
        (found, base, alias): (&WriteTarget, &QualifiedName, Option<&ast::TableAlias>),
    ) -> Result<Result<Showing, &'static str>, Failure> {
        let known = alias.map_or_else(|| base.name().to_owned(), |alias| syntax::name(&alias.name));
        let number = self.number();
        let mut scope = found.scope(&known, found.relation, number);
        let first = if found.view.is_some() { found.table().columns.len() } else { 0 };
        // Columns added to the relation later are not in the view.
        let width = view.width_of(base).unwrap_or(usize::MAX).saturating_add(first);
        scope.columns.iter_mut().skip(width).for_each(|column| column.is_hidden = true);
        rename(&mut scope, alias.map_or(&[][..], |alias| &alias.columns[..]), &known)?;
        let mut collected = Collected::default();
        let output = self.projection(&select.projection, &scope, &mut collected)?;
        let Collected { aggregates, windows, functions, .. } = &collected;
        let returned = [!aggregates.is_empty(), !windows.is_empty(), !functions.is_empty()];
        if let Some(at) = returned.iter().position(|is_there| *is_there) {
            return Ok(Err(RETURNING[at]));
        }
        let filter = self.where_clause(select.selection.as_ref(), &scope)?;
        let own = found.table().columns.len();
        let columns = view.columns.iter().zip(output.bounds).map(|(column, bound)| {
            let source = match (&bound.expr, &found.view) {
                (Expr::Column(at), None) => Ok(*at),
                (Expr::Column(at), Some(below)) => below.columns[at - own].source.clone(),
                _ => Err((view.name.to_string(), column.name.clone())),
            };
            let is_column = matches!(bound.expr, Expr::Column(_));
            let expr = found.settled(bound.expr, own, 0);
            let (name, ty) = (column.name.clone(), column.ty);
            (ShownColumn { name, ty, expr, source }, is_column)
        });
        let columns = columns.collect();
        Ok(Ok((columns, filter.map(|filter| found.settled(filter, own, 0)))))
    }

    /// Returns the expression of a column in a conflict target, which may be a column of a view.
    pub(super) fn conflict_column(
        &self,
        written: &WriteTarget,
        ident: &ast::Ident,
    ) -> Result<Expr, Failure> {
        let name = syntax::name(ident);
        written.column(&name).ok_or_else(|| {
            let message = format!("column \"{name}\" does not exist");
            self.error_at(SqlError::new(code::UNDEFINED_COLUMN, message), ident.span.start)
        })
    }

    /// Returns the conditions for rows written through a view.
    pub(super) fn view_checks(&self, written: &WriteTarget) -> Result<Vec<ViewCheck>, SqlError> {
        let checks = written.checks();
        let asks = checks.iter().any(|check| check.condition.holds_subquery());
        refuse(&[(asks, "WITH CHECK OPTION over a subquery")])?;
        Ok(checks)
    }

    /// Returns the position of the column to write; an unknown name is an error at its location.
    pub(super) fn target(
        &self,
        written: &WriteTarget,
        name: &str,
        location: Location,
    ) -> Result<usize, Failure> {
        written.target(name).map_err(|error| match error.code == code::UNDEFINED_COLUMN {
            true => self.error_at(error, location),
            false => error.into(),
        })
    }
}

/// Returns the table with the view's column defaults in place of its own.
fn with_defaults(paths: &Paths, view: &View, columns: &[ShownColumn]) -> Paths {
    let mut paths = paths.clone();
    for (column, shown) in view.columns.iter().zip(columns) {
        if let (Some(default), Ok(at)) = (&column.default, &shown.source) {
            Arc::make_mut(&mut paths.table).columns[*at].default = Some(default.clone());
        }
    }
    paths
}

/// The error detail for views over several relations.
pub(super) const NO_SINGLE: &str =
    "Views that do not select from a single table or view are not automatically updatable.";
const NO_COLUMNS: &str = "Views that have no updatable columns are not automatically updatable.";
/// The error details for views with aggregates, window functions or set-returning functions.
pub(super) const RETURNING: [&str; 3] = [
    "Views that return aggregate functions are not automatically updatable.",
    "Views that return window functions are not automatically updatable.",
    "Views that return set-returning functions are not automatically updatable.",
];

/// Returns the single relation of a query with its name and alias; or the reason why the query's
/// rows are not those of one relation.
pub(super) fn over_one(query: &ast::Query) -> Result<One<'_>, &'static str> {
    let select = match &*query.body {
        ast::SetExpr::Select(select) => Some(select),
        ast::SetExpr::SetOperation { .. } => {
            return Err(
                "Views containing UNION, INTERSECT, or EXCEPT are not automatically updatable.",
            );
        }
        _ => None,
    };
    let is_plain = |group_by: &ast::GroupByExpr| match group_by {
        ast::GroupByExpr::Expressions(keys, _) => keys.is_empty(),
        ast::GroupByExpr::All(_) => false,
    };
    let is = |test: &dyn Fn(&ast::Select) -> bool| select.is_some_and(|select| test(select));
    let has_limit = query.limit_clause.is_some() || query.fetch.is_some();
    let why = [
        (
            is(&|select| select.distinct.is_some()),
            "Views containing DISTINCT are not automatically updatable.",
        ),
        (
            is(&|select| !is_plain(&select.group_by)),
            "Views containing GROUP BY are not automatically updatable.",
        ),
        (
            is(&|select| select.having.is_some()),
            "Views containing HAVING are not automatically updatable.",
        ),
        (query.with.is_some(), "Views containing WITH are not automatically updatable."),
        (has_limit, "Views containing LIMIT or OFFSET are not automatically updatable."),
    ];
    if let Some((_, why)) = why.iter().find(|(is_so, _)| *is_so) {
        return Err(why);
    }
    let select = select.ok_or(NO_SINGLE)?;
    let [ast::TableWithJoins { relation, joins }] = &select.from[..] else {
        return Err(NO_SINGLE);
    };
    match relation {
        ast::TableFactor::Table { name, alias, args: None, sample: None, .. }
            if joins.is_empty() =>
        {
            Ok((select, name, alias.as_ref()))
        }
        _ => Err(NO_SINGLE),
    }
}
