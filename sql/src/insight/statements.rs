//! Statistics of statements by their normalized texts: `pangea.statements`.
//!
//! A session adds to one of several tables, each with its own lock, so that sessions seldom
//! contend. A reader sums the tables. The number of statements in a table is limited: when the
//! table is full, the statements with the fewest calls are evicted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pangea_core::hash::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::normal::normal;

/// The number of tables.
pub(crate) const SHARDS: usize = 32;
/// The maximum number of statements in a table: with [`SHARDS`], some 20 MB if all are full.
pub(crate) const STATEMENTS_MAX: usize = 1_000;
/// The maximum number of texts whose statement a table remembers: texts with constants differ from
/// call to call.
const TEXTS_MAX: usize = 4_000;

/// The number of buckets for each doubling of a time: a quantile is off by at most a tenth.
const PARTS: u32 = 4;
/// Buckets cover times from a microsecond to two minutes.
const BUCKETS: usize = 27 * PARTS as usize;

/// The outcome of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Call {
    pub took: Duration,
    pub rows: u64,
    pub has_failed: bool,
    /// The number of times that it was aborted by a conflict with another transaction.
    pub conflicts: u32,
    /// The number of times that it was run again at its place in the order.
    pub reruns: u32,
}

/// The sums over all calls of one statement.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    pub user: Arc<str>,
    pub query: Arc<str>,
    pub calls: u64,
    pub errors: u64,
    pub rows: u64,
    pub conflicts: u64,
    pub reruns: u64,
    pub total_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
    buckets: Box<[u32; BUCKETS]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Statement hashes by the hashes of their texts.
    texts: HashMap<u64, u64>,
    sums: HashMap<u64, Sums>,
}

/// The statistics of a node's statements.
#[derive(Debug)]
pub(crate) struct Statements {
    shards: Box<[Padded]>,
}

// At least one cache line each, so that locking one shard does not slow down its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

impl Default for Statements {
    fn default() -> Self {
        Self { shards: std::iter::repeat_with(Padded::default).take(SHARDS).collect() }
    }
}

impl Statements {
    fn shard(&self, at: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[at as usize % SHARDS];
        shard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call by a user in a session.
    pub(crate) fn note(&self, session: u64, user: &Arc<str>, text: &str, call: &Call) {
        let of_user = xxh3_64_with_seed(user.as_bytes(), 0);
        let of_text = xxh3_64_with_seed(text.as_bytes(), of_user);
        let mut shard = self.shard(session);
        let known = shard.texts.get(&of_text).copied();
        if let Some(sums) = known.and_then(|statement| shard.sums.get_mut(&statement)) {
            return sums.add(call);
        }
        let query = normal(text);
        let statement = xxh3_64_with_seed(query.as_bytes(), of_user);
        if shard.texts.len() >= TEXTS_MAX {
            shard.texts.clear();
        }
        shard.texts.insert(of_text, statement);
        if shard.sums.len() >= STATEMENTS_MAX && !shard.sums.contains_key(&statement) {
            shard.evict();
        }
        let new = || Sums::new(user.clone(), Arc::from(query));
        shard.sums.entry(statement).or_insert_with(new).add(call);
    }

    /// Adds more rows and time to a call that was recorded before.
    pub(crate) fn go_on(
        &self,
        session: u64,
        user: &Arc<str>,
        text: &str,
        rows: u64,
        took: Duration,
    ) {
        let of_user = xxh3_64_with_seed(user.as_bytes(), 0);
        let of_text = xxh3_64_with_seed(text.as_bytes(), of_user);
        let mut shard = self.shard(session);
        let known = shard.texts.get(&of_text).copied();
        if let Some(sums) = known.and_then(|statement| shard.sums.get_mut(&statement)) {
            sums.rows += rows;
            sums.total_ms += took.as_secs_f64() * 1e3;
        }
    }

    /// Returns all statements, those with the largest total time first.
    pub(crate) fn all(&self) -> Vec<Sums> {
        let mut all: BTreeMap<u64, Sums> = BTreeMap::new();
        for at in 0..SHARDS {
            for (statement, sums) in &self.shard(at as u64).sums {
                match all.get_mut(statement) {
                    Some(known) => known.merge(sums),
                    None => drop(all.insert(*statement, sums.clone())),
                }
            }
        }
        let mut all: Vec<Sums> = all.into_values().collect();
        all.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        all
    }
}

impl Shard {
    /// Evicts the half with the fewest calls, so that a full table is searched only once in a
    /// while.
    fn evict(&mut self) {
        let mut by_calls: Vec<(u64, u64)> =
            self.sums.iter().map(|(statement, sums)| (sums.calls, *statement)).collect();
        by_calls.sort_unstable();
        for (_, statement) in &by_calls[..by_calls.len() / 2] {
            self.sums.remove(statement);
        }
        assert!(self.sums.len() < STATEMENTS_MAX, "half is gone");
    }
}

/// Returns the bucket of a time.
fn bucket(took: Duration) -> usize {
    let us = took.as_nanos() as f64 / 1e3;
    let at = (us.max(1.0).log2() * f64::from(PARTS)) as usize;
    at.min(BUCKETS - 1)
}

impl Sums {
    fn new(user: Arc<str>, query: Arc<str>) -> Self {
        Self {
            user,
            query,
            calls: 0,
            errors: 0,
            rows: 0,
            conflicts: 0,
            reruns: 0,
            total_ms: 0.0,
            min_ms: f64::INFINITY,
            max_ms: 0.0,
            buckets: Box::new([0; BUCKETS]),
        }
    }

    fn add(&mut self, call: &Call) {
        let ms = call.took.as_secs_f64() * 1e3;
        self.calls += 1;
        self.errors += u64::from(call.has_failed);
        self.rows += call.rows;
        self.conflicts += u64::from(call.conflicts);
        self.reruns += u64::from(call.reruns);
        self.total_ms += ms;
        self.min_ms = self.min_ms.min(ms);
        self.max_ms = self.max_ms.max(ms);
        let count = &mut self.buckets[bucket(call.took)];
        *count = count.saturating_add(1);
    }

    fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.rows += other.rows;
        self.conflicts += other.conflicts;
        self.reruns += other.reruns;
        self.total_ms += other.total_ms;
        self.min_ms = self.min_ms.min(other.min_ms);
        self.max_ms = self.max_ms.max(other.max_ms);
        for (own, other) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *own = own.saturating_add(*other);
        }
    }

    /// The mean time, in milliseconds.
    pub(crate) fn mean_ms(&self) -> f64 {
        self.total_ms / self.calls.max(1) as f64
    }

    /// The approximate quantile: this share of the calls took at most this time, in milliseconds.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let total: u64 = self.buckets.iter().map(|count| u64::from(*count)).sum();
        let wanted = (total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                let us = ((at as f64 + 0.5) / f64::from(PARTS)).exp2();
                return (us / 1e3).clamp(self.min_ms, self.max_ms);
            }
        }
        self.max_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(ms: u64) -> Call {
        Call { took: Duration::from_millis(ms), rows: 1, ..Call::default() }
    }

    #[test]
    fn calls_in_several_sessions_are_added_up() {
        let statements = Statements::default();
        let user: Arc<str> = Arc::from("u");
        for session in 0..100u64 {
            let text = format!("select {session}");
            statements.note(session, &user, &text, &call(session + 1));
        }
        let failed = Call { has_failed: true, conflicts: 2, reruns: 1, ..call(1_000) };
        statements.note(7, &user, "select 1", &failed);
        statements.note(7, &Arc::from("v"), "select 1", &call(1));
        let all = statements.all();
        assert_eq!(all.len(), 2, "one of each user");
        let sums = &all[0];
        assert_eq!((&*sums.user, &*sums.query), ("u", "select $1"));
        assert_eq!((sums.calls, sums.errors, sums.rows), (101, 1, 101));
        assert_eq!((sums.conflicts, sums.reruns), (2, 1));
        assert_eq!((sums.min_ms, sums.max_ms), (1.0, 1_000.0));
        assert!((45.0..57.0).contains(&sums.quantile_ms(0.5)), "{}", sums.quantile_ms(0.5));
        assert!((90.0..112.0).contains(&sums.quantile_ms(0.99)), "{}", sums.quantile_ms(0.99));
        assert!((sums.mean_ms() - 6_050.0 / 101.0).abs() < 1e-9);
    }

    #[test]
    fn a_full_table_forgets_what_was_called_least() {
        let statements = Statements::default();
        let user: Arc<str> = Arc::from("u");
        for _ in 0..3 {
            statements.note(0, &user, "select hot", &call(1));
        }
        for at in 0..2 * STATEMENTS_MAX {
            statements.note(0, &user, &format!("select c{at}"), &call(1));
        }
        let all = statements.all();
        assert!(all.len() <= STATEMENTS_MAX, "{}", all.len());
        let hot = all.iter().find(|sums| &*sums.query == "select hot");
        assert_eq!(hot.map(|sums| sums.calls), Some(3));
    }
}
