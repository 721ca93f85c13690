//! Rows and outcomes that one shard sends to another: rows for the transactions that run there
//! (§3.2, phase 3), and outcomes of those that were sequenced there and ran elsewhere.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::ordered::{RemoteReads, ShardOutcome};
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::txn::Write;

use super::slice::Lineage;
use crate::streams::number;

/// The rows or the outcome of one transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum RemoteResult {
    /// The sender's rows for a transaction.
    Reads(TxnId, RemoteReads),
    /// The outcome of a transaction.
    Outcome(TxnId, ShardOutcome),
}

/// Rows and outcomes of an epoch, in one message.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteResults {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// The lineage of the epoch.
    pub line: Lineage,
    bytes: Bytes,
}

mod what {
    pub const PART: u8 = 0;
    pub const COMMITTED: u8 = 1;
    pub const ABORTED: u8 = 2;
    pub const LEFT: u8 = 3;
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

impl RemoteResult {
    /// The approximate encoded size in bytes.
    pub(in super::super) fn weight(&self) -> usize {
        const HEAD: usize = 24;
        HEAD + match self {
            Self::Reads(_, RemoteReads::Rows(rows)) => {
                let value = |row: &Write| row.value.as_ref().map_or(0, |value| value.len());
                rows.iter().map(|row| HEAD + row.key.len() + value(row)).sum()
            }
            Self::Outcome(_, ShardOutcome::Ran(Ok(result))) => result.len(),
            Self::Outcome(_, ShardOutcome::Ran(Err(abort))) => abort.text_bytes(),
            Self::Reads(_, RemoteReads::Certified(_) | RemoteReads::TooLarge(_))
            | Self::Outcome(..) => 0,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut head = |what: u8, txn: TxnId| {
            out.put_u8(what);
            out.put_u64(txn.to_bits());
        };
        match self {
            Self::Reads(txn, part) => {
                head(what::PART, *txn);
                part.encode(out);
            }
            Self::Outcome(txn, ShardOutcome::Ran(Ok(result))) => {
                head(what::COMMITTED, *txn);
                out.put_bytes(result);
            }
            Self::Outcome(txn, ShardOutcome::Ran(Err(abort))) => {
                head(what::ABORTED, *txn);
                let abort = postcard::to_stdvec(abort).expect("an abort can be encoded");
                out.put_bytes(&abort);
            }
            Self::Outcome(txn, ShardOutcome::FootprintViolated | ShardOutcome::Served) => {
                head(what::LEFT, *txn)
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let what = from.u8(WHAT)?;
        let txn = TxnId::from_bits(from.u64(WHAT)?);
        Ok(match what {
            what::PART => Self::Reads(txn, RemoteReads::decode(from)?),
            what::COMMITTED => {
                Self::Outcome(txn, ShardOutcome::Ran(Ok(from.bytes(WHAT)?.to_vec())))
            }
            what::ABORTED => {
                let abort = postcard::from_bytes(from.bytes(WHAT)?);
                let abort = abort.map_err(|_| DecodeError::new(WHAT))?;
                Self::Outcome(txn, ShardOutcome::Ran(Err(abort)))
            }
            what::LEFT => Self::Outcome(txn, ShardOutcome::FootprintViolated),
            _ => return Err(DecodeError::new(WHAT)),
        })
    }
}
