//! tokio-postgres: pipelines, prepared statements, binary types, cancellation, binary COPY,
//! notices.

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use futures_util::{SinkExt, TryStreamExt, future, pin_mut};
use rust_decimal::Decimal;
use tokio::sync::mpsc;
use tokio_postgres::binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, IsolationLevel, NoTls};
use uuid::Uuid;

pub async fn run(url: &str) {
    let (client, mut notices) = connect(url).await;
    prepared(&client).await;
    types(&client).await;
    pipeline(&client).await;
    copy(&client).await;
    cancel(&client).await;
    notices_come(&client, &mut notices).await;
    portals(url).await;
    transactions(url).await;
}

async fn connect(url: &str) -> (Client, mpsc::UnboundedReceiver<AsyncMessage>) {
    let mut config: Config = url.parse().unwrap();
    config.application_name("clients");
    let (client, mut connection) = config.connect(NoTls).await.unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let next = |cx: &mut std::task::Context<'_>| connection.poll_message(cx);
        let mut messages = futures_util::stream::poll_fn(next);
        while let Some(message) = messages.try_next().await.unwrap() {
            // The receiver is gone if the test does not need notices.
            let _ = sender.send(message);
        }
    });
    (client, receiver)
}

async fn prepared(client: &Client) {
    client.batch_execute("create table people (id serial primary key, name text)").await.unwrap();
    let insert =
        client.prepare("insert into people (name) values ($1) returning id").await.unwrap();
    assert_eq!(insert.params(), [Type::TEXT]);
    assert_eq!((insert.columns()[0].name(), insert.columns()[0].type_()), ("id", &Type::INT4));
    for (at, name) in ["ada", "bob"].into_iter().enumerate() {
        let id: i32 = client.query_one(&insert, &[&name]).await.unwrap().get(0);
        assert_eq!(id, at as i32 + 1);
    }
    let typed = client.prepare_typed("select $1", &[Type::INT8]).await.unwrap();
    assert_eq!(client.query_one(&typed, &[&7_i64]).await.unwrap().get::<_, i64>(0), 7);
    assert_eq!(client.execute("delete from people where id = $1", &[&2_i32]).await.unwrap(), 1);
    let none = client.query_opt("select 1 from people where id = $1", &[&2_i32]).await.unwrap();
    assert!(none.is_none());
}

async fn types(client: &Client) {
    let day = NaiveDate::from_ymd_opt(1999, 12, 31).unwrap();
    let time = NaiveTime::from_hms_micro_opt(1, 2, 3, 4).unwrap();
    let at: DateTime<Utc> = day.and_time(time).and_utc();
    let (id, number) = (Uuid::new_v4(), Decimal::new(12345, 3));
    let json = serde_json::json!({"k": [true, null]});
    let sql = "select $1::bool, $2::int2, $3::int4, $4::int8, $5::float4, $6::float8, $7::numeric, \
               $8::text, $9::bytea, $10::date, $11::time, $12::timestamp, $13::timestamptz, \
               $14::uuid, $15::jsonb, $16::json, $17::int4[], $18::text[], $19::varchar, $20::oid";
    let (bytes, numbers, words) = (vec![0_u8, 255], vec![1, 2], vec![Some("a,b"), None]);
    let row = client
        .query_one(
            sql,
            &[
                &true,
                &1_i16,
                &2_i32,
                &3_i64,
                &0.5_f32,
                &f64::MIN_POSITIVE,
                &number,
                &"é",
                &bytes,
                &day,
                &time,
                &day.and_time(time),
                &at,
                &id,
                &json,
                &json,
                &numbers,
                &words,
                &None::<&str>,
                &7_u32,
            ],
        )
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0));
    assert_eq!((row.get::<_, i16>(1), row.get::<_, i32>(2), row.get::<_, i64>(3)), (1, 2, 3));
    assert_eq!((row.get::<_, f32>(4), row.get::<_, f64>(5)), (0.5, f64::MIN_POSITIVE));
    assert_eq!(row.get::<_, Decimal>(6), number);
    assert_eq!((row.get::<_, &str>(7), row.get::<_, &[u8]>(8)), ("é", &bytes[..]));
    assert_eq!((row.get::<_, NaiveDate>(9), row.get::<_, NaiveTime>(10)), (day, time));
    assert_eq!(row.get::<_, chrono::NaiveDateTime>(11), day.and_time(time));
    assert_eq!((row.get::<_, DateTime<Utc>>(12), row.get::<_, Uuid>(13)), (at, id));
    assert_eq!(row.get::<_, serde_json::Value>(14), json);
    assert_eq!(row.get::<_, serde_json::Value>(15), json);
    assert_eq!(row.get::<_, Vec<i32>>(16), numbers);
    assert_eq!(row.get::<_, Vec<Option<&str>>>(17), words);
    assert_eq!((row.get::<_, Option<&str>>(18), row.get::<_, u32>(19)), (None, 7));
}

/// Statements that are sent before the previous one has completed.
async fn pipeline(client: &Client) {
    let asked = (0..200_i32).map(|number| async move {
        let row = client.query_one("select $1::int4 * 2", &[&number]).await.unwrap();
        row.get::<_, i32>(0)
    });
    let answers = future::join_all(asked).await;
    assert_eq!(answers, (0..200).map(|number| number * 2).collect::<Vec<i32>>());
    // A statement that fails in the middle does not affect the others.
    let (good, bad, after) = future::join3(
        client.query_one("select 1", &[]),
        client.query_one("select 1 / $1::int4", &[&0_i32]),
        client.query_one("select 2", &[]),
    )
    .await;
    assert_eq!(good.unwrap().get::<_, i32>(0), 1);
    assert_eq!(bad.unwrap_err().code(), Some(&SqlState::DIVISION_BY_ZERO));
    assert_eq!(after.unwrap().get::<_, i32>(0), 2);
}

async fn copy(client: &Client) {
    let table = "create table points (id int8 primary key, at timestamptz, name text, ok bool)";
    client.batch_execute(table).await.unwrap();
    let kinds = [Type::INT8, Type::TIMESTAMPTZ, Type::TEXT, Type::BOOL];
    let sink = client.copy_in("copy points from stdin binary").await.unwrap();
    let writer = BinaryCopyInWriter::new(sink, &kinds);
    pin_mut!(writer);
    let now = DateTime::from_timestamp_micros(1_700_000_000_000_001).unwrap();
    for id in 0..500_i64 {
        let name = (id % 2 == 0).then(|| format!("n{id}"));
        writer.as_mut().write(&[&id, &now, &name, &true]).await.unwrap();
    }
    assert_eq!(writer.finish().await.unwrap(), 500);
    let out = client.copy_out("copy points to stdout (format binary)").await.unwrap();
    let rows: Vec<_> = BinaryCopyOutStream::new(out, &kinds).try_collect().await.unwrap();
    assert_eq!(rows.len(), 500);
    for row in rows {
        let id: i64 = row.get(0);
        assert_eq!(row.get::<DateTime<Utc>>(1), now);
        assert_eq!(row.get::<Option<String>>(2), (id % 2 == 0).then(|| format!("n{id}")));
        assert!(row.get::<bool>(3));
    }
}

async fn cancel(client: &Client) {
    let token = client.cancel_token();
    let sink = client.copy_in("copy points (id) from stdin").await.unwrap();
    pin_mut!(sink);
    // This returns once the request is sent. If the server receives the end of the COPY before the
    // request, a commit may be in progress, whose outcome is then unknown.
    token.cancel_query(NoTls).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let sent = sink.send(bytes::Bytes::from_static(b"1000\n")).await;
    let ended = match sent {
        Ok(()) => sink.finish().await.map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(ended.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
    let left = client.query_one("select count(*) from points", &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 500);
}

async fn notices_come(client: &Client, notices: &mut mpsc::UnboundedReceiver<AsyncMessage>) {
    client.batch_execute("drop table if exists nothing").await.unwrap();
    let Some(AsyncMessage::Notice(notice)) = notices.recv().await else { panic!("no notice") };
    assert_eq!(notice.message(), "table \"nothing\" does not exist, skipping");
    assert_eq!((notice.severity(), notice.code().code()), ("NOTICE", "00000"));
}

async fn portals(url: &str) {
    let (mut client, _notices) = connect(url).await;
    let transaction = client.transaction().await.unwrap();
    let portal = transaction.bind("select id from points order by id", &[]).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let rows = transaction.query_portal(&portal, 60).await.unwrap();
        if rows.is_empty() {
            break;
        }
        assert!(rows.len() <= 60);
        seen.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
    }
    assert_eq!(seen, (0..500).collect::<Vec<i64>>());
    transaction.commit().await.unwrap();
}

async fn transactions(url: &str) {
    let (mut client, _notices) = connect(url).await;
    let begun = client.build_transaction().isolation_level(IsolationLevel::Serializable);
    let mut transaction = begun.start().await.unwrap();
    transaction.execute("insert into people (name) values ('carol')", &[]).await.unwrap();
    let nested = transaction.savepoint("s").await.unwrap();
    nested.execute("delete from people", &[]).await.unwrap();
    nested.rollback().await.unwrap();
    transaction.commit().await.unwrap();
    let count = "select count(*) from people";
    assert_eq!(client.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 2);
    let reader = client.build_transaction().read_only(true).start().await.unwrap();
    let refused = reader.execute("delete from people", &[]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));
    drop(reader);
    client.batch_execute("drop table people, points").await.unwrap();
}
