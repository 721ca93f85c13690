//! Shared parts of the tests of the binary.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

pub mod demo;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Far longer than any condition takes to become true: a test that waits this long has failed.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the binary under test.
pub fn pangea() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_pangea"))
}

/// Runs the binary to completion.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(pangea()).args(arguments).output().unwrap()
}

/// Returns the processes whose command line refers to `directory`.
pub fn processes_of(directory: &Path) -> Vec<u32> {
    let directory = directory.to_str().unwrap();
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has just exited has no command line.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if line.contains(directory) && line.contains("start") {
            pids.push(pid);
        }
    }
    pids
}

/// Polls until a condition is true.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    wait_until_or(|| format!("{what}: not in {DEADLINE:?}"), is_so);
}

/// Polls until a condition is true, or fails with a reason. Other processes and files do not notify
/// anybody of changes.
pub fn wait_until_or(why: impl Fn() -> String, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{}", why());
        std::thread::sleep(Duration::from_millis(10));
    }
}
