//! Without speculation: rows stay locked until what was written is replicated. This is not Mako,
//! but the two-phase commit over replicated logs with which the paper compares it (Mako §7.2).
//!
//! ```text
//!   with speculation       | runs, unlocks |  <-- a round trip: replicated, told
//!   without                | runs          |  <-- a round trip: replicated, unlocked, told
//!
//!   over shards, without   | locks | <-- replicated, Prepared | decides | <-- replicated, Install
//! ```
//!
//! A transaction that touches such a row waits, like one that touches the row of a transaction over
//! several shards. A slice has one transaction, because transactions of one slice see each other's
//! writes. A shard says `Prepared` when its log has a record of that on a majority, and the
//! coordinator says `Install` when its log has the outcome.

use std::collections::VecDeque;

use pangea_core::ids::{ShardId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::super::state::Role;
use super::Coordination;
use super::items::{Attempt, Item};

/// What waits until the log is replicated up to an entry.
pub(crate) type Held = VecDeque<(SnapshotVersion, Step)>;

/// A step of a transaction that waits.
#[derive(Debug)]
pub(crate) enum Step {
    /// The rows that a transaction has written are unlocked.
    Unlock(TxnId, Vec<(TableId, Key)>),
    /// Another shard is told.
    Post(ShardId, Attempt, Item),
}

impl Coordination {
    /// Locks the rows of an entry until it is replicated.
    pub(super) fn hold_rows(
        &mut self,
        entry: SnapshotVersion,
        txn: TxnId,
        rows: impl Iterator<Item = (TableId, Key)>,
    ) {
        let rows: Vec<_> = rows.collect();
        let all = rows.iter().map(|(table, key)| (*table, key));
        // They were free when the transaction ran, or its own.
        self.locks.lock(txn, all).expect("a transaction writes no row that another has locked");
        self.held.push_back((entry, Step::Unlock(txn, rows)));
    }

    /// Whether a transaction has locked rows that are not replicated yet.
    pub(super) fn holds(&self, txn: TxnId) -> bool {
        self.held.iter().any(|(_, step)| matches!(step, Step::Unlock(of, _) if *of == txn))
    }
}

impl Mako {
    /// Tells another shard something that this one's log must not forget. `is_new` is whether the
    /// log has no entry of it yet.
    pub(super) fn post_replicated(
        &mut self,
        (to, attempt): (ShardId, Attempt),
        item: Item,
        is_new: bool,
    ) {
        if self.state.options.speculation {
            return self.post(to, attempt, item);
        }
        if is_new {
            self.log_nothing();
        }
        let Role::Leading(leading) = &mut self.state.role else { return };
        leading.over.held.push_back((leading.last, Step::Post(to, attempt, item)));
    }

    /// Takes the steps that have waited for what is replicated now.
    pub(super) fn release_held(&mut self, cx: &mut Cx<'_, Self>) {
        let committed = self.state.commit.committed;
        loop {
            let Some(over) = self.coordination() else { return };
            let Some((_, step)) = over.held.pop_front_if(|(entry, _)| *entry <= committed) else {
                return;
            };
            match step {
                Step::Unlock(txn, rows) => {
                    cx.mark("mako.held_rows");
                    over.locks.unlock(txn, rows.iter().map(|(table, key)| (*table, key)));
                    self.wake(rows.iter().map(|(table, key)| (*table, key)));
                }
                Step::Post(to, attempt, item) => self.post(to, attempt, item),
            }
        }
    }
}
