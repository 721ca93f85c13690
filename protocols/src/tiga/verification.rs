//! The logs with which the shards begin a view (§4, steps ③ and ④): each new leader proposes its
//! own log, and all of them end at one stamp.
//!
//! ```text
//!   shard 0   [.. 5][A@6  T@8]                   [.. 5][A@6  T@8][closed 9]
//!   shard 1   [.. 7]           [B@9]     --->    [.. 7]          [B@9]
//! ```
//!
//! All shards take only larger stamps in the view. A transaction that only some of its shards have,
//! as T, was not run anywhere: cells run when all shards have committed them. It is void
//! (`shards/detection.rs`), and its coordinator stamps it again.
//!
//! # Differences from the paper
//!
//! - The logs of all shards are one decision. In the paper, leaders exchange their logs, and each
//!   begins when it has heard the others. If one of them then fails before its followers have its
//!   log, another view may choose logs of which only some contain the transaction.
//! - Verification inserts nothing into the log of another shard (the paper's ④). The transaction is
//!   late there instead.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::SnapshotVersion;
use pangea_core::mutate;

use super::cells::{Cell, cell_of, last_of};
use super::log::Suffix;
use super::stamp::Stamp;
use crate::streams::number;

/// The log of a shard, as its new leader proposes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proposal {
    /// The end of the log.
    pub suffix: Suffix,
    /// The version of the cell before it.
    pub before: SnapshotVersion,
    /// Nothing at or below this stamp may be accepted any more.
    pub floor: Stamp,
}

impl Proposal {
    /// Encodes the proposal. [`Proposal::decode`] is the inverse.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_bytes(&self.suffix.encode());
        out.put_varint(self.before.0);
        out.put_u64(self.floor.to_bits());
        out.into()
    }

    /// Decodes the bytes that [`Proposal::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "proposal";
        let from = &mut Reader::new(bytes);
        let suffix = Suffix::decode(from.bytes(WHAT)?)?;
        let before = SnapshotVersion(number(from, WHAT)?);
        let floor = Stamp::from_bits(from.u64(WHAT)?);
        match from.is_empty() {
            true => Ok(Self { suffix, before, floor }),
            false => Err(DecodeError::new(WHAT)),
        }
    }

    /// The version of the last cell.
    fn last(&self) -> SnapshotVersion {
        self.suffix.cells.last().map_or(self.before, |cell| cell.version)
    }
}

/// The logs with which the shards begin a view, from the proposals in the order of the shards. All
/// end at the same version, which is a cell without transactions where nothing else is there.
pub fn verify(proposals: &[Proposal]) -> Vec<Suffix> {
    let floors = proposals.iter().map(|it| it.floor.max(last_of(it.last())));
    let mut end = cell_of_floor(floors.max().unwrap_or_default());
    if proposals.len() > 1 && proposals.iter().any(|it| it.last() < end) {
        // A cell of one shard can be published on all of them, and nothing is added to it.
        end = mutate!(EndPublished: end.next() => end);
    }
    let complete = |proposal: &Proposal| {
        let mut suffix = proposal.suffix.clone();
        if proposal.last() < end {
            suffix.cells.push(Cell { version: end, txns: Vec::new() });
        }
        suffix
    };
    proposals.iter().map(complete).collect()
}

/// The cell that a floor ends.
fn cell_of_floor(floor: Stamp) -> SnapshotVersion {
    if floor == Stamp::ZERO { SnapshotVersion::ZERO } else { cell_of(floor) }
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::{NodeId, TxnId};

    use super::super::log::{Position, ViewNumber};
    use super::super::stamp::{Issuer, Role};
    use super::*;

    fn stamp(ms: u64) -> Stamp {
        Issuer::new(NodeId(0), Role::Coordinator, Stamp::ZERO).issue(ms * 1_000)
    }

    fn txn(number: u64) -> TxnId {
        TxnId::new(NodeId(7), number)
    }

    /// A log of cells with one transaction each, numbered by its millisecond.
    fn proposal(before: u64, numbers: &[u64]) -> Proposal {
        let cell = |ms: &u64| {
            let stamp = stamp(*ms);
            Cell { version: cell_of(stamp), txns: vec![(txn(*ms), stamp)] }
        };
        let cells = numbers.iter().map(cell).collect();
        let suffix = Suffix { view: ViewNumber(3), after: Position(before), cells };
        Proposal { suffix, before: SnapshotVersion(before), floor: Stamp::ZERO }
    }

    fn txns(suffix: &Suffix) -> Vec<Vec<u64>> {
        let numbers = |cell: &Cell| cell.txns.iter().map(|(txn, _)| txn.sequence()).collect();
        suffix.cells.iter().map(numbers).collect()
    }

    #[test]
    fn nothing_is_added_to_a_log_that_lacks_a_transaction() {
        let logs = verify(&[proposal(6, &[6, 8]), proposal(6, &[6])]);
        // The last cell is behind all that may be published.
        assert_eq!(txns(&logs[0]), [vec![6], vec![8], vec![]]);
        assert_eq!(txns(&logs[1]), [vec![6], vec![]]);
        let logs = verify(&[proposal(6, &[6, 8]), proposal(9, &[])]);
        assert_eq!(txns(&logs[1]), Vec::<Vec<u64>>::new());
        assert_eq!(logs[0].cells.last().unwrap().version, SnapshotVersion(9));
    }

    #[test]
    fn all_logs_end_where_nothing_more_is_accepted() {
        let logs = verify(&[proposal(6, &[6, 8]), proposal(6, &[])]);
        assert_eq!(txns(&logs[1]), [Vec::<u64>::new()], "a cell without transactions");
        let last = |suffix: &Suffix| suffix.cells.last().unwrap().version;
        assert_eq!(last(&logs[0]), last(&logs[1]));
        let alone = Proposal { floor: stamp(20), ..proposal(6, &[6]) };
        assert_eq!(last(&verify(&[alone])[0]), cell_of(stamp(20)));
    }

    #[test]
    fn proposals_survive_their_encoding_and_cut_ones_are_refused() {
        let proposal = Proposal { floor: stamp(9), ..proposal(6, &[6, 8]) };
        let bytes = proposal.encode();
        assert_eq!(Proposal::decode(&bytes), Ok(proposal));
        for len in 0..bytes.len() {
            assert!(Proposal::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
