//! Rejoin: the knowledge of the peers of a replica that lost its disk ([`crate::presence`]).
//!
//! The replica has promised ballots, accepted cuts, acknowledged batches and numbered its own
//! batches, and has no record of that. The recovered state covers everything that it had sent:
//!
//! - **Agreement.** See `agreement/durable_state.rs`. If n - majority + 1 peers remember, every
//!   majority in which it promised or accepted has a member among them.
//! - **Its own batches.** A replica that acknowledges a batch has all batches before it, and a cut
//!   names only batches that other replicas have acknowledged. A batch that no replica has without
//!   a gap is lost and its number is free: each peer discards the batches after a gap in this log
//!   at the first `Rejoin`. If a cut names more batches than any replica has, the node stops,
//!   because acknowledged transactions are lost.
//! - **Batches of other sources** that it acknowledged are on f other replicas. It must have them
//!   again before it counts as rejoined. A second disk that is lost before that is one too many.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Rejoining};

use super::state::Cut;
use super::{Host, Inputs, Rules};
use crate::agreement::{Agreement, DurableState, Record};
use crate::checkpoints::Checkpoints;
use crate::messages::NUMBER_MAX;
use crate::presence::{self, Memory, remembering_min};
use crate::replica::{Replica, kind};
use crate::streams::{self, Bid, Heads, Streams, are_heads, decode_heads, encode_heads, max_heads};

/// A peer's knowledge of a replica that rejoins.
#[derive(Debug)]
pub(crate) struct RejoinState<R> {
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
    pub log_identities: Vec<u64>,
    pub next_sequence: u64,
    pub target: Target,
    pub agreement: Vec<Record<Cut<R>>>,
}

impl<H: Host> Inputs<H> {
    /// Whether this replica lost its disk and has not recovered its data yet.
    pub(crate) fn is_rejoining(&self) -> bool {
        self.presence.is_asking() || self.target.is_some()
    }

    /// The knowledge of a node that lost its disk.
    pub(super) fn known_of(&self, node: NodeId, is_whole: bool) -> RejoinState<H::Rules> {
        RejoinState {
            is_whole,
            heads: self.streams.received_heads(),
            next_sequence: self.streams.logs[node.index()].next_sequence,
            agreement: self.agreement().durable_state(),
        }
    }

    /// Continues from the knowledge of the peers.
    pub(super) fn continue_from(
        &mut self,
        cx: &mut Cx<'_, H>,
        all: Vec<(NodeId, RejoinState<H::Rules>)>,
    ) {
        let me = self.replica.me;
        let nothing = vec![Bid(0); self.replica.topology.node_count()];
        let mut target = Target { epoch: SnapshotVersion::ZERO, heads: nothing };
        let (mut next_sequence, mut agreement) = (self.streams.next_sequence, Vec::new());
        for (peer, known) in all {
            target.heads = max_heads(&target.heads, &known.heads);
            target.epoch = target.epoch.max(SnapshotVersion(known.agreement.decided()));
            next_sequence = next_sequence.max(known.next_sequence);
            self.streams.durable[peer.index()] = known.heads;
            agreement.push(known.agreement);
        }
        let named =
            agreement.iter().flat_map(DurableState::entries).map(|cut| cut.heads[me.index()]);
        if let Some(lost) = named.max().filter(|named| *named > target.heads[me.index()]) {
            return cx.stop(lost_for_good(lost, target.heads[me.index()]));
        }
        mutate!(RejoinReusesNumbers: () => target.heads[me.index()] = Bid(0));
        next_sequence += H::numbers_skipped(self);
        let log_identities = self.presence.log_identities.clone();
        let agreement = DurableState::merge(agreement);
        let rejoined = Rejoined { log_identities, next_sequence, target, agreement };
        let position = self.replica.persist(cx, &kind::REJOINED, rejoined.encode());
        self.cut.driver.note_record(position);
        self.cut.heard_at.fill(cx.now.at);
        self.start_agreement(rejoined.agreement);
        self.streams.next_sequence = next_sequence;
        self.aim_at(rejoined.target);
        self.presence.end_asking(cx, position);
        for peer in self.replica.peers() {
            if self.replica.is_up[peer.index()] {
                presence::meet(self, cx, peer);
            }
        }
    }

    /// Starts agreement from the records of the log.
    pub(super) fn start_agreement(&mut self, records: Vec<Record<Cut<H::Rules>>>) {
        let (applied, master) = (self.cut.applied.0, H::preferred_master(self));
        let (me, topology) = (self.replica.me, &self.replica.topology);
        let agreement = Agreement::with_master(me, topology, records, applied, master);
        self.cut.driver.start(agreement);
    }

    /// Sets the data to recover. Batches that are known to exist are fetched like any missing
    /// batch.
    pub(super) fn aim_at(&mut self, target: Target) {
        self.streams.note_known(&target.heads);
        self.streams.own_reported = target.heads[self.replica.me.index()];
        self.target = Some(target);
    }

    /// Accepts requests again once the reported data is durable on this replica. Returns whether
    /// that changed now.
    pub(crate) fn end_rejoin(&mut self, cx: &mut Cx<'_, H>) -> bool {
        if !self.holds_target() {
            return false;
        }
        self.target = None;
        self.counters.rejoins += 1;
        cx.mark("inputs.rejoined");
        cx.rejoined();
        self.request_barrier(cx);
        true
    }

    /// The status for operators while this replica is rejoining.
    pub(crate) fn rejoining(&self) -> Option<Rejoining> {
        let catching_up = self.target.as_ref().map(|target| target.status(&self.replica));
        catching_up.or_else(|| self.presence.asking_status(&self.replica))
    }

    /// Whether the data to recover is durable on this replica.
    pub(crate) fn holds_target(&self) -> bool {
        let target = self.target.as_ref();
        target.is_some_and(|target| target.is_durable(&self.streams, &self.checkpoints))
    }
}

impl<R: Rules> RejoinState<R> {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(self.is_whole.into());
        encode_heads(&self.heads, &mut out);
        out.put_varint(self.next_sequence);
        out.put_bytes(&self.agreement.encode());
        out.into()
    }
}

impl<R: Rules> Memory for RejoinState<R> {
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

    fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl Target {
    /// Whether the data is durable on this replica.
    pub(crate) fn is_durable<H: streams::Host>(
        &self,
        streams: &Streams<H>,
        checkpoints: &Checkpoints,
    ) -> bool {
        let mut logs = streams.logs.iter().zip(&self.heads);
        logs.all(|(log, head)| log.durable >= *head)
            && checkpoints.durable >= self.epoch
            && checkpoints.installed.is_none()
    }

    /// The status for operators while the data is not here.
    pub(crate) fn status(&self, replica: &Replica) -> Rejoining {
        let (needed, upto) = (remembering_min(replica), Some(self.epoch));
        Rejoining { needed, upto, ..Rejoining::default() }
    }

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
        self.log_identities.iter().for_each(|log_identity| out.put_u64(*log_identity));
        out.put_u64(self.next_sequence);
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "rejoin";
        let from = &mut Reader::new(bytes);
        let target = Target::decode(from)?;
        let log_identities =
            target.heads.iter().map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let next_sequence = from.u64(WHAT)?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self { log_identities, next_sequence, target, agreement })
    }
}

fn lost_for_good(named: Bid, received: Bid) -> String {
    format!(
        "the cluster has agreed on {} batches of this node's log, but no other node has more than \
         {}: acknowledged transactions would be lost. Restore this node's data directory",
        named.0, received.0
    )
}

/// An answer for the fuzzer.
#[cfg(test)]
pub(crate) fn recollection<R: Rules>(agreement: Vec<Record<Cut<R>>>) -> Bytes {
    use pangea_core::time::Span;
    use pangea_core::topology::Topology;
    let topology = Topology::one_node_per_region("fuzz", &["a", "b", "c"], Span::ZERO);
    let agreement = Agreement::new(NodeId(0), &topology, agreement, 0).durable_state();
    let heads = vec![Bid(1), Bid(300), Bid(0)];
    RejoinState { is_whole: true, heads, next_sequence: 70_000, agreement }.encode()
}

/// Decodes an answer and returns its number of cuts.
#[cfg(test)]
pub(crate) fn decode_rejoin_state<R: Rules>(
    bytes: &[u8],
    node_count: usize,
) -> Result<usize, DecodeError> {
    RejoinState::<R>::decode(bytes, node_count).map(|known| known.agreement.entries().len())
}
