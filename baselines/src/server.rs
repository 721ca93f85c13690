//! A server process: its start, supervision and end.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal,
    waitid,
};

use crate::failure::Failure;
use crate::group;
use crate::program::last_lines;
use crate::usage;

/// Timeout for a clean shutdown of a server.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// Timeout for an immediate shutdown of a server.
const QUICK_DEADLINE: Duration = Duration::from_secs(5);
/// The polling interval during a shutdown.
const LOOK: Duration = Duration::from_millis(20);
/// Timeout for a killed server to end, because it first completes its writes.
const KILL_DEADLINE: Duration = Duration::from_secs(30);
/// The time for which the list of a paused server's processes is reused. Finding them takes longer
/// the more processes the machine has.
const FAMILY_FRESH: Duration = Duration::from_secs(1);

/// The signals that end a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signals {
    /// Signal for a clean shutdown.
    pub clean: Signal,
    /// Signal for an immediate shutdown of the server and its children, regardless of its data.
    pub quick: Signal,
}

/// A running server. Dropping it shuts it down immediately.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its kind and place, for errors.
    pub name: String,
    child: Child,
    log: PathBuf,
    signals: Signals,
    family: Option<Family>,
}

/// A server and its child processes. A pidfd refers to its process, never to a later one with the
/// same id.
#[derive(Debug)]
struct Family {
    processes: Vec<OwnedFd>,
    found: Instant,
}

impl Family {
    /// Sends a signal to all processes.
    fn tell(&self, signal: Signal) {
        for process in &self.processes {
            // The signal fails if the process has ended.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    fn is_gone(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_gone = |process: &OwnedFd| {
            poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)) == Ok(1)
        };
        self.processes.iter().all(is_gone)
    }
}

impl Server {
    /// Starts a server in its own process group, because this process handles Ctrl-C.
    pub fn start(
        mut command: Command,
        name: String,
        log: &Path,
        signals: Signals,
    ) -> Result<Self, Failure> {
        use std::os::unix::process::CommandExt;
        let cant = |error| Failure::failed(format!("can't start {name}"), error);
        // A restarted server appends to its log.
        let file = File::options().create(true).append(true).open(log).map_err(cant)?;
        command.stdout(file.try_clone().map_err(cant)?).stderr(file).process_group(0);
        let child = command.spawn().map_err(cant)?;
        Ok(Self { name, child, log: log.to_owned(), signals, family: None })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the server has ended by itself, with the end of its output.
    pub fn is_running(&self) -> Result<(), Failure> {
        if !self.has_ended() {
            return Ok(());
        }
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = last_lines(&String::from_utf8_lossy(&said));
        Err(Failure::failed(format!("{} exited", self.name), said))
    }

    /// Shuts the server down cleanly. A timeout is an error, and is followed by an immediate
    /// shutdown.
    pub async fn stop(self) -> Result<(), Failure> {
        self.is_running()?;
        self.tell(self.signals.clean);
        let deadline = Instant::now() + STOP_DEADLINE;
        while !self.has_ended() {
            if Instant::now() > deadline {
                let seconds = STOP_DEADLINE.as_secs();
                return Err(Failure::Failed(format!(
                    "{} did not stop within {seconds} s",
                    self.name
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Kills the server and its child processes with SIGKILL, as a power loss would. Returns when
    /// none of them remains.
    ///
    /// # Errors
    /// When one of them does not end.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        let family = self.find_family();
        family.tell(Signal::KILL);
        let deadline = Instant::now() + KILL_DEADLINE;
        while !family.is_gone() {
            if Instant::now() > deadline {
                return Err(Failure::Failed(format!(
                    "{} was killed but is still running",
                    self.name
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Pauses the server and its child processes with SIGSTOP, until they are resumed.
    pub fn pause(&mut self) {
        match &self.family {
            Some(family) if family.found.elapsed() < FAMILY_FRESH => family.tell(Signal::STOP),
            Some(_) | None => {
                let family = self.find_family();
                family.tell(Signal::STOP);
                self.family = Some(family);
            }
        }
    }

    /// Resumes all paused processes.
    pub fn resume(&self) {
        if let Some(family) = &self.family {
            family.tell(Signal::CONT);
        }
    }

    /// The process and its children. The process is stopped first, so that it can't start children
    /// that would be missed.
    fn find_family(&self) -> Family {
        if !self.has_ended() {
            self.tell(Signal::STOP);
        }
        let children = usage::children(self.pid()).into_iter().map(|(pid, _)| pid.cast_signed());
        let all = std::iter::once(Some(self.process())).chain(children.map(Pid::from_raw));
        let open = |pid: Option<Pid>| pidfd_open(pid?, PidfdFlags::empty()).ok();
        Family { processes: all.filter_map(open).collect(), found: Instant::now() }
    }

    /// Whether the server has ended. It remains a zombie, so that its process id is not reused.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.process()), options), Ok(None))
    }

    /// Blocks this thread until the server has ended, for at most `time`.
    fn wait_at_most(&self, time: Duration) {
        let Ok(process) = pidfd_open(self.process(), PidfdFlags::empty()) else { return };
        let time = Timespec::try_from(time).expect("seconds");
        // The next step is the same whether it has ended or not.
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time));
    }

    fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn tell(&self, signal: Signal) {
        // It is not an error if the server has just ended.
        let _ = kill_process(self.process(), signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A paused server can't shut down.
        self.resume();
        if !self.has_ended() {
            self.tell(self.signals.quick);
            self.wait_at_most(QUICK_DEADLINE);
        }
        // Remaining child processes are killed too. The zombie still reserves the process group's
        // id.
        group::kill(self.process());
        let _ = self.child.wait();
    }
}

/// Shuts all servers down concurrently.
pub(crate) async fn stop_all(servers: Vec<Server>) -> Result<(), Failure> {
    let stopped = futures_util::future::join_all(servers.into_iter().map(Server::stop)).await;
    stopped.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNALS: Signals = Signals { clean: Signal::TERM, quick: Signal::KILL };

    fn shell(script: &str, log: &Path) -> Server {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Server::start(command, "sh".to_owned(), log, SIGNALS).expect("a shell starts")
    }

    fn is_there(pid: u32) -> bool {
        Path::new("/proc").join(pid.to_string()).exists()
    }

    #[tokio::test]
    async fn a_server_that_is_stopped_or_dropped_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let stopped = shell("sleep 1000 & wait", &dir.path().join("a"));
        let dropped = shell("trap '' TERM; while :; do sleep 1000; done", &dir.path().join("b"));
        let pids = [stopped.pid(), dropped.pid()];
        assert!(pids.into_iter().all(is_there));
        stopped.stop().await.expect("the server stops");
        drop(dropped);
        assert!(!pids.into_iter().any(is_there));
    }

    /// The state in `/proc`, or X if there is no such process.
    fn state(pid: u32) -> char {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("State:"));
        line.and_then(|line| line.trim().chars().next()).unwrap_or('X')
    }

    #[tokio::test]
    async fn a_server_is_stopped_and_killed_with_what_it_has_started() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut server = shell("sleep 1000 & sleep 1001 & wait", &dir.path().join("a"));
        let children = || usage::children(server.pid()).into_iter().map(|(pid, _)| pid);
        while children().count() < 2 {
            tokio::task::yield_now().await;
        }
        let all: Vec<u32> = children().chain([server.pid()]).collect();
        server.pause();
        while all.iter().any(|pid| state(*pid) != 'T') {
            tokio::task::yield_now().await;
        }
        server.resume();
        while all.iter().any(|pid| state(*pid) == 'T') {
            tokio::task::yield_now().await;
        }
        server.kill().await.expect("the server stops");
        assert!(server.is_running().is_err());
        assert!(all.into_iter().all(|pid| ['Z', 'X'].contains(&state(pid))));
    }

    #[tokio::test]
    async fn a_server_that_ended_by_itself_says_why() {
        let dir = tempfile::tempdir().expect("a directory");
        let server = shell("echo no such disk >&2; exit 7", &dir.path().join("log"));
        while !server.has_ended() {
            tokio::task::yield_now().await;
        }
        let error = server.is_running().unwrap_err().to_string();
        assert!(error.contains("no such disk"), "{error}");
        assert!(server.stop().await.is_err());
    }
}
