//! Parallel scans of a whole table.

use super::Stop;
use crate::pool::Pool;
use crate::value::Value;

/// Longer values are shared instead of copied. In bytes.
const COPIED_LEN_MAX: usize = 1 << 10;

/// A table at one snapshot, in partitions that several threads may read in any order.
pub trait Parts: Send + Sync {
    /// The number of partitions. Each row is in one of them.
    fn count(&self) -> usize;

    /// An estimate of the table's memory in bytes.
    fn bytes(&self) -> usize;

    /// The number of rows in a partition.
    fn rows(&self, part: usize) -> usize;

    /// Appends the rows of a partition to `taken`.
    fn take(&self, part: usize, taken: &mut Taken);

    /// The pool on which the partitions are read.
    fn pool(&self) -> &dyn Pool;

    /// Checks whether the scan must end, like [`Context::look`](super::Context::look), but from any
    /// thread.
    ///
    /// # Errors
    /// [`Stop::Abort`] or [`Stop::Interrupted`], as a read would.
    fn look(&self) -> Result<(), Stop>;
}

/// Rows copied out of a table into contiguous memory, so that iterating over them causes few cache
/// misses.
#[derive(Debug, Default)]
pub struct Taken {
    bytes: Vec<u8>,
    /// For each row, the end of its key, where its value begins, and the end of its value.
    ends: Vec<(usize, End)>,
}

#[derive(Debug)]
enum End {
    At(usize),
    Shared(Value),
}

impl Taken {
    /// Adds a row.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &Value) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        if value.len() > COPIED_LEN_MAX {
            return self.ends.push((key_end, End::Shared(value.clone())));
        }
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, End::At(self.bytes.len())));
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Reserves memory for more rows.
    pub fn reserve(&mut self, rows: usize) {
        self.ends.reserve(rows);
    }

    /// The keys and values, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(key_end, end)| {
            let key = &self.bytes[start..*key_end];
            match end {
                End::At(end) => {
                    start = *end;
                    (key, &self.bytes[*key_end..*end])
                }
                End::Shared(value) => {
                    start = *key_end;
                    (key, &**value)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_as_they_were_added_however_long() {
        let rows =
            [("a", 0), ("", 3), ("long", COPIED_LEN_MAX + 1), ("b", COPIED_LEN_MAX), ("c", 1)];
        let value = |len| Value::from(vec![7; len]);
        let mut taken = Taken::default();
        for _ in 0..2 {
            taken.clear();
            assert!(taken.is_empty());
            rows.iter().for_each(|(key, len)| taken.push(key.as_bytes(), &value(*len)));
            let expected: Vec<_> = rows.iter().map(|(key, len)| (*key, value(*len))).collect();
            let found = taken
                .iter()
                .map(|(key, value)| (std::str::from_utf8(key).unwrap(), Value::from(value)));
            assert_eq!(found.collect::<Vec<_>>(), expected);
            assert_eq!(taken.len(), rows.len());
        }
    }
}
