//! Asynchronous replication (Calvin §3.1.1): one replica is the master, and runs its batches before
//! they are agreed on.
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
//! The master is the leader of agreement. It alone makes batches, so that it knows what the next
//! epoch has as soon as it has made one: it **fixes** the cut, whose number is that after all that
//! is in agreement's log and all that is fixed, writes it down, and proposes it once its batches
//! are available, like any other. What agreement decides is as safe as in synchronous mode.
//!
//! A master's time is a **reign**: a term of agreement, and the number of the first transaction
//! that it took in it. A cut names its reign. Of the master's log it takes the transactions from
//! that number on, and nothing of other logs: what else lies before its heads is void, on every
//! replica alike, and no later cut can name it again. A batch says that a master has made it, so
//! that it stays void where replication is synchronous by the time that somebody brings it.
//!
//! When leadership changes, agreement carries over the cuts that may have been decided, and the new
//! master's come after them. A replica that has fixed another cut under a number that is decided
//! gives up that cut and those after it, and its store goes back to before them
//! ([`pangea_core::store::Store::retreat_to`]). One that was away, or started again, and under
//! whose numbers nothing was decided meanwhile proposes them again, in their order, before it takes
//! anything else.
//!
//! Invariants:
//! - fixed cuts are numbered without a gap, from after what is decided and run;
//! - what is run and not decided is of a cut that is on this disk, with its batches;
//! - checkpoints, what peers are told, and what is collected go by confirmed epochs alone: those
//!   that were run, and that nobody will give up.

mod confirmed;

use std::collections::VecDeque;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

use super::messages::Message;
use super::state::Cut;
use super::{Heads, Host, Inputs, LogRecord, Rules};
use crate::agreement::{Term, master_patience};

/// So many cuts may be fixed and not decided: beyond that the master makes no batch. At one each
/// 10 ms, some seconds: what a master that is cut off may answer in vain.
const EARLY_MAX: usize = 256;

/// A master that was asked to give way takes nothing for this long at most.
const YIELD_MAX: Span = Span::from_ms(3_000);

/// A master's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reign {
    /// The term in which it leads.
    pub term: Term,
    /// The number of the first transaction that is of it.
    pub first: u64,
}

/// A cut that is fixed here.
pub(crate) struct Early<R> {
    pub epoch: SnapshotVersion,
    pub cut: Cut<R>,
    /// Where it is in the log of this node.
    pub position: LogPosition,
    /// The term in which it was proposed last.
    proposed_in: Term,
    /// Whether agreement has decided it.
    pub is_decided: bool,
    /// Whether it was handed out to be run, or for others to run.
    is_begun: bool,
}

impl<R> Early<R> {
    /// One that was just written down, or found again.
    fn fixed(epoch: SnapshotVersion, cut: Cut<R>, position: LogPosition) -> Self {
        let proposed_in = Term::default();
        Self { epoch, cut, position, proposed_in, is_decided: false, is_begun: false }
    }
}

/// What is run, and for good.
pub(crate) struct Confirmed {
    pub epoch: SnapshotVersion,
    pub heads: Heads,
    pub is_member: Vec<bool>,
    /// Whose reign that is, as far as it is known here.
    reign: Option<(NodeId, Reign)>,
}

/// What a replica does as the master, or may have done.
pub(crate) struct Mastery<R> {
    /// Cuts that are fixed, from after the confirmed epoch.
    pub early: VecDeque<Early<R>>,
    pub confirmed: Confirmed,
    /// While this replica leads.
    pub reign: Option<Reign>,
    /// The term of this replica in which all that was carried over is decided and run.
    opened: Term,
    /// Whether a cut of the reign was fixed.
    has_begun: bool,
    /// When the reign began.
    since: Timestamp,
    /// Who wants to lead, and until when nothing is taken for that.
    yields: Option<(NodeId, Timestamp)>,
    has_yielded: bool,
    /// Whether this replica has asked for the leadership that it had when it stopped.
    has_returned: bool,
    /// Whether transactions were taken that are in no batch yet.
    pub has_collected: bool,
    /// Whose reign the applied epoch is of.
    reign_applied: Option<(NodeId, Reign)>,
    /// Cuts from this epoch on are void that were handed out: the protocol has yet to take note.
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

    /// The last epoch whose cut is fixed here.
    pub(crate) fn last_fixed(&self) -> Option<SnapshotVersion> {
        self.early.back().map(|early| early.epoch)
    }
}

/// A fixed cut as it is in the log.
pub(crate) fn encode_early<R: Rules>(epoch: SnapshotVersion, cut: &Cut<R>) -> Bytes {
    let mut out = Vec::new();
    out.put_u64(epoch.0);
    out.extend(postcard::to_stdvec(cut).expect("a cut in memory can be encoded"));
    out.into()
}

/// Reads what [`encode_early`] wrote.
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
    /// Whether replication is asynchronous. The only replica of a cluster waits for nobody anyway.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.settings.master.is_some() && self.topology.node_count() > 1
    }

    /// Whether this replica takes transactions as the master, now.
    pub(crate) fn takes(&self) -> bool {
        self.is_open() && self.mastery.yields.is_none()
    }

    /// Whether this replica reigns, and all that came before its reign is decided and run.
    fn is_open(&self) -> bool {
        self.mastery.reign.is_some_and(|reign| reign.term == self.mastery.opened)
    }

    /// Whether a batch can be made now, which a cut will name.
    pub(crate) fn may_fix(&self) -> bool {
        self.is_open()
            && self.mastery.early.len() < EARLY_MAX
            && self.last_epoch() < self.pace.limit
    }

    /// Begins or ends this replica's reign, as agreement has it. The next transaction that comes
    /// into a batch has the number `first`.
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
        // What is fixed after a peer's checkpoint is of use to a restart that finds that, too.
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
        // Of several that ask for leadership at a time, a preferred one may come a little later.
        let is_sure = self.settings.master == Some(self.me)
            || cx.now.at.since(mastery.since) >= master_patience(&self.topology);
        if mastery.opened != term && is_caught_up && is_sure {
            mastery.opened = term;
            if !mastery.early.is_empty() {
                cx.mark("calvin.early_cuts_again");
            }
        }
    }

    /// A master that starts again asks for leadership before it is missed: nobody else has what it
    /// has run early. Of those that have greeted it one would know of another master, who may have
    /// run something early meanwhile.
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

    /// What the master has to do: fixes a cut if there is something new, proposes those that are
    /// available, and gives way.
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
            // Who gives way follows nobody any more.
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

    /// What a cut would name that is fixed now: of its own log all, and of the others what was left
    /// there by earlier masters, to pass over it.
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
        // Who answers before a cut is agreed on can't stand still: see `turns.rs`.
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
            assert_eq!(epoch.0, self.agreement().end() + 1, "cuts are proposed in their order");
            self.agreement_mut().propose(cut);
            self.mastery.early[at].proposed_in = term;
        }
    }

    /// Asks the leader to give way, where this replica should be the master.
    pub(crate) fn ask_to_lead(&mut self, cx: &mut Cx<'_, H>) {
        if self.cut.installed.is_some() {
            // It could not begin yet.
            return;
        }
        if self.agreement_mut().takes_wish()
            && let Some(leader) = self.agreement().leader().filter(|leader| *leader != self.me)
        {
            cx.mark("calvin.asked_to_lead");
            cx.send(self.node(leader), Message::Wish {}.into());
        }
    }

    /// A peer would be a better master.
    pub(crate) fn on_wish(&mut self, cx: &mut Cx<'_, H>, from: NodeId) {
        if self.is_open() && self.mastery.yields.is_none() {
            self.mastery.yields = Some((from, cx.now.at + YIELD_MAX));
            self.mastery.has_yielded = false;
        }
    }

    /// Lets another lead once all that was taken is decided, so that nothing is lost by it.
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

    /// The leader of a term gives way to this replica.
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

    /// Whether an epoch's cut was fixed here, and is in the log.
    pub(crate) fn is_fixed(&self, epoch: SnapshotVersion) -> bool {
        self.mastery.early.iter().any(|early| early.epoch == epoch)
    }

    /// The cut of an epoch that is fixed here, if it may be run: it is decided, or this replica's
    /// disk has it.
    pub(crate) fn early_of(&mut self, epoch: SnapshotVersion) -> Option<Cut<H::Rules>> {
        // Not what is left of a time when replication was asynchronous.
        let runs = self.is_open() && self.is_asynchronous();
        let synced = self.replication.synced;
        let first = self.mastery.early.front()?.epoch;
        let at = usize::try_from(epoch.0.checked_sub(first.0)?).ok()?;
        let early = self.mastery.early.get_mut(at)?;
        let is_synced = early.position <= synced || is_planted(Bug::EarlyBeforeFsync);
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

    /// After a restart: what was fixed and is not known to be decided. Nothing of it was run yet.
    pub(crate) fn restore_early(
        &mut self,
        cx: &mut Cx<'_, H>,
        found: Vec<(LogPosition, SnapshotVersion, Cut<H::Rules>)>,
    ) {
        self.confirm_applied();
        let applied = self.cut.applied;
        for (position, epoch, cut) in found.into_iter().filter(|(_, epoch, _)| *epoch > applied) {
            let next = self.mastery.last_fixed().unwrap_or(applied).next();
            assert_eq!(epoch, next, "what was given up was noted");
            cx.mark("calvin.early_restored");
            for (log, head) in self.replication.logs.iter_mut().zip(&cut.heads) {
                log.known = log.known.max(*head);
            }
            self.mastery.early.push_back(Early::fixed(epoch, cut, position));
        }
    }

    /// Asserts what holds between any two steps.
    pub(crate) fn early_invariants(&self) {
        let Mastery { early, confirmed, .. } = &self.mastery;
        let mut next = confirmed.epoch;
        for fixed in early {
            next = next.next();
            assert_eq!(fixed.epoch, next, "fixed cuts follow what is confirmed, without a gap");
        }
        assert!(confirmed.epoch <= self.cut.applied, "what is confirmed was run");
        let next = self.cut.waiting.back().map_or(next, |(last, _)| next.max(*last));
        assert!(self.cut.applied <= next, "the cut of what is run beyond that is known here");
    }
}
