//! `pangea demo` without a terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use crate::support::demo::Demo;
use crate::support::{DEADLINE, processes_of, run, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::NoTls;

fn assert_nothing_is_left(directory: &Path) {
    assert_eq!(processes_of(directory), [] as [u32; 0]);
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
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
    assert_nothing_is_left(directory.path());
}

#[test]
fn superusers_call_the_programs_of_workloads() {
    let directory = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(directory.path(), &["--regions", "us-east,ca-central,us-central"]);
    let url = demo.urls(3).swap_remove(0).1;
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = connect(&url).await;
        let failed = async |text: &str| {
            let error = client.batch_execute(text).await.unwrap_err();
            error.code().unwrap().code().to_owned()
        };
        // Two accounts of 100.
        client.batch_execute(r"call pangea.bank_load('\x0264')").await.unwrap();
        let moved = [0_u8, 1, 7];
        let row = client.query_one("call pangea.bank_transfer($1)", &[&&moved[..]]).await.unwrap();
        assert_eq!(row.columns()[0].name(), "result");
        let audit = r"call pangea.bank_audit('\x')";
        let audited: Vec<u8> = client.query_one(audit, &[]).await.unwrap().get(0);
        let balances = [2, 0, 93, 0, 0, 0, 0, 0, 0, 0, 1, 107, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(audited, balances);
        // An argument may be an expression, not only a constant or a parameter.
        let rest = [1_u8, 7];
        let text = r"call pangea.bank_transfer('\x00'::bytea || $1)";
        client.query_one(text, &[&&rest[..]]).await.unwrap();
        let within = r"begin; call pangea.bank_transfer('\x000107'); rollback";
        client.batch_execute(within).await.unwrap();
        let audited: Vec<u8> = client.query_one(audit, &[]).await.unwrap().get(0);
        assert_eq!((audited[2], audited[11]), (86, 114), "{audited:?}");
        assert_eq!(failed("call pangea.bank_transfer(null)").await, "22004");
        assert_eq!(failed(r"call pangea.bank_transfer('\xff')").await, "XX000");
        assert_eq!(failed("call pangea.bank_transfer()").await, "42883");
        assert_eq!(failed(r"call bank_audit('\x')").await, "42883");
        client.batch_execute("create role guest login").await.unwrap();
        client.batch_execute("set role guest").await.unwrap();
        assert_eq!(failed(audit).await, "42501");
    });
    demo.signal(Signal::TERM);
    assert!(demo.process.wait().unwrap().success());
    assert_nothing_is_left(directory.path());
}

/// Story: a region that had lost only its link to the coordinator could not write until the link
/// was restored.
#[test]
fn every_region_writes_while_any_one_link_is_lost() {
    const REGIONS: [&str; 3] = ["us-east", "ca-central", "us-central"];
    let directory = tempfile::tempdir().unwrap();
    let (mut demo, mut stdin) =
        Demo::start_piped(directory.path(), &["--regions", &REGIONS.join(",")]);
    let urls = demo.urls(3);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut clients = Vec::new();
        for (_, url) in &urls {
            let client = connect(url).await;
            let limit = format!("SET statement_timeout = '{DEADLINE:?}'");
            client.batch_execute(&limit).await.unwrap();
            clients.push(client);
        }
        clients[0].batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        for (turn, [a, b]) in [[0, 1], [0, 2], [1, 2]].into_iter().enumerate() {
            writeln!(stdin, "\\cut {} {}", REGIONS[a], REGIONS[b]).unwrap();
            while !demo.line().contains("is cut") {}
            for (id, client) in clients.iter().enumerate() {
                let insert = format!("INSERT INTO t VALUES ({})", turn * 3 + id);
                let what = format!("{a} and {b} are cut off from each other, {id} writes");
                client.batch_execute(&insert).await.expect(&what);
            }
            writeln!(stdin, "\\heal").unwrap();
            while !demo.line().contains("all links are restored") {}
        }
        clients[1].batch_execute("SET reads = strict").await.unwrap();
        let row = clients[1].query_one("SELECT count(*) FROM t", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 9);
    });
    writeln!(stdin, "\\q").unwrap();
    assert!(demo.process.wait().unwrap().success());
    assert_nothing_is_left(directory.path());
}

/// A closed terminal sends SIGHUP, which once left processes and files behind.
#[test]
fn the_end_of_the_terminal_and_ctrl_c_stop_it_cleanly() {
    for signal in [Signal::HUP, Signal::INT] {
        let directory = tempfile::tempdir().unwrap();
        let mut demo = Demo::start(directory.path(), &["--regions", "us-east,ca-central"]);
        demo.urls(2);
        demo.signal(signal);
        assert!(demo.process.wait().unwrap().success(), "{signal:?}");
        assert_nothing_is_left(directory.path());
    }
}

/// Returns every file below a directory, with its length and time of modification.
fn files(directory: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            files.extend(self::files(&entry.path()));
        }
        files.push((entry.path(), metadata.len(), metadata.modified().unwrap()));
    }
    files.sort();
    files
}

#[test]
fn a_directory_of_other_regions_is_refused_untouched_with_what_it_was_made_with() {
    let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data_dir = data.path().to_str().unwrap();
    let made = ["--regions", "us-east,ca-central", "--data-dir", data_dir];
    let mut demo = Demo::start(temporary.path(), &made);
    demo.urls(2);
    demo.signal(Signal::TERM);
    assert!(demo.process.wait().unwrap().success());
    let before = files(data.path());
    for regions in ["us-east,eu-west,ca-central", "ca-central,us-east", "us-east,us-west"] {
        let output = run(&["demo", "--regions", regions, "--data-dir", data_dir]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{regions}: {stderr}");
        assert!(stderr.contains("was created with --regions us-east,ca-central"), "{stderr}");
        assert!(stderr.contains(data_dir) && stderr.contains(regions), "{stderr}");
    }
    assert_eq!(files(data.path()), before, "a rejected start changes nothing");
}

/// Story: a second demo on a directory changed the ports that the nodes of the first would use at
/// their next start.
#[test]
fn a_directory_in_use_is_refused_untouched() {
    let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data_dir = data.path().to_str().unwrap();
    let arguments = ["--regions", "us-east,ca-central", "--data-dir", data_dir];
    let mut demo = Demo::start(temporary.path(), &arguments);
    demo.urls(2);
    let node_toml = data.path().join("us-east/node.toml");
    let seen = || {
        let names: Vec<PathBuf> = files(data.path()).into_iter().map(|(path, ..)| path).collect();
        let written = std::fs::metadata(&node_toml).unwrap().modified().unwrap();
        (names, written, std::fs::read_to_string(&node_toml).unwrap())
    };
    let refused = || {
        // A demo that is not rejected ends, too.
        let mut second = Demo::start_script(temporary.path(), &arguments, "\\q\n");
        let mut stderr = String::new();
        second.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(second.process.wait().unwrap().code(), Some(1), "{stderr}");
        assert!(stderr.contains(data_dir) && stderr.contains("in use"), "{stderr}");
    };
    let before = seen();
    refused();
    // No other demo may use the directory while the nodes are down, because they could then not be
    // restarted.
    for pid in processes_of(data.path()) {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    wait_until("the nodes have ended", || {
        let locks = ["us-east/data/lock", "ca-central/data/lock"];
        locks
            .iter()
            .all(|lock| std::fs::File::open(data.path().join(lock)).unwrap().try_lock().is_ok())
    });
    refused();
    assert_eq!(seen(), before, "a rejected start changes nothing");
    demo.signal(Signal::TERM);
    demo.process.wait().unwrap();
}

/// Story: the nodes of a demo refused an epoch of another release, and the demo only waited, and
/// then said that no agreement was reached.
#[test]
fn the_reason_why_nodes_refuse_an_epoch_is_shown() {
    let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data_dir = data.path().to_str().unwrap();
    let regions = "us-east,ca-central,us-central";
    let arguments = ["--protocol", "calvin", "--regions", regions, "--data-dir", data_dir];
    let mut demo = Demo::start(temporary.path(), &arguments);
    let urls = demo.urls(3);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = connect(&urls[0].1).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
    });
    // Without a last checkpoint only the same program can run these epochs.
    for pid in processes_of(data.path()) {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    demo.signal(Signal::TERM);
    demo.process.wait().unwrap();
    // Lints compile the tests without the feature.
    let program: Option<&str> = option_env!("CARGO_BIN_EXE_pangea-upgraded");
    let mut upgraded = Command::new(program.expect("tests have the feature planted"))
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(upgraded.stderr.take().unwrap()).lines().map_while(Result::ok);
    let is_reason = |line: &String| {
        let (region, reason) = line.split_once(": ").unwrap_or_default();
        regions.contains(region) && reason.contains(" can't run epoch ")
    };
    assert!(lines.any(|line| is_reason(&line)), "the reason is shown");
    kill_process(Pid::from_child(&upgraded), Signal::TERM).unwrap();
    upgraded.wait().unwrap();
}

/// A single node agrees with itself, and everything it acknowledged is on its disk.
#[test]
fn one_region_is_a_database_that_keeps_what_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let (mut demo, mut stdin) = Demo::start_piped(directory.path(), &["--regions", "us-east"]);
    let url = demo.urls(1)[0].1.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = connect(&url).await;
        client.batch_execute("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap();
        for id in 0..20 {
            client.batch_execute(&format!("INSERT INTO t VALUES ({id})")).await.unwrap();
        }
    });
    for ids in [20, 21] {
        writeln!(stdin, "\\kill us-east\n\\start us-east").unwrap();
        while !demo.line().contains("started process") {}
        runtime.block_on(async {
            let client = connect(&url).await;
            client.batch_execute("SET reads = strict").await.unwrap();
            let row = client.query_one("SELECT count(*) FROM t", &[]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), ids);
            client.batch_execute(&format!("INSERT INTO t VALUES ({ids})")).await.unwrap();
        });
    }
    writeln!(stdin, "\\q").unwrap();
    assert!(demo.process.wait().unwrap().success());
    assert_nothing_is_left(directory.path());
}

/// Story: this read failed, although all requested rows were on a running node.
#[test]
fn what_is_on_a_shard_that_runs_is_read_while_the_other_is_down_and_a_region_ends_whole() {
    let directory = tempfile::tempdir().unwrap();
    let divided = ["--protocol", "calvin", "--regions", "us-east", "--partitions", "2"];
    let (mut demo, mut stdin) = Demo::start_piped(directory.path(), &divided);
    let urls = demo.urls(2);
    assert_eq!(urls[0].0, "us-east.0");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seen = |ids: std::ops::Range<i32>| {
        runtime.block_on(async {
            let client = connect(&urls[0].1).await;
            let mut seen = Vec::new();
            for id in ids {
                let row = client.query_one("SELECT v FROM t WHERE id = $1", &[&id]).await;
                seen.push(match row {
                    Ok(row) => row.get(0),
                    Err(error) => error.code().unwrap().code().to_owned(),
                });
            }
            seen
        })
    };
    runtime.block_on(async {
        let client = connect(&urls[0].1).await;
        let table = "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id) \
                     SPLIT AT VALUES ((10))";
        client.batch_execute(table).await.unwrap();
        let rows = "INSERT INTO t SELECT id, 'row ' || id FROM generate_series(8, 11) id";
        client.batch_execute(rows).await.unwrap();
    });
    let whole = ["row 8", "row 9", "row 10", "row 11"];
    assert_eq!(seen(8..12), whole);
    writeln!(stdin, "\\kill us-east.1").unwrap();
    while !demo.line().contains("killed process") {}
    assert_eq!(seen(8..12), ["row 8", "row 9", "57P03", "57P03"]);
    writeln!(stdin, "\\kill us-east").unwrap();
    while !demo.line().contains("in us-east.0") {}
    assert_eq!(processes_of(directory.path()), [] as [u32; 0]);
    writeln!(stdin, "\\start us-east").unwrap();
    for node in ["us-east.0", "us-east.1"] {
        while !demo.line().contains(&format!("in {node}")) {}
    }
    assert_eq!(seen(8..12), whole);
    writeln!(stdin, "\\q").unwrap();
    assert!(demo.process.wait().unwrap().success());
    assert_nothing_is_left(directory.path());
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

/// Story: the directory had the rules of system tables, the plan had not, and the second start was
/// refused.
#[test]
fn partitioned_data_is_there_again() {
    let (temporary, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data_dir = data.path().to_str().unwrap();
    let cluster = ["--protocol", "calvin", "--regions", "us-east", "--partitions", "2"];
    let arguments = [&cluster[..], &["--data-dir", data_dir]].concat();
    for _ in 0..2 {
        let mut demo = Demo::start(temporary.path(), &arguments);
        demo.urls(2);
        demo.signal(Signal::INT);
        assert!(demo.process.wait().unwrap().success());
    }
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

/// Story: a node that had died was reported when the demo ended, and not before; and a setting
/// without effect by the logs of nodes alone.
#[test]
fn a_setting_without_effect_and_a_node_that_dies_are_reported_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = ["--regions", "us-east,ca-central,us-central", "--protocol", "tiga"];
    let arguments = [&cluster[..], &["--set", "tiga.leaders=rotated"]].concat();
    let mut demo = Demo::start_script(directory.path(), &arguments, "\\rtt\n");
    let mut stderr = BufReader::new(demo.process.stderr.take().unwrap()).lines();
    let mut line = || stderr.next().expect("stderr is open").unwrap();
    let warning = line();
    let says = "warning: tiga.leaders = \"rotated\" has no effect without partitions";
    assert!(warning.starts_with(says), "{warning}");
    demo.urls(3);
    let dead = Pid::from_raw(processes_of(directory.path())[0] as i32).unwrap();
    kill_process(dead, Signal::KILL).unwrap();
    let killed = "was terminated by signal 9 (SIGKILL): someone killed it, or memory ran out";
    let told = loop {
        let line = line();
        assert_ne!(line, warning, "it is shown once");
        if line.contains(killed) {
            break line;
        }
    };
    let name = told.strip_prefix("the node in ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(told.ends_with(&format!("\\start {name} starts it again")), "{told}");
    demo.signal(Signal::TERM);
    demo.process.wait().unwrap();
}
