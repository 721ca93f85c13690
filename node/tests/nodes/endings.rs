//! The last messages of nodes that end, over links with delays: peers wait for them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::cluster::{configs_of, connect, runtime};
use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::protocol::Protocol;
use pangea_core::txn::{Context, Procedure, Registry, Stop};
use pangea_core::value::Value;
use pangea_node::config::Config;
use pangea_node::node::Node;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::mako::Mako;
use pangea_protocols::minerva::Minerva;
use pangea_sql::engine::Engine;

const TABLE: TableId = TableId(1);

/// What an event may take that needs no wait.
const SOON: Duration = Duration::from_secs(20);

/// How long a node waits for its release if nobody is there to give it.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Writes the row named by its argument.
struct Write;

impl Procedure for Write {
    fn name(&self) -> &str {
        "write"
    }
    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        cx.put(TABLE, Key::from(args), Value::from(args))?;
        Ok(Vec::new())
    }
}

/// The configurations of nodes whose messages take 50 ms.
fn configs(count: usize, dir: &Path, protocol: &str) -> Vec<Config> {
    let names = ["eu", "us", "ap"];
    let pairs = [(0, 1), (0, 2), (1, 2)].into_iter().filter(|(_, to)| *to < count);
    let pair = |(from, to): (usize, usize)| {
        let (from, to) = (names[from], names[to]);
        format!("[[round_trips]]\nbetween = [{from:?}, {to:?}]\nms = 100\n")
    };
    let tables = pairs.map(pair).collect::<String>() + "[wan]\n";
    configs_of(count, dir, protocol, "workers = 1", &tables)
}

fn start<P: Protocol>(config: &Config) -> Node<P> {
    let registry = Registry::new([Arc::new(Write) as Arc<dyn Procedure>]);
    Node::start(config, Arc::new(registry)).unwrap()
}

/// Story: of two nodes that differed, the one that found it stopped at once. The digests that it
/// had just sent were delayed, and were lost with it: the other node served its rows for good.
fn two_nodes_that_differ_both_stop<P: Protocol>() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(2, temp.path(), P::NAME);
    let nodes: Vec<Node<P>> = configs.iter().map(start).collect();
    runtime().block_on(async {
        let client = connect(&configs[0]).await;
        client.call("write", b"still").await.unwrap();
        client.call("write", b"busy").await.unwrap();
        assert!(nodes[1].handle().store().flip(TABLE, &Key::from(&b"still"[..])));
        // Rows are compared as epochs run.
        let work = async { while client.call("write", b"busy").await.is_ok() {} };
        // A node whose peer has ended does not answer.
        let _ = tokio::time::timeout(SOON, work).await;
    });
    for node in nodes {
        assert!(node.handle().inbox().wait_closed_for(SOON), "the other node goes on");
        let reason = node.wait().unwrap_err();
        assert!(reason.contains("nodes 0, 1 differ from each other"), "{reason}");
    }
}

#[test]
fn two_nodes_of_minerva_that_differ_both_stop() {
    two_nodes_that_differ_both_stop::<Minerva>();
}

#[test]
fn two_nodes_of_calvin_that_differ_both_stop() {
    two_nodes_that_differ_both_stop::<Calvin>();
}

#[test]
fn two_nodes_of_mako_that_differ_both_stop() {
    two_nodes_that_differ_both_stop::<Mako>();
}

/// Story: all nodes were stopped at once, and the coordinator ended first. The release that it had
/// just sent was lost with it: the last node waited for it, and warned that it had none.
#[test]
fn nodes_that_are_stopped_at_once_get_their_releases() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(3, temp.path(), Minerva::NAME);
    // The second time, the nodes have their last checkpoints, and end at once.
    for _ in 0..2 {
        let nodes: Vec<Node<Minerva>> = configs.iter().map(start).collect();
        runtime().block_on(async {
            for config in &configs {
                let client = connect(config).await;
                while client.status().await.unwrap().coordinator.is_none() {
                    tokio::time::sleep(LOOK).await;
                }
            }
        });
        let began = Instant::now();
        nodes.iter().for_each(|node| node.handle().stop());
        for node in nodes {
            node.wait().unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    }
}
