//! Quorums of one shard (§3.4, §3.7): the replies that commit a transaction, and the part of the
//! log that is committed.
//!
//! ```text
//!   fast   leader    at 10, prefix h, result   `\
//!          follower  at 10, prefix h             > 1 + f + ⌈f/2⌉ are equal
//!          follower  at 10, prefix h           ,/
//!
//!   slow   leader    at 12, result             and f + 1 have it durably in their logs, at 12
//! ```
//!
//! A shard has n = 2f + 1 replicas. Any f + 1 of them know the log of the view that they share. Of
//! a super quorum, any f + 1 replicas have ⌈f/2⌉ + 1 members, which are more than half of them.
//! That tells a new leader what may have been committed without a log: see [`super::rebuild`].
//!
//! Replicas without a vote are not among the n. They follow the log, and nothing that they tell
//! counts here.
//!
//! In the paper, the leader's fast reply is also its word that the transaction is in its log. Here
//! a leader answers before its log is durable, so it counts among the f + 1 by a slow reply only.

use std::collections::BTreeMap;

use pangea_core::ids::NodeId;
use pangea_core::mutate;

use super::hashes::PrefixHash;
use super::stamp::Stamp;

/// The number of a view of one shard: the paper's l-view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View(pub u64);

/// A position in the log of a shard: the number of entries up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// The sizes of the quorums of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The failures that the shard tolerates: f.
    faults: usize,
}

impl Sizes {
    /// The sizes for a number of replicas.
    ///
    /// # Panics
    /// If the number is even.
    pub fn of(replicas: usize) -> Self {
        assert!(!replicas.is_multiple_of(2), "a shard has 2f + 1 replicas, and not {replicas}");
        Self { faults: replicas / 2 }
    }

    /// A simple quorum: any two have a replica in common.
    pub fn simple(self) -> usize {
        self.faults + 1
    }

    /// A super quorum, whose equal replies commit a transaction on the fast path (§3.4).
    pub fn super_quorum(self) -> usize {
        1 + self.faults + self.faults.div_ceil(2)
    }

    /// The replicas that have to promise not to accept an entry, so that the others are too few to
    /// recover it.
    pub fn blocking(self) -> usize {
        2 * self.faults + 2 - self.overlap()
    }

    /// The members of any super quorum that are in any simple quorum, at least (§4).
    pub fn overlap(self) -> usize {
        self.faults.div_ceil(2) + 1
    }
}

/// A replica's reply when a transaction is ready there (§3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastReply<R> {
    /// The view of the sender.
    pub view: View,
    /// The stamp of the transaction at the sender.
    pub stamp: Stamp,
    /// The hash of the transactions before it, or `None` if the sender can't tell.
    pub prefix: Option<PrefixHash>,
    /// The result, from the leader only.
    pub result: Option<R>,
}

/// The way in which a transaction was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// By equal replies of a super quorum (§3.4).
    Fast,
    /// By the logs of a simple quorum (§3.7).
    Slow,
}

/// The fate of a transaction on one shard, as far as the replies tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// More replies are needed.
    NotYet,
    /// A view has begun after the one in which the leader answered. Its result counts no more, and
    /// the transaction may be unknown in the new view.
    Void,
    /// The transaction is committed on this shard, if the leaders of its other shards have it at
    /// the same stamp. The result is [`Replies::result`].
    Committed {
        /// The path.
        path: Path,
        /// The view of the quorum.
        view: View,
        /// The stamp.
        stamp: Stamp,
    },
}

/// The replies that a coordinator has for one transaction from the replicas of one shard.
#[derive(Clone, Debug)]
pub struct Replies<R> {
    sizes: Sizes,
    /// The newest view that is known. All replies are of this view.
    view: View,
    /// Whether a leader has answered in an earlier view.
    was_answered: bool,
    fast: BTreeMap<NodeId, Ready>,
    /// The stamps of the transaction in the durable logs of replicas.
    logged: BTreeMap<NodeId, Stamp>,
    leader: Option<(NodeId, R)>,
}

/// The state of a replica before a transaction, and the place of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ready {
    stamp: Stamp,
    prefix: Option<PrefixHash>,
}

impl<R> Replies<R> {
    /// No replies.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            view: View::default(),
            was_answered: false,
            fast: BTreeMap::new(),
            logged: BTreeMap::new(),
            leader: None,
        }
    }

    /// A view has begun. Replies of earlier views count no more. Returns whether there is none
    /// later than this one.
    pub fn on_view(&mut self, view: View) -> bool {
        if view > self.view {
            self.view = view;
            self.was_answered |= self.leader.take().is_some();
            self.fast.clear();
            self.logged.clear();
        }
        view == self.view
    }

    /// A fast reply arrives. The replies of one replica may overtake each other: its stamps only
    /// grow in a view.
    pub fn on_fast_reply(&mut self, from: NodeId, reply: FastReply<R>) {
        if !self.on_view(reply.view) {
            return;
        }
        let ready = Ready { stamp: reply.stamp, prefix: reply.prefix };
        let is_known = |known: &Ready| {
            let has_less = ready.prefix.is_none() && known.prefix.is_some();
            ready.stamp < known.stamp || ready.stamp == known.stamp && has_less
        };
        if self.fast.get(&from).is_some_and(is_known) {
            return;
        }
        self.fast.insert(from, ready);
        if let Some(result) = reply.result {
            self.leader = Some((from, result));
        }
    }

    /// A slow reply arrives: a replica has the transaction durably in the log of a view.
    pub fn on_slow_reply(&mut self, from: NodeId, view: View, stamp: Stamp) {
        if self.on_view(view) {
            let logged = self.logged.entry(from).or_default();
            *logged = stamp.max(*logged);
        }
    }

    /// The fate of the transaction.
    pub fn verdict(&self) -> Verdict {
        let Some((leader, _)) = &self.leader else {
            return if self.was_answered { Verdict::Void } else { Verdict::NotYet };
        };
        let ready = self.fast[leader];
        let stamp = ready.stamp;
        if self.logged.values().any(|logged| *logged > stamp) {
            // The leader has moved it, and its next result is on the way.
            return Verdict::NotYet;
        }
        let is_fast = mutate!(QuorumWithoutLeader: self.is_fast(ready)
            => self.fast.values().any(|ready| self.is_fast(*ready)));
        if is_fast {
            return Verdict::Committed { path: Path::Fast, view: self.view, stamp };
        }
        if self.copies_at(stamp, *leader) >= self.sizes.simple() {
            return Verdict::Committed { path: Path::Slow, view: self.view, stamp };
        }
        Verdict::NotYet
    }

    /// The leader's result of the newest view, which is final once the verdict is.
    pub fn result(&self) -> Option<&R> {
        self.leader.as_ref().map(|(_, result)| result)
    }

    /// §3.4: whether a super quorum is equal to this reply.
    fn is_fast(&self, reply: Ready) -> bool {
        let is_equal = |other: &&Ready| {
            let is_at_stamp = mutate!(PrefixWithoutStamp: other.stamp == reply.stamp => true);
            is_at_stamp && other.prefix == reply.prefix
        };
        let needed = mutate!(SimpleQuorumIsFast: self.sizes.super_quorum() => self.sizes.simple());
        reply.prefix.is_some() && self.fast.values().filter(is_equal).count() >= needed
    }

    /// §3.7: the replicas that have the transaction durably in their logs.
    fn copies_at(&self, stamp: Stamp, leader: NodeId) -> usize {
        let copies = self.logged.values().filter(|logged| **logged == stamp).count();
        let of_leader = usize::from(!self.logged.contains_key(&leader));
        copies + mutate!(LeaderCountsUndurable: 0 => of_leader)
    }
}

/// The position up to which the log of a shard is committed (§3.7): f + 1 replicas have it durably.
/// `durable` has one position of each replica.
pub fn commit_point(durable: &[Position]) -> Position {
    let mut largest_first = durable.to_vec();
    largest_first.sort_unstable_by(|a, b| b.cmp(a));
    // Of an even number of replicas, the majority is one more than half.
    largest_first[mutate!(CommitPointIsMax: durable.len() / 2 => 0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: View = View(2);

    fn stamp(us: u64) -> Stamp {
        Stamp::last_of(us)
    }

    /// The replies of one replica, each as view, microsecond and prefix.
    type Said = (Option<(u64, u64, Option<u8>)>, Option<(u64, u64)>);

    /// All replies that a replica may have sent last.
    fn all_said() -> Vec<Said> {
        let (views, stamps) = ([1, 2], [8, 12]);
        let places = views.into_iter().flat_map(|view| stamps.map(|us| (view, us)));
        let slow = [None].into_iter().chain(places.clone().map(Some));
        let fast = places
            .flat_map(|(view, us)| [None, Some(1), Some(2)].map(|prefix| Some((view, us, prefix))));
        let fast: Vec<_> = [None].into_iter().chain(fast).collect();
        slow.flat_map(|slow| fast.iter().map(move |fast| (*fast, slow))).collect()
    }

    /// The leader of a view.
    fn leader_of(view: u64) -> usize {
        view as usize - 1
    }

    fn replies_of(said: &[Said]) -> Replies<u64> {
        let mut replies = Replies::new(Sizes::of(said.len()));
        for (replica, (fast, slow)) in said.iter().enumerate() {
            let from = NodeId(replica as u16);
            if let Some((view, us)) = *slow {
                replies.on_slow_reply(from, View(view), stamp(us));
            }
            if let Some((view, us, prefix)) = *fast {
                let prefix = prefix.map(|prefix| PrefixHash::from_bits(prefix.into()));
                let result = (leader_of(view) == replica).then_some(us);
                let reply = FastReply { view: View(view), stamp: stamp(us), prefix, result };
                replies.on_fast_reply(from, reply);
            }
        }
        replies
    }

    /// The definition, over all sets of replicas: the stamp if the transaction is committed in the
    /// newest view.
    fn committed(said: &[Said]) -> Option<(Path, u64)> {
        let views = said.iter().flat_map(|(fast, slow)| {
            [fast.map(|(view, ..)| view), slow.map(|(view, _)| view)].into_iter().flatten()
        });
        let view = views.max()?;
        let leader = leader_of(view);
        let answer = said[leader].0.filter(|(of, ..)| *of == view)?;
        let is_moved = |(of, us): (u64, u64)| of == view && us > answer.1;
        if said.iter().any(|(_, slow)| slow.is_some_and(is_moved)) {
            return None;
        }
        let few = said.len() / 4;
        let sets = 0..1_usize << said.len();
        let is_all = |set: usize, holds: &dyn Fn(&Said) -> bool| {
            said.iter().enumerate().all(|(at, said)| set & 1 << at == 0 || holds(said))
        };
        let is_fast = |set: usize| {
            let size = set.count_ones() as usize;
            let is_equal = |(fast, _): &Said| *fast == Some(answer);
            size >= said.len() - few && set & 1 << leader != 0 && is_all(set, &is_equal)
        };
        let is_slow = |set: usize| {
            let size = set.count_ones() as usize;
            let has_it = |(_, slow): &Said| *slow == Some((view, answer.1));
            2 * size > said.len() && is_all(set, &has_it)
        };
        if answer.2.is_some() && sets.clone().any(is_fast) {
            return Some((Path::Fast, answer.1));
        }
        sets.clone().any(is_slow).then_some((Path::Slow, answer.1))
    }

    /// The first set of replies with another verdict than that of the definition.
    fn first_wrong(mut sets: impl Iterator<Item = Vec<Said>>) -> Option<Vec<Said>> {
        sets.find(|said| {
            let verdict = match replies_of(said).verdict() {
                Verdict::Committed { path, stamp, .. } => Some((path, stamp.us())),
                Verdict::NotYet | Verdict::Void => None,
            };
            verdict != committed(said)
        })
    }

    fn of_three() -> impl Iterator<Item = Vec<Said>> {
        let all = all_said();
        let count = all.len();
        let digits = move |number| [number, number / count, number / count / count];
        let sets = (0..count * count * count).map(digits);
        sets.map(move |digits| digits.map(|digit: usize| all[digit % count]).to_vec())
    }

    /// Sets of which many are close to a quorum: most replicas say the same.
    fn drawn(replicas: usize, sets: usize) -> impl Iterator<Item = Vec<Said>> {
        let (all, mut rng) = (all_said(), fastrand::Rng::with_seed(7));
        (0..sets).map(move |_| {
            let one = all[rng.usize(..all.len())];
            let set = (0..replicas).map(|_| match rng.u8(..4) {
                0 => all[rng.usize(..all.len())],
                _ => one,
            });
            set.collect()
        })
    }

    #[test]
    fn verdicts_are_those_of_the_definition() {
        assert_eq!(first_wrong(of_three()), None);
        assert_eq!(first_wrong(drawn(5, 60_000)), None);
        assert_eq!(first_wrong(drawn(7, 20_000)), None);
    }

    #[cfg(feature = "planted")]
    #[test]
    fn planted_bugs_change_verdicts() {
        use pangea_core::planted::{Bug, Planted};

        let bugs = [
            Bug::PrefixWithoutStamp,
            Bug::SimpleQuorumIsFast,
            Bug::QuorumWithoutLeader,
            Bug::LeaderCountsUndurable,
        ];
        for bug in bugs {
            let planted = Planted::new(Some(bug));
            let found = first_wrong(of_three()).or_else(|| first_wrong(drawn(5, 60_000)));
            drop(planted);
            assert!(found.is_some(), "{bug}");
        }
    }

    #[test]
    fn quorums_follow_from_the_number_of_replicas() {
        let sizes = [1, 3, 5, 7].map(|replicas| {
            let sizes = Sizes::of(replicas);
            (sizes.simple(), sizes.super_quorum(), sizes.overlap())
        });
        assert_eq!(sizes, [(1, 1, 1), (2, 3, 2), (3, 4, 2), (4, 6, 3)]);
        for replicas in [1, 3, 5, 7, 9, 11] {
            let sizes = Sizes::of(replicas);
            assert_eq!(sizes.overlap(), sizes.super_quorum() + sizes.simple() - replicas);
            assert!(2 * sizes.overlap() > sizes.simple(), "more than half of those asked");
            assert_eq!(replicas - sizes.blocking() + 1, sizes.overlap(), "the others are too few");
            assert!(sizes.blocking() <= sizes.super_quorum());
        }
    }

    #[test]
    fn a_later_view_makes_an_answer_void_until_its_leader_answers() {
        let mut replies = Replies::new(Sizes::of(1));
        assert_eq!(replies.verdict(), Verdict::NotYet);
        let reply = |view, result| FastReply { view, stamp: stamp(8), prefix: None, result };
        replies.on_fast_reply(NodeId(0), reply(View(1), Some('a')));
        assert_eq!((replies.verdict(), replies.result()), (Verdict::NotYet, Some(&'a')));
        assert!(replies.on_view(LATER));
        assert_eq!((replies.verdict(), replies.result()), (Verdict::Void, None));
        replies.on_slow_reply(NodeId(0), View(1), stamp(8));
        replies.on_fast_reply(NodeId(0), reply(View(1), Some('a')));
        assert_eq!(replies.verdict(), Verdict::Void, "replies of the earlier view");
        replies.on_fast_reply(NodeId(0), reply(LATER, Some('b')));
        replies.on_slow_reply(NodeId(0), LATER, stamp(8));
        let committed = Verdict::Committed { path: Path::Slow, view: LATER, stamp: stamp(8) };
        assert_eq!((replies.verdict(), replies.result()), (committed, Some(&'b')));
    }

    /// §3.5, Case-3: the leader runs a transaction again after it has moved.
    #[test]
    fn the_result_is_that_of_the_largest_stamp_in_any_order_of_arrival() {
        let reply = |us: u64| {
            let prefix = Some(PrefixHash::from_bits(us.into()));
            FastReply { view: View(1), stamp: stamp(us), prefix, result: Some(us) }
        };
        for order in [[8, 12], [12, 8]] {
            let mut replies = Replies::new(Sizes::of(1));
            order.into_iter().for_each(|us| replies.on_fast_reply(NodeId(0), reply(us)));
            assert_eq!(replies.result(), Some(&12));
        }
    }

    #[test]
    fn the_commit_point_is_held_by_a_simple_quorum() {
        let point = |durable: &[u64]| {
            let durable: Vec<_> = durable.iter().map(|at| Position(*at)).collect();
            commit_point(&durable).0
        };
        assert_eq!([point(&[4]), point(&[9, 0, 5]), point(&[1, 7, 7, 2, 3])], [4, 5, 3]);
    }
}
