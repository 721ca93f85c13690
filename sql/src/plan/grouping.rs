//! Planning of GROUP BY.

use sqlparser::ast;

use super::select::{Output, alias_position};
use super::{Planner, refuse};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{Aggregates, Scope};
use crate::expr::{Expr, Typed};

/// The maximum number of elements of a CUBE, and of grouping sets.
const CUBE_MAX: usize = 12;
const SETS_MAX: usize = 4_096;

/// Sets of keys, each key by its position.
pub(super) type Sets = Vec<Vec<usize>>;

impl Planner<'_> {
    /// Returns the grouping keys, and the grouping sets if there is more than one.
    pub(super) fn group_keys(
        &mut self,
        group_by: &ast::GroupByExpr,
        scope: &Scope,
        output: &Output,
    ) -> Result<(Vec<Typed>, Option<Sets>), Failure> {
        let ast::GroupByExpr::Expressions(list, modifiers) = group_by else {
            return Err(SqlError::unsupported("GROUP BY ALL").into());
        };
        refuse(&[(!modifiers.is_empty(), "GROUP BY WITH")])?;
        let mut keys = Vec::with_capacity(list.len());
        let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
        let mut has_sets = false;
        for expr in list {
            let one = match expr {
                ast::Expr::GroupingSets(parts) => parts.clone(),
                ast::Expr::Rollup(parts) => {
                    let firsts = (0..=parts.len()).rev().map(|end| parts[..end].concat());
                    firsts.collect()
                }
                ast::Expr::Cube(parts) if parts.len() <= CUBE_MAX => {
                    let subset = |mask: usize| {
                        let is_in = |at: &usize| mask & (1 << (parts.len() - 1 - at)) != 0;
                        (0..parts.len()).filter(is_in).flat_map(|at| parts[at].clone()).collect()
                    };
                    (0..1 << parts.len()).rev().map(subset).collect()
                }
                ast::Expr::Cube(_) => {
                    let message = format!("CUBE is limited to {CUBE_MAX} elements");
                    return Err(SqlError::new(code::TOO_MANY_COLUMNS, message).into());
                }
                // The empty grouping set.
                ast::Expr::Tuple(parts) => vec![parts.clone()],
                expr => vec![vec![expr.clone()]],
            };
            let is_set = |expr: &ast::Expr| {
                use ast::Expr::{Cube, GroupingSets, Rollup};
                matches!(expr, GroupingSets(_) | Rollup(_) | Cube(_))
            };
            has_sets |= is_set(expr) || matches!(expr, ast::Expr::Tuple(parts) if parts.is_empty());
            let mut chosen = Vec::with_capacity(one.len());
            for set in &one {
                refuse(&[(set.iter().any(is_set), "GROUPING SETS within GROUPING SETS")])?;
                let mut places = Vec::with_capacity(set.len());
                for part in set {
                    let key = self.group_key(part, scope, output)?;
                    let known = keys.iter().position(|known| *known == key);
                    places.push(known.unwrap_or_else(|| {
                        keys.push(key);
                        keys.len() - 1
                    }));
                }
                chosen.push(places);
            }
            // Several elements give all combinations of their sets.
            let both = |before: &Vec<usize>| {
                chosen.iter().map(|set| [&before[..], &set[..]].concat()).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(both).collect();
            if sets.len() > SETS_MAX {
                let feature = format!("a query with more than {SETS_MAX} grouping sets");
                return Err(SqlError::unsupported(feature).into());
            }
        }
        Ok((keys, has_sets.then_some(sets)))
    }

    fn group_key(
        &mut self,
        expr: &ast::Expr,
        scope: &Scope,
        output: &Output,
    ) -> Result<Typed, Failure> {
        let bound = match self.output_position(expr, output, "GROUP BY")? {
            Some(at) => output.bounds[at].clone(),
            None => {
                let mut binder = self.binder(scope, Aggregates::Forbidden("GROUP BY"), &[expr])?;
                match binder.bind(expr).and_then(|bound| binder.output(bound)) {
                    Ok(bound) => bound,
                    // A name refers first to an input column, then to an output column.
                    Err(error) => match alias_position(expr, output) {
                        Some(at) => output.bounds[at].clone(),
                        None => return Err(error.into()),
                    },
                }
            }
        };
        if bound.expr.has(|part| matches!(part, Expr::Aggregate(_))) {
            let message = "aggregate functions are not allowed in GROUP BY";
            return Err(self.error_at(SqlError::new(code::GROUPING, message), bound.location));
        }
        if bound.expr.has(|part| matches!(part, Expr::Rows(..))) {
            return Err(SqlError::unsupported("a set-returning function in GROUP BY").into());
        }
        if bound.expr.has(|part| matches!(part, Expr::Window(_))) {
            let message = "window functions are not allowed in GROUP BY";
            return Err(self.error_at(SqlError::new(code::WINDOWING, message), bound.location));
        }
        let base = bound.base();
        Ok((bound.expr, base))
    }
}

/// Adds the columns of each table whose primary key is among the keys, because they are
/// functionally dependent. Returns whether any were added.
pub(super) fn add_dependent(keys: &mut Vec<Typed>, parts: &[&mut Expr], scope: &Scope) -> bool {
    let is_key = |at: usize| keys.iter().any(|(key, _)| *key == Expr::Column(at));
    let mut whole = Vec::new();
    for (at, column) in scope.columns.iter().enumerate() {
        let of = column.id.relation;
        if !column.is_key || whole.contains(&of) {
            continue;
        }
        let mut own = scope.columns.iter().enumerate().filter(|(_, it)| it.id.relation == of);
        if own.all(|(at, column)| !column.is_key || is_key(at)) {
            debug_assert!(is_key(at));
            whole.push(of);
        }
    }
    let mut named = Vec::new();
    for part in parts {
        part.all(&mut |part| {
            if let Expr::Column(at) = part
                && whole.contains(&scope.columns[*at].id.relation)
                && !named.contains(at)
            {
                named.push(*at);
            }
            true
        });
    }
    named.retain(|at| !is_key(*at));
    let has_any = !named.is_empty();
    keys.extend(named.into_iter().map(|at| (Expr::Column(at), scope.columns[at].ty.base)));
    has_any
}

/// Rewrites an expression over the columns of groups.
pub(super) fn over_groups(
    expr: Expr,
    keys: &[Typed],
    scope: &Scope,
    is_inner: bool,
) -> Result<Expr, Failure> {
    expr.rewrite(&mut |part| {
        if let Some(at) = keys.iter().position(|(key, _)| key == part) {
            return Ok(Some(Expr::Column(at)));
        }
        match part {
            Expr::Aggregate(at) => Ok(Some(Expr::Column(keys.len() + at))),
            Expr::Subquery(subquery) => {
                let mut subquery = subquery.clone();
                for part in subquery.parts_mut() {
                    *part = over_groups(part.clone(), keys, scope, true)?;
                }
                Ok(Some(Expr::Subquery(subquery)))
            }
            Expr::Column(at) => {
                let column = &scope.columns[*at];
                let name = format!("{}.{}", column.table, column.name);
                let message = match is_inner {
                    true => format!("subquery uses ungrouped column \"{name}\" from outer query"),
                    false => format!(
                        "column \"{name}\" must appear in the GROUP BY clause or be used in an \
                         aggregate function"
                    ),
                };
                Err(SqlError::new(code::GROUPING, message).into())
            }
            _ => Ok(None),
        }
    })
}
