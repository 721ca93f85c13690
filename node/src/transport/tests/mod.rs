//! Tests of transports against each other, and against strangers, on loopback.

mod emulation;
mod endings;
mod hostile;
mod peers;
mod sessions;

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use pangea_core::time::Span;
use pangea_core::topology::Topology;

use super::{Compression, Likeness, Transport, TransportConfig, TransportEvent, Wan};

/// Timeout for events that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A transport with a queue of its events.
pub(crate) struct TestNode {
    pub id: NodeId,
    pub transport: Transport,
    /// The events with their times.
    events: Mutex<Receiver<(Instant, TransportEvent)>>,
}

pub(crate) fn topology(nodes: usize) -> Arc<Topology> {
    let regions = ["a", "b", "c", "d"];
    Arc::new(Topology::one_node_per_region("test", &regions[..nodes], Span::ZERO))
}

/// A node's configuration, with a port chosen by the operating system. Only peers with higher ids
/// are dialed, so the addresses of the others are irrelevant.
pub(crate) fn config(me: u16, peers: &[(NodeId, SocketAddr)], nodes: usize) -> TransportConfig {
    let topology = topology(nodes);
    let address = |id: NodeId| peers.iter().find(|(peer, _)| *peer == id).map(|&(_, at)| at);
    TransportConfig {
        cluster: "test".to_owned(),
        protocol: "echo",
        fingerprint: 7,
        likeness: Likeness::default(),
        me: NodeId(me),
        listen: loopback(0),
        peers: topology
            .peers_of(NodeId(me))
            .map(|id| (id, address(id).unwrap_or(loopback(1))))
            .collect(),
        topology,
        wan: None,
        meter: None,
        compression: Compression::Lz4,
    }
}

impl TestNode {
    pub(crate) fn start(config: TransportConfig) -> Self {
        let id = config.me;
        let (sender, events) = channel();
        let sender = Mutex::new(sender);
        let on_event = move |event| {
            // The test may have ended.
            let _ = sender.lock().unwrap().send((Instant::now(), event));
        };
        let transport = Transport::start(config, Arc::new(on_event)).unwrap();
        Self { id, transport, events: Mutex::new(events) }
    }

    /// Waits for the next event that `pick` accepts, and skips all others.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        mut pick: impl FnMut(Instant, TransportEvent) -> Option<T>,
    ) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (at, event) = self
                .events
                .lock()
                .unwrap()
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("{}: no {what} within {PATIENCE:?}", self.id));
            if let Some(picked) = pick(at, event) {
                return picked;
            }
        }
    }

    pub(crate) fn wait_up(&self, peer: &Self) {
        self.wait("PeerUp", |_, event| {
            matches!(event, TransportEvent::PeerUp(id) if id == peer.id).then_some(())
        });
    }

    pub(crate) fn wait_down(&self, peer: &Self) {
        self.wait("PeerDown", |_, event| {
            matches!(event, TransportEvent::PeerDown(id) if id == peer.id).then_some(())
        });
    }

    /// Waits for the next frame, and returns it with its time. The session must not end before it.
    pub(crate) fn wait_frame(&self) -> (Instant, NodeId, Lane, Bytes) {
        self.wait("Frame", |at, event| match event {
            TransportEvent::Frame { from, lane, bytes } => Some((at, from, lane, bytes)),
            TransportEvent::PeerDown(id) => panic!("{}: {id} went down", self.id),
            _ => None,
        })
    }

    /// Waits for the next trouble whose reason contains `text`.
    pub(crate) fn wait_trouble(&self, text: &str) {
        self.wait(&format!("trouble with {text:?}"), |_, event| match event {
            TransportEvent::Trouble { reason, .. } => reason.contains(text).then_some(()),
            _ => None,
        });
    }

    /// Asserts that no event so far satisfies `is_bad`.
    pub(crate) fn assert_none(&self, what: &str, is_bad: impl Fn(&TransportEvent) -> bool) {
        self.assert_none_for(Duration::ZERO, what, is_bad);
    }

    /// Asserts that no event so far, and within `time` from now, satisfies `is_bad`.
    pub(crate) fn assert_none_for(
        &self,
        time: Duration,
        what: &str,
        is_bad: impl Fn(&TransportEvent) -> bool,
    ) {
        let until = Instant::now() + time;
        let events = self.events.lock().unwrap();
        let left = || until.saturating_duration_since(Instant::now());
        while let Ok((_, event)) = events.recv_timeout(left()) {
            assert!(!is_bad(&event), "{}: {what}: {event:?}", self.id);
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.transport.local_address()
    }

    pub(crate) fn send(&self, to: &Self, lane: Lane, frame: impl Into<Bytes>) {
        self.transport.send(to.id, lane, frame.into());
    }
}

/// Starts a cluster, each node configured by `change`, and waits until all nodes are connected.
pub(crate) fn cluster(nodes: usize, change: impl Fn(&mut TransportConfig)) -> Vec<TestNode> {
    let mut started: Vec<TestNode> = Vec::new();
    // The node with the highest id dials no other, so it starts first, and the next one gets its
    // port.
    for id in (0..nodes as u16).rev() {
        let addresses: Vec<_> = started.iter().map(|node| (node.id, node.address())).collect();
        let mut config = config(id, &addresses, nodes);
        change(&mut config);
        started.push(TestNode::start(config));
    }
    started.reverse();
    for node in &started {
        let mut down = nodes - 1;
        node.wait("PeerUp of all", |_, event| {
            down -= usize::from(matches!(event, TransportEvent::PeerUp(_)));
            (down == 0).then_some(())
        });
    }
    started
}

/// An emulated WAN with the same delay everywhere.
pub(crate) fn flat_wan(nodes: usize, one_way: Span) -> Wan {
    Wan { one_way: vec![vec![one_way; nodes]; nodes], jitter: Span::ZERO, bandwidth_bits: None }
}
