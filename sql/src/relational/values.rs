//! Conversion of values to and from Arrow.
//!
//! | SQL | Arrow |
//! |---|---|
//! | boolean | Boolean |
//! | integers, dates, times, timestamps | Int64 |
//! | real, double precision | Float64 |
//! | strings, json | Utf8 |
//! | bytea, uuid | Binary |
//! | others | Binary: the bytes of a row with that one column |
//!
//! Arrow orders the types in the first rows of the table like SQL, except for floats (two zeros)
//! and `char(n)` (blanks). Types that it orders differently are compared by their keys
//! ([`key_of`]).

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder,
    RecordBatch, RecordBatchOptions, StringBuilder, UInt32Array,
};
use datafusion::arrow::array::{BinaryArray, BooleanArray, Float64Array, Int64Array, StringArray};
use datafusion::arrow::compute::take_record_batch;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use pangea_core::codec::{DecodeError, Reader};

use crate::error::{SqlError, code};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::{keys, rows};

/// Returns the Arrow type of an SQL type.
pub(super) fn arrow_type(base: SqlType) -> DataType {
    use SqlType as T;
    match base {
        T::Bool => DataType::Boolean,
        T::Int2 | T::Int4 | T::Int8 | T::Date | T::Time | T::Timestamp | T::Timestamptz => {
            DataType::Int64
        }
        T::Oid | T::Reg(_) => DataType::Int64,
        T::Float4 | T::Float8 => DataType::Float64,
        T::Json | T::Unknown => DataType::Utf8,
        base if base.is_string() => DataType::Utf8,
        _ => DataType::Binary,
    }
}

/// Whether Arrow compares values of a type like SQL.
pub(super) fn is_ordered(base: SqlType) -> bool {
    use SqlType as T;
    !matches!(
        base,
        T::Float4
            | T::Float8
            | T::Bpchar
            | T::Numeric
            | T::Interval
            | T::Jsonb
            | T::Json
            | T::Enum(_)
            | T::Array(_)
            | T::Int2Vector
            | T::OidVector
    )
}

/// Returns the comparison key: bytes that are equal and sort like the values.
pub(super) fn key_of(base: SqlType, datum: &Datum) -> Result<Datum, SqlError> {
    if datum.is_null() {
        return Ok(Datum::Null);
    }
    Ok(Datum::Bytea(keys::encode([(base, datum)])?.to_vec()))
}

/// A column under construction.
pub(super) enum Column {
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
}

impl Column {
    pub(super) fn new(base: SqlType) -> Self {
        match arrow_type(base) {
            DataType::Boolean => Self::Bool(BooleanBuilder::new()),
            DataType::Int64 => Self::Int(Int64Builder::new()),
            DataType::Float64 => Self::Float(Float64Builder::new()),
            DataType::Utf8 => Self::Text(StringBuilder::new()),
            _ => Self::Bytes(BinaryBuilder::new()),
        }
    }

    pub(super) fn push(&mut self, datum: &Datum) {
        match (self, datum) {
            (Self::Bool(to), Datum::Bool(value)) => to.append_value(*value),
            (Self::Bool(to), _) => to.append_null(),
            (Self::Int(to), Datum::Int(value) | Datum::Timestamp(value) | Datum::Time(value)) => {
                to.append_value(*value)
            }
            (Self::Int(to), Datum::Date(days)) => to.append_value((*days).into()),
            (Self::Int(to), _) => to.append_null(),
            (Self::Float(to), Datum::Float(value)) => to.append_value(*value),
            (Self::Float(to), _) => to.append_null(),
            (Self::Text(to), Datum::Text(text)) => to.append_value(text),
            (Self::Text(to), _) => to.append_null(),
            (Self::Bytes(to), Datum::Null) => to.append_null(),
            (Self::Bytes(to), Datum::Bytea(bytes)) => to.append_value(bytes),
            (Self::Bytes(to), Datum::Uuid(bytes)) => to.append_value(bytes),
            (Self::Bytes(to), datum) => to.append_value(opaque(datum)),
        }
    }

    /// Whether the stored bytes of a type's values can be added without decoding.
    pub(super) fn is_direct(base: SqlType) -> bool {
        // Stored rows contain only the positions of enum values.
        base.element().is_none() && base.enumeration().is_none()
    }

    /// Appends bytes to a column of bytes.
    ///
    /// # Panics
    /// If the column is of another kind.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        let Self::Bytes(to) = self else { panic!("a column of bytes") };
        to.append_value(bytes);
    }

    /// Appends a value in its stored form, of a type that is [direct](Column::is_direct). `None` is
    /// NULL.
    pub(super) fn push_raw(
        &mut self,
        base: SqlType,
        raw: Option<&[u8]>,
    ) -> Result<(), DecodeError> {
        let Some(raw) = raw else {
            self.push(&Datum::Null);
            return Ok(());
        };
        let mut from = Reader::new(raw);
        match (self, base) {
            (Self::Bool(to), _) => to.append_value(from.u8("boolean")? != 0),
            (Self::Int(to), _) => to.append_value(rows::integer(&mut from)?),
            (Self::Float(to), _) => to.append_value(f64::from_bits(from.u64("float")?)),
            (Self::Text(to), _) => {
                let text = std::str::from_utf8(from.bytes("text")?);
                to.append_value(text.map_err(|_| DecodeError::new("text"))?);
            }
            (Self::Bytes(to), SqlType::Bytea) => to.append_value(from.bytes("bytea")?),
            (Self::Bytes(to), SqlType::Uuid) => to.append_value(raw),
            (Self::Bytes(to), _) => {
                let mut alone = Vec::with_capacity(raw.len() + 3);
                rows::put_alone(raw, &mut alone);
                to.append_value(&alone);
            }
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Bool(from) => Arc::new(from.finish()),
            Self::Int(from) => Arc::new(from.finish()),
            Self::Float(from) => Arc::new(from.finish()),
            Self::Text(from) => Arc::new(from.finish()),
            Self::Bytes(from) => Arc::new(from.finish()),
        }
    }
}

fn opaque(datum: &Datum) -> Vec<u8> {
    let mut out = Vec::new();
    rows::encode(std::slice::from_ref(datum), &mut out);
    out
}

fn revealed(base: SqlType, bytes: &[u8]) -> Result<Datum, SqlError> {
    match base {
        SqlType::Bytea => Ok(Datum::Bytea(bytes.to_vec())),
        SqlType::Uuid => bytes.try_into().map(Datum::Uuid).map_err(|_| corrupted()),
        base => rows::decode_alone(base, bytes).map_err(|_| corrupted()),
    }
}

fn corrupted() -> SqlError {
    SqlError::new(code::INTERNAL, "a value of a query has the wrong bytes")
}

fn whole(base: SqlType, value: i64) -> Datum {
    match base {
        SqlType::Date => Datum::Date(value as i32),
        SqlType::Time => Datum::Time(value),
        SqlType::Timestamp | SqlType::Timestamptz => Datum::Timestamp(value),
        _ => Datum::Int(value),
    }
}

/// A column of a batch, read as SQL values.
pub(super) enum Values<'a> {
    Bool(&'a BooleanArray),
    Int(SqlType, &'a Int64Array),
    Float(&'a Float64Array),
    Text(&'a StringArray),
    Bytes(SqlType, &'a BinaryArray),
}

impl<'a> Values<'a> {
    /// Reads a column as values of a type.
    ///
    /// # Panics
    /// If the Arrow type does not match.
    pub(super) fn new(base: SqlType, array: &'a ArrayRef) -> Self {
        assert_eq!(*array.data_type(), arrow_type(base), "a column of type {base}");
        match arrow_type(base) {
            DataType::Boolean => Self::Bool(array.as_boolean()),
            DataType::Int64 => Self::Int(base, array.as_primitive::<Int64Type>()),
            DataType::Float64 => Self::Float(array.as_primitive::<Float64Type>()),
            DataType::Utf8 => Self::Text(array.as_string()),
            _ => Self::Bytes(base, array.as_binary()),
        }
    }

    /// Returns the value in a row.
    pub(super) fn get(&self, row: usize) -> Result<Datum, SqlError> {
        Ok(match self {
            Self::Bool(from) if !from.is_null(row) => Datum::Bool(from.value(row)),
            Self::Int(base, from) if !from.is_null(row) => whole(*base, from.value(row)),
            Self::Float(from) if !from.is_null(row) => Datum::Float(from.value(row)),
            Self::Text(from) if !from.is_null(row) => Datum::Text(from.value(row).to_owned()),
            Self::Bytes(base, from) if !from.is_null(row) => revealed(*base, from.value(row))?,
            _ => Datum::Null,
        })
    }
}

/// Returns the rows of a batch at these positions. The batch may have no columns.
pub(super) fn taken(batch: &RecordBatch, places: Vec<u32>) -> Result<RecordBatch, ArrowError> {
    if batch.num_columns() > 0 {
        return take_record_batch(batch, &UInt32Array::from(places));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
    RecordBatch::try_new_with_options(batch.schema(), Vec::new(), &options)
}

/// Returns a value as a DataFusion constant.
pub(super) fn scalar(base: SqlType, datum: &Datum) -> ScalarValue {
    let is_null = datum.is_null();
    match (arrow_type(base), datum) {
        (DataType::Boolean, Datum::Bool(value)) => ScalarValue::Boolean(Some(*value)),
        (DataType::Boolean, _) => ScalarValue::Boolean(None),
        (DataType::Int64, Datum::Int(v) | Datum::Timestamp(v) | Datum::Time(v)) => {
            ScalarValue::Int64(Some(*v))
        }
        (DataType::Int64, Datum::Date(days)) => ScalarValue::Int64(Some((*days).into())),
        (DataType::Int64, _) => ScalarValue::Int64(None),
        (DataType::Float64, Datum::Float(value)) => ScalarValue::Float64(Some(*value)),
        (DataType::Float64, _) => ScalarValue::Float64(None),
        (DataType::Utf8, Datum::Text(text)) => ScalarValue::Utf8(Some(text.clone())),
        (DataType::Utf8, _) => ScalarValue::Utf8(None),
        (_, Datum::Bytea(bytes)) => ScalarValue::Binary(Some(bytes.clone())),
        (_, Datum::Uuid(bytes)) => ScalarValue::Binary(Some(bytes.to_vec())),
        (_, datum) => ScalarValue::Binary((!is_null).then(|| opaque(datum))),
    }
}

/// Converts a DataFusion constant to a value of a type; `None` if it is of another kind.
pub(crate) fn datum(base: SqlType, scalar: &ScalarValue) -> Option<Datum> {
    match (arrow_type(base), scalar) {
        (_, scalar) if scalar.is_null() => Some(Datum::Null),
        (DataType::Boolean, ScalarValue::Boolean(Some(value))) => Some(Datum::Bool(*value)),
        (DataType::Int64, ScalarValue::Int64(Some(value))) => Some(whole(base, *value)),
        (DataType::Float64, ScalarValue::Float64(Some(value))) => Some(Datum::Float(*value)),
        (DataType::Utf8, ScalarValue::Utf8(Some(text))) => Some(Datum::Text(text.clone())),
        (DataType::Binary, ScalarValue::Binary(Some(bytes))) => revealed(base, bytes).ok(),
        _ => None,
    }
}
