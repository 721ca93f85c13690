//! Coverage marks: named branches that simulated runs count.

/// A named counter of a rare branch that simulated runs must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The protocol's name, a dot, and the event.
    pub name: &'static str,
    /// The condition under which it is made, for humans.
    pub when: &'static str,
    /// Whether a swarm of the simulator hits it.
    pub rarity: Rarity,
}

/// Whether a swarm of the simulator hits a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rarity {
    /// A swarm of a hundred seeds hits it.
    Usual,
    /// Only larger swarms hit it, for this reason.
    Rare(&'static str),
    /// Honest replicas never make it in runs of seconds, for this reason.
    Never(&'static str),
}

impl Mark {
    /// A mark that a swarm of a hundred seeds hits.
    pub const fn new(name: &'static str, when: &'static str) -> Self {
        Self { name, when, rarity: Rarity::Usual }
    }

    /// The same mark, which only larger swarms hit.
    pub const fn rare(self, why: &'static str) -> Self {
        Self { rarity: Rarity::Rare(why), ..self }
    }

    /// The same mark, which no swarm hits.
    pub const fn never(self, why: &'static str) -> Self {
        Self { rarity: Rarity::Never(why), ..self }
    }
}
