//! Execution of queries: filter, group, compute, sort, limit.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pangea_core::txn::{Context, SqlState};

use super::groups::Groups;
use super::parallel_scan::ParallelScan;
use super::top_k::TopK;
use super::{RowBuffer, scan};
use crate::error::{Failure, SqlError, code};
use crate::expr::query::Aggregate;
use crate::expr::{Env, Expr};
use crate::plan::{Grouping, Select, Source};
use crate::profile::{Step, Watch};
use crate::result_memory::{ResultReservation, size_of_rows};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::SortKey;
use crate::{keys, relational};

/// Minimum number of rows that are collected before those past the LIMIT are discarded.
const KEPT_MIN: u64 = 1_024;

/// Runs a query and returns its rows and their memory reservation.
pub(super) fn run(
    select: &Select,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(Vec<Vec<Datum>>, ResultReservation), Failure> {
    let (offset, limit) = frame(select, env)?;
    // Rows past the limit are not read, unless a later step could still change the result.
    let wanted = limit.map(|limit| limit.saturating_add(offset));
    let is_cut_early = select.sort.is_empty() && !select.is_distinct && select.grouping.is_none();
    let output_max = wanted.filter(|_| is_cut_early).unwrap_or(u64::MAX);
    let mut output = RowBuffer::of(env);
    // With both ORDER BY and LIMIT, not many more rows are kept than needed.
    let kept_max = wanted.filter(|_| !select.sort.is_empty() && !select.is_distinct);
    let kept_max = kept_max.map(|wanted| wanted.saturating_mul(2).max(KEPT_MIN));
    let profile = env.profile.as_ref();
    if let Some(grouping) = &select.grouping {
        let mut watch = Watch::start(profile, Step::Group);
        let (found, reservation) = groups(select, grouping, env, cx)?;
        output.reservation = reservation;
        for group in found {
            output.push(compute(&select.output, &group, env)?)?;
            watch.on_row();
        }
        watch.end();
    } else if !select.sort.is_empty()
        && !select.is_distinct
        && let Some(found) = sorted_whole(select, wanted, env, cx)?
    {
        output = found;
    } else if output_max > 0 {
        source_rows(select, env, cx, &mut |row| {
            output.push(compute(&select.output, &row, env)?)?;
            if kept_max.is_some_and(|most| output.rows.len() as u64 >= most) {
                output.keep_first(wanted.unwrap_or(u64::MAX), &select.sort);
            }
            let is_done = output.rows.len() as u64 >= output_max;
            Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    let RowBuffer { mut rows, mut reservation, .. } = output;
    if select.is_distinct {
        let watch = Watch::start(profile, Step::Distinct);
        let mut seen = BTreeSet::new();
        let mut distinct = Vec::new();
        for row in rows {
            let columns = select.types.iter().copied().zip(&row);
            if seen.insert(keys::encode_nullable(columns)?) {
                distinct.push(row);
            }
        }
        rows = distinct;
        watch.end_with(rows.len() as u64);
    }
    if !select.sort.is_empty() {
        let watch = Watch::start(profile, Step::Sort);
        rows.sort_by(|a, b| compare(a, b, &select.sort));
        watch.end_with(rows.len() as u64);
    }
    let watch = Watch::start(profile, Step::Limit);
    let skipped = usize::try_from(offset).unwrap_or(usize::MAX).min(rows.len());
    rows.drain(..skipped);
    if let Some(limit) = limit {
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    watch.end_with(rows.len() as u64);
    // Columns that exist only for sorting are not returned.
    rows.iter_mut().for_each(|row| row.truncate(select.types.len()));
    reservation.keep(size_of_rows(&rows));
    Ok((rows, reservation))
}

/// Returns the values of OFFSET and LIMIT.
pub(super) fn frame(select: &Select, env: &Env) -> Result<(u64, Option<u64>), SqlError> {
    let limit = row_count(select.limit.as_ref(), env, (code::LIMIT_ROWS, "LIMIT"))?;
    let offset = row_count(select.offset.as_ref(), env, (code::OFFSET_ROWS, "OFFSET"))?;
    Ok((offset.unwrap_or(0), limit))
}

/// Evaluates expressions for a row.
pub(super) fn compute(exprs: &[Expr], row: &[Datum], env: &Env) -> Result<Vec<Datum>, SqlError> {
    exprs.iter().map(|expr| expr.eval(row, env)).collect()
}

fn row_count(
    expr: Option<&Expr>,
    env: &Env,
    (code, clause): (SqlState, &str),
) -> Result<Option<u64>, SqlError> {
    match expr.map(|expr| expr.eval(&[], env)).transpose()? {
        Some(Datum::Int(count)) => {
            let negative = |_| SqlError::new(code, format!("{clause} must not be negative"));
            u64::try_from(count).map(Some).map_err(negative)
        }
        _ => Ok(None),
    }
}

/// Visits the rows of the source that satisfy the condition.
fn source_rows(
    select: &Select,
    env: &Env,
    cx: &mut dyn Context,
    on_row: &mut dyn FnMut(Vec<Datum>) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let filter = select.filter.as_ref();
    let mut watch = Watch::start(env.profile.as_ref(), Step::Scan);
    let on_row = &mut |row| {
        watch.on_row();
        on_row(row)
    };
    let is_left = |row: &[Datum]| filter.is_none_or_true(row, env);
    match &select.source {
        Source::Nothing => {
            if is_left(&[])? {
                let _ = on_row(Vec::new())?;
            }
        }
        Source::Values(rows) => {
            for exprs in rows {
                let row = compute(exprs, &[], env)?;
                if is_left(&row)? && on_row(row)?.is_break() {
                    break;
                }
            }
        }
        Source::Query(query) => {
            relational::run(query, env, cx, &mut |row| match is_left(&row)? {
                true => on_row(row),
                false => Ok(ControlFlow::Continue(())),
            })?;
        }
        Source::Table(access) => {
            scan::rows(access, filter, env, cx, &mut |_, row| on_row(row))?;
        }
    }
    watch.end();
    Ok(())
}

trait Condition {
    fn is_none_or_true(&self, row: &[Datum], env: &Env) -> Result<bool, SqlError>;
}

impl Condition for Option<&Expr> {
    fn is_none_or_true(&self, row: &[Datum], env: &Env) -> Result<bool, SqlError> {
        self.map_or(Ok(true), |filter| filter.is_true(row, env))
    }
}

/// Returns the groups in key order. A group's columns are the keys, then the aggregates.
fn groups(
    select: &Select,
    grouping: &Grouping,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(Vec<Vec<Datum>>, ResultReservation), Failure> {
    let whole = whole_to_group(select, grouping, env, cx);
    let mut groups = Groups::new(grouping, whole.is_some(), env);
    match whole {
        Some(whole) => group_whole(&whole, select, &mut groups, env, cx)?,
        None => source_rows(select, env, cx, &mut |row| {
            groups.add(&row, env)?;
            Ok(ControlFlow::Continue(()))
        })?,
    }
    Ok(groups.finish(env)?)
}

/// Returns the table to scan in parallel for grouping, if its rows may arrive in any order.
fn whole_to_group(
    select: &Select,
    grouping: &Grouping,
    env: &Env,
    cx: &dyn Context,
) -> Option<ParallelScan> {
    let shows_one = |(_, base): &(Expr, SqlType)| !base.has_equals_unlike();
    if !grouping.aggregates.iter().all(Aggregate::is_any_order)
        || !grouping.keys.iter().all(shows_one)
    {
        return None;
    }
    let parts = grouping.aggregates.iter().flat_map(Aggregate::parts);
    let exprs = select.filter.iter().chain(grouping.keys.iter().map(|(key, _)| key)).chain(parts);
    ParallelScan::of(&select.source, exprs, env, cx)
}

fn group_whole<'a>(
    whole: &ParallelScan,
    select: &'a Select,
    groups: &mut Groups<'a>,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let Source::Table(access) = &select.source else { unreachable!("it is a table's") };
    let grouping = select.grouping.as_ref().expect("rows become groups");
    let watch = Watch::start(env.profile.as_ref(), Step::Scan);
    let only_counts = |it: &Aggregate| it.args.is_empty() && it.filter.is_none();
    if select.filter.is_none()
        && grouping.keys.is_empty()
        && grouping.aggregates.iter().all(only_counts)
    {
        let rows = whole.rows(env, cx)?;
        groups.add_count(rows);
        watch.end_with(rows as u64);
        return Ok(());
    }
    let new = || (Groups::new(grouping, true, env), Vec::new(), 0);
    let found = whole.read(env, cx, new, &|(groups, row, left), env, _, value| {
        access.table.decode_to(&access.wanted, value, row)?;
        if select.filter.as_ref().is_none_or_true(row, env)? {
            *left += 1;
            groups.add(row, env)?;
        }
        Ok(())
    })?;
    watch.end_with(found.iter().map(|(_, _, left)| left).sum());
    found.into_iter().try_for_each(|(theirs, ..)| groups.merge(theirs))?;
    Ok(())
}

/// Scans a table in parallel for sorting. The rows are as if from an ordered scan; some past the
/// limit may be missing. `None` if the table must be scanned in order.
fn sorted_whole(
    select: &Select,
    wanted: Option<u64>,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Option<RowBuffer>, Failure> {
    let exprs = select.filter.iter().chain(&select.output);
    let Some(whole) = ParallelScan::of(&select.source, exprs, env, cx) else { return Ok(None) };
    let Source::Table(access) = &select.source else { unreachable!("it is a table's") };
    let watch = Watch::start(env.profile.as_ref(), Step::Scan);
    let wanted = wanted.map_or(usize::MAX, |wanted| usize::try_from(wanted).unwrap_or(usize::MAX));
    let new = || (TopK::new(&select.sort, wanted, env), Vec::new(), 0);
    let found = whole.read(env, cx, new, &|(first, row, left), env, key, value| {
        access.table.decode_to(&access.wanted, value, row)?;
        if select.filter.as_ref().is_none_or_true(row, env)? {
            *left += 1;
            first.offer(key, row, &select.output, env)?;
        }
        Ok(())
    })?;
    watch.end_with(found.iter().map(|(_, _, left)| left).sum());
    let mut all = TopK::new(&select.sort, wanted, env);
    found.into_iter().try_for_each(|(theirs, ..)| all.merge(theirs))?;
    Ok(Some(all.into_buffer()))
}

/// Compares two rows in sort order.
pub(crate) fn compare(a: &[Datum], b: &[Datum], sort: &[SortKey]) -> Ordering {
    sort.iter()
        .map(|key| compare_by(&a[key.column], &b[key.column], *key))
        .find(|o| o.is_ne())
        .unwrap_or(Ordering::Equal)
}

pub(super) fn compare_by(a: &Datum, b: &Datum, key: SortKey) -> Ordering {
    match (a.is_null(), b.is_null()) {
        (true, true) => Ordering::Equal,
        (true, false) if key.is_nulls_first => Ordering::Less,
        (true, false) => Ordering::Greater,
        (false, true) if key.is_nulls_first => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) if key.is_descending => b.compare(a),
        (false, false) => a.compare(b),
    }
}
