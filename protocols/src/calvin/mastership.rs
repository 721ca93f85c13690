//! Mastership (§3.1.1, asynchronous replication): one replica is the master and runs its batches
//! before their cuts are decided.
//!
//! ```text
//!   client      master                        others
//!     | submit --> | batch, cut n: on its disk   |
//!     | <--------- | runs epoch n, early         |
//!     |            | Batch -------------------> |
//!     |            | <---------------------- Ack |   f + 1 have it
//!     |            | == agreement on cut n ====> |   run epoch n
//! ```
//!
//! The master is the leader of agreement. Only the master creates batches, so it knows the contents
//! of the next epoch as soon as it has created a batch. It **fixes** the cut: it numbers the cut
//! after all cuts in agreement's log and all fixed cuts, and logs it. It proposes the cut once its
//! batches are available, like any other cut. Decided cuts are as safe as in synchronous mode.
//!
//! The period of one master is a **master term**: a term of agreement, and the number of the first
//! transaction that the master accepted in it. A cut contains its master term. The cut includes the
//! transactions of the master's log from that number on, and none of other logs. All other batches
//! before its heads are void, identically on all replicas, and no later cut can include them. A
//! batch is marked as created by a master. It therefore stays void even if replication is
//! synchronous by the time that a replica delivers it.
//!
//! When leadership changes, agreement preserves the cuts that may have been decided, and the cuts
//! of the new master follow them. If another cut is decided under a number that a replica has
//! fixed, the replica discards its fixed cut and those after it. Its store rolls back to the
//! version before them ([`pangea_core::store::Store::retreat_to`]). A replica that was disconnected
//! or restarted, and under whose numbers no other cut was decided, proposes its fixed cuts again,
//! in order, before it accepts anything else.
//!
//! Invariants:
//! - fixed cuts are numbered without a gap, starting after the decided and applied cuts;
//! - an epoch that ran undecided belongs to a cut that is on this disk, with its batches;
//! - checkpoints, progress reports and collection cover only confirmed epochs: those that ran and
//!   that no replica will discard.

mod confirmed;

use std::collections::VecDeque;

use super::messages::Message;
use super::{Calvin, Cut};
use crate::agreement::{Term, master_patience};
use crate::inputs::{self, Inputs, MasterTerm, ProposalName, ProtocolRecord};
use crate::replica::{INTACT, kind};
use crate::streams::Heads;
use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

/// The maximum number of cuts that are fixed and not decided: above it the master creates no
/// batches. With one cut every 10 ms this is a few seconds, the time during which an isolated
/// master may acknowledge transactions that are lost.
const EARLY_MAX: usize = 256;

/// More than the number of transactions that a master has run before another disk had them.
pub(super) const NUMBERS_SKIPPED: u64 = 1 << 30;

/// The maximum time for which a master that was asked to transfer mastership accepts no requests.
const TRANSFER_MAX: Span = Span::from_ms(3_000);

/// A cut that this replica has fixed.
pub(crate) struct Early {
    pub epoch: SnapshotVersion,
    pub cut: Cut,
    /// Its position in this node's log.
    pub position: LogPosition,
    /// The term in which it was last proposed.
    proposed_in: Term,
    /// Whether agreement has decided it.
    pub is_decided: bool,
    /// Whether it was returned to the protocol, to run or to send to other shards.
    is_begun: bool,
}

impl Early {
    /// A cut that was just logged, or found in the log.
    fn fixed(epoch: SnapshotVersion, cut: Cut, position: LogPosition) -> Self {
        let proposed_in = Term::default();
        Self { epoch, cut, position, proposed_in, is_decided: false, is_begun: false }
    }
}

/// A fixed cut of another program.
struct Held {
    epoch: SnapshotVersion,
    name: ProposalName,
    /// Its position in this node's log.
    position: LogPosition,
}

/// The state of a replica as the master, or as a possible former master.
pub(crate) struct Mastership {
    /// The preferred master, if replication is asynchronous.
    preferred: Option<NodeId>,
    /// The fixed cuts after the confirmed epoch.
    pub early: VecDeque<Early>,
    /// Cuts that this replica fixed while its program was another one, and can't run. They stay in
    /// its log for that program until others are decided in their place.
    held: Vec<Held>,
    /// The master of the confirmed epoch and its term, if known.
    confirmed_term: Option<(NodeId, MasterTerm)>,
    /// `Some` while this replica leads.
    pub master_term: Option<MasterTerm>,
    /// This replica's term in which all cuts preserved from earlier terms are decided and applied.
    opened: Term,
    /// Whether a cut of the master term was fixed.
    has_begun: bool,
    /// When the master term began.
    since: Timestamp,
    /// The replica that requested mastership, and the time until which no requests are accepted for
    /// it.
    successor: Option<(NodeId, Timestamp)>,
    has_transferred: bool,
    /// Whether this replica has campaigned to regain the leadership that it had when it stopped.
    has_returned: bool,
    /// Whether transactions were accepted that are in no batch yet.
    pub has_collected: bool,
    /// The master and master term of the applied epoch.
    applied_term: Option<(NodeId, MasterTerm)>,
    /// Cuts from this epoch on, which were returned to the protocol, are void. Set until the
    /// protocol has handled that.
    void_from: Option<SnapshotVersion>,
}

impl Mastership {
    pub(crate) fn new(preferred: Option<NodeId>) -> Self {
        Self {
            preferred,
            early: VecDeque::new(),
            held: Vec::new(),
            confirmed_term: None,
            master_term: None,
            opened: Term::default(),
            has_begun: false,
            since: Timestamp::default(),
            successor: None,
            has_transferred: false,
            has_returned: false,
            has_collected: false,
            applied_term: None,
            void_from: None,
        }
    }

    /// The preferred master, if replication is asynchronous.
    pub(crate) fn preferred(&self) -> Option<NodeId> {
        self.preferred
    }

    /// The last epoch whose cut this replica has fixed.
    pub(crate) fn last_fixed(&self) -> Option<SnapshotVersion> {
        self.early.back().map(|early| early.epoch)
    }

    /// The last epoch whose transactions this replica may have acknowledged before it was decided.
    pub(super) fn last_acknowledged(&self) -> Option<SnapshotVersion> {
        self.last_fixed().max(self.held.last().map(|held| held.epoch))
    }

    /// The position of the first cut that a restart needs.
    pub(super) fn first_needed(&self) -> Option<LogPosition> {
        let early = self.early.front().map(|early| early.position);
        early.into_iter().chain(self.held.first().map(|held| held.position)).min()
    }
}

/// Encodes a fixed cut for the log.
fn encode_early(epoch: SnapshotVersion, cut: &Cut) -> Bytes {
    let mut out = Vec::new();
    out.put_u64(epoch.0);
    out.extend(postcard::to_stdvec(cut).expect("a cut can be encoded"));
    out.into()
}

/// Decodes a fixed cut that [`encode_early`] wrote.
fn decode_early(bytes: &[u8]) -> Result<(SnapshotVersion, Cut), DecodeError> {
    const WHAT: &str = "fixed cut";
    let from = &mut Reader::new(bytes);
    let epoch = SnapshotVersion(from.u64(WHAT)?);
    let cut = postcard::from_bytes(from.rest()).map_err(|_| DecodeError::new(WHAT))?;
    Ok((epoch, cut))
}

impl Inputs<Calvin> {
    /// Whether replication is asynchronous. The only replica of a cluster needs no asynchronous
    /// mode.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.extension.mastery.preferred.is_some() && self.replica.topology.node_count() > 1
    }

    /// Whether this replica currently accepts transactions as the master.
    pub(crate) fn accepts_requests(&self) -> bool {
        let is_refusing = self.is_refusing();
        self.is_open() && !is_refusing && self.extension.mastery.successor.is_none()
    }

    /// Whether it accepts those of a peer. If the whole group stops, the master accepts those of
    /// peers that are stopping: they arrived before.
    pub(crate) fn accepts_requests_of(&self, peer: NodeId) -> bool {
        self.accepts_requests() && (!self.is_stopping() || self.stops.is_stopping(peer))
    }

    /// A master that is stopping leaves its place to `heir`. Without an heir it stays.
    pub(crate) fn yield_mastership(&mut self, cx: &Cx<'_, Calvin>, heir: Option<NodeId>) {
        match heir {
            Some(heir) => self.on_request_mastership(cx, heir),
            None if !self.extension.mastery.has_transferred => {
                self.extension.mastery.successor = None;
            }
            None => {}
        }
    }

    /// Whether this replica is the master, and all cuts from before its master term are decided and
    /// applied.
    fn is_open(&self) -> bool {
        self.extension
            .mastery
            .master_term
            .is_some_and(|master_term| master_term.term == self.extension.mastery.opened)
    }

    /// Whether a batch can be created now that a cut will include.
    pub(crate) fn may_fix(&self) -> bool {
        self.is_open()
            && !self.is_refusing()
            && self.may_propose()
            && !self.extension.mastery.has_transferred
            && self.extension.mastery.early.len() < EARLY_MAX
            && self.last_epoch() < self.pace.limit
    }

    /// Begins or ends this replica's master term to follow agreement. The next transaction that
    /// enters a batch has the number `first`.
    pub(crate) fn update_master_term(&mut self, cx: &mut Cx<'_, Calvin>, first: u64) {
        if !self.is_asynchronous() && self.extension.mastery.early.is_empty() {
            return;
        }
        let is_ready = self.presence.is_ready && !self.is_rejoining();
        let leads = is_ready && self.agreement().is_leader();
        if is_ready && !leads && self.is_asynchronous() {
            self.return_to_lead(cx);
        }
        let term = self.agreement().term();
        // A restart can use cuts fixed after a peer's checkpoint only if it finds that checkpoint
        // too.
        let is_caught_up = self.cut.waiting.is_empty()
            && !self.cut.lacks_cuts()
            && self.checkpoints.installed.is_none()
            && self.cut.confirmed.epoch.0 == self.agreement().end();
        let mastery = &mut self.extension.mastery;
        if !leads {
            if mastery.master_term.take().is_some() {
                cx.mark("calvin.master_term_ended");
                (mastery.successor, mastery.has_transferred) = (None, false);
            }
            return;
        }
        if mastery.master_term.is_none_or(|master_term| master_term.term != term) {
            cx.mark("calvin.master_term_begun");
            mastery.master_term = Some(MasterTerm { term, first });
            mastery.has_begun = false;
            mastery.since = cx.now.at;
            (mastery.successor, mastery.has_transferred) = (None, false);
        }
        // If several replicas campaign at the same time, the preferred one may be slightly later.
        let is_sure = mastery.preferred == Some(self.replica.me)
            || cx.now.at.since(mastery.since) >= master_patience(&self.replica.topology);
        if mastery.opened != term && is_caught_up && is_sure {
            mastery.opened = term;
            if !mastery.early.is_empty() {
                cx.mark("calvin.early_cuts_again");
            }
        }
    }

    /// A restarted master campaigns before its absence is noticed, because no other replica has the
    /// epochs that it ran early. Any peer that has greeted it would know of another master, which
    /// may have run epochs early in the meantime.
    fn return_to_lead(&mut self, cx: &mut Cx<'_, Calvin>) {
        if std::mem::replace(&mut self.extension.mastery.has_returned, true) {
            return;
        }
        let is_followed = self.cut.follows <= self.agreement().term();
        if self.agreement().leader() == Some(self.replica.me) && is_followed {
            cx.mark("calvin.leads_again");
            self.agreement_mut().campaign();
        }
    }

    /// Does the master's work: fixes a cut if there is something new, proposes the fixed cuts whose
    /// batches are available, and transfers mastership if requested.
    pub(crate) fn fix_and_propose(&mut self, cx: &mut Cx<'_, Calvin>, is_due: bool) {
        if !self.is_open() {
            return;
        }
        if self.is_asynchronous() && self.may_fix() {
            let (removed, readmitted) = match is_due {
                true => self.membership_changes(cx),
                false => (Vec::new(), Vec::new()),
            };
            let is_changed = !removed.is_empty() || !readmitted.is_empty();
            // A master that is transferring mastership no longer follows other logs.
            let follows = self.is_behind() && self.accepts_requests();
            let is_asked = follows || is_due && self.barriers.is_asked();
            let fixed = self.fixed_heads();
            let is_further = self.heads_to_fix().iter().zip(fixed).any(|(new, old)| new > old);
            if is_changed || is_asked || is_further || !self.extension.mastery.has_begun {
                self.fix(cx, removed, readmitted);
            }
        }
        self.propose_early(cx);
        self.transfer_mastership(cx);
    }

    /// The heads of the last cut that is fixed or applied.
    fn fixed_heads(&self) -> &Heads {
        self.extension.mastery.early.back().map_or(&self.cut.heads, |early| &early.cut.heads)
    }

    /// The heads of a cut fixed now: all of the local log, and of the other logs the batches left
    /// there by earlier masters, to skip them.
    fn heads_to_fix(&self) -> Heads {
        let available = self.streams.available.iter();
        let heads = available.zip(self.fixed_heads()).map(|(new, old)| *new.max(old));
        let mut heads: Heads = heads.collect();
        heads[self.replica.me.index()] = self.own_log().received;
        heads
    }

    /// Fixes the cut of the next epoch.
    fn fix(&mut self, cx: &mut Cx<'_, Calvin>, removed: Vec<NodeId>, readmitted: Vec<NodeId>) {
        cx.mark("calvin.cut_fixed");
        let heads = self.heads_to_fix();
        let last = self.extension.mastery.last_fixed().unwrap_or(self.cut.applied);
        let epoch = last.next();
        self.cut.last_proposal.nonce += 1;
        let name = self.cut.last_proposal;
        let (rules, master_term) =
            (self.settings.rules.clone(), self.extension.mastery.master_term);
        // A master that replies before a cut is decided can't be frozen: see `checkpoint_turns.rs`.
        let turn = None;
        let cut = Cut { name, rules, heads, removed, readmitted, master_term, turn };
        let position = self.replica.persist(cx, &kind::EARLY, encode_early(epoch, &cut));
        self.extension.mastery.early.push_back(Early::fixed(epoch, cut, position));
        self.extension.mastery.has_begun = true;
        self.answer_barriers(cx);
    }

    /// Proposes the fixed cuts whose batches are available.
    fn propose_early(&mut self, cx: &mut Cx<'_, Calvin>) {
        let term = self.agreement().term();
        let available = self.streams.available.clone();
        for at in 0..self.extension.mastery.early.len() {
            let early = &self.extension.mastery.early[at];
            if early.is_decided || early.proposed_in == term {
                continue;
            }
            if early.cut.heads.iter().zip(&available).any(|(head, available)| head > available) {
                return;
            }
            let (epoch, cut) = (early.epoch, early.cut.clone());
            cx.mark("inputs.cut_proposed");
            assert_eq!(epoch.0, self.agreement().end() + 1, "cuts are proposed in order");
            self.agreement_mut().propose(cut);
            self.extension.mastery.early[at].proposed_in = term;
        }
    }

    /// Requests mastership from the leader, if this replica is the preferred master.
    pub(crate) fn request_mastership(&mut self, cx: &mut Cx<'_, Calvin>) {
        if self.checkpoints.installed.is_some() {
            // It could not start yet.
            return;
        }
        if self.agreement_mut().take_leadership_request()
            && let Some(leader) =
                self.agreement().leader().filter(|leader| *leader != self.replica.me)
        {
            cx.mark("calvin.asked_to_lead");
            self.replica.send(cx, leader, Message::RequestMastership {});
        }
    }

    /// Handles a peer's request for mastership.
    pub(crate) fn on_request_mastership(&mut self, cx: &Cx<'_, Calvin>, from: NodeId) {
        if self.is_open() && self.extension.mastery.successor.is_none() {
            self.extension.mastery.successor = Some((from, cx.now.at + TRANSFER_MAX));
            self.extension.mastery.has_transferred = false;
        }
    }

    /// Transfers mastership once all accepted transactions are decided, so that none is lost.
    fn transfer_mastership(&mut self, cx: &mut Cx<'_, Calvin>) {
        let Some((to, until)) = self.extension.mastery.successor else { return };
        if cx.now.at >= until {
            cx.mark("calvin.yield_in_vain");
            (self.extension.mastery.successor, self.extension.mastery.has_transferred) =
                (None, false);
            return;
        }
        let is_settled =
            self.extension.mastery.early.is_empty() && !self.extension.mastery.has_collected;
        if is_settled && !self.extension.mastery.has_transferred {
            cx.mark("calvin.yielded");
            self.extension.mastery.has_transferred = true;
            let term = self.agreement().term();
            self.replica.send(cx, to, inputs::Message::TransferLeadership { term });
        }
    }

    /// Whether this replica has fixed and logged the cut of an epoch.
    pub(crate) fn is_fixed(&self, epoch: SnapshotVersion) -> bool {
        self.extension.mastery.early.iter().any(|early| early.epoch == epoch)
    }

    /// The fixed cut of an epoch, if it may run: it is decided, or durable on this replica.
    pub(crate) fn early_of(&mut self, epoch: SnapshotVersion) -> Option<Cut> {
        // Excludes cuts left from a time when replication was asynchronous.
        let runs = self.is_open() && self.is_asynchronous();
        let synced = self.streams.synced;
        let first = self.extension.mastery.early.front()?.epoch;
        let at = usize::try_from(epoch.0.checked_sub(first.0)?).ok()?;
        let early = self.extension.mastery.early.get_mut(at)?;
        let is_synced = mutate!(EarlyBeforeFsync: early.position <= synced => true);
        let may_run = early.is_decided || (runs && is_synced);
        if !may_run {
            return None;
        }
        if !self.streams.has(&early.cut.heads) {
            return None;
        }
        early.is_begun = true;
        Some(early.cut.clone())
    }

    /// After a restart, restores the cuts that were fixed and are not known to be decided. None of
    /// them has run yet.
    pub(crate) fn restore_early(&mut self, cx: &mut Cx<'_, Calvin>, found: Vec<ProtocolRecord>) {
        let mut fixed: Vec<(LogPosition, SnapshotVersion, Cut)> = Vec::new();
        for (position, kind, payload) in found {
            if kind == kind::EARLY {
                let (epoch, cut) = decode_early(&payload).expect(INTACT);
                fixed.push((position, epoch, cut));
            } else {
                let from = Reader::new(&payload).u64("discarded epoch").expect(INTACT);
                fixed.retain(|(_, epoch, _)| epoch.0 < from);
            }
        }
        let applied = self.cut.applied;
        fixed.retain(|(_, epoch, _)| *epoch > applied);
        let is_divided = self.extension.is_divided;
        for (_, epoch, cut) in fixed.iter().filter(|_| !is_divided) {
            if !self.follows_rules(cx, *epoch, cut) {
                break;
            }
        }
        if self.is_refusing() {
            let held =
                |(position, epoch, cut): (_, _, Cut)| Held { epoch, name: cut.name, position };
            self.extension.mastery.held = fixed.into_iter().map(held).collect();
            return;
        }
        for (position, epoch, cut) in fixed {
            let next = self.extension.mastery.last_fixed().unwrap_or(applied).next();
            assert_eq!(epoch, next, "discarded cuts have a record");
            cx.mark("calvin.early_restored");
            self.streams.note_known(&cut.heads);
            self.extension.mastery.early.push_back(Early::fixed(epoch, cut, position));
        }
    }

    /// Releases the cuts that this replica could not run, if its version is past them.
    pub(crate) fn release_held(&mut self) {
        let applied = self.cut.applied;
        if self.extension.mastery.held.last().is_some_and(|last| last.epoch <= applied) {
            self.extension.mastery.held.clear();
        }
    }

    /// Asserts the invariants that hold between any two steps.
    pub(crate) fn early_invariants(&self) {
        let confirmed = &self.cut.confirmed;
        let mut next = confirmed.epoch;
        for fixed in &self.extension.mastery.early {
            next = next.next();
            assert_eq!(fixed.epoch, next, "fixed cuts follow the confirmed ones without a gap");
        }
        assert!(confirmed.epoch <= self.cut.applied, "confirmed epochs were run");
        let next = self.cut.waiting.back().map_or(next, |(last, _)| next.max(*last));
        assert!(self.cut.applied <= next, "cuts of applied epochs are known");
    }
}
