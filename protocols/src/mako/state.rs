//! The state of a replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::{Setup, Status};
use pangea_core::txn::Registry;

use super::Mako;
use super::closing::{Adopting, Closing, Report};
use super::epochs::Epochs;
use super::execution::Leading;
use super::forwarding::Origin;
use super::log::Log;
use super::options::Options;
use super::outcomes::Outcomes;
use super::reads::Fresh;
use super::rejoin::Replaced;
use super::shards::Shards;
use super::stop::Stop;
use super::streams::Sent;
use super::versions::epoch_of;
use super::waits::Waits;
use super::watermark::Commit;
use crate::checkpoints::{Checkpoints, turn_of};
use crate::digests::Digests;
use crate::presence::Presence;
use crate::replica::Replica;
use crate::transfer::Transfer;

/// What a replica does in its epoch.
#[derive(Debug)]
pub(super) enum Role {
    /// It follows the leader, if it has the leader's log.
    Following,
    /// It is the leader, and closes the log of the epochs before.
    Closing(Closing),
    /// It is the leader, and executes transactions.
    Leading(Box<Leading>),
}

/// A replica.
pub(super) struct State {
    /// This node, and the number of nodes of all shards.
    pub node: NodeId,
    pub node_count: usize,
    pub registry: Arc<Registry>,
    pub options: Options,
    pub replica: Replica,
    pub presence: Presence<Mako>,
    /// The node's log is durable up to this record.
    pub synced: LogPosition,
    pub epochs: Epochs,
    pub role: Role,
    pub log: Log,
    pub commit: Commit,
    /// The log of a new leader, as far as this follower has received it.
    pub adopting: Option<Adopting>,
    /// What each other replica has reported to this leader, since it connected.
    pub reports: Vec<Option<Report>>,
    /// What this leader has sent to each of them.
    pub sent: Vec<Option<Sent>>,
    /// Whether the manager was told that a majority has the log of this leader.
    pub told_closed: bool,
    pub outcomes: Outcomes,
    pub origin: Origin,
    pub fresh: Fresh,
    /// Before its restart this replica may have shown versions up to this one.
    pub shown: SnapshotVersion,
    pub stop: Option<Stop>,
    pub checkpoints: Checkpoints,
    /// The last version that a durable checkpoint of this replica contains.
    pub saved: SnapshotVersion,
    pub transfer: Transfer<Mako>,
    /// `Some` while this replica does not count, because it lost its disk.
    pub replaced: Option<Replaced>,
    pub digests: Digests,
    pub waits: Waits,
    pub counters: Counters,
    /// The part of the state that only several shards need.
    pub shards: Option<Box<Shards>>,
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub txns_committed: u64,
    pub txns_aborted: u64,
    pub txns_rolled_back: u64,
    pub epochs: u64,
    pub checkpoints_installed: u64,
}

impl State {
    pub(super) fn new(setup: Setup<Mako>) -> Self {
        let shard = setup.topology.nodes[setup.me.index()].shard;
        let mut replica = Replica::new(setup.me, setup.topology.group(shard));
        let n = replica.topology.node_count();
        replica.bytes_since_checkpoint = turn_of(replica.me, n, setup.options.checkpoint_bytes);
        Self {
            presence: Presence::new(n),
            synced: LogPosition(0),
            epochs: Epochs::new(n),
            role: Role::Following,
            log: Log::default(),
            commit: Commit::new(n),
            adopting: None,
            reports: vec![None; n],
            sent: vec![None; n],
            told_closed: false,
            outcomes: Outcomes::default(),
            origin: Origin::new(),
            fresh: Fresh::default(),
            shown: SnapshotVersion::ZERO,
            stop: None,
            checkpoints: Checkpoints::default(),
            saved: SnapshotVersion::ZERO,
            transfer: Transfer::new(setup.options.chunk_bytes),
            replaced: None,
            digests: Digests::new(n),
            waits: Waits::default(),
            counters: Counters::default(),
            shards: Shards::of(&setup.topology, setup.me, &setup.options).map(Box::new),
            node: setup.me,
            node_count: setup.topology.node_count(),
            registry: setup.registry,
            options: setup.options,
            replica,
        }
    }

    /// Whether this replica has restarted, and may have shown later versions than those that are
    /// published now.
    pub(super) fn is_restarting(&self) -> bool {
        self.commit.published < self.shown
    }

    /// The number of transactions that this leader has queued or executed, and not published.
    fn txns_unsettled(&self) -> usize {
        match &self.role {
            Role::Leading(leading) => leading.taken.len(),
            Role::Following | Role::Closing(_) => 0,
        }
    }

    pub(super) fn status(&self) -> Status {
        let c = &self.counters;
        let counters = [
            ("txns_committed", c.txns_committed),
            ("txns_aborted", c.txns_aborted),
            ("txns_rolled_back", c.txns_rolled_back),
            ("txns_in_flight", self.origin.in_flight.len() as u64),
            ("epoch", self.epoch().0),
            ("epochs", c.epochs),
            ("log_last", self.log.last().0),
            ("log_committed", self.commit.committed.0),
            ("log_first", self.log.base().0),
            ("log_bytes", self.replica.bytes_since_checkpoint),
            ("txns_unsettled", self.txns_unsettled() as u64),
            ("unsettled_bytes", self.unsettled_bytes()),
            ("outcomes", self.outcomes.len() as u64),
            ("checkpoint_version", self.checkpoints.last.0),
            ("checkpoints_sent", self.transfer.sent),
            ("checkpoints_installed", c.checkpoints_installed),
        ];
        let mut counters: BTreeMap<String, u64> =
            counters.map(|(name, value)| (name.to_owned(), value)).into();
        for peer in self.replica.peers() {
            let version = self.epochs.told[peer.index()].published;
            counters.insert(format!("peer_applied_{}", self.replica.node(peer).0), version.0);
            // Followers tell the leader alone.
            if let Some(version) = self.commit.acked[peer.index()] {
                counters.insert(format!("peer_durable_{}", self.replica.node(peer).0), version.0);
            }
        }
        if let Some(shards) = &self.shards {
            shards.status(&self.role, &mut counters);
        }
        let exhausted = || "the numbers of epochs are used up; restore the data into a new cluster";
        let mut status = Status {
            version: self.commit.published,
            members: self.replica.topology.voter_ids().collect(),
            first_start: self.presence.first_start(&self.replica),
            strangers: self.presence.strangers().collect(),
            rejoin: self.rejoining(),
            refused: self.are_epochs_exhausted().then(|| exhausted().to_owned()),
            is_restarting: self.is_restarting(),
            differing: self.digests.differing_nodes(),
            waits_for: self.waits.late.clone(),
            counters,
            ..Status::default()
        };
        status.coordinator = self.leader();
        // The replicas of a shard have their own numbering.
        status.renumber(|replica| self.replica.node(replica));
        status
    }

    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self) {
        self.log.invariants();
        let Commit { committed, executed, published, floor, .. } = &self.commit;
        assert!(self.shards.is_some() || published == floor, "the log has what is published");
        assert!(*floor <= *committed, "only committed versions are published");
        assert!(*published <= *executed, "only versions in the store are published");
        assert!(*committed <= self.log.last(), "only versions of the log are committed");
        assert!(self.log.contains(*floor), "what is published is in the log");
        assert!(self.log.epoch <= self.epochs.current.number, "a replica follows its log's epoch");
        if self.shards.is_none() {
            let first = self.log.epoch.max(epoch_of(self.log.base()));
            assert!(epoch_of(self.log.last()) <= first, "versions are of the epochs of leaders");
        }
        assert!(self.epochs.begun <= self.epochs.current.number, "an epoch begins before");
        if let Some(shards) = &self.shards {
            shards.invariants(self);
        }
        match &self.role {
            Role::Following => {
                assert_eq!(executed, published, "a follower executes what is committed");
            }
            Role::Closing(_) => {
                assert!(self.is_leader(), "a leader closes the log");
                assert_eq!(executed, published, "nothing is executed before the log is closed");
            }
            Role::Leading(leading) => {
                assert!(self.is_leader() && self.has_log_of_epoch(), "it leads its own epoch");
                assert_eq!(self.epochs.begun, self.log.epoch, "the log before is closed");
                leading.over.invariants();
                assert_eq!(*executed, leading.last, "all that was executed is in an entry");
                assert!(leading.last >= self.log.last(), "the batch follows the log");
                let is_taken = |txn| leading.taken.contains(txn);
                let mut queue = leading.queue.iter().map(|request| &request.txn);
                assert!(queue.all(is_taken), "what is in the queue is taken");
            }
        }
        let sent = self.sent.iter().flatten();
        for sent in sent.filter(|_| self.is_sending()) {
            assert!(sent.upto <= self.log.last(), "entries of the log are sent");
        }
    }
}
