//! The fast path over several shards (§3.4, §3.8): a divisible transaction is committed when a
//! super quorum of each of its shards has it at the stamp of its coordinator.
//!
//! ```text
//!   coordinator      leaders of its shards   their followers      replicas of other shards
//!     |== Submit =====> | <=================== | persisted, in time?   |
//!     |-- Close ---------------------------------------------------->  |
//!     |                 :  all clocks pass the cell of its stamp       :
//!     | <= FastReplies =| its cell is closed, on the disk              :
//!     | <===================== FastReplies == | its clock is past it   :
//!     | <------------------------------------------------- Closed ----|
//! ```
//!
//! With the detective approach the leaders of its shards do not speak with each other, so this is
//! one round trip, wherever they are.
//!
//! **Which transactions.** Those whose programs are divided over their shards
//! ([`Procedure::is_divisible`](pangea_core::txn::Procedure::is_divisible)). Their results depend
//! on the arguments alone, and they never abort. So the coordinator computes the result before
//! anybody has run the transaction, and replies have no hashes: whatever comes before it, its
//! result is the same, and others read what it wrote when its cell is committed. All others commit
//! by the logs.
//!
//! **It is durable.** Each of its leaders has the cell with it in the log, on its disk. If some
//! report of the next view has that cell, the transaction is in the log of that view. Otherwise the
//! reports are of followers, ⌈f/2⌉ + 1 of which have accepted it in time, and no log reaches its
//! stamp, because a log has whole cells. So it is recovered (`rebuild.rs`), on each of its shards,
//! at the one stamp. What is recovered on some of its shards alone was not committed: it is void.
//!
//! **Nothing that began later comes before it.** Transaction T is answered, and then X begins.
//!
//! - If a leader of the view accepts X, it does so above the cell of T. All leaders have closed it:
//!   those of T by their replies, and the others have told the coordinator.
//! - If X was only accepted in time by followers, it may be recovered at the stamp of its
//!   coordinator. A follower that has replied accepts nothing more at or below its clock, whatever
//!   the footprint. The others of a shard of T are too few to recover X. In the other shards as
//!   many replicas promise the same ([`Sizes::blocking`]). Without that, X could be recovered on
//!   shards without a part in T, before a transaction of these and of T that is before T.
//!   If there is one of these shards alone, its leader's word is enough: X has another shard, of T.
//! - In a later view all logs begin at or after T, and nothing comes before their end.
//!
//! The promises need not be durable, but for a restart of a follower in the same view. It accepts
//! nothing below its ceiling then (`ceiling.rs`).
//!
//! **No snapshot misses it.** A version is published when the logs of all shards are committed up
//! to it. In a view with this path a leader that is asked to close a cell appends an empty one.
//! Otherwise the next view could recover a transaction at or below a published version, on a shard
//! whose leader had closed the version without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::{Overlay, is_divisible, optimistic};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;
use pangea_core::txn::Program;

use super::super::cells::{Cell, cell_of, end_of, last_of, over_at};
use super::super::decided::View;
use super::super::fast_path::entries_of;
use super::super::fast_replies::Reply;
use super::super::hashes::PrefixHash;
use super::super::log::ViewNumber;
use super::super::messages::Message;
use super::super::quorum::{FastReply, Path, Replies, Sizes, Verdict};
use super::super::rebuild::Entry;
use super::super::stamp::{Stamp, US_MAX};
use super::super::state::State;
use super::super::transactions::Stamped;
use super::super::{Tiga, Timer};

/// The maximum number of cells for which one coordinator waits. More of them get no answer.
const ASKED_MAX: usize = 4_096;

/// The replies for a transaction from the replicas of its shards.
#[derive(Clone, Debug)]
pub(in super::super) struct ByShard {
    replies: BTreeMap<ShardId, Replies<()>>,
}

/// The word of replicas that a cell is closed: of this one, and as this one has heard it.
#[derive(Debug)]
pub(in super::super) struct Closing {
    /// The coordinators that wait for this replica, and for which cells.
    asked: BTreeMap<NodeId, BTreeSet<SnapshotVersion>>,
    /// The last cell up to which each replica accepts nothing more, and in which view.
    told: Vec<(ViewNumber, SnapshotVersion)>,
    /// Transactions of this coordinator that lack the word of others alone.
    waiting: BTreeMap<Stamp, TxnId>,
}

impl ByShard {
    /// No replies of shards, which have these sizes.
    pub(in super::super) fn new(sizes: impl Iterator<Item = (ShardId, Sizes)>) -> Self {
        let replies = sizes.map(|(shard, sizes)| (shard, Replies::new(sizes)));
        Self { replies: replies.collect() }
    }

    /// A replica of a shard has replied.
    pub(in super::super) fn note(&mut self, shard: ShardId, from: NodeId, reply: FastReply<()>) {
        if let Some(replies) = self.replies.get_mut(&shard) {
            replies.on_fast_reply(from, reply);
        }
    }

    /// Whether a super quorum of each shard has the transaction at a stamp, and in which view.
    pub(in super::super) fn committed_at(&self, stamp: Stamp) -> Option<ViewNumber> {
        let of_shard = |replies: &Replies<()>| match replies.verdict() {
            Verdict::Committed { path: Path::Fast, view, stamp: at } if at == stamp => Some(view),
            _ => None,
        };
        let mut views = self.replies.values().map(of_shard);
        let all = |mut views: BTreeSet<Option<ViewNumber>>| match views.len() {
            1 => views.pop_first().flatten(),
            _ => None,
        };
        mutate!(FastOnOneShard: all(views.collect()) => views.find_map(|view| view))
    }
}

impl Closing {
    pub(in super::super) fn new(node_count: usize) -> Self {
        let told = vec![Default::default(); node_count];
        Self { asked: BTreeMap::new(), told, waiting: BTreeMap::new() }
    }

    /// A replica accepts nothing more up to a cell, in a view.
    pub(in super::super) fn note_told(
        &mut self,
        from: NodeId,
        view: ViewNumber,
        cell: SnapshotVersion,
    ) {
        let told = &mut self.told[from.index()];
        *told = (view, cell).max(*told);
    }

    /// Whether enough replicas of a shard without a part in a transaction have told, in a view,
    /// that they accept nothing more up to a cell.
    fn has_closed(
        &self,
        (group, leader): (&[NodeId], NodeId),
        (view, cell): (ViewNumber, SnapshotVersion),
        needed: usize,
    ) -> bool {
        let has_told = |node: &NodeId| {
            let (of, upto) = self.told[node.index()];
            of == view && upto >= cell
        };
        has_told(&leader) && group.iter().filter(|node| has_told(node)).count() >= needed
    }

    /// Whether all of these shards have closed a cell. Each is given by its replicas and leader.
    pub(in super::super) fn have_closed<'a>(
        &self,
        others: impl Iterator<Item = (&'a [NodeId], NodeId)>,
        view: ViewNumber,
        cell: SnapshotVersion,
    ) -> bool {
        let others: Vec<_> = others.collect();
        let has_closed = |(group, leader): &(&[NodeId], NodeId)| {
            let blocking = Sizes::of(group.len()).blocking();
            let needed = if is_word_of_leaders(others.len()) { 1 } else { blocking };
            let needed = mutate!(ClosedByLeader: needed => 1);
            let has_closed = self.has_closed((group, *leader), (view, cell), needed);
            mutate!(FastWithoutOthers: has_closed => true)
        };
        others.iter().all(has_closed)
    }

    /// Another view begins.
    pub(in super::super) fn forget_asked(&mut self) {
        self.asked.clear();
    }

    /// The first cell for which a coordinator waits.
    fn first_asked(&self) -> Option<SnapshotVersion> {
        self.asked.values().filter_map(|cells| cells.first()).min().copied()
    }
}

/// Whether the word of leaders is enough, if this number of shards has no part in a transaction. A
/// later one that followers have accepted has several shards, so it has one of this transaction.
fn is_word_of_leaders(others: usize) -> bool {
    others < 2
}

/// The cell that a leader appends when it tells that nothing more comes up to a cell. What its
/// followers have accepted in time up to there is not recovered then.
pub(in super::super) fn cell_of_word(told: SnapshotVersion) -> SnapshotVersion {
    mutate!(ClosedWithoutCell: told => SnapshotVersion::ZERO)
}

/// The hash in replies whose result depends on nothing before.
fn no_prefix() -> Option<PrefixHash> {
    Some(PrefixHash::default())
}

impl State {
    /// Whether a program is divided over shards, so that its result is known without a run.
    fn is_divided_program(&self, program: &Program, has_found: bool, shards: ShardSet) -> bool {
        let Program::Call { procedure, args } = program else { return false };
        // A program with a given footprint, or on one shard, is run as any other.
        !has_found && shards.len() > 1 && is_divisible(&self.registry, *procedure, args)
    }

    /// Whether replicas reply to a transaction before it is in their logs, with several shards.
    pub(in super::super) fn is_fast_txn(&self, stamped: &Stamped) -> bool {
        let request = &stamped.request;
        let has_found = request.footprint.is_some();
        self.is_divided_program(&request.program, has_found, request.shards)
    }

    /// The replies that a coordinator waits for, if the transaction can be committed by them.
    pub(in super::super) fn no_replies_of_shards(
        &self,
        program: &Program,
        has_found: bool,
        shards: ShardSet,
    ) -> Option<ByShard> {
        let is_fast = self.is_divided() && self.is_fast_view();
        let is_here = |node: &&NodeId| **node == self.node || self.is_up[node.index()];
        let are_there = |shard: ShardId| {
            let group = &self.groups[usize::from(shard.0)];
            group.iter().filter(is_here).count() >= Sizes::of(group.len()).super_quorum()
        };
        // Otherwise its stamp need not be later.
        let is_fast = is_fast && shards.iter().all(are_there);
        if !is_fast || !self.is_divided_program(program, has_found, shards) {
            return None;
        }
        let sizes = |shard: ShardId| Sizes::of(self.groups[usize::from(shard.0)].len());
        Some(ByShard::new(shards.iter().map(|shard| (shard, sizes(shard)))))
    }

    /// Whether the shards without a part in a transaction have closed its cell, in this view.
    fn have_others_closed(
        &self,
        shards: ShardSet,
        view: ViewNumber,
        cell: SnapshotVersion,
    ) -> bool {
        let View { number, leaders, .. } = &self.views.view;
        let all = (0..).map(ShardId).zip(&self.groups).zip(leaders);
        let others = all.filter(|((shard, _), _)| !shards.contains(*shard));
        let others = others.map(|((_, group), leader)| (&group[..], *leader));
        *number == view && self.closing.have_closed(others, view, cell)
    }

    /// §3.3: the leader replies for transactions of cells that it has just added to its log.
    pub(in super::super) fn reply_closed(&mut self, cx: &Cx<'_, Tiga>, cells: &[Cell]) {
        if !self.is_divided() || !self.is_fast_view() {
            return;
        }
        for Entry { txn, stamp } in entries_of(cells) {
            let stamped = self.transactions.get(txn).expect("a leader has what it orders");
            if self.is_fast_txn(stamped) {
                let stamp = mutate!(FastAtRaised: stamp => stamped.stamp);
                let result = Some(Ok(Vec::new()));
                let reply = Reply { txn, stamp, prefix: no_prefix(), result };
                self.fast.push(txn.node(), reply, cx.log_head());
            }
        }
    }

    /// A transaction has arrived too late at this follower: its coordinator learns it.
    pub(in super::super) fn reply_late(&mut self, cx: &mut Cx<'_, Tiga>, stamped: &Stamped) {
        let (txn, stamp) = (stamped.request.txn, stamped.stamp);
        cx.mark("tiga.late_at_follower");
        self.fast.push_late(txn.node(), Reply { txn, stamp, prefix: None, result: None });
    }
}

impl Tiga {
    /// A follower replies for transactions whose stamps its clock has passed. It tells that it has
    /// passed the cells for which others wait. A leader tells that when it has closed them.
    pub(in super::super) fn reply_passed(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.is_fast_view() || !self.state.is_normal() {
            return;
        }
        let is_waited_for =
            |state: &State| state.fast.next().is_some() || state.closing.first_asked().is_some();
        if !is_waited_for(&self.state) {
            return;
        }
        let now = self.state.clock_us(cx);
        self.state.raise_ceiling(cx, now);
        if let Some(leading) = &self.state.leading {
            let closed = leading.closed();
            return self.tell_closed(cx, closed);
        }
        let upto = now.min(self.state.ceiling.durable.us);
        self.reply_in_time(cx, Stamp::last_of(upto));
        self.tell_closed(cx, over_at(upto));
        let next = self.state.fast.next().map(Stamp::us);
        let asked = self.state.closing.first_asked().map(end_of);
        let later = next.into_iter().chain(asked).filter(|us| *us > now);
        if let Some(us) = later.min() {
            cx.set_timer(Timer::Release, Span::from_us(us - now));
        }
    }

    /// Replies for the transactions that have arrived in time at this follower, up to a stamp that
    /// its clock has passed. It accepts nothing more up to there.
    fn reply_in_time(&mut self, cx: &mut Cx<'_, Self>, clock: Stamp) {
        let fast = &mut self.state.fast;
        let due = fast.take_passed(clock);
        if due.is_empty() {
            return;
        }
        fast.promise(clock);
        for (Entry { txn, stamp }, record) in due {
            cx.mark("tiga.fast_reply");
            fast.push(txn.node(), Reply { txn, stamp, prefix: no_prefix(), result: None }, record);
        }
    }

    /// Tells coordinators that this replica accepts nothing more up to a cell.
    fn tell_closed(&mut self, cx: &mut Cx<'_, Self>, cell: SnapshotVersion) {
        let State { closing, fast, views, .. } = &mut self.state;
        let view = views.view.number;
        let mut told = Vec::new();
        closing.asked.retain(|node, cells| {
            let later = cells.split_off(&cell.next());
            if !std::mem::replace(cells, later).is_empty() {
                told.push(*node);
            }
            !cells.is_empty()
        });
        if told.is_empty() {
            return;
        }
        fast.promise(last_of(cell));
        for node in told {
            if node == self.state.node {
                self.on_closed(cx, node, view, cell);
            } else {
                cx.send(node, Message::Closed { view: view.0, cell });
            }
        }
    }

    /// Replicas of shards that have no part in transactions of this step have to close their cells.
    /// If leaders agree before the release, they ask each other for that.
    pub(in super::super) fn ask_to_close(&mut self, cx: &mut Cx<'_, Self>, all: &[Arc<Stamped>]) {
        if !self.state.views.view.is_detective {
            return;
        }
        for shard in (0..self.state.cluster.partitions.shards()).map(ShardId) {
            let without = all.iter().filter(|stamped| !stamped.request.shards.contains(shard));
            let is_fast = |stamped: &&Arc<Stamped>| {
                let own = self.state.coordinator.in_flight.get(&stamped.request.txn);
                own.is_some_and(|own| own.by_shard.is_some())
            };
            let needs_followers = |stamped: &&Arc<Stamped>| {
                let count = usize::from(self.state.cluster.partitions.shards());
                !is_word_of_leaders(count - stamped.request.shards.len())
            };
            let stamp = |stamped: &Arc<Stamped>| stamped.stamp;
            let last = without.clone().map(stamp).max();
            let fast = without.clone().filter(is_fast).map(stamp).max();
            let of_all = without.filter(is_fast).filter(needs_followers).map(stamp).max();
            let Some(leader) = self.state.views.leader_of(shard) else { continue };
            if let Some(fast) = fast {
                self.send_close(cx, leader, cell_of(fast), true);
            }
            if let Some(last) = last.filter(|_| last > fast) {
                self.send_close(cx, leader, cell_of(last), false);
            }
            let followers = self.state.groups[usize::from(shard.0)].clone();
            let followers = followers.into_iter().filter(|node| *node != leader);
            for node in followers.filter(|_| of_all.is_some()) {
                self.send_close(cx, node, cell_of(of_all.unwrap_or_default()), true);
            }
        }
    }

    /// The leaders of all shards have to close a cell, for which a strict read waits.
    pub(in super::super) fn ask_all_to_close(
        &mut self,
        cx: &mut Cx<'_, Self>,
        cell: SnapshotVersion,
    ) {
        for leader in self.state.views.view.leaders.clone() {
            self.send_close(cx, leader, cell, false);
        }
    }

    fn send_close(
        &mut self,
        cx: &mut Cx<'_, Self>,
        to: NodeId,
        cell: SnapshotVersion,
        is_answered: bool,
    ) {
        let view = self.state.views.view.number;
        if to == self.state.node {
            self.on_close(cx, to, (view, cell), is_answered);
        } else {
            cx.send(to, Message::Close { view: view.0, cell, is_answered });
        }
    }

    /// A coordinator has transactions up to a cell in which this shard has no part.
    pub(in super::super) fn on_close(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (view, cell): (ViewNumber, SnapshotVersion),
        is_answered: bool,
    ) {
        if end_of(cell) > US_MAX || !self.state.is_divided() {
            return cx.mark("tiga.malformed_notices");
        }
        let state = &mut self.state;
        let is_answered = is_answered && state.is_fast_view() && state.is_whole();
        let takes_part = state.leading.is_some() || is_answered && state.follows_fast();
        if state.views.view.number != view || !takes_part {
            return cx.mark("tiga.notices_of_another_view");
        }
        let now = state.clock_us(cx);
        state.raise_ceiling(cx, now);
        if let Some(leading) = &mut state.leading {
            leading.note_asked(cell, false);
        }
        let asked = state.closing.asked.entry(from).or_default();
        if is_answered && asked.len() < ASKED_MAX {
            asked.insert(cell);
        }
    }

    /// A replica accepts nothing more up to a cell.
    pub(in super::super) fn on_closed(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: ViewNumber,
        cell: SnapshotVersion,
    ) {
        if end_of(cell) > US_MAX || !self.state.is_divided() {
            return cx.mark("tiga.malformed_notices");
        }
        let closing = &mut self.state.closing;
        closing.note_told(from, view, cell);
        let due: Vec<TxnId> =
            closing.waiting.range(..=last_of(cell)).map(|(_, txn)| *txn).collect();
        due.into_iter().for_each(|txn| self.commit_if_fast(cx, txn));
    }

    /// A replica of a shard has replied to a transaction of this node.
    pub(in super::super) fn count_reply_of_shard(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: ViewNumber,
        Reply { txn, stamp, prefix, result }: Reply,
    ) {
        let shard = self.state.cluster.nodes[from.index()].shard;
        let Some(own) = self.state.coordinator.in_flight.get_mut(&txn) else { return };
        let Some(by_shard) = &mut own.by_shard else { return };
        own.is_late |= prefix.is_none() || stamp > own.stamped.stamp;
        // Replies with a result are those of leaders.
        let View { number, leaders, .. } = &self.state.views.view;
        let may_lead = *number != view || leaders.contains(&from);
        let result = result.filter(|_| may_lead).map(|_| ());
        by_shard.note(shard, from, FastReply { view, stamp, prefix, result });
        self.commit_if_fast(cx, txn);
    }

    /// Answers the client of a transaction if all replies are there.
    fn commit_if_fast(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        let State { coordinator, closing, .. } = &mut self.state;
        let Some(own) = coordinator.in_flight.get(&txn) else {
            closing.waiting.retain(|_, waiting| *waiting != txn);
            return;
        };
        let (stamp, shards) = (own.stamped.stamp, own.stamped.request.shards);
        let view = own.by_shard.as_ref().and_then(|by_shard| by_shard.committed_at(stamp));
        let Some(view) = view else { return };
        closing.waiting.insert(stamp, txn);
        if !self.state.have_others_closed(shards, view, cell_of(stamp)) {
            return;
        }
        self.state.closing.waiting.remove(&stamp);
        self.answer_fast(cx, txn, cell_of(stamp));
    }

    /// Answers the client of a transaction that is committed. Its result depends on the arguments
    /// alone.
    fn answer_fast(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId, version: SnapshotVersion) {
        let State { coordinator, registry, .. } = &mut self.state;
        let Some(own) = coordinator.in_flight.get_mut(&txn) else { return };
        own.is_by_replies = true;
        let program = &own.stamped.request.program;
        cx.begin_work();
        let (at, nothing) = (cx.store.published(), Overlay::new());
        let result = optimistic::run(registry, program, cx.store, at, &nothing).result;
        cx.end_work(CpuStage::Execute, 1);
        // Otherwise it is not divisible, although it says so.
        let Ok(result) = result else { return };
        cx.mark("tiga.fast_commit_of_shards");
        self.state.told_version = version.max(self.state.told_version);
        self.state.counters.txns_fast += 1;
        if version > cx.store.published() {
            self.state.coordinator.unsettled.insert(txn, version);
        }
        self.answer(cx, txn, version, Ok(result));
    }

    /// This replica has heard of a view, of which replies may have arrived before.
    pub(in super::super) fn commit_waiting(&mut self, cx: &mut Cx<'_, Self>) {
        let waiting: Vec<TxnId> = self.state.closing.waiting.values().copied().collect();
        waiting.into_iter().for_each(|txn| self.commit_if_fast(cx, txn));
    }
}
