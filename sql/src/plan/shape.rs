//! Queries within others that become joins.

use super::Planner;
use crate::error::SqlError;
use crate::exec::aggregate::AggregateKind;
use crate::expr::{Binary, Comparison, Expr};
use crate::relational::{self, Block, Distinct, From, Keyed, Split};
use crate::types::SqlType;

/// What of a query is simple.
pub(super) enum Simple {
    Rows,
    Aggregate,
    No,
}

/// How a query within another may be taken apart.
pub(super) fn shape(block: &Block) -> Simple {
    let mut outputs = block.output.iter().map(|(expr, _)| expr);
    let has_plain_source = match &block.from {
        From::Table(..) | From::Nothing => true,
        From::Values(..) => false,
        From::Plan(plan) => !relational::names_outer(plan),
    };
    let is_simple = has_plain_source
        && block.windows.is_empty()
        && block.limit.is_none()
        && block.offset.is_none()
        && !matches!(block.distinct, Distinct::On(_))
        && !outputs.any(Expr::names_outer);
    let mut conditions = Vec::new();
    if let Some(filter) = &block.filter {
        conjuncts(filter, &mut conditions);
    }
    // What names both worlds within a query of its own is not taken apart.
    let is_flat = |condition: &&Expr| !(condition.holds_subquery() && condition.names_outer());
    if !is_simple || !conditions.iter().all(is_flat) {
        return Simple::No;
    }
    let Some(group) = &block.group else { return Simple::Rows };
    let is_equality = |condition: &&Expr| match condition {
        Expr::Binary(Binary::Compare(Comparison::Equal, _), left, right) => {
            let is_outer = |side: &Expr| side.names_outer() && !side.names_own();
            is_outer(left) && !right.names_outer() || is_outer(right) && !left.names_outer()
        }
        _ => false,
    };
    let mut parts = group.aggregates.iter().flat_map(|aggregate| aggregate.parts());
    let is_one = group.keys.is_empty()
        && group.sets.is_none()
        && group.having.is_none()
        && group.aggregates.len() == 1
        && matches!(block.output.first(), Some((Expr::Column(0), _)))
        && block.width == 1
        && matches!(block.distinct, Distinct::No)
        && !parts.any(Expr::names_outer)
        && conditions.iter().all(|it| !it.names_outer() || is_equality(it));
    if is_one { Simple::Aggregate } else { Simple::No }
}

impl Planner<'_> {
    /// A query without its conditions on what is outside.
    pub(super) fn split(&mut self, block: &Block) -> Result<Split, SqlError> {
        let mut block = block.clone();
        let mut all = Vec::new();
        if let Some(filter) = &block.filter {
            conjuncts(filter, &mut all);
        }
        let (outer, own): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.names_outer());
        let own: Vec<Expr> = own.into_iter().cloned().collect();
        let and = |left, right| Expr::Binary(Binary::And, Box::new(left), Box::new(right));
        block.output.truncate(block.width);
        let mut conditions = Vec::with_capacity(outer.len());
        for condition in outer {
            let (columns, output) = (&block.columns, &mut block.output);
            let placed = condition.clone().rewrite::<()>(&mut |part| {
                let Expr::Column(at) = part else { return Ok(None) };
                output.push((Expr::Column(*at), columns[*at].1));
                Ok(Some(Expr::Column(output.len() - 1)))
            });
            conditions.push(placed.expect("nothing fails"));
        }
        block.filter = own.into_iter().reduce(and);
        block.width = block.output.len();
        block.sort.clear();
        Ok(Split { query: self.lowered(block)?, conditions })
    }

    /// A query of one aggregate, for all values that it is compared with outside.
    pub(super) fn keyed(&mut self, block: &Block) -> Result<Keyed, SqlError> {
        let mut block = block.clone();
        let mut conditions = Vec::new();
        if let Some(filter) = &block.filter {
            conjuncts(filter, &mut conditions);
        }
        let (mut own, mut outer, mut keys) = (None, Vec::new(), Vec::new());
        for condition in conditions {
            match condition {
                Expr::Binary(Binary::Compare(Comparison::Equal, base), left, right)
                    if condition.names_outer() =>
                {
                    let is_left = left.names_outer();
                    let (there, here) = if is_left { (left, right) } else { (right, left) };
                    outer.push(((**there).clone(), *base));
                    keys.push(((**here).clone(), *base));
                }
                condition => {
                    let and = |before: Expr| {
                        Expr::Binary(Binary::And, Box::new(before), Box::new(condition.clone()))
                    };
                    own = Some(own.map_or_else(|| condition.clone(), and));
                }
            }
        }
        block.filter = own;
        let count = keys.len();
        let group = block.group.as_mut().expect("it has an aggregate");
        let is_count = group.aggregates[0].kind == AggregateKind::Count;
        let types: Vec<SqlType> = keys.iter().map(|(_, base)| *base).collect();
        group.keys = keys;
        block.output[0].0 = Expr::Column(count);
        let keys = types.into_iter().enumerate().map(|(at, base)| (Expr::Column(at), base));
        block.output.truncate(1);
        block.output.extend(keys);
        block.width = block.output.len();
        block.sort.clear();
        Ok(Keyed { query: self.lowered(block)?, outer, is_count })
    }
}

fn conjuncts<'a>(filter: &'a Expr, out: &mut Vec<&'a Expr>) {
    match filter {
        Expr::Binary(Binary::And, left, right) => {
            conjuncts(left, out);
            conjuncts(right, out);
        }
        condition => out.push(condition),
    }
}
