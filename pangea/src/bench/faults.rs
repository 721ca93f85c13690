//! Faults while a benchmark is measured: `--fault kill:region-1@3+2`.
//!
//! | what | of a region | ends with |
//! |---|---|---|
//! | `kill` | its node is killed with SIGKILL | its start, and the moment when it serves again |
//! | `cut` | nothing passes between it and the others; `a/b`: between these two | everything passes |
//! | `slow` | its node runs a fifth of the time: SIGSTOP and SIGCONT in turn | it runs |
//!
//! In place of a region's name stands `coordinator`, or `follower` for another node, as they are
//! when it happens. Faults come one after the other: what one does would else be another's, too.

use std::time::{Duration, Instant};

use pangea_core::ids::NodeId;
use pangea_node::client::Client;
use serde::Serialize;

use crate::cluster::{Cluster, Plan};
use crate::failure::Failure;

/// A slow node runs for so long and is stopped for so long, in turn.
const SLOW_RUN: Duration = Duration::from_millis(20);
const SLOW_STOP: Duration = Duration::from_millis(80);
/// How long a node that runs may take to do what it is told, and a connection to come back.
const CONTROL_DEADLINE: Duration = Duration::from_secs(30);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kill,
    Cut,
    Slow,
}

/// Something that is to happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    kind: Kind,
    whom: Vec<String>,
    /// After the beginning of the measured time.
    at: Duration,
    lasts: Duration,
}

/// Something that has happened. Times are seconds of the measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Happened {
    what: String,
    from_secs: f64,
    /// When it was over: of a kill, when the node served again.
    to_secs: f64,
}

impl std::fmt::Display for Happened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} from {:.1} to {:.1} s", self.what, self.from_secs, self.to_secs)
    }
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not of the form kill:region-1@3+2");
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (whom, times) = rest.split_once('@').ok_or_else(wrong)?;
        let (at, lasts) = times.split_once('+').ok_or_else(wrong)?;
        let kind = match kind {
            "kill" => Kind::Kill,
            "cut" => Kind::Cut,
            "slow" => Kind::Slow,
            _ => return Err(format!("there is no fault {kind:?}; there are kill, cut and slow")),
        };
        let whom: Vec<String> = whom.split('/').map(str::to_owned).collect();
        let most = if kind == Kind::Cut { 2 } else { 1 };
        let is_pair_of_one = whom.len() == 2 && whom[0] == whom[1];
        if whom.len() > most || is_pair_of_one || whom.iter().any(String::is_empty) {
            return Err(format!("{text:?}: a fault is of one region, a cut also of two as in a/b"));
        }
        let secs = |text: &str| {
            let secs = text.parse::<f64>().ok().filter(|secs| (0.0..=86_400.0).contains(secs));
            secs.map(Duration::from_secs_f64).ok_or_else(wrong)
        };
        Ok(Self { kind, whom, at: secs(at)?, lasts: secs(lasts)? })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (at, lasts) = (self.at.as_secs_f64(), self.lasts.as_secs_f64());
        write!(f, "{}:{}@{at}+{lasts}", self.name(), self.whom.join("/"))
    }
}

impl Fault {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Kill => "kill",
            Kind::Cut => "cut",
            Kind::Slow => "slow",
        }
    }

    /// Whether sessions that can't be opened again are lost with it.
    pub fn ends_sessions(&self) -> bool {
        self.kind == Kind::Kill
    }
}

/// The faults in their order, if they can happen in a cluster that is measured for so long.
///
/// # Errors
/// Which of them can't.
pub fn check(faults: &[Fault], plan: &Plan, secs: u64) -> Result<Vec<Fault>, Failure> {
    let usage = |fault: &Fault, why: String| Err(Failure::Usage(format!("--fault {fault}: {why}")));
    let mut sorted = faults.to_vec();
    sorted.sort_by_key(|fault| fault.at);
    let mut free = Duration::ZERO;
    for fault in &sorted {
        let is_known = |name: &&String| {
            ["coordinator", "follower"].contains(&name.as_str()) || plan.regions.contains(name)
        };
        if let Some(name) = fault.whom.iter().find(|name| !is_known(name)) {
            let regions = plan.regions.join(", ");
            let why = format!("there is no region {name:?}; there are {regions}");
            return usage(fault, format!("{why}, and coordinator and follower"));
        }
        if plan.regions.len() < 2 {
            return usage(fault, "one region alone has nobody to go on without it".to_owned());
        }
        if fault.at < free {
            return usage(fault, "it begins before the one before it has ended".to_owned());
        }
        free = fault.at + fault.lasts;
        if free.as_secs_f64() > secs as f64 {
            return usage(fault, format!("it ends after the {secs} s that are measured"));
        }
    }
    Ok(sorted)
}

/// Does all of it, and returns when everything is whole again.
///
/// # Errors
/// When a node does not start, or does not do what it is told.
pub async fn run(
    faults: &[Fault],
    cluster: &mut Cluster,
    clients: &[Client],
    began: Instant,
) -> Result<Vec<Happened>, Failure> {
    let mut happened = Vec::with_capacity(faults.len());
    for fault in faults {
        tokio::time::sleep(fault.at.saturating_sub(began.elapsed())).await;
        let nodes = nodes(fault, cluster, clients).await?;
        let from_secs = began.elapsed().as_secs_f64();
        let end = Instant::now() + fault.lasts;
        match fault.kind {
            Kind::Kill => kill(cluster, clients, nodes[0], end).await?,
            Kind::Cut => cut(clients, &nodes, end).await?,
            Kind::Slow => slow(cluster, nodes[0], end).await,
        }
        let regions: Vec<&str> = nodes.iter().map(|node| cluster.members[*node].region()).collect();
        let what = format!("{} {}", fault.name(), regions.join("/"));
        let to_secs = began.elapsed().as_secs_f64();
        happened.push(Happened { what, from_secs, to_secs });
    }
    Ok(happened)
}

/// Whom a fault is of, by number.
async fn nodes(
    fault: &Fault,
    cluster: &Cluster,
    clients: &[Client],
) -> Result<Vec<usize>, Failure> {
    let mut nodes = Vec::new();
    for name in &fault.whom {
        nodes.push(match name.as_str() {
            "coordinator" => coordinator(clients).await?,
            "follower" => {
                let coordinator = coordinator(clients).await?;
                let last = (0..clients.len()).rev().find(|node| *node != coordinator);
                last.expect("there are two nodes at least")
            }
            name => cluster.node_in(name).map_err(Failure::Usage)?.index(),
        });
    }
    Ok(nodes)
}

async fn coordinator(clients: &[Client]) -> Result<usize, Failure> {
    for client in clients {
        let status = tokio::time::timeout(CONTROL_DEADLINE, client.status()).await;
        let coordinator = status.ok().and_then(Result::ok).and_then(|status| status.coordinator);
        if let Some(node) = coordinator {
            return Ok(node.index());
        }
    }
    Err(Failure::Failed("no node knows a coordinator for a fault to be of".to_owned()))
}

async fn kill(
    cluster: &mut Cluster,
    clients: &[Client],
    node: usize,
    end: Instant,
) -> Result<(), Failure> {
    cluster.members[node].kill().await;
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    cluster.members[node].start().await?;
    let back = tokio::time::timeout(CONTROL_DEADLINE, clients[node].connected()).await;
    back.map_err(|_| {
        let (region, secs) = (cluster.members[node].region(), CONTROL_DEADLINE.as_secs());
        Failure::Failed(format!("{region} runs again and takes no client in {secs} s"))
    })
}

/// Cuts a node off from all others, or two from each other.
async fn cut(clients: &[Client], nodes: &[usize], end: Instant) -> Result<(), Failure> {
    let others: Vec<usize> = match nodes {
        [_, other] => vec![*other],
        _ => (0..clients.len()).filter(|other| *other != nodes[0]).collect(),
    };
    let failed = |client: &Client, error| Failure::failed(client.region(), error);
    for other in others {
        // Each end holds what it sends.
        for (from, to) in [(nodes[0], other), (other, nodes[0])] {
            let cut = clients[from].cut(NodeId(to as u16)).await;
            cut.map_err(|error| failed(&clients[from], error))?;
        }
    }
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    for client in clients {
        client.heal().await.map_err(|error| failed(client, error))?;
    }
    Ok(())
}

async fn slow(cluster: &mut Cluster, node: usize, end: Instant) {
    let member = &mut cluster.members[node];
    while Instant::now() < end {
        member.pause();
        tokio::time::sleep(SLOW_STOP).await;
        member.resume();
        tokio::time::sleep(SLOW_RUN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(regions: usize) -> Plan {
        crate::cluster::Regions::Count(regions).plan("minerva", None).unwrap()
    }

    #[test]
    fn faults_are_read_and_said_in_one_form() {
        for text in ["kill:region-1@3+2", "cut:a/b@0.5+1.5", "slow:coordinator@0+10"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for (text, said) in [
            ("kill", "not of the form"),
            ("kill:a@3", "not of the form"),
            ("kill:a@x+1", "not of the form"),
            ("kill:a@-1+1", "not of the form"),
            ("burn:a@1+1", "there are kill, cut and slow"),
            ("kill:a/b@1+1", "a fault is of one region"),
            ("cut:a/a@1+1", "a fault is of one region"),
            ("cut:@1+1", "a fault is of one region"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn faults_that_cannot_happen_are_refused() {
        let faults = |text: &str| -> Vec<Fault> {
            text.split(',').map(|fault| fault.parse().unwrap()).collect()
        };
        let sorted = check(&faults("cut:region-2@6+1,kill:follower@3+2"), &plan(3), 8).unwrap();
        assert_eq!(sorted[0].to_string(), "kill:follower@3+2");
        for (text, regions, said) in [
            ("kill:region-4@1+1", 3, "there is no region \"region-4\""),
            ("kill:region-1@1+8", 3, "it ends after the 8 s"),
            ("kill:region-1@1+2,slow:region-2@2+1", 3, "before the one before it has ended"),
            ("kill:region-1@1+1", 1, "one region alone"),
        ] {
            let error = check(&faults(text), &plan(regions), 8).unwrap_err();
            assert!(error.to_string().contains(said), "{text}: {error}");
        }
    }
}
