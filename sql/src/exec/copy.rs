//! Execution of COPY FROM: loads a client's rows into a table.

use pangea_core::txn::Context;

use super::Executed;
use super::prefetch::Batches;
use super::query::compute;
use super::write::{self, Pending, Writer};
use crate::copy::{Rows, at_row};
use crate::error::{Failure, SqlError, code};
use crate::expr::Env;
use crate::plan::CopyFrom;

/// Position of the statement's own table among its targets.
const OWN: usize = 0;

/// Adds rows to a table. The error of a row contains its number.
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
    let mut batches = Batches::new((0u64..).zip(rows.iter()));
    let mut written = 0;
    loop {
        let new = batches.next(|(number, source)| {
            let row = compute(&copy.columns, &source?, env).map_err(Failure::from);
            let made = |row| write::made(copy.targets.own(), row, number as usize, env);
            row.and_then(made).map_err(|failure| in_row(failure, number))
        })?;
        if new.is_empty() {
            break;
        }
        writer.name(OWN, &new);
        for (key, row) in new {
            writer.insert(OWN, key, row).map_err(|failure| in_row(failure, written))?;
            written += 1;
        }
    }
    write::finish(vec![(&copy.targets, pending)], env, cx)?;
    Ok(Executed { count: rows.count, ..Executed::default() })
}

/// Adds the number of a row to its failure.
fn in_row(failure: Failure, number: u64) -> Failure {
    match failure {
        Failure::Sql(error) => Failure::Sql(at_row(error, number)),
        Failure::Interrupted => Failure::Interrupted,
    }
}
