//! Configured nodes on real sockets, with real clients.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::cluster::{self, connect, runtime, wait_for};
use crate::support::toy::{COUNTERS, ToyProtocol, counter};
use pangea_core::ids::{NodeId, TableId};
use pangea_core::key::{Direction, KeyRange};
use pangea_core::protocol::Protocol;
use pangea_core::txn::{Context, Outcome, Procedure, Registry, Stop};
use pangea_node::client::{Client, ClientError};
use pangea_node::config::Config;
use pangea_node::node::{Node, StartError};
use pangea_sql::engine::Engine;

/// A procedure that has no effect, which the toy protocol never runs.
struct Add;

impl Procedure for Add {
    fn name(&self) -> &str {
        "add"
    }
    fn run(&self, _args: &[u8], _cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        Ok(Vec::new())
    }
}

fn registry() -> Arc<Registry> {
    Arc::new(Registry::new([Arc::new(Add) as Arc<dyn Procedure>]))
}

fn configs(dir: &Path, wan: &str) -> Vec<Config> {
    let tables = format!("{wan}\n[toy]\ncheckpoint_additions = 100");
    cluster::configs(dir, ToyProtocol::NAME, "workers = 1", &tables)
}

fn start(config: &Config) -> Node<ToyProtocol> {
    Node::start(config, registry()).unwrap()
}

fn wait_counter(nodes: &[Node<ToyProtocol>], node: u16, total: u64) {
    for running in nodes {
        wait_for("a counter", total, || counter(running.handle().store(), node));
    }
}

#[test]
fn three_nodes_serve_clients_and_a_restarted_one_catches_up() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(temp.path(), "");
    let mut nodes: Vec<_> = configs.iter().map(start).collect();
    runtime().block_on(async {
        let clients = [connect(&configs[0]).await, connect(&configs[1]).await];
        let one = 1_u64.to_le_bytes();
        for _ in 0..200 {
            for client in &clients {
                let outcome = client.call("add", &one).await.unwrap();
                assert!(matches!(outcome, Outcome::Committed { .. }));
            }
        }
        wait_counter(&nodes, 0, 200);

        nodes.remove(2).stop().unwrap();
        for _ in 0..50 {
            clients[0].call("add", &one).await.unwrap();
        }
        nodes.push(start(&configs[2]));
        wait_counter(&nodes, 0, 250);
        wait_counter(&nodes, 1, 200);

        let version = clients[0].fresh().await.unwrap();
        assert!(version.0 >= 450);
        assert!(clients[0].status().await.unwrap().counters["mark_checkpoint"] >= 4);
        let (rows, is_end) = rows(&clients[1], 1).await;
        assert_eq!((rows, is_end), (1, false));
        assert_eq!(rows_of_all(&clients[1]).await, (2, true));
        let error = clients[0].call("subtract", &one).await.expect_err("unknown");
        assert!(matches!(&error, ClientError::Refused(text) if text.contains("subtract")));
    });
    nodes.into_iter().for_each(|node| node.stop().unwrap());
}

async fn rows(client: &Client, rows_max: u32) -> (usize, bool) {
    let version = client.fresh().await.unwrap();
    let (rows, is_end) = client
        .table(COUNTERS, Some(version), KeyRange::all(), Direction::Forward, rows_max)
        .await
        .unwrap();
    (rows.len(), is_end)
}

async fn rows_of_all(client: &Client) -> (usize, bool) {
    rows(client, 1_000).await
}

#[test]
fn replicas_at_one_version_have_one_digest() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(temp.path(), "");
    let nodes: Vec<_> = configs.iter().map(start).collect();
    runtime().block_on(async {
        let writer = connect(&configs[0]).await;
        for _ in 0..20 {
            writer.call("add", &5_u64.to_le_bytes()).await.unwrap();
        }
        wait_counter(&nodes, 0, 100);
        let mut digests = Vec::new();
        for config in &configs {
            digests.push(connect(config).await.digest(None).await.unwrap());
        }
        assert_eq!(digests[0], digests[1]);
        assert_eq!(digests[1], digests[2]);
    });
}

#[test]
fn an_emulated_wide_area_is_as_wide_as_it_says() {
    let temp = tempfile::tempdir().unwrap();
    let round_trip =
        |a: &str, b: &str| format!("[[round_trips]]\nbetween = [{a:?}, {b:?}]\nms = 60\n");
    let wan = round_trip("eu", "us") + &round_trip("eu", "ap") + &round_trip("us", "ap");
    let configs = configs(temp.path(), &(wan + "[wan]\n"));
    let nodes: Vec<_> = configs.iter().map(start).collect();
    runtime().block_on(async {
        let client = connect(&configs[0]).await;
        client.call("add", &1_u64.to_le_bytes()).await.unwrap();
        let started = Instant::now();
        client.call("add", &1_u64.to_le_bytes()).await.unwrap();
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(60), "{took:?}");
    });
    drop(nodes);
}

#[test]
fn a_taken_port_is_named_with_its_key() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(temp.path(), "");
    let address = configs[0].me().peer;
    let taken = TcpListener::bind(address).unwrap();
    let error = Node::<ToyProtocol>::start(&configs[0], registry()).expect_err("taken");
    assert!(matches!(error, StartError::Network(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("peer = \"{address}\" of node 0")), "{text}");
    drop(taken);
    start(&configs[0]).stop().unwrap();
}

#[test]
fn settings_that_the_protocol_does_not_know_stop_the_start() {
    let temp = tempfile::tempdir().unwrap();
    let text = configs(temp.path(), "")[0].to_toml();
    let text = text.replace("checkpoint_additions", "checkpoint_addition");
    let config = Config::parse("node.toml", &text).unwrap();
    let error = Node::<ToyProtocol>::start(&config, registry()).expect_err("unknown").to_string();
    assert!(error.contains("unknown field `checkpoint_addition`"), "{error}");
}

#[test]
fn a_row_of_the_store_is_what_a_client_reads() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(temp.path(), "");
    let nodes: Vec<_> = configs.iter().map(start).collect();
    runtime().block_on(async {
        let client = connect(&configs[0]).await;
        client.call("add", &7_u64.to_le_bytes()).await.unwrap();
        let version = client.fresh().await.unwrap();
        let (rows, is_end) = client
            .table(COUNTERS, Some(version), KeyRange::all(), Direction::Forward, 10)
            .await
            .unwrap();
        assert!(is_end);
        assert_eq!(rows[0].key, NodeId(0).0.to_be_bytes());
        assert_eq!(rows[0].value, 7_u64.to_be_bytes());
        let (rows, _) =
            client.table(TableId(99), None, KeyRange::all(), Direction::Forward, 10).await.unwrap();
        assert!(rows.is_empty());
    });
    drop(nodes);
}
