//! The queue of frames to be sent on one lane, and the thread that sends them.
//!
//! ```text
//!   any thread --push--> arrivals --> compress, checksum --> delay queue --> writev, many at once
//!              (never blocks)   `------------- the lane's sender thread -----------'
//! ```
//!
//! The sender waits on one condition variable until the time of the next departure. Measured on two
//! busy cores, this wait ends a tenth of a millisecond late in the median, and within 0.8 ms in 99
//! of 100 cases. A timer wheel has a granularity of a millisecond.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use pangea_core::protocol::Lane;

use super::frame::{HEADER_LEN, Kind};
use super::frame_encoder::{EncodedFrame, FrameEncoder};
use super::link::Link;
use super::wan::DelayQueue;
use crate::meter::Tap;

/// The maximum queue of one peer's control lane: far more than a second of votes.
pub const CONTROL_QUEUE_BYTES_MAX: usize = 16 << 20;
/// The maximum queue of one peer's bulk lane: some seconds of batches, or a round trip's worth on a
/// fast WAN link. Above it the connection is reset, because the protocol's recovery on `PeerDown`
/// and `PeerUp` is better than endless queueing.
pub const BULK_QUEUE_BYTES_MAX: usize = 256 << 20;
/// The cost of a queued frame in addition to its body, so that the number of empty frames is
/// bounded too.
const FRAME_COST: usize = 64;

/// The maximum number of frames per system call: two slices each, of the 1,024 that Linux allows.
const GATHER_FRAMES_MAX: usize = 128;
/// The maximum number of bytes per system call, unless a single frame is larger.
const GATHER_BYTES_MAX: usize = 1 << 20;

/// A frame that waits to be sent.
#[derive(Debug)]
struct Outgoing {
    kind: Kind,
    body: Bytes,
    at: Instant,
}

/// A frame in the delay queue, and its cost in the queue's limit.
#[derive(Debug)]
struct Leaving {
    frame: EncodedFrame,
    cost: usize,
}

#[derive(Debug, Default)]
struct State {
    arrivals: VecDeque<Outgoing>,
    queued_bytes: usize,
    is_closed: bool,
    /// No frame is accepted any more, and the sender ends when it has sent those that were.
    is_finishing: bool,
    /// The pipe's gate has changed.
    is_poked: bool,
    /// The sender is asleep and must be woken for arrivals.
    is_idle: bool,
}

/// The queue of one lane of one session.
#[derive(Debug)]
pub(crate) struct Outbox {
    lane: Lane,
    state: Mutex<State>,
    wake: Condvar,
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl Outbox {
    pub(crate) fn new(lane: Lane) -> Self {
        Self { lane, state: Mutex::default(), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame, or drops it if the outbox is closed or finishing. Never blocks for longer
    /// than another push takes.
    pub(crate) fn push(&self, kind: Kind, body: Bytes) -> Result<(), Overflow> {
        let mut state = self.lock();
        if state.is_closed || state.is_finishing {
            return Ok(());
        }
        let queued_bytes = state.queued_bytes + body.len() + FRAME_COST;
        if queued_bytes > queue_bytes_max(self.lane) {
            return Err(Overflow);
        }
        state.queued_bytes = queued_bytes;
        state.arrivals.push_back(Outgoing { kind, body, at: Instant::now() });
        if std::mem::take(&mut state.is_idle) {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Rejects further frames, drops the queued ones, and wakes the sender.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.arrivals.clear();
        self.wake.notify_one();
    }

    /// Rejects further frames. The sender ends when it has sent the queued ones.
    pub(crate) fn finish(&self) {
        self.lock().is_finishing = true;
        self.wake.notify_one();
    }

    /// Makes the sender check the pipe's gate again.
    pub(crate) fn poke(&self) {
        self.lock().is_poked = true;
        self.wake.notify_one();
    }

    /// Waits for arrivals, a poke, or `until`, and moves the arrivals into `arrivals`. Returns
    /// false once the outbox is closed, or nothing follows.
    fn wait(
        &self,
        written: usize,
        until: Option<Instant>,
        arrivals: &mut VecDeque<Outgoing>,
    ) -> bool {
        assert!(arrivals.is_empty(), "earlier frames are in flight");
        let mut state = self.lock();
        state.queued_bytes -= written;
        loop {
            if state.is_closed || state.is_finishing && state.queued_bytes == 0 {
                return false;
            }
            if !state.arrivals.is_empty() || std::mem::take(&mut state.is_poked) {
                state.is_idle = false;
                std::mem::swap(&mut state.arrivals, arrivals);
                return true;
            }
            let Some(until) = until else {
                state.is_idle = true;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let now = Instant::now();
            if until <= now {
                state.is_idle = false;
                return true;
            }
            // A new arrival leaves after the frame that is due at `until`. On the control lane it
            // can wait for that wake-up too. On the bulk lane it can't, because a batch is
            // compressed during its delay and not after it.
            state.is_idle = self.lane == Lane::Bulk;
            let woken = self.wake.wait_timeout(state, until - now);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The maximum queue of a lane, in bytes.
pub(crate) fn queue_bytes_max(lane: Lane) -> usize {
    match lane {
        Lane::Control => CONTROL_QUEUE_BYTES_MAX,
        Lane::Bulk => BULK_QUEUE_BYTES_MAX,
    }
}

/// Sends the queued frames, each at the time set by the pipe, until the outbox is closed or nothing
/// follows.
///
/// # Errors
/// When the connection is lost.
pub(crate) fn run_sender(
    outbox: &Outbox,
    link: &Link,
    stream: &TcpStream,
    encoder: &FrameEncoder,
    mut tap: Tap,
) -> io::Result<()> {
    let lane = outbox.lane;
    let mut arrivals = VecDeque::new();
    let mut queue = DelayQueue::new(lane);
    let mut due = Vec::new();
    let mut written = 0;
    while outbox.wait(written, queue.next_departure(link.gate()), &mut arrivals) {
        written = 0;
        for outgoing in arrivals.drain(..) {
            let Outgoing { kind, body, at } = outgoing;
            let plain_len = body.len();
            let frame = encoder.encode(kind, lane, body);
            let wire_len = HEADER_LEN + frame.body.len();
            link.count_sent(lane, plain_len, wire_len);
            let leaving = Leaving { frame, cost: plain_len + FRAME_COST };
            queue.push(&mut link.pipe(), at, wire_len, leaving);
        }
        loop {
            let gate = link.gate();
            let now = Instant::now();
            let mut bytes = 0;
            while due.len() < GATHER_FRAMES_MAX && bytes < GATHER_BYTES_MAX {
                let Some(Leaving { frame, cost }) = queue.pop_due(gate, now) else { break };
                bytes += frame.body.len();
                written += cost;
                due.push(frame);
            }
            if due.is_empty() {
                break;
            }
            write_all(stream, &due)?;
            tap.did("send", due.len(), bytes);
            due.clear();
        }
    }
    Ok(())
}

/// Writes whole frames with as few system calls as the socket's buffer allows.
fn write_all(stream: &TcpStream, frames: &[EncodedFrame]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(2 * frames.len());
    for frame in frames {
        slices.push(IoSlice::new(&frame.header));
        slices.push(IoSlice::new(&frame.body));
    }
    write_slices(stream, &mut slices)
}

/// Writes all of `slices`, in order.
///
/// # Errors
/// When the connection is lost.
pub(crate) fn write_slices(
    mut stream: &TcpStream,
    mut slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Skips leading empty slices, which would look like a write of zero bytes.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => IoSlice::advance_slices(&mut slices, len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_outbox_says_so_and_a_closed_one_takes_everything_and_keeps_nothing() {
        let outbox = Outbox::new(Lane::Control);
        let body = Bytes::from(vec![0; 1 << 20]);
        let fit = CONTROL_QUEUE_BYTES_MAX / (body.len() + FRAME_COST);
        for _ in 0..fit {
            assert_eq!(outbox.push(Kind::Message, body.clone()), Ok(()));
        }
        assert_eq!(outbox.push(Kind::Message, body.clone()), Err(Overflow));
        outbox.close();
        assert_eq!(outbox.push(Kind::Message, body), Ok(()));
        assert!(outbox.lock().arrivals.is_empty());
    }
}
