//! A write-set cache server (§5.2): it keeps the last batches of one replica, its home, in the
//! region of that.
//!
//! ```text
//!   home                     cache                      a member, when the home is removed
//!     | Keep(after 6, batch 7) ->|  on its disk            |
//!     | <----------- Kept(7)     |                         |
//!     |  answers its clients     | <------- CacheRequest   |
//!     X                          | CacheHead(7) ---------> |
//!                                | <---------- Fetch(6, 7) |
//!                                | Batch 6, Batch 7 -----> |  reports on the seal
//! ```
//!
//! A cache has no tables and no vote. The home sends its batches in order, and names with each the
//! one before it, so the cache has no gaps. Batches that every member has merged are dropped. A
//! cache that lost its disk begins with the first batch that the home still has.
//!
//! Once it is asked, a cache confirms no more batches of that view. The home may not know that it
//! is being removed, and would tell its clients of commits that nobody asks for any more.
//!
//! A home that was removed, or that lost its disk, may use a number again for another batch. That
//! is of a later view, and replaces the earlier batch and those after it.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Durable, Input, Status};
use pangea_core::topology::Topology;

use super::GeoGauss;
use super::batch::Batch;
use super::messages::Message;
use super::views::ViewNumber;
use crate::replica::{INTACT, kind};
use crate::streams::{self, Bid, decode_batch};

/// The maximum bytes of batches that answer one fetch; the rest is requested again.
const FETCH_BYTES_MAX: usize = 8 << 20;

/// The log is truncated when this number of bytes is not needed any more.
const TRUNCATED_BYTES: usize = 1 << 16;

/// A cache.
pub(super) struct Cache {
    home: NodeId,
    node_count: usize,
    /// The batches that some member may lack.
    slots: BTreeMap<Bid, Slot>,
    /// Every member has merged the batches up to this one.
    collected: Bid,
    /// The last batch without a gap.
    head: Bid,
    /// Batches of this view and earlier ones are not confirmed any more: a member has asked for the
    /// last one.
    sealed: ViewNumber,
    /// The position of the record of that.
    sealed_at: LogPosition,
    /// The bytes of dropped batches that are still in the log.
    dropped_bytes: usize,
}

/// A batch.
struct Slot {
    bytes: Bytes,
    view: ViewNumber,
    position: LogPosition,
}

impl Cache {
    /// The state of a node, if it is a cache.
    pub(super) fn new(me: NodeId, topology: &Topology) -> Option<Self> {
        Some(Self {
            home: topology.home_of(me)?,
            node_count: topology.node_count(),
            slots: BTreeMap::new(),
            collected: Bid(0),
            head: Bid(0),
            sealed: ViewNumber(0),
            sealed_at: LogPosition(0),
            dropped_bytes: 0,
        })
    }

    pub(super) fn step(&mut self, cx: &mut Cx<'_, GeoGauss>, input: Input<GeoGauss>) {
        match input {
            Input::Restart(durable) => self.on_restart(cx, &durable),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Durable(_) | Input::PeerUp(_) | Input::PeerDown(_) | Input::Stop => {}
            Input::Timer(_) | Input::Resume => unreachable!("a cache asks for neither"),
            Input::Submit(_) => unreachable!("a cache has no sessions"),
            Input::Checkpointed(_) | Input::CheckpointFailed(_) | Input::Prefetched { .. } => {
                unreachable!("a cache has no tables")
            }
        }
    }

    /// Reads the log.
    fn on_restart(&mut self, cx: &mut Cx<'_, GeoGauss>, durable: &Durable) {
        for (position, record) in &durable.records {
            let payload = record.slice(1..);
            match record[0] {
                kind::BATCH => {
                    let batch = Batch::decode(&payload).expect(INTACT);
                    self.insert(batch.bid, batch.view, payload, *position);
                }
                kind::COLLECTED => {
                    let upto = Reader::new(&payload).u64("collected").expect(INTACT);
                    self.drop_upto(Bid(upto));
                }
                kind::SEALED => {
                    let view = Reader::new(&payload).u64("seal").expect(INTACT);
                    self.sealed = self.sealed.max(ViewNumber(view));
                    self.sealed_at = *position;
                }
                other => panic!("record {position} has the unknown kind {other}"),
            }
        }
        if durable.is_replaced {
            cx.rejoined();
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_, GeoGauss>, from: NodeId, message: Message) {
        if message.check(self.node_count).is_err() {
            return cx.mark("geogauss.cache_of_another");
        }
        match message {
            Message::Keep { collected, after, bytes } if from == self.home => {
                self.collect(cx, collected);
                self.on_keep(cx, after, bytes);
            }
            Message::Collected { upto } if from == self.home => self.collect(cx, upto),
            Message::CacheRequest { token, view } => {
                self.seal(cx, ViewNumber(view));
                let after = self.slots.values().map(|slot| slot.position).max();
                let after = after.unwrap_or(self.sealed_at).max(self.sealed_at);
                cx.send_after(after, from, Message::CacheHead { token, head: self.head });
            }
            Message::Streams(streams::Message::Fetch { source, from: first, upto })
                if source == self.home =>
            {
                self.on_fetch(cx, from, (first, upto));
            }
            _ => cx.mark("geogauss.cache_of_another"),
        }
    }

    /// The members are about to end a view: what the home adds in it from now on may not count, so
    /// no client may be told that it does.
    fn seal(&mut self, cx: &mut Cx<'_, GeoGauss>, view: ViewNumber) {
        if view > self.sealed {
            cx.mark("geogauss.cache_sealed");
            self.sealed = view;
            self.log_seal(cx);
        }
    }

    fn log_seal(&mut self, cx: &mut Cx<'_, GeoGauss>) {
        let view = Bytes::copy_from_slice(&self.sealed.0.to_le_bytes());
        self.sealed_at = cx.persist(vec![Bytes::from_static(&[kind::SEALED]), view]);
    }

    /// A batch of the home, which comes after the batch `after`.
    fn on_keep(&mut self, cx: &mut Cx<'_, GeoGauss>, after: Bid, bytes: Bytes) {
        let Ok(batch) = decode_batch::<Batch>(&bytes, self.node_count) else {
            return cx.mark("streams.malformed_batch");
        };
        let bid = batch.bid;
        if batch.source != self.home || after >= bid {
            return cx.mark("geogauss.cache_of_another");
        }
        if bid <= self.collected {
            return;
        }
        let known = self.slots.get(&bid).filter(|slot| slot.view >= batch.view);
        let position = match known {
            Some(slot) => slot.position,
            None if after > self.head => return cx.mark("geogauss.kept_after_gap"),
            None => {
                cx.mark("geogauss.batch_kept");
                let record = vec![Bytes::from_static(&[kind::BATCH]), bytes.clone()];
                let position = cx.persist(record);
                self.insert(bid, batch.view, bytes, position);
                position
            }
        };
        let is_sealed = batch.view <= self.sealed;
        if !mutate!(KeptAfterSeal: is_sealed => false) {
            cx.send_after(position, self.home, Message::Kept { head: bid });
        }
    }

    fn insert(&mut self, bid: Bid, view: ViewNumber, bytes: Bytes, position: LogPosition) {
        let replaced = self.slots.split_off(&bid);
        self.dropped_bytes += replaced.values().map(|slot| slot.bytes.len()).sum::<usize>();
        self.slots.insert(bid, Slot { bytes, view, position });
        self.head = bid;
    }

    /// Drops the batches that every member has merged.
    fn collect(&mut self, cx: &mut Cx<'_, GeoGauss>, upto: Bid) {
        if upto <= self.collected {
            return;
        }
        self.drop_upto(upto);
        if self.dropped_bytes < TRUNCATED_BYTES {
            return;
        }
        self.dropped_bytes = 0;
        let upto = Bytes::copy_from_slice(&upto.0.to_le_bytes());
        let position = cx.persist(vec![Bytes::from_static(&[kind::COLLECTED]), upto]);
        self.log_seal(cx);
        let first = self.slots.values().map(|slot| slot.position).min();
        cx.truncate(first.unwrap_or(position));
    }

    fn drop_upto(&mut self, upto: Bid) {
        let kept = self.slots.split_off(&upto.next());
        let dropped = std::mem::replace(&mut self.slots, kept);
        self.dropped_bytes += dropped.values().map(|slot| slot.bytes.len()).sum::<usize>();
        self.collected = self.collected.max(upto);
        self.head = self.head.max(upto);
    }

    /// Sends batches to a member, or back to the home.
    fn on_fetch(&self, cx: &mut Cx<'_, GeoGauss>, to: NodeId, (first, upto): (Bid, Bid)) {
        cx.mark("geogauss.fetched_from_cache");
        let mut bytes_sent = 0;
        for slot in self.slots.range(first..=upto.max(first)).map(|(_, slot)| slot) {
            if bytes_sent > FETCH_BYTES_MAX {
                break;
            }
            bytes_sent += slot.bytes.len();
            let batch = streams::Message::Batch { bytes: slot.bytes.clone() };
            cx.send_after(slot.position, to, batch.into());
        }
    }

    pub(super) fn status(&self) -> Status {
        let bytes = self.slots.values().map(|slot| slot.bytes.len() as u64).sum();
        let counters = [("batches_kept", self.slots.len() as u64), ("batch_bytes_held", bytes)];
        let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
        Status { version: SnapshotVersion::ZERO, counters, ..Status::default() }
    }

    pub(super) fn invariants(&self) {
        let (first, last) = (self.slots.keys().next(), self.slots.keys().next_back());
        assert!(first.is_none_or(|first| *first > self.collected), "collected ones are dropped");
        assert!(last.copied().unwrap_or(self.collected) == self.head, "the head is here");
    }
}
