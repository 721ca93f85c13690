//! What rows of a query become beside the row that it was run for.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};

use super::apply::{Answer, How};
use super::error::{more_than_one_row, wrapped};
use super::values::{self, Values};
use crate::expr::Comparison;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The batch with one more column.
pub(super) fn with_column(
    how: &How,
    schema: &SchemaRef,
    batch: &RecordBatch,
    answers: &[Arc<RecordBatch>],
    operands: &[ArrayRef],
) -> Result<RecordBatch> {
    let column: ArrayRef = match &how.answer {
        Answer::Value => {
            let null = ScalarValue::try_from(how.added.field(0).data_type())?;
            let value = |answer: &Arc<RecordBatch>| match answer.num_rows() {
                0 => Ok(null.clone()),
                1 => ScalarValue::try_from_array(answer.column(0), 0),
                _ => Err(wrapped(more_than_one_row())),
            };
            if answers.is_empty() {
                return Ok(RecordBatch::new_empty(schema.clone()));
            }
            ScalarValue::iter_to_array(answers.iter().map(value).collect::<Result<Vec<_>>>()?)?
        }
        Answer::Exists => {
            let mut column = values::Column::new(SqlType::Bool);
            answers.iter().for_each(|it| column.push(&Datum::Bool(it.num_rows() > 0)));
            column.finish()
        }
        Answer::Array { element, base } => {
            let mut column = values::Column::new(*base);
            for answer in answers {
                let values = Values::new(*element, answer.column(0));
                let items = (0..answer.num_rows()).map(|row| values.get(row));
                let items = items.collect::<std::result::Result<_, _>>().map_err(wrapped)?;
                column.push(&Datum::array(items));
            }
            column.finish()
        }
        Answer::Compared { op, is_all, types } => {
            let mut column = values::Column::new(SqlType::Bool);
            for (row, answer) in answers.iter().enumerate() {
                let operands: Vec<_> = types
                    .iter()
                    .zip(operands)
                    .map(|(base, array)| Values::new(*base, array).get(row))
                    .collect::<Result<_, _>>()
                    .map_err(wrapped)?;
                let found = compared(&operands, answer, types, (*op, *is_all))?;
                column.push(&found.map_or(Datum::Null, Datum::Bool));
            }
            column.finish()
        }
        Answer::Rows { .. } => unreachable!("rows are put beside"),
    };
    let columns = batch.columns().iter().cloned().chain([column]).collect();
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

/// Whether values compare so with one row, or with all; nothing where that is unknown.
fn compared(
    operands: &[Datum],
    answer: &RecordBatch,
    types: &[SqlType],
    (op, is_all): (Comparison, bool),
) -> Result<Option<bool>> {
    let columns: Vec<Values<'_>> =
        types.iter().zip(answer.columns()).map(|(base, array)| Values::new(*base, array)).collect();
    let mut is_unknown = false;
    for row in 0..answer.num_rows() {
        // A row is equal where all of it is, and differs where any of it does.
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

/// Each row of the batch beside each row of its answer.
pub(super) fn beside(
    how: &How,
    schema: &SchemaRef,
    batch: &RecordBatch,
    answers: &[Arc<RecordBatch>],
    is_kept: bool,
) -> Result<RecordBatch> {
    let mut left = Vec::new();
    let mut right: Vec<RecordBatch> = Vec::new();
    let null_row = || {
        let columns = how
            .added
            .fields()
            .iter()
            .map(|field| ScalarValue::try_from(field.data_type())?.to_array_of_size(1));
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let columns = columns.collect::<Result<_>>()?;
        Ok::<_, DataFusionError>(RecordBatch::try_new_with_options(
            how.added.clone(),
            columns,
            &options,
        )?)
    };
    for (row, answer) in answers.iter().enumerate() {
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
