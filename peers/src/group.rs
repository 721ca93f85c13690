//! A process with all that it has started: those of its process group.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::usage;

/// How long killed processes may take to be gone: what they write is written first.
const DEADLINE: Duration = Duration::from_secs(10);

/// Kills a process that leads a group of its own, and the group, and waits on this thread until
/// none of them runs: so that the directory that they write to can be removed.
///
/// Nobody may have waited for the leader: its number would be another's.
pub(crate) fn kill(leader: Pid) {
    // That all have just ended is not an error.
    let _ = kill_process_group(leader, Signal::KILL);
    let deadline = Instant::now() + DEADLINE;
    // From here on none of them can start another.
    for pid in usage::group(leader.as_raw_nonzero().get().cast_unsigned()) {
        let Some(pid) = Pid::from_raw(pid.cast_signed()) else { continue };
        // One that can't be opened is gone.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("seconds");
        // Whether it has ended or not, what follows is the same.
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left));
    }
}
