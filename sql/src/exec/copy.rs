//! Running COPY: rows of a client into a table, and those of a query to it, some at a time.

use std::collections::VecDeque;

use pangea_core::txn::Context;

use super::query::{self, compute};
use super::write::{self, Pending, Writer, hidden_key};
use super::{Cursor, Executed};
use crate::copy::{Rows, at_row};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::plan::access::Access;
use crate::plan::{CopyFrom, Select, Source};
use crate::types::datum::Datum;

/// The statement's own table among its targets.
const OWN: usize = 0;
/// How many rows of the store are looked at before what was found is given on.
const FETCH_ROWS: usize = 1_024;

/// Adds rows to a table. The error of one says which.
pub(crate) fn load(
    copy: &CopyFrom,
    rows: &Rows,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let is_same = copy.source.iter().map(|column| column.ty).eq(rows.types.iter().copied());
    if !is_same {
        let name = &copy.targets.own().table.name;
        let message = format!("the columns of relation \"{name}\" have changed during the COPY");
        return Err(SqlError::new(code::NOT_PREREQUISITE, message).into());
    }
    let mut pending = Pending::default();
    let mut writer = Writer::new(&copy.targets, env, cx, &mut pending);
    for (number, source) in (0u64..).zip(rows.iter()) {
        let source = source?;
        add(copy, &mut writer, &source, number, env).map_err(|failure| match failure {
            Failure::Sql(error) => Failure::Sql(at_row(error, number)),
            Failure::Interrupted => Failure::Interrupted,
        })?;
    }
    write::finish(vec![(&copy.targets, pending)], env, cx)?;
    Ok(Executed { count: rows.count, ..Executed::default() })
}

fn add(
    copy: &CopyFrom,
    writer: &mut Writer<'_>,
    source: &[Datum],
    number: u64,
    env: &Env,
) -> Result<(), Failure> {
    let mut row = compute(&copy.columns, source, env)?;
    writer.complete(OWN, &mut row)?;
    let hidden = || hidden_key(number as usize, env);
    let key = writer.key_of(OWN, &row)?.unwrap_or_else(hidden);
    writer.insert(OWN, key, row)
}

/// The rows of a query that have not been fetched yet.
#[derive(Debug)]
pub(crate) enum Fetching {
    /// Those of a table, where nothing but a condition and the columns is asked of them.
    Table(Cursor, bool),
    /// All others are there from the start.
    Rows(VecDeque<Vec<Datum>>),
}

impl Fetching {
    /// Begins to run a query. `is_whole` says that all of it is run at once.
    pub(crate) fn open(
        select: &Select,
        is_whole: bool,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Self, Failure> {
        match streamed(select).filter(|_| !is_whole) {
            Some(access) => Ok(Self::Table(Cursor::new(access.clone(), env)?, false)),
            None => Ok(Self::Rows(query::run(select, env, cx)?.into())),
        }
    }

    /// Some more rows, or nothing when there are none. There may be none in between.
    pub(crate) fn fetch(
        &mut self,
        select: &Select,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Option<Vec<Vec<Datum>>>, Failure> {
        match self {
            Self::Table(_, true) => Ok(None),
            Self::Rows(rows) if rows.is_empty() => Ok(None),
            Self::Rows(rows) => Ok(Some(rows.drain(..rows.len().min(FETCH_ROWS)).collect())),
            Self::Table(cursor, is_done) => {
                let mut rows = Vec::new();
                let filter = select.filter.as_ref();
                *is_done = cursor.fill(filter, FETCH_ROWS, env, cx, &mut |_, row| {
                    rows.push(compute(&select.output, &row, env)?);
                    Ok(())
                })?;
                Ok(Some(rows))
            }
        }
    }
}

/// The table of a query whose rows can be given on as they are found.
fn streamed(select: &Select) -> Option<&Access> {
    let Source::Table(access) = &select.source else { return None };
    let is_plain = select.grouping.is_none()
        && select.sort.is_empty()
        && !select.is_distinct
        && select.limit.is_none()
        && select.offset.is_none();
    is_plain.then_some(access)
}
