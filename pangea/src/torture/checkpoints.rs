//! Checkpoints during a torture run: frequent enough that faults hit nodes in all their stages.
//!
//! A checkpoint is a file, and a node retains the last two. Frequent polling therefore sees every
//! one of them, regardless of the faults.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

use fastrand::Rng;
use pangea_core::guarantee::TortureSetting;

use crate::cluster::{Member, Plan};
use crate::failure::Failure;
use crate::protocol::{TortureSettings, parse_value, with_protocol};

/// The extension of a checkpoint file.
const FILE: &str = "ckp";

/// The same cluster, with the settings that its protocol has for a torture
/// ([`TORTURE_SETTINGS`](pangea_core::protocol::Protocol::TORTURE_SETTINGS)). Values are drawn from
/// the seed among those that the cluster can have. Settings that the plan has already stay.
///
/// # Errors
/// When the cluster is impossible.
pub fn often(mut plan: Plan, seed: u64) -> Result<Plan, Failure> {
    let mut rng = Rng::with_seed(seed);
    for &TortureSetting { key, values } in with_protocol(&plan.protocol, TortureSettings)? {
        if plan.options.contains_key(key) {
            continue;
        }
        let mut values = values.to_vec();
        rng.shuffle(&mut values);
        let with = |value: &str| {
            let mut with = plan.clone();
            with.options.insert(key.to_owned(), parse_value(value));
            with
        };
        if let Some(fits) = values.into_iter().map(with).find(|plan| plan.check().is_ok()) {
            plan = fits;
        }
    }
    plan.check().map(|()| plan)
}

/// The checkpoints that were seen, each with its node.
pub struct Checkpoints {
    directories: Vec<PathBuf>,
    seen: BTreeSet<(usize, OsString)>,
}

impl Checkpoints {
    /// Starts with no checkpoints, for these nodes.
    pub fn of(members: &[Member]) -> Self {
        let directory = |member: &Member| member.config.data_dir.join("checkpoints");
        Self { directories: members.iter().map(directory).collect(), seen: BTreeSet::new() }
    }

    /// Records the current checkpoints.
    pub fn look(&mut self) {
        for (node, directory) in self.directories.iter().enumerate() {
            // The directory does not exist before the first checkpoint.
            let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let names = files.map(|file| PathBuf::from(file.file_name()));
            let whole = names.filter(|name| name.extension().is_some_and(|end| end == FILE));
            self.seen.extend(whole.map(|name| (node, name.into_os_string())));
        }
    }

    /// Returns the number of checkpoints seen, as text.
    pub fn summary(&self, plan: &Plan) -> String {
        let of_node = |node| self.seen.iter().filter(|(of, _)| *of == node).count();
        let counts: Vec<usize> = (0..self.directories.len()).map(of_node).collect();
        let (least, most) = (counts.iter().min(), counts.iter().max());
        let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
        let mut summary = format!("{}, per node {least} to {most}", self.seen.len());
        let chosen = with_protocol(&plan.protocol, TortureSettings).unwrap_or_default();
        let modes = chosen.iter().filter_map(|it| plan.options.get(it.key)?.as_str());
        modes.for_each(|mode| {
            let _ = write!(summary, ", {mode}");
        });
        summary
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
        let all = ["versions", "frozen", "zigzag"].map(str::to_owned);
        assert_eq!(modes(""), BTreeSet::from(all));
        assert_eq!(modes("checkpoints = \"zigzag\""), BTreeSet::from(["zigzag".to_owned()]));
        let fit = ["versions", "zigzag"].map(str::to_owned);
        assert_eq!(modes("replication = \"asynchronous\""), BTreeSet::from(fit));
        let wrong = often(plan("calvin", "checkpoints = \"often\""), 1).unwrap_err();
        assert!(matches!(wrong, Failure::Usage(_)), "{wrong}");
    }
}
