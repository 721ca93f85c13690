//! How often a node tells the others its state.
//!
//! Each heartbeat, as long as something happens, and for a while afterwards. A node at which
//! nothing happens tells it rarely, because the others know it. Only a leader goes on to tell those
//! often that may have to replace it:
//!
//! ```text
//!   a leader, to the replicas that decide views   | | | | | | | | | | |     2 heartbeats apart
//!   anybody else                                  |                   |     20 heartbeats apart
//! ```
//!
//! A report tells when the next one follows. So a leader is doubted as early as otherwise. A node
//! that sends a transaction to a leader expects reports from it as often as under load.
//!
//! At a node that decides no views, the clock of agreement rests, too.

use pangea_core::ids::NodeId;
use pangea_core::protocol::{Cx, Input};
use pangea_core::time::{Span, Timestamp};

use super::coordinator::InFlight;
use super::messages::Message;
use super::state::State;
use super::{Tiga, Timer};
use crate::agreement::TICK;

/// After this number of heartbeats without an event a node reports rarely.
const CALM: u64 = 20;

/// Then it reports after this number of heartbeats,
pub(super) const RARELY: u64 = 20;

/// and a leader after this number to the replicas that decide views.
const WATCHED: u64 = 2;

/// When a node has reported, and when it will.
#[derive(Debug)]
pub(super) struct Pace {
    /// When something last happened here.
    active_at: Timestamp,
    /// Whether this node reports rarely.
    pub is_slow: bool,
    /// When each node was last told.
    told_at: Vec<Timestamp>,
    /// Within which time the next report of each node follows its last one.
    next: Vec<Span>,
}

impl Pace {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            active_at: Timestamp::default(),
            is_slow: false,
            told_at: vec![Timestamp::default(); node_count],
            next: vec![Span::ZERO; node_count],
        }
    }

    /// The connection to a node is lost or new.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.next[node.index()] = Span::ZERO;
    }

    /// A node has told within how many milliseconds its next report follows.
    pub(super) fn note_next(&mut self, node: NodeId, ms: u64) {
        self.next[node.index()] = Span::from_ms(ms.min(NEXT_MS_MAX));
    }

    /// Within which time the next report of a node follows its last one, if it is well.
    pub(super) fn next_of(&self, node: NodeId) -> Span {
        self.next[node.index()]
    }

    pub(super) fn note_told(&mut self, node: NodeId, now: Timestamp) {
        self.told_at[node.index()] = now;
    }
}

/// No report follows later than that.
const NEXT_MS_MAX: u64 = 10_000 * RARELY;

impl State {
    fn heartbeats(&self, count: u64) -> Span {
        Span::from_ms(self.options.heartbeat_ms * count)
    }

    /// The time between two reports to a node.
    pub(super) fn pause_before(&self, node: NodeId) -> Span {
        let leads = self.views.view.leaders.contains(&self.node);
        self.heartbeats(match self.pace.is_slow {
            false => 1,
            true if leads && self.does_decide(node) => WATCHED,
            true => RARELY,
        })
    }

    /// Whether a leader, which was last heard at a time, has had a transaction of this node for
    /// long. It would report often, however rarely it did before.
    pub(super) fn owes_answer(&self, node: NodeId, heard_at: Timestamp, now: Timestamp) -> bool {
        let Some((txn, since)) = self.waits.oldest else { return false };
        let shard = self.cluster.nodes[node.index()].shard;
        let has_it = |own: &InFlight| own.stamped.concerns(shard);
        let leads = self.views.leader_of(shard) == Some(node);
        let is_silent = since > heard_at && now.since(since) >= self.doubt();
        leads && is_silent && self.coordinator.in_flight.get(&txn).is_some_and(has_it)
    }

    /// Whether a report to a node is due.
    pub(super) fn is_report_due(&self, node: NodeId, now: Timestamp) -> bool {
        // The timer may be a little late each time.
        let since = now.since(self.pace.told_at[node.index()]).us + self.heartbeats(1).us;
        since >= self.pause_before(node).us
    }

    /// Whether nothing happens here for which others wait, or this node for others.
    fn is_calm(&self, now: Timestamp) -> bool {
        let is_part = self.presence.is_ready && self.is_whole() && self.is_normal();
        let is_waiting = self.has_open_work() || !self.incoming.is_empty() || self.stop.is_some();
        let is_quiet = now.since(self.pace.active_at) >= self.heartbeats(CALM);
        is_part && is_quiet && !is_waiting && !self.clocks.is_doubted()
    }
}

impl Tiga {
    /// Whether an input is an event after which the others may have to be told something.
    pub(super) fn is_event(input: &Input<Self>) -> bool {
        match input {
            Input::Message { message, .. } => {
                !matches!(message, Message::Progress { .. } | Message::Agreement { .. })
            }
            Input::Timer(_) | Input::Resume => false,
            Input::Restart(_)
            | Input::Submit(_)
            | Input::Durable(_)
            | Input::PeerUp(_)
            | Input::PeerDown(_)
            | Input::Stop
            | Input::Checkpointed(_)
            | Input::CheckpointFailed(_)
            | Input::Prefetched { .. } => true,
        }
    }

    /// Something happens: the node reports often again.
    pub(super) fn wake(&mut self, cx: &mut Cx<'_, Self>) {
        self.state.pace.active_at = cx.now.at;
        if std::mem::take(&mut self.state.pace.is_slow) {
            cx.set_timer(Timer::Progress, self.state.heartbeats(1));
            cx.set_timer(Timer::Tick, TICK);
        }
    }

    /// Sets the timer of the next report. Returns whether all nodes have to be told now.
    pub(super) fn set_pace(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        let is_slow = self.state.is_calm(cx.now.at);
        let was_slow = std::mem::replace(&mut self.state.pace.is_slow, is_slow);
        if was_slow && !is_slow {
            cx.set_timer(Timer::Tick, TICK);
        }
        let leads = self.state.views.view.leaders.contains(&self.state.node);
        let count = match is_slow {
            false => 1,
            true if leads => WATCHED,
            true => RARELY,
        };
        cx.set_timer(Timer::Progress, self.state.heartbeats(count));
        // They have to know that the next one follows later.
        is_slow && !was_slow
    }
}
