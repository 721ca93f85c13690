//! What must end when the transport stops: threads, connections, waits.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many connections there may be at the same time, each with a thread: strangers, clients and
/// peers together.
const CONNECTIONS_MAX: usize = 4_096;

#[derive(Debug, Default)]
struct State {
    is_stopping: bool,
    streams: BTreeMap<u64, Arc<TcpStream>>,
    next: u64,
    threads: Vec<JoinHandle<()>>,
}

/// The threads and connections of one transport.
#[derive(Debug, Default)]
pub(crate) struct Lifetime {
    state: Mutex<State>,
    stopping: Condvar,
}

/// Keeps a connection in reach of the transport's stop until it is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    lifetime: Arc<Lifetime>,
    id: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.lifetime.lock().streams.remove(&self.id);
    }
}

impl Lifetime {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Waits for `time`, or until the transport stops: then true.
    pub(crate) fn wait_for_stop(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_stopping || left.is_zero() {
                return state.is_stopping;
            }
            let woken = self.stopping.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes a connection under the transport's care; nothing when it is stopping, or when there
    /// are too many.
    pub(crate) fn open(self: &Arc<Self>, stream: &Arc<TcpStream>) -> Option<Open> {
        let mut state = self.lock();
        if state.is_stopping || state.streams.len() >= CONNECTIONS_MAX {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.streams.insert(id, stream.clone());
        Some(Open { lifetime: self.clone(), id })
    }

    /// Starts a thread that [`Lifetime::join`] waits for.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn spawn(
        &self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let thread = thread::Builder::new().name(name).spawn(run)?;
        let mut state = self.lock();
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
        Ok(())
    }

    /// Ends every wait and every connection.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        self.stopping.notify_all();
        for stream in state.streams.values() {
            // What the other side has reset can't be shut down again, and need not be.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Waits until every thread has ended, but for the one that calls.
    pub(crate) fn join(&self) {
        assert!(self.is_stopping(), "threads are told to stop before they are waited for");
        loop {
            let threads = std::mem::take(&mut self.lock().threads);
            if threads.is_empty() {
                return;
            }
            for thread in threads {
                if thread.thread().id() != thread::current().id() {
                    // Panics are caught where they happen.
                    let _ = thread.join();
                }
            }
        }
    }
}
