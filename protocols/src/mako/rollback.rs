//! Rollback: a leader that was replaced takes back what it has executed and not published (§5.2).
//!
//! With one shard, what has to be rolled back is the end of the log, and a part of it may be in the
//! log of the next leader. So everything that readers do not see is taken back at once, and the
//! writes of what was committed nevertheless are applied like those of any other leader. The number
//! of rolled-back transactions does not grow afterwards: nobody but this replica has read them.

use pangea_core::protocol::Cx;

use super::Mako;
use super::state::{Role, State};

impl Mako {
    /// Ends the leadership of this leader.
    pub(super) fn roll_back(&mut self, cx: &mut Cx<'_, Self>) {
        let State { role, commit, log, counters, origin, shards, .. } = &mut self.state;
        let Role::Leading(leading) = std::mem::replace(role, Role::Following) else { return };
        origin.send_again();
        if leading.has_timer {
            cx.clear_timer(super::Timer::Batch);
        }
        if let Some(shards) = shards {
            shards.sent_to.clear();
            cx.mark("mako.rolled_back");
            return self.roll_back_divided(cx);
        }
        if commit.executed == commit.published {
            return;
        }
        cx.mark("mako.rolled_back");
        let logged = log.after(commit.published).expect("what is published is in the log");
        let logged: usize = logged.map(|logged| logged.entry.txns.len()).sum();
        counters.txns_rolled_back += (logged + leading.batch.txns) as u64;
        cx.store.retreat_to(commit.published);
        commit.executed = commit.published;
    }
}
