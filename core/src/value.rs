//! What a record holds: bytes, shared without copying.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The bytes of one record. Cloning shares them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// Copies `bytes` into a value of their own, so that a record never keeps a larger buffer
    /// alive.
    pub fn copy_from(bytes: &[u8]) -> Self {
        Self(Arc::from(bytes))
    }
}

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::from(bytes))
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_from(bytes)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
