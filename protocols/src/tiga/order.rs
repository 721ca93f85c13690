//! The leader of one shard, as far as the order of transactions is concerned (§3.2, §3.3): what it
//! accepts, which stamp that gets, what it tells the other leaders, and when it releases.
//!
//! A leader is a state machine whose inputs are arrivals, notices and clock readings. It does not
//! run transactions, replicates nothing, and knows no coordinators.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pangea_core::exec::timed::TimedQueue;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::time::Span;
use pangea_core::txn::Footprint;

use super::stamp::{Issuer, Role, Stamp};
use super::timestamp_agreement::Agreement;
use super::watermarks::{self, Watermarks};

/// The rule by which leaders agree on stamps and release transactions, the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each leader has the transaction at the head: §3.5, see [`super::timestamp_agreement`].
    Heads,
    /// Every leader has promised to accept nothing before it: see [`super::watermarks`].
    Watermarks,
    /// The same, deduced from clocks (§6).
    Bounded {
        /// The largest difference between the clocks of two leaders at any time.
        error: Span,
    },
    /// No agreement before the release. The logs of the shards say afterwards at which stamps each
    /// leader has released a transaction: see `shards/detection.rs`.
    Detective,
}

/// A message from a leader to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Notice {
    /// The stamp of a transaction after its arrival. With [`Order::Heads`] only if it was raised.
    Stamped {
        /// The transaction.
        txn: TxnId,
        /// Its stamp at the sender.
        stamp: Stamp,
    },
    /// A transaction is ready: nothing that conflicts with it will come before it at the sender.
    Ready {
        /// The transaction.
        txn: TxnId,
        /// Its stamp at the sender.
        stamp: Stamp,
    },
    /// The sender accepts nothing more at or below a stamp.
    Watermark(Stamp),
}

impl Notice {
    /// The microsecond of its stamp.
    pub fn us(&self) -> u64 {
        match self {
            Self::Stamped { stamp, .. } | Self::Ready { stamp, .. } | Self::Watermark(stamp) => {
                stamp.us()
            }
        }
    }
}

/// A transaction as it arrives at a leader.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The transaction.
    pub txn: TxnId,
    /// The stamp of its coordinator.
    pub stamp: Stamp,
    /// The shards that have a part in it.
    pub shards: ShardSet,
    /// The footprint on this shard. Only [`Order::Heads`] uses it: the other orders release
    /// everything by stamps.
    pub footprint: Arc<Footprint>,
}

/// The effects of a step, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Notices to other leaders.
    pub told: Vec<(ShardId, Notice)>,
    /// Transactions that became ready: §3.3 runs them now.
    pub ready: Vec<(TxnId, Stamp)>,
    /// Transactions that had been ready and were raised: their runs are void (§3.5, Case-3).
    pub revoked: Vec<TxnId>,
    /// Transactions that are released at their final stamp.
    pub released: Vec<(TxnId, Stamp)>,
}

/// The leader of a shard.
#[derive(Clone, Debug)]
pub struct Leader {
    shard: ShardId,
    /// The shards of the cluster, without this one.
    others: ShardSet,
    order: Order,
    queue: TimedQueue,
    /// The transactions that have arrived and are not released, with their shards.
    involved: BTreeMap<TxnId, ShardSet>,
    agreements: BTreeMap<TxnId, Agreement>,
    /// The transactions of which something has changed in this step, which may be released.
    touched: Vec<TxnId>,
    /// The released transactions that may be heard of again.
    released: BTreeSet<TxnId>,
    marks: Watermarks,
    /// With bounded clocks: up to here the clocks of all other leaders are past for certain.
    deduced: Stamp,
    raises: Issuer,
    /// The last stamp of the largest reading of the clock.
    clock: Stamp,
}

impl Leader {
    /// A leader without transactions, on a node that has promised and issued nothing above
    /// `ceiling`.
    pub fn new(shard: ShardId, shards: u16, node: NodeId, order: Order, ceiling: Stamp) -> Self {
        let mut marks = Watermarks::default();
        marks.raise_own(ceiling);
        Self {
            shard,
            others: ShardSet::all(shards).except(shard),
            order,
            queue: TimedQueue::default(),
            involved: BTreeMap::new(),
            agreements: BTreeMap::new(),
            touched: Vec::new(),
            released: BTreeSet::new(),
            marks,
            deduced: Stamp::ZERO,
            raises: Issuer::new(node, Role::Leader, ceiling),
            clock: Stamp::ZERO,
        }
    }

    /// A transaction arrives from its coordinator. Its copies have no effect.
    pub fn on_arrival(&mut self, arrival: Arrival, effects: &mut Effects) {
        let Arrival { txn, stamp, shards, mut footprint } = arrival;
        assert!(shards.contains(self.shard), "{txn} has no part on {}", self.shard);
        if self.released.contains(&txn) || self.involved.contains_key(&txn) {
            return;
        }
        if self.order != Order::Heads {
            footprint = Arc::default();
        }
        let agreement = self.agreements.entry(txn).or_default();
        let wanted = stamp.max(agreement.largest());
        // §3.2. The paper takes the clock. A clock that is ahead would make the rows unusable for
        // as long, so that the stamp is raised no further than necessary.
        let floor = Stamp::from(self.queue.floor(&footprint)).max(self.promised());
        let accepted = match wanted > floor && !self.queue.is_taken(wanted.into()) {
            true => wanted,
            false => self.raises.issue_above(floor.max(wanted)),
        };
        self.queue.insert(txn, accepted.into(), footprint);
        self.involved.insert(txn, shards);
        let agreement = self.agreements.entry(txn).or_default();
        agreement.note_stamped(self.shard, accepted);
        if self.tells_on_arrival(accepted > wanted) {
            self.tell(shards, Notice::Stamped { txn, stamp: accepted }, effects);
        }
        self.settle(effects);
    }

    /// A notice arrives from the leader of another shard. Notices may overtake each other.
    pub fn on_notice(&mut self, from: ShardId, notice: Notice, effects: &mut Effects) {
        let (txn, stamp) = match notice {
            Notice::Watermark(mark) => {
                self.marks.note(from, mark);
                return self.settle(effects);
            }
            Notice::Stamped { txn, stamp } | Notice::Ready { txn, stamp } => (txn, stamp),
        };
        if self.released.contains(&txn) {
            return;
        }
        let agreement = self.agreements.entry(txn).or_default();
        if matches!(notice, Notice::Ready { .. }) {
            agreement.note_ready(from, stamp);
        } else {
            agreement.note_stamped(from, stamp);
        }
        self.touched.push(txn);
        // Whoever hears a larger stamp moves.
        if self.queue.version(txn).is_some_and(|own| Stamp::from(own) < stamp) {
            if self.queue.is_ready(txn) {
                effects.revoked.push(txn);
            }
            self.queue.raise(txn, stamp.into());
        }
        self.settle(effects);
    }

    /// The clock reads this number of microseconds since the origin of stamps.
    pub fn on_clock(&mut self, us: u64, effects: &mut Effects) {
        self.clock = self.clock.max(Stamp::last_of(us));
        self.settle(effects);
    }

    /// §6: a clock whose error is bounded reads this number of microseconds. It need not be the
    /// clock that says which stamps are over, which may be ahead.
    pub fn deduce(&mut self, us: u64, effects: &mut Effects) {
        let Order::Bounded { error } = self.order else { return };
        let deduced = Stamp::last_of(us).before(error);
        let deduced = mutate!(BoundedErrorIgnored: deduced => Stamp::last_of(us));
        self.deduced = self.deduced.max(deduced);
        self.settle(effects);
    }

    /// Promises to accept nothing more up to the reading of the clock, and tells all other leaders.
    pub fn promise(&mut self, effects: &mut Effects) {
        assert_ne!(self.order, Order::Heads, "this order has no promises");
        self.marks.raise_own(self.clock);
        self.tell(self.others, Notice::Watermark(self.marks.own()), effects);
        self.settle(effects);
    }

    /// Accepts nothing at or below a stamp any more, without telling it.
    pub fn close(&mut self, stamp: Stamp) {
        self.marks.raise_own(stamp);
    }

    /// The stamp up to which all other leaders accept nothing: because they have promised it, or
    /// because their clocks must be past it. `None` if there are no others, or they do not matter.
    pub fn passed(&self) -> Option<Stamp> {
        if self.order == Order::Detective {
            return None;
        }
        self.marks.passed_by(self.others).map(|promised| promised.max(self.deduced))
    }

    /// The stamp of a pending transaction.
    pub fn stamp_of(&self, txn: TxnId) -> Option<Stamp> {
        self.queue.version(txn).map(Stamp::from)
    }

    /// The pending transactions of which other leaders have not told their stamps, with their own
    /// stamp and those shards.
    pub fn unstamped(&self) -> impl Iterator<Item = (TxnId, Stamp, ShardSet)> {
        let pending = self.queue.pending();
        let is_told = |_: &_| self.order != Order::Detective;
        let lacking = pending.filter(is_told).map(|(version, txn)| {
            let lacks = self.agreements[&txn].not_stamped_by(self.involved[&txn]);
            (txn, Stamp::from(version), lacks)
        });
        lacking.filter(|(_, _, lacks)| !lacks.is_empty())
    }

    /// The number of pending transactions.
    pub fn pending_count(&self) -> usize {
        self.involved.len()
    }

    /// Whether another leader has told of a transaction that has not arrived.
    pub fn has_heard_of(&self, txn: TxnId) -> bool {
        self.agreements.contains_key(&txn) && !self.involved.contains_key(&txn)
    }

    /// The transactions that other leaders have told of, and that have not arrived.
    pub fn unknown(&self) -> impl Iterator<Item = TxnId> {
        self.agreements.keys().copied().filter(|txn| !self.involved.contains_key(txn))
    }

    /// Issues no stamp at or below this one any more.
    pub fn skip_issued(&mut self, stamp: Stamp) {
        self.raises.skip_to(stamp);
    }

    /// Issues a stamp at a microsecond, or as soon after it as possible, for a transaction whose
    /// own stamp is unfit.
    pub fn issue(&mut self, us: u64) -> Stamp {
        self.raises.issue(us)
    }

    /// A stamp above which the leader has issued none.
    pub fn last_issued(&self) -> Stamp {
        Stamp::last_of(self.raises.last_us())
    }

    /// Forgets a released transaction, of which nothing more will be heard.
    pub fn forget(&mut self, txn: TxnId) {
        assert!(self.released.remove(&txn), "{txn} is not released");
    }

    /// The queue of the shard.
    pub fn queue(&self) -> &TimedQueue {
        &self.queue
    }

    /// The stamp at or below which the leader accepts nothing, whatever the footprint.
    pub fn promised(&self) -> Stamp {
        match self.order {
            Order::Heads => Stamp::ZERO,
            Order::Watermarks | Order::Detective => self.marks.own(),
            // §6 (1). After a change of leaders the log may be ahead of the clock.
            Order::Bounded { .. } => {
                let own = self.marks.own();
                mutate!(BoundedClockNoFloor: own.max(self.clock) => own)
            }
        }
    }

    /// Whether clocks stand for promises.
    pub fn is_bounded(&self) -> bool {
        matches!(self.order, Order::Bounded { .. })
    }

    /// Whether leaders release transactions before they agree.
    pub fn is_detective(&self) -> bool {
        self.order == Order::Detective
    }

    /// The clock's reading.
    pub fn clock(&self) -> Stamp {
        self.clock
    }

    /// Whether the other leaders are told the stamp of a transaction on its arrival.
    fn tells_on_arrival(&self, is_raised: bool) -> bool {
        match self.order {
            // Not in the paper, whose leaders would wait for each other: see the chapter.
            Order::Heads => mutate!(RaisedToldAtHead: is_raised => false),
            Order::Watermarks => true,
            Order::Bounded { .. } => mutate!(BoundedWithoutExchange: true => false),
            Order::Detective => false,
        }
    }

    fn tell(&self, shards: ShardSet, notice: Notice, effects: &mut Effects) {
        let others = shards.except(self.shard);
        effects.told.extend(others.iter().map(|shard| (shard, notice)));
    }

    /// Does everything that has become possible.
    fn settle(&mut self, effects: &mut Effects) {
        match self.order {
            Order::Heads => {
                mutate!(NotifiedOnArrival: () => self.notify_early(None, effects));
                mutate!(NotifiedOnExpiry: () => self.notify_early(Some(self.clock), effects));
                self.make_ready(effects);
                self.release_ready(effects);
            }
            Order::Watermarks | Order::Bounded { .. } | Order::Detective => {
                self.touched.clear();
                self.release_passed(effects);
            }
        }
    }

    /// §3.3: expired, and at the head of its conflicts.
    fn make_ready(&mut self, effects: &mut Effects) {
        let clock = self.clock.into();
        let due: Vec<_> = self.queue.heads().take_while(|(version, _)| *version <= clock).collect();
        for (version, txn) in due {
            self.queue.make_ready(txn);
            let stamp = version.into();
            effects.ready.push((txn, stamp));
            self.say_ready(txn, stamp, effects);
            self.touched.push(txn);
        }
    }

    fn say_ready(&mut self, txn: TxnId, stamp: Stamp, effects: &mut Effects) {
        let agreement = self.agreements.get_mut(&txn).expect("the transaction is pending");
        if agreement.note_ready(self.shard, stamp) {
            self.tell(self.involved[&txn], Notice::Ready { txn, stamp }, effects);
        }
    }

    /// Releases the transactions that all of their leaders have ready at one stamp. Each release
    /// may bring others to the head, and make those ready.
    fn release_ready(&mut self, effects: &mut Effects) {
        while let Some(txn) = self.touched.pop() {
            if !self.queue.is_ready(txn) {
                continue;
            }
            let stamp = self.queue.version(txn).expect("a ready transaction is pending").into();
            if self.agreements[&txn].is_ready_on(self.involved[&txn], stamp) {
                self.release(txn, stamp, effects);
                self.make_ready(effects);
            }
        }
    }

    /// Releases transactions in the order of their stamps, as long as these are final and all
    /// watermarks have passed them. Conflicts do not matter for this.
    fn release_passed(&mut self, effects: &mut Effects) {
        let pending = self.queue.pending();
        let is_due = |(version, txn): &(SnapshotVersion, TxnId)| self.is_passed(*txn, *version);
        let due: Vec<_> = pending.take_while(is_due).collect();
        for (version, txn) in due {
            let stamp = version.into();
            effects.ready.push((txn, stamp));
            self.release(txn, stamp, effects);
        }
    }

    fn is_passed(&self, txn: TxnId, version: SnapshotVersion) -> bool {
        let stamp = version.into();
        let involved = self.involved[&txn];
        let is_final = self.agreements[&txn].is_stamped_by(involved);
        match self.order {
            Order::Heads => false,
            Order::Watermarks => {
                let involved = involved.except(self.shard);
                let (marks, clock) = (&self.marks, self.clock);
                is_final && watermarks::may_release(marks, clock, self.others, involved, stamp)
            }
            Order::Bounded { .. } => {
                let is_final = mutate!(BoundedWithoutExchange: is_final => true);
                is_final && self.passed().is_none_or(|passed| stamp <= passed)
            }
            Order::Detective => stamp <= self.clock,
        }
    }

    fn release(&mut self, txn: TxnId, stamp: Stamp, effects: &mut Effects) {
        match self.order {
            Order::Heads => self.queue.release(txn),
            Order::Watermarks | Order::Bounded { .. } | Order::Detective => self.queue.remove(txn),
        }
        self.involved.remove(&txn);
        self.agreements.remove(&txn);
        self.released.insert(txn);
        if self.order != Order::Heads {
            self.marks.raise_own(stamp);
        }
        effects.released.push((txn, stamp));
    }

    /// Adds the state to a digest.
    pub fn digest(&self, hasher: &mut impl Hasher) {
        self.queue.digest(hasher);
        (&self.agreements, &self.released, &self.marks, self.deduced).hash(hasher);
        (self.raises.last_us(), self.clock).hash(hasher);
    }

    /// Checks the state.
    ///
    /// # Panics
    /// If parts of the state contradict each other.
    pub fn invariants(&self) {
        self.queue.invariants();
        assert_eq!(self.queue.pending().count(), self.involved.len(), "the pending transactions");
        for (version, txn) in self.queue.pending() {
            let agreement = &self.agreements[&txn];
            assert_eq!(agreement.largest(), version.into(), "{txn} has not moved");
            assert!(!self.released.contains(&txn), "{txn} is pending and released");
        }
    }

    /// [`Bug::NotifiedOnArrival`] and [`Bug::NotifiedOnExpiry`]: says that all transactions, or
    /// those up to a stamp, are ready, without regard to those before them.
    ///
    /// [`Bug::NotifiedOnArrival`]: pangea_core::planted::Bug::NotifiedOnArrival
    /// [`Bug::NotifiedOnExpiry`]: pangea_core::planted::Bug::NotifiedOnExpiry
    fn notify_early(&mut self, upto: Option<Stamp>, effects: &mut Effects) {
        let is_due = |stamp: Stamp| upto.is_none_or(|upto| stamp <= upto);
        let pending = self.queue.pending().map(|(version, txn)| (Stamp::from(version), txn));
        let due: Vec<_> = pending.filter(|(stamp, _)| is_due(*stamp)).collect();
        due.into_iter().for_each(|(stamp, txn)| self.say_ready(txn, stamp, effects));
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::TableId;
    use pangea_core::key::Key;
    use pangea_core::txn::{LockMode, PointLock};

    use super::*;

    fn leader(order: Order) -> Leader {
        Leader::new(ShardId(0), 2, NodeId(0), order, Stamp::ZERO)
    }

    fn arrival(sequence: u64, us: u64, shards: u16) -> Arrival {
        let key = Key::from(&b"k"[..]);
        let lock = PointLock { table: TableId(1), key, mode: LockMode::Exclusive };
        Arrival {
            txn: TxnId::new(NodeId(1), sequence),
            stamp: Issuer::new(NodeId(1), Role::Coordinator, Stamp::ZERO).issue(us),
            shards: ShardSet::all(shards),
            footprint: Arc::new(Footprint::new(vec![lock], vec![])),
        }
    }

    #[test]
    fn a_transaction_of_one_shard_is_released_when_its_stamp_has_passed() {
        let (mut leader, mut effects) = (leader(Order::Heads), Effects::default());
        let arrival = arrival(1, 50, 1);
        leader.on_arrival(arrival.clone(), &mut effects);
        leader.on_clock(49, &mut effects);
        assert_eq!(effects, Effects::default());
        leader.on_clock(50, &mut effects);
        assert_eq!(effects.released, [(arrival.txn, arrival.stamp)]);
        assert_eq!(effects.told, []);
        // A second copy, and a notice that arrives late.
        let mut effects = Effects::default();
        leader.on_arrival(arrival.clone(), &mut effects);
        let late = Notice::Stamped { txn: arrival.txn, stamp: Stamp::last_of(90) };
        leader.on_notice(ShardId(1), late, &mut effects);
        assert_eq!(effects, Effects::default());
        leader.invariants();
        leader.forget(arrival.txn);
    }

    /// §3.5, Case-3, and the deviation that a raised stamp is told at once.
    #[test]
    fn a_late_transaction_is_raised_and_told_and_a_ready_one_is_revoked() {
        let (mut leader, mut effects) = (leader(Order::Heads), Effects::default());
        leader.on_arrival(arrival(1, 50, 1), &mut effects);
        leader.on_clock(60, &mut effects);
        let mut effects = Effects::default();
        let late = arrival(2, 40, 2);
        leader.on_arrival(late.clone(), &mut effects);
        let stamp = Stamp::from(leader.queue().version(late.txn).unwrap());
        assert_eq!((stamp.us(), stamp.is_raised()), (51, true));
        let told =
            [Notice::Stamped { txn: late.txn, stamp }, Notice::Ready { txn: late.txn, stamp }];
        assert_eq!(effects.told, told.map(|notice| (ShardId(1), notice)));
        let mut effects = Effects::default();
        let other = Notice::Ready { txn: late.txn, stamp: Stamp::last_of(70) };
        leader.on_notice(ShardId(1), other, &mut effects);
        assert_eq!((effects.revoked, effects.released), (vec![late.txn], vec![]));
        let mut effects = Effects::default();
        leader.on_clock(70, &mut effects);
        assert_eq!(effects.released, [(late.txn, Stamp::last_of(70))]);
    }

    #[test]
    fn a_notice_may_arrive_before_its_transaction() {
        for order in [Order::Heads, Order::Watermarks] {
            let (mut leader, mut effects) = (leader(order), Effects::default());
            let arrival = arrival(1, 50, 2);
            let stamp = Stamp::last_of(80);
            let notice = Notice::Stamped { txn: arrival.txn, stamp };
            leader.on_notice(ShardId(1), notice, &mut effects);
            leader.on_arrival(arrival.clone(), &mut effects);
            assert_eq!(leader.queue().version(arrival.txn), Some(stamp.into()));
            let told = effects.told.len();
            assert_eq!(told, usize::from(order == Order::Watermarks), "{order:?}");
        }
    }

    #[test]
    fn bounded_clocks_replace_watermarks_and_not_the_exchange_of_stamps() {
        let order = Order::Bounded { error: Span::from_us(10) };
        let (mut leader, mut effects) = (leader(order), Effects::default());
        let arrival = arrival(1, 50, 2);
        leader.on_arrival(arrival.clone(), &mut effects);
        let read = |leader: &mut Leader, us| {
            let mut effects = Effects::default();
            leader.on_clock(us, &mut effects);
            leader.deduce(us, &mut effects);
            effects.released
        };
        assert_eq!(read(&mut leader, 100), []);
        let stamp = Stamp::last_of(95);
        leader.on_notice(ShardId(1), Notice::Stamped { txn: arrival.txn, stamp }, &mut effects);
        assert_eq!(effects.released, [], "the other clock may be at 90");
        assert_eq!(read(&mut leader, 104), []);
        assert_eq!(read(&mut leader, 105), [(arrival.txn, stamp)]);
        assert_eq!(leader.promised(), Stamp::last_of(105), "nothing that the clock has passed");
    }

    /// The clock of a shard may be ahead of the clocks whose error is known.
    #[test]
    fn a_promise_is_as_good_as_a_clock() {
        let order = Order::Bounded { error: Span::from_us(10) };
        let (mut leader, mut effects) = (leader(order), Effects::default());
        let arrival = arrival(1, 50, 1);
        leader.on_arrival(arrival.clone(), &mut effects);
        leader.on_clock(1_000, &mut effects);
        leader.deduce(20, &mut effects);
        assert_eq!(leader.passed(), Some(Stamp::last_of(10)));
        leader.promise(&mut effects);
        let mark = Notice::Watermark(Stamp::last_of(1_000));
        assert_eq!(
            (effects.told.as_slice(), effects.released.len()),
            (&[(ShardId(1), mark)][..], 0)
        );
        leader.on_notice(ShardId(1), mark, &mut effects);
        assert_eq!(effects.released, [(arrival.txn, arrival.stamp)]);
    }
}
