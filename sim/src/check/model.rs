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

use std::fmt;
use std::str::FromStr;

use pangea_core::guarantee::Guarantee;

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
}

/// The paths through dependencies that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    kinds: u8,
    /// Whether paths with two adjacent rw edges are excluded.
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
    /// All models, the strongest first.
    pub const ALL: [Self; 5] = [
        Self::StrictSerializable,
        Self::Serializable,
        Self::SnapshotIsolation,
        Self::RepeatableRead,
        Self::ReadCommitted,
    ];

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

    /// The model's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read-committed",
            Self::RepeatableRead => "repeatable-read",
            Self::SnapshotIsolation => "snapshot-isolation",
            Self::Serializable => "serializable",
            Self::StrictSerializable => "strict-serializable",
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
        Self::ALL.into_iter().find(|model| model.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown model {name:?}; known: {names}")
        })
    }
}
