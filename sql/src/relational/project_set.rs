//! Set-returning functions, evaluated for each row of their input.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, ready};

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{
    Expr as Logical, Extension, LogicalPlan, UserDefinedLogicalNodeCore,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures_util::Stream;

use super::apply::names_of;
use super::error::wrapped;
use super::function::eval_context;
use super::leaf::{as_they_come, columns_of};
use super::values::{Column, Values, taken};
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

/// A plan whose rows are joined with those of functions.
#[derive(Clone, Debug)]
pub(super) struct Expand {
    input: LogicalPlan,
    calls: Calls,
    args: Vec<Logical>,
    added: Arc<DFSchema>,
    schema: DFSchemaRef,
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
        let schema = Arc::new(input.schema().join(&added)?);
        let node = Self { input, calls, args, added: Arc::new(added), schema };
        Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
    }

    /// Returns the physical plan.
    pub(super) fn physical(
        &self,
        input: Arc<dyn ExecutionPlan>,
        args: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Arc<dyn ExecutionPlan> {
        let schema: SchemaRef = Arc::new(self.schema.as_arrow().clone());
        let properties = as_they_come(schema, input.boundedness());
        let calls = self.calls.clone();
        Arc::new(ExpandExec { input, calls, args, properties })
    }

    pub(super) fn args(&self) -> &[Logical] {
        &self.args
    }
}

impl PartialEq for Expand {
    fn eq(&self, other: &Self) -> bool {
        self.input == other.input && self.calls == other.calls && self.args == other.args
    }
}

impl Eq for Expand {}

impl Hash for Expand {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.input.hash(state);
        self.calls.hash(state);
    }
}

impl PartialOrd for Expand {
    fn partial_cmp(&self, _: &Self) -> Option<Ordering> {
        None
    }
}

impl UserDefinedLogicalNodeCore for Expand {
    fn name(&self) -> &str {
        "Expand"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Logical> {
        self.args.clone()
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        names_of(&self.added)
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function Scan: {:?}", self.calls.functions)
    }

    fn with_exprs_and_inputs(
        &self,
        args: Vec<Logical>,
        mut inputs: Vec<LogicalPlan>,
    ) -> Result<Self> {
        let input = inputs.swap_remove(0);
        let schema = Arc::new(input.schema().join(&self.added)?);
        Ok(Self { input, args, schema, ..self.clone() })
    }
}

#[derive(Debug)]
struct ExpandExec {
    input: Arc<dyn ExecutionPlan>,
    calls: Calls,
    args: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for ExpandExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function Scan: {:?}", self.calls.functions)
    }
}

impl ExecutionPlan for ExpandExec {
    fn name(&self) -> &str {
        "Function Scan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(&self.args, f)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (calls, args) = (self.calls.clone(), self.args.clone());
        let properties = self.properties.clone();
        Ok(Arc::new(Self { input: children.swap_remove(0), calls, args, properties }))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(0, context.clone())?;
        let (calls, args, schema) = (self.calls.clone(), self.args.clone(), self.schema());
        Ok(Box::pin(Expanded { input, calls, args, context, schema }))
    }
}

struct Expanded {
    input: SendableRecordBatchStream,
    calls: Calls,
    args: Vec<Arc<dyn PhysicalExpr>>,
    context: Arc<TaskContext>,
    schema: SchemaRef,
}

impl RecordBatchStream for Expanded {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
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
        let arrays = self.args.iter().map(|arg| arg.evaluate(batch)?.into_array(count));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let args: Vec<Values<'_>> = (self.calls.inputs().zip(&arrays))
            .map(|(base, array)| Values::new(*base, array))
            .collect();
        let env = &eval_context(self.context.session_config().options())?.env;
        let env = env.lock().unwrap_or_else(PoisonError::into_inner);
        let mut columns: Vec<Column> =
            self.calls.added().iter().map(|base| Column::new(*base)).collect();
        let mut places = Vec::new();
        for row in 0..count {
            let values =
                args.iter().map(|arg| arg.get(row)).collect::<std::result::Result<Vec<_>, _>>();
            let rows = values.and_then(|values| self.calls.rows(&values, &env));
            let mut rows = rows.map_err(wrapped)?;
            if self.calls.is_numbered {
                let number =
                    |(at, row): (usize, &mut Vec<Datum>)| row.push(Datum::Int(at as i64 + 1));
                rows.iter_mut().enumerate().for_each(number);
            }
            if rows.is_empty() && self.calls.is_kept {
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
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), all, &options)?)
    }
}
