//! The change of a view on the replicas (§4): the leader of the new view takes the best log of
//! f + 1 replicas and proposes it, and all take the logs that were decided.
//!
//! ```text
//!   follower                  leader of view 2              view manager
//!     | ViewChange 2, log ---> | takes the best
//!     | <--- Prepare, if it lacks transactions of that log
//!     | Prepared ------------> |
//!     |                        | Proposal 2, log ---------> |
//!     | <----------------------------------- logs of view 2 |
//! ```
//!
//! A log that is durable on f + 1 replicas in a view is in one of any f + 1 logs. The longest log
//! of the view that began last is the best.
//!
//! # Differences from the paper
//!
//! - Logs are durable, so a replica that restarts takes part at once, and no crash vectors are
//!   needed.
//! - The logs with which a view begins are decided by agreement. So a view has begun on all shards
//!   or on none. A replica that reports its log has the logs of the last view that has begun, also
//!   if it hears of that only now.
//! - Therefore the transactions in a proposal are first on the disks of f + 1 replicas.
//! - A log is sent from the position that the receiver is known to have committed.
//! - A replica has the log of a view at once or not at all: with a part of it, it could seem to
//!   have a better log than one that is complete in the view before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;

use super::Tiga;
use super::cells::{Cell, cell_of, last_of};
use super::coordinator::Resend;
use super::decided::View;
use super::fast_path::entries_of;
use super::headroom::Headroom;
use super::leading::Leading;
use super::log::{Position, Suffix, ViewNumber};
use super::log_sync::Purpose;
use super::messages::Message;
use super::quorum::Sizes;
use super::rebuild::{Entry, Rebuilt, Report, rebuild};
use super::stamp::{Stamp, US_MAX};
use super::state::State;
use super::transactions::{self, Stamped};
use super::verification::Proposal;
use super::views::PeerState;
use crate::replica::kind;

/// A replica that has not taken the logs of a view after this number of its progress reports does
/// not know them.
const BEHIND_MAX: u32 = 4;

/// A proposal that is not decided after this number of round trips is sent again.
const PATIENCE_ROUND_TRIPS: u64 = 4;

/// A proposal that is not made yet: its transactions have to be on enough disks.
pub(super) struct Preparing {
    proposal: Proposal,
    /// The record of its last transaction on this replica.
    record: LogPosition,
    /// The replicas that have to say that they have all transactions, and how often.
    lacking: BTreeMap<NodeId, usize>,
    /// When it was made.
    made_at: Option<Timestamp>,
}

impl Preparing {
    /// The transactions of the proposal.
    pub(super) fn txns(&self) -> impl Iterator<Item = TxnId> {
        entries_of(&self.proposal.suffix.cells).map(|entry| entry.txn)
    }
}

/// What a replica tells the leader of a new view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ViewReport {
    /// The end of its log.
    pub suffix: Suffix,
    /// The transactions that were in time in the view of the log, and are not in it.
    pub unsynced: Vec<Entry>,
    /// It has replied to nothing above this stamp.
    pub told: Stamp,
}

impl ViewReport {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_bytes(&self.suffix.encode());
        out.put_u64(self.told.to_bits());
        out.put_varint(self.unsynced.len() as u64);
        for Entry { stamp, txn } in &self.unsynced {
            out.put_u64(stamp.to_bits());
            out.put_u64(txn.to_bits());
        }
        out.into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "view report";
        let from = &mut Reader::new(bytes);
        let suffix = Suffix::decode(from.bytes(WHAT)?)?;
        let told = Stamp::from_bits(from.u64(WHAT)?);
        let entry = |from: &mut Reader<'_>| {
            let stamp = Stamp::from_bits(from.u64(WHAT)?);
            Ok(Entry { stamp, txn: TxnId::from_bits(from.u64(WHAT)?) })
        };
        let count = from.count(WHAT)?;
        let unsynced: Vec<Entry> =
            (0..count).map(|_| entry(from)).collect::<Result<_, DecodeError>>()?;
        let is_sound = |stamp: Stamp| stamp.us() <= US_MAX;
        let are_sound = unsynced.iter().all(|entry| is_sound(entry.stamp)) && is_sound(told);
        match from.is_empty() && are_sound {
            true => Ok(Self { suffix, unsynced, told }),
            false => Err(DecodeError::new(WHAT)),
        }
    }

    /// The report for [`rebuild`], with the log after a position.
    fn after(&self, node: NodeId, position: Position, version: SnapshotVersion) -> Report {
        let skipped = position.0.saturating_sub(self.suffix.after.0) as usize;
        let cells = self.suffix.cells.get(skipped..).unwrap_or_default();
        let last = self.suffix.cells.last().map_or(version, |cell| cell.version);
        Report {
            node,
            normal: self.suffix.view,
            log: entries_of(cells).collect(),
            unsynced: self.unsynced.clone(),
            late: Vec::new(),
            promised: self.told,
            closed: last_of(last),
            read: Stamp::ZERO,
        }
    }
}

impl State {
    /// Whether this replica has not got the log with which the last view began.
    pub(super) fn lacks_start(&self) -> bool {
        self.log.view < self.views.started
    }

    /// What this replica tells the leader of a new view that has committed up to a position.
    pub(super) fn report(&self, after: Position) -> ViewReport {
        let suffix = self.log.suffix(after.min(self.log.last()).max(self.log.base()));
        ViewReport { suffix, unsynced: self.fast.unsynced(), told: self.fast.told() }
    }

    /// With an even number of replicas, f + 1 are more than have to report. Some of the others get
    /// the transactions of the proposal, too: a log that is decided must not be on one disk alone.
    /// Without them the shard commits nothing, and the first shard decides nothing.
    fn unreported(&self, now: Timestamp) -> Vec<NodeId> {
        let State { replica, views, .. } = self;
        let is_reported = |peer: NodeId| views.chosen.iter().any(|report| report.node == peer);
        let others = replica.voting_peers().filter(|peer| !is_reported(*peer));
        let (heard, unheard): (Vec<NodeId>, Vec<NodeId>) =
            others.partition(|peer| self.is_heard(replica.node(*peer), now));
        let unheard = unheard.into_iter().filter(|_| self.does_decide(self.node));
        let count = replica.topology.majority().saturating_sub(views.chosen.len());
        heard.into_iter().chain(unheard).take(count).collect()
    }

    /// §4: the proposal of a new leader from the reports: the best log, and the transactions that
    /// were in no log and may be committed. Its floor is above what was replied to or promised.
    fn propose(&self, suffix: Suffix) -> (Proposal, usize) {
        // It may have forgotten more while it waited for transactions.
        let mut suffix = suffix.beyond(self.log.base());
        let before = self.log.version_at(suffix.after);
        let (mut floor, mut recovered) = (Stamp::ZERO, Vec::new());
        if self.has_fast_path {
            let sizes = Sizes::of(self.replica.topology.voter_count());
            let do_conflict = |one: TxnId, other: TxnId| {
                self.footprint_of(one).conflicts_with(&self.footprint_of(other))
            };
            let rebuilt = rebuild(sizes, &self.views.chosen, do_conflict);
            Rebuilt { floor, recovered, .. } = rebuilt;
        }
        let mut recovered = mutate!(RecoveredForgotten: recovered => Vec::new());
        mutate!(RecoveredOnFirst: () => recovered.retain(|_| self.shard == ShardId(0)));
        // Followers that are behind may have accepted one at a later stamp than it is logged at.
        recovered.retain(|entry| !self.is_in(&suffix, entry.txn));
        for of_cell in recovered.chunk_by(|a, b| cell_of(a.stamp) == cell_of(b.stamp)) {
            let txns = of_cell.iter().map(|entry| (entry.txn, entry.stamp)).collect();
            suffix.cells.push(Cell { version: cell_of(of_cell[0].stamp), txns });
        }
        (Proposal { suffix, before, floor }, recovered.len())
    }
}

impl Tiga {
    /// A view was decided: this replica takes part in no earlier one.
    pub(super) fn begin_view(&mut self, cx: &mut Cx<'_, Self>, view: View) {
        if view.number <= self.state.views.view.number {
            return;
        }
        cx.mark("tiga.view_begun");
        self.stop_leading(cx);
        self.state.incoming.clear();
        self.state.relays.sent.fill(None);
        let mut record = Vec::new();
        record.put_u64(view.number.0);
        view.leaders.iter().for_each(|leader| record.put_u16(leader.0));
        record.put_u8(u8::from(view.is_detective));
        let views = &mut self.state.views;
        views.record = self.state.replica.persist(cx, &kind::PROMISED_VIEW, record.into());
        views.follow(view, cx.now.at);
        self.state.counters.views += 1;
        if self.state.is_divided() {
            // It was measured on the way to other leaders.
            self.state.coordinator.headroom = Headroom::default();
        }
        self.state.noticed.forget_before(self.state.views.view.number);
        self.wake(cx);
        self.send_progress(cx);
        match self.state.lacks_start() {
            // It may have taken the logs of another view before it heard of this one.
            true => self.take_start(cx),
            false => self.send_view_change(cx),
        }
        self.commit_waiting(cx);
    }

    /// The logs of a view are decided: takes the one of this shard, if it has the cells before.
    /// Otherwise a peer sends more.
    pub(super) fn take_start(&mut self, cx: &mut Cx<'_, Self>) {
        let State { views, incoming, log, commit, .. } = &mut self.state;
        views.preparing = None;
        if log.view >= views.started || incoming.view() >= Some(views.started) {
            return;
        }
        // The first shard decides, and the others know their own logs only.
        let Some(bytes) = views.logs.first() else { return };
        let suffix = Suffix::decode(bytes).expect("the logs were checked");
        // A log of another view may have other cells before it.
        let is_same = log.view == views.base || suffix.after <= commit.committed;
        let is_same = mutate!(StartAfterOther: is_same => true);
        if suffix.after > log.last() || suffix.last() < log.base() || !is_same {
            return cx.mark("tiga.start_too_far");
        }
        incoming.begin(suffix, Vec::new(), Purpose::Enter);
        // Nobody may have the transactions of cells that are forgotten.
        incoming.skip_to(log.base());
    }

    /// Reports the log to the leader of the view, if the view has not begun here.
    pub(super) fn send_view_change(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(leader) = self.state.leader() else { return };
        let is_part = self.state.is_whole() && self.state.replica.votes();
        if self.state.is_normal() || self.state.lacks_start() || !is_part {
            return;
        }
        let number = self.state.views.view.number;
        if leader == self.state.node {
            let own = self.state.report(self.state.settled());
            let views = &mut self.state.views;
            if views.chosen.is_empty() {
                views.reports.insert(self.state.replica.me, own);
            }
            return;
        }
        // The leader may have heard less than what it had told before a crash.
        let known = self.state.views.told[leader.index()].committed;
        if known < self.state.log.base() {
            // The leader needs a checkpoint first.
            return;
        }
        let report = self.state.report(known).encode();
        let message = Message::ViewChange { view: number.0, report };
        // The record is after all that the report tells, which survives a crash, too.
        cx.send_after(self.state.views.record.max(cx.log_head()), leader, message);
    }

    /// §4: the log of a replica arrives at the leader of a view.
    pub(super) fn on_view_change(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: ViewNumber,
        bytes: &[u8],
    ) {
        let Ok(report) = ViewReport::decode(bytes) else {
            return cx.mark("tiga.malformed_log");
        };
        let State { views, log, .. } = &self.state;
        let votes = self.state.replica.topology.votes(from);
        let is_for_me = self.state.is_leader() && views.view.number == view && votes;
        let is_known = report.suffix.after <= log.last() && report.suffix.last() >= log.base();
        let is_known = is_known && report.suffix.view == log.view;
        let is_begun = !self.state.may_lead() || !views.chosen.is_empty();
        if !is_for_me || is_begun || self.state.lacks_start() || !is_known {
            return cx.mark("tiga.view_change_too_late");
        }
        self.state.views.reports.insert(from, report);
    }

    /// Makes progress with the proposal of this replica as the leader of a view that has not begun:
    /// when it has f + 1 logs, the transactions of the best one are collected.
    pub(super) fn advance_view_change(&mut self, cx: &mut Cx<'_, Self>) {
        let (enough, may_lead) = (self.state.reports_needed(), self.state.may_lead());
        let State { views, replica, incoming, commit, log, synced, .. } = &mut self.state;
        if let Some(preparing) = &mut views.preparing {
            let is_prepared = preparing.lacking.is_empty() && preparing.record <= *synced;
            if is_prepared && preparing.made_at.is_none() {
                self.send_proposal(cx);
            }
            return;
        }
        let enough = mutate!(ViewOfFewer: enough => 1);
        if !may_lead {
            return;
        }
        if views.reports.len() < enough || !views.reports.contains_key(&replica.me) {
            return;
        }
        // This replica is one of them, because it proposes its own cells.
        let mut logs = std::mem::take(&mut views.reports);
        let own = logs.remove_entry(&replica.me).expect("it was checked");
        let logs: BTreeMap<NodeId, ViewReport> =
            logs.into_iter().take(enough - 1).chain([own]).collect();
        let suffixes = || logs.values().map(|report| &report.suffix);
        let best = suffixes().max_by_key(|it| (it.view, it.last()));
        let best = mutate!(ShortestLog: best => suffixes().min_by_key(|it| it.last()));
        // Cells that this replica has forgotten are in each log.
        let best = best.expect("there are enough").clone().beyond(log.base());
        // Up to there, all logs of one view are the same.
        let position = suffixes().map(|it| it.after).max().unwrap_or_default();
        let position = position.max(commit.committed);
        let version = log.version_at(position);
        let reports = logs.iter().map(|(node, report)| report.after(*node, position, version));
        (views.chosen, views.known) = (reports.collect(), position);
        // Closed entries are not recovered, and nobody may have them any more.
        let closed = views.chosen.iter().map(|report| report.closed).max().unwrap_or_default();
        let unsynced = logs.values().flat_map(|report| &report.unsynced);
        let others = unsynced.filter(|entry| entry.stamp > closed);
        let others = others.map(|entry| entry.txn).collect();
        incoming.begin(best, others, Purpose::Propose);
    }

    /// The transactions of the best log are here. Those that another replica lacks are sent to it,
    /// so that f + 1 replicas have them.
    pub(super) fn prepare(&mut self, cx: &mut Cx<'_, Self>, suffix: Suffix) {
        let (proposal, recovered) = self.state.propose(suffix);
        if recovered > 0 {
            cx.mark("tiga.recovered");
        }
        let more = self.state.unreported(cx.now.at);
        let State { views, replica, transactions, .. } = &mut self.state;
        // Those that are known to be committed are on enough disks.
        let known = views.known.0.saturating_sub(proposal.suffix.after.0) as usize;
        let cells = proposal.suffix.cells.iter().skip(known);
        let needed: BTreeSet<TxnId> = entries_of(cells).map(|entry| entry.txn).collect();
        let reported = views.chosen.iter().map(|report| {
            let has = report.log.iter().chain(&report.unsynced).map(|entry| entry.txn);
            (report.node, has.collect())
        });
        let mut has: BTreeMap<NodeId, BTreeSet<TxnId>> = reported.collect();
        has.remove(&replica.me);
        has.extend(more.into_iter().map(|node| (node, BTreeSet::new())));
        let mut lacking = BTreeMap::new();
        for (node, has) in has {
            let lacks: Vec<Arc<Stamped>> = needed
                .difference(&has)
                .map(|txn| transactions.get(*txn).expect("the transactions are here").clone())
                .collect();
            if lacks.is_empty() {
                continue;
            }
            cx.mark("tiga.prepare");
            let messages = transactions::encode_in_parts(&lacks);
            lacking.insert(node, messages.len());
            for transactions in messages {
                let message = Message::Prepare { view: views.view.number.0, transactions };
                replica.send(cx, node, message);
            }
        }
        let record = cx.log_head();
        views.preparing = Some(Preparing { proposal, record, lacking, made_at: None });
    }

    /// The leader of a view needs this replica to have transactions on its disk.
    pub(super) fn on_prepare(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: ViewNumber,
        transactions: Bytes,
    ) {
        if let Ok(all) = transactions::decode(&transactions)
            && self.state.views.view.number == view
        {
            self.state.views.prepared.extend(all.iter().map(|stamped| stamped.request.txn));
        }
        self.on_found(cx, transactions);
        let after = cx.log_head();
        self.state.replica.send_after(cx, after, from, Message::Prepared { view: view.0 });
    }

    pub(super) fn on_prepared(&mut self, from: NodeId, view: ViewNumber) {
        let views = &mut self.state.views;
        if views.view.number == view
            && let Some(preparing) = &mut views.preparing
        {
            let left = preparing.lacking.get(&from).copied().unwrap_or_default();
            match left {
                0 | 1 => _ = preparing.lacking.remove(&from),
                _ => _ = preparing.lacking.insert(from, left - 1),
            }
        }
    }

    /// Sends the proposal to those who decide. It may be lost, so it is repeated.
    pub(super) fn send_proposal(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = PATIENCE_ROUND_TRIPS * self.state.cluster.round_trip_max().us;
        let State { views, synced, .. } = &mut self.state;
        let Some(preparing) = &mut views.preparing else { return };
        let is_prepared = preparing.lacking.is_empty() && preparing.record <= *synced;
        let is_new = |at: Timestamp| cx.now.at.since(at).us < patience;
        if !is_prepared || preparing.made_at.is_some_and(is_new) {
            return;
        }
        preparing.made_at = Some(cx.now.at);
        let (view, proposal) = (views.view.number, preparing.proposal.encode());
        for node in self.state.cluster.node_ids().filter(|node| self.state.does_decide(*node)) {
            if node != self.state.node {
                let proposal = proposal.clone();
                cx.send(node, Message::Proposal { view: view.0, proposal });
            }
        }
        if self.state.does_decide(self.state.node) {
            let node = self.state.node;
            self.on_proposal(cx, node, view, &proposal);
        }
    }

    /// A peer sends the log of a view that has begun, because this replica lacks cells before.
    pub(super) fn on_start_view(&mut self, cx: &mut Cx<'_, Self>, bytes: &[u8]) {
        let Ok(suffix) = Suffix::decode(bytes) else {
            return cx.mark("tiga.malformed_log");
        };
        let State { views, log, incoming, commit, .. } = &self.state;
        let is_waiting = incoming.view() >= Some(suffix.view);
        let is_older = suffix.view <= log.view || suffix.view < views.started;
        if is_older || suffix.view > views.view.number || is_waiting {
            return cx.mark("tiga.start_view_too_late");
        }
        // The sender may have heard from this replica before its restart.
        let is_same = suffix.after <= commit.committed;
        if !is_same || suffix.after > log.last() || suffix.last() < log.base() {
            return cx.mark("tiga.log_too_early");
        }
        let State { views, incoming, log, .. } = &mut self.state;
        if suffix.view > views.started {
            // This replica has missed the decision.
            views.started = suffix.view;
            views.logs.clear();
        }
        incoming.begin(suffix, Vec::new(), Purpose::Enter);
        // Nobody may have the transactions of cells that are forgotten.
        incoming.skip_to(log.base());
    }

    /// Takes the log of a view, all of whose transactions are here.
    pub(super) fn enter_view(&mut self, cx: &mut Cx<'_, Self>, suffix: Suffix) {
        cx.mark("tiga.view_entered");
        self.retreat(cx);
        self.append(cx, suffix);
        // All that was published is in it.
        self.state.shown_version = self.state.shown_version.min(self.state.log.last_version());
        self.state.commit.forget_closed();
        let State { views, log, .. } = &mut self.state;
        views.reports.retain(|_, report| report.suffix.view == log.view);
        views.chosen.clear();
        views.preparing = None;
        let floor = last_of(self.state.log.last_version()).max(self.state.fast.told());
        self.state.start_fast_path(floor);
        if !self.state.is_normal() {
            // Another view was decided meanwhile.
            return self.send_view_change(cx);
        }
        self.state.views.is_to_lead = self.state.is_leader() && self.state.may_begin();
        self.state.closing.forget_asked();
        if self.state.is_fast_view() {
            // Followers have to accept them again. Leaders get them when they tell that they lead.
            self.submit_again(cx, Resend::Before(cx.now.at));
        }
    }

    /// Begins to lead when the log of the view is on the disk. Otherwise a leader that crashes
    /// could take it again, and lead a second time without its promises.
    pub(super) fn lead_if_durable(&mut self, cx: &mut Cx<'_, Self>) {
        let State { views, log, .. } = &mut self.state;
        let is_durable = mutate!(LeadsBeforeFsync: log.is_view_durable() => true);
        if !views.is_to_lead || !is_durable {
            return;
        }
        views.is_to_lead = false;
        cx.mark("tiga.leads");
        self.lead(cx);
    }

    /// Begins to lead, with the log of the view.
    fn lead(&mut self, cx: &mut Cx<'_, Self>) {
        self.correct_clock(cx);
        // Earlier logs and promises are void, and may have been far ahead.
        self.state.ahead_us = 0;
        self.state.follow_log(cx);
        let now = self.state.clock_us(cx);
        self.state.raise_ceiling(cx, now);
        let leading = Leading::new(&self.state, cx.log_head(), now);
        self.state.leading = Some(leading);
        self.take_early_notices(cx);
        self.send_progress(cx);
        self.submit_again(cx, Resend::Before(cx.now.at));
        for peer in self.state.replica.peers() {
            self.start_view_at(cx, peer);
        }
    }

    /// Finds out what a follower of this leader has, or sends a replica that lacks what came before
    /// a view the log of that view.
    pub(super) fn start_view_at(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let hands_on = self.state.hands_on_to(self.state.replica.node(peer), cx.now.at);
        let State { leading, log, views, replica, relays, .. } = &mut self.state;
        let PeerState { last: (normal, last), committed, kept, .. } = views.told_by(replica, peer);
        if !replica.is_up[peer.index()] || log.view != views.started || normal > log.view {
            return;
        }
        let (behind, seen) = &mut views.behind[peer.index()];
        if normal == log.view {
            let sent = match leading.as_mut().filter(|_| log.view == views.view.number) {
                Some(leading) => &mut leading.sent[peer.index()],
                None if hands_on => &mut relays.sent[peer.index()],
                None => return,
            };
            // It has the log of this view up to here at least.
            let known = (last.min(log.last()), SnapshotVersion::ZERO);
            let is_stuck = sent.is_some_and(|(upto, _)| last < upto) && *seen == last;
            (*behind, *seen) = (if is_stuck { *behind + 1 } else { 0 }, last);
            if last < log.base() || *behind >= BEHIND_MAX {
                // Cells have overtaken earlier ones on their way, or it needs a checkpoint.
                (*sent, *behind) = (None, 0);
            }
            if last >= log.base() {
                sent.get_or_insert(known);
            }
            return;
        }
        if let Some(leading) = leading.as_mut() {
            leading.sent[peer.index()] = None;
        }
        // It may know the logs itself, and have the cells before them.
        *behind += 1;
        let start = views.logs.first().map(|log| Suffix::decode(log).expect("it was checked"));
        let is_lost = start.is_none_or(|start| {
            let is_same = normal == views.base || committed >= start.after;
            last < start.after || kept.first > start.last() || !is_same
        });
        let is_lost = is_lost || *behind >= BEHIND_MAX;
        let may_send = leading.is_some() || log.view < views.view.number || hands_on;
        if is_lost && may_send && committed >= log.base() {
            *behind = 0;
            cx.mark("tiga.view_started");
            let suffix = log.suffix(committed.min(log.last())).encode();
            let after = leading.as_ref().map_or(cx.log_head(), |leading| leading.record);
            replica.send_after(cx, after, peer, Message::StartView { suffix });
        }
    }
}
