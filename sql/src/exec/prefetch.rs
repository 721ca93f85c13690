//! Prefetching: rows are announced in batches before they are looked up.
//!
//! ```text
//!   rows are computed in batches --> the lookups of a batch are announced --> its rows are written
//! ```
//!
//! A reconnaissance run (Calvin §3.2.1) stops when it reads a remote row that it does not have, and
//! restarts when the row has arrived. All rows announced by then arrive with it. If rows are local,
//! announced rows are fetched from memory in parallel.
//!
//! Announcing a row is not a read. An error while rows are announced is ignored: it recurs, and is
//! reported, when the row itself is processed.

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::Context;

use crate::access::Access;
use crate::access::path::Path;
use crate::error::Failure;
use crate::expr::Env;
use crate::plan::target::Target;
use crate::types::datum::Datum;

/// Size of the first batch. Each later batch is as large as all before it. A run that restarts
/// after each batch therefore computes a row about twice on average.
const ROWS_FIRST: usize = if cfg!(test) { 64 } else { 1_024 };

/// An iterator over batches of computed rows.
pub(super) struct Batches<I> {
    sources: I,
    /// Size of the next batch, and whether sizes grow.
    most: usize,
    grows: bool,
    made: usize,
    /// Error of the row after the last batch. The rows before it are returned first.
    failure: Option<Failure>,
}

impl<I: Iterator> Batches<I> {
    /// Batches of rows that may be computed before the preceding rows are written.
    pub fn new(sources: I) -> Self {
        Self { sources, most: ROWS_FIRST, grows: true, made: 0, failure: None }
    }

    /// Batches of one row, for rows that must be written before the next is computed.
    pub fn one_by_one(sources: I) -> Self {
        Self { most: 1, grows: false, ..Self::new(sources) }
    }

    /// Computes the next batch; empty at the end.
    ///
    /// # Errors
    /// Fails with the error of a row after the rows before it have been returned.
    pub fn next<T>(
        &mut self,
        mut make: impl FnMut(I::Item) -> Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut batch = Vec::new();
        for source in self.sources.by_ref().take(self.most) {
            match make(source) {
                Ok(row) => batch.push(row),
                Err(failure) if batch.is_empty() => return Err(failure),
                Err(failure) => {
                    self.failure = Some(failure);
                    break;
                }
            }
        }
        self.made += batch.len();
        if self.grows {
            self.most = self.most.max(self.made);
        }
        Ok(batch)
    }
}

/// Announces rows. A single row is not announced, because it is looked up right away.
pub(super) fn name(rows: &[(TableId, Key)], cx: &mut dyn Context) {
    if rows.len() > 1 {
        cx.fetch(rows);
    }
}

/// Returns the lookups of an insertion of rows: their keys, and their entries in unique indexes.
pub(super) fn of_new(
    target: &Target,
    rows: &[(Key, Vec<Datum>)],
    env: &Env,
) -> Vec<(TableId, Key)> {
    let mut named = Vec::new();
    if rows.len() < 2 {
        return named;
    }
    let (primary, indexes) = target.paths.split_first().expect("each row is on a path");
    let is_unique = |path: &&Path| path.index.as_ref().is_some_and(|index| index.is_unique);
    let indexes: Vec<&Path> = indexes.iter().map(|path| &**path).filter(is_unique).collect();
    for (key, row) in rows {
        if primary.is_unique() {
            named.push((primary.store, key.clone()));
        }
        for path in &indexes {
            if let Ok(Some((entry, true))) = path.entry(row, key, env) {
                named.push((path.store, entry));
            }
        }
    }
    named
}

/// Announces rows that will be looked up by key on the path of an access. If the path is an index,
/// also announces the rows that its entries refer to.
pub(super) fn name_points(
    access: &Access,
    points: impl IntoIterator<Item = Key>,
    cx: &mut dyn Context,
) -> Result<(), Failure> {
    let store = access.path.store;
    let points: Vec<_> = points.into_iter().map(|key| (store, key)).collect();
    name(&points, cx);
    if access.path.index.is_some() && points.len() > 1 {
        let mut rows = Vec::with_capacity(points.len());
        for (_, entry) in &points {
            let found = cx.get(store, entry)?;
            rows.extend(found.map(|row_key| (access.table.id, Key::from(&row_key[..]))));
        }
        name(&rows, cx);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
