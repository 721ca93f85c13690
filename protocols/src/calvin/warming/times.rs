//! The time that a node takes to fetch requested rows (§4.1).

/// Four for each doubling, from 16 us to a second.
const BUCKETS: usize = 64;
const LEAST_LOG: u32 = 4;
/// When this number of times is recorded, each counts half from then on, because disks change.
const TIMES_MAX: u32 = 1_024;

/// A histogram of past times; the width of a bucket is about a fifth of its times.
#[derive(Clone, Debug)]
pub(super) struct Times {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for Times {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl Times {
    /// Records a time, in microseconds.
    pub fn add(&mut self, us: u64) {
        self.counts[bucket_of(us)] += 1;
        self.total += 1;
        if self.total >= TIMES_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// An upper bound in microseconds for `percent` of the recorded times; `None` if there are
    /// none.
    pub fn within(&self, percent: u64) -> Option<u64> {
        let needed = (u64::from(self.total) * percent).div_ceil(100);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= needed
        });
        bucket.filter(|_| self.total > 0).map(upper_us)
    }
}

fn bucket_of(us: u64) -> usize {
    let us = us.max(1 << LEAST_LOG);
    let log = us.ilog2();
    let quarter = us >> (log - 2) & 3;
    ((u64::from(log - LEAST_LOG) * 4 + quarter) as usize).min(BUCKETS - 1)
}

/// The upper end of a bucket, in microseconds.
fn upper_us(bucket: usize) -> u64 {
    let (log, quarter) = (bucket / 4 + LEAST_LOG as usize, bucket as u64 % 4);
    (5 + quarter) << (log - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calvin §4.1: the latency of the disk is predicted.
    #[test]
    fn a_quantile_is_no_less_than_the_times_and_not_much_more() {
        for us in [1, 16, 100, 999, 4_000, 40_000, 900_000] {
            let mut times = Times::default();
            assert_eq!(times.within(99), None);
            times.add(us);
            let within = times.within(99).unwrap();
            assert!(within > us && within <= us.max(16) * 5 / 4 + 1, "{us}: {within}");
        }
    }

    /// Calvin §4.1: the predicted latency is long enough for 99 of 100 transactions that need the
    /// disk.
    #[test]
    fn of_a_hundred_times_the_longest_alone_is_beyond_it_and_old_ones_are_forgotten() {
        let mut times = Times::default();
        (0..99).for_each(|_| times.add(1_000));
        times.add(500_000);
        assert!(times.within(99).unwrap() < 2_000 && times.within(100).unwrap() > 500_000);
        (0..20_000).for_each(|_| times.add(50));
        assert!(times.within(100).unwrap() < 100);
    }
}
