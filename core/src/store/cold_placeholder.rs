//! Placeholders of values that are in the cold store.

use super::cold::{Copied, Tier};
use super::table::Table;
use super::{Version, write};
use crate::hash::hash_bytes;
use crate::ids::SnapshotVersion;
use crate::key::Key;
use crate::mutate;
use crate::value::Value;

/// The result of evicting a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    Done,
    /// The value stays because it was used or written to, and its copy is recorded; or it was cold
    /// already.
    IsKept,
    /// The row no longer has the copied value.
    IsGone,
}

impl Table {
    /// Replaces a value by a placeholder if it is still the copied one.
    pub(super) fn evict(&self, copied: &Copied, tier: &Tier) -> Eviction {
        let Copied { table, key, version, value } = copied;
        let hash = hash_bytes(key);
        let shard = &self.shards[Self::shard_of(hash)];
        let mut rows = write(&shard.rows);
        let Some(row) = rows.find_mut(hash, |row| row.key == *key) else { return Eviction::IsGone };
        let chain = &mut row.chain;
        match chain.version(*version).and_then(|found| found.value.as_ref()) {
            Some(found) if found.is_same(value) => found.set_copied(),
            // It was loaded again, or is cold.
            Some(found) if found.has_copy() => return Eviction::IsKept,
            // It has another version, or the same number after a rollback.
            Some(_) | None => mutate!(EvictedUnchecked: return Eviction::IsGone => ()),
        }
        let newest = chain.newest();
        let is = |what: fn(&Value) -> bool| newest.value.as_ref().is_some_and(what);
        let is_the_same = newest.version == *version && chain.older().is_none();
        let may_go = is_the_same && is(Value::is_unused);
        let may_go = mutate!(EvictedUnchecked: may_go => may_go || is(|value| !value.is_cold()));
        if !may_go {
            return Eviction::IsKept;
        }
        let bytes = newest.value_bytes();
        chain.replace_value(Value::COLD);
        shard.count_bytes(0, bytes);
        tier.on_cold(*table, hash);
        Eviction::Done
    }

    /// Replaces a placeholder by its value if it is still there. Returns whether it was.
    pub(super) fn bring_back(
        &self,
        (hash, key): (u64, &Key),
        version: SnapshotVersion,
        value: Value,
        is_current: impl FnOnce() -> bool,
    ) -> bool {
        let shard = &self.shards[Self::shard_of(hash)];
        let mut rows = write(&shard.rows);
        let Some(row) = rows.find_mut(hash, |row| row.key == *key) else { return false };
        let newest = row.chain.newest();
        if newest.version != version || !is_cold(newest) || !is_current() {
            return false;
        }
        shard.count_bytes(value.heap_bytes(), 0);
        row.chain.replace_value(value);
        true
    }
}

/// Whether the value is a placeholder.
pub(super) fn is_cold(version: &Version) -> bool {
    version.value.as_ref().is_some_and(Value::is_cold)
}
