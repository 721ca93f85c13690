//! Errors of `pangea start`: one line on stderr that names the problem. The exit code is 2 if the
//! file is invalid and 1 for all other problems.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::processes::{Addresses, Process, REGIONS, free_addresses, log_text, node_toml};

/// The time limit for a node to stop cleanly.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// The polling interval of conditions.
const POLL: Duration = Duration::from_millis(10);

/// Runs a node that must fail to start, until it exits.
fn start(config: &Path) -> Output {
    start_with(config, &[])
}

fn start_with(config: &Path, arguments: &[&str]) -> Output {
    let command = Command::new(env!("CARGO_BIN_EXE_pangea"))
        .args(["start", "--stop-with-stdin", "--config"])
        .arg(config)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    command.expect("the built binary starts")
}

/// Stops a node cleanly and returns its exit code.
fn stop(node: &mut Process) -> i32 {
    node.ask_to_stop();
    end(node, STOP_DEADLINE)
}

/// Waits for a node to exit and returns its exit code. A child cannot be waited for with a
/// deadline, so it is polled.
pub(crate) fn end(node: &mut Process, deadline: Duration) -> i32 {
    let began = Instant::now();
    loop {
        if let Some(code) = node.exit_code() {
            return code;
        }
        assert!(began.elapsed() < deadline, "the node does not end");
        std::thread::sleep(POLL);
    }
}

/// Returns the line with the reason why the command failed, which must be the only one.
fn reason(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let reasons: Vec<&str> =
        stderr.lines().filter_map(|line| line.strip_prefix("pangea: ")).collect();
    assert_eq!(reasons.len(), 1, "one line has the reason: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(output.stdout.is_empty(), "a node that does not start is not ready");
    reasons[0].to_owned()
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_the_line_that_is_wrong() {
    let temp = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    let good = node_toml(1, &addresses);
    let first_peer = format!("peer = \"{}\"", addresses[0].peer);
    let second_peer = format!("peer = \"{}\"", addresses[1].peer);
    let cases = [
        ("node = 1\n", "node = 7\n", 3, "node = 7"),
        ("node = 1\n", "node = -1\n", 3, "`-1`, expected a whole number from 0 to 65535"),
        ("workers = 1", "workers = \"all\"", 6, "expected a whole number, at least 0"),
        ("workers = 1", "wrokers = 1", 6, "wrokers"),
        ("\"fsync\"", "\"sometimes\"", 5, "sometimes"),
        ("protocol = \"minerva\"", "protocol = ", 2, "protocol"),
        ("id = 2", "id = 1", 23, "id = 1: already used by another node"),
        (second_peer.as_str(), first_peer.as_str(), 19, "already used by node 0"),
        (first_peer.as_str(), "peer = \"10.0.0.1:7000\"", 13, "insecure = true"),
        ("[wan]", "[wan]\nspeed = 1", 41, "speed"),
        ("[wan]", "[minerva]\nepoch_s = 1", 41, "epoch_s"),
        ("[wan]", "[wan]\njitter_ms = -1", 40, "jitter_ms = -1"),
        ("[wan]", "[minvera]\nepoch_ms = 1", 40, "`wan`, `minerva`"),
        (
            "\"minerva\"",
            "\"raft\"",
            2,
            "unknown protocol \"raft\"; known: minerva, calvin, geogauss, tiga, mako",
        ),
    ];
    for (at, bad, line, word) in cases {
        assert!(good.contains(at), "{at} is in the file");
        let path = temp.path().join("node.toml");
        std::fs::write(&path, good.replacen(at, bad, 1)).unwrap();
        let output = start(&path);
        let reason = reason(&output);
        assert_eq!(output.status.code(), Some(2), "{bad}: {reason}");
        assert!(reason.contains(&format!("node.toml:{line}: ")), "{bad}: {reason}");
        assert!(reason.contains(word), "{bad}: {reason}");
        assert!(!temp.path().join("data").exists(), "{bad}: no directory was created");
    }
}

/// Story: settings with which no cluster can work were once accepted.
#[test]
fn a_setting_out_of_its_range_is_refused_with_its_line_key_value_and_range() {
    let temp = tempfile::tempdir().unwrap();
    let good = node_toml(1, &free_addresses());
    for (setting, range) in [
        ("epoch_ms = 9999999999", "1 to 10000"),
        ("epoch_ms = 0", "1 to 10000"),
        ("batch_ms = 100000", "1 to 10000"),
        ("batch_bytes = 0", "1024 to 16777216"),
        ("checkpoint_bytes = 0", "4096 to 1099511627776"),
        ("removal_ms = 0", "1000 to 86400000"),
        ("high_contention_percent = 1000", "1 to 100"),
        ("high_contention_ms = 600001", "0 to 600000"),
        ("high_contention_hold_ms = 0", "1 to 600000"),
        ("solver_nodes_max = 0", "1 to 1000000"),
        ("cuts_kept = 0", "1 to 262144"),
    ] {
        let path = temp.path().join("node.toml");
        std::fs::write(&path, format!("{good}\n[minerva]\n{setting}\n")).unwrap();
        let output = start(&path);
        let reason = reason(&output);
        assert_eq!(output.status.code(), Some(2), "{setting}: {reason}");
        let line = good.lines().count() + 3;
        let says = format!("node.toml:{line}: must be from {range} in `{setting}`");
        assert!(reason.contains(&says), "{setting}: {reason}");
        assert!(!temp.path().join("data").exists(), "{setting}: no directory was created");
    }
}

/// Story: settings that a cluster can't have were refused without the line.
#[test]
fn a_setting_that_the_cluster_cant_have_is_refused_with_its_line() {
    let temp = tempfile::tempdir().unwrap();
    let good = node_toml(1, &free_addresses());
    for (protocol, setting, says) in [
        ("tiga", "leaders = \"mars\"", "leaders = \"mars\": neither \"auto\" nor \"rotated\""),
        ("tiga", "order = \"bounded\"", "order = \"bounded\" needs clock_error_ms"),
        ("calvin", "master_region = \"mars\"", "master_region = \"mars\": unknown region"),
        ("geogauss", "isolation = \"serializable\"\nserializable = false", "isolation = "),
    ] {
        let path = temp.path().join("node.toml");
        let text = good.replace("\"minerva\"", &format!("{protocol:?}"));
        std::fs::write(&path, format!("{text}\n[{protocol}]\n# A line.\n{setting}\n")).unwrap();
        let output = start(&path);
        let reason = reason(&output);
        assert_eq!(output.status.code(), Some(2), "{setting}: {reason}");
        let line = good.lines().count() + 4;
        assert!(reason.contains(&format!("node.toml:{line}: {says}")), "{setting}: {reason}");
    }
}

/// Story: nodes whose files differed in `votes` were told that they differ in the settings, the
/// partitions or the procedures.
#[test]
fn nodes_whose_files_differ_in_votes_say_so() {
    let temp = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    let directories = [temp.path().join("a"), temp.path().join("b")];
    let mut nodes = Vec::new();
    for (node, directory) in directories.iter().enumerate() {
        write(directory, node, &addresses);
        let file = directory.join("node.toml");
        let text = std::fs::read_to_string(&file).unwrap().replace("\"minerva\"", "\"tiga\"");
        let text = match node {
            0 => text,
            _ => text.replace("id = 2\n", "id = 2\nvotes = false\n"),
        };
        std::fs::write(file, text).unwrap();
        nodes.push(Process::spawn(directory));
    }
    for node in &mut nodes {
        let up = node.first_line()();
        let says = "the two nodes differ in `[[nodes]]`: `votes = false` of node 2 (node 1). ";
        assert!(up.starts_with("up:") && up.contains(says), "{up}");
    }
}

/// Story: nodes with different settings once logged eight lines a second, with ports and hashes.
#[test]
fn nodes_whose_settings_differ_say_so_once_and_name_each_other() {
    let temp = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    let directories = [temp.path().join("a"), temp.path().join("b")];
    let mut nodes = Vec::new();
    for (node, directory) in directories.iter().enumerate() {
        write(directory, node, &addresses);
        if node == 1 {
            let file = directory.join("node.toml");
            let text = std::fs::read_to_string(&file).unwrap() + "\n[minerva]\nepoch_ms = 20\n";
            std::fs::write(file, text).unwrap();
        }
        nodes.push(Process::spawn(directory));
    }
    // Many connection attempts happen before a node reports what it is waiting for.
    for node in &mut nodes {
        let up = node.first_line()();
        let is_told = up.contains("the two nodes differ in `[minerva]`");
        assert!(up.starts_with("up:") && is_told, "{up}");
    }
    for (directory, other) in directories.iter().zip([1, 0]) {
        let log = log_text(directory);
        let differ: Vec<&str> = log.lines().filter(|line| line.contains("nodes differ")).collect();
        assert_eq!(differ.len(), 1, "{log}");
        let name = format!("{} (node {other})", REGIONS[other]);
        assert!(differ[0].contains(&name) && differ[0].contains("`[minerva]`"), "{log}");
        let settings = "epoch_ms = 20 (node 1)";
        assert!(differ[0].contains(settings) && differ[0].contains("(node 0)"), "{log}");
    }
}

/// Story: a node of another release was refused because "the settings or the procedures" differ,
/// and no log or table said which program a node is.
#[test]
fn nodes_of_two_programs_say_which_procedures_only_one_has() {
    let temp = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    let directories = [temp.path().join("a"), temp.path().join("b")];
    // Lints compile the tests without the feature.
    let other: Option<&str> = option_env!("CARGO_BIN_EXE_pangea-upgraded");
    let programs = [env!("CARGO_BIN_EXE_pangea"), other.expect("tests have the feature planted")];
    let mut nodes = Vec::new();
    for (node, directory) in directories.iter().enumerate() {
        write(directory, node, &addresses);
        nodes.push(Process::spawn_program(programs[node], directory));
    }
    for node in &mut nodes {
        assert!(node.first_line()().starts_with("up:"));
    }
    let mut codes = Vec::new();
    for ((directory, program), other) in directories.iter().zip(programs).zip([1, 0]) {
        let log = log_text(directory);
        let name = format!("{} (node {other})", REGIONS[other]);
        let differ = "the two nodes differ in procedures that only one has: a.first (node 1). ";
        let is_told = |line: &str| line.contains(&name) && line.contains(differ);
        assert!(log.lines().any(is_told), "{log}");
        let start = log.lines().find(|line| line.contains("release ")).expect(&log);
        assert_eq!(start.contains(" a.first "), other == 0, "{start}");
        let version = Command::new(program).arg("--version").output().unwrap();
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let (_, code) = version.split_once("(code ").expect(&version);
        let (code, _) = code.split_once(", ").expect(&version);
        assert!(start.contains(&format!("code {code}, ")), "{start} {version}");
        codes.push(code.to_owned());
    }
    assert_ne!(codes[0], codes[1]);
}

#[test]
fn a_file_that_is_not_there_and_a_protocol_that_is_unknown_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("node.toml");
    let output = start(&path);
    let text = reason(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("node.toml") && text.contains("can't read"), "{text}");
    let unknown = node_toml(0, &free_addresses()).replace("minerva", "raft");
    std::fs::write(&path, unknown).unwrap();
    let output = start(&path);
    let text = reason(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("\"raft\"") && text.contains("minerva"), "{text}");
}

/// Writes the configuration of a node into a separate directory.
fn write(directory: &Path, node: usize, addresses: &[Addresses]) {
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("node.toml"), node_toml(node, addresses)).unwrap();
}

#[test]
fn a_taken_port_is_named_with_its_key() {
    let temp = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    write(temp.path(), 0, &addresses);
    for (key, address) in [("peer", addresses[0].peer), ("sql", addresses[0].sql)] {
        let taken = TcpListener::bind(address).expect("it was free");
        let output = start(&temp.path().join("node.toml"));
        let text = reason(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(key) && text.contains(&address.to_string()), "{key}: {text}");
        drop(taken);
    }
}

#[test]
fn a_data_dir_of_another_process_or_another_node_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (ours, theirs) = (temp.path().join("ours"), temp.path().join("theirs"));
    let addresses = free_addresses();
    write(&ours, 0, &addresses);
    let mut node = Process::spawn(&ours);
    let line = node.first_line()();
    let log = log_text(&ours);
    assert!(line.starts_with("up: node 0") && line.contains(REGIONS[0]), "{line}{log}");
    let url = format!("postgres://pangea@{}/pangea", addresses[0].sql);
    assert!(line.contains(&url), "{line}");

    let shared = |node: usize, addresses: &[Addresses]| {
        let data_dir = format!("data_dir = {:?}", ours.join("data"));
        let text = node_toml(node, addresses).replace("data_dir = \"data\"", &data_dir);
        std::fs::create_dir_all(&theirs).unwrap();
        std::fs::write(theirs.join("node.toml"), text).unwrap();
        let output = start(&theirs.join("node.toml"));
        let text = reason(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        text
    };
    let text = shared(0, &free_addresses());
    assert!(text.contains("in use by another process"), "{text}");
    assert_eq!(node.exit_code(), None, "the first node continues");
    assert_eq!(stop(&mut node), 0, "{}", log_text(&ours));
    let text = shared(1, &free_addresses());
    assert!(text.contains("belongs to"), "{text}");
    // A cluster with other nodes is a different cluster: its quorums and logs would differ.
    let text = shared(0, &free_addresses()[..2]);
    let all = REGIONS.join(", ");
    assert!(text.contains("belongs to") && text.contains(&all), "{text}");
}

#[test]
fn the_only_node_has_nobody_to_fetch_its_data_from() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), 0, &free_addresses()[..1]);
    let output = start_with(&temp.path().join("node.toml"), &["--replace"]);
    let text = reason(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("other nodes with the same rows, but there are none"), "{text}");
    assert!(!temp.path().join("data").exists(), "no directory was created");
}

/// Story: the first start of a cluster with one of three nodes missing once printed `ready:` and
/// reported that writes continue. Clients then waited without a message.
#[test]
fn a_first_start_says_which_node_it_waits_for_and_is_ready_when_that_has_come() {
    let temp = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    let directories: Vec<_> = REGIONS.iter().map(|region| temp.path().join(region)).collect();
    for (node, directory) in directories.iter().enumerate() {
        write(directory, node, &addresses);
    }
    let mut nodes: Vec<_> = directories[..2].iter().map(|it| Process::spawn(it)).collect();
    let waits = format!(
        "first start: waiting for {} (node 2); a new cluster needs all 3 nodes once to start",
        REGIONS[2]
    );
    let mut lines = nodes[0].lines();
    let line = lines.next().unwrap();
    assert!(line.starts_with("up: node 0") && line.ends_with(&waits), "{line}");
    assert!(!log_text(&directories[0]).contains("writes continue"));
    assert!(log_text(&directories[0]).contains(&waits));
    let url = format!("postgres://pangea@{}/pangea", addresses[0].sql);
    let script = "set statement_timeout = 2500; create table t (id int primary key);";
    std::fs::write(temp.path().join("script"), script).unwrap();
    let command = Command::new(env!("CARGO_BIN_EXE_pangea"))
        .args(["sql", &url])
        .stdin(std::fs::File::open(temp.path().join("script")).unwrap())
        .output();
    let stderr = String::from_utf8_lossy(&command.unwrap().stderr).into_owned();
    assert!(stderr.contains(&format!("WARNING: {waits}; waiting")), "{stderr}");
    nodes.push(Process::spawn(&directories[2]));
    let line = lines.next().unwrap();
    assert!(line.starts_with("ready: node 0"), "{line}");
    assert!(log_text(&directories[0]).contains("writes continue"));
}

/// Story: a node whose log was lost once printed that it was ready, and stopped itself right after.
#[test]
fn a_node_that_lost_its_log_is_never_ready_until_it_is_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    let directories: Vec<_> = REGIONS.iter().map(|region| temp.path().join(region)).collect();
    let mut nodes = Vec::new();
    for (node, directory) in directories.iter().enumerate() {
        write(directory, node, &addresses);
        nodes.push(Process::spawn(directory));
    }
    for node in &mut nodes {
        assert!(node.lines().any(|line| line.starts_with("ready:")));
    }
    let url = format!("postgres://pangea@{}/pangea", addresses[2].sql);
    let command = Command::new(env!("CARGO_BIN_EXE_pangea"))
        .args(["sql", &url, "-c", "create table t (id int primary key)"])
        .output();
    assert!(command.unwrap().status.success());
    nodes[2].kill();
    std::fs::remove_dir_all(directories[2].join("data")).unwrap();
    let mut forgetful = Process::spawn(&directories[2]);
    assert_eq!(forgetful.first_line()(), "", "{}", log_text(&directories[2]));
    assert_eq!(end(&mut forgetful, STOP_DEADLINE), 1);
    let log = log_text(&directories[2]);
    assert!(log.contains("lost its promises and votes"), "{log}");
    assert!(log.contains("pangea start --replace"), "the log names the remedy: {log}");
    // A replaced node needs the answers of all other nodes, and one of them is down.
    nodes[1].kill();
    let mut replaced = Process::spawn_replacing(&directories[2]);
    let waits = format!("this node is being replaced: waiting for {} (node 1)", REGIONS[1]);
    let mut lines = replaced.lines();
    let line = lines.next().unwrap();
    assert!(line.starts_with("up: node 2") && line.contains(&waits), "{line}");
    let command =
        Command::new(env!("CARGO_BIN_EXE_pangea")).args(["sql", &url, "-c", "select 1"]).output();
    let stderr = String::from_utf8_lossy(&command.unwrap().stderr).into_owned();
    assert!(stderr.contains("57P03") && stderr.contains(&waits), "{stderr}");
    // The replacement is interrupted, and a normal start continues it.
    replaced.kill();
    let mut replaced = Process::spawn(&directories[2]);
    let mut lines = replaced.lines();
    let line = lines.next().unwrap();
    assert!(line.starts_with("up: node 2") && line.contains(&waits), "{line}");
    nodes[1] = Process::spawn(&directories[1]);
    let line = lines.next().unwrap();
    assert!(line.starts_with("ready: node 2"), "{line}");
    assert!(!directories[2].join("data/replaced").exists());
    let command = Command::new(env!("CARGO_BIN_EXE_pangea"))
        .args(["sql", &url, "-c", "select * from t"])
        .output();
    assert!(command.unwrap().status.success(), "{}", log_text(&directories[2]));
}
