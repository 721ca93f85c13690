//! An in-memory cold store for tests and for the simulator, which models its latency.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cold::{Cold, Copied};
use super::lock;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::Key;
use crate::sync::Mutex;
use crate::value::Value;

/// Values in a map. Clones share the map.
#[derive(Clone, Debug, Default)]
pub struct ColdMemory {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    values: Mutex<BTreeMap<(TableId, Key), (SnapshotVersion, Value)>>,
    gets: AtomicU64,
}

impl ColdMemory {
    /// The number of requests for one or many values.
    pub fn gets(&self) -> u64 {
        self.shared.gets.load(Ordering::Relaxed)
    }

    /// The number of stored values.
    pub fn len(&self) -> usize {
        lock(&self.shared.values).len()
    }

    /// Whether no values are stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Cold for ColdMemory {
    fn put(&self, values: &[Copied]) {
        let place = |it: &Copied| ((it.table, it.key.clone()), (it.version, it.value.clone()));
        lock(&self.shared.values).extend(values.iter().map(place));
    }

    fn get(&self, keys: &[(TableId, Key)]) -> Vec<Option<(SnapshotVersion, Value)>> {
        self.shared.gets.fetch_add(1, Ordering::Relaxed);
        let values = lock(&self.shared.values);
        keys.iter().map(|key| values.get(key).cloned()).collect()
    }

    fn remove(&self, gone: &[(TableId, Key, SnapshotVersion)]) {
        let mut values = lock(&self.shared.values);
        for (table, key, version) in gone {
            let place = (*table, key.clone());
            if values.get(&place).is_some_and(|(found, _)| found == version) {
                values.remove(&place);
            }
        }
    }

    fn clear(&self) {
        lock(&self.shared.values).clear();
    }
}
