//! Values that are not in memory: a memory limit, eviction by the CLOCK algorithm, and fetching
//! (Calvin §4).
//!
//! A store may have a [`Cold`] store and a memory limit. Above the limit, it evicts the values of
//! rows that have not been used for long. Key, header and version stay in memory, so that order,
//! existence and versions need no disk access. A placeholder replaces the value.
//!
//! ```text
//!   key -> [ version 9: header, value ]    used: the clock hand passes it once
//!   key -> [ version 4: header, cold  ] -> cold store: table, key -> 4, value
//! ```
//!
//! Only the value of a row's newest version is evicted, and only if the version is published and
//! the row has no older one. There is therefore at most one copy of a key. As long as the row has a
//! placeholder, even in an older version after a write, the copy belongs to it. A reader that finds
//! a placeholder gets the value from the cold store and checks that it has the version of the
//! placeholder. If not, the row has changed, and the reader looks it up again.
//!
//! A store that rolls back ([`Store::retreat_to`]) may write another value under a version number
//! that was used before. A copy is therefore recorded only for the very value that was copied, and
//! a value fetched during a rollback is not stored in its row.
//!
//! Reading a value loads it back into memory. Its copy stays as long as the version exists, so
//! evicting the value again needs no write. A checkpoint, which reads all rows, does not load them
//! into memory.
//!
//! The set of rows in memory differs between replicas, so no decision may depend on it.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use super::cold_map::{ColdMap, ColdRows};
use super::cold_placeholder::{Eviction, is_cold};
use super::table::{HASH_SHARDS, Row, Table};
use super::{Store, Version, lock, read};
use crate::hash::{HashMap, hash_bytes};
use crate::ids::{SnapshotVersion, TableId};
use crate::key::{HashedKey, Key, KeyRange};
use crate::mutate;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::value::Value;

/// The storage of values that are not in memory. It need not survive the process.
///
/// Failures cannot be returned: an implementation must report them to the operator and panic.
pub trait Cold: Debug + Send + Sync {
    /// Stores values. Each replaces the value of its key, if there is one.
    fn put(&self, values: &[Copied]);

    /// The stored values of these keys, in their order.
    fn get(&self, keys: &[(TableId, Key)]) -> Vec<Option<(SnapshotVersion, Value)>>;

    /// Removes these keys if they have these versions.
    fn remove(&self, gone: &[(TableId, Key, SnapshotVersion)]);

    /// Removes all values.
    fn clear(&self);
}

/// A value to be copied to the cold store.
#[derive(Clone, Debug)]
pub struct Copied {
    /// The row's table.
    pub table: TableId,
    /// The row's key.
    pub key: Key,
    /// The version of the value.
    pub version: SnapshotVersion,
    /// The value.
    pub value: Value,
}

/// Counters since the store was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdCounts {
    /// The current number of rows whose value is only in the cold store.
    pub cold: u64,
    /// Evicted values.
    pub evicted: u64,
    /// Values fetched before they were needed.
    pub fetched_ahead: u64,
    /// Values that a reader waited for.
    pub reads: u64,
    /// Values that a transaction waited for while it held locks. Included in `reads`.
    pub stalls: u64,
}

/// The state of a store with a memory limit.
#[derive(Debug)]
pub(super) struct Tier {
    cold: Box<dyn Cold>,
    bytes_max: usize,
    hand: Mutex<Hand>,
    /// Copies whose version is gone. They must be removed before anything else is evicted: after a
    /// rollback there may be another value of the same version. Never locked during calls of the
    /// cold store, because writers would wait for them.
    gone: Mutex<Vec<(TableId, Key, SnapshotVersion)>>,
    /// Locked during writes to the cold store, and until the rows have been updated.
    writing: Mutex<()>,
    /// The rows with a placeholder.
    rows: ColdRows,
    count: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    cold: AtomicU64,
    evicted: AtomicU64,
    fetched_ahead: AtomicU64,
    reads: AtomicU64,
    stalls: AtomicU64,
}

/// The position of the clock hand: a row in a shard of a table.
#[derive(Clone, Copy, Debug, Default)]
struct Hand {
    table: TableId,
    shard: usize,
    row: usize,
}

/// Values chosen for eviction.
#[derive(Debug, Default)]
pub struct Chosen {
    /// Values of which the cold store has no copy yet.
    fresh: Vec<Copied>,
    /// Values of which the cold store has a copy.
    copied: Vec<Copied>,
    bytes: usize,
}

impl Chosen {
    fn is_full(&self) -> bool {
        self.fresh.len() + self.copied.len() >= CHOSEN_MAX || self.bytes >= CHOSEN_BYTES_MAX
    }

    /// Moves the clock hand past a row.
    fn pass(&mut self, table: TableId, row: &Row, upto: SnapshotVersion) {
        let newest = row.chain.newest();
        let Some(value) = newest.value.as_ref() else { return };
        let may_go = newest.version <= upto && row.chain.older().is_none();
        if !may_go || !value.take_turn() {
            return;
        }
        self.bytes += value.heap_bytes();
        let (key, version) = (row.key.clone(), newest.version);
        let copied = Copied { table, key, version, value: value.clone() };
        match value.has_copy() {
            true => self.copied.push(copied),
            false => self.fresh.push(copied),
        }
    }
}

/// The maximum number of values evicted at a time.
const CHOSEN_MAX: usize = if cfg!(test) { 3 } else { 256 };
/// The maximum number of bytes evicted at a time.
const CHOSEN_BYTES_MAX: usize = 1 << 20;
/// The maximum number of rows that the hand passes while their shard is locked.
const PASSED_MAX: usize = if cfg!(test) { 5 } else { 1024 };
/// Eviction continues until memory is below the limit by the limit divided by this number.
/// Otherwise it would be needed again at once.
const SLACK_PART: usize = 64;
/// The number of passes of the clock hand that a prefetched value survives.
const AHEAD_TURNS: u8 = 3;
/// From this number of outdated copies on, they are removed without waiting for the next eviction.
const GONE_MANY: usize = if cfg!(test) { 3 } else { 1 << 12 };
/// The maximum number of outdated copies to remember. Others stay until their key is evicted again.
const GONE_MAX: usize = 1 << 16;
/// The maximum number of lookups of a value that is missing where its row says it is. Each miss
/// means that the row changed concurrently; this many in a row are impossible.
const TRIES_MAX: usize = 64;

impl Tier {
    /// Records that the copies of these versions of a key are no longer needed, because the
    /// versions are gone or were not evicted after all.
    pub(super) fn on_gone(
        &self,
        table: TableId,
        key: &Key,
        versions: impl IntoIterator<Item = SnapshotVersion>,
    ) {
        let mut versions = versions.into_iter().peekable();
        if versions.peek().is_some() {
            let mut gone = lock(&self.gone);
            let room = GONE_MAX.saturating_sub(gone.len());
            gone.extend(versions.take(room).map(|version| (table, key.clone(), version)));
        }
    }

    /// Records that a row got a placeholder. Called while the row is locked, so that calls for one
    /// row are in order.
    pub(super) fn on_cold(&self, table: TableId, hash: u64) {
        self.count.cold.fetch_add(1, Ordering::Relaxed);
        self.rows.add(table, hash);
    }

    /// Records that a row with a placeholder was written to, or its value loaded.
    pub(super) fn on_warm(&self, table: TableId, hash: u64) {
        // The counter may already be zero if everything was cleared concurrently.
        let one_less = |count: u64| Some(count.saturating_sub(1));
        let _ = self.count.cold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        self.rows.remove(table, hash);
    }

    /// Records that a row was rolled back and these of its versions are gone. Called while the row
    /// is locked.
    pub(super) fn on_retreat(
        &self,
        (table, hash, key): (TableId, u64, &Key),
        (was_cold, is_cold): (bool, bool),
        gone: Vec<SnapshotVersion>,
    ) {
        match (was_cold, is_cold) {
            (true, false) => self.on_warm(table, hash),
            (false, true) => self.on_cold(table, hash),
            (true, true) | (false, false) => {}
        }
        self.on_gone(table, key, gone);
    }

    /// Removes the copies that are no longer needed. The caller must have locked [`Tier::writing`].
    fn remove_gone(&self) {
        let gone = std::mem::take(&mut *lock(&self.gone));
        if !gone.is_empty() {
            self.cold.remove(&gone);
        }
    }

    pub(super) fn clear(&self) {
        let _writing = lock(&self.writing);
        lock(&self.gone).clear();
        self.cold.clear();
        self.rows.clear();
        self.count.cold.store(0, Ordering::Relaxed);
    }

    fn count_reads(&self, count: usize, is_stall: bool) {
        self.count.reads.fetch_add(count as u64, Ordering::Relaxed);
        if is_stall {
            self.count.stalls.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
}

impl Store {
    /// Creates an empty store that keeps up to `bytes_max` bytes in memory, as far as possible, and
    /// other values in `cold`, which it empties.
    pub fn with_cold(cold: Box<dyn Cold>, bytes_max: usize) -> Self {
        cold.clear();
        let (hand, gone, writing, count) = Default::default();
        let rows = ColdRows::new(bytes_max);
        let tier = Tier { cold, bytes_max, hand, gone, writing, rows, count };
        Self { tier: Some(Box::new(tier)), ..Self::new() }
    }

    /// Whether there is a memory limit.
    pub fn has_cold(&self) -> bool {
        self.tier.is_some()
    }

    /// The memory limit in bytes, which is kept as far as possible; `None` if there is no limit.
    pub fn memory_bytes_max(&self) -> Option<usize> {
        self.tier.as_ref().map(|tier| tier.bytes_max)
    }

    /// The counters of the cold store.
    pub fn cold_counts(&self) -> ColdCounts {
        let Some(tier) = &self.tier else { return ColdCounts::default() };
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ColdCounts {
            cold: of(&tier.count.cold),
            evicted: of(&tier.count.evicted),
            fetched_ahead: of(&tier.count.fetched_ahead),
            reads: of(&tier.count.reads),
            stalls: of(&tier.count.stalls),
        }
    }

    /// Whether the newest value of a key is not in memory.
    pub fn is_cold(&self, table: TableId, key: &[u8]) -> bool {
        let key = HashedKey::from(key);
        let Some(table) = self.tables.table(table).filter(|_| self.has_cold()) else {
            return false;
        };
        table.with_row(key.hash(), key.key(), |row| is_cold(row.chain.newest())).unwrap_or(false)
    }

    /// A map of the rows whose newest values are not in memory, for other nodes.
    pub fn cold_map(&self) -> ColdMap {
        self.tier.as_ref().map_or_else(ColdMap::default, |tier| tier.rows.map())
    }

    /// The keys of a range that a reader of the newest published version sees, at most `most`.
    pub fn keys_in(&self, table: TableId, range: &KeyRange, most: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        self.scan_heads(table, range, self.published(), |key, _| {
            keys.push(key.clone());
            if keys.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        keys
    }

    /// Evicts values while memory is above its limit. Returns whether memory is now below it. The
    /// clock hand passes all rows at most twice.
    pub fn evict(&self) -> bool {
        self.evict_upto(self.published())
    }

    /// Like [`Store::evict`], for versions up to `upto`. They need not be published if there are no
    /// readers.
    pub(super) fn evict_upto(&self, upto: SnapshotVersion) -> bool {
        if !self.is_over_limit() {
            self.forget_gone();
            return true;
        }
        let mut rounds = 2 * HASH_SHARDS * self.table_ids().len();
        while rounds > 0 {
            let chosen = self.choose_upto(upto, &mut rounds);
            if !self.evict_chosen(chosen) {
                return true;
            }
        }
        false
    }

    /// Removes outdated copies if there are many and no value is evicted.
    fn forget_gone(&self) {
        if let Some(tier) = self.tier.as_ref().filter(|tier| lock(&tier.gone).len() >= GONE_MANY) {
            let _writing = lock(&tier.writing);
            tier.remove_gone();
        }
    }

    /// Chooses some values to evict if memory is above its limit. Checks only part of the rows.
    pub fn choose_cold(&self) -> Chosen {
        match self.is_over_limit() {
            true => self.choose_upto(self.published(), &mut HASH_SHARDS.clone()),
            false => Chosen::default(),
        }
    }

    fn is_over_limit(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| self.memory_bytes() > tier.bytes_max)
    }

    /// Advances the clock hand past the ends of at most `rounds` shards.
    fn choose_upto(&self, upto: SnapshotVersion, rounds: &mut usize) -> Chosen {
        let mut chosen = Chosen::default();
        let Some(tier) = &self.tier else { return chosen };
        let mut hand = lock(&tier.hand);
        let ids = self.table_ids();
        while !chosen.is_full() && *rounds > 0 {
            let at = ids.partition_point(|id| *id < hand.table);
            let Some(&id) = ids.get(at).or(ids.first()) else { break };
            if id != hand.table {
                *hand = Hand { table: id, ..Hand::default() };
            }
            let table = self.tables.table(id).expect("a written table exists");
            let rows = read(&table.shards[hand.shard].rows);
            let mut passed = 0;
            while hand.row < rows.len() && passed < PASSED_MAX && !chosen.is_full() {
                chosen.pass(id, rows.row(hand.row), upto);
                (hand.row, passed) = (hand.row + 1, passed + 1);
            }
            if hand.row >= rows.len() {
                *rounds -= 1;
                let (shard, row) = (hand.shard + 1, 0);
                *hand = match shard < HASH_SHARDS {
                    true => Hand { table: id, shard, row },
                    false => Hand { table: TableId(id.0.wrapping_add(1)), shard: 0, row },
                };
            }
        }
        chosen
    }

    /// Evicts the chosen values, except those used or written to since. Returns whether memory is
    /// still too large.
    pub fn evict_chosen(&self, chosen: Chosen) -> bool {
        let Some(tier) = &self.tier else { return false };
        let Chosen { mut fresh, copied, .. } = chosen;
        {
            let _writing = lock(&tier.writing);
            tier.remove_gone();
            // An outdated value must not replace the copy of a later version.
            fresh.retain(|it| mutate!(EvictedUnchecked: self.is_newest(it) => true));
            if !fresh.is_empty() {
                tier.cold.put(&fresh);
            }
            fresh.iter().chain(&copied).for_each(|copied| self.mark_cold(tier, copied));
        }
        self.memory_bytes() > tier.bytes_max - tier.bytes_max / SLACK_PART
    }

    /// Whether this is still the newest value of its row.
    fn is_newest(&self, Copied { table, key, version, value }: &Copied) -> bool {
        let Some(rows) = self.tables.table(*table) else { return false };
        let is_newest = |row: &Row| {
            let newest = row.chain.newest();
            newest.version == *version
                && newest.value.as_ref().is_some_and(|newest| newest.is_same(value))
        };
        rows.with_row(hash_bytes(key), key, is_newest).unwrap_or(false)
    }

    /// Replaces a value that the cold store has by a placeholder.
    fn mark_cold(&self, tier: &Tier, copied: &Copied) {
        let Copied { table, key, version, .. } = copied;
        let Some(rows) = self.tables.table(*table) else { return };
        match rows.evict(copied, tier) {
            Eviction::Done => {
                tier.count.evicted.fetch_add(1, Ordering::Relaxed);
            }
            Eviction::IsKept => {}
            Eviction::IsGone => tier.on_gone(*table, key, [*version]),
        }
    }

    /// The visible version of a row whose value is not in memory.
    #[cold]
    pub(super) fn see_cold(
        &self,
        id: TableId,
        key: &HashedKey,
        at: SnapshotVersion,
        mut seen: Version,
    ) -> Option<Version> {
        let tier = self.tier.as_ref().expect("marks of cold values need a cold store");
        let table = self.tables.table(id)?;
        mutate!(ColdIsAbsent: () => if at > self.published() { return None });
        for _ in 0..TRIES_MAX {
            let losses = self.losses.load(Ordering::Acquire);
            let found = tier.cold.get(&[(id, key.key().clone())]).pop().flatten();
            if let Some((version, value)) = found
                && version == seen.version
            {
                tier.count_reads(1, at > self.published());
                let place = (id, key.hash(), key.key());
                self.bring_back(tier, place, (version, &value), 1, losses);
                return Some(Version { value: Some(value), ..seen });
            }
            match table.with_visible(key, at, Version::clone)? {
                Ok(warm) => return Some(warm),
                Err((_, again)) => seen = again,
            }
        }
        panic!("the value of {:?} in {id} is missing: version {}", key.key(), seen.version);
    }

    /// The values of keys that are not in memory, with their versions. Does not load them into
    /// memory.
    pub(super) fn passing_of<'k>(
        &self,
        (id, table): (TableId, &Table),
        keys: &'k [Key],
        at: SnapshotVersion,
    ) -> HashMap<(&'k Key, SnapshotVersion), Value> {
        let Some(tier) = &self.tier else { return HashMap::default() };
        let is_away = |row: &Row| row.chain.visible(at).is_some_and(is_cold);
        let is_cold = |key: &&Key| table.with_row(hash_bytes(key), key, is_away).unwrap_or(false);
        let cold: Vec<&Key> = keys.iter().filter(is_cold).collect();
        if cold.is_empty() {
            return HashMap::default();
        }
        let found = tier.cold.get(&cold.iter().map(|&key| (id, key.clone())).collect::<Vec<_>>());
        let found = cold.into_iter().zip(found);
        found.filter_map(|(key, found)| found.map(|(at, value)| ((key, at), value))).collect()
    }

    /// Whether the values of all these keys are in memory. Those that are will not be evicted for
    /// some passes of the clock hand.
    pub fn keep_warm(&self, keys: &[(TableId, Key)]) -> bool {
        let is_cold = |(table, key): &&(TableId, Key)| {
            self.has_cold() && self.is_cold_or_protect(*table, key, AHEAD_TURNS)
        };
        keys.iter().filter(is_cold).count() == 0
    }

    /// Fetches the values of these keys that are not in memory, before they are needed, and
    /// protects them from eviction for some passes of the clock hand. Returns the number of fetched
    /// values.
    pub fn fetch_ahead(&self, keys: &[(TableId, Key)]) -> usize {
        let Some(tier) = &self.tier else { return 0 };
        let fetched = self.fetch_cold(tier, keys, AHEAD_TURNS);
        tier.count.fetched_ahead.fetch_add(fetched as u64, Ordering::Relaxed);
        fetched
    }

    /// Fetches the values of these keys that are not in memory, for a reader at `at`.
    pub(super) fn fetch_for(&self, keys: &[(TableId, Key)], at: SnapshotVersion) {
        let Some(tier) = &self.tier else { return };
        let fetched = self.fetch_cold(tier, keys, 1);
        tier.count_reads(fetched, at > self.published());
    }

    /// Loads the cold values among these keys and returns their number.
    fn fetch_cold(&self, tier: &Tier, keys: &[(TableId, Key)], turns: u8) -> usize {
        let cold = |(table, key): &&(TableId, Key)| self.is_cold_or_protect(*table, key, turns);
        let cold: Vec<(TableId, Key)> = keys.iter().filter(cold).cloned().collect();
        if cold.is_empty() {
            return 0;
        }
        let losses = self.losses.load(Ordering::Acquire);
        let found = tier.cold.get(&cold);
        for ((table, key), found) in cold.iter().zip(&found) {
            if let Some((version, value)) = found {
                let place = (*table, hash_bytes(key), key);
                self.bring_back(tier, place, (*version, value), turns, losses);
            }
        }
        cold.len()
    }

    /// Whether a value is not in memory. Protects a value in memory from eviction for `turns`
    /// passes.
    fn is_cold_or_protect(&self, table: TableId, key: &Key, turns: u8) -> bool {
        let Some(table) = self.tables.table(table) else { return false };
        let look = |row: &Row| match &row.chain.newest().value {
            Some(value) if value.is_cold() => true,
            Some(value) => {
                value.protect(turns);
                false
            }
            None => false,
        };
        table.with_row(hash_bytes(key), key, look).unwrap_or(false)
    }

    /// Replaces a placeholder by its value. The value was read from the cold store when `losses`
    /// had this count: if the store rolled back since, the row may have another value of the same
    /// version.
    fn bring_back(
        &self,
        tier: &Tier,
        (id, hash, key): (TableId, u64, &Key),
        (version, value): (SnapshotVersion, &Value),
        turns: u8,
        losses: u64,
    ) {
        let Some(table) = self.tables.table(id) else { return };
        let value = value.clone().copied();
        value.protect(turns);
        // A rollback changes the counter before it locks rows, and again after it.
        let is_current = || self.losses.load(Ordering::Relaxed) == losses;
        if table.bring_back((hash, key), version, value, is_current) {
            tier.on_warm(id, hash);
        }
    }
}
