//! The fast path (§3.4): replicas reply when a transaction is ready, before it is in their logs.
//!
//! ```text
//!   coordinator        leader                    followers
//!     | Submit ========> | <===================== | persisted, in time?
//!     |                  : the clock passes the stamp
//!     | <== FastReplies: stamp, prefix, result ==|== FastReplies: stamp, prefix
//!     | a super quorum is equal: committed
//! ```
//!
//! A follower takes transactions that arrive in time in the order of their stamps. It does not run
//! them. Its reply tells the hash of the conflicting transactions before. If the leader ran the
//! transaction after the same ones, and enough replicas have all of them on their disks, a later
//! leader will run it with the same result: see [`super::hashes`] and [`super::rebuild`].
//!
//! With several shards only divisible transactions have replies, and these have no hashes
//! (`shards/fast_commit.rs`). A follower orders them by their stamps alone: when it has replied, it
//! accepts nothing more up to its clock, whatever the footprint.
//!
//! # Differences from the paper
//!
//! - Replies wait for the disk: the transaction is there, and on the leader its cell.
//! - If a program has left its footprint, its run depends on rows that no hash covers. The leader
//!   tells no hash until that cell is committed.
//! - A leader that was busy lately adds cells without transactions to its log, because a follower
//!   knows only from the log that it has everything up to the base of a hash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pangea_core::exec::timed::TimedQueue;
use pangea_core::ids::{LogPosition, NodeId, ShardId, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::Footprint;

use super::cells::{Cell, last_of};
use super::fast_replies::Reply;
use super::hashes::{Hashes, PrefixHash};
use super::log::Position;
use super::options::{Options, Path};
use super::rebuild::{Entry, keep_unsynced};
use super::stamp::Stamp;
use super::state::State;
use super::transactions::Stamped;
use super::{Tiga, Timer};

/// The seed of hashes. Clients choose neither ids nor stamps.
const SEED: u64 = 0x7469_6761;

/// How a transaction arrives at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The replica will reply, unless the log of the leader contradicts that.
    InTime,
    /// Something that is not before it was replied to, or is in the log.
    Late,
    /// The replica takes no part in the fast path, or not for this transaction.
    Refused,
}

/// What a replica knows of the order in its view beside the log.
#[derive(Debug)]
pub(super) struct FastPath {
    /// The transactions that have arrived in time at this follower and are not ready.
    queue: TimedQueue,
    /// The transactions that have arrived in time and are not in the log, each with the record that
    /// says so.
    unsynced: BTreeMap<TxnId, (Stamp, LogPosition)>,
    hashes: Hashes,
    /// The largest stamp of a reply.
    told: Stamp,
    /// Nothing at or below this stamp is in time, whatever its footprint.
    promised: Stamp,
    /// The replies of this step, and the records that must be durable first.
    pub replies: BTreeMap<NodeId, (Vec<Reply>, LogPosition)>,
}

impl FastPath {
    /// At the beginning of a view. Nothing is in time at or below `floor`.
    pub(super) fn new(window: Span, floor: Stamp) -> Self {
        let mut queue = TimedQueue::default();
        queue.raise_window(floor.into());
        Self {
            queue,
            unsynced: BTreeMap::new(),
            hashes: Hashes::new(SEED, window),
            told: floor,
            promised: floor,
            replies: BTreeMap::new(),
        }
    }

    /// The record at this position says that a transaction arrived in time.
    pub(super) fn note_in_time(&mut self, Entry { stamp, txn }: Entry, record: LogPosition) {
        self.unsynced.insert(txn, (stamp, record));
    }

    /// With several shards, after a restart: the replica may have told that it has passed this.
    pub(super) fn restore_promise(&mut self, passed: Stamp) {
        self.promise(mutate!(PassedForgotten: passed => Stamp::ZERO));
    }

    /// Accepts nothing more at or below a stamp.
    pub(super) fn promise(&mut self, upto: Stamp) {
        let upto = mutate!(PassedAccepted: upto => Stamp::ZERO);
        self.promised = upto.max(self.promised);
        self.queue.raise_window(self.promised.into());
    }

    /// With several shards: takes the transactions that are not ready, up to a stamp that the
    /// clock has passed, each with the record that says that it was in time.
    pub(super) fn take_passed(&mut self, clock: Stamp) -> Vec<(Entry, LogPosition)> {
        let pending = self.queue.pending();
        let due = pending.take_while(|(version, _)| Stamp::from(*version) <= clock);
        let due: Vec<TxnId> = due.map(|(_, txn)| txn).collect();
        due.iter().for_each(|txn| self.queue.remove(*txn));
        let of = |txn: TxnId| {
            let (stamp, record) = *self.unsynced.get(&txn)?;
            Some((Entry { stamp, txn }, record))
        };
        due.into_iter().filter_map(of).collect()
    }

    /// With several shards: takes the cells of the leader's log. What is at or below them was
    /// in time, and is in them, or was not.
    pub(super) fn close(&mut self, cells: &[Cell]) {
        let Some(last) = cells.last() else { return };
        let upto = last_of(last.version);
        let logged: BTreeSet<TxnId> = entries_of(cells).map(|entry| entry.txn).collect();
        let queue = &mut self.queue;
        self.unsynced.retain(|txn, (stamp, _)| {
            let is_open = *stamp > upto && !logged.contains(txn);
            if !is_open && queue.version(*txn).is_some() {
                queue.remove(*txn);
            }
            is_open
        });
        self.promise(upto);
    }

    /// Adds the word that a transaction was late.
    pub(super) fn push_late(&mut self, to: NodeId, reply: Reply) {
        let (replies, _) = self.replies.entry(to).or_default();
        replies.push(reply);
    }

    /// The stamp at or below which a replica has replied, or promised that nothing is in time.
    pub(super) fn told(&self) -> Stamp {
        self.told
    }

    /// The stamp of the next transaction that is not ready.
    pub(super) fn next(&self) -> Option<Stamp> {
        self.queue.pending().next().map(|(version, _)| version.into())
    }

    /// The stamp at or below which nothing arrives in time after a restart.
    pub(super) fn told_at_most(&self) -> Stamp {
        let last = self.unsynced.values().map(|(stamp, _)| *stamp).max();
        self.told.max(last.unwrap_or_default())
    }

    /// The transactions that have arrived in time and are not in the log.
    pub(super) fn unsynced(&self) -> Vec<Entry> {
        let entries =
            self.unsynced.iter().map(|(txn, (stamp, _))| Entry { stamp: *stamp, txn: *txn });
        let mut entries: Vec<Entry> = entries.collect();
        entries.sort_unstable();
        entries
    }

    /// Whether a transaction has arrived in time and is not in the log.
    pub(super) fn has_unsynced(&self, txn: TxnId) -> bool {
        self.unsynced.contains_key(&txn)
    }

    /// Restores an acceptance after a restart: nothing is in time before it any more.
    pub(super) fn restore(&mut self, entry: Entry, footprint: Arc<Footprint>) {
        let Entry { stamp, txn } = entry;
        self.unsynced.insert(txn, (stamp, LogPosition(0)));
        self.hashes.insert(txn, stamp, footprint);
    }

    /// A transaction arrives at a follower. Returns whether it is in time.
    pub(super) fn accept(&mut self, txn: TxnId, stamp: Stamp, footprint: Arc<Footprint>) -> bool {
        let is_known = self.unsynced.contains_key(&txn) || self.queue.version(txn).is_some();
        let is_taken = self.queue.is_taken(stamp.into());
        let is_in_time = !is_known && !is_taken && stamp > self.queue.floor(&footprint).into();
        if is_in_time {
            self.queue.insert(txn, stamp.into(), footprint);
        }
        is_in_time
    }

    /// Adds a reply, which is sent at the end of the step.
    pub(super) fn push(&mut self, to: NodeId, reply: Reply, after: LogPosition) {
        self.told = self.told.max(reply.stamp);
        let (replies, record) = self.replies.entry(to).or_default();
        replies.push(reply);
        *record = after.max(*record);
    }

    /// Takes the cells of the leader's log: what contradicts them was not in time.
    fn take_cells(&mut self, cells: &[Cell], footprint: &dyn Fn(TxnId) -> Arc<Footprint>) {
        let logged: Vec<Entry> = entries_of(cells).collect();
        let do_conflict =
            |one: TxnId, other: TxnId| footprint(one).conflicts_with(&footprint(other));
        let mut unsynced = self.unsynced();
        for dropped in keep_unsynced(&mut unsynced, &logged, do_conflict) {
            self.unsynced.remove(&dropped.txn);
            if self.queue.version(dropped.txn).is_some() {
                self.queue.remove(dropped.txn);
            } else {
                self.hashes.remove(dropped.stamp);
            }
        }
        for Entry { stamp, txn } in logged {
            let footprint = footprint(txn);
            self.queue.raise_floor(txn, stamp.into(), footprint.clone());
            self.hashes.insert(txn, stamp, footprint);
        }
    }
}

/// The transactions of cells, in their order.
pub(super) fn entries_of<'a>(
    cells: impl IntoIterator<Item = &'a Cell>,
) -> impl Iterator<Item = Entry> {
    let txns = cells.into_iter().flat_map(|cell| &cell.txns);
    txns.map(|(txn, stamp)| Entry { stamp: *stamp, txn: *txn })
}

/// Whether a cluster can use the fast path. Super quorums need 2f + 1 replicas of each shard.
pub(super) fn is_fast_possible(cluster: &Topology) -> bool {
    let shard = |node: NodeId| cluster.nodes[node.index()].shard;
    (0..cluster.partitions.shards()).map(ShardId).all(|of| {
        let n = cluster.voter_ids().filter(|node| shard(*node) == of).count();
        n > 1 && !n.is_multiple_of(2)
    })
}

/// Whether a cluster with these settings uses the fast path, in some view.
pub(super) fn has_fast_path(cluster: &Topology, options: &Options) -> bool {
    let is_of_use = match options.path {
        Path::Simple => false,
        Path::Super => true,
        // With one shard and three replicas, all of them have to reply: the logs are quicker.
        Path::Auto => cluster.partitions.shards() > 1 || cluster.voter_count() > 3,
    };
    is_of_use && is_fast_possible(cluster)
}

impl State {
    /// Whether replicas reply before transactions are in the log, in this view.
    pub(super) fn is_fast_view(&self) -> bool {
        self.has_fast_path && (!self.is_divided() || self.views.view.is_detective)
    }

    /// Whether replies have hashes: with one shard.
    pub(super) fn has_hashes(&self) -> bool {
        self.has_fast_path && !self.is_divided()
    }

    /// Whether this replica replies as a follower. Behind a peer's checkpoint in memory it does
    /// not: after a restart it would have an earlier log, and nothing that it has accepted or
    /// promised in this view.
    pub(super) fn follows_fast(&self) -> bool {
        let is_follower = self.leading.is_none() && self.is_normal() && self.is_whole();
        let is_durable = self.log.needed_base() == Position(0);
        let is_durable = mutate!(FastBehindCheckpoint: is_durable => true);
        is_follower && is_durable && self.replica.votes() && self.is_fast_view()
    }

    /// At the beginning of a view, or of a run.
    pub(super) fn start_fast_path(&mut self, floor: Stamp) {
        let window = Span::from_ms(self.options.window_ms);
        self.fast = FastPath::new(window, floor);
        if !self.has_hashes() {
            return;
        }
        // The entries of the log that a prefix can contain.
        let since = last_of(self.log.last_version()).before(self.options.kept());
        let base = self.log.base();
        let mut first = self.log.last();
        while first > base && last_of(self.log.version_at(first)) > since {
            first = Position(first.0 - 1);
        }
        // There is no hash of cells before the log.
        self.fast.hashes.forget(since.max(last_of(self.log.version_at(base))));
        let cells = self.log.suffix(first).cells;
        self.follow_cells(&cells);
    }

    /// Continues in a view after the log has been read, or has moved to a checkpoint: these have
    /// arrived in time and are not in the log. Nothing more is in time before what this replica may
    /// have replied to.
    pub(super) fn continue_fast_path(&mut self, told: Stamp, in_time: Vec<Entry>) {
        let last = in_time.iter().map(|entry| entry.stamp).max().unwrap_or_default();
        let promised = self.fast.promised;
        self.start_fast_path(last_of(self.log.last_version()).max(told).max(last));
        self.fast.promise(promised);
        let before = last_of(self.log.version_at(self.log.base()));
        for Entry { stamp, txn } in in_time {
            // An entry at or below the base, and not in a cell up to there, came too late.
            let is_logged = self.log.contains(txn) || self.done.is_committed(txn);
            if stamp > before && !is_logged && self.has_fast_path {
                let footprint = self.fast_footprint(txn);
                self.fast.restore(Entry { stamp, txn }, footprint);
            }
        }
    }

    /// §3.2: a transaction arrives at a follower. If it is in time, the log must say so before the
    /// follower replies.
    pub(super) fn follow(&mut self, cx: &Cx<'_, Tiga>, stamped: &Stamped) -> Arrival {
        let txn = stamped.request.txn;
        if !self.follows_fast() || self.is_logged(txn) || !self.may_be_in_time(stamped) {
            return Arrival::Refused;
        }
        // The leader replaces such a stamp.
        let most_us = self.clock_us(cx) + Span::from_ms(self.options.future_max_ms).us;
        if stamped.stamp.us() > most_us {
            return Arrival::Refused;
        }
        let footprint = match self.is_divided() {
            true if !self.is_fast_txn(stamped) => return Arrival::Refused,
            true => Arc::default(),
            false => Arc::new(stamped.footprint(&self.registry)),
        };
        match self.fast.accept(txn, stamped.stamp, footprint) {
            true => Arrival::InTime,
            false => Arrival::Late,
        }
    }

    /// The footprint of a transaction that this replica has.
    pub(super) fn footprint_of(&self, txn: TxnId) -> Arc<Footprint> {
        let stamped = self.transactions.get(txn).expect("the transaction is here");
        Arc::new(stamped.footprint(&self.registry))
    }

    /// The footprint by which the fast path orders a transaction. With several shards it is empty:
    /// nothing comes before a stamp for which a replica has replied.
    fn fast_footprint(&self, txn: TxnId) -> Arc<Footprint> {
        if self.is_divided() { Arc::default() } else { self.footprint_of(txn) }
    }

    /// Cells were appended to a follower's log.
    pub(super) fn follow_cells(&mut self, cells: &[Cell]) {
        if self.has_fast_path && self.is_divided() {
            self.fast.close(cells);
        }
        if !self.has_hashes() {
            return;
        }
        let kept = self.options.kept();
        let State { fast, transactions, registry, .. } = self;
        let footprint = |txn: TxnId| {
            let stamped = transactions.get(txn).expect("the transaction is here");
            Arc::new(stamped.footprint(registry))
        };
        fast.take_cells(cells, &footprint);
        let last = cells.last().map_or(Stamp::ZERO, |cell| last_of(cell.version));
        fast.hashes.forget(last.before(kept));
    }

    /// The hash of what is before a transaction of the leader's log, which is noted as a writer.
    /// `None` if a program has left its footprint.
    pub(super) fn lead_prefix(&mut self, entry: Entry) -> Option<PrefixHash> {
        let footprint = self.footprint_of(entry.txn);
        let hashes = &mut self.fast.hashes;
        hashes.raise_synced(last_of(self.log.last_version()));
        let prefix = hashes.prefix(entry.stamp, &footprint);
        hashes.insert(entry.txn, entry.stamp, footprint);
        prefix.filter(|_| self.commit.strayed <= self.commit.committed)
    }
}

impl Tiga {
    /// §3.3: a follower replies for the transactions whose stamps its clock has passed.
    pub(super) fn reply_ready(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.is_divided() {
            return self.reply_passed(cx);
        }
        let now = self.state.clock_us(cx);
        let clock = Stamp::last_of(now.min(self.state.ceiling.durable.us)).into();
        let state = &mut self.state;
        if state.leading.is_some() || !state.is_normal() {
            return;
        }
        let Some(next) = state.fast.next() else { return };
        state.raise_ceiling(cx, now);
        if next.us() > now {
            return cx.set_timer(Timer::Release, Span::from_us(next.us() - now));
        }
        // Cells before the log are committed.
        let synced = state.log.durable().max(state.log.base());
        let synced = last_of(state.log.version_at(synced));
        state.fast.hashes.raise_synced(synced);
        loop {
            let heads = state.fast.queue.heads().take_while(|(version, _)| *version <= clock);
            let due: Vec<_> = heads.collect();
            if due.is_empty() {
                return;
            }
            for (version, txn) in due {
                let stamp = Stamp::from(version);
                let footprint = state.footprint_of(txn);
                let fast = &mut state.fast;
                fast.queue.make_ready(txn);
                fast.queue.release(txn);
                let prefix = fast.hashes.prefix(stamp, &footprint);
                fast.hashes.insert(txn, stamp, footprint);
                let Some((_, record)) = fast.unsynced.get(&txn).copied() else { continue };
                if prefix.is_some() {
                    cx.mark("tiga.fast_reply");
                    let reply = Reply { txn, stamp, prefix, result: None };
                    fast.push(txn.node(), reply, record);
                }
            }
        }
    }
}
