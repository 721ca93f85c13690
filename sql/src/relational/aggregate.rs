//! Pangea's aggregates as DataFusion aggregates.

use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, Expr as Logical, GroupsAccumulator,
    Signature, Volatility, lit,
};

use xxhash_rust::xxh3::xxh3_64;

use super::error::wrapped;
use super::values::{Column, Values, arrow_type, is_ordered, scalar};
use crate::exec::aggregate::State;
use crate::expr::query::Aggregate;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::aggregate::AggregateKind;

/// Returns DataFusion's own aggregate if it computes the same result.
pub(super) fn native(aggregate: &Aggregate) -> Option<Arc<AggregateUDF>> {
    let base = aggregate.args.first().map(|(_, base)| *base);
    let is_plain = base.is_none_or(is_ordered);
    Some(match (aggregate.kind, base) {
        (AggregateKind::Count, _) if is_plain => count_udaf(),
        (AggregateKind::Sum, Some(SqlType::Int2 | SqlType::Int4)) => sum_udaf(),
        (AggregateKind::Min, _) if is_plain => min_udaf(),
        (AggregateKind::Max, _) if is_plain => max_udaf(),
        _ => return None,
    })
}

/// Returns the call of an aggregate. `args` are the columns of its arguments, followed by its sort
/// columns.
pub(super) fn call(
    aggregate: &Aggregate,
    args: Vec<Logical>,
    filter: Option<Logical>,
    base: SqlType,
) -> Logical {
    let filter = filter.map(Box::new);
    let (function, args, is_distinct) = match native(aggregate) {
        Some(function) => {
            let args = if args.is_empty() { vec![lit(1_i64)] } else { args };
            let width = aggregate.args.len().max(1);
            (function, args[..width].to_vec(), aggregate.is_distinct)
        }
        None => (folded(aggregate.clone(), base), args, false),
    };
    Logical::AggregateFunction(AggregateFunction::new_udf(
        function,
        args,
        is_distinct,
        filter,
        Vec::new(),
        None,
    ))
}

/// Wraps an aggregate as a DataFusion function. The function does not contain the filter, nor the
/// expressions of the arguments.
pub(super) fn folded(aggregate: Aggregate, base: SqlType) -> Arc<AggregateUDF> {
    let types = aggregate.args.iter().chain(&aggregate.order).map(|(_, base)| *base);
    let types: Vec<SqlType> = types.collect();
    let arrow: Vec<DataType> = types.iter().map(|base| arrow_type(*base)).collect();
    let signature = match arrow.is_empty() {
        true => Signature::nullary(Volatility::Immutable),
        false => Signature::exact(arrow, Volatility::Immutable),
    };
    let shown = format!("{aggregate:?} {base:?}");
    let name = format!("folded_{:016x}", xxh3_64(shown.as_bytes()));
    Arc::new(AggregateUDF::from(Folded { aggregate, types, base, name, signature }))
}

#[derive(Debug)]
pub(crate) struct Folded {
    pub aggregate: Aggregate,
    types: Vec<SqlType>,
    base: SqlType,
    /// A unique name: DataFusion takes functions with the same name as identical.
    name: String,
    signature: Signature,
}

impl PartialEq for Folded {
    fn eq(&self, other: &Self) -> bool {
        self.aggregate == other.aggregate && self.base == other.base
    }
}

impl Eq for Folded {}

impl Hash for Folded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl AggregateUDFImpl for Folded {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(arrow_type(self.base))
    }

    fn accumulator(&self, _: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let state = State::new();
        let (aggregate, types) = (self.aggregate.clone(), self.types.clone());
        Ok(Box::new(Folding { aggregate, types, base: self.base, state }))
    }

    fn create_sliding_accumulator(&self, _: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let (aggregate, types) = (self.aggregate.clone(), self.types.clone());
        Ok(Box::new(Sliding { aggregate, types, base: self.base, rows: Vec::new(), gone: 0 }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        // There is only one partition, so no state is passed between partitions.
        let field = Field::new(format!("{}[value]", args.name), arrow_type(self.base), true);
        Ok(vec![field.into()])
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs<'_>) -> bool {
        self.aggregate.is_plain()
    }

    fn create_groups_accumulator(
        &self,
        _: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let (aggregate, types) = (self.aggregate.clone(), self.types.clone());
        Ok(Box::new(Groups { aggregate, types, base: self.base, states: Vec::new() }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// Returns the rows of a batch of arguments.
fn rows(types: &[SqlType], values: &[ArrayRef]) -> Result<Vec<Vec<Datum>>> {
    let columns: Vec<Values<'_>> =
        types.iter().zip(values).map(|(base, array)| Values::new(*base, array)).collect();
    let count = values.first().map_or(0, |array| array.len());
    let row = |at: usize| columns.iter().map(|column| column.get(at).map_err(wrapped)).collect();
    (0..count).map(row).collect()
}

fn one_partition<T>() -> Result<T> {
    Err(DataFusionError::Internal("an aggregate has one partition".to_owned()))
}

/// A running aggregate over rows that are only added.
#[derive(Debug)]
struct Folding {
    aggregate: Aggregate,
    types: Vec<SqlType>,
    base: SqlType,
    state: State,
}

impl Accumulator for Folding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        if let ([base], [array]) = (&self.types[..], values)
            && self.aggregate.is_plain()
        {
            let column = Values::new(*base, array);
            return (0..array.len())
                .try_for_each(|row| {
                    let datum = column.get(row)?;
                    self.state.fold_one(&self.aggregate, &datum)
                })
                .map_err(wrapped);
        }
        for row in rows(&self.types, values)? {
            self.state.fold(&self.aggregate, row).map_err(wrapped)?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let datum = self.state.clone().finish(&self.aggregate).map_err(wrapped)?;
        Ok(scalar(self.base, &datum))
    }

    fn size(&self) -> usize {
        mem::size_of_val(self) + self.state.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        one_partition()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        one_partition()
    }
}

/// Running plain aggregates of many groups.
#[derive(Debug)]
struct Groups {
    aggregate: Aggregate,
    types: Vec<SqlType>,
    base: SqlType,
    states: Vec<State>,
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.states.resize_with(count, State::new);
        let column = self.types.first().zip(values.first());
        let column = column.map(|(base, array)| Values::new(*base, array));
        let is_wanted = |row: usize| filter.is_none_or(|it| it.is_valid(row) && it.value(row));
        for (row, group) in groups.iter().enumerate().filter(|(row, _)| is_wanted(*row)) {
            let state = &mut self.states[*group];
            match &column {
                None => state.add_count(1),
                Some(column) => {
                    let datum = column.get(row).map_err(wrapped)?;
                    state.fold_one(&self.aggregate, &datum).map_err(wrapped)?;
                }
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let mut column = Column::new(self.base);
        for state in emit_to.take_needed(&mut self.states) {
            column.push(&state.finish(&self.aggregate).map_err(wrapped)?);
        }
        Ok(column.finish())
    }

    fn state(&mut self, _: EmitTo) -> Result<Vec<ArrayRef>> {
        one_partition()
    }

    fn merge_batch(&mut self, _: &[ArrayRef], _: &[usize], _: usize) -> Result<()> {
        one_partition()
    }

    fn convert_to_state(&self, _: &[ArrayRef], _: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        one_partition()
    }

    fn size(&self) -> usize {
        mem::size_of_val(self) + self.states.capacity() * mem::size_of::<State>()
    }
}

/// A running aggregate over a window frame: rows are added and removed.
#[derive(Debug)]
struct Sliding {
    aggregate: Aggregate,
    types: Vec<SqlType>,
    base: SqlType,
    rows: Vec<Vec<Datum>>,
    /// The number of rows that have left the frame.
    gone: usize,
}

impl Accumulator for Sliding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.rows.extend(rows(&self.types, values)?);
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.gone += values.first().map_or(0, |array| array.len());
        if self.gone * 2 > self.rows.len() {
            self.rows.drain(..mem::take(&mut self.gone));
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut state = State::new();
        for row in &self.rows[self.gone..] {
            state.fold(&self.aggregate, row.clone()).map_err(wrapped)?;
        }
        let datum = state.finish(&self.aggregate).map_err(wrapped)?;
        Ok(scalar(self.base, &datum))
    }

    fn size(&self) -> usize {
        let rows = self.rows.iter().flatten();
        mem::size_of_val(self) + rows.map(Datum::size).sum::<usize>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        one_partition()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        one_partition()
    }
}
