//! The value of a record: immutable bytes that are shared without copying.
//!
//! Short values are stored inline: counters, flags, index entries without a value. Their rows need
//! no allocation and cause no second cache miss. Long values are behind a thin pointer with a
//! single reference count, because weak references are not needed.
//!
//! A store with a memory limit replaces an evicted value by a placeholder ([`crate::store`]). A
//! placeholder never leaves the store, and its bytes must not be read.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, Ordering};

use triomphe::ThinArc;

/// The maximum length of a value that is stored inline.
const INLINE_LEN_MAX: usize = 14;

/// The bytes of one record. It has 16 bytes itself. Cloning shares long values and copies short
/// ones.
#[derive(Clone)]
pub struct Value(Repr);

enum Repr {
    Inline {
        len: u8,
        bytes: [u8; INLINE_LEN_MAX],
    },
    Shared {
        /// State of the store's eviction, in a byte that would otherwise be padding. Meaningless in
        /// a clone.
        usage: UsageCount,
        bytes: ThinArc<(), u8>,
    },
    /// The value is in the cold store.
    Cold,
}

impl Clone for Repr {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Self::Inline { len, bytes } => Self::Inline { len: *len, bytes: *bytes },
            Self::Shared { bytes, .. } => {
                Self::Shared { usage: UsageCount::used(), bytes: bytes.clone() }
            }
            Self::Cold => Self::Cold,
        }
    }
}

/// The number of passes of the store's clock hand that a value survives, and whether the cold store
/// has a copy of it. Updates are not synchronized: one that is lost costs a pass or another copy.
struct UsageCount(AtomicU8);

impl UsageCount {
    const COPIED: u8 = 128;

    fn used() -> Self {
        Self(AtomicU8::new(1))
    }
}

impl Value {
    /// Copies `source` into a new value, so that a record never keeps a larger buffer alive.
    pub fn copy_from(source: &[u8]) -> Self {
        if source.len() > INLINE_LEN_MAX {
            let bytes = ThinArc::from_header_and_slice((), source);
            return Self(Repr::Shared { usage: UsageCount::used(), bytes });
        }
        let mut bytes = [0; INLINE_LEN_MAX];
        bytes[..source.len()].copy_from_slice(source);
        Self(Repr::Inline { len: source.len() as u8, bytes })
    }

    /// The heap memory of the value in bytes, in addition to its own 16.
    pub(crate) fn heap_bytes(&self) -> usize {
        const COUNT_AND_LENGTH: usize = 2 * size_of::<usize>();
        match &self.0 {
            Repr::Inline { .. } | Repr::Cold => 0,
            Repr::Shared { bytes, .. } => COUNT_AND_LENGTH + bytes.slice.len(),
        }
    }

    /// The placeholder of a value that is in the cold store.
    pub(crate) const COLD: Self = Self(Repr::Cold);

    /// Whether this is a placeholder.
    #[inline]
    pub(crate) fn is_cold(&self) -> bool {
        matches!(self.0, Repr::Cold)
    }

    /// Protects the value from one pass of the clock hand. Writes only if that changes the state.
    #[inline]
    pub(crate) fn on_use(&self) {
        if let Repr::Shared { usage: UsageCount(usage), .. } = &self.0 {
            let before = usage.load(Ordering::Relaxed);
            if before & !UsageCount::COPIED != 1 {
                usage.store(before & UsageCount::COPIED | 1, Ordering::Relaxed);
            }
        }
    }

    /// Protects the value from `count` passes of the clock hand, or until it is used.
    pub(crate) fn protect(&self, count: u8) {
        if let Repr::Shared { usage: UsageCount(usage), .. } = &self.0 {
            let before = usage.load(Ordering::Relaxed);
            usage.store(before & UsageCount::COPIED | count, Ordering::Relaxed);
        }
    }

    /// Called when the clock hand passes. Returns whether the value may be evicted: it is not
    /// inline and had no protection left.
    pub(crate) fn take_turn(&self) -> bool {
        let Repr::Shared { usage: UsageCount(usage), .. } = &self.0 else { return false };
        let before = usage.load(Ordering::Relaxed);
        let left = before & !UsageCount::COPIED;
        usage.store(before & UsageCount::COPIED | left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Whether both share the same memory. Equal values in different memory are not the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Shared { bytes, .. }, Repr::Shared { bytes: other, .. }) => {
                std::ptr::eq(bytes.slice.as_ptr(), other.slice.as_ptr())
            }
            _ => false,
        }
    }

    /// Whether the value was not used since the clock hand passed.
    pub(crate) fn is_unused(&self) -> bool {
        match &self.0 {
            Repr::Shared { usage, .. } => {
                usage.0.load(Ordering::Relaxed) & !UsageCount::COPIED == 0
            }
            Repr::Inline { .. } | Repr::Cold => false,
        }
    }

    /// Records that the cold store has a copy of the value.
    pub(crate) fn set_copied(&self) {
        if let Repr::Shared { usage, .. } = &self.0 {
            usage.0.fetch_or(UsageCount::COPIED, Ordering::Relaxed);
        }
    }

    /// The same value, recorded as one of which the cold store has a copy.
    pub(crate) fn copied(self) -> Self {
        self.set_copied();
        self
    }

    /// Whether the cold store has a copy of the value, which may be the only one.
    pub(crate) fn has_copy(&self) -> bool {
        match &self.0 {
            Repr::Inline { .. } => false,
            Repr::Shared { usage, .. } => usage.0.load(Ordering::Relaxed) & UsageCount::COPIED != 0,
            Repr::Cold => true,
        }
    }
}

impl Deref for Value {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared { bytes, .. } => &bytes.slice,
            Repr::Cold => panic!("a cold value must be loaded before it is read"),
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
        if self.is_cold() {
            return f.write_str("cold");
        }
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
    #[test]
    fn a_value_is_safe_for_the_turns_that_it_was_given_or_until_it_is_used() {
        let value = Value::copy_from(&[7; 40]);
        assert!(!value.take_turn(), "the value is new");
        assert!(value.take_turn());
        value.protect(3);
        assert!((0..3).all(|_| !value.take_turn()) && value.take_turn());
        value.protect(3);
        value.on_use();
        assert!(!value.take_turn() && value.take_turn());
        let value = value.copied();
        value.on_use();
        assert!(!value.take_turn() && value.take_turn() && value.has_copy());
        assert!(!value.clone().has_copy() && Value::COLD.has_copy());
        assert!(!Value::copy_from(b"short").take_turn());
    }

    #[test]
    #[should_panic(expected = "must be loaded before it is read")]
    fn a_mark_is_not_a_value() {
        let _ = Value::COLD.len();
    }
}
