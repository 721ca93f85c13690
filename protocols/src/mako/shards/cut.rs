//! The cut: which transactions of the epochs before survive, when leaders have failed (§5.2).
//!
//! ```text
//!   shard      0             1             2
//!   closed up  3 (failed)    90            95          the cut: decided when all logs are closed
//!
//!   entry of shard 1 at 5, depends on version 4 of shard 0      void
//!   entry of shard 2 at 94                                      stays
//! ```
//!
//! The log of a failed leader ends somewhere. If a transaction has drawn a number there and its
//! entry is lost, the last entry is closed below the number, so the transaction is above the cut,
//! and so is everything that has read its writes on any shard (Theorems 1 and 2). What clients were
//! told is below the cut: they were told when the logs of a majority were closed above it.
//!
//! A local transaction has read nothing of other shards, directly or indirectly, and stands or
//! falls with the entries before it in its own log. Its clock is empty, and it survives if the log
//! has it, also above the version up to which the log is closed. So its client is told as soon as a
//! majority has its entry, and does not wait for transactions of others that are pending here.
//!
//! The cut is decided by agreement, as the closed version of each shard's log, and is an entry of
//! each log. A replica that has this entry drops what is void of the epochs before. A leader that
//! stays makes the entry when it hears of the cut, after others of the same epoch (`passage.rs`).

use std::sync::Arc;

use pangea_core::ids::SnapshotVersion;
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::super::across::{Across, Kind};
use super::super::clocks::Clock;
use super::super::log::{Entry, Logged};
use super::super::state::State;
use super::super::versions::{Epoch, epoch_of, start_of};
use super::{Config, Shards};

impl Shards {
    /// Whether an entry of this shard survives the cut of an epoch.
    pub(super) fn survives(
        &self,
        entry: &Entry,
        (epoch, finals): (Epoch, &[SnapshotVersion]),
    ) -> bool {
        let Some(across) = entry.across.as_ref().filter(|across| epoch_of(across.at) < epoch)
        else {
            return true;
        };
        if finals.len() != self.groups.len() {
            return false;
        }
        let is_below = across.clock.is_below(&self.clocks.watermarks(finals));
        mutate!(MakoCutByOwnLog: is_below => true)
    }
}

impl State {
    /// Whether the cut is known with which the epoch of this replica's log has begun.
    pub(in super::super) fn is_cut_known(&self) -> bool {
        self.shards.as_ref().is_none_or(|shards| shards.config.begun >= self.log.epoch)
    }

    /// The cut of the last epoch that has begun, which the log may lack. It ends at `last`, and is
    /// closed up to `closed`. A cut that the log has twice has no further effect.
    pub(in super::super) fn missing_cut(
        &self,
        last: SnapshotVersion,
        closed: SnapshotVersion,
    ) -> Option<Logged> {
        let shards = self.shards.as_ref()?;
        let Config { begun, finals, .. } = &shards.config;
        if finals.is_empty() {
            return None;
        }
        let version = last.next().max(start_of(*begun).next());
        let (closed, kind) = (closed.max(start_of(*begun)), shards.last_cut());
        let (clock, written) = Default::default();
        let across = Some(Across { closed, at: version, clock, kind, written });
        let (txns, over, writes) = Default::default();
        Some(Logged::new(Entry { version, before: last, txns, over, writes, across }))
    }
}

impl Shards {
    /// The cut of the last epoch that has begun.
    pub(super) fn last_cut(&self) -> Kind {
        let Config { begun, finals, .. } = &self.config;
        Kind::Cut { epoch: *begun, finals: finals.clone() }
    }
}

impl Mako {
    /// Drops the entries that the cut of an epoch has made void, and returns them.
    pub(super) fn void(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (epoch, finals): (Epoch, &[SnapshotVersion]),
    ) -> Vec<Arc<Entry>> {
        let Some(shards) = &mut self.state.shards else { return Vec::new() };
        let mut replay = std::mem::take(&mut shards.replay);
        let void = replay.retain(|entry| shards.survives(entry, (epoch, finals)));
        replay.last_cut = replay.last_cut.max(epoch);
        shards.replay = replay;
        if !void.is_empty() {
            cx.mark("mako.void");
            self.state.counters.txns_rolled_back += void.len() as u64;
            self.shards().counts.void += void.len() as u64;
        }
        void
    }

    /// Drops what the cuts up to an entry of the log have made void.
    pub(super) fn void_upto(&mut self, cx: &mut Cx<'_, Self>, upto: SnapshotVersion) {
        while let Some(cut) = self.shards().replay.take_cut(upto) {
            let _void = self.void(cx, cut.cut().expect("it is a cut"));
        }
    }

    /// The logs of all shards are closed, and this replica leads: it applies what survives, and
    /// begins the epoch with the cut.
    pub(in super::super) fn begin_divided(&mut self, cx: &mut Cx<'_, Self>) {
        let end = self.state.log.last();
        self.state.commit.committed = end;
        self.void_upto(cx, end);
        let Config { number, begun, finals, .. } = self.shards().config.clone();
        let _void = self.void(cx, (begun, &finals));
        let start = start_of(begun);
        self.apply_upto(cx, start, usize::MAX);
        if let Some(over) = self.coordination() {
            over.counter = start_of(number).max(end);
        }
        self.note_placement();
        self.log_cut(cx);
    }

    /// Everything of the epochs before the last one that has begun is decided and in the store.
    pub(super) fn log_cut(&mut self, cx: &mut Cx<'_, Self>) {
        let shards = self.shards();
        let (start, kind) = (start_of(shards.config.begun), shards.last_cut());
        let nothing = (None, Clock::default(), kind, ShardSet::default());
        self.log_entry(nothing, Vec::new(), Vec::new());
        let last = self.state.commit.executed;
        let shards = self.shards();
        // It is in effect here.
        let _own = shards.replay.take_cut(last);
        shards.watermarks.iter_mut().for_each(|watermark| *watermark = start.max(*watermark));
        self.close_batch(cx);
    }

    /// Makes an entry without transactions.
    pub(in super::super) fn log_nothing(&mut self) {
        let nothing = (None, Clock::default(), Kind::Own, ShardSet::default());
        self.log_entry(nothing, Vec::new(), Vec::new());
    }

    /// A leader that was replaced takes back what it has executed and readers do not see.
    pub(in super::super) fn roll_back_divided(&mut self, cx: &Cx<'_, Self>) {
        let State { shards, log, commit, .. } = &mut self.state;
        let Some(shards) = shards else { return };
        let entries = shards.replay.iter();
        let rows = entries.flat_map(|entry| {
            let at = entry.at();
            entry.writes.iter().map(move |(_, write)| (write.table, &write.key, at))
        });
        cx.store.expunge(rows);
        shards.replay.rebuild(log, commit.published);
        commit.executed = commit.published;
    }
}
