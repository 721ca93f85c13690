//! Consistency models and the cycles that each rules out.
//!
//! The models are those of Adya ("Weak Consistency", 1999, §3 and §4): each is a set of phenomena
//! that must not occur. As cycles of dependencies (`graph.rs`):
//!
//! | model | rules out cycles of | reference |
//! |---|---|---|
//! | read committed, PL-2 | ww, wr | Adya §3.2.2 |
//! | repeatable read, PL-2.99 | ww, wr, rw on items | Adya §3.2.3 |
//! | snapshot isolation | ww, wr, rw, but no two adjacent rw | Cerone and Gotsman 2018, Theorem 4 |
//! | serializable, PL-3 | ww, wr, rw | Adya §3.2.4 |
//! | strict serializable | ww, wr, rw, real time | Herlihy and Wing 1990, §2 |
//!
//! # Mixed levels
//!
//! Transactions of one history may have levels of their own. Then dependencies that a level does
//! not promise are left out of the graph: Adya's mixed serialization graph (Adya, Liskov and
//! O'Neil, "Generalized Isolation Level Definitions", 2000, §5.5). It has every ww and wr. The
//! other edges are those that the level of one of their ends promises:
//!
//! | level of T | rw from T | real time to T | excuses rw, T, rw |
//! |---|---|---|---|
//! | read committed | none | no | |
//! | repeatable read | on items | no | no |
//! | snapshot | all | no | yes |
//! | serializable, or none named | all | yes | no |
//!
//! A transaction of the snapshot level reads at its beginning and writes at its end. It must come
//! before those that overwrite what it has read when it begins, and after those whose reads it
//! overwrites when it ends. So two adjacent rw that meet in it say nothing about each other. All
//! other dependencies on it must be over when it begins, because the first committer wins. At the
//! other levels a transaction takes place at one time, its end. A history is possible if each
//! transaction can be given its one or two times so that all edges ascend, that is, if there is no
//! cycle without such an excuse. If all have one level, that is the level's own model.
//!
//! Real time leaves every transaction, and enters those that promise it: what was acknowledged is
//! there for all who can rely on that.

use std::fmt;
use std::str::FromStr;

use pangea_core::guarantee::{Guarantee, Isolation};

use super::graph::Kind;

/// A consistency model that a history is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Model {
    /// No read returns uncommitted or intermediate values.
    ReadCommitted,
    /// Items that were read do not change until the transaction ends; new rows may appear.
    RepeatableRead,
    /// All reads are of one snapshot, and no update is lost.
    SnapshotIsolation,
    /// Equivalent to a serial order.
    Serializable,
    /// Equivalent to a serial order in which each transaction takes place between its start and its
    /// end.
    StrictSerializable,
    /// Each transaction at its own level; strict serializable if it names none.
    Mixed,
}

/// The paths through dependencies that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    kinds: u8,
    /// Whether paths with two adjacent rw edges are excluded. In a graph of mixed levels, only if
    /// the edges meet in a transaction that excuses them.
    pub is_apart: bool,
}

impl Rule {
    /// Paths along edges of these kinds.
    pub const fn of(kinds: &[Kind]) -> Self {
        let mut set = 1 << Kind::On as u8;
        let mut at = 0;
        while at < kinds.len() {
            set |= 1 << kinds[at] as u8;
            at += 1;
        }
        Self { kinds: set, is_apart: false }
    }

    /// The same rule, without paths with two adjacent rw edges.
    pub const fn apart(self) -> Self {
        Self { is_apart: true, ..self }
    }

    /// Whether edges of a kind count.
    pub fn has(self, kind: Kind) -> bool {
        self.kinds & (1 << kind as u8) != 0
    }
}

impl Model {
    /// The models that hold all transactions to the same, the strongest first.
    pub const ALL: [Self; 5] = [
        Self::StrictSerializable,
        Self::Serializable,
        Self::SnapshotIsolation,
        Self::RepeatableRead,
        Self::ReadCommitted,
    ];

    /// The names of all models.
    pub fn names() -> String {
        let names = Self::ALL.into_iter().chain([Self::Mixed]).map(Self::name);
        names.collect::<Vec<_>>().join(", ")
    }

    /// The model that a guarantee promises.
    pub fn of(guarantee: Guarantee) -> Self {
        match guarantee {
            Guarantee::ReadCommitted => Self::ReadCommitted,
            Guarantee::RepeatableRead => Self::RepeatableRead,
            Guarantee::SnapshotIsolation => Self::SnapshotIsolation,
            Guarantee::Serializable => Self::Serializable,
            Guarantee::StrictSerializable => Self::StrictSerializable,
        }
    }

    /// The model that a transaction is held to, given the level that it names.
    pub fn for_level(self, level: Option<Isolation>) -> Self {
        match (self, level) {
            (Self::Mixed, None | Some(Isolation::Serializable)) => Self::StrictSerializable,
            (Self::Mixed, Some(weaker)) => Self::of(weaker.guarantee()),
            (same, _) => same,
        }
    }

    /// The model's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read-committed",
            Self::RepeatableRead => "repeatable-read",
            Self::SnapshotIsolation => "snapshot-isolation",
            Self::Serializable => "serializable",
            Self::StrictSerializable => "strict-serializable",
            Self::Mixed => "mixed",
        }
    }

    /// The cycles that the model rules out.
    pub const fn rule(self) -> Rule {
        use Kind::{PredicateRw, Rt, Rw, Wr, Ww};
        match self {
            Self::ReadCommitted => Rule::of(&[Ww, Wr]),
            Self::RepeatableRead => Rule::of(&[Ww, Wr, Rw]),
            Self::SnapshotIsolation => Rule::of(&[Ww, Wr, Rw, PredicateRw]).apart(),
            Self::Serializable => Rule::of(&[Ww, Wr, Rw, PredicateRw]),
            Self::StrictSerializable => Rule::of(&[Ww, Wr, Rw, PredicateRw, Rt]),
            Self::Mixed => Rule::of(&[Ww, Wr, Rw, PredicateRw, Rt]).apart(),
        }
    }

    /// Whether there is an order of all transactions in which each reads items as those before it
    /// have left them.
    pub fn orders_items(self) -> bool {
        self.rule().has(Kind::Rw) && !self.rule().is_apart
    }

    /// Whether the model requires real-time order.
    pub fn is_real_time(self) -> bool {
        self.rule().has(Kind::Rt)
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter().chain([Self::Mixed]);
        all.find(|model| model.name() == name)
            .ok_or_else(|| format!("unknown model {name:?}; known: {}", Self::names()))
    }
}
