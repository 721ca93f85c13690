//! An engine in memory that answers immediately.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;

use super::pangea::Ground;

/// An engine that never waits.
pub struct Memory {
    engine: MemoryEngine,
    shared: Arc<Shared>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { engine: MemoryEngine::new(), shared: Arc::default() }
    }
}

impl Ground for Memory {
    type Node = MemoryEngine;

    fn node(&self) -> (MemoryEngine, Arc<Shared>) {
        (self.engine.clone(), self.shared.clone())
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the memory engine never waits"),
        }
    }
}
