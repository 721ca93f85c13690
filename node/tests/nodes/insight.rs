//! Information about nodes and statements, as PostgreSQL clients of a real cluster see it.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::cluster;
use pangea_core::protocol::Protocol;
use pangea_core::txn::Registry;
use pangea_node::node::Node;
use pangea_node::pgwire::serve;
use pangea_protocols::minerva::Minerva;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Connects a client to one node.
async fn connect(address: SocketAddr) -> Client {
    let config = format!("host={} port={} user=me dbname=db", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Runs a test against three nodes, with a client of each.
fn with_cluster<F: Future<Output = ()>>(test: impl FnOnce(Vec<Client>) -> F) {
    let temp = tempfile::tempdir().unwrap();
    let keys = "workers = 1\nlog_segment_bytes = 65536";
    let configs = cluster::configs(temp.path(), Minerva::NAME, keys, "[minerva]\nepoch_ms = 5");
    let start = |config| {
        let registry = Registry::new(pangea_sql::procedures());
        Node::<Minerva>::start(config, Arc::new(registry)).unwrap()
    };
    let nodes: Vec<_> = configs.iter().map(start).collect();
    cluster::runtime().block_on(async {
        let (mut clients, mut ends) = (Vec::new(), Vec::new());
        for node in &nodes {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (stop, stopped) = oneshot::channel::<()>();
            let engine = Arc::new(node.handle().clone());
            let server = tokio::spawn(serve(listener, engine, async {
                let _ = stopped.await;
            }));
            clients.push(connect(address).await);
            ends.push((stop, server));
        }
        test(clients).await;
        for (stop, server) in ends {
            stop.send(()).unwrap();
            server.await.unwrap().unwrap();
        }
    });
    nodes.into_iter().for_each(|node| node.stop().unwrap());
}

/// The rows returned to a client, each as one text with its cells separated by `|`.
async fn rows(client: &Client, sql: &str) -> Vec<String> {
    let messages = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            let cell = |at| row.get(at).unwrap_or("NULL").to_owned();
            Some((0..row.len()).map(cell).collect::<Vec<_>>().join("|"))
        }
        _ => None,
    };
    messages.iter().filter_map(row).collect()
}

/// Parses the milliseconds of a line such as `  Order Time: 12.345 ms`.
fn ms(plan: &[String], name: &str) -> f64 {
    let line = plan.iter().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    let number = line.and_then(|line| line.strip_suffix(" ms"));
    number.unwrap_or_else(|| panic!("{name} in {plan:#?}")).parse().unwrap()
}

#[test]
fn explain_analyze_says_where_the_time_of_a_commit_went() {
    with_cluster(|clients| async move {
        let client = &clients[0];
        rows(client, "create table t (id int primary key, n int)").await;
        let plan = rows(client, "explain analyze insert into t values (1, 1), (2, 2)").await;
        assert!(plan[0].starts_with("Insert on t  (rows=0) (actual time="), "{plan:#?}");
        assert!(plan[1].contains("Values Scan on \"*VALUES*\"  (rows=2)"), "{plan:#?}");
        let way = "Commit: as a program, at its place in the order";
        assert!(plan.contains(&way.to_owned()), "{plan:#?}");
        let names = ["Queue Time", "Order Time", "Durability Time", "Answer Time"];
        let parts: f64 = names.iter().map(|name| ms(&plan, name)).sum();
        let total = ms(&plan, "Commit Time");
        assert!((parts - total).abs() < 0.01, "the parts add up to the total: {plan:#?}");
        // An epoch and a round trip of agreement, however fast the machine is.
        assert!(ms(&plan, "Order Time") > 1.0, "{plan:#?}");
        assert_eq!(rows(client, "select count(*) from t").await, ["2"]);

        let update = "explain analyze update t set n = n + 1 where id in (select 1)";
        let plan = rows(client, update).await;
        let way = "Commit: certified by its reads and writes on this node";
        assert!(plan.contains(&way.to_owned()), "{plan:#?}");
        assert_eq!(rows(client, "select n from t where id = 1").await, ["2"]);
    });
}

#[test]
fn a_plan_comes_to_clients_that_prepare_it() {
    with_cluster(|clients| async move {
        let client = &clients[0];
        rows(client, "create table t (id int primary key, n int)").await;
        let sql = "explain (costs off) select * from t where id = $1";
        let plan = client.query(sql, &[&7i32]).await.unwrap();
        let plan: Vec<&str> = plan.iter().map(|row| row.get(0)).collect();
        assert_eq!(plan, ["Index Scan using t_pkey on t", "  Index Cond: (id = $1)"]);
        let statement = client.prepare("explain (format json) select 1").await.unwrap();
        let [column] = statement.columns() else { panic!("one column") };
        assert_eq!((column.name(), column.type_().name()), ("QUERY PLAN", "json"));
    });
}

/// Waits until a query returns exactly this row.
async fn wait_for(client: &Client, sql: &str, expected: &str) {
    let started = std::time::Instant::now();
    loop {
        let found = rows(client, sql).await;
        if found == [expected] {
            return;
        }
        assert!(started.elapsed().as_secs() < 60, "{sql} is {found:?}, not {expected}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[test]
fn a_node_tells_of_its_cluster_and_its_peers() {
    with_cluster(|clients| async move {
        let client = &clients[1];
        rows(client, "create table t (id int primary key)").await;
        let sql = "select name, protocol, durability, nodes, node, region, members, is_ready \
                   from pangea.cluster";
        assert_eq!(rows(client, sql).await, ["test|minerva|fsync|3|1|us|3|t"]);
        let sql = "select settings like '%epoch_ms = 5%', version > 0, coordinator is not null, \
                   length(code), release like '%.%.%', procedures like '% %' \
                   from pangea.cluster";
        assert_eq!(rows(client, sql).await, ["t|t|t|8|t|t"]);
        wait_for(client, "select count(*) from pangea.regions where is_reachable", "3").await;
        let sql = "select name from pangea.regions where is_local";
        assert_eq!(rows(client, sql).await, ["us"]);
        let sql = "select count(*) from pangea.regions where has_coordinator";
        assert_eq!(rows(client, sql).await, ["1"]);
        let sql = "select count(*) from pangea.replication \
                   where is_connected and is_member and version > 0 and durable_version >= 0";
        // Peers report their progress periodically.
        wait_for(client, sql, "2").await;
        let sql = "select count(*), count(client_port), bool_and(pid > 0) from pg_stat_activity";
        assert_eq!(rows(client, sql).await, ["1|1|t"], "sessions are those of this node");
    });
}

#[test]
fn the_key_that_all_write_is_the_hottest() {
    with_cluster(|clients| async move {
        rows(&clients[0], "create table t (id int primary key, n int)").await;
        rows(&clients[0], "insert into t values (1, 0), (2, 0)").await;
        let hot = |client: Client| async move {
            for _ in 0..40 {
                rows(&client, "update t set n = n + 1 where id = 1").await;
                rows(&client, "update t set n = n + 1 where id = 1").await;
            }
            client
        };
        let mut clients = clients.into_iter().map(hot);
        let (a, b, c) = (clients.next().unwrap(), clients.next().unwrap(), clients.next().unwrap());
        let (a, b, c) = tokio::join!(a, b, c);
        wait_for(&a, "select n from t where id = 1", "240").await;
        let (mut reruns, mut met) = (0, 0);
        for client in [&a, &b, &c] {
            let sql = "select reexecutions from pangea.statements where query like 'update t%'";
            reruns += rows(client, sql).await[0].parse::<u64>().unwrap();
            let sql = "select table_name, key from pangea.hot_keys limit 1";
            let hottest = rows(client, sql).await;
            met += hottest.iter().filter(|row| *row == "t|(id)=(1)").count();
        }
        assert!(reruns > 0, "three nodes wrote a row concurrently");
        assert!(met > 0, "at least one node names the row");
    });
}

#[test]
fn the_near_past_is_read_as_it_was() {
    with_cluster(|clients| async move {
        let client = &clients[0];
        rows(client, "create table t (id int primary key, n int)").await;
        rows(client, "insert into t values (1, 10)").await;
        // A time at which the row exists.
        let then = loop {
            let then = rows(client, "select now()").await.remove(0);
            let sql = format!("select n from t as of system time '{then}'");
            if client.simple_query(&sql).await.is_ok() && rows(client, &sql).await == ["10"] {
                break then;
            }
        };
        rows(client, "update t set n = 20").await;
        rows(client, "alter table t add column late int default 5").await;
        assert_eq!(rows(client, "select n, late from t").await, ["20|5"]);
        let sql = format!("select * from t as of system time '{then}'");
        assert_eq!(rows(client, &sql).await, ["1|10"]);
        rows(client, "drop table t").await;
        assert_eq!(rows(client, &sql).await, ["1|10"]);
        let sql = format!("select n from t as of system time '{then}' where id = $1");
        let found = client.query(&sql, &[&1i32]).await.unwrap();
        assert_eq!(found[0].get::<_, i32>(0), 10);

        let begin = format!("begin as of system time '{then}'");
        rows(client, &begin).await;
        assert_eq!(rows(client, "select n from t").await, ["10"]);
        let error = client.simple_query("insert into t values (2, 2)").await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("25006"));
        rows(client, "rollback").await;

        let sql = "select 1 as of system time '-1h'";
        let error = client.simple_query(sql).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "72000");
        assert!(error.detail().unwrap().contains("begins at"), "{error:?}");
        let sql = "select count(*) from pangea.replication where ms_behind < 60000";
        wait_for(client, sql, "3").await;
    });
}
