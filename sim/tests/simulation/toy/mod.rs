//! A small protocol to test the simulator: one node orders all programs.
//!
//! Node 0 is always the leader. It appends each program to its log, sends durable entries to the
//! others, and decides an entry when it is durable on a majority. Every replica executes decided
//! entries in order, entry i as version i. The node that accepted a program answers its client.
//! Messages lost with a connection are sent again after it is restored: followers report their
//! progress, and origins submit again under the same id, which the leader orders once.
//!
//! [`Bug`] breaks it in ways that the checkers must find.

mod messages;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pangea_core::codec::{Reader, Writer};
use pangea_core::exec::{Overlay, optimistic};
use pangea_core::guarantee::Guarantee;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, Ticket, TxnId};
use pangea_core::protocol::{
    Cx, Durable, Input, Mark, Protocol, Request, Setup, Status, Submission,
};
use pangea_core::store::{RecordHeader, Version};
use pangea_core::time::Span;
use pangea_core::txn::{Certified, Outcome, Program, ReadSet, Write};

pub use messages::ToyMessage;
use messages::{decode_program, encode_program};
use serde::{Deserialize, Serialize};

const LEADER: NodeId = NodeId(0);
const CHECKPOINT_EVERY: u64 = 100;
const ENTRIES_PER_MESSAGE: usize = 64;
const RETRY: Span = Span::from_ms(300);

/// A planted bug, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bug {
    #[default]
    None,
    /// Followers acknowledge entries, and the leader counts itself, before they are durable.
    AckBeforeDurable,
    /// Every 40th entry is acknowledged but not executed.
    LoseWrites,
    /// Reads in certified transactions are not validated.
    SkipCertify,
    /// Certified transactions are only validated where they write: snapshot isolation.
    CertifyWritesAlone,
    /// The writes of certified transactions that abort are applied.
    KeepAborted,
    /// A strict read is answered from the node's current state.
    StaleFresh,
    /// Followers execute pairs of entries in the wrong order, each within one version.
    Reorder,
    /// A restarted leader does not remember the programs that it has ordered.
    ForgetOrdered,
    /// Followers do not report their progress after a reconnection.
    NoCatchUp,
    /// The origin answers as soon as it has sent the program.
    AnswerEarly,
    /// A node that starts counts a mark of invalid messages.
    Nonsense,
    /// Nodes disagree on who is a member.
    OtherMembers,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToyOptions {
    pub bug: Bug,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToyTimer {
    Retry,
}

#[derive(Clone, Debug)]
struct Entry {
    txn: TxnId,
    program: Program,
}

pub struct ToyProtocol {
    setup: Setup<Self>,
    /// Entries that a follower may still request, by index. Log positions and indices are the same.
    log: BTreeMap<u64, Entry>,
    ordered: BTreeSet<TxnId>,
    head: u64,
    durable: u64,
    decided: u64,
    executed: u64,
    /// At the leader: the position through which the log is durable on each node.
    acked: BTreeMap<NodeId, u64>,
    pending: BTreeMap<TxnId, (Ticket, Program)>,
    fresh_asked: BTreeMap<u64, Ticket>,
    fresh_known: BTreeMap<u64, Ticket>,
    names: u64,
    /// Versions of checkpoints that are being written.
    writing: BTreeSet<u64>,
}

impl Protocol for ToyProtocol {
    const NAME: &'static str = "toy";
    /// Its order does not depend on clocks, but it is there to test the simulator.
    const NEEDS_CLOCKS: bool = true;
    const MARKS: &'static [Mark] = &[
        Mark::new("restart", "a node starts"),
        Mark::new("ordered before", "a client retries a request that is ordered"),
        Mark::new("catch up", "a follower requests entries that it lacks"),
        Mark::new("checkpoint", "a checkpoint is durable"),
        Mark::new("malformed", "a message is malformed"),
    ];
    type Message = ToyMessage;
    type Timer = ToyTimer;
    type Options = ToyOptions;

    fn guarantee(_: &Self::Options) -> Guarantee {
        Guarantee::StrictSerializable
    }

    fn new(setup: Setup<Self>) -> Self {
        Self {
            setup,
            log: BTreeMap::new(),
            ordered: BTreeSet::new(),
            head: 0,
            durable: 0,
            decided: 0,
            executed: 0,
            acked: BTreeMap::new(),
            pending: BTreeMap::new(),
            fresh_asked: BTreeMap::new(),
            fresh_known: BTreeMap::new(),
            names: 0,
            writing: BTreeSet::new(),
        }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => {
                submissions.into_iter().for_each(|submission| self.on_submit(cx, submission));
            }
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(ToyTimer::Retry) => {
                self.ask_again(cx);
                cx.set_timer(ToyTimer::Retry, RETRY);
            }
            Input::Durable(position) => self.on_durable(cx, position),
            Input::PeerUp(peer) => self.on_peer_up(cx, peer),
            Input::PeerDown(_) | Input::Stop | Input::Resume | Input::Prefetched { .. } => {}
            Input::Checkpointed(version) => self.on_checkpointed(cx, version),
            Input::CheckpointFailed(version) => {
                self.writing.remove(&version.0);
            }
        }
    }

    fn status(&self) -> Status {
        let members = self.setup.topology.node_ids().collect();
        let version = SnapshotVersion(self.executed);
        Status { version, coordinator: Some(LEADER), members, ..Status::default() }
    }

    fn agreed(&self) -> Option<(SnapshotVersion, u64)> {
        let members = if self.has(Bug::OtherMembers) { u64::from(self.setup.me.0) } else { 0 };
        Some((SnapshotVersion(self.executed), members))
    }

    fn invariants(&self) {
        assert!(self.executed <= self.decided && self.durable <= self.head);
        assert!(self.is_leader() || self.acked.is_empty());
    }
}

impl ToyProtocol {
    fn is_leader(&self) -> bool {
        self.setup.me == LEADER
    }

    fn has(&self, bug: Bug) -> bool {
        self.setup.options.bug == bug
    }

    fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        if let Some(checkpoint) = durable.checkpoint {
            self.executed = checkpoint.version.0;
            let mut meta = Reader::new(&checkpoint.meta);
            while let Ok(bits) = meta.u64("name") {
                self.ordered.insert(TxnId::from_bits(bits));
            }
        }
        (self.decided, self.head) = (self.executed, self.executed.max(cx.log_head().0));
        self.durable = self.head;
        for (position, record) in durable.records {
            let mut reader = Reader::new(&record);
            let txn = TxnId::from_bits(reader.u64("name").expect("own record"));
            let program = decode_program(&mut reader).expect("own record");
            self.ordered.insert(txn);
            self.log.insert(position.0, Entry { txn, program });
        }
        if self.has(Bug::ForgetOrdered) {
            self.ordered.clear();
        }
        // Ids of this incarnation differ from those of earlier ones.
        self.names = cx.rng.u64(..1 << 28) << 20;
        cx.set_timer(ToyTimer::Retry, RETRY);
        cx.mark("restart");
        if self.has(Bug::Nonsense) {
            cx.mark("malformed");
        }
        self.decide(cx);
    }

    fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submission: Submission) {
        self.names += 1;
        let ticket = submission.ticket;
        match submission.request {
            Request::Commit(program, _) => {
                let txn = TxnId::new(self.setup.me, self.names);
                if self.has(Bug::AnswerEarly) {
                    let version = SnapshotVersion(self.head + 1);
                    cx.reply(ticket, Outcome::Committed { txn, version, result: Vec::new() });
                } else {
                    self.pending.insert(txn, (ticket, program.clone()));
                }
                self.hand_over(cx, txn, program);
            }
            Request::Move(_) => unreachable!("no run of the toy moves slots"),
            Request::Fresh if self.has(Bug::StaleFresh) => {
                cx.fresh(ticket, cx.store.published());
            }
            Request::Fresh => {
                let number = self.names;
                self.fresh_asked.insert(number, ticket);
                if self.is_leader() {
                    self.on_head(cx, number, self.head);
                } else {
                    cx.send(LEADER, ToyMessage::AskHead { number });
                }
            }
        }
    }

    fn hand_over(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId, program: Program) {
        if self.is_leader() {
            self.order(cx, txn, program);
        } else {
            cx.send(LEADER, ToyMessage::Order { txn, program });
        }
    }

    fn order(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId, program: Program) {
        if self.ordered.contains(&txn) {
            cx.mark("ordered before");
            return;
        }
        self.append(cx, Entry { txn, program });
        if self.has(Bug::AckBeforeDurable) {
            self.on_durable(cx, LogPosition(self.head));
        }
    }

    fn append(&mut self, cx: &mut Cx<'_, Self>, entry: Entry) {
        let mut record = Vec::new();
        record.put_u64(entry.txn.to_bits());
        encode_program(&entry.program, &mut record);
        self.head = cx.persist(vec![Bytes::from(record)]).0;
        self.ordered.insert(entry.txn);
        self.log.insert(self.head, entry);
    }

    fn on_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: ToyMessage) {
        match message {
            ToyMessage::Order { txn, program } => self.order(cx, txn, program),
            ToyMessage::Entries { first, entries } => self.on_entries(cx, first, entries),
            ToyMessage::Ack { up_to, wants_more } => {
                let acked = self.acked.entry(from).or_default();
                *acked = up_to.max(*acked);
                if wants_more {
                    cx.mark("catch up");
                    self.send_entries(cx, from, up_to + 1);
                }
                self.decide(cx);
            }
            ToyMessage::Decided { up_to } => {
                self.decided = self.decided.max(up_to);
                self.execute(cx);
            }
            ToyMessage::AskHead { number } => {
                cx.send(from, ToyMessage::Head { number, head: self.head });
            }
            ToyMessage::Head { number, head } => self.on_head(cx, number, head),
        }
    }

    fn on_entries(&mut self, cx: &mut Cx<'_, Self>, first: u64, entries: Vec<(TxnId, Program)>) {
        for (index, (txn, program)) in (first..).zip(entries) {
            if index == self.head + 1 {
                self.append(cx, Entry { txn, program });
            }
        }
        if self.has(Bug::AckBeforeDurable) {
            self.on_durable(cx, LogPosition(self.head));
        }
        self.execute(cx);
    }

    fn on_durable(&mut self, cx: &mut Cx<'_, Self>, position: LogPosition) {
        let first = self.durable + 1;
        self.durable = self.durable.max(position.0);
        if !self.is_leader() {
            cx.send(LEADER, ToyMessage::Ack { up_to: self.durable, wants_more: false });
            return self.execute(cx);
        }
        for peer in self.setup.topology.peers_of(LEADER) {
            self.send_entries(cx, peer, first);
        }
        self.decide(cx);
    }

    fn send_entries(&mut self, cx: &mut Cx<'_, Self>, to: NodeId, first: u64) {
        let mut first = first;
        while first <= self.durable {
            let last = (first + ENTRIES_PER_MESSAGE as u64 - 1).min(self.durable);
            let found = self.log.range(first..=last);
            let entries: Vec<_> = found.map(|(_, e)| (e.txn, e.program.clone())).collect();
            assert_eq!(entries.len() as u64, last - first + 1, "the log has the requested entries");
            cx.send(to, ToyMessage::Entries { first, entries });
            first = last + 1;
        }
        cx.send(to, ToyMessage::Decided { up_to: self.decided });
    }

    fn decide(&mut self, cx: &mut Cx<'_, Self>) {
        if self.is_leader() {
            self.acked.insert(LEADER, self.durable);
            let mut acked: Vec<u64> = self.acked.values().copied().collect();
            acked.resize(self.setup.topology.node_count(), 0);
            acked.sort_unstable_by(|a, b| b.cmp(a));
            let decided = acked[self.setup.topology.majority() - 1];
            if decided > self.decided {
                self.decided = decided;
                for peer in self.setup.topology.peers_of(LEADER) {
                    cx.send(peer, ToyMessage::Decided { up_to: decided });
                }
            }
        }
        self.execute(cx);
    }

    fn execute(&mut self, cx: &mut Cx<'_, Self>) {
        // Entries that a crash could lose are not executed: a checkpoint would outlive them, and
        // log positions would no longer be indices.
        let ready = self.decided.min(self.durable);
        while self.executed < ready {
            let next = self.executed + 1;
            let swap = self.has(Bug::Reorder) && !self.is_leader();
            let index = match next % 2 {
                1 if swap && next < ready => next + 1,
                0 if swap && self.log.contains_key(&(next - 1)) => next - 1,
                _ => next,
            };
            let entry = self.log[&index].clone();
            self.execute_entry(cx, next, entry);
        }
        let executed = SnapshotVersion(self.executed);
        while let Some(first) = self.fresh_known.first_entry() {
            if *first.key() >> 20 > self.executed {
                break;
            }
            let ticket = first.remove();
            cx.fresh(ticket, executed);
        }
        // A checkpoint that is being written reads its version.
        let floor = self.writing.first().copied().unwrap_or(self.executed);
        cx.store.reclaim(SnapshotVersion(floor));
    }

    fn execute_entry(&mut self, cx: &mut Cx<'_, Self>, version: u64, entry: Entry) {
        let (before, version) = (SnapshotVersion(version - 1), SnapshotVersion(version));
        let Entry { txn, mut program } = entry;
        let mut kept = Vec::new();
        if let Program::Certified(certified) = &mut program {
            self.certify_badly(certified, &mut kept);
        }
        let overlay = Overlay::new();
        let run = optimistic::run(&self.setup.registry, &program, cx.store, before, &overlay);
        let is_lost = self.has(Bug::LoseWrites) && version.0.is_multiple_of(40);
        let is_aborted = run.result.is_err();
        let kept = kept.into_iter().filter(|_| is_aborted);
        for write in run.writes.into_iter().chain(kept).filter(|_| !is_lost) {
            let header = RecordHeader::new(txn);
            cx.store.apply(write.table, write.key, Version { version, header, value: write.value });
        }
        cx.store.publish(version);
        self.executed = version.0;
        if let Some((ticket, _)) = self.pending.remove(&txn) {
            let outcome = match run.result {
                Ok(result) => Outcome::Committed { txn, version, result },
                Err(abort) => Outcome::Aborted(abort),
            };
            cx.reply(ticket, outcome);
        }
        if version.0.is_multiple_of(CHECKPOINT_EVERY) {
            let mut meta = Vec::new();
            self.ordered.iter().for_each(|txn| meta.put_u64(txn.to_bits()));
            self.writing.insert(version.0);
            cx.checkpoint(version, Bytes::from(meta));
        }
    }

    /// Applies the bugs of certified transactions.
    fn certify_badly(&self, certified: &mut Certified, kept: &mut Vec<Write>) {
        match self.setup.options.bug {
            Bug::SkipCertify => certified.reads = ReadSet::default(),
            Bug::CertifyWritesAlone => {
                let writes = &certified.writes;
                certified.reads.ranges.clear();
                certified.reads.points.retain(|read| writes.iter().any(|w| w.key == read.key));
            }
            Bug::KeepAborted => kept.clone_from(&certified.writes),
            _ => {}
        }
    }

    fn on_head(&mut self, cx: &mut Cx<'_, Self>, number: u64, head: u64) {
        if let Some(ticket) = self.fresh_asked.remove(&number) {
            self.fresh_known.insert((head << 20) | (number % (1 << 20)), ticket);
            self.execute(cx);
        }
    }

    fn on_peer_up(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        if peer == LEADER && !self.has(Bug::NoCatchUp) {
            cx.send(LEADER, ToyMessage::Ack { up_to: self.durable, wants_more: true });
        }
        self.ask_again(cx);
    }

    fn ask_again(&mut self, cx: &mut Cx<'_, Self>) {
        if self.is_leader() {
            return;
        }
        for (&txn, (_, program)) in &self.pending {
            cx.send(LEADER, ToyMessage::Order { txn, program: program.clone() });
        }
        for &number in self.fresh_asked.keys() {
            cx.send(LEADER, ToyMessage::AskHead { number });
        }
    }

    fn on_checkpointed(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion) {
        cx.mark("checkpoint");
        self.writing.remove(&version.0);
        // Entries that another node may still request are retained; only the leader knows which.
        let needed = match self.is_leader() {
            true if self.acked.len() == self.setup.topology.node_count() => {
                self.acked.values().min().copied().unwrap_or_default()
            }
            true => 0,
            false => self.durable,
        };
        let done = version.0.min(needed);
        self.log = self.log.split_off(&(done + 1));
        cx.truncate(LogPosition(done + 1));
    }
}
