//! Phase 3: epoch-based global commit (§3.4, Algorithm 3).
//!
//! Every epoch the coordinator, which is the leader of agreement, proposes the vector of log heads
//! that are available. What is decided is the same sequence of cuts on every replica; the n-th
//! decision is epoch n. A cut is applied when every batch up to it is here.
//!
//! The coordinator also proposes who is in the configuration. A replica that was not heard of for
//! long is removed, so that nothing is kept for it any more; it comes back when it has caught up.
//! The quorums stay those of the whole cluster: they say how many may fail, not how many have.

use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::Cx;
use pangea_core::time::Span;
use pangea_core::way::Phase;

use super::batch::Bid;
use super::messages::Message;
use super::options::Rules;
use super::state::Cut;
use super::{LogRecord, Minerva, Timer};
use crate::agreement::{self, Drained, Refused};

/// More undecided proposals than this are not made: agreement is not keeping up.
const UNDECIDED_MAX: u64 = 256;

/// A removed replica is taken back when it is at most this many epochs behind.
const READMIT_EPOCHS_BEHIND_MAX: u64 = 64;

impl Minerva {
    /// Algorithm 3, ProposeConsensus.
    pub(super) fn on_epoch_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Epoch, self.state.options.epoch());
        if self.agreement().is_leader() {
            self.propose(cx);
        }
    }

    /// The only replica of a cluster waits for nobody: what is there goes on at once, and what
    /// comes meanwhile goes on together when that is done. Returns whether something was proposed.
    pub(super) fn go_on_alone(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        let is_busy = !self.state.greetings.is_ready || self.state.cut.undecided() > 0;
        if is_busy || !self.agreement().is_alone() {
            return false;
        }
        let own = self.state.own_log();
        if own.durable == own.held && !self.state.execution.current.is_empty() {
            self.start_broadcast(cx);
        }
        self.propose(cx);
        self.state.cut.undecided() > 0
    }

    fn propose(&mut self, cx: &mut Cx<'_, Self>) {
        let term = self.agreement().term();
        if self.state.cut.term != term && self.state.cut.undecided() > 0 {
            cx.mark("minerva.proposals_lost");
        }
        self.state.cut.enter(term);
        if self.state.cut.undecided() >= UNDECIDED_MAX {
            return cx.mark("minerva.too_many_undecided");
        }
        let (removed, readmitted) = self.membership_changes(cx);
        let cut = &mut self.state.cut;
        let heads = if is_planted(Bug::CutPastGap) {
            self.state.replication.logs.iter().map(|log| log.known).collect()
        } else {
            self.state.replication.available.clone()
        };
        let is_asked = self.state.barriers.is_asked();
        let is_news = heads != cut.proposed || !removed.is_empty() || !readmitted.is_empty();
        if !is_news && !is_asked {
            return;
        }
        cut.last_proposal.nonce += 1;
        cut.proposed.clone_from(&heads);
        let name = cut.last_proposal;
        let rules = self.state.options.rules();
        cx.mark("minerva.cut_proposed");
        self.agreement_mut().propose(Cut { name, rules, heads, removed, readmitted });
        self.answer_barriers(cx);
    }

    /// Whom to remove and whom to take back.
    fn membership_changes(&self, cx: &mut Cx<'_, Self>) -> (Vec<NodeId>, Vec<NodeId>) {
        let cut = &self.state.cut;
        if cut.lacks_cuts() {
            // What was changed meanwhile is not known here.
            return (Vec::new(), Vec::new());
        }
        let silence = Span::from_ms(self.state.options.removal_ms);
        let is_silent = |node: &NodeId| cx.now.at.since(cut.heard_at[node.index()]) >= silence;
        let peers = || self.state.topology.peers_of(self.state.me);
        let removed: Vec<_> =
            peers().filter(|peer| cut.is_member[peer.index()] && is_silent(peer)).collect();
        // The coordinator itself may be behind, and removed: it can lead before it is taken back.
        let applied = &self.state.collection.applied;
        let furthest = applied.iter().max().copied().unwrap_or_default().max(cut.applied);
        let is_back = |node: &NodeId| {
            let is_me = *node == self.state.me;
            let applied = if is_me { cut.applied } else { applied[node.index()] };
            let is_here = is_me || self.state.replication.is_up[node.index()] && !is_silent(node);
            is_here && furthest.0 - applied.0 <= READMIT_EPOCHS_BEHIND_MAX
        };
        let is_away = |node: &NodeId| !cut.is_member[node.index()];
        let nodes = self.state.topology.node_ids();
        let readmitted: Vec<_> = nodes.filter(|node| is_away(node) && is_back(node)).collect();
        if !removed.is_empty() {
            cx.mark("minerva.remove_replica");
        }
        if !readmitted.is_empty() {
            cx.mark("minerva.readmit_replica");
        }
        (removed, readmitted)
    }

    /// A peer's part in agreement.
    pub(super) fn on_agreement(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, bytes: &[u8]) {
        if !self.state.greetings.is_ready {
            return cx.mark("minerva.agreement_too_early");
        }
        let node_count = self.state.topology.node_count();
        let is_sound = |cut: &Cut| cut.is_sound(node_count);
        if let Err(Refused(why)) = self.agreement_mut().on_message(from, bytes, &is_sound) {
            cx.mark("minerva.agreement_refused");
            cx.mark(why);
        }
    }

    /// Lets agreement know that time passes.
    pub(super) fn on_tick(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Tick, agreement::TICK);
        if self.state.greetings.is_ready {
            self.agreement_mut().on_tick();
        }
        if self.state.contention.on_tick(&self.state.options, cx.now.at)
            == super::contention::Change::Left
        {
            cx.mark("minerva.high_contention_left");
        }
    }

    /// Carries out what agreement wants done, and queues what it decided.
    pub(super) fn settle_agreement(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.greetings.is_ready {
            return;
        }
        let drained = self.agreement_mut().drain();
        let Drained { records, messages, skipped, decided, is_decided_here } = drained;
        if !records.is_empty() {
            let encoded = postcard::to_stdvec(&records).expect("records in memory can be encoded");
            let position = self.persist(cx, LogRecord::Agreement(encoded.into()));
            self.state.cut.agreement_record = position;
        }
        // A message tells of records drained before it too.
        let after = match is_planted(Bug::VoteBeforeFsync) {
            true => LogPosition(0),
            false => self.state.cut.agreement_record,
        };
        for (to, bytes) in messages {
            cx.send_after(after, to, Message::Agreement { bytes: bytes.into() });
        }
        if let Some(upto) = skipped.map(SnapshotVersion).filter(|u| *u > self.state.cut.applied) {
            cx.mark("minerva.cuts_skipped");
            self.state.cut.skip_to(upto);
        }
        for (number, cut) in decided {
            let epoch = SnapshotVersion(number);
            if is_decided_here {
                self.state.cut.unsynced.push_back((after, epoch, cut));
            } else {
                self.queue_cut(cx, epoch, cut);
            }
        }
        self.queue_synced_cuts(cx);
    }

    /// Queues what the only replica of a cluster has decided and now holds on disk.
    fn queue_synced_cuts(&mut self, cx: &mut Cx<'_, Self>) {
        let synced = self.state.replication.synced;
        let is_synced = |(at, ..): &mut (LogPosition, _, _)| *at <= synced;
        while let Some((_, epoch, cut)) = self.state.cut.unsynced.pop_front_if(is_synced) {
            self.queue_cut(cx, epoch, cut);
        }
    }

    /// Algorithm 3, AgreementReached.
    fn queue_cut(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion, cut: Cut) {
        cx.mark("minerva.cut_decided");
        self.state.cut.note_decided(cut.name);
        self.note_coordinator(cx, cut.name);
        if epoch <= self.state.cut.applied {
            return;
        }
        let is_old = self.agreement().leader().is_some_and(|leader| leader != cut.name.proposer);
        if is_old && is_planted(Bug::OldCutDropped) {
            return;
        }
        for (log, head) in self.state.replication.logs.iter_mut().zip(&cut.heads) {
            log.known = log.known.max(*head);
        }
        self.tell_reached(cx, Phase::Ordered, cut.heads[self.state.me.index()]);
        self.state.cut.waiting.push_back((epoch, cut));
    }

    /// Applies the cuts whose batches are all here, in order.
    pub(super) fn apply_ready_cuts(&mut self, cx: &mut Cx<'_, Self>) {
        while self.state.commit.is_none() {
            let Some((epoch, cut)) = self.state.cut.waiting.front() else { return };
            if *epoch != self.state.cut.applied.next() {
                return cx.mark("minerva.cut_waits_for_checkpoint");
            }
            let is_here = |(log, head): (&super::state::SourceLog, &Bid)| log.held >= *head;
            if !self.state.replication.logs.iter().zip(&cut.heads).all(is_here) {
                return cx.mark("minerva.cut_waits_for_batch");
            }
            if cut.rules != self.state.options.rules() {
                let reason = other_rules(*epoch, &cut.rules);
                return cx.stop(reason);
            }
            let (epoch, cut) = (*epoch, cut.clone());
            self.begin_epoch(cx, epoch, cut);
        }
    }

    /// Changes who is in the configuration, as of the epoch that is being applied.
    pub(super) fn apply_membership(&mut self, cx: &mut Cx<'_, Self>, cut: &Cut) {
        for node in &cut.removed {
            self.state.cut.is_member[node.index()] = false;
        }
        for node in &cut.readmitted {
            self.state.cut.is_member[node.index()] = true;
        }
        if cut.removed.contains(&self.state.me) {
            cx.mark("minerva.was_removed");
        }
    }
}

/// The settings were changed while an epoch that was proposed under the old ones had not been
/// applied here.
fn other_rules(epoch: SnapshotVersion, rules: &Rules) -> String {
    format!(
        "epoch {} was proposed under other settings than this node has, and must be applied under \
         those: {rules:?}. Start all nodes with them, let all reach the same version, stop them, \
         and change the settings then",
        epoch.0
    )
}
