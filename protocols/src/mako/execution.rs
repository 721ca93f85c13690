//! Execution: the leader runs transactions in slices, in an order (§4.2).
//!
//! ```text
//!   queue   T1 T2 T3 | T4 T5 ..
//!           one slice: on all cores, in this order, in place, at one version
//!              `--> one entry: outcomes, and of each key the last write
//! ```
//!
//! The paper's threads run transactions optimistically, and abort those that conflict. Here the
//! transactions of one shard run in the order in which they have arrived, on all cores
//! ([`pangea_core::exec::ordered`]). None of them aborts for a conflict, and a row that is written
//! by many transactions of a slice is sent once.
//!
//! The writes are visible to later slices at once, before they are replicated: that is the
//! speculation. What a client sees of them waits for the watermark, also the result of a
//! transaction that has read and written nothing, or has aborted. Results are shipped, so replicas
//! need not run the same programs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::{self, Finished, Job, ResultDetail};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::RecordHeader;
use pangea_core::txn::Write;

use super::Mako;
use super::log::{Entry, Executed, Logged};
use super::options::Options;
use super::shards::Coordination;
use super::state::{Role, State};
use super::streams::Batch;
use super::versions::next_version;
use crate::request::Request;

/// After this number of slices a step runs no more, so that messages are not late.
const STEP_SLICES_MAX: usize = 4;

/// The state of a leader that executes transactions.
#[derive(Debug, Default)]
pub(super) struct Leading {
    /// The transactions that are not executed.
    pub queue: VecDeque<Request>,
    /// Their size in bytes.
    pub queue_bytes: u64,
    /// The transactions in the queue, and those that are executed and not published.
    pub taken: BTreeSet<TxnId>,
    pub batch: Batch,
    /// Whether the time of a batch runs.
    pub has_timer: bool,
    /// The last version that was executed.
    pub last: SnapshotVersion,
    /// For each node, the number below which it does not ask for outcomes.
    pub below: BTreeMap<NodeId, u64>,
    /// Those that the log does not have.
    pub news: BTreeMap<NodeId, u64>,
    /// Requests for a version that is not older than their arrival.
    pub fresh: Vec<(NodeId, u64)>,
    /// The part that only several shards need.
    pub over: Coordination,
}

impl Leading {
    /// A node does not ask for its transactions below a number.
    pub(super) fn note_below(&mut self, node: NodeId, below: u64) {
        let known = self.below.entry(node).or_default();
        if *known < below {
            *known = below;
            self.news.insert(node, below);
            self.over.refused.retain(|txn, _| txn.node() != node || txn.sequence() >= below);
        }
    }
}

impl State {
    /// The size in bytes of the transactions that this leader has taken and not published.
    pub(super) fn unsettled_bytes(&self) -> u64 {
        let Role::Leading(leading) = &self.role else { return 0 };
        let unsettled = match self.commit.floor == self.log.last() {
            true => 0,
            false => self.log.bytes_after(self.commit.floor),
        };
        leading.queue_bytes + leading.batch.bytes as u64 + unsettled
    }
}

impl Mako {
    /// The log of the epochs before is closed: this leader executes transactions from now on.
    pub(super) fn begin_to_lead(&mut self, cx: &mut Cx<'_, Self>) {
        cx.mark("mako.leads");
        if !self.state.replica.votes() {
            cx.mark("mako.learner_leads");
        }
        let end = self.state.log.last();
        let leading = Role::Leading(Box::new(Leading { last: end, ..Leading::default() }));
        if self.state.shards.is_some() {
            self.state.role = leading;
            self.begin_divided(cx);
        } else {
            self.state.commit.committed = end;
            self.publish_committed(cx, usize::MAX);
            self.state.role = leading;
        }
        self.send_progress(cx);
    }

    /// Runs the next slices of the queue.
    pub(super) fn run_slices(&mut self, cx: &mut Cx<'_, Self>) {
        let Options { slice_txns, speculation, .. } = self.state.options;
        let (slice_txns, slices) = match speculation {
            // Other shards wait for messages of this one.
            true if self.state.shards.is_some() => (slice_txns, 1),
            true => (slice_txns, STEP_SLICES_MAX),
            // Transactions of a slice see each other's writes.
            false => (1, slice_txns),
        };
        for _ in 0..slices {
            let Role::Leading(leading) = &mut self.state.role else { return };
            if leading.queue.is_empty() {
                break;
            }
            let count = leading.queue.len().min(slice_txns);
            let requests: Vec<Request> = leading.queue.drain(..count).collect();
            let bytes: usize = requests.iter().map(Request::size_hint).sum();
            leading.queue_bytes -= bytes as u64;
            match self.state.shards {
                Some(_) => self.run_divided_slice(cx, requests),
                None => self.run_slice(cx, &requests),
            }
            self.close_batch(cx);
        }
        let Role::Leading(leading) = &mut self.state.role else { return };
        let is_left = !leading.queue.is_empty();
        if !leading.fresh.is_empty() {
            // §8: the answer is an entry that was made after the question.
            if leading.batch.entries.is_empty() {
                match self.state.shards {
                    Some(_) => self.log_nothing(),
                    None => self.run_slice(cx, &[]),
                }
            }
            self.answer_fresh_requests(cx);
        }
        self.close_batch(cx);
        if is_left {
            cx.resume();
        }
    }

    /// Runs transactions at the next version.
    fn run_slice(&mut self, cx: &mut Cx<'_, Self>, requests: &[Request]) {
        let below = self.state.origin.below();
        let State { role, node, registry, log, commit, .. } = &mut self.state;
        let Role::Leading(leading) = role else { return };
        leading.note_below(*node, below);
        let version = next_version(log.epoch, leading.last);
        let jobs: Vec<Job<'_>> = requests.iter().map(Request::as_job).collect();
        let header = |job: &Job<'_>| RecordHeader::new(job.txn);
        let detail = ResultDetail::Writes;
        cx.begin_work();
        let finished =
            ordered::execute(cx.pool, registry, cx.store, version, &jobs, &header, detail);
        cx.end_work(CpuStage::Execute, jobs.len());
        let (txns, writes) = in_order(requests, finished);
        let over = std::mem::take(&mut leading.news).into_iter().collect();
        let (before, across) = (leading.last, None);
        let entry = Entry { version, before, txns, over, writes, across };
        let logged = Logged::new(entry);
        (leading.last, commit.executed) = (version, version);
        leading.batch.txns += requests.len();
        leading.batch.bytes += logged.bytes.len();
        let early = told_at_once(&logged.entry);
        leading.batch.entries.push(logged);
        for executed in early {
            self.answer(cx, executed.txn, version, executed.outcome);
        }
    }
}

/// The transactions of an entry of which clients are told before it is replicated: none.
fn told_at_once(entry: &Entry) -> Vec<Executed> {
    let has_written = |place: usize| entry.writes.iter().any(|(of, _)| *of == place);
    let is_early = |place: usize| {
        mutate!(MakoZombieAnswers: false => has_written(place))
            || mutate!(MakoReadsToldAtOnce: false => !has_written(place))
    };
    let all = entry.txns.iter().enumerate();
    all.filter(|(place, _)| is_early(*place)).map(|(_, it)| it.clone()).collect()
}

/// The outcomes and the last write of each key, in the serial order: by pass, then by place.
pub(super) fn in_order(
    requests: &[Request],
    finished: Vec<Finished>,
) -> (Vec<Executed>, Vec<(usize, Write)>) {
    let mut all: Vec<(TxnId, Finished)> =
        requests.iter().map(|request| request.txn).zip(finished).collect();
    all.sort_by_key(|(_, finished)| finished.passes);
    let mut last: BTreeMap<(TableId, Key), (usize, Write)> = BTreeMap::new();
    let mut txns = Vec::with_capacity(all.len());
    for (place, (txn, Finished { outcome, writes, .. })) in all.into_iter().enumerate() {
        for write in writes {
            last.insert((write.table, write.key.clone()), (place, write));
        }
        txns.push(Executed { txn, outcome });
    }
    (txns, last.into_values().collect())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pangea_core::ids::ProcedureId;
    use pangea_core::partition::ShardSet;
    use pangea_core::txn::Program;
    use pangea_core::value::Value;

    use super::*;

    /// A row that several transactions of a slice write is in the entry once, by the last of them
    /// in the serial order.
    #[test]
    fn an_entry_has_the_last_write_of_each_key() {
        let request = |sequence| Request {
            txn: TxnId::new(NodeId(1), sequence),
            program: Program::Call { procedure: ProcedureId(1), args: Bytes::new() },
            footprint: None,
            shards: ShardSet::default(),
            origin: None,
        };
        let write = |key: &[u8], value: &[u8]| Write {
            table: TableId(1),
            key: Key::from(key),
            value: Some(Value::copy_from(value)),
        };
        let finished = |passes, writes| Finished { outcome: Ok(Vec::new()), writes, passes };
        let requests = [request(1), request(2), request(3)];
        let (txns, writes) = in_order(
            &requests,
            vec![
                finished(2, vec![write(b"a", b"1")]),
                finished(1, vec![write(b"a", b"2"), write(b"b", b"2")]),
                finished(1, vec![write(b"b", b"3")]),
            ],
        );
        let order: Vec<u64> = txns.iter().map(|executed| executed.txn.sequence()).collect();
        assert_eq!(order, [2, 3, 1], "the first one was run again");
        assert_eq!(writes, [(2, write(b"a", b"1")), (1, write(b"b", b"3"))]);
    }
}
