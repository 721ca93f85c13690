//! All that a replica remembers, grouped by the phase that it belongs to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::exec::Overlay;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, Ticket, TxnId};
use pangea_core::protocol::{Setup, Status};
use pangea_core::time::Timestamp;
use pangea_core::topology::Topology;
use pangea_core::txn::{Abort, Registry};
use serde::{Deserialize, Serialize};

use super::Minerva;
use super::barrier::Barriers;
use super::batch::{Batch, Bid, Heads, TxnRecord};
use super::commit::Commit;
use super::contention::Contention;
use super::greeting::Greetings;
use super::messages::{NUMBER_MAX, are_heads};
use super::options::{Options, Rules};
use super::rejoin::Rejoin;
use super::resolution::Resolution;
use super::transfer::Transfer;
use crate::agreement::{Agreement, Term};

/// One replica.
pub(super) struct State {
    pub me: NodeId,
    pub topology: Arc<Topology>,
    pub registry: Arc<Registry>,
    pub options: Options,
    pub execution: Execution,
    pub replication: Replication,
    pub cut: CutState,
    pub barriers: Barriers,
    pub greetings: Greetings,
    /// Where this replica's disk was lost, until it has its place again.
    pub rejoin: Option<Rejoin>,
    pub contention: Contention,
    pub collection: Collection,
    pub transfer: Transfer,
    /// The epoch that is being applied: the first of those that wait.
    pub commit: Option<Commit>,
    /// What the log had already decided when the node started, by epoch. Empty soon after.
    pub logged: BTreeMap<SnapshotVersion, Resolution<'static>>,
    pub counters: Counters,
}

/// §3.2: what runs here before it is ordered.
#[derive(Default)]
pub(super) struct Execution {
    /// The paper's `temp_state`.
    pub overlay: Overlay,
    /// Local transactions that are not committed, oldest first, without a gap in their numbers.
    pub in_flight: VecDeque<InFlight>,
    /// The number of the next local transaction.
    pub next_sequence: u64,
    /// The paper's `current_batch`.
    pub current: Vec<TxnRecord>,
    /// About how large the current batch is.
    pub current_bytes: usize,
    /// The epoch that the current batch's runs saw.
    pub current_base: SnapshotVersion,
}

/// A local transaction that is not committed.
pub(super) struct InFlight {
    pub txn: TxnId,
    /// Who waits for it, unless it came from before a restart.
    pub ticket: Option<Ticket>,
    /// What its run returned.
    pub result: Result<Vec<u8>, Abort>,
    /// The uncommitted local transactions whose values it read.
    pub dependencies: Vec<TxnId>,
    /// It can't become valid any more, and its writes are out of the overlay.
    pub is_doomed: bool,
}

/// §3.3: the logs of all replicas.
pub(super) struct Replication {
    /// One log for each replica.
    pub logs: Vec<SourceLog>,
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
#[derive(Default)]
pub(super) struct SourceLog {
    /// The batches that are here.
    pub slots: BTreeMap<Bid, Slot>,
    /// Every batch up to this one was here.
    pub held: Bid,
    /// Every batch up to this one is durable here.
    pub durable: Bid,
    /// Every batch up to this one is gone, as part of every member's state.
    pub collected: Bid,
    /// Some replica has every batch up to this one.
    pub known: Bid,
    /// No transaction in a batch that was ever here has this number or a later one.
    pub next_sequence: u64,
    pub missing: Missing,
}

/// The first batch that is not here.
#[derive(Clone, Copy, Default)]
pub(super) struct Missing {
    pub bid: Bid,
    /// When that was seen first, or when it was last asked for.
    pub since: Timestamp,
    /// How often it was asked for.
    pub asked: u32,
}

/// A batch that is here.
pub(super) struct Slot {
    pub bytes: Bytes,
    pub batch: Arc<Batch>,
    /// Where it is in the log of this node.
    pub position: LogPosition,
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
    /// Whether this proposal was made by the same run of the same replica, and not before `other`.
    pub(super) fn is_at_or_after(self, other: Self) -> bool {
        (self.proposer, self.incarnation) == (other.proposer, other.incarnation)
            && self.nonce >= other.nonce
    }
}

/// What is agreed on: §3.4's consistent cut, and who is in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Which proposal it is.
    pub name: ProposalName,
    /// How its epoch is decided.
    pub rules: Rules,
    /// The log heads. A head below that of an earlier cut means the earlier one's.
    pub heads: Heads,
    /// Replicas to remove from the configuration.
    pub removed: Vec<NodeId>,
    /// Replicas to take back.
    pub readmitted: Vec<NodeId>,
}

impl Cut {
    /// Whether a replica of `node_count` would propose it.
    pub(super) fn is_sound(&self, node_count: usize) -> bool {
        let is_node = |node: &NodeId| node.index() < node_count;
        let changed = || self.removed.iter().chain(&self.readmitted);
        is_node(&self.name.proposer)
            && self.name.nonce <= NUMBER_MAX
            && are_heads(&self.heads, node_count)
            && changed().all(is_node)
            && changed().count() <= node_count
    }
}

/// §3.4: cuts.
pub(super) struct CutState {
    /// None until the restart input came.
    pub agreement: Option<Agreement<Cut>>,
    /// Decided by the only replica of a cluster, and where that is in the log: they hold when it
    /// is durable.
    pub unsynced: VecDeque<(LogPosition, SnapshotVersion, Cut)>,
    /// Decided and not yet applied.
    pub waiting: VecDeque<(SnapshotVersion, Cut)>,
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

impl CutState {
    /// How many proposals of this term of this replica are under way, at most.
    pub(super) fn undecided(&self) -> u64 {
        self.last_proposal.nonce - self.nonce_decided
    }

    /// Whether only a peer's checkpoint leads on from the cuts that are known here.
    pub(super) fn lacks_cuts(&self) -> bool {
        self.skipped > self.applied
    }

    /// Cuts up to `upto` that were not handed out never will be.
    pub(super) fn skip_to(&mut self, upto: SnapshotVersion) {
        if self.lacks_cuts() {
            // What waited behind the earlier gap is within this one.
            let earlier = self.skipped;
            self.waiting.retain(|(epoch, _)| *epoch <= earlier);
        }
        self.skipped = upto;
    }

    /// A proposal was decided.
    pub(super) fn note_decided(&mut self, name: ProposalName) {
        if self.last_proposal.is_at_or_after(name) {
            self.nonce_decided = self.nonce_decided.max(name.nonce);
        }
    }

    /// Begins a new term, if it is one: earlier proposals may be lost, and count no more.
    pub(super) fn enter(&mut self, term: Term) {
        if self.term != term {
            self.term = term;
            self.proposed.clone_from(&self.heads);
            self.nonce_decided = self.last_proposal.nonce;
        }
    }
}

/// §4: garbage collection.
pub(super) struct Collection {
    /// How far each replica is: its applied epoch's heads.
    pub heads: Vec<Heads>,
    /// The applied epoch of each replica.
    pub applied: Vec<SnapshotVersion>,
    /// The epoch of each replica that survives its restart.
    pub durable: Vec<SnapshotVersion>,
    /// Bytes persisted since the last checkpoint was asked for, with those of what a restart would
    /// run again; the most that there is where a checkpoint is due whatever comes.
    pub bytes_since_checkpoint: u64,
    /// The checkpoint being written: its version, and the first record that is needed beside it.
    pub writing: Option<(SnapshotVersion, LogPosition)>,
}

/// What is counted for operators and reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub epochs: u64,
    pub batches_sent: u64,
    /// Of this replica's own batches, each once, before compression.
    pub batch_bytes: u64,
    pub txns_committed: u64,
    pub txns_valid: u64,
    pub txns_stale: u64,
    pub txns_conflicting: u64,
    pub txns_ordered: u64,
    pub txns_aborted: u64,
    pub txns_local: u64,
    pub batches_fetched: u64,
    pub checkpoints_sent: u64,
    pub checkpoints_installed: u64,
    pub high_contention_entered: u64,
    pub graph_edges: u64,
    pub solver_unproven: u64,
    pub reexecution_restarts: u64,
    pub rejoins: u64,
}

/// What a replica counts towards its first checkpoint since it was started, before it has read or
/// written anything. Logs grow alike everywhere, and all replicas would write their checkpoints at
/// once: each has its turn.
fn turn_of(me: NodeId, count: usize, checkpoint_bytes: u64) -> u64 {
    let after = (count - 1).saturating_sub(me.index());
    checkpoint_bytes / count as u64 * after as u64
}

impl State {
    pub(super) fn new(setup: Setup<Minerva>) -> Self {
        let n = setup.topology.node_count();
        let heads = vec![Bid(0); n];
        Self {
            me: setup.me,
            execution: Execution { next_sequence: 1, ..Execution::default() },
            replication: Replication {
                logs: (0..n).map(|_| SourceLog::default()).collect(),
                durable: vec![heads.clone(); n],
                available: heads.clone(),
                proof_sent: Bid(0),
                synced: LogPosition(0),
                is_up: vec![false; n],
                fetch_turn: 0,
            },
            cut: CutState {
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
                is_member: vec![true; n],
                proposed: heads.clone(),
                term: Term::default(),
                last_proposal: ProposalName::default(),
                nonce_decided: 0,
                agreement_record: LogPosition(0),
                heard_at: vec![Timestamp::default(); n],
            },
            barriers: Barriers::default(),
            greetings: Greetings::new(n),
            rejoin: None,
            contention: Contention::default(),
            collection: Collection {
                heads: vec![heads; n],
                applied: vec![SnapshotVersion::ZERO; n],
                durable: vec![SnapshotVersion::ZERO; n],
                bytes_since_checkpoint: turn_of(setup.me, n, setup.options.checkpoint_bytes),
                writing: None,
            },
            transfer: Transfer::default(),
            commit: None,
            logged: BTreeMap::new(),
            counters: Counters::default(),
            topology: setup.topology,
            registry: setup.registry,
            options: setup.options,
        }
    }

    /// This replica's own log.
    pub(super) fn own_log(&self) -> &SourceLog {
        &self.replication.logs[self.me.index()]
    }

    /// The nodes in the configuration.
    pub(super) fn members(&self) -> Vec<NodeId> {
        let is_member = |node: &NodeId| self.cut.is_member[node.index()];
        self.topology.node_ids().filter(is_member).collect()
    }

    pub(super) fn status(&self) -> Status {
        let c = &self.counters;
        let counters = [
            ("epochs", c.epochs),
            ("batches_sent", c.batches_sent),
            ("batch_bytes", c.batch_bytes),
            ("batches_fetched", c.batches_fetched),
            ("txns_committed", c.txns_committed),
            ("txns_valid", c.txns_valid),
            ("txns_stale", c.txns_stale),
            ("txns_conflicting", c.txns_conflicting),
            ("txns_ordered", c.txns_ordered),
            ("txns_aborted", c.txns_aborted),
            ("txns_local", c.txns_local),
            ("txns_in_flight", self.execution.in_flight.len() as u64),
            ("checkpoints_sent", c.checkpoints_sent),
            ("checkpoints_installed", c.checkpoints_installed),
            ("high_contention_entered", c.high_contention_entered),
            ("high_contention", u64::from(self.contention.is_high())),
            ("graph_edges", c.graph_edges),
            ("solver_unproven", c.solver_unproven),
            ("reexecution_restarts", c.reexecution_restarts),
            ("rejoins", c.rejoins),
        ];
        let mut counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
        self.add_progress(&mut counters);
        Status {
            version: self.cut.applied,
            coordinator: self.cut.agreement.as_ref().and_then(Agreement::leader),
            members: self.members(),
            first_start: self.greetings.first_start(self.me),
            rejoin: None,
            counters,
        }
    }

    /// How far the other replicas said that they are.
    fn add_progress(&self, counters: &mut BTreeMap<String, u64>) {
        for peer in self.topology.peers_of(self.me) {
            let Collection { applied, durable, .. } = &self.collection;
            counters.insert(format!("peer_applied_{}", peer.0), applied[peer.index()].0);
            counters.insert(format!("peer_durable_{}", peer.0), durable[peer.index()].0);
        }
    }

    /// Asserts what holds between any two steps.
    pub(super) fn invariants(&self) {
        let own = self.own_log();
        for (source, log) in self.replication.logs.iter().enumerate() {
            assert!(log.durable <= log.held, "a log is durable as far as it is held at most");
            assert!(log.collected <= log.held, "what is collected was held");
            assert!(log.collected <= self.cut.heads[source], "what is collected was applied");
            assert!(self.cut.heads[source] <= log.held, "what is applied was held");
            assert!(
                log.slots.keys().next().is_none_or(|first| *first > log.collected),
                "collected batches are gone"
            );
        }
        let numbers: Vec<u64> =
            self.execution.in_flight.iter().map(|in_flight| in_flight.txn.sequence()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "local transactions in order");
        assert!(numbers.last().is_none_or(|last| *last < self.execution.next_sequence));
        assert!(
            self.replication.proof_sent <= self.own_head(),
            "a proof is of a batch that exists"
        );
        assert!(own.held <= own.known, "what is held is known");
        let mut next = self.cut.applied;
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
