//! The logs with which the shards begin a view (§4, steps ③ and ④): each new leader proposes its
//! own log, and transactions that only some of their shards have are added to the others.
//!
//! ```text
//!   shard 0   [.. 5][A@6  T@8]                   [.. 5][A@6  T@8][closed 9]
//!   shard 1   [.. 7]           [B@9]     --->    [.. 7][T@8]     [B@9]
//! ```
//!
//! # Why an added transaction never comes into a past
//!
//! All shards begin a view with logs that end at one stamp, and take only larger ones in it. A
//! leader puts whole cells into its log, in their order. If T is in the log of another shard, its
//! leader had heard from this shard's leader that T has this stamp here, and that nothing more
//! comes before it. So the log of this shard's leader had T in its cell. The proposed log is a
//! beginning of that log. Either it contains the cell, or it ends before it.
//!
//! # Differences from the paper
//!
//! - The logs of all shards are one decision. In the paper, leaders exchange their logs, and each
//!   begins when it has heard the others. If one of them then fails before its followers have its
//!   log, another view may choose logs of which only some contain the transaction.
//! - Verification inserts nothing into the log of another shard (the paper's ④), but at its end.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::partition::{SHARDS_MAX, ShardSet};

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
    /// The shards of those transactions that have several.
    pub shards: BTreeMap<TxnId, ShardSet>,
}

impl Proposal {
    /// Encodes the proposal. [`Proposal::decode`] is the inverse.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_bytes(&self.suffix.encode());
        out.put_varint(self.before.0);
        out.put_u64(self.floor.to_bits());
        out.put_varint(self.shards.len() as u64);
        for (txn, shards) in &self.shards {
            out.put_u64(txn.to_bits());
            out.put_varint(shards.len() as u64);
            shards.iter().for_each(|shard| out.put_varint(shard.0.into()));
        }
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
        let shard = |from: &mut Reader<'_>| {
            let shard = from.varint(WHAT)?;
            let shard = u16::try_from(shard).ok().filter(|it| *it < SHARDS_MAX);
            shard.map(ShardId).ok_or(DecodeError::new(WHAT))
        };
        let entry = |from: &mut Reader<'_>| {
            let txn = TxnId::from_bits(from.u64(WHAT)?);
            let shards = (0..from.count(WHAT)?).map(|_| shard(from));
            Ok((txn, shards.collect::<Result<ShardSet, DecodeError>>()?))
        };
        let count = from.count(WHAT)?;
        let shards = (0..count).map(|_| entry(from)).collect::<Result<_, DecodeError>>()?;
        match from.is_empty() {
            true => Ok(Self { suffix, before, floor, shards }),
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
///
/// If leaders may release transactions before they agree (`may_differ`), nothing is added. A
/// transaction that a shard lacks is void on the others (`shards/detection.rs`).
///
/// # Panics
/// If a log contradicts another one, which is a bug.
pub fn verify(proposals: &[Proposal], may_differ: bool) -> Vec<Suffix> {
    let missing_on = |index| match may_differ {
        true => Vec::new(),
        false => missing_on(proposals, index),
    };
    let missing: Vec<_> = (0..proposals.len()).map(missing_on).collect();
    let missing = mutate!(StartUnverified: missing => vec![Vec::new(); proposals.len()]);
    let floors = proposals.iter().map(|it| it.floor.max(last_of(it.last())));
    let mut end = cell_of_floor(floors.max().unwrap_or_default());
    if proposals.len() > 1 && proposals.iter().any(|it| it.last() < end) {
        // A cell of one shard can be published on all of them, and nothing is added to it.
        end = mutate!(EndPublished: end.next() => end);
    }
    let complete = |(proposal, missing): (&Proposal, Vec<(Stamp, TxnId)>)| {
        let mut suffix = proposal.suffix.clone();
        for of_cell in missing.chunk_by(|a, b| cell_of(a.0) == cell_of(b.0)) {
            let txns = of_cell.iter().map(|(stamp, txn)| (*txn, *stamp)).collect();
            suffix.cells.push(Cell { version: cell_of(of_cell[0].0), txns });
        }
        let last = suffix.cells.last().map_or(proposal.before, |cell| cell.version);
        if last < end {
            suffix.cells.push(Cell { version: end, txns: Vec::new() });
        }
        suffix
    };
    proposals.iter().zip(missing).map(complete).collect()
}

/// The cell that a floor ends.
fn cell_of_floor(floor: Stamp) -> SnapshotVersion {
    if floor == Stamp::ZERO { SnapshotVersion::ZERO } else { cell_of(floor) }
}

/// The transactions of a shard that only other shards have, in the order of their stamps.
fn missing_on(proposals: &[Proposal], index: usize) -> Vec<(Stamp, TxnId)> {
    let (own, here) = (&proposals[index], ShardId(index as u16));
    let own_txns: BTreeMap<TxnId, Stamp> =
        own.suffix.cells.iter().flat_map(|cell| cell.txns.iter().copied()).collect();
    let mut missing: BTreeMap<TxnId, Stamp> = BTreeMap::new();
    for (_, other) in proposals.iter().enumerate().filter(|(of, _)| *of != index) {
        for (txn, stamp) in other.suffix.cells.iter().flat_map(|cell| &cell.txns) {
            let concerns = other.shards.get(txn).is_some_and(|shards| shards.contains(here));
            // The cells before the proposal are committed, and whole.
            if !concerns || cell_of(*stamp) <= own.before {
                continue;
            }
            match own_txns.get(txn) {
                Some(known) => assert_eq!(known, stamp, "{txn} has one stamp on all shards"),
                None => {
                    assert!(cell_of(*stamp) > own.last(), "{txn} comes after the log of {here}");
                    missing.insert(*txn, *stamp);
                }
            }
        }
    }
    let mut missing: Vec<(Stamp, TxnId)> =
        missing.into_iter().map(|(txn, stamp)| (stamp, txn)).collect();
    missing.sort_unstable();
    missing
}

#[cfg(test)]
mod tests {
    use pangea_core::ids::NodeId;

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
    fn proposal(before: u64, numbers: &[u64], of_both: &[u64]) -> Proposal {
        let cell = |ms: &u64| {
            let stamp = stamp(*ms);
            Cell { version: cell_of(stamp), txns: vec![(txn(*ms), stamp)] }
        };
        let cells = numbers.iter().map(cell).collect();
        let suffix = Suffix { view: ViewNumber(3), after: Position(before), cells };
        let shards = of_both.iter().map(|it| (txn(*it), ShardSet::all(2))).collect();
        Proposal { suffix, before: SnapshotVersion(before), floor: Stamp::ZERO, shards }
    }

    fn txns(suffix: &Suffix) -> Vec<Vec<u64>> {
        let numbers = |cell: &Cell| cell.txns.iter().map(|(txn, _)| txn.sequence()).collect();
        suffix.cells.iter().map(numbers).collect()
    }

    #[test]
    fn a_transaction_that_one_shard_lacks_is_added_behind_its_log() {
        let logs = verify(&[proposal(6, &[6, 8], &[8]), proposal(6, &[6], &[])], false);
        // The last cell is behind all that may be published.
        assert_eq!(txns(&logs[0]), [vec![6], vec![8], vec![]]);
        assert_eq!(txns(&logs[1]), [vec![6], vec![8], vec![]]);
        let logs = verify(&[proposal(6, &[6, 8], &[8]), proposal(9, &[], &[])], false);
        assert_eq!(txns(&logs[1]), Vec::<Vec<u64>>::new(), "it is before the proposal");
        assert_eq!(logs[0].cells.last().unwrap().version, SnapshotVersion(9));
    }

    #[test]
    fn all_logs_end_where_nothing_more_is_accepted() {
        let logs = verify(&[proposal(6, &[6, 8], &[]), proposal(6, &[], &[])], false);
        assert_eq!(txns(&logs[1]), [Vec::<u64>::new()], "a cell without transactions");
        let last = |suffix: &Suffix| suffix.cells.last().unwrap().version;
        assert_eq!(last(&logs[0]), last(&logs[1]));
        let alone = Proposal { floor: stamp(20), ..proposal(6, &[6], &[]) };
        assert_eq!(last(&verify(&[alone], false)[0]), cell_of(stamp(20)));
    }

    #[test]
    fn proposals_survive_their_encoding_and_cut_ones_are_refused() {
        let proposal = Proposal { floor: stamp(9), ..proposal(6, &[6, 8], &[8]) };
        let bytes = proposal.encode();
        assert_eq!(Proposal::decode(&bytes), Ok(proposal));
        for len in 0..bytes.len() {
            assert!(Proposal::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
