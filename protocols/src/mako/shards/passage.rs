//! Passage: a leader that stays goes on while an epoch ends (§5.2).
//!
//! ```text
//!   epoch 4                    | epoch 5 is decided: the leader of shard 0 is replaced
//!     shard 1   4.70 4.71 4.72 | 5.1 5.2 5.3 ..  | the cut of 5 | ..
//!                    `-- hangs, or depends on 0 ---'
//! ```
//!
//! Its log goes on: nobody else has written to it, so its replicas need not take another one. It
//! counts in the new epoch, certifies nothing of the epochs before any more, and asks how
//! transactions have ended that hang here (`termination.rs`). Their rows stay locked. When nothing
//! hangs and a majority knows that, its log is closed for the epochs before.
//!
//! A version is *doubtful* if it is of an epoch before, has not settled, and depends on the logs of
//! other shards: the cut may make it void. Until the cut is known,
//!
//! - **nothing of the new epoch reads it.** Local transactions that need it wait, and those over
//!   several shards are refused, and try again.
//! - **nothing of an epoch before reads what is of the new one:** items of another epoch have no
//!   effect.
//!
//! # Why this is safe
//!
//! - *What is of the new epoch never depends on what is void.* A transaction reads settled
//!   versions, versions of its own epoch, and older ones with empty clocks. The cut is above
//!   everything that has settled. A version with an empty clock depends on its own log alone, which
//!   has it before its reader.
//! - *A transaction is void on all shards or on none.* The cut compares its clock, which is the
//!   same everywhere, with versions that were decided once. If a piece is missing in the log of a
//!   failed leader, that log is closed below the piece's number, and the clock names the shard with
//!   a version that is not.
//! - *What a client was told is below the cut.* The entry is in the log of a majority. The other
//!   shards that its clock names had told watermarks above it, so their logs are closed above it. A
//!   log that is closed for the epoch is closed at its end, and each entry of it that was told is
//!   there.
//! - *The entries of the new epoch stay above.* A cut touches versions of epochs before its own,
//!   whatever their place in the log. A write of the new epoch over a void one stays, and has not
//!   read it.
//! - *Several epochs may be open:* if another leader fails before the cut is decided, the next cut
//!   takes its place, and covers all epochs since the last one that has begun. A version of any of
//!   them is doubtful. A cut that was decided is never skipped: it is in the decision about the
//!   next epoch, and the logs of all shards were closed for it.
//! - *Readers see no version of the new epoch before the cut:* they see what is below the
//!   watermarks of all shards, and a new leader has none of the epoch before it has begun. A
//!   follower applies nothing of an epoch without its cut.

use pangea_core::ids::SnapshotVersion;
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::super::state::{Role, State};
use super::super::versions::{epoch_of, start_of};

impl State {
    /// Versions before this one are doubtful if they have a clock.
    pub(super) fn doubtful_before(&self) -> SnapshotVersion {
        let open = self.shards.as_ref().filter(|shards| shards.is_open());
        let before = open.map_or(SnapshotVersion::ZERO, |shards| start_of(shards.config.number));
        mutate!(MakoDoubtfulRead: before => SnapshotVersion::ZERO)
    }
}

impl Mako {
    /// A leader that stays enters the last epoch.
    pub(super) fn enter_epoch(&mut self, cx: &mut Cx<'_, Self>) {
        let start = start_of(self.shards().config.number);
        let Some(over) = self.coordination() else { return };
        cx.mark("mako.stays");
        over.counter = over.counter.max(start);
        // These are of the epoch before, and have no effect any more.
        over.out.clear();
        for pending in over.pending.values_mut() {
            pending.since = cx.now.at;
        }
        self.restart_attempts(cx);
        mutate!(MakoHangingDropped: () => self.drop_hanging());
    }

    /// A leader that stays hears of the cut: it takes back what is void.
    pub(super) fn take_cut(&mut self, cx: &mut Cx<'_, Self>) {
        let Role::Leading(_) = self.state.role else { return };
        let config = self.shards().config.clone();
        let (begun, finals) = (config.begun, &config.finals[..]);
        let mut known = self.shards().watermarks.iter().zip(finals);
        let is_below = known.all(|(told, closed)| start_of(begun).min(*told) <= *closed);
        debug_assert!(is_below, "what clients were told is below the cut");
        let void = self.void(cx, (begun, finals));
        let rows = void.iter().flat_map(|entry| {
            let at = entry.at();
            entry.writes.iter().map(move |(_, write)| (write.table, &write.key, at))
        });
        cx.store.expunge(rows);
        let State { role: Role::Leading(leading), shards: Some(shards), .. } = &mut self.state
        else {
            return;
        };
        // Their nodes send them again when they hear that this leader knows the cut.
        for entry in void.iter().filter(|entry| !entry.is_piece()) {
            entry.txns.iter().for_each(|executed| {
                leading.taken.remove(&executed.txn);
            });
        }
        let over = &mut leading.over;
        over.waiting.retain(|entry| shards.survives(entry, (begun, finals)));
        over.clocks.retain(|version, _| epoch_of(*version) >= begun);
        over.decisions.retain(|_, decision| epoch_of(decision.version()) >= begun);
        for request in std::mem::take(&mut over.doubtful) {
            leading.queue_bytes += request.size_hint() as u64;
            leading.queue.push_back(request);
        }
        self.log_cut(cx);
    }
}
