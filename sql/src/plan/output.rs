//! Planning of result columns, and of the relation columns that they show.

use super::Planner;
use super::select::Output;
use crate::expr::Expr;
use crate::expr::bind::{Bound, Scope};
use crate::vocabulary::column::{Origin, OutputColumn};

impl Planner<'_> {
    /// Returns the columns of a result.
    pub(super) fn columns_of(&self, output: &Output, scope: &Scope) -> Vec<OutputColumn> {
        let named = output.names.iter().zip(&output.bounds);
        let column = |(name, bound): (&String, &Bound)| {
            let origin = self.origin(&bound.expr, scope);
            OutputColumn { name: name.clone(), ty: bound.ty, origin }
        };
        named.map(column).collect()
    }

    /// Records that a relation of the statement is a stored one, with this number of columns.
    pub(super) fn is_kept(&mut self, relation: u32, oid: u32, width: usize) {
        let origin = |at: usize| Some(Origin { relation: oid, column: i16::try_from(at).ok()? });
        self.origins.insert(relation, (1..=width).map(origin).collect());
    }

    /// Records that a relation of the statement shows the columns of a subquery.
    pub(super) fn shows_query(&mut self, relation: u32, columns: &[OutputColumn]) {
        self.origins.insert(relation, columns.iter().map(|column| column.origin).collect());
    }

    /// Returns the column of a stored relation that an expression refers to.
    fn origin(&self, expr: &Expr, scope: &Scope) -> Option<Origin> {
        let Expr::Column(at) = expr else { return None };
        let id = scope.columns.get(*at)?.id;
        *self.origins.get(&id.relation)?.get(id.column as usize)?
    }
}
