//! A reconnaissance over several shards finds the same footprint as one on a store with all rows.

use proptest::prelude::*;

use super::*;
use crate::exec::Overlay;
use crate::exec::optimistic::probe;
use crate::exec::testing::{ops, program, registry, rows, store};
use crate::partition::Rule;

const AT: SnapshotVersion = SnapshotVersion(5);

type Row = (u32, u8);

/// Partitionings by hash, by range, and with one table on all shards.
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

fn survives(wanted: &LookupKeys, found: &LookupRows) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    wanted.encode(&mut a);
    found.encode(&mut b);
    assert_eq!(LookupKeys::decode(&mut Reader::new(&a)).as_ref(), Ok(wanted));
    assert_eq!(LookupRows::decode(&mut Reader::new(&b)).as_ref(), Ok(found));
}

/// Creates a store for each shard.
fn divide(rows: &BTreeMap<Row, Option<u8>>, partitions: &Partitions) -> Vec<Store> {
    let of_shard = |shard: u16| {
        let holds = |(table, k): Row| partitions.holds(ShardId(shard), TableId(table), &[k]);
        store(&rows.iter().filter(|(row, _)| holds(**row)).map(|(r, v)| (*r, *v)).collect())
    };
    (0..3).map(of_shard).collect()
}

/// Queries the other shards, which answer with `most` bytes at a time, until no row is missing.
fn scout_all(
    registry: &Registry,
    program: &Program,
    partitions: &Partitions,
    (here, most): (ShardId, usize),
    shards: &[Store],
) -> Footprint {
    let mut known = KnownRows::default();
    for _ in 0..400 {
        let place = (partitions, here);
        let own = (&shards[usize::from(here.0)], AT);
        match reconnoiter(registry, program, own, place, &known) {
            Reconnaissance::Footprint(footprint) => return footprint,
            Reconnaissance::TooMuch(abort) => panic!("{abort:?}"),
            Reconnaissance::Wants(wants) => {
                assert!(!wants.contains_key(&here), "local rows are not requested");
                for (shard, wanted) in wants {
                    let found = wanted.look_up_to(most, (&shards[usize::from(shard.0)], AT), None);
                    survives(&wanted, &found);
                    known.learn(shard, &wanted, found);
                }
            }
        }
    }
    panic!("a reconnaissance does not end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn several_shards_show_what_one_store_shows(
        rows in rows(),
        ops in ops(),
        kind in 0u8..4,
        here in 0u16..3,
        most in prop_oneof![Just(BYTES_MAX), 1usize..40],
    ) {
        let partitions = partitions(kind);
        let shards = divide(&rows, &partitions);
        let asks = (ShardId(here), most);
        let found = scout_all(&registry(), &program(&ops), &partitions, asks, &shards);
        let whole = probe(&registry(), &program(&ops), &store(&rows), AT, &Overlay::new());
        prop_assert_eq!(found, whole);
    }
}

/// The known rows of the shards end at different keys.
#[test]
fn a_scan_backwards_without_an_end_sees_the_rows_of_all_shards() {
    use crate::txn::Procedure;
    struct Backwards;
    impl Procedure for Backwards {
        fn name(&self) -> &str {
            "backwards"
        }
        fn run(&self, _: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
            let range = KeyRange { start: Vec::new(), end: None };
            let scan = Scan { table: TableId(0), range, direction: Direction::Reverse };
            cx.scan(&scan, &mut |_, _| ControlFlow::Continue(()))?;
            Ok(Vec::new())
        }
    }
    let registry = Registry::new([std::sync::Arc::new(Backwards) as _]);
    let procedure = registry.id("backwards").unwrap();
    let program = Program::Call { procedure, args: bytes::Bytes::new() };
    let rows: BTreeMap<Row, Option<u8>> = (0..10).map(|k| ((0, k), Some(1))).collect();
    for kind in 0..2 {
        let partitions = partitions(kind);
        let shards = divide(&rows, &partitions);
        let found = scout_all(&registry, &program, &partitions, (ShardId(1), BYTES_MAX), &shards);
        let whole = probe(&registry, &program, &store(&rows), AT, &Overlay::new());
        assert_eq!(found, whole);
    }
}

/// Single rows once had no size limit: an answer exceeded the frame size and was requested again
/// forever.
#[test]
fn an_answer_has_as_much_as_fits_and_says_how_much_that_is() {
    let rows: BTreeMap<Row, Option<u8>> = (0..10).map(|k| ((0, k), Some(1))).collect();
    let store = store(&rows);
    let range = KeyRange { start: vec![6], end: Some(vec![9]) };
    let scan = Scan { table: TableId(0), range, direction: Direction::Forward };
    let points = [1, 2, 3, 200].map(|k| (TableId(0), Key::from(&[k][..]))).into();
    let wanted = LookupKeys { points, ranges: vec![scan.clone(), scan] };
    // A row has ten bytes.
    let look = |most| {
        let found = wanted.look_up_to(most, (&store, AT), None);
        survives(&wanted, &found);
        (found.rows.len(), found.points, found.covered.len())
    };
    assert_eq!(look(1), (1, 1, 0), "at least one row");
    assert_eq!(look(20), (2, 2, 0));
    assert_eq!(look(21), (3, 3, 0));
    assert_eq!(look(31), (4, 4, 1), "only the first row of the first range");
    assert_eq!(look(1_000), (7, 4, 2), "two rows of each range");

    let mut known = KnownRows::default();
    known.learn(ShardId(0), &wanted, wanted.look_up_to(20, (&store, AT), None));
    assert_eq!((known.points.len(), known.rows.len(), known.bytes), (2, 2, 2 * (9 + 10)));
    // A malformed answer claims to cover more rows than were requested.
    let found = LookupRows { points: usize::MAX, ..LookupRows::default() };
    known.learn(ShardId(0), &wanted, found);
    assert_eq!(known.points.len(), 4);
}

/// Writes as many values of one megabyte as its argument says.
struct Megabytes;

impl crate::txn::Procedure for Megabytes {
    fn name(&self) -> &str {
        "megabytes"
    }
    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let value = Value::copy_from(&vec![0; 1 << 20]);
        for k in 0..args[0] {
            cx.put(TableId(1), Key::from(&[k][..]), value.clone())?;
        }
        Ok(Vec::new())
    }
}

#[test]
fn a_program_that_writes_too_much_is_told_so() {
    let registry = Registry::new([std::sync::Arc::new(Megabytes) as _]);
    let procedure = registry.id("megabytes").unwrap();
    let (store, partitions) = (Store::new(), Partitions::default());
    let found = |megabytes| {
        let program = Program::Call { procedure, args: vec![megabytes].into() };
        let place = (&partitions, ShardId(0));
        reconnoiter(&registry, &program, (&store, AT), place, &KnownRows::default())
    };
    assert!(matches!(found(31), Reconnaissance::Footprint(found) if found.points.len() == 31));
    let found = found(33);
    let Reconnaissance::TooMuch(abort) = found else { panic!("{found:?}") };
    assert_eq!(abort.code.as_str(), "54000");
}

/// Hinted rows are requested in batches that fit into a message.
#[test]
fn hints_are_asked_for_some_at_a_time() {
    struct Hints;
    impl crate::txn::Procedure for Hints {
        fn name(&self) -> &str {
            "hints"
        }
        fn hint(&self, _: &[u8], name: &mut dyn FnMut(TableId, &[u8])) {
            (0..20u8).for_each(|k| name(TableId(0), &vec![k; 1 << 20]));
        }
        fn run(&self, _: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
            (0..20u8).try_for_each(|k| cx.get(TableId(0), &vec![k; 1 << 20]).map(drop))?;
            Ok(Vec::new())
        }
    }
    let registry = Registry::new([std::sync::Arc::new(Hints) as _]);
    let procedure = registry.id("hints").unwrap();
    let program = Program::Call { procedure, args: bytes::Bytes::new() };
    let partitions = partitions(1);
    let (store, here) = (Store::new(), ShardId(0));
    let (mut known, mut asked) = (KnownRows::default(), Vec::new());
    let found = loop {
        match reconnoiter(&registry, &program, (&store, AT), (&partitions, here), &known) {
            Reconnaissance::Footprint(found) => break found,
            Reconnaissance::TooMuch(abort) => panic!("{abort:?}"),
            Reconnaissance::Wants(wants) => {
                asked.push(wants.values().map(|wanted| wanted.points.len()).sum::<usize>());
                for (shard, wanted) in wants {
                    known.learn(shard, &wanted, wanted.look(&store, AT));
                }
            }
        }
    };
    assert_eq!(found.points.len(), 20);
    assert!(asked.len() > 3 && asked.iter().all(|points| *points <= 5), "{asked:?}");
}

#[test]
fn a_program_that_reads_too_much_is_told_so() {
    use crate::txn::Procedure;
    use crate::value::Value;
    struct Twice;
    impl Procedure for Twice {
        fn name(&self) -> &str {
            "twice"
        }
        fn run(&self, _: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
            let size = |value: Option<Value>| value.map_or(0, |value| value.len());
            let first = size(cx.get(TableId(1), b"k")?);
            let again = size(cx.get(TableId(1), b"k")?);
            assert_eq!(first + again, 0, "the run is stopped before");
            Ok(Vec::new())
        }
    }
    let store = Store::new();
    let writer = crate::ids::TxnId::new(crate::ids::NodeId(1), 1);
    let value = Some(Value::copy_from(&vec![0; TXN_BYTES_MAX]));
    let version = crate::store::Version {
        version: AT,
        header: crate::store::RecordHeader::new(writer),
        value,
    };
    store.apply(TableId(1), Key::from(&b"k"[..]), version);
    let registry = Registry::new([std::sync::Arc::new(Twice) as _]);
    let procedure = registry.id("twice").unwrap();
    let program = Program::Call { procedure, args: bytes::Bytes::new() };
    let partitions = Partitions::default();
    let place = (&partitions, ShardId(0));
    let found = reconnoiter(&registry, &program, (&store, AT), place, &KnownRows::default());
    let Reconnaissance::TooMuch(abort) = found else { panic!("{found:?}") };
    assert_eq!(abort.code.as_str(), "54000");
}
