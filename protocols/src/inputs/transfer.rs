//! Checkpoint transfer: a replica that was disconnected for too long installs a peer's checkpoint
//! (Minerva §4).
//!
//! ```text
//!   behind                      peer
//!     | Fetch -----------------> |
//!     | <------- Gone            |   the batches are part of every checkpoint
//!     | CheckpointRequest -----> |   pins its published version
//!     | <------- Chunk 0: heads, configuration
//!     | <------- Chunk 1, ..: what the protocol hands on beside the rows
//!     | <------- Chunk n, ..: rows, in order; a few ahead of the Acks
//!     | CheckpointAck ---------> |
//! ```
//!
//! Chunks in flight when the connection was lost are sent again in the next session, from the chunk
//! that the receiver names. A peer that no longer has the transfer, because it restarted or timed
//! out, replies so, and the receiver begins again.
//!
//! A replica that needs cuts which agreement has truncated does the same. It retains the later
//! cuts, and applies none of them before it has a checkpoint that reaches them.
//!
//! The rows are installed as versions next to the local ones, so that readers of older snapshots
//! are not disturbed. A row that this replica does not have yet has the same version as on the
//! peer. A key that no longer exists there is deleted at the checkpoint's version.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::time::{Span, Timestamp};
use pangea_core::value::Value;

use super::greeting::lost_batches;
use super::messages::{Message, NUMBER_MAX, are_heads};
use super::{Bid, Event, Heads, Host, Inputs, decode_heads};
use outgoing::{Kept, Outgoing};

mod outgoing;

/// A transfer is restarted with another peer if its peer is not connected for this long.
const AWAY: Span = Span::from_ms(10_000);

/// A transfer is also restarted if no chunk has arrived for this long, doubled with each restart.
/// Within a session no message is lost, but a chunk may queue behind much other data on a slow
/// link.
const STALL: Span = Span::from_ms(60_000);

/// The maximum number of these doublings.
const STALL_DOUBLINGS_MAX: u32 = 4;

/// The incoming and outgoing checkpoint transfers.
pub(crate) struct Transfer {
    /// An epoch that the protocol can't reach without a peer's checkpoint.
    pub wanted: SnapshotVersion,
    /// Transfers to peers that are behind.
    outgoing: BTreeMap<NodeId, Outgoing>,
    /// The transfer to this replica.
    incoming: Option<Incoming>,
    /// The batches retained for peers that install a checkpoint or have just installed one.
    kept: BTreeMap<NodeId, Kept>,
    /// The first batch that each peer still has of each source, as reported in `Gone`: by source
    /// and peer.
    gone: BTreeMap<NodeId, BTreeMap<NodeId, Bid>>,
    /// The number of transfers requested, which selects the peer round robin.
    count: u64,
    /// The number of transfers that stalled since the last chunk with rows arrived.
    stalls: u32,
}

/// A checkpoint in transfer from a peer.
pub(crate) struct Incoming {
    transfer: u64,
    from: NodeId,
    version: SnapshotVersion,
    configuration: Option<Configuration>,
    /// The length of the protocol's state in bytes, and the bytes received of it.
    handed_on_len: usize,
    handed_on: Vec<u8>,
    rows: Vec<Row>,
    next_index: u64,
    last_progress: Timestamp,
    /// When the connection to its peer was last lost.
    left: Timestamp,
}

/// The state of an epoch that a replica needs in addition to the tables.
struct Configuration {
    heads: Heads,
    is_member: Vec<bool>,
    /// For each log, a number above those of all of its transactions.
    sequences: Vec<u64>,
}

type Row = (TableId, Key, Version);

impl Default for Transfer {
    fn default() -> Self {
        Self {
            wanted: SnapshotVersion::ZERO,
            outgoing: BTreeMap::new(),
            incoming: None,
            kept: BTreeMap::new(),
            gone: BTreeMap::new(),
            count: 0,
            stalls: 0,
        }
    }
}

impl<H: Host> Inputs<H> {
    /// Handles a peer's report that it no longer has missing batches. Another peer may have them.
    pub(crate) fn on_gone(&mut self, cx: &mut Cx<'_, H>, from: NodeId, source: NodeId, first: Bid) {
        let gone = self.transfer.gone.entry(source).or_default().entry(from).or_default();
        *gone = first.max(*gone);
        self.retry_transfer(cx);
        let lacking = self.replication.logs[source.index()].held.next();
        if lacking < first {
            self.send_fetch(cx, source, lacking, Bid(first.0 - 1));
        }
    }

    /// Whether a peer has reported that it no longer has a batch.
    pub(crate) fn has_said_gone(&self, peer: NodeId, source: NodeId, bid: Bid) -> bool {
        let said = self.transfer.gone.get(&source).and_then(|by| by.get(&peer));
        said.is_some_and(|first| bid < *first)
    }

    /// The lowest epoch at which a checkpoint would be useful; `None` if none is needed.
    fn least_needed(&mut self) -> Option<SnapshotVersion> {
        let logs = &self.replication.logs;
        self.transfer.gone.retain(|source, by| {
            by.retain(|_, first| logs[source.index()].held.next() < *first);
            !by.is_empty()
        });
        let cut = &self.cut;
        if cut.lacks_cuts() {
            // A checkpoint inside the gap would not end it.
            return Some(cut.skipped);
        }
        if self.transfer.wanted > self.mastery.confirmed.epoch {
            return Some(self.transfer.wanted);
        }
        let is_nowhere = |source: &NodeId| {
            let lacking = logs[source.index()].held.next();
            self.who_has(*source, lacking).next().is_none()
        };
        let is_needed = self.transfer.gone.keys().any(is_nowhere);
        is_needed.then(|| cut.applied.next())
    }

    /// Whether this replica can only continue from a checkpoint, or one is in transfer.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.transfer.incoming.is_some() || self.transfer.wanted > self.mastery.confirmed.epoch
    }

    /// Records that the protocol can't apply all epochs up to this one, because data that it needs
    /// is no longer available.
    pub(crate) fn want_checkpoint(&mut self, least: SnapshotVersion) {
        self.transfer.wanted = self.transfer.wanted.max(least);
    }

    /// Requests a checkpoint if one is needed and none is in transfer.
    pub(crate) fn retry_transfer(&mut self, cx: &mut Cx<'_, H>) {
        if !self.greetings.is_ready {
            // The replica could not close its current batch, whose runs would later be taken for
            // runs on the checkpoint.
            return;
        }
        let least = self.least_needed();
        let transfer = &mut self.transfer;
        let Some(least) = least else {
            if transfer.incoming.take().is_some() {
                cx.mark("inputs.checkpoint_called_off");
            }
            return;
        };
        let replication = &self.replication;
        if transfer.incoming.take_if(|incoming| incoming.is_too_old(least)).is_some() {
            cx.mark("inputs.checkpoint_outrun");
        }
        if let Some(incoming) = &transfer.incoming {
            let doublings = transfer.stalls.min(STALL_DOUBLINGS_MAX);
            let (since, patience) = match replication.is_up[incoming.from.index()] {
                true => (incoming.last_progress, STALL.us << doublings),
                false if incoming.next_index > 0 => (incoming.left, AWAY.us),
                false => (incoming.left, 0),
            };
            if cx.now.at.since(since).us < patience {
                return;
            }
        }
        let collection = &self.collection;
        let is_ahead = |peer: &NodeId| {
            replication.is_up[peer.index()] && collection.applied[peer.index()] >= least
        };
        let ahead: Vec<_> = self.topology.peers_of(self.me).filter(is_ahead).collect();
        let present = transfer.incoming.as_ref().map(|incoming| incoming.from);
        let turn = transfer.count as usize % ahead.len().max(1);
        let mut in_turn = ahead[turn..].iter().chain(&ahead[..turn]).copied();
        let Some(from) = in_turn.find(|peer| Some(*peer) != present) else {
            // There is no other peer. The chunks received may still be useful. The same peer, asked
            // again, would send all of them again behind those in flight.
            return;
        };
        if let Some(incoming) = transfer.incoming.take() {
            transfer.stalls += u32::from(replication.is_up[incoming.from.index()]);
            cx.mark("inputs.checkpoint_stalled");
        }
        transfer.count += 1;
        // Numbers are unique across the runs of a replica: a peer may still answer a request of the
        // last run.
        let number = (self.cut.last_proposal.incarnation >> 17) + transfer.count;
        transfer.incoming = Some(Incoming {
            transfer: number,
            from,
            version: SnapshotVersion::ZERO,
            configuration: None,
            handed_on_len: 0,
            handed_on: Vec::new(),
            rows: Vec::new(),
            next_index: 0,
            last_progress: cx.now.at,
            left: cx.now.at,
        });
        cx.mark("inputs.checkpoint_requested");
        cx.send(self.node(from), Message::CheckpointRequest { transfer: number, index: 0 }.into());
    }

    /// Starts the time-out of transfers with a peer, because the connection to it was lost.
    pub(crate) fn pause_transfers(&mut self, peer: NodeId, now: Timestamp) {
        let transfer = &mut self.transfer;
        if let Some(incoming) = transfer.incoming.as_mut().filter(|it| it.from == peer) {
            incoming.left = now;
        }
        if let Some(kept) = transfer.kept.get_mut(&peer) {
            kept.heard = now;
        }
    }

    /// Continues a transfer from a peer that has reconnected: the chunks in flight were lost.
    pub(crate) fn resume_transfer(&mut self, cx: &mut Cx<'_, H>, peer: NodeId) {
        let incoming = &mut self.transfer.incoming;
        match incoming.as_ref().filter(|incoming| incoming.from == peer) {
            Some(Incoming { next_index: 0, .. }) => {
                *incoming = None;
                self.retry_transfer(cx);
            }
            Some(incoming) => {
                let (transfer, index) = (incoming.transfer, incoming.next_index);
                cx.send(self.node(peer), Message::CheckpointRequest { transfer, index }.into());
            }
            None => {}
        }
    }

    /// Handles a peer's report that it no longer has the transfer.
    pub(crate) fn on_checkpoint_gone(&mut self, cx: &mut Cx<'_, H>, from: NodeId, number: u64) {
        let transfer = &mut self.transfer;
        let is_it = |incoming: &mut Incoming| incoming.from == from && incoming.transfer == number;
        if transfer.incoming.take_if(is_it).is_some() {
            self.retry_transfer(cx);
        }
    }

    /// Drops all transfers with a peer that has a new log identity.
    pub(crate) fn stop_transfers(&mut self, peer: NodeId) {
        let transfer = &mut self.transfer;
        transfer.outgoing.remove(&peer);
        transfer.kept.remove(&peer);
        transfer.incoming.take_if(|incoming| incoming.from == peer);
        transfer.gone.values_mut().for_each(|by| by.retain(|other, _| *other != peer));
    }

    /// Handles a chunk of a checkpoint.
    pub(crate) fn on_checkpoint_chunk(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        (transfer, index): (u64, u64),
        is_last: bool,
        payload: &Bytes,
    ) -> Option<Event<H>> {
        let node_count = self.topology.node_count();
        let incoming = self.transfer.incoming.as_mut()?;
        let is_expected =
            from == incoming.from && transfer == incoming.transfer && index == incoming.next_index;
        if !is_expected {
            cx.mark("inputs.unexpected_chunk");
            return None;
        }
        let is_short = is_last && index == 0;
        let taken = incoming.take(payload, node_count);
        let is_short = is_short || is_last && incoming.handed_on.len() < incoming.handed_on_len;
        if is_short || taken.is_err() {
            self.transfer.incoming = None;
            cx.mark("inputs.malformed_chunk");
            return None;
        }
        incoming.last_progress = cx.now.at;
        if index > 0 {
            // Chunk 0 is small and arrives at once.
            self.transfer.stalls = 0;
        }
        cx.send(self.node(from), Message::CheckpointAck { transfer, index }.into());
        if !is_last {
            return None;
        }
        self.transfer.gone.clear();
        self.transfer.incoming.take().map(Event::Checkpoint)
    }

    /// Whether a completely received checkpoint advances this replica. The protocol calls this when
    /// no epoch is partly applied.
    pub(crate) fn is_of_use(&self, cx: &mut Cx<'_, H>, incoming: &Incoming) -> bool {
        let (told, held) = (incoming.head_of(self.me), self.own_head());
        if told > held {
            cx.stop(lost_batches(self.node(incoming.from), told, held));
            return false;
        }
        // Undecided early epochs do not count, and must not be discarded for no gain.
        if incoming.version <= self.mastery.confirmed.epoch {
            cx.mark("inputs.checkpoint_too_old");
            return false;
        }
        true
    }

    /// Installs a peer's checkpoint as this replica's state.
    pub(crate) fn install(&mut self, cx: &mut Cx<'_, H>, incoming: Incoming) {
        let Incoming { version, configuration, rows, .. } = incoming;
        let applied = self.cut.applied;
        let configuration = configuration.expect("the first chunk contains it");
        // Keys that a partly applied epoch has written are included.
        let vanished = || vanished(cx.store, version, &rows);
        let deletions = mutate!(DeletionsNotTransferred: vanished() => Vec::new());
        let new = rows.into_iter().filter(|(_, _, row)| row.version > applied);
        let deletions = deletions.into_iter().map(|(table, key)| {
            let header = RecordHeader::default();
            (table, key, Version { version, header, value: None })
        });
        for (table, key, row) in new.chain(deletions) {
            cx.store.apply(table, key, row);
        }
        self.move_to(version, &configuration);
        self.forget_reign(cx);
        cx.store.publish_alone(version);
        self.counters.checkpoints_installed += 1;
        cx.mark("inputs.checkpoint_installed");
        self.ask_for_barriers_again(cx);
        // The log does not lead to this version: only a local checkpoint makes it durable.
        self.cut.installed = Some(version);
        self.collection.bytes_since_checkpoint = u64::MAX;
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
        cut.is_member.clone_from(&configuration.is_member);
        let skipped = configuration.heads.iter().zip(&configuration.sequences);
        for (log, (head, sequence)) in self.replication.logs.iter_mut().zip(skipped) {
            log.skip_to(*head);
            log.next_sequence = log.next_sequence.max(*sequence);
        }
        self.confirm_applied();
        self.skip_early(version);
    }
}

/// The live keys of the store that are not among `rows`, which are sorted.
fn vanished(store: &Store, at: SnapshotVersion, rows: &[Row]) -> Vec<(TableId, Key)> {
    let mut vanished = Vec::new();
    for table in store.table_ids() {
        let first = rows.partition_point(|row| row.0 < table);
        let mut kept = rows[first..].iter().take_while(|row| row.0 == table).peekable();
        store.scan_heads(table, &KeyRange::all(), at, |key, version| {
            while kept.next_if(|row| row.1 < *key).is_some() {}
            if version.value.is_some() && kept.next_if(|row| row.1 == *key).is_none() {
                vanished.push((table, key.clone()));
            }
            ControlFlow::Continue(())
        });
    }
    vanished
}

impl Incoming {
    /// The version of the checkpoint.
    pub(crate) fn version(&self) -> SnapshotVersion {
        self.version
    }

    /// Takes the state of the peer's protocol that was sent in addition to the rows.
    pub(crate) fn take_handed_on(&mut self) -> Bytes {
        std::mem::take(&mut self.handed_on).into()
    }

    /// The head of a source's log in the checkpoint.
    pub(crate) fn head_of(&self, source: NodeId) -> Bid {
        let configuration = self.configuration.as_ref().expect("the first chunk contains it");
        configuration.heads[source.index()]
    }

    /// Whether its version is known and lower than `least`.
    fn is_too_old(&self, least: SnapshotVersion) -> bool {
        self.next_index > 0 && self.version < least
    }

    /// Decodes and adds the next chunk.
    fn take(&mut self, payload: &[u8], node_count: usize) -> Result<(), DecodeError> {
        const WHAT: &str = "checkpoint chunk";
        let from = &mut Reader::new(payload);
        if self.next_index == 0 {
            self.version = SnapshotVersion(from.varint(WHAT)?);
            let heads = decode_heads(from)?;
            if !are_heads(&heads, node_count) {
                return Err(DecodeError::new(WHAT));
            }
            let is_member =
                heads.iter().map(|_| Ok(from.u8(WHAT)? == 1)).collect::<Result<_, _>>()?;
            let sequences: Vec<u64> =
                heads.iter().map(|_| from.varint(WHAT)).collect::<Result<_, _>>()?;
            if sequences.iter().chain([&self.version.0]).any(|number| *number > NUMBER_MAX) {
                return Err(DecodeError::new(WHAT));
            }
            self.configuration = Some(Configuration { heads, is_member, sequences });
            let handed_on = usize::try_from(from.varint(WHAT)?);
            self.handed_on_len = handed_on.map_err(|_| DecodeError::new(WHAT))?;
        } else if self.handed_on.len() < self.handed_on_len {
            if payload.is_empty() || payload.len() > self.handed_on_len - self.handed_on.len() {
                return Err(DecodeError::new(WHAT));
            }
            self.handed_on.extend_from_slice(payload);
            self.next_index += 1;
            return Ok(());
        }
        while !from.is_empty() {
            let table = u32::try_from(from.varint(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
            let key = Key::from(from.bytes(WHAT)?);
            let row_version = SnapshotVersion(from.varint(WHAT)?);
            let last = self.rows.last().map(|row| (row.0, &row.1));
            let is_in_order = last.is_none_or(|last| last < (TableId(table), &key));
            if row_version > self.version || !is_in_order {
                return Err(DecodeError::new(WHAT));
            }
            let header = RecordHeader::decode(from)?;
            let value = Some(Value::copy_from(from.bytes(WHAT)?));
            self.rows.push((TableId(table), key, Version { version: row_version, header, value }));
        }
        self.next_index += 1;
        Ok(())
    }
}

/// Decodes one chunk of a checkpoint of this version and returns its number of rows.
#[cfg(test)]
pub(crate) fn take_chunk(
    version: SnapshotVersion,
    index: u64,
    payload: &[u8],
    node_count: usize,
) -> Result<usize, DecodeError> {
    let mut incoming = Incoming {
        transfer: 1,
        from: NodeId(1),
        version,
        configuration: None,
        handed_on_len: 0,
        handed_on: Vec::new(),
        rows: Vec::new(),
        next_index: index,
        last_progress: Timestamp::default(),
        left: Timestamp::default(),
    };
    incoming.take(payload, node_count)?;
    Ok(incoming.rows.len())
}
