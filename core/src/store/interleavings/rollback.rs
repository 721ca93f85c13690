//! Rollbacks next to readers and to fetches of cold values; a pin and its clone.

use super::*;

use shuttle::sync::Barrier;

/// The number of orders of each test with a cold store. A rollback and an eviction lock each part
/// of the hash table, so an order takes long.
const COLD_ORDERS: usize = 40;

/// A cold store whose first request ends only when a rollback may begin.
#[derive(Debug)]
struct Meeting {
    values: ColdMemory,
    rollback: Arc<Barrier>,
}

impl Cold for Meeting {
    fn put(&self, values: &[Copied]) {
        self.values.put(values);
    }

    fn get(&self, keys: &[(TableId, Key)]) -> Vec<Option<(SnapshotVersion, Value)>> {
        let found = self.values.get(keys);
        if self.values.gets() == 1 {
            self.rollback.wait();
        }
        found
    }

    fn remove(&self, gone: &[(TableId, Key, SnapshotVersion)]) {
        self.values.remove(gone);
    }

    fn clear(&self) {
        self.values.clear();
    }
}

/// A value that is not stored inline, so that it can be evicted.
fn put_long(store: &Store, at: u64, number: u8, content: u8) {
    let value = [&[number, content][..], &[0; 40]].concat();
    store.apply(TABLE, key(number), version(at, Some(&value)));
}

/// A store without memory for values: key 10 since version 1, key 20 since version 2.
fn cold_store(cold: impl Cold + 'static) -> Arc<Store> {
    let store = Arc::new(Store::with_cold(Box::new(cold), 0));
    put_long(&store, 1, 10, 1);
    publish(&store, 1);
    put_long(&store, 2, 20, 2);
    publish(&store, 2);
    store.evict();
    assert!(store.is_cold(TABLE, &key(20)));
    store
}

/// Rolls back, and writes another value under the version number that was used before.
fn write_again(store: &Store) {
    store.retreat_to(SnapshotVersion(1));
    put_long(store, 2, 20, 3);
    publish(store, 2);
    store.evict();
}

/// The value that was fetched before the rollback has the version of the later value.
#[test]
fn a_value_that_is_fetched_during_a_rollback_does_not_replace_a_later_one() {
    explore_few_switches(COLD_ORDERS, || {
        let rollback = Arc::new(Barrier::new(2));
        let values = ColdMemory::default();
        let store = cold_store(Meeting { values, rollback: rollback.clone() });
        let fetcher = {
            let store = store.clone();
            thread::spawn(move || store.fetch_ahead(&[(TABLE, key(20))]))
        };
        rollback.wait();
        write_again(&store);
        fetcher.join().unwrap();
        assert_eq!(read_one(&store, 20, SnapshotVersion(2)), Some(3));
        assert_eq!(read_one(&store, 10, SnapshotVersion(2)), Some(1));
    });
}

#[test]
fn a_reader_knows_whether_the_store_was_rolled_back_under_it() {
    let lost = Arc::new(Count::new(0));
    let counted = lost.clone();
    explore_few_switches(COLD_ORDERS, move || {
        let store = cold_store(ColdMemory::default());
        let writer = {
            let store = store.clone();
            thread::spawn(move || write_again(&store))
        };
        let pin = store.pin();
        let first = read_one(&store, 20, pin.version());
        let rows = scan(&store, pin.version(), Direction::Forward);
        if pin.is_lost() {
            counted.fetch_add(1, Ordering::Relaxed);
        } else {
            let expected = match (pin.version().0, pin.timeline()) {
                (1, 1) => None,
                (2, 0) => Some(2),
                (2, 1) => Some(3),
                (version, timeline) => panic!("version {version} of timeline {timeline}"),
            };
            assert_eq!(first, expected);
            let later = expected.map(|content| (20, content));
            assert_eq!(rows, Vec::from_iter([(10, 1)].into_iter().chain(later)));
        }
        drop(pin);
        writer.join().unwrap();
        assert_eq!(store.oldest_pinned(), SnapshotVersion(2), "all pins are released");
        assert_eq!(scan(&store, SnapshotVersion(2), Direction::Reverse), [(10, 1), (20, 3)]);
    });
    assert!(lost.load(Ordering::Relaxed) > 0, "the store was not rolled back during a read");
}

/// An unordered scan has a clone of its pin, and is dropped first.
#[test]
fn a_pin_keeps_its_version_after_an_unordered_scan_has_ended() {
    explore(|| {
        let store = store_of([10, 20]);
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                put(&store, 2, 10);
                delete(&store, 2, 20);
                publish(&store, 2);
                store.reclaim(SnapshotVersion(2));
            })
        };
        let pin = store.pin();
        let (at, part) = (pin.version(), Table::shard_of(hash_bytes(&key(20))));
        let there = (at.0 == 1).then_some(1);
        let sweep = pin.unordered_scan(TABLE);
        assert_eq!(sweep.count(part), usize::from(there.is_some()));
        drop(sweep);
        assert_eq!(read_one(&store, 10, at), Some(at.0 as u8), "at {at}");
        assert_eq!(read_one(&store, 20, at), there, "at {at}");
        drop(pin);
        writer.join().unwrap();
        assert_eq!(store.oldest_pinned(), SnapshotVersion(2), "all pins are released");
    });
}
