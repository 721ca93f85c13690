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
//! can refuse requests: they would wait for that node, too. So would they where this replica itself
//! has more to run than it should hold (`behind_bytes`): most of that came from others, and goes on
//! to come.
//!
//! An epoch of a sequencer is a batch of its log, and that of all is a cut.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Cx, WaitsFor};
use pangea_core::time::{Span, Timestamp};

use super::cut::BEHIND_EPOCHS_MIN;
use super::state::CutState;
use super::{Bid, Cut, Host, Inputs, PROGRESS, Rules};

/// What is missing for longer than this, two epochs and round trips is late: the same, or of so
/// many epochs that it can't be those which are on their way.
const PATIENCE: Span = Span::from_ms(500);

/// So many are more than come within [`PROGRESS`], at the usual length of an epoch.
const LATE_EPOCHS: u64 = 64;

/// A replica that waits for a node which is so many epochs behind can refuse requests: as many as a
/// log is ahead of others at most.
pub(crate) const BEHIND_MAX: u64 = 256;

/// Something that is missing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Who has to bring it: a node of the cluster.
    pub node: NodeId,
    /// For whom that one waits, as it says: who is named in its place.
    pub waits_for: Option<NodeId>,
    /// What it is.
    pub what: &'static str,
    /// The first epoch of which it is missing.
    pub first: u64,
    /// How many epochs that node is behind.
    pub epochs: u64,
}

impl Awaited {
    fn new(node: NodeId, what: &'static str, first: u64, epochs: u64) -> Self {
        Self { node, waits_for: None, what, first, epochs }
    }
}

/// What is missing, and what of that for too long.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Since when something of a node is missing.
    since: BTreeMap<(NodeId, &'static str), Since>,
    /// Those that are the furthest behind first.
    pub late: Vec<WaitsFor>,
    /// This node, where it has more to run than it should hold.
    pub backlog: Option<WaitsFor>,
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

impl Waits {
    /// A node for which more wait already than should: requests are refused. It is another one, or
    /// this one, which has more to run than it should hold.
    pub(crate) fn refuses(&self, me: NodeId) -> Option<&WaitsFor> {
        let other = self.late.iter().find(|late| late.node != me && late.epochs >= BEHIND_MAX);
        other.or(self.backlog.as_ref())
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
        let (round_trip_us, epoch_us) = (self.topology.round_trip_max().us, self.settings.epoch.us);
        let patience_us = PATIENCE.us + 2 * (round_trip_us + epoch_us);
        let late_epochs = LATE_EPOCHS + 2 * (PROGRESS.us + round_trip_us) / epoch_us;
        let mut awaited = self.awaited_batches();
        awaited.extend(of_epochs);
        let applied = self.cut.applied.0;
        let backlog = self.last_decided().0.saturating_sub(applied);
        if awaited.is_empty() && backlog >= late_epochs {
            // A single epoch may take long: that is no reason to wait for this node.
            awaited.push(Awaited::new(self.node(self.me), "execution", applied + 1, backlog));
        }
        if self.greetings.is_ready {
            awaited.extend(self.awaited_replication());
            awaited.extend(self.awaited_cuts(cx.now.at));
        }
        let before = std::mem::take(&mut self.waits);
        if backlog > BEHIND_EPOCHS_MIN && self.backlog_bytes() > self.settings.behind_bytes {
            if before.backlog.is_none() {
                cx.mark("inputs.too_far_behind");
            }
            let (node, what) = (self.node(self.me), "execution".to_owned());
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

    /// How many bytes of batches are here of epochs that are decided and not run.
    fn backlog_bytes(&self) -> u64 {
        let Some((_, last)) = self.cut.waiting.back() else { return 0 };
        let heads = self.cut.heads.iter().zip(&last.heads);
        let logs = self.replication.logs.iter().zip(heads);
        logs.map(|(log, (applied, last))| log.bytes_between(*applied, *last)).sum()
    }

    /// A replica that was removed, and has more to run than it should hold, goes on from a peer's
    /// checkpoint: it is slower than what comes.
    pub(super) fn leave_backlog(&mut self, cx: &mut Cx<'_, H>) {
        if self.waits.backlog.is_none() || !self.is_out() || self.wants_checkpoint() {
            return;
        }
        let furthest = self.furthest();
        if furthest.0 > self.mastery.confirmed.epoch.0 + BEHIND_EPOCHS_MIN {
            cx.mark("inputs.backlog_left");
            self.want_checkpoint(furthest);
        }
    }

    /// Whether this replica is out of the configuration, as of the last cut that is known here.
    fn is_out(&self) -> bool {
        let says = |(_, cut): &(SnapshotVersion, Cut<H::Rules>)| {
            let is_back = cut.readmitted.contains(&self.me);
            (is_back || cut.removed.contains(&self.me)).then_some(!is_back)
        };
        let said = self.cut.waiting.iter().rev().find_map(says);
        said.unwrap_or(!self.cut.is_member[self.me.index()])
    }

    /// The batches that decided epochs lack.
    fn awaited_batches(&self) -> Vec<Awaited> {
        let Some((_, last)) = self.cut.waiting.back() else { return Vec::new() };
        let missing = |source: NodeId| {
            let held = self.replication.logs[source.index()].held;
            let lacks = |cut: &Cut<H::Rules>| cut.heads[source.index()] > held;
            lacks(last).then(|| {
                let epochs = self.cut.waiting.iter().filter(|(_, cut)| lacks(cut)).count() as u64;
                Awaited::new(self.node(source), "batches", held.0 + 1, epochs)
            })
        };
        self.topology.peers_of(self.me).filter_map(missing).collect()
    }

    /// What this replica's batches lack to be available.
    fn awaited_replication(&self) -> Vec<Awaited> {
        let (me, own) = (self.me, self.own_log());
        let available = self.replication.available[me.index()];
        let mut awaited = Vec::new();
        if own.held > own.durable {
            let (first, epochs) = (own.durable.0 + 1, own.held.0 - own.durable.0);
            awaited.push(Awaited::new(self.node(me), "fsync", first, epochs));
        }
        if own.durable > available {
            // One that is slower than others need be is not waited for: the nearest comes first.
            let head = |peer: &NodeId| self.replication.durable[peer.index()][me.index()];
            let lacks = |peer: &NodeId| head(peer) <= available;
            let mut lacking: Vec<NodeId> = self.topology.peers_of(me).filter(lacks).collect();
            lacking.sort_by_key(|peer| Reverse(head(peer)));
            let (first, epochs) = (available.0 + 1, own.durable.0 - available.0);
            let what = "acknowledgements";
            let of = |peer| Awaited::new(self.node(peer), what, first, epochs);
            awaited.extend(lacking.into_iter().map(of));
        }
        awaited
    }

    /// What available batches lack to be in an epoch, and the group's log to come to the epochs of
    /// others.
    fn awaited_cuts(&self, now: Timestamp) -> Vec<Awaited> {
        let (me, last) = (self.me, self.last_decided());
        let available = self.replication.available[me.index()];
        let behind = self.pace.wanted.0.saturating_sub(last.0);
        let epochs = behind.max(available.0.saturating_sub(self.cut.last_head(me).0));
        if epochs == 0 || last >= self.pace.limit {
            return Vec::new();
        }
        let of = |replica, what| Awaited::new(self.node(replica), what, last.0 + 1, epochs);
        match self.agreement().leader() {
            Some(leader) if leader != me => vec![of(leader, "cuts")],
            Some(_) => self.silent(now).map(|peer| of(peer, "votes")).collect(),
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
    fn last_head(&self, source: NodeId) -> Bid {
        let waiting = self.waiting.back().map(|(_, cut)| cut.heads[source.index()]);
        waiting.unwrap_or_default().max(self.heads[source.index()])
    }
}
