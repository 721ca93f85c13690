//! Execution of one job: the context that confines a program to its footprint.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::extent::locked_part;
use super::guard::{Guard, may_certify};
use super::schedule::Locks;
use super::{Job, ResultDetail};
use crate::exec::call::{call, gather, gave_up, is_bulk};
use crate::exec::certify::{Change, CurrentState, CurrentVersion, VisitState, first_change};
use crate::exec::merge::{self, Overlaid};
use crate::exec::remote_rows::RemoteRows;
use crate::exec::size::{bytes_of, check_bytes, check_result, in_few_words, writes_bytes};
use crate::exec::writes::{OwnWrites, WRITES_MAX, too_many_writes};
use crate::ids::{ProcedureId, SnapshotVersion, TableId};
use crate::key::{HashedKey, Key, KeyRange};
use crate::store::{CachePrefetcher, RecordHeader, Store, Version, Written};
use crate::txn::{
    Abort, Certified, Context, Footprint, LockMode, Program, ReadSet, Registry, Scan, Stop, Visit,
    Write,
};
use crate::value::Value;

/// The parameters that all jobs of one call share.
pub(super) struct Runner<'a> {
    pub registry: &'a Registry,
    pub store: &'a Store,
    pub version: SnapshotVersion,
    pub jobs: &'a [Job<'a>],
    pub header: &'a (dyn Fn(&Job<'_>) -> RecordHeader + Sync),
    pub detail: ResultDetail,
    /// Maximum size in bytes of a result or of an abort's message.
    pub result_bytes_max: usize,
    /// Decides which rows jobs may access, if not all.
    pub guard: Option<&'a dyn Guard>,
}

/// The inputs of a job from other shards.
pub(super) struct RemoteInputs<'a> {
    pub remote_rows: RemoteRows<'a>,
    /// The first stale read of a certified transaction, on any shard.
    pub change: Option<&'a Change>,
    /// Whether the shard runs its part of a divisible program, without rows of others.
    pub is_divided: bool,
}

/// The result of one attempt of a job.
pub(super) enum Attempt {
    /// The job finished. Its writes are in the store; they are also returned if the caller
    /// requested them.
    Ended { outcome: Result<Vec<u8>, Abort>, writes: Vec<Write> },
    /// Footprint violation: the attempt was rolled back.
    FootprintViolated,
    /// The guard has put the job off: the attempt was rolled back.
    PutOff,
}

/// The outcome of a job, and its writes if the caller requested them.
pub(super) type Ended = (Result<Vec<u8>, Abort>, Vec<Write>);

/// Memory that a worker's jobs use one after the other.
#[derive(Default)]
pub(super) struct Scratch {
    /// The job's writes to rows of this shard.
    written: Written,
    /// The job's writes to rows of other shards.
    elsewhere: OwnWrites,
    /// The number of next jobs whose rows have been prefetched.
    ahead: usize,
}

impl Scratch {
    /// Skips a job whose rows have been prefetched.
    pub fn skip(&mut self) {
        self.ahead = self.ahead.saturating_sub(1);
    }
}

/// The number of rows to prefetch before the jobs that look them up run. Large enough for full
/// groups of loads, and small enough that the rows are still in the innermost caches when their job
/// runs.
const AHEAD_ROWS: usize = 64;

impl Runner<'_> {
    /// Prefetches the rows of some next jobs into the CPU cache, unless this was done already.
    pub fn warm(&self, mut next: impl Iterator<Item = usize>, scratch: &mut Scratch) {
        if scratch.ahead > 0 {
            return;
        }
        let mut prefetcher = CachePrefetcher::new(self.store, self.version);
        let mut rows = 0;
        while let Some(place) = next.next().filter(|_| rows < AHEAD_ROWS) {
            scratch.ahead += 1;
            let Program::Call { procedure, args } = self.jobs[place].program else { continue };
            rows += gather(self.registry, *procedure, args, &mut prefetcher);
        }
        prefetcher.fetch();
    }

    /// Runs a job within its locks.
    pub fn run(&self, place: usize, locks: &Locks<'_>, scratch: &mut Scratch) -> Attempt {
        let footprint = match locks {
            Locks::Given(footprint) => Some(*footprint),
            Locks::Found(footprint) => Some(footprint),
            Locks::Certified(_) | Locks::NotNeeded => None,
            Locks::Unknown => unreachable!("footprints are known before a pass"),
        };
        self.attempt(place, footprint, None, scratch)
    }

    /// Runs a job within its locks if some of its rows are on other shards. Remote reads come from
    /// `remote_inputs`; the writes to rows of other shards are dropped, because those shards run
    /// the job too.
    pub fn run_with(
        &self,
        place: usize,
        footprint: &Footprint,
        remote_inputs: &RemoteInputs<'_>,
        scratch: &mut Scratch,
    ) -> Attempt {
        self.attempt(place, Some(footprint), Some(remote_inputs), scratch)
    }

    /// Runs a job without a footprint, while no other job runs. `None` if it is put off.
    pub fn run_alone(&self, place: usize, scratch: &mut Scratch) -> Option<Ended> {
        match self.attempt(place, None, None, scratch) {
            Attempt::Ended { outcome, writes } => Some((outcome, writes)),
            Attempt::PutOff => None,
            Attempt::FootprintViolated => unreachable!("the run had no footprint to leave"),
        }
    }

    /// Runs a job. A panic of the engine is not an abort: it goes on, with the name of the
    /// transaction.
    fn attempt(
        &self,
        place: usize,
        footprint: Option<&Footprint>,
        remote_inputs: Option<&RemoteInputs<'_>>,
        scratch: &mut Scratch,
    ) -> Attempt {
        let run = || self.run_job(place, footprint, remote_inputs, scratch);
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            resume_unwind(Box::new(format!("{text}, in transaction {}", self.jobs[place].txn)))
        })
    }

    fn run_job(
        &self,
        place: usize,
        footprint: Option<&Footprint>,
        remote_inputs: Option<&RemoteInputs<'_>>,
        scratch: &mut Scratch,
    ) -> Attempt {
        let job = &self.jobs[place];
        self.warm(std::iter::once(place), scratch);
        scratch.ahead -= 1;
        let header = (self.header)(job);
        match job.program {
            Program::Call { procedure, args } => {
                let Scratch { written, elsewhere, .. } = scratch;
                assert!(written.is_empty(), "the last job's writes were published or rolled back");
                elsewhere.clear();
                let remote_rows = remote_inputs.map(|remote_inputs| remote_inputs.remote_rows);
                let mut locked = Locked {
                    runner: self,
                    place,
                    is_put_off: false,
                    header,
                    footprint,
                    remote_rows,
                    has_left: false,
                    written,
                    elsewhere,
                    writes_now: false,
                };
                let outcome = call(self.registry, *procedure, args, &mut locked);
                // A panic of the store is not the procedure's error and may not occur on other
                // replicas, so it must not become an abort.
                assert!(!locked.writes_now, "the store failed during a write of a procedure");
                // This holds even if the program ignored the interruption and continued.
                if locked.is_put_off {
                    self.store.take_back(written);
                    return Attempt::PutOff;
                }
                if locked.has_left {
                    self.store.take_back(written);
                    return Attempt::FootprintViolated;
                }
                let outcome = match outcome {
                    Ok(result) => {
                        let bytes = bytes_of(written.len(), written.contents_bytes())
                            + writes_bytes(elsewhere.rows());
                        let is_divided = remote_inputs.is_some_and(|inputs| inputs.is_divided);
                        let call = (*procedure, &args[..]);
                        check_result(result.len(), self.result_bytes_max)
                            .and_then(|()| self.within_limits(call, bytes, is_divided))
                            .map(|()| result)
                    }
                    Err(Stop::Abort(abort)) => Err(in_few_words(abort, self.result_bytes_max)),
                    Err(Stop::Interrupted) => Err(gave_up()),
                };
                if outcome.is_err() {
                    self.store.take_back(written);
                }
                Attempt::Ended { outcome, writes: self.keep(written) }
            }
            Program::Certified(certified) => {
                let may_run =
                    |guard| may_certify(guard, place, certified, self.store, self.version);
                if !self.guard.is_none_or(may_run) {
                    return Attempt::PutOff;
                }
                self.certify(certified, header, remote_inputs, &mut scratch.written)
            }
        }
    }

    /// Runs a job that is a certified transaction.
    fn certify(
        &self,
        certified: &Certified,
        header: RecordHeader,
        remote_inputs: Option<&RemoteInputs<'_>>,
        written: &mut Written,
    ) -> Attempt {
        if let Some(change) = self.changed(certified, remote_inputs) {
            return Attempt::Ended { outcome: Err(change.into_abort()), writes: Vec::new() };
        }
        self.apply(certified, header, remote_inputs, written);
        Attempt::Ended { outcome: Ok(Vec::new()), writes: self.keep(written) }
    }

    /// Ends a job and returns its writes to this shard's rows, if the caller requested them.
    fn keep(&self, written: &mut Written) -> Vec<Write> {
        let writes = match self.detail {
            ResultDetail::Outcomes => Vec::new(),
            ResultDetail::Writes => self.store.writes_of(written),
        };
        self.store.keep(written, self.version);
        writes
    }

    /// Lets a call commit unless its writes exceed the limit. A bulk load may write any amount,
    /// because its writes are not logged. So may the part of a divisible program: other shards must
    /// come to the same, and may write less.
    fn within_limits(
        &self,
        (procedure, args): (ProcedureId, &[u8]),
        bytes: usize,
        is_divided: bool,
    ) -> Result<(), Abort> {
        match check_bytes(bytes) {
            Err(_) if is_divided || is_bulk(self.registry, procedure, args) => Ok(()),
            checked => checked,
        }
    }

    /// The first read of a certified transaction, on this shard or another, that is no longer
    /// current.
    fn changed(
        &self,
        certified: &Certified,
        remote_inputs: Option<&RemoteInputs<'_>>,
    ) -> Option<Change> {
        match remote_inputs {
            None => first_change(&certified.reads, self),
            Some(remote_inputs) => remote_inputs.change.cloned(),
        }
    }

    /// The first read of a certified transaction among this shard's rows that is no longer current.
    pub fn changed_here(&self, reads: &ReadSet) -> Option<Change> {
        first_change(reads, self)
    }

    /// Applies the writes of a certified transaction to this shard's rows.
    fn apply(
        &self,
        certified: &Certified,
        header: RecordHeader,
        remote_inputs: Option<&RemoteInputs<'_>>,
        written: &mut Written,
    ) {
        let is_here = |write: &&Write| {
            remote_inputs.is_none_or(|remote_inputs| {
                remote_inputs.remote_rows.is_here(write.table, &write.key)
            })
        };
        let writes = certified.writes.iter().filter(is_here);
        self.store.warm(writes.clone().map(|write| (write.table, &write.key)));
        for Write { table, key, value } in writes {
            let version = Version { version: self.version, header, value: value.clone() };
            self.store.write(written, (*table, key.clone().into()), version);
        }
    }

    /// Converts a found version for certification. Deletions older than this version may be
    /// reclaimed on some replicas, so they count as absent.
    fn standing(&self, found: &Version) -> CurrentVersion {
        match &found.value {
            None if found.version < self.version => CurrentVersion::ABSENT,
            _ => CurrentVersion::of(found),
        }
    }
}

impl CurrentState for Runner<'_> {
    fn point(&self, table: TableId, key: &[u8]) -> CurrentVersion {
        let found = self.store.head(table, key, self.version);
        found.map_or(CurrentVersion::ABSENT, |found| self.standing(&found))
    }

    fn range(&self, table: TableId, range: &KeyRange, visit: &mut VisitState<'_>) {
        self.store
            .scan_heads(table, range, self.version, |key, found| visit(key, self.standing(found)));
    }
}

impl Overlaid for &Write {
    fn key(&self) -> &Key {
        &self.key
    }
}

/// The context of a job: reads and writes the store directly, within its footprint.
struct Locked<'a> {
    runner: &'a Runner<'a>,
    /// The job's place.
    place: usize,
    /// Whether the guard has put it off.
    is_put_off: bool,
    header: RecordHeader,
    /// `None` if no other job runs.
    footprint: Option<&'a Footprint>,
    /// The rows of other shards; `None` if no row of the job is on another shard.
    remote_rows: Option<RemoteRows<'a>>,
    has_left: bool,
    written: &'a mut Written,
    /// The job's writes to rows of other shards. Those shards apply them.
    elsewhere: &'a mut OwnWrites,
    /// Whether a write to the store is in progress.
    writes_now: bool,
}

impl Locked<'_> {
    fn covers(&self, table: TableId, key: &[u8], mode: LockMode) -> bool {
        self.footprint.is_none_or(|footprint| footprint.covers(table, key, mode))
    }

    fn stay_within(&mut self, table: TableId, key: &[u8], mode: LockMode) -> Result<(), Stop> {
        self.has_left = self.has_left || !self.covers(table, key, mode);
        if self.has_left { Err(Stop::Interrupted) } else { Ok(()) }
    }

    /// Whether the job itself wrote this row of this shard.
    fn is_own(&self, table: TableId, key: &HashedKey) -> bool {
        let Runner { store, version, .. } = self.runner;
        store.is_written_by((table, key), *version, self.header.writer())
    }

    /// Interrupts the job unless the guard lets it go on.
    fn ask_guard(&mut self, may: impl FnOnce(&dyn Guard, usize) -> bool) -> Result<(), Stop> {
        let Some(guard) = self.runner.guard else { return Ok(()) };
        self.is_put_off = self.is_put_off || !may(guard, self.place);
        if self.is_put_off { Err(Stop::Interrupted) } else { Ok(()) }
    }

    fn set(&mut self, table: TableId, key: Key, value: Option<Value>) -> Result<(), Stop> {
        self.stay_within(table, &key, LockMode::Write)?;
        self.ask_guard(|guard, place| guard.may_write(place, table, &key))?;
        let is_there =
            self.remote_rows.is_some_and(|remote_rows| !remote_rows.is_here(table, &key));
        let key = HashedKey::from(key);
        if self.written.len() + self.elsewhere.rows().len() >= WRITES_MAX {
            let is_again = match is_there {
                true => self.elsewhere.find(table, &key).is_some(),
                false => self.is_own(table, &key),
            };
            if !is_again {
                return Err(too_many_writes().into());
            }
        }
        if is_there {
            return Ok(self.elsewhere.set(table, key.into(), value)?);
        }
        let version = Version { version: self.runner.version, header: self.header, value };
        self.writes_now = true;
        self.runner.store.write(self.written, (table, key), version);
        self.writes_now = false;
        Ok(())
    }
}

impl Context for Locked<'_> {
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop> {
        if self.has_left || self.is_put_off {
            return Err(Stop::Interrupted);
        }
        let key = HashedKey::from(key);
        let remote_rows =
            self.remote_rows.filter(|remote_rows| !remote_rows.is_here(table, key.key()));
        // A program may read its own writes without a lock for reading.
        if let Some(own) = remote_rows.and_then(|_| self.elsewhere.find(table, &key)) {
            return Ok(own.value.clone());
        }
        if !self.covers(table, key.key(), LockMode::Shared)
            && (remote_rows.is_some() || !self.is_own(table, &key))
        {
            self.has_left = true;
            return Err(Stop::Interrupted);
        }
        if let Some(remote_rows) = remote_rows {
            return Ok(remote_rows.get(table, key.key()));
        }
        self.ask_guard(|guard, place| guard.may_read(place, table, key.key()))?;
        if self.runner.guard.is_some() {
            let Runner { store, version, .. } = self.runner;
            let seen = store.head_with(table, key.key(), *version, |found| found.version);
            if let Some(seen) = seen.filter(|_| !self.is_own(table, &key)) {
                self.ask_guard(|guard, place| guard.may_see(place, seen))?;
            }
        }
        let found = self.runner.store.read_value(table, &key, self.runner.version);
        Ok(found.map(|(_, value)| value))
    }

    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop> {
        if self.has_left || self.is_put_off {
            return Err(Stop::Interrupted);
        }
        if scan.range.is_empty() {
            return Ok(());
        }
        let uncovered = self.footprint.filter(|all| !all.covers_range(scan.table, &scan.range));
        let part = uncovered.map(|all| Scan { range: locked_part(all, scan), ..scan.clone() });
        let within = part.as_ref().unwrap_or(scan);
        self.ask_guard(|guard, place| guard.may_read_range(place, scan.table, &within.range))?;
        let above = match &self.remote_rows {
            None => Vec::new(),
            Some(remote_rows) => {
                let own = self.elsewhere.within(scan.table, &within.range, scan.direction);
                remote_rows.under(own.collect(), within)
            }
        };
        let (store, at) = (self.runner.store, self.runner.version);
        store.show(self.written);
        let (guard, place, writer) = (self.runner.guard, self.place, self.header.writer());
        let mut is_put_off = false;
        let has_broken = merge::scan(store, at, within, above, |key, version, above| {
            if let (Some(guard), Some(seen)) = (guard, version) {
                let is_own = seen.version == at && seen.header.writer() == writer;
                if !is_own && !guard.may_see(place, seen.version) {
                    is_put_off = true;
                    return ControlFlow::Break(());
                }
            }
            let value = match above {
                Some(above) => above.value.as_ref(),
                None => version.and_then(|version| version.value.as_ref()),
            };
            value.map_or(ControlFlow::Continue(()), |value| visit(key, value))
        });
        if is_put_off {
            self.is_put_off = true;
            return Err(Stop::Interrupted);
        }
        // A scan that breaks has not read past the row where it broke.
        self.has_left = !has_broken && within.range != scan.range;
        if self.has_left { Err(Stop::Interrupted) } else { Ok(()) }
    }

    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop> {
        self.set(table, key, Some(value))
    }

    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop> {
        self.set(table, key, None)
    }

    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        let (store, at) = (self.runner.store, self.runner.version);
        store.warm_at(at, rows.iter().map(|(table, key)| (*table, key)));
    }

    fn fetch_to_write(&mut self, rows: &[(TableId, Key)]) {
        self.runner.store.warm(rows.iter().map(|(table, key)| (*table, key)));
    }
}
