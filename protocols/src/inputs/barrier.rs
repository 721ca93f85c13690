//! Strict reads: with `reads = strict` a read waits for a cut that was proposed after it arrived.
//!
//! ```text
//!   replica             coordinator
//!     | BarrierRequest --> |
//!     |                    | proposes cut c, for this or for other reasons
//!     | <-- Barrier(c)     |
//!     | <=== decides c ... |
//!     applies c: reads there
//! ```
//!
//! All transactions acknowledged anywhere before the read arrived are in a cut that was decided
//! before c was proposed. The coordinator may have been deposed without knowing it. Then its c is
//! never decided, and the replica repeats the request when it sees a decision of another
//! coordinator.

use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, Ticket};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::txn::{Abort, Outcome, Program, SqlState};

use super::messages::Message;
use super::state::{Cut, ProposalName};
use super::{Host, Inputs};
use crate::agreement::Term;

/// The maximum number of waiting strict reads. When it is reached, there is no coordinator or it
/// can't be reached.
pub(crate) const STRICT_READS_MAX: usize = 50_000;

/// The waiting strict reads of this replica and its peers.
#[derive(Default)]
pub(crate) struct Barriers {
    /// Reads that arrived and are not yet reported to a coordinator.
    pub arrived: Vec<Waiter>,
    /// Reads reported to this coordinator, with the name of the request.
    requested: Option<(NodeId, u64, Vec<Waiter>)>,
    /// Reads that wait until this proposal, or a later one of the same incarnation, is applied.
    /// The term is that of the proposal.
    proposed: Vec<(ProposalName, Term, Vec<Waiter>)>,
    /// The last proposal that was applied.
    applied: ProposalName,
    /// At the coordinator: the replicas that wait for the next proposal, and their tokens. An entry
    /// remains when its replica restarts or asks another coordinator. The reply then has a token
    /// that the replica does not wait for.
    asking: BTreeMap<NodeId, u64>,
    /// Reads that need not wait any more.
    released: Vec<Waiter>,
}

/// A request that waits for a version that is new enough.
pub(crate) enum Waiter {
    /// A session that will read at that version.
    Session(Ticket),
    /// A read-only program.
    Program(Ticket, Program),
}

impl Barriers {
    /// Whether the limit of waiting reads is reached.
    fn is_full(&self) -> bool {
        let requested = self.requested.iter().map(|(.., waiters)| waiters.len());
        let proposed = self.proposed.iter().map(|(.., waiters)| waiters.len());
        let waiting = self.arrived.len() + requested.chain(proposed).sum::<usize>();
        waiting >= STRICT_READS_MAX
    }

    /// Whether some replica waits for the next proposal.
    pub(crate) fn is_asked(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Whether no read of this replica waits.
    pub(crate) fn is_idle(&self) -> bool {
        let Self { arrived, requested, proposed, released, .. } = self;
        arrived.is_empty() && requested.is_none() && proposed.is_empty() && released.is_empty()
    }

    /// The whole state, for the exhaustive search.
    #[cfg(test)]
    pub(crate) fn described(&self) -> String {
        let ticket = |waiter: &Waiter| match waiter {
            Waiter::Session(ticket) | Waiter::Program(ticket, _) => ticket.0,
        };
        let tickets = |waiters: &[Waiter]| waiters.iter().map(ticket).collect::<Vec<_>>();
        let requested = self.requested.as_ref();
        let requested = requested.map(|(leader, asked, waiters)| (leader, asked, tickets(waiters)));
        let proposed = self.proposed.iter();
        let proposed = proposed.map(|(name, term, waiters)| (name, term, tickets(waiters)));
        let proposed: Vec<_> = proposed.collect();
        let waiting = (tickets(&self.arrived), requested, proposed, tickets(&self.released));
        format!("{waiting:?} {:?} {:?}", self.applied, self.asking)
    }

    /// Releases reads that have just arrived without waiting: a planted bug.
    pub(crate) fn release_arrived(&mut self) {
        self.released.append(&mut self.arrived);
    }

    /// Re-queues the reads that may wait for a cut that is never decided. Returns whether there
    /// were any.
    fn recall(&mut self, is_in_vain: impl Fn(ProposalName, Term) -> bool) -> bool {
        let all = std::mem::take(&mut self.proposed);
        let (lost, remaining): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(name, term, _)| is_in_vain(*name, *term));
        self.proposed = remaining;
        let is_some = !lost.is_empty();
        self.arrived.extend(lost.into_iter().flat_map(|(.., waiters)| waiters));
        is_some
    }
}

impl<H: Host> Inputs<H> {
    /// Queues a read-only program until the version is new enough, unless the limit is reached.
    pub(crate) fn await_fresh(&mut self, cx: &mut Cx<'_, H>, ticket: Ticket, program: Program) {
        if self.barriers.is_full() {
            cx.mark("inputs.too_many_strict_reads");
            return cx.reply(ticket, Outcome::Aborted(too_many_strict_reads()));
        }
        self.barriers.arrived.push(Waiter::Program(ticket, program));
    }

    /// Notifies the coordinator that strict reads have arrived.
    pub(crate) fn request_barrier(&mut self, cx: &mut Cx<'_, H>) {
        if self.is_rejoining() {
            return;
        }
        let Some(leader) = self.agreement().leader() else { return };
        let barriers = &mut self.barriers;
        if barriers.requested.is_some() || barriers.arrived.is_empty() {
            return;
        }
        let token = self.replica.next_token();
        barriers.requested = Some((leader, token, std::mem::take(&mut barriers.arrived)));
        if leader == self.replica.me {
            barriers.asking.insert(leader, token);
        } else {
            self.replica.send(cx, leader, Message::BarrierRequest { token });
        }
    }

    /// Handles the request of a replica that has strict reads: the next cut is proposed after they
    /// arrived.
    pub(crate) fn on_barrier_request(&mut self, from: NodeId, token: u64) {
        self.barriers.asking.insert(from, token);
    }

    /// Names the coordinator's latest proposal to all replicas that sent a request before it.
    pub(crate) fn answer_barriers(&mut self, cx: &mut Cx<'_, H>) {
        let (name, term) = (self.cut.last_proposal, self.agreement().term());
        for (node, token) in std::mem::take(&mut self.barriers.asking) {
            if node == self.replica.me {
                self.on_barrier(cx, token, name, term);
            } else {
                let ProposalName { incarnation, nonce, .. } = name;
                let message = Message::Barrier { token, incarnation, nonce, term };
                self.replica.send(cx, node, message);
            }
        }
    }

    /// Handles the reply of the coordinator, which names the proposal that the reads wait for.
    pub(crate) fn on_barrier(
        &mut self,
        cx: &mut Cx<'_, H>,
        token: u64,
        name: ProposalName,
        term: Term,
    ) {
        let barriers = &mut self.barriers;
        match barriers.requested.take() {
            Some((leader, asked, waiters))
                if leader == name.proposer && mutate!(BarrierOfBefore: token == asked => true) =>
            {
                if barriers.applied.is_at_or_after(name) {
                    cx.mark("inputs.barrier_after_its_cut");
                    self.release(cx, waiters);
                } else {
                    barriers.proposed.push((name, term, waiters));
                }
            }
            other => barriers.requested = other,
        }
        self.request_barrier(cx);
    }

    /// Handles the decision of a proposal: reads that wait for one of another incarnation repeat
    /// their request.
    pub(crate) fn note_coordinator(&mut self, cx: &mut Cx<'_, H>, name: ProposalName) {
        let is_other = |waited: ProposalName, _| {
            (waited.proposer, waited.incarnation) != (name.proposer, name.incarnation)
        };
        if self.barriers.recall(is_other) {
            cx.mark("inputs.barrier_again");
        }
        self.request_barrier(cx);
    }

    /// Repeats the request if the coordinator has changed, or if the request may have been lost. A
    /// coordinator that was deposed and elected again has a new term. Its proposals of the earlier
    /// term may be lost, and without writes it makes no other.
    pub(crate) fn retry_barriers(&mut self, cx: &mut Cx<'_, H>, lost: Option<NodeId>) {
        let (leader, present) = (self.agreement().leader(), self.agreement().term());
        let barriers = &mut self.barriers;
        let is_in_vain = |peer: NodeId| Some(peer) != leader || Some(peer) == lost;
        if barriers.requested.as_ref().is_some_and(|(peer, ..)| is_in_vain(*peer)) {
            let (.., waiters) = barriers.requested.take().expect("the request was found above");
            barriers.arrived.extend(waiters);
        }
        barriers.recall(|waited, term| Some(waited.proposer) != leader || term < present);
        self.request_barrier(cx);
    }

    /// Repeats all requests, because epochs were skipped and with them cuts that strict reads may
    /// wait for.
    pub(crate) fn repeat_barrier_requests(&mut self, cx: &mut Cx<'_, H>) {
        let barriers = &mut self.barriers;
        barriers.recall(|_, _| true);
        if let Some((.., waiters)) = barriers.requested.take() {
            barriers.arrived.extend(waiters);
        }
        self.request_barrier(cx);
    }

    /// Releases the reads that waited for the cut of an applied epoch.
    pub(crate) fn release_barriers(&mut self, cx: &mut Cx<'_, H>, cut: &Cut<H::Rules>) {
        let before = std::mem::replace(&mut self.barriers.applied, cut.name);
        if before.nonce > 0 && before.proposer != cut.name.proposer {
            cx.mark("inputs.coordinator_changed");
        }
        let all = std::mem::take(&mut self.barriers.proposed);
        for (name, term, waiters) in all {
            if cut.name.is_at_or_after(name) {
                self.release(cx, waiters);
            } else {
                self.barriers.proposed.push((name, term, waiters));
            }
        }
    }

    fn release(&mut self, cx: &mut Cx<'_, H>, waiters: Vec<Waiter>) {
        if !waiters.is_empty() {
            cx.mark("inputs.barrier_released");
        }
        self.barriers.released.extend(waiters);
    }

    /// Takes the released reads: sends the newest epoch to sessions, and returns the programs,
    /// which the protocol runs there.
    pub(crate) fn take_released(&mut self, cx: &mut Cx<'_, H>) -> Vec<(Ticket, Program)> {
        let mut reads = Vec::new();
        for waiter in std::mem::take(&mut self.barriers.released) {
            match waiter {
                Waiter::Session(ticket) => cx.fresh(ticket, cx.store.published()),
                Waiter::Program(ticket, program) => reads.push((ticket, program)),
            }
        }
        reads
    }
}

fn too_many_strict_reads() -> Abort {
    let message = format!("more than {STRICT_READS_MAX} strict reads wait for the coordinator");
    Abort::new(SqlState::INSUFFICIENT_RESOURCES, message)
        .with_detail("Either there is no coordinator, or this node can't reach it.")
        .with_hint("Try again later, or read a snapshot (reads = \"snapshot\").")
}
