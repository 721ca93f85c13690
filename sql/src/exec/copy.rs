//! Running COPY FROM: rows of a client into a table.

use pangea_core::txn::Context;

use super::Executed;
use super::query::compute;
use super::write::{self, Pending, Writer, hidden_key};
use crate::copy::{Rows, at_row};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::plan::CopyFrom;
use crate::types::datum::Datum;

/// The statement's own table among its targets.
const OWN: usize = 0;

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
