//! The worlds of the search: leaders with their logs, transactions, and the configuration.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::{ShardId, SnapshotVersion};

use super::super::super::clocks::{Clock, Groups};
use super::super::super::versions::{Epoch, epoch_of, start_of};

const SHARDS: usize = 3;
const TXNS: usize = 3;

/// A deliberate error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// A new epoch reads versions that may be void.
    DoubtfulRead,
    /// A shard takes part in transactions of an epoch before.
    OldReadsNew,
    /// A new leader reports that its log is closed up to its last entry.
    ClosedTooHigh,
    /// What hangs is dropped.
    HangingDropped,
    /// Nothing is void.
    NothingVoid,
    /// A client is told when the coordinator's log is replicated.
    OwnLogSuffices,
    /// A leader that stays reports that its log is closed while transactions hang.
    ClosedWhileHanging,
    /// The watermark of a leader that has taken over is believed before the cut is known.
    EarlyWatermark,
}

/// The shards where a transaction writes, the first one of which coordinates it, and the row that
/// it reads: that of T0 on shard 1.
#[derive(Clone, Copy, Debug)]
struct Plan {
    shards: &'static [usize],
    reads_first: bool,
}

const PLANS: [Plan; TXNS] = [
    Plan { shards: &[0, 1], reads_first: false },
    Plan { shards: &[1, 2], reads_first: true },
    Plan { shards: &[1], reads_first: true },
];

/// A bounded world to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The transaction that there is besides T0.
    pub second: usize,
    /// The shard whose leader may fail, and how often.
    pub frail: usize,
    pub failures: u8,
    /// The number of entries of a clock (§6.1).
    pub slots: u16,
    pub mistake: Option<Mistake>,
}

/// A transaction at a version.
type Name = (usize, SnapshotVersion);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    /// Nothing in a closing.
    txn: Option<usize>,
    at: SnapshotVersion,
    clock: Clock,
    closed: SnapshotVersion,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Leader {
    /// The last epoch of which it knows, and the last that has begun.
    epoch: Epoch,
    begun: Epoch,
    /// Since when it leads.
    since: Epoch,
    log: Vec<Entry>,
    /// The number of entries that a majority has.
    replicated: usize,
    counter: SnapshotVersion,
    pending: BTreeMap<usize, SnapshotVersion>,
    void: BTreeSet<Name>,
}

/// An attempt of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Attempt {
    epoch: Epoch,
    drawn: BTreeMap<usize, SnapshotVersion>,
    clock: Clock,
    read: Option<Name>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Txn {
    attempt: Attempt,
    /// The version at which the coordinator has certified it, and what it has read.
    done: Option<(SnapshotVersion, Option<Name>)>,
    is_told: bool,
}

/// The news of a certified transaction on the way to a shard.
type Install = (usize, usize, Epoch, SnapshotVersion, Clock);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    leaders: [Leader; SHARDS],
    txns: [Txn; TXNS],
    on_way: BTreeSet<Install>,
    number: Epoch,
    begun: Epoch,
    closed: BTreeMap<usize, SnapshotVersion>,
    finals: Vec<SnapshotVersion>,
    /// How often the leader of the frail shard may still fail.
    pub failures: u8,
    case: Case,
}

impl Leader {
    fn is_closing(&self) -> bool {
        self.since > self.begun
    }

    fn closed_of(&self, count: usize) -> SnapshotVersion {
        self.log[..count].last().map_or(SnapshotVersion::ZERO, |entry| entry.closed)
    }

    fn closed_below(&self, version: SnapshotVersion) -> SnapshotVersion {
        let least = self.pending.values().min();
        least.map_or(version, |draw| version.min(SnapshotVersion(draw.0 - 1)))
    }

    fn append(&mut self, txn: Option<usize>, at: Option<SnapshotVersion>, clock: Clock) {
        self.counter = self.counter.max(at.unwrap_or_default()).next();
        let closed = self.closed_below(self.counter);
        let at = at.unwrap_or(self.counter);
        self.log.push(Entry { txn, at, clock, closed });
    }

    /// The newest version of T0's row.
    fn newest(&self) -> Option<&Entry> {
        let is_it = |entry: &&Entry| entry.txn == Some(0) && !self.void.contains(&(0, entry.at));
        self.log.iter().rev().find(is_it)
    }

    fn has(&self, txn: usize, at: SnapshotVersion) -> bool {
        let is_it = |entry: &Entry| entry.txn == Some(txn) && entry.at == at;
        self.log.iter().any(is_it) && !self.void.contains(&(txn, at))
    }
}

impl World {
    pub fn first(case: Case) -> Self {
        let one = Leader {
            epoch: Epoch(1),
            begun: Epoch(1),
            since: Epoch(1),
            counter: start_of(Epoch(1)),
            ..Leader::default()
        };
        let attempt = Attempt { epoch: Epoch(1), ..Attempt::default() };
        let txn = Txn { attempt, ..Txn::default() };
        Self {
            leaders: [one.clone(), one.clone(), one],
            txns: [txn.clone(), txn.clone(), txn],
            on_way: BTreeSet::new(),
            number: Epoch(1),
            begun: Epoch(1),
            closed: BTreeMap::new(),
            finals: vec![SnapshotVersion::ZERO; SHARDS],
            failures: case.failures,
            case,
        }
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.case.mistake == Some(mistake)
    }

    fn groups(&self) -> Groups {
        Groups::new(SHARDS as u16, self.case.slots)
    }

    fn raise(&self, clock: &mut Clock, shard: usize, version: SnapshotVersion) {
        clock.raise(self.groups().slot_of(ShardId(shard as u16)), version);
    }

    fn replicate(&mut self, shard: usize) {
        let leader = &mut self.leaders[shard];
        leader.replicated = leader.log.len();
    }

    /// Clients are told as early as possible, and what can't be lost is replicated at once.
    fn settle(mut self) -> Self {
        (0..SHARDS)
            .filter(|shard| *shard != self.case.frail)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|shard| self.replicate(shard));
        for txn in self.txns() {
            self.txns[txn].is_told |= self.may_tell(txn);
        }
        self
    }

    /// The watermarks, as a shard may know them. It believes none of a leader that has taken over
    /// before it knows the cut.
    fn watermarks(&self, at: usize) -> Vec<SnapshotVersion> {
        let begun = self.leaders[at].begun;
        let of = |leader: &Leader| {
            let is_early = leader.since > begun && !self.has(Mistake::EarlyWatermark);
            match leader.is_closing() || is_early {
                true => start_of(begun),
                false => start_of(begun).max(leader.closed_of(leader.replicated)),
            }
        };
        self.groups().watermarks(&self.leaders.iter().map(of).collect::<Vec<_>>())
    }

    fn txns(&self) -> [usize; 2] {
        [0, self.case.second]
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        change(&mut world);
        world
    }

    /// Whether a shard takes part in an attempt, and what the attempt reads there, with its clock.
    fn can_prepare(&self, txn: usize, shard: usize) -> Option<Clock> {
        let (leader, attempt) = (&self.leaders[shard], &self.txns[txn].attempt);
        let is_of_epoch = attempt.epoch == leader.epoch
            || self.has(Mistake::OldReadsNew) && attempt.epoch < leader.epoch;
        let is_new = !attempt.drawn.contains_key(&shard) && !leader.pending.contains_key(&txn);
        if !is_of_epoch || !is_new || leader.is_closing() || self.txns[txn].done.is_some() {
            return None;
        }
        let mut clock = Clock::default();
        if !PLANS[txn].reads_first || shard != PLANS[txn].shards[0] {
            return Some(clock);
        }
        if leader.pending.contains_key(&0) {
            return None;
        }
        if let Some(entry) = leader.newest() {
            clock = entry.clock.clone();
            clock.forget(&self.watermarks(shard));
            let is_open = leader.begun < leader.epoch && epoch_of(entry.at) < leader.epoch;
            let is_doubtful = is_open && !clock.is_empty();
            if is_doubtful && !self.has(Mistake::DoubtfulRead) {
                return None;
            }
            if PLANS[txn].shards.len() > 1 {
                self.raise(&mut clock, shard, entry.at);
            }
        }
        Some(clock)
    }

    fn prepare(&mut self, txn: usize, shard: usize, clock: &Clock) {
        let leader = &mut self.leaders[shard];
        leader.counter = leader.counter.next();
        leader.pending.insert(txn, leader.counter);
        let attempt = &mut self.txns[txn].attempt;
        attempt.drawn.insert(shard, leader.counter);
        attempt.clock.merge(clock);
        if PLANS[txn].reads_first && shard == PLANS[txn].shards[0] {
            attempt.read = leader.newest().map(|entry| (0, entry.at));
        }
    }

    fn decide(&mut self, txn: usize) {
        let Attempt { epoch, drawn, mut clock, read } = self.txns[txn].attempt.clone();
        let at = *drawn.values().max().expect("all have drawn a number");
        let shards = PLANS[txn].shards;
        if shards.len() > 1 {
            shards.iter().for_each(|shard| self.raise(&mut clock, *shard, at));
        }
        for shard in &shards[1..] {
            self.on_way.insert((txn, *shard, epoch, at, clock.clone()));
        }
        self.txns[txn].done = Some((at, read));
        let leader = &mut self.leaders[shards[0]];
        leader.pending.remove(&txn);
        leader.append(Some(txn), Some(at), clock);
    }

    /// A transaction has not ended: it begins again in the epoch of its coordinator.
    fn begin_again(&mut self, txn: usize) {
        let epoch = self.leaders[PLANS[txn].shards[0]].epoch;
        self.txns[txn].attempt = Attempt { epoch, ..Attempt::default() };
        self.txns[txn].done = None;
    }

    fn coordinated(shard: usize) -> impl Iterator<Item = usize> {
        (0..TXNS).filter(move |txn| PLANS[*txn].shards[0] == shard)
    }

    /// A leader fails. The next one finds the first entries of its log.
    fn fail(&mut self, shard: usize, found: usize) {
        self.failures -= 1;
        self.number = self.number.next();
        self.closed.clear();
        let leader = &mut self.leaders[shard];
        leader.log.truncate(found);
        (leader.epoch, leader.since) = (self.number, self.number);
        leader.replicated = found;
        leader.pending.clear();
        for txn in Self::coordinated(shard) {
            let done = self.txns[txn].done;
            if done.is_none_or(|(at, _)| !self.leaders[shard].has(txn, at)) {
                self.begin_again(txn);
            }
        }
        self.learn_cut(shard);
    }

    /// A leader that stays enters the last epoch.
    fn enter(&mut self, shard: usize) {
        self.learn_cut(shard);
        let leader = &mut self.leaders[shard];
        leader.epoch = self.number;
        leader.counter = leader.counter.max(start_of(self.number));
        for txn in Self::coordinated(shard) {
            if self.txns[txn].done.is_none() {
                self.leaders[shard].pending.remove(&txn);
                self.begin_again(txn);
            }
        }
    }

    /// How a transaction has ended that hangs on a shard, if that is known.
    fn fate(&self, txn: usize, shard: usize) -> Option<Option<(SnapshotVersion, Clock)>> {
        let leader = &self.leaders[shard];
        let draw = *leader.pending.get(&txn)?;
        let coordinator = &self.leaders[PLANS[txn].shards[0]];
        let is_known = leader.epoch == self.number && coordinator.epoch == self.number;
        if PLANS[txn].shards[0] == shard || epoch_of(draw) >= leader.epoch || !is_known {
            return None;
        }
        let is_it = |entry: &&Entry| {
            entry.txn == Some(txn)
                && epoch_of(entry.at) == epoch_of(draw)
                && !coordinator.void.contains(&(txn, entry.at))
        };
        let entry = coordinator.log.iter().find(is_it);
        Some(entry.map(|entry| (entry.at, entry.clock.clone())))
    }

    /// Up to which version the log of a shard is closed for the last epoch.
    fn final_of(&self, shard: usize) -> Option<SnapshotVersion> {
        let (leader, start) = (&self.leaders[shard], start_of(self.number));
        if leader.epoch != self.number || self.begun == self.number {
            return None;
        }
        if !leader.is_closing() {
            let is_closed = leader.closed_of(leader.replicated) >= start;
            let is_closed = is_closed || self.has(Mistake::ClosedWhileHanging);
            return is_closed.then_some(start);
        }
        let last = leader.log.iter().map(|entry| entry.at).max().unwrap_or_default();
        let closed = leader.closed_of(leader.log.len()).max(start_of(self.begun));
        let is_wrong = self.has(Mistake::ClosedTooHigh);
        Some(if is_wrong { closed.max(last) } else { closed })
    }

    fn close(&mut self, shard: usize, version: SnapshotVersion) {
        self.closed.insert(shard, version);
        if self.closed.len() == SHARDS {
            self.begun = self.number;
            self.finals = self.closed.values().copied().collect();
            self.closed.clear();
        }
    }

    fn survives(&self, entry: &Entry) -> bool {
        self.has(Mistake::NothingVoid)
            || epoch_of(entry.at) >= self.begun
            || entry.clock.is_below(&self.groups().watermarks(&self.finals))
    }

    /// A shard hears of the cut.
    fn learn_cut(&mut self, shard: usize) {
        if self.leaders[shard].begun == self.begun {
            return;
        }
        let all = self.leaders[shard].log.iter().filter(|entry| !self.survives(entry));
        let void: Vec<Name> = all.filter_map(|entry| Some((entry.txn?, entry.at))).collect();
        let leader = &mut self.leaders[shard];
        leader.void.extend(void.iter().copied());
        leader.begun = self.begun;
        leader.counter = leader.counter.max(start_of(leader.epoch));
        let is_done =
            |txn: &usize| self.txns[*txn].done.is_some_and(|(at, _)| void.contains(&(*txn, at)));
        let again: Vec<usize> = Self::coordinated(shard).filter(is_done).collect();
        again.into_iter().for_each(|txn| self.begin_again(txn));
    }

    /// Whether a client may be told.
    fn may_tell(&self, txn: usize) -> bool {
        let Some((at, _)) = self.txns[txn].done else { return false };
        let shard = PLANS[txn].shards[0];
        let leader = &self.leaders[shard];
        if self.txns[txn].is_told || leader.is_closing() {
            return false;
        }
        let replicated = &leader.log[..leader.replicated];
        let is_it = |entry: &&Entry| entry.txn == Some(txn) && entry.at == at;
        replicated.iter().find(is_it).is_some_and(|entry| {
            let is_below = entry.clock.is_below(&self.watermarks(shard));
            is_below || self.has(Mistake::OwnLogSuffices)
        })
    }

    /// Whether somebody waits until a shard's log is closed further.
    fn may_close(&self, shard: usize) -> bool {
        let leader = &self.leaders[shard];
        let closed = leader.closed_of(leader.log.len());
        let start = start_of(leader.epoch);
        // A transaction waits for all shards of a group.
        let slot_of = |shard: usize| self.groups().slot_of(ShardId(shard as u16));
        let is_of = |txn: usize| PLANS[txn].shards.iter().any(|it| slot_of(*it) == slot_of(shard));
        let untold = self.txns().into_iter().filter(|txn| is_of(*txn) && !self.txns[*txn].is_told);
        let wanted = untold.filter_map(|txn| Some(self.txns[txn].done?.0)).max();
        let wanted = wanted.unwrap_or_default().max(start);
        let can = leader.closed_below(leader.counter.max(wanted).next());
        !leader.is_closing() && closed < wanted && can > closed
    }

    /// The worlds after each possible step.
    pub fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for txn in self.txns() {
            let Plan { shards, .. } = PLANS[txn];
            for shard in shards.iter().copied() {
                if let Some(clock) = self.can_prepare(txn, shard) {
                    all.push(self.with(|world| world.prepare(txn, shard, &clock)));
                }
            }
            let attempt = &self.txns[txn].attempt;
            let is_current = self.leaders[shards[0]].epoch == attempt.epoch;
            if self.txns[txn].done.is_none() && attempt.drawn.len() == shards.len() && is_current {
                all.push(self.with(|world| world.decide(txn)));
            }
        }
        for install in &self.on_way {
            let (txn, shard, epoch, at, clock) = install;
            let leader = &self.leaders[*shard];
            let is_taken = leader.epoch == *epoch && leader.pending.contains_key(txn);
            all.push(self.with(|world| {
                world.on_way.remove(install);
                if is_taken {
                    let leader = &mut world.leaders[*shard];
                    leader.pending.remove(txn);
                    leader.append(Some(*txn), Some(*at), clock.clone());
                }
            }));
        }
        (0..SHARDS).for_each(|shard| self.steps_of(shard, &mut all));
        all.into_iter().map(|world| world.settle()).collect()
    }

    fn steps_of(&self, shard: usize, all: &mut Vec<Self>) {
        let leader = &self.leaders[shard];
        if leader.replicated < leader.log.len() {
            all.push(self.with(|world| world.replicate(shard)));
        }
        if self.may_close(shard) {
            all.push(self.with(|world| {
                world.leaders[shard].append(None, None, Clock::default());
            }));
        }
        if leader.epoch < self.number {
            all.push(self.with(|world| world.enter(shard)));
        }
        if leader.begun < self.begun && leader.epoch == self.number {
            all.push(self.with(|world| world.learn_cut(shard)));
        }
        for txn in self.txns() {
            let Some(fate) = self.fate(txn, shard) else { continue };
            let fate = fate.filter(|_| !self.has(Mistake::HangingDropped));
            all.push(self.with(|world| {
                let leader = &mut world.leaders[shard];
                leader.pending.remove(&txn);
                if let Some((at, clock)) = fate {
                    leader.append(Some(txn), Some(at), clock);
                }
            }));
        }
        if !self.closed.contains_key(&shard)
            && let Some(version) = self.final_of(shard)
        {
            all.push(self.with(|world| world.close(shard, version)));
        }
        if self.failures > 0 && shard == self.case.frail {
            for found in leader.replicated..=leader.log.len() {
                all.push(self.with(|world| world.fail(shard, found)));
            }
        }
    }

    /// The violation, if any. `is_end` is whether nothing more can happen but failures.
    pub fn violation(&self, is_end: bool) -> Option<String> {
        for txn in self.txns() {
            let state = &self.txns[txn];
            let Some((at, read)) = state.done else {
                if state.is_told || is_end {
                    return Some(format!("T{txn} is lost, told: {}", state.is_told));
                }
                continue;
            };
            let shards = PLANS[txn].shards;
            if is_end && (!state.is_told || !shards.iter().all(|it| self.leaders[*it].has(txn, at)))
            {
                return Some(format!(
                    "T{txn} has not ended on all shards, told: {}",
                    state.is_told
                ));
            }
            if is_end && read.is_some_and(|(of, at)| !self.leaders[shards[0]].has(of, at)) {
                return Some(format!("T{txn} has read what is void"));
            }
        }
        for leader in self.leaders.iter().filter(|_| is_end) {
            let count = |txn| {
                let is_it = |entry: &&Entry| entry.txn == Some(txn);
                let kept = leader.log.iter().filter(is_it);
                kept.filter(|entry| !leader.void.contains(&(txn, entry.at))).count()
            };
            if let Some(txn) = self.txns().into_iter().find(|txn| count(*txn) > 1) {
                return Some(format!("T{txn} is executed twice"));
            }
        }
        None
    }
}
