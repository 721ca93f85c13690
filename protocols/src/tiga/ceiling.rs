//! The ceiling: the time and the number above which a replica issues nothing before a record says
//! so. A restarted replica goes on above it, so that no stamp and no id is used twice, whatever its
//! clock reads then (§4, where servers lose all on a crash).
//!
//! ```text
//!   log:    ceiling 700 ms .. ceiling 1000 ms .. <crash>
//!   clock:  | issues up to 700 |               starts at 1000, if its clock is not later
//! ```
//!
//! The record is written well before it is needed, so that nothing waits for it.

use std::collections::VecDeque;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::LogPosition;
use pangea_core::protocol::Cx;

use super::Tiga;
use super::stamp::US_MAX;
use super::state::State;
use crate::messages::NUMBER_MAX;
use crate::replica::kind;

/// The time for which a record is enough, in microseconds.
const AHEAD_US: u64 = 300_000;

/// The number of transactions for which a record is enough.
const AHEAD_TXNS: u64 = 1 << 20;

/// What a replica may issue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Limit {
    /// The time of stamps, in microseconds.
    pub us: u64,
    /// The number of the last transaction.
    pub sequence: u64,
}

/// The limits of this replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Ceiling {
    /// What the log allows.
    pub durable: Limit,
    /// Later limits, with the positions of their records.
    raising: VecDeque<(Limit, LogPosition)>,
}

impl Limit {
    pub(super) fn encode(self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.us);
        out.put_u64(self.sequence);
        out.into()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        Ok(Self { us: from.u64("ceiling")?, sequence: from.u64("ceiling")? })
    }
}

impl Limit {
    /// Whether a replica can have issued this.
    pub(super) fn is_sound(self) -> bool {
        self.us <= US_MAX && self.sequence <= NUMBER_MAX
    }
}

impl Ceiling {
    /// The last limit, which may not be durable yet.
    pub(super) fn last(&self) -> Limit {
        self.raising.back().map_or(self.durable, |(limit, _)| *limit)
    }

    /// The position of the record that allows stamps up to `us`, and all numbers of transactions
    /// below `sequence`.
    pub(super) fn record(&self, us: u64, sequence: u64) -> LogPosition {
        let is_enough = |limit: Limit| us <= limit.us && sequence <= limit.sequence;
        if is_enough(self.durable) {
            return LogPosition(0);
        }
        let enough =
            self.raising.iter().find(|(limit, _)| is_enough(*limit)).or(self.raising.back());
        enough.map_or(LogPosition(0), |(_, position)| *position)
    }

    /// The node's log is durable up to `record`.
    pub(super) fn on_durable(&mut self, record: LogPosition) {
        while let Some((limit, _)) = self.raising.pop_front_if(|(_, at)| *at <= record) {
            self.durable = limit;
        }
    }

    /// Restores a limit from the log, after a restart.
    pub(super) fn restore(&mut self, limit: Limit) {
        let Limit { us, sequence } = self.durable;
        self.durable = Limit { us: us.max(limit.us), sequence: sequence.max(limit.sequence) };
    }
}

impl State {
    /// Raises the ceiling if stamps up to `us`, and the numbers of some more transactions, are not
    /// well below it.
    pub(super) fn raise_ceiling(&mut self, cx: &mut Cx<'_, Tiga>, us: u64) {
        let last = self.ceiling.last();
        let sequence = self.coordinator.next_sequence;
        let is_enough = us + AHEAD_US / 2 <= last.us && sequence + AHEAD_TXNS / 2 <= last.sequence;
        if is_enough {
            return;
        }
        let limit = Limit {
            us: last.us.max(us + AHEAD_US),
            sequence: last.sequence.max(sequence + AHEAD_TXNS),
        };
        let position = self.replica.persist(cx, &kind::CEILING, limit.encode());
        self.ceiling.raising.push_back((limit, position));
    }
}
