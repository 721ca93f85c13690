//! Planning of SELECT.

use sqlparser::ast;
use sqlparser::ast::Spanned;
use sqlparser::tokenizer::Location;

use super::from::Side;
use super::grouping::{add_dependent, over_groups};
use super::names::column_name;
use super::{Planner, Select, Source, refuse};
use crate::access::Access;
use crate::access::path::Paths;
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{Aggregates, Bound, Collected, Qualifier, Scope};
use crate::expr::query::{Called, Window};
use crate::expr::set_calls::part_name;
use crate::expr::{Expr, Typed};
use crate::relational::{Block, Distinct, GroupBy};
use crate::syntax;
use crate::types::SqlType;
use crate::vocabulary::column::{OutputColumn, SortKey};

/// The maximum number of result columns, as in PostgreSQL; the wire protocol limits it.
const COLUMNS_MAX: usize = 1_664;
/// The result columns, before grouping replaces their inputs.
pub(super) struct Output {
    pub bounds: Vec<Bound>,
    pub names: Vec<String>,
    /// The untyped columns.
    pub untyped: Vec<usize>,
}

impl Planner<'_> {
    /// Binds rows of the same length; each expression has its own type.
    pub(super) fn value_rows(
        &mut self,
        rows: &[ast::Parens<Vec<ast::Expr>>],
    ) -> Result<Vec<Vec<Bound>>, Failure> {
        let scope = Scope::default();
        let mut bound_rows: Vec<Vec<Bound>> = Vec::with_capacity(rows.len());
        for row in rows {
            let content: Vec<&ast::Expr> = row.content.iter().collect();
            let mut binder = self.binder(&scope, Aggregates::Forbidden("VALUES"), &content)?;
            let bounds = row.content.iter().map(|expr| binder.bind(expr));
            let bounds = bounds.collect::<Result<Vec<_>, _>>()?;
            if bound_rows.first().is_some_and(|first| first.len() != bounds.len()) {
                let message = "VALUES lists must all be the same length";
                return Err(SqlError::new(code::SYNTAX, message).into());
            }
            bound_rows.push(bounds);
        }
        Ok(bound_rows)
    }

    /// Plans one SELECT with the ORDER BY of its query.
    pub(super) fn select(
        &mut self,
        select: &ast::Select,
        query: &ast::Query,
    ) -> Result<(Block, Vec<OutputColumn>), Failure> {
        let order_by = query.order_by.as_ref();
        refuse_clauses(select)?;
        let Side { from, scope } = self.from(&select.from)?;
        let filter = match &select.selection {
            Some(condition) => {
                let forbidden = Aggregates::Forbidden("WHERE");
                let mut binder = self.binder(&scope, forbidden, &[condition])?;
                Some(binder.condition(condition, "WHERE")?)
            }
            None => None,
        };
        let named = select.named_window.clone();
        let mut collected = Collected { named, ..Collected::default() };
        let output = self.projection(&select.projection, &scope, &mut collected)?;
        let columns = self.columns_of(&output, &scope);
        let (mut keys, sets) = self.group_keys(&select.group_by, &scope, &output)?;
        let mut having = match &select.having {
            Some(condition) => {
                let allowed = Aggregates::Allowed(&mut collected, Some("HAVING"));
                let mut binder = self.binder(&scope, allowed, &[condition])?;
                Some(binder.condition(condition, "HAVING")?)
            }
            None => None,
        };
        let (width, untyped) = (output.bounds.len(), output.untyped.clone());
        let (mut output, sort) = self.sort_keys(order_by, &scope, output, &mut collected)?;
        let distinct =
            self.distinct(select, &scope, (&mut output, width), &sort, &mut collected)?;
        let Collected { aggregates, mut windows, mut functions, .. } = collected;
        let is_grouped =
            !keys.is_empty() || sets.is_some() || !aggregates.is_empty() || having.is_some();
        let mut group = None;
        if is_grouped {
            let outputs = output.iter_mut().map(|(expr, _)| expr).chain(&mut having);
            let parts = outputs.chain(windows.iter_mut().flat_map(Window::parts_mut));
            let parts = parts.chain(functions.iter_mut().flat_map(Called::parts_mut));
            let mut parts: Vec<&mut Expr> = parts.collect();
            if sets.is_none() && add_dependent(&mut keys, &parts, &scope) {
                self.note_key();
            }
            for part in &mut parts {
                let expr = std::mem::replace(*part, Expr::Param(0));
                **part = over_groups(expr, &keys, &scope, false)?;
            }
            group = Some(GroupBy { keys, sets, aggregates, having });
        }
        let before = match &group {
            Some(group) => group.keys.len() + group.aggregates.len(),
            None => scope.columns.len(),
        };
        place(&mut output, before, windows.len(), &mut functions);
        let columns_in = scope.columns.iter().map(|column| (column.id, column.ty.base)).collect();
        let base = Block::plain(from, columns_in, output);
        let block =
            Block { filter, group, windows, functions, width, untyped, sort, distinct, ..base };
        Ok((block, columns))
    }

    /// Plans `DISTINCT` and `DISTINCT ON`. The expressions of the latter become output columns.
    fn distinct(
        &mut self,
        select: &ast::Select,
        scope: &Scope,
        (output, width): (&mut Vec<Typed>, usize),
        sort: &[SortKey],
        collected: &mut Collected,
    ) -> Result<Distinct, Failure> {
        let list = match &select.distinct {
            None | Some(ast::Distinct::All) => return Ok(Distinct::No),
            Some(ast::Distinct::Distinct) => {
                if output.len() > width {
                    let message =
                        "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
                    return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message).into());
                }
                return Ok(Distinct::Yes);
            }
            Some(ast::Distinct::On(list)) => list,
        };
        let mut keys = Vec::with_capacity(list.len());
        for expr in list {
            let position = match expr {
                ast::Expr::Value(value) => match &value.value {
                    ast::Value::Number(digits, _) => digits.parse::<usize>().ok(),
                    _ => None,
                },
                _ => None,
            };
            let at = match position.and_then(|at| at.checked_sub(1)).filter(|at| *at < width) {
                Some(at) => at,
                None => {
                    let allowed = Aggregates::Allowed(collected, None);
                    let mut binder = self.binder(scope, allowed, &[expr])?;
                    let bound = binder.bind(expr)?;
                    let bound = binder.output(bound)?;
                    let base = bound.base();
                    let known = output.iter().position(|(known, _)| *known == bound.expr);
                    known.unwrap_or_else(|| {
                        output.push((bound.expr, base));
                        output.len() - 1
                    })
                }
            };
            keys.push(at);
        }
        let is_first = |key: &SortKey| keys.contains(&key.column);
        if !sort.iter().take(keys.len()).all(is_first) {
            let message = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions";
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message).into());
        }
        Ok(Distinct::On(keys))
    }

    /// Binds a select list or a RETURNING clause.
    pub(super) fn projection(
        &mut self,
        items: &[ast::SelectItem],
        scope: &Scope,
        collected: &mut Collected,
    ) -> Result<Output, Failure> {
        let mut output = Output { bounds: Vec::new(), names: Vec::new(), untyped: Vec::new() };
        // Within FROM, the fields of records are columns too; no client sees them.
        let is_nested = self.depth > 0;
        for item in items {
            let (expr, name) = match item {
                ast::SelectItem::UnnamedExpr(expr) => (expr, column_name(expr)),
                ast::SelectItem::ExprWithAlias { expr, alias } => (expr, syntax::name(alias)),
                ast::SelectItem::Wildcard(_) => {
                    expand(scope, None, item.span().start, &mut output);
                    if scope.columns.is_empty() {
                        let message = "SELECT * with no tables specified is not valid";
                        let error = SqlError::new(code::SYNTAX, message);
                        return Err(self.error_at(error, item.span().start));
                    }
                    continue;
                }
                ast::SelectItem::QualifiedWildcard(
                    ast::SelectItemQualifiedWildcardKind::ObjectName(object),
                    _,
                ) => {
                    let table = syntax::table_name(object)?;
                    let qualifier =
                        Qualifier { schema: table.schema.as_deref(), table: &table.name };
                    if !scope.columns.iter().any(|column| qualifier.is_of(column)) {
                        let table = &table.name;
                        let message = format!("missing FROM-clause entry for table \"{table}\"");
                        let error = SqlError::new(code::UNDEFINED_TABLE, message);
                        return Err(self.error_at(error, item.span().start));
                    }
                    expand(scope, Some(qualifier), item.span().start, &mut output);
                    continue;
                }
                _ => return Err(SqlError::unsupported("this form of a selected item").into()),
            };
            let mut binder = self.binder(scope, Aggregates::Allowed(collected, None), &[expr])?;
            if is_nested
                && let Some((whole, parts)) = binder.record_call(expr, item.span().start)?
            {
                output.bounds.push(whole);
                output.names.push(name.clone());
                for (part, bound) in parts {
                    output.bounds.push(bound);
                    output.names.push(part_name(&name, part));
                }
                continue;
            }
            let bound = binder.bind(expr)?;
            if bound.base() == SqlType::Unknown && matches!(bound.expr, Expr::Const(_)) {
                output.untyped.push(output.bounds.len());
            }
            output.bounds.push(binder.output(bound)?);
            output.names.push(name);
        }
        if output.bounds.len() > COLUMNS_MAX {
            let message = format!("target lists can have at most {COLUMNS_MAX} entries");
            return Err(SqlError::new(code::TOO_MANY_COLUMNS, message).into());
        }
        Ok(output)
    }

    /// `ORDER BY 2`: returns the position of the output column, from 0.
    pub(super) fn output_position(
        &self,
        expr: &ast::Expr,
        output: &Output,
        clause: &str,
    ) -> Result<Option<usize>, Failure> {
        let ast::Expr::Value(value) = expr else { return Ok(None) };
        let ast::Value::Number(digits, _) = &value.value else {
            let message = format!("non-integer constant in {clause}");
            return Err(self.error_at(SqlError::new(code::SYNTAX, message), value.span.start));
        };
        let at = digits.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        match at.filter(|&at| at < output.bounds.len()) {
            Some(at) => Ok(Some(at)),
            None => {
                let message = format!("{clause} position {digits} is not in select list");
                let error = SqlError::new(code::INVALID_COLUMN_REFERENCE, message);
                Err(self.error_at(error, value.span.start))
            }
        }
    }

    /// Checks that a name in ORDER BY is unambiguous: all output columns of the name must be the
    /// same.
    fn check_alias(&self, expr: &ast::Expr, output: &Output, at: usize) -> Result<(), Failure> {
        let named = output.names.iter().zip(&output.bounds);
        let mut same = named.filter(|(name, _)| **name == output.names[at]);
        if same.all(|(_, bound)| bound.expr == output.bounds[at].expr) {
            return Ok(());
        }
        let message = format!("ORDER BY \"{}\" is ambiguous", output.names[at]);
        let error = SqlError::new(code::AMBIGUOUS_COLUMN, message);
        Err(self.error_at(error, syntax::expr_location(expr)))
    }

    /// Returns the output with sort expressions appended, and the sort order.
    pub(super) fn sort_keys(
        &mut self,
        order_by: Option<&ast::OrderBy>,
        scope: &Scope,
        output: Output,
        collected: &mut Collected,
    ) -> Result<(Vec<Typed>, Vec<SortKey>), Failure> {
        let list = match order_by.map(|order_by| &order_by.kind) {
            None => &[][..],
            Some(ast::OrderByKind::Expressions(list)) => &list[..],
            Some(ast::OrderByKind::All(_)) => {
                return Err(SqlError::unsupported("ORDER BY ALL").into());
            }
        };
        let typed = |bound: &Bound| (bound.expr.clone(), bound.base());
        let mut exprs: Vec<Typed> = output.bounds.iter().map(typed).collect();
        let mut sort = Vec::with_capacity(list.len());
        for item in list {
            let by_position = self.output_position(&item.expr, &output, "ORDER BY")?;
            let named = alias_position(&item.expr, &output);
            if let (None, Some(at)) = (by_position, named) {
                self.check_alias(&item.expr, &output, at)?;
            }
            let column = match by_position.or(named) {
                Some(at) => at,
                None => {
                    let allowed = Aggregates::Allowed(collected, None);
                    let mut binder = self.binder(scope, allowed, &[&item.expr])?;
                    let bound = binder.bind(&item.expr)?;
                    let bound = binder.output(bound)?;
                    let base = bound.base();
                    exprs.iter().position(|(known, _)| *known == bound.expr).unwrap_or_else(|| {
                        exprs.push((bound.expr, base));
                        exprs.len() - 1
                    })
                }
            };
            if exprs[column].1 == SqlType::Json {
                let message = "could not identify an ordering operator for type json";
                let error = SqlError::new(code::UNDEFINED_FUNCTION, message);
                return Err(self.error_at(error, syntax::expr_location(&item.expr)));
            }
            sort.push(SortKey::new(column, &item.options));
        }
        Ok((exprs, sort))
    }
}

/// Rejects clauses of other dialects and unsupported clauses.
fn refuse_clauses(select: &ast::Select) -> Result<(), SqlError> {
    refuse(&[
        (select.into.is_some(), "SELECT INTO"),
        (select.qualify.is_some(), "QUALIFY"),
        (select.top.is_some(), "TOP"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (select.prewhere.is_some() || !select.cluster_by.is_empty(), "this clause"),
        (select.flavor != ast::SelectFlavor::Standard, "FROM before SELECT"),
    ])
}

/// Replaces window results and columns of set-returning functions by the columns after those of
/// rows or groups: first the windows, then the functions.
fn place(output: &mut [Typed], before: usize, windows: usize, functions: &mut [Called]) {
    let width = |called: &Called| called.types.len();
    let start = |at: usize, functions: &[Called]| functions[..at].iter().map(width).sum::<usize>();
    let starts: Vec<usize> = (0..functions.len()).map(|at| start(at, functions)).collect();
    let outputs = output.iter_mut().map(|(expr, _)| expr);
    for expr in outputs.chain(functions.iter_mut().flat_map(Called::parts_mut)) {
        let placed = std::mem::replace(expr, Expr::Param(0)).rewrite::<()>(&mut |part| {
            Ok(match part {
                Expr::Window(at) => Some(Expr::Column(before + at)),
                Expr::Rows(at, column) => {
                    Some(Expr::Column(before + windows + starts[*at] + column))
                }
                _ => None,
            })
        });
        *expr = placed.expect("nothing fails");
    }
}

/// The way in which a query uses the rows of a table.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// Whether rows are returned as they are found.
    pub is_plain: bool,
    /// Whether their number is limited.
    pub is_limited: bool,
}

/// Returns the access to a table's rows. Clears a sort that the access makes unnecessary.
pub(super) fn access(
    paths: &Paths,
    filter: Option<&Expr>,
    output: &[Expr],
    sort: &mut Vec<SortKey>,
    wanted: Wanted,
) -> Access {
    let mut access = Access::new(paths, filter);
    if !wanted.is_plain || sort.is_empty() {
        return access;
    }
    if access.sorts_by(output, sort) {
        sort.clear();
    } else if wanted.is_limited
        && access.could_be_in_order()
        && let Some(ordered) = Access::in_order(paths, output, sort)
    {
        access = ordered;
        sort.clear();
    }
    access
}

/// Returns a query that passes its source through.
pub(super) fn plain(source: Source) -> Select {
    Select {
        source,
        filter: None,
        grouping: None,
        output: Vec::new(),
        types: Vec::new(),
        sort: Vec::new(),
        is_distinct: false,
        limit: None,
        offset: None,
    }
}

/// Returns a query over rows of computed values.
pub(super) fn value_select(rows: Vec<Vec<Expr>>, types: Vec<SqlType>) -> Select {
    let output = (0..types.len()).map(Expr::Column).collect();
    Select { output, types, ..plain(Source::Values(rows)) }
}

/// Returns a query of one row without columns.
pub(super) fn empty_row() -> Select {
    plain(Source::Nothing)
}

fn expand(scope: &Scope, table: Option<Qualifier<'_>>, location: Location, output: &mut Output) {
    for (at, column) in scope.columns.iter().enumerate() {
        let is_shown = match table {
            Some(table) => table.is_of(column),
            None => !column.is_merged,
        };
        if !column.is_hidden && !column.is_unlisted && is_shown {
            output.bounds.push(Bound { expr: Expr::Column(at), ty: column.ty, location });
            output.names.push(column.name.clone());
        }
    }
}

/// `ORDER BY name`: returns the position of the output column.
pub(super) fn alias_position(expr: &ast::Expr, output: &Output) -> Option<usize> {
    let ast::Expr::Identifier(ident) = expr else { return None };
    let name = syntax::name(ident);
    output.names.iter().position(|known| *known == name)
}
