//! Tests of each baseline on loopback: it starts, loads, serves three clients, and has the same
//! rows as Pangea. Checks detect errors, and nothing remains afterwards.

mod work;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use pangea_baselines::etcd::wire::{DeleteRequest, Op, PutRequest, RangeRequest, RequestOp};
use pangea_baselines::{Baseline, Isolation, Kind, Options};
use pangea_core::workload::{Settings, tpcc::Scale};
use work::{Run, is_there, sql_rows};

/// The largest number of times that clients run until transactions conflict.
const ROUNDS_MAX: u32 = 50;

/// A scale that loads almost instantly.
fn settings() -> Settings {
    let scale = Scale::TINY;
    Settings { rows: 500, value_len: 100, zipf: 0.9, warehouses: 3, scale, ..Settings::default() }
}

fn options() -> Options {
    Options { sessions: 16, cache_mb: 64, suspect_s: 60, ..Options::default() }
}

async fn mariadb(baseline: &Baseline, place: usize) -> mysql_async::Conn {
    let address = baseline.address(place);
    let url = format!("mysql://pangea@{address}/pangea?prefer_socket=false");
    mysql_async::Conn::new(mysql_async::Opts::from_url(&url).expect("the text is a URL"))
        .await
        .expect("up")
}

async fn postgres(baseline: &Baseline) -> tokio_postgres::Client {
    let address = baseline.address(0);
    let text = format!("host={} port={} user=pangea dbname=pangea", address.ip(), address.port());
    let connected = tokio_postgres::connect(&text, tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("the server accepts connections");
    drop(tokio::spawn(connection));
    client
}

/// Stops the baseline, and checks that no process and no file remains.
async fn stop(run: Run) {
    let (baseline, directory) = (run.baseline, run.directory);
    let pids = baseline.pids();
    assert!(pids.iter().all(|pid| is_there(*pid)));
    assert_ne!(std::fs::read_dir(directory.path()).expect("the directory exists").count(), 0);
    baseline.stop().await.expect("the server stops cleanly");
    assert!(!pids.iter().any(|pid| is_there(*pid)), "{pids:?}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory exists").count(), 0);
}

#[tokio::test]
async fn galera_holds_what_pangea_would_hold_and_notices_what_differs() {
    let mut run = Run::start(Kind::Galera, &settings(), options()).await;
    run.tables("ycsb-a").await;
    run.work("ycsb-a", 100).await;
    run.check("ycsb-a").await.expect("the check succeeds");
    let mut alone = mariadb(&run.baseline, 2).await;
    // This change is not replicated: only this place has it.
    let statements = ["SET SESSION wsrep_on = OFF", "UPDATE ycsb SET value = '' WHERE id = 7"];
    for statement in statements {
        alone.query_drop(statement).await.expect("the statement succeeds");
    }
    let error = run.check("ycsb-a").await.unwrap_err();
    assert!(error.contains("ycsb differs"), "{error}");

    run.tables("tpcc-nopay").await;
    run.one_by_one("tpcc-nopay", 600, async |baseline: &Baseline, table: &str| {
        let rows: Vec<mysql_async::Row> =
            mariadb(baseline, 1).await.query(format!("SELECT * FROM {table}")).await.expect("rows");
        rows.into_iter().map(|row| work::line_of_mariadb(row.unwrap())).collect()
    })
    .await;
    run.work("tpcc-nopay", 100).await;
    run.check("tpcc-nopay").await.expect("the check succeeds");
    let mut conn = mariadb(&run.baseline, 0).await;
    let statement = "UPDATE district SET d_ytd = d_ytd + 1 WHERE d_w_id = 2 AND d_id = 3";
    conn.query_drop(statement).await.expect("the statement succeeds");
    let error = run.check("tpcc-nopay").await.unwrap_err();
    assert!(error.contains("condition 1"), "{error}");
    drop((alone, conn));
    stop(run).await;
}

#[tokio::test]
async fn postgres_holds_what_pangea_would_hold_and_notices_what_is_wrong() {
    let mut run = Run::start(Kind::Postgres, &settings(), options()).await;
    run.tables("ycsb-a").await;
    run.work("ycsb-a", 100).await;
    run.check("ycsb-a").await.expect("the check succeeds");
    let client = postgres(&run.baseline).await;
    // A lost update: the row's length is unchanged, and it is the same in every place.
    let lost = "UPDATE ycsb SET value = decode(repeat('00', length(value)), 'hex') \
                WHERE id = (SELECT min(id) FROM ycsb WHERE substr(value, 1, 8) \
                <> decode('0000000000000000', 'hex'))";
    client.batch_execute(lost).await.expect("the statement succeeds");
    let error = run.check("ycsb-a").await.unwrap_err();
    assert!(error.contains("mark of its newest acknowledged write"), "{error}");
    client.batch_execute("DELETE FROM ycsb WHERE id = 7").await.expect("the statement succeeds");
    let error = run.check("ycsb-a").await.unwrap_err();
    assert!(error.contains("rows of YCSB: 499, expected 500"), "{error}");

    run.tables("tpcc-nopay").await;
    run.one_by_one("tpcc-nopay", 600, async |baseline: &Baseline, table: &str| {
        sql_rows(&postgres(baseline).await, table).await
    })
    .await;
    run.work("tpcc-nopay", 100).await;
    run.check("tpcc-nopay").await.expect("the check succeeds");
    // A lost transaction: all its rows are missing, and only the count of commits reveals it.
    let lost = "UPDATE warehouse SET w_ytd = w_ytd - h_amount FROM history \
                WHERE h_w_id = w_id AND h_c_w_id = 1 AND h_c_d_id = 1 AND h_c_id = 1 \
                AND h_number = 1;
                UPDATE district SET d_ytd = d_ytd - h_amount FROM history \
                WHERE h_w_id = d_w_id AND h_d_id = d_id AND h_c_w_id = 1 AND h_c_d_id = 1 \
                AND h_c_id = 1 AND h_number = 1;
                UPDATE customer SET c_balance = c_balance + h_amount, \
                c_ytd_payment = c_ytd_payment - h_amount FROM history WHERE h_c_w_id = c_w_id \
                AND h_c_d_id = c_d_id AND h_c_id = c_id AND c_w_id = 1 AND c_d_id = 1 \
                AND c_id = 1 AND h_number = 1;
                DELETE FROM history WHERE h_c_w_id = 1 AND h_c_d_id = 1 AND h_c_id = 1 \
                AND h_number = 1";
    client.batch_execute(lost).await.expect("the statement succeeds");
    let error = run.check("tpcc-nopay").await.unwrap_err();
    assert!(error.contains("committed Payments"), "{error}");
    drop(client);
    stop(run).await;
}

#[tokio::test]
async fn postgres_when_serializable_does_again_what_it_undoes() {
    let options = Options { isolation: Isolation::Serializable, ..options() };
    let few = Settings { rows: 10, ..settings() };
    let mut run = Run::start(Kind::Postgres, &few, options).await;
    run.tables("ycsb-a").await;
    // Three clients on ten rows conflict sooner or later, but few calls may run one after the other
    // on a busy machine.
    let mut retries = BTreeMap::new();
    for _ in 0..ROUNDS_MAX {
        run.work("ycsb-a", 100).await;
        retries = run.baseline.retries().take();
        if retries.contains_key("40001") {
            break;
        }
    }
    run.check("ycsb-a").await.expect("the check succeeds");
    assert!(retries.get("40001").is_some_and(|count| *count > 0), "{retries:?}");
    stop(run).await;
}

#[tokio::test]
async fn etcd_holds_what_clients_put_and_notices_what_is_wrong() {
    let mut run = Run::start(Kind::Etcd, &settings(), options()).await;
    run.tables("ycsb-a").await;
    run.work("ycsb-a", 100).await;
    run.check("ycsb-a").await.expect("the check succeeds");
    let address = run.baseline.address(1);
    let mut client = pangea_baselines::etcd::Client::connect(address)
        .await
        .expect("the server accepts connections");
    let key = b"0000000007".to_vec();
    let read = client.range(RangeRequest { key: key.clone(), ..Default::default() });
    let value = read.await.expect("the row can be read").kvs.remove(0).value;
    let put = Op::Put(PutRequest { key: key.clone(), value });
    client.txn(vec![RequestOp { op: Some(put) }]).await.expect("the statement succeeds");
    let error = run.check("ycsb-a").await.unwrap_err();
    assert!(error.contains("puts since the load"), "{error}");
    let delete = Op::Delete(DeleteRequest { key });
    client.txn(vec![RequestOp { op: Some(delete) }]).await.expect("the statement succeeds");
    let error = run.check("ycsb-a").await.unwrap_err();
    assert!(error.contains("rows of YCSB: 499, expected 500"), "{error}");
    stop(run).await;
}

#[tokio::test]
async fn a_peer_that_is_dropped_leaves_nothing() {
    let run = Run::start(Kind::Etcd, &settings(), options()).await;
    let pids = run.baseline.pids();
    assert!(pids.iter().all(|pid| is_there(*pid)));
    let directory = run.directory;
    drop(run.baseline);
    assert!(!pids.iter().any(|pid| is_there(*pid)));
    assert_eq!(std::fs::read_dir(directory.path()).expect("the file exists").count(), 0);
}

#[test]
fn servers_end_with_the_thread_that_started_them_whatever_it_forgets() {
    for kind in [Kind::Etcd, Kind::Postgres] {
        let forget = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let Run { baseline, directory, .. } =
                runtime.block_on(Run::start(kind, &settings(), options()));
            let pids = baseline.pids();
            std::mem::forget(baseline);
            (pids, directory)
        };
        let (pids, directory) = std::thread::spawn(forget).join().expect("the servers start");
        let deadline = Instant::now() + Duration::from_secs(30);
        while pids.iter().any(|pid| is_running(*pid)) {
            assert!(Instant::now() < deadline, "{kind}: {pids:?}");
            std::thread::yield_now();
        }
        drop(directory);
    }
}

/// Whether a process is running. An orphan that has ended may remain as a zombie.
fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}
