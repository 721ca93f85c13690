//! Attempts: how one of a transaction over several shards ends, and when the next one begins.
//!
//! | an attempt | the next one begins |
//! |---|---|
//! | meets a row that is locked | after a random time, and not often |
//! | meets a row of another shard that has changed | at once: the row stays locked for it |
//! | gets no answer | at once |
//! | loses the connection to a shard, or reads what may be void | after a random time |
//! | is of an epoch before | at once |

use pangea_core::exec::Change;
use pangea_core::ids::{NodeId, ShardId};
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::Program;

use super::super::super::Mako;
use super::super::items::{Attempt, Item};
use super::Phase;

/// After this number of attempts a transaction is aborted with 40001.
const TRIES_MAX: u32 = 64;

/// The range of the random time between the first two attempts, in microseconds. Its end doubles
/// with each attempt, up to the maximum.
const REST_US: (u64, u64, u64) = (200, 1_000, 20_000);

/// The range of the random time before an attempt that had to wait for the end of an epoch.
const DOUBT_US: (u64, u64) = (2_000, 20_000);

/// The maximum is at least this number of the longest round trips. Two transactions of different
/// coordinators that each lock a row which the other one needs are both refused, unless they are
/// further apart than the time of an attempt.
const REST_ROUND_TRIPS: u64 = 8;

/// An attempt is given up if no answer has arrived for this time and some of the longest round
/// trips. A program may read rows of other shards one after the other, so the whole attempt has no
/// limit: one that is given up before it can end is given up each time.
const PATIENCE: Span = Span::from_ms(100);

/// The number of these round trips.
const PATIENCE_ROUND_TRIPS: u64 = 4;

/// After this number of late attempts the time doubles with each further one: the leaders may be
/// busy with long programs. Not before, because an attempt holds locks.
const LATE_MAX: u32 = 8;

/// The maximum number of doublings.
const PATIENCE_DOUBLINGS_MAX: u32 = 6;

impl Mako {
    /// Ends an attempt: the transaction tries again, unless it can't.
    pub(super) fn end_attempt(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt, change: Change) {
        cx.mark("mako.attempt_failed");
        self.give_up_attempt(attempt);
        let round_trip = self.state.replica.topology.round_trip_max();
        let Some(over) = self.coordination() else { return };
        let Some(found) = over.coordinated(attempt) else { return };
        let is_final = matches!(found.request.program, Program::Certified(_));
        if !is_final && found.tries < TRIES_MAX {
            let (least, first, most) = REST_US;
            let most = most.max(REST_ROUND_TRIPS * round_trip.us);
            let limit = (first << found.tries.min(24)).min(most);
            let rest = Span::from_us(cx.rng.u64(least..limit));
            over.resting.insert((cx.now.at + rest, attempt.txn));
            self.shards().counts.retries += 1;
            return;
        }
        over.coordinated.remove(&attempt.txn);
        self.refuse(cx, attempt.txn, change.into_abort());
    }

    /// Tells the other shards that an attempt has ended without effect.
    fn give_up_attempt(&mut self, attempt: Attempt) {
        self.give_up_attempt_except(attempt, None);
    }

    /// The same, but a shard keeps its rows locked for the next attempt.
    fn give_up_attempt_except(&mut self, attempt: Attempt, keeps: Option<ShardId>) {
        let Some(over) = self.coordination() else { return };
        let Some(found) = over.coordinated(attempt) else { return };
        let kept = std::mem::replace(&mut found.kept, keeps);
        let written = match std::mem::replace(&mut found.phase, Phase::Resting) {
            Phase::Certifying(certifying) => certifying.written,
            Phase::Preparing(preparing) => preparing.written(),
            Phase::Resting | Phase::Reading(_) | Phase::Waiting(_) => ShardSet::default(),
        };
        let locked = kept.map_or(written, |kept| written.union(ShardSet::one(kept)));
        for shard in locked.iter().filter(|shard| Some(*shard) != keeps) {
            self.post(shard, attempt, Item::Forget);
        }
        self.forget(attempt);
    }

    /// Another shard has found a row changed, and keeps its rows locked: the next attempt begins at
    /// once, and reads them again.
    pub(in super::super) fn on_stale(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        change: Change,
    ) {
        if self.certifying(attempt).is_none() && self.preparing(attempt).is_none() {
            return;
        }
        let Some(found) = self.coordination().and_then(|over| over.coordinated(attempt)) else {
            return;
        };
        let is_final = matches!(found.request.program, Program::Certified(_));
        if is_final || found.tries >= TRIES_MAX {
            return self.end_attempt(cx, attempt, change);
        }
        cx.mark("mako.rows_kept");
        self.shards().counts.retries += 1;
        self.give_up_attempt_except(attempt, Some(from));
        self.begin_attempt(cx, attempt.txn);
    }

    /// The shard that has kept rows for an attempt need not, unless the attempt writes there.
    pub(in super::super) fn forget_kept(&mut self, attempt: Attempt, written: ShardSet) {
        let Some(over) = self.coordination() else { return };
        let kept = over.coordinated(attempt).and_then(|found| found.kept.take());
        if let Some(shard) = kept.filter(|shard| !written.contains(*shard)) {
            self.post(shard, attempt, Item::Forget);
        }
    }

    /// Begins the attempts whose time has come.
    pub(in super::super) fn try_again(&mut self, cx: &mut Cx<'_, Self>) {
        loop {
            let Some(over) = self.coordination() else { return };
            let Some((at, txn)) = over.resting.first().copied() else { return };
            if at > cx.now.at {
                return;
            }
            over.resting.remove(&(at, txn));
            self.begin_attempt(cx, txn);
        }
    }

    /// Gives up attempts of which messages may be lost, and asks how those of others have ended.
    pub(in super::super::super) fn end_late_attempts(&mut self, cx: &mut Cx<'_, Self>) {
        let round_trip = self.state.replica.topology.round_trip_max();
        let patience = PATIENCE.us + PATIENCE_ROUND_TRIPS * round_trip.us;
        let own = self.state.own_shard();
        let Some(over) = self.coordination() else { return };
        let is_late = |since: Timestamp| cx.now.at.since(since).us > patience;
        let late = over.coordinated.iter().filter(|(_, found)| {
            let patience =
                patience << found.late.saturating_sub(LATE_MAX).min(PATIENCE_DOUBLINGS_MAX);
            let is_idle = matches!(found.phase, Phase::Resting | Phase::Waiting(_));
            !is_idle && cx.now.at.since(found.since).us > patience
        });
        let late: Vec<Attempt> =
            late.map(|(txn, found)| Attempt { txn: *txn, number: found.attempt }).collect();
        let hanging = over
            .pending
            .iter_mut()
            .filter(|(_, pending)| pending.coordinator != own && is_late(pending.since));
        let hanging: Vec<(ShardId, Attempt)> = hanging
            .map(|(txn, pending)| {
                pending.since = cx.now.at;
                (pending.coordinator, Attempt { txn: *txn, number: pending.attempt })
            })
            .collect();
        for attempt in late {
            cx.mark("mako.attempt_late");
            if let Some(found) = self.coordination().and_then(|over| over.coordinated(attempt)) {
                found.late += 1;
            }
            self.postpone(attempt, cx.now.at);
            self.shards().counts.late += 1;
        }
        for (shard, attempt) in hanging {
            self.post(shard, attempt, Item::Inquire);
        }
    }

    /// Gives up an attempt that has not met a conflict. The next one begins at some time.
    pub(super) fn postpone(&mut self, attempt: Attempt, until: Timestamp) {
        self.give_up_attempt(attempt);
        let Some(over) = self.coordination() else { return };
        if let Some(found) = over.coordinated(attempt) {
            found.tries -= 1;
            over.resting.insert((until, attempt.txn));
        }
    }

    /// The connection to a node is lost: attempts that wait for its answer are given up, because
    /// their locks would keep others waiting.
    pub(in super::super) fn on_leader_lost(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        let shards = self.shards();
        let Some(shard) = shards.ids().find(|shard| shards.leader_of(*shard) == Some(node)) else {
            return;
        };
        let Some(over) = self.coordination() else { return };
        let open = over.coordinated.iter().filter(|(_, found)| match &found.phase {
            Phase::Resting | Phase::Waiting(_) => false,
            Phase::Reading(reading) => reading.requested.contains_key(&shard),
            Phase::Preparing(preparing) => preparing.missing.contains(&shard),
            Phase::Certifying(certifying) => certifying.missing.contains(&shard),
        });
        let open = open.map(|(txn, found)| Attempt { txn: *txn, number: found.attempt });
        for attempt in open.collect::<Vec<_>>() {
            self.on_doubt(cx, attempt);
        }
    }

    /// Gives up all attempts: they are of an epoch before.
    pub(in super::super) fn restart_attempts(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(over) = self.coordination() else { return };
        let open = over.coordinated.iter();
        let open = open.filter(|(_, found)| !matches!(found.phase, Phase::Resting));
        let open = open.map(|(txn, found)| Attempt { txn: *txn, number: found.attempt });
        for attempt in open.collect::<Vec<_>>() {
            self.postpone(attempt, cx.now.at);
        }
    }

    /// A row that an attempt has read may be void, or a shard has no leader: it has to wait.
    pub(in super::super) fn on_doubt(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt) {
        if self.coordination().is_some_and(|over| over.coordinated(attempt).is_some()) {
            cx.mark("mako.attempt_in_doubt");
            let rest = Span::from_us(cx.rng.u64(DOUBT_US.0..DOUBT_US.1));
            self.postpone(attempt, cx.now.at + rest);
        }
    }
}
