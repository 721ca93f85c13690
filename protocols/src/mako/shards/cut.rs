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
//! The cut is decided by agreement, as the closed version of each shard's log, and is the first
//! entry of the next epoch. A replica that has this entry drops what is void before it.

use pangea_core::ids::SnapshotVersion;
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::super::across::{Across, Kind};
use super::super::clocks::Clock;
use super::super::log::{Entry, Logged};
use super::super::state::{Role, State};
use super::super::versions::{epoch_of, version_of};
use super::Shards;

impl Shards {
    /// Whether an entry of this shard survives a cut.
    pub(super) fn survives(&self, entry: &Entry, finals: &[SnapshotVersion]) -> bool {
        let Some(across) = &entry.across else { return true };
        let Some(own) = finals.get(usize::from(self.own.0)) else { return false };
        if finals.len() != self.groups.len() {
            return false;
        }
        let is_below = across.clock.is_below(&self.clocks.watermarks(finals));
        let is_below = mutate!(MakoCutByOwnLog: is_below => true);
        across.at <= *own && is_below
    }
}

impl State {
    /// Whether the cut is known with which the epoch of this replica's log has begun.
    pub(in super::super) fn is_cut_known(&self) -> bool {
        self.shards.as_ref().is_none_or(|shards| shards.config.begun == self.log.epoch)
    }

    /// The first entry of the last epoch that has begun, if the log with these last entries lacks
    /// it.
    pub(in super::super) fn missing_cut(&self, last: SnapshotVersion) -> Option<Logged> {
        let shards = self.shards.as_ref()?;
        let begun = shards.config.begun;
        if shards.config.finals.is_empty() || epoch_of(last) >= begun {
            return None;
        }
        Some(Logged::new(cut_entry(shards, last)))
    }
}

fn cut_entry(shards: &Shards, before: SnapshotVersion) -> Entry {
    let version = version_of(shards.config.begun, 1);
    let kind = Kind::Cut(shards.config.finals.clone());
    let (clock, written) = Default::default();
    let across = Across { closed: version, at: version, clock, kind, written };
    Entry {
        version,
        before,
        txns: Vec::new(),
        over: Vec::new(),
        writes: Vec::new(),
        across: Some(across),
    }
}

impl Mako {
    /// Drops the entries before one of the log that a cut has made void.
    pub(super) fn void(
        &mut self,
        cx: &mut Cx<'_, Self>,
        before: SnapshotVersion,
        finals: &[SnapshotVersion],
    ) {
        let Some(shards) = &mut self.state.shards else { return };
        let mut replay = std::mem::take(&mut shards.replay);
        let count = replay.retain_before(before, |entry| shards.survives(entry, finals));
        shards.replay = replay;
        if count > 0 {
            cx.mark("mako.void");
            self.state.counters.txns_rolled_back += count as u64;
            self.shards().counts.void += count as u64;
        }
    }

    /// The logs of all shards are closed, and this replica leads: it applies what survives, and
    /// begins the epoch with the cut.
    pub(in super::super) fn begin_divided(&mut self, cx: &mut Cx<'_, Self>) {
        let end = self.state.log.last();
        self.state.commit.committed = end;
        while let Some(cut) = self.shards().replay.take_cut(end) {
            let finals = cut.cut().expect("it is a cut").to_vec();
            self.void(cx, cut.version, &finals);
        }
        let shards = self.shards();
        let entry = cut_entry(shards, end);
        let finals = shards.config.finals.clone();
        let start = SnapshotVersion(entry.version.0 - 1);
        self.void(cx, entry.version, &finals);
        self.apply_upto(cx, start, usize::MAX);
        let shards = self.shards();
        shards.watermarks.fill(start);
        shards.stable = start;
        let published = self.state.commit.published;
        let Role::Leading(leading) = &mut self.state.role else {
            unreachable!("it has begun to lead")
        };
        let logged = Logged::new(entry);
        let version = logged.version();
        (leading.last, leading.over.counter, leading.over.closed) = (version, version, version);
        leading.batch.bytes += logged.bytes.len();
        self.state.commit.executed = version;
        if let Some(shards) = &mut self.state.shards {
            shards.replay.insert(&logged.entry, published);
            // It is in effect here.
            let _own = shards.replay.take_cut(version);
        }
        if let Role::Leading(leading) = &mut self.state.role {
            leading.batch.entries.push(logged);
        }
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
