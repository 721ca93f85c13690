//! Commits of GeoGauss that are lost after their clients were told of them: their own sessions are
//! warned, and nobody else is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_core::ids::NodeId;
use pangea_core::protocol::Protocol;
use pangea_core::txn::Registry;
use pangea_node::node::Node;
use pangea_protocols::geogauss::GeoGauss;
use pangea_sql::Shared;
use pangea_sql::notice::{Notice, Severity};
use pangea_sql::session::{Response, Session};
use tokio::runtime::Runtime;

use crate::support::cluster::{self, connect, wait_for};

/// For this time a node is not heard, and hears the others: longer than they wait for it.
const MUTE: Duration = Duration::from_millis(2_500);
/// For this time it takes transactions after the cut: shorter than they wait for it.
const WORK: Duration = Duration::from_millis(500);
const TABLES: &str = "[geogauss]\nack = \"merged\"\nremoval_ms = 1000";
/// The number of sessions that write on the node, and of a session that does not.
const WRITERS: u64 = 3;
const READER: u64 = WRITERS;

fn session(node: &Node<GeoGauss>, shared: &Arc<Shared>) -> Session {
    Session::new(Arc::new(node.handle().clone()), shared.clone(), &BTreeMap::new()).unwrap()
}

/// Runs a statement, and returns its rows or the SQLSTATE of its error.
async fn run(session: &mut Session, sql: &str) -> Result<Vec<String>, String> {
    match session.simple_query(sql).await.pop() {
        Some(Response::Error(error)) => Err(error.code.as_str().to_owned()),
        Some(Response::Rows { rows, .. }) => {
            Ok(rows.iter().map(|row| format!("{:?}", row[0])).collect())
        }
        Some(Response::Command { .. }) => Ok(Vec::new()),
        other => panic!("{sql}: {other:?}"),
    }
}

/// Runs a statement until it succeeds: a node that was removed refuses it for a while.
async fn insist(session: &mut Session, sql: &str) -> Vec<String> {
    let began = Instant::now();
    loop {
        match run(session, sql).await {
            Ok(rows) => return rows,
            Err(code) => assert!(began.elapsed().as_secs() < 60, "{sql}: {code}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Inserts rows until some time after the cut, and returns those that were acknowledged.
async fn write(session: &mut Session, number: u64, until: Instant) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for row in (number * 10_000).. {
        if Instant::now() > until {
            break;
        }
        if run(session, &format!("insert into t values ({row})")).await.is_ok() {
            acknowledged.insert(format!("Int({row})"));
        }
    }
    acknowledged
}

/// The number of lost commits of which notices tell.
fn lost_in(notices: &[Notice]) -> usize {
    let lost = |notice: &Notice| {
        assert_eq!((notice.code.as_str(), notice.severity), ("01000", Severity::Warning));
        assert!(notice.message.contains("lost, although acknowledged"), "{notice:?}");
        let detail = notice.detail.as_deref().unwrap();
        assert!(detail.contains("in snapshot version"), "{detail}");
        assert!(notice.hint.as_deref().unwrap().contains("geogauss.ack"));
        notice.message.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    notices.iter().map(lost).sum()
}

/// Cuts off what a node sends, for a while. Before that, its peers have heard from it.
async fn mute(client: &pangea_node::client::Client) {
    for peer in [1, 2] {
        client.cut(NodeId(peer)).await.unwrap();
    }
    tokio::time::sleep(MUTE).await;
    client.heal().await.unwrap();
}

#[test]
fn sessions_are_warned_of_their_own_acknowledged_commits_that_are_lost() {
    let temp = tempfile::tempdir().unwrap();
    let configs = cluster::configs(temp.path(), GeoGauss::NAME, "workers = 1", TABLES);
    let registry = Arc::new(Registry::new(pangea_sql::procedures()));
    let start = |config| Node::<GeoGauss>::start(config, registry.clone()).unwrap();
    let nodes: Vec<_> = configs.iter().map(start).collect();
    let shared: Vec<Arc<Shared>> = nodes.iter().map(|_| Arc::default()).collect();
    let runtime: Runtime = cluster::runtime();
    let mut sessions: Vec<Session> =
        (0..=WRITERS).map(|_| session(&nodes[0], &shared[0])).collect();
    let acknowledged = runtime.block_on(async {
        insist(&mut sessions[0], "create table t (id int primary key)").await;
        let early = "insert into t values (-1)";
        insist(&mut sessions[READER as usize], early).await;
        let client = connect(&configs[0]).await;
        let until = Instant::now() + WORK;
        let (reader, writers) = sessions.split_last_mut().unwrap();
        let [a, b, c] = writers else { panic!("{WRITERS} sessions write") };
        let (_, a, b, c) =
            tokio::join!(mute(&client), write(a, 0, until), write(b, 1, until), write(c, 2, until));
        insist(reader, "select id from t").await;
        [a, b, c]
    });
    let lost = || {
        let status = runtime.block_on(async { connect(&configs[0]).await.status().await.unwrap() });
        status.counters["acknowledged_lost"] > 0
    };
    wait_for("a loss on the muted node", true, lost);
    let mut told = Vec::new();
    let rows: BTreeSet<String> = runtime.block_on(async {
        // What it commits now is there, so it is a member again, and has what the others have.
        insist(&mut sessions[0], "insert into t values (-2)").await;
        for session in &mut sessions {
            insist(session, "select 1").await;
            told.push(lost_in(&session.take_notices()));
            assert!(session.take_notices().is_empty(), "it is told once");
        }
        let mut other = session(&nodes[1], &shared[1]);
        insist(&mut other, "set reads = strict").await;
        insist(&mut other, "select id from t").await.into_iter().collect()
    });
    let missing = acknowledged.map(|own| own.difference(&rows).count());
    assert!(missing.iter().sum::<usize>() > 0, "nothing was lost");
    assert_eq!(told, [&missing[..], &[0]].concat(), "each session is told of its own losses");
    assert!(rows.contains("Int(-1)") && rows.contains("Int(-2)"));
    for node in nodes {
        node.stop().unwrap();
    }
}
