//! Items: what leaders of different shards say about transactions, in one message of a step.
//!
//! ```text
//!   coordinator  Read, Prepare, Validate, Install, Forget   -->
//!         <--   Found, Prepared, Refused, Doubtful, Valid, Inquire    leader of another shard
//! ```
//!
//! All items between two leaders travel on one lane, so they keep their order while the nodes are
//! connected. Each names a transaction and the attempt to which it belongs.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::Change;
use pangea_core::exec::reconnaissance::LookupKeys;
use pangea_core::exec::spread::FoundRows;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::partition::SHARDS_MAX;
use pangea_core::protocol::Cx;
use pangea_core::txn::{ReadSet, Write};

use super::super::Mako;
use super::super::clocks::Clock;
use super::super::messages::Message;
use super::super::state::Role;
use super::super::versions::Epoch;
use super::participant::Refusal;
use crate::streams::number;

/// An attempt to certify a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attempt {
    pub txn: TxnId,
    pub number: u64,
}

/// An item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    pub attempt: Attempt,
    pub item: Item,
}

/// The contents of an item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    /// The program needs these rows.
    Read(LookupKeys),
    /// The newest rows, and the counter of the shard.
    Found { rows: FoundRows, counter: SnapshotVersion },
    /// Lock these rows, if these reads of them are current.
    Prepare { reads: ReadSet, writes: Vec<Write> },
    /// They are locked, at this number.
    Prepared { draw: SnapshotVersion, clock: Clock },
    /// A row is locked by another transaction, or has changed.
    Refused(Change),
    /// A row has changed. All rows stay locked for the next attempt, which reads them first.
    Stale(Change),
    /// Check these reads, and count on from this version.
    Validate { version: SnapshotVersion, reads: ReadSet },
    /// They are current.
    Valid(Clock),
    /// A row that was read may be void, which is not known before the epoch has begun.
    Doubtful,
    /// The transaction is certified.
    Install { version: SnapshotVersion, clock: Clock },
    /// It is not.
    Forget,
    /// The receiver coordinates the transaction, and has not said how it ended.
    Inquire,
}

const WHAT: &str = "items";

fn encode_change(Change { table, key, winner }: &Change, out: &mut Vec<u8>) {
    out.put_varint(table.0.into());
    out.put_bytes(key);
    out.put_u64(winner.map_or(0, TxnId::to_bits));
}

fn decode_change(from: &mut Reader<'_>) -> Result<Change, DecodeError> {
    let table = u32::try_from(from.varint(WHAT)?);
    let table = TableId(table.map_err(|_| DecodeError::new(WHAT))?);
    let key = Key::from(from.bytes(WHAT)?);
    let winner = Some(from.u64(WHAT)?).filter(|bits| *bits != 0);
    Ok(Change { table, key, winner: winner.map(TxnId::from_bits) })
}

impl Item {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Read(keys) => {
                out.put_u8(0);
                keys.encode(out);
            }
            Self::Found { rows, counter } => {
                out.put_u8(1);
                rows.encode(out);
                out.put_varint(counter.0);
            }
            Self::Prepare { reads, writes } => {
                out.put_u8(2);
                reads.encode(out);
                out.put_varint(writes.len() as u64);
                writes.iter().for_each(|write| write.encode(out));
            }
            Self::Prepared { draw, clock } => {
                out.put_u8(3);
                out.put_varint(draw.0);
                clock.encode(out);
            }
            Self::Refused(change) => {
                out.put_u8(4);
                encode_change(change, out);
            }
            Self::Validate { version, reads } => {
                out.put_u8(5);
                out.put_varint(version.0);
                reads.encode(out);
            }
            Self::Valid(clock) => {
                out.put_u8(6);
                clock.encode(out);
            }
            Self::Install { version, clock } => {
                out.put_u8(7);
                out.put_varint(version.0);
                clock.encode(out);
            }
            Self::Forget => out.put_u8(8),
            Self::Inquire => out.put_u8(9),
            Self::Doubtful => out.put_u8(10),
            Self::Stale(change) => {
                out.put_u8(11);
                encode_change(change, out);
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = |from: &mut Reader<'_>| Ok(SnapshotVersion(number(from, WHAT)?));
        let clock = |from: &mut Reader<'_>| Clock::decode(from, usize::from(SHARDS_MAX));
        Ok(match from.u8(WHAT)? {
            0 => Self::Read(LookupKeys::decode(from)?),
            1 => Self::Found { rows: FoundRows::decode(from)?, counter: version(from)? },
            2 => {
                let reads = ReadSet::decode(from)?;
                let writes = (0..from.count(WHAT)?).map(|_| Write::decode(from));
                Self::Prepare { reads, writes: writes.collect::<Result<_, _>>()? }
            }
            3 => Self::Prepared { draw: version(from)?, clock: clock(from)? },
            4 => Self::Refused(decode_change(from)?),
            5 => Self::Validate { version: version(from)?, reads: ReadSet::decode(from)? },
            6 => Self::Valid(clock(from)?),
            7 => Self::Install { version: version(from)?, clock: clock(from)? },
            8 => Self::Forget,
            9 => Self::Inquire,
            10 => Self::Doubtful,
            11 => Self::Stale(decode_change(from)?),
            _ => return Err(DecodeError::new(WHAT)),
        })
    }
}

/// A message that has grown to this size gets no more items, in bytes. One item has at most the
/// rows of a transaction, so none exceeds a frame.
const PART_BYTES: usize = 4 << 20;

/// Encodes items, in messages of a limited size. [`decode_items`] is the inverse.
pub(in super::super) fn encode_in_parts(items: &[Named]) -> Vec<Bytes> {
    let (mut parts, mut out) = (Vec::new(), Vec::new());
    for Named { attempt, item } in items {
        out.put_u64(attempt.txn.to_bits());
        out.put_varint(attempt.number);
        item.encode(&mut out);
        if out.len() >= PART_BYTES {
            parts.push(std::mem::take(&mut out).into());
        }
    }
    if !out.is_empty() {
        parts.push(out.into());
    }
    parts
}

/// Decodes items.
///
/// # Errors
/// If the bytes are malformed.
pub(crate) fn decode_items(bytes: &[u8]) -> Result<Vec<Named>, DecodeError> {
    let (from, mut items) = (&mut Reader::new(bytes), Vec::new());
    while !from.is_empty() {
        let bits = from.u64(WHAT)?;
        if bits >> 63 != 0 {
            return Err(DecodeError::new(WHAT));
        }
        let attempt = Attempt { txn: TxnId::from_bits(bits), number: number(from, WHAT)? };
        items.push(Named { attempt, item: Item::decode(from)? });
    }
    Ok(items)
}

impl Mako {
    /// Sends an item to the leader of another shard at the end of the step.
    pub(super) fn post(&mut self, to: ShardId, attempt: Attempt, item: Item) {
        if let Some(over) = self.coordination() {
            over.out.entry(to).or_default().push(Named { attempt, item });
        }
    }

    /// Sends the items of this step. Those for a leader that does not execute transactions yet
    /// wait.
    pub(super) fn flush_items(&mut self, cx: &mut Cx<'_, Self>) {
        let Role::Leading(leading) = &mut self.state.role else { return };
        let Some(shards) = &self.state.shards else { return };
        let ready: Vec<(ShardId, NodeId)> = leading
            .over
            .out
            .keys()
            .filter_map(|shard| Some((*shard, shards.taking(*shard)?)))
            .collect();
        let epoch = shards.config.number.0;
        for (shard, node) in ready {
            let items = leading.over.out.remove(&shard).unwrap_or_default();
            for items in encode_in_parts(&items) {
                cx.send(node, Message::Items { epoch, items });
            }
        }
    }

    /// Items of another leader arrive. Nothing of another epoch has an effect here (§5.2).
    pub(in super::super) fn on_items(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        epoch: Epoch,
        items: &[u8],
    ) {
        let Role::Leading(_) = self.state.role else {
            return cx.mark("mako.items_of_another_epoch");
        };
        let Some(shards) = &self.state.shards else { return };
        let shard = shards.shard_of(from).filter(|shard| shards.leader_of(*shard) == Some(from));
        let is_current = epoch == shards.config.number;
        let Some(shard) = shard.filter(|_| is_current) else {
            return cx.mark("mako.items_of_another_epoch");
        };
        match decode_items(items) {
            Ok(items) => items.into_iter().for_each(|it| self.on_item(cx, shard, it)),
            Err(_) => cx.mark("mako.malformed_items"),
        }
    }

    fn on_item(&mut self, cx: &mut Cx<'_, Self>, from: ShardId, Named { attempt, item }: Named) {
        if matches!(item, Item::Found { .. } | Item::Prepared { .. } | Item::Valid(_)) {
            self.note_answer(attempt, cx.now.at);
        }
        match item {
            Item::Read(keys) => self.on_read(cx, from, attempt, &keys),
            Item::Found { rows, counter } => self.on_found(cx, from, attempt, (rows, counter)),
            Item::Prepare { reads, writes } => self.on_prepare(cx, from, attempt, (reads, writes)),
            Item::Prepared { draw, clock } => self.on_prepared(cx, from, attempt, (draw, clock)),
            Item::Refused(change) => self.on_item_refused(cx, attempt, change.into()),
            Item::Stale(change) => self.on_stale(cx, from, attempt, change),
            Item::Doubtful => self.on_item_refused(cx, attempt, Refusal::Doubtful),
            Item::Validate { version, reads } => {
                self.on_validate(cx, from, attempt, (version, &reads));
            }
            Item::Valid(clock) => self.on_valid(cx, from, attempt, &clock),
            Item::Install { version, clock } => {
                self.install(cx, attempt, (version, clock), None);
            }
            Item::Forget => self.forget(attempt),
            Item::Inquire => self.on_inquire(from, attempt),
        }
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::NodeId;
    use pangea_core::value::Value;

    use super::super::super::clocks::Slot;
    use super::*;

    #[test]
    fn items_survive_their_message() {
        let mut clock = Clock::default();
        clock.raise(Slot(2), SnapshotVersion(7));
        let version = SnapshotVersion(9);
        let reads = ReadSet::default();
        let table = TableId(3);
        let key = Key::from(&b"k"[..]);
        let write = Write { table, key: key.clone(), value: None };
        let winner = Some(TxnId::new(NodeId(1), 8));
        let all = [
            Item::Read(LookupKeys::default()),
            Item::Found { rows: FoundRows::default(), counter: version },
            Item::Prepare { reads: reads.clone(), writes: vec![write] },
            Item::Prepared { draw: version, clock: clock.clone() },
            Item::Refused(Change { table, key: key.clone(), winner }),
            Item::Refused(Change { table, key: key.clone(), winner: None }),
            Item::Stale(Change { table, key, winner: None }),
            Item::Validate { version, reads },
            Item::Valid(clock.clone()),
            Item::Install { version, clock },
            Item::Forget,
            Item::Inquire,
            Item::Doubtful,
        ];
        let attempt = |number| Attempt { txn: TxnId::new(NodeId(2), 5), number };
        let named = all.into_iter().zip(1..);
        let named: Vec<Named> =
            named.map(|(item, number)| Named { attempt: attempt(number), item }).collect();
        let [bytes] = &encode_in_parts(&named)[..] else { panic!("one message") };
        assert_eq!(decode_items(bytes), Ok(named.clone()));
        for len in 1..bytes.len() {
            let part = decode_items(&bytes[..len]);
            assert!(part.is_err() || part.unwrap().len() < named.len(), "truncated to {len}");
        }
    }
    /// A frame has a maximum size, and a step may have items of many transactions.
    #[test]
    fn many_items_are_sent_in_several_messages() {
        let value = Some(Value::copy_from(&vec![7; PART_BYTES / 3]));
        let write =
            |at: u8| Write { table: TableId(3), key: Key::from(&[at][..]), value: value.clone() };
        let of = |number| {
            let attempt = Attempt { txn: TxnId::new(NodeId(2), 5), number };
            let item =
                Item::Prepare { reads: ReadSet::default(), writes: vec![write(1), write(2)] };
            Named { attempt, item }
        };
        let items: Vec<Named> = (1..=5).map(of).collect();
        let parts = encode_in_parts(&items);
        let decoded = parts.iter().map(|part| decode_items(part).unwrap());
        let decoded: Vec<Vec<Named>> = decoded.collect();
        assert_eq!(decoded.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(decoded.concat(), items);
    }
}
