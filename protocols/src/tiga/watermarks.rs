//! Watermarks: the orders `watermarks` and `bounded`, which are not in the paper.
//!
//! The *watermark* of a leader is a stamp at or below which it accepts nothing more, from nobody.
//! Leaders tell each other their watermarks when one asks, and the stamp of each transaction of
//! several shards when it arrives. A transaction is released when its stamp is final and every
//! leader's watermark has passed it: those of its own shards and of all others.
//!
//! ```text
//!                     stamps told on arrival           T@10 is released on both shards
//!   leader a   --[T@10]-------------------mark 10--|-->
//!   leader b   ------[T@7 -> T@10]------------mark 10--|-->
//!   leader c   -----------------------------mark 10--|-->   c has no part in T
//! ```
//!
//! **Strictness.** If a client knows that T has committed, all watermarks have passed the stamp of
//! T. A transaction that begins then gets a larger stamp on each of its shards. Stamps therefore
//! agree with real time, for transactions without any common row, too. A chain of conflicts and
//! real time may lead over shards that are not T's, so their watermarks count, too.
//!
//! No second round is needed, and no leader waits until another has a transaction at the head.
//! Therefore conflicting transactions of several shards are agreed on at the same time. The price
//! is that a leader waits for all others, also for those that have no part in a transaction.
//!
//! **Clocks of a known error** (§6). The watermark of a leader is then its clock, and the others
//! deduce it from their own clocks. §6 also omits the exchange of stamps. That is not serializable:
//! a transaction that is late on one shard is raised there, and nobody tells the other shards.
//! Here stamps are exchanged in any case. By this rule alone, a clock with a larger error than
//! stated lets stamps disagree with real time; `bounds.rs` says why clients never see that.

use std::collections::BTreeMap;

use pangea_core::ids::ShardId;
use pangea_core::mutate;
use pangea_core::partition::ShardSet;

use super::stamp::Stamp;

/// The watermarks that one leader knows.
#[derive(Clone, Debug, Default, Hash)]
pub struct Watermarks {
    own: Stamp,
    others: BTreeMap<ShardId, Stamp>,
}

impl Watermarks {
    /// The leader's own watermark.
    pub fn own(&self) -> Stamp {
        self.own
    }

    /// The leader promises to accept nothing at or below a stamp.
    pub fn raise_own(&mut self, mark: Stamp) {
        self.own = self.own.max(mark);
    }

    /// Another leader has promised that. Its watermarks may overtake each other.
    pub fn note(&mut self, shard: ShardId, mark: Stamp) {
        let known = self.others.entry(shard).or_default();
        *known = mark.max(*known);
    }

    /// The stamp that the watermarks of all these shards have passed.
    pub fn passed_by(&self, shards: ShardSet) -> Option<Stamp> {
        shards.iter().map(|shard| self.others.get(&shard).copied().unwrap_or_default()).min()
    }
}

/// Whether the watermarks permit the release of a transaction.
///
/// The own watermark follows the clock whenever the leader wants it to, so the clock counts.
pub fn may_release(
    marks: &Watermarks,
    clock: Stamp,
    others: ShardSet,
    involved: ShardSet,
    stamp: Stamp,
) -> bool {
    let others = mutate!(MarksOfInvolvedOnly: others => involved);
    stamp <= clock && marks.passed_by(others).is_none_or(|passed| stamp <= passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ShardId = ShardId(0);
    const C: ShardId = ShardId(2);

    #[test]
    fn the_watermarks_of_all_shards_count_and_none_goes_back() {
        let (others, involved) = (ShardSet::all(3).except(ShardId(1)), ShardSet::one(A));
        let may = |marks: &Watermarks, us| {
            may_release(marks, Stamp::last_of(90), others, involved, Stamp::last_of(us))
        };
        let mut marks = Watermarks::default();
        marks.note(A, Stamp::last_of(40));
        assert!(!may(&marks, 10), "nothing is known of the third shard");
        marks.note(C, Stamp::last_of(30));
        marks.note(C, Stamp::last_of(20));
        assert!(may(&marks, 30));
        assert!(!may(&marks, 31));
        marks.note(A, Stamp::last_of(100));
        marks.note(C, Stamp::last_of(100));
        assert!(may(&marks, 90));
        assert!(!may(&marks, 91), "the own clock is behind");
    }

    #[test]
    fn a_leader_without_others_needs_only_its_clock() {
        let none = ShardSet::default();
        let marks = Watermarks::default();
        assert!(may_release(&marks, Stamp::last_of(5), none, none, Stamp::last_of(5)));
        assert!(!may_release(&marks, Stamp::last_of(5), none, none, Stamp::last_of(6)));
    }
}
