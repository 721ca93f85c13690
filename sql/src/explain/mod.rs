//! EXPLAIN: the plan that a statement has, and what its run took.
//!
//! ```text
//!   Planned ---- statement.rs ----> Node, and its children ---- output.rs ----> text
//!     | what DataFusion runs:             ^              `-- tree.rs ------> JSON, XML
//!     |   relational/explain.rs ----------|
//!     `-- ANALYZE: runs, with a Profile --'  rows and times of each step, and of the commit
//! ```
//!
//! The plan is the one that runs, in PostgreSQL's words. It has no costs, which Pangea does not
//! reckon with: of estimates it shows the rows. With ANALYZE the statement is run as it is without
//! EXPLAIN, so that its writes stay. A program that every node runs at its place in the order is
//! run here once more beforehand, on the session's snapshot and to no effect, to see what each step
//! takes; see [`profile`].

pub(crate) mod expression;
mod output;
pub(crate) mod profile;
pub(crate) mod statement;
mod tree;

use crate::types::SqlType;
pub(crate) use output::{Summary, shown};
pub(crate) use profile::Profile;

/// What an EXPLAIN asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether the statement is run.
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

/// How a plan is shown.
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

/// A step of a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// What it is called in JSON: `Index Scan`.
    pub kind: String,
    /// What it is called in a text: `Index Scan using t_pkey on t`.
    pub title: String,
    /// What JSON has of the title.
    pub facts: Vec<(&'static str, Detail)>,
    /// What stands below the title, in both.
    pub details: Vec<(&'static str, Detail)>,
    /// What it is to the step above it: `Outer`.
    pub relationship: Option<&'static str>,
    /// What a text says of a step whose rows do not come to the one above: `InitPlan 1`.
    pub role: Option<String>,
    /// How many rows it gives, about.
    pub rows: Option<u64>,
    pub actual: Option<Actual>,
    pub children: Vec<Node>,
}

/// What is said of a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Detail {
    Text(String),
    List(Vec<String>),
    Count(u64),
    Number(f64),
    Bool(bool),
}

/// What a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Actual {
    /// Milliseconds to its first row.
    pub startup_ms: f64,
    /// Milliseconds to its end, with the steps below it.
    pub total_ms: f64,
    pub rows: u64,
    /// How often it was run; 0 where it never was.
    pub loops: u64,
}

impl Node {
    pub(crate) fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), title: kind.to_owned(), ..Self::default() }
    }

    /// A step over another.
    pub(crate) fn over(kind: &str, child: Self) -> Self {
        Self { rows: child.rows, ..Self::new(kind) }.with_child("Outer", child)
    }

    pub(crate) fn with_child(mut self, relationship: &'static str, child: Self) -> Self {
        let relationship = child.relationship.or(Some(relationship));
        self.children.push(Self { relationship, ..child });
        self
    }

    /// Says something of the step.
    pub(crate) fn note(&mut self, name: &'static str, detail: Detail) {
        self.details.push((name, detail));
    }

    pub(crate) fn note_text(&mut self, name: &'static str, text: String) {
        self.note(name, Detail::Text(text));
    }

    /// Says how many rows a condition left out, where that is known.
    pub(crate) fn note_removed(&mut self, name: &'static str, count: Option<u64>) {
        if let Some(count) = count {
            self.note(name, Detail::Count(count));
        }
    }
}
