//! A random number generator whose sequence never changes.
//!
//! A load draws its rows from a seed in its arguments, and a replica may repeat it from its log
//! after an upgrade. The generator is therefore defined here and must not change: SplitMix64
//! (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).

/// A generator with 64 bits of state.
#[derive(Clone, Debug)]
pub struct WorkloadRng {
    state: u64,
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number. A bijection.
pub fn scatter(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl WorkloadRng {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Creates one of many generators that share a seed. Different numbers give different
    /// sequences.
    pub fn of(seed: u64, numbers: &[u64]) -> Self {
        let fold = |state: u64, number: &u64| scatter(state.wrapping_add(GAMMA) ^ scatter(*number));
        Self::new(numbers.iter().fold(seed, fold))
    }

    /// Draws 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        scatter(self.state)
    }

    /// Draws a number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "no number is below 0");
        // The bias of the multiplication is below end / 2^64, which no run can notice.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Draws a number from `first` to `last`, both included.
    ///
    /// # Panics
    /// If `last` is below `first`.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        assert!(first <= last, "the interval is empty");
        first + self.below(last - first + 1)
    }

    /// Draws true with a probability of `percent` percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Draws a number in `0.0 .. 1.0`.
    pub fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1_u64 << 53) as f64;
        (self.bits() >> 11) as f64 / STEPS
    }

    /// Appends `len` random bytes.
    pub fn bytes(&mut self, len: usize, out: &mut Vec<u8>) {
        let end = out.len() + len;
        while out.len() < end {
            let word = self.bits().to_le_bytes();
            let wanted = word.len().min(end - out.len());
            out.extend_from_slice(&word[..wanted]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first outputs of SplitMix64 for seed 1234567, from the reference implementation.
        let mut dice = WorkloadRng::new(1_234_567);
        let drawn = [dice.bits(), dice.bits(), dice.bits()];
        let reference =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(drawn, reference);
    }

    #[test]
    fn numbers_stay_in_their_interval_and_reach_both_ends() {
        let mut dice = WorkloadRng::new(1);
        let drawn: Vec<u64> = (0..1_000).map(|_| dice.between(3, 7)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&7)));
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&dice.unit())));
        assert_eq!(dice.between(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn things_that_share_a_seed_have_sequences_of_their_own() {
        let first = |numbers: &[u64]| WorkloadRng::of(7, numbers).bits();
        let all = [first(&[]), first(&[0]), first(&[1]), first(&[0, 0]), first(&[0, 1])];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "sequence {i} equals another");
        }
    }

    #[test]
    fn random_bytes_come_in_any_length() {
        let mut out = vec![9];
        WorkloadRng::new(5).bytes(13, &mut out);
        assert_eq!(out.len(), 14);
        assert_eq!(out[1..9], WorkloadRng::new(5).bits().to_le_bytes());
    }
}
