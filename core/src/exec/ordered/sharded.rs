//! Ordered execution on one of several shards (Calvin §3.2).
//!
//! Every shard is given the transactions that concern it, in the serial order, and locks its own
//! rows alone, in that order. A transaction goes through the paper's five phases:
//!
//! ```text
//!   1 footprint     which shards it reads on, and on which of them it writes: those are active
//!   2 local reads   when its locks are granted: this shard's rows within the footprint
//!   3 serve         they go to the active shards; one that is not active has done its part
//!   4 collect       an active shard waits for the rows of all others, and holds its locks
//!   5 run, apply    the program, with all of the rows; what it writes here is written
//! ```
//!
//! All active shards run the same program on the same rows, so they come to the same end, and there
//! is nothing to agree on. One that lacks rows holds up those behind it that want its locks, and
//! nobody else of its epoch.
//!
//! **Footprints are given**: by the procedure's declaration, or with the transaction, where a
//! reconnaissance found it (§3.2.1). A run that leaves it ends as [`Went::Left`] on every active
//! shard, having changed nothing; who took it takes it again, with what a new reconnaissance finds.
//! Unlike in [`execute`](super::execute) it can't be run again at once, for what it wants next may
//! be on a shard that has gone on.
//!
//! **Certified** transactions bring no rows: each shard says whether what was read of its rows is
//! still current, and the writes are applied where all say so.
//!
//! **Limits.** Where one shard's rows of a transaction are more than can be sent, it says so in
//! their place, and all active shards abort it with 54000. So they do where its result is too long.
//!
//! **Determinism.** What a transaction reads follows from its place and from the rows, however
//! messages come and whatever runs beside it. When it runs does not.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::locked::{Attempt, Others, Runner, Scratch};
use super::part::{Gathered, Limits, Part};
use super::participants::Participants;
use super::queues::Queues;
use super::schedule::{Graph, Locks};
use super::{IN_ORDER_JOBS_MAX, Job, Told, dispatch};
use crate::exec::beyond::{Beyond, Rows};
use crate::exec::call;
use crate::exec::certify::Change;
use crate::exec::size::part_too_large;
use crate::hash::HashMap;
use crate::ids::{ShardId, SnapshotVersion, TxnId};
use crate::key::Direction;
use crate::partition::{Partitions, ShardSet};
use crate::planted::{Bug, is_planted};
use crate::pool::Pool;
use crate::store::{RecordHeader, Store};
use crate::txn::{
    Abort, Certified, Footprint, PointLock, Program, RangeLock, RangeRead, ReadSet, Registry,
    SqlState, Write,
};

/// The transactions of one shard that have not ended there, in the serial order.
#[derive(Debug)]
pub struct Sharded {
    partitions: Arc<Partitions>,
    here: ShardId,
    pending: VecDeque<Pending>,
    /// The number of the first of them.
    first: u64,
    numbers: HashMap<TxnId, u64>,
    locks: Queues,
    /// For which something may be done now.
    ready: BinaryHeap<Reverse<u64>>,
    /// What other shards have served, also of transactions whose turn has not come here.
    parts: BTreeMap<TxnId, BTreeMap<ShardId, Part>>,
    limits: Limits,
}

/// A transaction for which something is left to do here.
#[derive(Debug)]
struct Pending {
    txn: TxnId,
    version: SnapshotVersion,
    program: Program,
    /// All that it may touch, on any shard.
    footprint: Footprint,
    /// Whether somebody said so.
    is_known: bool,
    /// What of it is here, where that is not all of it.
    part_here: Option<Footprint>,
    shards: Participants,
    /// Whether this shard's rows were served.
    is_served: bool,
    /// They were too many: so many bytes.
    too_large: Option<u64>,
    /// Whether it runs, or has run.
    runs: bool,
}

/// Rows for other shards.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// For which transaction.
    pub txn: TxnId,
    /// The version that it writes at.
    pub version: SnapshotVersion,
    /// To whom they go.
    pub to: ShardSet,
    /// What they are.
    pub part: Part,
}

/// A transaction that ended here.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Which.
    pub txn: TxnId,
    /// The version that it wrote at.
    pub version: SnapshotVersion,
    /// The shards that run it.
    pub active: ShardSet,
    /// How.
    pub went: Went,
}

/// How a transaction ended on one shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Went {
    /// It ran here, and its writes are applied. All shards that ran it have the same result.
    Ran(Result<Vec<u8>, Abort>),
    /// It touched something outside of its footprint, and changed nothing anywhere.
    Left,
    /// It did not run here: this shard's rows were read for others.
    Served,
}

/// What a shard does next for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Act {
    /// Where it is among the pending.
    at: usize,
    /// Whether its rows are read for others.
    serves: bool,
    /// Whether all that it needs is there, so that it ends.
    runs: bool,
}

/// What came of an act.
struct Acted {
    served: Option<Served>,
    went: Option<Went>,
}

/// The shards that a transaction concerns which `home` took and that touches so much: those that
/// have to be given it.
pub fn concerned(partitions: &Partitions, footprint: &Footprint, home: ShardId) -> ShardSet {
    Participants::of(partitions, footprint, home).all()
}

impl Sharded {
    /// Nothing is pending.
    pub fn new(partitions: Arc<Partitions>, here: ShardId) -> Self {
        Self::within(Limits::default(), partitions, here)
    }

    /// The same with other limits.
    pub(super) fn within(limits: Limits, partitions: Arc<Partitions>, here: ShardId) -> Self {
        assert!(here.0 < partitions.shards(), "a shard is one of those that there are");
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

    /// The next transaction of the serial order. `home` is the shard of the node that took it, and
    /// runs it where it writes nowhere. Nothing comes of one that does not concern this shard.
    ///
    /// One whose footprint is neither given nor declared concerns its home alone, which refuses it.
    ///
    /// # Panics
    /// When the version is before that of an earlier one.
    pub fn push(
        &mut self,
        registry: &Registry,
        version: SnapshotVersion,
        txn: TxnId,
        home: ShardId,
        (program, footprint): (&Program, Option<&Footprint>),
    ) {
        let last = self.pending.back();
        assert!(last.is_none_or(|last| last.version <= version), "the order is that of versions");
        let mut is_known = true;
        let footprint = match (program, footprint) {
            (Program::Certified(Certified { reads, writes, .. }), _) => {
                Footprint::of_run(reads, writes)
            }
            (Program::Call { .. }, Some(given)) => given.clone(),
            (Program::Call { procedure, args }, None) => {
                let declared = call::footprint(registry, *procedure, args);
                is_known = declared.is_some();
                declared.unwrap_or_default()
            }
        };
        let shards = Participants::of(&self.partitions, &footprint, home);
        if !shards.all().contains(self.here) {
            return;
        }
        let is_alone = shards.all() == ShardSet::one(self.here);
        let part_here = (!is_alone).then(|| self.of_here(&footprint));
        let number = self.first + self.pending.len() as u64;
        if self.locks.ask(part_here.as_ref().unwrap_or(&footprint))
            || is_planted(Bug::ServedOutOfTurn)
        {
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
            is_served: false,
            too_large: None,
            runs: false,
        });
    }

    /// Another shard has served a transaction. What it served before counts once.
    pub fn receive(&mut self, txn: TxnId, from: ShardId, part: Part) {
        self.parts.entry(txn).or_default().insert(from, part);
        if let Some(number) = self.numbers.get(&txn)
            && self.locks.has_all(*number)
        {
            self.ready.push(Reverse(*number));
        }
    }

    /// Forgets what has come of a transaction that has ended here: it came twice.
    pub fn forget(&mut self, txn: TxnId) {
        self.parts.remove(&txn);
    }

    /// How many transactions have not ended here.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks for that")]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether something can be done now, perhaps.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The version of the first transaction that has not ended here: all before it are complete.
    pub fn oldest(&self) -> Option<SnapshotVersion> {
        self.pending.front().map(|pending| pending.version)
    }

    /// Whose rows the first transaction lacks that has not ended here, and its version.
    pub fn lacking(&self) -> Option<(SnapshotVersion, ShardSet)> {
        let first = self.pending.front()?;
        let lacks = self.lacks(first);
        (!lacks.is_empty()).then_some((first.version, lacks))
    }

    /// Does what can be done now, of so many transactions at most: what they serve others wait for.
    pub fn go_on(
        &mut self,
        pool: &dyn Pool,
        registry: &Registry,
        store: &Store,
        header: &(dyn Fn(&Job<'_>) -> RecordHeader + Sync),
        most: usize,
    ) -> (Vec<Served>, Vec<Ended>) {
        let acts = self.acts(most);
        let (mut served, mut ended) = (Vec::new(), Vec::new());
        let version_of = |act: &Act| self.pending[act.at].version;
        let by_version: Vec<&[Act]> =
            acts.chunk_by(|a, b| version_of(a) == version_of(b)).collect();
        let mut done = Vec::with_capacity(acts.len());
        for acts in by_version {
            let jobs: Vec<Job<'_>> = acts.iter().map(|act| self.pending[act.at].job()).collect();
            let version = version_of(&acts[0]);
            let told = Told::Outcomes;
            let result_bytes_max = self.limits.result;
            let jobs = &jobs[..];
            let runner = Runner { registry, store, version, jobs, header, told, result_bytes_max };
            let acted = self.act_all(pool, &runner, acts);
            done.extend(acts.iter().copied().zip(acted));
        }
        for (Act { at, .. }, Acted { served: rows, went }) in done {
            let Pending { txn, version, shards: Participants { active, .. }, .. } =
                self.pending[at];
            if let Some(Served { part: Part::TooLarge(bytes), .. }) = &rows {
                self.pending[at].too_large = Some(*bytes);
            }
            served.extend(rows);
            if let Some(went) = went {
                self.numbers.remove(&txn);
                self.parts.remove(&txn);
                ended.push(Ended { txn, version, active, went });
            }
        }
        while self.pending.pop_front_if(|first| first.runs).is_some() {
            self.first += 1;
        }
        (served, ended)
    }

    /// The first so many things that can be done now, in the order. Who runs gives its locks to
    /// those who wait for them, and they may run behind it.
    fn acts(&mut self, most: usize) -> Vec<Act> {
        let mut acts = Vec::new();
        let mut granted = Vec::new();
        while acts.len() < most
            && let Some(Reverse(number)) = self.ready.pop()
        {
            // What came twice was told twice.
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
                acts.push(Act { at, serves, runs });
            }
            let lets_go = runs || has_locks && is_planted(Bug::WaitsWithoutLocks);
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

    /// Does acts of one version, as if in order.
    fn act_all(&self, pool: &dyn Pool, runner: &Runner<'_>, acts: &[Act]) -> Vec<Acted> {
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

    fn act(&self, runner: &Runner<'_>, place: usize, act: Act, scratch: &mut Scratch) -> Acted {
        let pending = &self.pending[act.at];
        let is_active = pending.shards.active.contains(self.here);
        let is_verdict = act.runs && is_active && matches!(pending.program, Program::Certified(_));
        let part = (act.serves || is_verdict).then(|| self.read(runner, pending));
        let served = part.clone().filter(|_| act.serves).map(|part| {
            let Pending { txn, version, .. } = *pending;
            Served { txn, version, to: pending.to(self.here), part }
        });
        let went = match (act.runs, is_active) {
            (false, _) => None,
            (true, false) => Some(Went::Served),
            (true, true) => Some(self.run(runner, place, pending, part, scratch)),
        };
        if went.is_none() || went == Some(Went::Served) {
            // It was not given to the runner.
            scratch.skip();
        }
        Acted { served, went }
    }

    /// Phase 2: this shard's rows of a transaction.
    fn read(&self, runner: &Runner<'_>, pending: &Pending) -> Part {
        let Footprint { points, ranges } = pending.locks();
        if let Program::Certified(Certified { reads, .. }) = &pending.program {
            return Part::Certified(runner.changed_here(&self.reads_of(Some(self.here), reads)));
        }
        let mut rows = Gathered::up_to(self.limits.part);
        let at = runner.version;
        // What all shards have, the others read for themselves.
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

    /// Phase 5.
    fn run(
        &self,
        runner: &Runner<'_>,
        place: usize,
        pending: &Pending,
        own: Option<Part>,
        scratch: &mut Scratch,
    ) -> Went {
        if !pending.is_known {
            scratch.skip();
            return Went::Ran(Err(no_footprint()));
        }
        let is_call = matches!(pending.program, Program::Call { .. });
        if is_call && pending.part_here.is_none() {
            return Went::of(runner.run(place, &Locks::Given(&pending.footprint), scratch));
        }
        let mut parts: BTreeMap<ShardId, &Part> =
            self.parts.get(&pending.txn).into_iter().flatten().map(|(of, it)| (*of, it)).collect();
        let own = own.or(pending.too_large.map(Part::TooLarge));
        parts.extend(own.as_ref().map(|own| (self.here, own)));
        let (mut rows, mut change): (Rows, Option<&Change>) = (Rows::new(), None);
        for (shard, part) in parts {
            match part {
                Part::Rows(_) if is_planted(Bug::RemoteRowsLost) => {}
                Part::Rows(came) if shard != self.here => {
                    let named = |row: &Write| ((row.table, row.key.clone()), row.clone());
                    rows.extend(came.iter().map(named));
                }
                Part::Rows(_) => {}
                // Of several, the first shard's, on all that run it.
                Part::TooLarge(bytes) => {
                    scratch.skip();
                    return Went::Ran(Err(part_too_large(shard, *bytes, self.limits.part)));
                }
                // Of several, that of the first shard is told: all tell the same.
                Part::Certified(found) => change = change.or(found.as_ref()),
            }
        }
        // And last what each sees for itself.
        let everywhere = match &pending.program {
            Program::Certified(Certified { reads, .. }) => {
                runner.changed_here(&self.reads_of(None, reads))
            }
            Program::Call { .. } => None,
        };
        change = change.or(everywhere.as_ref());
        let beyond = Beyond { partitions: &self.partitions, here: self.here, rows: &rows };
        let others = Others { beyond, change };
        Went::of(runner.run_with(place, &pending.footprint, &others, scratch))
    }

    /// Whose rows of a transaction are needed here and have not come.
    fn lacks(&self, pending: &Pending) -> ShardSet {
        let Participants { active, reading } = pending.shards;
        if !active.contains(self.here) {
            return ShardSet::default();
        }
        let came = self.parts.get(&pending.txn).into_iter().flatten();
        // A part of the other kind is nobody's.
        let is_call = matches!(pending.program, Program::Call { .. });
        let fits = |(_, part): &(&ShardId, &Part)| part.is_of_call() == is_call;
        let came = came.filter(fits).map(|(shard, _)| *shard).collect();
        reading.except(self.here).without(came)
    }

    /// What of a footprint is here.
    fn of_here(&self, footprint: &Footprint) -> Footprint {
        let holds = |lock: &&PointLock| self.partitions.holds(self.here, lock.table, &lock.key);
        let points = footprint.points.iter().filter(holds).cloned().collect();
        let reaches = |lock: &&RangeLock| {
            let shards = self.partitions.shards_of(lock.table, &lock.range);
            shards.is_none_or(|shards| shards.contains(self.here))
        };
        Footprint { points, ranges: footprint.ranges.iter().filter(reaches).cloned().collect() }
    }

    /// What of a read set is on one shard alone, or, of none, what is everywhere.
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

impl Went {
    fn of(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Ended { outcome, .. } => Self::Ran(outcome),
            Attempt::LeftItsFootprint => Self::Left,
        }
    }
}

impl Pending {
    fn job(&self) -> Job<'_> {
        Job { txn: self.txn, program: &self.program, footprint: Some(&self.footprint) }
    }

    /// What it locks here.
    fn locks(&self) -> &Footprint {
        self.part_here.as_ref().unwrap_or(&self.footprint)
    }

    /// To whom `here` serves its rows.
    fn to(&self, here: ShardId) -> ShardSet {
        self.shards.active.except(here)
    }
}

/// A program came to its place of which nobody said what it would touch.
fn no_footprint() -> Abort {
    let message = "a transaction over several shards must declare what it touches";
    Abort::new(SqlState::INTERNAL_ERROR, message)
}
