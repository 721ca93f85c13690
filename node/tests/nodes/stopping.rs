//! The end of a node that is stopped: whether it says that its last checkpoint is there.

use std::path::Path;
use std::sync::Arc;

use pangea_core::guarantee::Isolation;
use pangea_core::ids::NodeId;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::Registry;
use pangea_node::driver::Stopped;
use pangea_node::node::{Node, NodeOptions};
use pangea_sql::engine::Engine;

use crate::support::mem_net::MemNet;
use crate::support::toy::{ToyProtocol, add};

/// Starts a node in a directory, which commits an addition.
fn start(dir: &Path, change: impl FnOnce(&mut NodeOptions<ToyProtocol>)) -> Node<ToyProtocol> {
    let topology = Topology::one_node_per_region("test", &["here"], Span::ZERO);
    let registry = Arc::new(Registry::default());
    let mut options = NodeOptions::new(NodeId(0), Arc::new(topology), registry, dir.to_owned());
    options.tuning.workers = 1;
    change(&mut options);
    let net = MemNet::default();
    let node = Node::start_on(options, |handle| Ok(net.connect(handle))).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(node.handle().commit(add(1), Isolation::Serializable)).unwrap();
    node
}

#[test]
fn a_stop_says_whether_the_last_checkpoint_is_there() {
    let temp = tempfile::tempdir().unwrap();
    let late = start(&temp.path().join("late"), |options| {
        options.protocol.never_stops = true;
        options.tuning.stop_s = 1;
    });
    late.handle().stop();
    let stopped = late.wait_stopped();
    assert_eq!(stopped, Ok(Stopped::WithoutCheckpoint("it took longer than stop_s")));

    let no_time = start(&temp.path().join("none"), |options| {
        options.protocol.never_stops = true;
        options.tuning.stop_s = 0;
    });
    no_time.handle().stop();
    assert_eq!(no_time.wait_stopped(), Ok(Stopped::InOrder), "none is wanted");

    let again = start(&temp.path().join("again"), |options| options.protocol.never_stops = true);
    again.handle().stop();
    again.handle().stop_now();
    let stopped = again.wait_stopped();
    assert_eq!(stopped, Ok(Stopped::WithoutCheckpoint("it was stopped at once")));
}
