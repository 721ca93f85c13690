//! Threads, connections and waits that must end when the transport stops.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The maximum number of connections, each with a thread: strangers, clients and peers together.
const CONNECTIONS_MAX: usize = 4_096;

#[derive(Debug, Default)]
struct State {
    is_stopping: bool,
    is_closed: bool,
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

/// Registers a connection, which a stop of the transport then closes, until this is dropped.
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

    /// Waits for `time`, or until the transport stops. Returns whether it stops.
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

    /// Registers a connection; `None` if the transport is stopping, or has too many connections.
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
    /// When the operating system can't create it.
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

    /// Ends all waits. No connection begins any more, and those that are open continue.
    pub(crate) fn begin_stop(&self) {
        self.lock().is_stopping = true;
        self.stopping.notify_all();
    }

    /// Ends all waits and closes all connections. Returns false if that was done before.
    pub(crate) fn stop(&self) -> bool {
        self.begin_stop();
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_closed, true) {
            return false;
        }
        for stream in state.streams.values() {
            // The shutdown fails if the other side has reset the connection, which is then closed
            // already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        true
    }

    /// Waits until all threads except the caller have ended.
    pub(crate) fn join(&self) {
        assert!(self.is_stopping(), "threads are stopped before they are joined");
        loop {
            let threads = std::mem::take(&mut self.lock().threads);
            if threads.is_empty() {
                return;
            }
            for thread in threads {
                if thread.thread().id() != thread::current().id() {
                    // Panics are caught inside the threads.
                    let _ = thread.join();
                }
            }
        }
    }
}
