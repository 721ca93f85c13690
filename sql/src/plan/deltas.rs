//! Updates that only add to integers of one row, which is named by its whole primary key.
//!
//! Nothing else depends on the columns: no key, constraint, generated column or result.

use std::collections::BTreeSet;

use super::Update;
use crate::delta::{self, Step};
use crate::expr::arithmetic::Arithmetic;
use crate::expr::{Binary, Env, Expr, Unary};
use crate::plan::target::Target;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// What an update adds.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    /// The types of the columns up to the last one that changes.
    types: Vec<SqlType>,
    /// The changes, and their amounts. Those in the steps are not known yet.
    steps: Vec<(Step, Expr)>,
}

impl Delta {
    /// What an update adds, if it does nothing else.
    pub(crate) fn of(update: &Update) -> Option<Self> {
        let Update { targets, access, filter, assignments, checks, returning, joined, .. } = update;
        let returns = !returning.exprs.is_empty() || returning.asked.is_some();
        let is_plain = joined.is_none() && checks.is_empty() && !returns;
        if !is_plain || !access.is_one_key(filter.as_ref()) {
            return None;
        }
        let own = targets.own();
        let used = used_columns(own);
        let columns = &own.table.columns;
        let step = |(at, expr): &(usize, Expr)| {
            let column = columns.get(*at).filter(|_| !used.contains(at))?;
            // Rows that are older than the column do not have its default.
            step_of(*at, column.ty.base, expr).filter(|_| column.missing.is_none())
        };
        let steps: Vec<_> = assignments.iter().map(step).collect::<Option<_>>()?;
        let last = steps.iter().map(|(step, _)| step.column).max()?;
        let types = columns[..=last].iter().map(|column| column.ty.base).collect();
        Some(Self { types, steps })
    }

    /// The amount for [`delta::AddIntegers`]. `None` if a value is NULL or can't be computed.
    pub(crate) fn amount(&self, env: &Env) -> Option<Vec<u8>> {
        let step = |(step, amount): &(Step, Expr)| match amount.eval(&[], env) {
            Ok(Datum::Int(amount)) => Some(Step { amount, ..*step }),
            _ => None,
        };
        let steps: Vec<Step> = self.steps.iter().map(step).collect::<Option<_>>()?;
        Some(delta::encode(&self.types, &steps))
    }
}

/// The columns on which anything else of a table depends.
fn used_columns(own: &Target) -> BTreeSet<usize> {
    let paths = own.paths.iter().flat_map(|path| {
        let predicate = path.index.as_ref().and_then(|index| index.predicate.as_ref());
        path.parts.iter().map(|part| &part.expr).chain(predicate)
    });
    let exprs = paths.chain(&own.checks).chain(own.generated.iter().map(|(_, expr)| expr));
    let parents = own.parents.iter().flat_map(|parent| &parent.key.columns);
    let children = own.children.iter().flat_map(|child| &child.key.parent_columns);
    exprs.flat_map(Expr::columns).chain(parents.chain(children).copied()).collect()
}

/// The assignment of `column + amount` or `column - amount` to a column.
fn step_of(column: usize, base: SqlType, assigned: &Expr) -> Option<(Step, Expr)> {
    let assigned = match assigned {
        Expr::Unary(Unary::Cast { from, to, .. }, inner)
            if from.is_integer() && to.base == base =>
        {
            inner
        }
        other => other,
    };
    let Expr::Binary(Binary::Arithmetic(op, sum), left, right) = assigned else { return None };
    let is_own = |expr: &Expr| match expr {
        Expr::Unary(Unary::Cast { from, to, .. }, inner) => {
            *from == base && to.base == *sum && **inner == Expr::Column(column)
        }
        other => *other == Expr::Column(column),
    };
    let (is_minus, amount) = match op {
        Arithmetic::Add if is_own(left) => (false, right),
        Arithmetic::Add if is_own(right) => (false, left),
        Arithmetic::Subtract if is_own(left) => (true, right),
        _ => return None,
    };
    // A cast to a smaller type could fail.
    let is_wider = base.is_integer() && sum.is_integer() && width(*sum) >= width(base);
    let step = Step { column, base, sum: *sum, is_minus, amount: 0 };
    (is_wider && amount.is_constant()).then(|| (step, (**amount).clone()))
}

fn width(base: SqlType) -> u8 {
    match base {
        SqlType::Int2 => 2,
        SqlType::Int4 => 4,
        _ => 8,
    }
}
