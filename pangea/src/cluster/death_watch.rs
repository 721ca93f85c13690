//! Noticing that the process of a node has ended by itself.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::member::{ProcessHandle, how_it_ended, why_it_ended};

/// Watches the processes of one node, one after the other.
#[derive(Debug)]
pub struct DeathWatch {
    name: String,
    log: PathBuf,
    process: ProcessHandle,
    /// The last process whose end was returned.
    told: Option<u32>,
}

impl DeathWatch {
    pub(super) fn new(name: &str, log: PathBuf, process: ProcessHandle) -> Self {
        Self { name: name.to_owned(), log, process, told: None }
    }

    /// Returns the name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Describes the end of the process, once, if it ended without being stopped or killed by this
    /// program.
    pub fn ended(&mut self) -> Option<String> {
        // This program forgets the number before it ends a process.
        let number = self.process.get().filter(|number| self.told != Some(*number))?;
        let status = end_of(number)?;
        self.told = Some(number);
        let how = status.map_or_else(|| "has ended".to_owned(), how_it_ended);
        Some(format!("the node in {} {how}: {}", self.name, why_it_ended(&self.log, status)))
    }
}

/// Returns the exit status of a child that has ended, if it is still known; `None` if it runs. The
/// status stays for the owner of the process.
fn end_of(number: u32) -> Option<Option<ExitStatus>> {
    let pid = Pid::from_raw(number.cast_signed())?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(pid), options) {
        Ok(None) => None,
        Ok(Some(end)) => {
            // As the system encodes both.
            let raw = end.terminating_signal().or(end.exit_status().map(|code| code << 8));
            Some(raw.map(ExitStatus::from_raw))
        }
        // Its owner has asked for the status before.
        Err(Errno::CHILD) => Some(None),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_end_of_a_process_is_told_once_and_its_status_stays() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let process = ProcessHandle::default();
        let mut watch = DeathWatch::new("eu", log.path().to_owned(), process.clone());
        assert_eq!(watch.ended(), None, "it was not started");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        process.set(Some(child.id()));
        assert_eq!(watch.ended(), None, "it runs");
        child.kill().unwrap();
        let ended = loop {
            if let Some(ended) = watch.ended() {
                break ended;
            }
            std::thread::yield_now();
        };
        let killed = "the node in eu was terminated by signal 9 (SIGKILL): someone killed it";
        assert!(ended.starts_with(killed), "{ended}");
        assert_eq!(watch.ended(), None, "it was told");
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        // Another process, whose owner asks first.
        std::fs::write(log.path(), "pangea: the disk is full\n").unwrap();
        let mut child = Command::new("false").spawn().unwrap();
        child.wait().unwrap();
        process.set(Some(child.id()));
        let full = "the node in eu has ended: the disk is full";
        assert_eq!(watch.ended().as_deref(), Some(full));
        process.set(None);
        assert_eq!(watch.ended(), None, "this program has stopped it");
    }
}
