//! Upgrades of partitioned tables: the program that runs an epoch.
//!
//! Each cut contains a digest of the code under which it was proposed. The groups propose their
//! cuts of an epoch independently, so after a crash of the cluster and a start with another program
//! the cuts of one epoch may be of two programs:
//!
//! ```text
//!              group 0       group 1
//!   epoch n    old           old          all nodes have all slices:
//!                                           the old program runs it, others refuse it
//!    - - - - - - - - - - - - - - - - - -  kill, and start with the new program
//!   epoch n+1  old           new          no program runs it: its requests are sequenced again
//!   epoch n+2  new           new          the new program runs it
//! ```
//!
//! A slice therefore names the code of its cut, and a node decides nothing before it has the slices
//! of all shards for an epoch. Then
//!
//! - an epoch whose cuts are all of one program runs under that program, and is refused by others;
//! - an epoch whose cuts are of several programs runs no transaction, under any program. It ends at
//!   once, and each request that a client waits for is sequenced again at its source, as after a
//!   footprint violation.
//!
//! **All nodes decide the same,** because an epoch's slices are the same everywhere once they are
//! decided. If replication is asynchronous and a void slice is replaced, the epoch is rolled back
//! and decided again, as its lineage is another one.
//!
//! **Nothing that was acknowledged is lost.** A transaction runs only in an epoch of one program.
//! With asynchronous replication the cuts of an epoch that ran early are on the disks of their
//! masters, which propose them again under any program. A cut of another program takes the place of
//! one of them only at a failover, after which these epochs may end otherwise in any case
//! (`confirmation.rs`).
//!
//! **No group waits for ever.** A group whose cut is of another program sends its slices all the
//! same, and the others follow it with cuts of their own programs. Any epoch can thus be ended
//! either by all programs, or by the one program of all its cuts, with which the operator can start
//! all nodes. No group needs to know the programs of the others before it proposes, so neither an
//! upgrade nor a restart waits for a node of another shard.
//!
//! **After a stop in order no epoch is left.** The coordinator of each group tells the others that
//! it begins no more epochs, and they end with the same one (`inputs/stop.rs`).

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::txn::CodeDigest;

use super::super::recovery::ShardEpochRecord;
use super::super::{Calvin, Cut, Message};
use super::slice::CutId;
use super::{ShardOutcome, Shards};
use crate::inputs::Rules as _;

/// The program that runs an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EpochCode {
    /// All cuts were proposed under this node's code.
    Own,
    /// All cuts were proposed under the same other code.
    Other(CodeDigest),
    /// The cuts were proposed under different codes: the epoch runs no transaction.
    Mixed,
}

impl EpochCode {
    fn of(own: CodeDigest, cuts: impl IntoIterator<Item = CutId>) -> Self {
        let codes: Vec<CodeDigest> = cuts.into_iter().map(|cut| cut.code).collect();
        match codes.iter().all(|code| *code == codes[0]) {
            false => Self::Mixed,
            true if codes[0] == own => Self::Own,
            true => Self::Other(codes[0]),
        }
    }
}

impl Calvin {
    /// The coordinator tells the nodes of other shards whether its group begins no more epochs;
    /// with `is_news` only if that has changed.
    pub(in super::super) fn send_sealed(&mut self, cx: &mut Cx<'_, Self>, is_news: bool) {
        let (sealed, last) = (self.state.inputs.sealed_at(), self.state.inputs.last_epoch());
        let Some(shards) = &mut self.state.shards else { return };
        let before = std::mem::replace(&mut shards.sealed_sent, sealed);
        if sealed.or(before).is_none() || is_news && sealed == before {
            return;
        }
        let message = Message::Sealed { at: sealed.unwrap_or(last), is_sealed: sealed.is_some() };
        shards.up.iter().for_each(|node| cx.send(*node, message.clone()));
    }

    pub(in super::super) fn on_sealed(&mut self, from: NodeId, at: SnapshotVersion, is_so: bool) {
        let shards = self.shards();
        let reports = &mut shards.stream(shards.shard_of(from)).reports;
        match is_so {
            true => reports.sealed.insert(from, at),
            false => reports.sealed.remove(&from),
        };
    }

    /// The program that runs an epoch, if the slices of all shards have arrived.
    pub(super) fn code_of_epoch(&self, epoch: SnapshotVersion) -> Option<EpochCode> {
        let shards = self.state.shards.as_ref()?;
        let of_others = shards.streams.values().map(|stream| stream.inbound.slices.get(&epoch));
        let slices: Option<Vec<_>> =
            of_others.chain([Some(&shards.own.get(&epoch)?.slice)]).collect();
        let own = self.state.inputs.settings.rules.code();
        Some(EpochCode::of(own, slices?.into_iter().map(|slice| slice.cut)))
    }

    /// Whether this node can replay an epoch in its log. If not, it refuses the epoch.
    pub(super) fn may_replay(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (epoch, cut): (SnapshotVersion, &Cut),
        of_shards: &ShardEpochRecord,
    ) -> bool {
        let of_others = of_shards.received_slices.iter().map(|slice| slice.cut);
        let own = self.state.inputs.settings.rules.code();
        match EpochCode::of(own, of_others.chain([CutId::new(cut)])) {
            EpochCode::Other(code) => {
                self.state.inputs.refuse(cx, epoch, code);
                false
            }
            EpochCode::Own | EpochCode::Mixed => true,
        }
    }
}

impl Shards {
    /// Passes over the transactions of an epoch whose cuts are of several programs.
    pub(super) fn pass_over(&mut self, epoch: SnapshotVersion) {
        self.scheduled_upto = epoch;
        for txn in self.own[&epoch].local_requests.clone() {
            if self.local_requests.contains_key(&txn) {
                self.results.insert(txn, ShardOutcome::FootprintViolated);
            }
        }
    }
}
