//! When a replica takes a checkpoint (Calvin §5), and turns to stand still for one.
//!
//! ```text
//!   replica            coordinator                 every replica
//!     | Turn(wants) -----> |                             |
//!     |                    | cuts n, n + 1, ..: its turn |
//!     | <============= agreement on the cuts ==========> |
//!     applies n: stands still there, and writes          | go on, and keep what became of its
//!     | Turn(wants) -----> |                             | requests
//!     the checkpoint is durable, it has caught up        |
//!     | Turn(no more) ---> | cut m: nobody's turn        |
//! ```
//!
//! Each cut says whose turn it is, so that all replicas know alike, whoever coordinates and
//! whatever is lost. A replica begins at an epoch whose cut says that it is its turn, and stands
//! still until its checkpoint is durable, or until it hears of a cut that says otherwise: then it
//! goes on, and the rest is written beside that.
//!
//! Who loses its turn while it stands still hears of that later than others do. So a replica does
//! not begin before each other that is there and had a turn has told that it goes on, and that it
//! knows the cut that took the turn from it.
//!
//! The coordinator lets a replica have its turn as long as that wants it, is in the configuration
//! and heard of, and as the others can do without it: all other members are there and not far
//! behind, or a majority of the group is, and they hold less than half as much for it as it would
//! be removed for (`behind_bytes`). A checkpoint that fails ends its turn, too.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::messages::Message;
use super::{Host, Inputs};

/// The epochs after which a checkpoint is taken where it is of a point: every sixteenth, on all
/// replicas, a sixth of a second at 10 ms each.
const POINT_EPOCHS: u64 = 16;

/// A replica that was not heard of for so long is away.
const AWAY: Span = Span::from_ms(1_000);

/// A replica that is so many epochs behind others can't take the place of one that stands still.
const BEHIND_MAX: u64 = 64;

/// A replica has caught up when so few cuts wait there: more than it may be running at a time.
pub(crate) const CAUGHT_UP: usize = 24;

/// A replica that does not catch up gives its turn to another after so many times that it told how
/// far it is: ten seconds.
const CATCHING_UP_MAX: u32 = 100;

/// When a checkpoint that is due is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// At once, of the applied epoch.
    Due,
    /// After an epoch that is a point for all replicas.
    AtPoints,
    /// When it is this replica's turn. It stands still meanwhile.
    InTurn,
}

/// What a peer has told of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// It stands still.
    pub(super) is_frozen: bool,
    /// That is as of this cut.
    pub(super) known: SnapshotVersion,
}

/// Whose turn it is to stand still, and who wants one.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Which peers said that they want a turn, or have use for the one that they have.
    wanted: Vec<bool>,
    /// What they told beside that since they are connected.
    told: Vec<Told>,
    /// With which cut each of them lost its last turn.
    ended: Vec<SnapshotVersion>,
    /// As of this replica's last proposal, while that is under way.
    proposed: Option<NodeId>,
    /// As of the newest cut that is known here.
    known: Option<NodeId>,
    /// As of the applied epoch.
    applied: Option<NodeId>,
    /// This replica has stood still in its turn: it does so once, and catches up.
    is_used: bool,
    /// Where this replica stands still.
    frozen: Option<SnapshotVersion>,
    /// How often it has told how far it is since it went on.
    catching_up: u32,
}

impl Turns {
    pub(crate) fn new(node_count: usize) -> Self {
        Self {
            wanted: vec![false; node_count],
            told: vec![Told::default(); node_count],
            ended: vec![SnapshotVersion::ZERO; node_count],
            ..Self::default()
        }
    }

    /// A peer may have begun anew.
    pub(super) fn forget_told(&mut self, peer: NodeId) {
        self.told[peer.index()] = Told::default();
    }

    /// The version at which this replica stands still for its checkpoint.
    pub(crate) fn frozen(&self) -> Option<SnapshotVersion> {
        self.frozen
    }

    /// A cut was applied.
    pub(crate) fn apply(&mut self, turn: Option<NodeId>) {
        self.applied = turn;
    }
}

impl<H: Host> Inputs<H> {
    /// Whether a checkpoint that is due may be taken of the applied epoch.
    pub(super) fn may_checkpoint(&self, cx: &mut Cx<'_, H>) -> bool {
        // What was taken from a peer is in no log here, and nothing is run on it yet.
        if self.cut.installed.is_some() {
            return true;
        }
        let (may, waits) = match self.settings.checkpoints {
            When::Due => return true,
            When::AtPoints => {
                let epoch = self.mastery.confirmed.epoch;
                (epoch.0.is_multiple_of(POINT_EPOCHS), "inputs.waits_for_point")
            }
            When::InTurn => (self.is_my_turn(), "inputs.waits_for_turn"),
        };
        if !may {
            cx.mark(waits);
        }
        may
    }

    fn is_my_turn(&self) -> bool {
        let me = Some(self.me);
        let is_mine = self.turns.applied == me && self.turns.known == me && !self.turns.is_used;
        let goes_on = |peer: NodeId| {
            let told = self.turns.told[peer.index()];
            let has_heard = told.known >= self.turns.ended[peer.index()];
            !self.replication.is_up[peer.index()] || has_heard && !told.is_frozen
        };
        is_mine && self.topology.peers_of(self.me).all(goes_on) || is_planted(Bug::FrozenTogether)
    }

    /// A checkpoint of the applied epoch is being written.
    pub(super) fn freeze(&mut self, cx: &mut Cx<'_, H>) {
        if self.settings.checkpoints == When::InTurn && self.cut.installed.is_none() {
            cx.mark("inputs.frozen");
            self.turns.frozen = Some(self.cut.applied);
            self.turns.is_used = true;
        }
    }

    /// The checkpoint is durable, or failed: this replica goes on.
    pub(super) fn thaw(&mut self) {
        self.turns.frozen = None;
        self.turns.catching_up = 0;
    }

    /// A cut was decided: whose turn it is from there on.
    pub(super) fn note_turn(
        &mut self,
        cx: &mut Cx<'_, H>,
        epoch: SnapshotVersion,
        turn: Option<NodeId>,
    ) {
        let before = self.turns.known;
        if let Some(holder) = before.filter(|_| before != turn) {
            self.turns.ended[holder.index()] = epoch;
        }
        self.turns.known = turn;
        let is_planted = is_planted(Bug::FrozenTogether);
        self.turns.is_used &= turn == Some(self.me);
        if turn != Some(self.me) && self.turns.frozen.is_some() && !is_planted {
            cx.mark("inputs.turn_lost");
            self.thaw();
        }
    }

    /// Whether it is this replica's turn, as far as it knows: the others keep what became of its
    /// requests.
    pub(crate) fn has_turn(&self) -> bool {
        self.turns.known == Some(self.me)
    }

    /// Whether this replica wants a turn, or has use for the one that it has.
    fn wants_turn(&self) -> bool {
        let is_behind = self.has_turn()
            && self.cut.waiting.len() > CAUGHT_UP
            && self.turns.catching_up < CATCHING_UP_MAX;
        let is_due = self.is_checkpoint_due() && !self.turns.is_used;
        self.turns.frozen.is_some() || is_due || is_behind
    }

    /// Tells the others whether this replica wants a turn.
    pub(super) fn tell_turn(&mut self, cx: &mut Cx<'_, H>) {
        if self.settings.checkpoints != When::InTurn {
            return;
        }
        self.turns.catching_up = self.turns.catching_up.saturating_add(1);
        let (wants, is_frozen) = (self.wants_turn(), self.turns.frozen.is_some());
        let known = self.last_decided();
        for peer in self.topology.peers_of(self.me) {
            cx.send(self.node(peer), Message::Turn { wants, is_frozen, known }.into());
        }
    }

    /// A peer tells whether it wants a turn.
    pub(super) fn on_turn(&mut self, cx: &mut Cx<'_, H>, from: NodeId, wants: bool, told: Told) {
        self.turns.wanted[from.index()] = wants;
        self.turns.told[from.index()] = told;
        if told.is_frozen && self.turns.frozen.is_some() {
            // One of them was away, and has yet to hear that its turn is over.
            cx.mark("inputs.frozen_together");
        }
    }

    /// Whose turn the next cut should say that it is.
    pub(super) fn next_turn(&mut self, cx: &mut Cx<'_, H>) -> Option<NodeId> {
        if self.settings.checkpoints != When::InTurn {
            return None;
        }
        if self.cut.undecided() == 0 {
            self.turns.proposed = self.turns.known;
        }
        let present = self.turns.proposed;
        if self.cut.lacks_cuts() {
            return present;
        }
        let wants = |node: NodeId| match node == self.me {
            true => self.wants_turn(),
            false => self.turns.wanted[node.index()],
        };
        let may = |node: &NodeId| wants(*node) && self.can_do_without(cx, *node);
        let next = present.filter(may).or_else(|| {
            // Everybody has a turn before somebody has the next.
            let first = present.map_or(0, |node| node.index() + 1);
            let nodes: Vec<NodeId> = self.topology.node_ids().collect();
            let (before, after) = nodes.split_at(first.min(nodes.len()));
            after.iter().chain(before).copied().find(may)
        });
        if next != present {
            cx.mark("inputs.turn_changed");
        }
        next
    }

    /// Whether `node` is there, and the others can do without it for a while.
    fn can_do_without(&self, cx: &Cx<'_, H>, node: NodeId) -> bool {
        let cut = &self.cut;
        let applied = |node: NodeId| match node == self.me {
            true => cut.applied,
            false => self.collection.applied[node.index()],
        };
        let furthest = self.topology.node_ids().map(applied).max().unwrap_or_default();
        let is_heard = |node: NodeId| {
            let is_silent = cx.now.at.since(cut.heard_at[node.index()]) >= AWAY;
            node == self.me || self.replication.is_up[node.index()] && !is_silent
        };
        let keeps_up =
            |node: &NodeId| is_heard(*node) && applied(*node).0 + BEHIND_MAX >= furthest.0;
        let others: Vec<NodeId> = self.members().into_iter().filter(|it| *it != node).collect();
        let there = others.iter().filter(|it| keeps_up(it)).count();
        // Before it is removed for that.
        let is_far = self.kept_for(node) > self.settings.behind_bytes / 2;
        cut.is_member[node.index()]
            && is_heard(node)
            && !is_far
            && (there == others.len() || there >= self.topology.majority())
    }

    /// This replica has proposed a cut that says so.
    pub(super) fn note_turn_proposed(&mut self, turn: Option<NodeId>) {
        self.turns.proposed = turn;
    }

    /// Whether a cut that is to be proposed says something new of it.
    pub(super) fn is_turn_news(&self, turn: Option<NodeId>) -> bool {
        self.turns.proposed != turn
    }
}
