//! The replicas of all shards, one coordinator for each transaction, and a reader.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::hash::HashMap;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::partition::ShardSet;

use super::replicas::{Replica, Txn, last_version};
use crate::tiga::cells::{CELL_US, Cell, cell_of};
use crate::tiga::fast_path::entries_of;
use crate::tiga::hashes::PrefixHash;
use crate::tiga::log::{Position, Suffix};
use crate::tiga::quorum::{FastReply, Sizes, View, commit_point};
use crate::tiga::rebuild::{Entry, rebuild};
use crate::tiga::shards::{ByShard, Closing};
use crate::tiga::stamp::{Issuer, Role, Stamp};
use crate::tiga::verification::{Proposal, verify};

/// Stamps are in the first cells.
const CELLS: u64 = 5;

/// The events of a walk.
const EVENTS: usize = 60;

/// The size of a world.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub replicas: usize,
    pub shards: u16,
    pub txns: usize,
}

/// What walks have seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Transactions that were answered by replies, and by logs.
    pub fast: usize,
    pub by_logs: usize,
    /// Transactions with which views began, in no log before.
    pub recovered: usize,
    /// Transactions with different stamps on their shards, or on some of them alone.
    pub void: usize,
}

/// A transaction and its coordinator.
#[derive(Debug)]
struct Own {
    of: Txn,
    by_shard: ByShard,
    /// The transactions that were answered when it began.
    after: Vec<usize>,
    is_answered: bool,
    is_fast: bool,
}

/// A message on its way to a coordinator.
#[derive(Clone, Copy, Debug)]
enum ToCoordinator {
    Reply { entry: Entry, is_leader: bool },
    Closed { cell: SnapshotVersion },
}

struct World {
    case: Case,
    dice: fastrand::Rng,
    replicas: Vec<Vec<Replica>>,
    groups: Vec<Vec<NodeId>>,
    txns: Vec<Own>,
    closing: Closing,
    on_way: Vec<(ShardId, NodeId, View, ToCoordinator)>,
    /// The last view that the coordinators have heard of.
    known: View,
    /// The last view, its leaders and its first logs.
    view: View,
    leaders: HashMap<View, Vec<NodeId>>,
    starts: Vec<Vec<Cell>>,
    /// How far each replica has told that it has the log, of each shard.
    synced: Vec<Vec<(View, Position)>>,
    /// The words of leaders that nothing more comes up to a version, at a position of their logs.
    words: BTreeSet<(ShardId, View, Position, SnapshotVersion)>,
    /// What a reader has seen: the transactions of each shard, up to a version.
    snapshots: BTreeMap<SnapshotVersion, Vec<Vec<Entry>>>,
    seen: Seen,
}

/// Runs one walk, and checks its end.
pub fn walk(case: Case, seed: u64, seen: &mut Seen) -> Result<(), String> {
    let mut world = World::new(case, seed);
    world.change_view();
    world.enter_all();
    let is_calm = world.dice.bool();
    if is_calm {
        world.begin_well();
    }
    let events = if is_calm { EVENTS / 2 } else { EVENTS };
    (0..events).for_each(|_| world.step());
    world.heal();
    let result = world.check();
    seen.fast += world.seen.fast;
    seen.by_logs += world.seen.by_logs;
    seen.recovered += world.seen.recovered;
    seen.void += world.seen.void;
    result
}

impl World {
    fn new(case: Case, seed: u64) -> Self {
        let node = |shard: u16, index: usize| NodeId(shard + case.shards * index as u16);
        let group = |shard| {
            let replica = |index| Replica::new(node(shard, index), ShardId(shard));
            (0..case.replicas).map(replica).collect()
        };
        let shards = usize::from(case.shards);
        let replicas: Vec<Vec<Replica>> = (0..case.shards).map(group).collect();
        let nodes = |group: &Vec<Replica>| group.iter().map(|replica| replica.node).collect();
        Self {
            case,
            dice: fastrand::Rng::with_seed(seed),
            groups: replicas.iter().map(nodes).collect(),
            replicas,
            txns: Vec::new(),
            closing: Closing::new(shards * case.replicas),
            on_way: Vec::new(),
            known: View(0),
            view: View(0),
            leaders: HashMap::default(),
            starts: vec![Vec::new(); shards],
            synced: vec![vec![Default::default(); case.replicas]; shards],
            words: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    /// A first transaction may be answered before anything fails. Some clocks of other shards
    /// stand still.
    fn begin_well(&mut self) {
        self.submit();
        let shards = self.txns[0].of.shards;
        let mut moves = |shard: usize| {
            let share = if shards.contains(ShardId(shard as u16)) { 0.97 } else { 0.5 };
            (0..self.case.replicas).map(|_| self.dice.f64() < share).collect()
        };
        let moves: Vec<Vec<bool>> = (0..self.replicas.len()).map(&mut moves).collect();
        for _ in 0..=CELLS {
            self.deliver(1.0);
            self.each(1.0, |world, shard, index| {
                if moves[shard][index] {
                    world.replicas[shard][index].tick();
                }
            });
            self.each(1.0, Self::reply);
            self.each(1.0, Self::close);
            self.each(0.8, Self::tell_closed);
            (0..self.on_way.len()).for_each(|_| self.answer());
        }
    }

    /// An event at some or most of the replicas.
    fn step(&mut self) {
        let (event, share) = (self.dice.u8(..100), [0.1, 0.5, 0.9][self.dice.usize(..3)]);
        match event {
            0..10 => self.submit(),
            10..28 => self.deliver(share),
            28..44 => self.each(share, |world, shard, index| {
                world.replicas[shard][index].tick();
            }),
            44..54 => self.each(share, Self::reply),
            54..62 => self.each(share, Self::tell_closed),
            62..70 => self.each(share, Self::close),
            70..76 => self.each(share, Self::sync),
            76..88 => {
                let count = (self.on_way.len() as f64 * share) as usize;
                (0..=count).for_each(|_| self.answer());
            }
            88..91 => self.each(share, Self::restart),
            91..93 => self.change_view(),
            93..96 => self.each(share, Self::enter),
            96 => self.known = self.view,
            97.. => self.read(),
        }
    }

    /// An event at each replica of a share of all.
    fn each(&mut self, share: f64, event: impl Fn(&mut Self, usize, usize)) {
        for shard in 0..self.replicas.len() {
            for index in 0..self.case.replicas {
                if self.dice.f64() < share {
                    event(self, shard, index);
                }
            }
        }
    }

    /// A client begins a transaction of two shards, or of one.
    fn submit(&mut self) {
        if self.txns.len() == self.case.txns {
            return;
        }
        let number = self.txns.len() as u16;
        let (one, other) = (self.dice.u16(..self.case.shards), self.dice.u16(..self.case.shards));
        let shards: ShardSet = [one, other].map(ShardId).into_iter().collect();
        let first = self.txns.first().map(|own| own.of.shards);
        let rest = first.map(|first| {
            let all = (0..self.case.shards).map(ShardId);
            all.filter(|shard| !first.contains(*shard)).collect::<ShardSet>()
        });
        let shards = match rest {
            Some(rest) if !rest.is_empty() && self.dice.bool() => rest,
            _ => shards,
        };
        let coordinator = NodeId(900 + number);
        let us = self.dice.u64(1..CELLS * CELL_US);
        let stamp = Issuer::new(coordinator, Role::Coordinator, Stamp::ZERO).issue(us);
        let sizes = Sizes::of(self.case.replicas);
        let by_shard = ByShard::new(shards.iter().map(|shard| (shard, sizes)));
        let answered = self.txns.iter().enumerate().filter(|(_, own)| own.is_answered);
        let after = answered.map(|(number, _)| number).collect();
        let of = Txn { txn: TxnId::new(coordinator, 1), stamp, shards };
        self.txns.push(Own { of, by_shard, after, is_answered: false, is_fast: false });
    }

    fn deliver(&mut self, share: f64) {
        if self.txns.is_empty() {
            return;
        }
        let of = self.txns[self.dice.usize(..self.txns.len())].of;
        self.each(share, |world, shard, index| {
            if of.shards.contains(ShardId(shard as u16)) {
                world.replicas[shard][index].take(of);
            }
        });
    }

    fn send(&mut self, shard: usize, index: usize, message: ToCoordinator) {
        let Replica { node, shard, view, .. } = self.replicas[shard][index];
        self.on_way.push((shard, node, view, message));
    }

    fn reply(&mut self, shard: usize, index: usize) {
        for entry in self.replicas[shard][index].reply() {
            self.send(shard, index, ToCoordinator::Reply { entry, is_leader: false });
        }
    }

    /// A replica answers a coordinator that waits for the end of a cell.
    fn tell_closed(&mut self, shard: usize, index: usize) {
        let of_others = |own: &&Own| !own.of.shards.contains(ShardId(shard as u16));
        let asked: Vec<Stamp> =
            self.txns.iter().filter(of_others).map(|own| own.of.stamp).collect();
        for stamp in asked {
            if let Some(cell) = self.replicas[shard][index].tell_closed(cell_of(stamp)) {
                self.send(shard, index, ToCoordinator::Closed { cell });
            }
        }
    }

    /// A leader appends what is over, and replies.
    fn close(&mut self, shard: usize, index: usize) {
        let cells = self.replicas[shard][index].close();
        let Replica { view, clock, ref log, shard: of, ref leads, .. } =
            self.replicas[shard][index];
        if leads.is_none() {
            return;
        }
        let upto = Position(log.len() as u64);
        self.words.insert((of, view, upto, SnapshotVersion(clock)));
        self.synced[shard][index] = (view, upto);
        for entry in entries_of(&cells) {
            self.send(shard, index, ToCoordinator::Reply { entry, is_leader: true });
        }
    }

    /// A follower gets the next cell of its leader.
    fn sync(&mut self, shard: usize, index: usize) {
        let Replica { view, ref log, .. } = self.replicas[shard][index];
        let at = log.len();
        let leader = self.replicas[shard].iter().find(|it| it.leads.is_some() && it.view == view);
        let Some(cell) = leader.and_then(|leader| leader.log.get(at)).cloned() else { return };
        let replica = &mut self.replicas[shard][index];
        if replica.is_normal() && replica.leads.is_none() {
            replica.append(&cell);
            self.synced[shard][index] = (view, Position(replica.log.len() as u64));
        }
    }

    /// A message arrives at a coordinator, which answers its client perhaps.
    fn answer(&mut self) {
        if self.on_way.is_empty() {
            return;
        }
        let drawn = self.dice.usize(..self.on_way.len());
        let (shard, node, view, message) = self.on_way.swap_remove(drawn);
        match message {
            ToCoordinator::Closed { cell } => self.closing.note_told(node, view, cell),
            ToCoordinator::Reply { entry: Entry { txn, stamp }, is_leader } => {
                let prefix = Some(PrefixHash::default());
                let result = is_leader.then_some(());
                let own = self.txns.iter_mut().find(|own| own.of.txn == txn);
                let own = own.expect("it was submitted");
                own.by_shard.note(shard, node, FastReply { view, stamp, prefix, result });
            }
        }
        let open = self.txns.iter_mut().filter(|own| !own.is_answered && own.of.shards.len() > 1);
        for own in open {
            let Txn { stamp, shards, .. } = own.of;
            let Some(view) = own.by_shard.committed_at(stamp) else { continue };
            let leaders = &self.leaders[&view];
            let others = (0..).map(ShardId).zip(&self.groups).zip(leaders);
            let others = others.filter(|((shard, _), _)| !shards.contains(*shard));
            let others = others.map(|((_, group), leader)| (&group[..], *leader));
            if view == self.known && self.closing.have_closed(others, view, cell_of(stamp)) {
                (own.is_answered, own.is_fast) = (true, true);
                self.seen.fast += 1;
            }
        }
    }

    fn restart(&mut self, shard: usize, index: usize) {
        let clock = self.dice.u64(..=self.replicas[shard][index].clock);
        self.replicas[shard][index].restart(clock);
    }

    /// f + 1 replicas of each shard report, and the logs of the next view are decided.
    fn change_view(&mut self) {
        let sizes = Sizes::of(self.case.replicas);
        let next = View(self.view.0 + 1);
        let (mut leaders, mut proposals) = (Vec::new(), Vec::new());
        for shard in 0..self.replicas.len() {
            let mut drawn: Vec<usize> = (0..self.case.replicas).collect();
            self.dice.shuffle(&mut drawn);
            drawn.truncate(sizes.simple());
            drawn.iter().for_each(|index| self.enter(shard, *index));
            let group = &mut self.replicas[shard];
            let reports: Vec<_> = drawn.iter().map(|index| group[*index].report(next)).collect();
            let best = drawn.iter().map(|index| &group[*index]);
            let best = best.max_by_key(|it| (it.view, it.log.len())).expect("there are some");
            let rebuilt = rebuild(sizes, &reports, |_, _| false);
            let before = SnapshotVersion::ZERO;
            let mut cells = best.log.clone();
            self.seen.recovered += rebuilt.recovered.len();
            let of_cell = |a: &Entry, b: &Entry| cell_of(a.stamp) == cell_of(b.stamp);
            for of_cell in rebuilt.recovered.chunk_by(of_cell) {
                let txns = of_cell.iter().map(|entry| (entry.txn, entry.stamp)).collect();
                cells.push(Cell { version: cell_of(of_cell[0].stamp), txns });
            }
            leaders.push(group[drawn[0]].node);
            let suffix = Suffix { view: next, after: Position(0), cells };
            proposals.push(Proposal { suffix, before, floor: rebuilt.floor });
        }
        let logs = verify(&proposals);
        self.starts = logs.into_iter().map(|suffix| suffix.cells).collect();
        self.view = next;
        self.leaders.insert(next, leaders);
    }

    /// A replica takes the log of the last view.
    fn enter(&mut self, shard: usize, index: usize) {
        let (view, shards) = (self.view, self.case.shards);
        let replica = &mut self.replicas[shard][index];
        if replica.view < view {
            let is_leader = self.leaders[&view][shard] == replica.node;
            replica.enter(view, self.starts[shard].clone(), shards, is_leader);
            self.synced[shard][index] = (view, Position(replica.log.len() as u64));
        }
    }

    fn enter_all(&mut self) {
        for shard in 0..self.replicas.len() {
            (0..self.case.replicas).for_each(|index| self.enter(shard, index));
        }
        self.known = self.view;
    }

    /// The log of a shard that is committed in a view, and up to where nothing more comes.
    fn committed(&self, shard: usize, view: View) -> Option<(Vec<Cell>, SnapshotVersion)> {
        let of_view = |(of, upto): &(View, Position)| if *of == view { *upto } else { Position(0) };
        let synced: Vec<Position> = self.synced[shard].iter().map(of_view).collect();
        let point = commit_point(&synced);
        let has_it = |it: &&Replica| it.view == view && it.log.len() as u64 >= point.0;
        let log = self.replicas[shard].iter().find(has_it)?.log[..point.0 as usize].to_vec();
        let is_told = |(of, in_view, upto, _): &&(ShardId, View, Position, SnapshotVersion)| {
            usize::from(of.0) == shard && *in_view == view && *upto <= point
        };
        let told = self.words.iter().filter(is_told).map(|(.., version)| *version).max();
        let through = told.unwrap_or_default().max(last_version(&log));
        Some((log, through))
    }

    /// A reader sees the last cell up to which all shards are committed, and clients are answered.
    fn read(&mut self) {
        let view = self.view;
        let of = |shard| self.committed(shard, view);
        let all: Option<Vec<_>> = (0..self.replicas.len()).map(of).collect();
        let Some(all) = all else { return };
        let through = all.iter().map(|(_, through)| *through).min().unwrap_or_default();
        let cells = all.iter().flat_map(|(log, _)| log).map(|cell| cell.version);
        let Some(version) = cells.filter(|version| *version <= through).max() else { return };
        let logs: Vec<&[Cell]> = all.iter().map(|(log, _)| &log[..]).collect();
        let places: Vec<Vec<Entry>> = logs.iter().map(|log| up_to(log, version)).collect();
        for own in self.txns.iter_mut().filter(|own| !own.is_answered) {
            let of = &places;
            if stamp_in(of, &own.of).is_ok_and(|stamp| stamp.is_some()) {
                own.is_answered = true;
                self.seen.by_logs += 1;
            }
        }
        self.snapshots.insert(version, places);
    }

    /// Everything arrives, and all clocks pass all stamps.
    fn heal(&mut self) {
        self.change_view();
        self.enter_all();
        for shard in 0..self.replicas.len() {
            for index in 0..self.case.replicas {
                for own in 0..self.txns.len() {
                    let of = self.txns[own].of;
                    if of.shards.contains(ShardId(shard as u16)) {
                        self.replicas[shard][index].take(of);
                    }
                }
                (0..=EVENTS).for_each(|_| self.replicas[shard][index].tick());
                self.close(shard, index);
            }
        }
    }

    /// Checks what clients and readers know against the logs.
    fn check(&mut self) -> Result<(), String> {
        let leader = |group: &Vec<Replica>| group.iter().position(|it| it.leads.is_some());
        let logs: Vec<Vec<Entry>> = self
            .replicas
            .iter()
            .map(|group| {
                let leader = leader(group).expect("each shard has a leader");
                entries_of(&group[leader].log).collect()
            })
            .collect();
        for (version, places) in &self.snapshots {
            let is_before = |entry: &&Entry| cell_of(entry.stamp) <= *version;
            let now: Vec<Vec<Entry>> =
                logs.iter().map(|log| log.iter().filter(is_before).copied().collect()).collect();
            if now != *places {
                return Err(format!("a reader at {version} has seen {places:?}, now {now:?}"));
            }
        }
        let stamps: Vec<Option<Stamp>> =
            self.txns.iter().map(|own| stamp_in(&logs, &own.of).ok().flatten()).collect();
        self.seen.void += stamps.iter().filter(|stamp| stamp.is_none()).count();
        for (own, stamp) in self.txns.iter().zip(&stamps) {
            let Txn { txn, stamp: wanted, .. } = own.of;
            if own.is_answered && stamp.is_none() || own.is_fast && *stamp != Some(wanted) {
                return Err(format!("{txn} was answered, and is at {stamp:?} in {logs:?}"));
            }
            for before in &own.after {
                if stamp.is_some_and(|stamp| stamps[*before] > Some(stamp)) {
                    let other = self.txns[*before].of.txn;
                    return Err(format!("{txn} began after {other}, and is before it: {logs:?}"));
                }
            }
        }
        Ok(())
    }
}

/// The entries of a log up to a version.
fn up_to(log: &[Cell], version: SnapshotVersion) -> Vec<Entry> {
    entries_of(log.iter().filter(|cell| cell.version <= version)).collect()
}

/// The stamp of a transaction on all of its shards; `None` if no shard has it.
fn stamp_in(logs: &[Vec<Entry>], of: &Txn) -> Result<Option<Stamp>, ()> {
    let on = |shard: ShardId| {
        let log = &logs[usize::from(shard.0)];
        log.iter().find(|entry| entry.txn == of.txn).map(|entry| entry.stamp)
    };
    let stamps: BTreeSet<Option<Stamp>> = of.shards.iter().map(on).collect();
    if stamps.len() == 1 { Ok(stamps.into_iter().next().flatten()) } else { Err(()) }
}
