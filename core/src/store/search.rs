//! Search in sorted keys that are not in any cache.
//!
//! Each step of a binary search depends on the previous comparison. Over 256 keys that is eight
//! steps, of which five miss the caches. Here the first comparisons are spread over all keys and
//! independent of each other; the next ones are spread over the remaining part. The search waits
//! only three times, regardless of the keys.

use crate::key::Key;

/// The number of independent comparisons in a step.
const WAYS: usize = 8;

/// The number of these ascending keys for which `is_before` holds. It must hold for a prefix of the
/// keys and for no other key.
#[inline]
pub(super) fn count_before(mut keys: &[Key], is_before: impl Fn(&Key) -> bool) -> usize {
    let mut count = 0;
    while keys.len() > WAYS {
        let step = keys.len() / WAYS;
        let looks = keys.chunks_exact(step).take(WAYS).map(|part| is_before(&part[step - 1]));
        let before: usize = looks.map(usize::from).sum();
        count += before * step;
        keys = &keys[before * step..];
        if before < WAYS {
            // The last key of this part is not before.
            keys = &keys[..step - 1];
        }
    }
    count + keys.iter().map(|key| usize::from(is_before(key))).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_a_binary_search_finds() {
        let key = |number: u16| Key::from(&number.to_be_bytes()[..]);
        for len in (0..70).chain([255, 256, 257, 1_000]) {
            let keys: Vec<_> = (0..len).map(|i| key(2 * i + 1)).collect();
            for sought in (0..2 * len + 3).map(key) {
                let expected = keys.partition_point(|other| other < &sought);
                assert_eq!(count_before(&keys, |other| other.is_before(&sought)), expected);
                let expected = keys.partition_point(|other| other <= &sought);
                assert_eq!(count_before(&keys, |other| !sought.is_before(other)), expected);
            }
        }
    }
}
