//! Grouping: with how many entries the clocks in a replica's log were made (§6.1).
//!
//! A clock says on which shards an outcome rests until they have replicated it. With another number
//! of entries the same clock would name other shards, and fewer of them: a transaction that clients
//! were told could become void. So a replica remembers the number with its log. It starts with
//! another one only if its log has no clock: everything that a restart reads is then settled, as
//! after a stop of all nodes in order.

use pangea_core::codec::{Reader, Writer};
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::super::state::State;
use crate::replica::{INTACT, kind};
use crate::streams::number;

/// The number of entries of a clock in a record.
pub(in super::super) fn decode_grouping(payload: &[u8]) -> u16 {
    number(&mut Reader::new(payload), "grouping").expect(INTACT) as u16
}

impl State {
    /// The reason not to start: the clocks in the log have another number of entries.
    fn regrouped(&self, before: u16, now: u16) -> Option<String> {
        let entries = self.log.after(self.commit.floor).expect("it is in the log");
        let mut clocks = entries.filter_map(|logged| logged.entry.across.as_ref());
        let has_clock = clocks.any(|across| !across.clock.is_empty());
        has_clock.then(|| {
            format!(
                "mako.clock_groups: the log has clocks with {before} entries, and the settings \
                 make them with {now}. Read with these, they would no longer say on which shards \
                 transactions rest that clients were told. Nothing is lost: start all nodes with \
                 {before} groups again, stop them in order, and change it then"
            )
        })
    }
}

impl Mako {
    /// After a restart: checks that the clocks in the log are made as the settings say, and
    /// remembers that. Returns whether this replica may go on.
    pub(in super::super) fn check_grouping(&mut self, cx: &mut Cx<'_, Self>) -> bool {
        let Some(shards) = &self.state.shards else { return true };
        let (now, all) = (shards.clocks.slots(), shards.partitions.shards());
        let before = shards.grouping.unwrap_or(all);
        if before == now {
            return true;
        }
        if let Some(why) = self.state.regrouped(before, now) {
            cx.mark("mako.regrouped");
            cx.stop(why);
            return false;
        }
        self.shards().grouping = Some(now);
        let mut record = Vec::new();
        record.put_varint(now.into());
        self.state.replica.persist(cx, &kind::GROUPING, record.into());
        true
    }
}
