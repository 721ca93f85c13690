//! Predicts the throughput and latency of a cluster on given machines.
//!
//! The protocol's code, the store and the workload's transactions are the real ones, so batches,
//! epochs, conflicts and aborts are realistic. Only time is modelled: each activity of a node takes
//! as long as a calibration measured ([`Costs`]), on cores that serve threads like a fair scheduler
//! ([`machine`]).
//!
//! ```text
//!   clients --> request reader --> inbox --> event loop --> log writer --> fsync
//!      ^                             ^         |  |  `--> pool
//!      `------- answer writer <------+---------'  `--> sender --> link --> reader of the peer
//! ```
//!
//! | server | time |
//! |---|---|
//! | threads: those above, a sender and a reader for each lane | a line of its kind, on a core |
//! | pool | the data-parallel part of a step, on as many cores as there are workers |
//! | disk | one fsync at a time, drawn from the measured shares |
//! | link | the one-way delay, after the bytes have passed the bandwidth |
//!
//! The same seed, costs and settings give the same prediction. The model does not include: faults
//! other than the loss of a region, checkpoints, caches that grow colder with more data, and the
//! cost of building the lock graph of several workers.

pub mod costs;
pub mod machine;
mod node;
mod outcome;
mod rows;
mod steps;
mod world;

use std::sync::Arc;

use pangea_core::partition::Partitions;
use pangea_core::time::Span;
use pangea_core::txn::Registry;
use pangea_core::workload::Workload;

pub use costs::{Calibration, Costs, Line};
pub use outcome::{Latency, Prediction, Region, Server, Survived};
pub use rows::Loaded;
pub use world::predict;

/// The minimum and maximum number of replicas of a prediction.
pub const REPLICAS: std::ops::RangeInclusive<usize> = 3..=15;

/// The maximum number of nodes of a prediction.
pub const NODES_MAX: usize = 128;

/// The processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// The number of cores of each node; clients run elsewhere.
    Each(usize),
    /// The number of cores shared by all nodes and the clients, as on a single machine.
    Shared(usize),
}

/// The arrival of calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalModel {
    /// Closed loop: each client has one call in flight.
    Closed,
    /// Open loop: calls arrive at random times, at a rate over all regions.
    Open {
        /// Calls per second.
        per_sec: f64,
    },
}

/// A region that is lost permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The index of the region; `None` for the region of the coordinator at that time.
    pub region: Option<usize>,
    /// The time of the loss, counted from the start of the measurement.
    pub at: Span,
}

/// The input of a prediction.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of everything random.
    pub seed: u64,
    /// The regions' names, with one replica in each.
    pub regions: Vec<String>,
    /// The partitioning of tables over the nodes of a region, one for each shard.
    pub partitions: Partitions,
    /// One-way delays between regions, `one_way[from][to]`; `one_way[r][r]` is the delay between
    /// the nodes of a region.
    pub one_way: Vec<Vec<Span>>,
    /// The bandwidth from one replica to another, in bits per second; `None` means no limit.
    pub bandwidth_bits: Option<u64>,
    /// The number of clients, over all regions.
    pub clients: usize,
    /// The arrival of calls.
    pub pace: ArrivalModel,
    /// The loss of a region, if any.
    pub loss: Option<Loss>,
    /// The time that clients work before the measurement.
    pub warmup: Span,
    /// The length of the measurement.
    pub duration: Span,
    /// The processors.
    pub cores: Cores,
    /// The workload.
    pub workload: Workload,
    /// The procedures.
    pub registry: Arc<Registry>,
}

impl Settings {
    /// The number of nodes. They are numbered by region, and within a region by shard.
    fn nodes(&self) -> usize {
        self.regions.len() * usize::from(self.partitions.shards())
    }

    /// The region of a node.
    fn region_of(&self, node: usize) -> usize {
        node / usize::from(self.partitions.shards())
    }

    /// The name of a node's location.
    fn place(&self, node: usize) -> String {
        let region = &self.regions[self.region_of(node)];
        match usize::from(self.partitions.shards()) {
            1 => region.clone(),
            shards => format!("{region}.{}", node % shards),
        }
    }

    /// The number of threads of a node that run data-parallel work.
    fn workers(&self) -> usize {
        match self.cores {
            Cores::Each(cores) => cores,
            Cores::Shared(cores) => (cores / self.nodes()).max(1),
        }
    }
}
