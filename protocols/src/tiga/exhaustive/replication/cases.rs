//! The cases: the replicas of a shard, and transactions that differ in rows and stamps.

use pangea_core::txn::LockMode;

use super::IS_LARGE;

/// The maximum number of transactions.
pub const TXNS_MAX: usize = 3;

/// A transaction.
#[derive(Clone, Copy, Debug)]
pub struct Txn {
    /// The stamps, in microseconds, of the attempts of its coordinator.
    pub attempts: &'static [u64],
    pub uses: &'static [(u8, LockMode)],
    /// The stamp that the leader of another shard insists on, or zero. The leader here moves the
    /// transaction at any moment before it releases it.
    pub elsewhere: u64,
}

/// A shard and its transactions.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub replicas: usize,
    pub txns: &'static [Txn],
    /// The stamps up to which the leader may promise to accept nothing.
    pub marks: &'static [u64],
}

const A: (u8, LockMode) = (0, LockMode::Exclusive);
const B: (u8, LockMode) = (1, LockMode::Exclusive);
const READ_A: (u8, LockMode) = (0, LockMode::Shared);
const READ_B: (u8, LockMode) = (1, LockMode::Shared);

const fn txn(attempts: &'static [u64], uses: &'static [(u8, LockMode)]) -> Txn {
    Txn { attempts, uses, elsewhere: 0 }
}

/// Two transactions on one row, and one that commutes with both.
const COMMUTING: &[Txn] = &[txn(&[20], &[A]), txn(&[10, 35], &[B]), txn(&[30], &[B])];

/// Three transactions on one row.
const ONE_ROW: &[Txn] = &[txn(&[10], &[A]), txn(&[20], &[A]), txn(&[30], &[A])];

/// The second transaction depends on the first one, and the third one on the second one alone.
const CHAIN: &[Txn] = &[txn(&[10], &[A]), txn(&[20], &[READ_A, B]), txn(&[30], &[B])];

/// A transaction that a leader of another shard moves, and two others.
const MOVED: &[Txn] =
    &[Txn { attempts: &[10], uses: &[A], elsewhere: 26 }, txn(&[20], &[A]), txn(&[30], &[B])];

/// A reader of both rows, which is in no log.
const READER: &[Txn] = &[txn(&[10], &[A]), txn(&[20], &[B]), txn(&[30], &[READ_A, READ_B])];

/// Two transactions on one row, of which one has two attempts.
const TWICE: &[Txn] = &[txn(&[10, 30], &[A]), txn(&[20], &[A])];

const APART: &[Txn] = &[txn(&[10], &[A]), txn(&[20], &[B])];

/// All assignments of three transactions to three replicas, and of two to five.
pub fn all() -> Vec<Case> {
    let case = |name, replicas, txns| Case { name, replicas, txns, marks: &[] };
    let mut cases = vec![
        case("commuting", 3, COMMUTING),
        case("one row", 3, ONE_ROW),
        case("chain", 3, CHAIN),
        case("moved", 3, MOVED),
        case("reader", 3, READER),
        case("twice", 3, TWICE),
        Case { marks: &[15, 25], ..case("promises", 3, APART) },
        case("two attempts", 5, TWICE),
        case("apart", 5, APART),
    ];
    if IS_LARGE {
        cases.push(Case { marks: &[15, 25], ..case("chain and promises", 3, CHAIN) });
        cases.push(Case { marks: &[15, 25], ..case("promises", 5, APART) });
        cases.push(case("one row", 5, ONE_ROW));
        cases.push(case("apart", 7, APART));
    }
    cases
}

/// The cases of which a sample is drawn, and the number of draws.
pub fn sampled() -> Vec<(Case, usize)> {
    let draws = if IS_LARGE { 2_000_000 } else { 20_000 };
    let named = [
        ("commuting", COMMUTING),
        ("one row", ONE_ROW),
        ("chain", CHAIN),
        ("moved", MOVED),
        ("reader", READER),
    ];
    let of =
        |replicas| named.map(|(name, txns)| (Case { name, replicas, txns, marks: &[] }, draws));
    [of(5), of(7)].concat()
}

/// The cases of walks over several views. A shard alone does not know which stamp the leaders of
/// other shards insist on in a later view.
pub fn walked() -> Vec<Case> {
    let named =
        [("commuting", COMMUTING), ("one row", ONE_ROW), ("chain", CHAIN), ("reader", READER)];
    let of = |replicas| named.map(|(name, txns)| Case { name, replicas, txns, marks: &[15, 25] });
    [of(3), of(5)].concat()
}

#[cfg(feature = "planted")]
pub fn with_bugs() -> Vec<(pangea_core::planted::Bug, Case)> {
    use pangea_core::planted::Bug;

    let case = |name, replicas, txns| Case { name, replicas, txns, marks: &[] };
    let promises = Case { marks: &[15, 25], ..case("promises", 3, APART) };
    vec![
        (Bug::PrefixWithoutStamp, case("moved", 3, MOVED)),
        (Bug::PrefixIsShallow, case("chain", 3, CHAIN)),
        (Bug::SimpleQuorumIsFast, case("commuting", 3, COMMUTING)),
        (Bug::QuorumWithoutLeader, case("two attempts", 5, TWICE)),
        (Bug::LeaderCountsUndurable, case("commuting", 3, COMMUTING)),
        (Bug::CommitPointIsMax, case("commuting", 3, COMMUTING)),
        (Bug::UnsyncedDropped, case("commuting", 3, COMMUTING)),
        (Bug::RecoveredAboveSynced, case("commuting", 3, COMMUTING)),
        (Bug::LateRecovered, case("one row", 3, ONE_ROW)),
        (Bug::FloorForgotten, case("reader", 3, READER)),
        (Bug::ClosedForgotten, promises),
    ]
}
