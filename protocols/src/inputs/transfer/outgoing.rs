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

use super::Transfer;
use crate::inputs::state::SourceLog;
use crate::inputs::{Bid, ChunkNumber, Event, Heads, Host, Inputs, Message, encode_heads};

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
pub(crate) struct Kept {
    /// The peer has everything up to these heads, or will have it.
    heads: Heads,
    /// When the peer last requested or acknowledged a chunk or made progress after them, or was
    /// disconnected.
    pub(crate) heard: Timestamp,
}

impl Transfer {
    /// The lowest batch number after which a source's batches are retained for a peer.
    pub(crate) fn least_kept(&self, source: usize) -> Option<Bid> {
        self.kept.values().map(|kept| kept.heads[source]).min()
    }
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

impl<H: Host> Inputs<H> {
    /// Handles the request of a peer that is behind or needs the rest of a checkpoint.
    pub(crate) fn on_checkpoint_request(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        transfer: u64,
        index: u64,
    ) -> Option<Event<H>> {
        let outgoing = self.transfer.outgoing.get_mut(&from);
        let known = outgoing.filter(|outgoing| outgoing.transfer == transfer);
        match known.map(|outgoing| outgoing.rewind(index)) {
            Some(true) => cx.mark("inputs.checkpoint_resumed"),
            None if index == 0 => return Some(Event::CheckpointAsked { from, transfer }),
            Some(false) | None => {
                self.transfer.outgoing.remove(&from);
                cx.mark("inputs.checkpoint_forgotten");
                cx.send(self.node(from), Message::CheckpointGone { transfer }.into());
                return None;
            }
        }
        self.note_heard(from, cx.now.at);
        self.send_chunks(cx, from);
        None
    }

    /// Starts to send the state to a peer, with the protocol's state in addition.
    pub(crate) fn send_checkpoint(
        &mut self,
        cx: &mut Cx<'_, H>,
        (to, transfer): (NodeId, u64),
        handed_on: Bytes,
    ) {
        let outgoing = self.start_outgoing(cx, transfer, handed_on);
        self.transfer.outgoing.insert(to, outgoing);
        let kept = Kept { heads: self.mastery.confirmed.heads.clone(), heard: cx.now.at };
        self.transfer.kept.insert(to, kept);
        self.send_chunks(cx, to);
    }

    pub(crate) fn note_heard(&mut self, peer: NodeId, now: Timestamp) {
        if let Some(kept) = self.transfer.kept.get_mut(&peer) {
            kept.heard = now;
        }
    }

    fn start_outgoing(&mut self, cx: &Cx<'_, H>, transfer: u64, handed_on: Bytes) -> Outgoing {
        let confirmed = &self.mastery.confirmed;
        let pin = cx
            .store
            .pin_at(confirmed.epoch)
            .expect("the confirmed version is published and retained");
        let mut meta = Vec::new();
        meta.put_varint(pin.version().0);
        encode_heads(&confirmed.heads, &mut meta);
        confirmed.is_member.iter().for_each(|&is_member| meta.put_u8(u8::from(is_member)));
        let logs = self.replication.logs.iter();
        logs.for_each(|log| meta.put_varint(log.next_sequence));
        meta.put_varint(handed_on.len() as u64);
        self.counters.checkpoints_sent += 1;
        Outgoing {
            transfer,
            pin,
            meta: meta.into(),
            handed_on,
            cursors: VecDeque::from([Cursor::HandedOn(0)]),
            sizes: VecDeque::new(),
            chunk_bytes: self.settings.chunk_bytes,
            acknowledged: 0,
            next_index: 0,
        }
    }

    /// Handles the acknowledgement of a chunk.
    pub(crate) fn on_checkpoint_ack(
        &mut self,
        cx: &mut Cx<'_, H>,
        from: NodeId,
        transfer: u64,
        index: u64,
    ) {
        let Some(outgoing) = self.transfer.outgoing.get_mut(&from) else { return };
        if outgoing.transfer == transfer && index < outgoing.next_index {
            outgoing.acknowledge(index + 1);
            self.note_heard(from, cx.now.at);
            self.send_chunks(cx, from);
        }
    }

    fn send_chunks(&mut self, cx: &mut Cx<'_, H>, to: NodeId) {
        let node = self.node(to);
        let Some(outgoing) = self.transfer.outgoing.get_mut(&to) else { return };
        while outgoing.may_send() {
            let (transfer, index) = (outgoing.transfer, outgoing.next_index);
            let payload = outgoing.next_payload();
            let number = ChunkNumber { index, is_last: outgoing.is_sent() };
            cx.send(node, Message::CheckpointChunk { transfer, number, payload }.into());
        }
        if outgoing.is_sent() && outgoing.acknowledged == outgoing.next_index {
            self.transfer.outgoing.remove(&to);
        }
    }

    /// Stops a transfer to a peer that has already reached its version. The peer obtained it
    /// elsewhere and sends no more acknowledgements, so the pinned version can be released.
    pub(crate) fn stop_obsolete_transfer(&mut self, peer: NodeId, applied: SnapshotVersion) {
        let outgoing = &mut self.transfer.outgoing;
        if outgoing.get(&peer).is_some_and(|outgoing| outgoing.pin.version() <= applied) {
            outgoing.remove(&peer);
        }
    }

    /// Retains fewer batches for a peer that has reported its progress.
    pub(crate) fn keep_less(&mut self, peer: NodeId) {
        let heads = &self.collection.heads[peer.index()];
        if let Some(kept) = self.transfer.kept.get_mut(&peer) {
            kept.heads.iter_mut().zip(heads).for_each(|(kept, head)| *kept = *head.max(kept));
        }
    }

    /// Drops the transfers of peers that have not returned in time, and the batches of peers for
    /// which more is retained than a member may need: those will not catch up.
    pub(crate) fn stop_abandoned_transfers(&mut self, now: Timestamp) {
        let is_up = &self.replication.is_up;
        let (logs, confirmed) = (&self.replication.logs, &self.mastery.confirmed.heads);
        let is_too_much = |kept: &Kept| {
            let heads = kept.heads.iter().zip(confirmed);
            let of_log = |(log, (after, upto)): (&SourceLog<_>, (&Bid, &Bid))| {
                log.bytes_between(*after, *upto)
            };
            logs.iter().zip(heads).map(of_log).sum::<u64>() > self.settings.behind_bytes
        };
        let is_member = &self.cut.is_member;
        let Transfer { kept, outgoing, .. } = &mut self.transfer;
        let is_late = |kept: &Kept| now.since(kept.heard).us >= KEEP.us;
        outgoing
            .retain(|peer, _| is_up[peer.index()] || kept.get(peer).is_some_and(|it| !is_late(it)));
        kept.retain(|peer, it| {
            let is_coming = !is_member[peer.index()] && !is_late(it) && !is_too_much(it);
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
