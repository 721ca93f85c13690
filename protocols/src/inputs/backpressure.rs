//! Back-pressure: detects the nodes that are behind, for which this replica has to wait.
//!
//! ```text
//!   a request -> batch -> its own disk -> f + 1 replicas -> cut -> all batches -> run -> answer
//!                           fsync       acknowledgements   cuts     batches    execution
//! ```
//!
//! A replica that waits knows for what: an input at a position in a log that a certain node has to
//! send. An input that has been missing for long, or for many epochs of one node, is late.
//! Operators and clients are informed of the name of that node. Above [`BEHIND_MAX`] epochs a
//! protocol can reject requests, because they would wait for that node, too. The same holds if this
//! replica itself has a larger backlog than it should (`behind_bytes`): most of the backlog came
//! from other replicas, and they will send more.
//!
//! In this module an epoch of a sequencer is a batch of its log, and an epoch of all sequencers is
//! a cut.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Cx, WaitsFor};
use pangea_core::time::{Span, Timestamp};

use super::cut::BEHIND_EPOCHS_MIN;
use super::state::CutState;
use super::{Cut, Host, Inputs, PROGRESS, Rules};
use crate::streams::Bid;

/// An input is late if it has been missing for this long plus two epochs and round trips. It counts
/// as missing for as long as the same epoch is, or as any is, if those are too many to be in
/// flight.
const PATIENCE: Span = Span::from_ms(500);

/// A number of epochs larger than arrives within [`PROGRESS`] at the usual length of an epoch.
const LATE_EPOCHS: u64 = 64;

/// A replica that waits for a node this number of epochs behind can reject requests. It is the most
/// that a log may be ahead of the others.
pub(crate) const BEHIND_MAX: u64 = 256;

/// An input that is missing on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingInput {
    /// The node of the cluster that has to send it.
    pub node: NodeId,
    /// The node for which `node` itself is waiting, according to its report; it is named instead.
    pub waits_for: Option<NodeId>,
    /// The kind of the input.
    pub what: &'static str,
    /// The first epoch for which it is missing.
    pub first: u64,
    /// The number of epochs that the node is behind.
    pub epochs: u64,
}

impl MissingInput {
    fn new(node: NodeId, what: &'static str, first: u64, epochs: u64) -> Self {
        Self { node, waits_for: None, what, first, epochs }
    }
}

/// The missing inputs, and those that are late.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// When the inputs of each node and kind became missing.
    since: BTreeMap<(NodeId, &'static str), Since>,
    /// The late nodes, furthest behind first.
    pub late: Vec<WaitsFor>,
    /// This node, if it has a larger backlog than it should.
    pub backlog: Option<WaitsFor>,
}

#[derive(Clone, Copy, Debug)]
struct Since {
    /// The first epoch for which it is missing.
    first: u64,
    /// When that epoch became the first missing one.
    same: Timestamp,
    /// When any epoch became missing.
    any: Timestamp,
}

impl Backpressure {
    /// The node for which too many requests wait already, so that new ones are rejected: another
    /// node, or this one if it has a larger backlog than it should.
    pub(crate) fn refuses(&self, me: NodeId) -> Option<&WaitsFor> {
        let other = self.late.iter().find(|late| late.node != me && late.epochs >= BEHIND_MAX);
        other.or(self.backlog.as_ref())
    }

    /// When an input that is now missing became missing.
    fn since_when(&self, awaited: &MissingInput, now: Timestamp) -> Since {
        let first = awaited.first;
        match self.since.get(&(awaited.node, awaited.what)) {
            Some(since) if since.first == first => *since,
            Some(since) => Since { first, same: now, any: since.any },
            None => Since { first, same: now, any: now },
        }
    }
}

impl<H: Host> Inputs<H> {
    /// Computes the missing and late inputs. `of_epochs` lists what decided epochs wait for besides
    /// their batches.
    pub(crate) fn note_waits(&mut self, cx: &mut Cx<'_, H>, of_epochs: Vec<MissingInput>) {
        let (round_trip_us, epoch_us) =
            (self.replica.topology.round_trip_max().us, self.settings.epoch.us);
        let patience_us = PATIENCE.us + 2 * (round_trip_us + epoch_us);
        let late_epochs = LATE_EPOCHS + 2 * (PROGRESS.us + round_trip_us) / epoch_us;
        let mut awaited = self.awaited_batches();
        awaited.extend(of_epochs);
        let applied = self.cut.applied.0;
        let backlog = self.last_decided().0.saturating_sub(applied);
        if awaited.is_empty() && backlog >= late_epochs {
            // A single epoch may take long: that is no reason to wait for this node.
            awaited.push(MissingInput::new(
                self.node(self.replica.me),
                "execution",
                applied + 1,
                backlog,
            ));
        }
        if self.presence.is_ready {
            awaited.extend(self.awaited_replication());
            awaited.extend(self.awaited_cuts(cx.now.at));
        }
        let before = std::mem::take(&mut self.waits);
        if backlog > BEHIND_EPOCHS_MIN && self.backlog_bytes() > self.settings.behind_bytes {
            if before.backlog.is_none() {
                cx.mark("inputs.too_far_behind");
            }
            let (node, what) = (self.node(self.replica.me), "execution".to_owned());
            self.waits.backlog = Some(WaitsFor { node, what, epochs: backlog });
        }
        for it in awaited {
            let since = before.since_when(&it, cx.now.at);
            self.waits.since.insert((it.node, it.what), since);
            let missing_since = if it.epochs >= late_epochs { since.any } else { since.same };
            if cx.now.at.since(missing_since).us >= patience_us {
                let (node, what) = (it.waits_for.unwrap_or(it.node), it.what.to_owned());
                if !before.late.iter().any(|late| late.node == node) {
                    cx.mark("inputs.waits_for_node");
                }
                self.waits.late.push(WaitsFor { node, what, epochs: it.epochs });
            }
        }
        self.waits.late.sort_by_key(|late| Reverse(late.epochs));
    }

    /// The bytes of the received batches of epochs that are decided and not applied.
    fn backlog_bytes(&self) -> u64 {
        let Some((_, last)) = self.cut.waiting.back() else { return 0 };
        self.streams.bytes_between(&self.cut.heads, &last.heads)
    }

    /// Abandons the backlog of a replica that was removed and has a larger one than it should. It
    /// continues from a peer's checkpoint, because it runs epochs slower than they arrive.
    pub(super) fn leave_backlog(&mut self, cx: &mut Cx<'_, H>) {
        if self.waits.backlog.is_none() || !self.is_out() || self.wants_checkpoint() {
            return;
        }
        let furthest = self.furthest();
        if furthest.0 > self.cut.confirmed.epoch.0 + BEHIND_EPOCHS_MIN {
            cx.mark("inputs.backlog_left");
            self.want_checkpoint(furthest);
        }
    }

    /// Whether this replica is outside the configuration, as of the last known cut.
    fn is_out(&self) -> bool {
        let says = |(_, cut): &(SnapshotVersion, Cut<H::Rules>)| {
            let is_back = cut.readmitted.contains(&self.replica.me);
            (is_back || cut.removed.contains(&self.replica.me)).then_some(!is_back)
        };
        let reported = self.cut.waiting.iter().rev().find_map(says);
        reported.unwrap_or(!self.cut.is_member[self.replica.me.index()])
    }

    /// The batches that decided epochs are missing.
    fn awaited_batches(&self) -> Vec<MissingInput> {
        let Some((_, last)) = self.cut.waiting.back() else { return Vec::new() };
        let missing = |source: NodeId| {
            let received = self.streams.logs[source.index()].received;
            let lacks = |cut: &Cut<H::Rules>| cut.heads[source.index()] > received;
            lacks(last).then(|| {
                let epochs = self.cut.waiting.iter().filter(|(_, cut)| lacks(cut)).count() as u64;
                MissingInput::new(self.node(source), "batches", received.0 + 1, epochs)
            })
        };
        self.replica.peers().filter_map(missing).collect()
    }

    /// The inputs that this replica's batches need to become available.
    fn awaited_replication(&self) -> Vec<MissingInput> {
        let (me, own) = (self.replica.me, self.own_log());
        let available = self.streams.available[me.index()];
        let mut awaited = Vec::new();
        if own.received > own.durable {
            let (first, epochs) = (own.durable.0 + 1, own.received.0 - own.durable.0);
            awaited.push(MissingInput::new(self.node(me), "fsync", first, epochs));
        }
        if own.durable > available {
            // A replica that is slower than necessary is not waited for: the nearest comes first.
            let head = |peer: &NodeId| self.streams.durable[peer.index()][me.index()];
            let lacks = |peer: &NodeId| head(peer) <= available;
            let mut lacking: Vec<NodeId> =
                self.replica.topology.peers_of(me).filter(lacks).collect();
            lacking.sort_by_key(|peer| Reverse(head(peer)));
            let (first, epochs) = (available.0 + 1, own.durable.0 - available.0);
            let what = "acknowledgements";
            let of = |peer| MissingInput::new(self.node(peer), what, first, epochs);
            awaited.extend(lacking.into_iter().map(of));
        }
        awaited
    }

    /// The inputs that available batches need to be in an epoch, and those that the group's log
    /// needs to reach the epochs of other logs.
    fn awaited_cuts(&self, now: Timestamp) -> Vec<MissingInput> {
        let (me, last) = (self.replica.me, self.last_decided());
        let available = self.streams.available[me.index()];
        let behind = self.pace.wanted.0.saturating_sub(last.0);
        let epochs = behind.max(available.0.saturating_sub(self.cut.last_head(me).0));
        if epochs == 0 || last >= self.pace.limit {
            return Vec::new();
        }
        let of = |replica, what| MissingInput::new(self.node(replica), what, last.0 + 1, epochs);
        match self.agreement().leader() {
            Some(leader) if leader != me => vec![of(leader, "cuts")],
            Some(_) => self.silent(now).map(|peer| of(peer, "votes")).collect(),
            None => Vec::new(),
        }
    }

    /// The peers from which no message has arrived for some time.
    fn silent(&self, now: Timestamp) -> impl Iterator<Item = NodeId> {
        let is_silent = move |peer: &NodeId| {
            let heard = self.cut.heard_at[peer.index()];
            !self.replica.is_up[peer.index()] || now.since(heard).us >= PATIENCE.us
        };
        self.replica.peers().filter(is_silent)
    }
}

impl<R: Rules> CutState<R> {
    /// The head of a replica's log in the last decided epoch.
    pub(super) fn last_head(&self, source: NodeId) -> Bid {
        let waiting = self.waiting.back().map(|(_, cut)| cut.heads[source.index()]);
        waiting.unwrap_or_default().max(self.heads[source.index()])
    }
}
