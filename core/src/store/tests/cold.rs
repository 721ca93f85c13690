//! Tests of concurrent changes of a row while its value is evicted, fetched or removed.

use super::*;
use crate::txn::Taken;

/// A cold store that runs a function once, in the middle of a request.
#[derive(Clone, Debug, Default)]
struct Interrupted {
    memory: ColdMemory,
    on_put: Arc<Mutex<Option<Interruption>>>,
    on_get: Arc<Mutex<Option<Interruption>>>,
}

struct Interruption(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an interruption")
    }
}

fn interrupt(what: &Mutex<Option<Interruption>>) {
    let interruption = lock(what).take();
    interruption.into_iter().for_each(|Interruption(run)| run());
}

impl Cold for Interrupted {
    fn put(&self, values: &[Copied]) {
        self.memory.put(values);
        interrupt(&self.on_put);
    }

    fn get(&self, keys: &[(TableId, Key)]) -> Vec<Option<(SnapshotVersion, Value)>> {
        let found = self.memory.get(keys);
        interrupt(&self.on_get);
        found
    }

    fn remove(&self, gone: &[(TableId, Key, SnapshotVersion)]) {
        self.memory.remove(gone);
    }

    fn clear(&self) {
        self.memory.clear();
    }
}

/// A store that evicts all values that it may.
fn cold_store() -> (Arc<Store>, Interrupted) {
    let cold = Interrupted::default();
    (Arc::new(Store::with_cold(Box::new(cold.clone()), 0)), cold)
}

fn long(byte: u8) -> Version {
    version(0, Some(&[byte; 40]))
}

fn write(store: &Store, at: u64, rows: &[(&[u8], u8)]) {
    for (bytes, value) in rows {
        let at = SnapshotVersion(at);
        store.apply(TABLE, key(bytes), Version { version: at, ..long(*value) });
    }
    store.publish(SnapshotVersion(at));
}

/// The rows visible to a reader of the newest version, without loading values.
fn seen(store: &Store) -> Vec<(Key, u8)> {
    let mut seen = Vec::new();
    store.scan_passing(TABLE, &KeyRange::all(), store.published(), |key, version| {
        seen.extend(version.value.as_ref().map(|value| (key.clone(), value[0])));
        ControlFlow::Continue(())
    });
    seen
}

/// Passes the clock hand over all values: those not used since the last pass are chosen.
fn choose(store: &Store) -> Chosen {
    store.choose_cold();
    let chosen = store.choose_cold();
    assert!(!format!("{chosen:?}").contains("fresh: [], copied: []"), "{chosen:?}");
    chosen
}

/// Asserts that the rows with a placeholder match the store's counter and its map for other nodes.
fn check_counts(store: &Store, keys: &[&[u8]]) {
    let is_cold: Vec<bool> = keys.iter().map(|key| store.is_cold(TABLE, key)).collect();
    let map = store.cold_map();
    let is_told: Vec<bool> = keys.iter().map(|bytes| map.has(TABLE, &key(bytes))).collect();
    assert_eq!(is_cold, is_told);
    assert_eq!(is_cold.iter().filter(|is| **is).count() as u64, store.cold_counts().cold);
}

/// After a rollback, a row whose value was not in memory was once counted as warm, and a row that
/// vanished as cold.
#[test]
fn a_store_that_goes_back_knows_which_rows_are_left_without_their_value() {
    let (store, cold) = cold_store();
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    write(&store, 1, &[(b"a", 1), (b"b", 1)]);
    assert!(!store.evict());
    write(&store, 2, &[(b"a", 2), (b"c", 2)]);
    store.evict();
    assert!(store.is_cold(TABLE, b"b") && store.is_cold(TABLE, b"c"));
    check_counts(&store, &keys);
    store.retreat_to(SnapshotVersion(1));
    assert!(store.is_cold(TABLE, b"a") && store.len(TABLE) == 2);
    check_counts(&store, &keys);
    assert_eq!(seen(&store), [(key(b"a"), 1), (key(b"b"), 1)]);
    store.evict_chosen(Chosen::default());
    assert_eq!(cold.memory.len(), 2, "the copy of a deleted row is removed");
    store.fetch_ahead(&[(TABLE, key(b"a")), (TABLE, key(b"b"))]);
    check_counts(&store, &keys);
}

/// A value chosen before a rollback was once taken for a copy of a later write with the same
/// version number. The later write may be in the cold store only, too.
#[test]
fn what_was_chosen_before_the_store_went_back_is_not_taken_for_what_came_after() {
    for is_cold in [false, true] {
        let (store, _) = cold_store();
        write(&store, 1, &[(b"a", 1)]);
        write(&store, 2, &[(b"k", 2)]);
        let chosen = choose(&store);
        store.retreat_to(SnapshotVersion(1));
        write(&store, 2, &[(b"k", 3)]);
        if is_cold {
            store.evict();
            assert!(store.is_cold(TABLE, b"k"));
        }
        store.evict_chosen(chosen);
        store.evict();
        assert!(store.is_cold(TABLE, b"k"));
        assert_eq!(seen(&store), [(key(b"a"), 1), (key(b"k"), 3)]);
    }
}

/// The same while the cold store is being written.
#[test]
fn what_is_being_put_away_while_the_store_goes_back_is_not_taken_for_what_came_after() {
    let (store, cold) = cold_store();
    write(&store, 1, &[(b"a", 1)]);
    write(&store, 2, &[(b"k", 2)]);
    let chosen = choose(&store);
    let of_writer = store.clone();
    *lock(&cold.on_put) = Some(Interruption(Box::new(move || {
        of_writer.retreat_to(SnapshotVersion(1));
        write(&of_writer, 2, &[(b"k", 3)]);
    })));
    store.evict_chosen(chosen);
    assert!(lock(&cold.on_put).is_none());
    store.evict();
    assert!(store.is_cold(TABLE, b"k"));
    assert_eq!(seen(&store), [(key(b"a"), 1), (key(b"k"), 3)]);
    store.fetch_ahead(&[(TABLE, key(b"k"))]);
    assert_eq!(seen(&store), [(key(b"a"), 1), (key(b"k"), 3)]);
}

/// A value fetched before a rollback was once stored in a row that had another value with the same
/// version number since.
#[test]
fn what_was_fetched_before_the_store_went_back_is_not_brought_to_what_came_after() {
    let (store, cold) = cold_store();
    write(&store, 1, &[(b"a", 1)]);
    write(&store, 2, &[(b"k", 2)]);
    store.evict();
    let of_writer = store.clone();
    *lock(&cold.on_get) = Some(Interruption(Box::new(move || {
        of_writer.retreat_to(SnapshotVersion(1));
        write(&of_writer, 2, &[(b"k", 3)]);
        of_writer.evict();
        assert!(of_writer.is_cold(TABLE, b"k"));
    })));
    store.fetch_ahead(&[(TABLE, key(b"k"))]);
    assert!(lock(&cold.on_get).is_none());
    assert_eq!(seen(&store), [(key(b"a"), 1), (key(b"k"), 3)]);
}

/// A value with a copy was overwritten after the clock had chosen it, and its copy was removed
/// although the version still existed. After a rollback to it, the value was evicted without a copy
/// and lost.
#[test]
fn a_copy_is_kept_as_long_as_the_store_may_go_back_to_it() {
    let (store, _) = cold_store();
    write(&store, 1, &[(b"k", 1)]);
    store.evict();
    store.fetch_ahead(&[(TABLE, key(b"k"))]);
    (0..2).for_each(|_| drop(store.choose_cold()));
    let chosen = choose(&store);
    write(&store, 2, &[(b"k", 2)]);
    store.evict_chosen(chosen);
    store.evict_chosen(Chosen::default());
    store.retreat_to(SnapshotVersion(1));
    store.evict();
    assert!(store.is_cold(TABLE, b"k"));
    assert_eq!(seen(&store), [(key(b"k"), 1)]);
}

/// A value chosen long ago once replaced the copy of a later version, which was lost.
#[test]
fn what_was_chosen_long_ago_does_not_take_the_place_of_a_later_copy() {
    let (store, _) = cold_store();
    write(&store, 1, &[(b"k", 1)]);
    let chosen = choose(&store);
    write(&store, 2, &[(b"k", 2)]);
    store.reclaim(SnapshotVersion(2));
    store.evict();
    assert!(store.is_cold(TABLE, b"k"));
    store.evict_chosen(chosen);
    assert_eq!(seen(&store), [(key(b"k"), 2)]);
}

/// A store that is cleared and filled again during an eviction has no copy of the evicted value.
#[test]
fn what_is_put_away_while_the_store_is_cleared_has_no_copy() {
    let (store, cold) = cold_store();
    write(&store, 1, &[(b"k", 1)]);
    let chosen = choose(&store);
    store.clear();
    write(&store, 1, &[(b"k", 1)]);
    store.evict_chosen(chosen);
    store.evict_chosen(Chosen::default());
    assert_eq!((cold.memory.len(), store.is_cold(TABLE, b"k")), (0, false));
    store.evict();
    assert_eq!(seen(&store), [(key(b"k"), 1)]);
    check_counts(&store, &[b"k"]);
}

/// Writers and reclamation once waited until evicted values were on disk.
#[test]
#[allow(clippy::disallowed_methods, reason = "tests may use threads")]
fn nobody_who_reclaims_waits_for_the_cold_store() {
    let (store, cold) = cold_store();
    write(&store, 1, &[(b"a", 1)]);
    store.evict();
    write(&store, 2, &[(b"a", 2), (b"k", 2)]);
    let chosen = choose(&store);
    let of_writer = store.clone();
    *lock(&cold.on_put) = Some(Interruption(Box::new(move || {
        let (sender, receiver) = std::sync::mpsc::channel();
        let reclaim = move || sender.send(of_writer.reclaim(SnapshotVersion(2)));
        std::thread::spawn(reclaim);
        let waited = std::time::Duration::from_secs(20);
        assert_eq!(receiver.recv_timeout(waited), Ok(1), "during an eviction");
    })));
    store.evict_chosen(chosen);
    assert!(lock(&cold.on_put).is_none() && !store.is_cold(TABLE, b"a"));
    store.evict_chosen(Chosen::default());
    assert_eq!(cold.memory.len(), 1);
}

/// When memory was below its limit again, copies of removed rows once stayed in the file.
#[test]
fn copies_that_are_not_needed_are_removed_though_nothing_is_put_away() {
    let cold = ColdMemory::default();
    let store = Arc::new(Store::with_cold(Box::new(cold.clone()), 1_000));
    let keys: Vec<Vec<u8>> = (0..40).map(|number| vec![number]).collect();
    let rows: Vec<(&[u8], u8)> = keys.iter().map(|key| (&key[..], 1)).collect();
    write(&store, 1, &rows);
    store.evict();
    assert_eq!(cold.len(), 40);
    for bytes in &keys {
        store.apply(TABLE, key(bytes), version(2, None));
    }
    store.publish(SnapshotVersion(2));
    store.reclaim(SnapshotVersion(2));
    assert!(store.evict() && cold.is_empty(), "{} are left", cold.len());
}

/// A deletion that reclamation visited while it had a later version was never reclaimed after that
/// version was rolled back.
#[test]
fn a_deletion_that_is_newest_again_is_reclaimed() {
    let store = store_at(0);
    write(&store, 1, &[(b"k", 1)]);
    store.apply(TABLE, key(b"k"), version(2, None));
    store.publish(SnapshotVersion(2));
    write(&store, 3, &[(b"k", 3)]);
    store.reclaim(SnapshotVersion(2));
    store.retreat_to(SnapshotVersion(2));
    store.publish(SnapshotVersion(3));
    assert_eq!((store.len(TABLE), store.reclaim(SnapshotVersion(3))), (1, 1));
    assert_eq!((store.len(TABLE), store.memory_bytes()), (0, 0));
}

#[test]
fn an_unordered_scan_has_the_rows_whose_values_are_not_in_memory() {
    let (store, _) = cold_store();
    let keys: Vec<Vec<u8>> = (0..40).map(|number| vec![number]).collect();
    let rows: Vec<(&[u8], u8)> = keys.iter().map(|key| (&key[..], 1)).collect();
    write(&store, 1, &rows);
    store.evict();
    store.evict();
    assert!(keys.iter().all(|key| store.is_cold(TABLE, key)));
    let sweep = store.pin().unordered_scan(TABLE);
    let mut taken = Taken::default();
    (0..UnorderedScan::PARTS).for_each(|part| sweep.take(part, &mut taken));
    let mut found: Vec<_> = taken.iter().map(|(key, value)| (key.to_vec(), value[0])).collect();
    found.sort_unstable();
    assert!(found.into_iter().eq(keys.into_iter().map(|key| (key, 1))));
}
