//! Checkpoints of nodes that are tortured: so many that faults meet them in all states.
//!
//! A checkpoint is a file, of which a node keeps two: whoever looks often enough sees each of them,
//! whatever happens to the nodes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

use fastrand::Rng;

use crate::cluster::{Member, Plan};
use crate::failure::Failure;

/// How checkpoints can be taken, and whose setting it is.
const MODES: (&str, &str, [&str; 3]) = ("calvin", "checkpoints", ["versions", "frozen", "zigzag"]);
/// When one is due, and whose setting it is in so many bytes. With Calvin a transaction counts as a
/// kilobyte.
const BYTES: (&str, [(&str, u32); 2]) =
    ("checkpoint_bytes", [("minerva", 100_000), ("calvin", 300_000)]);
/// What a checkpoint's file ends with.
const FILE: &str = "ckp";

/// The same cluster, whose nodes take checkpoints every few seconds, in a way that is drawn where
/// none is given.
///
/// # Errors
/// When there is no such cluster.
pub fn often(mut plan: Plan, seed: u64) -> Result<Plan, Failure> {
    let (key, scaled_down) = BYTES;
    for (protocol, bytes) in scaled_down {
        if protocol == plan.protocol {
            plan.options.entry(key).or_insert_with(|| bytes.into());
        }
    }
    let (protocol, key, mut modes) = MODES;
    if protocol != plan.protocol || plan.options.contains_key(key) {
        plan.check()?;
        return Ok(plan);
    }
    Rng::with_seed(seed).shuffle(&mut modes);
    let with = |mode: &str| {
        let mut with = plan.clone();
        with.options.insert(key.to_owned(), mode.into());
        with
    };
    // Not each of them can be with what is given.
    let fits = modes.into_iter().map(with).find(|plan| plan.check().is_ok());
    fits.map_or_else(|| plan.check().map(|()| plan), Ok)
}

/// The checkpoints that were seen, each with its node.
pub struct Checkpoints {
    directories: Vec<PathBuf>,
    seen: BTreeSet<(usize, OsString)>,
}

impl Checkpoints {
    /// None yet, of these nodes.
    pub fn of(members: &[Member]) -> Self {
        let directory = |member: &Member| member.config.data_dir.join("checkpoints");
        Self { directories: members.iter().map(directory).collect(), seen: BTreeSet::new() }
    }

    /// Sees which there are now.
    pub fn look(&mut self) {
        for (node, directory) in self.directories.iter().enumerate() {
            // Without one there is no directory.
            let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let names = files.map(|file| PathBuf::from(file.file_name()));
            let whole = names.filter(|name| name.extension().is_some_and(|end| end == FILE));
            self.seen.extend(whole.map(|name| (node, name.into_os_string())));
        }
    }

    /// How many were seen, in words.
    pub fn told(&self, plan: &Plan) -> String {
        let of_node = |node| self.seen.iter().filter(|(of, _)| *of == node).count();
        let counts: Vec<usize> = (0..self.directories.len()).map(of_node).collect();
        let (least, most) = (counts.iter().min(), counts.iter().max());
        let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
        let mut told = format!("{}, of each node {least} to {most}", self.seen.len());
        let (_, key, _) = MODES;
        if let Some(mode) = plan.options.get(key).and_then(|mode| mode.as_str()) {
            let _ = write!(told, ", {mode}");
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(protocol: &str, options: &str) -> Plan {
        let regions = ["a", "b", "c"].map(str::to_owned);
        let plan = Plan::of_equal_distances(protocol, &regions, 0.0).unwrap();
        Plan { options: options.parse().unwrap(), ..plan }
    }

    fn modes(options: &str) -> BTreeSet<String> {
        let mode = |seed| {
            let plan = often(plan("calvin", options), seed).unwrap();
            plan.options["checkpoints"].as_str().unwrap().to_owned()
        };
        (0..50).map(mode).collect()
    }

    #[test]
    fn every_protocol_takes_checkpoints_often_unless_told_otherwise() {
        for protocol in crate::protocol::NAMES {
            let scaled = often(plan(protocol, ""), 1).unwrap();
            assert!(scaled.options["checkpoint_bytes"].as_integer().unwrap() < 1_000_000);
            let given = often(plan(protocol, "checkpoint_bytes = 5000000"), 1).unwrap();
            assert_eq!(given.options["checkpoint_bytes"].as_integer(), Some(5_000_000));
        }
    }

    #[test]
    fn how_calvin_takes_them_is_drawn_from_what_fits() {
        let all = MODES.2.map(str::to_owned);
        assert_eq!(modes(""), BTreeSet::from(all));
        assert_eq!(modes("checkpoints = \"zigzag\""), BTreeSet::from(["zigzag".to_owned()]));
        let fit = ["versions", "zigzag"].map(str::to_owned);
        assert_eq!(modes("replication = \"asynchronous\""), BTreeSet::from(fit));
        let wrong = often(plan("calvin", "checkpoints = \"often\""), 1).unwrap_err();
        assert!(matches!(wrong, Failure::Usage(_)), "{wrong}");
    }
}
