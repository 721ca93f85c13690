//! Random draws; each component of the world has a generator of its own.
//!
//! A generator is forked from the seed by the component's name. A component that makes one more
//! draw therefore does not change the draws of the others. All draws are integers, which are the
//! same on every machine.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The random generator of one component.
#[derive(Clone, Debug)]
pub struct SimRng(fastrand::Rng);

impl SimRng {
    /// Returns the generator of the component called `name`, the `index`-th of its kind.
    pub fn fork(seed: u64, name: &str, index: u64) -> Self {
        let kind = xxh3_64_with_seed(name.as_bytes(), seed);
        Self(fastrand::Rng::with_seed(xxh3_64_with_seed(&index.to_le_bytes(), kind)))
    }

    /// Draws a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range to draw from");
        self.0.u64(low..=high)
    }

    /// Draws an index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        assert!(count > 0, "nothing to draw from");
        self.0.usize(..count)
    }

    /// Returns true with a probability of `per_mille` / 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.0.u64(..1_000) < per_mille
    }

    /// Draws a delay of about `typical` with a heavy tail: mostly at most a quarter longer, one in
    /// a hundred up to 32 times as long.
    pub fn delay(&mut self, typical: u64) -> u64 {
        let usual = typical + self.0.u64(..=typical / 4);
        if self.chance(10) { usual << self.0.u64(..=5) } else { usual }
    }

    /// The underlying generator, for code that takes one.
    pub fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_repeatable_and_differ_by_name_and_index() {
        let draw = |seed, name, index| SimRng::fork(seed, name, index).between(0, u64::MAX);
        assert_eq!(draw(1, "disk", 0), draw(1, "disk", 0));
        assert_ne!(draw(1, "disk", 0), draw(2, "disk", 0));
        assert_ne!(draw(1, "disk", 0), draw(1, "disk", 1));
        assert_ne!(draw(1, "disk", 0), draw(1, "clock", 0));
    }

    #[test]
    fn delays_are_near_what_is_typical_and_sometimes_far_from_it() {
        let mut dice = SimRng::fork(7, "network", 0);
        let delays: Vec<u64> = (0..10_000).map(|_| dice.delay(100)).collect();
        assert!(delays.iter().all(|&us| us >= 100));
        let far = delays.iter().filter(|&&us| us > 125).count();
        assert!((20..200).contains(&far), "{far} of 10,000 in the tail");
    }
}
