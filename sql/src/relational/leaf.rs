//! The leaves of plans (tables, lists of rows, functions), and how DataFusion requests their rows.
//!
//! ```text
//!   a stream of DataFusion's --asks--> Desk <--serves-- the statement, which has the context
//!        ^------------------ some rows, and it is woken ----------|
//! ```

mod parallel_scan;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use async_trait::async_trait;
use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, Statistics, config::ConfigOptions};
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{
    Expr as Logical, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown, TableType,
};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, EmissionType, apply_expression_roots,
};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use futures_util::Stream;
use pangea_core::ids::TableId;
use pangea_core::txn::Context;

use super::chunk::{Chunk, ROWS_MAX};
use super::error::wrapped;
use super::filter::{equal_to, ours, wanted};
use super::run::PendingReads;
use super::values::{Column, arrow_type};
use crate::access::Access;
use crate::access::path::Paths;
use crate::catalog::Sequence;
use crate::error::{Failure, SqlError};
use crate::exec::Cursor;
use crate::exec::parallel_scan::{Found, ParallelScan};
use crate::expr::{Env, Expr};
use crate::rows::Columns;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::{ColumnId, relation_name};
use crate::vocabulary::system::SystemTable;

/// The number of rows in the first batch: a small LIMIT may need no more.
const ROWS_FIRST: usize = 64;

/// The estimated number of rows in a system table.
const SYSTEM_ROWS: usize = 500;
/// The estimated number of rows that a step of the statement returns.
const GIVEN_ROWS: usize = 100;

/// The source of rows.
#[derive(Clone, Debug)]
pub(crate) enum Leaf {
    Table(Paths),
    /// A list of rows.
    Rows(Vec<Vec<Expr>>),
    /// A system table.
    System(&'static SystemTable),
    /// A sequence and its name.
    Sequence(String, Sequence),
    /// The rows that a step of the statement returned, as the relation with this number.
    Given(u32),
}

/// A relation of a query.
#[derive(Clone)]
struct Relation {
    leaf: Arc<Leaf>,
    types: Arc<[SqlType]>,
    schema: SchemaRef,
}

impl fmt::Debug for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.leaf {
            Leaf::Table(paths) => write!(f, "{}", paths.table.name),
            Leaf::Rows(rows) => write!(f, "{} rows", rows.len()),
            Leaf::System(table) => f.write_str(&table.name),
            Leaf::Sequence(name, _) => f.write_str(name),
            Leaf::Given(relation) => write!(f, "rows of step {relation}"),
        }
    }
}

/// Returns the columns of the relation with this number.
pub(super) fn schema_of(types: &[SqlType], relation: u32) -> SchemaRef {
    let field = |(at, base): (usize, &SqlType)| {
        let name = ColumnId { relation, column: at as u32 }.physical_name();
        Field::new(name, arrow_type(*base), true)
    };
    Arc::new(Schema::new(types.iter().enumerate().map(field).collect::<Vec<_>>()))
}

/// Returns the same columns for DataFusion's logical plans.
pub(super) fn columns_of(types: &[SqlType], relation: u32) -> Result<DFSchema> {
    DFSchema::try_from_qualified_schema(relation_name(relation), &schema_of(types, relation))
}

/// The properties of a plan with one partition and no declared order.
pub(super) fn as_they_come(schema: SchemaRef, boundedness: Boundedness) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        boundedness,
    ))
}

/// Returns the plan that reads a relation.
pub(crate) fn scan(leaf: Leaf, types: &[SqlType], relation: u32) -> LogicalPlan {
    let schema = schema_of(types, relation);
    let provider = Relation { leaf: Arc::new(leaf), types: types.into(), schema };
    let source = provider_as_source(Arc::new(provider));
    LogicalPlanBuilder::scan(relation_name(relation), source, None)
        .and_then(LogicalPlanBuilder::build)
        .expect("a relation has distinct columns")
}

/// Returns the table that a scan reads, if it reads a table.
pub(super) fn table_of(provider: &dyn TableProvider) -> Option<TableId> {
    match &*(provider as &dyn Any).downcast_ref::<Relation>()?.leaf {
        Leaf::Table(paths) => Some(paths.table.id),
        _ => None,
    }
}

#[async_trait]
impl TableProvider for Relation {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Logical],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all = || (0..self.types.len()).collect();
        let projection: Vec<usize> = projection.cloned().unwrap_or_else(all);
        let schema = Arc::new(self.schema.project(&projection)?);
        let filter =
            filters.iter().filter_map(|filter| ours(filter, &self.types)).reduce(Expr::and);
        let pending_reads = PendingReads::of(session.config_options())?;
        let estimate = estimate(&self.leaf, filter.as_ref(), &pending_reads);
        let properties = as_they_come(schema.clone(), Boundedness::Bounded);
        Ok(Arc::new(Scan {
            relation: self.clone(),
            projection: projection.into(),
            schema,
            filter,
            limit,
            estimate,
            dynamic: Vec::new(),
            is_any_order: false,
            led_by: Arc::default(),
            properties,
        }))
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Logical],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        use TableProviderFilterPushDown::{Exact, Unsupported};
        let support = |filter: &&Logical| match ours(filter, &self.types) {
            Some(_) => Exact,
            None => Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }
}

/// Estimates the number of rows, so that the smaller side of a join is read first.
fn estimate(leaf: &Leaf, filter: Option<&Expr>, pending_reads: &PendingReads) -> usize {
    match leaf {
        Leaf::Table(paths) => {
            let rows = pending_reads.size(paths.table.id);
            let access = Access::new(paths, filter);
            access.estimate(rows, filter.is_some())
        }
        Leaf::Rows(rows) => rows.len(),
        Leaf::System(_) => SYSTEM_ROWS,
        Leaf::Sequence(..) => 1,
        Leaf::Given(_) => GIVEN_ROWS,
    }
}

/// The scan of a relation, as a step of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    relation: Relation,
    projection: Arc<[usize]>,
    schema: SchemaRef,
    filter: Option<Expr>,
    limit: Option<usize>,
    estimate: usize,
    /// Filters of joins, whose values are known before this relation is read.
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    /// Whether its rows may come in any order.
    is_any_order: bool,
    /// The key or index that a dynamic filter made it use.
    led_by: Arc<OnceLock<String>>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scan: {:?}, about {} rows", self.relation, self.estimate)?;
        if !self.dynamic.is_empty() {
            write!(f, ", filtered by joins")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &str {
        "Scan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        // A join builds its dynamic filter only if it finds the filter in a plan below it.
        apply_expression_roots(&self.dynamic, visit)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let pending_reads = PendingReads::of(context.session_config().options())?;
        let task = Task {
            scan: self.clone(),
            state: State::New,
            ready: VecDeque::new(),
            waker: None,
            error: None,
        };
        Ok(Box::pin(Rows {
            task: Arc::new(Mutex::new(task)),
            pending_reads,
            schema: self.schema.clone(),
        }))
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema);
        statistics.num_rows = Precision::Inexact(self.estimate);
        statistics.total_byte_size = Precision::Inexact(self.estimate * 16 * self.projection.len());
        Ok(Arc::new(statistics))
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        pushed: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let is_dynamic = |filter: &Arc<dyn PhysicalExpr>| {
            phase == FilterPushdownPhase::Post
                && filter.downcast_ref::<DynamicFilterPhysicalExpr>().is_some()
        };
        let filters: Vec<_> = pushed.parent_filters.into_iter().map(|it| it.filter).collect();
        // The join checks the rows that pass the filter again.
        let answers = vec![PushedDown::No; filters.len()];
        let dynamic: Vec<_> = filters.into_iter().filter(is_dynamic).collect();
        let answer = FilterPushdownPropagation::with_parent_pushdown_result(answers);
        if dynamic.is_empty() {
            return Ok(answer);
        }
        let dynamic = [&self.dynamic[..], &dynamic[..]].concat();
        Ok(answer.with_updated_node(Arc::new(Self { dynamic, ..self.clone() })))
    }
}

/// The rows of one scan.
struct Rows {
    task: Arc<Mutex<Task>>,
    pending_reads: Arc<PendingReads>,
    schema: SchemaRef,
}

/// The state of a scan: its position, and the batches that are ready.
pub(super) struct Task {
    scan: Scan,
    state: State,
    ready: VecDeque<RecordBatch>,
    error: Option<SqlError>,
    waker: Option<Waker>,
}

enum State {
    New,
    Table {
        chunk: Box<Chunk>,
        cursor: Box<Cursor>,
        most: usize,
    },
    /// A full scan of a table in any order: its partitions, the next one, and the workers' chunks.
    Parallel {
        whole: ParallelScan,
        next: usize,
        chunks: Vec<Chunk>,
    },
    /// Rows of a table that have already passed the condition.
    Left {
        found: Found,
        chunk: Box<Chunk>,
    },
    /// Materialized rows, and the number of rows already returned.
    Values(Arc<Vec<Vec<Datum>>>, usize),
    Done,
}

fn locked(task: &Mutex<Task>) -> MutexGuard<'_, Task> {
    task.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<RecordBatch>>> {
        let mut task = locked(&self.task);
        if let Some(batch) = task.ready.pop_front() {
            return Poll::Ready(Some(Ok(batch)));
        }
        if let Some(error) = task.error.take() {
            return Poll::Ready(Some(Err(wrapped(error))));
        }
        if let State::Done = task.state {
            return Poll::Ready(None);
        }
        task.waker = Some(cx.waker().clone());
        drop(task);
        self.pending_reads.ask(self.task.clone());
        Poll::Pending
    }
}

impl RecordBatchStream for Rows {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// Reads the rows that a stream waits for, and wakes it.
pub(super) fn serve(task: &Mutex<Task>, env: &Env, cx: &mut dyn Context) -> Result<(), Failure> {
    let mut task = locked(task);
    match task.fill(env, cx) {
        Ok(()) => {}
        Err(Failure::Sql(error)) => {
            task.error = Some(error);
            task.state = State::Done;
        }
        Err(interrupted) => return Err(interrupted),
    }
    if let Some(waker) = task.waker.take() {
        waker.wake();
    }
    Ok(())
}

impl Task {
    fn fill(&mut self, env: &Env, cx: &mut dyn Context) -> Result<(), Failure> {
        if let State::New = self.state {
            self.state = self.begin(env, cx)?;
        }
        let left = self.scan.limit.unwrap_or(usize::MAX);
        let (mut count, mut is_done) = (0, false);
        match &mut self.state {
            State::Table { chunk, cursor, most } => {
                is_done = cursor.visit((*most).min(left), cx, &mut |key, value| {
                    chunk.push(key, value, env)?;
                    Ok(ControlFlow::Continue(()))
                })?;
                *most = (*most * 2).min(ROWS_MAX);
                self.ready.extend(chunk.take());
            }
            State::Parallel { whole, next, chunks } => {
                let (upto, working) = (whole.upto(*next), std::mem::take(chunks));
                let on_row = &|chunk: &mut Chunk, env: &Env, key: &[u8], value: &[u8]| {
                    chunk.push(key, value, env)
                };
                *chunks = whole.round_of(*next..upto, working, env, cx, on_row)?;
                self.ready.extend(chunks.iter_mut().flat_map(Chunk::take));
                *next = upto;
                is_done = upto == whole.count();
            }
            State::Left { found, chunk } => {
                for (key, value) in found.rows.by_ref().take(ROWS_MAX) {
                    chunk.push(&key, &value, env)?;
                }
                self.ready.extend(chunk.take());
                is_done = found.rows.len() == 0;
            }
            State::Values(rows, given) => {
                let projection = &self.scan.projection;
                let types = &self.scan.relation.types;
                let mut columns: Vec<Column> =
                    projection.iter().map(|at| Column::new(types[*at])).collect();
                let some = (rows.len() - *given).min(ROWS_MAX).min(left);
                for row in &rows[*given..*given + some] {
                    let is_left = match &self.scan.filter {
                        Some(filter) => filter.is_true(row, env)?,
                        None => true,
                    };
                    if is_left {
                        let pairs = projection.iter().zip(&mut columns);
                        pairs.for_each(|(at, column)| column.push(&row[*at]));
                        count += 1;
                    }
                }
                *given += some;
                is_done = *given == rows.len();
                if count > 0 {
                    let arrays = columns.iter_mut().map(Column::finish).collect();
                    let options = RecordBatchOptions::new().with_row_count(Some(count));
                    let schema = self.scan.schema.clone();
                    let batch = RecordBatch::try_new_with_options(schema, arrays, &options);
                    self.ready.push_back(batch.expect("columns are as the schema has them"));
                }
            }
            State::New | State::Done => {}
        }
        if let Some(limit) = &mut self.scan.limit {
            *limit -= self.ready.iter().map(RecordBatch::num_rows).sum::<usize>();
            is_done |= *limit == 0;
        }
        if is_done {
            self.state = State::Done;
        }
        Ok(())
    }

    fn begin(&self, env: &Env, cx: &mut dyn Context) -> Result<State, Failure> {
        let scan = &self.scan;
        match &*scan.relation.leaf {
            Leaf::Table(paths) => {
                let filter = scan.filter.clone();
                let cursor = match scan.leads(paths) {
                    Some(leads) => {
                        let conditions = leads.into_iter().map(|lead| match &filter {
                            Some(filter) => filter.clone().and(lead),
                            None => lead,
                        });
                        let accesses = conditions.map(|it| scan.access(paths, Some(&it)));
                        let accesses: Vec<Access> = accesses.collect();
                        let first = accesses.first().map(|access| access.path.name.clone());
                        let _ = scan.led_by.set(first.unwrap_or_default());
                        Cursor::of_all(&accesses, env)?
                    }
                    None => {
                        let access = scan.access(paths, filter.as_ref());
                        match scan.whole(paths, &access, env, cx)? {
                            Some(state) => return Ok(state),
                            None => Some(Cursor::new(&access, env)?),
                        }
                    }
                };
                Ok(match cursor {
                    Some(cursor) => {
                        let chunk = Box::new(Chunk::new(scan.layout(paths, filter)));
                        State::Table { chunk, cursor: Box::new(cursor), most: ROWS_FIRST }
                    }
                    None => State::Done,
                })
            }
            Leaf::Rows(rows) => {
                let row = |exprs: &Vec<Expr>| {
                    exprs.iter().map(|expr| expr.eval(&[], env)).collect::<Result<Vec<_>, _>>()
                };
                let rows = rows.iter().map(row).collect::<Result<_, _>>()?;
                Ok(State::Values(Arc::new(rows), 0))
            }
            Leaf::System(table) => Ok(State::Values(env.catalog()?.rows(table, env), 0)),
            Leaf::Sequence(_, sequence) => Ok(State::Values(Arc::new(vec![sequence.row(cx)?]), 0)),
            Leaf::Given(relation) => Ok(State::Values(env.given(*relation), 0)),
        }
    }
}

impl Scan {
    /// Returns the access path of a table for a condition, reading only the needed columns.
    fn access(&self, paths: &Paths, condition: Option<&Expr>) -> Access {
        let filtered = self.filter.iter().flat_map(Expr::columns);
        let wanted = Columns::these(self.projection.iter().copied().chain(filtered));
        Access { wanted, ..Access::new(paths, condition) }
    }

    /// Returns the same scan, whose rows may come in any order.
    pub(super) fn in_any_order(&self) -> Self {
        Self { is_any_order: true, ..self.clone() }
    }

    /// Returns the source of its rows.
    pub(crate) fn leaf(&self) -> &Leaf {
        &self.relation.leaf
    }

    /// Returns the types of all columns of its relation.
    pub(crate) fn types(&self) -> &[SqlType] {
        &self.relation.types
    }

    pub(crate) fn all_columns(&self) -> Vec<String> {
        self.relation.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Returns the number of its relation.
    pub(crate) fn number(&self) -> Option<u32> {
        let first = self.all_columns().into_iter().next()?;
        first.strip_prefix('r')?.split_once('c')?.0.parse().ok()
    }

    pub(crate) fn filter(&self) -> Option<&Expr> {
        self.filter.as_ref()
    }

    /// Whether joins may restrict its rows at run time.
    pub(crate) fn may_be_led(&self) -> bool {
        !self.dynamic.is_empty()
    }

    /// Returns the key or index that a dynamic filter made it use.
    pub(crate) fn led_by(&self) -> Option<&str> {
        self.led_by.get().map(String::as_str)
    }

    /// Returns the conditions that joins have set by now, if a key or an index serves them.
    fn leads(&self, paths: &Paths) -> Option<Vec<Expr>> {
        let types = &self.relation.types;
        self.dynamic.iter().find_map(|filter| {
            let filter = filter.downcast_ref::<DynamicFilterPhysicalExpr>()?.current().ok()?;
            let leads = equal_to(wanted(&filter, &self.projection, types)?, types);
            let is_served = |lead: &Expr| Access::new(paths, Some(lead)).is_selective();
            leads.iter().all(is_served).then_some(leads)
        })
    }
}

/// The error for a plan that was not made for a statement.
pub(super) fn without_statement() -> DataFusionError {
    DataFusionError::Internal("a plan without a statement".to_owned())
}
