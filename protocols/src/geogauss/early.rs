//! Early epochs: with a weak acknowledgement an epoch is merged, published and answered before each
//! of its batches is on f + 1 disks (§5.2).
//!
//! ```text
//!      confirmed                    applied
//!   ------|-- early -- early -- early --|-----> epochs
//!         | f + 1 have its batches      | all batches are here
//! ```
//!
//! An epoch is *confirmed* once it would have been merged without the setting. Only then is it
//! logged, compared with those of the peers, and part of checkpoints and progress reports, and only
//! then are transactions that have lost tried again. So a restart merges early epochs anew.
//!
//! A view may end a life before batches that an early epoch contains (`views.rs`). The members that
//! report on its seal name all that they have, so this concerns replicas that were removed
//! themselves, and those that were gone: nobody else has these batches. Such a replica rolls its
//! store back to the last early epoch whose batches all count, and merges what comes instead.
//! Each acknowledged transaction that is lost is reported ([`Cx::lost_commit`]), so that its client
//! can be told. Transactions that had read the rolled back epochs commit nowhere (`lineage.rs`).

use std::collections::VecDeque;

use bytes::Bytes;
use pangea_core::ids::{SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, ListedFate};
use pangea_core::txn::{Abort, Outcome, SqlState};

use super::GeoGauss;
use super::commit::Decision;
use super::lineage::Base;
use super::options::{Ack, Options};
use super::state::{Applied, Merged, State};
use crate::replica::kind;
use crate::streams::Heads;

/// The maximum number of early epochs: above it a replica waits for the disks of others.
const EARLY_MAX: usize = 256;

/// The last confirmed epoch, and the early ones after it.
pub(super) struct Early {
    pub confirmed: Applied,
    pub epochs: VecDeque<MergedEpoch>,
}

/// An epoch that is merged here.
pub(super) struct MergedEpoch {
    pub state: Merged,
    /// The record of its decisions.
    pub record: Bytes,
    /// The results of the transactions of this replica.
    pub own: Vec<(TxnId, Decision)>,
    /// The number of its transactions, if the operator has listed it to be skipped.
    pub skipped: Option<u64>,
}

impl Early {
    pub(super) fn new(node_count: usize, options: &Options) -> Option<Self> {
        let confirmed = Applied::new(node_count);
        let is_weak = options.ack != Ack::Replicated;
        is_weak.then_some(Self { confirmed, epochs: VecDeque::new() })
    }
}

impl State {
    /// The last confirmed epoch.
    pub(super) fn confirmed(&self) -> &Applied {
        self.early.as_ref().map_or(&self.applied, |early| &early.confirmed)
    }

    /// Whether some epoch is merged and not confirmed.
    pub(super) fn is_early(&self) -> bool {
        self.early.as_ref().is_some_and(|early| !early.epochs.is_empty())
    }

    /// The first epoch that is merged and not confirmed.
    pub(super) fn first_early(&self) -> Option<SnapshotVersion> {
        self.early.as_ref()?.epochs.front().map(|it| it.state.epoch)
    }

    /// The state was replaced by one that is confirmed.
    pub(super) fn confirm_applied(&mut self) {
        if let Some(early) = &mut self.early {
            early.confirmed = self.applied.clone();
            early.epochs.clear();
        }
    }

    /// What the transactions of a batch may have read that can be rolled back.
    pub(super) fn unconfirmed_base(&self) -> Option<Base> {
        let Applied { epoch, lineages, .. } = &self.applied;
        let base = Base { epoch: *epoch, lineage: lineages.last };
        self.is_early().then_some(base)
    }

    /// Whether each batch up to these heads is on f + 1 disks.
    fn are_available(&self, heads: &Heads) -> bool {
        heads.iter().zip(&self.streams.available).all(|(head, it)| head <= it)
    }

    /// Whether an epoch whose batches are all here may be merged: see [`Ack`].
    pub(super) fn is_safe(&self, heads: &Heads) -> bool {
        let me = self.me().index();
        // A restart of this replica must not lose what it has answered.
        let is_own_durable = heads[me] <= self.streams.durable[me][me];
        let count = self.early.as_ref().map_or(0, |early| early.epochs.len());
        match self.options.ack {
            Ack::Replicated => {
                mutate!(MergedBeforeAvailable: self.are_available(heads) => true)
            }
            Ack::Merged => is_own_durable && count < EARLY_MAX,
            Ack::Cached => {
                let is_kept = self.is_kept(heads) && is_own_durable && count < EARLY_MAX;
                is_kept || self.are_available(heads)
            }
        }
    }
}

impl GeoGauss {
    /// Keeps an epoch that was merged until it is confirmed.
    pub(super) fn keep_early(&mut self, cx: &mut Cx<'_, Self>, merged: MergedEpoch) {
        cx.mark("geogauss.merged_early");
        cx.lineage(merged.state.epoch, self.state.applied.lineages.last, false);
        self.answer_early(cx, &merged);
        mutate!(LoggedEarly: () => self.state.log_record(cx, &merged));
        let early = self.state.early.as_mut().expect("epochs are kept until they are confirmed");
        early.epochs.push_back(merged);
    }

    /// Confirms the early epochs whose batches are on f + 1 disks by now.
    pub(super) fn confirm_ready(&mut self, cx: &mut Cx<'_, Self>) {
        loop {
            let next = self.state.early.as_ref().and_then(|early| early.epochs.front());
            let is_ready = next.is_some_and(|it| self.state.are_available(&it.state.heads));
            let Some(early) = self.state.early.as_mut().filter(|_| is_ready) else { return };
            let Some(merged) = early.epochs.pop_front() else { return };
            early.confirmed.advance(merged.state.clone());
            let lineage = early.confirmed.lineages.last;
            cx.lineage(merged.state.epoch, lineage, true);
            self.confirm(cx, merged);
        }
    }

    /// An epoch is confirmed: logs it, and answers the clients of this node.
    pub(super) fn confirm(&mut self, cx: &mut Cx<'_, Self>, merged: MergedEpoch) {
        let number = merged.state.epoch;
        let state = &mut self.state;
        mutate!(LoggedEarly: state.log_record(cx, &merged) => if state.early.is_none() {
            state.log_record(cx, &merged);
        });
        if let Some(txns) = merged.skipped {
            state.note_listed(number, ListedFate::Skipped { txns });
        }
        state.counters.epochs += 1;
        cx.mark("geogauss.epoch_merged");
        let why = state.digests.note_epoch(cx, &state.replica, number);
        self.stop_if_differing(cx, why);
        self.settle(cx, number, merged.own);
        self.state.reclaim(cx);
    }

    /// Answers the clients whose transactions have committed in an early epoch. The others wait for
    /// its confirmation: if they were tried again now, they could commit twice.
    fn answer_early(&mut self, cx: &mut Cx<'_, Self>, merged: &MergedEpoch) {
        let State { execution, counters, applied, .. } = &mut self.state;
        let lineage = applied.lineages.last;
        for (txn, decision) in &merged.own {
            let place = execution.in_flight.binary_search_by_key(txn, |it| it.txn);
            let Some(it) = place.ok().map(|at| &mut execution.in_flight[at]) else { continue };
            let result = match decision {
                Decision::Merged(_) => std::mem::take(&mut it.result),
                Decision::Ran(finished) => match &finished.outcome {
                    Ok(result) => result.clone(),
                    Err(_) => continue,
                },
                Decision::Lost(_) | Decision::Failed(_) => continue,
            };
            if it.answered.replace(lineage).is_some() {
                continue;
            }
            counters.txns_committed += 1;
            let outcome = Outcome::Committed { txn: *txn, version: merged.state.epoch, result };
            cx.reply(it.job.ticket, outcome);
        }
    }

    /// A transaction is lost whose client was told of its commit.
    pub(super) fn report_lost(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        cx.mark("geogauss.acknowledged_lost");
        self.state.counters.acknowledged_lost += 1;
        mutate!(LossUntold: cx.lost_commit(txn, true) => ());
    }

    /// This replica has entered a view: rolls back the early epochs with batches that do not count.
    /// `lost` is the number of acknowledged transactions of this replica that do not.
    pub(super) fn retreat_if_cut(&mut self, cx: &mut Cx<'_, Self>, lost: u64) {
        let logs = &self.state.streams.logs;
        let counts = |it: &&MergedEpoch| {
            it.state.heads.iter().zip(logs).all(|(head, log)| log.bounds.last_upto(*head) == *head)
        };
        let Some(early) = &self.state.early else { return };
        let kept = early.epochs.iter().take_while(counts).count();
        if kept == early.epochs.len() || mutate!(RetreatForgotten: false => true) {
            return;
        }
        // Their batch has to name an epoch that is about to go.
        self.close_early_batch(cx);
        let State { early, applied, .. } = &mut self.state;
        let Some(early) = early else { return };
        let versions = early.epochs.len() - kept;
        early.epochs.truncate(kept);
        *applied = early.confirmed.clone();
        for it in &early.epochs {
            applied.advance(it.state.clone());
        }
        cx.mark("geogauss.retreated");
        cx.store.retreat_to(applied.epoch);
        cx.lost(applied.epoch, versions as u64, lost);
    }

    /// Closes the current batch, if its transactions may have read early epochs that are about to
    /// be replaced.
    pub(super) fn close_early_batch(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.is_early() && !self.state.execution.current.is_empty() {
            self.start_broadcast(cx, false);
        }
    }
}

impl State {
    fn log_record(&mut self, cx: &mut Cx<'_, GeoGauss>, merged: &MergedEpoch) {
        let position = self.replica.persist(cx, &kind::EPOCH, merged.record.clone());
        self.checkpoints.note_record(merged.state.epoch, position);
    }
}

/// The error of a transaction that has read an epoch which was rolled back.
pub(super) fn read_lost() -> Abort {
    let message = "could not serialize access: the transaction read a state that was lost";
    Abort::new(SqlState::SERIALIZATION_FAILURE, message)
        .with_detail(
            "A node was removed, and with it the last epochs that it had answered before others \
             had them (geogauss.ack).",
        )
        .with_hint("The transaction might succeed if retried.")
}
