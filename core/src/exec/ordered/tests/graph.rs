//! Tests of the graph of locks: any two conflicting jobs are ordered.

use super::*;
use crate::exec::ordered::schedule::Segments;
use crate::key::Key;

fn locks() -> impl Strategy<Value = Footprint> {
    let mode = || {
        prop::bool::weighted(0.4)
            .prop_map(|x| if x { LockMode::Exclusive } else { LockMode::Shared })
    };
    let point = (0u32..2, 0u8..8, mode()).prop_map(|(table, k, mode)| PointLock {
        table: TableId(table),
        key: key(k),
        mode,
    });
    let range = (0u32..2, 0u8..8, prop::option::weighted(0.9, 0u8..9), mode()).prop_map(
        |(table, start, end, mode)| {
            let range = KeyRange { start: vec![start], end: end.map(|end| vec![end]) };
            RangeLock { table: TableId(table), range, mode }
        },
    );
    (prop::collection::vec(point, 0..3), prop::collection::vec(range, 0..2))
        .prop_map(|(points, ranges)| Footprint::new(points, ranges))
}

/// The definition of a conflict: two locks overlap, and one of them is exclusive.
fn conflict(a: &Footprint, b: &Footprint) -> bool {
    let of = |footprint: &Footprint| {
        let points =
            footprint.points.iter().map(|lock| (lock.table, KeyRange::point(&lock.key), lock.mode));
        let ranges =
            footprint.ranges.iter().map(|lock| (lock.table, lock.range.clone(), lock.mode));
        points.chain(ranges).collect::<Vec<_>>()
    };
    let (a, b) = (of(a), of(b));
    a.iter().any(|(table, range, mode)| {
        b.iter().any(|(other_table, other, other_mode)| {
            let is_exclusive = *mode == LockMode::Exclusive || *other_mode == LockMode::Exclusive;
            is_exclusive && table == other_table && range.overlaps(other)
        })
    })
}

/// For each job, the jobs that it waits for, directly or indirectly.
fn waits_for(graph: &Graph) -> Vec<Vec<bool>> {
    let mut before = vec![vec![false; graph.nodes()]; graph.nodes()];
    let mut waits = graph.waits.clone();
    let mut ready: Vec<usize> = (0..graph.nodes()).filter(|&node| waits[node] == 0).collect();
    let mut ended = 0;
    while let Some(node) = ready.pop() {
        ended += 1;
        for &follower in graph.followers(node) {
            let follower = follower as usize;
            let of_node = before[node].clone();
            before[follower][node] = true;
            for (known, inherited) in before[follower].iter_mut().zip(of_node) {
                *known |= inherited;
            }
            waits[follower] -= 1;
            if waits[follower] == 0 {
                ready.push(follower);
            }
        }
    }
    assert_eq!(ended, graph.nodes(), "a cycle");
    before
}

proptest! {
    #[test]
    fn what_conflicts_waits_in_order_and_what_does_not_runs_at_once(
        footprints in prop::collection::vec(locks(), 0..16),
        workers in 1usize..6,
    ) {
        let locks: Vec<Locks<'_>> = footprints.iter().map(Locks::Given).collect();
        let graph = Graph::new(&Threads(workers), &locks.iter().collect::<Vec<_>>());
        let before = waits_for(&graph);
        for late in 0..footprints.len() {
            let mut expected: Vec<bool> = vec![false; late];
            for early in (0..late).rev() {
                if conflict(&footprints[early], &footprints[late]) {
                    prop_assert!(before[late][early], "{} runs concurrently with {}", late, early);
                    expected[early] = true;
                }
                if expected[early] {
                    for (other, is_before) in before[early][..early].iter().enumerate() {
                        expected[other] |= is_before;
                    }
                }
            }
            prop_assert_eq!(&before[late][..late], &expected[..], "{} waits for too many", late);
            prop_assert!(!before[late][late..footprints.len()].contains(&true));
        }
    }
}

#[test]
fn many_readers_after_many_writers_of_a_range_need_few_edges() {
    let all = |mode| RangeLock { table: TableId(1), range: KeyRange::all(), mode };
    let reader = Footprint::new(vec![], vec![all(LockMode::Shared)]);
    let writer = |n: u16| {
        let key = Key::from(&n.to_be_bytes()[..]);
        let lock = PointLock { table: TableId(1), key, mode: LockMode::Exclusive };
        Footprint::new(vec![lock], vec![])
    };
    let footprints: Vec<_> = (0..500).map(writer).chain((0..500).map(|_| reader.clone())).collect();
    let locks: Vec<Locks<'_>> = footprints.iter().map(Locks::Given).collect();
    let graph = Graph::new(&Threads(2), &locks.iter().collect::<Vec<_>>());
    let edges: usize = (0..graph.nodes()).map(|node| graph.followers(node).len()).sum();
    assert_eq!((graph.nodes(), edges), (1001, 1000));
}

#[test]
fn ranges_that_all_overlap_claim_fewer_and_larger_segments() {
    let ranges: Vec<KeyRange> =
        (0..2000u16).map(|n| KeyRange { start: n.to_be_bytes().to_vec(), end: None }).collect();
    let segments = Segments::new(&ranges.iter().collect::<Vec<_>>());
    let claims: usize = ranges.iter().map(|range| segments.of_range(range).len()).sum();
    assert!(claims < 64_000, "{claims} claims; pairs would be 4,000,000");
    for (n, range) in ranges.iter().enumerate().step_by(97) {
        let inside = segments.of_key(&(n as u16 + 3).to_be_bytes()).unwrap();
        assert!(segments.of_range(range).contains(&inside), "a key and its range share a segment");
    }
}
