//! The scripts of `sql/tests/slt` on one node of some protocols. Those that partition tables run
//! them with tables over two nodes, too, and Tiga and Mako over three shards with three replicas
//! each.

mod corpus;
mod many;
mod ranges;
#[path = "../../../../sql/tests/sessions/script/mod.rs"]
pub mod script;
mod views;

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::cluster::addresses_of;
use pangea_core::protocol::Protocol;
use pangea_core::txn::Registry;
use pangea_node::config::Config;
use pangea_node::node::Node;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::mako::Mako;
use pangea_protocols::tiga::Tiga;
use pangea_sql::Shared;
use script::{Ground, scripts, session};
use tokio::runtime::Runtime;

/// How many regions a cluster has, and how many shards. Each region has a node of each shard.
#[derive(Clone, Copy, Debug)]
struct Layout {
    regions: usize,
    shards: usize,
}

const ONE_NODE: Layout = Layout { regions: 1, shards: 1 };
const TWO_SHARDS: Layout = Layout { regions: 1, shards: 2 };
const THREE_OF_THREE: Layout = Layout { regions: 3, shards: 3 };

/// A cluster of nodes in this process.
struct Cluster<P: Protocol> {
    nodes: Vec<Node<P>>,
    /// The state shared by the sessions of each node.
    shared: Vec<Arc<Shared>>,
    runtime: Runtime,
}

/// The configuration of a node, with a data directory or without durable state.
fn config<P: Protocol>(
    node: usize,
    layout: Layout,
    addresses: &[SocketAddr],
    dir: Option<&Path>,
) -> Config {
    let regions = &["here", "there", "elsewhere"][..layout.regions];
    let row = |(id, addresses): (usize, &[SocketAddr])| {
        let (peer, sql) = (addresses[0], addresses[1]);
        let (region, shard) = (regions[id / layout.shards], id % layout.shards);
        let place = format!("id = {id}, region = {region:?}, shard = {shard}");
        format!("{{ {place}, peer = \"{peer}\", sql = \"{sql}\" }}")
    };
    let rows: Vec<String> = addresses.chunks(2).enumerate().map(row).collect();
    let (dir, durability) = match dir {
        Some(dir) => (dir.join(node.to_string()), "os"),
        None => (PathBuf::from("none"), "memory"),
    };
    let settings = if P::NAME == Calvin::NAME { "[calvin]\nepoch_ms = 1\n" } else { "" };
    let text = format!(
        "cluster = \"scripts\"\nprotocol = \"{}\"\nnode = {node}\ndata_dir = {dir:?}\n\
         durability = {durability:?}\nworkers = 1\nregions = {regions:?}\nnodes = [{}]\n{settings}",
        P::NAME,
        rows.join(", ")
    );
    Config::parse("node.toml", &text).unwrap()
}

impl<P: Protocol> Cluster<P> {
    fn start(layout: Layout) -> Self {
        Self::start_at(layout, &addresses_of(2 * layout.regions * layout.shards), None)
    }

    /// Starts a node for each pair of addresses.
    fn start_at(layout: Layout, addresses: &[SocketAddr], dir: Option<&Path>) -> Self {
        let registry = Arc::new(Registry::new(pangea_sql::procedures()));
        let start = |node| {
            Node::start(&config::<P>(node, layout, addresses, dir), registry.clone()).unwrap()
        };
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        let nodes = 0..addresses.len() / 2;
        let (nodes, shared) = nodes.map(|node| (start(node), Arc::default())).unzip();
        Self { nodes, shared, runtime }
    }
}

impl<P: Protocol> Ground for Cluster<P> {
    /// Assigns sessions to the nodes round robin. With several nodes they use strict reads, to see
    /// what other sessions have just committed.
    fn session(&mut self, number: usize) -> script::Session {
        let node = number % self.nodes.len();
        let setting = (self.nodes.len() > 1).then_some(("reads", "strict"));
        session(Arc::new(self.nodes[node].handle().clone()), &self.shared[node], setting)
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

/// Intended differences from the in-memory engine, for which the scripts are written: a text in the
/// difference, and the reason.
const OTHERWISE: [(&str, &str); 9] = [
    ("/as_of.slt:", "nodes retain one version of each second"),
    ("/pangea.slt:", "the result describes the cluster"),
    ("explain select * from t\n", "row counts are estimated from one shard"),
    (
        "explain (format json) select * from t join u using (a)\n",
        "row counts are estimated from one shard",
    ),
    ("by transaction 1.", "transactions of the other node have its number"),
    ("show timezone; show reads\n", "sessions of this cluster have strict reads"),
    ("      Version: v", "versions are epochs"),
    ("Steps: measured in a run on snapshot v", "versions are epochs"),
    ("! 54000 3 ranges require 3 shards, but there are 2", "the count is checked before the order"),
];

pub fn is_known(difference: &str) -> bool {
    OTHERWISE.iter().any(|(what, _)| difference.contains(what))
}

fn check_scripts<P: Protocol>(layout: Layout) {
    let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql");
    let all = scripts(&sql);
    let differences: Vec<String> = all
        .iter()
        .flat_map(|path| script::run(path, &mut Cluster::<P>::start(layout)))
        .filter(|difference| !is_known(difference))
        .collect();
    assert!(differences.is_empty(), "{}: {}", differences.len(), differences.join("\n"));
}

#[test]
fn every_script_sees_the_same_on_calvin() {
    check_scripts::<Calvin>(ONE_NODE);
}

#[test]
fn every_script_sees_the_same_on_tiga() {
    check_scripts::<Tiga>(ONE_NODE);
}

#[test]
fn every_script_sees_the_same_on_mako() {
    check_scripts::<Mako>(ONE_NODE);
}

#[test]
fn every_script_sees_the_same_where_tables_are_on_two_nodes_of_calvin() {
    check_scripts::<Calvin>(TWO_SHARDS);
}

#[test]
fn every_script_sees_the_same_where_tables_are_on_two_nodes_of_tiga() {
    check_scripts::<Tiga>(TWO_SHARDS);
}

#[test]
fn every_script_sees_the_same_where_tables_are_on_two_nodes_of_mako() {
    check_scripts::<Mako>(TWO_SHARDS);
}

fn check_corpus<P: Protocol>(layout: Layout) {
    let answers = corpus::check::<P>(layout);
    assert!(answers.is_empty(), "{} answers: {}", answers.len(), answers.join("\n"));
}

#[test]
fn the_corpus_is_answered_as_postgresql_does_on_calvin() {
    check_corpus::<Calvin>(ONE_NODE);
}

#[test]
fn the_corpus_is_answered_as_postgresql_does_on_mako() {
    check_corpus::<Mako>(ONE_NODE);
}

#[test]
fn the_corpus_is_answered_as_postgresql_does_where_tables_are_on_two_nodes_of_calvin() {
    check_corpus::<Calvin>(TWO_SHARDS);
}

#[test]
fn the_corpus_is_answered_as_postgresql_does_where_tables_are_on_two_nodes_of_tiga() {
    check_corpus::<Tiga>(TWO_SHARDS);
}

#[test]
fn the_corpus_is_answered_as_postgresql_does_where_tables_are_on_two_nodes_of_mako() {
    check_corpus::<Mako>(TWO_SHARDS);
}

#[test]
fn every_script_sees_the_same_where_three_regions_have_three_shards_of_tiga() {
    check_scripts::<Tiga>(THREE_OF_THREE);
}

#[test]
fn the_corpus_is_answered_as_postgresql_does_where_three_regions_have_three_shards_of_tiga() {
    check_corpus::<Tiga>(THREE_OF_THREE);
}

#[test]
fn every_script_sees_the_same_where_three_regions_have_three_shards_of_mako() {
    check_scripts::<Mako>(THREE_OF_THREE);
}

#[test]
fn the_corpus_is_answered_as_postgresql_does_where_three_regions_have_three_shards_of_mako() {
    check_corpus::<Mako>(THREE_OF_THREE);
}
