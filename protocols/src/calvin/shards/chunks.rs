//! Splits data that is larger than a frame should be: slices into chunks, and rows into several
//! messages.
//!
//! An epoch has as many batches as its group could replicate, which after a pause are many.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;

use super::super::Message;
use super::remote_results::{RemoteResult, RemoteResults};
use super::slice::{Lineage, Slice};
use crate::streams::number;

/// A chunk of an encoded slice. The chunks are sent in order.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceChunk {
    /// The slice's epoch.
    pub epoch: SnapshotVersion,
    /// Whether its cut is decided.
    pub is_decided: bool,
    /// The number of the chunk, from 0.
    number: u64,
    /// The number of chunks of the slice.
    count: u64,
    bytes: Bytes,
}

/// The received chunks of a slice.
#[derive(Default)]
pub(in super::super) struct SliceChunks {
    epoch: SnapshotVersion,
    received: Vec<Bytes>,
}

const WHAT: &str = "piece";

impl Slice {
    /// The messages for this slice, each with at most `most` bytes of it.
    pub(in super::super) fn messages(&self, most: usize) -> Vec<Message> {
        let bytes = self.bytes();
        if bytes.len() <= most {
            return vec![Message::Slice { slice: self.clone() }];
        }
        let count = bytes.len().div_ceil(most) as u64;
        let chunk = |(number, part): (usize, &[u8])| {
            let (number, bytes) = (number as u64, bytes.slice_ref(part));
            let Self { epoch, is_decided, .. } = *self;
            Message::SliceChunk { chunk: SliceChunk { epoch, is_decided, number, count, bytes } }
        };
        bytes.chunks(most).enumerate().map(chunk).collect()
    }
}

impl RemoteResults {
    /// Splits the rows and outcomes into several messages of approximately at most `most` bytes,
    /// unless a single entry is larger.
    pub(in super::super) fn split(
        at: (SnapshotVersion, Lineage),
        results: &[RemoteResult],
        most: usize,
    ) -> Vec<Self> {
        let mut all = Vec::new();
        let mut first = 0;
        let mut bytes = 0;
        for (place, item) in results.iter().enumerate() {
            let more = item.weight();
            if bytes + more > most && place > first {
                all.push(Self::new(at, &results[first..place]));
                (first, bytes) = (place, 0);
            }
            bytes += more;
        }
        all.push(Self::new(at, &results[first..]));
        all
    }
}

impl SliceChunk {
    /// Whether it is the first of its slice.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    /// The approximate size in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends it to `out`. [`SliceChunk::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Self { epoch, is_decided, number, count, bytes } = self;
        out.put_u8(u8::from(*is_decided));
        [epoch.0, *number, *count].iter().for_each(|number| out.put_varint(*number));
        out.put_bytes(bytes);
    }

    /// Decodes the bytes that [`SliceChunk::encode`] wrote.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>, bytes: &Bytes) -> Result<Self, DecodeError> {
        let is_decided = decode_flag(from)?;
        let epoch = SnapshotVersion(number(from, WHAT)?);
        let (number, count) = (from.varint(WHAT)?, from.varint(WHAT)?);
        if number >= count {
            return Err(DecodeError::new(WHAT));
        }
        let bytes = bytes.slice_ref(from.bytes(WHAT)?);
        Ok(Self { epoch, is_decided, number, count, bytes })
    }
}

/// Decodes whether a cut is decided.
pub(in super::super) fn decode_flag(from: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match from.u8(WHAT)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::new(WHAT)),
    }
}

impl SliceChunks {
    /// Adds a chunk; one that does not follow the last is ignored. Returns the slice's bytes after
    /// its last chunk.
    pub fn add(&mut self, chunk: SliceChunk) -> Option<Bytes> {
        if chunk.is_first() {
            *self = Self { epoch: chunk.epoch, received: Vec::new() };
        }
        if chunk.epoch != self.epoch || chunk.number != self.received.len() as u64 {
            return None;
        }
        self.received.push(chunk.bytes);
        let is_last = chunk.number + 1 == chunk.count;
        is_last.then(|| std::mem::take(&mut self.received).concat().into())
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::super::slice::tests::slice;
    use super::*;
    use pangea_core::exec::ordered::{RemoteReads, ShardOutcome};
    use pangea_core::ids::{NodeId, TxnId};

    /// The chunks of a slice.
    pub fn chunks() -> Vec<SliceChunk> {
        let chunk = |message| match message {
            Message::SliceChunk { chunk } => chunk,
            other => panic!("{other:?}"),
        };
        slice().messages(7).into_iter().map(chunk).collect()
    }

    /// Calvin §3.1: a scheduler is sent all requests that it participates in.
    #[test]
    fn a_slice_is_whole_when_its_pieces_came_in_order() {
        let all = chunks();
        assert!(all.len() > 2);
        let mut received = SliceChunks::default();
        // The connection is lost, and all chunks arrive again.
        for chunk in &all[..2] {
            assert_eq!(received.add(chunk.clone()), None);
        }
        assert_eq!(received.add(all[3 % all.len()].clone()), None, "a chunk out of order");
        let wholes = all.iter().filter_map(|chunk| received.add(chunk.clone()));
        let wholes: Vec<Bytes> = wholes.collect();
        assert_eq!(wholes, [slice().bytes().clone()]);
        assert_eq!(received.add(all[all.len() - 1].clone()), None, "the slice is already complete");
        assert_eq!(slice().messages(1 << 20), [Message::Slice { slice: slice() }]);
    }

    /// Calvin §3.2, phase 3: all results of local reads are forwarded.
    #[test]
    fn items_are_split_and_none_is_lost() {
        let txn = |number| TxnId::new(NodeId(3), number);
        let result =
            |number| RemoteResult::Outcome(txn(number), ShardOutcome::Ran(Ok(vec![7; 100])));
        let all: Vec<RemoteResult> = (0..10)
            .map(result)
            .chain([RemoteResult::Reads(txn(1), RemoteReads::Certified(None))])
            .collect();
        let epoch = (SnapshotVersion(5), Lineage(7));
        let split = RemoteResults::split(epoch, &all, 250);
        assert!((5..=10).contains(&split.len()), "{}", split.len());
        let read: Vec<RemoteResult> =
            split.iter().flat_map(|results| results.read().unwrap()).collect();
        assert_eq!(read, all);
        assert_eq!(RemoteResults::split(epoch, &all, 1).len(), all.len());
        assert_eq!(RemoteResults::split(epoch, &[], 1), [RemoteResults::new(epoch, &[])]);
    }
}
