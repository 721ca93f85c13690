//! Asynchronous replication (Calvin §3.1.1): one replica is the master and runs its batches before
//! their cuts are decided.
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

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

use super::messages::Message;
use super::state::Cut;
use super::{Heads, Host, Inputs, LogRecord, Rules};
use crate::agreement::{Term, master_patience};

/// The maximum number of cuts that are fixed and not decided: above it the master creates no
/// batches. With one cut every 10 ms this is a few seconds, the time during which an isolated
/// master may acknowledge transactions that are lost.
const EARLY_MAX: usize = 256;

/// The maximum time for which a master that was asked to transfer mastership accepts no requests.
const YIELD_MAX: Span = Span::from_ms(3_000);

/// A master term: the period of one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reign {
    /// The agreement term in which it leads.
    pub term: Term,
    /// The number of its first transaction.
    pub first: u64,
}

/// A cut that this replica has fixed.
pub(crate) struct Early<R> {
    pub epoch: SnapshotVersion,
    pub cut: Cut<R>,
    /// Its position in this node's log.
    pub position: LogPosition,
    /// The term in which it was last proposed.
    proposed_in: Term,
    /// Whether agreement has decided it.
    pub is_decided: bool,
    /// Whether it was returned to the protocol, to run or to send to other shards.
    is_begun: bool,
}

impl<R> Early<R> {
    /// A cut that was just logged, or found in the log.
    fn fixed(epoch: SnapshotVersion, cut: Cut<R>, position: LogPosition) -> Self {
        let proposed_in = Term::default();
        Self { epoch, cut, position, proposed_in, is_decided: false, is_begun: false }
    }
}

/// The state as of the last confirmed epoch.
pub(crate) struct Confirmed {
    pub epoch: SnapshotVersion,
    pub heads: Heads,
    pub is_member: Vec<bool>,
    /// The master of that epoch and its term, if known.
    reign: Option<(NodeId, Reign)>,
}

/// The state of a replica as the master, or as a possible former master.
pub(crate) struct Mastery<R> {
    /// The fixed cuts after the confirmed epoch.
    pub early: VecDeque<Early<R>>,
    pub confirmed: Confirmed,
    /// `Some` while this replica leads.
    pub reign: Option<Reign>,
    /// This replica's term in which all cuts preserved from earlier terms are decided and applied.
    opened: Term,
    /// Whether a cut of the master term was fixed.
    has_begun: bool,
    /// When the master term began.
    since: Timestamp,
    /// The replica that requested mastership, and the time until which no requests are accepted for
    /// it.
    yields: Option<(NodeId, Timestamp)>,
    has_yielded: bool,
    /// Whether this replica has campaigned to regain the leadership that it had when it stopped.
    has_returned: bool,
    /// Whether transactions were accepted that are in no batch yet.
    pub has_collected: bool,
    /// The master and master term of the applied epoch.
    reign_applied: Option<(NodeId, Reign)>,
    /// Cuts from this epoch on, which were returned to the protocol, are void. Set until the
    /// protocol has handled that.
    void_from: Option<SnapshotVersion>,
}

impl<R: Rules> Mastery<R> {
    pub(crate) fn new(node_count: usize) -> Self {
        Self {
            early: VecDeque::new(),
            confirmed: Confirmed {
                epoch: SnapshotVersion::ZERO,
                heads: vec![super::Bid(0); node_count],
                is_member: vec![true; node_count],
                reign: None,
            },
            reign: None,
            opened: Term::default(),
            has_begun: false,
            since: Timestamp::default(),
            yields: None,
            has_yielded: false,
            has_returned: false,
            has_collected: false,
            reign_applied: None,
            void_from: None,
        }
    }

    /// The last epoch whose cut this replica has fixed.
    pub(crate) fn last_fixed(&self) -> Option<SnapshotVersion> {
        self.early.back().map(|early| early.epoch)
    }
}

/// Encodes a fixed cut for the log.
pub(crate) fn encode_early<R: Rules>(epoch: SnapshotVersion, cut: &Cut<R>) -> Bytes {
    let mut out = Vec::new();
    out.put_u64(epoch.0);
    out.extend(postcard::to_stdvec(cut).expect("a cut can be encoded"));
    out.into()
}

/// Decodes a fixed cut that [`encode_early`] wrote.
pub(crate) fn decode_early<R: Rules>(
    bytes: &[u8],
) -> Result<(SnapshotVersion, Cut<R>), DecodeError> {
    const WHAT: &str = "fixed cut";
    let from = &mut Reader::new(bytes);
    let epoch = SnapshotVersion(from.u64(WHAT)?);
    let cut = postcard::from_bytes(from.rest()).map_err(|_| DecodeError::new(WHAT))?;
    Ok((epoch, cut))
}

impl<H: Host> Inputs<H> {
    /// Whether replication is asynchronous. The only replica of a cluster needs no asynchronous
    /// mode.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.settings.master.is_some() && self.topology.node_count() > 1
    }

    /// Whether this replica currently accepts transactions as the master.
    pub(crate) fn takes(&self) -> bool {
        self.is_open() && self.mastery.yields.is_none()
    }

    /// Whether this replica is the master, and all cuts from before its master term are decided and
    /// applied.
    fn is_open(&self) -> bool {
        self.mastery.reign.is_some_and(|reign| reign.term == self.mastery.opened)
    }

    /// Whether a batch can be created now that a cut will include.
    pub(crate) fn may_fix(&self) -> bool {
        self.is_open()
            && self.mastery.early.len() < EARLY_MAX
            && self.last_epoch() < self.pace.limit
    }

    /// Begins or ends this replica's master term to follow agreement. The next transaction that
    /// enters a batch has the number `first`.
    pub(crate) fn update_reign(&mut self, cx: &mut Cx<'_, H>, first: u64) {
        if !self.is_asynchronous() && self.mastery.early.is_empty() {
            return;
        }
        let is_ready = self.greetings.is_ready && self.rejoin.is_none();
        let leads = is_ready && self.agreement().is_leader();
        if is_ready && !leads && self.is_asynchronous() {
            self.return_to_lead(cx);
        }
        let term = self.agreement().term();
        // A restart can use cuts fixed after a peer's checkpoint only if it finds that checkpoint
        // too.
        let is_caught_up = self.cut.waiting.is_empty()
            && !self.cut.lacks_cuts()
            && self.cut.installed.is_none()
            && self.mastery.confirmed.epoch.0 == self.agreement().end();
        let mastery = &mut self.mastery;
        if !leads {
            if mastery.reign.take().is_some() {
                cx.mark("calvin.reign_ended");
                (mastery.yields, mastery.has_yielded) = (None, false);
            }
            return;
        }
        if mastery.reign.is_none_or(|reign| reign.term != term) {
            cx.mark("calvin.reign_begun");
            mastery.reign = Some(Reign { term, first });
            mastery.has_begun = false;
            mastery.since = cx.now.at;
            (mastery.yields, mastery.has_yielded) = (None, false);
        }
        // If several replicas campaign at the same time, the preferred one may be slightly later.
        let is_sure = self.settings.master == Some(self.me)
            || cx.now.at.since(mastery.since) >= master_patience(&self.topology);
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
    fn return_to_lead(&mut self, cx: &mut Cx<'_, H>) {
        if std::mem::replace(&mut self.mastery.has_returned, true) {
            return;
        }
        let is_followed = self.greetings.follows <= self.agreement().term();
        if self.agreement().leader() == Some(self.me) && is_followed {
            cx.mark("calvin.leads_again");
            self.agreement_mut().campaign();
        }
    }

    /// Does the master's work: fixes a cut if there is something new, proposes the fixed cuts whose
    /// batches are available, and transfers mastership if requested.
    pub(crate) fn reign(&mut self, cx: &mut Cx<'_, H>, is_due: bool) {
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
            let follows = self.is_behind() && self.takes();
            let is_asked = follows || is_due && self.barriers.is_asked();
            let fixed = self.fixed_heads();
            let is_further = self.heads_to_fix().iter().zip(fixed).any(|(new, old)| new > old);
            if is_changed || is_asked || is_further || !self.mastery.has_begun {
                self.fix(cx, removed, readmitted);
            }
        }
        self.propose_early(cx);
        self.give_way(cx);
    }

    /// The heads of the last cut that is fixed or applied.
    fn fixed_heads(&self) -> &Heads {
        self.mastery.early.back().map_or(&self.cut.heads, |early| &early.cut.heads)
    }

    /// The heads of a cut fixed now: all of the local log, and of the other logs the batches left
    /// there by earlier masters, to skip them.
    fn heads_to_fix(&self) -> Heads {
        let available = self.replication.available.iter();
        let heads = available.zip(self.fixed_heads()).map(|(new, old)| *new.max(old));
        let mut heads: Heads = heads.collect();
        heads[self.me.index()] = self.own_log().held;
        heads
    }

    /// Fixes the cut of the next epoch.
    fn fix(&mut self, cx: &mut Cx<'_, H>, removed: Vec<NodeId>, readmitted: Vec<NodeId>) {
        cx.mark("calvin.cut_fixed");
        let heads = self.heads_to_fix();
        let last = self.mastery.last_fixed().unwrap_or(self.cut.applied);
        let epoch = last.next();
        self.cut.last_proposal.nonce += 1;
        let name = self.cut.last_proposal;
        let (rules, reign) = (self.settings.rules.clone(), self.mastery.reign);
        // A master that replies before a cut is decided can't be frozen: see `turns.rs`.
        let turn = None;
        let cut = Cut { name, rules, heads, removed, readmitted, reign, turn };
        let position = self.persist(cx, LogRecord::Early(encode_early(epoch, &cut)));
        self.mastery.early.push_back(Early::fixed(epoch, cut, position));
        self.mastery.has_begun = true;
        self.answer_barriers(cx);
    }

    /// Proposes the fixed cuts whose batches are available.
    fn propose_early(&mut self, cx: &mut Cx<'_, H>) {
        let term = self.agreement().term();
        let available = self.replication.available.clone();
        for at in 0..self.mastery.early.len() {
            let early = &self.mastery.early[at];
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
            self.mastery.early[at].proposed_in = term;
        }
    }

    /// Requests mastership from the leader, if this replica is the preferred master.
    pub(crate) fn ask_to_lead(&mut self, cx: &mut Cx<'_, H>) {
        if self.cut.installed.is_some() {
            // It could not start yet.
            return;
        }
        if self.agreement_mut().takes_wish()
            && let Some(leader) = self.agreement().leader().filter(|leader| *leader != self.me)
        {
            cx.mark("calvin.asked_to_lead");
            cx.send(self.node(leader), Message::Wish {}.into());
        }
    }

    /// Handles a peer's request for mastership.
    pub(crate) fn on_wish(&mut self, cx: &mut Cx<'_, H>, from: NodeId) {
        if self.is_open() && self.mastery.yields.is_none() {
            self.mastery.yields = Some((from, cx.now.at + YIELD_MAX));
            self.mastery.has_yielded = false;
        }
    }

    /// Transfers mastership once all accepted transactions are decided, so that none is lost.
    fn give_way(&mut self, cx: &mut Cx<'_, H>) {
        let Some((to, until)) = self.mastery.yields else { return };
        if cx.now.at >= until {
            cx.mark("calvin.yield_in_vain");
            self.mastery.yields = None;
            return;
        }
        let is_settled = self.mastery.early.is_empty() && !self.mastery.has_collected;
        if is_settled && !self.mastery.has_yielded {
            cx.mark("calvin.yielded");
            self.mastery.has_yielded = true;
            let term = self.agreement().term();
            cx.send(self.node(to), Message::Yield { term }.into());
        }
    }

    /// The leader of a term transfers mastership to this replica.
    pub(crate) fn on_yield(&mut self, cx: &mut Cx<'_, H>, from: NodeId, term: Term) {
        let agreement = self.agreement();
        if self.greetings.is_ready
            && agreement.term() == term
            && agreement.leader() == Some(from)
            && from != self.me
        {
            cx.mark("calvin.leads_instead");
            self.agreement_mut().campaign();
        }
    }

    /// Whether this replica has fixed and logged the cut of an epoch.
    pub(crate) fn is_fixed(&self, epoch: SnapshotVersion) -> bool {
        self.mastery.early.iter().any(|early| early.epoch == epoch)
    }

    /// The fixed cut of an epoch, if it may run: it is decided, or durable on this replica.
    pub(crate) fn early_of(&mut self, epoch: SnapshotVersion) -> Option<Cut<H::Rules>> {
        // Excludes cuts left from a time when replication was asynchronous.
        let runs = self.is_open() && self.is_asynchronous();
        let synced = self.replication.synced;
        let first = self.mastery.early.front()?.epoch;
        let at = usize::try_from(epoch.0.checked_sub(first.0)?).ok()?;
        let early = self.mastery.early.get_mut(at)?;
        let is_synced = mutate!(EarlyBeforeFsync: early.position <= synced => true);
        let may_run = early.is_decided || (runs && is_synced);
        if !may_run {
            return None;
        }
        let mut logs = self.replication.logs.iter().zip(&early.cut.heads);
        if !logs.all(|(log, head)| log.held >= *head) {
            return None;
        }
        early.is_begun = true;
        Some(early.cut.clone())
    }

    /// After a restart, restores the cuts that were fixed and are not known to be decided. None of
    /// them has run yet.
    pub(crate) fn restore_early(
        &mut self,
        cx: &mut Cx<'_, H>,
        found: Vec<(LogPosition, SnapshotVersion, Cut<H::Rules>)>,
    ) {
        self.confirm_applied();
        let applied = self.cut.applied;
        for (position, epoch, cut) in found.into_iter().filter(|(_, epoch, _)| *epoch > applied) {
            let next = self.mastery.last_fixed().unwrap_or(applied).next();
            assert_eq!(epoch, next, "discarded cuts have a record");
            cx.mark("calvin.early_restored");
            for (log, head) in self.replication.logs.iter_mut().zip(&cut.heads) {
                log.known = log.known.max(*head);
            }
            self.mastery.early.push_back(Early::fixed(epoch, cut, position));
        }
    }

    /// Asserts the invariants that hold between any two steps.
    pub(crate) fn early_invariants(&self) {
        let Mastery { early, confirmed, .. } = &self.mastery;
        let mut next = confirmed.epoch;
        for fixed in early {
            next = next.next();
            assert_eq!(fixed.epoch, next, "fixed cuts follow the confirmed ones without a gap");
        }
        assert!(confirmed.epoch <= self.cut.applied, "confirmed epochs were run");
        let next = self.cut.waiting.back().map_or(next, |(last, _)| next.max(*last));
        assert!(self.cut.applied <= next, "cuts of applied epochs are known");
    }
}
