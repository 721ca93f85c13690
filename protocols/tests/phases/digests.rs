//! Digests: replicas compare what they have written, and the rows that nobody writes.

use pangea_core::ids::NodeId;
use pangea_core::key::Key;
use pangea_core::protocol::Protocol as _;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::mako::Mako;
use pangea_protocols::minerva::Options;

use super::script::TABLE;
use super::support::words::{Timer, Transcribed};
use super::support::{Cluster, ClusterOf, Fate, by_hand};

/// Changes a bit of a row in the memory of a node.
fn flip<P: Transcribed>(cluster: &ClusterOf<P>, id: usize, key: &str) {
    let key = Key::from(key.as_bytes());
    assert!(cluster.nodes[id].store.flip(TABLE, &key), "the row has a value");
}

/// Lets all nodes report their progress.
fn report<P: Transcribed>(cluster: &mut ClusterOf<P>) {
    (0..cluster.nodes.len()).for_each(|id| cluster.fire(id, Timer::Progress));
}

/// Asserts that one node has stopped for this reason, and that the others name it.
fn assert_stopped<P: Transcribed>(cluster: &ClusterOf<P>, id: usize, why: &str) {
    for (other, node) in cluster.nodes.iter().enumerate() {
        if other == id {
            let reason = node.stopped.as_deref().expect("it differs from the majority");
            assert!(reason.contains(why), "{reason}");
            let way = "pangea start --config FILE --replace";
            assert!(reason.contains(way), "says what to do: {reason}");
            assert!(!reason.contains("empty"), "--replace sets the contents aside: {reason}");
            continue;
        }
        assert_eq!(node.stopped, None);
        let status = node.brain.as_ref().expect("the node runs").status();
        assert_eq!(status.differing, [NodeId(id as u16)]);
    }
}

/// Story: replicas never told each other what they had written. A flipped bit of a row that a
/// transaction read made one replica differ from the others for good, and it served its own rows.
#[test]
fn a_replica_that_wrote_something_else_than_the_majority_stops() {
    for flipped in 0..3 {
        let (cluster, why) = differ_in_writes(flipped);
        assert_stopped(&cluster, flipped, &why);
    }
}

/// Lets a replica write something else than the others, and report it. Returns what it should say.
fn differ_in_writes(flipped: usize) -> (ClusterOf<Calvin>, String) {
    let mut cluster = ClusterOf::<Calvin>::new(3, Calvin::by_hand());
    cluster.call(0, "put x 1; put y 5");
    cluster.epoch();
    report(&mut cluster);
    flip(&cluster, flipped, "x");
    cluster.call(0, "add x 1");
    cluster.epoch();
    assert_ne!(cluster.value(flipped, "x"), cluster.value((flipped + 1) % 3, "x"));
    assert!(cluster.nodes.iter().all(|node| node.stopped.is_none()), "nothing was said yet");
    let epoch = cluster.nodes[0].applied();
    report(&mut cluster);
    (cluster, format!("in the writes of epoch {} in table 7", epoch.0))
}

/// Minerva applies the writes of a valid run on all replicas as they are, so a difference in a row
/// that is only read by clients is never in a write set.
#[test]
fn a_row_that_nobody_writes_is_compared_in_its_turn() {
    let (cluster, flipped) = differ_in_a_row();
    assert_stopped(&cluster, flipped, "in rows as of epoch 32 in table 7");
}

/// Lets a row differ on one replica for 32 epochs. Returns that replica.
fn differ_in_a_row() -> (Cluster, usize) {
    let mut cluster = Cluster::new(3, by_hand());
    for n in 0..40 {
        cluster.call(n % 3, &format!("put k{n} 1"));
    }
    cluster.epoch();
    let flipped = (cluster.leader() + 1) % 3;
    flip(&cluster, flipped, "k7");
    for n in 0..32 {
        cluster.call(0, &format!("put other {n}"));
        cluster.epoch();
    }
    report(&mut cluster);
    (cluster, flipped)
}

/// Mako's followers apply the writes of their leader, so a difference in a row that the leader
/// reads is in no write of a follower.
#[test]
fn a_replica_of_mako_whose_row_differs_stops_in_its_turn_and_the_others_go_on() {
    for is_leader in [false, true] {
        let (mut cluster, flipped) = differ_in_a_row_of_mako(is_leader);
        assert_stopped(&cluster, flipped, "in rows as of slice");
        let other = (flipped + 1) % 3;
        let ticket = cluster.call(other, "get k7; put last 1");
        cluster.run_for(3_000);
        assert_eq!(cluster.result(other, ticket), "1", "the next leader has the right row");
    }
}

/// Lets a row differ on the leader or on a follower for some slices. Returns that replica.
fn differ_in_a_row_of_mako(is_leader: bool) -> (ClusterOf<Mako>, usize) {
    let mut cluster = ClusterOf::<Mako>::new(3, Mako::by_hand());
    for n in 0..40 {
        cluster.call(n % 3, &format!("put k{n} 1"));
        cluster.run_for(2);
    }
    cluster.run_for(200);
    let flipped = (cluster.leader() + usize::from(!is_leader)) % 3;
    flip(&cluster, flipped, "k7");
    for n in 0..40 {
        cluster.call((flipped + 1) % 3, &format!("put other {n}"));
        cluster.run_for(2);
    }
    cluster.run_for(200);
    (cluster, flipped)
}

/// The tests above fail if digests are not compared, or do not cover rows.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_let_a_replica_that_differs_go_on() {
    use pangea_core::planted::{Bug, Planted};

    let _planted = Planted::new(Some(Bug::DifferencesPass));
    let (cluster, _) = differ_in_writes(1);
    assert!(cluster.nodes.iter().all(|node| node.stopped.is_none()));
    let _planted = Planted::new(Some(Bug::RowsNotCompared));
    let (cluster, _) = differ_in_a_row();
    assert!(cluster.nodes.iter().all(|node| node.stopped.is_none()));
    let (cluster, _) = differ_in_a_row_of_mako(false);
    assert!(cluster.nodes.iter().all(|node| node.stopped.is_none()));
}

/// Of two replicas neither can know which one is right, and either may be about to serve wrong
/// rows.
#[test]
fn two_replicas_that_differ_both_stop() {
    let mut cluster = ClusterOf::<Calvin>::new(2, Calvin::by_hand());
    cluster.call(0, "put x 1");
    cluster.epoch();
    flip(&cluster, 1, "x");
    cluster.call(0, "add x 1");
    cluster.epoch();
    report(&mut cluster);
    for node in &cluster.nodes {
        let reason = node.stopped.as_deref().expect("there is no majority");
        assert!(reason.contains("nodes 0, 1 differ from each other"), "{reason}");
        assert!(reason.contains("in table 7"), "{reason}");
    }
}

/// A replica that was away replays nothing for its peers, compares the epochs that it runs late,
/// and skips those that a checkpoint contains. None of these is a difference.
#[test]
fn replicas_that_are_late_or_skip_epochs_do_not_differ() {
    let options = Options { removal_ms: 1_000, epoch_ms: 15, cuts_kept: 5, ..by_hand() };
    let mut cluster = Cluster::new(3, options);
    let away = (cluster.leader() + 1) % 3;
    let work = |cluster: &mut Cluster, from: usize| {
        for n in 0..40 {
            let at = (away + 1 + n % 2) % 3;
            cluster.call(at, &format!("add x 1; put k{} {n}; del k{}", from + n, from + n / 2));
            cluster.batch(at);
            cluster.run_for(20);
        }
    };
    work(&mut cluster, 0);
    cluster.crash(away);
    cluster.start(away);
    work(&mut cluster, 100);
    cluster.rule = Box::new(move |from, to, _| match from.index() == away || to.index() == away {
        true => Fate::HoldBack,
        false => Fate::Deliver,
    });
    work(&mut cluster, 200);
    cluster.run_for(2_000);
    cluster.heal();
    cluster.run_for(2_000);
    work(&mut cluster, 300);
    cluster.run_for(500);
    assert!(cluster.nodes.iter().all(|node| node.stopped.is_none()));
    for node in &cluster.nodes {
        let status = node.brain.as_ref().expect("the node runs").status();
        assert_eq!(status.differing, []);
    }
    assert_eq!(cluster.everywhere("x"), "160");
}
