//! Rows and outcomes that one shard sends to another: rows for the transactions that run there
//! (§3.2, phase 3), and outcomes of those that were sequenced there and ran elsewhere.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;

use super::slice::Lineage;
pub use crate::remote_results::RemoteResult;
use crate::streams::number;

/// Rows and outcomes of an epoch, in one message.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteResults {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// The lineage of the epoch.
    pub line: Lineage,
    bytes: Bytes,
}

const WHAT: &str = "items";

impl RemoteResults {
    /// Encodes these rows and outcomes.
    pub fn new((epoch, line): (SnapshotVersion, Lineage), results: &[RemoteResult]) -> Self {
        let mut out = Vec::new();
        results.iter().for_each(|item| item.encode(&mut out));
        Self { epoch, line, bytes: out.into() }
    }

    /// The approximate size in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends them to `out`. [`RemoteResults::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.epoch.0);
        out.put_u64(self.line.0);
        out.put_bytes(&self.bytes);
    }

    /// Decodes the bytes that [`RemoteResults::encode`] wrote.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>, bytes: &Bytes) -> Result<Self, DecodeError> {
        let epoch = SnapshotVersion(number(from, WHAT)?);
        let line = Lineage(from.u64(WHAT)?);
        let results = Self { epoch, line, bytes: bytes.slice_ref(from.bytes(WHAT)?) };
        results.read().map(|_| results)
    }

    /// The decoded rows and outcomes.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed, which those from [`RemoteResults::decode`] are
    /// not.
    pub fn read(&self) -> Result<Vec<RemoteResult>, DecodeError> {
        let from = &mut Reader::new(&self.bytes);
        let mut results = Vec::new();
        while !from.is_empty() {
            results.push(RemoteResult::decode(from)?);
        }
        Ok(results)
    }
}
