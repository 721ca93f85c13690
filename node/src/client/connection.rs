//! The task of a client: connects, writes requests, reads answers, and reconnects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::library::Shared;
use super::wire::decode_answers;
use crate::transport::frame::{self, Decoder, Frame, Kind};
use crate::transport::{CLIENT_FRAME_MAX, ClientHello, ClientWelcome, Hello};

/// The size of the read buffer: some thousand outcomes.
const BUFFER_LEN: usize = 256 << 10;
/// Timeout for a node to accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The first delay before reconnecting.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest delay before reconnecting.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// A connection that the node has accepted.
pub(super) struct Connected {
    pub welcome: ClientWelcome,
    stream: TcpStream,
    decoder: Decoder,
}

/// Connects and sends the hello.
pub(super) async fn open(address: SocketAddr, cluster: &str) -> Result<Connected, String> {
    let greeted = timeout(CONNECT_MAX, greet(address, cluster)).await;
    greeted.unwrap_or_else(|_| {
        Err(format!("the node sent no welcome within {} s", CONNECT_MAX.as_secs()))
    })
}

async fn greet(address: SocketAddr, cluster: &str) -> Result<Connected, String> {
    let in_words = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).await.map_err(in_words)?;
    stream.set_nodelay(true).map_err(in_words)?;
    let hello = Hello::Client(ClientHello { cluster: cluster.to_owned() });
    let hello = frame::encode(Kind::Hello, &hello.encode());
    stream.write_all(&hello).await.map_err(in_words)?;
    let mut decoder = Decoder::new(BUFFER_LEN, CLIENT_FRAME_MAX);
    let frame = loop {
        if let Some(frame) = decoder.next_frame().map_err(|error| error.to_string())? {
            break frame;
        }
        match stream.read(decoder.space()).await.map_err(in_words)? {
            0 => return Err("connection closed by the node".to_owned()),
            len => decoder.advance(len),
        }
    };
    match frame.kind {
        Kind::Welcome => {
            let welcome = postcard::from_bytes(&frame.body);
            let welcome = welcome.map_err(|_| "malformed welcome".to_owned())?;
            Ok(Connected { welcome, stream, decoder })
        }
        Kind::Refused => Err(String::from_utf8_lossy(&frame.body).into_owned()),
        kind => Err(format!("{kind:?} frame instead of a welcome")),
    }
}

/// Keeps a client connected until its last clone is dropped.
pub(super) async fn run(shared: Arc<Shared>, mut connected: Connected) {
    loop {
        let (reader, writer) = connected.stream.into_split();
        let mut reading = tokio::spawn(read(shared.clone(), reader, connected.decoder));
        let writing = write(&shared, writer);
        let reason = tokio::select! {
            reason = writing => {
                reading.abort();
                reason
            }
            reason = &mut reading => {
                reason.unwrap_or_else(|_| "the runtime is stopping".to_owned())
            }
        };
        shared.on_lost(&reason);
        match reconnect(&shared).await {
            Some(again) => connected = again,
            None => return,
        }
        shared.on_connected();
    }
}

/// Returns the next connection, or `None` once the client has been dropped.
async fn reconnect(shared: &Shared) -> Option<Connected> {
    let mut backoff = BACKOFF_MIN;
    while !shared.is_dropped() {
        match open(shared.address, &shared.cluster).await {
            // Another node of the cluster may have this address by now. This client is bound to the
            // node that it first connected to.
            Ok(connected) if connected.welcome == shared.welcome => return Some(connected),
            Ok(_) | Err(_) => tokio::time::sleep(backoff).await,
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
    None
}

/// Writes all pending requests at a time until the connection fails or the client is dropped, and
/// returns the reason.
async fn write(shared: &Shared, mut stream: OwnedWriteHalf) -> String {
    let mut bytes = Vec::new();
    loop {
        let outgoing = shared.take_outgoing();
        for (kind, bodies) in [(Kind::Submit, &outgoing.submits), (Kind::Query, &outgoing.queries)]
        {
            for body in bodies {
                bytes.extend_from_slice(&frame::header(kind, 0, body));
                bytes.extend_from_slice(body);
            }
        }
        if bytes.is_empty() {
            if outgoing.is_dropped {
                return "the client was dropped".to_owned();
            }
            shared.outgoing.notified().await;
            // Other tasks that are ready to call get into the same frame.
            tokio::task::yield_now().await;
        } else {
            if let Err(error) = stream.write_all(&bytes).await {
                return error.to_string();
            }
            bytes.clear();
        }
    }
}

/// Reads answers until the connection ends, and returns the reason.
async fn read(shared: Arc<Shared>, mut stream: OwnedReadHalf, mut decoder: Decoder) -> String {
    loop {
        loop {
            let taken = match decoder.next_frame() {
                Ok(Some(frame)) => on_frame(&shared, &frame),
                Ok(None) => break,
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = taken {
                return reason;
            }
        }
        match stream.read(decoder.space()).await {
            Ok(0) => return "connection closed by the node".to_owned(),
            Ok(len) => decoder.advance(len),
            Err(error) => return error.to_string(),
        }
    }
}

fn on_frame(shared: &Shared, frame: &Frame) -> Result<(), String> {
    match frame.kind {
        Kind::Answers => {
            let answers = decode_answers(&frame.body).map_err(|error| error.to_string())?;
            shared.on_answers(answers)
        }
        kind => Err(format!("unexpected {kind:?} frame")),
    }
}
