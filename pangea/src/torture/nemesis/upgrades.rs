//! Nodes that are killed and started again with another program: another release of this one, with
//! other procedures or other code. The next upgrade goes back.
//!
//! ```text
//!   in turn:      kill, start with the other program   for each node, also while others are down
//!   at once:      kill all, start all with the other program
//!   in order:     stop all in order, at once or one after the other, start all with the other
//!                     program; clients do not wait for that
//!   if it is refused: start all with the previous program, stop them in order, start all with the
//!                     other one
//! ```
//!
//! Nodes with different programs may refuse each other. What must not happen is that an epoch runs
//! with other code than before: the checks at the end of the run would find that. A node may refuse
//! to start, or stop. Then the run does what its message has to say.
//!
//! After a stop in order the other program must continue: a refusal fails the run.

use std::path::PathBuf;
use std::time::Duration;

use super::{Nemesis, STEP_MS};
use crate::cluster::Member;
use crate::failure::Failure;

/// The time between two looks at the nodes' logs.
const LOOK: Duration = Duration::from_millis(100);
/// The time for a node that refuses an epoch to get the checkpoint of one that has run it.
const GRACE: Duration = Duration::from_secs(4);

/// The programs of nodes. `None` is this program.
#[derive(Debug, Default)]
pub struct Programs {
    /// The program of all nodes between two upgrades.
    current: Option<PathBuf>,
    /// The program of the next upgrade.
    other: Option<PathBuf>,
    /// How often an upgrade was refused after a kill.
    refusals: u64,
}

impl Programs {
    /// Starts with this program; the first upgrade is to the other.
    pub fn new(other: Option<PathBuf>) -> Self {
        Self { other, ..Self::default() }
    }

    /// Returns what is to be added to the counts of faults, for humans.
    pub fn note(&self) -> String {
        match self.refusals {
            0 => String::new(),
            refusals => format!(" ({refusals} upgrades were refused and done in order)"),
        }
    }
}

impl Nemesis<'_> {
    /// Kills the nodes one after the other, and starts each with the other program.
    ///
    /// # Errors
    /// If they can't be used afterwards.
    pub(super) async fn upgrade_in_turn(&mut self) -> Result<(), Failure> {
        self.heal().await?;
        let mut order: Vec<usize> = (0..self.cluster.members.len()).collect();
        self.rng.shuffle(&mut order);
        // A cache after the nodes: nobody may need it meanwhile.
        order.extend(order.len()..order.len() + self.cluster.caches.len());
        for node in order {
            self.tell(&format!("SIGKILL {}, and start the other program", self.region(node)));
            let other = self.programs.other.clone();
            let process = self.process(node);
            process.kill().await;
            process.program = other;
            self.stay_down().await;
            if let Err(refusal) = self.process(node).start().await {
                return self.upgrade_cleanly(refusal).await;
            }
        }
        self.use_upgraded().await
    }

    /// Kills all nodes, and starts them with the other program.
    ///
    /// # Errors
    /// Those of [`Self::upgrade_in_turn`].
    pub(super) async fn upgrade_at_once(&mut self) -> Result<(), Failure> {
        self.tell("SIGKILL all, and start the other program");
        self.active.clear();
        self.kill_all().await;
        self.stay_down().await;
        match self.start_all(self.programs.other.clone()).await {
            Ok(()) => self.use_upgraded().await,
            Err(refusal) => self.upgrade_cleanly(refusal).await,
        }
    }

    /// Stops all nodes in order, and starts them with the other program.
    ///
    /// # Errors
    /// Those of [`Self::upgrade_in_turn`], and if a node refuses an epoch.
    pub(super) async fn upgrade_in_order(&mut self) -> Result<(), Failure> {
        self.heal().await?;
        self.wait_usable().await?;
        self.stop_and_start_other().await
    }

    /// Waits until the upgraded nodes can commit.
    async fn use_upgraded(&mut self) -> Result<(), Failure> {
        match self.wait_usable().await {
            Ok(()) => {
                self.swap_programs();
                Ok(())
            }
            Err(refusal) => self.upgrade_cleanly(refusal).await,
        }
    }

    /// Stops the nodes in order with the previous program, because the other one refused to
    /// continue from a kill.
    async fn upgrade_cleanly(&mut self, failure: Failure) -> Result<(), Failure> {
        let Some(refusal) = self.refusal() else {
            return Err(Failure::failed(
                "check failed: an upgrade failed, and no node said which epoch it refuses and why",
                failure,
            ));
        };
        self.tell(&format!("refused: {refusal}"));
        self.programs.refusals += 1;
        self.kill_all().await;
        self.tell("start all with the previous program");
        self.start_all(self.programs.current.clone()).await?;
        if let Err(failure) = self.wait_usable().await
            && self.refusal().is_none()
        {
            return Err(failure);
        }
        self.stop_and_start_other().await
    }

    /// Stops all nodes in order, and starts them with the other program, which must continue.
    async fn stop_and_start_other(&mut self) -> Result<(), Failure> {
        // Shards have to end with the same epoch.
        if self.cluster.plan.shards() > 1 || self.rng.bool() {
            self.tell("stop all in order, and start the other program");
            self.cluster.stop_members().await?;
        } else {
            self.tell("stop one after the other in order, and start all with the other program");
            for member in self.cluster.processes() {
                member.stop().await?;
            }
        }
        let other = self.programs.other.clone();
        let started = match self.start_all(other).await {
            Ok(()) => self.wait_usable().await,
            failed => failed,
        };
        let Err(failure) = started else {
            self.swap_programs();
            return Ok(());
        };
        let Some(refusal) = self.refusal() else { return Err(failure) };
        self.tell(&format!("refused after a stop in order: {refusal}"));
        Err(Failure::failed(
            "check failed: all nodes were stopped in order, and the other program refuses an epoch",
            refusal,
        ))
    }

    fn swap_programs(&mut self) {
        let Programs { current, other, .. } = &mut self.programs;
        std::mem::swap(current, other);
    }

    async fn start_all(&mut self, program: Option<PathBuf>) -> Result<(), Failure> {
        self.cluster.processes().for_each(|process| process.program.clone_from(&program));
        self.cluster.start_down().await
    }

    pub(super) async fn kill_all(&mut self) {
        for process in self.cluster.processes() {
            process.kill().await;
        }
    }

    /// Waits until all nodes can commit, or until one has refused to continue for a while.
    async fn wait_usable(&mut self) -> Result<(), Failure> {
        let clients = self.cluster.clients().await?;
        let refused = async {
            while self.refusal().is_none() {
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            usable = self.cluster.usable(&clients) => usable,
            () = refused => Err(Failure::Failed("a node refused to continue".to_owned())),
        }
    }

    /// Returns the message of a node that can't continue with its program.
    fn refusal(&self) -> Option<String> {
        let processes = self.cluster.members.iter().chain(&self.cluster.caches);
        let logs = processes.map(Member::log_since_start);
        logs.into_iter().find_map(|log| log.lines().find(|it| is_refusal(it)).map(str::to_owned))
    }

    /// Waits for the time that killed nodes are down.
    pub(super) async fn stay_down(&mut self) {
        let dead = Duration::from_millis(self.rng.u64(STEP_MS));
        tokio::time::sleep(dead).await;
    }
}

/// Whether a line of a log says which node can't continue, from which epoch, and what to do.
fn is_refusal(line: &str) -> bool {
    ["can't run ", "(node ", "stop it in order"].iter().all(|words| line.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_after_kills_are_reported() {
        let programs = Programs { refusals: 3, ..Programs::default() };
        assert_eq!(programs.note(), " (3 upgrades were refused and done in order)");
        assert_eq!(Programs::default().note(), "");
    }

    #[test]
    fn a_refusal_names_the_node_the_epoch_and_what_to_do() {
        let first = "WARN driver: b (node 1) can't run epoch 7: it was proposed by another program";
        assert!(!is_refusal(first));
        assert!(is_refusal(&format!("{first}. Start that one, stop it in order, and start this")));
        assert!(!is_refusal("INFO driver: connected to b (node 1)"));
    }
}
