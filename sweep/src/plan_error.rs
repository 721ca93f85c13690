//! Errors in a plan, with their line and a suggestion.

use std::fmt;

/// The similarity below which two words are considered unrelated.
const LIKENESS_MIN: f64 = 0.7;

/// An error in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The line of the plan, from 1.
    pub line: usize,
    /// The error and the remedy.
    pub message: String,
}

impl PlanError {
    /// Creates an error for a line.
    pub fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for PlanError {}

/// Returns the message about an unknown word: it suggests the most similar known word, or lists
/// all.
pub fn unknown<'a>(what: &str, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_unstable();
    known.dedup();
    let likeness = |name: &str| strsim::jaro_winkler(word, name);
    let likest = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match likest.filter(|name| likeness(name) >= LIKENESS_MIN) {
        Some(name) => format!("there is no {what} {word:?}; did you mean {name:?}?"),
        None => format!("there is no {what} {word:?}; expected one of {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_answered_with_the_word_that_was_meant() {
        let said = |word| unknown("option", word, ["rtt", "zipf", "clients", "warehouses"]);
        assert_eq!(said("client"), "there is no option \"client\"; did you mean \"clients\"?");
        assert!(said("warehosues").ends_with("did you mean \"warehouses\"?"));
        let all = "there is no option \"q\"; expected one of clients, rtt, warehouses, zipf";
        assert_eq!(said("q"), all);
    }
}
