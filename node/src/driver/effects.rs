//! Execution of effects, and the retention of the log for checkpoints.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pangea_core::hash::HashMap;
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::log::Mark;
use pangea_core::protocol::{Checkpoint, Effect, FirstRun, Message, Protocol};
use pangea_core::store::Pin;
use pangea_core::time::Span;
use pangea_core::txn::Outcome;
use pangea_sql::engine::Trace;

use super::inbox::{CommitReply, Waiting};
use super::latency::RunKind;
use super::table_names::with_table_names;
use super::{Driver, metered};
use crate::log::Append;

impl<P: Protocol> Driver<P> {
    /// Executes effects in order, up to one that ends the node.
    pub(super) fn carry_out_all(&mut self, effects: impl IntoIterator<Item = Effect<P>>) {
        let mut count = 0;
        for effect in effects {
            match metered::sent_bytes(&effect, self.durable) {
                Some(bytes) if self.tap.is_some() => {
                    self.did_effects(&mut count);
                    self.carry_out(effect);
                    self.did("effect_send", bytes);
                }
                _ => {
                    count += 1;
                    self.carry_out(effect);
                }
            }
            if self.is_stopped {
                break;
            }
        }
        self.did_effects(&mut count);
    }

    /// Reports the effects other than sends that were executed since the last report.
    fn did_effects(&self, count: &mut usize) {
        if *count > 0 {
            self.did("effects", std::mem::take(count));
        }
    }

    fn did(&self, kind: &'static str, size: usize) {
        if let Some(tap) = &self.tap {
            tap.did(kind, size);
        }
    }

    /// Executes one effect, or defers it until its position is durable.
    fn carry_out(&mut self, effect: Effect<P>) {
        match effect {
            Effect::Send { to, message, after } if after <= self.durable => {
                self.send(to, &message);
            }
            Effect::Reply { ticket, outcome, after, first_run } if after <= self.durable => {
                match self.pending_of(ticket) {
                    Waiting::Commit(reply) => {
                        self.follow(ticket, &reply, &outcome, &first_run);
                        reply.note(|trace| decided(trace, first_run));
                        reply.note(Trace::on_answered);
                        reply.send(Ok(outcome));
                    }
                    Waiting::Fresh(_) => panic!("{ticket} waits for a version, not for an outcome"),
                }
            }
            Effect::Checkpoint { checkpoint, pin, after } if after <= self.durable => {
                self.checkpoint(checkpoint, pin);
            }
            Effect::Send { after, .. } | Effect::Checkpoint { after, .. } => {
                self.deferred.hold(after, effect);
            }
            Effect::Reply { ticket, outcome, after, first_run } => {
                if let Some(Waiting::Commit(reply)) = self.pending.get(&ticket) {
                    reply.note(|trace| decided(trace, first_run.clone()));
                }
                self.deferred.hold(after, Effect::Reply { ticket, outcome, after, first_run });
            }
            Effect::Persist { position, record } => self.appends.push(Append { position, record }),
            Effect::SetTimer { timer, at } => self.timers.set(timer, at),
            Effect::ClearTimer(timer) => self.timers.clear(timer),
            Effect::Resume => self.wants_resume = true,
            Effect::Fresh { ticket, version } => match self.pending_of(ticket) {
                Waiting::Fresh(reply) => reply.send(Ok(version)),
                Waiting::Commit(_) => panic!("{ticket} waits for an outcome, not for a version"),
            },
            Effect::Truncate(position) => {
                if let Some(mark) = self.truncations.on_truncate(position) {
                    self.log.truncate(mark);
                }
            }
            Effect::Rejoined => self.rejoined(),
            Effect::Prefetch { token, keys } => match &self.cold_threads {
                Some(cold_threads) => cold_threads.fetch(token, keys),
                None => self.inbox.on_fetched(token, Span::ZERO),
            },
            Effect::Stop { reason } => {
                // A store with a defect may not even name its tables.
                let named = || with_table_names(&self.store, reason.clone());
                let named = catch_unwind(AssertUnwindSafe(named));
                let reason = named.unwrap_or(reason);
                self.inbox.fail(format!("the node stopped: {reason}"));
                (self.is_stopped, self.has_last_words) = (true, true);
            }
            Effect::MasterTerm { shard, from, master_term, is_final } => {
                self.note_master_term((shard, from), master_term, is_final)
            }
            Effect::Lineage { version, is_final: true, .. } => {
                self.inbox.losses().confirm(version);
            }
            Effect::Lineage { version, .. } => self.inbox.losses().publish_early(version),
            Effect::Lost { after, versions, acknowledged } => {
                self.note_rollback(after, versions, acknowledged);
            }
            Effect::LostCommit { txn, is_certain } => self.note_lost_commit(txn, is_certain),
            Effect::Mark(name) => self.count(name),
        }
    }

    /// A transaction has ended: records its latency breakdown if it is sampled.
    fn follow(&self, ticket: Ticket, reply: &CommitReply, outcome: &Outcome, run: &FirstRun) {
        match outcome {
            Outcome::Committed { txn, .. } if txn.node() == self.me => {
                let ran = match run {
                    FirstRun::Valid => RunKind::FirstRunValid,
                    FirstRun::Invalidated(_) => RunKind::ReExecuted,
                    FirstRun::Absent => RunKind::OrderedOnly,
                };
                let arrived = reply.arrived().map(|at| self.clock.at(at));
                let arrived = arrived.unwrap_or_default();
                self.follower.on_committed(ticket, txn.sequence(), arrived, ran);
            }
            Outcome::Committed { .. } => {}
            Outcome::Aborted(_) => self.follower.on_aborted(ticket),
        }
    }

    fn send(&mut self, to: NodeId, message: &P::Message) {
        assert_ne!(to, self.me, "a node does not send messages to itself");
        let mut bytes = Vec::with_capacity(self.last_frame.len());
        message.encode(&mut bytes);
        // A batch is sent to one peer after the other. Sharing the buffer lets it be compressed
        // once for all.
        if bytes != self.last_frame {
            self.last_frame = bytes.into();
        }
        self.network.send(to, message.lane(), self.last_frame.clone());
    }

    /// Logs a master term. The log is all that remains of a master that is killed, so
    /// `pangea torture` reads in it which acknowledged transactions a failover may discard.
    fn note_master_term(
        &mut self,
        (shard, from): (ShardId, SnapshotVersion),
        master_term: Option<(NodeId, u64)>,
        is_final: bool,
    ) {
        let (shard, from) = (shard.0, from.0);
        let Some((master, first)) = master_term.map(|(master, first)| (master.0, first)) else {
            return tracing::info!("the master of snapshot version {from} is not known");
        };
        if !is_final {
            tracing::info!(
                shard,
                first,
                "node {master} ordered the transactions that ran here from snapshot version \
                 {from} on"
            );
            return;
        }
        let what = format!("node {master} is the master from snapshot version {from} on");
        match self.newly_discarded().describe() {
            None => tracing::info!(shard, first, "{what}"),
            Some(lost) => tracing::warn!(shard, first, "{what}: {lost}"),
        }
    }

    /// What this node has discarded since the last confirmed master term.
    fn newly_discarded(&mut self) -> Discarded {
        let epochs = self.protocol.status().counters.get(GIVEN_UP).copied().unwrap_or(0);
        let now = Discarded { epochs, rollbacks: self.store.timeline() };
        let before = std::mem::replace(&mut self.discarded, now);
        let (epochs, rollbacks) = (now.epochs - before.epochs, now.rollbacks - before.rollbacks);
        Discarded { epochs, rollbacks }
    }

    fn rejoined(&mut self) {
        match (self.on_rejoined)() {
            Ok(()) => tracing::info!(
                "the replacement is complete: this node has all data of the node that it replaces"
            ),
            // The next start finds that the rejoin is complete, and records it then.
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the replacement is complete, but data_dir could not record it; the next start \
                     records it, and no action is needed"
                )
            }
        }
    }

    fn note_lost_commit(&mut self, txn: TxnId, is_certain: bool) {
        tracing::debug!(%txn, is_certain, "an acknowledged transaction is lost");
        self.untold_losses[usize::from(!is_certain)] += 1;
        self.inbox.losses().report(txn, is_certain);
    }

    /// Logs that snapshot versions after one are rolled back.
    fn note_rollback(&mut self, after: SnapshotVersion, versions: u64, acknowledged: u64) {
        // Each of them was reported before.
        self.untold_losses[0] = self.untold_losses[0].saturating_sub(acknowledged);
        let after = after.0;
        tracing::warn!(
            after,
            versions,
            acknowledged,
            "this node was removed, and rolls back {versions} snapshot versions that the others do \
             not have: {acknowledged} transactions that it had acknowledged are lost, because \
             geogauss.ack is not \"replicated\""
        );
    }

    /// Tells the operator of commits that were lost without a rollback here.
    pub(super) fn tell_losses(&mut self) {
        let [lost, unknown] = std::mem::take(&mut self.untold_losses);
        if lost > 0 {
            tracing::warn!(
                lost,
                "{lost} transactions that this node had acknowledged are lost: they depended on \
                 some that others did not have, because geogauss.ack is not \"replicated\""
            );
        }
        if unknown > 0 {
            tracing::warn!(
                unknown,
                "{unknown} transactions that this node had acknowledged may be lost: it got the \
                 state of another node, which does not tell"
            );
        }
    }

    fn pending_of(&mut self, ticket: Ticket) -> Waiting {
        let waiting = take_pending(&mut self.pending, ticket);
        self.inbox.on_answered();
        waiting
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint, pin: Pin) {
        let Checkpoint { version, meta } = checkpoint;
        let Some(checkpointer) = &self.checkpointer else {
            // This node has no durable state, so every version is equally durable.
            return self.report_checkpointed(version);
        };
        checkpointer.request(pin, meta);
    }
}

/// Records the protocol's decision in the trace when it is first reported.
fn decided(trace: &Trace, first_run: FirstRun) {
    trace.on_decided(matches!(first_run, FirstRun::Invalidated(_)));
    if let FirstRun::Invalidated(Some((table, key))) = first_run {
        trace.on_contended(table, key);
    }
}

fn take_pending(pending: &mut HashMap<Ticket, Waiting>, ticket: Ticket) -> Waiting {
    pending.remove(&ticket).unwrap_or_else(|| panic!("{ticket} is pending, and is answered once"))
}

/// The counter of epochs that a master fixed on this node, and that are void.
const GIVEN_UP: &str = "epochs_given_up";

/// What this node has discarded of earlier masters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Discarded {
    /// The number of epochs that were fixed on this node and are void.
    epochs: u64,
    /// The number of times that the store was rolled back.
    rollbacks: u64,
}

impl Discarded {
    /// Describes the loss, if there is any on this node. What other nodes have lost is not known
    /// here.
    fn describe(self) -> Option<String> {
        match self {
            Self { epochs: 0, rollbacks: 0 } => None,
            Self { epochs: 0, .. } => Some(
                "this node has discarded the later versions that it ran under an earlier master, \
                 even if their transactions were acknowledged"
                    .to_owned(),
            ),
            Self { epochs, .. } => Some(format!(
                "this node has discarded {epochs} epochs of an earlier master, even if their \
                 transactions were acknowledged"
            )),
        }
    }
}

/// Delays truncations, so that the log continues from each retained checkpoint.
///
/// The protocol truncates once a checkpoint is durable. Executed immediately, this would leave a
/// log that continues from the newest checkpoint only, and the previous one would be useless.
#[derive(Debug, Default)]
pub(super) struct Truncations {
    /// The retained checkpoints, oldest first.
    retained: VecDeque<SnapshotVersion>,
    /// The requested truncations, each with the newest checkpoint at that time; both ascend.
    waiting: VecDeque<Mark>,
}

impl Truncations {
    /// The number of checkpoints that the log continues from.
    const KEPT: usize = 2;

    /// The state after a start from this checkpoint, or from none.
    pub fn new(checkpoint: Option<SnapshotVersion>) -> Self {
        Self { retained: checkpoint.into_iter().collect(), waiting: VecDeque::new() }
    }

    /// A checkpoint has become durable.
    pub fn on_checkpoint(&mut self, version: SnapshotVersion) {
        if self.retained.back() != Some(&version) {
            self.retained.push_back(version);
        }
        if self.retained.len() > Self::KEPT {
            self.retained.pop_front();
        }
    }

    /// The protocol no longer needs the records below `below`. Returns the truncation that is
    /// allowed now, if any.
    pub fn on_truncate(&mut self, below: LogPosition) -> Option<Mark> {
        let newest = self.retained.back().copied().unwrap_or(SnapshotVersion::ZERO);
        self.waiting.push_back(Mark { below, checkpoint: newest });
        let is_full = self.retained.len() == Self::KEPT;
        let oldest = self.retained.front().copied().filter(|_| is_full);
        let oldest = oldest.unwrap_or(SnapshotVersion::ZERO);
        let mut due = None;
        while let Some(mark) = self.waiting.pop_front_if(|mark| mark.checkpoint <= oldest) {
            due = Some(mark);
        }
        // If several truncations wait for one checkpoint, the last one replaces the others.
        if let [.., before, last] = self.waiting.make_contiguous()
            && before.checkpoint == last.checkpoint
        {
            *before = *last;
            self.waiting.pop_back();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(below: u64, checkpoint: u64) -> Option<Mark> {
        Some(Mark { below: LogPosition(below), checkpoint: SnapshotVersion(checkpoint) })
    }

    #[test]
    fn the_log_goes_on_from_the_older_of_the_two_checkpoints_that_are_kept() {
        let mut truncations = Truncations::new(None);
        truncations.on_checkpoint(SnapshotVersion(10));
        assert_eq!(truncations.on_truncate(LogPosition(100)), None, "a checkpointer is running");
        assert_eq!(truncations.on_truncate(LogPosition(110)), None);
        truncations.on_checkpoint(SnapshotVersion(20));
        assert_eq!(truncations.on_truncate(LogPosition(200)), mark(110, 10));
        assert_eq!(truncations.on_truncate(LogPosition(205)), None);
        truncations.on_checkpoint(SnapshotVersion(30));
        assert_eq!(truncations.on_truncate(LogPosition(300)), mark(205, 20));
    }

    /// Story: a master was stopped in order and left its place to another, so that nothing was
    /// discarded. All nodes warned that acknowledged transactions were.
    #[test]
    fn only_a_node_that_has_discarded_something_warns_of_a_loss() {
        let loss = |epochs, rollbacks| Discarded { epochs, rollbacks }.describe();
        assert_eq!(loss(0, 0), None);
        let text = "this node has discarded 3 epochs of an earlier master, even if their \
                    transactions were acknowledged";
        assert_eq!(loss(3, 0).as_deref(), Some(text));
        assert_eq!(loss(3, 1).as_deref(), Some(text));
        assert!(loss(0, 1).is_some_and(|text| text.contains("the later versions that it ran")));
    }

    #[test]
    fn a_truncation_that_needs_no_checkpoint_is_not_held_back() {
        let mut truncations = Truncations::new(None);
        assert_eq!(truncations.on_truncate(LogPosition(7)), mark(7, 0));
    }
}
