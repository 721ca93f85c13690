//! Back-pressure: which node is behind, so that this replica waits.
//!
//! ```text
//!   a request -> batch -> its own disk -> f + 1 replicas -> cut -> all batches -> run -> answer
//!                           fsync       acknowledgements   cuts     batches    execution
//! ```
//!
//! A replica that waits knows what for: something of a place in a log, that a certain node has to
//! bring. What has been missing for long, or is many epochs of one node, is late, and told to
//! operators and clients by that node's name. With more than [`BEHIND_MAX`] epochs a protocol
//! can refuse requests: they would wait for that node, too.
//!
//! An epoch of a sequencer is a batch of its log, and that of all is a cut.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Cx, WaitsFor};
use pangea_core::time::{Span, Timestamp};

use super::state::CutState;
use super::{Host, Inputs, PROGRESS, Rules};

/// What is missing for longer than this, an epoch and the longest round trips is late.
const PATIENCE: Span = Span::from_ms(500);

/// And so is, when it is looked at again, what is so many epochs and more, beside those that take
/// their way meanwhile.
const LATE_EPOCHS: u64 = 64;

/// A replica that waits for a node which is so many epochs behind can refuse requests: as many as a
/// log is ahead of others at most.
pub(crate) const BEHIND_MAX: u64 = 256;

/// Something that is missing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Who has to bring it: a node of the cluster.
    pub node: NodeId,
    /// What it is.
    pub what: &'static str,
    /// The first epoch of which it is missing.
    pub first: u64,
    /// How many epochs that node is behind.
    pub epochs: u64,
}

/// What is missing, and what of that for too long.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Since when something of a node is missing.
    since: BTreeMap<(NodeId, &'static str), Since>,
    /// Those that are the furthest behind first.
    pub late: Vec<WaitsFor>,
}

#[derive(Clone, Copy, Debug)]
struct Since {
    /// The first epoch of which it is missing.
    first: u64,
    /// Since when it is that one.
    same: Timestamp,
    /// Since when it is any.
    any: Timestamp,
}

/// When something is late.
struct Lateness {
    /// It is the same for so long.
    same: Span,
    /// Or it is so many epochs,
    epochs: u64,
    /// and some were missing for so long.
    any: Span,
}

impl Lateness {
    fn new(round_trip: Span, epoch: Span) -> Self {
        Self {
            same: Span::from_us(PATIENCE.us + 2 * (round_trip.us + epoch.us)),
            epochs: LATE_EPOCHS + 2 * (PROGRESS.us + round_trip.us) / epoch.us,
            any: Span::from_us(2 * PROGRESS.us.max(round_trip.us)),
        }
    }

    fn is_late(&self, awaited: &Awaited, since: Since, now: Timestamp) -> bool {
        let is_far = awaited.epochs >= self.epochs && now.since(since.any) >= self.any;
        is_far || now.since(since.same) >= self.same
    }
}

impl Waits {
    /// Another node, for which more wait already than should: requests are refused.
    pub(crate) fn refuses(&self, me: NodeId) -> Option<&WaitsFor> {
        self.late.iter().find(|late| late.node != me && late.epochs >= BEHIND_MAX)
    }

    fn is_late(&self, awaited: &Awaited) -> bool {
        self.late.iter().any(|late| late.node == awaited.node && late.what == awaited.what)
    }

    /// Since when something is missing that is missing now.
    fn since_when(&self, awaited: &Awaited, now: Timestamp) -> Since {
        let first = awaited.first;
        match self.since.get(&(awaited.node, awaited.what)) {
            Some(since) if since.first == first => *since,
            Some(since) => Since { first, same: now, any: since.any },
            None => Since { first, same: now, any: now },
        }
    }
}

impl<H: Host> Inputs<H> {
    /// Looks what is missing. `of_epochs` is what else the epochs wait for that are decided.
    pub(crate) fn note_waits(&mut self, cx: &mut Cx<'_, H>, of_epochs: Vec<Awaited>) {
        let mut awaited = self.awaited_batches();
        awaited.extend(of_epochs);
        let (me, last) = (self.node(self.me), self.last_decided());
        if awaited.is_empty() && last > self.cut.applied {
            let (first, epochs) = (self.cut.applied.0 + 1, last.0 - self.cut.applied.0);
            awaited.push(Awaited { node: me, what: "execution", first, epochs });
        }
        awaited.extend(self.awaited_order(cx.now.at));
        let (round_trip, epoch) = (self.topology.round_trip_max(), self.settings.epoch);
        let lateness = Lateness::new(round_trip, epoch);
        let before = std::mem::take(&mut self.waits);
        for it in awaited {
            let since = before.since_when(&it, cx.now.at);
            self.waits.since.insert((it.node, it.what), since);
            if lateness.is_late(&it, since, cx.now.at) {
                if !before.is_late(&it) {
                    cx.mark("inputs.waits_for_node");
                }
                let Awaited { node, what, epochs, .. } = it;
                self.waits.late.push(WaitsFor { node, what: what.to_owned(), epochs });
            }
        }
        self.waits.late.sort_by_key(|late| Reverse(late.epochs));
    }

    /// The batches that decided epochs lack.
    fn awaited_batches(&self) -> Vec<Awaited> {
        let Some((_, last)) = self.cut.waiting.back() else { return Vec::new() };
        let missing = |source: NodeId| {
            let held = self.replication.logs[source.index()].held;
            let lacks = |heads: &super::Heads| heads[source.index()] > held;
            let epochs = || self.cut.waiting.iter().filter(|(_, cut)| lacks(&cut.heads)).count();
            let (node, first) = (self.node(source), held.0 + 1);
            lacks(&last.heads).then(|| Awaited {
                node,
                what: "batches",
                first,
                epochs: epochs() as u64,
            })
        };
        self.topology.peers_of(self.me).filter_map(missing).collect()
    }

    /// What this replica's batches lack to be in an epoch, and the group's log to come to those
    /// of others.
    fn awaited_order(&self, now: Timestamp) -> Vec<Awaited> {
        let (me, own) = (self.me, self.own_log());
        if !self.greetings.is_ready {
            return Vec::new();
        }
        if own.held > own.durable {
            let (first, epochs) = (own.durable.0 + 1, own.held.0 - own.durable.0);
            return vec![Awaited { node: self.node(me), what: "fsync", first, epochs }];
        }
        let available = self.replication.available[me.index()];
        if own.durable > available {
            let head = |peer: NodeId| self.replication.durable[peer.index()][me.index()];
            let lacking = self.topology.peers_of(me).filter(|peer| head(*peer) <= available);
            let awaited = |peer| Awaited {
                node: self.node(peer),
                what: "acknowledgements",
                first: head(peer).0 + 1,
                epochs: own.durable.0 - head(peer).0,
            };
            return lacking.map(awaited).collect();
        }
        let last = self.last_decided();
        let ordered = self.cut.last_head(me);
        let behind = self.pace.wanted.0.saturating_sub(last.0);
        let epochs = behind.max(available.0.saturating_sub(ordered.0));
        if epochs == 0 || last >= self.pace.limit {
            return Vec::new();
        }
        let awaited = |replica: NodeId, what| {
            let node = self.node(replica);
            Awaited { node, what, first: last.0 + 1, epochs }
        };
        match self.agreement().leader() {
            Some(leader) if leader != me => vec![awaited(leader, "cuts")],
            Some(_) => self.silent(now).map(|peer| awaited(peer, "votes")).collect(),
            None => Vec::new(),
        }
    }

    /// The peers of which nothing was heard for some time.
    fn silent(&self, now: Timestamp) -> impl Iterator<Item = NodeId> {
        let is_silent = move |peer: &NodeId| {
            let heard = self.cut.heard_at[peer.index()];
            !self.replication.is_up[peer.index()] || now.since(heard).us >= PATIENCE.us
        };
        self.topology.peers_of(self.me).filter(is_silent)
    }
}

impl<R: Rules> CutState<R> {
    /// How far the log of a replica is in an epoch that is decided.
    fn last_head(&self, source: NodeId) -> super::Bid {
        let waiting = self.waiting.back().map(|(_, cut)| cut.heads[source.index()]);
        waiting.unwrap_or_default().max(self.heads[source.index()])
    }
}
