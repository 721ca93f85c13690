//! Connections between nodes: two TCP connections to each peer, and one listener for peers and
//! clients.
//!
//! The transport carries bytes; the driver interprets them. There are two lanes to each peer,
//! [`Lane::Control`] and [`Lane::Bulk`], so that an acknowledgement never waits behind a batch.
//! Messages on one lane arrive in order or not at all. A peer is up while both of its lanes are.
//! When either is lost, both are closed, and messages in flight are lost.
//!
//! ```text
//! driver --send--> outbox --> delay queue --> writev ==TCP==> read --> frames --> events -->
//!                  bounded    (`wan`)                          CRC32C, LZ4 on the bulk lane
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `frame` | the encoding of a frame, checksum, compression, splitting a stream into frames |
//! | `hello` | identification and checks of the other side |
//! | `likeness` | what must be the same on all nodes, and what differs |
//! | `wan` | emulated delay, jitter, bandwidth and cuts |
//! | `link` | measurements and counters of the link to a peer |
//! | `outbox` | the queue of a lane, and the thread that sends it |
//! | `sealing` | header and compression, once for all peers |
//! | `peer` | the slot that a peer's sessions occupy, one after the other |
//! | `session` | both lanes of a peer, from `PeerUp` to `PeerDown` |
//! | `dial`, `accept` | the start of a session, on the side with the lower id and on the other |
//! | `shared` | the state shared by the threads |
//! | `lifetime` | threads and connections that must end on a stop |
//!
//! # Why threads
//!
//! A node has few connections to peers, and a lane is one thread that reads and one that sends,
//! without an executor. We compared this with a bare tokio connection (no checksum, no delay queue)
//! on two cores, both ends in one process, with 200-byte frames. The CPU time per frame was 52 us
//! against 46 one at a time, and 4.4 against 4.2 twenty at a time. A thousand at a time it was 0.5
//! against 0.4. Latencies were equal. CPU time is therefore not decisive, and other reasons favour
//! threads. Emulated delays must be exact to well under a millisecond, which a condition variable
//! achieves and tokio's timer wheel (1 ms) does not. A busy driver slows a lane down simply by not
//! returning from its callback.
//!
//! # Limitations
//!
//! There is no TLS and no authentication yet: every client that reaches the port is trusted. Only
//! clients on loopback can cut and change links.

mod accept;
mod dial;
pub(crate) mod frame;
mod frame_encoder;
#[cfg(test)]
mod fuzz;
mod hello;
mod lifetime;
mod likeness;
mod link;
mod outbox;
mod peer;
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
use std::time::{Duration, Instant};

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use pangea_core::topology::Topology;
use socket2::{SockRef, TcpKeepalive};

use crate::client::{ClientCall, ClientQuery};
use crate::meter::Meter;

pub use frame::{BULK_FRAME_MAX, CLIENT_FRAME_MAX, CONTROL_FRAME_MAX, WIRE_VERSION};
pub use likeness::Likeness;
pub use link::{LaneReport, LinkReport, RoundTrip};
pub use outbox::{BULK_QUEUE_BYTES_MAX, CONTROL_QUEUE_BYTES_MAX};
pub use session::SILENCE_MAX;
pub use wan::{BANDWIDTH_BITS_MIN, LinkSettings, ONE_WAY_MAX, Wan};

pub(crate) use hello::{ClientHello, ClientWelcome, Hello};
pub(crate) use outbox::write_slices;
pub(crate) use session::{Connection, Ended, read_frames};
pub(crate) use shared::Shared;

use frame::Kind;

/// The idle time of a connection before keepalive probes are sent.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// The interval between keepalive probes; the operating system limits their number.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// The maximum number of clients. Peers are not counted: they are always admitted.
const CLIENTS_MAX: usize = if cfg!(test) { 16 } else { 1_024 };

/// The time limit for sending what is queued when a node ends: longer than the longest emulated
/// delay, and shorter than the silence after which a peer closes the connection.
const FINISH_MAX: Duration = Duration::from_millis(2_500);

/// The prefix of a trouble's reason if the peer is reachable and refuses this node.
pub const REFUSES: &str = "it refuses this node";

/// The prefix of a trouble's reason if this node refuses the peer.
pub const REFUSED: &str = "refused: ";

/// The configuration of a transport.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// The cluster's name. Peers and clients of another cluster are refused.
    pub cluster: String,
    /// The commit protocol's name. Peers that run another protocol are refused.
    pub protocol: &'static str,
    /// A hash of the procedures, the protocol's settings and the partitioning. Peers with another
    /// hash are refused.
    pub fingerprint: u64,
    /// What the hash is of, so that a refusal can say what differs.
    pub likeness: Likeness,
    /// This node.
    pub me: NodeId,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// The address that peers and clients connect to.
    pub listen: SocketAddr,
    /// The address that each other node listens on.
    pub peers: Vec<(NodeId, SocketAddr)>,
    /// The emulated distances between the regions; `None` without emulation.
    pub wan: Option<Wan>,
    /// Meter that records the cost of sending and receiving, if metering is on.
    pub meter: Option<Arc<Meter>>,
    /// Whether the bulk lane is compressed.
    pub compression: Compression,
}

/// The compression of frames on the bulk lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Frames are sent uncompressed.
    Off,
    /// LZ4, if it saves an eighth or more. A receiver accepts both.
    #[default]
    Lz4,
}

/// A transport's event for its driver, delivered on the transport's threads. A callback that blocks
/// delays only the connection that the event came from. It must return when the driver stops.
#[derive(Debug)]
pub enum TransportEvent {
    /// Both lanes to a peer are connected.
    PeerUp(NodeId),
    /// A lane to a peer was lost. No frame from the peer arrives until it is up again.
    PeerDown(NodeId),
    /// A peer sent a frame.
    Frame {
        /// The peer.
        from: NodeId,
        /// The lane.
        lane: Lane,
        /// The frame's body. It is a slice of a read buffer; copy it to retain it for long.
        bytes: Bytes,
    },
    /// A client's calls, in the order in which it sent them. Never empty.
    Submit(Vec<ClientCall>),
    /// A client's query.
    Query(ClientQuery),
    /// A warning for the operator: a connection was refused or lost, or can't be made. Sent once
    /// for a peer until the reason changes.
    Trouble {
        /// The peer, if known.
        peer: Option<NodeId>,
        /// The other side's address, or ours if the problem is local.
        address: SocketAddr,
        /// Description of the problem.
        reason: String,
    },
    /// A thread has panicked without which there is no communication with peers: which one, and the
    /// message.
    Panicked(String),
}

/// The driver's callback for events.
pub type Events = Arc<dyn Fn(TransportEvent) + Send + Sync>;

/// The reason why a transport did not start.
#[derive(Debug)]
pub enum TransportError {
    /// The address can't be listened on.
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        error: io::Error,
    },
    /// The configuration is invalid.
    Config(String),
    /// The operating system can't create a thread.
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
    /// Listens, and dials the peers with higher ids.
    ///
    /// # Errors
    /// When the configuration is invalid or the address is in use.
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

    /// The address that it listens on. The operating system chooses the port if the configured one
    /// is 0.
    pub fn local_address(&self) -> SocketAddr {
        self.shared.listen_address
    }

    /// Sends a frame to a peer. Never blocks and never calls the driver back. The frame is dropped
    /// if the peer is down. If the lane's queue is full, or the frame exceeds the lane's limit, the
    /// connection is reset, and [`TransportEvent::PeerDown`] follows.
    ///
    /// # Panics
    /// When `to` is this node or does not exist.
    pub fn send(&self, to: NodeId, lane: Lane, frame: Bytes) {
        let peer = self.shared.peer(to).expect("a message has a peer as its destination");
        if let Some(session) = peer.session() {
            session.send(lane, Kind::Message, frame);
        }
    }

    /// Reports on the link to each peer, by node id.
    pub fn links(&self) -> Vec<LinkReport> {
        self.shared.links()
    }

    /// Delays all frames from this node to `peer`. False if there is no such peer.
    pub fn cut(&self, peer: NodeId) -> bool {
        self.shared.cut(peer)
    }

    /// Releases the delayed frames of all peers.
    pub fn heal(&self) {
        self.shared.heal();
    }

    /// Changes the emulated link to `peer`.
    ///
    /// # Errors
    /// When there is no such peer, or a value is out of range.
    pub fn set_link(&self, peer: NodeId, settings: LinkSettings) -> Result<(), String> {
        self.shared.set_link(peer, settings)
    }

    /// Sends the frames that are queued, including delayed ones, and waits until the peers have
    /// read them, for a bounded time. Then stops. A peer that is paused or cut off does not read
    /// them.
    pub fn finish(&self) {
        self.shared.finish(Instant::now() + FINISH_MAX);
        self.stop();
    }

    /// Closes all connections and waits until all threads have ended. No event arrives after it
    /// returns.
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
    if topology.all_ids().all(|node| node != *me) {
        return Err(format!("this node, {me}, is not in the cluster's configuration"));
    }
    if named.len() != peers.len() || !topology.neighbors_of(*me).eq(named) {
        return Err(format!("the peers of {me} must be all other nodes, each once"));
    }
    wan.as_ref().map_or(Ok(()), |wan| wan.check(topology.regions.len()))
}

/// Disables Nagle's algorithm, and enables keepalive to detect that an idle connection's host is
/// gone.
pub(crate) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Writes a small frame in one call.
pub(crate) fn write_whole(mut stream: &TcpStream, frame: &[u8]) -> io::Result<()> {
    stream.write_all(frame)
}
