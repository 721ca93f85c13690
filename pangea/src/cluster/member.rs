//! The process of one node.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pangea_node::client::Client;
use pangea_node::config::Config;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::Plan;
use super::death_watch::DeathWatch;
use crate::failure::Failure;
use crate::start::{READY, UP};

/// The time limit for a node to start serving, including the recovery from its log.
const READY_DEADLINE: Duration = Duration::from_secs(120);
/// The time limit for a clean stop, after which the node is killed: longer than `stop_s`.
const STOP_DEADLINE: Duration = Duration::from_secs(70);
/// The length of the end of a node's log that is searched for the reason of its exit.
const LOG_END_LEN: usize = 4 << 10;

/// One node, running or not.
pub struct Member {
    /// The node's configuration.
    pub config: Config,
    /// The program of the next start: another release of this one. `None` for this program.
    pub program: Option<PathBuf>,
    name: String,
    directory: PathBuf,
    is_metered: bool,
    /// The command prefix that runs the process in its own environment, as a network namespace.
    command_prefix: Vec<OsString>,
    child: Option<Child>,
    process_handle: ProcessHandle,
    /// The length of the log when the process was started.
    log_len: u64,
}

/// A shared handle to the id of a node's process. It stays correct when the node is killed and
/// restarted.
#[derive(Clone, Debug, Default)]
pub struct ProcessHandle(Arc<AtomicU32>);

impl ProcessHandle {
    /// Returns the process id, or `None` if no process is running.
    pub fn get(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|number| *number != 0)
    }

    pub(super) fn set(&self, number: Option<u32>) {
        self.0.store(number.unwrap_or(0), Ordering::Relaxed);
    }
}

impl Member {
    /// Creates a node that is not running yet, with its files under `directory`.
    pub fn new(config: Config, directory: &Path, plan: &Plan) -> Self {
        let name = plan.name_of(config.node.index());
        let directory = directory.join(&name);
        let placement = plan.placements.get(plan.region_of(config.node.index()));
        let command_prefix =
            placement.map(|placement| placement.command_prefix.clone()).unwrap_or_default();
        let (is_metered, process_handle) = (plan.is_metered, ProcessHandle::default());
        Self {
            config,
            program: None,
            name,
            directory,
            is_metered,
            command_prefix,
            child: None,
            process_handle,
            log_len: 0,
        }
    }

    /// Returns a handle that always has the id of the current process.
    pub fn process_handle(&self) -> ProcessHandle {
        self.process_handle.clone()
    }

    /// Returns the name of the node: its region, with its shard if tables are partitioned.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL for PostgreSQL clients.
    pub fn sql_url(&self) -> String {
        format!("postgres://pangea@{}/pangea", self.config.me().sql)
    }

    /// Returns the same address for a client in this process.
    pub fn sql_config(&self) -> tokio_postgres::Config {
        self.sql_url().parse().expect("the URL is valid")
    }

    /// Returns the process id, if it is running.
    pub fn pid(&mut self) -> Option<u32> {
        self.exit_status().is_none().then(|| self.child.as_ref()?.id()).flatten()
    }

    /// Returns the exit status of the process, if it has exited.
    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Describes the exit of the process, with its last message, if it exited without being stopped
    /// by this program.
    pub fn ended_by_itself(&mut self) -> Option<String> {
        let status = self.exit_status()?;
        Some(self.ended(status))
    }

    fn ended(&self, status: ExitStatus) -> String {
        let how = how_it_ended(status);
        let why = why_it_ended(&self.log_path(), Some(status));
        format!("the node in {} {how}: {why}", self.name())
    }

    /// Starts the process and waits until it serves.
    ///
    /// # Errors
    /// If it does not; the error contains the node's own reason.
    pub async fn start(&mut self) -> Result<(), Failure> {
        self.start_with(&[]).await
    }

    /// Starts the process of a node whose data are lost or damaged. It fetches all data from the
    /// other nodes.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    #[cfg(feature = "planted")]
    pub async fn start_replacing(&mut self) -> Result<(), Failure> {
        self.start_with(&["--replace"]).await
    }

    async fn start_with(&mut self, arguments: &[&str]) -> Result<(), Failure> {
        assert!(self.pid().is_none(), "the node is already running");
        let region = self.name().to_owned();
        let cant = |why: &dyn std::fmt::Display| {
            Failure::Failed(format!("the node in {region} did not start: {why}"))
        };
        self.log_len = std::fs::metadata(self.log_path()).map_or(0, |log| log.len());
        let mut child = self.spawn(arguments).map_err(|error| cant(&error))?;
        let stdout = child.stdout.take().expect("stdout is a pipe");
        self.process_handle.set(child.id());
        self.child = Some(child);
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        let ready = tokio::time::timeout(READY_DEADLINE, stdout.read_line(&mut line)).await;
        match ready {
            Ok(Ok(_)) if [READY, UP].iter().any(|word| line.starts_with(word)) => Ok(()),
            Ok(Ok(_)) => {
                // It has closed its stdout, so it has exited or is about to.
                let ended = tokio::time::timeout(STOP_DEADLINE, self.wait()).await;
                self.kill().await;
                match ended.ok().flatten().filter(|status| status.signal().is_some()) {
                    Some(status) => Err(cant(&format!("it {}", how_it_ended(status)))),
                    None => Err(cant(&self.last_words())),
                }
            }
            Ok(Err(error)) => Err(cant(&error)),
            Err(_) => {
                self.kill().await;
                Err(cant(&format!("it was not ready within {} s", READY_DEADLINE.as_secs())))
            }
        }
    }

    async fn wait(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.wait().await.ok()
    }

    fn spawn(&self, arguments: &[&str]) -> std::io::Result<Child> {
        std::fs::create_dir_all(&self.directory)?;
        let config = self.directory.join("node.toml");
        std::fs::write(&config, self.config.to_toml())?;
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let program = match &self.program {
            Some(program) => program.clone().into_os_string(),
            None => std::env::current_exe()?.into_os_string(),
        };
        let mut words = self.command_prefix.iter().chain([&program]);
        Command::new(words.next().expect("there is at least the program"))
            .args(words)
            .args(["start", "--stop-with-stdin", "--config"])
            .arg(&config)
            .args(self.is_metered.then_some("--meter"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// Returns the path of the node's log.
    pub fn log_path(&self) -> PathBuf {
        self.directory.join("node.log")
    }

    /// Returns the log of the current process.
    pub fn log_since_start(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        let start = usize::try_from(self.log_len).unwrap_or(usize::MAX).min(log.len());
        String::from_utf8_lossy(&log[start..]).into_owned()
    }

    /// Returns a reader of the log of the current process and of later ones.
    pub fn log_tail(&self) -> LogTail {
        let (name, path) = (self.name().to_owned(), self.log_path());
        LogTail { name, path, at: self.log_len }
    }

    /// Returns the last error message in the log.
    fn last_words(&self) -> String {
        last_words(&self.log_path())
    }

    /// Returns a watch that notices the end of the process, and of later ones.
    pub fn death_watch(&self) -> DeathWatch {
        DeathWatch::new(self.name(), self.log_path(), self.process_handle())
    }

    /// Connects a native client to the node.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn client(&self) -> Result<Client, Failure> {
        let client = Client::connect(self.config.me().peer, &self.config.cluster).await;
        client.map_err(|error| Failure::failed(self.name(), error))
    }

    /// Kills the process with SIGKILL, as a power failure would, and waits until it has exited.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.process_handle.set(None);
            // This fails only if the process has already exited.
            let _ = child.kill().await;
        }
    }

    /// Stops the process with SIGSTOP, until [`Self::resume`]. Does nothing if the process has
    /// exited.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Lets the process continue.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Flips a bit of a row in the memory of the process.
    #[cfg(feature = "planted")]
    pub fn flip(&mut self) {
        self.signal(Signal::USR1);
    }

    fn signal(&mut self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // The child has not been waited for, so its id has not been reused. This fails only if
            // it has exited.
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops the process cleanly, or kills it after a time limit. Does nothing if the process has
    /// exited.
    ///
    /// # Errors
    /// If it failed or had to be killed.
    pub async fn stop(&mut self) -> Result<(), Failure> {
        self.resume();
        let Some(mut child) = self.child.take() else { return Ok(()) };
        self.process_handle.set(None);
        drop(child.stdin.take());
        let region = self.name();
        match tokio::time::timeout(STOP_DEADLINE, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(Failure::Failed(self.ended(status))),
            Ok(Err(error)) => Err(Failure::failed(format!("the node in {region}"), error)),
            Err(_) => {
                let _ = child.kill().await;
                let seconds = STOP_DEADLINE.as_secs();
                Err(Failure::Failed(format!(
                    "the node in {region} did not stop within {seconds} s and was killed"
                )))
            }
        }
    }
}

impl Drop for Member {
    /// Kills the process if it was not stopped, and waits until it has exited: it writes to a
    /// directory that may be about to be removed.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        self.process_handle.set(None);
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        // This fails only if the process has already exited; it then has no id.
        let _ = child.start_kill();
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = process {
            let time = Timespec::try_from(STOP_DEADLINE).expect("seconds");
            // Nothing more can be done if the process has not exited in time.
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time));
        }
    }
}

/// Reads a node's log while it grows.
#[derive(Debug)]
pub struct LogTail {
    name: String,
    path: PathBuf,
    /// The length of what was read.
    at: u64,
}

impl LogTail {
    /// Returns the name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the complete lines since the last call.
    pub fn lines(&mut self) -> Vec<String> {
        let mut new = Vec::new();
        let read = File::open(&self.path).and_then(|mut log| {
            log.seek(SeekFrom::Start(self.at))?;
            log.read_to_end(&mut new)
        });
        // A log that can't be read now is read the next time.
        let end = new.iter().rposition(|&byte| byte == b'\n').filter(|_| read.is_ok());
        let Some(end) = end else { return Vec::new() };
        self.at += end as u64 + 1;
        String::from_utf8_lossy(&new[..end]).lines().map(str::to_owned).collect()
    }
}

/// Explains why a node ended, by its exit status and its log.
pub(super) fn why_it_ended(log: &Path, status: Option<ExitStatus>) -> String {
    // A process that is killed logs nothing: the end of its log is about something else.
    match status.and_then(|status| status.signal()) == Some(Signal::KILL.as_raw()) {
        true => "someone killed it, or memory ran out".to_owned(),
        false => last_words(log),
    }
}

/// Returns the last error message in a log.
fn last_words(log: &Path) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    let end = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_END_LEN)..]);
    last_complaint(&end).unwrap_or("its log does not say why").to_owned()
}

/// A process ended by an external signal logs nothing, so the status is the only information.
pub(super) fn how_it_ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(_), _) => {
            format!("was terminated by {}", status.to_string().replace("signal: ", "signal "))
        }
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => format!("ended: {status}"),
    }
}

/// Returns the last line of a log that can explain an exit: the process's final message, or
/// otherwise a warning or an error. Other lines are not helpful.
fn last_complaint(log: &str) -> Option<&str> {
    let own = log.lines().rev().find_map(|line| line.strip_prefix("pangea: "));
    // The time comes first, then the level.
    let is_complaint =
        |line: &&str| matches!(line.split_whitespace().nth(1), Some("WARN" | "ERROR"));
    own.or_else(|| log.lines().rev().find(is_complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_what_was_well_is_no_reason() {
        let well = "2026-11-22T16:00:00.000000Z  INFO pangea_node::node: connected to node 1";
        let warned = "2026-11-22T16:00:01.000000Z  WARN pangea_node::log: the disk is slow";
        assert_eq!(last_complaint(well), None);
        assert_eq!(last_complaint(""), None);
        assert_eq!(last_complaint(&format!("{warned}\n{well}\n")), Some(warned));
        let own = format!("pangea: the disk is full\n{warned}\n");
        assert_eq!(last_complaint(&own), Some("the disk is full"));
    }

    #[test]
    fn the_end_is_a_signal_or_an_exit_code() {
        let of = |raw| how_it_ended(ExitStatus::from_raw(raw));
        assert_eq!(of(9), "was terminated by signal 9 (SIGKILL)");
        assert_eq!(of(3 << 8), "exited with code 3");
    }
}
