//! EXPLAIN: the plan of a statement, and the measurements of its run.
//!
//! ```text
//!   Planned ---- statement.rs ----> Node, and its children ---- output.rs ----> text
//!     | plans of DataFusion:              ^              `-- tree.rs ------> JSON, XML
//!     |   physical.rs --------------------|
//!     `-- ANALYZE: runs, with a Profile --'  rows and times of each step, and of the commit
//! ```
//!
//! The plan is the one that runs, in PostgreSQL's format. It shows estimated rows but no costs,
//! because Pangea computes none. ANALYZE runs the statement as without EXPLAIN, so its writes
//! persist. A program that every node runs at its place in the order is run here once before it is
//! submitted. This run is on the session's snapshot, without effect, and measures each step; see
//! [`crate::profile`].

pub(crate) mod expression;
mod output;
#[cfg_attr(not(feature = "relational"), path = "physical/absent.rs")]
mod physical;
pub(crate) mod statement;
mod tree;

use crate::profile::Actual;
pub(crate) use output::{Summary, shown};

/// A node of a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// Node type in JSON: `Index Scan`.
    pub kind: String,
    /// Title in text: `Index Scan using t_pkey on t`.
    pub title: String,
    /// JSON properties that the title contains.
    pub facts: Vec<(&'static str, Detail)>,
    /// Properties shown below the title, in all formats.
    pub details: Vec<(&'static str, Detail)>,
    /// Relationship to the parent: `Outer`.
    pub relationship: Option<&'static str>,
    /// Heading, in text, of a node whose rows don't go to the parent: `InitPlan 1`.
    pub role: Option<String>,
    /// Estimated number of rows.
    pub rows: Option<u64>,
    pub actual: Option<Actual>,
    pub children: Vec<Node>,
}

/// A property of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Detail {
    Text(String),
    List(Vec<String>),
    Count(u64),
    Number(f64),
    Bool(bool),
}

impl Node {
    pub(crate) fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), title: kind.to_owned(), ..Self::default() }
    }

    /// Creates a node with one child.
    pub(crate) fn over(kind: &str, child: Self) -> Self {
        Self { rows: child.rows, ..Self::new(kind) }.with_child("Outer", child)
    }

    pub(crate) fn with_child(mut self, relationship: &'static str, child: Self) -> Self {
        let relationship = child.relationship.or(Some(relationship));
        self.children.push(Self { relationship, ..child });
        self
    }

    /// Adds a property.
    pub(crate) fn note(&mut self, name: &'static str, detail: Detail) {
        self.details.push((name, detail));
    }

    pub(crate) fn note_text(&mut self, name: &'static str, text: String) {
        self.note(name, Detail::Text(text));
    }

    /// Adds the number of rows that a condition removed, if known.
    pub(crate) fn note_removed(&mut self, name: &'static str, count: Option<u64>) {
        if let Some(count) = count {
            self.note(name, Detail::Count(count));
        }
    }
}
