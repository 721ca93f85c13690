//! Streams: each source's durable log of batches, on every replica of its group.
//!
//! A source appends batches to its own log and sends them to its peers. Each replica persists them,
//! acknowledges the prefix without gaps that is durable on it, fetches missing batches from any
//! peer that has them, and drops the batches that no replica needs.
//!
//! ```text
//!   of one log on one replica, in batch numbers:
//!
//!   collected        applied by all        durable     received           known
//!   ----|------------------|-------------------|----------|--- gap ..... ----|
//!   dropped                 retained            persisted   some after a gap
//! ```
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | replication | Minerva §3.3, Algorithm 2 | `replication.rs` | Batch, Ack, ProofOfAvailability | f + 1 replicas have the batch |
//! | fetch | Minerva §3.3 | `fetch.rs` | Fetch, Gone | a missing batch, or that no peer has it any more |
//! | collection | Minerva §4 | `collection.rs` | | the batches that no replica needs |
//!
//! This component does not know how batches are ordered or executed. Its owner passes each input to
//! the function of that name, and reports with `Streams::note_applied` the batches that a replica
//! needs no more.
//!
//! # Invariants
//!
//! - A replica acknowledges only batches that are durable on it, and counts an acknowledgement
//!   once.
//! - Only a source appends to its log, and a number names one batch.

mod bid;
mod bounds;
mod collection;
mod fetch;
mod log;
pub(crate) mod marks;
pub(crate) mod messages;
mod replication;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Protocol};

use crate::messages::NUMBER_MAX;
use crate::replica::{INTACT, Replica};

pub use bid::{Bid, Heads};
pub(crate) use bid::{decode_heads, encode_heads, max_heads};
pub(crate) use bounds::Bounds;
pub(crate) use fetch::FETCH;
pub(crate) use log::{BufferedBatch, SourceLog};
pub use messages::Message;
pub(crate) use messages::{AllHeads, are_heads, decode_batch};
pub(crate) use replication::{lost_batches, lost_log};

/// A protocol whose sources replicate streams of batches.
pub(crate) trait Host: Protocol<Message: From<Message>, Timer: From<FetchTimer>> {
    /// The batches that its sources replicate.
    type Batch: Batch;
}

/// The timer of this component: the replica looks for missing batches.
#[derive(Clone, Copy, Debug)]
pub struct FetchTimer;

/// A group of transactions of one source, in their order: an entry of the source's log.
pub trait Batch: Debug + Send + Sync + Sized {
    /// The source, whose log the batch is in.
    fn source(&self) -> NodeId;

    /// The number of the batch in that log.
    fn bid(&self) -> Bid;

    /// The number of its first transaction.
    fn first_sequence(&self) -> u64;

    /// The number after that of its last transaction.
    fn end_sequence(&self) -> u64;

    /// Decodes a batch, which may keep slices of `bytes`.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    fn decode(bytes: &Bytes) -> Result<Self, DecodeError>;

    /// Checks whether the source can have created this batch, apart from the checks of this module.
    ///
    /// # Errors
    /// Names the property that the batch can't have.
    fn check(&self) -> Result<(), DecodeError>;

    /// Whether a source can have created this batch after `before`, apart from their numbers.
    fn follows(&self, before: &Self) -> bool {
        let _ = before;
        true
    }
}

/// An event that the owner has to handle.
pub(crate) enum Event<H: Host> {
    /// A peer returned a batch of this replica's own log, from before it lost its disk.
    OwnBatch(Arc<H::Batch>),
    /// A peer no longer has batches of a source that this replica is missing: it has those from
    /// `first` on. The owner may request a checkpoint. In any case it then calls
    /// [`Streams::fetch_elsewhere`].
    Gone { source: NodeId, first: Bid },
}

/// The logs of all sources of a group, as far as one replica has them.
pub(crate) struct Streams<H: Host> {
    /// One log for each source.
    pub logs: Vec<SourceLog<H::Batch>>,
    /// The head of each log that each replica has persisted: `durable[replica][source]`.
    pub durable: Vec<Heads>,
    /// The available head of each log: the paper's `PoA_heads`.
    pub available: Heads,
    /// The heads of each log that each replica has applied, according to its last report.
    pub applied: Vec<Heads>,
    /// Whether each replica has sent such a report under its present log identity.
    pub has_reported: Vec<bool>,
    /// The position up to which this node's log is durable.
    pub synced: LogPosition,
    /// The number of this replica's next transaction.
    pub next_sequence: u64,
    /// The last batch of this replica that its peers reported when it had lost its disk.
    pub own_reported: Bid,
    /// Whether each replica may count batches that do not count here any more. It would take an
    /// acknowledgement of later ones for one of those, so it gets none.
    pub is_behind: Vec<bool>,
    /// Whether a peer's checkpoint has skipped batches, and no local checkpoint contains them yet.
    pub has_skipped: bool,
    pub counters: Counters,
    /// Whether batches are acknowledged to every replica, and not only to their source.
    ack_everyone: bool,
    /// The head in the last proof that this replica broadcast for its own log.
    proof_sent: Bid,
    /// A counter that selects, round robin, the peer from which a missing batch is fetched.
    fetch_turn: usize,
    /// The first batch that each peer still has of each source, as reported in `Gone`: by source
    /// and peer.
    gone: BTreeMap<NodeId, BTreeMap<NodeId, Bid>>,
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub batches_sent: u64,
    /// The bytes of this replica's own batches, each counted once, before compression.
    pub batch_bytes: u64,
    pub batches_fetched: u64,
}

impl<H: Host> Streams<H> {
    /// Empty logs.
    pub(crate) fn new(node_count: usize, ack_everyone: bool) -> Self {
        let heads = vec![Bid(0); node_count];
        Self {
            logs: (0..node_count).map(|_| SourceLog::default()).collect(),
            durable: vec![heads.clone(); node_count],
            available: heads.clone(),
            applied: vec![heads; node_count],
            has_reported: vec![false; node_count],
            synced: LogPosition(0),
            next_sequence: 1,
            own_reported: Bid(0),
            is_behind: vec![false; node_count],
            has_skipped: false,
            counters: Counters::default(),
            ack_everyone,
            proof_sent: Bid(0),
            fetch_turn: 0,
            gone: BTreeMap::new(),
        }
    }

    /// Handles a message of a peer, whose fields the owner has checked (`Message::check`).
    pub(crate) fn on_message(
        &mut self,
        cx: &mut Cx<'_, H>,
        replica: &mut Replica,
        from: NodeId,
        message: Message,
    ) -> Option<Event<H>> {
        match message {
            Message::Batch { bytes } => return self.on_batch(cx, replica, from, bytes),
            Message::Ack { heads } => self.on_ack(cx, replica, from, heads),
            Message::ProofOfAvailability { head } => self.on_proof(cx, from, head),
            Message::Fetch { source, from: first, upto } => {
                self.on_fetch(cx, replica, from, source, (first, upto));
            }
            Message::Gone { source, first } => {
                self.on_gone(from, source, first);
                return Some(Event::Gone { source, first });
            }
        }
        None
    }

    /// The head of each log on this replica, without gaps.
    pub(crate) fn received_heads(&self) -> Heads {
        self.logs.iter().map(|log| log.received).collect()
    }

    /// This replica's own log.
    pub(crate) fn own(&self, replica: &Replica) -> &SourceLog<H::Batch> {
        &self.logs[replica.me.index()]
    }

    /// The last batch of this replica that any replica may have.
    pub(crate) fn own_head(&self, replica: &Replica) -> Bid {
        self.own(replica).received.max(self.own_reported)
    }

    /// Records that batches up to these heads exist. The missing ones are fetched.
    pub(crate) fn note_known(&mut self, heads: &[Bid]) {
        for (log, head) in self.logs.iter_mut().zip(heads) {
            log.known = log.known.max(*head);
        }
    }

    /// Whether all batches up to these heads are on this replica.
    pub(crate) fn has(&self, heads: &[Bid]) -> bool {
        self.logs.iter().zip(heads).all(|(log, head)| log.received >= *head)
    }

    /// Notifies the latency observer that this replica's transactions up to the end of a batch of
    /// its log have reached a phase.
    pub(crate) fn note_reached(
        &self,
        cx: &Cx<'_, H>,
        replica: &Replica,
        phase: Milestone,
        head: Bid,
    ) {
        if let Some(slot) = self.own(replica).slots.get(&head) {
            cx.reached(phase, slot.batch.end_sequence());
        }
    }

    /// Restores a batch from the log, after a restart.
    pub(crate) fn restore(&mut self, position: LogPosition, payload: Bytes) {
        let batch = H::Batch::decode(&payload).expect(INTACT);
        let log = &mut self.logs[batch.source().index()];
        let bid = batch.bid();
        if !log.bounds.counts(bid) {
            return;
        }
        log.insert(bid, BufferedBatch { bytes: payload, batch: Arc::new(batch), position, end: 0 });
    }

    /// Restores the discard of batches, after a restart.
    pub(crate) fn restore_discard(&mut self, payload: &Bytes) {
        let from = &mut Reader::new(payload);
        let node = NodeId(from.u16("discard").expect(INTACT));
        let after = Bid(from.u64("discard").expect(INTACT));
        self.logs[node.index()].discard_after(after);
    }

    /// Marks everything that was read from the log as durable.
    pub(crate) fn finish_restore(&mut self, replica: &Replica) {
        let me = replica.me.index();
        for (source, log) in self.logs.iter_mut().enumerate() {
            log.durable = log.received;
            self.durable[me][source] = log.received;
        }
        let own = self.logs[me].slots.values();
        let next = own.map(|slot| slot.batch.end_sequence()).max();
        let next = self.next_sequence.max(next.unwrap_or(0));
        self.next_sequence = mutate!(NumbersReused: next => self.next_sequence);
    }

    /// Skips the batches up to these heads, which are part of a checkpoint. The transactions in
    /// them have lower numbers than `sequences`.
    pub(crate) fn skip_to(&mut self, heads: &[Bid], sequences: &[u64]) {
        for (log, (head, sequence)) in self.logs.iter_mut().zip(heads.iter().zip(sequences)) {
            log.skip_to(*head);
            log.next_sequence = log.next_sequence.max(*sequence);
        }
    }

    /// The rest of the state that decides which messages are sent.
    #[cfg(test)]
    pub(crate) fn turns_and_proofs(&self) -> (Bid, usize) {
        (self.proof_sent, self.fetch_turn)
    }

    /// Asserts the invariants that hold between any two steps.
    pub(crate) fn invariants(&self, replica: &Replica) {
        for log in &self.logs {
            assert!(log.durable <= log.received, "durable batches were received");
            assert!(log.collected <= log.received, "collected batches were received");
            assert!(
                log.slots.keys().next().is_none_or(|first| *first > log.collected),
                "collected batches are removed"
            );
        }
        let own = self.own(replica);
        assert!(self.proof_sent <= self.own_head(replica), "proven batches exist");
        assert!(own.received <= own.known, "received batches are known");
    }
}

/// Decodes the number of a batch, an epoch or a transaction.
pub(crate) fn number(from: &mut Reader<'_>, what: &'static str) -> Result<u64, DecodeError> {
    let number = from.varint(what)?;
    if number <= NUMBER_MAX { Ok(number) } else { Err(DecodeError::new(what)) }
}

/// Checks that `count` transactions of `source`, numbered from `first`, have valid names.
///
/// # Errors
/// Returns an error if a name would not be that of a transaction.
pub(crate) fn check_names(source: NodeId, first: u64, count: usize) -> Result<(), DecodeError> {
    let is_number = first.checked_add(count as u64).is_some_and(|end| end >> 48 == 0);
    if source.0 < 1 << 15 && is_number { Ok(()) } else { Err(DecodeError::new("batch sequence")) }
}
