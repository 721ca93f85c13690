//! Injects faults into nodes while clients work, drawn from a seed.
//!
//! The seed determines the order of the faults, the nodes they affect and their duration. Their
//! effect on real processes differs between runs.

#[cfg(feature = "planted")]
mod flips;
mod upgrades;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fastrand::Rng;
use pangea_core::ids::NodeId;
use pangea_node::client::Client;

use crate::cluster::{Cluster, Member};
use crate::failure::Failure;
pub use upgrades::Programs;

/// The time between two steps, in milliseconds.
const STEP_MS: std::ops::RangeInclusive<u64> = 200..=1_500;
/// The maximum number of concurrent faults.
const ACTIVE_MAX: usize = 2;
/// The time limit for a running node to execute a command.
const CONTROL_DEADLINE: Duration = Duration::from_secs(30);

/// The node that no client uses if [`Fault::Flip`] may happen.
#[cfg(feature = "planted")]
pub const UNUSED: usize = 0;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// A node or cache is killed with SIGKILL and restarted
    Kill,
    /// A node or cache is stopped with SIGSTOP and resumed
    Pause,
    /// The links from a node to one other node, or to all others, are cut
    Cut,
    /// All nodes are killed and restarted
    FullStop,
    /// One node after the other is killed and started with another program
    Upgrade,
    /// All nodes are killed and started with another program
    FullUpgrade,
    /// All nodes are stopped in order and started with another program
    StopUpgrade,
    /// A bit of a row flips in the memory of a node that no client uses
    #[cfg(feature = "planted")]
    Flip,
}

impl Fault {
    /// Returns the name of the fault on a command line.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no fault is hidden").get_name().to_owned()
    }

    /// Returns whether the fault discards a node's memory.
    pub fn ends_processes(self) -> bool {
        match self {
            Self::Kill | Self::FullStop => true,
            Self::Upgrade | Self::FullUpgrade | Self::StopUpgrade => true,
            Self::Pause | Self::Cut => false,
            #[cfg(feature = "planted")]
            Self::Flip => false,
        }
    }

    /// Returns whether the fault needs another program.
    pub fn is_upgrade(self) -> bool {
        matches!(self, Self::Upgrade | Self::FullUpgrade | Self::StopUpgrade)
    }

    /// Returns whether the fault happens only if it is asked for.
    pub fn is_on_request(self) -> bool {
        match self {
            Self::Kill | Self::FullStop | Self::Pause | Self::Cut => false,
            Self::Upgrade | Self::FullUpgrade | Self::StopUpgrade => false,
            #[cfg(feature = "planted")]
            Self::Flip => true,
        }
    }

    /// Returns the name of the fault in the plural, for humans.
    fn plural(self) -> &'static str {
        match self {
            Self::Kill => "kills",
            Self::Pause => "pauses",
            Self::Cut => "cuts",
            Self::FullStop => "full stops",
            Self::Upgrade => "upgrades in turn",
            Self::FullUpgrade => "upgrades at once",
            Self::StopUpgrade => "upgrades in order",
            #[cfg(feature = "planted")]
            Self::Flip => "flips",
        }
    }
}

/// A fault that is active now. Nodes and caches have one number each.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Active {
    Down(usize),
    Paused(usize),
    /// These links are cut.
    Cut(Vec<(usize, usize)>),
}

/// The injector of faults.
pub struct Nemesis<'a> {
    pub cluster: &'a mut Cluster,
    rng: Rng,
    faults: Vec<Fault>,
    active: Vec<Active>,
    counts: BTreeMap<Fault, u64>,
    programs: Programs,
    /// Receives a description of every step.
    tell: Box<dyn Fn(&str) + 'a>,
}

impl<'a> Nemesis<'a> {
    /// Creates a nemesis that injects these faults.
    pub fn new(
        cluster: &'a mut Cluster,
        faults: &[Fault],
        programs: Programs,
        seed: u64,
        tell: impl Fn(&str) + 'a,
    ) -> Self {
        Self {
            cluster,
            rng: Rng::with_seed(seed),
            faults: faults.to_vec(),
            active: Vec::new(),
            counts: BTreeMap::new(),
            programs,
            tell: Box::new(tell),
        }
    }

    /// Injects and heals faults until `end`.
    ///
    /// # Errors
    /// If a node ends on its own, does not start, or does not execute a command.
    pub async fn run(&mut self, end: Instant) -> Result<(), Failure> {
        loop {
            let pause = Duration::from_millis(self.rng.u64(STEP_MS));
            let left = end.saturating_duration_since(Instant::now());
            tokio::time::sleep(pause.min(left)).await;
            self.look_alive()?;
            if left <= pause {
                return Ok(());
            }
            self.step().await?;
        }
    }

    /// Returns whether no fault was injected.
    pub fn is_idle(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the numbers of injected faults, as text.
    pub fn done(&self) -> String {
        let counts = self.counts.iter().map(|(fault, n)| format!("{n} {}", fault.plural()));
        let counts: Vec<String> = counts.collect();
        if counts.is_empty() {
            return "none".to_owned();
        }
        counts.join(", ") + &self.programs.note()
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let may_begin = self.active.len() < ACTIVE_MAX && !self.faults.is_empty();
        if may_begin && (self.active.is_empty() || self.rng.bool()) {
            let mut fault = self.faults[self.rng.usize(..self.faults.len())];
            if (fault == Fault::FullStop || fault.is_upgrade()) && self.rng.bool() {
                // It ends all other faults, so it is drawn half as often.
                fault = self.faults[self.rng.usize(..self.faults.len())];
            }
            return self.begin(fault).await;
        }
        if self.active.is_empty() {
            return Ok(());
        }
        let which = self.rng.usize(..self.active.len());
        match self.active.remove(which) {
            Active::Down(node) => {
                self.tell(&format!("start {}", self.region(node)));
                self.process(node).start().await
            }
            Active::Paused(node) => {
                self.tell(&format!("SIGCONT {}", self.region(node)));
                self.process(node).resume();
                Ok(())
            }
            Active::Cut(_) => {
                self.tell("heal");
                self.let_through().await
            }
        }
    }

    async fn begin(&mut self, fault: Fault) -> Result<(), Failure> {
        let nodes = 0..self.cluster.members.len();
        let whole: Vec<usize> = nodes.filter(|node| !self.is_deaf(*node)).collect();
        let is_cut = self.active.iter().any(|active| matches!(active, Active::Cut(_)));
        // No node is left, or links are cut already: skip this step.
        if (fault == Fault::Cut && (is_cut || whole.len() < 2)) || whole.is_empty() {
            return Ok(());
        }
        *self.counts.entry(fault).or_default() += 1;
        let node = match fault {
            Fault::Kill | Fault::Pause => self.draw_process(&whole),
            _ => whole[self.rng.usize(..whole.len())],
        };
        match fault {
            Fault::Kill => {
                self.tell(&format!("SIGKILL {}", self.region(node)));
                self.process(node).kill().await;
                self.active.push(Active::Down(node));
                Ok(())
            }
            Fault::Pause => {
                self.tell(&format!("SIGSTOP {}", self.region(node)));
                self.process(node).pause();
                self.active.push(Active::Paused(node));
                Ok(())
            }
            Fault::Cut => self.cut(node, &whole).await,
            Fault::FullStop => self.full_stop().await,
            Fault::Upgrade => self.upgrade_in_turn().await,
            Fault::FullUpgrade => self.upgrade_at_once().await,
            Fault::StopUpgrade => self.upgrade_in_order().await,
            #[cfg(feature = "planted")]
            Fault::Flip => self.flip(UNUSED).await,
        }
    }

    /// Draws one of these nodes, or a cache that is neither down nor stopped.
    fn draw_process(&mut self, nodes: &[usize]) -> usize {
        let first = self.cluster.members.len();
        let caches = first..first + self.cluster.caches.len();
        let caches = caches.filter(|cache| !self.is_deaf(*cache));
        let all: Vec<usize> = nodes.iter().copied().chain(caches).collect();
        all[self.rng.usize(..all.len())]
    }

    /// Cuts a node off from one other node or from all.
    async fn cut(&mut self, node: usize, whole: &[usize]) -> Result<(), Failure> {
        let others: Vec<usize> = whole.iter().copied().filter(|other| *other != node).collect();
        let others = match self.rng.bool() {
            true => others,
            false => vec![others[self.rng.usize(..others.len())]],
        };
        let names: Vec<&str> = others.iter().map(|other| self.region(*other)).collect();
        self.tell(&format!("cut {} from {}", self.region(node), names.join(" and ")));
        let links: Vec<(usize, usize)> = others.iter().map(|other| (node, *other)).collect();
        for &(a, b) in &links {
            for (from, to) in [(a, b), (b, a)] {
                self.control(from, async |client| client.cut(NodeId(to as u16)).await).await?;
            }
        }
        self.active.push(Active::Cut(links));
        Ok(())
    }

    async fn full_stop(&mut self) -> Result<(), Failure> {
        self.tell("SIGKILL all");
        self.kill_all().await;
        // Restarted nodes do not remember cuts.
        self.active.clear();
        self.stay_down().await;
        self.tell("start all");
        self.cluster.start_down().await
    }

    /// Heals all active faults.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub async fn heal(&mut self) -> Result<(), Failure> {
        self.tell("heal everything");
        self.active.clear();
        self.cluster.processes().for_each(Member::resume);
        self.cluster.start_down().await?;
        self.let_through().await
    }

    /// Returns whether a node is down or stopped.
    fn is_deaf(&self, node: usize) -> bool {
        self.active.iter().any(|active| match active {
            Active::Down(hit) | Active::Paused(hit) => *hit == node,
            Active::Cut(_) => false,
        })
    }

    /// Restores all links at every node that can execute commands.
    async fn let_through(&mut self) -> Result<(), Failure> {
        for node in 0..self.cluster.members.len() {
            if !self.is_deaf(node) {
                self.control(node, async |client| client.heal().await).await?;
            }
        }
        Ok(())
    }

    async fn control<E: std::fmt::Display>(
        &self,
        node: usize,
        what: impl AsyncFnOnce(&Client) -> Result<(), E>,
    ) -> Result<(), Failure> {
        let answer = async {
            let client = self.cluster.members[node].client().await?;
            what(&client).await.map_err(|error| Failure::failed(self.region(node), error))
        };
        let answer = tokio::time::timeout(CONTROL_DEADLINE, answer).await;
        answer.unwrap_or_else(|_| {
            let seconds = CONTROL_DEADLINE.as_secs();
            let region = self.region(node);
            Err(Failure::Failed(format!("{region} did not execute a command within {seconds} s")))
        })
    }

    /// Checks that no node has ended that was not killed.
    fn look_alive(&mut self) -> Result<(), Failure> {
        for (node, member) in self.cluster.processes().enumerate() {
            if member.pid().is_none() && !self.active.contains(&Active::Down(node)) {
                return Err(Failure::Failed(format!(
                    "the node in {} exited unexpectedly",
                    member.name()
                )));
            }
        }
        Ok(())
    }

    fn process(&mut self, number: usize) -> &mut Member {
        self.cluster.process(NodeId(number as u16))
    }

    /// Returns the name of a node or cache.
    fn region(&self, number: usize) -> &str {
        let mut all = self.cluster.members.iter().chain(&self.cluster.caches);
        all.nth(number).expect("the number is of a node or cache").name()
    }

    fn tell(&self, what: &str) {
        (self.tell)(what);
    }
}
