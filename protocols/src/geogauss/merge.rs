//! The merge of an epoch (§4.1.2, §4.3): which of its transactions commit.
//!
//! ```text
//!   transactions of the epoch --> changed since their base? --> lost
//!                                        | no
//!                                        v
//!                        in rank order: meets one that commits? --> lost
//!                                        | no
//!                                        v
//!                                     commits
//! ```
//!
//! A transaction that has read rows of another one of the epoch (`chains.rs`) commits if they are
//! of that one at its rank. One that adds to rows (`adds.rs`) commits if they exist at its rank.
//!
//! The result depends on the rows before the epoch and on the epoch's transactions, not on the
//! order in which they arrive or on the number of workers.
//!
//! In the paper (Algorithm 2) a transaction that loses a row is aborted at once, and does not
//! compare its other rows. So the result depends on the order of arrival, and replicas differ. Two
//! rules without that error exist here:
//! - [`MergeRule::Claims`], the paper's: each row goes to the first transaction that writes it, and
//!   a transaction commits if it gets all of its rows. One that loses takes down others.
//! - [`MergeRule::Greedy`]: a transaction commits if none before it that commits has written a row
//!   that it checks. Without additions, every transaction that commits by the other rule commits
//!   by this one.
//!
//! By both rules an addition takes no part in this, except that it is a write for others.

use std::collections::BTreeMap;

use pangea_core::exec::{Change, first_change};
use pangea_core::hash::{HashMap, HashSet};
use pangea_core::ids::{SnapshotVersion, TableId, TxnId};
use pangea_core::key::Key;
use pangea_core::mutate;
use pangea_core::pool::{Pool, map};
use pangea_core::store::Store;
use pangea_core::txn::{Abort, PointRead, ReadVersion, Registry, Write};
use serde::{Deserialize, Serialize};

use super::adds::{AddedRows, keep_last};
use super::chains::heads;
use super::deletions::{Deletions, hash_row};
use super::isolation::Checks;
use super::rank::Rank;

/// The rule that decides which of the transactions that write one row commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeRule {
    /// The first one that can commit.
    #[default]
    Greedy,
    /// The first one (§4.1.2).
    Claims,
}

/// A transaction of the epoch.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub txn: TxnId,
    /// Its place in the order.
    pub rank: Rank,
    /// The snapshot on which it ran.
    pub base: SnapshotVersion,
    /// Its writes, and the rows to check.
    pub checks: &'a Checks,
}

/// The fate of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its writes are part of the epoch.
    Commits,
    /// Another transaction has changed a row that it checks, or deleted one to which it adds.
    Lost(Change),
    /// A row can't hold what it adds.
    Failed(Abort),
    /// Its base is before the horizon.
    TooOld,
}

/// The state before an epoch.
#[derive(Clone, Copy)]
pub struct Before<'a> {
    /// The rows.
    pub store: &'a Store,
    /// Their version: the last epoch that was applied.
    pub version: SnapshotVersion,
    /// The deletions within the horizon.
    pub deletions: &'a Deletions,
    /// The code that adds to rows.
    pub registry: &'a Registry,
}

/// The result of a merge.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The fate of each candidate.
    pub fates: Vec<Fate>,
    /// The candidates that commit, in rank order. If two of them write a row, the later one wins.
    pub order: Vec<usize>,
    /// For each of them the rows that it is the last to add to, with their values after that.
    pub added: Vec<Vec<Write>>,
}

/// Decides which transactions of an epoch commit.
pub fn decide(
    pool: &dyn Pool,
    rule: MergeRule,
    before: Before<'_>,
    candidates: &[Candidate<'_>],
) -> Verdict {
    let chained = |it: &&Candidate<'_>| heads(it.checks).next().is_some();
    let has_chains = candidates.iter().any(|candidate| chained(&candidate));
    let epoch: HashSet<TxnId> =
        if has_chains { candidates.iter().map(|it| it.txn).collect() } else { HashSet::default() };
    let fate = |candidate: &Candidate<'_>| check(before, candidate, &epoch);
    let mut fates = map(
        pool,
        candidates,
        |_, candidate| mutate!(EpochOverwritesUnseen: fate(candidate) => Fate::Commits),
    );
    let mut order: Vec<usize> =
        (0..candidates.len()).filter(|&i| fates[i] == Fate::Commits).collect();
    order.sort_unstable_by_key(|&i| candidates[i].rank);
    let has_ranges = order.iter().any(|&i| !candidates[i].checks.reads.ranges.is_empty());
    let mut written = Written::new(has_ranges, &epoch);
    if rule == MergeRule::Claims {
        mutate!(
            LoserStopsClaiming: order.iter().for_each(|&i| written.add(&candidates[i]))
                => loser_stops_claiming(&mut written, candidates, &fates)
        );
    }
    let Before { store, version, registry, .. } = before;
    let all = order.iter().map(|&i| candidates[i].checks);
    let mut rows = AddedRows::new(registry, store, version, all);
    let mut added = Vec::new();
    order.retain(|&i| {
        let lost = match rule {
            MergeRule::Greedy => written.conflict(&candidates[i], Meets::Checked),
            MergeRule::Claims => written.conflict(&candidates[i], Meets::EarlierClaim),
        };
        let fate = match lost {
            Some(change) => Err(Fate::Lost(change)),
            None => rows.advance(candidates[i].checks),
        };
        match fate {
            Err(fate) => fates[i] = fate,
            Ok(rows) => {
                if rule == MergeRule::Greedy {
                    written.add(&candidates[i]);
                }
                added.push(rows);
            }
        }
        fates[i] == Fate::Commits
    });
    keep_last(&mut added);
    Verdict { fates, order, added }
}

/// Compares the rows that a transaction checks with those before the epoch, except rows of other
/// transactions of it.
fn check(before: Before<'_>, candidate: &Candidate<'_>, epoch: &HashSet<TxnId>) -> Fate {
    let Candidate { base, checks, .. } = *candidate;
    let checked = || checks.writes.iter().filter(|it| it.is_checked).map(|it| &it.write);
    if checked().next().is_some() && !before.deletions.reaches(base) {
        return Fate::TooOld;
    }
    for write in checked() {
        let (table, key) = (write.table, &write.key);
        let live = |found: &pangea_core::store::Version| {
            found.value.is_some().then(|| (found.version, found.header.writer()))
        };
        let live = before.store.head_with(table, key, before.version, live).flatten();
        let change = |winner| Fate::Lost(Change { table, key: key.clone(), winner });
        if let Some((version, writer)) = live {
            if version > mutate!(SnapshotOffByOne: base => base.next()) {
                return change(Some(writer));
            }
        } else if before.deletions.has_since(hash_row(table, key), base) {
            mutate!(DeletionForgotten: () => continue);
            return change(None);
        }
    }
    let is_of_epoch =
        |read: &PointRead| read.seen.local_writer().is_some_and(|it| epoch.contains(&it));
    let change = match checks.reads.points.iter().any(is_of_epoch) {
        false => first_change(&checks.reads, before.store, before.version),
        true => {
            let mut reads = checks.reads.clone();
            reads.points.retain(|read| !is_of_epoch(read));
            first_change(&reads, before.store, before.version)
        }
    };
    change.map_or(Fate::Commits, Fate::Lost)
}

/// Which writes of other transactions a transaction conflicts with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meets {
    /// Those of rows that it checks.
    Checked,
    /// Those of earlier ones in the order, to rows that it writes or checks.
    EarlierClaim,
}

/// A row.
type Row<'a> = (TableId, &'a Key);

/// A transaction with its place in the order.
type Writer = (Rank, TxnId);

/// The transactions that have written a row.
#[derive(Clone, Copy)]
struct Writers {
    first: Writer,
    /// The last one that was added.
    last: Writer,
    /// The first one that has deleted it.
    deleter: Option<Writer>,
}

/// The rows that transactions have written.
struct Written<'a> {
    /// The transactions of the epoch, if any of them has read rows of another one.
    epoch: &'a HashSet<TxnId>,
    rows: HashMap<Row<'a>, Writers>,
    /// The first writers in the order of the keys, if ranges are looked up.
    in_order: Option<BTreeMap<Row<'a>, Writer>>,
}

impl<'a> Written<'a> {
    fn new(has_ranges: bool, epoch: &'a HashSet<TxnId>) -> Self {
        Self { epoch, rows: HashMap::default(), in_order: has_ranges.then(BTreeMap::new) }
    }

    /// Adds the changes of a transaction. Those of earlier ones stay.
    fn add(&mut self, candidate: &Candidate<'a>) {
        let writer = (candidate.rank, candidate.txn);
        let Checks { writes, adds, .. } = candidate.checks;
        let writes = writes.iter().map(|it| &it.write);
        let writes = writes.map(|it| ((it.table, &it.key), it.value.is_none()));
        let adds = mutate!(DeltaNotMet: &adds[..] => &[]);
        let adds = adds.iter().map(|it| ((it.table, &it.key), false));
        for (row, is_deletion) in writes.chain(adds) {
            let new = Writers { first: writer, last: writer, deleter: None };
            let known = self.rows.entry(row).or_insert(new);
            known.last = writer;
            if is_deletion {
                known.deleter.get_or_insert(writer);
            }
            if let Some(in_order) = &mut self.in_order {
                in_order.entry(row).or_insert(writer);
            }
        }
    }

    /// The first row of a transaction at which it loses.
    fn conflict(&self, candidate: &Candidate<'_>, meets: Meets) -> Option<Change> {
        let Candidate { rank, checks, .. } = *candidate;
        let is_earlier = |writer: &&Writer| meets == Meets::Checked || writer.0 < rank;
        let lost = |table: TableId, key: &Key, of: fn(&Writers) -> Option<Writer>| {
            let winner = self.rows.get(&(table, key)).and_then(of).filter(|it| is_earlier(&it))?;
            Some(Change { table, key: key.clone(), winner: Some(winner.1) })
        };
        let first = |writers: &Writers| Some(writers.first);
        let writes = checks.writes.iter();
        let mut writes = writes.filter(|it| it.is_checked || meets == Meets::EarlierClaim);
        let of_writes = writes.find_map(|it| lost(it.write.table, &it.write.key, first));
        let of_points = || {
            checks.reads.points.iter().find_map(|it| match it.seen {
                ReadVersion::Present => lost(it.table, &it.key, |writers| writers.deleter),
                ReadVersion::Local(head) | ReadVersion::LocalDeleted(head) => {
                    self.head_lost(it, head)
                }
                _ => lost(it.table, &it.key, first),
            })
        };
        let in_order = self.in_order.as_ref();
        of_writes.or_else(of_points).or_else(|| {
            let ranges = mutate!(RangesNotMet: &checks.reads.ranges[..] => &[]);
            ranges.iter().find_map(|read| {
                let start = Key::from(&read.range.start[..]);
                let from = in_order?.range((read.table, &start)..);
                let mut within = from.take_while(|((table, key), _)| {
                    *table == read.table && read.range.contains(key)
                });
                let found = within.find(|(_, writer)| is_earlier(writer));
                found.map(|((table, key), writer)| Change {
                    table: *table,
                    key: (*key).clone(),
                    winner: Some(writer.1),
                })
            })
        })
    }
}

impl Written<'_> {
    /// Whether a row is not of the transaction of which it was read.
    fn head_lost(&self, read: &PointRead, head: TxnId) -> Option<Change> {
        let winner = match self.rows.get(&(read.table, &read.key)) {
            Some(writers) => (writers.last.1 != head).then_some(Some(writers.last.1)),
            None => self.epoch.contains(&head).then_some(None),
        };
        winner.map(|winner| Change { table: read.table, key: read.key.clone(), winner })
    }
}

fn loser_stops_claiming<'a>(
    written: &mut Written<'a>,
    candidates: &[Candidate<'a>],
    fates: &[Fate],
) {
    let alive = candidates.iter().zip(fates).filter(|(_, fate)| **fate == Fate::Commits);
    for (candidate, _) in alive {
        for it in &candidate.checks.writes {
            let row = (it.write.table, &it.write.key);
            let first = (candidate.rank, candidate.txn);
            if written.rows.get(&row).is_some_and(|writers| writers.first < first) {
                break;
            }
            let deleter = it.write.value.is_none().then_some(first);
            written.rows.insert(row, Writers { first, last: first, deleter });
            if let Some(in_order) = &mut written.in_order {
                in_order.insert(row, first);
            }
        }
    }
}

#[cfg(test)]
mod tests;
