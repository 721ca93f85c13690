//! Snapshots of the near past by the clock of their node, read by `AS OF SYSTEM TIME`.
//!
//! ```text
//!   every 100 ms:   12:00:00.0   12:00:00.1   12:00:00.2  ..  now
//!                   pin of v840  pin of v846  pin of v853     v2101
//!                      ^ dropped once the second one is as old as the retention
//! ```
//!
//! The snapshot of a moment is the newest one that this node had published by then, to a tenth of a
//! second. As for any read that does not wait, transactions acknowledged on other nodes just before
//! may be missing. A pin keeps the versions that its snapshot sees from being reclaimed. They take
//! memory, and scans pass over retained deletions (half a microsecond each). The retention
//! therefore limits the number of superseded versions and of deletions: under many writes, the
//! history reaches back less far.
//!
//! The history is local: protocols do not use it, and every replica has another one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pangea_core::ids::SnapshotVersion;
use pangea_core::store::{Pin, Store};

/// The interval between two moments.
pub const TICK: Duration = Duration::from_millis(100);

/// The limits of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The age of the oldest snapshot; zero for no history.
    pub time: Duration,
    /// The maximum number of versions retained that are not the newest of their keys.
    pub versions_max: u64,
    /// The maximum number of deletions retained, which scans pass over until they are reclaimed.
    pub deletions_max: u64,
}

/// A moment, in microseconds since 2000-01-01, with the snapshot published by then.
#[derive(Debug)]
struct Moment {
    at: i64,
    pin: Pin,
    /// The total numbers of superseded versions and of deletions by then.
    superseded: u64,
    deletions: u64,
}

/// The snapshots of a node's near past.
#[derive(Debug)]
pub struct History {
    retention: Retention,
    moments: Mutex<VecDeque<Moment>>,
}

/// The reason why a moment has no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSnapshot {
    /// The moment is before the history, which begins at this time; `None` if the history is empty.
    TooOld(Option<i64>),
    /// The moment is in the future.
    InFuture,
}

impl History {
    /// Returns an empty history with this retention.
    pub fn new(retention: Retention) -> Self {
        Self { retention, moments: Mutex::default() }
    }

    fn moments(&self) -> MutexGuard<'_, VecDeque<Moment>> {
        self.moments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limits of the history.
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// Adds a moment with the version published now, and drops moments that are too old. Times only
    /// grow: a call with an earlier time, after the clock was set back, adds no moment.
    pub fn tick(&self, store: &Arc<Store>, now: i64) {
        if self.retention.time.is_zero() {
            return;
        }
        let mut moments = self.moments();
        // The store was refilled or rolled back: snapshots lost by that are no longer in it.
        moments.retain(|moment| !moment.pin.is_lost());
        let (superseded, deletions) = (store.superseded(), store.deletions());
        let is_new = |last: &Moment| last.at < now && last.pin.version() < store.published();
        if moments.back().is_none_or(is_new) {
            moments.push_back(Moment { at: now, pin: store.pin(), superseded, deletions });
        }
        let time = i64::try_from(self.retention.time.as_micros()).unwrap_or(i64::MAX);
        let oldest = now.saturating_sub(time);
        // The first moment's version was the published one until the second moment.
        while moments.get(1).is_some_and(|second| second.at <= oldest) {
            moments.pop_front();
        }
        let Retention { versions_max, deletions_max, .. } = self.retention;
        let is_over = |first: &Moment| {
            superseded - first.superseded > versions_max
                || deletions - first.deletions > deletions_max
        };
        while moments.len() > 1 && moments.front().is_some_and(is_over) {
            moments.pop_front();
        }
    }

    /// Returns the snapshot of a moment.
    ///
    /// # Errors
    /// If the moment is in the future or before the history.
    pub fn at(&self, store: &Arc<Store>, at: i64, now: i64) -> Result<Pin, NoSnapshot> {
        if at > now {
            return Err(NoSnapshot::InFuture);
        }
        let moments = self.moments();
        let first = moments.front().map(|first| first.at);
        let kept = moments.partition_point(|moment| moment.at <= at);
        let found = kept.checked_sub(1).and_then(|at| moments.get(at));
        let found = found.filter(|moment| !moment.pin.is_lost());
        let pin = found.and_then(|moment| store.pin_at(moment.pin.version()).ok());
        pin.ok_or(NoSnapshot::TooOld(first))
    }

    /// Returns for how many microseconds a version newer than this one has been published on this
    /// node; `None` if the history shows none.
    pub fn micros_since(&self, version: SnapshotVersion, now: i64) -> Option<i64> {
        let moments = self.moments();
        let next = moments.partition_point(|moment| moment.pin.version() <= version);
        moments.get(next).map(|moment| now - moment.at)
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::{NodeId, TableId, TxnId};
    use pangea_core::key::Key;
    use pangea_core::store::Version;
    use pangea_core::value::Value;

    use super::*;
    use pangea_core::store::RecordHeader;

    const TABLE: TableId = TableId(5_000);
    const SECOND: i64 = 1_000_000;

    fn write(store: &Arc<Store>, value: u8) {
        let version = store.published().next();
        let header = RecordHeader::new(TxnId::new(NodeId(0), version.0));
        let value = Some(Value::from(&[value][..]));
        store.apply(TABLE, Key::from(&b"k"[..]), Version { version, header, value });
        store.publish(version);
    }

    fn read(pin: &Pin) -> Option<u8> {
        let found = pin.store().read(TABLE, b"k", pin.version());
        found.and_then(|found| found.value).map(|value| value[0])
    }

    fn history(seconds: u64, versions_max: u64) -> History {
        History::new(Retention {
            time: Duration::from_secs(seconds),
            versions_max,
            deletions_max: 2,
        })
    }

    #[test]
    fn a_moment_has_what_was_published_by_then() {
        let (store, history) = (Arc::new(Store::new()), history(10, 1_000));
        for second in 1..=5u8 {
            write(&store, second);
            history.tick(&store, i64::from(second) * SECOND);
        }
        let now = 6 * SECOND;
        let at = |at| history.at(&store, at, now).map(|pin| read(&pin));
        assert_eq!(at(SECOND - 1).unwrap_err(), NoSnapshot::TooOld(Some(SECOND)));
        for second in 1..=5u8 {
            assert_eq!(at(i64::from(second) * SECOND), Ok(Some(second)));
            assert_eq!(at(i64::from(second) * SECOND + 999_999), Ok(Some(second)));
        }
        assert_eq!(at(now + 1).unwrap_err(), NoSnapshot::InFuture);
        store.reclaim(store.published());
        assert_eq!(at(2 * SECOND), Ok(Some(2)), "what is kept is not reclaimed");
        let since = |version| history.micros_since(SnapshotVersion(version), now);
        assert_eq!((since(3), since(5)), (Some(2 * SECOND), None));
    }

    #[test]
    fn what_is_too_old_is_let_go_and_reclaimed() {
        let (store, history) = (Arc::new(Store::new()), history(2, 1_000));
        for second in 1..=10u8 {
            write(&store, second);
            history.tick(&store, i64::from(second) * SECOND);
        }
        let at = |at| history.at(&store, at * SECOND, 10 * SECOND).map(|pin| read(&pin));
        assert_eq!(at(8), Ok(Some(8)));
        assert_eq!(at(7).unwrap_err(), NoSnapshot::TooOld(Some(8 * SECOND)));
        assert_eq!(store.reclaim(store.published()), 7);
        // Without writes, the last snapshot is retained for as long as it is the newest.
        history.tick(&store, 100 * SECOND);
        assert_eq!(
            history.at(&store, 50 * SECOND, 100 * SECOND).map(|pin| read(&pin)),
            Ok(Some(10))
        );
    }

    #[test]
    fn many_writes_shorten_it() {
        let (store, history) = (Arc::new(Store::new()), history(1_000, 3));
        for second in 1..=10u8 {
            write(&store, second);
            history.tick(&store, i64::from(second) * SECOND);
        }
        let at = |at| history.at(&store, at * SECOND, 10 * SECOND).map(|pin| read(&pin));
        assert_eq!((at(7), at(6).is_err()), (Ok(Some(7)), true));
    }

    #[test]
    fn few_deletions_shorten_it() {
        let (store, history) = (Arc::new(Store::new()), history(1_000, 1_000));
        for second in 1..=10i64 {
            write(&store, second as u8);
            if second > 5 {
                let version = store.published().next();
                let header = RecordHeader::new(TxnId::new(NodeId(0), version.0));
                let key = Key::from(&[second as u8][..]);
                store.apply(TABLE, key, Version { version, header, value: None });
                store.publish(version);
            }
            history.tick(&store, second * SECOND);
        }
        let at = |at| history.at(&store, at * SECOND, 10 * SECOND).map(|pin| read(&pin));
        assert_eq!((at(8), at(7).is_err()), (Ok(Some(8)), true));
    }

    #[test]
    fn a_store_that_is_filled_anew_has_no_past() {
        let (store, history) = (Arc::new(Store::new()), history(10, 1_000));
        write(&store, 1);
        history.tick(&store, SECOND);
        store.clear();
        let at = |at| history.at(&store, at, 9 * SECOND).map(|pin| read(&pin));
        assert_eq!(at(SECOND).unwrap_err(), NoSnapshot::TooOld(Some(SECOND)));
        write(&store, 2);
        history.tick(&store, 2 * SECOND);
        assert_eq!(at(SECOND).unwrap_err(), NoSnapshot::TooOld(Some(2 * SECOND)));
        assert_eq!(at(2 * SECOND), Ok(Some(2)));
    }

    #[test]
    fn without_a_time_nothing_is_kept() {
        let (store, history) = (Arc::new(Store::new()), history(0, 1_000));
        write(&store, 1);
        history.tick(&store, SECOND);
        assert_eq!(history.at(&store, SECOND, SECOND).unwrap_err(), NoSnapshot::TooOld(None));
    }
}
