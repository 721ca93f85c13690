//! Timestamps of transactions (§3.1), called stamps to tell them from times of clocks.
//!
//! ```text
//!   63                              12 11            1  0
//!   | microseconds since the origin  | issuing node  |  | 1: a leader raised it
//! ```
//!
//! Two transactions never have the same stamp, because the version of a write is the stamp of its
//! transaction. The paper leaves equal timestamps open. Here each issuer has numbers of its own,
//! and never issues one twice. A node has two issuers: its coordinator stamps transactions in the
//! future, and its leader raises stamps to just above a floor. With one issuer, each raised stamp
//! would be in the future, too.

use std::fmt;

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::time::Span;

/// The bits of a stamp that name its issuer.
const ISSUER_BITS: u32 = 12;

/// The maximum number of nodes: each has two issuers.
pub const NODES_MAX: u16 = 1 << (ISSUER_BITS - 1);

/// No message has a stamp after this microsecond, so that some time can be added to each.
pub(super) const US_MAX: u64 = (1 << (u64::BITS - ISSUER_BITS)) - (1 << 40);

/// The place of a transaction in the serial order: microseconds since the origin of the clocks, and
/// the issuer of the stamp. On real nodes that is the Unix epoch, and stamps last until 2112.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// The least stamp of all. Nothing is issued at it.
    pub const ZERO: Self = Self(0);

    /// The microseconds of the stamp.
    pub fn us(self) -> u64 {
        self.0 >> ISSUER_BITS
    }

    /// The node that issued the stamp.
    pub fn node(self) -> NodeId {
        NodeId((self.0 as u16 & ((1 << ISSUER_BITS) - 1)) >> 1)
    }

    /// Whether a leader issued the stamp, and not the coordinator of the transaction.
    pub fn is_raised(self) -> bool {
        self.0 & 1 == 1
    }

    /// The largest stamp of a microsecond. A clock has passed all stamps up to this one of its
    /// reading.
    pub fn last_of(us: u64) -> Self {
        assert!(us < 1 << (u64::BITS - ISSUER_BITS), "the time is beyond the last stamp");
        Self(us << ISSUER_BITS | ((1 << ISSUER_BITS) - 1))
    }

    /// The 64 bits, for codecs.
    pub(super) fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Stamp::to_bits`].
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The largest stamp that is at least this span before the microsecond of this one.
    #[must_use]
    pub fn before(self, span: Span) -> Self {
        self.us().checked_sub(span.us).map_or(Self::ZERO, Self::last_of)
    }
}

impl From<Stamp> for SnapshotVersion {
    fn from(stamp: Stamp) -> Self {
        Self(stamp.0)
    }
}

impl From<SnapshotVersion> for Stamp {
    fn from(version: SnapshotVersion) -> Self {
        Self(version.0)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raised = if self.is_raised() { "raised by " } else { "" };
        write!(f, "{}@{raised}{}", self.us(), self.node())
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The role in which a node issues stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It stamps transactions of its clients.
    Coordinator,
    /// It raises stamps that are too small for its shard.
    Leader,
}

/// Issues the stamps of one node in one role, each only once.
#[derive(Clone, Copy, Debug)]
pub struct Issuer {
    bits: u64,
    /// The microseconds of the last stamp.
    last_us: u64,
}

impl Issuer {
    /// An issuer that has not issued any stamp above `ceiling`. A node that restarts passes a stamp
    /// that it can't have issued before.
    ///
    /// # Panics
    /// If the number of the node does not fit into a stamp.
    pub fn new(node: NodeId, role: Role, ceiling: Stamp) -> Self {
        assert!(node.0 < NODES_MAX, "there must be at most {NODES_MAX} nodes");
        let bits = u64::from(node.0) << 1 | u64::from(role == Role::Leader);
        Self { bits, last_us: ceiling.us() }
    }

    /// Issues a stamp at a microsecond, or as soon after it as this issuer has one left.
    pub fn issue(&mut self, us: u64) -> Stamp {
        self.last_us = us.max(self.last_us + 1);
        assert!(self.last_us < 1 << (u64::BITS - ISSUER_BITS), "the stamps are exhausted");
        Stamp(self.last_us << ISSUER_BITS | self.bits)
    }

    /// Issues no stamp at or below this one any more.
    pub fn skip_to(&mut self, stamp: Stamp) {
        self.last_us = self.last_us.max(stamp.us());
    }

    /// Issues a stamp just above a floor.
    pub fn issue_above(&mut self, floor: Stamp) -> Stamp {
        self.issue(floor.us() + 1)
    }

    /// The last microsecond that was used, which decides all later stamps.
    pub fn last_us(&self) -> u64 {
        self.last_us
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn issuer(node: u16, role: Role) -> Issuer {
        Issuer::new(NodeId(node), role, Stamp::ZERO)
    }

    #[test]
    fn no_stamp_is_issued_twice() {
        let mut all = BTreeSet::new();
        for node in [0, 1, NODES_MAX - 1] {
            for role in [Role::Coordinator, Role::Leader] {
                let mut issuer = issuer(node, role);
                // A clock that stands still, goes back, and jumps.
                let stamps = [5, 5, 3, 5, 90, 40].map(|us| issuer.issue(us));
                assert_eq!(stamps.map(Stamp::us), [5, 6, 7, 8, 90, 91]);
                for stamp in stamps {
                    assert_eq!(stamp.node(), NodeId(node));
                    assert_eq!(stamp.is_raised(), role == Role::Leader);
                    assert!(all.insert(stamp));
                }
            }
        }
        assert_eq!(all.len(), 36);
    }

    #[test]
    fn an_issuer_that_restarts_continues_above_its_ceiling() {
        let mut before = issuer(1, Role::Coordinator);
        let last = before.issue(70);
        let mut after = Issuer::new(NodeId(1), Role::Coordinator, last);
        assert!(after.issue(10) > last, "the clock went back");
    }

    #[test]
    fn stamps_are_ordered_by_time_and_a_raised_one_is_above_its_floor() {
        let (mut high, mut low) = (issuer(9, Role::Coordinator), issuer(1, Role::Coordinator));
        let floor = high.issue(5);
        assert!(low.issue(5) < floor && low.issue(6) > floor);
        let raised = issuer(1, Role::Leader).issue_above(floor);
        assert!(raised > floor && raised.us() == 6);
        assert!(Stamp::last_of(5) > floor && Stamp::last_of(5) < raised);
        assert_eq!(Stamp::last_of(5).before(Span::from_us(2)), Stamp::last_of(3));
        assert_eq!(Stamp::last_of(5).before(Span::from_us(6)), Stamp::ZERO);
    }

    #[test]
    fn a_stamp_is_the_version_of_its_writes() {
        let stamp = issuer(3, Role::Coordinator).issue(1_234);
        assert_eq!(Stamp::from(SnapshotVersion::from(stamp)), stamp);
        assert_eq!(stamp.to_string(), "1234@n3");
    }
}
