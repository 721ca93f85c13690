//! Effects deferred until the log is durable up to a position.

use std::collections::BTreeMap;

use pangea_core::ids::LogPosition;
use pangea_core::protocol::{Effect, Protocol};

/// Deferred sends, replies and checkpoints by position, in the order of their arrival at each
/// position.
#[derive(Debug)]
pub(super) struct DeferredEffects<P: Protocol> {
    by_position: BTreeMap<LogPosition, Vec<Effect<P>>>,
    len: usize,
}

impl<P: Protocol> Default for DeferredEffects<P> {
    fn default() -> Self {
        Self { by_position: BTreeMap::new(), len: 0 }
    }
}

impl<P: Protocol> DeferredEffects<P> {
    /// Defers an effect until `after` is durable.
    pub fn hold(&mut self, after: LogPosition, effect: Effect<P>) {
        self.by_position.entry(after).or_default().push(effect);
        self.len += 1;
    }

    /// Removes and returns the effects deferred to positions up to `durable`.
    pub fn release(&mut self, durable: LogPosition) -> Vec<Effect<P>> {
        let later = self.by_position.split_off(&LogPosition(durable.0 + 1));
        let due = std::mem::replace(&mut self.by_position, later);
        let due: Vec<_> = due.into_values().flatten().collect();
        self.len -= due.len();
        due
    }

    /// The number of deferred effects.
    pub fn len(&self) -> usize {
        self.len
    }
}
