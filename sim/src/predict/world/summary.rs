//! Summarises the measured time as a [`Prediction`].

use pangea_core::protocol::Protocol;

use super::{Done, World};
use crate::predict::machine::Machine;
use crate::predict::node::Node;
use crate::predict::outcome::{Latency, Prediction, Region, Server, bottleneck, shares};

impl<P: Protocol> World<'_, P> {
    pub(super) fn done(&self) -> Done {
        let loop_ns =
            |node: &Node<P>| self.machines[node.threads.machine].busy_ns(node.threads.event_loop);
        Done {
            machines_ns: self.machines.iter().map(Machine::all_busy_ns).collect(),
            loops_ns: self.nodes.iter().map(loop_ns).collect(),
            fsync_ns: self.nodes.iter().map(|node| node.log.fsync_busy_ns).collect(),
            wire_bytes: self.wire_bytes,
            counters: self.nodes[0].protocol.status().counters,
        }
    }

    pub(super) fn outcome(mut self) -> Prediction {
        let (before, after) = (self.measured_from.take().unwrap_or_default(), self.done());
        let secs = self.settings.duration.us as f64 / 1e6;
        let regions: Vec<Region> = self
            .settings
            .regions
            .iter()
            .zip(self.latencies_us.iter_mut().zip(&self.commits))
            .map(|(name, (latencies, commits))| Region {
                name: name.clone(),
                throughput_per_sec: latencies.len() as f64 / secs,
                latency_ms: Latency::of(latencies),
                pause_ms: commits.longest_pause_ns(self.now_ns) as f64 / 1e6,
            })
            .collect();
        let mut all = self.latencies_us.concat();
        let committed = all.len() as f64;
        let cpu_ns: u64 =
            after.machines_ns.iter().zip(&before.machines_ns).map(|(a, b)| a - b).sum();
        let per_txn = |amount: f64| amount / committed.max(1.0);
        let servers = self.servers(&before, &after, secs);
        Prediction {
            replicas: self.settings.regions.len(),
            partitions: self.settings.partitions.shards(),
            throughput_per_sec: committed / secs,
            latency_ms: Latency::of(&mut all),
            regions,
            committed: all.len() as u64,
            aborted: self.aborted,
            shares: shares(&before.counters, &after.counters),
            cpu_us_per_txn: per_txn(cpu_ns as f64 / 1e3),
            wan_bytes_per_txn: per_txn(after.wire_bytes - before.wire_bytes),
            bottleneck: bottleneck(&servers),
            coordinator: self.coordinator().map(|node| self.settings.place(node.index())),
            survived: self.survived(),
            servers,
            events: self.events,
        }
    }

    fn servers(&self, before: &Done, after: &Done, secs: f64) -> Vec<Server> {
        let busiest = |name, before: &[u64], after: &[u64], servers: usize| {
            let used = after.iter().zip(before).map(|(a, b)| a - b).enumerate();
            let (at, ns) = used.max_by_key(|(_, ns)| *ns).unwrap_or((0, 0));
            let region = self.settings.place(at);
            Server { name, region, utilisation: ns as f64 / 1e9 / secs / servers as f64 }
        };
        let cores = self.machines[0].cores();
        vec![
            busiest("event loop", &before.loops_ns, &after.loops_ns, 1),
            busiest("cores", &before.machines_ns, &after.machines_ns, cores),
            busiest("disk", &before.fsync_ns, &after.fsync_ns, 1),
        ]
    }
}
