//! Epochs: who leads the shard (§5.2).
//!
//! An epoch has one leader. The configuration manager decides when another one begins, and when its
//! leader may execute transactions: then the log of the epochs before is closed. Every replica
//! follows the last epoch that it has heard of, and takes part in no earlier one. It logs that
//! before it tells a new leader what its own log has.
//!
//! The paper's manager is a service of its own. Here the voters are that service, by agreement
//! ([`crate::agreement`]).

use std::collections::BTreeMap;

use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion};
use pangea_core::partition::SHARDS_MAX;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;
use pangea_core::topology::Topology;
use serde::{Deserialize, Serialize};

use super::Mako;
use super::closing::Closing;
use super::messages::Message;
use super::progress::PeerState;
use super::shards::Slots;
use super::state::{Role, State};
use super::versions::{EPOCH_MAX, Epoch};
use crate::agreement::{Driver, Refused, Settled};
use crate::messages::NUMBER_MAX;
use crate::replica::kind;

/// A decision of agreement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decided {
    /// An epoch begins.
    Epoch {
        /// Its number.
        number: u64,
        /// The leader.
        leader: NodeId,
    },
    /// The log of the epochs before is closed, and the leader of the epoch may begin to execute
    /// transactions. It counts if no later epoch was decided before it.
    Closed {
        /// The number of the epoch that begins.
        number: u64,
        /// The last version of the log.
        end: SnapshotVersion,
    },
    /// With several shards: an epoch begins.
    Leaders {
        /// Its number.
        number: u64,
        /// The leader of each shard, by its number in the shard.
        leaders: Vec<NodeId>,
        /// The epoch since which each of them leads without interruption.
        since: Vec<u64>,
        /// The last epoch in which leaders have executed transactions.
        begun: u64,
        /// The cut with which that one has begun.
        finals: Vec<SnapshotVersion>,
        /// Which slots have moved, and which are to move.
        slots: Slots,
    },
    /// With several shards: the log of one is closed. When all are, the epoch begins.
    ShardClosed {
        /// The number of the epoch that begins.
        number: u64,
        /// The shard.
        shard: u16,
        /// The version up to which its log is closed.
        closed: SnapshotVersion,
    },
}

impl Decided {
    /// Whether the voters of some cluster can have decided this.
    pub(super) fn is_plausible(&self) -> bool {
        let is_epoch = |number: u64| (1..=EPOCH_MAX).contains(&number);
        match self {
            Self::Epoch { number, .. } => is_epoch(*number),
            Self::Closed { number, end } => is_epoch(*number) && end.0 <= NUMBER_MAX,
            Self::Leaders { number, since, begun, finals, slots, .. } => {
                let are_versions = finals.iter().all(|version| version.0 <= NUMBER_MAX);
                let are_epochs = since.iter().all(|since| is_epoch(*since) && since <= number);
                let are_slots = slots.is_sound(SHARDS_MAX, *number);
                is_epoch(*number) && begun < number && are_versions && are_epochs && are_slots
            }
            Self::ShardClosed { number, closed, .. } => is_epoch(*number) && closed.0 <= NUMBER_MAX,
        }
    }

    fn is_sound(&self, topology: &Topology) -> bool {
        let votes = match self {
            Self::Epoch { leader, .. } => may_lead(topology, *leader),
            // The leaders of other shards are checked with their groups.
            Self::Closed { .. } | Self::Leaders { .. } | Self::ShardClosed { .. } => true,
        };
        votes && self.is_plausible()
    }
}

/// Whether a replica may lead: all but non-voting ones in regions of their own (§6.3).
pub(super) fn may_lead(topology: &Topology, replica: NodeId) -> bool {
    topology.votes(replica) || topology.is_learner(replica)
}

/// An epoch and its leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leadership {
    pub number: Epoch,
    pub leader: NodeId,
}

/// The epochs, as this replica knows them.
pub(super) struct Epochs {
    pub driver: Driver<Decided>,
    /// The number of the last decision taken.
    pub taken: u64,
    /// The last epoch among the decisions taken.
    decided: Epoch,
    /// The last epoch that this replica has heard of.
    pub current: Leadership,
    /// The record that says so.
    pub record: LogPosition,
    /// When this replica has heard of it.
    pub since: Timestamp,
    /// The last epoch of which this replica knows that its leader may begin.
    pub begun: Epoch,
    /// The last version of the log with which the epoch of this replica's log began.
    pub end: SnapshotVersion,
    /// The number of epochs in a row that did not begin.
    pub failures: u32,
    /// The number of short epochs in a row.
    pub short: u32,
    /// When the clock of agreement has ticked last.
    pub ticked_at: Timestamp,
    /// Since when a replica of a shard has more links than the leader, as the manager knows.
    pub outdone_since: BTreeMap<ShardId, Timestamp>,
    /// When each node was last heard.
    pub heard_at: Vec<Timestamp>,
    /// The last report of each node.
    pub told: Vec<PeerState>,
}

impl Epochs {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            driver: Driver::new(),
            taken: 0,
            decided: Epoch(0),
            current: Leadership::default(),
            record: LogPosition(0),
            since: Timestamp::default(),
            begun: Epoch(0),
            end: SnapshotVersion::ZERO,
            failures: 0,
            short: 0,
            ticked_at: Timestamp::default(),
            outdone_since: BTreeMap::new(),
            heard_at: vec![Timestamp::default(); node_count],
            told: vec![PeerState::default(); node_count],
        }
    }

    /// Everybody counts as heard, because nobody could be.
    pub(super) fn hear_all(&mut self, now: Timestamp) {
        self.heard_at.fill(now);
        (self.since, self.ticked_at) = (now, now);
    }
}

impl State {
    /// The last epoch that this node has heard of. With several shards, the leader of its own one
    /// may lead since an earlier one.
    pub(super) fn epoch(&self) -> Epoch {
        self.shards.as_ref().map_or(self.epochs.current.number, |shards| shards.config.number)
    }

    /// The leader of the last epoch that this replica has heard of.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let Leadership { number, leader } = self.epochs.current;
        (number > Epoch(0)).then_some(leader)
    }

    /// Whether this replica is that leader.
    pub(super) fn is_leader(&self) -> bool {
        self.leader() == Some(self.replica.me)
    }

    /// The node of another leader of this shard that executes transactions, if it is connected.
    pub(super) fn heard_leader(&self) -> Option<NodeId> {
        let leader = self.leader().filter(|leader| *leader != self.replica.me)?;
        let told = &self.epochs.told[leader.index()];
        let leads = told.flags.leads && told.leadership.number == self.epochs.current.number;
        (leads && self.replica.is_up[leader.index()]).then(|| self.replica.node(leader))
    }

    /// Whether this replica has the log of the last epoch that it has heard of.
    pub(super) fn has_log_of_epoch(&self) -> bool {
        self.log.epoch == self.epochs.current.number && self.log.epoch > Epoch(0)
    }

    /// Whether this replica sends its log to the others, as the leader. One that has restarted does
    /// not.
    pub(super) fn is_sending(&self) -> bool {
        !matches!(self.role, Role::Following) && self.has_log_of_epoch()
    }

    /// The number of decisions that survive a restart of this replica.
    pub(super) fn durable_decisions(&self) -> u64 {
        if self.epochs.record <= self.synced { self.epochs.taken } else { 0 }
    }
}

impl Mako {
    /// Passes a peer's message to agreement.
    pub(super) fn on_agreement(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        let State { presence, replica, epochs, .. } = &mut self.state;
        if !presence.is_ready || !replica.votes() || !replica.topology.votes(from) {
            return cx.mark("mako.agreement_too_early");
        }
        let topology = &replica.topology;
        let is_sound = |decided: &Decided| decided.is_sound(topology);
        if let Err(Refused(why)) = epochs.driver.agreement_mut().on_message(from, bytes, &is_sound)
        {
            cx.mark(why);
        }
    }

    /// Persists the records of agreement, sends its messages, and takes its decisions.
    pub(super) fn settle_agreement(&mut self, cx: &mut Cx<'_, Self>) {
        let State { presence, replica, epochs, synced, .. } = &mut self.state;
        if !presence.is_ready || !replica.votes() {
            return;
        }
        let wrap = |bytes| Message::Agreement { bytes };
        let Settled { skipped, decided } = epochs.driver.settle(cx, replica, *synced, wrap);
        if let Some(skipped) = skipped {
            // The others have forgotten these decisions, and tell what came of them.
            epochs.taken = epochs.taken.max(skipped);
        }
        for (number, decision) in decided {
            if number > self.state.epochs.taken {
                self.state.epochs.taken = number;
                self.take_decision(cx, decision);
            }
        }
    }

    fn take_decision(&mut self, cx: &mut Cx<'_, Self>, decision: Decided) {
        if !decision.is_sound(&self.state.replica.topology) {
            // A peer's memory of them is not checked where it arrives.
            return cx.mark("mako.malformed_epoch");
        }
        let epochs = &mut self.state.epochs;
        match decision {
            Decided::Epoch { number, leader } => {
                // Two managers may have proposed the same epoch.
                let number = Epoch(number);
                if number > epochs.decided {
                    epochs.decided = number;
                    self.begin_epoch(cx, Leadership { number, leader });
                }
            }
            Decided::Closed { number, .. } => {
                if epochs.decided == Epoch(number) {
                    self.note_begun(Epoch(number));
                }
            }
            Decided::Leaders { .. } | Decided::ShardClosed { .. } => {
                self.take_divided(cx, decision);
            }
        }
    }

    /// An epoch has begun: the leader that this replica follows may execute transactions if it
    /// leads since that epoch, or an earlier one.
    pub(super) fn note_begun(&mut self, number: Epoch) {
        let State { epochs, shards, .. } = &mut self.state;
        if number >= epochs.current.number {
            epochs.begun = epochs.current.number;
            if shards.is_none() {
                epochs.failures = 0;
            }
        }
    }

    /// Follows an epoch: this replica takes part in no earlier one any more.
    pub(super) fn begin_epoch(&mut self, cx: &mut Cx<'_, Self>, leadership: Leadership) {
        if leadership.number <= self.state.epochs.current.number {
            return;
        }
        cx.mark("mako.epoch");
        if self.state.leader().is_some_and(|before| before != leadership.leader) {
            // Scenarios wait for this mark: the leader is that of the epoch, and not the manager.
            cx.mark("agreement.leader_changed");
        }
        self.roll_back(cx);
        self.state.note_length(cx.now.at);
        let State { epochs, replica, adopting, sent, reports, commit, shards, .. } =
            &mut self.state;
        if shards.is_none() {
            epochs.failures += u32::from(epochs.begun < epochs.current.number);
        }
        (epochs.current, epochs.since) = (leadership, cx.now.at);
        *adopting = None;
        sent.fill(None);
        reports.fill(None);
        commit.acked.fill(None);
        let mut record = Vec::new();
        leadership.encode(&mut record);
        epochs.record = replica.persist(cx, &kind::PROMISED_EPOCH, record.into());
        self.state.counters.epochs += 1;
        let may_lead = self.state.is_leader() && self.state.is_whole();
        self.state.role =
            if may_lead { Role::Closing(Closing::default()) } else { Role::Following };
        self.send_report(cx, false);
        self.send_progress(cx);
    }

    /// Tells the leader of the epoch which log this replica has (§5.2: "retrieve all replicated
    /// log entries in the previous epoch from its peers").
    pub(super) fn send_report(&mut self, cx: &mut Cx<'_, Self>, is_again: bool) {
        let State { epochs, log, commit, replica, presence, .. } = &self.state;
        let Leadership { number, leader } = epochs.current;
        let is_follower = number > Epoch(0) && leader != replica.me;
        if !is_follower || !replica.is_up[leader.index()] || presence.is_asking() {
            return;
        }
        let message = Message::Report {
            epoch: number.0,
            log_epoch: log.epoch.0,
            last: log.last(),
            published: commit.floor,
            is_whole: self.state.is_whole() && replica.votes(),
            is_again,
        };
        replica.send_after(cx, epochs.record, leader, message);
        self.send_ack(cx);
    }
}
