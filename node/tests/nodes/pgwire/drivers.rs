//! Features that drivers rely on besides results: immediate errors, warnings, and error fields.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};

use super::hostile::{frame, startup};
use super::server::{connect, with_server};

/// A client that controls when it reads.
pub(super) struct Raw(TcpStream);

impl Raw {
    fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&startup(0)).unwrap();
        let mut raw = Self(stream);
        raw.until(b'Z');
        raw
    }

    pub(super) fn send(&mut self, frames: &[(u8, &[u8])]) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(kind, body)| frame(*kind, body)).collect();
        self.0.write_all(&bytes).unwrap();
    }

    /// Reads up to the first message of type `last`. Returns the types of all messages, and the
    /// last body.
    pub(super) fn until(&mut self, last: u8) -> (String, String) {
        let mut kinds = String::new();
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head).unwrap();
            let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut body = vec![0; len as usize - 4];
            self.0.read_exact(&mut body).unwrap();
            kinds.push(head[0] as char);
            if head[0] == last {
                return (kinds, String::from_utf8_lossy(&body).into_owned());
            }
        }
    }
}

pub(super) fn with_raw(test: impl FnOnce(Raw) + Send + 'static) {
    with_server(|address, _| async move {
        tokio::task::spawn_blocking(move || test(Raw::connect(address))).await.unwrap();
    });
}

/// asyncpg sends Parse, Describe and Flush, and no Sync before it has read the answer. It once
/// waited forever for an error that the server withheld until the Sync.
#[test]
fn an_error_of_the_extended_protocol_comes_without_a_sync() {
    with_raw(|mut raw| {
        let parse = (b'P', &b"b\0select nofun(1)\0\0\0"[..]);
        raw.send(&[parse, (b'D', b"Sb\0"), (b'H', b"")]);
        assert!(raw.until(b'E').1.contains("C42883\0"));
        raw.send(&[(b'D', b"Sb\0"), (b'S', b"")]);
        assert_eq!(raw.until(b'Z').0, "Z", "messages before the Sync are skipped");
        raw.send(&[(b'B', b"\0none\0\0\0\0\0\0\0"), (b'H', b"")]);
        assert!(raw.until(b'E').1.contains("C26000\0"));
        raw.send(&[(b'S', b""), (b'Q', b"select 1\0")]);
        raw.until(b'D');
    });
}

#[test]
fn text_that_is_not_utf8_is_an_error_and_the_session_goes_on() {
    with_raw(|mut raw| {
        let reported = "C22021\0Minvalid byte sequence for encoding \"UTF8\": ";
        raw.send(&[(b'Q', b"select '\xff\xfe'\0")]);
        assert!(raw.until(b'E').1.contains(&format!("{reported}0xff\0")));
        assert_eq!(raw.until(b'Z').1, "I");
        raw.send(&[(b'P', b"\0select '\xc3('\0\0\0"), (b'H', b"")]);
        assert!(raw.until(b'E').1.contains(&format!("{reported}0xc3 0x28\0")));
        raw.send(&[(b'S', b""), (b'P', b"\0select $1::text\0\0\0")]);
        raw.send(&[(b'B', b"\0\0\0\0\0\x01\0\0\0\x01\xff\0\0"), (b'H', b"")]);
        assert!(raw.until(b'E').1.contains(&format!("{reported}0xff\0")));
        raw.send(&[(b'S', b""), (b'Q', b"begin\0")]);
        raw.until(b'C');
        raw.until(b'Z');
        raw.send(&[(b'Q', b"select '\xff'\0")]);
        raw.until(b'E');
        assert_eq!(raw.until(b'Z').1, "E", "the transaction fails, as after any error");
    });
}

#[test]
fn the_end_of_no_transaction_is_a_warning() {
    with_raw(|mut raw| {
        for text in [&b"commit\0"[..], b"rollback\0", b"set local reads = strict\0"] {
            raw.send(&[(b'Q', text)]);
            let notice = raw.until(b'N').1;
            assert!(notice.contains("SWARNING\0VWARNING\0C25P01\0"), "{notice:?}");
            raw.until(b'Z');
        }
        raw.send(&[(b'Q', b"begin; begin\0")]);
        assert!(raw.until(b'N').1.contains("SWARNING\0VWARNING\0C25001\0"));
    });
}

#[test]
fn a_violated_constraint_is_told_with_its_table_and_its_name() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        let setup = "create table t (id int primary key, \"a b\" int not null); \
                     create table u (id int, constraint one primary key (id)); \
                     insert into t values (1, 1); insert into u values (1)";
        client.batch_execute(setup).await.unwrap();
        let cases = [
            ("insert into t values (1, 1)", "t", None, Some("t_pkey")),
            ("insert into u values (1)", "u", None, Some("one")),
            ("insert into t values (2, null)", "t", Some("a b"), None),
            ("update t set \"a b\" = null", "t", Some("a b"), None),
        ];
        for (text, table, column, constraint) in cases {
            for text in [text.to_owned(), format!("begin; {text}")] {
                let error = client.batch_execute(&text).await.unwrap_err();
                let error: &DbError = error.as_db_error().unwrap();
                assert_eq!(error.schema(), Some("public"), "{text}");
                let reported = (error.table(), error.column(), error.constraint());
                assert_eq!(reported, (Some(table), column, constraint), "{text}");
                client.batch_execute("rollback").await.unwrap();
            }
        }
        let error = client.batch_execute("select to_number('1', '9')").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED));
    });
}

#[test]
fn arrays_come_and_go_in_binary() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        let (numbers, words) = (vec![1, 2], vec![Some("a b"), None]);
        let text = "select $1::int4[] || 3, $2::text[], 2 = any($1)";
        let row = client.query_one(text, &[&numbers, &words]).await.unwrap();
        assert_eq!(row.get::<_, Vec<i32>>(0), [1, 2, 3]);
        assert_eq!(row.get::<_, Vec<Option<&str>>>(1), words);
        assert!(row.get::<_, bool>(2));
    });
}

/// The reset query that asyncpg's pool sends before it reuses a connection.
#[test]
fn what_drivers_end_before_they_hand_a_connection_on_has_ended() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        let reset = "select pg_advisory_unlock_all(); close all; unlisten *; reset all";
        client.batch_execute(reset).await.unwrap();
        let error = client.batch_execute("close c").await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INVALID_CURSOR_NAME));
    });
}

/// An enum label, wrapped in an application's type.
#[derive(Debug, PartialEq)]
struct Mood(String);

impl<'a> FromSql<'a> for Mood {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(raw)?.to_owned()))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), Kind::Enum(_))
    }
}

impl ToSql for Mood {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), Kind::Enum(_))
    }

    to_sql_checked!();
}

/// tokio-postgres queries `pg_type`, `pg_range` and `pg_enum` for a type that it does not know.
#[test]
fn a_driver_learns_what_an_enum_is_and_sends_its_labels() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        let made = "create type mood as enum ('sad', 'ok', 'happy');
            create table felt (id int primary key, m mood, ms mood[])";
        client.batch_execute(made).await.unwrap();
        let insert = client.prepare("insert into felt values ($1, $2, $3)").await.unwrap();
        let [_, one, many] = insert.params() else { panic!("{:?}", insert.params()) };
        let labels = ["sad", "ok", "happy"].map(str::to_owned).to_vec();
        assert_eq!((one.name(), one.kind()), ("mood", &Kind::Enum(labels)));
        assert_eq!(many.kind(), &Kind::Array(one.clone()));
        let mood = |text: &str| Mood(text.to_owned());
        let all = vec![mood("ok"), mood("sad")];
        client.execute(&insert, &[&1, &mood("happy"), &all]).await.unwrap();
        let none = client.execute(&insert, &[&2, &mood("bogus"), &all]).await.unwrap_err();
        assert_eq!(none.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION));
        // A prepared statement accepts labels that were added after it was prepared.
        client.batch_execute("alter type mood add value 'meh' before 'ok'").await.unwrap();
        client.execute(&insert, &[&3, &mood("meh"), &Vec::<Mood>::new()]).await.unwrap();
        let found = "select m, ms from felt where m > any($1) order by m";
        let rows = client.query(found, &[&vec![mood("sad")]]).await.unwrap();
        let rows: Vec<(Mood, Vec<Mood>)> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(rows, [(mood("meh"), vec![]), (mood("happy"), all)]);
    });
}

#[test]
fn a_result_says_which_columns_of_which_relations_it_shows() {
    with_server(|address, _| async move {
        let client = connect(address).await;
        let make = "create table t (gone int, id int primary key, name text);
            alter table t drop column gone; create view v as select name, id from t";
        client.batch_execute(make).await.unwrap();
        let oid = "select 't'::regclass::oid, 'v'::regclass::oid, 'pg_class'::regclass::oid";
        let row = client.query_one(oid, &[]).await.unwrap();
        let (t, v, class): (u32, u32, u32) = (row.get(0), row.get(1), row.get(2));
        type Shown = Option<(u32, i16)>;
        let cases: [(&str, &[Shown]); 8] = [
            ("select id, name, id + 1 from t", &[Some((t, 2)), Some((t, 3)), None]),
            ("select * from (select name as n from t) s", &[Some((t, 3))]),
            ("select v.*, count(*) from v group by 1, 2", &[Some((v, 1)), Some((v, 2)), None]),
            ("with w as (select id from t) select id from w", &[Some((t, 2))]),
            ("select id from t union select 1", &[None]),
            ("select a.id, b.name from t a join t b using (name)", &[Some((t, 2)), Some((t, 3))]),
            ("insert into t values (1, 'a') returning id, name", &[Some((t, 2)), Some((t, 3))]),
            ("select relname from pg_class", &[Some((class, 2))]),
        ];
        for (sql, expected) in cases {
            let statement = client.prepare(sql).await.unwrap();
            let shown: Vec<_> = (statement.columns().iter())
                .map(|column| column.table_oid().zip(column.column_id()))
                .collect();
            assert_eq!(shown, expected, "{sql}");
        }
    });
}
