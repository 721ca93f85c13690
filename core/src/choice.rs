//! What a user chooses between: what transactions may rely on, and settings of a protocol.
//!
//! A protocol says both of itself ([`crate::protocol::Protocol::guarantee`],
//! [`crate::protocol::Protocol::VARIANTS`]), so that what compares protocols knows none by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much transactions see of each other, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// What has committed, statement by statement.
    ReadCommitted,
    /// What was read once is read again.
    RepeatableRead,
    /// One state of the past, and no lost update; write skew is possible.
    SnapshotIsolation,
    /// Nothing that an order one after the other would not show.
    Serializable,
    /// The same, in an order in which who begins after another was acknowledged comes after it.
    StrictSerializable,
}

impl Guarantee {
    /// All of them, the least first.
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

/// A setting that a user may choose in place of the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The setting's name.
    pub key: &'static str,
    /// Its value, as command lines have it.
    pub value: &'static str,
    /// What it is for, in a few words.
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
