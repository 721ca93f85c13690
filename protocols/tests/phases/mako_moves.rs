//! Mako §6.2, B: slots move to other shards.

use pangea_core::ids::ShardId;
use pangea_core::partition::Slot;
use pangea_core::protocol::Request;
use pangea_core::txn::Outcome;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::mako::Mako;

use super::mako_groups::{divided, is_committed};
use super::support::ClusterOf;
use super::support::words::Transcribed;

/// Asks that slots move. Returns the reason for a refusal, or nothing if they have moved.
fn move_slots<P: Transcribed>(
    cluster: &mut ClusterOf<P>,
    id: usize,
    moves: &[(u16, u16)],
) -> String {
    let moves = moves.iter().map(|(slot, shard)| (Slot(*slot), ShardId(*shard))).collect();
    let ticket = cluster.submit(id, Request::Move(moves));
    cluster.run_for(3_000);
    match cluster.outcome(id, ticket) {
        Some(Outcome::Committed { .. }) => String::new(),
        Some(Outcome::Aborted(abort)) => abort.message.clone(),
        None => "no answer".to_owned(),
    }
}

/// With two ranges, slot 0 has the keys below "m", and slot 1 the others.
#[test]
fn a_slot_moves_there_and_back_and_its_rows_with_it() {
    let mut cluster = divided(0);
    assert!(is_committed(&mut cluster, 0, "put a 1; put b 2; put x 3"));
    assert_eq!(move_slots(&mut cluster, 4, &[(0, 1)]), "");
    assert_eq!((cluster.value(1, "a"), cluster.value(5, "b")), ("1".into(), "2".into()));
    assert_eq!(cluster.counter(0, "slots"), 511);
    assert_eq!(cluster.counter(0, "rows_swept"), 2, "the originals are deleted");
    assert!(is_committed(&mut cluster, 0, "add a 10; add x 10"));
    assert_eq!(move_slots(&mut cluster, 0, &[(0, 0)]), "");
    assert!(is_committed(&mut cluster, 1, "add a 100"));
    assert_eq!((cluster.value(2, "a"), cluster.value(3, "x")), ("111".into(), "13".into()));
    assert_eq!(cluster.counter(1, "rows_swept"), 2);
}

/// A snapshot is read on the shards that had the slots at its version.
#[test]
fn snapshots_have_the_placement_of_their_version() {
    use pangea_core::protocol::Protocol as _;
    let mut cluster = divided(0);
    assert!(is_committed(&mut cluster, 0, "put a 1"));
    let before = cluster.nodes[0].applied();
    assert_eq!(move_slots(&mut cluster, 0, &[(0, 1)]), "");
    let after = cluster.nodes[0].applied();
    let protocol = cluster.nodes[0].brain.as_ref().expect("it runs");
    let owner = |at| protocol.partitions_at(at).unwrap().unwrap().placement().owner(Slot(0));
    assert_eq!((owner(before), owner(after)), (ShardId(0), ShardId(1)));
}

#[test]
fn moves_that_make_no_sense_are_refused_with_the_reason() {
    let mut cluster = divided(0);
    assert!(is_committed(&mut cluster, 0, "put a 1"));
    for (moves, why) in [
        (&[][..], "no slot is named"),
        (&[(1_024, 1)], "slots are below 1024"),
        (&[(3, 2)], "shards below 2"),
        (&[(3, 0), (3, 1)], "named twice"),
        (&[(2, 0)], "slot 2 is on shard 0 already"),
    ] {
        let refused = move_slots(&mut cluster, 2, moves);
        assert!(refused.contains(why), "{moves:?}: {refused}");
    }
    let first = cluster.submit(2, Request::Move(vec![(Slot(0), ShardId(1))]));
    assert_eq!(move_slots(&mut cluster, 3, &[(4, 1)]), "slots are being moved already");
    assert!(matches!(cluster.outcome(2, first), Some(Outcome::Committed { .. })));
    let mut alone = ClusterOf::<Mako>::new(3, Mako::by_hand());
    assert!(move_slots(&mut alone, 0, &[(0, 0)]).contains("one shard"));
    let mut other = ClusterOf::<Calvin>::new(3, Calvin::by_hand());
    assert!(move_slots(&mut other, 0, &[(0, 0)]).contains("can't move rows"));
}
