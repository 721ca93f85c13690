//! A stopped node leaves no thread and no open file. This test has its own binary, because other
//! tests have threads and files of their own.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_core::guarantee::Isolation;
use pangea_core::ids::NodeId;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::Registry;
use pangea_node::node::{Node, NodeOptions};
use pangea_sql::engine::Engine;
use support::mem_net::MemNet;
use support::toy::{ToyProtocol, add};

const DEADLINE: Duration = Duration::from_secs(30);

/// The numbers of threads and open files of this process.
fn held() -> (usize, usize) {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

#[test]
fn a_stopped_node_leaves_no_thread_and_no_open_file() {
    let temp = tempfile::tempdir().unwrap();
    let before = held();
    for round in 0..3 {
        let topology = Topology::one_node_per_region("test", &["here"], Span::ZERO);
        let registry = Arc::new(Registry::default());
        let dir = temp.path().to_owned();
        let mut options =
            NodeOptions::<ToyProtocol>::new(NodeId(0), Arc::new(topology), registry, dir);
        options.tuning.workers = 4;
        options.protocol.checkpoint_additions = 10;
        let net = MemNet::default();
        let node = Node::start_on(options, |handle| Ok(net.connect(handle))).unwrap();
        let during = held();
        assert!(during.0 > before.0 + 4 && during.1 > before.1, "{before:?} {during:?}");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..50 {
            runtime.block_on(node.handle().commit(add(1), Isolation::Serializable)).unwrap();
        }
        drop(runtime);
        if round == 2 {
            drop(node);
        } else {
            node.stop().unwrap();
        }
        // A joined thread remains in the list for a moment.
        let started = Instant::now();
        while held() != before {
            assert!(started.elapsed() < DEADLINE, "{before:?} {:?}", held());
            std::thread::yield_now();
        }
    }
}
