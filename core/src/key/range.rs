//! Contiguous ranges of keys.

use serde::{Deserialize, Serialize};

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// From the smallest key up.
    Forward,
    /// From the largest key down.
    Reverse,
}

/// The keys `k` with `start <= k < end`. Without an end, the range extends to the last key of the
/// table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyRange {
    /// The lower bound, inclusive.
    pub start: Vec<u8>,
    /// The upper bound, exclusive. `None` for no bound.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// The range of all keys.
    pub fn all() -> Self {
        Self { start: Vec::new(), end: None }
    }

    /// The range of all keys with this prefix.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { start: prefix.to_vec(), end: successor_of_prefix(prefix) }
    }

    /// The range of exactly one key.
    pub fn point(key: &[u8]) -> Self {
        Self { start: key.to_vec(), end: Some(successor_of_key(key)) }
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Whether some key could be in both ranges.
    pub fn overlaps(&self, other: &Self) -> bool {
        let starts_before_end =
            |a: &Self, b: &Self| b.end.as_deref().is_none_or(|end| &a.start[..] < end);
        !self.is_empty()
            && !other.is_empty()
            && starts_before_end(self, other)
            && starts_before_end(other, self)
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// The part of the range that a scan has read if it stopped after visiting `last`.
    pub fn seen_up_to(&self, last: &[u8], direction: Direction) -> Self {
        match direction {
            Direction::Forward => {
                Self { start: self.start.clone(), end: Some(successor_of_key(last)) }
            }
            Direction::Reverse => Self { start: last.to_vec(), end: self.end.clone() },
        }
    }
}

/// The smallest key greater than `key`.
pub(crate) fn successor_of_key(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// The smallest key greater than every key that begins with `prefix`, if there is one.
fn successor_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_range_holds_exactly_the_keys_with_that_prefix() {
        let range = KeyRange::prefix(&[1, 255]);
        assert!(range.contains(&[1, 255]) && range.contains(&[1, 255, 255, 255]));
        assert!(!range.contains(&[1, 254]) && !range.contains(&[2]));
        assert_eq!(KeyRange::prefix(&[255, 255]).end, None);
    }

    #[test]
    fn a_point_range_holds_one_key() {
        let range = KeyRange::point(b"k");
        assert!(range.contains(b"k") && !range.contains(b"k\0") && !range.contains(b"j"));
    }

    #[test]
    fn ranges_that_only_touch_do_not_overlap() {
        let range = |a: &[u8], b: &[u8]| KeyRange { start: a.to_vec(), end: Some(b.to_vec()) };
        assert!(!range(b"a", b"b").overlaps(&range(b"b", b"c")));
        assert!(range(b"a", b"bb").overlaps(&range(b"b", b"c")));
        assert!(KeyRange::all().overlaps(&range(b"b", b"c")));
        assert!(!KeyRange::all().overlaps(&range(b"b", b"b")), "an empty range overlaps nothing");
    }

    #[test]
    fn a_scan_that_stops_has_seen_its_range_up_to_the_last_key() {
        let range = KeyRange::prefix(b"a");
        let seen = range.seen_up_to(b"ab", Direction::Forward);
        assert!(seen.contains(b"a") && seen.contains(b"ab") && !seen.contains(b"abc"));
        let seen = range.seen_up_to(b"ab", Direction::Reverse);
        assert!(!seen.contains(b"aa") && seen.contains(b"ab") && seen.contains(b"az"));
    }
}
