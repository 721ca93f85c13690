//! The log of a new leader (§4, steps ② and ③), from the reports of f + 1 replicas of a shard.
//!
//! ```text
//!   report 0    log  [A@10] [C@14]     unsynced  B@8
//!   report 1    log  [A@10]            unsynced  B@8  C@14  D@12       late  E@9
//!
//!   new log          [A@10] [C@14]     recovered B@8
//! ```
//!
//! The new log begins with the longest log of the newest view. It has all entries that were
//! committed by logs, and those of earlier views. An *unsynced* entry was accepted in time and is
//! in no log. It may have been committed by equal replies of a super quorum, of which ⌈f/2⌉ + 1
//! members are among the f + 1. If so many report it at one stamp, it is *recovered* at this stamp.
//!
//! # Which unsynced entries count
//!
//! - **Those of the newest view.** A replica that has not entered the view replied in an earlier
//!   one only, and the log at the beginning of the newest view has all that was committed before.
//! - **None that was late.** A replica does not reply to a late transaction. It names the body.
//! - **None that the log contradicts**: that has the transaction at another stamp, or one that
//!   conflicts with it and has a larger stamp. The leader of the view took conflicting transactions
//!   in the order of their stamps. If it had replied to the smaller one, its log would have that
//!   one first. To recover it would change the past of the larger one, which may be committed.
//! - **None at or below the *closed* stamp of the view.** Its leader had promised that nothing more
//!   comes there, so it had not accepted the entry, and a reader may know that there is none.
//!
//! An entry may be recovered that was never committed. It has the same place as if it had been, and
//! commits in the new view. Two conflicting ones may both be recovered. If one of them was
//! committed, the other one belongs to its prefix, or else is missing on the super quorum, and the
//! remaining ⌊f/2⌋ replicas are too few to recover it.
//!
//! # Differences from the paper
//!
//! - The paper recovers an entry if its timestamp is larger than those of the whole log. A
//!   transaction that waits for other shards may be committed by replies while later ones that
//!   commute with it are in the log, and would be lost. Here only conflicting entries count, in
//!   followers that follow a log, too (§3.7: see [`keep_unsynced`]).
//! - The paper appends the queue to the log and does not mention late transactions.
//! - Logs are durable, so the report of a replica that has crashed counts, the former leader's
//!   included. Transactions that only read are in no log.
//! - The new view has a *floor*: the largest promise, closed stamp or read of any report. Of the
//!   replicas that replied to a committed reader, one is among the f + 1. The log of the new view
//!   says that the floor is closed. Therefore the next view change recovers nothing below it that a
//!   follower accepted and the leader did not.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use pangea_core::ids::{NodeId, TxnId};
use pangea_core::mutate;

use super::quorum::{Sizes, View};
use super::stamp::Stamp;

/// A transaction at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The stamp.
    pub stamp: Stamp,
    /// The transaction.
    pub txn: TxnId,
}

/// A replica's state at the beginning of a view change, all of which is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The replica.
    pub node: NodeId,
    /// The last view in which its status was NORMAL.
    pub normal: View,
    /// Its log in that view, from a position on that is the same in all reports. Up to that
    /// position the log is committed.
    pub log: Vec<Entry>,
    /// The transactions that it accepted in time, ready or not, and that are not in its log.
    pub unsynced: Vec<Entry>,
    /// The transactions that came late, at the stamps of their coordinators.
    pub late: Vec<Entry>,
    /// The stamp at or below which it has promised to accept nothing.
    pub promised: Stamp,
    /// The largest stamp of which its log says that nothing more comes at or below it.
    pub closed: Stamp,
    /// The largest stamp at which it replied to a transaction that leaves nothing in the log.
    pub read: Stamp,
}

/// The state with which a new leader begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// The log of the newest view, from the position of the reports on.
    pub log: Vec<Entry>,
    /// The entries that follow the log, in the order of their stamps. Those of several shards need
    /// timestamp agreement again (§4, step ④).
    pub recovered: Vec<Entry>,
    /// The stamp above which the new leader may accept transactions, whatever their footprints. The
    /// log of the new view says right after these entries that it is closed.
    pub floor: Stamp,
}

/// Rebuilds the log. `do_conflict` knows the footprints of all transactions of the reports: see
/// [`missing_bodies`].
///
/// # Panics
/// If there are not f + 1 reports of different replicas, or if a log of the newest view is not the
/// beginning of the longest one.
pub fn rebuild(
    sizes: Sizes,
    reports: &[Report],
    do_conflict: impl Fn(TxnId, TxnId) -> bool,
) -> Rebuilt {
    let newest = newest_view(sizes, reports);
    let log = &longest_log(&newest).log;
    let closed = newest.iter().map(|report| report.closed).max().unwrap_or_default();
    let logged: BTreeMap<Stamp, TxnId> = log.iter().map(|it| (it.stamp, it.txn)).collect();
    let is_contradicted = |entry: &Entry| {
        let mut later = logged.range((Bound::Excluded(entry.stamp), Bound::Unbounded));
        later.any(|(_, txn)| mutate!(RecoveredAboveSynced: do_conflict(entry.txn, *txn) => true))
    };
    let mut recovered = candidates(sizes, &newest);
    mutate!(ClosedForgotten: recovered.retain(|entry| entry.stamp > closed) => ());
    recovered.retain(|entry| !is_contradicted(entry));
    let floors = reports.iter().map(|it| it.promised.max(it.closed).max(it.read));
    let floor = floors.max().unwrap_or_default();
    let floor = mutate!(FloorForgotten: floor => Stamp::ZERO);
    Rebuilt { log: log.clone(), recovered, floor }
}

/// The transactions that a new leader needs for [`rebuild`] and has not reported, each with the
/// replicas that have it.
///
/// # Panics
/// As [`rebuild`].
pub fn missing_bodies(
    sizes: Sizes,
    leader: NodeId,
    reports: &[Report],
) -> BTreeMap<TxnId, Vec<NodeId>> {
    let newest = newest_view(sizes, reports);
    let unsynced = candidates(sizes, &newest);
    let needed = longest_log(&newest).log.iter().chain(&unsynced);
    let mut missing: BTreeMap<TxnId, Vec<NodeId>> = needed.map(|it| (it.txn, Vec::new())).collect();
    for report in reports {
        let all = report.log.iter().chain(&report.unsynced).chain(&report.late);
        for txn in all.map(|it| it.txn).collect::<BTreeSet<_>>() {
            if report.node == leader {
                missing.remove(&txn);
            } else if let Some(nodes) = missing.get_mut(&txn) {
                nodes.push(report.node);
            }
        }
    }
    missing
}

/// Whether the leader's log makes it impossible that an unsynced entry is committed at its stamp in
/// the leader's view: the transaction is in the log, or is after a conflicting one with a larger
/// stamp.
fn does_contradict(
    logged: Entry,
    unsynced: Entry,
    do_conflict: &impl Fn(TxnId, TxnId) -> bool,
) -> bool {
    let is_later = logged.stamp > unsynced.stamp;
    let is_later =
        is_later && mutate!(UnsyncedDropped: do_conflict(logged.txn, unsynced.txn) => true);
    logged.txn == unsynced.txn || is_later
}

/// A follower has taken entries of the leader's log (§3.7). Removes the unsynced entries that these
/// contradict, and returns them: they are in the log, or are late.
///
/// The paper removes all entries that the leader's log does not have. One that commutes with the
/// log may be committed by replies, and its place in the log comes later.
pub fn keep_unsynced(
    unsynced: &mut Vec<Entry>,
    logged: &[Entry],
    do_conflict: impl Fn(TxnId, TxnId) -> bool,
) -> Vec<Entry> {
    let is_contradicted =
        |entry: &mut Entry| logged.iter().any(|it| does_contradict(*it, *entry, &do_conflict));
    unsynced.extract_if(.., is_contradicted).collect()
}

/// The reports of the newest view.
fn newest_view(sizes: Sizes, reports: &[Report]) -> Vec<&Report> {
    let nodes: BTreeSet<NodeId> = reports.iter().map(|report| report.node).collect();
    let asked = (nodes.len(), reports.len());
    assert_eq!(asked, (sizes.simple(), sizes.simple()), "f + 1 replicas report, each once");
    let view = reports.iter().map(|report| report.normal).max();
    reports.iter().filter(|report| Some(report.normal) == view).collect()
}

/// The report with the longest log of those of one view.
fn longest_log<'a>(of_view: &[&'a Report]) -> &'a Report {
    let longest = of_view.iter().copied().max_by_key(|report| report.log.len());
    let longest = longest.expect("there are reports");
    let is_beginning = |report: &&Report| longest.log.starts_with(&report.log);
    assert!(of_view.iter().all(is_beginning), "the logs of a view are beginnings of one");
    longest
}

/// The unsynced entries that enough replicas have at one stamp, and that are in no log.
fn candidates(sizes: Sizes, newest: &[&Report]) -> Vec<Entry> {
    let mut copies: BTreeMap<Entry, usize> = BTreeMap::new();
    for report in newest {
        let late: &[Entry] = mutate!(LateRecovered: &[] => &report.late);
        for entry in report.unsynced.iter().chain(late) {
            *copies.entry(*entry).or_default() += 1;
        }
    }
    let logged: BTreeSet<TxnId> = longest_log(newest).log.iter().map(|it| it.txn).collect();
    let counts = copies
        .into_iter()
        .filter(|(entry, copies)| *copies >= sizes.overlap() && !logged.contains(&entry.txn));
    counts.map(|(entry, _)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, us: u64) -> Entry {
        Entry { stamp: Stamp::last_of(us), txn: TxnId::new(NodeId(9), number) }
    }

    fn report(node: u16, view: u64, log: &[Entry], unsynced: &[Entry]) -> Report {
        Report {
            node: NodeId(node),
            normal: View(view),
            log: log.to_vec(),
            unsynced: unsynced.to_vec(),
            late: Vec::new(),
            promised: Stamp::ZERO,
            closed: Stamp::ZERO,
            read: Stamp::ZERO,
        }
    }

    /// Transactions of even numbers conflict with each other, and so do those of odd ones.
    fn of_parity(one: TxnId, other: TxnId) -> bool {
        one.sequence() % 2 == other.sequence() % 2
    }

    fn of_three(reports: [Report; 2]) -> Rebuilt {
        rebuild(Sizes::of(3), &reports, of_parity)
    }

    #[test]
    fn an_entry_that_commutes_with_later_ones_of_the_log_is_recovered() {
        let (log, unsynced) = ([entry(1, 10)], [entry(2, 8)]);
        let rebuilt = of_three([report(1, 1, &log, &unsynced), report(2, 1, &[], &unsynced)]);
        assert_eq!((&rebuilt.log[..], &rebuilt.recovered[..]), (&log[..], &unsynced[..]));
    }

    /// The entry is unsynced at enough replicas. The leader took the larger one first, so that it
    /// never replied to the smaller one at this stamp.
    #[test]
    fn an_entry_below_a_conflicting_one_of_the_log_is_not_recovered() {
        let (log, unsynced) = ([entry(3, 10)], [entry(1, 8), entry(5, 12)]);
        let rebuilt = of_three([report(1, 1, &log, &unsynced), report(2, 1, &[], &unsynced)]);
        assert_eq!((&rebuilt.log[..], &rebuilt.recovered[..]), (&log[..], &unsynced[1..]));
    }

    #[test]
    fn a_transaction_is_recovered_at_the_stamp_that_enough_replicas_have() {
        let rebuilt = of_three([
            report(1, 1, &[], &[entry(1, 8), entry(2, 9)]),
            report(2, 1, &[], &[entry(1, 12), entry(2, 9)]),
        ]);
        assert_eq!(rebuilt.recovered, [entry(2, 9)]);
        let reports = [
            report(0, 1, &[], &[entry(1, 12)]),
            report(1, 1, &[], &[entry(1, 8)]),
            report(4, 1, &[], &[entry(1, 8)]),
        ];
        let rebuilt = rebuild(Sizes::of(5), &reports, of_parity);
        assert_eq!(rebuilt.recovered, [entry(1, 8)]);
    }

    /// §4 leaves open whether both may be: f = 2, and neither was committed.
    #[test]
    fn two_conflicting_entries_may_both_be_recovered_in_the_order_of_their_stamps() {
        let reports = [
            report(0, 1, &[], &[entry(1, 12)]),
            report(1, 1, &[], &[entry(1, 12), entry(3, 8)]),
            report(2, 1, &[], &[entry(3, 8)]),
        ];
        let rebuilt = rebuild(Sizes::of(5), &reports, of_parity);
        assert_eq!(rebuilt.recovered, [entry(3, 8), entry(1, 12)]);
    }

    #[test]
    fn the_newest_view_counts_before_the_length_and_older_reports_recover_nothing() {
        let (old, new) = ([entry(1, 5), entry(2, 6)], [entry(4, 20)]);
        let stale = [entry(3, 30), entry(6, 30)];
        let rebuilt = of_three([report(1, 1, &old, &stale), report(2, 2, &new, &stale[..1])]);
        assert_eq!((&rebuilt.log[..], rebuilt.recovered.len()), (&new[..], 0));
        let one = rebuild(Sizes::of(1), &[report(0, 1, &old, &stale[..1])], of_parity);
        assert_eq!((&one.log[..], &one.recovered[..]), (&old[..], &stale[..1]));
    }

    /// An older view may have closed more than the newest one knows of, and f + 1 did not know it.
    #[test]
    fn only_the_newest_view_says_what_is_closed_and_all_reports_raise_the_floor() {
        let unsynced = [entry(2, 20), entry(4, 30)];
        let mut reports = [0, 1, 2].map(|node| report(node, 2, &[], &unsynced));
        (reports[0].closed, reports[0].normal) = (Stamp::last_of(50), View(1));
        reports[1].closed = Stamp::last_of(20);
        let rebuilt = rebuild(Sizes::of(5), &reports, of_parity);
        assert_eq!(rebuilt.recovered, [entry(4, 30)]);
        assert_eq!(rebuilt.floor, Stamp::last_of(50));
        reports[2].promised = Stamp::last_of(60);
        assert_eq!(rebuild(Sizes::of(5), &reports, of_parity).floor, Stamp::last_of(60));
        reports[2].read = Stamp::last_of(70);
        assert_eq!(rebuild(Sizes::of(5), &reports, of_parity).floor, Stamp::last_of(70));
    }

    #[test]
    fn late_transactions_are_not_recovered_and_name_bodies() {
        let mut reports =
            [report(1, 1, &[entry(1, 5)], &[entry(2, 6)]), report(2, 1, &[], &[entry(2, 6)])];
        reports[0].late = vec![entry(3, 4), entry(4, 3)];
        reports[1].late = vec![entry(3, 4)];
        assert_eq!(of_three(reports.clone()).recovered, [entry(2, 6)]);
        let sizes = Sizes::of(3);
        let missing = missing_bodies(sizes, NodeId(2), &reports);
        assert_eq!(missing, BTreeMap::from([(entry(1, 5).txn, vec![NodeId(1)])]));
        reports[1].late.push(entry(1, 4));
        assert_eq!(missing_bodies(sizes, NodeId(2), &reports), BTreeMap::new());
        let all = missing_bodies(sizes, NodeId(0), &reports);
        let holders = vec![NodeId(1), NodeId(2)];
        let expected = [1, 2].map(|number| (entry(number, 0).txn, holders.clone()));
        assert_eq!(all, BTreeMap::from(expected));
    }

    #[test]
    fn a_follower_drops_only_the_entries_that_the_log_contradicts() {
        let mut unsynced = vec![entry(1, 8), entry(2, 8), entry(4, 30), entry(6, 9)];
        let dropped = keep_unsynced(&mut unsynced, &[entry(3, 10), entry(6, 5)], of_parity);
        assert_eq!(dropped, [entry(1, 8), entry(6, 9)]);
        assert_eq!(unsynced, [entry(2, 8), entry(4, 30)]);
    }

    #[test]
    #[should_panic(expected = "f + 1 replicas report, each once")]
    fn one_replica_does_not_count_twice() {
        of_three([report(1, 1, &[], &[]), report(1, 1, &[], &[])]);
    }
}
