//! Messages that no correct peer sends at that time, between the messages of the nodes. A node may
//! stop with a reason, and must not panic.

use std::collections::BTreeSet;

use bytes::Bytes;
use pangea_core::exec::ordered::{RemoteReads, ShardOutcome};
use pangea_core::exec::reconnaissance::{LookupKeys, LookupRows};
use pangea_core::ids::{NodeId, ProcedureId, ShardId, SnapshotVersion, TxnId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::partition::{Partitions, Rule, ShardSet};
use pangea_core::protocol::{Input, Message as _};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{Footprint, LockMode, Outcome, PointLock, Program, Scan, Write};
use pangea_core::value::Value;

use super::super::batch::{Batch, Request};
use super::super::messages::{Accepted, ColdWords};
use super::super::options::{Checkpoints, Replication};
use super::super::shards::remote_results::{RemoteResult, RemoteResults};
use super::super::shards::slice::{CutId, Lineage, Slice, SliceBatch as OfBatch};
use super::super::{Message, Options, Timer};
use super::{Did, Node, TABLE, submit};
use crate::agreement::Term;
use crate::inputs::{self, ProposalName};
use crate::streams::{self, Bid, Heads};
use crate::transfer::{self, ChunkNumber};

const REGIONS: [&str; 3] = ["a", "b", "c"];
const ROUNDS: usize = 120;
const SEEDS: u64 = 100;

struct Confusion {
    rng: fastrand::Rng,
    nodes: Vec<Node>,
    shards: u16,
    wire: Vec<(u16, u16, Message)>,
    /// The messages sent, to be repeated.
    said: Vec<(u16, u16, Message)>,
    marks: BTreeSet<&'static str>,
    committed: usize,
    is_over: bool,
}

impl Confusion {
    fn new(seed: u64, shards: u16) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let replication = match rng.bool() {
            true => Replication::Asynchronous,
            false => Replication::Synchronous,
        };
        let checkpoints = match (rng.u8(..3), replication) {
            (0, Replication::Synchronous) => Checkpoints::Frozen,
            (1, _) => Checkpoints::Zigzag,
            _ => Checkpoints::Versions,
        };
        let options =
            Options { replication, checkpoints, checkpoint_bytes: 4_096, ..Options::default() };
        let (nodes, wire, said, marks) = (Vec::new(), Vec::new(), Vec::new(), BTreeSet::new());
        let mut all = Self { rng, nodes, shards, wire, said, marks, committed: 0, is_over: false };
        for me in 0..3 * shards {
            let (node, did) = Node::start_as(me, topology(shards), Vec::new(), "append", &options);
            all.nodes.push(node);
            all.note(me, did);
        }
        for (a, b) in all.pairs() {
            all.step(a, Input::PeerUp(NodeId(b)));
        }
        all
    }

    fn pairs(&self) -> Vec<(u16, u16)> {
        let all = 0..3 * self.shards;
        all.clone().flat_map(|a| all.clone().map(move |b| (a, b))).filter(|(a, b)| a != b).collect()
    }

    fn note(&mut self, node: u16, did: Did) {
        self.is_over |= did.stopped.is_some();
        self.marks.extend(did.marks);
        let is_committed = |outcome: &&Outcome| matches!(outcome, Outcome::Committed { .. });
        self.committed += did.replies.iter().filter(is_committed).count();
        self.wire.extend(did.sent.into_iter().map(|(to, message)| (node, to.0, message)));
    }

    fn step(&mut self, node: u16, input: Input<super::Calvin>) {
        if self.is_over {
            return;
        }
        let did = self.nodes[usize::from(node)].step(input);
        self.note(node, did);
    }

    fn run(&mut self) {
        for round in 0..ROUNDS {
            for node in 0..3 * self.shards {
                self.nodes[usize::from(node)].now_us += 10_000;
                for timer in [
                    Timer::Inputs(inputs::Timer::Tick),
                    Timer::Inputs(inputs::Timer::Batch),
                    Timer::Inputs(inputs::Timer::Epoch),
                    Timer::Inputs(inputs::Timer::Fetch),
                ] {
                    self.step(node, Input::Timer(timer));
                }
                if round % 10 == 0 {
                    self.step(node, Input::Timer(Timer::Inputs(inputs::Timer::Progress)));
                }
                if self.rng.u8(..4) == 0 {
                    self.step(node, Input::Submit(submit(&[b"a", b"b"])));
                }
            }
            for (from, to, message) in std::mem::take(&mut self.wire) {
                self.said.push((from, to, message.clone()));
                self.step(to, Input::Message { from: NodeId(from), message });
            }
            if round > 60 {
                (0..6).for_each(|_| self.confuse());
            }
            if self.is_over {
                return;
            }
        }
    }

    fn confuse(&mut self) {
        let pairs = self.pairs();
        let (from, to) = pairs[self.rng.usize(..pairs.len())];
        if self.rng.u8(..30) == 0 {
            self.step(to, Input::PeerDown(NodeId(from)));
            return self.step(to, Input::PeerUp(NodeId(from)));
        }
        if self.rng.u8(..4) == 0 && !self.said.is_empty() {
            let at = self.rng.usize(..self.said.len());
            let (from, to, message) = self.said[at].clone();
            // A repeated vote is a vote that was cast.
            if !matches!(message, Message::Inputs(inputs::Message::Agreement { .. })) {
                self.step(to, Input::Message { from: NodeId(from), message });
            }
            return;
        }
        let message = self.nonsense(from, to);
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        if let Ok(message) = Message::decode(&bytes.into()) {
            self.step(to, Input::Message { from: NodeId(from), message });
        }
    }

    /// An epoch near that of a node.
    fn epoch(&mut self, node: u16) -> SnapshotVersion {
        let applied = self.nodes[usize::from(node)].calvin.state.inputs.cut.applied.0;
        SnapshotVersion((applied + self.rng.u64(..12)).saturating_sub(self.rng.u64(..8)))
    }

    fn txn(&mut self) -> TxnId {
        TxnId::new(NodeId(self.rng.u16(..3 * self.shards)), self.rng.u64(..20))
    }

    fn heads(&mut self) -> Heads {
        let len = if self.rng.u8(..10) == 0 { 2 } else { 3 };
        (0..len).map(|_| Bid(self.rng.u64(..6))).collect()
    }

    fn tokens(&mut self, node: u16) -> Vec<u64> {
        let sent = self.said.iter().filter(|(from, ..)| *from == node);
        let known = sent.filter_map(|(_, _, message)| match message {
            Message::Forward { requests } => requests.first().map(|(token, _)| *token),
            _ => None,
        });
        let mut known: Vec<u64> = known.collect();
        known.push(self.rng.u64(..9));
        self.rng.shuffle(&mut known);
        known.truncate(3);
        known
    }

    fn key(&mut self) -> Key {
        Key::from(&[b"row".to_vec(), vec![self.rng.u8(..3)]][self.rng.usize(..2)][..])
    }

    fn rows(&mut self) -> Vec<Write> {
        let row = |key| Write { table: TABLE, key, value: Some(Value::copy_from(b"v")) };
        (0..self.rng.usize(..3)).map(|_| row(self.key())).collect()
    }

    fn request(&mut self, txn: TxnId) -> Request {
        let procedure = [ProcedureId::of("append"), ProcedureId(1)][self.rng.usize(..2)];
        let program = Program::Call { procedure, args: Bytes::from_static(b"x") };
        let point = PointLock { table: TABLE, key: self.key(), mode: LockMode::Exclusive };
        let footprint = self.rng.bool().then(|| Footprint::new(vec![point], vec![]));
        let shards: ShardSet = (0..self.rng.u16(..3)).map(ShardId).collect();
        let origin = self.rng.bool().then(|| (NodeId(self.rng.u16(..4)), self.rng.u64(..9)));
        Request { txn, program, footprint, shards, origin }
    }

    fn results(&mut self, node: u16) -> RemoteResults {
        let rows = self.rows();
        let all = [
            RemoteResult::Reads(self.txn(), RemoteReads::Rows(rows)),
            RemoteResult::Reads(self.txn(), RemoteReads::Certified(None)),
            RemoteResult::Reads(self.txn(), RemoteReads::TooLarge(self.rng.u64(..9))),
            RemoteResult::Outcome(self.txn(), ShardOutcome::Ran(Ok(vec![1]))),
            RemoteResult::Outcome(self.txn(), ShardOutcome::FootprintViolated),
        ];
        let count = self.rng.usize(..6);
        let epoch = self.epoch(node);
        let shards = self.nodes[usize::from(node)].calvin.state.shards.as_ref();
        let received = shards.and_then(|it| it.received.values().next()?.keys().next().copied());
        let line = received.unwrap_or(Lineage(self.rng.u64(..3)));
        RemoteResults::new((epoch, line), &all[..count])
    }

    fn slice(&mut self, from: u16, to: u16) -> Slice {
        let (epoch, shard) = (self.epoch(to), ShardId(from % self.shards));
        let (proposer, nonce) = (NodeId(self.rng.u16(..4)), self.rng.u64(..4));
        let name = ProposalName { proposer, incarnation: 1, nonce };
        let of_to = self.nodes[usize::from(to)].cut_of_own_code();
        let code = if self.rng.u8(..8) > 0 { of_to.code } else { CutId::default().code };
        let cut = CutId { name, first: self.rng.bool().then_some(1), code };
        let batch = |all: &mut Self| {
            let sequencer = NodeId(shard.0 + all.shards * all.rng.u16(..3));
            let first = all.rng.u64(1..20);
            let count = all.rng.u64(..3);
            let txns = (first..first + count).map(|it| TxnId::new(sequencer, it));
            let requests = txns.map(|txn| all.request(txn)).collect();
            OfBatch { round: all.rng.u64(..2), sequencer, requests }
        };
        let batches = (0..self.rng.usize(..3)).map(|_| batch(&mut *self)).collect();
        Slice::new(epoch, shard, cut, batches).with_decided(self.rng.bool())
    }

    fn batch(&mut self, from: u16) -> Batch {
        let source = NodeId(from / self.shards);
        let (first_sequence, count) = (self.rng.u64(1..60), self.rng.u64(..3));
        let txns = (first_sequence..first_sequence + count).map(|it| TxnId::new(source, it));
        let requests = txns.map(|txn| self.request(txn)).collect();
        let (bid, is_of_master) = (Bid(self.rng.u64(1..8)), self.rng.bool());
        Batch { source, bid, first_sequence, is_of_master, requests }
    }

    fn nonsense(&mut self, from: u16, to: u16) -> Message {
        let (epoch, other) = (self.epoch(to), self.epoch(to));
        let (token, flag) = (self.rng.u64(..9), self.rng.bool());
        let node = self.rng.bool().then(|| NodeId(self.rng.u16(..9)));
        let scan = Scan { table: TABLE, range: KeyRange::all(), direction: Direction::Reverse };
        let name = ProposalName { proposer: NodeId(self.rng.u16(..4)), incarnation: 1, nonce: 2 };
        match self.rng.u8(..26) {
            0 => Message::Subscribe { slices: epoch, results: other, is_continued: flag },
            1 => Message::Unsubscribe {},
            2 | 3 => Message::Slice { slice: self.slice(from, to) },
            4 => self.slice(from, to).messages(9).swap_remove(0),
            5 => Message::SlicesDecided { upto: epoch, name },
            6 => Message::Resubscribe {},
            7 | 8 => Message::RemoteResults { results: self.results(to) },
            9 => Message::ShardProgress { upto: epoch, applied: other, waits_for: node },
            10 => Message::Truncated { upto: epoch },
            11 => Message::Frozen { at: epoch },
            12 => Message::OutcomesRequest { after: epoch, is_wanted: flag },
            13 => Message::Outcomes { outcomes: self.results(to) },
            14 => Message::GroupProgress { least: epoch, most: other },
            15 => Message::WarmRequest { token, keys: vec![(TABLE, self.key())] },
            16 => Message::WarmReply { token, took: Span::from_us(1_u64 << self.rng.u8(..48)) },
            17 => Message::ColdMapUpdate {
                map: ColdWords { words: 64, is_all: flag, changes: vec![(63, u64::MAX)] },
            },
            18 => Message::LookupRequest {
                token,
                keys: LookupKeys { points: [(TABLE, self.key())].into(), ranges: vec![scan] },
            },
            19 => Message::LookupReply {
                token: token % 4,
                rows: LookupRows {
                    rows: self.rows(),
                    points: self.rng.usize(..3),
                    covered: vec![(TABLE, KeyRange::all())],
                },
            },
            20 => {
                let count = self.rng.u64(..3);
                let request = |token| (token, self.request(TxnId::default()));
                Message::Forward { requests: (0..count).map(request).collect() }
            }
            21 => {
                let master_term =
                    self.nodes[usize::from(from)].calvin.state.inputs.extension.mastery.master_term;
                let term = master_term.map(|it| it.term).unwrap_or_default();
                Message::ForwardAccepted { accepted: Accepted { term, tokens: self.tokens(to) } }
            }
            22 => Message::ForwardRejected { tokens: self.tokens(to) },
            _ => self.of_inputs((from, to), (epoch, other)),
        }
    }

    fn of_inputs(
        &mut self,
        (from, to): (u16, u16),
        (epoch, other): (SnapshotVersion, SnapshotVersion),
    ) -> Message {
        use inputs::Message as Of;
        use {streams::Message as OfStreams, transfer::Message as OfTransfer};
        let (source, token) = (NodeId(self.rng.u16(..4)), self.rng.u64(..9));
        let (bid, index) = (Bid(self.rng.u64(..8)), self.rng.u64(..4));
        match self.rng.u8(..17) {
            0..=2 => OfStreams::Batch { bytes: self.batch(from).encode() }.into(),
            3 => {
                let mut heads = self.heads();
                // A node that learns that it has lost its own batches stops.
                if let Some(own) = heads.get_mut(usize::from(to / self.shards)) {
                    *own = Bid(0);
                }
                OfStreams::Ack { heads }.into()
            }
            4 => OfStreams::Fetch { source, from: Bid(bid.0 / 2), upto: bid }.into(),
            5 => OfStreams::Gone { source, first: bid }.into(),
            6 => Of::Agreement { bytes: (0..self.rng.usize(..40)).map(|it| it as u8).collect() }
                .into(),
            7 => Of::Progress { applied: epoch, durable: other, heads: self.heads() }.into(),
            8 => {
                Message::CheckpointTurn { wants: token > 4, is_frozen: token % 2 > 0, known: epoch }
            }
            9 => Of::BarrierRequest { token }.into(),
            10 => {
                let term = Term::default();
                Of::Barrier { token, incarnation: token, nonce: bid.0, term }.into()
            }
            11 => OfTransfer::CheckpointRequest { transfer: token, index }.into(),
            12 => OfTransfer::CheckpointChunk {
                transfer: token,
                number: ChunkNumber { index, is_last: token % 2 > 0 },
                payload: Bytes::from_static(&[1, 2, 3]),
            }
            .into(),
            13 => OfTransfer::CheckpointAck { transfer: token, index }.into(),
            14 => OfTransfer::CheckpointGone { transfer: token }.into(),
            15 => Message::RequestMastership {},
            _ => Of::TransferLeadership { term: Term::default() }.into(),
        }
    }
}

fn topology(shards: u16) -> Topology {
    let topology = Topology::one_node_per_region("t", &REGIONS, Span::from_ms(1));
    match shards {
        1 => topology,
        _ => topology.divided(Partitions::new(shards, Rule::Hash { prefix_bytes: 8 })),
    }
}

/// The messages are those of Calvin §3.1, §3.1.1, §3.2 and §5, at times that the paper does not
/// have.
#[test]
fn a_node_that_is_told_nonsense_does_not_panic() {
    let (mut finished, mut committed, mut marks) = (0, 0, BTreeSet::new());
    for seed in 0..SEEDS {
        let mut all = Confusion::new(seed, 1 + (seed % 2) as u16);
        all.run();
        finished += u64::from(!all.is_over);
        committed += all.committed;
        marks.append(&mut all.marks);
    }
    assert!(finished > SEEDS / 3 && committed > 1_000, "{finished} runs, {committed} committed");
    for mark in [
        "calvin.decided_again",
        "calvin.found_late",
        "calvin.malformed_forward",
        "calvin.missed",
        "calvin.not_to_its_own_shard",
        "calvin.slice_after_gap",
        "calvin.slice_of_another",
        "calvin.warm_too_late",
        "streams.batch_out_of_sequence",
        "streams.malformed_fetch",
    ] {
        assert!(marks.contains(mark), "{mark} of {marks:?}");
    }
}
