//! Three nodes as processes, one in each region.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_node::client::Client;
use tempfile::TempDir;
use tokio::time::{interval, timeout};

use crate::processes::{Addresses, CLUSTER, Process, REGIONS, free_addresses, log_text, node_toml};

/// The time limit for a node to start serving, including the recovery from its log.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// The time limit for healthy nodes to reach agreement, on a busy machine.
const AGREE_DEADLINE: Duration = Duration::from_secs(30);
/// The time limit for a node to stop cleanly: longer than `stop_s`. On a busy machine the last
/// checkpoint of a large table takes long.
const STOP_DEADLINE: Duration = Duration::from_secs(90);
/// Another process can take a port after it was found to be free and before its node binds it. New
/// ports are then chosen, at most this number of times.
const START_ATTEMPTS: usize = 3;
/// The polling interval of conditions.
const POLL: Duration = Duration::from_millis(20);
/// The number of lines from the end of a node's log that are shown on failure.
const LOG_LINES_SHOWN: usize = 12;
/// The number of attempts to compare digests at a version, each with a newer one because the
/// previous version was reclaimed.
const DIGEST_ATTEMPTS: usize = 50;

/// Three nodes, each running or killed.
pub struct Cluster {
    /// The addresses of the nodes.
    pub addresses: Vec<Addresses>,
    // The order of drops matters: no process may write to a directory that is being removed.
    processes: Vec<Option<Process>>,
    directory: TempDir,
}

impl Cluster {
    /// Starts all nodes and waits until each can commit.
    pub async fn start() -> Self {
        for _ in 0..START_ATTEMPTS {
            let mut cluster = Self {
                addresses: free_addresses(),
                processes: REGIONS.iter().map(|_| None).collect(),
                directory: tempfile::Builder::new().prefix("pangea-faults-").tempdir().unwrap(),
            };
            if cluster.start_all().await {
                cluster.wait_usable().await;
                return cluster;
            }
            let logs = cluster.log_ends();
            assert!(logs.contains("can't listen"), "a node did not start:\n{logs}");
        }
        panic!("no free ports in {START_ATTEMPTS} attempts");
    }

    async fn start_all(&mut self) -> bool {
        for node in 0..REGIONS.len() {
            let directory = self.node_dir(node);
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("node.toml"), node_toml(node, &self.addresses)).unwrap();
            if !self.start_node(node, Process::spawn).await {
                return false;
            }
        }
        true
    }

    /// Starts a node that is not running, and waits until it serves. Returns false if it exits
    /// instead.
    async fn start_node(&mut self, node: usize, spawn: fn(&Path) -> Process) -> bool {
        assert!(self.processes[node].is_none(), "the node is already running");
        let mut process = spawn(&self.node_dir(node));
        let line = tokio::task::spawn_blocking(process.first_line());
        let line = timeout(READY_DEADLINE, line).await;
        let line = line.map(|line| line.expect("reading a line does not panic"));
        let serves = |line: String| line.starts_with("ready:") || line.starts_with("up:");
        let is_ready = line.is_ok_and(serves);
        self.processes[node] = is_ready.then_some(process);
        is_ready
    }

    /// Restarts a killed node.
    pub async fn restart(&mut self, node: usize) {
        let is_ready = self.start_node(node, Process::spawn).await;
        assert!(is_ready, "{} did not restart:\n{}", REGIONS[node], self.log_ends());
    }

    /// Starts a killed node that fetches its data from the others, and waits until it has them.
    pub async fn replace(&mut self, node: usize) {
        let serves = self.start_node(node, Process::spawn_replacing).await;
        assert!(serves, "{} did not restart:\n{}", REGIONS[node], self.log_ends());
        let client = self.native(node).await;
        let wait = async {
            let mut poll = interval(POLL);
            while client.status().await.expect("a node knows its status").rejoin.is_some() {
                poll.tick().await;
            }
        };
        let waited = timeout(AGREE_DEADLINE, wait).await;
        assert!(waited.is_ok(), "{} has not recovered:\n{}", REGIONS[node], self.log_ends());
    }

    /// Starts a killed node that must fail to start, and returns its log.
    pub async fn start_in_vain(&mut self, node: usize) -> String {
        assert!(!self.start_node(node, Process::spawn).await, "{} serves", REGIONS[node]);
        self.log(node)
    }

    /// Starts a killed node, and does not wait.
    pub fn launch(&mut self, node: usize) {
        assert!(self.processes[node].is_none(), "the node is already running");
        self.processes[node] = Some(Process::spawn(&self.node_dir(node)));
    }

    /// Returns whether a node has ended, and forgets its process then.
    pub fn has_ended(&mut self, node: usize) -> bool {
        let process = &mut self.processes[node];
        process.take_if(|process| process.exit_code().is_some()).is_some()
    }

    /// Returns the log of a node.
    pub fn log(&self, node: usize) -> String {
        log_text(&self.node_dir(node))
    }

    /// Returns the directory of a node's data.
    pub fn data_dir(&self, node: usize) -> PathBuf {
        self.node_dir(node).join("data")
    }

    /// Kills a node as kill -9 does, and returns the time.
    pub fn kill(&mut self, node: usize) -> Instant {
        let mut process = self.processes[node].take().expect("only a running node is killed");
        let at = Instant::now();
        process.kill();
        at
    }

    /// Returns the running nodes.
    pub fn running(&self) -> Vec<usize> {
        (0..REGIONS.len()).filter(|&node| self.processes[node].is_some()).collect()
    }

    /// Fails if a node has exited that was not killed.
    pub fn assert_alive(&mut self) {
        for (node, process) in self.processes.iter_mut().enumerate() {
            let ended = process.as_mut().and_then(Process::exit_code);
            let log = ended.map(|_| log_text(&self.directory.path().join(REGIONS[node])));
            assert_eq!(ended, None, "{} exited on its own:\n{log:?}", REGIONS[node]);
        }
    }

    /// Connects a native client to a node.
    pub async fn native(&self, node: usize) -> Client {
        let client = Client::connect(self.addresses[node].peer, CLUSTER).await;
        client.unwrap_or_else(|error| panic!("{}: {error}\n{}", REGIONS[node], self.log_ends()))
    }

    /// Returns the status of a node.
    pub async fn status(&self, node: usize) -> Status {
        self.native(node).await.status().await.expect("a node knows its status")
    }

    /// Requests from a node a version that contains everything acknowledged before.
    pub async fn fresh(&self, node: usize) -> SnapshotVersion {
        let client = self.native(node).await;
        let fresh = timeout(AGREE_DEADLINE, client.fresh()).await;
        let fresh = fresh.unwrap_or_else(|_| {
            panic!("{} returned no fresh version:\n{}", REGIONS[node], self.log_ends())
        });
        fresh.expect("a node that serves can name a fresh version")
    }

    async fn wait_usable(&self) {
        for node in self.running() {
            self.fresh(node).await;
        }
    }

    /// Waits until all running nodes agree on the coordinator, and returns it.
    pub async fn coordinator(&self) -> usize {
        let wait = async {
            let mut poll = interval(POLL);
            loop {
                poll.tick().await;
                let mut coordinators = Vec::new();
                for node in self.running() {
                    coordinators.push(self.status(node).await.coordinator);
                }
                if let [Some(first), rest @ ..] = &coordinators[..]
                    && rest.iter().all(|other| *other == Some(*first))
                {
                    break first.index();
                }
            }
        };
        timeout(AGREE_DEADLINE, wait).await.expect("the nodes agree on a coordinator")
    }

    /// Waits until a node has applied everything up to `version`, and returns the time that it
    /// took.
    pub async fn wait_applied(&self, node: usize, version: SnapshotVersion) -> Duration {
        let started = Instant::now();
        let client = self.native(node).await;
        let wait = async {
            let mut poll = interval(POLL);
            while client.status().await.expect("a node knows its status").version < version {
                poll.tick().await;
            }
        };
        let waited = timeout(AGREE_DEADLINE, wait).await;
        assert!(waited.is_ok(), "{} does not catch up:\n{}", REGIONS[node], self.log_ends());
        started.elapsed()
    }

    /// Returns the digests of all nodes at one version that contains everything acknowledged.
    pub async fn digests(&self) -> (SnapshotVersion, Vec<u64>) {
        let mut clients = Vec::new();
        for node in self.running() {
            clients.push(self.native(node).await);
        }
        for _ in 0..DIGEST_ATTEMPTS {
            let version = self.fresh(0).await;
            let mut digests = Vec::new();
            for (node, client) in clients.iter().enumerate() {
                self.wait_applied(node, version).await;
                // A version is soon reclaimed when no reader needs it.
                let Ok((at, digest)) = client.digest(Some(version)).await else { break };
                assert_eq!(at, version, "the digest is that of the requested version");
                digests.push(digest);
            }
            if digests.len() == clients.len() {
                return (version, digests);
            }
        }
        panic!("no version was retained long enough to compare the replicas");
    }

    /// Stops every node cleanly and removes the files.
    pub async fn stop(mut self) {
        for process in self.processes.iter_mut().flatten() {
            process.ask_to_stop();
        }
        let logs = self.log_ends();
        for mut process in self.processes.drain(..).flatten() {
            let wait = async {
                let mut poll = interval(POLL);
                loop {
                    poll.tick().await;
                    if let Some(code) = process.exit_code() {
                        break code;
                    }
                }
            };
            assert_eq!(timeout(STOP_DEADLINE, wait).await, Ok(0), "a clean stop:\n{logs}");
        }
        let logs = self.log_ends();
        assert!(!logs.contains("without its last checkpoint"), "a stop in time:\n{logs}");
        let path = self.directory.path().to_owned();
        self.directory.close().unwrap();
        assert!(!path.exists(), "no process is left");
    }

    fn node_dir(&self, node: usize) -> PathBuf {
        self.directory.path().join(REGIONS[node])
    }

    /// Returns the end of every node's log, for the diagnosis of failures.
    pub fn log_ends(&self) -> String {
        let mut text = String::new();
        for (node, region) in REGIONS.iter().enumerate() {
            let log = log_text(&self.node_dir(node));
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            text += &format!("--- {region}\n{}\n", shown.join("\n"));
        }
        text
    }
}
