//! Tables partitioned by RANGE: the location of their rows, and their visibility on each node.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use pangea_core::key::encode::{KeyDecoder, Order};
use pangea_core::key::{Direction, KeyRange};
use pangea_core::protocol::Protocol;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::mako::Mako;
use pangea_protocols::tiga::Tiga;
use pangea_sql::catalog::{CATALOG, QualifiedName, Ranges, Relation, relation_key};
use pangea_sql::engine::Engine;

use super::script::{Ground, Session, answers};
use super::{Cluster, TWO_SHARDS};
use crate::support::cluster::addresses;

/// Far longer than a node takes to retain a snapshot.
const DEADLINE: Duration = Duration::from_secs(60);

/// A region with two nodes, and a session on each.
struct Two<P: Protocol> {
    cluster: Cluster<P>,
    sessions: Vec<Session>,
}

impl<P: Protocol> Two<P> {
    fn start(dir: Option<&Path>, addresses: &[std::net::SocketAddr]) -> Self {
        let mut cluster = Cluster::start_at(TWO_SHARDS, addresses, dir);
        let sessions = (0..2).map(|node| cluster.session(node)).collect();
        Self { cluster, sessions }
    }

    /// Runs a statement on a node, and returns the answers.
    fn ask(&mut self, node: usize, sql: &str) -> Vec<String> {
        answers(&self.cluster, &mut self.sessions[node], sql, "")
    }

    /// Runs statements on a node, which must succeed.
    fn have(&mut self, node: usize, sql: &str) {
        let answers = self.ask(node, sql);
        assert!(answers.iter().all(|line| line.starts_with("= ")), "{sql}: {answers:?}");
    }

    /// The first columns of the rows of a table that a node stores.
    fn kept(&mut self, node: usize, table: &str) -> Vec<i32> {
        // A strict read returns only after the writes of other nodes have arrived.
        self.ask(node, &format!("select count(*) from {table}"));
        let store = self.cluster.nodes[node].handle().store();
        let at = store.published();
        let key = relation_key(&QualifiedName::public(table));
        let record = store.read(CATALOG, &key, at).and_then(|version| version.value).unwrap();
        let Ok(Relation::Table(table)) = Relation::decode(&record) else { panic!("a table") };
        let mut rows = Vec::new();
        store.scan(table.id, &KeyRange::all(), Direction::Forward, at, |key, version| {
            if version.value.is_some() {
                let mut key = KeyDecoder::new(Ranges::plain(key));
                rows.push(key.i32(Order::Ascending).unwrap());
            }
            ControlFlow::Continue(())
        });
        rows
    }

    /// Repeats a query on a node until it returns this answer.
    fn wait_for(&mut self, node: usize, sql: &str, answer: &[&str]) {
        let started = Instant::now();
        loop {
            let found = self.ask(node, sql);
            if found == answer {
                return;
            }
            assert!(started.elapsed() < DEADLINE, "{sql} is {found:?}, not {answer:?}");
            std::thread::yield_now();
        }
    }

    fn stop(self) {
        let Self { cluster, sessions } = self;
        // A session may wait for other nodes as it ends.
        cluster.wait(async { drop(sessions) });
        cluster.nodes.into_iter().for_each(|node| node.stop().unwrap());
    }
}

#[test]
fn rows_are_on_the_nodes_that_ranges_say_after_a_restart_too() {
    store_by_ranges::<Calvin>();
    store_by_ranges::<Tiga>();
    store_by_ranges::<Mako>();
}

fn store_by_ranges<P: Protocol>() {
    let (temp, addresses) = (tempfile::tempdir().unwrap(), addresses::<4>());
    let mut two = Two::<P>::start(Some(temp.path()), &addresses);
    two.have(
        0,
        "begin; create table t (a int, b int, c int, primary key (a, b)) \
             partition by range (a) split at values (100); \
         insert into t select i * 10, 0, i from generate_series(0, 19) i; \
         update t set c = 0 where a >= 100; commit",
    );
    two.have(1, "insert into t values (99, 7, 0), (100, 7, 0)");
    two.have(1, "update t set a = 101 where a = 0");
    two.have(0, "create index t_c on t (c)");
    let low = [10, 20, 30, 40, 50, 60, 70, 80, 90, 99];
    let mut high = vec![100, 100, 101, 110, 120, 130, 140, 150, 160, 170, 180, 190];
    for node in [0, 1] {
        assert_eq!(two.kept(0, "t"), low);
        assert_eq!(two.kept(1, "t"), high);
        let between = "select count(*), min(a), max(a) from t where a between 90 and 110";
        assert_eq!(two.ask(node, between), ["6|90|110", "= SELECT 1"]);
        let last = "select a, b from t where a > 90 order by a, b limit 3";
        assert_eq!(two.ask(node, last), ["99|7", "100|0", "100|7", "= SELECT 3"]);
        assert_eq!(two.ask(node, "select a from t where c = 5"), ["50", "= SELECT 1"]);
    }
    two.stop();

    let mut two = Two::<P>::start(Some(temp.path()), &addresses);
    two.have(0, "insert into t values (-5, 0, 0), (1000, 0, 0)");
    high.push(1_000);
    assert_eq!(two.kept(0, "t"), [&[-5][..], &low].concat());
    assert_eq!(two.kept(1, "t"), high);
    two.have(1, "delete from t where a between 50 and 150");
    assert_eq!(two.kept(0, "t"), [-5, 10, 20, 30, 40]);
    assert_eq!(two.kept(1, "t"), [160, 170, 180, 190, 1_000]);
    two.stop();
}

#[test]
fn each_range_has_a_node_of_its_own() {
    limit_ranges::<Calvin>();
    limit_ranges::<Tiga>();
    limit_ranges::<Mako>();
}

fn limit_ranges<P: Protocol>() {
    let mut two = Two::<P>::start(None, &addresses::<4>());
    let three = "create table t (a int primary key) partition by range (a) split at values (1, 2)";
    let error = "! 54000 3 ranges require 3 shards, but there are 2 [hint: Specify at most 1 start \
                 in SPLIT AT VALUES.]";
    assert_eq!(two.ask(0, three), [error]);
    two.have(1, "begin");
    assert_eq!(two.ask(1, three), [error]);
    two.have(1, "rollback");
    two.have(0, "create table t (a int primary key) partition by range (a) split at values (1)");
    two.have(1, "insert into t values (0), (1), (2)");
    assert_eq!((two.kept(0, "t"), two.kept(1, "t")), (vec![0], vec![1, 2]));
    two.stop();
}

#[test]
fn the_past_is_read_from_the_nodes_that_had_its_rows() {
    read_the_past::<Calvin>();
    read_the_past::<Tiga>();
    read_the_past::<Mako>();
}

fn read_the_past<P: Protocol>() {
    let mut two = Two::<P>::start(None, &addresses::<4>());
    let make = |start: &str| {
        format!(
            "create table t (a int primary key, b text) partition by range (a) split at values \
             ({start}); insert into t values (1, '{start}'), (2, '{start}'), (3, '{start}')"
        )
    };
    two.have(0, &make("2"));
    let of_a_moment = "select min(b), count(*) from t as of system time '-0s'";
    (0..2).for_each(|node| two.wait_for(node, of_a_moment, &["2|3", "= SELECT 1"]));
    let [moment, _] = &two.ask(0, "select now()")[..] else { panic!("one row") };
    let moment = moment.clone();
    // The new table of this name has its rows on other nodes.
    two.have(1, &format!("drop table t; {}", make("3")));
    (0..2).for_each(|node| two.wait_for(node, of_a_moment, &["3|3", "= SELECT 1"]));
    assert_eq!((two.kept(0, "t"), two.kept(1, "t")), (vec![1, 2], vec![3]));
    for node in [0, 1] {
        let then = format!("select a, b from t as of system time '{moment}' order by a desc");
        assert_eq!(two.ask(node, &then), ["3|2", "2|2", "1|2", "= SELECT 3"]);
        assert_eq!(two.ask(node, "select max(b) from t where a > 0"), ["3", "= SELECT 1"]);
        two.have(node, &format!("begin as of system time '{moment}'"));
        assert_eq!(two.ask(node, "select b from t where a = 2"), ["2", "= SELECT 1"]);
        assert_eq!(two.ask(node, "select count(*) from t where a >= 2"), ["2", "= SELECT 1"]);
        two.have(node, "commit");
    }
    two.stop();
}
