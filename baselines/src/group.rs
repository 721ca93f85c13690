//! A process with all processes that it has started: its process group.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::usage;

/// The time for killed processes to end, because they first complete their writes.
const DEADLINE: Duration = Duration::from_secs(10);

/// Kills the process group led by `leader`, and blocks this thread until none of its processes
/// runs. The directory that they write to can then be removed.
///
/// The leader must not have been waited for, because its process id could then belong to another
/// process.
pub(crate) fn kill(leader: Pid) {
    // It is not an error if all have just ended.
    let _ = kill_process_group(leader, Signal::KILL);
    let deadline = Instant::now() + DEADLINE;
    // From now on none of them can start another.
    for pid in usage::group(leader.as_raw_nonzero().get().cast_unsigned()) {
        let Some(pid) = Pid::from_raw(pid.cast_signed()) else { continue };
        // A process that can't be opened has ended.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("seconds");
        // The next step is the same whether it has ended or not.
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left));
    }
}
