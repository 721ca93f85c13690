//! A state of the search: the leaders, the messages between them, and the facts that clients know.
//!
//! A choice is that a transaction arrives, that a notice arrives, that a clock advances, or that a
//! leader hears of watermarks. Reductions, which lose no violation unless they say so:
//!
//! - A transaction is submitted when it first arrives anywhere. Earlier, fewer others would have
//!   ended before, so that there would be less to violate.
//! - Clocks stop only at moments that matter to a leader: the stamps of transactions.
//!   [`Case::moments`] restricts them further while transactions are missing, which may lose one.
//! - A leader hears of watermarks when they permit a release, and only as far as they permit it,
//!   because it uses them for nothing else.
//! - If no transaction will arrive at a shard any more, its clock and its messages make nothing
//!   late there. With watermarks they only permit releases, and earlier ones mean that more
//!   transactions have ended. They therefore have no alternative.
//!
//! Clocks are independent of each other, and of the clocks that gave the stamps. With bounded
//! clocks they may keep their bound.

use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;

use pangea_core::ids::{NodeId, ShardId, TableId, TxnId};
use pangea_core::key::{Key, KeyRange};
use pangea_core::txn::{Footprint, LockMode, PointLock, RangeLock};
use xxhash_rust::xxh3::Xxh3;

use super::cases::{Access, Case, Txn};
use crate::tiga::order::{Arrival, Effects, Leader, Notice, Order};
use crate::tiga::stamp::{Issuer, Role, Stamp};

const SHARDS_MAX: usize = 3;
const TXNS_MAX: usize = 4;

/// A step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A transaction arrives at a shard.
    Arrive { txn: usize, shard: usize },
    /// A notice arrives; its place among those on their way.
    Hear(usize),
    /// The clock of a shard's leader reads this many microseconds.
    Tick { shard: usize, us: u64 },
    /// The leader of a shard hears the watermarks of the others up to a stamp.
    HearMarks { shard: usize, upto: Stamp },
}

/// The leaders and everything between them.
#[derive(Clone)]
pub struct World {
    leaders: Vec<Rc<Leader>>,
    /// The digest of each leader.
    digests: Vec<u128>,
    /// The notices on their way, in order: they may arrive in any order.
    on_way: Vec<(ShardId, ShardId, Notice)>,
    txns: [Known; TXNS_MAX],
}

/// The facts about one transaction, as bits of shards or of other transactions.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Known {
    arrived: u8,
    /// The transactions that had ended when this one was submitted.
    ended_before: u8,
    /// The conflicting transactions that were released before this one on some shard.
    follows: u8,
    has_ended: bool,
    /// Its stamp on each shard: when it was last ready there, and when it was released.
    ready: [Stamp; SHARDS_MAX],
    released: [Stamp; SHARDS_MAX],
}

impl Known {
    /// Whether it was released at different stamps.
    fn is_void(&self) -> bool {
        let mut stamps = self.released.iter().filter(|stamp| **stamp != Stamp::ZERO);
        let first = stamps.next();
        stamps.any(|stamp| Some(stamp) != first)
    }
}

impl World {
    pub fn new(case: &Case) -> Self {
        let leader = |shard: u16| {
            let node = NodeId(shard);
            Leader::new(ShardId(shard), case.shards, node, case.order, Stamp::ZERO)
        };
        let leaders: Vec<_> = (0..case.shards).map(leader).map(Rc::new).collect();
        let digests = leaders.iter().map(|leader| digest_of(leader)).collect();
        Self { leaders, digests, on_way: Vec::new(), txns: Default::default() }
    }

    /// The choices, of which each is possible at any time.
    pub fn choices(&self, case: &Case) -> Vec<Choice> {
        if case.order != Order::Heads
            && let Some(choice) = self.without_alternative(case)
        {
            return vec![choice];
        }
        let mut choices = Vec::new();
        for (number, txn) in case.txns.iter().enumerate() {
            for (shard, _) in txn.on.iter().map(|(shard, access)| (usize::from(*shard), access)) {
                if self.txns[number].arrived & 1 << shard == 0 {
                    choices.push(Choice::Arrive { txn: number, shard });
                }
            }
        }
        choices.extend((0..self.on_way.len()).map(Choice::Hear));
        for shard in 0..self.leaders.len() {
            choices.extend(self.next_tick(case, shard));
            choices.extend(self.next_marks(case, shard));
        }
        choices
    }

    /// A choice at a shard where all transactions have arrived.
    fn without_alternative(&self, case: &Case) -> Option<Choice> {
        let shards = (0..self.leaders.len()).filter(|shard| self.is_complete(case, *shard));
        shards.into_iter().find_map(|shard| {
            let place = self.on_way.iter().position(|(_, to, _)| usize::from(to.0) == shard);
            let hear = place.map(Choice::Hear);
            hear.or_else(|| self.next_tick(case, shard)).or_else(|| self.next_marks(case, shard))
        })
    }

    /// Whether all transactions of a shard have arrived there.
    fn is_complete(&self, case: &Case, shard: usize) -> bool {
        case.txns.iter().zip(&self.txns).all(|(txn, known)| {
            known.arrived & 1 << shard != 0 || !txn.shards().contains(ShardId(shard as u16))
        })
    }

    /// The next moment that matters, if the clock of a leader may reach it.
    fn next_tick(&self, case: &Case, shard: usize) -> Option<Choice> {
        let tick = |us| Choice::Tick { shard, us };
        let clock = self.leaders[shard].clock();
        let is_ahead = |us: &u64| Stamp::last_of(*us) > clock;
        let error_us = match case.order {
            Order::Bounded { error } => error.us,
            Order::Heads | Order::Watermarks | Order::Detective => 0,
        };
        let slowest = self.leaders.iter().map(|leader| leader.clock().us()).min().unwrap_or(0);
        let has_bound = matches!(case.order, Order::Bounded { .. }) && case.is_bound_kept;
        let bound = if has_bound { slowest + error_us } else { u64::MAX };
        let pending_at = |shard: usize| {
            self.leaders[shard].queue().pending().map(|(version, _)| Stamp::from(version).us())
        };
        if case.order == Order::Heads {
            return pending_at(shard).find(is_ahead).map(tick);
        }
        if !case.moments.is_empty() && !self.is_complete(case, shard) {
            let next = case.moments.iter().copied().find(is_ahead);
            return next.filter(|us| *us <= bound).map(tick);
        }
        let arriving = case.txns.iter().zip(&self.txns).filter(|(txn, known)| {
            txn.shards().contains(ShardId(shard as u16)) && known.arrived & 1 << shard == 0
        });
        let arriving = arriving.map(|(txn, _)| txn.us);
        let pending = (0..self.leaders.len()).flat_map(pending_at);
        let moments = arriving.chain(pending).flat_map(|us| [us, us + error_us]);
        let next = moments.filter(is_ahead).min()?;
        Some(next.min(bound)).filter(is_ahead).map(tick)
    }

    /// The watermarks up to the next transaction that a leader may release if it hears those of
    /// all others.
    fn next_marks(&self, case: &Case, shard: usize) -> Option<Choice> {
        if case.order != Order::Watermarks {
            return None;
        }
        let mut leader = Leader::clone(&self.leaders[shard]);
        let mut effects = Effects::default();
        for (other, mark) in self.marks(shard) {
            leader.on_notice(other, Notice::Watermark(mark), &mut effects);
        }
        let first = effects.released.into_iter().map(|(_, stamp)| stamp).min();
        first.map(|upto| Choice::HearMarks { shard, upto })
    }

    fn marks(&self, shard: usize) -> impl Iterator<Item = (ShardId, Stamp)> {
        let others = (0..self.leaders.len()).filter(move |other| *other != shard);
        others.map(|other| (ShardId(other as u16), self.leaders[other].promised()))
    }

    /// Takes a choice.
    ///
    /// # Errors
    /// If the new state violates an order.
    pub fn choose(&mut self, case: &Case, choice: Choice) -> Result<(), String> {
        let mut effects = Effects::default();
        let shard = match choice {
            Choice::Arrive { txn, shard } => {
                if self.txns[txn].arrived == 0 {
                    self.txns[txn].ended_before = self.bits_of(|known| known.has_ended);
                }
                self.txns[txn].arrived |= 1 << shard;
                let arrival = arrival(case.txns, txn, shard);
                Rc::make_mut(&mut self.leaders[shard]).on_arrival(arrival, &mut effects);
                shard
            }
            Choice::Hear(place) => {
                let (from, to, notice) = self.on_way.remove(place);
                let leader = Rc::make_mut(&mut self.leaders[usize::from(to.0)]);
                leader.on_notice(from, notice, &mut effects);
                usize::from(to.0)
            }
            Choice::Tick { shard, us } => {
                let leader = Rc::make_mut(&mut self.leaders[shard]);
                leader.on_clock(us, &mut effects);
                leader.deduce(us, &mut effects);
                match case.order {
                    Order::Watermarks => leader.promise(&mut effects),
                    Order::Detective => leader.close(Stamp::last_of(us)),
                    Order::Heads | Order::Bounded { .. } => {}
                }
                shard
            }
            Choice::HearMarks { shard, upto } => {
                let marks: Vec<_> = self.marks(shard).collect();
                let leader = Rc::make_mut(&mut self.leaders[shard]);
                for (other, mark) in marks {
                    leader.on_notice(other, Notice::Watermark(mark.min(upto)), &mut effects);
                }
                shard
            }
        };
        self.digests[shard] = digest_of(&self.leaders[shard]);
        self.note(case, shard, effects)
    }

    fn bits_of(&self, is_so: impl Fn(&Known) -> bool) -> u8 {
        (0..).zip(&self.txns).map(|(number, known)| u8::from(is_so(known)) << number).sum()
    }

    /// Records the effects of a step, and checks them.
    fn note(&mut self, case: &Case, shard: usize, effects: Effects) -> Result<(), String> {
        let from = ShardId(shard as u16);
        let notices = effects.told.into_iter().filter_map(|(to, notice)| match notice {
            // Heard by choices of its own.
            Notice::Watermark(_) => None,
            Notice::Stamped { .. } | Notice::Ready { .. } => Some((from, to, notice)),
        });
        self.on_way.extend(notices);
        self.on_way.sort_unstable();
        for (txn, stamp) in effects.ready.into_iter().filter(|_| case.is_answered_early) {
            self.txns[txn.sequence() as usize].ready[shard] = stamp;
        }
        let is_released = !effects.released.is_empty();
        for (txn, stamp) in effects.released {
            self.release(case, shard, txn.sequence() as usize, stamp)?;
        }
        let closed = self.leaders.iter().map(|leader| leader.promised()).min().unwrap_or_default();
        for (known, txn) in self.txns.iter_mut().zip(case.txns) {
            let is_same = |stamps: &[Stamp; SHARDS_MAX]| {
                let mut stamps = txn.on.iter().map(|(shard, _)| stamps[usize::from(*shard)]);
                let first = stamps.next().expect("a transaction has a shard");
                first != Stamp::ZERO && stamps.all(|stamp| stamp == first)
            };
            let is_answered = case.is_answered_early && is_same(&known.ready);
            // With the detective approach a client is answered when the logs of all shards are
            // closed up to the transaction.
            let last = known.released.iter().copied().max().unwrap_or_default();
            let is_closed = case.order != Order::Detective || last <= closed;
            known.has_ended |= is_answered || is_same(&known.released) && is_closed;
            if known.has_ended {
                known.ready = Default::default();
            }
        }
        if is_released { self.check(case) } else { Ok(()) }
    }

    fn release(
        &mut self,
        case: &Case,
        shard: usize,
        number: usize,
        stamp: Stamp,
    ) -> Result<(), String> {
        let mut follows = 0;
        for (other, known) in self.txns.iter().enumerate() {
            let at = known.released[shard];
            if at == Stamp::ZERO || !do_conflict(case.txns, shard, number, other) {
                continue;
            }
            if at > stamp {
                return Err(format!("T{number} is released after T{other} on shard {shard}"));
            }
            follows |= 1 << other;
        }
        let known = &mut self.txns[number];
        known.follows |= follows;
        known.released[shard] = stamp;
        let differs = known.is_void();
        if differs && case.order != Order::Detective {
            Err(format!("the stamps of T{number} differ"))
        } else {
            Ok(())
        }
    }

    /// Whether the transactions have a serial order that agrees with real time.
    fn check(&self, case: &Case) -> Result<(), String> {
        // Those that have different stamps on their shards run nowhere.
        let runs = self.bits_of(|known| !known.is_void());
        let of = |known: &Known, edges: u8| if known.is_void() { 0 } else { edges & runs };
        if has_cycle(self.txns.map(|known| of(&known, known.follows))) {
            return Err("not serializable".to_owned());
        }
        if !case.is_strict {
            return Ok(());
        }
        let edges = |known: Known| of(&known, known.follows | known.ended_before);
        if has_cycle(self.txns.map(edges)) {
            return Err("not strictly serializable".to_owned());
        }
        // The stamps of `heads` need not agree with real time if transactions do not conflict.
        let is_exempt = case.order == Order::Heads;
        let stamp_of = |known: &Known| known.released.iter().copied().max().unwrap_or_default();
        for (number, known) in self.txns.iter().enumerate().filter(|_| !is_exempt) {
            for (other, before) in self.txns.iter().enumerate() {
                let is_before = known.ended_before & 1 << other != 0 && !known.is_void();
                let own = stamp_of(known);
                if is_before && own != Stamp::ZERO && own < stamp_of(before) {
                    return Err(format!("not strict: T{number} is stamped before T{other}"));
                }
            }
        }
        Ok(())
    }

    /// Whether all transactions are released in a state without choices.
    ///
    /// # Errors
    /// If some are not.
    pub fn check_end(&self, case: &Case) -> Result<(), String> {
        self.leaders.iter().for_each(|leader| leader.invariants());
        let ended = case.txns.iter().zip(&self.txns).all(|(txn, known)| {
            txn.on.iter().all(|(shard, _)| known.released[usize::from(*shard)] != Stamp::ZERO)
        });
        if ended { Ok(()) } else { Err("some transactions wait forever".to_owned()) }
    }

    pub fn digest(&self) -> u128 {
        let mut hasher = Xxh3::new();
        (&self.digests, &self.on_way, &self.txns).hash(&mut hasher);
        hasher.digest128()
    }

    /// A description of a choice in this state.
    pub fn describe(&self, choice: Choice) -> String {
        match choice {
            Choice::Arrive { txn, shard } => format!("T{txn} arrives at shard {shard}"),
            Choice::Hear(place) => {
                let (from, to, notice) = self.on_way[place];
                format!("shard {} hears of shard {}: {notice:?}", to.0, from.0)
            }
            Choice::Tick { shard, us } => format!("the clock of shard {shard} reads {us}"),
            Choice::HearMarks { shard, upto } => {
                format!("shard {shard} hears watermarks up to {upto}")
            }
        }
    }
}

fn digest_of(leader: &Leader) -> u128 {
    let mut hasher = Xxh3::new();
    leader.digest(&mut hasher);
    hasher.digest128()
}

fn arrival(txns: &[Txn], number: usize, shard: usize) -> Arrival {
    let mut issuer = Issuer::new(NodeId(number as u16), Role::Coordinator, Stamp::ZERO);
    let (mut points, mut ranges) = (Vec::new(), Vec::new());
    let point = |row: u8, mode| PointLock { table: TableId(1), key: Key::from(&[row][..]), mode };
    for (_, access) in txns[number].on.iter().filter(|(on, _)| usize::from(*on) == shard) {
        match access {
            Access::Read(row) => points.push(point(*row, LockMode::Shared)),
            Access::Write(row) => points.push(point(*row, LockMode::Exclusive)),
            Access::Scan => ranges.push(RangeLock {
                table: TableId(1),
                range: KeyRange::all(),
                mode: LockMode::Shared,
            }),
        }
    }
    Arrival {
        txn: TxnId::new(NodeId(0), number as u64),
        stamp: issuer.issue(txns[number].us),
        shards: txns[number].shards(),
        footprint: Arc::new(Footprint::new(points, ranges)),
    }
}

/// Whether two transactions conflict on a shard, by the definition of the cases.
fn do_conflict(txns: &[Txn], shard: usize, a: usize, b: usize) -> bool {
    let on_shard =
        |number: usize| txns[number].on.iter().filter(move |(on, _)| usize::from(*on) == shard);
    on_shard(a).any(|(_, a)| {
        on_shard(b).any(|(_, b)| match (a, b) {
            (Access::Write(a), Access::Write(b) | Access::Read(b)) => a == b,
            (Access::Read(a), Access::Write(b)) => a == b,
            (Access::Scan, Access::Write(_)) | (Access::Write(_), Access::Scan) => true,
            (Access::Read(_) | Access::Scan, Access::Read(_) | Access::Scan) => false,
        })
    })
}

/// Whether edges, as bits of the transactions before each one, have a cycle.
fn has_cycle(mut before: [u8; TXNS_MAX]) -> bool {
    for via in 0..TXNS_MAX {
        for from in 0..TXNS_MAX {
            if before[from] & 1 << via != 0 {
                before[from] |= before[via];
            }
        }
    }
    (0..TXNS_MAX).any(|txn| before[txn] & 1 << txn != 0)
}
