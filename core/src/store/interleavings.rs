//! The store under a scheduler that chooses, at each lock and each atomic, which thread continues.
//!
//! The tests in `tests/threads.rs` run on real threads, whose interleaving is left to chance. Here
//! each test is a few steps of a few threads, run in a thousand orders. Half of the orders are
//! drawn at random; the other half have few switches at unlikely places (PCT), where most races
//! are. An order that fails is printed, and `shuttle::replay` repeats it.

mod rollback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Count, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};

use super::table::Table;
use super::tests::{header, version};
use super::*;
use crate::hash::hash_bytes;
use crate::pool::Pool;

/// The number of orders of each kind for each test, if `PANGEA_ORDERS` is not set. They take a
/// second.
const ORDERS: usize = 600;

/// The number of switches at unlikely places (PCT's depth).
const DEPTH: usize = 3;

const SEED: u64 = 7;

/// The scheduler's threads have their own stacks; the default of 32 KiB is too small for
/// `CachePrefetcher`.
const STACK_BYTES: usize = 256 << 10;

/// Keys are derived from numbers below this.
const NUMBERS: u8 = 32;

const TABLE: TableId = TableId(7);

/// Runs a test in many orders.
fn explore(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    let given = std::env::var("PANGEA_ORDERS").ok();
    let orders = given.map_or(ORDERS, |orders| orders.parse().expect("a number of orders"));
    run(Box::new(RandomScheduler::new_from_seed(SEED, orders)), &test);
    run(Box::new(PctScheduler::new_from_seed(SEED, DEPTH, orders)), &test);
}

/// Runs a test in many orders, all with few switches: for tests with so many steps that one thread
/// never does all of them between two of another in a random order.
fn explore_few_switches(orders: usize, test: impl Fn() + Send + Sync + 'static) {
    run(Box::new(PctScheduler::new_from_seed(SEED, DEPTH, orders)), &Arc::new(test));
}

fn run<F: Fn() + Send + Sync + 'static>(scheduler: Box<dyn Scheduler + Send>, test: &Arc<F>) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.silence_warnings = true;
    let test = test.clone();
    Runner::new(scheduler, config).run(move || test());
}

/// A pool with a scheduler thread for each job.
struct Jobs(usize);

impl Pool for Jobs {
    fn run(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        thread::scope(|scope| {
            for i in 0..count {
                scope.spawn(move || job(i));
            }
        });
    }

    fn workers(&self) -> usize {
        self.0
    }
}

/// A key that begins with the number and is the only one in its shard of the hash table. If a
/// thread that holds a shard tries to lock it again, as a `CachePrefetcher` may, `shuttle` (0.9)
/// refuses the lock, then forgets to release it and reports a deadlock.
fn key(number: u8) -> Key {
    static KEYS: std::sync::OnceLock<Vec<Key>> = std::sync::OnceLock::new();
    let find = |number: u8| {
        let with = |tail: u16| Key::from(&[&[number][..], &tail.to_be_bytes()].concat()[..]);
        let is_alone = |key: &Key| Table::shard_of(hash_bytes(key)) == number.into();
        (0..=u16::MAX).map(with).find(is_alone).expect("one of these keys is in the shard")
    };
    KEYS.get_or_init(|| (0..NUMBERS).map(find).collect())[usize::from(number)].clone()
}

fn put(store: &Store, at: u64, number: u8) {
    store.apply(TABLE, key(number), version(at, Some(&[number, at as u8])));
}

fn delete(store: &Store, at: u64, number: u8) {
    store.apply(TABLE, key(number), version(at, None));
}

fn publish(store: &Store, at: u64) {
    store.publish(SnapshotVersion(at));
}

/// The first bytes of the live keys that a scan finds, and the versions of their values.
fn scan(store: &Store, at: SnapshotVersion, direction: Direction) -> Vec<(u8, u8)> {
    let mut found = Vec::new();
    store.scan(TABLE, &KeyRange::all(), direction, at, |key, seen| {
        assert!(seen.version <= at, "a version after the snapshot");
        if let Some(value) = &seen.value {
            assert_eq!(value[0], key[0], "another key's value");
            found.push((key[0], value[1]));
        }
        ControlFlow::Continue(())
    });
    if direction == Direction::Reverse {
        found.reverse();
    }
    found
}

fn read_one(store: &Store, number: u8, at: SnapshotVersion) -> Option<u8> {
    let seen = store.read(TABLE, &key(number), at)?;
    seen.value.map(|value| value[1])
}

/// A store with these keys, written and published at version 1.
fn store_of(keys: impl IntoIterator<Item = u8>) -> Arc<Store> {
    let store = Arc::new(Store::new());
    keys.into_iter().for_each(|number| put(&store, 1, number));
    publish(&store, 1);
    store
}

/// Keys are overwritten in place while a checkpoint reads its point and readers read new versions.
#[test]
fn readers_and_a_checkpoint_see_what_is_theirs_while_it_is_overwritten() {
    explore(|| {
        let store = store_of([10, 20]);
        let checkpoint = Arc::new(std::sync::Mutex::new(None));
        let writer = {
            let (store, checkpoint) = (store.clone(), checkpoint.clone());
            thread::spawn(move || {
                for at in 2..=5 {
                    store.overwrite(SnapshotVersion(at - 1));
                    if at == 3 {
                        let pin = store.pin_checkpoint(SnapshotVersion(2)).unwrap();
                        *checkpoint.lock().unwrap() = Some(pin);
                    }
                    put(&store, at, 10);
                    publish(&store, at);
                }
            })
        };
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let pin = store.pin();
                let at = pin.version();
                for _ in 0..2 {
                    assert_eq!(scan(&store, at, Direction::Forward), [(10, at.0 as u8), (20, 1)]);
                }
            })
        };
        let end = {
            let (store, checkpoint) = (store.clone(), checkpoint.clone());
            thread::spawn(move || {
                let pin = checkpoint.lock().unwrap().take();
                let Some(pin) = pin else { return };
                let at = pin.version();
                assert_eq!(scan(&store, at, Direction::Forward), [(10, 2), (20, 1)]);
                pin.end();
            })
        };
        [writer, reader, end].into_iter().for_each(|thread| thread.join().unwrap());
        let left = checkpoint.lock().unwrap().take();
        if let Some(pin) = left {
            assert_eq!(scan(&store, pin.version(), Direction::Forward), [(10, 2), (20, 1)]);
            pin.end();
        }
        assert_eq!(scan(&store, SnapshotVersion(5), Direction::Forward), [(10, 5), (20, 1)]);
    });
}

#[test]
fn a_reader_sees_all_of_the_version_that_is_published_and_nothing_of_the_next() {
    explore(|| {
        let store = store_of([10, 20]);
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                for at in 2..=3 {
                    put(&store, at, 10);
                    put(&store, at, 10 + at as u8);
                    publish(&store, at);
                }
            })
        };
        let readers = [Direction::Forward, Direction::Reverse].map(|direction| {
            let store = store.clone();
            thread::spawn(move || {
                let pin = store.pin();
                let at = pin.version();
                let now = at.0 as u8;
                assert_eq!(read_one(&store, 10, at), Some(now));
                let new = (2..=now).map(|at| (10 + at, at));
                let expected: Vec<_> =
                    [(10, now)].into_iter().chain(new).chain([(20, 1)]).collect();
                assert_eq!(scan(&store, at, direction), expected, "at {at}");
                assert!(store.published() >= at);
            })
        });
        writer.join().unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(store.len(TABLE), 4);
    });
}

#[test]
fn what_is_pinned_is_kept_while_others_write_and_reclaim() {
    explore(|| {
        let store = store_of([10, 20]);
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                put(&store, 2, 10);
                delete(&store, 2, 20);
                publish(&store, 2);
                put(&store, 3, 10);
                publish(&store, 3);
            })
        };
        let reclaimer = {
            let store = store.clone();
            thread::spawn(move || (0..2).map(|_| store.reclaim(store.published())).sum::<usize>())
        };
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let pin = store.pin();
                let at = pin.version();
                let now = at.0 as u8;
                let there = if now == 1 { Some(1) } else { None };
                for _ in 0..2 {
                    assert_eq!(read_one(&store, 10, at), Some(now), "at {at}");
                    assert_eq!(read_one(&store, 20, at), there, "at {at}");
                }
                let again = store.pin_at(at).expect("a pinned version can be pinned");
                drop(pin);
                let expected = [(10, now)].into_iter().chain(there.map(|at| (20, at)));
                assert_eq!(
                    scan(&store, again.version(), Direction::Forward),
                    Vec::from_iter(expected)
                );
            })
        };
        let old = {
            let store = store.clone();
            thread::spawn(move || match store.pin_at(SnapshotVersion(1)) {
                Ok(pin) => assert_eq!(read_one(&store, 10, pin.version()), Some(1)),
                Err(error) => assert!(matches!(error, PinError::Reclaimed { .. }), "{error}"),
            })
        };
        writer.join().unwrap();
        let reclaimed = reclaimer.join().unwrap();
        reader.join().unwrap();
        old.join().unwrap();
        // Two versions of key 10, and the value and the deletion of key 20.
        assert_eq!(reclaimed + store.reclaim(SnapshotVersion(3)), 4);
        assert_eq!(store.len(TABLE), 1);
        // The memory estimate equals that of a store that never had more rows.
        let fresh = Store::new();
        put(&fresh, 3, 10);
        assert_eq!(store.memory_bytes(), fresh.memory_bytes());
    });
}

#[test]
fn a_key_that_comes_back_while_it_is_reclaimed_is_in_both_indexes() {
    explore(|| {
        let store = store_of([10, 20, 30]);
        delete(&store, 2, 20);
        publish(&store, 2);
        let reclaimer = {
            let store = store.clone();
            thread::spawn(move || store.reclaim(SnapshotVersion(2)))
        };
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                put(&store, 3, 20);
                publish(&store, 3);
                let pin = store.pin();
                let expected = vec![(10, 1), (20, 3), (30, 1)];
                assert_eq!(scan(&store, pin.version(), Direction::Forward), expected);
            })
        };
        reclaimer.join().unwrap();
        writer.join().unwrap();
        store.reclaim(SnapshotVersion(3));
        let expected = vec![(10, 1), (20, 3), (30, 1)];
        assert_eq!(scan(&store, SnapshotVersion(3), Direction::Reverse), expected);
        assert_eq!((store.len(TABLE), read_one(&store, 20, SnapshotVersion(3))), (3, Some(3)));
    });
}

/// So many keys that two jobs find the same run too large. They are before, between and after the
/// existing ones.
const MANY: std::ops::Range<u8> = 0..30;

#[test]
fn keys_that_join_the_order_during_a_scan_do_not_disturb_it() {
    explore(|| {
        let is_old = |number: &u8| number % 3 == 1;
        let store = store_of(MANY.filter(is_old));
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                let new = MANY.filter(|number| !is_old(number));
                let writes = new.map(|n| (TABLE, key(n), version(2, Some(&[n, 2])))).collect();
                store.apply_batch(&Jobs(2), SnapshotVersion(2), writes);
                publish(&store, 2);
                // So many keys are deleted that runs are joined.
                MANY.skip(4).for_each(|number| delete(&store, 3, number));
                publish(&store, 3);
                store.reclaim(SnapshotVersion(3));
            })
        };
        let readers = [Direction::Forward, Direction::Reverse].map(|direction| {
            let store = store.clone();
            thread::spawn(move || {
                let pin = store.pin();
                let is_there = |number: &u8| match pin.version().0 {
                    1 => is_old(number),
                    2 => true,
                    _ => *number < 4,
                };
                let of = |number: u8| (number, if is_old(&number) { 1 } else { 2 });
                let expected: Vec<_> = MANY.filter(is_there).map(of).collect();
                assert_eq!(
                    scan(&store, pin.version(), direction),
                    expected,
                    "at {}",
                    pin.version()
                );
            })
        });
        writer.join().unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        store.reclaim(SnapshotVersion(3));
        assert_eq!(store.len(TABLE), 4);
    });
}

#[test]
fn whoever_applies_finds_its_new_keys_in_order_whoever_else_puts_them_there() {
    explore(|| {
        let store = store_of([10]);
        put(&store, 2, 5);
        put(&store, 2, 15);
        let others = [(); 2].map(|()| {
            let store = store.clone();
            thread::spawn(move || store.settle(&Jobs(2)))
        });
        let expected = vec![(5, 2), (10, 1), (15, 2)];
        assert_eq!(scan(&store, SnapshotVersion(2), Direction::Forward), expected);
        others.into_iter().for_each(|other| other.join().unwrap());
        publish(&store, 2);
        assert_eq!(scan(&store, SnapshotVersion(2), Direction::Reverse), expected);
    });
}

#[test]
fn a_table_that_several_make_at_the_same_time_is_one_and_is_listed() {
    explore(|| {
        let store = Arc::new(Store::new());
        // One table twice, and another whose path in the directory differs only in the last step.
        let writers = [(7, 1), (7, 2), (8, 3)].map(|(table, number)| {
            let store = store.clone();
            thread::spawn(move || {
                let value = version(1, Some(&[number, 1]));
                store.apply(TableId(table), key(number), value.clone());
                assert!(store.table_ids().contains(&TableId(table)), "the table is listed now");
                let seen = store.read(TableId(table), &key(number), SnapshotVersion(1));
                assert_eq!(seen, Some(value), "the written row is found");
            })
        });
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                for id in store.table_ids() {
                    assert!(store.tables.table(id).is_some(), "{id} is listed but does not exist");
                }
            })
        };
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        reader.join().unwrap();
        publish(&store, 1);
        assert_eq!(store.table_ids(), [7, 8].map(TableId));
        assert_eq!((store.len(TableId(7)), store.len(TableId(8))), (2, 1));
        assert_eq!(scan(&store, SnapshotVersion(1), Direction::Forward), [(1, 1), (2, 1)]);
    });
}

#[test]
fn a_reader_knows_whether_the_store_was_cleared_under_it() {
    let lost = Arc::new(Count::new(0));
    let counted = lost.clone();
    explore(move || {
        let store = store_of([10, 20]);
        let clearer = {
            let store = store.clone();
            thread::spawn(move || {
                store.clear();
                put(&store, 1, 30);
                publish(&store, 1);
            })
        };
        let pin = store.pin();
        let rows = scan(&store, pin.version(), Direction::Forward);
        if pin.is_lost() {
            counted.fetch_add(1, Ordering::Relaxed);
        } else {
            let of_version = |rows: &[(u8, u8)]| match pin.version().0 {
                0 => rows.is_empty(),
                _ => [&[(10, 1), (20, 1)][..], &[(30, 1)]].contains(&rows),
            };
            assert!(of_version(&rows), "{rows:?} at {}", pin.version());
        }
        drop(pin);
        clearer.join().unwrap();
        assert_eq!(store.oldest_pinned(), SnapshotVersion(1), "all pins are released");
        assert_eq!(scan(&store, SnapshotVersion(1), Direction::Forward), [(30, 1)]);
    });
    assert!(lost.load(Ordering::Relaxed) > 0, "the store was not cleared during a read");
}

/// A transaction writes in place and is undone; then another one writes and is kept.
#[test]
fn what_is_taken_back_is_seen_by_nobody() {
    explore(|| {
        let store = store_of([10, 20]);
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                let mut written = Written::default();
                let write = |written: &mut _, number, writer: u64| {
                    let value = Some(Value::from(vec![number, 2]));
                    let header = header(writer);
                    let version = Version { version: SnapshotVersion(2), header, value };
                    store.write(written, (TABLE, HashedKey::from(key(number))), version);
                };
                write(&mut written, 20, 1);
                store.keep(&mut written, SnapshotVersion(2));
                [5, 10, 20].into_iter().for_each(|number| write(&mut written, number, 2));
                store.show(&mut written);
                write(&mut written, 30, 2);
                store.take_back(&mut written);
                write(&mut written, 15, 3);
                store.keep(&mut written, SnapshotVersion(2));
                publish(&store, 2);
            })
        };
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let pin = store.pin();
                let expected: &[_] = match pin.version().0 {
                    1 => &[(10, 1), (20, 1)],
                    _ => &[(10, 1), (15, 2), (20, 2)],
                };
                assert_eq!(scan(&store, pin.version(), Direction::Forward), expected);
                assert_eq!(read_one(&store, 5, pin.version()), None);
                assert_eq!(read_one(&store, 10, pin.version()), Some(1));
            })
        };
        store.reclaim(SnapshotVersion(2));
        writer.join().unwrap();
        reader.join().unwrap();
        store.reclaim(SnapshotVersion(2));
        let expected = [(10, 1), (15, 2), (20, 2)];
        assert_eq!(scan(&store, SnapshotVersion(2), Direction::Forward), expected);
        assert_eq!((store.len(TABLE), store.memory_bytes()), {
            let fresh = store_of([10]);
            [15, 20].into_iter().for_each(|number| put(&fresh, 2, number));
            (3, fresh.memory_bytes())
        });
    });
}

#[test]
fn warming_rows_waits_for_nobody_and_changes_nothing() {
    explore(|| {
        let store = store_of([10, 20]);
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                put(&store, 2, 20);
                put(&store, 2, 10);
                publish(&store, 2);
                store.reclaim(SnapshotVersion(2))
            })
        };
        let keys = [10, 20, 30].map(key);
        store.warm(keys.iter().map(|key| (TABLE, key)));
        assert_eq!(writer.join().unwrap(), 2);
        assert_eq!(scan(&store, SnapshotVersion(2), Direction::Forward), [(10, 2), (20, 2)]);
    });
}
