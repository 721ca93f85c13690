//! Plan steps instrumented with their time and row counts, for EXPLAIN ANALYZE.

use std::any::Any;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures_util::Stream;

use crate::data_fusion::Physical;
use crate::profile::Actual;

/// An instrumented step, with its measurements.
#[derive(Debug)]
struct Measured {
    inner: Physical,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    startup: Duration,
    total: Duration,
    rows: u64,
    loops: u64,
}

fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the plan with each step instrumented.
pub(super) fn measured(plan: Physical) -> Result<Physical> {
    plan.transform_up(|inner| {
        let taken = Arc::new(Mutex::new(Taken::default()));
        Ok(Transformed::yes(Arc::new(Measured { inner, taken }) as Physical))
    })
    .data()
}

/// Returns the measurements of a step if it is instrumented.
pub(crate) fn actual(plan: &Physical) -> Option<Actual> {
    let measured = (plan.as_ref() as &dyn Any).downcast_ref::<Measured>()?;
    let taken = locked(&measured.taken);
    // As in PostgreSQL, the mean over several loops is shown.
    let runs = taken.loops.max(1) as f64;
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3 / runs;
    let rows = (taken.rows as f64 / runs).round() as u64;
    let (startup_ms, total_ms) = (ms(taken.startup), ms(taken.total));
    Some(Actual { startup_ms, total_ms, rows, loops: taken.loops })
}

impl DisplayAs for Measured {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt_as(kind, f)
    }
}

impl ExecutionPlan for Measured {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.inner.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.inner.properties()
    }

    fn children(&self) -> Vec<&Physical> {
        self.inner.children()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(visit)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Physical>) -> Result<Physical> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Physical>,
        options: ReplaceChildrenOptions,
    ) -> Result<Physical> {
        let inner = self.inner.clone().replace_children(children, options)?;
        Ok(Arc::new(Self { inner, taken: self.taken.clone() }))
    }

    fn reset_state(self: Arc<Self>) -> Result<Physical> {
        let inner = self.inner.clone().reset_state()?;
        Ok(Arc::new(Self { inner, taken: self.taken.clone() }))
    }

    fn with_new_state(&self, state: Arc<dyn Any + Send + Sync>) -> Option<Physical> {
        let inner = self.inner.with_new_state(state)?;
        Some(Arc::new(Self { inner, taken: self.taken.clone() }))
    }

    fn execute(&self, at: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let started = Instant::now();
        let inner = self.inner.execute(at, context)?;
        let mut taken = locked(&self.taken);
        taken.loops += 1;
        taken.total += started.elapsed();
        drop(taken);
        let schema = inner.schema();
        let (taken, so_far) = (self.taken.clone(), started.elapsed());
        Ok(Box::pin(Timed { inner, schema, taken, since: None, so_far, has_row: false }))
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.inner.statistics_from_inputs(inputs, args)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.inner.child_stats_requests(partition)
    }
}

/// The rows of an instrumented step.
struct Timed {
    inner: SendableRecordBatchStream,
    schema: SchemaRef,
    taken: Arc<Mutex<Taken>>,
    /// The time of the pending request for rows. The time that a step waits for its input is
    /// included.
    since: Option<Instant>,
    so_far: Duration,
    has_row: bool,
}

impl Stream for Timed {
    type Item = Result<RecordBatch>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<RecordBatch>>> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let polled = self.inner.as_mut().poll_next(cx);
        let Poll::Ready(ready) = &polled else { return Poll::Pending };
        self.since = None;
        let took = since.elapsed();
        self.so_far += took;
        let is_first = !self.has_row;
        self.has_row = true;
        let so_far = self.so_far;
        let mut taken = locked(&self.taken);
        taken.total += took;
        if is_first {
            taken.startup += so_far;
        }
        if let Some(Ok(batch)) = ready {
            taken.rows += batch.num_rows() as u64;
        }
        drop(taken);
        polled
    }
}

impl RecordBatchStream for Timed {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
