//! The node's side of a client's connection: requests as the driver sees them, and their replies.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pangea_core::hash::HashMap;
use pangea_core::txn::Outcome;

use super::wire::{self, Answer, Pinned, Query};
use crate::meter::Tap;
use crate::transport::CLIENT_FRAME_MAX;
use crate::transport::frame::{Kind, header};
use crate::transport::write_slices;

/// The maximum size of a client's unread answers. A client that exceeds it is unreachable or does
/// not read, and is disconnected.
pub const UNREAD_BYTES_MAX: usize = 64 << 20;

/// A frame of answers is closed at this length. A single answer may be longer.
const ANSWERS_LEN: usize = 256 << 10;
/// The number of the next pinned object, for any client. The first is random, so that a client that
/// reconnected can't release, by a number from an earlier connection, an object that was pinned
/// since.
static NEXT_HELD: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(crate::random::seed() >> 1));
/// The maximum number of pinned objects of one client.
const HELD_MAX: usize = 4_096;
/// The bytes of an answer in addition to its own encoding.
const ANSWER_OVERHEAD: usize = 12;

/// A client's call of a procedure.
#[derive(Debug)]
pub struct ClientCall {
    /// The procedure's name.
    pub procedure: Arc<str>,
    /// Its arguments, a slice of a read buffer.
    pub args: Bytes,
    /// The receiver of the outcome.
    pub reply: ClientReply,
}

/// A client's query that the driver answers.
#[derive(Debug)]
pub struct ClientQuery {
    /// The query.
    pub query: Query,
    /// The receiver of the answer.
    pub reply: ClientReply,
}

/// The reply channel for one answer to a client. Dropped unused, it reports that the outcome is
/// unknown.
pub struct ClientReply {
    request: u64,
    /// `None` once it has been used.
    answers: Option<Arc<Answers>>,
}

impl ClientReply {
    pub(super) fn new(request: u64, answers: &Arc<Answers>) -> Self {
        Self { request, answers: Some(answers.clone()) }
    }

    /// Sends the answer. Never blocks; does nothing if the client has disconnected.
    pub fn send(mut self, answer: &Answer) {
        self.finish(answer);
    }

    /// Sends the transaction's outcome.
    pub fn outcome(self, outcome: Outcome) {
        self.send(&Answer::Outcome(outcome));
    }

    /// Rejects an invalid request, which had no effect.
    pub fn refuse(self, reason: impl Into<String>) {
        self.send(&Answer::Refused(reason.into()));
    }

    /// Reports that the outcome of the transaction is unknown.
    pub fn unavailable(self, reason: impl Into<String>) {
        self.send(&Answer::Unavailable(reason.into()));
    }

    /// Keeps an object alive for as long as the connection lasts, and sends its number to the
    /// client. The number of objects per client is limited.
    pub fn hold(self, resource: Box<dyn Any + Send>) {
        let number = self.answers.as_ref().and_then(|answers| answers.hold(resource));
        match number {
            Some(number) => self.send(&Answer::Pinned(Pinned::Held(number))),
            None => self.refuse(format!("the limit of {HELD_MAX} pinned versions is reached")),
        }
    }

    /// Drops the object with this number.
    pub fn release(self, number: u64) {
        let resource = self.answers.as_ref().and_then(|answers| answers.release(number));
        drop(resource);
        self.send(&Answer::Done);
    }

    fn finish(&mut self, answer: &Answer) {
        if let Some(answers) = self.answers.take() {
            answers.push(self.request, answer);
        }
    }
}

impl Drop for ClientReply {
    fn drop(&mut self) {
        if self.answers.is_some() {
            self.finish(&Answer::Unavailable("the node dropped the request".to_owned()));
        }
    }
}

impl fmt::Debug for ClientReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientReply({})", self.request)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Bodies of complete frames.
    full: Vec<Vec<u8>>,
    /// The body of the frame being filled.
    open: Vec<u8>,
    unread_bytes: usize,
    /// The number of answers that wait to be written.
    waiting: usize,
    is_closed: bool,
    is_idle: bool,
    /// The objects kept alive for the client, by number.
    retained: HashMap<u64, Box<dyn Any + Send>>,
}

/// The answers that wait to be written to one client.
#[derive(Debug)]
pub(super) struct Answers {
    state: Mutex<State>,
    wake: Condvar,
    stream: Arc<TcpStream>,
}

impl Answers {
    pub(super) fn new(stream: &Arc<TcpStream>) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), stream: stream.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an object alive and returns its number, or `None` if the limit is reached.
    fn hold(&self, resource: Box<dyn Any + Send>) -> Option<u64> {
        let mut state = self.lock();
        if state.is_closed || state.retained.len() >= HELD_MAX {
            drop(state);
            drop(resource);
            return None;
        }
        let number = NEXT_HELD.fetch_add(1, Ordering::Relaxed);
        state.retained.insert(number, resource);
        Some(number)
    }

    fn release(&self, number: u64) -> Option<Box<dyn Any + Send>> {
        self.lock().retained.remove(&number)
    }

    fn push(&self, request: u64, answer: &Answer) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        let before = state.open.len();
        wire::push_answer(&mut state.open, request, answer);
        let len = state.open.len() - before;
        if len > CLIENT_FRAME_MAX {
            state.open.truncate(before);
            let reason =
                format!("an answer of {len} bytes exceeds the limit of {CLIENT_FRAME_MAX}");
            wire::push_answer(&mut state.open, request, &Answer::Unavailable(reason));
        } else if before > 0 && before + len > CLIENT_FRAME_MAX {
            let next = state.open.split_off(before);
            let full = std::mem::replace(&mut state.open, next);
            state.full.push(full);
        }
        if state.open.len() >= ANSWERS_LEN {
            let full = std::mem::take(&mut state.open);
            state.full.push(full);
        }
        state.waiting += 1;
        state.unread_bytes += len + ANSWER_OVERHEAD;
        if state.unread_bytes > UNREAD_BYTES_MAX {
            drop(state);
            return self.close();
        }
        if std::mem::take(&mut state.is_idle) {
            self.wake.notify_one();
        }
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        let open = std::mem::replace(&mut *state, State { is_closed: true, ..State::default() });
        self.wake.notify_one();
        drop(state);
        drop(open);
        // The shutdown fails if the client has reset the connection, which is then closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Waits for answers, and returns their frames and their number; `None` once the connection is
    /// closed.
    fn take(&self) -> Option<(Vec<Vec<u8>>, usize)> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if !state.full.is_empty() || !state.open.is_empty() {
                state.is_idle = false;
                let open = std::mem::take(&mut state.open);
                let mut frames = std::mem::take(&mut state.full);
                frames.extend((!open.is_empty()).then_some(open));
                return Some((frames, std::mem::take(&mut state.waiting)));
            }
            state.is_idle = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes answers as they arrive, all pending ones at a time, until the connection is closed.
    pub(super) fn run_writer(&self, mut tap: Tap) -> io::Result<()> {
        while let Some((frames, count)) = self.take() {
            for body in &frames {
                let header = header(Kind::Answers, 0, body);
                write_slices(&self.stream, &mut [IoSlice::new(&header), IoSlice::new(body)])?;
            }
            let written: usize = frames.iter().map(Vec::len).sum();
            let mut state = self.lock();
            state.unread_bytes = state.unread_bytes.saturating_sub(written);
            drop(state);
            tap.did("client_answer", 1, count);
        }
        Ok(())
    }
}
