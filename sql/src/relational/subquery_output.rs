//! Adds the result of a query to the row that the query was run for.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use datafusion::arrow::compute::{concat, concat_batches};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};

use super::apply::{Answer, How};
use super::error::{more_than_one_row, wrapped};
use super::values::{self, Values};
use crate::expr::Comparison;
use crate::keys;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The rows of a query for one set of outer values.
#[derive(Debug)]
pub(super) struct Found {
    pub rows: RecordBatch,
    /// An index of the rows by value, built at the first lookup if many lookups may follow.
    places: OnceLock<Places>,
}

/// Row numbers by value.
#[derive(Debug, Default)]
struct Places {
    /// Rows without a NULL, sorted by hash.
    by_hash: Vec<(u64, u32)>,
    /// Rows with a NULL; for a query of one column only the first of them.
    with_null: Vec<u32>,
}

impl Found {
    pub(super) fn new(rows: RecordBatch) -> Self {
        Self { rows, places: OnceLock::new() }
    }

    fn places(&self, types: &[SqlType]) -> Result<&Places> {
        if self.places.get().is_none() {
            let places = Places::of(&self.rows, types)?;
            return Ok(self.places.get_or_init(|| places));
        }
        Ok(self.places.get().expect("it is there"))
    }
}

impl Places {
    fn of(rows: &RecordBatch, types: &[SqlType]) -> Result<Self> {
        let columns = columns_of(rows, types);
        let mut places = Self::default();
        let mut values = Vec::with_capacity(types.len());
        for row in 0..rows.num_rows() {
            values.clear();
            for column in &columns {
                values.push(column.get(row).map_err(wrapped)?);
            }
            match hash_of(types, &values)? {
                Some(hash) => places.by_hash.push((hash, row as u32)),
                None if types.len() > 1 || places.with_null.is_empty() => {
                    places.with_null.push(row as u32);
                }
                None => {}
            }
        }
        places.by_hash.sort_unstable();
        Ok(places)
    }

    /// Returns the rows that may be equal to values with this hash, and those with a NULL.
    fn like(&self, hash: u64) -> impl Iterator<Item = usize> {
        let first = self.by_hash.partition_point(|(known, _)| *known < hash);
        let same = self.by_hash[first..].iter().take_while(move |(known, _)| *known == hash);
        same.map(|(_, row)| row).chain(&self.with_null).map(|row| *row as usize)
    }
}

fn columns_of<'b>(rows: &'b RecordBatch, types: &[SqlType]) -> Vec<Values<'b>> {
    types.iter().zip(rows.columns()).map(|(base, array)| Values::new(*base, array)).collect()
}

/// Returns a hash that equal values share; `None` if a value is NULL.
fn hash_of(types: &[SqlType], values: &[Datum]) -> Result<Option<u64>> {
    if values.iter().any(Datum::is_null) {
        return Ok(None);
    }
    let key = keys::encode(types.iter().copied().zip(values)).map_err(wrapped)?;
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    Ok(Some(hasher.finish()))
}

/// Returns the batch with one more column.
pub(super) fn with_column(
    how: &How,
    schema: &SchemaRef,
    batch: &RecordBatch,
    answers: &[Arc<Found>],
    operands: &[ArrayRef],
) -> Result<RecordBatch> {
    let column: ArrayRef = match &how.answer {
        Answer::Value => {
            if answers.is_empty() {
                return Ok(RecordBatch::new_empty(schema.clone()));
            }
            let null = new_null_array(how.added.field(0).data_type(), 1);
            let values = answers.iter().map(|answer| match answer.rows.num_rows() {
                0 => Ok(&*null),
                1 => Ok(&**answer.rows.column(0)),
                _ => Err(wrapped(more_than_one_row())),
            });
            concat(&values.collect::<Result<Vec<_>>>()?)?
        }
        Answer::Exists => {
            let mut column = values::Column::new(SqlType::Bool);
            answers.iter().for_each(|it| column.push(&Datum::Bool(it.rows.num_rows() > 0)));
            column.finish()
        }
        Answer::Array { element, base } => {
            let mut column = values::Column::new(*base);
            for answer in answers {
                let values = Values::new(*element, answer.rows.column(0));
                let items = (0..answer.rows.num_rows()).map(|row| values.get(row));
                let items = items.collect::<std::result::Result<_, _>>().map_err(wrapped)?;
                column.push(&Datum::array(items));
            }
            column.finish()
        }
        Answer::Compared { op, is_all, types } => {
            let mut column = values::Column::new(SqlType::Bool);
            let (is_asked_once, is_all) = (how.refs.is_empty(), *is_all);
            for (row, answer) in answers.iter().enumerate() {
                let operands: Vec<_> = types
                    .iter()
                    .zip(operands)
                    .map(|(base, array)| Values::new(*base, array).get(row))
                    .collect::<Result<_, _>>()
                    .map_err(wrapped)?;
                let found = match (op, is_all) {
                    (Comparison::Equal, false) | (Comparison::NotEqual, true) if is_asked_once => {
                        looked_up(&operands, answer, types, (*op, is_all))?
                    }
                    _ => {
                        let rows = 0..answer.rows.num_rows();
                        compared(&operands, answer, rows, types, (*op, is_all))?
                    }
                };
                column.push(&found.map_or(Datum::Null, Datum::Bool));
            }
            column.finish()
        }
        Answer::Rows { .. } => unreachable!("rows are added as columns"),
    };
    let columns = batch.columns().iter().cloned().chain([column]).collect();
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

/// Compares values with many rows through the index: `= ANY` or `<> ALL`.
fn looked_up(
    operands: &[Datum],
    answer: &Found,
    types: &[SqlType],
    how: (Comparison, bool),
) -> Result<Option<bool>> {
    match hash_of(types, operands)? {
        Some(hash) => compared(operands, answer, answer.places(types)?.like(hash), types, how),
        // The only operand is NULL, so the comparison with any one row is unknown, like with all
        // rows.
        None if types.len() == 1 => {
            compared(operands, answer, 0..answer.rows.num_rows().min(1), types, how)
        }
        None => compared(operands, answer, 0..answer.rows.num_rows(), types, how),
    }
}

/// Whether the comparison holds for one of these rows, or for all; `None` if that is unknown.
fn compared(
    operands: &[Datum],
    answer: &Found,
    rows: impl Iterator<Item = usize>,
    types: &[SqlType],
    (op, is_all): (Comparison, bool),
) -> Result<Option<bool>> {
    let columns = columns_of(&answer.rows, types);
    let mut is_unknown = false;
    for row in rows {
        // Rows are equal if all of their values are, and differ if any value differs.
        let mut is_equal = Some(true);
        let mut ordering = Ordering::Equal;
        for (operand, column) in operands.iter().zip(&columns) {
            let value = column.get(row).map_err(wrapped)?;
            if operand.is_null() || value.is_null() {
                is_equal = is_equal.filter(|is_equal| !is_equal);
            } else {
                ordering = operand.compare(&value);
                if ordering.is_ne() {
                    is_equal = Some(false);
                }
            }
            if is_equal == Some(false) && operands.len() > 1 {
                break;
            }
        }
        let holds = match op {
            Comparison::Equal => is_equal,
            Comparison::NotEqual => is_equal.map(|is_equal| !is_equal),
            op => is_equal.map(|_| op.holds(ordering)),
        };
        match holds {
            Some(holds) if holds != is_all => return Ok(Some(holds)),
            Some(_) => {}
            None => is_unknown = true,
        }
    }
    Ok((!is_unknown).then_some(is_all))
}

/// Joins each row of the batch with each row of its answer.
pub(super) fn beside(
    how: &How,
    schema: &SchemaRef,
    batch: &RecordBatch,
    answers: &[Arc<Found>],
    is_kept: bool,
) -> Result<RecordBatch> {
    let mut left = Vec::new();
    let mut right: Vec<RecordBatch> = Vec::new();
    let null_row = || {
        let columns = how.added.fields().iter().map(|field| new_null_array(field.data_type(), 1));
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        Ok::<_, DataFusionError>(RecordBatch::try_new_with_options(
            how.added.clone(),
            columns.collect(),
            &options,
        )?)
    };
    for (row, answer) in answers.iter().enumerate() {
        let answer = &answer.rows;
        let options = RecordBatchOptions::new().with_row_count(Some(answer.num_rows()));
        let (added, columns) = (how.added.clone(), answer.columns().to_vec());
        let renamed = RecordBatch::try_new_with_options(added, columns, &options)?;
        let part = if answer.num_rows() == 0 && is_kept { null_row()? } else { renamed };
        left.extend(std::iter::repeat_n(row as u32, part.num_rows()));
        right.push(part);
    }
    let count = left.len();
    let left = values::taken(batch, left)?;
    let right = concat_batches(&how.added, &right)?;
    let columns = left.columns().iter().chain(right.columns()).cloned().collect();
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}
