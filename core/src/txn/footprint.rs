//! Footprints: the keys and ranges that a program will access, known before it runs.

use super::sets::{decode_range, decode_table, encode_range};
use super::{ReadSet, Write};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockMode {
    /// Reads. Any number of programs may hold it together.
    Shared,
    /// Writes without reading. Only one program may hold it. If tables are partitioned, the rows
    /// need not be sent to the program.
    Write,
    /// Reads and writes. Only one program may hold it.
    Exclusive,
}

impl LockMode {
    /// Whether two programs with these modes on the same row must wait for each other.
    pub fn conflicts(self, other: Self) -> bool {
        self != Self::Shared || other != Self::Shared
    }

    /// Whether this mode permits accesses of mode `other`.
    pub fn allows(self, other: Self) -> bool {
        self == Self::Exclusive || self == other
    }

    /// Whether the mode includes reading.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether the mode includes writing.
    pub fn writes(self) -> bool {
        self != Self::Shared
    }

    /// The mode that permits both.
    fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Exclusive }
    }

    fn code(self) -> u8 {
        match self {
            Self::Shared => 0,
            Self::Write => 1,
            Self::Exclusive => 2,
        }
    }

    fn of_code(code: u8) -> Result<Self, DecodeError> {
        let all = [Self::Shared, Self::Write, Self::Exclusive];
        all.into_iter().find(|mode| mode.code() == code).ok_or(DecodeError::new("mode"))
    }
}

/// One key of a footprint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PointLock {
    /// The table.
    pub table: TableId,
    /// The key.
    pub key: Key,
    /// The lock mode of the key.
    pub mode: LockMode,
}

/// One range of a footprint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeLock {
    /// The table.
    pub table: TableId,
    /// The range.
    pub range: KeyRange,
    /// The lock mode of the keys in the range.
    pub mode: LockMode,
}

/// The keys and ranges that a program will access. It may name more than the program accesses. If
/// the program accesses a row outside of it, the ordered executor runs the program again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Single keys, in ascending order, each once with its combined mode.
    pub points: Vec<PointLock>,
    /// Ranges, in ascending order.
    pub ranges: Vec<RangeLock>,
}

impl Footprint {
    /// Creates a footprint from keys and ranges in any order, possibly with repetitions.
    pub fn new(mut points: Vec<PointLock>, mut ranges: Vec<RangeLock>) -> Self {
        points.sort_unstable();
        points.dedup_by(|later, first| {
            let is_same = (later.table, &later.key) == (first.table, &first.key);
            if is_same {
                first.mode = first.mode.and(later.mode);
            }
            is_same
        });
        ranges.sort_unstable();
        ranges.dedup();
        Self { points, ranges }
    }

    /// The footprint of a run.
    pub fn of_run(reads: &ReadSet, writes: &[Write]) -> Self {
        let read = reads.points.iter().map(|read| PointLock {
            table: read.table,
            key: read.key.clone(),
            mode: LockMode::Shared,
        });
        let written = writes.iter().map(|write| PointLock {
            table: write.table,
            key: write.key.clone(),
            mode: LockMode::Write,
        });
        let ranges = reads.ranges.iter().map(|read| RangeLock {
            table: read.table,
            range: read.range.clone(),
            mode: LockMode::Shared,
        });
        Self::new(read.chain(written).collect(), ranges.collect())
    }

    /// The union of two footprints.
    pub fn union(mut self, other: Self) -> Self {
        self.points.extend(other.points);
        self.ranges.extend(other.ranges);
        Self::new(self.points, self.ranges)
    }

    /// Whether two programs with these footprints may affect each other.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let mut others = other.points.iter().peekable();
        let meets = |lock: &PointLock| {
            let place = (lock.table, &lock.key);
            while others.next_if(|it| (it.table, &it.key) < place).is_some() {}
            let same = others.peek().filter(|it| (it.table, &it.key) == place);
            same.is_some_and(|it| it.mode.conflicts(lock.mode))
        };
        let has_point = |ranges: &[RangeLock], points: &[PointLock]| {
            let is_within = |range: &RangeLock, point: &PointLock| {
                range.table == point.table && range.range.contains(&point.key)
            };
            ranges.iter().any(|range| {
                let mut points = points.iter().filter(|point| is_within(range, point));
                points.any(|point| point.mode.conflicts(range.mode))
            })
        };
        let overlap = |one: &RangeLock, other: &RangeLock| {
            let is_before =
                |a: &KeyRange, b: &KeyRange| a.end.as_ref().is_some_and(|end| *end <= b.start);
            let (a, b) = (&one.range, &other.range);
            one.table == other.table
                && one.mode.conflicts(other.mode)
                && !is_before(a, b)
                && !is_before(b, a)
                && !a.is_empty()
                && !b.is_empty()
        };
        self.points.iter().any(meets)
            || has_point(&self.ranges, &other.points)
            || has_point(&other.ranges, &self.points)
            || self.ranges.iter().any(|one| other.ranges.iter().any(|it| overlap(one, it)))
    }

    /// Whether the footprint permits access to `key` with `mode`.
    pub fn covers(&self, table: TableId, key: &[u8], mode: LockMode) -> bool {
        let at = |lock: &PointLock| (lock.table, lock.key.as_bytes()).cmp(&(table, key));
        if let Ok(found) = self.points.binary_search_by(at)
            && self.points[found].mode.allows(mode)
        {
            return true;
        }
        let holds = |lock: &RangeLock| {
            lock.table == table && lock.mode.allows(mode) && lock.range.contains(key)
        };
        self.ranges.iter().any(holds)
    }

    /// Whether the footprint permits reading all of `range`.
    pub fn covers_range(&self, table: TableId, range: &KeyRange) -> bool {
        let within = |lock: &RangeLock| {
            let ends_before = match (&range.end, &lock.range.end) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(inner), Some(outer)) => inner <= outer,
            };
            let is_read = lock.table == table && lock.mode.reads();
            is_read && lock.range.start <= range.start && ends_before
        };
        range.is_empty() || self.ranges.iter().any(within)
    }

    /// Appends the footprint to `out`. [`Footprint::decode`] is the inverse.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let tag = |table: TableId, mode: LockMode| u64::from(table.0) << 2 | u64::from(mode.code());
        out.put_varint(self.points.len() as u64);
        for lock in &self.points {
            out.put_varint(tag(lock.table, lock.mode));
            out.put_bytes(&lock.key);
        }
        out.put_varint(self.ranges.len() as u64);
        for lock in &self.ranges {
            out.put_u8(lock.mode.code());
            out.put_varint(u64::from(lock.table.0));
            encode_range(&lock.range, out);
        }
    }

    /// Decodes the bytes that [`Footprint::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let points = (0..from.count("footprint")?)
            .map(|_| {
                let tagged = from.varint("footprint")?;
                let table = u32::try_from(tagged >> 2).map_err(|_| DecodeError::new("table id"))?;
                let (key, mode) = (from.bytes("key")?, LockMode::of_code(tagged as u8 & 3)?);
                Ok(PointLock { table: TableId(table), key: Key::from(key), mode })
            })
            .collect::<Result<_, DecodeError>>()?;
        let ranges = (0..from.count("footprint")?)
            .map(|_| {
                let mode = LockMode::of_code(from.u8("footprint")?)?;
                Ok(RangeLock { mode, table: decode_table(from)?, range: decode_range(from)? })
            })
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self::new(points, ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(key: &[u8], mode: LockMode) -> PointLock {
        PointLock { table: TableId(1), key: Key::from(key), mode }
    }

    #[test]
    fn a_key_that_is_read_and_written_is_locked_once_for_writing() {
        for (one, other) in
            [(LockMode::Exclusive, LockMode::Shared), (LockMode::Write, LockMode::Shared)]
        {
            let footprint = Footprint::new(vec![point(b"a", one), point(b"a", other)], vec![]);
            assert_eq!(footprint.points, [point(b"a", LockMode::Exclusive)]);
        }
        let footprint = Footprint::new(vec![point(b"a", LockMode::Exclusive)], vec![]);
        assert!(footprint.covers(TableId(1), b"a", LockMode::Shared));
        assert!(!footprint.covers(TableId(2), b"a", LockMode::Shared));
    }

    #[test]
    fn a_shared_range_covers_reads_in_it_and_no_writes() {
        let lock = |mode| RangeLock { table: TableId(1), range: KeyRange::prefix(b"a"), mode };
        let shared = Footprint::new(vec![], vec![lock(LockMode::Shared)]);
        assert!(shared.covers(TableId(1), b"ab", LockMode::Shared));
        assert!(!shared.covers(TableId(1), b"ab", LockMode::Exclusive));
        assert!(shared.covers_range(TableId(1), &KeyRange::prefix(b"ab")));
        assert!(!shared.covers_range(TableId(1), &KeyRange::all()));
        let exclusive = Footprint::new(vec![], vec![lock(LockMode::Exclusive)]);
        assert!(exclusive.covers(TableId(1), b"ab", LockMode::Exclusive));
    }

    #[test]
    fn footprints_conflict_where_one_writes_what_the_other_accesses() {
        let points = |keys: &[(&[u8], LockMode)]| {
            Footprint::new(keys.iter().map(|(key, mode)| point(key, *mode)).collect(), vec![])
        };
        let ranges = |prefix: &[u8], mode| {
            let range = RangeLock { table: TableId(1), range: KeyRange::prefix(prefix), mode };
            Footprint::new(vec![], vec![range])
        };
        let do_conflict = |one: &Footprint, other: &Footprint| {
            let answer = one.conflicts_with(other);
            assert_eq!(other.conflicts_with(one), answer, "{one:?} {other:?}");
            answer
        };
        let (shared, write) = (LockMode::Shared, LockMode::Write);
        let reader = points(&[(b"a", shared), (b"c", shared), (b"e", shared)]);
        assert!(!do_conflict(&reader, &reader));
        assert!(!do_conflict(&reader, &points(&[(b"b", write), (b"d", write)])));
        assert!(do_conflict(&reader, &points(&[(b"b", write), (b"e", write)])));
        let all = ranges(b"", shared);
        assert!(!do_conflict(&all, &reader) && !do_conflict(&all, &ranges(b"a", shared)));
        assert!(do_conflict(&all, &points(&[(b"b", write)])));
        assert!(do_conflict(&ranges(b"a", write), &reader));
        assert!(!do_conflict(&ranges(b"b", write), &reader));
        assert!(do_conflict(&ranges(b"a", write), &ranges(b"ab", shared)));
        assert!(!do_conflict(&ranges(b"a", write), &ranges(b"b", shared)));
        let mut elsewhere = ranges(b"a", write);
        elsewhere.ranges[0].table = TableId(2);
        assert!(!do_conflict(&elsewhere, &all));
    }

    #[test]
    fn a_footprint_survives_its_encoding() {
        let range =
            RangeLock { table: TableId(9), range: KeyRange::all(), mode: LockMode::Exclusive };
        let points = vec![point(b"a", LockMode::Exclusive), point(b"b", LockMode::Shared)];
        let footprint = Footprint::new(points, vec![range]);
        let mut bytes = Vec::new();
        footprint.encode(&mut bytes);
        assert_eq!(Footprint::decode(&mut Reader::new(&bytes)), Ok(footprint));
    }
}
