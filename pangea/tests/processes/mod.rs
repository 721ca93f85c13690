//! Configuration files of clusters on this machine, and the processes of their nodes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The name of every cluster here.
pub const CLUSTER: &str = "faults";
/// The regions, with one node each.
pub const REGIONS: [&str; 3] = ["eu-west", "us-east", "ap-northeast"];
/// The emulated round trip between any two regions.
pub const ROUND_TRIP_MS: u32 = 50;

/// The addresses of one node.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The address for other nodes and native clients.
    pub peer: SocketAddr,
    /// The address for PostgreSQL clients.
    pub sql: SocketAddr,
}

/// Returns loopback addresses with ports that are currently free, two for each node.
pub fn free_addresses() -> Vec<Addresses> {
    let ports = pangea_baselines::free_ports(Ipv4Addr::LOCALHOST.into(), 2 * REGIONS.len());
    let ports = ports.expect("there are free ports on 127.0.0.1");
    ports.chunks_exact(2).map(|pair| Addresses { peer: pair[0], sql: pair[1] }).collect()
}

/// Returns the text of a node's configuration file. The data are in `data`, next to the file.
pub fn node_toml(node: usize, addresses: &[Addresses]) -> String {
    let mut text = format!(
        "cluster = \"{CLUSTER}\"\nprotocol = \"minerva\"\nnode = {node}\ndata_dir = \"data\"\n\
         durability = \"fsync\"\nworkers = 1\nlog_segment_bytes = 1048576\nregions = {REGIONS:?}\n"
    );
    for (id, (region, Addresses { peer, sql })) in REGIONS.iter().zip(addresses).enumerate() {
        text += &format!(
            "\n[[nodes]]\nid = {id}\nregion = \"{region}\"\npeer = \"{peer}\"\nsql = \"{sql}\"\n"
        );
    }
    for (at, b) in REGIONS.iter().enumerate() {
        for a in &REGIONS[..at] {
            let between = [a, b];
            text += &format!("\n[[round_trips]]\nbetween = {between:?}\nms = {ROUND_TRIP_MS}\n");
        }
    }
    text + "\n[wan]\n"
}

/// A `pangea start` process, which is killed when this is dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a node with the file `node.toml` of a directory. Its log is appended to `node.log`
    /// there. The node stops on its own when this process ends in any way.
    pub fn spawn(directory: &Path) -> Self {
        Self::spawn_with(directory, &[])
    }

    /// Starts a node that replaces one whose data are lost.
    pub fn spawn_replacing(directory: &Path) -> Self {
        Self::spawn_with(directory, &["--replace"])
    }

    /// Starts a node of another program.
    // Only one of the test binaries has another one.
    #[allow(dead_code)]
    pub fn spawn_program(program: &str, directory: &Path) -> Self {
        Self::spawn_all(program, directory, &[])
    }

    fn spawn_with(directory: &Path, arguments: &[&str]) -> Self {
        Self::spawn_all(env!("CARGO_BIN_EXE_pangea"), directory, arguments)
    }

    fn spawn_all(program: &str, directory: &Path, arguments: &[&str]) -> Self {
        let log = File::options().create(true).append(true).open(log_path(directory));
        let child = Command::new(program)
            .args(["start", "--stop-with-stdin", "--config"])
            .arg(directory.join("node.toml"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.expect("a file for the log"))
            .spawn();
        Self { child: child.expect("the built binary starts") }
    }

    /// Returns the first line on the process's stdout, or an empty text if it exits without one.
    /// Blocks until then. May be called once.
    pub fn first_line(&mut self) -> impl FnOnce() -> String + Send + 'static {
        let mut lines = self.lines();
        move || lines.next().unwrap_or_default()
    }

    /// Returns the lines on the process's stdout. Blocks until each line arrives. May be called
    /// once.
    pub fn lines(&mut self) -> impl Iterator<Item = String> + Send + 'static {
        let stdout = self.child.stdout.take().expect("requested only once");
        // An unreadable line ends the output.
        BufReader::new(stdout).lines().map_while(Result::ok)
    }

    /// Requests a clean stop of the process.
    pub fn ask_to_stop(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Returns the exit code, if the process has exited. -1 stands for a signal.
    pub fn exit_code(&mut self) -> Option<i32> {
        let status = self.child.try_wait().expect("the state of a child is known");
        status.map(|status| status.code().unwrap_or(-1))
    }

    /// Kills the process with SIGKILL and waits until it has exited.
    pub fn kill(&mut self) {
        // This fails only if the process has already exited.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the path of a node's log.
pub fn log_path(directory: &Path) -> PathBuf {
    directory.join("node.log")
}

/// Returns the contents of a node's log.
pub fn log_text(directory: &Path) -> String {
    std::fs::read_to_string(log_path(directory)).unwrap_or_default()
}
