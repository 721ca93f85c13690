//! GROUP BY, aggregates and grouping sets.

use datafusion::common::Column;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{Expr as Logical, LogicalPlan, LogicalPlanBuilder, lit};

use super::block::GroupBy;
use super::joins::united;
use super::logical_plan::{PlanScope, aggregated, comparable, first_of, named, next, projected};
use super::values::{is_ordered, scalar};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::relation_name;

/// Groups the rows. The resulting columns are the keys, followed by the aggregates.
pub(super) fn grouped(scope: &mut PlanScope<'_>, group: GroupBy) -> Result<()> {
    let GroupBy { keys, sets, aggregates, having } = group;
    // First, all inputs of keys and aggregates become columns.
    let mut inputs = Vec::new();
    for (key, base) in &keys {
        let key = scope.resolve(key.clone())?;
        inputs.push(scope.value(&key, *base));
    }
    let mut places = Vec::with_capacity(aggregates.len());
    for aggregate in &aggregates {
        places.push(inputs.len());
        for (arg, base) in aggregate.args.iter().chain(&aggregate.order) {
            let arg = scope.resolve(arg.clone())?;
            inputs.push(scope.value(&arg, *base));
        }
        if let Some(filter) = &aggregate.filter {
            let filter = scope.resolve(filter.clone())?;
            inputs.push(scope.value(&filter, SqlType::Bool));
        }
    }
    let relation = next(scope.numbers);
    let plan = projected(std::mem::take(&mut scope.plan), inputs, relation)?;
    let calls: Vec<Logical> = aggregates
        .iter()
        .zip(&places)
        .map(|(aggregate, place)| aggregated(aggregate, relation, *place))
        .collect();
    let types: Vec<SqlType> = keys.iter().map(|(_, base)| *base).collect();
    let sets = sets.unwrap_or_else(|| vec![(0..keys.len()).collect()]);
    let result = next(scope.numbers);
    let mut all: Option<LogicalPlan> = None;
    for set in sets {
        let one = by_set(plan.clone(), relation, (&types, &set), &calls, result)?;
        all = Some(match all {
            None => one,
            Some(all) => united(all, one)?,
        });
    }
    // The schema of a union has no qualifiers.
    let all = all.expect("there is a set");
    let all = LogicalPlanBuilder::from(all).alias(relation_name(result))?.build()?;
    let results = aggregates.iter().map(|aggregate| aggregate.result());
    let columns = types.iter().copied().chain(results).enumerate();
    scope.columns = columns.map(|(at, base)| (named(result, at), base)).collect();
    scope.plan = all;
    match having {
        Some(having) => scope.filter(having),
        None => Ok(()),
    }
}

/// Groups by some of the keys; the other keys are NULL.
fn by_set(
    plan: LogicalPlan,
    relation: u32,
    (types, set): (&[SqlType], &[usize]),
    calls: &[Logical],
    result: u32,
) -> Result<LogicalPlan> {
    let mut keys = Vec::with_capacity(set.len());
    let mut computed = Vec::new();
    let mut outputs = Vec::with_capacity(types.len() + calls.len());
    for (at, base) in types.iter().enumerate() {
        let column = named(relation, at);
        if !set.contains(&at) {
            outputs.push(Logical::Literal(scalar(*base, &Datum::Null), None));
            continue;
        }
        if is_ordered(*base) {
            // The key retains its name, so that a join's filter on groups can be pushed down to
            // their rows.
            keys.push(column.clone());
            outputs.push(column);
        } else {
            keys.push(comparable(column.clone(), *base).alias(format!("r{result}k{at}")));
            // The first of several values that are equal but not identical is shown.
            let name = format!("r{result}v{at}");
            computed.push(first_of(column).alias(&name));
            outputs.push(Logical::Column(Column::new_unqualified(name)));
        }
    }
    for (at, call) in calls.iter().enumerate() {
        let name = format!("r{result}a{at}");
        computed.push(call.clone().alias(&name));
        outputs.push(Logical::Column(Column::new_unqualified(name)));
    }
    if keys.is_empty() && computed.is_empty() {
        // One group of all rows, without aggregates.
        computed.push(count(lit(1)).alias(format!("r{result}all")));
    }
    let is_total = keys.is_empty();
    let plan = LogicalPlanBuilder::from(plan).aggregate(keys, computed)?;
    // A total aggregate returns one group even if there are no rows. DataFusion would push a
    // condition that refers to no aggregate beneath it, where the condition would remove rows
    // instead of the group. A limit prevents this, because nothing is pushed beneath a limit.
    let plan = if is_total { plan.limit(0, Some(1))? } else { plan };
    projected(plan.build()?, outputs, result)
}
