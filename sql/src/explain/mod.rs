//! EXPLAIN: the plan of a statement, and the measurements of its run.
//!
//! ```text
//!   Planned ---- statement.rs ----> Node, and its children ---- output.rs ----> text
//!     | plans of DataFusion:              ^              `-- tree.rs ------> JSON, XML
//!     |   relational/explain.rs ----------|
//!     `-- ANALYZE: runs, with a Profile --'  rows and times of each step, and of the commit
//! ```
//!
//! The plan is the one that runs, in PostgreSQL's format. It shows estimated rows but no costs,
//! because Pangea computes none. ANALYZE runs the statement as without EXPLAIN, so its writes
//! persist. A program that every node runs at its place in the order is run here once before it is
//! submitted. This run is on the session's snapshot, without effect, and measures each step; see
//! [`profile`].

pub(crate) mod expression;
mod output;
pub(crate) mod profile;
pub(crate) mod statement;
mod tree;

use crate::types::SqlType;
pub(crate) use output::{Summary, shown};
pub(crate) use profile::Profile;

/// The options of EXPLAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether the statement is run (ANALYZE).
    pub is_analyzed: bool,
    pub is_verbose: bool,
    pub has_costs: bool,
    pub has_timing: bool,
    pub has_summary: bool,
    pub format: Format,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            is_analyzed: false,
            is_verbose: false,
            has_costs: true,
            has_timing: false,
            has_summary: false,
            format: Format::Text,
        }
    }
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
    Xml,
}

impl Format {
    /// The type of the column `QUERY PLAN`.
    pub(crate) fn base(self) -> SqlType {
        match self {
            Self::Text | Self::Xml => SqlType::Text,
            Self::Json => SqlType::Json,
        }
    }
}

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

/// The measurements of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Actual {
    /// Milliseconds to the first row.
    pub startup_ms: f64,
    /// Milliseconds to the last row, including the children.
    pub total_ms: f64,
    pub rows: u64,
    /// Number of runs; 0 if never executed.
    pub loops: u64,
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
