//! Membership: silent replicas are removed, and come back (§5.2).
//!
//! The leader of agreement proposes a seal when a member has sent nothing for some time, or when a
//! replica that was removed has caught up. Every member of the next view reports, and the leader
//! proposes the view. `views.rs` has the rules. If a member does not report, another seal of the
//! same view removes it, too.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::{Abort, Outcome, Program, SqlState};

use super::messages::Message;
use super::state::{InFlight, State};
use super::views::{Change, Ended, Report, Seal, View, ViewNumber};
use super::{GeoGauss, Timer};
use crate::agreement::{Driver, Refused, Settled, TICK};
use crate::replica::{INTACT, kind};
use crate::streams::{Batch as _, Bid, number};

/// The interval at which a replica reports its progress.
const PROGRESS: Span = Span::from_ms(100);

/// A replica is removed after at least this many round trips without a message.
const SILENT_ROUND_TRIPS: u64 = 4;

/// Views, seals and reports.
pub(super) struct Membership {
    pub driver: Driver<Change>,
    pub view: View,
    /// The last seal of the view, until the next view.
    sealed: Option<Sealed>,
    /// The last report of each replica, with the seal that it is about.
    reports: BTreeMap<NodeId, (u64, Report)>,
    /// The number of the last decision that was taken.
    taken: u64,
    /// When the last message of each replica arrived.
    heard_at: Vec<Timestamp>,
    /// The epochs that each replica has merged, and its view, according to its last report.
    progress: Vec<(SnapshotVersion, ViewNumber)>,
    /// The last batch that this replica has ever created.
    pub own_head: Bid,
}

/// A seal that this replica has reported on.
struct Sealed {
    /// The number of its decision.
    number: u64,
    seal: Seal,
    report: Report,
    /// The position of the report in the log.
    position: LogPosition,
}

impl Membership {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            driver: Driver::new(),
            view: View::first(node_count),
            sealed: None,
            reports: BTreeMap::new(),
            taken: 0,
            heard_at: vec![Timestamp::default(); node_count],
            progress: vec![Default::default(); node_count],
            own_head: Bid(0),
        }
    }

    /// Whether this replica may end an epoch: after a seal, only those that it has reserved before.
    pub(super) fn may_end(&self, epoch: SnapshotVersion) -> bool {
        self.sealed.as_ref().is_none_or(|it| epoch <= it.report.reserved)
    }

    /// Whether no more epochs may be reserved.
    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether a decision that is known here removes a replica.
    pub(super) fn removes(&self, node: NodeId) -> bool {
        let is_out = |sealed: &Sealed| sealed.seal.out.contains(&node);
        !self.view.has(node) || self.sealed.as_ref().is_some_and(is_out)
    }
}

impl State {
    /// The last epoch of a source that has ended in the batches that are here. All of them are
    /// durable as soon as a later record is.
    fn end_here(&self, source: NodeId) -> Ended {
        let log = &self.streams.logs[source.index()];
        let slots = log.slots.range(..=log.received).rev();
        let last = slots.map(|(_, slot)| &slot.batch).find(|batch| batch.is_last);
        let in_log = last.map(|batch| Ended { epoch: batch.epoch, last: batch.bid });
        let merged = Ended { epoch: self.applied.epoch, last: self.applied.heads[source.index()] };
        match in_log {
            Some(ended) if ended.last > merged.last => ended,
            Some(_) | None => merged,
        }
    }

    /// Learns of a seal: takes no more batches of the replicas that are removed, and reports.
    fn apply_seal(&mut self, cx: &mut Cx<'_, GeoGauss>, number: u64, seal: Seal) {
        cx.mark("geogauss.sealed");
        let nodes: Vec<NodeId> = self.replica.topology.node_ids().collect();
        let members = self.membership.view.next_members(&seal);
        let is_next = |node: &NodeId| members.contains(node);
        // Also those of replicas that were removed before: their ends are found again.
        for node in nodes.iter().filter(|node| !is_next(node)) {
            self.streams.logs[node.index()].is_sealed = true;
        }
        let ended = |node: &NodeId| match is_next(node) {
            true => Ended::default(),
            false => self.end_here(*node),
        };
        let (reserved, head) = (self.last_reserved(), self.membership.own_head);
        let report = Report { reserved, head, ended: nodes.iter().map(ended).collect() };
        let mut record = Vec::new();
        record.put_varint(number);
        record.put_bytes(&postcard::to_stdvec(&seal).expect("a seal can be encoded"));
        encode_report(&report, &mut record);
        let position = self.replica.persist(cx, &kind::SEALED, record.into());
        self.membership.sealed = Some(Sealed { number, seal, report, position });
    }

    /// Restores a seal from the log, after a restart.
    pub(super) fn restore_seal(&mut self, position: LogPosition, payload: &Bytes) {
        let from = &mut Reader::new(payload);
        let number = from.varint("seal").expect(INTACT);
        let seal: Seal = postcard::from_bytes(from.bytes("seal").expect(INTACT)).expect(INTACT);
        let node_count = self.replica.topology.node_count();
        let report = decode_report(from, node_count).expect(INTACT);
        let members = self.membership.view.next_members(&seal);
        for node in self.replica.topology.node_ids().filter(|node| !members.contains(node)) {
            self.streams.logs[node.index()].is_sealed = true;
        }
        self.membership.taken = self.membership.taken.max(number);
        self.membership.sealed = Some(Sealed { number, seal, report, position });
    }

    /// Moves to a view: batches of replicas that were removed count up to an end, and replicas that
    /// join begin a new life.
    fn apply_view(&mut self, view: View) {
        self.membership.sealed = None;
        self.membership.reports.clear();
        for (source, life) in view.lives.iter().enumerate() {
            let before = self.membership.view.lives[source];
            let log = &mut self.streams.logs[source];
            log.is_sealed = false;
            if let Some(ended) = life.ended {
                log.end_at(ended.last);
                // Its peers still know of the batches that do not count.
                let durable = self.streams.durable.iter_mut().map(|heads| &mut heads[source]);
                durable.for_each(|head| *head = (*head).min(ended.last));
            } else if life.joined > before.joined {
                log.continue_after(life.head);
            }
        }
        self.membership.view = view;
        self.streams.own_reported = self.membership.own_head;
    }

    /// Restores a view from the log, after a restart.
    pub(super) fn restore_view(&mut self, payload: &Bytes) {
        let from = &mut Reader::new(payload);
        let number = from.varint("view").expect(INTACT);
        let view = postcard::from_bytes(from.bytes("view").expect(INTACT)).expect(INTACT);
        self.membership.taken = self.membership.taken.max(number);
        self.apply_view(view);
    }

    /// The number of the last decision that was taken, for agreement.
    pub(super) fn taken(&self) -> u64 {
        self.membership.taken
    }

    /// Whether this replica is a member.
    pub(super) fn is_member(&self) -> bool {
        self.membership.view.has(self.me())
    }
}

impl GeoGauss {
    /// Starts the timers, after the log was read.
    pub(super) fn start_membership(&mut self, cx: &mut Cx<'_, Self>) {
        self.state.membership.heard_at.fill(cx.now.at);
        cx.set_timer(Timer::Tick, TICK);
        cx.set_timer(Timer::Progress, PROGRESS);
    }

    /// Notes that a peer is there.
    pub(super) fn note_heard(&mut self, cx: &Cx<'_, Self>, from: NodeId) {
        self.state.membership.heard_at[from.index()] = cx.now.at;
    }

    /// Passes a peer's message to agreement.
    pub(super) fn on_agreement(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        let node_count = self.state.replica.topology.node_count();
        let is_sound = |change: &Change| change.is_sound(node_count);
        let agreement = self.state.membership.driver.agreement_mut();
        if let Err(Refused(why)) = agreement.on_message(from, bytes, &is_sound) {
            cx.mark(why);
        }
    }

    /// The clock of agreement ticks.
    pub(super) fn on_tick(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Tick, TICK);
        self.state.membership.driver.agreement_mut().on_tick(true);
        self.lead(cx);
    }

    /// Reports to the peers.
    pub(super) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Progress, PROGRESS);
        let state = &mut self.state;
        let merged = state.merged_through();
        let view = state.membership.view.number;
        state.membership.progress[state.replica.me.index()] = (merged, view);
        for peer in state.replica.peers() {
            state.replica.send(cx, peer, Message::Progress { merged, view: view.0 });
        }
        self.send_report(cx);
        self.ask_again(cx);
    }

    pub(super) fn on_progress(
        &mut self,
        from: NodeId,
        (merged, view): (SnapshotVersion, ViewNumber),
    ) {
        self.state.membership.progress[from.index()] = (merged, view);
    }

    /// Sends the report on the last seal to the peers, once it is durable.
    fn send_report(&mut self, cx: &mut Cx<'_, Self>) {
        let State { membership, replica, .. } = &mut self.state;
        let Some(Sealed { number, report, position, .. }) = &membership.sealed else { return };
        membership.reports.insert(replica.me, (*number, report.clone()));
        let mut bytes = Vec::new();
        encode_report(report, &mut bytes);
        let bytes = Bytes::from(bytes);
        for peer in replica.peers() {
            let message = Message::Report { seal: *number, report: bytes.clone() };
            replica.send_after(cx, *position, peer, message);
        }
    }

    pub(super) fn on_report(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        seal: u64,
        bytes: &Bytes,
    ) {
        let node_count = self.state.replica.topology.node_count();
        let reader = &mut Reader::new(bytes);
        match decode_report(reader, node_count) {
            Ok(report) if reader.is_empty() => {
                self.state.membership.reports.insert(from, (seal, report));
            }
            Ok(_) | Err(_) => cx.mark("geogauss.malformed_report"),
        }
    }

    /// The leader's part: proposes seals and views.
    fn lead(&mut self, cx: &mut Cx<'_, Self>) {
        let membership = &self.state.membership;
        let agreement = membership.driver.agreement();
        if !agreement.is_leader() || agreement.end() != membership.taken {
            return;
        }
        let change = match &membership.sealed {
            Some(sealed) => self.next_view(sealed).or_else(|| self.next_seal(cx)),
            None => self.next_seal(cx),
        };
        if let Some(change) = change {
            cx.mark("geogauss.change_proposed");
            self.state.membership.driver.agreement_mut().propose(change);
        }
    }

    /// The view after a seal, if all of its members have reported.
    fn next_view(&self, sealed: &Sealed) -> Option<Change> {
        let membership = &self.state.membership;
        let of_seal = |node: NodeId| {
            let (seal, report) = membership.reports.get(&node)?;
            (*seal == sealed.number).then(|| (node, report.clone()))
        };
        let members = membership.view.next_members(&sealed.seal);
        let reports: Option<Vec<_>> = members.into_iter().map(of_seal).collect();
        let view = membership.view.next(&sealed.seal, &reports?);
        Some(Change::View { seal: sealed.number, view })
    }

    /// A seal that removes silent members, or lets replicas join that have caught up.
    fn next_seal(&self, cx: &Cx<'_, Self>) -> Option<Change> {
        let Membership { view, sealed, heard_at, progress, .. } = &self.state.membership;
        let topology = &self.state.replica.topology;
        let removal = Span::from_us(SILENT_ROUND_TRIPS * topology.round_trip_max().us)
            .max(self.state.options.removal());
        let is_me = |node: &NodeId| *node == self.state.me();
        let is_here =
            |node: &NodeId| is_me(node) || cx.now.at.since(heard_at[node.index()]) < removal;
        let out: Vec<NodeId> = view.members().filter(|node| !is_here(node)).collect();
        // It may have merged less than the members: they do not wait for that, and it may have to
        // join before it can merge more, so that others can be removed.
        let knows = |node: &NodeId| progress[node.index()].1 == view.number;
        let is_back = |node: &NodeId| !view.has(*node) && is_here(node) && knows(node);
        let joining: Vec<NodeId> = topology.node_ids().filter(is_back).collect();
        let is_news = match sealed {
            None => !out.is_empty() || !joining.is_empty(),
            // It must not wait for a report that does not come.
            Some(it) => view.next_members(&it.seal).iter().any(|node| !is_here(node)),
        };
        let seal = Seal { of: view.number, out, joining };
        let is_other = sealed.as_ref().is_none_or(|it| it.seal != seal);
        (is_news && is_other && view.allows(&seal)).then_some(Change::Seal(seal))
    }

    /// Persists the records of agreement, sends its messages, and takes its decisions.
    pub(super) fn settle_agreement(&mut self, cx: &mut Cx<'_, Self>) {
        let State { membership, replica, streams, .. } = &mut self.state;
        let wrap = |bytes| Message::Agreement { bytes };
        let settled = membership.driver.settle(cx, replica, streams.synced, wrap);
        let Settled { skipped, decided } = settled;
        assert!(skipped.is_none(), "decisions are kept for all replicas");
        for (number, change) in decided {
            self.take_decision(cx, number, change);
        }
    }

    fn take_decision(&mut self, cx: &mut Cx<'_, Self>, number: u64, change: Change) {
        if number <= self.state.membership.taken {
            return;
        }
        self.state.membership.taken = number;
        match change {
            Change::Seal(seal) => {
                if self.state.membership.view.allows(&seal) {
                    self.state.apply_seal(cx, number, seal);
                    self.send_report(cx);
                }
            }
            Change::View { seal, view } => {
                let sealed = self.state.membership.sealed.as_ref();
                let next = self.state.membership.view.number.0 + 1;
                if sealed.is_some_and(|it| it.number == seal) && view.number.0 == next {
                    self.enter_view(cx, number, view);
                }
            }
        }
    }

    fn enter_view(&mut self, cx: &mut Cx<'_, Self>, number: u64, view: View) {
        cx.mark("geogauss.view_entered");
        let was_member = self.state.is_member();
        let mut record = Vec::new();
        record.put_varint(number);
        record.put_bytes(&postcard::to_stdvec(&view).expect("a view can be encoded"));
        self.state.replica.persist(cx, &kind::VIEW, record.into());
        self.state.apply_view(view);
        let me = self.state.me();
        let life = self.state.membership.view.lives[me.index()];
        match (was_member, life.ended) {
            (true, Some(ended)) => self.leave(cx, ended),
            (false, None) => {
                cx.mark("geogauss.joined");
                let epochs = &mut self.state.epochs;
                epochs.open = epochs.open.max(life.first);
                epochs.clock.follow(life.first, cx.now.at);
            }
            _ => {}
        }
        let peers: Vec<NodeId> = self.state.replica.peers().collect();
        peers.into_iter().for_each(|peer| self.send_eof(cx, peer));
        self.ask_again(cx);
    }

    /// This replica was removed: its transactions after the end of its life count nowhere.
    fn leave(&mut self, cx: &mut Cx<'_, Self>, ended: Ended) {
        cx.mark("geogauss.was_removed");
        cx.clear_timer(Timer::Epoch);
        cx.clear_timer(Timer::Batch);
        self.state.epochs.has_txns = false;
        let execution = &mut self.state.execution;
        execution.current.clear();
        execution.current_bytes = 0;
        // Those in batches that were dropped because they are merged have been answered.
        let log = self.state.streams.own(&self.state.replica);
        let last = log.slots.get(&ended.last).map(|slot| slot.batch.end_sequence());
        let counts = |it: &&InFlight| it.txn.sequence() < last.unwrap_or_default();
        let count = execution.in_flight.iter().take_while(counts).count();
        for void in self.state.execution.in_flight.split_off(count) {
            match void.job.program {
                Program::Call { .. } => self.state.execution.queue.push_back(void.job),
                Program::Certified(_) => {
                    cx.reply(void.job.ticket, Outcome::Aborted(was_removed()));
                }
            }
        }
    }
}

/// The error of an interactive transaction of a replica that was removed.
fn was_removed() -> Abort {
    let message = "could not commit: the node was removed from its cluster for a while";
    Abort::new(SqlState::SERIALIZATION_FAILURE, message)
        .with_detail("The other nodes had not heard from it. The transaction had no effect.")
        .with_hint("The transaction might succeed if retried.")
}

fn encode_report(report: &Report, out: &mut Vec<u8>) {
    out.put_varint(report.reserved.0);
    out.put_varint(report.head.0);
    for ended in &report.ended {
        out.put_varint(ended.epoch.0);
        out.put_varint(ended.last.0);
    }
}

fn decode_report(from: &mut Reader<'_>, node_count: usize) -> Result<Report, DecodeError> {
    const WHAT: &str = "report";
    let reserved = SnapshotVersion(number(from, WHAT)?);
    let head = Bid(number(from, WHAT)?);
    let mut ended = || {
        let epoch = SnapshotVersion(number(from, WHAT)?);
        Ok(Ended { epoch, last: Bid(number(from, WHAT)?) })
    };
    let ended = (0..node_count).map(|_| ended()).collect::<Result<_, DecodeError>>()?;
    Ok(Report { reserved, head, ended })
}
