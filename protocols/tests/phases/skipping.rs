//! Epochs that the operator has listed to be skipped stay skipped without the list.
//!
//! Story: an epoch was skipped, and its clients were told so. The node was killed and started again
//! without the list. Calvin ran the epoch of its log, and the clients found their rows. If another
//! node had a checkpoint behind the epoch, the two differed in silence.

use pangea_core::ids::{SnapshotVersion, Ticket};
use pangea_core::protocol::{Input, ListedFate};
use pangea_core::txn::{Outcome, SqlState};
use pangea_protocols::calvin::{self, Calvin};
use pangea_protocols::inputs::SkippedEpochs;
use pangea_protocols::minerva::{Minerva, Options};

use super::failing::{fates, restart_all};
use super::support::words::Transcribed;
use super::support::{ClusterOf, by_hand};

fn of_minerva(epochs: &[u64]) -> Options {
    let skip_epochs = SkippedEpochs::new(epochs).expect("a list of epochs");
    Options { skip_epochs, ..by_hand() }
}

fn of_calvin(epochs: &[u64]) -> calvin::Options {
    let skip_epochs = SkippedEpochs::new(epochs).expect("a list of epochs");
    calvin::Options { skip_epochs, ..Calvin::by_hand() }
}

fn of_asynchronous_calvin(epochs: &[u64]) -> calvin::Options {
    let replication = calvin::Replication::Asynchronous;
    calvin::Options { replication, ..of_calvin(epochs) }
}

/// A cluster with an epoch behind it that has effects, and the next one in the list. With an
/// asynchronous master, each restart has epochs of its own.
fn listed<P: Transcribed>(
    nodes: usize,
    options: impl Fn(&[u64]) -> P::Options,
) -> (ClusterOf<P>, SnapshotVersion) {
    let mut cluster = ClusterOf::<P>::new(nodes, options(&[]));
    let ticket = cluster.call(0, "put x 1");
    cluster.epoch();
    cluster.run_for(100);
    assert_eq!(cluster.result(0, ticket), "");
    let before = cluster.nodes[0].applied().0;
    restart_all(&mut cluster);
    let after = cluster.nodes[0].applied().0;
    let epoch = SnapshotVersion(after + (after - before) + 1);
    cluster.options = options(&[epoch.0]);
    restart_all(&mut cluster);
    assert_eq!(cluster.nodes[0].applied().next(), epoch, "each restart has as many epochs");
    (cluster, epoch)
}

fn assert_told<P: Transcribed>(cluster: &ClusterOf<P>, (id, ticket): (usize, Ticket), epoch: u64) {
    let Some(Outcome::Aborted(abort)) = cluster.outcome(id, ticket) else {
        panic!("the client is told that its transaction was skipped");
    };
    assert_eq!(abort.code, SqlState::OPERATOR_INTERVENTION);
    let detail = abort.detail.as_deref().expect("a detail");
    let known = format!(
        "It is in epoch {epoch}, which was listed in skip_epochs on this node, and has no effect \
         here."
    );
    assert_eq!(detail, known);
}

/// Skips an epoch, and restarts all nodes without the list. If `ahead` is given, that node writes a
/// checkpoint behind the epoch first.
fn stays_skipped<P: Transcribed>(
    nodes: usize,
    ahead: Option<usize>,
    options: impl Fn(&[u64]) -> P::Options,
) {
    let (mut cluster, epoch) = listed::<P>(nodes, &options);
    let ticket = cluster.call(0, "put y 1");
    cluster.epoch();
    cluster.run_for(100);
    assert_told(&cluster, (0, ticket), epoch.0);
    let ticket = cluster.call(0, "put z 1");
    cluster.epoch();
    cluster.run_for(100);
    assert_eq!(cluster.result(0, ticket), "");
    if let Some(id) = ahead {
        cluster.step(id, Input::Stop);
        cluster.settle();
        cluster.run_for(500);
        let (checkpoint, _) = cluster.nodes[id].checkpoint.as_ref().expect("a last checkpoint");
        assert!(checkpoint.version >= epoch);
    }
    cluster.options = options(&[]);
    for _ in 0..2 {
        restart_all(&mut cluster);
        let values = ["x", "y", "z"].map(|key| cluster.everywhere(key));
        assert_eq!(values, ["1", "", "1"], "the epoch stays skipped");
        for id in (0..nodes).filter(|id| ahead != Some(*id)) {
            let fate = ListedFate::SkippedBefore { txns: 1 };
            assert_eq!(fates(&cluster, id), [(epoch, fate)], "and is named");
        }
    }
}

#[test]
fn a_skipped_epoch_stays_skipped_without_the_list() {
    for nodes in [1, 3] {
        stays_skipped::<Calvin>(nodes, None, of_calvin);
        stays_skipped::<Minerva>(nodes, None, of_minerva);
    }
    stays_skipped::<Calvin>(3, None, of_asynchronous_calvin);
}

#[test]
fn a_skipped_epoch_stays_skipped_if_one_node_has_a_checkpoint_behind_it() {
    for ahead in 0..3 {
        stays_skipped::<Calvin>(3, Some(ahead), of_calvin);
        stays_skipped::<Minerva>(3, Some(ahead), of_minerva);
    }
}

/// An epoch that ran before, and was listed then, is skipped again as well.
#[test]
fn an_epoch_of_the_log_that_is_skipped_stays_skipped_without_the_list() {
    for nodes in [1, 3] {
        let mut cluster = ClusterOf::<Calvin>::new(nodes, of_calvin(&[]));
        for put in ["put x 1", "put y 1"] {
            cluster.call(0, put);
            cluster.epoch();
        }
        let epoch = cluster.nodes[0].applied();
        cluster.options = of_calvin(&[epoch.0]);
        restart_all(&mut cluster);
        assert_eq!(cluster.everywhere("y"), "");
        cluster.options = of_calvin(&[]);
        restart_all(&mut cluster);
        assert_eq!(["x", "y"].map(|key| cluster.everywhere(key)), ["1", ""]);
        assert_eq!(fates(&cluster, 0), [(epoch, ListedFate::SkippedBefore { txns: 1 })]);
    }
}

/// An answer that depends on the skip waits until a restart would skip the epoch again.
fn answers_wait<P: Transcribed>(options: impl Fn(&[u64]) -> P::Options) {
    let (mut cluster, epoch) = listed::<P>(3, &options);
    let id = (cluster.leader() + 1) % 3;
    let ticket = cluster.call(id, "put y 1");
    cluster.batch(id);
    cluster.set_syncs(id, false);
    cluster.cut();
    cluster.run_for(50);
    assert_eq!(cluster.outcome(id, ticket), None, "nothing is durable");
    assert!(cluster.nodes[id].applied() < epoch, "nobody sees the epoch");
    cluster.set_syncs(id, true);
    cluster.run_for(50);
    assert_told(&cluster, (id, ticket), epoch.0);
    assert_eq!(cluster.everywhere("y"), "");
}

#[test]
fn nobody_is_told_of_a_skipped_epoch_before_the_skip_is_durable() {
    answers_wait::<Minerva>(of_minerva);
    answers_wait::<Calvin>(of_calvin);
}
