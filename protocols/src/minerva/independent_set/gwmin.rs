//! GWMIN (Sakai, Togasaki, Yamazaki 2003), with exact comparisons.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A vertex as of the time when it was queued. Ordered by weight / cost; among equals the lowest
/// vertex is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    weight: u64,
    /// The number of vertices removed if this one is taken: its degree plus one.
    cost: u32,
    vertex: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let mine = u128::from(self.weight) * u128::from(other.cost);
        let theirs = u128::from(other.weight) * u128::from(self.cost);
        mine.cmp(&theirs).then(Reverse(self.vertex).cmp(&Reverse(other.vertex)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The chosen vertices, in ascending order.
pub(super) fn gwmin(weights: &[u64], adjacency: &[Vec<u32>]) -> Vec<u32> {
    let mut costs: Vec<u32> = adjacency.iter().map(|around| around.len() as u32 + 1).collect();
    let candidate = |vertex: usize, cost: u32| Candidate {
        weight: weights[vertex],
        cost,
        vertex: vertex as u32,
    };
    let mut line: BinaryHeap<Candidate> =
        costs.iter().enumerate().map(|(vertex, &cost)| candidate(vertex, cost)).collect();
    let mut is_left = vec![true; weights.len()];
    let mut chosen = Vec::new();
    let mut cheaper = Vec::new();
    while let Some(next) = line.pop() {
        let vertex = next.vertex as usize;
        // Costs only fall, so the newest of a vertex's entries comes out first.
        if !is_left[vertex] {
            continue;
        }
        is_left[vertex] = false;
        chosen.push(next.vertex);
        for &neighbour in &adjacency[vertex] {
            if !std::mem::replace(&mut is_left[neighbour as usize], false) {
                continue;
            }
            for &second in &adjacency[neighbour as usize] {
                if is_left[second as usize] {
                    costs[second as usize] -= 1;
                    cheaper.push(second);
                }
            }
        }
        cheaper.sort_unstable();
        cheaper.dedup();
        for vertex in cheaper.drain(..).map(|vertex| vertex as usize) {
            if is_left[vertex] {
                line.push(candidate(vertex, costs[vertex]));
            }
        }
    }
    chosen.sort_unstable();
    chosen
}
