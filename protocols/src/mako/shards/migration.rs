//! Migration: the leaders copy the rows of slots that move to another shard (§6.2, B).
//!
//! ```text
//!   manager            source's leader              target's leader           its followers
//!     | epoch: slots 1, 3 are to move ------------->  |
//!     |   nobody accesses them any more               |  deletes leftovers
//!     |                    | <---------------- Copy --|
//!     |                    |  Piece: rows ----------> |  an entry of its log ----->  |
//!     |                    | <---------------- Copy --|                              |
//!     |                    |  Piece: the last rows -> |  an entry ---------------->  |
//!     | <------------------------- Config: moved -----|  <--------------------- Ack  |
//!     | epoch: slots 1, 3 are on the target --------> |
//!     |                    |  deletes its rows        |
//! ```
//!
//! The rows are those of the cut with which the epoch has begun: all earlier epochs are closed, and
//! nobody writes to the slots since. The target makes entries of its own log of them, of a new
//! version. So its followers get them by replay, and all that holds for entries holds for them.
//!
//! If any leader fails, another epoch begins, and the migration starts from the beginning. Rows
//! that a target has at that time are leftovers: it deletes them. The originals are deleted when
//! the epoch has begun in which the slots are on their target. Until then a scan of a store may
//! meet rows of other shards ([`Partitions::counts`]).
//!
//! [`Partitions::counts`]: pangea_core::partition::Partitions::counts

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TableId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::mutate;
use pangea_core::partition::{ShardSet, Slot, SlotSet};
use pangea_core::protocol::Cx;
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::Write;

use super::super::Mako;
use super::super::across::Kind;
use super::super::clocks::Clock;
use super::super::messages::Message;
use super::super::state::{Role, State};
use super::super::versions::{Epoch, start_of};
use super::Shards;

/// A piece ends with the row that brings it to this size, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The maximum number of keys that are looked at for a piece: a step should not take long.
const PIECE_KEYS_MAX: usize = 16_384;

/// A target asks for no more while its log has this number of bytes that are not replicated.
const AHEAD_BYTES_MAX: u64 = 8 << 20;

/// A piece is asked for again after this time and some of the longest round trips.
const PATIENCE: Span = Span::from_ms(500);

/// The number of these round trips.
const PATIENCE_ROUND_TRIPS: u64 = 4;

const WHAT: &str = "moved rows";

/// The last row that was handled; none at the beginning.
pub(crate) type Cursor = Option<(TableId, Key)>;

/// The rows of slots that follow a cursor.
#[derive(Debug, Default)]
struct Found {
    rows: Vec<Write>,
    /// Where to go on, if there may be more.
    next: Cursor,
}

/// The part of a leader in a migration.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// The epoch for which the rest holds.
    epoch: Epoch,
    stage: Stage,
    /// What other leaders have asked for, and this one can't tell yet.
    asked: BTreeMap<ShardId, Cursor>,
    /// Where the deletion of rows of other shards goes on, if there may be some.
    sweep: Option<Cursor>,
}

/// The progress of a target.
#[derive(Debug, Default)]
enum Stage {
    /// It has no part in the migration of the epoch, or that has not begun.
    #[default]
    Idle,
    /// It deletes leftovers.
    Clearing(Cursor),
    /// It copies rows from other shards.
    Copying(BTreeMap<ShardId, Copy>),
    /// Its log has all rows up to this version.
    Logged(SnapshotVersion),
    /// They are replicated.
    Moved,
}

/// The copy from one shard.
#[derive(Debug, Default)]
struct Copy {
    after: Cursor,
    /// When the next piece was asked for.
    asked: Option<Timestamp>,
    is_done: bool,
}

pub(in super::super) fn encode_cursor(cursor: &Cursor) -> Bytes {
    let mut out = Vec::new();
    if let Some((table, key)) = cursor {
        out.put_varint(table.0.into());
        out.put_bytes(key);
    }
    out.into()
}

/// Decodes what [`encode_cursor`] wrote.
///
/// # Errors
/// If the bytes are malformed.
pub(in super::super) fn decode_cursor(bytes: &[u8]) -> Result<Cursor, DecodeError> {
    let from = &mut Reader::new(bytes);
    if from.is_empty() {
        return Ok(None);
    }
    let table = u32::try_from(from.varint(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
    let key = Key::from(from.bytes(WHAT)?);
    if from.is_empty() { Ok(Some((TableId(table), key))) } else { Err(DecodeError::new(WHAT)) }
}

/// Rows of slots that move.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct Piece {
    /// The row before the first one.
    pub after: Cursor,
    /// Where to go on; none if these are the last rows.
    pub next: Cursor,
    pub rows: Vec<Write>,
}

impl Piece {
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_bytes(&encode_cursor(&self.after));
        out.put_bytes(&encode_cursor(&self.next));
        self.rows.iter().for_each(|row| row.encode(&mut out));
        out.into()
    }

    /// Decodes what [`Piece::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (from, mut rows) = (&mut Reader::new(bytes), Vec::new());
        let after = decode_cursor(from.bytes(WHAT)?)?;
        let next = decode_cursor(from.bytes(WHAT)?)?;
        while !from.is_empty() {
            rows.push(Write::decode(from)?);
        }
        Ok(Self { after, next, rows })
    }
}

impl Found {
    /// Looks for up to some number of rows after a cursor, in the newest state of a store.
    fn look(
        (store, rows_max): (&Store, usize),
        after: &Cursor,
        is_wanted: &mut dyn FnMut(TableId, &Key) -> bool,
    ) -> Self {
        let (mut found, mut keys, mut bytes) = (Self::default(), 0, 0);
        let newest = SnapshotVersion(u64::MAX);
        let mut tables = store.table_ids();
        tables.sort_unstable();
        let first = after.as_ref().map_or(TableId(0), |(table, _)| *table);
        for table in tables.into_iter().filter(|table| *table >= first) {
            let start = match after {
                // The key after that one.
                Some((of, key)) if *of == table => [&key[..], &[0]].concat(),
                _ => Vec::new(),
            };
            let range = KeyRange { start, end: None };
            store.scan_passing(table, &range, newest, |key, version| {
                keys += 1;
                if let Some(value) = version.value.as_ref().filter(|_| is_wanted(table, key)) {
                    bytes += key.len() + value.len();
                    found.rows.push(Write { table, key: key.clone(), value: Some(value.clone()) });
                }
                let is_full = found.rows.len() >= rows_max || bytes >= PIECE_BYTES;
                if is_full || keys >= PIECE_KEYS_MAX {
                    found.next = Some((table, key.clone()));
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            if found.next.is_some() {
                break;
            }
        }
        found
    }
}

impl Shards {
    /// The slots that one shard is to hand to another.
    fn moves_between(&self, source: ShardId, target: ShardId) -> SlotSet {
        let all = self.config.slots.migration.iter().flat_map(|it| it.moves.iter());
        let is_one = |(slot, to): &(Slot, ShardId)| *to == target && self.owner(*slot) == source;
        all.filter(is_one).map(|(slot, _)| slot).collect()
    }

    /// The slots that this shard is to take over.
    fn incoming(&self) -> SlotSet {
        let all = self.config.slots.migration.iter().flat_map(|it| it.moves.iter());
        all.filter(|(_, to)| *to == self.own).map(|(slot, _)| slot).collect()
    }

    /// The slots whose rows this shard keeps: its own, and those that move here, of which leftovers
    /// are deleted before the copy.
    fn kept(&self) -> SlotSet {
        let mut kept = self.partitions.placement().slots_of(self.own);
        self.incoming().iter().for_each(|slot| kept.insert(slot));
        mutate!(MakoMovesOriginalsDroppedEarly: kept => {
            let is_moving = |slot: &Slot| self.barred.contains(*slot);
            kept.iter().filter(|slot| !is_moving(slot)).collect()
        })
    }

    /// The shards that are to take over slots.
    pub(super) fn targets(&self) -> ShardSet {
        let all = self.config.slots.migration.iter().flat_map(|it| it.moves.iter());
        all.map(|(_, to)| to).collect()
    }

    fn owner(&self, slot: Slot) -> ShardId {
        self.partitions.placement().owner(slot)
    }

    fn is_in(&self, slots: &SlotSet, table: TableId, key: &Key) -> bool {
        self.partitions.slot_of(table, key).is_some_and(|slot| slots.contains(slot))
    }
}

impl State {
    /// The last epoch whose migration has its rows in this leader's log, on a majority.
    pub(super) fn moved(&self) -> Epoch {
        match &self.role {
            Role::Leading(leading) if matches!(leading.over.moving.stage, Stage::Moved) => {
                leading.over.moving.epoch
            }
            Role::Leading(_) | Role::Closing(_) | Role::Following => Epoch(0),
        }
    }
}

impl Mako {
    /// This leader enters an epoch, or hears that it has begun: transactions that wait for slots
    /// look again, and rows of other shards are deleted.
    pub(super) fn note_placement(&mut self) {
        let Role::Leading(leading) = &mut self.state.role else { return };
        for request in std::mem::take(&mut leading.over.barred) {
            leading.queue_bytes += request.size_hint() as u64;
            leading.queue.push_back(request);
        }
        let Some(shards) = &self.state.shards else { return };
        let slots = &shards.config.slots;
        let has_begun = slots.have_moved() && slots.since() <= shards.config.begun;
        let has_begun = mutate!(MakoMovesOriginalsDroppedEarly: has_begun => slots.have_moved());
        leading.over.moving.sweep = has_begun.then_some(None);
    }

    /// Makes progress with the slots that move.
    pub(super) fn advance_migration(&mut self, cx: &mut Cx<'_, Self>) {
        let Role::Leading(leading) = &self.state.role else { return };
        let Some(shards) = &self.state.shards else { return };
        let moving = &leading.over.moving;
        let is_idle = moving.sweep.is_none() && moving.asked.is_empty();
        if is_idle && shards.config.slots.migration.is_none() {
            return;
        }
        let has_room = self.state.unsettled_bytes() < AHEAD_BYTES_MAX;
        if leading.over.moving.sweep.is_some() && has_room {
            self.sweep(cx);
        }
        self.serve_copies(cx);
        self.advance_target(cx, has_room);
    }

    /// Logs rows of slots that move, or their deletions, as an entry without transactions.
    fn log_moved(&mut self, cx: &mut Cx<'_, Self>, writes: Vec<Write>) {
        let Role::Leading(leading) = &mut self.state.role else { return };
        let version = leading.over.counter.max(leading.last).next();
        let rows = writes.iter().map(|write| {
            let header = RecordHeader::default();
            (
                write.table,
                write.key.clone(),
                Version { version, header, value: write.value.clone() },
            )
        });
        cx.store.apply_batch(cx.pool, version, rows.collect());
        let writes = writes.into_iter().map(|write| (0, write)).collect();
        let what = (None, Clock::default(), Kind::Moved, ShardSet::default());
        self.log_entry(what, Vec::new(), writes);
        if let Role::Leading(leading) = &self.state.role {
            assert_eq!(leading.last, version, "the rows are in the entry");
        }
    }

    /// Deletes a piece of the rows that belong to other shards.
    fn sweep(&mut self, cx: &mut Cx<'_, Self>) {
        let Role::Leading(leading) = &self.state.role else { return };
        let Some(shards) = &self.state.shards else { return };
        let Some(cursor) = leading.over.moving.sweep.clone() else { return };
        let kept = shards.kept();
        let mut is_stray = |table: TableId, key: &Key| {
            let slot = shards.partitions.slot_of(table, key);
            slot.is_some_and(|slot| !kept.contains(slot))
        };
        let place = (&**cx.store, self.state.options.move_rows);
        let Found { rows, next } = Found::look(place, &cursor, &mut is_stray);
        self.shards().counts.rows_swept += rows.len() as u64;
        if !rows.is_empty() {
            cx.mark("mako.swept");
            let gone = rows.into_iter().map(|row| Write { value: None, ..row });
            self.log_moved(cx, gone.collect());
        }
        if next.is_some() {
            cx.resume();
        }
        if let Some(over) = self.coordination() {
            over.moving.sweep = next.map(Some);
        }
    }

    /// The leader of a target asks for rows.
    pub(in super::super) fn on_copy(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, after): (Epoch, &Bytes),
    ) {
        let Ok(after) = decode_cursor(after) else { return cx.mark("mako.malformed_rows") };
        let Some(shards) = &self.state.shards else { return };
        let shard = shards.shard_of(from).filter(|shard| shards.leader_of(*shard) == Some(from));
        let is_current = epoch == shards.config.number;
        let (Some(shard), Some(over)) = (shard.filter(|_| is_current), self.coordination()) else {
            return cx.mark("mako.copy_of_another_epoch");
        };
        over.moving.asked.insert(shard, after);
    }

    /// Sends the rows that other leaders have asked for, if the cut of the epoch is published: then
    /// nobody writes to them any more.
    fn serve_copies(&mut self, cx: &mut Cx<'_, Self>) {
        let State { role, shards, commit, options, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        let number = shards.config.number;
        if shards.is_open() || commit.published < start_of(number) {
            return;
        }
        for (shard, after) in std::mem::take(&mut leading.over.moving.asked) {
            let slots = shards.moves_between(shards.own, shard);
            let mut is_moving = |table: TableId, key: &Key| shards.is_in(&slots, table, key);
            let Found { rows, next } = match slots.is_empty() {
                true => Found::default(),
                false => Found::look((cx.store, options.move_rows), &after, &mut is_moving),
            };
            let Some(node) = shards.leader_of(shard) else { continue };
            cx.mark("mako.piece_sent");
            let piece = Piece { after, next, rows }.encode();
            cx.send(node, Message::Piece { epoch: number.0, piece });
        }
    }

    /// The target's part.
    fn advance_target(&mut self, cx: &mut Cx<'_, Self>, has_room: bool) {
        let State { role, shards, commit, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        let (number, committed) = (shards.config.number, commit.committed);
        if shards.is_open() || shards.config.slots.migration.is_none() {
            return;
        }
        let moving = &mut leading.over.moving;
        if moving.epoch != number {
            let is_new = moving.epoch == Epoch(0) && shards.since(shards.own) == number;
            moving.epoch = number;
            moving.stage = mutate!(MakoMovesEpochForgets: Stage::Clearing(None) => match is_new {
                true => Stage::Moved,
                false => Stage::Clearing(None),
            });
        }
        match &moving.stage {
            Stage::Clearing(cursor) if has_room => {
                let cursor = cursor.clone();
                self.clear(cx, &cursor);
            }
            Stage::Copying(_) if has_room => self.ask_for_copies(cx),
            Stage::Logged(version) => {
                if *version <= committed {
                    cx.mark("mako.moved");
                    moving.stage = Stage::Moved;
                    self.send_config(cx);
                }
            }
            Stage::Clearing(_) | Stage::Copying(_) | Stage::Idle | Stage::Moved => {}
        }
    }

    /// Deletes a piece of the rows that an unfinished attempt has left.
    fn clear(&mut self, cx: &mut Cx<'_, Self>, cursor: &Cursor) {
        let rows_max = self.state.options.move_rows;
        let shards = self.shards();
        let incoming = shards.incoming();
        let mut is_left = |table: TableId, key: &Key| shards.is_in(&incoming, table, key);
        let Found { rows, next } = match incoming.is_empty() {
            true => Found::default(),
            false => Found::look((cx.store, rows_max), cursor, &mut is_left),
        };
        if !rows.is_empty() {
            cx.mark("mako.leftovers");
            let gone = rows.into_iter().map(|row| Write { value: None, ..row });
            self.log_moved(cx, gone.collect());
        }
        let shards = self.shards();
        let is_source = |shard: &ShardId| !shards.moves_between(*shard, shards.own).is_empty();
        let sources: Vec<ShardId> = shards.ids().filter(is_source).collect();
        let Some(over) = self.coordination() else { return };
        over.moving.stage = match next {
            Some(next) => Stage::Clearing(Some(next)),
            None => Stage::Copying(sources.into_iter().map(|it| (it, Copy::default())).collect()),
        };
        cx.resume();
    }

    /// Asks each source for its next piece, or notes that all are there.
    fn ask_for_copies(&mut self, cx: &mut Cx<'_, Self>) {
        let State { role, shards, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        let last = leading.last;
        let Stage::Copying(copies) = &mut leading.over.moving.stage else { return };
        if copies.values().all(|copy| copy.is_done) {
            leading.over.moving.stage = Stage::Logged(last);
            cx.resume();
            return;
        }
        let epoch = shards.config.number.0;
        let waiting = copies.iter_mut().filter(|(_, copy)| !copy.is_done && copy.asked.is_none());
        for (shard, copy) in waiting {
            if let Some(node) = shards.taking(*shard) {
                copy.asked = Some(cx.now.at);
                let after = encode_cursor(&copy.after);
                cx.send(node, Message::Copy { epoch, after });
            }
        }
    }

    /// Asks again for pieces that are late: a message may be lost.
    pub(in super::super) fn ask_for_copies_again(&mut self, now: Timestamp) {
        let round_trip = self.state.replica.topology.round_trip_max();
        let patience = PATIENCE.us + PATIENCE_ROUND_TRIPS * round_trip.us;
        let Some(over) = self.coordination() else { return };
        if let Stage::Copying(copies) = &mut over.moving.stage {
            for copy in copies.values_mut() {
                copy.asked.take_if(|at| now.since(*at).us > patience);
            }
        }
    }

    /// Rows of a slot that moves here arrive.
    pub(in super::super) fn on_piece(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        epoch: Epoch,
        piece: &[u8],
    ) {
        let Ok(Piece { after, next, rows }) = Piece::decode(piece) else {
            return cx.mark("mako.malformed_rows");
        };
        let State { role, shards, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else {
            return cx.mark("mako.copy_of_another_epoch");
        };
        let shard = shards.shard_of(from).filter(|shard| shards.leader_of(*shard) == Some(from));
        let is_current = epoch == shards.config.number && epoch == leading.over.moving.epoch;
        let Some(shard) = shard.filter(|_| is_current) else {
            return cx.mark("mako.copy_of_another_epoch");
        };
        let slots = shards.moves_between(shard, shards.own);
        if !rows.iter().all(|row| shards.is_in(&slots, row.table, &row.key)) {
            return cx.mark("mako.malformed_rows");
        }
        let Stage::Copying(copies) = &mut leading.over.moving.stage else { return };
        // A piece that was asked for twice arrives twice.
        let is_next = |copy: &&mut Copy| !copy.is_done && copy.after == after;
        let Some(copy) = copies.get_mut(&shard).filter(is_next) else { return };
        (copy.asked, copy.is_done) = (None, next.is_none());
        copy.after = next;
        cx.mark("mako.piece");
        shards.counts.rows_moved += rows.len() as u64;
        if !rows.is_empty() {
            self.log_moved(cx, rows);
        }
    }
}
