//! The reasons why nodes refuse each other, or an epoch, the loss of acknowledged commits, and the
//! ends of nodes. The nodes write them to their logs, which the user of a demo does not read;
//! without them, a demo only waits.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use crate::cluster::{Cluster, DeathWatch, LogTail, Member};

/// The time between two looks at the logs and processes.
const LOOK: Duration = Duration::from_millis(250);

/// Prints each reason once for each node.
pub struct Refusals {
    logs: Vec<LogTail>,
    processes: Vec<DeathWatch>,
    told: BTreeSet<(String, String)>,
}

impl Refusals {
    /// Those of a cluster, from its start on.
    pub fn of(cluster: &Cluster) -> Self {
        let processes = || cluster.members.iter().chain(&cluster.caches);
        let logs = processes().map(Member::log_tail).collect();
        let processes = processes().map(Member::death_watch).collect();
        Self { logs, processes, told: BTreeSet::new() }
    }

    /// Prints the reasons, and the ends of nodes, now and later, forever.
    pub async fn tell(&mut self) -> Infallible {
        loop {
            self.look();
            for process in &mut self.processes {
                if let Some(ended) = process.ended() {
                    let name = process.name();
                    crate::warn(&format!("{ended}. \\start {name} starts it again"));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Prints the reasons since the last look.
    pub fn look(&mut self) {
        for log in &mut self.logs {
            for line in log.lines() {
                let Some(reason) = reason(&line) else { continue };
                if self.told.insert((log.name().to_owned(), reason.to_owned())) {
                    crate::warn(&format!("{}: {reason}", log.name()));
                }
            }
        }
    }
}

/// The message of a line of a log, if it says why a node refuses another one or an epoch, or that
/// commits are lost.
fn reason(line: &str) -> Option<&str> {
    let levels = [" WARN ", "ERROR "];
    let (_, rest) = levels.iter().find_map(|level| line.split_once(level))?;
    // The module comes first.
    let (_, message) = rest.split_once(": ")?;
    let is_reason = ["refuses this node", ": refused: ", "can't run ", " had acknowledged "];
    is_reason.iter().any(|words| message.contains(words)).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_warning_about_a_refusal_without_time_and_module() {
        let at = "2026-11-28T10:00:00.000000Z  WARN pangea_node::network: ";
        let refused = "eu (node 1) at 127.0.0.1:9: refused: the two nodes differ in `[minerva]`";
        assert_eq!(reason(&format!("{at}{refused}")), Some(refused));
        let refuses = "us (node 0) at 127.0.0.1:8: it refuses this node: the two nodes differ";
        assert_eq!(reason(&format!("{at}{refuses}")), Some(refuses));
        let epoch = "us (node 0) can't run epoch 7: it was proposed by a program whose procedures";
        assert_eq!(reason(&format!("{at}{epoch}")), Some(epoch));
        let lost = "this node was removed: 2 transactions that it had acknowledged are lost";
        assert_eq!(reason(&format!("{at}{lost}")), Some(lost));
        assert_eq!(reason(&format!("{at}eu (node 1) at 127.0.0.1:9: can't connect")), None);
        assert_eq!(reason(&format!("2026  INFO pangea_node::network: {refused}")), None);
    }
}
