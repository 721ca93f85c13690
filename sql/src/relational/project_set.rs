//! Set-returning functions, evaluated for each row of their input.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, ready};

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr as Logical, LogicalPlan};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlanProperties, PlanProperties};
use futures_util::Stream;

use super::error::wrapped;
use super::function::eval_context;
use super::leaf::{as_they_come, columns_of};
use super::unary::{AddColumns, Adding, Run, Step, Unary};
use super::values::{Column, Values, taken};
use crate::data_fusion::Physical;
use crate::error::SqlError;
use crate::expr::Env;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::set_function::SetFunction;

/// Set-returning functions that are called together for a row. Their rows are combined by position;
/// NULLs fill the columns of a function that returns fewer rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Calls {
    /// Each function with the types of its arguments and those of its columns.
    pub functions: Vec<(SetFunction, Vec<SqlType>, Vec<SqlType>)>,
    /// WITH ORDINALITY: whether the row number is a column after those of the functions.
    pub is_numbered: bool,
    /// Whether a row for which the functions return no row is retained, extended by NULLs.
    pub is_kept: bool,
}

impl Calls {
    /// Returns the types of the added columns.
    fn added(&self) -> Vec<SqlType> {
        let own = self.functions.iter().flat_map(|(.., types)| types.iter().copied());
        own.chain(self.is_numbered.then_some(SqlType::Int8)).collect()
    }

    /// Returns the types of all arguments.
    fn inputs(&self) -> impl Iterator<Item = &SqlType> {
        self.functions.iter().flat_map(|(_, inputs, _)| inputs)
    }

    /// Returns the rows for some arguments. `args` contains the arguments of all functions in
    /// order.
    fn rows(&self, args: &[Datum], env: &Env) -> std::result::Result<Vec<Vec<Datum>>, SqlError> {
        let mut rows: Vec<Vec<Datum>> = Vec::new();
        let (mut args, mut width) = (args, 0);
        for (function, inputs, types) in &self.functions {
            let (own, others) = args.split_at(inputs.len());
            args = others;
            let found = function.rows(own, env)?;
            if found.len() > rows.len() {
                rows.resize(found.len(), vec![Datum::Null; width]);
            }
            width += types.len();
            rows.iter_mut().zip(found).for_each(|(row, own)| row.extend(own));
            rows.iter_mut().for_each(|row| row.resize(width, Datum::Null));
        }
        Ok(rows)
    }
}

/// Functions whose rows are joined with those of the input.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expand {
    calls: Calls,
    args: Vec<Logical>,
}

impl Expand {
    /// Makes the plan. The new columns are those of the relation with this number.
    pub(super) fn plan(
        input: LogicalPlan,
        calls: Calls,
        args: Vec<Logical>,
        relation: u32,
    ) -> Result<LogicalPlan> {
        let added = columns_of(&calls.added(), relation)?;
        AddColumns::plan(input, Self { calls, args }, added)
    }

    /// Returns the physical plan.
    pub(super) fn physical(
        &self,
        input: Physical,
        args: Vec<Arc<dyn PhysicalExpr>>,
        schema: &Schema,
    ) -> Physical {
        let (calls, schema) = (self.calls.clone(), Arc::new(schema.clone()));
        Unary::plan(input, Expansion { calls, args, schema })
    }

    pub(super) fn args(&self) -> &[Logical] {
        &self.args
    }
}

impl Hash for Expand {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.calls.hash(state);
    }
}

impl Adding for Expand {
    const NAME: &'static str = "Expand";

    fn exprs(&self) -> Vec<Logical> {
        self.args.clone()
    }

    fn with_exprs(&self, args: Vec<Logical>) -> Self {
        Self { args, calls: self.calls.clone() }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function Scan: {:?}", self.calls.functions)
    }
}

/// The physical form of [`Expand`].
#[derive(Debug)]
struct Expansion {
    calls: Calls,
    args: Vec<Arc<dyn PhysicalExpr>>,
    /// All columns.
    schema: SchemaRef,
}

impl Step for Expansion {
    fn name<'a>(&'a self, _: &'a Physical) -> &'a str {
        "Function Scan"
    }

    fn show(&self, _: &Physical, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function Scan: {:?}", self.calls.functions)
    }

    fn properties(&self, input: &Physical) -> Arc<PlanProperties> {
        as_they_come(self.schema.clone(), input.boundedness())
    }

    fn exprs(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.args.iter().collect()
    }

    fn execute(self: Arc<Self>, run: Run<'_>) -> Result<SendableRecordBatchStream> {
        let Run { input, context, .. } = run;
        let input = input.execute(0, context.clone())?;
        Ok(Box::pin(Expanded { input, context, own: self }))
    }
}

struct Expanded {
    input: SendableRecordBatchStream,
    context: Arc<TaskContext>,
    own: Arc<Expansion>,
}

impl RecordBatchStream for Expanded {
    fn schema(&self) -> SchemaRef {
        self.own.schema.clone()
    }
}

impl Stream for Expanded {
    type Item = Result<RecordBatch>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<RecordBatch>>> {
        let Some(batch) = ready!(self.input.as_mut().poll_next(cx)) else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(batch.and_then(|batch| self.expanded(&batch))))
    }
}

impl Expanded {
    fn expanded(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let count = batch.num_rows();
        let arrays = self.own.args.iter().map(|arg| arg.evaluate(batch)?.into_array(count));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let args: Vec<Values<'_>> = (self.own.calls.inputs().zip(&arrays))
            .map(|(base, array)| Values::new(*base, array))
            .collect();
        let env = &eval_context(self.context.session_config().options())?.env;
        let env = env.lock().unwrap_or_else(PoisonError::into_inner);
        let mut columns: Vec<Column> =
            self.own.calls.added().iter().map(|base| Column::new(*base)).collect();
        let mut places = Vec::new();
        for row in 0..count {
            let values =
                args.iter().map(|arg| arg.get(row)).collect::<std::result::Result<Vec<_>, _>>();
            let rows = values.and_then(|values| self.own.calls.rows(&values, &env));
            let mut rows = rows.map_err(wrapped)?;
            if self.own.calls.is_numbered {
                let number =
                    |(at, row): (usize, &mut Vec<Datum>)| row.push(Datum::Int(at as i64 + 1));
                rows.iter_mut().enumerate().for_each(number);
            }
            if rows.is_empty() && self.own.calls.is_kept {
                rows.push(vec![Datum::Null; columns.len()]);
            }
            for values in rows {
                places.push(row as u32);
                columns.iter_mut().zip(&values).for_each(|(column, value)| column.push(value));
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
        let own = taken(batch, places)?;
        let added = columns.iter_mut().map(Column::finish);
        let all = own.columns().iter().cloned().chain(added).collect();
        Ok(RecordBatch::try_new_with_options(self.own.schema.clone(), all, &options)?)
    }
}
