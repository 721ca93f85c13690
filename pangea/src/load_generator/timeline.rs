//! Commits over time: the number in each step of the measured time, and the longest pause.

use std::time::Duration;

/// The initial length of a step.
const STEP: Duration = Duration::from_millis(100);
/// The largest number of steps: ten minutes of the initial length. Longer runs have longer steps.
const STEPS_MAX: usize = 6_000;

/// The times of commits by region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The length of a step.
    pub step: Duration,
    regions: Vec<Commits>,
}

/// The commits of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Commits {
    by_step: Vec<u32>,
    last: Duration,
    longest_pause: Duration,
}

impl Timeline {
    /// Creates an empty timeline.
    pub fn new(regions: usize) -> Self {
        Self { step: STEP, regions: vec![Commits::default(); regions] }
    }

    /// Counts a commit in a region, at this time since the beginning.
    pub fn add(&mut self, region: usize, at: Duration) {
        while self.step_of(at) >= STEPS_MAX {
            self.widen();
        }
        let step = self.step_of(at);
        let commits = &mut self.regions[region];
        if commits.by_step.len() <= step {
            commits.by_step.resize(step + 1, 0);
        }
        commits.by_step[step] += 1;
        // Commits are reported slightly out of order.
        commits.longest_pause = commits.longest_pause.max(at.saturating_sub(commits.last));
        commits.last = commits.last.max(at);
    }

    /// Returns the commits of a region in each whole step until `end`.
    pub fn commits(&self, region: usize, end: Duration) -> Vec<u32> {
        let mut by_step = self.regions[region].by_step.clone();
        by_step.resize(self.step_of(end), 0);
        by_step
    }

    /// Returns the longest time until `end` in which a region committed no transaction.
    pub fn longest_pause(&self, region: usize, end: Duration) -> Duration {
        let commits = &self.regions[region];
        commits.longest_pause.max(end.saturating_sub(commits.last))
    }

    fn step_of(&self, at: Duration) -> usize {
        (at.as_micros() / self.step.as_micros()) as usize
    }

    /// Merges pairs of steps.
    fn widen(&mut self) {
        self.step *= 2;
        for commits in &mut self.regions {
            commits.by_step = commits.by_step.chunks(2).map(|two| two.iter().sum()).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_reach_from_the_beginning_to_the_end() {
        let mut timeline = Timeline::new(2);
        for at in [30, 130, 150, 900, 880, 1_000] {
            timeline.add(0, ms(at));
        }
        assert_eq!(timeline.commits(0, ms(1_200)), [1, 2, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0]);
        assert_eq!(timeline.longest_pause(0, ms(1_200)), ms(750));
        assert_eq!(timeline.longest_pause(0, ms(3_000)), ms(2_000), "the end counts");
        assert_eq!(timeline.longest_pause(1, ms(1_200)), ms(1_200), "nothing at all");
        timeline.add(1, ms(700));
        assert_eq!(timeline.longest_pause(1, ms(1_200)), ms(700), "so does the beginning");
    }

    #[test]
    fn a_long_run_has_longer_steps_and_loses_none() {
        let mut timeline = Timeline::new(1);
        let end = STEP * STEPS_MAX as u32 * 3;
        for second in 0..end.as_secs() {
            timeline.add(0, Duration::from_secs(second));
        }
        assert_eq!(timeline.step, STEP * 4);
        let commits = timeline.commits(0, end);
        assert!(commits.len() <= STEPS_MAX);
        assert_eq!(u64::from(commits.iter().sum::<u32>()), end.as_secs());
    }
}
