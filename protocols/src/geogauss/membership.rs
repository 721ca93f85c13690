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
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;
use pangea_core::txn::{Abort, Outcome, Program, SqlState};

use super::knowledge::Configured;
use super::messages::Message;
use super::progress::Progress;
use super::state::{InFlight, Job, State};
use super::views::{Change, Ended, Report, Seal, View};
use super::{GeoGauss, Timer};
use crate::agreement::{Driver, Refused, Settled, TICK};
use crate::messages::NUMBER_MAX;
use crate::replica::kind;
use crate::streams::{Batch as _, Bid, number};

/// Views, seals and reports.
pub(super) struct Membership {
    pub driver: Driver<Change>,
    pub view: View,
    /// The number of the decision of the view; 0 for the first one.
    pub decision: u64,
    /// The position of the record of the view.
    view_record: LogPosition,
    /// The decision of the last view that the peers were told when it was durable.
    announced: u64,
    /// The last seal of the view, until the next view.
    pub sealed: Option<Sealed>,
    /// The last report of each replica, with the seal that it is about.
    reports: BTreeMap<NodeId, (u64, Report)>,
    /// The number of the last decision that was taken.
    taken: u64,
    /// When the last message of each replica arrived.
    pub heard_at: Vec<Timestamp>,
    /// When the clock of agreement ticked last.
    pub ticked_at: Timestamp,
    /// The progress of each replica.
    pub progress: Vec<Progress>,
    /// The last batch that this replica has ever created.
    pub own_head: Bid,
    /// Whether this replica lost its disk and has not begun another life. Its peers may count it
    /// among the members.
    pub has_no_life: bool,
    /// When this replica, as the leader, last removed each replica that was alive and late.
    pub lagged_at: Vec<Option<Timestamp>>,
}

/// A seal that this replica has reported on.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    /// The number of its decision.
    number: u64,
    pub seal: Seal,
    report: Report,
    /// The position of the report in the log.
    position: LogPosition,
}

impl Sealed {
    /// The seal of a decision, with the report on it, for tests.
    #[cfg(test)]
    pub(super) fn new(number: u64, seal: Seal, report: Report) -> Self {
        Self { number, seal, report, position: LogPosition(0) }
    }

    /// Appends it to `out`, without its position.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.number);
        out.put_bytes(&postcard::to_stdvec(&self.seal).expect("a seal can be encoded"));
        encode_report(&self.report, out);
    }

    /// Decodes the bytes that [`Sealed::encode`] wrote.
    pub(super) fn decode(from: &mut Reader<'_>, node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "seal";
        let number = from.varint(WHAT)?;
        let seal = postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        let report = decode_report(from, node_count)?;
        Ok(Self { number, seal, report, position: LogPosition(0) })
    }
}

impl Membership {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            driver: Driver::new(),
            view: View::first(node_count),
            decision: 0,
            view_record: LogPosition(0),
            announced: 0,
            sealed: None,
            reports: BTreeMap::new(),
            taken: 0,
            heard_at: vec![Timestamp::default(); node_count],
            ticked_at: Timestamp::default(),
            progress: vec![Default::default(); node_count],
            own_head: Bid(0),
            has_no_life: false,
            lagged_at: vec![None; node_count],
        }
    }

    /// The number of the last decision that was taken, for agreement.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The state, for the exhaustive search.
    #[cfg(test)]
    pub(super) fn described(&self) -> String {
        let Self { view, decision, view_record, sealed, reports, taken, .. } = self;
        let views = format!("{view:?} {decision} {view_record:?} {sealed:?} {reports:?} {taken}");
        format!("{views} {:?} {:?} {}", self.progress, self.own_head, self.has_no_life)
    }

    /// The number of the decision of the view, once that is durable.
    pub(super) fn durable_decision(&self, synced: LogPosition) -> u64 {
        if self.view_record <= synced { self.decision } else { 0 }
    }

    pub(super) fn progress_of(&self, node: NodeId) -> Progress {
        self.progress[node.index()]
    }

    /// Forgets the last messages of a replica that lost its disk.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.progress[node.index()] = Progress::default();
        self.reports.remove(&node);
    }

    /// Whether this replica may end an epoch: after a seal, only those that it has reserved before.
    pub(super) fn may_end(&self, epoch: SnapshotVersion) -> bool {
        let may_end = self.sealed.as_ref().is_none_or(|it| epoch <= it.report.reserved);
        mutate!(ReservedAfterReport: may_end => true)
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
        let is_continued = |node: &NodeId| self.membership.view.is_continued(*node, &seal);
        let ended = |node: &NodeId| match is_continued(node) {
            true => Ended::default(),
            // Also those of replicas that were removed before: their ends are found again.
            false => self.end_here(*node),
        };
        let (reserved, head) = (self.last_reserved(), self.membership.own_head);
        let received = self.streams.own(&self.replica).received;
        let head = mutate!(LifeReusesNumbers: head => received);
        let report = Report { reserved, head, ended: nodes.iter().map(ended).collect() };
        let mut sealed = Sealed { number, seal, report, position: LogPosition(0) };
        let mut record = Vec::new();
        sealed.encode(&mut record);
        sealed.position = self.replica.persist(cx, &kind::SEALED, record.into());
        self.restore_seal(sealed);
    }

    /// Takes no more batches of lives that end.
    pub(super) fn restore_seal(&mut self, sealed: Sealed) {
        if sealed.number < self.membership.taken {
            return;
        }
        for node in self.replica.topology.node_ids() {
            let is_continued = self.membership.view.is_continued(node, &sealed.seal);
            if mutate!(TakenAfterSeal: !is_continued => false) {
                let reported = sealed.report.ended[node.index()].last;
                self.streams.logs[node.index()].seal_at(reported);
            }
        }
        self.membership.taken = sealed.number;
        self.membership.sealed = Some(sealed);
    }

    /// Moves to a view: batches of replicas whose life has ended count up to an end, and replicas
    /// that join begin a new life.
    fn apply_view(&mut self, decision: u64, view: View) {
        self.membership.sealed = None;
        self.membership.reports.clear();
        self.membership.taken = self.membership.taken.max(decision);
        self.membership.decision = decision;
        for (source, life) in view.lives.iter().enumerate() {
            let before = self.membership.view.lives[source];
            let log = &mut self.streams.logs[source];
            log.is_sealed = false;
            let is_new = life.joined > before.joined;
            let Some(last) = life.ended.map(|it| it.last).or(is_new.then_some(life.before)) else {
                continue;
            };
            log.end_at(last);
            // Its peers still know of the batches that do not count.
            let durable = self.streams.durable.iter_mut().map(|heads| &mut heads[source]);
            durable.for_each(|head| *head = (*head).min(last));
            if let Some(target) = &mut self.target {
                target.heads[source] = target.heads[source].min(last);
            }
            if is_new && life.ended.is_none() {
                log.continue_after(life.head);
            }
        }
        let own = view.lives[self.me().index()];
        let is_new = own.joined > self.membership.view.lives[self.me().index()].joined;
        if is_new && own.ended.is_none() && own.head >= self.membership.own_head {
            self.membership.has_no_life = false;
        }
        self.membership.own_head = self.membership.own_head.max(own.head);
        self.membership.view = view;
        self.streams.own_reported = self.membership.own_head;
        self.note_who_is_behind();
    }

    /// Notes which replicas are in an earlier view, or could be after a crash.
    pub(super) fn note_who_is_behind(&mut self) {
        let Membership { progress, decision, .. } = &self.membership;
        self.streams.is_behind = progress.iter().map(|it| it.decision < *decision).collect();
    }

    /// Moves to a later view of which this replica may not know the views before. `bounds` are
    /// those of all logs in that view.
    pub(super) fn configure(&mut self, configured: Configured) {
        let Configured { decision, view, bounds } = configured;
        if view.number >= self.membership.view.number {
            self.apply_view(decision, view);
            let logs = self.streams.logs.iter_mut().zip(bounds);
            logs.for_each(|(log, bounds)| log.set_bounds(bounds));
        }
        self.streams.own_reported = self.membership.own_head;
    }

    /// Whether this replica is a member, as far as it knows, and can do what the others expect of
    /// one.
    pub(super) fn is_member(&self) -> bool {
        self.presence.is_ready && self.has_life()
    }

    /// Whether this replica is a member that knows which epochs it has ended.
    pub(super) fn has_life(&self) -> bool {
        self.membership.view.has(self.me()) && !self.membership.has_no_life
    }
}

impl GeoGauss {
    /// Starts the timers, after the log was read.
    pub(super) fn start_membership(&mut self, cx: &mut Cx<'_, Self>) {
        self.state.membership.heard_at.fill(cx.now.at);
        self.state.membership.ticked_at = cx.now.at;
        cx.set_timer(Timer::Tick, TICK);
    }

    /// Passes a peer's message to agreement.
    pub(super) fn on_agreement(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        if !self.state.presence.is_ready {
            return cx.mark("geogauss.agreement_too_early");
        }
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
        self.excuse_own_delay(cx);
        if self.state.presence.is_ready {
            self.state.membership.driver.agreement_mut().on_tick(true);
            self.lead(cx);
        }
    }

    /// Sends the report on the last seal to the peers, once it is durable.
    pub(super) fn send_report(&mut self, cx: &mut Cx<'_, Self>) {
        let State { membership, replica, presence, target, .. } = &mut self.state;
        let Some(Sealed { number, report, position, seal }) = &membership.sealed else { return };
        // Without a life it can't say which epochs it has ended, and without its data not which
        // batches it has acknowledged.
        let is_joining = target.is_none() && seal.joining.contains(&replica.me);
        let may_report = !membership.has_no_life || is_joining;
        if !presence.is_ready || !may_report {
            return;
        }
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
    pub(super) fn lead(&mut self, cx: &mut Cx<'_, Self>) {
        let membership = &self.state.membership;
        let agreement = membership.driver.agreement();
        let is_asking = self.state.caches.is_asking();
        if !agreement.is_leader() || agreement.end() != membership.taken || is_asking {
            return;
        }
        let change = match &membership.sealed {
            Some(sealed) => self.next_view(sealed).or_else(|| self.next_seal(cx)),
            None => self.next_seal(cx),
        };
        if let Some(Change::Seal(seal)) = &change {
            let lags = self.laggards(cx);
            for &node in seal.out.iter().filter(|node| lags.contains(node)) {
                cx.mark("geogauss.removed_for_lag");
                self.state.membership.lagged_at[node.index()] = Some(cx.now.at);
            }
        }
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
        let reports = members.into_iter().map(of_seal);
        let view = &membership.view;
        let reports: Option<Vec<_>> =
            mutate!(ViewByMajority: reports.collect() => view_by_majority(view, reports));
        let view = view.next(&sealed.seal, &reports?);
        Some(Change::View { seal: sealed.number, view })
    }

    /// Persists the records of agreement, sends its messages, and takes its decisions.
    pub(super) fn settle_agreement(&mut self, cx: &mut Cx<'_, Self>) {
        let State { membership, replica, streams, presence, .. } = &mut self.state;
        if !presence.is_ready {
            return;
        }
        let wrap = |bytes| Message::Agreement { bytes };
        let settled = membership.driver.settle(cx, replica, streams.synced, wrap);
        let Settled { skipped, decided } = settled;
        let are_kept = skipped.is_none_or(|upto| upto <= membership.taken);
        assert!(are_kept, "decisions are kept for all replicas");
        for (number, change) in decided {
            self.take_decision(cx, number, change);
        }
    }

    fn take_decision(&mut self, cx: &mut Cx<'_, Self>, number: u64, change: Change) {
        if number <= self.state.membership.taken {
            return;
        }
        self.end_asking_caches(cx, true);
        self.state.membership.taken = number;
        match change {
            Change::Seal(seal) => {
                let is_sound = self.state.membership.view.allows(&seal);
                if is_sound && !self.ask_caches(cx, number, &seal) {
                    self.report_on(cx, number, seal);
                }
            }
            Change::View { seal, view } => {
                let sealed = self.state.membership.sealed.as_ref();
                let next = self.state.membership.view.number.0 + 1;
                if sealed.is_some_and(|it| it.number == seal) && view.number.0 == next {
                    self.enter_view(cx, |state| state.apply_view(number, view));
                }
            }
        }
    }

    /// Takes no more batches of the replicas that a seal removes, and reports on it.
    pub(super) fn report_on(&mut self, cx: &mut Cx<'_, Self>, number: u64, seal: Seal) {
        self.state.apply_seal(cx, number, seal);
        self.send_report(cx);
    }

    /// Moves to a view, and tells the peers the epochs that this replica has ended.
    pub(super) fn enter_view(&mut self, cx: &mut Cx<'_, Self>, apply: impl FnOnce(&mut State)) {
        cx.mark("geogauss.view_entered");
        let me = self.state.me();
        let had_life = self.state.has_life();
        let lost_before = self.state.counters.acknowledged_lost;
        let before = self.state.membership.view.lives[me.index()];
        apply(&mut self.state);
        let mut record = Vec::new();
        self.state.configured().encode(&mut record);
        let position = self.state.replica.persist(cx, &kind::VIEW, record.into());
        self.state.membership.view_record = position;
        let life = self.state.membership.view.lives[me.index()];
        // It may not have known the views in between.
        let is_another = life.joined > before.joined;
        if had_life && life != before {
            cx.mark("geogauss.was_removed");
        }
        // An end that it knew may have come before batches that did not count any more.
        if life != before {
            self.leave(cx, life.ended.map_or(life.before, |ended| ended.last));
        }
        if self.state.has_life() && (is_another || !had_life) {
            cx.mark("geogauss.joined");
            let epochs = &mut self.state.epochs;
            epochs.skip_to(life.first);
            epochs.clock.follow(life.first, cx.now.at);
        }
        self.retreat_if_cut(cx, self.state.counters.acknowledged_lost - lost_before);
        self.send_eof_to_all(cx);
        self.ask_again(cx);
    }

    /// Reports the view to the peers as soon as a crash can't take it away: until then they get no
    /// acknowledgements, and send none.
    pub(super) fn announce_view(&mut self, cx: &mut Cx<'_, Self>) {
        let State { membership, streams, presence, .. } = &mut self.state;
        let durable = membership.durable_decision(streams.synced);
        if durable > membership.announced && !presence.is_asking() {
            membership.announced = durable;
            self.send_progress(cx);
        }
    }

    /// This replica was removed, or its life was cut again: its transactions after the last batch
    /// that counts are not part of any epoch.
    fn leave(&mut self, cx: &mut Cx<'_, Self>, last: Bid) {
        cx.clear_timer(Timer::Epoch);
        cx.clear_timer(Timer::Batch);
        self.state.epochs.has_txns = false;
        let execution = &mut self.state.execution;
        execution.current.clear();
        execution.current_bytes = 0;
        execution.overlay.clear();
        // Those in batches that were dropped because they are merged have been answered.
        let log = self.state.streams.own(&self.state.replica);
        let last = log.slots.get(&last).map(|slot| slot.batch.end_sequence());
        let counts = |it: &&InFlight| it.txn.sequence() < last.unwrap_or_default();
        let count = execution.in_flight.iter().take_while(counts).count();
        let count = mutate!(CountedAndRunAgain: count => 0);
        for void in self.state.execution.in_flight.split_off(count) {
            if void.answered.is_some() {
                self.report_lost(cx, void.txn);
                continue;
            }
            match void.job.program {
                Program::Call { .. } => {
                    // If its run made this replica late, every replica has to run it in the end.
                    let attempt = void.job.attempt.saturating_add(1);
                    self.state.execution.queue.push_back(Job { attempt, ..void.job });
                }
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

pub(super) fn encode_report(report: &Report, out: &mut Vec<u8>) {
    out.put_varint(report.reserved.0);
    out.put_varint(report.head.0);
    for ended in &report.ended {
        out.put_varint(ended.epoch.0);
        out.put_varint(ended.last.0);
    }
}

pub(super) fn decode_report(
    from: &mut Reader<'_>,
    node_count: usize,
) -> Result<Report, DecodeError> {
    const WHAT: &str = "report";
    let reserved = SnapshotVersion(number(from, WHAT)?);
    // The next life begins after it.
    if reserved.0 == NUMBER_MAX {
        return Err(DecodeError::new(WHAT));
    }
    let head = Bid(number(from, WHAT)?);
    let mut ended = || {
        let epoch = SnapshotVersion(number(from, WHAT)?);
        Ok(Ended { epoch, last: Bid(number(from, WHAT)?) })
    };
    let ended = (0..node_count).map(|_| ended()).collect::<Result<_, DecodeError>>()?;
    Ok(Report { reserved, head, ended })
}

fn view_by_majority(
    view: &View,
    reports: impl Iterator<Item = Option<(NodeId, Report)>>,
) -> Option<Vec<(NodeId, Report)>> {
    let reports: Vec<_> = reports.flatten().collect();
    (reports.len() > view.lives.len() / 2).then_some(reports)
}
