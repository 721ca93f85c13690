//! What command lines say of a cluster.

use pangea_node::log::Durability;
use pangea_node::transport::ONE_WAY_MAX;

use super::Plan;
use crate::failure::Failure;

/// Round trips between regions that have no names.
const RTT_MS_DEFAULT: f64 = 50.0;

/// The regions of a cluster, as a command line has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regions {
    /// So many, without names.
    Count(usize),
    /// Cloud regions, or any others where all are equally far apart.
    Named(Vec<String>),
}

impl std::str::FromStr for Regions {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.parse() {
            Ok(count) => Self::Count(count),
            Err(_) => Self::Named(text.split(',').map(str::to_owned).collect()),
        })
    }
}

impl Regions {
    /// A cluster of these regions, all equally far apart where a round trip is given.
    ///
    /// # Errors
    /// When a region is unknown or named twice, or there are none, or too many.
    pub fn plan(&self, protocol: &str, rtt_ms: Option<f64>) -> Result<Plan, Failure> {
        // Also refuses what is no number.
        let ms_max = 2.0 * ONE_WAY_MAX.us as f64 / 1_000.0;
        if let Some(ms) = rtt_ms.filter(|ms| !(0.0..=ms_max).contains(ms)) {
            return Err(Failure::Usage(format!("--rtt {ms}: must be from 0 to {ms_max}")));
        }
        match (self, rtt_ms) {
            (Self::Count(count), rtt) => {
                let names: Vec<String> = (1..=*count).map(|i| format!("region-{i}")).collect();
                Plan::of_equal_distances(protocol, &names, rtt.unwrap_or(RTT_MS_DEFAULT))
            }
            (Self::Named(names), Some(rtt)) => Plan::of_equal_distances(protocol, names, rtt),
            (Self::Named(names), None) => Plan::of_named_regions(protocol, names),
        }
    }
}

/// When a record is durable, by its name.
pub fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "fsync" => Ok(Durability::Fsync),
        "os" => Ok(Durability::Os),
        "memory" => Ok(Durability::Memory),
        _ => Err("there are fsync, os and memory".to_owned()),
    }
}
