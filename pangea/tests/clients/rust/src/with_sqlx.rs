//! sqlx: a pool, migrations, rows as structures, binary types, nested transactions, streams and
//! COPY.

use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, TimeZone, Utc};
use futures_util::TryStreamExt;
use rust_decimal::Decimal;
use sqlx::migrate::Migrator;
use sqlx::postgres::types::PgInterval;
use sqlx::postgres::{PgListener, PgPoolCopyExt, PgPoolOptions};
use sqlx::types::Json;
use sqlx::{Acquire, Error, FromRow, PgPool, Row};
use uuid::Uuid;

static MIGRATIONS: Migrator = sqlx::migrate!();

#[derive(Debug, PartialEq, FromRow)]
struct Account {
    id: i64,
    owner: String,
    balance: Decimal,
    note: Option<String>,
}

pub async fn run(url: &str) {
    let wait = Duration::from_secs(20);
    let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(wait);
    let pool = pool.connect(url).await.unwrap();
    migrations(&pool).await;
    rows_as_structures(&pool).await;
    types(&pool).await;
    transactions(&pool).await;
    streams(&pool).await;
    copy(&pool).await;
    errors(&pool).await;
    many_at_once(&pool).await;
    listen(url).await;
    without_lock().undo(&pool, 0).await.unwrap();
    pool.close().await;
}

/// Pangea has no advisory locks, and none is needed here: the table of migrations has a primary
/// key, so one of two transactions that apply the same migration fails.

fn without_lock() -> Migrator {
    let mut migrator = Migrator { migrations: MIGRATIONS.migrations.clone(), ..Migrator::DEFAULT };
    migrator.set_locking(false);
    migrator
}

async fn migrations(pool: &PgPool) {
    let refused = MIGRATIONS.run(pool).await.unwrap_err().to_string();
    assert!(refused.contains("pg_advisory_lock"), "{refused}");
    without_lock().run(pool).await.unwrap();
    // A second run has nothing to do.
    without_lock().run(pool).await.unwrap();
    let count: i64 = sqlx::query_scalar("select count(*) from _sqlx_migrations where success")
        .fetch_one(pool)
        .await
        .unwrap();
    assert_eq!(count, 2);
    // Several concurrent runs: each migration is applied once.
    without_lock().undo(pool, 0).await.unwrap();
    let tries = (0..3).map(|_| async { without_lock().run(pool).await });
    let results = futures_util::future::join_all(tries).await;
    assert!(results.iter().any(Result::is_ok), "{results:?}");
    without_lock().run(pool).await.unwrap();
    let owners: Vec<String> =
        sqlx::query_scalar("select owner from accounts order by id").fetch_all(pool).await.unwrap();
    assert_eq!(owners, ["ada", "bob"]);
}

async fn rows_as_structures(pool: &PgPool) {
    let ada: Account = sqlx::query_as("select * from accounts where owner = $1")
        .bind("ada")
        .fetch_one(pool)
        .await
        .unwrap();
    let balance = Decimal::new(1050, 2);
    let note = Some("first".to_owned());
    assert_eq!(ada, Account { id: ada.id, owner: "ada".to_owned(), balance, note });
    let none: Option<Account> = sqlx::query_as("select * from accounts where owner = $1")
        .bind("nobody")
        .fetch_optional(pool)
        .await
        .unwrap();
    assert_eq!(none, None);
    let owners = ["ada".to_owned(), "bob".to_owned()];
    let all: Vec<Account> =
        sqlx::query_as("select * from accounts where owner = any($1) order by id")
            .bind(&owners[..])
            .fetch_all(pool)
            .await
            .unwrap();
    assert_eq!(all.len(), 2);
}

async fn types(pool: &PgPool) {
    sqlx::raw_sql(
        "create table kinds (id uuid primary key, b bool, i2 int2, i4 int4, i8 int8, f4 float4, \
         f8 float8, n numeric, t text, v varchar(9), y bytea, d date, ti time, ts timestamp, \
         tz timestamptz, iv interval, j jsonb, js json, a int[], ta text[])",
    )
    .execute(pool)
    .await
    .unwrap();
    let id = Uuid::new_v4();
    let day = NaiveDate::from_ymd_opt(2024, 2, 29).unwrap();
    let time = NaiveTime::from_hms_micro_opt(23, 59, 58, 7).unwrap();
    let at: DateTime<Utc> = Utc.from_utc_datetime(&NaiveDateTime::new(day, time));
    let interval = PgInterval { months: 1, days: 2, microseconds: 3 };
    let json = serde_json::json!({"a": [1, null, "x"]});
    let row = sqlx::query(
        "insert into kinds values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
         $15, $16, $17, $18, $19, $20) returning *",
    )
    .bind(id)
    .bind(true)
    .bind(-2_i16)
    .bind(i32::MIN)
    .bind(i64::MAX)
    .bind(0.1_f32)
    .bind(-0.1_f64)
    .bind(Decimal::new(-123_456_789, 5))
    .bind("é")
    .bind(None::<String>)
    .bind(&b"\x00\xff"[..])
    .bind(day)
    .bind(time)
    .bind(NaiveDateTime::new(day, time))
    .bind(at)
    .bind(&interval)
    .bind(Json(&json))
    .bind(Json(&json))
    .bind(vec![Some(1), None])
    .bind(vec!["a b".to_owned(), "\"".to_owned()])
    .fetch_one(pool)
    .await
    .unwrap();
    assert_eq!(row.get::<Uuid, _>("id"), id);
    assert!(row.get::<bool, _>("b"));
    assert_eq!(row.get::<i16, _>("i2"), -2);
    assert_eq!(row.get::<i32, _>("i4"), i32::MIN);
    assert_eq!(row.get::<i64, _>("i8"), i64::MAX);
    assert_eq!((row.get::<f32, _>("f4"), row.get::<f64, _>("f8")), (0.1, -0.1));
    assert_eq!(row.get::<Decimal, _>("n"), Decimal::new(-123_456_789, 5));
    assert_eq!(row.get::<String, _>("t"), "é");
    assert_eq!(row.get::<Option<String>, _>("v"), None);
    assert_eq!(row.get::<Vec<u8>, _>("y"), b"\x00\xff");
    assert_eq!(row.get::<NaiveDate, _>("d"), day);
    assert_eq!(row.get::<NaiveTime, _>("ti"), time);
    assert_eq!(row.get::<NaiveDateTime, _>("ts"), NaiveDateTime::new(day, time));
    assert_eq!(row.get::<DateTime<Utc>, _>("tz"), at);
    assert_eq!(row.get::<PgInterval, _>("iv"), interval);
    assert_eq!(row.get::<serde_json::Value, _>("j"), json);
    assert_eq!(row.get::<serde_json::Value, _>("js"), json);
    assert_eq!(row.get::<Vec<Option<i32>>, _>("a"), [Some(1), None]);
    assert_eq!(row.get::<Vec<String>, _>("ta"), ["a b", "\""]);
    sqlx::query("drop table kinds").execute(pool).await.unwrap();
}

async fn transactions(pool: &PgPool) {
    let balance = |owner: &'static str| async move {
        let sql = "select balance from accounts where owner = $1";
        sqlx::query_scalar::<_, Decimal>(sql).bind(owner).fetch_one(pool).await.unwrap()
    };
    let add = "update accounts set balance = balance + $1 where owner = $2";
    let mut outer = pool.begin().await.unwrap();
    let five = Decimal::new(500, 2);
    sqlx::query(add).bind(-five).bind("ada").execute(&mut *outer).await.unwrap();
    {
        let mut inner = outer.begin().await.unwrap();
        sqlx::query(add).bind(five).bind("ada").execute(&mut *inner).await.unwrap();
        let refused = sqlx::query(add).bind(-five).bind("bob").execute(&mut *inner).await;
        let refused = refused.unwrap_err();
        assert!(refused.as_database_error().unwrap().is_check_violation(), "{refused}");
        inner.rollback().await.unwrap();
    }
    {
        let mut inner = outer.begin().await.unwrap();
        sqlx::query(add).bind(five).bind("bob").execute(&mut *inner).await.unwrap();
        inner.commit().await.unwrap();
    }
    outer.commit().await.unwrap();
    assert_eq!((balance("ada").await, balance("bob").await), (Decimal::new(550, 2), five));
    {
        let mut dropped = pool.begin().await.unwrap();
        sqlx::query("delete from accounts").execute(&mut *dropped).await.unwrap();
    }
    assert_eq!(balance("ada").await, Decimal::new(550, 2));
}

async fn streams(pool: &PgPool) {
    let mut numbers =
        sqlx::query_scalar::<_, i32>("select * from generate_series(1, 5000)").fetch(pool);
    let mut sum = 0;
    while let Some(number) = numbers.try_next().await.unwrap() {
        sum += i64::from(number);
    }
    assert_eq!(sum, 5000 * 5001 / 2);
    // A stream is dropped in the middle: the connection remains usable.
    let mut numbers = sqlx::query("select * from generate_series(1, 5000)").fetch(pool);
    numbers.try_next().await.unwrap();
    drop(numbers);
    sqlx::query("select 1").execute(pool).await.unwrap();
}

async fn copy(pool: &PgPool) {
    let mut into = pool
        .copy_in_raw("copy accounts (owner, balance, note) from stdin with (format csv)")
        .await
        .unwrap();
    into.send(&b"carol,1.25,\"a, b\"\ndan,2,\n"[..]).await.unwrap();
    assert_eq!(into.finish().await.unwrap(), 2);
    let sql = "copy (select owner, note from accounts where balance < 5 order by owner) to stdout";
    let mut out = pool.copy_out_raw(sql).await.unwrap();
    let mut text = Vec::new();
    while let Some(piece) = out.try_next().await.unwrap() {
        text.extend_from_slice(&piece);
    }
    drop(out);
    assert_eq!(String::from_utf8(text).unwrap(), "carol\ta, b\ndan\t\\N\n");
}

async fn errors(pool: &PgPool) {
    let twice = sqlx::query("insert into accounts (owner, balance) values ('ada', 1)");
    let error = twice.execute(pool).await.unwrap_err();
    let Error::Database(error) = error else { panic!("{error}") };
    assert!(error.is_unique_violation());
    assert_eq!((error.table(), error.constraint()), (Some("accounts"), Some("accounts_owner")));
    let error = sqlx::query("select nothing from accounts").execute(pool).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("42703"));
}

async fn many_at_once(pool: &PgPool) {
    let asked = (0..32_i32)
        .map(|number| sqlx::query_scalar::<_, i32>("select 1 + $1").bind(number).fetch_one(pool));
    let answers = futures_util::future::try_join_all(asked).await.unwrap();
    assert_eq!(answers, (1..33).collect::<Vec<i32>>());
}

async fn listen(url: &str) {
    let mut listener = PgListener::connect(url).await.unwrap();
    let error = listener.listen("news").await.unwrap_err();
    let error = error.as_database_error().expect("the server rejects it").to_string();
    assert!(error.contains("LISTEN is not supported"), "{error}");
}
