//! Aggregates over groups of rows.

use std::collections::BTreeSet;

use pangea_core::key::Key;

use crate::error::SqlError;
use crate::expr::arithmetic::{self, Arithmetic};
use crate::expr::{Env, Expr};
use crate::keys;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::numeric::Numeric;

/// What is computed of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AggregateKind {
    Count,
    Sum,
    Avg,
    Min,
    Max,
    And,
    Or,
}

/// An aggregate of a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Aggregate {
    pub kind: AggregateKind,
    /// What of each row; nothing counts the row itself.
    pub arg: Option<Expr>,
    /// The argument's type.
    pub base: SqlType,
    /// Whether equal arguments count once.
    pub is_distinct: bool,
    /// Which rows count.
    pub filter: Option<Expr>,
}

impl AggregateKind {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "count" => Self::Count,
            "sum" => Self::Sum,
            "avg" => Self::Avg,
            "min" => Self::Min,
            "max" => Self::Max,
            "bool_and" | "every" => Self::And,
            "bool_or" => Self::Or,
            _ => return None,
        })
    }

    /// The type that an argument becomes, and the type of the result.
    pub(crate) fn types(self, base: SqlType) -> Option<(SqlType, SqlType)> {
        use SqlType::{Bool, Bpchar, Float4, Float8, Int2, Int4, Int8, Numeric, Text, Varchar};
        let same = |base| Some((base, base));
        match (self, base) {
            (Self::Count, base) => Some((base, Int8)),
            (Self::Sum, Int2 | Int4) => Some((base, Int8)),
            (Self::Sum | Self::Avg, Int8) => Some((Numeric, Numeric)),
            (Self::Avg, Int2 | Int4) => Some((Numeric, Numeric)),
            (Self::Sum, Float4 | Float8 | Numeric) => same(base),
            (Self::Sum | Self::Avg, SqlType::Interval) => same(base),
            (Self::Avg, Float4 | Float8) => Some((Float8, Float8)),
            (Self::Avg, Numeric) => same(Numeric),
            (Self::Min | Self::Max, Text | Varchar) => Some((Text, Text)),
            (Self::Min | Self::Max, Bpchar) => same(Bpchar),
            (Self::Min | Self::Max, SqlType::Json | SqlType::Jsonb) => None,
            (Self::Min | Self::Max, base) if base != Bool && base != SqlType::Uuid => same(base),
            (Self::And | Self::Or, Bool) => same(Bool),
            _ => None,
        }
    }
}

/// An aggregate under way for one group.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Rows counted.
    count: i64,
    /// The sum or the extreme so far.
    value: Datum,
    /// The arguments seen, where they count once.
    seen: BTreeSet<Key>,
}

impl State {
    pub(crate) fn new() -> Self {
        Self { count: 0, value: Datum::Null, seen: BTreeSet::new() }
    }

    /// Takes a row in.
    pub(crate) fn add(
        &mut self,
        aggregate: &Aggregate,
        row: &[Datum],
        env: &Env,
    ) -> Result<(), SqlError> {
        if let Some(filter) = &aggregate.filter
            && !filter.is_true(row, env)?
        {
            return Ok(());
        }
        let Some(arg) = &aggregate.arg else {
            self.count += 1;
            return Ok(());
        };
        let datum = arg.eval(row, env)?;
        if datum.is_null() {
            return Ok(());
        }
        let is_new = !aggregate.is_distinct
            || self.seen.insert(keys::encode_nullable([(aggregate.base, &datum)])?);
        if !is_new {
            return Ok(());
        }
        self.count += 1;
        let before = std::mem::replace(&mut self.value, Datum::Null);
        self.value = match aggregate.kind {
            AggregateKind::Count => Datum::Null,
            _ if before.is_null() => datum,
            AggregateKind::Sum | AggregateKind::Avg => {
                // Sums of integers are bigint whatever their own width.
                let base = if aggregate.base.is_integer() { SqlType::Int8 } else { aggregate.base };
                arithmetic::apply(Arithmetic::Add, base, before, datum)?
            }
            AggregateKind::Min if datum.compare(&before).is_lt() => datum,
            AggregateKind::Max if datum.compare(&before).is_gt() => datum,
            AggregateKind::Min | AggregateKind::Max => before,
            AggregateKind::And => {
                Datum::Bool(datum.truth() == Some(true) && before.truth() == Some(true))
            }
            AggregateKind::Or => {
                Datum::Bool(datum.truth() == Some(true) || before.truth() == Some(true))
            }
        };
        Ok(())
    }

    /// The result for the group.
    pub(crate) fn finish(self, aggregate: &Aggregate) -> Result<Datum, SqlError> {
        match (aggregate.kind, self.value) {
            (AggregateKind::Count, _) => Ok(Datum::Int(self.count)),
            (AggregateKind::Avg, Datum::Numeric(sum)) => {
                sum.divide(&Numeric::from(self.count)).map(Datum::Numeric)
            }
            (AggregateKind::Avg, Datum::Interval(sum)) => {
                sum.divide(self.count as f64).map(Datum::Interval)
            }
            (AggregateKind::Avg, Datum::Float(sum)) => Ok(Datum::Float(sum / self.count as f64)),
            (_, value) => Ok(value),
        }
    }
}
