//! Tests of whole nodes with a toy protocol: the real event loop, log and checkpoints, on an
//! in-memory network.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::support::mem_disk::MemDisk;
use crate::support::mem_net::MemNet;
use crate::support::toy::{POISON, ToyProtocol, add, counter};
use pangea_core::guarantee::Isolation;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Status;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry, SqlState};
use pangea_node::disk::{Disk, OsDisk};
use pangea_node::driver::{IN_FLIGHT_MAX, Network, PEER_BYTES_MAX};
use pangea_node::log::Durability;
use pangea_node::node::{Node, NodeOptions, StartError};
use pangea_sql::engine::{Engine, Unavailable};

/// Far longer than any operation here takes: a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(30);

const NAMES: [&str; 3] = ["eu", "us", "ap"];

struct Cluster {
    net: MemNet<ToyProtocol>,
    disks: Vec<MemDisk>,
    nodes: Vec<Option<Node<ToyProtocol>>>,
    checkpoint_additions: u64,
}

fn options(count: usize, me: usize, disk: Arc<dyn Disk>, dir: &Path) -> NodeOptions<ToyProtocol> {
    let topology = Topology::one_node_per_region("test", &NAMES[..count], Span::from_ms(1));
    let registry = Arc::new(Registry::default());
    let me = NodeId(me as u16);
    let mut options = NodeOptions::new(me, Arc::new(topology), registry, dir.to_owned());
    options.disk = disk;
    options.tuning.workers = 1;
    options.tuning.log_segment_bytes = 4_096;
    // Without history, all pins are the node's own.
    options.tuning.history_s = 0;
    options
}

impl Cluster {
    fn start(count: usize, checkpoint_additions: u64) -> Self {
        let disks = vec![(); count].into_iter().map(|()| MemDisk::default()).collect();
        let nodes = (0..count).map(|_| None).collect();
        let mut cluster = Self { net: MemNet::default(), disks, nodes, checkpoint_additions };
        (0..count).for_each(|me| cluster.start_node(me).unwrap());
        cluster
    }

    fn start_node(&mut self, me: usize) -> Result<(), StartError> {
        let disk = Arc::new(self.disks[me].clone());
        let mut options = options(self.nodes.len(), me, disk, Path::new("/data"));
        options.protocol.checkpoint_additions = self.checkpoint_additions;
        let node = Node::start_on(options, |handle| Ok(self.net.connect(handle)))?;
        assert!(self.nodes[me].replace(node).is_none());
        Ok(())
    }

    fn node(&self, me: usize) -> &Node<ToyProtocol> {
        self.nodes[me].as_ref().expect("a running node")
    }

    fn stop(&mut self, me: usize) {
        self.nodes[me].take().expect("a running node").stop().unwrap();
    }

    /// Simulates a power loss of a node. The generator decides which unsynced writes its disk
    /// retains.
    fn crash(&mut self, me: usize, rng: &mut fastrand::Rng) {
        self.disks[me].crash(rng);
        // A power loss is not a clean stop: the dropped node's disk handles have had no effect
        // since the first crash.
        drop(self.nodes[me].take());
        self.disks[me].crash(rng);
    }

    /// Submits an addition and waits for its outcome.
    fn add(&self, me: usize, amount: u64) -> Result<Outcome, Unavailable> {
        add_on(self.node(me), amount)
    }

    /// Waits until this counter is `total` in the stores of all running nodes.
    fn wait_counter(&self, node: u16, total: u64) {
        for running in self.nodes.iter().flatten() {
            let store = running.handle().store();
            wait_until("the counters agree", || counter(store, node) == total);
        }
    }

    fn log_paths(&self, me: usize) -> Vec<PathBuf> {
        let is_log = |path: &PathBuf| path.to_string_lossy().contains("/log/log-");
        self.disks[me].paths().into_iter().filter(is_log).collect()
    }

    fn checkpoint_paths(&self, me: usize) -> Vec<PathBuf> {
        let is_ours = |path: &PathBuf| path.extension().is_some_and(|it| it == "ckp");
        self.disks[me].paths().into_iter().filter(is_ours).collect()
    }
}

fn add_on(node: &Node<ToyProtocol>, amount: u64) -> Result<Outcome, Unavailable> {
    let (sender, receiver) = channel();
    node.handle().submit_with(add(amount), move |outcome| sender.send(outcome).unwrap());
    receiver.recv_timeout(DEADLINE).expect("an answer")
}

fn status(node: &Node<ToyProtocol>) -> Status {
    let (sender, receiver) = channel();
    node.handle().status_with(move |status| sender.send(status).unwrap());
    receiver.recv_timeout(DEADLINE).expect("an answer").expect("a status")
}

/// Polls until `is_so` returns true, for events on other threads that send no report.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

#[test]
fn additions_reach_every_node_and_survive_a_full_stop() {
    let mut cluster = Cluster::start(3, u64::MAX);
    for round in 1..=20 {
        for me in 0..3 {
            let outcome = cluster.add(me, me as u64 + 1).unwrap();
            assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
        }
        assert!(counter(cluster.node(0).handle().store(), 0) == round);
    }
    (0..3).for_each(|me| cluster.stop(me));
    (0..3).for_each(|me| cluster.start_node(me).unwrap());
    (0..3).for_each(|me| cluster.wait_counter(me, 20 * (u64::from(me) + 1)));
    cluster.add(1, 100).unwrap();
    cluster.wait_counter(1, 140);
    assert!(status(cluster.node(0)).counters["restored"] > 0);
}

#[test]
fn a_node_starts_and_stops_on_the_real_disk_and_leaves_it_free() {
    let temp = tempfile::tempdir().unwrap();
    let net = MemNet::default();
    for run in 1..=3_u64 {
        let start = || {
            let options = options(1, 0, Arc::new(OsDisk), temp.path());
            Node::start_on(options, |handle| Ok(net.connect(handle)))
        };
        let node = start().unwrap();
        assert!(matches!(start(), Err(StartError::DataDir(_))), "in use");
        assert_eq!(counter(node.handle().store(), 0), (run - 1) * 10);
        (0..10).for_each(|_| drop(add_on(&node, 1).unwrap()));
        node.stop().unwrap();
    }
}

#[test]
fn what_was_acknowledged_survives_the_loss_of_power_of_each_node_in_turn() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut cluster = Cluster::start(3, 25);
    let mut acknowledged = [0; 3];
    for round in 0..30 {
        for (me, total) in acknowledged.iter_mut().enumerate() {
            cluster.add(me, 1).unwrap();
            *total += 1;
        }
        // Nothing waits for this outcome: the addition may be lost or not.
        cluster.node(round % 3).handle().submit_with(add(0), |_| {});
        cluster.crash(round % 3, &mut rng);
        cluster.start_node(round % 3).unwrap();
        for (me, &total) in acknowledged.iter().enumerate() {
            assert_eq!(counter(cluster.node(me).handle().store(), me as u16), total);
        }
    }
    for (me, &total) in acknowledged.iter().enumerate() {
        cluster.wait_counter(me as u16, total);
    }
}

#[test]
fn all_nodes_lose_power_at_once_and_nothing_acknowledged_is_lost() {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut cluster = Cluster::start(3, 10);
    for round in 1..=10 {
        (0..3).for_each(|me| drop(cluster.add(me, 1).unwrap()));
        (0..3).for_each(|me| cluster.crash(me, &mut rng));
        (0..3).for_each(|me| cluster.start_node(me).unwrap());
        (0..3).for_each(|me| cluster.wait_counter(me, round));
    }
}

#[test]
fn nothing_is_sent_or_acknowledged_before_it_is_durable() {
    let cluster = Cluster::start(3, u64::MAX);
    cluster.add(0, 1).unwrap();
    cluster.wait_counter(0, 1);
    let held_sync = cluster.disks[0].hold_sync();
    let (sender, receiver) = channel();
    let answer = sender.clone();
    cluster.node(0).handle().submit_with(add(1), move |outcome| answer.send(outcome).unwrap());
    let store = cluster.node(0).handle().store();
    wait_until("the addition is applied", || counter(store, 0) == 2);
    // The other two nodes continue for a while, and do not learn of the addition.
    (0..5).for_each(|_| drop(cluster.add(1, 1).unwrap()));
    assert_eq!(counter(cluster.node(1).handle().store(), 0), 1);
    assert!(receiver.try_recv().is_err());
    assert!(status(cluster.node(0)).counters["effects_held"] >= 2);
    drop(held_sync);
    receiver.recv_timeout(DEADLINE).unwrap().unwrap();
    cluster.wait_counter(0, 2);
}

#[test]
fn checkpoints_shorten_the_log_and_a_start_reads_both() {
    let mut cluster = Cluster::start(1, 50);
    let mut longest = 0;
    for _ in 0..1_000 {
        cluster.add(0, 1).unwrap();
        longest = longest.max(cluster.log_paths(0).len());
    }
    wait_until("two checkpoints", || cluster.checkpoint_paths(0).len() == 2);
    assert!(longest < 9, "the log grew to {longest} segments of about 90 records");
    cluster.stop(0);
    cluster.start_node(0).unwrap();
    cluster.wait_counter(0, 1_000);
    let counters = status(cluster.node(0)).counters;
    assert!(counters["restored"] < 400, "{counters:?}");
    assert!(counters["checkpointed"] > 600, "{counters:?}");
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before_it() {
    let mut cluster = Cluster::start(1, 50);
    (0..1_000).for_each(|_| drop(cluster.add(0, 1).unwrap()));
    cluster.stop(0);
    let newest = cluster.checkpoint_paths(0).pop().unwrap();
    cluster.disks[0].damage(&newest, |bytes| bytes[100] ^= 1);
    cluster.start_node(0).unwrap();
    cluster.wait_counter(0, 1_000);
    let warnings = cluster.node(0).report().warnings.join("\n");
    assert!(warnings.contains(newest.to_str().unwrap()), "{warnings}");
    cluster.add(0, 1).unwrap();
    cluster.stop(0);

    // If no checkpoint is left, the log is not sufficient.
    for path in cluster.checkpoint_paths(0) {
        cluster.disks[0].damage(&path, |bytes| bytes.truncate(50));
    }
    let error = cluster.start_node(0).expect_err("no checkpoint to start from").to_string();
    assert!(error.contains("the log begins after"), "{error}");
}

/// Story: a node whose log directory had vanished beside its checkpoints started from the newest
/// checkpoint, and nobody heard that the transactions after it were lost.
#[test]
fn a_log_that_is_gone_beside_a_checkpoint_is_noticed() {
    let mut cluster = Cluster::start(1, 50);
    wait_until("a checkpoint", || {
        drop(cluster.add(0, 1).unwrap());
        !cluster.checkpoint_paths(0).is_empty()
    });
    cluster.stop(0);
    for path in cluster.log_paths(0) {
        cluster.disks[0].remove(&path).unwrap();
    }
    let error = cluster.start_node(0).expect_err("the log is gone").to_string();
    assert!(error.contains("the log is missing"), "{error}");
    assert!(error.contains("--replace") && error.contains("restore a copy"), "{error}");
}

#[test]
fn a_checkpoint_of_a_newer_version_is_refused() {
    let mut cluster = Cluster::start(1, 50);
    // On a busy machine, requests made while a checkpoint is written are merged into one.
    wait_until("two checkpoints", || {
        drop(cluster.add(0, 1).unwrap());
        cluster.checkpoint_paths(0).len() == 2
    });
    cluster.stop(0);
    let newest = cluster.checkpoint_paths(0).pop().unwrap();
    cluster.disks[0].damage(&newest, |bytes| bytes[8] = 2);
    let error = cluster.start_node(0).expect_err("newer").to_string();
    assert!(error.contains("newer version of Pangea"), "{error}");
    assert!(error.contains(newest.to_str().unwrap()), "{error}");
}

#[test]
fn a_torn_tail_is_cut_off_and_reported() {
    let mut cluster = Cluster::start(3, u64::MAX);
    (0..10).for_each(|_| drop(cluster.add(0, 1).unwrap()));
    cluster.wait_counter(0, 10);
    cluster.stop(1);
    let last = cluster.log_paths(1).pop().unwrap();
    cluster.disks[1].damage(&last, |bytes| {
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        bytes[end - 2..].fill(0);
        bytes[end + 1] = 9;
    });
    cluster.start_node(1).unwrap();
    let report = cluster.node(1).report().lines.join("\n");
    assert!(report.contains("a torn tail at offset"), "{report}");
    cluster.wait_counter(0, 10);
}

/// Story: the last segment of the only node's log was gone. The node started without its last rows,
/// and one line at INFO told how far its log goes.
#[test]
fn a_log_that_ends_before_a_position_that_was_durable_is_noticed() {
    let mut cluster = Cluster::start(1, 50);
    wait_until("a checkpoint", || {
        drop(cluster.add(0, 1).unwrap());
        !cluster.checkpoint_paths(0).is_empty()
    });
    cluster.crash(0, &mut fastrand::Rng::with_seed(7));
    cluster.start_node(0).unwrap();
    assert_eq!(cluster.node(0).report().warnings, [""; 0], "a power failure loses nothing");

    let mut cluster = Cluster::start(1, u64::MAX);
    (0..20).for_each(|_| drop(cluster.add(0, 1).unwrap()));
    cluster.stop(0);
    let last = cluster.log_paths(0).pop().unwrap();
    cluster.disks[0].damage(&last, |bytes| {
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        bytes[end - 60..].fill(0);
    });
    cluster.start_node(0).unwrap();
    let warnings = cluster.node(0).report().warnings.join("\n");
    assert!(warnings.contains("the log ends at record "), "{warnings}");
    assert!(warnings.contains("No other node has them"), "{warnings}");
    assert!(warnings.contains("restore a copy of its data directory"), "{warnings}");
    // The start after that knows nothing of it: the records have new numbers.
    (0..20).for_each(|_| drop(cluster.add(0, 1).unwrap()));
    cluster.stop(0);
    cluster.start_node(0).unwrap();
    assert_eq!(cluster.node(0).report().warnings, [""; 0]);
}

#[test]
fn a_corrupt_log_is_refused_and_the_others_go_on() {
    let mut cluster = Cluster::start(3, u64::MAX);
    (0..100).for_each(|_| drop(cluster.add(0, 1).unwrap()));
    cluster.wait_counter(0, 100);
    cluster.stop(1);
    let first = cluster.log_paths(1).remove(0);
    cluster.disks[1].damage(&first, |bytes| bytes[600] ^= 1);
    let error = cluster.start_node(1).expect_err("corrupt").to_string();
    assert!(error.contains(first.to_str().unwrap()) && error.contains("offset"), "{error}");
    cluster.add(0, 1).unwrap();
    cluster.wait_counter(0, 101);
}

#[test]
fn a_full_disk_stops_one_node_with_a_clear_error_and_loses_nothing() {
    let mut cluster = Cluster::start(3, u64::MAX);
    cluster.add(0, 1).unwrap();
    cluster.disks[0].set_room(Some(10_000));
    let mut acknowledged = 1;
    let error = loop {
        match cluster.add(0, 1) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(error.reason.contains("The disk is full"), "{error}");
    let reason = cluster.nodes[0].take().unwrap().wait().expect_err("the node failed");
    assert!(reason.contains("The disk is full") && reason.contains("/data/log"), "{reason}");
    // The other nodes continue.
    cluster.add(1, 5).unwrap();
    cluster.disks[0].set_room(None);
    cluster.start_node(0).unwrap();
    cluster.wait_counter(1, 5);
    let total = counter(cluster.node(0).handle().store(), 0);
    assert!(total >= acknowledged, "{total} of {acknowledged}");
}

#[test]
fn a_panic_of_the_protocol_ends_the_node_and_tells_every_client() {
    let cluster = Cluster::start(3, u64::MAX);
    let error = cluster.add(0, POISON).expect_err("no answer");
    assert!(error.reason.contains("stopped"), "{error}");
    let mut nodes = cluster.nodes;
    let reason = nodes[0].take().unwrap().wait().expect_err("the node failed");
    assert!(reason.contains("poisoned") && reason.contains("bug"), "{reason}");
    add_on(nodes[1].as_ref().unwrap(), 1).unwrap();
}

/// A panic of the log's writer once went unnoticed: the node accepted requests until the queue to
/// the disk was full, and then hung. After a panic of the checkpoint thread the log grew without
/// limit. After a panic of the thread that creates segments the log waited for the next one
/// forever.
#[test]
fn a_panic_of_a_thread_that_writes_ends_the_node_and_tells_every_client() {
    for thread in ["log-writer", "log-preparer", "checkpoint"] {
        let mut cluster = Cluster::start(3, 10);
        cluster.add(0, 1).unwrap();
        cluster.disks[0].set_panics(thread);
        let failed = (0..10_000).find_map(|_| cluster.add(0, 1).err());
        failed.unwrap_or_else(|| panic!("the node continues without {thread}"));
        let reason = cluster.nodes[0].take().unwrap().wait().expect_err("the node failed");
        let says = |what: &str| assert!(reason.contains(what), "{what}: {reason}");
        [thread, "a bug in writing", "(this is a bug)"].into_iter().for_each(says);
        cluster.add(1, 1).unwrap();
    }
}

/// The pin of a checkpoint that can't be written is dropped; the protocol must request another one.
#[test]
fn a_checkpoint_that_can_t_be_written_is_told_to_the_protocol_and_keeps_nothing() {
    let mut cluster = Cluster::start(1, 10);
    cluster.disks[0].set_fails_checkpoints(true);
    wait_until("failures", || {
        cluster.add(0, 1).unwrap();
        status(cluster.node(0)).counters["checkpoints_failed"] >= 2
    });
    let store = cluster.node(0).handle().store().clone();
    wait_until("no pin", || {
        let published = store.published();
        store.oldest_pinned() >= published
    });
    assert_eq!(cluster.checkpoint_paths(0).len(), 0);
    cluster.disks[0].set_fails_checkpoints(false);
    wait_until("a checkpoint", || {
        cluster.add(0, 1).unwrap();
        !cluster.checkpoint_paths(0).is_empty()
    });
    cluster.stop(0);
}

#[test]
fn too_many_requests_are_refused_and_the_rest_are_answered() {
    let cluster = Cluster::start(1, u64::MAX);
    let held_sync = cluster.disks[0].hold_sync();
    let (sender, receiver) = channel();
    for _ in 0..IN_FLIGHT_MAX + 10 {
        let sender = sender.clone();
        cluster.node(0).handle().submit_with(add(1), move |it| sender.send(it).unwrap());
    }
    for _ in 0..10 {
        let outcome = receiver.recv_timeout(DEADLINE).unwrap();
        let Ok(Outcome::Aborted(abort)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(
            abort.code.as_str(),
            "53000",
            "the error says that the request was not executed: {abort:?}"
        );
        assert!(abort.message.contains("overloaded"), "{abort:?}");
    }
    assert!(receiver.try_recv().is_err());
    drop(held_sync);
    for _ in 0..IN_FLIGHT_MAX {
        receiver.recv_timeout(DEADLINE).unwrap().unwrap();
    }
    cluster.add(0, 1).unwrap();
}

/// A statement with a parameter of 63 MiB was put into a batch that exceeds the maximum frame. The
/// node resent it endlessly, and because no batch can follow it, the cluster accepted no more
/// writes.
#[test]
fn a_request_too_large_to_be_sent_is_refused_and_the_next_is_taken() {
    let cluster = Cluster::start(3, u64::MAX);
    let Program::Call { procedure, .. } = add(1) else { panic!("the toy adds with calls") };
    let args = bytes::Bytes::from(vec![0; 63 << 20]);
    let (sender, receiver) = channel();
    let node = cluster.node(0).handle();
    node.submit_with(Program::Call { procedure, args }, move |it| sender.send(it).unwrap());
    let outcome = receiver.recv_timeout(DEADLINE).unwrap();
    let Ok(Outcome::Aborted(abort)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(abort.code, SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert!(abort.message.contains("66060288 bytes"), "{abort:?}");
    cluster.add(0, 1).unwrap();
}

#[test]
fn a_stopped_node_answers_that_it_was_stopped() {
    let mut cluster = Cluster::start(1, u64::MAX);
    let handle = cluster.node(0).handle().clone();
    cluster.stop(0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let errors = runtime.block_on(async {
        [
            handle.commit(add(1), Isolation::Serializable).await.expect_err("stopped"),
            handle.fresh().await.expect_err("stopped"),
            handle.status().await.expect_err("stopped"),
        ]
    });
    errors.iter().for_each(|error| assert!(error.reason.contains("was stopped"), "{error}"));
}

#[test]
fn the_engine_of_a_node_commits_and_names_a_fresh_version() {
    let cluster = Cluster::start(3, u64::MAX);
    let handle = cluster.node(2).handle().clone();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let outcome = handle.commit(add(3), Isolation::Serializable).await.unwrap();
        let Outcome::Committed { version, .. } = outcome else { panic!("{outcome:?}") };
        assert!(handle.fresh().await.unwrap() >= version);
        assert!(handle.status().await.unwrap().version >= version);
        assert_eq!(counter(handle.store(), 2), 3);
    });
}

#[test]
fn a_malformed_message_is_counted_and_harms_nobody() {
    let cluster = Cluster::start(3, u64::MAX);
    let inbox = cluster.node(0).handle().inbox();
    for junk in [&b""[..], b"\x07", b"\x00short"] {
        inbox.on_frame(NodeId(1), &bytes::Bytes::from(junk));
    }
    cluster.add(0, 1).unwrap();
    cluster.wait_counter(0, 1);
    assert_eq!(status(cluster.node(0)).counters["messages_malformed"], 3);
}

#[test]
fn a_peer_waits_while_too_much_of_it_waits() {
    let cluster = Cluster::start(3, u64::MAX);
    let inbox = cluster.node(0).handle().inbox();
    // The event loop is blocked in the callback of an answer.
    let (let_go, held) = channel::<()>();
    let (is_held, standing) = channel();
    cluster.node(0).handle().submit_with(add(1), move |_| {
        is_held.send(()).unwrap();
        held.recv_timeout(DEADLINE).unwrap();
    });
    standing.recv_timeout(DEADLINE).unwrap();
    // A `Have` message with the count 0, padded to a sixteenth of the bound.
    let mut frame = vec![0; PEER_BYTES_MAX / 16];
    frame[0] = 1;
    let frame = bytes::Bytes::from(frame);
    let (pushed, pushes) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..40 {
                inbox.on_frame(NodeId(1), &frame);
                pushed.send(()).unwrap();
            }
        });
        let mut count = 0;
        while count < 16 {
            pushes.recv_timeout(DEADLINE).unwrap();
            count += 1;
        }
        // At most one more of the remaining frames is accepted until the event loop continues.
        assert!(pushes.try_iter().count() <= 1);
        let_go.send(()).unwrap();
        (17..40).for_each(|_| pushes.recv_timeout(DEADLINE).unwrap());
    });
    cluster.add(0, 1).unwrap();
}

#[test]
fn timers_come_again_and_again() {
    let cluster = Cluster::start(1, u64::MAX);
    wait_until("heartbeats", || status(cluster.node(0)).counters["heartbeats"] >= 5);
}

#[test]
fn with_memory_durability_a_node_runs_without_a_disk() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("none");
    let mut options = options(1, 0, Arc::new(OsDisk), &dir);
    options.durability = Durability::Memory;
    options.protocol.checkpoint_additions = 10;
    let net = MemNet::default();
    let node = Node::start_on(options, |handle| Ok(net.connect(handle))).unwrap();
    (0..100).for_each(|_| drop(add_on(&node, 1).unwrap()));
    node.stop().unwrap();
    assert!(!dir.exists());
}

#[test]
fn a_network_that_can_t_be_had_leaves_nothing_behind() {
    let temp = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let options = options(1, 0, Arc::new(OsDisk), temp.path());
        let refuse = |_: &_| -> Result<Arc<dyn Network>, String> { Err("port taken".to_owned()) };
        let error = Node::<ToyProtocol>::start_on(options, refuse).expect_err("no network");
        assert_eq!(error.to_string(), "port taken");
    }
}
