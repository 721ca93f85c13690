//! Plan fragments that the planner combines.

use std::sync::Arc;

use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr as Logical, LogicalPlan, LogicalPlanBuilder};

use super::block::{From, Numbers};
use super::error::unwrapped;
use super::leaf::{Leaf, scan, schema_of};
use super::logical_plan::{PlanScope, named, projected};
use super::project_set::{Calls, Expand};
use super::values::is_ordered;
use crate::catalog::{Sequence, sequence};
use crate::error::SqlError;
use crate::expr::Expr;
use crate::expr::query::{Called, Query};
use crate::types::SqlType;
use crate::vocabulary::column::{ColumnId, relation_name};
use crate::vocabulary::system::SystemTable;

/// The stack that a walk over a plan of the maximum depth needs, with a margin.
const WALK_BYTES: usize = 16 << 20;

type Planned = std::result::Result<LogicalPlan, SqlError>;

fn planned(plan: impl FnOnce() -> Result<LogicalPlan>) -> Planned {
    plan().map_err(|error| unwrapped(&error))
}

impl From {
    /// Returns the plan that reads the rows.
    pub(super) fn source(self) -> LogicalPlan {
        match self {
            Self::Nothing => {
                LogicalPlanBuilder::empty(true).build().expect("one row without columns")
            }
            Self::Table(paths, relation) => {
                // The key of the row follows the columns of a table.
                let columns = paths.table.columns.iter().map(|column| column.ty.base);
                let types: Vec<SqlType> = columns.chain([SqlType::Bytea]).collect();
                scan(Leaf::Table(paths), &types, relation)
            }
            Self::Values(rows, types, relation) => scan(Leaf::Rows(rows), &types, relation),
            Self::Plan(plan) => plan,
        }
    }

    /// Returns the plan that reads the rows. A build without DataFusion has none.
    pub(crate) fn plan(self) -> Planned {
        Ok(self.source())
    }
}

/// Returns the plan that reads a system table.
pub(crate) fn system_scan(table: &'static SystemTable, relation: u32) -> Planned {
    let types: Vec<SqlType> = table.all_columns().map(|(_, base)| base).collect();
    Ok(scan(Leaf::System(table), &types, relation))
}

/// Returns the plan that reads a sequence as a table.
pub(crate) fn sequence_scan(name: String, sequence: Sequence, relation: u32) -> Planned {
    let types = sequence::COLUMNS.map(|(_, base)| base);
    Ok(scan(Leaf::Sequence(name, sequence), &types, relation))
}

/// Returns a query as the relation with this number.
pub(crate) fn renamed(query: &Query, relation: u32) -> Planned {
    planned(|| query.as_relation(relation))
}

/// Filters rows by a condition.
pub(crate) fn filtered(
    plan: LogicalPlan,
    condition: Expr,
    columns: &[(ColumnId, SqlType)],
    numbers: &mut Numbers,
) -> Planned {
    planned(|| {
        let mut scope = PlanScope::new(plan, columns, numbers);
        scope.filter(condition)?;
        Ok(scope.plan)
    })
}

/// Adds columns to the rows: those of the relation with this number.
pub(crate) fn with_columns(
    plan: LogicalPlan,
    columns: &[(ColumnId, SqlType)],
    values: Vec<(Expr, SqlType)>,
    relation: u32,
) -> Planned {
    planned(|| {
        let mut numbers = 0;
        let scope = PlanScope::new(plan, columns, &mut numbers);
        let own = scope.plan.schema().columns().into_iter().map(Logical::Column);
        let added = values.iter().enumerate().map(|(at, (expr, base))| {
            let name = ColumnId { relation, column: at as u32 }.name();
            scope.value(expr, *base).alias_qualified(name.relation, name.name)
        });
        let all: Vec<Logical> = own.chain(added).collect();
        LogicalPlanBuilder::from(scope.plan).project(all)?.build()
    })
}

/// Adds the answers of subqueries to the rows, as columns of the relation with this number.
pub(crate) fn answered(
    plan: LogicalPlan,
    columns: &[(ColumnId, SqlType)],
    queries: Vec<(Expr, SqlType)>,
    relation: u32,
    numbers: &mut Numbers,
) -> Planned {
    planned(|| {
        let own = plan.schema().columns();
        let mut scope = PlanScope::new(plan, columns, numbers);
        let mut all: Vec<Logical> = own.into_iter().map(Logical::Column).collect();
        for (at, (query, base)) in queries.into_iter().enumerate() {
            let name = ColumnId { relation, column: at as u32 }.name();
            let answer = scope.resolve(query)?;
            all.push(scope.value(&answer, base).alias_qualified(name.relation, name.name));
        }
        LogicalPlanBuilder::from(scope.plan).project(all)?.build()
    })
}

/// Joins the rows with those of functions called for each, as columns of the relation with this
/// number. `flags` are the fields `is_numbered` and `is_kept` of `Calls`.
pub(crate) fn expand(
    plan: LogicalPlan,
    columns: &[(ColumnId, SqlType)],
    functions: &[Called],
    flags: (bool, bool),
    relation: u32,
    numbers: &mut Numbers,
) -> Planned {
    planned(|| {
        let mut scope = PlanScope::new(plan, columns, numbers);
        let mut functions = functions.to_vec();
        scope.resolve_args(&mut functions)?;
        expanded(scope, &functions, flags, relation)
    })
}

/// The same for a plan under construction.
pub(super) fn expanded(
    scope: PlanScope<'_>,
    functions: &[Called],
    (is_numbered, is_kept): (bool, bool),
    relation: u32,
) -> Result<LogicalPlan> {
    let args = functions.iter().flat_map(|called| &called.args);
    let values = args.map(|(arg, base)| scope.value(arg, *base)).collect();
    let inputs = |called: &Called| called.args.iter().map(|(_, base)| *base).collect();
    let call = |called: &Called| (called.function, inputs(called), called.types.clone());
    let functions = functions.iter().map(call).collect();
    Expand::plan(scope.plan, Calls { functions, is_numbered, is_kept }, values, relation)
}

/// The work table of a recursive query: the rows of its last iteration.
pub(crate) fn work_table(
    name: &str,
    types: &[SqlType],
    relation: u32,
) -> std::result::Result<Query, SqlError> {
    let plan = planned(|| {
        let table = CteWorkTable::new(name, schema_of(types, relation));
        let source = provider_as_source(Arc::new(table));
        LogicalPlanBuilder::scan(name, source, None)?.build()
    })?;
    Ok(Query { plan, types: types.to_vec() })
}

/// The rows that a step of the statement returned, as the relation with this number.
pub(crate) fn given(types: &[SqlType], relation: u32) -> std::result::Result<Query, SqlError> {
    Ok(Query { plan: scan(Leaf::Given(relation), types, relation), types: types.to_vec() })
}

/// A recursive query: the first rows, and those derived from them through a work table.
pub(crate) fn recursive(
    work: &str,
    (first, next): (Query, Query),
    is_all: bool,
    relation: u32,
) -> std::result::Result<Query, SqlError> {
    let types = first.types.clone();
    let unordered = types.iter().find(|base| !is_ordered(**base));
    if let (false, Some(base)) = (is_all, unordered) {
        // DataFusion compares rows by their bytes here.
        let feature = format!("UNION without ALL of type {base} in a recursive query");
        return Err(SqlError::unsupported(feature));
    }
    let plan = planned(|| {
        let plain = |query: Query| {
            let columns = query.plan.schema().columns().into_iter().enumerate();
            let named = columns.map(|(at, it)| {
                let name = ColumnId { relation, column: at as u32 }.physical_name();
                Logical::Column(it).alias(name)
            });
            let named: Vec<Logical> = named.collect();
            LogicalPlanBuilder::from(query.plan).project(named)?.build()
        };
        let (first, next) = (plain(first)?, plain(next)?);
        let plan = LogicalPlanBuilder::from(first);
        let plan = plan.to_recursive_query(work.to_owned(), next, !is_all)?;
        plan.alias(relation_name(relation))?.build()
    })?;
    let columns = (0..types.len()).map(|at| named(relation, at)).collect();
    let plan = planned(|| projected(plan, columns, relation))?;
    Ok(Query { plan, types })
}

/// Whether a plan refers to columns of outer queries.
pub(crate) fn names_outer(plan: &LogicalPlan) -> bool {
    // The walk needs stack for each step of the plan.
    stacker::maybe_grow(WALK_BYTES, 2 * WALK_BYTES, || names_outer_here(plan))
}

fn names_outer_here(plan: &LogicalPlan) -> bool {
    let mut is_found = false;
    let walked = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                is_found |= matches!(part, Logical::OuterReferenceColumn(..));
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        // The content of such a node is not inspected, so the answer is yes.
        is_found |= matches!(node, LogicalPlan::Extension(_));
        Ok(TreeNodeRecursion::Continue)
    });
    is_found || walked.is_err()
}
