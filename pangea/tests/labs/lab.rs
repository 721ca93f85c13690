//! `pangea lab` on the command line. The tests need root, and fail with the reason if they do not
//! have it.

#![cfg(target_os = "linux")]

use crate::support;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::support::{pangea, run};
use rustix::process::{Pid, Signal, kill_process};

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// The lines above the rows of the round trips: a title, the names, and a separator.
const TITLE_LINES: usize = 3;

/// Allows one lab at a time: a lab that starts removes the remains of killed ones.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab in a separate process.
struct Up {
    process: Child,
    lab: String,
}

impl Up {
    fn start(options: &[&str]) -> Self {
        let mut command = Command::new(pangea());
        let mut process =
            command.args(["lab", "up"]).args(options).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stdout.as_mut().unwrap());
        let mut lines = said.lines().map_while(Result::ok);
        let first = lines.next().expect("it says why on stderr: a lab takes root");
        assert!(lines.any(|line| line.starts_with("Ctrl-C ends the lab")), "{first}");
        let lab = first.strip_prefix("lab ").expect("the lab's name").to_owned();
        Self { process, lab }
    }

    /// Sends a request to it from another process.
    fn ask(&self, words: &[&str]) -> Output {
        run(&[&["lab", words[0], "--lab", &self.lab], &words[1..]].concat())
    }

    fn reported(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output));
        text(&output)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Returns the number of its namespaces.
    fn remains(&self) -> usize {
        let entries = std::fs::read_dir("/run/netns").unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(&format!("pangea-{}-", self.lab))).count()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // A failed test ends its lab, too.
        let _ = kill_process(self.pid(), Signal::TERM);
        let _ = self.process.wait();
    }
}

#[test]
fn a_lab_is_made_used_changed_and_ended() {
    let _alone = alone();
    let mut up = Up::start(&["--regions", "us-east,eu-west,ap-northeast"]);
    assert_eq!(up.remains(), 3);
    let region =
        up.reported(&["run", "us-east", "--", "sh", "-c", "echo $LAB_REGION $LAB_EU_WEST"]);
    assert_eq!(region, "us-east 10.86.2.1\n");
    let output = up.ask(&["run", "us-east", "--", "sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output));
    up.reported(&["cut", "us-east", "eu-west"]);
    up.reported(&["rtt", "us-east", "ap-northeast", "33"]);
    let status = up.reported(&["status"]);
    let row = |name: &str| -> Vec<String> {
        let round_trips = status.lines().skip_while(|line| *line != "round trips in ms");
        let mut rows =
            round_trips.skip(TITLE_LINES).map(|line| line.split_whitespace().map(str::to_owned));
        rows.find_map(|mut row| (row.next()? == name).then(|| row.collect())).unwrap()
    };
    assert_eq!(row("us-east"), ["cut", "33"], "{status}");
    assert_eq!(row("ap-northeast"), ["33", "201"], "{status}");
    up.reported(&["heal"]);
    up.reported(&["isolate", "eu-west"]);
    let json: serde_json::Value =
        serde_json::from_str(&up.reported(&["status", "--json"])).expect("JSON");
    let links = json["wide_area"]["links"].as_array().unwrap();
    assert_eq!(links.iter().filter(|link| link["is_cut"] == true).count(), 4);
    let wrong = [
        (&["cut", "us-east", "atlantis"][..], 2, "unknown region atlantis"),
        (&["run", "atlantis", "--", "true"], 2, "unknown region atlantis"),
        (&["run", "us-east", "--", "/no/program"], 1, "can't run /no/program"),
        (&["rtt", "us-east", "eu-west", "1e9"], 2, "too long"),
    ];
    for (words, code, part) in wrong {
        let output = up.ask(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output));
        assert!(text(&output).contains(part), "{words:?}: {}", text(&output));
    }
    // Processes in a region end with the lab.
    let command = ["lab", "run", "--lab", &up.lab, "us-east", "--", "sleep", "1000"];
    let mut sleep = Command::new(pangea()).args(command).spawn().unwrap();
    support::wait_until("the program has started", || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", sleep.id()));
        name.is_ok_and(|name| name == "sleep\n")
    });
    kill_process(up.pid(), Signal::TERM).unwrap();
    assert_eq!(up.process.wait().unwrap().code(), Some(0));
    assert_eq!(up.remains(), 0);
    assert!(!sleep.wait().unwrap().success(), "it was ended");
    assert_eq!(up.ask(&["status"]).status.code(), Some(2));
}

#[test]
fn what_a_killed_lab_leaves_is_cleared() {
    let _alone = alone();
    let mut up = Up::start(&["--regions", "2", "--rtt", "1"]);
    up.process.kill().unwrap();
    up.process.wait().unwrap();
    assert_eq!(up.remains(), 2);
    let output = run(&["lab", "clear"]);
    assert!(text(&output).contains(&up.lab), "{}", text(&output));
    assert_eq!(up.remains(), 0);
}

#[test]
fn what_can_not_be_is_refused_before_anything_is_made() {
    let wrong = [
        (
            &["--regions", "us-east,atlantis"][..],
            "the distance to region \"atlantis\" is not known: add --rtt",
        ),
        (&["--regions", "us-east"], "from 2 to 32 regions, not 1"),
        (&["--regions", "us-east,us-east"], "us-east is listed twice"),
        (&["--regions", "a/b,c", "--rtt", "1"], "not a valid region name"),
        (&["--rtt", "99999999"], "too long"),
        (&["--rtt=-1"], "must be a number of milliseconds"),
        (&["--bandwidth", "0"], "must be from 0.001"),
        (&["--queue", "9"], "--bandwidth"),
        (&["--loss", "101"], "from 0 to 1"),
        (&["--mtu", "100"], "from 576 to 65000"),
    ];
    for (options, part) in wrong {
        let output = run(&[&["lab", "up"], options].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", text(&output));
        assert!(text(&output).contains(part), "{options:?}: {}", text(&output));
    }
    // Root by name, but without its capabilities, as in most containers.
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all"])
        .arg(pangea())
        .args(["lab", "up"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("sudo pangea lab"), "{}", text(&output));
}
