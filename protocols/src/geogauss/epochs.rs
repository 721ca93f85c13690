//! Epochs: when a replica ends one, and when all replicas have (§3, §4.1, Algorithm 3).
//!
//! ```text
//!   replica A                         replica B
//!     | == Batch(epoch 7) ==========> |  has no transactions in epoch 7: ends it now
//!     | <------------- Eof(through 7) |
//!     | == Batch(epoch 7, last) ====> |  epoch 7 has ended everywhere
//! ```
//!
//! A replica ends each epoch after its length as long as it has transactions now and then. The last
//! batch of an epoch says that it is the last. Without a batch, a message of its own does. A
//! replica that stays idle ends some epochs ahead, and more of them when a peer gets near to the
//! last. So an idle cluster sends nothing, and nobody waits for an idle replica. In the paper each
//! replica sends a message in each epoch.
//!
//! An epoch is *ready* on a replica when it has ended on all replicas, all of its batches are here,
//! and each of them is durable on f + 1 replicas. Only then is it merged. Since all of that can be
//! known without agreement, a commit takes a round trip to the nearest peers, and half a round trip
//! from the furthest one.
//!
//! The paper answers a client before any other region has the transaction on disk.

use pangea_core::codec::Reader;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::batch::{Batch, Place};
use super::membership::Membership;
use super::messages::{HeardEnd, Message};
use super::options::Execution;
use super::state::{End, State};
use super::views::ViewNumber;
use super::{GeoGauss, Timer};
use crate::streams::Heads;

impl State {
    /// The last epoch that a replica has ended, as far as its batches are here. What it did in a
    /// later view than this replica's does not count: its epochs may have other members.
    pub(super) fn ended(&self, source: NodeId) -> SnapshotVersion {
        let life = &self.membership.view.lives[source.index()];
        let log = &self.streams.logs[source.index()];
        if life.ended.is_some_and(|ended| log.received >= ended.last) {
            return SnapshotVersion(u64::MAX);
        }
        // Its earlier life counts, too, and is here if nothing of it is missing.
        let has_earlier = mutate!(EarlierLifeMissing: log.received >= life.head => true);
        let waits_for_nobody = SnapshotVersion(if has_earlier { life.first.0 - 1 } else { 0 });
        if source == self.me() && self.has_life() {
            // After a crash it could add transactions to an epoch that it has not reserved.
            let ended = SnapshotVersion(self.epochs.open.0 - 1).min(self.epochs.reserved);
            return ended.max(waits_for_nobody);
        }
        let present = self.membership.view.number;
        let End { through, last, view, .. } = self.epochs.ends[source.index()];
        let is_known = |view| mutate!(EofOfNewerView: view <= present => true);
        let is_of_life = life.ended.is_none() && view >= life.joined && is_known(view);
        let is_here = mutate!(EofOvertakesBatches: log.received >= last => true);
        // It may not have its own earlier batches either, so it does not name them.
        let by_message = is_of_life && is_here && has_earlier;
        let by_message = if by_message { through } else { SnapshotVersion::ZERO };
        let batch = log.slots.get(&log.received).map(|slot| &slot.batch);
        let by_batch =
            batch.filter(|batch| is_known(batch.view)).map(|batch| match batch.is_last {
                true => batch.epoch,
                false => SnapshotVersion(batch.epoch.0 - 1),
            });
        let evidence = by_message.max(by_batch.unwrap_or_default());
        evidence.max(self.applied.epoch).max(waits_for_nobody)
    }

    /// Whether an encoded batch is in an epoch that its source had ended before, or that is before
    /// the life of its source. The others may have merged it.
    pub(super) fn is_after_end(&self, bytes: &[u8]) -> bool {
        let Ok((place, _)) = Batch::decode_place(&mut Reader::new(bytes)) else { return false };
        let Place { source, bid, epoch, view } = place;
        let Membership { view: present, .. } = &self.membership;
        // The next view may have another life of the source.
        let Some(life) = present.lives.get(source.index()).filter(|_| view <= present.number)
        else {
            return false;
        };
        let end = self.epochs.ends[source.index()];
        let has_ended = end.view >= life.joined && bid > end.last && epoch <= end.through;
        has_ended || life.ended.is_none() && bid > life.head && epoch < life.first
    }

    /// Whether a batch of a source is here that does not fit to the end of its epochs.
    fn contradicts(&self, source: NodeId, end: End) -> bool {
        let Membership { view: present, .. } = &self.membership;
        let later = self.streams.logs[source.index()].slots.range(end.last.next()..);
        let mut later = later.map(|(_, slot)| &slot.batch).filter(|it| it.view <= present.number);
        end.view >= present.lives[source.index()].joined
            && later.any(|batch| batch.epoch <= end.through)
    }

    /// The last epoch that all replicas have ended.
    fn ended_everywhere(&self) -> SnapshotVersion {
        let ended = self.replica.topology.node_ids().map(|node| self.ended(node));
        ended.min().unwrap_or_default()
    }

    /// The next epoch with transactions, as far as batches are here.
    pub(super) fn next_epoch(&self) -> Option<SnapshotVersion> {
        let logs = self.streams.logs.iter().zip(&self.applied.heads);
        let next = logs.filter_map(|(log, head)| {
            let (bid, slot) = log.slots.range(head.next()..).next()?;
            (*bid <= log.received).then_some(slot.batch.epoch)
        });
        next.min()
    }

    /// The last epoch of which a batch is here, or was.
    pub(super) fn last_known(&self) -> SnapshotVersion {
        let last = self.streams.logs.iter().filter_map(|log| log.slots.values().next_back());
        let epochs = last.map(|slot| slot.batch.epoch);
        epochs.max().unwrap_or_default().max(self.applied.epoch)
    }

    /// Whether all batches that some replica is known to have are merged, for good.
    pub(super) fn has_merged_all(&self) -> bool {
        let logs = self.streams.logs.iter().zip(&self.confirmed().heads);
        logs.into_iter()
            .all(|(log, head)| log.bounds.last_upto(log.known.max(log.received)) <= *head)
    }

    /// The next epoch to merge, with the last batch of each source in it.
    pub(super) fn next_ready(&self) -> Option<(SnapshotVersion, Heads)> {
        let epoch = self.next_epoch().filter(|next| *next <= self.ended_everywhere())?;
        let logs = self.streams.logs.iter().zip(&self.applied.heads);
        let heads: Heads = logs
            .map(|(log, head)| {
                let unmerged = log.slots.range(head.next()..);
                let within = unmerged
                    .take_while(|(bid, slot)| **bid <= log.received && slot.batch.epoch == epoch);
                within.last().map_or(*head, |(bid, _)| *bid)
            })
            .collect();
        self.is_safe(&heads).then_some((epoch, heads))
    }

    /// All transactions of the epochs up to this one are merged.
    pub(super) fn merged_through(&self) -> SnapshotVersion {
        let ended = self.ended_everywhere();
        self.next_epoch().map_or(ended, |next| ended.min(SnapshotVersion(next.0 - 1)))
    }

    /// Whether transactions may be added to the present epoch: during a seal, only if this replica
    /// has reserved it before.
    pub(super) fn may_add(&self, cx: &Cx<'_, GeoGauss>) -> bool {
        let life = &self.membership.view.lives[self.me().index()];
        // After a lost disk it has to find the batches of its earlier lives first.
        let is_complete = self.streams.own(&self.replica).received >= life.head;
        is_complete && self.membership.may_end(self.present_epoch(cx))
    }

    /// The epoch of this moment: the paper's `sen` of a transaction that begins now.
    pub(super) fn present_epoch(&self, cx: &Cx<'_, GeoGauss>) -> SnapshotVersion {
        match self.epochs.has_txns {
            true => self.epochs.open,
            false => {
                let present = self.epochs.open.max(self.epochs.clock.epoch_at(cx.now.at));
                mutate!(WriteAfterEof: present => write_after_eof(self, present))
            }
        }
    }
}

impl State {
    /// The maximum number of epochs that this replica ends ahead.
    fn silence_max(&self) -> u64 {
        // A program that waits for the epochs before its own would wait for these.
        let is_synchronous = self.options.execution == Execution::Synchronous;
        if is_synchronous { 0 } else { self.options.silence_epochs }
    }

    /// Whether this replica had transactions lately. It then ends its next epoch when that is over,
    /// even without transactions.
    fn was_busy(&self) -> bool {
        let is_alone = self.replica.topology.node_count() == 1;
        let idle_from = self.epochs.busy.0 + self.options.idle_epochs();
        !is_alone && self.silence_max() > 0 && idle_from >= self.epochs.open.0 - 1
    }

    /// The number of epochs that this replica ends ahead of one that it has reached: none, unless
    /// it is idle.
    fn silence_after(&self, reached: SnapshotVersion) -> u64 {
        let most = self.silence_max();
        let is_idle = !self.epochs.has_txns
            && self.execution.queue.is_empty()
            && self.epochs.busy.0 + self.options.idle_epochs() < reached.0
            && self.membership.may_end(SnapshotVersion(reached.0 + most));
        if is_idle { most } else { 0 }
    }

    /// Whether this replica is idle, and has ended so few epochs ahead that others would have to
    /// wait for it before they hear of more.
    fn must_renew(&self, reached: SnapshotVersion) -> bool {
        let ahead = self.silence_after(reached);
        self.epochs.open.0 <= reached.0 + ahead.div_ceil(2)
    }
}

impl GeoGauss {
    /// Starts to add transactions to the present epoch, if there are none in the open one.
    pub(super) fn enter_epoch(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.epochs.has_txns {
            return;
        }
        let present = self.state.present_epoch(cx);
        let epochs = &mut self.state.epochs;
        (epochs.open, epochs.has_txns, epochs.opened_at) = (present, true, cx.now.at);
        epochs.busy = present;
        // It may have ended epochs ahead of the clock.
        epochs.clock.follow(present, cx.now.at);
        self.state.reserve(cx, present);
        self.wait_for_end(cx);
    }

    fn wait_for_end(&self, cx: &mut Cx<'_, Self>) {
        let end = self.state.epochs.clock.start_of(self.state.present_epoch(cx).next());
        let least = Span::from_us(1);
        cx.set_timer(Timer::Epoch, end.since(cx.now.at).max(least));
    }

    /// The time of the open epoch is over.
    pub(super) fn on_epoch_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.epochs.has_txns {
            cx.mark("geogauss.epoch_ended_by_time");
            return self.end_epoch(cx, self.state.epochs.open);
        }
        let over = SnapshotVersion(self.state.present_epoch(cx).0 - 1);
        let is_over = over >= self.state.epochs.open;
        if is_over && self.state.is_member() && self.state.membership.may_end(over) {
            cx.mark("geogauss.empty_epoch_ended");
            self.end_epoch(cx, over);
        } else if self.state.was_busy() {
            self.wait_for_end(cx);
        }
    }

    /// §4.1: adds nothing more to the epochs up to the one that is reached, and tells the peers. An
    /// idle replica ends some more.
    pub(super) fn end_epoch(&mut self, cx: &mut Cx<'_, Self>, reached: SnapshotVersion) {
        let had_txns = self.state.epochs.has_txns;
        let through = SnapshotVersion(reached.0 + self.state.silence_after(reached));
        assert!(self.state.membership.may_end(through), "the epoch is reserved");
        let open = self.state.epochs.open;
        assert!(through >= open, "an epoch ends once");
        self.state.reserve(cx, through);
        if had_txns {
            cx.clear_timer(Timer::Epoch);
            self.start_broadcast(cx, true);
        }
        let epochs = &mut self.state.epochs;
        (epochs.open, epochs.has_txns) = (through.next(), false);
        epochs.reached = epochs.reached.max(reached);
        if !had_txns || through > open {
            cx.mark("geogauss.eof_sent");
            self.send_eof_to_all(cx);
        }
        if self.state.was_busy() {
            self.wait_for_end(cx);
        }
    }

    pub(super) fn send_eof_to_all(&mut self, cx: &mut Cx<'_, Self>) {
        let peers: Vec<NodeId> = self.state.replica.peers().collect();
        peers.into_iter().for_each(|peer| self.send_eof(cx, peer));
    }

    /// Tells a peer the last epoch that this replica has ended, once a crash can't take away the
    /// last batch or the reservation.
    pub(super) fn send_eof(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        if !self.state.is_member() {
            return;
        }
        // It may have moved beyond epochs that others have merged without it.
        let through = SnapshotVersion(self.state.epochs.open.0 - 1);
        self.state.reserve(cx, through);
        let through = through.min(self.state.last_reserved());
        let own = self.state.streams.own(&self.state.replica);
        let last = own.received;
        let after = own.slots.get(&last).map_or(LogPosition(0), |slot| slot.position);
        let after = after.max(self.state.reserving_at());
        let reached = self.state.epochs.reached.min(through);
        let view = self.state.membership.view.number.0;
        let message = Message::Eof { through, reached, last, view };
        self.state.replica.send_after(cx, after, peer, message);
    }

    /// §4.1.3: a replica adds nothing more to some epochs.
    pub(super) fn on_eof(&mut self, cx: &mut Cx<'_, Self>, told: HeardEnd) {
        let HeardEnd { source, through, reached, last, view, .. } = told;
        let told = End { through, reached: reached.min(through), last, view: ViewNumber(view) };
        if self.state.contradicts(source, told) {
            return cx.mark("geogauss.end_before_batch");
        }
        let log = &mut self.state.streams.logs[source.index()];
        log.known = log.known.max(log.bounds.last.map_or(last, |end| last.min(end)));
        let end = &mut self.state.epochs.ends[source.index()];
        if (told.view, told.through) > (end.view, end.through) {
            *end = told;
        } else {
            cx.mark("geogauss.eof_again");
        }
    }

    /// Follows peers that are in a later epoch, or have ended this one (§4.1, "coordinator-free").
    pub(super) fn follow_peers(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.is_member() {
            return;
        }
        for peer in self.state.replica.peers() {
            let end = self.state.epochs.ends[peer.index()].reached;
            let log = &self.state.streams.logs[peer.index()];
            let batch = log.slots.get(&log.received).map(|slot| &slot.batch);
            let (present, is_over) = match batch {
                Some(batch) if batch.epoch > end => (batch.epoch, batch.is_last),
                _ => (end, true),
            };
            let epochs = &mut self.state.epochs;
            let reached = if is_over { present.next() } else { present };
            epochs.clock.follow(reached, cx.now.at);
            // Its own transactions in an epoch that the peer has not ended have time.
            let has_time = epochs.has_txns && epochs.open == present && !is_over;
            if present < epochs.open && !self.state.must_renew(present) || has_time {
                continue;
            }
            if self.state.membership.may_end(present) {
                cx.mark("geogauss.follows_a_peer");
                self.end_epoch(cx, present);
            } else {
                // The next view may have members that begin before this epoch.
                cx.mark("geogauss.end_waits_for_view");
            }
        }
    }

    /// The only replica of a cluster waits for nobody. Requests that arrive while its disk is busy
    /// form the next epoch.
    pub(super) fn end_epoch_alone(&mut self, cx: &mut Cx<'_, Self>) {
        let own = self.state.streams.own(&self.state.replica);
        let is_idle = own.durable == own.received;
        let is_alone = self.state.replica.topology.node_count() == 1;
        if is_alone && is_idle && self.state.epochs.has_txns {
            self.end_epoch(cx, self.state.epochs.open);
        }
    }
}

fn write_after_eof(state: &State, present: SnapshotVersion) -> SnapshotVersion {
    SnapshotVersion(present.0 - 1).max(state.applied.epoch.next())
}
