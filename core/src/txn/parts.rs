//! Reading a whole table side by side.

use super::Stop;
use crate::pool::Pool;
use crate::value::Value;

/// Longer values are shared, not copied.
const COPIED_LEN_MAX: usize = 1 << 10;

/// A table as one snapshot has it, in parts that may be read by several threads, in any order.
pub trait Parts: Send + Sync {
    /// How many parts there are. Each row is in one of them.
    fn count(&self) -> usize;

    /// About how much memory the table takes, in bytes.
    fn bytes(&self) -> usize;

    /// How many rows a part has.
    fn rows(&self, part: usize) -> usize;

    /// Appends the rows of a part to `taken`.
    fn take(&self, part: usize, taken: &mut Taken);

    /// What reads them side by side.
    fn pool(&self) -> &dyn Pool;

    /// Whether those who read must end, as [`Context::look`](super::Context::look) says: for any
    /// thread.
    ///
    /// # Errors
    /// [`Stop::Abort`] or [`Stop::Interrupted`], as a read would.
    fn look(&self) -> Result<(), Stop>;
}

/// Rows that were taken out of a table, one behind the other in one piece of memory: whoever goes
/// through them waits for none of them.
#[derive(Debug, Default)]
pub struct Taken {
    bytes: Vec<u8>,
    /// Where the key of each row ends and its value begins, and where that ends.
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

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets the rows, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Makes room for more rows.
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
