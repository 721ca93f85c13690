//! Values that are not in memory: a limit, a clock that finds what was not used, and the way back
//! (Calvin §4).
//!
//! A store may be given a [`Cold`] store and a limit. Above the limit the values of rows that were
//! not used for long are put away there. Key, header and version stay where they are, so that
//! order, existence and versions need no disk; in the place of the value is a mark.
//!
//! ```text
//!   key -> [ version 9: header, value ]    used: goes once around the clock's face
//!   key -> [ version 4: header, cold  ] -> cold store: table, key -> 4, value
//! ```
//!
//! Only the value of a row's newest version is put away, and only where the version is published
//! and has no older one beside it. So there is one copy of a key at most, and while a mark is in
//! the row, also after a write has made an older version of it, the copy is that of the mark. Who
//! finds a mark gets the value from the cold store and looks whether it is of the version that was
//! seen; if not, the row has changed meanwhile and is looked at again.
//!
//! A store that goes back ([`Store::retreat_to`]) may write another value under a number that it
//! had before. So a copy is noted only for the very value that was copied, and none is brought to a
//! row that was fetched while the store went back.
//!
//! Reading brings a value back into memory, and its copy stays where it is as long as the version
//! does: to put it away again costs no write. What reads all rows, a checkpoint, leaves them where
//! they are.
//!
//! Each replica has other rows in memory than the next. Nothing that is decided may depend on it.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use super::cold_map::{ColdMap, ColdRows};
use super::cold_mark::{PutAway, is_cold};
use super::table::{HASH_SHARDS, Row, Table};
use super::{Store, Version, lock, read};
use crate::hash::{HashMap, hash_bytes};
use crate::ids::{SnapshotVersion, TableId};
use crate::key::{HashedKey, Key, KeyRange};
use crate::planted::{Bug, is_planted};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::value::Value;

/// Where values are that are not in memory. It need not survive the process.
///
/// What fails here can't be answered: an implementation must tell whom it concerns, and panic.
pub trait Cold: Debug + Send + Sync {
    /// Keeps values, each in the place of what is there of its key.
    fn put(&self, values: &[Copied]);

    /// What is there of these keys, in their order.
    fn get(&self, keys: &[(TableId, Key)]) -> Vec<Option<(SnapshotVersion, Value)>>;

    /// Forgets these keys, where they are of these versions.
    fn remove(&self, gone: &[(TableId, Key, SnapshotVersion)]);

    /// Forgets all.
    fn clear(&self);
}

/// A value for the cold store.
#[derive(Clone, Debug)]
pub struct Copied {
    /// The row's table.
    pub table: TableId,
    /// The row's key.
    pub key: Key,
    /// The version that the value is of.
    pub version: SnapshotVersion,
    /// The value.
    pub value: Value,
}

/// What was counted since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdCounts {
    /// Rows whose value is in the cold store alone, now.
    pub cold: u64,
    /// Values that were put away.
    pub evicted: u64,
    /// Values that were fetched before they were needed.
    pub fetched_ahead: u64,
    /// Values that a reader waited for.
    pub reads: u64,
    /// Those of them that a transaction waited for while it held locks.
    pub stalls: u64,
}

/// What a store has that may not keep all values in memory.
#[derive(Debug)]
pub(super) struct Tier {
    cold: Box<dyn Cold>,
    bytes_max: usize,
    hand: Mutex<Hand>,
    /// Copies whose version is gone, and that are to be removed before anything else is put away:
    /// after that there may be another of the same version, if the store went back. Never locked
    /// while the cold store works: whoever applies would wait for it.
    gone: Mutex<Vec<(TableId, Key, SnapshotVersion)>>,
    /// Locked while anything is written to the cold store, and until the rows say so.
    writing: Mutex<()>,
    /// The rows with a mark.
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

/// Where the clock's hand is: at a row of a table's shard.
#[derive(Clone, Copy, Debug, Default)]
struct Hand {
    table: TableId,
    shard: usize,
    row: usize,
}

/// Values that the clock has chosen.
#[derive(Debug, Default)]
pub struct Chosen {
    /// Those of which the cold store has no copy yet.
    fresh: Vec<Copied>,
    /// The others.
    copied: Vec<Copied>,
    bytes: usize,
}

impl Chosen {
    fn is_full(&self) -> bool {
        self.fresh.len() + self.copied.len() >= CHOSEN_MAX || self.bytes >= CHOSEN_BYTES_MAX
    }

    /// The clock's hand passes a row.
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

/// So many values are put away at a time.
const CHOSEN_MAX: usize = if cfg!(test) { 3 } else { 256 };
/// Or so many bytes of them.
const CHOSEN_BYTES_MAX: usize = 1 << 20;
/// Rows that the hand passes while their shard is locked.
const PASSED_MAX: usize = if cfg!(test) { 5 } else { 1024 };
/// The clock goes on until memory is this much below the limit, as one part of so many: else it
/// would be asked again at once.
const SLACK_PART: usize = 64;
/// Turns of the clock for which what was fetched ahead is safe from it.
const AHEAD_TURNS: u8 = 3;
/// Copies to be removed that do not wait until something is put away.
const GONE_MANY: usize = if cfg!(test) { 3 } else { 1 << 12 };
/// Copies to be removed that wait. Others stay until their key is put away again.
const GONE_MAX: usize = 1 << 16;
/// A value that is not where the row says was put elsewhere meanwhile; so often it can't be.
const TRIES_MAX: usize = 64;

impl Tier {
    /// These versions of a key are gone, or will not be put away after all.
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

    /// A mark was left in a row. Told while the row is locked: before anybody tells the opposite.
    pub(super) fn on_cold(&self, table: TableId, hash: u64) {
        self.count.cold.fetch_add(1, Ordering::Relaxed);
        self.rows.add(table, hash);
    }

    /// A row with a mark was written to, or its value brought back.
    pub(super) fn on_warm(&self, table: TableId, hash: u64) {
        // Less than none, where all was cleared meanwhile.
        let one_less = |count: u64| Some(count.saturating_sub(1));
        let _ = self.count.cold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        self.rows.remove(table, hash);
    }

    /// A row went back, and these of its versions are gone. Told while it is locked.
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

    /// Removes the copies that are not needed any more. Only by who has locked [`Tier::writing`].
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
    /// An empty store that keeps as much in memory as `bytes_max` says, as far as that is possible,
    /// and other values in `cold`, which it empties.
    pub fn with_cold(cold: Box<dyn Cold>, bytes_max: usize) -> Self {
        cold.clear();
        let (hand, gone, writing, count) = Default::default();
        let rows = ColdRows::new(bytes_max);
        let tier = Tier { cold, bytes_max, hand, gone, writing, rows, count };
        Self { tier: Some(Box::new(tier)), ..Self::new() }
    }

    /// Whether there is a limit on memory.
    pub fn has_cold(&self) -> bool {
        self.tier.is_some()
    }

    /// How much is kept in memory, as far as that is possible, in bytes; nothing where all is.
    pub fn memory_bytes_max(&self) -> Option<usize> {
        self.tier.as_ref().map(|tier| tier.bytes_max)
    }

    /// What was counted.
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

    /// Which rows' newest values are not in memory, for other nodes.
    pub fn cold_map(&self) -> ColdMap {
        self.tier.as_ref().map_or_else(ColdMap::default, |tier| tier.rows.map())
    }

    /// The keys of a range that a reader of the newest published version sees, so many at most.
    pub fn keys_in(&self, table: TableId, range: &KeyRange, most: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        self.scan_heads(table, range, self.published(), |key, _| {
            keys.push(key.clone());
            if keys.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        keys
    }

    /// Puts values away while memory is above its limit, and returns whether it is not any more.
    /// Goes around the clock's face twice at most.
    pub fn evict(&self) -> bool {
        self.evict_upto(self.published())
    }

    /// Does the same with versions up to this one, which need not be published where nobody reads.
    pub(super) fn evict_upto(&self, upto: SnapshotVersion) -> bool {
        if !self.is_over_limit() {
            self.forget_gone();
            return true;
        }
        let mut rounds = 2 * HASH_SHARDS * self.table_ids().len();
        while rounds > 0 {
            let chosen = self.choose_upto(upto, &mut rounds);
            if !self.put_away(chosen) {
                return true;
            }
        }
        false
    }

    /// Removes copies that are not needed, where they are many and nothing is put away.
    fn forget_gone(&self) {
        if let Some(tier) = self.tier.as_ref().filter(|tier| lock(&tier.gone).len() >= GONE_MANY) {
            let _writing = lock(&tier.writing);
            tier.remove_gone();
        }
    }

    /// Chooses some values that can be put away, if memory is above its limit. Looks at a part of
    /// all rows.
    pub fn choose_cold(&self) -> Chosen {
        match self.is_over_limit() {
            true => self.choose_upto(self.published(), &mut HASH_SHARDS.clone()),
            false => Chosen::default(),
        }
    }

    fn is_over_limit(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| self.memory_bytes() > tier.bytes_max)
    }

    /// Moves the hand on, to the ends of so many shards at most.
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
            let table = self.tables.table(id).expect("a table that was written is there");
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

    /// Puts away what was chosen, but for what was used or written to meanwhile. Returns whether
    /// memory is still too much.
    pub fn put_away(&self, chosen: Chosen) -> bool {
        let Some(tier) = &self.tier else { return false };
        let Chosen { mut fresh, copied, .. } = chosen;
        {
            let _writing = lock(&tier.writing);
            tier.remove_gone();
            // Not in the place of a later version's copy.
            fresh.retain(|it| self.is_newest(it) || is_planted(Bug::EvictedUnchecked));
            if !fresh.is_empty() {
                tier.cold.put(&fresh);
            }
            fresh.iter().chain(&copied).for_each(|copied| self.mark_cold(tier, copied));
        }
        self.memory_bytes() > tier.bytes_max - tier.bytes_max / SLACK_PART
    }

    /// Whether this still is what its row has.
    fn is_newest(&self, Copied { table, key, version, value }: &Copied) -> bool {
        let Some(rows) = self.tables.table(*table) else { return false };
        let is_newest = |row: &Row| {
            let newest = row.chain.newest();
            newest.version == *version
                && newest.value.as_ref().is_some_and(|newest| newest.is_same(value))
        };
        rows.with_row(hash_bytes(key), key, is_newest).unwrap_or(false)
    }

    /// Leaves a mark in the place of a value that the cold store has.
    fn mark_cold(&self, tier: &Tier, copied: &Copied) {
        let Copied { table, key, version, .. } = copied;
        let Some(rows) = self.tables.table(*table) else { return };
        match rows.put_away(copied, tier) {
            PutAway::Done => {
                tier.count.evicted.fetch_add(1, Ordering::Relaxed);
            }
            PutAway::IsKept => {}
            PutAway::IsGone => tier.on_gone(*table, key, [*version]),
        }
    }

    /// What is seen of a row whose value is not in memory.
    #[cold]
    pub(super) fn see_cold(
        &self,
        id: TableId,
        key: &HashedKey,
        at: SnapshotVersion,
        mut seen: Version,
    ) -> Option<Version> {
        let tier = self.tier.as_ref().expect("marks are left where there is a cold store");
        let table = self.tables.table(id)?;
        if is_planted(Bug::ColdIsAbsent) && at > self.published() {
            return None;
        }
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
        panic!("the value of {:?} in {id} is lost: version {}", key.key(), seen.version);
    }

    /// The values of keys that are not in memory, with the versions that they are of. They stay
    /// where they are.
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

    /// Whether the values of all of these keys are in memory. Those that are stay there for some
    /// turns of the clock.
    pub fn keep_warm(&self, keys: &[(TableId, Key)]) -> bool {
        let is_cold = |(table, key): &&(TableId, Key)| {
            self.has_cold() && self.is_cold_or_protect(*table, key, AHEAD_TURNS)
        };
        keys.iter().filter(is_cold).count() == 0
    }

    /// Fetches the values of these keys that are not in memory, before somebody needs them, and
    /// keeps them from being put away again for some turns of the clock. Returns how many came.
    pub fn fetch_ahead(&self, keys: &[(TableId, Key)]) -> usize {
        let Some(tier) = &self.tier else { return 0 };
        let fetched = self.fetch_cold(tier, keys, AHEAD_TURNS);
        tier.count.fetched_ahead.fetch_add(fetched as u64, Ordering::Relaxed);
        fetched
    }

    /// Fetches those of these keys whose values are not in memory, for a reader at `at`.
    pub(super) fn fetch_for(&self, keys: &[(TableId, Key)], at: SnapshotVersion) {
        let Some(tier) = &self.tier else { return };
        let fetched = self.fetch_cold(tier, keys, 1);
        tier.count_reads(fetched, at > self.published());
    }

    /// Brings back those of these keys that are cold, and returns how many that were.
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

    /// Whether a value is not in memory. One that is there is kept from the clock for a while.
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

    /// Puts a value in the place of its mark. It is from the cold store, after the store had lost
    /// pins so often: one that went back since may have another value of the same version.
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
        // Rows that go back are locked after this has changed, and before it changes again.
        let is_current = || self.losses.load(Ordering::Relaxed) == losses;
        if table.bring_back((hash, key), version, value, is_current) {
            tier.on_warm(id, hash);
        }
    }
}
