//! Nodes of two programs: a transaction is run by all replicas, with the procedures of its
//! coordinator.
//!
//! Nodes whose procedures differ do not connect. But the log may have cells of an earlier program
//! that were not run before all nodes were killed. Each transaction has the code of its
//! coordinator. A replica with other code does not run its cell, and no later one: it refuses. It
//! waits for the checkpoint of a peer that has run the cell, or for the earlier program. A stop of
//! all nodes in order leaves no such cell.
//!
//! ```text
//!   log of a replica of program 2     [1] [1] [2] ..
//!                                      | waits for a checkpoint that contains both
//! ```
//!
//! - A leader orders transactions of its own code only, and none while its log has cells of another
//!   one that were not run: they would be behind those, where the earlier program stops.
//! - A follower takes transactions of its own code only as in time, and only if the leader has this
//!   code, too. So all transactions that the next leader recovers are of one program.
//! - Certified transactions have no code: they write what their client has computed.

use std::collections::BTreeMap;

use pangea_core::ids::{NodeId, TxnId};
use pangea_core::protocol::Cx;
use pangea_core::txn::{CodeDigest, Program};

use super::Tiga;
use super::log::Position;
use super::options::WORDS;
use super::state::State;
use super::transactions::Stamped;
use crate::inputs::other_code;

/// The cells of the log that this program can't run, each with the code that can.
pub(super) type Foreign = BTreeMap<Position, CodeDigest>;

impl State {
    /// Whether a transaction needs another program than this one.
    fn is_foreign(&self, stamped: &Stamped) -> bool {
        matches!(stamped.request.program, Program::Call { .. }) && stamped.code != self.code
    }

    /// Notes which cells after a position this program can't run. They were appended just now.
    pub(super) fn note_foreign(&mut self, after: Position) {
        let after = after.max(self.log.base());
        self.foreign.split_off(&Position(after.0 + 1));
        for position in (after.0 + 1..=self.log.last().0).map(Position) {
            let code = |(txn, _): &(TxnId, _)| {
                let stamped = self.transactions.get(*txn)?;
                self.is_foreign(stamped).then_some(stamped.code)
            };
            let code = self.log.cell(position).txns.iter().find_map(code);
            self.foreign.extend(code.map(|code| (position, code)));
        }
    }

    /// The first cell that is not run and needs another program.
    pub(super) fn first_foreign(&self) -> Option<(Position, CodeDigest)> {
        let next = Position(self.commit.published.0 + 1);
        self.foreign.range(next..).next().map(|(position, code)| (*position, *code))
    }

    /// Whether this program can run a cell.
    pub(super) fn may_run(&self, position: Position) -> bool {
        !self.foreign.contains_key(&position)
    }

    /// Whether this replica orders a transaction, as the leader.
    pub(super) fn may_order(&self, stamped: &Stamped) -> bool {
        !self.is_foreign(stamped) && self.first_foreign().is_none()
    }

    /// Whether a transaction can be in time here: this replica and the leader run it with the same
    /// result.
    pub(super) fn may_be_in_time(&self, stamped: &Stamped) -> bool {
        let leader = self.leader().unwrap_or(self.node);
        let leader = self.views.told[leader.index()].kept;
        let is_open = leader.code == self.code && leader.seal == 0;
        is_open && !self.is_foreign(stamped) && self.first_foreign().is_none()
    }

    /// Why this replica can't continue, if a committed cell needs another program. If a connected
    /// peer has run it, a checkpoint replaces it here, and no operator has to act.
    pub(super) fn refused(&self) -> Option<String> {
        let (position, code) = self.first_foreign()?;
        let has_run = |peer: NodeId| {
            let kept = self.views.told_by(&self.replica, peer).kept;
            self.replica.is_up[peer.index()] && kept.published >= position
        };
        let is_next =
            position <= self.commit.committed && !self.replica.voting_peers().any(has_run);
        let version = self.log.version_at(position);
        is_next.then(|| other_code(&self.replica, (WORDS.epoch, version), (code, self.code)))
    }
}

impl Tiga {
    /// Stops a replica without peers if it needs another program.
    pub(super) fn refuse_foreign(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(why) = self.state.refused() else {
            self.state.is_refusing = false;
            return;
        };
        if !std::mem::replace(&mut self.state.is_refusing, true) {
            cx.mark("tiga.cell_refused");
        }
        if self.state.replica.voting_peers().next().is_none() {
            cx.stop(why);
        }
    }
}
