//! The state shared by the threads of one transport.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pangea_core::ids::NodeId;

use super::frame_encoder::FrameEncoder;
use super::hello::Identity;
use super::lifetime::{Lifetime, Open};
use super::link::{Link, LinkReport};
use super::peer::Peer;
use super::wan::LinkSettings;
use crate::meter::Meter;
use crate::panics::caught;

use super::{Events, TransportConfig, TransportEvent};

/// The interval of pings to each peer, which measure the round trip and detect silence.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Timeout of a stop for connecting to its own listener to wake it.
const WAKE_MAX: Duration = Duration::from_millis(200);

/// The state shared by the transport's threads.
pub(crate) struct Shared {
    pub identity: Identity,
    pub region: String,
    pub events: Events,
    pub meter: Option<Arc<Meter>>,
    pub(super) encoder: FrameEncoder,
    pub listen_address: SocketAddr,
    pub started: Instant,
    pub incarnation: u64,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    pub(super) attempts: AtomicU64,
    pub(super) clients: AtomicUsize,
    pub(super) lifetime: Arc<Lifetime>,
}

impl Shared {
    pub(super) fn new(config: TransportConfig, listen_address: SocketAddr, events: Events) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let incarnation = since_epoch.as_nanos() as u64;
        let topology = &config.topology;
        let peer = |(id, address): (NodeId, SocketAddr)| {
            let settings = config.wan.as_ref().map(|wan| wan.link(topology, config.me, id));
            let seed = incarnation ^ u64::from(id.0);
            (id, Peer::new(id, address, Link::new(settings.unwrap_or_default(), seed)))
        };
        Self {
            identity: Identity {
                cluster: config.cluster.clone(),
                protocol: config.protocol,
                fingerprint: config.fingerprint,
                likeness: config.likeness,
                me: config.me,
                nodes: topology.all_ids().count(),
            },
            region: topology.place_name(config.me),
            events,
            meter: config.meter,
            encoder: FrameEncoder::new(config.compression),
            listen_address,
            started: Instant::now(),
            incarnation,
            peers: config.peers.iter().copied().map(peer).collect(),
            attempts: AtomicU64::new(0),
            clients: AtomicUsize::new(0),
            lifetime: Arc::default(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn peer(&self, id: NodeId) -> Option<&Peer> {
        self.peers.get(&id)
    }

    pub(super) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lifetime.is_stopping()
    }

    pub(super) fn wait_for_stop(&self, time: Duration) -> bool {
        self.lifetime.wait_for_stop(time)
    }

    pub(super) fn open(&self, stream: &Arc<TcpStream>) -> Option<Open> {
        self.lifetime.open(stream)
    }

    pub(super) fn spawn(
        &self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let (thread, events) = (name.clone(), self.events.clone());
        let panicked = move |reason| events(TransportEvent::Panicked(reason));
        self.lifetime.spawn(name, move || caught(&thread, run, panicked))
    }

    pub(crate) fn trouble(&self, peer: Option<NodeId>, address: SocketAddr, reason: &str) {
        (self.events)(TransportEvent::Trouble { peer, address, reason: reason.to_owned() });
    }

    pub(super) fn run_pinger(&self) {
        while !self.wait_for_stop(PING_EVERY) {
            for peer in self.peers.values() {
                if let Some(session) = peer.session() {
                    session.ping(self.elapsed());
                }
            }
        }
    }

    pub(crate) fn links(&self) -> Vec<LinkReport> {
        let report = |peer: &Peer| peer.link.report(peer.id, peer.session().is_some());
        self.peers.values().map(report).collect()
    }

    pub(crate) fn cut(&self, to: NodeId) -> bool {
        let Some(peer) = self.peer(to) else { return false };
        peer.link.cut();
        true
    }

    pub(crate) fn heal(&self) {
        for peer in self.peers.values() {
            peer.link.heal(Instant::now());
            if let Some(session) = peer.session() {
                session.poke();
            }
        }
    }

    pub(crate) fn set_link(&self, to: NodeId, settings: LinkSettings) -> Result<(), String> {
        settings.check()?;
        let peer = self.peer(to).ok_or_else(|| format!("{to} is not a peer of this node"))?;
        peer.link.set(settings);
        Ok(())
    }

    /// Sends what is queued for the peers, and waits until they have read it, until `until`. A
    /// link that is cut loses it, as a real one does.
    pub(super) fn finish(&self, until: Instant) {
        self.lifetime.begin_stop();
        let connected = || self.peers.values().filter(|peer| !peer.link.is_cut());
        connected().filter_map(Peer::session).for_each(|session| session.finish());
        connected().for_each(|peer| peer.wait_free(until));
    }

    pub(super) fn stop(&self) {
        if self.lifetime.stop() {
            for peer in self.peers.values() {
                peer.parked().take();
                if let Some(session) = peer.session() {
                    session.close("the node is stopping");
                }
            }
            self.wake_listener();
        }
        self.lifetime.join();
    }

    /// Wakes the listener by connecting to it, because `accept` has no timeout.
    pub(super) fn wake_listener(&self) {
        let ip = match self.listen_address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let address = SocketAddr::new(ip, self.listen_address.port());
        // A failure means that the listener's backlog is full, and those connections wake it too.
        let _ = TcpStream::connect_timeout(&address, WAKE_MAX);
    }
}
