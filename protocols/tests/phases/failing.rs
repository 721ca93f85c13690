//! Epochs that fail: a bug of the engine that one transaction triggers on all nodes.

use pangea_core::ids::SnapshotVersion;
use pangea_core::key::Key;
use pangea_core::partition::{Partitions, Rule};
use pangea_core::protocol::{Input, ListedEpoch, ListedFate};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_protocols::calvin::{self, Calvin};
use pangea_protocols::inputs::SkippedEpochs;
use pangea_protocols::minerva::{Minerva, Options};

use super::support::words::Transcribed;
use super::support::{ClusterOf, by_hand};
use super::upgrade::rerun;

/// Asserts that all nodes have stopped at an epoch, with a message that says what to do.
fn assert_all_stopped<P: Transcribed>(
    cluster: &ClusterOf<P>,
    (epoch, cause): (SnapshotVersion, &str),
) {
    for node in &cluster.nodes {
        let reason = node.stopped.as_deref().expect("the epoch fails on every node");
        for part in [
            format!("can't apply epoch {}: {cause}", epoch.0),
            format!("add {} to the list skip_epochs in the table [{}]", epoch.0, P::NAME),
        ] {
            assert!(reason.contains(&part), "{part:?} is not in: {reason}");
        }
        assert_eq!(node.applied().next(), epoch, "nobody sees a part of it");
    }
}

pub(super) fn restart_all<P: Transcribed>(cluster: &mut ClusterOf<P>) {
    for id in 0..cluster.nodes.len() {
        cluster.crash(id);
    }
    for id in 0..cluster.nodes.len() {
        cluster.nodes[id].stopped = None;
        cluster.start(id);
    }
    cluster.run_for(3_000);
}

fn an_epoch_that_fails_is_skipped<P: Transcribed>(
    cause: &str,
    options: impl Fn(SkippedEpochs) -> P::Options,
) {
    let mut cluster = ClusterOf::<P>::not_started(3, options(SkippedEpochs::default()));
    cluster.poison = Some(Key::from(&b"poison"[..]));
    cluster.start_all();
    let ticket = cluster.call(0, "put x 1");
    cluster.epoch();
    assert_eq!(cluster.result(0, ticket), "");
    let failing = cluster.nodes[0].applied().next();
    cluster.call(1, "put y 1");
    cluster.call(2, "put poison 1");
    for id in 0..3 {
        cluster.batch(id);
    }
    cluster.cut();
    // The coordinator may stop before the others know that the cut is decided.
    cluster.run_for(3_000);
    assert_all_stopped(&cluster, (failing, cause));
    restart_all(&mut cluster);
    assert_all_stopped(&cluster, (failing, cause));
    cluster.options = options(SkippedEpochs::new(&[failing.0]).expect("a list of epochs"));
    restart_all(&mut cluster);
    for id in 0..3 {
        assert_eq!(cluster.nodes[id].stopped, None);
        assert!(cluster.mark(id, "inputs.epoch_skipped") > 0);
        assert_eq!(fates(&cluster, id), [(failing, ListedFate::Skipped { txns: 2 })]);
        assert!(cluster.nodes[id].applied() >= failing);
    }
    let ticket = cluster.call(1, "put z 1");
    cluster.epoch();
    assert_eq!(cluster.result(1, ticket), "");
    let values = ["x", "y", "z", "poison"].map(|key| cluster.everywhere(key));
    assert_eq!(values, ["1", "", "1", ""], "the failing epoch has no effects, on all nodes");
    // A restart has the skipped epoch behind it, or skips it again.
    restart_all(&mut cluster);
    assert_eq!(cluster.everywhere("z"), "1");
    assert_eq!(fates(&cluster, 0), [(failing, ListedFate::Skipped { txns: 2 })]);
}

/// The listed epochs that a node has met, and what became of them.
pub(super) fn fates<P: Transcribed>(
    cluster: &ClusterOf<P>,
    id: usize,
) -> Vec<(SnapshotVersion, ListedFate)> {
    let brain = cluster.nodes[id].brain.as_ref().expect("the node runs");
    brain.listed_epochs().iter().map(|ListedEpoch { epoch, fate }| (*epoch, *fate)).collect()
}

/// An epoch with one acknowledged transaction is listed after a power failure, and again after a
/// stop in order. Returns the value that it wrote, after both.
fn a_wrong_epoch_is_listed<P: Transcribed>(
    options: impl Fn(SkippedEpochs) -> P::Options,
    after_power_failure: ListedFate,
) -> [String; 2] {
    let mut cluster = ClusterOf::<P>::new(3, options(SkippedEpochs::default()));
    let ticket = cluster.call(0, "put x 1");
    cluster.epoch();
    assert_eq!(cluster.result(0, ticket), "");
    let listed = cluster.nodes[0].applied();
    assert!(fates(&cluster, 0).is_empty());
    cluster.options = options(SkippedEpochs::new(&[listed.0]).expect("a list of epochs"));
    restart_all(&mut cluster);
    for id in 0..3 {
        assert_eq!(fates(&cluster, id), [(listed, after_power_failure)]);
    }
    let first = cluster.everywhere("x");
    for id in 0..3 {
        cluster.step(id, Input::Stop);
    }
    cluster.settle();
    cluster.run_for(500);
    restart_all(&mut cluster);
    for id in 0..3 {
        let checkpoint = &cluster.nodes[id].checkpoint.as_ref().expect("a last checkpoint").0;
        let fate = ListedFate::Contained { checkpoint: checkpoint.version };
        assert_eq!(fates(&cluster, id), [(listed, fate)]);
    }
    [first, cluster.everywhere("x")]
}

/// Story: an operator listed a wrong number. The acknowledged transactions of that epoch were
/// discarded without a word, and a node that had applied it said nothing either.
#[test]
fn what_becomes_of_a_listed_epoch_is_reported() {
    let options = |skip_epochs| Options { skip_epochs, ..by_hand() };
    let values = a_wrong_epoch_is_listed::<Minerva>(options, ListedFate::Applied);
    assert_eq!(values, ["1", "1"], "the log has what it wrote");
    let options = |skip_epochs| calvin::Options { skip_epochs, ..Calvin::by_hand() };
    let skipped = ListedFate::Skipped { txns: 1 };
    let values = a_wrong_epoch_is_listed::<Calvin>(options, skipped);
    assert_eq!(values, ["", ""], "a restart runs it again");
}

/// Story: the engine asserts what it relies on, on every replica alike. An assertion that failed
/// stopped all nodes at one epoch and again after every restart, and nothing but a dump that could
/// not be taken led out of it.
#[test]
fn minerva_goes_on_without_an_epoch_that_fails_on_all_nodes() {
    let cause = "v1099511627776 was written before v";
    let options = |skip_epochs| Options { skip_epochs, ..by_hand() };
    an_epoch_that_fails_is_skipped::<Minerva>(cause, options);
}

#[test]
fn calvin_goes_on_without_an_epoch_that_fails_on_all_nodes() {
    let cause = "the store failed during a write of a procedure, in transaction 2.1 ";
    let options = |skip_epochs| calvin::Options { skip_epochs, ..Calvin::by_hand() };
    an_epoch_that_fails_is_skipped::<Calvin>(cause, options);
}

/// Epochs of partitioned tables run together, and none can be skipped. A panic once took the whole
/// node down without a word of them.
#[test]
fn a_shard_that_can_not_apply_an_epoch_says_so() {
    let partitions = Partitions::new(2, Rule::Ranges { starts: vec![b"m".to_vec()] });
    let topology = Topology::one_node_per_region("test", &["a"], Span::from_ms(1));
    let mut cluster =
        ClusterOf::<Calvin>::not_started_in(topology.divided(partitions), Calvin::by_hand());
    cluster.poison = Some(Key::from(&b"poison"[..]));
    cluster.start_all();
    let ticket = cluster.call_declared(0, "put a 1; put z 1");
    cluster.epoch();
    cluster.run_for(100);
    assert_eq!(cluster.result(0, ticket), "");
    for is_again in [false, true] {
        if is_again {
            (0..2).for_each(|id| cluster.crash(id));
            cluster.nodes[1].stopped = None;
            (0..2).for_each(|id| cluster.start(id));
        } else {
            cluster.call_declared(0, "put a 2; put poison 1");
            cluster.epoch();
        }
        cluster.run_for(1_000);
        let reason = cluster.nodes[1].stopped.as_deref().expect("it can't go on");
        let cause = "the store failed during a write of a procedure, in transaction 0.";
        for part in ["node 1 can't apply epoch", cause, "skip_epochs can't be used", "mended"] {
            assert!(reason.contains(part), "{part:?} is not in: {reason}");
        }
        assert_eq!(cluster.nodes[0].stopped, None, "the other shard waits");
    }
    assert_eq!(cluster.value(1, "z"), "1", "what was acknowledged is there");
}

/// Story: the message of a node that failed alone said that every node stops at the epoch, and
/// advised to skip it. The node would have differed from the others.
#[test]
fn a_node_that_fails_alone_is_to_be_replaced() {
    let mut cluster = ClusterOf::<Minerva>::new(3, by_hand());
    let alone = (cluster.leader() + 1) % 3;
    cluster.crash(alone);
    cluster.call(cluster.leader(), "put poison 1");
    cluster.epoch();
    cluster.poison = Some(Key::from(&b"poison"[..]));
    cluster.start(alone);
    cluster.run_for(2_000);
    let reason = cluster.nodes[alone].stopped.as_deref().expect("the epoch fails there");
    for part in [
        format!("node {alone} can't apply epoch 1"),
        "If only this node has stopped".to_owned(),
        "--replace".to_owned(),
    ] {
        assert!(reason.contains(&part), "{part:?} is not in: {reason}");
    }
    cluster.crash(alone);
    cluster.poison = None;
    cluster.replace(alone);
    cluster.run_for(3_000);
    assert_eq!(cluster.everywhere("poison"), "1");
}

/// Story: a wrong epoch was listed, after a power failure. The log had it as applied, and it was
/// reported so. Its valid transaction was applied, but the one that was to be executed again was
/// not: an acknowledged write was lost, and a node with a checkpoint of the epoch differed.
#[test]
fn an_epoch_that_was_applied_is_not_replayed_in_part() {
    let options = |skip_epochs| Options { skip_epochs, ..rerun() };
    let mut cluster = ClusterOf::<Minerva>::new(3, options(SkippedEpochs::default()));
    let tickets = [0, 1].map(|id| cluster.call(id, "add x 1"));
    cluster.epoch();
    assert_eq!([cluster.result(0, tickets[0]), cluster.result(1, tickets[1])], ["", ""]);
    assert_eq!(cluster.everywhere("x"), "2");
    let listed = cluster.nodes[0].applied();
    cluster.options = options(SkippedEpochs::new(&[listed.0]).expect("a list of epochs"));
    restart_all(&mut cluster);
    assert_eq!(fates(&cluster, 0), [(listed, ListedFate::Applied)]);
    assert_eq!(cluster.everywhere("x"), "2", "all that was acknowledged");
}
