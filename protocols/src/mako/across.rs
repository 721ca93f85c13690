//! The part of a log entry that only several shards need.
//!
//! ```text
//!   entry 9:  version of its writes 7, closed 5, depends on version 6 of shard 2
//!              `-- at most 9: it was drawn when the locks were taken
//! ```
//!
//! The entries of a log have increasing versions. The writes of a transaction over several shards
//! have the version of the transaction, which is that of its entry on each shard, or an earlier
//! one. So each entry says up to which version the log is *closed*: no later entry writes there.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{ShardId, SnapshotVersion};
use pangea_core::partition::{SHARDS_MAX, ShardSet};

use super::clocks::Clock;
use super::versions::{EPOCH_MAX, Epoch};
use crate::streams::number;

/// The part of an entry that only several shards need.
#[derive(Clone, Debug, PartialEq)]
pub struct Across {
    /// No later entry of the shard has writes of this version, or of an earlier one.
    pub closed: SnapshotVersion,
    /// The version of the writes: that of the entry, or an earlier one.
    pub at: SnapshotVersion,
    /// The versions of other shards on which the entry depends.
    pub clock: Clock,
    /// What the entry is.
    pub kind: Kind,
    /// The other shards on which its transaction has written.
    pub written: ShardSet,
}

/// What an entry of one of several shards is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Transactions whose outcomes are here: a slice, one that was coordinated here, or none.
    Own,
    /// The writes of a transaction that was coordinated on another shard.
    Piece,
    /// Rows of slots that move to this shard, or deletions of rows that are on another one (§6.2).
    /// It has no transactions.
    Moved,
    /// The cut with which an epoch has begun.
    Cut {
        /// The epoch.
        epoch: Epoch,
        /// The last closed version of each shard in the epochs before.
        finals: Vec<SnapshotVersion>,
    },
}

impl Across {
    pub(super) fn encode(this: Option<&Self>, out: &mut Vec<u8>) {
        let Some(Self { closed, at, clock, kind, written }) = this else { return out.put_u8(0) };
        out.put_u8(match kind {
            Kind::Own => 1,
            Kind::Piece => 2,
            Kind::Cut { .. } => 3,
            Kind::Moved => 4,
        });
        out.put_varint(closed.0);
        out.put_varint(at.0);
        clock.encode(out);
        out.put_varint(written.len() as u64);
        written.iter().for_each(|shard| out.put_varint(shard.0.into()));
        if let Kind::Cut { epoch, finals } = kind {
            out.put_varint(epoch.0);
            out.put_varint(finals.len() as u64);
            finals.iter().for_each(|version| out.put_varint(version.0));
        }
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        const WHAT: &str = "log entry";
        let kind = from.u8(WHAT)?;
        if kind == 0 {
            return Ok(None);
        }
        let closed = SnapshotVersion(number(from, WHAT)?);
        let at = SnapshotVersion(number(from, WHAT)?);
        let clock = Clock::decode(from, usize::from(SHARDS_MAX))?;
        let shard = |from: &mut Reader<'_>| match number(from, WHAT)? {
            shard if shard < u64::from(SHARDS_MAX) => Ok(ShardId(shard as u16)),
            _ => Err(DecodeError::new(WHAT)),
        };
        let written = (0..from.count(WHAT)?).map(|_| shard(from));
        let written = written.collect::<Result<ShardSet, DecodeError>>()?;
        let kind = match kind {
            1 => Kind::Own,
            2 => Kind::Piece,
            3 => {
                let epoch = match number(from, WHAT)? {
                    epoch if epoch <= EPOCH_MAX => Epoch(epoch),
                    _ => return Err(DecodeError::new(WHAT)),
                };
                let finals = (0..from.count(WHAT)?)
                    .map(|_| Ok(SnapshotVersion(number(from, WHAT)?)))
                    .collect::<Result<_, DecodeError>>()?;
                Kind::Cut { epoch, finals }
            }
            4 => Kind::Moved,
            _ => return Err(DecodeError::new(WHAT)),
        };
        Ok(Some(Self { closed, at, clock, kind, written }))
    }
}
