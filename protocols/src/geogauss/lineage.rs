//! The lineage of an epoch: a digest of the batches of all epochs up to it.
//!
//! With a weak acknowledgement ([`super::options::Ack`]) a transaction may have read an epoch that
//! is rolled back later. Its batch names the last unconfirmed epoch that it can have read, and the
//! lineage of that. A replica that has merged that epoch with another lineage does not let it
//! commit, and all others decide the same: the lineage follows from the batches alone.
//!
//! A number names one batch of an epoch. If a source loses its disk and uses a number again, then
//! in a later epoch.

use std::collections::VecDeque;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::hash::hash_bytes;
use pangea_core::ids::SnapshotVersion;

use crate::streams::{Bid, encode_heads, number};

/// An epoch with its lineage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// Its lineage.
    pub lineage: u64,
}

/// The lineages of the last epochs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Lineages {
    /// That of the last epoch.
    pub last: u64,
    /// Those of the epochs after the horizon, oldest first. Also with durable acknowledgements:
    /// batches of an earlier run with weak ones may still have to be merged.
    recent: VecDeque<Base>,
}

impl Lineages {
    /// Adds an epoch with the last batches of all sources up to it, and forgets the lineages of the
    /// epochs up to the horizon.
    pub(super) fn note(&mut self, epoch: SnapshotVersion, heads: &[Bid], horizon: SnapshotVersion) {
        let mut bytes = Vec::new();
        bytes.put_u64(self.last);
        bytes.put_u64(epoch.0);
        encode_heads(heads, &mut bytes);
        self.last = hash_bytes(&bytes);
        self.recent.push_back(Base { epoch, lineage: self.last });
        while self.recent.pop_front_if(|base| base.epoch <= horizon).is_some() {}
    }

    /// Whether an epoch is known here, and has this lineage.
    pub(super) fn has(&self, base: Base) -> bool {
        self.recent
            .binary_search_by_key(&base.epoch, |it| it.epoch)
            .is_ok_and(|at| self.recent[at].lineage == base.lineage)
    }

    /// Appends the lineages to `out`. [`Lineages::decode`] is the inverse.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.last);
        out.put_varint(self.recent.len() as u64);
        for base in &self.recent {
            out.put_varint(base.epoch.0);
            out.put_u64(base.lineage);
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "lineages";
        let last = from.u64(WHAT)?;
        let base = |from: &mut Reader<'_>| {
            let epoch = SnapshotVersion(number(from, WHAT)?);
            Ok(Base { epoch, lineage: from.u64(WHAT)? })
        };
        let recent = (0..from.count(WHAT)?).map(|_| base(from));
        let recent = recent.collect::<Result<VecDeque<_>, DecodeError>>()?;
        match recent.iter().is_sorted_by(|a, b| a.epoch < b.epoch) {
            true => Ok(Self { last, recent }),
            false => Err(DecodeError::new(WHAT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn epoch(epoch: u64) -> SnapshotVersion {
        SnapshotVersion(epoch)
    }

    #[test]
    fn two_histories_that_differ_in_one_batch_have_other_lineages_from_there_on() {
        let with = |batch: u64| {
            let mut lineages = Lineages::default();
            lineages.note(epoch(1), &[Bid(1), Bid(0)], epoch(0));
            lineages.note(epoch(3), &[Bid(1), Bid(batch)], epoch(0));
            lineages.note(epoch(4), &[Bid(2), Bid(7)], epoch(0));
            lineages
        };
        let (one, other) = (with(1), with(2));
        let are_same = [1, 3, 4].map(|at| {
            let base = one.recent.iter().find(|base| base.epoch == epoch(at));
            other.has(*base.expect("the epoch is recent"))
        });
        assert_eq!(are_same, [true, false, false]);
        assert!(!one.has(Base { epoch: epoch(2), lineage: one.last }), "no such epoch");
    }

    #[test]
    fn lineages_before_the_horizon_are_forgotten_and_the_others_survive_their_encoding() {
        let mut lineages = Lineages::default();
        for at in 1..10 {
            lineages.note(epoch(at), &[Bid(at)], epoch(at.saturating_sub(4)));
        }
        assert_eq!(lineages.recent.len(), 4);
        let mut bytes = Vec::new();
        lineages.encode(&mut bytes);
        assert_eq!(Lineages::decode(&mut Reader::new(&bytes)).unwrap(), lineages);
        assert!(Lineages::decode(&mut Reader::new(&bytes[..bytes.len() - 1])).is_err());
        let last = lineages.last;
        lineages.note(epoch(10), &[Bid(10)], epoch(9));
        assert!(lineages.recent.len() == 1 && lineages.last != last);
    }
}
