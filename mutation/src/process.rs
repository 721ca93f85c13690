//! Child processes with a limit of time, which end with this one.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit};

/// The memory of a child. A mutant may allocate without end.
const MEMORY_MAX: u64 = 8 << 30;
/// The time between two looks at a child.
const LOOK: Duration = Duration::from_millis(4);

/// Set by Ctrl-C.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens for Ctrl-C from now on.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn on_interrupt() -> io::Result<Self> {
        let stop = Self::default();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let flag = stop.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            let listening = runtime.and_then(|runtime| {
                use tokio::signal::unix::{SignalKind, signal};
                let _inside = runtime.enter();
                let signals = signal(SignalKind::interrupt());
                signals.map(|signals| (runtime, signals))
            });
            match listening {
                Err(error) => ready.send(Err(error)).expect("the starter waits"),
                Ok((runtime, mut signals)) => {
                    ready.send(Ok(())).expect("the starter waits");
                    runtime.block_on(signals.recv());
                    flag.0.store(true, Ordering::Relaxed);
                }
            }
        });
        is_ready.recv().expect("the thread answers")?;
        Ok(stop)
    }

    /// Returns whether all work must end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The end of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Exit code 0.
    Passed,
    /// Any other exit code, or a signal.
    Failed,
    /// It was killed at its limit.
    TimedOut,
    /// It was killed because of Ctrl-C.
    Stopped,
}

/// Limits the memory of all children from now on.
///
/// # Errors
/// If the system does not allow it.
pub fn limit_memory() -> io::Result<()> {
    let limit = Rlimit { current: Some(MEMORY_MAX), maximum: Some(MEMORY_MAX) };
    Ok(setrlimit(Resource::As, limit)?)
}

/// Runs a child in a process group of its own, so that Ctrl-C reaches only this process. Its output
/// replaces the contents of a file.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, limit: Duration, output: &Path, stop: &Stop) -> io::Result<End> {
    let file = File::create(output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
    let mut child = command.spawn()?;
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { End::Passed } else { End::Failed });
        }
        let end = match (stop.is_set(), Instant::now() >= until) {
            (true, _) => End::Stopped,
            (false, true) => End::TimedOut,
            (false, false) => {
                // The end of a child can't be waited for together with a time limit and Ctrl-C.
                std::thread::sleep(LOOK);
                continue;
            }
        };
        kill(&mut child)?;
        return Ok(end);
    }
}

fn kill(child: &mut Child) -> io::Result<()> {
    let group = Pid::from_child(child);
    // It may have ended since.
    let _ = kill_process_group(group, Signal::KILL);
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_passes_fails_or_is_killed_at_its_limit() {
        let output = std::env::temp_dir().join(format!("pangea-mutation-{}", std::process::id()));
        let shell = |script: &str, limit: Duration| {
            let mut command = Command::new("sh");
            run(command.args(["-c", script]), limit, &output, &Stop::default()).unwrap()
        };
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo a word", long), End::Passed);
        assert_eq!(std::fs::read_to_string(&output).unwrap(), "a word\n");
        assert_eq!(shell("exit 3", long), End::Failed);
        assert_eq!(shell("sleep 60 & wait", Duration::from_millis(100)), End::TimedOut);
        std::fs::remove_file(output).unwrap();
    }
}
