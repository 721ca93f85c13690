//! What a record holds: bytes, shared without copying.
//!
//! Short values are held in place: counters, flags, index entries without a value. A table's row
//! then costs no allocation and no second cache miss. Long ones are behind a thin pointer with one
//! count; nobody needs weak references to them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use triomphe::ThinArc;

/// Values up to this long are held in place.
const INLINE_LEN_MAX: usize = 14;

/// The bytes of one record, 16 bytes itself. Cloning shares long ones and copies short ones.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_LEN_MAX] },
    Shared(ThinArc<(), u8>),
}

impl Value {
    /// Copies `bytes` into a value of their own, so that a record never keeps a larger buffer
    /// alive.
    pub fn copy_from(source: &[u8]) -> Self {
        if source.len() > INLINE_LEN_MAX {
            return Self(Repr::Shared(ThinArc::from_header_and_slice((), source)));
        }
        let mut bytes = [0; INLINE_LEN_MAX];
        bytes[..source.len()].copy_from_slice(source);
        Self(Repr::Inline { len: source.len() as u8, bytes })
    }

    /// The memory that the value takes beside its own 16 bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        const COUNT_AND_LENGTH: usize = 2 * size_of::<usize>();
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Shared(shared) => COUNT_AND_LENGTH + shared.slice.len(),
        }
    }
}

impl Deref for Value {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared(shared) => &shared.slice,
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::copy_from(&bytes)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_from(bytes)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_16_bytes_and_equal_to_its_bytes_whether_in_place_or_not() {
        assert_eq!((size_of::<Value>(), size_of::<Option<Value>>()), (16, 16));
        for len in [0, 1, INLINE_LEN_MAX, INLINE_LEN_MAX + 1, 5_000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let value = Value::copy_from(&bytes);
            assert_eq!((&*value, value.clone()), (&bytes[..], Value::from(bytes.clone())));
            assert_eq!(value.heap_bytes() == 0, len <= INLINE_LEN_MAX);
            assert!(value < Value::copy_from(&[&bytes[..], &[0]].concat()));
        }
    }
}
