//! Messages that decode and make no sense: they are rejected, and the replica continues.

use bytes::Bytes;
use pangea_core::codec::{Reader, Writer as _};
use pangea_core::ids::{NodeId, ProcedureId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::protocol::Input;
use pangea_core::txn::{Certified, PointRead, Program, ReadSet, ReadVersion, Write};
use pangea_core::value::Value;
use pangea_protocols::agreement::Term;
use pangea_protocols::minerva::batch::{Batch, Bid, ExecutionMode, TxnRecord};
use pangea_protocols::minerva::{Message, Options};
use pangea_protocols::transfer::ChunkNumber;
use proptest::prelude::*;

use super::support::{Cluster, ClusterOf, Fate, by_hand};

/// Above every valid number.
fn too_large() -> impl Strategy<Value = u64> {
    prop_oneof![Just(u64::MAX), Just(u64::MAX - 1), Just((1 << 48) + 1), (1u64 << 49)..]
}

/// A valid number, or one that is too large.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), too_large()]
}

fn heads() -> impl Strategy<Value = Vec<Bid>> {
    let any_count = prop::collection::vec(number().prop_map(Bid), 0..6);
    prop_oneof![any_count, prop::collection::vec(number().prop_map(Bid), 3)]
}

fn node() -> impl Strategy<Value = NodeId> {
    prop_oneof![0u16..4, Just(u16::MAX), Just(1 << 15)].prop_map(NodeId)
}

fn version() -> impl Strategy<Value = SnapshotVersion> {
    number().prop_map(SnapshotVersion)
}

fn payload() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..60).prop_map(Bytes::from)
}

/// No term, or one of a node that does not exist.
fn nonsense_term(pad: u32) -> Term {
    if pad == 0 {
        return Term::default();
    }
    let bytes = [&1u32.to_le_bytes()[..], &[0xff; 4], &[0; 4], &[0xff; 8]].concat();
    Term::decode(&mut Reader::new(&bytes)).expect("the batch is long enough")
}

/// A batch that can't be accepted: of a node that does not exist, of the receiver, or with a number
/// that is too large.
fn batch() -> impl Strategy<Value = Message> {
    let numbers = (node(), number(), number(), any::<u64>());
    numbers.prop_map(|(source, bid, base, first_sequence)| {
        let base = SnapshotVersion(base);
        let batch = Batch { source, bid: Bid(bid), base, first_sequence, records: Vec::new() };
        message!(Batch { bytes: batch.encode() })
    })
}

fn message() -> impl Strategy<Value = Message> {
    let bid = || number().prop_map(Bid);
    let fetch = (node(), bid(), bid())
        .prop_map(|(source, from, upto)| message!(Fetch { source, from, upto }));
    let progress = (version(), version(), heads())
        .prop_map(|(applied, durable, heads)| message!(Progress { applied, durable, heads }));
    let barrier =
        (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(token, incarnation, nonce)| {
            let term = Term::default();
            message!(Barrier { token, incarnation, nonce, term })
        });
    let chunk = (number(), number(), any::<bool>(), payload()).prop_map(
        |(transfer, index, is_last, payload)| {
            message!(CheckpointChunk {
                transfer,
                number: ChunkNumber { index: index.min(u64::MAX >> 1), is_last },
                payload,
            })
        },
    );
    prop_oneof![
        batch(),
        payload().prop_map(|bytes| message!(Batch { bytes })),
        heads().prop_map(|heads| message!(Ack { heads })),
        bid().prop_map(|head| message!(ProofOfAvailability { head })),
        fetch,
        (node(), bid()).prop_map(|(source, first)| message!(Gone { source, first })),
        payload().prop_map(|bytes| message!(Agreement { bytes })),
        progress,
        any::<u64>().prop_map(|token| message!(BarrierRequest { token })),
        barrier,
        (any::<u64>(), bid(), 0u32..3).prop_map(|(log_identity, batches, pad)| {
            let mut known = Vec::new();
            known.put_varint(batches.0);
            nonsense_term(pad).encode(&mut known);
            nonsense_term(pad).encode(&mut known);
            known.put_u64(log_identity);
            known.put_u8(pad as u8);
            message!(Greeting { log_identity, receiver_identity: 0, known: known.into() })
        }),
        (number(), number())
            .prop_map(|(transfer, index)| message!(CheckpointRequest { transfer, index })),
        chunk,
        (number(), number())
            .prop_map(|(transfer, index)| message!(CheckpointAck { transfer, index })),
        number().prop_map(|transfer| message!(CheckpointGone { transfer })),
        version().prop_map(|last| message!(MayStop { term: Term::default(), last })),
        (0u32..3).prop_map(|pad| message!(TransferLeadership { term: nonsense_term(pad) })),
    ]
}

/// One transaction of a batch whose parts are consistent only in the encoding.
fn record() -> impl Strategy<Value = (Program, ExecutionMode)> {
    let seen = prop_oneof![
        Just(ReadVersion::Absent),
        any::<u64>().prop_map(|version| ReadVersion::At(SnapshotVersion(version))),
        (0u16..4, 0u64..9).prop_map(|(node, n)| ReadVersion::Local(TxnId::new(NodeId(node), n))),
        (0u16..4, 0u64..9)
            .prop_map(|(node, n)| ReadVersion::LocalDeleted(TxnId::new(NodeId(node), n))),
    ];
    let key = || "[a-c]{0,2}".prop_map(|key| Key::from(key.as_bytes()));
    let table = || prop_oneof![Just(TableId(7)), any::<u32>().prop_map(TableId)];
    let point =
        (table(), key(), seen).prop_map(|(table, key, seen)| PointRead { table, key, seen });
    let value = prop::option::of("[a-z]{0,3}".prop_map(|v| Value::copy_from(v.as_bytes())));
    let write = (table(), key(), value).prop_map(|(table, key, value)| Write { table, key, value });
    let sets = (prop::collection::vec(point, 0..3), prop::collection::vec(write, 0..3));
    let args = prop_oneof![Just("put a 1"), Just("get b; add a 1"), Just("scan a c"), Just("")];
    let procedure = prop_oneof![
        1 => Just(ProcedureId::of("look")),
        2 => Just(ProcedureId::of("script")),
        1 => any::<u32>().prop_map(ProcedureId),
    ];
    (sets, args, procedure, 0u8..4).prop_map(|((points, writes), args, procedure, how)| {
        let reads = ReadSet { points, ranges: Vec::new() };
        let args = if args.is_empty() { "put a 1" } else { args };
        let args = Bytes::from_static(args.as_bytes());
        let call = Program::Call { procedure, args };
        match how {
            0 => (call, ExecutionMode::Executed { reads, writes }),
            1 => (call, ExecutionMode::Ordered { footprint: None }),
            2 => (
                Program::Certified(Certified { reads, writes, ..Certified::default() }),
                ExecutionMode::Certified,
            ),
            _ => (
                Program::Certified(Certified { reads, writes, ..Certified::default() }),
                ExecutionMode::CertifiedInOrder,
            ),
        }
    })
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new(3, Options { epoch_ms: 15, ..by_hand() });
    cluster.call(0, "put before 1");
    cluster.call(1, "put before 2");
    cluster.epoch();
    cluster
}

fn commits(cluster: &mut Cluster) {
    assert_eq!(cluster.nodes[0].stopped, None);
    let ticket = cluster.call(0, "put x 1");
    cluster.batch(0);
    cluster.run_for(2_000);
    assert_eq!(cluster.result(0, ticket), "");
    assert_eq!(cluster.everywhere("x"), "1");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_replica_refuses_what_can_not_be_and_goes_on(
        messages in prop::collection::vec(message(), 1..20),
        from in 1u16..3,
    ) {
        let mut cluster = cluster();
        for message in messages {
            cluster.step(0, Input::Message { from: NodeId(from), message });
            cluster.settle();
        }
        commits(&mut cluster);
    }

    /// An agreement message that was sent, with some bytes changed.
    #[test]
    fn a_replica_goes_on_after_a_garbled_message_of_agreement(
        picked in prop::collection::vec((any::<prop::sample::Index>(), 2usize..40, 1u8..), 1..6),
    ) {
        let mut cluster = cluster();
        cluster.sent.clear();
        cluster.call(0, "put y 1");
        cluster.call(2, "put z 1");
        cluster.epoch();
        cluster.run_for(300);
        let said = cluster.sent.iter().filter_map(|(from, to, message)| match message {
            message!(Agreement { bytes }) if to.index() == 0 => Some((*from, bytes.clone())),
            _ => None,
        });
        let said: Vec<(NodeId, Bytes)> = said.collect();
        for (which, at, flip) in picked {
            let (from, bytes) = which.get(&said);
            let mut bytes = bytes.to_vec();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            let message = message!(Agreement { bytes: bytes.into() });
            cluster.step(0, Input::Message { from: *from, message });
            cluster.settle();
        }
        cluster.run_for(5_000);
        let ticket = cluster.call(0, "put x 1");
        cluster.batch(0);
        cluster.run_for(3_000);
        prop_assert_eq!(cluster.result(0, ticket), "");
    }

    /// A batch in its place whose transactions are nonsense: every replica reaches the same
    /// decision.
    #[test]
    fn replicas_decide_alike_on_a_batch_of_nonsense(
        records in prop::collection::vec(record(), 1..8),
        base in prop_oneof![0u64..4, 0u64..1 << 48],
        paper: bool,
    ) {
        let mut options = if paper { Options::paper() } else { Options::default() };
        options.batch_ms = by_hand().batch_ms;
        let mut cluster = Cluster::new(3, options);
        cluster.rule = Box::new(|from, to, message| match message {
            message!(Agreement { .. }) => Fate::Deliver,
            _ if from.index() == 1 || to.index() == 1 => Fate::Lose,
            _ => Fate::Deliver,
        });
        let name = |(i, (program, how))| {
            let txn = TxnId::new(NodeId(1), 1 + i as u64);
            TxnRecord { txn, program, how }
        };
        let records = records.into_iter().enumerate().map(name).collect();
        let base = SnapshotVersion(base);
        let batch = Batch { source: NodeId(1), bid: Bid(1), base, first_sequence: 1, records };
        for id in [0, 2] {
            cluster.call(id, "put b 1");
            cluster.batch(id);
            let message = message!(Batch { bytes: batch.encode() });
            cluster.step(id, Input::Message { from: NodeId(1), message });
        }
        cluster.run_for(500);
        let state = |id: usize| {
            let node = &cluster.nodes[id];
            (node.applied(), node.store.digest(node.applied()))
        };
        prop_assert_eq!(state(0), state(2));
        let ticket = cluster.call(0, "put x 1");
        cluster.batch(0);
        cluster.run_for(500);
        prop_assert_eq!(cluster.result(0, ticket), "");
    }
}

/// Batches far ahead of the log's head would fill the memory before the first of them counts.
#[test]
fn a_batch_far_ahead_is_not_kept() {
    let mut cluster = cluster();
    let held = |cluster: &mut Cluster, bid| {
        let (source, base) = (NodeId(1), SnapshotVersion(0));
        let batch = Batch { source, bid: Bid(bid), base, first_sequence: 99, records: Vec::new() };
        let message = message!(Batch { bytes: batch.encode() });
        let before = cluster.nodes[0].log.len();
        cluster.step(0, Input::Message { from: NodeId(2), message });
        cluster.nodes[0].log.len() > before
    };
    assert!(held(&mut cluster, 1 + (1 << 16)));
    assert!(!held(&mut cluster, 2 + (1 << 16)));
    assert_eq!(cluster.mark(0, "streams.batch_far_ahead"), 1);
}

/// The others may have merged the epoch without it.
#[test]
fn a_batch_after_the_end_of_its_epoch_is_refused_by_every_replica() {
    use pangea_protocols::geogauss::batch::Batch;
    use pangea_protocols::geogauss::{GeoGauss, Message, Options};
    use pangea_protocols::streams;

    let mut cluster = ClusterOf::<GeoGauss>::new(3, Options::default());
    cluster.call(1, "add x 1");
    cluster.run_for(1_000);
    assert_eq!(cluster.everywhere("x"), "1");
    let of_node_1 = cluster.sent.iter().rev().find_map(|(from, _, message)| match message {
        Message::Streams(streams::Message::Batch { bytes }) if from.0 == 1 => Some(bytes.clone()),
        _ => None,
    });
    let last = Batch::decode(&of_node_1.expect("it has sent a batch")).unwrap();
    let epoch = SnapshotVersion(last.epoch.0 + 1);
    let late = Batch { bid: last.bid.next(), epoch, first_sequence: 9, ..last };
    let late = Message::Streams(streams::Message::Batch { bytes: late.encode() });
    for id in [0, 2] {
        let from = NodeId(1);
        cluster.step(id, Input::Message { from, message: late.clone() });
        assert_eq!(cluster.mark(id, "geogauss.batch_after_end"), 1);
    }
    cluster.call(1, "add x 1");
    cluster.run_for(1_000);
    assert_eq!(cluster.everywhere("x"), "2");
}
