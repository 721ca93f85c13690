//! Stand-ins for the results of queries that run before the main one (InitPlans), in plans that are
//! only shown.
//!
//! This file does not need DataFusion.

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
pub(super) fn init_plan(number: usize, is_text: bool) -> Option<Datum> {
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
