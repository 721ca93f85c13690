//! The nodes' CPU time by the stages of a transaction: for `--stages`.
//!
//! Metered nodes measure the time of each kind of step and work (`node/src/meter.rs`). This module
//! groups the kinds into the stages that the protocol's chapter describes. Time outside of all
//! kinds is a stage too, so that the stages add up to the CPU time of the process.

use std::collections::BTreeMap;

use pangea_core::cpu_stage::CpuStage;
use pangea_node::meter::COUNTERS;
use serde::Serialize;

/// A stage, and the kinds of steps and work in it.
struct Stage {
    name: &'static str,
    /// The description of the stage, for humans.
    words: &'static str,
    kinds: &'static [&'static str],
}

const fn stage(name: &'static str, words: &'static str, kinds: &'static [&'static str]) -> Stage {
    Stage { name, words, kinds }
}

/// The stage of all kinds that are in no other stage: steps of the event loop.
const STEPS: &str = "steps";
/// The stage of CPU time that no kind accounts for.
const REST: &str = "rest";

const ALL: [Stage; 18] = [
    stage("execute", "run at the source", &[CpuStage::Execute.name(), CpuStage::Probe.name()]),
    stage("chains", "validation: chains", &[CpuStage::Validate.name()]),
    stage("stale", "stale check", &[CpuStage::Stale.name()]),
    stage("graph", "conflict graph", &[CpuStage::Graph.name()]),
    stage("solver", "independent set", &[CpuStage::Solve.name()]),
    stage("apply", "apply write sets", &[CpuStage::Apply.name()]),
    stage("slice", "cut into slices", &[CpuStage::Slice.name()]),
    stage("lock", "footprints, locks", &[CpuStage::Lock.name()]),
    stage("reexecute", "run in order", &[CpuStage::Order.name()]),
    stage("serve", "serve other shards", &[CpuStage::Serve.name()]),
    stage("settle", "end of an epoch", &[CpuStage::Settle.name()]),
    stage("send", "encode and send", &[CpuStage::Encode.name(), "effect_send", "send"]),
    stage("receive", "receive, decode", &[CpuStage::Decode.name(), "receive"]),
    stage("log", "log", &["log_write"]),
    stage("client", "client protocol", &["client_request", "client_answer"]),
    stage(STEPS, "other steps", &[]),
    stage("pool", "pool's threads", &[]),
    stage(REST, "rest", &[]),
];

/// CPU time of threads that are not metered, from the kernel, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Threads {
    /// The threads that serve PostgreSQL's protocol.
    pub sql_us: f64,
    /// The threads that do data-parallel work, besides the event loop.
    pub pool_us: f64,
}

/// CPU time by stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Stages(BTreeMap<&'static str, f64>);

impl Stages {
    /// Computes the stages from a node's counters and its total CPU time in microseconds. Returns
    /// `None` if the node was not metered.
    pub fn new(counters: &BTreeMap<String, u64>, threads: Threads, cpu_us: f64) -> Option<Self> {
        let mut ns: BTreeMap<&'static str, f64> = BTreeMap::new();
        for (name, value) in counters {
            let kind = name.strip_prefix(COUNTERS).and_then(|name| name.strip_suffix(".y"));
            let Some(kind) = kind else { continue };
            let stage = ALL.iter().find(|stage| stage.kinds.contains(&kind));
            *ns.entry(stage.map_or(STEPS, |stage| stage.name)).or_default() += *value as f64;
        }
        if ns.is_empty() {
            return None;
        }
        *ns.entry("client").or_default() += threads.sql_us * 1e3;
        *ns.entry("pool").or_default() += threads.pool_us * 1e3;
        let known: f64 = ns.values().sum();
        // The clocks of the threads and of the process are read at different moments, so the rest
        // could be negative.
        ns.insert(REST, (cpu_us * 1e3 - known).max(0.0));
        let us = |stage: &Stage| (stage.name, ns.get(stage.name).copied().unwrap_or(0.0) / 1e3);
        Some(Self(ALL.iter().map(us).collect()))
    }

    /// Returns the mean of several nodes, times a factor.
    pub fn mean(nodes: &[Self], factor: f64) -> Self {
        let mean = |stage: &Stage| {
            let sum: f64 = nodes.iter().map(|node| node.of(stage.name)).sum();
            (stage.name, sum / nodes.len() as f64 * factor)
        };
        Self(ALL.iter().map(mean).collect())
    }

    fn of(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// Returns the stages in order, each with its description and its time.
    pub fn in_words(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        ALL.iter().map(|stage| (stage.words, self.of(stage.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(kinds: &[(&str, u64)]) -> BTreeMap<String, u64> {
        kinds.iter().map(|(kind, ns)| (format!("{COUNTERS}{kind}"), *ns)).collect()
    }

    #[test]
    fn stages_and_the_rest_are_all_that_the_process_took() {
        let counters = counters(&[
            ("work_stale.y", 3_000_000),
            ("work_stale.n", 77),
            ("message_batch.y", 2_000_000),
            ("timer.y", 1_000_000),
            ("fsync.80", 5),
        ]);
        let threads = Threads { sql_us: 500.0, pool_us: 0.0 };
        let stages = Stages::new(&counters, threads, 10_000.0).unwrap();
        assert_eq!((stages.of("stale"), stages.of(STEPS)), (3_000.0, 3_000.0));
        assert_eq!((stages.of("client"), stages.of(REST)), (500.0, 3_500.0));
        let sum: f64 = stages.0.values().sum();
        assert!((sum - 10_000.0).abs() < 1e-9, "{sum}");
        let mean = Stages::mean(&[stages.clone(), Stages::default()], 2.0);
        assert_eq!(mean.of("stale"), 3_000.0);
    }

    #[test]
    fn a_node_that_was_not_metered_has_no_stages() {
        let counters = BTreeMap::from([("epochs".to_owned(), 9)]);
        assert_eq!(Stages::new(&counters, Threads::default(), 10.0), None);
    }

    #[test]
    fn every_kind_of_work_is_in_one_stage() {
        for work in CpuStage::ALL {
            let count = ALL.iter().filter(|stage| stage.kinds.contains(&work.name())).count();
            assert_eq!(count, 1, "{}", work.name());
        }
    }
}
