//! Coverage marks: why a swarm never hits some, and lists of them.

use pangea_core::protocol::Mark;

pub(crate) const fn mark(name: &'static str, when: &'static str) -> Mark {
    Mark::new(name, when)
}

/// Why a swarm never hits marks of messages that make no sense.
pub(crate) const NONSENSE: &str =
    "no replica sends it; see protocols/tests/phases/nonsense.rs and the fuzz targets";
/// Why a swarm never hits marks of a replica that lost its log without being replaced.
pub(crate) const LOST_LOG: &str =
    "a node lost its log without being replaced; see protocols/tests/phases";

/// The marks of all lists. `unused` names marks that the protocol never makes.
pub(crate) const fn all_of<const N: usize>(lists: &[&[Mark]], unused: &[&str]) -> [Mark; N] {
    let mut all = [mark("", ""); N];
    let (mut count, mut list) = (0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            all[count] = lists[list][i];
            if is_among(all[count].name, unused) {
                all[count] = all[count].never("this protocol does not use the phase");
            }
            count += 1;
            i += 1;
        }
        list += 1;
    }
    assert!(count == N, "the length is that of all lists together");
    all
}

const fn is_among(name: &str, names: &[&str]) -> bool {
    let mut i = 0;
    while i < names.len() {
        if is_same(name.as_bytes(), names[i].as_bytes()) {
            return true;
        }
        i += 1;
    }
    false
}

/// Equality of slices is not `const` yet.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut i = 0;
    while i < one.len() {
        if one[i] != other[i] {
            return false;
        }
        i += 1;
    }
    true
}
