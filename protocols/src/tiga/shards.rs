//! Several shards: the nodes of a region run the transactions of committed cells together.
//!
//! Each shard has its own replicas, leader and log. A cell runs when the logs of all shards are
//! committed up to it. Its reads then depend on nothing that can be lost. Its
//! transactions are known on each shard, and their order is that of their stamps. So the nodes need
//! no further agreement: each sends the others the rows that their transactions read here.
//!
//! ```text
//!                 shard 0                       shard 1
//!   region A      node 0  == Committed ======>  node 1       on local links
//!                 node 0  <====== Committed ==  node 1
//!                 node 0  <=== Items: rows ===  node 1
//!                    ||                            ||
//!                LogSync, Synced              LogSync, Synced     over the wide area
//!                    ||                            ||
//!   region B      node 2  <==================>  node 3
//! ```
//!
//! A region may lack replicas of some shards (§2). A node takes the nearest replica of each other
//! shard, in its own region or elsewhere: also if the nearest one is not usable.
//!
//! | phase | file | messages | known after |
//! |---|---|---|---|
//! | commit over shards | `shards.rs` | Committed | that a cell can't be lost on any shard |
//! | delivery | `shards/delivery.rs` | Subscribe, Unsubscribe, Items | the rows of other shards |
//! | retained rows | `shards/retained.rs` | Truncated | which rows nobody needs, or has room for |
//! | checkpoint | `shards/checkpoint.rs` | Resubscribe | all that other shards may need |
//! | fast path | `shards/fast_commit.rs` | FastReplies, Close, Closed | the result, after one round trip |
//! | detection | `shards/detection.rs` | Items, Close | whether all logs have a transaction at one stamp |
//! | execution | `shards/execution.rs` | Items, Outcome | every outcome |
//! | lookup | `shards/lookup.rs` | LookupRequest, LookupReply | the footprint of a program |
//!
//! # Which cells can be published
//!
//! The leader of a shard closes a cell when nothing more can come up to it. Followers are told.
//! A shard is committed *through* a cell if it is closed, and all of its log up to there is
//! committed. A snapshot is published at a cell of any shard through which all shards are
//! committed. The next view begins above it, because that cell is in the logs of f + 1 replicas,
//! and all shards begin a view above the last cell of any log. A checkpoint at a version has all
//! cells of the shard up to there, also if the version is a cell of another shard.
//!
//! Messages of a view do not count in the next one: up to where the new logs begin,
//! it may have been closed by a promise that no log contains.

mod checkpoint;
mod delivery;
mod detection;
mod execution;
mod fast_commit;
mod lookup;
mod retained;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pangea_core::exec::ordered::{RemoteReads, ShardOutcome, Sharded};
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::partition::Partitions;
use pangea_core::protocol::Cx;
use pangea_core::topology::Topology;

use super::Tiga;
use super::commit::{Commit, RECLAIM_VERSIONS_MAX};
use super::log::{Log, Position, ViewNumber};
use super::messages::Message;
use super::stamp::Stamp;
use super::state::State;
use crate::retention::Retention;
pub(super) use checkpoint::ForOthers;
#[cfg(test)]
pub(super) use delivery::decode_items;
use detection::Lists;
pub(super) use fast_commit::{ByShard, Closing, cell_of_word};
use lookup::Owner;
use retained::Retained;

/// The maximum number of versions that wait to be published, on a node that is behind.
const CELLS_MAX: usize = 65_536;

/// What other shards have sent for each cell.
type Received = BTreeMap<SnapshotVersion, OfCell>;

/// What other shards have sent for one cell.
#[derive(Clone, Debug, Default, PartialEq)]
struct OfCell {
    /// Rows that transactions have read there.
    rows: BTreeMap<(ShardId, TxnId), RemoteReads>,
    /// The transactions in the log of each other shard in which this one has a part.
    places: BTreeMap<ShardId, Vec<(TxnId, Stamp)>>,
}

/// The state of a node as one of several shards.
pub(super) struct Shards {
    /// The shard of this node.
    own: ShardId,
    pub partitions: Arc<Partitions>,
    pub streams: BTreeMap<ShardId, Stream>,
    pub sharded: Sharded,
    retention: Retention,
    /// The last position whose cell was passed to the executor.
    scheduled: Position,
    /// Versions that may be published, because some shard has such a cell.
    cells: BTreeSet<SnapshotVersion>,
    /// The last message to the subscribers: the view, and through which cell it is
    /// committed.
    told: (ViewNumber, SnapshotVersion),
    /// The last position whose cell they were told.
    told_position: Position,
    /// What other shards have sent for cells that have not been run here.
    received: Received,
    /// The sizes of that for each cell, and their sum.
    sizes: (BTreeMap<SnapshotVersion, usize>, usize),
    /// Those for cells that have been run, and are not published.
    used: Received,
    /// Records of received rows that cells have used, each with the last of these cells.
    logging: VecDeque<(SnapshotVersion, LogPosition)>,
    /// Rows up to this cell are in records that are durable.
    logged: SnapshotVersion,
    /// This node needs nothing more from the others for cells up to this one.
    pub kept: SnapshotVersion,
    /// The outcomes of transactions whose clients wait on another shard that does not run them.
    outcomes: BTreeMap<TxnId, (SnapshotVersion, ShardOutcome)>,
    pub lookups: crate::lookup::Lookups<Owner>,
}

/// The messages between this node and one other shard.
pub(super) struct Stream {
    /// The voting replicas of the shard, the nearest one first.
    replicas: Vec<NodeId>,
    /// The one that this node is subscribed to.
    pub source: Option<NodeId>,
    /// The last message of the source: the view, and through which cell the shard is committed.
    through: (ViewNumber, SnapshotVersion),
    /// Which lists of places in its log have arrived.
    lists: Lists,
    /// The replicas of the shard that are subscribed to this node.
    subscribers: BTreeSet<NodeId>,
    /// The rows sent to the shard, until all of its replicas have them.
    retained: Retained,
    /// The first cell whose rows were dropped for lack of room when they arrived, or before.
    evicted: Option<SnapshotVersion>,
    /// Up to this cell each replica of the shard needs nothing more.
    kept: BTreeMap<NodeId, SnapshotVersion>,
    /// The replicas of the shard that have said up to which cell they retain nothing, although this
    /// node needs it.
    truncated: BTreeMap<NodeId, SnapshotVersion>,
}

impl Shards {
    /// The state of a node of a divided cluster; `None` if there is one shard.
    pub(super) fn of(topology: &Topology, me: NodeId) -> Option<Self> {
        let partitions = Arc::new(topology.partitions.clone());
        if partitions.shards() == 1 {
            return None;
        }
        let here = topology.nodes[me.index()].shard;
        let others = (0..partitions.shards()).map(ShardId).filter(|shard| *shard != here);
        let stream = |shard| {
            let mut replicas = topology.group(shard).nodes().to_vec();
            let kept = replicas.iter().map(|node| (*node, SnapshotVersion::ZERO)).collect();
            // Those without a vote have less to tell.
            replicas.retain(|node| topology.votes(*node));
            replicas.sort_by_key(|node| (topology.one_way_between(me, *node), *node));
            let stream = Stream {
                replicas,
                source: None,
                through: Default::default(),
                lists: Lists::default(),
                subscribers: BTreeSet::new(),
                retained: Retained::default(),
                evicted: None,
                kept,
                truncated: BTreeMap::new(),
            };
            (shard, stream)
        };
        Some(Self {
            own: here,
            streams: others.map(stream).collect(),
            sharded: Sharded::new(partitions.clone(), here),
            retention: Retention::default(),
            partitions,
            scheduled: Position(0),
            cells: BTreeSet::new(),
            told: Default::default(),
            told_position: Position(0),
            received: BTreeMap::new(),
            sizes: Default::default(),
            used: BTreeMap::new(),
            logging: VecDeque::new(),
            logged: SnapshotVersion::ZERO,
            kept: SnapshotVersion::ZERO,
            outcomes: BTreeMap::new(),
            lookups: Default::default(),
        })
    }

    /// The last position whose cell was passed to the executor.
    pub(super) fn scheduled(&self) -> Position {
        self.scheduled
    }

    /// The cell through which all shards are committed, as far as this node knows.
    pub(super) fn through(&self, log: &Log, commit: &Commit) -> SnapshotVersion {
        let of = |stream: &Stream| match stream.through {
            (view, through) if view == log.view => stream.lists.complete(through),
            _ => SnapshotVersion::ZERO,
        };
        let others = self.streams.values().map(of).min().unwrap_or_default();
        let own = commit.through(log);
        mutate!(OtherShardsUncommitted: own.min(others) => own)
    }

    /// The sources in other shards from which a cell of this one lacks something, and what.
    pub(super) fn awaited(&self, log: &Log, cell: SnapshotVersion) -> Vec<(NodeId, &'static str)> {
        let is_behind = |stream: &&Stream| stream.through.0 < log.view || stream.through.1 < cell;
        let of = |what| move |stream: &Stream| Some((stream.source?, what));
        let behind: Vec<_> =
            self.streams.values().filter(is_behind).filter_map(of("commits")).collect();
        match behind.is_empty() {
            true => self.streams.values().filter_map(of("rows")).collect(),
            false => behind,
        }
    }

    /// Forgets every second version that may be published, if there are too many. The last one
    /// stays, so that each reader's version comes.
    fn thin_cells(&mut self) {
        let Some(last) = self.cells.last().copied().filter(|_| self.cells.len() > CELLS_MAX) else {
            return;
        };
        let mut is_kept = false;
        self.cells.retain(|version| {
            is_kept = !is_kept;
            is_kept || *version == last
        });
    }

    /// Asserts what always holds.
    pub(super) fn invariants(&self, committed: Position) {
        assert!(self.scheduled <= committed, "only committed cells run");
    }
}

impl Tiga {
    /// The state of several shards, which the caller knows to be there.
    fn shards(&mut self) -> &mut Shards {
        self.state.shards.as_mut().expect("only called if tables are partitioned")
    }

    /// Makes progress with the cells that are committed on all shards.
    pub(super) fn advance_shards(&mut self, cx: &mut Cx<'_, Self>) {
        self.tell_committed(cx);
        self.schedule(cx);
        self.run_ready(cx);
        self.publish_shards(cx);
    }

    /// Tells the subscribers through which cell this shard is committed.
    fn tell_committed(&mut self, cx: &mut Cx<'_, Self>) {
        let State { shards, log, commit, .. } = &mut self.state;
        let Some(shards) = shards else { return };
        let now = (log.view, commit.through(log));
        if now == shards.told && shards.told_position == commit.committed {
            return;
        }
        let new = shards.told_position.0 + 1..=commit.committed.0;
        let cells: Vec<u64> = new.clone().map(|it| log.version_at(Position(it)).0).collect();
        shards.cells.extend(cells.iter().copied().map(SnapshotVersion));
        (shards.told, shards.told_position) = (now, commit.committed);
        new.for_each(|position| self.list_places(cx, Position(position)));
        let (view, through) = (now.0.0, now.1.0);
        for stream in self.shards().streams.values() {
            let listed = stream.retained.listed().0;
            for node in &stream.subscribers {
                let cells = cells.clone();
                cx.send(*node, Message::Committed { view, through, cells, listed });
            }
        }
    }

    /// A replica of another shard tells through which cell its shard is committed.
    pub(super) fn on_committed(
        &mut self,
        from: NodeId,
        (view, through): (ViewNumber, SnapshotVersion),
        (cells, listed): (&[u64], SnapshotVersion),
    ) {
        let shard = self.state.cluster.nodes[from.index()].shard;
        let Some(shards) = &mut self.state.shards else { return };
        let Some(stream) = shards.streams.get_mut(&shard) else { return };
        if stream.source == Some(from) {
            stream.through = (view, through).max(stream.through);
            stream.lists.note_told(listed);
            shards.cells.extend(cells.iter().copied().map(SnapshotVersion));
            shards.thin_cells();
        }
    }

    /// Publishes the last cell of any shard that has been run here and is committed on all shards.
    fn publish_shards(&mut self, cx: &mut Cx<'_, Self>) {
        let State { shards, log, commit, .. } = &mut self.state;
        let Some(shards) = shards else { return };
        let through = shards.through(log, commit);
        let through = match commit.executed < commit.committed {
            // Everything before the next cell of this shard has been run.
            true => {
                let next = log.version_at(Position(commit.executed.0 + 1));
                through.min(SnapshotVersion(next.0 - 1))
            }
            false => through,
        };
        let later = shards.cells.split_off(&through.next());
        let Some(version) = std::mem::replace(&mut shards.cells, later).pop_last() else { return };
        if version <= cx.store.published() {
            return;
        }
        cx.store.publish(version);
        shards.used = shards.used.split_off(&version.next());
        // They are in the logs of all of their shards.
        self.state.coordinator.unsettled.retain(|_, cell| *cell > version);
        let State { commit, log, .. } = &mut self.state;
        let before = commit.published;
        // Later ones have been run when the shards were committed further, in an earlier view.
        while commit.published < commit.executed
            && log.version_at(Position(commit.published.0 + 1)) <= version
        {
            commit.published.0 += 1;
        }
        // All replicas of the shard have these cells. The versions that they publish differ.
        for position in before.0 + 1..=commit.published.0 {
            let cell = self.state.log.version_at(Position(position));
            self.compare_digests(cx, cell);
        }
        self.answer_cells(cx, before);
        let published = cx.store.published();
        let unneeded = self.shards().retention.unneeded(cx.now.at, published);
        cx.store.reclaim_at_most(unneeded, RECLAIM_VERSIONS_MAX);
    }

    /// Answers the clients of the cells of this shard after a position that are published.
    fn answer_cells(&mut self, cx: &mut Cx<'_, Self>, before: Position) {
        let (node, published) = (self.state.node, self.state.commit.published);
        let run = before.0 + 1..=published.0;
        let cells = run.map(|at| self.state.log.cell(Position(at)));
        self.state.note_reached(cx, Milestone::Validated, cells);
        for position in before.0 + 1..=published.0 {
            let cell = self.state.log.cell(Position(position));
            let version = cell.version;
            let own = cell.txns.iter().map(|(txn, _)| *txn).filter(|txn| txn.node() == node);
            let own: Vec<TxnId> = own.collect();
            self.answer_ran(cx, version, &own);
        }
    }
}
