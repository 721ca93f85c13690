//! What results take of a node's memory until their clients have read them.
//!
//! Most results are streams: what is there of one is a batch. Those that are sorted or grouped are
//! made whole, and so are the rows of RETURNING. All that is kept is counted here, over all
//! sessions of a node: a statement that would go beyond the limit fails with 53200, and no other
//! does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{SqlError, code};
use crate::types::datum::Datum;

/// What the results of a node take at most where nothing else is said: two of the largest.
pub const RESULTS_BYTES_DEFAULT: usize = 512 << 20;

/// So much of a result does not count: whoever asks for little gets it however full the node is.
const FREE_BYTES: usize = 256 << 10;

/// What all results of a node take.
#[derive(Debug)]
pub(crate) struct Results {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl Default for Results {
    fn default() -> Self {
        Self::up_to(RESULTS_BYTES_DEFAULT)
    }
}

impl Results {
    /// Nothing yet, and so much at most.
    pub(crate) fn up_to(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What one result takes, given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Nothing where a replica runs a statement that all of them run: what it may do must not
    /// depend on the node.
    of: Option<Arc<Results>>,
    bytes: usize,
    /// How much of it does not count.
    free: usize,
}

impl Held {
    pub(crate) fn of(results: Option<&Arc<Results>>) -> Self {
        Self { of: results.cloned(), bytes: 0, free: FREE_BYTES }
    }

    /// Of one of many that a session keeps: all of it counts.
    pub(crate) fn of_many(results: &Arc<Results>) -> Self {
        Self { of: Some(results.clone()), bytes: 0, free: 0 }
    }

    /// What of it counts.
    fn counted(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.free)
    }

    /// Takes more.
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

    /// Takes more, whatever there is: of what was done already and can't fail any more.
    pub(crate) fn take_anyway(&mut self, bytes: usize) {
        let all = self.bytes.saturating_add(bytes);
        if let Some(of) = &self.of {
            let more = self.counted(all) - self.counted(self.bytes);
            of.bytes.fetch_add(more, Ordering::Relaxed);
        }
        self.bytes = all;
    }

    /// Gives some back; no more than there is.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        let left = self.bytes.saturating_sub(bytes);
        if let Some(of) = &self.of {
            let less = self.counted(self.bytes) - self.counted(left);
            of.bytes.fetch_sub(less, Ordering::Relaxed);
        }
        self.bytes = left;
    }

    /// Gives back all but so much.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.give_back(self.bytes.saturating_sub(bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// What a row takes.
pub(crate) fn size_of_row(row: &[Datum]) -> usize {
    size_of::<Vec<Datum>>() + row.iter().map(Datum::size).sum::<usize>()
}

/// What rows take.
pub(crate) fn size_of_rows<'a>(rows: impl IntoIterator<Item = &'a Vec<Datum>>) -> usize {
    rows.into_iter().map(|row| size_of_row(row)).sum()
}

fn out_of_memory(bytes_max: usize) -> SqlError {
    let mebibytes = bytes_max >> 20;
    let detail = format!(
        "Results that clients have yet to read take {mebibytes} MiB on this node, which is all \
         that they may (results_mb in node.toml)."
    );
    SqlError::new(code::OUT_OF_MEMORY, "out of memory").with_detail(detail).with_hint(
        "Read or close results that are open, ask for fewer rows at a time, or leave out ORDER BY \
         and DISTINCT where no index has their order.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_and_given_back() {
        let results = Arc::new(Results::up_to(100));
        let mut first = Held::of(Some(&results));
        first.take(FREE_BYTES).unwrap();
        assert_eq!(results.bytes(), 0);
        first.take(60).unwrap();
        let mut second = Held::of(Some(&results));
        assert_eq!(second.take(FREE_BYTES + 41).unwrap_err().code, code::OUT_OF_MEMORY);
        assert_eq!(results.bytes(), 60);
        // One that is small finds its place however full the node is.
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
