//! Three nodes as processes, one in each region.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::Status;
use pangea_node::client::Client;
use tempfile::TempDir;
use tokio::time::{interval, timeout};

use crate::processes::{Addresses, CLUSTER, Process, REGIONS, free_addresses, log_text, node_toml};

/// How long a node may take until it serves, its log read.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// How long nodes may take to agree on something when all are well, on a busy machine.
const AGREE_DEADLINE: Duration = Duration::from_secs(30);
/// How long a node may take to stop cleanly.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// Ports are found free before their nodes take them; when another process was faster, others are
/// looked for, this often at most.
const START_ATTEMPTS: usize = 3;
/// How often a condition is looked at again.
const POLL: Duration = Duration::from_millis(20);
/// Lines from the end of a node's log that are shown when something is wrong.
const LOG_LINES_SHOWN: usize = 12;
/// How often a version to compare digests at is named anew, after it was reclaimed.
const DIGEST_ATTEMPTS: usize = 50;

/// Three nodes, each running or dead.
pub struct Cluster {
    /// Where they listen.
    pub addresses: Vec<Addresses>,
    // Dropped in this order: no process writes to a directory that is being removed.
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

    /// Starts a node that does not run and waits until it serves, or has ended: then this is false.
    async fn start_node(&mut self, node: usize, spawn: fn(&Path) -> Process) -> bool {
        assert!(self.processes[node].is_none(), "a node runs once at a time");
        let mut process = spawn(&self.node_dir(node));
        let line = tokio::task::spawn_blocking(process.first_line());
        let line = timeout(READY_DEADLINE, line).await;
        let line = line.map(|line| line.expect("reading a line does not panic"));
        let serves = |line: String| line.starts_with("ready:") || line.starts_with("up:");
        let is_ready = line.is_ok_and(serves);
        self.processes[node] = is_ready.then_some(process);
        is_ready
    }

    /// Starts a dead node again.
    pub async fn restart(&mut self, node: usize) {
        let is_ready = self.start_node(node, Process::spawn).await;
        assert!(is_ready, "{} did not come back:\n{}", REGIONS[node], self.log_ends());
    }

    /// Starts a dead node that fetches its data from the others, and waits until it has it.
    pub async fn replace(&mut self, node: usize) {
        let serves = self.start_node(node, Process::spawn_replacing).await;
        assert!(serves, "{} did not come back:\n{}", REGIONS[node], self.log_ends());
        let client = self.native(node).await;
        let wait = async {
            let mut poll = interval(POLL);
            while client.status().await.expect("a node knows its status").rejoin.is_some() {
                poll.tick().await;
            }
        };
        let waited = timeout(AGREE_DEADLINE, wait).await;
        assert!(waited.is_ok(), "{} is not whole:\n{}", REGIONS[node], self.log_ends());
    }

    /// Starts a dead node that must not start, and returns its log.
    pub async fn start_in_vain(&mut self, node: usize) -> String {
        assert!(!self.start_node(node, Process::spawn).await, "{} serves", REGIONS[node]);
        log_text(&self.node_dir(node))
    }

    /// Where a node keeps its data.
    pub fn data_dir(&self, node: usize) -> PathBuf {
        self.node_dir(node).join("data")
    }

    /// Ends a node as kill -9 does, and says when.
    pub fn kill(&mut self, node: usize) -> Instant {
        let mut process = self.processes[node].take().expect("only what runs is killed");
        let at = Instant::now();
        process.kill();
        at
    }

    /// The nodes that run.
    pub fn running(&self) -> Vec<usize> {
        (0..REGIONS.len()).filter(|&node| self.processes[node].is_some()).collect()
    }

    /// Fails where a node has ended that nobody killed.
    pub fn assert_alive(&mut self) {
        for (node, process) in self.processes.iter_mut().enumerate() {
            let ended = process.as_mut().and_then(Process::exit_code);
            let log = ended.map(|_| log_text(&self.directory.path().join(REGIONS[node])));
            assert_eq!(ended, None, "{} ended by itself:\n{log:?}", REGIONS[node]);
        }
    }

    /// A native client of a node.
    pub async fn native(&self, node: usize) -> Client {
        let client = Client::connect(self.addresses[node].peer, CLUSTER).await;
        client.unwrap_or_else(|error| panic!("{}: {error}\n{}", REGIONS[node], self.log_ends()))
    }

    /// What a node says of itself.
    pub async fn status(&self, node: usize) -> Status {
        self.native(node).await.status().await.expect("a node knows its status")
    }

    /// A version that holds everything that was acknowledged before, asked of a node.
    pub async fn fresh(&self, node: usize) -> SnapshotVersion {
        let client = self.native(node).await;
        let fresh = timeout(AGREE_DEADLINE, client.fresh()).await;
        let fresh = fresh.unwrap_or_else(|_| {
            panic!("{} names no fresh version:\n{}", REGIONS[node], self.log_ends())
        });
        fresh.expect("a node that serves can name a fresh version")
    }

    async fn wait_usable(&self) {
        for node in self.running() {
            self.fresh(node).await;
        }
    }

    /// The node that coordinates, as all running nodes say.
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

    /// Waits until a node has applied everything up to `version`, and says how long that took.
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

    /// The digest of every node at one version that holds all that was acknowledged.
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
                // An older version than its readers need is not kept for long.
                let Ok((at, digest)) = client.digest(Some(version)).await else { break };
                assert_eq!(at, version, "a digest is of the version that was asked for");
                digests.push(digest);
            }
            if digests.len() == clients.len() {
                return (version, digests);
            }
        }
        panic!("no version was kept long enough to compare the replicas");
    }

    /// Stops every node cleanly and removes their files.
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
        let path = self.directory.path().to_owned();
        self.directory.close().unwrap();
        assert!(!path.exists(), "nothing is left");
    }

    fn node_dir(&self, node: usize) -> PathBuf {
        self.directory.path().join(REGIONS[node])
    }

    /// The last words of every node, for whoever wants to know what went wrong.
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
