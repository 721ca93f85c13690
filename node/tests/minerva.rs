//! Minerva on real nodes: sockets, log, checkpoints, and a node that dies and comes back.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::{Context, Outcome, Procedure, Registry, Stop};
use pangea_core::value::Value;
use pangea_node::client::Client;
use pangea_node::config::Config;
use pangea_node::node::Node;
use pangea_protocols::minerva::Minerva;
use pangea_sql::engine::Engine;

/// Far longer than anything here takes: a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

const COUNTERS: TableId = TableId(1);

/// Adds one to the counter that its argument names.
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
    let listeners = [(); 6].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses: [SocketAddr; 6] = listeners.each_ref().map(|it| it.local_addr().unwrap());
    let regions = ["eu", "us", "ap"];
    let mut nodes = String::new();
    for (id, region) in regions.iter().enumerate() {
        let (peer, sql) = (addresses[2 * id], addresses[2 * id + 1]);
        nodes += &format!(
            "[[nodes]]\nid = {id}\nregion = {region:?}\npeer = \"{peer}\"\nsql = \"{sql}\"\n"
        );
    }
    let config = |id: usize| {
        let text = format!(
            "cluster = \"test\"\nprotocol = \"minerva\"\nnode = {id}\ndata_dir = {:?}\n\
             workers = 2\nlog_segment_bytes = 65536\nregions = {regions:?}\n{nodes}\
             [minerva]\ncheckpoint_bytes = 50000\n",
            dir.join(id.to_string())
        );
        Config::parse("node.toml", &text).unwrap()
    };
    (0..3).map(config).collect()
}

fn start(config: &Config) -> Node<Minerva> {
    let registry = Registry::new([Arc::new(AddOne) as Arc<dyn Procedure>]);
    Node::start(config, Arc::new(registry)).unwrap()
}

async fn connect(config: &Config) -> Client {
    Client::connect(config.me().peer, "test").await.unwrap()
}

async fn add_one(client: &Client, counter: &str) -> u64 {
    match client.call("add_one", counter.as_bytes()).await.unwrap() {
        Outcome::Committed { result, .. } => number(&result),
        Outcome::Aborted(abort) => panic!("{abort}"),
    }
}

/// Waits until every node says the same of its newest version, and that is `total`.
fn wait_equal(nodes: &[Node<Minerva>], counter: &str, total: u64) {
    let started = Instant::now();
    for node in nodes {
        let store = node.handle().store();
        let read = || store.read(COUNTERS, counter.as_bytes(), store.published());
        let value = || read().and_then(|version| version.value).map(|value| number(&value));
        while value() != Some(total) {
            let found = value();
            assert!(started.elapsed() < DEADLINE, "{counter} is {found:?}, not {total}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn three_nodes_agree_lose_one_and_take_it_back() {
    let temp = tempfile::tempdir().unwrap();
    let configs = configs(temp.path());
    let mut nodes: Vec<_> = configs.iter().map(start).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients = Vec::new();
        for config in &configs {
            clients.push(connect(config).await);
        }
        // All three add to one counter at the same time: none is lost.
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

        // Everything stops, and everything is there again.
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
