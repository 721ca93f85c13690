//! Detects a lost log before a replica sends promises, votes or batches.
//!
//! A replica that lost its log would assign used numbers to new batches and vote twice. Therefore
//! it first asks the replicas that it has communicated with. Each replica draws a random log
//! identity, its `birth`, at its first start and logs it. Peers log each other's log identities.
//!
//! ```text
//!   replica                                 peer
//!     | Greeting(birth, yours: none) -------> |   not known yet: logs it
//!     | <--- Greeting(birth, yours, how far it has this replica's log, its last promise) |
//! ```
//!
//! Until it is ready, a replica creates no batches and does not participate in agreement.
//!
//! - At its first start it is ready when more than half of its peers have logged its identity. Two
//!   such sets share a peer. Therefore a replica that lost its disk and draws another identity
//!   never becomes ready.
//! - At a later start it is ready when enough peers have greeted it to form a majority with it. It
//!   could not commit without them, so this adds no wait.
//! - A peer that knows another identity of the replica, has more of its log, or a later promise,
//!   stops it. The way back is in `rejoin.rs`.

use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::{Cx, FirstStart};

use super::messages::Message;
use super::replication::lost_log;
use super::{Bid, Event, Host, Inputs, LogRecord};
use crate::agreement::Term;

/// The replicas' knowledge of each other's log identities.
#[derive(Default)]
pub(crate) struct Greetings {
    /// The log identity of each replica; 0 if unknown.
    pub births: Vec<u64>,
    /// The nonce of the rejoin request of each peer that lost its disk, until it has greeted.
    pub rejoins: Vec<Option<u64>>,
    /// The log position of the last record of a log identity.
    logged: LogPosition,
    /// Whether each peer has confirmed, since this replica started, that it logged this replica's
    /// identity.
    knows: Vec<bool>,
    /// Whether each peer has answered this replica's rejoin request in this run.
    pub answered: Vec<bool>,
    /// The number of confirmations at which this replica is ready.
    enough: usize,
    /// Whether this replica participated in an earlier run.
    was_ready: bool,
    /// Whether this replica creates batches and participates in agreement.
    pub is_ready: bool,
    /// The latest term that a peer follows, according to its greeting.
    pub follows: Term,
}

impl Greetings {
    /// The initial state, in which nothing is known.
    pub(crate) fn new(node_count: usize) -> Self {
        Self { births: vec![0; node_count], rejoins: vec![None; node_count], ..Self::default() }
    }

    /// The log position of the last record of a log identity.
    pub(crate) fn logged_at(&mut self, position: LogPosition) {
        self.was_ready = true;
        self.logged = position;
    }

    /// The confirmations that `me` waits for at its first start; `None` at a later start or once it
    /// is ready.
    pub(crate) fn first_start(&self, me: NodeId) -> Option<FirstStart> {
        let is_missing = |node: &NodeId| *node != me && !self.knows[node.index()];
        let nodes = (0..self.knows.len()).map(|index| NodeId(index as u16));
        (!self.was_ready && !self.is_ready).then(|| FirstStart {
            needed: self.enough + 1,
            missing: nodes.filter(is_missing).collect(),
        })
    }
}

impl Greetings {
    /// Records the term that a peer follows.
    pub(crate) fn note_follows(&mut self, term: Term) {
        self.follows = self.follows.max(term);
    }
}

impl<H: Host> Inputs<H> {
    /// Starts the exchange after the log was read. `was_ready` is whether this replica has
    /// participated before; `is_replaced` is whether it may have done so before its disk was lost.
    pub(crate) fn begin_greetings(
        &mut self,
        cx: &mut Cx<'_, H>,
        was_ready: bool,
        is_replaced: bool,
    ) {
        let me = self.me;
        let node_count = self.topology.node_count();
        let peers = node_count - 1;
        let majority = self.topology.majority();
        let greetings = &mut self.greetings;
        greetings.was_ready = was_ready;
        greetings.knows = vec![false; node_count];
        greetings.answered = vec![false; node_count];
        greetings.enough = if was_ready { majority - 1 } else { peers.min(peers / 2 + 1) };
        if is_replaced && !was_ready {
            return self.start_rejoin(cx);
        }
        if self.holds_target() {
            // An earlier run had already reached it.
            self.rejoin = None;
        }
        if is_replaced && self.rejoin.is_none() {
            // An earlier run completed the rejoin but stopped before the driver had recorded it.
            cx.rejoined();
        }
        let greetings = &self.greetings;
        if greetings.births[me.index()] == 0 {
            cx.mark("inputs.born");
            let birth = cx.rng.u64(1..);
            self.note_birth(cx, me, birth);
        }
        if peers == 0 {
            // There is nothing to send yet.
            self.become_ready(cx);
        }
    }

    pub(crate) fn note_birth(&mut self, cx: &mut Cx<'_, H>, node: NodeId, birth: u64) {
        self.greetings.births[node.index()] = birth;
        let position = self.persist(cx, LogRecord::Birth(node, birth));
        self.greetings.logged = position;
    }

    /// Sends a peer this replica's identity and its knowledge of the peer.
    pub(crate) fn greet(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        let greetings = &self.greetings;
        let greeting = Message::Greeting {
            birth: greetings.births[self.me.index()],
            yours: greetings.births[peer.index()],
            batches: self.replication.logs[peer.index()].held,
            promise: self.agreement().promise_of(peer),
            follows: self.agreement().term(),
        };
        cx.send_after(greetings.logged, self.node(peer), greeting.into());
    }

    /// Handles a peer's greeting: its identity and its knowledge of this replica.
    pub(crate) fn on_greeting(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        (birth, yours): (u64, u64),
        batches: Bid,
        promise: Term,
    ) -> Option<Event<H>> {
        let known = self.greetings.births[from.index()];
        if known == 0 {
            self.note_birth(cx, from, birth);
            self.greet(cx, from);
        } else if known != birth {
            cx.mark("inputs.stranger");
            self.greet(cx, from);
            return None;
        }
        if self.greetings.rejoins[from.index()].take().is_some() {
            // The peer ignored all other messages while it was rejoining.
            self.say_again(cx, from);
        }
        let own = self.greetings.births[self.me.index()];
        if yours != 0 && yours != own && self.greetings.answered[from.index()] {
            // The greeting was sent before the peer's answer, in which it recorded the new
            // identity, and the answer overtook it.
            cx.mark("inputs.greeting_late");
            return None;
        }
        if let Some(forgotten) = self.forgotten(from, yours, batches, promise) {
            cx.stop(forgotten);
            return None;
        }
        if yours != own {
            return None;
        }
        self.greetings.knows[from.index()] = true;
        self.become_ready(cx).then_some(Event::Ready)
    }

    /// The evidence that this replica has lost part of its log: knowledge of a peer that it does
    /// not have.
    fn forgotten(&self, from: NodeId, yours: u64, batches: Bid, promise: Term) -> Option<String> {
        let (own, held) = (self.greetings.births[self.me.index()], self.own_head());
        let from = self.node(from);
        if yours != 0 && yours != own {
            return Some(lost_log(&format!(
                "node {} knows an earlier start of this node that is missing from its log",
                from.0
            )));
        }
        if batches > held {
            return Some(lost_batches(from, batches, held));
        }
        (promise > self.agreement().term()).then(|| {
            lost_log(&format!(
                "this node made promises to node {} in agreement that are missing from its log",
                from.0
            ))
        })
    }

    /// Makes this replica ready once enough peers have confirmed. Returns whether that changed now.
    fn become_ready(&mut self, cx: &mut Cx<'_, H>) -> bool {
        let greetings = &mut self.greetings;
        let count = greetings.knows.iter().filter(|knows| **knows).count();
        if greetings.is_ready || count < greetings.enough {
            return false;
        }
        greetings.is_ready = true;
        cx.mark("inputs.ready");
        true
    }
}

/// The message with which a node stops if a peer has batches of its log that it does not have
/// itself. It would reuse their numbers. They were durable here before they were sent, and so were
/// its votes.
pub(crate) fn lost_batches(peer: NodeId, theirs: Bid, ours: Bid) -> String {
    lost_log(&format!(
        "node {} has {} batches of this node's log, but this node has only {}",
        peer.0, theirs.0, ours.0
    ))
}
