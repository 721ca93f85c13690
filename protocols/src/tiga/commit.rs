//! The commit point: how much of the log is on enough disks (§3.7), and what becomes visible with
//! it.
//!
//! ```text
//!   positions    1   2   3   4   5   6   7
//!   leader       published   |       run |      it runs cells when they are over
//!   follower     published   | (nothing run)    it runs cells when they are committed
//!                            commit point
//! ```
//!
//! Every replica finds the commit point itself, because every replica tells all others how far its
//! log is durable. So a coordinator whose region has a follower waits for one round trip to the
//! leader, and for the disks.

use std::collections::VecDeque;

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{self, Job, ResultDetail};
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
use pangea_core::latency::Milestone;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::RecordHeader;
use pangea_core::txn::{Program, Registry};

use super::Tiga;
use super::cells::Cell;
use super::fast_replies::RunResult;
use super::log::{Log, Position, ViewNumber};
use super::quorum::commit_point;
use super::state::State;

/// After this number of transactions a step runs no further cell.
const STEP_TXNS_MAX: usize = 128;

/// The maximum number of versions removed from the store at a time, so that no step takes long.
pub(super) const RECLAIM_VERSIONS_MAX: usize = 50_000;

/// The progress of this replica.
#[derive(Debug)]
pub(super) struct Commit {
    /// How far the log of each replica is durable, and in which view.
    synced: Vec<(ViewNumber, Position)>,
    /// The last committed position, as far as this replica has the log.
    pub committed: Position,
    /// The last position whose cell is in the store.
    pub executed: Position,
    /// The last position that readers see.
    pub published: Position,
    /// With several shards: positions up to which the leader's log has all cells up to a version.
    closed: VecDeque<(Position, SnapshotVersion)>,
    /// The last position at which a program may have left its footprint.
    pub strayed: Position,
    /// The results of the last cell that was run, on a leader with a fast path.
    pub results: Vec<RunResult>,
}

impl Commit {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            synced: vec![Default::default(); node_count],
            committed: Position(0),
            executed: Position(0),
            published: Position(0),
            closed: VecDeque::new(),
            strayed: Position(0),
            results: Vec::new(),
        }
    }

    /// A replica has the log of a view durably up to a position. Messages of an earlier session may
    /// arrive late.
    pub(super) fn note_synced(&mut self, node: NodeId, view: ViewNumber, upto: Position) {
        let known = &mut self.synced[node.index()];
        *known = (view, upto).max(*known);
    }

    /// The leader's log has all cells up to a version, the last of which is at a position.
    pub(super) fn note_closed(&mut self, position: Position, version: SnapshotVersion) {
        let committed = self.committed;
        while self.closed.get(1).is_some_and(|(position, _)| *position <= committed) {
            self.closed.pop_front();
        }
        if self.closed.back().is_none_or(|last| *last < (position, version)) {
            self.closed.push_back((position, version));
        }
    }

    /// The last version up to which the leader's log has all cells, if these are at positions up
    /// to one.
    pub(super) fn closed_upto(&self, last: Position) -> SnapshotVersion {
        let mut closed = self.closed.iter().rev();
        let is_here = |position: Position| position <= last;
        let is_here = |at| mutate!(ClosedHandedOnEarly: is_here(at) => true);
        let closed = closed.find(|(position, _)| is_here(*position));
        closed.map_or(SnapshotVersion::ZERO, |(_, version)| *version)
    }

    /// Forgets the closed cells that a leader has told.
    pub(super) fn forget_closed(&mut self) {
        self.closed.clear();
    }

    /// The version through which this shard is committed: all of its cells up to there are
    /// committed, and it has no others.
    pub(super) fn through(&self, log: &Log) -> SnapshotVersion {
        let is_committed =
            |(position, _): &&(Position, SnapshotVersion)| *position <= self.committed;
        let closed = self.closed.iter().take_while(is_committed).last();
        let closed = closed.map_or(SnapshotVersion::ZERO, |(_, version)| *version);
        closed.max(log.version_at(self.committed))
    }

    /// A replica has lost its disk.
    pub(super) fn forget_synced(&mut self, node: NodeId) {
        self.synced[node.index()] = Default::default();
    }

    /// The last view and position that a replica has told.
    pub(super) fn last_synced_of(&self, node: NodeId) -> (ViewNumber, Position) {
        self.synced[node.index()]
    }

    /// The position up to which a replica has the log of a view durably.
    pub(super) fn synced_of(&self, node: NodeId, view: ViewNumber) -> Position {
        let (of, upto) = self.synced[node.index()];
        if of == view { upto } else { Position(0) }
    }
}

/// Whether a program accesses nothing but its footprint.
pub(super) fn is_footprint_certain(registry: &Registry, program: &Program) -> bool {
    match program {
        Program::Certified(_) => true,
        Program::Call { procedure, .. } => {
            registry.procedure(*procedure).is_some_and(|code| code.is_footprint_certain())
        }
    }
}

impl State {
    /// Reports to an observer that the transactions of cells have passed a milestone. The numbers
    /// of one node are nearly in the order of the cells.
    pub(super) fn note_reached<'a>(
        &self,
        cx: &Cx<'_, Tiga>,
        milestone: Milestone,
        cells: impl IntoIterator<Item = &'a Cell>,
    ) {
        if !cx.is_observed() {
            return;
        }
        let txns = cells.into_iter().flat_map(|cell| &cell.txns);
        let own = txns.filter(|(txn, _)| txn.node() == self.node);
        if let Some(last) = own.map(|(txn, _)| txn.sequence()).max() {
            cx.reached(milestone, last + 1);
        }
    }

    /// The position up to which f + 1 replicas have the log of this view durably.
    fn commit_point(&self) -> Position {
        let topology = &self.replica.topology;
        let count = topology.voter_count();
        let count = mutate!(NonVotingCounts: count => topology.node_count()) as u16;
        let nodes = (0..count).map(NodeId);
        let synced = nodes.map(|node| self.commit.synced_of(node, self.log.view));
        commit_point(&synced.collect::<Vec<_>>())
    }
}

impl Tiga {
    /// Publishes what is committed, and answers the clients of this replica.
    pub(super) fn advance_commit(&mut self, cx: &mut Cx<'_, Self>) {
        let point = self.state.commit_point().min(self.state.log.last());
        let committed = self.state.commit.committed.max(point);
        self.state.commit.committed = committed;
        if self.state.is_divided() {
            return self.advance_shards(cx);
        }
        if self.state.commit.published == committed {
            return;
        }
        let mut left = STEP_TXNS_MAX;
        while self.state.commit.published < committed {
            let next = Position(self.state.commit.published.0 + 1);
            if !self.run_upto(cx, next, &mut left) {
                break;
            }
            let version = self.state.log.version_at(next);
            cx.store.publish(version);
            self.state.commit.published = next;
            self.compare_digests(cx, version);
            let me = self.state.node;
            let txns = self.state.log.cell(next).txns.iter().map(|(txn, _)| *txn);
            let own: Vec<TxnId> = txns.filter(|txn| txn.node() == me).collect();
            self.answer_cell(cx, version, &own);
        }
        cx.store.reclaim_at_most(cx.store.published(), RECLAIM_VERSIONS_MAX);
    }

    /// §3.3: a leader with a fast path runs the cells of its log at once, and replies. Otherwise it
    /// runs them like its followers, when they are committed.
    pub(super) fn run_ahead(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.leading.is_some() && self.state.has_hashes() {
            let last = self.state.log.last();
            self.run_upto(cx, last, &mut { STEP_TXNS_MAX });
        }
    }

    /// Runs the cells of the log up to a position that have not been run, or as many of them as a
    /// step should run. Returns whether it was all.
    fn run_upto(&mut self, cx: &mut Cx<'_, Self>, upto: Position, left: &mut usize) -> bool {
        while self.state.commit.executed < upto {
            if *left == 0 {
                cx.mark("tiga.run_in_steps");
                cx.resume();
                return false;
            }
            let next = Position(self.state.commit.executed.0 + 1);
            if !self.state.may_run(next) {
                return false;
            }
            self.run_cell(cx, next);
            self.state.commit.executed = next;
            self.reply_run(cx, next);
            *left = left.saturating_sub(self.state.log.cell(next).txns.len());
        }
        true
    }

    /// Runs the transactions of a cell in the order of their stamps.
    fn run_cell(&mut self, cx: &Cx<'_, Self>, position: Position) {
        let is_fast = self.state.leading.is_some() && self.state.has_hashes();
        self.state.note_reached(cx, Milestone::Begun, [self.state.log.cell(position)]);
        let State { log, transactions, registry, coordinator, commit, .. } = &mut self.state;
        let cell = log.cell(position);
        let stamped = cell.txns.iter().map(|(txn, _)| {
            transactions.get(*txn).expect("the log contains what this replica has").clone()
        });
        let stamped: Vec<_> = stamped.collect();
        let jobs: Vec<Job<'_>> = stamped.iter().map(|it| it.request.as_job()).collect();
        let header = |job: &Job<'_>| RecordHeader::new(job.txn);
        let detail = ResultDetail::Outcomes;
        cx.begin_work();
        let finished =
            ordered::execute(cx.pool, registry, cx.store, cell.version, &jobs, &header, detail);
        cx.end_work(CpuStage::Execute, jobs.len());
        for (job, finished) in jobs.iter().zip(finished) {
            if finished.passes > 1 || !is_footprint_certain(registry, job.program) {
                commit.strayed = position;
            }
            if is_fast {
                commit.results.push(finished.outcome.clone());
            }
            if let Some(own) = coordinator.in_flight.get_mut(&job.txn) {
                own.result = Some(finished.outcome);
            }
        }
        self.state.note_reached(cx, Milestone::Validated, [self.state.log.cell(position)]);
    }

    /// Takes back the cells that were run and are not committed.
    pub(super) fn retreat(&mut self, cx: &mut Cx<'_, Self>) {
        let Commit { executed, published, .. } = self.state.commit;
        // With several shards nothing is run before it is committed.
        if executed == published || self.state.is_divided() {
            return;
        }
        cx.mark("tiga.retreated");
        cx.store.retreat_to(self.state.log.version_at(published));
        self.state.commit.executed = published;
        self.state.commit.strayed = Position(0);
        for own in self.state.coordinator.in_flight.values_mut() {
            own.result = None;
        }
    }
}
