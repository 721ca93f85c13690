//! The memory that DataFusion uses for a statement: limited for each statement, and counted against
//! the limit on all results of the node.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::error::Result;
use datafusion::execution::memory_pool::{
    GreedyMemoryPool, MemoryLimit, MemoryPool, MemoryReservation,
};

use super::error::wrapped;
use crate::held::Held;

/// The memory of one statement.
#[derive(Debug)]
pub(super) struct Pool {
    own: GreedyMemoryPool,
    held: Mutex<Held>,
}

impl Pool {
    pub(super) fn new(bytes_max: usize, held: Held) -> Self {
        Self { own: GreedyMemoryPool::new(bytes_max), held: Mutex::new(held) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.own.fmt(f)
    }
}

impl MemoryPool for Pool {
    fn name(&self) -> &str {
        "statement"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.own.grow(reservation, additional);
        self.held().take_anyway(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.own.shrink(reservation, shrink);
        self.held().give_back(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.own.try_grow(reservation, additional)?;
        self.held().take(additional).map_err(|error| {
            self.own.shrink(reservation, additional);
            wrapped(error)
        })
    }

    fn reserved(&self) -> usize {
        self.own.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.own.memory_limit()
    }
}
