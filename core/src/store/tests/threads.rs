//! Readers on other threads, while the store is written and reclaimed.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::txn::Taken;

const ACCOUNTS: u64 = 200;
const VERSIONS: u64 = 400;
const TOTAL: u64 = ACCOUNTS * 100;

/// The key of an account's balance. It changes between versions, so that runs are split and joined
/// during scans.
fn account_key(account: u64, epoch: u64) -> Key {
    let mut bytes = account.to_be_bytes().to_vec();
    bytes.push((epoch % 3) as u8);
    key(&bytes)
}

/// The writes of one version: every third account moves to another key, and one account pays
/// another.
fn writes_of(number: u64, balances: &mut [u64]) -> Vec<(TableId, Key, Version)> {
    let (from, to) = ((number * 7 % ACCOUNTS) as usize, (number * 13 % ACCOUNTS) as usize);
    let amount = balances[from].min(number % 10);
    balances[from] -= amount;
    balances[to] += amount;
    let mut writes = Vec::new();
    for account in 0..ACCOUNTS {
        let balance = balances[account as usize].to_le_bytes();
        let epoch_of = |number: u64| (number + account) / 3;
        let is_moved = number > 1 && epoch_of(number) != epoch_of(number - 1);
        if is_moved {
            let before = account_key(account, epoch_of(number - 1));
            writes.push((TABLE, before, version(number, None)));
        }
        let is_written = is_moved || number == 1 || [from, to].contains(&(account as usize));
        if is_written {
            let now = account_key(account, epoch_of(number));
            writes.push((TABLE, now, version(number, Some(&balance))));
        }
    }
    writes
}

/// The number of accounts that a reader at a pinned version finds, and their total balance.
fn audit(pin: &Pin, direction: Direction) -> (u64, u64) {
    let (mut accounts, mut total) = (0, 0);
    let (store, at) = (pin.store(), pin.version());
    store.scan(TABLE, &KeyRange::all(), direction, at, |key, seen| {
        assert!(seen.version <= at, "a version after the snapshot");
        // A deletion may have been reclaimed since the scan visited it.
        if let Some(value) = &seen.value {
            assert_eq!(store.read(TABLE, key, at).as_ref(), Some(seen), "the two indexes agree");
            accounts += 1;
            total += u64::from_le_bytes(value[..].try_into().unwrap());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(swept(pin), (accounts, total), "in parts at {at}");
    (accounts, total)
}

/// The same with an unordered scan.
fn swept(pin: &Pin) -> (u64, u64) {
    let sweep = pin.unordered_scan(TABLE);
    let mut taken = Taken::default();
    (0..UnorderedScan::PARTS).for_each(|part| sweep.take(part, &mut taken));
    let balance = |(_, value): (&[u8], &[u8])| u64::from_le_bytes(value.try_into().unwrap());
    (taken.len() as u64, taken.iter().map(balance).sum())
}

fn read_until(done: &AtomicBool, store: &Arc<Store>, direction: Direction) -> u64 {
    let mut audits = 0;
    let mut newest = SnapshotVersion::ZERO;
    loop {
        // Read before the audit, so that each reader makes one after the last version too.
        let is_last = done.load(Ordering::Acquire);
        let pin = store.pin();
        assert!(pin.version() >= newest, "published versions only increase");
        newest = pin.version();
        assert_eq!(audit(&pin, direction), (ACCOUNTS, TOTAL), "at {newest}");
        audits += 1;
        if is_last {
            assert_eq!(newest, SnapshotVersion(VERSIONS));
            return audits;
        }
    }
}

/// Ends the other threads when the writer ends, even by a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "tests may use threads")]
fn a_pinned_reader_sees_one_version_while_others_are_written_and_reclaimed() {
    let store = store_at(0);
    let mut balances = vec![100; ACCOUNTS as usize];
    let mut step = |number| {
        let pool = Threads((number % 3 + 1) as usize);
        store.apply_batch(&pool, SnapshotVersion(number), writes_of(number, &mut balances));
        store.publish(SnapshotVersion(number));
    };
    step(1);
    let done = AtomicBool::new(false);
    let (done, store) = (&done, &store);
    std::thread::scope(|scope| {
        let readers = [Direction::Forward, Direction::Reverse, Direction::Forward]
            .map(|direction| scope.spawn(move || read_until(done, store, direction)));
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                store.reclaim_at_most(store.published(), 50);
                std::thread::yield_now();
            }
        });
        let ends = SetOnDrop(done);
        (2..=VERSIONS).for_each(step);
        drop(ends);
        for reader in readers {
            assert!(reader.join().expect("the audits of a reader pass") > 0);
        }
    });
    store.reclaim(SnapshotVersion(VERSIONS));
    assert_eq!(store.len(TABLE) as u64, ACCOUNTS, "superseded versions are reclaimed");
}

const WRITERS: u64 = 4;
const KEYS_PER_WRITER: u64 = 40;
const ROUNDS: u64 = 300;

/// One of several writers with interleaved keys. In each round it deletes a key or inserts it
/// again, so that keys are inserted while their deletion is being reclaimed.
fn toggle(store: &Store, writer: u64, round: u64) {
    for i in 0..KEYS_PER_WRITER {
        let name = key(&(i * WRITERS + writer).to_be_bytes());
        let is_there = (round + i).is_multiple_of(2);
        store.apply(TABLE, name, version(round, is_there.then_some(b"v")));
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "tests may use threads")]
fn keys_that_come_back_while_they_are_reclaimed_are_in_both_indexes() {
    let store = store_at(0);
    let done = AtomicBool::new(false);
    let (store, done) = (&store, &done);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                store.reclaim(store.published());
            }
        });
        let ends = SetOnDrop(done);
        for round in 1..=ROUNDS {
            std::thread::scope(|scope| {
                (0..WRITERS).for_each(|writer| {
                    scope.spawn(move || toggle(store, writer, round));
                });
            });
            let at = SnapshotVersion(round);
            store.publish(at);
            let _pin = store.pin();
            let mut live = Vec::new();
            store.scan(TABLE, &KeyRange::all(), Direction::Forward, at, |key, seen| {
                live.extend(seen.value.as_ref().map(|_| key.clone()));
                ControlFlow::Continue(())
            });
            let expected = (0..WRITERS * KEYS_PER_WRITER)
                .filter(|number| (round + number / WRITERS).is_multiple_of(2))
                .map(|number| key(&number.to_be_bytes()));
            assert!(live.into_iter().eq(expected), "the order at {at}");
        }
        drop(ends);
    });
    store.reclaim(SnapshotVersion(ROUNDS));
    assert_eq!(store.len(TABLE) as u64, WRITERS * KEYS_PER_WRITER / 2, "the hash table");
}
