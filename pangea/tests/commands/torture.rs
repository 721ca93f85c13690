//! `pangea torture`: real processes under SQL clients and faults, and the check that detects
//! violations.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::{pangea, processes_of, run, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Runs it with its nodes below a directory, and checks that no files or processes of theirs are
/// left.
fn torture(directory: &Path, arguments: &str) -> Output {
    let output = start(directory, arguments).wait_with_output().unwrap();
    assert_left_nothing(directory);
    output
}

fn start(directory: &Path, arguments: &str) -> Child {
    // As from a terminal: under nohup SIGHUP is ignored, and children inherit that.
    Command::new("env")
        .arg("--default-signal=HUP")
        .arg(pangea())
        .args(["torture", "--rtt", "10", "--data-dir"])
        .arg(directory.join("nodes"))
        .args(arguments.split(' '))
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn assert_left_nothing(directory: &Path) {
    assert_eq!(processes_of(directory), [] as [u32; 0]);
    assert_eq!(std::fs::read_dir(directory.join("nodes")).unwrap().count(), 0);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the lines of a history.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn check(path: &Path) -> Output {
    run(&["check", path.to_str().unwrap()])
}

/// Runs every kind of fault within some seconds. Then removes one value from a list that a client
/// read, and the last value of every list from the final reads.
#[test]
fn what_clients_see_under_faults_is_serializable_and_a_wrong_read_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    let arguments = format!("--secs 15 --seed 1 --history {}", path.display());
    let output = torture(directory.path(), &arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("replicas    identical"), "{stdout}");
    assert!(stdout.contains("the model holds"), "{stdout}");
    assert!(checkpoints_of_each(&stdout) > 0, "{stdout}");
    for fault in ["kills", "pauses", "cuts", "full stops"] {
        assert!(stdout.contains(fault), "{stdout}");
    }
    let history = lines(&path);
    let count = |outcome: &str| history.iter().filter(|txn| txn["outcome"] == outcome).count();
    assert!(count("committed") > 100 && count("unknown") > 0, "{stdout}");
    for kind in ["append", "write", "delete", "scan"] {
        let has =
            |txn: &&Value| txn["ops"].as_array().unwrap().iter().any(|op| op[kind] != json!(null));
        assert!(history.iter().any(|txn| has(&txn) && txn["outcome"] == "committed"), "{kind}");
    }

    let mut wrong = history.clone();
    let list = wrong.iter_mut().filter(|txn| txn["outcome"] == "committed" && txn["final"] != true);
    let list = list.flat_map(|txn| txn["ops"].as_array_mut().unwrap());
    let list = list.filter_map(|op| op.pointer_mut("/read/value")?.as_array_mut());
    list.filter(|list| list.len() > 2).last().expect("a list of three was read").remove(0);
    assert_caught(&path, &wrong);

    let mut wrong = history;
    let finals = wrong.iter_mut().filter(|txn| txn["final"] == true);
    let ops = finals.flat_map(|txn| txn["ops"].as_array_mut().unwrap());
    for list in ops.filter_map(|op| op.pointer_mut("/read/value")?.as_array_mut()) {
        list.pop();
    }
    assert_caught(&path, &wrong);
}

/// The number of checkpoints that every node has taken at least.
fn checkpoints_of_each(stdout: &str) -> u64 {
    let (_, of_each) = stdout.split_once("per node ").expect(stdout);
    let (least, _) = of_each.split_once(" to ").expect(stdout);
    least.parse().expect(stdout)
}

/// Nodes with half of the tables each. Those of Calvin have few of their rows in memory.
#[test]
fn divided_nodes_take_checkpoints_under_faults_and_stay_serializable() {
    for more in ["--protocol calvin --memory-mb 1", "--protocol tiga", "--protocol mako"] {
        // A busy machine restarts nodes slowly, and takes no checkpoint within seconds.
        let has_checkpoints = [12, 40, 100].into_iter().any(|secs| {
            let directory = tempfile::tempdir().unwrap();
            let arguments = format!("{more} --partitions 2 --secs {secs} --seed 2");
            let output = torture(directory.path(), &arguments);
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{stdout}{stderr}");
            assert!(stdout.contains("replicas    identical"), "{stdout}");
            assert!(stdout.contains("the model holds"), "{stdout}");
            checkpoints_of_each(&stdout) > 0
        });
        assert!(has_checkpoints, "{more}");
    }
}

/// Story: a master that answered before agreement was killed, another one took over, and the check
/// of the history failed: it took each transaction that the failover discarded, as documented, for
/// a lost write.
#[test]
fn an_asynchronous_master_is_killed_and_nothing_is_lost_but_its_last_transactions() {
    for (shards, seed) in [(1, 1), (2, 3)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let arguments = format!(
            "--protocol calvin --set calvin.replication=asynchronous --faults kill,cut --secs 20 \
             --seed {seed} --partitions {shards} --history {}",
            path.display()
        );
        let output = torture(directory.path(), &arguments);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stdout}{stderr}");
        assert!(stdout.contains("the model holds"), "{stdout}");
        let (_, failovers) = stdout.split_once("failovers   ").expect(&stdout);
        assert!(!failovers.starts_with('0'), "no master was replaced: {stdout}{stderr}");
        // Not all may be lost. The share depends on how fast a busy machine confirms commits.
        let history = lines(&path);
        let committed = history.iter().filter(|txn| txn["outcome"] == "committed").count();
        let is_excused = |txn: &&Value| txn["note"].as_str().unwrap().contains("discarded");
        let excused = history.iter().filter(is_excused).count();
        assert!(excused > 0 && excused < committed * 4, "{excused} of {committed}: {stdout}");
    }
}

/// The path of another release, which has one procedure more.
fn upgraded() -> &'static str {
    // Lints compile the tests without the feature.
    let program: Option<&str> = option_env!("CARGO_BIN_EXE_pangea-upgraded");
    program.expect("tests have the feature planted")
}

/// Nodes that are killed and started again with another release, and back.
#[test]
fn nodes_that_are_killed_continue_with_another_release() {
    for (protocol, seed) in [("minerva", 1), ("calvin", 2), ("tiga", 3), ("mako", 4)] {
        let directory = tempfile::tempdir().unwrap();
        let arguments = format!(
            "--protocol {protocol} --upgrade-to {} --faults upgrade,full-upgrade,kill --secs 30 \
             --seed {seed}",
            upgraded()
        );
        let output = torture(directory.path(), &arguments);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stdout}{stderr}");
        assert!(stdout.contains("replicas    identical"), "{stdout}");
        assert!(stdout.contains("the model holds"), "{stdout}");
        assert!(stdout.contains("upgrades at once") || stdout.contains("in turn"), "{stdout}");
    }
}

/// Nodes that are stopped in order while clients commit, and started again with another release.
#[test]
fn nodes_that_are_stopped_in_order_continue_with_another_release() {
    for (protocol, seed) in [("minerva", 1), ("calvin", 2), ("tiga", 3), ("mako", 4)] {
        let directory = tempfile::tempdir().unwrap();
        let arguments = format!(
            "--protocol {protocol} --upgrade-to {} --faults stop-upgrade --secs 15 --seed {seed}",
            upgraded()
        );
        let output = torture(directory.path(), &arguments);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stdout}{stderr}");
        assert!(stdout.contains("upgrades in order"), "{stdout}");
        assert!(!stdout.contains("refused"), "{stdout}");
        assert!(stdout.contains("replicas    identical"), "{stdout}");
    }
}

/// Story: the other program refused an epoch after all nodes had been stopped in order, and the run
/// stopped them again, until it did not. The other program here refuses its first two starts, and
/// then is [`upgraded`].
#[test]
fn a_program_that_refuses_after_a_stop_in_order_fails_the_run() {
    let refusing = "#!/bin/sh\n\
        directory=$(dirname \"$4\")\n\
        echo >> \"$directory/starts\"\n\
        [ $(wc -l < \"$directory/starts\") -gt 2 ] && exec UPGRADED \"$@\"\n\
        echo \"WARN: a (node 0) can't run epoch 7. Start that one, stop it in order\" >&2\n\
        echo up:\n\
        exec cat > /dev/null\n";
    for shards in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("refusing");
        std::fs::write(&program, refusing.replace("UPGRADED", upgraded())).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let arguments = format!(
            "--protocol calvin --partitions {shards} --faults full-upgrade --secs 2 --regions 2 \
             --upgrade-to {}",
            program.display()
        );
        let output = torture(directory.path(), &arguments);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
        let verdict = "check failed: all nodes were stopped in order, and the other program \
                       refuses an epoch: WARN: a (node 0) can't run epoch 7";
        assert!(stderr.contains(verdict), "{stdout}{stderr}");
    }
}

#[test]
fn caches_are_killed_and_paused_as_nodes_are() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = "--protocol geogauss --caches 2 --faults kill,pause --secs 15 --seed 3";
    let output = torture(directory.path(), arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("over 3 nodes with 6 caches"), "{stdout}");
    assert!(stdout.contains("replicas    identical"), "{stdout}");
    for fault in ["SIGKILL", "SIGSTOP"] {
        let is_of_cache = |line: &str| line.contains(fault) && line.contains(".cache");
        assert!(stderr.lines().any(is_of_cache), "{fault}: {stderr}");
    }
}

/// A bit of a row flips in the memory of a node. Its peers find it, and it is replaced.
#[test]
fn a_flipped_bit_is_found_and_its_node_is_replaced() {
    for protocol in
        ["minerva", "calvin", "tiga", "tiga --partitions 2", "mako", "mako --partitions 2"]
    {
        // A leader of Mako may write a row that depends on the wrong one before that is found.
        let seeds = if protocol.starts_with("mako") { 1..=4 } else { 1..=1 };
        let holds = seeds.into_iter().any(|seed| {
            let directory = tempfile::tempdir().unwrap();
            let arguments = format!("--protocol {protocol} --faults flip --secs 20 --seed {seed}");
            let output = torture(directory.path(), &arguments);
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            assert!(stdout.contains("flips"), "{stdout}{stderr}");
            assert!(stdout.contains("replicas    identical"), "{stdout}");
            let holds = output.status.success() && stdout.contains("the model holds");
            assert!(holds || stdout.contains("FAILED: garbage"), "{stdout}{stderr}");
            holds
        });
        assert!(holds, "{protocol}");
    }
}

/// Story: of two nodes, both stop when a bit flips in one, and the run waited for a majority in
/// vain. A run of a second reported that all was well with flips, and had flipped nothing.
#[test]
fn a_run_whose_faults_can_not_be_judged_or_do_not_happen_is_no_success() {
    let refused = run(&["torture", "--faults", "flip", "--regions", "2"]);
    let stderr = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--faults flip: at least 3 regions are needed"), "{stderr}");

    let directory = tempfile::tempdir().unwrap();
    // With this seed, the first fault would begin after more than a second.
    let output = torture(directory.path(), "--faults pause --secs 1 --seed 11");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no fault of --faults pause happened within 1 s"), "{stderr}");
}

/// Story: a run whose reader had ended reported a failure, and left its history behind.
#[test]
fn a_run_without_a_reader_ends_quietly_and_leaves_only_what_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut torture = start(directory.path(), "--faults none --secs 1 --keep");
    drop(torture.stdout.take());
    let output = torture.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(141), "{stderr}");
    assert!(!stderr.contains("pangea: ") && !stderr.contains("the history is in"), "{stderr}");
    let line = stderr.lines().find(|line| line.contains("the nodes' files and logs are in "));
    let kept = line.and_then(|line| line.rsplit(' ').next()).expect(&stderr);
    assert!(Path::new(kept).starts_with(directory.path().join("nodes")), "{stderr}");
    assert!(Path::new(kept).is_dir());
    let names = std::fs::read_dir(directory.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["nodes"], "no history is left");
}

/// Checks that a history is found to violate the model.
fn assert_caught(beside: &Path, history: &[Value]) {
    let path = beside.with_file_name("wrong.jsonl");
    let lines: Vec<String> = history.iter().map(ToString::to_string).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    let output = check(&path);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("FAILED"), "{stdout}{stderr}");
}

/// With `durability = memory`, a full stop loses all data, as docs/protocols/README.md describes.
#[test]
fn a_database_that_forgets_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let output =
        torture(directory.path(), "--secs 4 --seed 1 --faults full-stop --durability memory");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("SIGKILL all") && stderr.contains("does not exist"), "{stderr}");
    assert!(stderr.contains("the history is in"), "{stderr}");
}

#[test]
fn an_interrupt_stops_everything_and_keeps_what_was_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    let arguments = format!("--secs 600 --faults pause,kill --history {}", path.display());
    let torture = start(directory.path(), &arguments);
    let is_written = || std::fs::metadata(&path).is_ok_and(|file| file.len() > 0);
    wait_until("the history is not empty", is_written);
    kill_process(Pid::from_child(&torture), Signal::INT).unwrap();
    let output = torture.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_left_nothing(directory.path());
    // Without the final reads, possibly no transaction has read the order in which two registers
    // were written.
    let checked = check(&path);
    let (stdout, stderr) = (text(&checked.stdout), text(&checked.stderr));
    let is_well = checked.status.success() || stdout.contains("verdict     OPEN");
    assert!(is_well, "{stdout}{stderr}{}", std::fs::read_to_string(&path).unwrap());
}

/// A stopped node cannot detect that the process that started it has exited; the system wakes it
/// up.
#[test]
fn no_node_outlives_a_torture_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut torture = start(directory.path(), "--secs 600 --faults pause");
    let is_stopped = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    wait_until("a node is stopped", || processes_of(directory.path()).iter().any(is_stopped));
    torture.kill().unwrap();
    torture.wait().unwrap();
    wait_until("all nodes are gone", || processes_of(directory.path()).is_empty());
}
