//! Checkpoints of peers (Minerva §4): when this replica needs one, and how it continues from it.
//!
//! ```text
//!   behind                      peer
//!     | Fetch -----------------> |
//!     | <------- Gone            |   the batches are part of every checkpoint
//!     | <== checkpoint transfer =|
//!     installs the rows, and skips the epochs up to it
//! ```
//!
//! A replica that needs cuts which agreement has truncated does the same. It retains the later
//! cuts, and applies none of them before it has a checkpoint that reaches them.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::{Host, Inputs};
use crate::digests::Digests;
use crate::messages::NUMBER_MAX;
use crate::streams::{Bid, Heads, are_heads, decode_heads, encode_heads, lost_batches};
use crate::transfer;

/// A checkpoint of a peer that has arrived.
pub(crate) type Incoming = transfer::Incoming<Configuration>;

/// The state of an epoch that a replica needs in addition to the tables.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    heads: Heads,
    /// Whether each replica is in the configuration.
    is_member: Vec<bool>,
    /// For each log, a number above those of all of its transactions.
    sequences: Vec<u64>,
}

impl Configuration {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode_heads(&self.heads, &mut out);
        self.is_member.iter().for_each(|&is_member| out.put_u8(u8::from(is_member)));
        self.sequences.iter().for_each(|&sequence| out.put_varint(sequence));
        out
    }

    /// The head of a source's log.
    pub(crate) fn head_of(&self, source: NodeId) -> Bid {
        self.heads[source.index()]
    }
}

impl transfer::Configuration for Configuration {
    fn decode(from: &mut Reader<'_>, node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "checkpoint chunk";
        let heads = decode_heads(from)?;
        if !are_heads(&heads, node_count) {
            return Err(DecodeError::new(WHAT));
        }
        let is_member = heads.iter().map(|_| Ok(from.u8(WHAT)? == 1)).collect::<Result<_, _>>()?;
        let sequences: Vec<u64> =
            heads.iter().map(|_| from.varint(WHAT)).collect::<Result<_, _>>()?;
        if sequences.iter().any(|number| *number > NUMBER_MAX) {
            return Err(DecodeError::new(WHAT));
        }
        Ok(Self { heads, is_member, sequences })
    }
}

impl<H: Host> Inputs<H> {
    /// The lowest epoch at which a checkpoint would be useful; `None` if none is needed.
    fn least_needed(&mut self) -> Option<SnapshotVersion> {
        let are_gone = self.streams.are_gone(&self.replica);
        let cut = &self.cut;
        if cut.lacks_cuts() {
            // A checkpoint inside the gap would not end it.
            return Some(cut.skipped.max(self.acknowledged_upto()));
        }
        if cut.wanted > cut.confirmed.epoch {
            return Some(cut.wanted.max(self.acknowledged_upto()));
        }
        are_gone.then(|| cut.applied.next())
    }

    /// The last epoch that this replica may have acknowledged as a master, if it refuses an epoch.
    /// An earlier checkpoint would discard its transactions.
    fn acknowledged_upto(&self) -> SnapshotVersion {
        let acknowledged = self.is_refusing().then(|| H::last_acknowledged(self));
        acknowledged.flatten().unwrap_or_default()
    }

    /// Whether this replica can only continue from a checkpoint, or one is in transfer.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.transfer.is_receiving() || self.cut.wanted > self.cut.confirmed.epoch
    }

    /// Records that the protocol can't apply all epochs up to this one, because data that it needs
    /// is no longer available.
    pub(crate) fn want_checkpoint(&mut self, least: SnapshotVersion) {
        self.cut.wanted = self.cut.wanted.max(least);
    }

    /// Requests a checkpoint if one is needed and none is in transfer.
    pub(crate) fn retry_transfer(&mut self, cx: &mut Cx<'_, H>) {
        if !self.presence.is_ready {
            // The replica could not close its current batch, whose runs would later be taken for
            // runs on the checkpoint.
            return;
        }
        let Some(least) = self.least_needed() else { return self.transfer.call_off(cx) };
        let (replica, collection) = (&self.replica, &self.collection);
        let is_ahead = |peer: &NodeId| {
            replica.is_up[peer.index()] && collection.applied[peer.index()] >= least
        };
        let ahead: Vec<_> = replica.peers().filter(is_ahead).collect();
        self.transfer.retry(cx, &mut self.replica, least, &ahead);
    }

    /// Starts to send the confirmed state to a peer, with the protocol's state in addition.
    pub(crate) fn send_checkpoint(
        &mut self,
        cx: &mut Cx<'_, H>,
        to: (NodeId, u64),
        handed_on: Bytes,
    ) {
        let confirmed = &self.cut.confirmed;
        let pin = cx
            .store
            .pin_at(confirmed.epoch)
            .expect("the confirmed version is published and retained");
        let configuration = Configuration {
            heads: confirmed.heads.clone(),
            is_member: confirmed.is_member.clone(),
            sequences: self.streams.logs.iter().map(|log| log.next_sequence).collect(),
        };
        let state = (pin, &configuration.encode()[..], handed_on);
        self.transfer.send_checkpoint(cx, &self.replica, to, state, configuration.heads);
    }

    /// Whether a completely received checkpoint advances this replica. The protocol calls this when
    /// no epoch is partly applied.
    pub(crate) fn is_of_use(&self, cx: &mut Cx<'_, H>, incoming: &Incoming) -> bool {
        let reported = incoming.configuration().head_of(self.replica.me);
        let received = self.streams.own_head(&self.replica);
        if reported > received {
            cx.stop(lost_batches(self.node(incoming.from()), reported, received));
            return false;
        }
        // Undecided early epochs do not count, and must not be discarded for no gain.
        let least = self.cut.confirmed.epoch.next().max(self.acknowledged_upto());
        if incoming.version() < least {
            cx.mark("inputs.checkpoint_too_old");
            return false;
        }
        true
    }

    /// Installs a peer's checkpoint as this replica's state.
    pub(crate) fn install(&mut self, cx: &mut Cx<'_, H>, incoming: Incoming) {
        let (version, configuration) = incoming.install(cx.store, self.cut.applied);
        self.move_to(version, &configuration);
        H::on_installed(self, cx);
        cx.store.publish_alone(version);
        Digests::begin(cx, &self.replica);
        self.counters.checkpoints_installed += 1;
        cx.mark("inputs.checkpoint_installed");
        self.repeat_barrier_requests(cx);
        self.checkpoints.note_installed(&mut self.replica, version);
        self.streams.has_skipped = true;
        self.checkpoint_if_due(cx);
    }

    /// Skips everything up to `version`.
    fn move_to(&mut self, version: SnapshotVersion, configuration: &Configuration) {
        let cut = &mut self.cut;
        cut.applied = version;
        cut.waiting.retain(|(epoch, _)| *epoch > version);
        for (head, skipped) in cut.heads.iter_mut().zip(&configuration.heads) {
            *head = (*head).max(*skipped);
        }
        mutate!(
            MembersNotTransferred: cut.is_member.clone_from(&configuration.is_member) => ()
        );
        self.streams.skip_to(&configuration.heads, &configuration.sequences);
        cut.confirm_applied();
    }
}
