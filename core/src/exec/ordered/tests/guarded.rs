//! Jobs that are put off leave no trace: the others have the results of a call without them.

use std::collections::BTreeSet;

use super::*;

/// Forbids some keys, and versions from one on.
struct Forbidden {
    reads: BTreeSet<(u32, u8)>,
    writes: BTreeSet<(u32, u8)>,
    versions_from: SnapshotVersion,
}

impl Guard for Forbidden {
    fn may_read(&self, _: usize, table: TableId, key: &[u8]) -> bool {
        !self.reads.contains(&(table.0, key[0]))
    }

    fn may_read_range(&self, _: usize, table: TableId, range: &KeyRange) -> bool {
        !self.reads.iter().any(|(t, k)| *t == table.0 && range.contains(&[*k]))
    }

    fn may_write(&self, _: usize, table: TableId, key: &[u8]) -> bool {
        !self.writes.contains(&(table.0, key[0]))
    }

    fn may_see(&self, _: usize, version: SnapshotVersion) -> bool {
        version < self.versions_from || version == AT
    }
}

fn guarded(
    rows: &Rows,
    pool: &dyn Pool,
    work: &[Program],
    guard: &Forbidden,
) -> (Vec<Option<Finished>>, Model) {
    let store = store(rows);
    let job = |(n, program)| Job { txn: txn(n as u64), program, footprint: None };
    let jobs: Vec<Job<'_>> = work.iter().enumerate().map(job).collect();
    let detail = ResultDetail::Writes;
    let at = (&store, AT);
    let finished = execute_guarded(pool, &registry(), at, &jobs, &header_of, detail, Some(guard));
    let after = Model::of(&store, AT);
    assert_nothing_is_left(&store, &after);
    (finished, after)
}

proptest! {
    #[test]
    fn jobs_that_are_put_off_leave_no_trace(
        rows in rows(),
        work in prop::collection::vec(ops(), 1..8),
        reads in prop::collection::btree_set((0..TABLES, 0_u8..10), 0..4),
        writes in prop::collection::btree_set((0..TABLES, 0_u8..10), 0..4),
    ) {
        let work: Vec<Program> = work.iter().map(|ops| program(ops)).collect();
        let guard = Forbidden { reads, writes, versions_from: AT };
        let (finished, after) = guarded(&rows, &Sequential, &work, &guard);
        for pool in [&Threads(4) as &dyn Pool, &Backwards(4)] {
            let (again, same) = guarded(&rows, pool, &work, &guard);
            prop_assert_eq!(&again, &finished);
            prop_assert_eq!(&same, &after);
        }
        let ran = work.iter().zip(&finished).filter(|(_, done)| done.is_some());
        let ran: Vec<(Program, Option<Footprint>)> =
            ran.map(|(program, _)| (program.clone(), None)).collect();
        let (alone, model) = execute_on(&rows, &Sequential, &ran);
        let outcomes = |all: Vec<Finished>| -> Vec<_> {
            all.into_iter().map(|done| (done.outcome, done.writes, done.passes)).collect()
        };
        prop_assert_eq!(outcomes(alone), outcomes(finished.into_iter().flatten().collect()));
        prop_assert_eq!(model, after);
    }
}

#[test]
fn a_job_that_would_see_a_forbidden_version_is_put_off() {
    let rows: Rows = [((0, 1), Some(3)), ((0, 2), None)].into();
    let work = [Op::Get(0, 1), Op::Get(0, 2), Op::Get(0, 3), Op::Put(0, 1, 9)];
    let work: Vec<Program> = work.into_iter().map(|op| program(&[op])).collect();
    let none = BTreeSet::new();
    let guard = Forbidden { reads: none.clone(), writes: none, versions_from: BEFORE };
    let (finished, _) = guarded(&rows, &Sequential, &work, &guard);
    let is_done: Vec<bool> = finished.iter().map(Option::is_some).collect();
    assert_eq!(is_done, [false, false, true, true], "a deletion is seen, too");
}
