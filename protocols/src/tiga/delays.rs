//! One-way delays and the difference of clocks, measured together from ordinary messages (§3.1).
//!
//! A sender writes its clock's reading into its message. The receiver subtracts it from its own:
//! the time that the message took, and the difference of both clocks. That sum is what a stamp
//! needs to be in the future of the receiver's clock when the transaction arrives. The receiver
//! tells the sender.
//!
//! On the fast path a transaction has to arrive in time, so the longest delay of late counts. On
//! the other path a leader raises the stamp of a transaction that is a little late, and nobody
//! waits longer for it than if it had come in time. A stamp that is too far ahead would make it
//! wait. So the shortest delay counts.

use std::collections::VecDeque;

/// The number of samples that are kept of each replica.
const SAMPLES: usize = 16;

/// The delays that this replica has measured and was told of, in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    /// The last samples of messages from each replica.
    measured: Vec<VecDeque<i64>>,
    /// How long messages to each replica take, as that replica has measured it.
    told: Vec<Option<i64>>,
}

impl Delays {
    pub(super) fn new(node_count: usize) -> Self {
        Self { measured: vec![VecDeque::new(); node_count], told: vec![None; node_count] }
    }

    /// A message arrived from a replica whose clock read `sent`.
    pub(super) fn note_arrival(&mut self, from: usize, sent: u64, now: u64) {
        let samples = &mut self.measured[from];
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(now.wrapping_sub(sent) as i64);
    }

    /// A replica has measured messages of this one.
    pub(super) fn note_told(&mut self, from: usize, delay: i64) {
        self.told[from] = Some(delay);
    }

    /// The largest of the last samples of messages from a replica.
    pub(super) fn longest(&self, from: usize) -> Option<i64> {
        self.measured[from].iter().copied().max()
    }

    /// The least of the last samples.
    pub(super) fn shortest(&self, from: usize) -> Option<i64> {
        self.measured[from].iter().copied().min()
    }

    /// How long messages from a replica take, as stamps need it.
    pub(super) fn of(&self, from: usize, is_fast: bool) -> Option<i64> {
        if is_fast { self.longest(from) } else { self.shortest(from) }
    }

    /// How long a message to a replica takes, by both clocks.
    pub(super) fn to(&self, node: usize) -> Option<i64> {
        self.told[node]
    }

    /// This node's clock has jumped forward by this much: all messages may have taken longer.
    pub(super) fn postpone(&mut self, us: i64) {
        let samples = self.measured.iter_mut().flatten();
        samples.for_each(|sample| *sample = sample.saturating_add(us));
    }

    /// The connection to a replica is new: its clock may be another one.
    pub(super) fn forget(&mut self, node: usize) {
        self.measured[node].clear();
        self.told[node] = None;
    }
}

/// A delay as a number without a sign. [`decode_delay`] is the inverse.
pub(super) fn encode_delay(delay: Option<i64>) -> u64 {
    delay.map_or(0, |delay| ((delay << 1) ^ (delay >> 63)) as u64 + 1)
}

/// The delay that [`encode_delay`] encoded.
pub(super) fn decode_delay(encoded: u64) -> Option<i64> {
    let encoded = encoded.checked_sub(1)?;
    Some((encoded >> 1) as i64 ^ -((encoded & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_survives_its_encoding() {
        for delay in [None, Some(0), Some(-1), Some(1), Some(1 << 50), Some(-1 << 50)] {
            assert_eq!(decode_delay(encode_delay(delay)), delay);
        }
    }

    #[test]
    fn the_last_samples_count() {
        let mut delays = Delays::new(2);
        assert_eq!((delays.longest(1), delays.shortest(1), delays.to(1)), (None, None, None));
        delays.note_arrival(1, 900, 1_000);
        delays.note_arrival(1, 960, 1_000);
        assert_eq!((delays.longest(1), delays.shortest(1)), (Some(100), Some(40)));
        for _ in 0..SAMPLES {
            delays.note_arrival(1, 1_070, 1_000);
        }
        assert_eq!(delays.longest(1), Some(-70), "its clock is ahead");
        delays.note_told(1, -5);
        assert_eq!(delays.to(1), Some(-5));
        delays.forget(1);
        assert_eq!((delays.longest(1), delays.shortest(1), delays.to(1)), (None, None, None));
    }
}
