//! Restart: a replica goes on from its log.
//!
//! It has the entries that were durable, and the last epoch that it has promised to follow. Its
//! records say up to where the log was known to be committed. What else is committed it learns from
//! its leader. A leader that restarts leads no more: it does not know what it had sent and not
//! written, so there is another epoch.

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::LogPosition;
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Durable};

use super::Mako;
use super::closing::Adopted;
use super::epochs::{Decided, Leadership};
use super::forwarding::decode_reserved;
use super::shards::{Config, decode_grouping};
use super::state::State;
use super::streams::Appended;
use crate::agreement::Record;
use crate::digests::Digests;
use crate::replica::{INTACT, kind};

/// The records that a restart reads in the log.
#[derive(Default)]
struct Found {
    agreement: Vec<Record<Decided>>,
    was_ready: bool,
    /// The records of entries after a peer's checkpoint, which a crash took away.
    gaps: u32,
}

impl State {
    fn read_record(&mut self, position: LogPosition, record: &Bytes, found: &mut Found) {
        // The next restart has to read it again.
        self.replica.owe(record.len());
        let (&kind, _) = record.split_first().expect(INTACT);
        let payload = record.slice(1..);
        match kind {
            kind::ENTRIES => {
                let Appended { committed, after, entries } =
                    Appended::decode(&payload).expect(INTACT);
                if after != self.log.last() {
                    found.gaps += 1;
                    return;
                }
                entries.into_iter().for_each(|logged| self.log.push(logged));
                let commit = &mut self.commit;
                commit.committed = commit.committed.max(committed.min(self.log.last()));
            }
            kind::ADOPTED => {
                let Adopted { epoch, after, entries } = Adopted::decode(&payload).expect(INTACT);
                if self.log.contains(after) {
                    self.log.adopt(epoch, after, entries);
                } else {
                    found.gaps += 1;
                }
            }
            kind::CONFIGURATION => {
                let config = Config::decode(&mut Reader::new(&payload)).expect(INTACT);
                if let Some(shards) = &mut self.shards {
                    shards.config.learn(&config);
                }
            }
            kind::GROUPING => {
                if let Some(shards) = &mut self.shards {
                    shards.grouping = Some(decode_grouping(&payload));
                }
            }
            kind::PROMISED_EPOCH => {
                let leadership = Leadership::decode(&mut Reader::new(&payload)).expect(INTACT);
                mutate!(MakoEpochForgotten: self.epochs.current = leadership => ());
            }
            kind::CEILING => self.origin.restore(decode_reserved(&payload)),
            kind::AGREEMENT => {
                let records: Vec<Record<_>> = postcard::from_bytes(&payload).expect(INTACT);
                found.agreement.extend(records);
            }
            kind::REJOINED => found.agreement.extend(self.restore_rejoined(&payload)),
            kind::LOG_IDENTITY => self.presence.restore_log_identity(&payload),
            other => panic!("record {position} has the unknown kind {other}"),
        }
    }
}

impl Mako {
    /// The first input of every run: continues from the log.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        let state = &mut self.state;
        let mut found = Found::default();
        let mut log_head = LogPosition(0);
        if let Some(checkpoint) = &durable.checkpoint {
            (log_head, found.agreement) = state.restore_checkpoint(cx, checkpoint);
            found.was_ready = true;
        }
        for (position, record) in &durable.records {
            // Of these, a replica that does not decide has promised epochs only.
            let is_part = matches!(record[0], kind::AGREEMENT | kind::REJOINED);
            found.was_ready |= is_part || record[0] == kind::PROMISED_EPOCH;
            if *position > log_head {
                state.read_record(*position, record, &mut found);
            }
        }
        (0..found.gaps).for_each(|_| cx.mark("mako.record_after_gap"));
        state.log.finish_restore();
        if let Some(shards) = &mut state.shards {
            shards.place();
            shards.replay.rebuild(&state.log, state.commit.published);
        }
        state.commit.committed = state.commit.committed.min(state.log.last());
        state.shown = state.log.last();
        if !self.check_grouping(cx) {
            return;
        }
        let state = &mut self.state;
        Digests::begin(cx, &state.replica);
        state.replica.begin_run(cx.rng.u64(..));
        if found.was_ready || !durable.is_replaced {
            // One that lost its disk learns the state of agreement from its peers first.
            let agreement = state.agreement(found.agreement);
            state.epochs.driver.start(agreement);
        }
        self.begin_greetings(cx, found.was_ready, durable.is_replaced);
        self.start_timers(cx);
    }
}
