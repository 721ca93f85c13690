//! All that a replica remembers, grouped by the phase that it belongs to.

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

/// §3.3: the logs of all replicas.
pub(crate) struct Replication<B> {
    /// One log for each replica.
    pub logs: Vec<SourceLog<B>>,
    /// What each replica has durably of each log: `durable[replica][source]`.
    pub durable: Vec<Heads>,
    /// The paper's `PoA_heads`.
    pub available: Heads,
    /// The last proof that this replica broadcast for its own log.
    pub proof_sent: Bid,
    /// The log of this node is durable up to here.
    pub synced: LogPosition,
    /// Which peers are connected.
    pub is_up: Vec<bool>,
    /// Turns through the peers that a missing batch is fetched from.
    pub fetch_turn: usize,
}

/// A replica's log as far as it is here.
pub(crate) struct SourceLog<B> {
    /// The batches that are here.
    pub slots: BTreeMap<Bid, Slot<B>>,
    /// Every batch up to this one was here.
    pub held: Bid,
    /// How many bytes these batches had, as far as they came one by one.
    pub held_bytes: u64,
    /// Every batch up to this one is durable here.
    pub durable: Bid,
    /// Every batch up to this one is gone, as part of every member's state.
    pub collected: Bid,
    /// Some replica has every batch up to this one.
    pub known: Bid,
    /// No transaction in a batch that was ever here has this number or a later one.
    pub next_sequence: u64,
    pub missing: Missing,
    /// When a new batch last came from the source itself.
    pub heard_at: Timestamp,
    /// Batches up to this one were known when one was last asked for.
    pub fetched_upto: Bid,
}

/// The first batch that is not here.
#[derive(Clone, Copy, Default)]
pub(crate) struct Missing {
    pub bid: Bid,
    /// When that was seen first, or when it was last asked for.
    pub since: Timestamp,
    /// How often it was asked for.
    pub asked: u32,
}

/// A batch that is here.
pub(crate) struct Slot<B> {
    pub bytes: Bytes,
    pub batch: Arc<B>,
    /// Where it is in the log of this node.
    pub position: LogPosition,
    /// How many bytes its log had here with it, once all before it is here.
    pub end: u64,
}

/// Tells a proposal from every other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposalName {
    /// Who proposed.
    pub proposer: NodeId,
    /// Drawn at random when the proposer started.
    pub incarnation: u64,
    /// Its number among those of the incarnation.
    pub nonce: u64,
}

impl ProposalName {
    /// Appends it to `out`. [`ProposalName::decode`] is the inverse.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.put_u16(self.proposer.0);
        out.put_u64(self.incarnation);
        out.put_varint(self.nonce);
    }

    /// Reads what [`ProposalName::encode`] wrote, as a part of this.
    pub(crate) fn decode(from: &mut Reader<'_>, what: &'static str) -> Result<Self, DecodeError> {
        let (proposer, incarnation) = (NodeId(from.u16(what)?), from.u64(what)?);
        Ok(Self { proposer, incarnation, nonce: number(from, what)? })
    }

    /// Whether this proposal was made by the same run of the same replica, and not before `other`.
    pub(crate) fn is_at_or_after(self, other: Self) -> bool {
        (self.proposer, self.incarnation) == (other.proposer, other.incarnation)
            && self.nonce >= other.nonce
    }
}

/// What is agreed on: §3.4's consistent cut, and who is in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut<R> {
    /// Which proposal it is.
    pub name: ProposalName,
    /// How its epoch is decided.
    pub rules: R,
    /// The log heads. A head below that of an earlier cut means the earlier one's.
    pub heads: Heads,
    /// Replicas to remove from the configuration.
    pub removed: Vec<NodeId>,
    /// Replicas to take back.
    pub readmitted: Vec<NodeId>,
    /// Where replication is asynchronous, that of the proposer: its batches of that time count, and
    /// nothing else.
    pub reign: Option<Reign>,
    /// Whose turn it is to stand still for a checkpoint.
    pub turn: Option<NodeId>,
}

impl<R> Cut<R> {
    /// Whether a replica of `node_count` would propose it.
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

/// §3.4: cuts.
pub(crate) struct CutState<R: Rules> {
    /// None until the restart input came.
    pub agreement: Option<Agreement<Cut<R>>>,
    /// Decided by the only replica of a cluster, and where that is in the log: they hold when it
    /// is durable.
    pub unsynced: VecDeque<(LogPosition, SnapshotVersion, Cut<R>)>,
    /// Decided and not confirmed, and not fixed here before that.
    pub waiting: VecDeque<(SnapshotVersion, Cut<R>)>,
    /// The cuts up to this one were decided, and some of them are not known here: the peers have
    /// forgotten them. Once it is applied, that is of no importance.
    pub skipped: SnapshotVersion,
    /// The epoch that the store is at.
    pub applied: SnapshotVersion,
    /// The last epoch that survives a restart of this node.
    pub durable: SnapshotVersion,
    /// The last epoch whose record is durable here, which may follow on an installed checkpoint.
    pub logged: SnapshotVersion,
    /// The last checkpoint taken from a peer, until one of this node's own holds it.
    pub installed: Option<SnapshotVersion>,
    /// Epochs whose record is not durable yet, and where it is.
    pub epoch_records: VecDeque<(SnapshotVersion, LogPosition)>,
    /// The paper's `last_committed`: the heads of the applied epoch.
    pub heads: Heads,
    /// Who is in the configuration as of the applied epoch.
    pub is_member: Vec<bool>,
    /// The heads of this replica's last proposal in `term`.
    pub proposed: Heads,
    /// The term of leadership that `proposed` is of.
    pub term: Term,
    /// This replica's last proposal.
    pub last_proposal: ProposalName,
    /// The number of this replica's last proposal that was decided, or is of an earlier term.
    pub nonce_decided: u64,
    /// Where the last change of agreement's state is in the log.
    pub agreement_record: LogPosition,
    /// When each replica was last heard of.
    pub heard_at: Vec<Timestamp>,
}

impl<R: Rules> CutState<R> {
    /// How many proposals of this term of this replica are under way, at most.
    pub(crate) fn undecided(&self) -> u64 {
        self.last_proposal.nonce - self.nonce_decided
    }

    /// Whether only a peer's checkpoint leads on from the cuts that are known here.
    pub(crate) fn lacks_cuts(&self) -> bool {
        self.skipped > self.applied
    }

    /// Cuts up to `upto` that were not handed out never will be.
    pub(crate) fn skip_to(&mut self, upto: SnapshotVersion) {
        if self.lacks_cuts() {
            // What waited behind the earlier gap is within this one.
            let earlier = self.skipped;
            self.waiting.retain(|(epoch, _)| *epoch <= earlier);
        }
        self.skipped = upto;
    }

    /// A proposal was decided.
    pub(crate) fn note_decided(&mut self, name: ProposalName) {
        if self.last_proposal.is_at_or_after(name) {
            self.nonce_decided = self.nonce_decided.max(name.nonce);
        }
    }

    /// Begins a new term, if it is one: earlier proposals may be lost, and count no more.
    pub(crate) fn enter(&mut self, term: Term) {
        if self.term != term {
            self.term = term;
            self.proposed.clone_from(&self.heads);
            self.nonce_decided = self.last_proposal.nonce;
        }
    }
}

/// How this log's epochs keep up with those of others, where there are others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Some other log has come to this epoch: this one follows, if with empty cuts.
    pub wanted: SnapshotVersion,
    /// This log does not go beyond this epoch: some other is not so far.
    pub limit: SnapshotVersion,
}

impl Default for Pace {
    /// Of a log without others.
    fn default() -> Self {
        Self { wanted: SnapshotVersion::ZERO, limit: SnapshotVersion(u64::MAX) }
    }
}

/// §4: garbage collection.
pub(crate) struct Collection {
    /// How far each replica is: its applied epoch's heads.
    pub heads: Vec<Heads>,
    /// The applied epoch of each replica.
    pub applied: Vec<SnapshotVersion>,
    /// The epoch of each replica that survives its restart.
    pub durable: Vec<SnapshotVersion>,
    /// Whether each replica has told this, in its present life.
    pub has_told: Vec<bool>,
    /// Bytes persisted since the last checkpoint was asked for, with those of what a restart would
    /// run again; the most that there is where a checkpoint is due whatever comes.
    pub bytes_since_checkpoint: u64,
    /// Records from this one on are kept, whatever checkpoints hold.
    pub kept_from: Option<LogPosition>,
    /// The checkpoint being written.
    pub writing: Option<Writing>,
    /// The last one failed, and it is too early for another.
    pub rests: bool,
}

/// A checkpoint that is being written.
pub(crate) struct Writing {
    pub version: SnapshotVersion,
    /// The first record that is needed beside it.
    pub first_needed: LogPosition,
    /// What was counted towards it.
    pub bytes: u64,
}

/// What is counted for operators and reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub epochs: u64,
    pub epochs_given_up: u64,
    pub batches_sent: u64,
    /// Of this replica's own batches, each once, before compression.
    pub batch_bytes: u64,
    pub batches_fetched: u64,
    pub checkpoints_failed: u64,
    pub checkpoints_sent: u64,
    pub checkpoints_installed: u64,
    pub rejoins: u64,
}

/// What a replica counts towards its first checkpoint since it was started, before it has read or
/// written anything. Logs grow alike everywhere, and all replicas would write their checkpoints at
/// once: each has its turn.
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
    /// A replica that has seen nothing yet.
    pub(crate) fn new(me: NodeId, group: Group, settings: Settings<H::Rules>) -> Self {
        let topology = group.topology.clone();
        let n = topology.node_count();
        let me = group.member(me).expect("a replica is of its group");
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

    /// The batches of this replica that are in no applied epoch, by their places.
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

    /// What an operator would want to know of it, with these counters of the protocol's own.
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

    /// How far the other replicas said that they are.
    fn add_progress(&self, counters: &mut BTreeMap<String, u64>) {
        for peer in self.topology.peers_of(self.me) {
            let Collection { applied, durable, .. } = &self.collection;
            let node = self.node(peer).0;
            counters.insert(format!("peer_applied_{node}"), applied[peer.index()].0);
            counters.insert(format!("peer_durable_{node}"), durable[peer.index()].0);
        }
    }

    /// Asserts what holds between any two steps.
    pub(crate) fn invariants(&self) {
        let own = self.own_log();
        for (source, log) in self.replication.logs.iter().enumerate() {
            assert!(log.durable <= log.held, "a log is durable as far as it is held at most");
            assert!(log.collected <= log.held, "what is collected was held");
            let confirmed = self.mastery.confirmed.heads[source];
            assert!(log.collected <= confirmed, "what is collected was applied");
            assert!(self.cut.heads[source] <= log.held, "what is applied was held");
            assert!(
                log.slots.keys().next().is_none_or(|first| *first > log.collected),
                "collected batches are gone"
            );
        }
        assert!(
            self.replication.proof_sent <= self.own_head(),
            "a proof is of a batch that exists"
        );
        assert!(own.held <= own.known, "what is held is known");
        self.early_invariants();
        let early = self.mastery.early.back().map(|early| early.epoch);
        let mut next = early.unwrap_or_default().max(self.mastery.confirmed.epoch);
        for (epoch, _) in &self.cut.waiting {
            if *epoch > self.cut.skipped && next < self.cut.skipped {
                next = self.cut.skipped;
            }
            assert_eq!(*epoch, next.next(), "cuts are in order, without a gap that is not known");
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
        assert_eq!(left(1, 300), [300], "one alone has nobody to wait for");
        assert_eq!(left(3, 300), [100, 200, 300]);
        assert!(left(3, u64::MAX).iter().all(|&left| left > u64::MAX / 4), "no overflow");
    }
}
