//! Epochs that can't be applied, and how an operator gets past one.
//!
//! All replicas apply the same epochs, so a bug of this program that one epoch triggers stops every
//! replica at that epoch, and again after every restart. The replica then stops with a message that
//! names the epoch. The setting `skip_epochs` aborts all transactions of an epoch instead of
//! running them. A replica that fails alone, because of its memory or disk, must not skip the
//! epoch: it would differ from the others.
//!
//! The operator may have listed another epoch by mistake, whose transactions were acknowledged.
//! Each listed epoch that a replica meets is therefore reported ([`ListedEpoch`]).
//!
//! Replicas with different lists do not connect, because the settings of a cluster must be the same
//! on all nodes: all nodes are stopped, all get the list, and all are started. An epoch stays in
//! the list until every node has skipped it.
//!
//! A restart may have to apply the epoch again, from inputs that do not say that it was skipped.
//! Therefore a replica logs the number of an epoch before it skips it:
//!
//! ```text
//!   the cut of a listed epoch is known --> SKIPPED is logged --> it is durable
//!                                      --> the epoch begins: its transactions are aborted
//!   restart, with or without the list  --> the log has SKIPPED: they are aborted again
//! ```
//!
//! Neither the epoch nor a later one begins before the record is durable, so that no answer depends
//! on a skip that a crash undoes. A restart that skips an epoch of its log, because it was listed
//! after it had run, can't wait: its peers may have forgotten that epoch. It logs the number, and
//! begins no further epochs before that is durable.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use pangea_core::codec::{Reader, Writer};
use pangea_core::exec::ordered::Finished;
use pangea_core::ids::{LogPosition, SnapshotVersion};
use pangea_core::protocol::{Cx, ListedEpoch, ListedFate, Protocol};
use pangea_core::txn::{Abort, SqlState};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Host, Inputs};
use crate::replica::{INTACT, Replica, kind};

/// The maximum number of epochs that are skipped at a time. Each is a bug that was met.
const SKIPPED_MAX: usize = 16;

/// The setting `skip_epochs`: epochs whose transactions are all aborted, in order. Zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedEpochs([u64; SKIPPED_MAX]);

impl SkippedEpochs {
    /// A list of epochs.
    ///
    /// # Errors
    /// If there are too many of them, or one is zero.
    pub fn new(epochs: &[u64]) -> Result<Self, String> {
        if epochs.len() > SKIPPED_MAX {
            return Err(format!("must be at most {SKIPPED_MAX} epochs"));
        }
        if epochs.contains(&0) {
            return Err("must be numbers of epochs, from 1".to_owned());
        }
        let mut all = Self::default();
        all.0[..epochs.len()].copy_from_slice(epochs);
        // The same epochs in another order are the same setting.
        all.0.sort_unstable();
        Ok(all)
    }

    /// Whether no epoch is skipped.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether an epoch is skipped.
    pub fn contains(self, epoch: SnapshotVersion) -> bool {
        epoch > SnapshotVersion::ZERO && self.0.contains(&epoch.0)
    }
}

impl Serialize for SkippedEpochs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let epochs: Vec<u64> = self.0.into_iter().filter(|epoch| *epoch > 0).collect();
        epochs.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SkippedEpochs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&Vec::<u64>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The skipped epochs that the log names and the last checkpoint does not contain.
#[derive(Debug, Default)]
pub(crate) struct Skips {
    /// The record of each.
    logged: BTreeMap<SnapshotVersion, LogPosition>,
    /// The last record of this run.
    last: LogPosition,
}

impl Skips {
    /// Restores a record of the log.
    pub(crate) fn restore(&mut self, position: LogPosition, payload: &Bytes) {
        let epoch = Reader::new(payload).u64("skipped epoch").expect(INTACT);
        self.logged.insert(SnapshotVersion(epoch), position);
    }

    pub(crate) fn contains(&self, epoch: SnapshotVersion) -> bool {
        self.logged.contains_key(&epoch)
    }

    /// Logs that an epoch is skipped.
    pub(crate) fn log<P: Protocol>(
        &mut self,
        cx: &mut Cx<'_, P>,
        replica: &mut Replica,
        epoch: SnapshotVersion,
    ) {
        let mut record = Vec::new();
        record.put_u64(epoch.0);
        let position = replica.persist(cx, &kind::SKIPPED, record.into());
        self.logged.insert(epoch, position);
        self.last = position;
    }

    /// Whether all records of skipped epochs are durable.
    pub(crate) fn are_durable(&self, synced: LogPosition) -> bool {
        self.last <= synced
    }

    /// The first record that a checkpoint of this version does not replace.
    pub(crate) fn first_needed(&self, version: SnapshotVersion) -> Option<LogPosition> {
        self.logged.range((Excluded(version), Unbounded)).map(|(_, position)| *position).min()
    }

    /// Forgets the epochs that a durable checkpoint contains.
    pub(crate) fn forget(&mut self, checkpoint: SnapshotVersion) {
        self.logged.retain(|epoch, _| *epoch > checkpoint);
    }
}

/// The outcome of a transaction of a skipped epoch.
pub(crate) fn skipped(epoch: SnapshotVersion) -> Finished {
    let message = "the transaction was skipped by the operator";
    let abort = Abort::new(SqlState::OPERATOR_INTERVENTION, message).with_detail(format!(
        "It is in epoch {}, which was listed in skip_epochs on this node, and has no effect here.",
        epoch.0
    ));
    Finished { outcome: Err(abort), writes: Vec::new(), passes: 1 }
}

/// Does a part of the work of an epoch. Returns the text of a panic. Nothing of the work then gets
/// out: neither answers, nor the record that would replay the epoch.
pub(crate) fn attempt<P: Protocol>(
    cx: &mut Cx<'_, P>,
    work: impl FnOnce(&mut Cx<'_, P>),
) -> Result<(), String> {
    let before = cx.effects_so_far();
    // After a panic the replica stops, whatever state it is in.
    catch_unwind(AssertUnwindSafe(|| work(cx))).map_err(|panic| {
        cx.take_back(before);
        text_of(&*panic)
    })
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// The message with which a replica stops because the work of an epoch has failed.
pub(crate) fn failed(
    replica: &Replica,
    protocol: &str,
    epoch: SnapshotVersion,
    why: &str,
) -> String {
    format!(
        "node {} can't apply epoch {epoch}: {why} (this is a bug). Keep a copy of its data \
         directory for a report. If only this node has stopped, start it again, and replace it \
         if it stops here again: pangea start --config FILE --replace. If every node stops at \
         this epoch, and again when it is started, then go on without the transactions of this \
         epoch: stop all nodes, add {epoch} to the list skip_epochs in \
         the table [{protocol}] of every node's configuration, and start all nodes. All its \
         transactions are then aborted on all nodes",
        replica.node(replica.me).0,
        epoch = epoch.0,
    )
}

impl SkippedEpochs {
    /// The listed epochs that the checkpoint contains from which a replica has started.
    pub(crate) fn contained_in(self, checkpoint: SnapshotVersion) -> Vec<ListedEpoch> {
        let epochs = self.0.into_iter().map(SnapshotVersion);
        let contained = epochs.filter(|epoch| (SnapshotVersion(1)..=checkpoint).contains(epoch));
        let fate = ListedFate::Contained { checkpoint };
        contained.map(|epoch| ListedEpoch { epoch, fate }).collect()
    }
}

impl<H: Host> Inputs<H> {
    /// Logs that an epoch is skipped, if the operator has listed it.
    pub(crate) fn log_skip(&mut self, cx: &mut Cx<'_, H>, epoch: SnapshotVersion) {
        if self.settings.skipped.contains(epoch) && !self.skips.contains(epoch) {
            self.skips.log(cx, &mut self.replica, epoch);
        }
    }

    /// Whether the next epoch may begin: a restart would skip it and the ones before it, if this
    /// run does.
    pub(super) fn may_begin(&mut self, cx: &mut Cx<'_, H>, next: SnapshotVersion) -> bool {
        let is_decided = self.cut.waiting.front().is_some_and(|(epoch, _)| *epoch == next);
        let is_fixed = || H::last_early(self).is_some_and(|last| last >= next);
        if is_decided || is_fixed() {
            self.log_skip(cx, next);
        }
        self.skips.are_durable(self.streams.synced)
    }

    /// Whether an epoch is skipped: the operator has listed it, or had when an earlier run met it.
    pub(crate) fn is_skipped(&self, cx: &mut Cx<'_, H>, epoch: SnapshotVersion) -> bool {
        let is_skipped = self.settings.skipped.contains(epoch) || self.skips.contains(epoch);
        if is_skipped {
            cx.mark("inputs.epoch_skipped");
        }
        is_skipped
    }

    /// Adds an epoch to the `met` ones if the operator lists or listed it to be skipped.
    pub(crate) fn note_listed(
        &self,
        met: &mut Vec<ListedEpoch>,
        epoch: SnapshotVersion,
        fate: ListedFate,
    ) {
        // An unconfirmed epoch can run more than once.
        let is_known = met.iter().any(|listed| listed.epoch == epoch);
        let is_listed = self.settings.skipped.contains(epoch);
        let fate = match fate {
            ListedFate::Skipped { txns } if !is_listed => ListedFate::SkippedBefore { txns },
            fate => fate,
        };
        if (is_listed || self.skips.contains(epoch)) && !is_known {
            met.push(ListedEpoch { epoch, fate });
        }
    }

    /// The listed epochs that the checkpoint contains from which this replica has started.
    pub(crate) fn listed_in_checkpoint(&self) -> Vec<ListedEpoch> {
        self.settings.skipped.contained_in(self.checkpoints.last)
    }

    /// Stops the replica if the work of an epoch has failed.
    pub(crate) fn note_attempt(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
        attempt: Result<(), String>,
    ) {
        let Err(why) = attempt else { return };
        self.has_failed = true;
        cx.stop(failed(&self.replica, <H as Protocol>::NAME, epoch, &why));
    }

    /// The same for the work of several epochs of partitioned tables, from `first` to `last`. None
    /// of them can be skipped, because other shards may have applied their parts of it.
    pub(crate) fn note_attempt_of_shard(
        &mut self,
        cx: &mut Cx<'_, H>,
        (first, last): (SnapshotVersion, SnapshotVersion),
        attempt: Result<(), String>,
    ) {
        let Err(why) = attempt else { return };
        self.has_failed = true;
        let epochs = match first == last {
            true => format!("epoch {}", first.0),
            false => format!("one of the epochs {} to {}", first.0, last.0),
        };
        cx.stop(format!(
            "node {} can't apply {epochs}: {why} (this is a bug). If only this node has stopped, \
             start it again, and replace it if it stops here again: pangea start --config FILE \
             --replace. If every node of this shard stops there, the other shards wait for it, and \
             nothing that was acknowledged is lost: keep the data directories, report the bug, and \
             start the nodes with a mended release of this program, whose version of code must be \
             the same. skip_epochs can't be used: other shards may have applied their parts of the \
             transactions",
            self.node(self.replica.me).0,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_epochs_is_a_setting_whatever_its_order() {
        let list = |epochs: &[u64]| SkippedEpochs::new(epochs).expect("a list of epochs");
        assert_eq!(list(&[7, 3]), list(&[3, 7]));
        assert!(list(&[]).is_empty() && !list(&[3]).is_empty());
        assert!(list(&[7, 3]).contains(SnapshotVersion(7)));
        assert!(!list(&[7, 3]).contains(SnapshotVersion(4)));
        assert!(!list(&[7]).contains(SnapshotVersion::ZERO), "zero stands for no epoch");
        let bytes = postcard::to_stdvec(&list(&[7, 3])).unwrap();
        assert_eq!(bytes, [2, 3, 7], "a list of numbers");
        assert_eq!(postcard::from_bytes::<SkippedEpochs>(&bytes), Ok(list(&[3, 7])));
        assert!(SkippedEpochs::new(&[0]).is_err());
        assert!(SkippedEpochs::new(&[1; SKIPPED_MAX + 1]).is_err());
    }

    /// Asynchronous masters run epochs before they are confirmed, and take checkpoints of confirmed
    /// ones: a record can be older than the checkpoint before its epoch.
    #[test]
    fn a_record_is_kept_until_a_checkpoint_contains_its_epoch() {
        let mut skips = Skips::default();
        for (epoch, position) in [(7, 40), (9, 30)] {
            let record = Bytes::copy_from_slice(&u64::to_le_bytes(epoch));
            skips.restore(LogPosition(position), &record);
        }
        let first = |skips: &Skips, version| skips.first_needed(SnapshotVersion(version));
        assert_eq!(first(&skips, 6), Some(LogPosition(30)));
        assert_eq!(first(&skips, 7), Some(LogPosition(30)));
        assert_eq!(first(&skips, 9), None);
        skips.forget(SnapshotVersion(7));
        assert!(!skips.contains(SnapshotVersion(7)) && skips.contains(SnapshotVersion(9)));
    }
}
