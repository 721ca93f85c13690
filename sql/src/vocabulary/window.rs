//! The window functions, by name and type.

use super::aggregate::AggregateKind;
use crate::types::SqlType;

/// A function that is computed over a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowFunction {
    RowNumber,
    Rank,
    DenseRank,
    PercentRank,
    CumeDist,
    Ntile,
    Lag,
    Lead,
    FirstValue,
    LastValue,
    NthValue,
    Aggregate(AggregateKind),
}

impl WindowFunction {
    /// Returns the function of this name, if it requires a window.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "row_number" => Self::RowNumber,
            "rank" => Self::Rank,
            "dense_rank" => Self::DenseRank,
            "percent_rank" => Self::PercentRank,
            "cume_dist" => Self::CumeDist,
            "ntile" => Self::Ntile,
            "lag" => Self::Lag,
            "lead" => Self::Lead,
            "first_value" => Self::FirstValue,
            "last_value" => Self::LastValue,
            "nth_value" => Self::NthValue,
            _ => return None,
        })
    }

    /// Returns the types that the arguments are converted to, and the type of the result.
    pub(crate) fn types(self, args: &[SqlType]) -> Option<(Vec<SqlType>, SqlType)> {
        use SqlType::{Float8, Int4, Int8};
        let first = args.first().copied();
        Some(match (self, args.len()) {
            (Self::RowNumber | Self::Rank | Self::DenseRank, 0) => (vec![], Int8),
            (Self::PercentRank | Self::CumeDist, 0) => (vec![], Float8),
            (Self::Ntile, 1) => (vec![Int4], Int4),
            (Self::FirstValue | Self::LastValue, 1) => (vec![first?], first?),
            (Self::NthValue, 2) => (vec![first?, Int4], first?),
            (Self::Lag | Self::Lead, 1..=3) => {
                (vec![first?, Int4, first?][..args.len()].to_vec(), first?)
            }
            _ => return None,
        })
    }
}
