//! Progress reports: nodes tell each other that they are alive, and what they have (§5.2:
//! heartbeats).

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::epochs::{Leadership, may_lead};
use super::messages::Message;
use super::state::{Role, State};
use super::versions::{EPOCH_MAX, Epoch};
use super::{Mako, Timer};

/// The state of a node, as it tells the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerState {
    /// The last epoch that it has heard of.
    pub leadership: Leadership,
    /// The last epoch of which it knows that it has begun.
    pub begun: Epoch,
    /// The epoch of its log, and the last version of it.
    pub rank: (Epoch, SnapshotVersion),
    /// The version before the first entry that it can send.
    pub first: SnapshotVersion,
    /// The last version of its log that readers see there, with all before it.
    pub published: SnapshotVersion,
    pub flags: Flags,
    /// If it lost its disk, and does not count before it has the log of a later epoch: this one.
    pub replaced_after: Option<Epoch>,
    /// The number of decisions about epochs that survive its restart.
    pub decisions: u64,
    /// The nodes that it does not hear.
    pub deaf_to: Vec<NodeId>,
}

/// What a node does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// It leads its epoch.
    pub leads: bool,
    /// It is about to lead its epoch.
    pub is_closing: bool,
    /// The same, and enough replicas have its log.
    pub is_closed: bool,
    /// It is stopping.
    pub is_leaving: bool,
    /// None of its clients waits.
    pub is_settled: bool,
}

impl Flags {
    fn encode(self) -> u64 {
        let Self { leads, is_closing, is_closed, is_leaving, is_settled } = self;
        let all = [leads, is_closing, is_closed, is_leaving, is_settled];
        (0..).zip(all).map(|(bit, is_set)| u64::from(is_set) << bit).sum()
    }

    fn decode(bits: u64) -> Self {
        let is_set = |bit: u32| bits >> bit & 1 == 1;
        let (leads, is_closing, is_closed) = (is_set(0), is_set(1), is_set(2));
        Self { leads, is_closing, is_closed, is_leaving: is_set(3), is_settled: is_set(4) }
    }
}

impl PeerState {
    pub(super) fn of(message: Message) -> Option<Self> {
        let Message::Progress {
            epoch,
            leader,
            begun,
            log_epoch,
            last,
            first,
            published,
            flags,
            replaced,
            decisions,
            deaf_to,
        } = message
        else {
            return None;
        };
        let is_sound = [epoch, begun, log_epoch].into_iter().all(|epoch| epoch <= EPOCH_MAX);
        is_sound.then(|| Self {
            leadership: Leadership { number: Epoch(epoch), leader },
            begun: Epoch(begun),
            rank: (Epoch(log_epoch), last),
            first,
            published,
            flags: Flags::decode(flags),
            replaced_after: replaced.checked_sub(1).map(Epoch),
            decisions,
            deaf_to,
        })
    }

    fn into_message(self) -> Message {
        Message::Progress {
            epoch: self.leadership.number.0,
            leader: self.leadership.leader,
            begun: self.begun.0,
            log_epoch: self.rank.0.0,
            last: self.rank.1,
            first: self.first,
            published: self.published,
            flags: self.flags.encode(),
            replaced: self.replaced_after.map_or(0, |epoch| epoch.0 + 1),
            decisions: self.decisions,
            deaf_to: self.deaf_to,
        }
    }
}

impl State {
    /// What this replica tells about itself. `deaf_to` are the nodes that it does not hear.
    pub(super) fn told(&self, deaf_to: Vec<NodeId>) -> PeerState {
        let flags = Flags {
            leads: matches!(self.role, Role::Leading(_)),
            is_closing: matches!(self.role, Role::Closing(_)),
            is_closed: self.is_closed(),
            is_leaving: self.stop.is_some(),
            is_settled: self.is_settled(),
        };
        PeerState {
            leadership: self.epochs.current,
            begun: self.epochs.begun,
            rank: self.log.rank(),
            first: self.log.base(),
            published: self.commit.floor,
            flags,
            replaced_after: self.replaced.map(|it| it.after),
            decisions: self.durable_decisions(),
            deaf_to,
        }
    }
}

impl Mako {
    /// The interval of progress reports is over.
    pub(super) fn on_progress_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        cx.set_timer(Timer::Progress, Span::from_ms(self.state.options.heartbeat_ms));
        if self.state.presence.is_asking() {
            return;
        }
        self.collect();
        self.end_late_attempts(cx);
        self.gossip_again(cx);
        self.ask_for_fates(cx);
        self.ask_for_copies_again(cx.now.at);
        self.ask_to_move(cx);
        self.send_progress(cx);
        self.send_digests(cx);
        self.retry_transfer(cx);
        self.stop_abandoned(cx);
        self.ask_again(cx);
        self.note_waits(cx);
        if !self.state.has_log_of_epoch() && !self.state.transfer.is_receiving() {
            self.send_report(cx, false);
        }
    }

    /// Tells all nodes the state of this replica.
    pub(super) fn send_progress(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.presence.is_ready {
            return;
        }
        self.send_config(cx);
        let told = self.state.told(self.state.unheard(cx.now.at));
        let message = told.into_message();
        for peer in self.state.replica.peers() {
            self.state.replica.send(cx, peer, message.clone());
        }
        self.send_to_others(cx, &message);
    }

    pub(super) fn on_progress(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        let Some(told) = PeerState::of(message) else {
            return cx.mark("mako.malformed_progress");
        };
        if !self.state.presence.is_ready {
            return;
        }
        let (leadership, begun) = (told.leadership, told.begun);
        self.state.transfer.stop_obsolete(from, told.published);
        let before = std::mem::replace(&mut self.state.epochs.told[from.index()], told);
        if may_lead(&self.state.replica.topology, leadership.leader) {
            self.begin_epoch(cx, leadership);
        }
        self.note_begun(begun);
        let is_leader = self.state.leader() == Some(from);
        if is_leader
            && before.leadership.number < leadership.number
            && !self.state.has_log_of_epoch()
        {
            // It may not have known the epoch when it got the report.
            self.send_report(cx, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_tells_survives_its_message() {
        let told = PeerState {
            leadership: Leadership { number: Epoch(7), leader: NodeId(2) },
            begun: Epoch(6),
            rank: (Epoch(5), SnapshotVersion(90)),
            first: SnapshotVersion(30),
            published: SnapshotVersion(80),
            flags: Flags { leads: true, is_leaving: true, ..Flags::default() },
            replaced_after: Some(Epoch(0)),
            decisions: 4,
            deaf_to: vec![NodeId(1)],
        };
        assert_eq!(PeerState::of(told.clone().into_message()), Some(told.clone()));
        let far = PeerState { begun: Epoch(EPOCH_MAX + 1), ..told };
        assert_eq!(PeerState::of(far.into_message()), None);
        for bits in 0..32 {
            assert_eq!(Flags::decode(bits).encode(), bits);
        }
    }
}
