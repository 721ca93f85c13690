//! Timers. Each is set for at most one time.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::time::Timestamp;

/// The timers that are set.
#[derive(Debug)]
pub(super) struct Timers<T> {
    by_time: BTreeSet<(Timestamp, T)>,
    by_timer: BTreeMap<T, Timestamp>,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), by_timer: BTreeMap::new() }
    }
}

impl<T: Copy + Ord> Timers<T> {
    /// Sets a timer, replacing an earlier setting.
    pub fn set(&mut self, timer: T, at: Timestamp) {
        self.clear(timer);
        self.by_timer.insert(timer, at);
        self.by_time.insert((at, timer));
    }

    /// Clears a timer, if it is set.
    pub fn clear(&mut self, timer: T) {
        if let Some(at) = self.by_timer.remove(&timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    /// Removes and returns the next timer that is due.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<T> {
        let &(at, timer) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }

    /// The time of the next timer.
    pub fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Timestamp {
        Timestamp::from_us(us)
    }

    #[test]
    fn timers_come_in_the_order_of_their_times_and_each_once() {
        let mut timers = Timers::default();
        timers.set('a', at(30));
        timers.set('b', at(10));
        timers.set('c', at(20));
        timers.set('b', at(40));
        timers.clear('c');
        timers.clear('x');
        assert_eq!(timers.next(), Some(at(30)));
        assert_eq!(timers.pop_due(at(29)), None);
        assert_eq!(timers.pop_due(at(50)), Some('a'));
        assert_eq!(timers.pop_due(at(50)), Some('b'));
        assert_eq!(timers.pop_due(at(50)), None);
        assert_eq!(timers.next(), None);
    }
}
