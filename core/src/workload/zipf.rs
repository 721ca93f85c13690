//! Random numbers that follow Zipf's law, for any exponent from 0 up.
//!
//! The probability of rank `k` of `1 ..= n` is proportional to `k^-theta`. The usual YCSB generator
//! (Gray et al., 1994) is an approximation that divides by `1 - theta` and so needs an exponent
//! below 1; the measurements here use exponents up to 1.7. This generator is exact, needs no table,
//! and takes about one draw for each number. It uses rejection-inversion (Hörmann and Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", 1996).
//!
//! The idea: the curve `x^-theta` over `k - 1/2 .. k + 1/2` has at least the area of the bar of
//! `k`, because it is convex. A point under the curve is drawn by inverting the integral. It is
//! rounded to a rank, and rejected if it is in the excess area of that rank.

use super::rng::WorkloadRng;

/// Draws ranks according to Zipf's law.
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: u64,
    theta: f64,
    /// The integral at the left end of the first bar, which is truncated to its own area.
    area_first: f64,
    /// The integral at the right end of the last bar.
    area_last: f64,
}

impl Zipf {
    /// Creates a generator of ranks below `ranks`. The probability of rank `k` (from 0) is
    /// proportional to `(k + 1)^-theta`. Exponent 0 is uniform.
    ///
    /// # Panics
    /// If there are no ranks or more than 2^40, or the exponent is not in `0.0 ..= 10.0`.
    pub fn new(ranks: u64, theta: f64) -> Self {
        assert!((1..=1 << 40).contains(&ranks), "ranks out of bounds");
        assert!((0.0..=10.0).contains(&theta), "exponent out of bounds");
        let area_first = integral(1.5, theta) - 1.0;
        Self { ranks, theta, area_first, area_last: integral(ranks as f64 + 0.5, theta) }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Draws a rank, from 0.
    pub fn draw(&self, dice: &mut WorkloadRng) -> u64 {
        if self.theta == 0.0 {
            return dice.below(self.ranks);
        }
        loop {
            let area = self.area_last + dice.unit() * (self.area_first - self.area_last);
            let x = integral_inverse(area, self.theta);
            let rank = (x + 0.5).floor().clamp(1.0, self.ranks as f64);
            // The bar of a rank ends where its curve does, and its height is that of the rank.
            if area >= integral(rank + 0.5, self.theta) - rank.powf(-self.theta) {
                return rank as u64 - 1;
            }
        }
    }
}

/// An integral of `x^-theta`: `(x^(1 - theta) - 1) / (1 - theta)`, or `ln x` if theta is 1.
fn integral(x: f64, theta: f64) -> f64 {
    let log = x.ln();
    expm1_ratio((1.0 - theta) * log) * log
}

/// The inverse of [`integral`].
fn integral_inverse(area: f64, theta: f64) -> f64 {
    // Rounding may leave the image of the integral, whose lower end is -1 / (1 - theta).
    let t = (area * (1.0 - theta)).max(-1.0);
    (ln1p_ratio(t) * area).exp()
}

/// `(e^t - 1) / t`, which is 1 at 0.
fn expm1_ratio(t: f64) -> f64 {
    if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 }
}

/// `ln(1 + t) / t`, which is 1 at 0.
fn ln1p_ratio(t: f64) -> f64 {
    if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest of `|drawn - expected| / standard deviation` over ranks and the tail.
    fn worst_deviation(ranks: u64, theta: f64, draws: u64) -> f64 {
        const SHOWN: usize = 20;
        let zipf = Zipf::new(ranks, theta);
        let mut dice = WorkloadRng::of(42, &[ranks, theta.to_bits()]);
        let mut counts = [0_u64; SHOWN + 1];
        for _ in 0..draws {
            let rank = zipf.draw(&mut dice);
            assert!(rank < ranks);
            counts[SHOWN.min(rank as usize)] += 1;
        }
        let weight = |rank: u64| (rank as f64 + 1.0).powf(-theta);
        let total: f64 = (0..ranks).map(weight).sum();
        let head: Vec<f64> = (0..SHOWN as u64)
            .map(|rank| if rank < ranks { weight(rank) / total } else { 0.0 })
            .collect();
        let tail = 1.0 - head.iter().sum::<f64>();
        let expected = head.into_iter().chain([tail.max(0.0)]);
        let deviation = |(count, p): (&u64, f64)| {
            let spread = (draws as f64 * p * (1.0 - p)).sqrt().max(1.0);
            (*count as f64 - draws as f64 * p).abs() / spread
        };
        counts.iter().zip(expected).map(deviation).fold(0.0, f64::max)
    }

    #[test]
    fn frequencies_are_those_of_the_law_below_at_and_above_exponent_one() {
        for theta in [0.0, 0.3, 0.9, 0.99, 1.0, 1.000_000_001, 1.2, 1.7, 3.0] {
            for ranks in [1, 2, 5, 1_000, 100_000] {
                let worst = worst_deviation(ranks, theta, 100_000);
                // Among about 900 comparisons, the probability that one exceeds 4.5 deviations is 1
                // in 150.
                assert!(worst < 4.5, "theta {theta}, {ranks} ranks: off by {worst} deviations");
            }
        }
    }

    #[test]
    fn a_wrong_exponent_would_be_noticed() {
        let near = Zipf::new(1_000, 0.95);
        let mut dice = WorkloadRng::new(1);
        let first = (0..100_000).filter(|_| near.draw(&mut dice) == 0).count() as f64;
        let weight_sum: f64 = (1..=1_000).map(|k: u32| f64::from(k).powf(-0.9)).sum();
        let expected = 100_000.0 / weight_sum;
        assert!((first - expected).abs() > 10.0 * expected.sqrt());
    }

    #[test]
    fn the_largest_key_spaces_work() {
        for theta in [0.0, 0.5, 1.0, 1.7] {
            let zipf = Zipf::new(1 << 40, theta);
            let mut dice = WorkloadRng::new(3);
            assert!((0..1_000).all(|_| zipf.draw(&mut dice) < 1 << 40));
        }
    }
}
