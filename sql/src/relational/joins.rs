//! Joins, LATERAL, and UNION, INTERSECT and EXCEPT.

use datafusion::common::NullEquality;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr as Logical, JoinType, LogicalPlan, LogicalPlanBuilder};

use super::apply::{Answer, Apply};
use super::block::{JoinKind, Numbers, SetOperation};
use super::error::unwrapped;
use super::leaf::columns_of;
use super::logical_plan::{PlanScope, all_of, named, next, projected};
use crate::error::SqlError;
use crate::expr::Expr;
use crate::expr::query::Query;
use crate::types::SqlType;
use crate::vocabulary::column::{ColumnId, relation_name};

/// Joins the rows of two plans for which a condition over both holds.
pub(crate) fn join(
    left: LogicalPlan,
    right: LogicalPlan,
    kind: JoinKind,
    condition: Option<Expr>,
    columns: &[(ColumnId, SqlType)],
) -> std::result::Result<LogicalPlan, SqlError> {
    let mut numbers = 0;
    let scope = PlanScope::new(LogicalPlan::default(), columns, &mut numbers);
    let conditions = condition.as_ref().map(Expr::conjuncts).unwrap_or_default();
    let on = conditions.into_iter().map(|condition| scope.value(condition, SqlType::Bool));
    let on = all_of(on.collect()).map_err(|error| unwrapped(&error))?;
    let kind = match kind {
        JoinKind::Inner => JoinType::Inner,
        JoinKind::Left => JoinType::Left,
        JoinKind::Right => JoinType::Right,
        JoinKind::Full => JoinType::Full,
    };
    let builder = LogicalPlanBuilder::from(left);
    let joined = match on {
        None if kind == JoinType::Inner => builder.cross_join(right),
        on => builder.join_on(right, kind, on),
    };
    joined.and_then(LogicalPlanBuilder::build).map_err(|error| unwrapped(&error))
}

/// Joins the rows of a plan with those of a query that refers to its columns.
pub(crate) fn lateral(
    left: LogicalPlan,
    query: &Query,
    refs: &[(ColumnId, SqlType)],
    relation: u32,
    is_kept: bool,
) -> std::result::Result<LogicalPlan, SqlError> {
    let plan = || {
        let added = columns_of(&query.types, relation)?;
        let refs = refs.iter().map(|(id, _)| (id.name(), Logical::Column(id.name()))).collect();
        let answer = (Answer::Rows { is_kept }, added);
        Apply::plan(left, query.plan.clone(), refs, Vec::new(), answer)
    };
    plan().map_err(|error| unwrapped(&error))
}

/// Combines the rows of two queries whose columns have the same types.
pub(crate) fn combined(
    op: SetOperation,
    is_all: bool,
    (left, right): (Query, Query),
    relation: u32,
    numbers: &mut Numbers,
) -> std::result::Result<Query, SqlError> {
    let types = left.types.clone();
    let plan = combine(op, is_all, (left, right), relation, numbers);
    Ok(Query { plan: plan.map_err(|error| unwrapped(&error))?, types })
}

/// Returns the union of two plans whose columns have the same names. The columns of the union are
/// unqualified.
pub(super) fn united(one: LogicalPlan, other: LogicalPlan) -> Result<LogicalPlan> {
    // If one side turns out to be empty, the optimizer replaces the union by the other side, and
    // looks its columns up by their names in the union. Therefore they must be unqualified, too.
    let unqualified = |plan: LogicalPlan| {
        let columns: Vec<Logical> = plan
            .schema()
            .columns()
            .into_iter()
            .map(|column| Logical::Column(column.clone()).alias(column.name))
            .collect();
        LogicalPlanBuilder::from(plan).project(columns)
    };
    unqualified(one)?.union(unqualified(other)?.build()?)?.build()
}

fn combine(
    op: SetOperation,
    is_all: bool,
    (left, right): (Query, Query),
    relation: u32,
    numbers: &mut Numbers,
) -> Result<LogicalPlan> {
    let types = left.types.clone();
    if op == SetOperation::Union {
        let (one, other) = (left.as_relation(relation)?, right.as_relation(relation)?);
        let plan = LogicalPlanBuilder::from(united(one, other)?);
        let plan = plan.alias(relation_name(relation))?.build()?;
        return if is_all {
            Ok(plan)
        } else {
            super::logical_plan::distinct(plan, relation, &types)
        };
    }
    let (one, two) = (next(numbers), next(numbers));
    let (mut left, mut right) = (left.as_relation(one)?, right.as_relation(two)?);
    let mut width = types.len();
    if is_all {
        // The second of several equal rows matches the second one on the other side.
        left = super::windows::numbered(left, one, &types)?;
        right = super::windows::numbered(right, two, &types)?;
        width += 1;
    } else {
        left = super::logical_plan::distinct(left, one, &types)?;
    }
    let all_types: Vec<SqlType> =
        types.iter().copied().chain(is_all.then_some(SqlType::Int8)).collect();
    let on = |relation: u32| -> Vec<Logical> {
        let column =
            |at: usize| super::logical_plan::comparable(named(relation, at), all_types[at]);
        (0..width).map(column).collect()
    };
    let kind = match op {
        SetOperation::Intersect => JoinType::LeftSemi,
        _ => JoinType::LeftAnti,
    };
    // NULLs are equal here. The join keys are columns because only those support NULL equality.
    let (left_keys, right_keys) = (next(numbers), next(numbers));
    let with_keys = |plan: LogicalPlan, from: u32, to: u32| {
        let columns = (0..types.len()).map(|at| named(from, at));
        projected(plan, columns.chain(on(from)).collect(), to)
    };
    let left = with_keys(left, one, left_keys)?;
    let right = with_keys(right, two, right_keys)?;
    let keys = |relation: u32| -> Vec<datafusion::common::Column> {
        let id = |at| ColumnId { relation, column: at as u32 }.name();
        (types.len()..types.len() + width).map(id).collect()
    };
    let on = (keys(left_keys), keys(right_keys));
    let joined = LogicalPlanBuilder::from(left).join_detailed(
        right,
        kind,
        on,
        None,
        NullEquality::NullEqualsNull,
    )?;
    let columns = (0..types.len()).map(|at| named(left_keys, at)).collect();
    projected(joined.build()?, columns, relation)
}
