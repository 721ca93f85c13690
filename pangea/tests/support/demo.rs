//! A demo in a separate process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::pangea;

/// A running demo, and its output.
pub struct Demo {
    /// The process.
    pub process: Child,
    /// The output.
    pub stdout: BufReader<ChildStdout>,
}

impl Demo {
    /// Starts a demo with its temporary files in `directory` and an empty stdin.
    pub fn start(directory: &Path, arguments: &[&str]) -> Self {
        Self::start_with(directory, arguments, |_| {})
    }

    /// Starts a demo that runs a script, with its stderr in a pipe.
    pub fn start_script(directory: &Path, arguments: &[&str], script: &str) -> Self {
        let pipes = |command: &mut Command| {
            command.stdin(Stdio::piped()).stderr(Stdio::piped());
        };
        let mut demo = Self::start_with(directory, arguments, pipes);
        // The pipe is closed at the end of the script. A demo that rejects its arguments may have
        // exited already.
        let _ = demo.process.stdin.take().unwrap().write_all(script.as_bytes());
        demo
    }

    /// Starts a demo that executes the text written to its stdin.
    pub fn start_piped(directory: &Path, arguments: &[&str]) -> (Self, ChildStdin) {
        let piped = |command: &mut Command| {
            command.stdin(Stdio::piped());
        };
        let mut demo = Self::start_with(directory, arguments, piped);
        let stdin = demo.process.stdin.take().unwrap();
        (demo, stdin)
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

    /// Reads lines until there was a URL for each of `count` regions.
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

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // This fails only if the process has already exited, as it should have.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
