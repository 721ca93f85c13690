//! One SQL value.
//!
//! The value does not contain its type: expressions and columns know it. Integers of all widths
//! share a variant, as do strings, floats and timestamps.

use std::cmp::Ordering;
use std::sync::Arc;

use super::array::Array;
use super::interval::Interval;
use super::json::Json;
use super::label::Label;
use super::numeric::Numeric;

/// One value of a column or an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// NULL, of any type.
    Null,
    /// `boolean`
    Bool(bool),
    /// `smallint`, `integer`, `bigint`
    Int(i64),
    /// `real` (rounded to its precision), `double precision`
    Float(f64),
    /// `numeric`
    Numeric(Numeric),
    /// `text`, `varchar`, `char`, and `json`
    Text(String),
    /// `bytea`
    Bytea(Vec<u8>),
    /// `date`: days since 2000-01-01; the ends of the range are minus and plus infinity
    Date(i32),
    /// Timestamps: microseconds since 2000-01-01, UTC for `timestamptz`; the ends of the range are
    /// minus and plus infinity
    Timestamp(i64),
    /// `time`: microseconds since midnight, up to and including those of a whole day
    Time(i64),
    /// `interval`
    Interval(Interval),
    /// `uuid`
    Uuid([u8; 16]),
    /// `jsonb`. Shared, like arrays.
    Jsonb(Arc<Json>),
    /// A value of an enum. The label is shared with the other values of the type.
    Enum(Arc<Label>),
    /// An array. Shared because expressions copy their values.
    Array(Arc<Array>),
}

impl Datum {
    /// Returns an array of one dimension.
    pub fn array(items: Vec<Datum>) -> Self {
        Self::Array(Arc::new(Array::of(items)))
    }

    /// Returns whether it is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns the value of a condition. `None` is unknown.
    ///
    /// # Panics
    /// If it is neither a boolean nor NULL. The binder prevents this.
    pub fn truth(&self) -> Option<bool> {
        match self {
            Self::Null => None,
            Self::Bool(value) => Some(*value),
            other => panic!("{other:?} is not a boolean"),
        }
    }

    /// Compares two values of one type that are not NULL.
    ///
    /// # Panics
    /// If the types differ. The binder prevents this.
    pub fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Float(a), Self::Float(b)) => compare_floats(*a, *b),
            (Self::Numeric(a), Self::Numeric(b)) => a.cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Bytea(a), Self::Bytea(b)) => a.cmp(b),
            (Self::Date(a), Self::Date(b)) => a.cmp(b),
            (Self::Timestamp(a), Self::Timestamp(b)) => a.cmp(b),
            (Self::Time(a), Self::Time(b)) => a.cmp(b),
            (Self::Interval(a), Self::Interval(b)) => a.micros_in_all().cmp(&b.micros_in_all()),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            (Self::Jsonb(a), Self::Jsonb(b)) => a.compare(b),
            (Self::Enum(a), Self::Enum(b)) => a.compare(b),
            (Self::Array(a), Self::Array(b)) => a.compare(b),
            (a, b) => panic!("{a:?} and {b:?} can't be compared"),
        }
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Text(text) => text.len(),
                Self::Bytea(bytes) => bytes.len(),
                Self::Array(array) => array.size(),
                Self::Jsonb(json) => json.size(),
                Self::Numeric(number) => number.heap_bytes(),
                _ => 0,
            }
    }
}

/// Compares floats in PostgreSQL's order: NaN equals itself and is greater than all others, and 0
/// equals -0.
pub fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_ordered_as_in_postgresql() {
        assert_eq!(compare_floats(0.0, -0.0), Ordering::Equal);
        assert_eq!(compare_floats(f64::NAN, f64::INFINITY), Ordering::Greater);
        assert_eq!(compare_floats(1.0, f64::NAN), Ordering::Less);
        assert_eq!(compare_floats(f64::NAN, f64::NAN), Ordering::Equal);
    }
}
