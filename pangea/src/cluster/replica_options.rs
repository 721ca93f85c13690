//! The options of commands about the replicas of shards: where they are, and which have no vote.

use super::Plan;
use crate::failure::Failure;
use crate::protocol::{learner_names, partial_names};

/// The options about replicas.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
pub struct ReplicaOptions {
    /// Regions with a replica of each shard: A,B/B,C is two shards; requires --partitions and
    /// --protocol tiga or mako [default: all regions]
    #[arg(long, value_name = "A,B/B,C")]
    replicas_in: Option<String>,
    /// Regions that have only a non-voting replica of the first shard
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    #[arg(help = format!(
        "Regions that have only a non-voting replica of the first shard, which counts in no \
         quorum; requires --protocol {}",
        partial_names()
    ))]
    non_voting: Vec<String>,
    /// Give each shard a learner
    #[arg(long)]
    #[arg(help = format!(
        "Give each shard a learner in the region of its first replica: it does not vote, and \
         leads if the leader fails; requires --protocol {}",
        learner_names()
    ))]
    learners: bool,
}

impl ReplicaOptions {
    /// Whether each region has a voting replica of each shard, and nothing else.
    pub fn are_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the same cluster with these replicas.
    ///
    /// # Errors
    /// If they are not those of the cluster's shards and regions, or its protocol has no replicas
    /// like these.
    pub fn apply(&self, plan: Plan) -> Result<Plan, Failure> {
        let plan = plan.placed(self.replicas_in.as_deref(), &self.non_voting)?;
        if self.learners { plan.with_learners() } else { Ok(plan) }
    }
}
