//! SQL at each isolation level on three nodes of GeoGauss, where every node commits at once and a
//! merge decides.

#[path = "../../../sql/tests/sessions/race/mod.rs"]
mod race;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use pangea_core::protocol::Protocol;
use pangea_core::txn::Registry;
use pangea_node::config::Config;
use pangea_node::node::Node;
use pangea_protocols::geogauss::GeoGauss;
use pangea_sql::Shared;
use pangea_sql::session::{Response, Session};
use tokio::runtime::Runtime;

use crate::sql_scripts::is_known;
use crate::sql_scripts::script::{self, Ground, scripts};
use crate::support::cluster;

/// The number of sessions, on all nodes.
const SESSIONS: usize = 6;

/// The number of rounds of each session.
const ROUNDS: u64 = 100;

/// Three nodes, with the state that the sessions of each share.
struct Cluster {
    nodes: Vec<(Node<GeoGauss>, Arc<Shared>)>,
    runtime: Runtime,
}

impl Cluster {
    fn start(dir: &Path) -> Self {
        Self::of(&cluster::configs(dir, GeoGauss::NAME, "workers = 1", ""))
    }

    fn of(configs: &[Config]) -> Self {
        let registry = Arc::new(Registry::new(pangea_sql::procedures()));
        let start = |config| (Node::start(config, registry.clone()).unwrap(), Arc::default());
        let nodes = configs.iter().map(start).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        Self { nodes, runtime }
    }

    /// A session that sees what other nodes have committed when it asks.
    fn session(&self, node: usize, level: &str) -> Session {
        let (node, shared) = &self.nodes[node];
        let engine = Arc::new(node.handle().clone());
        let settings = [("default_transaction_isolation", level), ("reads", "strict")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Session::new(engine, shared.clone(), &BTreeMap::from(settings)).unwrap()
    }

    /// Returns the first value of the last statement, its tag, or the SQLSTATE of its error.
    fn run(&self, session: &mut Session, sql: &str) -> String {
        match self.runtime.block_on(session.simple_query(sql)).pop() {
            Some(Response::Error(error)) => error.code.as_str().to_owned(),
            Some(Response::Rows { rows, .. }) => format!("{:?}", rows[0][0]),
            Some(Response::Command { tag }) => tag,
            other => panic!("{sql}: {other:?}"),
        }
    }
}

#[test]
fn constraints_hold_at_every_level_whichever_node_commits() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let temp = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(temp.path());
        let mut first = cluster.session(0, level);
        for sql in race::SETUP {
            assert_ne!(cluster.run(&mut first, sql).len(), 5, "{sql}");
        }
        let added: i64 = std::thread::scope(|scope| {
            let worker = |number: usize| {
                let cluster = &cluster;
                let mut session = cluster.session(number % 3, level);
                scope.spawn(move || {
                    race::work(number as u64, ROUNDS, &mut |sql| cluster.run(&mut session, sql))
                })
            };
            let workers: Vec<_> = (0..SESSIONS).map(worker).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        for node in 0..3 {
            let mut session = cluster.session(node, level);
            let mut is = |sql: &str| cluster.run(&mut session, sql);
            assert_eq!(is("select n from total"), format!("Int({added})"), "{level}: lost updates");
            race::check(&mut is);
        }
        for (node, _) in cluster.nodes {
            node.stop().unwrap();
        }
    }
}

/// One node, for scripts of sessions at a level.
struct Scripted {
    cluster: Cluster,
    level: &'static str,
}

impl Ground for Scripted {
    fn session(&mut self, _: usize) -> Session {
        let (node, shared) = &self.cluster.nodes[0];
        let level = Some(("default_transaction_isolation", self.level));
        script::session(Arc::new(node.handle().clone()), shared, level)
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.cluster.runtime.block_on(future)
    }
}

/// Runs all scripts, which are written for the serializable level, and returns where the answers
/// differ.
fn differences(level: &'static str) -> Vec<String> {
    let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql");
    let mut all = Vec::new();
    for path in scripts(&sql) {
        let temp = tempfile::tempdir().unwrap();
        let keys = "workers = 1\ndurability = \"memory\"";
        let settings = "[geogauss]\nepoch_ms = 1\nbatch_ms = 1";
        let configs = cluster::configs_of(1, temp.path(), GeoGauss::NAME, keys, settings);
        all.extend(script::run(&path, &mut Scripted { cluster: Cluster::of(&configs), level }));
    }
    all.retain(|difference| !is_known(difference));
    all
}

/// A script for nodes that offer one level: it asks for another, and is shown the one.
const OF_LEVELS: &str = "show transaction isolation level\n";

#[test]
fn every_script_sees_the_same_at_the_serializable_level() {
    let mut all = differences("serializable");
    all.retain(|difference| !difference.contains(OF_LEVELS));
    assert!(all.is_empty(), "{}: {}", all.len(), all.join("\n"));
}

/// Transactions that conflict only with reads: they commit at weaker levels.
const OF_READS: [&str; 2] = ["savepoints.slt:160:", "transactions.slt:59:"];

#[test]
fn every_script_sees_the_same_at_weaker_levels_except_for_conflicts_of_reads() {
    for level in ["read committed", "repeatable read"] {
        let mut all = differences(level);
        let may_differ = |it: &String| OF_READS.iter().any(|at| it.contains(at));
        all.retain(|difference| !difference.contains(OF_LEVELS) && !may_differ(difference));
        assert!(all.is_empty(), "{level}: {}: {}", all.len(), all.join("\n"));
    }
}
