//! Recursive queries, each of whose turns lets its statement look whether it must end.
//!
//! DataFusion makes turn after turn without a pause where each of them finds rows and none is
//! wanted yet: a statement would not end however long it takes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures_util::Stream;

use super::Physical;

/// Puts [`Turn`] over what each recursive query does again and again.
#[derive(Debug)]
pub(super) struct Turns;

impl PhysicalOptimizerRule for Turns {
    fn optimize(&self, plan: Physical, _: &ConfigOptions) -> Result<Physical> {
        let plan = plan.transform_up(|node| {
            let Some(recursive) = node.downcast_ref::<RecursiveQueryExec>() else {
                return Ok(Transformed::no(node));
            };
            let turn = Arc::new(Turn { input: recursive.recursive_term().clone() });
            let children = vec![recursive.static_term().clone(), turn as Physical];
            Ok(Transformed::yes(replace_children_if_necessary(node, children)?))
        });
        plan.data()
    }

    fn name(&self) -> &str {
        "turns"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Its input, which is begun with a pause.
#[derive(Debug)]
struct Turn {
    input: Physical,
}

impl DisplayAs for Turn {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.input.fmt_as(kind, f)
    }
}

impl ExecutionPlan for Turn {
    fn name(&self) -> &str {
        self.input.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.input.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Physical> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Physical>) -> Result<Physical> {
        Ok(Arc::new(Self { input: children.swap_remove(0) }))
    }

    fn execute(&self, part: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(part, context)?;
        Ok(Box::pin(Begun { input, has_paused: false }))
    }
}

/// A stream that is not ready when it is asked first.
struct Begun {
    input: SendableRecordBatchStream,
    has_paused: bool,
}

impl Stream for Begun {
    type Item = Result<RecordBatch>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<RecordBatch>>> {
        if std::mem::replace(&mut self.has_paused, true) {
            return self.input.as_mut().poll_next(cx);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl RecordBatchStream for Begun {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}
