//! The first rows by an order, of rows that come in any.

use std::cmp::Ordering;

use pangea_core::key::Key;

use super::{RowBuffer, check_size, query};
use crate::error::SqlError;
use crate::expr::{Env, Expr};
use crate::held::{Held, size_of_row};
use crate::plan::SortKey;
use crate::types::datum::Datum;

/// So many rows at least are gathered before those are thrown away that come too late.
const KEPT_MIN: usize = 1_024;

/// The first rows so far. Of equals those come first whose keys do.
pub(super) struct First<'a> {
    sort: &'a [SortKey],
    wanted: usize,
    rows: Vec<(Key, Vec<Datum>)>,
    /// Whether the rows at the front are the first of all so far, in order, as many as are wanted.
    is_full: bool,
    bytes: usize,
    held: Held,
}

impl<'a> First<'a> {
    pub(super) fn new(sort: &'a [SortKey], wanted: usize, env: &Env) -> Self {
        let held = Held::of(env.results.as_ref());
        Self { sort, wanted, rows: Vec::new(), is_full: false, bytes: 0, held }
    }

    /// Computes a row and keeps it, unless enough come before it.
    pub(super) fn offer(
        &mut self,
        key: &[u8],
        row: &[Datum],
        output: &[Expr],
        env: &Env,
    ) -> Result<(), SqlError> {
        if self.is_full && self.is_late(key, row, output, env)? {
            // What a row comes to may be an error, whether it is shown or not.
            let shown = output.iter().filter(|expr| !matches!(expr, Expr::Column(_)));
            return shown.map(|expr| expr.eval(row, env)).try_for_each(|it| it.map(drop));
        }
        let row = query::compute(output, row, env)?;
        self.keep(Key::from(key), row)
    }

    /// Whether enough rows come before one.
    fn is_late(
        &self,
        key: &[u8],
        row: &[Datum],
        output: &[Expr],
        env: &Env,
    ) -> Result<bool, SqlError> {
        let Some(last) = self.wanted.checked_sub(1) else { return Ok(true) };
        let (last_key, last) = &self.rows[last];
        for by in self.sort {
            let value = output[by.column].value(row, env)?;
            match query::compare_by(&value, &last[by.column], *by) {
                Ordering::Equal => {}
                other => return Ok(other.is_gt()),
            }
        }
        Ok(key > last_key.as_bytes())
    }

    fn keep(&mut self, key: Key, row: Vec<Datum>) -> Result<(), SqlError> {
        let size = size_of_row(&row);
        self.bytes += size;
        check_size(self.rows.len() + 1, self.bytes)?;
        self.held.take(size)?;
        self.rows.push((key, row));
        if self.rows.len() >= self.wanted.saturating_mul(2).max(KEPT_MIN) {
            self.cut();
        }
        Ok(())
    }

    /// Throws away what comes too late.
    fn cut(&mut self) {
        self.sort();
        self.rows.truncate(self.wanted);
        self.is_full = true;
        self.bytes = self.rows.iter().map(|(_, row)| size_of_row(row)).sum();
        self.held.keep(self.bytes);
    }

    fn sort(&mut self) {
        let sort = self.sort;
        let by_sort = |a: &(Key, Vec<Datum>), b: &(Key, Vec<Datum>)| {
            query::compare(&a.1, &b.1, sort).then_with(|| a.0.cmp(&b.0))
        };
        self.rows.sort_unstable_by(by_sort);
    }

    /// Takes in what others have kept, which counts once.
    pub(super) fn merge(&mut self, other: Self) -> Result<(), SqlError> {
        drop(other.held);
        other.rows.into_iter().try_for_each(|(key, row)| self.keep(key, row))
    }

    /// The rows in order, some of those perhaps that are not wanted with them.
    pub(super) fn into_buffer(mut self) -> RowBuffer {
        self.sort();
        let rows = self.rows.into_iter().map(|(_, row)| row).collect();
        RowBuffer { rows, bytes: self.bytes, held: self.held }
    }
}
