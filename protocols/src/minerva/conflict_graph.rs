//! Phase 4b: the conflict graph (§3.6, Algorithm 5).
//!
//! Vertices are the chains that are not stale, weighted by their number of transactions. Two chains
//! of different origins have an edge if one writes a key that the other reads or writes.
//!
//! The paper's read and write trackers are one list of accesses here, sorted by the hash of the
//! accessed key, so that it can be built and searched in parallel. Two keys with the same 64-bit
//! hash cause a superfluous edge, identically on every replica. Range reads are compared with the
//! sorted keys of the writes.
//!
//! # Crowded keys
//!
//! The conflicts of n blind writers of one key are n squared, whatever the solver does with them. A
//! pause of the coordinator can put thousands of such writers into one epoch. Therefore a key may
//! have [`Limit`] conflicts for each access to it. The conflicts are counted before they are
//! listed. A key with more is *crowded*, and is settled at once: either its readers or the chains
//! of one origin remain vertices, whichever are heaviest together. The others are in no set, and
//! are re-executed like all that are not in the independent set. For one hot key this is the
//! heaviest independent set. For several it may be lighter, but what remains has no more edges than
//! the limit allows. The ranges of an epoch are settled together, in the same way.
//!
//! The order in which crowded keys are settled is the same on every replica: it follows from the
//! accesses alone, and not from the number of workers.

mod ranges;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::Mutex;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::mutate;
use pangea_core::pool::{self, Pool};
use pangea_core::txn::{ReadSet, Write};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::chains::{Chain, Entry};

/// A key may have 16 conflicts for each access by default. Then 32 accesses to a key are never too
/// many, and 16,000 transactions of one access each have at most 256,000 edges.
pub(super) const CONFLICTS_MAX: u64 = 16;

/// The conflicting pairs of vertices, the smaller first.
type Edges = Vec<(u32, u32)>;

/// The chains of which a set without conflicts is chosen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConflictGraph {
    /// The vertices, as positions in the list of chains. A chain that was given and is not here
    /// is in no set.
    pub vertices: Vec<usize>,
    /// The conflicting pairs, as positions in `vertices`. Each pair occurs once, with the smaller
    /// position first, in ascending order.
    pub edges: Edges,
}

/// The number of conflicts that a key may have for each access to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit(pub u64);

impl Limit {
    fn allows(self, conflicts: u64, accesses: usize) -> bool {
        conflicts <= self.0.saturating_mul(accesses as u64)
    }
}

/// The access of one chain to one key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    /// The hash of the table and the key.
    hash: u64,
    /// The vertex.
    vertex: u32,
    /// Sorts reads of a chain before its writes, so that the last one counts.
    is_write: bool,
}

/// The graph of `candidates`, which are positions in `chains`. Those of one origin are adjacent.
pub(super) fn build(
    pool: &dyn Pool,
    entries: &[Entry<'_>],
    chains: &[Chain],
    candidates: &[usize],
    limit: Limit,
) -> ConflictGraph {
    let mut builder = Builder::new(entries, chains, candidates, limit);
    if builder.origins.last().is_none_or(|&last| last == 0) {
        return ConflictGraph { vertices: candidates.to_vec(), edges: Vec::new() };
    }
    let mut edges = builder.key_edges(pool);
    mutate!(RangeEdgesLost: edges.append(&mut builder.range_edges()) => ());
    builder.finish(edges)
}

/// A graph in the making.
struct Builder<'a> {
    entries: &'a [Entry<'a>],
    chains: &'a [Chain],
    candidates: &'a [usize],
    limit: Limit,
    /// The origin of each candidate, numbered in the order of the candidates.
    origins: Vec<u32>,
    /// Whether a candidate is in no set, because it lost a crowded key.
    is_out: Vec<bool>,
}

impl<'a> Builder<'a> {
    fn new(
        entries: &'a [Entry<'a>],
        chains: &'a [Chain],
        candidates: &'a [usize],
        limit: Limit,
    ) -> Self {
        let mut origins: Vec<u32> = Vec::with_capacity(candidates.len());
        let origin = |&chain: &usize| chains[chain].origin;
        for (number, same) in candidates.chunk_by(|a, b| origin(a) == origin(b)).enumerate() {
            origins.extend(same.iter().map(|_| number as u32));
        }
        let is_out = vec![false; candidates.len()];
        Self { entries, chains, candidates, limit, origins, is_out }
    }

    fn origin(&self, vertex: u32) -> u32 {
        self.origins[vertex as usize]
    }

    fn is_out(&self, vertex: u32) -> bool {
        self.is_out[vertex as usize]
    }

    fn weight(&self, vertex: u32) -> u64 {
        self.chains[self.candidates[vertex as usize]].members.len() as u64
    }

    /// The runs of a vertex.
    fn runs(&self, vertex: u32) -> impl Iterator<Item = (&'a ReadSet, &'a [Write])> {
        let entries = self.entries;
        let members = &self.chains[self.candidates[vertex as usize]].members;
        members.iter().map(|&i| entries[i].record.learned().expect("chains hold optimistic runs"))
    }

    /// Write-write and read-write conflicts on single keys. Settles the crowded ones.
    fn key_edges(&mut self, pool: &dyn Pool) -> Edges {
        let shards = pool.workers();
        let by_chain =
            pool::map(pool, self.candidates, |vertex, _| self.accesses(vertex as u32, shards));
        // One job for each shard: `run` and not `map`, which would not split so few elements.
        let found: Vec<Mutex<(Edges, Vec<Vec<Access>>)>> =
            (0..shards).map(|_| Mutex::default()).collect();
        pool.run(shards, &|shard| {
            let mut accesses: Vec<Access> =
                by_chain.iter().flat_map(|chain| &chain[shard]).copied().collect();
            let edges = self.edges_of_shard(&mut accesses);
            *found[shard].lock().expect("no job panicked while it held the lock of its part") =
                edges;
        });
        let (mut edges, mut crowded) = (Vec::new(), Vec::new());
        for part in found {
            let (of_shard, mut crowded_there) = part.into_inner().expect("each job returned");
            edges.extend(of_shard);
            crowded.append(&mut crowded_there);
        }
        self.settle(crowded, &mut edges);
        edges
    }

    /// The accesses of a chain, split by hash.
    fn accesses(&self, vertex: u32, shards: usize) -> Vec<Vec<Access>> {
        let mut by_shard = vec![Vec::new(); shards];
        let mut add = |table: TableId, key: &Key, is_write| {
            let hash = xxh3_64_with_seed(key, u64::from(table.0));
            by_shard[(hash % shards as u64) as usize].push(Access { hash, vertex, is_write });
        };
        for (reads, writes) in self.runs(vertex) {
            reads.points.iter().for_each(|read| add(read.table, &read.key, false));
            writes.iter().for_each(|write| add(write.table, &write.key, true));
        }
        by_shard
    }

    /// The conflicts of keys that are not crowded, and the accesses to each crowded one.
    fn edges_of_shard(&self, accesses: &mut Vec<Access>) -> (Edges, Vec<Vec<Access>>) {
        accesses.sort_unstable();
        // Of a chain's accesses to a key, keep the strongest, which is the last.
        mutate!(ReadHidesWrite: accesses.reverse() => ());
        accesses.dedup_by(|a, b| (a.hash, a.vertex) == (b.hash, b.vertex));
        let (mut edges, mut crowded) = (Vec::new(), Vec::new());
        for key in accesses.chunk_by(|a, b| a.hash == b.hash) {
            if key.len() < 2 {
                continue;
            }
            if self.limit.allows(self.conflicts(key), key.len()) {
                self.list(key, &mut edges);
            } else {
                crowded.push(key.to_vec());
            }
        }
        edges.sort_unstable();
        edges.dedup();
        (edges, crowded)
    }

    /// The accesses to a key, by origin.
    fn by_origin<'k>(&self, key: &'k [Access]) -> impl Iterator<Item = &'k [Access]> {
        key.chunk_by(|a, b| self.origin(a.vertex) == self.origin(b.vertex))
    }

    /// The number of conflicts at a key.
    fn conflicts(&self, key: &[Access]) -> u64 {
        let writers = |of: &[Access]| of.iter().filter(|access| access.is_write).count() as u64;
        let (all, all_writers) = (key.len() as u64, writers(key));
        let mut twice = 0;
        for same in self.by_origin(key) {
            let (own, own_writers) = (same.len() as u64, writers(same));
            let readers_elsewhere = (all - all_writers) - (own - own_writers);
            // A pair of writers is found from both sides.
            twice += own_writers * (2 * readers_elsewhere + all_writers - own_writers);
        }
        twice / 2
    }

    /// Lists the conflicts at a key.
    fn list(&self, key: &[Access], edges: &mut Edges) {
        let mut before = 0;
        for same in self.by_origin(key) {
            let after = before + same.len();
            for writer in same.iter().filter(|access| access.is_write) {
                let others = key[..before].iter().chain(&key[after..]);
                let others = others.filter(|it| mutate!(WriteEdgesOnly: true => it.is_write));
                // Of two writers, the smaller one lists the pair.
                let others = others.filter(|it| !it.is_write || writer.vertex < it.vertex);
                edges.extend(others.map(|other| ordered(writer.vertex, other.vertex)));
            }
            before = after;
        }
    }

    /// Settles the crowded keys, the one with the most conflicts first. A key that is no longer
    /// crowded by then is treated like any other.
    fn settle(&mut self, mut crowded: Vec<Vec<Access>>, edges: &mut Edges) {
        crowded.sort_by_cached_key(|key| (Reverse(self.conflicts(key)), key[0].hash));
        for mut key in crowded {
            key.retain(|access| !self.is_out(access.vertex));
            if self.limit.allows(self.conflicts(&key), key.len()) {
                self.list(&key, edges);
            } else {
                self.keep_heaviest_side(&key);
            }
        }
    }

    /// Of the accessors of a key, keeps the readers or those of one origin, which don't conflict.
    /// Of equally heavy ones, keeps those with the lowest vertex.
    fn keep_heaviest_side(&mut self, key: &[Access]) {
        let heaviness = |side: &mut dyn Iterator<Item = &Access>| {
            side.fold((0, Reverse(u32::MAX)), |(weight, lowest), access| {
                (weight + self.weight(access.vertex), lowest.max(Reverse(access.vertex)))
            })
        };
        let readers = heaviness(&mut key.iter().filter(|access| !access.is_write));
        let of_origins = self
            .by_origin(key)
            .map(|same| (heaviness(&mut same.iter()), Some(self.origin(same[0].vertex))));
        let (_, kept) = of_origins.chain([(readers, None)]).max().expect("there are readers");
        let is_kept = |access: &&Access| match kept {
            Some(origin) => self.origin(access.vertex) == origin,
            None => !access.is_write,
        };
        let out: Vec<u32> = key.iter().filter(|it| !is_kept(it)).map(|it| it.vertex).collect();
        out.into_iter().for_each(|vertex| self.is_out[vertex as usize] = true);
    }

    /// The graph of the vertices that are left.
    fn finish(self, edges: Edges) -> ConflictGraph {
        let mut vertices = Vec::with_capacity(self.candidates.len());
        let mut names = Vec::with_capacity(self.candidates.len());
        for (&chain, is_out) in self.candidates.iter().zip(&self.is_out) {
            names.push((!is_out).then_some(vertices.len() as u32));
            vertices.extend((!is_out).then_some(chain));
        }
        let rename = |(a, b): (u32, u32)| Some((names[a as usize]?, names[b as usize]?));
        let mut edges: Edges = edges.into_iter().filter_map(rename).collect();
        edges.sort_unstable();
        edges.dedup();
        ConflictGraph { vertices, edges }
    }
}

fn ordered(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}
