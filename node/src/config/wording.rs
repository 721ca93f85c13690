//! The words of errors in a configuration: a user's words in place of the parser's, and the key
//! that was probably meant.

use std::ops::RangeInclusive;

/// The similarity below which two keys are considered unrelated.
const LIKENESS_MIN: f64 = 0.7;
/// What the parser's message about an unknown key begins with.
const UNKNOWN: &str = "unknown field `";
/// What stands before the keys that are known.
const EXPECTED: &str = ", expected ";

/// Replaces the names of types of numbers by what a user may write.
pub(super) fn in_plain_words(message: &str) -> String {
    let types = [
        ("a nonzero u16", "a whole number from 1 to 65535"),
        ("a nonzero u32", "a whole number from 1 to 4294967295"),
        ("a nonzero u64", "a whole number, at least 1"),
        ("a nonzero usize", "a whole number, at least 1"),
        ("u8", "a whole number from 0 to 255"),
        ("u16", "a whole number from 0 to 65535"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u64", "a whole number, at least 0"),
        ("usize", "a whole number, at least 0"),
        ("f64", "a number"),
    ];
    let Some((before, wanted)) = message.split_once("expected ") else {
        return message.to_owned();
    };
    let words = types.iter().find_map(|(name, words)| {
        let rest = wanted.strip_prefix(name)?;
        let is_whole = !rest.starts_with(|next: char| next.is_ascii_alphanumeric());
        is_whole.then(|| format!("{before}expected {words}{rest}"))
    });
    words.unwrap_or_else(|| message.to_owned())
}

/// Adds the most similar known key to a parser's message about an unknown key. Returns any other
/// message as it is.
pub fn with_meant_key(message: &str) -> String {
    meant_key(message).unwrap_or_else(|| message.to_owned())
}

fn meant_key(message: &str) -> Option<String> {
    let (word, _) = message.strip_prefix(UNKNOWN)?.split_once('`')?;
    let (before, known) = message.split_once(EXPECTED)?;
    // The names are between backticks, and words such as "one of" between the names.
    let names = known.split('`').skip(1).step_by(2);
    let likeness = |name: &str| strsim::jaro_winkler(word, name);
    let likest = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    let is_meant = likeness(likest) >= LIKENESS_MIN;
    is_meant.then(|| format!("{before}; did you mean `{likest}`? Expected {known}"))
}

/// Names the nodes with these numbers.
pub(crate) fn nodes_in_words(numbers: RangeInclusive<usize>) -> String {
    match (*numbers.start(), *numbers.end()) {
        (first, last) if first == last => format!("node {first}"),
        (first, last) => format!("nodes {first} to {last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_answered_with_the_key_that_was_meant() {
        let of = |word: &str| {
            with_meant_key(&format!("{UNKNOWN}{word}`, expected one of `path`, `leaders`, `order`"))
        };
        let meant = "unknown field `leader`; did you mean `leaders`? Expected one of `path`, \
                     `leaders`, `order`";
        assert_eq!(of("leader"), meant);
        assert!(of("ordre").contains("did you mean `order`?"), "{}", of("ordre"));
        assert!(!of("xyz").contains("did you mean"), "{}", of("xyz"));
        let two = "unknown field `jiter_ms`, expected `jitter_ms` or `bandwidth_mbit`";
        assert!(with_meant_key(two).contains("did you mean `jitter_ms`?"));
        for other in ["unknown field `a`, there are no fields", "missing field `protocol`"] {
            assert_eq!(with_meant_key(other), other);
        }
    }

    #[test]
    fn nodes_are_a_range() {
        assert_eq!([nodes_in_words(3..=3), nodes_in_words(3..=4)], ["node 3", "nodes 3 to 4"]);
    }
}
