//! The recovery of throughput after a kill, computed from the times of acknowledgements.
//!
//! Only commits of unaffected clients count: clients whose last commit before the kill was at a
//! surviving node, acknowledged by any surviving node. Therefore clients that move away from the
//! killed node cannot compensate for slow ones.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::Ack;

/// The length of the buckets in which commits are counted.
pub const BUCKET: Duration = Duration::from_millis(250);
/// The time before the kill over which the rate is measured.
const BEFORE: Duration = Duration::from_secs(3);
/// The time limit for throughput to recover.
pub const BACK_WITHIN: Duration = Duration::from_secs(2);
/// The time after [`BACK_WITHIN`] over which the average rate must be sustained, before the node is
/// restarted.
const STAYS: Duration = Duration::from_secs(2);

/// The effect of a kill on the surviving nodes.
#[derive(Debug, PartialEq)]
pub struct Recovery {
    /// The mean number of commits in a bucket before the kill.
    pub before: f64,
    /// The longest time without a commit between the kill and [`BACK_WITHIN`].
    pub gap: Duration,
    /// The time from the kill to the start of the first bucket after the gap that had half of the
    /// rate.
    pub back_after: Option<Duration>,
    /// The mean number of commits in a bucket after [`BACK_WITHIN`].
    pub later: f64,
}

impl Recovery {
    /// Analyzes all commits around the kill of `node`.
    pub fn measure(acks: &[Ack], node: usize, killed_at: Duration) -> Self {
        let mut place = BTreeMap::new();
        let mut sorted = acks.to_vec();
        sorted.sort_by_key(|ack| ack.at);
        for ack in sorted.iter().filter(|ack| ack.at < killed_at) {
            place.insert(ack.client, ack.node);
        }
        let counts = |ack: &&Ack| {
            ack.node != node && place.get(&ack.client).is_some_and(|place| *place != node)
        };
        let times: Vec<Duration> = sorted.iter().filter(counts).map(|ack| ack.at).collect();
        let count = |from: Duration, len: Duration| {
            times.iter().filter(|at| (from..from + len).contains(at)).count() as f64
        };
        let per_bucket = |from, len: Duration| count(from, len) / len.div_duration_f64(BUCKET);
        let before = per_bucket(killed_at.saturating_sub(BEFORE), BEFORE.min(killed_at));
        let deadline = killed_at + BACK_WITHIN;
        let (gap, resumed) = longest_gap(&times, killed_at, deadline);
        // A pause shorter than a bucket is not an interruption of throughput.
        let resumed = if gap < BUCKET { killed_at } else { resumed };
        // Transactions decided before the kill are still acknowledged right after it. Only commits
        // after the gap show that the cluster continues.
        let buckets = (0u32..).map(|i| resumed + BUCKET * i);
        let mut buckets = buckets.take_while(|start| *start + BUCKET <= deadline);
        let back = buckets.find(|start| before > 0.0 && count(*start, BUCKET) >= before / 2.0);
        let later = per_bucket(deadline, STAYS);
        Self { before, gap, back_after: back.map(|at| at - killed_at), later }
    }

    /// Returns whether throughput recovered in time and was sustained.
    pub fn is_in_time(&self) -> bool {
        self.back_after.is_some() && self.later >= self.before / 2.0
    }
}

/// Returns the longest interval without any of `times` between `from` and `until`, and its end.
fn longest_gap(times: &[Duration], from: Duration, until: Duration) -> (Duration, Duration) {
    let mut ends: Vec<Duration> = vec![from];
    ends.extend(times.iter().filter(|at| (from..until).contains(at)));
    ends.push(until);
    let gaps = ends.windows(2).map(|pair| (pair[1] - pair[0], pair[1]));
    gaps.max_by_key(|(gap, _)| *gap).expect("there are two ends")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED_AT: Duration = Duration::from_secs(10);

    /// Generates a commit each 10 ms, alternately at nodes 0 and 1, except for the pause after the
    /// kill of node 2. The commits of client 2 are at node 2 before the kill, and at node 0
    /// afterwards.
    fn acks(paused_ms: u64, slower: u64) -> Vec<Ack> {
        let mut acks = Vec::new();
        for i in 0..2_000u64 {
            let at = Duration::from_millis(i * 10);
            let is_after = at >= KILLED_AT;
            let moved = if is_after { 0 } else { 2 };
            acks.push(Ack { at, client: 2, node: moved });
            let is_paused = is_after && at < KILLED_AT + Duration::from_millis(paused_ms);
            if !is_paused && (!is_after || i % slower == 0) {
                let client = (i % 2) as i32;
                acks.push(Ack { at, client, node: client as usize });
            }
        }
        acks
    }

    fn measure(paused_ms: u64, slower: u64) -> Recovery {
        Recovery::measure(&acks(paused_ms, slower), 2, KILLED_AT)
    }

    #[test]
    fn a_short_gap_is_in_time_and_a_long_one_is_not() {
        let recovery = measure(700, 1);
        assert_eq!((recovery.before, recovery.later), (25.0, 25.0));
        assert_eq!(recovery.gap, Duration::from_millis(700));
        assert_eq!(recovery.back_after, Some(Duration::from_millis(700)));
        assert!(recovery.is_in_time());
        assert_eq!(measure(1_900, 1).back_after, None, "less than a bucket of the time is left");
        assert!(!measure(1_900, 1).is_in_time());
        assert_eq!(measure(5_000, 1).gap, BACK_WITHIN);
        assert!(!measure(5_000, 1).is_in_time());
    }

    #[test]
    fn half_of_the_rate_is_enough_and_a_third_is_not() {
        assert!(measure(300, 2).is_in_time());
        let slow = measure(300, 3);
        assert!(!slow.is_in_time() && slow.back_after.is_none(), "{slow:?}");
    }

    #[test]
    fn clients_of_the_dead_node_do_not_count() {
        let only_moved: Vec<Ack> =
            acks(0, 1).into_iter().filter(|ack| ack.client == 2 || ack.at < KILLED_AT).collect();
        let recovery = Recovery::measure(&only_moved, 2, KILLED_AT);
        assert_eq!((recovery.before, recovery.later), (25.0, 0.0));
        assert!(!recovery.is_in_time());
    }

    #[test]
    fn nothing_before_is_no_throughput_to_come_back_to() {
        let recovery = Recovery::measure(&[], 2, KILLED_AT);
        assert_eq!((recovery.before, recovery.back_after), (0.0, None));
        assert!(!recovery.is_in_time());
    }
}
