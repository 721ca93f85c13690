//! Restart, and the reservation of epochs that makes it safe.
//!
//! A part of an epoch without transactions leaves no trace in the log of its replica. If that
//! restarts, it must not add transactions to an epoch that it has ended before: a peer may have
//! merged the epoch without them. Therefore the log has a number, and the replica ends no epoch
//! after it. It is raised some seconds ahead, in the record before a batch, so it costs no time. A
//! restarted replica begins after it.
//!
//! ```text
//!   log:   reserved up to 1007 | batch of epoch 7 | batch of epoch 9 | <crash>
//!   then:  end of epoch 9      | reserved up to 2007, batch of epoch 1008 ..
//! ```
//!
//! A batch that was durable when the replica stopped may have been sent. If its epoch has no end in
//! the log, it had not ended, and gets its end first. Merged epochs are applied as they were
//! decided then, and not merged again.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Durable};
use pangea_core::store::{RecordHeader, Version};
use pangea_core::txn::Write;

use super::adds::AddedRows;
use super::batch::{TxnRecord, Work};
use super::caught_up::CaughtUp;
use super::clock::EpochClock;
use super::commit::{Deleted, apply_merged, args_of, in_order};
use super::knowledge::Configured;
use super::membership::Sealed;
use super::rank::Rank;
use super::rules::horizon_of;
use super::state::{Merged, State};
use super::views::Change;
use super::{GeoGauss, Timer};
use crate::agreement::{Agreement, Record};
use crate::decisions::{Decisions, Ordered};
use crate::digests::Digests;
use crate::replica::{INTACT, kind};
use crate::streams::{FETCH, Heads, decode_heads, encode_heads};

/// The time for which epochs are reserved, in milliseconds.
const AHEAD_MS: u64 = 10_000;

/// The records that a restart reads in the log.
#[derive(Default)]
struct Found {
    epochs: Vec<(LogPosition, Bytes)>,
    agreement: Vec<Record<Change>>,
    /// Earlier records of agreement are part of the checkpoint.
    agreement_from: LogPosition,
    was_ready: bool,
}

/// The record of a merged epoch.
#[derive(Debug, PartialEq)]
pub(super) struct EpochRecord<'a> {
    pub epoch: SnapshotVersion,
    /// The epoch with transactions before it.
    pub before: SnapshotVersion,
    /// The batches of the epochs up to it.
    pub heads: Heads,
    pub decisions: Decisions<'a>,
}

impl EpochRecord<'_> {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.epoch.0);
        out.put_varint(self.epoch.0 - self.before.0);
        encode_heads(&self.heads, &mut out);
        self.decisions.encode(&mut out);
        out.into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let epoch = SnapshotVersion(from.u64("epoch record")?);
        let since = from.varint("epoch record")?;
        let before = epoch.0.checked_sub(since).ok_or(DecodeError::new("epoch record"))?;
        let (before, heads) = (SnapshotVersion(before), decode_heads(from)?);
        Ok(Self { epoch, before, heads, decisions: Decisions::decode(from)? })
    }
}

impl State {
    /// The last epoch that this replica may end, once its reservation is durable.
    pub(super) fn last_reserved(&self) -> SnapshotVersion {
        self.epochs.reserving.back().map_or(self.epochs.reserved, |it| it.0)
    }

    /// Logs that this replica may end epochs up to this one and for some seconds after it.
    pub(super) fn reserve(&mut self, cx: &mut Cx<'_, GeoGauss>, upto: SnapshotVersion) {
        let ahead = AHEAD_MS.div_ceil(self.options.epoch_ms);
        // The members of the next view are to know what this one has reserved.
        let is_sealed = self.membership.is_sealed();
        let is_sealed = mutate!(ReservedAfterReport: is_sealed => false);
        if upto.0 + ahead / 2 <= self.last_reserved().0 || is_sealed {
            return;
        }
        cx.mark("geogauss.reserved");
        let upto = SnapshotVersion(upto.0 + ahead);
        let record = Bytes::copy_from_slice(&upto.0.to_le_bytes());
        let position = self.replica.persist(cx, &kind::RESERVED, record);
        self.epochs.reserving.push_back((upto, position));
    }

    /// The log is durable up to `position`.
    pub(super) fn note_reserved(&mut self, position: LogPosition) {
        let epochs = &mut self.epochs;
        while let Some((upto, _)) = epochs.reserving.pop_front_if(|(_, at)| *at <= position) {
            epochs.reserved = upto;
        }
    }

    /// The position of the last reservation that is not durable yet.
    pub(super) fn reserving_at(&self) -> LogPosition {
        self.epochs.reserving.back().map_or(LogPosition(0), |(_, position)| *position)
    }

    fn read_record(&mut self, position: LogPosition, record: &Bytes, found: &mut Found) {
        // The next restart has to read it again.
        self.replica.owe(record.len());
        let (&kind, _) = record.split_first().expect(INTACT);
        let payload = record.slice(1..);
        let is_covered = position <= found.agreement_from;
        let node_count = self.replica.topology.node_count();
        match kind {
            kind::BATCH => {
                self.streams.restore(position, payload);
                let own = self.streams.own(&self.replica).slots.keys().next_back();
                let own = own.copied().unwrap_or_default();
                self.membership.own_head = self.membership.own_head.max(own);
            }
            kind::AGREEMENT | kind::REJOINED if is_covered => {}
            kind::AGREEMENT => {
                let records: Vec<Record<_>> = postcard::from_bytes(&payload).expect(INTACT);
                found.agreement.extend(records);
            }
            kind::REJOINED => found.agreement.extend(self.restore_rejoined(&payload)),
            kind::SEALED => {
                let sealed = Sealed::decode(&mut Reader::new(&payload), node_count);
                mutate!(SealForgotten: self.restore_seal(sealed.expect(INTACT)) => ());
            }
            kind::VIEW => {
                let configured = Configured::decode(&mut Reader::new(&payload), node_count);
                let configured = configured.expect(INTACT);
                if configured.decision > self.membership.decision {
                    self.configure(configured);
                }
            }
            kind::EPOCH => found.epochs.push((position, payload)),
            kind::SKIPPED => self.skips.restore(position, &payload),
            kind::RESERVED => {
                let upto = Reader::new(&payload).u64("reservation").expect(INTACT);
                self.epochs.reserved = self.epochs.reserved.max(SnapshotVersion(upto));
            }
            kind::DISCARD => self.streams.restore_discard(&payload),
            kind::LOG_IDENTITY => self.presence.restore_log_identity(&payload),
            other => panic!("record {position} has the unknown kind {other}"),
        }
    }

    /// Whether this program can apply a merged epoch of the log: the record may ask for programs
    /// to be executed again, or for additions, which needs the code that executed them first.
    fn may_replay(&mut self, cx: &mut Cx<'_, GeoGauss>, record: &EpochRecord<'_>) -> bool {
        let batches = self.batches_upto(&record.heads);
        let records = batches.iter().flat_map(|batch| &batch.records);
        let Decisions { is_valid, ordered } = &record.decisions;
        let added = records.zip(is_valid).filter(|(it, is_valid)| **is_valid && it.work.has_adds());
        let is_logged = |it: &&Ordered<'_>| it.writes.is_some();
        let logged = ordered.iter().filter(is_logged).filter(|it| is_valid[it.entry]).count();
        let executes_again = ordered.iter().any(|it| it.writes.is_none()) || added.count() > logged;
        let mut rules = batches.iter().map(|batch| batch.rules);
        let other = rules.find(|rules| executes_again && rules.code != self.rules.code);
        other.into_iter().for_each(|rules| self.refuse(cx, record.epoch, rules));
        other.is_none()
    }

    /// Applies an epoch as it was decided before the restart.
    fn replay(&mut self, cx: &Cx<'_, GeoGauss>, record: EpochRecord<'_>) {
        let EpochRecord { epoch, heads, decisions: Decisions { is_valid, ordered }, .. } = record;
        let batches = self.batches_upto(&heads);
        let records: Vec<&TxnRecord> = batches.iter().flat_map(|batch| &batch.records).collect();
        assert_eq!(is_valid.len(), records.len(), "the record has the batches of its epoch");
        let mut deleted = Deleted::default();
        let mut valid: Vec<usize> = (0..records.len()).filter(|i| is_valid[*i]).collect();
        let node_count = self.replica.topology.node_count();
        let rank = |&i: &usize| Rank::new(records[i].inputs, epoch, node_count);
        mutate!(ReplayedOutOfRank: valid.sort_unstable_by_key(rank) => ());
        let (of_adds, ordered): (Vec<_>, Vec<_>) = ordered
            .into_iter()
            .partition(|it| matches!(records[it.entry].work, Work::Merge { .. }));
        let added = self.added_again(cx, (&records, &valid), of_adds);
        let merged = valid.iter().map(|i| records[*i]).zip(added.iter().map(|rows| &rows[..]));
        apply_merged(cx, epoch, merged, &mut deleted);
        for Ordered { entry, writes } in ordered {
            let record = records[entry];
            let Some(logged) = writes else {
                let ran = in_order(record).map(|job| self.execute(cx, epoch, &[job]));
                let writes = ran.iter().flatten().flat_map(|finished| &finished.writes);
                writes.for_each(|write| deleted.note(write));
                continue;
            };
            let header = RecordHeader::new(record.inputs.txn);
            for write in logged.read(args_of(record)).expect(INTACT) {
                deleted.note(&write);
                let version = Version { version: epoch, header, value: write.value };
                cx.store.apply(write.table, write.key, version);
            }
        }
        let rows = mutate!(DeletionsNotReplayed: deleted.rows => Vec::new());
        let horizon = horizon_of(epoch, &batches);
        self.applied.advance(Merged { epoch, heads, deleted: rows, horizon });
        cx.store.publish(epoch);
    }
}

impl State {
    /// The rows to which the valid transactions of an epoch add, in rank order: as they were
    /// logged, or computed again if they took too much room.
    fn added_again(
        &self,
        cx: &Cx<'_, GeoGauss>,
        (records, valid): (&[&TxnRecord], &[usize]),
        logged: Vec<Ordered<'_>>,
    ) -> Vec<Vec<Write>> {
        let mut of_entries: BTreeMap<usize, Vec<Write>> = BTreeMap::new();
        for Ordered { entry, writes } in logged {
            of_entries.extend(writes.map(|writes| (entry, writes.read(&[]).expect(INTACT))));
        }
        let all = valid.iter().map(|i| records[*i].checks());
        if all.clone().filter(|checks| checks.has_adds()).count() <= of_entries.len() {
            return valid.iter().map(|i| of_entries.remove(i).unwrap_or_default()).collect();
        }
        let (registry, version) = (&self.registry, self.applied.epoch);
        let mut rows = AddedRows::new(registry, cx.store, version, all.clone());
        all.map(|checks| rows.advance(checks).expect("it has committed before")).collect()
    }
}

impl GeoGauss {
    /// The first input of every run: continues from the checkpoint and the log.
    pub(super) fn on_restart(&mut self, cx: &mut Cx<'_, Self>, durable: Durable) {
        let state = &mut self.state;
        let mut found = Found { was_ready: durable.checkpoint.is_some(), ..Found::default() };
        if let Some(checkpoint) = &durable.checkpoint {
            let restored = state.restore_checkpoint(cx, checkpoint);
            (found.agreement_from, found.agreement) = (restored.log_head, restored.agreement);
            state.listed = state.options.skip_epochs.contained_in(checkpoint.version);
        }
        for (position, record) in &durable.records {
            found.was_ready |= matches!(record[0], kind::AGREEMENT | kind::REJOINED);
            state.read_record(*position, record, &mut found);
        }
        state.streams.finish_restore(&state.replica);
        // Also of batches that do not count.
        let next = state.streams.own(&state.replica).next_sequence;
        state.streams.next_sequence = state.streams.next_sequence.max(next);
        state.streams.own_reported = state.membership.own_head;
        let (me, topology) = (state.replica.me, &state.replica.topology);
        let agreement = Agreement::new(me, topology, found.agreement, state.membership.taken());
        state.membership.driver.start(agreement);
        for (_, record) in found.epochs {
            let record = EpochRecord::decode(&record).expect(INTACT);
            // Those after a peer's checkpoint, which a crash took away, are merged again.
            let is_next = record.before == state.applied.epoch;
            let is_later = record.epoch > state.applied.epoch;
            let is_next = mutate!(ReplayedAfterGap: is_next => is_later);
            if is_next && state.may_replay(cx, &record) {
                cx.mark("geogauss.epoch_replayed");
                let fate = record.decisions.fate_if_listed();
                state.note_listed(record.epoch, fate);
                state.replay(cx, record);
            }
        }
        state.confirm_applied();
        Digests::begin(cx, &state.replica);
        state.checkpoints.durable = state.applied.epoch;
        let life = state.membership.view.lives[state.replica.me.index()];
        let after = state.epochs.reserved.max(state.applied.epoch);
        let after = mutate!(EpochReopened: after => epoch_reopened(state));
        state.epochs.skip_to(after.next().max(life.first));
        let (length, open) = (state.options.epoch(), state.epochs.open);
        state.epochs.clock = EpochClock::new(length, open, cx.now.at);
        state.replica.begin_run(cx.rng.u64(..));
        state.streams.update_available(cx, &state.replica);
        if !found.was_ready && !durable.is_replaced {
            // There was nobody before it.
            state.execution.caught_up = CaughtUp::Done;
        }
        self.begin_greetings(cx, found.was_ready, durable.is_replaced);
        if !self.state.presence.is_asking() {
            self.end_half_epoch(cx);
        }
        self.start_membership(cx);
        Self::start_progress(cx);
        cx.set_timer(Timer::Fetch, FETCH);
    }

    /// Ends the last epoch of the log, if it has a batch and no end.
    fn end_half_epoch(&mut self, cx: &mut Cx<'_, Self>) {
        let own = self.state.streams.own(&self.state.replica);
        let last = own.slots.get(&own.received).map(|slot| slot.batch.clone());
        if let Some(last) = last.filter(|batch| !batch.is_last) {
            cx.mark("geogauss.half_epoch_ended");
            self.broadcast(cx, last.epoch, true, Vec::new());
        }
    }
}

fn epoch_reopened(state: &State) -> SnapshotVersion {
    let last = state.streams.own(&state.replica).slots.values().next_back();
    let last = last.map_or(SnapshotVersion::ZERO, |slot| slot.batch.epoch);
    last.max(state.applied.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::Bid;

    #[test]
    fn the_record_of_an_epoch_survives_its_encoding_and_a_cut_one_is_refused() {
        let decisions = Decisions { is_valid: vec![true, false, true], ordered: Vec::new() };
        let heads = vec![Bid(1), Bid(300)];
        let (epoch, before) = (SnapshotVersion(5), SnapshotVersion(3));
        let record = EpochRecord { epoch, before, heads, decisions };
        let bytes = record.encode();
        assert_eq!(EpochRecord::decode(&bytes).unwrap(), record);
        assert!(EpochRecord::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}
