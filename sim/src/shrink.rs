//! Shrinks a failing run as far as it still fails in the same way.
//!
//! A seed that fails has a dozen faults, nine clients and thousands of events, most of which are
//! irrelevant. Therefore every setting that can be reduced is reduced, and the reduction is kept if
//! the same check finds the same anomaly: faults first, then nodes, time, clients and rows. Every
//! reduction shifts all later events and may miss a failure that needs a coincidence. Therefore a
//! few other seeds are tried with each reduction. The result is a [scenario](crate::scenario) that
//! a person can read, a seed, and a short trace.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;

use crate::faults::Rule;
use crate::report::Report;
use crate::settings::Settings;

/// Seeds that are tried with each smaller run.
const SEEDS: u64 = 5;

/// A smaller run that fails, and the cost of finding it.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The report of the smaller run.
    pub report: Report,
    /// The number of runs made.
    pub runs: u64,
}

/// Called after each run with the number of runs and the settings of the smallest failing run.
pub type Watch<'a> = dyn FnMut(u64, &Settings) + Send + 'a;

/// Shrinks a run that failed, with at most `runs_max` runs.
///
/// # Panics
/// If the run did not fail.
pub fn shrink<P: Protocol>(
    failed: Report,
    options: &P::Options,
    runs_max: u64,
    watch: &mut Watch<'_>,
) -> Shrunk {
    assert!(failed.violation.is_some(), "only failing runs are shrunk");
    let mut search = Search::<P> { best: failed, options, runs: 0, runs_max, watch };
    let rules = search.best.rules.clone();
    let all = Settings {
        rules: Some(rules),
        is_drawn: false,
        scenario: None,
        ..search.best.settings.clone()
    };
    // A run with its drawn settings written out is the same run.
    search.try_with(all);
    loop {
        let before = search.best.settings.clone();
        search.drop_rules();
        search.lessen();
        if search.best.settings == before || search.is_over() {
            return Shrunk { report: search.best, runs: search.runs };
        }
    }
}

struct Search<'a, 'b, P: Protocol> {
    best: Report,
    options: &'a P::Options,
    runs: u64,
    runs_max: u64,
    watch: &'a mut Watch<'b>,
}

impl<P: Protocol> Search<'_, '_, P> {
    fn is_over(&self) -> bool {
        self.runs >= self.runs_max
    }

    /// Runs other settings with a few seeds and keeps them if a run fails in the same way.
    fn try_with(&mut self, settings: Settings) -> bool {
        let first = self.best.settings.seed;
        settings != self.best.settings
            && (first..first.saturating_add(SEEDS))
                .any(|seed| self.try_once(&Settings { seed, ..settings.clone() }))
    }

    fn try_once(&mut self, settings: &Settings) -> bool {
        if self.is_over() {
            return false;
        }
        self.runs += 1;
        let found = crate::run::<P>(settings, self.options).ok().filter(|report| {
            let name = |report: &Report| {
                report.violation.as_ref().map(|violation| (violation.checker, violation.anomaly))
            };
            name(report) == name(&self.best)
        });
        let is_found = found.is_some();
        self.best = found.unwrap_or_else(|| self.best.clone());
        (self.watch)(self.runs, &self.best.settings);
        is_found
    }

    /// Removes faults: half of them, a quarter, and so on down to single ones.
    fn drop_rules(&mut self) {
        let mut size = self.rules().len().div_ceil(2);
        while size > 0 && !self.is_over() {
            let mut at = 0;
            while at < self.rules().len() {
                let mut rules = self.rules().to_vec();
                rules.drain(at..(at + size).min(rules.len()));
                let fewer = Settings { rules: Some(rules), ..self.best.settings.clone() };
                if !self.try_with(fewer) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    fn rules(&self) -> &[Rule] {
        self.best.settings.rules.as_deref().unwrap_or_default()
    }

    /// Reduces every other setting as far as possible. Nodes come first because a failure takes
    /// longer to appear with fewer nodes, and a shortened run has no time to spare.
    fn lessen(&mut self) {
        let steps: [fn(&Settings) -> Settings; 10] = [
            |s| Settings { replicas: None, ..s.clone() },
            |s| Settings { non_voting: s.non_voting.saturating_sub(1), ..s.clone() },
            |s| Settings { learners: false, ..s.clone() },
            |s| match s.replicas {
                // They name regions.
                Some(_) => s.clone(),
                None => {
                    Settings { nodes: s.nodes.saturating_sub(1).max(P::NODES_MIN), ..s.clone() }
                }
            },
            |s| Settings { shards: (s.shards - 1).max(1), ..s.clone() },
            |s| Settings { duration: Span::from_ms(s.duration.us / 2_000), ..s.clone() },
            |s| Settings { duration: Span::from_ms(s.duration.us / 8_000 * 7), ..s.clone() },
            |s| Settings { clients_per_node: (s.clients_per_node / 2).max(1), ..s.clone() },
            |s| Settings { lists: (s.lists / 2).max(1), ..s.clone() },
            |s| Settings { accounts: (s.accounts / 2).max(2), ..s.clone() },
        ];
        for step in steps {
            while let less = step(&self.best.settings)
                && is_possible(&less)
                && self.try_with(less)
            {}
        }
    }
}

/// Whether the settings are valid, and all faults begin in time and affect existing nodes.
fn is_possible(settings: &Settings) -> bool {
    let is_in_time = |rule: &Rule| rule.at_ms <= settings.duration.us / 1_000;
    let fits = |rule: &Rule| rule.fault.check(settings.node_count()).is_ok() && is_in_time(rule);
    let shards = usize::from(settings.shards);
    let are_placed = settings.replicas.as_ref().is_none_or(|it| it.shards() == shards);
    are_placed && settings.duration.us >= 100_000 && settings.rules.iter().flatten().all(fits)
}
