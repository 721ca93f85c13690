//! The messages that a node retains for other shards: after a restart from a checkpoint, and after
//! a checkpoint of a peer that retained them.

use super::super::recovery::{EpochRecord, ShardEpochRecord};
use super::super::shards::Shards;
use super::*;

/// The other two shards.
const FIRST: ShardId = ShardId(1);
const SECOND: ShardId = ShardId(2);

/// A node of the first of three shards whose state is that of a version.
fn start_at(version: u64) -> Node {
    let topology = Topology::one_node_per_region("t", &["eu"], Span::ZERO);
    let topology = topology.divided(Partitions::new(3, Rule::Hash { prefix_bytes: 8 }));
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    node.act(|calvin, cx| {
        calvin.state.inputs.cut.applied = SnapshotVersion(version);
        calvin.state.inputs.cut.confirm_applied();
        calvin.move_shards(cx);
    });
    node
}

/// The slices that were sent to both shards for an epoch, of which some are dropped up to an epoch.
fn of_shards(epoch: u64, dropped: [u64; 2]) -> ShardEpochRecord {
    let cut = CutId::default();
    let slice = Slice::new(SnapshotVersion(epoch), ShardId(0), cut, Vec::new());
    let places = [FIRST, SECOND].into_iter().zip(dropped);
    let is_kept = |(shard, upto): (ShardId, u64)| (epoch > upto).then_some(shard);
    let sent = places.clone().filter_map(is_kept).map(|shard| (shard, slice.clone())).collect();
    let dropped = places.map(|(shard, upto)| (shard, SnapshotVersion(upto))).collect();
    ShardEpochRecord { sent, dropped, ..ShardEpochRecord::default() }
}

fn record(epoch: u64, of_shards: ShardEpochRecord) -> Bytes {
    let epoch = SnapshotVersion(epoch);
    EpochRecord { epoch, cut: None, of_shards: Some(of_shards) }.encode().into()
}

/// The last epoch that was dropped for a shard, and the epochs of the slices retained for it.
fn retained(node: &Node, shard: ShardId) -> (u64, Vec<u64>) {
    let shards: &Shards = node.calvin.state.shards.as_ref().unwrap();
    let outbound = &shards.streams[&shard].outbound;
    (outbound.dropped.0, outbound.slices.keys().map(|epoch| epoch.0).collect())
}

/// Replays the records of these epochs, after a checkpoint.
fn replay(checkpoint: u64, records: &[(u64, [u64; 2])]) -> Node {
    let mut node = start_at(checkpoint);
    let records = records
        .iter()
        .map(|(epoch, dropped)| (LogPosition(*epoch), record(*epoch, of_shards(*epoch, *dropped))));
    let records = records.collect();
    node.act(|calvin, cx| calvin.replay_shards(cx, records));
    node
}

/// A shard that asks for more gets an answer that says so, and not a stream with a gap.
/// Calvin §5: a recovery begins with a checkpoint.
#[test]
fn a_restart_knows_what_was_dropped_for_each_shard_before_its_checkpoint() {
    let node = replay(5, &[(3, [2, 2]), (4, [4, 2]), (5, [4, 2])]);
    assert_eq!(retained(&node, FIRST), (4, vec![5]));
    assert_eq!(retained(&node, SECOND), (2, vec![3, 4, 5]));
    let node = replay(5, &[(3, [2, 2]), (4, [2, 2])]);
    for shard in [FIRST, SECOND] {
        assert_eq!(retained(&node, shard), (5, vec![]), "the record of the last epoch is missing");
    }
}

/// Installs what a peer retains of the epochs 6 and 7, on a node that has run five epochs and
/// retains them all. The peer has dropped these epochs of both shards.
fn hand_on(dropped: [u64; 2]) -> Node {
    let mut node = start_at(5);
    node.act(|calvin, cx| {
        let shards = calvin.state.shards.as_mut().unwrap();
        for epoch in 1..=5 {
            shards.records.insert(SnapshotVersion(epoch), LogPosition(epoch));
            for (shard, slice) in of_shards(epoch, [0, 0]).sent {
                let outbound = &mut shards.streams.get_mut(&shard).unwrap().outbound;
                outbound.slices.insert(slice.epoch, slice);
            }
        }
        let handed_on = [6, 7].map(|epoch| {
            let of_shards = of_shards(epoch, dropped);
            (SnapshotVersion(epoch), record(epoch, of_shards.clone()), of_shards)
        });
        calvin.retain_handed_on(cx, handed_on.into());
    });
    node
}

/// What the sender of a checkpoint has dropped counts for the epochs that the checkpoint skips.
/// Of those before, this node may retain more.
/// Calvin §5: a checkpoint is the starting point of a recovery.
#[test]
fn a_checkpoint_of_a_peer_takes_away_nothing_that_this_node_retains_itself() {
    let all: Vec<u64> = (1..=7).collect();
    let node = hand_on([3, 6]);
    assert_eq!(retained(&node, FIRST), (0, all.clone()));
    assert_eq!(retained(&node, SECOND), (6, vec![7]));
    let node = hand_on([5, 0]);
    assert_eq!(retained(&node, FIRST), (0, all.clone()));
    assert_eq!(retained(&node, SECOND), (0, all));
}
