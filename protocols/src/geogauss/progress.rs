//! Progress reports, and the collection of data that no replica needs (Minerva §4).
//!
//! Replicas report to each other what they have merged, what survives their restart, and the view
//! that they know. Batches that every member has merged are dropped, as are decisions about views
//! that every replica has taken.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::messages::Message;
use super::state::State;
use super::views::ViewNumber;
use super::{GeoGauss, Timer};
use crate::streams::{Bid, Heads};

/// The interval at which a replica reports its progress.
const PROGRESS: Span = Span::from_ms(100);

/// The progress of a replica, according to its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The last epoch that it has merged.
    pub applied: SnapshotVersion,
    /// The last epoch that survives its restart.
    pub durable: SnapshotVersion,
    /// Its view.
    pub view: ViewNumber,
    /// The number of the decision of the last view that survives its restart.
    pub decision: u64,
    /// The view in which it began its life; 0 if it has none, because it lost its disk.
    pub life: ViewNumber,
    /// Whether it may begin a life: it has all batches that it acknowledged before it lost its
    /// disk.
    pub may_join: bool,
}

impl State {
    fn progress(&self) -> Progress {
        let membership = &self.membership;
        let life = match membership.has_no_life {
            true => ViewNumber(0),
            false => membership.view.lives[self.me().index()].joined,
        };
        Progress {
            applied: self.confirmed().epoch,
            durable: self.checkpoints.durable,
            view: membership.view.number,
            decision: membership.durable_decision(self.streams.synced),
            life,
            may_join: !self.is_rejoining() && !self.stops.is_stopping(),
        }
    }

    /// The batches up to these heads are merged here, and the effects survive a restart.
    fn merged_heads(&self) -> Heads {
        let logs = self.streams.logs.iter().zip(&self.confirmed().heads);
        // The other replicas must retain everything that this one could lose in a crash.
        logs.map(|(log, head)| log.durable.min(*head)).collect()
    }

    /// Drops batches that all members have merged, and decisions that all replicas have taken.
    fn collect(&mut self) {
        let members: Vec<NodeId> = self.membership.view.members().collect();
        let merged = self.confirmed().heads.clone();
        let State { streams, transfer, membership, .. } = self;
        streams.collect(&members, &merged, |source| transfer.least_retained(source));
        let taken = membership.progress.iter().map(|it| it.decision).min().unwrap_or_default();
        membership.driver.agreement_mut().trim(taken);
    }

    /// Drops the transfers and the batches of peers that will not catch up.
    fn stop_abandoned_transfers(&mut self, cx: &Cx<'_, GeoGauss>) {
        let merged = self.confirmed().heads.clone();
        let State { streams, transfer, membership, replica, options, .. } = self;
        let is_too_much =
            |after: &[Bid]| streams.bytes_between(after, &merged) > options.behind_bytes;
        let nodes = replica.topology.node_ids();
        let is_member: Vec<bool> = nodes.map(|node| membership.view.has(node)).collect();
        transfer.stop_abandoned(replica, cx.now.at, &is_member, is_too_much);
    }
}

impl GeoGauss {
    /// Starts the timer.
    pub(super) fn start_progress(cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Progress, PROGRESS);
    }

    /// Reports to the peers, and drops data that no replica needs.
    pub(super) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        Self::start_progress(cx);
        if self.state.presence.is_asking() {
            return;
        }
        self.note_waits(cx);
        self.state.execution.hot.forget_cold(cx.now.at);
        self.send_progress(cx);
        self.send_ends(cx);
        self.announce_stop(cx);
        self.send_report(cx);
        self.send_digests(cx);
        self.state.collect();
        self.announce_collected(cx);
        self.ask_again(cx);
        self.retry_transfer(cx);
        self.state.stop_abandoned_transfers(cx);
    }

    /// Reports the progress of this replica to the peers.
    pub(super) fn send_progress(&mut self, cx: &mut Cx<'_, Self>) {
        let (progress, heads) = (self.state.progress(), self.state.merged_heads());
        let me = self.state.me();
        self.note_progress(me, progress, heads.clone());
        let Progress { applied, durable, view, decision, life, may_join } = progress;
        let (view, life) = (view.0, life.0);
        for peer in self.state.replica.peers() {
            let heads = heads.clone();
            let message =
                Message::Progress { applied, durable, view, decision, life, may_join, heads };
            self.state.replica.send(cx, peer, message);
        }
    }

    /// Sends the digests of the epochs since the last report to the peers.
    fn send_digests(&mut self, cx: &mut Cx<'_, Self>) {
        let digests = self.state.digests.take_unsent();
        if digests.is_empty() {
            return;
        }
        for peer in self.state.replica.peers() {
            self.state.replica.send(cx, peer, Message::Digests { digests: digests.clone() });
        }
    }

    /// Stops this replica if its rows differ from those of a majority.
    pub(super) fn stop_if_differing(&mut self, cx: &mut Cx<'_, Self>, why: Option<String>) {
        if let Some(why) = why {
            // The others learn from them that this replica differs.
            self.send_digests(cx);
            cx.stop(why);
        }
    }

    pub(super) fn on_progress(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        progress: Progress,
        heads: Heads,
    ) {
        let before = self.state.membership.progress_of(from);
        let is_further = progress.applied > before.applied;
        self.note_progress(from, progress, heads);
        let was_behind = self.state.streams.is_behind[from.index()];
        self.state.note_who_is_behind();
        let State { streams, transfer, replica, .. } = &mut self.state;
        if progress.view > before.view || was_behind && !streams.is_behind[from.index()] {
            // It did not take batches of the view before, and got no acknowledgements.
            streams.resend(cx, replica, from);
        }
        transfer.stop_obsolete(from, progress.applied);
        transfer.release_applied(from, &streams.applied[from.index()]);
        if is_further {
            // It makes progress after its checkpoint, however long that takes.
            transfer.note_heard(from, cx.now.at);
        }
    }

    fn note_progress(&mut self, node: NodeId, progress: Progress, heads: Heads) {
        self.state.membership.progress[node.index()] = progress;
        self.state.streams.note_applied(node, heads);
    }
}
