//! The runs of one view of a shard, up to a failure.
//!
//! A leader depends on nothing that its followers do, and a follower depends on the leader through
//! its log alone. The reachable states of a shard are therefore those of the leader, each with the
//! states of followers that can be reached with its log, independently of each other.
//!
//! Clocks have no rate: a transaction may expire at any moment. What a replica does is written here
//! from the rules of the chapter, and shares with the code under test only the hashes and the rule
//! by which a follower drops entries.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pangea_core::ids::{NodeId, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::time::Span;
use pangea_core::txn::{Footprint, LockMode, PointLock};

use super::cases::{Case, TXNS_MAX, Txn};
use crate::tiga::hashes::{Hashes, PrefixHash};
use crate::tiga::rebuild::{Entry, keep_unsynced};
use crate::tiga::stamp::Stamp;

/// A transaction on one replica, with its stamp there in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    #[default]
    Absent,
    /// It came in time, and waits.
    Accepted(u64),
    /// It came too late. Only at followers.
    Late(u64),
    /// The replica has replied.
    Ready(u64),
    /// It is in the log, or is a reader that the leader has released.
    Logged(u64),
}

impl Stage {
    /// The stamp, if nothing that conflicts may come before it any more.
    pub fn floor(self) -> Option<u64> {
        match self {
            Self::Ready(us) | Self::Logged(us) => Some(us),
            Self::Absent | Self::Accepted(_) | Self::Late(_) => None,
        }
    }

    /// The stamp, if the replica has accepted the transaction, and no log has it.
    pub fn unsynced(self) -> Option<u64> {
        match self {
            Self::Accepted(us) | Self::Ready(us) => Some(us),
            Self::Absent | Self::Late(_) | Self::Logged(_) => None,
        }
    }

    /// The stamp of a late transaction.
    pub fn late(self) -> Option<u64> {
        if let Self::Late(us) = self { Some(us) } else { None }
    }
}

/// A record of the leader's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    Entry(usize, u64),
    /// Nothing more comes at or below a stamp.
    Closed(u64),
}

/// A fast reply that was sent: a stamp and a prefix.
pub type Reply = Option<(u64, Option<PrefixHash>)>;

/// The state of a replica, and its fast replies.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    pub stages: [Stage; TXNS_MAX],
    pub replies: [Reply; TXNS_MAX],
    /// The number of items that it has.
    pub has: usize,
    pub closed: u64,
    /// Only of the leader: its promise, and the last stamp that it gave.
    pub promised: u64,
    pub raised: u64,
}

/// A leader and its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leader {
    pub replica: Replica,
    pub items: Vec<Item>,
}

/// A set of transactions at stamps, to compute the prefix of one of them.
type Before = (usize, u64, [u64; TXNS_MAX]);

/// The transactions of a case, and their conflicts.
pub struct Model {
    pub case: Case,
    footprints: Vec<Arc<Footprint>>,
    prefixes: RefCell<BTreeMap<Before, Option<PrefixHash>>>,
}

pub fn id(txn: usize) -> TxnId {
    TxnId::new(NodeId(7), txn as u64)
}

pub fn number(txn: TxnId) -> usize {
    txn.sequence() as usize
}

pub fn entry(txn: usize, us: u64) -> Entry {
    Entry { stamp: Stamp::last_of(us), txn: id(txn) }
}

impl Model {
    pub fn new(case: &Case) -> Self {
        assert!(case.txns.len() <= TXNS_MAX, "{} has more transactions", case.name);
        let footprint = |txn: &Txn| {
            let points = txn.uses.iter().map(|&(row, mode)| {
                let key = Key::from(&[row][..]);
                PointLock { table: TableId(1), key, mode }
            });
            Arc::new(Footprint::new(points.collect(), vec![]))
        };
        let footprints = case.txns.iter().map(footprint).collect();
        Self { case: case.clone(), footprints, prefixes: RefCell::default() }
    }

    pub fn count(&self) -> usize {
        self.case.txns.len()
    }

    fn rows(&self, a: usize, b: usize) -> impl Iterator<Item = (LockMode, LockMode)> {
        let (a, b) = (self.case.txns[a].uses, self.case.txns[b].uses);
        let pairs = a.iter().flat_map(move |one| b.iter().map(move |other| (*one, *other)));
        pairs.filter(|(one, other)| one.0 == other.0).map(|(one, other)| (one.1, other.1))
    }

    pub fn do_conflict(&self, a: usize, b: usize) -> bool {
        self.rows(a, b).any(|(a, b)| a.writes() || b.writes())
    }

    /// Whether a transaction uses a row that another one writes.
    pub fn depends(&self, txn: usize, on: usize) -> bool {
        self.rows(txn, on).any(|(_, on)| on.writes())
    }

    /// Whether the transaction is in logs.
    pub fn writes(&self, txn: usize) -> bool {
        self.case.txns[txn].uses.iter().any(|(_, mode)| mode.writes())
    }

    /// All states of the leader.
    pub fn leaders(&self) -> BTreeSet<Leader> {
        reachable(Leader::default(), |leader| self.after_leader(leader))
    }

    /// All states of a follower that has any part of the leader's log.
    pub fn followers(&self, items: &[Item]) -> BTreeSet<Replica> {
        reachable(Replica::default(), |follower| self.after_follower(follower, items))
    }

    /// The states of the leader after any one step.
    pub fn after_leader(&self, leader: &Leader) -> Vec<Leader> {
        let mut next = Vec::new();
        for txn in 0..self.count() {
            match leader.replica.stages[txn] {
                Stage::Absent => next.extend(self.leader_accepts(leader, txn)),
                Stage::Accepted(us) if self.is_at_head(&leader.replica, txn, us, true) => {
                    let replica = self.ready(&leader.replica, txn, us);
                    next.push(Leader { replica, ..leader.clone() });
                }
                Stage::Ready(us) if us >= self.case.txns[txn].elsewhere => {
                    let mut after = leader.clone();
                    after.replica.stages[txn] = Stage::Logged(us);
                    if self.writes(txn) {
                        after.items.push(Item::Entry(txn, us));
                    }
                    next.push(after);
                }
                Stage::Accepted(_) | Stage::Ready(_) | Stage::Late(_) | Stage::Logged(_) => {}
            }
            let elsewhere = self.case.txns[txn].elsewhere;
            if leader.replica.stages[txn].unsynced().is_some_and(|us| us < elsewhere) {
                let mut after = leader.clone();
                after.replica.stages[txn] = Stage::Accepted(elsewhere);
                after.replica.replies[txn] = None;
                next.push(after);
            }
        }
        next.extend(self.leader_promises(leader));
        next.iter_mut().for_each(|leader| leader.replica.has = leader.items.len());
        next
    }

    /// §3.2: any attempt arrives first, and is raised if it is late.
    fn leader_accepts(&self, leader: &Leader, txn: usize) -> Vec<Leader> {
        let floor = self.floor(&leader.replica, txn).max(leader.replica.promised);
        let attempts = self.case.txns[txn].attempts.iter().map(|&us| {
            let mut after = leader.clone();
            let mut accepted = us;
            if us <= floor {
                let above = floor.max(after.replica.raised) + 1;
                accepted = (above..).find(|us| !self.is_issued(*us)).expect("time goes on");
                after.replica.raised = accepted;
            }
            after.replica.stages[txn] = Stage::Accepted(accepted);
            after
        });
        attempts.collect()
    }

    /// Whether a coordinator or another leader issues a stamp.
    fn is_issued(&self, us: u64) -> bool {
        self.case.txns.iter().any(|txn| txn.elsewhere == us || txn.attempts.contains(&us))
    }

    /// A promise, or a record in the log of how far nothing is pending below it.
    fn leader_promises(&self, leader: &Leader) -> Vec<Leader> {
        let marks = self.case.marks.iter().filter(|us| **us > leader.replica.promised);
        let mut next: Vec<Leader> = marks
            .map(|&promised| {
                let replica = Replica { promised, ..leader.replica.clone() };
                Leader { replica, ..leader.clone() }
            })
            .collect();
        let pending = leader.replica.stages.iter().filter_map(|stage| stage.unsynced()).min();
        let closed = pending.map_or(u64::MAX, |us| us - 1).min(leader.replica.promised);
        if closed > leader.replica.closed {
            let mut after = leader.clone();
            after.replica.closed = closed;
            after.items.push(Item::Closed(closed));
            next.push(after);
        }
        next
    }

    /// The states of a follower after any one step.
    pub fn after_follower(&self, follower: &Replica, items: &[Item]) -> Vec<Replica> {
        let mut next = Vec::new();
        for txn in 0..self.count() {
            match follower.stages[txn] {
                Stage::Absent => {
                    let floor = self.floor(follower, txn).max(follower.closed);
                    for &us in self.case.txns[txn].attempts {
                        let is_late = us <= floor;
                        let stage = if is_late { Stage::Late(us) } else { Stage::Accepted(us) };
                        next.push(follower.with(txn, stage));
                    }
                }
                Stage::Accepted(us) if self.is_at_head(follower, txn, us, false) => {
                    next.push(self.ready(follower, txn, us));
                }
                Stage::Accepted(_) | Stage::Ready(_) | Stage::Late(_) | Stage::Logged(_) => {}
            }
        }
        if let Some(item) = items.get(follower.has) {
            next.push(self.synced(follower, *item));
        }
        next
    }

    /// §3.7: a follower takes the next item of the leader's log.
    fn synced(&self, follower: &Replica, item: Item) -> Replica {
        let mut after = Replica { has: follower.has + 1, ..follower.clone() };
        match item {
            Item::Closed(us) => after.closed = us,
            Item::Entry(txn, us) => {
                let unsynced = self.unsynced(&after);
                let mut kept = unsynced.into_iter().map(|(txn, us)| entry(txn, us)).collect();
                let dropped = keep_unsynced(&mut kept, &[entry(txn, us)], |a, b| {
                    self.do_conflict(number(a), number(b))
                });
                for Entry { stamp, txn } in dropped {
                    after.stages[number(txn)] = Stage::Late(stamp.us());
                }
                after.stages[txn] = Stage::Logged(us);
            }
        }
        after
    }

    /// The writers that a replica has accepted, and that are not in its log.
    pub fn unsynced(&self, replica: &Replica) -> Vec<(usize, u64)> {
        let writers = (0..self.count()).filter(|txn| self.writes(*txn));
        writers.filter_map(|txn| Some((txn, replica.stages[txn].unsynced()?))).collect()
    }

    fn floor(&self, replica: &Replica, txn: usize) -> u64 {
        let others = (0..self.count()).filter(|other| *other != txn);
        let conflicting = others.filter(|other| self.do_conflict(txn, *other));
        conflicting.filter_map(|other| replica.stages[other].floor()).max().unwrap_or_default()
    }

    /// §3.3: nothing that conflicts waits before it. At the leader, a transaction waits until it is
    /// released.
    fn is_at_head(&self, replica: &Replica, txn: usize, us: u64, is_leader: bool) -> bool {
        let waits_before = |stage: Stage| match stage {
            Stage::Accepted(other) => other < us,
            Stage::Ready(other) => is_leader && other < us,
            Stage::Absent | Stage::Late(_) | Stage::Logged(_) => false,
        };
        let mut others = (0..self.count()).filter(|other| *other != txn);
        !others.any(|other| self.do_conflict(txn, other) && waits_before(replica.stages[other]))
    }

    fn ready(&self, replica: &Replica, txn: usize, us: u64) -> Replica {
        let mut before = [0; TXNS_MAX];
        for other in (0..self.count()).filter(|other| *other != txn) {
            before[other] = replica.stages[other].floor().unwrap_or_default();
        }
        let mut after = replica.with(txn, Stage::Ready(us));
        after.replies[txn] = Some((us, self.prefix((txn, us, before))));
        after
    }

    fn prefix(&self, of: Before) -> Option<PrefixHash> {
        let compute = || {
            let (txn, us, before) = of;
            let mut hashes = Hashes::new(5, Span::from_ms(500));
            for other in (0..self.count()).filter(|other| before[*other] > 0) {
                let stamp = Stamp::last_of(before[other]);
                hashes.insert(id(other), stamp, Arc::clone(&self.footprints[other]));
            }
            hashes.prefix(Stamp::last_of(us), &self.footprints[txn])
        };
        *self.prefixes.borrow_mut().entry(of).or_insert_with(compute)
    }
}

impl Replica {
    fn with(&self, txn: usize, stage: Stage) -> Self {
        let mut after = self.clone();
        after.stages[txn] = stage;
        after
    }
}

fn reachable<T: Clone + Ord>(first: T, after: impl Fn(&T) -> Vec<T>) -> BTreeSet<T> {
    let mut seen = BTreeSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        for next in after(&state) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen
}
