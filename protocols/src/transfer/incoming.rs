//! The receiving side of a checkpoint transfer.

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

use super::{Configuration, Event, Host, Message, Transfer};
use crate::messages::NUMBER_MAX;
use crate::replica::Replica;

/// A transfer is restarted with another peer if its peer is not connected for this long.
const AWAY: Span = Span::from_ms(10_000);

/// A transfer is also restarted if no chunk has arrived for this long, doubled with each restart.
/// Within a session no message is lost, but a chunk may queue behind much other data on a slow
/// link.
const STALL: Span = Span::from_ms(60_000);

/// The maximum number of these doublings.
const STALL_DOUBLINGS_MAX: u32 = 4;

/// A checkpoint in transfer from a peer.
pub(crate) struct Incoming<C> {
    transfer: u64,
    pub(super) from: NodeId,
    version: SnapshotVersion,
    configuration: Option<C>,
    /// The length of the protocol's state in bytes, and the bytes received of it.
    handed_on_len: usize,
    handed_on: Vec<u8>,
    rows: Vec<Row>,
    next_index: u64,
    last_progress: Timestamp,
    /// When the connection to its peer was last lost.
    pub(super) left: Timestamp,
}

type Row = (TableId, Key, Version);

impl<H: Host> Transfer<H> {
    /// Whether a checkpoint is in transfer to this replica.
    pub(crate) fn is_receiving(&self) -> bool {
        self.incoming.is_some()
    }

    /// Cancels the transfer to this replica, because it needs no checkpoint any more.
    pub(crate) fn call_off(&mut self, cx: &mut Cx<'_, H>) {
        if self.incoming.take().is_some() {
            cx.mark("transfer.checkpoint_called_off");
        }
    }

    /// Requests a checkpoint of version `least` or later from one of the peers `ahead`, unless one
    /// is in transfer.
    pub(crate) fn retry(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        least: SnapshotVersion,
        ahead: &[NodeId],
    ) {
        if self.incoming.take_if(|incoming| incoming.is_too_old(least)).is_some() {
            cx.mark("transfer.checkpoint_outrun");
        }
        if let Some(incoming) = &self.incoming {
            let doublings = self.stalls.min(STALL_DOUBLINGS_MAX);
            let (since, patience) = match replica.is_up[incoming.from.index()] {
                true => (incoming.last_progress, STALL.us << doublings),
                false if incoming.next_index > 0 => (incoming.left, AWAY.us),
                false => (incoming.left, 0),
            };
            if cx.now.at.since(since).us < patience {
                return;
            }
        }
        let present = self.incoming.as_ref().map(|incoming| incoming.from);
        let first = self.count as usize % ahead.len().max(1);
        let mut rotated = ahead[first..].iter().chain(&ahead[..first]).copied();
        let Some(from) = rotated.find(|peer| Some(*peer) != present) else {
            // There is no other peer. The chunks received may still be useful. The same peer, asked
            // again, would send all of them again behind those in flight.
            return;
        };
        if let Some(incoming) = self.incoming.take() {
            self.stalls += u32::from(replica.is_up[incoming.from.index()]);
            cx.mark("transfer.checkpoint_stalled");
        }
        self.count += 1;
        let transfer = replica.next_token();
        self.incoming = Some(Incoming::new(transfer, from, cx.now.at));
        cx.mark("transfer.checkpoint_requested");
        replica.send(cx, from, Message::CheckpointRequest { transfer, index: 0 });
    }

    /// Continues a transfer from a peer that has reconnected: the chunks in flight were lost.
    /// Returns whether the transfer has to start anew: then the owner calls [`Self::retry`].
    pub(crate) fn resume(&mut self, cx: &mut Cx<'_, H>, replica: &Replica, peer: NodeId) -> bool {
        let is_unbegun = |it: &mut Incoming<_>| it.from == peer && it.next_index == 0;
        if self.incoming.take_if(is_unbegun).is_some() {
            return true;
        }
        if let Some(incoming) = self.incoming.as_ref().filter(|it| it.from == peer) {
            let (transfer, index) = (incoming.transfer, incoming.next_index);
            replica.send(cx, peer, Message::CheckpointRequest { transfer, index });
        }
        false
    }

    /// Handles a peer's report that it no longer has the transfer.
    pub(super) fn on_gone(&mut self, from: NodeId, number: u64) -> Option<Event<H>> {
        let is_it = |it: &mut Incoming<_>| it.from == from && it.transfer == number;
        self.incoming.take_if(is_it).map(|_| Event::Lost)
    }

    /// Handles a chunk of a checkpoint.
    pub(super) fn on_chunk(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &Replica,
        from: NodeId,
        (transfer, index): (u64, u64),
        (is_last, payload): (bool, &Bytes),
    ) -> Option<Event<H>> {
        let incoming = self.incoming.as_mut()?;
        let is_expected =
            from == incoming.from && transfer == incoming.transfer && index == incoming.next_index;
        if !is_expected {
            cx.mark("transfer.unexpected_chunk");
            return None;
        }
        let is_short = is_last && index == 0;
        let taken = incoming.take(payload, replica.topology.node_count());
        let is_short = is_short || is_last && incoming.handed_on.len() < incoming.handed_on_len;
        if is_short || taken.is_err() {
            self.incoming = None;
            cx.mark("transfer.malformed_chunk");
            return None;
        }
        incoming.last_progress = cx.now.at;
        if index > 0 {
            // Chunk 0 is small and arrives at once.
            self.stalls = 0;
        }
        replica.send(cx, from, Message::CheckpointAck { transfer, index });
        if !is_last {
            return None;
        }
        self.incoming.take().map(Event::Checkpoint)
    }
}

/// Writes the rows of a checkpoint into a store of version `applied`.
fn write_rows(
    store: &Store,
    (applied, version): (SnapshotVersion, SnapshotVersion),
    rows: Vec<Row>,
) {
    // Keys that a partly applied epoch has written are included.
    let vanished = || vanished(store, version, &rows);
    let deletions = mutate!(DeletionsNotTransferred: vanished() => Vec::new());
    let new = rows.into_iter().filter(|(_, _, row)| row.version > applied);
    let deletions = deletions.into_iter().map(|(table, key)| {
        let header = RecordHeader::default();
        (table, key, Version { version, header, value: None })
    });
    for (table, key, row) in new.chain(deletions) {
        store.apply(table, key, row);
    }
}

/// The live keys of the store that are not among `rows`, which are sorted.
fn vanished(store: &Store, at: SnapshotVersion, rows: &[Row]) -> Vec<(TableId, Key)> {
    let mut vanished = Vec::new();
    for table in store.table_ids() {
        let first = rows.partition_point(|row| row.0 < table);
        let mut retained = rows[first..].iter().take_while(|row| row.0 == table).peekable();
        store.scan_heads(table, &KeyRange::all(), at, |key, version| {
            while retained.next_if(|row| row.1 < *key).is_some() {}
            if version.value.is_some() && retained.next_if(|row| row.1 == *key).is_none() {
                vanished.push((table, key.clone()));
            }
            ControlFlow::Continue(())
        });
    }
    vanished
}

impl<C: Configuration> Incoming<C> {
    fn new(transfer: u64, from: NodeId, now: Timestamp) -> Self {
        Self {
            transfer,
            from,
            version: SnapshotVersion::ZERO,
            configuration: None,
            handed_on_len: 0,
            handed_on: Vec::new(),
            rows: Vec::new(),
            next_index: 0,
            last_progress: now,
            left: now,
        }
    }

    /// The peer that sent the checkpoint.
    pub(crate) fn from(&self) -> NodeId {
        self.from
    }

    /// The version of the checkpoint.
    pub(crate) fn version(&self) -> SnapshotVersion {
        self.version
    }

    /// Takes the state of the peer's protocol that was sent in addition to the rows.
    pub(crate) fn take_handed_on(&mut self) -> Bytes {
        std::mem::take(&mut self.handed_on).into()
    }

    /// The state of the version that is needed in addition to the tables.
    pub(crate) fn configuration(&self) -> &C {
        self.configuration.as_ref().expect("the first chunk contains it")
    }

    /// Writes the rows into a store of version `applied`. Returns the version and the state that is
    /// needed in addition to the tables.
    pub(crate) fn install(self, store: &Store, applied: SnapshotVersion) -> (SnapshotVersion, C) {
        let Self { version, configuration, rows, .. } = self;
        write_rows(store, (applied, version), rows);
        (version, configuration.expect("the first chunk contains it"))
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
            if self.version.0 > NUMBER_MAX {
                return Err(DecodeError::new(WHAT));
            }
            self.configuration = Some(C::decode(from, node_count)?);
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
pub(crate) fn take_chunk<C: Configuration>(
    version: SnapshotVersion,
    index: u64,
    payload: &[u8],
    node_count: usize,
) -> Result<usize, DecodeError> {
    let mut incoming = Incoming::<C>::new(1, NodeId(1), Timestamp::default());
    (incoming.version, incoming.next_index) = (version, index);
    incoming.take(payload, node_count)?;
    Ok(incoming.rows.len())
}
