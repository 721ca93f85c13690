//! Planning of queries: WITH, set operations, VALUES, and the choice of the executor.
//!
//! Our own executor runs a query over one table, a list of rows or a single empty row: its plan is
//! cached, and every replica computes the same result. DataFusion runs all other queries.

use std::ops::ControlFlow;
use std::sync::Arc;

use sqlparser::ast::{self, Visitor};
use sqlparser::tokenizer::Location;

use super::from::{Side, scope_over};
use super::select::{Output, Wanted, access, plain};
use super::subquery_unnesting::{Simple, shape};
use super::write_target::{NO_SINGLE, RETURNING};
use super::{Grouping, Planner, Select, Source, refuse};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{Aggregates, Bound, Nested, Scope};
use crate::expr::query::{Query, Shape};
use crate::expr::{Expr, Typed};
use crate::relational::{self, Block, Distinct, From, RELATIONS_MAX, SetOperation, lower};
use crate::syntax::{check_locks, walk};
use crate::types::{ColumnType, SqlType};
use crate::vocabulary::column::OutputColumn;

/// A query with names and types resolved.
enum Planned {
    Block(Box<Block>),
    Query(Query),
}

/// Whether a statement contains subqueries.
pub(super) fn has_queries(statement: &ast::Statement) -> bool {
    struct Count(usize);
    impl Visitor for Count {
        type Break = ();
        fn pre_visit_query(&mut self, _: &ast::Query) -> ControlFlow<()> {
            self.0 += 1;
            ControlFlow::Continue(())
        }
    }
    let mut count = Count(0);
    let _ = walk(statement, &mut count);
    count.0 > usize::from(matches!(statement, ast::Statement::Query(_)))
}

/// Returns the subqueries of an expression, without those nested in them.
fn queries_in(expr: &ast::Expr) -> Vec<(usize, ast::Query)> {
    #[derive(Default)]
    struct Collect {
        depth: usize,
        found: Vec<(usize, ast::Query)>,
    }
    impl Visitor for Collect {
        type Break = ();
        fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<()> {
            if self.depth == 0 {
                self.found.push((std::ptr::from_ref(query).addr(), query.clone()));
            }
            self.depth += 1;
            ControlFlow::Continue(())
        }
        fn post_visit_query(&mut self, _: &ast::Query) -> ControlFlow<()> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }
    }
    let mut collect = Collect::default();
    let _ = walk(expr, &mut collect);
    collect.found
}

impl Planner<'_> {
    /// Plans a query, and returns its result columns.
    pub(super) fn query(
        &mut self,
        query: &ast::Query,
    ) -> Result<(Select, Vec<OutputColumn>), Failure> {
        let (planned, columns) = self.planned(query)?;
        let query = match planned {
            Planned::Block(block) if is_ours(&block) => return Ok((ours(*block), columns)),
            Planned::Block(block) => self.lowered(*block)?,
            Planned::Query(query) => query,
        };
        Ok((select_of(query), columns))
    }

    /// Returns, for each result column, the column of the query's single relation that it shows; or
    /// the reason why its rows are not those of the relation.
    pub(super) fn own_columns(
        &mut self,
        query: &ast::Query,
    ) -> Result<Result<Vec<Option<u32>>, &'static str>, Failure> {
        let (Planned::Block(block), _) = self.planned(query)? else { return Ok(Err(NO_SINGLE)) };
        let of_several =
            [block.group.is_some(), !block.windows.is_empty(), !block.functions.is_empty()];
        if let Some(at) = of_several.iter().position(|is_so| *is_so) {
            return Ok(Err(RETURNING[at]));
        }
        let column = |(expr, _): &Typed| match expr {
            Expr::Column(at) => Some(*at as u32),
            _ => None,
        };
        Ok(Ok(block.output[..block.width].iter().map(column).collect()))
    }

    /// Plans a subquery, and returns its columns.
    pub(super) fn nested(
        &mut self,
        query: &ast::Query,
    ) -> Result<(Nested, Vec<OutputColumn>), Failure> {
        let around = std::mem::take(&mut self.params.outer);
        let planned = self.planned(query);
        let refs = std::mem::replace(&mut self.params.outer, around);
        let (planned, columns) = planned?;
        let (shape, query_of) = match planned {
            Planned::Block(block) => {
                // A subquery without outer references needs no unnesting.
                let simple = if refs.is_empty() { Simple::No } else { shape(&block) };
                let shape = match simple {
                    Simple::Rows => Shape::Rows(Arc::new(self.split((*block).clone())?)),
                    Simple::Aggregate => Shape::Aggregate(Arc::new(self.keyed((*block).clone())?)),
                    Simple::No => Shape::Other,
                };
                (shape, self.lowered(*block)?)
            }
            Planned::Query(query) => (Shape::Other, query),
        };
        let types = columns.iter().map(|column| column.ty).collect();
        let place = std::ptr::from_ref(query).addr();
        let query = Arc::new(query_of);
        Ok((Nested { place, query, columns: types, refs, shape }, columns))
    }

    /// Plans the subqueries of expressions over a scope.
    pub(super) fn nested_in(
        &mut self,
        scope: &Scope,
        exprs: &[&ast::Expr],
    ) -> Result<Vec<Nested>, Failure> {
        let mut all = Vec::new();
        for (place, query) in exprs.iter().flat_map(|expr| queries_in(expr)) {
            self.outer.push(scope.clone());
            let planned = self.nested(&query);
            self.outer.pop();
            let (nested, _) = planned?;
            all.push(Nested { place, ..nested });
        }
        Ok(all)
    }

    /// Rejects a plan that is too deep, because plans are traversed recursively.
    fn check_relations(&self) -> Result<(), SqlError> {
        if self.numbers <= RELATIONS_MAX {
            return Ok(());
        }
        let message = format!(
            "a statement can have at most {RELATIONS_MAX} relations and operations on them"
        );
        let hint = "Split it, or store intermediate results in a table.";
        Err(SqlError::new(code::TOO_COMPLEX, message).with_hint(hint))
    }

    pub(super) fn lowered(&mut self, block: Block) -> Result<Query, SqlError> {
        self.check_relations()?;
        let types = block.output[..block.width].iter().map(|(_, base)| *base).collect();
        let relation = self.number();
        let plan = lower(block, relation, &mut self.numbers)?;
        Ok(Query { plan, types })
    }

    #[recursive::recursive]
    fn planned(&mut self, query: &ast::Query) -> Result<(Planned, Vec<OutputColumn>), Failure> {
        // No transaction waits for a lock: the rows must be unchanged when this one commits.
        self.locks_rows |= !query.locks.is_empty();
        check_locks(query)?;
        refuse(&[
            (query.for_clause.is_some(), "FOR XML or JSON"),
            (query.settings.is_some() || query.format_clause.is_some(), "SETTINGS"),
            (!query.pipe_operators.is_empty(), "a pipe operator"),
        ])?;
        let known = self.named.len();
        if let Some(with) = &query.with {
            self.with(with)?;
        }
        let planned = self.body(query);
        self.named.truncate(known);
        planned
    }

    fn body(&mut self, query: &ast::Query) -> Result<(Planned, Vec<OutputColumn>), Failure> {
        let is_bare =
            query.order_by.is_none() && query.limit_clause.is_none() && query.fetch.is_none();
        let (mut block, columns) = match &*query.body {
            ast::SetExpr::Select(select) => self.select(select, query)?,
            ast::SetExpr::Values(values) => {
                let (side, columns) = self.values(values)?;
                (self.ordered(side, &columns, query.order_by.as_ref())?, columns)
            }
            body => {
                let (planned, columns) = self.set_expr(body)?;
                if is_bare {
                    return Ok((planned, columns));
                }
                let query_of = match planned {
                    Planned::Block(block) => self.lowered(*block)?,
                    Planned::Query(query) => query,
                };
                let side = self.as_relation(&query_of, &columns)?;
                (self.ordered(side, &columns, query.order_by.as_ref())?, columns)
            }
        };
        (block.limit, block.offset) = self.limits(query)?;
        Ok((Planned::Block(Box::new(block)), columns))
    }

    fn set_expr(&mut self, body: &ast::SetExpr) -> Result<(Planned, Vec<OutputColumn>), Failure> {
        match body {
            ast::SetExpr::Query(inner) => self.planned(inner),
            ast::SetExpr::SetOperation { op, set_quantifier, left, right } => {
                self.set_operation(*op, *set_quantifier, left, right)
            }
            ast::SetExpr::Select(_) | ast::SetExpr::Values(_) => {
                self.planned(&wrapped(body.clone()))
            }
            _ => Err(SqlError::unsupported("this form of query").into()),
        }
    }

    #[recursive::recursive]
    fn set_operation(
        &mut self,
        op: ast::SetOperator,
        quantifier: ast::SetQuantifier,
        left: &ast::SetExpr,
        right: &ast::SetExpr,
    ) -> Result<(Planned, Vec<OutputColumn>), Failure> {
        self.check_relations()?;
        let name = op.to_string().to_uppercase();
        let (op, is_all) = (set_operation(op)?, is_all(quantifier)?);
        let (left, mut columns) = self.side(left)?;
        let (right, others) = self.side(right)?;
        if columns.len() != others.len() {
            let message = format!("each {name} query must have the same number of columns");
            return Err(SqlError::new(code::SYNTAX, message).into());
        }
        let types = self.common_types(&mut columns, &others, &name)?;
        let sides = (left.with_types(&types)?, right.with_types(&types)?);
        columns.iter_mut().for_each(|column| column.origin = None);
        let relation = self.number();
        let query = relational::combined(op, is_all, sides, relation, &mut self.numbers)?;
        Ok((Planned::Query(query), columns))
    }

    /// Plans one side of a set operation. Untyped columns take the type of the other side.
    fn side(&mut self, body: &ast::SetExpr) -> Result<(Query, Vec<OutputColumn>), Failure> {
        let (planned, mut columns) = self.set_expr(body)?;
        let query = match planned {
            Planned::Block(block) => {
                for at in &block.untyped {
                    columns[*at].ty = SqlType::Unknown.into();
                }
                self.lowered(*block)?
            }
            Planned::Query(query) => query,
        };
        Ok((query, columns))
    }

    pub(super) fn operand(
        &mut self,
        body: &ast::SetExpr,
    ) -> Result<(Query, Vec<OutputColumn>), Failure> {
        let (query, mut columns) = self.side(body)?;
        for column in &mut columns {
            if column.ty.base == SqlType::Unknown {
                column.ty = SqlType::Text.into();
            }
        }
        Ok((query, columns))
    }

    /// Returns the common types of the columns of two queries.
    pub(super) fn common_types(
        &mut self,
        columns: &mut [OutputColumn],
        others: &[OutputColumn],
        name: &str,
    ) -> Result<Vec<SqlType>, Failure> {
        let scope = Scope::default();
        let mut types = Vec::with_capacity(columns.len());
        for (column, other) in columns.iter_mut().zip(others) {
            let bound =
                |ty: ColumnType| Bound { expr: Expr::Column(0), ty, location: Location::empty() };
            let mut binder = self.binder(&scope, Aggregates::Forbidden("UNION"), &[])?;
            let unified = binder.unify(vec![bound(column.ty), bound(other.ty)], name)?;
            column.ty = unified[0].ty;
            types.push(column.ty.base);
        }
        Ok(types)
    }

    /// Returns a query as a relation of FROM.
    fn as_relation(&mut self, query: &Query, columns: &[OutputColumn]) -> Result<Side, Failure> {
        let relation = self.number();
        let plan = relational::renamed(query, relation)?;
        Ok(Side { from: From::Plan(plan), scope: scope_over(columns, "", relation) })
    }

    /// Returns all rows of a relation, sorted by an order that refers to its columns.
    fn ordered(
        &mut self,
        side: Side,
        columns: &[OutputColumn],
        order_by: Option<&ast::OrderBy>,
    ) -> Result<Block, Failure> {
        let bounds = columns.iter().enumerate().map(|(at, column)| Bound {
            expr: Expr::Column(at),
            ty: column.ty,
            location: Location::empty(),
        });
        let names = columns.iter().map(|column| column.name.clone()).collect();
        let output = Output { bounds: bounds.collect(), names, untyped: Vec::new() };
        let Side { from, scope } = side;
        let (output, sort) = self.sort_keys(order_by, &scope, output, &mut Default::default())?;
        let width = columns.len();
        if output.len() > width {
            let message = "invalid UNION/INTERSECT/EXCEPT ORDER BY clause";
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message)
                .with_detail("Only result column names can be used, not expressions or functions.")
                .with_hint(
                    "Add the expression/function to every SELECT, or move the UNION into a FROM \
                     clause.",
                )
                .into());
        }
        let ids = scope.columns.iter().map(|column| (column.id, column.ty.base)).collect();
        Ok(Block { sort, ..Block::plain(from, ids, output) })
    }

    fn values(&mut self, values: &ast::Values) -> Result<(Side, Vec<OutputColumn>), Failure> {
        let rows = self.value_rows(&values.rows)?;
        let width = rows.first().map_or(0, Vec::len);
        let mut unified = vec![Vec::with_capacity(width); rows.len()];
        let mut columns = Vec::with_capacity(width);
        for column in 0..width {
            let scope = Scope::default();
            let mut binder = self.binder(&scope, Aggregates::Forbidden("VALUES"), &[])?;
            let bounds = rows.iter().map(|row| row[column].clone()).collect();
            for (row, bound) in unified.iter_mut().zip(binder.unify(bounds, "VALUES")?) {
                row.push(bound.expr);
                columns.truncate(column);
                let name = format!("column{}", column + 1);
                columns.push(OutputColumn::new(name, bound.ty));
            }
        }
        let asks = |expr: &Expr| expr.holds_subquery() || expr.names_outer();
        refuse(&[(unified.iter().flatten().any(asks), "a subquery or an outer column in VALUES")])?;
        let types = columns.iter().map(|column| column.ty.base).collect();
        let relation = self.number();
        let scope = scope_over(&columns, "", relation);
        Ok((Side { from: From::Values(unified, types, relation), scope }, columns))
    }

    fn limits(&mut self, query: &ast::Query) -> Result<(Option<Expr>, Option<Expr>), Failure> {
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
        let limit = limit.or(fetch).map(|limit| self.row_count(limit, "LIMIT")).transpose()?;
        let offset = offset.map(|offset| self.row_count(offset, "OFFSET")).transpose()?;
        Ok((limit, offset))
    }

    fn row_count(&mut self, ast: &ast::Expr, clause: &'static str) -> Result<Expr, Failure> {
        let scope = Scope::default();
        let mut binder = self.binder(&scope, Aggregates::Forbidden(clause), &[ast])?;
        let bound = binder.bind(ast)?;
        let expr = binder.assign(bound, clause, SqlType::Int8.into())?;
        let asks = expr.holds_subquery() || expr.names_outer();
        refuse(&[(asks, "a subquery or an outer column in LIMIT or OFFSET")])?;
        Ok(expr)
    }
}

/// Returns a query with this body and no other clause.
fn wrapped(body: ast::SetExpr) -> ast::Query {
    ast::Query {
        with: None,
        body: Box::new(body),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}

fn set_operation(op: ast::SetOperator) -> Result<SetOperation, SqlError> {
    Ok(match op {
        ast::SetOperator::Union => SetOperation::Union,
        ast::SetOperator::Intersect => SetOperation::Intersect,
        ast::SetOperator::Except => SetOperation::Except,
        ast::SetOperator::Minus => return Err(SqlError::unsupported("MINUS")),
    })
}

pub(super) fn is_all(quantifier: ast::SetQuantifier) -> Result<bool, SqlError> {
    match quantifier {
        ast::SetQuantifier::All => Ok(true),
        ast::SetQuantifier::Distinct | ast::SetQuantifier::None => Ok(false),
        _ => Err(SqlError::unsupported("BY NAME")),
    }
}

/// Whether our own executor runs it.
fn is_ours(block: &Block) -> bool {
    let is_one = !matches!(block.from, From::Plan(_));
    let has_sets = block.group.as_ref().is_some_and(|group| group.sets.is_some());
    let asks = |expr: &Expr| expr.holds_subquery() || expr.names_outer();
    let outputs = block.output.iter().map(|(expr, _)| expr);
    let filters = block.filter.iter();
    let groups = block.group.iter().flat_map(|group| {
        let aggregates = group.aggregates.iter().flat_map(|aggregate| aggregate.parts());
        let keys = group.keys.iter().map(|(key, _)| key);
        keys.chain(&group.having).chain(aggregates)
    });
    is_one
        && !has_sets
        && block.windows.is_empty()
        && block.functions.is_empty()
        && !matches!(block.distinct, Distinct::On(_))
        && !outputs.chain(filters).chain(groups).any(asks)
}

/// Returns the query for our own executor.
fn ours(block: Block) -> Select {
    let mut sort = block.sort;
    let types = block.output[..block.width].iter().map(|(_, base)| *base).collect();
    let output: Vec<Expr> = block.output.into_iter().map(|(expr, _)| expr).collect();
    let is_distinct = matches!(block.distinct, Distinct::Yes);
    // Groups and distinct rows have their own order.
    let is_plain = block.group.is_none() && !is_distinct;
    let wanted = Wanted { is_plain, is_limited: block.limit.is_some() };
    let source = match block.from {
        From::Nothing => Source::Nothing,
        From::Values(rows, ..) => Source::Values(rows),
        From::Table(paths, _) => {
            let filter = block.filter.as_ref();
            Source::Table(access(&paths, filter, &output, &mut sort, wanted))
        }
        From::Plan(_) => unreachable!("DataFusion runs it"),
    };
    let grouping = block.group.map(|group| {
        let (keys, aggregates, having) = (group.keys, group.aggregates, group.having);
        Grouping { keys, aggregates, having }
    });
    let (filter, limit, offset) = (block.filter, block.limit, block.offset);
    let base = plain(source);
    let mut select =
        Select { filter, grouping, output, types, sort, is_distinct, limit, offset, ..base };
    select.note_wanted();
    select
}

/// Returns the query for DataFusion.
pub(super) fn select_of(query: Query) -> Select {
    let types = query.types.clone();
    let output = (0..types.len()).map(Expr::Column).collect();
    Select { output, types, ..plain(Source::Query(Arc::new(query))) }
}
