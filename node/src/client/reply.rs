//! The node's side of a client's connection: requests as the driver sees them, and the way back.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pangea_core::hash::HashMap;
use pangea_core::txn::Outcome;

use super::wire::{self, Answer, Query};
use crate::meter::Tap;
use crate::transport::CLIENT_FRAME_MAX;
use crate::transport::frame::{Kind, header};
use crate::transport::write_slices;

/// Answers that a client has not read: when there are more of them the client is gone, or does not
/// read what it asked for, and is disconnected.
pub const UNREAD_BYTES_MAX: usize = 64 << 20;

/// A frame of answers is closed when it is this long. One answer may be longer.
const ANSWERS_LEN: usize = 256 << 10;
/// What is kept next is called so, whoever it is for: a client that has connected again does not
/// let go what it was given since by a name from before.
static NEXT_HELD: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(crate::random::seed() >> 1));
/// What one client may have kept for it.
const HELD_MAX: usize = 4_096;
/// What an answer takes beside its own encoding.
const ANSWER_OVERHEAD: usize = 12;

/// A client wants a procedure to be run.
#[derive(Debug)]
pub struct ClientCall {
    /// The procedure's name.
    pub procedure: Arc<str>,
    /// Its arguments: a slice of a read buffer.
    pub args: Bytes,
    /// Where its outcome goes.
    pub reply: ClientReply,
}

/// A client wants to know something that the driver knows.
#[derive(Debug)]
pub struct ClientQuery {
    /// What.
    pub query: Query,
    /// Where the answer goes.
    pub reply: ClientReply,
}

/// The way back to a client, for one answer. Dropped without one, it says that the node can't tell.
pub struct ClientReply {
    request: u64,
    /// Nothing once it has been used.
    answers: Option<Arc<Answers>>,
}

impl ClientReply {
    pub(super) fn new(request: u64, answers: &Arc<Answers>) -> Self {
        Self { request, answers: Some(answers.clone()) }
    }

    /// Answers. Never blocks; does nothing when the client has gone.
    pub fn send(mut self, answer: &Answer) {
        self.finish(answer);
    }

    /// Tells how the transaction ended.
    pub fn outcome(self, outcome: Outcome) {
        self.send(&Answer::Outcome(outcome));
    }

    /// The request makes no sense, and changed nothing.
    pub fn refuse(self, reason: impl Into<String>) {
        self.send(&Answer::Refused(reason.into()));
    }

    /// Whether the transaction committed is not known.
    pub fn unavailable(self, reason: impl Into<String>) {
        self.send(&Answer::Unavailable(reason.into()));
    }

    /// Keeps something for as long as the connection lasts, and tells the client what it is called.
    /// There may be so many for one client.
    pub fn hold(self, kept: Box<dyn Any + Send>) {
        let held = self.answers.as_ref().and_then(|answers| answers.hold(kept));
        match held {
            Some(number) => self.send(&Answer::Held(Some(number))),
            None => self.refuse(format!("{HELD_MAX} versions are held already")),
        }
    }

    /// Lets go what was kept under this name.
    pub fn release(self, number: u64) {
        let kept = self.answers.as_ref().and_then(|answers| answers.release(number));
        drop(kept);
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
            self.finish(&Answer::Unavailable("the node gave the request up".to_owned()));
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
    /// Bodies of whole frames.
    full: Vec<Vec<u8>>,
    /// The body of the frame that grows.
    open: Vec<u8>,
    unread_bytes: usize,
    /// How many answers wait to be written.
    waiting: usize,
    is_closed: bool,
    is_idle: bool,
    /// What is kept for the client, by name.
    held: HashMap<u64, Box<dyn Any + Send>>,
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

    /// Keeps something under a name, unless there is too much.
    fn hold(&self, kept: Box<dyn Any + Send>) -> Option<u64> {
        let mut state = self.lock();
        if state.is_closed || state.held.len() >= HELD_MAX {
            drop(state);
            drop(kept);
            return None;
        }
        let number = NEXT_HELD.fetch_add(1, Ordering::Relaxed);
        state.held.insert(number, kept);
        Some(number)
    }

    fn release(&self, number: u64) -> Option<Box<dyn Any + Send>> {
        self.lock().held.remove(&number)
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
                format!("an answer of {len} bytes is over the limit of {CLIENT_FRAME_MAX}");
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
        // What the client has reset can't be shut down again, and need not be.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The frames that wait and how many answers they have, after waiting for one; nothing once
    /// the connection is closed.
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

    /// Writes answers as they come, all that wait at a time, until the connection is closed.
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
