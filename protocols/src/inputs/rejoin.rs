//! Rejoin: a replica that lost its disk recovers, under the same id.
//!
//! The replica has promised ballots, accepted cuts, acknowledged batches and numbered its own
//! batches, and has no record of that. Therefore it asks all other replicas for their knowledge of
//! it. Until they have answered, it sends and accepts no other messages.
//!
//! ```text
//!   replaced                                every other
//!     | Rejoin(nonce, birth) ---------------> |   logs the birth: the earlier life is over
//!     | <------- Recollection(nonce, known)   |   sent when all that it tells is durable there
//!   all have answered, enough of them remember: what they know is logged, in one record
//!     | Greeting, agreement, Ack, Fetch ----> |   takes part, and fetches what it held
//!   it holds what was reported: takes requests, makes batches
//! ```
//!
//! The recovered state covers everything that the replica had sent:
//!
//! - **Agreement.** See `agreement/remembered.rs`. If n - majority + 1 peers remember, every
//!   majority in which it promised or accepted has a member among them.
//! - **Its own batches.** A replica that acknowledges a batch has all batches before it, and a cut
//!   names only batches that other replicas have acknowledged. A batch that no replica has without
//!   a gap is lost and its number is free: each peer discards the batches after a gap in this log
//!   at the first `Rejoin`. If a cut names more batches than any replica has, the node stops,
//!   because acknowledged transactions are lost.
//! - **Batches of other sources** that it acknowledged are on f other replicas. It must have them
//!   again before it counts as rejoined. A second disk that is lost before that is one too many.
//!
//! Messages in flight from its previous log do no harm. A peer answers in the session of the new
//! log, and no message of an earlier session arrives after that. A greeting that a peer sent in the
//! same session before its answer, on another lane, is ignored ([`Inputs::on_greeting`]). A peer
//! that has lost its disk too replies that it knows nothing, and is asked again later. A peer that
//! participates again but is still catching up reports the heads of its logs, because it may have
//! batches that no other replica has. It does not count among the peers that remember.

use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::{Cx, Rejoining};
use pangea_core::time::Span;

use super::messages::{Message, NUMBER_MAX, are_heads};
use super::state::Cut;
use super::{
    Batch, Bid, Event, Heads, Host, Inputs, LogRecord, Rules, Timer, decode_heads, encode_heads,
};
use crate::agreement::{Agreement, DurableState, Record};

/// The interval at which peers that have not answered are asked again.
const RETRY: Span = Span::from_ms(500);

/// More than the number of transactions that a master has run before another disk had them.
const NUMBERS_SKIPPED: u64 = 1 << 30;

/// The progress of a replica that lost its disk.
pub(crate) enum Rejoin<R> {
    /// It asks its peers for their knowledge.
    Asking(Asking<R>),
    /// It participates, but has not yet recovered its data.
    CatchingUp(Target),
}

/// The requests and the answers received.
pub(crate) struct Asking<R> {
    nonce: u64,
    answers: Vec<Answer<R>>,
}

enum Answer<R> {
    None,
    KnowsNothing,
    Knows(Known<R>),
}

/// A peer's knowledge of a replica that rejoins.
struct Known<R> {
    /// Whether the peer itself has its complete log. A peer that lost its disk and participates
    /// again has everything it received since, but does not count towards earlier majorities.
    is_whole: bool,
    /// The heads of each log on the peer.
    heads: Heads,
    /// All transactions of the rejoining replica have lower numbers than this.
    next_sequence: u64,
    agreement: DurableState<Cut<R>>,
}

/// The data that a rejoining replica has to recover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// The last epoch that was known to be decided.
    pub epoch: SnapshotVersion,
    /// The log heads, including those of its own log.
    pub heads: Heads,
}

/// The log record that ends the requests.
#[derive(Clone, Debug)]
pub(crate) struct Rejoined<R> {
    pub births: Vec<u64>,
    pub next_sequence: u64,
    pub target: Target,
    pub agreement: Vec<Record<Cut<R>>>,
}

impl<H: Host> Inputs<H> {
    /// Whether this replica does not know its earlier promises and votes yet.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.rejoin, Some(Rejoin::Asking(_)))
    }

    /// Starts a rejoin: the node was started to replace one that lost its disk.
    pub(crate) fn start_rejoin(&mut self, cx: &mut Cx<'_, H>) {
        cx.mark("inputs.rejoin_asks");
        let nonce = cx.rng.u64(..);
        let answers = self.topology.node_ids().map(|_| Answer::None).collect();
        self.greetings.births[self.me.index()] = cx.rng.u64(1..);
        self.rejoin = Some(Rejoin::Asking(Asking { nonce, answers }));
        self.greetings.is_ready = is_planted(Bug::VotesWhileRejoining);
        cx.set_timer(Timer::Rejoin.into(), RETRY);
    }

    /// Asks the peers again that have not answered or do not remember.
    pub(crate) fn on_rejoin_timeout(&mut self, cx: &mut Cx<'_, H>) {
        let Some(Rejoin::Asking(asking)) = &self.rejoin else { return };
        let knows = |peer: &NodeId| asking.answers[peer.index()].is_whole();
        let is_up = |peer: &NodeId| self.replication.is_up[peer.index()];
        let peers = self.topology.peers_of(self.me);
        let asked: Vec<_> = peers.filter(|peer| is_up(peer) && !knows(peer)).collect();
        asked.into_iter().for_each(|peer| self.ask(cx, peer));
        cx.set_timer(Timer::Rejoin.into(), RETRY);
    }

    /// Asks a peer for its knowledge.
    pub(crate) fn ask(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        let Some(Rejoin::Asking(Asking { nonce, .. })) = self.rejoin else { return };
        let birth = self.greetings.births[self.me.index()];
        cx.send(self.node(peer), Message::Rejoin { nonce, birth }.into());
    }

    /// Handles the request of a peer that lost its disk.
    pub(crate) fn on_rejoin(&mut self, cx: &mut Cx<'_, H>, from: NodeId, nonce: u64, birth: u64) {
        let is_whole = match &self.rejoin {
            // This replica's own rejoin record will contain the identity.
            Some(Rejoin::Asking(_)) => {
                self.greetings.births[from.index()] = birth;
                None
            }
            Some(Rejoin::CatchingUp(_)) => Some(false),
            None if !self.greetings.is_ready => return cx.mark("inputs.rejoin_too_early"),
            None => Some(true),
        };
        if !self.is_asking() && self.greetings.rejoins[from.index()] != Some(nonce) {
            self.greetings.rejoins[from.index()] = Some(nonce);
            self.end_earlier_life(cx, from, birth);
        }
        cx.mark("inputs.rejoin_answered");
        let known = is_whole.map(|is_whole| self.known_of(from, is_whole).encode());
        let birth = self.greetings.births[self.me.index()];
        // All reported state must survive a restart of this node.
        cx.send_after(
            cx.log_head(),
            self.node(from),
            Message::Recollection { nonce, birth, known: known.unwrap_or_default() }.into(),
        );
    }

    /// Forgets the state of a peer's previous log. Batches of its log after a gap are discarded: no
    /// replica has acknowledged them, and their numbers may be used again.
    fn end_earlier_life(&mut self, cx: &mut Cx<'_, H>, node: NodeId, birth: u64) {
        self.note_birth(cx, node, birth);
        let log = &self.replication.logs[node.index()];
        let held = log.held;
        if log.slots.range(held.next()..).next().is_some() && !is_planted(Bug::OrphansKept) {
            cx.mark("inputs.orphans_dropped");
            self.persist(cx, LogRecord::Discard(node, held));
            self.replication.logs[node.index()].discard_after(held);
        }
        let nothing = vec![Bid(0); self.topology.node_count()];
        self.replication.durable[node.index()].clone_from(&nothing);
        let collection = &mut self.collection;
        collection.heads[node.index()] = nothing;
        collection.applied[node.index()] = SnapshotVersion::ZERO;
        collection.durable[node.index()] = SnapshotVersion::ZERO;
        collection.has_told[node.index()] = false;
        self.stop_transfers(node);
    }

    fn known_of(&self, node: NodeId, is_whole: bool) -> Known<H::Rules> {
        let logs = &self.replication.logs;
        Known {
            is_whole,
            heads: logs.iter().map(|log| log.held).collect(),
            next_sequence: logs[node.index()].next_sequence,
            agreement: self.agreement().durable_state(),
        }
    }

    /// Handles the answer of a peer.
    pub(crate) fn on_recollection(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        (nonce, birth): (u64, u64),
        known: &Bytes,
    ) {
        let node_count = self.topology.node_count();
        let answer = match known.is_empty() {
            true => Answer::KnowsNothing,
            false => match Known::decode(known, node_count) {
                Ok(known) => Answer::Knows(known),
                Err(_) => return cx.mark("inputs.malformed_recollection"),
            },
        };
        let Some(Rejoin::Asking(asking)) = &mut self.rejoin else {
            return cx.mark("inputs.recollection_late");
        };
        if nonce != asking.nonce {
            return cx.mark("inputs.recollection_late");
        }
        if !answer.is_whole() {
            cx.mark("inputs.peer_forgot_too");
        }
        asking.answers[from.index()] = answer;
        self.greetings.answered[from.index()] = true;
        self.greetings.births[from.index()] = birth;
        if self.is_enough() {
            self.end_asking(cx);
        }
    }

    /// Whether all peers have answered and every majority contains one that remembers.
    fn is_enough(&self) -> bool {
        let Some(Rejoin::Asking(Asking { answers, .. })) = &self.rejoin else { return false };
        let answered = answers.iter().filter(|answer| !matches!(answer, Answer::None)).count();
        let known = answers.iter().filter(|answer| answer.is_whole()).count();
        if is_planted(Bug::RejoinedAfterOne) {
            return known > 0;
        }
        let node_count = self.topology.node_count();
        answered == node_count - 1 && known >= self.remembering_min()
    }

    fn remembering_min(&self) -> usize {
        self.topology.node_count() - self.topology.majority() + 1
    }

    /// Continues from the knowledge of the peers.
    fn end_asking(&mut self, cx: &mut Cx<'_, H>) {
        let Some(Rejoin::Asking(asking)) = self.rejoin.take() else { return };
        let me = self.me;
        let nothing = vec![Bid(0); self.topology.node_count()];
        let mut target = Target { epoch: SnapshotVersion::ZERO, heads: nothing };
        let (mut next_sequence, mut agreement) = (self.next_sequence, Vec::new());
        for (peer, answer) in asking.answers.into_iter().enumerate() {
            let Answer::Knows(known) = answer else { continue };
            target.heads = max_heads(&target.heads, &known.heads);
            target.epoch = target.epoch.max(SnapshotVersion(known.agreement.decided()));
            next_sequence = next_sequence.max(known.next_sequence);
            self.replication.durable[peer] = known.heads;
            agreement.push(known.agreement);
        }
        let named =
            agreement.iter().flat_map(DurableState::entries).map(|cut| cut.heads[me.index()]);
        if let Some(lost) = named.max().filter(|named| *named > target.heads[me.index()]) {
            return cx.stop(lost_for_good(lost, target.heads[me.index()]));
        }
        if is_planted(Bug::RejoinReusesNumbers) {
            target.heads[me.index()] = Bid(0);
        }
        if self.is_asynchronous() {
            // Clients may have been answered for transactions that no other replica knows.
            next_sequence += NUMBERS_SKIPPED;
        }
        let births = self.greetings.births.clone();
        let agreement = DurableState::merge(agreement);
        let rejoined = Rejoined { births, next_sequence, target, agreement };
        let position = self.persist(cx, LogRecord::Rejoined(&rejoined));
        self.greetings.logged_at(position);
        self.cut.agreement_record = position;
        self.cut.heard_at.fill(cx.now.at);
        let topology = self.topology.clone();
        let (applied, master) = (self.cut.applied.0, self.settings.master);
        let agreement = Agreement::with_master(me, &topology, rejoined.agreement, applied, master);
        self.cut.agreement = Some(agreement);
        self.next_sequence = next_sequence;
        self.aim_at(rejoined.target);
        self.greetings.is_ready = true;
        cx.clear_timer(Timer::Rejoin.into());
        cx.mark("inputs.rejoin_knows");
        for peer in topology.peers_of(me) {
            if self.replication.is_up[peer.index()] {
                self.meet(cx, peer);
            }
        }
    }

    /// Sets the data to recover. Batches that are known to exist are fetched like any missing
    /// batch.
    pub(crate) fn aim_at(&mut self, target: Target) {
        for (log, head) in self.replication.logs.iter_mut().zip(&target.heads) {
            log.known = log.known.max(*head);
        }
        self.rejoin = Some(Rejoin::CatchingUp(target));
    }

    /// Handles a batch of this replica's own log, from before it lost its disk. It commits like any
    /// other, and no client waits for it. Later batches may already have been fetched, after a
    /// checkpoint that a crash took away.
    pub(crate) fn on_own_batch(
        &mut self,
        cx: &mut Cx<'_, H>,
        batch: H::Batch,
        bytes: Bytes,
    ) -> Option<Event<H>> {
        let log = self.own_log();
        let is_next = batch.bid() == log.held.next() && batch.bid() <= self.own_head();
        if !is_next || !log.fits(&batch) {
            cx.mark("inputs.own_batch_from_another");
            return None;
        }
        cx.mark("inputs.own_batch_fetched");
        let batch = Arc::new(batch);
        self.hold(cx, batch.clone(), bytes);
        Some(Event::OwnBatch(batch))
    }

    /// Accepts requests again once the reported data is durable on this replica. Returns whether
    /// that changed now.
    pub(crate) fn end_rejoin(&mut self, cx: &mut Cx<'_, H>) -> bool {
        if !self.holds_target() {
            return false;
        }
        self.rejoin = None;
        self.counters.rejoins += 1;
        cx.mark("inputs.rejoined");
        cx.rejoined();
        self.request_barrier(cx);
        true
    }

    /// The status for operators while this replica is rejoining.
    pub(crate) fn rejoining(&self) -> Option<Rejoining> {
        let rejoin = self.rejoin.as_ref()?;
        let needed = self.remembering_min();
        Some(match rejoin {
            Rejoin::CatchingUp(target) => {
                Rejoining { needed, upto: Some(target.epoch), ..Rejoining::default() }
            }
            Rejoin::Asking(Asking { answers, .. }) => {
                let peers_with = |is_it: fn(&Answer<H::Rules>) -> bool| {
                    let peers = self.topology.peers_of(self.me);
                    peers.filter(|peer| is_it(&answers[peer.index()])).collect()
                };
                Rejoining {
                    missing: peers_with(|answer| matches!(answer, Answer::None)),
                    forgetful: peers_with(|answer| match answer {
                        Answer::None => false,
                        answer => !answer.is_whole(),
                    }),
                    needed,
                    upto: None,
                }
            }
        })
    }
}

impl<R> Answer<R> {
    /// Whether the peer remembers everything that it ever sent.
    fn is_whole(&self) -> bool {
        matches!(self, Self::Knows(known) if known.is_whole)
    }
}

impl<H: Host> Inputs<H> {
    /// Whether the data to recover is durable on this replica.
    pub(crate) fn holds_target(&self) -> bool {
        let Some(Rejoin::CatchingUp(target)) = &self.rejoin else { return false };
        let logs = self.replication.logs.iter().zip(&target.heads);
        logs.into_iter().all(|(log, head)| log.durable >= *head)
            && self.cut.durable >= target.epoch
            && self.cut.installed.is_none()
    }

    /// The last batch of this replica that any replica may have.
    pub(crate) fn own_head(&self) -> Bid {
        let held = self.own_log().held;
        match &self.rejoin {
            Some(Rejoin::CatchingUp(target)) => held.max(target.heads[self.me.index()]),
            Some(Rejoin::Asking(_)) | None => held,
        }
    }
}

impl<R: Rules> Known<R> {
    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(self.is_whole.into());
        encode_heads(&self.heads, &mut out);
        out.put_varint(self.next_sequence);
        out.put_bytes(&self.agreement.encode());
        out.into()
    }

    fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "recollection";
        let from = &mut Reader::new(bytes);
        let is_whole = match from.u8(WHAT)? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::new(WHAT)),
        };
        let heads = decode_heads(from)?;
        let next_sequence = from.varint(WHAT)?;
        let is_sound = |cut: &Cut<R>| cut.is_sound(node_count);
        let agreement = DurableState::decode(from.bytes(WHAT)?, node_count, &is_sound)
            .map_err(|_| DecodeError::new(WHAT))?;
        if !are_heads(&heads, node_count) || next_sequence > NUMBER_MAX || !from.is_empty() {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { is_whole, heads, next_sequence, agreement })
    }
}

impl Target {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.epoch.0);
        encode_heads(&self.heads, out);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { epoch: SnapshotVersion(from.varint("rejoin")?), heads: decode_heads(from)? })
    }
}

impl<R: Rules> Rejoined<R> {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.target.encode(&mut out);
        self.births.iter().for_each(|birth| out.put_u64(*birth));
        out.put_u64(self.next_sequence);
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "rejoin";
        let from = &mut Reader::new(bytes);
        let target = Target::decode(from)?;
        let births = target.heads.iter().map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let next_sequence = from.u64(WHAT)?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self { births, next_sequence, target, agreement })
    }
}

impl<B: Batch> super::state::SourceLog<B> {
    /// Discards every batch after `head` that is not part of the state.
    pub(crate) fn discard_after(&mut self, head: Bid) {
        self.slots.split_off(&head.next());
        self.held = self.held.min(head).max(self.collected);
        self.known = self.held;
        self.advance_held();
    }
}

/// The element-wise maximum of two vectors of heads.
fn max_heads(a: &[Bid], b: &[Bid]) -> Heads {
    a.iter().zip(b).map(|(a, b)| *a.max(b)).collect()
}

fn lost_for_good(named: Bid, held: Bid) -> String {
    format!(
        "the cluster has agreed on {} batches of this node's log, but no other node has more than \
         {}: acknowledged transactions would be lost. Restore this node's data directory",
        named.0, held.0
    )
}

/// An answer for the fuzzer.
#[cfg(test)]
pub(crate) fn recollection<R: Rules>(agreement: Vec<Record<Cut<R>>>) -> Bytes {
    use pangea_core::topology::Topology;
    let topology = Topology::one_node_per_region("fuzz", &["a", "b", "c"], Span::ZERO);
    let agreement = Agreement::new(NodeId(0), &topology, agreement, 0).durable_state();
    let heads = vec![Bid(1), Bid(300), Bid(0)];
    Known { is_whole: true, heads, next_sequence: 70_000, agreement }.encode()
}

/// Decodes an answer and returns its number of cuts.
#[cfg(test)]
pub(crate) fn take_recollection<R: Rules>(
    bytes: &[u8],
    node_count: usize,
) -> Result<usize, DecodeError> {
    Known::<R>::decode(bytes, node_count).map(|known| known.agreement.entries().len())
}
