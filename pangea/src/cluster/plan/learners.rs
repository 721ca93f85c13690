//! Learners in the plan of a cluster, and the nodes that have clients.

use super::{Plan, Tuning, workers};
use crate::failure::Failure;
use crate::protocol::{SupportsLearners, learner_names, with_protocol};

impl Plan {
    /// Returns the same cluster with a learner for each shard.
    ///
    /// # Errors
    /// If the protocol has none.
    pub fn with_learners(self) -> Result<Self, Failure> {
        if !with_protocol(&self.protocol, SupportsLearners)? {
            return Err(Failure::Usage(format!(
                "--learners: protocol {:?} has no learners; use --protocol {}",
                self.protocol,
                learner_names()
            )));
        }
        let plan = Self { learners: true, ..self };
        let tuning = Tuning { workers: workers(plan.node_places().len()), ..plan.tuning };
        Ok(Self { tuning, ..plan })
    }

    /// Returns the nodes whose clients a benchmark has: all but learners.
    pub fn homes(&self) -> Vec<usize> {
        let nodes = self.node_places().len();
        let learners = if self.learners { self.shards() } else { 0 };
        (0..nodes - learners).collect()
    }

    /// Returns those of them that are in some regions; `None` if no regions are named and there are
    /// no learners.
    ///
    /// # Errors
    /// The first region that does not exist.
    pub fn homes_in(&self, regions: &[String]) -> Result<Option<Vec<usize>>, String> {
        if let Some(unknown) = regions.iter().find(|name| !self.regions.contains(name)) {
            let known = self.regions.join(", ");
            return Err(format!("there is no region {unknown:?}; expected some of {known}"));
        }
        if regions.is_empty() && !self.learners {
            return Ok(None);
        }
        let is_in = |node: &usize| {
            regions.is_empty() || regions.contains(&self.regions[self.region_of(*node)])
        };
        Ok(Some(self.homes().into_iter().filter(is_in).collect()))
    }
}
