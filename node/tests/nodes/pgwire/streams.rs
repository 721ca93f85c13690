//! Results larger than the server's buffers: in several portions, interrupted, and failing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

use super::cells;
use super::hostile::{frame, startup};
use super::server::{connect, with_server};

/// Some 20 MB: more than the sockets' buffers.
const LARGE: &str = "create table t (id int primary key, filler text); \
                     insert into t select g, repeat('x', 1000) from generate_series(1, 20000) g";

/// A client that controls how much it reads.
struct Raw {
    stream: TcpStream,
    /// The process id and secret for a cancel request.
    key: Vec<u8>,
}

impl Raw {
    fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&startup(0)).unwrap();
        let mut raw = Self { stream, key: Vec::new() };
        for (kind, body) in raw.until_ready() {
            if kind == b'K' {
                raw.key = body;
            }
        }
        raw
    }

    fn next(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        let mut body = vec![0; len - 4];
        self.stream.read_exact(&mut body).unwrap();
        (head[0], body)
    }

    fn until_ready(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            all.push(self.next());
            if all.last().is_some_and(|(kind, _)| *kind == b'Z') {
                return all;
            }
        }
    }

    /// Begins a query, and reads its first row.
    fn begin(&mut self, sql: &str) {
        self.stream.write_all(&frame(b'Q', format!("{sql}\0").as_bytes())).unwrap();
        while self.next().0 != b'D' {}
    }

    /// The number of rows before a query's error, and the error's code.
    fn error(&mut self) -> (usize, String) {
        let rest = self.until_ready();
        let rows = rest.iter().filter(|(kind, _)| *kind == b'D').count();
        let (_, error) = rest.iter().find(|(kind, _)| *kind == b'E').expect("the statement fails");
        let error = String::from_utf8_lossy(error).into_owned();
        (rows, error.split('\0').find_map(|field| field.strip_prefix('C')).unwrap().to_owned())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[test]
fn a_portal_gives_its_rows_in_rounds_as_they_were_when_it_was_opened() {
    with_server(|address, _| async move {
        let mut client = connect(address).await;
        client.batch_execute(LARGE).await.unwrap();
        let other = connect(address).await;
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute("update t set filler = 'own' where id = 19000").await.unwrap();
        let portal = transaction.bind("select id, filler from t", &[]).await.unwrap();
        let mut seen = Vec::new();
        loop {
            // Each call is an Execute with its own Sync.
            let rows = transaction.query_portal(&portal, 3000).await.unwrap();
            let is_last = rows.len() < 3000;
            seen.extend(rows.iter().map(|row| (row.get::<_, i32>(0), row.get::<_, String>(1))));
            if is_last {
                break;
            }
            let update = "update t set filler = 'late' where id > $1 and id <= $1 + 5000";
            transaction.execute(update, &[&(seen.len() as i32)]).await.unwrap();
            other
                .batch_execute("insert into t values (100000, '') on conflict do nothing")
                .await
                .unwrap();
        }
        assert_eq!(seen.len(), 20_000);
        for (at, (id, filler)) in seen.iter().enumerate() {
            assert_eq!(*id as usize, at + 1);
            assert_eq!(filler == "own", *id == 19_000, "{id}: {filler}");
            assert_ne!(filler, "late", "{id}");
        }
        let late = "select count(*) from t where filler = 'late'";
        let count: i64 = transaction.query_one(late, &[]).await.unwrap().get(0);
        assert_eq!(count, 17_000);
    });
}

#[test]
fn a_join_gives_its_rows_in_rounds_beside_writes_of_its_transaction() {
    with_server(|address, _| async move {
        let mut client = connect(address).await;
        client.batch_execute(LARGE).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let join = "select a.id, length(b.filler) from t a join t b using (id)";
        let portal = transaction.bind(join, &[]).await.unwrap();
        let mut seen = Vec::new();
        while seen.len().is_multiple_of(3000) {
            let rows = transaction.query_portal(&portal, 3000).await.unwrap();
            seen.extend(rows.iter().map(|row| (row.get::<_, i32>(0), row.get::<_, i32>(1))));
            let delete = "delete from t where id % 7 = $1";
            transaction.execute(delete, &[&((seen.len() / 3000) as i32)]).await.unwrap();
        }
        seen.sort_unstable();
        let all: Vec<_> = (1..=20_000).map(|id| (id, 1000)).collect();
        assert_eq!(seen, all);
        transaction.rollback().await.unwrap();
        let count: i64 = client.query_one("select count(*) from t", &[]).await.unwrap().get(0);
        assert_eq!(count, 20_000);
    });
}

#[test]
fn a_cursor_gives_its_rows_as_they_are_fetched_and_goes_back() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute(LARGE).await.unwrap();
        let declare = "begin; declare c cursor for select id, filler from t where id % 2 = 0";
        client.batch_execute(declare).await.unwrap();
        let fetch = async |sql: &str| {
            let rows = cells(&client.simple_query(sql).await.unwrap());
            let id = |row: &String| row.split('|').next().unwrap().parse::<i32>().unwrap();
            (rows.len(), rows.first().map(id), rows.last().map(id))
        };
        assert_eq!(fetch("fetch 3000 from c").await, (3000, Some(2), Some(6000)));
        client.batch_execute("delete from t where id > 6000").await.unwrap();
        assert_eq!(fetch("fetch 3000 from c").await, (3000, Some(6002), Some(12_000)));
        assert_eq!(fetch("fetch relative 0 from c").await, (1, Some(12_000), Some(12_000)));
        // This goes back further than the buffered rows.
        assert_eq!(fetch("fetch backward 4000 from c").await, (4000, Some(11_998), Some(4000)));
        assert_eq!(fetch("fetch absolute 5000 from c").await, (1, Some(10_000), Some(10_000)));
        assert_eq!(fetch("fetch last from c").await, (1, Some(20_000), Some(20_000)));
        assert_eq!(fetch("fetch all from c").await, (0, None, None));
        assert_eq!(fetch("fetch first from c").await, (1, Some(2), Some(2)));
        client.batch_execute("declare f no scroll cursor for select id from t").await.unwrap();
        assert_eq!(fetch("fetch 2000 from f").await, (2000, Some(1), Some(2000)));
        let error = client.simple_query("fetch prior from f").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
    });
}

#[test]
fn a_cursor_that_is_held_outlives_its_transaction_whole() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute(LARGE).await.unwrap();
        client.batch_execute("declare h cursor with hold for select id from t").await.unwrap();
        client.batch_execute("delete from t").await.unwrap();
        let rows =
            cells(&client.simple_query("fetch 15000 from h; fetch all from h").await.unwrap());
        assert_eq!((rows.len(), rows[14_999].as_str()), (20_000, "15000"));
    });
}

#[test]
fn a_cancelled_stream_ends_with_an_error_behind_its_rows() {
    with_server(|address, _| async move {
        connect(address).await.batch_execute(LARGE).await.unwrap();
        let (rows, code) = blocking(move || {
            let mut raw = Raw::connect(address);
            raw.begin("select * from t");
            let request = [&16u32.to_be_bytes()[..], &80_877_102u32.to_be_bytes(), &raw.key];
            let mut other = TcpStream::connect(address).unwrap();
            other.write_all(&request.concat()).unwrap();
            // The server closes the connection after it has processed the request.
            assert_eq!(other.read(&mut [0]).unwrap(), 0);
            let error = raw.error();
            raw.begin("select 1");
            raw.until_ready();
            error
        })
        .await;
        assert_eq!(code, "57014");
        assert!(rows < 19_999, "{rows}");
    });
}

#[test]
fn a_stream_whose_time_is_over_ends_with_an_error_behind_its_rows() {
    with_server(|address, _| async move {
        connect(address).await.batch_execute(LARGE).await.unwrap();
        let (rows, code) = blocking(move || {
            let mut raw = Raw::connect(address);
            raw.begin("select 1");
            raw.until_ready();
            raw.stream.write_all(&frame(b'Q', b"set statement_timeout = '1s'\0")).unwrap();
            raw.until_ready();
            let began = Instant::now();
            raw.begin("select * from t");
            // Only this client is slow, in the middle of its rows, so only its own timeout can end
            // the statement.
            std::thread::sleep(Duration::from_millis(1_100).saturating_sub(began.elapsed()));
            raw.error()
        })
        .await;
        assert_eq!(code, "57014");
        assert!(rows < 19_999, "{rows}");
    });
}

#[test]
fn an_error_in_the_midst_of_a_stream_comes_behind_its_rows() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute(LARGE).await.unwrap();
        let failing = "select id, 1 / (15000 - id) from t";
        let mut rows = 0;
        let stream = client.simple_query_raw(failing).await.unwrap();
        let mut stream = std::pin::pin!(stream);
        let error = loop {
            match stream.try_next().await {
                Ok(Some(SimpleQueryMessage::Row(_))) => rows += 1,
                Ok(Some(_)) => {}
                Ok(None) => panic!("the statement fails"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), Some(&SqlState::DIVISION_BY_ZERO));
        assert!((13_000..15_000).contains(&rows), "{rows}");
        // The error also fails its transaction, and skips the rest of the query.
        client.batch_execute("begin").await.unwrap();
        let both = format!("{failing}; insert into t values (-1)");
        assert!(client.simple_query(&both).await.is_err());
        let error = client.batch_execute("select 1").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
        client.batch_execute("rollback").await.unwrap();
        assert_eq!(client.query("select * from t", &[]).await.unwrap().len(), 20_000);
    });
}

#[test]
fn what_a_portal_read_is_held_to_and_what_it_did_not_read_is_not() {
    with_server(|address, _| async move {
        let mut client = connect(address).await;
        client.batch_execute(LARGE).await.unwrap();
        let other = connect(address).await;
        for (id, commits) in [(19_999, true), (50, false)] {
            let transaction = client.transaction().await.unwrap();
            let portal = transaction.bind("select id, filler from t", &[]).await.unwrap();
            let rows = transaction.query_portal(&portal, 100).await.unwrap();
            assert_eq!(rows.len(), 100);
            let update = format!("update t set filler = 'other' where id = {id}");
            other.batch_execute(&update).await.unwrap();
            transaction.batch_execute("insert into t values (-1, '')").await.unwrap();
            match transaction.commit().await {
                Ok(()) => assert!(commits, "{id}"),
                Err(error) => {
                    assert!(!commits, "{id}: {error}");
                    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
                }
            }
            client.batch_execute("delete from t where id = -1").await.unwrap();
        }
    });
}

#[test]
fn rows_of_returning_come_whole_and_after_the_commit() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        client.batch_execute(LARGE).await.unwrap();
        let rows = client.query("delete from t returning id, filler", &[]).await.unwrap();
        assert_eq!(rows.len(), 20_000);
        let again = connect(address).await;
        assert_eq!(again.query("select * from t", &[]).await.unwrap().len(), 0);
    });
}
