//! Planning of queries.

use sqlparser::ast;
use sqlparser::ast::Spanned;
use sqlparser::tokenizer::Location;

use super::access::Access;
use super::path::Paths;
use super::{Grouping, OutputColumn, Planner, Select, SortKey, Source, refuse, scope_of};
use crate::error::{Failure, SqlError, code};
use crate::exec::aggregate::Aggregate;
use crate::expr::Expr;
use crate::expr::bind::{Aggregates, Bound, Scope};
use crate::syntax;
use crate::types::datum::Datum;
use crate::types::{ColumnType, SqlType};

/// The most columns of a result: what the wire protocol can count, as in PostgreSQL.
const COLUMNS_MAX: usize = 1_664;

/// The columns of a result, before grouping puts its own columns in.
struct Output {
    bounds: Vec<Bound>,
    names: Vec<String>,
}

impl Planner<'_> {
    pub(super) fn query(
        &mut self,
        query: &ast::Query,
    ) -> Result<(Select, Vec<OutputColumn>), Failure> {
        // FOR UPDATE asks that what was read stays: every transaction here is serializable, and
        // what it read is certified when it commits, so there is nothing to add.
        refuse(&[
            (query.with.is_some(), "WITH"),
            (query.for_clause.is_some(), "FOR XML or JSON"),
            (query.settings.is_some() || query.format_clause.is_some(), "SETTINGS"),
            (!query.pipe_operators.is_empty(), "a pipe operator"),
        ])?;
        let (mut select, columns) = match &*query.body {
            ast::SetExpr::Select(select) => self.select(select, query)?,
            ast::SetExpr::Values(values) => self.values(values, query.order_by.as_ref())?,
            ast::SetExpr::Query(inner) => {
                refuse(&[(query.order_by.is_some(), "ORDER BY over a query in parentheses")])?;
                self.query(inner)?
            }
            ast::SetExpr::SetOperation { op, .. } => {
                return Err(SqlError::unsupported(op.to_string()).into());
            }
            _ => return Err(SqlError::unsupported("such a query").into()),
        };
        self.limits(query, &mut select)?;
        Ok((select, columns))
    }

    fn limits(&mut self, query: &ast::Query, select: &mut Select) -> Result<(), Failure> {
        let (limit, offset) = match &query.limit_clause {
            None => (None, None),
            Some(ast::LimitClause::LimitOffset { limit, offset, limit_by }) => {
                refuse(&[(!limit_by.is_empty(), "LIMIT BY")])?;
                (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
            }
            Some(ast::LimitClause::OffsetCommaLimit { .. }) => {
                return Err(SqlError::new(code::SYNTAX, "LIMIT #,# syntax is not supported")
                    .with_hint("Use separate LIMIT and OFFSET clauses.")
                    .into());
            }
        };
        let one = ast::Expr::Value(ast::Value::Number("1".to_owned(), false).into());
        let fetch = query.fetch.as_ref();
        refuse(&[(fetch.is_some_and(|f| f.percent || f.with_ties), "FETCH WITH TIES or PERCENT")])?;
        let fetch = fetch.map(|fetch| fetch.quantity.as_ref().unwrap_or(&one));
        let is_limited = select.limit.is_some() || select.offset.is_some();
        if let Some(limit) = limit.or(fetch) {
            refuse(&[(is_limited, "LIMIT over a query in parentheses")])?;
            select.limit = Some(self.row_count(limit, "LIMIT")?);
        }
        if let Some(offset) = offset {
            refuse(&[(is_limited, "OFFSET over a query in parentheses")])?;
            select.offset = Some(self.row_count(offset, "OFFSET")?);
        }
        Ok(())
    }

    fn row_count(&mut self, ast: &ast::Expr, clause: &'static str) -> Result<Expr, Failure> {
        let scope = Scope::default();
        let mut binder = self.binder(&scope, Aggregates::Forbidden(clause));
        let bound = binder.bind(ast)?;
        Ok(binder.assign(bound, clause, SqlType::Int8.into())?)
    }

    fn values(
        &mut self,
        values: &ast::Values,
        order_by: Option<&ast::OrderBy>,
    ) -> Result<(Select, Vec<OutputColumn>), Failure> {
        refuse(&[(order_by.is_some(), "ORDER BY over VALUES")])?;
        let rows = self.value_rows(&values.rows)?;
        let width = rows.first().map_or(0, Vec::len);
        let mut unified = vec![Vec::with_capacity(width); rows.len()];
        let mut columns = Vec::with_capacity(width);
        for column in 0..width {
            let scope = Scope::default();
            let mut binder = self.binder(&scope, Aggregates::Forbidden("VALUES"));
            let bounds = rows.iter().map(|row| row[column].clone()).collect();
            for (row, bound) in unified.iter_mut().zip(binder.unify(bounds, "VALUES")?) {
                row.push(bound.expr);
                columns.truncate(column);
                let name = format!("column{}", column + 1);
                columns.push(OutputColumn { name, ty: bound.ty });
            }
        }
        let output = (0..width).map(Expr::Column).collect();
        let types = columns.iter().map(|column| column.ty.base).collect();
        let select = Select { output, types, ..plain(Source::Values(unified)) };
        Ok((select, columns))
    }

    /// Rows of one length, each expression with the type it has by itself.
    pub(super) fn value_rows(
        &mut self,
        rows: &[ast::Parens<Vec<ast::Expr>>],
    ) -> Result<Vec<Vec<Bound>>, Failure> {
        let scope = Scope::default();
        let mut bound_rows: Vec<Vec<Bound>> = Vec::with_capacity(rows.len());
        for row in rows {
            let mut binder = self.binder(&scope, Aggregates::Forbidden("VALUES"));
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

    fn select(
        &mut self,
        select: &ast::Select,
        query: &ast::Query,
    ) -> Result<(Select, Vec<OutputColumn>), Failure> {
        let order_by = query.order_by.as_ref();
        let is_limited = query.limit_clause.is_some() || query.fetch.is_some();
        refuse(&[
            (select.into.is_some(), "SELECT INTO"),
            (!select.named_window.is_empty() || select.qualify.is_some(), "a window function"),
            (select.top.is_some(), "TOP"),
            (!select.lateral_views.is_empty(), "LATERAL VIEW"),
            (!select.connect_by.is_empty(), "CONNECT BY"),
            (select.prewhere.is_some() || !select.cluster_by.is_empty(), "this clause"),
            (select.flavor != ast::SelectFlavor::Standard, "FROM before SELECT"),
        ])?;
        let is_distinct = match &select.distinct {
            None | Some(ast::Distinct::All) => false,
            Some(ast::Distinct::Distinct) => true,
            Some(ast::Distinct::On(_)) => {
                return Err(SqlError::unsupported("DISTINCT ON").into());
            }
        };
        let (paths, scope) = self.from(&select.from)?;
        let filter = match &select.selection {
            Some(condition) => {
                let mut binder = self.binder(&scope, Aggregates::Forbidden("WHERE"));
                Some(binder.condition(condition, "WHERE")?)
            }
            None => None,
        };
        let mut aggregates = Vec::new();
        let output = self.projection(&select.projection, &scope, &mut aggregates)?;
        let types: Vec<SqlType> = output.bounds.iter().map(Bound::base).collect();
        let columns = columns_of(&output);
        let keys = self.group_keys(&select.group_by, &scope, &output)?;
        let having = match &select.having {
            Some(condition) => {
                let mut binder = self.binder(&scope, Aggregates::Allowed(&mut aggregates));
                Some(binder.condition(condition, "HAVING")?)
            }
            None => None,
        };
        let visible = output.bounds.len();
        let (mut output, mut sort) = self.sort_keys(order_by, &scope, output, &mut aggregates)?;
        if is_distinct && output.len() > visible {
            let message = "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message).into());
        }
        let is_grouped = !keys.is_empty() || !aggregates.is_empty() || having.is_some();
        let mut grouping = None;
        if is_grouped {
            let mut grouped = |expr: Expr| over_groups(expr, &keys, &scope);
            output = output.into_iter().map(&mut grouped).collect::<Result<_, _>>()?;
            let having = having.map(&mut grouped).transpose()?;
            grouping = Some(Grouping { keys, aggregates, having });
        }
        // Groups and distinct rows have an order of their own.
        let wanted = Wanted { is_plain: !is_grouped && !is_distinct, is_limited };
        let source = paths.map_or(Source::Nothing, |paths| {
            Source::Table(access(&paths, filter.as_ref(), &output, &mut sort, wanted))
        });
        let base = plain(source);
        let select = Select { filter, grouping, output, types, sort, is_distinct, ..base };
        Ok((select, columns))
    }

    fn from(&mut self, from: &[ast::TableWithJoins]) -> Result<(Option<Paths>, Scope), Failure> {
        match from {
            [] => Ok((None, Scope::default())),
            [table] => {
                if let ast::TableFactor::Table { name, .. } = &table.relation {
                    // That a catalog is asked for says more than that it is joined.
                    syntax::table_name(name)?;
                }
                refuse(&[(!table.joins.is_empty(), "JOIN")])?;
                let (paths, alias) = self.relation(&table.relation)?;
                let scope = scope_of(&paths.table, &alias);
                Ok((Some(paths), scope))
            }
            _ => Err(SqlError::unsupported("a query over more than one table").into()),
        }
    }

    /// A table and the name that its columns go by.
    pub(super) fn relation(
        &mut self,
        relation: &ast::TableFactor,
    ) -> Result<(Paths, String), Failure> {
        let ast::TableFactor::Table { name, alias, args, sample, with_ordinality, .. } = relation
        else {
            return Err(SqlError::unsupported("a subquery or function in FROM").into());
        };
        let columns = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
        refuse(&[
            (args.is_some() || *with_ordinality, "a function in FROM"),
            (sample.is_some(), "TABLESAMPLE"),
            (columns, "an alias with column names"),
        ])?;
        let table = self.table(name)?;
        let alias = alias.as_ref().map(|alias| syntax::name(&alias.name));
        let alias = alias.unwrap_or_else(|| table.name.clone());
        Ok((Paths::new(table)?, alias))
    }

    /// The expressions of a select list or a RETURNING clause.
    fn projection(
        &mut self,
        items: &[ast::SelectItem],
        scope: &Scope,
        aggregates: &mut Vec<Aggregate>,
    ) -> Result<Output, Failure> {
        let mut output = Output { bounds: Vec::new(), names: Vec::new() };
        for item in items {
            let mut binder = self.binder(scope, Aggregates::Allowed(aggregates));
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
                    if !scope.columns.iter().any(|column| column.table == table) {
                        let message = format!("missing FROM-clause entry for table \"{table}\"");
                        let error = SqlError::new(code::UNDEFINED_TABLE, message);
                        return Err(self.error_at(error, item.span().start));
                    }
                    expand(scope, Some(&table), item.span().start, &mut output);
                    continue;
                }
                _ => return Err(SqlError::unsupported("such a column").into()),
            };
            let bound = binder.bind(expr)?;
            output.bounds.push(binder.output(bound)?);
            output.names.push(name);
        }
        if output.bounds.len() > COLUMNS_MAX {
            let message = format!("target lists can have at most {COLUMNS_MAX} entries");
            return Err(SqlError::new(code::TOO_MANY_COLUMNS, message).into());
        }
        Ok(output)
    }

    /// The expressions of a RETURNING clause and the columns that they are.
    pub(super) fn returning(
        &mut self,
        items: Option<&[ast::SelectItem]>,
        scope: &Scope,
    ) -> Result<(Vec<Expr>, Vec<OutputColumn>), Failure> {
        let mut aggregates = Vec::new();
        let output = self.projection(items.unwrap_or_default(), scope, &mut aggregates)?;
        if !aggregates.is_empty() {
            let message = "aggregate functions are not allowed in RETURNING";
            return Err(SqlError::new(code::GROUPING, message).into());
        }
        let columns = columns_of(&output);
        Ok((output.bounds.into_iter().map(|bound| bound.expr).collect(), columns))
    }

    fn group_keys(
        &mut self,
        group_by: &ast::GroupByExpr,
        scope: &Scope,
        output: &Output,
    ) -> Result<Vec<(Expr, SqlType)>, Failure> {
        let ast::GroupByExpr::Expressions(list, modifiers) = group_by else {
            return Err(SqlError::unsupported("GROUP BY ALL").into());
        };
        refuse(&[(!modifiers.is_empty(), "GROUPING SETS")])?;
        let mut keys = Vec::with_capacity(list.len());
        for expr in list {
            let bound = match self.output_position(expr, output, "GROUP BY")? {
                Some(at) => output.bounds[at].clone(),
                None => {
                    let mut binder = self.binder(scope, Aggregates::Forbidden("GROUP BY"));
                    match binder.bind(expr).and_then(|bound| binder.output(bound)) {
                        Ok(bound) => bound,
                        // A name is a column of the table first, and one of the result then.
                        Err(error) => match alias_position(expr, output) {
                            Some(at) => output.bounds[at].clone(),
                            None => return Err(error.into()),
                        },
                    }
                }
            };
            let is_aggregate = |expr: &Expr| !matches!(expr, Expr::Aggregate(_));
            if !bound.expr.all(&mut |expr| is_aggregate(expr)) {
                let message = "aggregate functions are not allowed in GROUP BY";
                return Err(self.error_at(SqlError::new(code::GROUPING, message), bound.location));
            }
            keys.push((bound.expr.clone(), bound.base()));
        }
        Ok(keys)
    }

    /// `ORDER BY 2`: the position in the result, from 0.
    fn output_position(
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

    /// The output with what it is sorted by appended, and the order.
    fn sort_keys(
        &mut self,
        order_by: Option<&ast::OrderBy>,
        scope: &Scope,
        output: Output,
        aggregates: &mut Vec<Aggregate>,
    ) -> Result<(Vec<Expr>, Vec<SortKey>), Failure> {
        let list = match order_by.map(|order_by| &order_by.kind) {
            None => &[][..],
            Some(ast::OrderByKind::Expressions(list)) => &list[..],
            Some(ast::OrderByKind::All(_)) => {
                return Err(SqlError::unsupported("ORDER BY ALL").into());
            }
        };
        let mut exprs: Vec<Expr> = output.bounds.iter().map(|bound| bound.expr.clone()).collect();
        let mut sort = Vec::with_capacity(list.len());
        for item in list {
            let by_position = self.output_position(&item.expr, &output, "ORDER BY")?;
            let column = match by_position.or_else(|| alias_position(&item.expr, &output)) {
                Some(at) => at,
                None => {
                    let mut binder = self.binder(scope, Aggregates::Allowed(aggregates));
                    let bound = binder.bind(&item.expr)?;
                    let expr = binder.output(bound)?.expr;
                    exprs.iter().position(|known| *known == expr).unwrap_or_else(|| {
                        exprs.push(expr);
                        exprs.len() - 1
                    })
                }
            };
            let is_descending = item.options.asc == Some(false);
            // NULL sorts as greater than everything, unless it is told where to go.
            let is_nulls_first = item.options.nulls_first.unwrap_or(is_descending);
            sort.push(SortKey { column, is_descending, is_nulls_first });
        }
        Ok((exprs, sort))
    }
}

/// What of a table's rows a query wants.
#[derive(Clone, Copy)]
struct Wanted {
    /// Whether rows come out as they are found.
    is_plain: bool,
    /// Whether there is a limit to how many.
    is_limited: bool,
}

/// The way to a table's rows. A sort that it makes needless is taken away.
fn access(
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

/// A query that passes its source on.
fn plain(source: Source) -> Select {
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

/// Rows of computed values, as a query.
pub(super) fn value_select(rows: Vec<Vec<Expr>>, types: Vec<SqlType>) -> Select {
    let output = (0..types.len()).map(Expr::Column).collect();
    Select { output, types, ..plain(Source::Values(rows)) }
}

/// One row without columns, as a query.
pub(super) fn empty_row() -> Select {
    plain(Source::Nothing)
}

fn expand(scope: &Scope, table: Option<&str>, location: Location, output: &mut Output) {
    for (at, column) in scope.columns.iter().enumerate() {
        if !column.is_hidden && table.is_none_or(|table| table == column.table) {
            output.bounds.push(Bound { expr: Expr::Column(at), ty: column.ty, location });
            output.names.push(column.name.clone());
        }
    }
}

fn columns_of(output: &Output) -> Vec<OutputColumn> {
    let named = output.names.iter().zip(&output.bounds);
    let column = |(name, bound): (&String, &Bound)| {
        let ty: ColumnType = bound.ty;
        OutputColumn { name: name.clone(), ty }
    };
    named.map(column).collect()
}

/// `ORDER BY name`: the position in the result.
fn alias_position(expr: &ast::Expr, output: &Output) -> Option<usize> {
    let ast::Expr::Identifier(ident) = expr else { return None };
    let name = syntax::name(ident);
    output.names.iter().position(|known| *known == name)
}

/// The expression over the columns of a group.
fn over_groups(expr: Expr, keys: &[(Expr, SqlType)], scope: &Scope) -> Result<Expr, Failure> {
    expr.rewrite(&mut |part| {
        if let Some(at) = keys.iter().position(|(key, _)| key == part) {
            return Ok(Some(Expr::Column(at)));
        }
        match part {
            Expr::Aggregate(at) => Ok(Some(Expr::Column(keys.len() + at))),
            Expr::Column(at) => {
                let column = &scope.columns[*at];
                let message = format!(
                    "column \"{}.{}\" must appear in the GROUP BY clause or be used in an \
                     aggregate function",
                    column.table, column.name
                );
                Err(SqlError::new(code::GROUPING, message).into())
            }
            // A constant stays one, whatever the groups.
            Expr::Const(Datum::Null) => Ok(None),
            _ => Ok(None),
        }
    })
}

/// The name that PostgreSQL gives a column without an alias.
fn column_name(expr: &ast::Expr) -> String {
    use ast::Expr as A;
    let name = match expr {
        A::Identifier(ident) => syntax::name(ident),
        A::CompoundIdentifier(idents) => idents.last().map(syntax::name).unwrap_or_default(),
        A::Nested(inner) => return column_name(inner),
        A::Array(_) => "array".to_owned(),
        A::CompoundFieldAccess { root, access_chain } => {
            return syntax::accessed_name(access_chain).unwrap_or_else(|| column_name(root));
        }
        A::Interval(_) => "interval".to_owned(),
        A::Function(function) => {
            let parts = syntax::name_parts(&function.name).unwrap_or_default();
            parts.last().cloned().unwrap_or_default()
        }
        A::Cast { expr, data_type, .. } => {
            let inner = column_name(expr);
            if inner == "?column?" { type_name(data_type) } else { inner }
        }
        A::TypedString(typed) => type_name(&typed.data_type),
        A::Case { .. } => "case".to_owned(),
        A::Extract { .. } => "extract".to_owned(),
        A::Position { .. } => "position".to_owned(),
        A::Substring { .. } => "substring".to_owned(),
        A::Trim { trim_where, .. } => match trim_where {
            Some(ast::TrimWhereField::Leading) => "ltrim".to_owned(),
            Some(ast::TrimWhereField::Trailing) => "rtrim".to_owned(),
            _ => "btrim".to_owned(),
        },
        A::Ceil { .. } => "ceil".to_owned(),
        A::Floor { .. } => "floor".to_owned(),
        A::AtTimeZone { .. } => "timezone".to_owned(),
        A::Value(value) if matches!(value.value, ast::Value::Boolean(_)) => "bool".to_owned(),
        _ => "?column?".to_owned(),
    };
    if name.is_empty() { "?column?".to_owned() } else { name }
}

/// The internal name of a type, which a cast gives its column.
fn type_name(data_type: &ast::DataType) -> String {
    let base = crate::expr::bind::column_type(data_type).map(|ty| ty.base);
    base.map_or("?column?", SqlType::internal_name).to_owned()
}
