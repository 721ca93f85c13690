//! Top-K: the first K rows in sort order, from unordered input.

use std::cmp::Ordering;

use pangea_core::key::Key;

use super::{RowBuffer, check_size, query};
use crate::error::SqlError;
use crate::expr::{Env, Expr};
use crate::result_memory::{ResultReservation, size_of_row};
use crate::types::datum::Datum;
use crate::vocabulary::column::SortKey;

/// Minimum number of rows that are collected before the surplus is discarded.
const KEPT_MIN: usize = 1_024;

/// The first rows so far. Rows with equal sort keys are ordered by their keys in the table.
pub(super) struct TopK<'a> {
    sort: &'a [SortKey],
    wanted: usize,
    rows: Vec<(Key, Vec<Datum>)>,
    /// Whether `rows` begins with the first `wanted` rows so far, in order.
    is_full: bool,
    bytes: usize,
    reservation: ResultReservation,
}

impl<'a> TopK<'a> {
    pub(super) fn new(sort: &'a [SortKey], wanted: usize, env: &Env) -> Self {
        let reservation = ResultReservation::of(env.results.as_ref());
        Self { sort, wanted, rows: Vec::new(), is_full: false, bytes: 0, reservation }
    }

    /// Computes a row and keeps it, unless `wanted` rows precede it.
    pub(super) fn offer(
        &mut self,
        key: &[u8],
        row: &[Datum],
        output: &[Expr],
        env: &Env,
    ) -> Result<(), SqlError> {
        if self.is_full && self.is_late(key, row, output, env)? {
            // Evaluating an expression may fail, even if the row is not returned.
            let shown = output.iter().filter(|expr| !matches!(expr, Expr::Column(_)));
            return shown.map(|expr| expr.eval(row, env)).try_for_each(|it| it.map(drop));
        }
        let row = query::compute(output, row, env)?;
        self.keep(Key::from(key), row)
    }

    /// Whether `wanted` rows precede a row.
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
        self.reservation.take(size)?;
        self.rows.push((key, row));
        if self.rows.len() >= self.wanted.saturating_mul(2).max(KEPT_MIN) {
            self.cut();
        }
        Ok(())
    }

    /// Discards the rows after the first `wanted`.
    fn cut(&mut self) {
        self.sort();
        self.rows.truncate(self.wanted);
        self.is_full = true;
        self.bytes = self.rows.iter().map(|(_, row)| size_of_row(row)).sum();
        self.reservation.keep(self.bytes);
    }

    fn sort(&mut self) {
        let sort = self.sort;
        let by_sort = |a: &(Key, Vec<Datum>), b: &(Key, Vec<Datum>)| {
            query::compare(&a.1, &b.1, sort).then_with(|| a.0.cmp(&b.0))
        };
        self.rows.sort_unstable_by(by_sort);
    }

    /// Merges the rows of another instance. Their memory is reserved once.
    pub(super) fn merge(&mut self, other: Self) -> Result<(), SqlError> {
        drop(other.reservation);
        other.rows.into_iter().try_for_each(|(key, row)| self.keep(key, row))
    }

    /// Returns the rows in order. There may be more than `wanted`.
    pub(super) fn into_buffer(mut self) -> RowBuffer {
        self.sort();
        let rows = self.rows.into_iter().map(|(_, row)| row).collect();
        RowBuffer { rows, bytes: self.bytes, reservation: self.reservation }
    }
}
