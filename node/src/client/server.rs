//! A client's connection on the node: one thread reads requests and another writes answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use super::reply::{Answers, ClientCall, ClientQuery, ClientReply};
use super::wire::{Answer, Query, decode_query, decode_submit};
use crate::meter::Tap;
use crate::panics::caught;
use crate::transport::frame::{self, Frame, Kind};
use crate::transport::{
    CLIENT_FRAME_MAX, ClientWelcome, Connection, Ended, Shared, TransportEvent, read_frames,
    write_whole,
};

/// Serves a client after the handshake, until it disconnects.
pub(crate) fn serve(shared: &Shared, address: SocketAddr, connection: Connection) {
    let Connection { stream, mut decoder } = connection;
    let welcome = ClientWelcome {
        node: shared.identity.me,
        region: shared.region.clone(),
        protocol: shared.identity.protocol.to_owned(),
    };
    let body = postcard::to_allocvec(&welcome).expect("a welcome can be encoded");
    let welcomed = stream
        .set_read_timeout(None)
        .and_then(|()| write_whole(&stream, &frame::encode(Kind::Welcome, &body)));
    if welcomed.is_err() {
        // The client disconnected before it was welcomed.
        return;
    }
    decoder.set_limit(CLIENT_FRAME_MAX);
    let answers = Arc::new(Answers::new(&stream));
    thread::scope(|scope| {
        let write = || {
            // A failed write ends the connection, and the reader with it.
            let write = || drop(answers.run_writer(Tap::new(shared.meter.as_ref())));
            caught("answer", write, |reason| shared.trouble(None, address, &reason));
            answers.close();
        };
        let writer = thread::Builder::new().name(format!("answer {address}"));
        if let Err(error) = writer.spawn_scoped(scope, write) {
            shared.trouble(None, address, &format!("can't start a thread for a client: {error}"));
            return;
        }
        let disconnected = |reason: String| {
            shared.trouble(None, address, &format!("client disconnected: {reason}"));
        };
        let read = || {
            let mut tap = Tap::new(shared.meter.as_ref());
            let ended = read_frames(&stream, &mut decoder, |frame| {
                let calls = on_frame(shared, address, &answers, &frame)?;
                if calls > 0 {
                    tap.did("client_request", 1, calls);
                }
                Ok(())
            });
            if let Ended::Wrong(reason) = ended {
                disconnected(reason);
            }
        };
        // A bug triggered by one client does not disconnect the others.
        caught("client", read, disconnected);
        answers.close();
    });
}

/// Handles a frame, and returns the number of its calls.
fn on_frame(
    shared: &Shared,
    address: SocketAddr,
    answers: &Arc<Answers>,
    frame: &Frame,
) -> Result<usize, String> {
    if frame.flags != 0 {
        return Err("clients' frames are not compressed".to_owned());
    }
    match frame.kind {
        Kind::Submit => {
            let calls = decode_submit(&frame.body).map_err(|error| error.to_string())?;
            let calls: Vec<ClientCall> = calls
                .into_iter()
                .map(|call| ClientCall {
                    procedure: call.procedure,
                    args: call.args,
                    reply: ClientReply::new(call.request, answers),
                })
                .collect();
            let count = calls.len();
            if count > 0 {
                (shared.events)(TransportEvent::Submit(calls));
            }
            Ok(count)
        }
        Kind::Query => {
            let (request, query) = decode_query(&frame.body).map_err(|error| error.to_string())?;
            on_query(shared, address, query, ClientReply::new(request, answers));
            Ok(0)
        }
        kind => Err(format!("unexpected {kind:?} frame")),
    }
}

/// Answers queries about the transport, and passes on all others.
fn on_query(shared: &Shared, address: SocketAddr, query: Query, reply: ClientReply) {
    let is_link_change = matches!(query, Query::Cut { .. } | Query::Heal | Query::SetLink { .. });
    if is_link_change && !address.ip().to_canonical().is_loopback() {
        return reply.refuse("links can only be changed from a loopback address");
    }
    let me = shared.identity.me;
    match query {
        Query::Links => reply.send(&Answer::Links(shared.links())),
        Query::Cut { from, .. } if from != me => {
            reply.refuse(format!("this is {me}: messages from {from} can only be cut there"));
        }
        Query::Cut { to, .. } if !shared.cut(to) => {
            reply.refuse(format!("{to} is not a peer of {me}"));
        }
        Query::Cut { .. } => reply.send(&Answer::Done),
        Query::Heal => {
            shared.heal();
            reply.send(&Answer::Done);
        }
        Query::SetLink { to, settings } => match shared.set_link(to, settings) {
            Ok(()) => reply.send(&Answer::Done),
            Err(reason) => reply.refuse(reason),
        },
        Query::Status
        | Query::Digest { .. }
        | Query::Fresh
        | Query::Table { .. }
        | Query::LatencySamples
        | Query::Pin { .. }
        | Query::Unpin { .. }
        | Query::Check { .. } => {
            (shared.events)(TransportEvent::Query(ClientQuery { query, reply }));
        }
    }
}
