//! Queries that run once for each row of another.
//!
//! DataFusion turns the subqueries that it can decorrelate into joins. The other subqueries, and
//! LATERAL, run for each row. Rows that agree in the values that the query refers to share one run.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{
    RecordBatchStream, SendableRecordBatchStream, SessionState, TaskContext,
};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr as Logical, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlanProperties, PlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use futures_util::Stream;

use super::leaf::{as_they_come, without_statement};
use super::project_set::Expand;
use super::run::planned;
use super::subquery_output::{Found, beside, with_column};
use super::unary::{AddColumns, Adding, Run, Step, Unary};
use super::volatile::Chance;
use crate::data_fusion::Physical;
use crate::expr::Comparison;
use crate::expr::query::SubqueryKind;
use crate::types::SqlType;

/// The maximum number of answers retained for reuse.
const ANSWERS_MAX: usize = 10_000;

/// The use of the query's rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// A single value; NULL if the query returns no row.
    Value,
    /// Whether the query returns a row.
    Exists,
    /// The values of all rows as an array.
    Array { element: SqlType, base: SqlType },
    /// The comparison of operands with any row, or with all rows.
    Compared { op: Comparison, is_all: bool, types: Vec<SqlType> },
    /// The outer row joined with each row of the query. If the query returns no row and `is_kept`
    /// is set, the outer row is extended by NULLs.
    Rows { is_kept: bool },
}

/// A query that runs for each row of the input.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Apply {
    pub query: LogicalPlan,
    /// The outer columns that the query refers to, and their values for a row of the input.
    pub refs: Vec<(Column, Logical)>,
    /// The left side of a comparison.
    pub operands: Vec<Logical>,
    pub answer: Answer,
}

impl Apply {
    /// Plans a query that runs for each row of another. It adds the columns in `added`.
    pub(super) fn plan(
        input: LogicalPlan,
        query: LogicalPlan,
        refs: Vec<(Column, Logical)>,
        operands: Vec<Logical>,
        (answer, added): (Answer, DFSchema),
    ) -> Result<LogicalPlan> {
        AddColumns::plan(input, Self { query, refs, operands, answer }, added)
    }
}

impl Hash for Apply {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.refs.hash(state);
    }
}

impl Adding for Apply {
    const NAME: &'static str = "Apply";

    fn exprs(&self) -> Vec<Logical> {
        self.refs.iter().map(|(_, frame)| frame).chain(&self.operands).cloned().collect()
    }

    fn with_exprs(&self, mut exprs: Vec<Logical>) -> Self {
        let operands = exprs.split_off(self.refs.len());
        let names = self.refs.iter().map(|(name, _)| name.clone());
        Self { refs: names.zip(exprs).collect(), operands, ..self.clone() }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Apply: for each row, {:?}", self.answer)
    }
}

/// Applies `settle` to the subqueries within the queries of [`Apply`] steps that can be evaluated
/// beforehand.
pub(super) fn settle_inside(
    plan: Transformed<LogicalPlan>,
    settle: &mut dyn FnMut(Logical) -> Result<Logical>,
) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Extension(extension) = &plan.data else { return Ok(plan) };
    let Some(apply) = AddColumns::<Apply>::of(&*extension.node) else { return Ok(plan) };
    let query = apply.step.query.clone().transform_down(|node| {
        let node = node.map_expressions(|expr| {
            expr.transform_down(|expr| match expr {
                Logical::ScalarSubquery(_) | Logical::Exists(_) => {
                    Ok(Transformed::yes(settle(expr)?))
                }
                other => Ok(Transformed::no(other)),
            })
        })?;
        settle_inside(node, settle)
    })?;
    let step = Apply { query: query.data, ..apply.step.clone() };
    Ok(Transformed::yes(apply.with_step(step)))
}

/// Substitutes values for the outer columns that the query refers to.
fn with_values(query: LogicalPlan, values: &[(Column, ScalarValue)]) -> Result<LogicalPlan> {
    let done = query.transform_down_with_subqueries(|node| {
        let node = node.map_expressions(|expr| {
            expr.transform_down(|expr| {
                Ok(match with_value(&expr, values) {
                    Some(value) => Transformed::yes(value),
                    None => Transformed::no(expr),
                })
            })
        })?;
        let LogicalPlan::Extension(extension) = &node.data else { return Ok(node) };
        let Some(apply) = AddColumns::<Apply>::of(&*extension.node) else { return Ok(node) };
        let query = with_values(apply.step.query.clone(), values)?;
        let step = Apply { query, ..apply.step.clone() };
        Ok(Transformed::yes(apply.with_step(step)))
    })?;
    // The outer values are known now, so the schemas of its expressions can be computed.
    done.data.recompute_schema()
}

fn with_value(expr: &Logical, values: &[(Column, ScalarValue)]) -> Option<Logical> {
    let Logical::OuterReferenceColumn(_, column) = expr else { return None };
    let found = values.iter().find(|(name, _)| name == column);
    found.map(|(_, value)| Logical::Literal(value.clone(), None))
}

/// Plans queries physically, including [`Apply`] steps.
#[derive(Debug)]
pub(super) struct Planner;

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Physical> {
        let own = session.as_any().downcast_ref::<SessionState>();
        let own = own.ok_or_else(without_statement)?;
        let of_apply = OfApply { session: own.clone() };
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(of_apply)]);
        planner.create_physical_plan(plan, session).await
    }
}

struct OfApply {
    session: SessionState,
}

#[async_trait]
impl ExtensionPlanner for OfApply {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Physical],
        session: &dyn Session,
        planning: &PhysicalPlanningContext,
    ) -> Result<Option<Physical>> {
        let schema = logical_inputs[0].schema();
        let physical =
            |value: &Logical| planner.create_physical_expr(value, schema, session, planning);
        let input = physical_inputs[0].clone();
        if let Some(expand) = AddColumns::<Expand>::of(node) {
            let args = expand.step.args().iter().map(physical).collect::<Result<_>>()?;
            return Ok(Some(expand.step.physical(input, args, expand.schema.as_arrow())));
        }
        if let Some(chance) = node.as_any().downcast_ref::<Chance>() {
            let condition = physical(&chance.condition)?;
            return Ok(Some(Arc::new(FilterExec::try_new(condition, input)?)));
        }
        let Some(node) = AddColumns::<Apply>::of(node) else { return Ok(None) };
        let apply = &node.step;
        let refs = apply.refs.iter().map(|(name, frame)| Ok((name.clone(), physical(frame)?)));
        let how = How {
            query: apply.query.clone(),
            refs: refs.collect::<Result<_>>()?,
            operands: apply.operands.iter().map(physical).collect::<Result<_>>()?,
            answer: apply.answer.clone(),
            added: Arc::new(node.added.as_arrow().clone()),
            schema: Arc::new(node.schema.as_arrow().clone()),
            session: self.session.clone(),
        };
        Ok(Some(Unary::plan(input, how)))
    }
}

/// The parameters of an [`Apply`] step.
pub(super) struct How {
    query: LogicalPlan,
    pub refs: Vec<(Column, Arc<dyn PhysicalExpr>)>,
    operands: Vec<Arc<dyn PhysicalExpr>>,
    pub answer: Answer,
    pub added: SchemaRef,
    /// All columns.
    schema: SchemaRef,
    session: SessionState,
}

impl fmt::Debug for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Apply: {:?}", self.answer)
    }
}

/// Whether a step joins rows with the rows of a query that runs for each.
pub(crate) fn joins_rows(plan: &Physical) -> bool {
    let apply = plan.downcast_ref::<Unary<How>>();
    apply.is_some_and(|apply| matches!(apply.step.answer, Answer::Rows { .. }))
}

impl Step for How {
    fn name<'a>(&'a self, _: &'a Physical) -> &'a str {
        Apply::NAME
    }

    fn show(&self, _: &Physical, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Apply: for each row, {:?}", self.answer)
    }

    fn properties(&self, input: &Physical) -> Arc<PlanProperties> {
        as_they_come(self.schema.clone(), input.boundedness())
    }

    fn exprs(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.refs.iter().map(|(_, expr)| expr).chain(&self.operands).collect()
    }

    fn execute(self: Arc<Self>, run: Run<'_>) -> Result<SendableRecordBatchStream> {
        let Run { input, context, .. } = run;
        let input = input.execute(0, context.clone())?;
        let known = Some(HashMap::new());
        Ok(Box::pin(Answers { input, how: self, context, known, working: None }))
    }
}

type Known = HashMap<Vec<ScalarValue>, Arc<Found>>;
type Working = Pin<Box<dyn Future<Output = Result<(RecordBatch, Known)>> + Send>>;

struct Answers {
    input: SendableRecordBatchStream,
    how: Arc<How>,
    context: Arc<TaskContext>,
    /// The answers by the values that the query was run for.
    known: Option<Known>,
    working: Option<Working>,
}

impl RecordBatchStream for Answers {
    fn schema(&self) -> SchemaRef {
        self.how.schema.clone()
    }
}

impl Stream for Answers {
    type Item = Result<RecordBatch>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<RecordBatch>>> {
        loop {
            if let Some(working) = &mut self.working {
                let done = ready!(working.as_mut().poll(cx));
                self.working = None;
                let (batch, known) = done?;
                self.known = Some(known);
                return Poll::Ready(Some(Ok(batch)));
            }
            let Some(batch) = ready!(self.input.as_mut().poll_next(cx)) else {
                return Poll::Ready(None);
            };
            let batch = batch?;
            let known = self.known.take().unwrap_or_default();
            let (how, context) = (self.how.clone(), self.context.clone());
            self.working = Some(Box::pin(answered(how, context, batch, known)));
        }
    }
}

/// Returns a batch extended by the answer for each of its rows.
async fn answered(
    how: Arc<How>,
    context: Arc<TaskContext>,
    batch: RecordBatch,
    mut known: Known,
) -> Result<(RecordBatch, Known)> {
    let count = batch.num_rows();
    let array = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(&batch)?.into_array(count);
    let refs = how.refs.iter().map(|(_, expr)| array(expr)).collect::<Result<Vec<_>>>()?;
    let operands = how.operands.iter().map(array).collect::<Result<Vec<_>>>()?;
    let mut answers = Vec::with_capacity(count);
    for row in 0..count {
        let values = refs.iter().map(|array| ScalarValue::try_from_array(array, row));
        let values = values.collect::<Result<Vec<_>>>()?;
        let answer = match known.get(&values) {
            Some(answer) => answer.clone(),
            None => {
                let answer = Arc::new(Found::new(run(&how, &context, &values).await?));
                if known.len() < ANSWERS_MAX {
                    known.insert(values, answer.clone());
                }
                answer
            }
        };
        answers.push(answer);
    }
    let batch = match how.answer {
        Answer::Rows { is_kept } => beside(&how, &how.schema, &batch, &answers, is_kept)?,
        _ => with_column(&how, &how.schema, &batch, &answers, &operands)?,
    };
    Ok((batch, known))
}

/// Runs the query for one set of values.
async fn run(how: &How, context: &Arc<TaskContext>, values: &[ScalarValue]) -> Result<RecordBatch> {
    let names = how.refs.iter().map(|(name, _)| name.clone());
    let values: Vec<_> = names.zip(values.iter().cloned()).collect();
    let query = with_values(how.query.clone(), &values)?;
    let plan = planned(&how.session, &query).await?;
    let mut stream = plan.execute(0, context.clone())?;
    let mut batches = Vec::new();
    while let Some(batch) = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        let batch = batch?;
        let is_enough = match how.answer {
            Answer::Exists => batch.num_rows() > 0,
            _ => false,
        };
        batches.push(batch);
        if is_enough {
            break;
        }
    }
    Ok(concat_batches(&plan.schema(), &batches)?)
}

/// Returns the answer that a kind of subquery needs.
pub(super) fn answer(kind: &SubqueryKind, types: &[SqlType]) -> Answer {
    match kind {
        SubqueryKind::Scalar => Answer::Value,
        SubqueryKind::Array(base) => Answer::Array { element: types[0], base: *base },
        SubqueryKind::Exists => Answer::Exists,
        SubqueryKind::Quantified { op, is_all, operands } => {
            let types = operands.iter().map(|(_, base)| *base).collect();
            Answer::Compared { op: *op, is_all: *is_all, types }
        }
    }
}
