//! Error messages and exit codes of the command line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::processes::free_addresses;
use crate::support::{pangea, run};
use rustix::process::{Pid, Signal, kill_process};

/// Each of these command lines prints one line on stderr, and has its exit code.
#[test]
fn what_makes_no_sense_is_said_in_one_line_with_exit_code_2() {
    for (line, word) in [
        ("demo --regions us-east,atlantis", "atlantis"),
        ("demo --regions us-east,us-east", "twice"),
        ("demo --protocol raft", "raft"),
        ("start --config /no/such/node.toml", "/no/such/node.toml"),
        ("bench --workload chess", "chess"),
        ("bench --workload list-append", "pangea sim"),
        ("bench --workload bank --set minerva.speed=9", "--set: unknown field `speed`"),
        ("bench --workload ycsb-a --zipf 99", "zipf"),
        ("bench --workload bank --rtt -1", "-1"),
        ("bench --workload bank --rtt=-1", "--rtt -1: must be from 0"),
        ("torture --rtt 99999", "--rtt 99999: must be from 0"),
        ("sim --seed 1 --workload chess", "chess"),
        ("sim --seed 1 --set minerva.epoch_ms=soon", "epoch"),
        ("sim --seed 1 --set minerva.epoch_ms=0", "must be from 1 to 10000 in `epoch_ms = 0`"),
        ("bench --workload bank --set minerva.removal_ms=0", "must be from 1000 to 86400000"),
        ("sim --seed 1 --workload bank --history h.jsonl", "does not support histories of bank"),
        ("bench --workload register", "register's histories are checked by `pangea sim`"),
        ("check /no/such/history.jsonl", "/no/such/history.jsonl"),
        ("check - --model chess", "known: strict-serializable, serializable"),
        (
            "torture --faults fire",
            "expected kill, pause, cut, full-stop, upgrade, full-upgrade, stop-upgrade",
        ),
        ("torture --faults upgrade", "the other program is missing: --upgrade-to"),
        ("torture --upgrade-to /nowhere/pangea", "--upgrade-to /nowhere/pangea: No such file"),
        ("torture --faults kill --durability memory", "without kill, or with --durability"),
        ("torture --faults kill,none", "none can't be combined with faults"),
        ("sim --seed 1 --history /no/such/h.jsonl", "--history: can't write /no/such/h.jsonl"),
        ("torture --regions 1", "needs at least 2 regions"),
        ("torture --caches 1", "protocol \"minerva\" has no caches"),
        ("torture --protocol geogauss --caches 9", "expected a number from 0 to 3"),
        ("torture --protocol geogauss --set geogauss.ack=merged", "no log names them"),
        (
            "torture --protocol geogauss --caches 1 --set geogauss.ack=cached",
            "Use geogauss.ack=replicated",
        ),
        ("sql not-a-url", "not-a-url"),
        ("bench --workload bank --zipf 0.9", "--zipf does not apply to --workload bank"),
        ("bench --workload ycsb-a --tiny", "--tiny does not apply to --workload ycsb-a"),
        ("bench --workload bank --fault burn:a@1+1", "expected kill, cut or slow"),
        ("bench --workload bank --fault kill:mars@1+1", "there is no region \"mars\""),
        (
            "bench --workload bank --secs 3 --fault kill:region-1@1+9",
            "it ends after the measured 3 s",
        ),
        ("bench --workload bank --via process --fault kill:region-1@1+1", "can't fail separately"),
        (
            "bench --workload bank --via process --lab",
            "nodes in one process can't be in different regions",
        ),
        ("bench --workload ycsb-a --baseline etcd --stages", "--stages"),
        ("bench --workload ycsb-a --baseline etcd --rtt 50", "add --lab"),
        ("bench --workload bank --bandwidth 5", "--lab"),
        ("calibrate --workload bank --lab", "--lab is only for `pangea bench`"),
        ("calibrate --workload bank --fault kill:region-1@1+1", "would be in every cost"),
        ("calibrate --workload bank --json costs.json", "costs are written to --out"),
        ("calibrate --workload bank --stages", "leave it out"),
        ("bench sweep /no/such/plan.toml", "can't read the plan /no/such/plan.toml"),
    ] {
        let output = run(&line.split(' ').collect::<Vec<_>>());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(word), "{line}: {stderr}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn a_taken_port_is_named_with_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let free = free_addresses()[0].peer;
    for (peer, sql, key) in [(taken, free, "peer = "), (free, taken, "sql = ")] {
        let config = directory.path().join("node.toml");
        let text = format!(
            "cluster = \"c\"\nprotocol = \"minerva\"\nnode = 0\ndata_dir = \"data\"\n\
             regions = [\"here\"]\n[[nodes]]\nid = 0\nregion = \"here\"\n\
             peer = \"{peer}\"\nsql = \"{sql}\"\n[[nodes]]\nid = 1\nregion = \"here\"\n\
             peer = \"127.0.0.1:1\"\nsql = \"127.0.0.1:2\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let output = run(&["start", "--config", config.to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let last = stderr.lines().next_back().unwrap();
        assert!(last.contains(key) && last.contains(&taken.to_string()), "{stderr}");
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error_with_exit_code_1() {
    let free = free_addresses()[0].peer;
    let output = run(&["sql", &format!("postgres://me@{free}/db"), "-c", "SELECT 1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("can't connect"));
}

#[test]
fn a_seed_is_replayed_the_same() {
    let seed = || run(&["sim", "--seed", "3", "--ms", "1000", "--workload", "bank"]);
    let (first, again) = (seed(), seed());
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert_eq!(first.stdout, again.stdout);
    let report = String::from_utf8_lossy(&first.stdout);
    assert!(report.contains("options     epoch_ms = ") && !report.contains(" { "), "{report}");
    let swarm = run(&["sim", "--seeds", "0..3", "--ms", "500"]);
    let stdout = String::from_utf8_lossy(&swarm.stdout);
    assert!(swarm.status.success() && stdout.contains("0 of 3 seeds failed"), "{stdout}");
}

#[test]
fn what_is_wrong_in_a_scenario_is_said_with_its_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.toml");
    let path = path.to_str().unwrap();
    let rule = "[[rules]]\nat_ms = 9000\nlasts_ms = 1\nfault.full-stop = {}\n";
    for (text, wrong) in [
        ("nodes = 3\n[minerva]\nspeed = 9\n", "line 3: unknown field `speed`"),
        ("[minerva]\nepoch_ms = 0\n", "line 2: must be from 1 to 10000 in `epoch_ms = 0`"),
        (rule, "line 1: rule 1 of [[rules]]: at_ms = 9000"),
    ] {
        std::fs::write(path, text).unwrap();
        let output = run(&["sim", "--seed", "1", "--scenario", path]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}: {stderr}");
        let place = format!("pangea: --scenario {path}: line ");
        assert!(stderr.starts_with(&place) && stderr.contains(wrong), "{text}: {stderr}");
        assert!(!stderr.contains("--set"), "{stderr}");
    }
}

#[test]
fn what_is_wrong_in_a_plan_is_said_with_its_line_and_nothing_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let (path, out) = (directory.path().join("plan.toml"), directory.path().join("out"));
    let plan = path.to_str().unwrap();
    for (text, wrong) in [
        ("title = \"T\"\n[base]\nworkload = \"bnak\"\n", "line 3: there is no workload \"bnak\""),
        ("title = \"T\"\n[base]\nworklod = \"bank\"\n", "did you mean \"workload\"?"),
        (
            "title = \"T\"\n[base]\nworkload = \"bank\"\nrtt = -1\n",
            "line 4: --rtt -1: must be from 0",
        ),
        ("title = \"T\"\n[sweep]\nrtt = []\n", "line 3: rtt has no values"),
    ] {
        std::fs::write(&path, text).unwrap();
        let output = run(&["bench", "sweep", plan, "--out", out.to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}: {stderr}");
        assert!(stderr.starts_with(&format!("pangea: {plan}: line ")), "{text}: {stderr}");
        assert!(stderr.contains(wrong), "{text}: {stderr}");
        assert!(!out.exists());
    }
}

/// Minerva answers read-only programs from a snapshot by default, which violates this requirement.
const TOO_STRICT: [&str; 6] = ["--real-time", "ordered", "--faults", "none", "--ms", "1000"];

#[test]
fn a_swarm_that_stops_early_says_so() {
    let output = run(&[&["sim", "--seeds", "0..1000"], &TOO_STRICT[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().next_back().unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(last.starts_with("pangea: stopped after "), "{last}");
    assert!(last.contains(" of 1000 seeds: "), "{last}");
}

#[test]
fn what_is_shrunk_is_told_and_what_passes_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small.toml");
    let file = ["--shrink", path.to_str().unwrap()];
    let failing = (0..20).map(|seed| seed.to_string()).find(|seed| {
        let output = run(&[&["sim", "--seed", seed], &TOO_STRICT[..]].concat());
        output.status.code() == Some(1)
    });
    let seed = failing.expect("one of twenty seeds fails");
    let output = run(&[&["sim", "--seed", &seed], &TOO_STRICT[..], &file].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let (story, replay) = stderr.trim_end().rsplit_once("; replay with: pangea ").unwrap();
    let again = run(&replay.split(' ').collect::<Vec<_>>());
    let again = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.starts_with(story), "{story}\nand then\n{again}");

    let other = directory.path().join("none.toml");
    let file = ["--shrink", other.to_str().unwrap()];
    let output = run(&[&["sim", "--seed", "3", "--ms", "500"], &file[..]].concat());
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    assert!(stdout.contains("nothing to shrink") && !other.exists(), "{stdout}");
}

#[test]
fn a_swarm_that_is_interrupted_tells_what_it_has_done() {
    // Far more seeds than can run within any test.
    let mut swarm = Command::new(pangea())
        .args(["sim", "--seeds", "0..1000000", "--ms", "100", "--workload", "bank"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(swarm.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains(" of 1000000 seeds, 0 failed"), "{line}");
    kill_process(Pid::from_child(&swarm), Signal::INT).unwrap();
    let (mut out, mut rest) = (String::new(), String::new());
    swarm.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(swarm.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("interrupted after ") && rest.contains(" of 1000000 seeds"), "{rest}");
    assert!(out.contains("verdict     0 of ") && !out.contains("0 of 0 seeds"), "{out}");
}

/// A history with write skew, in the format of a file.
const WRITE_SKEW: &str = concat!(
    r#"{"client":1,"begin":0,"end":30,"outcome":"committed","ops":["#,
    r#"{"read":{"key":"y","value":null}},{"write":{"key":"x","value":1}}]}"#,
    "\n",
    r#"{"client":2,"begin":10,"end":40,"outcome":"committed","ops":["#,
    r#"{"read":{"key":"x","value":null}},{"write":{"key":"y","value":2}}]}"#,
    "\n"
);

/// Checks a history on stdin. Returns the exit code, stdout and stderr.
fn check(history: &str, model: &str) -> (Option<i32>, String, String) {
    check_with(history, &["--model", model])
}

fn check_with(history: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut check = Command::new(pangea())
        .args(["check", "-"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(history.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_history_is_held_to_a_model() {
    let (code, stdout, stderr) = check(WRITE_SKEW, "snapshot-isolation");
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("2 transactions (2 committed, 0 aborted, 0 unknown), 4 operations"));
    assert!(stdout.contains("verdict     the model holds"), "{stdout}");
    let (code, stdout, stderr) = check(WRITE_SKEW, "serializable");
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(stderr, "pangea: - is not serializable: G2-item\n");
    assert!(stdout.contains("FAILED: G2-item: 2 transactions"), "{stdout}");
    assert!(stdout.contains("\n    T1 (client 1, 0 to 30): it read \"y\" before 2"), "{stdout}");
    assert!(stdout.contains("weaker      snapshot-isolation holds"), "{stdout}");
    let (code, _, stderr) = check("\n[1, 0, 10, \"committed\", []]\n", "serializable");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("line 2: a transaction must be a JSON object"), "{stderr}");
    let (code, stdout, stderr) = check(&WRITE_SKEW[..200], "serializable");
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.starts_with("pangea: -: line 2: the object is incomplete"), "{stderr}");
}

#[test]
fn a_transaction_that_names_its_level_is_held_to_it() {
    let at = |level: &str| WRITE_SKEW.replacen("\"end\":30", &format!("\"end\":30,{level}"), 1);
    for (level, code) in [("snapshot-isolation", 0), ("serializable", 1)] {
        let history = at(&format!("\"level\":\"{level}\""));
        let (found, stdout, _) = check_with(&history, &[]);
        assert_eq!(found, Some(code), "{level}: {stdout}");
        assert!(stdout.contains("checked     mixed"), "{stdout}");
        assert_eq!(check(&history, "strict-serializable").0, Some(1), "{level}");
    }
    let (code, _, stderr) = check_with(&at("\"level\":\"chaos\""), &[]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("line 1") && stderr.contains("known: read-committed"), "{stderr}");
}

/// Settings know both names.
#[test]
fn the_snapshot_level_has_two_names() {
    let report = |level: &str| {
        let line = "sim --seed 1 --ms 500 --workload bank --protocol geogauss --isolation";
        let output = run(&line.split(' ').chain([level]).collect::<Vec<_>>());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(report("snapshot"), report("snapshot-isolation"));
}

#[test]
fn a_run_with_levels_of_its_own_can_be_checked_from_its_history() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.jsonl").to_str().unwrap().to_owned();
    let line = "sim --seed 3 --ms 2000 --protocol geogauss --workload ranges --isolation mixed";
    let simulated = line.split(' ').chain(["--history", &path]);
    let simulated = run(&simulated.collect::<Vec<_>>());
    assert!(simulated.status.success(), "{}", String::from_utf8_lossy(&simulated.stderr));
    let checked = run(&["check", &path]);
    let stdout = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && stdout.contains("checked     mixed"), "{stdout}");
    let levels = std::fs::read_to_string(&path).unwrap();
    for level in ["read-committed", "repeatable-read", "snapshot-isolation"] {
        assert!(levels.contains(level), "{level}");
    }
    let refused = run(&["sim", "--seed", "3", "--isolation", "mixed,chaos"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_simulated_run_can_be_checked_from_its_history() {
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("run.jsonl");
    let path = history.to_str().unwrap();
    for workload in ["register", "ranges", "list-append"] {
        let simulated = ["sim", "--seed", "3", "--ms", "2000", "--workload", workload];
        let simulated = run(&[&simulated[..], &["--history", path]].concat());
        assert!(simulated.status.success(), "{}", String::from_utf8_lossy(&simulated.stderr));
        let output = run(&["check", path]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{workload}: {stdout}");
        let is_about_many = stdout.contains("strict-serializable") && !stdout.contains(": 0 trans");
        assert!(is_about_many, "{workload}: {stdout}");
    }
    // A history that has been tampered with fails the check.
    let text = std::fs::read_to_string(&history).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.contains("\"final\":true"), "{last}");
    let changed = text.replacen(last, &last.replacen("\"value\":[", "\"value\":[777,", 1), 1);
    std::fs::write(&history, changed).unwrap();
    let output = run(&["check", path]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("FAILED: garbage: 777 is in the final list"), "{stdout}");
}
