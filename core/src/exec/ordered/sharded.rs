//! Ordered execution on one of several shards (Calvin §3.2).
//!
//! Every shard receives the transactions that it participates in, in the serial order, and locks
//! only its own rows, in that order. A transaction goes through the paper's five phases:
//!
//! ```text
//!   1 footprint     the shards on which it reads, and those on which it writes: the active ones
//!   2 local reads   once its locks are granted: this shard's rows within the footprint
//!   3 serve         sends them to the active shards; a passive shard is then done
//!   4 collect       an active shard holds its locks and waits for the rows of all other shards
//!   5 run, apply    runs the program with all rows; writes to this shard's rows are applied
//! ```
//!
//! All active shards run the same program on the same rows, so they get the same result and need no
//! agreement on it. A transaction that waits for rows blocks only later transactions that conflict
//! with its locks, not the others of its epoch.
//!
//! **Footprints are given**: the procedure declares the footprint, or it is sent with the
//! transaction after a reconnaissance found it (§3.2.1). A run that violates its footprint ends as
//! [`ShardOutcome::FootprintViolated`] on every active shard, without effects. The node that
//! accepted the transaction submits it again with the result of a new reconnaissance. Unlike in
//! [`execute`](super::execute), it cannot run again at once, because the rows that it needs next
//! may be on a shard that has already proceeded.
//!
//! **Divisible** transactions exchange nothing. Each active shard runs its part alone
//! ([`divisible`]), and passive shards have nothing to do.
//!
//! **Certified** transactions exchange no rows. Each shard reports whether the reads of its rows
//! are still current, and the writes are applied if all shards report so.
//!
//! **Limits.** If one shard's rows for a transaction exceed the size of a message, the shard
//! reports that in their place. All active shards then abort the transaction with 54000. They do
//! the same if its result is too large.
//!
//! **Determinism.** The values that a transaction reads depend only on its place and the rows, not
//! on the arrival of messages or on concurrent execution. Only the time of its execution varies.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::locked::{Attempt, RemoteInputs, Runner, Scratch};
use super::participants::Participants;
use super::queues::Queues;
use super::remote_reads::{Limits, ReadsBuilder, RemoteReads};
use super::schedule::{Graph, Locks};
use super::{IN_ORDER_JOBS_MAX, Job, ResultDetail, dispatch, divisible};
use crate::exec::call;
use crate::exec::certify::Change;
use crate::exec::remote_rows::{RemoteRows, Rows};
use crate::exec::size::part_too_large;
use crate::hash::HashMap;
use crate::ids::{ShardId, SnapshotVersion, TxnId};
use crate::key::Direction;
use crate::mutate;
use crate::partition::{Partitions, ShardSet};
use crate::pool::Pool;
use crate::store::{RecordHeader, Store};
use crate::txn::{
    Abort, Certified, Footprint, PointLock, Program, RangeLock, RangeRead, ReadSet, Registry,
    SqlState, Write,
};

/// The unfinished transactions of one shard, in the serial order.
#[derive(Debug)]
pub struct Sharded {
    partitions: Arc<Partitions>,
    here: ShardId,
    pending: VecDeque<Pending>,
    /// The number of the first transaction in `pending`.
    first: u64,
    numbers: HashMap<TxnId, u64>,
    locks: Queues,
    /// Numbers of transactions that may be able to proceed.
    ready: BinaryHeap<Reverse<u64>>,
    /// Remote reads received from other shards, including those for transactions not yet pushed
    /// here.
    parts: BTreeMap<TxnId, BTreeMap<ShardId, RemoteReads>>,
    limits: Limits,
}

/// A transaction that is not finished on this shard.
#[derive(Debug)]
struct Pending {
    txn: TxnId,
    version: SnapshotVersion,
    program: Program,
    /// The whole footprint, on all shards.
    footprint: Footprint,
    /// Whether the footprint was given or declared.
    is_known: bool,
    /// The part of the footprint on this shard; `None` if that is all of it.
    part_here: Option<Footprint>,
    shards: Participants,
    /// Whether each shard runs its part alone.
    is_divided: bool,
    /// Whether this shard's rows were sent.
    is_served: bool,
    /// The size in bytes of this shard's rows, if they exceeded the limit.
    too_large: Option<u64>,
    /// Whether the program runs or has run.
    runs: bool,
}

/// Remote reads for other shards.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// The transaction.
    pub txn: TxnId,
    /// The version at which the transaction writes.
    pub version: SnapshotVersion,
    /// The receivers.
    pub to: ShardSet,
    /// The rows, or the result of certification.
    pub part: RemoteReads,
}

/// A transaction that finished on this shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The transaction.
    pub txn: TxnId,
    /// The version at which it wrote.
    pub version: SnapshotVersion,
    /// The active shards.
    pub active: ShardSet,
    /// The outcome.
    pub outcome: ShardOutcome,
}

/// The outcome of a transaction on one shard.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardOutcome {
    /// The program ran and its writes are applied. The result is the same on all active shards.
    Ran(Result<Vec<u8>, Abort>),
    /// Footprint violation: rolled back on every shard.
    FootprintViolated,
    /// It has no place in the order, and runs on no shard.
    Void,
    /// Passive participant: this shard only sent its rows to others.
    Served,
}

/// The next action of a shard for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Action {
    /// The index of the transaction in `pending`.
    at: usize,
    /// Whether its rows are read for other shards.
    serves: bool,
    /// Whether all of its inputs are complete, so that it runs and finishes.
    runs: bool,
}

/// The results of an action.
struct ActionResult {
    served: Option<Served>,
    outcome: Option<ShardOutcome>,
}

/// The participants of a transaction with this footprint that shard `home` accepted. The
/// transaction must be sent to all of them.
pub fn concerned(partitions: &Partitions, footprint: &Footprint, home: ShardId) -> ShardSet {
    Participants::of(partitions, footprint, home).all()
}

/// The footprint of a transaction; `None` if it is neither given nor declared.
fn footprint_of(
    registry: &Registry,
    program: &Program,
    given: Option<&Footprint>,
) -> Option<Footprint> {
    match (program, given) {
        (Program::Certified(Certified { reads, writes, .. }), _) => {
            Some(Footprint::of_run(reads, writes))
        }
        (Program::Call { .. }, Some(given)) => Some(given.clone()),
        (Program::Call { procedure, args }, None) => call::footprint(registry, *procedure, args),
    }
}

/// The part of a footprint on one shard.
fn part_of(partitions: &Partitions, here: ShardId, footprint: &Footprint) -> Footprint {
    let holds = |lock: &&PointLock| partitions.holds(here, lock.table, &lock.key);
    let points = footprint.points.iter().filter(holds).cloned().collect();
    let reaches = |lock: &&RangeLock| {
        let shards = partitions.shards_of(lock.table, &lock.range);
        shards.is_none_or(|shards| shards.contains(here))
    };
    Footprint { points, ranges: footprint.ranges.iter().filter(reaches).cloned().collect() }
}

impl Sharded {
    /// Creates a queue without transactions.
    pub fn new(partitions: Arc<Partitions>, here: ShardId) -> Self {
        Self::within(Limits::default(), partitions, here)
    }

    /// Like [`Sharded::new`], with other limits.
    pub(super) fn within(limits: Limits, partitions: Arc<Partitions>, here: ShardId) -> Self {
        assert!(here.0 < partitions.shards(), "the shard exists");
        Self {
            partitions,
            here,
            pending: VecDeque::new(),
            first: 0,
            numbers: HashMap::default(),
            locks: Queues::default(),
            ready: BinaryHeap::new(),
            parts: BTreeMap::new(),
            limits,
        }
    }

    /// Adds the next transaction of the serial order. `home` is the shard of the node that accepted
    /// it; it runs a transaction that has no writes. A transaction in which this shard does not
    /// participate is ignored.
    ///
    /// If the footprint is neither given nor declared, the only participant is the home shard,
    /// which aborts the transaction.
    ///
    /// # Panics
    /// If the version is below that of an earlier transaction.
    pub fn push(
        &mut self,
        registry: &Registry,
        version: SnapshotVersion,
        txn: TxnId,
        home: ShardId,
        (program, footprint): (&Program, Option<&Footprint>),
    ) {
        let last = self.pending.back();
        assert!(last.is_none_or(|last| last.version <= version), "versions are pushed in order");
        let known = footprint_of(registry, program, footprint);
        let is_known = known.is_some();
        let given = (program, footprint);
        let footprint = known.unwrap_or_default();
        let all = Participants::of(&self.partitions, &footprint, home);
        let is_divided = divisible::is_divided(registry, given, all);
        let shards = if is_divided { all.divided() } else { all };
        if !shards.all().contains(self.here) {
            return;
        }
        let is_alone = all.all() == ShardSet::one(self.here);
        let part_here = (!is_alone).then(|| self.of_here(&footprint));
        let no_locks = || part_here.clone().filter(|_| !is_divided).or(Some(Footprint::default()));
        let part_here = mutate!(DividedWithoutLocks: part_here => no_locks());
        let number = self.first + self.pending.len() as u64;
        let has_locks = self.locks.ask(part_here.as_ref().unwrap_or(&footprint));
        if mutate!(ServedOutOfTurn: has_locks => true) {
            self.ready.push(Reverse(number));
        }
        self.numbers.insert(txn, number);
        self.pending.push_back(Pending {
            txn,
            version,
            program: program.clone(),
            part_here,
            footprint,
            is_known,
            shards,
            is_divided,
            is_served: false,
            too_large: None,
            runs: false,
        });
    }

    /// Receives remote reads of a transaction from another shard. Duplicates have no effect.
    pub fn receive(&mut self, txn: TxnId, from: ShardId, part: RemoteReads) {
        self.parts.entry(txn).or_default().insert(from, part);
        if let Some(number) = self.numbers.get(&txn)
            && self.locks.has_all(*number)
        {
            self.ready.push(Reverse(*number));
        }
    }

    /// Drops remote reads that arrived again after their transaction finished here.
    pub fn forget(&mut self, txn: TxnId) {
        self.parts.remove(&txn);
    }

    /// The number of unfinished transactions.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether some transaction may be able to proceed.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The version of the first unfinished transaction; all versions before it are complete.
    pub fn oldest(&self) -> Option<SnapshotVersion> {
        self.pending.front().map(|pending| pending.version)
    }

    /// The version of the first unfinished transaction and the shards whose rows it waits for.
    pub fn lacking(&self) -> Option<(SnapshotVersion, ShardSet)> {
        let first = self.pending.front()?;
        let lacks = self.lacks(first);
        (!lacks.is_empty()).then_some((first.version, lacks))
    }

    /// Carries out all possible actions, for at most `most` transactions so that other shards soon
    /// receive their rows.
    pub fn advance(
        &mut self,
        pool: &dyn Pool,
        registry: &Registry,
        store: &Store,
        header: &(dyn Fn(&Job<'_>) -> RecordHeader + Sync),
        most: usize,
    ) -> (Vec<Served>, Vec<Ended>) {
        let acts = self.acts(most);
        let (mut served, mut ended) = (Vec::new(), Vec::new());
        let version_of = |act: &Action| self.pending[act.at].version;
        let by_version: Vec<&[Action]> =
            acts.chunk_by(|a, b| version_of(a) == version_of(b)).collect();
        let mut done = Vec::with_capacity(acts.len());
        for acts in by_version {
            let jobs: Vec<Job<'_>> = acts.iter().map(|act| self.pending[act.at].job()).collect();
            let version = version_of(&acts[0]);
            let detail = ResultDetail::Outcomes;
            let result_bytes_max = self.limits.result;
            let jobs = &jobs[..];
            let guard = None;
            let runner =
                Runner { registry, store, version, jobs, header, detail, result_bytes_max, guard };
            let acted = self.act_all(pool, &runner, acts);
            done.extend(acts.iter().copied().zip(acted));
        }
        for (Action { at, .. }, ActionResult { served: rows, outcome }) in done {
            let Pending { txn, version, shards: Participants { active, .. }, .. } =
                self.pending[at];
            if let Some(Served { part: RemoteReads::TooLarge(bytes), .. }) = &rows {
                self.pending[at].too_large = Some(*bytes);
            }
            served.extend(rows);
            if let Some(outcome) = outcome {
                self.numbers.remove(&txn);
                self.parts.remove(&txn);
                ended.push(Ended { txn, version, active, outcome });
            }
        }
        while self.pending.pop_front_if(|first| first.runs).is_some() {
            self.first += 1;
        }
        (served, ended)
    }

    /// Returns the first `most` possible actions, in the serial order. A transaction that runs
    /// releases its locks at once; those that acquire them may run after it in the same list.
    fn acts(&mut self, most: usize) -> Vec<Action> {
        let mut acts = Vec::new();
        let mut granted = Vec::new();
        while acts.len() < most
            && let Some(Reverse(number)) = self.ready.pop()
        {
            // Remote reads that arrived twice queued their transaction twice.
            let Some(at) = number.checked_sub(self.first) else { continue };
            let at = at as usize;
            let pending = &self.pending[at];
            if pending.runs {
                continue;
            }
            let has_locks = self.locks.has_all(number);
            let serves = !pending.is_served && pending.shards.reading.contains(self.here);
            let serves = serves && !pending.to(self.here).is_empty();
            let runs = has_locks && self.lacks(pending).is_empty();
            if serves || runs {
                acts.push(Action { at, serves, runs });
            }
            let lets_go = mutate!(WaitsWithoutLocks: runs => has_locks);
            if lets_go && !self.locks.is_released(number) {
                self.locks.release(number, pending.locks(), &mut granted);
                self.ready.extend(granted.drain(..).map(Reverse));
            }
            let pending = &mut self.pending[at];
            pending.is_served |= serves;
            pending.runs = runs;
        }
        acts
    }

    /// Carries out actions of one version with the result of serial execution.
    fn act_all(&self, pool: &dyn Pool, runner: &Runner<'_>, acts: &[Action]) -> Vec<ActionResult> {
        if pool.workers() == 1 || acts.len() <= IN_ORDER_JOBS_MAX {
            let mut scratch = Scratch::default();
            let in_order = |place: usize| {
                runner.warm(place..acts.len(), &mut scratch);
                self.act(runner, place, acts[place], &mut scratch)
            };
            return (0..acts.len()).map(in_order).collect();
        }
        let locks: Vec<Locks<'_>> =
            acts.iter().map(|act| Locks::Given(self.pending[act.at].locks())).collect();
        let graph = Graph::new(pool, &locks.iter().collect::<Vec<_>>());
        dispatch::run(pool, &graph, &|scratch: &mut Scratch, place, next| {
            runner.warm(std::iter::once(place).chain(next), scratch);
            self.act(runner, place, acts[place], scratch)
        })
    }

    fn act(
        &self,
        runner: &Runner<'_>,
        place: usize,
        act: Action,
        scratch: &mut Scratch,
    ) -> ActionResult {
        let pending = &self.pending[act.at];
        let is_active = pending.shards.active.contains(self.here);
        let is_verdict = act.runs && is_active && matches!(pending.program, Program::Certified(_));
        let part = (act.serves || is_verdict).then(|| self.read(runner, pending));
        let served = part.clone().filter(|_| act.serves).map(|part| {
            let Pending { txn, version, .. } = *pending;
            Served { txn, version, to: pending.to(self.here), part }
        });
        let outcome = match (act.runs, is_active) {
            (false, _) => None,
            (true, false) => Some(ShardOutcome::Served),
            (true, true) => Some(self.run(runner, place, pending, part, scratch)),
        };
        if outcome.is_none() || outcome == Some(ShardOutcome::Served) {
            // The program does not run in this action.
            scratch.skip();
        }
        ActionResult { served, outcome }
    }

    /// Phase 2: reads this shard's rows of a transaction.
    fn read(&self, runner: &Runner<'_>, pending: &Pending) -> RemoteReads {
        let Footprint { points, ranges } = pending.locks();
        if let Program::Certified(Certified { reads, .. }) = &pending.program {
            return RemoteReads::Certified(
                runner.changed_here(&self.reads_of(Some(self.here), reads)),
            );
        }
        let mut rows = ReadsBuilder::up_to(self.limits.part);
        let at = runner.version;
        // Rows that are on all shards are not sent: each shard reads its own copy.
        let is_ours = |lock: &&PointLock| {
            lock.mode.reads() && self.partitions.shard_of(lock.table, &lock.key) == Some(self.here)
        };
        if runner.store.has_cold() {
            let ours = points.iter().filter(is_ours);
            runner.store.warm_at(at, ours.map(|lock| (lock.table, &lock.key)));
        }
        for PointLock { table, key, .. } in points.iter().filter(is_ours) {
            let value = runner.store.read(*table, key, at).and_then(|found| found.value);
            if value.is_some_and(|value| rows.add(*table, key, value).is_break()) {
                return rows.part();
            }
        }
        let is_divided = |lock: &&RangeLock| {
            lock.mode.reads() && self.partitions.shards_of(lock.table, &lock.range).is_some()
        };
        for RangeLock { table, range, .. } in ranges.iter().filter(is_divided) {
            runner.store.scan(*table, range, Direction::Forward, at, |key, found| {
                let value = found.value.clone();
                value.map_or(ControlFlow::Continue(()), |value| rows.add(*table, key, value))
            });
            if rows.is_too_large() {
                break;
            }
        }
        rows.part()
    }

    /// Phase 5: runs the program.
    fn run(
        &self,
        runner: &Runner<'_>,
        place: usize,
        pending: &Pending,
        own: Option<RemoteReads>,
        scratch: &mut Scratch,
    ) -> ShardOutcome {
        if !pending.is_known {
            scratch.skip();
            return ShardOutcome::Ran(Err(no_footprint()));
        }
        let is_call = matches!(pending.program, Program::Call { .. });
        if is_call && pending.part_here.is_none() {
            return ShardOutcome::of(runner.run(place, &Locks::Given(&pending.footprint), scratch));
        }
        if pending.is_divided {
            let place_here = (&*self.partitions, self.here);
            return runner.run_divided(place, &pending.footprint, place_here, scratch);
        }
        let mut parts: BTreeMap<ShardId, &RemoteReads> =
            self.parts.get(&pending.txn).into_iter().flatten().map(|(of, it)| (*of, it)).collect();
        let own = own.or(pending.too_large.map(RemoteReads::TooLarge));
        parts.extend(own.as_ref().map(|own| (self.here, own)));
        let (mut rows, mut change): (Rows, Option<&Change>) = (Rows::new(), None);
        for (shard, part) in parts {
            match part {
                RemoteReads::Rows(received) if shard != self.here => {
                    let named = |row: &Write| ((row.table, row.key.clone()), row.clone());
                    mutate!(RemoteRowsLost: rows.extend(received.iter().map(named)) => ());
                }
                RemoteReads::Rows(_) => {}
                // The first shard that exceeds the limit determines the abort, identically on all
                // active shards.
                RemoteReads::TooLarge(bytes) => {
                    scratch.skip();
                    return ShardOutcome::Ran(Err(part_too_large(shard, *bytes, self.limits.part)));
                }
                // The first shard with a stale read determines the abort, identically on all active
                // shards.
                RemoteReads::Certified(found) => change = change.or(found.as_ref()),
            }
        }
        // Reads of tables that are on all shards come last; each shard checks them on its own copy.
        let everywhere = match &pending.program {
            Program::Certified(Certified { reads, .. }) => {
                runner.changed_here(&self.reads_of(None, reads))
            }
            Program::Call { .. } => None,
        };
        change = change.or(everywhere.as_ref());
        let remote_rows = RemoteRows { partitions: &self.partitions, here: self.here, rows: &rows };
        let remote_inputs = RemoteInputs { remote_rows, change, is_divided: false };
        ShardOutcome::of(runner.run_with(place, &pending.footprint, &remote_inputs, scratch))
    }

    /// The shards whose rows this shard needs for a transaction and has not received.
    fn lacks(&self, pending: &Pending) -> ShardSet {
        let Participants { active, reading } = pending.shards;
        if !active.contains(self.here) {
            return ShardSet::default();
        }
        let received = self.parts.get(&pending.txn).into_iter().flatten();
        // Ignores parts of the wrong kind.
        let is_call = matches!(pending.program, Program::Call { .. });
        let fits = |(_, part): &(&ShardId, &RemoteReads)| part.is_of_call() == is_call;
        let received = received.filter(fits).map(|(shard, _)| *shard).collect();
        reading.except(self.here).without(received)
    }

    /// The part of a footprint on this shard.
    fn of_here(&self, footprint: &Footprint) -> Footprint {
        part_of(&self.partitions, self.here, footprint)
    }

    /// The part of a read set that is only on one shard, or, for `None`, on all shards.
    fn reads_of(&self, shard: Option<ShardId>, reads: &ReadSet) -> ReadSet {
        let is_of = |table, key: &[u8]| self.partitions.shard_of(table, key) == shard;
        let points = reads.points.iter().filter(|read| is_of(read.table, &read.key));
        let may_be = |read: &&RangeRead| {
            let shards = self.partitions.shards_of(read.table, &read.range);
            shards.is_none() == shard.is_none()
        };
        let range = |read: &RangeRead| {
            let rows = read.rows.iter().filter(|(key, _)| is_of(read.table, key));
            RangeRead { rows: rows.cloned().collect(), ..read.clone() }
        };
        ReadSet {
            points: points.cloned().collect(),
            ranges: reads.ranges.iter().filter(may_be).map(range).collect(),
        }
    }
}

impl ShardOutcome {
    fn of(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Ended { outcome, .. } => Self::Ran(outcome),
            Attempt::FootprintViolated => Self::FootprintViolated,
            Attempt::PutOff => unreachable!("nobody puts jobs off"),
        }
    }
}

impl Pending {
    fn job(&self) -> Job<'_> {
        Job { txn: self.txn, program: &self.program, footprint: Some(&self.footprint) }
    }

    /// The locks of the transaction on this shard.
    fn locks(&self) -> &Footprint {
        self.part_here.as_ref().unwrap_or(&self.footprint)
    }

    /// The shards to which `here` sends its rows.
    fn to(&self, here: ShardId) -> ShardSet {
        self.shards.active.except(here)
    }
}

/// The abort of a transaction without a footprint.
fn no_footprint() -> Abort {
    let message = "a transaction over several shards must declare its footprint";
    Abort::new(SqlState::INTERNAL_ERROR, message)
}
