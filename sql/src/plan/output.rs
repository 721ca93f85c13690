//! The columns of results, and which columns of relations they show.

use super::Planner;
use super::select::Output;
use crate::expr::Expr;
use crate::expr::bind::{Bound, Scope};
use crate::types::ColumnType;

/// A column of a result.
#[derive(Clone, Debug)]
pub struct OutputColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: ColumnType,
    /// Which column of a relation it shows as it is.
    pub origin: Option<Origin>,
}

/// A column of a relation, by its numbers in `pg_attribute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// `attrelid`
    pub relation: u32,
    /// `attnum`
    pub column: i16,
}

impl OutputColumn {
    /// A column that is computed.
    pub fn new(name: impl Into<String>, ty: impl Into<ColumnType>) -> Self {
        Self { name: name.into(), ty: ty.into(), origin: None }
    }
}

impl PartialEq for OutputColumn {
    /// What it shows is no matter of what it is.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.ty == other.ty
    }
}

impl Planner<'_> {
    /// The columns of a result.
    pub(super) fn columns_of(&self, output: &Output, scope: &Scope) -> Vec<OutputColumn> {
        let named = output.names.iter().zip(&output.bounds);
        let column = |(name, bound): (&String, &Bound)| {
            let origin = self.origin(&bound.expr, scope);
            OutputColumn { name: name.clone(), ty: bound.ty, origin }
        };
        named.map(column).collect()
    }

    /// Notes that a relation of the statement is one that is kept, with so many columns.
    pub(super) fn is_kept(&mut self, relation: u32, oid: u32, width: usize) {
        let origin = |at: usize| Some(Origin { relation: oid, column: i16::try_from(at).ok()? });
        self.origins.insert(relation, (1..=width).map(origin).collect());
    }

    /// Notes that a relation of the statement shows what a query in it does.
    pub(super) fn shows_query(&mut self, relation: u32, columns: &[OutputColumn]) {
        self.origins.insert(relation, columns.iter().map(|column| column.origin).collect());
    }

    /// The column of a kept relation that an expression is.
    fn origin(&self, expr: &Expr, scope: &Scope) -> Option<Origin> {
        let Expr::Column(at) = expr else { return None };
        let id = scope.columns.get(*at)?.id;
        *self.origins.get(&id.relation)?.get(id.column as usize)?
    }
}
