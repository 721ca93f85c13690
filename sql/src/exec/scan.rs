//! Reading the rows that an access names.

use std::ops::ControlFlow;

use pangea_core::codec::Reader;
use pangea_core::key::Key;
use pangea_core::txn::{Context, Scan};

use crate::error::Failure;
use crate::expr::{Env, Expr};
use crate::plan::access::{Access, Place};
use crate::rows;
use crate::types::datum::Datum;

/// What is done with each row; it says whether to go on.
pub(super) type OnRow<'a> = dyn FnMut(&[u8], Vec<Datum>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Visits the rows that an access names and a condition leaves, in order.
pub(super) fn rows(
    access: &Access,
    filter: Option<&Expr>,
    env: &Env,
    cx: &mut dyn Context,
    on_row: &mut OnRow<'_>,
) -> Result<(), Failure> {
    let table = &access.table;
    let mut visit = |key: &[u8], value: &[u8]| -> Result<ControlFlow<()>, Failure> {
        let row = rows::decode(table.types(), &mut Reader::new(value))?;
        match filter {
            Some(filter) if !filter.is_true(&row, env)? => Ok(ControlFlow::Continue(())),
            _ => on_row(key, row),
        }
    };
    for place in access.places(env)? {
        let mut outcome = Ok(ControlFlow::Continue(()));
        match place {
            Place::Point(key) => {
                if let Some(value) = cx.get(table.id, &key)? {
                    outcome = visit(&key, &value);
                }
            }
            Place::Range(range) => {
                let scan = Scan { table: table.id, range, direction: access.direction };
                cx.scan(&scan, &mut |key, value| {
                    outcome = visit(key, value);
                    match outcome {
                        Ok(flow) => flow,
                        Err(_) => ControlFlow::Break(()),
                    }
                })?;
            }
        }
        if outcome?.is_break() {
            break;
        }
    }
    Ok(())
}

/// The rows that an access names and a condition leaves, with their keys.
pub(super) fn collect(
    access: &Access,
    filter: Option<&Expr>,
    env: &Env,
    cx: &mut dyn Context,
) -> Result<Vec<(Key, Vec<Datum>)>, Failure> {
    let mut found = Vec::new();
    let mut bytes = 0;
    rows(access, filter, env, cx, &mut |key, row| {
        bytes += key.len() + row.iter().map(Datum::size).sum::<usize>();
        super::check_size(found.len() + 1, bytes)?;
        found.push((Key::from(key), row));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}
