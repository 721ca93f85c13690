//! The schedule of checkpoints (§5), and checkpoint turns: the permission to be frozen for one.
//!
//! ```text
//!   replica            coordinator                 every replica
//!     | CheckpointTurn(wants) ----> |                    |
//!     |           cuts n, n + 1, .. | give it the turn   |
//!     | <============= agreement on the cuts ==========> |
//!     applies n, is frozen there, and writes             | continue, and retain the outcomes of
//!     | CheckpointTurn(wants) ----> |                    | its requests
//!     the checkpoint is durable, it has caught up        |
//!     | CheckpointTurn(no more) --> |                    |
//!     |                       cut m | gives it to none   |
//! ```
//!
//! Each cut names the holder of the checkpoint turn. All replicas therefore agree on it, whichever
//! replica coordinates and whichever messages are lost. A replica freezes at an epoch whose cut
//! gives it the turn. It stays frozen until its checkpoint is durable, or until it receives a cut
//! that gives the turn to another replica or to none. In the second case it continues, and the rest
//! of the checkpoint is written concurrently with execution.
//!
//! A replica that loses its turn while frozen learns of that later than other replicas do.
//! Therefore a replica freezes only after every connected replica that had the turn has reported
//! two facts: it is not frozen, and it knows the cut that ended its turn.
//!
//! A replica keeps the turn while it wants it, is in the configuration and sends messages, and
//! while the other replicas can do without it. They can if all other members are connected and not
//! far behind, or if a majority of the group is, and if they retain less than half as much for it
//! as would remove it (`behind_bytes`). A failed checkpoint ends the turn, too.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::Calvin;
use super::messages::Message;
use crate::inputs::Inputs;

/// The interval of points in epochs: with `zigzag` checkpoints all replicas take them after the
/// same epochs, every sixteenth. That is a sixth of a second with epochs of 10 ms.
const POINT_EPOCHS: u64 = 16;

/// A replica that has sent no message for this long counts as unreachable.
const AWAY: Span = Span::from_ms(1_000);

/// A replica more than this number of epochs behind can't take the place of a frozen one.
const BEHIND_MAX: u64 = 64;

/// A replica has caught up when at most this number of cuts wait: more than may run at a time.
pub(crate) const CAUGHT_UP: usize = 24;

/// A replica that does not catch up loses its turn after this number of progress reports: ten
/// seconds.
const CATCHING_UP_MAX: u32 = 100;

/// When a checkpoint that is due is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckpointSchedule {
    /// At once, at the applied epoch.
    Due,
    /// After an epoch that is a point for all replicas.
    AtPoints,
    /// When this replica has the checkpoint turn. It is frozen until the checkpoint is durable.
    InTurn,
}

/// The state that a peer has reported about itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerTurnState {
    /// Whether it is frozen.
    pub(super) is_frozen: bool,
    /// The last cut that it knew when it sent the report.
    pub(super) known: SnapshotVersion,
}

/// The state of the checkpoint turn.
#[derive(Debug)]
pub(crate) struct CheckpointTurns {
    /// When checkpoints are taken.
    schedule: CheckpointSchedule,
    /// Whether each peer has reported that it wants a turn or still needs the one that it has.
    wanted: Vec<bool>,
    /// The other state that each peer has reported since it connected.
    reported: Vec<PeerTurnState>,
    /// The epoch of the cut with which each replica lost its last turn.
    ended: Vec<SnapshotVersion>,
    /// The holder of the turn as of this replica's last proposal, while that is in flight.
    proposed: Option<NodeId>,
    /// The holder of the turn as of the newest known cut.
    known: Option<NodeId>,
    /// The holder of the turn as of the applied epoch.
    applied: Option<NodeId>,
    /// Whether this replica has already been frozen in its turn. That happens once; then it catches
    /// up.
    is_used: bool,
    /// The version at which this replica is frozen.
    frozen: Option<SnapshotVersion>,
    /// The number of progress reports sent since it was last frozen.
    catching_up: u32,
}

impl CheckpointTurns {
    pub(crate) fn new(node_count: usize, schedule: CheckpointSchedule) -> Self {
        Self {
            schedule,
            wanted: vec![false; node_count],
            reported: vec![PeerTurnState::default(); node_count],
            ended: vec![SnapshotVersion::ZERO; node_count],
            proposed: None,
            known: None,
            applied: None,
            is_used: false,
            frozen: None,
            catching_up: 0,
        }
    }

    /// Forgets the reported state of a peer that may have restarted.
    pub(super) fn forget_reported(&mut self, peer: NodeId) {
        self.reported[peer.index()] = PeerTurnState::default();
    }

    /// The version at which this replica is frozen for its checkpoint.
    pub(crate) fn frozen(&self) -> Option<SnapshotVersion> {
        self.frozen
    }

    /// Records the holder of the turn in an applied cut.
    pub(crate) fn apply(&mut self, turn: Option<NodeId>) {
        self.applied = turn;
    }
}

impl Inputs<Calvin> {
    /// Whether a checkpoint that is due may be taken at the applied epoch.
    pub(super) fn may_checkpoint(&self, cx: &mut Cx<'_, Calvin>) -> bool {
        let (may, waits) = match self.extension.turns.schedule {
            CheckpointSchedule::Due => return true,
            CheckpointSchedule::AtPoints => {
                let epoch = self.cut.confirmed.epoch;
                (epoch.0.is_multiple_of(POINT_EPOCHS), "inputs.waits_for_point")
            }
            CheckpointSchedule::InTurn => (self.is_my_turn(), "inputs.waits_for_turn"),
        };
        if !may {
            cx.mark(waits);
        }
        may
    }

    fn is_my_turn(&self) -> bool {
        let me = Some(self.replica.me);
        let is_mine = self.extension.turns.applied == me
            && self.extension.turns.known == me
            && !self.extension.turns.is_used;
        let is_running = |peer: NodeId| {
            let state = self.extension.turns.reported[peer.index()];
            let has_heard = state.known >= self.extension.turns.ended[peer.index()];
            !self.replica.is_up[peer.index()] || has_heard && !state.is_frozen
        };
        let is_my_turn = is_mine && self.replica.peers().all(is_running);
        mutate!(FrozenTogether: is_my_turn => true)
    }

    /// Freezes this replica while a checkpoint of the applied epoch is written.
    pub(super) fn freeze(&mut self, cx: &mut Cx<'_, Calvin>) {
        if self.extension.turns.schedule == CheckpointSchedule::InTurn
            && self.checkpoints.installed.is_none()
        {
            cx.mark("inputs.frozen");
            self.extension.turns.frozen = Some(self.cut.applied);
            self.extension.turns.is_used = true;
        }
    }

    /// Ends the freeze, because the checkpoint is durable or failed.
    pub(super) fn thaw(&mut self) {
        self.extension.turns.frozen = None;
        self.extension.turns.catching_up = 0;
    }

    /// Records the holder of the turn in a decided cut.
    pub(super) fn note_turn(
        &mut self,
        cx: &mut Cx<'_, Calvin>,
        epoch: SnapshotVersion,
        turn: Option<NodeId>,
    ) {
        let before = self.extension.turns.known;
        if let Some(holder) = before.filter(|_| before != turn) {
            self.extension.turns.ended[holder.index()] = epoch;
        }
        self.extension.turns.known = turn;
        self.extension.turns.is_used &= turn == Some(self.replica.me);
        let is_lost = turn != Some(self.replica.me) && self.extension.turns.frozen.is_some();
        if mutate!(FrozenTogether: is_lost => false) {
            cx.mark("inputs.turn_lost");
            self.thaw();
        }
    }

    /// Whether this replica has the turn as far as it knows: the other replicas then retain the
    /// outcomes of its requests.
    pub(crate) fn has_turn(&self) -> bool {
        self.extension.turns.known == Some(self.replica.me)
    }

    /// Whether this replica wants a turn or still needs the one that it has.
    fn wants_turn(&self) -> bool {
        let is_behind = self.has_turn()
            && self.cut.waiting.len() > CAUGHT_UP
            && self.extension.turns.catching_up < CATCHING_UP_MAX;
        let is_due = self.is_checkpoint_due() && !self.extension.turns.is_used;
        self.extension.turns.frozen.is_some() || is_due || is_behind
    }

    /// Reports to the peers whether this replica wants a turn.
    pub(super) fn send_checkpoint_turn(&mut self, cx: &mut Cx<'_, Calvin>) {
        if self.extension.turns.schedule != CheckpointSchedule::InTurn {
            return;
        }
        self.extension.turns.catching_up = self.extension.turns.catching_up.saturating_add(1);
        let (wants, is_frozen) = (self.wants_turn(), self.extension.turns.frozen.is_some());
        let known = self.last_decided();
        for peer in self.replica.peers() {
            self.replica.send(cx, peer, Message::CheckpointTurn { wants, is_frozen, known });
        }
    }

    /// Handles a peer's report of whether it wants a turn.
    pub(super) fn on_checkpoint_turn(
        &mut self,
        cx: &mut Cx<'_, Calvin>,
        from: NodeId,
        wants: bool,
        state: PeerTurnState,
    ) {
        self.extension.turns.wanted[from.index()] = wants;
        self.extension.turns.reported[from.index()] = state;
        if state.is_frozen && self.extension.turns.frozen.is_some() {
            // One of them was disconnected and has yet to learn that its turn is over.
            cx.mark("inputs.frozen_together");
        }
    }

    /// The replica that the next cut should name as the holder of the turn.
    pub(super) fn next_turn(&mut self, cx: &mut Cx<'_, Calvin>) -> Option<NodeId> {
        if self.extension.turns.schedule != CheckpointSchedule::InTurn {
            return None;
        }
        if self.cut.undecided() == 0 {
            self.extension.turns.proposed = self.extension.turns.known;
        }
        let present = self.extension.turns.proposed;
        if self.cut.lacks_cuts() {
            return present;
        }
        let wants = |node: NodeId| match node == self.replica.me {
            true => self.wants_turn(),
            false => self.extension.turns.wanted[node.index()],
        };
        let may = |node: &NodeId| wants(*node) && self.can_do_without(cx, *node);
        let next = present.filter(may).or_else(|| {
            // Every replica has a turn before any has the next one.
            let first = present.map_or(0, |node| node.index() + 1);
            let nodes: Vec<NodeId> = self.replica.topology.node_ids().collect();
            let (before, after) = nodes.split_at(first.min(nodes.len()));
            after.iter().chain(before).copied().find(may)
        });
        if next != present {
            cx.mark("inputs.turn_changed");
        }
        next
    }

    /// Whether `node` is connected and the other replicas can do without it for a while.
    fn can_do_without(&self, cx: &Cx<'_, Calvin>, node: NodeId) -> bool {
        let cut = &self.cut;
        let applied = |node: NodeId| match node == self.replica.me {
            true => cut.applied,
            false => self.collection.applied[node.index()],
        };
        let furthest = self.replica.topology.node_ids().map(applied).max().unwrap_or_default();
        let is_heard = |node: NodeId| {
            let is_silent = cx.now.at.since(cut.heard_at[node.index()]) >= AWAY;
            node == self.replica.me || self.replica.is_up[node.index()] && !is_silent
        };
        let keeps_up =
            |node: &NodeId| is_heard(*node) && applied(*node).0 + BEHIND_MAX >= furthest.0;
        let others: Vec<NodeId> = self.members().into_iter().filter(|it| *it != node).collect();
        let there = others.iter().filter(|it| keeps_up(it)).count();
        // The limit is lower than the one at which it would be removed.
        let is_far = self.streams.bytes_kept_for(node) > self.settings.behind_bytes / 2;
        cut.is_member[node.index()]
            && is_heard(node)
            && !is_far
            && (there == others.len() || there >= self.replica.topology.majority())
    }

    /// Records the turn in a cut that this replica has proposed.
    pub(super) fn note_turn_proposed(&mut self, turn: Option<NodeId>) {
        self.extension.turns.proposed = turn;
    }

    /// Whether a proposed cut with this turn would change the holder.
    pub(super) fn is_turn_news(&self, turn: Option<NodeId>) -> bool {
        self.extension.turns.proposed != turn
    }
}
