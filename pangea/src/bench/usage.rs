//! What the machine and the network gave, and what the protocol counted.

use std::collections::BTreeMap;

use pangea_node::client::Client;
use pangea_peers::{Peer, Process};

use super::ground::LabUsage;
use crate::cluster::Cluster;
use crate::failure::Failure;

/// Totals since the processes started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time of each node in microseconds.
    pub node_cpu_us: Vec<f64>,
    /// CPU time of this process.
    pub load_cpu_us: f64,
    /// Memory of each node now, in bytes.
    pub node_memory_bytes: Vec<u64>,
    /// Bytes that the nodes sent to each other, as they are on the wire.
    pub wan_bytes: u64,
    /// The same before compression.
    pub wan_bytes_uncompressed: u64,
    /// Frames that the nodes sent to each other.
    pub wan_frames: u64,
    /// What the protocol counted, by node.
    pub counters: Vec<BTreeMap<String, u64>>,
    /// What the lab counted, where there is one.
    pub lab: Option<LabUsage>,
}

impl Usage {
    /// Reads all of it.
    ///
    /// # Errors
    /// When a node is gone.
    pub async fn read(cluster: &mut Cluster, clients: &[Client]) -> Result<Self, Failure> {
        let mut usage = Self { load_cpu_us: process(None)?.cpu_us, ..Self::default() };
        for member in &mut cluster.members {
            let pid = member.pid();
            let gone = || Failure::Failed(format!("the node in {} is gone", member.region()));
            let pid = pid.ok_or_else(gone)?;
            let process = process(Some(pid))?;
            usage.node_cpu_us.push(process.cpu_us);
            usage.node_memory_bytes.push(process.memory_bytes);
        }
        for client in clients {
            let lost = |error| Failure::failed(client.region(), error);
            for link in client.links().await.map_err(lost)? {
                for lane in [link.control, link.bulk] {
                    usage.wan_bytes += lane.wire_bytes_sent;
                    usage.wan_bytes_uncompressed += lane.bytes_sent;
                    usage.wan_frames += lane.frames_sent;
                }
            }
            usage.counters.push(client.status().await.map_err(lost)?.counters);
        }
        Ok(usage)
    }

    /// Reads what a peer used. What its servers send to each other, nobody counts.
    ///
    /// # Errors
    /// When `/proc` can't be read.
    pub fn of_peer(peer: &Peer) -> Result<Self, Failure> {
        let servers = peer.usage();
        Ok(Self {
            node_cpu_us: servers.iter().map(|server| server.cpu_us).collect(),
            load_cpu_us: process(None)?.cpu_us,
            node_memory_bytes: servers.iter().map(|server| server.memory_bytes).collect(),
            counters: vec![BTreeMap::new(); servers.len()],
            ..Self::default()
        })
    }

    /// The same in a lab, whose router is a thread of this process and no part of the load.
    pub fn in_lab(mut self, lab: Option<LabUsage>) -> Self {
        self.load_cpu_us -= lab.as_ref().map_or(0.0, |lab| lab.router_cpu_us);
        self.lab = lab;
        self
    }

    /// What was added since `before`. Memory stays what it is. A node that was started again
    /// meanwhile began anew: what it did before that is not known.
    pub fn since(&self, before: &Self) -> Self {
        let difference = |after: &[f64], before: &[f64]| {
            let grown = |(after, before): (&f64, &f64)| match after >= before {
                true => after - before,
                false => *after,
            };
            after.iter().zip(before).map(grown).collect()
        };
        let counters = |(after, before): (&BTreeMap<String, u64>, &BTreeMap<String, u64>)| {
            let grown = |(name, after): (&String, &u64)| {
                let before = before.get(name).copied().unwrap_or(0);
                (name.clone(), after.saturating_sub(before))
            };
            after.iter().map(grown).collect()
        };
        Self {
            node_cpu_us: difference(&self.node_cpu_us, &before.node_cpu_us),
            load_cpu_us: self.load_cpu_us - before.load_cpu_us,
            node_memory_bytes: self.node_memory_bytes.clone(),
            wan_bytes: self.wan_bytes.saturating_sub(before.wan_bytes),
            wan_bytes_uncompressed: self
                .wan_bytes_uncompressed
                .saturating_sub(before.wan_bytes_uncompressed),
            wan_frames: self.wan_frames.saturating_sub(before.wan_frames),
            counters: self.counters.iter().zip(&before.counters).map(counters).collect(),
            lab: self.lab.as_ref().zip(before.lab.as_ref()).map(|(lab, before)| lab.since(before)),
        }
    }
}

/// What the kernel says of a process, or of this one.
fn process(pid: Option<u32>) -> Result<Process, Failure> {
    let cant = |error| Failure::failed("can't read what a process takes", error);
    Process::read(pid).map_err(cant)
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
        let before = Usage { wan_bytes: 10, counters: counters(3), ..Usage::default() };
        let after = Usage { wan_bytes: 25, counters: counters(10), ..Usage::default() };
        let since = after.since(&before);
        assert_eq!((since.wan_bytes, since.counters[0]["epochs"]), (15, 7));
        let of = |cpu_us: f64| Usage { node_cpu_us: vec![cpu_us], ..Usage::default() };
        assert_eq!(of(9.0).since(&of(4.0)).node_cpu_us, [5.0]);
        assert_eq!(of(3.0).since(&of(4.0)).node_cpu_us, [3.0], "it was started again");
        assert_eq!(before.since(&after).wan_bytes, 0);
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
