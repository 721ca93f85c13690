//! The state of a replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, Ticket};
use pangea_core::protocol::{Cx, Setup, Status};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{CodeDigest, Program, Registry};

use super::Tiga;
use super::ceiling::Ceiling;
use super::cells::end_of;
use super::clocks::Clocks;
use super::collection::Sizes;
use super::commit::Commit;
use super::coordinator::Coordinator;
use super::delays::Delays;
use super::done::Done;
use super::fast_path::{FastPath, has_fast_path};
use super::fast_replies::OwnReplies;
use super::leading::Leading;
use super::log::{Log, Position, ViewNumber};
use super::log_sync::Incoming;
use super::notices::Noticed;
use super::options::Options;
use super::pace::Pace;
use super::programs::Foreign;
use super::proximity::Proximity;
use super::reads::Fresh;
use super::rejoin::Replaced;
use super::relays::Relays;
use super::shards::{Closing, Shards};
use super::stamp::Stamp;
use super::stop::Stop;
use super::transactions::Transactions;
use super::views::Views;
use super::waits::Waits;
use crate::checkpoints::{Checkpoints, turn_of};
use crate::digests::Digests;
use crate::presence::Presence;
use crate::replica::Replica;
use crate::transfer::Transfer;

/// A replica.
pub(super) struct State {
    pub registry: Arc<Registry>,
    pub options: Options,
    /// All nodes.
    pub cluster: Arc<Topology>,
    /// This node.
    pub node: NodeId,
    /// Whether each node is connected.
    pub is_up: Vec<bool>,
    /// Whether each node was stopping when its connection was lost.
    pub has_left: Vec<bool>,
    /// Whether each node has told that it knows of this one's stop (`stop.rs`).
    pub stop_known_by: Vec<bool>,
    /// The shard of which this node has a copy.
    pub shard: ShardId,
    /// This node among the replicas of its shard.
    pub replica: Replica,
    pub presence: Presence<Tiga>,
    /// The node's log is durable up to this record.
    pub synced: LogPosition,
    pub ceiling: Ceiling,
    /// By how much the clock of the shard is ahead of this node's, in microseconds.
    pub ahead_us: u64,
    pub delays: Delays,
    /// The round trips and loads of all nodes.
    pub proximity: Proximity,
    pub pace: Pace,
    /// What the nodes hear of each other.
    pub relays: Relays,
    /// What is known of this node's clock.
    pub clocks: Clocks,
    /// §3.1, §3.4: the transactions of this replica's clients.
    pub coordinator: Coordinator,
    pub transactions: Transactions,
    pub log: Log,
    /// §3.7: cells that have arrived and are not in the log yet.
    pub incoming: Incoming,
    pub commit: Commit,
    /// The last version that readers see. With several shards it may be a cell of another one.
    pub published: SnapshotVersion,
    /// The same of each node, as it was last told.
    pub published_by: Vec<SnapshotVersion>,
    /// The replicas of each shard that vote.
    pub groups: Vec<Vec<NodeId>>,
    /// Whether this cluster uses the fast path, in some view.
    pub has_fast_path: bool,
    /// §3.4: the order in this view, beside the log.
    pub fast: FastPath,
    /// With several shards: who waits for the end of which cell.
    pub closing: Closing,
    pub own_replies: OwnReplies,
    /// `Some` while this replica is the leader of its view.
    pub leading: Option<Leading>,
    /// The notices of other leaders.
    pub noticed: Noticed,
    /// `Some` if there are several shards.
    pub shards: Option<Shards>,
    /// No stamp above this one was issued by this replica as a leader.
    pub raised: Stamp,
    /// When a transaction last arrived at this replica as the leader, by its clock in microseconds.
    pub raised_at: u64,
    pub views: Views,
    pub waits: Waits,
    /// The last version that a client of this replica was told of before it was published here.
    pub told_version: SnapshotVersion,
    /// Before its restart this replica may have shown cells up to this one.
    pub shown_version: SnapshotVersion,
    /// Reads that wait for it.
    pub waiting_reads: Vec<(Ticket, Program)>,
    pub fresh: Fresh,
    pub stop: Option<Stop>,
    /// The transactions that are over and in no cell of the log.
    pub done: Done,
    pub checkpoints: Checkpoints,
    pub transfer: Transfer<Tiga>,
    pub digests: Digests,
    /// `Some` while this replica does not count, because it lost its disk.
    pub replaced: Option<Replaced>,
    /// The code of this node's procedures.
    pub code: CodeDigest,
    pub foreign: Foreign,
    /// Since when this leader orders nothing more, by its clock in microseconds.
    pub sealed_at: Option<u64>,
    /// Whether this leader is quiet, and whether it has ended, as of the last step (`stop.rs`).
    pub ending: (bool, bool),
    /// Whether a committed cell needs another program.
    pub is_refusing: bool,
    /// The sizes of the published cells.
    pub sizes: Sizes,
    /// The position up to which no view can change the log, by a record of this replica.
    pub settled: Position,
    /// The last position that a durable checkpoint of this replica contains.
    pub saved: Position,
    /// That of the checkpoint which is being written.
    pub saving: Position,
    pub counters: Counters,
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub txns_committed: u64,
    pub txns_fast: u64,
    pub txns_aborted: u64,
    pub views: u64,
    pub checkpoints_installed: u64,
    /// Transactions that came too late for their stamps, to this replica as the leader.
    pub late_arrivals: u64,
    /// Stamps that were too far in the future.
    pub stamps_replaced: u64,
    /// Transactions of this replica that had different stamps in the logs of their shards.
    pub txns_revoked: u64,
}

/// The replicas of each shard that vote.
fn groups_of(cluster: &Topology) -> Vec<Vec<NodeId>> {
    let shards = (0..cluster.partitions.shards()).map(ShardId);
    let voters = |shard: ShardId| {
        let of = cluster.voter_ids().filter(|node| cluster.nodes[node.index()].shard == shard);
        of.collect()
    };
    shards.map(voters).collect()
}

impl State {
    pub(super) fn new(setup: Setup<Tiga>) -> Self {
        let shard = setup.topology.nodes[setup.me.index()].shard;
        let mut replica = Replica::new(setup.me, setup.topology.group(shard));
        let (n, all) = (replica.topology.node_count(), setup.topology.node_count());
        replica.bytes_since_checkpoint = turn_of(replica.me, n, setup.options.checkpoint_bytes);
        Self {
            node: setup.me,
            is_up: vec![false; all],
            has_left: vec![false; all],
            stop_known_by: vec![false; all],
            shard,
            presence: Presence::new(n),
            synced: LogPosition(0),
            ceiling: Ceiling::default(),
            ahead_us: 0,
            delays: Delays::new(all),
            proximity: Proximity::new(all),
            pace: Pace::new(all),
            relays: Relays::new(all),
            clocks: Clocks::new(all),
            coordinator: Coordinator::new(setup.me),
            transactions: Transactions::default(),
            log: Log::default(),
            incoming: Incoming::default(),
            commit: Commit::new(n),
            published: SnapshotVersion::ZERO,
            published_by: vec![SnapshotVersion::ZERO; all],
            groups: groups_of(&setup.topology),
            has_fast_path: has_fast_path(&setup.topology, &setup.options),
            fast: FastPath::new(Span::from_ms(setup.options.window_ms), Stamp::ZERO),
            closing: Closing::new(all),
            own_replies: OwnReplies::new(),
            leading: None,
            noticed: Noticed::default(),
            shards: Shards::of(&setup.topology, setup.me),
            raised: Stamp::ZERO,
            raised_at: 0,
            views: Views::new(all),
            waits: Waits::default(),
            told_version: SnapshotVersion::ZERO,
            shown_version: SnapshotVersion::ZERO,
            waiting_reads: Vec::new(),
            fresh: Fresh::default(),
            stop: None,
            done: Done::new(all),
            checkpoints: Checkpoints::default(),
            transfer: Transfer::new(setup.options.chunk_bytes),
            digests: Digests::new(n),
            replaced: None,
            code: setup.registry.code(),
            foreign: Foreign::new(),
            sealed_at: None,
            ending: (false, false),
            is_refusing: false,
            sizes: Sizes::default(),
            settled: Position(0),
            saved: Position(0),
            saving: Position(0),
            counters: Counters::default(),
            cluster: setup.topology,
            registry: setup.registry,
            options: setup.options,
            replica,
        }
    }

    /// Whether this replica takes part in its view.
    pub(super) fn is_normal(&self) -> bool {
        self.log.view == self.views.view.number && self.log.view > ViewNumber(0)
    }

    /// The clock of the shard on this node: never behind the cells of the log.
    pub(super) fn clock_us(&self, cx: &Cx<'_, Tiga>) -> u64 {
        self.clocks.corrected(cx.now.at) + self.ahead_us
    }

    /// Follows the log if its last cell is ahead of this node's clock. Otherwise a leader whose
    /// clock is behind could not add to the log until its clock had caught up.
    pub(super) fn follow_log(&mut self, cx: &Cx<'_, Tiga>) {
        let end = end_of(self.log.last_version());
        let behind = end.saturating_sub(self.clock_us(cx));
        self.ahead_us += behind;
    }

    pub(super) fn status(&self) -> Status {
        let c = &self.counters;
        let counters = [
            ("txns_committed", c.txns_committed),
            ("txns_fast", c.txns_fast),
            ("txns_aborted", c.txns_aborted),
            ("txns_in_flight", self.coordinator.in_flight.len() as u64),
            ("view", self.views.view.number.0),
            ("views", c.views),
            ("decisions_kept", self.views.decisions_kept()),
            ("log_last", self.log.last().0),
            ("log_committed", self.commit.committed.0),
            ("log_first", self.log.base().0),
            ("log_bytes", self.replica.bytes_since_checkpoint),
            ("checkpoint_version", self.checkpoints.last.0),
            ("checkpoints_sent", self.transfer.sent),
            ("checkpoints_installed", c.checkpoints_installed),
            ("late_arrivals", c.late_arrivals),
            ("stamps_replaced", c.stamps_replaced),
            ("txns_revoked", c.txns_revoked),
            ("headroom_us", self.headroom_us()),
            ("clock_offset_us", self.clocks.worst_offset(self.cluster.node_count())),
            ("clock_corrected_us", self.clocks.shift().unsigned_abs()),
        ];
        let mut counters: BTreeMap<String, u64> =
            counters.map(|(name, value)| (name.to_owned(), value)).into();
        for node in self.cluster.peers_of(self.node) {
            let version = self.published_by[node.index()];
            counters.insert(format!("peer_applied_{}", node.0), version.0);
            if let Some(version) = self.durable_at(node) {
                counters.insert(format!("peer_durable_{}", node.0), version.0);
            }
        }
        let mut status = Status {
            version: self.published,
            members: self.replica.topology.voter_ids().collect(),
            first_start: self.presence.first_start(&self.replica),
            strangers: self.presence.strangers().collect(),
            differing: self.digests.differing_nodes(),
            rejoin: self.rejoining(),
            refused: self.refused(),
            is_restarting: self.published < self.shown_version,
            waits_for: self.waits.late.clone(),
            counters,
            ..Status::default()
        };
        // The replicas of a shard have their own numbering.
        status.renumber(|replica| self.replica.node(replica));
        status.coordinator = self.leader();
        status
    }

    /// The last cell that a replica of this shard has on its disk, if it is one of this log. Others
    /// tell only how far they are committed.
    fn durable_at(&self, node: NodeId) -> Option<SnapshotVersion> {
        let synced = self.commit.synced_of(self.replica.group.member(node)?, self.log.view);
        let is_known = (self.log.base()..=self.log.last()).contains(&synced);
        is_known.then(|| self.log.version_at(synced))
    }

    /// The last published version, and its position in the log.
    pub(super) fn agreed(&self) -> (SnapshotVersion, u64) {
        let position = self.commit.published;
        (self.log.version_at(position), position.0)
    }

    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self) {
        self.log.invariants();
        let Commit { committed, executed, published, .. } = &self.commit;
        assert!(*published <= *committed, "only committed cells are published");
        assert!(*published <= *executed, "only cells that were run are published");
        assert!(self.log.base() <= *published, "only published cells are forgotten");
        assert!(*committed <= self.log.last(), "only cells of the log are committed");
        assert!(*executed <= self.log.last(), "only cells of the log are run");
        let runs_ahead = self.leading.is_some() && self.has_hashes();
        assert!(*executed <= *committed || runs_ahead, "only a leader runs ahead");
        if let Some(leading) = &self.leading {
            assert!(self.is_normal(), "a leader takes part in its view");
            leading.invariants(&self.log);
        }
        if let Some(shards) = &self.shards {
            shards.invariants(*committed);
        }
    }
}
