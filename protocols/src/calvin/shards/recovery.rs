//! Restart and checkpoint transfer of one of several shards (§5). The record of an epoch contains
//! the messages that the other shards sent for it, and those that they were sent.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, ShardId, SnapshotVersion, TxnId};
use pangea_core::protocol::Cx;

use super::super::recovery::{EpochRecord, ShardEpochRecord};
use super::super::{Calvin, Cut, Message};
use super::remote_results::RemoteResult;
use super::slice::Slice;
use super::{ShardStream, Shards};
use crate::replica::INTACT;

/// The messages that a peer retains for other shards, by epoch, with the encoded records as
/// received.
pub(in super::super) type HandedOn = Vec<(SnapshotVersion, Bytes, ShardEpochRecord)>;

impl ShardEpochRecord {
    /// Adds the messages sent to another shard for an epoch.
    pub(super) fn add_sent(
        &mut self,
        shard: ShardId,
        stream: &ShardStream,
        epoch: SnapshotVersion,
    ) {
        self.sent.extend(stream.outbound.slices.get(&epoch).map(|slice| (shard, slice.clone())));
        let results = stream.outbound.results.get(&epoch).into_iter().flatten();
        self.served.extend(results.map(|results| (shard, results.clone())));
    }

    /// Whether it can be the messages that a replica of this shard has sent for an epoch that it
    /// has run.
    fn is_handed_on(&self, shards: &Shards, epoch: SnapshotVersion) -> bool {
        let is_other = |shard: &ShardId| shards.streams.contains_key(shard);
        let is_sent = |slice: &Slice| slice.shard == shards.own_shard && slice.epoch == epoch;
        self.received_slices.is_empty()
            && self.received.is_empty()
            && self.sent.iter().all(|(shard, slice)| is_other(shard) && is_sent(slice))
            && self.served.iter().all(|(shard, results)| is_other(shard) && results.epoch == epoch)
            && self.dropped.iter().map(|(shard, _)| shard).eq(shards.streams.keys())
    }
}

impl Calvin {
    /// Continues from the checkpoint, if there is one, and replays the epochs in the log.
    pub(in super::super) fn replay_shards(
        &mut self,
        cx: &mut Cx<'_, Self>,
        records: Vec<(LogPosition, Bytes)>,
    ) {
        let (applied, heads) = (self.state.inputs.cut.applied, self.state.inputs.cut.heads.clone());
        self.shards().move_to(applied, &heads);
        let (mut first, mut dropped) = (None, BTreeMap::<ShardId, SnapshotVersion>::new());
        let (checkpoint, mut last) = (applied, SnapshotVersion::ZERO);
        for (position, record) in records {
            let record = EpochRecord::decode(&record).expect(INTACT);
            let EpochRecord { epoch, cut, of_shards: Some(of_shards) } = record else {
                panic!(
                    "the log has an epoch record of unpartitioned tables, but tables are \
                     partitioned"
                );
            };
            let is_known = epoch <= self.state.inputs.cut.applied;
            let next = self.state.inputs.cut.applied.next();
            let cut = match cut {
                // It arrived with a checkpoint that was not complete yet.
                None if !is_known => continue,
                Some(_) if epoch > next => continue,
                Some(cut) if !is_known && !self.may_replay(cx, (epoch, &cut), &of_shards) => {
                    break;
                }
                cut => cut,
            };
            first.get_or_insert(epoch);
            for (shard, upto) in &of_shards.dropped {
                let dropped = dropped.entry(*shard).or_default();
                *dropped = (*dropped).max(*upto);
            }
            if is_known {
                if epoch > last.next() {
                    // The messages sent for the epochs between them are not here.
                    first = Some(epoch);
                }
                last = epoch;
            }
            self.shards().records.insert(epoch, position);
            if is_known {
                self.retain_sent(epoch, of_shards);
                continue;
            }
            self.replay_epoch(cx, epoch, cut.expect("the record is of this node's log"), of_shards);
        }
        let applied = self.state.inputs.cut.applied;
        let shards = self.shards();
        let first = first.map_or(applied, |first: SnapshotVersion| SnapshotVersion(first.0 - 1));
        for stream in shards.streams.values_mut() {
            stream.inbound.away_since = cx.now.at;
            (stream.inbound.upto, stream.inbound.decided) = (applied, applied);
            stream.outbound.dropped = SnapshotVersion::ZERO;
            stream.drop_upto(first);
        }
        // Records are retained for the shard that is furthest behind; for the others, more was
        // truncated.
        for (shard, upto) in dropped {
            shards.stream(shard).drop_upto(upto);
        }
        if last < checkpoint {
            // The records of the epochs before it are not here.
            shards.streams.values_mut().for_each(|stream| stream.drop_upto(checkpoint));
        }
        shards.scheduled_upto = applied;
        self.retain_records();
    }

    /// Replays an epoch.
    fn replay_epoch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: Cut,
        of_shards: ShardEpochRecord,
    ) {
        cx.mark("calvin.epoch_replayed");
        self.slice_epoch(cx, epoch, cut);
        self.restore_received(epoch, of_shards);
        let is_given = self.schedule_epoch(cx);
        assert!(is_given || self.state.inputs.has_failed, "an epoch record contains all slices");
        while self.state.inputs.cut.applied < epoch && !self.state.inputs.has_failed {
            let before = self.shards().sharded.len();
            self.run_given(cx);
            let inputs = &self.state.inputs;
            let is_over = inputs.cut.applied == epoch || inputs.has_failed;
            assert!(
                is_over || self.shards().sharded.len() < before,
                "an epoch record contains all remote rows"
            );
        }
    }

    /// Retains the messages of an epoch in the checkpoint, which may have to be sent again.
    fn retain_sent(&mut self, epoch: SnapshotVersion, of_shards: ShardEpochRecord) {
        let shards = self.shards();
        shards.streams.values_mut().for_each(|stream| stream.outbound.unsettle());
        for (shard, slice) in of_shards.sent {
            let stream = shards.stream(shard);
            if epoch > stream.outbound.dropped {
                stream.outbound.slices.insert(epoch, slice);
            }
        }
        for (shard, results) in of_shards.served {
            let stream = shards.stream(shard);
            if epoch > stream.outbound.dropped {
                stream.outbound.results.entry(epoch).or_default().push(results);
            }
        }
    }

    /// Restores the messages that the other shards sent for an epoch.
    fn restore_received(&mut self, epoch: SnapshotVersion, of_shards: ShardEpochRecord) {
        let shards = self.shards();
        for slice in of_shards.received_slices {
            let stream = shards.stream(slice.shard);
            stream.inbound.slices.insert(epoch, slice);
            (stream.inbound.upto, stream.inbound.decided) = (epoch, epoch);
        }
        let received = shards.received.entry(epoch).or_default();
        for (shard, results) in of_shards.received {
            for item in results.read().expect(INTACT) {
                let (RemoteResult::Reads(txn, _) | RemoteResult::Outcome(txn, _)) = item;
                received.entry(results.line).or_default().insert((shard, txn), item);
            }
        }
    }

    /// The messages that this node retains for other shards, of epochs that it has run. A replica
    /// that installs this node's state receives them too. Otherwise no replica might have them if
    /// this one is lost.
    pub(in super::super) fn kept_for_others(&self) -> Bytes {
        let Some(shards) = &self.state.shards else { return Bytes::new() };
        let applied = self.confirmed();
        let dropped: Vec<_> =
            shards.streams.iter().map(|(to, it)| (*to, it.outbound.dropped)).collect();
        let least = dropped.iter().map(|(_, upto)| upto.next()).min().unwrap_or_default();
        let mut out = Vec::new();
        for epoch in (least.min(applied).0..=applied.0).map(SnapshotVersion) {
            let mut of_shards =
                ShardEpochRecord { dropped: dropped.clone(), ..ShardEpochRecord::default() };
            for (shard, stream) in &shards.streams {
                of_shards.add_sent(*shard, stream, epoch);
            }
            let record = EpochRecord { epoch, cut: None, of_shards: Some(of_shards) };
            out.put_bytes(&record.encode());
        }
        out.into()
    }

    /// Decodes the messages that a peer sent with its checkpoint of this version.
    pub(in super::super) fn read_handed_on(
        &self,
        bytes: &Bytes,
        version: SnapshotVersion,
    ) -> Result<HandedOn, DecodeError> {
        let wrong = || DecodeError::new("data for other shards");
        let from = &mut Reader::new(bytes);
        let mut all = HandedOn::new();
        while !from.is_empty() {
            let record = bytes.slice_ref(from.bytes("data for other shards")?);
            let EpochRecord { epoch, cut: None, of_shards: Some(of_shards) } =
                EpochRecord::decode(&record)?
            else {
                return Err(wrong());
            };
            let follows = all.last().is_none_or(|(last, ..)| epoch == last.next());
            let is_sound = |shards: &Shards| of_shards.is_handed_on(shards, epoch);
            if !follows || !self.state.shards.as_ref().is_some_and(is_sound) {
                return Err(wrong());
            }
            all.push((epoch, record, of_shards));
        }
        let last = all.last().map(|(epoch, ..)| *epoch);
        (last == self.state.shards.as_ref().map(|_| version)).then_some(all).ok_or_else(wrong)
    }

    /// Retains from now on the messages that the sender of a checkpoint retains for other shards,
    /// of the skipped epochs.
    pub(in super::super) fn retain_handed_on(
        &mut self,
        cx: &mut Cx<'_, Self>,
        handed_on: HandedOn,
    ) {
        let applied = self.state.inputs.cut.applied;
        let Some((.., last)) = handed_on.last() else { return };
        for (shard, upto) in last.dropped.clone() {
            let stream = self.shards().stream(shard);
            // The rows sent for an unfinished epoch are incomplete.
            stream.outbound.results.split_off(&applied.next());
            stream.outbound.paused.clear();
            if upto > applied {
                stream.drop_upto(upto);
            }
        }
        let dropped = self.shards().streams.values().map(|stream| stream.outbound.dropped).min();
        let from = dropped.unwrap_or_default().max(applied);
        for (epoch, record, of_shards) in handed_on.into_iter().filter(|(it, ..)| *it > from) {
            cx.mark("calvin.handed_on");
            let position = self.state.inputs.log_handed_on(cx, record);
            self.shards().records.insert(epoch, position);
            self.retain_sent(epoch, of_shards);
        }
        self.retain_records();
    }

    /// Drops the state of the epochs in a peer's checkpoint that was installed.
    pub(in super::super) fn move_shards(&mut self, cx: &mut Cx<'_, Self>) {
        let (applied, heads) = (self.state.inputs.cut.applied, self.state.inputs.cut.heads.clone());
        if self.state.shards.is_none() {
            return;
        }
        self.shards().move_to(applied, &heads);
        let over =
            self.shards().local_requests.iter().filter(|(_, request)| request.epoch <= applied);
        let over: Vec<TxnId> = over.map(|(txn, _)| *txn).collect();
        over.into_iter().for_each(|txn| self.lose_result(cx, txn));
        for stream in self.shards().streams.values_mut() {
            // They must request the skipped messages again.
            for node in std::mem::take(&mut stream.outbound.subscribers) {
                cx.send(node, Message::Resubscribe {});
            }
        }
    }
}
