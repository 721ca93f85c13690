//! The result of a search, and its text.

use std::fmt::{self, Display};

/// A violation, and the fewest choices that lead to it.
#[derive(Debug)]
pub(crate) struct Found {
    pub what: String,
    pub choices: Vec<String>,
}

/// The result of a search.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub states: usize,
    pub transitions: usize,
    /// The number of states in which only a power loss remains to choose.
    pub ends: usize,
    /// The number of states of single nodes.
    pub node_states: usize,
    /// Whether every state was visited.
    pub is_complete: bool,
    pub found: Option<Found>,
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, ends, node_states, is_complete, found } = self;
        let how = if *is_complete { "all" } else { "not all" };
        write!(f, "{states} states, {transitions} transitions, {ends} ends, ")?;
        write!(f, "{node_states} states of single nodes; {how} were explored")?;
        let Some(Found { what, choices }) = found else { return Ok(()) };
        write!(f, "\n{what}, after")?;
        choices.iter().enumerate().try_for_each(|(i, line)| write!(f, "\n{:3}. {line}", i + 1))
    }
}
