//! A replica that is alone, step by step: epochs that fail, and programs with other code.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::guarantee::Isolation;
use pangea_core::ids::{LogPosition, NodeId, ProcedureId, SnapshotVersion, TableId, Ticket};
use pangea_core::key::Key;
use pangea_core::pool::Sequential;
use pangea_core::protocol::{
    Cx, Durable, Effect, Input, ListedFate, Protocol, Request, Setup, Submission,
};
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::time::{ClockReading, Span, Timestamp};
use pangea_core::topology::Topology;
use pangea_core::txn::{
    Abort, Adder, Context, Footprint, Outcome, Procedure, Program, Registry, Stop,
};
use pangea_core::value::Value;

use super::{GeoGauss, Options};
use crate::inputs::SkippedEpochs;

const TABLE: TableId = TableId(7);

/// A load that puts a row with the key of its argument. It is never run before its place in the
/// order.
struct Put {
    version: u32,
}

impl Procedure for Put {
    fn name(&self) -> &str {
        "put"
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn footprint(&self, _: &[u8]) -> Option<Footprint> {
        Some(Footprint::default())
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        cx.put(TABLE, Key::from(args), Value::copy_from(args))?;
        Ok(Vec::new())
    }
}

/// Changes the row with the key of its argument if it exists.
struct Change;

impl Procedure for Change {
    fn name(&self) -> &str {
        "change"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let key = Key::from(args);
        if cx.get(TABLE, &key)?.is_some() {
            cx.put(TABLE, key, Value::copy_from(b"changed"))?;
        }
        Ok(Vec::new())
    }
}

/// Appends to the row with the key of its argument, or inserts it: a row with a long value if its
/// name begins with an `l`.
struct Bump {
    version: u32,
}

impl Procedure for Bump {
    fn name(&self) -> &str {
        "bump"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        if !cx.add(TABLE, Key::from(args), &Append(self.version), b"+")? {
            let len = if args.starts_with(b"l") { 2_000 } else { 10 };
            cx.put(TABLE, Key::from(args), Value::from(vec![b'.'; len]))?;
        }
        Ok(Vec::new())
    }

    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        vec![Arc::new(Append(self.version))]
    }
}

/// Appends the amount to a row.
struct Append(u32);

impl Adder for Append {
    fn name(&self) -> &str {
        "append"
    }

    fn version(&self) -> u32 {
        self.0
    }

    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort> {
        Ok(Value::from([row, amount].concat()))
    }
}

/// The effects of a start or of a submission.
#[derive(Default)]
struct Did {
    replies: Vec<Outcome>,
    stopped: Option<String>,
}

struct Node {
    geogauss: GeoGauss,
    store: Arc<Store>,
    log: Vec<(LogPosition, Bytes)>,
    rng: fastrand::Rng,
}

impl Node {
    fn start(log: Vec<(LogPosition, Bytes)>, version: u32, skipped: &[u64]) -> (Self, Did) {
        let skip_epochs = SkippedEpochs::new(skipped).expect("a list of epochs");
        let put: Arc<dyn Procedure> = Arc::new(Put { version });
        let geogauss = GeoGauss::new(Setup {
            me: NodeId(0),
            topology: Arc::new(Topology::one_node_per_region("t", &["a"], Span::ZERO)),
            registry: Arc::new(Registry::new(vec![
                put,
                Arc::new(Change),
                Arc::new(Bump { version }),
            ])),
            options: Options { skip_epochs, ..Options::default() },
        });
        let (store, rng) = (Arc::new(Store::new()), fastrand::Rng::with_seed(1));
        // No epoch can write this row, which stands for a bug of the engine.
        let version = SnapshotVersion(1 << 40);
        let later = Version { version, header: RecordHeader::default(), value: None };
        store.apply(TABLE, Key::from(&b"poison"[..]), later);
        let mut node = Self { geogauss, store, log: log.clone(), rng };
        let did = node.step(Input::Restart(Durable { records: log, ..Durable::default() }));
        (node, did)
    }

    /// Takes a step, and those that follow from it on a disk that syncs at once.
    fn step(&mut self, input: Input<GeoGauss>) -> Did {
        let (mut did, mut inputs) = (Did::default(), vec![input]);
        while let Some(input) = inputs.pop() {
            let now = ClockReading { at: Timestamp::from_us(1_000), uncertainty: Span::ZERO };
            let mut effects = Vec::new();
            let head = self.log.last().map_or(LogPosition(0), |(position, _)| *position);
            let (rng, store) = (&mut self.rng, &self.store);
            let mut cx = Cx::new(now, rng, store, &Sequential, head, &mut effects);
            self.geogauss.step(&mut cx, input);
            let mut persisted = None;
            for effect in effects {
                match effect {
                    Effect::Persist { position, record } => {
                        self.log.push((position, record.concat().into()));
                        persisted = Some(position);
                    }
                    Effect::Reply { outcome, .. } => did.replies.push(outcome),
                    Effect::Resume => inputs.push(Input::Resume),
                    Effect::Stop { reason } => {
                        did.stopped = Some(reason);
                        return did;
                    }
                    _ => {}
                }
            }
            inputs.extend(persisted.map(Input::Durable));
        }
        did
    }

    fn put(&mut self, row: &'static [u8]) -> Did {
        self.call("put", row, Isolation::Serializable)
    }

    fn call(&mut self, name: &str, row: &'static [u8], level: Isolation) -> Did {
        let (procedure, args) = (ProcedureId::of(name), Bytes::from_static(row));
        let request = Request::Commit(Program::Call { procedure, args }, level);
        self.step(Input::Submit(vec![Submission { ticket: Ticket(1), request }]))
    }

    fn bump(&mut self, row: &'static [u8]) -> Did {
        self.call("bump", row, Isolation::ReadCommitted)
    }

    /// The length of the value of a row.
    fn len(&self, row: &[u8]) -> usize {
        self.store.latest(TABLE, row).and_then(|it| it.value).map_or(0, |value| value.len())
    }

    fn has(&self, row: &[u8]) -> bool {
        self.store.latest(TABLE, row).is_some_and(|it| it.value.is_some())
    }
}

fn is_committed(did: &Did) -> bool {
    did.stopped.is_none() && matches!(did.replies[..], [Outcome::Committed { .. }])
}

/// A torture found an UPDATE that missed an acknowledged row, on a replica that had just started.
#[test]
fn a_program_that_finds_nothing_to_write_is_checked_at_the_serializable_level() {
    let (mut node, _) = Node::start(Vec::new(), 0, &[]);
    let before = node.log.len();
    let weak = node.call("change", b"one", Isolation::Snapshot);
    assert!(is_committed(&weak) && node.log.len() == before, "it counts as a read");
    let serializable = node.call("change", b"one", Isolation::Serializable);
    assert!(is_committed(&serializable) && node.log.len() > before, "it is part of an epoch");
}

/// B5 of an audit: the same failure at each start was a crash loop without a way out.
#[test]
fn an_epoch_that_fails_stops_the_replica_until_it_is_skipped() {
    let (mut node, _) = Node::start(Vec::new(), 0, &[]);
    assert!(is_committed(&node.put(b"one")));
    let before = node.geogauss.status().version;
    let failed = node.put(b"poison");
    let why = failed.stopped.expect("the epoch fails");
    assert!(failed.replies.is_empty() && why.contains("can't apply epoch"), "{why}");
    assert!(why.contains("skip_epochs in the table [geogauss]"), "{why}");
    let epoch = (before.0 + 1..before.0 + 10_000)
        .find(|epoch| why.contains(&format!("add {epoch} to the list")))
        .expect("the epoch is named");
    let (_, again) = Node::start(node.log.clone(), 0, &[]);
    assert_eq!(again.stopped, Some(why));

    let (mut node, did) = Node::start(node.log, 0, &[epoch]);
    assert_eq!(did.stopped, None);
    let fates: Vec<_> = node.geogauss.listed_epochs().iter().map(|it| it.fate).collect();
    assert_eq!(fates, [ListedFate::Skipped { txns: 1 }]);
    assert!(is_committed(&node.put(b"two")));
    assert!(node.has(b"one") && node.has(b"two") && !node.has(b"poison"));
    // Without the list it is skipped, too.
    let (node, did) = Node::start(node.log, 0, &[]);
    assert!(did.stopped.is_none() && node.has(b"two") && !node.has(b"poison"));
}

#[test]
fn a_program_with_other_code_merges_no_epoch_in_which_programs_run() {
    let (mut node, _) = Node::start(Vec::new(), 0, &[]);
    assert!(is_committed(&node.put(b"one")));
    // The batch is durable, and its epoch was not merged: the record of that is lost.
    let batches = node.log.len() - 1;
    let log = node.log[..batches].to_vec();
    let (_, did) = Node::start(log.clone(), 1, &[]);
    let why = did.stopped.expect("the code differs");
    assert!(why.contains("Nothing is lost: start the earlier program"), "{why}");
    let (node, did) = Node::start(log, 0, &[]);
    assert!(did.stopped.is_none() && node.has(b"one"));
}

/// Upgrades in the simulator found nodes that could not apply the additions of their log.
#[test]
fn the_results_of_additions_are_logged_unless_they_are_too_large() {
    for (row, len) in [(&b"short"[..], 12), (b"long", 2_002)] {
        let (mut node, _) = Node::start(Vec::new(), 0, &[]);
        (0..3).for_each(|_| assert!(is_committed(&node.bump(row))));
        assert_eq!(node.len(row), len);
        let (again, did) = Node::start(node.log.clone(), 0, &[]);
        assert!(did.stopped.is_none() && again.len(row) == len, "the same program");
        let (other, did) = Node::start(node.log, 1, &[]);
        match did.stopped {
            None => assert!(len < 1_000 && other.len(row) == len, "a later program"),
            Some(why) => assert!(len > 1_000 && why.contains("start the earlier program"), "{why}"),
        }
    }
}
