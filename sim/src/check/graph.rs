//! The graph of dependencies between transactions.
//!
//! An edge states that one transaction must come before another (Adya, "Weak Consistency", 1999,
//! §3.1): because the other wrote after it (ww), read its write (wr), overwrote a version that it
//! read (rw, on an item or by a predicate), or began after it had ended (rt).
//!
//! Vertices other than transactions are **junctions**. If many transactions come before many
//! others, each of the first has an edge to the junction and the junction has an edge to each of
//! the second, which keeps the number of edges small. An edge from a junction that continues the
//! edges to it has kind [`Kind::On`].
//!
//! In a graph of mixed levels, each transaction has its own (`model.rs`).

use pangea_core::guarantee::Isolation;

use crate::record::Name;

/// The reason why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The other transaction wrote the next version.
    Ww,
    /// The other transaction read its write.
    Wr,
    /// The other transaction wrote the version after the one that it read.
    Rw,
    /// The other transaction wrote a row that its predicate matches and its scan did not return.
    PredicateRw,
    /// It ended before the other transaction began.
    Rt,
    /// From a junction: continues the edge to the junction.
    On,
}

impl Kind {
    /// Whether this is an anti-dependency.
    pub fn is_rw(self) -> bool {
        matches!(self, Self::Rw | Self::PredicateRw)
    }
}

/// One dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The later transaction or junction.
    pub to: u32,
    /// The reason.
    pub kind: Kind,
    /// The key, unless the reason is not about a key.
    pub key: Option<Name>,
    /// The value that shows the dependency; `None` for a delete.
    pub value: Option<Name>,
}

/// Dependencies by their earlier vertex.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    edges: Vec<Vec<Edge>>,
    txns: usize,
    /// The level of each transaction, or nothing if all are held to one model.
    levels: Vec<Isolation>,
}

/// A path through the graph: each edge with its start.
pub type Walk = Vec<(u32, Edge)>;

impl Graph {
    /// Creates a graph of `txns` transactions.
    pub fn new(txns: usize) -> Self {
        assert!(u32::try_from(2 * txns).is_ok(), "too many transactions");
        Self { edges: vec![Vec::new(); txns], txns, levels: Vec::new() }
    }

    /// Creates a graph of transactions with levels of their own.
    pub fn mixed(levels: Vec<Isolation>) -> Self {
        Self { levels: levels.clone(), ..Self::new(levels.len()) }
    }

    /// Whether the level of a transaction promises an edge from it.
    pub fn counts(&self, from: u32, kind: Kind) -> bool {
        match self.levels.get(from as usize) {
            Some(Isolation::ReadCommitted) => !kind.is_rw(),
            Some(Isolation::RepeatableRead) => kind != Kind::PredicateRw,
            Some(Isolation::Snapshot | Isolation::Serializable) | None => true,
        }
    }

    /// Whether a rw to a vertex and one from it may belong to different times. If not, a path
    /// along both counts. A junction hands the question on.
    pub fn excuses(&self, vertex: u32) -> bool {
        self.levels.get(vertex as usize).is_none_or(|level| *level == Isolation::Snapshot)
    }

    /// Adds a junction and returns it.
    pub fn add_junction(&mut self) -> u32 {
        self.edges.push(Vec::new());
        self.edges.len() as u32 - 1
    }

    /// Adds an edge, unless the level of its transaction does not promise it. An edge from a vertex
    /// to itself is ignored.
    pub fn add(&mut self, from: u32, edge: Edge) {
        assert!((edge.to as usize) < self.edges.len(), "the vertex of the edge exists");
        if from != edge.to && self.counts(from, edge.kind) {
            self.edges[from as usize].push(edge);
        }
    }

    /// The edges from a vertex.
    pub fn from(&self, vertex: u32) -> &[Edge] {
        &self.edges[vertex as usize]
    }

    /// The number of vertices.
    pub fn vertices(&self) -> usize {
        self.edges.len()
    }

    /// Whether a vertex is a transaction rather than a junction.
    pub fn is_txn(&self, vertex: u32) -> bool {
        (vertex as usize) < self.txns
    }
}
