//! Pauses in which a statement checks whether it must end, for steps in which DataFusion makes
//! none.
//!
//! ```text
//!   recursive query    iteration after iteration, while each finds rows and none is needed yet
//!   nested loop        all rows on the left for each batch of those on the right
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::{DisplayFormatType, PlanProperties};
use futures_util::Stream;

use super::unary::{Rule, Run, Step, Unary};
use crate::data_fusion::Physical;

/// The maximum number of rows joined with all others between two pauses.
const LOOP_ROWS: usize = 1_024;

/// Puts [`Yields`] over the inputs that recursive queries and nested loops process repeatedly.
pub(super) const INSERT_YIELDS: Rule = Rule("turns", |plan| {
    let plan = plan.transform_up(|node| {
        let (first, again, rows_max) = if let Some(it) = node.downcast_ref::<RecursiveQueryExec>() {
            (it.static_term(), it.recursive_term(), None)
        } else if let Some(it) = node.downcast_ref::<NestedLoopJoinExec>() {
            (it.left(), it.right(), Some(LOOP_ROWS))
        } else {
            return Ok(Transformed::no(node));
        };
        let children = vec![first.clone(), Unary::plan(again.clone(), Yields { rows_max })];
        Ok(Transformed::yes(replace_children_if_necessary(node, children)?))
    });
    plan.data()
});

/// Pauses before its input starts, and after each `rows_max` rows.
#[derive(Debug)]
struct Yields {
    rows_max: Option<usize>,
}

impl Step for Yields {
    const IS_HIDDEN: bool = true;

    fn name<'a>(&'a self, input: &'a Physical) -> &'a str {
        input.name()
    }

    fn show(
        &self,
        input: &Physical,
        kind: DisplayFormatType,
        f: &mut std::fmt::Formatter<'_>,
    ) -> std::fmt::Result {
        input.fmt_as(kind, f)
    }

    fn properties(&self, input: &Physical) -> Arc<PlanProperties> {
        input.properties().clone()
    }

    fn execute(self: Arc<Self>, run: Run<'_>) -> Result<SendableRecordBatchStream> {
        let Run { input, partition, context } = run;
        let input = input.execute(partition, context)?;
        Ok(Box::pin(Paused { input, has_paused: false, rows_max: self.rows_max, rest: None }))
    }
}

/// A stream that returns `Pending` at the first poll, and again after each `rows_max` rows.
struct Paused {
    input: SendableRecordBatchStream,
    has_paused: bool,
    rows_max: Option<usize>,
    /// The rest of a batch.
    rest: Option<RecordBatch>,
}

impl Paused {
    /// Returns the first rows of a batch, and stores the rest.
    fn first_of(&mut self, batch: RecordBatch) -> RecordBatch {
        let Some(most) = self.rows_max else { return batch };
        self.has_paused = false;
        if batch.num_rows() <= most {
            return batch;
        }
        self.rest = Some(batch.slice(most, batch.num_rows() - most));
        batch.slice(0, most)
    }
}

impl Stream for Paused {
    type Item = Result<RecordBatch>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<RecordBatch>>> {
        if !std::mem::replace(&mut self.has_paused, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = match self.rest.take() {
            Some(rest) => Some(Ok(rest)),
            None => ready!(self.input.as_mut().poll_next(cx)),
        };
        Poll::Ready(next.map(|batch| batch.map(|batch| self.first_of(batch))))
    }
}

impl RecordBatchStream for Paused {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}
