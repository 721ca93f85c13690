//! Several shards: transactions over the shards' leaders, certified without waiting for replication
//! (§4.2), and told when everything on which they depend is replicated (§4.4).
//!
//! ```text
//!  coordinator S0             S1 (written)      S2 (read only)     followers of S0, S1, S2
//!    | Read -------------------> |                  |                  |
//!    |   runs the program        |                  |                  |
//!    | Prepare ----------------> | locks, draws     |                  |
//!    | <------------- Prepared --|                  |                  |
//!    | Validate v ---------------+----------------> | counter >= v     |
//!    | <--------------------------------- Valid ----|                  |
//!    | installs at v             |                  |                  |
//!    | Install v --------------> | installs         |                  |
//!    |== Append: each shard in its own log ==========================> |
//!    | <----- watermarks of S1 and S2                                  |
//!    | clock <= watermarks: the client is told
//! ```
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | routing | §4.1 | `routing.rs` | Forward, Ended | the coordinator; the outcome |
//! | local transactions | §4.2 | `slices.rs` | | results, and which ones have to wait |
//! | coordination | §4.2 | `coordinator.rs` | Items | whether a transaction is certified |
//! | certification | §4.2 | `participant.rs` | Items | whether its rows are current and locked |
//! | queues | | `queues.rs` | | whose turn it is to lock a row |
//! | watermarks | §4.4 | `watermarks.rs` | Watermark | what can be told and read |
//! | replay | §4.4 | `replay.rs` | Append | rows |
//! | configuration | §5.2 | `configuration.rs` | Config, Agreement | who leads each shard |
//! | passage | §5.2 | `passage.rs` | | what a leader that stays may do while an epoch ends |
//! | termination | §5.2 | `termination.rs` | Ask, Fates | how transactions have ended that hang |
//! | grouping | §6.1 | `grouping.rs` | | which shards the clocks in the log name |
//! | cut | §5.2 | `cut.rs` | Config | which transactions of the epochs before are void |
//! | placement | §6.2, B | `placement.rs` | Config | where slots are, and which move |
//! | moves | §6.2, B | `moves.rs` | Move, MoveRefused, Agreement | that slots move, and that they have |
//! | migration | §6.2, B | `migration.rs` | Copy, Piece, Config | that the rows are on their shard |
//! | without speculation | §7.2 | `holding.rs` | Items | that the next step may be taken |
//!
//! # Numbers
//!
//! A leader counts ([`super::versions`]). An entry of its log has the next number. A transaction
//! over several shards draws a number on each written shard when its rows are locked there, and its
//! version is the greatest of them, or greater: it is above everything that it has read. A
//! validation raises the counter of a shard that is only read to the version. So versions increase
//! along each conflict, also where a transaction overwrites what another one has read.
//!
//! # Configuration
//!
//! The voters of the first shard agree on epochs, each with a leader for every shard. When a leader
//! has failed, another epoch begins for all shards. Those whose leaders stay lose nothing by it,
//! and go on while it is not decided what has become of the failed leader's transactions.

mod configuration;
mod coordinator;
mod cut;
mod grouping;
mod holding;
pub(super) mod items;
pub(super) mod migration;
mod moves;
mod participant;
mod passage;
pub(super) mod placement;
mod queues;
mod replay;
mod routing;
mod slices;
pub(super) mod termination;
mod watermarks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::mutate;
use pangea_core::partition::{Partitions, SlotSet};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use pangea_core::topology::{Group, Topology};
use pangea_core::txn::Abort;

use super::clocks::{Clock, Groups};
use super::locks::LockTable;
use super::log::{Entry, RunResult};
use super::options::Options;
use super::progress::PeerState;
use super::state::{Role, State};
use super::versions::{Epoch, start_of};
use super::{Mako, Timer};
use crate::request::Request;
use crate::retention::Retention;
use configuration::Announced;
pub(super) use configuration::Config;
use coordinator::{Coordinated, Decision};
pub(super) use grouping::decode_grouping;
use holding::Held;
use items::Named;
use migration::Moving;
use moves::Asked;
use participant::Pending;
use placement::CHANGES_MAX;
pub use placement::Slots;
use queues::Waiters;
pub(super) use replay::Replay;

/// The state of a node as one of several shards.
pub(super) struct Shards {
    /// The shard of this node.
    pub own: ShardId,
    /// The partitioning as long as no slot was moved.
    pub initial: Arc<Partitions>,
    /// The present one.
    pub partitions: Arc<Partitions>,
    /// The slots that no transaction may access, because they move.
    pub barred: SlotSet,
    /// The replicas of each shard.
    pub groups: Vec<Group>,
    pub clocks: Groups,
    /// The number of entries of the clocks in the log, if it was recorded.
    pub grouping: Option<u16>,
    pub config: Config,
    /// The nodes of other shards.
    pub others: BTreeMap<NodeId, Other>,
    /// When this node has heard of the last epoch.
    pub since: Timestamp,
    /// What each node has told about the configuration.
    pub told: BTreeMap<NodeId, Announced>,
    /// The watermark of each shard in this epoch, as far as this leader knows.
    pub watermarks: Vec<SnapshotVersion>,
    /// The last version that all shards have, as this follower's leader has told.
    pub stable: SnapshotVersion,
    pub replay: Replay,
    pub retention: Retention,
    /// Since when the leader of a shard leads that was sent all transactions for it, and the last
    /// epoch of which it knew that it has begun: then some may have become void there.
    pub sent_to: BTreeMap<ShardId, (Epoch, Epoch)>,
    /// The greatest version that clients of this node were told.
    pub acknowledged: SnapshotVersion,
    /// The last epoch for which this leader, which stays, has told that its log is closed.
    closed_at: Epoch,
    asked: Asked,
    /// When the timer of this component expires.
    timer: Option<Timestamp>,
    counts: Counts,
}

/// Counters for operators.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Transactions over several shards that this leader has certified.
    certified: u64,
    /// Their attempts that have failed for a conflict, and were followed by another one.
    retries: u64,
    /// Their attempts that were given up because no answer arrived.
    late: u64,
    /// Attempts of all shards that have found a row locked here.
    locks_refused: u64,
    /// Those that have read here, and found a row locked or changed.
    reads_stale: u64,
    /// Transactions without an outcome at the end of an epoch that got one from the coordinator's
    /// shard.
    hanging_resolved: u64,
    /// Entries of the log that the ends of epochs have made void.
    void: u64,
    /// Entries of the log that this leader has made with a clock, and the bytes of these.
    clocks: u64,
    clock_bytes: u64,
    /// Rows that other shards have handed to this one.
    rows_moved: u64,
    /// Rows of other shards that were deleted here.
    rows_swept: u64,
}

/// A node of another shard.
#[derive(Debug, Default)]
pub(super) struct Other {
    pub is_up: bool,
    pub heard_at: Timestamp,
    pub told: PeerState,
}

/// The state of a leader that only several shards need.
#[derive(Debug, Default)]
pub(super) struct Coordination {
    /// The last number that was counted.
    pub counter: SnapshotVersion,
    pub locks: LockTable,
    /// The transactions that hold locks here, or have drawn a number.
    pub pending: BTreeMap<TxnId, Pending>,
    /// The transactions that this leader coordinates, until they are certified.
    pub coordinated: BTreeMap<TxnId, Coordinated>,
    /// Those that are certified, until everything about them is replicated.
    pub decisions: BTreeMap<TxnId, Decision>,
    /// When transactions try again.
    pub resting: BTreeSet<(Timestamp, TxnId)>,
    /// The versions of other shards on which the rows of a version depend.
    pub clocks: BTreeMap<SnapshotVersion, Clock>,
    /// Entries with outcomes that were not told.
    pub waiting: VecDeque<Arc<Entry>>,
    /// The outcomes that were told and are not published.
    pub told: BTreeMap<TxnId, (SnapshotVersion, RunResult)>,
    /// Transactions that wait for a locked row.
    pub parked: BTreeMap<(TableId, Key), Vec<Request>>,
    /// Without speculation: steps that wait until what they rest on is replicated.
    held: Held,
    /// Transactions that wait until it is known which versions of the epochs before are void.
    pub doubtful: Vec<Request>,
    /// Transactions that wait for slots which move.
    pub barred: Vec<Request>,
    pub moving: Moving,
    /// Transactions that were refused, as long as their nodes may send them again. Also with one
    /// shard.
    pub refused: BTreeMap<TxnId, Abort>,
    /// Transactions over shards that wait for a locked row of this shard, in order.
    waiters: Waiters,
    /// Rows that were unlocked, and for which some wait.
    unlocked: Vec<(TableId, Key)>,
    /// Items for other leaders.
    out: BTreeMap<ShardId, Vec<Named>>,
    /// The greatest version that a validation has raised the counter to.
    raised: SnapshotVersion,
    /// Up to this version the last entry has closed the log.
    closed: SnapshotVersion,
    /// When the log has to be closed for the sake of other shards.
    closing_at: Option<Timestamp>,
    /// The watermark that other leaders were told.
    gossiped: SnapshotVersion,
}

impl Coordination {
    /// The version up to which nothing more is written, if no more than this was counted.
    fn closed_below(&self, version: SnapshotVersion) -> SnapshotVersion {
        let draws = self.pending.values().map(|pending| pending.draw);
        let least = draws.min().map_or(version, |draw| SnapshotVersion(draw.0 - 1));
        version.min(least)
    }
}

/// Invariants of more locks than this are not checked: a node in a debug build does it in each
/// step.
const CHECKED_LOCKS_MAX: usize = 1_000;

impl Coordination {
    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self) {
        let writes = self.pending.values().map(|pending| pending.writes.len());
        let is_small = writes.sum::<usize>() <= CHECKED_LOCKS_MAX;
        assert!(self.closed <= self.counter, "a number was counted");
        for (txn, pending) in &self.pending {
            assert!(pending.draw <= self.counter, "a number was counted");
            for write in pending.writes.iter().take(if is_small { usize::MAX } else { 1 }) {
                let holder = self.locks.holder(write.table, &write.key);
                assert_eq!(holder, Some(*txn), "a pending transaction has its locks");
            }
            assert!(self.closed < pending.draw, "the log is not closed above what is pending");
        }
        for (_, txn) in self.locks.all().take(CHECKED_LOCKS_MAX) {
            let is_known = self.pending.contains_key(&txn) || self.holds(txn);
            assert!(is_known, "a lock has a pending transaction");
        }
        for txn in self.locks.readers() {
            assert!(self.pending.contains_key(&txn), "a lock has a pending transaction");
        }
        for (row, parked) in &self.parked {
            assert!(!parked.is_empty(), "nobody is parked at {row:?}");
            assert!(self.is_locked(row), "whoever is parked waits for a lock");
        }
        for (row, waiters) in &self.waiters {
            assert!(!waiters.is_empty(), "nobody waits for {row:?}");
            let is_next = self.unlocked.contains(row);
            assert!(is_next || self.is_locked(row), "transactions over shards wait for a lock");
        }
    }
}

impl Shards {
    /// The state of a node of a divided cluster; `None` if there is one shard, unless rows have to
    /// be locked there, too.
    pub(super) fn of(topology: &Topology, me: NodeId, options: &Options) -> Option<Self> {
        let partitions = Arc::new(topology.partitions.clone());
        let shards = partitions.shards();
        if shards == 1 && options.speculation {
            return None;
        }
        let own = topology.nodes[me.index()].shard;
        let is_other = |node: &NodeId| topology.nodes[node.index()].shard != own;
        let others = topology.node_ids().filter(is_other).map(|node| (node, Other::default()));
        Some(Self {
            own,
            groups: (0..shards).map(|shard| topology.group(ShardId(shard))).collect(),
            clocks: Groups::new(shards, options.clock_groups),
            grouping: None,
            config: Config::default(),
            others: others.collect(),
            since: Timestamp::default(),
            told: BTreeMap::new(),
            watermarks: vec![SnapshotVersion::ZERO; usize::from(shards)],
            stable: SnapshotVersion::ZERO,
            replay: Replay::default(),
            retention: Retention::default(),
            sent_to: BTreeMap::new(),
            acknowledged: SnapshotVersion::ZERO,
            closed_at: Epoch(0),
            initial: partitions.clone(),
            barred: SlotSet::default(),
            asked: Asked::default(),
            timer: None,
            counts: Counts::default(),
            partitions,
        })
    }

    /// Counters for operators, besides those of a cluster with one shard.
    pub(super) fn status(&self, role: &Role, counters: &mut BTreeMap<String, u64>) {
        let counts = self.counts;
        let mut all = vec![
            ("across_certified", counts.certified),
            ("across_retries", counts.retries),
            ("across_late", counts.late),
            ("across_locks_refused", counts.locks_refused),
            ("across_reads_stale", counts.reads_stale),
            ("across_hanging_resolved", counts.hanging_resolved),
            ("across_void", counts.void),
            ("across_clocks", counts.clocks),
            ("across_clock_bytes", counts.clock_bytes),
            ("rows_moved", counts.rows_moved),
            ("rows_swept", counts.rows_swept),
            ("slots", self.partitions.placement().slots_of(self.own).len() as u64),
            ("slots_moving", self.barred.len() as u64),
        ];
        if let Role::Leading(leading) = role {
            let over = &leading.over;
            let parked = over.parked.values().map(Vec::len).sum::<usize>();
            let least = self.watermarks.iter().min().copied().unwrap_or_default();
            all.extend([
                ("across_in_flight", over.coordinated.len() as u64),
                ("across_locks", over.locks.all().count() as u64),
                ("across_parked", parked as u64),
                ("across_pending", over.pending.len() as u64),
                ("watermark", self.own_watermark().0),
                ("watermark_lag", self.own_watermark().0.saturating_sub(least.0)),
            ]);
        }
        counters.extend(all.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let told = self.others.iter().map(|(node, other)| (node, other.told.published));
        let known = told.filter(|(_, published)| *published > SnapshotVersion::ZERO);
        counters.extend(known.map(|(node, at)| (format!("peer_applied_{}", node.0), at.0)));
    }

    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self, state: &State) {
        let Config { number, begun, finals, .. } = &self.config;
        assert!(begun <= number, "an epoch is decided before it begins");
        assert!(finals.is_empty() || finals.len() == self.groups.len(), "a cut is of all shards");
        let published = state.commit.published;
        let first = self.replay.iter().next();
        assert!(first.is_none_or(|it| it.at() > published), "what is published is not replayed");
        let Role::Leading(leading) = &state.role else { return };
        let over = &leading.over;
        let closed = state.log.closed_at(state.commit.committed).max(start_of(*begun));
        assert!(self.own_watermark() <= closed, "a majority's log says the watermark");
        assert!(over.gossiped <= self.own_watermark(), "others are told the watermark");
        let least = self.watermarks.iter().min().copied().unwrap_or_default();
        assert!(published <= least.max(start_of(*begun)), "readers see what all shards have");
        let unsettled = over.clocks.keys().next();
        assert!(unsettled.is_none_or(|at| *at > published), "what is published is settled");
        assert!(over.doubtful.is_empty() || self.is_open(), "nothing is doubtful after the cut");
    }

    /// Notes where slots are, as the configuration says.
    pub(super) fn place(&mut self) {
        let Config { slots, begun, .. } = &self.config;
        self.barred = slots.barred(*begun);
        if slots.have_moved() {
            // Also if all slots are where they were at first: there may be rows of other shards.
            let placement = slots.placement(self.initial.placement());
            self.partitions = Arc::new(self.initial.placed(placement));
        }
    }

    /// The partitioning in the snapshot of a version; `None` if it is the first one.
    ///
    /// # Errors
    /// If it is forgotten.
    pub(super) fn partitions_at(
        &self,
        version: SnapshotVersion,
    ) -> Result<Option<Arc<Partitions>>, String> {
        let slots = &self.config.slots;
        if !slots.have_moved() {
            return Ok(None);
        }
        let placement = slots.placement_at(self.initial.placement(), version);
        let placement = placement.ok_or_else(|| {
            format!("slots were moved {CHANGES_MAX} times since the snapshot of {version}")
        })?;
        Ok(Some(Arc::new(self.initial.placed(placement))))
    }

    /// Whether a row is of a slot that moves.
    fn bars(&self, table: TableId, key: &[u8]) -> bool {
        if self.barred.is_empty() {
            return false;
        }
        let is_barred =
            self.partitions.slot_of(table, key).is_some_and(|it| self.barred.contains(it));
        mutate!(MakoMovesAccessed: is_barred => false)
    }

    /// Whether a range may have rows of slots that move.
    fn bars_range(&self, table: TableId, range: &KeyRange) -> bool {
        if self.barred.is_empty() {
            return false;
        }
        let is_barred =
            self.partitions.slots_of(table, range).is_some_and(|it| it.meets(&self.barred));
        mutate!(MakoMovesAccessed: is_barred => false)
    }

    /// The numbers of all shards.
    pub(super) fn ids(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.partitions.shards()).map(ShardId)
    }

    /// The shard of a node.
    pub(super) fn shard_of(&self, node: NodeId) -> Option<ShardId> {
        self.ids().find(|shard| self.groups[usize::from(shard.0)].member(node).is_some())
    }

    /// The node that leads a shard in the last epoch that is known here.
    pub(super) fn leader_of(&self, shard: ShardId) -> Option<NodeId> {
        let leader = self.config.leaders.get(usize::from(shard.0))?;
        Some(self.groups[usize::from(shard.0)].node(*leader))
    }

    /// The leader of another shard, if it executes transactions in this epoch.
    pub(super) fn leading(&self, shard: ShardId) -> Option<NodeId> {
        let node = self.leader_of(shard)?;
        let other = self.others.get(&node)?;
        let told = &other.told;
        let leads = told.flags.leads && told.leadership.number == self.since(shard);
        (leads && other.is_up).then_some(node)
    }

    /// The leader of another shard, if it also knows the last epoch: it takes items of it.
    fn taking(&self, shard: ShardId) -> Option<NodeId> {
        self.leading(shard).filter(|node| self.is_of_epoch(*node))
    }

    /// The watermarks by the entries of clocks.
    fn watermarks(&self) -> Vec<SnapshotVersion> {
        self.clocks.watermarks(&self.watermarks)
    }

    /// The watermark of this shard.
    fn own_watermark(&self) -> SnapshotVersion {
        self.watermarks[usize::from(self.own.0)]
    }
}

impl Mako {
    /// The state of several shards, which the caller knows to be there.
    fn shards(&mut self) -> &mut Shards {
        self.state.shards.as_mut().expect("only called if tables are partitioned")
    }

    /// The state of a leader of one of several shards.
    fn coordination(&mut self) -> Option<&mut Coordination> {
        match &mut self.state.role {
            Role::Leading(leading) => Some(&mut leading.over),
            Role::Following | Role::Closing(_) => None,
        }
    }

    /// Makes progress with transactions over several shards, after an input.
    pub(super) fn advance_shards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.shards.is_none() {
            return;
        }
        self.try_again(cx);
        self.run_waiters(cx);
        self.advance_migration(cx);
        self.close_for_others(cx);
        self.close_batch(cx);
        self.gossip(cx, false);
        self.flush_items(cx);
        self.set_shards_timer(cx);
        if let Role::Leading(leading) = &self.state.role
            && !leading.queue.is_empty()
        {
            // A row was unlocked.
            cx.resume();
        }
    }

    /// A node of another shard is connected, or not any more.
    pub(super) fn note_other(&mut self, cx: &mut Cx<'_, Self>, node: NodeId, is_up: bool) {
        let Some(shards) = &mut self.state.shards else { return };
        let Some(other) = shards.others.get_mut(&node) else { return };
        other.is_up = is_up;
        if is_up {
            self.forward_again(node);
            self.send_progress(cx);
        } else {
            self.on_leader_lost(cx, node);
        }
    }

    /// The timer of this component expires.
    pub(super) fn on_shards_timeout(&mut self) {
        if let Some(shards) = &mut self.state.shards {
            shards.timer = None;
        }
    }

    fn set_shards_timer(&mut self, cx: &mut Cx<'_, Self>) {
        let Role::Leading(leading) = &self.state.role else { return };
        let next_try = leading.over.resting.first().map(|(at, _)| *at);
        let due = next_try.into_iter().chain(leading.over.closing_at).min();
        let shards = self.shards();
        let Some(due) = due.filter(|due| shards.timer.is_none_or(|at| *due < at)) else { return };
        shards.timer = Some(due);
        let delay = if due > cx.now.at { due.since(cx.now.at) } else { Span::ZERO };
        cx.set_timer(Timer::Shards, delay.max(Span::from_us(1)));
    }
}
