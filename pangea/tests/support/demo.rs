//! A demo as a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::pangea;

/// A demo that runs, and the lines that it prints.
pub struct Demo {
    /// The process.
    pub process: Child,
    /// What it prints.
    pub stdout: BufReader<ChildStdout>,
}

impl Demo {
    /// Starts a demo with its temporary files in `directory`, and nothing on its stdin.
    pub fn start(directory: &Path, arguments: &[&str]) -> Self {
        Self::start_with(directory, arguments, |_| {})
    }

    /// Starts a demo that does a script, with its stderr in a pipe too.
    pub fn start_script(directory: &Path, arguments: &[&str], script: &str) -> Self {
        let pipes = |command: &mut Command| {
            command.stdin(Stdio::piped()).stderr(Stdio::piped());
        };
        let mut demo = Self::start_with(directory, arguments, pipes);
        // Dropped with its end: the script has one. A demo that is refused may have gone already.
        let _ = demo.process.stdin.take().unwrap().write_all(script.as_bytes());
        demo
    }

    fn start_with(directory: &Path, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        // As from a terminal: under nohup SIGHUP is ignored, and children inherit that.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP")
            .arg(pangea())
            .arg("demo")
            .args(arguments)
            .env("TMPDIR", directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        change(&mut command);
        let mut process = command.spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Self { process, stdout }
    }

    /// Reads on until a line has a URL for each of `count` regions.
    pub fn urls(&mut self, count: usize) -> Vec<(String, String)> {
        let mut urls = Vec::new();
        while urls.len() < count {
            let line = self.line();
            if let [region, url] = line.split_whitespace().collect::<Vec<_>>()[..]
                && url.starts_with("postgres://")
            {
                urls.push((region.to_owned(), url.to_owned()));
            }
        }
        urls
    }

    /// Reads a line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the demo has ended");
        line
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Fails only where it has ended, as it should have.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
