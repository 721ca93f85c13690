//! Execution of the demo's own commands.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pangea_core::ids::NodeId;
use pangea_node::client::Client;

use super::command::{Command, HELP};
use super::views;
use crate::cluster::Cluster;
use crate::sql::{Commands, Shell, Turn};

/// The time limit for a restarted node to respond, and the polling interval.
const RECONNECT_DEADLINE: Duration = Duration::from_secs(5);
const RECONNECT_LOOK: Duration = Duration::from_millis(20);

/// The state that the commands act on.
pub struct Controls<'a> {
    cluster: &'a mut Cluster,
    /// Native clients of the nodes and then of the caches, by number.
    clients: Vec<Client>,
    /// The latest rates of the load.
    rates: Arc<Mutex<String>>,
    /// The node that SQL is sent to.
    current: NodeId,
}

impl<'a> Controls<'a> {
    /// Creates the state. SQL is sent to the first region.
    pub fn new(cluster: &'a mut Cluster, clients: Vec<Client>, rates: Arc<Mutex<String>>) -> Self {
        Self { cluster, clients, rates, current: NodeId(0) }
    }

    /// Returns a shell for the node that SQL is sent to.
    pub fn shell(&self) -> Shell {
        let member = &self.cluster.members[self.current.index()];
        Shell::named(member.name(), member.sql_config())
    }

    fn connect(&mut self, region: &str, shell: &mut Shell) -> Result<String, String> {
        let nodes = self.cluster.nodes_in(region)?;
        // A running node of the region is preferred.
        let runs = |node: &&NodeId| self.cluster.members[node.index()].pid().is_some();
        let node = *nodes.iter().find(runs).unwrap_or(&nodes[0]);
        let rolled_back = match shell.status().is_open() {
            true => {
                let before = self.cluster.members[self.current.index()].name();
                format!("the open transaction in {before} was rolled back\n")
            }
            false => String::new(),
        };
        self.current = node;
        *shell = self.shell();
        let member = &self.cluster.members[node.index()];
        let (name, url) = (member.name(), member.sql_url());
        Ok(format!("{rolled_back}SQL now goes to {name}, in a new session: {url}"))
    }

    /// The clients of the nodes.
    fn of_nodes(&self) -> &[Client] {
        &self.clients[..self.cluster.members.len()]
    }

    async fn kill(&mut self, region: &str) -> Result<String, String> {
        let mut killed = Vec::new();
        for node in self.cluster.processes_in(region)? {
            let member = self.cluster.process(node);
            if let Some(pid) = member.pid() {
                member.kill().await;
                killed.push(format!("killed process {pid} in {}", member.name()));
            }
        }
        match killed.is_empty() {
            true => Err(format!("{} is already down", self.what(region))),
            false => Ok(killed.join("\n")),
        }
    }

    async fn start(&mut self, region: &str) -> Result<String, String> {
        let mut started = Vec::new();
        for node in self.cluster.processes_in(region)? {
            let member = self.cluster.process(node);
            if member.pid().is_none() {
                member.start().await.map_err(|error| error.to_string())?;
                started.push(node);
            }
        }
        if started.is_empty() {
            return Err(format!("{} is already running", self.what(region)));
        }
        let mut lines = Vec::new();
        for node in started {
            // The next command may need this node, and its client has not reconnected yet.
            let client = &self.clients[node.index()];
            let answers = async {
                while client.status().await.is_err() {
                    tokio::time::sleep(RECONNECT_LOOK).await;
                }
            };
            let late = match tokio::time::timeout(RECONNECT_DEADLINE, answers).await {
                Ok(()) => "",
                Err(_) => "; it does not respond yet",
            };
            let member = self.cluster.process(node);
            let pid = member.pid().unwrap_or_default();
            lines.push(format!("started process {pid} in {}{late}", member.name()));
        }
        Ok(lines.join("\n"))
    }

    /// What a name is of, for humans.
    fn what(&self, name: &str) -> String {
        let is_cache = self.cluster.caches.iter().any(|cache| cache.name() == name);
        if is_cache { format!("cache {name}") } else { format!("the node in {name}") }
    }

    async fn cut(&mut self, a: &str, b: &str) -> Result<String, String> {
        let (from, to) = self.cluster.ends_of(a, b)?;
        if from.iter().any(|node| to.contains(node)) {
            return Err(format!("there is no link between {a} and itself"));
        }
        let links = from.iter().flat_map(|a| to.iter().flat_map(|b| [(*a, *b), (*b, *a)]));
        // Each end blocks the messages that it sends. A node that is down sends none.
        for (end, other) in links {
            if self.cluster.process(end).pid().is_some() {
                let cut = self.clients[end.index()].cut(other).await;
                cut.map_err(|error| error.to_string())?;
            }
        }
        Ok(format!("the link between {a} and {b} is cut; \\heal restores it"))
    }

    async fn heal(&mut self) -> Result<String, String> {
        for (client, member) in self.clients.iter().zip(self.cluster.processes()) {
            if member.pid().is_some() {
                client.heal().await.map_err(|error| error.to_string())?;
            }
        }
        Ok("all links are restored".to_owned())
    }
}

impl Commands for Controls<'_> {
    const IS_READ_BESIDE: bool = true;

    fn name(&self) -> String {
        self.cluster.members[self.current.index()].name().to_owned()
    }

    fn turn(&self, command: &str) -> Turn {
        match command.parse() {
            Ok(Command::Quit) => Turn::Quit,
            // The statements before it are for the previous region.
            Ok(Command::Connect(_)) => Turn::After,
            Ok(
                Command::Kill(_)
                | Command::Start(_)
                | Command::Cut(..)
                | Command::Heal
                | Command::Status
                | Command::RoundTrips
                | Command::Load
                | Command::Help,
            )
            | Err(_) => Turn::Beside,
        }
    }

    async fn run(&mut self, command: &str, shell: &mut Shell) -> Result<String, String> {
        match command.parse()? {
            Command::Connect(region) => self.connect(&region, shell),
            Command::Kill(region) => self.kill(&region).await,
            Command::Start(region) => self.start(&region).await,
            Command::Cut(a, b) => self.cut(&a, &b).await,
            Command::Heal => self.heal().await,
            Command::Status => {
                let nodes = views::look(self.cluster.processes(), &self.clients).await;
                Ok(views::status(&self.cluster.plan, &nodes))
            }
            Command::RoundTrips => {
                let measured = views::measure(self.of_nodes()).await;
                Ok(views::round_trips(&self.cluster.plan, &measured).to_string())
            }
            Command::Load => Ok(self.rates.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            Command::Help => Ok(HELP.to_owned()),
            Command::Quit => unreachable!("it ends the prompt"),
        }
    }
}
