//! The rules under which an epoch is merged: settings and code that decide its outcome.
//!
//! Replicas with other settings or other code do not connect. But batches of an earlier program may
//! be in a log and not merged yet. So each batch contains the rules of its source, and a replica
//! merges no epoch with a batch that was created under other ones: it would get another result
//! than the replicas that have merged the epoch before. A stop of all nodes in order leaves no such
//! epoch.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;
use pangea_core::txn::CodeDigest;

use super::batch::{Batch, TxnRecord, Work};
use super::merge::MergeRule;
use crate::inputs::other_code;
use crate::replica::Replica;

/// The rules of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rule that decides which of the transactions that write one row commits.
    pub merge: MergeRule,
    /// The number of epochs for which deletions are remembered.
    pub horizon: u64,
    /// The code of the procedures.
    pub code: CodeDigest,
}

impl Rules {
    /// Appends the rules to `out`. [`Rules::decode`] is the inverse.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.horizon << 1 | u64::from(self.merge == MergeRule::Claims));
        out.put_u64(self.code.0);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let tagged = from.varint("rules")?;
        let merge = if tagged & 1 == 1 { MergeRule::Claims } else { MergeRule::Greedy };
        let code = CodeDigest(from.u64("rules")?);
        Ok(Self { merge, horizon: tagged >> 1, code })
    }

    /// Whether a replica with these rules can merge a batch: its outcome depends on the settings if
    /// it has transactions, and on the code if programs are to be run.
    pub(super) fn allow(&self, batch: &Batch) -> bool {
        let Self { merge, horizon, code } = batch.rules;
        let is_run = |record: &TxnRecord| matches!(record.work, Work::InOrder { .. });
        let are_settings_same = (merge, horizon) == (self.merge, self.horizon);
        (are_settings_same || batch.records.is_empty())
            && (code == self.code || !batch.records.iter().any(is_run))
    }

    /// Why a replica with these rules can't merge an epoch that was created under `other` ones, and
    /// what the operator can do.
    pub(super) fn refuses(
        &self,
        replica: &Replica,
        epoch: SnapshotVersion,
        other: &Self,
    ) -> Option<String> {
        if self.code != other.code {
            return Some(other_code(replica, epoch, (other.code, self.code)));
        }
        (self != other).then(|| {
            format!(
                "epoch {} was created under settings that differ from this node's, and must be \
                 merged under those: merge = {:?}, and horizon_ms divided by epoch_ms = {}. Start \
                 all nodes with these settings, and stop them in order (SIGTERM) before you change \
                 the settings",
                epoch.0, other.merge, other.horizon
            )
        })
    }
}
