//! The facts that coordinators and readers may know about a shard, and whether a rebuilt log keeps
//! them.

use std::collections::BTreeMap;

use pangea_core::ids::NodeId;

use super::cases::TXNS_MAX;
use super::run::{Item, Model, Replica, Reply, entry, number};
use crate::tiga::quorum::{FastReply, Position, Replies, Sizes, Verdict, View, commit_point};
use crate::tiga::rebuild::{Rebuilt, Report, rebuild};
use crate::tiga::stamp::Stamp;

const VIEW: View = View(1);

/// The stamps of transactions in microseconds, zero for those that are missing.
pub type Stamps = [u64; TXNS_MAX];

/// Everything that a replica has told, and that others may know.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Said {
    pub replies: [Reply; TXNS_MAX],
    /// The number of items that are durable in its log.
    pub has: usize,
    /// The largest closed stamp among them.
    closed: u64,
}

impl Said {
    pub fn by_follower(follower: &Replica) -> Self {
        Self { replies: follower.replies, has: follower.has, closed: follower.closed }
    }

    /// The leader answers before its log is durable.
    pub fn by_leader(leader: &Replica, items: &[Item], durable: usize) -> Self {
        Self { replies: leader.replies, has: durable, closed: closed_by(&items[..durable]) }
    }
}

fn closed_by(items: &[Item]) -> u64 {
    let closed = items.iter().map(|item| match item {
        Item::Closed(us) => *us,
        Item::Entry(..) => 0,
    });
    closed.max().unwrap_or_default()
}

/// The knowledge of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The transactions of which a client has its result.
    pub committed: Stamps,
    /// The number of items up to the commit point.
    cut: usize,
    /// The stamp up to which a reader has seen everything.
    published: u64,
}

impl Facts {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The replies of one replica about one transaction: a fast one, and the stamp of a slow one.
type Part = (Reply, Option<u64>);

/// Verdicts that were asked for before.
#[derive(Default)]
pub struct Verdicts(BTreeMap<(Part, Vec<Part>), Option<u64>>);

impl Verdicts {
    /// The facts that follow from the words of a leader and its followers.
    pub fn facts(&mut self, model: &Model, items: &[Item], own: &Said, others: &[&Said]) -> Facts {
        let mut committed = [0; TXNS_MAX];
        for (txn, stamp) in committed.iter_mut().enumerate().take(model.count()) {
            let part = |said: &Said| (said.replies[txn], logged(&items[..said.has], txn));
            let mut parts: Vec<Part> = others.iter().map(|said| part(said)).collect();
            parts.sort_unstable();
            let known = self.0.entry((part(own), parts));
            let verdict = *known.or_insert_with_key(|(own, others)| verdict(own, others));
            // The other leader has never said that it is ready at a smaller stamp.
            let elsewhere = model.case.txns[txn].elsewhere;
            *stamp = verdict.filter(|us| *us >= elsewhere).unwrap_or_default();
        }
        let all = || others.iter().copied().chain([own]);
        let durable: Vec<_> = all().map(|said| Position(said.has as u64)).collect();
        let mut closed: Vec<_> = all().map(|said| said.closed).collect();
        closed.sort_unstable();
        let published = closed[closed.len() - Sizes::of(closed.len()).simple()];
        Facts { committed, cut: commit_point(&durable).0 as usize, published }
    }
}

fn logged(items: &[Item], txn: usize) -> Option<u64> {
    items.iter().find_map(|item| match item {
        Item::Entry(other, us) if *other == txn => Some(*us),
        Item::Entry(..) | Item::Closed(_) => None,
    })
}

/// The verdict of a coordinator that has heard everything. The leader is node 0.
fn verdict(own: &Part, others: &[Part]) -> Option<u64> {
    let mut replies = Replies::new(Sizes::of(others.len() + 1));
    for (node, (fast, slow)) in (0..).zip([own].into_iter().chain(others)) {
        if let Some((us, prefix)) = *fast {
            let result = (node == 0).then_some(());
            let reply = FastReply { view: VIEW, stamp: Stamp::last_of(us), prefix, result };
            replies.on_fast_reply(NodeId(node), reply);
        }
        if let Some(us) = *slow {
            replies.on_slow_reply(NodeId(node), VIEW, Stamp::last_of(us));
        }
    }
    match replies.verdict() {
        Verdict::Committed { stamp, .. } => Some(stamp.us()),
        Verdict::NotYet | Verdict::Void => None,
    }
}

/// The report of a replica of which this part of the leader's log is durable.
pub fn report(model: &Model, replica: &Replica, items: &[Item], durable: usize) -> Report {
    let entries = |items: &[Item]| -> Vec<_> {
        let entries = items.iter().filter_map(|item| match item {
            Item::Entry(txn, us) => Some(entry(*txn, *us)),
            Item::Closed(_) => None,
        });
        entries.collect()
    };
    let stages = || (0..model.count()).map(|txn| (txn, replica.stages[txn]));
    let mut unsynced = entries(&items[durable..replica.has]);
    unsynced.extend(model.unsynced(replica).into_iter().map(|(txn, us)| entry(txn, us)));
    let late = stages().filter_map(|(txn, stage)| Some(entry(txn, stage.late()?)));
    let readers = stages().filter(|(txn, _)| !model.writes(*txn));
    let read = readers.filter_map(|(_, stage)| stage.floor()).max().unwrap_or_default();
    let closed = closed_by(&items[..durable]);
    Report {
        node: NodeId(0),
        normal: VIEW,
        log: entries(&items[..durable]),
        unsynced,
        late: late.filter(|it| model.writes(number(it.txn))).collect(),
        promised: at_or_zero(replica.promised),
        closed: at_or_zero(closed),
        read: at_or_zero(read),
    }
}

fn at_or_zero(us: u64) -> Stamp {
    if us == 0 { Stamp::ZERO } else { Stamp::last_of(us) }
}

/// A rebuilt log, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    stamps: Stamps,
    floor: u64,
    /// Whether it has each transaction once, and conflicting ones in the order of their stamps.
    is_ordered: bool,
}

impl Outcome {
    pub fn of(model: &Model, rebuilt: &Rebuilt) -> Self {
        let entries = [&rebuilt.log[..], &rebuilt.recovered].concat();
        let (mut stamps, mut is_ordered) = ([0; TXNS_MAX], true);
        for (at, entry) in entries.iter().enumerate() {
            let own = number(entry.txn);
            let mut before = entries[..at].iter();
            is_ordered &= before.all(|other| {
                let is_before = other.stamp < entry.stamp;
                other.txn != entry.txn && (is_before || !model.do_conflict(number(other.txn), own))
            });
            stamps[own] = entry.stamp.us();
        }
        Self { stamps, floor: rebuilt.floor.us(), is_ordered }
    }
}

/// The log that a new leader rebuilds from reports, which get different nodes.
pub fn rebuilt(model: &Model, reports: &[&Report]) -> Rebuilt {
    let reports = (0..).zip(reports);
    let reports: Vec<Report> =
        reports.map(|(node, report)| Report { node: NodeId(node), ..(*report).clone() }).collect();
    let do_conflict = |a, b| model.do_conflict(number(a), number(b));
    rebuild(Sizes::of(model.case.replicas), &reports, do_conflict)
}

/// The writers that a leader has run, at their stamps.
pub fn run_by(model: &Model, leader: &Replica) -> Stamps {
    let mut run = [0; TXNS_MAX];
    for txn in (0..model.count()).filter(|txn| model.writes(*txn)) {
        run[txn] = leader.stages[txn].floor().unwrap_or_default();
    }
    run
}

/// Checks that a rebuilt log keeps the facts of a view whose leader has this log and has run these
/// writers.
pub fn check(
    model: &Model,
    (items, run): (&[Item], Stamps),
    facts: &Facts,
    outcome: &Outcome,
) -> Result<(), &'static str> {
    if !outcome.is_ordered {
        return Err("the new log has no order");
    }
    let cut = items[..facts.cut].iter().filter_map(|item| match item {
        Item::Entry(txn, us) => Some((*txn, *us)),
        Item::Closed(_) => None,
    });
    let told = facts.committed.iter().copied().enumerate().filter(|(_, us)| *us > 0);
    for (txn, us) in told.chain(cut) {
        if model.writes(txn) && outcome.stamps[txn] != us {
            return Err("a committed transaction is lost or has another stamp");
        }
        if !model.writes(txn) && outcome.floor < us {
            return Err("a write may come before a committed read");
        }
        if before(model, outcome.stamps, txn, us) != before(model, run, txn, us) {
            return Err("a committed transaction follows other ones than before");
        }
    }
    let upto = |stamps: Stamps| stamps.map(|us| if us <= facts.published { us } else { 0 });
    let in_log = [0, 1, 2].map(|txn| logged(items, txn).unwrap_or_default());
    if outcome.floor < facts.published || upto(outcome.stamps) != upto(in_log) {
        return Err("a snapshot changes after it was read");
    }
    Ok(())
}

/// The transactions on which the result of one depends: those whose writes it sees, those whose
/// writes they see, and so on.
fn before(model: &Model, stamps: Stamps, txn: usize, us: u64) -> Stamps {
    let (mut found, mut open) = ([0; TXNS_MAX], vec![(txn, us)]);
    while let Some((txn, us)) = open.pop() {
        for other in (0..model.count()).filter(|other| *other != txn) {
            let at = stamps[other];
            let is_seen = at > 0 && at < us && model.depends(txn, other);
            if is_seen && found[other] == 0 {
                found[other] = at;
                open.push((other, at));
            }
        }
    }
    found
}
