//! Epoch-based global commit (Minerva §3.4, Algorithm 3).
//!
//! Every epoch the coordinator, which is the leader of agreement, proposes the vector of available
//! log heads. Agreement decides the same sequence of cuts on every replica; the n-th decision is
//! epoch n. A cut is applied once every batch up to it has arrived.
//!
//! The coordinator also proposes changes of the configuration. A replica is removed if it is silent
//! for too long, or so far behind that the others retain too much for it. Nothing is retained for a
//! removed replica. It is readmitted once it has caught up. Quorums remain those of the whole
//! cluster: they count how many replicas may fail, not how many have failed.

use std::sync::Arc;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::{Abort, CodeDigest};

use super::errors::{other_code, refuses_clients, stopping};
use super::messages::Message;
use super::state::Cut;
use super::{Host, Inputs, Rules, Timer};
use crate::agreement::{self, Refused, Settled, Term, centrality};
use crate::streams::{Bid, BufferedBatch, Heads, SourceLog, Streams};

/// The maximum number of undecided proposals. When it is reached, agreement is not keeping up.
const UNDECIDED_MAX: u64 = 256;

/// After this number of transactions of small epochs a step begins no other epoch: a replica may
/// learn of a hundred cuts at once, and urgent inputs must not wait for all of them.
pub(crate) const STEP_TXNS_MAX: usize = 64;

/// The number of transactions that an epoch counts as, in addition to its own: an epoch without any
/// is published, too.
pub(crate) const EPOCH_COUNTS_AS: usize = 1;

/// A cut contains at most this number of new transactions of each source, but at least one batch.
/// Each replica validates an epoch in one step. After a pause of the coordinator its first cuts
/// would otherwise contain everything that was accepted in the meantime. With the usual epochs this
/// is 270,000 transactions a second of each source.
const CUT_TXNS_MAX: u64 = 4_096;

/// The interval at which a coordinator asks another again to take its place.
const LEAVE_RETRY: Span = Span::from_ms(1_000);

/// A removed replica is readmitted when it is at most this many epochs behind.
pub(super) const READMIT_EPOCHS_BEHIND_MAX: u64 = 64;

/// A replica that is fewer epochs behind than this is not removed for it, however large they are.
pub(super) const BEHIND_EPOCHS_MIN: u64 = 2 * READMIT_EPOCHS_BEHIND_MAX;

impl<H: Host> Inputs<H> {
    /// Minerva §3.4, Algorithm 3, `ProposeConsensus`: the timer of the coordinator.
    pub(crate) fn on_epoch_timeout(&mut self, cx: &mut Cx<'_, H>) {
        cx.set_timer(Timer::Epoch.into(), self.settings.epoch);
        self.let_another_lead(cx);
        if H::has_master(self) {
            H::lead(self, cx);
        } else if self.agreement().is_leader() {
            self.propose(cx);
        }
    }

    /// Proposes at once if other logs are ahead, unless a master does so anyway.
    pub(crate) fn catch_up(&mut self, cx: &mut Cx<'_, H>) {
        if self.is_behind() && self.agreement().is_leader() && !H::has_master(self) {
            self.propose(cx);
        }
    }

    /// Whether this is the only replica of a cluster, which waits for no other, and all its
    /// proposals are decided.
    pub(crate) fn is_idle_alone(&self) -> bool {
        self.presence.is_ready && self.cut.undecided() == 0 && self.agreement().is_alone()
    }

    /// Minerva §3.4, Algorithm 3, `ProposeConsensus`: proposes a cut if there is something new.
    pub(crate) fn propose(&mut self, cx: &mut Cx<'_, H>) {
        if H::has_early_cuts(self) {
            // Cuts that were fixed by a master are proposed first.
            return H::lead(self, cx);
        }
        if self.is_refusing() {
            // Each cut under this code is one more for which nodes must change their programs.
            return;
        }
        let term = self.agreement().term();
        if self.cut.term != term && self.cut.undecided() > 0 {
            cx.mark("inputs.proposals_lost");
        }
        if self.cut.enter(term) {
            self.note_inherited();
        }
        if self.cut.inherited > self.cut.applied {
            // It will be refused. Cuts of this program behind it would be refused by the other.
            return cx.mark("inputs.other_program_first");
        }
        if self.cut.undecided() >= UNDECIDED_MAX {
            return cx.mark("inputs.too_many_undecided");
        }
        if self.last_epoch() >= self.pace.limit {
            return cx.mark("inputs.waits_for_others");
        }
        if mutate!(ProposesWhileStopping: !self.may_propose() => false) {
            return cx.mark("inputs.sealed");
        }
        let (removed, readmitted) = match self.is_stopping() {
            // Its last checkpoint should contain the last epoch, so that any program can continue.
            true => (Vec::new(), Vec::new()),
            false => self.membership_changes(cx),
        };
        let streams = &self.streams;
        let heads = mutate!(CutPastGap: self.next_heads() => cut_past_gap(streams));
        let turn = H::next_turn(self, cx);
        let is_turn_news = H::is_turn_news(self, turn);
        let is_asked = self.barriers.is_asked() || self.is_behind();
        let cut = &mut self.cut;
        // After a restart, fewer batches are known to be available than were proposed before it.
        let is_further = heads.iter().zip(&cut.proposed).any(|(head, before)| head > before);
        let is_news = is_further || !removed.is_empty() || !readmitted.is_empty() || is_turn_news;
        if !is_news && !is_asked {
            return;
        }
        cut.last_proposal.nonce += 1;
        cut.proposed.clone_from(&heads);
        let name = cut.last_proposal;
        let rules = self.settings.rules.clone();
        cx.mark("inputs.cut_proposed");
        let master_term = None;
        let cut = Cut { name, rules, heads, removed, readmitted, master_term, turn };
        self.agreement_mut().propose(cut);
        H::on_turn_proposed(self, turn);
        self.answer_barriers(cx);
    }

    /// The last epoch of another program that this replica knows of and has not applied. It can
    /// propose nothing before it is past that.
    fn waits_for_other_program(&self) -> Option<SnapshotVersion> {
        let last = self.cut.inherited.max(self.cut.refused);
        (last > self.cut.applied).then_some(last)
    }

    /// A coordinator that waits for an epoch of another program leaves its place to a replica that
    /// is past it, so that the others need not wait, too. Each of two replicas that wait is behind
    /// the other's epoch or has applied less than the other, so they do not pass it to and fro.
    fn let_another_lead(&mut self, cx: &mut Cx<'_, H>) {
        let Some(last) = self.waits_for_other_program() else { return };
        // A master that would discard cuts of its own stays.
        let may_leave = self.presence.is_ready && !H::has_early_cuts(self);
        if !may_leave || !self.agreement().is_leader() {
            return;
        }
        let may_lead = |peer: &NodeId| {
            let is_past = self.collection.applied[peer.index()] >= last;
            self.presence.is_known(*peer) && is_past && !self.stops.is_stopping(*peer)
        };
        let (topology, master) = (&self.replica.topology, H::preferred_master(self));
        let rank = |peer: &NodeId| centrality(*peer, topology, master);
        if let Some(heir) = self.replica.peers().filter(may_lead).max_by_key(rank) {
            self.leave_to(cx, heir);
        }
    }

    /// Asks a peer to lead in place of this coordinator, again after a while.
    pub(super) fn leave_to(&mut self, cx: &mut Cx<'_, H>, heir: NodeId) {
        let (now, term) = (cx.now.at, self.agreement().term());
        let has_asked = |(of, at): (Term, Timestamp)| of == term && now.since(at) < LEAVE_RETRY;
        if !self.cut.left.is_some_and(has_asked) {
            cx.mark("inputs.leadership_left");
            self.cut.left = Some((term, now));
            self.replica.send(cx, heir, Message::TransferLeadership { term });
        }
    }

    /// Looks for cuts of other programs in the log that a new leader has inherited.
    fn note_inherited(&mut self) {
        let own = self.settings.rules.code();
        let is_other = |cut: &Cut<H::Rules>| cut.rules.code() != own;
        let last = self.agreement().last_of(is_other).unwrap_or_default();
        self.cut.inherited = SnapshotVersion(last);
    }

    /// The available heads, or earlier ones if a cut up to those would be too large.
    fn next_heads(&self) -> Heads {
        let (available, cut) = (&self.streams.available, &self.cut);
        let next = |(source, log): (usize, &SourceLog<H::Batch>)| {
            let before = cut.proposed[source].max(cut.last_head(NodeId(source as u16)));
            log.head_within(before, available[source], CUT_TXNS_MAX)
        };
        self.streams.logs.iter().enumerate().map(next).collect()
    }

    /// Records that another log has reached an epoch.
    pub(crate) fn follow(&mut self, epoch: SnapshotVersion) {
        let wanted = self.pace.wanted;
        self.pace.wanted = mutate!(FollowsNobody: wanted.max(epoch) => wanted);
    }

    /// Whether other logs have reached epochs for which no cut is in flight here.
    pub(crate) fn is_behind(&self) -> bool {
        self.last_epoch() < self.pace.wanted
    }

    /// The last epoch that is known to be decided, or that this replica proposed or fixed.
    pub(crate) fn last_epoch(&self) -> SnapshotVersion {
        if H::has_master(self) {
            return self.last_decided().max(H::last_early(self).unwrap_or_default());
        }
        SnapshotVersion(self.last_decided().0 + self.cut.undecided())
    }

    /// The last epoch that this replica knows to be decided.
    pub(crate) fn last_decided(&self) -> SnapshotVersion {
        let cut = &self.cut;
        let known = cut.waiting.back().map_or(cut.applied, |(epoch, _)| *epoch);
        known.max(cut.applied).max(cut.skipped)
    }

    /// The replicas to remove and to readmit.
    pub(crate) fn membership_changes(&self, cx: &mut Cx<'_, H>) -> (Vec<NodeId>, Vec<NodeId>) {
        let cut = &self.cut;
        if cut.lacks_cuts() {
            // Changes of the configuration in the missing cuts are unknown.
            return (Vec::new(), Vec::new());
        }
        let silence = self.settings.removal;
        let is_silent = |node: &NodeId| cx.now.at.since(cut.heard_at[node.index()]) >= silence;
        let is_member = |node: &NodeId| cut.is_member[node.index()];
        let peers = self.replica.peers().filter(is_member);
        let mut removed: Vec<_> = peers.filter(is_silent).collect();
        let silent = removed.len();
        // The coordinator itself may be behind and removed: it may lead while it is not a member.
        let members = self.replica.topology.node_ids().filter(is_member);
        let behind = members.filter(|node| self.is_too_far_behind(*node));
        let behind: Vec<_> = behind.filter(|node| !removed.contains(node)).collect();
        removed.extend(behind);
        let applied = &self.collection.applied;
        let own = self.cut.confirmed.epoch;
        let furthest = self.furthest();
        let is_back = |node: &NodeId| {
            let is_me = *node == self.replica.me;
            let applied = if is_me { own } else { applied[node.index()] };
            let is_here = is_me || self.replica.is_up[node.index()] && !is_silent(node);
            is_here && furthest.0 - applied.0 <= READMIT_EPOCHS_BEHIND_MAX
        };
        let nodes = self.replica.topology.node_ids();
        let readmitted: Vec<_> = nodes.filter(|node| !is_member(node) && is_back(node)).collect();
        if silent > 0 {
            cx.mark("inputs.remove_replica");
        }
        if removed.len() > silent {
            cx.mark("inputs.remove_straggler");
        }
        if !readmitted.is_empty() {
            cx.mark("inputs.readmit_replica");
        }
        (removed, readmitted)
    }

    /// The last epoch that any replica is known to have applied.
    pub(super) fn furthest(&self) -> SnapshotVersion {
        let applied = self.collection.applied.iter().max().copied().unwrap_or_default();
        applied.max(self.cut.confirmed.epoch)
    }

    /// Whether a replica is so far behind the others that they should retain nothing for it.
    fn is_too_far_behind(&self, node: NodeId) -> bool {
        let behind = self.furthest().0.saturating_sub(self.collection.applied[node.index()].0);
        behind > BEHIND_EPOCHS_MIN && self.streams.bytes_kept_for(node) > self.settings.behind_bytes
    }

    /// Passes a peer's message to agreement.
    pub(crate) fn on_agreement(&mut self, cx: &mut Cx<'_, H>, from: NodeId, bytes: &[u8]) {
        if !self.presence.is_ready {
            return cx.mark("inputs.agreement_too_early");
        }
        let node_count = self.replica.topology.node_count();
        let is_sound = |cut: &Cut<H::Rules>| cut.is_sound(node_count);
        if let Err(Refused(why)) = self.agreement_mut().on_message(from, bytes, &is_sound) {
            cx.mark("inputs.agreement_refused");
            cx.mark(why);
        }
    }

    /// The leader of a term leaves its place to this replica.
    pub(super) fn on_transfer_leadership(&mut self, cx: &mut Cx<'_, H>, from: NodeId, term: Term) {
        let agreement = self.agreement();
        let is_of_leader = agreement.term() == term && agreement.leader() == Some(from);
        if self.presence.is_ready && is_of_leader && from != self.replica.me {
            cx.mark("inputs.leads_instead");
            self.agreement_mut().campaign();
        }
    }

    /// Advances the clock of agreement.
    pub(crate) fn on_tick(&mut self, cx: &mut Cx<'_, H>) {
        cx.set_timer(Timer::Tick.into(), agreement::TICK);
        if self.presence.is_ready {
            let has_ambition = self.waits_for_other_program().is_none() && !self.is_stopping();
            self.agreement_mut().on_tick(has_ambition);
            H::on_tick(self, cx);
        }
    }

    /// Persists the records of agreement, sends its messages, and queues its decisions.
    pub(crate) fn settle_agreement(&mut self, cx: &mut Cx<'_, H>) {
        if !self.presence.is_ready {
            return;
        }
        let (driver, synced) = (&mut self.cut.driver, self.streams.synced);
        let wrap = |bytes| Message::Agreement { bytes };
        let Settled { skipped, decided } = driver.settle(cx, &mut self.replica, synced, wrap);
        let confirmed = self.cut.confirmed.epoch;
        if let Some(upto) = skipped.map(SnapshotVersion).filter(|u| *u > confirmed) {
            cx.mark("inputs.cuts_skipped");
            H::on_skipped(self, cx);
            self.cut.skip_to(upto);
        }
        for (number, cut) in decided {
            self.queue_cut(cx, SnapshotVersion(number), cut);
        }
    }

    /// Minerva §3.4, Algorithm 3, `AgreementReached`.
    fn queue_cut(&mut self, cx: &mut Cx<'_, H>, epoch: SnapshotVersion, cut: Cut<H::Rules>) {
        cx.mark("inputs.cut_decided");
        self.cut.note_decided(cut.name);
        self.note_coordinator(cx, cut.name);
        let confirmed = self.cut.confirmed.epoch;
        if H::is_decided_early(self, cx, epoch, &cut) {
            return self.note_ordered(cx, &cut);
        }
        if epoch <= confirmed {
            return;
        }
        mutate!(OldCutDropped: () => if old_cut_dropped(self, &cut) { return });
        H::on_decided(self, cx, epoch, &cut);
        self.streams.note_known(&cut.heads);
        self.note_ordered(cx, &cut);
        self.cut.waiting.push_back((epoch, cut));
    }

    fn note_ordered(&self, cx: &Cx<'_, H>, cut: &Cut<H::Rules>) {
        self.note_reached(cx, Milestone::Ordered, cut.heads[self.replica.me.index()]);
    }

    /// Notifies the latency observer that this replica's transactions up to the end of a batch of
    /// its log have reached a phase.
    pub(crate) fn note_reached(&self, cx: &Cx<'_, H>, phase: Milestone, head: Bid) {
        self.streams.note_reached(cx, &self.replica, phase, head);
    }

    /// The next cut to apply, if it is known and all of its batches have arrived.
    pub(crate) fn next_cut(
        &mut self,
        cx: &mut Cx<'_, H>,
    ) -> Option<(SnapshotVersion, Cut<H::Rules>)> {
        if self.has_failed {
            return None;
        }
        let next = self.cut.applied.next();
        if !self.may_begin(cx, next) {
            return None;
        }
        if let Some(cut) = H::early_cut(self, next) {
            return self.follows_rules(cx, next, &cut).then_some((next, cut));
        }
        let (epoch, cut) = self.cut.waiting.front()?;
        if *epoch != self.cut.applied.next() {
            cx.mark("inputs.cut_waits_for_checkpoint");
            return None;
        }
        if !self.streams.has(&cut.heads) {
            cx.mark("inputs.cut_waits_for_batch");
            return None;
        }
        let (epoch, cut) = (*epoch, cut.clone());
        self.follows_rules(cx, epoch, &cut).then_some((epoch, cut))
    }

    /// The cut of an unconfirmed epoch, if it may run and all of its batches have arrived. Whether
    /// its rules can be followed depends on other logs, and is the protocol's to find out.
    pub(crate) fn cut_of(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
    ) -> Option<Cut<H::Rules>> {
        if let Some(cut) = H::early_cut(self, epoch) {
            return Some(cut);
        }
        let at = epoch.0.checked_sub(self.cut.waiting.front()?.0.0)?;
        let (found, cut) = self.cut.waiting.get(usize::try_from(at).ok()?)?;
        if *found != epoch || !self.streams.has(&cut.heads) {
            cx.mark("inputs.cut_waits_for_batch");
            return None;
        }
        Some(cut.clone())
    }

    /// Whether this node can apply a cut under the rules it was proposed with. If not, it stops, or
    /// waits for the checkpoint of a peer that has applied the epoch with the proposer's code.
    pub(crate) fn follows_rules(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
        cut: &Cut<H::Rules>,
    ) -> bool {
        let is_other = self.settings.rules.code() != cut.rules.code();
        if mutate!(OtherCodeRuns: is_other => false) {
            self.refuse(cx, epoch, cut.rules.code());
            return false;
        }
        let refused = self.settings.rules.refuses(epoch, &cut.rules);
        let is_followed = refused.is_none();
        refused.into_iter().for_each(|why| cx.stop(why));
        is_followed
    }

    /// Refuses an epoch that needs other code than this node has. A peer may have applied it.
    pub(crate) fn refuse(&mut self, cx: &mut Cx<'_, H>, epoch: SnapshotVersion, code: CodeDigest) {
        if self.cut.refused < epoch {
            cx.mark("inputs.epoch_refused");
            (self.cut.refused, self.cut.refused_code) = (epoch, code);
            self.want_checkpoint(epoch);
        }
        if H::is_alone(self) {
            self.refused().into_iter().for_each(|why| cx.stop(why));
        }
    }

    /// Why this replica can't continue on its own, if its code differs from that of an epoch.
    pub(crate) fn refused(&self) -> Option<String> {
        let codes = (self.cut.refused_code, self.settings.rules.code());
        self.is_refusing().then(|| other_code(&self.replica, ("epoch", self.cut.refused), codes))
    }

    /// Why this replica accepts no requests, if it does not.
    pub(crate) fn refusal(&self) -> Option<Abort> {
        self.refused().map(refuses_clients).or_else(|| self.is_stopping().then(stopping))
    }

    /// Whether this replica refuses an epoch because its code differs.
    pub(crate) fn is_refusing(&self) -> bool {
        self.cut.refused > self.cut.applied
    }

    /// The batches between the previous cut and this one, ordered by source and then by number.
    pub(crate) fn batches_of(&self, cut: &Cut<H::Rules>) -> Vec<Arc<H::Batch>> {
        self.batches_between(&self.cut.heads, cut)
    }

    /// The batches between these heads and a cut, ordered by source and then by number.
    pub(crate) fn batches_between(&self, from: &[Bid], cut: &Cut<H::Rules>) -> Vec<Arc<H::Batch>> {
        let logs = self.streams.logs.iter().zip(from.iter().zip(&cut.heads));
        let counts = |slot: &&BufferedBatch<H::Batch>| H::is_in(cut, &slot.batch);
        let slots = logs
            .filter(|(_, (from, upto))| from < upto)
            .flat_map(|(log, (from, upto))| log.slots.range(from.next()..=*upto))
            .map(|(_, slot)| slot)
            .filter(counts);
        let batch = |slot: &BufferedBatch<H::Batch>| slot.batch.clone();
        mutate!(ArrivalOrder: slots.map(batch).collect() => arrival_order(slots))
    }

    /// Advances the applied epoch: its writes are all in the store. The protocol publishes it now,
    /// or when it is confirmed: [`Self::confirm`].
    pub(crate) fn finish_epoch(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
        cut: &Cut<H::Rules>,
    ) {
        self.raise_heads(cut);
        cx.mark("inputs.epoch_applied");
        self.apply_membership(cx, cut);
        self.cut.applied = epoch;
        self.counters.epochs += 1;
        H::on_applied(self, cx, epoch, cut);
    }

    /// Confirms an epoch that ran: its results are final.
    pub(crate) fn confirm(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
        cut: &Cut<H::Rules>,
    ) {
        let state = &mut self.cut;
        assert!(epoch <= state.applied, "the epoch was run");
        state.waiting.pop_front_if(|(waiting, _)| *waiting == epoch);
        if epoch == state.applied {
            state.confirm_applied();
        }
        let confirmed = &mut state.confirmed;
        confirmed.epoch = epoch;
        for (head, upto) in confirmed.heads.iter_mut().zip(&cut.heads) {
            *head = (*head).max(*upto);
        }
        cut.removed.iter().for_each(|node| confirmed.is_member[node.index()] = false);
        cut.readmitted.iter().for_each(|node| confirmed.is_member[node.index()] = true);
        H::on_confirmed(self, cx, epoch, cut);
        self.digest_epoch(cx, epoch);
    }

    /// Advances the heads: the batches of a cut are part of the state.
    pub(crate) fn raise_heads(&mut self, cut: &Cut<H::Rules>) {
        for (head, cut_head) in self.cut.heads.iter_mut().zip(&cut.heads) {
            *head = mutate!(HeadsGoBack: (*head).max(*cut_head) => *cut_head);
        }
    }

    /// Changes the configuration as of the epoch that is being applied.
    pub(crate) fn apply_membership(&mut self, cx: &mut Cx<'_, H>, cut: &Cut<H::Rules>) {
        for node in &cut.removed {
            self.cut.is_member[node.index()] = false;
        }
        for node in &cut.readmitted {
            self.cut.is_member[node.index()] = true;
        }
        if cut.removed.contains(&self.replica.me) {
            cx.mark("inputs.was_removed");
        }
    }
}

fn cut_past_gap<H: Host>(streams: &Streams<H>) -> Heads {
    streams.logs.iter().map(|log| log.known).collect()
}

fn old_cut_dropped<H: Host>(inputs: &Inputs<H>, cut: &Cut<H::Rules>) -> bool {
    inputs.agreement().leader().is_some_and(|leader| leader != cut.name.proposer)
}

fn arrival_order<'a, B: 'a>(slots: impl Iterator<Item = &'a BufferedBatch<B>>) -> Vec<Arc<B>> {
    let mut slots: Vec<_> = slots.collect();
    slots.sort_by_key(|slot| slot.position);
    slots.into_iter().map(|slot| slot.batch.clone()).collect()
}
