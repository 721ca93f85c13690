//! A cluster of configured nodes on local ports.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use pangea_node::client::Client;
use pangea_node::config::Config;

/// Far longer than any operation takes: a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

const REGIONS: [&str; 3] = ["eu", "us", "ap"];

/// Addresses with ports that were free a moment ago.
pub fn addresses<const N: usize>() -> [SocketAddr; N] {
    addresses_of(N).try_into().expect("as many as were asked for")
}

/// The same for a number that is not constant.
pub fn addresses_of(count: usize) -> Vec<SocketAddr> {
    let listen = |_| TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners: Vec<_> = (0..count).map(listen).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

/// The configurations of three nodes, with additional keys and tables.
pub fn configs(dir: &Path, protocol: &str, keys: &str, tables: &str) -> Vec<Config> {
    configs_of(3, dir, protocol, keys, tables)
}

/// The configurations of some nodes, at most three.
pub fn configs_of(
    count: usize,
    dir: &Path,
    protocol: &str,
    keys: &str,
    tables: &str,
) -> Vec<Config> {
    let (addresses, regions) = (addresses::<6>(), &REGIONS[..count]);
    let mut nodes = String::new();
    for (id, region) in regions.iter().enumerate() {
        let (peer, sql) = (addresses[2 * id], addresses[2 * id + 1]);
        nodes += &format!(
            "[[nodes]]\nid = {id}\nregion = {region:?}\npeer = \"{peer}\"\nsql = \"{sql}\"\n"
        );
    }
    let config = |id: usize| {
        let text = format!(
            "cluster = \"test\"\nprotocol = {protocol:?}\nnode = {id}\ndata_dir = {:?}\n{keys}\n\
             regions = {regions:?}\n{nodes}{tables}\n",
            dir.join(id.to_string())
        );
        Config::parse("node.toml", &text).unwrap()
    };
    (0..count).map(config).collect()
}

/// A native client of a node.
pub async fn connect(config: &Config) -> Client {
    Client::connect(config.me().peer, "test").await.unwrap()
}

/// A runtime for clients.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits until `find` returns the expected value.
pub fn wait_for<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, find: impl Fn() -> T) {
    let started = Instant::now();
    while find() != expected {
        let found = find();
        assert!(started.elapsed() < DEADLINE, "{what} is {found:?}, not {expected:?}");
        std::thread::yield_now();
    }
}
