//! The properties of a protocol that users choose by: its isolation levels, its guarantee, and
//! alternative settings.
//!
//! Each protocol declares them ([`crate::protocol::Protocol::isolations`],
//! [`crate::protocol::Protocol::guarantee`], [`crate::protocol::Protocol::VARIANTS`]), so tools
//! that compare protocols know none of them by name.
//!
//! A [`Guarantee`] is about a history: all transactions of a run. An [`Isolation`] is about one
//! transaction, which names it when it begins. A transaction may get a stronger level than it asks
//! for, never a weaker one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Isolation levels, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// Each statement reads committed data.
    ReadCommitted,
    /// A row that was read once reads the same again.
    RepeatableRead,
    /// Reads come from one past state, and no update is lost; write skew is possible.
    SnapshotIsolation,
    /// The result equals that of some serial order.
    Serializable,
    /// Serializable, in an order that respects real time: a transaction that begins after another
    /// was acknowledged is ordered after it.
    StrictSerializable,
}

impl Guarantee {
    /// All levels, the weakest first.
    pub const ALL: [Self; 5] = [
        Self::ReadCommitted,
        Self::RepeatableRead,
        Self::SnapshotIsolation,
        Self::Serializable,
        Self::StrictSerializable,
    ];

    /// The name in files and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read-committed",
            Self::RepeatableRead => "repeatable-read",
            Self::SnapshotIsolation => "snapshot-isolation",
            Self::Serializable => "serializable",
            Self::StrictSerializable => "strict-serializable",
        }
    }
}

/// The isolation level of one transaction, from the weakest to the strongest.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Each statement reads a snapshot of its own, and no update of one statement is lost.
    ReadCommitted,
    /// All reads are of one snapshot, and each row that was read or written is as it was read when
    /// the transaction commits. New rows may have appeared.
    RepeatableRead,
    /// All reads are of one snapshot, and no row that was written has changed since.
    #[serde(rename = "snapshot-isolation", alias = "snapshot")]
    Snapshot,
    /// The result is as if the transaction ran alone.
    #[default]
    Serializable,
}

impl Isolation {
    /// All levels, the weakest first.
    pub const ALL: [Self; 4] =
        [Self::ReadCommitted, Self::RepeatableRead, Self::Snapshot, Self::Serializable];

    /// The guarantee of a history in which all transactions have this level.
    pub fn guarantee(self) -> Guarantee {
        match self {
            Self::ReadCommitted => Guarantee::ReadCommitted,
            Self::RepeatableRead => Guarantee::RepeatableRead,
            Self::Snapshot => Guarantee::SnapshotIsolation,
            Self::Serializable => Guarantee::Serializable,
        }
    }

    /// The name in files and on command lines.
    pub fn name(self) -> &'static str {
        self.guarantee().name()
    }
}

impl FromStr for Isolation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        // As in files: see the attribute of the variant.
        let name = if name == "snapshot" { Self::Snapshot.name() } else { name };
        Self::ALL.into_iter().find(|level| level.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown isolation level {name:?}; known: {names}")
        })
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The isolation levels that a protocol offers.
///
/// # Examples
///
/// ```
/// use pangea_core::guarantee::{Isolation, Isolations};
///
/// let levels = Isolations::new(Isolation::ReadCommitted, &[Isolation::Snapshot]);
/// assert_eq!(levels.granted(Isolation::RepeatableRead), Some(Isolation::Snapshot));
/// assert_eq!(levels.granted(Isolation::Serializable), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isolations {
    /// The level of transactions that name none.
    default: Isolation,
    /// Whether each level of [`Isolation::ALL`] is offered.
    are_offered: [bool; 4],
    /// Whether an update can be lost at each of them.
    lose_updates: bool,
    /// Whether additions are merged.
    merge_adds: bool,
}

impl Isolations {
    /// A default level, and the other levels that can be chosen.
    pub fn new(default: Isolation, others: &[Isolation]) -> Self {
        let is_offered = |level| level == default || others.contains(&level);
        let are_offered = Isolation::ALL.map(is_offered);
        Self { default, are_offered, lose_updates: false, merge_adds: false }
    }

    /// The same levels in a protocol that loses updates, also those of a single statement. No
    /// constraint and no index would hold, so sessions refuse to work with them.
    pub fn losing_updates(self) -> Self {
        Self { lose_updates: true, ..self }
    }

    /// Whether an update can be lost: see [`Isolations::losing_updates`].
    pub fn lose_updates(self) -> bool {
        self.lose_updates
    }

    /// The same levels in a protocol that merges additions ([`crate::txn::Add`]): it computes the
    /// row at the place of each transaction in the order.
    pub fn merging_adds(self) -> Self {
        Self { merge_adds: true, ..self }
    }

    /// Whether a transaction of this level may record additions. Not at the snapshot level: there
    /// no row that a transaction has changed may have been changed by another one meanwhile.
    pub fn adds_at(self, level: Isolation) -> bool {
        self.merge_adds && level != Isolation::Snapshot
    }

    /// The level of transactions that name none.
    pub fn default_level(self) -> Isolation {
        self.default
    }

    /// The strongest level, for transactions that must not see the work of others.
    pub fn strongest(self) -> Isolation {
        self.offered().last().unwrap_or(self.default)
    }

    /// The levels, the weakest first.
    pub fn offered(self) -> impl Iterator<Item = Isolation> {
        let all = Isolation::ALL.into_iter().zip(self.are_offered);
        all.filter_map(|(level, is_offered)| is_offered.then_some(level))
    }

    /// The level of a transaction that asks for `wanted`: the weakest that is at least as strong.
    /// `None` if all are weaker.
    pub fn granted(self, wanted: Isolation) -> Option<Isolation> {
        self.offered().find(|level| *level >= wanted)
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An alternative to the default value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The setting's name.
    pub key: &'static str,
    /// Its value, in the syntax of command lines.
    pub value: &'static str,
    /// Its purpose, in a few words.
    pub what: &'static str,
}

/// A setting that `pangea torture` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TortureSetting {
    /// The setting's name.
    pub key: &'static str,
    /// Its values, as TOML has them. One that the cluster can have is drawn from the seed.
    pub values: &'static [&'static str],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_gets_the_weakest_level_that_is_strong_enough() {
        let one = Isolations::new(Isolation::Serializable, &[]);
        for wanted in Isolation::ALL {
            assert_eq!(one.granted(wanted), Some(Isolation::Serializable));
            assert!(one.granted(wanted) >= Some(wanted));
        }
        let all = Isolations::new(Isolation::ReadCommitted, &Isolation::ALL);
        assert!(all.offered().eq(Isolation::ALL));
        assert_eq!(all.strongest(), Isolation::Serializable);
        assert_eq!(Isolation::ALL.map(|level| all.granted(level)), Isolation::ALL.map(Some));
        let weak = Isolations::new(Isolation::Snapshot, &[Isolation::ReadCommitted]);
        assert_eq!(weak.default_level(), Isolation::Snapshot);
        assert_eq!(weak.granted(Isolation::Serializable), None);
    }

    #[test]
    fn isolation_levels_ascend_as_their_guarantees_do() {
        assert!(Isolation::ALL.is_sorted());
        assert!(Isolation::ALL.map(Isolation::guarantee).is_sorted());
        assert_eq!(Isolation::Snapshot.to_string(), "snapshot-isolation");
        assert!(Isolation::ALL.iter().all(|level| level.name().parse() == Ok(*level)));
        assert!("strict".parse::<Isolation>().unwrap_err().contains("known: read-committed, "));
    }

    #[test]
    fn guarantees_ascend_and_have_names_of_their_own() {
        assert!(Guarantee::ALL.is_sorted());
        let names: std::collections::BTreeSet<_> = Guarantee::ALL.map(Guarantee::name).into();
        assert_eq!(names.len(), Guarantee::ALL.len());
        assert_eq!(Guarantee::StrictSerializable.to_string(), "strict-serializable");
    }
}
