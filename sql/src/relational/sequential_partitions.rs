//! Sequential execution of a plan's partitions.
//!
//! DataFusion reads the inputs of a UNION in parallel, in separate tasks. Pangea has no such tasks:
//! at the places where partitions are merged, they are read one after the other.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use futures_util::Stream;

use super::unary::{Rule, Run, Step, Unary};
use crate::data_fusion::Physical;

/// Puts [`SequentialPartitions`] over each UNION. It runs before the rules that plan for several
/// partitions, for example aggregates in two steps, because our aggregates have no partial state.
pub(super) const UNIONS_IN_SERIES: Rule = Rule("unions_in_series", |plan| {
    plan.transform_up(|node| {
        Ok(match node.downcast_ref::<UnionExec>() {
            Some(_) => Transformed::yes(Unary::plan(node, SequentialPartitions { fetch: None })),
            None => Transformed::no(node),
        })
    })
    .data()
});

/// Puts [`SequentialPartitions`] at the remaining places where partitions are merged.
pub(super) const IN_SERIES: Rule = Rule("in_series", |plan| {
    let plan = plan
        .transform_up(|node| {
            let Some(meeting) = node.downcast_ref::<CoalescePartitionsExec>() else {
                return Ok(Transformed::no(node));
            };
            let step = SequentialPartitions { fetch: meeting.fetch() };
            Ok(Transformed::yes(Unary::plan(meeting.input().clone(), step)))
        })
        .data()?;
    Ok(match plan.output_partitioning().partition_count() {
        1 => plan,
        _ => Unary::plan(plan, SequentialPartitions { fetch: None }),
    })
});

/// Reads the partitions of its input in order.
#[derive(Debug)]
struct SequentialPartitions {
    fetch: Option<usize>,
}

impl Step for SequentialPartitions {
    fn name<'a>(&'a self, _: &'a Physical) -> &'a str {
        "Serial"
    }

    fn show(
        &self,
        _: &Physical,
        _: DisplayFormatType,
        f: &mut std::fmt::Formatter<'_>,
    ) -> std::fmt::Result {
        write!(f, "Serial")
    }

    fn properties(&self, input: &Physical) -> Arc<PlanProperties> {
        Arc::new(PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(1),
            input.pipeline_behavior(),
            input.boundedness(),
        ))
    }

    fn execute(self: Arc<Self>, run: Run<'_>) -> Result<SendableRecordBatchStream> {
        let Run { input, context, .. } = run;
        let count = input.output_partitioning().partition_count();
        let (input, schema) = (input.clone(), input.schema());
        let left = self.fetch.unwrap_or(usize::MAX);
        Ok(Box::pin(InOrder { input, context, next: 0, count, current: None, left, schema }))
    }
}

struct InOrder {
    input: Physical,
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
