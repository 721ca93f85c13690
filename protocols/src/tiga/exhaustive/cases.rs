//! The cases: a few transactions, the order of their leaders, and the facts of their clocks.

use pangea_core::ids::ShardId;
use pangea_core::partition::ShardSet;

use super::IS_LARGE;
use crate::tiga::order::Order;
use pangea_core::time::Span;

/// An access of a transaction to a row or range of a shard.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    Read(u8),
    Write(u8),
    /// A read of all rows of the shard.
    Scan,
}

/// A transaction: the microsecond of its stamp, and its accesses on each shard.
#[derive(Clone, Copy, Debug)]
pub struct Txn {
    pub us: u64,
    pub on: &'static [(u16, Access)],
}

impl Txn {
    pub fn shards(&self) -> ShardSet {
        self.on.iter().map(|(shard, _)| ShardId(*shard)).collect()
    }
}

/// A bounded world to search.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub order: Order,
    pub shards: u16,
    pub txns: &'static [Txn],
    /// Whether clients are answered when their transactions are ready everywhere at one stamp,
    /// which §3.3 permits, and not only when they are released.
    pub is_answered_early: bool,
    /// Whether real time is checked.
    pub is_strict: bool,
    /// Whether the clocks keep the bound of [`Order::Bounded`].
    pub is_bound_kept: bool,
    /// With watermarks and bounded clocks, the moments at which a clock stops while transactions
    /// are missing on its shard. Empty for all stamps.
    pub moments: &'static [u64],
    /// Bounds the number of states.
    pub states_max: usize,
}

const fn one(shard: u16) -> (u16, Access) {
    (shard, Access::Write(0))
}

/// Figure 5: the leader of shard 0 is ahead, where T1 is late because of a transaction at 6.
const FIGURE_5: &[Txn] = &[
    Txn { us: 60, on: &[one(0)] },
    Txn { us: 40, on: &[one(0), one(1)] },
    Txn { us: 100, on: &[one(0)] },
    Txn { us: 50, on: &[one(1)] },
];

/// Figure 15: T2 and T3 conflict with T1 on different shards, whose clocks differ.
const FIGURE_15: &[Txn] = &[
    Txn { us: 70, on: &[one(0), one(1)] },
    Txn { us: 100, on: &[one(0)] },
    Txn { us: 50, on: &[one(1)] },
];

/// Each transaction conflicts with the next. The last one may end before the first one begins.
const CHAIN: &[Txn] = &[
    Txn { us: 50, on: &[one(0)] },
    Txn { us: 70, on: &[one(0), one(1)] },
    Txn { us: 100, on: &[one(1), one(2)] },
    Txn { us: 120, on: &[one(2)] },
];

/// Two transactions on the same two shards.
const PAIR: &[Txn] =
    &[Txn { us: 70, on: &[one(0), one(1)] }, Txn { us: 90, on: &[one(0), one(1)] }];

/// The same, and one that is late or early on one of the shards.
const PAIR_AND_ONE: &[Txn] = &[PAIR[0], PAIR[1], Txn { us: 80, on: &[one(0)] }];

/// Three transactions, each of which shares a shard with each other.
const TRIANGLE: &[Txn] = &[
    Txn { us: 70, on: &[one(0), one(1)] },
    Txn { us: 80, on: &[one(1), one(2)] },
    Txn { us: 90, on: &[one(2), one(0)] },
];

/// Two transactions without any common shard. A third shard has no part in either.
const UNRELATED: &[Txn] = &[Txn { us: 100, on: &[one(0)] }, Txn { us: 50, on: &[one(1)] }];

/// A reader of two shards and writers of each.
const READS: &[Txn] = &[
    Txn { us: 100, on: &[(0, Access::Read(0)), (1, Access::Read(0))] },
    Txn { us: 50, on: &[(0, Access::Write(0))] },
    Txn { us: 70, on: &[(1, Access::Write(0)), (0, Access::Read(1))] },
];

/// A reader of whole shards, and writers of rows in them.
const SCANS: &[Txn] = &[
    Txn { us: 100, on: &[(0, Access::Scan), (1, Access::Scan)] },
    Txn { us: 50, on: &[(0, Access::Write(3))] },
    Txn { us: 70, on: &[(0, Access::Write(4)), (1, Access::Write(4))] },
];

/// A case without anything special.
const PLAIN: Case = Case {
    name: "",
    order: Order::Heads,
    shards: 2,
    txns: &[],
    is_answered_early: false,
    is_strict: true,
    is_bound_kept: true,
    moments: &[],
    states_max: if IS_LARGE { 60_000_000 } else { 2_000_000 },
};

/// The largest difference of two bounded clocks: more than the shortest distance of two stamps and
/// less than the longest.
const ERROR: Order = Order::Bounded { error: Span::from_us(80) };

/// Names, numbers of shards, transactions, and the moments of smaller searches.
const ALL: &[(&str, u16, &[Txn], &[u64])] = &[
    ("figure 5", 2, FIGURE_5, &[55, 130]),
    ("figure 15", 2, FIGURE_15, &[60, 85, 110]),
    ("chain", 3, CHAIN, &[60, 130]),
    ("pair", 2, PAIR, &[80, 100]),
    ("pair and one", 2, PAIR_AND_ONE, &[75, 95]),
    ("triangle", 3, TRIANGLE, &[75, 95]),
    ("unrelated", 3, UNRELATED, &[]),
    ("reads", 2, READS, &[60, 110]),
    ("scans", 2, SCANS, &[60, 110]),
];

/// All cases of a kind. Those that are too large for every test are left out.
fn all(of: Case, large: &[&str]) -> Vec<Case> {
    let names = ALL.iter().filter(|(name, ..)| IS_LARGE || !large.contains(name));
    let cases = names.map(|&(name, shards, txns, moments)| {
        let moments = if IS_LARGE { &[] } else { moments };
        Case { name, shards, txns, moments, ..of.clone() }
    });
    cases.collect()
}

pub fn of_heads() -> Vec<Case> {
    let early = Case { is_answered_early: true, ..PLAIN };
    [all(PLAIN, &[]), all(early, &["triangle"])].concat()
}

pub fn of_watermarks() -> Vec<Case> {
    all(Case { order: Order::Watermarks, ..PLAIN }, &["triangle"])
}

pub fn of_bounded() -> Vec<Case> {
    all(Case { order: ERROR, ..PLAIN }, &["triangle"])
}

pub fn of_detective() -> Vec<Case> {
    all(Case { order: Order::Detective, ..PLAIN }, &["triangle"])
}

/// Bounded clocks that differ by more than their bound.
pub fn wrong_bound() -> Case {
    let name = "figure 15 with a wrong bound";
    let moments = if IS_LARGE { &[][..] } else { &[60, 85, 110] };
    Case { name, order: ERROR, txns: FIGURE_15, is_bound_kept: false, moments, ..PLAIN }
}

#[cfg(feature = "planted")]
pub fn with_bugs() -> Vec<(pangea_core::planted::Bug, Case)> {
    use pangea_core::planted::Bug;

    let heads = |name, shards, txns| Case { name, shards, txns, ..PLAIN };
    let watermarks = Case { order: Order::Watermarks, ..heads("chain", 3, CHAIN) };
    let bounded = Case { order: ERROR, ..heads("pair", 2, PAIR) };
    vec![
        (Bug::NotifiedOnArrival, heads("chain", 3, CHAIN)),
        (Bug::NotifiedOnExpiry, heads("chain", 3, CHAIN)),
        (Bug::ReleasedAfterOneRound, heads("figure 5", 2, FIGURE_5)),
        (Bug::RaisedToldAtHead, heads("pair", 2, PAIR)),
        (Bug::FloorAtRelease, heads("pair and one", 2, PAIR_AND_ONE)),
        (Bug::ReadsLeaveNoFloor, heads("reads", 2, READS)),
        (Bug::RangesLeaveNoFloor, heads("scans", 2, SCANS)),
        (Bug::BoundedWithoutExchange, bounded.clone()),
        (Bug::BoundedClockNoFloor, Case { txns: FIGURE_15, ..bounded.clone() }),
        (Bug::BoundedErrorIgnored, Case { txns: FIGURE_15, moments: &[60, 85, 110], ..bounded }),
        (Bug::MarksOfInvolvedOnly, watermarks),
    ]
}
