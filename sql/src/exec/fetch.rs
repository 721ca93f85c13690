//! The rows of a query, as they are asked for.
//!
//! What reads a table, computes columns and leaves out rows gives its rows on as it finds them, and
//! so does what DataFusion runs, as far as its own operators do. What sorts, groups or compares all
//! rows here is made whole.

use std::ops::ControlFlow;

use pangea_core::txn::Context;

use super::Cursor;
use super::query::{self, compute, frame};
use super::whole::{self, Whole};
use crate::error::Failure;
use crate::expr::Env;
use crate::held::{Held, size_of_row};
use crate::plan::access::Access;
use crate::plan::{Select, Source};
use crate::relational;
use crate::types::datum::Datum;

/// The most rows that are given on at once, and that are looked at for it.
pub(crate) const BATCH_ROWS: usize = 1_024;
/// And when they take so much, no more are added.
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// What running a query led to.
#[derive(Debug)]
pub(crate) enum Found {
    /// All of its rows, and what they take.
    Whole(Vec<Vec<Datum>>, Held),
    /// They are to be fetched.
    Some(Fetching),
}

/// The rows of a query that have not been fetched yet.
#[derive(Debug)]
pub(crate) struct Fetching {
    from: From,
    /// How many rows are passed over yet.
    skip: u64,
    /// And how many are wanted behind them.
    left: u64,
}

#[derive(Debug)]
enum From {
    Table(Box<Cursor>),
    /// Rows of a table that its condition has left already.
    Left(whole::Found),
    Query(Box<relational::Running>),
    Done,
}

/// The rows of a table that a query's condition leaves, where all of it is looked at and few are
/// left.
fn left_of(
    select: &Select,
    access: &Access,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Option<whole::Found>, Failure> {
    // A LIMIT may be near.
    let Some(filter) = select.filter.as_ref().filter(|_| select.limit.is_none()) else {
        return Ok(None);
    };
    match Whole::of(&select.source, [filter], env, cx) {
        Some(whole) => whole.filtered(access, filter, env, cx),
        None => Ok(None),
    }
}

impl Fetching {
    /// Begins to run a query. `is_whole` says that all of it is run at once.
    pub(crate) fn open(
        select: &Select,
        is_whole: bool,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Found, Failure> {
        let is_plain = select.grouping.is_none() && select.sort.is_empty() && !select.is_distinct;
        let is_streamed = matches!(select.source, Source::Table(_) | Source::Query(_));
        if is_whole || !is_plain || !is_streamed {
            let (rows, held) = query::run(select, env, cx)?;
            return Ok(Found::Whole(rows, held));
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

    /// Whether there are no more.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.from, From::Done)
    }

    /// Whether the same rows come in the same order when the query is run once more on the same
    /// snapshot: DataFusion may take another way, for what it knows of tables is a guess.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self.from, From::Query(_))
    }

    /// Some more rows, no more than so many. There may be none in between.
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
            // What rows would only be sorted by is not shown.
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
