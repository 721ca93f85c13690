//! The transactions that a replica has: their programs, which the log names by their ids (§3.2).
//!
//! ```text
//!   Submit:  | count | [ code changes? u8 | code u64 | txn u64 | stamp u64 | request ] ..
//! ```
//!
//! The bytes of a message are persisted as they are, after the places in it of those that were in
//! time.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::declared_footprint;
use pangea_core::ids::{NodeId, ShardId, TxnId};
use pangea_core::txn::{Certified, CodeDigest, Footprint, Program, Registry};

use super::log::ViewNumber;
use super::stamp::{Stamp, US_MAX};
use crate::messages::NUMBER_MAX;
use crate::request::{Request, has_seen_what_is_final};

/// A transaction with the stamp of its coordinator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stamped {
    pub stamp: Stamp,
    /// The code of the coordinator's procedures. All replicas run the transaction with it.
    pub code: CodeDigest,
    pub request: Request,
}

impl Stamped {
    /// Whether a shard has a part in it.
    pub(super) fn concerns(&self, shard: ShardId) -> bool {
        self.request.shards.is_empty() || self.request.shards.contains(shard)
    }

    /// The keys and ranges that it accesses, as far as they are known before it runs.
    ///
    /// The procedures of another program can't be asked. Such a transaction is not pending here and
    /// has no part in the fast path, so nothing depends on it (`programs.rs`).
    pub(super) fn footprint(&self, registry: &Registry) -> Footprint {
        if let Some(found) = &self.request.footprint {
            return found.clone();
        }
        match &self.request.program {
            Program::Call { .. } if self.code != registry.code() => Footprint::default(),
            Program::Call { procedure, args } => {
                declared_footprint(registry, *procedure, args).unwrap_or_default()
            }
            Program::Certified(Certified { reads, writes, .. }) => Footprint::of_run(reads, writes),
        }
    }
}

/// Encodes transactions for a message. [`decode`] is the inverse.
pub(super) fn encode<'a>(transactions: impl ExactSizeIterator<Item = &'a Stamped>) -> Bytes {
    let mut out = Vec::new();
    out.put_varint(transactions.len() as u64);
    // Most messages have those of one coordinator.
    let mut last = CodeDigest::default();
    for Stamped { stamp, code, request } in transactions {
        out.put_u8(u8::from(*code != last));
        if *code != last {
            out.put_u64(code.0);
            last = *code;
        }
        out.put_u64(request.txn.to_bits());
        out.put_u64(stamp.to_bits());
        request.encode(&mut out);
    }
    out.into()
}

/// The approximate size of a message of transactions.
const PART_BYTES: usize = 4 << 20;

/// Encodes transactions for several messages, if they are too large for one.
pub(super) fn encode_in_parts(all: &[Arc<Stamped>]) -> Vec<Bytes> {
    let (mut parts, mut rest) = (Vec::new(), all);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |stamped: &&Arc<Stamped>| {
            let is_room = bytes < PART_BYTES;
            bytes += stamped.request.weight();
            is_room
        };
        let count = rest.iter().take_while(fits).count();
        let part;
        (part, rest) = rest.split_at(count);
        parts.push(encode(part.iter().map(|stamped| &**stamped)));
    }
    parts
}

/// Decodes the bytes that [`encode`] wrote.
///
/// # Errors
/// If the bytes are malformed.
pub(super) fn decode(bytes: &Bytes) -> Result<Vec<Stamped>, DecodeError> {
    const WHAT: &str = "transactions";
    let from = &mut Reader::new(bytes);
    let mut code = CodeDigest::default();
    let mut next = |from: &mut Reader<'_>| {
        match from.u8(WHAT)? {
            0 => {}
            1 => code = CodeDigest(from.u64(WHAT)?),
            _ => return Err(DecodeError::new(WHAT)),
        }
        let txn = TxnId::from_bits(from.u64(WHAT)?);
        let stamp = Stamp::from_bits(from.u64(WHAT)?);
        let request = Request::decode(txn, from, bytes)?;
        match has_seen_what_is_final(&request.program) {
            true => Ok(Stamped { stamp, code, request }),
            false => Err(DecodeError::new(WHAT)),
        }
    };
    let count = from.count(WHAT)?;
    let all = (0..count).map(|_| next(from)).collect::<Result<_, _>>()?;
    if from.is_empty() { Ok(all) } else { Err(DecodeError::new(WHAT)) }
}

/// Whether replicas of a group of `node_count` can have sent these: each of a coordinator and with
/// a stamp of it.
pub(super) fn are_sound(all: &[Stamped], node_count: usize) -> bool {
    all.iter().all(|Stamped { stamp, request, .. }| {
        let node = request.txn.node();
        let is_issued = stamp.node() == node && !stamp.is_raised() && stamp.us() <= US_MAX;
        is_issued && node.index() < node_count
    })
}

/// The beginning of a record of transactions: the places of those that were in time in a view.
pub(super) fn encode_in_time(
    view: ViewNumber,
    places: impl ExactSizeIterator<Item = usize>,
) -> Bytes {
    let mut out = Vec::new();
    out.put_varint(view.0);
    out.put_varint(places.len() as u64);
    places.for_each(|place| out.put_varint(place as u64));
    out.into()
}

/// Decodes a record: the view, and the transactions with whether they were in time.
///
/// # Errors
/// If the bytes are malformed.
pub(super) fn decode_record(
    bytes: &Bytes,
) -> Result<(ViewNumber, Vec<(Stamped, bool)>), DecodeError> {
    const WHAT: &str = "transactions";
    let from = &mut Reader::new(bytes);
    let view = ViewNumber(from.varint(WHAT)?);
    let places = (0..from.count(WHAT)?).map(|_| from.varint(WHAT));
    let places: Vec<u64> = places.collect::<Result<_, _>>()?;
    let all = decode(&bytes.slice_ref(from.rest()))?;
    let is_in_time = |place: u64| places.binary_search(&place).is_ok();
    let all = (0..).zip(all).map(|(place, stamped)| (stamped, is_in_time(place)));
    Ok((view, all.collect()))
}

/// The transactions of which this replica has the programs.
#[derive(Clone, Debug, Default)]
pub(super) struct Transactions(BTreeMap<TxnId, Arc<Stamped>>);

impl Transactions {
    /// Adds a transaction. Returns whether it is new.
    pub(super) fn insert(&mut self, stamped: Arc<Stamped>) -> bool {
        let txn = stamped.request.txn;
        let is_new = !self.0.contains_key(&txn);
        if is_new {
            self.0.insert(txn, stamped);
        }
        is_new
    }

    /// The transaction with an id.
    pub(super) fn get(&self, txn: TxnId) -> Option<&Arc<Stamped>> {
        self.0.get(&txn)
    }

    /// The approximate size of a transaction; 0 if it is not here.
    pub(super) fn size_of(&self, txn: TxnId) -> u64 {
        self.get(txn).map_or(0, |stamped| stamped.request.weight() as u64)
    }

    /// Forgets a transaction.
    pub(super) fn remove(&mut self, txn: TxnId) {
        self.0.remove(&txn);
    }

    /// Forgets all transactions but these.
    pub(super) fn retain(&mut self, is_needed: impl Fn(TxnId) -> bool) {
        self.0.retain(|txn, _| is_needed(*txn));
    }

    /// All transactions.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Stamped>> {
        self.0.values()
    }

    /// All of a coordinator, in their order.
    pub(super) fn of(
        &self,
        node: NodeId,
    ) -> impl DoubleEndedIterator<Item = &Arc<Stamped>> + Clone {
        let all = TxnId::new(node, 0)..=TxnId::new(node, NUMBER_MAX - 1);
        self.0.range(all).map(|(_, stamped)| stamped)
    }

    /// The stamp of a transaction's coordinator.
    pub(super) fn stamp_of(&self, txn: TxnId) -> Option<Stamp> {
        self.get(txn).map(|stamped| stamped.stamp)
    }

    /// Whether this replica has a transaction.
    pub(super) fn contains(&self, txn: TxnId) -> bool {
        self.0.contains_key(&txn)
    }
}
