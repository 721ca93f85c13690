//! Options of command lines that describe a cluster.

use pangea_node::log::Durability;
use pangea_node::transport::ONE_WAY_MAX;

use super::Plan;
use crate::failure::Failure;

/// The default round trip between regions without names.
const RTT_MS_DEFAULT: f64 = 50.0;

/// The regions of a cluster, as given on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regions {
    /// The number of regions, without names.
    Count(usize),
    /// Cloud regions, or any other names if all distances are equal.
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
    /// Returns a cluster of these regions, with equal distances if a round trip is given.
    ///
    /// # Errors
    /// If a region is unknown or named twice, or if there are no regions or too many.
    pub fn plan(&self, protocol: &str, rtt_ms: Option<f64>) -> Result<Plan, Failure> {
        // This also rejects NaN.
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

/// Parses the name of a durability level.
pub fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "fsync" => Ok(Durability::Fsync),
        "os" => Ok(Durability::Os),
        "memory" => Ok(Durability::Memory),
        _ => Err("expected fsync, os or memory".to_owned()),
    }
}
