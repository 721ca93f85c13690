//! Forwarding: any node takes transactions, and the leader executes each of them once (§4.1).
//!
//! ```text
//!   client    node                       leader
//!     | submit  | Forward 3.71 ----------> |  executes it, unless it is in the log
//!     |         | <==== Append: 3.71, ok ==|
//!     | <-------|  when the entry is published here
//! ```
//!
//! A node names its transactions, and uses no name twice: it has reserved the numbers on its disk.
//! The outcome is in the log, so every replica has it, and the node answers its client from its own
//! log. If the leader fails, the node sends what has no outcome to the next one. That leader has
//! published everything of the epochs before when it begins, so it knows what was executed
//! (`outcomes.rs`), and all else is dead for good: the old leader can't commit it any more.
//!
//! The paper does not treat this: a client of a failed leader does not know what became of its
//! transaction.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::{Cx, Request as ClientRequest, Submission};
use pangea_core::txn::{Abort, Outcome, Program};

use super::Mako;
use super::log::{RunResult, decode_abort, encode_abort};
use super::messages::Message;
use super::state::{Role, State};
use super::versions::Epoch;
use crate::inputs::{IN_FLIGHT_MAX, not_rejoined, stopping, too_many_in_flight};
use crate::messages::NUMBER_MAX;
use crate::replica::{INTACT, kind};
use crate::request::{Request, check_program};
use crate::streams::number;

/// A node reserves this number of names at a time.
const RESERVED: u64 = 1 << 20;

/// The transactions of this node's clients.
#[derive(Debug)]
pub(super) struct Origin {
    /// The number of the next transaction.
    pub next: u64,
    /// The first number that is not reserved.
    pub reserved: u64,
    /// The record that reserves them.
    pub record: LogPosition,
    pub in_flight: BTreeMap<TxnId, InFlight>,
    /// Those that were not sent to the leader of the epoch.
    pub unsent: Vec<TxnId>,
    /// The epoch whose leader was sent all others.
    sent_to: Epoch,
}

/// A transaction whose client waits.
#[derive(Debug)]
pub(super) struct InFlight {
    ticket: Ticket,
    pub program: Program,
    /// The shard whose leader it is sent to.
    pub home: ShardId,
    /// Whether it only reads.
    is_reader: bool,
}

impl Origin {
    pub(super) fn new() -> Self {
        Self {
            next: 1,
            reserved: 1,
            record: LogPosition(0),
            in_flight: BTreeMap::new(),
            unsent: Vec::new(),
            sent_to: Epoch(0),
        }
    }

    /// The number below which this node does not ask for outcomes.
    pub(super) fn below(&self) -> u64 {
        self.in_flight.keys().next().map_or(self.next, |first| first.sequence())
    }

    /// The numbers below one were used by earlier runs.
    pub(super) fn restore(&mut self, reserved: u64) {
        self.reserved = self.reserved.max(reserved);
        self.next = mutate!(MakoNamesReused: self.reserved => 1);
    }

    /// All transactions in flight are sent again.
    pub(super) fn send_again(&mut self) {
        self.sent_to = Epoch(0);
    }
}

/// The number in a record that reserves names.
pub(super) fn decode_reserved(payload: &[u8]) -> u64 {
    number(&mut Reader::new(payload), "names").expect(INTACT)
}

/// Encodes transactions. [`decode_requests`] is the inverse.
pub(super) fn encode_all(all: &[Request]) -> Bytes {
    let mut out = Vec::new();
    out.put_varint(all.len() as u64);
    for request in all {
        out.put_u64(request.txn.to_bits());
        request.encode(&mut out);
    }
    out.into()
}

/// Decodes transactions of a node.
///
/// # Errors
/// If the bytes are malformed, or a transaction is of another node.
pub(super) fn decode_requests(node: NodeId, bytes: &Bytes) -> Result<Vec<Request>, DecodeError> {
    const WHAT: &str = "transactions";
    let from = &mut Reader::new(bytes);
    let requests = (0..from.count(WHAT)?).map(|_| {
        let txn = TxnId::from_bits(from.u64(WHAT)?);
        let request = Request::decode(txn, from, bytes)?;
        let is_own = txn.node() == node && txn.sequence() < NUMBER_MAX && txn.to_bits() >> 63 == 0;
        let is_plain = request.origin.is_none() && request.shards.is_empty();
        if is_own && is_plain { Ok(request) } else { Err(DecodeError::new(WHAT)) }
    });
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    if from.is_empty() { Ok(requests) } else { Err(DecodeError::new(WHAT)) }
}

pub(super) fn request_of(txn: TxnId, program: Program) -> Request {
    Request { txn, program, footprint: None, shards: ShardSet::default(), origin: None }
}

impl State {
    /// Whether no client of this node waits.
    pub(super) fn is_settled(&self) -> bool {
        self.origin.in_flight.is_empty() && self.fresh.is_idle()
    }

    fn refusal(&self, program: &Program) -> Option<Abort> {
        if self.stop.is_some() {
            return Some(stopping());
        }
        if self.rejoining().is_some() {
            return Some(not_rejoined());
        }
        let Origin { in_flight, next, .. } = &self.origin;
        if in_flight.len() >= IN_FLIGHT_MAX || next - self.origin.below() >= RESERVED {
            return Some(too_many_in_flight(None, &self.replica.topology));
        }
        check_program(&self.registry, program).err()
    }
}

impl Mako {
    pub(super) fn on_submit(&mut self, cx: &mut Cx<'_, Self>, submissions: Vec<Submission>) {
        for Submission { ticket, request } in submissions {
            match request {
                ClientRequest::Fresh => self.await_fresh(cx, ticket),
                ClientRequest::Move(moves) => self.on_move_request(cx, ticket, moves),
                // Serializable is never less than what was asked for.
                ClientRequest::Commit(program, _) => self.accept(cx, ticket, program),
            }
        }
    }

    /// Refuses a transaction, answers it from a snapshot if it may, or names it.
    fn accept(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket, program: Program) {
        if let Some(abort) = self.state.refusal(&program) {
            return cx.reply(ticket, Outcome::Aborted(abort));
        }
        if self.read_snapshot(cx, ticket, &program) {
            return;
        }
        self.reserve_names(cx);
        let State { origin, node, shards, registry, .. } = &mut self.state;
        let txn = TxnId::new(*node, origin.next);
        origin.next += 1;
        cx.named(ticket, txn.sequence());
        let home = shards.as_ref().map_or(ShardId(0), |it| it.home_of(registry, &program));
        let is_reader = match &program {
            Program::Call { procedure, args } => {
                registry.procedure(*procedure).is_some_and(|code| code.is_read_only(args))
            }
            Program::Certified(certified) => certified.writes.is_empty(),
        };
        origin.in_flight.insert(txn, InFlight { ticket, program, home, is_reader });
        origin.unsent.push(txn);
    }

    /// Reserves more names if there are few left.
    fn reserve_names(&mut self, cx: &mut Cx<'_, Self>) {
        let State { origin, replica, .. } = &mut self.state;
        if origin.next < origin.reserved {
            return;
        }
        origin.reserved = origin.next + RESERVED;
        let mut record = Vec::new();
        record.put_varint(origin.reserved);
        origin.record = replica.persist(cx, &kind::CEILING, record.into());
    }

    /// Hands the transactions to the leader that were not handed to it in this epoch.
    pub(super) fn send_forwards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.origin.in_flight.is_empty() {
            return;
        }
        if self.state.shards.is_some() {
            return self.send_forwards_by_shard(cx);
        }
        let Some(leader) = self.state.leader() else { return };
        let number = self.state.epochs.current.number;
        let is_new = self.state.origin.sent_to != number;
        if leader == self.state.replica.me {
            return self.take_own(cx, is_new);
        }
        let State { epochs, origin, replica, options, .. } = &mut self.state;
        let told = &epochs.told[leader.index()];
        let leads = told.flags.leads && told.leadership.number == number;
        if !leads || !replica.is_up[leader.index()] {
            return;
        }
        let unsent = std::mem::take(&mut origin.unsent);
        let txns: Vec<TxnId> = match is_new {
            true => origin.in_flight.keys().copied().collect(),
            false => unsent,
        };
        if is_new && !txns.is_empty() {
            cx.mark("mako.forwarded_again");
        }
        origin.sent_to = number;
        cx.reached(Milestone::Batched, origin.next);
        let below = origin.below();
        let all = txns.iter().filter_map(|txn| Some((*txn, origin.in_flight.get(txn)?)));
        let all: Vec<Request> =
            all.map(|(txn, own)| request_of(txn, own.program.clone())).collect();
        let mut rest = &all[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let is_small = |request: &&Request| {
                bytes += request.weight();
                bytes <= options.batch_bytes
            };
            let count = rest.iter().take_while(is_small).count().max(1);
            let requests = encode_all(&rest[..count]);
            let message = Message::Forward { epoch: number.0, below, requests };
            replica.send_after(cx, origin.record, leader, message);
            rest = &rest[count..];
        }
    }

    /// A leader takes the transactions of its own clients.
    fn take_own(&mut self, cx: &mut Cx<'_, Self>, is_new: bool) {
        if !matches!(self.state.role, Role::Leading(_)) {
            return;
        }
        let State { origin, epochs, .. } = &mut self.state;
        let unsent = std::mem::take(&mut origin.unsent);
        let txns: Vec<TxnId> = match is_new {
            true => origin.in_flight.keys().copied().collect(),
            false => unsent,
        };
        origin.sent_to = epochs.current.number;
        let requests = txns.into_iter().filter_map(|txn| {
            let own = origin.in_flight.get(&txn)?;
            Some(request_of(txn, own.program.clone()))
        });
        let requests = requests.collect();
        self.take_all(cx, requests);
    }

    /// Takes transactions of this node's clients.
    pub(super) fn take_all(&mut self, cx: &mut Cx<'_, Self>, requests: Vec<Request>) {
        let unsettled = self.state.unsettled_bytes();
        for request in requests {
            let txn = request.txn;
            if let Some(abort) = self.enqueue(cx, request, unsettled) {
                self.answer_refused(cx, txn, abort);
            }
        }
    }

    /// A node of any shard hands transactions to this replica as the leader.
    pub(super) fn on_forward(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, below): (Epoch, u64),
        requests: &Bytes,
    ) {
        let Role::Leading(leading) = &mut self.state.role else {
            return cx.mark("mako.forwarded_to_another");
        };
        if self.state.epochs.current.number != epoch {
            return cx.mark("mako.forwarded_to_another");
        }
        let Ok(requests) = decode_requests(from, requests) else {
            return cx.mark("mako.malformed_transactions");
        };
        leading.note_below(from, below);
        let unsettled = self.state.unsettled_bytes();
        for request in requests {
            let txn = request.txn;
            if let Some(abort) = self.enqueue(cx, request, unsettled) {
                self.remember_refused(txn, &abort);
                self.send_refused(cx, txn, &abort);
            }
        }
    }

    /// Takes a transaction, unless it was taken already. `unsettled` is the size of those that are
    /// not published. Returns the reason for a refusal.
    fn enqueue(
        &mut self,
        cx: &mut Cx<'_, Self>,
        request: Request,
        unsettled: u64,
    ) -> Option<Abort> {
        let State { role, outcomes, options, registry, replica, .. } = &mut self.state;
        let Role::Leading(leading) = role else { return None };
        let is_known = outcomes.contains(request.txn) || leading.taken.contains(&request.txn);
        let is_known = mutate!(MakoForwardedTwice: is_known => false);
        if is_known {
            cx.mark("mako.known_transaction");
            self.tell_again(cx, request.txn);
            return None;
        }
        if let Some(abort) = leading.over.refused.get(&request.txn) {
            // It was sent twice.
            return Some(abort.clone());
        }
        if unsettled >= options.unsettled_bytes_max {
            cx.mark("mako.too_much_unsettled");
            return Some(too_many_in_flight(None, &replica.topology));
        }
        if let Err(abort) = check_program(registry, &request.program) {
            cx.mark("mako.unknown_program");
            return Some(abort);
        }
        leading.queue_bytes += request.size_hint() as u64;
        leading.taken.insert(request.txn);
        leading.queue.push_back(request);
        None
    }

    /// Its node may have sent the transaction twice, and is told that it was not executed.
    pub(super) fn remember_refused(&mut self, txn: TxnId, abort: &Abort) {
        if let Role::Leading(leading) = &mut self.state.role {
            leading.over.refused.insert(txn, abort.clone());
        }
    }

    /// Tells the node of a transaction that this leader has not executed it, and will not.
    pub(super) fn send_refused(&self, cx: &mut Cx<'_, Self>, txn: TxnId, abort: &Abort) {
        let (epoch, abort) = (self.state.epochs.current.number.0, encode_abort(abort).into());
        if txn.node().index() < self.state.node_count {
            cx.send(txn.node(), Message::Refused { epoch, txn: txn.to_bits(), abort });
        }
    }

    /// The leader has not executed a transaction of this node, and will not. One that was replaced
    /// is not believed, even if it leads again: the next one has the transaction, too.
    pub(super) fn on_refused(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: (NodeId, Epoch),
        txn: TxnId,
        abort: &[u8],
    ) {
        let leadership = match (&self.state.shards, self.state.origin.in_flight.get(&txn)) {
            (Some(shards), Some(own)) => {
                let leader = shards.leader_of(own.home);
                leader.map(|leader| (leader, shards.since(own.home)))
            }
            _ => {
                let leader = self.state.leader().map(|leader| self.state.replica.node(leader));
                leader.map(|leader| (leader, self.state.epochs.current.number))
            }
        };
        if leadership != Some(from) {
            return cx.mark("mako.refused_by_another");
        }
        match decode_abort(abort) {
            Ok(abort) => self.answer_refused(cx, txn, abort),
            Err(_) => cx.mark("mako.malformed_transactions"),
        }
    }

    pub(super) fn answer_refused(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId, abort: Abort) {
        if let Some(done) = self.state.origin.in_flight.remove(&txn) {
            cx.reply(done.ticket, Outcome::Aborted(abort));
        }
    }

    /// Answers the client of a transaction whose entry is published here.
    pub(super) fn answer(
        &mut self,
        cx: &mut Cx<'_, Self>,
        txn: TxnId,
        version: SnapshotVersion,
        result: RunResult,
    ) {
        let Some(done) = self.state.origin.in_flight.remove(&txn) else { return };
        let mut version = version;
        if let Some(shards) = &mut self.state.shards {
            // A reader has no version of its own, and versions of shards are not in the order of
            // time.
            if done.is_reader {
                version = version.max(shards.acknowledged);
            }
            shards.acknowledged = shards.acknowledged.max(version);
        }
        let counters = &mut self.state.counters;
        let outcome = match result {
            Ok(result) => {
                counters.txns_committed += 1;
                Outcome::Committed { txn, version, result }
            }
            Err(abort) => {
                counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
        };
        cx.reply(done.ticket, outcome);
    }

    /// Answers the clients of transactions that are in a checkpoint of a peer.
    pub(super) fn answer_contained(&mut self, cx: &mut Cx<'_, Self>) {
        let State { origin, outcomes, .. } = &self.state;
        let known = origin.in_flight.keys().filter_map(|txn| Some((*txn, outcomes.of(*txn)?)));
        let known: Vec<_> = known.map(|(txn, outcome)| (txn, outcome.clone())).collect();
        for (txn, (version, result)) in known {
            self.answer(cx, txn, version, result);
        }
    }
}
