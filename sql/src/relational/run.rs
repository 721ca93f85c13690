//! Execution of plans: from the logical plan to rows, without threads of its own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Wake, Waker};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionState, SessionStateBuilder};
use datafusion::logical_expr::{Expr as Logical, Limit, LogicalPlan, Subquery, lit};
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use pangea_core::ids::TableId;
use pangea_core::txn::{Context, SqlState};
use tokio::runtime::{self, Runtime};

use super::apply::{Planner, settle_inside};
use super::cooperative_yield::INSERT_YIELDS;
use super::error::{more_than_one_row, unwrapped, wrapped};
use super::function::{Computed, EvalContext};
use super::instrumented::measured;
use super::leaf::{Task, serve, table_of, without_statement};
use super::pool::Pool;
use super::sequential_partitions::{IN_SERIES, UNIONS_IN_SERIES};
use super::unordered_scan::ANY_ORDER;
use super::values::{Values, scalar};
use crate::data_fusion::Physical;
use crate::error::{Failure, SqlError, code};
use crate::exec::ROWS_BYTES_MAX;
use crate::expr::Env;
use crate::expr::query::Query;
use crate::result_memory::ResultReservation;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The maximum number of values from the smaller side of a join that are looked up one by one on
/// the other side.
const LOOKUPS_MAX: usize = 10_000;
/// The maximum bytes of those values.
const LOOKUP_BYTES_MAX: usize = 8 << 20;

/// The stack for running a plan. A plan that nests each relation within the last one is deep.
const STACK_BYTES: usize = 128 << 20;

/// The requests for rows that streams wait for.
#[derive(Debug, Default)]
pub(super) struct PendingReads {
    asked: Mutex<Vec<Arc<Mutex<Task>>>>,
    /// The estimated number of rows in each table.
    sizes: Mutex<BTreeMap<TableId, usize>>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PendingReads {
    /// Returns the desk of a run.
    pub(super) fn of(options: &ConfigOptions) -> Result<Arc<Self>> {
        let found = options.extensions.get::<EvalContext>();
        found.map(|it| it.pending_reads.clone()).ok_or_else(without_statement)
    }

    /// Registers a stream that waits for rows.
    pub(super) fn ask(&self, task: Arc<Mutex<Task>>) {
        locked(&self.asked).push(task);
    }

    /// Returns the estimated number of rows in a table.
    pub(super) fn size(&self, table: TableId) -> usize {
        locked(&self.sizes).get(&table).copied().unwrap_or(1_000)
    }

    /// Looks up the estimated sizes of a plan's tables.
    fn measure(&self, plan: &LogicalPlan, cx: &mut dyn Context) -> Result<()> {
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && let Ok(provider) = datafusion::datasource::source_as_provider(&scan.source)
                && let Some(table) = table_of(&*provider)
                && let Some(rows) = cx.estimate(table)
            {
                locked(&self.sizes).insert(table, rows);
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(())
    }
}

/// The configuration shared by all runs.
fn common() -> &'static SessionState {
    static COMMON: OnceLock<SessionState> = OnceLock::new();
    COMMON.get_or_init(|| {
        let mut config = SessionConfig::new().with_target_partitions(1);
        let options = config.options_mut();
        options.optimizer.hash_join_inlist_pushdown_max_size = LOOKUP_BYTES_MAX;
        options.optimizer.hash_join_inlist_pushdown_max_distinct_values = LOOKUPS_MAX;
        options.optimizer.enable_topk_dynamic_filter_pushdown = false;
        options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
        // A failing optimizer rule is a bug. It must not silently result in a slower plan.
        options.optimizer.skip_failed_rules = false;
        let rules = PhysicalOptimizer::default().rules;
        // No other task waits for this thread, so plans need not yield. Sizes of tables are
        // estimates, which must not replace an aggregate.
        let is_unfit = ["EnsureCooperative", "aggregate_statistics"];
        let mut rules: Vec<_> =
            rules.into_iter().filter(|rule| !is_unfit.contains(&rule.name())).collect();
        let last = rules.len().saturating_sub(1);
        rules.insert(last, Arc::new(IN_SERIES));
        rules.insert(0, Arc::new(UNIONS_IN_SERIES));
        rules.push(Arc::new(ANY_ORDER));
        rules.push(Arc::new(INSERT_YIELDS));
        SessionStateBuilder::new()
            .with_config(config)
            .with_analyzer_rules(Vec::new())
            .with_physical_optimizer_rules(rules)
            .with_query_planner(Arc::new(Planner))
            .build()
    })
}

fn session(eval_context: EvalContext) -> Result<SessionState> {
    let mut session = common().clone();
    let reservation = ResultReservation::of(locked(&eval_context.env).results.as_ref());
    session.config_mut().options_mut().extensions.insert(eval_context);
    // Each statement has its own memory pool.
    let pool = Arc::new(Pool::new(ROWS_BYTES_MAX, reservation));
    // Sorts and groups must not go to disk: whether there is room is not the same on all replicas.
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .with_disk_manager_builder(disk)
        .build_arc()?;
    let mut session =
        SessionStateBuilder::new_from_existing(session).with_runtime_env(runtime).build();
    session.mark_start_execution();
    Ok(session)
}

/// The callback for each row; it returns whether to continue.
pub(crate) type OnRow<'a> = dyn FnMut(Vec<Datum>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Runs a query and visits its rows.
pub(crate) fn run(
    query: &Query,
    env: &Env,
    cx: &mut dyn Context,
    on_row: &mut OnRow<'_>,
) -> Result<(), Failure> {
    let mut running = Running::open(query, env, cx)?;
    let is_enough = Cell::new(false);
    let mut on_row = |row| {
        let flow = on_row(row)?;
        is_enough.set(flow.is_break());
        Ok(flow)
    };
    while !is_enough.get() && !running.fill(env, cx, &mut on_row)? {}
    Ok(())
}

/// Runs a step of a query within the inert runtime.
fn guarded<T>(step: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // DataFusion recurses through the steps of a plan, however deep it is.
    let run = || {
        stacker::maybe_grow(STACK_BYTES / 2, STACK_BYTES, || {
            let _guard = alone().enter();
            step()
        })
    };
    // A panic in a library is an error of this statement, and affects nothing else.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let message = "the query could not be run: its plan failed";
        Err(SqlError::new(code::INTERNAL, message).into())
    })
}

/// A running query whose rows are computed on demand.
pub(crate) struct Running {
    pending_reads: Arc<PendingReads>,
    env: Arc<Mutex<Env>>,
    stream: SendableRecordBatchStream,
    types: Vec<SqlType>,
    /// The current batch, and the number of its rows already visited.
    batch: Option<(RecordBatch, usize)>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl Running {
    /// Starts a query.
    pub(crate) fn open(query: &Query, env: &Env, cx: &mut dyn Context) -> Result<Self, Failure> {
        let shared = Arc::new(Mutex::new(env.fork()));
        let opened = guarded(|| {
            let pending_reads = Arc::new(PendingReads::default());
            let eval_context =
                EvalContext { env: shared.clone(), pending_reads: pending_reads.clone() };
            let session = session(eval_context).map_err(|error| unwrapped(&error))?;
            let (own, at) = (shared.clone(), pending_reads.clone());
            let mut runner = Runner { session, pending_reads: at, env: own, cx, aside: None };
            let plan = runner.settled(query.plan.clone())?;
            let (stream, types) = (runner.begin(&plan)?, query.types.clone());
            Ok(Self { pending_reads, env: shared.clone(), stream, types, batch: None })
        });
        env.join(&locked(&shared));
        opened
    }

    /// Visits some more rows. Returns whether they were the last.
    pub(crate) fn fill(
        &mut self,
        env: &Env,
        cx: &mut dyn Context,
        on_row: &mut OnRow<'_>,
    ) -> Result<bool, Failure> {
        let is_last = guarded(|| self.fill_here(cx, on_row));
        env.join(&locked(&self.env));
        is_last
    }

    fn fill_here(&mut self, cx: &mut dyn Context, on_row: &mut OnRow<'_>) -> Result<bool, Failure> {
        let (batch, at) = match self.batch.take() {
            Some(found) => found,
            None => {
                let stream = &mut self.stream;
                let next = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx));
                let Some(batch) = wait(next, &self.pending_reads, &self.env, cx)? else {
                    return Ok(true);
                };
                (batch.map_err(failed)?, 0)
            }
        };
        let visited = visit(&batch, at, &self.types, on_row)?;
        self.batch = visited.map(|at| (batch, at));
        Ok(false)
    }
}

/// Visits the rows of a batch from `first` on. Returns the next row if the callback stopped.
fn visit(
    batch: &RecordBatch,
    first: usize,
    types: &[SqlType],
    on_row: &mut OnRow<'_>,
) -> Result<Option<usize>, Failure> {
    let columns = types.iter().zip(batch.columns());
    let columns: Vec<Values<'_>> = columns.map(|(base, array)| Values::new(*base, array)).collect();
    for at in first..batch.num_rows() {
        let row = columns.iter().map(|column| column.get(at));
        if on_row(row.collect::<Result<_, SqlError>>()?)?.is_break() {
            return Ok(Some(at + 1));
        }
    }
    Ok(None)
}

/// An inert runtime: within it DataFusion sorts in the calling thread, and starts no task that
/// would need a running executor.
fn alone() -> &'static Runtime {
    static ALONE: OnceLock<Runtime> = OnceLock::new();
    ALONE.get_or_init(|| {
        runtime::Builder::new_current_thread().build().expect("it needs nothing of the system")
    })
}

/// Returns the physical plan of a query without running it, and the plans of the subqueries that
/// would run beforehand.
pub(crate) fn physical(
    query: &Query,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(Vec<Physical>, Physical), Failure> {
    guarded(|| {
        let shared = Arc::new(Mutex::new(env.fork()));
        let pending_reads = Arc::new(PendingReads::default());
        let eval_context =
            EvalContext { env: shared.clone(), pending_reads: pending_reads.clone() };
        let session = session(eval_context).map_err(|error| unwrapped(&error))?;
        let mut runner =
            Runner { session, pending_reads, env: shared, cx, aside: Some(Vec::new()) };
        runner.plan(&query.plan)
    })
}

/// A run in progress.
struct Runner<'a> {
    session: SessionState,
    pending_reads: Arc<PendingReads>,
    env: Arc<Mutex<Env>>,
    cx: &'a mut dyn Context,
    /// The subqueries that would run beforehand, if nothing is run.
    aside: Option<Vec<LogicalPlan>>,
}

/// Records that the polled future can make progress.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn failed(error: DataFusionError) -> Failure {
    unwrapped(&error).into()
}

impl Runner<'_> {
    fn run(
        &mut self,
        plan: &LogicalPlan,
        types: &[SqlType],
        on_row: &mut OnRow<'_>,
    ) -> Result<(), Failure> {
        let plan = self.settled(plan.clone())?;
        let mut stream = self.begin(&plan)?;
        loop {
            let next = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx));
            let Some(batch) = self.wait(next)? else { return Ok(()) };
            if visit(&batch.map_err(failed)?, 0, types, on_row)?.is_some() {
                return Ok(());
            }
        }
    }

    /// Returns the plans that would run beforehand, and the main plan.
    fn plan(&mut self, plan: &LogicalPlan) -> Result<(Vec<Physical>, Physical), Failure> {
        let plan = self.settled(plan.clone())?;
        let mut before = Vec::new();
        // Subqueries found within others are appended to the list.
        while let Some(query) = self.aside.as_ref().and_then(|aside| aside.get(before.len())) {
            let query = query.clone();
            let query = self.settled(query)?;
            before.push(self.physical(&query)?);
        }
        Ok((before, self.physical(&plan)?))
    }

    /// Makes a plan physical and starts it.
    fn begin(&mut self, plan: &LogicalPlan) -> Result<SendableRecordBatchStream, Failure> {
        let session = self.session.clone();
        let mut physical = self.physical(plan)?;
        if let Some(profile) = locked(&self.env).profile.clone() {
            physical = measured(physical).map_err(failed)?;
            profile.on_plan(physical.clone());
        }
        physical.execute(0, session.task_ctx()).map_err(failed)
    }

    fn physical(&mut self, plan: &LogicalPlan) -> Result<Physical, Failure> {
        self.pending_reads.measure(plan, self.cx).map_err(failed)?;
        let session = self.session.clone();
        self.wait(planned(&session, plan))?.map_err(failed)
    }

    fn wait<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Failure> {
        wait(future, &self.pending_reads, &self.env, self.cx)
    }

    /// Replaces the parts of a plan that are constant for all rows: limits, and uncorrelated
    /// subqueries.
    fn settled(&mut self, plan: LogicalPlan) -> Result<LogicalPlan, Failure> {
        let mut interrupted = None;
        let done = plan.transform_down(|node| {
            let node = match node {
                LogicalPlan::Limit(limit) => {
                    let env = locked(&self.env);
                    LogicalPlan::Limit(limited(limit, &env).map_err(wrapped)?)
                }
                node => node,
            };
            let mut settle = |expr: Logical| match self.settled_expr(expr) {
                Ok(expr) => Ok(expr),
                Err(Failure::Sql(error)) => Err(wrapped(error)),
                Err(stopped) => {
                    interrupted = Some(stopped);
                    Err(without_statement())
                }
            };
            let node =
                node.map_expressions(|expr| expr.transform_down(&mut settle_with(&mut settle)))?;
            settle_inside(node, &mut settle)
        });
        match (interrupted, done) {
            (Some(stopped), _) => Err(stopped),
            (None, done) => done.data().map_err(failed),
        }
    }

    fn settled_expr(&mut self, expr: Logical) -> Result<Logical, Failure> {
        if let Some(aside) = &mut self.aside {
            return Ok(super::aside::set_aside(expr, aside));
        }
        match expr {
            Logical::ScalarSubquery(query) => self.value_of(&query),
            Logical::Exists(exists) => {
                let mut found = false;
                self.run(&exists.subquery.subquery, &[], &mut |_| {
                    found = true;
                    Ok(ControlFlow::Break(()))
                })?;
                Ok(lit(found != exists.negated))
            }
            other => Ok(other),
        }
    }

    /// Returns the value of an uncorrelated subquery.
    fn value_of(&mut self, query: &Subquery) -> Result<Logical, Failure> {
        let mut found: Option<ScalarValue> = None;
        let plan = self.settled((*query.subquery).clone())?;
        let data_type = plan.schema().field(0).data_type().clone();
        let mut stream = self.begin(&plan)?;
        loop {
            let next = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx));
            let Some(batch) = self.wait(next)? else { break };
            let batch = batch.map_err(failed)?;
            for at in 0..batch.num_rows() {
                let value = ScalarValue::try_from_array(batch.column(0), at).map_err(failed)?;
                if found.replace(value).is_some() {
                    return Err(more_than_one_row().into());
                }
            }
        }
        let null = || ScalarValue::try_from(&data_type).map_err(failed);
        Ok(Logical::Literal(found.map_or_else(null, Ok)?, None))
    }
}

/// Polls a future until it completes, and reads the rows that it waits for in between.
fn wait<T>(
    future: impl Future<Output = T>,
    pending_reads: &PendingReads,
    env: &Mutex<Env>,
    cx: &mut dyn Context,
) -> Result<T, Failure> {
    // The task's budget belongs to the session: no other task waits for this thread.
    let mut future = pin!(tokio::task::unconstrained(future));
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut polling = std::task::Context::from_waker(&waker);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut polling) {
            return Ok(done);
        }
        cx.look()?;
        let asked = std::mem::take(&mut *locked(&pending_reads.asked));
        if asked.is_empty() && !flag.0.swap(false, Ordering::Relaxed) {
            let message = "a query waits for nothing";
            return Err(SqlError::new(code::INTERNAL, message).into());
        }
        for task in asked {
            serve(&task, &locked(env), cx)?;
        }
    }
}

fn settle_with<'a>(
    settle: &'a mut dyn FnMut(Logical) -> Result<Logical>,
) -> impl FnMut(Logical) -> Result<Transformed<Logical>> + 'a {
    move |expr| {
        let is_query = matches!(expr, Logical::ScalarSubquery(_) | Logical::Exists(_));
        Ok(if is_query { Transformed::yes(settle(expr)?) } else { Transformed::no(expr) })
    }
}

/// Evaluates the numbers of a limit.
fn limited(mut limit: Limit, env: &Env) -> Result<Limit, SqlError> {
    let number = |frame: &Logical, code: SqlState, clause: &str| {
        let Logical::ScalarFunction(call) = frame else { return Ok(None) };
        let Some(computed) = call.func.inner().downcast_ref::<Computed>() else { return Ok(None) };
        match computed.expr.eval(&[], env)? {
            Datum::Int(count) if count < 0 => {
                Err(SqlError::new(code, format!("{clause} must not be negative")))
            }
            number => Ok(Some(number)),
        }
    };
    if let Some(fetch) = &limit.fetch
        && let Some(count) = number(fetch, code::LIMIT_ROWS, "LIMIT")?
    {
        let is_all = count.is_null();
        let count = Logical::Literal(scalar(SqlType::Int8, &count), None);
        limit.fetch = (!is_all).then(|| Box::new(count));
    }
    if let Some(skip) = &limit.skip
        && let Some(count) = number(skip, code::OFFSET_ROWS, "OFFSET")?
    {
        let is_none = count.is_null();
        let count = Logical::Literal(scalar(SqlType::Int8, &count), None);
        limit.skip = (!is_none).then(|| Box::new(count));
    }
    Ok(limit)
}

/// Returns the physical form of a plan.
pub(super) async fn planned(
    session: &SessionState,
    plan: &LogicalPlan,
) -> Result<Arc<dyn ExecutionPlan>> {
    let optimized = session.optimize(plan)?;
    session.query_planner().create_physical_plan(&optimized, session).await
}
