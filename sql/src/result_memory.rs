//! Memory that the results of a node take until their clients have read them.
//!
//! Most results are streams, of which one batch is in memory at a time. Sorted and grouped results
//! are materialized, and so are the rows of RETURNING. All memory of results is counted here, over
//! all sessions of a node. A statement that would exceed the limit fails with 53200; no other
//! statement fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{SqlError, code};
use crate::types::datum::Datum;

/// The default limit for the results of a node, in bytes: two of the largest results.
pub const RESULTS_BYTES_DEFAULT: usize = 512 << 20;

/// Bytes of each result that are not counted, so that small results succeed however full the node
/// is.
const FREE_BYTES: usize = 256 << 10;

/// The memory of all results of a node.
#[derive(Debug)]
pub(crate) struct ResultMemory {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl Default for ResultMemory {
    fn default() -> Self {
        Self::up_to(RESULTS_BYTES_DEFAULT)
    }
}

impl ResultMemory {
    /// Returns an empty account with this limit.
    pub(crate) fn up_to(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A reservation for one result; released when dropped.
#[derive(Debug, Default)]
pub(crate) struct ResultReservation {
    /// `None` if every replica runs the statement: its outcome must not depend on the node.
    of: Option<Arc<ResultMemory>>,
    bytes: usize,
    /// The free allowance, in bytes.
    free: usize,
}

impl ResultReservation {
    pub(crate) fn of(results: Option<&Arc<ResultMemory>>) -> Self {
        Self { of: results.cloned(), bytes: 0, free: FREE_BYTES }
    }

    /// A reservation without the free allowance, for results of which a session holds many.
    pub(crate) fn of_many(results: &Arc<ResultMemory>) -> Self {
        Self { of: Some(results.clone()), bytes: 0, free: 0 }
    }

    /// Returns the bytes that count, after the free allowance.
    fn counted(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.free)
    }

    /// Reserves more bytes; fails with 53200 if that exceeds the limit.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), SqlError> {
        let all = self.bytes.saturating_add(bytes);
        let more = self.counted(all) - self.counted(self.bytes);
        if let Some(of) = self.of.as_ref().filter(|_| more > 0) {
            let before = of.bytes.fetch_add(more, Ordering::Relaxed);
            if before.saturating_add(more) > of.bytes_max {
                of.bytes.fetch_sub(more, Ordering::Relaxed);
                return Err(out_of_memory(of.bytes_max));
            }
        }
        self.bytes = all;
        Ok(())
    }

    /// Reserves more bytes even above the limit, for work that is done already and cannot fail any
    /// more.
    pub(crate) fn take_anyway(&mut self, bytes: usize) {
        let all = self.bytes.saturating_add(bytes);
        if let Some(of) = &self.of {
            let more = self.counted(all) - self.counted(self.bytes);
            of.bytes.fetch_add(more, Ordering::Relaxed);
        }
        self.bytes = all;
    }

    /// Releases bytes, at most those that are reserved.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        let left = self.bytes.saturating_sub(bytes);
        if let Some(of) = &self.of {
            let less = self.counted(self.bytes) - self.counted(left);
            of.bytes.fetch_sub(less, Ordering::Relaxed);
        }
        self.bytes = left;
    }

    /// Shrinks the reservation to this number of bytes.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.give_back(self.bytes.saturating_sub(bytes));
    }
}

impl Drop for ResultReservation {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// Returns the size of a row in memory, in bytes.
pub(crate) fn size_of_row(row: &[Datum]) -> usize {
    size_of::<Vec<Datum>>() + row.iter().map(Datum::size).sum::<usize>()
}

/// Returns the size of rows in memory, in bytes.
pub(crate) fn size_of_rows<'a>(rows: impl IntoIterator<Item = &'a Vec<Datum>>) -> usize {
    rows.into_iter().map(|row| size_of_row(row)).sum()
}

fn out_of_memory(bytes_max: usize) -> SqlError {
    let mebibytes = bytes_max >> 20;
    let detail = format!(
        "Unread results of all clients on this node have reached the limit of {mebibytes} MiB \
         (results_mb in node.toml)."
    );
    SqlError::new(code::OUT_OF_MEMORY, "out of memory").with_detail(detail).with_hint(
        "Read or close open results, fetch fewer rows at a time, or leave out ORDER BY and \
         DISTINCT if no index has their order.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_and_given_back() {
        let results = Arc::new(ResultMemory::up_to(100));
        let mut first = ResultReservation::of(Some(&results));
        first.take(FREE_BYTES).unwrap();
        assert_eq!(results.bytes(), 0);
        first.take(60).unwrap();
        let mut second = ResultReservation::of(Some(&results));
        assert_eq!(second.take(FREE_BYTES + 41).unwrap_err().code, code::OUT_OF_MEMORY);
        assert_eq!(results.bytes(), 60);
        // A small result succeeds however full the node is.
        second.take(FREE_BYTES).unwrap();
        second.take(40).unwrap();
        first.give_back(10);
        second.take_anyway(60);
        assert_eq!(results.bytes(), 150);
        first.keep(0);
        assert_eq!(results.bytes(), 100);
        drop((first, second));
        assert_eq!(results.bytes(), 0);
    }
}
