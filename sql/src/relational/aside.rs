//! Queries that run before the main one (InitPlans), set aside in plans that are only shown.

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::{Expr as Logical, LogicalPlan, not};

use super::function::Computed;
use super::init_plan::{INIT_SEQUENCE_FIRST, init_plan};
use super::values::scalar;
use crate::expr::{Expr, SequenceCall};
use crate::types::SqlType;

/// Sets aside a query that would run beforehand, and returns a stand-in for it. Used for plans that
/// are not run.
pub(super) fn set_aside(expr: Logical, aside: &mut Vec<LogicalPlan>) -> Logical {
    let number = aside.len();
    let stand_in = |base: SqlType| {
        let at = INIT_SEQUENCE_FIRST + number;
        Computed::call(Expr::Sequence(SequenceCall::Last, at, Vec::new()), Vec::new(), base)
    };
    let (plan, shown) = match &expr {
        Logical::Exists(exists) => {
            let found = stand_in(SqlType::Bool);
            (&exists.subquery.subquery, if exists.negated { not(found) } else { found })
        }
        Logical::ScalarSubquery(query) => {
            let constant = |is_text, base| {
                let datum = init_plan(number, is_text);
                datum.map(|datum| Logical::Literal(scalar(base, &datum), None))
            };
            let shown = match query.subquery.schema().field(0).data_type() {
                DataType::Int64 => constant(false, SqlType::Int8),
                DataType::Utf8 => constant(true, SqlType::Text),
                DataType::Boolean => Some(stand_in(SqlType::Bool)),
                DataType::Float64 => Some(stand_in(SqlType::Float8)),
                _ => Some(stand_in(SqlType::Bytea)),
            };
            (&query.subquery, shown.unwrap_or_else(|| stand_in(SqlType::Int8)))
        }
        _ => return expr,
    };
    aside.push((**plan).clone());
    shown
}
