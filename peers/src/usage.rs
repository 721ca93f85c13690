//! What a server takes of the machine, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

/// Clock ticks a second, which Linux has fixed for what it says of processes.
const TICKS_PER_SEC: f64 = 100.0;

/// Totals of one place's server, with its children.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor time since it started, in microseconds.
    pub cpu_us: f64,
    /// Memory of its own, in bytes: what it shares with its children once.
    pub memory_bytes: u64,
}

/// One process, as `/proc` has it.
struct Process {
    parent: u32,
    ticks: u64,
    /// Of children that have ended.
    ticks_of_ended: u64,
}

impl Usage {
    /// What a process and its children took. Nothing where there is no such process.
    pub(crate) fn of(pid: u32) -> Self {
        let Some(root) = process(pid) else { return Self::default() };
        let (mut ticks, mut shared) = (root.ticks + root.ticks_of_ended, 0);
        let mut own = 0;
        for pid in std::iter::once(pid).chain(children(pid)) {
            let memory = memory_kb(pid);
            own += memory.get("RssAnon").copied().unwrap_or(0);
            shared = memory.get("RssShmem").copied().unwrap_or(0).max(shared);
        }
        for child in children(pid) {
            ticks += process(child).map_or(0, |child| child.ticks);
        }
        let cpu_us = ticks as f64 / TICKS_PER_SEC * 1e6;
        Self { cpu_us, memory_bytes: (own + shared) * 1024 }
    }
}

fn process(pid: u32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The line of `/proc/PID/stat`: the name, in parentheses, can hold anything.
fn parse_stat(line: &str) -> Option<Process> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        parent: u32::try_from(field(1)?).ok()?,
        ticks: field(11)? + field(12)?,
        ticks_of_ended: field(13)? + field(14)?,
    })
}

fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| process(*pid).is_some_and(|process| process.parent == parent)).collect()
}

fn memory_kb(pid: u32) -> BTreeMap<String, u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.split_whitespace().next()?.parse().ok()?))
    };
    status.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let line = "7 (a ) b) S 5 7 7 0 -1 0 1 2 3 4 10 20 30 40 20 0 1";
        let process = parse_stat(line).expect("it can be read");
        assert_eq!((process.parent, process.ticks, process.ticks_of_ended), (5, 30, 70));
    }

    #[test]
    fn this_process_takes_time_and_memory() {
        let before = Usage::of(std::process::id());
        assert!(before.memory_bytes > 100_000);
        while Usage::of(std::process::id()).cpu_us <= before.cpu_us {}
        assert_eq!(Usage::of(u32::MAX), Usage::default());
    }
}
