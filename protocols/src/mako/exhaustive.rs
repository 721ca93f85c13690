//! Exhaustive search of the certification (§4.2): three transactions on two shards, in each order
//! of their steps, and a reader of each snapshot.
//!
//! ```text
//!   read (each shard) -> lock and draw (each written shard) -> validate (each shard with reads)
//!                    -> install (each written shard)
//! ```
//!
//! A state has the rows, the locks, the counters and the progress of each transaction; states that
//! are reached twice are visited once. At each end, the transactions that were installed and the
//! readers of all snapshots must have a serial order. There are no failures here. Each
//! [`Mistake`] is found, some of them by the readers only.

mod closing;
mod epochs;
mod once;

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::hash::HashSet;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;

use super::clocks::{Clock, Groups};
use super::locks::LockTable;

const SHARDS: usize = 2;
const TXNS: usize = 3;
const TABLE: TableId = TableId(1);

/// A row: its shard is the first half of the alphabet or the second.
type Row = u8;

fn shard_of(row: Row) -> usize {
    usize::from(row >= b'm')
}

fn key(row: Row) -> Key {
    Key::from(&[row][..])
}

/// A deliberate error in the certification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Versions are drawn before the locks are taken.
    ClockBeforeLock,
    /// A row that another transaction has locked is valid.
    LockedPassesValidate,
    /// Shards that are only read are not asked.
    ReadShardsUnvalidated,
    /// A validation leaves the counter of the shard.
    ValidateDoesNotRaise,
    /// An installation leaves the counter of the shard.
    InstallDoesNotRaise,
    /// Readers see each transaction below the vector of watermarks (§8), and not below their
    /// minimum.
    PublishesVectorCut,
}

/// The rows that a transaction reads and writes.
#[derive(Clone, Copy, Debug)]
struct Plan {
    reads: &'static [Row],
    writes: &'static [Row],
}

impl Plan {
    fn shards(rows: &[Row]) -> BTreeSet<usize> {
        rows.iter().map(|row| shard_of(*row)).collect()
    }
}

/// The progress of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Txn {
    /// The version of each row that it has read: 0 if none was written.
    seen: BTreeMap<Row, u64>,
    read_on: BTreeSet<usize>,
    drawn: BTreeMap<usize, u64>,
    locked_on: BTreeSet<usize>,
    version: Option<u64>,
    validated_on: BTreeSet<usize>,
    /// Its clock: the versions on which it depends.
    clock: Clock,
    installed_on: BTreeSet<usize>,
    is_aborted: bool,
    /// The greatest counter that it has met on a shard on which it has read.
    met: u64,
}

/// All shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct World {
    /// The versions of each row, with their writers, in the order of their installation.
    rows: BTreeMap<Row, Vec<(u64, usize)>>,
    counters: [u64; SHARDS],
    locks: LockTable,
    txns: [Txn; TXNS],
    /// The greatest version that was published: the least watermark.
    published: u64,
    /// The vectors of watermarks at which readers have read, if they do.
    vectors: BTreeSet<[u64; SHARDS]>,
}

fn name(txn: usize) -> TxnId {
    TxnId::new(NodeId(0), txn as u64 + 1)
}

impl World {
    /// The version below which nothing more is installed on a shard.
    fn closed(&self, shard: usize) -> u64 {
        let is_pending = |txn: &&Txn| !txn.is_aborted && !txn.installed_on.contains(&shard);
        let pending = self.txns.iter().filter(is_pending);
        let least = pending.filter_map(|txn| txn.drawn.get(&shard)).min();
        least.map_or(self.counters[shard], |draw| draw - 1)
    }

    fn newest(&self, row: Row) -> u64 {
        self.rows.get(&row).and_then(|all| all.last()).map_or(0, |(version, _)| *version)
    }

    fn draw(&mut self, txn: usize, shard: usize) {
        self.counters[shard] += 1;
        self.txns[txn].drawn.insert(shard, self.counters[shard]);
    }

    fn abort(&mut self, txn: usize, plan: Plan) {
        let rows: Vec<Key> = plan.writes.iter().map(|row| key(*row)).collect();
        self.locks.unlock(name(txn), rows.iter().map(|row| (TABLE, row)));
        self.txns[txn] = Txn { is_aborted: true, ..Txn::default() };
    }

    /// The worlds after each possible step of a transaction.
    fn after_steps(&self, txn: usize, plan: Plan, mistake: Option<Mistake>) -> Vec<Self> {
        let has = |it| mistake == Some(it);
        let state = &self.txns[txn];
        if state.is_aborted {
            return Vec::new();
        }
        let (reads, writes) = (Plan::shards(plan.reads), Plan::shards(plan.writes));
        let each = |todo: BTreeSet<usize>, step: &dyn Fn(&mut Self, usize)| -> Vec<Self> {
            let next = todo.into_iter().map(|shard| {
                let mut world = self.clone();
                step(&mut world, shard);
                world
            });
            next.collect()
        };
        let unread: BTreeSet<usize> = &reads - &state.read_on;
        if !unread.is_empty() {
            return each(unread, &|world, shard| world.read(txn, plan, shard));
        }
        if has(Mistake::ClockBeforeLock) {
            let drawn = state.drawn.keys().copied().collect();
            let undrawn: BTreeSet<usize> = &writes - &drawn;
            if !undrawn.is_empty() {
                return each(undrawn, &|world, shard| world.draw(txn, shard));
            }
        }
        let unlocked: BTreeSet<usize> = &writes - &state.locked_on;
        if !unlocked.is_empty() {
            let is_drawn = has(Mistake::ClockBeforeLock);
            return each(unlocked, &|world, shard| world.lock(txn, plan, shard, is_drawn));
        }
        let asked = match has(Mistake::ReadShardsUnvalidated) {
            true => &reads & &writes,
            false => reads,
        };
        let unvalidated: BTreeSet<usize> = &asked - &state.validated_on;
        if !unvalidated.is_empty() {
            return each(unvalidated, &|world, shard| world.validate(txn, plan, shard, mistake));
        }
        let raises = !has(Mistake::InstallDoesNotRaise);
        let uninstalled: BTreeSet<usize> = &writes - &state.installed_on;
        each(uninstalled, &|world, shard| world.install(txn, plan, shard, raises))
    }

    fn read(&mut self, txn: usize, plan: Plan, shard: usize) {
        for row in plan.reads.iter().copied().filter(|row| shard_of(*row) == shard) {
            let newest = self.newest(row);
            self.txns[txn].seen.insert(row, newest);
        }
        let counter = self.counters[shard];
        let state = &mut self.txns[txn];
        state.met = state.met.max(counter);
        state.read_on.insert(shard);
    }

    fn lock(&mut self, txn: usize, plan: Plan, shard: usize, is_drawn: bool) {
        let here = plan.writes.iter().filter(|row| shard_of(**row) == shard);
        let rows: Vec<Key> = here.map(|row| key(*row)).collect();
        match self.locks.lock(name(txn), rows.iter().map(|row| (TABLE, row))) {
            Ok(()) if is_drawn => {}
            Ok(()) => self.draw(txn, shard),
            Err(_) => return self.abort(txn, plan),
        }
        self.txns[txn].locked_on.insert(shard);
    }

    fn validate(&mut self, txn: usize, plan: Plan, shard: usize, mistake: Option<Mistake>) {
        let version = self.txns[txn].version.unwrap_or_else(|| {
            let draws = self.txns[txn].drawn.values().copied().max().unwrap_or(0);
            draws.max(self.txns[txn].met + 1)
        });
        self.txns[txn].version = Some(version);
        let groups = Groups::new(SHARDS as u16, 0);
        for row in plan.reads.iter().copied().filter(|row| shard_of(*row) == shard) {
            let holder = self.locks.holder(TABLE, &[row]);
            let is_locked = holder.is_some_and(|holder| holder != name(txn))
                && mistake != Some(Mistake::LockedPassesValidate);
            let newest = self.newest(row);
            if is_locked || newest != self.txns[txn].seen[&row] {
                return self.abort(txn, plan);
            }
            if let Some((_, writer)) = self.rows.get(&row).and_then(|all| all.last()) {
                let of_writer = self.txns[*writer].clock.clone();
                self.txns[txn].clock.merge(&of_writer);
            }
        }
        if mistake != Some(Mistake::ValidateDoesNotRaise) {
            self.counters[shard] = self.counters[shard].max(version);
        }
        if plan.writes.iter().any(|row| shard_of(*row) == shard) {
            let slot = groups.slot_of(ShardId(shard as u16));
            self.txns[txn].clock.raise(slot, SnapshotVersion(version));
        }
        self.txns[txn].validated_on.insert(shard);
    }

    fn install(&mut self, txn: usize, plan: Plan, shard: usize, raises: bool) {
        let state = &mut self.txns[txn];
        let drawn = state.drawn.values().copied().max().unwrap_or(0);
        let version = *state.version.get_or_insert(drawn.max(state.met + 1));
        let groups = Groups::new(SHARDS as u16, 0);
        for of in Plan::shards(plan.writes) {
            state.clock.raise(groups.slot_of(ShardId(of as u16)), SnapshotVersion(version));
        }
        state.installed_on.insert(shard);
        let here: Vec<Row> =
            plan.writes.iter().copied().filter(|row| shard_of(*row) == shard).collect();
        for row in &here {
            self.rows.entry(*row).or_default().push((version, txn));
        }
        if raises {
            self.counters[shard] = self.counters[shard].max(version);
        }
        let rows: Vec<Key> = here.iter().map(|row| key(*row)).collect();
        self.locks.unlock(name(txn), rows.iter().map(|row| (TABLE, row)));
    }

    /// Publishes what can be.
    fn settle(&mut self, mistake: Option<Mistake>) {
        let closed = [self.closed(0), self.closed(1)];
        self.published = self.published.max(closed[0].min(closed[1]));
        if mistake == Some(Mistake::PublishesVectorCut) {
            self.vectors.insert(closed);
        }
    }

    fn is_whole(&self, txn: usize, plans: [Plan; TXNS]) -> bool {
        let writes = Plan::shards(plans[txn].writes);
        !writes.is_empty() && self.txns[txn].installed_on == writes
    }

    /// The error in a world in which nothing more happens, if there is one.
    fn wrong_at_end(&self, plans: [Plan; TXNS], mistake: Option<Mistake>) -> Option<String> {
        for (row, all) in &self.rows {
            if !all.is_sorted() {
                return Some(format!("row {row} has versions out of order: {all:?}"));
            }
        }
        let mut snapshots: Vec<BTreeMap<Row, Option<usize>>> = Vec::new();
        let rows = || self.rows.keys().copied();
        let seen_by = |is_in: &dyn Fn(usize) -> bool| {
            let of_row = |row: Row| {
                let visible = self.rows[&row].iter().rev().find(|(_, txn)| is_in(*txn));
                (row, visible.map(|(_, txn)| *txn))
            };
            rows().map(of_row).collect::<BTreeMap<_, _>>()
        };
        match mistake {
            Some(Mistake::PublishesVectorCut) => {
                for vector in &self.vectors {
                    let watermarks = vector.map(SnapshotVersion);
                    snapshots.push(seen_by(&|txn| self.txns[txn].clock.is_below(&watermarks)));
                }
            }
            _ => {
                let last = self.counters.into_iter().max().unwrap_or(0);
                for at in 0..=last {
                    snapshots.push(seen_by(&|txn| self.txns[txn].version <= Some(at)));
                }
            }
        }
        if self.has_cycle(plans, None) {
            return Some("the transactions have no serial order".to_owned());
        }
        let of_reader = snapshots.iter().find(|seen| self.has_cycle(plans, Some(seen)));
        of_reader.map(|seen| format!("a reader of {seen:?} has no place in the serial order"))
    }

    fn has_cycle(
        &self,
        plans: [Plan; TXNS],
        reader: Option<&BTreeMap<Row, Option<usize>>>,
    ) -> bool {
        let mut before = [[false; TXNS + 1]; TXNS + 1];
        for (row, all) in &self.rows {
            let order: Vec<usize> = all.iter().map(|(_, txn)| *txn).collect();
            for (at, txn) in order.iter().enumerate() {
                order[at + 1..].iter().for_each(|later| before[*txn][*later] = true);
            }
            let mut read = |reader: usize, seen: Option<usize>| {
                let at = seen.and_then(|seen| order.iter().position(|txn| *txn == seen));
                seen.iter().for_each(|seen| before[*seen][reader] = true);
                let later = &order[at.map_or(0, |at| at + 1)..];
                later.iter().for_each(|later| before[reader][*later] = true);
            };
            for txn in (0..TXNS).filter(|txn| self.is_whole(*txn, plans)) {
                let Some(version) = self.txns[txn].seen.get(row) else { continue };
                read(txn, all.iter().find(|(at, _)| at == version).map(|(_, txn)| *txn));
            }
            if let Some(seen) = reader {
                read(TXNS, seen[row]);
            }
        }
        let all = || 0..=TXNS;
        all().for_each(|at| before[at][at] = false);
        for by in all() {
            for from in all() {
                for to in all() {
                    before[from][to] |= before[from][by] && before[by][to];
                }
            }
        }
        all().any(|at| before[at][at])
    }
}

/// Visits all worlds. Returns their number, and the first error.
fn search(plans: [Plan; TXNS], mistake: Option<Mistake>) -> (usize, Option<String>) {
    let mut visited = HashSet::default();
    let mut open = vec![World::default()];
    while let Some(world) = open.pop() {
        if !visited.insert(world.clone()) {
            continue;
        }
        let mut is_end = true;
        for (txn, plan) in plans.into_iter().enumerate() {
            for mut next in world.after_steps(txn, plan, mistake) {
                let decided = next.txns[txn].version;
                let is_late = |shard: &usize| {
                    Plan::shards(plan.writes).contains(shard)
                        && !world.txns[txn].installed_on.contains(shard)
                };
                let installs = (0..SHARDS).any(|shard| is_late(&shard));
                if installs && decided.is_some_and(|version| version <= world.published) {
                    return (visited.len(), Some("published before it was complete".to_owned()));
                }
                next.settle(mistake);
                is_end = false;
                open.push(next);
            }
        }
        if is_end && let Some(wrong) = world.wrong_at_end(plans, mistake) {
            return (visited.len(), Some(wrong));
        }
    }
    (visited.len(), None)
}

const fn plan(reads: &'static [Row], writes: &'static [Row]) -> Plan {
    Plan { reads, writes }
}

/// Transactions that conflict: rows `a` and `b` are on the first shard, `x` and `y` on the other.
const WORLDS: [[Plan; TXNS]; 6] = [
    // Write skew over shards, and a writer of both.
    [plan(b"a", b"x"), plan(b"x", b"a"), plan(b"ax", b"ax")],
    // A reader between two writers of its row, of which one is on another shard.
    [plan(b"a", b"a"), plan(b"x", b"x"), plan(b"a", b"x")],
    // A chain of dependencies (§3).
    [plan(b"a", b"ax"), plan(b"x", b"xb"), plan(b"b", b"y")],
    // Blind writes.
    [plan(b"", b"ax"), plan(b"", b"xa"), plan(b"ax", b"b")],
    // Each writes the row that the next one reads.
    [plan(b"a", b"x"), plan(b"x", b"b"), plan(b"b", b"a")],
    [plan(b"ax", b"b"), plan(b"bx", b"a"), plan(b"ab", b"x")],
];

/// §4.2: certified transactions are serializable, and so are the readers of each published version.
#[test]
fn certified_transactions_and_readers_of_snapshots_have_a_serial_order() {
    let mut worlds = 0;
    for plans in WORLDS {
        let (visited, wrong) = search(plans, None);
        assert_eq!(wrong, None, "{plans:?}");
        worlds += visited;
    }
    println!("{worlds} worlds");
    assert!(worlds > 10_000, "{worlds} worlds");
}

/// Each of them breaks one of the worlds.
#[test]
fn each_mistake_of_certification_is_found() {
    for mistake in [
        Mistake::ClockBeforeLock,
        Mistake::LockedPassesValidate,
        Mistake::ReadShardsUnvalidated,
        Mistake::ValidateDoesNotRaise,
        Mistake::InstallDoesNotRaise,
        Mistake::PublishesVectorCut,
    ] {
        let all = WORLDS.into_iter().map(|plans| search(plans, Some(mistake)));
        let found = all.into_iter().find_map(|(count, found)| Some((count, found?)));
        let (count, found) = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: after {count} worlds: {found}");
    }
}
