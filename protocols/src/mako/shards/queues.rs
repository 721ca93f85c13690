//! Queues: transactions over shards that wait for a locked row of their coordinator's shard.
//!
//! ```text
//!   row:  locked by T  <-- local transactions   <-- U <-- V
//!         unlocked: they run, then U locks it, and V waits for that
//! ```
//!
//! Before it has locked its own rows a transaction holds no lock anywhere, so it can wait without
//! a deadlock. It keeps the rows of other shards that it has read: they are checked when those
//! shards lock them. Without queues most attempts would fail where many transactions write one row,
//! and each would cost messages.
//!
//! Local transactions that wait for the row run first. So neither kind keeps the other waiting.

use std::collections::{BTreeMap, VecDeque};

use pangea_core::exec::Change;
use pangea_core::ids::{TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::Coordination;
use super::coordinator::Waited;
use super::items::Attempt;

/// The transactions that wait for each row, in order.
pub(crate) type Waiters = BTreeMap<(TableId, Key), VecDeque<TxnId>>;

impl Coordination {
    /// Whether a transaction is about to write a row.
    fn has_holder(&self, (table, key): &(TableId, Key)) -> bool {
        self.locks.holder(*table, key).is_some()
    }

    /// Whether a transaction over shards has locked a row, be it only against writes.
    pub(super) fn is_locked(&self, (table, key): &(TableId, Key)) -> bool {
        let reader = || self.locks.reader(*table, key, None);
        self.locks.holder(*table, key).or_else(reader).is_some()
    }
}

impl Mako {
    /// Lets an attempt wait for a row of this shard that could not be locked. Returns whether it
    /// waits: a row that has changed is not locked, and an interactive transaction can't run again.
    pub(super) fn wait_for_row(
        &mut self,
        cx: &mut Cx<'_, Self>,
        attempt: Attempt,
        Change { table, key, .. }: &Change,
    ) -> bool {
        let row = (*table, key.clone());
        let Some(over) = self.coordination() else { return false };
        if !over.is_locked(&row) || !over.begin_to_wait(attempt) {
            return false;
        }
        cx.mark("mako.waits_for_row");
        over.waiters.entry(row).or_default().push_back(attempt.txn);
        // Whoever waits holds no lock.
        self.forget_kept(attempt, ShardSet::default());
        true
    }

    /// Runs those whose turn it is: the first one for each row that was unlocked, and the next ones
    /// as long as they can share it.
    pub(super) fn run_waiters(&mut self, cx: &mut Cx<'_, Self>) {
        while let Some(row) = self.coordination().and_then(|over| over.unlocked.pop()) {
            while let Some(over) = self.coordination().filter(|over| !over.has_holder(&row)) {
                let Some(waiters) = over.waiters.get_mut(&row) else { break };
                let txn = waiters.pop_front().expect("a queue that is there is not empty");
                if waiters.is_empty() {
                    over.waiters.remove(&row);
                }
                let Waited::Until(attempt) = over.end_to_wait(txn, cx.now.at) else { continue };
                self.run_spread(cx, attempt);
                let Some(over) = self.coordination() else { return };
                let is_locked = over.is_locked(&row);
                let waiters = over.waiters.get_mut(&row).filter(|_| is_locked);
                // It may be there from an attempt that was given up, too.
                if let Some(waiters) = waiters.filter(|waiters| waiters.back() == Some(&txn)) {
                    // It can't share the row with another one: it is the next again.
                    waiters.rotate_right(1);
                    break;
                }
            }
        }
    }
}
