//! Faults during a measured benchmark: `--fault kill:region-1@3+2`.
//!
//! | kind | effect on a region | ends when |
//! |---|---|---|
//! | `kill` | its server is killed with SIGKILL | it has been restarted and serves again |
//! | `cut` | no messages pass between it and the others; `a/b`: between these two | the network is healed |
//! | `slow` | its server runs a fifth of the time: SIGSTOP and SIGCONT alternately | it runs normally |
//!
//! A fault names a region, or `coordinator`, or `follower` for another node; roles are resolved
//! when the fault begins. If the protocol or the baseline has leaders, the coordinator is called
//! `leader`, too; with several shards it is that of the first one. Faults do not overlap, because
//! otherwise the effects of one would be attributed to another.
//!
//! If tables are partitioned, a region has a node for each shard, `region-1.0` and so on. A fault
//! of the region affects all of them.
//!
//! A cut is applied where the distance is emulated: within Pangea's nodes, or in the links of a
//! lab. In a lab, it also separates clients of one region from servers of the others.

use std::time::{Duration, Instant};

use pangea_node::client::Client;
use serde::Serialize;

use crate::cluster::{Plan, nodes_named};
use crate::failure::Failure;
use crate::protocol::{NAMES, words_of};

/// A slow node alternately runs and is stopped for these times.
const SLOW_RUN: Duration = Duration::from_millis(20);
const SLOW_STOP: Duration = Duration::from_millis(80);
/// The time limit for a running node to execute a command, and for a connection to be restored.
const CONTROL_DEADLINE: Duration = Duration::from_secs(30);

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kill,
    Cut,
    Slow,
}

/// A requested fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    kind: Kind,
    whom: Vec<String>,
    /// From the start of the measured time.
    at: Duration,
    lasts: Duration,
}

/// A fault or event that has happened. Times are seconds of the measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultEvent {
    what: String,
    /// The affected nodes, including all other nodes of their regions.
    #[serde(skip)]
    nodes: Vec<usize>,
    from_secs: f64,
    /// The end; for a kill, the time at which the node served again.
    to_secs: f64,
}

impl FaultEvent {
    /// Creates an event that nodes caused themselves. It excuses no failed calls.
    pub fn elsewhere(what: String, (from_secs, to_secs): (f64, f64)) -> Self {
        Self { what, nodes: Vec::new(), from_secs, to_secs }
    }

    /// Returns whether the event was a fault, rather than caused by the nodes themselves.
    pub fn is_fault(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Orders two events by their start.
    pub fn by_time(&self, other: &Self) -> std::cmp::Ordering {
        self.from_secs.total_cmp(&other.from_secs)
    }

    /// The affected nodes, including all other nodes of their regions.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }
}

impl std::fmt::Display for FaultEvent {
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
            _ => return Err(format!("there is no fault {kind:?}; expected kill, cut or slow")),
        };
        let whom: Vec<String> = whom.split('/').map(str::to_owned).collect();
        let most = if kind == Kind::Cut { 2 } else { 1 };
        let is_pair_of_one = whom.len() == 2 && whom[0] == whom[1];
        if whom.len() > most || is_pair_of_one || whom.iter().any(String::is_empty) {
            return Err(format!(
                "{text:?}: a fault has one region, and a cut one or two, as in a/b"
            ));
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

    /// Returns whether the fault affects links.
    pub fn is_cut(&self) -> bool {
        self.kind == Kind::Cut
    }

    /// Returns whether the fault names a role, which is resolved when the fault begins.
    pub fn is_of_a_role(&self) -> bool {
        self.whom.iter().any(|name| ROLES.contains(&name.as_str()))
    }
}

/// The roles that a fault can name instead of a region.
const ROLES: [&str; 3] = [COORDINATOR, LEADER, "follower"];
const COORDINATOR: &str = "coordinator";
/// The name of the same role where a protocol has leaders.
const LEADER: &str = "leader";

/// Servers that faults can affect. Every region has the same number of them.
pub trait Victims {
    /// Returns the servers' names, in order.
    fn names(&self) -> &[String];

    /// Returns the region of a server.
    fn region_of(&self, node: usize) -> usize {
        node
    }

    /// Returns the current coordinator.
    async fn coordinator(&mut self) -> Result<usize, Failure>;

    /// Kills a server.
    async fn kill(&mut self, node: usize) -> Result<(), Failure>;

    /// Restarts a killed server and waits until it serves.
    async fn start(&mut self, node: usize) -> Result<(), Failure>;

    /// Stops a server without killing it.
    fn pause(&mut self, node: usize);

    /// Resumes a stopped server.
    fn resume(&mut self, node: usize);

    /// Blocks all traffic between two servers.
    async fn cut(&mut self, one: usize, other: usize) -> Result<(), Failure>;

    /// Unblocks all traffic.
    async fn heal(&mut self) -> Result<(), Failure>;
}

/// Returns the faults sorted by time, if they are possible in a cluster that is measured for this
/// time.
///
/// # Errors
/// The first fault that is not possible.
pub fn check(faults: &[Fault], plan: &Plan, secs: u64) -> Result<Vec<Fault>, Failure> {
    // Other names are those of baselines.
    let coordinator = match NAMES.contains(&plan.protocol.as_str()) {
        true => words_of(&plan.protocol).coordinator,
        false => LEADER,
    };
    let is_role = |name: &str| ROLES.contains(&name) && (name != LEADER || coordinator == LEADER);
    let usage = |fault: &Fault, why: String| Err(Failure::Usage(format!("--fault {fault}: {why}")));
    let mut sorted = faults.to_vec();
    sorted.sort_by_key(|fault| fault.at);
    let mut free = Duration::ZERO;
    for fault in &sorted {
        let places = plan.places();
        let is_known = |name: &&String| is_role(name) || !nodes_named(&places, name).is_empty();
        if let Some(name) = fault.whom.iter().find(|name| !is_known(name)) {
            let regions = plan.regions.join(", ");
            let why = format!("there is no region {name:?}; expected {regions}");
            return usage(fault, format!("{why}, {coordinator} or follower"));
        }
        if plan.regions.len() < 2 {
            return usage(fault, "with a single region, no other region can continue".to_owned());
        }
        if fault.at < free {
            return usage(fault, "it begins before the previous fault ends".to_owned());
        }
        free = fault.at + fault.lasts;
        if free.as_secs_f64() > secs as f64 {
            return usage(fault, format!("it ends after the measured {secs} s"));
        }
    }
    Ok(sorted)
}

/// Injects all faults and returns when the cluster is healthy again.
///
/// # Errors
/// If a server does not start or does not execute a command.
pub async fn run(
    faults: &[Fault],
    victims: &mut impl Victims,
    began: Instant,
) -> Result<Vec<FaultEvent>, Failure> {
    let mut happened = Vec::with_capacity(faults.len());
    for fault in faults {
        tokio::time::sleep(fault.at.saturating_sub(began.elapsed())).await;
        let targets = targets(fault, victims).await?;
        let from_secs = began.elapsed().as_secs_f64();
        let end = Instant::now() + fault.lasts;
        match fault.kind {
            Kind::Kill => {
                for node in &targets[0] {
                    victims.kill(*node).await?;
                }
                tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
                for node in &targets[0] {
                    victims.start(*node).await?;
                }
            }
            Kind::Cut => cut(victims, &targets, end).await?,
            Kind::Slow => slow(victims, &targets[0], end).await,
        }
        let name = |target: &Vec<usize>| {
            let names = target.iter().map(|node| victims.names()[*node].as_str());
            names.collect::<Vec<_>>().join("+")
        };
        let names: Vec<String> = targets.iter().map(name).collect();
        let what = format!("{} {}", fault.name(), names.join("/"));
        let to_secs = began.elapsed().as_secs_f64();
        let regions: Vec<usize> =
            targets.iter().flatten().map(|node| victims.region_of(*node)).collect();
        let is_hit = |node: &usize| regions.contains(&victims.region_of(*node));
        let nodes = (0..victims.names().len()).filter(is_hit).collect();
        happened.push(FaultEvent { what, nodes, from_secs, to_secs });
    }
    Ok(happened)
}

/// Returns the nodes that a fault affects, by number.
async fn targets(fault: &Fault, victims: &mut impl Victims) -> Result<Vec<Vec<usize>>, Failure> {
    let mut targets = Vec::new();
    for name in &fault.whom {
        targets.push(match name.as_str() {
            COORDINATOR | LEADER => vec![victims.coordinator().await?],
            "follower" => {
                let coordinator = victims.coordinator().await?;
                let last = (0..victims.names().len()).rev().find(|node| *node != coordinator);
                vec![last.expect("there are at least two nodes")]
            }
            name => nodes_named(victims.names(), name),
        });
    }
    Ok(targets)
}

/// Returns the coordinator of a Pangea cluster.
///
/// # Errors
/// If no node knows one.
pub async fn coordinator(clients: &[Client]) -> Result<usize, Failure> {
    for client in clients {
        let status = tokio::time::timeout(CONTROL_DEADLINE, client.status()).await;
        let coordinator = status.ok().and_then(Result::ok).and_then(|status| status.coordinator);
        if let Some(node) = coordinator {
            return Ok(node.index());
        }
    }
    Err(Failure::Failed("the fault needs a coordinator, and no node knows one".to_owned()))
}

/// Waits until a Pangea node accepts its client's connection again.
///
/// # Errors
/// If it does not within the time limit.
pub async fn taken_back(client: &Client) -> Result<(), Failure> {
    let back = tokio::time::timeout(CONTROL_DEADLINE, client.connected()).await;
    back.map_err(|_| {
        let (region, secs) = (client.region(), CONTROL_DEADLINE.as_secs());
        Failure::Failed(format!("{region} was restarted, but accepted no client within {secs} s"))
    })
}

/// Separates servers from all others, or from the given ones.
async fn cut(
    victims: &mut impl Victims,
    targets: &[Vec<usize>],
    end: Instant,
) -> Result<(), Failure> {
    let of_it = &targets[0];
    let others: Vec<usize> = match targets {
        [_, others] => others.clone(),
        _ => (0..victims.names().len()).filter(|other| !of_it.contains(other)).collect(),
    };
    for one in of_it {
        for other in &others {
            victims.cut(*one, *other).await?;
        }
    }
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    victims.heal().await
}

async fn slow(victims: &mut impl Victims, nodes: &[usize], end: Instant) {
    while Instant::now() < end {
        nodes.iter().for_each(|node| victims.pause(*node));
        tokio::time::sleep(SLOW_STOP).await;
        nodes.iter().for_each(|node| victims.resume(*node));
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
        for text in ["kill:region-1@3+2", "cut:a/b@0.5+1.5", "slow:leader@0+10"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for (text, said) in [
            ("kill", "not of the form"),
            ("kill:a@3", "not of the form"),
            ("kill:a@x+1", "not of the form"),
            ("kill:a@-1+1", "not of the form"),
            ("burn:a@1+1", "expected kill, cut or slow"),
            ("kill:a/b@1+1", "a fault has one region"),
            ("cut:a/a@1+1", "a fault has one region"),
            ("cut:@1+1", "a fault has one region"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    /// Story: the leader of Tiga had only another protocol's name here.
    #[test]
    fn a_leader_is_named_where_a_protocol_has_one() {
        let faults = ["kill:leader@3+2".parse().unwrap()];
        let tiga = crate::cluster::Regions::Count(3).plan("tiga", None).unwrap();
        let sorted = check(&faults, &tiga, 8).unwrap();
        assert!(sorted[0].is_of_a_role());
        assert_eq!(sorted[0].to_string(), "kill:leader@3+2");
        check(&["kill:coordinator@3+2".parse().unwrap()], &tiga, 8).unwrap();
        let none = ["kill:nobody@3+2".parse().unwrap()];
        let error = check(&none, &tiga, 8).unwrap_err().to_string();
        assert!(error.ends_with("region-3, leader or follower"), "{error}");
        let error = check(&faults, &plan(3), 8).unwrap_err().to_string();
        assert!(error.contains("no region \"leader\"") && error.contains("coordinator"), "{error}");
        let baseline = Plan { protocol: "etcd".to_owned(), ..plan(3) };
        check(&faults, &baseline, 8).unwrap();
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
            ("kill:region-1@1+8", 3, "it ends after the measured 8 s"),
            ("kill:region-1@1+2,slow:region-2@2+1", 3, "before the previous fault ends"),
            ("kill:region-1@1+1", 1, "with a single region"),
        ] {
            let error = check(&faults(text), &plan(regions), 8).unwrap_err();
            assert!(error.to_string().contains(said), "{text}: {error}");
        }
    }
}
