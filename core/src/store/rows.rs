//! A hash table of rows, made for looking many up side by side.
//!
//! Rows lie in chunks, in no order. Beside them are the places: an array of 8 bytes each, in which
//! a row is found by its hash.
//!
//! ```text
//!   places:  [ -     | tag, 2 | -     | tag, 0 | tag, 1 | - ]     by hash; the next one if taken
//!                         |                |        |
//!   chunks:  [ 0 <--------|----------------+        |
//!              1 <--------|-------------------------+   ]
//!            [ 2 <--------+                             ]
//! ```
//!
//! Other tables have the row in its place, or beside bytes of its hash that are compared eight or
//! sixteen at a time. Here one load says where a row is, so that the places of a group are loaded
//! without a branch that waits for one of them, then their rows ([`super::warm`]): a processor goes
//! on past loads that miss its caches, but not past a branch that it guessed wrong. A table that
//! grows moves places alone, and asks no row for its hash. Rows stay where they are: hash spreads
//! rows evenly, so all shards of a table grow within a short time, on every replica: to move them
//! all then, into memory that the system has to clear first, would hold everybody up.

/// A table is given more places when more than three quarters of them are taken: a row is then two
/// or three places away, most often in the same cache line.
const FILL_MAX: (usize, usize) = (3, 4);

/// The fewest places that a table has, once it has any: a cache line of them.
const PLACES_MIN: usize = 8;

/// Rows of a chunk: so many that all chunks' addresses are in the processor's caches, and so few
/// that what is not used of the last one is little.
const CHUNK_ROWS: usize = if cfg!(test) { 4 } else { 512 };

/// Where a row is found by its hash: 32 bits of it, which say in which place it should be, and the
/// row's number and one. Zero is a free place.
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

    /// The row's number. Only of a place that is taken.
    fn row(self) -> usize {
        self.0 as u32 as usize - 1
    }

    /// All of it, for whoever wants to have loaded it and nothing else.
    pub(super) fn bits(self) -> u64 {
        self.0
    }
}

/// Rows by hash. Whoever asks brings the hash: its lowest 32 bits count.
#[derive(Debug)]
pub(super) struct Rows<R> {
    /// None, or a power of two.
    places: Box<[Place]>,
    /// All but the last are full, and none is empty.
    chunks: Vec<Vec<R>>,
}

impl<R> Default for Rows<R> {
    fn default() -> Self {
        Self { places: Box::default(), chunks: Vec::new() }
    }
}

impl<R> Rows<R> {
    /// What is in the place where a row of this hash should be: its own, another's or nothing.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> Place {
        let mask = self.places.len().wrapping_sub(1);
        self.places.get(hash as u32 as usize & mask).copied().unwrap_or_default()
    }

    /// A row that may have this hash, without looking at it: nearly always the one that has it, if
    /// there is one.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> Option<&R> {
        self.find(hash, |_| true)
    }

    /// The row of this hash for which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl FnMut(&R) -> bool) -> Option<&R> {
        let (_, number) = self.locate(hash, is)?;
        Some(self.row(number))
    }

    /// The row of this hash for which `is` holds.
    #[inline]
    pub(super) fn find_mut(&mut self, hash: u64, is: impl FnMut(&R) -> bool) -> Option<&mut R> {
        let (_, number) = self.locate(hash, is)?;
        Some(self.row_mut(number))
    }

    /// Adds a row, which must not be there.
    ///
    /// # Panics
    /// When there are four thousand million rows.
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

    /// Takes out the row of this hash for which `is` holds. The last row takes its number.
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

    /// All rows, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &R> {
        self.chunks.iter().flatten()
    }

    /// Every row, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.chunks.iter_mut().flatten()
    }

    /// How many rows there are.
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

    /// The first chunk grows with its rows, as most shards of a small table have few.
    fn begin_chunk(&mut self, row: R) {
        let room = if self.chunks.is_empty() { 1 } else { CHUNK_ROWS };
        let mut chunk = Vec::with_capacity(room);
        chunk.push(row);
        self.chunks.push(chunk);
    }

    /// Takes out the row with the last number.
    fn pop(&mut self) -> R {
        let chunk = self.chunks.last_mut().expect("there is a row");
        let row = chunk.pop().expect("no chunk is empty");
        if chunk.is_empty() {
            self.chunks.pop();
        }
        row
    }

    /// The place and the number of the row of this hash for which `is` holds.
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

    /// Frees a place, and moves those after it that wanted to be there or before.
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

/// Puts a row's place where its hash says, or in the next one that is free.
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

    /// Hashes that meet in their places, and some that are the same in all 32 bits.
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
