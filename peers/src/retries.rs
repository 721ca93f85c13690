//! Transactions that a database undid and that were done again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How often a transaction is done again before its abort is the outcome. A transaction that
/// loses this often in a row has met something that does not go away.
pub(crate) const ATTEMPTS_MAX: u32 = 50;

/// Counts of aborts that were followed by another attempt, by SQLSTATE; shared by all sessions of a
/// peer.
#[derive(Clone, Debug, Default)]
pub struct Retries(Arc<Mutex<BTreeMap<String, u64>>>);

impl Retries {
    /// Counts one.
    pub(crate) fn count(&self, code: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(counts.insert(code.to_owned(), 1)),
        }
    }

    /// What was counted so far, and forgets it.
    pub fn take(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
