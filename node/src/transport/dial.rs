//! Connecting to a peer with a higher id, with retries.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_core::protocol::Lane;

use super::REFUSES;
use super::accept::{HANDSHAKE_MAX, read_frame_until};
use super::frame::{self, Kind};
use super::hello::{Hello, PeerHello, SessionId};
use super::lifetime::Open;
use super::peer::Peer;
use super::session::{self, Connection, Session, lane_decoder};
use super::shared::Shared;

/// The first delay before dialing again; a peer that restarts is back in a moment.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest delay before dialing again.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// The duration of a session after which the next delay is short again.
const GOOD_SESSION: Duration = Duration::from_secs(1);
/// Timeout for a host that does not answer.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Maintains a session with `peer` until the transport stops.
pub(crate) fn run_dialer(shared: &Arc<Shared>, peer: &Peer) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let began = Instant::now();
        if !peer.link.is_cut() {
            if let Err(reason) = dial_and_run(shared, peer)
                && !shared.is_stopping()
            {
                peer.report(shared, &format!("{reason}; reconnecting until the peer answers"));
            }
            backoff = if began.elapsed() >= GOOD_SESSION { BACKOFF_MIN } else { backoff };
        }
        if shared.wait_for_stop(backoff) {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Runs one session from dialing to its end, which is always an error.
fn dial_and_run(shared: &Arc<Shared>, peer: &Peer) -> Result<(), String> {
    let id = SessionId { incarnation: shared.incarnation, attempt: shared.next_attempt() };
    let (control, control_open) = connect(shared, peer)?;
    let (bulk, bulk_open) = connect(shared, peer)?;
    // The hello is the first frame that the emulated WAN delays.
    if shared.wait_for_stop(peer.link.delay()) {
        return Err("stopping".to_owned());
    }
    say_hello(shared, peer, id, Lane::Control, &control)?;
    say_hello(shared, peer, id, Lane::Bulk, &bulk)?;
    let control = await_welcome(control, Lane::Control)?;
    let bulk = await_welcome(bulk, Lane::Bulk)?;
    let session = Arc::new(Session::new(id, peer.id, &control.stream, &bulk.stream));
    peer.start_session(shared, &session)
        .map_err(|_| "the previous connection is still being closed".to_owned())?;
    let reason = session::run(shared, peer, &session, control.decoder, bulk.decoder);
    drop((control_open, bulk_open));
    Err(reason)
}

fn connect(shared: &Arc<Shared>, peer: &Peer) -> Result<(Arc<TcpStream>, Open), String> {
    let stream = TcpStream::connect_timeout(&peer.address, CONNECT_MAX)
        .and_then(|stream| super::set_up(&stream).map(|()| stream))
        .map_err(|error| format!("can't connect: {error}"))?;
    let stream = Arc::new(stream);
    let open = shared.open(&stream).ok_or("stopping")?;
    Ok((stream, open))
}

fn say_hello(
    shared: &Shared,
    peer: &Peer,
    session: SessionId,
    lane: Lane,
    stream: &TcpStream,
) -> Result<(), String> {
    let hello = Hello::Peer(PeerHello {
        cluster: shared.identity.cluster.clone(),
        protocol: shared.identity.protocol.to_owned(),
        fingerprint: shared.identity.fingerprint,
        likeness: shared.identity.likeness.clone(),
        from: shared.identity.me,
        to: peer.id,
        lane: lane.into(),
        session,
    });
    let frame = frame::encode(Kind::Hello, &hello.encode());
    super::write_whole(stream, &frame)
        .map_err(|error| format!("can't connect: connection lost in the handshake: {error}"))
}

fn await_welcome(stream: Arc<TcpStream>, lane: Lane) -> Result<Connection, String> {
    let mut decoder = lane_decoder(lane);
    let frame = read_frame_until(&stream, &mut decoder, Instant::now() + HANDSHAKE_MAX)
        .map_err(|reason| format!("can't connect: {reason}"))?;
    match frame.kind {
        Kind::Welcome => {
            let silence = (lane == Lane::Control).then_some(session::SILENCE_MAX);
            stream.set_read_timeout(silence).map_err(|error| error.to_string())?;
            Ok(Connection { stream, decoder })
        }
        Kind::Refused => Err(format!("{REFUSES}: {}", String::from_utf8_lossy(&frame.body))),
        kind => Err(format!(
            "can't connect: the peer answered with a {kind:?} frame instead of a welcome"
        )),
    }
}
