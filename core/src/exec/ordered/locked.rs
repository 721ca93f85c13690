//! One job at its place: the context that keeps a program within its footprint.

use std::ops::ControlFlow;

use super::Job;
use super::extent::locked_part;
use super::schedule::Locks;
use crate::exec::beyond::Beyond;
use crate::exec::call::{call, gather, gave_up, is_bulk};
use crate::exec::certify::{Change, Current, Standing, first_change};
use crate::exec::merge::{self, Above};
use crate::exec::size::check_size;
use crate::exec::writes::OwnWrites;
use crate::hash::hash_bytes;
use crate::ids::{ProcedureId, SnapshotVersion, TableId};
use crate::key::{HashedKey, Key, KeyRange};
use crate::store::{Header, Store, Version, Warmer};
use crate::txn::{
    Abort, Certified, Context, Footprint, Mode, Program, ReadSet, Registry, Scan, Stop, Visit,
    Write,
};
use crate::value::Value;

/// What all jobs of one call have in common.
pub(super) struct Runner<'a, H: Header> {
    pub registry: &'a Registry,
    pub store: &'a Store<H>,
    pub version: SnapshotVersion,
    pub jobs: &'a [Job<'a>],
    pub header: &'a (dyn Fn(&Job<'_>) -> H + Sync),
}

/// What a job has of other shards.
pub(super) struct Others<'a> {
    pub beyond: Beyond<'a>,
    /// The first change of what a certified transaction read, on any shard.
    pub change: Option<&'a Change>,
}

/// How a try of a job ended.
pub(super) enum Attempt {
    /// For good; the writes are applied.
    Ended { outcome: Result<Vec<u8>, Abort>, writes: Vec<Write> },
    /// It touched more than it has locks for, and changed nothing.
    LeftItsFootprint,
}

/// Memory that a worker's jobs use one after the other.
#[derive(Default)]
pub(super) struct Scratch {
    writes: OwnWrites,
    /// The tables that jobs said they would look up rows of: those are in the processor's caches.
    warmed: Vec<TableId>,
    /// So many of the next jobs have been asked what they will look up.
    ahead: usize,
}

impl Scratch {
    /// A job that was asked what it will look up is not run.
    pub fn skip(&mut self) {
        self.ahead = self.ahead.saturating_sub(1);
    }
}

/// So many rows are fetched from memory before the jobs that look them up run: enough that no group
/// of them is small, few enough that they are still in the caches nearest to the core when their
/// job runs.
const AHEAD_ROWS: usize = 64;

impl<H: Header> Runner<'_, H> {
    /// Whether a job's procedure declares a footprint that it never leaves, and it has no other.
    pub fn is_certain(&self, place: usize) -> bool {
        let Job { program, footprint, .. } = self.jobs[place];
        match program {
            Program::Call { procedure, .. } => {
                footprint.is_none() && super::is_certain(self.registry, *procedure)
            }
            Program::Certified(_) => false,
        }
    }

    /// Fetches from memory what some of the next jobs will look up, if that was not done yet.
    pub fn warm(&self, mut next: impl Iterator<Item = usize>, scratch: &mut Scratch) {
        if scratch.ahead > 0 {
            return;
        }
        let Scratch { warmed, ahead, .. } = scratch;
        warmed.clear();
        let mut warmer = Warmer::new(self.store, self.version);
        let mut rows = 0;
        while let Some(place) = next.next().filter(|_| rows < AHEAD_ROWS) {
            *ahead += 1;
            let Program::Call { procedure, args } = self.jobs[place].program else { continue };
            gather(self.registry, *procedure, args, &mut warmer, |table| {
                rows += 1;
                if warmed.last() != Some(&table) && !warmed.contains(&table) {
                    warmed.push(table);
                }
            });
        }
        warmer.fetch();
    }

    /// Runs a job within its locks.
    pub fn run(&self, place: usize, locks: &Locks<'_>, scratch: &mut Scratch) -> Attempt {
        let footprint = match locks {
            Locks::Given(footprint) => Some(*footprint),
            Locks::Found(footprint) => Some(footprint),
            Locks::Certified(_) | Locks::NotNeeded => None,
            Locks::Unknown => unreachable!("footprints are found before a pass"),
        };
        self.attempt(place, footprint, None, scratch)
    }

    /// Runs a job within its locks where rows of it are on other shards: what is there of them came
    /// along, and what it writes there is written there.
    pub fn run_with(
        &self,
        place: usize,
        footprint: &Footprint,
        others: &Others<'_>,
        scratch: &mut Scratch,
    ) -> Attempt {
        self.attempt(place, Some(footprint), Some(others), scratch)
    }

    /// Runs a job while no other runs, so that it may touch anything.
    pub fn run_alone(
        &self,
        place: usize,
        scratch: &mut Scratch,
    ) -> (Result<Vec<u8>, Abort>, Vec<Write>) {
        match self.attempt(place, None, None, scratch) {
            Attempt::Ended { outcome, writes } => (outcome, writes),
            Attempt::LeftItsFootprint => unreachable!("there was no footprint to leave"),
        }
    }

    fn attempt(
        &self,
        place: usize,
        footprint: Option<&Footprint>,
        others: Option<&Others<'_>>,
        scratch: &mut Scratch,
    ) -> Attempt {
        let job = &self.jobs[place];
        self.warm(std::iter::once(place), scratch);
        scratch.ahead -= 1;
        let (outcome, writes) = match job.program {
            Program::Call { procedure, args } => {
                scratch.writes.clear();
                let mut locked = Locked {
                    runner: self,
                    footprint,
                    beyond: others.map(|others| others.beyond),
                    has_left: false,
                    writes: &mut scratch.writes,
                };
                let outcome = call(self.registry, *procedure, args, &mut locked);
                // Even if the program went on: what it did from there on was not its to decide.
                if locked.has_left {
                    return Attempt::LeftItsFootprint;
                }
                let outcome = match outcome {
                    Ok(result) => {
                        let writes = scratch.writes.rows();
                        self.within_limits(*procedure, args, writes).map(|()| result)
                    }
                    Err(Stop::Abort(abort)) => Err(abort),
                    Err(Stop::Interrupted) => Err(gave_up()),
                };
                if outcome.is_err() {
                    scratch.writes.clear();
                }
                let Scratch { writes, warmed, .. } = &*scratch;
                self.apply_here(job, writes.rows(), writes.key_hashes(), others, warmed);
                (outcome, scratch.writes.take())
            }
            Program::Certified(certified) => match self.changed(certified, others) {
                None => {
                    let writes = &certified.writes;
                    let hash_of = |write: &Write| hash_bytes(&write.key);
                    let hashes: Vec<u64> = writes.iter().map(hash_of).collect();
                    self.apply_here(job, writes, &hashes, others, &[]);
                    (Ok(Vec::new()), writes.clone())
                }
                Some(change) => (Err(change.into_abort()), Vec::new()),
            },
        };
        Attempt::Ended { outcome, writes }
    }

    /// Lets a call commit unless it has written too much; a load may write what it likes, because
    /// its writes are not logged.
    fn within_limits(
        &self,
        procedure: ProcedureId,
        args: &[u8],
        writes: &[Write],
    ) -> Result<(), Abort> {
        match check_size(&ReadSet::default(), writes) {
            Err(_) if is_bulk(self.registry, procedure, args) => Ok(()),
            checked => checked,
        }
    }

    /// What a certified transaction read that is no longer current, on this shard or another.
    fn changed(&self, certified: &Certified, others: Option<&Others<'_>>) -> Option<Change> {
        match others {
            None => first_change(&certified.reads, self),
            Some(others) => others.change.cloned(),
        }
    }

    /// What a certified transaction read of this shard's rows that is no longer current.
    pub fn changed_here(&self, reads: &ReadSet) -> Option<Change> {
        first_change(reads, self)
    }

    /// Writes what a job wrote of this shard's rows.
    fn apply_here(
        &self,
        job: &Job<'_>,
        writes: &[Write],
        hashes: &[u64],
        others: Option<&Others<'_>>,
        warmed: &[TableId],
    ) {
        let Some(others) = others else { return self.apply(job, writes, hashes, warmed) };
        let all = writes.iter().zip(hashes);
        let here = all.filter(|(write, _)| others.beyond.is_here(write.table, &write.key));
        let (writes, hashes): (Vec<Write>, Vec<u64>) =
            here.map(|(write, hash)| (write.clone(), *hash)).unzip();
        self.apply(job, &writes, &hashes, warmed);
    }

    /// Writes what a job wrote, given the hashes of the keys, and the tables whose rows are in the
    /// processor's caches.
    fn apply(&self, job: &Job<'_>, writes: &[Write], hashes: &[u64], warmed: &[TableId]) {
        let hashed = writes.iter().zip(hashes);
        let cold = hashed.filter(|(write, _)| !warmed.contains(&write.table));
        self.store.warm_hashed(cold.map(|(write, &hash)| (write.table, hash, &write.key)));
        self.store.apply_txn(self.version, (self.header)(job), writes, hashes);
    }

    /// What a found version is to a certified transaction. Deletions older than this version may be
    /// reclaimed on some replica, so they count as nothing.
    fn standing(&self, found: &Version<H>) -> Standing {
        match &found.value {
            None if found.version < self.version => Standing::ABSENT,
            _ => Standing::of(found),
        }
    }
}

impl<H: Header> Current for Runner<'_, H> {
    fn point(&self, table: TableId, key: &[u8]) -> Standing {
        let found = self.store.head(table, key, self.version);
        found.map_or(Standing::ABSENT, |found| self.standing(&found))
    }

    fn range(&self, table: TableId, range: &KeyRange) -> Vec<(Key, Standing)> {
        let mut rows = Vec::new();
        self.store.scan_heads(table, range, self.version, |key, found| {
            rows.push((key.clone(), self.standing(found)));
            ControlFlow::Continue(())
        });
        rows
    }
}

impl Above for &Write {
    fn key(&self) -> &Key {
        &self.key
    }
}

/// The context of a job: reads within its footprint, buffers writes within its footprint.
struct Locked<'a, H: Header> {
    runner: &'a Runner<'a, H>,
    /// None when nothing else runs.
    footprint: Option<&'a Footprint>,
    /// What is on other shards; None where there are none.
    beyond: Option<Beyond<'a>>,
    has_left: bool,
    writes: &'a mut OwnWrites,
}

impl<H: Header> Locked<'_, H> {
    fn stay_within(&mut self, table: TableId, key: &[u8], mode: Mode) -> Result<(), Stop> {
        let is_within = self.footprint.is_none_or(|footprint| footprint.covers(table, key, mode));
        self.has_left |= !is_within;
        if self.has_left { Err(Stop::Interrupted) } else { Ok(()) }
    }
}

impl<H: Header> Context for Locked<'_, H> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        if self.has_left {
            return Err(Stop::Interrupted);
        }
        let key = HashedKey::from(key);
        // What it wrote itself, a program may look at.
        if let Some(own) = self.writes.find(table, &key) {
            return Ok(own.value.clone());
        }
        self.stay_within(table, key.key(), Mode::Shared)?;
        if let Some(beyond) = self.beyond.filter(|beyond| !beyond.is_here(table, key.key())) {
            return Ok(beyond.get(table, key.key()));
        }
        let found = self.runner.store.read_value(table, &key, self.runner.version);
        Ok(found.map(|(_, value)| value))
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        if self.has_left {
            return Err(Stop::Interrupted);
        }
        if scan.range.is_empty() {
            return Ok(());
        }
        let uncovered = self.footprint.filter(|all| !all.covers_range(scan.table, &scan.range));
        let part = uncovered.map(|all| Scan { range: locked_part(all, scan), ..scan.clone() });
        let within = part.as_ref().unwrap_or(scan);
        let own = self.writes.within(scan.table, &within.range, scan.direction);
        let above = match &self.beyond {
            None => own,
            Some(beyond) => beyond.under(own, within),
        };
        let (store, at) = (self.runner.store, self.runner.version);
        let has_broken = merge::scan(store, at, within, &above, |key, version, above| {
            let value = match above {
                Some(above) => above.value.as_ref(),
                None => version.and_then(|version| version.value.as_ref()),
            };
            value.map_or(ControlFlow::Continue(()), |value| visit(key, value))
        });
        // A scan that breaks has not looked past the row where it broke.
        self.has_left = !has_broken && within.range != scan.range;
        if self.has_left { Err(Stop::Interrupted) } else { Ok(()) }
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.stay_within(table, &key, Mode::Write)?;
        Ok(self.writes.set(table, key, Some(value))?)
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.stay_within(table, &key, Mode::Write)?;
        Ok(self.writes.set(table, key, None)?)
    }

    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        let (store, at) = (self.runner.store, self.runner.version);
        store.warm_at(at, rows.iter().map(|(table, key)| (*table, key)));
    }
}
