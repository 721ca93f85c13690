//! Messages from one shard to another for a transaction: rows, if it runs there (Calvin §3.2, phase
//! 3), or the outcome, if a client waits for it there.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::ordered::{RemoteReads, ShardOutcome};
use pangea_core::ids::TxnId;
use pangea_core::txn::Write;

/// The rows or the outcome of one transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum RemoteResult {
    /// The sender's rows for a transaction.
    Reads(TxnId, RemoteReads),
    /// The outcome of a transaction.
    Outcome(TxnId, ShardOutcome),
}

mod what {
    pub const PART: u8 = 0;
    pub const COMMITTED: u8 = 1;
    pub const ABORTED: u8 = 2;
    pub const LEFT: u8 = 3;
    pub const VOID: u8 = 4;
}

const WHAT: &str = "items";

impl RemoteResult {
    /// The approximate encoded size in bytes.
    pub(crate) fn weight(&self) -> usize {
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

    /// Appends the encoding to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
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
            Self::Outcome(txn, ShardOutcome::Void) => head(what::VOID, *txn),
        }
    }

    /// Decodes the bytes that [`RemoteResult::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
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
            what::VOID => Self::Outcome(txn, ShardOutcome::Void),
            _ => return Err(DecodeError::new(WHAT)),
        })
    }
}
