//! Mako: bad input. Each is refused, and nothing is lost.

use bytes::Bytes;
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::Input;
use pangea_core::txn::Outcome;
use pangea_protocols::mako::{Mako, Message};

use super::mako_groups::{divided, is_committed};
use super::support::words::Transcribed as _;
use super::support::{ClusterOf, Fate};

fn send(cluster: &mut ClusterOf<Mako>, from: usize, to: usize, message: Message) {
    cluster.step(to, Input::Message { from: NodeId(from as u16), message });
}

/// Two leaders of one epoch: entries of the other one are not taken.
#[test]
fn entries_of_a_second_leader_of_an_epoch_are_not_taken() {
    let mut cluster = ClusterOf::<Mako>::new(3, Mako::by_hand());
    assert!(is_committed(&mut cluster, 0, "put x 1"));
    let (leader, epoch) = (cluster.leader(), cluster.counter(0, "epoch"));
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let (end, after) = (SnapshotVersion::ZERO, SnapshotVersion(cluster.counter(one, "log_last")));
    let (committed, stable, entries) = (after, after, Bytes::new());
    let append = Message::Append { epoch, end, after, committed, stable, entries };
    for to in [one, leader] {
        let last = cluster.counter(to, "log_last");
        send(&mut cluster, other, to, append.clone());
        assert_eq!(cluster.mark(to, "mako.log_of_another_epoch"), 1);
        assert_eq!(cluster.counter(to, "log_last"), last);
    }
    assert!(is_committed(&mut cluster, one, "put x 2"));
    assert_eq!((cluster.everywhere("x"), cluster.leader()), ("2".into(), leader));
}

/// Two leaders of one epoch: a node of several shards tells of the other one.
#[test]
fn a_second_configuration_of_an_epoch_is_refused() {
    let mut cluster = divided(0);
    assert!(is_committed(&mut cluster, 0, "put a 1; put x 1"));
    let (leaders, epoch) = (cluster.leaders(), cluster.counter(0, "epoch") as u8);
    assert!(epoch < 128, "it is encoded in one byte");
    // The number, the leaders, since when they lead, the last epoch that has begun, no cut, and no
    // slots that have moved or are to move.
    let config: &[u8] = &[epoch, 2, 2, 0, 2, 0, 2, 1, 1, epoch - 1, 0, 0, 0, 0, 0];
    let closed = SnapshotVersion::ZERO;
    for id in 1..6 {
        let config = Bytes::copy_from_slice(config);
        send(&mut cluster, 0, id, Message::Config { config, closed, moved: 0 });
        assert_eq!(cluster.mark(id, "mako.two_leaders"), 1);
    }
    cluster.run_for(1_000);
    assert_eq!(cluster.leaders(), leaders);
    assert!(is_committed(&mut cluster, 3, "put a 2; put x 2"));
    assert_eq!((cluster.value(0, "a"), cluster.value(1, "x")), ("2".into(), "2".into()));
}

/// Votes of an epoch before do not count: neither for an entry, nor for a log.
#[test]
fn votes_of_an_epoch_before_do_not_count() {
    let mut cluster = ClusterOf::<Mako>::new(3, Mako::by_hand());
    let leader = cluster.leader();
    cluster.crash(leader);
    cluster.run_for(6_000);
    cluster.start(leader);
    cluster.run_for(6_000);
    let (leader, epoch) = (cluster.leader(), cluster.counter(0, "epoch"));
    let follower = (leader + 1) % 3;
    assert!(epoch > 1, "it is another epoch");
    cluster.on_words(|_, _, words| match words.starts_with("Ack") {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
    let ticket = cluster.call(leader, "put x 1");
    cluster.run_for(50);
    let before = cluster.mark(leader, "mako.ack_of_another_epoch");
    let upto = SnapshotVersion(cluster.counter(leader, "log_last"));
    send(&mut cluster, follower, leader, Message::Ack { epoch: epoch - 1, upto });
    assert_eq!(cluster.mark(leader, "mako.ack_of_another_epoch"), before + 1);
    let (last, published) = (upto, upto);
    let (epoch, log_epoch) = (epoch - 1, epoch - 1);
    let before = cluster.mark(leader, "mako.report_for_another");
    let report =
        Message::Report { epoch, log_epoch, last, published, is_whole: true, is_again: false };
    send(&mut cluster, follower, leader, report);
    assert_eq!(cluster.mark(leader, "mako.report_for_another"), before + 1);
    cluster.run_for(50);
    assert_eq!(cluster.outcome(leader, ticket), None, "no majority has it");
    cluster.on_words(|_, _, _| Fate::Deliver);
    cluster.reconnect(leader, follower);
    cluster.run_for(6_000);
    assert!(matches!(cluster.outcome(leader, ticket), Some(Outcome::Committed { .. })));
    assert_eq!(cluster.everywhere("x"), "1");
}

/// Story: a leader that was replaced and leads again may have refused a transaction in its first
/// epoch, and execute it in the later one. The refusal arrives late.
#[test]
fn a_refusal_of_an_epoch_before_is_not_believed() {
    let mut cluster = ClusterOf::<Mako>::new(3, Mako::by_hand());
    let (leader, epoch) = (cluster.leader(), cluster.counter(0, "epoch"));
    let follower = (leader + 1) % 3;
    cluster.on_words(|_, _, words| match words.starts_with("Forward") {
        true => Fate::HoldBack,
        false => Fate::Deliver,
    });
    let ticket = cluster.call(follower, "put x 1");
    cluster.run_for(50);
    let mut names = cluster.sent.iter().filter_map(|(_, _, message)| match message {
        Message::Forward { requests, .. } => Some(requests.slice(1..9)),
        _ => None,
    });
    let name = names.next().expect("it was forwarded");
    let txn = u64::from_le_bytes(name[..].try_into().unwrap());
    let refused = Message::Refused { epoch: epoch - 1, txn, abort: Bytes::new() };
    send(&mut cluster, leader, follower, refused);
    assert_eq!(cluster.mark(follower, "mako.refused_by_another"), 1);
    cluster.on_words(|_, _, _| Fate::Deliver);
    cluster.release();
    cluster.run_for(500);
    assert!(matches!(cluster.outcome(follower, ticket), Some(Outcome::Committed { .. })));
}
