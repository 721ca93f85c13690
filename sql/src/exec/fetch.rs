//! Fetching the rows of a query on demand.
//!
//! Scans, projections and filters stream their rows. A DataFusion plan streams as far as
//! DataFusion's own operators do. Queries that this executor sorts, groups or deduplicates are
//! computed completely first.

use std::ops::ControlFlow;

use pangea_core::txn::Context;

use super::Cursor;
use super::parallel_scan::{self, ParallelScan};
use super::query::{self, compute, frame};
use crate::access::Access;
use crate::error::Failure;
use crate::expr::Env;
use crate::plan::{Select, Source};
use crate::relational;
use crate::result_memory::{ResultReservation, size_of_row};
use crate::types::datum::Datum;

/// Maximum number of rows of a batch, and of rows scanned for it.
pub(crate) const BATCH_ROWS: usize = 1_024;
/// Size of a batch, in bytes, above which no more rows are added.
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// The result of starting a query.
#[derive(Debug)]
pub(crate) enum Found {
    /// All rows, and their memory reservation.
    Whole(Vec<Vec<Datum>>, ResultReservation),
    /// The rows have to be fetched.
    Some(Fetching),
}

/// The remaining rows of a query.
#[derive(Debug)]
pub(crate) struct Fetching {
    from: From,
    /// Number of rows still to skip (OFFSET).
    skip: u64,
    /// Number of rows still to return after these (LIMIT).
    left: u64,
}

#[derive(Debug)]
enum From {
    Table(Box<Cursor>),
    /// Rows of a table that have passed the filter.
    Left(parallel_scan::Found),
    Query(Box<relational::Running>),
    Done,
}

/// Filters a whole table in parallel, if possible. Returns `None` if not, or if too many rows pass.
fn left_of(
    select: &Select,
    access: &Access,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Option<parallel_scan::Found>, Failure> {
    // A LIMIT may be reached early.
    let Some(filter) = select.filter.as_ref().filter(|_| select.limit.is_none()) else {
        return Ok(None);
    };
    match ParallelScan::of(&select.source, [filter], env, cx) {
        Some(whole) => whole.filtered(access, filter, env, cx),
        None => Ok(None),
    }
}

impl Fetching {
    /// Starts a query. With `is_whole`, all of it is run at once.
    pub(crate) fn open(
        select: &Select,
        is_whole: bool,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Found, Failure> {
        let is_plain = select.grouping.is_none() && select.sort.is_empty() && !select.is_distinct;
        let is_streamed = matches!(select.source, Source::Table(_) | Source::Query(_));
        if is_whole || !is_plain || !is_streamed {
            let (rows, reservation) = query::run(select, env, cx)?;
            return Ok(Found::Whole(rows, reservation));
        }
        let (skip, limit) = frame(select, env)?;
        let left = limit.unwrap_or(u64::MAX);
        let from = match &select.source {
            _ if left == 0 => From::Done,
            Source::Table(access) => match left_of(select, access, env, cx)? {
                Some(found) => From::Left(found),
                None => From::Table(Box::new(Cursor::new(access, env)?)),
            },
            Source::Query(query) => {
                From::Query(Box::new(relational::Running::open(query, env, cx)?))
            }
            Source::Nothing | Source::Values(_) => unreachable!("they are no streams"),
        };
        Ok(Found::Some(Self { from, skip, left }))
    }

    /// Whether all rows have been returned.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.from, From::Done)
    }

    /// Whether a second run of the query on the same snapshot returns the same rows in the same
    /// order. DataFusion may choose another plan, because its statistics are estimates.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self.from, From::Query(_))
    }

    /// Fetches up to `most` rows. An empty result does not mean that the query is done.
    pub(crate) fn fetch(
        &mut self,
        select: &Select,
        most: usize,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Vec<Vec<Datum>>, Failure> {
        let Self { from, skip, left } = self;
        let most = most.min(BATCH_ROWS);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut on_row = |row: Vec<Datum>| -> Result<ControlFlow<()>, Failure> {
            // Columns that exist only for sorting are not returned.
            let row = compute(&select.output[..select.types.len()], &row, env)?;
            if *skip > 0 {
                *skip -= 1;
                return Ok(ControlFlow::Continue(()));
            }
            bytes += size_of_row(&row);
            rows.push(row);
            *left -= 1;
            let is_enough = *left == 0 || rows.len() >= most || bytes >= BATCH_BYTES;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let filter = select.filter.as_ref();
        let is_last = match from {
            From::Done => true,
            From::Table(cursor) => {
                cursor.fill(filter, BATCH_ROWS, env, cx, &mut |_, row| on_row(row))?
            }
            From::Left(found) => {
                let Source::Table(access) = &select.source else { unreachable!("of a table") };
                for (_, value) in found.rows.by_ref().take(most) {
                    if on_row(access.table.decode_wanted(&access.wanted, &value)?)?.is_break() {
                        break;
                    }
                }
                found.rows.len() == 0
            }
            From::Query(running) => running.fill(env, cx, &mut |row| match filter {
                Some(filter) if !filter.is_true(&row, env)? => Ok(ControlFlow::Continue(())),
                _ => on_row(row),
            })?,
        };
        if is_last || *left == 0 {
            *from = From::Done;
        }
        Ok(rows)
    }
}
