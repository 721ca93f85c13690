//! Fits lines and distributions to the sums that nodes measured.

use std::collections::BTreeMap;

use pangea_node::meter::{BUCKETS_PER_DOUBLING, COUNTERS, Sums};
use pangea_sim::predict::Line;
use pangea_sim::predict::costs::{kinds, unit_of};

/// The number of equal fractions into which the fsyncs are divided.
const SHARES: usize = 50;
/// The duration of an fsync in microseconds if there was none: either no record is durable, or no
/// transaction waited.
const FSYNC_US_UNKNOWN: [f64; 1] = [1.0];

/// The sums of all nodes' counters.
#[derive(Debug, Default)]
pub struct Counted {
    kinds: BTreeMap<String, Sums>,
    fsyncs: BTreeMap<u32, u64>,
}

impl Counted {
    /// Adds up the nodes' counters.
    pub fn of(nodes: &[BTreeMap<String, u64>]) -> Self {
        let mut all = Self::default();
        for (name, &value) in nodes.iter().flatten() {
            let parts = name.strip_prefix(COUNTERS).and_then(|name| name.split_once('.'));
            match parts {
                Some(("fsync", bucket)) => {
                    let bucket = bucket.parse().unwrap_or(0);
                    *all.fsyncs.entry(bucket).or_default() += value;
                }
                Some((kind, sum)) => {
                    let sums = all.kinds.entry(kind.to_owned()).or_default();
                    let value = value as f64;
                    match sum {
                        "n" => sums.n += value,
                        "x" => sums.x += value,
                        "y" => sums.y += value,
                        "xx" => sums.xx += value,
                        "xy" => sums.xy += value,
                        "yy" => sums.yy += value,
                        _ => {}
                    }
                }
                None => {}
            }
        }
        all
    }

    /// Returns the total CPU time of all kinds, in nanoseconds.
    pub fn ns(&self) -> f64 {
        self.kinds.values().map(|sums| sums.y).sum()
    }

    /// Fits a line for each kind that a protocol with these messages has, and for the other costs
    /// of a call. A kind that did not occur gets the line of the nearest kind that did.
    pub fn lines(
        &self,
        messages: &'static [&'static str],
        per_call_us: &[(&str, f64)],
        calls: u64,
    ) -> BTreeMap<String, Line> {
        let mut lines = BTreeMap::new();
        for kind in kinds(messages) {
            let near = [kind, "work_order", "work_execute", "timer", "turn"];
            let same = |other: &&str| *other == kind || unit_of(other) == unit_of(kind);
            let mut found = near.iter().filter(|it| same(it)).filter_map(|it| self.kinds.get(*it));
            let sums = found.find(|sums| sums.n > 0.0).or(self.kinds.get("timer"));
            let mut line = sums.map(line).unwrap_or_default();
            if self.kinds.get(kind).is_none_or(|sums| sums.n == 0.0) {
                (line.samples, line.r2) = (0, 0.0);
            }
            if let Some((_, us)) = per_call_us.iter().find(|(name, _)| *name == kind) {
                // If everything is attributed to a kind, the rest is zero and must not be negative.
                let per_unit_ns = us.max(1e-3) * 1e3;
                line = Line { per_unit_ns, samples: calls, mean_size: 1.0, ..Line::default() };
            }
            if line.fixed_ns + line.per_unit_ns < 1.0 {
                line.fixed_ns = 1.0;
            }
            lines.insert(kind.to_owned(), line);
        }
        lines
    }

    /// Returns the duration of fsyncs in microseconds: the mean of each fraction of them, from the
    /// shortest to the longest. Quantiles are not suitable: a single slow fsync would define the
    /// end of the last step, and a twentieth of all draws would be affected by interpolation
    /// towards it.
    pub fn fsync_us(&self) -> Vec<f64> {
        let all: u64 = self.fsyncs.values().sum();
        if all == 0 {
            return FSYNC_US_UNKNOWN.to_vec();
        }
        let middle = |bucket: u32| ((f64::from(bucket) + 0.5) / BUCKETS_PER_DOUBLING).exp2();
        let share = all as f64 / SHARES as f64;
        let (mut shares, mut sum, mut room) = (Vec::with_capacity(SHARES), 0.0, share);
        for (bucket, count) in &self.fsyncs {
            let mut left = *count as f64;
            while left > room && shares.len() < SHARES - 1 {
                shares.push((sum + room * middle(*bucket)) / share);
                left -= room;
                (sum, room) = (0.0, share);
            }
            sum += left * middle(*bucket);
            room -= left;
        }
        // The remainder is the last fraction, up to rounding.
        shares.push(sum / (share - room));
        shares.into_iter().map(|us| (us * 10.0).round() / 10.0).collect()
    }
}

/// Fits a line by least squares, with no negative coefficient. It always goes through the mean, so
/// that the total of the line is the measured total.
pub fn line(sums: &Sums) -> Line {
    let Sums { n, x, y, xx, xy, yy } = *sums;
    if n == 0.0 {
        return Line::default();
    }
    let (mean_x, mean_y) = (x / n, y / n);
    let spread = xx / n - mean_x * mean_x;
    let has_spread = spread > 1e-9 * mean_x * mean_x && spread > 0.0;
    let slope = if has_spread { (xy / n - mean_x * mean_y) / spread } else { 0.0 };
    let steepest = if mean_x > 0.0 { mean_y / mean_x } else { 0.0 };
    let per_unit_ns = slope.clamp(0.0, steepest);
    let fixed_ns = (mean_y - per_unit_ns * mean_x).max(0.0);
    // The squares of the residuals and of the scatter, in square microseconds.
    let scatter = yy / n - (mean_y / 1e3).powi(2);
    let explained = per_unit_ns * (2.0 * (xy / n - mean_x * mean_y) - per_unit_ns * spread) / 1e6;
    let r2 = if scatter > 0.0 { (explained / scatter).clamp(0.0, 1.0) } else { 0.0 };
    Line { fixed_ns, per_unit_ns, samples: n as u64, mean_size: mean_x, r2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(points: &[(f64, f64)]) -> Sums {
        let mut sums = Sums::default();
        points.iter().for_each(|&(x, us)| sums.add(1.0, x, us * 1e3));
        sums
    }

    fn is_near(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 1e-6 * expected.abs().max(1.0)
    }

    #[test]
    fn a_line_is_found_again_and_explains_everything() {
        let points: Vec<(f64, f64)> =
            (0..50).map(|x| (f64::from(x), 7.0 + 3.0 * f64::from(x))).collect();
        let line = line(&sums(&points));
        assert!(is_near(line.fixed_ns, 7_000.0) && is_near(line.per_unit_ns, 3_000.0), "{line:?}");
        assert!(is_near(line.r2, 1.0) && line.samples == 50 && is_near(line.mean_size, 24.5));
    }

    #[test]
    fn scatter_lowers_what_is_explained_and_moves_no_total() {
        let mut rng = fastrand::Rng::with_seed(3);
        let points: Vec<(f64, f64)> = (0..2_000)
            .map(|_| {
                let x = rng.f64() * 100.0;
                (x, 50.0 + 2.0 * x + rng.f64() * 200.0)
            })
            .collect();
        let sums = sums(&points);
        let line = line(&sums);
        assert!((0.3..0.7).contains(&line.r2), "{line:?}");
        assert!((1.8..2.2).contains(&(line.per_unit_ns / 1e3)), "{line:?}");
        assert!(is_near(line.cost_ns(sums.n, sums.x), sums.y), "the total stays");
    }

    #[test]
    fn no_part_of_a_line_is_negative_and_the_total_stays() {
        // The first decreases with size; the second would have a negative intercept.
        for points in
            [[(1.0, 9.0), (2.0, 5.0), (3.0, 1.0)], [(10.0, 1.0), (20.0, 90.0), (30.0, 200.0)]]
        {
            let sums = sums(&points);
            let line = line(&sums);
            assert!(line.fixed_ns >= 0.0 && line.per_unit_ns >= 0.0, "{line:?}");
            assert!(is_near(line.cost_ns(sums.n, sums.x), sums.y), "{line:?}");
        }
        assert_eq!(line(&Sums::default()), Line::default());
        assert_eq!(line(&sums(&[(0.0, 4.0), (0.0, 6.0)])).fixed_ns, 5_000.0);
    }

    #[test]
    fn shares_of_fsyncs_ascend_and_their_mean_is_that_of_all() {
        let bucket = |us: f64| (us.log2() * BUCKETS_PER_DOUBLING) as u32;
        let of = |counts: &[(f64, u64)]| {
            let counters = counts.iter().map(|(us, count)| (bucket(*us), count));
            let named = counters.map(|(bucket, n)| (format!("{COUNTERS}fsync.{bucket}"), *n));
            let us = Counted::of(&[named.collect()]).fsync_us();
            assert!(us.is_sorted() && us.len() == SHARES, "{us:?}");
            let mean = us.iter().sum::<f64>() / SHARES as f64;
            let sum: f64 = counts.iter().map(|(us, n)| us * *n as f64).sum();
            let expected = sum / counts.iter().map(|(_, n)| *n as f64).sum::<f64>();
            assert!((mean / expected - 1.0).abs() < 0.1, "{mean} and {expected}: {us:?}");
            us
        };
        let us = of(&[(100.0, 90), (1_000.0, 10)]);
        assert!((90.0..110.0).contains(&us[44]) && (900.0..1_100.0).contains(&us[45]), "{us:?}");
        // One of five thousand took 193 ms. With quantiles, that would have applied to a twentieth
        // of all draws.
        let us = of(&[(100.0, 3_000), (250.0, 1_999), (193_000.0, 1)]);
        assert!(us[SHARES - 1] < 2_500.0 && us[SHARES - 2] < 300.0, "{us:?}");
        of(&[(100.0, 1)]);
        of(&[(100.0, 7), (150.0, 3), (9_000.0, 1)]);
        assert_eq!(Counted::default().fsync_us(), FSYNC_US_UNKNOWN);
    }
}
