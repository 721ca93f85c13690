//! Encoding of outgoing frames: header, checksum, compression.
//!
//! A batch goes to every peer, but is compressed only once. The first sender stores the result, and
//! the others find it by the address of the batch's buffer. They send the same frame at about the
//! same time, so only a few results are stored.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use pangea_core::protocol::Lane;

use super::Compression;
use super::frame::{self, HEADER_LEN, Kind};

/// The maximum number of stored frames. A sender that lags further behind another, which is rare,
/// compresses the frame again.
const KEPT_MAX: usize = 8;
/// A larger frame is not stored, because it would remain in memory after the last peer has it.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// An encoded frame.
#[derive(Clone, Debug)]
pub(super) struct EncodedFrame {
    pub header: [u8; HEADER_LEN],
    pub body: Bytes,
}

/// Encodes the frames that a node sends.
#[derive(Debug)]
pub(crate) struct FrameEncoder {
    compression: Compression,
    /// Bodies of the bulk lane with their encoded frames, oldest first. A stored body keeps its
    /// buffer alive, so no other body can have the same address.
    recent: Mutex<VecDeque<(Kind, Bytes, EncodedFrame)>>,
}

impl FrameEncoder {
    pub(super) fn new(compression: Compression) -> Self {
        Self { compression, recent: Mutex::default() }
    }

    pub(super) fn encode(&self, kind: Kind, lane: Lane, body: Bytes) -> EncodedFrame {
        match (lane, self.compression) {
            (Lane::Bulk, Compression::Lz4) if body.len() <= KEPT_BYTES_MAX => {
                self.encode_once(kind, body)
            }
            (Lane::Bulk, Compression::Lz4) => compressed(kind, body),
            (Lane::Bulk, Compression::Off) | (Lane::Control, _) => plain(kind, body),
        }
    }

    fn encode_once(&self, kind: Kind, body: Bytes) -> EncodedFrame {
        // The lock is held during the compression. Another peer's sender that needs the same frame
        // waits for it, which takes no longer than compressing it again.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |of: &Bytes| (of.as_ptr(), of.len());
        let is_it = |of: Kind, known: &Bytes| of == kind && place(known) == place(&body);
        if let Some((.., frame)) = recent.iter().find(|(of, known, _)| is_it(*of, known)) {
            return frame.clone();
        }
        let frame = compressed(kind, body.clone());
        if recent.len() == KEPT_MAX {
            recent.pop_front();
        }
        recent.push_back((kind, body, frame.clone()));
        frame
    }
}

fn compressed(kind: Kind, body: Bytes) -> EncodedFrame {
    match frame::compress(&body) {
        Some(body) => EncodedFrame { header: frame::header(kind, frame::COMPRESSED, &body), body },
        None => plain(kind, body),
    }
}

fn plain(kind: Kind, body: Bytes) -> EncodedFrame {
    EncodedFrame { header: frame::header(kind, 0, &body), body }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: u32) -> Bytes {
        (0..4_000_u32).flat_map(|at| (at / 7 + n).to_le_bytes()).collect()
    }

    #[test]
    fn a_batch_is_compressed_once_for_all_peers_and_another_one_is_not_taken_for_it() {
        let encoder = FrameEncoder::new(Compression::Lz4);
        let (batch, other) = (words(0), words(1));
        let [first, second] =
            [(); 2].map(|()| encoder.encode(Kind::Message, Lane::Bulk, batch.clone()));
        assert!(first.body.len() < batch.len(), "the text is repetitive");
        assert_eq!(first.body.as_ptr(), second.body.as_ptr(), "one buffer, which is made once");
        assert_eq!(first.header, second.header);
        let third = encoder.encode(Kind::Message, Lane::Bulk, other.clone());
        assert_ne!(third.body, first.body);
        let same_bytes = encoder.encode(Kind::Message, Lane::Bulk, words(0));
        assert_eq!(same_bytes.body, first.body);
        let ping = encoder.encode(Kind::Ping, Lane::Bulk, batch.clone());
        assert_ne!(ping.header, first.header, "the kind is in the header");
        let urgent = encoder.encode(Kind::Message, Lane::Control, batch.clone());
        assert_eq!(urgent.body.as_ptr(), batch.as_ptr(), "the control lane is not compressed");
    }

    #[test]
    fn few_frames_are_kept_and_no_large_ones() {
        let encoder = FrameEncoder::new(Compression::Lz4);
        for n in 0..100 {
            encoder.encode(Kind::Message, Lane::Bulk, words(n));
        }
        assert_eq!(encoder.recent.lock().unwrap().len(), KEPT_MAX);
        let large = Bytes::from(vec![0; KEPT_BYTES_MAX + 1]);
        assert!(encoder.encode(Kind::Message, Lane::Bulk, large).body.len() < KEPT_BYTES_MAX);
        assert!(
            encoder.recent.lock().unwrap().iter().all(|(_, body, _)| body.len() < KEPT_BYTES_MAX)
        );
    }
}
