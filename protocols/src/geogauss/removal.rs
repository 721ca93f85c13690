//! Who is removed from the members, and who joins again (§5.2).
//!
//! | a member is removed if | the leader knows that from |
//! |---|---|
//! | neither the leader nor another member has heard from it for `removal_ms` | messages of any kind |
//! | it is alive, and an epoch has waited for it for `lag_ms` | ends of epochs |
//! | others would retain more than `behind_bytes` of batches for it | progress reports |
//! | it lost its disk | progress reports |
//! | it is stopped in order, and enough members stay | its announcement |
//!
//! A replica that is alive and no member joins when it can, but not soon after it was late.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::GeoGauss;
use super::membership::{Membership, Sealed};
use super::progress::Progress;
use super::state::State;
use super::views::{Change, Seal};
use crate::agreement::TICK;

/// A replica is removed after at least this many round trips without a message.
const SILENT_ROUND_TRIPS: u64 = 4;

/// A member that was removed because it was late does not join again for this multiple of the time
/// that it may be late.
const LAG_PENALTY: u64 = 8;

/// A program that keeps this replica busy for so long is run again by all replicas, at one place in
/// the order, if it has to be run again. Long before that would be harmful, it would be removed.
const LATE_SELF: Span = Span::from_ms(150);

/// The longest time for which the others are excused after a delay of this replica.
const GRACE_MAX: Span = Span::from_ms(5_000);

impl Membership {
    /// Nobody counts as silent for the time in which this replica was late itself, and for a while
    /// after it.
    fn excuse(&mut self, now: Timestamp, late: Span) {
        let excused = |at: &mut Timestamp| *at = (*at + late).min(now) + grace_after(late);
        self.heard_at.iter_mut().for_each(excused);
    }
}

impl GeoGauss {
    /// Notes that a peer is there.
    pub(super) fn note_heard(&mut self, cx: &Cx<'_, Self>, from: NodeId) {
        let heard_at = &mut self.state.membership.heard_at[from.index()];
        *heard_at = (*heard_at).max(cx.now.at);
    }

    /// While this replica was busy or stopped it heard nobody: that was not the fault of the
    /// others. They may have run the same program, and may still be busy.
    pub(super) fn excuse_own_delay(&mut self, cx: &mut Cx<'_, Self>) {
        let State { membership, waits, .. } = &mut self.state;
        let late = cx.now.at.since(membership.ticked_at + TICK);
        membership.ticked_at = cx.now.at;
        if late > TICK {
            membership.excuse(cx.now.at, late);
            waits.excuse(Span::from_us(late.us + grace_after(late).us));
        }
        if late > LATE_SELF {
            self.suspect_last_run(cx);
        }
    }

    /// A seal that ends the lives of silent members and of those that lost their disks, or lets
    /// replicas join that are back.
    pub(super) fn next_seal(&self, cx: &Cx<'_, Self>) -> Option<Change> {
        let Membership { view, sealed, .. } = &self.state.membership;
        let nodes: Vec<NodeId> = self.state.replica.topology.node_ids().collect();
        let is_here: Vec<bool> = nodes.iter().map(|node| self.is_here(cx, *node)).collect();
        let is_silent = |node: &NodeId| view.has(*node) && !is_here[node.index()];
        let out: Vec<NodeId> = nodes.iter().copied().filter(is_silent).collect();
        let lags = self.laggards(cx);
        let is_free = |node: NodeId| !lags.contains(&node) && !self.is_penalized(cx, node);
        let may_join = |node: NodeId| is_here[node.index()] && self.may_join(node) && is_free(node);
        let is_back = |node: &NodeId| !view.has(*node) && may_join(*node);
        let joining = nodes.iter().copied().filter(is_back).collect();
        let mut seal = Seal { of: view.number, out, joining };
        for &node in nodes.iter().filter(|node| view.has(**node) && is_here[node.index()]) {
            let is_leaving = self.state.is_leaving(node) && self.state.do_enough_stay();
            let is_late = self.is_straggler(node) || lags.contains(&node);
            if !self.has_no_life(node) && !is_late && !is_leaving {
                continue;
            }
            let mut with = seal.clone();
            with.out.push(node);
            with.joining.extend(may_join(node).then_some(node));
            // The others can't do without it yet, or have to.
            seal = if view.allows(&with) { with } else { seal };
        }
        let is_news = match sealed {
            None => !seal.out.is_empty() || !seal.joining.is_empty(),
            // It must not wait for a report that does not come.
            Some(Sealed { seal, .. }) => view.next_members(seal).iter().any(|node| {
                let is_able = match seal.joining.contains(node) {
                    true => !self.lacks_data(*node),
                    false => !self.has_no_life(*node),
                };
                !is_here[node.index()] || !is_able
            }),
        };
        let is_other = sealed.as_ref().is_none_or(|it| it.seal != seal);
        (is_news && is_other && view.allows(&seal)).then_some(Change::Seal(seal))
    }

    /// Whether a message of a replica has arrived lately.
    pub(super) fn hears(&self, cx: &Cx<'_, Self>, node: NodeId) -> bool {
        let State { replica, options, membership, .. } = &self.state;
        let removal = Span::from_us(SILENT_ROUND_TRIPS * replica.topology.round_trip_max().us)
            .max(options.removal());
        node == replica.me || cx.now.at.since(membership.heard_at[node.index()]) < removal
    }

    /// Whether a replica is there: this one hears it, or hears a member that does. While a seal
    /// waits for reports, only those count that can report to this one.
    fn is_here(&self, cx: &Cx<'_, Self>, node: NodeId) -> bool {
        let State { membership, epochs, replica, .. } = &self.state;
        let others = replica.peers().filter(|peer| *peer != node && membership.view.has(*peer));
        let mut hearers = others.filter(|peer| epochs.hearing.is_heard_by(*peer, node));
        let may_be_relayed = membership.sealed.is_none() && membership.view.has(node);
        self.hears(cx, node) || may_be_relayed && hearers.any(|peer| self.hears(cx, peer))
    }

    /// Whether a member lost its disk, according to its last report.
    fn has_no_life(&self, node: NodeId) -> bool {
        let Membership { view, has_no_life, progress, .. } = &self.state.membership;
        if node == self.state.me() {
            return *has_no_life;
        }
        let Progress { view: its_view, life, .. } = progress[node.index()];
        its_view == view.number && life != view.lives[node.index()].joined
    }

    /// Whether a replica that is about to join has lost its disk since, according to its last
    /// report.
    fn lacks_data(&self, node: NodeId) -> bool {
        let Membership { view, progress, .. } = &self.state.membership;
        if node == self.state.me() {
            return self.state.is_rejoining();
        }
        let Progress { view: its_view, may_join, .. } = progress[node.index()];
        its_view == view.number && !may_join
    }

    /// Whether too much is retained for a member that is far behind.
    fn is_straggler(&self, node: NodeId) -> bool {
        let most = self.state.options.behind_bytes;
        node != self.state.me() && self.state.streams.bytes_kept_for(node) > most
    }

    /// The members that are alive, and for which an epoch has waited too long. None while a view is
    /// about to begin: some members end no epochs then.
    pub(super) fn laggards(&self, cx: &Cx<'_, Self>) -> Vec<NodeId> {
        if self.state.membership.is_sealed() {
            return Vec::new();
        }
        let round_trip = self.state.replica.topology.round_trip_max().us;
        let least = Span::from_us(SILENT_ROUND_TRIPS * round_trip);
        self.state.laggards(cx, self.state.options.lag().max(least))
    }

    /// Whether a replica was removed lately because it was late.
    fn is_penalized(&self, cx: &Cx<'_, Self>, node: NodeId) -> bool {
        let penalty = LAG_PENALTY * self.state.options.lag().us;
        let lagged_at = self.state.membership.lagged_at[node.index()];
        lagged_at.is_some_and(|at| cx.now.at.since(at).us < penalty)
    }

    /// Whether a replica can begin a life. It may have merged less than the members: they do not
    /// wait for that, and it may have to join before it can merge more, so that others can be
    /// removed.
    fn may_join(&self, node: NodeId) -> bool {
        let Membership { view, progress, .. } = &self.state.membership;
        if self.state.is_stopping(node) {
            return false;
        }
        if node == self.state.me() {
            return !self.state.is_rejoining();
        }
        let Progress { view: its_view, may_join, .. } = progress[node.index()];
        its_view == view.number && may_join && !self.is_straggler(node)
    }
}

/// The time for which the others are excused after this replica was late by so much.
fn grace_after(late: Span) -> Span {
    Span::from_us(late.us / 2).min(GRACE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All replicas run a large program at the same place in the order, and one of them is done
    /// first.
    #[test]
    fn a_replica_that_was_busy_gives_the_others_time_to_end_as_well() {
        let at = Timestamp::from_us;
        let mut membership = Membership::new(2);
        membership.heard_at = vec![at(900_000), at(100_000)];
        membership.excuse(at(3_000_000), Span::from_ms(2_000));
        assert_eq!(membership.heard_at, [at(3_900_000), at(3_100_000)]);
        membership.excuse(at(3_700_000_000), Span::from_ms(3_600_000));
        assert_eq!(membership.heard_at[0], at(3_603_900_000) + GRACE_MAX);
        assert_eq!(grace_after(Span::from_ms(3_600_000)), GRACE_MAX, "a suspended machine");
    }
}
