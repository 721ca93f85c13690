//! Unnesting of subqueries: those that become joins.

use super::Planner;
use crate::error::SqlError;
use crate::expr::query::{Keyed, Split};
use crate::expr::{Binary, Comparison, Expr};
use crate::relational::{self, Block, Distinct, From};
use crate::vocabulary::aggregate::AggregateKind;

/// The kind of a subquery that can be unnested.
pub(super) enum Simple {
    Rows,
    Aggregate,
    No,
}

/// Returns how a subquery can be unnested.
pub(super) fn shape(block: &Block) -> Simple {
    let mut outputs = block.output.iter().map(|(expr, _)| expr);
    let has_plain_source = match &block.from {
        From::Table(..) | From::Nothing => true,
        From::Values(..) => false,
        From::Plan(plan) => !relational::names_outer(plan),
    };
    let is_simple = has_plain_source
        && block.windows.is_empty()
        && block.functions.is_empty()
        && block.limit.is_none()
        && block.offset.is_none()
        && !matches!(block.distinct, Distinct::On(_))
        && !outputs.any(Expr::names_outer);
    let conditions = block.filter.as_ref().map(Expr::conjuncts).unwrap_or_default();
    // A nested subquery that references both sides prevents unnesting.
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

/// Splits the conditions of a query: those with outer references, and the conjunction of all
/// others.
fn taken_apart(block: &Block) -> (Vec<Expr>, Option<Expr>) {
    let all = block.filter.as_ref().map(Expr::conjuncts).unwrap_or_default();
    let (outer, own): (Vec<Expr>, Vec<Expr>) =
        all.into_iter().cloned().partition(Expr::names_outer);
    (outer, own.into_iter().reduce(Expr::and))
}

impl Planner<'_> {
    /// Returns a query without its conditions on outer columns.
    pub(super) fn split(&mut self, mut block: Block) -> Result<Split, SqlError> {
        let (outer, own) = taken_apart(&block);
        block.output.truncate(block.width);
        let mut conditions = Vec::with_capacity(outer.len());
        for condition in outer {
            let (columns, output) = (&block.columns, &mut block.output);
            let placed = condition.rewrite::<()>(&mut |part| {
                let Expr::Column(at) = part else { return Ok(None) };
                output.push((Expr::Column(*at), columns[*at].1));
                Ok(Some(Expr::Column(output.len() - 1)))
            });
            conditions.push(placed.expect("nothing fails"));
        }
        block.filter = own;
        block.width = block.output.len();
        block.sort.clear();
        Ok(Split { query: self.lowered(block)?, conditions })
    }

    /// Returns a query of one aggregate grouped by the expressions that are compared with outer
    /// columns.
    pub(super) fn keyed(&mut self, mut block: Block) -> Result<Keyed, SqlError> {
        let (conditions, own) = taken_apart(&block);
        let (mut outer, mut keys) = (Vec::new(), Vec::new());
        for condition in conditions {
            let Expr::Binary(Binary::Compare(_, base), left, right) = condition else {
                unreachable!("what is outside is compared for equality")
            };
            let is_left = left.names_outer();
            let (there, here) = if is_left { (left, right) } else { (right, left) };
            outer.push((*there, base));
            keys.push((*here, base));
        }
        block.filter = own;
        let count = keys.len();
        let group = block.group.as_mut().expect("it has an aggregate");
        let is_count = group.aggregates[0].kind == AggregateKind::Count;
        block.output.truncate(1);
        block.output[0].0 = Expr::Column(count);
        let columns = keys.iter().enumerate().map(|(at, (_, base))| (Expr::Column(at), *base));
        block.output.extend(columns);
        group.keys = keys;
        block.width = block.output.len();
        block.sort.clear();
        Ok(Keyed { query: self.lowered(block)?, outer, is_count })
    }
}
