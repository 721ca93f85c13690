//! Transactions that a database rolled back and that were retried.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of attempts of a transaction, after which its abort is the outcome. A
/// transaction that fails this often in a row has a permanent problem.
pub(crate) const ATTEMPTS_MAX: u32 = 50;

/// Counts of aborts followed by a retry, by SQLSTATE; shared by all sessions of a baseline.
#[derive(Clone, Debug, Default)]
pub struct Retries(Arc<Mutex<BTreeMap<String, u64>>>);

impl Retries {
    /// Counts one retry.
    pub(crate) fn count(&self, code: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(counts.insert(code.to_owned(), 1)),
        }
    }

    /// Returns and resets the counts.
    pub fn take(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
