//! A cluster within a program, with a procedure in Rust: the example, and the clients' view of it.

#[path = "../../examples/transfer.rs"]
mod transfer;

use pangea::{Cluster, Context, Datum, Error, Key, Procedure, Stop, TableId};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

async fn connect(cluster: &Cluster, node: usize) -> Client {
    let port = cluster.sql_address(node).port();
    let config = format!("host=127.0.0.1 port={port} user=pangea dbname=pangea");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn sum(client: &Client) -> i64 {
    let sum = "select sum(balance)::bigint from account";
    client.query_one(sum, &[]).await.unwrap().get(0)
}

/// Calls from all nodes concurrently, in all ways that PostgreSQL clients support.
async fn clients(cluster: &Cluster) {
    let (a, b, c) = tokio::join!(connect(cluster, 0), connect(cluster, 1), connect(cluster, 2));
    let call = "call transfer($1, $2, $3)";
    for round in 0..5 {
        let there = a.query_one(call, &[&1i32, &2i32, &1i64]);
        let back = b.query_one(call, &[&2i32, &1i32, &1i64]);
        let simple = c.simple_query("call transfer(1, 2, 1)");
        let (there, back, simple) = tokio::join!(there, back, simple);
        assert_eq!(there.unwrap().columns()[0].name(), "balance", "{round}");
        back.unwrap();
        simple.unwrap();
    }
    a.batch_execute("set reads = strict").await.unwrap();
    assert_eq!(sum(&a).await, 200);
    let count = "select count(*) from transfer";
    let before: i64 = a.query_one(count, &[]).await.unwrap().get(0);
    assert_eq!(before, 17);
    // A call that aborts itself has no effect.
    let error = a.query_one(call, &[&1i32, &9i32, &1i64]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::RAISE_EXCEPTION));
    assert_eq!(error.as_db_error().unwrap().message(), "there is no account Int(9)");
    assert_eq!(sum(&a).await, 200);
    let error = a.batch_execute("call transfer(1, 2)").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::UNDEFINED_FUNCTION));
    // In a transaction block, the call is part of the transaction.
    a.batch_execute("begin; call transfer(1, 2, 50); rollback").await.unwrap();
    assert_eq!(a.query_one(count, &[]).await.unwrap().get::<_, i64>(0), before);
    a.batch_execute("begin; call transfer(1, 2, 50); call transfer(2, 1, 50); commit")
        .await
        .unwrap();
    assert_eq!(a.query_one(count, &[]).await.unwrap().get::<_, i64>(0), before + 2);
    let error = a.batch_execute("begin read only; call transfer(1, 2, 1)").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));
}

#[test]
fn the_example_runs_to_its_end() {
    transfer::main().unwrap();
}

#[test]
fn a_procedure_in_rust_is_called_from_the_program_and_from_any_client() {
    let cluster = transfer::bank().unwrap();
    let balances = transfer::transfers(&cluster).unwrap();
    let account = |id, balance| vec![Datum::Int(id), Datum::Int(balance)];
    assert_eq!(balances, [account(1, 80), account(2, 120)]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(clients(&cluster));
    cluster.stop().unwrap();
}

/// Counts in a separate table, without SQL.
struct Count;

impl Procedure for Count {
    fn name(&self) -> &str {
        "count.up"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let table = TableId(900_000);
        let now = cx.get(table, args)?.map_or(0, |value| value[0]);
        cx.put(table, Key::from(args), vec![now + 1].into())?;
        Ok(vec![now + 1])
    }
}

#[test]
fn a_procedure_without_sql_is_called_by_its_name() {
    let cluster = Cluster::builder().raw_procedure(Count).start().unwrap();
    assert_eq!(cluster.call_raw(0, "count.up", b"k").unwrap(), [1]);
    assert_eq!(cluster.call_raw(2, "count.up", b"k").unwrap(), [2]);
    assert!(matches!(cluster.call_raw(0, "count.down", b"k"), Err(Error::Sql(_))));
    let twice = Cluster::builder().raw_procedure(Count).raw_procedure(Count).start();
    let error = twice.err().expect("a name has one meaning").to_string();
    assert_eq!(error, "procedure \"count.up\" is defined twice");
    let error = Cluster::builder().protocol("paxos").start().err().unwrap().to_string();
    assert!(error.contains("unknown protocol \"paxos\""), "{error}");
}

/// A procedure whose name is before those of all others.
struct Added;

impl Procedure for Added {
    fn name(&self) -> &str {
        "a.first"
    }

    fn run(&self, _: &[u8], _: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        Ok(b"added".to_vec())
    }
}

/// A program, before and after a change of its procedures.
struct Release<'a> {
    protocol: &'a str,
    regions: &'a [&'a str],
    directory: &'a std::path::Path,
}

impl Release<'_> {
    fn start(&self, is_newer: bool) -> Cluster {
        let builder = Cluster::builder().protocol(self.protocol).regions(self.regions);
        let builder = builder.directory(self.directory);
        let builder = if is_newer { builder.raw_procedure(Added) } else { builder };
        builder.start().unwrap()
    }
}

fn doubled(cluster: &Cluster) -> i64 {
    let mut connection = cluster.connect(0).unwrap();
    connection.query("update doubled set value = value * 2", &[]).unwrap();
    let rows = connection.query("select value from doubled", &[]).unwrap().rows;
    match rows[0][0] {
        Datum::Int(value) => value,
        ref other => panic!("{other:?}"),
    }
}

fn write(cluster: &Cluster) -> Result<(), Error> {
    cluster.connect(0)?.query("insert into doubled values (-1)", &[]).map(drop)
}

/// The log once named procedures by their places in the order of names. With one more of them, an
/// acknowledged UPDATE was replayed as a call of another procedure, and was lost.
#[test]
fn a_program_with_more_procedures_continues_after_a_stop_and_refuses_after_a_kill() {
    for protocol in ["minerva", "calvin", "tiga"] {
        for regions in [&["a"][..], &["a", "b", "c"][..]] {
            let directory = tempfile::tempdir().unwrap();
            let release = Release { protocol, regions, directory: directory.path() };
            let cluster = release.start(false);
            let mut connection = cluster.connect(0).unwrap();
            connection.query("create table doubled (value int primary key)", &[]).unwrap();
            connection.query("insert into doubled values (1)", &[]).unwrap();
            drop(connection);
            assert_eq!(doubled(&cluster), 2);
            cluster.stop().unwrap();

            let cluster = release.start(true);
            assert_eq!(cluster.call_raw(0, "a.first", b"").unwrap(), b"added");
            assert_eq!(doubled(&cluster), 4, "{protocol}, {regions:?}");
            // As if it was killed.
            drop(cluster);

            let cluster = release.start(false);
            let refused = cluster.call_raw(0, "a.first", b"").unwrap_err().to_string();
            assert!(refused.contains("does not exist"), "{refused}");
            let refused = format!("{:?}", write(&cluster).unwrap_err());
            assert!(refused.contains("stop it in order"), "{protocol}, {regions:?}: {refused}");
            drop(cluster);

            let cluster = release.start(true);
            assert_eq!(doubled(&cluster), 8, "nothing is lost: {protocol}, {regions:?}");
            cluster.stop().unwrap();
            let cluster = release.start(false);
            assert_eq!(doubled(&cluster), 16, "{protocol}, {regions:?}");
            cluster.stop().unwrap();
        }
    }
}

/// The log of Mako has results, and not calls: another program continues with it after a kill, too.
#[test]
fn another_program_continues_with_mako_after_a_kill() {
    for regions in [&["a"][..], &["a", "b", "c"][..]] {
        let directory = tempfile::tempdir().unwrap();
        let release = Release { protocol: "mako", regions, directory: directory.path() };
        let cluster = release.start(false);
        let mut connection = cluster.connect(0).unwrap();
        connection.query("create table doubled (value int primary key)", &[]).unwrap();
        connection.query("insert into doubled values (1)", &[]).unwrap();
        drop(connection);
        drop(cluster);
        let mut expected = 1;
        // Each of them ends as if it was killed.
        for is_newer in [true, false, true] {
            assert_eq!(doubled(&release.start(is_newer)), expected * 2, "{regions:?}");
            expected *= 2;
        }
        let cluster = release.start(true);
        assert_eq!(cluster.call_raw(0, "a.first", b"").unwrap(), b"added");
        cluster.stop().unwrap();
        assert_eq!(doubled(&release.start(false)), expected * 2, "after a stop in order");
    }
}
