//! The processes in a namespace, and how they are ended.
//!
//! A process belongs to a region if its network namespace is the region's. It does not matter how
//! it was started, or whether it has left its process group, its session and its parent. The
//! kernel's parent-death signal would not suffice: it ends a process with the thread that started
//! it, and does not reach grandchildren.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::LabError;

/// The time for all processes together to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// The time for killed processes to end.
const KILL: Duration = Duration::from_secs(5);

/// The maximum number of searches for processes that start others while they are being killed.
const ROUNDS_MAX: usize = 100;

/// The identity of a namespace: two files with the same device and inode are the same namespace.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::stat(path).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// The processes in any of these namespaces, except this one.
fn within(namespaces: &[PathBuf]) -> Result<Vec<Pid>, LabError> {
    let wanted: Vec<(u64, u64)> = namespaces.iter().filter_map(|path| identity(path)).collect();
    let entries =
        fs::read_dir("/proc").map_err(|error| LabError::failed("can't read /proc", error))?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_within = |pid: &Pid| {
        // A process that has ended in the meantime is in no namespace.
        let own = identity(&PathBuf::from(format!("/proc/{}/ns/net", pid.as_raw_nonzero())));
        own.is_some_and(|own| wanted.contains(&own))
    };
    let pids = pids.filter_map(Pid::from_raw).filter(|pid| *pid != getpid());
    Ok(pids.filter(is_within).collect())
}

/// Ends all processes in these namespaces, with SIGTERM first. Returns the number of processes.
pub(crate) fn end_all(namespaces: &[PathBuf]) -> Result<usize, LabError> {
    let mut ended = 0;
    for round in 0..ROUNDS_MAX {
        let found = within(namespaces)?;
        if found.is_empty() {
            return Ok(ended);
        }
        // A pidfd refers to this process, never to a later one with the same id.
        let mut alive: Vec<OwnedFd> =
            found.iter().filter_map(|pid| pidfd_open(*pid, PidfdFlags::empty()).ok()).collect();
        if round == 0 {
            ended = alive.len();
            tell(&alive, Signal::TERM);
            wait_until_gone(&mut alive, GRACE)?;
        }
        tell(&alive, Signal::KILL);
        wait_until_gone(&mut alive, KILL)?;
    }
    Err(LabError::Failed("some processes of the lab's regions did not end".to_owned()))
}

fn tell(alive: &[OwnedFd], signal: Signal) {
    for process in alive {
        // The signal fails if the process has ended, which the caller waits for anyway.
        let _ = pidfd_send_signal(process, signal);
    }
}

/// Waits until the processes have ended, for at most `most`. Those that have not remain in `alive`.
fn wait_until_gone(alive: &mut Vec<OwnedFd>, most: Duration) -> Result<(), LabError> {
    let end = Instant::now() + most;
    while !alive.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let mut watched: Vec<PollFd<'_>> =
            alive.iter().map(|process| PollFd::new(process, PollFlags::IN)).collect();
        let left = Timespec::try_from(left).expect("the time is a few seconds");
        match poll(&mut watched, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(LabError::failed("can't wait for processes", error)),
        }
        let mut is_alive = watched.iter().map(|it| it.revents().is_empty()).collect::<Vec<_>>();
        alive.retain(|_| is_alive.remove(0));
    }
    Ok(())
}
