//! The lock table of one pass, as a graph of waits.
//!
//! Every job claims **places**: each key that it locks and, in tables with range locks, each
//! segment that its ranges cover. A place is just a 64-bit hash. A collision causes an unnecessary
//! wait and never changes a result. Sorted by place and then by job, the claims of one place are
//! the queue of its lock. One walk over the queue yields the edges.
//!
//! ```text
//!   table with locked ranges [b, g) and [d, k):
//!     bounds      b      d      g      k
//!     segments    |--0---|--1---|--2---|--3--..
//!     [b, g)      S      S
//!     [d, k)             S      S
//!     key e, written     intends          and on its own key: exclusive
//! ```
//!
//! The bounds of all ranges of a table cut it into segments, so a key in a segment is in each range
//! that covers the segment. Ranges claim segments. Keys *intend* in their segment, as in
//! multi-granularity locking: intents conflict with ranges, but not with each other, because keys
//! conflict on their own places. A range is therefore also locked against keys that no job names
//! yet.
//!
//! **Joints.** Many readers after many writers of a segment would need an edge for each pair. A
//! joint is a node without a job between the two groups, so the number of edges grows linearly with
//! the claims.
//!
//! All steps are data-parallel: claims are collected by chunks of jobs and sorted by partitions of
//! the places. The graph depends only on the jobs, not on the number of workers.

use std::collections::BTreeMap;

use crate::hash::row_hash;
use crate::ids::TableId;
use crate::key::KeyRange;
use crate::mutate;
use crate::pool::{Pool, each};
use crate::txn::{Certified, Footprint, LockMode};

/// The locks of a job.
pub(super) enum Locks<'a> {
    /// Not known yet.
    Unknown,
    /// The footprint given by the caller.
    Given(&'a Footprint),
    /// The footprint that the procedure declares, or that a reconnaissance run found.
    Found(Footprint),
    /// Exactly the rows and ranges that the transaction names.
    Certified(&'a Certified),
    /// No locks: jobs run one at a time, and this one stays within the footprint that its procedure
    /// declares.
    NotNeeded,
}

impl Locks<'_> {
    fn each_point(&self, mut take: impl FnMut(TableId, &[u8], LockMode)) {
        match self.source() {
            Source::Footprint(footprint) => {
                footprint.points.iter().for_each(|lock| take(lock.table, &lock.key, lock.mode));
            }
            Source::Certified(Certified { reads, writes, .. }) => {
                reads.points.iter().for_each(|read| take(read.table, &read.key, LockMode::Shared));
                writes.iter().for_each(|write| take(write.table, &write.key, LockMode::Write));
            }
        }
    }

    fn each_range<'b>(&'b self, mut take: impl FnMut(TableId, &'b KeyRange, LockMode)) {
        match self.source() {
            Source::Footprint(footprint) => {
                footprint.ranges.iter().for_each(|lock| take(lock.table, &lock.range, lock.mode));
            }
            Source::Certified(Certified { reads, .. }) => {
                reads
                    .ranges
                    .iter()
                    .for_each(|read| take(read.table, &read.range, LockMode::Shared));
            }
        }
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Unknown => unreachable!("footprints are known before a pass"),
            Self::NotNeeded => unreachable!("jobs without locks are not in a graph"),
            Self::Given(footprint) => Source::Footprint(footprint),
            Self::Found(footprint) => Source::Footprint(footprint),
            Self::Certified(certified) => Source::Certified(certified),
        }
    }
}

enum Source<'a> {
    Footprint(&'a Footprint),
    Certified(&'a Certified),
}

/// Nodes with their waits. The jobs come first, by position, and then the joints. Edges lead from
/// earlier jobs to later ones, so there is no cycle and no deadlock.
#[derive(Debug)]
pub(super) struct Graph {
    /// The number of nodes that are jobs.
    pub jobs: usize,
    /// The number of edges that lead to each node.
    pub waits: Vec<u32>,
    /// The offsets at which each node's followers begin, and the end of the last.
    starts: Vec<u32>,
    followers: Vec<u32>,
}

impl Graph {
    /// Builds the graph of these jobs' locks, in this order.
    pub fn new(pool: &dyn Pool, jobs: &[&Locks<'_>]) -> Self {
        let tables = Segments::of_tables(jobs);
        let parts = pool.workers().clamp(1, PARTS_MAX).next_power_of_two();
        let chunks = parts.min(jobs.len()).max(1);
        let chunk_len = jobs.len().div_ceil(chunks);
        let claims = each(pool, chunks, |chunk| {
            let first = (chunk * chunk_len).min(jobs.len());
            let end = (first + chunk_len).min(jobs.len());
            let mut claims: Vec<Vec<Claim>> = (0..parts).map(|_| Vec::new()).collect();
            for (at, job) in jobs.iter().enumerate().take(end).skip(first) {
                claim_all(at as u32, job, &tables, &mut |claim| {
                    claims[part_of(claim.place, parts)].push(claim);
                });
            }
            claims
        });
        let queued = each(pool, parts, |part| {
            let mut claims_of_part =
                claims.iter().map(|chunk| &chunk[part][..]).collect::<Vec<_>>().concat();
            claims_of_part.sort_unstable();
            edges_of(&claims_of_part)
        });
        Self::assemble(jobs.len(), &queued)
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.waits.len()
    }

    /// The nodes that wait for `node`. A node may occur more than once, and then waits for that
    /// many edges.
    pub fn followers(&self, node: usize) -> &[u32] {
        &self.followers[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// The number of rounds that the jobs take on `workers` workers if each job takes one round and
    /// starts as early as possible. Joints take no time.
    pub fn rounds(&self, workers: usize) -> usize {
        let mut waits = self.waits.clone();
        let ready = |waits: &[u32]| (0..waits.len()).filter(|&node| waits[node] == 0).collect();
        let mut ready: Vec<usize> = ready(&waits);
        let mut rounds = 0;
        while !ready.is_empty() {
            let mut next = Vec::new();
            let mut left = workers;
            // The list grows by the followers of joints, which belong to this round.
            let mut at = 0;
            while let Some(&node) = ready.get(at) {
                at += 1;
                if node < self.jobs && left == 0 {
                    next.push(node);
                    continue;
                }
                left -= usize::from(node < self.jobs);
                for &follower in self.followers(node) {
                    let follower = follower as usize;
                    waits[follower] -= 1;
                    match (waits[follower], node < self.jobs) {
                        (0, true) => next.push(follower),
                        (0, false) => ready.push(follower),
                        _ => {}
                    }
                }
            }
            rounds += usize::from(left < workers);
            ready = next;
        }
        rounds
    }

    fn assemble(jobs: usize, parts: &[Edges]) -> Self {
        let joints: u32 = parts.iter().map(|part| part.joints).sum();
        let nodes = jobs + joints as usize;
        let mut edges = Vec::with_capacity(parts.iter().map(|part| part.edges.len()).sum());
        let mut joints_before = jobs as u32;
        for part in parts {
            let name = |node: u32| match node & JOINT {
                0 => node,
                _ => joints_before + (node & !JOINT),
            };
            edges.extend(part.edges.iter().map(|&(from, to)| (name(from), name(to))));
            joints_before += part.joints;
        }
        let mut waits = vec![0; nodes];
        let mut starts = vec![0; nodes + 1];
        for &(from, to) in &edges {
            waits[to as usize] += 1;
            starts[from as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let mut free = starts.clone();
        let mut followers = vec![0; edges.len()];
        for (from, to) in edges {
            followers[free[from as usize] as usize] = to;
            free[from as usize] += 1;
        }
        Self { jobs, waits, starts, followers }
    }
}

/// The maximum number of partitions. More would mostly be empty.
const PARTS_MAX: usize = 64;

fn part_of(place: u64, parts: usize) -> usize {
    // Avoids the lowest bits, which are poorly distributed for hashes of short keys.
    (place >> 32) as usize & (parts - 1)
}

/// One job's claim on one place. Sorts in the order of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    place: u64,
    job: u32,
    kind: Kind,
}

/// The modes of multi-granularity locking. Intents are for keys in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    IntentShared,
    IntentExclusive,
    Shared,
    /// Reads the whole place and writes some keys in it. Compatible only with jobs that read keys
    /// in it.
    SharedIntentExclusive,
    Exclusive,
}

impl Kind {
    /// The mode of a job that has both claims on a place.
    fn and(self, other: Self) -> Self {
        match (self.min(other), self.max(other)) {
            (Self::IntentShared, stronger) => stronger,
            (same, other) if same == other => same,
            (_, Self::Exclusive) => Self::Exclusive,
            _ => Self::SharedIntentExclusive,
        }
    }
}

fn claim_all(
    job: u32,
    locks: &Locks<'_>,
    tables: &BTreeMap<TableId, Segments<'_>>,
    claim: &mut impl FnMut(Claim),
) {
    locks.each_point(|table, key, mode| {
        let (own, intent) = match mode {
            LockMode::Shared => (Kind::Shared, Kind::IntentShared),
            LockMode::Write | LockMode::Exclusive => (Kind::Exclusive, Kind::IntentExclusive),
        };
        claim(Claim { place: row_hash(table, key), job, kind: own });
        let segment = tables.get(&table).and_then(|segments| segments.of_key(key));
        let segment = mutate!(KeysIntendNothing: segment => None);
        segment.into_iter().for_each(|segment| {
            claim(Claim { place: segment_place(table, segment), job, kind: intent });
        });
    });
    locks.each_range(|table, range, mode| {
        let kind = if mode == LockMode::Shared { Kind::Shared } else { Kind::Exclusive };
        for segment in tables[&table].of_range(range) {
            claim(Claim { place: segment_place(table, segment), job, kind });
        }
    });
}

fn segment_place(table: TableId, segment: usize) -> u64 {
    const NOT_A_KEY: u64 = 0x5e97_3e57_0f4a_7ab1;
    row_hash(table, &segment.to_le_bytes()) ^ NOT_A_KEY
}

/// The segments of a table with range locks. Segment i extends from bound i to the next.
pub(super) struct Segments<'a> {
    bounds: Vec<&'a [u8]>,
}

/// Segments are enlarged while the ranges of one table claim more segments than this number, and
/// more than [`SEGMENT_CLAIMS_PER_RANGE`] for each range.
const SEGMENT_CLAIMS_MIN: usize = 1 << 14;
const SEGMENT_CLAIMS_PER_RANGE: usize = 16;

impl<'a> Segments<'a> {
    fn of_tables(jobs: &[&'a Locks<'_>]) -> BTreeMap<TableId, Self> {
        let mut ranges: BTreeMap<TableId, Vec<&'a KeyRange>> = BTreeMap::new();
        for job in jobs {
            job.each_range(|table, range, _| ranges.entry(table).or_default().push(range));
        }
        ranges.into_iter().map(|(table, ranges)| (table, Self::new(&ranges))).collect()
    }

    pub fn new(ranges: &[&'a KeyRange]) -> Self {
        let ends = ranges.iter().filter_map(|range| range.end.as_deref());
        let mut bounds: Vec<&[u8]> =
            ranges.iter().map(|range| &range.start[..]).chain(ends).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut segments = Self { bounds };
        let claims_max = SEGMENT_CLAIMS_MIN.max(ranges.len() * SEGMENT_CLAIMS_PER_RANGE);
        let claims = |segments: &Self| {
            ranges.iter().map(|range| segments.of_range(range).len()).sum::<usize>()
        };
        // If all ranges overlap, the number of claims would grow quadratically. Larger segments are
        // as safe: all conflicts are still found, along with some false ones.
        while segments.bounds.len() > 1 && claims(&segments) > claims_max {
            segments.bounds = segments.bounds.iter().copied().step_by(2).collect();
        }
        segments
    }

    /// The segment that contains a key. `None` below the first bound, where no range is.
    pub fn of_key(&self, key: &[u8]) -> Option<usize> {
        self.bounds.partition_point(|bound| *bound <= key).checked_sub(1)
    }

    /// The segments that overlap a range.
    pub fn of_range(&self, range: &KeyRange) -> std::ops::Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let first = self.of_key(&range.start).expect("the first bound is the lowest start");
        let end = match &range.end {
            Some(end) => self.bounds.partition_point(|bound| *bound < &end[..]),
            None => self.bounds.len(),
        };
        first..end
    }
}

/// Marks a node that is a joint, numbered within its partition.
const JOINT: u32 = 1 << 31;

/// The edges that one partition of the places yields.
#[derive(Debug, Default)]
struct Edges {
    edges: Vec<(u32, u32)>,
    joints: u32,
}

impl Edges {
    fn wait(&mut self, before: Option<u32>, job: u32) {
        self.edges.extend(before.map(|before| (before, job)));
    }
}

fn edges_of(claims: &[Claim]) -> Edges {
    let mut edges = Edges::default();
    let mut queue = Queue::default();
    for of_place in claims.chunk_by(|a, b| a.place == b.place) {
        if of_place.len() == 1 {
            continue;
        }
        queue.clear();
        for of_job in of_place.chunk_by(|a, b| a.job == b.job) {
            let kind = of_job.iter().map(|claim| claim.kind).reduce(Kind::and);
            queue.push(of_job[0].job, kind.expect("chunks are not empty"), &mut edges);
        }
    }
    edges
}

/// The queue of one lock, as far as later jobs depend on it.
#[derive(Default)]
struct Queue {
    /// The last job with an exclusive claim.
    exclusive: Option<u32>,
    /// Later jobs that share the place.
    shared: Group,
    /// Later jobs that write keys in it.
    writers: Group,
    /// Later jobs that read keys in it. They conflict only with the next exclusive job.
    readers: Vec<u32>,
}

/// Jobs that conflict with all jobs of another group but not with each other.
#[derive(Default)]
struct Group {
    open: Vec<u32>,
    /// The node that represents all members up to the last conflicting job.
    closed: Option<u32>,
}

impl Group {
    /// Closes the group so far and returns the node that represents it.
    fn close(&mut self, edges: &mut Edges) -> Option<u32> {
        match self.open[..] {
            [] => {}
            [only] => self.closed = Some(only),
            _ => {
                assert!(edges.joints < JOINT, "too many joints");
                let joint = JOINT | edges.joints;
                edges.joints += 1;
                edges.edges.extend(self.open.iter().map(|&job| (job, joint)));
                self.closed = Some(joint);
            }
        }
        self.open.clear();
        self.closed
    }

    fn clear(&mut self) {
        self.open.clear();
        self.closed = None;
    }
}

impl Queue {
    fn push(&mut self, job: u32, kind: Kind, edges: &mut Edges) {
        match kind {
            Kind::IntentShared => {
                edges.wait(self.exclusive, job);
                self.readers.push(job);
            }
            Kind::IntentExclusive => {
                let before = self.shared.close(edges).or(self.exclusive);
                edges.wait(before, job);
                self.writers.open.push(job);
            }
            Kind::Shared => {
                let before = self.writers.close(edges).or(self.exclusive);
                edges.wait(mutate!(ReadersDoNotWait: before => None), job);
                self.shared.open.push(job);
            }
            Kind::SharedIntentExclusive => {
                let groups = [self.shared.close(edges), self.writers.close(edges)];
                groups.into_iter().for_each(|before| edges.wait(before, job));
                edges.wait(self.exclusive, job);
                self.shared.open.push(job);
                self.writers.open.push(job);
            }
            Kind::Exclusive => {
                let groups = [&self.shared, &self.writers];
                let members =
                    groups.iter().flat_map(|group| group.open.iter().chain(&group.closed));
                let all = members.chain(&self.readers).chain(&self.exclusive);
                let wait = |&before: &_| edges.wait(Some(before), job);
                mutate!(WritersDoNotWait: all.for_each(wait) => ());
                self.clear();
                self.exclusive = Some(job);
            }
        }
    }

    fn clear(&mut self) {
        self.exclusive = None;
        self.shared.clear();
        self.writers.clear();
        self.readers.clear();
    }
}
