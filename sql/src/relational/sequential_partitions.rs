//! Sequential execution of a plan's partitions.
//!
//! DataFusion reads the inputs of a UNION in parallel, in separate tasks. Pangea has no such tasks:
//! at the places where partitions are merged, they are read one after the other.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures_util::Stream;

/// Puts [`SequentialPartitionsExec`] over each UNION. It runs before the rules that plan for
/// several partitions, for example aggregates in two steps, because our aggregates have no partial
/// state.
#[derive(Debug)]
pub(super) struct UnionsInSeries;

impl PhysicalOptimizerRule for UnionsInSeries {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(|node| {
            Ok(match node.downcast_ref::<UnionExec>() {
                Some(_) => {
                    Transformed::yes(Arc::new(SequentialPartitionsExec::new(node, None)) as _)
                }
                None => Transformed::no(node),
            })
        });
        plan.data()
    }

    fn name(&self) -> &str {
        "unions_in_series"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Puts [`SequentialPartitionsExec`] at the remaining places where partitions are merged.
#[derive(Debug)]
pub(super) struct InSeries;

impl PhysicalOptimizerRule for InSeries {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan
            .transform_up(|node| {
                let Some(meeting) = node.downcast_ref::<CoalescePartitionsExec>() else {
                    return Ok(Transformed::no(node));
                };
                let input = meeting.input().clone();
                Ok(Transformed::yes(
                    Arc::new(SequentialPartitionsExec::new(input, meeting.fetch())) as _,
                ))
            })
            .data()?;
        Ok(match plan.output_partitioning().partition_count() {
            1 => plan,
            _ => Arc::new(SequentialPartitionsExec::new(plan, None)),
        })
    }

    fn name(&self) -> &str {
        "in_series"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Reads the partitions of its input in order.
#[derive(Debug)]
struct SequentialPartitionsExec {
    input: Arc<dyn ExecutionPlan>,
    fetch: Option<usize>,
    properties: Arc<PlanProperties>,
}

impl SequentialPartitionsExec {
    fn new(input: Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(1),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self { input, fetch, properties: Arc::new(properties) }
    }
}

impl DisplayAs for SequentialPartitionsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Serial")
    }
}

impl ExecutionPlan for SequentialPartitionsExec {
    fn name(&self) -> &str {
        "Serial"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0), self.fetch)))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let count = self.input.output_partitioning().partition_count();
        let (input, schema) = (self.input.clone(), self.schema());
        let left = self.fetch.unwrap_or(usize::MAX);
        Ok(Box::pin(InOrder { input, context, next: 0, count, current: None, left, schema }))
    }
}

struct InOrder {
    input: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    next: usize,
    count: usize,
    current: Option<SendableRecordBatchStream>,
    /// The number of rows still to be returned.
    left: usize,
    schema: SchemaRef,
}

impl Stream for InOrder {
    type Item = Result<RecordBatch>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<RecordBatch>>> {
        loop {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            if let Some(current) = &mut self.current {
                match current.as_mut().poll_next(cx) {
                    Poll::Ready(None) => self.current = None,
                    Poll::Ready(Some(Ok(batch))) => {
                        let batch = batch.slice(0, batch.num_rows().min(self.left));
                        self.left -= batch.num_rows();
                        return Poll::Ready(Some(Ok(batch)));
                    }
                    other => return other,
                }
            } else if self.next == self.count {
                return Poll::Ready(None);
            } else {
                let (input, context, next) = (self.input.clone(), self.context.clone(), self.next);
                self.current = Some(input.execute(next, context)?);
                self.next += 1;
            }
        }
    }
}

impl RecordBatchStream for InOrder {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
