//! What a cluster would do on given machines: throughput and latency, predicted, not measured.
//!
//! The protocol's code, the store and the workload's transactions are the real ones, so batches,
//! epochs, conflicts and aborts are what they would be. Only time is modelled: everything that a
//! node does takes as long as a calibration found ([`Costs`]), on cores that serve threads as a
//! fair scheduler does ([`machine`]).
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
//! | pool | what of a step is data-parallel, on as many cores as there are workers |
//! | disk | one fsync at a time, drawn from the measured shares |
//! | link | the one-way delay, after the bytes have passed the bandwidth |
//!
//! The same seed, costs and settings give the same prediction. What is not modelled: faults but
//! the loss of a region, checkpoints, caches that grow colder with more data, and what the lock
//! graph of several workers costs to make.

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

/// The least and the most replicas of a prediction.
pub const REPLICAS: std::ops::RangeInclusive<usize> = 3..=15;

/// The most nodes of one.
pub const NODES_MAX: usize = 128;

/// What processors there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// So many at each node; clients are elsewhere.
    Each(usize),
    /// So many for all nodes and the clients together, as where one machine runs everything.
    Shared(usize),
}

/// When clients call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each has one call in flight.
    Closed,
    /// At random times, so often a second in all regions together.
    Open {
        /// How often.
        per_sec: f64,
    },
}

/// A region that is lost for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Which; nothing is that of the node that coordinates then.
    pub region: Option<usize>,
    /// When, after the measured time has begun.
    pub at: Span,
}

/// What is to be predicted.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of everything random.
    pub seed: u64,
    /// The regions' names, one replica in each.
    pub regions: Vec<String>,
    /// How tables are divided over the nodes of a region, of which there are as many as shards.
    pub partitions: Partitions,
    /// One-way delays between regions: `one_way[from][to]`, and within one that between its nodes.
    pub one_way: Vec<Vec<Span>>,
    /// Bits a second from one replica to one other, or no limit.
    pub bandwidth_bits: Option<u64>,
    /// Clients in all regions together.
    pub clients: usize,
    /// When they call.
    pub pace: Pace,
    /// What is lost meanwhile, if anything is.
    pub loss: Option<Loss>,
    /// How long clients work before anything counts.
    pub warmup: Span,
    /// How long what they do counts.
    pub duration: Span,
    /// The processors.
    pub cores: Cores,
    /// What clients do.
    pub workload: Workload,
    /// The procedures.
    pub registry: Arc<Registry>,
}

impl Settings {
    /// How many nodes there are: region after region, and in each the shards in order.
    fn nodes(&self) -> usize {
        self.regions.len() * usize::from(self.partitions.shards())
    }

    /// The region of a node.
    fn region_of(&self, node: usize) -> usize {
        node / usize::from(self.partitions.shards())
    }

    /// The name of a node's place.
    fn place(&self, node: usize) -> String {
        let region = &self.regions[self.region_of(node)];
        match usize::from(self.partitions.shards()) {
            1 => region.clone(),
            shards => format!("{region}.{}", node % shards),
        }
    }

    /// How many threads of a node run data-parallel work.
    fn workers(&self) -> usize {
        match self.cores {
            Cores::Each(cores) => cores,
            Cores::Shared(cores) => (cores / self.nodes()).max(1),
        }
    }
}
