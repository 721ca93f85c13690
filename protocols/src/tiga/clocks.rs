//! How far this node's clock is from those of the others, and what becomes of clocks that are far
//! from all others (§3.1, §5.7).
//!
//! Tiga orders transactions by clocks, but nothing that it promises depends on them. So a replica
//! may count as it likes, and it counts like most others: a leader that is an hour ahead would
//! otherwise put the shard's log an hour ahead, and those of all other shards with it.
//!
//! Nodes tell each other their clocks with each progress report. A message takes no negative time,
//! so two of them, one each way, bound the difference of two clocks whatever the network does:
//!
//! ```text
//!   own clock     --- 100 --------------------- 400 ---
//!                        \                   /
//!   other clock   --------- 150 --------- 160 ---------     between 240 behind and 50 ahead
//! ```
//!
//! 1. *Corrected.* The median of what is certain about all nodes counts. If it is more than a
//!    second and more than `future_max_ms`, the clock of the shard follows it.
//! 2. *Doubted.* A clock that jumps forward by as much between two steps is not believed before
//!    others have had the time to confirm it. The machine may have been suspended, or not.
//! 3. *Given up.* A leader that has promised or accepted something far ahead of its corrected clock
//!    could order it only when the others are there, too. It leads no more, and the view manager
//!    begins a view, in which everybody starts above the logs alone.
//!
//! The clock of a shard is never behind the last cell of its log, so if most clocks are wrong
//! alike, the versions are.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::Tiga;
use super::delays::Delays;
use super::pace::RARELY;
use super::stamp::{Stamp, US_MAX};
use super::state::State;

/// No clock is corrected for less than this: links are slow at times.
const LEAST: Span = Span::from_ms(1_000);

/// How long a jump is doubted. Others confirm it within some round trips, or deny it.
const DOUBT: Span = Span::from_ms(2_000);

/// What a replica knows of its clock.
pub(super) struct Clocks {
    /// The clocks of other nodes: how long messages took by the clocks of both nodes, uncorrected.
    seen: Delays,
    /// The reading at the last step.
    last: Option<Timestamp>,
    /// While a jump is not believed: the correction that takes it back, and until when.
    doubted: Option<(i64, Timestamp)>,
    /// The correction, in microseconds.
    shift: i64,
}

impl Clocks {
    pub(super) fn new(node_count: usize) -> Self {
        Self { seen: Delays::new(node_count), last: None, doubted: None, shift: 0 }
    }

    /// The corrected reading of a clock, in microseconds.
    pub(super) fn corrected(&self, now: Timestamp) -> u64 {
        now.us.saturating_add_signed(self.shift).min(US_MAX)
    }

    /// By how much the clock is corrected, in microseconds.
    pub(super) fn shift(&self) -> i64 {
        self.shift
    }

    /// Whether this clock has jumped, and others could not confirm it yet.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.is_some()
    }

    /// The connection to a node is new: its clock may be another one.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.seen.forget(node.index());
    }

    /// What this node tells another one about their clocks.
    pub(super) fn told_to(&self, node: NodeId) -> Option<i64> {
        self.seen.shortest(node.index())
    }

    /// A node has told its clock, and what it knows of this one's.
    fn note(&mut self, node: NodeId, (sent, delay): (u64, Option<i64>), now: Timestamp) {
        // Beyond that it makes no sense.
        let is_sound = |delay: &i64| delay.unsigned_abs() <= US_MAX;
        if sent > US_MAX {
            return;
        }
        self.seen.note_arrival(node.index(), sent, now.us);
        delay
            .into_iter()
            .filter(is_sound)
            .for_each(|delay| self.seen.note_told(node.index(), delay));
    }

    /// By how much another node's clock is certainly ahead of this one, in microseconds; negative
    /// if it is behind. `None` if nothing is known.
    fn certain(&self, node: usize) -> Option<i64> {
        let (there, back) = (self.seen.to(node), self.seen.shortest(node));
        let least = back.map_or(i64::MIN, |back| -back);
        let most = there.unwrap_or(i64::MAX);
        (there.is_some() || back.is_some()).then_some(0.min(most).max(least))
    }

    /// The estimate of the same difference, if messages take as long there as back.
    fn estimated(&self, node: usize) -> Option<i64> {
        Some((self.seen.to(node)? - self.seen.shortest(node)?) / 2)
    }

    /// The largest estimated difference to any other node, in microseconds.
    pub(super) fn worst_offset(&self, nodes: usize) -> u64 {
        let known = (0..nodes).filter_map(|node| self.estimated(node));
        known.map(i64::unsigned_abs).max().unwrap_or_default()
    }

    /// By how much most clocks are certainly ahead of this one, this one included.
    fn median(&self, nodes: usize) -> i64 {
        let mut all: Vec<i64> = (0..nodes).filter_map(|node| self.certain(node)).collect();
        all.push(0);
        all.sort_unstable();
        // Of two, the one that is behind: versions can't go back.
        all[(all.len() - 1) / 2]
    }

    /// The correction that is due if clocks may differ by `most`.
    fn due(&self, nodes: usize, most: Span) -> i64 {
        let median = self.median(nodes);
        // One that is corrected stays so until its clock is clearly better.
        let most = if self.shift == 0 { most.us } else { most.us / 2 };
        let due = if median.unsigned_abs() > most { median } else { 0 };
        // What others have told may be older than the jump.
        self.doubted.map_or(due, |(back, _)| due.min(back))
    }

    /// Compares a reading with that of the last step. Returns the jump, if it is more than `most`.
    /// A node at which nothing happens has no step for `pause`, so only what is more is doubted.
    fn note_step(&mut self, now: Timestamp, most: Span, pause: Span) -> Option<Span> {
        let last = self.last.replace(now)?;
        let jump = now.since(last);
        if self.doubted.is_some_and(|(_, until)| now >= until) {
            self.doubted = None;
        }
        if jump <= most {
            return None;
        }
        if jump.us <= most.us + pause.us {
            return Some(jump);
        }
        self.seen.postpone(jump.us as i64);
        self.doubted = Some((self.shift.saturating_sub_unsigned(jump.us), now + DOUBT));
        Some(jump)
    }
}

impl State {
    /// Clocks that differ by more than this are wrong.
    pub(super) fn clocks_differ_at_most(&self) -> Span {
        LEAST.max(Span::from_ms(self.options.future_max_ms))
    }
}

impl Tiga {
    /// A step begins.
    pub(super) fn note_step(&mut self, cx: &mut Cx<'_, Self>) {
        let most = self.state.clocks_differ_at_most();
        let pause = Span::from_ms(self.state.options.heartbeat_ms * RARELY);
        let before = self.state.clocks.doubted;
        if self.state.clocks.note_step(cx.now.at, most, pause).is_some() {
            // Nobody could be heard.
            self.state.views.hear_all(cx.now.at);
        }
        if before != self.state.clocks.doubted {
            cx.mark("tiga.clock_doubted");
            self.correct_clock(cx);
        }
    }

    /// A node has told its clock, and how long messages of this node took by both clocks.
    pub(super) fn note_clock(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        told: (u64, Option<i64>),
    ) {
        self.state.clocks.note(from, told, cx.now.at);
        self.correct_clock(cx);
    }

    /// Corrects the clock of the shard, if this node's clock is far from most others.
    pub(super) fn correct_clock(&mut self, cx: &mut Cx<'_, Self>) {
        let most = self.state.clocks_differ_at_most();
        let nodes = self.state.cluster.node_count();
        let clocks = &mut self.state.clocks;
        let due = clocks.due(nodes, most);
        // Messages take more or less time, and it need not follow each of them.
        if due != 0 && clocks.shift.abs_diff(due) <= most.us / 4 || due == clocks.shift {
            return;
        }
        cx.mark("tiga.clock_corrected");
        clocks.shift = due;
        // By how much it was ahead was relative to the other clock.
        self.state.ahead_us = 0;
        self.state.follow_log(cx);
        self.give_up_if_ahead(cx);
    }

    /// Leads no more if it has promised too far ahead of its clock, or has transactions there that
    /// it can't order for as long.
    pub(super) fn give_up_if_ahead(&mut self, cx: &mut Cx<'_, Self>) {
        let now = self.state.clock_us(cx);
        let most = self.state.clocks_differ_at_most().us;
        let Some(leading) = &self.state.leading else { return };
        let last = leading.leader.queue().pending().last();
        let last = last.map_or(0, |(version, _)| Stamp::from(version).us());
        // Another leader may have accepted it as far ahead of a clock that is as far ahead.
        if leading.leader.promised().us() > now + most || last > now + 2 * most {
            cx.mark("tiga.leads_too_far_ahead");
            self.stop_leading(cx);
            self.send_progress(cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const MOST: Span = Span::from_ms(1_000);
    const PAUSE: Span = Span::from_ms(1_000);

    fn at(us: i64) -> Timestamp {
        Timestamp::from_us(10_000_000_000 + us as u64)
    }

    /// A node whose clock is ahead of those of its peers, which are a second away.
    fn ahead_of(peers: &[i64]) -> Clocks {
        let mut clocks = Clocks::new(peers.len() + 1);
        for (node, ahead) in (1..).zip(peers) {
            let sent = at(0).us.saturating_add_signed(-ahead);
            let told = Some(SECOND - ahead);
            clocks.note(NodeId(node), (sent, told), at(SECOND));
        }
        clocks
    }

    #[test]
    fn the_certain_difference_does_not_depend_on_the_network() {
        let clocks = ahead_of(&[0, SECOND / 2, 5 * SECOND, -5 * SECOND]);
        let certain: Vec<_> = (0..5).map(|node| clocks.certain(node)).collect();
        assert_eq!(certain, [None, Some(0), Some(0), Some(-4 * SECOND), Some(4 * SECOND)]);
        assert_eq!(clocks.estimated(3), Some(-5 * SECOND));
        assert_eq!(clocks.worst_offset(5), 5_000_000);
    }

    #[test]
    fn the_clock_follows_the_median_if_it_is_far_away() {
        let due = |peers: &[i64]| ahead_of(peers).due(peers.len() + 1, MOST) / SECOND;
        assert_eq!(due(&[]), 0);
        assert_eq!(due(&[3_600 * SECOND, 3_600 * SECOND]), -3_599);
        assert_eq!(due(&[-3_600 * SECOND, -3_600 * SECOND]), 3_599);
        assert_eq!(due(&[3_600 * SECOND, 0]), 0, "the peer is wrong");
        assert_eq!(due(&[3_600 * SECOND]), -3_599, "of two, the one that is behind");
        assert_eq!(due(&[-3_600 * SECOND]), 0);
        assert_eq!(due(&[SECOND, SECOND]), 0, "clocks may differ");
    }

    #[test]
    fn a_jump_is_doubted_until_others_had_the_time_to_confirm_it() {
        let mut clocks = ahead_of(&[0, 0]);
        assert_eq!(clocks.note_step(at(SECOND), MOST, PAUSE), None);
        assert_eq!(clocks.note_step(at(2 * SECOND), MOST, PAUSE), None);
        let jumped = at(3_602 * SECOND);
        assert_eq!(clocks.note_step(jumped, MOST, PAUSE), Some(Span::from_us(3_600_000_000)));
        assert_eq!(clocks.due(3, MOST), -3_600 * SECOND);
        assert_eq!(clocks.note_step(jumped + DOUBT, Span::from_ms(5_000), PAUSE), None);
        assert_eq!(clocks.due(3, MOST), 0, "nobody has denied it");
    }

    /// Story: a clock that was ahead and corrected jumped by an hour, and was believed at once:
    /// what its peers had told of it before the jump was taken for their word on the jump. Its
    /// shard ordered transactions an hour ahead (seed 442 of the wild runs).
    #[test]
    fn a_jump_of_a_clock_that_is_corrected_is_doubted_too() {
        let mut clocks = ahead_of(&[5 * SECOND, 5 * SECOND]);
        clocks.note_step(at(SECOND), MOST, PAUSE);
        clocks.shift = clocks.due(3, MOST);
        assert_eq!(clocks.shift, -4 * SECOND);
        clocks.note_step(at(3_601 * SECOND), MOST, PAUSE);
        assert_eq!(clocks.due(3, MOST), -3_604 * SECOND);
        clocks.note_step(at(3_601 * SECOND) + DOUBT, Span::from_ms(5_000), PAUSE);
        assert_eq!(clocks.due(3, MOST), -4 * SECOND, "nobody has denied it");
    }

    /// Story: a second jump was seen by the step at which the doubt of the first one ended, and the
    /// clock was not corrected before a peer told its own.
    #[test]
    fn a_jump_at_the_end_of_a_doubt_is_another_one() {
        let mut clocks = ahead_of(&[0, 0]);
        clocks.note_step(at(SECOND), MOST, PAUSE);
        clocks.note_step(at(5 * SECOND), MOST, PAUSE);
        let first = clocks.doubted;
        clocks.shift = clocks.due(3, MOST);
        assert_eq!(clocks.shift, -4 * SECOND);
        clocks.note_step(at(3_605 * SECOND), MOST, PAUSE);
        assert!(first.is_some() && clocks.doubted != first);
        assert_eq!(clocks.due(3, MOST), -3_604 * SECOND);
    }

    #[test]
    fn a_pause_in_which_nothing_happens_is_not_doubted() {
        let mut clocks = ahead_of(&[0, 0]);
        clocks.note_step(at(SECOND), MOST, PAUSE);
        assert!(clocks.note_step(at(3 * SECOND), MOST, PAUSE).is_some(), "nobody was heard");
        assert_eq!(clocks.due(3, MOST), 0);
    }
}
