//! Tables on several shards (§3): each region has a copy of each shard, on a node of its own, and
//! the nodes of a region run the order together.
//!
//! The replicas of a shard are a group with an input log of its own ([`crate::inputs`]): its n-th
//! cut says what the group's sequencers put into epoch n. Epochs are of all groups alike. A group
//! that has nothing new follows the others with an empty cut, and none runs far ahead.
//!
//! ```text
//!             group 0                 group 1
//!   region A  node 0 == Slice ======> node 1       a region's nodes, on local links:
//!             node 0 <====== Slice == node 1         what of an epoch concerns the other
//!             node 0 == Items ======> node 1         rows and results, as it is run
//!                ||                      ||
//!          batches and cuts       batches and cuts   over the wide area, within each group
//!                ||                      ||
//!   region B  node 2 <=============== node 3
//! ```
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | slicing | §3.1 | `execution.rs`, `slice.rs` | Slice | which requests of an epoch concern which shard |
//! | delivery | §3.1, §3.2 | `delivery.rs`, `pieces.rs` | Subscribe, Unsubscribe, Slice, Piece, Items, More, Kept, Missed, Others | what the other shards of the region have sent |
//! | execution | §3.2 | `execution.rs`, `results.rs` | Items | every outcome |
//! | confirmation | §3.1.1, asynchronous | `confirmation.rs` | Decided | that an outcome is for good |
//! | back-pressure | | `waits.rs` | Kept | which node is behind, so that this one waits |
//! | look-up | §3.2.1 | `lookup.rs` | Look, Found | what a transaction would touch on other shards |
//! | recovery | §5 | `recovery.rs` | | what a shard had run, and what it was sent for it |
//!
//! # How the nodes of a region keep together
//!
//! A node subscribes to each other node of its region, again with each connection unless it has
//! turned to another one meanwhile, from after what it has. What was sent is kept until all
//! replicas of the receiver's shard have it on disk, so that a restart of either end loses nothing:
//! what a node received of an epoch is in its record of the epoch, and what it sent is there too,
//! until it need not be kept.
//!
//! All replicas of a shard send the same. While the one of the region is away, a node subscribes to
//! one of another region, so that a lost node stops nobody (the paper's §8 leaves that to the
//! future). So it does while the region's own is far behind the others. A node that lacks what
//! nobody keeps any more takes a checkpoint from its group.
//!
//! # Asynchronous replication
//!
//! Each group has a master of its own, which sends slices of its fixed cuts once they are on its
//! disk, and tells later that they are decided. Who has slices of all groups for an epoch runs it,
//! decided or not, and it is **confirmed** when the own cut and all those slices are decided. Only
//! then it is in the log, in checkpoints, and in what others are told.
//!
//! If another cut of a group is decided than the one that was sent, that group's slices come again.
//! Who has run epochs on the void ones goes back to before them, and runs them again; what it had
//! sent for them is void, too. Readers see confirmed epochs alone: nodes do not go back all at
//! once, and rows of one version that are on several must fit each other. What shards send each
//! other for an epoch says of which line it is (`slice.rs`). A receiver keeps it until the epoch is
//! confirmed, and uses what is of the line that it runs, so nobody has to be told what is void.
//!
//! # Where this differs from the paper, and why
//!
//! - A node is in sixteen epochs at a time at most ([`EPOCHS_MAX`]): a transaction that waits for
//!   rows of another shard holds up those that want its locks, and in the end those of far later
//!   epochs.
//! - The rows that a transaction reads are told before it is ordered, by its declaration or a
//!   reconnaissance. One that leaves them is sequenced anew, as the paper has it: it can't be run
//!   again at once, for what it wants next may be on a shard that has gone on.
//! - What shards of a region send each other is kept and sent again, so that a node's restart
//!   loses nothing of it.

mod confirmation;
mod delivery;
mod execution;
pub(super) mod items;
mod lookup;
pub(super) mod pieces;
mod recovery;
mod results;
pub(super) mod slice;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pangea_core::exec::ordered::{Sharded, Went};
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::partition::Partitions;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;
use pangea_core::topology::Topology;

use super::scheduler::Whose;
use super::{Calvin, Cut, Message};
use crate::inputs::{CAUGHT_UP, Heads};
use items::{Item, Items};
use lookup::Lookups;
use pieces::Pieces;
use results::Mine;
use slice::{Line, Slice};

/// No group is ahead of another by more epochs: at one each 10 ms, some seconds.
const AHEAD_MAX: u64 = 256;

/// So many epochs may have transactions that wait for rows of other shards. An epoch ends with its
/// last transaction, and of many nodes one is always late: four were enough for sixteen nodes, and
/// stood still two thirds of the time with thirty-two.
const EPOCHS_MAX: u64 = 16;

const _: () = assert!(EPOCHS_MAX < CAUGHT_UP as u64, "what is run is not behind");

/// No other epoch is begun while so many transactions have not ended: to ask for their locks is one
/// step.
const PENDING_MAX: usize = 16_384;

/// What a node does as one of several shards.
pub(super) struct Shards {
    pub here: ShardId,
    pub topology: Arc<Topology>,
    pub partitions: Arc<Partitions>,
    /// What goes to and comes from the other nodes of the region.
    pub streams: BTreeMap<ShardId, Stream>,
    /// The group's epochs up to this one were cut into slices.
    pub sliced: SnapshotVersion,
    /// How far the group's logs are in them.
    pub sliced_heads: Heads,
    /// The group's cuts up to this one are decided, as the others were told.
    pub decided: SnapshotVersion,
    /// What of the group's epochs that are not confirmed is for this shard.
    pub own: BTreeMap<SnapshotVersion, Own>,
    /// The last epoch that is being run, or was.
    pub given: SnapshotVersion,
    pub sharded: Sharded,
    /// There is something to run, after what has arrived meanwhile.
    pub yields: bool,
    /// What other shards have sent for epochs that are not confirmed, of any line.
    pub received: BTreeMap<SnapshotVersion, BTreeMap<Line, Received>>,
    /// Requests of this node in the group's epochs, until they are settled.
    pub mine: BTreeMap<TxnId, Mine>,
    /// How some of them ended.
    pub results: BTreeMap<TxnId, Went>,
    pub lookups: Lookups,
    /// Where the records of epochs are in the log.
    pub records: BTreeMap<SnapshotVersion, LogPosition>,
    /// How many epochs' times this group has been behind.
    pub behind_for: u64,
    /// Who was told, since it was connected, that all others have come to which epoch.
    pub told_others: Option<(NodeId, SnapshotVersion)>,
    /// All other groups have come to this epoch, as replicas of this group say.
    pub others: SnapshotVersion,
    /// The nodes of other shards that are connected.
    pub up: BTreeSet<NodeId>,
    /// No message to another shard is much larger.
    pub message_bytes: usize,
}

/// What other shards have sent for an epoch.
pub(super) type Received = BTreeMap<(ShardId, TxnId), Item>;

/// An epoch of the own group.
pub(super) struct Own {
    pub cut: Cut,
    pub slice: Slice,
    /// This node's requests in it.
    pub mine: Vec<TxnId>,
}

/// What goes to another shard and comes from it.
pub(super) struct Stream {
    /// Its replicas: that of this region, and then the others.
    pub replicas: Vec<NodeId>,
    /// The same by their numbers in their group.
    pub group: Vec<NodeId>,
    /// From which of them it comes.
    pub source: NodeId,
    /// Since when that one is away, or the node's start.
    pub away_since: Timestamp,
    /// To which of them it goes.
    pub subscribers: BTreeSet<NodeId>,
    /// What was sent of epochs to those that are to subscribe again.
    pub paused: BTreeMap<NodeId, BTreeMap<SnapshotVersion, Sent>>,
    /// What was sequenced here for it.
    pub slices: BTreeMap<SnapshotVersion, Slice>,
    /// What was served here for it.
    pub items: BTreeMap<SnapshotVersion, Vec<Items>>,
    /// What is for it of epochs up to this one is not kept any more.
    pub dropped: SnapshotVersion,
    /// What it has sequenced for this shard, of epochs that are not confirmed.
    pub came: BTreeMap<SnapshotVersion, Slice>,
    /// All of that up to here came.
    pub upto: SnapshotVersion,
    /// And all up to here is of decided cuts.
    pub decided: SnapshotVersion,
    /// Where replication is asynchronous, whose reign the confirmed epoch is of: the master, and
    /// the number of the first transaction.
    pub reign: Option<(NodeId, u64)>,
    /// Whose the applied epoch is of.
    pub reign_applied: Option<(NodeId, u64)>,
    /// What came of the slice after that.
    pub pieces: Pieces,
    /// Up to which epochs each replica has said that it does not keep all.
    pub missed_at: BTreeMap<NodeId, SnapshotVersion>,
    /// Of epochs up to this one nobody will tell all.
    pub missed: SnapshotVersion,
    /// Whether what comes next was asked for again, and not long ago.
    pub is_asked_again: bool,
    /// What its replicas were told: up to which epoch all replicas here have what was sent, to
    /// which this one has run, and for whom it waits.
    pub told: Option<(SnapshotVersion, SnapshotVersion, Option<NodeId>)>,
    /// Which replicas stand still, and at which epoch.
    pub frozen: BTreeMap<NodeId, SnapshotVersion>,
    /// To which epoch each replica has said that it has run.
    pub applied: BTreeMap<NodeId, SnapshotVersion>,
    /// For which other nodes replicas have said that they wait.
    pub waits_for: BTreeMap<NodeId, NodeId>,
}

/// How many messages of an epoch were sent to a subscriber: those of its slice, and of what was
/// served.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    slice: usize,
    items: usize,
}

impl Shards {
    /// What a node of a divided cluster does; nothing where there is one shard.
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
            (shard, Stream::new(replicas, group))
        };
        Some(Self {
            here: place.shard,
            streams: others.map(stream).collect(),
            sliced: SnapshotVersion::ZERO,
            sliced_heads: vec![crate::inputs::Bid(0); group_len],
            decided: SnapshotVersion::ZERO,
            own: BTreeMap::new(),
            given: SnapshotVersion::ZERO,
            sharded: Sharded::new(partitions.clone(), place.shard),
            yields: false,
            received: BTreeMap::new(),
            mine: BTreeMap::new(),
            results: BTreeMap::new(),
            lookups: Lookups::default(),
            records: BTreeMap::new(),
            behind_for: 0,
            told_others: None,
            others: SnapshotVersion::ZERO,
            up: BTreeSet::new(),
            message_bytes,
            topology: topology.clone(),
            partitions,
        })
    }

    /// To which epoch all other groups have come, and to which one of them has, as is seen here.
    fn reached(&self) -> (SnapshotVersion, SnapshotVersion) {
        let upto = || self.streams.values().map(|stream| stream.upto);
        (upto().min().unwrap_or_default(), upto().max().unwrap_or_default())
    }

    /// The shard of a node.
    fn shard_of(&self, node: NodeId) -> ShardId {
        self.topology.nodes[node.index()].shard
    }

    /// Whether a cut has named a request that was forwarded under this name.
    pub fn names(&self, token: u64) -> bool {
        self.mine.values().any(|mine| mine.whose == Whose::Forwarded(token))
    }

    /// Everything up to `version` is in the store, and nothing after it.
    pub fn move_to(&mut self, version: SnapshotVersion, heads: &Heads) {
        if self.sliced < version {
            self.sliced = version;
            self.sliced_heads.clone_from(heads);
        }
        self.decided = self.decided.max(version);
        self.own.retain(|epoch, _| *epoch > version);
        self.received.retain(|epoch, _| *epoch > version);
        self.give_from(version);
        for stream in self.streams.values_mut() {
            stream.came.retain(|epoch, _| *epoch > version);
            stream.upto = stream.upto.max(version);
            stream.decided = stream.decided.max(version);
            stream.raise_decided();
            (stream.reign, stream.reign_applied) = (None, None);
        }
    }

    /// Gives epochs to the executor anew, from after this one on.
    fn give_from(&mut self, applied: SnapshotVersion) {
        self.given = applied;
        self.sharded = Sharded::new(self.partitions.clone(), self.here);
    }

    /// The line of an epoch that is not confirmed, if all groups' slices of it are here.
    fn line_of(&self, epoch: SnapshotVersion) -> Option<Line> {
        let own = self.own.get(&epoch)?;
        let mut names = BTreeMap::from([(self.here, own.cut.name)]);
        for (shard, stream) in &self.streams {
            names.insert(*shard, stream.came.get(&epoch)?.cut.name);
        }
        Some(Line::of(names.into_values()))
    }

    /// Asserts what holds between any two steps.
    pub fn invariants(&self, applied: SnapshotVersion) {
        assert!(self.given >= applied && self.given.0 <= applied.0 + EPOCHS_MAX, "few epochs");
        assert!(self.sliced >= self.given, "what is run was sliced");
        assert!(self.results.keys().all(|txn| self.mine.contains_key(txn)), "who waits is known");
        let oldest = self.sharded.oldest();
        assert!(oldest.is_none_or(|it| it > applied && it <= self.given), "what was given is run");
        let is_over = self.given > applied && oldest.is_none_or(|it| it > applied.next());
        assert!(!is_over || self.yields, "an epoch ends with its last transaction");
        for stream in self.streams.values() {
            assert!(stream.upto >= self.given, "what is run has come");
            assert!(stream.upto >= stream.decided, "what is decided has come");
            assert!(stream.slices.keys().next().is_none_or(|first| *first > stream.dropped));
        }
    }
}

impl Stream {
    /// What is for the other node of epochs up to this one is not kept any more.
    fn drop_upto(&mut self, upto: SnapshotVersion) {
        if upto > self.dropped {
            self.dropped = upto;
            self.slices = self.slices.split_off(&upto.next());
            self.items = self.items.split_off(&upto.next());
        }
    }

    fn new(replicas: Vec<NodeId>, group: Vec<NodeId>) -> Self {
        Self {
            source: replicas[0],
            replicas,
            group,
            away_since: Timestamp::default(),
            subscribers: BTreeSet::new(),
            paused: BTreeMap::new(),
            slices: BTreeMap::new(),
            items: BTreeMap::new(),
            dropped: SnapshotVersion::ZERO,
            came: BTreeMap::new(),
            upto: SnapshotVersion::ZERO,
            decided: SnapshotVersion::ZERO,
            reign: None,
            reign_applied: None,
            pieces: Pieces::default(),
            missed_at: BTreeMap::new(),
            missed: SnapshotVersion::ZERO,
            is_asked_again: false,
            told: None,
            frozen: BTreeMap::new(),
            applied: BTreeMap::new(),
            waits_for: BTreeMap::new(),
        }
    }
}

impl Calvin {
    /// What a divided cluster's node has beside its group's inputs.
    fn shards(&mut self) -> &mut Shards {
        self.state.shards.as_mut().expect("asked of divided tables alone")
    }

    /// A node of another shard said something, or one of this shard what is not of the input log.
    pub(super) fn on_neighbour(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        let Some(shards) = &self.state.shards else {
            return cx.mark("calvin.not_divided");
        };
        let shard = shards.shard_of(from);
        if shard == shards.here {
            return match message {
                Message::Others { least, most } => self.on_others(least, most),
                _ => cx.mark("calvin.not_to_its_own_shard"),
            };
        }
        match message {
            Message::Subscribe { slices, items, goes_on } => {
                self.on_subscribe(cx, from, (slices, items), goes_on);
            }
            Message::Unsubscribe {} => {
                let stream = self.shards().stream(shard);
                stream.subscribers.remove(&from);
                stream.paused.remove(&from);
            }
            Message::Slice { slice } => self.on_slice(cx, from, slice),
            Message::Decided { upto, name } => self.on_decided(cx, from, upto, name),
            Message::Piece { piece } => self.on_piece(cx, from, piece),
            Message::More {} => self.on_more(cx, from),
            Message::Items { items } => self.on_items(cx, shard, items),
            Message::Kept { upto, applied, waits_for } => {
                self.on_kept(from, (upto, applied), waits_for);
            }
            Message::Missed { upto } => self.on_missed(cx, from, upto),
            Message::Frozen { at } => self.on_source_frozen(cx, from, at),
            Message::Look { token, wanted } => self.on_look(cx, from, token, &wanted),
            Message::Found { token, found } => self.on_found(cx, shard, token, found),
            Message::Warm { .. }
            | Message::Warmed { .. }
            | Message::Cold { .. }
            | Message::Others { .. }
            | Message::Inputs(_)
            | Message::Forward { .. }
            | Message::AskOutcomes { .. }
            | Message::Outcomes { .. }
            | Message::Taken { .. }
            | Message::NotTaken { .. } => cx.mark("calvin.not_of_the_group"),
        }
    }

    /// Does what has become possible. What is run is run once for all that came together: one
    /// transaction here and one there would cost each node a step and a message.
    pub(super) fn advance_shards(&mut self, cx: &mut Cx<'_, Self>, is_resumed: bool) {
        self.slice_epochs(cx);
        if self.shards().yields && !is_resumed {
            return;
        }
        self.shards().yields = false;
        while self.give_epoch(cx) {}
        if is_resumed && self.can_run() {
            self.run_given(cx);
            // There may be room for others.
            while self.give_epoch(cx) {}
        }
        if !self.shards().yields && self.can_run() {
            self.shards().yields = true;
            cx.resume();
        }
    }

    /// Whether something of the epochs that were given can be run, perhaps, or ended.
    fn can_run(&self) -> bool {
        let shards = self.state.shards.as_ref().expect("asked of divided tables alone");
        let next = self.state.inputs.cut.applied.next();
        let is_over = || shards.sharded.oldest().is_none_or(|oldest| oldest > next);
        shards.given >= next && (shards.sharded.is_ready() || is_over())
    }

    /// Tells the group's input log how far the other groups are, and follows them.
    pub(super) fn pace(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(shards) = &self.state.shards else { return };
        let (least, most) = shards.reached();
        self.state.inputs.pace.limit = SnapshotVersion(least.max(shards.others).0 + AHEAD_MAX);
        self.state.inputs.follow(most);
        self.state.inputs.catch_up(cx);
    }
}
