//! Calls of aggregate functions.

use crate::expr::Expr;
use crate::types::SqlType;
use crate::vocabulary::aggregate::AggregateKind;
use crate::vocabulary::column::SortKey;

/// An aggregate call in a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Aggregate {
    pub kind: AggregateKind,
    /// Arguments and their types. Without arguments, rows are counted.
    pub args: Vec<(Expr, SqlType)>,
    /// Whether duplicate arguments are ignored (DISTINCT).
    pub is_distinct: bool,
    /// FILTER condition.
    pub filter: Option<Expr>,
    /// ORDER BY expressions; `sort` refers to them by position.
    pub order: Vec<(Expr, SqlType)>,
    pub sort: Vec<SortKey>,
}

impl Aggregate {
    /// Creates an aggregate over all rows, without DISTINCT, FILTER and ORDER BY.
    pub(crate) fn plain(kind: AggregateKind, args: Vec<(Expr, SqlType)>) -> Self {
        let (order, sort) = (Vec::new(), Vec::new());
        Self { kind, args, is_distinct: false, filter: None, order, sort }
    }

    /// The type of the result.
    pub(crate) fn result(&self) -> SqlType {
        let base = self.args.first().map_or(SqlType::Bool, |(_, base)| *base);
        self.kind.types(base).map_or(SqlType::Int8, |(_, result)| result)
    }

    /// Returns the same aggregate over rows that consist of its arguments followed by its ORDER BY
    /// expressions.
    pub(crate) fn over_columns(&self) -> Self {
        let types = self.args.iter().chain(&self.order).map(|(_, base)| *base);
        let mut columns: Vec<_> =
            types.enumerate().map(|(at, base)| (Expr::Column(at), base)).collect();
        let order = columns.split_off(self.args.len());
        Self { args: columns, order, filter: None, sort: self.sort.clone(), ..*self }
    }

    /// Whether rows are folded one by one, over at most one argument, and no values are collected.
    pub(crate) fn is_plain(&self) -> bool {
        self.args.len() <= 1 && !self.is_distinct && !self.kind.is_collected()
    }

    /// Whether the result is independent of the order of rows and of their partitioning.
    pub(crate) fn is_any_order(&self) -> bool {
        use AggregateKind as K;
        let is_float =
            |(_, base): &(Expr, SqlType)| matches!(base, SqlType::Float4 | SqlType::Float8);
        if self.is_distinct {
            return self.kind == K::Count && self.order.is_empty();
        }
        // Of equal numbers, the one with more digits wins.
        let is_unlike =
            |(_, base): &(Expr, SqlType)| base.has_equals_unlike() && *base != SqlType::Numeric;
        let is_exact = match self.kind {
            K::Min | K::Max => !self.args.iter().any(is_unlike),
            K::Count | K::And | K::Or | K::BitAnd | K::BitOr | K::BitXor => true,
            K::Sum | K::Avg | K::Spread { .. } => !self.args.iter().any(is_float),
            K::Array | K::Text | K::Json { .. } | K::Object { .. } => false,
        };
        is_exact && self.is_plain()
    }

    /// The expressions of the call.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Expr> {
        let args = self.args.iter().chain(&self.order).map(|(expr, _)| expr);
        args.chain(&self.filter)
    }
}
