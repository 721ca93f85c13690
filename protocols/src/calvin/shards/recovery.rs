//! Restart and checkpoint transfer of one of several shards (§5): what the other shards sent for an
//! epoch is in its record, and so is what they were sent.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, ShardId, SnapshotVersion};
use pangea_core::protocol::Cx;

use super::super::Calvin;
use super::super::recovery::{EpochRecord, OfShards};
use super::items::{Item, Items};
use crate::inputs::INTACT;

impl Calvin {
    /// Goes on from the checkpoint, if there is one, and runs the epochs that the log has.
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
                panic!("the record of an epoch says nothing of shards: tables were not divided");
            };
            if epoch > self.state.inputs.cut.applied.next() {
                continue;
            }
            let is_known = epoch <= self.state.inputs.cut.applied;
            if !is_known && !self.state.inputs.follows_rules(cx, epoch, &cut) {
                break;
            }
            first.get_or_insert(epoch);
            for (shard, upto) in &of_shards.dropped {
                let dropped = dropped.entry(*shard).or_default();
                *dropped = (*dropped).max(*upto);
            }
            if is_known {
                if epoch > last.next() {
                    // What was sent between them is not here.
                    first = Some(epoch);
                }
                last = epoch;
            }
            self.shards().records.insert(epoch, position);
            if is_known {
                self.keep_sent(epoch, of_shards);
                continue;
            }
            cx.mark("calvin.epoch_replayed");
            self.slice_epoch(cx, epoch, cut);
            self.take_received(epoch, of_shards);
            assert!(self.give_epoch(cx), "all of an epoch is in its record");
            self.run_epoch(cx);
            assert_eq!(self.state.inputs.cut.applied, epoch, "with all that it needs");
        }
        let applied = self.state.inputs.cut.applied;
        let shards = self.shards();
        let first = first.map_or(applied, |first: SnapshotVersion| SnapshotVersion(first.0 - 1));
        for stream in shards.streams.values_mut() {
            stream.away_since = cx.now.at;
            stream.upto = applied;
            stream.dropped = SnapshotVersion::ZERO;
            stream.drop_upto(first);
        }
        // Records are kept for the shard that lacks most: of the others, more was dropped.
        for (shard, upto) in dropped {
            shards.stream(shard).drop_upto(upto);
        }
        if last < checkpoint {
            // It came from a peer: what led to it was not run here.
            shards.streams.values_mut().for_each(|stream| stream.drop_upto(checkpoint));
        }
        shards.given = applied;
        self.keep_records();
    }

    /// What was sent for an epoch that is in the checkpoint may have to be sent again.
    fn keep_sent(&mut self, epoch: SnapshotVersion, of_shards: OfShards) {
        let shards = self.shards();
        for (shard, slice) in of_shards.sent {
            shards.stream(shard).slices.insert(epoch, slice);
        }
        for (shard, items) in of_shards.served {
            shards.stream(shard).items.entry(epoch).or_default().push(items);
        }
    }

    /// What the other shards sent for an epoch.
    fn take_received(&mut self, epoch: SnapshotVersion, of_shards: OfShards) {
        let shards = self.shards();
        for slice in of_shards.came {
            shards.stream(slice.shard).came.insert(epoch, slice);
        }
        for (shard, items) in of_shards.received {
            let read = |items: &Items| items.read().expect(INTACT);
            for item in read(&items) {
                if let Item::Part(txn, part) = item {
                    shards.sharded.receive(txn, shard, part);
                }
            }
        }
    }

    /// A checkpoint of a peer was installed: what is here of the epochs in it is of no use.
    pub(in super::super) fn move_shards(&mut self, cx: &mut Cx<'_, Self>) {
        let (applied, heads) = (self.state.inputs.cut.applied, self.state.inputs.cut.heads.clone());
        if self.state.shards.is_none() {
            return;
        }
        self.shards().move_to(applied, &heads);
        let over: Vec<u64> = self.shards().unresolved.keys().copied().collect();
        over.into_iter().for_each(|sequence| self.lose_result(cx, sequence));
        let first = self.state.sequencer.in_flight.front().map(|first| first.txn.sequence());
        let results = &mut self.shards().results;
        *results = first.map_or_else(Default::default, |first| results.split_off(&first));
        for stream in self.shards().streams.values() {
            // They may wait for what will never come from here.
            let upto = stream.dropped;
            for node in &stream.subscribers {
                cx.send(*node, super::super::Message::Missed { upto });
            }
        }
    }
}
