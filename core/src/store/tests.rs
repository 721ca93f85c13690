//! Tests of the store: individual rules here; a model and threads in the submodules.

mod cold;
mod model;
mod overwriting;
mod threads;

use std::sync::Arc;

use super::*;
use crate::ids::TxnId;
use crate::pool::{Pool, Sequential};

pub(super) fn header(number: u64) -> RecordHeader {
    RecordHeader::new(TxnId::from_bits(number))
}

pub(super) fn version(number: u64, value: Option<&[u8]>) -> Version {
    let value = value.map(Value::copy_from);
    Version { version: SnapshotVersion(number), header: header(number), value }
}

/// A pool with a thread for each job.
struct Threads(usize);

impl Pool for Threads {
    #[allow(clippy::disallowed_methods, reason = "tests may use threads")]
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for i in 0..count {
                scope.spawn(move || job(i));
            }
        });
    }

    fn workers(&self) -> usize {
        self.0
    }
}

const TABLE: TableId = TableId(7);

pub(super) fn key(bytes: &[u8]) -> Key {
    Key::from(bytes)
}

fn store_at(published: u64) -> Arc<Store> {
    let store = Arc::new(Store::new());
    store.publish(SnapshotVersion(published));
    store
}

#[test]
fn a_pinned_version_is_kept_and_can_be_pinned_again() {
    let store = store_at(1);
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    let pin = store.pin();
    store.apply(TABLE, key(b"k"), version(2, Some(b"two")));
    store.publish(SnapshotVersion(2));
    assert_eq!(store.reclaim(SnapshotVersion(2)), 0, "version 1 is pinned");
    let again = store.pin_at(pin.version()).expect("a pinned version can be pinned");
    drop(pin);
    let seen = store.read(TABLE, b"k", again.version());
    assert_eq!(seen, Some(version(1, Some(b"one"))));
    assert_eq!(store.oldest_pinned(), SnapshotVersion(1));
    drop(again);
    assert_eq!(store.reclaim(SnapshotVersion(2)), 1);
    let gone = store.pin_at(SnapshotVersion(1)).map(|pin| pin.version());
    assert_eq!(gone, Err(PinError::Reclaimed { oldest: SnapshotVersion(2) }));
    let early = store.pin_at(SnapshotVersion(3)).map(|pin| pin.version());
    assert_eq!(early, Err(PinError::Unpublished { newest: SnapshotVersion(2) }));
}

#[test]
fn a_floor_above_what_is_published_reclaims_nothing_that_a_reader_needs() {
    let store = store_at(1);
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    store.apply(TABLE, key(b"k"), version(2, None));
    assert_eq!(store.reclaim(SnapshotVersion(9)), 0);
    assert_eq!(store.read(TABLE, b"k", store.published()), Some(version(1, Some(b"one"))));
}

#[test]
fn a_deleted_key_goes_when_every_reader_sees_the_deletion() {
    let store = store_at(1);
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    store.apply(TABLE, key(b"k"), version(2, None));
    assert_eq!(store.latest(TABLE, b"k"), Some(version(2, None)), "a deletion is a version");
    store.publish(SnapshotVersion(2));
    assert_eq!((store.reclaim(SnapshotVersion(2)), store.len(TABLE)), (2, 0));
    assert_eq!(store.latest(TABLE, b"k"), None);
    assert_eq!(store.memory_bytes(), 0);
    store.apply(TABLE, key(b"k"), version(3, Some(b"back")));
    assert_eq!(store.latest(TABLE, b"k"), Some(version(3, Some(b"back"))));
}

#[test]
fn a_key_inserted_and_deleted_in_one_version_leaves_nothing() {
    let store = store_at(1);
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    store.apply(TABLE, key(b"k"), version(1, None));
    assert_eq!((store.reclaim(SnapshotVersion(1)), store.len(TABLE)), (1, 0));
}

/// A new key is pending until the next scan. If it was deleted and reclaimed before, it would be
/// added to the order later and never removed.
#[test]
fn a_key_that_is_reclaimed_while_it_waits_does_not_come_to_the_order() {
    let store = store_at(1);
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    store.apply(TABLE, key(b"k"), version(2, None));
    store.publish(SnapshotVersion(2));
    assert_eq!(store.reclaim(SnapshotVersion(2)), 2);
    store.settle(&Sequential);
    let mut found = Vec::new();
    let order = &store.tables.table(TABLE).expect("the row was written").order;
    order.collect((Bound::Unbounded, Bound::Unbounded), Direction::Forward, 9, &mut found);
    assert_eq!(found, []);
}

#[test]
fn reclamation_in_small_steps_gets_done() {
    let store = store_at(1);
    for i in 0..100_u8 {
        store.apply(TABLE, key(&[i]), version(1, Some(b"v")));
        store.apply(TABLE, key(&[i]), version(2, None));
    }
    store.publish(SnapshotVersion(2));
    let steps: Vec<_> = (0..11).map(|_| store.reclaim_at_most(SnapshotVersion(2), 10)).collect();
    assert_eq!(steps, [20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 0]);
    assert_eq!(store.len(TABLE), 0);
}

#[test]
fn a_visitor_may_come_back_to_the_store() {
    let store = store_at(1);
    (0..50_u8).for_each(|i| store.apply(TABLE, key(&[i]), version(1, Some(&[i]))));
    let mut rows = 0;
    store.scan(TABLE, &KeyRange::all(), Direction::Forward, store.published(), |key, seen| {
        assert_eq!(store.read(TABLE, key, seen.version).as_ref(), Some(seen));
        store.apply(TABLE, key.clone(), version(2, None));
        rows += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(rows, 50);
}

#[test]
fn new_keys_are_in_order_for_who_reads_their_version_and_once_it_is_published() {
    let store = store_at(1);
    let seen = |at| {
        let mut keys = 0;
        store.scan(TABLE, &KeyRange::all(), Direction::Reverse, SnapshotVersion(at), |_, _| {
            keys += 1;
            ControlFlow::Continue(())
        });
        keys
    };
    store.apply(TABLE, key(b"a"), version(2, Some(b"a")));
    assert_eq!((seen(1), seen(2)), (0, 1));
    store.apply(TABLE, key(b"b"), version(2, Some(b"b")));
    store.publish(SnapshotVersion(2));
    assert_eq!((seen(1), seen(2)), (0, 2));
    store.apply(TABLE, key(b"c"), version(2, Some(b"c")));
    assert_eq!(seen(2), 3, "a late write of a published version");
}

#[test]
fn a_cleared_store_is_as_new_and_its_pins_are_lost() {
    let store = store_at(1);
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    store.apply(TABLE, key(b"k"), version(5, None));
    store.publish(SnapshotVersion(5));
    store.reclaim(SnapshotVersion(4));
    let pin = store.pin();
    assert!(!pin.is_lost());
    store.clear();
    assert!(pin.is_lost());
    assert_eq!((store.published(), store.table_ids()), (SnapshotVersion(0), vec![]));
    assert_eq!((store.len(TABLE), store.memory_bytes()), (0, 0));
    assert_eq!(store.digest(SnapshotVersion(5)), Store::new().digest(SnapshotVersion(0)));
    assert!(store.pin_at(SnapshotVersion(0)).is_ok(), "no version has been reclaimed since");
    store.apply(TABLE, key(b"k"), version(5, Some(b"five")));
    store.publish(SnapshotVersion(5));
    let new_pin = store.pin();
    store.publish(SnapshotVersion(6));
    drop(pin);
    assert_eq!(store.oldest_pinned(), new_pin.version(), "a lost pin does not release another");
    assert_eq!((store.reclaim(SnapshotVersion(9)), store.table_ids()), (0, vec![TABLE]));
}

/// A rollback removes all later writes as if they had never happened, and new writes with the same
/// numbers take their place.
#[test]
fn a_store_goes_back_to_a_version_and_on_from_there_on_another_line() {
    let (store, same) = (store_at(1), store_at(1));
    let write = |store: &Store, keys: &[&[u8]], at, value| {
        for bytes in keys {
            store.apply(TABLE, key(bytes), version(at, value));
        }
        store.publish(SnapshotVersion(at));
    };
    for store in [&store, &same] {
        write(store, &[b"a", b"b", b"c"], 2, Some(b"two"));
        write(store, &[b"b"], 3, None);
        write(store, &[b"c"], 4, Some(b"four"));
    }
    let early = store.pin_at(SnapshotVersion(3)).unwrap();
    write(&store, &[b"a", b"b", b"d"], 5, Some(b"five"));
    write(&store, &[b"a", b"c"], 6, None);
    let (late, reader) = (store.pin(), store.pin_at(SnapshotVersion(4)).unwrap());
    store.retreat_to(SnapshotVersion(4));
    assert_eq!((early.is_lost(), reader.is_lost(), late.is_lost()), (false, false, true));
    assert_eq!((store.published(), store.timeline(), late.timeline()), (SnapshotVersion(4), 1, 0));
    for at in 2..=6 {
        let at = SnapshotVersion(at);
        assert_eq!(store.digest(at), same.digest(at), "at {at}");
    }
    assert_eq!((store.len(TABLE), store.memory_bytes()), (same.len(TABLE), same.memory_bytes()));
    let again = store.pin();
    for store in [&store, &same] {
        write(store, &[b"c", b"e"], 5, Some(b"other"));
        write(store, &[b"e"], 6, None);
    }
    drop((early, late.clone(), late, reader));
    assert!(!again.is_lost() && store.oldest_pinned() == again.version());
    drop(again);
    for store in [&store, &same] {
        store.reclaim(SnapshotVersion(6));
    }
    assert_eq!(store.digest(SnapshotVersion(6)), same.digest(SnapshotVersion(6)));
    assert_eq!((store.len(TABLE), store.memory_bytes()), (same.len(TABLE), same.memory_bytes()));
}

#[test]
fn a_digest_tells_tables_keys_and_values_apart() {
    let digest = |rows: &[(u32, &[u8], &[u8])]| {
        let store = store_at(1);
        for &(table, bytes, value) in rows {
            store.apply(TableId(table), key(bytes), version(1, Some(value)));
        }
        store.digest(SnapshotVersion(1))
    };
    let base = digest(&[(1, b"a", b"bc")]);
    assert_ne!(base, digest(&[(1, b"ab", b"c")]));
    assert_ne!(base, digest(&[(2, b"a", b"bc")]));
    assert_ne!(base, digest(&[(1, b"a", b"bc"), (1, b"b", b"")]));
    assert_eq!(base, digest(&[(1, b"a", b"bc")]));
}

#[test]
#[should_panic(expected = "a batch has one version")]
fn a_batch_of_two_versions_is_a_bug() {
    let writes = vec![(TABLE, key(b"k"), version(2, None))];
    store_at(0).apply_batch(&Sequential, SnapshotVersion(1), writes);
}

/// A node that had skipped versions by installing a checkpoint once served reads at a skipped
/// version from older rows.
#[test]
fn versions_that_a_checkpoint_jumps_over_are_nobody_s() {
    let store = Arc::new(Store::new());
    let (table, key) = (TableId(1), Key::from(&b"k"[..]));
    store.apply(table, key.clone(), version(3, Some(b"old")));
    store.publish(SnapshotVersion(3));
    let reader = store.pin();
    store.apply(table, key.clone(), version(9, Some(b"new")));
    store.publish_alone(SnapshotVersion(9));
    let seen = |pin: &Pin| store.read(table, &key, pin.version()).unwrap().version;
    assert_eq!(seen(&reader), SnapshotVersion(3), "a reader continues");
    for jumped in [4, 8] {
        let error = store.pin_at(SnapshotVersion(jumped)).unwrap_err();
        assert_eq!(error, PinError::Reclaimed { oldest: SnapshotVersion(9) });
    }
    assert_eq!(seen(&store.pin_at(SnapshotVersion(9)).unwrap()), SnapshotVersion(9));
}

#[test]
fn a_record_that_is_overwritten_takes_the_place_of_its_older_versions() {
    let store = Arc::new(Store::new());
    let key = Key::from(&b"k"[..]);
    let table = TableId(7);
    let value = [7; 1_000];
    let write = |at: u64| {
        store.overwrite(store.published());
        store.apply(table, key.clone(), version(at, Some(&value)));
        store.publish(SnapshotVersion(at));
    };
    (1..=3).for_each(write);
    let bytes = store.memory_bytes();
    (4..=50).for_each(write);
    assert_eq!(store.memory_bytes(), bytes, "no version is left to reclaim");
    assert_eq!(store.superseded(), 0, "no version has waited for reclamation");
    // A reader retains its version, and a checkpoint's point retains one more.
    let reader = store.pin();
    write(51);
    let checkpoint = store.pin_checkpoint(SnapshotVersion(51)).unwrap();
    (52..=60).for_each(write);
    let seen = |at: u64| store.read(table, &key, SnapshotVersion(at)).unwrap().version.0;
    assert_eq!([50, 51, 60].map(seen), [50, 51, 60]);
    drop(reader);
    (61..=70).for_each(write);
    assert_eq!([51, 70].map(seen), [51, 70]);
    assert!(
        store.pin_at(SnapshotVersion(60)).is_err(),
        "versions that may be reclaimed can't be pinned"
    );
    store.overwrite(store.published());
    checkpoint.end();
    assert!(store.memory_bytes() < bytes, "one version is left");
    store.overwrite(store.published());
    store.apply(table, key.clone(), version(71, None));
    store.publish(SnapshotVersion(71));
    assert!(store.reclaim(SnapshotVersion(71)) > 0);
    assert_eq!(store.len(table), 0, "a deletion is reclaimed as usual");
}

/// Reclamation passes such a row once, and does not come back to it.
#[test]
fn a_row_that_was_deleted_during_a_checkpoint_goes_when_the_checkpoint_ends() {
    let store = Arc::new(Store::new());
    store.apply(TABLE, key(b"k"), version(1, Some(b"one")));
    store.publish(SnapshotVersion(1));
    store.overwrite(store.published());
    let checkpoint = store.pin_checkpoint(SnapshotVersion(1)).unwrap();
    store.apply(TABLE, key(b"k"), version(2, None));
    store.publish(SnapshotVersion(2));
    store.overwrite(store.published());
    store.reclaim(SnapshotVersion(2));
    assert!(store.read(TABLE, b"k", SnapshotVersion(1)).is_some(), "the checkpoint has the row");
    checkpoint.end();
    assert_eq!((store.len(TABLE), store.memory_bytes()), (0, 0));
}

/// A flipped bit changes the value and its digest, and nothing else.
#[cfg(feature = "planted")]
#[test]
fn a_flipped_bit_changes_the_digest_alone() {
    let (store, table) = (Store::new(), TableId(1));
    assert_eq!(store.flip_some(table, 7), None);
    store.apply(table, Key::from(b"deleted".as_slice()), version(1, None));
    assert_eq!(store.flip_some(table, 7), None);
    for key in [b"a", b"b", b"c"] {
        store.apply(table, Key::from(key.as_slice()), version(2, Some(b"value")));
    }
    store.publish(SnapshotVersion(2));
    let before = store.digest(SnapshotVersion(2));
    let key = store.flip_some(table, 7).expect("three rows have values");
    assert_eq!(key, Key::from(b"b".as_slice()));
    assert_eq!(store.latest(table, &key), Some(version(2, Some(b"valud"))));
    assert_ne!(store.digest(SnapshotVersion(2)), before);
    assert_eq!(store.flip_some(table, 7), Some(key));
    assert_eq!(store.digest(SnapshotVersion(2)), before);
}
