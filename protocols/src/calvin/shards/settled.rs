//! The limit of what a node retains for the replica of its region, while that is not a member of
//! its group.
//!
//! Slices, rows and outcomes are retained until all replicas of the receiver's shard have persisted
//! them. A replica that is away for long is removed from its group, and then only the members
//! count. The messages after that are retained for it as long as cuts are, and up to
//! `behind_bytes`. A replica that was away for longer gets them from a replica of another region,
//! or a checkpoint.

use std::collections::{BTreeMap, VecDeque};

use pangea_core::ids::SnapshotVersion;

use super::Outbound;

/// The epochs whose messages all members of a group have persisted. Those that are retained are
/// for the replica of the region, which may not be a member at the moment.
#[derive(Default)]
pub(in super::super) struct Settled {
    /// The last of them.
    upto: SnapshotVersion,
    /// Those with retained messages, and their size in bytes.
    epochs: VecDeque<(SnapshotVersion, u64)>,
    /// The total size in bytes.
    bytes: u64,
}

impl Settled {
    pub(super) fn drop_upto(&mut self, upto: SnapshotVersion) {
        while let Some((_, bytes)) = self.epochs.pop_front_if(|(epoch, _)| *epoch <= upto) {
            self.bytes -= bytes;
        }
    }
}

impl Outbound {
    /// All members of the group have persisted the messages up to `upto`. Returns the last epoch
    /// whose messages are no longer retained for the replica of the region: it may be this number
    /// of epochs and bytes behind.
    pub(super) fn settle(
        &mut self,
        upto: SnapshotVersion,
        (epochs_max, bytes_max): (u64, u64),
    ) -> SnapshotVersion {
        let first = self.settled.upto.max(self.dropped).next();
        if first <= upto {
            let slices = self.slices.range(first..=upto);
            let mut sizes: BTreeMap<SnapshotVersion, u64> =
                slices.map(|(epoch, slice)| (*epoch, slice.bytes().len() as u64)).collect();
            for (epoch, results) in self.results.range(first..=upto) {
                let bytes = results.iter().map(|it| it.len() as u64).sum::<u64>();
                *sizes.entry(*epoch).or_default() += bytes;
            }
            self.settled.bytes += sizes.values().sum::<u64>();
            self.settled.epochs.extend(sizes);
            self.settled.upto = upto;
        }
        let mut last = SnapshotVersion(upto.0.saturating_sub(epochs_max));
        let mut bytes = self.settled.bytes;
        for (epoch, of_epoch) in &self.settled.epochs {
            if bytes <= bytes_max {
                break;
            }
            bytes -= of_epoch;
            last = last.max(*epoch);
        }
        last
    }

    /// Counts the settled epochs anew: older ones are retained again.
    pub(super) fn unsettle(&mut self) {
        self.settled = Settled::default();
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::TxnId;

    use super::super::remote_results::{RemoteResult, RemoteResults};
    use super::super::slice::Lineage;
    use super::super::slice::tests::slice;
    use super::*;
    use pangea_core::exec::ordered::ShardOutcome;
    use pangea_core::ids::NodeId;

    /// Epochs with a slice, and an outcome of this size.
    fn outbound(epochs: std::ops::RangeInclusive<u64>, len: usize) -> Outbound {
        let mut outbound = Outbound::default();
        for epoch in epochs.map(SnapshotVersion) {
            outbound.slices.insert(epoch, slice());
            let outcome = ShardOutcome::Ran(Ok(vec![0; len]));
            let result = RemoteResult::Outcome(TxnId::new(NodeId(1), 1), outcome);
            let results = RemoteResults::new((epoch, Lineage(1)), &[result]);
            outbound.results.insert(epoch, vec![results]);
        }
        outbound
    }

    /// B7 of the audit: what a node retained for a lost replica of its region was limited to 32,768
    /// epochs and to no bytes, some gigabytes in minutes.
    #[test]
    fn what_is_retained_for_a_replica_that_is_away_is_limited_in_bytes() {
        let mut outbound = outbound(1..=100, 1_000);
        let epoch = |number| SnapshotVersion(number);
        let of_epoch =
            outbound.results[&epoch(1)][0].len() + outbound.slices[&epoch(1)].bytes().len();
        let ten = 10 * of_epoch as u64;
        assert_eq!(outbound.settle(epoch(9), (1_000, ten)), epoch(0), "all may be retained");
        assert_eq!(outbound.settle(epoch(60), (1_000, ten)), epoch(50));
        assert_eq!(outbound.settle(epoch(60), (1_000, u64::MAX)), epoch(0));
        assert_eq!(outbound.settle(epoch(60), (5, u64::MAX)), epoch(55), "the limit in epochs");
        outbound.settled.drop_upto(epoch(55));
        outbound.dropped = epoch(55);
        assert_eq!(outbound.settle(epoch(60), (1_000, ten)), epoch(0), "five are left");
        assert_eq!(outbound.settle(epoch(70), (1_000, ten)), epoch(60));
        outbound.settled.drop_upto(epoch(100));
        assert_eq!(outbound.settled.bytes, 0);
    }

    /// Epochs that a peer hands on with a checkpoint count, too.
    #[test]
    fn epochs_that_are_retained_again_are_counted() {
        let mut outbound = outbound(1..=10, 1_000);
        outbound.settle(SnapshotVersion(10), (1_000, u64::MAX));
        let before = outbound.settled.bytes;
        outbound.unsettle();
        outbound.settle(SnapshotVersion(10), (1_000, u64::MAX));
        assert_eq!(outbound.settled.bytes, before);
    }
}
