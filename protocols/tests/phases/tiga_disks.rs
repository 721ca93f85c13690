//! Tiga: checkpoints in memory, disks that stall or are lost, and replicas without a vote.

use pangea_core::ids::{NodeId, Ticket};
use pangea_core::partition::{Partitions, Rule};
use pangea_core::protocol::Protocol as _;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::Outcome;
use pangea_protocols::tiga::{Approach, Message, Options, Path, Tiga};

use super::script::program;
use super::support::words::Transcribed as _;
use super::support::{ClusterOf, Fate};

/// Replicas that take checkpoints all the time, and keep little for those that are away.
fn low(path: Path) -> Options {
    Options { checkpoint_bytes: 4_096, behind_bytes: 4_096, path, ..Tiga::by_hand() }
}

/// Loses all messages between a node and the others.
fn isolate(cluster: &mut ClusterOf<Tiga>, node: usize) {
    cluster.rule = Box::new(move |from, to, _| {
        let is_cut = [from.index(), to.index()].contains(&node);
        if is_cut { Fate::Lose } else { Fate::Deliver }
    });
}

/// The node is heard again.
fn return_from_isolation(cluster: &mut ClusterOf<Tiga>, node: usize) {
    cluster.heal();
    for other in (0..cluster.nodes.len()).filter(|other| *other != node) {
        if cluster.nodes[other].brain.is_some() {
            cluster.reconnect(other, node);
        }
    }
}

/// Commits so much that nobody keeps it for a node that is away.
fn commit_much(cluster: &mut ClusterOf<Tiga>, at: usize, scripts: impl Fn(usize) -> String) {
    for number in 0..150 {
        cluster.call_declared(at, &scripts(number));
        cluster.run_for(20);
    }
}

fn is_committed(cluster: &ClusterOf<Tiga>, at: usize, ticket: Ticket) -> bool {
    matches!(cluster.outcome(at, ticket), Some(Outcome::Committed { .. }))
}

/// The leader of a node's shard, as far as the node knows.
fn leader_known_by(cluster: &ClusterOf<Tiga>, node: usize) -> usize {
    let brain = cluster.nodes[node].brain.as_ref().expect("the node runs");
    brain.status().coordinator.expect("there is a view").index()
}

/// The leader restarts, so that there is another view.
fn restart_leader(cluster: &mut ClusterOf<Tiga>, leader: usize) {
    cluster.crash(leader);
    cluster.start(leader);
    cluster.run_for(1_500);
}

/// A replica of the second shard was away for a view, and has taken a checkpoint into its memory
/// alone. Transactions of both shards are sent to all replicas. Then the leader of the second shard
/// fails before anybody has its log, and the replica restarts. Returns how many transactions were
/// acknowledged, and how many of these are not in the next view.
///
/// With one shard, replies have hashes, which such a replica can't tell in any case: they need its
/// own log on its disk.
fn fast_behind_a_checkpoint() -> (usize, usize) {
    let options = Options { approach: Approach::Detective, ..low(Path::Super) };
    let mut cluster = two_shards(&["a", "b", "c"], options);
    let first = cluster.leaders()[1];
    let away = [1, 3, 5].into_iter().find(|node| *node != first).expect("there are three");
    isolate(&mut cluster, away);
    cluster.run_for(1_000);
    restart_leader(&mut cluster, first);
    commit_much(&mut cluster, first, |number| format!("put x {number}"));
    cluster.set_writes_checkpoints(away, false);
    return_from_isolation(&mut cluster, away);
    cluster.run_for(2_000);
    assert_eq!(cluster.mark(away, "tiga.checkpoint_installed"), 1);
    assert_eq!(cluster.value(away, "x"), "149");
    let [of_first, leader]: [usize; 2] = cluster.leaders().try_into().expect("there are two");
    assert_ne!(leader, away);
    let third = 9 - leader - away;
    let coordinator =
        [0, 2, 4].into_iter().find(|node| *node != of_first).expect("there are three");
    cluster.rule = Box::new(move |from, _, message| {
        let is_log = matches!(message, Message::LogSync { .. } | Message::Synced { .. });
        if is_log && from.index() == leader { Fate::Lose } else { Fate::Deliver }
    });
    let mut tickets = Vec::new();
    for number in 0..5 {
        let program = program("spread", &format!("put a{number} 1;put z{number} 1"));
        tickets.push(cluster.commit(coordinator, program));
        cluster.run_for(20);
    }
    let is_acknowledged = |number: &usize| is_committed(&cluster, coordinator, tickets[*number]);
    let acknowledged: Vec<usize> = (0..5).filter(is_acknowledged).collect();
    cluster.crash(leader);
    // The coordinator does not send them again.
    cluster.rule = Box::new(|_, _, message| match message {
        Message::Submit { .. } | Message::Found { .. } => Fate::Lose,
        _ => Fate::Deliver,
    });
    cluster.crash(away);
    cluster.start(away);
    cluster.run_for(3_000);
    let is_lost = |number: &&usize| cluster.value(third, &format!("z{number}")).is_empty();
    (acknowledged.len(), acknowledged.iter().filter(is_lost).count())
}

/// Tiga §3.4: fast replies wait for the disk. What a replica accepts behind a checkpoint in its
/// memory does not survive a restart as a part of the view.
#[test]
fn a_replica_behind_a_checkpoint_in_memory_sends_no_fast_replies() {
    assert_eq!(fast_behind_a_checkpoint(), (0, 0), "all three replicas have to reply");
}

/// Nodes of two shards, each with a replica in each region: keys below `m` are on the even nodes.
fn two_shards(regions: &[&str], options: Options) -> ClusterOf<Tiga> {
    let whole = Topology::one_node_per_region("t", regions, Span::from_ms(1));
    let rule = Rule::Ranges { starts: vec![b"m".to_vec()] };
    let topology = whole.divided(Partitions::new(2, rule));
    let mut cluster = ClusterOf::<Tiga>::not_started_in(topology, options);
    cluster.start_all();
    cluster
}

/// The cells up to which a node told that it needs no rows any more, in the order of its reports.
fn received(cluster: &ClusterOf<Tiga>, node: usize) -> Vec<u64> {
    let of = |(from, _, message): &(NodeId, NodeId, Message)| match message {
        Message::Progress { received, .. } if from.index() == node => Some(*received),
        _ => None,
    };
    cluster.sent.iter().filter_map(of).collect()
}

/// A replica of the second shard has taken a checkpoint into its memory alone, and runs cells that
/// need rows of the first shard. Then it restarts. Returns up to where it told before that it needs
/// no rows, and what it tells afterwards.
fn rows_behind_a_checkpoint() -> (u64, u64) {
    let mut cluster = two_shards(&["a", "b", "c"], low(Path::Simple));
    let leader = cluster.leaders()[1];
    let away = [1, 3, 5].into_iter().find(|node| *node != leader).expect("there are three");
    isolate(&mut cluster, away);
    commit_much(&mut cluster, 0, |number| format!("get a;put z {number}"));
    cluster.set_writes_checkpoints(away, false);
    return_from_isolation(&mut cluster, away);
    cluster.run_for(2_000);
    assert_eq!(cluster.mark(away, "tiga.checkpoint_installed"), 1);
    for number in 0..10 {
        cluster.call_declared(0, &format!("get a;put z {number}"));
        cluster.run_for(100);
    }
    assert_eq!(cluster.value(away, "z"), "9");
    let before = received(&cluster, away).into_iter().max().expect("it reports");
    cluster.crash(away);
    cluster.sent.clear();
    cluster.start(away);
    cluster.run_for(200);
    (before, received(&cluster, away)[0])
}

#[test]
fn a_replica_behind_a_checkpoint_in_memory_still_needs_the_rows_of_other_shards() {
    let (before, after) = rows_behind_a_checkpoint();
    assert!(before <= after, "it told {before}, and needs those after {after}");
}

/// The leader of the second shard was cut off, and has added more to its log than the others have
/// committed in two later views. It takes a checkpoint of them into its memory alone, continues
/// behind it, and restarts. Returns whether it is like the others in the end.
fn checkpoint_behind_a_long_log() -> bool {
    // So that a leader adds to its log without the word of the other one.
    let options = Options { approach: Approach::Detective, ..low(Path::Simple) };
    let mut cluster = two_shards(&["a", "b", "c"], options);
    let away = cluster.leaders()[1];
    let others: Vec<usize> = [1, 3, 5].into_iter().filter(|node| *node != away).collect();
    isolate(&mut cluster, away);
    for number in 0..120 {
        cluster.call_declared(away, &format!("put y{number} 1"));
        if number % 4 == 0 {
            cluster.call_declared(others[0], &format!("put v{number} 1"));
        }
        cluster.run_for(10);
    }
    let second = leader_known_by(&cluster, others[0]);
    assert_ne!(second, away);
    cluster.crash(second);
    cluster.start(second);
    let third = others[0] + others[1] - second;
    for number in 0..150 {
        cluster.call_declared(away, &format!("put z{number} 1"));
        cluster.call_declared(third, &format!("put x{number} 1"));
        cluster.run_for(20);
    }
    let last = |node: usize| cluster.counter(node, "log_last");
    assert!(last(away) > last(third), "{} cells, and {}", last(away), last(third));
    cluster.set_writes_checkpoints(away, false);
    return_from_isolation(&mut cluster, away);
    cluster.run_for(1_000);
    assert!(cluster.mark(away, "tiga.start_too_far") > 0, "it has the log of its view");
    assert_eq!(cluster.mark(away, "tiga.checkpoint_installed"), 1);
    cluster.call_declared(third, "put x after");
    cluster.run_for(200);
    assert_eq!(cluster.value(away, "x"), "after");
    cluster.crash(away);
    cluster.start(away);
    cluster.set_writes_checkpoints(away, true);
    cluster.run_for(2_000);
    let gaps = cluster.mark(away, "tiga.record_after_gap");
    let is_same = |key: &str| {
        let values = [1, 3, 5].map(|node| cluster.value(node, key));
        values[0] == values[1] && values[1] == values[2]
    };
    let are_same = (0..150).all(|number| is_same(&format!("x{number}")));
    gaps > 0 && are_same && cluster.value(away, "x") == "after"
}

/// Algorithm 6 of the report. The records after the checkpoint continue it, and not the log of an
/// earlier view, although that has more cells.
#[test]
fn cells_behind_a_checkpoint_in_memory_do_not_continue_a_long_log_of_an_earlier_view() {
    assert!(checkpoint_behind_a_long_log());
}

/// The new leader of a shard has the log of its view, and its disk stalls. Returns how often it has
/// begun to lead until it crashes, and until it has the log again.
fn leader_whose_disk_stalls() -> (u64, u64) {
    let mut cluster = two_shards(&["a", "b", "c"], Tiga::by_hand());
    let old = cluster.leaders()[1];
    let view = cluster.counter(old, "view");
    let is_start = move |message: &Message| match message {
        Message::View { started, .. } => *started > view,
        _ => false,
    };
    cluster.rule = Box::new(move |_, to, message| {
        let is_held = to.index() % 2 == 1 && is_start(message);
        if is_held { Fate::HoldBack } else { Fate::Deliver }
    });
    cluster.sent.clear();
    cluster.crash(old);
    while !cluster.sent.iter().any(|(.., message)| is_start(message)) {
        cluster.run_for(1);
    }
    let next = [1, 3, 5].into_iter().find(|node| *node != old).expect("there are three");
    let leader = leader_known_by(&cluster, next);
    let led = cluster.mark(leader, "tiga.leads");
    let entered = cluster.mark(leader, "tiga.view_entered");
    cluster.set_syncs(leader, false);
    cluster.heal();
    cluster.run_for(50);
    assert_eq!(cluster.mark(leader, "tiga.view_entered"), entered + 1);
    let stalled = cluster.mark(leader, "tiga.leads") - led;
    cluster.crash(leader);
    cluster.set_syncs(leader, true);
    cluster.start(leader);
    cluster.run_for(200);
    (stalled, cluster.mark(leader, "tiga.leads") - led)
}

/// A leader that crashed before the log of its view was durable would lead the view twice, the
/// second time without its promises.
#[test]
fn a_leader_leads_when_the_log_of_its_view_is_on_its_disk() {
    assert_eq!(leader_whose_disk_stalls(), (0, 1));
}

/// Tiga §4: a coordinator crashed when one of two leaders had its transaction. The other one gets
/// it from the first.
#[test]
fn a_transaction_of_a_restarted_coordinator_that_one_of_two_leaders_has_commits() {
    let mut cluster = two_shards(&["a", "b", "c"], Tiga::by_hand());
    let leaders = cluster.leaders();
    let coordinator = [0, 2, 4].into_iter().find(|it| *it != leaders[0]).expect("there are three");
    cluster.rule = Box::new(move |_, to, message| {
        let is_lost = matches!(message, Message::Submit { .. }) && to.index() % 2 == 1;
        if is_lost { Fate::Lose } else { Fate::Deliver }
    });
    cluster.call_declared(coordinator, "put a 1;put z 1");
    cluster.run_for(2);
    // The transaction is on its way, and not over yet.
    assert_eq!(cluster.value(leaders[0], "a"), "");
    cluster.crash(coordinator);
    cluster.start(coordinator);
    cluster.run_for(1_000);
    assert!(cluster.mark(leaders[1], "tiga.unknown_fetched") > 0);
    for node in 0..6 {
        let key = if node % 2 == 0 { "a" } else { "z" };
        assert_eq!(cluster.value(node, key), "1", "node {node}");
    }
}

/// With two replicas of a shard, the log of one is enough to begin a view. Story: transactions at
/// its end were on the disk of the leader alone. Without that disk the other replica would have
/// waited for them forever.
#[test]
fn of_two_replicas_both_have_the_transactions_with_which_a_view_begins() {
    // So that the leader of the first shard stays when that of the second one restarts.
    let options = Options { leaders: "rotated".to_owned(), ..Tiga::by_hand() };
    let mut cluster = two_shards(&["a", "b"], options);
    let [leader, of_other]: [usize; 2] = cluster.leaders().try_into().expect("there are two");
    let follower = 2 - leader;
    let is_bodies = |message: &Message| {
        matches!(message, Message::Submit { .. } | Message::Found { .. } | Message::LogSync { .. })
    };
    cluster.rule = Box::new(move |_, to, message| {
        let is_lost = is_bodies(message) && to.index() == follower;
        if is_lost { Fate::Lose } else { Fate::Deliver }
    });
    cluster.call_declared(leader, "put a 1");
    cluster.run_for(50);
    cluster.sent.clear();
    cluster.crash(of_other);
    cluster.start(of_other);
    cluster.run_for(600);
    assert_eq!(cluster.leaders()[0], leader);
    let at = |is_it: &dyn Fn(&Message) -> bool| {
        let mut sent = cluster.sent.iter();
        sent.position(|(from, _, message)| from.index() == leader && is_it(message))
    };
    let prepared = at(&|message| matches!(message, Message::Prepare { .. }));
    let proposed = at(&|message| matches!(message, Message::Proposal { .. }));
    assert!(prepared.is_some() && prepared < proposed, "{prepared:?}, {proposed:?}");
    // The leader's disk is lost at this moment.
    cluster.crash(leader);
    cluster.rule = Box::new(|_, _, _| Fate::Deliver);
    cluster.replace(leader);
    cluster.run_for(3_000);
    assert_eq!(cluster.value(follower, "a"), "1");
    assert_eq!(cluster.value(leader, "a"), "1");
}

/// Three voting replicas, and a fourth one without a vote.
fn with_non_voting(options: Options) -> ClusterOf<Tiga> {
    let whole = Topology::one_node_per_region("t", &["a", "b", "c", "d"], Span::from_ms(1));
    let mut cluster =
        ClusterOf::<Tiga>::not_started_in(Topology { non_voting: 1, ..whole }, options);
    cluster.start_all();
    cluster
}

/// Story: decisions about views, which contain the ends of logs, were kept as long as a replica
/// without a vote was away.
#[test]
fn decisions_are_not_kept_for_a_replica_without_a_vote() {
    let mut cluster = with_non_voting(low(Path::Simple));
    cluster.crash(3);
    for number in 0..5 {
        let leader = cluster.leader();
        restart_leader(&mut cluster, leader);
        commit_much(&mut cluster, leader, |at| format!("put x {}", 1_000 * number + at));
    }
    let kept = [0, 1, 2].map(|node| cluster.counter(node, "decisions_kept"));
    assert!(cluster.counter(0, "view") > 5, "a view began with each restart");
    assert!(kept.iter().all(|kept| *kept <= 2), "{kept:?}");
    // Nobody has the logs of the last view but in its own.
    for node in 0..3 {
        cluster.crash(node);
    }
    (0..4).for_each(|node| cluster.start(node));
    cluster.run_for(3_000);
    assert!(cluster.mark(3, "tiga.checkpoint_installed") > 0);
    assert_eq!(cluster.everywhere("x"), "4149");
    cluster.call_declared(3, "put x last");
    cluster.run_for(500);
    assert_eq!(cluster.everywhere("x"), "last");
}

#[test]
fn no_view_begins_for_a_replica_without_a_vote_that_lost_its_disk() {
    let mut cluster = with_non_voting(Tiga::by_hand());
    cluster.call_declared(0, "put x 1");
    cluster.run_for(100);
    let view = cluster.counter(0, "view");
    cluster.crash(3);
    cluster.replace(3);
    cluster.run_for(1_500);
    assert_eq!(cluster.mark(3, "tiga.rejoined"), 1);
    assert_eq!(cluster.counter(0, "view"), view);
    let own = cluster.call_declared(3, "put x 2");
    cluster.run_for(500);
    assert!(is_committed(&cluster, 3, own));
    assert_eq!(cluster.everywhere("x"), "2");
}

/// The tests above fail with these bugs.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_lose_what_is_behind_a_checkpoint_in_memory() {
    use pangea_core::planted::{Bug, Planted};

    let planted = Planted::new(Some(Bug::FastBehindCheckpoint));
    let (acknowledged, lost) = fast_behind_a_checkpoint();
    assert!(acknowledged > 0 && lost > 0, "{acknowledged} acknowledged, {lost} lost");
    drop(planted);
    let planted = Planted::new(Some(Bug::KeptBehindCheckpoint));
    let (before, after) = rows_behind_a_checkpoint();
    assert!(before > after, "{before}, {after}");
    drop(planted);
    let planted = Planted::new(Some(Bug::BaseForgotten));
    assert!(!checkpoint_behind_a_long_log());
    drop(planted);
    let planted = Planted::new(Some(Bug::LeadsBeforeFsync));
    assert_eq!(leader_whose_disk_stalls(), (1, 2));
    drop(planted);
}
