//! The knowledge of a replica that its peers have, and return when it has lost its disk
//! ([`crate::presence`]).
//!
//! A replica without its disk does not know which epochs it has ended, which batches it has
//! acknowledged, and how it has voted. What it learns from its peers covers all that it had sent:
//!
//! - **Agreement.** See `agreement/durable_state.rs`.
//! - **Epochs that it had ended.** Its life ends, and it begins a new one after all epochs that
//!   anybody can have merged (`views.rs`). Until then it ends no epoch.
//! - **Its own batches.** Those that an epoch contains are on f other replicas. Their numbers are
//!   not used again.
//! - **Batches of other sources** that it acknowledged are on f other replicas. It must have them
//!   again before it reports on a seal.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Rejoining};

use super::GeoGauss;
use super::state::{End, State};
use super::views::{Change, View};
use crate::agreement::{Agreement, DurableState, Record, Term, lost_promises};
use crate::inputs::Target;
use crate::presence::{self, Memory, Presence};
use crate::replica::{INTACT, Replica, kind};
use crate::streams::{Bid, Bounds, are_heads, lost_batches, lost_log, max_heads, number};

/// The knowledge of the receiver that is in a greeting, besides its identity.
pub(crate) struct Evidence {
    /// The last batch of the receiver's log that the sender has without gaps.
    batches: Bid,
    /// The last epoch that the receiver has ended, as far as the sender has heard.
    ended: SnapshotVersion,
    /// The latest ballot that the receiver has promised to the sender.
    promise: Term,
}

/// A peer's knowledge of a replica that lost its disk.
#[derive(Debug)]
pub(crate) struct Known {
    /// Whether the peer itself has its complete log.
    pub(super) is_whole: bool,
    /// The last epoch that the peer has merged, and the heads of each log on it.
    pub(super) target: Target,
    /// The last batch of the replica that the peer knows of, whether it counts or not.
    pub(super) own_head: Bid,
    /// All transactions of the replica have lower numbers than this.
    pub(super) next_sequence: u64,
    pub(super) configuration: Configured,
    pub(super) agreement: DurableState<Change>,
}

/// A view, as a replica that was not there needs it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Configured {
    /// The number of its decision; 0 for the first view.
    pub decision: u64,
    pub view: View,
    /// The batches of each log that count.
    pub bounds: Vec<Bounds>,
}

/// The log record of a replica that lost its disk and has heard from its peers.
pub(super) struct Rejoined {
    pub(super) target: Target,
    pub(super) log_identities: Vec<u64>,
    pub(super) own_head: Bid,
    pub(super) next_sequence: u64,
    pub(super) configuration: Configured,
    pub(super) agreement: Vec<Record<Change>>,
}

impl Configured {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.decision);
        out.put_bytes(&postcard::to_stdvec(&self.view).expect("a view can be encoded"));
        self.bounds.iter().for_each(|bounds| bounds.encode(out));
    }

    pub(super) fn decode(from: &mut Reader<'_>, node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "view";
        let decision = number(from, WHAT)?;
        let view: View =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        if !view.is_sound(node_count) {
            return Err(DecodeError::new(WHAT));
        }
        let bounds = (0..node_count).map(|_| Bounds::decode(from)).collect::<Result<_, _>>()?;
        Ok(Self { decision, view, bounds })
    }
}

impl State {
    /// The view of this replica.
    pub(super) fn configured(&self) -> Configured {
        Configured {
            decision: self.membership.decision,
            view: self.membership.view.clone(),
            bounds: self.streams.logs.iter().map(|log| log.bounds.clone()).collect(),
        }
    }

    fn known_of(&self, node: NodeId, is_whole: bool) -> Known {
        let log = &self.streams.logs[node.index()];
        let last = log.slots.keys().next_back().copied().unwrap_or_default();
        let life = &self.membership.view.lives[node.index()];
        Known {
            is_whole,
            target: Target { epoch: self.confirmed().epoch, heads: self.streams.received_heads() },
            own_head: last.max(log.known).max(log.received).max(life.head),
            next_sequence: log.next_sequence,
            configuration: self.configured(),
            agreement: self.membership.driver.agreement().durable_state(),
        }
    }

    /// Whether this replica lost its disk and has not recovered its data yet.
    pub(super) fn is_rejoining(&self) -> bool {
        self.presence.is_asking() || self.target.is_some()
    }

    /// Whether the data to recover is durable on this replica.
    pub(super) fn holds_target(&self) -> bool {
        let target = self.target.as_ref();
        target.is_some_and(|target| target.is_durable(&self.streams, &self.checkpoints))
    }

    /// The status for operators while this replica is rejoining.
    pub(super) fn rejoining(&self) -> Option<Rejoining> {
        let catching_up = self.target.as_ref().map(|target| target.status(&self.replica));
        catching_up.or_else(|| self.presence.asking_status(&self.replica))
    }

    /// Restores the knowledge of the peers from the log, after a restart. Returns the records of
    /// agreement.
    pub(super) fn restore_rejoined(&mut self, payload: &[u8]) -> Vec<Record<Change>> {
        let rejoined = Rejoined::decode(payload, self.replica.topology.node_count()).expect(INTACT);
        self.presence.log_identities.clone_from(&rejoined.log_identities);
        self.take_rejoined(&rejoined);
        rejoined.agreement
    }

    fn take_rejoined(&mut self, rejoined: &Rejoined) {
        self.streams.next_sequence = rejoined.next_sequence;
        self.membership.own_head = rejoined.own_head;
        self.configure(rejoined.configuration.clone());
        self.membership.has_no_life = mutate!(LifeNotLost: true => false);
        self.aim_at(rejoined.target.clone());
    }

    /// Sets the data to recover. Batches that are known to exist are fetched like any missing one.
    /// A peer in an earlier view may have told of some that do not count.
    pub(super) fn aim_at(&mut self, mut target: Target) {
        let logs = self.streams.logs.iter().zip(&mut target.heads);
        logs.for_each(|(log, head)| *head = log.bounds.last_upto(*head));
        self.streams.note_known(&target.heads);
        self.target = Some(target);
    }
}

impl GeoGauss {
    /// Starts the exchange with the peers after the log was read. `was_ready` is whether this
    /// replica has participated before; `is_replaced` is whether it may have done so before its
    /// disk was lost.
    pub(super) fn begin_greetings(
        &mut self,
        cx: &mut Cx<'_, Self>,
        was_ready: bool,
        is_replaced: bool,
    ) {
        let holds_target = self.state.holds_target();
        let State { presence, replica, streams, target, .. } = &mut self.state;
        presence.begin(replica, was_ready);
        if is_replaced && !was_ready {
            return presence.start_rejoin(cx, replica);
        }
        if holds_target {
            // An earlier run had already reached it.
            *target = None;
        }
        if is_replaced && target.is_none() {
            // An earlier run completed the rejoin but stopped before the driver had recorded it.
            cx.rejoined();
        }
        presence.draw_log_identity(cx, replica);
        if replica.topology.node_count() == 1 {
            presence.become_ready(cx);
            // The batches in its log are available, although nothing is being synced.
            streams.update_available(cx, replica);
        }
    }

    /// Accepts requests again once the data that the peers reported is durable on this replica.
    pub(super) fn end_rejoin(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.holds_target() {
            self.state.target = None;
            self.state.counters.rejoins += 1;
            cx.mark("geogauss.rejoined");
            cx.rejoined();
        }
    }
}

/// The message with which a node stops if a peer has heard an end of epochs that it had not
/// reserved according to its log. It would add transactions to them, although others have merged
/// them.
fn lost_ends(peer: NodeId, ended: SnapshotVersion) -> String {
    lost_log(&format!(
        "node {} has heard that this node ended epoch {}, but its log does not allow that",
        peer.0, ended.0
    ))
}

impl presence::Owner for GeoGauss {
    type Host = Self;
    type Evidence = Evidence;

    fn parts(&mut self) -> (&mut Presence<Self>, &mut Replica) {
        (&mut self.state.presence, &mut self.state.replica)
    }

    fn evidence(&self, peer: NodeId) -> Bytes {
        let log = &self.state.streams.logs[peer.index()];
        // Numbers without batches may be those of a view that the peer does not know yet.
        let batches = log.bounds.last_upto(log.received);
        let promise = self.state.membership.driver.agreement().promise_of(peer);
        let mut out = Vec::new();
        out.put_varint(batches.0);
        out.put_varint(self.state.epochs.own_ends[peer.index()].0);
        promise.encode(&mut out);
        out.into()
    }

    fn decode_evidence(&self, known: &[u8]) -> Result<Evidence, DecodeError> {
        let from = &mut Reader::new(known);
        let batches = Bid(number(from, "greeting")?);
        let ended = SnapshotVersion(number(from, "greeting")?);
        let promise = Term::decode(from)?;
        let is_sound = promise.is_sound(self.state.replica.topology.node_count());
        match is_sound && from.is_empty() {
            true => Ok(Evidence { batches, ended, promise }),
            false => Err(DecodeError::new("greeting")),
        }
    }

    fn note_evidence(&mut self, _: NodeId, known: &Evidence) {
        self.note_own_found(known.batches);
    }

    fn lost(&self, from: NodeId, known: &Evidence) -> Option<String> {
        let State { streams, replica, membership, .. } = &self.state;
        let created = streams.own_head(replica).max(membership.own_head);
        if known.batches > created {
            return Some(lost_batches(from, known.batches, created));
        }
        if known.ended > self.state.last_reserved() {
            return Some(lost_ends(from, known.ended));
        }
        let has_lost = known.promise > membership.driver.agreement().term();
        has_lost.then(|| lost_promises(from))
    }

    fn repeat_messages(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let State { streams, replica, membership, transfer, presence, .. } = &mut self.state;
        if presence.is_ready {
            membership.driver.agreement_mut().on_peer_up(peer);
        }
        streams.resend(cx, replica, peer);
        if transfer.resume(cx, replica, peer) {
            self.retry_transfer(cx);
        }
        self.send_eof(cx, peer);
        self.state.epochs.hearing.forget(peer);
        if self.state.stops.is_stopping() {
            self.send_progress(cx);
        }
        self.announce_stop(cx);
    }

    fn is_catching_up(&self) -> bool {
        self.state.target.is_some()
    }

    fn end_earlier_life(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId, log_identity: u64) {
        let State { streams, replica, membership, transfer, presence, epochs, .. } =
            &mut self.state;
        presence.note_log_identity(cx, replica, peer, log_identity);
        streams.end_earlier_life(cx, replica, peer);
        membership.forget(peer);
        epochs.ends[peer.index()] = End::default();
        epochs.own_ends[peer.index()] = SnapshotVersion::ZERO;
        transfer.stop(peer);
        self.state.note_who_is_behind();
    }

    fn memory_of(&self, peer: NodeId, is_whole: bool) -> Bytes {
        self.state.known_of(peer, is_whole).encode()
    }

    fn end_asking(&mut self, cx: &mut Cx<'_, Self>, all: Vec<(NodeId, Known)>) {
        let state = &mut self.state;
        let nothing = vec![Bid(0); state.replica.topology.node_count()];
        let mut target = Target { heads: nothing, ..Target::default() };
        let (mut own_head, mut next_sequence) = (Bid(0), state.streams.next_sequence);
        let mut configuration = state.configured();
        let mut agreement = Vec::new();
        for (peer, known) in all {
            target.heads = max_heads(&target.heads, &known.target.heads);
            target.epoch = target.epoch.max(known.target.epoch);
            own_head = own_head.max(known.own_head);
            next_sequence = next_sequence.max(known.next_sequence);
            if known.configuration.decision > configuration.decision {
                configuration = known.configuration;
            }
            state.streams.durable[peer.index()] = known.target.heads;
            agreement.push(known.agreement);
        }
        let log_identities = state.presence.log_identities.clone();
        let agreement = DurableState::merge(agreement);
        let rejoined =
            Rejoined { target, log_identities, own_head, next_sequence, configuration, agreement };
        let position = state.replica.persist(cx, &kind::REJOINED, rejoined.encode());
        state.take_rejoined(&rejoined);
        let (me, topology) = (state.replica.me, &state.replica.topology);
        let taken = state.membership.taken();
        let driver = &mut state.membership.driver;
        driver.note_record(position);
        driver.start(Agreement::new(me, topology, rejoined.agreement, taken));
        state.membership.heard_at.fill(cx.now.at);
        state.presence.end_asking(cx, position);
        for peer in state.replica.peers() {
            if self.state.replica.is_up[peer.index()] {
                presence::meet(self, cx, peer);
            }
        }
    }
}

impl Known {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(self.is_whole.into());
        self.target.encode(&mut out);
        out.put_varint(self.own_head.0);
        out.put_varint(self.next_sequence);
        self.configuration.encode(&mut out);
        out.put_bytes(&self.agreement.encode());
        out.into()
    }
}

impl Memory for Known {
    fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "recollection";
        let from = &mut Reader::new(bytes);
        let is_whole = match from.u8(WHAT)? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::new(WHAT)),
        };
        let target = Target::decode(from)?;
        let own_head = Bid(number(from, WHAT)?);
        let next_sequence = number(from, WHAT)?;
        let configuration = Configured::decode(from, node_count)?;
        let is_sound = |change: &Change| change.is_sound(node_count);
        let agreement = DurableState::decode(from.bytes(WHAT)?, node_count, &is_sound)
            .map_err(|_| DecodeError::new(WHAT))?;
        if !are_heads(&target.heads, node_count) || !from.is_empty() {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { is_whole, target, own_head, next_sequence, configuration, agreement })
    }

    fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl Rejoined {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.target.encode(&mut out);
        self.log_identities.iter().for_each(|log_identity| out.put_u64(*log_identity));
        out.put_varint(self.own_head.0);
        out.put_varint(self.next_sequence);
        self.configuration.encode(&mut out);
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.into()
    }

    pub(super) fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "rejoin";
        let from = &mut Reader::new(bytes);
        let target = Target::decode(from)?;
        let log_identities =
            target.heads.iter().map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let own_head = Bid(from.varint(WHAT)?);
        let next_sequence = from.varint(WHAT)?;
        let configuration = Configured::decode(from, node_count)?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self { target, log_identities, own_head, next_sequence, configuration, agreement })
    }
}
