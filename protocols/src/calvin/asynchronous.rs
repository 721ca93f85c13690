//! Asynchronous replication (§3.1.1): all requests go to the sequencer of one replica, the master.
//!
//! ```text
//!   client    replica                      master
//!     | submit  |                             |
//!     |-------->| Forward(request) ---------> |   or it waits for a master here
//!     |         | <------------------ Taken   |   it is in the batch that is being collected
//!     |         | <================= Batch    |
//!     | <-------|  runs its epoch, when it is decided
//! ```
//!
//! The master's own clients are told when its disk has the batch ([`crate::inputs`], `early.rs`).
//! Clients of other replicas are told by these, when they have run the epoch themselves: a session
//! finds there what it has written, and what it was told of can't be lost. So no outcome has to be
//! sent: a request has the name in the batch that its replica gave it.
//!
//! When the connection to the master is lost before it said that it took a request, nobody knows
//! whether it did, and the client is told so. So is that of one that is void, which is known once a
//! cut of a later reign is run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pangea_core::exec::ordered::Finished;
use pangea_core::ids::{NodeId, SnapshotVersion, Ticket, TxnId};
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::{Abort, Outcome, Program, Seen, SqlState};

use super::batch::{Request, Unplaced, has_seen_what_is_final};
use super::messages::{Message, Taken};
use super::state::{Again, InFlight, WAITING_BATCHES_MAX};
use super::{Calvin, Cut};
use crate::agreement::Term;
use crate::inputs::{Batch as _, IN_FLIGHT_MAX, outcome_unknown};

/// Requests that are not in a batch of this replica, as another one is the master, or none is.
#[derive(Default)]
pub(super) struct Forwarding {
    /// For no master is known yet.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Sent to a replica, which has not said yet what it made of them.
    sent: BTreeMap<u64, (NodeId, Waiting)>,
    /// The last answer was that nothing is taken: one request asks again, for all.
    is_refused: bool,
    /// The name of the last that was sent. It begins at random: what is said of an earlier life's
    /// is of no use.
    token: u64,
    /// Taken by a master, in its term, and not run here.
    awaited: BTreeMap<u64, Awaited>,
    /// The term of the last reign of which something was run here.
    run: Term,
}

/// Who waits for a request that a master has taken.
struct Awaited {
    term: Term,
    ticket: Ticket,
    /// Where tables are divided, what to take again when it left its footprint.
    again: Option<Again>,
}

/// Who wants a request to be put into a batch.
pub(super) enum Asker {
    /// A client of this node.
    Client(Ticket),
    /// Another replica, under its name for it.
    Replica(NodeId, u64),
}

struct Waiting {
    ticket: Ticket,
    request: Unplaced,
    /// The line of versions that it has read from.
    line: u64,
}

impl Forwarding {
    /// How many requests there are.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.sent.len() + self.awaited.len()
    }

    /// Whether no more can wait.
    pub(super) fn is_full(&self, batch_bytes: usize) -> bool {
        self.waiting_bytes > WAITING_BATCHES_MAX * batch_bytes
    }

    /// Whether somebody waits for the request that was sent under this name.
    pub(super) fn awaits(&self, token: u64) -> bool {
        self.awaited.contains_key(&token) || self.sent.contains_key(&token)
    }

    /// Who waits for the request that was sent under this name, no more from now on, and the
    /// program where it may be taken again.
    pub(super) fn take(&mut self, token: u64) -> Option<(Ticket, Option<Again>)> {
        let awaited = self.awaited.remove(&token).map(|it| (it.ticket, it.again));
        awaited.or_else(|| {
            let (_, waiting) = self.sent.remove(&token)?;
            Some((waiting.ticket, Again::of(&waiting.request)))
        })
    }

    fn push(&mut self, waiting: Waiting) {
        self.waiting_bytes += waiting.request.weight();
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.waiting_bytes -= waiting.request.weight();
        Some(waiting)
    }
}

/// Whether an interactive transaction has read a row of a later version.
fn has_seen_after(program: &Program, upto: SnapshotVersion) -> bool {
    let Program::Certified(certified) = program else { return false };
    let is_later = |seen: &Seen| matches!(seen, Seen::At(version) if *version > upto);
    let points = certified.reads.points.iter().map(|read| &read.seen);
    let ranges = certified.reads.ranges.iter();
    let rows = ranges.flat_map(|read| read.rows.iter().map(|(_, seen)| seen));
    points.chain(rows).any(is_later)
}

impl Calvin {
    /// Takes a request for whoever is the master.
    pub(super) fn take_for_master(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        request: Unplaced,
    ) {
        let forwarding = &mut self.state.forwarding;
        if forwarding.token == 0 {
            forwarding.token = cx.rng.u64(1..1 << 48);
        }
        forwarding.push(Waiting { ticket, request, line: cx.store.line() });
    }

    /// Brings what waits to the master's sequencer, if there is a master.
    pub(super) fn dispatch(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.forwarding.waiting.is_empty() || self.state.inputs.rejoin.is_some() {
            return;
        }
        if self.state.inputs.takes() {
            while let Some(Waiting { ticket, request, .. }) = self.next_to_go(cx, false) {
                self.put_in_batch(cx, Asker::Client(ticket), request);
            }
            return;
        }
        let inputs = &self.state.inputs;
        let is_up = |master: &NodeId| inputs.replication.is_up[master.index()];
        let leader = inputs.agreement().leader().filter(|leader| *leader != inputs.me);
        let Some(master) = leader.filter(is_up) else { return };
        let Forwarding { is_refused, sent, .. } = &self.state.forwarding;
        let is_refused = *is_refused;
        if is_refused && sent.values().any(|(to, _)| *to == master) {
            return;
        }
        let (mut requests, mut bytes) = (Vec::new(), 0);
        while let Some(waiting) = self.next_to_go(cx, true) {
            let size = waiting.request.weight();
            if bytes > 0 && bytes + size > self.state.options.batch_bytes {
                self.forward(cx, master, std::mem::take(&mut requests));
                bytes = 0;
            }
            bytes += size;
            let forwarding = &mut self.state.forwarding;
            forwarding.token += 1;
            let request = waiting.request.clone().placed(TxnId::default(), None);
            requests.push((forwarding.token, request));
            forwarding.sent.insert(forwarding.token, (master, waiting));
            if is_refused {
                break;
            }
        }
        self.forward(cx, master, requests);
    }

    /// The next request that goes to the master, which is another replica or this one.
    fn next_to_go(&mut self, cx: &mut Cx<'_, Self>, is_forwarded: bool) -> Option<Waiting> {
        loop {
            let waiting = self.state.forwarding.pop()?;
            let is_same = cx.store.line() == waiting.line;
            if self.is_of_line(&waiting.request.program, is_same, is_forwarded) {
                return Some(waiting);
            }
            refuse_read(cx, waiting.ticket);
        }
    }

    fn forward(&self, cx: &mut Cx<'_, Self>, master: NodeId, requests: Vec<(u64, Request)>) {
        if !requests.is_empty() {
            cx.mark("calvin.forwarded");
            cx.send(self.state.inputs.node(master), Message::Forward { requests });
        }
    }

    /// Whether what an interactive transaction has read is what versions of these numbers are now,
    /// and, where it goes to another replica, will stay. Where tables are divided it always is.
    fn is_of_line(&self, program: &Program, is_same: bool, is_final: bool) -> bool {
        let Program::Certified(_) = program else { return true };
        let is_void = !is_same || is_final && has_seen_after(program, self.confirmed());
        self.state.shards.is_some() || !is_void
    }

    /// Another replica has requests for the master.
    pub(super) fn on_forward(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        requests: Vec<(u64, Request)>,
    ) {
        let is_divided = self.state.shards.is_some();
        let is_sound = |(_, request): &(u64, Request)| {
            has_seen_what_is_final(&request.program)
                && request.shards.is_empty() != is_divided
                && request.is_small()
        };
        if !requests.iter().all(is_sound) {
            return cx.mark("calvin.malformed_forward");
        }
        let node = self.state.inputs.node(from);
        let sequencer = &self.state.sequencer;
        let is_full = sequencer.in_flight.len() + requests.len() > IN_FLIGHT_MAX
            || sequencer.is_full(self.state.options.batch_bytes);
        let reign = self.state.inputs.mastery.reign.filter(|_| self.state.inputs.takes());
        let Some(reign) = reign.filter(|_| !is_full) else {
            cx.mark("calvin.not_taken");
            let tokens = requests.into_iter().map(|(token, _)| token).collect();
            return cx.send(node, Message::NotTaken { tokens });
        };
        let tokens = requests.iter().map(|(token, _)| *token).collect();
        for (token, request) in requests {
            self.put_in_batch(cx, Asker::Replica(from, token), request.unplaced(0));
        }
        cx.send(node, Message::Taken { taken: Taken { term: reign.term, tokens } });
    }

    /// The master has taken requests of this replica.
    pub(super) fn on_taken(&mut self, cx: &mut Cx<'_, Self>, term: Term, tokens: &[u64]) {
        cx.mark("calvin.taken");
        let forwarding = &mut self.state.forwarding;
        let was_refused = std::mem::take(&mut forwarding.is_refused);
        for token in tokens {
            // Unless it was run before this came.
            let Some((_, waiting)) = forwarding.sent.remove(token) else { continue };
            let (ticket, again) = (waiting.ticket, Again::of(&waiting.request));
            let is_named = || self.state.shards.as_ref().is_some_and(|it| it.names(*token));
            if term < forwarding.run && !is_named() {
                tell_void(cx, ticket);
            } else {
                forwarding.awaited.insert(*token, Awaited { term, ticket, again });
            }
        }
        if was_refused {
            self.dispatch(cx);
        }
    }

    /// A replica that is no master has not taken requests of this one. They wait for the next look.
    pub(super) fn on_not_taken(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, tokens: &[u64]) {
        cx.mark("calvin.not_taken");
        let forwarding = &mut self.state.forwarding;
        forwarding.is_refused = true;
        for token in tokens {
            match forwarding.sent.remove(token) {
                Some((to, waiting)) if to == from => forwarding.push(waiting),
                Some(other) => {
                    forwarding.sent.insert(*token, other);
                }
                None => {}
            }
        }
    }

    /// A connection was lost, and with it what was on its way: nobody knows whether it came.
    pub(super) fn lose_sent(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let sent = &mut self.state.forwarding.sent;
        let lost: Vec<u64> =
            sent.iter().filter(|(_, (to, _))| *to == peer).map(|(token, _)| *token).collect();
        for token in lost {
            if let Some((_, waiting)) = sent.remove(&token) {
                cx.mark("calvin.outcome_unknown");
                cx.reply(waiting.ticket, Outcome::Aborted(outcome_unknown()));
            }
        }
    }

    /// What was skipped with a checkpoint may have been run elsewhere, also where the master's word
    /// that it has taken it is still on its way.
    pub(super) fn forget_forwarded(&mut self, cx: &mut Cx<'_, Self>) {
        let forwarding = &mut self.state.forwarding;
        let awaited = std::mem::take(&mut forwarding.awaited).into_values();
        let sent = std::mem::take(&mut forwarding.sent).into_values();
        let tickets = awaited.map(|it| it.ticket).chain(sent.map(|(_, it)| it.ticket));
        for ticket in tickets {
            cx.mark("calvin.outcome_unknown");
            cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
        }
    }

    /// Does what the master has to do, if this replica is that, or was until now.
    pub(super) fn lead(&mut self, cx: &mut Cx<'_, Self>) {
        let inputs = &mut self.state.inputs;
        let current = &self.state.sequencer.current;
        let first = current.first().map_or(inputs.next_sequence, |first| first.txn.sequence());
        inputs.mastery.has_collected = !current.is_empty();
        let before = inputs.mastery.reign;
        inputs.update_reign(cx, first);
        let reign = inputs.mastery.reign;
        if !inputs.is_asynchronous() {
            return;
        }
        match reign {
            None => self.put_back(cx),
            Some(reign) if before.is_none_or(|before| before.term != reign.term) => {
                let in_flight = &mut self.state.sequencer.in_flight;
                let collected = in_flight.iter_mut().filter(|it| it.txn.sequence() >= first);
                collected.for_each(|it| it.term = reign.term);
            }
            Some(_) => {}
        }
        if self.state.inputs.takes() {
            self.dispatch(cx);
        }
        self.state.inputs.reign(cx, false);
    }

    /// The reign is over, and what was collected in it is in no batch: the next master may take it.
    fn put_back(&mut self, cx: &mut Cx<'_, Self>) {
        let sequencer = &mut self.state.sequencer;
        sequencer.current_bytes = 0;
        let collected = std::mem::take(&mut sequencer.current);
        let Some(first) = collected.first() else { return };
        cx.mark("calvin.put_back");
        let first = first.txn.sequence();
        let at = sequencer.in_flight.partition_point(|it| it.txn.sequence() < first);
        let in_flight = sequencer.in_flight.split_off(at);
        for (request, waiting) in collected.into_iter().zip(in_flight) {
            assert_eq!(request.txn, waiting.txn, "what is collected is in flight, in its order");
            // A peer's was named, and the peer will see that it is void.
            let tries = waiting.again.map_or(0, |again| again.tries);
            if let Some(ticket) = waiting.ticket {
                self.take_for_master(cx, ticket, request.unplaced(tries));
            }
        }
    }

    /// Fixed cuts that were handed out are void: the store goes back, and an epoch that was being
    /// run with it.
    pub(super) fn note_void(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(from) = self.state.inputs.take_void() else { return };
        if self.state.shards.is_some() {
            return self.void_own(cx, from);
        }
        let upto = SnapshotVersion(from.0 - 1).min(self.state.inputs.cut.applied);
        self.state.inputs.retreat(cx, upto);
        self.state.running.take_if(|running| running.epoch() > upto);
        self.refuse_void_reads(cx, upto);
    }

    /// Versions after this one are void, and others get their numbers: what has read them and is in
    /// no batch yet never comes into one.
    fn refuse_void_reads(&mut self, cx: &mut Cx<'_, Self>, upto: SnapshotVersion) {
        let sequencer = &mut self.state.sequencer;
        let is_void = |request: &Request| has_seen_after(&request.program, upto);
        let void: BTreeSet<TxnId> =
            sequencer.current.iter().filter(|it| is_void(it)).map(|it| it.txn).collect();
        if void.is_empty() {
            return;
        }
        sequencer.current.retain(|request| !void.contains(&request.txn));
        sequencer.current_bytes = sequencer.current.iter().map(Request::weight).sum();
        let mut tickets = Vec::new();
        sequencer.in_flight.retain(|waiting| {
            let stays = !void.contains(&waiting.txn);
            if !stays {
                tickets.extend(waiting.ticket);
            }
            stays
        });
        tickets.into_iter().for_each(|ticket| refuse_read(cx, ticket));
    }

    /// Epochs that were run early and are decided now.
    pub(super) fn confirm_epochs(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.shards.is_some() {
            return self.confirm_divided(cx);
        }
        while let Some((epoch, cut)) = self.state.inputs.take_confirmed(cx) {
            self.log_epoch(cx, epoch, &cut);
            self.state.inputs.release_barriers(cx, &cut);
            self.checkpoint_if_due(cx);
            self.read_released(cx);
        }
    }

    /// An epoch of a reign was run: tells who waited for what was run elsewhere, and who waits for
    /// what is void.
    pub(super) fn settle_forwarded(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (version, cut): (SnapshotVersion, &Cut),
        finished: Vec<(u64, TxnId, Finished)>,
    ) {
        for (token, txn, finished) in finished {
            if let Some((ticket, _)) = self.state.forwarding.take(token) {
                self.answer(cx, ticket, (txn, version), finished);
            }
        }
        let Some(reign) = cut.reign else { return };
        if !self.state.inputs.is_asynchronous() {
            let end = self.end_of_own(cut);
            return self.skip_void(cx, end);
        }
        self.state.forwarding.run = reign.term;
        let mut void = Vec::new();
        self.state.forwarding.awaited.retain(|_, awaited| {
            let stays = awaited.term >= reign.term;
            if !stays {
                void.push(awaited.ticket);
            }
            stays
        });
        let in_flight = &mut self.state.sequencer.in_flight;
        while let Some(waiting) = in_flight.pop_front_if(|first| first.term < reign.term) {
            void.extend(waiting.ticket);
        }
        void.into_iter().for_each(|ticket| tell_void(cx, ticket));
    }

    /// Below which number this node's requests are in batches that a cut has passed. Where
    /// replication is synchronous, a cut of a reign is what an earlier life has left, as are those
    /// that it has passed and not named: they are void. It says nothing of this life's.
    fn end_of_own(&self, cut: &Cut) -> u64 {
        let inputs = &self.state.inputs;
        let last = inputs.own_log().slots.get(&cut.heads[inputs.me.index()]);
        last.map_or(0, |slot| slot.batch.end_sequence())
    }

    /// The same where tables are divided, once an epoch of a reign is confirmed: what earlier
    /// masters have taken, and no cut has named, is void.
    pub(super) fn tell_void_divided(&mut self, cx: &mut Cx<'_, Self>, cut: &Cut) {
        let Some(reign) = cut.reign else { return };
        if !self.state.inputs.is_asynchronous() {
            let end = self.end_of_own(cut);
            let void = self.void_in_flight(|it| it.txn.sequence() < end);
            return void.into_iter().for_each(|ticket| tell_void(cx, ticket));
        }
        if std::mem::replace(&mut self.state.forwarding.run, reign.term) == reign.term {
            return;
        }
        let Some(shards) = &self.state.shards else { return };
        let mut void = Vec::new();
        self.state.forwarding.awaited.retain(|token, awaited| {
            let stays = awaited.term >= reign.term || shards.names(*token);
            if !stays {
                void.push(awaited.ticket);
            }
            stays
        });
        let collected = self.state.sequencer.current.first().map(|first| first.txn.sequence());
        let is_batched = |it: &InFlight| collected.is_none_or(|first| it.txn.sequence() < first);
        void.extend(self.void_in_flight(|it| it.term < reign.term && is_batched(it)));
        void.into_iter().for_each(|ticket| tell_void(cx, ticket));
    }

    /// Those in flight of which this is so, and which no cut of a divided cluster has named, have
    /// ended. Returns who waits for them.
    fn void_in_flight(&mut self, is_it: impl Fn(&InFlight) -> bool) -> Vec<Ticket> {
        let Some(shards) = &self.state.shards else { return Vec::new() };
        let me = self.state.inputs.node(self.state.inputs.me);
        let is_named = |it: &InFlight| shards.mine.contains_key(&TxnId::new(me, it.txn.sequence()));
        let in_flight = &mut self.state.sequencer.in_flight;
        let mut void = Vec::new();
        for waiting in in_flight.iter_mut().filter(|it| is_it(it) && !is_named(it)) {
            waiting.is_over = true;
            void.extend(waiting.ticket.take());
        }
        while in_flight.pop_front_if(|first| first.is_over).is_some() {}
        void
    }

    /// Whose requests before `sequence` were not run are void: a later one was.
    pub(super) fn skip_void(&mut self, cx: &mut Cx<'_, Self>, sequence: u64) {
        let in_flight = &mut self.state.sequencer.in_flight;
        while let Some(first) = in_flight.pop_front_if(|first| first.txn.sequence() < sequence) {
            first.ticket.into_iter().for_each(|ticket| tell_void(cx, ticket));
        }
    }

    /// Tells a client how its transaction ended.
    pub(super) fn answer(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        (txn, version): (TxnId, SnapshotVersion),
        finished: Finished,
    ) {
        let outcome = match finished.outcome {
            Ok(result) => Outcome::Committed { txn, version, result },
            Err(abort) => {
                self.state.counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
        };
        let first_run = match finished.passes {
            1 => FirstRun::Absent,
            _ => FirstRun::Fell(None),
        };
        cx.reply_of_run(ticket, outcome, first_run);
    }
}

fn tell_void(cx: &mut Cx<'_, Calvin>, ticket: Ticket) {
    cx.mark("calvin.void");
    cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
}

/// What an interactive transaction has read is void, or may be.
fn refuse_read(cx: &mut Cx<'_, Calvin>, ticket: Ticket) {
    cx.mark("calvin.read_given_up");
    cx.reply(ticket, Outcome::Aborted(read_given_up()));
}

/// The same, as it is told.
pub(super) fn read_given_up() -> Abort {
    Abort::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access: it read a lost state")
        .with_detail("The master failed over, and what it had not replicated is given up.")
        .with_hint("The transaction might succeed if retried.")
}
