//! A cluster of real node processes on this machine, one for each region and shard.
//!
//! ```text
//!   DIR/lock                   held while the cluster runs, if the directory is persistent
//!   DIR/temporary.lock         the same, if it is temporary
//!   DIR/us-east/node.toml      written at each start
//!   DIR/us-east/node.log       the node's stderr
//!   DIR/us-east/data/          the node's data
//! ```
//!
//! Each process runs this binary's `start`, in its own process group, so that only this process
//! handles a Ctrl-C. Its stdin is a pipe that this process never writes to. When the pipe is
//! closed, the node stops cleanly. This also works if this process was killed and could not stop
//! the node.

mod clocks;
mod death_watch;
mod member;
mod persistent_dir;
mod plan;
mod regions;
mod replica_options;
pub mod replicas;
pub mod rows;
mod temporary;

use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use pangea_core::ids::NodeId;
use pangea_node::client::Client;
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::signals::Signals;
pub use clocks::ClockErrors;
pub use death_watch::DeathWatch;
pub use member::{LogTail, Member, ProcessHandle};
use persistent_dir::PersistentDir;
pub use plan::{Placement, Plan, RoundTrip, nodes_named};
pub use regions::{Regions, durability};
pub use replica_options::ReplicaOptions;
use temporary::Temporary;

/// Another process can take a port after it was found to be free and before the node listens on it.
/// In that case new ports are chosen, at most this number of times.
const PORT_ATTEMPTS: usize = 3;
/// The time limit for a cluster to elect its first coordinator.
const USABLE_DEADLINE: Duration = Duration::from_secs(30);

/// A running cluster.
pub struct Cluster {
    /// The plan that the cluster was started from.
    pub plan: Plan,
    /// The nodes, by number.
    pub members: Vec<Member>,
    /// Their caches, if they have any.
    pub caches: Vec<Member>,
    directory: Directory,
}

/// The requested location of a cluster's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataLocation {
    /// A new directory.
    Temporary {
        /// The parent directory, which is created; the system's temporary directory for `None`.
        within: Option<PathBuf>,
        /// Whether the directory is retained when the cluster stops.
        keep: bool,
    },
    /// This directory, which is retained. Existing data are used.
    Kept(PathBuf),
}

/// The directory of a cluster's files.
pub enum Directory {
    /// Removed with the cluster.
    Temporary(Temporary),
    /// Retained.
    Left(PathBuf),
    /// Retained, and may have existed before.
    Kept(PersistentDir),
}

impl Directory {
    /// Creates the directory, or locks an existing one.
    ///
    /// # Errors
    /// If it cannot be created or used.
    pub fn new(place: &DataLocation) -> Result<Self, Failure> {
        let make = |path: &Path| {
            let made = std::fs::create_dir_all(path).and_then(|()| std::path::absolute(path));
            made.map_err(|error| {
                Failure::failed(format!("can't use directory {}", path.display()), error)
            })
        };
        let (within, keep) = match place {
            DataLocation::Kept(path) => return Ok(Self::Kept(PersistentDir::take(path)?)),
            DataLocation::Temporary { within: Some(path), keep } => (make(path)?, *keep),
            DataLocation::Temporary { within: None, keep } => (std::env::temp_dir(), *keep),
        };
        if !keep {
            return Ok(Self::Temporary(Temporary::new(&within)?));
        }
        let made = tempfile::Builder::new().prefix(temporary::PREFIX).tempdir_in(within);
        let made = made.map_err(|error| Failure::failed("can't create a directory", error))?;
        Ok(Self::Left(made.keep()))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Temporary(temporary) => temporary.path(),
            Self::Left(path) => path,
            Self::Kept(kept) => &kept.path,
        }
    }

    /// Removes the directory if it is temporary.
    ///
    /// # Errors
    /// If some of it could not be removed.
    pub fn close(self) -> Result<(), Failure> {
        match self {
            Self::Kept(_) => Ok(()),
            Self::Left(path) => {
                crate::warn(&format!("the nodes' files and logs are in {}", path.display()));
                Ok(())
            }
            Self::Temporary(directory) => {
                let path = directory.path().display().to_string();
                let cant = |error| Failure::failed(format!("can't remove {path}"), error);
                directory.close().map_err(cant)
            }
        }
    }
}

impl Cluster {
    /// Starts every node and waits until all of them serve.
    ///
    /// # Errors
    /// If a node does not start; no node is left running then. If the directory is in use or has
    /// the data of a cluster with other regions or another protocol; nothing in it has been changed
    /// then.
    pub async fn start(plan: Plan, place: DataLocation) -> Result<Self, Failure> {
        if let DataLocation::Kept(path) = &place {
            persistent_dir::check(&plan, path)?;
        }
        let directory = Directory::new(&place)?;
        let mut attempt = 1;
        loop {
            match start_members(&plan, directory.path()).await {
                Ok(mut members) => {
                    let caches = members.split_off(plan.places().len());
                    return Ok(Self { plan, members, caches, directory });
                }
                Err(error) if is_taken_port(&error) && attempt < PORT_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Connects a native client to every node, in order.
    ///
    /// # Errors
    /// If a connection fails.
    pub async fn clients(&self) -> Result<Vec<Client>, Failure> {
        let mut clients = Vec::new();
        for member in &self.members {
            clients.push(member.client().await?);
        }
        Ok(clients)
    }

    /// Connects a native client to every cache, in order.
    ///
    /// # Errors
    /// If a connection fails.
    pub async fn clients_of_caches(&self) -> Result<Vec<Client>, Failure> {
        let mut clients = Vec::new();
        for cache in &self.caches {
            clients.push(cache.client().await?);
        }
        Ok(clients)
    }

    /// The nodes and then the caches, by number.
    pub fn processes(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut().chain(&mut self.caches)
    }

    /// The node or cache with this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn process(&mut self, number: NodeId) -> &mut Member {
        self.processes().nth(number.index()).expect("the number is of a node or cache")
    }

    /// Handles to the process ids of the nodes, in order.
    pub fn process_handles(&self) -> Vec<ProcessHandle> {
        self.members.iter().map(Member::process_handle).collect()
    }

    /// Waits until every node can commit, that is, until every node has heard from a coordinator.
    ///
    /// # Errors
    /// If that exceeds the time limit.
    pub async fn usable(&self, clients: &[Client]) -> Result<(), Failure> {
        for (member, client) in self.members.iter().zip(clients) {
            let region = member.name();
            let fresh = tokio::time::timeout(USABLE_DEADLINE, client.fresh()).await;
            let fresh = fresh.map_err(|_| {
                let seconds = USABLE_DEADLINE.as_secs();
                Failure::Failed(format!(
                    "{region} did not reach agreement with the other nodes within {seconds} s"
                ))
            })?;
            fresh.map_err(|error| Failure::failed(format!("{region} can't be used"), error))?;
        }
        Ok(())
    }

    /// Returns the nodes of a region, or the node with this name.
    ///
    /// # Errors
    /// If the region does not exist.
    pub fn nodes_in(&self, region: &str) -> Result<Vec<NodeId>, String> {
        let places = self.plan.places();
        let nodes = nodes_named(&places, region);
        if nodes.is_empty() && self.cache_named(region).is_some() {
            return Err(format!("{region} is a cache, which has no tables: use its node"));
        }
        if nodes.is_empty() {
            let regions = match self.plan.shards() {
                1 => places.join(", "),
                _ => {
                    format!(
                        "{}, with the nodes {}",
                        self.plan.regions.join(", "),
                        places.join(", ")
                    )
                }
            };
            let caches = match self.caches.is_empty() {
                true => String::new(),
                false => {
                    let names: Vec<&str> = self.caches.iter().map(Member::name).collect();
                    format!(", with the caches {}", names.join(", "))
                }
            };
            return Err(format!("there is no region {region:?}; expected {regions}{caches}"));
        }
        Ok(nodes.into_iter().map(|node| NodeId(node as u16)).collect())
    }

    /// Returns the nodes of a region, or the node or cache with this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn processes_in(&self, name: &str) -> Result<Vec<NodeId>, String> {
        self.cache_named(name).map_or_else(|| self.nodes_in(name), |cache| Ok(vec![cache]))
    }

    /// Returns both ends of a link. Those of a link between regions include the caches of their
    /// nodes.
    ///
    /// # Errors
    /// If a name is of no region, node or cache.
    pub fn ends_of(&self, a: &str, b: &str) -> Result<(Vec<NodeId>, Vec<NodeId>), String> {
        if self.cache_named(a).or(self.cache_named(b)).is_some() {
            return Ok((self.processes_in(a)?, self.processes_in(b)?));
        }
        Ok((self.with_caches(a)?, self.with_caches(b)?))
    }

    fn with_caches(&self, name: &str) -> Result<Vec<NodeId>, String> {
        let mut ends = self.nodes_in(name)?;
        let home = |cache: &Member| cache.config.me().cache_of;
        let is_of_them = |cache: &&Member| home(cache).is_some_and(|home| ends.contains(&home));
        let caches: Vec<NodeId> =
            self.caches.iter().filter(is_of_them).map(|cache| cache.config.node).collect();
        ends.extend(caches);
        Ok(ends)
    }

    fn cache_named(&self, name: &str) -> Option<NodeId> {
        let cache = self.caches.iter().find(|cache| cache.name() == name)?;
        Some(cache.config.node)
    }

    /// Starts a cluster, runs the work with it, and stops it whether or not the work succeeded.
    /// SIGINT and SIGTERM interrupt the work.
    ///
    /// # Errors
    /// Those of the work, of [`Self::start`] and of [`Self::stop`], and [`Failure::Interrupted`].
    pub async fn run_while<T>(
        plan: Plan,
        place: DataLocation,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        Self::run_until(&mut Signals::new()?, plan, place, work).await
    }

    /// Does the same with an existing signal handler.
    ///
    /// # Errors
    /// Those of [`Self::run_while`].
    pub async fn run_until<T>(
        signals: &mut Signals,
        plan: Plan,
        place: DataLocation,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let interrupted = || Err(Failure::Interrupted("interrupted".to_owned()));
        let mut cluster = tokio::select! {
            cluster = Self::start(plan, place) => cluster?,
            () = signals.received() => return interrupted(),
        };
        let result = tokio::select! {
            result = work(&mut cluster) => result,
            () = signals.received() => interrupted(),
        };
        let result = result.map_err(|failure| cluster.explain(failure));
        let stopped = cluster.stop().await;
        let done = result?;
        stopped?;
        Ok(done)
    }

    /// Adds the likely cause to a failure: if a node has exited, requests to it failed because of
    /// that.
    pub fn explain(&mut self, failure: Failure) -> Failure {
        let Failure::Failed(what) = &failure else { return failure };
        let ended = |member: &mut Member| Some((member.ended_by_itself()?, member.log_path()));
        let Some((ended, log)) = self.processes().find_map(ended) else { return failure };
        let log = match self.directory {
            Directory::Temporary(_) => String::new(),
            Directory::Left(_) | Directory::Kept(_) => format!("; its log is {}", log.display()),
        };
        Failure::Failed(format!("{ended} ({what}){log}"))
    }

    /// Starts every node and cache that is not running, concurrently.
    ///
    /// # Errors
    /// If one does not start.
    pub async fn start_down(&mut self) -> Result<(), Failure> {
        let is_down = |member: &mut Member| member.pid().is_none();
        start_each(self.processes().filter_map(|it| is_down(it).then_some(it))).await
    }

    /// Stops every node and cache cleanly, so that it can be started again.
    ///
    /// # Errors
    /// If a node had to be killed.
    pub async fn stop_members(&mut self) -> Result<(), Failure> {
        let mut stopping: Vec<_> = self.processes().map(|it| Box::pin(it.stop())).collect();
        let mut result = Ok(());
        std::future::poll_fn(|cx| {
            stopping.retain_mut(|stop| match stop.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(stopped) => {
                    result = std::mem::replace(&mut result, Ok(())).and(stopped);
                    false
                }
            });
            if stopping.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        result
    }

    /// Stops every node and removes the directory if it is temporary.
    ///
    /// # Errors
    /// If a node had to be killed, or something could not be removed.
    pub async fn stop(self) -> Result<(), Failure> {
        let stopped = stop_all(self.members.into_iter().chain(self.caches).collect()).await;
        let removed = self.directory.close();
        stopped.and(removed)
    }
}

fn is_taken_port(error: &Failure) -> bool {
    error.to_string().contains("can't listen on this address")
}

/// Starts all processes concurrently. If one does not start, the others are stopped.
async fn start_members(plan: &Plan, directory: &Path) -> Result<Vec<Member>, Failure> {
    let configs = plan.configs(directory)?.into_iter();
    let mut members: Vec<Member> =
        configs.map(|config| Member::new(config, directory, plan)).collect();
    if let Err(failure) = start_each(&mut members).await {
        // Stops the nodes that did start. Errors of that are ignored, because they are not the
        // cause.
        let _ = stop_all(members).await;
        return Err(failure);
    }
    members.sort_by_key(|member| member.config.node);
    Ok(members)
}

/// Starts nodes concurrently and returns when each has started or failed to.
///
/// The nodes are not started in tasks, because a task can outlive the future that spawned it. If
/// this future is dropped half-way, every member still belongs to its owner. The owner stops the
/// member, or drops it before the directory that it writes to.
async fn start_each(members: impl IntoIterator<Item = &mut Member>) -> Result<(), Failure> {
    let starting = members.into_iter().map(|member| Box::pin(member.start()));
    let (mut starting, mut failure): (Vec<_>, _) = (starting.collect(), None);
    std::future::poll_fn(|cx| {
        starting.retain_mut(|start| match start.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(started) => {
                failure = failure.take().or(started.err());
                false
            }
        });
        if starting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    failure.map_or(Ok(()), Err)
}

async fn stop_all(members: Vec<Member>) -> Result<(), Failure> {
    let mut stopping = JoinSet::new();
    for mut member in members {
        stopping.spawn(async move { member.stop().await });
    }
    let mut result = Ok(());
    while let Some(stopped) = stopping.join_next().await {
        result = result.and(stopped.expect("stopping a process does not panic"));
    }
    result
}
