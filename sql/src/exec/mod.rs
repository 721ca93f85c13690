//! Execution of plans over a context.
//!
//! The same code runs an autocommit write on every replica, a statement of an interactive
//! transaction on a snapshot and its own writes, and a query on a snapshot. Only the context
//! differs. Execution is deterministic: it depends only on the context, the parameters and the
//! environment.

pub(crate) mod aggregate;
mod alter;
mod alter_owner;
mod comments;
mod copy;
mod ddl;
mod dml;
mod enums;
mod fetch;
mod grants;
mod groups;
pub(crate) mod parallel_scan;
mod prefetch;
mod procedures;
pub(crate) mod query;
mod roles;
mod scan;
mod schemas;
mod sequences;
pub(crate) mod set_returning;
mod steps;
mod top_k;
mod views;
mod write;

use std::sync::Arc;

use pangea_core::txn::Context;

use crate::copy::Rows;
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::guarded::{Hold, guarding};
use crate::notice::Notice;
use crate::plan::{Plan, Planned, Select, system_view_columns};
use crate::profile::{Step, Watch};
use crate::result_memory::{ResultReservation, size_of_row, size_of_rows};
use crate::sequence::Used;
use crate::system::SystemCatalog;
use crate::types::datum::Datum;
use crate::vocabulary::column::SortKey;
use crate::{authorization, procedure};
pub(crate) use alter::{drop_index, fill_index};
pub(crate) use fetch::{BATCH_BYTES, BATCH_ROWS, Fetching, Found};
pub(crate) use scan::Cursor;
pub(crate) use write::check_deferred;

/// Maximum number of rows of one result.
pub(crate) const ROWS_MAX: usize = 1_000_000;
/// Maximum memory for the rows of one statement, in bytes.
pub(crate) const ROWS_BYTES_MAX: usize = 256 << 20;

/// The result of a statement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Executed {
    /// Rows returned.
    pub rows: Vec<Vec<Datum>>,
    /// Number of rows selected or changed.
    pub count: u64,
    /// Notices for the client.
    pub notices: Vec<Notice>,
}

/// A buffer of rows that enforces the limits.
#[derive(Debug, Default)]
struct RowBuffer {
    rows: Vec<Vec<Datum>>,
    bytes: usize,
    reservation: ResultReservation,
}

impl RowBuffer {
    /// Creates a buffer that counts against the node's memory for results.
    fn of(env: &Env) -> Self {
        Self { reservation: ResultReservation::of(env.results.as_ref()), ..Self::default() }
    }

    fn push(&mut self, row: Vec<Datum>) -> Result<(), SqlError> {
        let bytes = size_of_row(&row);
        self.bytes += bytes;
        check_size(self.rows.len() + 1, self.bytes)?;
        self.reservation.take(bytes)?;
        self.rows.push(row);
        Ok(())
    }

    /// Keeps only the first `count` rows in sort order. The sort is stable.
    fn keep_first(&mut self, count: u64, sort: &[SortKey]) {
        self.rows.sort_by(|a, b| query::compare(a, b, sort));
        self.rows.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        self.bytes = size_of_rows(&self.rows);
        self.reservation.keep(self.bytes);
    }
}

/// Fails if a statement holds too many rows.
pub(crate) fn check_size(rows: usize, bytes: usize) -> Result<(), SqlError> {
    if rows <= ROWS_MAX && bytes <= ROWS_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the statement holds more than {ROWS_MAX} rows or {} MB in memory",
        ROWS_BYTES_MAX >> 20
    );
    let hint = "Ask for fewer rows at a time, with LIMIT or a condition on the key.";
    Err(SqlError::new(code::LIMIT_EXCEEDED, message).with_hint(hint))
}

/// Runs a statement; a COPY with the rows that the client sent.
pub(crate) fn run(
    planned: &Planned,
    rows: Option<&Rows>,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    guarding(cx, Hold::Reads, |cx| {
        authorization::check(&planned.required, env.current_user(), cx)
    })?;
    env.profile.iter().for_each(|profile| profile.begin());
    read_catalog(planned, env, cx)?;
    let executed = match (&planned.plan, rows) {
        (Plan::CopyFrom(copy), Some(rows)) => copy::load(copy, rows, env, cx),
        (plan, _) => match planned.hold() {
            Some(hold) => guarding(cx, hold, |cx| run_plan(plan, env, cx)),
            None => run_plan(plan, env, cx),
        },
    };
    let mut executed = executed.map_err(|failure| unmarked(planned, failure))?;
    show_names(planned, env, &mut executed.rows)?;
    for (at, value, is_called) in env.set_sequences.take() {
        let Used { name, sequence, .. } = &planned.sequences[at];
        sequence.set(name, value, is_called, cx)?;
        env.sequences[at].current.set(is_called.then_some(value));
    }
    Ok(executed)
}

/// Starts a query. Its rows are fetched in batches if the plan allows.
pub(crate) fn open(planned: &Planned, env: &Env, cx: &mut dyn Context) -> Result<Found, Failure> {
    authorization::check(&planned.required, env.current_user(), cx)?;
    read_catalog(planned, env, cx)?;
    // A query that draws sequence numbers may have to be rerun.
    let is_whole = !planned.sequences.is_empty();
    let found = Fetching::open(select_of(planned), is_whole, env, cx);
    let mut found = found.map_err(|failure| unmarked(planned, failure))?;
    if let Found::Whole(rows, _) = &mut found {
        show_names(planned, env, rows)?;
    }
    Ok(found)
}

/// Replaces the placeholders of enums in an error by their names.
pub(crate) fn unmarked(planned: &Planned, failure: Failure) -> Failure {
    match failure {
        Failure::Sql(error) => Failure::Sql(planned.enums.unmarked_error(error)),
        Failure::Interrupted => Failure::Interrupted,
    }
}

/// Returns the query of a statement that has one.
pub(crate) fn select_of(planned: &Planned) -> &Select {
    match &planned.plan {
        Plan::Select(select) => select,
        Plan::CopyTo(copy) => &copy.select,
        other => unreachable!("{other:?} is no query"),
    }
}

/// Replaces catalog numbers by names in the columns that are displayed as names.
pub(crate) fn show_names(
    planned: &Planned,
    env: &Env,
    rows: &mut [Vec<Datum>],
) -> Result<(), SqlError> {
    if planned.named.is_empty() {
        return Ok(());
    }
    let catalog = env.catalog()?;
    for row in rows {
        for (at, kind) in &planned.named {
            if let Datum::Int(oid) = row[*at] {
                row[*at] = Datum::Text(catalog.shown(*kind, oid as u32));
            }
        }
    }
    Ok(())
}

/// Loads the catalog, if the statement reads it.
pub(crate) fn read_catalog(
    planned: &Planned,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    if planned.reads_catalog && env.catalog.get().is_none() {
        let _ = env.catalog.set(Arc::new(SystemCatalog::load(
            &planned.path,
            system_view_columns(),
            cx,
        )?));
    }
    Ok(())
}

fn run_plan(plan: &Plan, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    match plan {
        Plan::Select(select) => {
            let (rows, _) = query::run(select, env, cx)?;
            let count = rows.len() as u64;
            Ok(Executed { rows, count, ..Executed::default() })
        }
        Plan::Insert(_) | Plan::Update(_) | Plan::Delete(_) => {
            let watch = Watch::start(env.profile.as_ref(), Step::Modify);
            let executed = steps::alone(plan, env, cx)?;
            watch.end_with(executed.rows.len() as u64);
            Ok(executed)
        }
        Plan::Steps(steps) => steps::all(steps, env, cx),
        Plan::Call(call) => procedure::call(call, env, cx),
        Plan::Utility(statement) => statement.run(env, cx),
        Plan::CopyFrom(_) | Plan::CopyTo(_) => {
            Err(SqlError::new(code::INTERNAL, "a COPY needs a client").into())
        }
    }
}
