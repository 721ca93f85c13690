//! A toy protocol that uses all features of a driver: each node owns a counter, adds to it, and
//! answers an addition's client once a majority has persisted it.
//!
//! A node's additions are numbered. A peer accepts them only in order. At every heartbeat, and
//! whenever a peer connects, a node resends from the position that the peer reports
//! ([`Said::Have`]). The value of a counter is in the store, with one version for each addition, in
//! the order in which this node learned of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::guarantee::Guarantee;
use pangea_core::ids::{LogPosition, NodeId, ProcedureId, SnapshotVersion, TableId, Ticket, TxnId};
use pangea_core::key::Key;
use pangea_core::protocol::*;
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program};
use pangea_core::value::Value;
use serde::{Deserialize, Serialize};

pub const COUNTERS: TableId = TableId(1);

/// Adding this much makes the protocol panic.
pub const POISON: u64 = 666;

/// One addition, on the wire and in the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addition {
    origin: NodeId,
    sequence: u64,
    amount: u64,
}

#[derive(Clone, Debug)]
pub enum Said {
    Add(Addition),
    /// The number of the receiver's additions that the sender has persisted.
    Have(u64),
}

impl Addition {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.origin.0);
        out.put_u64(self.sequence);
        out.put_u64(self.amount);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let origin = NodeId(from.u16("addition")?);
        Ok(Self { origin, sequence: from.u64("addition")?, amount: from.u64("addition")? })
    }
}

impl Message for Said {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Add(addition) => {
                out.put_u8(0);
                addition.encode(out);
            }
            Self::Have(count) => {
                out.put_u8(1);
                out.put_u64(*count);
            }
        }
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        match from.u8("message")? {
            0 => Addition::decode(&mut from).map(Self::Add),
            1 => from.u64("message").map(Self::Have),
            _ => Err(DecodeError::new("message")),
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Add(_) => Lane::Bulk,
            Self::Have(_) => Lane::Control,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    Heartbeat,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToyOptions {
    /// The number of additions between checkpoints.
    pub checkpoint_additions: u64,
    /// Whether it never finishes a stop in order.
    pub never_stops: bool,
}

impl Default for ToyOptions {
    fn default() -> Self {
        Self { checkpoint_additions: u64::MAX, never_stops: false }
    }
}

pub struct ToyProtocol {
    me: NodeId,
    topology: Arc<Topology>,
    options: ToyOptions,
    /// The amounts of each node's additions, in order.
    logs: BTreeMap<NodeId, Vec<u64>>,
    version: SnapshotVersion,
    /// The number of local additions that each peer has persisted.
    acknowledged: BTreeMap<NodeId, u64>,
    /// Local additions with waiting clients: by number, with their log positions.
    waiting: BTreeMap<u64, (Ticket, LogPosition)>,
    /// The last requested checkpoint, and the position from which the log continues it.
    checkpoint: (SnapshotVersion, LogPosition),
    checkpoints_failed: u64,
    heartbeats: u64,
    restored: u64,
}

impl ToyProtocol {
    fn decode_state(&mut self, checkpoint: &Checkpoint) {
        let mut from = Reader::new(&checkpoint.meta);
        while !from.is_empty() {
            let addition = Addition::decode(&mut from).expect("the checkpoint can be decoded");
            self.logs.entry(addition.origin).or_default().push(addition.amount);
        }
        self.version = checkpoint.version;
    }

    fn encode_state(&self) -> Bytes {
        let mut out = Vec::new();
        for (&origin, amounts) in &self.logs {
            for (sequence, &amount) in amounts.iter().enumerate() {
                Addition { origin, sequence: sequence as u64, amount }.encode(&mut out);
            }
        }
        out.into()
    }

    fn has(&self, origin: NodeId) -> u64 {
        self.logs.get(&origin).map_or(0, |amounts| amounts.len() as u64)
    }

    /// Applies the next addition to a node's counter. Returns false if it is not the next one.
    fn apply(&mut self, cx: &Cx<'_, Self>, addition: Addition) -> bool {
        if addition.sequence != self.has(addition.origin) {
            return false;
        }
        let amounts = self.logs.entry(addition.origin).or_default();
        amounts.push(addition.amount);
        let total: u64 = amounts.iter().sum();
        self.version = self.version.next();
        let header = RecordHeader::new(TxnId::new(addition.origin, addition.sequence));
        let value = Some(Value::from(&total.to_be_bytes()[..]));
        let key = Key::from(&addition.origin.0.to_be_bytes()[..]);
        cx.store.apply(COUNTERS, key, Version { version: self.version, header, value });
        cx.store.publish(self.version);
        true
    }

    fn persist(&mut self, cx: &mut Cx<'_, Self>, addition: Addition) -> LogPosition {
        let mut record = Vec::new();
        addition.encode(&mut record);
        let record = Bytes::from(record);
        let position = cx.persist(vec![record.slice(..1), record.slice(1..)]);
        if self.version.0 >= self.checkpoint.0.0.saturating_add(self.options.checkpoint_additions) {
            self.checkpoint = (self.version, LogPosition(position.0 + 1));
            cx.mark("checkpoint");
            cx.checkpoint(self.version, self.encode_state());
        }
        position
    }

    fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submissions: Vec<Submission>) {
        for Submission { ticket, request } in submissions {
            let Request::Commit(program, _) = request else {
                cx.fresh(ticket, self.version);
                continue;
            };
            let Program::Call { args, .. } = program else { panic!("the toy only adds") };
            let amount = Reader::new(&args).u64("amount").expect("an amount");
            assert_ne!(amount, POISON, "poisoned");
            let (origin, sequence) = (self.me, self.has(self.me));
            let addition = Addition { origin, sequence, amount };
            assert!(self.apply(cx, addition));
            let position = self.persist(cx, addition);
            self.waiting.insert(sequence, (ticket, position));
            for peer in self.topology.peers_of(self.me) {
                cx.send_after(position, peer, Said::Add(addition));
            }
        }
        self.answer(cx);
    }

    fn on_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Said) {
        match message {
            Said::Add(addition) => {
                if self.apply(cx, addition) {
                    let position = self.persist(cx, addition);
                    cx.send_after(position, from, Said::Have(self.has(from)));
                } else {
                    cx.mark("addition_out_of_order");
                }
            }
            Said::Have(count) => {
                let before = self.acknowledged.insert(from, count);
                if before.is_none_or(|before| before == count) {
                    self.send_again(cx, from, count);
                }
                self.answer(cx);
            }
        }
    }

    fn send_again(&self, cx: &mut Cx<'_, Self>, to: NodeId, count: u64) {
        let mine = self.logs.get(&self.me).map_or(&[][..], Vec::as_slice);
        for (sequence, &amount) in mine.iter().enumerate().skip(count as usize) {
            let addition = Addition { origin: self.me, sequence: sequence as u64, amount };
            cx.send_after(cx.log_head(), to, Said::Add(addition));
        }
    }

    /// Answers the additions that a majority has persisted. This node counts itself too, because
    /// the replies wait for the log position.
    fn answer(&mut self, cx: &mut Cx<'_, Self>) {
        let mut counts: Vec<u64> = self
            .topology
            .peers_of(self.me)
            .map(|peer| self.acknowledged.get(&peer).copied().unwrap_or(0))
            .collect();
        counts.push(self.has(self.me));
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let safe = counts[self.topology.majority() - 1];
        let later = self.waiting.split_off(&safe);
        for (sequence, (ticket, position)) in std::mem::replace(&mut self.waiting, later) {
            let (txn, version) = (TxnId::new(self.me, sequence), self.version);
            let outcome = Outcome::Committed { txn, version, result: Vec::new() };
            cx.reply_after(position, ticket, outcome);
        }
    }

    fn say_what_i_have(&self, cx: &mut Cx<'_, Self>) {
        for peer in self.topology.peers_of(self.me) {
            cx.send_after(cx.log_head(), peer, Said::Have(self.has(peer)));
        }
    }
}

impl Protocol for ToyProtocol {
    const NAME: &'static str = "toy";
    type Message = Said;
    type Timer = Wait;
    type Options = ToyOptions;

    fn guarantee(_: &Self::Options) -> Guarantee {
        Guarantee::StrictSerializable
    }

    fn new(setup: Setup<Self>) -> Self {
        Self {
            me: setup.me,
            topology: setup.topology,
            options: setup.options,
            logs: BTreeMap::new(),
            version: SnapshotVersion::ZERO,
            acknowledged: BTreeMap::new(),
            waiting: BTreeMap::new(),
            checkpoint: (SnapshotVersion::ZERO, LogPosition(0)),
            checkpoints_failed: 0,
            heartbeats: 0,
            restored: 0,
        }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        match input {
            Input::Restart(durable) => {
                if let Some(checkpoint) = &durable.checkpoint {
                    self.decode_state(checkpoint);
                    self.checkpoint.0 = checkpoint.version;
                }
                for (_, record) in durable.records {
                    let mut from = Reader::new(&record);
                    let addition = Addition::decode(&mut from).expect("the record can be decoded");
                    self.restored += u64::from(self.apply(cx, addition));
                }
                cx.set_timer(Wait::Heartbeat, Span::from_ms(5));
            }
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Wait::Heartbeat) => {
                self.heartbeats += 1;
                self.say_what_i_have(cx);
                cx.set_timer(Wait::Heartbeat, Span::from_ms(5));
            }
            Input::Durable(_) | Input::Stop | Input::Resume | Input::Prefetched { .. } => {}
            Input::PeerUp(_) => self.say_what_i_have(cx),
            Input::PeerDown(peer) => {
                self.acknowledged.remove(&peer);
            }
            Input::Checkpointed(version) => {
                if version == self.checkpoint.0 {
                    cx.truncate(self.checkpoint.1);
                }
            }
            Input::CheckpointFailed(_) => self.checkpoints_failed += 1,
        }
    }

    fn status(&self) -> Status {
        let mut status = Status { version: self.version, ..Status::default() };
        status.counters.insert("checkpoints_failed".to_owned(), self.checkpoints_failed);
        status.counters.insert("heartbeats".to_owned(), self.heartbeats);
        status.counters.insert("restored".to_owned(), self.restored);
        status.counters.insert("checkpointed".to_owned(), self.checkpoint.0.0);
        status
    }

    fn may_stop(&self) -> bool {
        !self.options.never_stops
    }

    fn invariants(&self) {
        let additions: usize = self.logs.values().map(Vec::len).sum();
        assert_eq!(additions as u64, self.version.0);
    }
}

/// A program that adds to the counter of the node that it is submitted to.
pub fn add(amount: u64) -> Program {
    Program::Call { procedure: ProcedureId(0), args: Bytes::copy_from_slice(&amount.to_le_bytes()) }
}

/// The value of a node's counter in a store.
pub fn counter(store: &Store, node: u16) -> u64 {
    let version = store.read(COUNTERS, &node.to_be_bytes(), store.published());
    let value = version.and_then(|version| version.value);
    value.map_or(0, |value| u64::from_be_bytes((*value).try_into().expect("8 bytes")))
}
