//! Local transactions: those that access rows of this shard only run in slices, as with one shard,
//! and are never aborted for a conflict.
//!
//! ```text
//!   slice  -->  runs                                  entry n
//!          |->  reads a row that depends on others    second slice, entry n + 1 with their clock
//!          |->  reads a row that may be void          waits until the epoch has begun
//!          |->  touches a locked row                  parked until it is unlocked
//!          |->  touches a slot that moves             waits until that has ended
//!          `->  touches a row of another shard        coordinated
//! ```
//!
//! A row depends on other shards if a transaction over several has written it, or one that has read
//! such a row, and the watermarks have not passed that. Those that read such rows are put in a
//! slice of their own: they wait for other shards, and the rest of the slice does not.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{Guard, Job, ResultDetail, execute_guarded};
use pangea_core::ids::{ShardId, SnapshotVersion, TableId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::store::RecordHeader;
use pangea_core::txn::Write;

use super::super::Mako;
use super::super::across::{Across, Kind};
use super::super::clocks::Clock;
use super::super::execution::in_order;
use super::super::locks::LockTable;
use super::super::log::{Entry, Executed, Logged};
use super::super::options::AckUnit;
use super::super::state::{Role, State};
use super::Shards;
use crate::request::Request;

/// Why a transaction is put off.
#[derive(Clone, Debug)]
enum Reason {
    /// A row is locked.
    Locked(TableId, Key),
    /// A row is on another shard.
    Elsewhere,
    /// A row depends on other shards.
    Dependent,
    /// A row may be void.
    Doubtful,
    /// A row is of a slot that moves to another shard.
    Barred,
}

/// The rows that the transactions of a slice may access.
struct SliceGuard<'a> {
    shards: &'a Shards,
    here: ShardId,
    locks: &'a LockTable,
    /// The clocks of versions that depend on other shards.
    clocks: &'a BTreeMap<SnapshotVersion, Clock>,
    /// Those before this one may be void.
    doubtful_before: SnapshotVersion,
    /// Whether transactions may see these.
    is_dependent: bool,
    found: Mutex<Found>,
}

/// The results of a slice besides its outcomes.
#[derive(Debug, Default)]
struct Found {
    reasons: BTreeMap<usize, Reason>,
    clock: Clock,
}

impl SliceGuard<'_> {
    fn put_off(&self, place: usize, reason: Reason) -> bool {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.reasons.insert(place, reason);
        false
    }

    fn is_free(&self, place: usize, table: TableId, key: &[u8]) -> bool {
        let is_locked = self.locks.holder(table, key).is_some();
        let is_locked = mutate!(MakoLockedRowsRead: is_locked => false);
        !is_locked || self.put_off(place, Reason::Locked(table, Key::from(key)))
    }
}

impl Guard for SliceGuard<'_> {
    fn may_read(&self, place: usize, table: TableId, key: &[u8]) -> bool {
        if self.shards.bars(table, key) {
            return self.put_off(place, Reason::Barred);
        }
        let is_here = self.shards.partitions.holds(self.here, table, key);
        if !is_here {
            return self.put_off(place, Reason::Elsewhere);
        }
        self.is_free(place, table, key)
    }

    fn may_read_range(&self, place: usize, table: TableId, range: &KeyRange) -> bool {
        if self.shards.bars_range(table, range) {
            return self.put_off(place, Reason::Barred);
        }
        let shards = self.shards.partitions.shards_of(table, range);
        if shards.is_some_and(|shards| !shards.without(ShardSet::one(self.here)).is_empty()) {
            return self.put_off(place, Reason::Elsewhere);
        }
        match self.locks.holder_within(table, range, None) {
            Some(holder) => self.put_off(place, Reason::Locked(table, holder.key)),
            None => true,
        }
    }

    fn may_write(&self, place: usize, table: TableId, key: &[u8]) -> bool {
        if self.shards.bars(table, key) {
            return self.put_off(place, Reason::Barred);
        }
        let is_here = self.shards.partitions.shard_of(table, key) == Some(self.here);
        if !is_here {
            return self.put_off(place, Reason::Elsewhere);
        }
        // A locked row may be written without a look at it.
        let is_read = self.locks.reader(table, key, None).is_some();
        let is_locked = is_read || self.locks.holder(table, key).is_some();
        !is_locked || self.put_off(place, Reason::Locked(table, Key::from(key)))
    }

    fn may_see(&self, place: usize, version: SnapshotVersion) -> bool {
        let Some(clock) = self.clocks.get(&version) else { return true };
        mutate!(MakoDependencyIgnored: () => return true);
        if version < self.doubtful_before {
            return self.put_off(place, Reason::Doubtful);
        }
        if !self.is_dependent {
            return self.put_off(place, Reason::Dependent);
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.clock.merge(clock);
        true
    }
}

impl State {
    /// Whether a transaction declares that it accesses rows of other shards.
    pub(super) fn is_spread(&self, request: &Request) -> bool {
        let Some(shards) = &self.shards else { return false };
        let of = shards.shards_of(&self.registry, &request.program);
        of.is_some_and(|of| !of.without(ShardSet::one(shards.own)).is_empty())
    }
}

impl Mako {
    /// Runs transactions at the next version, and those that depend on other shards at one after
    /// it.
    pub(in super::super) fn run_divided_slice(
        &mut self,
        cx: &mut Cx<'_, Self>,
        requests: Vec<Request>,
    ) {
        let requests = self.park_barred(cx, requests);
        let (spread, local): (Vec<Request>, Vec<Request>) =
            requests.into_iter().partition(|request| self.state.is_spread(request));
        let (dependent, mut elsewhere) = self.run_local(cx, local, false);
        if !dependent.is_empty() {
            cx.mark("mako.dependent");
            elsewhere.extend(self.run_local(cx, dependent, true).1);
        }
        for request in spread.into_iter().chain(elsewhere) {
            self.coordinate(cx, request);
        }
    }

    /// Lets transactions wait that declare rows of slots which move, and returns the others.
    fn park_barred(&mut self, cx: &mut Cx<'_, Self>, requests: Vec<Request>) -> Vec<Request> {
        let State { role, registry, shards, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return requests };
        if shards.barred.is_empty() {
            return requests;
        }
        let (barred, others): (Vec<Request>, Vec<Request>) =
            requests.into_iter().partition(|it| shards.bars_program(registry, &it.program));
        barred.iter().for_each(|_| cx.mark("mako.barred"));
        leading.over.barred.extend(barred);
        others
    }

    /// Runs a slice. Returns those that depend on other shards, and those that access rows there.
    fn run_local(
        &mut self,
        cx: &mut Cx<'_, Self>,
        requests: Vec<Request>,
        is_dependent: bool,
    ) -> (Vec<Request>, Vec<Request>) {
        if requests.is_empty() {
            return Default::default();
        }
        let doubtful_before = self.state.doubtful_before();
        let State { role, registry, shards, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else {
            return Default::default();
        };
        let over = &leading.over;
        let version = over.counter.next();
        let guard = SliceGuard {
            shards,
            here: shards.own,
            locks: &over.locks,
            clocks: &over.clocks,
            doubtful_before,
            is_dependent,
            found: Mutex::default(),
        };
        let jobs: Vec<Job<'_>> = requests.iter().map(Request::as_job).collect();
        let header = |job: &Job<'_>| RecordHeader::new(job.txn);
        let at = (&**cx.store, version);
        cx.begin_work();
        let detail = ResultDetail::Writes;
        let finished = execute_guarded(cx.pool, registry, at, &jobs, &header, detail, Some(&guard));
        cx.end_work(CpuStage::Execute, jobs.len());
        let Found { mut reasons, mut clock } =
            guard.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (mut ran, mut done) = (Vec::new(), Vec::new());
        let (mut dependent, mut elsewhere) = (Vec::new(), Vec::new());
        for (place, (request, finished)) in requests.into_iter().zip(finished).enumerate() {
            if let Some(finished) = finished {
                ran.push(request);
                done.push(finished);
                continue;
            }
            match reasons.remove(&place).expect("a job is put off for a reason") {
                Reason::Locked(table, key) => {
                    cx.mark("mako.parked");
                    leading.over.parked.entry((table, key)).or_default().push(request);
                }
                Reason::Doubtful => {
                    cx.mark("mako.doubtful");
                    leading.over.doubtful.push(request);
                }
                Reason::Barred => {
                    cx.mark("mako.barred");
                    leading.over.barred.push(request);
                }
                Reason::Dependent => dependent.push(request),
                Reason::Elsewhere => elsewhere.push(request),
            }
        }
        if !ran.is_empty() {
            let (txns, writes) = in_order(&ran, done);
            clock.forget(&shards.watermarks());
            leading.batch.txns += txns.len();
            self.log_entry((None, clock, Kind::Own, ShardSet::default()), txns, writes);
        }
        (dependent, elsewhere)
    }

    /// Makes an entry of the next number. Its writes, which are in the store, have this version, or
    /// that of the entry.
    pub(super) fn log_entry(
        &mut self,
        (at, clock, kind, written): (Option<SnapshotVersion>, Clock, Kind, ShardSet),
        txns: Vec<Executed>,
        writes: Vec<(usize, Write)>,
    ) {
        let below = self.state.origin.below();
        let State { role, shards, commit, node, options, .. } = &mut self.state;
        let (Role::Leading(leading), Some(shards)) = (role, shards) else { return };
        leading.note_below(*node, below);
        let version = leading.over.counter.max(leading.last).next();
        leading.over.counter = version;
        let closed = mutate!(MakoClosedAbovePending: leading.over.closed_below(version) => version);
        let at = at.unwrap_or(version);
        let is_own = kind == Kind::Own && !txns.is_empty();
        let mut clock = clock;
        if options.ack_unit == AckUnit::Epoch {
            // §7.8, Mako-epoch: everything of all shards before it is told, or void, with it.
            shards.ids().for_each(|shard| clock.raise(shards.clocks.slot_of(shard), at));
        }
        let mut of_others = clock.clone();
        of_others.forget(&shards.watermarks());
        if !of_others.is_empty() {
            leading.over.clocks.entry(at).or_default().merge(&of_others);
        }
        if let Some(executed) = txns.first().filter(|_| !options.speculation) {
            let rows = writes.iter().map(|(_, write)| (write.table, write.key.clone()));
            leading.over.hold_rows(version, executed.txn, rows);
        }
        if !clock.is_empty() {
            shards.counts.clocks += 1;
            shards.counts.clock_bytes += clock.size();
        }
        let over = std::mem::take(&mut leading.news).into_iter().collect();
        let across = Some(Across { closed, at, clock, kind, written });
        let entry = Entry { version, before: leading.last, txns, over, writes, across };
        let logged = Logged::new(entry);
        (leading.last, leading.over.closed, commit.executed) = (version, closed, version);
        leading.batch.bytes += logged.bytes.len();
        shards.replay.insert(&logged.entry, commit.published);
        if is_own {
            leading.over.waiting.push_back(logged.entry.clone());
        }
        leading.batch.entries.push(logged);
    }
}
