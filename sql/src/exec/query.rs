//! Running a query: filter, group, compute, sort, cut.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use pangea_core::hash::{Entry, HashMap};
use pangea_core::key::Key;
use pangea_core::txn::{Context, SqlState};

use super::aggregate::State;
use super::{RowBuffer, scan};
use crate::error::{Failure, SqlError, code};
use crate::explain::profile::{Step, Watch};
use crate::expr::{Env, Expr};
use crate::held::{Held, size_of_row, size_of_rows};
use crate::keys;
use crate::plan::{Grouping, Select, SortKey, Source};
use crate::relational;
use crate::types::datum::Datum;

/// So many rows at least are gathered before those are thrown away that a LIMIT cuts off.
const KEPT_MIN: u64 = 1_024;

/// Runs a query and returns its rows, and what they take.
pub(super) fn run(
    select: &Select,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<(Vec<Vec<Datum>>, Held), Failure> {
    let (offset, limit) = frame(select, env)?;
    // Rows beyond the limit are not even looked at, where nothing after it could change the result.
    let wanted = limit.map(|limit| limit.saturating_add(offset));
    let is_cut_early = select.sort.is_empty() && !select.is_distinct && select.grouping.is_none();
    let output_max = wanted.filter(|_| is_cut_early).unwrap_or(u64::MAX);
    let mut output = RowBuffer::of(env);
    // Of rows that are sorted and cut, not many more are kept than are wanted.
    let kept_max = wanted.filter(|_| !select.sort.is_empty() && !select.is_distinct);
    let kept_max = kept_max.map(|wanted| wanted.saturating_mul(2).max(KEPT_MIN));
    let profile = env.profile.as_ref();
    if let Some(grouping) = &select.grouping {
        let mut watch = Watch::start(profile, Step::Group);
        for group in groups(select, grouping, env, cx, &mut output.held)? {
            output.push(compute(&select.output, &group, env)?)?;
            watch.on_row();
        }
        watch.end();
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
    let RowBuffer { mut rows, mut held, .. } = output;
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
    // What rows were only sorted by is not shown.
    rows.iter_mut().for_each(|row| row.truncate(select.types.len()));
    held.keep(size_of_rows(&rows));
    Ok((rows, held))
}

/// How many rows of a query are passed over, and how many of the others are wanted.
pub(super) fn frame(select: &Select, env: &Env) -> Result<(u64, Option<u64>), SqlError> {
    let limit = row_count(select.limit.as_ref(), env, (code::LIMIT_ROWS, "LIMIT"))?;
    let offset = row_count(select.offset.as_ref(), env, (code::OFFSET_ROWS, "OFFSET"))?;
    Ok((offset.unwrap_or(0), limit))
}

/// What expressions come to for a row.
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

/// Visits the rows of the source that the condition leaves.
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

/// The groups: the columns of the keys, then those of the aggregates, in the order of the keys.
fn groups(
    select: &Select,
    grouping: &Grouping,
    env: &Env,
    cx: &mut dyn Context,
    held: &mut Held,
) -> Result<Vec<Vec<Datum>>, Failure> {
    let mut groups: HashMap<Key, (Vec<Datum>, Vec<State>)> = HashMap::default();
    let new_states = || vec![State::new(); grouping.aggregates.len()];
    let mut bytes = 0;
    source_rows(select, env, cx, &mut |row| {
        let values = grouping.keys.iter().map(|(key, _)| key.eval(&row, env));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let types = grouping.keys.iter().map(|(_, base)| *base);
        let key = keys::encode_nullable(types.zip(&values))?;
        let count = groups.len() + 1;
        let (_, states) = match groups.entry(key) {
            Entry::Occupied(group) => group.into_mut(),
            Entry::Vacant(group) => {
                let size = group.key().len() + size_of_row(&values);
                bytes += size;
                super::check_size(count, bytes)?;
                held.take(size)?;
                group.insert((values, new_states()))
            }
        };
        for (state, aggregate) in states.iter_mut().zip(&grouping.aggregates) {
            state.add(aggregate, &row, env)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // Without GROUP BY there is one group, even of no rows.
    if grouping.keys.is_empty() && groups.is_empty() {
        groups.insert(Key::from(&[][..]), (Vec::new(), new_states()));
    }
    let mut finished = Vec::with_capacity(groups.len());
    let groups: BTreeMap<Key, (Vec<Datum>, Vec<State>)> = groups.into_iter().collect();
    for (mut group, states) in groups.into_values() {
        for (state, aggregate) in states.into_iter().zip(&grouping.aggregates) {
            group.push(state.finish(aggregate)?);
        }
        if grouping.having.as_ref().is_none_or_true(&group, env)? {
            finished.push(group);
        }
    }
    Ok(finished)
}

/// The order of two rows.
pub(crate) fn compare(a: &[Datum], b: &[Datum], sort: &[SortKey]) -> Ordering {
    sort.iter()
        .map(|key| compare_by(&a[key.column], &b[key.column], *key))
        .find(|o| o.is_ne())
        .unwrap_or(Ordering::Equal)
}

fn compare_by(a: &Datum, b: &Datum, key: SortKey) -> Ordering {
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
