//! SQL at each isolation level on three nodes of GeoGauss, where every node commits at once and a
//! merge decides.

#[path = "../../../sql/tests/sessions/race/mod.rs"]
mod race;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use pangea_core::protocol::Protocol;
use pangea_core::txn::Registry;
use pangea_node::node::Node;
use pangea_protocols::geogauss::GeoGauss;
use pangea_sql::Shared;
use pangea_sql::session::{Response, Session};
use tokio::runtime::Runtime;

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
        let configs = cluster::configs(dir, GeoGauss::NAME, "workers = 1", "");
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
