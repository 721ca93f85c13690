//! Running a plan: from its logical form to rows, without a thread of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Wake, Waker};

use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::GreedyMemoryPool;
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
use super::error::{more_than_one_row, unwrapped, wrapped};
use super::function::{Computed, Surroundings};
use super::leaf::{Task, serve, table_of, without_statement};
use super::measured::measured;
use super::serial::{InSeries, UnionsInSeries};
use super::values::{Values, scalar};
use super::{Physical, Query};
use crate::error::{Failure, SqlError, code};
use crate::exec::ROWS_BYTES_MAX;
use crate::expr::Env;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// So many values of the smaller side of a join are looked for one by one on the other side.
const LOOKUPS_MAX: usize = 10_000;
/// And so many bytes of them.
const LOOKUP_BYTES_MAX: usize = 8 << 20;

/// The stack that a plan is run on: one where each relation is around the last is deep.
const STACK_BYTES: usize = 128 << 20;

/// What streams wait for.
#[derive(Debug, Default)]
pub(super) struct Desk {
    asked: Mutex<Vec<Arc<Mutex<Task>>>>,
    /// How many rows tables have, about.
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

impl Desk {
    /// The one of a run.
    pub(super) fn of(options: &ConfigOptions) -> Result<Arc<Self>> {
        let found = options.extensions.get::<Surroundings>();
        found.map(|it| it.desk.clone()).ok_or_else(without_statement)
    }

    /// A stream waits for rows.
    pub(super) fn ask(&self, task: Arc<Mutex<Task>>) {
        locked(&self.asked).push(task);
    }

    /// How many rows a table has, about.
    pub(super) fn size(&self, table: TableId) -> usize {
        locked(&self.sizes).get(&table).copied().unwrap_or(1_000)
    }

    /// Learns how large the tables of a plan are.
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

/// What all runs have in common.
fn common() -> &'static SessionState {
    static COMMON: OnceLock<SessionState> = OnceLock::new();
    COMMON.get_or_init(|| {
        let mut config = SessionConfig::new().with_target_partitions(1);
        let options = config.options_mut();
        options.optimizer.hash_join_inlist_pushdown_max_size = LOOKUP_BYTES_MAX;
        options.optimizer.hash_join_inlist_pushdown_max_distinct_values = LOOKUPS_MAX;
        options.optimizer.enable_topk_dynamic_filter_pushdown = false;
        options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
        // A failing rule is a bug, not a plan that is slower.
        options.optimizer.skip_failed_rules = false;
        let rules = PhysicalOptimizer::default().rules;
        // Nobody else waits for the thread; and what is known of a table beforehand is a guess,
        // which is no result.
        let is_unfit = ["EnsureCooperative", "aggregate_statistics"];
        let mut rules: Vec<_> =
            rules.into_iter().filter(|rule| !is_unfit.contains(&rule.name())).collect();
        let last = rules.len().saturating_sub(1);
        rules.insert(last, Arc::new(InSeries));
        rules.insert(0, Arc::new(UnionsInSeries));
        SessionStateBuilder::new()
            .with_config(config)
            .with_analyzer_rules(Vec::new())
            .with_physical_optimizer_rules(rules)
            .with_query_planner(Arc::new(Planner))
            .build()
    })
}

fn session(surroundings: Surroundings) -> Result<SessionState> {
    let mut session = common().clone();
    session.config_mut().options_mut().extensions.insert(surroundings);
    // Each statement has its own.
    let pool = Arc::new(GreedyMemoryPool::new(ROWS_BYTES_MAX));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
    let mut session =
        SessionStateBuilder::new_from_existing(session).with_runtime_env(runtime).build();
    session.mark_start_execution();
    Ok(session)
}

/// What is done with each row; it says whether to go on.
pub(crate) type OnRow<'a> = dyn FnMut(Vec<Datum>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Runs a query and visits its rows.
pub(crate) fn run(
    query: &Query,
    env: &Env,
    cx: &mut dyn Context,
    on_row: &mut OnRow<'_>,
) -> Result<(), Failure> {
    // DataFusion goes down a plan step by step, however deep it is.
    let mut run =
        || stacker::maybe_grow(STACK_BYTES / 2, STACK_BYTES, || run_here(query, env, cx, on_row));
    // A plan that a library trips over is an error of its statement, and of nothing else.
    catch_unwind(AssertUnwindSafe(&mut run)).unwrap_or_else(|_| {
        let message = "the query could not be run: its plan failed";
        Err(SqlError::new(code::INTERNAL, message).into())
    })
}

/// A runtime that runs nothing: within it DataFusion sorts where it is, and starts no task that
/// somebody would have to run.
fn alone() -> &'static Runtime {
    static ALONE: OnceLock<Runtime> = OnceLock::new();
    ALONE.get_or_init(|| {
        runtime::Builder::new_current_thread().build().expect("it needs nothing of the system")
    })
}

/// The plan of a query, which is not run, and those of queries that would be run beforehand.
pub(crate) fn physical(
    query: &Query,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(Vec<Physical>, Physical), Failure> {
    let mut plan = || {
        stacker::maybe_grow(STACK_BYTES / 2, STACK_BYTES, || {
            let _guard = alone().enter();
            let shared = Arc::new(Mutex::new(env.fork()));
            let desk = Arc::new(Desk::default());
            let surroundings = Surroundings { env: shared.clone(), desk: desk.clone() };
            let session = session(surroundings).map_err(|error| unwrapped(&error))?;
            let mut runner = Runner { session, desk, env: shared, cx, aside: Some(Vec::new()) };
            runner.plan(&query.plan)
        })
    };
    catch_unwind(AssertUnwindSafe(&mut plan)).unwrap_or_else(|_| {
        let message = "the query could not be planned";
        Err(SqlError::new(code::INTERNAL, message).into())
    })
}

fn run_here(
    query: &Query,
    env: &Env,
    cx: &mut dyn Context,
    on_row: &mut OnRow<'_>,
) -> Result<(), Failure> {
    let _guard = alone().enter();
    let shared = Arc::new(Mutex::new(env.fork()));
    let desk = Arc::new(Desk::default());
    let surroundings = Surroundings { env: shared.clone(), desk: desk.clone() };
    let session = session(surroundings).map_err(|error| unwrapped(&error))?;
    let mut runner = Runner { session, desk, env: shared.clone(), cx, aside: None };
    let outcome = runner.run(&query.plan, &query.types, on_row);
    env.join(&locked(&shared));
    outcome
}

/// A run under way.
struct Runner<'a> {
    session: SessionState,
    desk: Arc<Desk>,
    env: Arc<Mutex<Env>>,
    cx: &'a mut dyn Context,
    /// What would be run beforehand, where nothing is run.
    aside: Option<Vec<LogicalPlan>>,
}

/// Remembers that what was polled may go on.
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
            let batch = batch.map_err(failed)?;
            let columns: Vec<Values<'_>> = types
                .iter()
                .zip(batch.columns())
                .map(|(base, array)| Values::new(*base, array))
                .collect();
            for at in 0..batch.num_rows() {
                let row = columns.iter().map(|column| column.get(at));
                if on_row(row.collect::<Result<_, SqlError>>()?)?.is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// The plan, and those that would be run beforehand.
    fn plan(&mut self, plan: &LogicalPlan) -> Result<(Vec<Physical>, Physical), Failure> {
        let plan = self.settled(plan.clone())?;
        let mut before = Vec::new();
        // Those that are met within others come behind them.
        while let Some(query) = self.aside.as_ref().and_then(|aside| aside.get(before.len())) {
            let query = query.clone();
            let query = self.settled(query)?;
            before.push(self.physical(&query)?);
        }
        Ok((before, self.physical(&plan)?))
    }

    /// Makes a plan physical and begins to run it.
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
        self.desk.measure(plan, self.cx).map_err(failed)?;
        let session = self.session.clone();
        self.wait(planned(&session, plan))?.map_err(failed)
    }

    /// Polls until it is done, and reads what it waits for in between.
    fn wait<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Failure> {
        // A task's budget is its session's: nobody else waits for this thread to be free.
        let mut future = pin!(tokio::task::unconstrained(future));
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(flag.clone());
        let mut polling = std::task::Context::from_waker(&waker);
        loop {
            if let Poll::Ready(done) = future.as_mut().poll(&mut polling) {
                return Ok(done);
            }
            let asked = std::mem::take(&mut *locked(&self.desk.asked));
            if asked.is_empty() && !flag.0.swap(false, Ordering::Relaxed) {
                let message = "a query waits for nothing";
                return Err(SqlError::new(code::INTERNAL, message).into());
            }
            for task in asked {
                serve(&task, &locked(&self.env), self.cx)?;
            }
        }
    }

    /// The plan with what is the same for all of its rows put in: limits, and subqueries that name
    /// nothing outside of them.
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
            return Ok(super::explain::set_aside(expr, aside));
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

    /// The value of a subquery that is the same for all rows around it.
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

fn settle_with<'a>(
    settle: &'a mut dyn FnMut(Logical) -> Result<Logical>,
) -> impl FnMut(Logical) -> Result<Transformed<Logical>> + 'a {
    move |expr| {
        let is_query = matches!(expr, Logical::ScalarSubquery(_) | Logical::Exists(_));
        Ok(if is_query { Transformed::yes(settle(expr)?) } else { Transformed::no(expr) })
    }
}

/// A limit whose numbers are known.
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

/// The physical form of a plan.
pub(super) async fn planned(
    session: &SessionState,
    plan: &LogicalPlan,
) -> Result<Arc<dyn ExecutionPlan>> {
    let optimized = session.optimize(plan)?;
    session.query_planner().create_physical_plan(&optimized, session).await
}
