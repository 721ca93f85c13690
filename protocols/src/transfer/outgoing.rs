//! The sending side of a checkpoint transfer.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use bytes::Bytes;
use pangea_core::codec::Writer;
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::key::KeyRange;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::Pin;
use pangea_core::time::{Span, Timestamp};

use super::{ChunkNumber, Event, Host, Message, Transfer};
use crate::replica::Replica;
use crate::streams::{Bid, Heads};

/// The maximum number of chunks in flight: batches queue behind them.
const CHUNKS_AHEAD: u64 = 16;

/// The maximum bytes in flight, unless a single chunk is larger. Rows may be large, and a
/// connection is closed when its queue exceeds a limit.
const BYTES_AHEAD: usize = 8 << 20;

/// How long the transfer of a disconnected peer is retained.
const KEEP: Span = Span::from_ms(30_000);

/// A checkpoint in transfer to a peer.
pub(crate) struct Outgoing {
    /// The number that the receiver gave to the transfer.
    transfer: u64,
    pin: Pin,
    meta: Bytes,
    /// The protocol's state, which is sent in addition to the rows.
    handed_on: Bytes,
    /// The start of the next chunk, preceded by the starts of the unacknowledged chunks. The first
    /// chunk is separate.
    cursors: VecDeque<Cursor>,
    /// The sizes of the unacknowledged chunks in bytes.
    sizes: VecDeque<usize>,
    /// The size in bytes at which a chunk is closed.
    chunk_bytes: usize,
    /// The first unacknowledged chunk.
    acknowledged: u64,
    next_index: u64,
}

/// The batches that a peer needs after its checkpoint. No other rule retains them, because the peer
/// may have been removed. They are retained until it is a member again, for up to [`KEEP`] after
/// its last message.
pub(crate) struct RetainedBatches {
    /// The peer has everything up to these heads, or will have it.
    pub(super) heads: Heads,
    /// When the peer last requested or acknowledged a chunk or made progress after them, or was
    /// disconnected.
    heard: Timestamp,
}

/// The start of a chunk.
#[derive(Clone, Debug)]
enum Cursor {
    /// In the protocol's state, at this offset in bytes.
    HandedOn(usize),
    /// At this row: a table and a key in it.
    Row(TableId, Vec<u8>),
    /// After the last chunk.
    End,
}

impl<H: Host> Transfer<H> {
    /// Handles the request of a peer that is behind or needs the rest of a checkpoint.
    pub(super) fn on_request(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        (transfer, index): (u64, u64),
    ) -> Option<Event<H>> {
        let outgoing = self.outgoing.get_mut(&from);
        let known = outgoing.filter(|outgoing| outgoing.transfer == transfer);
        match known.map(|outgoing| outgoing.rewind(index)) {
            Some(true) => cx.mark("transfer.checkpoint_resumed"),
            None if index == 0 => return Some(Event::Asked { from, transfer }),
            Some(false) | None => {
                self.outgoing.remove(&from);
                cx.mark("transfer.checkpoint_forgotten");
                replica.send(cx, from, Message::CheckpointGone { transfer });
                return None;
            }
        }
        self.note_heard(from, cx.now.at);
        self.send_chunks(cx, replica, from);
        None
    }

    /// Starts to send the state at a pinned version to a peer: `configuration`, encoded, and the
    /// protocol's state in addition to the rows. Batches after `heads` are retained for the peer.
    pub(crate) fn send_checkpoint(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        (to, transfer): (NodeId, u64),
        (pin, configuration, handed_on): (Pin, &[u8], Bytes),
        heads: Heads,
    ) {
        let mut meta = Vec::new();
        meta.put_varint(pin.version().0);
        meta.extend_from_slice(configuration);
        meta.put_varint(handed_on.len() as u64);
        self.sent += 1;
        let outgoing = Outgoing {
            transfer,
            pin,
            meta: meta.into(),
            handed_on,
            cursors: VecDeque::from([Cursor::HandedOn(0)]),
            sizes: VecDeque::new(),
            chunk_bytes: self.chunk_bytes,
            acknowledged: 0,
            next_index: 0,
        };
        self.outgoing.insert(to, outgoing);
        self.retained.insert(to, RetainedBatches { heads, heard: cx.now.at });
        self.send_chunks(cx, replica, to);
    }

    /// Records that a peer still needs the batches that are retained for it.
    pub(crate) fn note_heard(&mut self, peer: NodeId, now: Timestamp) {
        if let Some(retained) = self.retained.get_mut(&peer) {
            retained.heard = now;
        }
    }

    /// Handles the acknowledgement of a chunk.
    pub(super) fn on_acknowledged(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        (transfer, index): (u64, u64),
    ) {
        let Some(outgoing) = self.outgoing.get_mut(&from) else { return };
        if outgoing.transfer == transfer && index < outgoing.next_index {
            outgoing.acknowledge(index + 1);
            self.note_heard(from, cx.now.at);
            self.send_chunks(cx, replica, from);
        }
    }

    fn send_chunks(&mut self, cx: &mut Cx<'_, H>, replica: &Replica, to: NodeId) {
        let Some(outgoing) = self.outgoing.get_mut(&to) else { return };
        while outgoing.may_send() {
            let (transfer, index) = (outgoing.transfer, outgoing.next_index);
            let payload = outgoing.next_payload();
            let number = ChunkNumber { index, is_last: outgoing.is_sent() };
            replica.send(cx, to, Message::CheckpointChunk { transfer, number, payload });
        }
        if outgoing.is_sent() && outgoing.acknowledged == outgoing.next_index {
            self.outgoing.remove(&to);
        }
    }

    /// Stops a transfer to a peer that has already reached its version. The peer obtained it
    /// elsewhere and sends no more acknowledgements, so the pinned version can be released.
    pub(crate) fn stop_obsolete(&mut self, peer: NodeId, applied: SnapshotVersion) {
        let is_obsolete = |outgoing: &Outgoing| outgoing.pin.version() <= applied;
        if self.outgoing.get(&peer).is_some_and(is_obsolete) {
            self.outgoing.remove(&peer);
        }
    }

    /// Retains fewer batches for a peer that has applied those up to `heads`.
    pub(crate) fn release_applied(&mut self, peer: NodeId, heads: &[Bid]) {
        if let Some(retained) = self.retained.get_mut(&peer) {
            retained
                .heads
                .iter_mut()
                .zip(heads)
                .for_each(|(retained, head)| *retained = *head.max(retained));
        }
    }

    /// Drops the transfers of peers that have not returned in time, and the batches of peers that
    /// are members again or for which too much is retained: those will not catch up.
    pub(crate) fn stop_abandoned(
        &mut self,
        replica: &Replica,
        now: Timestamp,
        is_member: &[bool],
        is_too_much: impl Fn(&[Bid]) -> bool,
    ) {
        let Self { retained, outgoing, .. } = self;
        let is_late = |retained: &RetainedBatches| now.since(retained.heard).us >= KEEP.us;
        outgoing.retain(|peer, _| {
            replica.is_up[peer.index()] || retained.get(peer).is_some_and(|it| !is_late(it))
        });
        retained.retain(|peer, it| {
            let is_coming = !is_member[peer.index()] && !is_late(it) && !is_too_much(&it.heads);
            outgoing.contains_key(peer) || is_coming
        });
    }
}

impl Outgoing {
    /// Whether all chunks were sent.
    fn is_sent(&self) -> bool {
        matches!(self.cursors.back(), Some(Cursor::End))
    }

    /// Whether there is a next chunk and the limits in flight allow it.
    fn may_send(&self) -> bool {
        let has_room = self.next_index < self.acknowledged + CHUNKS_AHEAD
            && self.sizes.iter().sum::<usize>() < BYTES_AHEAD;
        !self.is_sent() && has_room
    }

    /// Records that the chunks before `index` have arrived.
    fn acknowledge(&mut self, index: u64) {
        let news = index.saturating_sub(self.acknowledged);
        self.cursors.drain(..news as usize);
        self.sizes.drain(..news as usize);
        self.acknowledged += news;
    }

    /// Rewinds to the chunk `index`. Returns whether that is possible.
    fn rewind(&mut self, index: u64) -> bool {
        if !(self.acknowledged..=self.next_index).contains(&index) {
            return false;
        }
        self.acknowledge(index);
        self.cursors.truncate(1);
        self.sizes.clear();
        self.next_index = index;
        true
    }

    /// The payload of the next chunk.
    fn next_payload(&mut self) -> Bytes {
        let cursor = self.cursors.back().cloned().expect("there is always a cursor");
        let (payload, next) = match cursor {
            _ if self.next_index == 0 => (self.meta.clone(), cursor),
            Cursor::HandedOn(from) if from < self.handed_on.len() => {
                let upto = self.handed_on.len().min(from + self.chunk_bytes);
                (self.handed_on.slice(from..upto), Cursor::HandedOn(upto))
            }
            Cursor::HandedOn(_) => self.rows_from(TableId(0), Vec::new()),
            Cursor::Row(table, key) => self.rows_from(table, key),
            Cursor::End => unreachable!("the whole checkpoint was sent"),
        };
        self.next_index += 1;
        self.cursors.push_back(next);
        self.sizes.push_back(payload.len());
        payload
    }

    /// The rows from there on that fit in a chunk, and the start of the next chunk.
    fn rows_from(&self, first_table: TableId, first_key: Vec<u8>) -> (Bytes, Cursor) {
        let mut next = Cursor::End;
        let mut out = Vec::with_capacity(self.chunk_bytes + self.chunk_bytes / 8);
        let store = self.pin.store();
        let version = mutate!(TransferMixesVersions: self.pin.version() => store.published());
        for table in store.table_ids().into_iter().filter(|table| *table >= first_table) {
            let start = if table == first_table { first_key.clone() } else { Vec::new() };
            let range = KeyRange { start, end: None };
            store.scan_passing(table, &range, version, |key, row| {
                if out.len() >= self.chunk_bytes {
                    let first = mutate!(ChunkRowLost: key.to_vec() => [&key[..], &[0]].concat());
                    next = Cursor::Row(table, first);
                    return ControlFlow::Break(());
                }
                if let Some(value) = &row.value {
                    out.put_varint(u64::from(table.0));
                    out.put_bytes(key);
                    out.put_varint(row.version.0);
                    row.header.encode(&mut out);
                    out.put_bytes(value);
                }
                ControlFlow::Continue(())
            });
            if !matches!(next, Cursor::End) {
                break;
            }
        }
        (out.into(), next)
    }
}
