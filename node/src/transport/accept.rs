//! The listener: each connection sends a hello, is checked, and becomes a peer's lane or a client.
//!
//! Each connection has its own thread from the start, so that one that sends nothing, or garbage,
//! does not delay others. It has [`HANDSHAKE_MAX`] to send its hello.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pangea_core::protocol::Lane;

use super::frame::{self, Decoder, Frame, Kind};
use super::hello::{Hello, PeerHello, Refusal};
use super::lifetime::Open;
use super::peer::Peer;
use super::session::{self, Connection, Session, is_timeout, lane_decoder};
use super::shared::Shared;
use super::{CLIENTS_MAX, REFUSED};
use crate::client;

/// Timeout for the other side to send a hello, or to answer it. It is above the longest emulated
/// round trip.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// The pause of the listener when the process has run out of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A peer's first lane, waiting for the second.
#[derive(Debug)]
pub(crate) struct Parked {
    hello: PeerHello,
    stream: Arc<TcpStream>,
    _open: Open,
}

/// Accepts connections until the transport stops.
pub(crate) fn run_listener(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        if shared.is_stopping() {
            return;
        }
        match accepted {
            Ok((stream, address)) => {
                let on_thread = shared.clone();
                let greet = move || greet(&on_thread, stream, address);
                if let Err(error) = shared.spawn(format!("accept {address}"), greet) {
                    shared.trouble(
                        None,
                        address,
                        &format!("connection refused: can't start a thread: {error}"),
                    );
                }
            }
            // The connection was closed before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                let reason = format!("can't accept a connection: {error}");
                shared.trouble(None, shared.listen_address, &reason);
                if shared.wait_for_stop(ACCEPT_REST) {
                    return;
                }
            }
        }
    }
}

/// Reads one frame before a deadline.
pub(crate) fn read_frame_until(
    mut stream: &TcpStream,
    decoder: &mut Decoder,
    deadline: Instant,
) -> Result<Frame, String> {
    loop {
        if let Some(frame) = decoder.next_frame().map_err(|error| error.to_string())? {
            return Ok(frame);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("no data for {} s in the handshake", HANDSHAKE_MAX.as_secs()));
        }
        stream.set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
        match stream.read(decoder.space()) {
            Ok(0) => return Err("connection closed during the handshake".to_owned()),
            Ok(len) => decoder.advance(len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn greet(shared: &Arc<Shared>, stream: TcpStream, address: SocketAddr) {
    let stream = Arc::new(stream);
    let Some(open) = shared.open(&stream) else {
        if !shared.is_stopping() {
            shared.trouble(None, address, "connection refused: too many connections");
        }
        return;
    };
    if let Err(error) = super::set_up(&stream) {
        shared.trouble(
            None,
            address,
            &format!("connection refused: can't set socket options: {error}"),
        );
        return;
    }
    // The lane is not known yet, and the smaller buffer is enough for strangers.
    let mut decoder = lane_decoder(Lane::Control);
    let hello = match read_hello(&stream, &mut decoder) {
        Ok(hello) => hello,
        Err(reason) => return refuse(shared, &stream, address, &Refusal(reason)),
    };
    match hello {
        Hello::Peer(hello) => match shared.identity.check_peer(&hello) {
            Ok(()) => on_peer(shared, hello, stream, open),
            Err(refusal) => refuse_peer(shared, &hello, &stream, address, &refusal),
        },
        Hello::Client(hello) => match shared.identity.check_cluster(&hello.cluster) {
            Ok(()) => on_client(shared, address, Connection { stream, decoder }),
            Err(refusal) => refuse(shared, &stream, address, &refusal),
        },
    }
}

fn read_hello(stream: &TcpStream, decoder: &mut Decoder) -> Result<Hello, String> {
    let frame = read_frame_until(stream, decoder, Instant::now() + HANDSHAKE_MAX)?;
    match frame.kind {
        Kind::Hello => Hello::decode(&frame.body).map_err(|refusal| refusal.0),
        kind => Err(format!("{kind:?} frame instead of a hello")),
    }
}

/// Reports the reason to the operator and to the other side, and closes the connection.
fn refuse(shared: &Shared, stream: &TcpStream, address: SocketAddr, refusal: &Refusal) {
    if shared.is_stopping() {
        return;
    }
    shared.trouble(None, address, &format!("connection refused: {refusal}"));
    // Best effort: the other side may have disconnected, or may not be reading.
    let _ = super::write_whole(stream, &frame::encode(Kind::Refused, refusal.0.as_bytes()));
}

/// Like [`refuse`] for a node. A node of this cluster retries continually, and is reported only
/// once.
fn refuse_peer(
    shared: &Shared,
    hello: &PeerHello,
    stream: &TcpStream,
    address: SocketAddr,
    refusal: &Refusal,
) {
    let is_ours = hello.cluster == shared.identity.cluster;
    let Some(peer) = shared.peer(hello.from).filter(|_| is_ours) else {
        return refuse(shared, stream, address, refusal);
    };
    if !shared.is_stopping() {
        peer.report(shared, &format!("{REFUSED}{refusal}"));
        let _ = super::write_whole(stream, &frame::encode(Kind::Refused, refusal.0.as_bytes()));
    }
}

/// Serves an accepted client, unless too many are connected.
fn on_client(shared: &Shared, address: SocketAddr, connection: Connection) {
    if shared.clients.fetch_add(1, Ordering::AcqRel) < CLIENTS_MAX {
        client::serve(shared, address, connection);
    } else {
        let refusal = Refusal(format!("the limit of {CLIENTS_MAX} clients is reached"));
        refuse(shared, &connection.stream, address, &refusal);
    }
    shared.clients.fetch_sub(1, Ordering::AcqRel);
}

/// Handles a lane of an accepted peer: the first lane of a session waits, and the second starts it.
fn on_peer(shared: &Arc<Shared>, hello: PeerHello, stream: Arc<TcpStream>, open: Open) {
    let peer = shared.peer(hello.from).expect("the hello was checked");
    if peer.link.is_cut() {
        // The link is cut, so the welcome would not get through. The dialer retries.
        return;
    }
    let Some((control, bulk)) = pair(peer, Parked { hello, stream, _open: open }) else { return };
    if shared.wait_for_stop(peer.link.delay()) {
        return;
    }
    let id = control.hello.session;
    let session = Arc::new(Session::new(id, peer.id, &control.stream, &bulk.stream));
    if peer.start_session(shared, &session).is_err() {
        return;
    }
    match welcome(&control).and_then(|()| welcome(&bulk)) {
        Ok(()) => {
            let (control, bulk) = (lane_decoder(Lane::Control), lane_decoder(Lane::Bulk));
            let reason = session::run(shared, peer, &session, control, bulk);
            if !shared.is_stopping() {
                peer.report(shared, &format!("{reason}; waiting for the peer to reconnect"));
            }
        }
        Err(error) => {
            session.close("the connection was lost before the welcome was sent");
            peer.clear_session();
            peer.end_session();
            let reason = format!("connection lost in the handshake: {error}");
            peer.report(shared, &format!("{reason}; waiting for the peer to reconnect"));
        }
    }
}

/// Returns the two lanes of a session, once both have connected.
fn pair(peer: &Peer, lane: Parked) -> Option<(Parked, Parked)> {
    let mut parked = peer.parked();
    let other = parked.take().filter(|other| {
        other.hello.session == lane.hello.session && other.hello.lane != lane.hello.lane
    });
    let Some(other) = other else {
        *parked = Some(lane);
        return None;
    };
    match Lane::from(lane.hello.lane) {
        Lane::Control => Some((lane, other)),
        Lane::Bulk => Some((other, lane)),
    }
}

fn welcome(lane: &Parked) -> io::Result<()> {
    let is_control = Lane::from(lane.hello.lane) == Lane::Control;
    lane.stream.set_read_timeout(is_control.then_some(session::SILENCE_MAX))?;
    super::write_whole(&lane.stream, &frame::encode(Kind::Welcome, &[]))
}
