//! Configuration files of clusters on this machine, and the processes that run them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The name of every cluster here.
pub const CLUSTER: &str = "faults";
/// The regions, one node in each.
pub const REGIONS: [&str; 3] = ["eu-west", "us-east", "ap-northeast"];
/// The emulated round trip between any two regions.
pub const ROUND_TRIP_MS: u32 = 50;

/// Where one node listens.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// For other nodes and native clients.
    pub peer: SocketAddr,
    /// For PostgreSQL clients.
    pub sql: SocketAddr,
}

/// Addresses on loopback, two for each node, that nobody listens on now.
pub fn free_addresses() -> Vec<Addresses> {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port on 127.0.0.1");
    // All are held until the last is found, so that none is found twice.
    let listeners: Vec<_> = REGIONS.iter().map(|_| (bind(), bind())).collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("it is bound");
    let both = |(peer, sql)| Addresses { peer: address(peer), sql: address(sql) };
    listeners.iter().map(|(peer, sql)| both((peer, sql))).collect()
}

/// The text of a node's configuration file. Its data is in `data`, beside the file.
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

/// A `pangea start` process that ends with the value at the latest.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a node with the file `node.toml` of a directory. Its log is appended to `node.log`
    /// there. It stops by itself when this process ends, however that comes.
    pub fn spawn(directory: &Path) -> Self {
        Self::spawn_with(directory, &[])
    }

    /// Starts a node that takes the place of one whose data is lost.
    pub fn spawn_replacing(directory: &Path) -> Self {
        Self::spawn_with(directory, &["--replace"])
    }

    fn spawn_with(directory: &Path, arguments: &[&str]) -> Self {
        let log = File::options().create(true).append(true).open(log_path(directory));
        let child = Command::new(env!("CARGO_BIN_EXE_pangea"))
            .args(["start", "--stop-with-stdin", "--config"])
            .arg(directory.join("node.toml"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.expect("a file for the log"))
            .spawn();
        Self { child: child.expect("the built binary starts") }
    }

    /// What the process says first on its standard output, which is nothing where it ends without
    /// a word. Blocks until then. Asked for once.
    pub fn first_line(&mut self) -> impl FnOnce() -> String + Send + 'static {
        let mut lines = self.lines();
        move || lines.next().unwrap_or_default()
    }

    /// What the process says on its standard output. Blocks until each line is there. Asked for
    /// once.
    pub fn lines(&mut self) -> impl Iterator<Item = String> + Send + 'static {
        let stdout = self.child.stdout.take().expect("asked for once");
        // What can't be read is what was not said.
        BufReader::new(stdout).lines().map_while(Result::ok)
    }

    /// Asks the process to stop cleanly.
    pub fn ask_to_stop(&mut self) {
        drop(self.child.stdin.take());
    }

    /// The exit code, once the process has ended. -1 stands for a signal.
    pub fn exit_code(&mut self) -> Option<i32> {
        let status = self.child.try_wait().expect("a child can be asked for");
        status.map(|status| status.code().unwrap_or(-1))
    }

    /// Ends the process with SIGKILL and returns when it is gone.
    pub fn kill(&mut self) {
        // Fails only where the process has ended already.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where the log of a node is.
pub fn log_path(directory: &Path) -> PathBuf {
    directory.join("node.log")
}

/// What a node has written to its log.
pub fn log_text(directory: &Path) -> String {
    std::fs::read_to_string(log_path(directory)).unwrap_or_default()
}
