//! Resources used of the machine and the network, and the protocol's counters.

use std::collections::BTreeMap;

use pangea_baselines::{Meter, Process, cpu_us_by_thread, memory_bytes_peak};
use pangea_node::client::Client;
use pangea_node::driver::LatencySample;
use pangea_node::transport::{LaneReport, LinkReport};

use super::environment::LabUsage;
use super::stages::Threads;
use crate::cluster::ProcessHandle;
use crate::failure::Failure;

/// Values reported by a node that are current levels, not counters.
const LEVELS: [&str; 4] = ["rows_bytes", "rows_cold", "txns_held", "cold_delay_us"];

/// The name of a runtime's threads. In a node, these serve PostgreSQL's protocol.
pub(super) const RUNTIME_THREADS: &str = "tokio";
/// The name of the threads of a node's pool.
const POOL_THREADS: &str = "pool-";

/// Totals since the processes started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time of each node in microseconds. A single value if all nodes share a process.
    pub node_cpu_us: Vec<f64>,
    /// CPU time of this process, or of its threads that generate the load.
    pub load_cpu_us: f64,
    /// The CPU time of threads that no node meters.
    pub threads: Vec<Threads>,
    /// Current memory of each node's process, in bytes.
    pub node_memory_bytes: Vec<u64>,
    /// The peak memory of each node's process, if known.
    pub node_memory_bytes_peak: Vec<u64>,
    /// Traffic between nodes: by sender, then by receiver.
    pub links: Vec<Vec<LinkTraffic>>,
    /// The protocol's counters, by node.
    pub counters: Vec<BTreeMap<String, u64>>,
    /// Latency breakdowns of traced transactions since the previous read, by node.
    pub traces: Vec<Vec<LatencySample>>,
    /// The lab's counters, if there is a lab.
    pub lab: Option<LabUsage>,
}

/// Traffic from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Messages of the protocol and of the transport, which sends a ping a second.
    pub frames: u64,
    /// The bytes of the messages before compression.
    pub bytes: u64,
    /// The bytes of the messages on the wire.
    pub wire_bytes: u64,
    /// The bytes before compression on the lane that is compressed.
    pub bulk_bytes: u64,
    /// The bytes on the wire on that lane.
    pub bulk_wire_bytes: u64,
}

impl LinkTraffic {
    fn of(link: &LinkReport) -> Self {
        let LinkReport { control, bulk, .. } = link;
        let both = |of: fn(&LaneReport) -> u64| of(control) + of(bulk);
        Self {
            frames: both(|lane| lane.frames_sent),
            bytes: both(|lane| lane.bytes_sent),
            wire_bytes: both(|lane| lane.wire_bytes_sent),
            bulk_bytes: bulk.bytes_sent,
            bulk_wire_bytes: bulk.wire_bytes_sent,
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            wire_bytes: self.wire_bytes + other.wire_bytes,
            bulk_bytes: self.bulk_bytes + other.bulk_bytes,
            bulk_wire_bytes: self.bulk_wire_bytes + other.bulk_wire_bytes,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            frames: grown(self.frames, before.frames),
            bytes: grown(self.bytes, before.bytes),
            wire_bytes: grown(self.wire_bytes, before.wire_bytes),
            bulk_bytes: grown(self.bulk_bytes, before.bulk_bytes),
            bulk_wire_bytes: grown(self.bulk_wire_bytes, before.bulk_wire_bytes),
        }
    }
}

/// Returns the increase of a total. If the process has restarted, its total before the restart is
/// unknown.
fn grown(after: u64, before: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

fn grown_by(after: f64, before: f64) -> f64 {
    if after >= before { after - before } else { after }
}

/// A node's report of its own totals, since it started.
#[derive(Clone, Debug, Default)]
pub struct NodeCounters {
    sent: Vec<LinkTraffic>,
    counters: BTreeMap<String, u64>,
    traces: Vec<LatencySample>,
}

impl NodeCounters {
    /// Queries all reports of a node concurrently, in a cluster with this number of nodes.
    ///
    /// # Errors
    /// If the node is unreachable.
    pub async fn ask(client: &Client, nodes: usize) -> Result<Self, Failure> {
        let lost = |error| Failure::failed(client.region(), error);
        let answers = tokio::try_join!(client.links(), client.status(), client.latency_samples());
        let (links, status, traces) = answers.map_err(lost)?;
        let mut sent = vec![LinkTraffic::default(); nodes];
        // Caches are in the regions of their nodes.
        for link in links.iter().filter(|link| link.peer.index() < nodes) {
            sent[link.peer.index()] = LinkTraffic::of(link);
        }
        Ok(Self { sent, counters: status.counters, traces })
    }

    /// Pairs the nodes' reports from both ends of an interval, so that every node has both. If a
    /// node was silent at either end, its activity is unknown and counts as zero.
    pub fn pairs(before: Vec<Option<Self>>, after: Vec<Option<Self>>) -> [Vec<Self>; 2] {
        let pair = |(before, after): (Option<Self>, Option<Self>)| match (before, after) {
            (Some(before), Some(after)) => (before, after),
            (one, other) => {
                let known = Self { traces: Vec::new(), ..one.or(other).unwrap_or_default() };
                (known.clone(), known)
            }
        };
        let (before, after) = before.into_iter().zip(after).map(pair).unzip();
        [before, after]
    }
}

impl Usage {
    /// Reads the resources used by the processes of the nodes and by the load. A process that is
    /// not running counts as zero.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn of_nodes(process_handles: &[ProcessHandle]) -> Result<Self, Failure> {
        let mut usage = Self { load_cpu_us: process(None)?.cpu_us, ..Self::default() };
        for number in process_handles {
            let pid = number.get();
            let found = pid.and_then(|pid| process(Some(pid)).ok());
            usage.node_cpu_us.push(found.map_or(0.0, |process| process.cpu_us));
            usage.threads.push(pid.map(threads).unwrap_or_default());
            usage.node_memory_bytes.push(found.map_or(0, |process| process.memory_bytes));
            usage.node_memory_bytes_peak.push(pid.and_then(memory_bytes_peak).unwrap_or(0));
        }
        Ok(usage)
    }

    /// Adds the nodes' reports.
    pub fn add(&mut self, nodes: Vec<NodeCounters>) {
        for NodeCounters { sent, counters, traces } in nodes {
            self.links.push(sent);
            self.counters.push(counters);
            self.traces.push(traces);
        }
    }

    /// Reads the resources used by a baseline. The traffic between its servers is not measured.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn of_baseline(meter: &Meter) -> Result<Self, Failure> {
        let servers = meter.usage();
        Ok(Self {
            node_cpu_us: servers.iter().map(|server| server.cpu_us).collect(),
            load_cpu_us: process(None)?.cpu_us,
            node_memory_bytes: servers.iter().map(|server| server.memory_bytes).collect(),
            counters: vec![BTreeMap::new(); servers.len()],
            ..Self::default()
        })
    }

    /// Returns the traffic from nodes to other regions. The nodes are in these regions.
    pub fn wan(&self, region_of: impl Fn(usize) -> usize) -> LinkTraffic {
        let is_far = |from: usize, to: usize| region_of(from) != region_of(to);
        let far = self.links.iter().enumerate().flat_map(|(from, sent)| {
            let of_node = sent.iter().enumerate().filter(move |(to, _)| is_far(from, *to));
            of_node.map(|(_, link)| *link)
        });
        far.fold(LinkTraffic::default(), LinkTraffic::plus)
    }

    /// Adds a lab's counters and excludes its router, a thread of this process, from the load.
    pub fn in_lab(mut self, lab: Option<LabUsage>) -> Self {
        self.load_cpu_us -= lab.as_ref().map_or(0.0, |lab| lab.router_cpu_us);
        self.lab = lab;
        self
    }

    /// Returns the increase since `before`. Memory and [`LEVELS`] remain current values. If a node
    /// has restarted, its totals before the restart are unknown.
    pub fn since(&self, before: &Self) -> Self {
        let difference = |after: &[f64], before: &[f64]| {
            let pairs = after.iter().zip(before);
            pairs.map(|(after, before)| grown_by(*after, *before)).collect()
        };
        let counters = |(after, before): (&BTreeMap<String, u64>, &BTreeMap<String, u64>)| {
            let grown = |(name, after): (&String, &u64)| {
                let is_level = LEVELS.contains(&name.as_str());
                let before = if is_level { None } else { before.get(name).copied() };
                let before = before.unwrap_or(0);
                (name.clone(), after.saturating_sub(before))
            };
            after.iter().map(grown).collect()
        };
        let links = |(after, before): (&Vec<LinkTraffic>, &Vec<LinkTraffic>)| {
            after.iter().zip(before).map(|(after, before)| after.since(*before)).collect()
        };
        let threads = |(after, before): (&Threads, &Threads)| Threads {
            sql_us: grown_by(after.sql_us, before.sql_us),
            pool_us: grown_by(after.pool_us, before.pool_us),
        };
        Self {
            node_cpu_us: difference(&self.node_cpu_us, &before.node_cpu_us),
            load_cpu_us: self.load_cpu_us - before.load_cpu_us,
            threads: self.threads.iter().zip(&before.threads).map(threads).collect(),
            node_memory_bytes: self.node_memory_bytes.clone(),
            node_memory_bytes_peak: self.node_memory_bytes_peak.clone(),
            links: self.links.iter().zip(&before.links).map(links).collect(),
            counters: self.counters.iter().zip(&before.counters).map(counters).collect(),
            traces: self.traces.clone(),
            lab: self.lab.as_ref().zip(before.lab.as_ref()).map(|(lab, before)| lab.since(before)),
        }
    }
}

/// Returns the kernel's figures of a process, or of this one for `None`.
pub(super) fn process(pid: Option<u32>) -> Result<Process, Failure> {
    let cant = |error| Failure::failed("can't read what a process takes", error);
    Process::read(pid).map_err(cant)
}

/// Returns CPU time of the threads of a node that it does not meter.
pub(super) fn threads(pid: u32) -> Threads {
    let by_name = cpu_us_by_thread(pid);
    let of = |begin: &str| {
        let its = by_name.iter().filter(|(name, _)| name.starts_with(begin));
        its.map(|(_, us)| us).sum()
    };
    Threads { sql_us: of(RUNTIME_THREADS), pool_us: of(POOL_THREADS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory() {
        assert!(super::process(None).unwrap().memory_bytes > 1_000_000);
        assert!(super::process(Some(u32::MAX)).is_err());
    }

    #[test]
    fn what_was_added_is_the_difference() {
        let counters = |n| vec![BTreeMap::from([("epochs".to_owned(), n)])];
        let sent = |wire_bytes| LinkTraffic { wire_bytes, ..LinkTraffic::default() };
        let links = |a, b| vec![vec![sent(0), sent(a)], vec![sent(b), sent(0)]];
        let before = Usage { links: links(10, 4), counters: counters(3), ..Usage::default() };
        let after = Usage { links: links(25, 6), counters: counters(10), ..Usage::default() };
        let since = after.since(&before);
        assert_eq!((since.wan(|node| node).wire_bytes, since.counters[0]["epochs"]), (17, 7));
        assert_eq!(since.links, links(15, 2));
        let level = |n| {
            let counters = vec![BTreeMap::from([("rows_bytes".to_owned(), n)])];
            Usage { counters, ..Usage::default() }
        };
        assert_eq!(level(5).since(&level(7)).counters[0]["rows_bytes"], 5);
        let of = |cpu_us: f64| Usage { node_cpu_us: vec![cpu_us], ..Usage::default() };
        assert_eq!(of(9.0).since(&of(4.0)).node_cpu_us, [5.0]);
        assert_eq!(of(3.0).since(&of(4.0)).node_cpu_us, [3.0], "it was started again");
        assert_eq!(before.since(&after).links, links(10, 4), "and so were its links");
    }

    #[test]
    fn a_node_that_was_silent_at_one_end_counts_for_nothing() {
        let nodes = |epochs| {
            let counters = BTreeMap::from([("epochs".to_owned(), epochs)]);
            Some(NodeCounters {
                sent: vec![LinkTraffic::default(); 3],
                counters,
                traces: Vec::new(),
            })
        };
        let [before, after] =
            NodeCounters::pairs(vec![nodes(3), None, nodes(8)], vec![nodes(10), nodes(700), None]);
        let of = |nodes| {
            let mut usage = Usage::default();
            usage.add(nodes);
            usage
        };
        let since = of(after).since(&of(before));
        let epochs: Vec<u64> = since.counters.iter().map(|it| it["epochs"]).collect();
        assert_eq!((epochs, since.links.len()), (vec![7, 0, 0], 3));
    }

    #[test]
    fn a_labs_router_is_no_load() {
        let of = |load_cpu_us, router_cpu_us, bytes| {
            let lab = LabUsage { router_cpu_us, bytes, ..LabUsage::default() };
            Usage { load_cpu_us, ..Usage::default() }.in_lab(Some(lab))
        };
        let since = of(90.0, 20.0, 7).since(&of(30.0, 10.0, 3));
        assert_eq!(since.load_cpu_us, 50.0);
        let lab = since.lab.unwrap();
        assert_eq!((lab.router_cpu_us, lab.bytes), (10.0, 4));
    }
}
