//! EXPLAIN: displays a plan. With ANALYZE, the statement runs exactly as it would without EXPLAIN.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_core::guarantee::Isolation;
use pangea_core::ids::SnapshotVersion;
use pangea_core::txn::{Outcome, Program};

use super::local::LocalContext;
use super::{Response, Session, now};
use crate::engine::Trace;
use crate::error::{Failure, SqlError};
use crate::exec;
use crate::explain::{Summary, shown, statement};
use crate::plan::Planned;
use crate::profile::{Commit, CommitPath, CommitTimes, Profile};
use crate::remote_rows::Snapshot;
use crate::sequence::SequenceValues;
use crate::syntax::explain::{Explain, Format};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;

/// Returns the column of the output.
pub(super) fn column(format: Format) -> OutputColumn {
    OutputColumn::new("QUERY PLAN", format.base())
}

impl Session {
    /// Runs an EXPLAIN.
    pub(super) async fn run_explain(
        &mut self,
        explain: &Explain,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        let Explain { options, statement: parsed } = explain;
        let is_in_transaction = self.transaction.is_some();
        let profile = options.is_analyzed.then(|| Arc::new(Profile::default()));
        if let Some(profile) = &profile {
            self.profile = Some(profile.clone());
            let run = Box::pin(self.run_data(parsed, param_types, params)).await;
            self.profile = None;
            self.stream = None;
            run?;
        }
        // The plan that the run used is found in the cache.
        let started = Instant::now();
        let types: Vec<_> = param_types.iter().copied().map(Some).collect();
        let mut alone = None;
        let planned = match (&parsed.as_of, self.transaction.is_some()) {
            (Some(as_of), _) => {
                let (planned, mut cx) = self.plan_as_of((parsed, as_of), &types)?;
                cx.set_remote(self.remote_rows(cx.at()).await?);
                alone = Some(cx);
                Arc::new(planned)
            }
            (None, true) => self.plan_in_transaction(parsed, &types).await?,
            (None, false) => {
                let (planned, cx) = self.plan(parsed, &types).await?;
                alone = Some(cx);
                planned
            }
        };
        super::data::check_params(&planned, params)?;
        let took = started.elapsed();
        let env = self.env(params.to_vec(), now(), Vec::new());
        let open = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
        let cx = alone.as_mut().or(open);
        let cx = cx.expect("it was planned in one of them");
        let checked = crate::authorization::check(&planned.required, env.current_user(), cx);
        let tree = checked.and_then(|()| exec::read_catalog(&planned, &env, cx)).and_then(|()| {
            statement::tree((parsed, &planned), *options, profile.as_deref(), &env, cx)
        });
        let planning_ms = match &profile {
            Some(profile) => profile.planning_ms(),
            None => took.as_secs_f64() * 1e3,
        };
        let summary = Summary {
            planning_ms,
            profile: profile.as_deref(),
            is_in_transaction: is_in_transaction && planned.is_write(),
        };
        let rows = shown(&tree?, *options, &summary);
        Ok(Response::Rows {
            columns: vec![column(options.format)],
            rows: rows
                .into_iter()
                .map(|row| vec![Datum::Text(planned.enums.unmarked(row))])
                .collect(),
            tag: "EXPLAIN".to_owned(),
        })
    }

    /// Runs a program on this node without effect, to measure each of its steps.
    ///
    /// # Errors
    /// If the rows that it reads are not available now.
    pub(super) async fn rehearse(
        &mut self,
        planned: &Planned,
        (params, drawn): (&[Datum], Vec<SequenceValues>),
    ) -> Result<DryRun, SqlError> {
        let pin = self.engine.store().pin();
        let snapshot = pin.version();
        let remote = self.remote_rows(snapshot).await?;
        let mut cx = LocalContext::transaction(Snapshot { pin, remote }, Isolation::Serializable);
        cx.begin_statement(true);
        let env = self.env(params.to_vec(), now(), drawn);
        let started = Instant::now();
        // If it fails here, its run in the serial order decides whether the statement fails.
        let has_failed = exec::run(planned, None, &env, &mut cx).is_err();
        if let Some(profile) = self.profile.as_ref().filter(|_| !has_failed) {
            profile.end(started.elapsed());
        }
        let writes = cx.into_certified().map_or(0, |certified| certified.writes.len());
        Ok(DryRun { snapshot, writes })
    }

    /// Records the end of a run for EXPLAIN ANALYZE.
    pub(super) fn note_end(&self, started: Option<Instant>) {
        if let (Some(profile), Some(started)) = (&self.profile, started) {
            profile.end(started.elapsed());
        }
    }

    /// Plans a statement, and records the time for EXPLAIN ANALYZE.
    pub(super) fn time_planning<T>(
        &self,
        plan: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(profile) = &self.profile else { return plan() };
        let started = Instant::now();
        let planned = plan();
        profile.planned(started.elapsed());
        planned
    }
}

/// The result of a run without effect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DryRun {
    pub snapshot: SnapshotVersion,
    pub writes: usize,
}

/// A submitted program that EXPLAIN ANALYZE measures.
pub(super) struct Measured {
    profile: Arc<Profile>,
    way: CommitPath,
    /// The size of the arguments, and the numbers of reads and writes.
    sizes: [usize; 3],
    dry_run: DryRun,
    started: Instant,
}

impl Measured {
    /// Starts the measurement of a program that is about to be submitted.
    pub(super) fn begin(profile: &Arc<Profile>, program: &Program, dry_run: DryRun) -> Self {
        let (way, sizes) = match program {
            Program::Call { args, .. } => (CommitPath::Program, [args.len(), 0, dry_run.writes]),
            Program::Certified(certified) => {
                let reads = certified.reads.points.len() + certified.reads.ranges.len();
                (CommitPath::Certified, [0, reads, certified.writes.len()])
            }
        };
        profile.on_submit();
        Self { profile: profile.clone(), way, sizes, dry_run, started: Instant::now() }
    }

    /// Records the outcome, if the program committed.
    pub(super) fn end(self, outcome: &Outcome, trace: &Trace) {
        let Outcome::Committed { txn, version, .. } = outcome else { return };
        let [bytes, reads, writes] = self.sizes;
        self.profile.on_commit(Commit {
            way: self.way,
            bytes,
            reads,
            writes,
            snapshot: self.dry_run.snapshot,
            txn: *txn,
            version: *version,
            ran_again: trace.ran_again(),
            tries: 0,
            times: times(trace, self.started, Instant::now()),
        });
    }
}

/// Splits the time of a commit at the moments that the node recorded.
fn times(trace: &Trace, started: Instant, ended: Instant) -> CommitTimes {
    let part = |from: Option<Instant>, to: Option<Instant>| -> Option<Duration> {
        Some(to?.saturating_duration_since(from?))
    };
    CommitTimes {
        queue: part(Some(started), trace.taken()),
        order: part(trace.taken(), trace.decided()),
        durability: part(trace.decided(), trace.answered()),
        answer: part(trace.answered(), Some(ended)),
        total: ended.saturating_duration_since(started),
    }
}
