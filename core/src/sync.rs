//! The synchronization primitives of the store: the standard library's locks and atomics, or those
//! of `shuttle`.
//!
//! The feature `shuttle` is only for the tests in `store/interleavings.rs`. With it, a scheduler
//! chooses the next thread at each lock and each atomic, and tries one order of steps after the
//! other. Only one thread runs at a time, and memory is sequentially consistent. The tests
//! therefore find wrong orders of correct steps, but not an `Ordering` that is too weak.

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

    /// [`std::sync::OnceLock`], which `shuttle` does not provide, with a scheduling point before
    /// each use.
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
