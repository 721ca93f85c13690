//! Whether this replica remembers all that it has said, before it says more.
//!
//! A replica that lost its log would give known numbers to new batches and vote twice. So it asks
//! those that it spoke to. Each replica draws a name at its first start, its birth, and logs it.
//! Peers log the births of the others.
//!
//! ```text
//!   replica                                 peer
//!     | Greeting(birth, yours: none) -------> |   not known yet: logs it
//!     | <--- Greeting(birth, yours, how far it has this replica's log, its last promise) |
//! ```
//!
//! Until it is ready, a replica makes no batches and takes no part in agreement.
//!
//! - At its first start it is ready when more than half of its peers have logged its birth. Two
//!   such sets share a peer, so one that lost its disk and draws another birth never is.
//! - At a later start it is ready when as many peers have greeted it as make a majority with it.
//!   Without them it could not commit, so this waits for nothing that it would not wait for anyway.
//! - A peer that knows another birth, or has more of its log, or a later promise, ends it. There is
//!   a way back: see `rejoin.rs`.

use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::{Cx, FirstStart};

use super::messages::Message;
use super::replication::lost_log;
use super::{Bid, Event, Host, Inputs, LogRecord};
use crate::agreement::Term;

/// What replicas know of each other's first starts.
#[derive(Default)]
pub(crate) struct Greetings {
    /// The birth of each replica; 0 where it is not known.
    pub births: Vec<u64>,
    /// The question of each peer whose disk is gone, until it has greeted.
    pub rejoins: Vec<Option<u64>>,
    /// Where the last birth is in the log.
    logged: LogPosition,
    /// Who knows the birth of this replica, of those that have greeted it since it started.
    knows: Vec<bool>,
    /// Whether each peer has answered, in this run, what it knows of this replica.
    pub answered: Vec<bool>,
    /// So many of them are enough.
    enough: usize,
    /// Whether this replica has taken part before, in an earlier run.
    was_ready: bool,
    /// Whether this replica makes batches and takes part in agreement.
    pub is_ready: bool,
    /// The latest term that a peer has said it follows, in a greeting.
    pub follows: Term,
}

impl Greetings {
    /// Nothing is known yet.
    pub(crate) fn new(node_count: usize) -> Self {
        Self { births: vec![0; node_count], rejoins: vec![None; node_count], ..Self::default() }
    }

    /// Where the last birth is in the log.
    pub(crate) fn logged_at(&mut self, position: LogPosition) {
        self.was_ready = true;
        self.logged = position;
    }

    /// What `me` waits for at its first start.
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
    /// A peer tells whom it follows.
    pub(crate) fn note_follows(&mut self, term: Term) {
        self.follows = self.follows.max(term);
    }
}

impl<H: Host> Inputs<H> {
    /// The log was read. `was_ready` tells whether this replica has taken part before, and
    /// `is_replaced` that it may have before its disk was lost.
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
            // It was there in an earlier run.
            self.rejoin = None;
        }
        if is_replaced && self.rejoin.is_none() {
            // And that run ended before it was noted.
            cx.rejoined();
        }
        let greetings = &self.greetings;
        if greetings.births[me.index()] == 0 {
            cx.mark("inputs.born");
            let birth = cx.rng.u64(1..);
            self.note_birth(cx, me, birth);
        }
        if peers == 0 {
            // Nothing waits to be sent yet.
            self.become_ready(cx);
        }
    }

    pub(crate) fn note_birth(&mut self, cx: &mut Cx<'_, H>, node: NodeId, birth: u64) {
        self.greetings.births[node.index()] = birth;
        let position = self.persist(cx, LogRecord::Birth(node, birth));
        self.greetings.logged = position;
    }

    /// Tells a peer who this replica is, and what it knows of the peer.
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

    /// A peer tells who it is, and what it knows of this replica.
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
            // While it asked it took nothing.
            self.say_again(cx, from);
        }
        let own = self.greetings.births[self.me.index()];
        if yours != 0 && yours != own && self.greetings.answered[from.index()] {
            // Said before the answer, in which it took note of this life, and overtaken by it.
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

    /// What a peer knows of this replica and this replica does not, if there is something.
    fn forgotten(&self, from: NodeId, yours: u64, batches: Bid, promise: Term) -> Option<String> {
        let (own, held) = (self.greetings.births[self.me.index()], self.own_head());
        let from = self.node(from);
        if yours != 0 && yours != own {
            return Some(lost_log(&format!(
                "node {} knows this node from an earlier start, of which its log says nothing",
                from.0
            )));
        }
        if batches > held {
            return Some(lost_batches(from, batches, held));
        }
        (promise > self.agreement().term()).then(|| {
            lost_log(&format!(
                "this node has promised node {} more in agreement than its log says",
                from.0
            ))
        })
    }

    /// Returns whether it is ready from now on, and was not before.
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

/// A peer has batches of this replica that this replica does not have: it would give their numbers
/// to others. They were durable here before they were sent, and so were its votes.
pub(crate) fn lost_batches(peer: NodeId, theirs: Bid, ours: Bid) -> String {
    lost_log(&format!(
        "node {} has {} batches of this node's log, and this node has {} of them",
        peer.0, theirs.0, ours.0
    ))
}
