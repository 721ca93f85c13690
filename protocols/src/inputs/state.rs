//! The state of a replica, grouped by phase.

use std::collections::{BTreeMap, VecDeque};

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::hash::hash_bytes;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::Status;
use pangea_core::time::Timestamp;
use pangea_core::topology::Group;
use pangea_core::txn::CodeDigest;
use serde::{Deserialize, Serialize};

use super::backpressure::Backpressure;
use super::barrier::Barriers;
use super::failure::Skips;
use super::stop::Stops;
use super::{Host, Inputs, Rules, Settings};
use crate::agreement::{Driver, Term};
use crate::checkpoints::{Checkpoints, turn_of};
use crate::digests::Digests;
use crate::messages::NUMBER_MAX;
use crate::presence::Presence;
use crate::replica::Replica;
use crate::streams::{Bid, Heads, Streams, are_heads, encode_heads, number};
use crate::transfer::Transfer;

/// The unique name of a proposal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposalName {
    /// The replica that proposed.
    pub proposer: NodeId,
    /// A number drawn at random when the proposer started.
    pub incarnation: u64,
    /// The number of the proposal within that incarnation.
    pub nonce: u64,
}

impl ProposalName {
    /// Appends it to `out`. [`ProposalName::decode`] is the inverse.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.put_u16(self.proposer.0);
        out.put_u64(self.incarnation);
        out.put_varint(self.nonce);
    }

    /// Decodes the bytes that [`ProposalName::encode`] wrote; an error names `what`.
    pub(crate) fn decode(from: &mut Reader<'_>, what: &'static str) -> Result<Self, DecodeError> {
        let (proposer, incarnation) = (NodeId(from.u16(what)?), from.u64(what)?);
        Ok(Self { proposer, incarnation, nonce: number(from, what)? })
    }

    /// Whether this proposal was made by the same incarnation of the same replica as `other`, and
    /// not before it.
    pub(crate) fn is_at_or_after(self, other: Self) -> bool {
        (self.proposer, self.incarnation) == (other.proposer, other.incarnation)
            && self.nonce >= other.nonce
    }
}

/// The value that agreement decides: the consistent cut (Minerva §3.4) and changes of the
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut<R> {
    /// The name of the proposal.
    pub name: ProposalName,
    /// The rules under which its epoch is applied.
    pub rules: R,
    /// The log heads. A head lower than in an earlier cut means the head of the earlier cut.
    pub heads: Heads,
    /// Replicas to remove from the configuration.
    pub removed: Vec<NodeId>,
    /// Replicas to readmit.
    pub readmitted: Vec<NodeId>,
    /// The master term of the proposer, if replication is asynchronous (`Host::has_master`): the
    /// epoch contains only the proposer's batches of that term.
    pub master_term: Option<MasterTerm>,
    /// The replica that has the checkpoint turn, if the protocol has turns (`Host::next_turn`).
    pub turn: Option<NodeId>,
}

impl<R> Cut<R> {
    /// Whether a replica of a group of `node_count` could propose it.
    pub(crate) fn is_sound(&self, node_count: usize) -> bool {
        let is_node = |node: &NodeId| node.index() < node_count;
        let changed = || self.removed.iter().chain(&self.readmitted);
        is_node(&self.name.proposer)
            && self.name.nonce <= NUMBER_MAX
            && are_heads(&self.heads, node_count)
            && changed().all(is_node)
            && self.master_term.is_none_or(|master_term| {
                master_term.term.is_sound(node_count) && master_term.first <= NUMBER_MAX
            })
            && changed().count() <= node_count
            && self.turn.iter().all(is_node)
    }
}

/// A master term: the period of one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterTerm {
    /// The agreement term in which it leads.
    pub term: Term,
    /// The number of its first transaction.
    pub first: u64,
}

/// The state as of the last confirmed epoch: it ran, and no replica will discard it.
#[derive(Debug)]
pub(crate) struct Confirmed {
    pub epoch: SnapshotVersion,
    pub heads: Heads,
    pub is_member: Vec<bool>,
}

impl Confirmed {
    /// Returns the epoch and a digest of the rest, in which all replicas agree.
    pub(crate) fn digest(&self) -> (SnapshotVersion, u64) {
        let Self { epoch, heads, is_member } = self;
        let mut bytes = Vec::new();
        encode_heads(heads, &mut bytes);
        bytes.extend(is_member.iter().map(|is_member| u8::from(*is_member)));
        (*epoch, hash_bytes(&bytes))
    }
}

/// Minerva §3.4: cuts.
pub(crate) struct CutState<R: Rules> {
    pub driver: Driver<Cut<R>>,
    /// Decided cuts that are not confirmed, except those that this replica had fixed itself.
    pub waiting: VecDeque<(SnapshotVersion, Cut<R>)>,
    /// Cuts up to this one were decided, but some are unknown to this replica because its peers
    /// have truncated them. Irrelevant once this epoch is applied.
    pub skipped: SnapshotVersion,
    /// An epoch that the protocol can't reach without a peer's checkpoint.
    pub wanted: SnapshotVersion,
    /// The last epoch that this replica could not apply because its code differs from that of the
    /// proposer. Irrelevant once this epoch is applied.
    pub refused: SnapshotVersion,
    /// The code that it was proposed under.
    pub refused_code: CodeDigest,
    /// The epoch of the store.
    pub applied: SnapshotVersion,
    pub confirmed: Confirmed,
    /// The heads of the applied epoch: the paper's `last_committed`.
    pub heads: Heads,
    /// Whether each replica is in the configuration, as of the applied epoch.
    pub is_member: Vec<bool>,
    /// The heads of this replica's last proposal in `term`.
    pub proposed: Heads,
    /// The leadership term of `proposed`.
    pub term: Term,
    /// The last cut that this leader has found in its log and that needs another program.
    pub inherited: SnapshotVersion,
    /// When this coordinator last asked another to take its place, and in which term.
    pub left: Option<(Term, Timestamp)>,
    /// This replica's last proposal.
    pub last_proposal: ProposalName,
    /// The number of this replica's last proposal that was decided or belongs to an earlier term.
    pub nonce_decided: u64,
    /// When the last message of each replica arrived.
    pub heard_at: Vec<Timestamp>,
    /// The latest term that a peer follows, according to its greeting.
    pub follows: Term,
}

impl<R: Rules> CutState<R> {
    /// An upper bound on the number of this replica's proposals in this term that are in flight.
    pub(crate) fn undecided(&self) -> u64 {
        self.last_proposal.nonce - self.nonce_decided
    }

    /// Whether this replica can only continue from a peer's checkpoint, because cuts are missing.
    pub(crate) fn lacks_cuts(&self) -> bool {
        self.skipped > self.applied
    }

    /// Records that cuts up to `upto` which were not returned yet will never be.
    pub(crate) fn skip_to(&mut self, upto: SnapshotVersion) {
        if self.lacks_cuts() {
            // Cuts that waited after the earlier gap are inside this one.
            let earlier = self.skipped;
            self.waiting.retain(|(epoch, _)| *epoch <= earlier);
        }
        self.skipped = upto;
    }

    /// Marks the applied epoch as confirmed.
    pub(crate) fn confirm_applied(&mut self) {
        self.confirmed.epoch = self.applied;
        self.confirmed.heads.clone_from(&self.heads);
        self.confirmed.is_member.clone_from(&self.is_member);
    }

    /// Records that a proposal was decided.
    pub(crate) fn note_decided(&mut self, name: ProposalName) {
        if self.last_proposal.is_at_or_after(name) {
            self.nonce_decided = self.nonce_decided.max(name.nonce);
        }
    }

    /// Enters a term if it is new, and returns whether it is. Earlier proposals may be lost and no
    /// longer count.
    pub(crate) fn enter(&mut self, term: Term) -> bool {
        let is_new = self.term != term;
        if is_new {
            self.term = term;
            self.proposed.clone_from(&self.heads);
            self.nonce_decided = self.last_proposal.nonce;
        }
        is_new
    }
}

/// The epochs of this log relative to those of other logs, if there are any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochPacing {
    /// An epoch that another log has reached: this log follows, with empty cuts if necessary.
    pub wanted: SnapshotVersion,
    /// The last epoch that this log may reach, because another log is behind.
    pub limit: SnapshotVersion,
}

impl Default for EpochPacing {
    /// The value for a log without others.
    fn default() -> Self {
        Self { wanted: SnapshotVersion::ZERO, limit: SnapshotVersion(u64::MAX) }
    }
}

/// Minerva §4: garbage collection.
pub(crate) struct Collection {
    /// The applied epoch of each replica.
    pub applied: Vec<SnapshotVersion>,
    /// The epoch of each replica that survives its restart.
    pub durable: Vec<SnapshotVersion>,
    /// The first record that must be retained, whatever checkpoints contain.
    pub kept_from: Option<LogPosition>,
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub epochs: u64,
    pub epochs_given_up: u64,
    pub checkpoints_failed: u64,
    pub checkpoints_installed: u64,
    pub rejoins: u64,
}

impl<R: Rules> CutState<R> {
    fn new(node_count: usize) -> Self {
        let heads = vec![Bid(0); node_count];
        Self {
            driver: Driver::new(),
            waiting: VecDeque::new(),
            skipped: SnapshotVersion::ZERO,
            wanted: SnapshotVersion::ZERO,
            refused: SnapshotVersion::ZERO,
            refused_code: CodeDigest::default(),
            confirmed: Confirmed {
                epoch: SnapshotVersion::ZERO,
                heads: heads.clone(),
                is_member: vec![true; node_count],
            },
            applied: SnapshotVersion::ZERO,
            heads: heads.clone(),
            is_member: vec![true; node_count],
            proposed: heads,
            term: Term::default(),
            inherited: SnapshotVersion::ZERO,
            left: None,
            last_proposal: ProposalName::default(),
            nonce_decided: 0,
            heard_at: vec![Timestamp::default(); node_count],
            follows: Term::default(),
        }
    }
}

impl<H: Host> Inputs<H> {
    /// A replica in its initial state.
    pub(crate) fn new(
        me: NodeId,
        group: Group,
        settings: Settings<H::Rules>,
        extension: H::Extension,
    ) -> Self {
        let mut replica = Replica::new(me, group);
        let n = replica.topology.node_count();
        replica.bytes_since_checkpoint = turn_of(replica.me, n, settings.checkpoint_bytes);
        Self {
            replica,
            streams: Streams::new(n, settings.ack_everyone),
            presence: Presence::new(n),
            transfer: Transfer::new(settings.chunk_bytes),
            cut: CutState::new(n),
            pace: EpochPacing::default(),
            barriers: Barriers::default(),
            target: None,
            collection: Collection {
                applied: vec![SnapshotVersion::ZERO; n],
                durable: vec![SnapshotVersion::ZERO; n],
                kept_from: None,
            },
            checkpoints: Checkpoints::default(),
            stops: Stops::new(n),
            waits: Backpressure::default(),
            digests: Digests::new(n),
            skips: Skips::default(),
            has_failed: false,
            counters: Counters::default(),
            extension,
            settings,
        }
    }

    /// This replica's batches that are in no applied epoch, with their numbers.
    pub(crate) fn own_unapplied(&self) -> impl Iterator<Item = (Bid, &H::Batch)> {
        let applied = self.cut.heads[self.replica.me.index()];
        let own = self.own_log().slots.range(applied.next()..);
        own.map(|(bid, slot)| (*bid, &*slot.batch))
    }

    /// The nodes in the configuration.
    pub(crate) fn members(&self) -> Vec<NodeId> {
        let is_member = |node: &NodeId| self.cut.is_member[node.index()];
        self.replica.topology.node_ids().filter(is_member).collect()
    }

    /// The status for operators, with the protocol's counters `own`.
    pub(crate) fn status(&self, own: &[(&str, u64)]) -> Status {
        let (c, streams) = (&self.counters, &self.streams.counters);
        let counters = [
            ("epochs", c.epochs),
            ("epochs_early", self.cut.applied.0 - self.cut.confirmed.epoch.0),
            ("epochs_given_up", c.epochs_given_up),
            ("batches_sent", streams.batches_sent),
            ("batch_bytes", streams.batch_bytes),
            ("batches_fetched", streams.batches_fetched),
            ("batch_bytes_held", self.streams.bytes_buffered()),
            ("checkpoints_failed", c.checkpoints_failed),
            ("checkpoints_sent", self.transfer.sent),
            ("checkpoints_installed", c.checkpoints_installed),
            ("rejoins", c.rejoins),
            ("checkpoint_writing", u64::from(self.checkpoints.is_writing())),
            ("replicas_differing", self.digests.differing_nodes().len() as u64),
        ];
        let all = counters.iter().chain(own);
        let mut counters = all.map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.add_progress(&mut counters);
        let rejoin = self.rejoining();
        Status {
            version: self.cut.applied,
            coordinator: self.cut.driver.leader(),
            members: self.members(),
            first_start: self.presence.first_start(&self.replica).filter(|_| rejoin.is_none()),
            rejoin,
            refused: self.refused(),
            is_restarting: false,
            waits_for: self.waits.late.clone(),
            differing: self.digests.differing_nodes(),
            strangers: self.presence.strangers().collect(),
            counters,
        }
    }

    /// Adds the progress that the other replicas reported.
    fn add_progress(&self, counters: &mut BTreeMap<String, u64>) {
        for peer in self.replica.peers() {
            let Collection { applied, durable, .. } = &self.collection;
            let node = self.node(peer).0;
            counters.insert(format!("peer_applied_{node}"), applied[peer.index()].0);
            counters.insert(format!("peer_durable_{node}"), durable[peer.index()].0);
        }
    }

    /// Asserts the invariants that hold between any two steps.
    pub(crate) fn invariants(&self) {
        self.streams.invariants(&self.replica);
        let confirmed = &self.cut.confirmed;
        for (source, log) in self.streams.logs.iter().enumerate() {
            let applied = confirmed.heads[source];
            assert!(log.collected <= applied, "collected batches were applied");
            assert!(self.cut.heads[source] <= log.received, "applied batches were received");
        }
        let has_skipped = self.checkpoints.installed.is_some();
        assert_eq!(self.streams.has_skipped, has_skipped, "only an installed checkpoint skips");
        assert!(
            self.target.is_none() || !self.presence.is_asking(),
            "a target is known from the peers' answers"
        );
        H::check_extension(self);
        let early = H::last_early(self);
        let mut next = early.unwrap_or_default().max(confirmed.epoch);
        for (epoch, _) in &self.cut.waiting {
            if *epoch > self.cut.skipped && next < self.cut.skipped {
                next = self.cut.skipped;
            }
            assert_eq!(*epoch, next.next(), "cuts are in order, and all gaps are known");
            next = *epoch;
        }
    }
}
