//! Resource usage of a server, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

/// The totals of one place's server, including its children.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time since the process started, in microseconds.
    pub cpu_us: f64,
    /// Resident memory in bytes; memory shared with its children is counted once.
    pub memory_bytes: u64,
}

/// The resource usage of a baseline's servers, for callers without access to the baseline itself.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Vec<u32>>>);

impl Meter {
    /// Sets the process ids of the servers.
    pub(crate) fn set(&self, pids: Vec<u32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pids;
    }

    /// The usage of each place's server so far. A killed server that has not been restarted has
    /// zero usage.
    pub fn usage(&self) -> Vec<Usage> {
        let pids = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        pids.into_iter().map(Usage::of).collect()
    }
}

/// A process, as described in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    parent: u32,
    group: u32,
    /// CPU time since the process started, in microseconds.
    pub cpu_us: f64,
    /// CPU time of its children that have ended.
    cpu_us_of_ended: f64,
    /// Resident memory in bytes, including shared memory.
    pub memory_bytes: u64,
}

impl Process {
    /// Reads the process with this id, or this process.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn read(pid: Option<u32>) -> std::io::Result<Self> {
        let pid = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let unknown = || {
            std::io::Error::other(format!("/proc/{pid}/stat does not have the format of proc(5)"))
        };
        Self::parse(&stat).ok_or_else(unknown)
    }

    /// Parses the fields of `stat` in proc(5): times are in ticks, memory is in pages.
    fn parse(stat: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which may contain any characters.
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let ticks_per_sec = rustix::param::clock_ticks_per_second() as f64;
        let time =
            |user, system| Some((number(user)? + number(system)?) as f64 * 1e6 / ticks_per_sec);
        Some(Self {
            parent: u32::try_from(number(4)?).ok()?,
            group: u32::try_from(number(5)?).ok()?,
            cpu_us: time(14, 15)?,
            cpu_us_of_ended: time(16, 17)?,
            memory_bytes: number(24)? * rustix::param::page_size() as u64,
        })
    }
}

/// The peak resident memory of a process in bytes, if the kernel reports it.
pub fn memory_bytes_peak(pid: u32) -> Option<u64> {
    memory_kb(pid).get("VmHWM").map(|kb| kb * 1024)
}

/// CPU time of the threads of a process in microseconds, by thread name, if the kernel reports it.
/// Threads that have ended are not included.
pub fn cpu_us_by_thread(pid: u32) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for entry in entries {
        let read = |file| fs::read_to_string(entry.path().join(file)).ok();
        let (Some(name), Some(times)) = (read("comm"), read("schedstat")) else { continue };
        // The first field is the time on a CPU in nanoseconds.
        let ns = times.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
        *all.entry(name.trim().to_owned()).or_default() += ns.unwrap_or(0.0) / 1e3;
    }
    all
}

impl Usage {
    /// The usage of a process and its children; zero if there is no such process.
    pub(crate) fn of(pid: u32) -> Self {
        let Ok(root) = Process::read(Some(pid)) else { return Self::default() };
        let mut cpu_us = root.cpu_us + root.cpu_us_of_ended;
        let (mut own, mut shared) = (0, 0);
        let children = children(pid);
        for pid in std::iter::once(pid).chain(children.iter().map(|(pid, _)| *pid)) {
            let memory = memory_kb(pid);
            own += memory.get("RssAnon").copied().unwrap_or(0);
            shared = memory.get("RssShmem").copied().unwrap_or(0).max(shared);
        }
        cpu_us += children.iter().map(|(_, child)| child.cpu_us).sum::<f64>();
        Self { cpu_us, memory_bytes: (own + shared) * 1024 }
    }
}

/// The children of a process, with their process ids.
pub(crate) fn children(parent: u32) -> Vec<(u32, Process)> {
    all().filter(|(_, process)| process.parent == parent).collect()
}

/// The process ids of a process group.
pub(crate) fn group(leader: u32) -> Vec<u32> {
    all().filter(|(_, process)| process.group == leader).map(|(pid, _)| pid).collect()
}

fn all() -> impl Iterator<Item = (u32, Process)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, Process::read(Some(pid)).ok()?)))
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
    fn a_process_is_read_whatever_its_name() {
        let rest = "S 5 1 1 0 -1 4194560 1 2 3 4 250 50 30 40 20 0 9 0 555 1000000 25 18446744";
        let process =
            Process::parse(&format!("77 (a ) b (c)) {rest}")).expect("the line can be parsed");
        let us_per_tick = 1e6 / rustix::param::clock_ticks_per_second() as f64;
        assert_eq!((process.parent, process.group), (5, 1));
        assert_eq!(process.cpu_us, 300.0 * us_per_tick);
        assert_eq!(process.cpu_us_of_ended, 70.0 * us_per_tick);
        assert_eq!(process.memory_bytes, 25 * rustix::param::page_size() as u64);
        assert_eq!(Process::parse("77 (a) S 1"), None);
        assert!(Process::read(Some(u32::MAX)).is_err());
    }

    #[test]
    fn this_process_takes_time_and_memory() {
        let before = Usage::of(std::process::id());
        assert!(before.memory_bytes > 100_000);
        while Usage::of(std::process::id()).cpu_us <= before.cpu_us {}
        assert_eq!(Usage::of(u32::MAX), Usage::default());
        let peak = memory_bytes_peak(std::process::id()).expect("this process has memory");
        assert!(peak > 100_000 && memory_bytes_peak(u32::MAX).is_none());
        assert!(cpu_us_by_thread(u32::MAX).is_empty());
        let threads = cpu_us_by_thread(std::process::id());
        assert!(threads.values().any(|us| *us > 0.0), "{threads:?}");
    }
}
