//! The rules under which an epoch is merged: settings and code that decide its outcome.
//!
//! Replicas with other settings or other code do not connect. But batches of an earlier program may
//! be in a log and not merged yet. So each batch contains the rules of its source, and a replica
//! merges no epoch with a batch that was created under other ones: it would get another result
//! than the replicas that have merged the epoch before. A stop of all nodes in order leaves no such
//! epoch.
//!
//! If nodes were killed in the middle of an upgrade, one epoch may have batches of two programs.
//! No replica could run all of them, so such an epoch has no effect under any program
//! (`are_mixed`), and clients that still wait are served by a later one.

use std::borrow::Borrow;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;
use pangea_core::txn::{Abort, CodeDigest, SqlState};

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

    /// Whether a replica with these rules can merge a batch.
    pub(super) fn allow(&self, batch: &Batch) -> bool {
        let (settings, code) = binding(batch);
        settings.is_none_or(|it| it == (self.merge, self.horizon))
            && code.is_none_or(|it| it == self.code)
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
            return Some(other_code(replica, ("epoch", epoch), (other.code, self.code)));
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

/// Whether an epoch has batches that no replica can merge together, because they were created under
/// different rules. It has no effect then.
pub(super) fn are_mixed(batches: &[impl Borrow<Batch>]) -> bool {
    let settings = batches.iter().filter_map(|batch| binding(batch.borrow()).0);
    let code = batches.iter().filter_map(|batch| binding(batch.borrow()).1);
    !are_equal(settings) || !are_equal(code)
}

/// The epoch up to which an epoch with these batches forgets deletions: that of the shortest
/// horizon of their sources. It must not depend on the settings of the replica that merges them.
pub(super) fn horizon_of(
    epoch: SnapshotVersion,
    batches: &[impl Borrow<Batch>],
) -> SnapshotVersion {
    let settings = batches.iter().filter_map(|batch| binding(batch.borrow()).0);
    let epochs = settings.map(|(_, horizon)| horizon).min();
    SnapshotVersion(epochs.map_or(0, |epochs| epoch.0.saturating_sub(epochs)))
}

fn are_equal<T: PartialEq>(mut all: impl Iterator<Item = T>) -> bool {
    let first = all.next();
    all.all(|it| Some(it) == first)
}

/// What the outcome of a batch depends on: on the settings if it has transactions, and on the code
/// if programs are to be run or rows are to be added to.
fn binding(batch: &Batch) -> (Option<(MergeRule, u64)>, Option<CodeDigest>) {
    let Rules { merge, horizon, code } = batch.rules;
    let is_run =
        |record: &TxnRecord| matches!(record.work, Work::InOrder { .. }) || record.work.has_adds();
    let settings = (!batch.records.is_empty()).then_some((merge, horizon));
    (settings, batch.records.iter().any(is_run).then_some(code))
}

/// The error of a transaction in an epoch of two programs.
pub(super) fn of_two_programs() -> Abort {
    let message = "could not serialize access: its epoch has transactions of two programs";
    Abort::new(SqlState::SERIALIZATION_FAILURE, message)
        .with_detail("Nodes were killed while the program or its settings were changed.")
        .with_hint("Run the transaction again.")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pangea_core::ids::{AdderId, NodeId, ProcedureId, TableId, TxnId};
    use pangea_core::key::Key;
    use pangea_core::txn::{Add, Program};

    use super::super::isolation::Checks;
    use super::super::rank::RankInputs;
    use super::super::views::ViewNumber;
    use super::*;
    use crate::streams::Bid;

    const EPOCH: SnapshotVersion = SnapshotVersion(5);

    fn batch(code: u64, horizon: u64, work: Option<Work>) -> Batch {
        let txn = TxnId::new(NodeId(0), 1);
        let inputs = RankInputs { txn, attempt: 0, start: EPOCH, offset_us: 0 };
        Batch {
            source: NodeId(0),
            bid: Bid(1),
            epoch: EPOCH,
            is_last: true,
            view: ViewNumber(1),
            base: None,
            rules: Rules { merge: MergeRule::Greedy, horizon, code: CodeDigest(code) },
            first_sequence: 1,
            records: work.into_iter().map(|work| TxnRecord { inputs, work }).collect(),
        }
    }

    fn writes() -> Option<Work> {
        Some(Work::Merge { base: SnapshotVersion(4), checks: Checks::default() })
    }

    fn runs() -> Option<Work> {
        let program = Program::Call { procedure: ProcedureId(1), args: Bytes::new() };
        Some(Work::InOrder { program, footprint: None })
    }

    fn adds() -> Option<Work> {
        let (adder, amount) = (AdderId::of("adder"), Bytes::new());
        let add = Add { table: TableId(1), key: Key::from(&b"k"[..]), adder, amount };
        let checks = Checks { adds: vec![add], ..Checks::default() };
        Some(Work::Merge { base: SnapshotVersion(4), checks })
    }

    #[test]
    fn only_what_the_outcome_depends_on_has_to_be_alike() {
        let own = Rules { merge: MergeRule::Greedy, horizon: 60, code: CodeDigest(1) };
        assert!(own.allow(&batch(1, 60, adds())) && !own.allow(&batch(2, 60, adds())));
        assert!(own.allow(&batch(1, 60, runs())) && own.allow(&batch(2, 60, writes())));
        assert!(own.allow(&batch(2, 61, None)), "it has no transactions");
        assert!(!own.allow(&batch(2, 60, runs())) && !own.allow(&batch(1, 61, writes())));
    }

    /// Drawn seed 64: nodes were killed in the middle of an upgrade, and no program could ever
    /// continue.
    #[test]
    fn an_epoch_of_two_programs_is_mixed_if_both_would_have_to_run() {
        assert!(are_mixed(&[batch(1, 60, runs()), batch(2, 60, writes()), batch(2, 60, runs())]));
        assert!(are_mixed(&[batch(1, 60, writes()), batch(1, 61, writes())]));
        assert!(!are_mixed(&[batch(1, 60, runs()), batch(2, 60, writes()), batch(3, 61, None)]));
        assert!(
            !are_mixed(&[batch(2, 60, runs()), batch(2, 60, runs())])
                && !are_mixed(&[] as &[Batch])
        );
    }
}
