//! The memory that DataFusion uses for a statement: limited for each statement, and counted against
//! the limit on all results of the node.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::error::Result;
use datafusion::execution::memory_pool::{
    GreedyMemoryPool, MemoryLimit, MemoryPool, MemoryReservation,
};

use super::error::wrapped;
use crate::result_memory::ResultReservation;

/// The memory of one statement.
#[derive(Debug)]
pub(super) struct Pool {
    own: GreedyMemoryPool,
    reservation: Mutex<ResultReservation>,
}

impl Pool {
    pub(super) fn new(bytes_max: usize, reservation: ResultReservation) -> Self {
        Self { own: GreedyMemoryPool::new(bytes_max), reservation: Mutex::new(reservation) }
    }

    fn reservation(&self) -> MutexGuard<'_, ResultReservation> {
        self.reservation.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.reservation().take_anyway(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.own.shrink(reservation, shrink);
        self.reservation().give_back(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.own.try_grow(reservation, additional)?;
        self.reservation().take(additional).map_err(|error| {
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
