//! Minerva on real nodes: sockets, log, checkpoints, and a node that crashes and restarts.

use std::path::Path;
use std::sync::Arc;

use crate::support::cluster::{self, connect, runtime, wait_for};
use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::protocol::Protocol;
use pangea_core::txn::{Context, Outcome, Procedure, Registry, Stop};
use pangea_core::value::Value;
use pangea_node::client::Client;
use pangea_node::config::Config;
use pangea_node::node::Node;
use pangea_protocols::minerva::Minerva;
use pangea_sql::engine::Engine;

const COUNTERS: TableId = TableId(1);

/// Increments the counter named by its argument.
struct AddOne;

impl Procedure for AddOne {
    fn name(&self) -> &str {
        "add_one"
    }
    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let before = cx.get(COUNTERS, args)?.map_or(0, |value| number(&value));
        let after = (before + 1).to_be_bytes();
        cx.put(COUNTERS, Key::from(args), Value::from(&after[..]))?;
        Ok(after.to_vec())
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("8 bytes"))
}

fn configs(dir: &Path) -> Vec<Config> {
    let keys = "workers = 2\nlog_segment_bytes = 65536";
    cluster::configs(dir, Minerva::NAME, keys, "[minerva]\ncheckpoint_bytes = 50000")
}

fn start(config: &Config) -> Node<Minerva> {
    let registry = Registry::new([Arc::new(AddOne) as Arc<dyn Procedure>]);
    Node::start(config, Arc::new(registry)).unwrap()
}

async fn add_one(client: &Client, counter: &str) -> u64 {
    match client.call("add_one", counter.as_bytes()).await.unwrap() {
        Outcome::Committed { result, .. } => number(&result),
        Outcome::Aborted(abort) => panic!("{abort}"),
    }
}

/// Waits until the counter is `total` in the newest version of every node.
fn wait_equal(nodes: &[Node<Minerva>], counter: &str, total: u64) {
    for node in nodes {
        let store = node.handle().store();
        let read = || store.read(COUNTERS, counter.as_bytes(), store.published());
        let value = || read().and_then(|version| version.value).map(|value| number(&value));
        wait_for(counter, Some(total), value);
    }
}

#[test]
fn three_nodes_agree_lose_one_and_take_it_back() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(temp.path());
    let mut nodes: Vec<_> = configs.iter().map(start).collect();
    runtime().block_on(async {
        let mut clients = Vec::new();
        for config in &configs {
            clients.push(connect(config).await);
        }
        // All three increment one counter concurrently: no increment is lost.
        for _ in 0..30 {
            let (a, b, c) = tokio::join!(
                add_one(&clients[0], "shared"),
                add_one(&clients[1], "shared"),
                add_one(&clients[2], "shared"),
            );
            assert!(a != b && b != c && a != c, "{a} {b} {c}");
        }
        wait_equal(&nodes, "shared", 90);

        nodes.remove(2).stop().unwrap();
        for _ in 0..30 {
            add_one(&clients[0], "alone").await;
        }
        nodes.push(start(&configs[2]));
        wait_equal(&nodes, "alone", 30);
        wait_equal(&nodes, "shared", 90);
        let client = connect(&configs[2]).await;
        add_one(&client, "shared").await;
        wait_equal(&nodes, "shared", 91);

        // All nodes stop and restart, and all data is still there.
        nodes.drain(..).for_each(|node| node.stop().unwrap());
        nodes.extend(configs.iter().map(start));
        wait_equal(&nodes, "shared", 91);
        wait_equal(&nodes, "alone", 30);
        let client = connect(&configs[1]).await;
        add_one(&client, "alone").await;
        wait_equal(&nodes, "alone", 31);
    });
    nodes.into_iter().for_each(|node| node.stop().unwrap());
}
