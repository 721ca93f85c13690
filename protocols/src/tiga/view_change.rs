//! The change of a view on the replicas (§4): the leader of the new view takes the best log of
//! f + 1 replicas, and the others take the log of the leader.
//!
//! A log that is durable on f + 1 replicas in a view is in one of any f + 1 logs. Of two logs the
//! one of the later view is better, and in one view the longer one.
//!
//! # Differences from the paper
//!
//! - Logs are durable, so a replica that restarts takes part at once, and no crash vectors are
//!   needed.
//! - A log is sent from the position that the receiver is known to have committed.
//! - A replica has the log of a view at once or not at all: with a part of it, it could seem to
//!   have a better log than one that is complete in the view before.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::Tiga;
use super::cells::{Cell, cell_of, last_of};
use super::fast_path::entries_of;
use super::leading::Leading;
use super::log::{Position, Suffix, ViewNumber};
use super::messages::Message;
use super::quorum::Sizes;
use super::rebuild::{Entry, Rebuilt, Report, rebuild};
use super::stamp::{Stamp, US_MAX};
use super::state::State;
use super::views::{PeerState, View};
use crate::replica::kind;

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
    /// What this replica tells the leader of a new view that has committed up to a position.
    pub(super) fn report(&self, after: Position) -> ViewReport {
        let suffix = self.log.suffix(after.min(self.log.last()).max(self.log.base()));
        ViewReport { suffix, unsynced: self.fast.unsynced(), told: self.fast.told() }
    }

    /// §4: continues the log of a new view with the transactions that were in no log and may be
    /// committed. Then a cell without transactions says that nothing comes before what was replied
    /// to or promised. All of it is in the log when the view begins: nobody knows it otherwise.
    fn recover(&self, suffix: &mut Suffix) -> usize {
        if !self.has_fast_path() {
            return 0;
        }
        let reports = &self.views.reports;
        let sizes = Sizes::of(self.replica.topology.node_count());
        let do_conflict = |one: TxnId, other: TxnId| {
            self.footprint_of(one).conflicts_with(&self.footprint_of(other))
        };
        let Rebuilt { recovered, floor, .. } = rebuild(sizes, reports, do_conflict);
        let mut recovered = mutate!(RecoveredForgotten: recovered => Vec::new());
        // Followers that are behind may have accepted one at a later stamp than it is logged at.
        recovered.retain(|entry| !self.is_in(suffix, entry.txn));
        for of_cell in recovered.chunk_by(|a, b| cell_of(a.stamp) == cell_of(b.stamp)) {
            let txns = of_cell.iter().map(|entry| (entry.txn, entry.stamp)).collect();
            suffix.cells.push(Cell { version: cell_of(of_cell[0].stamp), txns });
        }
        let last = suffix.cells.last().map(|cell| cell.version);
        let last = last.unwrap_or_else(|| self.log.version_at(suffix.after));
        if floor > last_of(last) {
            suffix.cells.push(Cell { version: cell_of(floor), txns: Vec::new() });
        }
        recovered.len()
    }
}

impl Tiga {
    /// A view was decided: this replica takes part in no earlier one, and sends its log to the
    /// leader.
    pub(super) fn begin_view(&mut self, cx: &mut Cx<'_, Self>, view: View) {
        cx.mark("tiga.view_begun");
        self.stop_leading(cx);
        self.state.incoming.clear();
        let mut record = Vec::new();
        record.put_u64(view.number.0);
        record.put_u16(view.leader.0);
        let views = &mut self.state.views;
        views.record = self.state.replica.persist(cx, &kind::PROMISED_VIEW, record.into());
        (views.view, views.since) = (view, cx.now.at);
        views.logs.clear();
        self.state.counters.views += 1;
        if view.leader == self.state.me() && self.state.is_whole() {
            let own = self.state.report(self.state.commit.committed);
            self.state.views.logs.insert(view.leader, own);
        }
        self.send_progress(cx);
        self.send_view_change(cx);
    }

    /// Sends the log to the leader of the view, if that has not begun here.
    pub(super) fn send_view_change(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(leader) = self.state.views.leader().filter(|it| *it != self.state.me()) else {
            return;
        };
        if self.state.is_normal() || !self.state.is_whole() {
            return;
        }
        // The leader may have heard less than what it had told before a crash.
        let known = self.state.views.told[leader.index()].committed;
        if known < self.state.log.base() {
            // The leader needs a checkpoint first.
            return;
        }
        let report = self.state.report(known).encode();
        let message = Message::ViewChange { view: self.state.views.view.number.0, report };
        // The record is after all that the report tells, which survives a crash, too.
        self.state.replica.send_after(cx, self.state.views.record, leader, message);
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
        let (views, suffix) = (&self.state.views, &report.suffix);
        let is_for_me = views.leader() == Some(self.state.replica.me) && views.view.number == view;
        let log = &self.state.log;
        // Of a later view, a log has what is committed.
        let is_whole = suffix.view <= log.view || suffix.last() >= log.base();
        let is_known = suffix.after <= log.last() && is_whole;
        let is_begun = !self.state.may_lead() || self.state.incoming.is_start();
        if !is_for_me || is_begun || suffix.view >= view || !is_known {
            return cx.mark("tiga.view_change_too_late");
        }
        self.state.views.logs.insert(from, report);
    }

    /// Begins the view that this replica leads, when it has f + 1 logs and the transactions of the
    /// best one.
    pub(super) fn finish_view_change(&mut self) {
        let (enough, may_lead) = (self.state.reports_needed(), self.state.may_lead());
        let State { views, replica, incoming, commit, log, .. } = &mut self.state;
        let enough = mutate!(ViewOfFewer: enough => 1);
        if views.leader() != Some(replica.me) || views.logs.len() < enough || !may_lead {
            return;
        }
        let logs: BTreeMap<NodeId, ViewReport> =
            std::mem::take(&mut views.logs).into_iter().take(enough).collect();
        let suffixes = || logs.values().map(|report| &report.suffix);
        let best = suffixes().max_by_key(|it| (it.view, it.last()));
        let best = mutate!(ShortestLog: best => suffixes().min_by_key(|it| it.last()));
        let best = best.expect("there are enough").clone();
        // Up to there, all logs of one view are the same.
        let position = suffixes().map(|it| it.after).max().unwrap_or_default();
        let position = position.max(commit.committed);
        let version = log.version_at(position);
        let reports = logs.iter().map(|(node, report)| report.after(*node, position, version));
        views.reports = reports.collect();
        // What is closed is not recovered, and nobody may have it any more.
        let newest = views.reports.iter().filter(|report| report.normal == best.view);
        let closed = newest.map(|report| report.closed).max().unwrap_or_default();
        let unsynced = logs.values().flat_map(|report| &report.unsynced);
        let others = unsynced.filter(|entry| entry.stamp > closed);
        let others = others.map(|entry| entry.txn).collect();
        incoming.begin(Suffix { view: views.view.number, ..best }, others);
        // Nobody may have the transactions of cells that are forgotten.
        incoming.skip_to(log.base());
    }

    /// §4: the log of a view arrives from its leader.
    pub(super) fn on_start_view(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        let Ok(suffix) = Suffix::decode(bytes) else {
            return cx.mark("tiga.malformed_log");
        };
        let views = &self.state.views;
        let is_of_leader = views.leader() == Some(from) && suffix.view == views.view.number;
        if !is_of_leader || self.state.is_normal() {
            return cx.mark("tiga.start_view_too_late");
        }
        if suffix.after > self.state.log.last() || suffix.last() < self.state.log.base() {
            return cx.mark("tiga.log_too_early");
        }
        let State { incoming, log, .. } = &mut self.state;
        incoming.begin(suffix, Vec::new());
        incoming.skip_to(log.base());
    }

    /// Takes the log of a view, all of whose transactions are here.
    pub(super) fn enter_view(&mut self, cx: &mut Cx<'_, Self>, mut suffix: Suffix) {
        cx.mark("tiga.view_entered");
        let me = self.state.me();
        let leads = self.state.views.leader() == Some(me);
        if leads && self.state.recover(&mut suffix) > 0 {
            cx.mark("tiga.recovered");
        }
        self.retreat(cx);
        self.append(cx, suffix);
        let floor = last_of(self.state.log.last_version()).max(self.state.fast.told());
        self.state.start_fast_path(floor);
        if leads {
            cx.mark("tiga.leads");
            self.lead(cx);
        }
        self.submit_again(cx, None);
    }

    /// Begins to lead, with the log of the view.
    fn lead(&mut self, cx: &mut Cx<'_, Self>) {
        let (me, n) = (self.state.me(), self.state.replica.topology.node_count());
        let now = self.state.clock_us(cx);
        self.state.raise_ceiling(cx, now);
        let (log, record) = (&self.state.log, cx.log_head());
        let leading = Leading::new(me, n, (log, record), self.state.raised);
        self.state.leading = Some(leading);
        self.send_progress(cx);
        for peer in self.state.replica.peers() {
            self.start_view_at(cx, peer);
        }
    }

    /// Sends a follower what it lacks of the log, after it has told what it has.
    pub(super) fn start_view_at(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let State { leading, log, views, replica, .. } = &mut self.state;
        let Some(leading) = leading.as_mut() else { return };
        let PeerState { view, last: (normal, last), committed, .. } = views.told[peer.index()];
        if !replica.is_up[peer.index()] || view != views.view.number {
            return;
        }
        let sent = &mut leading.sent[peer.index()];
        if normal == log.view {
            // It has the log of this view up to here at least.
            match last < log.base() {
                true => *sent = None,
                false => _ = sent.get_or_insert(last.min(log.last())),
            }
        } else if sent.is_none() && committed >= log.base() {
            cx.mark("tiga.view_started");
            let suffix = log.suffix(committed.min(log.last())).encode();
            replica.send_after(cx, leading.record, peer, Message::StartView { suffix });
            *sent = Some(log.last());
        }
    }
}
