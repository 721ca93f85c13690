//! A hash table of rows, designed for many lookups in parallel.
//!
//! Rows are stored in chunks, in no order. A separate array of places, 8 bytes each, finds a row by
//! its hash.
//!
//! ```text
//!   places:  [ -     | tag, 2 | -     | tag, 0 | tag, 1 | - ]     by hash; the next one if taken
//!                         |                |        |
//!   chunks:  [ 0 <--------|----------------+        |
//!              1 <--------|-------------------------+   ]
//!            [ 2 <--------+                             ]
//! ```
//!
//! Other hash tables store the row in its place, or next to hash bytes that are compared eight or
//! sixteen at a time. Here a single load locates a row. The places of a group are therefore loaded
//! without a branch that depends on one of them, and then their rows ([`super::cache_prefetch`]).
//! This matters because a processor continues past loads that miss its caches, but not past a
//! mispredicted branch.
//!
//! A table that grows moves only places, and need not rehash its rows. Rows never move. Hashing
//! distributes rows evenly, so all shards of a table grow at about the same time, on every replica.
//! Moving all rows then, into memory that the system must clear first, would stall all of them.

/// The maximum load factor. At three quarters, a row is two or three places away, usually in the
/// same cache line.
const FILL_MAX: (usize, usize) = (3, 4);

/// The minimum number of places of a table that has any: one cache line.
const PLACES_MIN: usize = 8;

/// The number of rows in a chunk. Large enough that the addresses of all chunks stay in the
/// processor's caches, and small enough that little of the last chunk is unused.
const CHUNK_ROWS: usize = if cfg!(test) { 4 } else { 512 };

/// An entry that locates a row by its hash. It contains 32 bits of the hash, which determine its
/// ideal position, and the row's number plus one. Zero is a free place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    const FREE: Self = Self(0);

    fn new(tag: u32, row: usize) -> Self {
        Self(u64::from(tag) << 32 | (row as u64 + 1))
    }

    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_free(self) -> bool {
        self == Self::FREE
    }

    /// The row's number. The place must not be free.
    fn row(self) -> usize {
        self.0 as u32 as usize - 1
    }

    /// The raw bits, for callers that only need to load the place.
    pub(super) fn bits(self) -> u64 {
        self.0
    }
}

/// Rows by hash. Callers pass the hash, of which the lowest 32 bits are used.
#[derive(Debug)]
pub(super) struct Rows<R> {
    /// The length is zero or a power of two.
    places: Box<[Place]>,
    /// All chunks except the last are full, and none is empty.
    chunks: Vec<Vec<R>>,
}

impl<R> Default for Rows<R> {
    fn default() -> Self {
        Self { places: Box::default(), chunks: Vec::new() }
    }
}

impl<R> Rows<R> {
    /// The place at the ideal position of this hash. It may be free or belong to another row.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> Place {
        let mask = self.places.len().wrapping_sub(1);
        self.places.get(hash as u32 as usize & mask).copied().unwrap_or_default()
    }

    /// A row that may have this hash, found without reading the row. Almost always the row with
    /// this hash, if there is one.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> Option<&R> {
        self.find(hash, |_| true)
    }

    /// The row with this hash for which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl FnMut(&R) -> bool) -> Option<&R> {
        let (_, number) = self.locate(hash, is)?;
        Some(self.row(number))
    }

    /// The row with this hash for which `is` holds.
    #[inline]
    pub(super) fn find_mut(&mut self, hash: u64, is: impl FnMut(&R) -> bool) -> Option<&mut R> {
        let (_, number) = self.locate(hash, is)?;
        Some(self.row_mut(number))
    }

    /// Adds a row, which must not exist yet.
    ///
    /// # Panics
    /// If there are 2^32 - 1 rows.
    pub(super) fn insert_unique(&mut self, hash: u64, row: R) {
        let number = self.len();
        assert!(number < u32::MAX as usize, "a shard of {number} rows");
        if (number + 1) * FILL_MAX.1 > self.places.len() * FILL_MAX.0 {
            self.grow();
        }
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK_ROWS) {
            Some(chunk) => chunk.push(row),
            None => self.begin_chunk(row),
        }
        put(&mut self.places, Place::new(hash as u32, number));
    }

    /// Removes the row with this hash for which `is` holds. The last row gets its number.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        is: impl FnMut(&R) -> bool,
        hash_of: impl Fn(&R) -> u64,
    ) -> Option<R> {
        let (place, number) = self.locate(hash, is)?;
        self.free(place);
        let last = self.pop();
        if number == self.len() {
            return Some(last);
        }
        let (tag, before) = (hash_of(&last) as u32, self.len());
        let mask = self.places.len() - 1;
        let mut at = tag as usize & mask;
        while self.places[at] != Place::new(tag, before) {
            assert!(!self.places[at].is_free(), "a row without a place");
            at = (at + 1) & mask;
        }
        self.places[at] = Place::new(tag, number);
        Some(std::mem::replace(self.row_mut(number), last))
    }

    /// The rows whose hashes have one of these numbers in bits 24 to 31, in no order.
    pub(super) fn of_tags(&self, tags: std::ops::RangeInclusive<u8>) -> impl Iterator<Item = &R> {
        let is_in =
            move |place: &&Place| !place.is_free() && tags.contains(&((place.tag() >> 24) as u8));
        self.places.iter().filter(is_in).map(|place| self.row(place.row()))
    }

    /// Iterates over all rows, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &R> {
        self.chunks.iter().flatten()
    }

    /// Iterates over all rows mutably.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.chunks.iter_mut().flatten()
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        let before = self.chunks.len().saturating_sub(1) * CHUNK_ROWS;
        before + self.chunks.last().map_or(0, Vec::len)
    }

    /// The row with this number.
    #[inline]
    pub(super) fn row(&self, number: usize) -> &R {
        &self.chunks[number / CHUNK_ROWS][number % CHUNK_ROWS]
    }

    #[inline]
    fn row_mut(&mut self, number: usize) -> &mut R {
        &mut self.chunks[number / CHUNK_ROWS][number % CHUNK_ROWS]
    }

    /// The first chunk grows with its rows, because most shards of a small table have few.
    fn begin_chunk(&mut self, row: R) {
        let room = if self.chunks.is_empty() { 1 } else { CHUNK_ROWS };
        let mut chunk = Vec::with_capacity(room);
        chunk.push(row);
        self.chunks.push(chunk);
    }

    /// Removes the row with the last number.
    fn pop(&mut self) -> R {
        let chunk = self.chunks.last_mut().expect("there is a row");
        let row = chunk.pop().expect("chunks are not empty");
        if chunk.is_empty() {
            self.chunks.pop();
        }
        row
    }

    /// The position of the place and the number of the row with this hash for which `is` holds.
    #[inline]
    fn locate(&self, hash: u64, mut is: impl FnMut(&R) -> bool) -> Option<(usize, usize)> {
        let tag = hash as u32;
        let mask = self.places.len().wrapping_sub(1);
        let mut at = tag as usize & mask;
        loop {
            let place = *self.places.get(at)?;
            if place.is_free() {
                return None;
            }
            if place.tag() == tag && is(self.row(place.row())) {
                return Some((at, place.row()));
            }
            at = (at + 1) & mask;
        }
    }

    /// Frees a place, and moves later entries back whose ideal position is at or before it.
    fn free(&mut self, mut at: usize) {
        let mask = self.places.len() - 1;
        let mut next = at;
        loop {
            next = (next + 1) & mask;
            let place = self.places[next];
            if place.is_free() {
                self.places[at] = Place::FREE;
                return;
            }
            let wanted = place.tag() as usize & mask;
            let has_come = next.wrapping_sub(wanted) & mask;
            let would_come = next.wrapping_sub(at) & mask;
            if has_come >= would_come {
                self.places[at] = place;
                at = next;
            }
        }
    }

    fn grow(&mut self) {
        let count = (self.places.len() * 2).max(PLACES_MIN);
        let mut places = vec![Place::FREE; count].into_boxed_slice();
        for &place in self.places.iter().filter(|place| !place.is_free()) {
            put(&mut places, place);
        }
        self.places = places;
    }
}

/// Stores a place at the position given by its hash, or the next free one.
fn put(places: &mut [Place], place: Place) {
    let mask = places.len() - 1;
    let mut at = place.tag() as usize & mask;
    while !places[at].is_free() {
        at = (at + 1) & mask;
    }
    places[at] = place;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fastrand::Rng;

    use super::*;

    /// Hashes that collide in their places, and some whose 32 bits are equal.
    fn hash_of(key: &u64) -> u64 {
        match key % 4 {
            0 => key % 3 * 8,
            1 => u64::MAX - key % 5,
            _ => key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20,
        }
    }

    #[test]
    fn it_has_what_a_map_has() {
        for seed in 0..50 {
            let mut rng = Rng::with_seed(seed);
            let keys_max = rng.u64(1..200);
            let (mut rows, mut model) = (Rows::default(), BTreeMap::new());
            for step in 0..1_000_u64 {
                let key = rng.u64(0..keys_max);
                let hash = hash_of(&key);
                let is = |row: &(u64, u64)| row.0 == key;
                assert_eq!(rows.find(hash, is).map(|row| row.1), model.get(&key).copied());
                if rng.bool() {
                    match rows.find_mut(hash, is) {
                        Some(row) => row.1 = step,
                        None => rows.insert_unique(hash, (key, step)),
                    }
                    model.insert(key, step);
                } else {
                    let removed = rows.remove(hash, is, |row| hash_of(&row.0));
                    assert_eq!(removed.map(|row| row.1), model.remove(&key));
                }
                assert_eq!(rows.len(), model.len());
            }
            let all: BTreeMap<u64, u64> = rows.iter().copied().collect();
            assert_eq!(all, model);
            for key in model.keys() {
                assert!(rows.candidate(hash_of(key)).is_some());
            }
        }
    }

    #[test]
    fn a_table_without_rows_has_no_memory_and_finds_nothing() {
        let rows = Rows::<u64>::default();
        assert_eq!((rows.places.len(), rows.chunks.capacity()), (0, 0));
        assert_eq!((rows.place(7).bits(), rows.candidate(7)), (0, None));
    }
}
