//! The state of a replica, grouped by phase.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::Status;
use pangea_core::time::Timestamp;
use pangea_core::topology::Group;
use serde::{Deserialize, Serialize};

use super::barrier::Barriers;
use super::early::{Mastery, Reign};
use super::greeting::Greetings;
use super::messages::{NUMBER_MAX, are_heads};
use super::transfer::Transfer;
use super::turns::Turns;
use super::waits::Waits;
use super::{Bid, Heads, Host, Inputs, Rules, Settings, number};
use crate::agreement::{Agreement, Term};

/// Minerva §3.3: the logs of all replicas.
pub(crate) struct Replication<B> {
    /// One log for each replica.
    pub logs: Vec<SourceLog<B>>,
    /// The head of each log that each replica has persisted: `durable[replica][source]`.
    pub durable: Vec<Heads>,
    /// The available head of each log: the paper's `PoA_heads`.
    pub available: Heads,
    /// The head in the last proof that this replica broadcast for its own log.
    pub proof_sent: Bid,
    /// The position up to which this node's log is durable.
    pub synced: LogPosition,
    /// Whether each peer is connected.
    pub is_up: Vec<bool>,
    /// A counter that selects, round robin, the peer from which a missing batch is fetched.
    pub fetch_turn: usize,
}

/// The part of a replica's log that is on this node.
pub(crate) struct SourceLog<B> {
    /// The batches on this node.
    pub slots: BTreeMap<Bid, Slot<B>>,
    /// The last batch received without gaps; collected batches count.
    pub held: Bid,
    /// The total size of these batches in bytes; those skipped by a checkpoint do not count.
    pub held_bytes: u64,
    /// The last batch that is durable on this node, without gaps.
    pub durable: Bid,
    /// The last batch that was dropped because every member has applied it.
    pub collected: Bid,
    /// The last batch that some replica is known to have.
    pub known: Bid,
    /// All transactions in batches that were ever on this node have lower numbers than this.
    pub next_sequence: u64,
    pub missing: Missing,
    /// When the last new batch arrived from the source itself.
    pub heard_at: Timestamp,
    /// The value of `known` when a batch was last fetched.
    pub fetched_upto: Bid,
}

/// The first missing batch.
#[derive(Clone, Copy, Default)]
pub(crate) struct Missing {
    pub bid: Bid,
    /// When it was first found missing, or was last requested.
    pub since: Timestamp,
    /// How often it was requested.
    pub asked: u32,
}

/// A batch on this node.
pub(crate) struct Slot<B> {
    pub bytes: Bytes,
    pub batch: Arc<B>,
    /// Its position in this node's log.
    pub position: LogPosition,
    /// The total bytes of its log up to and including this batch; valid once all earlier batches
    /// are here.
    pub end: u64,
}

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
    /// The master term of the proposer, if replication is asynchronous: the epoch contains only the
    /// proposer's batches of that term.
    pub reign: Option<Reign>,
    /// The replica that has the checkpoint turn.
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
            && self
                .reign
                .is_none_or(|reign| reign.term.is_sound(node_count) && reign.first <= NUMBER_MAX)
            && changed().count() <= node_count
            && self.turn.iter().all(is_node)
    }
}

/// Minerva §3.4: cuts.
pub(crate) struct CutState<R: Rules> {
    /// `None` until the restart input.
    pub agreement: Option<Agreement<Cut<R>>>,
    /// Cuts decided by the only replica of a cluster, with their log positions. They take effect
    /// once those are durable.
    pub unsynced: VecDeque<(LogPosition, SnapshotVersion, Cut<R>)>,
    /// Decided cuts that are not confirmed, except those that this replica had fixed itself.
    pub waiting: VecDeque<(SnapshotVersion, Cut<R>)>,
    /// Cuts up to this one were decided, but some are unknown to this replica because its peers
    /// have truncated them. Irrelevant once this epoch is applied.
    pub skipped: SnapshotVersion,
    /// The epoch of the store.
    pub applied: SnapshotVersion,
    /// The last epoch that survives a restart of this node.
    pub durable: SnapshotVersion,
    /// The last epoch whose record is durable on this node. It may build on an installed
    /// checkpoint.
    pub logged: SnapshotVersion,
    /// The last checkpoint installed from a peer, until a local checkpoint contains it.
    pub installed: Option<SnapshotVersion>,
    /// Epochs whose record is not durable yet, and the position of that record.
    pub epoch_records: VecDeque<(SnapshotVersion, LogPosition)>,
    /// The heads of the applied epoch: the paper's `last_committed`.
    pub heads: Heads,
    /// Whether each replica is in the configuration, as of the applied epoch.
    pub is_member: Vec<bool>,
    /// The heads of this replica's last proposal in `term`.
    pub proposed: Heads,
    /// The leadership term of `proposed`.
    pub term: Term,
    /// This replica's last proposal.
    pub last_proposal: ProposalName,
    /// The number of this replica's last proposal that was decided or belongs to an earlier term.
    pub nonce_decided: u64,
    /// The position of the last agreement record in the log.
    pub agreement_record: LogPosition,
    /// When the last message of each replica arrived.
    pub heard_at: Vec<Timestamp>,
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

    /// Records that a proposal was decided.
    pub(crate) fn note_decided(&mut self, name: ProposalName) {
        if self.last_proposal.is_at_or_after(name) {
            self.nonce_decided = self.nonce_decided.max(name.nonce);
        }
    }

    /// Enters a term if it is new. Earlier proposals may be lost and no longer count.
    pub(crate) fn enter(&mut self, term: Term) {
        if self.term != term {
            self.term = term;
            self.proposed.clone_from(&self.heads);
            self.nonce_decided = self.last_proposal.nonce;
        }
    }
}

/// The epochs of this log relative to those of other logs, if there are any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// An epoch that another log has reached: this log follows, with empty cuts if necessary.
    pub wanted: SnapshotVersion,
    /// The last epoch that this log may reach, because another log is behind.
    pub limit: SnapshotVersion,
}

impl Default for Pace {
    /// The value for a log without others.
    fn default() -> Self {
        Self { wanted: SnapshotVersion::ZERO, limit: SnapshotVersion(u64::MAX) }
    }
}

/// Minerva §4: garbage collection.
pub(crate) struct Collection {
    /// The log heads of each replica's applied epoch.
    pub heads: Vec<Heads>,
    /// The applied epoch of each replica.
    pub applied: Vec<SnapshotVersion>,
    /// The epoch of each replica that survives its restart.
    pub durable: Vec<SnapshotVersion>,
    /// Whether each replica has reported its progress under its present log identity.
    pub has_told: Vec<bool>,
    /// Bytes persisted since the last checkpoint was requested, including those that a restart
    /// would replay. The maximum value makes a checkpoint due unconditionally.
    pub bytes_since_checkpoint: u64,
    /// The first record that must be retained, whatever checkpoints contain.
    pub kept_from: Option<LogPosition>,
    /// The checkpoint that is being written.
    pub writing: Option<Writing>,
    /// Whether the last checkpoint failed so recently that it is too early for another.
    pub rests: bool,
}

/// A checkpoint that is being written.
pub(crate) struct Writing {
    pub version: SnapshotVersion,
    /// The first log record that is needed in addition to it.
    pub first_needed: LogPosition,
    /// The bytes that had been counted towards it.
    pub bytes: u64,
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub epochs: u64,
    pub epochs_given_up: u64,
    pub batches_sent: u64,
    /// The bytes of this replica's own batches, each counted once, before compression.
    pub batch_bytes: u64,
    pub batches_fetched: u64,
    pub checkpoints_failed: u64,
    pub checkpoints_sent: u64,
    pub checkpoints_installed: u64,
    pub rejoins: u64,
}

/// The initial byte count towards the first checkpoint after a start. All logs grow at the same
/// rate, so without an offset all replicas would write their checkpoints at the same time. The
/// offset staggers them.
fn turn_of(me: NodeId, count: usize, checkpoint_bytes: u64) -> u64 {
    let after = (count - 1).saturating_sub(me.index());
    checkpoint_bytes / count as u64 * after as u64
}

impl<B> Default for SourceLog<B> {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            held: Bid(0),
            held_bytes: 0,
            durable: Bid(0),
            collected: Bid(0),
            known: Bid(0),
            next_sequence: 0,
            missing: Missing::default(),
            heard_at: Timestamp::default(),
            fetched_upto: Bid(0),
        }
    }
}

impl<B> Replication<B> {
    fn new(node_count: usize) -> Self {
        let heads = vec![Bid(0); node_count];
        Self {
            logs: (0..node_count).map(|_| SourceLog::default()).collect(),
            durable: vec![heads.clone(); node_count],
            available: heads,
            proof_sent: Bid(0),
            synced: LogPosition(0),
            is_up: vec![false; node_count],
            fetch_turn: 0,
        }
    }
}

impl<R: Rules> CutState<R> {
    fn new(node_count: usize) -> Self {
        let heads = vec![Bid(0); node_count];
        Self {
            agreement: None,
            unsynced: VecDeque::new(),
            waiting: VecDeque::new(),
            skipped: SnapshotVersion::ZERO,
            logged: SnapshotVersion::ZERO,
            applied: SnapshotVersion::ZERO,
            durable: SnapshotVersion::ZERO,
            installed: None,
            epoch_records: VecDeque::new(),
            heads: heads.clone(),
            is_member: vec![true; node_count],
            proposed: heads,
            term: Term::default(),
            last_proposal: ProposalName::default(),
            nonce_decided: 0,
            agreement_record: LogPosition(0),
            heard_at: vec![Timestamp::default(); node_count],
        }
    }
}

impl<H: Host> Inputs<H> {
    /// A replica in its initial state.
    pub(crate) fn new(me: NodeId, group: Group, settings: Settings<H::Rules>) -> Self {
        let topology = group.topology.clone();
        let n = topology.node_count();
        let me = group.member(me).expect("a replica is a member of its group");
        Self {
            me,
            group,
            next_sequence: 1,
            replication: Replication::new(n),
            cut: CutState::new(n),
            pace: Pace::default(),
            mastery: Mastery::new(n),
            barriers: Barriers::default(),
            greetings: Greetings::new(n),
            rejoin: None,
            collection: Collection {
                heads: vec![vec![Bid(0); n]; n],
                applied: vec![SnapshotVersion::ZERO; n],
                durable: vec![SnapshotVersion::ZERO; n],
                has_told: vec![false; n],
                bytes_since_checkpoint: turn_of(me, n, settings.checkpoint_bytes),
                kept_from: None,
                writing: None,
                rests: false,
            },
            turns: Turns::new(n),
            transfer: Transfer::default(),
            waits: Waits::default(),
            counters: Counters::default(),
            topology,
            settings,
        }
    }

    /// This replica's own log.
    pub(crate) fn own_log(&self) -> &SourceLog<H::Batch> {
        &self.replication.logs[self.me.index()]
    }

    /// This replica's batches that are in no applied epoch, with their numbers.
    pub(crate) fn own_unapplied(&self) -> impl Iterator<Item = (Bid, &H::Batch)> {
        let applied = self.cut.heads[self.me.index()];
        let own = self.own_log().slots.range(applied.next()..);
        own.map(|(bid, slot)| (*bid, &*slot.batch))
    }

    /// The nodes in the configuration.
    pub(crate) fn members(&self) -> Vec<NodeId> {
        let is_member = |node: &NodeId| self.cut.is_member[node.index()];
        self.topology.node_ids().filter(is_member).collect()
    }

    /// The status for operators, with the protocol's counters `own`.
    pub(crate) fn status(&self, own: &[(&str, u64)]) -> Status {
        let c = &self.counters;
        let counters = [
            ("epochs", c.epochs),
            ("epochs_early", self.cut.applied.0 - self.mastery.confirmed.epoch.0),
            ("epochs_given_up", c.epochs_given_up),
            ("batches_sent", c.batches_sent),
            ("batch_bytes", c.batch_bytes),
            ("batches_fetched", c.batches_fetched),
            ("batch_bytes_held", self.batch_bytes_held()),
            ("checkpoints_failed", c.checkpoints_failed),
            ("checkpoints_sent", c.checkpoints_sent),
            ("checkpoints_installed", c.checkpoints_installed),
            ("rejoins", c.rejoins),
            ("checkpoint_writing", u64::from(self.collection.writing.is_some())),
        ];
        let all = counters.iter().chain(own);
        let mut counters = all.map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.add_progress(&mut counters);
        let rejoin = self.rejoining();
        Status {
            version: self.cut.applied,
            coordinator: self.cut.agreement.as_ref().and_then(Agreement::leader),
            members: self.members(),
            first_start: self.greetings.first_start(self.me).filter(|_| rejoin.is_none()),
            rejoin,
            waits_for: self.waits.late.clone(),
            counters,
        }
    }

    /// Adds the progress that the other replicas reported.
    fn add_progress(&self, counters: &mut BTreeMap<String, u64>) {
        for peer in self.topology.peers_of(self.me) {
            let Collection { applied, durable, .. } = &self.collection;
            let node = self.node(peer).0;
            counters.insert(format!("peer_applied_{node}"), applied[peer.index()].0);
            counters.insert(format!("peer_durable_{node}"), durable[peer.index()].0);
        }
    }

    /// Asserts the invariants that hold between any two steps.
    pub(crate) fn invariants(&self) {
        let own = self.own_log();
        for (source, log) in self.replication.logs.iter().enumerate() {
            assert!(log.durable <= log.held, "durable batches are held");
            assert!(log.collected <= log.held, "collected batches were held");
            let confirmed = self.mastery.confirmed.heads[source];
            assert!(log.collected <= confirmed, "collected batches were applied");
            assert!(self.cut.heads[source] <= log.held, "applied batches are held");
            assert!(
                log.slots.keys().next().is_none_or(|first| *first > log.collected),
                "collected batches are removed"
            );
        }
        assert!(self.replication.proof_sent <= self.own_head(), "proven batches exist");
        assert!(own.held <= own.known, "held batches are known");
        self.early_invariants();
        let early = self.mastery.early.back().map(|early| early.epoch);
        let mut next = early.unwrap_or_default().max(self.mastery.confirmed.epoch);
        for (epoch, _) in &self.cut.waiting {
            if *epoch > self.cut.skipped && next < self.cut.skipped {
                next = self.cut.skipped;
            }
            assert_eq!(*epoch, next.next(), "cuts are in order, and all gaps are known");
            next = *epoch;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_take_their_first_checkpoints_one_after_the_other() {
        let left = |count: usize, bytes| -> Vec<u64> {
            let nodes = (0..count as u16).map(NodeId);
            nodes.map(|node| bytes - turn_of(node, count, bytes)).collect()
        };
        assert_eq!(left(1, 300), [300], "a single node waits for no other");
        assert_eq!(left(3, 300), [100, 200, 300]);
        assert!(
            left(3, u64::MAX).iter().all(|&left| left > u64::MAX / 4),
            "the sum does not overflow"
        );
    }
}
