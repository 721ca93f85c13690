//! `pangea demo` as somebody without a terminal runs it.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use support::{DEADLINE, pangea, processes_of, wait_until};
use tokio_postgres::NoTls;

/// A demo that runs, and the lines that it prints.
struct Demo {
    process: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Demo {
    /// Starts a demo with its temporary files in `directory`.
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new(pangea())
            .arg("demo")
            .args(arguments)
            .env("TMPDIR", directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdout }
    }

    /// Reads on until a line has a URL for each of `count` regions.
    fn urls(&mut self, count: usize) -> Vec<(String, String)> {
        let mut urls = Vec::new();
        while urls.len() < count {
            let line = self.line();
            if let [region, url] = line.split_whitespace().collect::<Vec<_>>()[..]
                && url.starts_with("postgres://")
            {
                urls.push((region.to_owned(), url.to_owned()));
            }
        }
        urls
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the demo has ended");
        line
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[test]
fn what_is_written_in_one_region_is_read_in_all_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(directory.path(), &["--regions", "us-east,ca-central,us-central"]);
    let urls = demo.urls(3);
    let regions: Vec<&str> = urls.iter().map(|(region, _)| region.as_str()).collect();
    assert_eq!(regions, ["us-east", "ca-central", "us-central"]);
    assert_eq!(processes_of(directory.path()).len(), 3);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let writer = connect(&urls[0].1).await;
        writer.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").await.unwrap();
        writer.batch_execute("INSERT INTO t VALUES (1, 'everywhere')").await.unwrap();
        for (region, url) in &urls {
            let reader = connect(url).await;
            reader.batch_execute("SET reads = 'strict'").await.unwrap();
            let row = reader.query_one("SELECT v FROM t WHERE id = 1", &[]).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), "everywhere", "{region}");
        }
    });
    demo.signal(Signal::TERM);
    assert!(demo.process.wait().unwrap().success());
    assert_eq!(processes_of(directory.path()), [] as [u32; 0]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn nodes_end_when_the_demo_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(directory.path(), &["--regions", "us-east,ca-central"]);
    demo.urls(2);
    assert_eq!(processes_of(directory.path()).len(), 2);
    demo.signal(Signal::KILL);
    demo.process.wait().unwrap();
    wait_until("the nodes have ended", || processes_of(directory.path()).is_empty());
}

#[test]
fn data_stays_in_its_directory_and_is_there_again() {
    let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data_dir = data.path().to_str().unwrap();
    let arguments = ["--regions", "us-east,ca-central", "--data-dir", data_dir];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for run in 1..=2 {
        let mut demo = Demo::start(temporary.path(), &arguments);
        let urls = demo.urls(2);
        runtime.block_on(async {
            let client = connect(&urls[run - 1].1).await;
            let create = "CREATE TABLE IF NOT EXISTS runs (id int PRIMARY KEY)";
            client.batch_execute(create).await.unwrap();
            let insert = format!("INSERT INTO runs VALUES ({run})");
            client.batch_execute(&insert).await.unwrap();
            let row = client.query_one("SELECT count(*) FROM runs", &[]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), run as i64);
        });
        demo.signal(Signal::INT);
        assert!(demo.process.wait().unwrap().success());
    }
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn a_load_shows_its_rate_in_every_region() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--regions", "us-east,ca-central", "--load", "ycsb-a"];
    let mut demo = Demo::start(directory.path(), &arguments);
    let began = Instant::now();
    loop {
        let line = demo.line();
        let works = |region: &str| line.contains(&format!("{region} "));
        if line.starts_with("load:") && line.matches(" ms").count() == 2 {
            assert!(works("us-east") && works("ca-central"), "{line}");
            break;
        }
        assert!(began.elapsed() < DEADLINE, "{line}");
    }
    demo.signal(Signal::TERM);
    assert!(demo.process.wait().unwrap().success());
}
