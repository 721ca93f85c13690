//! Dependencies between transactions.
//!
//! An edge says that one transaction must come before another (Adya, "Weak Consistency", 1999,
//! §3.1): because the other wrote after it (ww), read what it wrote (wr), wrote what it had not yet
//! seen (rw, on an item or by a predicate), or began after it had ended (rt).
//!
//! Vertices beyond the transactions are **junctions**: where many come before many, each of the
//! first leads to the junction and it leads on to each of the second, so that edges stay few. An
//! edge from a junction that carries on what led to it is of kind [`Kind::On`].

use crate::record::Name;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The other wrote the next version.
    Ww,
    /// The other read what it wrote.
    Wr,
    /// The other wrote the version after the one that it read.
    Rw,
    /// The other wrote a row that its predicate would have found, and did not.
    PredicateRw,
    /// It ended before the other began.
    Rt,
    /// From a junction: for the reason that led there.
    On,
}

impl Kind {
    /// Whether it says that something was not yet seen.
    pub fn is_rw(self) -> bool {
        matches!(self, Self::Rw | Self::PredicateRw)
    }
}

/// One dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Who must come later.
    pub to: u32,
    /// Why.
    pub kind: Kind,
    /// On which key, if on one.
    pub key: Option<Name>,
    /// Which value tells. None is a delete.
    pub value: Option<Name>,
}

/// Dependencies, by who must come earlier.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    edges: Vec<Vec<Edge>>,
    txns: usize,
}

/// A way through the graph: each edge with where it begins.
pub type Walk = Vec<(u32, Edge)>;

impl Graph {
    /// A graph of so many transactions.
    pub fn new(txns: usize) -> Self {
        assert!(u32::try_from(2 * txns).is_ok(), "more transactions than vertices have numbers");
        Self { edges: vec![Vec::new(); txns], txns }
    }

    /// Adds a junction and returns it.
    pub fn add_junction(&mut self) -> u32 {
        self.edges.push(Vec::new());
        self.edges.len() as u32 - 1
    }

    /// Adds an edge. One to itself says nothing and is left out.
    pub fn add(&mut self, from: u32, edge: Edge) {
        assert!((edge.to as usize) < self.edges.len(), "an edge to nowhere");
        if from != edge.to {
            self.edges[from as usize].push(edge);
        }
    }

    /// The edges from a vertex.
    pub fn from(&self, vertex: u32) -> &[Edge] {
        &self.edges[vertex as usize]
    }

    /// How many vertices there are.
    pub fn vertices(&self) -> usize {
        self.edges.len()
    }

    /// Whether a vertex is a transaction, and not a junction.
    pub fn is_txn(&self, vertex: u32) -> bool {
        (vertex as usize) < self.txns
    }
}
