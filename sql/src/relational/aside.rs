//! Queries that run before the main one (InitPlans), set aside in plans that are only shown.

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::{Expr as Logical, LogicalPlan, not};

use super::function::Computed;
use super::values::scalar;
use crate::expr::{Expr, SequenceCall};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// First of the integer constants that stand for the results of InitPlans: subqueries that run
/// before the main query.
const INIT_INT_FIRST: i64 = i64::MIN + (1 << 20);
const INIT_TEXT: &str = "\u{1}InitPlan ";
/// First of the sequence positions that stand for results of InitPlans.
pub(crate) const INIT_SEQUENCE_FIRST: usize = 1 << 32;
/// Maximum number of InitPlans that are distinguished.
const INIT_PLANS_MAX: usize = 1_000;

/// Returns a constant that stands for the result of an InitPlan, because a plan that is only shown
/// reads no rows. `None` if `number` is too large.
fn init_plan(number: usize, is_text: bool) -> Option<Datum> {
    let fits = number < INIT_PLANS_MAX;
    fits.then(|| match is_text {
        true => Datum::Text(format!("{INIT_TEXT}{number}")),
        false => Datum::Int(INIT_INT_FIRST + number as i64),
    })
}

/// Returns the number of the InitPlan that a constant stands for.
pub(crate) fn init_plan_of(datum: &Datum) -> Option<usize> {
    match datum {
        Datum::Int(value) => {
            let at = value.checked_sub(INIT_INT_FIRST).and_then(|at| usize::try_from(at).ok())?;
            (at < INIT_PLANS_MAX).then_some(at)
        }
        Datum::Text(text) => text.strip_prefix(INIT_TEXT)?.parse().ok(),
        _ => None,
    }
}

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
