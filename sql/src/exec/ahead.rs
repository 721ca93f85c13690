//! Rows are named before they are looked up, many at a time.
//!
//! ```text
//!   rows are made, some at a time --> what each will look up is named --> each is written
//! ```
//!
//! A run that finds out what a statement touches ends where it looks at a row of another node that
//! it has not seen, and begins anew when that has come (Calvin §3.2.1): what was named by then
//! comes along. Where rows are at hand, those that are named are fetched from memory side by side.
//!
//! To name a row is not to read it. What fails while rows are named fails again at its row's turn,
//! and is told then.

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::Context;

use crate::error::Failure;
use crate::expr::Env;
use crate::plan::access::Access;
use crate::plan::path::Path;
use crate::plan::target::Target;
use crate::types::datum::Datum;

/// So many rows are made at first, and then each time as many as there are already: a run that
/// begins anew behind each of them makes no row much more than twice.
const ROWS_FIRST: usize = if cfg!(test) { 64 } else { 1_024 };

/// Rows that are made some at a time.
pub(super) struct Batches<I> {
    sources: I,
    /// How many are made next, and whether that grows.
    most: usize,
    grows: bool,
    made: usize,
    /// What the first failed with that could not be made: those before it come first.
    failure: Option<Failure>,
}

impl<I: Iterator> Batches<I> {
    /// Rows that may be made before those before them are written.
    pub fn new(sources: I) -> Self {
        Self { sources, most: ROWS_FIRST, grows: true, made: 0, failure: None }
    }

    /// Rows of which each is written before the next is made.
    pub fn one_by_one(sources: I) -> Self {
        Self { most: 1, grows: false, ..Self::new(sources) }
    }

    /// Makes the next rows: none where there are no more.
    ///
    /// # Errors
    /// That of a row, when those before it have been returned.
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

/// Names rows. A single one is looked up at once.
pub(super) fn name(rows: &[(TableId, Key)], cx: &mut dyn Context) {
    if rows.len() > 1 {
        cx.fetch(rows);
    }
}

/// What adding rows to a table looks up: their keys, and their entries in unique indexes.
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

/// Names rows that will be looked up by keys on the path of an access, with those that entries of
/// an index lead to.
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
