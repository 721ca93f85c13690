//! Phase 4b: the conflict graph (§3.6, Algorithm 5).
//!
//! Vertices are the chains that are not stale, weighted by their number of transactions. Two chains
//! of different origins have an edge if one writes a key that the other reads or writes.
//!
//! The paper's read and write trackers are one list of accesses here, sorted by the hash of the
//! accessed key, so that it can be built and searched in parallel. Two keys with the same 64-bit
//! hash cause a superfluous edge, identically on every replica. Range reads are compared with the
//! sorted keys of the writes.

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::mutate;
use pangea_core::pool::{self, Pool};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::chains::{Chain, Entry};

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

/// The conflicting pairs of `vertices`, which are positions in `chains`. Each pair occurs once,
/// with the smaller position among `vertices` first, in ascending order.
pub(super) fn edges(
    pool: &dyn Pool,
    entries: &[Entry<'_>],
    chains: &[Chain],
    vertices: &[usize],
) -> Vec<(u32, u32)> {
    let origin = |vertex: u32| chains[vertices[vertex as usize]].origin;
    if vertices.windows(2).all(|pair| chains[pair[0]].origin == chains[pair[1]].origin) {
        return Vec::new();
    }
    let shards = pool.workers();
    let by_chain = pool::map(pool, vertices, |vertex, &chain| {
        accesses(entries, &chains[chain], vertex as u32, shards)
    });
    let shard_ids: Vec<usize> = (0..shards).collect();
    // One job for each shard: `run` and not `map`, which would not split so few elements.
    let found: Vec<std::sync::Mutex<Vec<(u32, u32)>>> =
        shard_ids.iter().map(|_| std::sync::Mutex::default()).collect();
    pool.run(shards, &|shard| {
        let mut accesses: Vec<Access> =
            by_chain.iter().flat_map(|chain| &chain[shard]).copied().collect();
        let edges = key_edges(&mut accesses, origin);
        *found[shard].lock().expect("no job panicked while it held the lock of its part") = edges;
    });
    let take =
        |part: std::sync::Mutex<Vec<(u32, u32)>>| part.into_inner().expect("each job returned");
    let mut edges: Vec<(u32, u32)> = found.into_iter().flat_map(take).collect();
    mutate!(RangeEdgesLost: edges.extend(range_edges(entries, chains, vertices)) => ());
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// The accesses of a chain, split by hash.
fn accesses(entries: &[Entry<'_>], chain: &Chain, vertex: u32, shards: usize) -> Vec<Vec<Access>> {
    let mut by_shard = vec![Vec::new(); shards];
    let mut add = |table: TableId, key: &Key, is_write| {
        let hash = xxh3_64_with_seed(key, u64::from(table.0));
        by_shard[(hash % shards as u64) as usize].push(Access { hash, vertex, is_write });
    };
    for &i in &chain.members {
        let (reads, writes) = entries[i].record.learned().expect("chains hold optimistic runs");
        reads.points.iter().for_each(|read| add(read.table, &read.key, false));
        writes.iter().for_each(|write| add(write.table, &write.key, true));
    }
    by_shard
}

/// Write-write and read-write conflicts on single keys.
fn key_edges(
    accesses: &mut Vec<Access>,
    origin: impl Fn(u32) -> super::chains::Origin,
) -> Vec<(u32, u32)> {
    accesses.sort_unstable();
    // Of a chain's accesses to a key, keep the strongest, which is the last.
    mutate!(ReadHidesWrite: accesses.reverse() => ());
    accesses.dedup_by(|a, b| (a.hash, a.vertex) == (b.hash, b.vertex));
    let mut edges = Vec::new();
    for group in accesses.chunk_by(|a, b| a.hash == b.hash) {
        if group.len() < 2 {
            continue;
        }
        for writer in group.iter().filter(|access| access.is_write) {
            let others = group.iter().filter(|other| origin(other.vertex) != origin(writer.vertex));
            let others = others.filter(|it| mutate!(WriteEdgesOnly: true => it.is_write));
            edges.extend(others.map(|other| ordered(writer.vertex, other.vertex)));
        }
    }
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// Conflicts between a range that one chain read and a key in it that another wrote.
fn range_edges(entries: &[Entry<'_>], chains: &[Chain], vertices: &[usize]) -> Vec<(u32, u32)> {
    let learned = |i: &usize| entries[*i].record.learned().expect("chains hold optimistic runs");
    let ranges: Vec<_> = vertices
        .iter()
        .enumerate()
        .flat_map(|(vertex, &chain)| chains[chain].members.iter().map(move |i| (vertex, i)))
        .flat_map(|(vertex, i)| learned(i).0.ranges.iter().map(move |range| (vertex, range)))
        .collect();
    if ranges.is_empty() {
        return Vec::new();
    }
    let mut tables: Vec<TableId> = ranges.iter().map(|(_, range)| range.table).collect();
    tables.sort_unstable();
    tables.dedup();
    let mut writes: Vec<(TableId, &[u8], usize)> = vertices
        .iter()
        .enumerate()
        .flat_map(|(vertex, &chain)| chains[chain].members.iter().map(move |i| (vertex, i)))
        .flat_map(|(vertex, i)| learned(i).1.iter().map(move |write| (vertex, write)))
        .filter(|(_, write)| tables.binary_search(&write.table).is_ok())
        .map(|(vertex, write)| (write.table, write.key.as_bytes(), vertex))
        .collect();
    writes.sort_unstable();
    let mut edges = Vec::new();
    for (reader, read) in ranges {
        let first = writes.partition_point(|(table, key, _)| {
            (*table, *key) < (read.table, read.range.start.as_slice())
        });
        let in_range = writes[first..]
            .iter()
            .take_while(|(table, key, _)| *table == read.table && read.range.contains(key));
        let others = in_range.filter(|(_, _, writer)| {
            chains[vertices[*writer]].origin != chains[vertices[reader]].origin
        });
        edges.extend(others.map(|(_, _, writer)| ordered(*writer as u32, reader as u32)));
    }
    edges
}

fn ordered(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}
