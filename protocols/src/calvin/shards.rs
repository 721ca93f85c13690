//! Partitioned tables (§3): each region has a copy of each shard, on separate nodes, and the nodes
//! of a region run the serial order together.
//!
//! The replicas of a shard are a group with a separate input log ([`crate::inputs`]). The group's
//! n-th cut contains the requests that its sequencers put into epoch n. Epochs are common to all
//! groups. A group without new requests follows the others with an empty cut, and none gets far
//! ahead.
//!
//! ```text
//!             group 0                 group 1
//!   region A  node 0 == Slice ======> node 1       a region's nodes, on local links:
//!             node 0 <====== Slice == node 1         what of an epoch concerns the other
//!             node 0 = RemoteResults> node 1         rows and outcomes, as it runs
//!                ||                      ||
//!          batches and cuts       batches and cuts   over the wide area, within each group
//!                ||                      ||
//!   region B  node 2 <=============== node 3
//! ```
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | slicing | §3.1 | `execution.rs`, `slice.rs` | Slice | the requests of an epoch that each shard participates in |
//! | delivery | §3.1, §3.2 | `delivery.rs`, `chunks.rs` | Subscribe, Unsubscribe, Slice, SliceChunk, RemoteResults, Resubscribe, ShardProgress, Truncated, GroupProgress | the messages of the other shards of the region |
//! | execution | §3.2 | `execution.rs`, `results.rs` | RemoteResults | every outcome |
//! | upgrades | | `upgrade.rs` | Sealed | the program that runs an epoch, and the last epoch before a stop |
//! | confirmation | §3.1.1, asynchronous | `confirmation.rs` | SlicesDecided | an outcome is final |
//! | back-pressure | | `backpressure.rs` | ShardProgress | the node that is behind, so that this one waits |
//! | lookup | §3.2.1 | `lookup.rs` | LookupRequest, LookupReply | the footprint of a transaction on other shards |
//! | recovery | §5 | `recovery.rs` | | the epochs that a shard has run, and their remote inputs |
//!
//! # Delivery between the nodes of a region
//!
//! A node subscribes to one replica of each other shard, from after the last epoch that it has. It
//! subscribes again with each connection, unless it has switched to another replica in the
//! meantime. Sent messages are retained until all replicas of the receiver's shard have persisted
//! them, so a restart of either end loses nothing. The record of an epoch in the log contains the
//! messages that the node received for the epoch, and those that it sent and may have to send
//! again.
//!
//! All replicas of a shard send the same messages. While the replica in its own region is
//! unreachable, a node subscribes to one of another region, so that a lost node stops no other (the
//! paper's §8 leaves that to the future). It does the same while the replica in its region is far
//! behind the others. A node that needs messages which no replica retains installs a checkpoint of
//! its group.
//!
//! # Asynchronous replication
//!
//! Each group has a separate master. The master sends slices of its fixed cuts once they are on its
//! disk, and later announces that they are decided. A node that has the slices of all groups for an
//! epoch runs it, decided or not. The epoch is **confirmed** when the node's own cut and all those
//! slices are decided. Only confirmed epochs are in the log, in checkpoints and in progress
//! reports.
//!
//! If another cut of a group is decided than the one that was sent, that group sends its slices
//! again. Nodes that have run epochs on the void slices roll back to the version before them and
//! run these epochs again. The rows and outcomes that they had sent are void, too. Readers see only
//! confirmed epochs. Nodes do not all roll back at once, and the rows of one version on several
//! nodes must be consistent. All messages between shards for an epoch contain its lineage
//! (`slice.rs`). A receiver retains them until the epoch is confirmed, and uses those of the
//! lineage that it runs. Therefore void messages need not be revoked.
//!
//! # Where this differs from the paper, and why
//!
//! - A node runs at most sixteen epochs at a time ([`EPOCHS_MAX`]). A transaction that waits for
//!   rows of another shard delays those that need its locks, and in the end those of much later
//!   epochs.
//! - The footprint of a transaction is known before it is ordered, by its declaration or a
//!   reconnaissance. A transaction that leaves it is sequenced again, as in the paper. It can't run
//!   again at once, because the next rows that it needs may be on a shard that has proceeded.
//! - Messages between the shards of a region are retained and sent again, so that the restart of a
//!   node loses none.

mod backpressure;
pub(super) mod chunks;
mod confirmation;
mod delivery;
mod execution;
mod lookup;
mod recovery;
pub(super) mod remote_results;
mod results;
mod settled;
pub(super) mod slice;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pangea_core::exec::ordered::{ShardOutcome, Sharded};
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::partition::Partitions;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;
use pangea_core::topology::Topology;

use super::scheduler::RequestOrigin;
use super::{Calvin, Cut};
use crate::calvin::checkpoint_turns::CAUGHT_UP;
use crate::inputs::OtherLogs;
use crate::streams::Heads;
use chunks::SliceChunks;
use lookup::Lookups;
use remote_results::{RemoteResult, RemoteResults};
use results::LocalRequest;
use settled::Settled;
use slice::{Lineage, Slice};

/// The maximum number of epochs that a group may be ahead of another: some seconds with epochs of
/// 10 ms.
const AHEAD_MAX: u64 = 256;

/// The maximum number of epochs that may have transactions waiting for rows of other shards. An
/// epoch ends with its last transaction, and with many nodes one is always late. Four were enough
/// for sixteen nodes, but execution was stopped two thirds of the time with thirty-two.
const EPOCHS_MAX: u64 = 16;

const _: () = assert!(EPOCHS_MAX < CAUGHT_UP as u64, "running epochs do not count as lag");

/// No further epoch is begun while this number of transactions has not ended, because requesting
/// all locks of an epoch is one step.
const PENDING_MAX: usize = 16_384;

/// The state of a node as one of several shards.
pub(super) struct Shards {
    pub own_shard: ShardId,
    pub topology: Arc<Topology>,
    pub partitions: Arc<Partitions>,
    /// The streams to and from the other shards.
    pub streams: BTreeMap<ShardId, ShardStream>,
    /// The last epoch of the group that was cut into slices.
    pub sliced: SnapshotVersion,
    /// The heads of the group's logs after these epochs.
    pub sliced_heads: Heads,
    /// The last cut of the group that is decided, as announced to the other shards.
    pub decided: SnapshotVersion,
    /// The group's unconfirmed epochs, with their slices for this shard.
    pub own: BTreeMap<SnapshotVersion, OwnEpoch>,
    /// The last epoch that was passed to the executor.
    pub scheduled_upto: SnapshotVersion,
    pub sharded: Sharded,
    /// Whether execution has yielded and continues with the next `Resume`, so that inputs that have
    /// arrived in the meantime are handled first.
    pub has_yielded: bool,
    /// The rows and outcomes received from other shards for unconfirmed epochs, of any lineage.
    pub received: BTreeMap<SnapshotVersion, BTreeMap<Lineage, Received>>,
    /// The local requests in the group's epochs, until their clients are answered.
    pub local_requests: BTreeMap<TxnId, LocalRequest>,
    /// The outcomes of some of them.
    pub results: BTreeMap<TxnId, ShardOutcome>,
    pub lookups: Lookups,
    /// The positions of epoch records in the log.
    pub records: BTreeMap<SnapshotVersion, LogPosition>,
    /// The number of consecutive epoch timers at which this group was behind.
    pub behind_for: u64,
    /// The coordinator and the epoch in the last `GroupProgress` message; `None` after a reconnect.
    pub group_progress_sent: Option<(NodeId, SnapshotVersion)>,
    /// The epoch that all other groups have reached, as reported by replicas of this group.
    pub reached_by_groups: SnapshotVersion,
    /// The last epoch with which this node told the other shards that its group begins no more.
    pub sealed_sent: Option<SnapshotVersion>,
    /// The connected nodes of other shards.
    pub up: BTreeSet<NodeId>,
    /// The approximate maximum size of a message to another shard, in bytes.
    pub message_bytes: usize,
}

/// The rows and outcomes that other shards have sent for an epoch.
pub(super) type Received = BTreeMap<(ShardId, TxnId), RemoteResult>;

/// An epoch of this node's group.
pub(super) struct OwnEpoch {
    pub cut: Cut,
    pub slice: Slice,
    /// The local requests in it.
    pub local_requests: Vec<TxnId>,
}

/// The streams between this node and one other shard.
///
/// ```text
///   inbound, epochs of one of the shard's replicas:
///       confirmed        decided              upto            upto + 1
///     ----|----------------|------------------|-----------------|------
///     dropped   slices of decided cuts   slices of early cuts   chunks
///
///   outbound, epochs for the subscribed replicas of the shard:
///       dropped                                 sliced
///     ----|-----------------------------------------|----
///     all replicas have persisted them    slices and results, retained
/// ```
pub(super) struct ShardStream {
    /// The replicas of the shard: first that of this region, then the others by distance.
    pub replicas: Vec<NodeId>,
    /// The same replicas, by their numbers in their group.
    pub group: Vec<NodeId>,
    pub inbound: Inbound,
    pub outbound: Outbound,
    pub masters: Masters,
    pub reports: Reports,
}

/// The messages from a shard, of one of its replicas.
#[derive(Default)]
pub(super) struct Inbound {
    /// The replica that this node is subscribed to.
    pub source: NodeId,
    /// When the connection to `source` was lost, or this node started.
    pub away_since: Timestamp,
    /// The received slices of unconfirmed epochs.
    pub slices: BTreeMap<SnapshotVersion, Slice>,
    /// The last epoch through which all slices have been received without gaps.
    pub upto: SnapshotVersion,
    /// The last epoch through which all received slices are of decided cuts; at most `upto`.
    pub decided: SnapshotVersion,
    /// The received chunks of the slice after `upto`.
    pub chunks: SliceChunks,
    /// For each replica, the last epoch that it has reported as truncated.
    pub truncated_at: BTreeMap<NodeId, SnapshotVersion>,
    /// Epochs up to this one can no longer be fetched in full from any replica.
    pub truncated: SnapshotVersion,
    /// Whether this node has already subscribed again because of a gap. Reset by the next slice and
    /// with each progress timer.
    pub has_resubscribed: bool,
}

/// The messages to a shard, for the replicas of it that are subscribed to this node.
#[derive(Default)]
pub(super) struct Outbound {
    pub subscribers: BTreeSet<NodeId>,
    /// Replicas that have to subscribe again after a `More`, and the number of messages of each
    /// epoch that they were sent.
    pub paused: BTreeMap<NodeId, BTreeMap<SnapshotVersion, Sent>>,
    /// The retained slices, by epoch. All are after `dropped`.
    pub slices: BTreeMap<SnapshotVersion, Slice>,
    /// The retained rows and outcomes, by epoch. All are after `dropped`.
    pub results: BTreeMap<SnapshotVersion, Vec<RemoteResults>>,
    /// The last epoch whose slices, rows and outcomes have been truncated.
    pub dropped: SnapshotVersion,
    /// The retained epochs that only a replica may still need that is not a member of its group.
    pub settled: Settled,
    /// The contents of the last `ShardProgress` message to the shard's replicas: the last epoch
    /// that all replicas here have persisted, the last one that this node has run, and the node for
    /// which it waits. `None` after a reconnect.
    pub progress_sent: Option<(SnapshotVersion, SnapshotVersion, Option<NodeId>)>,
}

/// If replication is asynchronous, a shard's master and the number of the first transaction of its
/// master term.
#[derive(Default)]
pub(super) struct Masters {
    /// In the confirmed epoch.
    pub confirmed: Option<(NodeId, u64)>,
    /// In the applied epoch.
    pub applied: Option<(NodeId, u64)>,
}

/// The reports of a shard's replicas about themselves.
#[derive(Default)]
pub(super) struct Reports {
    /// The frozen replicas, and the epoch at which each is frozen.
    pub frozen: BTreeMap<NodeId, SnapshotVersion>,
    /// The last epoch that each connected replica has reported to have run.
    pub applied: BTreeMap<NodeId, SnapshotVersion>,
    /// For each replica, the other node for which it reported to wait.
    pub waits_for: BTreeMap<NodeId, NodeId>,
    /// The last epoch of the shard, from the coordinator, if it begins no more.
    pub sealed: BTreeMap<NodeId, SnapshotVersion>,
}

/// The number of messages of an epoch that a subscriber was sent: of the slice, and of rows and
/// outcomes.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    slice: usize,
    results: usize,
}

impl Shards {
    /// The state of a node of a partitioned cluster; `None` if there is one shard.
    pub fn of(
        topology: &Arc<Topology>,
        me: NodeId,
        group_len: usize,
        message_bytes: usize,
    ) -> Option<Self> {
        let partitions = Arc::new(topology.partitions.clone());
        if partitions.shards() == 1 {
            return None;
        }
        let place = topology.nodes[me.index()];
        let others = (0..partitions.shards()).map(ShardId).filter(|shard| *shard != place.shard);
        let stream = |shard| {
            let own = topology.node_at(place.region, shard);
            let own = own.expect("each region has a copy of each shard");
            let group = topology.group(shard).nodes().to_vec();
            let mut replicas = group.clone();
            replicas.sort_by_key(|node| (*node != own, topology.one_way_between(me, *node)));
            (shard, ShardStream::new(replicas, group))
        };
        Some(Self {
            own_shard: place.shard,
            streams: others.map(stream).collect(),
            sliced: SnapshotVersion::ZERO,
            sliced_heads: vec![crate::streams::Bid(0); group_len],
            decided: SnapshotVersion::ZERO,
            own: BTreeMap::new(),
            scheduled_upto: SnapshotVersion::ZERO,
            sharded: Sharded::new(partitions.clone(), place.shard),
            has_yielded: false,
            received: BTreeMap::new(),
            local_requests: BTreeMap::new(),
            results: BTreeMap::new(),
            lookups: Lookups::default(),
            records: BTreeMap::new(),
            behind_for: 0,
            group_progress_sent: None,
            reached_by_groups: SnapshotVersion::ZERO,
            sealed_sent: None,
            up: BTreeSet::new(),
            message_bytes,
            topology: topology.clone(),
            partitions,
        })
    }

    /// The epoch that all other groups have reached, and the one that some other group has reached,
    /// as seen by this node.
    fn reached(&self) -> (SnapshotVersion, SnapshotVersion) {
        let upto = || self.streams.values().map(|stream| stream.inbound.upto);
        (upto().min().unwrap_or_default(), upto().max().unwrap_or_default())
    }

    /// The shard of a node.
    pub fn shard_of(&self, node: NodeId) -> ShardId {
        self.topology.nodes[node.index()].shard
    }

    /// The other shards, for a stop in order.
    pub fn other_logs(&self) -> OtherLogs {
        let is_up = |node: &NodeId| self.up.contains(node);
        let streams = || self.streams.values();
        let sealed = streams().map(|stream| stream.reports.sealed.values().max().copied());
        let up = streams().flat_map(|stream| stream.replicas.iter().map(move |it| (stream, it)));
        let up = up.filter(|(_, node)| is_up(node));
        let applied = up.map(|(stream, node)| stream.reports.applied.get(node).copied());
        OtherLogs {
            can_run: streams().all(|stream| stream.replicas.iter().any(is_up)),
            sealed_at: sealed.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()),
            applied: applied
                .map(Option::unwrap_or_default)
                .min()
                .unwrap_or(SnapshotVersion(u64::MAX)),
        }
    }

    /// Whether a cut contains a request that was forwarded under this name.
    pub fn names(&self, token: u64) -> bool {
        self.local_requests
            .values()
            .any(|request| request.origin == RequestOrigin::Forwarded(token))
    }

    /// Moves to the state of `version`: everything up to it is in the store, and nothing after it.
    pub fn move_to(&mut self, version: SnapshotVersion, heads: &Heads) {
        if self.sliced < version {
            self.sliced = version;
            self.sliced_heads.clone_from(heads);
        }
        self.decided = self.decided.max(version);
        self.own.retain(|epoch, _| *epoch > version);
        self.received.retain(|epoch, _| *epoch > version);
        self.reschedule_from(version);
        for stream in self.streams.values_mut() {
            stream.inbound.slices.retain(|epoch, _| *epoch > version);
            stream.inbound.upto = stream.inbound.upto.max(version);
            stream.inbound.decided = stream.inbound.decided.max(version);
            stream.raise_decided();
            stream.masters = Masters::default();
        }
    }

    /// Resets the executor, so that epochs after this one are passed to it again.
    fn reschedule_from(&mut self, applied: SnapshotVersion) {
        self.scheduled_upto = applied;
        self.sharded = Sharded::new(self.partitions.clone(), self.own_shard);
    }

    /// The lineage of an unconfirmed epoch, if the slices of all groups have arrived.
    fn line_of(&self, epoch: SnapshotVersion) -> Option<Lineage> {
        let own = self.own.get(&epoch)?;
        let mut names = BTreeMap::from([(self.own_shard, own.cut.name)]);
        for (shard, stream) in &self.streams {
            names.insert(*shard, stream.inbound.slices.get(&epoch)?.cut.name);
        }
        Some(Lineage::of(names.into_values()))
    }

    /// Asserts the invariants that hold between any two steps.
    pub fn invariants(&self, applied: SnapshotVersion) {
        assert!(
            self.scheduled_upto >= applied && self.scheduled_upto.0 <= applied.0 + EPOCHS_MAX,
            "the number of running epochs is limited"
        );
        assert!(self.sliced >= self.scheduled_upto, "running epochs were sliced");
        assert!(
            self.results.keys().all(|txn| self.local_requests.contains_key(txn)),
            "results are of known requests"
        );
        let oldest = self.sharded.oldest();
        assert!(
            oldest.is_none_or(|it| it > applied && it <= self.scheduled_upto),
            "started epochs are pending"
        );
        let is_over = self.scheduled_upto > applied && oldest.is_none_or(|it| it > applied.next());
        assert!(!is_over || self.has_yielded, "an epoch ends with its last transaction");
        for stream in self.streams.values() {
            assert!(
                stream.inbound.upto >= self.scheduled_upto,
                "slices of running epochs have arrived"
            );
            assert!(stream.inbound.upto >= stream.inbound.decided, "confirmed slices have arrived");
            assert!(
                stream
                    .outbound
                    .slices
                    .keys()
                    .next()
                    .is_none_or(|first| *first > stream.outbound.dropped)
            );
            let next = stream.inbound.slices.get(&stream.inbound.decided.next());
            assert!(
                next.is_none_or(|next| !next.is_decided),
                "decided slices count as soon as there is no gap"
            );
            let is_logged =
                |epoch| self.own.contains_key(epoch) || self.records.contains_key(epoch);
            assert!(
                stream.outbound.slices.keys().all(is_logged),
                "what may be sent again after a restart is retained in the log"
            );
        }
    }
}

impl Outbound {
    /// Forgets the subscription of a node.
    fn unsubscribe(&mut self, node: NodeId) {
        self.subscribers.remove(&node);
        self.paused.remove(&node);
    }
}

impl Reports {
    /// Forgets the reports of a node that is not connected any more.
    fn forget(&mut self, node: NodeId) {
        self.frozen.remove(&node);
        self.applied.remove(&node);
        self.waits_for.remove(&node);
        self.sealed.remove(&node);
    }
}

impl ShardStream {
    /// Truncates the outbound slices, rows and outcomes of epochs up to this one.
    fn drop_upto(&mut self, upto: SnapshotVersion) {
        if upto > self.outbound.dropped {
            self.outbound.dropped = upto;
            self.outbound.slices = self.outbound.slices.split_off(&upto.next());
            self.outbound.results = self.outbound.results.split_off(&upto.next());
            self.outbound.settled.drop_upto(upto);
        }
    }

    /// Whether a replica may have all epochs after `applied`: it has not reported otherwise.
    fn may_have(&self, node: NodeId, applied: SnapshotVersion) -> bool {
        self.inbound.truncated_at.get(&node).is_none_or(|truncated| *truncated <= applied)
    }

    /// The most advanced of the connected replicas that may have all epochs after `applied`, and
    /// its progress.
    fn furthest(&self, applied: SnapshotVersion) -> Option<(NodeId, SnapshotVersion)> {
        let all = self.replicas.iter().filter(|node| self.may_have(**node, applied));
        let all = all.filter_map(|node| Some((*node, *self.reports.applied.get(node)?)));
        // The nearest among equals.
        all.rev().max_by_key(|(_, upto)| *upto)
    }

    fn new(replicas: Vec<NodeId>, group: Vec<NodeId>) -> Self {
        Self {
            inbound: Inbound { source: replicas[0], ..Inbound::default() },
            outbound: Outbound::default(),
            masters: Masters::default(),
            reports: Reports::default(),
            replicas,
            group,
        }
    }
}

impl Calvin {
    /// The additional state of a node of a partitioned cluster.
    fn shards(&mut self) -> &mut Shards {
        self.state.shards.as_mut().expect("only called if tables are partitioned")
    }

    /// Makes all possible progress. Transactions run once for all inputs that arrived together,
    /// because running them one by one would cost each node a step and a message for each.
    pub(super) fn advance_shards(&mut self, cx: &mut Cx<'_, Self>, is_resumed: bool) {
        self.slice_epochs(cx);
        if self.shards().has_yielded && !is_resumed {
            return;
        }
        self.shards().has_yielded = false;
        while self.schedule_epoch(cx) {}
        if is_resumed && self.can_run() {
            self.run_given(cx);
            // There may be room for further epochs.
            while self.schedule_epoch(cx) {}
        }
        if !self.shards().has_yielded && self.can_run() {
            self.shards().has_yielded = true;
            cx.resume();
        }
    }

    /// Whether some transaction of the passed epochs may be able to run, or some epoch to end.
    fn can_run(&self) -> bool {
        let shards = self.state.shards.as_ref().expect("only called if tables are partitioned");
        let next = self.state.inputs.cut.applied.next();
        let is_over = || shards.sharded.oldest().is_none_or(|oldest| oldest > next);
        shards.scheduled_upto >= next && (shards.sharded.is_ready() || is_over())
    }

    /// Reports the other groups' progress to the group's input log, which follows them.
    pub(super) fn pace(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(shards) = &self.state.shards else { return };
        let (least, most) = shards.reached();
        self.state.inputs.pace.limit =
            SnapshotVersion(least.max(shards.reached_by_groups).0 + AHEAD_MAX);
        self.state.inputs.follow(most);
        self.state.inputs.catch_up(cx);
    }
}
