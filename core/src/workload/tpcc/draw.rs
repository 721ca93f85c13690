//! The random strings and numbers of clauses 2.1.6 and 4.3.2.

use super::super::rng::{WorkloadRng, scatter};
use super::Scale;

/// Three-digit numbers become last names, with one syllable for each digit (clause 4.3.2.3).
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// The number of different last names.
pub const LAST_NAMES: u64 = 1_000;
const ALPHANUMERIC: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The constants C of the non-uniform distribution (clause 2.1.6) for one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// For last names in the load.
    last_name_load: u64,
    /// For last names in transactions.
    last_name_run: u64,
    customer: u64,
    item: u64,
}

impl Skew {
    const LAST_NAME_A: u64 = 255;
    const CUSTOMER_A: u64 = 1_023;
    const ITEM_A: u64 = 8_191;
    /// The range of the difference between the two constants for last names (clause 2.1.6.1): from
    /// 65 to 119, except 96 and 112.
    const DELTA_FIRST: u64 = 65;
    const DELTA_LAST: u64 = 119;
    const DELTAS_EXCLUDED: [u64; 2] = [96, 112];

    /// The constants of the database loaded from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut dice = WorkloadRng::new(scatter(seed));
        let last_name_load = dice.between(0, Self::LAST_NAME_A);
        let deltas: Vec<u64> = (Self::DELTA_FIRST..=Self::DELTA_LAST)
            .filter(|delta| !Self::DELTAS_EXCLUDED.contains(delta))
            .collect();
        let delta = deltas[dice.below(deltas.len() as u64) as usize];
        // At least one of the two directions stays within 0 ..= 255.
        let last_name_run = match last_name_load.checked_sub(delta) {
            Some(lower) => lower,
            None => last_name_load + delta,
        };
        let customer = dice.between(0, Self::CUSTOMER_A);
        Self { last_name_load, last_name_run, customer, item: dice.between(0, Self::ITEM_A) }
    }

    /// The number of a last name for the load, for customers after the first thousand.
    pub fn last_name_load(&self, dice: &mut WorkloadRng) -> u64 {
        nurand(dice, Self::LAST_NAME_A, self.last_name_load, 0, LAST_NAMES - 1)
    }

    /// The number of a last name for a transaction, among those of the load.
    pub fn last_name(&self, scale: &Scale, dice: &mut WorkloadRng) -> u64 {
        let last = LAST_NAMES.min(scale.customers.into()) - 1;
        nurand(dice, Self::LAST_NAME_A, self.last_name_run, 0, last)
    }

    /// A customer for a transaction.
    pub fn customer(&self, scale: &Scale, dice: &mut WorkloadRng) -> u32 {
        nurand(dice, Self::CUSTOMER_A, self.customer, 1, scale.customers.into()) as u32
    }

    /// An item for a transaction.
    pub fn item(&self, scale: &Scale, dice: &mut WorkloadRng) -> u32 {
        nurand(dice, Self::ITEM_A, self.item, 1, scale.items.into()) as u32
    }
}

/// NURand(A, x, y) of clause 2.1.6.
fn nurand(dice: &mut WorkloadRng, a: u64, c: u64, first: u64, last: u64) -> u64 {
    let mixed = dice.between(0, a) | dice.between(first, last);
    (mixed + c) % (last - first + 1) + first
}

/// The last name with this number, which must be below [`LAST_NAMES`].
pub fn last_name(number: u64) -> String {
    let digit = |power: u64| SYLLABLES[(number / power % 10) as usize];
    [digit(100), digit(10), digit(1)].concat()
}

/// A random a-string (clause 4.3.2.2): letters and digits.
pub fn text(dice: &mut WorkloadRng, len_min: u64, len_max: u64) -> Vec<u8> {
    let len = dice.between(len_min, len_max) as usize;
    let mut text = Vec::with_capacity(len);
    while text.len() < len {
        // Each draw yields ten characters from 6.4 bits each, because a load creates some gigabytes
        // of text.
        let mut bits = dice.bits();
        for _ in 0..10.min(len - text.len()) {
            text.push(ALPHANUMERIC[(bits % ALPHANUMERIC.len() as u64) as usize]);
            bits /= ALPHANUMERIC.len() as u64;
        }
    }
    text
}

/// A random n-string of clause 4.3.2.2: digits.
pub fn digits(dice: &mut WorkloadRng, len: usize) -> Vec<u8> {
    (0..len).map(|_| b'0' + dice.below(10) as u8).collect()
}

/// `I_DATA` or `S_DATA`: 26 to 50 characters, one in ten with ORIGINAL somewhere in it
/// (clause 4.3.3.1).
pub fn data(dice: &mut WorkloadRng) -> Vec<u8> {
    const ORIGINAL: &[u8] = b"ORIGINAL";
    let mut data = text(dice, 26, 50);
    if dice.percent(10) {
        let start = dice.between(0, (data.len() - ORIGINAL.len()) as u64) as usize;
        data[start..start + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}

/// The numbers from 1 to `count` in random order (Fisher and Yates).
pub fn permutation(dice: &mut WorkloadRng, count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (1..=count).collect();
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, dice.between(0, last as u64) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_those_of_the_specification() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
        assert_eq!(last_name(999), "EINGEINGEING");
    }

    #[test]
    fn the_constants_for_last_names_are_as_far_apart_as_they_must_be() {
        for seed in 0..1_000 {
            let skew = Skew::new(seed);
            let delta = skew.last_name_load.abs_diff(skew.last_name_run);
            assert!((65..=119).contains(&delta) && delta != 96 && delta != 112, "{delta}");
            assert!(skew.last_name_load <= 255 && skew.last_name_run <= 255, "{skew:?}");
        }
    }

    #[test]
    fn non_uniform_numbers_stay_in_bounds_and_are_not_uniform() {
        let (mut dice, skew) = (WorkloadRng::new(1), Skew::new(1));
        let mut counts = vec![0_u32; 100_001];
        for _ in 0..200_000 {
            counts[skew.item(&Scale::FULL, &mut dice) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        // With uniform numbers, about 1 in 60,000 would occur 11 times; NURand prefers some.
        assert!(counts.iter().filter(|count| **count > 10).count() > 100);
        let tiny = Scale { items: 7, customers: 3, ..Scale::TINY };
        for _ in 0..1_000 {
            assert!((1..=7).contains(&skew.item(&tiny, &mut dice)));
            assert!((1..=3).contains(&skew.customer(&tiny, &mut dice)));
            assert!(skew.last_name(&tiny, &mut dice) < 3);
        }
    }

    #[test]
    fn a_permutation_holds_each_number_once_in_another_order() {
        let drawn = permutation(&mut WorkloadRng::new(1), 100);
        let mut sorted = drawn.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=100).collect::<Vec<_>>());
        assert_ne!(sorted, drawn);
        assert_eq!(permutation(&mut WorkloadRng::new(1), 0), []);
    }
}
