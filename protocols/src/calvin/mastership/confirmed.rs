//! Confirms fixed cuts or marks them void.

use bytes::Bytes;
use pangea_core::ids::{ShardId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::super::{Calvin, Cut};
use super::Early;
use crate::agreement::Term;
use crate::inputs::Inputs;
use crate::replica::kind;
use crate::streams::Heads;

impl Inputs<Calvin> {
    /// Compares a decided cut with the fixed one of the same number, if there is one. Returns true
    /// if they are the same: then no more is to be done.
    pub(crate) fn confirm_or_discard(
        &mut self,
        cx: &mut Cx<'_, Calvin>,
        epoch: SnapshotVersion,
        cut: &Cut,
    ) -> bool {
        self.discard_held(cx, epoch, cut);
        let early = &mut self.extension.mastery.early;
        let Some(fixed) = early.iter_mut().find(|early| early.epoch == epoch) else { return false };
        let is_same = fixed.cut.name == cut.name;
        if mutate!(MasterStays: is_same => is_same || fixed.is_begun) {
            fixed.is_decided = true;
            return true;
        }
        self.discard_from(cx, epoch);
        false
    }

    /// Discards the fixed cuts of another program from an epoch on, if another cut is decided for
    /// that epoch. A restart would refuse them for nothing, and the earlier program would run them.
    fn discard_held(&mut self, cx: &mut Cx<'_, Calvin>, epoch: SnapshotVersion, cut: &Cut) {
        let held = &mut self.extension.mastery.held;
        if held.iter().any(|held| held.epoch == epoch && held.name != cut.name) {
            let kept = held.partition_point(|held| held.epoch < epoch);
            let void = held.split_off(kept).len();
            self.persist_given_up(cx, epoch, void);
        }
    }

    /// Logs that this number of cuts that were fixed from an epoch on are void.
    fn persist_given_up(&mut self, cx: &mut Cx<'_, Calvin>, from: SnapshotVersion, void: usize) {
        cx.mark("calvin.early_given_up");
        self.counters.epochs_given_up += void as u64;
        let record = Bytes::copy_from_slice(&from.0.to_le_bytes());
        self.replica.persist(cx, &kind::GIVEN_UP, record);
    }

    /// Discards the cuts that were fixed from an epoch on: they are void.
    pub(crate) fn discard_from(&mut self, cx: &mut Cx<'_, Calvin>, from: SnapshotVersion) {
        let kept = self.extension.mastery.early.partition_point(|early| early.epoch < from);
        let void = self.extension.mastery.early.split_off(kept);
        // This replica may still lead because it has received no newer term. It must not continue
        // from its log.
        self.extension.mastery.opened = Term::default();
        if void.is_empty() {
            return;
        }
        self.persist_given_up(cx, from, void.len());
        if void.iter().any(|early| early.is_begun) {
            let void_from = &mut self.extension.mastery.void_from;
            *void_from = Some(void_from.map_or(from, |before| before.min(from)));
        }
    }

    /// The first epoch whose cut became void after it was returned to the protocol, if any since
    /// the last call.
    pub(crate) fn take_void(&mut self) -> Option<SnapshotVersion> {
        self.extension.mastery.void_from.take()
    }

    /// Rolls the store back to this epoch. Later epochs run again, possibly with other cuts.
    pub(crate) fn retreat(&mut self, cx: &mut Cx<'_, Calvin>, upto: SnapshotVersion) {
        assert!(
            upto <= self.cut.applied && upto >= self.cut.confirmed.epoch,
            "only unconfirmed epochs are rolled back"
        );
        cx.mark("calvin.retreated");
        cx.store.retreat_to(upto);
        self.cut.applied = upto;
        self.cut.heads.clone_from(&self.cut.confirmed.heads);
        self.cut.is_member.clone_from(&self.cut.confirmed.is_member);
        let mut master_term = self.extension.mastery.confirmed_term;
        for cut in self.cuts_upto(upto) {
            self.raise_heads(&cut);
            self.apply_membership(cx, &cut);
            master_term = cut.master_term.map(|it| (cut.name.proposer, it)).or(master_term);
        }
        if let Some((proposer, master_term)) = master_term {
            // The next epoch may have the same master term as this one, and would not be reported.
            cx.master_term(
                self.shard(),
                upto,
                Some((self.node(proposer), master_term.first)),
                false,
            );
        }
        self.extension.mastery.applied_term = master_term;
    }

    /// The unconfirmed cuts up to an epoch.
    fn cuts_upto(&self, upto: SnapshotVersion) -> Vec<Cut> {
        let early = self.extension.mastery.early.iter().map(|early| (early.epoch, &early.cut));
        let all = early.chain(self.cut.waiting.iter().map(|(epoch, cut)| (*epoch, cut)));
        all.filter(|(epoch, _)| *epoch <= upto).map(|(_, cut)| cut.clone()).collect()
    }

    /// The log heads after the cuts up to an epoch, which are all known here.
    pub(crate) fn heads_at(&self, upto: SnapshotVersion) -> Heads {
        let mut heads = self.cut.confirmed.heads.clone();
        for cut in self.cuts_upto(upto) {
            heads.iter_mut().zip(&cut.heads).for_each(|(head, of)| *head = (*head).max(*of));
        }
        heads
    }

    /// The last epoch before the first one that is fixed and not decided; `None` if all are
    /// decided.
    pub(crate) fn decided_before(&self) -> Option<SnapshotVersion> {
        let first = self.extension.mastery.early.iter().find(|early| !early.is_decided);
        first.map(|early| SnapshotVersion(early.epoch.0 - 1))
    }

    /// Discards all undecided fixed cuts: this replica can't learn which cuts were decided instead.
    pub(crate) fn discard_undecided(&mut self, cx: &mut Cx<'_, Calvin>) {
        self.extension.mastery.opened = Term::default();
        let from = self.extension.mastery.early.iter().find(|early| !early.is_decided);
        if let Some(from) = from.map(|early| early.epoch) {
            self.discard_from(cx, from);
        }
    }

    /// Drops the fixed cuts up to a version that a checkpoint covers, including decided cuts that
    /// wait for batches.
    pub(crate) fn skip_early(&mut self, upto: SnapshotVersion) {
        self.extension.mastery.early.retain(|early| early.epoch > upto);
    }

    /// Reports the master term of an applied epoch if it is new.
    pub(crate) fn note_master_term(
        &mut self,
        cx: &mut Cx<'_, Calvin>,
        epoch: SnapshotVersion,
        cut: &Cut,
    ) {
        let Some(master_term) = cut.master_term.map(|master_term| (cut.name.proposer, master_term))
        else {
            return;
        };
        if self.extension.mastery.applied_term.replace(master_term) != Some(master_term) {
            let said = Some((self.node(master_term.0), master_term.1.first));
            cx.master_term(self.shard(), epoch, said, false);
        }
    }

    /// The shard of this log.
    fn shard(&self) -> ShardId {
        self.replica.topology.nodes[self.replica.me.index()].shard
    }

    /// Forgets the applied master term, because the store now has a version installed from a peer.
    pub(crate) fn forget_master_term(&mut self, cx: &mut Cx<'_, Calvin>) {
        self.extension.mastery.applied_term = None;
        if self.is_asynchronous() {
            cx.master_term(self.shard(), self.cut.applied, None, false);
        }
    }

    /// Confirms and returns the next epoch that ran early, if it is decided now.
    pub(crate) fn take_confirmed(
        &mut self,
        cx: &mut Cx<'_, Calvin>,
    ) -> Option<(SnapshotVersion, Cut)> {
        let applied = self.cut.applied;
        let is_run = |early: &&Early| early.is_decided && early.epoch <= applied;
        let Early { epoch, cut, .. } = self.extension.mastery.early.front().filter(is_run)?;
        let (epoch, cut) = (*epoch, cut.clone());
        self.confirm(cx, epoch, &cut);
        Some((epoch, cut))
    }

    /// Drops the early cut of an epoch that was confirmed, and reports its master term if it is
    /// new.
    pub(in crate::calvin) fn note_confirmed(
        &mut self,
        cx: &mut Cx<'_, Calvin>,
        epoch: SnapshotVersion,
        cut: &Cut,
    ) {
        let mastery = &mut self.extension.mastery;
        if mastery.early.pop_front_if(|early| early.epoch == epoch).is_some() {
            cx.mark("calvin.early_confirmed");
        }
        let master_term = cut.master_term.map(|master_term| (cut.name.proposer, master_term));
        let is_news = master_term.is_some() && mastery.confirmed_term != master_term;
        mastery.confirmed_term = master_term.or(mastery.confirmed_term);
        if let Some((proposer, master_term)) = master_term.filter(|_| is_news) {
            cx.master_term(
                self.shard(),
                epoch,
                Some((self.node(proposer), master_term.first)),
                true,
            );
        }
    }
}
