//! The log record of an epoch's decisions (§4, "Fault Tolerance").
//!
//! ```text
//!   +-------+-------+-----------+
//!   | epoch | cut   | decisions |
//!   | u64   |       |           |
//!   +-------+-------+-----------+
//! ```
//!
//! A transaction is logged to be executed again if `rerun_on_restart` is on. That is always done
//! for a bulk transaction, because its arguments are far smaller than its writes.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;

use super::Cut;
use crate::decisions::Decisions;

/// The decisions on an epoch. Borrows the write sets while it is encoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EpochRecord<'a> {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// The cut that it applied.
    pub cut: Cut,
    /// The decisions.
    pub decisions: Decisions<'a>,
}

impl EpochRecord<'_> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.epoch.0);
        let cut = postcard::to_stdvec(&self.cut).expect("a cut can be encoded");
        out.put_bytes(&cut);
        self.decisions.encode(out);
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "epoch record";
        let from = &mut Reader::new(bytes);
        let epoch = SnapshotVersion(from.u64(WHAT)?);
        let cut = from.bytes(WHAT)?;
        let cut = postcard::from_bytes(cut).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self { epoch, cut, decisions: Decisions::decode(from)? })
    }
}
