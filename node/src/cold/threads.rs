//! The threads of the cold store: one evicts values, and some prefetch them.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::store::Store;
use pangea_core::time::Span;

use crate::panics::caught;

/// The number of fetching threads; disks serve several requests in parallel.
const FETCHERS: usize = 4;
/// The maximum number of requests fetched together.
const REQUESTS_MAX: usize = 64;
/// The interval between checks of memory use against its limit.
const LOOK: Duration = Duration::from_millis(10);
/// The interval after a full pass of the clock hand did not free enough memory: little else can be
/// evicted.
const LOOK_IN_VAIN: Duration = Duration::from_millis(500);
/// After this number of consecutive insufficient passes the limit can't be met, which is logged
/// once.
const LOOKS_IN_VAIN_MAX: u32 = 6;

/// Called with the token of a finished request and the time that it took.
pub type OnFetched = Arc<dyn Fn(u64, Span) + Send + Sync>;

/// Called with the reason when one of the threads has panicked.
pub type OnPanic = Arc<dyn Fn(String) + Send + Sync>;

/// Evicts values while memory is above its limit, and prefetches requested values. Dropping it ends
/// its threads.
pub struct ColdThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Request {
    token: u64,
    keys: Vec<(TableId, Key)>,
    requested_at: Instant,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    is_stopping: bool,
}

impl fmt::Debug for ColdThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ColdThreads({} requests)", self.shared.lock().requests.len())
    }
}

impl ColdThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the operating system can't create them.
    pub fn start(
        store: &Arc<Store>,
        on_fetched: &OnFetched,
        on_panic: &OnPanic,
    ) -> Result<Self, std::io::Error> {
        let shared = Arc::new(Shared::default());
        let mut threads = Self { shared, threads: Vec::new() };
        let (shared, of_evictor) = (threads.shared.clone(), store.clone());
        threads.spawn("cold-evictor", on_panic, move || shared.evict(&of_evictor))?;
        for _ in 0..FETCHERS {
            let (shared, store) = (threads.shared.clone(), store.clone());
            let on_fetched = on_fetched.clone();
            threads.spawn("cold-fetcher", on_panic, move || shared.fetch(&store, &on_fetched))?;
        }
        Ok(threads)
    }

    fn spawn(
        &mut self,
        name: &'static str,
        on_panic: &OnPanic,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let on_panic = on_panic.clone();
        let run = move || caught(name, run, |reason| on_panic(reason));
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(())
    }

    /// Fetches the values of these keys, and reports `token` when they are in memory.
    pub fn fetch(&self, token: u64, keys: Vec<(TableId, Key)>) {
        let requested_at = Instant::now();
        self.shared.lock().requests.push(Request { token, keys, requested_at });
        self.shared.changed.notify_all();
    }
}

impl Drop for ColdThreads {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Panics are caught inside the threads.
            let _ = thread.join();
        }
    }
}

/// The warning about a limit that can't be met.
fn beyond_limit(store: &Store) -> String {
    let (most, found) = (store.memory_bytes_max().unwrap_or(usize::MAX), store.memory_bytes());
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    format!(
        "memory_mb = {} can't be met: {} MiB of rows are in memory and can't be evicted (keys, \
         headers, values of up to 14 bytes, and old versions); a limit of {} MiB or more leaves \
         room for frequently used values",
        mib(most),
        mib(found),
        mib(found + found / 4)
    )
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evict(&self, store: &Store) {
        let (mut wait, mut in_vain, mut is_told) = (LOOK, 0, false);
        loop {
            let deadline = Instant::now() + wait;
            let mut state = self.lock();
            while !state.is_stopping {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.is_stopping {
                return;
            }
            drop(state);
            let is_kept = store.evict();
            wait = if is_kept { LOOK } else { LOOK_IN_VAIN };
            in_vain = if is_kept { 0 } else { in_vain + 1 };
            if in_vain == LOOKS_IN_VAIN_MAX && !std::mem::replace(&mut is_told, true) {
                tracing::warn!("{}", beyond_limit(store));
            }
        }
    }

    fn fetch(&self, store: &Store, on_fetched: &OnFetched) {
        loop {
            let mut state = self.lock();
            while state.requests.is_empty() && !state.is_stopping {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_stopping {
                return;
            }
            // Leaves the other fetchers an equal share, so that the disk reads for all of them in
            // parallel.
            let count = state.requests.len().div_ceil(FETCHERS).min(REQUESTS_MAX);
            let requests: Vec<Request> = state.requests.drain(..count).collect();
            drop(state);
            let keys: Vec<_> = requests.iter().flat_map(|request| &request.keys).cloned().collect();
            store.fetch_ahead(&keys);
            for Request { token, requested_at, .. } in requests {
                on_fetched(token, Span::from_us(requested_at.elapsed().as_micros() as u64));
            }
        }
    }
}
