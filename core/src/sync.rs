//! What the store's threads share it by: the standard library's locks and atomics, or the ones of
//! `shuttle`.
//!
//! With the feature `shuttle`, which is for the tests in `store/interleavings.rs` alone, each lock
//! and each atomic hands the choice of who goes on to a scheduler, which tries one order of steps
//! after the other. There is one thread at a time then, and memory is sequentially consistent: what
//! is found are wrong orders of right steps, not an `Ordering` that is too weak.

#[cfg(not(feature = "shuttle"))]
mod real {
    pub(crate) use std::sync::{
        Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
    };

    pub(crate) mod atomic {
        pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    }
}

#[cfg(feature = "shuttle")]
mod explored {
    use shuttle::sync::atomic::AtomicUsize;
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    use std::ops::Deref;
    use std::sync::atomic::Ordering;

    pub(crate) mod atomic {
        pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    }

    /// [`std::sync::OnceLock`], which `shuttle` lacks, with a choice before each use.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        value: std::sync::OnceLock<T>,
        use_count: AtomicUsize,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self { value: std::sync::OnceLock::new(), use_count: AtomicUsize::new(0) }
        }
    }

    impl<T> Deref for OnceLock<T> {
        type Target = std::sync::OnceLock<T>;

        fn deref(&self) -> &Self::Target {
            self.use_count.fetch_add(1, Ordering::Relaxed);
            &self.value
        }
    }
}

#[cfg(feature = "shuttle")]
pub(crate) use explored::*;
#[cfg(not(feature = "shuttle"))]
pub(crate) use real::*;
