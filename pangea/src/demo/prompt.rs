//! The demo's prompt: SQL to one region's node, and commands to the cluster.

use std::io::Write;

use pangea_core::ids::NodeId;
use pangea_node::client::Client;

use super::command::{Command, HELP};
use super::traffic::Traffic;
use super::views;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::sql::{Line, Lines, Shell, Statement};

/// Whoever sits at the terminal, and the cluster.
pub struct Prompt<'a> {
    cluster: &'a mut Cluster,
    /// Native clients, by node.
    clients: Vec<Client>,
    traffic: Option<Traffic>,
    /// What the load last did.
    rates: String,
    /// Where SQL goes.
    current: NodeId,
    shell: Shell,
}

impl<'a> Prompt<'a> {
    /// A prompt at the first region.
    pub fn new(cluster: &'a mut Cluster, clients: Vec<Client>, traffic: Option<Traffic>) -> Self {
        let shell = Shell::new(cluster.members[0].sql_url());
        let rates = match traffic {
            Some(_) => "the load has just begun".to_owned(),
            None => "there is no load; `pangea demo --load ycsb-a` has one".to_owned(),
        };
        Self { cluster, clients, traffic, rates, current: NodeId(0), shell }
    }

    /// Reads and does until it is told to quit.
    ///
    /// # Errors
    /// When the terminal can't be read.
    pub async fn run(mut self) -> Result<(), Failure> {
        println!("\\help shows what else there is than SQL.");
        let mut lines = Lines::new()?;
        let mut statement = Statement::default();
        loop {
            let region = &self.cluster.plan.regions[self.current.index()];
            let prompt = format!("{region}{} ", if statement.is_empty() { "=>" } else { "->" });
            match self.read(&mut lines, &prompt).await {
                Line::End => return Ok(()),
                Line::Cancelled => statement = Statement::default(),
                Line::Text(line) if line.trim().starts_with('\\') => match line.parse() {
                    Ok(Command::Quit) => return Ok(()),
                    Ok(command) => self.run_command(command).await,
                    Err(error) => eprintln!("{error}"),
                },
                Line::Text(line) => {
                    let Some(sql) = statement.add(&line) else { continue };
                    if let Err(error) = self.shell.run(&sql).await {
                        eprintln!("{error}");
                    }
                }
            }
        }
    }

    /// Waits for a line. Meanwhile the load's rates are in the terminal's title, where they are in
    /// nobody's way.
    async fn read(&mut self, lines: &mut Lines, prompt: &str) -> Line {
        let Some(traffic) = &self.traffic else { return lines.read(prompt).await };
        let mut line = std::pin::pin!(lines.read(prompt));
        loop {
            tokio::select! {
                line = &mut line => return line,
                rates = traffic.rates() => {
                    show_title(&rates);
                    self.rates = rates;
                }
            }
        }
    }

    async fn run_command(&mut self, command: Command) {
        let done = match command {
            Command::Connect(region) => self.connect(&region),
            Command::Kill(region) => self.kill(&region).await,
            Command::Start(region) => self.start(&region).await,
            Command::Cut(a, b) => self.cut(&a, &b).await,
            Command::Heal => self.heal().await,
            Command::Status => Ok(views::status(self.cluster, &self.clients).await.to_string()),
            Command::RoundTrips => {
                let measured = views::measure(&self.clients).await;
                Ok(views::round_trips(&self.cluster.plan, &measured).to_string())
            }
            Command::Load => Ok(self.rates.clone()),
            Command::Help => Ok(HELP.to_owned()),
            Command::Quit => unreachable!("the loop has ended with it"),
        };
        match done {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("{error}"),
        }
    }

    fn connect(&mut self, region: &str) -> Result<String, String> {
        self.current = self.cluster.node_in(region)?;
        let url = self.cluster.members[self.current.index()].sql_url();
        let text = format!("SQL goes to {region} now: {url}");
        self.shell = Shell::new(url);
        Ok(text)
    }

    async fn kill(&mut self, region: &str) -> Result<String, String> {
        let node = self.cluster.node_in(region)?;
        let member = &mut self.cluster.members[node.index()];
        match member.pid() {
            None => Err(format!("the node in {region} is down already")),
            Some(pid) => {
                member.kill().await;
                Ok(format!("killed process {pid} in {region}"))
            }
        }
    }

    async fn start(&mut self, region: &str) -> Result<String, String> {
        let node = self.cluster.node_in(region)?;
        let member = &mut self.cluster.members[node.index()];
        if let Some(pid) = member.pid() {
            return Err(format!("the node in {region} runs already: process {pid}"));
        }
        member.start().await.map_err(|error| error.to_string())?;
        Ok(format!("started process {} in {region}", member.pid().unwrap_or_default()))
    }

    async fn cut(&mut self, a: &str, b: &str) -> Result<String, String> {
        let (from, to) = (self.cluster.node_in(a)?, self.cluster.node_in(b)?);
        if from == to {
            return Err(format!("{a} and itself have no link"));
        }
        // Each end holds what it sends. One that is down sends nothing.
        for (end, other) in [(from, to), (to, from)] {
            if self.cluster.members[end.index()].pid().is_some() {
                let cut = self.clients[end.index()].cut(other).await;
                cut.map_err(|error| error.to_string())?;
            }
        }
        Ok(format!("nothing passes between {a} and {b}; \\heal lets it"))
    }

    async fn heal(&mut self) -> Result<String, String> {
        for (client, member) in self.clients.iter().zip(&mut self.cluster.members) {
            if member.pid().is_some() {
                client.heal().await.map_err(|error| error.to_string())?;
            }
        }
        Ok("everything passes".to_owned())
    }
}

/// Sets the terminal's title.
fn show_title(title: &str) {
    let mut stdout = std::io::stdout().lock();
    // A terminal that has gone shows nothing.
    let _ = write!(stdout, "\x1b]0;{title}\x07").and_then(|()| stdout.flush());
}
