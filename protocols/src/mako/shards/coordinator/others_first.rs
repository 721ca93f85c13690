//! Others first: the other shards lock their rows before this one does.
//!
//! ```text
//!   runs the program
//!   Prepare ------> | the other shards lock their rows
//!   <---- Prepared  |
//!   runs it again, on the rows of this shard as they are by then
//!   their part is the same: locks, checks and installs its own part in this step
//! ```
//!
//! Otherwise rows of this shard would be locked for the time of a round trip between leaders, and
//! local transactions that touch them would wait. A row that many transactions write, such as the
//! sum of a warehouse, would then allow one transaction over shards in that time.
//!
//! The writes of the other shards may depend on rows of this one that have changed meanwhile. Then
//! they are not those that the others have locked for, and the next attempt locks its own rows
//! first.
//!
//! It begins when none of its rows of this shard is locked (`queues.rs`). While it waits for
//! others, it holds locks there and none here. A row that is locked here when it runs again ends
//! the attempt: if it waited, two of them could wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::exec::spread::{self, Part, Spread};
use pangea_core::ids::{ShardId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::txn::Program;

use super::super::super::Mako;
use super::super::super::clocks::Clock;
use super::super::super::state::Role;
use super::super::items::{Attempt, Item};
use super::super::participant::Shared;
use super::{Met, Phase, Reading, take_points};

/// An attempt whose other shards lock their rows.
#[derive(Debug)]
pub(super) struct Preparing {
    reading: Box<Reading>,
    /// The reads and writes of the other shards.
    parts: BTreeMap<ShardId, Part>,
    /// The shards that have not answered.
    pub missing: BTreeSet<ShardId>,
    /// The greatest number that was drawn.
    drawn: SnapshotVersion,
    clock: Clock,
}

impl Preparing {
    /// The shards that were asked to lock rows.
    pub(super) fn written(&self) -> ShardSet {
        let written = self.parts.iter().filter(|(_, part)| !part.writes.is_empty());
        written.map(|(shard, _)| *shard).collect()
    }
}

/// Whether a transaction writes on other shards than its own.
pub(super) fn writes_elsewhere(parts: &BTreeMap<ShardId, Part>, own: ShardId) -> bool {
    parts.iter().any(|(shard, part)| *shard != own && !part.writes.is_empty())
}

impl Mako {
    /// Asks the other written shards to lock their rows.
    pub(super) fn prepare_others(
        &mut self,
        cx: &mut Cx<'_, Self>,
        attempt: Attempt,
        mut parts: BTreeMap<ShardId, Part>,
    ) {
        if !self.can_lock_on(&parts) {
            return self.on_doubt(cx, attempt);
        }
        if let Some(mut part) = parts.remove(&self.state.own_shard()) {
            let reads = take_points(&mut part);
            let shared = Shared::of(&reads, &part.writes);
            let Some(over) = self.coordination() else { return };
            let locked = over.can_lock(attempt.txn, &part.writes, &shared);
            if locked.is_err_and(|change| self.wait_for_row(cx, attempt, &change)) {
                return;
            }
        }
        let mut missing = BTreeSet::new();
        for (shard, part) in parts.iter().filter(|(_, part)| !part.writes.is_empty()) {
            let Part { reads, writes } = part.clone();
            missing.insert(*shard);
            self.post(*shard, attempt, Item::Prepare { reads, writes });
        }
        self.forget_kept(attempt, missing.iter().copied().collect());
        let Some(over) = self.coordination() else { return };
        let Some(found) = over.coordinated(attempt) else { return };
        if let Phase::Reading(reading) = std::mem::replace(&mut found.phase, Phase::Resting) {
            let (drawn, clock) = Default::default();
            let preparing = Preparing { reading, parts, missing, drawn, clock };
            found.phase = Phase::Preparing(Box::new(preparing));
        }
    }

    pub(super) fn preparing(&mut self, attempt: Attempt) -> Option<&mut Preparing> {
        match &mut self.coordination()?.coordinated(attempt)?.phase {
            Phase::Preparing(preparing) => Some(preparing),
            _ => None,
        }
    }

    /// Another shard has locked its rows.
    pub(super) fn on_other_prepared(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        (draw, clock): (SnapshotVersion, &Clock),
    ) {
        let Some(preparing) = self.preparing(attempt) else { return };
        if !preparing.missing.remove(&from) {
            return;
        }
        preparing.drawn = preparing.drawn.max(draw);
        preparing.clock.merge(clock);
        if preparing.missing.is_empty() {
            self.run_again(cx, attempt);
        }
    }

    /// All other shards have locked their rows: the program runs on the newest rows of this one.
    fn run_again(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt) {
        let Role::Leading(leading) = &mut self.state.role else { return };
        let Some(shards) = &self.state.shards else { return };
        let Some(found) = leading.over.coordinated(attempt) else { return };
        let (Phase::Preparing(preparing), Program::Call { procedure, args }) =
            (&mut found.phase, &found.request.program)
        else {
            return;
        };
        let place = (&*shards.partitions, shards.own);
        let (call, known) = ((*procedure, &args[..]), &preparing.reading.known);
        let Spread::Ran { result, reads, writes } =
            spread::run(&self.state.registry, call, cx.store, place, known)
        else {
            return self.begin_with_own(cx, attempt);
        };
        let mut parts = spread::divide(place.0, place.1, &reads, &writes);
        let own = parts.remove(&place.1);
        let are_same = parts == preparing.parts;
        if !mutate!(MakoOthersUncompared: are_same => true) {
            return self.begin_with_own(cx, attempt);
        }
        parts.extend(own.map(|own| (place.1, own)));
        let prepared = Some((preparing.drawn, std::mem::take(&mut preparing.clock)));
        let met = Met { counter: preparing.reading.met, prepared };
        self.begin_certification(cx, attempt, result, parts, met);
    }

    /// What the other shards have locked is not what the program writes by now: the next attempt
    /// locks the rows of this shard first.
    fn begin_with_own(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt) {
        cx.mark("mako.own_first");
        if let Some(found) = self.coordination().and_then(|over| over.coordinated(attempt)) {
            found.own_first = true;
        }
        self.postpone(attempt, cx.now.at);
    }
}
