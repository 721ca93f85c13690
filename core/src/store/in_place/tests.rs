//! Tests of in-place writes and of undoing them, against a model.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::ColdMemory;
use super::super::tests::{header, version};
use super::*;
use crate::key::{Direction, KeyRange};
use crate::value::Value;

const KEYS: u8 = 24;
const TABLES: u32 = 2;

type TestStore = Store;
/// The numbers of a table and a key.
type Place = (u32, u8);

/// Short and long keys; values are inline or on the heap.
fn key(number: u8) -> Key {
    let long = [number; 30];
    Key::from(if number.is_multiple_of(3) { &long[..] } else { &long[..2] })
}

/// A version of this writer with a value of this length, or a deletion.
fn written_by(writer: u64, at: u64, len: Option<usize>) -> Version {
    let bytes = vec![writer as u8; len.unwrap_or(0)];
    let value = len.map(|_| Value::from(bytes));
    Version { version: SnapshotVersion(at), header: header(writer), value }
}

fn write(store: &TestStore, written: &mut Written, step: Put) {
    let Put { writer, at, place: (table, number), len } = step;
    let key = HashedKey::from(key(number));
    store.write(written, (TableId(table), key), written_by(writer, at, len));
}

#[derive(Clone, Copy, Debug)]
struct Put {
    writer: u64,
    at: u64,
    place: Place,
    len: Option<usize>,
}

/// A version's number, its writer, and its value, or whether the value is cold.
type Had = (u64, u64, Option<Result<Vec<u8>, ()>>);

/// The observable state of a store.
#[derive(Debug, PartialEq)]
struct Seen {
    /// The versions of each key that readers see, from a floor on.
    versions: Vec<(u64, Place, Option<Had>)>,
    order: Vec<(u32, Vec<Key>)>,
    lens: Vec<usize>,
    bytes: usize,
    superseded: u64,
    deletions: u64,
    cold: u64,
}

fn see(store: &TestStore, from: u64, upto: u64) -> Seen {
    let places = || (0..TABLES).flat_map(|table| (0..KEYS).map(move |number| (table, number)));
    let of = |at: u64, (table, number): Place| {
        let seen = store.head(TableId(table), &key(number), SnapshotVersion(at));
        let value = |value: &Value| if value.is_cold() { Err(()) } else { Ok(value.to_vec()) };
        let had = |it: Version| {
            (it.version.0, it.header.writer().to_bits(), it.value.as_ref().map(value))
        };
        (at, (table, number), seen.map(had))
    };
    let versions = (from..=upto).flat_map(|at| places().map(move |place| of(at, place)));
    let order = (0..TABLES).map(|table| {
        let mut keys = Vec::new();
        if let Some(rows) = store.tables.table(TableId(table)) {
            rows.order.settle(&Sequential);
            let all = (Bound::Unbounded, Bound::Unbounded);
            rows.order.collect(all, Direction::Forward, usize::MAX, &mut keys);
        }
        (table, keys)
    });
    Seen {
        versions: versions.collect(),
        order: order.collect(),
        lens: (0..TABLES).map(|table| store.len(TableId(table))).collect(),
        bytes: store.memory_bytes(),
        superseded: store.superseded(),
        deletions: store.deletions(),
        cold: store.cold_counts().cold,
    }
}

/// The memory of the rows, computed by visiting each.
fn count_bytes(store: &TestStore) -> usize {
    let other = Store::new();
    for id in store.table_ids() {
        for shard in &store.tables.table(id).expect("the table is listed").shards {
            for row in super::super::read(&shard.rows).iter() {
                let mut chain: Vec<_> = (0..40)
                    .filter_map(|at| row.chain.version(SnapshotVersion(at)).cloned())
                    .collect();
                chain.dedup_by_key(|version| version.version);
                for version in chain {
                    other.apply(id, row.key.clone(), version);
                }
            }
        }
    }
    other.memory_bytes()
}

fn places_and_lens(most: usize) -> impl Strategy<Value = Vec<(Place, Option<usize>)>> {
    let len = prop::option::weighted(0.7, 0..40_usize);
    prop::collection::vec(((0..TABLES, 0..KEYS), len), 0..most)
}

/// The writes of a transaction, and whether it is kept. It scans before each write listed in
/// `scans`.
#[derive(Clone, Debug)]
struct Txn {
    writes: Vec<(Place, Option<usize>)>,
    scans: Vec<usize>,
    is_kept: bool,
}

fn txn() -> impl Strategy<Value = Txn> {
    let scans = prop::collection::vec(0..12_usize, 0..3);
    (places_and_lens(12), scans, any::<bool>()).prop_map(|(writes, scans, is_kept)| Txn {
        writes,
        scans,
        is_kept,
    })
}

/// The kind of a store: whether writers overwrite, whether there is a point, and whether values may
/// be cold.
#[derive(Clone, Copy, Debug)]
struct Kind {
    overwrites: bool,
    has_point: bool,
    is_cold: bool,
}

/// A store with rows of versions 1 to 4, of which 4 is published.
fn filled(kind: Kind, before: &[Vec<(Place, Option<usize>)>]) -> Arc<TestStore> {
    let store = match kind.is_cold {
        true => Store::with_cold(Box::new(ColdMemory::default()), 1),
        false => Store::new(),
    };
    let store = Arc::new(store);
    for (writes, at) in before.iter().zip(1..) {
        for &((table, number), len) in writes {
            store.apply(TableId(table), key(number), written_by(100 + at, at, len));
        }
        store.publish(SnapshotVersion(at));
        if kind.overwrites {
            store.overwrite(SnapshotVersion(at));
        }
        store.evict();
    }
    store
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Runs transactions of one version, some of which are undone. The store must equal one with
    /// only the transactions that were kept.
    #[test]
    fn what_is_taken_back_was_never_there(
        (overwrites, has_point, is_cold) in (any::<bool>(), any::<bool>(), any::<bool>()),
        before in prop::collection::vec(places_and_lens(20), 4),
        txns in prop::collection::vec(txn(), 1..8),
    ) {
        let kind = Kind { overwrites, has_point, is_cold };
        let (store, model) = (filled(kind, &before), filled(kind, &before));
        let pins = kind.has_point.then(|| {
            [&store, &model].map(|store| store.pin_checkpoint(SnapshotVersion(4)).unwrap())
        });
        let mut written = Written::default();
        for (txn, writer) in txns.iter().zip(200..) {
            let start = see(&store, 4, 5);
            let mut own = BTreeMap::new();
            for (n, &(place, len)) in txn.writes.iter().enumerate() {
                if txn.scans.contains(&n) {
                    store.show(&mut written);
                }
                write(&store, &mut written, Put { writer, at: 5, place, len });
                own.insert(place, len);
                let found = store.latest(TableId(place.0), &key(place.1));
                prop_assert_eq!(found, Some(written_by(writer, 5, len)));
            }
            if !txn.scans.is_empty() {
                store.show(&mut written);
                scans_see(&store, &own)?;
            }
            let bytes = |(&(_, number), len): (&Place, &Option<usize>)| {
                key(number).len() + len.unwrap_or(0)
            };
            prop_assert_eq!(written.contents_bytes(), own.iter().map(bytes).sum::<usize>());
            prop_assert_eq!(written.len(), own.len());
            let all: BTreeMap<_, _> = store.writes_of(&written).into_iter()
                .map(|write| ((write.table, write.key), write.value)).collect();
            let expected: BTreeMap<_, _> = own.iter().map(|(&(table, number), &len)| {
                ((TableId(table), key(number)), written_by(writer, 5, len).value)
            }).collect();
            prop_assert_eq!(all, expected);
            if txn.is_kept {
                store.keep(&mut written, SnapshotVersion(5));
                for ((table, number), len) in own {
                    model.apply(TableId(table), key(number), written_by(writer, 5, len));
                }
            } else {
                store.take_back(&mut written);
                // Overwritten versions are not restored, because they are not needed.
                let now = see(&store, 4, 5);
                prop_assert!(now.bytes <= start.bytes);
                let bytes = if kind.overwrites { now.bytes } else { start.bytes };
                prop_assert_eq!(now, Seen { bytes, ..start });
            }
            prop_assert!(written.is_empty());
            if !kind.is_cold {
                prop_assert_eq!(store.memory_bytes(), count_bytes(&store));
            }
        }
        let (found, expected) = (see(&store, 4, 5), see(&model, 4, 5));
        let bytes = if kind.overwrites { found.bytes } else { expected.bytes };
        prop_assert_eq!(found, Seen { bytes, ..expected });
        drop(pins);
        end_alike(&store, &model)?;
    }
}

/// Asserts that a scan sees the rows of a transaction.
fn scans_see(store: &TestStore, own: &BTreeMap<Place, Option<usize>>) -> Result<(), TestCaseError> {
    for table in 0..TABLES {
        let mut keys = Vec::new();
        let (id, all) = (TableId(table), KeyRange::all());
        store.scan_heads(id, &all, SnapshotVersion(5), |key, _| {
            keys.push(key.clone());
            ControlFlow::Continue(())
        });
        for (_, number) in own.keys().filter(|(of, _)| *of == table) {
            prop_assert!(keys.contains(&key(*number)));
        }
    }
    Ok(())
}

/// Asserts that both stores have the same rows after publishing and reclaiming, and after a
/// rollback.
fn end_alike(store: &TestStore, model: &TestStore) -> Result<(), TestCaseError> {
    for store in [store, model] {
        store.publish(SnapshotVersion(5));
        store.reclaim(SnapshotVersion(5));
        store.discard_overwritten();
    }
    let [found, expected] = [store, model].map(|store| see(store, 5, 5));
    prop_assert_eq!(found, expected);
    prop_assert!(store.garbage.is_empty());
    Ok(())
}

#[test]
fn a_deletion_that_is_the_newest_again_is_reclaimed_though_it_was_looked_at_meanwhile() {
    let store = TestStore::new();
    let place = (1, 1);
    store.apply(TableId(1), key(1), version(1, Some(b"v")));
    store.apply(TableId(1), key(1), version(2, None));
    store.publish(SnapshotVersion(2));
    let mut written = Written::default();
    write(&store, &mut written, Put { writer: 9, at: 3, place, len: Some(1) });
    store.reclaim(SnapshotVersion(2));
    assert_eq!(store.len(TableId(1)), 1);
    store.take_back(&mut written);
    store.reclaim(SnapshotVersion(2));
    assert_eq!((store.len(TableId(1)), store.memory_bytes()), (0, 0));
}
