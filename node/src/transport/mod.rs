//! How nodes talk: two TCP connections to each peer, and one listener for peers and clients.
//!
//! Bytes come in and bytes go out: what they mean is the driver's matter. To each peer there are
//! two lanes, [`Lane::Control`] and [`Lane::Bulk`], so that an acknowledgement never waits behind a
//! batch. Messages on one lane arrive in order or not at all. A peer is up while both of its lanes
//! are; when either is lost both are closed, and what was on its way is lost.
//!
//! ```text
//! driver --send--> outbox --> delay queue --> writev ==TCP==> read --> frames --> events -->
//!                  bounded    (`wan`)                          CRC32C, LZ4 on the bulk lane
//! ```
//!
//! | file | what |
//! |---|---|
//! | `frame` | the bytes of a frame, checksum, compression, cutting a stream into frames |
//! | `hello` | who is there, and who may stay |
//! | `wan` | emulated delay, jitter, bandwidth and cuts |
//! | `link` | what is measured and counted on the way to a peer |
//! | `outbox` | what waits to be sent, and the thread that sends it |
//! | `sealing` | header and compression, once for all peers |
//! | `peer` | the place that a peer's sessions take, one after the other |
//! | `session` | both lanes of a peer, from `PeerUp` to `PeerDown` |
//! | `dial`, `accept` | how a session begins, on the side with the lower id and on the other |
//! | `shared` | what the threads share |
//! | `lifetime` | what must end on a stop |
//!
//! # Why threads
//!
//! A node has few connections to peers, and a lane is a thread that reads and one that sends,
//! without an executor. Against a bare tokio connection (no checksum, no delay queue) on two cores,
//! both ends in one process, 200-byte frames: one at a time 52 us of CPU a frame against 46, twenty
//! at a time 4.4 against 4.2, a thousand at a time 0.5 against 0.4, latencies alike. So CPU does
//! not decide, and the rest speaks for threads: emulated delays must be kept to well under a
//! millisecond, which a condition variable does and tokio's timer wheel (1 ms) does not, and a
//! driver that is busy holds a lane up by not returning from its callback.
//!
//! # What it does not do
//!
//! No TLS and no authentication yet: whoever reaches the port is believed. Cutting and changing
//! links is for clients on loopback alone.

mod accept;
mod dial;
pub(crate) mod frame;
#[cfg(test)]
mod fuzz;
mod hello;
mod lifetime;
mod link;
mod outbox;
mod peer;
mod sealing;
mod session;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
mod wan;

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use pangea_core::topology::Topology;
use socket2::{SockRef, TcpKeepalive};

use crate::client::{ClientCall, ClientQuery};
use crate::meter::Meter;

pub use frame::{BULK_FRAME_MAX, CLIENT_FRAME_MAX, CONTROL_FRAME_MAX, WIRE_VERSION};
pub use link::{LaneReport, LinkReport, RoundTrip};
pub use outbox::{BULK_QUEUE_BYTES_MAX, CONTROL_QUEUE_BYTES_MAX};
pub use session::SILENCE_MAX;
pub use wan::{BANDWIDTH_BITS_MIN, LinkSettings, ONE_WAY_MAX, Wan};

pub(crate) use hello::{ClientHello, ClientWelcome, Hello};
pub(crate) use outbox::write_slices;
pub(crate) use session::{Connection, Ended, read_frames};
pub(crate) use shared::Shared;

use frame::Kind;

/// How long a connection is idle before the other host is asked whether it is there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// How often it is asked, up to the system's number of times.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// How many clients are served at the same time. Peers are not counted: they always get in.
const CLIENTS_MAX: usize = if cfg!(test) { 16 } else { 1_024 };

/// What a reason of trouble begins with where the peer is there and does not take this node.
pub const REFUSES: &str = "it refuses this node";

/// What a transport needs to know.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// The cluster's name. Peers and clients of another are refused.
    pub cluster: String,
    /// The commit protocol's name. Peers that run another are refused.
    pub protocol: &'static str,
    /// A hash of the names of the procedures: peers that have others are refused.
    pub fingerprint: u64,
    /// This node.
    pub me: NodeId,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// Where peers and clients connect.
    pub listen: SocketAddr,
    /// Where each other node listens.
    pub peers: Vec<(NodeId, SocketAddr)>,
    /// How far apart the regions are made to be, or as they are.
    pub wan: Option<Wan>,
    /// What is told how long sending and receiving takes, if anything is.
    pub meter: Option<Arc<Meter>>,
    /// Whether the bulk lane is compressed.
    pub compression: Compression,
}

/// What happens to frames on the bulk lane that are large enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// They go as they are.
    Off,
    /// LZ4, where it saves an eighth or more. A receiver takes both.
    #[default]
    Lz4,
}

/// What a transport tells its driver, on its own threads. A callback that blocks holds up the
/// connection that the event came from, and no other; it must return when the driver stops.
#[derive(Debug)]
pub enum TransportEvent {
    /// Both lanes to a peer are connected.
    PeerUp(NodeId),
    /// A lane to a peer was lost: no frame of it comes until it is up again.
    PeerDown(NodeId),
    /// A peer sent a frame.
    Frame {
        /// Which peer.
        from: NodeId,
        /// On which lane.
        lane: Lane,
        /// What. A slice of a read buffer: copy what is to be kept for long.
        bytes: Bytes,
    },
    /// A client wants transactions, in the order in which it sent them. Never empty.
    Submit(Vec<ClientCall>),
    /// A client wants to know something.
    Query(ClientQuery),
    /// Something that an operator should read: a connection was refused, lost, or can't be made.
    /// Said once for a peer until the reason changes.
    Trouble {
        /// The peer, where it is known.
        peer: Option<NodeId>,
        /// The other side's address, or ours where it is ours.
        address: SocketAddr,
        /// What happened.
        reason: String,
    },
    /// A thread is gone without which there is no talking to peers: which, and why.
    Panicked(String),
}

/// The driver's ear.
pub type Events = Arc<dyn Fn(TransportEvent) + Send + Sync>;

/// Why a transport did not start.
#[derive(Debug)]
pub enum TransportError {
    /// The address can't be listened on.
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The configuration is not one that a transport can run.
    Config(String),
    /// The system has no thread for it.
    Thread(io::Error),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, error } => write!(f, "can't listen on {address}: {error}"),
            Self::Config(reason) => f.write_str(reason),
            Self::Thread(error) => write!(f, "can't start a thread: {error}"),
        }
    }
}

impl std::error::Error for TransportError {}

/// One node's connections. Stops when dropped.
pub struct Transport {
    shared: Arc<Shared>,
}

impl Transport {
    /// Listens, and dials the peers that are ours to dial.
    ///
    /// # Errors
    /// When the configuration makes no sense or the address can't be had.
    pub fn start(config: TransportConfig, events: Events) -> Result<Self, TransportError> {
        check(&config).map_err(TransportError::Config)?;
        let cannot_listen = |error| TransportError::Listen { address: config.listen, error };
        let listener = TcpListener::bind(config.listen).map_err(cannot_listen)?;
        let listen_address = listener.local_addr().map_err(cannot_listen)?;
        let shared = Arc::new(Shared::new(config, listen_address, events));
        let transport = Self { shared: shared.clone() };
        let spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            shared.spawn(name, run).map_err(TransportError::Thread)
        };
        let on_thread = shared.clone();
        let listen = move || accept::run_listener(&on_thread, &listener);
        spawn("listen".to_owned(), Box::new(listen))?;
        for &peer in shared.peers.keys().filter(|&&peer| shared.identity.me < peer) {
            let on_thread = shared.clone();
            let dial = move || dial::run_dialer(&on_thread, &on_thread.peers[&peer]);
            spawn(format!("dial {peer}"), Box::new(dial))?;
        }
        let on_thread = shared.clone();
        spawn("ping".to_owned(), Box::new(move || on_thread.run_pinger()))?;
        Ok(transport)
    }

    /// The address that it listens on, its port chosen by the system where the configuration said
    /// 0.
    pub fn local_address(&self) -> SocketAddr {
        self.shared.listen_address
    }

    /// Sends a frame to a peer. Never blocks and never calls the driver back. It is dropped when
    /// the peer is down. When the lane's queue is full, or the frame is over the lane's limit, the
    /// connection is reset, and [`TransportEvent::PeerDown`] follows.
    ///
    /// # Panics
    /// When `to` is this node or none.
    pub fn send(&self, to: NodeId, lane: Lane, frame: Bytes) {
        let peer = self.shared.peer(to).expect("a message goes to a peer");
        if let Some(session) = peer.session() {
            session.send(lane, Kind::Message, frame);
        }
    }

    /// What is known of the way to each peer, in order.
    pub fn links(&self) -> Vec<LinkReport> {
        self.shared.links()
    }

    /// Holds everything that this node sends to `peer`. False when there is no such peer.
    pub fn cut(&self, peer: NodeId) -> bool {
        self.shared.cut(peer)
    }

    /// Lets through what is held for every peer.
    pub fn heal(&self) {
        self.shared.heal();
    }

    /// Changes what is emulated on the way to `peer`.
    ///
    /// # Errors
    /// When there is no such peer, or a value is out of range.
    pub fn set_link(&self, peer: NodeId, settings: LinkSettings) -> Result<(), String> {
        self.shared.set_link(peer, settings)
    }

    /// Closes everything and waits until no thread is left. Events may come until it returns, and
    /// none after.
    pub fn stop(&self) {
        self.shared.stop();
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stop();
    }
}

fn check(config: &TransportConfig) -> Result<(), String> {
    let TransportConfig { me, topology, peers, wan, .. } = config;
    let named: BTreeSet<NodeId> = peers.iter().map(|&(peer, _)| peer).collect();
    if me.index() >= topology.node_count() {
        return Err(format!("this node, {me}, is not in the cluster's configuration"));
    }
    if named.len() != peers.len() || !topology.peers_of(*me).eq(named) {
        return Err(format!("the peers of {me} must be every other node, each once"));
    }
    wan.as_ref().map_or(Ok(()), |wan| wan.check(topology.regions.len()))
}

/// Sends small frames at once, and notices on an idle connection that the other host is gone.
pub(crate) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Writes a small frame in one piece.
pub(crate) fn write_whole(mut stream: &TcpStream, frame: &[u8]) -> io::Result<()> {
    stream.write_all(frame)
}
