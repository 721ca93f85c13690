//! Pending events, ordered by time and then by the order in which they were pushed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use pangea_core::time::Timestamp;

/// The pending events of the world.
pub(super) struct Queue<E> {
    heap: BinaryHeap<Due<E>>,
    sequence: u64,
}

struct Due<E> {
    at: Timestamp,
    order: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0 }
    }

    pub(super) fn push(&mut self, at: Timestamp, event: E) {
        self.sequence += 1;
        self.heap.push(Due { at, order: self.sequence, event });
    }

    pub(super) fn pop(&mut self) -> Option<(Timestamp, E)> {
        self.heap.pop().map(|due| (due.at, due.event))
    }
}

impl<E> Due<E> {
    fn rank(&self) -> (Timestamp, u64) {
        (self.at, self.order)
    }
}

// The order is reversed because `BinaryHeap` pops its greatest element first.
impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<E> Eq for Due<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_in_the_order_of_asking() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            queue.push(Timestamp::from_us(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
    }
}
