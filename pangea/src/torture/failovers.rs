//! The transactions that a failover may discard although they were acknowledged, if a protocol
//! permits that
//! ([`may_lose_commits`](pangea_core::protocol::Protocol::may_lose_commits)): those that a deposed
//! master ran in versions that another master's term replaced.
//!
//! ```text
//!   node.log of every node: master terms, when they were reported  --> terms, as in the simulator
//!   versions of every node, asked for again and again               --> the version of each answer
//!   history of the clients  --> is a version up to the answer's of another term for good?
//!                                 yes: its outcome is unknown       no: it must have survived
//! ```
//!
//! The rule is the simulator's ([`pangea_sim::master_terms`]). Clients of PostgreSQL's protocol are
//! not told the version of an answer. An upper bound takes its place: a version that its node had
//! afterwards. A transaction during which its node changed to another term has no bound. So a few
//! that survived are also of unknown outcome, but none that had to survive is excused.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::protocol::Status;
use pangea_node::client::Client;
use pangea_sim::master_terms::{MasterHistories, MasterTerm};
use pangea_sim::record::read::read;
use pangea_sim::record::write::write;
use pangea_sim::record::{Atom, Op, Outcome, Recorded, Txn};
use tokio::task::JoinSet;

use super::history::History;
use crate::cluster::Cluster;
use crate::failure::Failure;

/// The time between two questions for a node's version: an answer before a failover is excused
/// without need if its version is not known this soon.
const POLL: Duration = Duration::from_millis(10);
/// The delay before a node that is down is asked again.
const RECONNECT: Duration = Duration::from_millis(100);
/// The gauge of the versions that a node has run and that are not confirmed yet. Where tables are
/// partitioned, readers do not see these, but clients may have been answered.
const EARLY: &str = "epochs_early";
/// The number of epochs that a node runs at a time where tables are partitioned. It may answer
/// transactions of all of them.
const CONCURRENT_EPOCHS: u64 = 16;
/// The words of a node's log before the version of a confirmed term.
const CONFIRMED: &str = " is the master from snapshot version ";
/// The words before the version of a term that is not confirmed yet.
const HERE: &str = " ordered the transactions that ran here from snapshot version ";

/// The newest version of which a node can have answered at a time between question and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    asked: i64,
    answered: i64,
    version: u64,
}

impl Sample {
    fn new((asked, answered): (i64, i64), status: &Status, is_divided: bool) -> Self {
        let early = status.counters.get(EARLY).copied().unwrap_or(0);
        let more = if is_divided { early + CONCURRENT_EPOCHS } else { 0 };
        Self { asked, answered, version: status.version.0 + more }
    }
}

/// The samples of each node, in the order of time.
type Samples = Arc<Vec<Mutex<Vec<Sample>>>>;

/// Asks all nodes for their versions, until it is dropped.
pub struct Failovers {
    logs: Vec<PathBuf>,
    samples: Samples,
    is_divided: bool,
    /// Dropped, and so stopped, with this.
    _asking: JoinSet<()>,
}

impl Failovers {
    /// Begins to ask the nodes of a cluster.
    pub fn watch(cluster: &Cluster, history: &Arc<History>) -> Self {
        let nodes = &cluster.members;
        let is_divided = cluster.plan.shards() > 1;
        let samples: Samples = Arc::new(nodes.iter().map(|_| Mutex::default()).collect());
        let mut asking = JoinSet::new();
        for (node, member) in nodes.iter().enumerate() {
            let address = (member.config.me().peer, member.config.cluster.clone());
            let (samples, history) = (samples.clone(), history.clone());
            asking.spawn(ask(address, (node, samples), is_divided, history));
        }
        Self {
            logs: nodes.iter().map(crate::cluster::Member::log_path).collect(),
            samples,
            is_divided,
            _asking: asking,
        }
    }

    /// Reads the nodes' logs.
    ///
    /// # Errors
    /// If a log can't be read, or nodes confirmed different terms of one version.
    pub fn discards(&self, history: &History) -> Result<Discards, Failure> {
        let mut reports = Vec::new();
        for (node, path) in self.logs.iter().enumerate() {
            let cant = |error| Failure::failed(format!("can't read {}", path.display()), error);
            let log = std::fs::read(path).map_err(cant)?;
            let log = String::from_utf8_lossy(&log);
            let of_node = log.lines().filter_map(|line| Report::parse(line, node));
            reports.extend(of_node.map(|it| Report { at: history.moment(it.at), ..it }));
        }
        let samples = self.samples.iter().map(|samples| lock(samples).clone()).collect();
        Discards::new(reports, samples, self.is_divided)
    }
}

async fn ask(
    (address, cluster): (SocketAddr, String),
    (node, samples): (usize, Samples),
    is_divided: bool,
    history: Arc<History>,
) {
    loop {
        // A node that is down accepts no connection.
        if let Ok(client) = Client::connect(address, &cluster).await {
            let mut asked = history.now();
            while let Ok(status) = client.status().await {
                let sample = Sample::new((asked, history.now()), &status, is_divided);
                lock(&samples[node]).push(sample);
                tokio::time::sleep(POLL).await;
                asked = history.now();
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

fn lock(samples: &Mutex<Vec<Sample>>) -> MutexGuard<'_, Vec<Sample>> {
    samples.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node's report of a master term, in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Report {
    /// The time: microseconds since 1970 in the log, and by the clock of the history afterwards.
    at: i64,
    node: usize,
    shard: ShardId,
    from: SnapshotVersion,
    term: MasterTerm,
    is_confirmed: bool,
}

impl Report {
    /// Parses a line such as `2026-11-27T16:00:00.000000Z  INFO driver: node 1 is the master from
    /// snapshot version 7 on shard=0 first=300`. Returns `None` for lines about anything else.
    fn parse(line: &str, node: usize) -> Option<Self> {
        let is_confirmed = line.contains(CONFIRMED);
        let (before, after) = line.split_once(if is_confirmed { CONFIRMED } else { HERE })?;
        let moment = before.split_whitespace().next()?.parse::<jiff::Timestamp>().ok()?;
        let master = before.rsplit(' ').next()?.parse().ok()?;
        let field = |name: &str| {
            let words = after.split_whitespace().rev();
            words.filter_map(|word| word.strip_prefix(name)).find_map(|it| it.strip_prefix('='))
        };
        Some(Self {
            at: moment.as_microsecond(),
            node,
            shard: ShardId(field("shard")?.parse().ok()?),
            from: SnapshotVersion(after.split_whitespace().next()?.parse().ok()?),
            term: (NodeId(master), field("first")?.parse().ok()?),
            is_confirmed,
        })
    }
}

/// What failovers may have discarded.
pub struct Discards {
    /// The confirmed terms, and those of one node at one time.
    confirmed: MasterHistories,
    /// The other reports of each node, in the order of time.
    reports: Vec<Vec<Report>>,
    samples: Vec<Vec<Sample>>,
    is_divided: bool,
    /// How often the confirmed master changed.
    failovers: usize,
}

impl Discards {
    fn new(
        mut reports: Vec<Report>,
        samples: Vec<Vec<Sample>>,
        is_divided: bool,
    ) -> Result<Self, Failure> {
        let nodes = samples.len();
        let mut confirmed = MasterHistories::new(nodes);
        let mut masters: BTreeMap<(ShardId, SnapshotVersion), NodeId> = BTreeMap::new();
        for report in reports.iter().filter(|it| it.is_confirmed) {
            let Report { node, shard, from, term, .. } = *report;
            masters.insert((shard, from), term.0);
            let id = NodeId(u16::try_from(node).expect("a number of a node"));
            if let Some(other) = confirmed.on_master_term(id, (shard, from), term, true) {
                return Err(Failure::Failed(format!(
                    "check failed: nodes confirmed different masters of shard {} from {from} on: \
                     node {} from its transaction {} on, and node {} from {} on",
                    shard.0, term.0.0, term.1, other.0.0, other.1
                )));
            }
        }
        let masters: Vec<_> = masters.into_iter().collect();
        let changes = masters.windows(2).filter(|it| it[0].0.0 == it[1].0.0 && it[0].1 != it[1].1);
        let failovers = changes.count();
        reports.sort_by_key(|report| report.at);
        let of_node = |node| {
            let reports = reports.iter().copied();
            reports.filter(|it| it.node == node && !it.is_confirmed).collect()
        };
        let reports = (0..nodes).map(of_node).collect();
        Ok(Self { confirmed, reports, samples, is_divided, failovers })
    }

    /// Whether a transaction of a node that was answered may have been discarded.
    fn may_be_lost(&mut self, node: usize, begin: i64, end: i64) -> bool {
        let sample = self.samples[node].iter().find(|sample| sample.asked >= end);
        // Otherwise the node was not asked again.
        let unknown = (i64::MAX, u64::MAX);
        let (answered, version) = sample.map_or(unknown, |it| (it.answered, it.version));
        let reports = &self.reports[node];
        let before = reports.partition_point(|report| report.at < begin);
        let during = reports[before..].iter().take_while(|report| report.at <= answered).count();
        let version = SnapshotVersion(if during == 0 { version } else { u64::MAX });
        let id = NodeId(u16::try_from(node).expect("a number of a node"));
        self.confirmed.on_start(id);
        for (at, report) in reports[..before + during].iter().enumerate() {
            if at >= before && self.is_lost(id, version) {
                return true;
            }
            let Report { shard, from, term, .. } = *report;
            self.confirmed.on_master_term(id, (shard, from), term, false);
        }
        self.is_lost(id, version)
    }

    fn is_lost(&self, node: NodeId, version: SnapshotVersion) -> bool {
        self.confirmed.is_lost(version, &self.confirmed.up_to(node, version))
    }

    /// Makes the outcome of each acknowledged transaction unknown that may have been discarded.
    /// Returns their number. `node_of` has the nodes of clients.
    fn excuse(&mut self, recorded: &mut Recorded, node_of: &BTreeMap<u64, usize>) -> usize {
        let mut excused = 0;
        for txn in recorded.txns.iter_mut().filter(|txn| !txn.is_final) {
            let Some(end) = txn.end.filter(|_| txn.outcome == Outcome::Committed) else { continue };
            let Atom::Number(client) = txn.client else { unreachable!("clients have numbers") };
            let node = u64::try_from(client).ok().and_then(|client| node_of.get(&client));
            let node = *node.expect("the node of each client is recorded");
            if self.may_be_lost(node, txn.begin, end) {
                excused += 1;
                give_up(txn, self.is_divided);
            }
        }
        excused
    }

    /// Does this to the history in a file. Returns a line for the report.
    ///
    /// # Errors
    /// If the file can't be read or written.
    pub fn excuse_in(&mut self, path: &Path, history: &History) -> Result<String, Failure> {
        let cant = |what: &str, error: &dyn std::fmt::Display| {
            Failure::failed(format!("can't {what} {}", path.display()), error)
        };
        let file = File::open(path).map_err(|error| cant("read", &error))?;
        let recorded = read(&mut BufReader::new(file), &mut |_| {});
        let mut recorded = recorded.map_err(|error| cant("read", &error))?;
        let excused = self.excuse(&mut recorded, &history.nodes());
        let file = File::create(path).map_err(|error| cant("write", &error))?;
        let written = write(&recorded, &mut BufWriter::new(file));
        written.map_err(|error| cant("write", &error))?;
        Ok(format!(
            "  failovers   {} of masters; {excused} acknowledged transactions may have been \
             discarded, and no others",
            self.failovers
        ))
    }
}

/// Makes the outcome of a transaction unknown. Where tables are partitioned it may have run again
/// and have read something else than its client saw.
fn give_up(txn: &mut Txn, may_run_again: bool) {
    (txn.outcome, txn.end) = (Outcome::Unknown, None);
    if may_run_again {
        txn.ops.retain(|op| matches!(op, Op::Append { .. } | Op::Write { .. } | Op::Delete { .. }));
    }
    let note = txn.note.as_deref().unwrap_or_default();
    txn.note = Some(format!("{note}, acknowledged, but a failover may have discarded it").into());
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn v(version: u64) -> SnapshotVersion {
        SnapshotVersion(version)
    }

    fn report(at: i64, node: usize, from: u64, master: u16, is_confirmed: bool) -> Report {
        let term = (NodeId(master), u64::from(master) + 1);
        Report { at, node, shard: ShardId(0), from: v(from), term, is_confirmed }
    }

    /// Samples of two nodes: each has version t at time t, until a time.
    fn samples(until: i64) -> Vec<Vec<Sample>> {
        let sample = |at: i64| Sample { asked: at, answered: at, version: at.cast_unsigned() };
        vec![(0..until).map(sample).collect(), (0..100).map(sample).collect()]
    }

    #[test]
    fn terms_are_read_from_the_lines_of_a_log() {
        let time = "2026-11-27T16:00:00.000001Z";
        let line = |level: &str, text: &str| format!("{time} {level} pangea_node::driver: {text}");
        let moment = time.parse::<jiff::Timestamp>().unwrap().as_microsecond();
        let expected = Report {
            at: moment,
            node: 2,
            shard: ShardId(3),
            from: v(7),
            term: (NodeId(1), 300),
            is_confirmed: false,
        };
        let here = "node 1 ordered the transactions that ran here from snapshot version 7 on \
                    shard=3 first=300";
        assert_eq!(Report::parse(&line(" INFO", here), 2), Some(expected));
        let confirmed = "node 1 is the master from snapshot version 7 on: this node has discarded \
                         3 epochs of an earlier master, even if their transactions were \
                         acknowledged shard=3 first=300";
        let expected = Report { is_confirmed: true, ..expected };
        assert_eq!(Report::parse(&line(" WARN", confirmed), 2), Some(expected));
        assert_eq!(Report::parse(&line(" INFO", "connected to node 1"), 2), None);
        assert_eq!(Report::parse("", 2), None);
    }

    #[test]
    fn where_tables_are_partitioned_answers_may_be_ahead_of_readers() {
        let counters = BTreeMap::from([(EARLY.to_owned(), 5)]);
        let status = Status { version: v(7), counters, ..Status::default() };
        assert_eq!(Sample::new((1, 2), &status, false).version, 7);
        assert_eq!(Sample::new((1, 2), &status, true).version, 7 + 5 + CONCURRENT_EPOCHS);
    }

    #[test]
    fn only_answers_of_a_replaced_term_are_excused() {
        // Node 0 is the master until it is killed at 50. Node 1 continues from version 40 on.
        let reports = vec![
            report(1, 0, 1, 0, false),
            report(2, 1, 1, 0, true),
            report(60, 1, 40, 1, false),
            report(61, 1, 40, 1, true),
        ];
        let mut discards = Discards::new(reports, samples(50), false).unwrap();
        assert_eq!(discards.failovers, 1);
        assert!(!discards.may_be_lost(0, 30, 39), "version 39 was confirmed");
        assert!(discards.may_be_lost(0, 30, 40));
        assert!(discards.may_be_lost(0, 49, 55), "the node was killed before it was asked");
        assert!(!discards.may_be_lost(1, 30, 40), "the other node ran no such term");
        assert!(!discards.may_be_lost(1, 62, 70), "it is of the new term");
    }

    #[test]
    fn a_master_that_starts_again_has_lost_nothing() {
        let reports = vec![report(1, 0, 1, 0, false), report(2, 1, 1, 0, true)];
        let mut discards = Discards::new(reports, samples(50), false).unwrap();
        assert_eq!(discards.failovers, 0);
        assert!(!discards.may_be_lost(0, 30, 40) && !discards.may_be_lost(0, 49, 55));
    }

    #[test]
    fn an_answer_at_the_time_of_a_rollback_has_no_version() {
        // Node 0 was cut off and has run up to version 45; it learns the other term at 45.
        let reports = vec![
            report(1, 0, 1, 0, false),
            report(2, 1, 1, 0, true),
            report(31, 1, 40, 1, true),
            report(45, 0, 40, 1, false),
        ];
        let mut discards = Discards::new(reports, samples(100), false).unwrap();
        assert!(!discards.may_be_lost(0, 20, 39));
        assert!(discards.may_be_lost(0, 44, 45));
        assert!(discards.may_be_lost(0, 44, 60), "it may have run before the rollback");
        assert!(!discards.may_be_lost(0, 46, 60));
    }

    #[test]
    fn two_masters_of_one_version_are_a_violation() {
        let reports = vec![report(1, 0, 1, 0, true), report(1, 1, 1, 1, true)];
        let error = Discards::new(reports, samples(9), false).err().expect("they differ");
        assert!(error.to_string().contains("different masters of shard 0"), "{error}");
    }

    #[test]
    fn an_excused_transaction_keeps_its_writes_and_may_keep_its_reads() {
        let history = |line: &str| read(&mut line.as_bytes(), &mut |_| {}).unwrap();
        let line = r#"{"client": 1, "begin": 44, "end": 45, "outcome": "committed", "note": "a",
            "ops": [{"read": {"key": 5, "value": null}}, {"write": {"key": 5, "value": 6}}]}"#
            .replace('\n', " ");
        for (is_divided, ops) in [(false, 2), (true, 1)] {
            let reports = vec![report(1, 0, 1, 0, false), report(60, 1, 40, 1, true)];
            let mut discards = Discards::new(reports, samples(100), is_divided).unwrap();
            let mut recorded = history(&line);
            assert_eq!(discards.excuse(&mut recorded, &BTreeMap::from([(1, 1)])), 0);
            assert_eq!(discards.excuse(&mut recorded, &BTreeMap::from([(1, 0)])), 1);
            let txn = &recorded.txns[0];
            assert_eq!((txn.outcome, txn.end, txn.ops.len()), (Outcome::Unknown, None, ops));
        }
    }
}
