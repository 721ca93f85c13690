//! The properties of a protocol that users choose by: its isolation guarantee and alternative
//! settings.
//!
//! Each protocol declares both ([`crate::protocol::Protocol::guarantee`],
//! [`crate::protocol::Protocol::VARIANTS`]), so tools that compare protocols know none of them by
//! name.

use std::fmt;

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
    fn guarantees_ascend_and_have_names_of_their_own() {
        assert!(Guarantee::ALL.is_sorted());
        let names: std::collections::BTreeSet<_> = Guarantee::ALL.map(Guarantee::name).into();
        assert_eq!(names.len(), Guarantee::ALL.len());
        assert_eq!(Guarantee::StrictSerializable.to_string(), "strict-serializable");
    }
}
