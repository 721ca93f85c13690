//! The anomalies that weaker isolation levels allow, attempted by sessions in three regions with
//! every protocol.
//!
//! Each anomaly is a file of steps in `scripts/`, in the notation of [`script`]. It runs three
//! times: rows are found by primary key, by a range of a column without an index, and by a
//! secondary index. No anomaly may happen that the level of the transactions does not permit. With
//! Minerva and Calvin that is always serializable.
//!
//! That is checked in two ways. First, a script states the expected result of its steps. Second,
//! [`judge`] looks for a serial order that explains the committed transactions, their results and
//! the final state; it has no other information. If two outcomes are serializable, a script allows
//! both. Therefore it does not depend on how a protocol orders transactions, or on whether it
//! retries a failed one.
//!
//! Each script names the result that PostgreSQL would allow at `read committed`, its default.
//! Without isolation, each anomaly must be detected: a script that does not provoke its anomaly
//! proves nothing.

mod history;
mod judge;
mod script;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use rustix::process::Signal;
use support::demo::Demo;
use tokio_postgres::{Client, NoTls};

use history::{History, Isolation, Seen, ask};
use pangea_protocols::NAMES;
use script::{SESSIONS, Script};

/// The isolation levels that a client can request.
const LEVELS: [&str; 4] = ["read uncommitted", "read committed", "repeatable read", "serializable"];

/// The files in `scripts`.
const ANOMALIES: [&str; 14] = [
    "aborted_read",
    "circular_information_flow",
    "dirty_read",
    "dirty_write",
    "fuzzy_read",
    "intermediate_read",
    "long_fork",
    "long_fork_at_once",
    "lost_update",
    "phantom",
    "predicate_write_skew",
    "read_only_anomaly",
    "read_skew",
    "write_skew",
];

/// The anomalies that a level of PostgreSQL's names permits.
fn permitted(level: &str) -> &'static [&'static str] {
    match level {
        "serializable" => &[],
        "repeatable read" => &[
            "circular_information_flow",
            "predicate_write_skew",
            "read_only_anomaly",
            "write_skew",
        ],
        _ => &[
            "circular_information_flow",
            "fuzzy_read",
            // Its reader sees the last value the second time, but never the one in between.
            "intermediate_read",
            "long_fork",
            "long_fork_at_once",
            "lost_update",
            "phantom",
            "predicate_write_skew",
            "read_only_anomaly",
            "read_skew",
            "write_skew",
        ],
    }
}

const TABLE: &str = "
    create table t (id int primary key, tag text not null, n int not null, v int not null);
    create index t_tag on t (tag)";

/// The initial state of each script.
const START: &str = "
    delete from t;
    insert into t values (1, 'one', 10, 100), (2, 'two', 20, 200)";

/// A way to find rows.
#[derive(Debug)]
pub struct Variant {
    /// The name of the variant.
    name: &'static str,
    /// The corresponding text in the output of EXPLAIN.
    plan: &'static str,
    /// Placeholders of a script, and the conditions that replace them.
    places: [(&'static str, &'static str); 3],
}

const VARIANTS: [Variant; 3] = [
    Variant {
        name: "by primary key",
        plan: "using t_pkey",
        places: [("{1}", "id = 1"), ("{2}", "id = 2"), ("{all}", "id between 1 and 9")],
    },
    Variant {
        name: "by a range without an index",
        plan: "Seq Scan",
        places: [
            ("{1}", "n between 5 and 14"),
            ("{2}", "n between 15 and 24"),
            ("{all}", "n between 0 and 99"),
        ],
    },
    Variant {
        name: "by a secondary index",
        plan: "using t_tag",
        places: [
            ("{1}", "tag = 'one'"),
            ("{2}", "tag = 'two'"),
            ("{all}", "tag between 'a' and 'z'"),
        ],
    },
];

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/isolation/scripts")
}

fn text_of(anomaly: &str) -> String {
    std::fs::read_to_string(scripts().join(anomaly).with_extension("txt")).unwrap()
}

/// A cluster of three regions.
struct Regions {
    names: Vec<String>,
    urls: Vec<String>,
    /// A session in each region.
    clients: Vec<Client>,
}

impl Regions {
    /// Runs a test on a separate cluster, with the table created.
    fn with(protocol: &str, test: impl AsyncFnOnce(&Self)) {
        let directory = tempfile::tempdir().unwrap();
        let regions = ["--regions", "us-east,ca-central,us-central"];
        let arguments = [&["--protocol", protocol], &regions[..]].concat();
        let mut demo = Demo::start(directory.path(), &arguments);
        let (names, urls): (Vec<String>, Vec<String>) = demo.urls(3).into_iter().unzip();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let clients = join_all(urls.iter().map(|url| connect(url))).await;
            let regions = Self { names, urls, clients };
            regions.clients[0].batch_execute(TABLE).await.unwrap();
            test(&regions).await;
        });
        demo.signal(Signal::INT);
        assert!(demo.process.wait().unwrap().success());
    }

    /// The level that transactions get which ask for `level`.
    async fn granted(&self, level: &str) -> String {
        let client = connect(&self.urls[0]).await;
        let asked = format!("set default_transaction_isolation = '{level}'");
        client.batch_execute(&asked).await.unwrap();
        let shown = client.query_one("show transaction_isolation", &[]).await.unwrap();
        shown.get(0)
    }

    /// Runs a script in new sessions, and returns its violations.
    async fn run(&self, script: &Script, isolation: Isolation, level: &str) -> Vec<String> {
        self.clients[0].batch_execute(&format!("begin; {START}; commit")).await.unwrap();
        // After this, every region has the new rows.
        self.everything().await;
        let clients =
            join_all(SESSIONS.iter().map(|&(_, region)| connect(&self.urls[region]))).await;
        for client in &clients {
            let asked = format!("set default_transaction_isolation = '{level}'");
            client.batch_execute(&asked).await.unwrap();
        }
        let History { transactions, mut wrong, .. } =
            History::of(script, &clients, &self.names, isolation).await;
        let left = self.everything().await;
        if judge::serial_order(&self.clients[0], &transactions, &left).await.is_none() {
            wrong.push(format!("no serial order explains {transactions:#?} and {left:?}"));
        }
        wrong
    }

    /// Reads the contents of the table, which must be identical in every region.
    async fn everything(&self) -> Seen {
        let answers =
            join_all(self.clients.iter().map(|client| ask(client, judge::EVERYTHING))).await;
        let answers: Vec<Seen> = answers.into_iter().map(Result::unwrap).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "regions differ: {answers:?}");
        answers[0].clone()
    }
}

/// Opens a session with strict reads, which see all commits of any region.
async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("set reads = 'strict'").await.unwrap();
    client
}

/// Runs all scripts and returns their violations.
async fn run_all(
    regions: &Regions,
    isolation: Isolation,
    level: &str,
) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for anomaly in ANOMALIES {
        for variant in &VARIANTS {
            let script = Script::parse(&text_of(anomaly), variant);
            if isolation == Isolation::None && script.is_by_chance {
                continue;
            }
            let wrong = regions.run(&script, isolation, level).await;
            all.push((format!("{anomaly} {}, {level}", variant.name), wrong));
        }
    }
    all
}

#[test]
fn no_anomaly_happens_at_any_level() {
    // Most of a run is waiting for messages between regions, so all protocols run at once.
    std::thread::scope(|scope| {
        for &protocol in NAMES {
            scope.spawn(move || no_anomaly_happens_with(protocol));
        }
    });
}

fn no_anomaly_happens_with(protocol: &str) {
    Regions::with(protocol, async |regions| {
        for level in LEVELS {
            let permitted = permitted(&regions.granted(level).await);
            let mut all = run_all(regions, Isolation::Asked, level).await;
            // A script is named by its anomaly, and by how it finds its rows.
            let is_permitted =
                |name: &str| permitted.iter().any(|it| name.starts_with(&format!("{it} by")));
            let found = all.extract_if(.., |(name, _)| is_permitted(name));
            let found: Vec<_> = found.filter(|(_, wrong)| !wrong.is_empty()).collect();
            let is_between = |wrong: &String| wrong.starts_with("b: ") && wrong.contains("101");
            let of_between = found.iter().filter(|(name, _)| name.starts_with("intermediate_read"));
            let between: Vec<_> = of_between.filter(|it| it.1.iter().any(is_between)).collect();
            assert!(between.is_empty(), "{protocol}: {between:#?}");
            assert_eq!(
                !found.is_empty(),
                !permitted.is_empty(),
                "{protocol}: {level} is what it says"
            );
            let wrong: Vec<_> = all.iter().filter(|(_, wrong)| !wrong.is_empty()).collect();
            assert!(wrong.is_empty(), "{protocol}: {wrong:#?}");
        }
    });
}

#[test]
fn without_isolation_every_script_is_found_out() {
    Regions::with(NAMES[0], async |regions| {
        let all = run_all(regions, Isolation::None, "serializable").await;
        let unnoticed: Vec<&str> =
            all.iter().filter(|(_, wrong)| wrong.is_empty()).map(|(what, _)| &what[..]).collect();
        assert_eq!(unnoticed, [] as [&str; 0]);
    });
}

#[test]
fn rows_are_found_as_the_variants_say() {
    Regions::with(NAMES[0], async |regions| {
        for Variant { name, plan, places } in &VARIANTS {
            for (_, condition) in places {
                let explain = format!("explain select v from t where {condition}");
                let shown = format!("{:?}", ask(&regions.clients[0], &explain).await.unwrap());
                assert!(shown.contains(plan), "{name}: {shown}");
            }
        }
    });
}

#[test]
fn every_protocol_and_every_script_is_here() {
    let output = support::run(&["demo", "--protocol", "none-such"]);
    let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(refusal.contains(&format!("[possible values: {}]", NAMES.join(", "))), "{refusal}");
    let files = std::fs::read_dir(scripts()).unwrap().flatten();
    let mut names: Vec<String> =
        files.map(|file| file.path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort_unstable();
    assert_eq!(names, ANOMALIES);
}
