//! The costs of a run: CPU time by node and stage, memory, disks, and WAN traffic by link.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::environment::LabUsage;
use super::stages::Stages;
use super::usage::{LinkTraffic, Usage};
use crate::table::numbers;

/// Above this number, links are listed only in the JSON.
const LINKS_SHOWN_MAX: usize = 20;
/// The protocol's counter of its own batches, each counted once, before compression.
const PAYLOAD: &str = "batch_bytes";
const EPOCHS: &str = "epochs";
/// The name for the CPU time of the load generator.
const LOAD: &str = "load";
/// The name for nodes that share one process.
const TOGETHER: &str = "nodes";

/// All costs. Maps by node use the names of the regions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Costs {
    cpu_us_per_txn: BTreeMap<String, f64>,
    /// Busy cores, of the nodes, the load and a lab in total.
    cores_used: f64,
    memory_mb: BTreeMap<String, f64>,
    memory_peak_mb: BTreeMap<String, f64>,
    fsyncs_per_sec: BTreeMap<String, f64>,
    fsyncs_per_txn: BTreeMap<String, f64>,
    wan_bytes_per_txn: f64,
    wan_bytes_per_txn_uncompressed: f64,
    wan_frames_per_txn: f64,
    /// By sender, then by receiver.
    links: BTreeMap<String, BTreeMap<String, Link>>,
    /// Bytes of one copy of the batches, after compression, for each transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_bytes_per_txn: Option<f64>,
    /// The ratio of the bytes sent to the minimum, which is the payload sent once to each of a
    /// node's peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    wan_bytes_over_payload: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    stages_us_per_txn: BTreeMap<String, Stages>,
    /// For one node, as the mean over all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    stages_ms_per_epoch: Option<Stages>,
    /// Traffic between the regions of a lab, and the costs of the lab itself.
    #[serde(flatten)]
    lab: Option<Lab>,
}

/// Figures of a lab during the measured time.
#[derive(Clone, Debug, Serialize)]
struct Lab {
    /// Bytes on the wire between regions, including those of clients that are not in the server's
    /// region.
    link_bytes_per_txn: f64,
    link_packets_per_txn: f64,
    /// CPU time of the router.
    router_cpu_us_per_txn: f64,
    /// The excess delay of packets, over the lab's whole lifetime.
    link_late_us: BTreeMap<&'static str, f64>,
    /// Packets dropped because the router was too slow.
    link_overruns: u64,
}

/// Traffic from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Link {
    bytes_per_txn: f64,
    bytes_per_txn_uncompressed: f64,
    messages_per_txn: f64,
    bytes_per_sec: f64,
}

impl Costs {
    /// Costs of a run that committed this number of transactions in this number of seconds.
    ///
    /// The nodes have these names, and are in these regions.
    pub fn new(
        (regions, region_of): (&[String], &dyn Fn(usize) -> usize),
        used: &Usage,
        committed: u64,
        seconds: f64,
    ) -> Self {
        let txns = committed as f64;
        // The kernel cannot distinguish nodes that share a process; only their own counters do.
        let is_one = used.node_cpu_us.len() == 1 && regions.len() > 1;
        let names = if is_one { vec![TOGETHER.to_owned()] } else { regions.to_vec() };
        let by_node = |values: Vec<f64>| names.iter().cloned().zip(values).collect();
        let by_region = |values: Vec<f64>| regions.iter().cloned().zip(values).collect();
        let of = |values: &[f64]| values.iter().map(|value| value / txns).collect();
        let megabytes = |bytes: &[u64]| bytes.iter().map(|&it| it as f64 / 1e6).collect();
        // Servers of a baseline report no counters. A node that did not respond counts as zero.
        let counted = |name: &str| -> Vec<f64> {
            let all = used.counters.iter().map(|it| it.get(name).copied());
            let is_known = all.clone().any(|count| count.is_some());
            all.filter(|_| is_known).map(|count| count.unwrap_or(0) as f64).collect()
        };
        let mut cpu_us_per_txn: BTreeMap<String, f64> = by_node(of(&used.node_cpu_us));
        cpu_us_per_txn.insert(LOAD.to_owned(), used.load_cpu_us / txns);
        let router_cpu_us = used.lab.as_ref().map_or(0.0, |lab| lab.router_cpu_us);
        let cpu_us = used.node_cpu_us.iter().sum::<f64>() + used.load_cpu_us + router_cpu_us;
        let fsyncs = counted("fsyncs");
        let wan = used.wan(region_of);
        let payload = payload_bytes(used);
        let all: BTreeSet<usize> = (0..regions.len()).map(region_of).collect();
        let peers = all.len().saturating_sub(1) as f64;
        let over = payload.map(|payload| wan.wire_bytes as f64 / payload / peers);
        let link = |carried: &LinkTraffic| Link {
            bytes_per_txn: carried.wire_bytes as f64 / txns,
            bytes_per_txn_uncompressed: carried.bytes as f64 / txns,
            messages_per_txn: carried.frames as f64 / txns,
            bytes_per_sec: carried.wire_bytes as f64 / seconds,
        };
        let links_of = |(from, sent): (usize, &Vec<LinkTraffic>)| {
            let to = sent.iter().enumerate().filter(|(to, _)| *to != from);
            let links = to.map(|(to, carried)| (regions[to].clone(), link(carried))).collect();
            (regions[from].clone(), links)
        };
        let stages = stages(used);
        let us_per_txn = |of: &Stages| Stages::mean(std::slice::from_ref(of), 1.0 / txns);
        let epochs = counted(EPOCHS).iter().sum::<f64>() / used.counters.len().max(1) as f64;
        let per_epoch =
            (epochs > 0.0 && !stages.is_empty()).then(|| Stages::mean(&stages, 1.0 / epochs / 1e3));
        Self {
            cpu_us_per_txn,
            cores_used: cpu_us / 1e6 / seconds,
            memory_mb: by_node(megabytes(&used.node_memory_bytes)),
            memory_peak_mb: by_node(megabytes(&used.node_memory_bytes_peak)),
            fsyncs_per_sec: by_region(fsyncs.iter().map(|count| count / seconds).collect()),
            fsyncs_per_txn: by_region(of(&fsyncs)),
            wan_bytes_per_txn: wan.wire_bytes as f64 / txns,
            wan_bytes_per_txn_uncompressed: wan.bytes as f64 / txns,
            wan_frames_per_txn: wan.frames as f64 / txns,
            links: used.links.iter().enumerate().map(links_of).collect(),
            payload_bytes_per_txn: payload.map(|payload| payload / txns),
            wan_bytes_over_payload: over.filter(|over| over.is_finite()),
            stages_us_per_txn: regions.iter().cloned().zip(stages.iter().map(us_per_txn)).collect(),
            stages_ms_per_epoch: per_epoch,
            lab: used.lab.as_ref().map(|lab| Lab::new(lab, |amount| amount / txns)),
        }
    }
}

impl Lab {
    fn new(used: &LabUsage, per_txn: impl Fn(f64) -> f64) -> Self {
        let LabUsage { bytes, packets, router_cpu_us, overruns, late_us } = used;
        Self {
            link_bytes_per_txn: per_txn(*bytes as f64),
            link_packets_per_txn: per_txn(*packets as f64),
            router_cpu_us_per_txn: per_txn(*router_cpu_us),
            link_late_us: ["p50", "p99", "max"].into_iter().zip(*late_us).collect(),
            link_overruns: *overruns,
        }
    }
}

/// Returns CPU time of each node by stage, in microseconds, if all nodes were metered.
fn stages(used: &Usage) -> Vec<Stages> {
    let of = |(node, counters): (usize, &BTreeMap<String, u64>)| {
        let threads = used.threads.get(node).copied().unwrap_or_default();
        let cpu_us = used.node_cpu_us.get(node).copied()?;
        Stages::new(counters, threads, cpu_us)
    };
    // Nodes in one process cannot be distinguished by the kernel's counters.
    if used.node_cpu_us.len() != used.counters.len() {
        return Vec::new();
    }
    used.counters.iter().enumerate().map(of).collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Returns the bytes on the wire of one copy of all batches. They are computed from the protocol's
/// counter before compression and the compression ratio of the lane that carries batches.
fn payload_bytes(used: &Usage) -> Option<f64> {
    let nodes = used.counters.iter().zip(&used.links);
    let bytes = nodes.map(|(counters, sent)| {
        let plain = *counters.get(PAYLOAD)? as f64;
        let all = sent.iter().fold(LinkTraffic::default(), |all, link| all.plus(*link));
        let ratio = match all.bulk_bytes {
            0 => 1.0,
            bytes => all.bulk_wire_bytes as f64 / bytes as f64,
        };
        Some(plain * ratio)
    });
    let all = bytes.sum::<Option<f64>>()?;
    (all > 0.0).then_some(all)
}

impl Costs {
    /// Writes the traffic between the regions of a lab.
    fn fmt_lab(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(lab) = &self.lab else { return Ok(()) };
        let late = |name| lab.link_late_us.get(name).copied().unwrap_or(0.0);
        writeln!(
            f,
            "  links        {:.0} bytes a txn in {:.1} packets, {:.0} us late (p99 {:.0} us); the \
             router used {:.0} us of CPU time a txn",
            lab.link_bytes_per_txn,
            lab.link_packets_per_txn,
            late("p50"),
            late("p99"),
            lab.router_cpu_us_per_txn
        )?;
        match lab.link_overruns {
            0 => Ok(()),
            count => writeln!(
                f,
                "               {count} packets were dropped: this machine was too slow for the lab"
            ),
        }
    }

    fn fmt_links(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.links.values().map(BTreeMap::len).sum::<usize>();
        if count == 0 || count > LINKS_SHOWN_MAX {
            return Ok(());
        }
        let header = ["link", "bytes a txn", "uncompressed", "messages a txn", "KB/s"];
        let mut table = numbers(&header);
        for (from, sent) in &self.links {
            for (to, link) in sent {
                table.add_row([
                    format!("{from} to {to}"),
                    format!("{:.0}", link.bytes_per_txn),
                    format!("{:.0}", link.bytes_per_txn_uncompressed),
                    format!("{:.3}", link.messages_per_txn),
                    format!("{:.0}", link.bytes_per_sec / 1e3),
                ]);
            }
        }
        writeln!(f, "\n{table}\n")
    }

    fn fmt_stages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(per_epoch) = &self.stages_ms_per_epoch else { return Ok(()) };
        let names = self.stages_us_per_txn.keys().map(|region| format!("{region} us"));
        let header: Vec<String> = std::iter::once("CPU time of a transaction".to_owned())
            .chain(names)
            .chain(["an epoch, ms".to_owned()])
            .collect();
        let mut table = numbers(&header);
        for (index, (words, ms)) in per_epoch.in_words().enumerate() {
            if ms == 0.0 {
                // The protocol does not have this stage.
                continue;
            }
            let us = |stages: &Stages| stages.in_words().nth(index).map_or(0.0, |(_, us)| us);
            let cells = self.stages_us_per_txn.values().map(|it| format!("{:.2}", us(it)));
            let cells = std::iter::once(words.to_owned()).chain(cells);
            table.add_row(cells.chain([format!("{ms:.3}")]));
        }
        writeln!(f, "\n{table}\n")
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |values: &BTreeMap<String, f64>, digits: usize, unit: &str| {
            let of = values.iter().map(|(name, value)| format!("{name} {value:.digits$}{unit}"));
            of.collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "  cpu a txn    {}", each(&self.cpu_us_per_txn, 0, " us"))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        writeln!(f, "  cores busy   {:.2} of {cores}", self.cores_used)?;
        writeln!(f, "  memory       {}", each(&self.memory_mb, 0, " MB"))?;
        if !self.memory_peak_mb.is_empty() {
            writeln!(f, "  peak memory  {}", each(&self.memory_peak_mb, 0, " MB"))?;
        }
        if !self.fsyncs_per_sec.is_empty() {
            writeln!(f, "  fsyncs       {}", each(&self.fsyncs_per_sec, 0, " a second"))?;
        }
        self.fmt_stages(f)?;
        self.fmt_lab(f)?;
        if self.links.len() < 2 {
            return Ok(());
        }
        writeln!(
            f,
            "  WAN          {:.0} bytes a txn ({:.0} before compression), {:.2} frames",
            self.wan_bytes_per_txn, self.wan_bytes_per_txn_uncompressed, self.wan_frames_per_txn
        )?;
        if let (Some(payload), Some(over)) =
            (self.payload_bytes_per_txn, self.wan_bytes_over_payload)
        {
            let peers = self.links.len() - 1;
            writeln!(
                f,
                "               {over:.2} times the {payload:.0} bytes of a txn's compressed \
                 batch, for each of {peers} peers"
            )?;
        }
        self.fmt_links(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::Threads;
    use super::*;

    fn used() -> Usage {
        let sent = |wire_bytes, bulk_bytes| LinkTraffic {
            frames: 10,
            bytes: bulk_bytes + 100,
            wire_bytes,
            bulk_bytes,
            bulk_wire_bytes: wire_bytes - 100,
        };
        let counters = |payload| {
            let counters = [(PAYLOAD, payload), ("fsyncs", 50), (EPOCHS, 4)];
            counters.map(|(name, value)| (name.to_owned(), value)).into()
        };
        Usage {
            node_cpu_us: vec![400.0, 600.0],
            load_cpu_us: 200.0,
            threads: vec![Threads::default(); 2],
            node_memory_bytes: vec![5_000_000, 6_000_000],
            node_memory_bytes_peak: vec![7_000_000, 8_000_000],
            links: vec![
                vec![LinkTraffic::default(), sent(600, 1_000)],
                vec![sent(1_100, 2_000), LinkTraffic::default()],
            ],
            counters: vec![counters(1_000), counters(2_000)],
            traces: vec![Vec::new(); 2],
            lab: None,
        }
    }

    #[test]
    fn links_add_up_to_the_total_and_payload_is_counted_once() {
        let regions = ["a".to_owned(), "b".to_owned()];
        let costs = Costs::new((&regions, &|node| node), &used(), 10, 2.0);
        let links = || costs.links.values().flat_map(BTreeMap::values);
        let bytes: f64 = links().map(|link| link.bytes_per_txn).sum();
        assert!((bytes - costs.wan_bytes_per_txn).abs() < 1e-9 && bytes == 170.0, "{bytes}");
        let frames: f64 = links().map(|link| link.messages_per_txn).sum();
        assert_eq!((frames, costs.wan_frames_per_txn), (2.0, 2.0));
        // Both lanes compress to one half: 500 and 1,000 bytes of batches; 1,700 bytes were sent.
        assert_eq!(costs.payload_bytes_per_txn, Some(150.0));
        let over = costs.wan_bytes_over_payload.unwrap();
        assert!((over - 1_700.0 / 1_500.0).abs() < 1e-9, "{over}");
        assert_eq!(costs.fsyncs_per_sec["a"], 25.0);
        assert_eq!(costs.cpu_us_per_txn["b"], 60.0);
        assert!(costs.stages_ms_per_epoch.is_none(), "stages were not metered");
        let text = costs.to_string();
        assert!(text.contains("1.13 times the 150 bytes"), "{text}");
        assert!(text.contains("a to b"), "{text}");
    }

    #[test]
    fn what_was_sent_twice_is_over_the_payload() {
        let mut used = used();
        for link in used.links.iter_mut().flatten() {
            *link = link.plus(*link);
        }
        let regions = ["a".to_owned(), "b".to_owned()];
        let over =
            Costs::new((&regions, &|node| node), &used, 10, 2.0).wan_bytes_over_payload.unwrap();
        assert!((over - 2.0 * 1_700.0 / 1_500.0).abs() < 1e-9, "{over}");
    }

    #[test]
    fn a_node_alone_has_no_wide_area() {
        let alone = Usage {
            node_cpu_us: vec![9.0],
            links: vec![vec![LinkTraffic::default()]],
            counters: vec![BTreeMap::from([(PAYLOAD.to_owned(), 500)])],
            ..Usage::default()
        };
        let costs = Costs::new((&["a".to_owned()], &|node| node), &alone, 1, 1.0);
        assert_eq!((costs.wan_bytes_per_txn, costs.wan_bytes_over_payload), (0.0, None));
        assert!(!costs.to_string().contains("WAN"));
    }
}
