//! The memory that clients which never read their results use on a node. This test has its own
//! process, because it measures the process's memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use pangea_node::pgwire::{Security, serve_with};
use pangea_sql::memory::MemoryEngine;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

/// The number of clients that request a result of 36 MB and never read it.
const CLIENTS: usize = 30;
/// A batch, its decoded rows and a reply buffer for each client, and as much again.
const BYTES_MAX: usize = CLIENTS * (2 << 20);

/// The limit here for all results that are materialized.
const RESULTS_BYTES_MAX: usize = 60 << 20;

/// The resident memory of the process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse().unwrap();
    kib << 10
}

fn frame(kind: &[u8], body: &[u8]) -> Vec<u8> {
    [kind, &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// A client that sends a query, reads the beginning of the answer, and then stops reading.
fn ask(address: SocketAddr, sql: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&frame(b"", b"\0\x03\0\0user\0me\0\0")).unwrap();
    stream.write_all(&frame(b"Q", format!("{sql}\0").as_bytes())).unwrap();
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        stream.read_exact(&mut vec![0; len - 4]).unwrap();
        assert_ne!(head[0], b'E', "the query failed");
        if head[0] == b'D' {
            return stream;
        }
    }
}

async fn connect(address: SocketAddr) -> Client {
    let config = format!("host={} port={} user=me", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn test(address: SocketAddr) {
    let client = connect(address).await;
    client.batch_execute("create table t (id int primary key, filler text)").await.unwrap();
    for part in 0..4 {
        let (from, to) = (part * 25_000 + 1, (part + 1) * 25_000);
        let insert = format!(
            "insert into t select g, repeat('x', 350) from generate_series({from}, {to}) g"
        );
        client.batch_execute(&insert).await.unwrap();
    }
    let before = resident_bytes();
    let asking = |sql: &'static str, clients| {
        let ask = move || (0..clients).map(|_| ask(address, sql)).collect::<Vec<_>>();
        tokio::task::spawn_blocking(ask)
    };
    let unread = asking("select * from t", CLIENTS).await.unwrap();
    let took = resident_bytes().saturating_sub(before);
    assert!(took < BYTES_MAX, "{CLIENTS} unread results use {} MB", took >> 20);
    assert_eq!(client.query("select id from t where id < 4", &[]).await.unwrap().len(), 3);
    drop(unread);

    // Sorted results are materialized: there is no room for a second one, but for a small one there
    // is.
    let sorted = "select * from t order by filler, id";
    let unread = asking(sorted, 1).await.unwrap();
    let error = client.query(sorted, &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::OUT_OF_MEMORY));
    let error = error.as_db_error().unwrap();
    assert_eq!(error.message(), "out of memory");
    assert!(error.detail().unwrap().contains("60 MiB"), "{error:?}");
    assert!(error.hint().is_some());
    let few = "select * from t where id < 4 order by filler, id";
    assert_eq!(client.query(few, &[]).await.unwrap().len(), 3);
    drop(unread);
    // The server may notice the client's disconnect a little later.
    let mut rows = client.query(sorted, &[]).await;
    while rows.as_ref().is_err_and(|error| error.code() == Some(&SqlState::OUT_OF_MEMORY)) {
        tokio::task::yield_now().await;
        rows = client.query(sorted, &[]).await;
    }
    assert_eq!(rows.unwrap().len(), 100_000);
}

#[test]
fn clients_that_never_read_take_a_bounded_part_of_a_nodes_memory() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let security = Security { results_bytes_max: RESULTS_BYTES_MAX, ..Security::default() };
        let server = tokio::spawn(serve_with(
            security,
            listener,
            std::sync::Arc::new(MemoryEngine::new()),
            async {
                let _ = stopped.await;
            },
        ));
        let deadline = Duration::from_secs(300);
        tokio::time::timeout(deadline, test(address)).await.expect("no wait is endless");
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    });
}
