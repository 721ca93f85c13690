//! Keys: byte strings that sort like the values that they encode.
//!
//! A [`Key`] is an opaque byte string; tables are ordered by its bytes. [`encode`] converts typed
//! columns to keys, and a [`KeyRange`] is a contiguous range of keys.

pub mod encode;
mod range;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::hash::hash_bytes;
use crate::ids::TableId;

pub use range::{Direction, KeyRange};

/// The maximum length of a key that is stored inline, without an allocation.
const INLINE_LEN_MAX: usize = 22;

/// A key. Short keys are stored inline and long ones on the heap; it has 24 bytes either way.
/// Ordered by its bytes.
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_LEN_MAX] },
    Heap(Box<[u8]>),
}

impl Key {
    /// The key's bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }

    /// Whether the key is less than another, like `<`. Branch-free for short keys, so that a search
    /// does not stall on mispredicted comparisons.
    #[inline]
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (
                Repr::Inline { len: a_len, bytes: a_bytes },
                Repr::Inline { len: b_len, bytes: b_bytes },
            ) => {
                let (a_head, a_tail) = padded(*a_len, a_bytes);
                let (b_head, b_tail) = padded(*b_len, b_bytes);
                (a_head < b_head) | ((a_head == b_head) & (a_tail < b_tail))
            }
            _ => self.as_bytes() < other.as_bytes(),
        }
    }

    /// The heap memory of the key in bytes, in addition to its own 24.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Heap(bytes) => bytes.len(),
        }
    }
}

impl From<&[u8]> for Key {
    #[inline]
    fn from(source: &[u8]) -> Self {
        if source.len() > INLINE_LEN_MAX {
            return Self(Repr::Heap(source.into()));
        }
        Self(Repr::Inline { len: source.len() as u8, bytes: inline_bytes(source) })
    }
}

impl From<&Key> for Key {
    #[inline]
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

/// The bytes of a short key, padded with zeros. Copies both ends, which may overlap: copies of
/// fixed length need no function call.
#[inline]
fn inline_bytes(source: &[u8]) -> [u8; INLINE_LEN_MAX] {
    let mut bytes = [0; INLINE_LEN_MAX];
    match source.len() {
        16.. => copy_ends::<16>(source, &mut bytes),
        8.. => copy_ends::<8>(source, &mut bytes),
        4.. => copy_ends::<4>(source, &mut bytes),
        len => bytes[..len].iter_mut().zip(source).for_each(|(to, from)| *to = *from),
    }
    bytes
}

#[inline]
fn copy_ends<const N: usize>(source: &[u8], bytes: &mut [u8; INLINE_LEN_MAX]) {
    let last = source.len() - N;
    bytes[..N].copy_from_slice(&source[..N]);
    bytes[last..last + N].copy_from_slice(&source[last..]);
}

/// A key with its hash, which is computed only once.
#[derive(Clone, Debug)]
pub struct HashedKey {
    key: Key,
    hash: u64,
}

impl HashedKey {
    /// The key.
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The hash of the key's bytes. The same on every node of one build, but must not be stored.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The hash of the row with this key in a table.
    #[inline]
    pub(crate) fn row_hash(&self, table: TableId) -> u64 {
        // An odd constant without a pattern, so that table numbers change all higher bits.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        (self.hash ^ u64::from(table.0)).wrapping_mul(SPREAD)
    }
}

impl From<Key> for HashedKey {
    #[inline]
    fn from(key: Key) -> Self {
        let hash = hash_bytes(&key);
        Self { key, hash }
    }
}

impl From<&[u8]> for HashedKey {
    #[inline]
    fn from(key: &[u8]) -> Self {
        Self { key: Key::from(key), hash: hash_bytes(key) }
    }
}

impl From<HashedKey> for Key {
    #[inline]
    fn from(hashed: HashedKey) -> Self {
        hashed.key
    }
}

impl Deref for Key {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            // A comparison of fixed length needs no function call.
            (
                Repr::Inline { len: a_len, bytes: a_bytes },
                Repr::Inline { len: b_len, bytes: b_bytes },
            ) => a_len == b_len && a_bytes == b_bytes,
            _ => self.as_bytes() == other.as_bytes(),
        }
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match (&self.0, &other.0) {
            // Comparing integers needs no function call and no loop. A descent of the ordered index
            // takes about 30 comparisons.
            (
                Repr::Inline { len: a_len, bytes: a_bytes },
                Repr::Inline { len: b_len, bytes: b_bytes },
            ) => padded(*a_len, a_bytes).cmp(&padded(*b_len, b_bytes)),
            _ => self.as_bytes().cmp(other.as_bytes()),
        }
    }
}

/// A short key as integers that compare like it. It is padded with zeros, so if two keys have the
/// same padded bytes, the shorter one is a prefix of the longer one. The length is therefore
/// compared last.
#[inline]
fn padded(len: u8, bytes: &[u8; INLINE_LEN_MAX]) -> (u128, u64) {
    let (head, tail) = bytes.split_first_chunk::<16>().expect("22 bytes exceed the limit of 16");
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    last[7] = len;
    (u128::from_be_bytes(*head), u64::from_be_bytes(last))
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_compare_like_their_bytes(
            a in prop::collection::vec(prop_oneof![0..3_u8, 254..=255_u8], 0..26),
            b in prop::collection::vec(prop_oneof![0..3_u8, 254..=255_u8], 0..26),
            shared in 0..26_usize,
        ) {
            let mut b = b;
            let shared = shared.min(a.len()).min(b.len());
            b[..shared].copy_from_slice(&a[..shared]);
            prop_assert_eq!(Key::from(&a[..]).cmp(&Key::from(&b[..])), a.cmp(&b));
            prop_assert_eq!(Key::from(&a[..]).is_before(&Key::from(&b[..])), a < b);
            let extended = [&a[..], &[0]].concat();
            prop_assert!(Key::from(&a[..]) < Key::from(&extended[..]));
        }
    }

    #[test]
    fn a_key_is_24_bytes_and_equal_to_its_bytes_whether_inline_or_not() {
        assert_eq!(size_of::<Key>(), 24);
        for len in [0, 1, INLINE_LEN_MAX, INLINE_LEN_MAX + 1, 300] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert_eq!(Key::from(&bytes[..]).as_bytes(), &bytes[..]);
        }
    }
}
