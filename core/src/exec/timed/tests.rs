//! Tests of the queue: random histories against the definitions, and the cases that matter.

use proptest::prelude::*;

use super::*;
use crate::ids::{NodeId, TableId};
use crate::key::{Key, KeyRange};
use crate::txn::{LockMode, PointLock, RangeLock};

const TABLE: TableId = TableId(1);

fn txn(number: u64) -> TxnId {
    TxnId::new(NodeId(0), number)
}

fn at(version: u64) -> SnapshotVersion {
    SnapshotVersion(version)
}

fn point(key: u8, mode: LockMode) -> PointLock {
    PointLock { table: TABLE, key: Key::from(&[key][..]), mode }
}

fn range(from: u8, to: u8, mode: LockMode) -> RangeLock {
    RangeLock { table: TABLE, range: KeyRange { start: vec![from], end: Some(vec![to]) }, mode }
}

fn rows(points: &[(u8, LockMode)]) -> Arc<Footprint> {
    let points = points.iter().map(|(key, mode)| point(*key, *mode)).collect();
    Arc::new(Footprint::new(points, vec![]))
}

fn heads(queue: &TimedQueue) -> Vec<u64> {
    queue.heads().map(|(version, _)| version.0).collect()
}

#[test]
fn a_transaction_is_at_the_head_if_nothing_before_it_conflicts() {
    let mut queue = TimedQueue::default();
    queue.insert(txn(1), at(10), rows(&[(1, LockMode::Shared)]));
    queue.insert(txn(2), at(30), rows(&[(1, LockMode::Shared), (2, LockMode::Exclusive)]));
    assert_eq!(heads(&queue), [10, 30]);
    // A writer that arrives later and belongs between the readers.
    queue.insert(txn(3), at(20), rows(&[(1, LockMode::Write)]));
    assert_eq!(heads(&queue), [10]);
    queue.raise(txn(1), at(40));
    assert_eq!(heads(&queue), [20]);
    queue.make_ready(txn(3));
    queue.release(txn(3));
    assert_eq!(heads(&queue), [30, 40]);
    queue.invariants();
}

#[test]
fn a_ready_transaction_keeps_conflicting_ones_from_arriving_before_it() {
    let mut queue = TimedQueue::default();
    queue.insert(txn(1), at(10), rows(&[(1, LockMode::Shared), (2, LockMode::Exclusive)]));
    let (reads, writes) = (rows(&[(1, LockMode::Shared)]), rows(&[(1, LockMode::Write)]));
    assert_eq!((queue.floor(&reads), queue.floor(&writes)), (at(0), at(0)));
    queue.make_ready(txn(1));
    assert_eq!((queue.floor(&reads), queue.floor(&writes)), (at(0), at(10)));
    assert_eq!(queue.floor(&rows(&[(2, LockMode::Shared)])), at(10));
    assert_eq!(queue.floor(&rows(&[(3, LockMode::Exclusive)])), at(0));
    // Its floors remain when it moves, and when it has gone.
    queue.raise(txn(1), at(20));
    assert_eq!((queue.floor(&writes), queue.is_ready(txn(1))), (at(10), false));
    queue.make_ready(txn(1));
    queue.release(txn(1));
    assert_eq!(queue.floor(&writes), at(20));
    queue.invariants();
}

#[test]
fn ranges_leave_floors_and_meet_the_floors_of_their_rows() {
    let mut queue = TimedQueue::default();
    let scan = Footprint::new(vec![], vec![range(2, 6, LockMode::Shared)]);
    queue.insert(txn(1), at(10), Arc::new(scan.clone()));
    queue.insert(txn(2), at(20), rows(&[(6, LockMode::Exclusive)]));
    queue.make_ready(txn(1));
    queue.make_ready(txn(2));
    assert_eq!(queue.floor(&rows(&[(3, LockMode::Write)])), at(10), "a row that may be new");
    assert_eq!(queue.floor(&rows(&[(3, LockMode::Shared)])), at(0));
    assert_eq!(queue.floor(&scan), at(0), "scans do not conflict, and row 6 is outside");
    let wider = Footprint::new(vec![], vec![range(5, 7, LockMode::Shared)]);
    assert_eq!(queue.floor(&wider), at(20));
}

#[test]
fn the_window_is_the_floor_of_rows_that_were_forgotten() {
    let mut queue = TimedQueue::default();
    for number in 1..=200 {
        queue.insert(txn(number), at(number), rows(&[(number as u8, LockMode::Write)]));
        queue.make_ready(txn(number));
        queue.release(txn(number));
        queue.invariants();
    }
    // Only the newest 64 are kept.
    let floor = |key| queue.floor(&rows(&[(key, LockMode::Write)]));
    assert_eq!(
        [floor(1), floor(136), floor(137), floor(200)],
        [at(136), at(136), at(137), at(200)]
    );
    queue.raise_window(at(300));
    queue.invariants();
    assert_eq!(queue.floor(&rows(&[(200, LockMode::Shared)])), at(300));
}

#[test]
#[should_panic(expected = "is too late")]
fn nothing_is_inserted_at_its_floor() {
    let mut queue = TimedQueue::default();
    queue.insert(txn(1), at(10), rows(&[(1, LockMode::Write)]));
    queue.make_ready(txn(1));
    queue.insert(txn(2), at(9), rows(&[(1, LockMode::Shared)]));
}

#[test]
fn many_transactions_on_one_row_take_no_quadratic_time() {
    const TXNS: u64 = 20_000;
    let mut queue = TimedQueue::default();
    for number in 0..TXNS {
        // Each arrives before all that arrived before it.
        queue.insert(txn(number), at(TXNS - number), rows(&[(1, LockMode::Exclusive)]));
    }
    for number in (0..TXNS).rev() {
        assert_eq!(queue.heads().count(), 1);
        queue.make_ready(txn(number));
        queue.release(txn(number));
    }
    assert_eq!(queue.pending().count(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, Footprint),
    Raise(usize, u64),
    MakeReady(usize),
    Release(usize),
    RaiseWindow(u64),
}

fn mode() -> impl Strategy<Value = LockMode> {
    prop_oneof![Just(LockMode::Shared), Just(LockMode::Write), Just(LockMode::Exclusive)]
}

fn footprint() -> impl Strategy<Value = Footprint> {
    let points = prop::collection::vec((0..6u8, mode()), 0..3);
    let ranges = prop::collection::vec((0..6u8, 0..6u8, mode()), 0..2);
    (points, ranges).prop_map(|(points, ranges)| {
        let points = points.into_iter().map(|(key, mode)| point(key, mode)).collect();
        let ranges = ranges.into_iter().map(|(from, to, mode)| range(from, to, mode)).collect();
        Footprint::new(points, ranges)
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..60u64, footprint()).prop_map(|(ahead, footprint)| Step::Insert(ahead, footprint)),
        2 => (0..20usize, 1..60u64).prop_map(|(which, by)| Step::Raise(which, by)),
        3 => (0..20usize).prop_map(Step::MakeReady),
        3 => (0..20usize).prop_map(Step::Release),
        1 => (0..30u64).prop_map(Step::RaiseWindow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The state follows from its definition after every step, and no conflicting transactions are
    /// released against the order of their versions.
    #[test]
    fn any_history_is_in_order(steps in prop::collection::vec(step(), 1..60)) {
        let mut queue = TimedQueue::default();
        let mut released: Vec<(SnapshotVersion, Footprint)> = Vec::new();
        let mut footprints = Vec::new();
        let mut window = 0;
        for (number, step) in (0..).zip(steps) {
            let nth = |which: usize| queue.pending().nth(which);
            match step {
                Step::Insert(ahead, footprint) => {
                    let mut version = queue.floor(&footprint).0 + 1 + ahead;
                    while queue.pending().any(|(other, _)| other == at(version)) {
                        version += 1;
                    }
                    queue.insert(txn(number), at(version), Arc::new(footprint.clone()));
                    footprints.push((txn(number), footprint));
                }
                Step::Raise(which, by) => if let Some((version, txn)) = nth(which) {
                    let mut to = version.0 + by;
                    while queue.pending().any(|(other, _)| other == at(to)) {
                        to += 1;
                    }
                    queue.raise(txn, at(to));
                },
                Step::MakeReady(which) => {
                    let head = queue.heads().nth(which);
                    head.into_iter().for_each(|(_, txn)| queue.make_ready(txn));
                }
                Step::Release(which) => if let Some((version, txn)) = nth(which)
                    && queue.is_ready(txn)
                {
                    queue.release(txn);
                    let (_, footprint) = footprints.iter().find(|(id, _)| *id == txn).unwrap();
                    let is_after = |(other, before): &(SnapshotVersion, Footprint)| {
                        *other < version || !super::pending::do_conflict(before, footprint)
                    };
                    prop_assert!(released.iter().all(is_after));
                    released.push((version, footprint.clone()));
                },
                Step::RaiseWindow(by) => {
                    window += by;
                    queue.raise_window(at(window));
                }
            }
            queue.invariants();
        }
    }
}
