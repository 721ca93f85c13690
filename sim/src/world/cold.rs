//! Cold rows, in runs with a memory limit.

use pangea_core::ids::{NodeId, TableId};
use pangea_core::key::Key;
use pangea_core::protocol::{Input, Protocol};
use pangea_core::store::{ColdMemory, Store};
use pangea_core::time::Span;

use super::World;
use super::node::{Node, Running};

/// The number of steps between two passes of the store's clock.
const CLOCK_STEPS: u64 = 8;

impl<P: Protocol> Node<P> {
    /// Creates a store and its memory of cold values.
    pub(super) fn new_store(&self) -> (Store, ColdMemory) {
        let cold = ColdMemory::default();
        let store = match self.memory_bytes {
            Some(bytes_max) => Store::with_cold(Box::new(cold.clone()), bytes_max),
            None => Store::new(),
        };
        (store, cold)
    }
}

impl<P: Protocol> Running<P> {
    /// Chooses cold values after one step and evicts them after a later one, as a concurrent thread
    /// would.
    pub(super) fn turn_clock(&mut self) {
        self.steps += 1;
        match self.steps % CLOCK_STEPS {
            0 => self.chosen = Some(self.store.choose_cold()),
            2 => {
                self.chosen.take().map(|chosen| self.store.evict_chosen(chosen));
            }
            _ => {}
        }
    }
}

impl<P: Protocol> World<P> {
    pub(super) fn on_fetched(
        &mut self,
        id: NodeId,
        life: u64,
        token: u64,
        keys: &[(TableId, Key)],
        took: Span,
    ) {
        let Some(running) = self.alive(id, life) else { return };
        let count = running.store.fetch_ahead(keys) as u64;
        self.trace.event(self.now, id, "fetched", [token, count], || format!("after {took}"));
        self.input(id, Input::Prefetched { token, took });
    }
}
