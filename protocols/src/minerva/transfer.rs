//! A replica that was away too long takes a checkpoint from a peer (§4).
//!
//! ```text
//!   behind                      peer
//!     | Fetch -----------------> |
//!     | <------- Gone            |   the batches are part of every checkpoint
//!     | CheckpointRequest -----> |   pins its published version
//!     | <------- Chunk 0: heads, configuration
//!     | <------- Chunk 1, 2, ..: rows, in order; a few ahead of the Acks
//!     | CheckpointAck ---------> |
//! ```
//!
//! So does a replica that lacks cuts which agreement has forgotten. It keeps the later ones, and
//! applies none of them before it has a checkpoint from where they begin.
//!
//! The rows are installed as versions, next to those that are here, so that readers of older
//! snapshots are not disturbed: a row that this replica does not have yet keeps the version that it
//! has at the peer, and a key that is gone there is deleted at the checkpoint's version.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::Cx;
use pangea_core::store::{Header as RecordHeader, Pin, Store, Version};
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::{Abort, Outcome, SqlState};
use pangea_core::value::Value;

use super::Minerva;
use super::batch::{Bid, Heads, decode_heads, encode_heads};
use super::greeting::lost_batches;
use super::header::Header;
use super::messages::{Message, NUMBER_MAX, are_heads};

/// So many chunks may be on their way.
const CHUNKS_AHEAD: u64 = 16;

/// A transfer that made no progress for this long is started again, with another peer.
const STALL: Span = Span::from_ms(3_000);

/// Checkpoints that come and go.
#[derive(Default)]
pub(super) struct Transfer {
    /// To peers that are behind.
    outgoing: BTreeMap<NodeId, Outgoing>,
    /// To this replica.
    incoming: Option<Incoming>,
    /// This replica can't go on without one.
    is_needed: bool,
    /// Turns through the peers to ask.
    turn: usize,
}

struct Outgoing {
    pin: Pin<Header>,
    meta: Bytes,
    /// The first row of the next chunk: a table, and a key in it.
    cursor: Option<(TableId, Vec<u8>)>,
    /// A chunk is closed when it is this large.
    chunk_bytes: usize,
    next_index: u64,
    acknowledged: u64,
}

struct Incoming {
    from: NodeId,
    version: SnapshotVersion,
    configuration: Option<Configuration>,
    rows: Vec<Row>,
    next_index: u64,
    last_progress: Timestamp,
}

/// What a replica must know of an epoch beside the tables.
struct Configuration {
    heads: Heads,
    is_member: Vec<bool>,
    /// For each log a number that no transaction in it has reached.
    sequences: Vec<u64>,
}

type Row = (TableId, Key, Version<Header>);

impl Minerva {
    /// A peer no longer has what this replica lacks.
    pub(super) fn on_gone(&mut self, cx: &mut Cx<'_, Self>, source: NodeId, first: Bid) {
        let Some(log) = self.state.replication.logs.get(source.index()) else { return };
        if log.held.next() < first {
            self.state.transfer.is_needed = true;
            self.retry_transfer(cx);
        }
    }

    /// Asks for a checkpoint if one is needed and none is on its way.
    pub(super) fn retry_transfer(&mut self, cx: &mut Cx<'_, Self>) {
        let cut = &self.state.cut;
        let transfer = &mut self.state.transfer;
        // A checkpoint that ends within the gap would not lead out of it.
        let least = match cut.lacks_cuts() {
            true => cut.skipped,
            false if transfer.is_needed => cut.applied.next(),
            false => return,
        };
        if let Some(incoming) = &transfer.incoming {
            if cx.now.at.since(incoming.last_progress) < STALL {
                return;
            }
            cx.mark("minerva.checkpoint_stalled");
        }
        let collection = &self.state.collection;
        let replication = &self.state.replication;
        let is_ahead = |peer: &NodeId| {
            replication.is_up[peer.index()] && collection.applied[peer.index()] >= least
        };
        let ahead: Vec<_> = self.state.topology.peers_of(self.state.me).filter(is_ahead).collect();
        if ahead.is_empty() {
            return;
        }
        let from = ahead[transfer.turn % ahead.len()];
        transfer.turn += 1;
        transfer.incoming = Some(Incoming {
            from,
            version: SnapshotVersion::ZERO,
            configuration: None,
            rows: Vec::new(),
            next_index: 0,
            last_progress: cx.now.at,
        });
        cx.mark("minerva.checkpoint_requested");
        cx.send(from, Message::CheckpointRequest);
    }

    /// A peer is behind.
    pub(super) fn on_checkpoint_request(&mut self, cx: &mut Cx<'_, Self>, from: NodeId) {
        let pin = cx.store.pin();
        assert_eq!(pin.version(), self.state.cut.applied, "what is applied is published");
        let mut meta = Vec::new();
        encode_heads(&self.state.cut.heads, &mut meta);
        self.state.cut.is_member.iter().for_each(|&is_member| meta.put_u8(u8::from(is_member)));
        let logs = self.state.replication.logs.iter();
        logs.for_each(|log| meta.put_varint(log.next_sequence));
        self.state.counters.checkpoints_sent += 1;
        let outgoing = Outgoing {
            pin,
            meta: meta.into(),
            cursor: Some((TableId(0), Vec::new())),
            chunk_bytes: self.state.options.chunk_bytes,
            next_index: 0,
            acknowledged: 0,
        };
        self.state.transfer.outgoing.insert(from, outgoing);
        self.send_chunks(cx, from);
    }

    /// A part has come to the peer.
    pub(super) fn on_checkpoint_ack(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        version: SnapshotVersion,
        index: u64,
    ) {
        let Some(outgoing) = self.state.transfer.outgoing.get_mut(&from) else { return };
        if outgoing.pin.version() == version && index < outgoing.next_index {
            outgoing.acknowledged = outgoing.acknowledged.max(index + 1);
            self.send_chunks(cx, from);
        }
    }

    fn send_chunks(&mut self, cx: &mut Cx<'_, Self>, to: NodeId) {
        let Some(outgoing) = self.state.transfer.outgoing.get_mut(&to) else { return };
        while outgoing.cursor.is_some()
            && outgoing.next_index < outgoing.acknowledged + CHUNKS_AHEAD
        {
            let index = outgoing.next_index;
            let payload = if index == 0 { outgoing.meta.clone() } else { outgoing.next_rows() };
            let is_last = outgoing.cursor.is_none();
            let version = outgoing.pin.version();
            outgoing.next_index += 1;
            cx.send(to, Message::CheckpointChunk { version, index, is_last, payload });
        }
        if outgoing.cursor.is_none() {
            // Everything is sent; if the connection is lost the peer asks anew.
            self.state.transfer.outgoing.remove(&to);
        }
    }

    /// A peer that has what is being sent to it has turned elsewhere for it, and acknowledges no
    /// more: the versions that were kept for it can go.
    pub(super) fn stop_obsolete_transfer(&mut self, peer: NodeId, applied: SnapshotVersion) {
        let outgoing = &mut self.state.transfer.outgoing;
        if outgoing.get(&peer).is_some_and(|outgoing| outgoing.pin.version() <= applied) {
            outgoing.remove(&peer);
        }
    }

    /// The connection to a peer was lost.
    pub(super) fn stop_transfers(&mut self, peer: NodeId) {
        let transfer = &mut self.state.transfer;
        transfer.outgoing.remove(&peer);
        if transfer.incoming.as_ref().is_some_and(|incoming| incoming.from == peer) {
            transfer.incoming = None;
        }
    }

    /// A part of a checkpoint comes.
    pub(super) fn on_checkpoint_chunk(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        version: SnapshotVersion,
        index: u64,
        is_last: bool,
        payload: &Bytes,
    ) {
        let node_count = self.state.topology.node_count();
        let Some(incoming) = &mut self.state.transfer.incoming else { return };
        let is_expected = index == incoming.next_index
            && (index == 0 || version == incoming.version)
            && from == incoming.from;
        if !is_expected {
            return cx.mark("minerva.unexpected_chunk");
        }
        if incoming.take(version, index, payload, node_count).is_err() {
            self.state.transfer.incoming = None;
            return cx.mark("minerva.malformed_chunk");
        }
        incoming.last_progress = cx.now.at;
        cx.send(from, Message::CheckpointAck { version, index });
        if is_last {
            let incoming = self.state.transfer.incoming.take().expect("looked at above");
            self.install(cx, incoming);
        }
    }

    /// Makes a peer's checkpoint this replica's state.
    fn install(&mut self, cx: &mut Cx<'_, Self>, incoming: Incoming) {
        self.state.transfer.is_needed = false;
        // Rows that an epoch has half applied would stay behind.
        while self.state.commit.is_some() {
            self.go_on(cx);
        }
        // Runs on what is here now and runs on what comes did not see each other.
        self.start_broadcast(cx);
        let Incoming { from, version, configuration, rows, .. } = incoming;
        let applied = self.state.cut.applied;
        let Some(configuration) = configuration else { return };
        let me = self.state.me.index();
        let (told, held) = (configuration.heads[me], self.state.own_head());
        if told > held {
            return cx.stop(lost_batches(from, told, held));
        }
        if version <= applied {
            return cx.mark("minerva.checkpoint_too_old");
        }
        let deletions = match is_planted(Bug::DeletionsNotTransferred) {
            true => Vec::new(),
            false => vanished(cx.store, applied, &rows),
        };
        let new = rows.into_iter().filter(|(_, _, row)| row.version > applied);
        let deletion = Header::as_executed(TxnId::default());
        let deletions = deletions
            .into_iter()
            .map(|(table, key)| (table, key, Version { version, header: deletion, value: None }));
        for (table, key, row) in new.chain(deletions) {
            cx.store.apply(table, key, row);
        }
        self.move_to(cx, version, &configuration);
        cx.store.publish(version);
        self.state.counters.checkpoints_installed += 1;
        cx.mark("minerva.checkpoint_installed");
        self.ask_for_barriers_again(cx);
        // The log does not lead here: only a checkpoint of this node's own makes it durable.
        self.state.cut.installed = Some(version);
        self.state.collection.bytes_since_checkpoint = u64::MAX;
        self.checkpoint_if_due(cx);
    }

    /// Skips everything up to `version`.
    fn move_to(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        configuration: &Configuration,
    ) {
        self.forget_skipped(cx, configuration.heads[self.state.me.index()]);
        let cut = &mut self.state.cut;
        cut.applied = version;
        cut.waiting.retain(|(epoch, _)| *epoch > version);
        for (head, skipped) in cut.heads.iter_mut().zip(&configuration.heads) {
            *head = (*head).max(*skipped);
        }
        cut.is_member.clone_from(&configuration.is_member);
        let skipped = configuration.heads.iter().zip(&configuration.sequences);
        for (log, (head, sequence)) in self.state.replication.logs.iter_mut().zip(skipped) {
            log.skip_to(*head);
            log.next_sequence = log.next_sequence.max(*sequence);
        }
        let me = self.state.me.index();
        for (source, log) in self.state.replication.logs.iter().enumerate() {
            self.state.replication.durable[me][source] = log.durable;
        }
        self.rebuild_overlay();
    }

    /// Local transactions up to `upto` have committed or aborted elsewhere; how, is not known here.
    fn forget_skipped(&mut self, cx: &mut Cx<'_, Self>, upto: Bid) {
        let applied = self.state.cut.heads[self.state.me.index()];
        let own = self.state.own_log().slots.range(applied.next()..);
        let skipped = own.take_while(|(bid, _)| **bid <= upto);
        let count: usize = skipped.map(|(_, slot)| slot.batch.records.len()).sum();
        for in_flight in self.state.execution.in_flight.drain(..count) {
            if let Some(ticket) = in_flight.ticket {
                cx.mark("minerva.outcome_unknown");
                cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
            }
        }
    }
}

fn outcome_unknown() -> Abort {
    Abort::new(
        SqlState::OUTCOME_UNKNOWN,
        "the outcome of the transaction is not known on this node",
    )
    .with_detail("The node was cut off, and took the state of a peer when it came back.")
    .with_hint("Look at the data before you try again.")
}

/// The live keys that are here and not among `rows`, which are sorted.
fn vanished(store: &Store<Header>, applied: SnapshotVersion, rows: &[Row]) -> Vec<(TableId, Key)> {
    let mut vanished = Vec::new();
    for table in store.table_ids() {
        let first = rows.partition_point(|row| row.0 < table);
        let mut kept = rows[first..].iter().take_while(|row| row.0 == table).peekable();
        store.scan(table, &KeyRange::all(), Direction::Forward, applied, |key, version| {
            while kept.next_if(|row| row.1 < *key).is_some() {}
            if version.value.is_some() && kept.next_if(|row| row.1 == *key).is_none() {
                vanished.push((table, key.clone()));
            }
            ControlFlow::Continue(())
        });
    }
    vanished
}

impl Outgoing {
    /// The rows from the cursor on, as many as fit a chunk. Moves the cursor.
    fn next_rows(&mut self) -> Bytes {
        let mut out = Vec::with_capacity(self.chunk_bytes + self.chunk_bytes / 8);
        let (store, mut version) = (self.pin.store(), self.pin.version());
        if is_planted(Bug::TransferMixesVersions) {
            version = store.published();
        }
        let Some((first_table, first_key)) = self.cursor.take() else { return Bytes::new() };
        for table in store.table_ids().into_iter().filter(|table| *table >= first_table) {
            let start = if table == first_table { first_key.clone() } else { Vec::new() };
            let range = KeyRange { start, end: None };
            store.scan(table, &range, Direction::Forward, version, |key, row| {
                if out.len() >= self.chunk_bytes {
                    self.cursor = Some((table, key.to_vec()));
                    if is_planted(Bug::ChunkRowLost) {
                        self.cursor.iter_mut().for_each(|(_, key)| key.push(0));
                    }
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
            if self.cursor.is_some() {
                break;
            }
        }
        out.into()
    }
}

impl Incoming {
    fn take(
        &mut self,
        version: SnapshotVersion,
        index: u64,
        payload: &[u8],
        node_count: usize,
    ) -> Result<(), DecodeError> {
        const WHAT: &str = "checkpoint chunk";
        let from = &mut Reader::new(payload);
        if index == 0 {
            let heads = decode_heads(from)?;
            if !are_heads(&heads, node_count) {
                return Err(DecodeError::new(WHAT));
            }
            let is_member =
                heads.iter().map(|_| Ok(from.u8(WHAT)? == 1)).collect::<Result<_, _>>()?;
            let sequences: Vec<u64> =
                heads.iter().map(|_| from.varint(WHAT)).collect::<Result<_, _>>()?;
            if sequences.iter().any(|sequence| *sequence > NUMBER_MAX) {
                return Err(DecodeError::new(WHAT));
            }
            self.configuration = Some(Configuration { heads, is_member, sequences });
            self.version = version;
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
            let header = Header::decode(from)?;
            let value = Some(Value::copy_from(from.bytes(WHAT)?));
            self.rows.push((TableId(table), key, Version { version: row_version, header, value }));
        }
        self.next_index += 1;
        Ok(())
    }
}

/// Takes one part of a checkpoint, and says how many rows it has.
#[cfg(test)]
pub(super) fn take_chunk(
    version: SnapshotVersion,
    index: u64,
    payload: &[u8],
    node_count: usize,
) -> Result<usize, DecodeError> {
    let mut incoming = Incoming {
        from: NodeId(1),
        version,
        configuration: None,
        rows: Vec::new(),
        next_index: index,
        last_progress: Timestamp::default(),
    };
    incoming.take(version, index, payload, node_count)?;
    Ok(incoming.rows.len())
}
