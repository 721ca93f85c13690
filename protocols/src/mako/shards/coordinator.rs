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
//! The version is the greatest number that was drawn, or above all that was read. Reads of rows
//! that the transaction writes as well are checked when these are locked, so most transactions need
//! no validation on the shards where they write. On this shard all rows that it has read are
//! locked, against writes: it has run in the same step, so they are current. Other shards do not
//! lock them, because there they would stay locked when this leader fails. A transaction always
//! draws a number here, because its outcome is in this shard's log.
//!
//! If a row of this shard is locked, the transaction waits for its turn (`queues.rs`). If one of
//! another shard is locked, or has changed, all shards forget the attempt, and the program runs
//! again after a random time. An interactive transaction can't run again.

mod attempts;

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
use super::Coordination;
use super::items::{Attempt, Item};
use super::participant::Refusal;
use crate::request::Request;

/// A transaction that is not certified.
#[derive(Debug)]
pub(crate) struct Coordinated {
    request: Request,
    attempt: u64,
    tries: u32,
    /// The number of attempts that were late.
    late: u32,
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
    Certifying(Box<Certifying>),
}

#[derive(Debug, Default)]
struct Reading {
    known: Known,
    requested: BTreeMap<ShardId, LookupKeys>,
    met: SnapshotVersion,
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

/// Takes the reads that another shard checks with the locks: those of rows that are written.
fn with_locks(part: &mut Part) -> ReadSet {
    let is_written = |read: &pangea_core::txn::PointRead| {
        let is_it =
            |write: &pangea_core::txn::Write| (write.table, &write.key) == (read.table, &read.key);
        part.writes.iter().any(is_it)
    };
    let points = std::mem::take(&mut part.reads.points);
    let (written, others) = points.into_iter().partition(is_written);
    part.reads.points = others;
    ReadSet { points: written, ..ReadSet::default() }
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

impl State {
    fn own_shard(&self) -> ShardId {
        self.shards.as_ref().map_or(ShardId(0), |shards| shards.own)
    }
}

impl Mako {
    /// Coordinates a transaction that may access rows of other shards.
    pub(super) fn coordinate(&mut self, cx: &mut Cx<'_, Self>, request: Request) {
        cx.mark("mako.coordinated");
        let (txn, since) = (request.txn, cx.now.at);
        let coordinated =
            Coordinated { request, attempt: 0, tries: 0, late: 0, since, phase: Phase::Resting };
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
                self.begin_certification(cx, attempt, Ok(Vec::new()), parts, SnapshotVersion::ZERO);
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
                self.begin_certification(cx, attempt, result, parts, met);
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

    /// Asks the written shards to lock their rows.
    fn begin_certification(
        &mut self,
        cx: &mut Cx<'_, Self>,
        attempt: Attempt,
        result: RunResult,
        mut parts: BTreeMap<ShardId, Part>,
        met: SnapshotVersion,
    ) {
        let own = self.state.own_shard();
        let shards = self.shards();
        let is_missing = |shard: &ShardId| *shard != own && shards.taking(*shard).is_none();
        if parts.keys().any(is_missing) {
            // It would hold its locks until that shard has a leader.
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
            met,
            drawn: draw,
            version: None,
            clock,
        };
        for (shard, mut part) in parts {
            if !part.writes.is_empty() {
                let reads = with_locks(&mut part);
                let writes = std::mem::take(&mut part.writes);
                certifying.written = certifying.written.union(ShardSet::one(shard));
                certifying.missing.insert(shard);
                self.post(shard, attempt, Item::Prepare { reads, writes });
            }
            let is_unchecked = !is_empty(&part.reads);
            let is_unchecked =
                mutate!(MakoReadShardsUnvalidated: is_unchecked => is_unchecked && shard == own);
            if is_unchecked {
                certifying.reads.insert(shard, part.reads);
            }
        }
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
            Phase::Resting | Phase::Reading(_) | Phase::Waiting(_) => None,
        }
    }

    pub(super) fn on_prepared(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: ShardId,
        attempt: Attempt,
        (draw, clock): (SnapshotVersion, Clock),
    ) {
        let Some(certifying) = self.certifying(attempt) else { return };
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
        if self.certifying(attempt).is_some() {
            self.on_refusal(cx, attempt, refusal);
        }
    }

    fn on_refusal(&mut self, cx: &mut Cx<'_, Self>, attempt: Attempt, refusal: Refusal) {
        match refusal {
            Refusal::Changed(change) => self.end_attempt(cx, attempt, change),
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
