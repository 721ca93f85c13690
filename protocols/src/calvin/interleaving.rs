//! The serial order of an epoch (§3.1): its sequencers' batches, round robin.

use std::sync::Arc;

use pangea_core::mutate;

use super::batch::Batch;

/// Puts an epoch's batches, which are sorted by sequencer and then by number, into serial order:
/// the first batch of each sequencer, then the second of each, and so on. A sequencer with many
/// requests therefore does not delay the others.
pub(super) fn round_robin(batches: Vec<Arc<Batch>>, first_of_all: u16) -> Vec<Arc<Batch>> {
    let mut placed = rounds(batches);
    // The sort is stable: within a round batches stay sorted by sequencer.
    placed.sort_by_key(|(round, _)| *round);
    mutate!(RoundRobinDiffers: () => round_robin_differs(&mut placed, first_of_all));
    placed.into_iter().map(|(_, batch)| batch).collect()
}

/// Pairs each batch, of those sorted by sequencer and then by number, with the number of its
/// sequencer's batches before it.
pub(super) fn rounds(batches: Vec<Arc<Batch>>) -> Vec<(usize, Arc<Batch>)> {
    let mut placed: Vec<(usize, Arc<Batch>)> = Vec::with_capacity(batches.len());
    for batch in batches {
        let round = match placed.last() {
            Some((round, before)) if before.source == batch.source => round + 1,
            _ => 0,
        };
        placed.push((round, batch));
    }
    placed
}

fn round_robin_differs(placed: &mut [(usize, Arc<Batch>)], first_of_all: u16) {
    placed.sort_by_key(|(round, batch)| (*round, batch.source.0 != first_of_all));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::Bid;
    use pangea_core::ids::NodeId;

    /// Calvin §3.1: the interleaving is deterministic and round robin.
    #[test]
    fn sequencers_take_turns_by_batch() {
        let batch = |(source, bid)| {
            let (source, bid) = (NodeId(source), Bid(bid));
            let (first_sequence, is_of_master) = (1, false);
            Arc::new(Batch { source, bid, first_sequence, is_of_master, requests: Vec::new() })
        };
        let of = |places: &[(u16, u64)]| places.iter().copied().map(batch).collect();
        let places = |batches: Vec<Arc<Batch>>| -> Vec<(u16, u64)> {
            batches.iter().map(|batch| (batch.source.0, batch.bid.0)).collect()
        };
        let sorted = of(&[(0, 7), (1, 2), (1, 3), (1, 4), (4, 9), (4, 10)]);
        let rounds = [(0, 7), (1, 2), (4, 9), (1, 3), (4, 10), (1, 4)];
        assert_eq!(places(round_robin(sorted, 4)), rounds);
        assert_eq!(places(round_robin(Vec::new(), 0)), []);
    }
}
