//! The order `bounded` (§6): leaders deduce the promises of the others from their own clocks.
//!
//! ```text
//!                          clock passes 10         10 + the error
//!   leader a   --[T@10]----------:-----------------------|-->  in the log
//!   leader b   ------------------------:------------------->
//!                     its clock passes 10: closed, tells its followers
//! ```
//!
//! The setting `clock_error_ms` is the largest difference between the clocks of two nodes. A leader
//! accepts only what is after its clock. So when its clock is past a cell by the error, all others
//! are past it, and the leader appends the cell without their word. If leaders are apart, that
//! saves half a round trip between them: their word goes to the followers directly, and not over
//! the other leader.
//!
//! **A wrong bound costs nothing.** §6 answers clients at the release, and relies on the bound: if
//! it is wrong, stamps disagree with real time (`exhaustive.rs` shows that for the rule alone).
//! Here clients are answered when all shards are committed through the cell (`shards.rs`): each
//! leader has then closed it by its own clock, and accepts only later ones. And the serial order is
//! that of the stamps, whatever clocks say: leaders exchange the stamps of transactions of several
//! shards, and each keeps what it has itself closed.
//!
//! Leaders still ask each other for cells, because followers have to hear up to where the log has
//! no more. Nobody waits for the answer, unless a promise comes sooner than the clock.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::Span;

use super::Tiga;
use super::order::Effects;
use super::stamp::Stamp;
use super::state::State;

impl State {
    /// Whether this replica leads, and clocks stand for promises.
    fn is_bounded(&self) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.leader.is_bounded())
    }

    /// By how much the clocks of others may be behind, in microseconds, if clocks stand for
    /// promises; else 0.
    pub(super) fn lag_of_bounds(&self) -> u64 {
        if self.is_bounded() { Span::from_ms(self.options.clock_error_ms).us } else { 0 }
    }

    /// Whether the promises of other leaders are quicker than clocks.
    pub(super) fn needs_promises(&self) -> bool {
        self.lag_of_bounds() > self.cluster.round_trip_max().us
    }

    /// Takes the reading of the clock, which is `now`, into the order.
    pub(super) fn note_bounds(&mut self, now: u64) {
        let Some(leading) = self.leading.as_mut().filter(|it| it.leader.is_bounded()) else {
            return;
        };
        let mut effects = Effects::default();
        leading.leader.on_clock(now, &mut effects);
        leading.leader.deduce(now, &mut effects);
        leading.take(effects);
    }
}

impl Tiga {
    /// The clock of another leader read `sent`. One that is behind follows, as it does when it
    /// hears promises. Otherwise the others would wait for it.
    pub(super) fn follow_leader(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, sent: u64) {
        let is_silent = self.state.is_bounded() || self.state.views.view.is_detective;
        if is_silent && self.state.views.view.leaders.contains(&from) {
            self.follow_promise(cx, Stamp::last_of(sent));
        }
    }
}
