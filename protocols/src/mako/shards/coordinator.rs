//! Coordination: a leader runs a transaction over several shards, and asks the others whether its
//! rows are current (§4.2).
//!
//! ```text
//!   reading      runs the program, until all rows of other shards are known
//!   preparing    each written shard has locked its rows and drawn a number
//!   validating   each other read is current, on all shards with reads
//!   certified    installed here, and sent to the other written shards
//! ```
//!
//! A program that writes on other shards has them lock their rows first, and runs again when they
//! have (`others_first.rs`). So rows of this shard are mostly locked, checked and installed in one
//! step.
//!
//! The version is the greatest number that was drawn, or above all that was read. Shards where the
//! transaction writes check its reads when they lock its rows, and lock its reads against writes
//! until they hear how it has ended. So only shards where it does not write validate. A transaction
//! always draws a number here, because its outcome is in this shard's log.
//!
//! If a row of this shard is locked, the transaction waits for its turn (`queues.rs`). If one of
//! another shard is locked, all shards forget the attempt, and the program runs again after a
//! random time. If one has changed, it stays locked, and the program runs again at once. An
//! interactive transaction can't run again.

mod attempts;
mod others_first;

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::exec::reconnaissance::LookupKeys;
use pangea_core::exec::spread::{self, FoundRows, Known, Part, Spread};
use pangea_core::ids::{ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;
use pangea_core::txn::{Certified, Program, ReadSet};

use super::super::Mako;
use super::super::clocks::Clock;
use super::super::log::RunResult;
use super::super::state::{Role, State};
use super::items::{Attempt, Item};
use super::participant::Refusal;
use super::{Coordination, Shards};
use crate::request::Request;
use others_first::Preparing;

/// A transaction that is not certified.
#[derive(Debug)]
pub(crate) struct Coordinated {
    request: Request,
    attempt: u64,
    tries: u32,
    /// The number of attempts that were late.
    late: u32,
    /// Whether it locks the rows of this shard before those of others.
    own_first: bool,
    /// The shard that keeps its rows locked for the next attempt.
    kept: Option<ShardId>,
    /// When the attempt began, or its last answer arrived.
    since: Timestamp,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// It waits for its next attempt.
    Resting,
    Reading(Box<Reading>),
    /// It has all rows of other shards, and waits for a locked one of this shard.
    Waiting(Box<Reading>),
    /// The other shards lock their rows, before this one does.
    Preparing(Box<Preparing>),
    Certifying(Box<Certifying>),
}

#[derive(Debug, Default)]
struct Reading {
    known: Known,
    requested: BTreeMap<ShardId, LookupKeys>,
    met: SnapshotVersion,
}

/// What an attempt has met before it is certified.
#[derive(Debug, Default)]
struct Met {
    /// The greatest counter.
    counter: SnapshotVersion,
    /// If the other shards have locked their rows: the greatest number that they have drawn, and
    /// the versions on which their rows depend.
    prepared: Option<(SnapshotVersion, Clock)>,
}

#[derive(Debug)]
struct Certifying {
    result: RunResult,
    /// The reads that are not checked, by shard.
    reads: BTreeMap<ShardId, ReadSet>,
    /// The other shards that were asked to lock rows.
    written: ShardSet,
    /// The shards on which it depends.
    involved: ShardSet,
    /// The shards that have not answered.
    missing: BTreeSet<ShardId>,
    /// The greatest counter that it has met.
    met: SnapshotVersion,
    /// The greatest number that was drawn.
    drawn: SnapshotVersion,
    /// The version, once all numbers are drawn.
    version: Option<SnapshotVersion>,
    clock: Clock,
}

/// A certified transaction, of which another shard may not know.
#[derive(Debug)]
pub(crate) struct Decision {
    attempt: u64,
    version: SnapshotVersion,
    clock: Clock,
}

impl Decision {
    /// Its version.
    pub(super) fn version(&self) -> SnapshotVersion {
        self.version
    }

    /// Its clock: when that is settled, every shard has its part.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// Takes the reads that this shard checks with the locks: those of single rows.
fn take_points(part: &mut Part) -> ReadSet {
    ReadSet { points: std::mem::take(&mut part.reads.points), ..ReadSet::default() }
}

fn is_empty(reads: &ReadSet) -> bool {
    reads.points.is_empty() && reads.ranges.is_empty()
}

impl Coordination {
    /// The shards that have not answered some transaction of this leader.
    pub(in super::super) fn awaited(&self) -> BTreeSet<ShardId> {
        let of = |found: &Coordinated| -> Vec<ShardId> {
            match &found.phase {
                Phase::Resting | Phase::Waiting(_) => Vec::new(),
                Phase::Reading(reading) => reading.requested.keys().copied().collect(),
                Phase::Preparing(preparing) => preparing.missing.iter().copied().collect(),
                Phase::Certifying(certifying) => certifying.missing.iter().copied().collect(),
            }
        };
        self.coordinated.values().flat_map(of).collect()
    }

    fn coordinated(&mut self, attempt: Attempt) -> Option<&mut Coordinated> {
        let found = self.coordinated.get_mut(&attempt.txn)?;
        (found.attempt == attempt.number).then_some(found)
    }
}

/// A transaction that has waited for a row.
pub(super) enum Waited {
    /// Its turn has come.
    Until(Attempt),
    /// The attempt was given up meanwhile.
    InVain,
}

impl Coordination {
    /// An attempt waits for a row. Returns whether it can.
    pub(super) fn begin_to_wait(&mut self, attempt: Attempt) -> bool {
        let Some(found) = self.coordinated(attempt) else { return false };
        match std::mem::replace(&mut found.phase, Phase::Resting) {
            Phase::Reading(reading) if matches!(found.request.program, Program::Call { .. }) => {
                found.phase = Phase::Waiting(reading);
                true
            }
            other => {
                found.phase = other;
                false
            }
        }
    }

    /// A transaction has its turn.
    pub(super) fn end_to_wait(&mut self, txn: TxnId, now: Timestamp) -> Waited {
        let Some(found) = self.coordinated.get_mut(&txn) else { return Waited::InVain };
        match std::mem::replace(&mut found.phase, Phase::Resting) {
            Phase::Waiting(reading) => {
                (found.phase, found.since) = (Phase::Reading(reading), now);
                Waited::Until(Attempt { txn, number: found.attempt })
            }
            other => {
                found.phase = other;
                Waited::InVain
            }
        }
    }
}

impl Shards {
    /// Whether a part of a transaction accesses a slot that moves.
    pub(super) fn bars_part(&self, Part { reads, writes }: &Part) -> bool {
        reads.points.iter().any(|read| self.bars(read.table, &read.key))
            || reads.ranges.iter().any(|read| self.bars_range(read.table, &read.range))
            || writes.iter().any(|write| self.bars(write.table, &write.key))
    }
}

impl State {
    pub(super) fn own_shard(&self) -> ShardId {
        self.shards.as_ref().map_or(ShardId(0), |shards| shards.own)
    }
}

impl Mako {
    /// Coordinates a transaction that may access rows of other shards.
    pub(super) fn coordinate(&mut self, cx: &mut Cx<'_, Self>, request: Request) {
        cx.mark("mako.coordinated");
        let (txn, since) = (request.txn, cx.now.at);
        let coordinated = Coordinated {
            request,
            attempt: 0,
            tries: 0,
            late: 0,
            own_first: false,
            kept: None,
            since,
            phase: Phase::Resting,
        };
        let Some(over) = self.coordination() else { return };
        over.coordinated.insert(txn, coordinated);
        self.begin_attempt(cx, txn);
    }

    fn begin_attempt(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        let Some(over) = self.coordination() else { return };
        let Some(found) = over.coordinated.get_mut(&txn) else { return };
        found.attempt += 1;
        found.tries += 1;
        found.since = cx.now.at;
        let attempt = Attempt { txn, number: found.attempt };
        let program = found.request.program.clone();
        match program {
            Program::Call { .. } => {
                found.phase = Phase::Reading(Box::default());
                self.run_spread(cx, attempt);
            }
            Program::Certified(Certified { reads, writes, .. }) => {
                let own = self.state.own_shard();
                let shards = self.shards();
                let parts = spread::divide(&shards.partitions, own, &reads, &writes);
                self.begin_certification(cx, attempt, Ok(Vec::new()), parts, Met::default());
            }
        }
    }

    /// Runs the program on the rows that are known.
    pub(super) fn run_spread(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt) {
        let Role::Leading(leading) = &mut self.state.role else { return };
        let Some(shards) = &self.state.shards else { return };
        let Some(found) = leading.over.coordinated(attempt) else { return };
        let (Phase::Reading(reading), Program::Call { procedure, args }) =
            (&mut found.phase, &found.request.program)
        else {
            return;
        };
        let place = (&*shards.partitions, shards.own);
        let call = (*procedure, &args[..]);
        match spread::run(&self.state.registry, call, cx.store, place, &reading.known) {
            Spread::Wants(wants) => {
                reading.requested.clone_from(&wants);
                for (shard, keys) in wants {
                    self.post(shard, attempt, Item::Read(keys));
                }
            }
            Spread::Ran { result, reads, writes } => {
                let parts = spread::divide(place.0, place.1, &reads, &writes);
                let met = reading.met;
                if !found.own_first && others_first::writes_elsewhere(&parts, place.1) {
                    return self.prepare_others(cx, attempt, parts);
                }
                self.begin_certification(
                    cx,
                    attempt,
                    result,
                    parts,
                    Met { counter: met, prepared: None },
                );
            }
        }
    }

    /// An answer to an attempt arrives.
    pub(super) fn note_answer(&mut self, attempt: Attempt, now: Timestamp) {
        if let Some(found) = self.coordination().and_then(|over| over.coordinated(attempt)) {
            found.since = now;
        }
    }

    pub(super) fn on_found(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        (rows, counter): (FoundRows, SnapshotVersion),
    ) {
        let Some(over) = self.coordination() else { return };
        let Some(found) = over.coordinated(attempt) else { return };
        let Phase::Reading(reading) = &mut found.phase else { return };
        let Some(keys) = reading.requested.remove(&from) else { return };
        reading.known.learn(from, &keys, rows);
        reading.met = reading.met.max(counter);
        if reading.requested.is_empty() {
            self.run_spread(cx, attempt);
        }
    }

    /// Whether rows can be locked on these shards: nobody may access a slot that moves, and a shard
    /// without a leader would keep the others' locks waiting.
    fn can_lock_on(&mut self, parts: &BTreeMap<ShardId, Part>) -> bool {
        let shards = self.shards();
        let is_ready = |shard: &ShardId| *shard == shards.own || shards.taking(*shard).is_some();
        parts.keys().all(is_ready) && !parts.values().any(|part| shards.bars_part(part))
    }

    /// Locks the rows of this shard, and asks the other written ones to, unless they have.
    fn begin_certification(
        &mut self,
        cx: &mut Cx<'_, Self>,
        attempt: Attempt,
        result: RunResult,
        mut parts: BTreeMap<ShardId, Part>,
        met: Met,
    ) {
        let own = self.state.own_shard();
        if !self.can_lock_on(&parts) {
            return self.on_doubt(cx, attempt);
        }
        let Part { reads, writes } = {
            let part = parts.entry(own).or_default();
            let reads = take_points(part);
            Part { reads, writes: std::mem::take(&mut part.writes) }
        };
        let (draw, clock) = match self.prepare(cx, own, attempt, &reads, writes) {
            Ok(prepared) => prepared,
            Err(Refusal::Changed(change)) if self.wait_for_row(cx, attempt, &change) => return,
            Err(refusal) => return self.on_refusal(cx, attempt, refusal),
        };
        let involved: ShardSet = parts.keys().copied().collect();
        let mut certifying = Certifying {
            result,
            reads: BTreeMap::new(),
            written: ShardSet::default(),
            involved,
            missing: BTreeSet::new(),
            met: met.counter,
            drawn: draw,
            version: None,
            clock,
        };
        if let Some((drawn, clock)) = &met.prepared {
            certifying.drawn = certifying.drawn.max(*drawn);
            certifying.clock.merge(clock);
        }
        for (shard, mut part) in parts {
            if !part.writes.is_empty() {
                let reads = std::mem::take(&mut part.reads);
                let writes = std::mem::take(&mut part.writes);
                certifying.written = certifying.written.union(ShardSet::one(shard));
                if met.prepared.is_none() {
                    certifying.missing.insert(shard);
                    self.post(shard, attempt, Item::Prepare { reads, writes });
                }
            }
            let has_reads = !is_empty(&part.reads);
            if mutate!(MakoReadShardsUnvalidated: has_reads => has_reads && shard == own) {
                certifying.reads.insert(shard, part.reads);
            }
        }
        self.forget_kept(attempt, certifying.written);
        let is_prepared = certifying.missing.is_empty();
        let Some(over) = self.coordination() else { return };
        let Some(found) = over.coordinated(attempt) else { return };
        found.phase = Phase::Certifying(Box::new(certifying));
        if is_prepared {
            self.begin_validation(cx, attempt);
        }
    }

    fn certifying(&mut self, attempt: Attempt) -> Option<&mut Certifying> {
        match &mut self.coordination()?.coordinated(attempt)?.phase {
            Phase::Certifying(certifying) => Some(certifying),
            Phase::Resting | Phase::Reading(_) | Phase::Waiting(_) | Phase::Preparing(_) => None,
        }
    }

    pub(super) fn on_prepared(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        (draw, clock): (SnapshotVersion, Clock),
    ) {
        let Some(certifying) = self.certifying(attempt) else {
            return self.on_other_prepared(cx, from, attempt, (draw, &clock));
        };
        if certifying.version.is_some() || !certifying.missing.remove(&from) {
            return;
        }
        certifying.drawn = certifying.drawn.max(draw);
        certifying.clock.merge(&clock);
        if certifying.missing.is_empty() {
            self.begin_validation(cx, attempt);
        }
    }

    /// All numbers are drawn: the reads that are not checked are checked.
    fn begin_validation(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt) {
        let own = self.state.own_shard();
        let Some(certifying) = self.certifying(attempt) else { return };
        let version = certifying.drawn.max(certifying.met.next());
        certifying.version = Some(version);
        let mut reads = std::mem::take(&mut certifying.reads);
        let here = reads.remove(&own);
        certifying.missing = reads.keys().copied().collect();
        if let Some(here) = here {
            match self.validate(cx, attempt.txn, version, &here) {
                Ok(clock) => {
                    let certifying = self.certifying(attempt).expect("it was found above");
                    certifying.clock.merge(&clock);
                }
                Err(refusal) => return self.on_refusal(cx, attempt, refusal),
            }
        }
        let is_valid = reads.is_empty();
        for (shard, reads) in reads {
            self.post(shard, attempt, Item::Validate { version, reads });
        }
        if is_valid {
            self.decide(cx, attempt);
        }
    }

    pub(super) fn on_valid(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        clock: &Clock,
    ) {
        let Some(certifying) = self.certifying(attempt) else { return };
        if certifying.version.is_none() || !certifying.missing.remove(&from) {
            return;
        }
        certifying.clock.merge(clock);
        if certifying.missing.is_empty() {
            self.decide(cx, attempt);
        }
    }

    /// The transaction is certified: its writes are installed (§4.2, "Install").
    fn decide(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt) {
        cx.mark("mako.certified");
        let Some(over) = self.coordination() else { return };
        let found = over.coordinated.remove(&attempt.txn).expect("it is being certified");
        let Phase::Certifying(certifying) = found.phase else {
            unreachable!("it is being certified")
        };
        let Certifying { result, written, involved, version, mut clock, .. } = *certifying;
        let version = version.expect("all numbers are drawn");
        let shards = self.shards();
        shards.counts.certified += 1;
        // §4.4: the client is told when each involved shard has replicated everything up to here.
        for shard in involved.iter() {
            clock.raise(shards.clocks.slot_of(shard), version);
        }
        let decision = Decision { attempt: attempt.number, version, clock: clock.clone() };
        if let Some(over) = self.coordination().filter(|_| !written.is_empty()) {
            over.decisions.insert(attempt.txn, decision);
        }
        self.install(cx, attempt, (version, clock.clone()), Some((result, written)));
        for shard in written.iter() {
            let install = Item::Install { version, clock: clock.clone() };
            self.post_replicated((shard, attempt), install, false);
        }
    }

    /// A shard has refused an attempt.
    pub(super) fn on_item_refused(
        &mut self,
        cx: &mut Cx<'_, Self>,
        attempt: Attempt,
        refusal: Refusal,
    ) {
        if self.certifying(attempt).is_some() || self.preparing(attempt).is_some() {
            self.on_refusal(cx, attempt, refusal);
        }
    }

    fn on_refusal(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt, refusal: Refusal) {
        match refusal {
            Refusal::Changed(change) | Refusal::Stale(change) => {
                self.end_attempt(cx, attempt, change);
            }
            Refusal::Doubtful => self.on_doubt(cx, attempt),
        }
    }

    /// A shard has not heard how an attempt has ended that this leader coordinates.
    pub(super) fn on_inquire(&mut self, from: ShardId, attempt: Attempt) {
        let Some(over) = self.coordination() else { return };
        let is_undecided = over.coordinated(attempt).is_some();
        let decision = over.decisions.get(&attempt.txn);
        let answer = match decision.filter(|decision| decision.attempt == attempt.number) {
            Some(Decision { version, clock, .. }) => {
                Item::Install { version: *version, clock: clock.clone() }
            }
            None if is_undecided => return,
            None => Item::Forget,
        };
        self.post(from, attempt, answer);
    }
}
