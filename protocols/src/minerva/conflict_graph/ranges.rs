//! Conflicts between a range that one chain read and a key in it that another wrote.

use std::cmp::Reverse;

use pangea_core::ids::TableId;
use pangea_core::txn::RangeRead;

use super::{Builder, Edges, ordered};

/// A write in a table of which a range was read.
type WrittenKey<'a> = (TableId, &'a [u8], u32);

/// The ranges that were read, and the writes that they may contain.
struct Ranges<'a> {
    /// By vertex.
    reads: Vec<(u32, &'a RangeRead)>,
    /// By table and key.
    writes: Vec<WrittenKey<'a>>,
    /// For each write, the next one of another origin.
    next_other: Vec<usize>,
    /// The positions of each origin's writes, one origin after the other.
    by_origin: Vec<usize>,
    /// Where the writes of each origin begin in `by_origin`, and where the last ones end.
    begins: Vec<usize>,
}

/// The writes in a range, as positions in [`Ranges::writes`], and those of the reader's own origin,
/// as positions in [`Ranges::by_origin`].
#[derive(Clone, Copy)]
struct Window {
    all: (usize, usize),
    own: (usize, usize),
}

impl Window {
    /// The number of writes of other origins.
    fn hits(self) -> u64 {
        ((self.all.1 - self.all.0) - (self.own.1 - self.own.0)) as u64
    }
}

impl<'a> Builder<'a> {
    /// Lists the conflicts of ranges. While they are more than the limit allows, drops vertices of
    /// the lighter side, the readers or the writers.
    pub(super) fn range_edges(&mut self) -> Edges {
        let mut ranges = self.ranges();
        let allowed =
            self.limit.0.saturating_mul((ranges.reads.len() + ranges.writes.len()) as u64);
        while !ranges.reads.is_empty() {
            let windows = self.windows(&ranges);
            let hits: u64 = windows.iter().map(|window| window.hits()).sum();
            let Some(excess) = hits.checked_sub(allowed).filter(|excess| *excess > 0) else {
                return self.list_ranges(&ranges, &windows);
            };
            let lighter = self.lighter_side(&ranges, &windows);
            self.drop_excess(lighter, excess);
            ranges = self.ranges();
        }
        Vec::new()
    }

    fn ranges(&self) -> Ranges<'a> {
        let vertices = || (0..self.candidates.len() as u32).filter(|&vertex| !self.is_out(vertex));
        let runs = || vertices().flat_map(|vertex| self.runs(vertex).map(move |run| (vertex, run)));
        let reads: Vec<(u32, &'a RangeRead)> = runs()
            .flat_map(|(vertex, (reads, _))| reads.ranges.iter().map(move |read| (vertex, read)))
            .collect();
        let mut tables: Vec<TableId> = reads.iter().map(|(_, read)| read.table).collect();
        tables.sort_unstable();
        tables.dedup();
        let mut writes: Vec<WrittenKey<'a>> = Vec::new();
        if !tables.is_empty() {
            let found = runs().flat_map(|(vertex, (_, writes))| {
                writes.iter().map(move |write| (write.table, write.key.as_bytes(), vertex))
            });
            writes.extend(found.filter(|(table, _, _)| tables.binary_search(table).is_ok()));
            writes.sort_unstable();
        }
        let origin = |at: usize| self.origin(writes[at].2);
        let mut next_other = vec![writes.len(); writes.len()];
        for at in (1..writes.len()).rev() {
            let is_same = origin(at - 1) == origin(at);
            next_other[at - 1] = if is_same { next_other[at] } else { at };
        }
        let mut by_origin: Vec<usize> = (0..writes.len()).collect();
        by_origin.sort_by_key(|&at| origin(at));
        let origins = self.origins.last().map_or(0, |last| last + 1);
        let begin = |number| by_origin.partition_point(|&at| origin(at) < number);
        let begins = (0..=origins).map(begin).collect();
        Ranges { reads, writes, next_other, by_origin, begins }
    }

    /// The window of each range.
    fn windows(&self, ranges: &Ranges<'_>) -> Vec<Window> {
        let window = |(reader, read): &(u32, &RangeRead)| {
            let first = ranges.writes.partition_point(|(table, key, _)| {
                (*table, *key) < (read.table, read.range.start.as_slice())
            });
            let is_in =
                |write: &WrittenKey<'_>| write.0 == read.table && read.range.contains(write.1);
            let end = first + ranges.writes[first..].partition_point(is_in);
            let origin = self.origin(*reader) as usize;
            let (from, to) = (ranges.begins[origin], ranges.begins[origin + 1]);
            let own = &ranges.by_origin[from..to];
            let place = |bound: usize| from + own.partition_point(|&at| at < bound);
            Window { all: (first, end), own: (place(first), place(end)) }
        };
        ranges.reads.iter().map(window).collect()
    }

    /// The readers or the writers with conflicts, whichever weigh less together, with the number of
    /// conflicts of each. To run a scan again costs more than a write, so of equal ones these are
    /// the writers.
    fn lighter_side(&self, ranges: &Ranges<'_>, windows: &[Window]) -> Vec<(u32, u64)> {
        let mut of_readers = vec![0; self.candidates.len()];
        let mut of_writers = vec![0; self.candidates.len()];
        // Where the ranges begin and end: their sum up to a write is the number that contain it.
        let mut all = vec![0i64; ranges.writes.len() + 1];
        let mut own = vec![0i64; ranges.writes.len() + 1];
        for ((reader, _), window) in ranges.reads.iter().zip(windows) {
            of_readers[*reader as usize] += window.hits();
            for (ends, (first, end)) in [(&mut all, window.all), (&mut own, window.own)] {
                ends[first] += 1;
                ends[end] -= 1;
            }
        }
        let mut add = |ends: &[i64], writes: &mut dyn Iterator<Item = usize>, sign: i64| {
            let mut open = 0;
            for (write, change) in writes.zip(ends) {
                open += change;
                let hits: &mut i64 = &mut of_writers[ranges.writes[write].2 as usize];
                *hits += sign * open;
            }
        };
        add(&all, &mut (0..ranges.writes.len()), 1);
        add(&own, &mut ranges.by_origin.iter().copied(), -1);
        let of_writers: Vec<u64> = of_writers.into_iter().map(|hits| hits as u64).collect();
        let with_hits = |hits: &[u64]| -> Vec<u32> {
            (0..).zip(hits).filter(|(_, hits)| **hits > 0).map(|(vertex, _)| vertex).collect()
        };
        let (readers, writers) = (with_hits(&of_readers), with_hits(&of_writers));
        let weight = |side: &[u32]| side.iter().map(|&vertex| self.weight(vertex)).sum::<u64>();
        let lighter = if weight(&readers) < weight(&writers) { readers } else { writers };
        let hits = |vertex: u32| of_readers[vertex as usize] + of_writers[vertex as usize];
        lighter.into_iter().map(|vertex| (vertex, hits(vertex))).collect()
    }

    /// Drops vertices with the most conflicts for their weight, until `excess` conflicts are gone.
    /// Those between two of them are counted twice, so at least half of the excess is gone.
    fn drop_excess(&mut self, mut side: Vec<(u32, u64)>, excess: u64) {
        side.sort_by(|a, b| {
            let (of_a, of_b) = (u128::from(a.1), u128::from(b.1));
            let mine = of_a * u128::from(self.weight(b.0));
            let other = of_b * u128::from(self.weight(a.0));
            other.cmp(&mine).then(Reverse(a.0).cmp(&Reverse(b.0)))
        });
        let mut gone = 0;
        for (vertex, hits) in side {
            if gone >= excess {
                break;
            }
            self.is_out[vertex as usize] = true;
            gone += hits;
        }
    }

    fn list_ranges(&self, ranges: &Ranges<'_>, windows: &[Window]) -> Edges {
        let mut edges = Vec::new();
        for ((reader, _), window) in ranges.reads.iter().zip(windows) {
            let (mut at, end) = window.all;
            while at < end {
                let writer = ranges.writes[at].2;
                if self.origin(writer) == self.origin(*reader) {
                    at = ranges.next_other[at];
                } else {
                    edges.push(ordered(writer, *reader));
                    at += 1;
                }
            }
        }
        edges
    }
}
