//! A run over several shards has the result, the reads and the writes of one on a store with all
//! rows.

use proptest::prelude::*;

use super::*;
use crate::exec::Overlay;
use crate::exec::testing::{ops, program, registry, rows, store};
use crate::partition::Rule;
use crate::store::{RecordHeader, Version};
use crate::txn::Program;

type Row = (u32, u8);

fn partitions(kind: u8) -> Partitions {
    let hash = Rule::Hash { prefix_bytes: 1 };
    let ranges = Rule::Ranges { starts: vec![vec![3], vec![7]] };
    let (first, second) = match kind {
        0 => (hash.clone(), hash),
        1 => (ranges.clone(), hash),
        2 => (Rule::Everywhere, ranges),
        _ => (ranges.clone(), ranges),
    };
    let partitions = Partitions::new(3, Rule::Everywhere);
    partitions.with(TableId(0), first).with(TableId(1), second)
}

/// The stores of the shards. Rows of slots that were moved are still where they were before, too.
fn divided(
    rows: &BTreeMap<Row, Option<u8>>,
    before: &Partitions,
    partitions: &Partitions,
) -> Vec<Store> {
    let of_shard = |shard: u16| {
        let holds = |(table, k): Row| {
            let of = |of: &Partitions| of.holds(ShardId(shard), TableId(table), &[k]);
            of(before) || of(partitions)
        };
        store(&rows.iter().filter(|(row, _)| holds(**row)).map(|(r, v)| (*r, *v)).collect())
    };
    (0..3).map(of_shard).collect()
}

/// Runs a program until no row is missing.
fn run_all(
    program: &Program,
    place: (&Partitions, ShardId),
    shards: &[Store],
) -> (Result<Vec<u8>, Abort>, ReadSet, Vec<Write>) {
    let Program::Call { procedure, args } = program else { panic!("tests call programs") };
    let mut known = Known::default();
    let own = &shards[usize::from(place.1.0)];
    for _ in 0..400 {
        match run(&registry(), (*procedure, args), own, place, &known) {
            Spread::Ran { result, reads, writes } => return (result, reads, writes),
            Spread::Wants(wants) => {
                for (shard, keys) in wants {
                    let found =
                        FoundRows::look(&keys, &shards[usize::from(shard.0)], (place.0, shard));
                    let mut bytes = Vec::new();
                    found.encode(&mut bytes);
                    let again = FoundRows::decode(&mut Reader::new(&bytes));
                    assert_eq!(again.as_ref(), Ok(&found));
                    known.learn(shard, &keys, found);
                }
            }
        }
    }
    panic!("the rows do not suffice");
}

fn in_order(mut reads: ReadSet) -> ReadSet {
    reads.points.sort_by(|a, b| (a.table, &a.key).cmp(&(b.table, &b.key)));
    reads.ranges.sort_by(|a, b| {
        (a.table, &a.range.start, &a.range.end).cmp(&(b.table, &b.range.start, &b.range.end))
    });
    reads.ranges.dedup();
    reads
}

proptest! {
    #[test]
    fn a_run_over_shards_is_one_on_all_rows(
        rows in rows(),
        ops in ops(),
        kind in 0_u8..4,
        here in 0_u16..3,
        moves in prop::collection::vec((0_u32..2, 0_u8..10, 0_u16..3), 0..4),
    ) {
        let (before, program) = (partitions(kind), program(&ops));
        let moves = moves.into_iter().filter_map(|(table, key, shard)| {
            Some((before.slot_of(TableId(table), &[key])?, ShardId(shard)))
        });
        let partitions = before.placed(before.placement().with(moves));
        let shards = divided(&rows, &before, &partitions);
        let (result, reads, writes) = run_all(&program, (&partitions, ShardId(here)), &shards);
        let whole = store(&rows);
        let expected =
            optimistic::run(&registry(), &program, &whole, NEWEST, &Overlay::new());
        prop_assert_eq!(&result, &expected.result);
        prop_assert_eq!(&writes, &expected.writes);
        prop_assert_eq!(in_order(reads.clone()), in_order(expected.reads));
        let parts = divide(&partitions, ShardId(here), &reads, &writes);
        for (shard, part) in &parts {
            let (store, place) = (&shards[usize::from(shard.0)], (&partitions, *shard));
            prop_assert_eq!(is_stale(&part.reads, store, place), None);
        }
        // A row that was read changes, on its shard.
        for read in &reads.points {
            let shard = partitions.shard_of(read.table, &read.key).unwrap_or(ShardId(here));
            let header = RecordHeader::default();
            let changed = Version { version: SnapshotVersion(9), header, value: Some(
                crate::exec::testing::value(1)
            ) };
            let store = &shards[usize::from(shard.0)];
            store.apply(read.table, read.key.clone(), changed);
            let change = is_stale(&parts[&shard].reads, store, (&partitions, shard));
            prop_assert!(change.is_some(), "{:?}", read);
            let mut newest = SnapshotVersion::ZERO;
            let place = (&partitions, shard);
            touched(&parts[&shard].reads, store, place, &mut |version| {
                newest = newest.max(version);
            });
            prop_assert_eq!(newest, SnapshotVersion(9));
        }
    }
}
