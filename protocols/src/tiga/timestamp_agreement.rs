//! Timestamp agreement between the leaders of a transaction's shards (§3.5, §3.6): the order
//! `heads`.
//!
//! ```text
//!   leader a   T arrives late: 7 --> 10      Stamped(10)            ready at 10
//!                        \                                           \      ^
//!   leader b   T is ready at 7  --Ready(7)-->   moves to 10, ready at 10  --Ready(10)--> release
//! ```
//!
//! Each leader says that a transaction is ready when it has expired and is at the head of its
//! conflicts, and names the stamp. A leader that hears a larger stamp moves the transaction there
//! at once, and later says that it is ready again. The transaction is released when all leaders
//! have said that it is ready at one and the same stamp. That is the paper's first case after one
//! round, and its second and third case after two.
//!
//! The second round is necessary: until the others have moved, they may still run conflicting
//! transactions with smaller stamps, which may have begun after the end of transactions with larger
//! ones here (Figure 5).

use pangea_core::ids::ShardId;
use pangea_core::mutate;
use pangea_core::partition::ShardSet;

use super::stamp::Stamp;

/// The knowledge of one leader about one transaction, which may not have arrived yet.
#[derive(Clone, Debug, Default, Hash)]
pub struct Agreement {
    /// The largest stamp that any leader named. The transaction moves there.
    largest: Stamp,
    /// The shards whose leaders have told the stamp of the arrival.
    stamped: ShardSet,
    /// The shards on which the transaction is ready at the largest stamp.
    ready: ShardSet,
}

impl Agreement {
    /// The largest stamp that any leader named.
    pub fn largest(&self) -> Stamp {
        self.largest
    }

    /// A leader gave the transaction this stamp on its arrival.
    pub fn note_stamped(&mut self, shard: ShardId, stamp: Stamp) {
        self.raise(stamp);
        self.stamped = self.stamped.union(ShardSet::one(shard));
    }

    /// The transaction is ready on a shard at a stamp, which counts until a larger one is named.
    /// Returns whether this is news.
    pub fn note_ready(&mut self, shard: ShardId, stamp: Stamp) -> bool {
        self.raise(stamp);
        let counts = mutate!(ReleasedAfterOneRound: stamp == self.largest => true);
        let is_news = counts && !self.ready.contains(shard);
        if is_news {
            self.ready = self.ready.union(ShardSet::one(shard));
        }
        is_news
    }

    /// Whether each of these leaders has told its stamp. The largest one is then final.
    pub fn is_stamped_by(&self, shards: ShardSet) -> bool {
        self.not_stamped_by(shards).is_empty()
    }

    /// Those of these shards whose leaders have not told their stamps.
    pub fn not_stamped_by(&self, shards: ShardSet) -> ShardSet {
        shards.without(self.stamped)
    }

    /// Whether the transaction is ready on all of its shards at this stamp (§3.5, Case-1).
    pub fn is_ready_on(&self, shards: ShardSet, stamp: Stamp) -> bool {
        stamp == self.largest && shards.without(self.ready).is_empty()
    }

    /// Names a stamp. If it is larger than all before, a second round begins (§3.5).
    fn raise(&mut self, stamp: Stamp) {
        if stamp > self.largest {
            self.largest = stamp;
            self.ready = mutate!(ReleasedAfterOneRound: ShardSet::default() => self.ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::NodeId;

    use super::super::stamp::{Issuer, Role};
    use super::*;

    const A: ShardId = ShardId(0);
    const B: ShardId = ShardId(1);

    fn stamp(us: u64) -> Stamp {
        Issuer::new(NodeId(0), Role::Coordinator, Stamp::ZERO).issue(us)
    }

    /// §3.5, Case-2.
    #[test]
    fn a_leader_with_the_largest_stamp_waits_until_the_others_are_ready_there() {
        let both = ShardSet::all(2);
        let mut agreement = Agreement::default();
        agreement.note_stamped(A, stamp(10));
        agreement.note_ready(A, stamp(10));
        assert!(!agreement.note_ready(B, stamp(7)), "it is ready at a smaller stamp");
        assert_eq!(agreement.largest(), stamp(10));
        assert!(!agreement.is_ready_on(both, stamp(10)), "b has not moved");
        assert!(agreement.note_ready(B, stamp(10)));
        assert!(!agreement.note_ready(B, stamp(7)), "an older notice arrives late");
        assert!(agreement.is_ready_on(both, stamp(10)));
        assert!(!agreement.is_ready_on(both, stamp(7)));
    }

    #[test]
    fn the_largest_stamp_is_final_when_every_leader_has_told_its_own() {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.largest(), Stamp::ZERO);
        agreement.note_stamped(B, stamp(9));
        assert!(!agreement.is_stamped_by(ShardSet::all(2)));
        agreement.note_stamped(A, stamp(7));
        assert!(agreement.is_stamped_by(ShardSet::all(2)));
        assert_eq!(agreement.largest(), stamp(9));
    }
}
