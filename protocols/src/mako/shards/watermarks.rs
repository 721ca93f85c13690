//! Watermarks: how far the log of each shard is replicated, as the others know it (§4.4).
//!
//! ```text
//!   w of a shard   its last committed entry says: closed up to here
//!   told           a transaction that is in the log of a majority, and its clock below all
//!   published      everything up to the least w of all shards
//! ```
//!
//! A watermark is told only if a majority's log says it: a leader that fails after it had told a
//! greater one would leave a log that ends before. An idle shard logs closings when others are
//! ahead of it. Otherwise it would hold back what readers see, and clients who have read there.
//!
//! The paper's readers see each transaction whose vector is below that of the watermarks (§8). That
//! is not serializable: a transaction may be seen without one before it, which it has neither read
//! nor overwritten, but which has read what it has overwritten. Below the least watermark, every
//! transaction is seen with all before it.

use std::sync::Arc;

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::super::Mako;
use super::super::log::{Entry, Executed, RunResult, encode_abort};
use super::super::messages::Message;
use super::super::state::{Role, State};
use super::super::versions::{Epoch, start_of};
use super::super::watermark::{RECLAIM_VERSIONS_MAX, commit_point};
use super::Shards;

/// A shard logs a closing for the sake of others after this time.
const CLOSING: Span = Span::from_ms(5);

impl Shards {
    /// The shards with a lower watermark than this one.
    pub(in super::super) fn behind(&self) -> Vec<ShardId> {
        let own = self.own_watermark();
        self.ids().filter(|shard| self.watermarks[usize::from(shard.0)] < own).collect()
    }
}

impl Mako {
    /// Commits, tells clients and publishes, as far as the logs of all shards are replicated.
    pub(in super::super) fn advance_watermarks(&mut self, cx: &mut Cx<'_, Self>) {
        match self.state.role {
            Role::Leading(_) => {
                let point = commit_point(&self.state.acked()).unwrap_or_default();
                let State { commit, log, .. } = &mut self.state;
                commit.committed = commit.committed.max(point.min(log.last()));
                commit.advance_floor(log);
                let watermark = log.closed_at(commit.committed);
                let last = log.last();
                let shards = self.shards();
                let own = usize::from(shards.own.0);
                let watermark = mutate!(MakoIdleClosedUnlogged: watermark => {
                    // Whatever is in the log will be replicated some time.
                    watermark.max(last)
                });
                shards.watermarks[own] = shards.watermarks[own].max(watermark);
                self.release_held(cx);
                self.tell_settled(cx);
                self.publish_stable(cx);
                self.tell_closed(cx);
            }
            Role::Following => {
                let State { commit, log, .. } = &mut self.state;
                commit.advance_floor(log);
                self.follow_stable(cx);
            }
            Role::Closing(_) => {}
        }
    }

    /// Tells the clients whose transactions are settled.
    fn tell_settled(&mut self, cx: &mut Cx<'_, Self>) {
        let State { role, shards, commit, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        let (committed, watermarks) = (commit.committed, shards.watermarks());
        let over = &mut leading.over;
        let mut settled: Vec<Arc<Entry>> = Vec::new();
        over.waiting.retain(|entry| {
            let across = entry.across.as_ref();
            // A local transaction needs its own log alone, also above what is pending.
            let is_settled = entry.version <= committed
                && across.is_none_or(|across| {
                    let is_below = across.clock.is_below(&watermarks);
                    mutate!(MakoOwnLogSuffices: is_below => true)
                });
            if is_settled {
                settled.push(entry.clone());
            }
            !is_settled
        });
        over.clocks.retain(|_, clock| {
            clock.forget(&watermarks);
            !clock.is_empty()
        });
        over.decisions.retain(|_, decision| {
            let is_settled = decision.clock().is_below(&watermarks);
            mutate!(MakoDecisionDroppedEarly: !is_settled => false)
        });
        for entry in settled {
            for Executed { txn, outcome } in &entry.txns {
                if let Role::Leading(leading) = &mut self.state.role {
                    leading.over.told.insert(*txn, (entry.at(), outcome.clone()));
                }
                self.tell(cx, *txn, entry.at(), outcome.clone());
            }
        }
    }

    /// Tells the node of a client how its transaction has ended.
    pub(super) fn tell(
        &mut self,
        cx: &mut Cx<'_, Self>,
        txn: TxnId,
        version: SnapshotVersion,
        outcome: RunResult,
    ) {
        if txn.node() == self.state.node {
            return self.answer(cx, txn, version, outcome);
        }
        let (committed, result) = match outcome {
            Ok(result) => (1, result.into()),
            Err(abort) => (0, encode_abort(&abort).into()),
        };
        let message = Message::Ended { txn: txn.to_bits(), version, committed, result };
        if txn.node().index() < self.state.node_count {
            cx.send(txn.node(), message);
        }
    }

    /// Publishes what all shards have replicated. The rows are in the store.
    fn publish_stable(&mut self, cx: &mut Cx<'_, Self>) {
        let State { role, shards, commit, outcomes, log, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        let stable = shards.watermarks.iter().min().copied().unwrap_or_default();
        let stable = mutate!(MakoPublishesOwnCut: stable => shards.own_watermark());
        if stable <= commit.published {
            return;
        }
        let mut versions = Vec::new();
        for entry in shards.replay.take_upto(stable) {
            versions.push(entry.at());
            outcomes.note(&entry);
            for executed in entry.txns.iter().filter(|_| !entry.is_piece()) {
                leading.taken.remove(&executed.txn);
                leading.over.told.remove(&executed.txn);
            }
        }
        cx.store.publish(stable);
        (commit.published, shards.stable) = (stable, stable);
        commit.advance_floor(log);
        self.compare_all(cx, versions);
        let unneeded = self.shards().retention.unneeded(cx.now.at, stable);
        cx.store.reclaim_at_most(unneeded, RECLAIM_VERSIONS_MAX);
    }

    /// Tells the other leaders the watermark of this shard. `is_again` is whether they may not have
    /// heard it.
    pub(super) fn gossip(&mut self, cx: &mut Cx<'_, Self>, is_again: bool) {
        let State { role, shards, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        let version = shards.own_watermark();
        if version == leading.over.gossiped && !is_again {
            return;
        }
        leading.over.gossiped = version;
        let epoch = shards.config.number.0;
        for shard in shards.ids().filter(|shard| *shard != shards.own) {
            if let Some(node) = shards.leader_of(shard) {
                cx.send(node, Message::Watermark { epoch, version });
            }
        }
    }

    /// Repeats the watermark: another leader may not have led when it was told.
    pub(in super::super) fn gossip_again(&mut self, cx: &mut Cx<'_, Self>) {
        self.gossip(cx, true);
    }

    /// Another leader tells its watermark. One that has taken over has none of the last epoch
    /// before the cut is known here.
    pub(in super::super) fn on_watermark(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        version: SnapshotVersion,
    ) {
        let Some(shards) = &mut self.state.shards else { return };
        let shard = shards.shard_of(from).filter(|shard| shards.leader_of(*shard) == Some(from));
        let shard = shard.filter(|shard| shards.since(*shard) <= shards.config.begun);
        let is_current = epoch == shards.config.number;
        let (Role::Leading(_), Some(shard)) = (&self.state.role, shard.filter(|_| is_current))
        else {
            return;
        };
        let known = &mut shards.watermarks[usize::from(shard.0)];
        *known = version.max(*known);
    }

    /// Logs a closing, if somebody waits for it.
    pub(super) fn close_for_others(&mut self, cx: &mut Cx<'_, Self>) {
        let State { role, shards, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        let over = &mut leading.over;
        let ahead = shards.watermarks.iter().max().copied().unwrap_or_default();
        // The last epoch begins when the logs are closed up to its first version.
        let own = over.raised.max(leading.last).max(start_of(shards.config.number));
        let want = own.max(ahead);
        let can = over.closed_below(want);
        if can <= over.closed {
            over.closing_at = None;
            return;
        }
        if own <= over.closed {
            // Only readers wait.
            let at = *over.closing_at.get_or_insert(cx.now.at + CLOSING);
            if cx.now.at < at {
                return;
            }
        }
        mutate!(MakoIdleStreamLeftOut: () => return);
        over.closing_at = None;
        over.counter = over.counter.max(SnapshotVersion(want.0 - 1));
        self.log_nothing();
        self.close_batch(cx);
    }
}
