//! COPY over real sockets: with a driver, and with messages that no driver would send.

use std::fmt::Write;
use std::pin::pin;

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::drivers::with_raw;
use super::hostile::{frame, startup};
use super::server::{connect, with_server};

async fn copy_in(client: &Client, statement: &str, pieces: &[&[u8]]) -> Result<u64, Error> {
    let sink = client.copy_in(statement).await?;
    let mut sink = pin!(sink);
    for piece in pieces {
        sink.send(Bytes::copy_from_slice(piece)).await?;
    }
    sink.finish().await
}

async fn copy_out(client: &Client, statement: &str) -> Result<Vec<Bytes>, Error> {
    client.copy_out(statement).await?.try_collect().await
}

#[test]
fn a_driver_copies_in_and_out() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (a int primary key, b text)").await.unwrap();
        let pieces = [&b"1\tone\n2"[..], b"\t\\", b"N\n3\tt\\thr", b"ee\n"];
        assert_eq!(copy_in(&client, "copy t from stdin", &pieces).await.unwrap(), 3);
        let messages = copy_out(&client, "copy t to stdout").await.unwrap();
        assert_eq!(messages, [&b"1\tone\n"[..], b"2\t\\N\n", b"3\tt\\three\n"]);
        let csv = copy_out(&client, "copy (select b from t where a < 3) to stdout csv header");
        assert_eq!(csv.await.unwrap().concat(), b"b\none\n\n");
        let error = copy_in(&client, "copy t from stdin", &[b"4\tx\nx", b"\ty\n"]).await;
        let error = error.unwrap_err().as_db_error().unwrap().clone();
        assert_eq!(error.code(), &SqlState::INVALID_TEXT_REPRESENTATION);
        assert_eq!(error.where_(), Some("COPY t, line 2, column a: \"x\""));
        let error = copy_in(&client, "copy t from stdin", &[b"4\tx\n1\ty\n"]).await;
        let error = error.unwrap_err().as_db_error().unwrap().clone();
        let reported = (error.code(), error.constraint(), error.where_());
        assert_eq!(reported, (&SqlState::UNIQUE_VIOLATION, Some("t_pkey"), Some("COPY t, line 2")));
        let error = copy_out(&client, "copy (select 1 / (a - 3) from t) to stdout").await;
        assert_eq!(error.unwrap_err().code(), Some(&SqlState::DIVISION_BY_ZERO));
        let count: i64 = client.query_one("select count(*) from t", &[]).await.unwrap().get(0);
        assert_eq!(count, 3, "a failed COPY adds no rows");
    });
}

#[test]
fn binary_goes_both_ways() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (a int primary key, b text, c float8)").await.unwrap();
        let nothing = copy_out(&client, "copy t to stdout binary").await.unwrap().concat();
        assert_eq!(nothing, b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\xff\xff");
        let types = [Type::INT4, Type::TEXT, Type::FLOAT8];
        let sink = client.copy_in("copy t from stdin (format binary)").await.unwrap();
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
        for a in 0..5_000i32 {
            let b = (a % 2 == 0).then(|| a.to_string());
            writer.as_mut().write(&[&a, &b, &f64::from(a)]).await.unwrap();
        }
        assert_eq!(writer.finish().await.unwrap(), 5_000);
        let stream = client.copy_out("copy t to stdout with binary").await.unwrap();
        let rows: Vec<_> = BinaryCopyOutStream::new(stream, &types).try_collect().await.unwrap();
        assert_eq!(rows.len(), 5_000);
        for (a, row) in (0i32..).zip(&rows) {
            let b = (a % 2 == 0).then(|| a.to_string());
            assert_eq!(row.get::<i32>(0), a);
            assert_eq!(row.get::<Option<&str>>(1), b.as_deref());
            assert_eq!(row.get::<f64>(2), f64::from(a));
        }
    });
}

#[test]
fn a_transaction_sees_what_it_copied_and_can_take_it_back() {
    with_server(|address, _| async move {
        let mut client = connect(address).await;
        client.batch_execute("create table t (a int primary key)").await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let sink = transaction.copy_in("copy t from stdin").await.unwrap();
        let mut sink = pin!(sink);
        sink.send(Bytes::from_static(b"1\n2\n")).await.unwrap();
        assert_eq!(sink.finish().await.unwrap(), 2);
        let seen = transaction.copy_out("copy t to stdout").await.unwrap();
        let seen: Vec<Bytes> = seen.try_collect().await.unwrap();
        assert_eq!(seen.concat(), b"1\n2\n");
        transaction.rollback().await.unwrap();
        let left = copy_out(&client, "copy t to stdout").await.unwrap();
        assert!(left.is_empty());
    });
}

/// Some 40 MiB: more than one transaction may write.
fn many_rows(from: u32) -> Vec<Bytes> {
    let pad = "x".repeat(1_000);
    let piece = |at: u32| {
        let mut lines = String::new();
        for id in at * 1_000..(at + 1) * 1_000 {
            writeln!(lines, "{id}\t{pad}").unwrap();
        }
        Bytes::from(lines)
    };
    (from..from + 40).map(piece).collect()
}

#[test]
fn what_no_transaction_takes_is_committed_in_batches_or_not_at_all() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (a int primary key, b text)").await.unwrap();
        let count = async || -> i64 {
            client.query_one("select count(*) from t", &[]).await.unwrap().get(0)
        };
        let copy = async |pieces: Vec<Bytes>| -> Result<u64, Error> {
            let sink = client.copy_in("copy t from stdin").await?;
            let mut sink = pin!(sink);
            for piece in pieces {
                sink.feed(piece).await?;
            }
            sink.finish().await
        };
        client.batch_execute("set copy_atomic = on").await.unwrap();
        let error = copy(many_rows(0)).await.unwrap_err().as_db_error().unwrap().clone();
        assert_eq!(error.code(), &SqlState::PROGRAM_LIMIT_EXCEEDED);
        assert!(error.hint().unwrap().contains("copy_atomic"), "{error:?}");
        assert_eq!(count().await, 0);
        client.batch_execute("set copy_atomic = off").await.unwrap();
        assert_eq!(copy(many_rows(0)).await.unwrap(), 40_000);
        assert_eq!(count().await, 40_000);
        // The last row exists already.
        client.batch_execute("insert into t values (79999)").await.unwrap();
        let error = copy(many_rows(40)).await.unwrap_err().as_db_error().unwrap().clone();
        assert_eq!(error.code(), &SqlState::UNIQUE_VIOLATION);
        assert_eq!(error.where_(), Some("COPY t, line 40000"));
        let added = count().await - 40_001;
        assert!(added > 0 && added < 40_000, "{added}");
        let reported = format!("The first {added} rows are committed");
        assert!(error.detail().unwrap().contains(&reported), "{error:?}");
        let new = "select min(a), max(a) from t where a >= 40000 and a < 79999";
        let ids = client.query_one(new, &[]).await.unwrap();
        let ids = (ids.get::<_, i32>(0), i64::from(ids.get::<_, i32>(1)));
        assert_eq!(ids, (40_000, 40_000 + added - 1), "the first rows are committed");
        client.batch_execute("begin").await.unwrap();
        let error = copy(many_rows(80)).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::PROGRAM_LIMIT_EXCEEDED));
        client.batch_execute("rollback").await.unwrap();
    });
}

#[test]
fn what_is_too_large_with_its_index_is_committed_in_batches() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        let table = "create table t (a int primary key, b text); create index on t ((b || a))";
        client.batch_execute(table).await.unwrap();
        let sink = client.copy_in("copy t from stdin").await.unwrap();
        let mut sink = pin!(sink);
        for piece in many_rows(0).into_iter().take(20) {
            sink.feed(piece).await.unwrap();
        }
        assert_eq!(sink.finish().await.unwrap(), 20_000);
        let count = client.query_one("select count(*) from t", &[]).await.unwrap();
        assert_eq!(count.get::<_, i64>(0), 20_000);
    });
}

#[test]
fn a_simple_query_goes_on_after_its_copies() {
    with_raw(|mut raw| {
        let script = b"create table t (a int); copy t from stdin; copy t to stdout; select 7\0";
        raw.send(&[(b'Q', script)]);
        assert_eq!(raw.until(b'G'), ("CG".to_owned(), "\0\0\x01\0\0".to_owned()));
        raw.send(&[(b'd', b"1\n2"), (b'd', b""), (b'd', b"3\n"), (b'c', b"")]);
        assert_eq!(raw.until(b'C').1, "COPY 2\0");
        assert_eq!(raw.until(b'c').0, "Hddc");
        assert_eq!(raw.until(b'Z').0, "CTDCZ");
    });
}

/// As in PostgreSQL, the error is sent immediately, and the data that follows it is skipped.
#[test]
fn an_error_drains_what_the_client_still_sends() {
    with_raw(|mut raw| {
        raw.send(&[(b'Q', b"create table t (a int)\0"), (b'Q', b"copy t from stdin; select 1\0")]);
        raw.until(b'G');
        raw.send(&[(b'd', b"x\n"), (b'd', b"1\n"), (b'd', b"2\n"), (b'c', b"")]);
        raw.send(&[(b'Q', b"select 7\0")]);
        let (kinds, text) = raw.until(b'E');
        assert_eq!(kinds, "E");
        assert!(text.contains("WCOPY t, line 1, column a: \"x\"\0"), "{text:?}");
        assert_eq!(raw.until(b'Z').0, "Z", "later statements of the query are not run");
        assert_eq!(raw.until(b'Z').0, "TDCZ");
        // In the extended protocol a Sync before the data is ignored, and one after it counts.
        let portal = [
            (b'P', &b"\0copy t from stdin\0\0\0"[..]),
            (b'B', b"\0\0\0\0\0\0\0\0"),
            (b'E', b"\0\0\0\0\0"),
            (b'S', b""),
        ];
        raw.send(&portal);
        assert_eq!(raw.until(b'G').0, "12G");
        raw.send(&[(b'H', b""), (b'd', b"1\n"), (b'd', b"y\n"), (b'd', b"1\n"), (b'c', b"")]);
        raw.send(&[(b'S', b"")]);
        assert_eq!(raw.until(b'Z').0, "EZ");
        raw.send(&portal);
        raw.until(b'G');
        raw.send(&[(b'd', b"1\n"), (b'f', b"no more\0"), (b'S', b"")]);
        let (_, text) = raw.until(b'E');
        assert!(text.contains("C57014\0MCOPY from stdin failed: no more\0"), "{text:?}");
        raw.until(b'Z');
        raw.send(&[(b'Q', b"select count(*) from t\0")]);
        assert_eq!(raw.until(b'D').1, "\0\x01\0\0\0\x010");
    });
}

#[test]
fn files_and_programs_of_the_server_are_not_for_clients() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (a int)").await.unwrap();
        let refused =
            ["copy t from '/etc/passwd'", "copy t to '/tmp/x'", "copy t to program 'rm x'"];
        for text in refused {
            let error = client.batch_execute(text).await.unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{text}");
            assert!(error.hint().unwrap().contains("\\copy"), "{text}");
        }
    });
}

#[test]
fn a_copy_that_waits_for_its_client_can_be_interrupted() {
    with_raw(|mut raw| {
        raw.send(&[(b'Q', b"create table t (a int)\0"), (b'Q', b"set statement_timeout = 50\0")]);
        raw.send(&[(b'Q', b"copy t from stdin\0")]);
        raw.until(b'G');
        raw.send(&[(b'd', b"1\n")]);
        let (_, text) = raw.until(b'E');
        assert!(text.contains("C57014\0Mcanceling statement due to statement timeout"), "{text:?}");
        raw.until(b'Z');
        raw.send(&[(b'd', b"2\n"), (b'c', b""), (b'Q', b"select count(*) from t\0")]);
        assert_eq!(raw.until(b'D').1, "\0\x01\0\0\0\x010");
    });
}

/// Rows are sent as fast as the client reads them: a client that reads none delays only itself.
#[test]
fn a_client_that_reads_nothing_holds_up_no_server_that_stops() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (a int primary key, b text)").await.unwrap();
        let sink = client.copy_in("copy t from stdin").await.unwrap();
        let mut sink = pin!(sink);
        for piece in many_rows(0) {
            sink.feed(piece).await.unwrap();
        }
        sink.finish().await.unwrap();
        let mut raw = TcpStream::connect(address).await.unwrap();
        raw.write_all(&startup(0)).await.unwrap();
        raw.write_all(&frame(b'Q', b"copy t to stdout\0")).await.unwrap();
        let mut first = [0; 1 << 10];
        raw.read_exact(&mut first).await.unwrap();
        // The socket must stay open until the server has stopped, which this test waits for.
        std::mem::forget(raw);
    });
}

/// Malformed data is an error of its COPY, and has no other effect.
#[test]
fn malformed_data_hurts_nobody() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute("create table t (a int, b text)").await.unwrap();
        let binary = |tuples: &[u8]| [b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0", tuples].concat();
        let cases = [
            ("text", b"1\t\xff\n".to_vec(), "22021"),
            ("text", b"1\ta\0b\n".to_vec(), "22021"),
            ("csv", b"1,\"a\n".to_vec(), "22P04"),
            ("text", b"1\n".to_vec(), "22P04"),
            ("text", b"1\t2\t3\n".to_vec(), "22P04"),
            ("binary", b"1\t2\n".to_vec(), "22P04"),
            ("binary", binary(b"\x7f\xff"), "22P04"),
            ("binary", binary(b"\0\x02\x7f\xff\xff\xff"), "54000"),
            ("binary", binary(b"\0\x02\0\0\0\x05abc"), "22P04"),
            ("binary", binary(b"\0\x02\0\0\0\x04\0\0\0\x01\0\0\0\x01\0"), "22021"),
        ];
        for (format, data, code) in cases {
            let statement = format!("copy t from stdin (format {format})");
            let error = copy_in(&client, &statement, &[&data]).await.unwrap_err();
            let error = error.as_db_error().unwrap_or_else(|| panic!("{data:?}: {error}"));
            assert_eq!(error.code().code(), code, "{format} {data:?}: {error}");
        }
        let line = vec![b'x'; 1 << 20];
        let line: Vec<&[u8]> = (0..100).map(|_| &line[..]).collect();
        let error = copy_in(&client, "copy t from stdin", &line).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::PROGRAM_LIMIT_EXCEEDED));
        let count: i64 = client.query_one("select count(*) from t", &[]).await.unwrap().get(0);
        assert_eq!(count, 0);
    });
}
