//! What a directory that stays was made with, looked at before anything in it is touched.

use std::path::Path;

use pangea_node::data_dir::Identity;

use super::plan::Plan;
use crate::failure::Failure;

/// Where a node says whose its data is, below the directory of its region.
const IDENTITY: &str = "data/identity.toml";

/// Holds a plan against what is in a directory.
///
/// # Errors
/// When the directory is another cluster's: what it was made with.
pub fn check(plan: &Plan, directory: &Path) -> Result<(), Failure> {
    let is_other = |found: &Identity| {
        found.regions != plan.regions
            || found.protocol != plan.protocol
            || found.cluster != plan.cluster
    };
    let Some(found) = identities(directory).into_iter().find(is_other) else { return Ok(()) };
    let directory = directory.display();
    if found.cluster != plan.cluster {
        let message = format!("{directory} has the data of another cluster, {:?}", found.cluster);
        return Err(Failure::Usage(message));
    }
    let arguments = |regions: &[String], protocol: &str| {
        format!("--regions {} --protocol {protocol}", regions.join(","))
    };
    Err(Failure::Usage(format!(
        "{directory} was made with {}, and can't be used with {}",
        arguments(&found.regions, &found.protocol),
        arguments(&plan.regions, &plan.protocol),
    )))
}

/// Whose the data in a directory is. What can't be read is left to the node that it belongs to.
fn identities(directory: &Path) -> Vec<Identity> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let identity = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join(IDENTITY)).ok()?;
        toml::from_str(&text).ok()
    };
    entries.flatten().filter_map(identity).collect()
}
