//! A session with a peer: both lanes, from the moment both are connected until either is lost.
//!
//! ```text
//!   PeerUp --> Frame, Frame, ... --> PeerDown --> (the next session) PeerUp
//! ```
//!
//! A session has four threads: a sender and a reader for each lane. The thread that made the
//! session reads the control lane, and sends `PeerDown` when all have ended. Therefore no frame of
//! a session arrives before its `PeerUp` or after its `PeerDown`, and a frame sent in one session
//! never arrives in another. An answer to a frame may be sent in a later session.
//!
//! A node that ends in order sends what it has queued, and then shuts down its sides of both lanes.
//! Its peer reads both lanes to their ends, and closes the session:
//!
//! ```text
//!   node that ends                       peer
//!     | last frames of each lane ------> |
//!     | end of both lanes -------------> |  both read: PeerDown
//!     | <--------------- closes both     |
//!   PeerDown
//! ```

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;

use super::TransportEvent;
use super::frame::{
    BULK_FRAME_MAX, CONTROL_FRAME_MAX, Decoder, Frame, HEADER_LEN, Kind, plain_body,
};
use super::hello::SessionId;
use super::outbox::{Outbox, Overflow, queue_bytes_max, run_sender};
use super::peer::Peer;
use super::shared::Shared;
use crate::meter::Tap;
use crate::panics::caught;

/// The silence after which a control lane is regarded as lost: three missing pings. The host is
/// gone, or the network is partitioned.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The number of lanes.
const LANES: usize = 2;

/// How long a lane of which the peer sends no more waits for the end of the other. The peer ends
/// both at once, so that only what is on its way can be missing.
const OTHER_END_MAX: Duration = Duration::from_secs(1);

/// The size of the control lane's read buffer: thousands of acknowledgements.
const CONTROL_BUFFER_LEN: usize = 64 << 10;
/// The size of the bulk lane's read buffer. A larger batch gets its own buffer.
const BULK_BUFFER_LEN: usize = 512 << 10;

/// A connection that has sent its hello, and the bytes already read from it.
pub(crate) struct Connection {
    pub stream: Arc<TcpStream>,
    pub decoder: Decoder,
}

/// The two lanes to a peer.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: SessionId,
    peer: NodeId,
    control: Arc<TcpStream>,
    bulk: Arc<TcpStream>,
    control_outbox: Outbox,
    bulk_outbox: Outbox,
    is_closed: AtomicBool,
    /// The number of lanes on which everything was sent that was queued before the end.
    lanes_sent: AtomicUsize,
    /// The number of lanes that were read to their end.
    lanes_read: Mutex<usize>,
    /// Signals that a lane was read to its end, or that the session is closed.
    ended: Condvar,
    reason: Mutex<Option<String>>,
}

impl Session {
    pub(crate) fn new(
        id: SessionId,
        peer: NodeId,
        control: &Arc<TcpStream>,
        bulk: &Arc<TcpStream>,
    ) -> Self {
        Self {
            id,
            peer,
            control: control.clone(),
            bulk: bulk.clone(),
            control_outbox: Outbox::new(Lane::Control),
            bulk_outbox: Outbox::new(Lane::Bulk),
            is_closed: AtomicBool::new(false),
            lanes_sent: AtomicUsize::new(0),
            lanes_read: Mutex::default(),
            ended: Condvar::new(),
            reason: Mutex::default(),
        }
    }

    fn outbox(&self, lane: Lane) -> &Outbox {
        match lane {
            Lane::Control => &self.control_outbox,
            Lane::Bulk => &self.bulk_outbox,
        }
    }

    fn stream(&self, lane: Lane) -> &TcpStream {
        match lane {
            Lane::Control => &self.control,
            Lane::Bulk => &self.bulk,
        }
    }

    /// Queues a frame, or closes the session if that fails.
    pub(crate) fn send(&self, lane: Lane, kind: Kind, body: Bytes) {
        let (len, limit) = (body.len(), limit(lane));
        if len > limit {
            // The receiver would reject it, and the operator should see the reason at the source.
            self.close(&format!(
                "connection reset: a message of {len} bytes exceeds the limit of {limit} (this is \
                 a bug)"
            ));
        } else if self.outbox(lane).push(kind, body) == Err(Overflow) {
            self.close(&format!(
                "connection reset: {} MB are queued, because the peer or the network to it does \
                 not keep up",
                queue_bytes_max(lane) >> 20
            ));
        }
    }

    /// Sends a ping. `now` counts from the transport's start.
    pub(crate) fn ping(&self, now: Duration) {
        let nanos = now.as_nanos() as u64;
        self.send(Lane::Control, Kind::Ping, Bytes::copy_from_slice(&nanos.to_le_bytes()));
    }

    /// Makes both senders check the pipe's gate again.
    pub(crate) fn poke(&self) {
        self.control_outbox.poke();
        self.bulk_outbox.poke();
    }

    /// Sends nothing but what is queued. The peer then ends the session.
    pub(crate) fn finish(&self) {
        self.control_outbox.finish();
        self.bulk_outbox.finish();
    }

    /// A lane has sent everything. Tells the peer when both have, because the end of one may end
    /// the session.
    fn on_lane_sent(&self) {
        if self.lanes_sent.fetch_add(1, Ordering::AcqRel) + 1 == LANES {
            for stream in [&self.control, &self.bulk] {
                // It fails if the session is closed already.
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
    }

    fn lanes_read(&self) -> MutexGuard<'_, usize> {
        self.lanes_read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane was read to its end. Waits for the end of the other, for a bounded time.
    fn on_lane_read(&self) {
        let mut lanes_read = self.lanes_read();
        *lanes_read += 1;
        self.ended.notify_all();
        let is_other_open = |read: &mut usize| *read < LANES && !self.is_closed();
        // The session is closed in either case.
        drop(self.ended.wait_timeout_while(lanes_read, OTHER_END_MAX, is_other_open));
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Ends the session; the first reason is recorded.
    pub(crate) fn close(&self, reason: &str) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let reason = Some(reason.to_owned());
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.control_outbox.close();
        self.bulk_outbox.close();
        for stream in [&self.control, &self.bulk] {
            // The shutdown fails if the peer has reset the connection, which is then closed
            // already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(self.lanes_read());
        self.ended.notify_all();
    }

    fn reason(&self) -> String {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.clone().unwrap_or_default()
    }
}

/// Runs a session from `PeerUp` to `PeerDown`, and returns the reason why it ended.
pub(crate) fn run(
    shared: &Shared,
    peer: &Peer,
    session: &Arc<Session>,
    control: Decoder,
    bulk: Decoder,
) -> String {
    (shared.events)(TransportEvent::PeerUp(peer.id));
    session.ping(shared.elapsed());
    let name = |what: &str| format!("{what} {}-{}", shared.identity.me, peer.id);
    let named = |what: &str| thread::Builder::new().name(name(what));
    // The other threads end with the session.
    let panicked = |reason: String| {
        session.close(&reason);
        (shared.events)(TransportEvent::Panicked(reason));
    };
    let (name, panicked) = (&name, &panicked);
    thread::scope(|scope| {
        let senders = [Lane::Control, Lane::Bulk].map(|lane| {
            let send = move || send_lane(shared, peer, session, lane);
            let send = move || caught(&name("send"), send, panicked);
            named("send").spawn_scoped(scope, send).map(drop)
        });
        let read_bulk = move || read_lane(shared, peer, session, Lane::Bulk, bulk);
        let read_bulk = move || caught(&name("bulk"), read_bulk, panicked);
        let reader = named("bulk").spawn_scoped(scope, read_bulk).map(drop);
        for spawned in senders.into_iter().chain([reader]) {
            if let Err(error) = spawned {
                session.close(&format!("connection reset: can't start a thread: {error}"));
            }
        }
        let read_control = || read_lane(shared, peer, session, Lane::Control, control);
        caught(&name("control"), read_control, panicked);
    });
    peer.clear_session();
    (shared.events)(TransportEvent::PeerDown(peer.id));
    peer.end_session();
    session.reason()
}

fn send_lane(shared: &Shared, peer: &Peer, session: &Session, lane: Lane) {
    let outbox = session.outbox(lane);
    let tap = Tap::new(shared.meter.as_ref());
    let sent = run_sender(outbox, &peer.link, session.stream(lane), &shared.encoder, tap);
    match sent {
        Ok(()) => session.on_lane_sent(),
        Err(error) => session.close(&format!("connection lost: {error}")),
    }
}

fn read_lane(shared: &Shared, peer: &Peer, session: &Session, lane: Lane, mut decoder: Decoder) {
    decoder.set_limit(limit(lane));
    let mut tap = Tap::new(shared.meter.as_ref());
    let ended = read_frames(session.stream(lane), &mut decoder, |frame| {
        let taken = on_frame(shared, peer, session, lane, &frame);
        tap.did("receive", 1, frame.body.len());
        taken
    });
    session.close(&match ended {
        Ended::Closed => {
            session.on_lane_read();
            "connection lost: closed by the peer".to_owned()
        }
        Ended::Gone(reason) => format!("connection lost: {reason}"),
        Ended::Wrong(reason) => format!("connection reset: the peer sent malformed data: {reason}"),
    });
}

/// The limit of a lane's frames.
pub(crate) fn limit(lane: Lane) -> usize {
    match lane {
        Lane::Control => CONTROL_FRAME_MAX,
        Lane::Bulk => BULK_FRAME_MAX,
    }
}

/// Creates a decoder for a lane's connection. It accepts only small frames until the hello has been
/// checked.
pub(crate) fn lane_decoder(lane: Lane) -> Decoder {
    let buffer_len = match lane {
        Lane::Control => CONTROL_BUFFER_LEN,
        Lane::Bulk => BULK_BUFFER_LEN,
    };
    Decoder::new(buffer_len, super::frame::HELLO_FRAME_MAX)
}

/// The way in which a connection ended, with a description.
pub(crate) enum Ended {
    /// The other side sends no more.
    Closed,
    /// The connection was lost.
    Gone(String),
    /// The other side violated the protocol.
    Wrong(String),
}

/// Passes each frame to `on_frame` until the connection ends.
pub(crate) fn read_frames(
    mut stream: &TcpStream,
    decoder: &mut Decoder,
    mut on_frame: impl FnMut(Frame) -> Result<(), String>,
) -> Ended {
    loop {
        loop {
            let taken = match decoder.next_frame() {
                Ok(Some(frame)) => on_frame(frame),
                Ok(None) => break,
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = taken {
                return Ended::Wrong(reason);
            }
        }
        match stream.read(decoder.space()) {
            Ok(0) => return Ended::Closed,
            Ok(len) => decoder.advance(len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => {
                let silence = SILENCE_MAX.as_secs();
                return Ended::Gone(format!(
                    "no data for {silence} s; the host or the network may be down"
                ));
            }
            Err(error) => return Ended::Gone(error.to_string()),
        }
    }
}

/// Whether a read timed out.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn on_frame(
    shared: &Shared,
    peer: &Peer,
    session: &Session,
    lane: Lane,
    frame: &Frame,
) -> Result<(), String> {
    let bytes = plain_body(frame, limit(lane)).map_err(|error| error.to_string())?;
    peer.link.count_received(lane, bytes.len(), HEADER_LEN + frame.body.len());
    match (frame.kind, lane) {
        (Kind::Message, _) => {
            (shared.events)(TransportEvent::Frame { from: session.peer, lane, bytes });
        }
        (Kind::Ping, Lane::Control) if bytes.len() == 8 => {
            // The body is copied, so that eight bytes in a delay queue do not keep a read buffer
            // alive.
            session.send(Lane::Control, Kind::Pong, Bytes::copy_from_slice(&bytes));
        }
        (Kind::Pong, Lane::Control) => {
            let sent = bytes.first_chunk().map(|nanos| u64::from_le_bytes(*nanos));
            let took = sent.and_then(|nanos| {
                let sent: Instant = shared.started.checked_add(Duration::from_nanos(nanos))?;
                Instant::now().checked_duration_since(sent)
            });
            peer.link.record_round_trip(took.ok_or("a pong without a ping")?);
        }
        (kind, _) => return Err(format!("unexpected {kind:?} frame")),
    }
    Ok(())
}
