//! Selects the tables that may be read in any order.
//!
//! A grouping whose aggregates return the same result for any input order does not require one.
//! Neither do the joins and conditions beneath it. All other tables are read in the order of their
//! keys, so that a query without ORDER BY returns its rows in the same order each time.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;

use super::aggregate::Folded;
use super::leaf::Scan;
use super::unary::Rule;
use crate::data_fusion::Physical;
use crate::vocabulary::aggregate::AggregateKind;

/// Marks the scans whose rows may come in any order.
pub(super) const ANY_ORDER: Rule = Rule("any_order", |plan| mark_scans(plan, false));

/// Returns the plan with those scans marked. `is_any`: the order of this plan's own rows is
/// irrelevant.
#[recursive::recursive]
fn mark_scans(plan: Physical, is_any: bool) -> Result<Physical> {
    if let Some(scan) = plan.downcast_ref::<Scan>() {
        return Ok(if is_any { Arc::new(scan.in_any_order()) } else { plan });
    }
    let is_any = match plan.downcast_ref::<AggregateExec>() {
        Some(aggregate) => aggregate.aggr_expr().iter().all(|function| is_any_order(function)),
        None => is_any && passes_on(&*plan),
    };
    let children = plan.children().into_iter().cloned();
    let children = children.map(|child| mark_scans(child, is_any)).collect::<Result<_>>()?;
    replace_children_if_necessary(plan, children)
}

/// Whether the order of a step's input changes only the order of its output.
fn passes_on(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
}

/// Whether an aggregate returns the same result for any input order.
fn is_any_order(function: &AggregateFunctionExpr) -> bool {
    let inner = function.fun().inner();
    match inner.downcast_ref::<Folded>() {
        // If numbers are equal but print differently, min and max return the last one.
        Some(Folded { aggregate, .. }) => {
            let is_extreme = matches!(aggregate.kind, AggregateKind::Min | AggregateKind::Max);
            aggregate.is_any_order() && !is_extreme
        }
        // DataFusion's sums are used only for integers.
        None => inner.is::<Count>() || inner.is::<Sum>() || inner.is::<Min>() || inner.is::<Max>(),
    }
}
