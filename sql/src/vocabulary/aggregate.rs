//! The aggregate functions, by name and type.

use crate::types::SqlType;

/// An aggregate function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AggregateKind {
    Count,
    Sum,
    Avg,
    Min,
    Max,
    And,
    Or,
    BitAnd,
    BitOr,
    BitXor,
    /// `stddev` and `variance`, of a sample or of the whole population
    Spread {
        is_sample: bool,
        is_root: bool,
    },
    /// `array_agg`
    Array,
    /// `string_agg`: text and delimiter
    Text,
    /// `json_agg`, `jsonb_agg`, over values that are JSON already
    Json {
        is_binary: bool,
    },
    /// `json_object_agg`, `jsonb_object_agg`, over text keys and values that are JSON already
    Object {
        is_binary: bool,
    },
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
            "bit_and" => Self::BitAnd,
            "bit_or" => Self::BitOr,
            "bit_xor" => Self::BitXor,
            "stddev" | "stddev_samp" => Self::Spread { is_sample: true, is_root: true },
            "stddev_pop" => Self::Spread { is_sample: false, is_root: true },
            "variance" | "var_samp" => Self::Spread { is_sample: true, is_root: false },
            "var_pop" => Self::Spread { is_sample: false, is_root: false },
            "array_agg" => Self::Array,
            "string_agg" => Self::Text,
            "json_agg" => Self::Json { is_binary: false },
            "jsonb_agg" => Self::Json { is_binary: true },
            "json_object_agg" => Self::Object { is_binary: false },
            "jsonb_object_agg" => Self::Object { is_binary: true },
            _ => return None,
        })
    }

    /// The number of arguments.
    pub(crate) fn arity(self) -> usize {
        match self {
            Self::Text | Self::Object { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the types that the arguments are converted to, and the type of the result, for a
    /// first argument of type `base`.
    pub(crate) fn types(self, base: SqlType) -> Option<(Vec<SqlType>, SqlType)> {
        use SqlType::{Bool, Bpchar, Float4, Float8, Int2, Int4, Int8, Numeric, Text};
        let one = |arg, result| Some((vec![arg], result));
        let same = |base| one(base, base);
        let json = |is_binary| if is_binary { SqlType::Jsonb } else { SqlType::Json };
        match (self, base) {
            (Self::Count, base) => one(base, Int8),
            (Self::Sum, Int2 | Int4) => one(base, Int8),
            (Self::Sum | Self::Avg, Int8) => same(Numeric),
            (Self::Avg, Int2 | Int4) => same(Numeric),
            (Self::Sum, Float4 | Float8 | Numeric) => same(base),
            (Self::Sum | Self::Avg, SqlType::Interval) => same(base),
            (Self::Avg, Float4 | Float8) => same(Float8),
            (Self::Avg, Numeric) => same(Numeric),
            (Self::Min | Self::Max, Bpchar) => same(Bpchar),
            (Self::Min | Self::Max, base) if base.is_string() => same(Text),
            (Self::Min | Self::Max, SqlType::Json | SqlType::Jsonb) => None,
            (Self::Min | Self::Max, base) if base != Bool && base != SqlType::Uuid => same(base),
            (Self::And | Self::Or, Bool) => same(Bool),
            (Self::BitAnd | Self::BitOr | Self::BitXor, Int2 | Int4 | Int8) => same(base),
            (Self::Spread { .. }, Int2 | Int4 | Int8 | Numeric) => same(Numeric),
            (Self::Spread { .. }, Float4 | Float8) => same(Float8),
            (Self::Array, base) if base.element().is_none() => one(base, base.array()?),
            (Self::Text, base) if base.is_string() => Some((vec![Text, Text], Text)),
            (Self::Json { is_binary }, base) if base == json(is_binary) => same(base),
            (Self::Object { is_binary }, _) => Some((vec![Text, json(is_binary)], json(is_binary))),
            _ => None,
        }
    }

    /// Whether all values, including NULLs, are collected until the end because their order
    /// matters.
    pub(crate) fn is_collected(self) -> bool {
        matches!(self, Self::Array | Self::Text | Self::Json { .. } | Self::Object { .. })
    }

    /// Whether NULLs are aggregated.
    pub(crate) fn takes_nulls(self) -> bool {
        matches!(self, Self::Array | Self::Json { .. } | Self::Object { .. })
    }
}
